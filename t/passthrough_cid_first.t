#!/usr/bin/perl

# quic_passthrough_cid_zone: a connection ID that two servers issue stays with
# the first, else a server could take over the connections of another one.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;

use QuicLB;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;
my @backends = map { udp_bind('127.0.0.1') } 1 .. 2;

my $connections = 0;

$t->conf(stream => <<"CONF");
    quic_passthrough_cid_zone zone=cids:1m;

    upstream two {
        server 127.0.0.1:@{[ $backends[0]->sockport ]};
        server 127.0.0.1:@{[ $backends[1]->sockport ]};
        quic_maglev;
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough two;
    }

    @{[ $t->counters_server($stats, 'learned') ]}
CONF
$t->start();

for my $case ([0, 1, 'one ID, twice'], [1, 0, 'another ID']) {
    my ($first, $second, $id) = @$case;
    my $learned = $t->counters($stats)->{learned};

    issue($first, $id);
    is(asked(short($id, 'before')), $first, "$id: learned");

    issue($second, $id);
    is(asked(short($id, 'behind')), $first, "$id: stays with the first");

    is($t->counters($stats)->{learned}, $learned + 1, "$id: counted once");
}

$t->done();


# the server with this number issues an ID on a connection of its own

sub issue {
    my ($number, $id) = @_;

    for (1 .. 100) {
        my $client = udp_connect('127.0.0.1', $port);
        my $scid = sprintf 'client%02d', ++$connections;

        $client->send(initial(sprintf('first %02d', $connections), $scid));

        my ($ready) = IO::Select->new(@backends)->can_read(30);
        my $from = $ready->recv(my $got, 2048);
        next if $ready != $backends[$number];

        $ready->send(initial($scid, $id), 0, $from);
        is(udp_receive($client), initial($scid, $id),
           "$id: issued by server $number");

        return;
    }

    fail("$id: no connection of server $number");
}


# the number of the server that gets the datagram of a client with a new address

sub asked {
    my ($datagram) = @_;

    udp_connect('127.0.0.1', $port)->send($datagram);

    my ($ready) = IO::Select->new(@backends)->can_read(30) or return undef;
    $ready->recv(my $got, 2048);

    return $got eq $datagram ? ($ready == $backends[0] ? 0 : 1) : undef;
}
