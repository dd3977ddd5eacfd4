package QuicLB::Client;

# A quic_client.py that runs beside the test ("hold", or a long "run").
#
#   my $answer = $client->command('progress 3');    # one JSON answer
#   my $report = $client->report();                 # wait for its end

use strict;
use warnings;

use JSON::PP;

use QuicLB::Process qw/wait_for/;

use parent 'QuicLB::Process';


# waits until all connections of a "hold" are up, or have failed

sub ready {
    my ($self) = @_;

    return $self->_answer('ready');
}


sub command {
    my ($self, $line) = @_;

    $self->say($line);

    return $self->_answer((split ' ', $line)[0]);
}


# waits until $count connections of a "hold" have failed

sub wait_failed {
    my ($self, $count, $seconds) = @_;

    return wait_for(sub { $self->command('status')->{failed} >= $count },
                    $seconds);
}


sub stop_and_report {
    my ($self) = @_;

    $self->say('stop');

    return $self->report();
}


sub report {
    my ($self, $seconds) = @_;

    my ($line) = $self->wait_line(qr/^(\{.*"connections".*\})$/,
                                  $seconds // 300)
        or die "client: no report\n" . $self->stderr();

    my $report = decode_json($line);
    $report->{status} = $self->wait();

    return $report;
}


sub _answer {
    my ($self, $event) = @_;

    my ($line) = $self->wait_line(qr/^(\{"event": "\Q$event\E".*\})$/, 300)
        or die "client: no answer to $event\n" . $self->stderr();

    return decode_json($line);
}


1;
