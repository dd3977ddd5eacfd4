#!/usr/bin/perl

# What nobody should send to quic_preread: cut and changed ClientHellos, lengths
# beyond all bounds, and all of it mixed, from few addresses and many, with too
# few connections, little memory and short deadlines.  nginx goes on, and honest
# clients are served.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Dns;
use QuicLB::Hello;
use QuicLB::Packet qw/zero_rtt handshake long short/;
use QuicLB::Udp;

use constant SIZE => 2000;

# datagrams of the mix, and connections that they are taken from
use constant { MIX => 20_000, CONNECTIONS => 60 };

my $t = QuicLB->new();
my ($port, $tight, $stats, $dns_port) = map { $t->port() } 1 .. 4;

my $dns = udp_bind('127.0.0.1', $dns_port);
my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a d/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;

$t->conf(connections => 128, stream => <<"CONF");
    upstream a {
        server $addresses{a} max_fails=0;
        quic_maglev;
    }

    upstream d {
        server $addresses{d} max_fails=0;
        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            server_id 0d $addresses{d};
        }
    }

    resolver 127.0.0.1:$dns_port ipv6=off valid=1s;
    resolver_timeout 1s;

    map \$quic_preread_server_name \$to {
        a.example.com a;
        none.example.com 'no target';
        slow.example.com slow.example:@{[$backends{a}->sockport]};
        address.example.com $addresses{a};
        default d;
    }

    quic_preread on;
    quic_preread_memory 64k;

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough d;
    }

    server {
        listen 127.0.0.1:$port udp;
        server_name ~^(?<letter>a)\\.;
        quic_passthrough \$letter;
    }

    server {
        listen 127.0.0.1:$tight udp;
        quic_preread_timeout 200ms;
        quic_passthrough \$to;
        quic_passthrough_timeout 500ms;
    }

    @{[$t->counters_server($stats, qw/received flows hellos unread overload
                                      evicted/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my $connections = 0;
my @sockets;


sub halves {
    my ($name) = @_;

    return $hello->datagrams(sni => "$name.example.com", size => SIZE,
                             dcid => sprintf('dcid%06d', ++$connections),
                             scid => sprintf('scid%04d', $connections),
                             datagrams => [map { [{ frames => [$_] }] }
                                           [0, 1000], [1000, SIZE - 1000]]);
}


# no more at a time than a socket's buffer has room for

sub paced {
    my @datagrams = @_;

    while (my @some = splice @datagrams, 0, 20) {
        my $before = $t->counters($stats)->{received};
        my $n = 0;

        for my $datagram (@some) {
            my $socket = $sockets[rand @sockets];
            my $sent = $socket->send($datagram);
            $n++ if defined $sent;
        }

        $t->wait_for("$n datagrams", sub {
            $t->counters($stats)->{received} - $before >= $n
        });

        udp_drain(values %backends);
    }
}


sub fresh {
    my ($to, $n) = @_;
    @sockets = map { udp_connect('127.0.0.1', $to) } 1 .. $n;
}


sub honest {
    my ($what) = @_;
    my @halves = halves('a');

    # the flows that are there are half-open and make room
    my $client = udp_connect('127.0.0.1', $port);

    udp_drain(values %backends);
    $client->send($_) for @halves;
    is_deeply([map { udp_receive($backends{a}) } 1 .. 2], \@halves,
              "an honest client $what");
}


# cut, at each octet of the header and at some of the rest

my ($first, $second) = halves('a');

fresh($port, 4);
paced(map { substr $first, 0, $_ } 1 .. 60,
      map { $_ * 37 } 2 .. length($first) / 37);
honest('after datagrams that are cut');

# changed, each bit of the header

paced(map {
    my $datagram = $first;
    vec($datagram, $_, 1) ^= 1;
    $datagram;
} 0 .. 8 * 40);
honest('after datagrams with another header');

# lengths: of the token, of the packet, of frames

my $header = substr $first, 0, 1 + 4 + 1 + 10 + 1 + 8;

paced(map { $header . pack('H*', $_) . 'x' x 100 }
      qw/00 3f 7fff bfffffff ffffffffffffffff 00ffffffffffffffff 007fff
         00bfffffff 0040ff 0000 0001 0013 0014 00404f/);

for my $frames ('06ffffffffffffffffffffffffffffffff', '0600ffffffffffffffff',
                '06ffffffffffffffff00', '02ffffffffffffffff00ffffffffffffffff',
                '0200003fffffffff00', '1c000040ff', '06', '0600', '060040',
                'ffffffffffffffff', '0600040100ffff', '0600050200000100',
                '060004' . '01003fff', '00' x 1000)
{
    my ($datagram) = $hello->datagrams(dcid => sprintf('dcid%06d',
                                                       ++$connections),
                                       datagrams => [[{ frames => [$frames]
                                                      }]]);
    paced($datagram);
}

honest('after lengths beyond all bounds');


# a mix, from few addresses and from many

srand(my $seed = $ENV{TEST_SEED} // time());
note("TEST_SEED=$seed");

my @pool = map { halves((qw/a b none slow address/)[$_ % 5]) }
               1 .. CONNECTIONS;

sub some {
    my $datagram = $pool[rand @pool];
    my $which = rand 20;

    if ($which < 2) {
        vec($datagram, rand 8 * 60, 1) ^= 1;

    } elsif ($which < 3) {
        $datagram = substr $datagram, 0, 1 + rand length $datagram;

    } elsif ($which < 4) {
        $datagram = zero_rtt(substr($datagram, 6, 10), 'scid');

    } elsif ($which < 5) {
        $datagram = short("\x00\x0dnonce", 'x' x 40);

    } elsif ($which < 6) {
        $datagram = long(0x1a2a3a4a, substr($datagram, 6, 10), 'scid');

    } elsif ($which < 7) {
        $datagram = handshake("\x00\x0dnonc", 'scid') . $datagram;

    } elsif ($which < 9) {
        $datagram .= $pool[rand @pool];
    }

    return $datagram;
}

for my $n (3, 60, 400) {
    my $before = $t->counters($stats);

    fresh($tight, $n);

    for (1 .. MIX / 600) {
        paced(map { some() } 1 .. 200);
        dns_answer($dns, '127.0.0.1') if rand() < 0.5;
        dns_answer($dns) if rand() < 0.1;
    }

    my $after = $t->counters($stats);
    note("$n addresses: ", join ' ', map { "$_ "
         . ($after->{$_} - $before->{$_}) } sort keys %$after);

    honest("after a mix from $n addresses");
}

ok($t->stop('QUIT'), 'nginx leaves');

$t->done();
