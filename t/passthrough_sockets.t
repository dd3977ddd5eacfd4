#!/usr/bin/perl

# Sockets at their limits: buffers that are set, that overflow, that are full;
# datagrams over the MTU; UDP_SEGMENT that is refused.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;
use QuicLB::Packet qw/initial short/;
use QuicLB::Process qw/slurp/;
use QuicLB::Udp;

use constant { BUFFER => 65536, MTU => 1500 };

# docs: octets of the receive buffer; new connections at once
use constant { DEFAULT => 4 * 1024 * 1024, BURST => 1500 };

my $id = "\x08\x0a" . 'nonce77';

# the MTU is that of all who use the interface
QuicLB::Net::alone();

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;

my $backend = udp_bind('127.0.0.1');
my $address = '127.0.0.1:' . $backend->sockport;

sub conf {
    my ($more, @names) = @_;

    $t->conf(stream => <<"CONF" . $t->counters_server($stats, @names));
        upstream quic {
            server $address;

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                server_id 0a $address;
            }
        }

        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough quic;
            $more
        }
CONF
}

sub counter {
    my ($name) = @_;

    return $t->counters($stats)->{$name};
}


# the sizes of the buffers, of all sockets; Linux shows twice as much

for my $case (['a bad size', 'quic_passthrough_socket_rcvbuf much;',
               qr/"quic_passthrough_socket_rcvbuf" directive invalid value/],
              ['too small', 'quic_passthrough_socket_sndbuf 4095;',
               qr/value must be between 4096 and 1073741823/],
              ['twice', 'quic_passthrough_socket_sndbuf 8k; ' x 2,
               qr/"quic_passthrough_socket_sndbuf" directive is duplicate/])
{
    my ($name, $text, $expected) = @$case;
    my ($ok, $output) = $t->test_conf(stream => <<"CONF");
        server {
            listen $port udp;
            quic_passthrough 127.0.0.1:1;
            $text
        }
CONF

    ok(!$ok, "$name: refused");
    like($output, $expected, "$name: says why");
}

my $size = BUFFER;
conf("quic_passthrough_socket_rcvbuf $size;
      quic_passthrough_socket_sndbuf 32k;", qw/overflow received too_big/);
$t->start();

my $client = udp_connect('127.0.0.1', $port);
$client->send(short($id));
ok(defined udp_receive($backend), 'a datagram passes');

my $leg = $backend->peerport;
for my $case (['listening socket', $port], ['leg', $leg]) {
    my ($name, $local) = @$case;

    my $text = `ss -uanm "sport = :$local"`;
    like($text, qr/rb@{[2 * BUFFER]},.*tb@{[2 * 32768]},/, "buffers, $name");
}

$t->stop();

# the default, of listening sockets past the system's limit; and none

sub buffer {
    my ($text) = `ss -uanm "sport = :$port"` =~ /rb(\d+)/;

    return $text;
}

for my $case (['', 2 * DEFAULT, 'default'],
              ['quic_passthrough_socket_rcvbuf 512m;', 1024 * 1024 * 1024,
               'more than rmem_max'],
              ['quic_passthrough_socket_rcvbuf off;',
               slurp('/proc/sys/net/core/rmem_default'), 'off'])
{
    my ($text, $expected, $name) = @$case;

    conf($text, 'received');
    $t->start();
    is(buffer(), int $expected, "receive buffer: $name");
    is($t->log_count(qr/socket_rcvbuf/), 0, "$name: no warning");
    $t->stop();
}

{
    # one that may not exceed the limit
    local $ENV{NGINX_BIN} = $t->write('nginx.sh', <<"SH");
#!/bin/sh
exec setpriv --bounding-set -net_admin --inh-caps -net_admin \\
    '$ENV{NGINX_BIN}' "\$@"
SH
    chmod 0755, $ENV{NGINX_BIN};

    conf('quic_passthrough_socket_rcvbuf 512m;', 'received');
    $t->start();
    is($t->log_count(qr/\[warn\].*rcvbuf"\ of\ 127\.0\.0\.1:$port\ is
                        \ 536870912,\ the\ system\ allows\ \d+:.*
                        net\.core\.rmem_max\ to\ 536870912$/x), 1,
       'less than was asked for: a warning');
    $t->stop();
}


# a burst of new connections from one socket, while nginx does not read

conf('', qw/overflow received/);
$t->start();

$client = udp_connect('127.0.0.1', $port);
udp_drain($backend);
$t->while_stopped(sub {
    $client->send(initial(sprintf('dcid%06d', $_), '', payload => 'x' x 1150))
        for 1 .. BURST;
});
$t->wait_for('the burst', sub { counter('received') == BURST });
is(counter('overflow'), 0, 'nothing is lost of a burst');
$t->stop();


# what the kernel drops is counted

conf('quic_passthrough_socket_rcvbuf 4k;', qw/overflow received too_big/);
$t->start();

$client = udp_connect('127.0.0.1', $port);
$t->while_stopped(sub { $client->send(short($id, 'x' x 1000)) for 1 .. 50 });

# it tells with the next datagram that it delivers
my $told = $t->wait_for('the overflow', sub {
    $client->send(short($id));
    return counter('overflow');
});
my $received = counter('received');
cmp_ok($told, '>', 0, 'the kernel drops what finds no room');
cmp_ok($received, '<', 50 + $told, 'and that is not received');
udp_drain($backend);


# over the MTU: not fragmented, dropped, counted, and others pass

is(system('ip link set lo mtu ' . MTU), 0, 'a smaller MTU');

$client->send(short($id, 'x' x (2 * MTU)));
my $dropped = $t->wait_for('a drop', sub { counter('too_big') });
is($dropped, 1, 'a datagram over the MTU is dropped');

my $fits = short($id, 'x' x (MTU - 100));
$client->send($fits);
ok((udp_receive($backend) // '') eq $fits, 'a smaller one passes');

is(system('ip link set lo mtu 65536'), 0, 'the usual MTU');
$t->stop();


# sockets without room, and without UDP_SEGMENT

SKIP: {
    skip "a preloaded library and the sanitizer's do not mix", 8
        if $ENV{NGINX_FLAVOR} eq 'asan';

    my $shim = $t->path('shim.so');
    is(system('cc', qw/-W -Wall -Werror -O2 -shared -fPIC -o/, $shim,
              "$FindBin::Bin/lib/shim.c", '-ldl'), 0, 'the shim');

    for my $fault (qw/full nosegment none/) {
        conf('', qw/send_failed/);

        {
            local $ENV{LD_PRELOAD} = $shim;
            local $ENV{QUIC_LB_SHIM} = $fault;
            $t->start();
        }

        is(exchange(), '', "fault \"$fault\": all arrive in order");
        is(counter('send_failed'), 0, "$fault: none is lost");
        $t->stop();
    }

    like($t->error_log(), qr/UDP_SEGMENT failed, sending datagrams one by one/,
         'a refusal of UDP_SEGMENT is logged');
}

$t->done();


# trains there and back; what is wrong, or nothing

sub exchange {
    my $socket = udp_connect('127.0.0.1', $port);

    for my $round (1 .. 30) {
        my @train = map { short($id, chr($_) x (200 + $round)) } 1 .. 40;
        udp_train($socket, @train) or return 'train refused';

        for my $expected (@train) {
            my $got = udp_receive($backend) // return "round $round: lost";
            return "round $round: another" if $got ne $expected;
        }

        udp_train($backend, @train) or return 'train refused';

        for my $expected (@train) {
            my $got = udp_receive($socket) // return "round $round: no reply";
            return "round $round: another reply" if $got ne $expected;
        }
    }

    return '';
}
