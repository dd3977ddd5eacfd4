#!/usr/bin/perl

# quic_passthrough_address_rate: new connections of an address, whatever their
# ports and workers, or of one port; all else passes.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

# so slow that no test waits for another
use constant { BURST => 5, PORTS => 20, WORKERS => 4 };

my $t = QuicLB->new();
my ($port, $other, $quick, $whole, $stats) = map { $t->port() } 1 .. 5;

my $backend = udp_bind('127.0.0.1');
my $address = '127.0.0.1:' . $backend->sockport;
my $id = "\x08\xaanonce77";
my $servers = $t->servers([['real', '127.0.0.1:0', 'bb']],
                          '--nonce-length', 7);

sub server {
    my ($listen, $rate) = @_;

    return "server { listen 127.0.0.1:$listen udp reuseport;
        quic_passthrough lb;
        quic_passthrough_address_rate $rate; }\n";
}

$t->conf(workers => WORKERS, stream => <<"CONF");
    upstream lb {
        server $address;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id aa $address;
        }
    }

    upstream real {
        @{[$servers->lines({ real => 'bb' })]}

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            @{[$servers->id_lines({ real => 'bb' })]}
        }
    }

    server {
        listen 127.0.0.1:$whole udp reuseport;
        quic_passthrough real;
        quic_passthrough_address_rate 1r/s burst=1;
    }

    @{[ server($port, '1r/s burst=' . BURST) ]}
    @{[ server($other, '2r/s burst=1') ]}
    @{[ server($quick, '1000000r/s burst=1') ]}
    @{[ $t->counters_server($stats, qw/overload sent/) ]}
CONF
$t->start();


# of many ports, and so of several workers; a second may pass meanwhile

my $from = time;
my @clients = map { udp_connect('127.0.0.1', $port, '127.0.0.9') } 1 .. PORTS;

my $passed = passed(PORTS, sub {
    $_->send(initial('a client', 'its own')) for @clients;
});

cmp_ok($passed, '>=', BURST, 'as many new connections as the burst is');
cmp_ok($passed, '<=', BURST + 1 + time - $from,
       'and no more than the time allows, by all workers');


# what is no new connection

is(sent(udp_connect('127.0.0.1', $port, '127.0.0.9'), short($id, 'moved')), 1,
   'a packet of an established connection passes');
is(sent(udp_connect('127.0.0.1', $port, '127.0.0.8'), initial('a client')), 1,
   'and a new one of another address');
is(sent(udp_connect('127.0.0.1', $quick, '127.0.0.9'), initial('a client')),
   1, 'and one at a server with another limit');


# of one port: what belongs to a connection that has begun, no further ones

my $client = udp_connect('127.0.0.1', $other, '127.0.0.7');

is(sent($client, map { initial('the DCID', 'its own', payload => $_ x 100) }
                     1 .. 4), 4, 'all of a ClientHello');

$from = time;
$passed = sent($client, map { initial("DCID $_", "SCID $_") } 10 .. 29);
cmp_ok($passed, '<=', 2 * (1 + time - $from), 'few new connections');
is(sent($client, short($id, 'established')), 1, 'the flow goes on');


# a handshake and a rebinding are one connection

my $before = $t->counters($stats)->{overload};
my $report = $t->client('--connect', "127.0.0.1:$whole", 'run', 'get:/name',
                        'transfer:20000:rebind:migrate');
is($report->{failed}, 0, 'a connection') or $t->explain($report);
is($t->counters($stats)->{overload}, $before, 'of which nothing is dropped');


# time gives it back

$client = udp_connect('127.0.0.1', $quick, '127.0.0.6');
ok($t->wait_for('a connection each time', sub {
    return sent($client, initial(pack('Q>', ++$from), 'x')) == 1;
}), 'a high rate') for 1 .. 3;

ok($t->wait_for('a new connection', sub {
    return sent($clients[-1], initial('a client', 'its own'));
}), 'again, after a time');


# a reload keeps what has been used

$client = udp_connect('127.0.0.1', $port, '127.0.0.5');
is(sent($client, map { initial("DCID $_", "SCID $_") } 10 .. 10 + BURST - 1),
   BURST, 'a burst');
$from = time;
ok($t->reload(), 'a reload');
$passed = sent(udp_connect('127.0.0.1', $port, '127.0.0.5'),
               map { initial("DCID $_", "SCID $_") } 10 .. 29);
cmp_ok($passed, '<=', 1 + time - $from, 'is no new start');


# configurations

for my $case (
    ['', qr/invalid number of arguments in "quic_passthrough_address_rate"/],
    map({
        [$_, qr/invalid\ value\ "$_"\ in\ "quic_passthrough_address_rate"
                \ directive,\ it\ must\ be\ "off"\ or\ "number"r\/s,\ from\ 1
                \ to\ 1000000\ in/x]
    } qw{many 5 r/s 0r/s 5r/m -1r/s 1000001r/s}),
    map({
        ["5r/s $_", qr/invalid\ parameter\ "$_"\ in
                       \ "quic_passthrough_address_rate"\ directive,\ it\ must
                       \ be\ "burst=number",\ from\ 1\ to\ 1000000\ in/x]
    } qw/burst burst= burst=0 burst=x burst=1000001 nodelay/),
    ['5r/s; quic_passthrough_address_rate off',
     qr/"quic_passthrough_address_rate" directive is duplicate/],
    ['off', undef],
    ['5r/s', undef],
    ['5r/s burst=1', undef],
) {
    my ($value, $regex) = @$case;
    my (undef, $output) = $t->test_conf(stream =>
        "server { listen 127.0.0.1:1 udp; quic_passthrough 127.0.0.1:2;"
        . " quic_passthrough_address_rate $value; }");

    like($output, $regex // qr/test is successful/, "nginx -t: $value");
}

$t->done();


# how many of them go to the backend: each is sent or dropped

sub sent {
    my ($socket, @datagrams) = @_;

    return passed(scalar @datagrams, sub {
        $socket->send($_) for @datagrams;
    });
}


sub passed {
    my ($n, $send) = @_;

    my $before = $t->counters($stats);
    my $after;

    $send->();

    $t->wait_for('the datagrams', sub {
        $after = $t->counters($stats);
        return $after->{sent} + $after->{overload}
               == $before->{sent} + $before->{overload} + $n;
    });

    return $after->{sent} - $before->{sent};
}
