#!/usr/bin/perl

# The limits of a flow, of its queue and of a worker: what is beyond them costs
# the oldest or the newest, and nothing else.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;
use IO::Socket::IP;
use Socket qw/unpack_sockaddr_in/;
use Time::HiRes qw/time/;

use QuicLB;
use QuicLB::Dns;
use QuicLB::Packet qw/initial handshake short/;
use QuicLB::Udp;

# docs: legs of a flow, entries of $upstream_addr, handshakes that a flow
# remembers before one goes on, datagrams that wait
use constant { LEGS => 32, STATES => 64, CONNECTIONS => 16, QUEUE => 16 };

use constant { SERVERS => 70, BALANCED => 5 };

# of a worker
use constant FILES => 80;

my $t = QuicLB->new();
my ($port, $maglev, $variable, $tcp, $stats, $dns_port) = map { $t->port() }
                                                              1 .. 6;

my @backends = map { udp_bind('127.0.0.1') } 1 .. SERVERS;
my @addresses = map { '127.0.0.1:' . $_->sockport } @backends;
my @ids = map { sprintf '%02x', $_ } 0 .. SERVERS - 1;
my $dns = udp_bind('127.0.0.1', $dns_port);
my $silent = IO::Socket::IP->new(LocalHost => '127.0.0.1', Listen => FILES)
    or die $@;

my $connections = 0;

my $lines = join "\n", map { "server $_;" } @addresses;
my $balanced = join "\n", map { "server $_;" } @addresses[0 .. BALANCED - 1];
# not in the order of the IDs
my $map = join "\n", map { "server_id $ids[$_] $addresses[$_];" }
                     reverse 0 .. SERVERS - 1;

sub conf {
    my (%parts) = @_;

    $t->conf(%parts, stream => <<"CONF");
        log_format route '\$remote_port \$upstream_addr';
        access_log @{[$t->path('access.log')]} route;

        resolver 127.0.0.1:$dns_port ipv6=off;

        upstream many {
            $lines

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                $map
            }
        }

        upstream few {
            $balanced
            quic_maglev;
        }

        map \$remote_addr \$to {
            default backend.example:@{[$backends[0]->sockport]};
        }

        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough many;
        }

        server {
            listen 127.0.0.1:$maglev udp;
            quic_passthrough few;
        }

        server {
            listen 127.0.0.1:$variable udp;
            quic_passthrough \$to;
        }

        server {
            listen 127.0.0.1:$tcp;
            proxy_pass 127.0.0.1:@{[$silent->sockport]};
        }

        @{[$t->counters_server($stats, qw/received overload evicted/)]}
CONF
}

conf();
$t->start();


# more servers than a flow has legs, and than its log line has room for

my $client = udp_connect('127.0.0.1', $port);
my @legs = map { leg($_) } 0 .. LEGS - 1;

is(scalar(grep { defined } @legs), LEGS, 'a leg to each server');

# all but one are used once more, and that one is idle for this time
my $idle = 5;
my @others = grep { $_ != $idle } 0 .. LEGS - 1;

my $since = time();
my @same;
do { @same = map { leg($_) } @others } until time() - $since > 0.05;
is_deeply(\@same, [@legs[@others]], 'they stay the same');

my $next = leg(LEGS);
ok(defined $next, 'one more server');
is_deeply([map { leg($_) } @others, LEGS], [@legs[@others], $next],
          'costs none of those in use');
ok(!connected($idle), 'but the one that was idle the longest');
is(leg($idle), $legs[$idle], 'which gets its port again');
ok(connected($idle), 'by another socket');

my @all = map { leg($_) } 0 .. SERVERS - 1;
is(scalar(grep { defined } @all), SERVERS, 'the flow goes on with all servers');

my $flow = $client->sockport;


# more connections than a flow remembers, of servers without QUIC-LB

$client = udp_connect('127.0.0.1', $maglev);

my @servers = map { connection($_) } 0 .. CONNECTIONS;
my %used = map { $_ => 1 } @servers;

is(scalar(grep { defined } @servers), CONNECTIONS + 1, 'connections');
cmp_ok(scalar(keys %used), '>', 1, 'of several servers');

# all but the first, in an order that ends away from the first one's server
my @remembered = sort { ($servers[$a] != $servers[0])
                        <=> ($servers[$b] != $servers[0]) } 1 .. CONNECTIONS;

is_deeply([map { scalar served(continuation($_)) } @remembered],
          [@servers[@remembered]], 'as many as are remembered stay');
is(served(continuation(0)), $servers[$remembered[-1]],
   'the forgotten one follows the address');


# more datagrams than wait for a name

$client = udp_connect('127.0.0.1', $variable);
my $before = $t->counters($stats);

$client->send(initial("dcid $_")) for 1 .. QUEUE + 1;
$t->wait_for('the datagrams', sub {
    $t->counters($stats)->{received} == $before->{received} + QUEUE + 1
});

is($t->counters($stats)->{overload}, $before->{overload} + 1,
   'one datagram finds no room in the queue');

$t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') });
my @got = map { udp_receive($backends[0]) } 1 .. QUEUE;
$client->send(initial('behind'));
push @got, udp_receive($backends[0]);

my @sent = map { initial($_) } map({ "dcid $_" } 1 .. QUEUE), 'behind';
is_deeply([map { unpack 'H*', $_ // '' } @got],
          [map { unpack 'H*', $_ } @sent], 'the others are kept, in order');


# flows are logged when nginx ends

ok($t->stop(), 'nginx ends');

my %upstreams = $t->read('access.log') =~ /^(\d+) (.*)$/mg;
is(scalar(split /, /, $upstreams{$flow}), STATES,
   'addresses in the log line of the flow with many servers');


# more clients than connections, when all of them have an answer

conf(connections => 64);
$t->start();
udp_drain(@backends);

my @clients;

while (1) {
    $client = udp_connect('127.0.0.1', $maglev);
    last if !established();
    push @clients, $client;
}

cmp_ok(scalar(@clients), '>', 64 / 4, 'clients with a flow');

# one line a second: from the first to the third is more than a second
my $logged = $t->wait_for('lines in the log', sub {
    udp_connect('127.0.0.1', $maglev)->send(initial('too many')) for 1 .. 20;
    my $count = $t->log_count(qr/\[warn\].* no connections or open files left/);
    return $count >= 3 && $count;
});

my $counters = $t->counters($stats);
cmp_ok($counters->{overload}, '>', 10 * $logged, 'few lines for many drops');
is($counters->{evicted}, 0, 'no client makes room for another');

my $lost = 0;
for (@clients) {
    $client = $_;
    $lost++ if !defined served(continuation(0));
}
is($lost, 0, 'those with a flow go on');

$t->stop('TERM');


# half-open flows make no room for each other's legs

conf(connections => 64);
$t->start();
udp_drain(@backends);

@clients = map { udp_connect('127.0.0.1', $port, "127.0.0.$_") } 2 .. 9;
my @firsts = map { half_open($_, 0) } @clients;
is(scalar(grep { defined } @firsts), @clients, 'half-open flows');

# they ask for more legs than there are connections

for my $other (@clients[4 .. 7]) {
    half_open($other, $_) for 1 .. LEGS - 1;
}

$counters = $t->counters($stats);
cmp_ok($counters->{overload}, '>', 0, 'no connections for more legs');
is($counters->{evicted}, 0, 'no flow makes room for them');
is_deeply([map { half_open($_, 0) } @clients], \@firsts, 'all flows go on');

$t->stop('TERM');


# more clients than open files, and what else has these

conf(connections => 512, main => 'worker_rlimit_nofile ' . FILES . ';');
$t->start();
udp_drain(@backends);

is(scalar(grep { new_client() } 1 .. 2 * FILES), 2 * FILES,
   'half-open flows make room when there are no more files');
is($t->log_count(qr/Too many open files/), 0, 'before there are none');

$t->stop('TERM');
$t->start();

my @sessions;

while (@sessions < FILES) {
    push @sessions, IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                        PeerPort => $tcp) or die $@;
    IO::Select->new($silent)->can_read(0.5) or last;
    push @sessions, $silent->accept();
}

$since = time();
my $served = grep { new_client(1) } 1 .. FILES / 2;
my $took = time() - $since;

cmp_ok($served, '<', FILES / 2, 'with the files in other hands some get none');
cmp_ok($t->log_count(qr/Too many open files/), '<=', $took + 3,
       'and few lines say so');
$t->expect_log(qr/socket\(\) failed \(24: Too many open files\)/);

undef @sessions;

$t->done();


# the port from which the server with this number gets the client's datagram,
# as the balancer's answer to it comes back

# whether there is a socket of the leg's, with the state in the fourth column

sub connected {
    my ($n) = @_;

    my ($local, $remote) = map { sprintf ':%04X', $_ }
                           $legs[$n], $backends[$n]->sockport;

    return QuicLB::Process::slurp('/proc/self/net/udp')
           =~ /$local \w+$remote 01 /;
}


sub leg {
    my ($number) = @_;
    my $datagram = short("\x08" . chr($number) . 'nonce77', 'ask');

    $client->send($datagram);

    IO::Select->new($backends[$number])->can_read(30) or return undef;
    my $from = $backends[$number]->recv(my $got, 2048);
    return undef if $got ne $datagram;

    $backends[$number]->send("answer $number", 0, $from);
    return undef if (udp_receive($client) // '') ne "answer $number";

    return (unpack_sockaddr_in($from))[0];
}


# whether the first datagram of a new client comes to a server, if it comes
# again as a client's does

sub new_client {
    my ($times) = @_;
    my $first = initial(sprintf 'dcid %06d', ++$connections);
    my $client = udp_connect('127.0.0.1', $maglev);

    for (1 .. $times // 50) {
        $client->send($first);

        while (my ($ready) = IO::Select->new(@backends)->can_read(0.1)) {
            return 1 if (udp_receive($ready, 0) // '') eq $first;
        }
    }

    return 0;
}


# the port from which the server with this number gets the first datagram of
# a connection, which is not answered; undefined: it is dropped

sub half_open {
    my ($from, $number) = @_;
    my $datagram = initial("\x08" . chr($number) . 'nonce77', 'client');
    my $overload = $t->counters($stats)->{overload};

    $from->send($datagram);

    my $ready = $t->wait_for('a leg or none', sub {
        IO::Select->new($backends[$number])->can_read(0)
        || $t->counters($stats)->{overload} > $overload && 'none'
    });
    return undef if $ready eq 'none';

    my $leg = $backends[$number]->recv(my $got, 2048);

    return $got eq $datagram ? (unpack_sockaddr_in($leg))[0] : undef;
}


# the number of the server that gets the client's datagram, and its address as
# this server sees it

sub served {
    my ($datagram) = @_;

    $client->send($datagram);

    my ($ready) = IO::Select->new(@backends)->can_read(30) or return;
    my $from = $ready->recv(my $got, 2048);
    return if $got ne $datagram;

    my ($number) = grep { $backends[$_] == $ready } 0 .. $#backends;

    return wantarray ? ($number, $from) : $number;
}


# begins the connection with this number; the server that answers

sub connection {
    my ($number) = @_;
    my ($server, $from) = served(initial("first $number", "client $number"));
    return undef if !defined $server;

    my $answer = initial("client $number", "server $number");

    $backends[$server]->send($answer, 0, $from);

    return (udp_receive($client) // '') eq $answer ? $server : undef;
}


sub continuation {
    my ($number) = @_;

    return handshake("server $number", "client $number");
}


# a connection in which the client has sent again; false: there is no room

sub established {
    my $overload = $t->counters($stats)->{overload};

    $client->send(initial('first', 'client 0'));

    my ($ready) = $t->wait_for('a flow or none', sub {
        my ($found) = IO::Select->new(@backends)->can_read(0);
        return $found // $t->counters($stats)->{overload} > $overload;
    });
    return 0 if !ref $ready;

    my $from = $ready->recv(my $got, 2048);
    $ready->send(initial('client 0', 'server 0'), 0, $from);

    return defined udp_receive($client) && defined served(continuation(0));
}
