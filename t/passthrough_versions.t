#!/usr/bin/perl

# Compatible version negotiation (RFC 9368): a connection that begins in version
# 1 and goes on in version 2, as the server chooses.  It has one server, through
# the handshake and whatever comes after, whichever way that server is known.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant { CONNECTIONS => 6, V2 => 0x6b3343cf };

my $t = QuicLB->new();
my ($lb, $learned, $read, $stock, $stats) = map { $t->port() } 1 .. 5;

my %ids = (one => '0a', two => '0b', three => '0c');
my %random = map { ("r$_" => '-') } 1 .. 3;

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);
my $others = $t->servers([map { [$_, '127.0.0.1:0', $random{$_}] }
                          sort keys %random]);

$t->conf(workers => 2, stream => <<"CONF");
    upstream lb {
        zone lb 256k;
        @{[$servers->lines(\%ids)]}

        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            @{[$servers->id_lines(\%ids)]}
        }
    }

    upstream random {
        zone random 256k;
        @{[$others->lines(\%random)]}
        quic_maglev;
    }

    upstream stock {
        zone stock 256k;
        @{[$others->lines(\%random)]}
    }

    server {
        listen 127.0.0.1:$lb udp reuseport;
        quic_passthrough lb;
    }

    server {
        listen 127.0.0.1:$learned udp reuseport;
        quic_passthrough random;
        quic_passthrough_cid_zone zone=cids:256k;
    }

    server {
        listen 127.0.0.1:$read udp reuseport;
        quic_preread on;
        quic_passthrough lb;
    }

    server {
        listen 127.0.0.1:$stock udp reuseport;
        quic_passthrough stock;
    }

    @{[$t->counters_server($stats, qw/received sent/)]}
CONF

$t->start();

for my $case (
    ['QUIC-LB', $lb, $servers, 'rebind migrate'],
    ['quic_preread', $read, $servers, 'rebind migrate'],
    ['learned connection IDs', $learned, $others, 'rebind'],
    ['another balancer', $stock, $others, ''],
) {
    my ($name, $port, $own, $moves) = @$case;

    for my $cid_length (8, 0) {
        my $what = "$name, client's IDs of $cid_length octets";

        my $report = $t->client('--connect', "127.0.0.1:$port",
                                '--version', 'upgrade',
                                '--connections', CONNECTIONS,
                                '--cid-length', $cid_length,
                                'run', 'get:/name',
                                join(':', 'transfer:60000', split ' ', $moves),
                                'get:/bytes/20000');

        is($report->{failed}, 0, $what) or $t->explain($report);

        my @connections = @{ $report->{connections} };
        is(scalar(grep { $_->{version} == V2 } @connections), CONNECTIONS,
           "$what: version 2");

        my %mine = map { $_->{dcids}[0] => 1 } @connections;
        my %seen;

        for my $event ($own->events(event => 'datagram')) {
            my $connection = $event->{connection} // next;
            $seen{$connection}{$event->{server}} = 1 if $mine{$connection};
        }

        is(scalar(grep { keys %$_ == 1 } values %seen), CONNECTIONS,
           "$what: each has one server");
    }
}

ok($t->wait_for('all datagrams', sub {
    my $counters = $t->counters($stats);
    return $counters->{sent} == $counters->{received};
}), 'nothing is dropped');

$t->done();
