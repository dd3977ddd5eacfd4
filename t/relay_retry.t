#!/usr/bin/perl

# A relay behind a balancer that sends Retry: it takes the balancer's tokens by
# the key that both have, of two generations, and no others.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

my ($t, $balancer) = map { QuicLB->new() } 1 .. 2;
my ($front, $counters) = map { $t->port() } 1 .. 2;

my %key = map { $_ => $t->write($_, "$_, a key of 16 octets or more") }
              qw/new old other/;
chmod 0600, values %key;

sub keys_of {
    my ($directive, @names) = @_;

    return join "\n", map { "$directive $key{$_};" } @names;
}

my $relay;

# each has a port of its own, so that connections do not meet an older worker

sub relay {
    my (@names) = @_;

    $relay = QuicLB::Relay->new($t,
        server => keys_of('quic_relay_retry_key', @names));

    return $t->master() ? $t->reload() && balancer() : $t->start();
}

# with the same keys as before, if there are none

my @balancer;

sub balancer {
    my (@names) = @_;

    @balancer = @names if @names;

    $balancer->conf(stream => <<"CONF");
        @{[ $balancer->counters_server($counters, qw/retry_sent
                                                    retry_accepted/) ]}

        server {
            listen 127.0.0.1:$front udp reuseport;
            quic_passthrough 127.0.0.1:$relay->{port};
            quic_passthrough_retry on;
            @{[ keys_of('quic_passthrough_retry_key', @balancer) ]}
        }
CONF

    return $balancer->master() ? $balancer->reload() : $balancer->start();
}

# what becomes of connections through the balancer

sub ends {
    local $relay->{port} = $front;

    return $relay->ends(@_);
}

relay('new');
balancer('new');

my $report = ends('queries', 5);
ok($report->{ok}, 'a connection') or diag($report->{error});
is($report->{answered}, 5, 'and its answers');

my $sent = $balancer->counters($counters);
cmp_ok($sent->{retry_sent}, '>', 0, 'with Retry');
cmp_ok($sent->{retry_accepted}, '>', 0, 'and its token');

# rotation: relays take the new key, balancers make tokens with it, relays drop
# the old one

for my $step ([qw/new other/], [qw/other new/], [qw/other/]) {
    ok(relay(@$step), "relay: @$step");

    if ($step->[0] eq 'other' && @$step == 2) {
        ok(balancer('other'), 'balancer: other');
    }

    $report = ends('queries', 1);
    ok($report->{ok}, "relay: @$step: a connection")
        or diag($report->{error});
}

# a relay without the key does not know the first connection ID, and its
# clients find the one that it tells to be wrong (RFC 9000, 7.3)

for my $names ([], ['old']) {
    ok(relay(@$names), "relay: @$names");
    $report = ends('refused');
    isnt($report->{code} // 0, 0, "relay: @$names: no connection");
}

$balancer->check();
$t->done();
