#!/usr/bin/perl

# A backend that is gone: told by ICMP, or only by its silence; and one that
# is down by configuration.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial long short/;
use QuicLB::Udp;

# workers, and lines a second that each logs about peers that fail
use constant { WORKERS => 2, LINES => 8 };

# clients at once: no more than a socket's buffer has room for
use constant BURST => 80;

my %ids = map { ("s$_" => "0$_") } 1 .. 3;

my $t = QuicLB->new();
my ($port, $lone, $none, $out, $closed, $shut, $stats) =
    map { $t->port() } 1 .. 7;

my %servers = map {
    $_ => $t->servers([[$_, '127.0.0.1:' . $t->port(), $ids{$_}]],
                      '--nonce-length', 7)
} sort keys %ids;

my $map = join "\n", map { $servers{$_}->id_lines({ $_ => $ids{$_} }) }
                     sort keys %ids;

sub conf {
    my (%parameters) = @_;

    my $lines = join "\n", map {
        $servers{$_}->lines({ $_ => $ids{$_} }, $parameters{$_})
    } sort keys %ids;

    $t->conf(workers => WORKERS, stream => <<"CONF");
        log_format route '\$remote_port \$quic_routed_by \$upstream_addr';
        access_log @{[$t->path('access.log')]} route;

        upstream h3 {
            zone h3 1m;
            $lines

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                $map
            }
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            quic_passthrough h3;
            quic_passthrough_timeout 2s;
        }

        upstream lone {
            server 127.0.0.1:$closed;
            quic_maglev;
        }

        server {
            listen 127.0.0.1:$lone udp reuseport;
            quic_passthrough lone;
            quic_passthrough_timeout 2s;
        }

        upstream none {
            server 127.0.0.1:$closed;
            server 127.0.0.1:$shut;
            quic_maglev;
        }

        server {
            listen 127.0.0.1:$none udp reuseport;
            quic_passthrough none;
            quic_passthrough_timeout 2s;
        }

        upstream out {
            server 127.0.0.1:$closed down;
            server 127.0.0.1:$shut down;
            quic_maglev;
        }

        server {
            listen 127.0.0.1:$out udp reuseport;
            quic_passthrough out;
        }

        @{[$t->counters_server($stats, qw/received unroutable refused
                                          no_backend/)]}
CONF
}

sub servers_of {
    my ($report) = @_;

    my %count;
    $count{$_->{server}}++ for @{ $report->{connections} };

    return \%count;
}

sub run {
    my ($connections, @steps) = @_;

    return $t->client('--connect', "127.0.0.1:$port",
                      '--connections', $connections, 'run', 'get:/name',
                      @steps);
}

conf(map { $_ => 'fail_timeout=30s' } keys %ids);
$t->start();

is(scalar(keys %{ servers_of(run(30)) }), 3, 'all servers are used');


# killed: the first to find out tries again, the others avoid it at once

my $held = $t->client_start('--connect', "127.0.0.1:$port", '--timeout', 20,
                            '--connections', 12, 'hold');
$held->ready();

$servers{s2}->stop('KILL');

my $report = run(30);
is($report->{failed}, 0, 'no connection fails for a killed server')
    or $t->explain($report);
is(servers_of($report)->{s2}, undef, 'which gets none');

my $killed = $servers{s2}->address('s2');
my $server = qr/server "\Q$killed\E" in upstream "h3"/;
cmp_ok($t->log_count(qr/$server does not take datagrams/), '>', 0,
       'the log names the server, and what happened');
cmp_ok($t->log_count(qr/temporarily disabled.* $server$/), '>', 0,
       'also where the balancer takes it out');

$report = run(20);
is($report->{failed}, 0, 'later connections');

my @flows = map { $_->{locals}[0] =~ /:(\d+)$/ } @{ $report->{connections} };
my %upstreams;
$t->wait_for('their flows to end', sub {
    %upstreams = $t->read('access.log') =~ /^(\d+) \S+ (.*)$/mg;
    return !grep { !defined $upstreams{$_} } @flows;
});

is_deeply([grep { /\Q$killed\E/ } @upstreams{@flows}], [],
          'do not even try it');


# a flow whose server is gone: what names the server still goes there and
# nowhere else, all other packets do not follow

my $named = "\x08\x02nonce77";
my $unknown = "\xe8" . 'unknown';
my $unroutable = $t->counters($stats)->{unroutable};

my $client = udp_connect('127.0.0.1', $port);
my $dropped = $t->wait_for('the end of the address rule', sub {
    $client->send(short($named, 'payload'));
    $client->send(short($unknown, 'payload'));
    return $t->counters($stats)->{unroutable} > $unroutable;
});
ok($dropped, 'a short header of another connection is dropped');

# from now on somebody hears what is sent to the killed server
my $heir = udp_bind('127.0.0.1', $servers{s2}->port('s2'));

my @opening = ("\x08\x02another", map { "$unknown$_" } 1 .. 20);

$client->send(initial($_, 'scid')) for @opening;
$client->send(short($named, 'marker'));

my %issued = map { pack('H*', $_->{cid}) => 1 }
             $servers{s2}->events(event => 'issued');
my (%heard, @strange);

$t->wait_for('what is for the killed server', sub {
    my $datagram = udp_receive($heir, 1) // return 0;

    if ($datagram =~ /marker$/) {
        $heard{marker} = 1;

    } elsif ($issued{substr $datagram, 1, 9}) {
        $heard{held} = 1;

    } elsif ($datagram ne short($named, 'payload')) {
        push @strange, unpack 'H*', $datagram;
    }

    return $heard{marker} && $heard{held};
});

ok($heard{marker}, 'a short header with its ID goes to the killed server');
ok($heard{held}, 'and so do those of its old connections');
is_deeply(\@strange, [], 'but no Initial does');

my $elsewhere = $t->wait_for('the Initials', sub {
    my @seen = map { $servers{$_}->events(event => 'datagram',
                                          type => 'initial') } qw/s1 s3/;
    my %seen = map { $_->{dcid} => 1 } @seen;

    return !grep { !$seen{unpack 'H*', $_} } @opening;
});
ok($elsewhere, 'they go elsewhere');

my $routes = $t->routes(values %servers);
is($routes->{misrouted_count}, 0, 'no other server sees an ID of that one')
    or diag(explain($routes->{misrouted}));
$held->stop_and_report();
close $heir;


# the only server of an upstream is tried again and again, on one socket

$client = udp_connect('127.0.0.1', $lone);
my $sent = 0;

# one line a second: from the first to the third is more than a second
my $logged = 0;
$t->wait_for('lines in the log', sub {
    $client->send(long(0xff000001, pack('N2', rand(2**32), $sent++)))
        for 1 .. 5;
    $logged = $t->log_count(qr/:$closed" in upstream "lone" does not take/);
    return $logged >= 3 && $sent > 10 * $logged;
});
cmp_ok($logged, '>=', 3, 'a dead server is in the log');
cmp_ok($sent, '>', 10 * $logged, 'which is not flooded by it');

my $flow = $client->sockport;
my $ended = $t->wait_for('its flow to end', sub {
    $t->access_count(qr/^$flow /)
});
my $single = qr/^$flow (?:maglev|address) 127\.0\.0\.1:$closed$/;
is($t->access_count($single), $ended,
   'the flow has it once as its upstream address')
    or diag($t->read('access.log') =~ /^($flow .*)$/mg);


# nor is it by new clients, when no server is left to try

my $disabled = qr/temporarily disabled.* in upstream "none"$/;
my ($began, $clients, $allowed) = (time(), 0, 0);

$t->wait_for('more clients than lines', sub {
    my $received = $t->counters($stats)->{received};

    for my $n (1 .. BURST) {
        my $new = udp_connect('127.0.0.1', $none);
        $new->send(initial(pack('NN', $clients++, $n), 'scid'));
    }

    $t->wait_for('them to be read', sub {
        $t->counters($stats)->{received} >= $received + BURST;
    });

    $allowed = WORKERS * LINES * (time() - $began + 2);
    return $clients > 3 * $allowed;
});

$logged = $t->log_count($disabled);
cmp_ok($logged, '>', 0, 'that servers fail is in the log');
cmp_ok($logged, '<=', $allowed, 'but not once for each client');
cmp_ok($clients, '>', $allowed, 'of which there were more');


# no server at all: each datagram counts as such, not only a flow's first

my $before = $t->counters($stats);
my $after;

$client = udp_connect('127.0.0.1', $out);
$client->send(initial("unserved$_", 'scid')) for 1 .. 5;

$t->wait_for('them to be dropped', sub {
    $after = $t->counters($stats);
    return $after->{no_backend} + $after->{refused}
           >= $before->{no_backend} + $before->{refused} + 5;
});

is($after->{no_backend} - $before->{no_backend}, 5,
   'a total outage is in no_backend');
is($after->{refused}, $before->{refused}, 'and in no other counter');


# down: no new connections, but those that are established go on

conf(s2 => 'down');
$t->reload();

$held = $t->client_start('--connect', "127.0.0.1:$port",
                         '--connections', 20, 'hold');
$held->ready();

conf(s2 => 'down', s3 => 'down');
$t->reload();

is($held->command('progress 3')->{failed}, 0,
   'connections of a server that is now down go on');

is_deeply(servers_of(run(10)), { s1 => 10 }, 'new ones avoid it');

$held->command('migrate');
is($held->command('progress 3')->{failed}, 0, 'and may still migrate');
is($held->stop_and_report()->{failed}, 0, 'to their end');


# silent: new connections move on when two clients, that is addresses, have had
# no answer for so long

conf(s1 => 'max_fails=1 fail_timeout=60s', s2 => 'down');
$t->reload();

$servers{s1}->command('pause', 's1');
my @clients = map {
    $t->client_start('--connect', "127.0.0.1:$port", '--local', $_,
                     '--connections', 12, 'run', 'get:/name')
} '127.0.0.1', '127.0.0.2';

for my $client (@clients) {
    $report = $client->report();
    is($report->{failed}, 0, 'connections leave a silent server')
        or $t->explain($report);
    is_deeply(servers_of($report), { s3 => 12 }, 'for the one that answers');
}

$report = run(10);
is($report->{failed}, 0, 'later ones');

my %asked = map { $_->{dcid} // '' => 1 }
            $servers{s1}->events(event => 'datagram', type => 'initial');
is_deeply([grep { $asked{$_} } map { $_->{dcids}[0] }
                               @{ $report->{connections} }], [],
          'do not wait for it');

$t->done();
