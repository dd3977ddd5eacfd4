#!/usr/bin/perl

# Flows of one address: who has many that are half-open makes room before others
# do, and quic_passthrough_address_flows is a limit for all of them, also where
# each packet of a connection comes from another port.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use Socket qw/unpack_sockaddr_in/;

use QuicLB;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

use constant { CONNECTIONS => 128, LIMIT => 3 };

my $t = QuicLB->new();
my ($port, $limited, $stats) = map { $t->port() } 1 .. 3;

my $backend = udp_bind('127.0.0.1');
my $address = '127.0.0.1:' . $backend->sockport;

$t->conf(connections => CONNECTIONS, stream => <<"CONF");
    upstream lb {
        server $address;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id aa $address;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough lb;
    }

    server {
        listen 127.0.0.1:$limited udp;
        quic_passthrough lb;
        quic_passthrough_timeout 5s;
        quic_passthrough_address_flows @{[LIMIT]};
    }

    @{[ $t->counters_server($stats, qw/flows overload evicted/) ]}
CONF
$t->start();


# many half-open flows of one address cost no flow of another one

my @others = map { udp_connect('127.0.0.1', $port, "127.0.0.$_") } 2 .. 5;
my @legs = map { leg($_, initial('a client')) } @others;

is(scalar(grep { defined } @legs), 4, 'flows of some clients');

# a quarter of the connections may be half-open, and these are more
my @many = map { udp_connect('127.0.0.1', $port, '127.0.0.9') }
               1 .. CONNECTIONS / 2;
is(scalar(grep { defined leg($_, initial('flooding')) } @many),
   CONNECTIONS / 2, 'many flows of another one');

cmp_ok($t->counters($stats)->{evicted}, '>=', CONNECTIONS / 4,
       'more than there is room for');

my $flows = $t->counters($stats)->{flows};
is_deeply([map { leg($_, initial('a client')) } @others], \@legs,
          'but not at the cost of the others');
is($t->counters($stats)->{flows}, $flows, 'which keep their flows');


# a limit for the flows of an address, however they begin

my $datagram = short("\x08\xaanonce77", 'established');

my @ports = map { udp_connect('127.0.0.1', $limited, '127.0.0.7') }
                1 .. LIMIT + 2;
my $before = $t->counters($stats);

my @got = map { leg($_, $datagram) } @ports[0 .. LIMIT - 1];
is(scalar(grep { defined } @got), LIMIT, 'as many ports as the limit is');

# confirmed, and still counted
answer($ports[0], $got[0]);
is(leg($ports[0], $datagram), $got[0], 'a flow goes on');

$ports[$_]->send($datagram) for LIMIT, LIMIT + 1;
$ports[LIMIT]->send(initial('a client'));

$t->wait_for('the drops', sub {
    $t->counters($stats)->{overload} == $before->{overload} + 3
});
is($t->counters($stats)->{flows}, $before->{flows} + LIMIT,
   'no flow for more ports');

my $other = udp_connect('127.0.0.1', $limited, '127.0.0.8');
ok(defined leg($other, $datagram), 'another address');

ok($t->wait_for('a flow to end', sub {
    $ports[LIMIT]->send($datagram);
    return defined udp_receive($backend, 0.2);
}), 'again, when flows have ended');


# configurations

for my $case (
    ['', qr/invalid number of arguments in "quic_passthrough_address_flows"/],
    ['many', qr/"quic_passthrough_address_flows" directive invalid number/],
    ['-1', qr/"quic_passthrough_address_flows" directive invalid number/],
    ['1; quic_passthrough_address_flows 2',
     qr/"quic_passthrough_address_flows" directive is duplicate/],
    ['0', undef],
    ['100', undef],
) {
    my ($value, $regex) = @$case;
    my (undef, $output) = $t->test_conf(stream =>
        "server { listen 127.0.0.1:1 udp; quic_passthrough 127.0.0.1:2;"
        . " quic_passthrough_address_flows $value; }");

    like($output, $regex // qr/test is successful/, "nginx -t: $value");
}

$t->done();


# the port that the server sees the client's datagram come from; one that is not
# to have another's place yet comes again, as those of a client do

sub leg {
    my ($client, $datagram) = @_;
    my $overload = $t->counters($stats)->{overload};

    $client->send($datagram);

    $t->wait_for('a datagram', sub {
        return 1 if IO::Select->new($backend)->can_read(0);

        my $count = $t->counters($stats)->{overload};
        return 0 if $count == $overload;

        $overload = $count;
        $client->send($datagram);
        return 0;
    });

    my $from = $backend->recv(my $got, 2048);

    return $got eq $datagram ? (unpack_sockaddr_in($from))[0] : undef;
}


sub answer {
    my ($client, $leg) = @_;

    $backend->send('answer', 0, Socket::pack_sockaddr_in($leg,
        Socket::inet_aton('127.0.0.1')));
    is(udp_receive($client), 'answer', 'an answer');
}
