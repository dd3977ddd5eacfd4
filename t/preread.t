#!/usr/bin/perl

# quic_preread with real clients and servers: a connection reaches the server
# that its ClientHello names, by virtual servers and by a map, and stays there.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my ($virtual, $mapped, $stats) = map { $t->port() } 1 .. 3;

my %ids = (a1 => '0a', a2 => '0b', b1 => '1a', b2 => '1b', d => '2a');

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

sub upstream {
    my ($name, @servers) = @_;
    my %own = map { ($_ => $ids{$_}) } @servers;

    return <<"CONF";
        upstream $name {
            @{[$servers->lines(\%own)]}

            quic_lb 0 {
                server_id_length 1;
                nonce_length 4;
                @{[$servers->id_lines(\%own)]}
            }
        }
CONF
}

$t->conf(workers => 2, stream => <<"CONF");
    log_format hello '\$quic_preread_server_name|'
                     '\$quic_preread_alpn_protocols|\$quic_preread_version|'
                     '\$to|\$upstream_addr|\$quic_routed_by';

    access_log @{[$t->path('access.log')]} hello;

    @{[upstream('up_a', 'a1', 'a2')]}
    @{[upstream('up_b', 'b1', 'b2')]}
    @{[upstream('up_d', 'd')]}

    map \$quic_preread_server_name \$to {
        a.example.com up_a;
        b.example.com up_b;
        default up_d;
    }

    server {
        listen 127.0.0.1:$virtual udp reuseport;
        quic_preread on;
        quic_passthrough up_d;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        server_name a.example.com;
        quic_passthrough up_a;
        quic_preread on;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        server_name ~^(?<letter>b)\\.example\\.com\$;
        quic_passthrough up_\$letter;
        quic_preread on;
    }

    server {
        listen 127.0.0.1:$mapped udp reuseport;
        quic_preread on;
        quic_passthrough \$to;
    }

    @{[$t->counters_server($stats, qw/hellos unread overload/)]}
CONF

$t->start();

my %ports = ('virtual servers' => $virtual, 'a map' => $mapped);
my %names = ('a.example.com' => qr/^a[12]$/, 'b.example.com' => qr/^b[12]$/,
             'example.com' => qr/^d$/);

my $total = 0;


# curl: the ClientHello of its OpenSSL, with a post-quantum key, takes two
# datagrams

for my $how (sort keys %ports) {
    for my $name (sort keys %names) {
        my ($status, $body) = $t->curl('--http3-only', '--connect-to',
                                       "::127.0.0.1:$ports{$how}",
                                       "https://$name:$ports{$how}/name");

        like($body, $names{$name}, "curl, $how: $name");
        $total++;
    }
}


# aioquic: versions, and moves in mid-transfer

for my $how (sort keys %ports) {
    for my $version (qw/1 2 upgrade/) {
        for my $name (sort keys %names) {
            my $report = $t->client('--connect', "127.0.0.1:$ports{$how}",
                                    '--sni', $name, '--version', $version,
                                    '--connections', 4, '--rate', 200000,
                                    'run', 'get:/name',
                                    'transfer:40000:rebind:migrate');

            is($report->{failed}, 0, "aioquic, $how, version $version: $name")
                or $t->explain($report);

            is(scalar(grep { ($_->{server} // '') !~ $names{$name} }
                      @{ $report->{connections} }), 0,
               'by its servers');

            $total += 4;
        }
    }
}

my $counters = $t->counters($stats);

is($counters->{hellos}, $total, 'each ClientHello is read, once');
is($counters->{unread}, 0, 'none is not');
is($counters->{overload}, 0, 'and nothing is dropped');


# what the log says

ok($t->stop(), 'nginx ends');

my @log = split /\n/, $t->read('access.log');
my $a = join '|', map { $servers->address($_) } qw/a1 a2/;

ok(scalar(grep { /^a\.example\.com\|h3\|1\|up_a\|(?:$a)\|server_id$/ } @log),
   'the variables of a connection');
ok(scalar(grep { /^b\.example\.com\|h3\|2\|up_b\|/ } @log),
   'of version 2, too');
ok(scalar(grep { /^a\.example\.com\|h3,h3-\d+\|1\|up_a\|/ } @log),
   'a list of ALPN protocols');
ok(scalar(grep { /^-\|-\|-\|up_d\|/ } @log),
   'the flow of a connection that has moved has none');

$t->done();
