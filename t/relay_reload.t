#!/usr/bin/perl

# Reload and quit: established connections go on in the old workers, new ones
# are the new workers'.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

my $t = QuicLB->new();
my ($report, $relay);

for my $workers (1, 3) {
    $relay = QuicLB::Relay->new($t, listen => $workers > 1 ? 'reuseport' : '',
                                parts => { workers => $workers });
    $t->start();

    $report = $relay->ends_with(sub {
        my @old = $t->workers();

        ok($t->reload(), "$workers workers: a reload") for 1 .. 3;
        cmp_ok(scalar(grep { -d "/proc/$_" } @old), '>', 0,
               'workers of the first configuration are still there');
    }, 'hold', 12);

    is_deeply($report->{failed}, [], "$workers workers: nothing is lost")
        or diag($report->{error});
    cmp_ok($report->{trips}, '>', 0, 'each connection works meanwhile');
    is_deeply($report->{new}, [], 'and so do new ones');

    $t->wait_for('the old workers to go', sub { !$t->leaving_workers() });
    is(scalar $t->workers(), $workers, 'no old worker stays without clients');

    $report = $relay->ends('queries', 20);
    is($report->{wrong}, 0, 'the new workers serve new clients')
        or diag($report->{error});

    $t->stop('QUIT');
}


# an old worker that has no CPU for a while misses nothing, and a
# CONNECTION_CLOSE is not sent again

$relay = QuicLB::Relay->new($t, parts => { workers => 1 });
$t->start();

my ($slow) = $t->workers();

$report = $relay->ends_with(sub {
    $t->reload();
    kill 'STOP', $slow;
}, 'leave', 40);

kill 'CONT', $slow;
ok($t->wait_gone($slow), 'all clients left: so does their worker')
    or diag($report->{error});

$t->stop('QUIT');


# fewer workers, then more

$relay = QuicLB::Relay->new($t, listen => 'reuseport',
                            parts => { workers => 4 });
$t->start();

$report = $relay->ends_with(sub {
    for my $workers (2, 3) {
        my $text = $t->read('nginx.conf');
        $text =~ s/(worker_processes) \d/$1 $workers/;
        $t->write('nginx.conf', $text);
        $t->{workers} = $workers;

        ok($t->reload(), "a reload to $workers workers");
    }
}, 'hold', 12);

# each from a new port: no socket is left that nobody reads
is_deeply($report->{new}, [], 'new clients have workers');

is_deeply($report->{failed}, [], 'another number of workers: nothing is lost')
    or diag($report->{error});


# a full quit lets connections end, and no longer than is allowed

$report = $relay->ends_with(sub {
    kill 'QUIT', $t->master();
    $t->wait_for('all workers to leave',
                 sub { $t->leaving_workers() && !$t->workers() });
}, 'hold', 6, 'alone');

is_deeply($report->{failed}, [], 'quit: nothing is lost')
    or diag($report->{error});

$t->wait_for('nginx to end', sub { !$t->master() });


# a binary upgrade, and one that is rolled back

my $host_key = $t->write('host.key', 'a secret of this very host');
chmod 0600, $host_key;

$relay = QuicLB::Relay->new($t, listen => 'reuseport',
    parts => { workers => 2 }, stream => "quic_relay_host_key $host_key;");
$t->start();

my $old;

$report = $relay->ends_with(sub { $old = $t->upgrade() }, 'hold', 8);

is_deeply($report->{failed}, [], 'a binary upgrade: nothing is lost')
    or diag($report->{error});
is_deeply($report->{new}, [], 'and new clients are served');
ok($t->wait_gone($old), 'the old binary goes');

$report = $relay->ends_with(sub {
    $old = $t->upgrade_begin();
    my $new = $t->master();
    kill 'QUIT', $new;
    ok($t->wait_gone($new), 'the new binary goes');
}, 'hold', 8);

is_deeply($report->{failed}, [], 'an upgrade is rolled back: nothing is lost')
    or diag($report->{error});
is_deeply($report->{new}, [], 'and new clients are served');

$t->stop('QUIT');

$relay = QuicLB::Relay->new($t, listen => 'reuseport', parts => {
    workers => 2, main => 'worker_shutdown_timeout 1s;',
});
$t->start();

$report = $relay->ends_with(sub {
    ok($t->reload(), 'a reload with a limit');
}, 'wait');

is_deeply($report->{code}, [0, 0], 'at its end both sides get NO_ERROR')
    or diag($report->{error});

ok($t->stop('QUIT'), 'nothing keeps a worker from quitting');

$t->done();
