#!/usr/bin/perl

# Connection IDs that servers without QUIC-LB issue inside of a connection, and
# that are learned when clients change to them, or by what all IDs of a server
# begin with, as those of nginx do.

use strict;
use warnings;

use IO::Select;
use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/handshake initial short/;
use QuicLB::Udp;

# enough for three of each server
use constant CONNECTIONS => 40;

# of one client, learned at a time
use constant CHANGES => 8;

# octets of a download of "hold"
use constant TICK => 2000;

my $backends = QuicLB->new();
my $t = QuicLB->new();

my ($port, $other_port, $counters_port) = map { $t->port() } 1 .. 3;
my %ports = map { $_ => $t->port() } qw/one two three/;

my ($cert, $key) = $backends->certificate();

mkdir $backends->path('bytes');
$backends->write('bytes/' . TICK, pattern());

$backends->conf(http => join "\n", <<"CONF", map { <<"SERVER" } keys %ports);
    ssl_certificate $cert;
    ssl_certificate_key $key;
    access_log off;
    keepalive_requests 100000;
    quic_active_connection_id_limit 8;
    root @{[$backends->path('')]};
CONF
    server {
        listen 127.0.0.1:$ports{$_} quic;
        add_header server-name $_;
        location /name { return 200 "$_\\n"; }
    }
SERVER

$backends->start();


# servers with random IDs: each change is learned when the server answers

my $random = $t->servers([map { [$_, '127.0.0.1:0', '-'] } qw/r1 r2 r3/],
                         '--random-length', 12);

sub conf {
    my @servers = @_;

    $t->conf(workers => 2, stream => <<"CONF");
        log_format by '\$quic_routed_by \$upstream_addr';

        upstream h3 {
            @{[map { "server $_;" } @servers]}
            quic_maglev;
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            access_log @{[$t->path('access.log')]} by;
            quic_passthrough h3;
            quic_passthrough_timeout 60s;
            quic_passthrough_cid_zone zone=cids:1m;
        }

        @{[$t->counters_server($counters_port, qw/learned unroutable/)]}
CONF
}

conf(map { $random->address($_) } qw/r1 r2 r3/);
$t->start();

for my $step ('rebind', 'reload') {
    my $client = start('--connections', 3);

    $client->command('change');
    move($client, $step);
    is($client->command('progress 2')->{failed}, 0,
       "an ID changed right after the handshake: $step");

    $client->command('change');
    $client->command('change');
    move($client, $step);
    $client->command('progress 2');

    my $report = $client->stop_and_report();
    is($report->{failed}, 0, 'and two times more: none lost')
        or $t->explain($report);
}

is($t->routes($random)->{misrouted_count}, 0,
   'no packet has met another server');
$t->stop();


# nginx: also an ID that comes from a new address at once

conf(map { "127.0.0.1:$_" } sort values %ports);
$t->start();

my $client = start('--connections', CONNECTIONS);

$client->command('migrate');
is($client->command('progress 2')->{failed}, 0,
   'nginx: a new ID at a new address');

$client->command('change');
move($client, 'reload');
is($client->command('progress 2')->{failed}, 0, 'another, and a reload');

$client->command('rebind');
my $report = $client->stop_and_report();
is($report->{failed}, 0, 'none was lost') or $t->explain($report);

$t->stop();
cmp_ok($t->access_count(qr/^cid /), '>', CONNECTIONS, 'routed by "cid"');


# what servers say, datagram by datagram

my ($one, $two) = map { udp_bind('127.0.0.1') } 1 .. 2;

sub raw {
    $t->conf(stream => <<"CONF");
        quic_passthrough_cid_zone zone=cids:1m timeout=1h;

        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough 127.0.0.1:@{[$one->sockport]};
        }

        server {
            listen 127.0.0.1:$other_port udp;
            quic_passthrough 127.0.0.1:@{[$two->sockport]};
        }

        @{[$t->counters_server($counters_port, qw/learned unroutable/)]}
CONF
    $t->start();
}

raw();

my $mover = connection($port, $one, 'server01');

change($mover, $one, 'changed1');
ok(!routes('changed1'), 'not learned before the server answers');
answer($mover, $one);
ok(routes('changed1'), 'learned when it does');
ok(!routes('changedx'), 'and no other');

# a flow that nobody has yet answered: its address may be forged

my $forger = udp_connect('127.0.0.1', $port);

change($forger, $one, $_) for qw/server01 forged-1/;
answer($forger, $one);
ok(!routes('forged-1'), 'not learned of a half-open flow');

# the ID of another server's connection, of which both have seen nothing yet

my $thief = connection($other_port, $two, 'server02');

change($thief, $two, 'contests');
connection($port, $one, 'contests');
answer($thief, $two);
ok(routes('contests'), 'an ID that another server has issued stays with it');

# one client only pushes out its own

for my $n (1 .. CHANGES + 1) {
    change($mover, $one, "change-$n");
    answer($mover, $one);
}

ok(!routes('change-1'), CHANGES . ' IDs of a client, the oldest goes');
ok(routes('change-2'), 'not the next one');
ok(routes('change-' . (CHANGES + 1)), 'nor the last one');
ok(routes('server01'), 'nor what was issued in the handshake');

# what the IDs of a server begin with

connection($port, $one, "prefix-1$_") for qw/aaaa bbbb/;
ok(!routes('prefix-1zzzz'), 'two IDs with a common beginning name nobody');
connection($port, $one, 'prefix-1cccc');
ok(routes('prefix-1zzzz'), 'three do');

my $learned = counter('learned');
routes("prefix-1$_") for 'aaaz' .. 'aabz';
is(counter('learned'), $learned, 'IDs that are only claimed are not learned');

ok(!routes('prefix-1', 'zz'), 'a datagram that is too short for the ID');
ok(!routes('prefix-2zzzz'), 'another beginning');

connection($other_port, $two, 'prefix-1dddd');
ok(!routes('prefix-1zzzz'), 'another server has it, too: it names nobody');
ok(routes('prefix-1aaaa'), 'but IDs that are known do');

connection($port, $one, "prefix-1$_") for qw/eeee ffff gggg/;
ok(!routes('prefix-1zzzz'), 'whatever comes later');

# a client that makes a server repeat what it has chosen

my $liar = udp_connect('127.0.0.1', $other_port);

exchange($liar, $two, initial($_, 'clntscid')) for qw/chosenid anything/;
$two->send(initial('clntscid', 'chosenid'));
defined udp_receive($liar) or die 'nothing reaches the client';
ok(!routes('chosenid', undef, $other_port, $two),
   "not learned: the client's choice");

$t->stop();

$backends->check();
$t->done();


sub start {
    my $client = $t->client_start('--connect', "127.0.0.1:$port",
                                  '--interval', '0.5', '--timeout', 30,
                                  @_, 'hold');
    is($client->ready()->{failed}, 0, 'connected');

    return $client;
}


sub move {
    my ($client, $step) = @_;

    if ($step eq 'reload') {
        ok($t->reload(), 'reload');

    } else {
        $client->command($step);
    }
}


# what quic_net.py calls the pattern

sub pattern {
    my $code = 'import sys; from quic_net import pattern; '
               . 'sys.stdout.buffer.write(pattern(0, ' . TICK . '))';

    $t->run('pattern', 'env', "PYTHONPATH=$FindBin::Bin/lib", 'python3', '-B',
            '-c', $code) == 0
        or die 'pattern: ' . $t->read('pattern.err');

    return $t->read('pattern.out');
}


# a client with a connection, whose server has issued $cid

my $made = 0;

sub connection {
    my ($to, $server, $cid) = @_;

    my $socket = udp_connect('127.0.0.1', $to);

    exchange($socket, $server, initial(sprintf('dcid%04d', ++$made),
                                       'clntscid'),
             initial('clntscid', $cid));
    exchange($socket, $server, handshake($cid, 'clntscid'),
             handshake('clntscid', $cid), short('clntscid', 'x' x 40));

    return $socket;
}


sub exchange {
    my ($socket, $server, $data, @answers) = @_;

    $socket->send($data);
    defined udp_receive($server) or die 'nothing reaches the server';

    for my $answer (@answers) {
        $server->send($answer);
        defined udp_receive($socket) or die 'nothing reaches the client';
    }
}


# the server of the handshake gets the first packet with another ID

sub change {
    my ($socket, $server, $cid) = @_;

    $socket->send(short($cid, 'x' x 40));
    defined udp_receive($server) or die 'nothing reaches the server';
}


sub answer {
    my ($socket, $server) = @_;

    $server->send(short('clntscid', 'x' x 40));
    defined udp_receive($socket) or die 'nothing reaches the client';
}


# whether a short header with that ID reaches server one from a new address

sub routes {
    my ($cid, $payload, $to, $server) = @_;

    $server //= $one;

    my $socket = udp_connect('127.0.0.1', $to // $port);
    my $dropped = counter('unroutable');

    $socket->send(short($cid, $payload // 'x' x 40));
    $t->wait_for('a decision', sub {
        counter('unroutable') > $dropped
        || IO::Select->new($one, $two)->can_read(0);
    });

    return defined udp_receive($server, 0);
}


sub counter {
    my ($name) = @_;

    return $t->counters($counters_port)->{$name};
}
