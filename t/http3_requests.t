#!/usr/bin/perl

# http3_max_requests: connections that are recycled lose no request, and none
# is answered twice; stock nginx, in the same tests, loses some.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

use constant REQUESTS => 2500;
use constant CAP => 100;

my $t = QuicLB->new();
my ($port, $small, $http) = map { $t->port() } 1 .. 3;

# at 10k a second it takes two
$t->write('slow', 'x' x 30000);

$t->conf(http => <<"CONF");
    log_format numbers '\$http_x_number \$http3_requests \$http3_goaway '
                       '\$status';
    access_log @{[$t->path('access.log')]} numbers;
    keepalive_requests 3;

    server {
        @{[listen_lines($t, $port)]}
        http3_max_requests @{[CAP]};

        location / {
            return 200 "ok\\n";
        }
    }

    server {
        @{[listen_lines($t, $small, "listen 127.0.0.1:$small ssl;"
                                    . 'http2 on;')]}
        http3_max_requests 5;
        root @{[$t->path('')]};

        location / {
            return 200 "\$http3_requests \$http3_goaway\\n";
        }

        location /slow {
            limit_rate 10k;
        }
    }

    server {
        listen 127.0.0.1:$http;
        @{[counters_location('/counters')]}
    }
CONF
$t->start();


# many requests, many connections

my $load = $t->h3('--connect', "127.0.0.1:$port", '--timeout', 300,
                  'load', REQUESTS, '/');
my @connections = @{ $load->{connections} };

is(scalar keys %{ $load->{answers} }, REQUESTS, 'all requests are answered');
is(scalar(grep { $_ != 1 } values %{ $load->{answers} }), 0, 'once');
is_deeply($load->{lost}, [], 'none is lost');
cmp_ok($load->{retried}, '>', 0, 'some were rejected, and sent again');

my %served;
$served{$_}++ for $t->read('access.log') =~ /^(\d+) /mg;
is(scalar keys %served, REQUESTS, 'all are served');
is(scalar(grep { $_ != 1 } values %served), 0, 'once');

is(scalar @connections, REQUESTS / CAP, 'a connection for each 100');

my $id = 4 * CAP;
is(scalar(grep { "@{ $_->{goaways} }" ne $id } @connections), 0,
   'each has one GOAWAY, with the first ID that is not admitted');
is(scalar(grep { ($_->{close}{code} // 0) != H3_NO_ERROR
                 || !$_->{close}{app} } @connections),
   0, 'each is closed with H3_NO_ERROR');
is(scalar(grep { defined $_->{reset} && $_->{reset} != H3_REQUEST_REJECTED }
               map { streams($_) } @connections),
   0, 'no other reset than H3_REQUEST_REJECTED');
is(scalar(grep { $_ != CAP } map { completed($_) } @connections),
   0, 'each has 100 answers');

is($t->access_count(qr/^\d+ 100 $id 200$/), REQUESTS / CAP,
   '$http3_requests, $http3_goaway of the last request');
is($t->access_count(qr/^\d+ 1  200$/), REQUESTS / CAP,
   'and of the first, which has no GOAWAY yet');


# one flight, the first of it slow

sub burst {
    my ($t, $port) = @_;

    return $t->h3('--connect', "127.0.0.1:$port", 'burst', '/slow',
                  ('/') x 39)->{connections}[0];
}

my $before = h3_counters($t, $http);
my $burst = burst($t, $small);
my @streams = streams($burst);

is_deeply($burst->{goaways}, [20], 'one GOAWAY, at once');
is(scalar(grep { $_->{fin} && $_->{status} == 200 } @streams[0 .. 4]), 5,
   'the 5 that are admitted complete');
is($streams[0]{length}, 30000, 'the slow one, too');
is(scalar(grep { ($_->{reset} // 0) == H3_REQUEST_REJECTED }
               @streams[5 .. 39]),
   35, 'the others are rejected');
close_is($burst, H3_NO_ERROR, 'then H3_NO_ERROR');

my ($goaway) = grep { $burst->{log}[$_][0] eq 'goaway' }
                    0 .. $#{ $burst->{log} };
my ($slow) = grep { "@{ $burst->{log}[$_] }" eq 'fin 0' }
                  0 .. $#{ $burst->{log} };
cmp_ok($goaway, '<', $slow, 'GOAWAY does not wait for the slow one');

my $after = h3_counters($t, $http);
is($after->{recycled} - $before->{recycled}, 1, 'counter of connections');
is($after->{goaways} - $before->{goaways}, 1, 'of GOAWAY');
is($after->{rejected} - $before->{rejected}, 35, 'of streams');
is($after->{deferred}, 0, 'none was deferred');


# a stream that is opened while the connection is drained

my $client = $t->h3_start('--connect', "127.0.0.1:$small",
                          '--window', 5000, 'script');
$client->actions(['hold', 'slow'], ['get', 'slow', '/slow'],
    map({ ['get', $_, '/'] } 1 .. 4),
    ['wait_goaway'], ['get', 'late', '/'], ['wait', 'late'],
    ['get', 'later', '/'], ['wait', 'later'], ['unhold', 'slow'],
    ['wait', 'slow'], ['get', 'last', '/'], ['wait_close']);

my $late = $client->report()->{connections}[0];

@streams = streams($late);
is(scalar(grep { ($_->{reset} // 0) == H3_REQUEST_REJECTED }
               @streams[5, 6]), 2, 'late streams are rejected');
is($streams[0]{length}, 30000, 'and the slow one completes');
close_is($late, H3_NO_ERROR, 'then H3_NO_ERROR');

# the response may be acknowledged, and the connection gone, before it comes
ok(!defined $streams[7]{status}, 'nothing is admitted any more');


# other clients, other versions; curl sends again what is rejected, on at most
# five other connections; one of 25 requests meets at most four that are full

for my $length (0, 1000, 200000) {
    my $body = $t->write('body', 'x' x $length);
    my ($code, $output) = $t->curl('--http3-only', '--parallel',
        '--parallel-max', 20, '--header', "x-number: curl-$length",
        $length ? ('--data-binary', "\@$body") : (), '--write-out',
        '%{http_code}\n', '--output', '/dev/null',
        "https://localhost:$small/?[1-25]");

    is($code, 0, "curl, bodies of $length octets");
    is(scalar(() = $output =~ /^200$/mg), 25, 'it has all its answers');
    is($t->access_count(qr/^curl-$length .* 200$/), 25,
       'none is answered twice');
}

for my $version (qw/--http1.1 --http2/) {
    my (undef, $output) = $t->curl($version, '--write-out',
                                   '%{num_connects}\n', '--output',
                                   '/dev/null',
                                   "https://localhost:$small/?[1-9]");
    is(scalar(() = $output =~ /^1$/mg), 3,
       "curl $version: keepalive_requests is in force");
}


# stock

my $stock = QuicLB->new();
my $stock_port = $stock->port();
$stock->write('slow', 'x' x 30000);

{
    local $ENV{QUIC_LB_LOAD} = without_limits();

    $stock->conf(http => <<"CONF");
        access_log off;

        server {
            @{[listen_lines($stock, $stock_port)]}
            keepalive_requests 5;
            root @{[$stock->path('')]};

            location / {
                return 200 "ok\\n";
            }

            location /slow {
                limit_rate 10k;
            }
        }
CONF
    $stock->start();
}

$burst = burst($stock, $stock_port);
@streams = streams($burst);

isnt(scalar(grep { $_->{fin} } @streams[0 .. 4]), 5,
     'stock nginx loses some that it has admitted');
close_is($burst, H3_EXCESSIVE_LOAD, 'with H3_EXCESSIVE_LOAD');

$stock->check();
$t->done();
