#!/usr/bin/perl

# The fuzzers for a bounded time, FUZZ_SECONDS each, and their corpus without
# the fuzzer.  What they find is printed; it does not outlast the environment.

use strict;
use warnings;

use Test::More;

use File::Temp qw/tempdir/;
use FindBin;

my $fuzz = "$FindBin::Bin/fuzz";
my $seconds = $ENV{FUZZ_SECONDS} // ($ENV{CI} ? 60 : 10);
my $build = tempdir(CLEANUP => 1);

my @targets = map { m{([^/]+)$} } glob "$fuzz/corpus/*";

# replay.c is no target
my @sources = map { m{([^/]+)\.c$} } glob "$fuzz/*.c";
is(join(' ', sort @targets), join(' ', sort grep { $_ ne 'replay' } @sources),
   'each target has a corpus');

my $jobs = `nproc` + 0;

is(make('replay', 'CC=gcc', "-j$jobs", 'replay'), 0, 'corpus, gcc')
    or diag(output('replay'));

is(make('build', "-j$jobs", 'build'), 0, 'build') or diag(output('build'));

is(make('run', "-j$jobs", '--output-sync', "SECONDS=$seconds", 'run'), 0,
   "$seconds seconds each without a finding")
    or diag(output('run'));

my @inputs = output('run') =~ /^stat::number_of_executed_units: *(\d+)$/mg;

is(scalar(grep { $_ > 1000 } @inputs), scalar @targets, 'all targets ran')
    or diag(output('run'));
note("inputs: @inputs");

done_testing();


sub make {
    my ($name, @arguments) = @_;

    return system('sh', '-c', 'exec "$@" > "$0" 2>&1', "$build/$name.log",
                  'make', '-C', $fuzz, "BUILD=$build", @arguments);
}


sub output {
    my ($name) = @_;

    open my $fh, '<', "$build/$name.log" or die "$name.log: $!";
    local $/;

    return <$fh>;
}
