#!/usr/bin/perl

# "quit", then start: another instance opens the port while the old workers
# still have connections.  New clients are for the new one, and the connections
# of the old one go on by their IDs.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant CONNECTIONS => 20;

my %ids = map { ("s$_" => "0$_") } 1 .. 2;

my $t = QuicLB->new();
my $next = QuicLB->new();
my $port = $t->port();

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

for my $instance ($t, $next) {
    $instance->conf(workers => 2, stream => <<"CONF");
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
            listen 127.0.0.1:$port udp reuseport;
            listen [::1]:$port udp reuseport;
            quic_passthrough echo;
            quic_passthrough_timeout 60s;
        }
CONF
}

$t->start();

my %held = map { $_ => hold($_) } "127.0.0.1:$port", "[::1]:$port";

my $master = $t->master();
my @workers = $t->workers();

kill 'QUIT', $master;
ok($t->wait_for('quit', sub { $t->leaving_workers($master) == @workers }),
   'the old workers have connections');

progress('nobody else has the port');

$next->start();

# each worker, each address
ok($t->wait_for('the sockets are left', sub {
       $t->log_count(qr/is left to another process/) == 4;
   }), 'the old workers leave each socket to the new instance');

for my $address (sort keys %held) {
    my $report = $t->client('--connect', $address,
                            '--connections', CONNECTIONS, 'run', 'get:/name');
    is($report->{failed}, 0, "$address: all new clients are served")
        or $t->explain($report);
}

progress('the new instance has the port');

is(scalar($t->leaving_workers($master)), 2, 'the old workers are still there');

for my $address (sort keys %held) {
    my $report = $held{$address}->stop_and_report();
    is($report->{failed}, 0, "$address: no connection of the old one failed")
        or $t->explain($report);
}

my $routes = $t->routes($servers);
is($routes->{misrouted_count}, 0, 'no packet met another server')
    or diag(explain($routes->{misrouted}));

$next->check();
$t->done();


sub hold {
    my ($address) = @_;

    my $client = $t->client_start('--connect', $address,
                                  '--alpn', 'echo', '--interval', '0.1',
                                  '--connections', CONNECTIONS, 'hold');
    $client->ready();

    return $client;
}


sub progress {
    my ($what) = @_;

    for my $address (sort keys %held) {
        is($held{$address}->command('progress 3')->{failed}, 0,
           "$address: transfers go on, $what");
    }
}
