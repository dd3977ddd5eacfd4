#!/usr/bin/perl

# Connections that share a client's address, of servers without QUIC-LB: each is
# known by the pair of its IDs, and stays with its server however many others,
# forged or not, begin.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;

use QuicLB;
use QuicLB::Packet qw/initial handshake/;
use QuicLB::Udp;

use constant SERVERS => 5;

# docs: pairs of connection IDs of a flow, two of a handshake, and of one that
# has proven connections, which have three quarters of them
use constant { PAIRS => 32, PAIRS_MAX => 256 };

my $t = QuicLB->new();
my ($port, $stock) = map { $t->port() } 1 .. 2;

my @backends = map { udp_bind('127.0.0.1') } 1 .. SERVERS;
my $lines = join "\n", map { 'server 127.0.0.1:' . $_->sockport . ';' }
                           @backends;

$t->conf(stream => <<"CONF");
    upstream maglev {
        $lines
        quic_maglev;
    }

    upstream stock {
        $lines
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough maglev;
    }

    server {
        listen 127.0.0.1:$stock udp;
        quic_passthrough stock;
    }
CONF
$t->start();

my $client;


# one ID of the client for several connections

$client = udp_connect('127.0.0.1', $port);
my (%dcids, %used);

for my $n (1 .. 20) {
    my $server = served(initial("first $n", 'the same'));
    $dcids{"first $n"} = $server;
    $used{$server}++;
}

cmp_ok(scalar(keys %used), '>', 1, 'equal client IDs: several servers');
is_deeply({ map { ($_ => scalar served(initial($_, 'the same'))) }
                keys %dcids }, \%dcids,
          'equal client IDs: each connection stays');


# a server that is silent keeps no new connection of the address

$client = udp_connect('127.0.0.1', $stock);
my $silent = served(initial('silent 1', 'client'));

is(served(initial('silent 1', 'client')), $silent,
   'silent server: the connection stays');
isnt(served(initial('silent 2', 'client')), $silent,
     'silent server: a new one goes elsewhere');

$client = udp_connect('127.0.0.1', $stock);
my $lively = connection(0);
is(served(initial('another', 'client')), $lively,
   'a server that answers has the new one, too');


# a server without connection IDs, and a client without

$client = udp_connect('127.0.0.1', $port);

for my $ids (['', 'client'], ['server 1', '']) {
    my ($scid, $dcid) = @$ids;
    my ($server, $from) = served(initial("first $scid", $dcid));

    $backends[$server]->send(initial($dcid, $scid), 0, $from);
    ok(defined udp_receive($client), "no ID, '$scid' '$dcid': an answer");

    served(initial("other $_", "other $_")) for 1 .. 10;
    is(served(initial($scid, $dcid)), $server,
       "no ID, '$scid' '$dcid': the connection stays");
}


# forged Initials, more than there is room for

$client = udp_connect('127.0.0.1', $port);

my $server = connection(1);
is(served(continuation(1)), $server, 'forged Initials: a handshake');

served(initial("forged $_", "forged $_")) for 1 .. 2 * PAIRS_MAX;
isnt(last_server(), $server, 'forged Initials: the last is elsewhere')
    or diag('of all servers');
is(served(continuation(1)), $server, 'forged Initials: the handshake goes on');


# handshakes of many connections, as those of another balancer's pool

$client = udp_connect('127.0.0.1', $port);

my $many = PAIRS_MAX / 4;
my @servers = map { connection($_) } 0 .. $many - 1;
my @last = map { scalar served(continuation($_)) } reverse 0 .. $many - 1;
my $lost = grep { $last[$many - 1 - $_] != $servers[$_] } 0 .. $many - 1;

# nothing is proven before the first one goes on
cmp_ok($lost, '<=', $many - PAIRS / 2, 'handshakes at once: few are lost');

$client = udp_connect('127.0.0.1', $port);
@servers = ();

for my $n (0 .. 3 * $many - 1) {
    push @servers, connection($n);
    served(continuation($n));
}

@last = map { scalar served(continuation($_)) } 0 .. 3 * $many - 1;
is_deeply(\@last, \@servers, 'handshakes one after the other: none is lost');

# all the room of those that are proven is in use, and others still begin
$server = connection(3 * $many);
is(served(continuation(3 * $many)), $server, 'proven ones leave room');

@last = map { scalar served(continuation($_)) } 1 .. 3 * $many - 1;
is_deeply(\@last, [@servers[1 .. 3 * $many - 1]],
          'the one that was not used for the longest time makes it');

$t->done();


# the number of the server that gets the client's datagram, and its address as
# this server sees it

my $last_server;

sub served {
    my ($datagram) = @_;

    $client->send($datagram);

    my ($ready) = IO::Select->new(@backends)->can_read(30) or return;
    my $from = $ready->recv(my $got, 2048);
    return if $got ne $datagram;

    ($last_server) = grep { $backends[$_] == $ready } 0 .. $#backends;

    return wantarray ? ($last_server, $from) : $last_server;
}


sub last_server {
    my $n = 0;

    # the one that a packet of the address alone would go to
    while ($last_server == $server && $n++ < 100) {
        served(initial("forged again $n", "forged again $n"));
    }

    return $last_server;
}


# begins the connection with this number; the server that answers

sub connection {
    my ($number) = @_;
    my ($server, $from) = served(initial("first $number", "client $number"));
    my $answer = initial("client $number", "server $number");

    $backends[$server]->send($answer, 0, $from);

    return (udp_receive($client) // '') eq $answer ? $server : undef;
}


sub continuation {
    my ($number) = @_;

    return handshake("server $number", "client $number");
}
