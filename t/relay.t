#!/usr/bin/perl

# A client, the relay, a server: what goes through.

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
my $relay = QuicLB::Relay->new($t);

$t->start();

my $report = $relay->ends('queries', 1);

ok($report->{ok}, 'a query is relayed') or diag($report->{error});
is($report->{answered}, 1, 'and its answer');
is($report->{wrong}, 0, 'unchanged');

$t->done();
