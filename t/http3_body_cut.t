#!/usr/bin/perl

# A request body that is cut at any octet, by the end of the stream or a reset,
# before or after the upstream has begun, is never complete to the upstream.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Bodies;

# three octets, a frame of unknown type, five octets with a length of two
# octets, a frame whose type has two
use constant BODY => '0003616263' . '2102ffff' . '00400568656c6c6f'
                     . '404102ffff';
use constant LENGTH => 8;

# where the stream may end: after a whole frame
use constant ENDS => [0, 5, 9, 17, 22];

# and where it has all that was declared
use constant WHOLE => [17, 22];

my $t = QuicLB->new();
my $port = $t->port();
my $up = upstreams($t, qw/http fastcgi grpc scgi uwsgi/);
my ($http, $fastcgi, $grpc, $scgi, $uwsgi) = @{ $up->{port} };
my $http2 = proxy_http2($t);

$t->conf(http => params() . server($t, $port, <<"SERVER"));
        proxy_http_version 1.1;
        proxy_next_upstream off;
        keepalive_requests 100000;
        http3_max_requests 0;

        location / { proxy_pass http://127.0.0.1:$http; }
        location /unbuffered { proxy_request_buffering off;
                               proxy_pass http://127.0.0.1:$http/len; }
        location /fastcgi { fastcgi_pass 127.0.0.1:$fastcgi; }
        location /grpc { grpc_pass grpc://127.0.0.1:$grpc; }
        @{[$http2 ? "location /http2 { proxy_http_version 2;"
                    . " proxy_pass http://127.0.0.1:$grpc; }" : '']}
        location /scgi { scgi_pass 127.0.0.1:$scgi; }
        location /uwsgi { uwsgi_pass 127.0.0.1:$uwsgi; }
SERVER

$t->start();

my $octets = length(BODY) / 2;

for my $path (qw{/len /unbuffered /fastcgi /grpc}) {
    sweep($path, [0 .. $octets]);
}

# where these differ: before, within and after each frame

my $some = [0, 1, 4, 5, 7, 9, 11, 16, 17, 18, 20, 21, 22];

for my $path (qw{/scgi /uwsgi}) {
    sweep($path, $some);
}

SKIP: {
    skip 'this nginx has no "proxy_http_version 2"', 8 if !$http2;

    sweep('/http2', $some);
}

# trailers belong to the body

trailers();

$t->done();


sub sweep {
    my ($path, $cuts) = @_;

    for my $declared (0, 1) {
        for my $late (0, 1) {
            my $what = "$path, " . ($declared ? '' : 'no ') . 'length, '
                       . ($late ? 'late' : 'at once');
            cut_all($what, $path, $cuts, $declared, $late);
        }
    }
}


sub cut_all {
    my ($what, $path, $cuts, $declared, $late) = @_;

    my %legal = map { $_ => 1 } @{ $declared ? WHOLE : ENDS };
    my @cases = map { [$_, { fin => 1 }], [$_, { reset => 0x10c }] } @$cuts;

    my @answers = http3($t, $port, [map { {
        method => 'POST', path => $path,
        headers => [$declared ? ['content-length', LENGTH . ''] : ()],
        send => [{ hex => substr(BODY, 0, 2 * $_->[0]) },
                 ($late ? { wait => 0.6 } : ()), $_->[1]],
    } } @cases]);

    my $want = grep { $legal{$_} } @$cuts;
    my @complete = grep { complete($_) } seen($up, $want);

    is(scalar @complete, $want, "$what: complete");

    my @wrong = grep {
        my ($at, $how) = @{ $cases[$_] };
        my $ok = ($answers[$_]{status} // 0) == 200;
        $ok != (exists $how->{fin} && $legal{$at} ? 1 : 0);
    } 0 .. $#cases;

    is(join(' ', map { join ':', $cases[$_][0], %{ $cases[$_][1] } } @wrong),
       '', "$what: answers");
}


# an application that counts to Content-Length does not look for the end

sub complete {
    my ($seen) = @_;

    return $seen->{complete}
           || (defined $seen->{declared}
               && $seen->{length} >= $seen->{declared});
}


sub trailers {
    my $trailers = '0104aabbccdd';

    for my $declared (0, 1) {
        my @cuts = 0 .. length($trailers) / 2;

        for my $how ({ fin => 1 }, { reset => 0x10c }) {
            http3($t, $port, [map { {
                method => 'POST', path => '/len',
                headers => [$declared ? ['content-length', '5'] : ()],
                send => [{ data => 5 },
                         { hex => substr($trailers, 0, 2 * $_) },
                         { wait => 0.6 }, $how],
            } } @cuts]);

            my $want = $how->{fin} ? 2 : 0;
            my @complete = grep { complete($_) } seen($up, $want);

            is(scalar @complete, $want,
               join ' ', 'trailers', ($declared ? 'length' : ()), %$how);
        }
    }
}
