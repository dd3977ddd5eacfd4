#!/usr/bin/perl

# quic_health_check: what it takes each kind of backend for, that new
# connections avoid those that fail and established ones notice nothing,
# recovery, reloads, the death of workers, and configurations.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw/time/;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

# servers that answer have three of them for it
use constant INTERVAL => 0.7;

my %ids = (good => '01', fickle => '02');

my $t = QuicLB->new();
my ($port, $lone, $http3, $closed, $nobody, $stats) =
    map { $t->port() } 1 .. 6;

my %servers = map {
    $_ => $t->servers([[$_, '127.0.0.1:0', $ids{$_}]], '--nonce-length', 7)
} sort keys %ids;

my $hole = $t->servers([['hole', '127.0.0.1:0', '-']]);
$hole->command('pause', 'hole');

my %garbage = map {
    my $process = $t->helper("garbage-$_", 'python3', '-B',
                             "$FindBin::Bin/lib/udp_garbage.py",
                             '127.0.0.1:0', $_);
    my ($number) = $process->wait_line(qr/^ready (\d+)$/)
        or die "garbage:\n" . $process->stderr();
    $_ => "127.0.0.1:$number"
} qw/echo negotiation/;

my %address = (
    (map { $_ => $servers{$_}->address($_) } keys %servers),
    hole => $hole->address('hole'),
    http3 => "127.0.0.1:$http3",
    closed => "127.0.0.1:$closed",
    %garbage,
);

sub conf {
    my (%options) = @_;

    my ($cert, $key) = $t->certificate();
    my $check = $options{check} // 'interval=700ms jitter=20ms';
    my $lines = join "\n", map {
        my $backup = $_ eq 'http3' ? 'backup' : '';
        "server $address{$_} max_fails=0 $backup;"
    } sort keys %address;
    my $map = join "\n", map { $servers{$_}->id_lines({ $_ => $ids{$_} }) }
                         sort keys %ids;

    $t->conf(workers => 2, main => 'worker_shutdown_timeout 5s;',
             stream => <<"STREAM", http => <<"HTTP");
        upstream h3 {
            quic_health_check $check;
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
        }

        # what fails is asked at another port, and not the server
        upstream lone {
            zone lone 256k;
            server $address{good};
            quic_maglev;
            quic_health_check interval=100ms port=$nobody fails=2;
        }

        server {
            listen 127.0.0.1:$lone udp reuseport;
            quic_passthrough lone;
        }

        # a name that has no check is empty
        upstream none {
            server $address{good};
        }

        server {
            listen 127.0.0.1:$stats;
            return "\$quic_health_h3\$quic_health_lone\$quic_health_none";
        }
STREAM
        access_log off;

        server {
            listen 127.0.0.1:$http3 quic reuseport;
            ssl_certificate $cert;
            ssl_certificate_key $key;
            return 204;
        }
HTTP
}

# by name, of the upstream h3; with "lone" of the other

sub states {
    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $stats, Timeout => 5)
        or die "states: $@";
    my @lines = map { [split] } <$socket>;

    my %names = reverse %address;
    my %states = (lone => (pop @lines)->[1]);
    $states{$names{$_->[0]}} = $_->[1] for @lines;

    return \%states;
}

sub wait_states {
    my (%wanted) = @_;

    my $states;

    return $t->wait_for('states ' . join(' ', %wanted), sub {
        $states = states();
        return !grep { $states->{$_} ne $wanted{$_} } keys %wanted;
    }) || diag(explain($states));
}

sub run {
    my ($connections, $to, @arguments) = @_;

    return $t->client('--connect', "127.0.0.1:" . ($to // $port),
                      '--connections', $connections, @arguments,
                      'run', 'get:/name');
}

sub servers_of {
    my ($report) = @_;

    my %count;
    $count{$_->{server}}++ for @{ $report->{connections} };

    return join ' ', sort keys %count;
}

sub changes {
    my ($name) = @_;

    return $t->log_count(qr/server "\Q$address{$name}\E" in upstream "h3" is/);
}

sub probes {
    my ($servers) = @_;

    return grep { $_->{size} == 1200 && ($_->{type} // '') eq 'unknown' }
           $servers->events(event => 'datagram');
}


# the kinds of backends

conf();
$t->start();

my $unhealthy =
    qr/server "\Q$address{hole}\E" in upstream "h3" is not healthy/;
my $before_that = 0;

$t->wait_for('the judgement of a black hole', sub {
    my $asked = probes($hole);
    return 1 if $t->error_log() =~ $unhealthy;
    $before_that = $asked;
    return 0;
});

cmp_ok(scalar(probes($hole)), '>=', 3, 'a black hole is asked three times');
cmp_ok($before_that, '<=', 4, 'and no more until it is judged');

my %kinds = (good => 'alive', fickle => 'alive', http3 => 'alive',
             hole => 'silent', closed => 'closed',
             echo => 'garbage', negotiation => 'garbage', lone => 'closed');

wait_states(%kinds);
is_deeply(states(), \%kinds, 'each kind of backend is told apart');

for my $case (
    ['hole', qr/it does not answer, 3 times; new connections avoid it/],
    ['closed', qr/it cannot be reached, 3 times.*Connection refused/],
    ['echo', qr/it answers, but not with QUIC Version Negotiation, 3 times/],
) {
    my ($name, $line) = @$case;
    my $prefix = qr/\[error\].*server "\Q$address{$name}\E" in upstream "h3"/;

    is($t->log_count(qr/$prefix is not healthy: $line/), 1,
       "$name: the log tells what was seen");
}

is(scalar(grep { changes($_) } qw/good fickle http3/), 0,
   'and nothing of those that answer');

my %dcids = map { $_->{dcid} => 1 } probes($servers{good});
cmp_ok(keys %dcids, '>=', 3, 'each question has its own IDs');

my $report = run(40);
is($report->{failed}, 0, 'new connections') or $t->explain($report);
is(servers_of($report), 'fickle good', 'go where it is answered');

$report = run(3, $lone);
is($report->{failed}, 0, 'if all servers fail they are tried all the same')
    or $t->explain($report);


# one becomes a black hole: connections elsewhere, and recovery

my $held = $t->client_start('--connect', "127.0.0.1:$port", '--timeout', 60,
                            '--connections', 20, 'hold');
$held->ready();

$servers{fickle}->command('pause', 'fickle');
wait_states(fickle => 'silent');

my $now = time();

$report = run(30);
is($report->{failed}, 0, 'new connections') or $t->explain($report);
is(servers_of($report), 'good', 'avoid a server that has failed');

# what is held had requests before the server failed, and has some after that

my %requests;
my $going = $t->wait_for('requests on established connections', sub {
    %requests = ();
    $requests{$_->{connection}}[$_->{time} > $now]++
        for grep { $_->{path} ne '/name' }
            $servers{good}->events(event => 'request');

    return !grep { ($_->[1] // 0) < 3 } values %requests;
});

ok($going, 'established ones elsewhere go on');
cmp_ok(keys %requests, '>', 2, 'all of them');


# a reload keeps what is known, and says nothing of it again

my $before = $t->log_count(qr/is not healthy/);

conf(check => 'interval=701ms passes=3');
$t->reload();

my $states = states();
is_deeply([@$states{qw/good fickle hole closed/}],
          [qw/alive silent silent closed/], 'a reload keeps what is known');

my $seen = probes($hole);
$t->wait_for('more questions', sub { probes($hole) >= $seen + 4 });
is($t->log_count(qr/is not healthy/), $before, 'and does not log it again');

$servers{fickle}->command('resume', 'fickle');
wait_states(fickle => 'alive');
is($t->log_count(qr/"\Q$address{fickle}\E" .*healthy again.*answered 3 times/),
   1, 'the log tells of its recovery');

$report = run(40);
is(servers_of($report), 'fickle good', 'after which it is used again');

is($held->command('progress 3')->{failed}, 0, 'nobody has lost a connection');
$report = $held->stop_and_report();
is($report->{failed}, 0, 'to the end') or $t->explain($report);


# one worker asks, and another takes over from it

my $start = time();
$seen = probes($servers{good});
$t->wait_for('questions', sub { probes($servers{good}) >= $seen + 8 });

cmp_ok(probes($servers{good}) - $seen, '<=',
       (time() - $start) / INTERVAL + 2, 'one worker asks');

for my $pid ($t->workers()) {
    $t->kill_worker($pid);
    $t->wait_for('a new worker', sub { $t->workers() == 2 });
}

is(states()->{hole}, 'silent', 'what is known survives workers');

$servers{fickle}->command('close', 'fickle');
wait_states(fickle => 'closed');
is(states()->{fickle}, 'closed', 'and others go on asking');


# configurations

my $maglev = 'server 127.0.0.1:1; quic_maglev;';
my $invalid = qr/invalid parameter "[^"]*" in "quic_health_check" directive/;

for my $case (
    ["$maglev zone u 64k; quic_health_check;", undef],
    ["$maglev zone u 64k; quic_health_check interval=1m jitter=10s fails=1
      passes=1 port=443;", undef],
    ["quic_health_check; zone u 64k; $maglev", undef],
    ["$maglev quic_health_check;",
     qr/"quic_health_check" needs "zone", .*in upstream "u" in .*:\d+/],
    ['server 127.0.0.1:1; zone u 64k; quic_health_check;',
     qr/"quic_health_check" needs "quic_lb" or "quic_maglev", and no/],
    ["$maglev hash \$remote_addr; zone u 64k; quic_health_check;",
     qr/"quic_health_check" needs "quic_lb" or "quic_maglev", and no/],
    ["$maglev zone u 64k; quic_health_check; quic_health_check;",
     qr/"quic_health_check" directive is duplicate/],
    (map { ["$maglev zone u 64k; quic_health_check $_;", $invalid] }
     'interval=0', 'interval=99ms', 'interval=soon', 'interval=', 'fails=0',
     'fails=-1', 'fails=x', 'passes=0', 'port=0', 'port=65536', 'jitter=x',
     'jitter=-1s', 'uri=/', 'interval', 'interval=99999999999999999999s'),
) {
    my ($text, $regex) = @$case;
    my ($ok, $output) = $t->test_conf(stream => "upstream u { $text }
        server { listen 127.0.0.1:$port udp; quic_passthrough u; }");

    $text =~ s/\s+/ /g;
    like($output, $regex // qr/test is successful/, "nginx -t: $text");
}

$t->done();
