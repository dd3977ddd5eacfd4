#!/usr/bin/perl

# What quic_passthrough may name: upstreams with other balancers, addresses,
# variables, and names to be resolved.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;
use IO::Socket::IP;
use Socket qw/SOCK_DGRAM inet_aton/;

use QuicLB;

my $t = QuicLB->new();
my ($port, $dns_port) = map { $t->port() } 1 .. 2;

my @backends = map { udp('127.0.0.1', 0) } 0 .. 2;
my @ports = map { $_->sockport } @backends;
my @addresses = map { "127.0.0.1:$_" } @ports;
my $dns = udp('127.0.0.1', $dns_port);

$t->conf(stream => <<"CONF");
    log_format route '\$server_addr \$quic_routed_by \$status \$upstream_addr';
    access_log @{[$t->path('access.log')]} route;

    resolver 127.0.0.1:$dns_port ipv6=off;

    upstream rr {
        server $addresses[0];
        server $addresses[1];
    }

    upstream lb {
        server $addresses[2];

        quic_lb 1 {
            server_id_length 1;
            nonce_length 4;
            server_id 2c $addresses[2];
        }
    }

    map \$remote_addr \$to {
        127.0.0.21  rr;
        127.0.0.22  lb;
        127.0.0.23  $addresses[1];
        127.0.0.24  backend.example:$ports[0];
        127.0.0.25  missing.example:1;
        127.0.0.26  nothing;
        127.0.0.27  \$remote_port:;
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough rr;
        quic_passthrough_timeout 2s;
    }

    server {
        listen 127.0.0.2:$port udp;
        quic_passthrough $addresses[2];
        quic_passthrough_timeout 2s;
    }

    server {
        listen 127.0.0.3:$port udp;
        quic_passthrough \$to;
        quic_passthrough_timeout 2s;
    }
CONF

$t->start();


# round robin is asked once for each flow

my $one = client('127.0.0.1');
my $two = client('127.0.0.1');

my $first = served($one, initial('first'));
my $second = served($two, initial('second'));

is($first + $second, 1, 'two flows, two servers');
is(served($one, initial('another')), $first, 'a flow keeps its server');
is(served($one, "\x40" . 'short'), $first, 'for short headers too');
is(served($two, initial('another')), $second, 'and so does the other');

is(served(client('127.0.0.2'), initial('literal')), 2, 'an address');


# variables

my %expected = (21 => 'rr', 22 => 2, 23 => 1, 24 => 0);

for my $host (22, 23) {
    is(served(client('127.0.0.3', "127.0.0.$host"), initial('dcid')),
       $expected{$host}, "a variable, client $host");
}

like(served(client('127.0.0.3', '127.0.0.21'), initial('dcid')), qr/^[01]$/,
     'a variable that names an upstream');

# the connection ID of a server that the variable does not name

is(served(client('127.0.0.3', '127.0.0.23'), "\x40\x20\x2c" . 'nonce'), 2,
   'an established connection goes to its server');


# a name: the datagrams wait for the answer, and go on in order

my $client = client('127.0.0.3', '127.0.0.24');
$client->send(initial('resolve')) for 1 .. 3;
$client->send("\x40" . 'last');

my $got = '';
my $asked = $t->wait_for('a query', sub { answer('127.0.0.1') });
ok($asked, 'the resolver is asked');

for (1 .. 4) {
    last if !IO::Select->new($backends[0])->can_read(5);
    $backends[0]->recv(my $datagram, 2048);
    $got .= $datagram;
}
is($got, initial('resolve') x 3 . "\x40last",
   'datagrams wait for the name and keep their order');

$backends[0]->send('answer') if $got;
IO::Select->new($client)->can_read(5);
$client->recv(my $reply, 100);
is($reply, 'answer', 'and are answered');


# what cannot be: one line, and a client that is not asked about again

for my $case ([25, qr/missing\.example could not be resolved/],
              [26, qr/"quic_passthrough" value "nothing" is neither an/],
              [27, qr/invalid port in "quic_passthrough" value "\d+:"/])
{
    my ($host, $line) = @$case;
    my $client = client('127.0.0.3', "127.0.0.$host");

    $client->send(initial('nowhere')) for 1 .. 3;
    $t->wait_for($line, sub { answer(''); $t->error_log() =~ $line });

    $client->send(initial('nowhere')) for 1 .. 3;
    $t->wait_for('the log', sub {
        $t->read('access.log') =~ /^127\.0\.0\.3 maglev 50[02] -$/m
    });

    my $lines = () = $t->error_log() =~ /$line/g;
    is($lines, 1, "client $host: one line");
}

$t->wait_for('access log', sub {
    my $count = () = $t->read('access.log') =~ /^127\.0\.0\.1 /mg;
    return $count == 2;
}, 15);

my $log = $t->read('access.log');
like($log, qr/^127\.0\.0\.1 address 200 \Q$addresses[$first]\E$/m,
     'later datagrams of a flow follow the first');
like($log, qr/^127\.0\.0\.2 upstream 200 \Q$addresses[2]\E$/m,
     'the first is up to the balancer');

$t->done();


sub udp {
    my ($host, $port) = @_;

    return IO::Socket::IP->new(LocalHost => $host, LocalPort => $port,
                               Type => SOCK_DGRAM) || die "udp: $@";
}


sub client {
    my ($host, $local) = @_;

    return IO::Socket::IP->new(PeerHost => $host, PeerPort => $port,
                               LocalHost => $local, Type => SOCK_DGRAM);
}


# which backend gets the datagram

sub served {
    my ($client, $datagram) = @_;

    $client->send($datagram);

    my ($ready) = IO::Select->new(@backends)->can_read(5) or return 'none';
    $ready->recv(my $got, 2048);

    return $got eq $datagram ? (grep { $backends[$_] == $ready } 0 .. 2)[0]
                             : 'changed';
}


sub initial {
    my ($dcid) = @_;

    # its first three bits name no configuration
    my $payload = "\0" x 1100;

    return "\xc0\0\0\0\1" . pack('C/a C/a', "\xe0$dcid", '') . "\0"
           . pack('n', 0x4000 | length $payload) . $payload;
}


# answers a query, if there is one; without an address: no such name

sub answer {
    my ($address) = @_;

    IO::Select->new($dns)->can_read(0) or return 0;
    my $from = $dns->recv(my $query, 512);

    my $question = substr($query, 12);
    my $answer = substr($query, 0, 2)
                 . pack('n5', $address ? 0x8180 : 0x8183, 1,
                        $address ? 1 : 0, 0, 0)
                 . $question;

    $answer .= pack('n3 N n', 0xc00c, 1, 1, 60, 4) . inet_aton($address)
        if $address;

    $dns->send($answer, 0, $from);

    return 1;
}
