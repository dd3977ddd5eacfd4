#!/usr/bin/perl

# A flood of Initials from spoofed addresses: memory stays bounded, connections
# go on, at no less than half of their rate, and with adaptive Retry new ones
# complete; Retry begins and ends by itself.
#
# Environment: TEST_FLOOD_RATE, datagrams a second (5000, with ASan 2000);
# TEST_FLOOD_SECONDS, at least (8).

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Backends;
use QuicLB::Net;
use QuicLB::Process qw/slurp/;

my $rate = $ENV{TEST_FLOOD_RATE}
           // ($ENV{NGINX_FLAVOR} eq 'asan' ? 2000 : 5000);
my $seconds = $ENV{TEST_FLOOD_SECONDS} // 8;

# half-open flows of a worker: docs, "Connections and memory"
use constant { WORKERS => 2, CONNECTIONS => 2048, HALF_OPEN => 2048 / 4 };
use constant THRESHOLD => 100;

# octets a second
use constant RATE => 200000;

# per flow, with its session and leg, and what a worker may have otherwise
use constant { FLOW => 16, SLACK => 8192 };

my $t = QuicLB->new();
my $net = QuicLB::Net->new($t, qw/client attacker balancer/);

$net->link('client', '10.0.1.1/24', 'balancer', '10.0.1.2/24');
$net->link('attacker', '10.0.3.1/24', 'balancer', '10.0.3.2/24');
$net->ip('balancer', 'route add 10.128.0.0/9 via 10.0.3.1');
$net->ip('client', 'route add 10.0.3.2 via 10.0.1.2');
$net->sysctl('balancer', "net.ipv4.conf.$_.rp_filter=0") for qw/all attacker/;

my $spoof = $t->path('spoof');
is(system(qw/cc -O2 -W -Wall -Werror -o/, $spoof,
          "$FindBin::Bin/lib/spoof.c"), 0, 'the flood');

my $hellos = $t->path('hellos.out');
is($t->run('hellos', 'python3', '-B', "$FindBin::Bin/lib/half_hellos.py", 256),
   0, 'halves of ClientHellos');

my $key = $t->write('host.key', 'a key of the servers and of the balancer');
chmod 0600, $key;

my $backends = $net->in('balancer', sub {
    QuicLB::Backends->new($t, names => [qw/one two three/], host_key => $key);
});

my ($port, $stats) = map { $t->port() } 1 .. 2;
my $transfer;

sub conf {
    my ($mode) = @_;

    $t->conf(workers => WORKERS, connections => CONNECTIONS,
             stream => <<"CONF");
    upstream nginx {
        zone nginx 256k;
        @{[ $backends->lines() ]}
        quic_maglev;
    }

    server {
        listen 10.0.1.2:$port udp reuseport;
        listen 10.0.3.2:$port udp reuseport;

        quic_passthrough nginx;
        quic_passthrough_cid_zone zone=cids:1m;
        quic_passthrough_retry $mode;
        quic_passthrough_retry_key $key;
    }

    @{[ $t->counters_server($stats, qw/received flows evicted retry_sent
                                       retry_accepted retry_dropped
                                       overflow/) ]}
CONF
}


# without Retry the half-open flows are bounded, and connections go on

conf('off');
$net->in('balancer', sub { $t->start() });

my $held = hold();
my ($before, $peak) = flood(sub {
    transfer('without Retry');
    is($held->command('progress 10')->{failed}, 0,
       'without Retry: connections go on');
});

bounded($before, $peak);

my $counters = counters();
cmp_ok($counters->{flows}, '>', 2 * WORKERS * HALF_OPEN,
       'more flows than there may be');
cmp_ok($counters->{evicted}, '>', 0, 'so some were evicted');
is($counters->{retry_sent}, 0, 'no Retry');
is($held->stop_and_report()->{failed}, 0, 'to the end');
note(join ' ', %$counters);


# with adaptive Retry clients complete

ok($t->stop(), 'nginx ends');
conf('adaptive threshold=' . THRESHOLD);
$net->in('balancer', sub { $t->start() });

$held = hold();
my $report;

($before, $peak) = flood(sub {
    my $on = qr/unproven QUIC flows: Retry is on;.* 10\.0\.3\.2:/;
    ok($t->wait_for('Retry', sub { $t->log_count($on) == WORKERS }),
       'Retry is on');

    transfer('adaptive Retry');

    $report = $net->in('client', sub {
        $t->client('--connect', "10.0.3.2:$port", '--connections', 200,
                   '--concurrency', 20, 'run', 'get:/name');
    });

    is($held->command('progress 10')->{failed}, 0, 'connections go on');
});

cmp_ok($report->{failed}, '<=', 2, '99 of 100 handshakes complete')
    or $t->explain($report);
bounded($before, $peak);

$counters = counters();
note(join ' ', %$counters);

cmp_ok($counters->{retry_accepted}, '>=', 200 - $report->{failed},
       'clients came with a token');
cmp_ok($counters->{flows}, '<', $counters->{received} / 10,
       'few Initials made flows');

ok($t->wait_for('the end of Retry', sub {
    $t->log_count(qr/Retry is off again, after/)
        == $t->log_count(qr/Retry is on;/);
}), 'Retry is off again');

my $on = $t->log_count(qr/\[warn\].*Retry is on;/);
cmp_ok($on, '<=', WORKERS * 2, 'one line for each worker and listen address');

is($held->command('progress 3')->{failed}, 0, 'connections have gone on');
is($held->stop_and_report()->{failed}, 0, 'to the end');

my $sent = counters()->{retry_sent};
my $after = $net->in('client', sub {
    $t->client('--connect', "10.0.1.2:$port", '--connections', 5, 'run',
               'get:/name');
});
is($after->{failed}, 0, 'new ones, too');
is(counters()->{retry_sent}, $sent, 'without a Retry');

$t->done();


sub hold {
    my $client = $net->in('client', sub {
        $t->client_start('--connect', "10.0.1.2:$port", '--connections', 5,
                         'hold');
    });

    is($client->ready()->{failed}, 0, 'connections');

    return $client;
}


# runs $sub during the flood; the memory of the workers before, and its peak

sub flood {
    my ($sub) = @_;

    my $before = memory();
    my $flows = counters()->{flows};

    $transfer = $net->in('client', sub {
        $t->helper('transfer' . ++$t->{floods}, qw/curl --silent --insecure
            --http3-only --limit-rate/, RATE, '--max-time', 100,
            '--output', '/dev/null', '--write-out', '%{speed_download}',
            "https://10.0.1.2:$port/bytes/800000");
    });
    $t->wait_for('a download', sub { counters()->{flows} > $flows });

    my $flood = $net->in('attacker', sub {
        $t->helper("flood$t->{floods}", 'sh', '-c',
                   "exec $spoof 10.0.3.2 $port $rate $seconds < $hellos");
    });

    my $received = counters()->{received};
    $t->wait_for('the flood',
                 sub { counters()->{received} > $received + $rate / 2 });
    $sub->();

    $flood->signal('TERM');
    my $status = $flood->wait($seconds + 50);
    is($status, 0, 'the flood is over') or diag($flood->stderr());
    note('datagrams: ' . $flood->stdout());

    return ($before, memory('VmHWM'));
}


# a download that has begun before the flood has come far

sub transfer {
    my ($name) = @_;

    $transfer->wait(100);
    my ($rate) = $transfer->stdout() =~ /^(\d+)/;

    cmp_ok($rate // 0, '>', RATE / 2, "$name: the rate of a download");
}


sub bounded {
    my ($before, $peak) = @_;

    SKIP: {
        skip('the sanitizer keeps what is freed', 1)
            if $ENV{NGINX_FLAVOR} eq 'asan';

        cmp_ok($peak, '<', $before + WORKERS * (HALF_OPEN * FLOW + SLACK),
               "memory of workers, from $before kB: bounded");
    }
}


# of all workers, kB

sub memory {
    my ($field) = @_;
    $field //= 'VmRSS';

    my $sum = 0;
    $sum += $_ for map { slurp("/proc/$_/status") =~ /^$field:\s+(\d+)/m }
                   $t->workers();

    return $sum;
}


sub counters {
    return $net->in('balancer', sub {
        $t->run('counters', 'perl', '-MIO::Socket::IP', '-e',
                'print IO::Socket::IP->new(PeerAddr => "127.0.0.1:$ARGV[0]")'
                . '->getline', $stats);
        return { split ' ', $t->read('counters.out') };
    });
}
