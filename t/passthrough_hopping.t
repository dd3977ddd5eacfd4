#!/usr/bin/perl

# Port hopping: "listen" with a range of 100 ports, and clients whose datagrams
# go to one of them after another.  To servers each port is another path.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

use constant { PORTS => 100, CONNECTIONS => 4, WORKERS => 2 };

# the least: two for each port, one for the counters and one for the master, two
# for a client, and a sixteenth for all else
use constant LEAST => 217;

my %ids = (one => '0a', two => '0b', three => '0c');

my $t = QuicLB->new();
my $stats = $t->port();
my ($first, $last) = ports();

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

my $stream = <<"CONF";
    upstream h3 {
        zone h3 256k;
        @{[$servers->lines(\%ids)]}

        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            @{[$servers->id_lines(\%ids)]}
        }
    }

    server {
        listen 127.0.0.1:$first-$last udp reuseport;
        quic_passthrough h3;
    }

    @{[$t->counters_server($stats, qw/received sent unroutable overload
                                      no_backend malformed flows/)]}
CONF

for my $workers (1, WORKERS) {
    my ($ok, $output) = $t->test_conf(workers => $workers, stream => $stream,
                                      connections => LEAST - 1);
    ok(!$ok, "$workers workers without connections for clients: refused");
    like($output, qr/ 216\ worker_connections\ are\ not\ enough\ for
                      \ 101\ listening\ sockets,\ of\ which\ 100\ are /x,
         'says why');
}

$t->conf(workers => WORKERS, connections => LEAST, stream => $stream);
$t->start();

my $one = $t->client('--connect', "127.0.0.1:$first", 'run', 'get:/name');
is($one->{failed}, 0, 'enough for a client') or $t->explain($one);

$t->conf(workers => WORKERS, connections => 1024, stream => $stream);
ok($t->reload(), 'more connections');


# now and then, as such clients do, and within a flight

for my $every (30, 1) {
    my $hop = $t->helper("hop$every", 'python3', '-B',
                         "$FindBin::Bin/lib/hop.py", '127.0.0.1', $first, $last,
                         $every);
    my ($port) = $hop->wait_line(qr/^ready (\d+)$/) or die $hop->stderr();

    my $size = $every == 1 ? 400_000 : 4_000_000;
    my $report = $t->client('--connect', "127.0.0.1:$port",
                            '--connections', CONNECTIONS, 'run',
                            "transfer:$size");

    is($report->{failed}, 0, "a new port for each $every datagrams")
        or $t->explain($report);
    is_deeply($report->{errors}, [], 'no datagram of others');

    close $hop->{stdin};
    my ($used, $answered) = $hop->wait_line(qr/^ports (\d+) (\d+)$/);

    is($used, PORTS, 'all ports are used');
    cmp_ok($answered, '>', PORTS / 2, 'and most have had something to answer');
}

my %servers;

for my $event ($servers->events(event => 'datagram')) {
    next if !defined $event->{connection};
    $servers{$event->{connection}}{$event->{server}} = 1;
}

is(scalar(keys %servers), 2 * CONNECTIONS + 1, 'connections');
is(scalar(grep { keys %$_ > 1 } values %servers), 0,
   'each at one server, whatever the port');

my $counters = $t->counters($stats);
is($counters->{sent}, $counters->{received}, 'nothing is dropped')
    or diag(join ' ', %$counters);


# the connections go on over a reload, on all ports

my $hop = $t->helper('hop', 'python3', '-B', "$FindBin::Bin/lib/hop.py",
                     '127.0.0.1', $first, $last, 5);
my ($port) = $hop->wait_line(qr/^ready (\d+)$/) or die $hop->stderr();

my $client = $t->client_start('--connect', "127.0.0.1:$port", '--alpn', 'echo',
                              '--connections', CONNECTIONS, 'hold');
is($client->ready()->{failed}, 0, 'connections');
ok($t->reload(), 'reload');
is($client->command('progress 5')->{failed}, 0, 'connections go on');
is($client->stop_and_report()->{failed}, 0, 'to the end');

$t->done();


# a range that is free

sub ports {
    for (1 .. 100) {
        my @found = sort { $a <=> $b } map { $t->port() } 1 .. PORTS;
        return @found[0, -1] if $found[-1] - $found[0] == PORTS - 1;
    }

    die 'no range of free ports';
}
