#!/usr/bin/perl

# Configurations of quic_passthrough that nginx -t must refuse, with a line
# that names the directive, the value and the rule; and some it must not.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my ($port, $other) = map { $t->port() } 1 .. 2;

my $upstream = 'upstream u { server 127.0.0.1:4433; quic_maglev; }';

my $here = "listen 0.0.0.0:$port, server in";
my $all_or_none = '"quic_passthrough" must be in all servers or in none that'
                  . ' share the socket';

sub upstream {
    my ($name, $nonce) = @_;

    return "upstream $name { server 127.0.0.1:4433; quic_lb 0 {
            server_id_length 1; nonce_length $nonce;
            server_id 01 127.0.0.1:4433; } }";
}

for my $case (
    ['a TCP listen', "server { listen $port; quic_passthrough u; }",
     "\"quic_passthrough\" needs the \"udp\" parameter of \"listen\", $here"],
    ['twice', "server { listen $port udp; quic_passthrough u;
               quic_passthrough u; }",
     qr/"quic_passthrough" directive is duplicate/],
    ['no value', "server { listen $port udp; quic_passthrough; }",
     qr/invalid number of arguments in "quic_passthrough"/],
    ['no port', "server { listen $port udp; quic_passthrough 127.0.0.1; }",
     qr/no port in upstream "127\.0\.0\.1"/],
    ['no such host', "server { listen $port udp;
                      quic_passthrough nowhere.invalid:443; }",
     qr/host not found in upstream "nowhere\.invalid"/],
    ['an unknown variable', "server { listen $port udp;
                             quic_passthrough \$nothing; }",
     qr/unknown "nothing" variable/],
    ['another handler before', "server { listen $port udp; return x;
                                quic_passthrough u; }",
     '"quic_passthrough" directive conflicts with another content handler of'
     . ' this server in'],
    ['another handler behind', "server { listen $port udp; quic_passthrough u;
                                proxy_pass u; }",
     '"quic_passthrough" conflicts with another content handler of this server,'
     . " $here"],
    ['a bad time', "server { listen $port udp; quic_passthrough u;
                    quic_passthrough_timeout soon; }",
     qr/"quic_passthrough_timeout" directive invalid value in/],
    ['no time', "server { listen $port udp; quic_passthrough u;
                 quic_passthrough_timeout 0; }",
     qr/"quic_passthrough_timeout" must not be 0/],
    ['in an upstream', "upstream v { server 127.0.0.1:1; quic_passthrough u; }",
     qr/"quic_passthrough" directive is not allowed here/],
    ['an upstream without servers', "upstream v { quic_maglev; }
      server { listen $port udp; quic_passthrough v; }",
     qr/no servers are inside upstream in/],

    ['a wildcard socket with and without quic_passthrough',
     "server { listen $port udp; quic_passthrough u; }
      server { listen 127.0.0.1:$port udp; proxy_pass u; }",
     "$all_or_none, listen 127.0.0.1:$port, server in"],
    ['an address with and without quic_passthrough',
     "server { listen $port udp; proxy_pass u; }
      server { listen $port udp; server_name x; quic_passthrough u; }",
     "$all_or_none, $here"],
    ['sockets of their own',
     "server { listen $port udp; quic_passthrough u; }
      server { listen 127.0.0.1:$port udp bind; proxy_pass u; }", undef],
    ['TCP beside it',
     "server { listen $port udp; quic_passthrough u; }
      server { listen $port; proxy_pass u; }", undef],

    ['one codepoint behind two addresses of a port',
     upstream('a', 4) . upstream('b', 5)
     . "server { listen 127.0.0.1:$port udp; quic_passthrough a; }
        server { listen 127.0.0.2:$port udp; quic_passthrough b; }", undef],
)
{
    my ($name, $text, $expected) = @$case;

    my ($ok, $output) = $t->test_conf(stream => "$upstream\n$text");

    if ($expected) {
        ok(!$ok, "$name: refused");
        like($output, ref $expected ? $expected : qr/\Q$expected/,
             "$name: says why");

        my $errors = () = $output =~ /\[emerg\]/g;
        is($errors, 1, "$name: in one line");

    } else {
        ok($ok, "$name: accepted") or diag($output);
    }
}


# several workers

my $server = "server { listen 127.0.0.1:$port udp; quic_passthrough u; }";

my ($ok, $output) = $t->test_conf(workers => 2, stream => "$upstream $server");
ok(!$ok, 'several workers without reuseport: refused');
like($output, qr/"quic_passthrough"\ with\ 2\ worker\ processes\ needs
                 \ the\ "reuseport".*127\.0\.0\.1:$port/x, 'says why');

($ok, $output) = $t->test_conf(workers => 2, main => 'master_process off;',
                               stream => "$upstream $server");
ok($ok, 'one process') or diag($output);

$server =~ s/ udp;/ udp reuseport;/;
($ok, $output) = $t->test_conf(workers => 2, stream => "$upstream $server");
ok($ok, 'with reuseport') or diag($output);


# a failed reload leaves the workers as they are

$server =~ s/ reuseport;/;/;
$t->conf(stream => "$upstream $server");
$t->start();

my @workers = $t->workers();

$t->expect_log(qr/needs the "reuseport" parameter/);
$t->conf(workers => 3, stream => "$upstream $server");
ok(!$t->reload(), 'a reload that is refused');
is_deeply([$t->workers()], \@workers, 'leaves the workers alone');

$t->done();
