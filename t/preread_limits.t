#!/usr/bin/perl

# The limits of quic_preread: the memory of a worker, the datagrams of a
# connection, time; and a flood of halves of ClientHellos, which costs no more
# than the memory that is set.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Hello;
use QuicLB::Process qw/slurp/;
use QuicLB::Udp;

# docs: datagrams of a connection; octets that one takes beside its datagrams
use constant { DATAGRAMS => 16, OVERHEAD => 1024 };

# of a datagram that has many small ones
use constant PACKETS => 10;

# octets: quic_preread_memory, of a half of a ClientHello, and a bit less than
# a connection with one takes
use constant { MEMORY => 256 * 1024, HALF => 1200 };
use constant HELD => OVERHEAD + HALF;

# datagrams of a flood
use constant FLOOD => 8000;

my $t = QuicLB->new();
my ($port, $soon, $stats) = map { $t->port() } 1 .. 3;

my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a d/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;

$t->conf(connections => 8192, main => 'worker_rlimit_nofile 16384;',
         stream => <<"CONF");
    upstream a {
        server $addresses{a} max_fails=0;
        quic_maglev;
    }

    upstream d {
        server $addresses{d} max_fails=0;
        quic_maglev;
    }

    map \$quic_preread_server_name \$to {
        a.example.com a;
        default d;
    }

    quic_preread on;
    quic_preread_memory @{[MEMORY]};
    quic_preread_timeout 60s;

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough \$to;
    }

    server {
        listen 127.0.0.1:$soon udp;
        quic_passthrough \$to;
        quic_preread_timeout 100ms;
    }

    @{[$t->counters_server($stats, qw/received hellos unread overload evicted
                                      refused/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my $connections = 0;


# a ClientHello in pieces of a datagram each

sub pieces {
    my ($size, @frames) = @_;

    return $hello->datagrams(sni => 'a.example.com', size => $size,
                             dcid => sprintf('dcid%06d', ++$connections),
                             scid => sprintf('scid%06d', $connections),
                             datagrams => [map { [{ frames => [$_],
                                                    pad => HALF }] }
                                           @frames]);
}


sub halves {
    return pieces(2000, [0, 1000], [1000, 1000]);
}


# what comes until there are $n, or no more come

sub receive {
    my ($name, $n) = @_;
    my @got;

    while (@got < $n) {
        push @got, udp_receive($backends{$name}) // last;
    }

    return @got;
}


# [socket, datagram] ..., no more at a time than a socket's buffer has room for

sub paced {
    my @list = @_;

    while (my @some = splice @list, 0, 20) {
        my $before = $t->counters($stats);

        $_->[0]->send($_->[1]) for @some;
        counted('received', $before, scalar @some);
    }
}


sub counted {
    my ($name, $before, $n) = @_;

    return $t->wait_for("$name: $n", sub {
        $t->counters($stats)->{$name} - $before->{$name} >= $n;
    });
}


# the datagrams of a connection

my $client = udp_connect('127.0.0.1', $port);
my @many = pieces(16000, map { [$_ * 500, 500] } 0 .. DATAGRAMS);

$client->send($_) for @many;
is_deeply([receive('d', DATAGRAMS)], [@many[0 .. DATAGRAMS - 1]],
          'with too many datagrams a connection goes to the default server');
counted('overload', { overload => 0 }, 1);


# packets of a connection: all that it holds is opened again with each datagram

for my $case (['a', 6], ['d', DATAGRAMS - 1]) {
    my ($name, $n) = @$case;
    my $size = $n * PACKETS * 20;
    my $offset = -20;
    my @small = $hello->datagrams(
        sni => 'a.example.com', size => $size,
        dcid => sprintf('dcid%06d', ++$connections),
        scid => sprintf('scid%06d', $connections),
        datagrams => [map { [map { { frames => [[$offset += 20, 20]] } }
                                 1 .. PACKETS] } 1 .. $n]);

    $client->send($_) for @small;
    is_deeply([receive($name, $n)], \@small,
              "$n datagrams of " . PACKETS . " packets go to $name");
}


# memory: the oldest make room

my $before = $t->counters($stats);
my $room = int(MEMORY / HELD);
my $n = 2 * $room;
my @waiting = map { [udp_connect('127.0.0.1', $port), halves()] } 1 .. $n;

paced(map { [$_->[0], $_->[1]] } @waiting);

# room for the last one is made when anything comes
paced([$client, 'x']);
my $unread = $t->counters($stats)->{unread} - $before->{unread};

cmp_ok($unread, '>=', $n - $room, 'half of them have had to make room');
cmp_ok($unread, '<=', $n - $room / 2, 'but no more than that');
is(scalar(receive('d', $unread)), $unread, 'they go to the default server');

$t->wait_log(qr/\[warn\].*increase "quic_preread_memory"/);

my @kept = @waiting[$unread .. $#waiting];
paced(map { [$_->[0], $_->[2]] } @kept);
is(scalar(receive('a', 2 * @kept)), 2 * @kept, 'the others are read');

udp_drain(values %backends);
paced(map { [$_->[0], $_->[2]] } @waiting[0 .. $unread - 1]);
is(scalar(receive('d', $unread)), $unread,
   'and the rest of the first ones goes where they went');


# time

$before = $t->counters($stats);
@waiting = map { [udp_connect('127.0.0.1', $soon), halves()] } 1 .. 20;

paced(map { [$_->[0], $_->[1]] } @waiting);
is(scalar(receive('d', 20)), 20, 'at the deadline, to the default server');
is($t->counters($stats)->{unread} - $before->{unread}, 20, 'all of them');


# a flood

# of the worker, octets

sub memory {
    my ($worker) = $t->workers();
    my ($pages) = slurp("/proc/$worker/statm") =~ /^\d+ (\d+)/;

    return $pages * 4096;
}

my ($first) = halves();
my @sockets = map { udp_connect('127.0.0.1', $port) } 1 .. 500;
my @memory;

# the flows, and buffers, are made in the first half

for my $round (1 .. 2) {
    for my $i (1 .. FLOOD / 20) {

        # the connection ID is another one, so each would wait; 0-RTT, as no
        # keys are wanted
        paced(map {
            my $datagram = $first;
            substr $datagram, 0, 1, chr(0xd0);
            substr $datagram, 6, 10, sprintf('%d%06d%03d', $round, $i, $_);
            [$sockets[($i * 20 + $_) % @sockets], $datagram];
        } 1 .. 20);

        udp_drain(values %backends);
    }

    push @memory, memory();
}

SKIP: {
    skip 'ASan keeps what is freed', 1 if ($ENV{NGINX_FLAVOR} // '') eq 'asan';

    cmp_ok($memory[1] - $memory[0], '<', MEMORY,
           'a flood takes no more than its memory') or note("@memory");
}

udp_drain(values %backends);
my $honest = udp_connect('127.0.0.1', $port);
my @honest = halves();

$honest->send($_) for @honest;
is_deeply([receive('a', 2)], \@honest, 'and leaves others what they need');

ok($t->stop(), 'nginx ends');

$t->done();
