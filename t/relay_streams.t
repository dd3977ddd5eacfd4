#!/usr/bin/perl

# Streams through the relay: every way to end a half of one, all kinds of IDs,
# many on one connection, and a reader that does not keep up.
#
# TEST_STREAMS: short streams on one connection; more than 5000 of them are to
# take no more memory than 5000 do.
# TEST_STALLED: streams of that reader, each way.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# octets; the default of quic_relay_stream_window
use constant WINDOW => 256 * 1024;
use constant MEGABYTE => 1024 * 1024;
use constant { SHORT => $ENV{TEST_STREAMS} // 4000, CELLS => 162 };
use constant STALLED => $ENV{TEST_STALLED} // 10;

my $t = QuicLB->new();
my $relay = QuicLB::Relay->new($t);

$t->start();


# ends: FIN, RESET_STREAM, STOP_SENDING

my $report = $relay->ends('matrix');
my @cells = @{ $report->{cells} // [] };
my @faults = grep { defined $_->{fault} } @cells;

is(scalar @cells, CELLS, 'every end was tried') or diag($report->{error});
is(scalar @faults, 0, 'every end arrives as what it is')
    or diag(map { "$_->{name}: $_->{fault}\n" } @faults);


# IDs, and streams in their thousands

$report = $relay->ends('ids');
is_deeply($report->{faults}, [], 'streams keep their IDs')
    or diag($report->{error});
is($report->{seen}, 80, 'all of them are seen');

$report = $relay->ends('queries', 1000);
is($report->{answered}, 1000, '1000 queries, one per stream')
    or diag($report->{error});
is($report->{wrong}, 0, 'the answers are right');

$report = $relay->ends('short', SHORT);
is_deeply($report->{faults}, [], SHORT . ' short streams')
    or diag($report->{error});

my ($before, $after) = @{ $report->{rss} // [0, MEGABYTE * 100] };
note("octets of memory: $before, $after");

SKIP: {
    skip 'the sanitizer keeps what is freed', 1
        if ($ENV{NGINX_FLAVOR} // '') eq 'asan';

    cmp_ok($after - $before, '<', MEGABYTE, 'what they took is given back');
}


# a client that moves

for my $new ([], ['new']) {
    my $name = @$new ? 'with new connection IDs' : 'with the same one';

    $report = $relay->ends('rebind', 5, @$new);

    ok($report->{ok}, "5 other ports, $name") or diag($report->{error});
    ok($report->{intact}, "the data is intact, $name");
}


# backpressure

$relay->{options} = ['--window', WINDOW];

for my $way (qw/up down/) {
    $report = $relay->ends('stall', $way, STALLED, 200 * MEGABYTE);

    ok($report->{ok}, "$way: the sender waits for a slow reader")
        or diag($report->{error});
    is_deeply($report->{faults}, [], "$way: and nothing is lost");

    ($before, $after) = @{ $report->{rss} // [0, MEGABYTE * 100] };
    note("octets of memory: $before, $after; held: ", $report->{held} // 0);

    cmp_ok($after - $before, '<', STALLED * WINDOW * 2 + 8 * MEGABYTE,
           "$way: the window bounds what is held");
}

$t->done();
