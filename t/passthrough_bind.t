#!/usr/bin/perl

# quic_passthrough_bind: a backend sees the client's address, by IPv4 and IPv6,
# with the routing that docs/deployment.md describes; a plain local address; and
# addresses of no use.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;

my $t = QuicLB->new();
my $net = QuicLB::Net->new($t, qw/client balancer backend/);

$net->link('client', '10.0.1.1/24', 'balancer', '10.0.1.2/24',
           'fd00:1::1/64', 'fd00:1::2/64');
$net->link('backend', '10.0.2.1/24', 'balancer', '10.0.2.2/24',
           'fd00:2::1/64', 'fd00:2::2/64');
$net->ip('balancer', 'address add 10.0.2.3/24 dev backend');

$net->ip('backend', "route add default via $_") for '10.0.2.2', 'fd00:2::2';

# replies to the clients' addresses are for nginx

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

# strict, as a distribution may set it
$net->sysctl('balancer', "net.ipv4.conf.$_.rp_filter=1")
    for qw/all client backend/;

my ($servers, $servers6) = map {
    my ($name, $address, $id) = @$_;
    $net->in('backend', sub {
        $t->servers([[$name, "$address:0", $id]], '--nonce-length', 7);
    });
} ['four', '10.0.2.1', '04'], ['six', '[fd00:2::1]', '06'];

my %servers = (four => $servers, six => $servers6);

my ($auto, $same, $mapped, $plain, $off, $wrong, $bad) =
    map { $t->port() } 1 .. 7;

sub upstream {
    my ($name, $id) = @_;

    my $address = $servers{$name}->address($name);

    return <<"CONF";
        upstream $name {
            zone $name 256k;
            server $address;

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                server_id $id $address;
            }
        }
CONF
}

sub server {
    my ($listen, $upstream, $bind) = @_;

    my @listen = map { "listen $_ udp reuseport;" } @$listen;

    return "server { @listen quic_passthrough $upstream;\n"
           . "quic_passthrough_timeout 5s; $bind }\n";
}

$t->conf(workers => 2, stream => join '',
    upstream('four', '04'), upstream('six', '06'),

    "log_format flow '\$remote_port \$status \$upstream_addr';",
    'access_log ' . $t->path('access.log') . ' flow;',
    'quic_passthrough_bind $remote_addr transparent;',

    server([$auto], 'four', ''),
    server(["[::]:$auto"], 'six', ''),
    server([$same], 'four',
           'quic_passthrough_bind $remote_addr:$remote_port transparent;'),
    server(["[::]:$same"], 'six',
           'quic_passthrough_bind [$remote_addr]:$remote_port transparent;'),
    server(["[::]:$mapped ipv6only=off"], 'four', ''),
    server([$plain], 'four', 'quic_passthrough_bind 10.0.2.3;'),
    server([$off], 'four', 'quic_passthrough_bind off;'),
    server([$wrong], 'six', ''),
    server([$bad], 'four', 'quic_passthrough_bind nonsense-$remote_addr;'),
);
$net->in('balancer', sub { $t->start() });

sub start {
    my ($address, $port, @arguments) = @_;

    return $net->in('client', sub {
        $t->client_start('--connect', "$address:$port", '--timeout', 50,
                         @arguments);
    });
}

sub run {
    return start(@_, qw{--connections 5 run get:/bytes/20000})->report();
}

# addresses that a server has had connections from, by connection

sub peers {
    my ($report, $name) = @_;

    my %peers = map { $_->{connection} => $_->{peer} }
                $servers{$name}->events(event => 'connected');

    return map { $peers{$_->{dcids}[0]} // 'none' } @{ $report->{connections} };
}

sub hosts {
    my %hosts = map { /^(.*):\d+$/ => 1 } @_;

    return join ' ', sort keys %hosts;
}

my ($user) = map { /^Uid:\s+\d+\s+(\d+)/m }
             map { QuicLB::Process::slurp("/proc/$_/status") } $t->workers();
isnt($user, 0, 'workers are not root');


# whom a backend sees

for my $case (
    ['IPv4', '10.0.1.2', $auto, 'four', '10.0.1.1'],
    ['IPv6', '[fd00:1::2]', $auto, 'six', '[fd00:1::1]'],
    ['IPv4 on an IPv6 socket', '10.0.1.2', $mapped, 'four', '10.0.1.1'],
    ['plain', '10.0.1.2', $plain, 'four', '10.0.2.3'],
    ['off', '10.0.1.2', $off, 'four', '10.0.2.2'],
) {
    my ($name, $address, $port, $server, $expected) = @$case;

    my $report = run($address, $port);
    is($report->{failed}, 0, "$name: answered") or $t->explain($report);
    is(hosts(peers($report, $server)), $expected, "$name: the address");
}

for my $case (
    ['IPv4', '10.0.1.2', 'four'],
    ['IPv6', '[fd00:1::2]', 'six'],
) {
    my ($name, $address, $server) = @$case;

    my $report = run($address, $same);
    is($report->{failed}, 0, "$name with the port: answered")
        or $t->explain($report);
    is_deeply([map { /:(\d+)$/ } peers($report, $server)],
              [map { $_->{locals}[0] =~ /:(\d+)$/ }
               @{ $report->{connections} }],
              "$name: the port");
}


# connections move as without it, and a reload loses none

my %held = map {
    $_ => start('10.0.1.2', $_, '--connections', 5, 'hold')
} $auto, $same;

$_->ready() for values %held;

for my $verb (qw/rebind migrate/) {
    is($_->command($verb)->{failed}, 0, $verb) for values %held;
}

$t->reload();

for my $port (sort keys %held) {
    is($held{$port}->command('progress 5')->{failed}, 0, 'after a reload');

    my $report = $held{$port}->stop_and_report();
    is($report->{failed}, 0, 'to the end') or $t->explain($report);
}

my @strangers = grep { $_ !~ /^(?:10\.0\.1\.1|10\.0\.2\.[23]):/ }
                map { $_->{peer} } $servers->events(event => 'datagram');
is_deeply(\@strangers, [], 'no datagram came from elsewhere');


# addresses of no use

for my $case (
    ['another family', $wrong,
     qr/address "10\.0\.1\.1" and upstream "\[fd00:2::1\]:\d+" are not of one/],
    ['no address', $bad, qr/invalid address "nonsense-10\.0\.1\.1"/],
) {
    my ($name, $port, $line) = @$case;

    my $report = start('10.0.1.2', $port, '--timeout', 2, 'run', 'get:/name')
                 ->report();
    is($report->{failed}, 1, "$name: no answer");
    ok($t->wait_log($line), "$name: the log tells why");
}


# the errors that a closed port causes are for the client's address, too

$servers->command('close', 'four');
start('10.0.1.2', $auto, '--timeout', 2, 'run', 'get:/name')->report();
ok($t->wait_log(qr/server "10\.0\.2\.1:\d+" in upstream "\w+" does not take/),
   'ICMP comes back to nginx');


# configurations

my $server = 'server { listen 127.0.0.1:1 udp; quic_passthrough 127.0.0.1:2;';

for my $case (
    ['bind;', qr/invalid number of arguments in "quic_passthrough_bind"/],
    ['bind off transparent;', qr/invalid address "off" in "quic_passthrough_/],
    ['bind 10.0.0.1 opaque;',
     qr/invalid parameter "opaque" in "quic_passthrough_bind" directive, it/],
    ['bind 10.0.0.1:5000;',
     qr/"10\.0\.0\.1:5000" in "quic_passthrough_bind".* without a port/],
    ['bind localhost;', qr/invalid address "localhost"/],
    ['bind unix:/x;', qr/invalid address "unix:\/x"/],
    ['bind $nothing;', qr/unknown "nothing" variable/],
    ['bind 10.0.0.1; quic_passthrough_bind off;',
     qr/"quic_passthrough_bind" directive is duplicate/],
    ['bind 10.0.0.1 transparent;', undef],
    ['bind fd00::1;', qr/"fd00::1" and .* are not of one address family/],
    ['bind off;', undef],
) {
    my ($text, $regex) = @$case;
    my ($ok, $output) = $t->test_conf(
        stream => "$server quic_passthrough_$text }");

    like($output, $regex // qr/test is successful/, "nginx -t: $text");
}

$t->done();
