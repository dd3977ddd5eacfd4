#!/usr/bin/perl

# The end of HTTP/3 connections: a GOAWAY without credit, clients that do not
# heed it, graceful quit, and connections that are left to nginx.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

use Time::HiRes qw/time/;

my $t = QuicLB->new();
my ($port, $two, $aged, $off, $mixed, $http) = map { $t->port() } 1 .. 6;

# at 10k a second: 2 seconds, and longer than any test
$t->write('slow', 'x' x 30000);
$t->write('endless', 'x' x 10000000);

sub locations {
    return <<"CONF";
        root @{[$t->path('')]};

        location / {
            return 200 "ok\\n";
        }

        location ~ ^/(?:slow|endless)\$ {
            limit_rate 10k;
        }
CONF
}

sub conf {
    my ($main) = @_;

    $t->conf(main => $main, http => <<"CONF");
        access_log off;

        server {
            @{[listen_lines($t, $port)]}
            keepalive_timeout 60s;
            @{[locations()]}
        }

        server {
            @{[listen_lines($t, $two)]}
            http3_max_requests 2;
            keepalive_timeout 4s;
            @{[locations()]}
        }

        server {
            @{[listen_lines($t, $aged)]}
            keepalive_time 4s;
            @{[locations()]}
        }

        server {
            @{[listen_lines($t, $off)]}
            keepalive_requests 5;
            http3_max_requests 0;
            @{[locations()]}
        }

        server {
            @{[listen_lines($t, $mixed)]}
            ssl_reject_handshake on;
        }

        server {
            @{[listen_lines($t, $mixed) =~ s/ reuseport//r]}
            server_name a.example.com;
            http3_max_requests 3;
            @{[locations()]}
        }

        server {
            @{[listen_lines($t, $mixed) =~ s/ reuseport//r]}
            server_name b.example.com;
            http3_max_requests 0;
            @{[locations()]}
        }

        server {
            listen 127.0.0.1:$http;
            @{[counters_location('/counters')]}

            location /stub {
                stub_status;
            }
        }
CONF
}

sub script {
    my ($port, $options, @actions) = @_;

    my $client = $t->h3_start('--connect', "127.0.0.1:$port", @$options,
                              'script');
    $client->actions(@actions);

    return $client;
}

sub only {
    my ($report) = @_;

    diag("client: $report->{error}") if $report->{error};

    return $report->{connections}[0];
}

conf('worker_shutdown_timeout 10s;');
$t->start();


# no credit for the control stream, and then some

# the idle timeout of a QUIC connection is keepalive_timeout, too
my @second = (['sleep', 1], ['ping']);

my @two = (['get', 'a', '/'], ['get', 'b', '/'], ['wait', 'a'], ['wait', 'b']);

for my $window (0, 9) {
    my $before = h3_counters($t, $http);

    # longer than keepalive_timeout
    my $client = only(script($two, ['--control-window', $window],
        @two, ['get', 'late', '/'], ['wait', 'late'], (@second) x 6,
        ['credit'], ['wait_goaway'], ['wait_close'])->report());

    is_deeply($client->{goaways}, [8], "window $window: GOAWAY with credit");
    close_is($client, H3_NO_ERROR, 'then the end');
    is(rejected($client), 1, 'a late stream was rejected');
    is(completed($client), 2, 'the others are answered');

    my $after = h3_counters($t, $http);
    is($after->{deferred} - $before->{deferred}, 1, 'deferred');
    is($after->{goaways} - $before->{goaways}, 1, 'and sent');
}

{
    my $start = time();
    my $client = only(script($two, ['--control-window', 0], @two,
                             (@second) x 20, ['wait_close'])->report());
    my $seconds = time() - $start;

    is_deeply($client->{goaways}, [], 'no credit at all: no GOAWAY');
    close_is($client, H3_NO_ERROR, 'and yet the end');
    cmp_ok($seconds, '>', 9, 'not at once');
    ok($t->wait_log(qr/client did not take GOAWAY in time/), 'logged');
}


# a response without credit: it is waited for

{
    my $client = only(script($two, ['--window', 5000],
        ['hold', 'a'], ['get', 'a', '/slow'], ['get', 'b', '/'],
        ['wait', 'b'], ['wait_goaway'], (@second) x 6, ['unhold', 'a'],
        ['wait', 'a'], ['wait_close'])->report());
    my ($slow) = streams($client);

    is($slow->{length}, 30000, 'a response without credit is waited for');
    close_is($client, H3_NO_ERROR, 'then the end');
}


# answered uploads whose client goes on as if nothing were

{
    my $client = only(script($two, [],
        ['headers', 'a', { ':method' => 'POST' }, 0], ['data', 'a', 1000],
        ['headers', 'b', { ':method' => 'POST' }, 0], ['data', 'b', 1000],
        ['wait', 'a'], ['wait', 'b'], ['wait_close'])->report());

    is(completed($client), 2, 'uploads without end are answered');
    close_is($client, H3_NO_ERROR, 'and hold nothing up');
}


# uploads that are rejected: a client that has not ended one when it is reset is
# not told to stop, nor is the connection closed, as long as it is not too much

my @late = (['headers', 'c', { ':method' => 'POST' }, 0], ['data', 'c', 1000]);

{
    my $report = script($two, [], @two, @late, ['wait', 'c'], @second,
                        ['data', 'c', 1000, 1], ['wait_close'])->report();
    my $client = only($report);
    my $late = (streams($client))[2];

    is($late->{reset}, H3_REQUEST_REJECTED, 'an upload is rejected at once');
    is($report->{error}, undef, 'and can be ended');
    is($late->{stop}, undef, 'which is waited for');
    close_is($client, H3_NO_ERROR, 'before the end');
}

{
    my $client = only(script($two, [], @two, @late,
        ['headers', 'd', { ':method' => 'POST' }, 0], ['data', 'd', 1500000],
        ['wait_stop', 'd'], ['wait_stop', 'c'], ['wait_close'])->report());
    my @stops = grep { $_->[0] eq 'stop' } @{ $client->{log} };

    is_deeply(\@stops, [['stop', 12, H3_REQUEST_REJECTED],
                        ['stop', 8, H3_REQUEST_REJECTED]],
              'one of much is stopped, and later one without end');
    close_is($client, H3_NO_ERROR, 'then the end');
}


# a client that opens streams on and on

{
    my @more = map { ['get', "s$_", '/'], ['wait', "s$_"] } 1 .. 1100;
    my $client = script($two, ['--timeout', 100],
                        ['get', 'a', '/endless'], ['get', 'b', '/'], @more,
                        ['wait_close'])->report()->{connections}[0];

    close_is($client, H3_EXCESSIVE_LOAD, 'it is stopped');
    cmp_ok(rejected($client), '>=', 990, 'after many');
}


# the control stream closed by the client

{
    my $client = only(script($two, [], ['get', 'a', '/'], ['wait', 'a'],
        ['uni', 'x', '21'], ['stop_control'], ['ping'], ['get', 'b', '/'],
        ['wait_close'])->report());

    close_is($client, H3_CLOSED_CRITICAL_STREAM, 'a connection error');
}


# keepalive_time

{
    my $client = only(script($aged, [], ['get', 'a', '/'], ['wait', 'a'],
        ['sleep', 4.5], ['get', 'b', '/slow'], ['wait_goaway'],
        ['get', 'c', '/'], ['wait', 'c'], ['wait', 'b'],
        ['wait_close'])->report());

    is_deeply($client->{goaways}, [8], 'keepalive_time: GOAWAY');
    is(completed($client), 2, 'what is admitted completes');
    is(rejected($client), 1, 'the rest is rejected');
    close_is($client, H3_NO_ERROR, 'then the end');
}


# servers of one address

{
    my @get = map { ['get', $_, '/'], ['wait', $_] } 1 .. 3;

    my $client = only(script($mixed, ['--sni', 'a.example.com'], @get,
                             ['wait_close'])->report());
    is_deeply($client->{goaways}, [12], 'the limit is that of the server name');

    $client = only(script($mixed, ['--sni', 'b.example.com'], @get,
                          ['get', 'd', '/'], ['wait', 'd'],
                          ['ping'])->report());
    is(completed($client), 4, 'none for another name');
    is_deeply($client->{goaways}, [], 'which has no GOAWAY');

    my $report = script($mixed, [], @get)->report();
    like($report->{error}, qr/no handshake/, 'ssl_reject_handshake');
}


# 0: as without the module

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
            @{[locations()]}
        }
CONF
    $stock->start();
}

sub trace {
    my ($port, @actions) = @_;
    my $client = $t->h3_start('--connect', "127.0.0.1:$port", '--sni',
                              'example.com', 'script');
    $client->actions(@actions);
    my $connection = $client->report()->{connections}[0];

    for my $stream (streams($connection)) {
        $stream->{headers} = [grep { $_->[0] ne 'last-modified'
                                     && $_->[0] ne 'etag' }
                                   @{ $stream->{headers} }];
    }

    return $connection;
}

for my $case (
    ['to the limit', map({ ['get', $_, '/'], ['wait', $_] } 1 .. 5),
     ['wait_close']],
    ['a malformed request', ['headers', 'a', { ':path' => undef }, 1],
     ['wait', 'a']],
    ['an unexpected frame', ['get', 'a', '/slow'], ['wait_status', 'a'],
     ['headers', 'b', {}, 0], ['raw', 'b', '0400'], ['wait', 'b'],
     ['wait', 'a']],
    ['no such file', ['get', 'a', '/slow/no'], ['wait', 'a']],
) {
    my ($name, @actions) = @$case;

    is_deeply(trace($off, @actions), trace($stock_port, @actions),
              "0: as without the module, $name");
}

$stock->check();


# quit

{
    my @clients = (
        script($port, [], ['ping'], ['say', 'up'], ['wait_close']),
        script($port, [], ['get', 'a', '/slow'], ['wait_status', 'a'],
               ['say', 'up'], ['wait_goaway'], ['get', 'b', '/'],
               ['wait', 'b'], ['wait', 'a'], ['wait_close']),
        script($port, [], ['get', 'a', '/'], ['wait', 'a'],
               ['say', 'up'], ['wait_close']),
        script($two, ['--control-window', 0], ['get', 'a', '/'],
               ['wait', 'a'], ['say', 'up'], ['sleep', 1], ['credit'],
               ['wait_goaway'], ['wait_close']),
        script($port, [], ['get', 'a', '/endless'], ['wait_status', 'a'],
               ['say', 'up'], ['wait_goaway'], ['wait_close']),
    );

    $_->wait_said('up') for @clients;

    # itself, 5 connections, 2 requests; those of before may still be draining
    my $counted = $t->wait_for('stub_status', sub {
        my (undef, $stub) = $t->curl("http://127.0.0.1:$http/stub");
        return $stub =~ /Active connections: 8 /;
    });

    my $master = $t->master();
    kill 'QUIT', $master;

    my @ends = map { only($_->report()) } @clients;

    is(join(' ', map { "@{ $_->{goaways} }" } @ends), '0 4 4 4 4',
       'quit: GOAWAY with the first ID that is not admitted');
    close_is($_, H3_NO_ERROR, 'and H3_NO_ERROR') for @ends[0 .. 3];
    ok($ends[4]{close}, 'what is endless is cut');

    my ($slow, $late) = streams($ends[1]);
    is($slow->{length}, 30000, 'a slow response completes');
    is($late->{reset}, H3_REQUEST_REJECTED, 'a late request is rejected');

    ok($counted, 'stub_status counts right after all that');

    ok($t->wait_gone($master), 'nginx leaves');
}

$t->done();
