#!/usr/bin/perl

# Binary upgrades: rolled back or completed, with as many workers or fewer, and
# with killed ones. No connection is lost, and each worker gets its share of
# new ones again.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant CONNECTIONS => 30;

my %ids = map { ("s$_" => "0$_") } 1 .. 3;

my $t = QuicLB->new();
my $port = $t->port();

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

sub conf {
    my ($workers) = @_;

    $t->conf(workers => $workers, stream => <<"CONF");
        log_format pid '\$remote_port \$pid';
        access_log @{[$t->path('access.log')]} pid;

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
            quic_passthrough echo;
            quic_passthrough_timeout 3s;
        }
CONF
}

conf(4);
$t->start();

my $client = $t->client_start('--connect', "127.0.0.1:$port",
                              '--alpn', 'echo', '--interval', '0.1',
                              '--connections', CONNECTIONS, 'hold');
$client->ready();

my $old = $t->master();
my @old_workers = $t->workers();


# a new binary that is ended before the old one

my $retired = 0;
rolled_back('as many workers', 4);
rolled_back('fewer workers', 2);
rolled_back('killed workers', 4, sub {
    my @workers = $t->workers();

    $t->kill_worker(@workers);
    my $restarted = $t->wait_for('other workers',
                                 sub { $t->workers() == @workers });
    ok($restarted, 'the new master starts others');
    goes_on('killed workers of the new master');
});

is_deeply([sort $t->workers()], [sort @old_workers],
          'the old workers are still the first ones');


# and one that takes over

conf(2);
is($t->upgrade(), $old, 'upgrade to fewer workers');
goes_on('an upgrade to fewer workers');

my @new_workers = $t->workers();

ok($t->wait_gone($old), 'the old binary leaves when its flows are idle');
shared('completed with fewer workers', @new_workers);

my $report = $client->stop_and_report();
is($report->{failed}, 0, 'no connection failed') or $t->explain($report);

my $routes = $t->routes($servers);
is($routes->{misrouted_count}, 0, 'no packet met another server')
    or diag(explain($routes->{misrouted}));

$t->done();


sub goes_on {
    my ($what) = @_;

    is($client->command('progress 3')->{failed}, 0, "$what: transfers go on");
}


sub rolled_back {
    my ($name, $workers, $meanwhile) = @_;

    conf($workers);
    is($t->upgrade_begin(), $old, "$name: two binaries");
    goes_on("$name, two binaries");
    $meanwhile->() if $meanwhile;

    my $new = $t->master();
    kill 'QUIT', $new;
    goes_on("$name, while the new binary leaves");
    ok($t->wait_gone($new), "$name: the new binary leaves");

    $t->wait_for('the old pid file', sub { ($t->master() // 0) == $old });
    goes_on("$name, rolled back");
    answered("$name, rolled back");

    # Linux spreads no more once a socket of the group has been connected
    $retired ||= $workers < @old_workers;
    shared("$name, rolled back", @old_workers) if !$retired;
}


sub answered {
    my ($name) = @_;

    my $report = $t->client('--connect', "127.0.0.1:$port",
                            '--connections', 16, 'run', 'get:/name');
    is($report->{failed}, 0, "$name: new connections")
        or $t->explain($report);
}


# new connections are spread over these workers, and no other

sub shared {
    my ($name, @workers) = @_;

    my $before = length $t->read('access.log');
    my $report = $t->client('--connect', "127.0.0.1:$port",
                            '--connections', 16 * @workers, 'run', 'get:/name');
    is($report->{failed}, 0, "$name: new connections")
        or $t->explain($report);

    my @ports = map { $_->{locals}[0] =~ /:(\d+)$/ }
                @{ $report->{connections} };
    my %pids;
    $t->wait_for('access log', sub {
        %pids = substr($t->read('access.log'), $before)
                =~ /^(\d+) (\d+)$/mg;
        return !grep { !$pids{$_} } @ports;
    });

    my %found = map { $_ => 1 } @pids{@ports};
    is_deeply([sort keys %found], [sort @workers],
              "$name: each worker has its share of them");
}
