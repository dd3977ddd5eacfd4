#!/usr/bin/perl

# Request bodies over HTTP/3, by what upstreams get: small ones as a whole, with
# their length and a second try, large ones while they come.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

use constant KINDS => [qw/http fastcgi scgi uwsgi grpc/];
use constant WINDOW => 65536;

my $t = QuicLB->new();
my $port = $t->port();
my $up = upstreams($t, @{ +KINDS }, 'http');
my ($http, $fastcgi, $scgi, $uwsgi, $grpc, $second) = @{ $up->{port} };

$t->conf(http => params() . <<"CONF" . server($t, $port, <<"SERVER"));
    upstream two {
        server 127.0.0.1:$http max_fails=0;
        server 127.0.0.1:$second backup;
    }
CONF
        proxy_http_version 1.1;

        location / { proxy_pass http://127.0.0.1:$http; }
        location /old { proxy_http_version 1.0;
                        proxy_pass http://127.0.0.1:$http/len; }
        location /at_once { proxy_request_buffering off;
                            proxy_pass http://127.0.0.1:$http/len; }
        location /two { proxy_next_upstream error http_503 non_idempotent;
                        proxy_pass http://two/status/503; }
        location /no_body { proxy_pass_request_body off;
                            proxy_set_header Content-Length "";
                            proxy_pass http://127.0.0.1:$http/len; }
        location /own_body { proxy_set_body mine;
                             proxy_pass http://127.0.0.1:$http/len; }
        location /in_file { client_body_in_file_only clean;
                            proxy_pass http://127.0.0.1:$http/len; }
        location /echo { proxy_buffering off;
                         proxy_pass http://127.0.0.1:$http; }
        location /fastcgi { fastcgi_pass 127.0.0.1:$fastcgi; }
        location /scgi { scgi_pass 127.0.0.1:$scgi; }
        location /uwsgi { uwsgi_pass 127.0.0.1:$uwsgi; }
        location /grpc { grpc_pass grpc://127.0.0.1:$grpc; }
SERVER

$t->start();

# a small body has its length computed

my %path = (http => '/len', fastcgi => '/fastcgi', scgi => '/scgi',
            uwsgi => '/uwsgi', grpc => '/grpc');

for my $kind (@{ +KINDS }) {
    my ($answer) = http3($t, $port, [post($path{$kind}, 1000)]);
    my ($seen) = seen($up, 1);

    is($answer->{status}, 200, "$kind: small");
    is($answer->{body}, 1000, "$kind: small: all of it");
    ok($seen->{complete}, "$kind: small: complete");
    is($seen->{declared}, 1000, "$kind: small: length") if $kind ne 'grpc';
}

# a large one passes as it comes, with the length that is declared

for my $kind (@{ +KINDS }) {
    my ($answer) = http3($t, $port, [post($path{$kind}, 1e6, 1e6)]);
    my ($seen) = seen($up, 1);

    is($answer->{status}, 200, "$kind: large");
    is($seen->{length}, 1e6, "$kind: large: all of it");
    ok($seen->{complete}, "$kind: large: complete");
    is($seen->{declared}, 1e6, "$kind: large: length") if $kind ne 'grpc';
}

# without a length, where that can be

for my $kind (qw/http fastcgi grpc/) {
    my ($answer) = http3($t, $port, [post($path{$kind}, 1e6)]);
    my ($seen) = seen($up, 1);

    is($answer->{status}, 200, "$kind: unknown length");
    is($seen->{length}, 1e6, "$kind: unknown length: all of it");
    ok($seen->{complete}, "$kind: unknown length: complete");
    is($seen->{declared}, undef, "$kind: unknown length: none told");
}

# what has come goes on, however little more there is to wait for

{
    my $length = 0;
    my ($answer) = http3($t, $port, [{
        method => 'POST', path => '/echo', send => [
            (map { ({ data => $_ }, { wait_length => $length += $_ }) }
                 100_000, 5000, 1500, 100, 40_000, 20_000, 1200, 1),
            { fin => 1 },
        ],
    }]);

    is($answer->{length}, $length, 'piece by piece');
    ok((seen($up, 1))[0]{complete}, 'piece by piece: complete');
}

# else 411, unless it fits into the window

for my $path ('/old', '/scgi', '/uwsgi') {
    my ($fits, $over) = http3($t, $port, [post($path, WINDOW),
                                          post($path, WINDOW + 1)]);
    my @seen = seen($up, 1);

    is($fits->{status}, 200, "$path: fits");
    is($fits->{body}, WINDOW, "$path: fits: all of it");
    is($over->{status}, 411, "$path: does not fit: 411");
    is(scalar @seen, 1, "$path: does not fit: upstream sees nothing");
    is($seen[0]{declared}, WINDOW, "$path: fits: length");
}

# a pause passes on what there is, unless the upstream needs a length

for my $path ('/len', '/old') {
    my ($answer) = http3($t, $port, [{
        method => 'POST', path => $path, send => [
            { data => 10 }, { wait => 2 }, { data => 20 }, { fin => 1 },
        ] }]);
    my ($seen) = seen($up, 1);

    is($answer->{body}, 30, "$path: pause: all of it");
    is($seen->{chunked} ? 1 : 0, $path eq '/len' ? 1 : 0,
       "$path: pause: chunked or not");
    is($seen->{declared}, $path eq '/len' ? undef : 30,
       "$path: pause: length");
}

# the second server is asked as long as the body is whole

{
    my ($small, $large) = http3($t, $port, [{ %{ post('/two', WINDOW) },
                                              flight => 2 * WINDOW },
                                            post('/two', 200_000)]);
    my @small = grep { $_->{length} == WINDOW } seen($up, 3);

    is(scalar @small, 2, 'small: next upstream');
    is($small->{status}, 503, 'small: last answer');
    is($large->{status}, 503, 'large: first answer');
}

# requests without a body, or with one that is no use

{
    my @answers = http3($t, $port, [
        { path => '/len' },
        { path => '/len', send => [{ wait => 0.5 }, { fin => 1 }] },
        { path => '/len', method => 'POST',
          headers => [['content-length', '0']],
          send => [{ wait => 0.5 }, { fin => 1 }] },
        post('/no_body', 300_000),
        post('/own_body', 300_000),
        post('/in_file', 1000),
        post('/at_once', 300_000),
    ]);
    my @seen = seen($up, 7);

    is(join(' ', map { $_->{status} // '-' } @answers),
       join(' ', (200) x 7), 'answers');
    is(join(' ', map { $_->{body} // '-' } @answers),
       '0 0 0 0 4 1000 300000', 'bodies');
    is(scalar(grep { $_->{chunked} } @seen), 1,
       'only what is not to be buffered is chunked');
    is($t->log_count(qr/temporary file/), 1, 'one temporary file');
}

# trailers, and frames that nobody knows

{
    my $trailers = '0106000012612d62';
    my @answers = http3($t, $port, [
        { method => 'POST', path => '/len',
          send => [{ data => 5 }, { hex => $trailers }, { fin => 1 }] },
        { method => 'POST', path => '/len',
          headers => [['content-length', '5']],
          send => [{ data => 5 }, { hex => $trailers }, { wait => 0.5 },
                   { fin => 1 }] },
        { method => 'POST', path => '/len', send => [
            { hex => '2100' }, { data => 5 }, { hex => '2103616263' },
            { data => 5 }, { fin => 1 }] },
        { method => 'POST', path => '/len', send => [
            { data => 5 }, { hex => $trailers . '2100' . '2103616263' },
            { fin => 1 }] },
        { method => 'POST', path => '/len', send => [
            { data => 5 }, { hex => $trailers }, { data => 1 },
            { fin => 1 }] },
        { method => 'POST', path => '/len', send => [
            { data => 5 }, { hex => "$trailers$trailers" }, { fin => 1 }] },
    ]);
    my @seen = seen($up, 4);

    is(join(' ', map { $_->{body} // '-' } @answers), '5 5 10 5  ',
       'bodies before trailers');
    is(scalar(grep { $_->{complete} } @seen), 4, 'complete');
    is($answers[$_]{reset}, 0x105, "frame after trailers: $_") for 4, 5;
}

# unknown frames in parts: before, between, within and after others

{
    my @parts = (
        ['0003616263' . '2104aa', 'bb', 'ccdd'],
        ['00026162' . '2104aabbccdd', '000163'],
        ['00026162' . '2104aabbccdd' . '00', '0163'],
        ['00026162' . '2104aabb', 'ccdd', '000163' . '2100'],
        ['00036162', '63' . '2102aa', 'aa' . '2102aa', 'aa'],
    );
    my @requests = map { my $parts = $_; map { {
        method => 'POST', path => '/echo',
        headers => [$_ ? ['content-length', '3'] : ()],
        send => [(map { ({ wait => 0.1 }, { hex => $_ }) } @$parts),
                 { fin => 1 }],
    } } 0, 1 } @parts;

    # with a length older versions of nginx count too many octets here
    push @requests, map { my $parts = $_; {
        method => 'POST', path => '/echo',
        send => [(map { ({ wait => 0.1 }, { hex => $_ }) } @$parts),
                 { fin => 1 }],
    } } ['2104aa', 'bbccdd' . '0003616263'],
        ['2104aa', 'bb', 'ccdd' . '0001610001620001' . '63'];

    my @answers = http3($t, $port, \@requests);

    is(join(' ', map { $_->{body} // '-' } @answers),
       join(' ', ('abc') x @answers), 'unknown frames in parts');
    is(scalar(grep { $_->{complete} } seen($up, scalar @answers)),
       scalar @answers, 'unknown frames in parts: complete');
}

$t->done();
