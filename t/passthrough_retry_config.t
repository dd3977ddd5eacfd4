#!/usr/bin/perl

# Configurations of quic_passthrough_retry and its keys: what nginx -t says to
# wrong values, files that are none, servers that do not agree; and what it must
# not refuse.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my $port = $t->port();

sub key {
    my ($name, $content, $mode) = @_;

    my $path = $t->write($name, $content);
    chmod $mode // 0600, $path;

    return $path;
}

my $good = key('good.key', 'k' x 32);
my $same = key('same.key', 'k' x 32);
my $other = key('other.key', 'o' x 32);
my $short = key('short.key', 'k' x 15);
my $least = key('least.key', 'k' x 16);
my $most = key('most.key', 'k' x 65536);
my $empty = key('empty.key', '');
my $huge = key('huge.key', 'k' x 65537);
my $open = key('open.key', 'k' x 16, 0644);
my $gone = $t->path('gone.key');
my $dir = $t->path('logs');

my $key = 'quic_passthrough_retry_key';
my $with = "$key $good;";
my $must = '"quic_passthrough_retry_key"';

for my $case (
    ['no value', 'retry;', qr/invalid number of arguments/],
    ['a wrong value', "retry maybe; $with",
     'invalid value "maybe" in "quic_passthrough_retry" directive, it must be'
     . ' "off", "on" or "adaptive"'],
    ['twice', "retry on; quic_passthrough_retry on; $with",
     '"quic_passthrough_retry" directive is duplicate'],
    map({
        [$_, "retry $_; $with",
         qr/invalid\ parameter\ ".*"\ in\ "quic_passthrough_retry"
            \ directive/x]
    } 'adaptive threshold=', 'adaptive threshold=0', 'adaptive threshold=x',
      'adaptive threshold=-1', 'adaptive threshold=1 threshold=2',
      'adaptive 100', 'on threshold=1', 'off threshold=1', 'on v2 v2',
      'on v3', 'adaptive v22'),
    ['on without a key', 'retry on;',
     qr/"quic_passthrough_retry"\ needs\ the\ servers'\ "quic_host_key"\ in
        \ $must,\ listen\ 127\.0\.0\.1:$port,\ server\ in/x],
    ['adaptive without a key', 'retry adaptive;', qr/needs the servers'/],

    ['a missing file', "retry on; $key $gone;",
     "$must must be readable, open() \"$gone\" failed (2: No such file"],
    ['a directory', "retry on; $key $dir;",
     "$must \"$dir\" must be a regular file"],
    ['an empty file', "retry on; $key $empty;",
     "$must \"$empty\" must have 16 to 65536 octets, it has 0"],
    ['a short file', "retry on; $key $short;",
     "$must \"$short\" must have 16 to 65536 octets, it has 15"],
    ['a huge file', "retry on; $key $huge;",
     "$must \"$huge\" must have 16 to 65536 octets, it has at least 65537"],
    ['a bad second key', "retry on; $with $key $gone;", qr/must be readable/],
    ['too many keys', "retry on; " . $with x 5,
     "there must be at most 4 $must directives"],

    ['on', "retry on; $with", undef],
    ['on for version 2', "retry on v2; $with", undef],
    ['adaptive', "retry adaptive; $with", undef],
    ['with all parameters', "retry adaptive threshold=10 v2; $with", undef],
    ['off without a key', 'retry off;', undef],
    ['off with a key', "retry off; $with", undef],
    ['four keys', 'retry on; ' . $with x 4, undef],
    ['a relative file', "retry on; $key good.key;", undef],
) {
    my ($name, $text, $expected) = @$case;

    check($name, server("quic_passthrough_$text"), $expected);
}

my (undef, $output) = $t->test_conf(
    stream => server("quic_passthrough_retry on; $key $open;"));
like($output, qr/\[warn\].*\Q$must "$open"\E is readable by everyone/,
     'a file that everyone may read: a warning');


# servers of one address agree

my $agree = '"quic_passthrough_retry" and its keys must be the same in all'
            . ' servers that share a listen address, listen 127.0.0.1:';

for my $case (
    ['of another value', "quic_passthrough_retry off; $with", $agree],
    ['of another version', "quic_passthrough_retry on v2; $with", $agree],
    ['of another key', "quic_passthrough_retry on; $key $other;", $agree],
    ['of one more key', "quic_passthrough_retry on; $with $key $other;",
     $agree],
    ['without a key', 'quic_passthrough_retry on;', qr/needs the servers'/],
    ['with the same key in another file',
     "quic_passthrough_retry on; $key $same;", undef],
) {
    my ($name, $text, $expected) = @$case;

    check("a server $name",
          server("quic_passthrough_retry on; $with") . server($text),
          $expected);
}

check('inherited', "quic_passthrough_retry on; $with" . server(''), undef);
check('inherited, and off',
      "quic_passthrough_retry on;" . server('quic_passthrough_retry off;'),
      undef);
check('inherited keys', $with . server('quic_passthrough_retry on;'), undef);
check('a key of 16 octets',
      server("quic_passthrough_retry on; $key $least;"), undef);
check('a key of 65536 octets',
      server("quic_passthrough_retry on; $key $most;"), undef);

$t->done();


sub server {
    my ($text) = @_;

    return "server { listen 127.0.0.1:$port udp; server_name x;"
           . " quic_passthrough 127.0.0.1:4433; $text }\n";
}


sub check {
    my ($name, $text, $expected) = @_;

    my ($ok, $got) = $t->test_conf(stream => $text);

    if (!$expected) {
        ok($ok, "$name: accepted") or diag($got);
        return;
    }

    ok(!$ok, "$name: refused");
    like($got, ref $expected ? $expected : qr/\Q$expected/, "$name: says why");

    my $errors = () = $got =~ /\[emerg\]/g;
    is($errors, 1, "$name: in one line");
}
