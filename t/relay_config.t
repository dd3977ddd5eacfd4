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

my ($ca, $key) = $t->certificate();
my $wrong = $t->path('wrong.pem');
my ($port, $tcp) = map { $t->port() } 1 .. 2;

$t->write('wrong.pem', "no certificate\n");


# taken

accepts('nothing set', '');
accepts('a CA', "quic_relay_ssl_trusted_certificate $ca;");
accepts('a depth', "quic_relay_ssl_trusted_certificate $ca;
                    quic_relay_ssl_verify_depth 100;");


my $relay = "ssl_certificate $ca; ssl_certificate_key $key;
             quic_relay_ssl_trusted_certificate $ca;";

accepts('a relay', "$relay quic_relay 127.0.0.1:1;", 1);
accepts('all settings', "$relay quic_relay 127.0.0.1:1;
    quic_relay_stream_window 16k; quic_relay_max_streams 65536;
    quic_relay_datagram_queue 1; quic_relay_timeout 1s;
    quic_relay_connect_timeout 100ms; quic_relay_ssl_name a.example;", 1);


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

refuses('a relay without a CA', "ssl_certificate $ca;
         ssl_certificate_key $key; quic_relay 127.0.0.1:1;",
        qr/"quic_relay" to "127.0.0.1" needs "quic_relay_ssl_trusted_/, 1);
refuses('a relay without a certificate',
        "quic_relay_ssl_trusted_certificate $ca; quic_relay 127.0.0.1:1;",
        qr/no "ssl_certificate" is defined for "quic_relay"/, 1);
refuses('two relays in a server', "$relay quic_relay 127.0.0.1:1;
         quic_relay 127.0.0.1:2;", qr/"quic_relay" .*is duplicate/, 1);
refuses('a relay without a port', "$relay quic_relay 127.0.0.1;",
        qr/no port in upstream "127.0.0.1"/, 1);
refuses('old TLS only', "$relay ssl_protocols TLSv1.2;
         quic_relay 127.0.0.1:1;", qr/needs "ssl_protocols" with "TLSv1\.3"/,
        1);
refuses('TCP', "$relay listen 127.0.0.1:$tcp; quic_relay 127.0.0.1:1;",
        qr/"quic_relay" needs "listen 127\.0\.0\.1:$tcp udp"/, 1);
refuses('a server that does not relay', "$relay quic_relay 127.0.0.1:1;
         server_name a.example; }
         server { listen 127.0.0.1:$port udp; server_name b.example;
         return '';", qr/all servers of "listen .*" need "quic_relay"/, 1);
refuses('two workers', "$relay quic_relay 127.0.0.1:1;",
        qr/"quic_relay" needs "worker_processes 1", not "2"/, 1, workers => 2);

for my $case (['stream_window', '16384 to 1073741824', qw/1k 2048m/],
              ['max_streams', '1 to 65536', qw/0 65537/],
              ['datagram_queue', '1 to 65536', qw/0 65537/],
              ['timeout', '1000 to 86400000', qw/0 2d/],
              ['connect_timeout', '100 to 3600000', qw/1ms 2h/])
{
    my ($name, $range, @values) = @$case;

    refuses("$name of $_", "quic_relay_$name $_;",
            qr/"quic_relay_$name" must be $range, not "$_"/)
        for @values;
}

$t->done();


# |$content|: the server's own, no "return"

sub server {
    my ($conf, $content) = @_;

    my $return = $content ? '' : 'return "";';

    return "server { listen 127.0.0.1:$port udp; $return $conf }";
}


sub accepts {
    my ($name, $conf, $content) = @_;

    my ($ok, $output) = $t->test_conf(stream => server($conf, $content));

    ok($ok, "accepted: $name") or diag($output);
}


sub refuses {
    my ($name, $conf, $why, $content, %parts) = @_;

    my ($ok, $output) = $t->test_conf(%parts,
                                      stream => server($conf, $content));

    ok(!$ok && $output =~ /\[emerg\]/ && $output =~ $why, "refused: $name")
        or diag($output);
}
