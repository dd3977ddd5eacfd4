#!/usr/bin/perl

# Error codes on the wire, of streams and of connections.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

my $t = QuicLB->new();
my $port = $t->port();

$t->conf(http => <<"CONF");
    access_log off;

    server {
        @{[listen_lines($t, $port)]}
        large_client_header_buffers 2 1k;

        location / {
            return 200 "ok\\n";
        }

        location /bad {
            return 400;
        }

        location /page {
            error_page 400 /other;
            return 400;
        }
    }
CONF
$t->start();

my @next = (['get', 'next', '/'], ['wait', 'next']);

sub stream_of {
    my ($name, @actions) = @_;

    my $report = $t->h3_script("127.0.0.1:$port", @actions, ['wait', 'a'],
                               @next);
    my ($stream, $next) = streams($report->{connections}[0]);

    is($next->{status}, 200, "$name: the connection lives on")
        or diag($report->{error});

    return $stream;
}

for my $case (
    ['no :path', { ':path' => undef }],
    ['no :method', { ':method' => undef }],
    ['no :scheme', { ':scheme' => undef }],
    ['an unknown pseudo header', { ':unknown' => 'x' }],
    ['upper case', { 'X-Upper' => 'x' }],
    ['a bad Content-Length', { 'content-length' => 'x' }],
    ['two hosts', { 'host' => 'other' }],
) {
    my ($name, $headers) = @$case;
    my $stream = stream_of($name, ['headers', 'a', $headers, 1]);

    is($stream->{reset}, H3_MESSAGE_ERROR, "$name: H3_MESSAGE_ERROR");
    is($stream->{status}, undef, 'and no response');
}

for my $path ('/bad', '/page') {
    my $stream = stream_of($path, ['get', 'a', $path]);

    is($stream->{status}, 400, "$path: a 400 of the configuration stays one");
    ok($stream->{fin}, 'without a reset');
}

is(stream_of('too large', ['headers', 'a',
             { map { ("x-$_" => 'x' x 900) } 1 .. 3 }, 1])->{status},
   400, 'too large a header stays a 400');

for my $case (
    ['DATA first', '0000', H3_FRAME_UNEXPECTED],
    ['SETTINGS', '0400', H3_FRAME_UNEXPECTED],
    ['GOAWAY', '070100', H3_FRAME_UNEXPECTED],
    ['static index 99', '01040000ff24', QPACK_DECOMPRESSION_FAILED],
    ['Required Insert Count', '0103ff0080', QPACK_DECOMPRESSION_FAILED],
    ['a bad Huffman code', '010800002cffffffff00',
     QPACK_DECOMPRESSION_FAILED],
) {
    my ($name, $hex, $code) = @$case;
    my $stream = stream_of($name, ['raw', 'a', $hex]);

    is(sprintf('0x%x', $stream->{reset} // 0), sprintf('0x%x', $code), $name);
}

is(stream_of('HEADERS cut by FIN', ['raw', 'a', '01100000', 1])->{reset},
   0x10d, 'HEADERS cut by FIN: H3_REQUEST_INCOMPLETE');

for my $case (
    ['DATA on the control stream', '0000', H3_FRAME_UNEXPECTED],
    ['a second SETTINGS', '0400', H3_FRAME_UNEXPECTED],
) {
    my ($name, $hex, $code) = @$case;
    my $client = $t->h3_script("127.0.0.1:$port", ['ping'],
                               ['control', $hex],
                               ['wait_close'])->{connections}[0];

    close_is($client, $code, $name);
}

my $client = $t->h3_script("127.0.0.1:$port", ['get', 'a', '/'],
                           ['wait', 'a'], ['ping'], ['encoder', 'ff' x 12],
                           ['wait_close'])->{connections}[0];
ok($client->{close} && $client->{close}{app}, 'a bad encoder stream closes');

$t->done();
