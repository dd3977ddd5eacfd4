#!/usr/bin/perl

# The datapath of quic_passthrough under traffic of all kinds, while random
# configurations follow each other, workers are killed and the binary is
# upgraded.  No worker ends by itself, no datagram is counted twice, and honest
# clients are served.
#
# Environment: TEST_SEED, for a run again; FUZZ_SECONDS (60 where CI is set,
# else 10; without ASan never more than 3).

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use Time::HiRes qw/time/;

use QuicLB;
use QuicLB::Backends;
use QuicLB::Process qw/slurp pid_gone/;

my $asan = $ENV{NGINX_FLAVOR} eq 'asan';
my $seconds = $ENV{FUZZ_SECONDS} // ($ENV{CI} ? 60 : 10);
$seconds = 3 if !$asan && $seconds > 3;

my $seed = $ENV{TEST_SEED} // int(time() * 1000) % 2 ** 31;
srand($seed);
note("TEST_SEED=$seed FUZZ_SECONDS=$seconds");

# datagrams a second, and those between one event and the next
use constant { RATE => 3000, CALM => 50, EVENT => 1500 };

use constant SERVERS => 10;
use constant SECRET => 'a key of the servers and of the balancer';
use constant LB_KEY => '8f95f09245765f80256934e50c66207f';

# time for an honest client, s
use constant BOUND => 120;

# processor time of idle workers, in ticks a second
use constant IDLE => 30;

my $t = QuicLB->new();
my ($stats, $dns, $honest) = map { $t->port() } 1 .. 3;
my @servers = map { $t->port() } 1 .. SERVERS;
my @listens = map { $t->port() } 1 .. 6;

my $host_key = $t->write('host.key', SECRET);
my $lb_key = $t->write('lb.key', LB_KEY);
chmod 0600, $host_key, $lb_key;

my $backends = QuicLB::Backends->new($t, names => ['honest'],
                                     host_key => $host_key);
my @drops = drops();
my $traffic = traffic();
my ($attempts, $clients, %events) = (0, 0);

configure();
$t->start();
my $process = start_traffic();

my $end = time() + $seconds;
my $failed = 0;

while (!$failed && time() < $end) {
    wait_traffic();
    event();
    $failed = !healthy();
}

rate(0);
note(join ', ', map { "$_: $events{$_}" } sort keys %events);

if (!$failed) {
    ok(served(0), 'an honest client in the end');
    ok($t->wait_for('workers are idle', \&idle, 60), 'then nobody is busy');
    note(join ' ', %{ counters() });
    $failed = !healthy();
    note("clients: $clients, attempts: $attempts");
}

ok(!$process->status(), 'the traffic has had no error')
    or diag($process->stderr());
stacks() if $failed;
ok(!$failed, 'all of it') or diag("TEST_SEED=$seed FUZZ_SECONDS=$seconds");

ok($t->stop('QUIT', 100), 'nginx leaves');

$t->check();
diag("TEST_SEED=$seed FUZZ_SECONDS=$seconds")
    if !Test::More->builder->is_passing;
done_testing();


# counters of datagrams from clients that went no further

sub drops {
    my $page = slurp("$FindBin::Bin/../docs/"
                     . 'ngx_stream_quic_passthrough_module.md');
    my @found = $page =~ /^\| `\$quic_passthrough_(\w+)` \| dropped: /mg;

    return grep { !/^(?:send_failed|too_big|overflow)$/ } @found, 'retry_sent';
}


sub traffic {
    my $program = $t->path('traffic');
    my $core = "$FindBin::Bin/../src/core";

    system(qw/cc -O2 -g -W -Wall -Werror -o/, $program, "-I$core",
           glob("$FindBin::Bin/lib/traffic/*.c"),
           (map { "$core/quic_lb_$_.c" }
            qw/initial packet cid retry retry_token/), '-lcrypto') == 0
        or die 'traffic is not built';

    return $program;
}


sub start_traffic {
    my @addresses = map { "127.0.0.1/$_" } @listens[0, 2 .. 5];
    push @addresses, "::1/$listens[0]", map { "127.0.0.$_/$listens[1]" } 1 .. 3;
    push @addresses, "::1/$listens[1]", "127.0.0.1/$honest";

    my $process = $t->helper('traffic', $traffic, $seed, RATE, LB_KEY, SECRET,
                             $dns, @servers, '--', @addresses);
    $process->wait_line(qr/^ready$/) or die $process->stderr();

    return $process;
}


sub wait_traffic {
    my $before = counters()->{received};

    $t->wait_for('traffic', sub {
        my $received = counters()->{received};

        # an upgrade begins from 0
        $before = 0 if $received < $before;

        return $received >= $before + EVENT;
    });
}


sub rate {
    my ($rate) = @_;

    $process->say($rate);
    $process->wait_line(qr/^$rate$/);
}


# nginx may have no connection left for who asks

sub counters {
    my $counters;

    $t->wait_for('counters', sub {
        local $SIG{__WARN__} = sub {};
        $counters = eval { $t->counters($stats) };
        return exists $counters->{received};
    });

    return $counters;
}


# what happens to nginx

sub event {
    my $which = rand 10;

    if ($which < 4) {
        $events{reload}++;
        configure();
        $t->reload() or fail('reload') or diag($t->read('nginx.conf'));

    } elsif ($which < 6) {
        $events{kill}++;
        my @workers = $t->workers();
        $t->kill_worker($workers[rand @workers]) if @workers;

        $t->wait_for('a worker instead', sub {
            $t->workers() == $t->{workers}
        });
        $t->_remember();

    } elsif ($which < 7) {
        $events{upgrade}++;
        my $old = $t->upgrade();
        ok($t->wait_gone($old, 60), 'the old master leaves') if $old;

    } elsif ($which < 9) {
        $events{client}++;
        served() or fail("an honest client in @{[BOUND]} s");

    } else {
        $events{none}++;
    }
}


# when there is less of all the rest: flows that their servers have answered
# need not make room

sub served {
    my $deadline = time() + BOUND;
    my $report;
    my ($rate) = @_;

    $clients++;
    rate($rate // CALM);

    do {
        $attempts++;
        $report = $t->client('--connect', "127.0.0.1:$honest",
                             '--timeout', 5, 'run', 'get:/name');
    } while ($report->{failed} && time() < $deadline);

    rate(RATE) if !defined $rate;

    return !$report->{failed};
}


sub healthy {
    my @dead = grep { !expected($_) }
               $t->error_log() =~ /^(.*exited on signal.*)$/mg;
    is_deeply(\@dead, [], 'no worker ends by itself') if @dead;

    my $log = () = $t->error_log() =~ /Sanitizer|runtime error:/g;
    is($log, 0, 'no report of a sanitizer') if $log;

    ok($t->master(), 'the master lives') if !$t->master();

    return Test::More->builder->is_passing && consistent();
}


sub expected {
    my ($line) = @_;

    return scalar grep { $line =~ $_ } @{ $t->{expected} };
}


# each datagram goes on or is dropped once; the sum is read before what came

sub consistent {
    my $counters = counters();
    my $sum = $counters->{sent};
    $sum += $counters->{$_} for @drops;

    return 1 if $sum <= $counters->{received};

    return ok(0, "$sum of $counters->{received} datagrams have gone somewhere")
           || diag(join ' ', map { "$_ $counters->{$_}" } sort keys %$counters);
}


sub idle {
    my $before = ticks();
    select undef, undef, undef, 1;

    return ticks() - $before < IDLE;
}


sub ticks {
    my $sum = 0;

    for my $pid ($t->workers()) {
        my @fields = split ' ', slurp("/proc/$pid/stat") =~ s/^.*\) //sr;
        $sum += $fields[11] + $fields[12] if @fields;
    }

    return $sum;
}


# of workers that hang: ASan prints what it was doing

sub stacks {
    my @workers = map { $t->workers($_), $t->leaving_workers($_) }
                  keys %{ $t->{masters} };

    kill 'SEGV', @workers if $asan;
    QuicLB::Process::wait_for(sub { !grep { !pid_gone($_) } @workers }, 10);
}


# a random configuration

sub any {
    return $_[rand @_];
}


sub configure {
    my $workers = any(1, 2, 2, 3);
    my $reuseport = 'reuseport';
    my @down = map { rand() < 0.1 ? ' down' : '' } @servers;

    my $connections = any(96, 128, 256, 1024);
    my $files = any('', '', 'worker_rlimit_nofile 120;',
                    'worker_rlimit_nofile 1024;');
    my $retry = any('off', 'on', 'on v2', 'adaptive threshold=8',
                    'adaptive threshold=4 v2');
    my $preread = any(qw/on off/);
    my $check = any('', 'quic_health_check interval=100ms fails=2 passes=1;');
    my $zone = sub { any("zone $_[0] 256k;", '') };
    my $cids = sub { any('quic_passthrough_cid_zone zone=cids:'
                         . any(qw/32k 32k 64k/) . any('', ' timeout=1s') . ';',
                         '') };
    my $limits = any('', 'limit_conn flows 3;', 'deny 127.1.0.2;');
    my $bind = any('off', '127.0.0.9', '$bound');
    my $per_address = any(0, 0, 3, 20);
    my $timeout = any(qw/300ms 1s 2s/);
    my $fails = any('', ' max_fails=0', ' fail_timeout=1s');

    # the codepoints that the balancer knows
    my %blocks = map { ($_ => 1) } grep { rand() < 0.8 } 0 .. 2;
    $blocks{0} = 1;

    my $shared_cids = $cids->();
    $check = '' if $check && !(my $checked = $zone->('lb'));

    expect_limits();

    $t->conf(workers => $workers, connections => $connections,
             main => "$files worker_shutdown_timeout 1s;", stream => <<"CONF");
    limit_conn_zone \$binary_remote_addr zone=flows:1m;

    resolver 127.0.0.1:$dns ipv6=off valid=1s;
    resolver_timeout 1s;

    map \$remote_addr \$bound {
        ~:          ::1;
        ~[02468]\$  127.0.0.7;
        default     '';
    }

    map \$quic_preread_server_name \$to {
        a.example.com lb;
        b.example.com stock;
        plain.example.com plain;
        none.example.com 'no target';
        slow.example.com slow.example:$servers[0];
        address.example.com 127.0.0.1:$servers[1];
        default @{[any(qw/lb plain stock/)]};
    }

    map \$remote_port \$names {
        ~[0-3]\$  slow.example:$servers[2];
        ~[4-6]\$  one.example:$servers[3];
        ~[78]\$   '';
        default   127.0.0.1:$servers[4];
    }

    upstream lb {
        @{[$check ? 'zone lb 256k;' : $zone->('lb')]}
        @{[map { "server 127.0.0.1:$servers[$_]$fails$down[$_];\n" } 0 .. 5]}
        $check
        @{[map { block($_) } sort keys %blocks]}
    }

    upstream plain {
        @{[$zone->('plain')]}
        @{[map { "server 127.0.0.1:$servers[$_]$fails$down[$_];\n" } 6, 7]}
        server 127.0.0.1:$servers[8] backup;
        quic_maglev size=@{[any(101, 1009)]};
    }

    upstream stock {
        @{[$zone->('stock')]}
        @{[any('', 'hash $remote_addr consistent;', 'least_conn;')]}
        server 127.0.0.1:$servers[8]$fails;
        server 127.0.0.1:$servers[9]$fails max_conns=5;
    }

    upstream honest {
        zone honest 256k;
        server @{[$backends->address('honest')]} max_fails=0;
        quic_maglev;
    }

    quic_passthrough_timeout $timeout;
    quic_passthrough_address_flows $per_address;

    server {
        listen 127.0.0.1:$listens[0] udp $reuseport;
        listen [::1]:$listens[0] udp $reuseport;
        $shared_cids
        quic_passthrough lb;
    }

    server {
        listen $listens[1] udp $reuseport;
        listen [::]:$listens[1] udp $reuseport;
        listen 127.0.0.2:$listens[1] udp;
        quic_preread on;
        quic_preread_timeout @{[any(qw/100ms 1s/)]};
        quic_passthrough \$to;
        $shared_cids
    }

    server {
        listen $listens[1] udp;
        server_name ~^(?<letter>[ab])\\.;
        quic_preread on;
        quic_passthrough @{[any(qw/$to lb plain/)]};
        $shared_cids
    }

    server {
        listen 127.0.0.1:$listens[2] udp $reuseport;
        quic_passthrough @{[any(qw/lb plain stock/)]};
        quic_passthrough_retry $retry;
        quic_passthrough_retry_key $host_key;
        $shared_cids
    }

    server {
        listen 127.0.0.1:$listens[3] udp $reuseport;
        quic_preread $preread;
        quic_preread_timeout 500ms;
        quic_passthrough @{[$preread eq 'on' ? '$to' : 'plain']};
        quic_passthrough_retry @{[any('on v2', 'adaptive threshold=8')]};
        quic_passthrough_retry_key $host_key;
        $limits
    }

    @{[any('', <<"SERVER")]}
    server {
        listen 127.0.0.1:$listens[4] udp $reuseport;
        quic_passthrough stock;
        quic_passthrough_bind $bind;
        @{[any('', 'quic_passthrough_socket_rcvbuf 8k;')]}
        @{[any('', 'quic_passthrough_socket_sndbuf 8k;')]}
        $limits
    }
SERVER

    server {
        listen 127.0.0.1:$listens[5] udp $reuseport;
        quic_passthrough @{[any('$names', 'lb')]};
    }

    server {
        listen 127.0.0.1:$honest udp $reuseport;
        quic_passthrough honest;
        quic_passthrough_cid_zone @{[$shared_cids ? 'zone=cids' : 'off']};
    }

    quic_preread_memory @{[any(qw/64k 1m/)]};

    @{[$t->counters_server($stats, 'sent', 'replies', @drops, 'send_failed',
                           'too_big', 'flows', 'evicted', 'learned', 'hellos',
                           'unread', 'received')]}
CONF
}


sub block {
    my ($id) = @_;

    my @lengths = ([1, 7], [3, 13], [2, 6])[$id]->@*;
    my $key = $id < 2 ? "key_file $lb_key;" : '';
    my $length = $id == 1 ? 'length_self_description on;' : '';
    my $unmapped = rand() < 0.2 ? 'unmapped maglev;' : '';
    my $ids = join '', map {
        'server_id ' . sprintf('%0*x', 2 * $lengths[0], $_ + 1)
        . " 127.0.0.1:$servers[$_];\n"
    } 0 .. 5;

    return <<"CONF";
        quic_lb $id {
            server_id_length $lengths[0];
            nonce_length $lengths[1];
            $key $length $unmapped
            $ids
        }
CONF
}


# what nginx says, too, when there are too few files or connections

sub expect_limits {
    return if $t->{limited}++;

    $t->expect_log(qr/failed \(24: Too many open files\)/);

    # the time after which nginx accepts again has come when it leaves
    $t->expect_log(qr/accept4\(\) failed \(9: /);
    $t->expect_log(qr/\d+ worker_connections are not enough/);
}
