package QuicLB::Udp;

# UDP sockets of tests that make their own datagrams.
#
#   my $backend = udp_bind($host, $port);       # port 0: any
#   my $client = udp_connect($host, $port, $local_host);
#   my $datagram = udp_receive($socket, $seconds);      # undef: none came
#   udp_drain(@sockets);                        # forget what has come
#   udp_train($socket, @datagrams)      # sends them at once, the last may be
#                                       # shorter; false: they are too many
#   udp_read_as_one($client, $backend, $id)     # whether nginx, and $backend,
#                       # receive at once what $client sends at once: UDP_GRO

use strict;
use warnings;

use Errno qw/EINVAL/;
use Exporter qw/import/;
use IO::Select;
use IO::Socket::IP;
use Socket qw/SOCK_DGRAM SOL_SOCKET/;

use QuicLB::Packet qw/short/;

our @EXPORT = qw/udp_bind udp_connect udp_receive udp_drain udp_train
                 udp_read_as_one/;

use constant PATIENCE => 30;
use constant LARGEST => 65536;

# Linux: udp.h
use constant { SOL_UDP => 17, UDP_SEGMENT => 103, UDP_GRO => 104 };

# what nginx can read at once of datagrams that do not come as a train
use constant MESSAGES => 16;

# Linux: past the system's limit; with enough room for a burst
use constant { SO_RCVBUFFORCE => 33, ROOM => 4 * 1024 * 1024 };


sub udp_bind {
    my ($host, $port) = @_;

    my $socket = IO::Socket::IP->new(LocalHost => $host,
                                     LocalPort => $port // 0,
                                     Type => SOCK_DGRAM)
        or die "udp_bind $host: $@";

    setsockopt($socket, SOL_SOCKET, SO_RCVBUFFORCE, pack('i', ROOM))
        or die "SO_RCVBUFFORCE: $!";

    return $socket;
}


# a client that nginx does not know: a port of an earlier one may still have a
# flow, which what the new one sends would go on with

my %used;

sub udp_connect {
    my ($host, $port, $local) = @_;

    while (1) {
        my $socket = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port,
                                         LocalHost => $local,
                                         Type => SOCK_DGRAM)
            or die "udp_connect $host:$port: $@";

        my $from = join ' ', $host, $port, $socket->sockhost,
                             $socket->sockport;
        return $socket if !$used{$from}++;
    }
}


sub udp_receive {
    my ($socket, $seconds) = @_;

    IO::Select->new($socket)->can_read($seconds // PATIENCE) or return undef;

    my $datagram;

    return defined $socket->recv($datagram, LARGEST) ? $datagram : undef;
}


sub udp_drain {
    for my $socket (@_) {
        1 while defined udp_receive($socket, 0);
    }
}


sub udp_train {
    my ($socket, @datagrams) = @_;

    set_option($socket, UDP_SEGMENT, length $datagrams[0]);
    my $sent = $socket->send(join '', @datagrams);
    die "send: $!" if !defined $sent && $! != EINVAL;
    set_option($socket, UDP_SEGMENT, 0);

    return defined $sent;
}


# only what was read at once is sent at once; $backend is the server that the
# connection ID $id names

sub udp_read_as_one {
    my ($client, $backend, $id) = @_;
    my $datagram = short($id, 'x' x 90);

    set_option($backend, UDP_GRO, 1);
    udp_train($client, ($datagram) x (2 * MESSAGES));

    my $got = udp_receive($backend) // '';
    udp_drain($backend);

    return length($got) > MESSAGES * length $datagram;
}


sub set_option {
    my ($socket, $option, $value) = @_;

    setsockopt($socket, SOL_UDP, $option, pack('i', $value))
        or die "setsockopt($option): $!";
}


1;
