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
accepts('variables', "$relay quic_relay \$remote_addr:1;
    quic_relay_ssl_name \$ssl_server_name;", 1);
accepts('all settings', "$relay quic_relay 127.0.0.1:1;
    quic_relay_stream_window 16k; quic_relay_max_streams 65536;
    quic_relay_datagram_queue 1; quic_relay_timeout 1s;
    quic_relay_connect_timeout 100ms; quic_relay_ssl_name a.example;
    quic_relay_retry on;
    quic_relay_preferred_address [::1]:$port 127.0.0.1:$port;", 1);

my $hex = $t->write('hex.key', '8f' x 16 . "\n");
my $raw = $t->write('raw.key', 'k' x 16);
my $short = $t->write('short.key', 'k' x 15);
chmod 0600, $hex, $raw;

accepts('a server ID', 'quic_relay_server_id config_id=0 id=aabb
    nonce_length=4;');
accepts('the longest', "quic_relay_server_id config_id=6 id=@{[ 'ab' x 13 ]}
    nonce_length=4 key_file=$hex;");
accepts('the longest nonce', "quic_relay_server_id key_file=$raw
    nonce_length=16 id=ff config_id=0;");
accepts('a server ID of names', "$relay quic_relay 127.0.0.1:1;
    quic_relay_server_id config_id=0 id=aabb nonce_length=4; }
    server { listen 127.0.0.1:$port udp; server_name b.example; $relay
    quic_relay 127.0.0.1:1;", 1);

my ($ok, $output) = $t->test_conf(workers => 2, stream =>
    "quic_relay_host_key $raw;
     quic_relay_server_id config_id=1 id=01 nonce_length=8 key_file=$hex;
     server { listen 127.0.0.1:$port udp reuseport; $relay
              quic_relay 127.0.0.1:1; }
     server { listen 127.0.0.1:$port udp; server_name b.example; $relay
              quic_relay 127.0.0.1:1; }");
ok($ok, 'accepted: two workers, one server ID for all, a host key')
    or diag($output);


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
refuses('a relay to a socket of this system', "$relay quic_relay unix:/tmp/s;",
        qr{"quic_relay" value "unix:/tmp/s" is neither an upstream nor an}, 1);
refuses('an unknown variable', "$relay quic_relay \$nobody;",
        qr/unknown "nobody" variable/, 1);
refuses('an unknown variable in a name', "$relay quic_relay 127.0.0.1:1;
         quic_relay_ssl_name \$nobody;", qr/unknown "nobody" variable/, 1);
refuses('a name twice', 'quic_relay_ssl_name a.example;
                         quic_relay_ssl_name b.example;',
        qr/"quic_relay_ssl_name" directive is duplicate/);
refuses('a variable without a CA', "ssl_certificate $ca;
         ssl_certificate_key $key; quic_relay \$remote_addr:1;",
        qr/"quic_relay" to "\$remote_addr:1" needs "quic_relay_ssl_trusted_/,
        1);
refuses('a variable, and TCP', "$relay listen 127.0.0.1:$tcp;
         quic_relay \$remote_addr:1;",
        qr/"quic_relay" needs "listen 127\.0\.0\.1:$tcp udp"/, 1);
refuses('two relays, by variables', "$relay quic_relay \$remote_addr:1;
         quic_relay 127.0.0.1:2;", qr/"quic_relay" .*is duplicate/, 1);
refuses('old TLS only', "$relay ssl_protocols TLSv1.2;
         quic_relay 127.0.0.1:1;", qr/needs "ssl_protocols" with "TLSv1\.3"/,
        1);
refuses('TCP', "$relay listen 127.0.0.1:$tcp; quic_relay 127.0.0.1:1;",
        qr/"quic_relay" needs "listen 127\.0\.0\.1:$tcp udp"/, 1);
refuses('a server that does not relay', "$relay quic_relay 127.0.0.1:1;
         server_name a.example; }
         server { listen 127.0.0.1:$port udp; server_name b.example;
         return '';", qr/all servers of "listen .*" need "quic_relay"/, 1);
refuses('two workers without reuseport', "$relay quic_relay 127.0.0.1:1;",
        qr/"quic_relay" with 2 .* the "reuseport" .*"listen 127.0.0.1:$port"/,
        1, workers => 2);

my $id = 'config_id=0 id=aabb nonce_length=4';

for my $case (
    ['an unknown parameter', "$id key=x", qr/invalid parameter "key=x"/],
    ['a parameter twice', "$id id=cc", qr/duplicate parameter "id=cc"/],
    ['no codepoint', 'id=aa nonce_length=4', qr/have the parameter "config_/],
    ['no ID', 'config_id=0 nonce_length=4', qr/have the parameter "id="/],
    ['no nonce', 'config_id=0 id=aa', qr/the parameter "nonce_length="/],
    (map { ["codepoint $_", "config_id=$_ id=aa nonce_length=4",
            qr/"config_id" of .* must be 0 to 6, not "$_"/] } 7, -1, 'x'),
    (map { ["nonce length $_", "config_id=0 id=aa nonce_length=$_",
            qr/"nonce_length" of .* must be 4 to 18, not "$_"/] } 3, 19, 'x'),
    (map { ["ID $_", "config_id=0 id=$_ nonce_length=4",
            qr/"id" of .* must be 1 to 15 octets .*, not "$_"/] }
         '', 'a', 'xx', 'aabbc', 'aa' x 16),
    ['18 octets', 'config_id=0 id=aabb nonce_length=16',
     qr/"id" "aabb" and "nonce_length" 16 .* more than 17 octets/],
    ['an empty key file', "$id key_file=", qr/"key_file" .* must not be empty/],
    ['no such key file', "$id key_file=/nowhere/k", qr{"/nowhere/k" failed}],
    ['a key too short', "$id key_file=$short",
     qr/invalid key in "key_file" "\Q$short\E"/])
{
    my ($name, $value, $why) = @$case;

    refuses("server ID: $name", "quic_relay_server_id $value;", $why);
}

refuses('a server ID twice', "quic_relay_server_id $id;
         quic_relay_server_id $id;",
        qr/"quic_relay_server_id" directive is duplicate/);
refuses('a server ID that does not count', "$relay quic_relay 127.0.0.1:1; }
         server { listen 127.0.0.1:$port udp; server_name b.example; $relay
         quic_relay 127.0.0.1:1; quic_relay_server_id $id;",
        qr/"quic_relay_server_id" in .* has no effect: that of the default/,
        1);

for my $case ((map { [$_, qr/invalid value "\Q$_\E" in "quic_relay_preferred/] }
                   '127.0.0.1', '0.0.0.0:1', '[::]:1', '127.0.0.1:0',
                   '127.0.0.1:x', 'a.example:1', 'unix:/a'),
              ['127.0.0.1:1 127.0.0.2:1',
               qr/"127\.0\.0\.2:1" in "quic_relay_preferred.*a second address/])
{
    my ($value, $why) = @$case;

    refuses("preferred address $value",
            "quic_relay_preferred_address $value;", $why);
}

my $own = 'quic_relay_ssl_certificate';

for my $case (["$own $ca;", qr/"$own" "\Q$ca\E" needs "${own}_key"/],
              ["${own}_key $key;", qr/"${own}_key" "\Q$key\E" needs "$own"/],
              ["$own /nowhere; ${own}_key $key;",
               qr{cannot load certificate "/nowhere"}],
              ["$own $ca; ${own}_key $hex;",
               qr/cannot load certificate key "\Q$hex\E"/])
{
    my ($value, $why) = @$case;

    refuses($value, "quic_relay_ssl_trusted_certificate $ca; $value", $why);
}

accepts('a certificate', "quic_relay_ssl_trusted_certificate $ca;
        $own $ca; ${own}_key $key;");

for my $case ([$short, qr/"\Q$short\E" must have 16 to 65536 octets/],
              ['/nowhere/k', qr{"quic_relay_retry_key" .*"/nowhere/k" failed}],
              ['/dev/null', qr/"\/dev\/null" must be a regular file/])
{
    my ($file, $why) = @$case;

    refuses("retry key $file", "quic_relay_retry_key $file;", $why);
}

accepts('two retry keys', "quic_relay_retry_key $raw;" x 2);
refuses('a third retry key', "quic_relay_retry_key $raw;" x 3,
        qr/there must be at most 2 "quic_relay_retry_key" directives/);

accepts('reuse of sessions', 'quic_relay_ssl_session_reuse off;');
refuses('neither on nor off', 'quic_relay_ssl_session_reuse maybe;',
        qr/invalid value "maybe" in "quic_relay_ssl_session_reuse"/);

accepts('adaptive Retry', 'quic_relay_retry adaptive;');
accepts('its threshold', 'quic_relay_retry adaptive threshold=100;');
refuses('neither on nor off', 'quic_relay_retry maybe;',
        qr/value "maybe" in "quic_relay_retry" .* "off", "on" or "adaptive"/);
refuses('Retry twice', 'quic_relay_retry on; quic_relay_retry off;',
        qr/"quic_relay_retry" directive is duplicate/);

for my $wrong ('on threshold=1', 'off threshold=1', 'adaptive threshold=0',
               'adaptive threshold=', 'adaptive threshold=-1',
               'adaptive threshold=x', 'adaptive 100')
{
    my ($parameter) = $wrong =~ /(\S+)$/;

    refuses("Retry $wrong", "quic_relay_retry $wrong;",
            qr/invalid parameter "$parameter" in "quic_relay_retry"/);
}

for my $case ([$short, qr/"\Q$short\E" must have 16 to 4096 octets/],
              ['/nowhere/k', qr{"quic_relay_host_key" .*"/nowhere/k" failed}])
{
    my ($file, $why) = @$case;

    refuses("host key $file", "} quic_relay_host_key $file;
            server { listen 127.0.0.1:$tcp udp;", $why);
}

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
