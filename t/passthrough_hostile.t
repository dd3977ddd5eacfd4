#!/usr/bin/perl

# Faults that an attacker, or a configuration no one thought of, brought to
# light: each case is the one that showed it.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;

use QuicLB;
use QuicLB::Udp;

use constant FLOWS => 50;

my $t = QuicLB->new();
my ($port, $dns_port, $moving) = map { $t->port() } 1 .. 3;

my @backends = map { udp_bind('127.0.0.1') } 0 .. 1;
my @addresses = map { '127.0.0.1:' . $_->sockport } @backends;

# a name server that never answers
my $dns = udp_bind('127.0.0.1', $dns_port);

my ($id_a, $id_b) = ("\x08\x0a" . 'nonce77', "\x28\x0b" . 'nonce77');

sub conf {
    my ($listen) = @_;

    $t->conf(main => 'worker_shutdown_timeout 1s;', stream => <<"CONF");
        log_format route '\$server_addr \$remote_port \$seen \$upstream_addr';
        access_log @{[$t->path('access.log')]} route;

        resolver 127.0.0.1:$dns_port ipv6=off;
        resolver_timeout 2s;

        limit_conn_zone \$binary_remote_addr zone=flows:1m;

        map \$remote_port \$seen {
            ~^(?<captured>.*)\$  "from-\$captured";
        }

        map \$remote_addr \$nowhere {
            default  nowhere.example:443;
        }

        upstream hashed {
            hash \$seen;
            server $addresses[0];
            server $addresses[1];
        }

        upstream a {
            server $addresses[0] max_fails=0;

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                server_id 0a $addresses[0];
                server_id 0e 192.0.2.1:443;
            }

            server 192.0.2.1:443 down;
        }

        upstream b {
            server $addresses[1];

            quic_lb 1 {
                server_id_length 1;
                nonce_length 7;
                server_id 0b $addresses[1];
            }

            server 192.0.2.1:443 down;
        }

        upstream both {
            server $addresses[0];
            server $addresses[1];
            quic_maglev;
        }

        quic_passthrough_timeout 1s;

        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough hashed;
        }

        server {
            listen 127.0.0.2:$port udp;
            quic_passthrough \$nowhere;
        }

        server {
            listen 127.0.0.3:$port udp;
            limit_conn flows 1;
            quic_passthrough a;
        }

        server {
            listen 127.0.0.4:$port udp;
            listen 127.0.0.5:$port udp;
            quic_passthrough b;
        }

        server {
            listen 127.0.0.4:$port udp;
            server_name other.example;
            quic_passthrough a;
        }

        server {
            listen 127.0.0.6:$port udp;
            quic_passthrough b;
            quic_passthrough_timeout 30s;
        }

        server {
            listen 127.0.0.7:$port udp;
            quic_passthrough both;
        }

        server {
            listen 127.0.0.6:$port udp;
            server_name other.example;
            quic_passthrough a;
        }

        server {
            listen $listen:$moving udp;
            quic_passthrough a;
            quic_passthrough_timeout 30s;
        }
CONF
}

conf('127.0.0.1');
$t->start();


# what a balancer evaluates is the session's, and outlives a leg

my $client = client('127.0.0.1');
my $from = $client->sockport;

$client->send(initial('hashed00'));
$t->wait_for('the log line', sub { $t->read('access.log') =~ /127\.0\.0\.1 / });
like($t->read('access.log'), qr/^127\.0\.0\.1 $from from-$from 127/m,
     'a variable of "hash" is intact in the log');


# Initials of one client that a server ignores do not take it from everybody
# else, though there is another server to go to

clear();
client('127.0.0.7')->send(initial('ignored0'));
my ($ignoring) = grep { defined ask($_, 0) }
                 IO::Select->new(@backends)->can_read(30);
ok(defined $ignoring, 'an Initial that a server ignores');

for my $n (1 .. 3) {
    $t->wait_for('its flow to end', sub {
        $t->access_count(qr/^127\.0\.0\.7 /) == $n
    });
    client('127.0.0.7')->send(initial('ignored0'));
    ok(defined ask($ignoring), 'the next one goes there nevertheless');
}


# limit_conn

clear();
my $first = client('127.0.0.3');
$first->send(initial('limited0'));
ok(received(0), 'the first connection is in the limit');

for my $case (
    ['an Initial behind a Handshake packet',
     handshake($id_a) . initial($id_a)],
    ['an Initial of another version', initial($id_a, "\xff\0\0\x1d")],
)
{
    my ($name, $datagram) = @$case;

    $first->send(initial('limited0'));
    ok(received(0), "$name: the first one goes on");

    $client = client('127.0.0.3');
    $client->send("\x40$id_a" . 'established');
    ok(received(0), "$name: a packet of an established connection before it");

    $client->send($datagram);
    ok(!received(0, 0.5), "$name is not");
}


# servers that an address does not lead to

clear();
client('127.0.0.5')->send("\x40$id_a" . 'elsewhere');
ok(!received(0, 0.5), 'a server ID of an upstream of another address');


# a stateless reset that somebody who forges the address has asked a server for

my $random = "\x40\xe0" . 'random' . 'x' x 30;

clear();
$client = client('127.0.0.6');
$client->send(initial('begins00'));
answer(1, "\x40" . 'scid' . 'x' x 30);
$client->send($random);
ok(received(1), 'a connection whose IDs name no server');

$client->send("\x40$id_a" . 'forged');
answer(0, "\x40" . 'reset' . 'x' x 30);
$client->send($random);
ok(received(1), "and stays when another server resets a forged packet");


# a log line for each datagram to a server that cannot be reached

my $before = lines();
for (1 .. FLOWS) {
    client('127.0.0.4')->send("\x40\x08\x0e" . 'nonce77' . 'x' x 30);
}
client('127.0.0.4')->send("\x40$id_a" . 'after');
ok(received(0), 'datagrams pass after those to an unreachable server');
cmp_ok(lines() - $before, '<', 10, 'which are not logged one by one');


# UNIX domain sockets

my ($ok) = $t->test_conf(stream => <<"CONF");
    server {
        listen unix:@{[$t->path('listen.sock')]} udp;
        quic_passthrough $addresses[0];
    }
CONF
ok(!$ok, 'a listen on a UNIX domain socket');

($ok) = $t->test_conf(stream => <<"CONF");
    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough unix:@{[$t->path('backend.sock')]};
    }
CONF
ok(!$ok, 'a UNIX domain socket as the address');


# the deadline of a quitting worker while a name is being resolved, and a
# listen that becomes a wildcard while a connection keeps the old one open

client('127.0.0.2')->send(initial('resolve0'));
ok(defined ask($dns), 'the name server is asked');

conf('*');
ok($t->reload(), 'reload');

clear();
client('127.0.0.1', $moving)->send(initial('moved000'));
ok(received(0), 'new connections reach the new listen at once');

$t->wait_for('the old worker to leave', sub { $t->leaving_workers() == 0 });
is(join("\n", $t->error_log() =~ /.*exited (?:on signal|with code [^0]).*/g),
   '', 'no worker dies of it');

$t->done();


sub client {
    my ($host, $to) = @_;

    return udp_connect($host, $to // $port);
}


# whether the backend gets a datagram, which it does not answer

sub received {
    my ($n, $seconds) = @_;

    return defined ask($backends[$n], $seconds);
}


sub ask {
    my ($socket, $seconds) = @_;

    IO::Select->new($socket)->can_read($seconds // 30) or return undef;
    $socket->recv(my $datagram, 65536);

    return $datagram;
}


# and one that it does

sub answer {
    my ($n, $datagram) = @_;

    IO::Select->new($backends[$n])->can_read(5) or return;
    my $from = $backends[$n]->recv(my $got, 65536);

    $backends[$n]->send($datagram, 0, $from);
    ask($client);
}


sub clear {
    for my $n (0, 1) {
        1 while received($n, 0);
    }
}


sub lines {
    return scalar(() = $t->error_log() =~ /\[(?:warn|error|crit|alert)\]/g);
}


sub initial {
    my ($dcid, $version) = @_;

    return "\xc0" . ($version // "\0\0\0\1") . pack('C/a C/a', $dcid, 'scid')
           . "\0\x40\x64" . 'x' x 100;
}


sub handshake {
    my ($dcid) = @_;

    return "\xe0\0\0\0\1" . pack('C/a C/a', $dcid, 'scid') . "\x40\x64"
           . 'x' x 100;
}
