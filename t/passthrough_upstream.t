#!/usr/bin/perl

# What quic_passthrough may name: upstreams with other balancers, addresses,
# variables, and names to be resolved.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;

use QuicLB;
use QuicLB::Dns;
use QuicLB::Packet ();
use QuicLB::Udp;

use constant { CLIENTS => 200, BURST => 20 };

my $t = QuicLB->new();
my ($port, $dns_port) = map { $t->port() } 1 .. 2;

my @backends = map { udp_bind('127.0.0.1') } 0 .. 2;
my @ports = map { $_->sockport } @backends;
my @addresses = map { "127.0.0.1:$_" } @ports;
my $dns = udp_bind('127.0.0.1', $dns_port);

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
        quic_passthrough_timeout 5s;
    }

    server {
        listen 127.0.0.2:$port udp;
        quic_passthrough $addresses[2];
        quic_passthrough_timeout 5s;
    }

    server {
        listen 127.0.0.3:$port udp;
        quic_passthrough \$to;
        quic_passthrough_timeout 5s;
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
is(served($one, QuicLB::Packet::short('short')), $first,
   'for short headers too');
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

is(served(client('127.0.0.3', '127.0.0.23'),
          QuicLB::Packet::short("\x20\x2cnonc", 'payload')), 2,
   'an established connection goes to its server');


# a name: the datagrams wait for the answer, and go on in order

my $client = client('127.0.0.3', '127.0.0.24');
$client->send(initial('resolve')) for 1 .. 3;
$client->send(QuicLB::Packet::short('last'));

my $asked = $t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') });
ok($asked, 'the resolver is asked');

my @got = map { unpack 'H*', udp_receive($backends[0]) // '' } 1 .. 4;
my @sent = ((initial('resolve')) x 3, QuicLB::Packet::short('last'));
is_deeply(\@got, [map { unpack 'H*', $_ } @sent],
          'datagrams wait for the name and keep their order');

$backends[0]->send('answer');
is(udp_receive($client), 'answer', 'and are answered');


# what cannot be: one line, and a client that is not asked about again

for my $case ([25, qr/missing\.example could not be resolved/],
              [26, qr/"quic_passthrough" value "nothing" is neither an/],
              [27, qr/invalid port in "quic_passthrough" value "\d+:"/])
{
    my ($host, $line) = @$case;
    my $client = client('127.0.0.3', "127.0.0.$host");

    $client->send(initial('nowhere')) for 1 .. 3;
    $t->wait_for($line, sub { dns_answer($dns); $t->error_log() =~ $line });

    $client->send(initial('nowhere')) for 1 .. 3;
    $t->wait_for('the log', sub {
        $t->read('access.log') =~ /^127\.0\.0\.3 maglev 50[02] -$/m
    });

    is($t->log_count($line), 1, "client $host: one line");
}

# and many clients cannot fill the log

{
    my $line = qr/"quic_passthrough" value "nothing" is neither an/;
    my $failed = qr/^127\.0\.0\.3 \S+ 50[02] /;
    my ($lines, $sessions) = ($t->log_count($line), $t->access_count($failed));
    my ($start, @kept) = time();

    # not more at once than a socket holds; each has a port of its own, as one
    # that has failed is not asked about again
    my @clients = map { client('127.0.0.3', '127.0.0.26') } 1 .. CLIENTS;

    while (my @some = splice @clients, 0, BURST) {
        $_->send(initial('nowhere')) for @some;
        push @kept, @some;

        $sessions += BURST;
        $t->wait_for('all clients',
                     sub { $t->access_count($failed) >= $sessions });
    }

    # eight a second, of the seconds that this has taken
    cmp_ok($t->log_count($line) - $lines, '<=', 8 * (time() - $start + 2),
           'many clients: few lines');
}

$t->wait_for('access log', sub {
    $t->access_count(qr/^127\.0\.0\.[12] /) == 3
});

my $log = $t->read('access.log');
like($log, qr/^127\.0\.0\.1 address 200 \Q$addresses[$first]\E$/m,
     'later datagrams of a flow follow the first');
like($log, qr/^127\.0\.0\.2 upstream 200 \Q$addresses[2]\E$/m,
     'the first is up to the balancer');

$t->done();


sub client {
    my ($host, $local) = @_;

    return udp_connect($host, $port, $local);
}


# which backend gets the datagram

sub served {
    my ($client, $datagram) = @_;

    $client->send($datagram);

    my ($ready) = IO::Select->new(@backends)->can_read(30) or return 'none';
    $ready->recv(my $got, 2048);

    return $got eq $datagram ? (grep { $backends[$_] == $ready } 0 .. 2)[0]
                             : 'changed';
}


sub initial {
    my ($dcid) = @_;

    # its first three bits name no configuration
    return QuicLB::Packet::initial("\xe0$dcid");
}
