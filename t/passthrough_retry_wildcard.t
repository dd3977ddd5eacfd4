#!/usr/bin/perl

# quic_passthrough_retry on wildcard addresses: what the balancer itself answers
# comes from the address that was asked, as clients take nothing else.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;

use QuicLB;
use QuicLB::Net;
use QuicLB::Packet qw/initial/;
use QuicLB::Udp;

# of an address that the system does not choose by itself
use constant SIX => 'fd00::2';

QuicLB::Net::alone();

system('ip', qw{address add}, SIX . '/128', qw{dev lo nodad}) == 0
    or die "ip address add failed\n";

my $t = QuicLB->new();
my ($wildcard, $dual, $stats) = map { $t->port() } 1 .. 3;
my $backend = udp_bind('127.0.0.1');

my $key = $t->write('key', 'a key of the balancer, of 32 octets');
chmod 0600, $key;

$t->conf(stream => <<"CONF");
    quic_passthrough_retry on;
    quic_passthrough_retry_key $key;

    server {
        listen $wildcard udp reuseport;
        listen [::]:$wildcard udp reuseport;
        quic_passthrough 127.0.0.1:@{[ $backend->sockport ]};
    }

    server {
        listen [::]:$dual udp reuseport ipv6only=off;
        quic_passthrough 127.0.0.1:@{[ $backend->sockport ]};
    }

    @{[ $t->counters_server($stats, qw/retry_sent retry_refused/) ]}
CONF
$t->start();

for my $case (
    ['127.0.0.1', $wildcard], ['127.0.0.2', $wildcard], ['::1', $wildcard],
    [SIX, $wildcard], ['127.0.0.2', $dual], [SIX, $dual],
) {
    my ($address, $port) = @$case;
    my $name = "$address, " . ($port == $dual ? 'dual stack' : 'wildcard');
    my $before = $t->counters($stats);

    my $local = $address =~ /:/ ? '::1' : '127.0.0.1';
    my $client = udp_connect($address, $port, $local);

    $client->send(initial('the DCID', 'the SCID', payload => 'x' x 1200));
    is($t->wait_for('a Retry', sub {
        $t->counters($stats)->{retry_sent} > $before->{retry_sent}
    }), 1, "$name: a Retry");
    like(udp_receive($client, 0) // '', qr/^[\xf0-\xff]/,
         "$name: from there");

    my $probe = $address =~ /:/ ? "[$address]" : $address;

    is(refused("$probe:$port"), 'close 11', "$name: INVALID_TOKEN");
}

$t->done();


sub refused {
    my ($address) = @_;

    my $name = 'probe' . ++$t->{probe_count};

    $t->run($name, 'python3', '-B', "$FindBin::Bin/lib/retry_probe.py",
            '--connect', $address, '--key', $key, 'expired') == 0
        or diag($t->read("$name.err"));

    my $text = $t->read("$name.out");

    return $text ? decode_json($text)->{answer} : undef;
}
