#!/usr/bin/perl

# Upstreams that answer before the body is over: the answer is delivered at
# once, the client is told to stop, and one that does not holds nothing up.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

use constant NO_ERROR => 0x100;

my $t = QuicLB->new();
my $port = $t->port();
my $up = upstreams($t, qw/http fastcgi scgi uwsgi/);
my ($http, $fastcgi, $scgi, $uwsgi) = @{ $up->{port} };

$t->conf(http => params() . server($t, $port, <<"SERVER"));
        proxy_http_version 1.1;
        proxy_send_timeout 4s;
        fastcgi_send_timeout 4s;
        http3_max_body_size 0;

        location / { proxy_pass http://127.0.0.1:$http; }
        location /f/ { fastcgi_param REQUEST_URI /refuse/401;
                       fastcgi_pass 127.0.0.1:$fastcgi; }
        location /s/ { scgi_param REQUEST_URI /refuse/401;
                       scgi_pass 127.0.0.1:$scgi; }
        location /u/ { uwsgi_param REQUEST_URI /refuse/401;
                       uwsgi_pass 127.0.0.1:$uwsgi; }
        location /fe/ { fastcgi_param REQUEST_URI /echo;
                        fastcgi_pass 127.0.0.1:$fastcgi; }
SERVER

$t->start();

# the client waits for the answer, the upstream does not read on, and closes

for my $path ('/refuse/401', '/refuse/413', '/f/', '/s/', '/u/') {
    my ($status) = $path =~ /(\d+)/;
    my ($answer) = http3($t, $port, [{
        method => 'POST', path => $path,
        headers => [['content-length', '1000000']],
        send => [{ data => 500 }, { wait_header => 1 }, { wait_stop => 1 }],
    }]);

    is($answer->{status}, $status // 401, "$path: answered");
    ok($answer->{fin}, "$path: whole answer");
    is($answer->{stop}, NO_ERROR, "$path: STOP_SENDING");
    is(scalar(grep { $_->{complete} } seen($up, 1)), 0, "$path: cut");
}

# the client has sent nothing yet

{
    my @answers = http3($t, $port, [
        { method => 'POST', path => '/refuse/401',
          headers => [['content-length', '10']],
          send => [{ wait_header => 1 }] },
        { method => 'POST', path => '/refuse/401',
          send => [{ wait_header => 1 }] },
    ]);

    is(join(' ', map { $_->{status} // '-' } @answers), '401 401',
       'nothing sent: answered');
    seen($up, 2);
}

# it closes while the client sends as fast as it can: the answer is not lost

for my $ignore (0, 1) {
    my @answers = http3($t, $port, [map { {
        method => 'POST', path => '/refuse/413',
        $_ % 2 ? (headers => [['content-length', '3000000']]) : (),
        ignore_stop => $ignore,
        send => [{ data => 3_000_000 }, { fin => 1 }],
    } } 1 .. 20]);
    my @good = grep { $_->{fin} && ($_->{status} // 0) == 413
                      && $_->{body} eq 'refused' } @answers;

    is(scalar @good, 20, 'closed under a flood: answers'
                         . ($ignore ? ', STOP_SENDING ignored' : ''));
    seen($up, 20);
}

# it reads on while it answers; the client does not go on without an answer

{
    my @answers = http3($t, $port, [
        { method => 'POST', path => '/echo',
          send => [{ data => 10_000 }, { wait_header => 1 },
                   ({ data => 10_000 }) x 19, { fin => 1 }] },
        { method => 'POST', path => '/fe/',
          headers => [['content-length', '2000000']],
          send => [{ data => 2_000_000 }, { fin => 1 }] },
        { method => 'POST', path => '/early/200',
          send => [{ data => 300_000 }, { wait_stop => 1 }] },
    ]);

    seen($up, 3);

    is($answers[0]{length}, 200_000, 'echo: all of it');
    is($answers[0]{fin}, 1, 'echo: complete');
    is($answers[1]{length}, 2_000_000, 'echo, FastCGI: all of it');
    is($answers[2]{body}, 'early', 'answered, reads on');
    is($answers[2]{stop}, NO_ERROR, 'answered, reads on: STOP_SENDING');
}

# it reads no more but has much to say: for longer than it may block the body

{
    my ($answer) = http3($t, $port, [{
        method => 'POST', path => '/deaf/600000', ignore_stop => 1,
        headers => [['content-length', '30000000']],
        send => [{ data => 30_000_000 }, { fin => 1 }],
    }]);

    is($answer->{length}, 600_000, 'deaf: all of the answer');
    is($answer->{fin}, 1, 'deaf: complete');
    seen($up, 1);
}

# an upstream that closes without an answer is a failure, as ever

{
    my ($answer) = http3($t, $port, [post('/close', 1e6, 1e6)]);

    is($answer->{status}, 502, 'no answer');
}

# the connection lives on where a client has ignored STOP_SENDING

{
    my @answers = http3($t, $port, [
        { method => 'POST', path => '/refuse/401', ignore_stop => 1,
          headers => [['content-length', '1000000']],
          send => [{ data => 400_000 }] },
        { %{ post('/len', 77) }, after => 0 },
    ]);

    is($answers[0]{status}, 401, 'ignored');
    is($answers[1]{body}, 77, 'next request');
}

$t->done();
