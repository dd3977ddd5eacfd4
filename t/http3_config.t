#!/usr/bin/perl

# Configurations of the HTTP/3 limits that nginx -t must refuse, with a line
# that names the directive, the value and the rule; and some it must not.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

my $t = QuicLB->new();
my $port = $t->port();

sub server {
    my ($text) = @_;

    return 'server { ' . listen_lines($t, $port) . "$text }";
}

my $number = 'it must be a number, or 0 for no limit';
my $window = 'it must be a size of 4k or more, or 0 for no limit';
my $size = 'it must be a size, or 0 for no limit';

for my $case (
    (map { ['http3_max_requests', $_, $number] } qw/-1 many 1k 1.5/),
    (map { ['http3_body_window', $_, $window] } qw/-1 1 4095 64x/),
    (map { ['http3_max_body_size', $_, $size] } qw/-1 much 1z/),
) {
    my ($directive, $value, $rule) = @$case;
    my ($ok, $output) = $t->test_conf(http => server("$directive $value;"));

    ok(!$ok, "$directive $value is refused");
    my $error = "[emerg] invalid value \"$value\" in \"$directive\""
                . " directive, $rule in ";
    like($output, qr/\Q$error\E/, 'with the value and the rule');
}

for my $directive (qw/http3_max_requests http3_body_window
                      http3_max_body_size/)
{
    my (undef, $output) = $t->test_conf(http =>
                              server("$directive 5000; $directive 6000;"));
    like($output, qr/"$directive" directive is duplicate/, "$directive twice");

    (undef, $output) = $t->test_conf(http => server("$directive;"));
    like($output, qr/invalid number of arguments in "$directive"/, 'no value');

    my ($ok, $found) = $t->test_conf(
        http => "$directive 5000;" . server("$directive 0;"));
    ok($ok, "$directive in http and server") or diag($found);
}

my (undef, $output) = $t->test_conf(
    http => server('location / { http3_max_requests 1; }'));
like($output, qr/"http3_max_requests" directive is not allowed here/,
     'requests are of a connection, not of a location');

my ($ok, $found) = $t->test_conf(
    http => server('location / { http3_body_window 4k;'
                   . ' http3_max_body_size 1g; }'));
ok($ok, 'bodies in a location') or diag($found);

($ok, $found) = $t->test_conf(
    http => "server { listen $port; http3_max_requests 1; }");
ok($ok, 'without HTTP/3') or diag($found);

($ok, $found) = $t->test_conf(stream => "server { listen $port; return x; }");
ok($ok, 'without http') or diag($found);

$t->done();
