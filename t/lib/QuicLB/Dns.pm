package QuicLB::Dns;

# A name server on a socket of the test, which answers when it is told to.
#
#   my $dns = udp_bind('127.0.0.1', $port);     # QuicLB::Udp
#   dns_answer($dns, '127.0.0.1');      # or more; false: nobody has asked yet
#   dns_asked($dns);                    # somebody has
#   dns_answer($dns);                   # there is no such name

use strict;
use warnings;

use Exporter qw/import/;
use IO::Select;
use Socket qw/inet_aton/;

our @EXPORT = qw/dns_answer dns_asked/;

# RFC 1035, 3.2, 4.1: a response, of a server that recurses; the name is the
# question's, by a pointer
use constant { RESPONSE => 0x8180, NO_NAME => 3, QUESTION => 12 };
use constant { A => 1, IN => 1, TTL => 60, NAME => 0xc000 | QUESTION };


sub dns_answer {
    my ($socket, @addresses) = @_;

    dns_asked($socket) or return 0;
    my $from = $socket->recv(my $query, 512);

    my $flags = RESPONSE | (@addresses ? 0 : NO_NAME);
    my $answer = substr($query, 0, 2)
                 . pack('n5', $flags, 1, scalar @addresses, 0, 0)
                 . substr($query, QUESTION);

    $answer .= pack('n3 N n/a', NAME, A, IN, TTL, inet_aton($_))
        for @addresses;

    $socket->send($answer, 0, $from);

    return 1;
}


sub dns_asked {
    my ($socket) = @_;

    return IO::Select->new($socket)->can_read(0) ? 1 : 0;
}


1;
