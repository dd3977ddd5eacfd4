#!/usr/bin/perl

# No handshake is lost by reloads in the midst of it, and no established
# connection: stock nginx servers with 1 and 4 workers, with and without their
# Retry, and round trips of 0 and 300 ms.
#
# TEST_HANDSHAKES, TEST_ESTABLISHED: how many of each kind.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant { CONCURRENCY => 8, RELOADS => 10 };

# seconds, each way
use constant DELAY => 0.15;

# a tick of "hold"
use constant TICK => 2000;

my $handshakes = $ENV{TEST_HANDSHAKES} // 2 * CONCURRENCY;
my $established = $ENV{TEST_ESTABLISHED} // 10;

my $t = QuicLB->new();
my $stats = $t->port();
my @servers = map { server(@$_) } [1, ''], [4, ''], [4, 'quic_retry on;'];

$t->conf(workers => 2, stream => join '',
         $t->counters_server($stats, 'flows'),
         'quic_passthrough_timeout 20s;',
         'quic_passthrough_cid_zone zone=cids:2m;',
         map { "server { listen 127.0.0.1:$_->{port} udp reuseport;
                quic_passthrough 127.0.0.1:$_->{to}; }\n" } @servers);
$t->start();

for my $server (@servers) {
    my $name = "$server->{workers} workers $server->{retry}";

    handshakes($name, $server->{port});
    handshakes("$name, 300 ms", delayed($server->{port}));
}

for my $server (@servers) {
    established("$server->{workers} workers $server->{retry}",
                $server->{port});
}

# the master kills workers that take their time to end when it does
$t->wait_for('old workers to leave', sub { !$t->leaving_workers() }, 120);

$_->{nginx}->check() for @servers;
$t->done();


sub server {
    my ($workers, $retry) = @_;

    my $nginx = QuicLB->new();
    my ($cert, $key) = $nginx->certificate();
    my ($port, $to) = map { $t->port() } 1 .. 2;

    mkdir $nginx->path('bytes');
    system('python3', '-B', '-c', 'import sys; sys.path[0] = sys.argv[1];'
           . 'from quic_net import pattern;'
           . 'open(sys.argv[2], "wb").write(pattern(0, int(sys.argv[3])))',
           "$FindBin::Bin/lib", $nginx->path('bytes/' . TICK), TICK) == 0
        or die 'no pattern';

    $nginx->conf(workers => $workers, http => <<"CONF");
        access_log off;

        server {
            listen 127.0.0.1:$to quic reuseport;
            ssl_certificate $cert;
            ssl_certificate_key $key;
            $retry
            root @{[$nginx->path('')]};

            location = /name {
                return 200 "nginx\n";
            }

            add_header server-name nginx;
        }
CONF
    $nginx->start();

    return { nginx => $nginx, port => $port, to => $to, workers => $workers,
             retry => $retry };
}


sub delayed {
    my ($port) = @_;

    my $far = $t->port();
    my $path = $t->helper("delay-$far", 'python3', '-B',
                          "$FindBin::Bin/lib/delay.py", $far, $port, DELAY);

    $path->wait_line(qr/^ready$/) or die $path->stderr();

    return $far;
}


# reloads when as many handshakes have begun as are made at a time

sub handshakes {
    my ($name, $port) = @_;

    my $begun = $t->counters($stats)->{flows};
    my $client = $t->client_start('--connect', "127.0.0.1:$port",
                                  '--connections', $handshakes,
                                  '--concurrency', CONCURRENCY,
                                  'run', 'get:/bytes/' . TICK);
    my $reloads = 0;

    while ($t->wait_for('handshakes', sub {
        return $t->counters($stats)->{flows} >= $begun + CONCURRENCY
               || defined $client->status();
    })) {
        last if defined $client->status();

        $begun = $t->counters($stats)->{flows};
        $t->reload();
        $reloads++;
    }

    my $report = $client->report();

    is($report->{failed}, 0, "$name: no handshake lost")
        or $t->explain($report);
    cmp_ok($reloads, '>', 0, "$name: over reloads");
    note("$handshakes handshakes, $reloads reloads");
}


sub established {
    my ($name, $port) = @_;

    my $client = $t->client_start('--connect', "127.0.0.1:$port",
                                  '--connections', $established, 'hold');
    $client->ready();

    for my $n (1 .. RELOADS) {
        $t->reload();
        is($client->command('progress 1')->{failed}, 0, "$name: reload $n");
    }

    my $report = $client->stop_and_report();
    is($report->{failed}, 0, "$name: no connection lost")
        or $t->explain($report);
}
