#!/usr/bin/perl

# Link-local clients: one address and port on two links is two clients, to
# flows, to the limit of an address, and to the tokens of Retry.

use strict;
use warnings;

use Socket qw/inet_aton pack_sockaddr_in unpack_sockaddr_in/;
use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

use constant RETRY_TAG => 16;

# this is the clients' machine, and the backend's
QuicLB::Net::alone();

my $t = QuicLB->new();
my ($port, $retry) = map { $t->port() } 1 .. 2;
my $net = QuicLB::Net->new($t, 'balancer');

for my $link (qw/one two/) {
    $net->ip('balancer', "link add $link type veth peer name $link netns $$");
    $net->ip('balancer', "address add fe80::1/64 dev $link nodad");
    $net->ip('balancer', "link set $link up");

    run("ip address add fe80::2/64 dev $link nodad");
    run("ip link set $link up");
}

$net->ip('balancer', 'address add 10.0.1.2/24 dev one');
run('ip address add 10.0.1.1/24 dev one');

my $backend = udp_bind('10.0.1.1');
my $address = '10.0.1.1:' . $backend->sockport;

$t->write('retry.key', 'k' x 32);
chmod 0600, $t->path('retry.key');

$t->conf(stream => <<"CONF");
    upstream lb {
        server $address;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id aa $address;
        }
    }

    server {
        listen [::]:$port udp;
        quic_passthrough lb;
        quic_passthrough_address_flows 1;
    }

    server {
        listen [::]:$retry udp;
        quic_passthrough lb;
        quic_passthrough_retry on;
        quic_passthrough_retry_key @{[ $t->path('retry.key') ]};
    }
CONF

$net->in('balancer', sub { $t->start() });


# flows, and their limit

my ($one, $two) = clients($port);
my $id = "\x08\xaanonce77";

$one->send(short($id, 'from one'));
my $leg_one = leg(short($id, 'from one'));
ok(defined $leg_one, 'a client passes');

$two->send(short($id, 'from two'));
my $leg_two = leg(short($id, 'from two'));
ok(defined $leg_two, 'another one of the same address and port, on another'
                     . ' link, passes');
isnt($leg_two, $leg_one, 'it has a flow of its own');

for my $case (['one', $one, $leg_one], ['two', $two, $leg_two]) {
    my ($name, $client, $leg) = @$case;

    $backend->send("to $name", 0, pack_sockaddr_in($leg,
                                                   inet_aton('10.0.1.2')));
    is(udp_receive($client), "to $name", "an answer to $name");
}


# a token is of a client on its link

($one, $two) = clients($retry);

$one->send(initial('the DCID', 'the SCID', payload => 'x' x 1200));
my $answer = udp_receive($one) // '';
my ($scid, $token) = retry_fields($answer);
ok(length $token, 'a Retry');

$two->send(initial($scid, 'is two', token => $token, payload => 'x' x 1200));
my $own = initial($scid, 'is one', token => $token, payload => 'x' x 1200);
$one->send($own);

# nginx reads them in order, so what comes first is all that has passed
my $passed = udp_receive($backend) // '';
ok($passed eq $own, 'the token is good for its client, and no other');

$t->done();


sub run {
    my ($command) = @_;

    system($command) == 0 or die "$command: $?";
}


# of one port

sub clients {
    my ($to) = @_;

    my $first = IO::Socket::IP->new(PeerHost => 'fe80::1%one',
                                    PeerPort => $to,
                                    LocalHost => 'fe80::2%one',
                                    Type => Socket::SOCK_DGRAM)
        or die "a client: $@";
    my $second = IO::Socket::IP->new(PeerHost => 'fe80::1%two',
                                     PeerPort => $to,
                                     LocalHost => 'fe80::2%two',
                                     LocalPort => $first->sockport,
                                     Type => Socket::SOCK_DGRAM)
        or die "another client: $@";

    return ($first, $second);
}


# the port that the backend sees $datagram come from

sub leg {
    my ($datagram) = @_;

    IO::Select->new($backend)->can_read(10) or return undef;
    my $from = $backend->recv(my $got, 2048);

    return $got eq $datagram ? (unpack_sockaddr_in($from))[0] : undef;
}


sub retry_fields {
    my ($packet) = @_;

    my (undef, undef, undef, $id, $rest) = unpack 'C N C/a C/a a*', $packet;

    return ($id // '', substr $rest // '', 0,
            length($rest // '') - RETRY_TAG);
}
