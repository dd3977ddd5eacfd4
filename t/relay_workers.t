#!/usr/bin/perl

# Several workers: a connection goes on wherever its client's packets arrive.

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
my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
                               parts => { workers => 4 });

$t->start();

my $report = $relay->ends('queries', 200);
is($report->{wrong}, 0, 'queries in one place') or diag($report->{error});

for my $change ('', 'new') {
    $report = $relay->ends('rebind', 12, $change || ());
    ok($report->{intact}, 'twelve other ports, connection ID '
                          . ($change || 'as before'))
        or diag($report->{error});
}

$report = $relay->ends('moves', 12, 6, 400_000);
is_deeply($report->{failed}, [], 'twelve connections migrate in mid-transfer')
    or diag($report->{error});


# a worker dies: its clients are told, the others' connections go on

my $victim = ($t->workers())[1];

$report = $relay->ends_with(sub {
    $t->kill_worker($victim);
    $t->wait_for('another worker', sub {
        my @workers = $t->workers();
        return @workers == 4 && !grep { $_ == $victim } @workers;
    });
}, 'hold', 12);

cmp_ok($report->{reset}, '<', 12, 'a worker dies: others go on')
    or diag($report->{error});
is(scalar @{ $report->{failed} }, $report->{reset},
   'and each connection that was lost has a stateless reset')
    or diag(join "\n", @{ $report->{failed} });

$report = $relay->ends('moves', 8, 4, 100_000);
is_deeply($report->{failed}, [], 'and the new worker takes its place')
    or diag($report->{error});

$t->stop('QUIT');


# wildcards: what goes back comes from where the client has sent to

for my $case (['*', 'reuseport'], ['[::]', 'reuseport ipv6only=off']) {
    my ($address, $listen) = @$case;

    $relay = QuicLB::Relay->new($t, address => $address, listen => $listen,
                                parts => { workers => 4 });
    $t->start();

    $report = $relay->ends('moves', 8, 4, 100_000);
    is_deeply($report->{failed}, [], "$address: connections migrate")
        or diag($report->{error});

    $report = $relay->ends_with(sub {
        ok($t->reload(), "$address: a reload");
    }, 'hold', 6);

    is_deeply($report->{failed}, [], "$address: nothing is lost")
        or diag($report->{error});
    is_deeply($report->{new}, [], "$address: and new clients are served");

    $t->stop('QUIT');
}

$t->done();
