#!/usr/bin/perl

# Servers whose connection IDs do not name them, by another key or without
# QUIC-LB: the handshake shows it, and what comes with such IDs is counted.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/handshake initial short V2/;
use QuicLB::Udp;

use constant { KEY => '8f95f09245765f80256934e50c66207f',
               OTHER_KEY => 'ab' x 16,
               OPTIONS => ['--nonce-length', 7, '--random-length', 12] };

my $t = QuicLB->new();
my ($right, $plain, $other, $zone, $maglev, $raw, $stats) =
    map { $t->port() } 1 .. 7;

my $servers = $t->servers([['right', '127.0.0.1:0', '0a0a0a0a'],
                           ['plain', '127.0.0.1:0', '-']],
                          @{ +OPTIONS }, '--lb-key', KEY);
my $others = $t->servers([['other', '127.0.0.1:0', '0c0c0c0c']],
                         @{ +OPTIONS }, '--lb-key', OTHER_KEY);

my %address = (right => $servers->address('right'),
               plain => $servers->address('plain'),
               other => $others->address('other'));

# answers what it is told to
my $backend = udp_bind('127.0.0.1');
$address{raw} = '127.0.0.1:' . $backend->sockport;

$t->write('key', pack 'H*', KEY);
chmod 0600, $t->path('key');

$t->conf(workers => 2, stream => <<"CONF");
    @{[ upstream('right', 'right', '0a0a0a0a') ]}
    @{[ upstream('plain', 'plain', '0b0b0b0b') ]}
    @{[ upstream('other', 'other', '0c0c0c0c') ]}
    @{[ upstream('zone', 'plain', '0b0b0b0b') ]}

    upstream maglev {
        server $address{plain};
        quic_lb 0 { server_id_length 4; nonce_length 7; unmapped maglev;
                    server_id 0b0b0b0b $address{plain}; }
    }
    upstream raw {
        server $address{raw};
        quic_lb 0 { server_id_length 4; nonce_length 7;
                    server_id 0d0d0d0d $address{raw}; }
    }

    server { listen 127.0.0.1:$right udp reuseport; quic_passthrough right; }
    server { listen 127.0.0.1:$plain udp reuseport; quic_passthrough plain; }
    server { listen 127.0.0.1:$other udp reuseport; quic_passthrough other; }
    server { listen 127.0.0.1:$maglev udp reuseport; quic_passthrough maglev; }
    server { listen 127.0.0.1:$raw udp reuseport; quic_passthrough raw; }
    server { listen 127.0.0.1:$zone udp reuseport; quic_passthrough zone;
             quic_passthrough_cid_zone zone=cids:1m; }

    @{[ $t->counters_server($stats, qw/sent unknown_id unroutable/) ]}
CONF

sub upstream {
    my ($name, $server, $id) = @_;

    return <<"CONF";
    upstream $name {
        server $address{$server};
        quic_lb 0 {
            server_id_length 4;
            nonce_length 7;
            key_file @{[ $t->path('key') ]};
            server_id $id $address{$server};
        }
    }
CONF
}

$t->start();

my $line = qr/\[warn\].*issues connection IDs that do not name it/;


# nothing to say

for (['IDs that name the server', $right], ['a zone', $zone],
     ['"unmapped maglev"', $maglev])
{
    my ($name, $port) = @$_;

    is(connections($port)->{failed}, 0, "connections, $name");
    is($t->log_count($line), 0, 'without a warning');
}

is($t->counters($stats)->{unknown_id}, 0, 'and all IDs are known');


# once for many connections; the second line of a minute would be too much

for (['random IDs', 'plain', $plain], ['another key', 'other', $other]) {
    my ($name, $server, $port) = @$_;
    my $began = time();

    is(connections($port)->{failed}, 0, "connections, $name") for 1 .. 3;

    my $named = qr/$line.*"quic_lb".*"quic_passthrough_cid_zone"/;
    my $lines = $t->log_count($named);
    my $whole = qr/\ server\ "\Q$address{$server}\E"\ in\ upstream\ "$server"
                   \ issues\ connection\ IDs/x;
    my $count = $t->log_count($whole);

    cmp_ok($count, '>', 0, 'a warning names server and upstream');
    cmp_ok($count, '<=', 1 + (time() - $began) / 60, 'once a minute');
    cmp_ok($lines, '>=', $count, 'and what to do');
}

cmp_ok($t->counters($stats)->{unknown_id}, '>', 0,
       'packets with IDs of another key are counted');


# what proves something: a Handshake packet, in whatever place

my $id = "\0" . "\x0e" x 4 . 'nonce77';
my $from_raw = qr/in upstream "raw" issues/;
my ($client, $peer) = opened();

answer($peer, initial('scid', $id));
is($t->log_count($from_raw), 0, 'an Initial of a server proves nothing');

answer($peer, initial('scid', $id), handshake('scid', $id));
is($t->log_count($from_raw), 1, 'a Handshake packet behind it does');

($client, $peer) = opened();
answer($peer, handshake('scid', $id, version => V2));
is($t->log_count($from_raw), 1, 'but not again');


# what is counted: packets of a known flow, and what is dropped

my $unknown = "\0" . "\x0f" x 4 . 'nonce77';
my $known = "\0" . "\x0d" x 4 . 'nonce77';
my $stranger = udp_connect('127.0.0.1', $raw);

for (['a short header, known flow', $client, short($unknown, 'x' x 30), 1],
     ['the same again', $client, short($unknown, 'x' x 30), 1],
     ['a Handshake packet', $client, handshake($unknown, 'scid'), 1],
     ['an Initial', $client, initial($unknown, 'scid'), 0],
     ['of no codepoint', $client, short("\xa0" . 'x' x 30), 0],
     ['of the server', $client, short($known, 'x' x 30), 0],
     ['a short header, dropped', $stranger, short($unknown, 'x' x 30), 1],
     ['of no codepoint, dropped', $stranger, short("\xa0" . 'x' x 30), 0])
{
    my ($name, $from, $datagram, $count) = @$_;
    my $before = $t->counters($stats);
    my $after;

    $from->send($datagram);

    # both are counted last

    $t->wait_for('its end', sub {
        $after = $t->counters($stats);
        return $after->{sent} + $after->{unroutable}
               > $before->{sent} + $before->{unroutable};
    });

    is($after->{unknown_id} - $before->{unknown_id}, $count,
       "$name: counted $count times");
}

$t->done();


sub connections {
    my ($port) = @_;

    return $t->client('--connect', "127.0.0.1:$port", '--connections', 4,
                      'run', 'get:/name');
}


# a client, and the address of its leg

sub opened {
    my $client = udp_connect('127.0.0.1', $raw);

    $client->send(initial('firstdcid', 'scid'));
    udp_receive($backend);

    return ($client, $backend->peername());
}


# returns when the client has it, and so nginx has read it

sub answer {
    my ($to, @packets) = @_;

    $backend->send(join('', @packets), 0, $to);
    udp_receive($client);
}
