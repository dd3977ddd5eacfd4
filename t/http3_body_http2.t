#!/usr/bin/perl

# Bodies over HTTP/3 that go to an upstream by HTTP/2, "proxy_http_version 2":
# nothing is collected, what is too large is never complete; for what is cut see
# http3_body_cut.t.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

use constant LARGE => 3_000_000;
use constant MAX => 200_000;

my $t = QuicLB->new();

if (!proxy_http2($t)) {
    $t->cleanup();
    $t->{checked} = 1;
    plan(skip_all => 'this nginx has no "proxy_http_version 2"');
}

my ($port, $next, $plain) = map { $t->port() } 1 .. 3;
my $up = upstreams($t, 'grpc');
my ($http2) = @{ $up->{port} };

$t->write('large', 'x' x LARGE);

# a server that tells of each request, and one of nginx

$t->conf(http => <<"CONF" . server($t, $port, <<"SERVER"));
    log_format body '\$uri \$http_content_length \$request_body';

    server {
        listen 127.0.0.1:$next;
        http2 on;
        root @{[$t->path('')]};
        client_max_body_size 0;

        location / { }
        location /refuse { return 401 "refused"; }
        location /body { access_log @{[$t->path('body.log')]} body;
                         proxy_pass http://127.0.0.1:$plain; }
    }

    server {
        listen 127.0.0.1:$plain;
        return 200 "body";
    }
CONF
        proxy_http_version 2;
        proxy_next_upstream off;
        http3_max_body_size @{[MAX]};

        location / { proxy_pass http://127.0.0.1:$http2; }
        location /unlimited { http3_max_body_size 0;
                              proxy_pass http://127.0.0.1:$http2; }
        location /large { http3_max_body_size 0;
                          proxy_pass http://127.0.0.1:$next; }
        location /cut { proxy_pass http://127.0.0.1:$next/large; }
        location /refuse { http3_max_body_size 0;
                           proxy_pass http://127.0.0.1:$next; }
        location /body { proxy_set_body "set";
                         http3_max_body_size 0;
                         proxy_pass http://127.0.0.1:$next; }
        location /counters { return 200 "\$http3_limits_in_flight"; }
SERVER

$t->start();

# all of it, as it comes

for my $length (LARGE, undef) {
    my $what = defined $length ? 'declared' : 'undeclared';
    my ($answer) = http3($t, $port, [post('/unlimited', LARGE, $length)]);
    my ($seen) = seen($up, 1);

    is($answer->{body}, LARGE, "$what: upload");
    ok($seen->{complete}, "$what: complete");
}

{
    my ($small, $download, $slow) =
        http3($t, $port, [post('/unlimited', 100), { path => '/large' },
                          { path => '/large', read => LARGE / 2 }]);
    my ($seen) = seen($up, 1);

    is($small->{body}, 100, 'a small body');
    ok($seen->{complete}, 'which is complete');
    is($download->{length}, LARGE, 'download');
    is($slow->{length}, LARGE, 'slow download');
}

is($t->log_count(qr/buffered to a temporary file/), 0, 'no temporary file');


# too large

{
    my @answers = http3($t, $port, [post('/', MAX), post('/', MAX + 1),
                                    post('/', MAX + 1, MAX + 1)]);
    my @seen = seen($up, 2);

    is(join(' ', map { $_->{status} } @answers), '200 413 413',
       'requests over the limit: 413');
    is(scalar(grep { $_->{complete} } @seen), 1,
       'the upstream sees one as complete');
    is(scalar(grep { !$_->{complete} } @seen), 1, 'and one cut');

    my ($cut) = http3($t, $port, [{ path => '/cut' }]);
    is($cut->{reset}, 0x102, 'responses over the limit: cut');
}


# an answer before the body is over

{
    my ($answer) = http3($t, $port, [{
        method => 'POST', path => '/refuse',
        send => [{ data => LARGE }, { wait_header => JSON::PP::true },
                 { data => 1000 }, { fin => 1 }],
    }]);

    is($answer->{status}, 401, 'an early answer');
    ok($answer->{fin}, 'is complete');
    is($answer->{stop}, 0x100, 'STOP_SENDING');
}


# a body of the proxy's own, which is not the client's

for my $size (100, LARGE) {
    my ($answer) = http3($t, $port, [post('/body', $size, $size)]);

    is($answer->{status}, 200, "proxy_set_body for $size octets");
}

is(join('', map { "$_\n" } split /\n/, $t->read('body.log')),
   "/body 3 set\n" x 2, 'proxy_set_body: the upstream has it');


my ($counters) = http3($t, $port, [{ path => '/counters' }]);
is($counters->{body}, 0, 'nothing is left in flight');

$t->done();
