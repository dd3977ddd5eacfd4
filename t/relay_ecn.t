#!/usr/bin/perl

# ECN (RFC 9000, 13.4): two relays validate it toward each other, on sockets of
# all families; the marks of a client's packets are counted, whatever worker
# reads them, in trains, too.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# the mark that ngtcp2 sets, and none
use constant { ECT0 => 2, NOT_ECT => 0 };

# What is sent while it is not known whether ECN works (RFC 9000, A.4); then
# each packet has the mark, or none has.
use constant TESTING => 10;

my $t = QuicLB->new();
my ($v4, $v6, $dual, $upstream) = map { $t->port() } 1 .. 4;
my ($cert, $key) = $t->certificate();

# behind the first relay, which each case makes anew
my $second = join "\n", map { <<"CONF" } "127.0.0.1:$v4 udp", "[::1]:$v6 udp",
    server {
        listen $_;
        ssl_certificate $cert;
        ssl_certificate_key $key;
        quic_relay 127.0.0.1:$upstream;
        quic_relay_ssl_name localhost;
        quic_relay_ssl_trusted_certificate $cert;
    }
CONF
    "[::]:$dual udp ipv6only=off";

my $sniffers = 0;

for my $case (
    ['IPv4', '127.0.0.1', $v4],
    ['IPv6', '[::1]', $v6],
    ['IPv4 of an IPv6 socket', '127.0.0.1', $dual],
    ['IPv6 of a wildcard', '[::1]', $dual],
)
{
    my ($name, $host, $port) = @$case;

    my $relay = QuicLB::Relay->new($t, target => "$host:$port",
                                   stream => $second);
    $relay->{upstream} = $upstream;
    $t->start();

    my $sniffer = $t->helper('marks' . ++$sniffers, 'python3', '-B',
                             "$FindBin::Bin/lib/marks.py", $port);
    $sniffer->wait_line(qr/^(ready)$/) or die $sniffer->stderr();

    my $report = $relay->ends('moves', 1, 0, 2_000_000);
    is_deeply($report->{failed}, [], "$name: a connection")
        or diag($report->{error});

    $sniffer->say('done');
    my $marks = decode_json(($sniffer->wait_line(qr/^(\{.*)$/))[0])->{$port};

    for my $way (qw/to from/) {
        my @count = @{ $marks->{$way} };
        note("$way: @count");

        cmp_ok($count[ECT0], '>', 3 * TESTING, "$name: marks, $way");
        is($count[1] + $count[3], 0, "$name: no other one, $way");
        cmp_ok($count[NOT_ECT], '<', $count[ECT0] / 10,
               "$name: nearly all have it, $way");
    }

    ok($t->stop('QUIT'), "$name: nginx ends");
}


# a client whose packets all have the mark

my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
                               parts => { workers => 4 });
$t->start();

for my $case (
    ['one by one', 'moves', 4, 0, 200_000],
    ['in trains', 'moves', 4, 0, 200_000, '--trains'],
    ['of other workers', 'moves', 8, 6, 200_000],
    ['of other workers, in trains', 'moves', 8, 6, 200_000, '--trains'],
)
{
    my ($name, @scenario) = @$case;

    $relay->{options} = ['--marks'];
    my $report = $relay->ends(@scenario);
    is_deeply($report->{failed}, [], "$name: connections")
        or diag($report->{error});

    my @marks = @{ $report->{marks} };
    # what is not known to be acknowledged, as an ACK was lost, may be counted
    is_deeply([grep { $_->[1] < $_->[0] || $_->[2] + $_->[3] } @marks], [],
              "$name: each packet is acknowledged with its mark");

    cmp_ok((sort { $a <=> $b } map { $_->[0] } @marks)[0], '>', 50,
           "$name: and there are many");
}

$t->done();
