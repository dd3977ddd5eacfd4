package QuicLB::H3Client;

# An h3_client.py; "script" takes its actions as the first line of its input.
#
#   my $client = $t->h3_start('--connect', $address, 'script');
#   $client->actions(['get', 'a', '/'], ['wait', 'a'], ['say', 'got it'],
#                    ['read'], ['wait_close']);
#   $client->wait_said('got it');
#   $client->say('');                   # what a "read" waits for
#   my $report = $client->report();     # wait for its end

use strict;
use warnings;

use JSON::PP;

use parent 'QuicLB::Process';


sub actions {
    my ($self, @actions) = @_;

    $self->say(encode_json(\@actions));
}


sub wait_said {
    my ($self, $text, $seconds) = @_;

    return $self->wait_line(qr/^\{"say": "\Q$text\E"\}$/, $seconds // 300);
}


sub report {
    my ($self, $seconds) = @_;

    my ($line) = $self->wait_line(qr/^(\{.*"connections".*\})$/,
                                  $seconds // 400)
        or die "h3 client: no report\n" . $self->stderr();

    my $report = decode_json($line);
    $report->{exit} = $self->wait();

    return $report;
}


1;
