#!/usr/bin/perl

# Workers that are killed while they write to the zone of learned connection
# IDs: what it has is kept, and the others go on.

use strict;
use warnings;

use IO::Select;
use POSIX ();
use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial short/;
use QuicLB::Udp;

# octets of the zone: no other one has that size
use constant ZONE => 36864;

# IDs: more than the zone has room for
use constant MANY => 1000;

# at random, of which hardly one meets a lock
use constant KILLS => 20;

my $t = QuicLB->new();
my ($port, $counters_port) = ($t->port(), $t->port());

my $kill = $t->path('kill_at_store');
is(system(qw/cc -O2 -W -Wall -Werror -o/, $kill,
          "$FindBin::Bin/lib/kill_at_store.c"), 0, 'the killer');

my $backend = udp_bind('127.0.0.1');

$t->conf(stream => <<"CONF");
    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough 127.0.0.1:@{[$backend->sockport]};
        quic_passthrough_cid_zone zone=cids:@{[ZONE]} timeout=1h;
    }

    @{[$t->counters_server($counters_port, qw/learned unroutable/)]}
CONF

$t->start();

my $client = udp_connect('127.0.0.1', $port);


# a full zone: each new ID makes room for itself

greet();
answer('keepthis');
ok(routes('keepthis'), 'an ID in use');

fill('fill');
ok(routes(pack 'a4N', 'fill', MANY), 'a full zone');
ok(!routes(pack 'a4N', 'fill', 1), 'the oldest IDs are gone');


# killed after the first store, and so on, to the last

my ($kills, $end) = (0, 0);

for (my $n = 1; !$end; $n++) {
    my ($worker) = $t->workers();

    greet();

    $t->expect_log(qr/worker process $worker exited on signal 9/);
    $t->expect_log(qr/shared memory zone .* was locked by $worker$/);

    my $killer = $t->helper("killer$n", $kill, $worker, ZONE, $n);
    $killer->wait_line(qr/^attached/) or die $killer->stderr();

    $backend->send(initial('clntscid', pack 'a4N', 'kill', $n));

    my ($how) = $killer->wait_line(qr/^(killed|ended) /, 240)
        or die $killer->stderr();

    $t->wait_for('another worker', sub {
        my @workers = $t->workers();
        @workers == 1 && $workers[0] != $worker;
    });

    $kills++;
    $end = $how eq 'ended';
}

cmp_ok($kills, '>', 10, "killed at $kills places");

ok(routes('keepthis'), 'what was known is known');
ok(routes(pack 'a4N', 'fill', MANY), 'what no client has used, too');

fill('more');
ok(routes(pack 'a4N', 'more', MANY), 'new IDs are learned');
ok(!routes(pack 'a4N', 'more', 1), 'and the oldest make room');
cmp_ok($t->log_count(qr/\[notice\].* zone "cids" .* is repaired/), '>', 0,
       'a line tells of the repair');


# killed at random, while IDs are learned and used

my $server = fork() // die "fork: $!";
serve() if $server == 0;

my $load = fork() // die "fork: $!";
load() if $load == 0;

for (1 .. KILLS) {
    my $before = learned();

    $t->wait_for('new IDs', sub { learned() > $before + 20 });

    my ($worker) = $t->workers();

    $t->kill_worker($worker);
    $t->wait_for('another worker', sub {
        my @workers = $t->workers();
        @workers == 1 && $workers[0] != $worker;
    });
}

kill 'KILL', $load, $server;
waitpid $_, 0 for $load, $server;
udp_drain($backend);

$client = udp_connect('127.0.0.1', $port);
fill('last');
ok(routes(pack 'a4N', 'last', MANY), 'after all that IDs are learned');

ok($t->reload(), 'reload');
ok(routes(pack 'a4N', 'last', MANY), 'they are kept');

is($t->log_count(qr/exited on signal (?!9\b)/), 0, 'no worker has crashed');

$t->done();


# an Initial comes to the backend, from a leg of the worker that is there now

sub greet {
    $client->send(initial('clientid', 'clntscid'));
    defined udp_receive($backend) or die 'nothing reaches the backend';
}


sub answer {
    my ($cid) = @_;

    $backend->send(initial('clntscid', $cid));
    defined udp_receive($client) or die 'nothing reaches the client';
}


sub fill {
    my ($name) = @_;

    udp_drain($client);
    greet();
    answer(pack 'a4N', $name, $_) for 1 .. MANY;
}


# whether a short header with that ID reaches the backend from a new address

sub routes {
    my ($cid) = @_;

    my $other = udp_connect('127.0.0.1', $port);
    my $dropped = counter('unroutable');

    $other->send(short($cid, 'x' x 40));
    $t->wait_for('a decision', sub {
        counter('unroutable') > $dropped
        || IO::Select->new($backend)->can_read(0);
    });

    return defined udp_receive($backend, 0);
}


sub counter {
    my ($name) = @_;

    return $t->counters($counters_port)->{$name};
}


sub learned { return counter('learned') }


# answers each Initial with an ID of its own, until it is killed

sub serve {
    my $n = 0;

    while (defined udp_receive($backend, 600)) {
        $backend->send(initial('clntscid', pack 'a4N', 'serv', $n++));
    }

    POSIX::_exit(0);
}


# each answer is asked for, and its ID used, until it is killed

sub load {
    my $ask = udp_connect('127.0.0.1', $port);
    my $n = 0;

    while (1) {
        $ask->send(initial('clientid', 'clntscid'));

        # a worker that is killed takes some with it
        my $answer = udp_receive($ask, 1) // next;

        $ask->send(short(substr($answer, 15, 8), 'x' x 40));
    }
}
