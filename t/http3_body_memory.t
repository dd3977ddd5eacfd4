#!/usr/bin/perl

# Twenty bodies of 200 MB each way, with a slow reader at the end: the sender is
# paused, and the worker keeps no more than the windows, and no file.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;
use QuicLB::Net;

use constant BODIES => 20;
use constant SIZE => 200_000_000;
use constant RATE => 10_000;

use constant WINDOW => 64 * 1024;

# of a stream: http3_stream_buffer_size, each way
use constant QUIC => 2 * 64 * 1024;

use constant ALLOWED => BODIES * (WINDOW + QUIC) + 8 * 1024 * 1024;

# what lies between the client and a server that does not read: the windows,
# and TCP's buffers, which else grow up to some MB each
use constant ON_THE_WAY => 2_000_000;
use constant TCP_WMEM => '4096 65536 262144';

QuicLB::Net::alone();

# ASan keeps what is freed, which is no memory of the worker's
$ENV{ASAN_OPTIONS} .= ':quarantine_size_mb=1:thread_local_quarantine_size_kb=64'
    if defined $ENV{ASAN_OPTIONS};

tcp_wmem(TCP_WMEM);

my $t = QuicLB->new();
my ($port, $plain) = map { $t->port() } 1 .. 2;
my $up = upstreams($t, 'http:4096', 'http');
my ($slow, $fast) = @{ $up->{port} };

$t->conf(http => <<"CONF" . server($t, $port, <<"SERVER"));
    server {
        listen 127.0.0.1:$plain;
        location / {
            return 200 "\$http3_limits_paused \$http3_limits_in_flight";
        }
    }
CONF
        http3_max_body_size 0;
        proxy_http_version 1.1;
        proxy_send_timeout 10m;

        location / { proxy_pass http://127.0.0.1:$fast; }
        location /slow { proxy_pass http://127.0.0.1:$slow; }
        location /rate/ { limit_rate @{[RATE]};
                          proxy_pass http://127.0.0.1:$fast/; }
SERVER

$t->start();

# whatever is allocated once

http3($t, $port, [(map { { %{ post('/len', 200_000) },
                           connection => $_ % 4 } } 1 .. BODIES),
                  map { { path => '/bytes/200000',
                          connection => $_ % 4 } } 1 .. BODIES]);

my $rss = rss($t);
my $paused = counter(0);

# uploads, every other one without a length

paused('uploads', [map { {
    %{ post('/slow/' . RATE, SIZE, $_ % 2 ? SIZE : undef) },
    connection => $_ % 4,
} } 1 .. BODIES], sub { $_[0]{sent} });

# downloads, with and without a length, and by nginx's own buffers

paused('downloads', [map { {
    path => ('/bytes/', '/stream/')[$_ % 2] . SIZE,
    read => RATE, connection => $_ % 4,
} } 1 .. BODIES], sub { $_[0]{length} });

paused('downloads at a rate', [map { {
    path => ('/rate/bytes/', '/rate/stream/')[$_ % 2] . SIZE,
    connection => $_ % 4,
} } 1 .. BODIES], sub { $_[0]{length} });

is(counter(1), 0, 'nothing is left in flight');

$t->done();


sub paused {
    my ($what, $requests, $progress) = @_;

    my $client = http3_start($t, $port, $requests, '--hold');

    # a limited rate leaves the client's window open

    $t->wait_for("$what: paused", sub {
        return counter(0) >= $paused + BODIES || $requests->[0]{path} =~ /rate/;
    });

    my @before = progress($client, $progress);
    my @now;

    $t->wait_for("$what: go on", sub {
        @now = progress($client, $progress);
        return !grep { $now[$_] < $before[$_] + 2 * RATE } 0 .. BODIES - 1;
    });

    my @files = temp_files($t);
    my $grown = rss($t) - $rss;
    my $flight = counter(1);
    my ($most) = sort { $b <=> $a } @now;

    diag("$what: $grown octets more, $flight in flight, at most $most passed");

    is("@files", '', "$what: no temporary file");
    cmp_ok($grown, '<=', ALLOWED, "$what: memory");
    cmp_ok($flight, '<=', BODIES * WINDOW * 1.25, "$what: in flight");
    cmp_ok($most, '<', ON_THE_WAY, "$what: senders are paused");

    $client->say('stop');
    $client->wait();
    seen($up, BODIES);
    $t->wait_for("$what: over", sub { counter(1) == 0 });

    $paused = counter(0);
}


sub progress {
    my ($client, $progress) = @_;

    $client->say('report');

    return map { $progress->($_) } http3_report($client);
}


sub counter {
    my ($number) = @_;
    my ($status, $body) = $t->curl("http://127.0.0.1:$plain/");

    return (split ' ', $body)[$number];
}
