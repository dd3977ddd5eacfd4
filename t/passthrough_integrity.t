#!/usr/bin/perl

# Datagrams of mixed sizes arrive as they were sent, in order, each with its ECN
# mark, whatever the system has of batched datagram I/O and however it fails.
#
# TEST_DATAGRAMS: datagrams of each case and direction.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant FLOWS => 16;

my $asan = $ENV{NGINX_FLAVOR} eq 'asan';
my $count = $ENV{TEST_DATAGRAMS} // ($asan ? 20_000 : 100_000);

# a fault of shim.c, what the log tells of it, in how many lines (1)
my @faults = (
    [none => undef],
    [full => undef],
    [short => undef],
    [nobatches => qr/(?:recv|send)mmsg\(\) failed, \S+ing messages one by one/,
     2],
    [sandbox => qr/recvmmsg\(\) failed, reading messages one by one/],
    [nogro => qr/setsockopt\(UDP_GRO\) failed, ignored/],
    [nosegment => qr/UDP_SEGMENT failed, sending datagrams one by one/],
    [flaky => undef],
    [crowded => qr/UDP_SEGMENT failed, sending datagrams one by one/],
    [oldkernel => qr/no UDP_SEGMENT, sending datagrams one by one/],
);

# a preloaded library and the sanitizer's do not mix
@faults = ($faults[0]) if $asan;

my $t = QuicLB->new();
my ($port, $server, $stats) = map { $t->port() } 1 .. 3;

my ($shim, $datagrams) = map { $t->path($_) } qw/shim.so datagrams/;
my @cc = qw/cc -W -Wall -Werror -O2/;

is(system(@cc, qw/-shared -fPIC -o/, $shim, "$FindBin::Bin/lib/shim.c",
          '-ldl'), 0, 'the shim');
is(system(@cc, '-o', $datagrams, "$FindBin::Bin/lib/datagrams.c"), 0,
   'the ends');

$t->conf(stream => <<"CONF");
    upstream quic {
        server 127.0.0.1:$server;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id 0a 127.0.0.1:$server;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough quic;
    }

    @{[$t->counters_server($stats, qw/received sent replies send_failed/)]}
CONF

for my $case (@faults) {
    my ($fault, $log, $lines) = @$case;
    my $before = length $t->error_log();

    {
        local $ENV{LD_PRELOAD} = $shim if $fault ne 'none';
        local $ENV{QUIC_LB_SHIM} = $fault;
        $t->start();
    }

    my ($sent, $total) = (0, 0);

    # trains by UDP_SEGMENT or one by one; read as trains or not
    for my $ends ([1, 1], [1, 0], [0, 1]) {
        my ($segment, $gro) = @$ends;
        my $share = int($count / 3) + 1;

        is(run($share, $segment, $gro), "ok: $share up, $share down\n",
           "$fault, UDP_SEGMENT $segment, UDP_GRO $gro");
        $total += $share;
    }

    my $counters = $t->counters($stats);
    is("$counters->{sent} $counters->{replies} $counters->{send_failed}",
       "$total $total 0", "$fault: all are counted");

    my $told = () = substr($t->error_log(), $before) =~ /$log/g if $log;
    is($told, $lines // 1, "$fault: logged once") if $log;

    $t->stop();
}

$t->done();


sub run {
    my ($share, $segment, $gro) = @_;
    my $seed = ++$t->{seed};

    open my $pipe, '-|', $datagrams, $port, $server, FLOWS, $share, $segment,
         $gro, $seed
        or die "datagrams: $!";
    local $/;

    return <$pipe>;
}
