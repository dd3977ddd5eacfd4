#!/usr/bin/perl

# Addresses: several connections of one client socket, wildcard listens of
# both families, servers of one port with an address each.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my %ids = map { ("s$_" => "0a0$_") } 1 .. 4;

my $t = QuicLB->new();
my ($port, $wildcard, $dual, $shared) = map { $t->port() } 1 .. 4;

my $servers = $t->servers([(map { [$_, '127.0.0.1:0', $ids{$_}] }
                            sort keys %ids), ['v6', '[::1]:0', '0a0f']]);

my $v6 = $servers->address('v6');

$t->conf(stream => <<"CONF");
    upstream h3 {
        @{[$servers->lines(\%ids)]}

        quic_lb 0 {
            server_id_length 2;
            nonce_length 4;
            @{[$servers->id_lines(\%ids)]}
        }
    }

    upstream v6 {
        server $v6;

        quic_lb 0 {
            server_id_length 2;
            nonce_length 4;
            server_id 0a0f $v6;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough h3;
    }

    server {
        listen $wildcard udp;
        listen [::]:$wildcard udp;
        quic_passthrough h3;
    }

    server {
        listen [::]:$dual udp ipv6only=off;
        quic_passthrough v6;
    }

    server {
        listen $shared udp;
        quic_passthrough h3;
    }

    server {
        listen 127.0.0.3:$shared udp;
        quic_passthrough v6;
    }
CONF

$t->start();


# eight connections, one socket

my $report = $t->client('--connect', "127.0.0.1:$port", '--shared-socket',
                        '--connections', 8, 'run', 'get:/name',
                        'transfer:200000', 'get:/name');
is($report->{failed}, 0, 'eight connections of one socket')
    or $t->explain($report);
is_deeply($report->{errors}, [], 'no reply crosses');

my %servers = map { $_->{server} => 1 } @{ $report->{connections} };
cmp_ok(scalar(keys %servers), '>', 1, 'to different servers');

my %locals = map { $_->{locals}[0] => 1 } @{ $report->{connections} };
is(scalar(keys %locals), 1, 'from one address');

is($t->routes($servers)->{misrouted_count}, 0, 'none misrouted');


# Chromium's connection IDs have no octets, so only the DCID tells its
# connections apart

$report = $t->client('--connect', "127.0.0.1:$port", '--cid-length', 0,
                     '--connections', 4, 'run', 'get:/name',
                     'transfer:20000:rebind:migrate');
is($report->{failed}, 0, 'empty client connection IDs')
    or $t->explain($report);

$report = $t->client('--connect', "127.0.0.1:$port", '--version', 2,
                     '--connections', 2, 'run', 'get:/name',
                     'transfer:20000:migrate');
is($report->{failed}, 0, 'version 2') or $t->explain($report);

$report = $t->client('--connect', "127.0.0.1:$port", '--version', 'upgrade',
                     'run', 'get:/name', 'transfer:20000:migrate');
is($report->{failed}, 0, 'version 1, upgraded to 2') or $t->explain($report);


# the client takes answers from the asked address only

for my $case (['127.0.0.1', $wildcard], ['127.0.0.2', $wildcard],
              ['[::1]', $wildcard], ['[::1]', $dual], ['127.0.0.2', $dual],
              ['127.0.0.2', $shared], ['127.0.0.3', $shared])
{
    my ($address, $to) = @$case;
    my $name = $to == $wildcard ? 'wildcard' : $to == $dual ? 'dual stack'
                                                            : 'shared port';

    $report = $t->client('--connect', "$address:$to", 'run',
                         'get:/name', 'transfer:20000:rebind');
    is($report->{failed}, 0, "$name, $address") or $t->explain($report);
}

is($report->{connections}[0]{server}, 'v6',
   'the server of the address, not of the wildcard');

my $t_routes = $t->routes($servers);
is($t_routes->{misrouted_count}, 0, 'none misrouted')
    or diag(explain($t_routes->{misrouted}));

$t->done();
