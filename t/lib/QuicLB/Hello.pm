package QuicLB::Hello;

# Datagrams with a ClientHello in any pieces, as a client would encrypt them:
# see quic_hello.py, which makes them.
#
#   my $hello = QuicLB::Hello->new($t);         # $t: a QuicLB
#   my @datagrams = $hello->datagrams(sni => 'a.example.com', dcid => $dcid,
#                                     scid => $scid, datagrams => [...]);
#
# Connection IDs are octets here, "raw" packets and frames hexadecimal.

use strict;
use warnings;

use Cwd qw/abs_path/;
use File::Basename qw/dirname/;
use JSON::PP;

my $program = dirname(dirname(abs_path(__FILE__))) . '/quic_hello.py';


sub new {
    my ($class, $t) = @_;

    return bless {
        process => $t->helper('hello', 'python3', '-B', $program),
    }, $class;
}


sub datagrams {
    my ($self, %command) = @_;

    for my $field (grep { exists $command{$_} } qw/dcid scid keys/) {
        $command{$field} = unpack 'H*', $command{$field};
    }

    $self->{process}->say(encode_json(\%command));
    my ($line) = $self->{process}->wait_line(qr/^(\[.*\])$/);

    die 'quic_hello: ' . $self->{process}->stderr() if !defined $line;

    return map { pack 'H*', $_ } @{ decode_json($line) };
}


1;
