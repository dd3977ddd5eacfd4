#!/usr/bin/perl

# How connections end: what one side says the other one hears, what falls
# silent does not look like a proper end, what breaks a rule hurts nobody else.
#
# TEST_CYCLES: connections that come and go.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# RFC 9000, 20.1
use constant { INTERNAL_ERROR => 1, CONNECTION_REFUSED => 2 };

# What the client does, and the error that it gets.  For "state" ngtcp2 has a
# general one, which may always be used (RFC 9000, 11).
my %floods = (
    streams => 4, data => 3, datagram => 0x0a, frame => 7, state => 0x0a,
    stop => 5, final => 6, ids => 9,
);

my $cycles = $ENV{TEST_CYCLES} // 1000;

my $t = QuicLB->new();
my $relay = QuicLB::Relay->new($t, server => 'quic_relay_timeout 5s;');
my $report;

$t->start();

$report = $relay->ends('vanish');

is($report->{code}, INTERNAL_ERROR, 'a silent upstream: the client is told')
    or diag($report->{error});
ok(!$report->{fin}, 'and its stream has no FIN');

# the others are not to be idle that soon
$t->stop('QUIT');
$relay = QuicLB::Relay->new($t);
$t->start();

my $idle = descriptors();

for my $actor (qw/client upstream/) {
    for my $code (0, 0x1234, (1 << 62) - 1) {
        $report = $relay->ends('close', $actor, $code);

        is($report->{code}, $code, "the $actor closes with $code")
            or diag($report->{error});
        is($report->{reason}, 'done', "the reason of the $actor");
    }
}

$relay->{options} = ['--max-datagram', 1000];

for my $flood (sort keys %floods) {
    $report = $relay->ends('flood', $flood);

    is($report->{closed}, $floods{$flood}, "flood of $flood: the error")
        or diag($report->{error});
    is($report->{upstream}, INTERNAL_ERROR, "flood of $flood: the upstream");
    cmp_ok($report->{ticks}, '>', 0, "flood of $flood: another connection");
}


# nothing is left of connections that are over; those of before may be closing

$t->wait_for('all connections to be over', sub { descriptors() <= $idle });
$report = $relay->ends('cycles', $cycles);

is_deeply($report->{fds}, [0, 0, 0, 0], 'connections come and go: descriptors')
    or diag($report->{error});

# how many are there at once varies, and so does memory; but what is kept of
# each would add to it in each quarter
SKIP: {
    skip('ASan keeps what is freed', 1) if $ENV{NGINX_FLAVOR} eq 'asan';

    my @rss = @{ $report->{rss} // [] };
    my ($least) = sort { $a <=> $b } map { $rss[$_] - $rss[$_ - 1] } 1 .. $#rss;

    cmp_ok($least // 'none', '<=', 250 * 1024, 'memory') or diag("@rss");
}


# no room

$t->stop('QUIT');
$relay = QuicLB::Relay->new($t, server => 'deny all;');
$t->start();

$report = $relay->ends('refused');
is($report->{code}, CONNECTION_REFUSED, 'a client that is not let in is told');

ok($t->stop('QUIT'), 'nothing keeps a worker from quitting');

$t->done();


# of the worker

sub descriptors {
    my ($worker) = $t->workers();

    return scalar(() = glob "/proc/$worker/fd/*");
}
