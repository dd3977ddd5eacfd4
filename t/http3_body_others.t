#!/usr/bin/perl

# Bodies over HTTP/3 with other features of nginx: TLS to the upstream, slices,
# subrequests, "multi_accept"; and HTTP/1 and HTTP/2 on the same server, which
# keep their own rules.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

use constant LARGE => 3_000_000;

my $t = QuicLB->new();
my ($port, $plain, $tls) = map { $t->port() } 1 .. 3;
my $up = upstreams($t, 'http');
my ($http) = @{ $up->{port} };
my ($cert, $key) = $t->certificate();

$t->write('large', join '', map { sprintf '%09d ', $_ } 1 .. LARGE / 10);
$t->write('page.html', 'a<!--#include virtual="/part" -->'
                       . 'b<!--#include virtual="/part" -->c');

my $locations = <<"CONF";
        proxy_http_version 1.1;
        root @{[$t->path('')]};
        default_type text/html;

        location / { proxy_pass http://127.0.0.1:$http; }
        location /tls/ { proxy_pass https://127.0.0.1:$tls/; }
        location /slice/ {
            slice 100k;
            proxy_cache cache;
            proxy_cache_key "\$uri \$slice_range";
            proxy_cache_valid any 1h;
            proxy_set_header Range \$slice_range;
            proxy_pass https://127.0.0.1:$tls/file/;
        }
        location = /page.html { ssi on; }
        location /part { proxy_pass http://127.0.0.1:$http/bytes/100000; }
        location /guarded { auth_request /guard;
                            proxy_pass http://127.0.0.1:$http/len; }
        location /guard { internal; proxy_pass_request_body off;
                          proxy_set_header Content-Length "";
                          proxy_pass http://127.0.0.1:$http/len; }
        location /limited { http3_max_body_size 1000;
                            proxy_pass http://127.0.0.1:$http/len; }
CONF

sub conf {
    my ($events) = @_;

    my $servers = <<"CONF";
    # nginx keeps a session of each server to the end
    proxy_ssl_session_reuse off;

    proxy_cache_path @{[$t->path('cache')]} keys_zone=cache:1m;
    client_max_body_size 0;

    server {
        listen 127.0.0.1:$tls ssl;
        ssl_certificate $cert;
        ssl_certificate_key $key;
        root @{[$t->path('')]};

        location /file/ { alias @{[$t->path('')]}/; }
        location / { proxy_http_version 1.1;
                     proxy_request_buffering off;
                     proxy_max_temp_file_size 0;
                     proxy_pass http://127.0.0.1:$http; }
    }
CONF

    $t->conf(events => $events,
             http => $servers . server($t, $port, <<"SERVER"));
        listen 127.0.0.1:$plain ssl;
        http2 on;
$locations
SERVER
}

sub bodies {
    my ($what) = @_;

    my @answers = http3($t, $port, [post('/tls/len', LARGE, LARGE),
                                    post('/tls/len', LARGE),
                                    post('/tls/len', 100),
                                    post('/len', LARGE),
                                    { path => '/tls/bytes/' . LARGE }]);

    is(join(' ', map { $_->{status} } @answers), '200 200 200 200 200',
       "$what: answers");
    is(join(' ', map { $_->{body} } @answers[0 .. 3]),
       join(' ', LARGE, LARGE, 100, LARGE), "$what: uploads");
    is($answers[4]{length}, LARGE, "$what: download");
    is(scalar(grep { $_->{complete} } seen($up, 5)), 5, "$what: complete");
}

conf('');
$t->start();
bodies('TLS');


# each slice is a subrequest; the second time they come from the cache

for my $what ('slices', 'cached slices') {
    my ($code) = $t->curl('--http3-only', '--max-time', 100,
                          '--output', $t->path('got'),
                          "https://localhost:$port/slice/large");

    is($code, 0, $what);
    ok($t->read('got') eq $t->read('large'), "$what: contents");
}

is($t->log_count(qr/an upstream response is buffered to a temporary file/),
   0, 'nothing in temporary files but the cache');


# subrequests, with a body of the main request and without

{
    my ($page, $guarded, $small) =
        http3($t, $port, [{ path => '/page.html' },
                          post('/guarded', 300_000, 300_000),
                          post('/guarded', 1000)]);

    is($page->{length}, 200_003, 'SSI: both parts');
    is($guarded->{status}, 200, 'auth_request: large');
    is($guarded->{body}, 300_000, 'auth_request: large: all of it');
    is($small->{body}, 1000, 'auth_request: small: all of it');
    seen($up, 6);
}


# what is not HTTP/3 has no limits of HTTP/3

for my $version ('--http1.1', '--http2') {
    my ($code, $output) = $t->curl($version, '--max-time', 100,
                                   '--data-binary', '@' . $t->path('large'),
                                   "https://localhost:$plain/limited");
    my ($seen) = seen($up, 1);

    is($code, 0, "$version: large body");
    is($output, LARGE, "$version: all of it");
    is($seen->{declared}, LARGE, "$version: with its length");
}

is($t->log_count(qr/client request body is buffered to a temporary file/), 2,
   'and are collected as ever');


# all datagrams that wait are read before a body goes on

conf('multi_accept on;');
ok($t->reload(), 'multi_accept');
bodies('multi_accept');

$t->done();
