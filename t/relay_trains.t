#!/usr/bin/perl

# What the kernel joins to one read is taken apart again: each datagram goes its
# own way, whatever worker has its connection; and where the relay no more reads
# a socket, stock nginx gets single datagrams.  It works, too, where the kernel
# joins nothing, or does not take apart what is sent.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/long/;
use QuicLB::Relay;
use QuicLB::Udp;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# alone: the passthrough clears options that are left over, too
$ENV{QUIC_LB_LOAD} =~ s/^.*ngx_stream_quic_lb_module.*$//m;

# octets, RFC 9000, 14.1: no smaller one is answered
use constant { SIZE => 1300, SHORTER => 1200, TRAIN => 20 };

my $t = QuicLB->new();
my $relay = QuicLB::Relay->new($t, parts => { log => 'debug' });

$t->start();

# each is answered by Version Negotiation, with its own connection IDs

sub unknown {
    my ($number, $size) = @_;

    my $packet = long(0x1a2a3a4a, sprintf('to %04d', $number),
                      sprintf('from %05d', $number));

    return $packet . 'x' x ($size - length $packet);
}

# of the answers of $count datagrams: the numbers of those that they were to

sub answered {
    my ($socket, $count) = @_;

    my @numbers;

    while (@numbers < $count) {
        my $answer = udp_receive($socket) // last;

        # both connection IDs, the other way round
        push @numbers, $answer =~ /^.\0{4}\x0afrom 0(\d{4})\x07to \1/s
                       ? $1 + 0 : 'another';
    }

    return \@numbers;
}

my $client = udp_connect('127.0.0.1', $relay->{port});

for my $last (SIZE, SHORTER) {
    my @train = map { unknown($_, $_ < TRAIN ? SIZE : $last) } 1 .. TRAIN;

    udp_train($client, @train);
    is_deeply(answered($client, TRAIN), [1 .. TRAIN],
              "a train, the last datagram of $last octets");

    my $length = (TRAIN - 1) * SIZE + $last;
    ok($t->wait_log(qr/recvmsg: fd:\d+ $length octets by @{[SIZE]}\b/),
       'it was read at once');
}

# one that is too short to be answered is not taken for a part of the others

udp_train($client, (map { unknown($_, SIZE) } 1, 2), unknown(3, SHORTER - 1));
udp_train($client, map { unknown($_, SIZE) } 4, 5);
is_deeply(answered($client, 4), [1, 2, 4, 5], 'a short one at the end');

is($t->stop('QUIT'), 1, 'nginx ends');


# connections: of several workers, and moving from one to another

$relay = QuicLB::Relay->new($t, listen => 'reuseport',
                            parts => { workers => 4 });
$relay->{options} = ['--trains'];
$t->start();

my $report = $relay->ends('queries', 100);
is($report->{wrong}, 0, 'queries') or diag($report->{error});

$report = $relay->ends('datagrams', 500);
cmp_ok($report->{up}{received}, '>', 0, 'datagrams')
    or diag($report->{error});
is($report->{up}{altered}, 0, 'as they were');

$report = $relay->ends('moves', 8, 4, 400_000);
is_deeply($report->{failed}, [], 'connections migrate')
    or diag($report->{error});


# another configuration reads the socket, and the relay again

my $target = udp_bind('127.0.0.1');
my $port = $relay->{port};
my $target_port = $target->sockport();

sub stock {
    $t->conf(workers => 4, stream => <<"CONF");
    server {
        listen 127.0.0.1:$port udp reuseport;
        proxy_pass 127.0.0.1:$target_port;
        proxy_timeout 1s;
    }
CONF
}

my $moved = $relay->{conf};

for my $round (1, 2) {
    stock();
    ok($t->reload(), 'to proxy_pass');

    my @train = map { sprintf('%03d', $_) . 'y' x 997 } 1 .. TRAIN;
    my @got;

    # old workers read until they are told to quit
    $t->wait_for('stock nginx', sub {
        udp_drain($target);
        my $probe = udp_connect('127.0.0.1', $port);
        $probe->send('probe');
        return defined udp_receive($target, 0.2);
    });

    my $sender = udp_connect('127.0.0.1', $port);
    udp_train($sender, @train);
    push @got, udp_receive($target) // last for 1 .. TRAIN;
    is_deeply([sort @got], \@train, 'single datagrams');

    $t->conf(@$moved);
    ok($t->reload(), 'to quic_relay');

    $report = $relay->ends('queries', 20);
    is($report->{wrong}, 0, 'and it relays') or diag($report->{error});
}

ok($t->stop('QUIT'), 'nginx ends');


# without UDP_GRO, without UDP_SEGMENT, or not always with it

SKIP: {
    skip('a preloaded library and the sanitizer\'s do not mix', 1)
        if $ENV{NGINX_FLAVOR} eq 'asan';

    my $shim = $t->path('shim.so');
    is(system(qw/cc -W -Wall -Werror -O2 -shared -fPIC -o/, $shim,
              "$FindBin::Bin/lib/shim.c", '-ldl'), 0, 'the shim');

    for my $fault (qw/nogro nosegment flaky oldkernel/) {
        {
            local $ENV{LD_PRELOAD} = $shim;
            local $ENV{QUIC_LB_SHIM} = $fault;
            $t->start();
        }

        $report = $relay->ends('moves', 4, 2, 400_000);
        is_deeply($report->{failed}, [], "$fault: connections")
            or diag($report->{error});
        ok($t->stop('QUIT'), "$fault: nginx ends");
    }

    is($t->log_count(qr/no UDP_SEGMENT, "quic_relay" sends datagrams one/), 4,
       'each worker tells once that the kernel has no UDP_SEGMENT');
}

$t->done();
