#!/usr/bin/perl

# Bodies over http3_max_body_size: requests are answered by 413 and never
# complete to the upstream, responses are cut.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

use constant MAX => 200_000;

my $t = QuicLB->new();
my ($port, $plain) = map { $t->port() } 1 .. 2;
my $up = upstreams($t, qw/http fastcgi grpc scgi uwsgi/);
my ($http, $fastcgi, $grpc, $scgi, $uwsgi) = @{ $up->{port} };
my $cache = $t->path('cache');
my $store = $t->path('store');

mkdir $_ and chmod 0777, $_ for $cache, $store;

my $locations = <<"SERVER";
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        http3_max_body_size @{[MAX]};

        location / { proxy_pass http://127.0.0.1:$http; }
        location /page { error_page 413 /sorry; error_page 400 /sorry;
                         proxy_pass http://127.0.0.1:$http/len; }
        location = /sorry { return 200 "sorry"; }
        location /proxied { error_page 413 \@other;
                            proxy_pass http://127.0.0.1:$http/len; }
        location \@other { proxy_pass http://127.0.0.1:$http; }
        location /fastcgi { fastcgi_pass 127.0.0.1:$fastcgi; }
        location /other_page { error_page 413 \@fastcgi;
                               proxy_pass http://127.0.0.1:$http/len; }
        location \@fastcgi { fastcgi_pass 127.0.0.1:$fastcgi; }
        location /grpc { grpc_pass grpc://127.0.0.1:$grpc; }
        location /scgi { scgi_pass 127.0.0.1:$scgi; }
        location /uwsgi { uwsgi_pass 127.0.0.1:$uwsgi; }
        location /unlimited/ { http3_max_body_size 0;
                               proxy_pass http://127.0.0.1:$http/; }
        location /nobody { return 200 "nobody"; }

        location /cache/ { proxy_cache c; proxy_cache_valid 200 1m;
                           proxy_pass http://127.0.0.1:$http/; }
        location /store/ { proxy_store on; root $store;
                           proxy_pass http://127.0.0.1:$http/; }
        location /rate/ { limit_rate 10m;
                          proxy_pass http://127.0.0.1:$http/; }
        location /f/ { fastcgi_param REQUEST_URI /stream/300000;
                       fastcgi_pass 127.0.0.1:$fastcgi; }
        location /s/ { scgi_param REQUEST_URI /stream/300000;
                       scgi_pass 127.0.0.1:$scgi; }
        location /u/ { uwsgi_param REQUEST_URI /stream/300000;
                       uwsgi_pass 127.0.0.1:$uwsgi; }
        location /counters {
            return 200 "\$http3_limits_too_large \$http3_limits_cut";
        }
SERVER

my $server = server($t, $port, $locations);

$t->conf(http => params() . <<"CONF" . $server);
    proxy_cache_path $cache keys_zone=c:1m;
    server {
        listen 127.0.0.1:$plain;
        client_max_body_size 0;
        $locations
    }
CONF

$t->start();

# requests: by what is declared, and by what comes

for my $path (qw{/len /fastcgi /grpc /scgi /uwsgi}) {
    my ($fits, $over) = http3($t, $port, [post($path, MAX, MAX),
                                          post($path, MAX + 1, MAX + 1)]);
    my @seen = seen($up, 1);

    is($fits->{status}, 200, "$path: declared, fits");
    is(scalar(grep { $_->{complete} && $_->{length} == MAX } @seen), 1,
       "$path: declared, fits: complete");

    is($over->{status}, 413, "$path: declared, over: 413");
    ok($over->{began} < 30 && $over->{fin}, "$path: at once");
    is(scalar @seen, 1, "$path: upstream does not see it");
}

for my $path (qw{/len /fastcgi /grpc}) {
    my ($fits, $over) = http3($t, $port, [post($path, MAX),
                                          post($path, MAX + 1)]);
    my @seen = seen($up, 2);

    is($fits->{status}, 200, "$path: undeclared, fits");
    is($over->{status}, 413, "$path: undeclared, over: 413");
    ok($over->{fin}, "$path: undeclared, over: answer complete");
    is(scalar(grep { $_->{complete} } @seen), 1,
       "$path: upstream sees one as complete");
    ok((grep { !$_->{complete} && $_->{length} <= MAX } @seen),
       "$path: and the other cut");
}

# error_page, and the connection goes on

{
    my @answers = http3($t, $port, [
        post('/page', MAX + 1, MAX + 1),
        { %{ post('/page', MAX + 1) }, after => 0 },
        { %{ post('/page', 10) }, after => 1 },
        { %{ post('/proxied', MAX + 1) }, after => 2 },
        { %{ post('/proxied', MAX + 1, MAX + 1) }, after => 3 },
        { %{ post('/proxied', 10) }, after => 4 },
        { %{ post('/other_page', MAX + 1) }, after => 5 },
        { %{ post('/unlimited/len', MAX + 1) }, after => 6 },
        { %{ post('/nobody', MAX + 1) }, after => 7 },
        { %{ post('/len', 20) }, after => 8 },
    ]);
    my @seen = seen($up, 8);

    is(join(' ', map { $_->{body} // '-' } @answers),
       'sorry sorry 10 0 0 10 0 ' . (MAX + 1) . ' nobody 20',
       'error pages and the requests behind them');
    is(join(' ', map { $_->{fin} ? 1 : 0 } @answers),
       join(' ', (1) x @answers), 'all complete');
    is(join(' ', sort { $a <=> $b }
                 map { $_->{length} } grep { $_->{complete} } @seen),
       join(' ', 0, 0, 0, 10, 10, 20, MAX + 1), 'complete to the upstream');
    is($t->log_count(qr/client sent too large body/), 6, 'logged');
}

# responses

{
    my $over = MAX + 1;
    my @paths = ('/bytes/' . MAX, "/bytes/$over",
                 '/stream/' . MAX, "/stream/$over",
                 "/cache/bytes/$over", "/cache/stream/$over",
                 "/store/stream/$over",
                 "/rate/stream/$over", '/rate/stream/' . MAX,
                 "/f/", "/s/", "/u/",
                 "/unlimited/stream/$over");
    my @answers = http3($t, $port, [map { { path => $_ } } @paths]);
    my %answer = map { $paths[$_] => $answers[$_] } 0 .. $#paths;

    for my $path (@paths) {
        if ($path =~ /unlimited|@{[MAX]}$/) {
            is($answer{$path}{fin}, 1, "$path: whole");
            my ($length) = $path =~ /(\d+)$/;
            is($answer{$path}{length}, $length, "$path: length");

        } else {
            is($answer{$path}{reset}, 0x102, "$path: reset");
            cmp_ok($answer{$path}{length}, '<=', MAX, "$path: cut");
        }
    }

    seen($up);
    is($t->log_count(qr/upstream sent too large response/), 9, 'logged');

    my ($head) = http3($t, $port, [{ method => 'HEAD',
                                     path => "/bytes/$over" }]);

    is($head->{status}, 200, 'HEAD has no body to cut');

    # nothing of those that were cut is kept

    is(join(' ', glob("$cache/* $store/store/stream/*")), '',
       'no cache, no store');
}

# other versions of HTTP know no such limits

{
    my ($status, $body) = $t->curl("http://127.0.0.1:$plain/stream/300000");
    is(length $body, 300_000, 'HTTP/1: response');

    my $file = $t->write('body', 'x' x 300_000);

    ($status, $body) = $t->curl('--data-binary', "\@$file",
                                "http://127.0.0.1:$plain/len");
    is($body, '300000', 'HTTP/1: request');

    ($status, $body) = $t->curl("http://127.0.0.1:$plain/counters");
    is($body, '13 9', 'counters');
}

$t->done();
