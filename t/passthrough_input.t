#!/usr/bin/perl

# Datagrams that no client should send: dropped and counted, or passed to a
# backend that will know, but never more than that.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;

use QuicLB;
use QuicLB::Packet qw/initial handshake retry negotiation long short V2/;
use QuicLB::Udp;

# a read takes up to so many messages, each a train or one datagram
use constant MESSAGES => 16;

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;

# backends that only listen
my @backends = map { udp_bind('127.0.0.1') } 0 .. 2;
my @addresses = map { '127.0.0.1:' . $_->sockport } @backends;

$t->conf(connections => 64, stream => <<"CONF");
    upstream quic {
        server $addresses[0] max_fails=0;
        server $addresses[1] max_fails=0;
        server $addresses[2] down;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id 0a $addresses[0];
            server_id 0b $addresses[1];
            server_id 0d $addresses[2];
            length_self_description on;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough quic;
        quic_passthrough_timeout 1s;
    }

    @{[$t->counters_server($stats, qw/received flows malformed unroutable
                                      evicted/)]}
CONF

$t->start();

my $client;
my $v1 = "\0\0\0\1";
my $id_a = "\x08\x0a" . 'nonce77';
my $id_b = "\x08\x0b" . 'nonce77';
my $id_train = "\x08\x0d" . 'nonce77';
my $id_none = "\x08\x0c" . 'nonce77';


# what is dropped, and in which counter it shows; each from a new address

for my $case (
    ['an empty datagram', '', 'malformed'],
    ['a lone long header octet', "\xc0", 'malformed'],
    ['cut in the version', "\xc0\0\0", 'malformed'],
    ['cut before the DCID length', "\xc0$v1", 'malformed'],
    ['cut in the DCID', "\xc0$v1\x08\x08\x0a", 'malformed'],
    ['cut before the SCID length', "\xc0$v1\x09$id_a", 'malformed'],
    ['cut in the SCID', "\xc0$v1\x09$id_a\x08abc", 'malformed'],
    ['cut in the token', "\xc0$v1\x09$id_a\0\x40\xff" . 'token', 'malformed'],
    ['cut before the length', "\xc0$v1\x09$id_a\0\0", 'malformed'],
    ['shorter than its length', "\xc0$v1\x09$id_a\0\0\x44\xd0" . 'x' x 100,
     'malformed'],
    ['a DCID of 21 octets, version 1', initial('d' x 21, 'scid'),
     'malformed'],
    ['a SCID of 21 octets, version 2',
     initial('d' x 8, 's' x 21, version => V2), 'malformed'],
    ['a DCID of 255 octets, version 1', initial('d' x 255, 'scid'),
     'malformed'],
    ['Version Negotiation', negotiation('d' x 8, 'scid'), 'unroutable'],
    ['Retry', retry('d' x 8, 'scid', payload => 'x' x 40), 'unroutable'],
    ['Version Negotiation to a server ID', negotiation($id_a, 'scid'),
     'unroutable'],
    ['Retry to a server ID', retry($id_a, 'scid', payload => 'x' x 40),
     'unroutable'],
    ['Handshake of no known server', handshake($id_none, 'scid'), 'unroutable'],
    ['a short header of no known server', short($id_none, 'x' x 30),
     'unroutable'],
    ['a short header of no configuration', short("\xe8", 'x' x 40),
     'unroutable'],
    ['a short header that ends in the DCID', short(substr $id_a, 0, 5),
     'unroutable'],
    ['a self-described length that is another', short("\x07\x0anonce77"),
     'unroutable'],
    ['one octet', short(''), 'unroutable'],
    ['zeroes', "\0" x 1200, 'unroutable'],
)
{
    my ($name, $datagram, $counter) = @$case;

    my $before = $t->counters($stats);
    fresh();
    $client->send($datagram);

    my $after = $t->wait_for($name, sub {
        my $now = $t->counters($stats);
        return $now->{received} > $before->{received} && $now;
    });

    is($after->{$counter} - $before->{$counter}, 1, "$name: $counter");
    is($after->{flows}, $before->{flows}, "$name: no flow");
}

is_deeply([IO::Select->new(@backends)->can_read(0)], [],
          'the backends saw none of them');


# what goes on, as it is

for my $case (
    ['a short header', short($id_a, 'payload'), 0],
    ['just a connection ID', short($id_b), 1],
    ['the fixed bit is not looked at', "\x00$id_a" . 'payload', 0],
    ['octets appended to the ID', initial("\x0b\x0bnonce77xyz"), 1],
    ['an unknown version', long(0x0a1a2a3b, $id_b, 'scid'), 1],
    ['a greased version, IDs of 255 octets',
     long(0x1a2a3a4a, 'd' x 255, 's' x 255), undef],
    ['an unknown version, no IDs', long(0xff00001d, '', ''), undef],
    ['Handshake of a known server', handshake($id_b, 'scid'), 1],
    ['64 KiB', short($id_a, 'x' x 65000), 0],
)
{
    my ($name, $datagram, $expected) = @$case;

    fresh();
    $client->send($datagram);

    my @ready = IO::Select->new(@backends)->can_read(30);
    is(scalar(@ready), 1, "$name: reaches a backend") or next;

    ok($ready[0] == $backends[$expected], "$name: the right one")
        if defined $expected;
    ok(udp_receive($ready[0]) eq $datagram, "$name: unchanged");
}


# trains of datagrams: what is read at once need not go to one backend; until
# some time after the start each datagram is read by itself

fresh();
my $one = $t->wait_for('UDP_GRO', sub {
    udp_read_as_one($client, $backends[2], $id_train)
});
ok($one, 'a train is read as one');

my @train = map { short($_ % 3 ? $id_a : $id_b, chr($_) x 90) } 1 .. 40;
push @train, short($id_a, 'end');

my $wrong;
for my $round (1 .. 20) {
    udp_train($client, @train);
    $wrong //= wrong(@train);
}
is($wrong, undef, 'trains arrive whole, in order, each where it belongs');

SKIP: {
    @train = map { short($_ % 2 ? $id_a : $id_b, pack 'n', $_) } 1 .. 128;

    skip 'no trains of 128 datagrams before Linux 6.9', 3
        if !udp_train($client, @train);

    is(wrong(@train), undef, 'a train of 128 datagrams');

    # a stopped worker finds all of them, and reads them at once

    @train = map { short($_ % 2 ? $id_a : $id_b, pack 'n', $_) }
             1 .. 128 * MESSAGES;
    $t->while_stopped(sub { send_trains(@train) });
    is(wrong(@train), undef, 'as many as one read takes');

    # after the first they follow the address

    @train = map { chr(0x40 + $_ % 61) } 1 .. 128 * MESSAGES;
    $client->send(short($id_a));
    $t->while_stopped(sub { send_trains(@train) });
    is(wrong(short($id_a), @train), undef, 'datagrams of one octet');
}


# random octets: no crash, no leak, and the next good one passes

srand(4711);
for (1 .. 60) {
    fresh();
    $client->send(long(int(rand(2**32)), octets(rand(20)), octets(rand(20))));
    $client->send(octets(rand(60))) for 1 .. 50;
}

my ($worker) = $t->workers();

my $done = $t->wait_for('a good datagram after the flood', sub {
    fresh();
    $client->send(short($id_a, 'after'));

    my $got = 'none yet';
    while ($got !~ /after$/) {
        $got = udp_receive($backends[0], 0.5) // return 0;
    }

    return 1;
});
ok($done, 'good datagrams pass after the bad ones');
is(($t->workers())[0], $worker, 'the worker lives on');

cmp_ok($t->counters($stats)->{evicted}, '>', 0, 'half-open flows make room');

# with the 64 connections of this worker there is a warning, once a second
cmp_ok($t->log_count(qr/\[(?:warn|error|crit)\]/), '<', 30 + time() - $^T,
       'the log is not flooded');

$t->done();


sub fresh {
    $client = udp_connect('127.0.0.1', $port);
}


sub send_trains {
    my (@datagrams) = @_;

    udp_train($client, splice @datagrams, 0, 128) while @datagrams;
}


# receives the datagrams, and tells which one is not as expected, if any;
# those without a connection ID go where the last one went

sub wrong {
    my (@datagrams) = @_;
    my $backend = 0;

    for my $n (0 .. $#datagrams) {
        my ($id) = $datagrams[$n] =~ /^\x40\x08([\x0a\x0b])/;
        $backend = ord($id) - 0x0a if defined $id;

        my $got = udp_receive($backends[$backend]) // return "$n: lost";
        return "$n: " . unpack('H*', $got) if $got ne $datagrams[$n];
    }

    return undef;
}


sub octets {
    return join '', map { chr(int(rand(256))) } 1 .. $_[0];
}
