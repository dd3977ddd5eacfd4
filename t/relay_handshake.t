#!/usr/bin/perl

# How connections to the relay begin: versions of QUIC, Retry, tokens.

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
use constant INVALID_TOKEN => 0x0b;

my $t = QuicLB->new();
my $totals = $t->port();
my $counters = "server { listen 127.0.0.1:$totals; access_log off;
    return '" . join(' ', map { "$_ \$quic_relay_total_$_" }
                         qw/connections retries/) . "'; }";

my $relay = QuicLB::Relay->new($t, stream => $counters);
$t->start();

my ($v1, $v2, $unknown) = qw/1 6b3343cf 1a2a3a4a/;

for my $case (['version 1', $v1, $v1], ['version 2', $v2, $v2],
              ['version 1, and 2 too', $v1, $v1, $v2],
              ['version 2, and 1 too', $v2, $v2, $v1],
              ['an unknown one, then 1', $v1, $unknown, $v1],
              ['an unknown one, then 2', $v2, $unknown, $v2])
{
    my ($name, $expected, @versions) = @$case;

    my $report = $relay->ends('version', @versions);
    is($report->{version}, $expected, $name) or diag($report->{error});
}

my $report = $relay->ends('rekey');
ok($report->{ok}, 'new keys, from both ends') or diag($report->{error});

is($t->counters($totals)->{retries}, 0, 'no Retry if none is wanted');
$t->stop('QUIT');


$relay = QuicLB::Relay->new($t, stream => $counters, listen => 'reuseport',
    parts => { workers => 2 }, server => 'quic_relay_retry on;
        quic_relay_server_id config_id=0 id=aabb nonce_length=8;');
$t->start();

$report = $relay->ends('queries', 10);
is($report->{wrong}, 0, 'queries of a client that proves its address')
    or diag($report->{error});
cmp_ok($t->counters($totals)->{retries}, '>=', 1, 'by a Retry');

$report = $relay->ends('version', $v2);
is($report->{version}, $v2, 'version 2 with a Retry')
    or diag($report->{error});

my $before = $t->counters($totals)->{connections};

$report = $relay->ends('tokens');
is_deeply($report->{retries}, [1, 0, 1],
          'a token of NEW_TOKEN spares the Retry, a spoiled one does not')
    or diag($report->{error});
is($report->{code}, INVALID_TOKEN, "another client's token of a Retry");
is($t->counters($totals)->{connections}, $before + 3, 'makes no connection');

# another address of the same relay; several workers, so that some clients
# meet another one there

my $direct = $t->port();
my $text = $t->read('nginx.conf');
$text =~ s/(listen \S+ udp reuseport;)/$1
    listen 127.0.0.1:$direct udp reuseport;
    quic_relay_preferred_address 127.0.0.1:$direct [::1]:$direct;/;
$t->write('nginx.conf', $text);
ok($t->reload(), 'a preferred address');

# they may still have read a client's first datagram
$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });

for my $client (1 .. 6) {
    $report = $relay->ends('preferred');
    my %from = %{ $report->{from} // {} };

    # 200000 octets; and what asks whether the old path is still there
    cmp_ok($from{$direct} // 0, '>', 100,
           "client $client: an answer from the preferred address")
        or diag($report->{error});
    cmp_ok($from{ $relay->{port} } // 0, '<', 10, 'not from the first one');
}

$report = $relay->ends_with(sub { ok($t->reload(), 'a reload') }, 'hold', 4);
is_deeply($report->{new}, [], 'new clients after a reload')
    or diag($report->{error});

$t->done();
