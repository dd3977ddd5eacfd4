#!/usr/bin/perl

# Names that have to be looked up, when there is no room: a flow with a
# connection makes half-open ones go, while these wait for the same name.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;
use IO::Socket::IP;

use QuicLB;
use QuicLB::Dns;
use QuicLB::Hello;
use QuicLB::Packet qw/handshake short/;
use QuicLB::Udp;

# of a worker; flows that wait for a name, fewer than may be half-open; TCP
# sessions, of two connections each, that leave less than a flow needs
use constant { CONNECTIONS => 64, WAITING => 12, SESSIONS => 21 };

my $t = QuicLB->new();
my ($port, $tcp, $stats, $dns_port) = map { $t->port() } 1 .. 4;

my $dns = udp_bind('127.0.0.1', $dns_port);
my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a x/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;
my $silent = IO::Socket::IP->new(LocalHost => '127.0.0.1', Listen => SESSIONS)
    or die $@;

$t->conf(connections => CONNECTIONS, stream => <<"CONF");
    resolver 127.0.0.1:$dns_port ipv6=off;

    upstream a {
        server $addresses{a} max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 6;
            server_id 0a $addresses{a};
        }
    }

    map \$quic_preread_server_name \$to {
        slow.example.com slow.example:@{[$backends{x}->sockport]};
        default a;
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_preread on;
        quic_passthrough \$to;
    }

    server {
        listen 127.0.0.1:$tcp;
        proxy_pass 127.0.0.1:@{[$silent->sockport]};
    }

    @{[$t->counters_server($stats, qw/hellos evicted/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my $connections = 0;


sub first {
    my ($name) = @_;

    return $hello->datagrams(sni => "$name.example.com",
                             dcid => sprintf('dcid%06d', ++$connections),
                             scid => sprintf('scid%04d', $connections));
}


# a flow that is confirmed

my $client = udp_connect('127.0.0.1', $port);
my ($begin) = first('a');

$client->send($begin);
IO::Select->new($backends{a})->can_read(5);
my $from = $backends{a}->recv(my $got, 2048);
is($got, $begin, 'a connection begins');

my $answer = handshake('scid0001', "\x00\x0anonce6");
$backends{a}->send($answer, 0, $from);
is(udp_receive($client), $answer, 'is answered');

my $proof = handshake("\x00\x0anonce6", 'scid0001');
$client->send($proof);
is(udp_receive($backends{a}), $proof, 'its client has had the answer');

my $more = short("\x00\x0anonce6", 'x' x 30);
$client->send($more);
is(udp_receive($backends{a}), $more, 'and goes on');


# others wait for a name, and last the flow does

my @waiting = map { udp_connect('127.0.0.1', $port) } 1 .. WAITING;
my %sent = map { (first('slow') => 1) } @waiting;
my @sent = keys %sent;

$waiting[$_]->send($sent[$_]) for 0 .. $#waiting;
$t->wait_for('their ClientHellos', sub {
    $t->counters($stats)->{hellos} == 1 + WAITING;
});

my @sessions = map {
    my $session = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                      PeerPort => $tcp) or die $@;
    [$session, $silent->accept()];
} 1 .. SESSIONS;

my ($next) = first('slow');
$client->send($next);
$client->send($more);
is(udp_receive($backends{a}), $more, 'the name of another is looked up');

$t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') });

my %got;
$got{$_} = 1 while defined($_ = udp_receive($backends{x}, $got{$next} ? 0 : 5));

ok($got{$next}, 'the connection of the flow gets a server');
is(scalar(grep { !$sent{$_} } keys %got), 1, 'and nobody gets anything else');

$client->send($more);
is(udp_receive($backends{a}), $more, 'its first one goes on');

@sessions = ();
$t->wait_for('flows that have made room', sub {
    ($t->counters($stats)->{evicted} // 0) > 0;
});

ok($t->stop(), 'nginx ends');

$t->done();
