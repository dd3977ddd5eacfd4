#!/usr/bin/env perl

# Configurations of the relay: what "nginx -t" takes, and what it refuses with
# the directive and the value.

use strict;
use warnings;

use FindBin;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

my ($ca) = $t->certificate();
my $wrong = $t->path('wrong.pem');
my $port = $t->port();

$t->write('wrong.pem', "no certificate\n");


# taken

accepts('nothing set', '');
accepts('a CA', "quic_relay_ssl_trusted_certificate $ca;");
accepts('a depth', "quic_relay_ssl_trusted_certificate $ca;
                    quic_relay_ssl_verify_depth 100;");


# refused

refuses('a CA file that is missing',
        'quic_relay_ssl_trusted_certificate /nowhere/ca.pem;',
        qr{/nowhere/ca\.pem});
refuses('a CA file without a certificate',
        "quic_relay_ssl_trusted_certificate $wrong;", qr/\Q$wrong\E/);
refuses('a CRL without a CA', 'quic_relay_ssl_crl some.crl;',
        qr/"quic_relay_ssl_crl" "some\.crl" needs "quic_relay_ssl_trusted_/);
refuses('a CRL file that is missing',
        "quic_relay_ssl_trusted_certificate $ca;
         quic_relay_ssl_crl /nowhere/a.crl;", qr{/nowhere/a\.crl});

for my $depth (qw/0 101 -1 x/) {
    refuses("a depth of $depth", "quic_relay_ssl_verify_depth $depth;",
            qr/"quic_relay_ssl_verify_depth" .*1 to 100, not "$depth"/);
}

refuses('a directive given twice', 'quic_relay_ssl_verify_depth 1;
                                    quic_relay_ssl_verify_depth 2;',
        qr/"quic_relay_ssl_verify_depth" directive is duplicate/);

$t->done();


sub server {
    my ($conf) = @_;

    return "server { listen 127.0.0.1:$port udp; return \"\"; $conf }";
}


sub accepts {
    my ($name, $conf) = @_;

    my ($ok, $output) = $t->test_conf(stream => server($conf));

    ok($ok, "accepted: $name") or diag($output);
}


sub refuses {
    my ($name, $conf, $why) = @_;

    my ($ok, $output) = $t->test_conf(stream => server($conf));

    ok(!$ok && $output =~ /\[emerg\]/ && $output =~ $why, "refused: $name")
        or diag($output);
}
