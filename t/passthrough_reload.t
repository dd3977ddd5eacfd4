#!/usr/bin/perl

# No connection is lost by reloads, a binary upgrade, killed workers, and other
# numbers of workers, nor does its server see another path.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant CONNECTIONS => 50;

my $key = 'fdf726a9893ec05c0632d3956680baf0';
my %ids = map { ("s$_" => "0$_") } 1 .. 3;

my $t = QuicLB->new();
my $port = $t->port();

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids],
                          '--config-id', 3, '--lb-key', $key,
                          '--nonce-length', 8, '--no-self-length');

chmod 0600, $t->write('quic-lb.key', $key);

sub conf {
    my ($workers) = @_;

    $t->conf(workers => $workers, stream => <<"CONF");
        upstream echo {
            zone echo 1m;
            @{[$servers->lines(\%ids)]}

            quic_lb 3 {
                server_id_length 1;
                nonce_length 8;
                key_file @{[$t->path('quic-lb.key')]};
                @{[$servers->id_lines(\%ids)]}
            }
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            quic_passthrough echo;
            quic_passthrough_timeout 5s;
        }
CONF
}

conf(4);
$t->start();

my $client = $t->client_start('--connect', "127.0.0.1:$port",
                              '--alpn', 'echo', '--interval', '0.1',
                              '--connections', CONNECTIONS, 'hold');
$client->ready();

for my $n (1 .. 5) {
    ok($t->reload(), "reload $n");
    is($client->command('progress 2')->{failed}, 0, 'all transfers go on');
}

$t->kill_worker($t->workers());

$t->wait_for('new workers', sub { $t->workers() == 4 });
is($client->command('progress 2')->{failed}, 0, 'killed workers');

my $old = $t->upgrade();
is($client->command('progress 2')->{failed}, 0, 'binary upgrade');
ok($t->wait_gone($old), 'the old binary leaves when its flows are idle');

for my $workers (2, 4) {
    conf($workers);
    ok($t->reload(), "reload with $workers workers");
    is($client->command('progress 3')->{failed}, 0, 'all transfers go on');
}

$client->command('migrate');
is($client->command('progress 2')->{failed}, 0, 'migration after all that');

$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });

my $report = $client->stop_and_report();
is($report->{failed}, 0, 'no connection failed') or $t->explain($report);

my ($sent, $lost) = (0, 0);
for my $connection (@{ $report->{connections} }) {
    $sent += $connection->{datagrams_sent};
    $lost += $connection->{datagrams_lost};
}

note("$sent DATAGRAM frames, $lost lost");

my $routes = $t->routes($servers);
is($routes->{misrouted_count}, 0, 'no packet met another server')
    or diag(explain($routes->{misrouted}));

my @changes = map { $_->{path_changes} } values %{ $routes->{connections} };
is_deeply(\@changes, [(1) x CONNECTIONS],
          'the migration is the only change of a path');


# quitting while transfers run: they end as usual

$client = $t->client_start('--connect', "127.0.0.1:$port",
                           '--alpn', 'echo', '--interval', '0.1',
                           '--connections', 10, 'hold');
$client->ready();

my $master = $t->master();
kill 'QUIT', $master;
$t->wait_log(qr/gracefully shutting down/);

is($client->command('progress 5')->{failed}, 0, 'transfers outlive QUIT');
is($client->stop_and_report()->{failed}, 0, 'and end by themselves');
ok($t->wait_gone($master), 'nginx leaves after them');

$t->done();
