#!/usr/bin/env perl

# The harness itself: codec, servers, clients and nginx control, each shown to
# work without the balancer, and to notice what they exist to notice.

use strict;
use warnings;

use FindBin;
use IO::Select;
use IO::Socket::IP;
use JSON::PP;
use Socket qw/SOCK_DGRAM/;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Process qw/slurp/;

my $key = '8f95f09245765f80256934e50c66207f';
my $v2 = 0x6b3343cf;

my $t = QuicLB->new();


# QUIC-LB codec against the vectors

my $vectors = decode_json(slurp("$FindBin::Bin/assets/quic-lb.json"));
my @vectors = @{ $vectors->{vectors} };

cmp_ok(scalar @vectors, '>=', 6, 'vectors');

for my $v (@vectors) {
    my @key = ($v->{config_id}, $v->{key} // '-');
    my @lengths = map { length($v->{$_}) / 2 } qw/server_id nonce/;

    is(quic_lb('encode', @key, $v->{server_id}, $v->{nonce}), $v->{cid},
       "encode $v->{cid}");
    is(quic_lb('decode', @key, @lengths, $v->{cid}),
       "$v->{server_id} $v->{nonce}", "decode $v->{cid}");
}

isnt($t->run('short', 'python3', '-B', "$FindBin::Bin/lib/quic_lb.py",
             'decode', 0, $key, 3, 4, '0720b1d07b359d'), 0,
     'short connection ID refused');


# servers of all kinds

my $lb = $t->servers([['one', '127.0.0.1:0', 'aabbcc'],
                      ['two', '[::1]:0', '0000ff']], '--lb-key', $key);
my $plain = $t->servers([['plain', '127.0.0.1:0', '0102030405060708090a'],
                         ['random', '127.0.0.1:0', '-'],
                         ['failover', '127.0.0.1:0', 'failover']],
                        '--config-id', 5, '--nonce-length', 6,
                        '--extra', 2, '--no-self-length',
                        '--random-length', 11);

my $one = $lb->address('one');
my $two = $lb->address('two');

check(client($one, 'run', 'get:/name'), 'one', 'HTTP/3 name, IPv4');
check(client($two, '--cafile', ($t->certificate())[0], 'run', 'get:/name'),
      'two', 'HTTP/3 name, IPv6, certificate verified');
check(client($one, 'run', 'get:/bytes/300000', 'get:/bytes/0', 'post:200000'),
      'one', 'verified download and upload');

for my $name (qw/plain random/) {
    check(client($plain->address($name), 'run', 'get:/name', 'migrate'),
          $name, "$name connection IDs, migration");
}

check(client($plain->address('failover'), 'run', 'rebind', 'get:/name'),
      'failover', '0b111 connection IDs, rebinding');

my @ids = issued($lb, 'one');
my %seen = map { quic_lb('decode', 0, $key, 3, 4, $_) => 1 } @ids[0 .. 7];

is(scalar keys %seen, 8, 'connection IDs are distinct');
is((grep { /^aabbcc / } keys %seen), 8, 'connection IDs carry the server ID');

my ($id) = issued($plain, 'plain');

is(length($id) / 2, 19, 'octets appended');
like(quic_lb('decode', 5, '-', 10, 6, substr($id, 0, 34)),
     qr/^0102030405060708090a /, 'plaintext server ID');
is((grep { hex(substr $_, 0, 2) >> 5 != 7 } issued($plain, 'failover')), 0,
   '0b111 in every connection ID');
is(scalar(issued($plain, 'failover')), 1, 'no NEW_CONNECTION_ID with 0b111');
is(length((issued($plain, 'random'))[0]) / 2, 11, 'random length');


# versions, connection ID lengths, addresses

my $report = client($one, '--version', 2, 'run', 'get:/name');

check($report, 'one', 'QUIC version 2');
is($report->{connections}[0]{version}, $v2, 'version 2 negotiated');

$report = client($one, '--version', 'upgrade', 'run', 'get:/name');

check($report, 'one', 'upgrade from version 1');
is($report->{connections}[0]{version}, $v2, 'version upgraded');

check(client($one, '--cid-length', 0, 'run', 'transfer:300000:rebind'),
      'one', 'zero-length client connection ID');

$report = client($one, '--dcid', '07' x 9, '--local', '127.0.0.3', 'run');

check($report, 'one', 'chosen first DCID and local address');
is($report->{connections}[0]{dcids}[0], '07' x 9, 'first DCID as asked');
like($report->{connections}[0]{locals}[0], qr/^127\.0\.0\.3:/, 'bound address');


# moving in mid-transfer

$report = client($one, '--alpn', 'echo', 'run',
                 'transfer:1000000:rebind:migrate:rebind', 'datagrams:20');

check($report, 'one', 'echo, rebound and migrated');

my $connection = $report->{connections}[0];
my @dcids = @{ $connection->{dcids} };
my ($issued_first) = map { $_->{cid} } grep { $_->{connection} eq $dcids[0] }
                                       $lb->events(event => 'issued');

is($connection->{octets_received}, 1000000, 'all octets echoed');
is($connection->{datagrams_echoed}, 20, 'all DATAGRAM frames echoed');
is(scalar @dcids, 3, 'one new connection ID');
is($dcids[1], $issued_first, "the server's ID follows the first DCID");
is(route($dcids[0])->{addresses}, 4, 'four addresses seen by the server');
cmp_ok(route($dcids[0])->{path_changes}, '>=', 3, 'three path changes');

$report = client($one, '--rate', 400000, 'run',
                 'transfer:1000000:migrate:rebind:migrate');

check($report, 'one', 'paced download, migrated twice');
is($report->{connections}[0]{migrations}, 2, 'migrations counted');


is($t->run('pair', 'python3', '-B', "$FindBin::Bin/lib/quic_pair.py",
           $t->certificate()), 0, 'a move in the worst case');


# many

$report = client($one, '--alpn', 'echo', '--connections', 8,
                 '--shared-socket', 'run', 'transfer:100000', 'datagrams:5');

check($report, 'one', '8 connections on one socket', 8);
is(scalar(uniq(map { @{ $_->{locals} } } @{ $report->{connections} })), 1,
   'one socket indeed');

check(client($one, '--alpn', 'echo', '--connections', 50, 'run',
             'transfer:50000:rebind:migrate'),
      'one', '50 connections in parallel', 50);

my $routes = $t->routes($lb, $plain);
my @connections = values %{ $routes->{connections} };

is($routes->{misrouted_count}, 0, 'nothing misrouted');
is((grep { @{ $_->{servers} } != 1 || $_->{server} ne $_->{servers}[0] }
         @connections), 0, 'every connection at one server');

for my $alpn (qw/echo h3/) {
    my $hold = hold($one, $alpn, '--connections', 10);

    is($hold->ready()->{alive}, 10, "$alpn: held");
    is($hold->command("$_->[0]")->{failed}, 0, "$alpn: $_->[1]")
        for ['progress 3', 'progress'], ['rebind', 'rebound'],
            ['migrate', 'migrated'], ['status', 'status'];

    check($hold->stop_and_report(), 'one', "$alpn: held to the end", 10);
}


# curl

my ($code, $body) = $t->curl('--http3-only', "https://$one/name");

is($code, 0, 'curl over HTTP/3');
is($body, "one\n", 'curl got the name');

($code, $body) = $t->curl('--http3-only', '--output', $t->path('body'),
                          '--write-out', '%{size_download} %{http_version}',
                          "https://$one/bytes/1000000");

is($body, '1000000 3', 'curl downloads');


# servers that fail

my $hold = hold($one, 'echo', '--connections', 2, '--timeout', 5);
is($hold->ready()->{alive}, 2, 'before the black hole');

$lb->command('pause', 'one');
$hold->wait_failed(2);
$lb->command('resume', 'one');
$report = $hold->stop_and_report();

is($report->{failed}, 2, 'a black hole fails the connections');
isnt($report->{status}, 0, 'failure is in the exit status');
ok((grep { $_->{paused} } $lb->events(event => 'datagram')),
   'a black hole still logs');

$lb->command('close', 'two');
$report = client($two, '--timeout', 1, 'run');

is($report->{failed}, 1, 'a closed server fails the connection');
like($report->{connections}[0]{error}, qr/handshake: timeout/, 'reason named');

$report = client($one, 'run', 'get:/none');

like($report->{connections}[0]{error}, qr/status 404/, 'a wrong status fails');

$report = client($plain->address('failover'), '--timeout', 5, 'run',
                 'migrate');

like($report->{connections}[0]{error}, qr/connection ID to migrate/,
     'no migration without a new connection ID');


# answers that are not the connection's

like(fooled(sub { my ($s, $peer) = @_; other_socket()->send('x', 0, $peer) }),
     qr/^answer from 127\.0\.0\.1:\d+, asked/, 'a wrong source is reported');
like(fooled(sub { my ($s, $peer) = @_; $s->send('@' . 'x' x 30, 0, $peer) }),
     qr/^datagram for no connection/, 'a short header for nobody is reported');
like(fooled(sub {
         my ($s, $peer) = @_;
         $s->send("\xc0\0\0\0\1\x08" . 'y' x 8 . "\0" . 'x' x 30, 0, $peer)
     }), qr/^datagram for no connection/, 'a long header, too');

is($t->run('verify', 'python3', '-B', '-c', <<'EOF', "$FindBin::Bin/lib"), 0,
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from quic_connection import EchoStream, Response
from quic_net import PERIOD, pattern
from aioquic.h3.events import DataReceived

async def main():
    stream = EchoStream(5)
    sent = stream.next(100000)
    assert stream.receive(sent[:70000], False)
    assert not stream.receive(sent[70001:], True)
    assert not stream.receive(sent[:1], True)

    for start in 1, 70000:
        response = Response(True, asyncio.get_running_loop().create_future())
        response.event(DataReceived(pattern(start, 9), 0, False))
        assert response.future.exception()

asyncio.run(main())
EOF
   'wrong content is noticed');

my %datagram = (event => 'datagram', server => 'b', known => undef,
                type => undef, dcid => 'aa', peer => 'p');
my %issued = (event => 'issued', server => 'a', cid => 'aa',
              connection => '11');

is(misrouted(\%issued, \%datagram), 1,
   'a packet at the wrong server is misrouted');
is(misrouted(\%datagram), 1, 'a packet for nobody is');
is(misrouted(\%issued, { %datagram, type => 'initial', dcid => '11' }), 0,
   'a first Initial is not');
is(misrouted(\%issued, { %datagram, type => 'initial' }), 1,
   'an Initial to a connection ID of another server is');


# nginx

my $port = $t->port();

ok(QuicLB::port_free($port) && !QuicLB::reserve($port),
   'a port is free, and reserved');

my $http = <<"EOF";
    server {
        listen 127.0.0.1:$port;
        return 200 "pid \$pid\\n";
    }
EOF

$t->conf(workers => 2, http => $http);
$t->start();

my $master = $t->master();
my @workers = $t->workers();

is(scalar @workers, 2, 'two workers');
like(($t->curl("http://127.0.0.1:$port/"))[1], qr/^pid \d+$/, 'nginx answers');

$t->conf(workers => 3, http => $http);
ok($t->reload(), 'reload');
is($t->master(), $master, 'the same master');
is(scalar(uniq(@workers, $t->workers())), 5, 'three new workers');

my ($ok, $output) = $t->test_conf(http => "no_such_directive on;");

ok(!$ok, 'nginx -t refuses');
like($output, qr/unknown directive "no_such_directive"/, 'and says why');

$t->conf(workers => 3, http => "no_such_directive on;");
$t->expect_log(qr/unknown directive "no_such_directive"/);
ok(!$t->reload(), 'a refused reload is noticed');

$t->conf(workers => 3, http => $http);

my $old = $t->upgrade();

is($old, $master, 'upgraded from the old master');
ok($t->wait_gone($old), 'the old master ends');
isnt($t->master(), $old, 'a new master');

my ($victim) = $t->workers();

$t->kill_worker($victim);
ok(QuicLB::Process::pid_gone($victim), 'a killed worker is gone');
ok($t->wait_for('a new worker', sub { $t->workers() == 3 }),
   'a killed worker is replaced');

my @last = $t->workers();

ok($t->stop('QUIT'), 'nginx ends');
is((grep { !QuicLB::Process::pid_gone($_) } @last), 0, 'its workers, too');


# the harness's own checks

my $bad = QuicLB->new();

$bad->write('error.log', "1 [alert] 1#1: oops\n2 [emerg] 1#1: wanted\n"
                         . "==1==ERROR: AddressSanitizer: heap\n");
$bad->expect_log(qr/wanted/);
$bad->run('trace', 'python3', '-c', 'raise Exception("oops")');

my %faults = $bad->faults();

is_deeply([map { scalar @{ $faults{$_} } > 0 } sort keys %faults], [1, 1, 1],
          'every kind of fault is found');
is_deeply($faults{'alert or emerg in error.log'}, ['1 [alert] 1#1: oops'],
          'but for the wanted line');

$bad->{checked} = 1;


$t->done();


sub quic_lb {
    my @arguments = @_;

    $t->run('quic_lb', 'python3', '-B', "$FindBin::Bin/lib/quic_lb.py",
            @arguments);

    return $t->read('quic_lb.out') =~ s/\n//r;
}


sub client {
    my ($address, @arguments) = @_;

    return $t->client('--connect', $address, @arguments);
}


sub hold {
    my ($address, $alpn, @arguments) = @_;

    return $t->client_start('--connect', $address, '--alpn', $alpn,
                            @arguments, 'hold');
}


# all of $count connections succeeded, on the server $name

sub check {
    my ($report, $name, $what, $count) = @_;

    my @connections = @{ $report->{connections} };
    my @right = grep { $_->{ok} && $_->{server} eq $name
                       && $_->{server_end} eq $name } @connections;

    ok($report->{ok} && $report->{status} == 0
       && @right == ($count // 1) && @right == @connections, $what)
        or $t->explain($report);
}


sub issued {
    my ($servers, $name) = @_;

    return map { $_->{cid} }
           $servers->events(event => 'issued', server => $name);
}


sub route {
    my ($connection) = @_;

    return $t->routes($lb)->{connections}{$connection};
}


# how many of made-up events quic_log.py finds misrouted

sub misrouted {
    my @lines = map { encode_json($_) . "\n" } @_;

    $t->write('made-up.log', join('', @lines));
    $t->run('made-up', 'python3', '-B', "$FindBin::Bin/lib/quic_log.py",
            $t->path('made-up.log'));

    return decode_json($t->read('made-up.out'))->{misrouted_count};
}


sub uniq {
    my %seen = map { $_ => 1 } @_;

    return keys %seen;
}


sub other_socket {
    return IO::Socket::IP->new(LocalHost => '127.0.0.1', Type => SOCK_DGRAM);
}


# the error a client reports when a false server answers by $answer

sub fooled {
    my ($answer) = @_;

    my $socket = other_socket();
    my $client = $t->client_start('--timeout', 5, '--connect',
                                  '127.0.0.1:' . $socket->sockport(), 'run');

    IO::Select->new($socket)->can_read(30) or return 'no client';
    my $peer = $socket->recv(my $initial, 65536);
    $answer->($socket, $peer);

    my $report = $client->report();

    return $report->{status} ? $report->{errors}[0] : 'exit status 0';
}
