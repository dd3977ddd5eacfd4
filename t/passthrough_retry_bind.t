#!/usr/bin/perl

# quic_passthrough_retry with quic_passthrough_bind: nginx's tokens are bound to
# the address that the servers see, be it the client's, with its port or with
# another one.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Backends;
use QuicLB::Net;

my $t = QuicLB->new();
my $net = QuicLB::Net->new($t, qw/client balancer backend/);

$net->link('client', '10.0.1.1/24', 'balancer', '10.0.1.2/24',
           'fd00:1::1/64', 'fd00:1::2/64');
$net->link('backend', '10.0.2.1/24', 'balancer', '10.0.2.2/24',
           'fd00:2::1/64', 'fd00:2::2/64');
$net->ip('balancer', 'address add 10.0.2.3/24 dev backend');

$net->ip('backend', "route add default via $_") for '10.0.2.2', 'fd00:2::2';

# replies to the clients' addresses are for nginx: docs/deployment.md

$t->write('replies.nft', <<'NFT');
table inet quic {
    chain replies {
        type filter hook prerouting priority mangle;
        meta l4proto { udp, icmp, ipv6-icmp } socket transparent 1 \
            meta mark set 1 accept
    }
}
NFT

$net->run('balancer', 'nft', '-f', $t->path('replies.nft'));

for my $family ('-4', '-6') {
    $net->ip('balancer', "$family rule add fwmark 1 lookup 100");
    $net->ip('balancer', "$family route add local default dev lo table 100");
}

my $key = $t->write('host.key', 'a key of the servers and of the balancer');
chmod 0600, $key;

my %backends = map {
    my ($name, $address) = @$_;

    $name => $net->in('backend', sub {
        QuicLB::Backends->new($t, address => $address, host_key => $key,
                              names => [map { "$name$_" } 1 .. 3]);
    });
} ['four', '10.0.2.1'], ['six', '[fd00:2::1]'];

my ($host, $port, $plain) = map { $t->port() } 1 .. 3;

sub server {
    my ($listen, $upstream, $bind) = @_;

    return "server { listen $listen udp reuseport; quic_passthrough $upstream;"
           . " quic_passthrough_bind $bind; }\n";
}

my $both = '$remote_addr:$remote_port transparent';
my $both6 = '[$remote_addr]:$remote_port transparent';

$t->conf(workers => 2, stream => join '',
    map({ "upstream $_ { zone $_ 256k; quic_maglev; "
          . $backends{$_}->lines() . "}\n" } sort keys %backends),

    'quic_passthrough_cid_zone zone=cids:1m;',
    'quic_passthrough_retry on;',
    "quic_passthrough_retry_key $key;",

    server($host, 'four', '$remote_addr transparent'),
    server("[::]:$host", 'six', '$remote_addr transparent'),
    server($port, 'four', $both),
    server("[::]:$port", 'six', $both6),
    server($plain, 'four', '10.0.2.3'),
);
$net->in('balancer', sub { $t->start() });

for my $case (
    ['IPv4, the address', '10.0.1.2', $host, 'four', '10.0.1.1'],
    ['IPv6, the address', '[fd00:1::2]', $host, 'six', 'fd00:1::1'],
    ['IPv4, the address and the port', '10.0.1.2', $port, 'four', '10.0.1.1'],
    ['IPv6, the address and the port', '[fd00:1::2]', $port, 'six',
     'fd00:1::1'],
    ['an address of the balancer', '10.0.1.2', $plain, 'four', '10.0.2.3'],
) {
    my ($name, $address, $udp, $family, $seen) = @$case;

    my $report = $net->in('client', sub {
        $t->client('--connect', "$address:$udp", '--connections', 6, 'run',
                   'get:/bytes/20000', 'rebind', 'get:/name');
    });
    is($report->{failed}, 0, "$name: aioquic") or $t->explain($report);

    my %servers = map { $_->{server} => 1 } @{ $report->{connections} };
    my %peers = map { s/:\d+$//r => 1 }
                map { ($backends{$family}->peers($_))[-1] } keys %servers;

    is(join(' ', keys %peers), $seen, "$name: what the servers see");

    my ($code, $body) = $net->in('client', sub {
        $t->curl('--http3-only', "https://$address:$udp/name");
    });
    like("$code $body", qr/^0 $family\d$/, "$name: curl");
}

$t->done();
