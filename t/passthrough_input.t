#!/usr/bin/perl

# Datagrams that no client should send: dropped and counted, or passed to a
# backend that will know, but never more than that.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;
use IO::Socket::IP;
use Socket qw/SOCK_DGRAM SOL_SOCKET/;

use QuicLB;

# Linux: udp.h
use constant { SOL_UDP => 17, UDP_SEGMENT => 103 };

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;

# backends that only listen
my @backends = map {
    IO::Socket::IP->new(LocalHost => '127.0.0.1', LocalPort => 0,
                        Type => SOCK_DGRAM)
} 1 .. 2;
my @addresses = map { '127.0.0.1:' . $_->sockport } @backends;

my @names = qw/received sent flows malformed unroutable overload no_backend
               send_failed evicted/;
my $text = join ' ', map { "$_ \$quic_passthrough_$_" } @names;

$t->conf(connections => 64, stream => <<"CONF");
    upstream quic {
        server $addresses[0] max_fails=0;
        server $addresses[1] max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id 0a $addresses[0];
            server_id 0b $addresses[1];
            length_self_description on;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough quic;
        quic_passthrough_timeout 1s;
    }

    server {
        listen 127.0.0.1:$stats;
        return "$text";
    }
CONF

$t->start();

my $client;
my $v1 = "\0\0\0\1";
my $id_a = "\x08\x0a" . 'nonce77';
my $id_b = "\x08\x0b" . 'nonce77';


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
    ['a DCID of 21 octets, version 1', long($v1, 'd' x 21, 'scid'),
     'malformed'],
    ['a SCID of 21 octets, version 2',
     long("\x6b\x33\x43\xcf", 'd' x 8, 's' x 21), 'malformed'],
    ['a DCID of 255 octets, version 1', long($v1, 'd' x 255, 'scid'),
     'malformed'],
    ['Version Negotiation', long("\0\0\0\0", 'd' x 8, 'scid'), 'unroutable'],
    ['Retry', "\xf0$v1" . pack('C/a C/a', 'd' x 8, 'scid') . 'x' x 40,
     'unroutable'],
    ['Version Negotiation to a server ID', long("\0\0\0\0", $id_a, 'scid'),
     'unroutable'],
    ['Retry to a server ID', "\xf0$v1" . pack('C/a C/a', $id_a, 'scid')
                             . 'x' x 40, 'unroutable'],
    ['Handshake of no known server', handshake("\x08\x0c" . 'nonce77'),
     'unroutable'],
    ['a short header of no known server', "\x40\x08\x0c" . 'nonce77' . 'x' x 30,
     'unroutable'],
    ['a short header of no configuration', "\x40\xe8" . 'x' x 40,
     'unroutable'],
    ['a short header that ends in the DCID', "\x40\x08\x0a" . 'non',
     'unroutable'],
    ['a self-described length that is another', "\x40\x07\x0a" . 'nonce77',
     'unroutable'],
    ['one octet', "\x40", 'unroutable'],
    ['zeroes', "\0" x 1200, 'unroutable'],
)
{
    my ($name, $datagram, $counter) = @$case;

    my $before = counters();
    fresh();
    $client->send($datagram);

    my $after = $t->wait_for($name, sub {
        my $now = counters();
        return $now->{received} > $before->{received} && $now;
    });

    is($after->{$counter} - $before->{$counter}, 1, "$name: $counter");
    is($after->{flows}, $before->{flows}, "$name: no flow");
}

is(received($backends[0], 0) . received($backends[1], 0), '',
   'the backends saw none of them');


# what goes on, as it is

for my $case (
    ['a short header', "\x40$id_a" . 'payload', 0],
    ['just a connection ID', "\x40$id_b", 1],
    ['the fixed bit is not looked at', "\x00$id_a" . 'payload', 0],
    ['octets appended to the ID', long($v1, "\x0b\x0b" . 'nonce77xyz', ''), 1],
    ['an unknown version', long("\x0a\x1a\x2a\x3a", $id_b, 'scid'), 1],
    ['a greased version, IDs of 255 octets',
     long("\x1a\x2a\x3a\x4a", 'd' x 255, 's' x 255), undef],
    ['an unknown version, no IDs', long("\xff\0\0\x1d", '', ''), undef],
    ['Handshake of a known server', handshake($id_b), 1],
    ['64 KiB', "\x40$id_a" . 'x' x 65000, 0],
)
{
    my ($name, $datagram, $expected) = @$case;

    fresh();
    $client->send($datagram);

    my @ready = IO::Select->new(@backends)->can_read(5);
    is(scalar(@ready), 1, "$name: reaches a backend") or next;

    ok($ready[0] == $backends[$expected], "$name: the right one")
        if defined $expected;
    ok(received($ready[0], 5) eq $datagram, "$name: unchanged");
}


# trains of datagrams: what is read at once need not go to one backend

fresh();
setsockopt($client, SOL_UDP, UDP_SEGMENT, pack('i', 100))
    or die "UDP_SEGMENT: $!";

my @train = map {
    ($_ % 3 ? "\x40$id_a" : "\x40$id_b") . chr($_) x 90
} 1 .. 40;
push @train, "\x40$id_a" . 'end';

# the receiver's GRO is switched on some time after the start
for my $round (1 .. 20) {
    $client->send(join '', @train);

    my %got = map { $_ => '' } 0, 1;
    for my $i (0, 1) {
        my $count = grep { ($_ =~ /^\x40\Q$id_a\E/) == ($i == 0) } @train;
        $got{$i} .= received($backends[$i], 5) for 1 .. $count;
    }

    my @want = (join('', grep { /^\x40\Q$id_a\E/ } @train),
                join('', grep { /^\x40\Q$id_b\E/ } @train));

    next if $got{0} eq $want[0] && $got{1} eq $want[1];

    fail("train $round arrives in order");
    last;
}
pass('trains of datagrams arrive whole, in order, each where it belongs');


# random octets: no crash, no leak, and the next good one passes

srand(4711);
for (1 .. 60) {
    fresh();
    $client->send(long(octets(4), octets(rand(20)), octets(rand(20))));
    $client->send(octets(rand(60))) for 1 .. 50;
}

my ($worker) = $t->workers();

for my $backend (@backends) {
    1 while received($backend, 0) ne '';
}

my $done = $t->wait_for('an answer after the flood', sub {
    fresh();
    $client->send("\x40$id_a" . 'after');
    my $got;
    do { $got = received($backends[0], 0.5) } until $got eq ''
                                              || $got =~ /after$/;
    return $got =~ /after$/;
}, 20);
ok($done, 'good datagrams pass after the bad ones');
is(($t->workers())[0], $worker, 'the worker lives on');

my $counters = counters();
cmp_ok($counters->{evicted} + $counters->{overload}, '>', 0,
       'half-open flows make room');

# with the 64 connections of this worker there is a warning, but not many
my $lines = () = $t->error_log() =~ /\[(?:warn|error|crit)\]/g;
cmp_ok($lines, '<', 30, 'the log is not flooded');

$t->done();


sub fresh {
    $client = IO::Socket::IP->new(PeerHost => '127.0.0.1', PeerPort => $port,
                                  Type => SOCK_DGRAM);
}


sub received {
    my ($socket, $seconds) = @_;
    my $datagram = '';

    if (IO::Select->new($socket)->can_read($seconds)) {
        $socket->recv($datagram, 65536);
    }

    return $datagram;
}


sub counters {
    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $stats, Timeout => 5)
        or die "statistics: $@";
    local $/;

    return { split ' ', <$socket> };
}


sub octets {
    return join '', map { chr(int(rand(256))) } 1 .. $_[0];
}


# an Initial, or what looks like one in other versions

sub long {
    my ($version, $dcid, $scid) = @_;

    my $first = $version eq "\x6b\x33\x43\xcf" ? "\xd0" : "\xc0";

    return $first . $version . pack('C/a C/a', $dcid, $scid) . "\0"
           . "\x40\x64" . 'x' x 100;
}


sub handshake {
    my ($dcid) = @_;

    return "\xe0$v1" . pack('C/a C/a', $dcid, 'scid') . "\x40\x64" . 'x' x 100;
}
