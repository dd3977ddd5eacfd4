#!/usr/bin/perl

# Connections that quic_preread has read over reloads, killed workers, other
# numbers of workers and changes of address: with QUIC-LB connection IDs, and
# with learned ones; and ClientHellos that come while a worker leaves.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Hello;
use QuicLB::Udp;

use constant CONNECTIONS => 20;
use constant SIZE => 2000;

my $t = QuicLB->new();
my ($lb, $learned, $stats) = map { $t->port() } 1 .. 3;

my %ids = (a1 => '0a', a2 => '0b', b1 => '1a', b2 => '1b', d => '2a');

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

# with IDs that name nobody
my $random = $t->servers([map { ["r$_", '127.0.0.1:0', 'ff'] }
                          sort keys %ids], '--config-id', 5);

my $backend = udp_bind('127.0.0.1');
my $other = udp_bind('127.0.0.1');


sub upstream {
    my ($name, @own) = @_;
    my %of = map { ($_ => $ids{$_}) } @own;
    my %random = map { ("r$_" => 1) } @own;

    return <<"CONF";
        upstream $name {
            @{[$servers->lines(\%of)]}

            quic_lb 0 {
                server_id_length 1;
                nonce_length 4;
                @{[$servers->id_lines(\%of)]}
            }
        }

        upstream r$name {
            @{[$random->lines(\%random)]}
            quic_maglev;
        }
CONF
}


sub conf {
    my ($workers) = @_;

    $t->conf(workers => $workers, stream => <<"CONF");
        @{[upstream('a', 'a1', 'a2')]}
        @{[upstream('b', 'b1', 'b2')]}
        @{[upstream('d', 'd')]}

        map \$quic_preread_server_name \$name {
            a.example.com a;
            b.example.com b;
            default d;
        }

        map \$quic_preread_server_name \$to {
            made.example.com 127.0.0.1:@{[$backend->sockport]};
            default \$name;
        }

        quic_preread on;
        quic_passthrough_timeout 5s;

        server {
            listen 127.0.0.1:$lb udp reuseport;
            quic_passthrough \$to;
        }

        server {
            listen 127.0.0.1:$learned udp reuseport;
            quic_passthrough r\$name;
            quic_passthrough_cid_zone zone=cids:1m;
        }

        @{[$t->counters_server($stats, qw/received hellos unread/)]}
CONF
}

conf(2);
$t->start();

my @clients = map {
    my ($port, $prefix) = @$_;

    map {
        my $letter = $_;
        my $client = $t->client_start('--connect', "127.0.0.1:$port",
                                      '--sni', "$letter.example.com",
                                      '--alpn', 'echo', '--interval', '0.1',
                                      '--connections', CONNECTIONS / 4,
                                      'hold');
        [$client, qr/^$prefix${letter}[12]$/]
    } qw/a b/
} [$lb, ''], [$learned, 'r'];

$_->[0]->ready() for @clients;


sub all_go_on {
    my ($what) = @_;
    my $failed = 0;

    $failed += $_->[0]->command('progress 2')->{failed} for @clients;
    is($failed, 0, "$what: all transfers go on");
}


all_go_on('at first');

for my $n (1 .. 3) {
    ok($t->reload(), "reload $n");
    all_go_on("reload $n");
}

for my $workers (4, 2) {
    conf($workers);
    ok($t->reload(), "reload with $workers workers");
    all_go_on("$workers workers");
}

$t->kill_worker($t->workers());
$t->wait_for('new workers', sub { $t->workers() == 2 });
all_go_on('killed workers');

$_->[0]->command('rebind') for @clients;
all_go_on('NAT rebinding');

# a connection ID that is not in the handshake is not learned
$_->[0]->command('migrate') for @clients[0, 1];
all_go_on('migration');

my %wrong;

for my $client (@clients) {
    my ($process, $regex) = @$client;
    my $report = $process->stop_and_report();

    is($report->{failed}, 0, 'no connection failed') or $t->explain($report);

    for my $connection (@{ $report->{connections} }) {
        $wrong{$connection->{server}}++ if $connection->{server} !~ $regex;
        $wrong{$connection->{server_end}}++
            if $connection->{server_end} ne $connection->{server};
    }
}

is_deeply(\%wrong, {}, 'all had a server of their name, from first to last');
is($t->routes($servers)->{misrouted_count}, 0, 'no packet met another server');


# half a ClientHello before a reload, half behind it, and then all of it again

my $hello = QuicLB::Hello->new($t);
my $client = udp_connect('127.0.0.1', $lb);
my @halves = $hello->datagrams(sni => 'made.example.com', size => SIZE,
                               dcid => 'dcid8888', scid => 'scid8888',
                               datagrams => [map { [{ frames => [$_] }] }
                                             [0, 1000], [1000, 1000]]);

my $received = $t->counters($stats)->{received};

$client->send($halves[0]);
$t->wait_for('the first half',
             sub { $t->counters($stats)->{received} > $received });
ok($t->reload(), 'a reload between two halves');
$client->send($halves[1]);
$client->send($_) for @halves;

is_deeply([map { udp_receive($backend) } 1 .. 3], [@halves[1, 0, 1]],
          'it is read when the client sends it again');

$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });
is(udp_receive($backend, 0), undef, 'what the old worker had is dropped');


# a quit while a ClientHello is awaited

$client = udp_connect('127.0.0.1', $lb);
$client->send($halves[0]);

my $master = $t->master();
kill 'QUIT', $master;
ok($t->wait_gone($master), 'nginx leaves at the deadline');

$t->done();
