#!/usr/bin/perl

# A flood of Initials from forged addresses: half-open connections have a bound,
# and so has memory; established ones go on, the flood gets no more than three
# times what it sends, and with adaptive Retry, which begins and ends by itself,
# new clients are served.
#
# TEST_FLOOD_RATE: datagrams a second (1000), without Retry half of them;
# TEST_FLOOD_SECONDS (8).

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Backends;
use QuicLB::Net;
use QuicLB::Process qw/slurp/;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

my $rate = $ENV{TEST_FLOOD_RATE} // 1000;
my $seconds = $ENV{TEST_FLOOD_SECONDS} // 8;

# half-open connections of a worker: docs, "Floods"
use constant { WORKERS => 2, CONNECTIONS => 512, HALF_OPEN => 512 / 4 };
use constant THRESHOLD => 40;

# kB of a half-open connection, and what a worker may have otherwise
use constant { HALF => 250, SLACK => 8192 };

# RFC 9000, 8.1
use constant AMPLIFICATION => 3;

my $t = QuicLB->new();
my $net = QuicLB::Net->new($t, qw/attacker relay/);

$net->link('attacker', '10.0.3.1/24', 'relay', '10.0.3.2/24');
$net->ip('relay', 'route add 10.128.0.0/9 via 10.0.3.1');
$net->sysctl('relay', "net.ipv4.conf.$_.rp_filter=0") for qw/all attacker/;

my $spoof = $t->path('spoof');
is(system(qw/cc -O2 -W -Wall -Werror -o/, $spoof,
          "$FindBin::Bin/lib/spoof.c"), 0, 'the flood');

my $hellos = $t->path('hellos.out');
is($t->run('hellos', 'python3', '-B', "$FindBin::Bin/lib/hellos.py", 512,
           'h3', 'a.example.com'), 0, 'ClientHellos');

my ($cert, $key) = $t->certificate();
my ($port, $stats) = map { $t->port() } 1 .. 2;

my $totals = "server { listen 127.0.0.1:$stats; access_log off; return '"
    . join(' ', map { "$_ \$quic_relay_total_$_" }
                qw/connections evicted refused retries/) . "'; }";

# the flood has an upstream of its own, which answers, so that the relay, too,
# has as much to say as it may

my $backends = $net->in('relay', sub {
    QuicLB::Backends->new($t, names => ['one']);
});

my $relay;

sub start {
    my ($retry) = @_;

    $relay = QuicLB::Relay->new($t, listen => 'reuseport',
        parts => { workers => WORKERS, connections => CONNECTIONS },
        server => <<"SERVER", stream => <<"STREAM");
        listen 10.0.3.2:$port udp reuseport default_server;
        quic_relay_retry $retry;
SERVER
    $totals

    server {
        listen 10.0.3.2:$port udp;
        server_name a.example.com;
        ssl_certificate $cert;
        ssl_certificate_key $key;
        quic_relay @{[ $backends->address('one') ]};
        quic_relay_ssl_name localhost;
        quic_relay_ssl_trusted_certificate $cert;
    }
STREAM

    $net->in('relay', sub { $t->start() });
}


# without Retry

start('off');

my ($before, $counters, $octets) = (memory(), counters(), octets());
my $flood;
my $report = hold(sub {
    $flood = flood($rate / 2, sub { counters()->{evicted} > HALF_OPEN });
}, 'alone');

is_deeply($report->{failed}, [], 'connections go on') or diag($report->{error});
cmp_ok($report->{trips} // 0, '>', 2, 'all the time');
bounded($before);

over($flood);

my $after = counters();
note(join ' ', %$after);
cmp_ok($after->{connections} - $counters->{connections}, '>',
       2 * WORKERS * HALF_OPEN, 'more connections than there may be half-open');
is($after->{retries}, 0, 'no Retry');
is($after->{refused}, $counters->{refused}, 'newer ones take the room');

my $sent = octets();
my %more = map { $_ => $sent->{$_} - $octets->{$_} } keys %$sent;
note("octets: to the relay $more{sent}, from it $more{received}");
cmp_ok($more{received}, '>', $more{sent} / 20, 'the flood is answered');
cmp_ok($more{received}, '<=', AMPLIFICATION * $more{sent},
       'by no more than three times of it');

$net->in('relay', sub { ok($t->stop('TERM'), 'nginx ends') });


# with it, while it is needed

start('adaptive threshold=' . THRESHOLD);

($before, $octets) = (memory(), octets());
$report = hold(sub {
    $flood = flood($rate, sub { counters()->{retries} > $rate / 2 });
});

is_deeply($report->{failed}, [], 'adaptive Retry: connections go on')
    or diag($report->{error});
is_deeply($report->{new}, [], 'and new clients are served');
bounded($before);
over($flood);

$after = counters();
note(join ' ', %$after);
cmp_ok($after->{connections}, '<', $rate * $seconds / 10,
       'few Initials made connections');

$sent = octets();
cmp_ok($sent->{received} - $octets->{received}, '<=',
       AMPLIFICATION * ($sent->{sent} - $octets->{sent}),
       'no answer is too large');

my $on = qr/\[warn\].* \d+ half-open QUIC connections: Retry is on;/;
my $off = qr/\[notice\].* few half-open QUIC connections: Retry is off/;

ok($t->wait_for('the end of Retry', sub {
    $t->log_count($on) == $t->log_count($off);
}, 60), 'Retry is off again');
cmp_ok($t->log_count($on), '<=', WORKERS, 'each worker logs it once');

my $retries = counters()->{retries};
$report = ends('queries', 10);
is($report->{wrong}, 0, 'a client after that') or diag($report->{error});
is(counters()->{retries}, $retries, 'needs no Retry');

$net->in('relay', sub { ok($t->stop('TERM'), 'nginx ends') });

$t->done();


sub ends {
    my (@scenario) = @_;

    return $net->in('relay', sub { $relay->ends(@scenario) });
}


# connections that work while $sub runs, and as long as the flood lasts

sub hold {
    my ($sub, @how) = @_;

    return $net->in('relay', sub {
        $relay->ends_with($sub, 'hold', 5, 'still', @how);
    });
}


# returns when it has come so far, and goes on

sub flood {
    my ($speed, $condition) = @_;

    my $flood = $net->in('attacker', sub {
        $t->helper('flood' . ++$t->{floods}, 'sh', '-c',
                   "exec $spoof 10.0.3.2 $port $speed $seconds < $hellos");
    });

    $t->wait_for('the flood', $condition, 60);

    return $flood;
}


# not before it has lasted $seconds

sub over {
    my ($flood) = @_;

    $flood->signal('TERM');
    is($flood->wait($seconds + 50), 0, 'the flood is over')
        or diag($flood->stderr());
}


sub bounded {
    my ($memory) = @_;

    SKIP: {
        skip('the sanitizer keeps what is freed', 1)
            if $ENV{NGINX_FLAVOR} eq 'asan';

        my $peak = memory('VmHWM');

        cmp_ok($peak, '<', $memory + WORKERS * (HALF_OPEN * HALF + SLACK),
               "memory of workers, from $memory to $peak kB: bounded");
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


# of the attacker: what it has sent and received

sub octets {
    return $net->in('attacker', sub {
        $t->run('octets', 'cat', '/proc/self/net/dev');
        my ($line) = $t->read('octets.out') =~ /^\s*relay:(.*)$/m;
        my @fields = split ' ', $line;

        return { received => $fields[0], sent => $fields[8] };
    });
}


sub counters {
    return $net->in('relay', sub {
        $t->run('counters', 'perl', '-MIO::Socket::IP', '-e',
                'print IO::Socket::IP->new(PeerAddr => "127.0.0.1:$ARGV[0]")'
                . '->getline', $stats);
        return { split ' ', $t->read('counters.out') };
    });
}
