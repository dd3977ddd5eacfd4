#!/usr/bin/env perl

# Configuration of "quic_maglev" and "quic_lb": what nginx -t accepts, and the
# one line by which it refuses the rest.

use strict;
use warnings;

use FindBin;
use POSIX qw/mkfifo/;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();

my $servers = 'server 127.0.0.1:8441; server 127.0.0.1:8442;';
my $lengths = 'server_id_length 3; nonce_length 4;';
my $id = 'server_id 31441a 127.0.0.1:8441;';

my $raw = key_file('raw.key', join '', map { chr } 0x0a, 0x0d, 2 .. 15);
my $hex = key_file('hex.key', '8f95f09245765f80256934e50c66207f');
my $hex_lf = key_file('hex_lf.key', "8F95F09245765F80256934E50C66207F\n");
my $hex_crlf = key_file('hex_crlf.key',
                        "8f95f09245765f80256934e50c66207f\r\n");
my $open = key_file('open.key', 'k' x 16, 0644);
my $missing = $t->path('missing.key');

$t->write('ids.conf', $id);

my $rule = qr/must be 16 octets or 32 hexadecimal digits/;


# quic_maglev

accepted('quic_maglev', "quic_maglev; $servers");
accepted('quic_maglev before and after servers',
         'server 127.0.0.1:8441; quic_maglev; server 127.0.0.1:8442;');
accepted('size', "quic_maglev size=65537; $servers");
accepted('size of as many slots as servers', "quic_maglev size=2; $servers");
accepted('the largest size', "quic_maglev size=16777213; $servers");
accepted('IPv6', 'quic_maglev; server [::1]:8441;');
accepted('all that a server may have', 'quic_maglev; zone z 256k;'
         . 'server 127.0.0.1:8441 weight=3 max_fails=2 fail_timeout=5s'
         . ' max_conns=7;'
         . 'server 127.0.0.1:8442 down; server 127.0.0.1:8443 backup;');
accepted('a weight beyond 32 bits',
         'quic_maglev; server 127.0.0.1:8441 weight=4294967296;');

for my $size (qw/0 1 65536 16777259 99999999999999999999 many -7/, '') {
    refused("size \"$size\"", "quic_maglev size=$size; $servers",
            "invalid value \"size=$size\" in \"quic_maglev\" directive,"
            . ' the size must be a prime number of at most 16777213');
}

refused('size less than the servers', "quic_maglev size=2; $servers"
        . 'server 127.0.0.1:8443;',
        qr/"quic_maglev" size 2 is less than the 3 servers in upstream "u"/);
refused('size less than the backup servers', 'quic_maglev size=2;'
        . 'server 127.0.0.1:8440;'
        . join('', map { "server 127.0.0.1:844$_ backup;" } 1 .. 3),
        qr/"quic_maglev" size 2 is less than the 3 servers in upstream "u"/);
refused('parameter', "quic_maglev slots=7; $servers",
        qr/invalid parameter "slots=7" in "quic_maglev" directive/);
refused('parameters', "quic_maglev size=7 size=7; $servers",
        qr/invalid number of arguments in "quic_maglev" directive/);
refused('quic_maglev twice', "quic_maglev; quic_maglev size=7; $servers",
        qr/"quic_maglev" directive is duplicate/);
refused('no servers', 'quic_maglev;', qr/no servers are inside upstream/);
refused('only backup servers', 'quic_maglev; server 127.0.0.1:8441 backup;',
        qr/no servers in upstream "u"/);
refused('unix server', 'quic_maglev; server unix:/tmp/quic-lb.sock;',
        'invalid address "unix:/tmp/quic-lb.sock" in "server" directive,'
            . ' it must not be a UNIX domain socket in upstream "u"');
refused('outside upstream', '', qr/"quic_maglev" directive is not allowed here/,
        'quic_maglev;');


# the balancer is redefined

my $redefined = qr/\[warn\].* load balancing method redefined/;

warned('after another balancer', "least_conn; quic_maglev; $servers",
       $redefined);
warned('quic_lb after another balancer',
       "least_conn; quic_lb 0 { $lengths $id } $servers", $redefined);
warned('before another balancer', "quic_maglev; least_conn; $servers",
       $redefined);
refused('quic_lb before another balancer',
        "quic_lb 2 { $lengths $id } least_conn; $servers",
        qr/"quic_lb 2" in upstream "u" must not be followed by another load/);
accepted('quic_maglev and quic_lb',
         "quic_maglev size=7; quic_lb 0 { $lengths $id } $servers");
accepted('quic_lb and quic_maglev',
         "quic_lb 0 { $lengths $id } quic_maglev size=7; $servers");


# quic_lb

accepted('quic_lb', "$servers quic_lb 0 { $lengths $id }");
accepted('quic_lb before servers', "quic_lb 6 { $lengths $id } $servers");
accepted('IDs before lengths', "quic_lb 0 { $id $lengths } $servers");
accepted('two generations', "$servers quic_lb 0 { $lengths $id }"
         . "quic_lb 1 { $lengths $id key_file $raw; }");
accepted('all directives', "$servers quic_lb 0 { $lengths $id"
         . "key_file $raw; unmapped fallback; length_self_description on; }");
accepted('no IDs but maglev',
         "$servers quic_lb 0 { $lengths unmapped maglev; }");
accepted('included lines', "$servers quic_lb 0 { $lengths include ids.conf; }");

for my $n (qw/7 8 -1 x 0x1 99999999999999999999/, '""') {
    (my $text = $n) =~ s/"//g;
    refused("codepoint $n", "$servers quic_lb $n { $lengths $id }",
            "invalid value \"$text\" in \"quic_lb\" directive,"
            . ' the codepoint must be a number from 0 to 6');
}

refused('codepoint twice', "$servers quic_lb 3 { $lengths $id }"
        . "quic_lb 3 { $lengths $id }",
        qr/duplicate "quic_lb 3", an upstream must have one block for each/);
refused('no codepoint', "$servers quic_lb { $lengths $id }",
        qr/invalid number of arguments in "quic_lb" directive/);
refused('no block', "$servers quic_lb 0;",
        qr/directive "quic_lb" has no opening "\{"/);
refused('quic_lb outside upstream', '',
        qr/"quic_lb" directive is not allowed here/, "quic_lb 0 { $lengths }");
refused('unknown directive', "$servers quic_lb 0 { $lengths nonce 4; }",
        qr/unknown directive "nonce"/);
refused('directive of upstream', "$servers quic_lb 0 { $lengths $servers }",
        qr/"server" directive is not allowed here/);
refused('block directive outside', "$servers $lengths",
        qr/"server_id_length" directive is not allowed here/);
refused('nested', "$servers quic_lb 0 { quic_lb 1 { $lengths } }",
        qr/"quic_lb" directive is not allowed here/);


# lengths

for my $pair ([1, 4], [1, 18], [15, 4], [12, 4], [9, 10]) {
    my ($server_id, $nonce) = @$pair;
    my $digits = '00' x $server_id;

    accepted("lengths $server_id and $nonce", "$servers quic_lb 0 {"
             . "server_id_length $server_id; nonce_length $nonce;"
             . "server_id $digits 127.0.0.1:8441; }");
}

for my $value (qw/0 16 -1 three 3k/) {
    refused("server_id_length $value", "$servers quic_lb 0 {"
            . "server_id_length $value; nonce_length 4; $id }",
            "invalid value \"$value\" in \"server_id_length\" directive,"
            . ' it must be a number from 1 to 15');
}

for my $value (qw/3 19 0 many/) {
    refused("nonce_length $value", "$servers quic_lb 0 {"
            . "server_id_length 3; nonce_length $value; $id }",
            "invalid value \"$value\" in \"nonce_length\" directive,"
            . ' it must be a number from 4 to 18');
}

refused('sum of lengths', "$servers quic_lb 0 {"
        . "server_id_length 3; nonce_length 17; $id }",
        '"server_id_length" 3 and "nonce_length" 17 in "quic_lb 0"'
            . ' make 20 octets, it must be at most 19');
refused('no server_id_length', "$servers quic_lb 4 { nonce_length 4; $id }",
        qr/no "server_id_length" in "quic_lb 4"/);
refused('no nonce_length', "$servers quic_lb 4 { server_id_length 3; $id }",
        qr/no "nonce_length" in "quic_lb 4"/);
refused('server_id_length twice',
        "$servers quic_lb 0 { $lengths server_id_length 3; $id }",
        qr/"server_id_length" directive is duplicate/);
refused('nonce_length twice',
        "$servers quic_lb 0 { $lengths nonce_length 4; $id }",
        qr/"nonce_length" directive is duplicate/);
refused('two lengths', "$servers quic_lb 0 { server_id_length 3 4; }",
        qr/invalid number of arguments in "server_id_length" directive/);


# unmapped, length_self_description

refused('nothing to route', "$servers quic_lb 5 { $lengths }",
        qr/"quic_lb 5" routes nothing: it must have a "server_id" or/);
refused('unmapped', "$servers quic_lb 0 { $lengths $id unmapped drop; }",
        'invalid value "drop" in "unmapped" directive,'
            . ' it must be "fallback" or "maglev"');
refused('unmapped twice', "$servers quic_lb 0 { $lengths $id"
        . 'unmapped maglev; unmapped maglev; }',
        qr/"unmapped" directive is duplicate/);
refused('length_self_description',
        "$servers quic_lb 0 { $lengths $id length_self_description yes; }",
        qr/invalid value "yes" in "length_self_description" directive/);


# key files

my $key = "$servers quic_lb 0 { $lengths $id key_file";

accepted('raw key', "$key $raw; }");
accepted('hexadecimal key', "$key $hex; }");
accepted('hexadecimal key with a newline', "$key $hex_lf; }");
accepted('hexadecimal key with CRLF', "$key $hex_crlf; }");
accepted('key file beside nginx.conf', "$key raw.key; }");
warned('key file readable by everyone', "$key $open; }",
       qr/\[warn\].* "key_file" "\Q$open\E" is readable by everyone/);

for my $content ('', 'k' x 15, 'k' x 17, 'a' x 31, 'a' x 33, 'g' x 32,
                 ('a' x 31) . "\n", ('a' x 32) . "\n\n", ('a' x 32) . ' ',
                 ('a' x 34) . "\n", 'a' x 64)
{
    (my $name = $content) =~ s/\n/\\n/g;
    my $file = key_file('bad.key', $content);

    refused("key \"$name\"", "$key $file; }",
            qr/invalid key in "key_file" "\Q$file\E", it $rule/);
}

refused('missing key file', "$key $missing; }",
        qr{"key_file" must be readable, open\(\) "\Q$missing\E" failed \(2: });
refused('key file is a folder', "$key " . $t->path('') . '; }',
        qr/"key_file" ".*" must be a regular file/);
refused('empty name', "$key \"\"; }", qr/"key_file" ".*" must be a regular/);

mkfifo($t->path('fifo'), 0600) or die "mkfifo: $!";
refused('key file is a FIFO', "$key " . $t->path('fifo') . '; }',
        qr/"key_file" ".*" must be a regular file/);
refused('key_file twice', "$key $raw; key_file $raw; }",
        qr/"key_file" directive is duplicate/);


# servers that may not be meant

my $down = qr/\[warn\]\ all\ servers\ of\ upstream\ "u"\ are\ "down",\ no
              \ new\ connection\ has\ a\ server\ in\ \S+test\.conf:\d+$/mx;
my $twice = qr/\[warn\]\ "server\ 127\.0\.0\.1:8441"\ is\ more\ than\ once\ in
               \ upstream\ "u",\ use\ "weight"\ for\ a\ larger\ share
               \ in\ \S+test\.conf:\d+$/mx;

warned('all servers down', 'quic_maglev; server 127.0.0.1:8441 down;'
       . 'server 127.0.0.1:8442 down backup; server 127.0.0.1:8443 down;',
       $down);
accepted('all but a backup server down', 'quic_maglev;'
         . 'server 127.0.0.1:8441 down; server 127.0.0.1:8442 backup;');
warned('a server twice', "quic_maglev; $servers server 127.0.0.1:8441;",
       $twice);
warned('a server that is its own backup',
       "quic_maglev; $servers server 127.0.0.1:8441 backup;", $twice);
warned('a server and its name',
       'quic_maglev; server 127.0.0.1:8441; server one.quic-lb.test:8441;',
       $twice);
accepted('another port', "quic_maglev; $servers server 127.0.0.2:8441;");


# server IDs

accepted('several IDs of one server', "$servers quic_lb 0 { $lengths"
         . 'server_id 000000 127.0.0.1:8441; server_id ffffff 127.0.0.1:8441;'
         . 'server_id ABCdef 127.0.0.1:8442; }');
accepted('one ID in two generations', "$servers quic_lb 0 { $lengths $id }"
         . "quic_lb 1 { $lengths $id }");
accepted('IPv6 address in another form', 'server [::1]:8441;'
         . "quic_lb 0 { $lengths server_id 31441a [0:0::0:1]:8441; }");
accepted('backup server', 'server 127.0.0.1:8440; server 127.0.0.1:8441 backup;'
         . "quic_lb 0 { $lengths $id }");
accepted('server that is down', 'server 127.0.0.1:8441 down;'
         . "server 127.0.0.1:8442; quic_lb 0 { $lengths $id }");
accepted('5000 IDs', "$servers quic_lb 0 { $lengths"
         . join('', map { sprintf "server_id %06x 127.0.0.1:844%u;\n", $_,
                          1 + $_ % 2 } 1 .. 5000) . '}');

for my $text (qw/31441 31441a00 31441g 0x441a/, '""', '" 1441a"') {
    (my $value = $text) =~ s/"//g;
    refused("ID $text", "$servers quic_lb 0 { $lengths\n"
            . "server_id $text 127.0.0.1:8441;\n }",
            "invalid server ID \"$value\" in \"server_id\" of \"quic_lb 0\","
            . ' it must be 6 hexadecimal digits'
            . ' ("server_id_length" is 3)');
}

refused('ID twice', "$servers quic_lb 0 { $lengths\n$id\n"
        . "server_id 31441A 127.0.0.1:8442;\n }",
        qr/duplicate server ID "31441A" in "server_id" of "quic_lb 0"/);
refused('ID twice, with others between', "$servers quic_lb 0 { $lengths\n$id\n"
        . "server_id 41441a 127.0.0.1:8441;\n"
        . "server_id 21441a 127.0.0.1:8441;\n"
        . "server_id 31441A 127.0.0.1:8442;\n }",
        qr/duplicate server ID "31441A" in "server_id" of "quic_lb 0"/);
refused('no address', "$servers quic_lb 0 { $lengths server_id 31441a; }",
        qr/invalid number of arguments in "server_id" directive/);

my $unknown = qr/it must be the address of a "server" of upstream "u"/;

for my $address (qw/127.0.0.1:8443 127.0.0.2:8441 [::1]:8441/) {
    refused("address $address", "$servers quic_lb 0 { $lengths\n"
            . "server_id 31441a $address;\n }",
            qr/unknown server "\Q$address\E" in "server_id 31441a", $unknown/);
}

my $invalid = qr/in "server_id 31441a" of upstream "u"/;
my $form = qr/it must be address:port/;

for my $case (['127.0.0.1', 'no port'], ['[::1]', 'no port'],
              ['127.0.0.1:0', 'invalid port'], ['127.0.0.1:x', 'invalid port'],
              ['unix:/tmp/s', 'not an IP address'],
              ['other.example:8441', 'not an IP address nor the text of a'],
              [':8441', 'no host'])
{
    my ($address, $why) = @$case;
    refused("address $address", "$servers quic_lb 0 { $lengths"
            . "server_id 31441a $address; }",
            qr/invalid address "\Q$address\E" $invalid: $why.*, $form/);
}

# names of t/env

accepted('name of one address', 'server one.quic-lb.test:8441;'
         . "quic_lb 0 { $lengths server_id 31441a one.quic-lb.test:8441; }");
accepted('address of a name that has one', 'server one.quic-lb.test:8441;'
         . "quic_lb 0 { $lengths server_id 31441a 127.0.0.1:8441; }");
refused('name of two addresses', 'server two.quic-lb.test:8441;'
        . "quic_lb 0 { $lengths server_id 31441a two.quic-lb.test:8441; }",
        qr/"two\.quic-lb\.test:8441" $invalid: not an IP address nor the text/);

for my $address (qw/127.0.0.1:8441 127.0.0.2:8441/) {
    accepted("$address of a name that has two",
             'server two.quic-lb.test:8441;'
             . "quic_lb 0 { $lengths server_id 31441a $address; }");
}


# the line that is named is that of the directive

my (undef, $output) = check("$servers\nquic_lb 0 {\n$lengths\n\n"
                            . "server_id 31441a 127.0.0.9:1;\n}");
my ($line) = line_of('server_id 31441a');
like($output, qr/unknown server "127\.0\.0\.9:1" .* in \S+test\.conf:$line$/m,
     'line of server_id');


# upstreams that share a listen address, and a codepoint

my $other_id = 'server_id 31441b 127.0.0.1:8441;';
my $other_key = key_file('other.key', '8f95f09245765f80256934e50c662070');

shared('equal but for the IDs', "$lengths $id key_file $hex;",
       "$lengths $other_id key_file $hex_lf;");
shared('server_id_length', "$lengths $id",
       'server_id_length 2; nonce_length 4; server_id 3144 127.0.0.1:8441;',
       'must have the same "server_id_length"');
shared('nonce_length', "$lengths $id",
       "server_id_length 3; nonce_length 5; $other_id",
       'must have the same "nonce_length"');
shared('key and none', "$lengths $id key_file $hex;", "$lengths $other_id",
       'must have the same "key_file"');
shared('two keys', "$lengths $id key_file $hex;",
       "$lengths $other_id key_file $other_key;",
       'must have the same "key_file"');
shared('two keys of one pass',
       "server_id_length 3; nonce_length 13; $id key_file $hex;",
       "server_id_length 3; nonce_length 13; $other_id key_file $other_key;",
       'must have the same "key_file"');
shared('length_self_description', "$lengths $id",
       "$lengths $other_id length_self_description on;",
       'must have the same "length_self_description"');
shared('unmapped', "$lengths $id", "$lengths $other_id unmapped maglev;",
       'must have the same "unmapped"');
shared('unmapped maglev', "$lengths $id unmapped maglev;",
       "$lengths $other_id unmapped maglev;",
       'must not have "unmapped maglev"');
shared('one ID', "$lengths $other_id $id", "$lengths $id",
       '"server_id 31441a" in "quic_lb 3" of upstreams "v" and "w"');


# resolve

SKIP: {
    my ($ok, $output) = check('zone z 256k; resolver 127.0.0.1;'
                              . 'server some.example:8441 resolve;');
    skip 'no "resolve" in this nginx', 5 if !$ok;

    my $zone = 'zone z 256k; resolver 127.0.0.1;';

    accepted('resolve', "$zone quic_maglev; server some.example:8441 resolve;");
    accepted('any address with resolve', "$zone"
             . 'server some.example:8441 resolve;'
             . "quic_lb 0 { $lengths server_id 31441a 192.0.2.1:8441; }");
    refused('name with resolve', "$zone"
            . 'server some.example:8441 resolve;'
            . "quic_lb 0 { $lengths server_id 31441a some.example:8441; }",
            qr/invalid address "some\.example:8441" $invalid: not an IP/);
    refused('resolve without zone', 'resolver 127.0.0.1; quic_maglev;'
            . 'server some.example:8441 resolve;',
            qr/resolving names at run time requires upstream "u"/);
    accepted('size is not known to be too small',
             "$zone quic_maglev size=2; server some.example:8441 resolve;");
}


# variables

my $checked = "zone z 256k; quic_maglev; quic_health_check; $servers";
my $format = 'access_log off; log_format f "$quic_health_';

accepted('the health of an upstream', $checked, "$format" . 'u";');
refused('the health of no upstream', $checked,
        'unknown "quic_health_v" variable, there is no upstream "v" (the'
        . ' upstreams are "u")', "$format" . 'v";');
warned('the health of an upstream without a check', "quic_maglev; $servers",
       qr/\[warn\]\ the\ variable\ "quic_health_u"\ is\ empty\ without
          \ "quic_health_check"\ in\ upstream\ "u"\ in\ \S+test\.conf:\d+$/mx,
       "$format" . 'u";');

accepted('variables', "$servers quic_maglev;",
         'log_format f "$quic_routed_by $quic_config_id $quic_server_id'
         . ' $quic_dcid $quic_version"; access_log off;');


$t->done();


sub check {
    my ($upstream, $stream) = @_;

    $upstream = "upstream u { $upstream }" if $upstream ne '';
    $stream //= '';

    return $t->test_conf(stream => <<"EOF");
$stream
$upstream
server { listen 127.0.0.1:8440 udp; return ""; }
EOF
}


sub accepted {
    my ($name, @config) = @_;
    my ($ok, $output) = check(@config);

    ok($ok && $output !~ /\[(?:warn|alert)\]/, $name) or diag($output);
}


sub warned {
    my ($name, $upstream, $expected, @stream) = @_;
    my ($ok, $output) = check($upstream, @stream);

    ok($ok, "$name: accepted") or diag($output);
    like($output, $expected, $name);
}


# two "quic_lb 3" that one listen address can reach, and two that no one can

sub shared {
    my ($name, $one, $two, $expected) = @_;

    my $upstreams = join '', map { <<"EOF" } ['v', $one], ['w', $two];
upstream $_->[0] { server 127.0.0.1:8441; quic_lb 3 { $_->[1] } }
EOF
    my $both = <<'EOF';
map $remote_addr $which { default v; }
server { listen 127.0.0.1:8442 udp; quic_passthrough $which; }
EOF
    my $apart = join '', map { <<"EOF" } ['v', 8442], ['w', 8443];
server { listen 127.0.0.1:$_->[1] udp; quic_passthrough $_->[0]; }
EOF

    if ($expected) {
        refused("shared: $name", '', $expected, "$upstreams $both");

    } else {
        accepted("shared: $name", '', "$upstreams $both");
    }

    accepted("apart: $name", '', "$upstreams $apart");
}


# by one line that says where; $expected is a string or a regex

sub refused {
    my ($name, $upstream, $expected, @stream) = @_;
    $expected = quotemeta $expected if !ref $expected;

    my ($ok, $output) = check($upstream, @stream);
    my @errors = $output =~ /^nginx: (\[emerg\].*)$/mg;

    ok(!$ok && @errors == 1
       && $errors[0] =~ /$expected.* in \S+test\.conf:\d+\b/, $name)
        or diag("expected $expected, got $output");
}


sub key_file {
    my ($name, $content, $mode) = @_;
    my $path = $t->write($name, $content);

    chmod $mode // 0600, $path or die "$path: $!";

    return $path;
}


sub line_of {
    my ($text) = @_;
    my @lines = split /\n/, $t->read('test.conf');

    return grep { $lines[$_ - 1] =~ /\Q$text\E/ } 1 .. @lines;
}
