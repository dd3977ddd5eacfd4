#!/usr/bin/perl

# curl and ngtcp2's client, the relay, nginx's own HTTP/3: the relay knows
# nothing of HTTP.  The server sends its packets in trains.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

use constant BIG => 20 * 1024 * 1024;

my $t = QuicLB->new();
my ($cert, $key) = $t->certificate();
my $h3 = $t->port();
my $dir = $t->path('');
my $relay = QuicLB::Relay->new($t, target => "127.0.0.1:$h3",
                               parts => { http => <<"CONF" });
    access_log off;

    server {
        listen 127.0.0.1:$h3 quic;
        quic_gso on;
        ssl_certificate $cert;
        ssl_certificate_key $key;

        location = /big {
            root $dir;
        }

        ssl_client_certificate $cert;
        ssl_verify_client optional;

        location = /verify {
            return 200 "\$ssl_client_verify \$ssl_client_s_dn";
        }

        location = /reused {
            return 200 "\$ssl_session_reused";
        }

        location = /hello {
            return 200 "\$server_protocol \$ssl_alpn_protocol";
        }
    }
CONF

my $content = join '', map { pack 'N', $_ * 2654435761 % 2 ** 32 }
                       1 .. BIG / 4;

$t->write('big', $content);
$t->start();

my $url = "https://localhost:$relay->{port}";

my ($code, $answer) = $t->curl('--http3-only', "$url/hello");

is($code, 0, 'curl has an answer');
is($answer, 'HTTP/3.0 h3', 'HTTP/3, and its ALPN at both ends');

($code, $answer) = $t->curl('--http3-only', '--parallel',
                            map({ ('-o', $t->path("got$_"), "$url/big") }
                                1 .. 3));

is($code, 0, 'three downloads');
ok($t->read("got$_") eq $content, "download $_ is identical") for 1 .. 3;

SKIP: {
    my $body = $t->ngtcp2('127.0.0.1', $relay->{port}, "$url/hello");
    skip('ngtcp2\'s client is not there', 1) if !defined $body;
    is($body, 'HTTP/3.0 h3', 'ngtcp2\'s client');
}


($code, $answer) = $t->curl('--http3-only', "$url/reused");
is($answer, 'r', 'nginx resumes the TLS session of the relay');


# the upstream asks for a certificate

($code, $answer) = $t->curl('--http3-only', "$url/verify");
is($answer, 'NONE ', 'a relay without a certificate');

my $text = $t->read('nginx.conf');
$text =~ s/(quic_relay_ssl_name )/quic_relay_ssl_certificate $cert;
        quic_relay_ssl_certificate_key $key;
        $1/;
$t->write('nginx.conf', $text);
ok($t->reload(), 'reload');

# an older worker may still be there for a client that comes at once
ok($t->wait_for('the certificate', sub {
    return ($t->curl('--http3-only', "$url/verify"))[1]
           eq 'SUCCESS CN=localhost';
}), 'a relay with one');

$t->done();
