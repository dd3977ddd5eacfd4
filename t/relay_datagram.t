#!/usr/bin/perl

# Datagrams (RFC 9221) through the relay, both ways at once: what arrives is
# what was sent, once.  They may be lost, as on any path.
#
# TEST_DATAGRAMS: datagrams of each size and direction.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

use constant COUNT => $ENV{TEST_DATAGRAMS} // 1000;

my $t = QuicLB->new();
my $relay = QuicLB::Relay->new($t);

$t->start();

for my $size (20, 1000) {
    my $report = $relay->ends('datagrams', COUNT, $size);

    ok($report->{ok}, "datagrams of $size octets") or diag($report->{error});

    for my $way (qw/up down/) {
        my $seen = $report->{$way};

        cmp_ok($seen->{received}, '>', COUNT / 4, "$way: they arrive");
        is($seen->{altered}, 0, "$way: unaltered");
        is($seen->{repeated}, 0, "$way: once");
    }
}

# nearly all that a packet of 1200 octets carries, and no limit of the ends

$relay->{options} = ['--max-datagram', 65535];

my $report = $relay->ends('datagrams', 4, 1150);

ok($report->{ok}, 'large ones') or diag($report->{error});
is($report->{$_}{altered}, 0, "$_: unaltered") for qw/up down/;

$t->done();
