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


# what nginx takes, and the one line that is logged: an error where it cannot
# work, a warning where it may be meant; "# here" is in the line that is named

my $server = "listen $port udp;";
my $on = "listen 0.0.0.0:$port";
my ($cert, $cert_key) = $t->certificate();
my $http = "ssl_certificate $cert; ssl_certificate_key $cert_key;";

my $key = $t->write('retry.key', 'k' x 32);
chmod 0600, $key;

my $pass = "server { # here
    $server quic_passthrough u;";
my $lengths = 'server_id_length 1; nonce_length 4;';
my $ids = "quic_lb 0 { $lengths server_id 01 127.0.0.1:4433; }";

for my $case (
    ['a server that is the listen', 'emerg',
     "upstream l { server 127.0.0.1:4433; server 127.0.0.1:$port; }
      server { # here
          listen 127.0.0.1:$port udp; quic_passthrough l; }",
     "\"quic_passthrough\" would pass datagrams to"
     . " itself: \"127.0.0.1:$port\" of upstream \"l\" is"
     . " listen 127.0.0.1:$port, use another address or port, server"],
    ['a target that is the listen', 'emerg',
     "server { # here
          listen 127.0.0.1:$port udp; quic_passthrough 127.0.0.1:$port; }",
     "\"quic_passthrough\" would pass datagrams to itself: \"127.0.0.1:$port\""
     . " of upstream \"127.0.0.1\" is listen 127.0.0.1:$port, use another"
     . " address or port, server"],
    ['a server that a wildcard listens for', 'emerg',
     "upstream l { server 127.0.0.2:$port; }
      server { # here
          $server quic_passthrough l; }",
     "\"quic_passthrough\" would pass datagrams to "
     . "itself: \"127.0.0.2:$port\" of upstream \"l\" is"
     . " $on, use another address or port, server"],
    ['an upstream of another name', 'emerg',
     "upstream lb { server 127.0.0.1:4433; }
      server { $server
          quic_passthrough bl; # here
      }",
     'no port in upstream "bl", and no "upstream" block has this name'
     . ' (the upstreams are "u", "lb")'],

    ['$quic_preread_server_name as the target, nothing reads it', 'emerg',
     "server { # here
          $server quic_passthrough \$quic_preread_server_name:443; }",
     '"quic_passthrough $quic_preread_server_name:443" needs "quic_preread on"'
     . " for its \$quic_preread_..., $on, server"],
    ['the same in braces', 'emerg',
     "server { # here
          $server quic_passthrough a.\${quic_preread_server_name}:443; }",
     '"quic_passthrough a.${quic_preread_server_name}:443" needs "quic_preread'
     . " on\" for its \$quic_preread_..., $on, server"],
    ['$ssl_preread_server_name as the target', 'emerg',
     "server { # here
          $server quic_preread on;
          quic_passthrough \$ssl_preread_server_name:443; }",
     '"quic_passthrough $ssl_preread_server_name:443" needs $quic_preread_...'
     . " instead of \$ssl_preread_..., and \"quic_preread on\", $on, server"],
    ['a map of $quic_preread_server_name, nothing reads it', 'warn',
     "map \$quic_preread_server_name \$pool { default u; }
      server { # here
          $server quic_passthrough \$pool; }",
     'the variable "quic_preread_server_name" is empty: no server with'
     . ' "quic_passthrough" has "quic_preread on", server'],
    ['server names, nothing reads them', 'warn',
     "server { $server quic_passthrough u; }
      server { # here
          $server server_name x; quic_passthrough u; }",
     "\"quic_passthrough\" uses the default server alone for $on,"
     . ' "server_name" needs "quic_preread on", server'],

    ['ssl_preread', 'warn', "$pass ssl_preread on; }",
     '"ssl_preread" reads nothing of QUIC, use "quic_preread" with'
     . ' "quic_passthrough", server'],
    ['ssl_preread for stream and a target with variables', 'warn',
     "ssl_preread on; map \$ssl_preread_server_name \$pool { default u; }
      server { # here
          $server quic_passthrough \$pool; }",
     '"ssl_preread" reads nothing of QUIC, use "quic_preread" with'
     . ' "quic_passthrough", server'],
    ['proxy_protocol', 'warn', "$pass proxy_protocol on; }",
     '"proxy_protocol" has no effect with "quic_passthrough", for clients\''
     . ' addresses use "quic_passthrough_bind $remote_addr transparent",'
     . ' server'],

    ['a bind address of another family', 'emerg',
     "$pass quic_passthrough_bind ::1; }",
     '"quic_passthrough_bind" address "::1" and "127.0.0.1:4433" of upstream'
     . ' "u" are not of one address family, nor is any other of its servers,'
     . ' server'],
    ['a bind address of another family, a name', 'emerg',
     "server { # here
          $server quic_passthrough one.quic-lb.test:443;
          quic_passthrough_bind ::1; }",
     '"quic_passthrough_bind" address "::1" and "127.0.0.1:443" of upstream'
     . ' "one.quic-lb.test" are not of one address family, nor is any other of'
     . ' its servers, server'],
    ['a bind address of the family of some servers', 'warn',
     "upstream both { server 127.0.0.1:4433; server [::1]:4433; }
      server { # here
          $server quic_passthrough both; quic_passthrough_bind 127.0.0.1; }",
     '"quic_passthrough_bind" address "127.0.0.1" and "[::1]:4433" of upstream'
     . ' "both" are not of one address family, that server gets nothing,'
     . ' server'],
    ['a bind address that is not local', 'warn',
     "server { $server quic_passthrough u;
          quic_passthrough_bind 192.0.2.77; # here
      }",
     '"quic_passthrough_bind 192.0.2.77": nothing can be sent from this address'
     . ' until the machine has it, or with "transparent" (99: Cannot assign'
     . ' requested address)'],

    ['a threshold that cannot be met', 'warn',
     "$pass quic_passthrough_retry_key $key;
      quic_passthrough_retry adaptive threshold=129; }",
     '"threshold=129" of "quic_passthrough_retry" is more than the 128'
     . ' half-open flows that 512 worker_connections allow, 128 is used,'
     . ' server', connections => 512],

    ['a zone of another name', 'emerg',
     "server { $server quic_passthrough u;
               quic_passthrough_cid_zone zone=cids:1m; }
      server { # here
               listen $other udp; quic_passthrough u;
               quic_passthrough_cid_zone zone=cid; }",
     'zone "cid" of "quic_passthrough_cid_zone" has no size: one of the'
     . ' directives with this name must be "zone=cid:size", server'],
    ['zone mistyped', 'emerg',
     "server { $server quic_passthrough u;
          quic_passthrough_cid_zone zoen=cids:1m; # here
      }",
     'invalid parameter "zoen=cids:1m" of "quic_passthrough_cid_zone", it must'
     . ' be "zone=name[:size]" or "timeout=time"'],

    ['all servers down, of any balancer', 'warn',
     "upstream off { # here
          server 127.0.0.1:1 down; least_conn; }
      server { $server quic_passthrough off; }",
     'all servers of upstream "off" are "down", no new connection has a server'
    ],
    ['a server twice, of any balancer', 'warn',
     "upstream two { # here
          server 127.0.0.1:1; server 127.0.0.1:1; }
      server { $server quic_passthrough two; }",
     '"server 127.0.0.1:1" is more than once in upstream "two", use "weight"'
     . ' for a larger share'],
    ['a server without a server ID', 'warn',
     "upstream half { # here
          server 127.0.0.1:4433; server 127.0.0.1:4434; $ids }
      server { $server quic_passthrough half; }",
     '"server 127.0.0.1:4434" of upstream "half" has no "server_id": without'
     . ' "quic_passthrough_cid_zone" its connections end when a client\'s'
     . ' address changes and at a reload'],
    ['the same by a variable', 'warn',
     "upstream half { # here
          server 127.0.0.1:4433; server 127.0.0.1:4434; $ids }
      map \$remote_addr \$pool { default half; }
      server { $server quic_passthrough \$pool; }",
     '"server 127.0.0.1:4434" of upstream "half" has no "server_id": without'
     . ' "quic_passthrough_cid_zone" its connections end when a client\'s'
     . ' address changes and at a reload'],

    map({
        my ($directive, $value) = @$_;
        ["$directive without quic_passthrough", 'warn',
         "server { # here
              $server proxy_pass u; $directive $value; }",
         "\"$directive\" has no effect without \"quic_passthrough\" in the same"
         . ' server'];
    } ['quic_passthrough_cid_zone', 'zone=cids:1m'],
      ['quic_passthrough_timeout', '1s'],
      ['quic_passthrough_socket_rcvbuf', '64k'],
      ['quic_passthrough_socket_sndbuf', '64k'],
      ['quic_passthrough_bind', '127.0.0.1'],
      ['quic_passthrough_address_flows', '5'],
      ['quic_passthrough_address_rate', '5r/s'],
      ['quic_passthrough_retry', 'off'],
      ['quic_passthrough_retry_key', $key]),

    map({
        my ($directive, $value) = @$_;
        ["$directive of another server than the default", 'warn',
         "quic_preread on;
          server { $server quic_passthrough u; }
          server { # here
              $server server_name x; quic_passthrough u; $directive $value; }",
         "\"$directive\" differs from that of the default server of $on, which"
         . ' is used, server'];
    } ['quic_passthrough_address_flows', '5'],
      ['quic_passthrough_address_rate', '5r/s'],
      ['quic_passthrough_socket_rcvbuf', '64k'],
      ['quic_passthrough_socket_sndbuf', '64k']),

    ['a listen of http with the same address', 'emerg', "$pass }",
     "\"quic_passthrough\" needs $on for itself, a server outside of \"stream\""
     . ' has the same "listen" for UDP, server',
     http => "$http server { listen $port quic; }"],
    ['the same, with reuseport', 'emerg',
     "server { # here
          listen $port udp reuseport; quic_passthrough u; }",
     "\"quic_passthrough\" needs $on for itself, a server outside of \"stream\""
     . ' has the same "listen" for UDP, server',
     http => "$http server { listen $port quic reuseport; }", workers => 2],
    ['a listen of http with an address of a wildcard', 'warn', "$pass }",
     "$on of \"quic_passthrough\" and listen 127.0.0.1:$port for UDP outside of"
     . ' "stream" overlap, the more specific one gets the datagrams, server',
     http => "$http server { listen 127.0.0.1:$port quic; }"],
    ['a wildcard listen of http', 'warn',
     "server { # here
          listen 127.0.0.1:$port udp; quic_passthrough u; }",
     "listen 127.0.0.1:$port of \"quic_passthrough\" and $on for UDP outside of"
     . ' "stream" overlap, the more specific one gets the datagrams, server',
     http => "$http server { listen $port quic; }"],
    ['a dual-stack listen of http', 'warn', "$pass }",
     "$on of \"quic_passthrough\" and listen [::]:$port for UDP outside of"
     . ' "stream" overlap, the more specific one gets the datagrams, server',
     http => "$http server { listen [::]:$port quic ipv6only=off; }"],
)
{
    my ($name, $level, $text, $message, @more) = @$case;

    my ($ok, $output) = $t->test_conf(stream => "$upstream\n$text", @more);

    my ($before) = $t->read('test.conf') =~ /\A(.*?)# here$/sm;
    my $line = 1 + ($before =~ tr/\n//);

    ok($level eq 'warn' ? $ok : !$ok, "$name: [$level]") or diag($output);

    my @lines = $output =~ /^nginx: (\[(?:warn|emerg)\] .*)$/mg;
    is_deeply(\@lines, ["[$level] $message in " . $t->path('test.conf')
                        . ":$line"], "$name: in one line");
}


# what is like these, and is no mistake

for my $case (
    ['an upstream behind the server, with any balancer',
     "server { $server quic_passthrough later; }
      upstream later { least_conn; server 127.0.0.1:1; }"],
    ['a server that a more specific listen is for, and one that is down',
     "upstream l { server 127.0.0.2:$port; server 127.0.0.3:$port down; }
      server { $server quic_passthrough l; }
      server { listen 127.0.0.2:$port udp; quic_passthrough u; }"],
    ['a server at the port of another machine',
     "upstream l { server 192.0.2.1:$port; }
      server { $server quic_passthrough l; }"],
    ['ssl_preread for stream',
     "ssl_preread on; server { $server quic_passthrough u; }"],
    ['ssl_preread for stream, and quic_preread',
     "ssl_preread on; map \$quic_preread_server_name \$pool { default u; }
      server { $server quic_preread on; quic_passthrough \$pool; }"],
    ['ssl_preread beside it',
     "server { $server quic_passthrough u; }
      server { listen $port; ssl_preread on; proxy_pass u; }"],
    ['proxy_protocol for stream',
     "proxy_protocol on; server { $server quic_passthrough u; }"],
    ['a bind address that is not local, transparent',
     "server { $server quic_passthrough u;
               quic_passthrough_bind 192.0.2.77 transparent; }"],
    ['a bind address and its family',
     "server { $server quic_passthrough u; quic_passthrough_bind 127.0.0.1; }"],
    ['a threshold that can be met',
     "server { $server quic_passthrough u; quic_passthrough_retry_key $key;
               quic_passthrough_retry adaptive threshold=128; }",
     connections => 512],
    ['a zone that is declared behind',
     "server { $server quic_passthrough u;
               quic_passthrough_cid_zone zone=cids; }
      server { listen $other udp; quic_passthrough u;
               quic_passthrough_cid_zone zone=cids:1m; }"],
    ['a server without a server ID, learned',
     "upstream half { server 127.0.0.1:4433; server 127.0.0.1:4434; $ids }
      server { $server quic_passthrough half;
               quic_passthrough_cid_zone zone=cids:1m; }"],
    ['a server without a server ID, going away',
     "upstream half { server 127.0.0.1:4433; server 127.0.0.1:4434 down; $ids }
      server { $server quic_passthrough half; }"],
    ['a server without a server ID, mapped',
     "upstream half { server 127.0.0.1:4433; server 127.0.0.1:4434;
                      quic_lb 0 { $lengths unmapped maglev; } }
      server { $server quic_passthrough half; }"],
    ['server IDs in two blocks',
     "upstream half { server 127.0.0.1:4433; server 127.0.0.1:4434; $ids
                quic_lb 1 { $lengths server_id 01 127.0.0.1:4434; } }
      server { $server quic_passthrough half; }"],
    ['directives for stream',
     "quic_passthrough_timeout 1s; quic_passthrough_address_flows 5;
      server { listen $port; proxy_pass u; }"],
    ['a variable that something reads',
     "log_format f \$quic_preread_server_name;
      server { $server quic_passthrough u; }
      server { listen $other udp; quic_preread on; quic_passthrough u; }"],
    ['http on TCP, and on another port',
     "server { $server quic_passthrough u; }",
     http => "$http server { listen $port; listen $other quic; }"],
    ['http on an address beside it',
     "server { listen 127.0.0.1:$port udp; quic_passthrough u; }",
     http => "$http server { listen 127.0.0.2:$port quic;
                             listen [::]:$port quic; }"],
)
{
    my ($name, $text, @more) = @$case;

    my ($ok, $output) = $t->test_conf(stream => "$upstream\n$text", @more);

    ok($ok && $output !~ /\[(?:warn|emerg|alert)\]/, "$name: accepted")
        or diag($output);
}


# several workers

$server = "server { listen 127.0.0.1:$port udp; quic_passthrough u; }";

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
