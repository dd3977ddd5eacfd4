#!/usr/bin/perl

# Two balancers behind kernel multipath routes: one is killed while clients
# transfer, and the other one goes on.  Then two tiers of balancers: the outer
# one knows only which inner one a server ID belongs to.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;

use constant CONNECTIONS => 100;

my $t = QuicLB->new();
my @balancers = map { QuicLB->new() } 1 .. 2;

my $net = QuicLB::Net->new($t, qw/client router one two backend/);

$net->link('client', '10.0.1.1/24', 'router', '10.0.1.2/24');

# the service's address is one of each balancer; what it sends leaves by the
# router, and so does what it sends to the servers

my %subnet = (one => 11, two => 12);

for my $name (sort keys %subnet) {
    $net->link($name, "10.0.$subnet{$name}.1/24",
               'router', "10.0.$subnet{$name}.2/24");
    $net->ip($name, 'address add 10.9.9.9/32 dev lo');
    $net->ip($name, "route add default via 10.0.$subnet{$name}.2");
}

$net->link('backend', '10.0.2.1/24', 'router', '10.0.2.2/24');
$net->ip($_->[0], "route add default via $_->[1]")
    for ['client', '10.0.1.2'], ['backend', '10.0.2.2'];

$net->sysctl('router', 'net.ipv4.ip_forward=1',
             'net.ipv4.fib_multipath_hash_policy=1');

sub route {
    my @hops = map { "nexthop via 10.0.$subnet{$_}.1 dev $_" } @_;

    $net->ip('router', "route replace 10.9.9.9/32 @hops");
}

my %ids = (a => '0101', b => '0102', c => '0201', d => '0202');
my $key = '8f95f09245765f80256934e50c66207f';

my $servers = $net->in('backend', sub {
    $t->servers([map { [$_, '10.0.2.1:0', $ids{$_}] } sort keys %ids],
                '--nonce-length', 6, '--lb-key', $key);
});

my ($port, $inner) = map { $t->port() } 1 .. 2;

sub upstream {
    my ($name, @servers) = @_;

    my %named = map { $_ => $ids{$_} } @servers;

    return "upstream $name {
        @{[$servers->lines(\%named)]}
        quic_lb 0 {
            server_id_length 2; nonce_length 6;
            key_file @{[$t->path('key')]};
            @{[$servers->id_lines(\%named)]}
        }
    }\n";
}

sub server {
    my ($listen, $upstream) = @_;

    return "server { listen $listen udp reuseport; quic_passthrough $upstream;"
           . " quic_passthrough_timeout 5s; }\n";
}

sub client {
    my (@arguments) = @_;

    return $net->in('client', sub {
        $t->client_start('--connect', "10.9.9.9:$port", '--timeout', 60,
                         '--connections', CONNECTIONS, '--concurrency', 10,
                         @arguments);
    });
}

# by connection, the balancer that sent the server something of it

sub seen_from {
    my (%from) = @_;

    for my $event ($servers->events(event => 'datagram')) {
        my ($balancer) = $event->{peer} =~ /^10\.0\.(1[12])\./ or next;
        $from{$balancer}{$event->{connection}} = 1 if $event->{connection};
    }

    return \%from;
}

$t->write('key', "$key\n");
chmod 0600, $t->path('key');


# one of two is killed

for my $i (0, 1) {
    $balancers[$i]->conf(workers => 2, stream => upstream('h3', sort keys %ids)
                                                 . server($port, 'h3'));
    $net->in((qw/one two/)[$i], sub { $balancers[$i]->start() });
}

route('one', 'two');

my $held = client('hold');
$held->ready();

my $from = seen_from();
cmp_ok(keys %{ $from->{$_} }, '>', 10, "balancer 10.0.$_.1 has connections")
    for 11, 12;

my @killed = ($balancers[0]->master(), $balancers[0]->workers());
kill 'KILL', @killed;
$t->wait_gone($_) for @killed;
route('two');

is($held->command('progress 5')->{failed}, 0,
   'a balancer is killed: all connections go on through the other');
is($held->command('rebind')->{failed}, 0, 'also from other addresses');

my $report = $held->stop_and_report();
is(scalar(@{ $report->{connections} }), CONNECTIONS, 'of 100 transfers');
is($report->{failed}, 0, 'none is lost') or $t->explain($report);

$from = seen_from();
is(scalar(grep { !$from->{12}{$_} } keys %{ $from->{11} }), 0,
   'those of the killed one came through the other');


# two tiers: outer balancers know which inner one has a server

$balancers[1]->stop();
$_->write('nginx.pid', '') for @balancers;

# server IDs are assigned by inner balancers; those of "one" are a and b

my %inner = (one => "10.0.11.1:$inner", two => "10.0.12.1:$inner");
my %tier = (a => 'one', b => 'one', c => 'two', d => 'two');

my $lines = join "\n", map { "server $inner{$_};" } sort keys %inner;
my $map = join "\n", map { "server_id $ids{$_} $inner{$tier{$_}};" }
                     sort keys %tier;

my $outer = "upstream outer {
    $lines
    quic_lb 0 {
        server_id_length 2; nonce_length 6;
        key_file @{[$t->path('key')]};
        $map
    }
}\n" . server("10.9.9.9:$port", 'outer');

for my $i (0, 1) {
    my $name = (qw/one two/)[$i];

    $balancers[$i]->conf(workers => 2, stream => $outer
        . upstream('inner', grep { $tier{$_} eq $name } sort keys %tier)
        . server("$inner{$name}", 'inner'));
    $net->in($name, sub { $balancers[$i]->start() });
}

route('one', 'two');

$held = client('hold');
$held->ready();

for my $step ('progress 3', 'rebind', 'migrate', 'progress 3') {
    is($held->command($step)->{failed}, 0, "two tiers: $step");
}

# the outer balancer of the one machine fails, its inner one stays

route('two');
is($held->command('progress 5')->{failed}, 0,
   'an outer balancer is out: all go on through the other');

$report = $held->stop_and_report();
is(scalar(@{ $report->{connections} }), CONNECTIONS, 'of 100 transfers');
is($report->{failed}, 0, 'none is lost') or $t->explain($report);

my $routes = $t->routes($servers);
is($routes->{misrouted_count}, 0, 'no packet came to a wrong server')
    or diag(explain($routes->{misrouted}));

for my $balancer (@balancers) {
    $balancer->cleanup();
    my %faults = $balancer->faults();

    is_deeply([map { @$_ } values %faults], [], 'no fault of a balancer');
    $balancer->{checked} = 1;
}

$t->done();
