#!/usr/bin/perl

# Configurations of quic_preread that nginx -t must refuse, with one line that
# names the directive, the value and the rule; and some it must not.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my $port = $t->port();

my $upstream = 'upstream u { server 127.0.0.1:4433; quic_maglev; }';
my $pass = 'quic_passthrough u;';

for my $case (
    ['another value', "server { listen $port udp; $pass quic_preread maybe; }",
     qr/invalid value "maybe" in "quic_preread" directive/],
    ['no value', "server { listen $port udp; $pass quic_preread; }",
     qr/invalid number of arguments in "quic_preread" directive/],
    ['twice', "server { listen $port udp; $pass quic_preread on;
               quic_preread on; }",
     qr/"quic_preread" directive is duplicate/],
    ['in an upstream', "upstream v { server 127.0.0.1:1; quic_preread on; }",
     qr/"quic_preread" directive is not allowed here/],
    ['under proxy_pass', "server { listen $port udp; proxy_pass u;
                          quic_preread on; }",
     qr/"quic_preread\ on"\ needs\ "quic_passthrough"\ in\ the\ same\ server,
        \ in\ \S+test\.conf:\d+$/mx],
    ['on TCP', "server { listen $port; proxy_pass u; quic_preread on; }",
     qr/"quic_preread on" needs "quic_passthrough" in the same server/],
    ['not in the default server',
     "server { listen $port udp; $pass }
      server { listen $port udp; server_name x; $pass quic_preread on; }",
     qr/"quic_preread\ on"\ must\ be\ in\ the\ default\ server\ of\ listen
        \ 0\.0\.0\.0:$port,\ too,\ server\ in/x],

    ['a bad time', "server { listen $port udp; $pass
                    quic_preread_timeout soon; }",
     qr/"quic_preread_timeout" directive invalid value in/],
    ['no time', "server { listen $port udp; $pass quic_preread_timeout 0; }",
     qr/"quic_preread_timeout" must not be 0 in/],
    ['a time twice', "quic_preread_timeout 1s; quic_preread_timeout 1s;",
     qr/"quic_preread_timeout" directive is duplicate/],

    ['a bad size', 'quic_preread_memory much;',
     qr/"quic_preread_memory" directive invalid value in/],
    ['too little memory', 'quic_preread_memory 63k;',
     qr/value must be equal to or greater than 65536 in/],
    ['memory twice', 'quic_preread_memory 1m; quic_preread_memory 1m;',
     qr/"quic_preread_memory" directive is duplicate/],
    ['memory of a server', "server { listen $port udp; $pass
                            quic_preread_memory 1m; }",
     qr/"quic_preread_memory" directive is not allowed here/],

    ['from the stream level, with TCP and proxy_pass beside',
     "quic_preread on; quic_preread_timeout 1ms; quic_preread_memory 64k;
      server { listen $port udp; $pass }
      server { listen $port; proxy_pass u; }
      server { listen 127.0.0.1:@{[$port + 1]} udp; proxy_pass u; }", undef],
    ['only in the default server',
     "server { listen $port udp; $pass quic_preread on; }
      server { listen $port udp; server_name x; $pass }", undef],
    ['off in the server',
     "quic_preread on; server { listen $port udp; $pass quic_preread off; }",
     undef],
)
{
    my ($name, $text, $expected) = @$case;

    my ($ok, $output) = $t->test_conf(stream => "$upstream\n$text");

    if ($expected) {
        ok(!$ok, "$name: refused");
        like($output, $expected, "$name: says why");

        my $errors = () = $output =~ /\[emerg\]/g;
        is($errors, 1, "$name: in one line");

    } else {
        ok($ok, "$name: accepted") or diag($output);
    }
}

$t->done();
