#!/usr/bin/perl

# Passthrough with real HTTP/3 servers that issue QUIC-LB connection IDs: every
# packet after the first flight reaches the server that its ID names, after
# NAT rebinding and migration in mid-transfer too.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant CONNECTIONS => 200;

my $key = '8f95f09245765f80256934e50c66207f';
my %ids = map { ("s$_" => "31441$_") } 1 .. 5;

my $t = QuicLB->new();
my $port = $t->port();

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids], '--lb-key', $key);

my %address_ids = map { ($servers->address($_) => $ids{$_}) } keys %ids;

chmod 0600, $t->write('quic-lb.key', "$key\n");

$t->conf(workers => 2, stream => <<"CONF");
    log_format quic '\$quic_routed_by \$quic_config_id \$quic_server_id '
                    '\$quic_dcid \$quic_version \$upstream_addr '
                    '\$bytes_sent \$bytes_received \$session_time \$status';

    access_log @{[$t->path('access.log')]} quic;

    upstream h3 {
        zone h3 1m;
        @{[$servers->lines(\%ids)]}

        quic_lb 0 {
            server_id_length 3;
            nonce_length 4;
            key_file @{[$t->path('quic-lb.key')]};
            length_self_description on;
            @{[$servers->id_lines(\%ids)]}
        }
    }

    server {
        listen 127.0.0.1:$port udp reuseport;
        quic_passthrough h3;
    }
CONF

$t->start();


# curl, when it speaks HTTP/3

SKIP: {
    my (undef, $version) = $t->curl('--version');
    skip 'curl without HTTP/3', 1 if $version !~ /HTTP3/;

    my ($status, $body) = $t->curl('--http3-only',
                                   '--write-out', "%{local_port}\n",
                                   "https://127.0.0.1:$port/name");

    like($body, qr/^s[1-5]$/m, 'curl is answered by a server');

    # its flow is still there: the others have ports of their own
    $t->write('ports', "$1\n") if $body =~ /^(\d+)$/m;
}


# connections that rebind and migrate while they transfer

my $report = $t->client('--connect', "127.0.0.1:$port",
                        '--connections', CONNECTIONS,
                        '--rate', 100000,
                        'run', 'get:/name', 'transfer:40000:rebind:migrate',
                        'get:/name');

is($report->{failed}, 0, 'all transfers complete') or $t->explain($report);

my @connections = @{ $report->{connections} };

is(scalar(grep { $_->{rebinds} == 1 && $_->{migrations} == 1 } @connections),
   CONNECTIONS, 'all connections moved twice');
is(scalar(grep { $_->{server} ne $_->{server_end} } @connections), 0,
   'none changed its server');

my %load;
$load{$_->{server}}++ for @connections;
is(scalar(keys %load), 5, 'all servers took part');

my $routes = $t->routes($servers);

is($routes->{misrouted_count}, 0, 'no packet met another server')
    or diag(explain($routes->{misrouted}));

my @seen = @{$routes->{connections}}{map { $_->{dcids}[0] } @connections};

is(scalar(grep { @{ $_->{servers} } == 1 } @seen), CONNECTIONS,
   'no other server saw a connection, not even its first flight');

# the last packets of an old path may come after the first of the new one
is(scalar(grep { $_->{path_changes} >= 2 } @seen), CONNECTIONS,
   'the servers saw two path changes each');
note('path changes: ', join ' ', sort map { $_->{path_changes} } @seen);


# what the log says: all flows are in it when nginx has ended

ok($t->stop(), 'nginx ends');

my @log = split /\n/, $t->read('access.log');
my $address = qr/127\.0\.0\.1:\d+/;

is(scalar(grep { !/^server_id\ 0\ (31441[1-5])\ [0-9a-f]{16}
                   \ (?:0x00000001|-)\ $address
                   \ \d+\ \d+\ \d+\.\d{3}\ 200$/x } @log),
   0, 'all flows logged with their last decision')
    or diag(join "\n", @log[0 .. 9]);

my @moved = grep { / - $address / } @log;
is(scalar(@moved), 2 * CONNECTIONS, 'a new flow for each new address');

my @wrong = grep {
    my ($id, $upstream) = (split)[2, 5];
    $address_ids{$upstream} ne $id;
} @log;
is(scalar(@wrong), 0, 'each to the server of its ID');

$t->done();
