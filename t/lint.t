#!/usr/bin/perl

# Form of the files: what editors, compilers and other tests do not notice.

use strict;
use warnings;

use Test::More;

use File::Find;
use FindBin;

my $checkout = $FindBin::Bin =~ s{/t$}{}r;
my @top = qw{config src t docs README.md LICENSE};

my $ignored = qr{(?:^|/)(?:\.git|__pycache__|servroot(?:_[^/]*)?)$|\.s?o$|~$};

# comments, and strings, which may look like one
my $comment = qr{/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'}s;

# a fuzzer's inputs, and data that is as it was found
my $data = qr{^t/(?:fuzz/corpus|assets)/};

my (@files, %text);
find({ wanted => \&collect, no_chdir => 1 }, $checkout);

my @sources = grep { !/$data/ } @files;
my @c = grep { /\.[ch]$/ } @sources;
my @core_headers = grep { m{^src/core/.*\.h$} } @c;
my @scripts = grep { $text{$_} =~ m{^#!/bin/(?:ba)?sh\b} } @sources;

cmp_ok(scalar @c, '>', 10, 'C sources');
cmp_ok(scalar @core_headers, '>', 0, 'headers of src/core');
cmp_ok(scalar @scripts, '>', 0, 'shell scripts');


# all text

none('text ends with one newline', qr/[^\n]\z|\n\n\z/, @sources);
none('no trailing blanks, no CR', qr/[ \t\r]$/m, @sources);
none('no tabs', qr/\t/, grep { !/(?:^|\/)Makefile$/ } @sources);
none('80 columns', qr/^.{81}/m, grep { !/\.(?:md|svg)$/ } @sources);

none("no path of somebody's machine", qr{(?<![\w.])/(?:work|home|Users)/\w},
     @sources);
none('no address of a package registry',
     qr/\b(?:deb|security|ftp|archive|ports)\.(?:debian|ubuntu)\.
        |\b(?:pypi|npmjs|crates|rubygems|docker)\.(?:org|io|com)
        |\bproxy\.golang\./x, @sources);


# C

my $copyright = qr{\n/\*\n \* Copyright \(C\) ngx-quic-lb contributors\n};

none('copyright', qr/\A(?!$copyright)/, grep { m{^src/(?!core/)} } @c);

none('src/core includes no nginx header', qr/^#\s*include\s*[<"]ngx_/m,
     grep { m{^src/core/} } @c);

# what follows is about code only
s/$comment/uncommented($&)/ge for @text{@c};

none('no // comments', qr{//}, @c);
none("names of nginx's QUIC are not defined",
     qr/^ngx_(?:quic|http_v3)_\w+\(/m, @c);

is(join("\n", grep { !guarded($_) } grep { /\.h$/ } @c), '', 'guards');

for my $cc (qw/gcc clang/) {
    is(system('make', '-s', '-C', "$checkout/t/unit", "CC=$cc", 'headers'), 0,
       "headers of src/core compile alone, $cc");
}


# the tree

my %found = map { m{^([^/]+)} ? ($1 => 1) : () } grep { !/^\./ } @files;

is(join(' ', sort keys %found), join(' ', sort @top), 'top level');

for my $file (qw{t/env t/run t/demo t/mutate .ci/run}) {
    ok(-x "$checkout/$file", "$file is executable");
}

is(join("\n", grep { -x "$checkout/$_" } grep { m{^(?:src|docs)/} } @files),
   '', 'sources are not executable');


# shell

for my $script (@scripts) {
    is(system('bash', '-n', "$checkout/$script"), 0, "bash -n $script");
}

is(system('shellcheck', '--severity=warning',
          map { "$checkout/$_" } @scripts), 0, 'shellcheck');

done_testing();


sub collect {
    return if $_ eq $checkout;

    my $name = substr($_, length($checkout) + 1);

    if ($name =~ $ignored) {
        $File::Find::prune = 1;

    } elsif (-f $_) {
        open my $fh, '<:encoding(UTF-8)', $_ or die "$_: $!";
        local $/;

        push @files, $name;
        $text{$name} = $name =~ $data ? '' : <$fh> // '';
    }
}


# no file of the list has what $regex matches

sub none {
    my ($what, $regex, @list) = @_;

    my @found = grep { $text{$_} =~ $regex } @list;

    is(join("\n", map { "$_:" . line($_, $regex) } @found), '', $what);
}


sub line {
    my ($name, $regex) = @_;

    $text{$name} =~ $regex;

    return 1 + ($` =~ tr/\n//);
}


# keeps the numbers of lines

sub uncommented {
    my ($found) = @_;

    return $found =~ m{^/} ? "\n" x ($found =~ tr/\n//) : '""';
}


sub guarded {
    my ($name) = @_;

    my ($base) = $name =~ m{([^/]+)\.h$};

    # names are unique in nginx's include path, not in that of a test
    my $prefix = $name =~ m{^src/} ? '' : qr/(?:\w+_)?/;

    return $text{$name} =~ /^#ifndef _$prefix\U$base\E_H_INCLUDED_$/m;
}
