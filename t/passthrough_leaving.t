#!/usr/bin/perl

# Workers of an older configuration: that they leave in time although flows are
# busy, and what becomes of a "listen" that a reload removes and adds again.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant CONNECTIONS => 20;

my %ids = map { ("s$_" => "0$_") } 1 .. 2;

my $t = QuicLB->new();
my ($port, $removed) = map { $t->port() } 1 .. 2;

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

sub conf {
    my ($main, $timeout, @ports) = @_;

    my $listens = join "\n", map { "listen 127.0.0.1:$_ udp reuseport;" }
                             @ports;

    $t->conf(workers => 2, main => $main, stream => <<"CONF");
        upstream echo {
            zone echo 1m;
            @{[$servers->lines(\%ids)]}

            quic_lb 0 {
                server_id_length 1;
                nonce_length 4;
                @{[$servers->id_lines(\%ids)]}
            }
        }

        server {
            $listens
            quic_passthrough echo;
            quic_passthrough_timeout $timeout;
        }
CONF
}

sub hold {
    my ($to) = @_;

    my $client = $t->client_start('--connect', "127.0.0.1:$to",
                                  '--alpn', 'echo', '--interval', '0.1',
                                  '--connections', CONNECTIONS, 'hold');
    $client->ready();

    return $client;
}


# worker_shutdown_timeout: the flows' own time would be much longer

conf('worker_shutdown_timeout 1s;', '60s', $port);
$t->start();

my $client = hold($port);

ok($t->reload(), 'reload');
is($client->command('progress 2')->{failed}, 0, 'transfers go on');
ok($t->wait_for('old workers', sub { $t->leaving_workers() == 0 }),
   'old workers leave at their deadline');
is($client->command('progress 5')->{failed}, 0, 'transfers go on without them');
is($client->stop_and_report()->{failed}, 0, 'to their end');


# a listen that is removed: its connections go on in the old workers

conf('', '5s', $port, $removed);
ok($t->reload(), 'reload with another listen');

my $kept = hold($port);
my $orphans = hold($removed);

conf('', '5s', $port);
ok($t->reload(), 'reload without it');

is($kept->command('progress 3')->{failed}, 0, 'transfers of one that stays');
is($orphans->command('progress 20')->{failed}, 0, 'and of the one removed');
is(scalar($t->leaving_workers()), 2, 'by the old workers');

$orphans->command('migrate');
is($orphans->command('progress 3')->{failed}, 0, 'they may still migrate');

my $report = $t->client('--connect', "127.0.0.1:$removed", '--timeout', 2,
                        'run', 'get:/name');
is($report->{failed}, 1, 'but there are no new connections');


# and added again: while the kernel shares the address out to old and new
# sockets, nothing is said about new connections

conf('', '5s', $port, $removed);
ok($t->reload(), 'reload with it again');
is($orphans->command('progress 3')->{failed}, 0, 'its transfers go on');
is($orphans->stop_and_report()->{failed}, 0, 'to their end');
ok($t->wait_for('old workers', sub { $t->leaving_workers() == 0 }),
   'then the old workers leave');

$report = $t->client('--connect', "127.0.0.1:$removed",
                     '--connections', CONNECTIONS, 'run', 'get:/name');
is($report->{failed}, 0, 'new connections') or $t->explain($report);

is($kept->stop_and_report()->{failed}, 0, 'all others went on meanwhile');

my $routes = $t->routes($servers);
is($routes->{misrouted_count}, 0, 'no packet met another server')
    or diag(explain($routes->{misrouted}));

$t->done();
