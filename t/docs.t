#!/usr/bin/env perl

# README.md and docs/*.md against the source: each example configuration is one
# that nginx -t accepts, directives and variables are documented and exist, and
# relative links lead somewhere.
#
# An example is a block fenced by "```nginx".  What its lines without indent
# begin with tells what is added to it:
#
#   events          nothing: it is a whole nginx.conf
#   stream, http, load_module       what is left of an nginx.conf
#   quic_lb, quic_maglev, zone, or server with an address: as above, inside an
#                   upstream, which has a server for each server_id line
#   http3_...       inside a server of http, with a QUIC listen
#   quic_passthrough..., proxy_pass, listen        inside a server, with a UDP
#                   listen unless there is one
#   all else        inside stream
#
# "load_module" lines are replaced by those of the environment, and files by
# files of the same name in the test's folder; a key_file or retry_key gets a
# key, cert.pem and key.pem are a certificate.  Where the relay is not built,
# its examples are not tried.

use strict;
use warnings;

use FindBin;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Process qw/slurp/;

my $checkout = "$FindBin::Bin/..";
my $t = QuicLB->new();

my @pages = map { s{^\Q$checkout\E/}{}r }
                "$checkout/README.md", glob "$checkout/docs/*.md";
my %text = map { $_ => slurp("$checkout/$_") } @pages;

my $sources = join '', map { slurp($_) } glob "$checkout/src/*/*.c";


# examples

my $relay = ($ENV{QUIC_LB_LOAD} // '') =~ /ngx_stream_quic_relay_module/;

$t->certificate();

my $examples = 0;

for my $page (@pages) {
    for my $example (blocks($text{$page}, 'nginx')) {
        my ($line, $conf) = @$example;
        next if !$relay && $conf =~ /^\s*quic_relay/m;

        my ($ok, $output) = check($conf);

        ok($ok && $output !~ /\[(?:warn|alert)\]/, "$page:$line is accepted")
            or diag($output);
        $examples++;
    }
}

cmp_ok($examples, '>=', 4, 'examples found');

{
    my ($ok) = check("server {\n    quic_passthrough_timeout 0;\n}\n");
    ok(!$ok, 'a wrong example would not be accepted');
}


# directives and variables

my %directives = map { $_ => 1 } map { strings($_) }
                     $sources =~ /^static ngx_command_t [^\n]*\n(.*?)^};/msg;

my %variables = map { $_ => 1 } grep { /^(?:quic|http3)_/ } map { strings($_) }
    $sources =~ /^static\ (?:ngx_(?:stream|http)_variable_t|ngx_str_t)
                 \ [^\n]*\[\]\ =\ \{\n(.*?)^\};/msxg;

cmp_ok(keys %directives, '>=', 10, 'directives found');
cmp_ok(keys %variables, '>=', 16, 'variables found');

# where variables of a prefix are described; the longest prefix counts

my %variables_page = (
    quic => 'docs/ngx_stream_quic_passthrough_module.md',
    quic_relay => 'docs/ngx_stream_quic_relay_module.md',
    quic_preread => 'docs/ngx_stream_quic_preread_module.md',
    http3 => 'docs/ngx_http_v3_limits_module.md',
);

my %headings = map { $_ => 1 } map { directive_headings($_) } values %text;
my %mentioned = map { $_ => 1 } map { variables($_) } values %text;

is_deeply([grep { !$headings{$_} } sort keys %directives], [],
          'all directives are documented');
is_deeply([grep { !$directives{$_} } sort keys %headings], [],
          'no directive is documented that does not exist');
is_deeply([grep { $text{'README.md'} !~ /\(docs\/\w+\.md#$_\)/ }
               sort keys %directives],
          [], 'all directives are in the index of README.md');

for my $prefix (sort keys %variables_page) {
    my $page = $variables_page{$prefix};
    my %documented = map { $_ => 1 } variables(prose($text{$page}));

    is_deeply([grep { variables_prefix($_) eq $prefix && !$documented{$_} }
                   sort keys %variables],
              [], "all variables \$${prefix}_... are documented in $page");
}

is_deeply([grep { !$variables{$_} } sort keys %mentioned], [],
          'no variable is documented that does not exist');


# links

for my $page (@pages) {
    my @broken = grep { !link_resolves($page, $_) } links($text{$page});

    is_deeply(\@broken, [], "links of $page");
}

ok(!link_resolves('README.md', $_), "a broken link is found: $_")
    for 'docs/none.md', 'docs/design.md#none', '#none';


$t->done();


# [line, text] of each block with the given language

sub blocks {
    my ($text, $language) = @_;
    my ($n, $line, @found) = 0;

    for (split /^/, $text) {
        $n++;

        if (!$line && /^```\Q$language\E$/) {
            $line = $n + 1;
            push @found, [$line, ''];

        } elsif ($line && /^```$/) {
            undef $line;

        } elsif ($line) {
            $found[-1][1] .= $_;
        }
    }

    return @found;
}


sub check {
    my ($conf) = @_;

    $conf = wrap($conf);

    $conf =~ s/^load_module .*\n//mg;
    $conf =~ s{((?:key_file|retry_key|host_key)[\s=]+)([^\s;]+)}
              {$1 . key_file($2)}eg;
    # of an HTTP/3 server
    my ($cert, $key) = $t->certificate();
    $conf =~ s{(ssl_certificate\s+)[^\s;]+}{$1$cert}g;
    $conf =~ s{(ssl_certificate_key\s+)[^\s;]+}{$1$key}g;

    $conf =~ s{(\s)/(?:etc/nginx|var/log/nginx)/([^\s;]+)}
              {$1 . $t->path($2)}eg;

    my $load = $ENV{QUIC_LB_LOAD} // '';
    my $pid = $t->path('docs.pid');

    $t->write('docs.conf', "$load\npid $pid;\n$conf");

    return $t->nginx('docs.conf', 'docs.log', '-t');
}


sub wrap {
    my ($conf) = @_;
    my %first = map { $_ => 1 } $conf =~ /^(\w+)/mg;
    my $is = sub { grep { $first{$_} } @_ };

    return $conf if $is->('events');
    return "events {\n}\n$conf" if $is->(qw/stream http load_module/);

    if (grep { /^http3_/ } keys %first) {
        return "events {\n}\nhttp {\nserver {\nlisten " . $t->port()
               . " quic;\nssl_certificate x;\nssl_certificate_key x;\n"
               . "$conf}\n}\n";
    }

    if ($is->(qw/quic_lb quic_maglev zone/)
        || $conf =~ /^server\s+[^{\s].*;/m)
    {
        my %servers = map { $_ => 1 }
                          $conf =~ /^\s*server_id\s+\S+\s+([^\s;]+)/mg;

        delete $servers{$_} for $conf =~ /^server\s+([^\s;]+)/mg;
        $servers{'192.0.2.1:443'} = 1 if !%servers && $conf !~ /^server\s/m;

        $conf = join('', "upstream u {\n",
                     map({ "server $_;\n" } sort keys %servers), "$conf}\n");

    } elsif (grep { /^(?:quic_passthrough|proxy_pass$|listen$)/ } keys %first) {
        my $listen = $first{listen} ? '' : 'listen ' . $t->port() . " udp;\n";

        $conf = "server {\n$listen$conf}\n";
    }

    return "events {\n}\nstream {\n$conf}\n";
}


sub key_file {
    my ($name) = @_;
    my $path = $t->write($name =~ s{.*/}{}r, '0123456789abcdef' x 2);

    chmod 0600, $path or die "$path: $!";

    return $path;
}


sub strings {
    my ($table) = @_;

    return $table =~ /ngx_string\("(\w+)"\)/g;
}


# headings of the third level below "Directives"

sub directive_headings {
    my ($text) = @_;
    my ($section) = $text =~ /^## Directives\n(.*?)(?:^## |\z)/ms or return;

    return $section =~ /^### (\w+)$/mg;
}


sub variables_prefix {
    my ($name) = @_;

    my @prefixes = grep { $name =~ /^${_}_/ } keys %variables_page;

    return (sort { length $b <=> length $a } @prefixes)[0];
}


# but not what stands for several, as $quic_passthrough_... does

sub variables {
    my ($text) = @_;

    return $text =~ /\$((?:quic|http3)_\w*[a-z0-9])\b/g;
}


sub prose {
    my ($text) = @_;

    return $text =~ s/^```.*?^```$//msgr;
}


sub links {
    my ($text) = @_;

    return grep { !/^https?:/ } prose($text) =~ /\]\(([^()\s]+)\)/g;
}


sub link_resolves {
    my ($page, $link) = @_;
    my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
    my $folder = $page =~ m{^(.*/)} ? $1 : '';
    my $file = $path eq '' ? $page : $folder . $path;

    return 0 if !-e "$checkout/$file";
    return 1 if !defined $anchor;

    return grep { $_ eq $anchor } anchors(slurp("$checkout/$file"));
}


# as the usual renderers of Markdown make them

sub anchors {
    my ($text) = @_;

    return map { lc($_) =~ s/[^\w\- ]//gr =~ tr/ /-/r }
               prose($text) =~ /^#+ +(.*)$/mg;
}
