#!/usr/bin/perl

# quic_health_check where "resolve" makes the servers: one that comes is asked,
# one that goes is not any more.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Socket::INET;

use QuicLB;
use QuicLB::Dns;
use QuicLB::Udp;

my $t = QuicLB->new();
my ($port, $dns_port, $stats) = map { $t->port() } 1 .. 3;
my $servers = $t->servers([['alive', '127.0.0.11:0', '-']]);
my ($number) = $servers->address('alive') =~ /:(\d+)$/;
my $dns = udp_bind('127.0.0.1', $dns_port);

sub text {
    my ($check) = @_;

    return <<"CONF";
        upstream h3 {
            zone h3 1m;
            resolver 127.0.0.1:$dns_port valid=1s ipv6=off;
            resolver_timeout 1s;
            server quic.example:$number resolve max_fails=0;
            quic_maglev;
            $check
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            quic_passthrough h3;
        }

        server {
            listen 127.0.0.1:$stats;
            return \$quic_health_h3;
        }
CONF
}

my ($ok, $output) = $t->test_conf(stream => text(''));

if (!$ok && $output =~ /"resolver" directive is not allowed here/) {
    $t->cleanup();
    $t->{checked} = 1;
    plan(skip_all => 'this nginx has no "resolve"');
}

sub health {
    my $socket = IO::Socket::INET->new("127.0.0.1:$stats") or return '';

    return join '', <$socket>;
}

sub becomes {
    my ($address, $want, $what) = @_;

    my $line = "$address:$number $want\n";

    ok($t->wait_for($what, sub {
        1 while dns_answer($dns, $address);
        return health() eq $line;
    }), $what) or diag(health());
}

$t->conf(workers => 2,
         stream => text('quic_health_check interval=200ms fails=2 passes=1;'));
$t->start();

# nobody is at the second address, and somebody is no more at the third

becomes('127.0.0.11', 'alive', 'a server');
becomes('127.0.0.12', 'closed', 'another in its place, without a port');
becomes('127.0.0.11', 'alive', 'the first one again');

my $client = $t->client_start('--connect', "127.0.0.1:$port", '--timeout', 30,
                              '--connections', 4, 'hold');
$client->ready();

$servers->command('pause', 'alive');
becomes('127.0.0.11', 'silent', 'it says nothing any more');

$servers->command('resume', 'alive');
becomes('127.0.0.11', 'alive', 'and again');

is($client->command('progress 2')->{failed}, 0,
   'its connections live through it');
is($client->stop_and_report()->{failed}, 0, 'to the end');

$t->done();
