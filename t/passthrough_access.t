#!/usr/bin/perl

# A flow is a session: access rules, limit_conn, logs, and what is done about
# clients that are refused.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

my $t = QuicLB->new();
my ($port, $limited, $stats) = map { $t->port() } 1 .. 3;

my $servers = $t->servers([['one', '127.0.0.1:0', '31441a']],
                          '--config-id', 2);
my $address = $servers->address('one');

$t->conf(workers => 2, stream => <<"CONF");
    log_format route '\$server_port \$remote_addr \$remote_port \$status '
                     '\$quic_routed_by \$quic_config_id \$quic_server_id '
                     '\$quic_version \$upstream_addr';
    access_log @{[$t->path('access.log')]} route;

    limit_conn_zone \$binary_remote_addr zone=clients:1m;

    upstream h3 {
        server $address;

        quic_lb 2 {
            server_id_length 3;
            nonce_length 4;
            server_id 31441a $address;
        }
    }

    server {
        listen 127.0.0.1:$port udp reuseport;
        deny 127.0.0.9;
        quic_passthrough h3;
        quic_passthrough_timeout 2s;
    }

    server {
        listen 127.0.0.1:$limited udp reuseport;
        limit_conn clients 2;
        quic_passthrough h3;
        quic_passthrough_timeout 20s;
    }

    @{[$t->counters_server($stats, qw/flows refused/)]}
CONF

$t->start();


# a refused client costs one session, not one for each datagram

# config 2, server 31441a: routable
my $dcid = "\x40\x31\x44\x1anonc";
my $initial = initial($dcid, 'client_a', payload => "\0" x 1160);

my $client = udp_connect('127.0.0.1', $port, '127.0.0.9');
$client->send($initial) for 1 .. 20;

$t->wait_for('refusals', sub { $t->counters($stats)->{refused} == 20 });
is($t->counters($stats)->{flows}, 1, 'one flow for a refused client');
is($t->access_count(qr/^$port 127\.0\.0\.9 \d+ 403 /), 1,
   'and one line in the log');


# a flow that comes to no connection: the server cannot read this Initial

$client = udp_connect('127.0.0.1', $port);
$client->send($initial);

my $flow = $client->sockport;
$t->wait_for('its end', sub { $t->access_count(qr/^$port \S+ $flow /) });
is($t->access_count(qr/^$port\ 127\.0\.0\.1\ $flow\ 200\ server_id
                       \ 2\ 31441a\ 0x00000001\ \Q$address\E$/x), 1,
   'an Initial that opens nothing is logged with its route');


# limit_conn: per source, for new connections

my $held = $t->client_start('--connect', "127.0.0.1:$limited",
                            '--connections', 2, 'hold');
$held->ready();

my $report = $t->client('--connect', "127.0.0.1:$limited", '--timeout', 3,
                        'run', 'get:/name');
is($report->{failed}, 1, 'limit_conn refuses a third connection');
is($t->access_count(qr/^$limited 127\.0\.0\.1 \d+ 503 /), 1, 'logged once');

$report = $t->client('--connect', "127.0.0.1:$port", 'run', 'get:/name');
is($report->{failed}, 0, 'another server does not count them');

ok($t->reload(), 'reload');
is($held->command('progress 3')->{failed}, 0,
   'connections over the limit only by a reload go on');

$held->command('rebind');
is($held->command('progress 3')->{failed}, 0, 'or by NAT rebinding');


# a datagram with a server's ID does not open the way for a new connection

$client = udp_connect('127.0.0.1', $limited);

my $before = $t->counters($stats);

$client->send(short($dcid, 'payload' x 10));
$t->wait_for('its flow', sub {
    $t->counters($stats)->{flows} > $before->{flows}
});
$client->send($initial) for 1 .. 3;

$t->wait_for('the refusal', sub {
    $t->counters($stats)->{refused} == $before->{refused} + 3
});
is($t->log_count(qr/limiting connections by zone/), 2,
   'limit_conn is asked when a connection begins, once');

is($held->stop_and_report()->{failed}, 0, 'the others go on to their end');

$t->done();
