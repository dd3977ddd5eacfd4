#!/usr/bin/perl

# TLS of the relay: upstreams whose certificate is not right, protocols that
# do not match, upstreams that are not there, and clients without certificates.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# RFC 9001, 4.8: alerts of TLS as error codes
use constant {
    INTERNAL_ERROR => 0x100 + 80,
    CERTIFICATE_REQUIRED => 0x100 + 116,
    HANDSHAKE_FAILURE => 0x100 + 40,
};

my @past = qw/-not_before 20200101000000Z -not_after 20210101000000Z/;

my $t = QuicLB->new();
my ($cert, $key) = $t->certificate();
my ($other, $other_key) = certificate('other');
my ($expired, $expired_key) = certificate('expired', @past);
my %other = (upstream_cert => $other, upstream_key => $other_key);
my %expired = (upstream_cert => $expired, upstream_key => $expired_key,
               ca => $expired);


# upstreams that are refused

refused('a certificate of nobody', INTERNAL_ERROR,
        qr/certificate is refused: \(18:.* depth 0, the name is "localhost"/,
        %other);
refused('an expired certificate', INTERNAL_ERROR,
        qr/certificate is refused: \(10:/, %expired);
refused('another name', INTERNAL_ERROR,
        qr/certificate is refused: \(62:.* the name is "nobody\.example"/,
        name => 'nobody.example');
refused('another address', INTERNAL_ERROR,
        qr/certificate is refused: \(64:.* the name is "192\.0\.2\.1"/,
        name => '192.0.2.1');

# aioquic's way to say so; RFC 7301, 3.2 has an alert of its own

refused('no common protocol', HANDSHAKE_FAILURE,
        qr/no connection to upstream .* code 0x128/,
        options => ['--server-alpn', 'another']);
refused('a port where nobody listens', INTERNAL_ERROR,
        qr/nobody listens at the upstream/,
        target => '127.0.0.1:' . $t->port());


# upstreams that are taken

taken('an address as the name', name => '127.0.0.1');
taken('any protocol', options => ['--alpn', 'moq-00']);

my $dead = $t->port();

taken('the next upstream', target => 'pool', pool => $dead);
like($t->read('access.log'), qr/^UDP 200 127\.0\.0\.1:$dead, 127\./m,
     'the log has both');


# clients

my $relay = start(server => "ssl_verify_client on;
                             ssl_client_certificate $cert;");
my $report = $relay->ends('refused');

is($report->{code}, CERTIFICATE_REQUIRED, 'a client without a certificate')
    or diag($report->{error} // "");
ok($t->wait_log(qr/client sent no required SSL certificate/),
   'and the log says so');

$t->stop();
$t->done();


sub start {
    my (%options) = @_;

    my $relay = QuicLB::Relay->new($t, %options);
    $relay->{options} = $options{options} // [];

    if (my $first = $options{pool}) {
        my $text = $t->read('nginx.conf');
        $text =~ s/^stream \{/stream { upstream pool {
            server 127.0.0.1:$first;
            server 127.0.0.1:$relay->{upstream};
        }/m;
        $t->write('nginx.conf', $text);
    }

    unlink $t->path('access.log');
    $t->start();

    return $relay;
}


sub refused {
    my ($name, $code, $log, %options) = @_;

    my $report = start(%options)->ends('refused');

    is($report->{code}, $code, "$name: the alert")
        or diag($report->{error} // "");
    ok($t->wait_log($log), "$name: the log says it");

    $t->stop();
}


sub taken {
    my ($name, %options) = @_;

    my $report = start(%options)->ends('queries', 1);

    ok($report->{ok}, $name) or diag($report->{error}, $t->error_log());

    # a worker that quits logs its sessions
    $t->stop('QUIT');
}


sub certificate {
    my ($name, @dates) = @_;

    my ($cert, $key) = map { $t->path("$name.$_") } qw/pem key/;

    $t->run("openssl-$name", qw/openssl req -x509 -nodes -newkey ec
            -pkeyopt ec_paramgen_curve:prime256v1 -subj/, '/CN=localhost',
            '-addext', 'subjectAltName=DNS:localhost',
            @dates ? @dates : ('-days', 30), '-keyout', $key, '-out', $cert)
        == 0 or die $t->read("openssl-$name.err");

    return ($cert, $key);
}
