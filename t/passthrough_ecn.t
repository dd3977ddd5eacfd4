#!/usr/bin/perl

# ECN marks are copied both ways, of single datagrams and of trains, on sockets
# of all families; the DSCP is not.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;

use QuicLB;
use QuicLB::Packet qw/initial/;

# RFC 3168, 5 and RFC 3246: the two low bits of the TOS octet are the mark
use constant { MARKS => [1 .. 3], EXPEDITED => 46 << 2 };

# with UDP_GRO read as one
use constant TRAIN => 5;

my $t = QuicLB->new();
my ($v4, $v6, $dual, $cross) = map { $t->port() } 1 .. 4;

my $sockets = $t->helper('ecn', 'python3', '-B', "$FindBin::Bin/lib/ecn.py",
                         '127.0.0.1', '::1');
my @ports = split ' ', ($sockets->wait_line(qr/^ready (.*)$/))[0];

$t->conf(stream => <<"CONF");
    server {
        listen 127.0.0.1:$v4 udp;
        quic_passthrough 127.0.0.1:$ports[0];
    }

    server {
        listen [::1]:$v6 udp;
        quic_passthrough [::1]:$ports[1];
    }

    server {
        listen [::]:$dual udp ipv6only=off;
        quic_passthrough 127.0.0.1:$ports[0];
    }

    server {
        listen $cross udp;
        quic_passthrough [::1]:$ports[1];
    }
CONF

$t->start();

my $packet = unpack 'H*', initial('d' x 8, 'scid');
my ($ipv4, $ipv6) = (0, 1);

for my $case (
    ['IPv4', '127.0.0.1', $v4, $ipv4],
    ['IPv6', '::1', $v6, $ipv6],
    ['a dual-stack listen, IPv4', '127.0.0.1', $dual, $ipv4],
    ['a dual-stack listen, IPv6', '::1', $dual, $ipv4],
    ['a wildcard listen, IPv4 to IPv6', '127.0.0.1', $cross, $ipv6],
)
{
    my ($name, $host, $port, $backend) = @$case;

    command("client $host $port");

    # listening sockets tell the marks from some time after the start on
    $t->wait_for("$name: marks", sub {
        command("ask $packet 1 1");
        return command("seen $backend 1")->[0];
    });

    for my $count (1, TRAIN) {
        my @tos = map { EXPEDITED | $_ } @{ +MARKS };
        my @marks = map { ($_) x $count } @{ +MARKS };
        my $what = $count == 1 ? 'single' : 'trains';

        command("ask $packet $count @tos");
        is_deeply(command("seen $backend " . @marks), \@marks,
                  "$name, $what: marks of the client");

        command("answer $backend $packet $count @tos");
        is_deeply(command('got ' . @marks), \@marks,
                  "$name, $what: marks of the server");
    }

    # of one read, adjacent and of one size, but not to be sent as one
    my @mixed = (0, 1, 1, 2, 3, 0, 2, 2);

    $t->while_stopped(sub { command("ask $packet 1 @mixed") });
    is_deeply(command("seen $backend " . @mixed), \@mixed,
              "$name, mixed: marks of the client");

    $t->while_stopped(sub { command("answer $backend $packet 1 @mixed") });
    is_deeply(command('got ' . @mixed), \@mixed,
              "$name, mixed: marks of the server");
}

$t->done();


sub command {
    my ($line) = @_;

    $sockets->say($line);
    my ($answer) = $sockets->wait_line(qr/^(.*)$/)
        or die "no answer to $line\n" . $sockets->stderr();

    return JSON::PP->new->allow_nonref->decode($answer);
}
