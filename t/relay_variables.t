#!/usr/bin/perl

# What the access log and the counters tell of the relay.
#
# TEST_DATAGRAMS: datagrams each way.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

my @names = qw/quic_relay_streams quic_relay_datagrams
               quic_relay_datagrams_dropped quic_relay_closed_by
               quic_relay_close_type quic_relay_close_code
               ssl_alpn_protocol ssl_server_name ssl_protocol ssl_cipher
               bytes_received bytes_sent upstream_bytes_sent
               upstream_bytes_received upstream_addr status/;
my @totals = qw/connections refused upstream_failed streams datagrams
                datagrams_dropped handed_over handover_lost
                stateless_resets/;

my $t = QuicLB->new();
my $log = $t->path('relay.log');
my $counters = $t->port();
my $sessions = 0;
my $count = $ENV{TEST_DATAGRAMS} // 500;
my $last;

my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
    parts => { workers => 3 },
    stream => "log_format vars '" . join(' ', map { "$_=\$$_" } @names) . "';
        server { listen 127.0.0.1:$counters; access_log off;
                 return '" . join(' ', map { "$_ \$quic_relay_total_$_" }
                                       @totals) . "'; }",
    server => "access_log $log vars; quic_relay_timeout 5s;");

$t->start();

my $line = session('queries', 50);

is($line->{quic_relay_streams}, 50, 'streams');
is($line->{ssl_alpn_protocol}, 'echo', 'the negotiated protocol');
is($line->{ssl_server_name}, 'localhost', 'the name that the client wants');
is($line->{ssl_protocol}, 'TLSv1.3', 'the version of TLS');
like($line->{ssl_cipher}, qr/^TLS_/, 'the cipher');
is($line->{quic_relay_datagrams}, 0, 'no datagrams');
is($line->{upstream_addr}, "127.0.0.1:$relay->{upstream}", 'the upstream');
is($line->{status}, 200, 'the status');

for my $bytes (qw/bytes_received bytes_sent upstream_bytes_sent
                  upstream_bytes_received/)
{
    cmp_ok($line->{$bytes}, '>', 1200, "$bytes: a handshake at least");
}

for my $actor (qw/client upstream/) {
    $line = session('close', $actor, 0x1234);

    is_deeply([@$line{map { "quic_relay_$_" }
                          qw/closed_by close_type close_code/}],
              [$actor, 'application', 0x1234], "closed by the $actor");
}

$line = session('vanish');
is($line->{quic_relay_closed_by}, 'timeout', 'closed by a timeout');

# the other one is of a connection that went on meanwhile
my ($flooding) = grep { $_->{quic_relay_closed_by} eq 'relay' }
                      sessions(2, 'flood', 'data');
is_deeply([@{ $flooding // {} }{map { "quic_relay_$_" }
                                    qw/closed_by close_type close_code/}],
          ['relay', 'transport', 3], 'closed by the relay, for an error');

# what gets lost on the way to the relay it cannot count

$line = session('datagrams', $count);

my ($passed, $dropped) = @$line{qw/quic_relay_datagrams
                                   quic_relay_datagrams_dropped/};

note("sent 2 * $count, passed on $passed, dropped $dropped, received ",
     join(' + ', map { $last->{$_}{received} } qw/up down/));

cmp_ok($passed + $dropped, '<=', 2 * $count,
       'datagrams, passed on or dropped');
cmp_ok($passed, '>=', $last->{up}{received} + $last->{down}{received},
       'those that arrive are among those passed on');
cmp_ok($passed, '>', 0, 'and there are some');

my $report = $relay->ends('moves', 4, 6, 50_000);
is_deeply($report->{failed}, [], 'connections migrate')
    or diag($report->{error});

my $total = $t->counters($counters);

is($total->{connections}, $sessions + 4, 'all connections are counted');
cmp_ok($total->{streams}, '>', 50, 'all streams');
cmp_ok($total->{handed_over}, '>', 0, 'datagrams that were handed over');
is($total->{refused}, 0, 'none was refused');
is($total->{stateless_resets}, 0, 'no stateless reset');

$report = $relay->ends_with(sub {
    $t->kill_worker($t->workers());
    $t->wait_for('other workers', sub { $t->workers() == 3 });
}, 'reset');
ok($report->{reset}, 'a reset') or diag($report->{error});

ok($t->reload(), 'a reload');
cmp_ok($t->counters($counters)->{stateless_resets}, '>', 0,
       'counters outlive workers and reloads');

$t->done();


# the log line of a scenario with one connection

sub session {
    my (@scenario) = @_;

    return (sessions(1, @scenario))[0];
}


# as many lines, in any order

sub sessions {
    my ($number, @scenario) = @_;

    $last = $relay->ends(@scenario);
    ok($last->{ok}, "@scenario") or diag($last->{error});

    my $before = $sessions;
    $sessions += $number;

    my @lines;
    $t->wait_for('the lines in the log', sub {
        @lines = $t->read('relay.log') =~ /^(.*)\n/mg;
        return @lines >= $sessions;
    });

    return map { { map { split /=/, $_, 2 } split ' ', $_ } }
               @lines[$before .. $sessions - 1];
}
