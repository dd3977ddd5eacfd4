#!/usr/bin/perl

# A flood from forged addresses that each send twice, as if they had been
# answered: Initials, unknown versions and short headers, with Retry off,
# adaptive and on.  New clients get in, and connections go on at no less than
# half of their rate.
#
# Environment: TEST_FLOOD_RATE, datagrams a second (3000, with ASan 1000);
# TEST_FLOOD_KINDS (initial version short); TEST_FLOOD_HANDSHAKES (50);
# TEST_FLOOD_CONNECTIONS, worker_connections (4096).

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Backends;
use QuicLB::Net;

my $asan = $ENV{NGINX_FLAVOR} eq 'asan';
my $rate = $ENV{TEST_FLOOD_RATE} // ($asan ? 1000 : 3000);
my $kinds = $ENV{TEST_FLOOD_KINDS} // 'initial version short';
my $handshakes = $ENV{TEST_FLOOD_HANDSHAKES} // 50;
my $connections = $ENV{TEST_FLOOD_CONNECTIONS} // 4096;

# octets a second, of a download
use constant RATE => 200000;

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
    QuicLB::Backends->new($t, names => [qw/one two/], host_key => $key);
});

my ($port, $stats) = map { $t->port() } 1 .. 2;
my $floods = 0;

for my $mode ('off', 'adaptive threshold=100', 'on') {
    my ($name) = $mode =~ /^(\w+)/;

    $t->conf(workers => 2, connections => $connections, stream => <<"CONF");
    upstream nginx {
        zone nginx 256k;
        @{[ $backends->lines() ]}
        quic_maglev;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id 0a @{[ $backends->address('one') ]};
        }
    }

    server {
        listen 10.0.3.2:$port udp reuseport rcvbuf=4m;

        quic_passthrough nginx;
        quic_passthrough_cid_zone zone=cids:1m;
        quic_passthrough_retry $mode;
        quic_passthrough_retry_key $key;
    }

    @{[ $t->counters_server($stats, qw/received sent replies flows evicted
                                       overload retry_sent retry_accepted
                                       retry_dropped overflow/) ]}
CONF

    $net->in('balancer', sub { $t->start() });

    my $held = client_start(qw/--connections 5 hold/);
    is($held->ready()->{failed}, 0, "Retry $name: connections");

    my $flows = counters()->{flows};
    my $transfer = $net->in('client', sub {
        $t->helper('transfer' . ++$floods, qw/curl --silent --insecure
            --http3-only --limit-rate/, RATE, '--max-time', 100,
            '--output', '/dev/null', '--write-out', '%{speed_download}',
            "https://10.0.3.2:$port/bytes/800000");
    });
    $t->wait_for('a download', sub { counters()->{flows} > $flows });

    my $flood = $net->in('attacker', sub {
        $t->helper("flood$floods", 'sh', '-c',
                   "exec $spoof 10.0.3.2 $port $rate 1 $kinds < $hellos");
    });

    my $received = counters()->{received};
    $t->wait_for('the flood',
                 sub { counters()->{received} > $received + $rate });

    my $report = $net->in('client', sub {
        $t->client('--connect', "10.0.3.2:$port", '--connections', $handshakes,
                   '--concurrency', 10, 'run', 'get:/name');
    });

    cmp_ok($report->{failed}, '<=', $handshakes / 100,
           "Retry $name: 99 of 100 handshakes complete")
        or $t->explain($report);

    $transfer->wait(100);
    my ($speed) = $transfer->stdout() =~ /^(\d+)/;
    cmp_ok($speed // 0, '>', RATE / 2, "Retry $name: the rate of a download");

    is($held->command('progress 10')->{failed}, 0,
       "Retry $name: connections go on");

    $flood->signal('TERM');
    is($flood->wait(100), 0, "Retry $name: the flood is over");

    my $counters = counters();
    note("Retry $name: ", $flood->stdout() =~ s/\n//r, ' sent, speed ',
         $speed // '-', ', failed ', $report->{failed}, ', ',
         join ' ', map { "$_ $counters->{$_}" } sort keys %$counters);

    is($held->stop_and_report()->{failed}, 0, "Retry $name: to the end");
    is($t->log_count(qr/no connections or open files left/), 0,
       "Retry $name: there was room");
    ok($t->stop('TERM'), "Retry $name: nginx ends");
}

$t->done();


sub client_start {
    my (@arguments) = @_;

    return $net->in('client', sub {
        $t->client_start('--connect', "10.0.3.2:$port", @arguments);
    });
}


sub counters {
    return $net->in('balancer', sub {
        $t->run('counters', 'perl', '-MIO::Socket::IP', '-e',
                'print IO::Socket::IP->new(PeerAddr => "127.0.0.1:$ARGV[0]")'
                . '->getline', $stats);
        return { split ' ', $t->read('counters.out') };
    });
}
