#!/usr/bin/env perl

# "quic_lb" where "resolve" makes and replaces the servers at run time: before
# the first answer of DNS, after it, and at each change.

use strict;
use warnings;

use FindBin;
use IO::Select;
use IO::Socket::INET;
use Socket;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();

# the servers and the DNS server are sockets of this test; all servers have one
# port, since a name has one

my ($dns_port, $port, $listen) = map { $t->port() } 1 .. 3;
my %host = map { +"127.0.0.1$_" => 1 } 1 .. 5;
my %socket = map { $_ => udp($_, $port) } keys %host;
my $dns = udp('127.0.0.1', $dns_port);
my (@answer, %asked);       # the addresses; queries by their sender

my ($ok, $output) = $t->test_conf(stream => <<"EOF");
upstream u {
    zone u 256k;
    resolver 127.0.0.1:$dns_port;
    server quic.example:$port resolve;
}
server { listen 127.0.0.1:$listen udp; proxy_pass u; }
EOF

if (!$ok && $output =~ /"resolver" directive is not allowed here/) {
    $t->cleanup();
    $t->{checked} = 1;
    plan(skip_all => 'this nginx has no "resolve"');
}

$t->conf(stream => <<"EOF");
upstream u {
    zone u 256k;
    resolver 127.0.0.1:$dns_port valid=1s ipv6=off;
    resolver_timeout 1s;
    server quic.example:$port resolve;

    quic_lb 0 {
        server_id_length 3;
        nonce_length 4;
        server_id 000001 127.0.0.11:$port;
        server_id 000005 127.0.0.15:$port;
    }
}
upstream tiny {
    zone tiny 256k;
    resolver 127.0.0.1:$dns_port valid=1s ipv6=off;
    server quic.example:$port resolve;
    quic_maglev size=2;
}
server {
    listen 127.0.0.1:$listen udp;
    proxy_pass u;
    proxy_responses 1;
    proxy_timeout 10s;
}
server {
    listen 127.0.0.2:$listen udp;
    proxy_pass tiny;
    proxy_responses 1;
    proxy_timeout 10s;
}
EOF

$t->start();

my @cids = map { sprintf 'a0%08x%06x', $_ * 0x9e3779b1 & 0xffffffff, $_ }
               1 .. 40;


# the name has no address: a server ID needs none

is(served(short('00000001aabbccdd')), '127.0.0.11', 'before DNS, by server ID');
is(unserved(long($cids[0])), 1, 'before DNS, by Maglev');


# the first answer

resolved(qw/127.0.0.11 127.0.0.12/);

my %first = map { $_ => served(long($_)) } @cids;

is_deeply([spread(\%first)], [qw/127.0.0.11 127.0.0.12/], 'both servers');
is(served(short('00000001aabbccdd')), '127.0.0.11', 'server ID of a peer');
is(served(short('00000005aabbccdd')), '127.0.0.15', 'server ID of no peer');


# one more: some keys move to it, no other moves

resolved(qw/127.0.0.13 127.0.0.11 127.0.0.12/);

my %second = map { $_ => served(long($_)) } @cids;
my %new = map { $second{$_} => 1 } grep { $second{$_} ne $first{$_} } @cids;

is_deeply([keys %new], ['127.0.0.13'], 'added');


# all others, likely in the memory of the former ones

for my $round (1, 2) {
    resolved(qw/127.0.0.14 127.0.0.15/);

    is_deeply([spread({ map { $_ => served(long($_)) } @cids })],
              [qw/127.0.0.14 127.0.0.15/], "replaced, round $round");
    is(served(short('00000001aabbccdd')), '127.0.0.11',
       "server ID of a former peer, round $round");
    is(served(short('00000005aabbccdd')), '127.0.0.15',
       "server ID of a new peer, round $round");

    resolved(qw/127.0.0.11 127.0.0.12/);

    is_deeply({ map { $_ => served(long($_)) } @cids }, \%first,
              "as in the beginning, round $round");
}


# more servers than slots: still served, and said once for each change

resolved(map { "127.0.0.1$_" } 1 .. 5);

is_deeply([spread({ map { $_ => served(long($_), '127.0.0.2') } @cids })],
          [map { "127.0.0.1$_" } 1 .. 5], 'more servers than slots');

my @said = $t->error_log() =~ /("quic_maglev" size 2 is less than the 5 .*)/g;
is(@said, 1, 'more servers than slots: in the log') or diag(explain(\@said));


# no server at all

resolved();

is(unserved(long($cids[0])), 1, 'no servers, by Maglev');
is(served(short('00000001aabbccdd')), '127.0.0.11', 'no servers, by server ID');

$t->done();


# datagrams

sub short {
    my ($dcid) = @_;

    return chr(0x41) . pack('H*', $dcid) . "\xee" x 30;
}


sub long {
    my ($dcid) = @_;

    return pack('CNC/aC/aCn', 0xc0, 1, pack('H*', $dcid), "\1\2\3\4", 0,
                0x4000 | 60) . "\xdd" x 60;
}


# sockets

sub udp {
    my ($host, $port) = @_;

    return IO::Socket::INET->new(LocalAddr => "$host:$port", Proto => 'udp')
           // die "udp $host:$port: $@";
}


# sessions; DNS is served while they wait

sub served {
    my ($datagram, $to) = @_;
    my $client = udp('127.0.0.1', 0);

    $client->send($datagram, 0,
                  pack_sockaddr_in($listen, inet_aton($to // '127.0.0.1')));

    my $server = $t->wait_for('server', \&arrived) || return 'none';

    $socket{$server}->send($server);
    IO::Select->new($client)->can_read(30) or return 'no answer';
    $client->recv(my $answer, 100);

    return $answer;
}


sub arrived {
    serve_dns();

    for my $server (sort keys %socket) {
        IO::Select->new($socket{$server})->can_read(0) or next;
        $socket{$server}->recv(my $data, 65536);
        return $server;
    }

    return 0;
}


sub unserved {
    my ($datagram) = @_;
    my $count = failures();
    my $client = udp('127.0.0.1', 0);

    $client->send($datagram, 0,
                  pack_sockaddr_in($listen, inet_aton('127.0.0.1')));

    return $t->wait_for('no live upstreams', sub {
        serve_dns();
        return failures() == $count + 1;
    });
}


sub failures {
    return scalar(() = $t->error_log() =~ /no live upstreams/g);
}


sub spread {
    my ($server) = @_;
    my %seen = map { $_ => 1 } values %$server;

    return sort keys %seen;
}


# DNS

# changes the answer and waits until both upstreams have taken it: until the
# resolver of each has asked once more

sub resolved {
    @answer = @_;
    %asked = ();

    $t->wait_for('resolved', sub {
        serve_dns();
        return 2 == grep { $_ > 1 } values %asked;
    });
}


sub serve_dns {
    while (IO::Select->new($dns)->can_read(0)) {
        my $from = $dns->recv(my $query, 512) // last;
        my $answer = substr($query, 0, 2)
            . pack('n5', @answer ? 0x8180 : 0x8183, 1, scalar @answer, 0, 0)
            . substr($query, 12);

        $answer .= pack('nnnNna4', 0xc00c, 1, 1, 1, 4, inet_aton($_))
            for @answer;

        $dns->send($answer, 0, $from);
        $asked{$from}++;
    }
}
