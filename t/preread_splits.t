#!/usr/bin/perl

# quic_preread with generated ClientHellos: 10,000 in random pieces, all of
# which arrive, in order, at the server of their name; and connection IDs of
# clients in a dense space of server IDs, where nearly each names some server.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;

use QuicLB;

use constant { SPLITS => 10_000, DENSE => 1_000, PARTS => 4 };

# servers of one octet of server ID, and the upstreams they belong to
use constant SERVERS => 200;
use constant UPSTREAMS => [qw/a b c default/];

my $t = QuicLB->new();
my ($port, $dense, $backend, $server, $stats) = map { $t->port() } 1 .. 5;

my %few = map { (UPSTREAMS->[$_] => "127.0.0." . ($_ + 1) . ":$backend") }
              0 .. 3;
my @many = map { [UPSTREAMS->[$_ % 4], sprintf('%02x', $_),
                  '127.0.1.' . ($_ + 1) . ":$server"] } 0 .. SERVERS - 1;

my $few = join '', map { <<"CONF" } sort keys %few;
    upstream few_$_ {
        server $few{$_} max_fails=0;
        quic_maglev;
    }
CONF

my $upstreams = join '', map { dense_upstream($_) } @{ +UPSTREAMS };


sub dense_upstream {
    my ($name) = @_;
    my @own = grep { $_->[0] eq $name } @many;

    my $blocks = join '', map { <<"CONF" } 0 .. 6;
        quic_lb $_ {
            server_id_length 1;
            nonce_length 4;
            @{[map { "server_id $_->[1] $_->[2];\n" } @own]}
        }
CONF

    return "upstream many_$name {\n"
           . join('', map { "server $_->[2] max_fails=0;\n" } @own)
           . "$blocks}\n";
}


$t->conf(connections => 16384, main => 'worker_rlimit_nofile 16384;',
         stream => <<"CONF");
    $few
    $upstreams

    map \$quic_preread_server_name \$name {
        hostnames;
        a.example.com a;
        b.example.com b;
        c.example.com c;
        default default;
    }

    quic_preread on;
    quic_preread_timeout 60s;

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough few_\$name;
    }

    server {
        listen 127.0.0.1:$dense udp;
        quic_passthrough many_\$name;
    }

    @{[$t->counters_server($stats, qw/hellos unread overload/)]}
CONF

$t->start();


# parts, so that no process takes too long

sub generated {
    my ($number, @arguments) = @_;
    my $name = "splits$number";

    $t->run($name, 'python3', '-B', "$FindBin::Bin/lib/quic_splits.py",
            @arguments);

    return decode_json($t->read("$name.out") || '{}');
}


sub judge {
    my ($what, $n, $report) = @_;

    is($report->{wrong_count}, 0, "$what: all at their servers")
        or diag(encode_json($report));

    my $arrived = 0;
    $arrived += $_ for values %{ $report->{arrived} };
    is($arrived, $n, "$what: $n of them");
    is(scalar(grep { $_ > $n / 8 } values %{ $report->{arrived} }), 4,
       "$what: each name had its part");
}


for my $part (1 .. PARTS) {
    judge("splits, $part", SPLITS / PARTS,
          generated($part, '--connect', "127.0.0.1:$port",
                    '--connections', SPLITS / PARTS,
                    map { ('--server', "$_=$few{$_}") } sort keys %few));
}

is_deeply($t->counters($stats),
          { hellos => SPLITS, unread => 0, overload => 0 },
          'all were read');

judge('dense', DENSE,
      generated('dense', '--connect', "127.0.0.1:$dense",
                '--connections', DENSE, '--whole', '--sockets', DENSE / 2,
                map { ('--server', "$_->[0]=$_->[2]") } @many));

$t->done();
