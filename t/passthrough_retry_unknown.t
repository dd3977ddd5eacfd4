#!/usr/bin/perl

# quic_passthrough_retry: versions that get no Retry are passed to the servers,
# but have no more than an eighth of the room that there is for half-open flows.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial long V2/;
use QuicLB::Udp;

# a quarter of the connections may be half-open
use constant { CONNECTIONS => 128, ROOM => 128 / 4 / 8, CLIENTS => 64 };

my $t = QuicLB->new();
my ($on, $stats) = map { $t->port() } 1 .. 2;
my $backend = udp_bind('127.0.0.1');

my $key = $t->write('key', 'a key of the balancer, of 32 octets');
chmod 0600, $key;

$t->conf(connections => CONNECTIONS, stream => <<"CONF");
    quic_passthrough_retry on;
    quic_passthrough_retry_key $key;

    server {
        listen 127.0.0.1:$on udp reuseport;
        quic_passthrough 127.0.0.1:@{[ $backend->sockport ]};
    }

    @{[ $t->counters_server($stats, qw/received flows evicted/) ]}
CONF

for my $case (
    ['an unknown version', sub { long(0x0a0a0a0a, @_) }],
    ['version 2 without "v2"', sub { initial(@_, version => V2) }],
) {
    my ($name, $datagram) = @$case;

    $t->start();

    my @clients = map { udp_connect('127.0.0.1', $on, "127.0.0." . (1 + $_)) }
                  1 .. CLIENTS;

    $clients[$_]->send($datagram->(sprintf('dcid%04d', $_), 'scid'))
        for 0 .. $#clients;

    $t->wait_for('all to be read', sub {
        $t->counters($stats)->{received} >= CLIENTS
    });

    my $counters = $t->counters($stats);
    my $passed = 0;
    $passed++ while $passed < $counters->{flows}
                    && defined udp_receive($backend);

    cmp_ok($passed, '>', 0, "$name: passed to the servers");
    cmp_ok($counters->{flows} - $counters->{evicted}, '<=', ROOM,
           "$name: only so many flows at a time");

    # those without a token are answered all the same

    my $client = udp_connect('127.0.0.1', $on);
    $client->send(initial('the DCID', 'the SCID', payload => 'x' x 1200));
    like(udp_receive($client) // "", qr/^[\xf0-\xff]/,
         "$name: others are asked");

    $t->stop('TERM');
    udp_drain($backend);
}

$t->done();
