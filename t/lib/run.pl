#!/usr/bin/perl

# The inner half of t/run, inside the environment:
#
#     run.pl [--all] [--flavor VARIABLES]... [NAME...]
#
# VARIABLES is what t/env tells of one nginx.  Everything runs under one
# TAP::Harness, so that its summary is that of all.

use strict;
use warnings;

use File::Basename qw/basename dirname/;
use File::Temp qw/tempdir/;
use FindBin;
use Getopt::Long;
use TAP::Harness;

my $t = dirname($FindBin::Bin);
my $build = tempdir(CLEANUP => 1);

# fuzz.t keeps all processors busy
my %no_nginx = map { $_ => 1 } qw/lint.t fuzz.t/;

my ($all, @flavors);
GetOptions('all' => \$all, 'flavor=s' => \@flavors) or exit 2;

my %flavors = map { flavor($_) } @flavors;
my %commands = (unit_tests(), map({ perl_tests($_) } sort keys %flavors),
                map({ ($_ => perl("$t/$_")) } keys %no_nginx));

my @names = @ARGV ? map({ matching($_) } @ARGV)
                  : grep { $all || !$no_nginx{$_} } keys %commands;

exit(run(sort @names) ? 0 : 1);


# (name, variables)

sub flavor {
    my ($text) = @_;

    my %variables = $text =~ /^(\w+)='(.*?)'$/msg;
    my $name = $variables{NGINX_FLAVOR} or die "no nginx in: $text\n";

    $name = "nginx-$variables{NGINX_VERSION}" if $name eq 'tree';

    return ($name => \%variables);
}


# name => command of each test in t/*.t with the nginx $flavor

sub perl_tests {
    my ($flavor) = @_;

    my $variables = $flavors{$flavor};
    my @environment = map { "$_=$variables->{$_}" } sort keys %$variables;

    my @files = grep { !$no_nginx{basename($_)} } glob "$t/*.t";

    return map { ("$flavor/" . basename($_) =>
                  skipped($_) // ['env', @environment, @{ perl($_) }]) }
               @files;
}


sub perl {
    my ($file) = @_;

    return ["$t/lib/isolate", 'perl', $file];
}


# a command that tells why, where the file's own needs cannot be had

sub skipped {
    my ($file) = @_;

    return undef if contents($file) !~ /^use Test::Nginx/m
                    || eval { require Test::Nginx::Socket };

    my ($reason) = contents($ENV{QUIC_LB_MISSING}) =~ /^(Test::Nginx: .*)/m;

    return ['echo', '1..0 # SKIP ' . ($reason // "no Test::Nginx: $@")];
}


sub contents {
    my ($path) = @_;

    open my $fh, '<', $path or die "$path: $!";
    local $/;

    return <$fh> // '';
}


# programs that are made first; what make says is no TAP

# many tests wait for a timer

sub processors {
    my ($number) = `nproc` =~ /(\d+)/;

    return $number // 1;
}


sub unit_tests {
    my %found;

    for my $cc (qw/gcc clang/) {
        for my $source (glob "$t/unit/*_test.c") {
            my ($name) = basename($source) =~ /(.*)_test\.c$/;
            my $program = "$build/$cc/${name}_test";

            $found{"unit/$cc/$name"} = ['sh', '-c',
                'make -s -C "$1" CC="$2" BUILD="$3" "$4" >&2 && exec "$4"',
                'sh', "$t/unit", $cc, "$build/$cc", $program];
        }
    }

    return %found;
}


# the names that have $wanted, such as t/a.t, asan, unit/gcc, in their path

sub matching {
    my ($wanted) = @_;

    (my $part = $wanted) =~ s{^.*\bt/}{};
    my @found = grep { index("/$_/", "/$part/") >= 0 } keys %commands;

    die "$wanted: no such test\n" if !@found;

    return @found;
}


sub run {
    my (@names) = @_;

    my $harness = TAP::Harness->new({
        exec => sub { $commands{$_[1]} },
        jobs => $ENV{TEST_JOBS} // processors() + 1,
        rules => { seq => [{ par => ['lint.t', '*/**'] }, 'fuzz.t'] },
        verbosity => $ENV{TEST_VERBOSE} ? 1 : 0,
        timer => 1,
        color => -t STDOUT,
    });

    return $harness->runtests(@names)->get_status() eq 'PASS';
}
