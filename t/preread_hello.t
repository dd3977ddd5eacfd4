#!/usr/bin/perl

# quic_preread with ClientHellos made by hand: in any pieces, with what may come
# between them, and what is no ClientHello at all.  All datagrams go on, in
# order, to the one server that the ClientHello asks for.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Hello;
use QuicLB::Packet qw/initial zero_rtt long short V1 V2/;
use QuicLB::Udp;

# docs: datagrams of a connection, connections of an address, that wait
use constant { DATAGRAMS => 16, CONNECTIONS => 16 };

# octets of a ClientHello in several datagrams, and the longest
use constant { SIZE => 3000, LONGEST => 16384 };

my $t = QuicLB->new();
my ($port, $soon, $virtual, $stats) = map { $t->port() } 1 .. 4;

my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a b d/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;
my %ids = (a => '0a', b => '0b', d => '0d');

my $upstreams = join '', map { <<"CONF" } sort keys %ids;
    upstream $_ {
        server $addresses{$_} max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 6;
            server_id $ids{$_} $addresses{$_};
        }
    }
CONF

$t->conf(stream => <<"CONF");
    log_format hello '\$remote_port|\$quic_preread_server_name|'
                     '\$quic_preread_alpn_protocols|\$quic_preread_version|'
                     '\$upstream_addr|\$quic_routed_by';

    access_log @{[$t->path('access.log')]} hello;

    $upstreams

    map \$quic_preread_server_name \$to {
        a.example.com a;
        b.example.com b;
        none.example.com 'no target';
        default d;
    }

    quic_preread_timeout 60s;

    server {
        listen 127.0.0.1:$port udp;
        quic_preread on;
        quic_passthrough \$to;
    }

    server {
        listen 127.0.0.1:$soon udp;
        quic_preread on;
        quic_preread_timeout 200ms;
        quic_passthrough \$to;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        quic_preread on;
        quic_passthrough d;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        server_name a.example.com 192.0.2.1 2001;
        quic_passthrough a;
    }

    @{[$t->counters_server($stats, qw/hellos unread overload refused/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my ($client, $connections);


# a connection ID of the client's choice, which names no server

sub cid {
    return pack 'C C a6', 0x00, 0xff, sprintf '%06d', ++$connections;
}


sub fresh {
    return $client = udp_connect('127.0.0.1', shift // $port);
}


# pieces of a ClientHello of SIZE octets, equal but for the last

sub pieces {
    my ($n) = @_;
    my $length = int(SIZE / $n);

    return map {
        [$_ * $length, $_ == $n - 1 ? SIZE - $_ * $length : $length]
    } 0 .. $n - 1;
}


# each in a datagram of its own

sub apart {
    return [map { [{ frames => [$_] }] } @_];
}


# whether the datagrams, and nothing else, have come to the server, in order

sub arrive {
    my ($name, $what, @datagrams) = @_;
    my @got = map { udp_receive($backends{$name}) } @datagrams;

    is_deeply([map { unpack 'H*', $_ // '' } @got],
              [map { unpack 'H*', $_ } @datagrams], $what);

    my %extra = map { ($_ => defined udp_receive($backends{$_}, 0)) }
                    keys %backends;
    is_deeply([grep { $extra{$_} } sort keys %extra], [],
              'and nothing comes to another server');
}


sub send_all {
    $client->send($_) for @_;
}


sub counted {
    my ($name, $before, $n) = @_;

    return $t->wait_for("$name: $n", sub {
        $t->counters($stats)->{$name} - $before->{$name} >= $n;
    });
}


# in pieces

my @four = pieces(4);
my $ack = '0200000000';
my $ping = '01';

for my $case (
    ['one datagram', [[{ frames => [[0, SIZE]] }]]],
    ['two datagrams', apart(pieces(2))],
    ['four datagrams', apart(@four)],
    ['in reverse', apart(reverse @four)],
    ['shuffled', apart(@four[2, 0, 3, 1])],
    ['fifteen datagrams', apart(pieces(15))],
    ['many frames, shuffled', [[{ frames => [(pieces(40))[20 .. 39]] }],
                               [{ frames => [(pieces(40))[0 .. 19]] }]]],
    ['twice', apart(@four[0, 0, 1, 2, 1, 0, 3])],
    ['overlaps', apart([0, 1000], [500, 2000], [2400, 600])],
    ['an overlap with other content, which does not count',
     apart([0, 2000], [20, 1900, 0xff], [1900, SIZE - 1900])],
    ['coalesced packets', [[map { { frames => [$_] } } @four]]],
    ['coalesced with PING and ACK',
     [[{ frames => [$ping, $four[3], $ack] }, { frames => [$four[0]] }],
      [{ frames => [$ack, $ping], pad => 1200 },
       { frames => [$four[2], $four[1], $ping] }]]],
    ['PADDING, and CRYPTO frames of no length',
     [[{ frames => ['0000', [0, 0], $four[0], [9, 0]], pad => 1000 }],
      [{ frames => [[SIZE, 0], $four[1], '00', $four[2], $four[3]],
         pad => 3000 }]]],
    ['packets that are no Initials, coalesced',
     [[{ frames => [$four[0]] },
       { raw => unpack 'H*', long(0x1a2a3a4a, 'd' x 8, 'scid') }],
      map { [{ frames => [$_] }] } @four[1 .. 3]]],
    ['a packet that is not the client\'s',
     [[{ frames => [$four[0]] }], [{ frames => [$four[1]], broken => 1 }],
      map { [{ frames => [$_] }] } @four[1 .. 3]]],
    ['large packet numbers',
     [map { [{ frames => [$four[$_]], number => 0x7fffff + $_ }] } 0 .. 3]],
    ['tokens', [map { [{ frames => [$_], token => '00' x 100 }] } @four]],
)
{
    my ($what, $datagrams) = @$case;

    for my $version (1, 2) {
        fresh();
        my @datagrams = $hello->datagrams(
            sni => 'a.example.com', size => SIZE, version => $version,
            dcid => cid(), scid => 'client01', datagrams => $datagrams);

        send_all(@datagrams);
        arrive('a', "$what, version $version", @datagrams);
    }
}

is($t->counters($stats)->{unread}, 0, 'all of them were read');


# early, late, never

fresh();
my @late = $hello->datagrams(sni => 'b.example.com', alpn => ['h3', 'echo'],
                             first => ['alpn', 'sni'], size => SIZE,
                             dcid => cid(), scid => 'client02',
                             datagrams => apart(@four));

send_all($late[0]);
arrive('b', 'a name and ALPN: the rest is not waited for', $late[0]);
send_all(@late[1 .. 3]);
arrive('b', 'it follows', @late[1 .. 3]);

my $before = $t->counters($stats);

fresh($soon);
@late = $hello->datagrams(sni => 'a.example.com', size => SIZE,
                          dcid => cid(), scid => 'client03',
                          datagrams => apart(@four));

send_all(@late[0 .. 2]);
arrive('d', 'not in time: all of it goes to the default server',
       @late[0 .. 2]);
send_all($late[3]);
arrive('d', 'what comes too late, too', $late[3]);

is($t->counters($stats)->{unread} - $before->{unread}, 1, 'it is counted');
$t->wait_log(qr/\[info\].*QUIC ClientHello has not come in time/);


# 0-RTT waits, too, even if it is the first to come

my $dcid = cid();
my @early = map { zero_rtt($dcid, 'client04', payload => "early $_" x 20) }
                1 .. 3;
my @hello = $hello->datagrams(sni => 'a.example.com', size => SIZE,
                              dcid => $dcid, scid => 'client04',
                              datagrams => apart(pieces(2)));

fresh();
send_all($early[0], $hello[0], $early[1], $hello[1], $early[2]);
arrive('a', '0-RTT before and between', $early[0], $hello[0], $early[1],
       $hello[1], $early[2]);

fresh();
$dcid = cid();
@early = map { zero_rtt($dcid, 'client05', payload => "early $_" x 20) }
             1 .. DATAGRAMS;
@hello = $hello->datagrams(sni => 'a.example.com', size => SIZE,
                           dcid => $dcid, scid => 'client05',
                           datagrams => apart(pieces(2)));
$before = $t->counters($stats);

send_all($hello[0], @early);
counted('overload', $before, 1);
arrive('d', 'too much 0-RTT does not decide');
send_all($hello[1]);
arrive('d', 'but a ClientHello that is not complete by then does',
       $hello[0], @early[0 .. DATAGRAMS - 2]);


# what cannot be read

for my $case (
    ['no name', {}],
    ['another name', { sni => 'c.example.com' }],
    ['an empty name', { sni => '' }],
    ['a name with a slash', { sni => '../a.example.com' }],
    ['a name with NUL', { sni => "a.example.com\0.b" }],
    ['an IPv4 address', { sni => '192.0.2.1' }],
    ['an IPv6 address', { sni => '2001:db8::1' }],
    ['not a ClientHello', { datagrams => [[{ frames => ['0600050200000100'] }]]
                          }],
    ['no frame', { datagrams => [[{ frames => [''] }]] }],
    ['a frame that Initials do not have',
     { datagrams => [[{ frames => [[0, 100], '0a00'] }]] }],
    ['a frame that is cut', { datagrams => [[{ frames => [[0, 100], '060080'] }
                                            ]] }],
    ['a frame beyond the longest ClientHello',
     { datagrams => [[{ frames => ['06' . '80004000' . '01' . '00'] }]] }],
    ['a frame at the end of all numbers',
     { datagrams => [[{ frames => ['06' . 'ff' x 8 . '01' . '00'] }]] }],
    ['a ClientHello that claims to be longer',
     { datagrams => [[{ frames => ['06000601ffffff0303'] }]] }],
)
{
    my ($what, $fields) = @$case;

    fresh();
    my ($datagram) = $hello->datagrams(sni => 'a.example.com',
                                       dcid => cid(), scid => 'client06',
                                       exists $fields->{datagrams} ? ()
                                           : (sni => undef), %$fields);
    send_all($datagram);
    arrive('d', "$what: the default server, at once", $datagram);
}

for my $case (
    ['the last octet of the longest ClientHello', LONGEST, 'a'],
    ['one octet more', LONGEST + 1, 'd'],
)
{
    my ($what, $size, $name) = @$case;

    my @starts = map { $_ * 1300 } 0 .. 12;
    my @frames = map { [$_, $_ + 1300 > $size ? $size - $_ : 1300] } @starts;

    fresh();
    my @datagrams = $hello->datagrams(sni => 'a.example.com', size => $size,
                                      dcid => cid(), scid => 'client07',
                                      datagrams => apart(@frames));
    send_all(@datagrams);
    arrive($name, $what, @datagrams);
}

# not to be decrypted: as a connection that is established

my $id_b = "\x00\x0bnonce6";

for my $case (
    ['the keys of another connection ID', [keys => 'another1']],
    ['a tag that is wrong', [datagrams => [[{ frames => [[0, 100]],
                                              broken => 1 }]]]],
)
{
    my ($what, $fields) = @$case;

    for my $route (['d', cid()], ['b', $id_b]) {
        my ($name, $dcid) = @$route;

        fresh();
        my ($datagram) = $hello->datagrams(sni => 'a.example.com',
                                           dcid => $dcid, scid => 'client08',
                                           @$fields);
        send_all($datagram);
        arrive($name, "$what: goes by its connection ID, at once", $datagram);
    }
}

# a connection ID that names a server of another upstream

fresh();
@hello = $hello->datagrams(sni => 'a.example.com', dcid => $id_b,
                           scid => 'client09', size => SIZE,
                           datagrams => apart(pieces(2)));
send_all(@hello);
arrive('a', 'a connection ID of the client does not override the name',
       @hello);
send_all($hello[0]);
arrive('a', 'of a packet that comes again, either', $hello[0]);

fresh();
@hello = $hello->datagrams(sni => undef, dcid => $id_b, scid => 'client10');
send_all(@hello);
arrive('d', 'nor the default server', @hello);

# connection IDs of no length

for my $scid ('', 'client11') {
    fresh();
    @hello = $hello->datagrams(sni => 'a.example.com', dcid => '',
                               scid => $scid, size => SIZE,
                               datagrams => apart(pieces(2)));
    send_all(@hello);
    arrive('a', 'a DCID of no length', @hello);
}


# unknown versions are not looked into

fresh();
my $unknown = long(0x1a2a3a4a, 'unknown1', 'client12');
send_all($unknown);
arrive('d', 'an unknown version: the default server, at once', $unknown);

@hello = $hello->datagrams(sni => 'a.example.com', dcid => 'unknown1',
                           scid => 'client12', size => SIZE,
                           datagrams => apart(pieces(2)));
send_all(@hello);
arrive('a', 'one that is known, with the same connection IDs, is read',
       @hello);


# virtual servers

for my $case (
    ['a.example.com', 'a'], ['A.Example.COM', 'a'], ['a.example.com.', 'a'],
    ['192.0.2.1', 'a'], ['b.example.com', 'd'], ['2001:db8::1', 'd'],
    ['a.example.com:443', 'd'],
)
{
    my ($sni, $name) = @$case;

    fresh($virtual);
    @hello = $hello->datagrams(sni => $sni, dcid => cid(),
                               scid => 'client13');
    send_all(@hello);
    arrive($name, "virtual server of $sni", @hello);
}

$t->done();
