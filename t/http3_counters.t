#!/usr/bin/perl

# The counters of the HTTP/3 limits when a worker is killed, whatever it does:
# its bodies are in flight no more, those of others are, and nothing else is
# forgotten.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;
use QuicLB::Http3 qw/counters_location h3_counters/;
use QuicLB::Net;

use constant BODIES => 24;
use constant SIZE => 1_000_000;
use constant WINDOW => 64 * 1024;

QuicLB::Net::alone();

# no more than a window and what is on the way lies before an upstream that
# does not read
tcp_wmem('4096 65536 262144');

my $t = QuicLB->new();
my ($port, $plain) = map { $t->port() } 1 .. 2;
my $up = upstreams($t, 'http:4096');
my ($slow) = @{ $up->{port} };
my $server = server($t, $port, <<"SERVER") =~ s/ quic;/ quic reuseport;/r;
        http3_body_window @{[WINDOW]};
        proxy_http_version 1.1;
        proxy_send_timeout 10m;
        location / { proxy_pass http://127.0.0.1:$slow; }
SERVER

$t->conf(workers => 2, http => <<"CONF" . $server);
    server {
        listen 127.0.0.1:$plain;
        @{[counters_location('/counters')]}
    }
CONF

$t->start();

my $client = http3_start($t, $port, [map { {
    %{ post('/slow/1', SIZE, SIZE) }, connection => $_,
} } 1 .. BODIES], '--hold', '--timeout', 300);

ok($t->wait_for('paused bodies',
                sub { counters()->{paused} >= BODIES }, 60),
   'bodies in flight');

my $before = counters();

cmp_ok($before->{in_flight}, '>=', BODIES * WINDOW / 2, 'a window of each');

my ($killed, $other) = $t->workers();

$t->kill_worker($killed);
ok($t->wait_for('another worker', sub {
    my @workers = $t->workers();
    return @workers == 2 && !grep { $_ == $killed } @workers;
}), 'a worker is killed');

my $after = counters();

cmp_ok($after->{in_flight}, '<', $before->{in_flight},
       'its bodies are in flight no more');
cmp_ok($after->{in_flight}, '>', 0, 'those of the other are');
is($after->{paused}, $before->{paused}, 'other counters are kept');
is($after->{peak}, $before->{peak}, 'so is the peak');


# killed after the first store of many: each body ends

use constant ZONE => 53248;             # octets of the zone of counters

my $kill = $t->path('kill_at_store');
is(system(qw/cc -O2 -W -Wall -Werror -o/, $kill,
          "$FindBin::Bin/lib/kill_at_store.c"), 0, 'the killer');

my $killer = $t->helper('killer', $kill, $other, ZONE, 1, 'lockless');
$killer->wait_line(qr/^attached/) or die $killer->stderr();

$t->expect_log(qr/worker process $other exited on signal 9/);
$client->say('stop');
# instruction by instruction takes its time under a sanitizer
ok($killer->wait_line(qr/^killed 1/, 240), 'the other worker is killed')
    or diag($killer->stderr());

ok($t->wait_for('the end', sub { counters()->{in_flight} == 0 }),
   'nothing is in flight in the end');

$t->done();


sub counters {
    return h3_counters($t, $plain);
}
