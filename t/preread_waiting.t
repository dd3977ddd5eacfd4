#!/usr/bin/perl

# Memory of what waits for a resolver that does not answer, with quic_preread
# and without: the oldest make room, of the client that holds the most; others
# do not notice.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Dns;
use QuicLB::Hello;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

# octets: quic_preread_memory; of a datagram
use constant { MEMORY => 256 * 1024, SIZE => 1400 };

# docs: datagrams of a connection, connections of an address
use constant { DATAGRAMS => 16, CONNECTIONS => 16 };

# docs: octets of a worker without quic_preread
use constant QUEUED => 8 * 1024 * 1024;

my $t = QuicLB->new();
my ($port, $plain, $stats, $dns_port) = map { $t->port() } 1 .. 4;

my $dns = udp_bind('127.0.0.1', $dns_port);
my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a x/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;

# what asks for many names, and who asks for one
my ($flood, $honest) = qw/127.0.0.2 127.0.0.3/;

$t->conf(connections => 8192, main => 'worker_rlimit_nofile 16384;',
         stream => <<"CONF");
    resolver 127.0.0.1:$dns_port ipv6=off;
    resolver_timeout 60s;

    upstream a {
        server $addresses{a} max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 6;
            server_id 0a $addresses{a};
        }
    }

    map \$quic_preread_server_name \$to {
        a.example.com a;
        default \$quic_preread_server_name:@{[$backends{x}->sockport]};
    }

    map \$remote_addr \$plain {
        $flood slow\$remote_port.example:443;
        $honest honest.example:@{[$backends{x}->sockport]};
    }

    quic_preread_memory @{[MEMORY]};
    quic_preread_timeout 60s;

    server {
        listen 127.0.0.1:$port udp;
        quic_preread on;
        quic_passthrough \$to;
    }

    server {
        listen 127.0.0.1:$plain udp;
        quic_passthrough \$plain;
    }

    @{[$t->counters_server($stats, qw/received hellos unread overload evicted
                                      refused flows/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my ($connections, $before) = (0);


sub first {
    my ($name) = @_;

    return $hello->datagrams(sni => $name,
                             dcid => sprintf('dcid%06d', ++$connections),
                             scid => sprintf('scid%06d', $connections));
}


# datagrams of a connection to a slow server, as many as are kept; what is
# behind a packet is not looked at

sub slow {
    my ($begin) = first("slow$connections.example");
    my $large = $begin . "\0" x (SIZE - length $begin);

    return ($begin, ($large) x (DATAGRAMS - 1));
}


sub counter {
    my ($name) = @_;

    return $t->counters($stats)->{$name} - $before->{$name};
}


# no more at a time than a socket's buffer has room for

sub send_all {
    my ($socket, @datagrams) = @_;

    while (my @some = splice @datagrams, 0, DATAGRAMS) {
        my $received = $t->counters($stats)->{received};

        $socket->send($_) for @some;
        $t->wait_for('received', sub {
            $t->counters($stats)->{received} >= $received + @some;
        });
    }
}


# a name that is known at once

sub static {
    my ($what) = @_;
    my $client = udp_connect('127.0.0.1', $port, $honest);
    my ($begin) = first('a.example.com');

    $client->send($begin);
    is(udp_receive($backends{a}, 10), $begin, $what);

    return $client;
}


# a flow for each connection

$before = $t->counters($stats);
my $patient = udp_connect('127.0.0.1', $port, $honest);
my ($asks) = first('honest.example');
send_all($patient, $asks);
$t->wait_for('a query', sub { dns_asked($dns) });

my $n = int(2 * MEMORY / (DATAGRAMS * SIZE));
my @clients = map { udp_connect('127.0.0.1', $port, $flood) } 1 .. $n;
send_all($_, slow()) for @clients;

static('a name that needs no resolver');
is(counter('flows'), @clients + 2, 'no flow is made in vain');
is(counter('unread'), 0, 'all are read');
cmp_ok(counter('evicted'), '>=', $n / 3, 'those that wait make room');
cmp_ok(counter('evicted'), '<=', $n * 2 / 3, 'but no more than that');
cmp_ok(counter('overload'), '>=', DATAGRAMS * (counter('evicted') - 1),
       'their datagrams are counted');
$t->wait_log(qr/\[warn\].*wait\ for\ the\ resolver.*decrease
                \ "resolver_timeout".*"quic_preread_memory"/x);

dns_answer($dns, '127.0.0.1');
is(udp_receive($backends{x}, 10), $asks,
   'who holds little keeps it, and gets the server');


# connections of one flow, behind one that waits

my $client = static('a flow');
my $more = short("\x00\x0anonce6", 'x' x 30);
$before = $t->counters($stats);
send_all($client, slow()) for 1 .. CONNECTIONS;

my @others = map { static('another one') } 1 .. $n / CONNECTIONS;
for my $other (@others) {
    send_all($other, slow()) for 1 .. CONNECTIONS;
}

static('a name that needs no resolver');
cmp_ok(counter('overload'), '>', DATAGRAMS * counter('evicted'),
       'connections make room, not only flows that wait');

for my $flow ($client, @others) {
    $flow->send($more);
    is(udp_receive($backends{a}, 10), $more, 'the flow goes on');
}


# without quic_preread

$before = $t->counters($stats);
$patient = udp_connect('127.0.0.1', $plain, $honest);
$asks = initial('dcid' x 2, 'scid');
send_all($patient, $asks);

$n = int(1.2 * QUEUED / (DATAGRAMS * SIZE));
@clients = map { udp_connect('127.0.0.1', $plain, $flood) } 1 .. $n;
send_all($_, ($asks . "\0" x (SIZE - length $asks)) x DATAGRAMS)
    for @clients;
send_all($patient, $asks);

cmp_ok(counter('evicted'), '>', 0, 'without preread: flows make room');
cmp_ok(counter('evicted'), '<', $n / 2, 'not too many');
cmp_ok(counter('overload'), '>=', DATAGRAMS * (counter('evicted') - 1),
       'what waited in them is counted');
is(counter('flows'), $n + 1, 'no flow is made in vain');
$t->wait_log(qr/\[warn\].*wait for the resolver take more than 8m/);

$t->wait_for('an answer', sub {
    dns_answer($dns, '127.0.0.1');
    udp_receive($backends{x}, 0);
});
is(udp_receive($backends{x}, 10), $asks, 'who holds little keeps it');

ok($t->stop(), 'nginx ends');

$t->done();
