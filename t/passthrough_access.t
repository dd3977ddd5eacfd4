#!/usr/bin/perl

# A flow is a session: access rules, limit_conn, logs, and what is done about
# clients that are refused.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my ($port, $limited, $stats) = map { $t->port() } 1 .. 3;

my $servers = $t->servers([['one', '127.0.0.1:0', '31441a']],
                          '--config-id', 2);
my $address = $servers->address('one');

my $text = join ' ', map { "$_ \$quic_passthrough_$_" } qw/flows refused/;

$t->conf(workers => 2, stream => <<"CONF");
    log_format route '\$server_port \$remote_addr \$status \$quic_routed_by '
                     '\$quic_config_id \$quic_server_id \$quic_version '
                     '\$upstream_addr';
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

    server {
        listen 127.0.0.1:$stats;
        access_log off;
        return "$text";
    }
CONF

$t->start();

sub counters {
    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $stats, Timeout => 5)
        or die "statistics: $@";
    local $/;

    return { split ' ', <$socket> };
}

sub logged {
    my ($regex) = @_;

    return scalar(my @lines = $t->read('access.log') =~ /$regex/mg);
}


# a refused client costs one session, not one for each datagram

my $client = IO::Socket::IP->new(LocalHost => '127.0.0.9',
                                 PeerHost => '127.0.0.1', PeerPort => $port,
                                 Type => Socket::SOCK_DGRAM);

# config 2, server 31441a: routable
my $initial = initial("\x40\x31\x44\x1a" . 'nonc', 'client_a');

$client->send($initial) for 1 .. 20;

$t->wait_for('refusals', sub { counters()->{refused} == 20 });
is(counters()->{flows}, 1, 'one flow for a refused client');
is(logged(qr/^$port 127\.0\.0\.9 403 /m), 1, 'and one line in the log');

is($t->udp_ask('127.0.0.1', $port, $initial, 1), undef,
   'no answer to a bogus Initial');


# limit_conn: per source, for new connections

my $held = $t->client_start('--connect', "127.0.0.1:$limited",
                            '--connections', 2, 'hold');
$held->ready();

my $report = $t->client('--connect', "127.0.0.1:$limited", '--timeout', 3,
                        'run', 'get:/name');
is($report->{failed}, 1, 'limit_conn refuses a third connection');
is(logged(qr/^$limited 127\.0\.0\.1 503 /m), 1, 'logged once');

$report = $t->client('--connect', "127.0.0.1:$port", 'run', 'get:/name');
is($report->{failed}, 0, 'another server does not count them');

ok($t->reload(), 'reload');
is($held->command('progress 3')->{failed}, 0,
   'connections over the limit only by a reload go on');

$held->command('rebind');
is($held->command('progress 3')->{failed}, 0, 'or by NAT rebinding');


# a datagram with a server's ID does not open the way for a new connection

$client = IO::Socket::IP->new(PeerHost => '127.0.0.1', PeerPort => $limited,
                              Type => Socket::SOCK_DGRAM);

my $refused = counters()->{refused};

$client->send("\x40\x40\x31\x44\x1anonc" . 'payload' x 10);
$t->wait_for('its flow', sub { $t->error_log() =~ /:${\$client->sockport}/ });
$client->send($initial) for 1 .. 3;

$t->wait_for('the refusal', sub { counters()->{refused} == $refused + 3 });
my $lines = () = $t->error_log() =~ /limiting connections by zone/g;
is($lines, 2, 'limit_conn is asked when a connection begins, once');

is($held->stop_and_report()->{failed}, 0, 'the others go on to their end');


# the log of what a client's first datagram was

$t->wait_for('access log', sub {
    logged(qr/^$port\ 127\.0\.0\.1\ 200\ server_id\ 2\ 31441a
              \ 0x00000001\ \Q$address\E$/mx)
}, 10);
pass('a flow that never came to a connection is logged with its route');

$t->done();


sub initial {
    my ($dcid, $scid) = @_;

    my $payload = "\0" x 1160;

    return "\xc0\0\0\0\1" . pack('C/a C/a', $dcid, $scid) . "\0"
           . pack('n', 0x4000 | length $payload) . $payload;
}
