package QuicLB::MutantBuild;

# Builds a mutant and runs tests until one fails; for t/lib/mutate.pl.
#
#   my $build = QuicLB::MutantBuild->new($checkout, $dir);
#   my $result = $build->try($mutant, @tests);
#
# $dir becomes a copy of the tree and the place of all that is built.  A test
# is unit/NAME or NAME.t; a unit test is built without sanitizers, and again
# with them if it passes.  The result is "killed by TEST", "survived", or "does
# not compile".  An endless loop in a unit test counts as killed; "timed out in
# TEST" is no result, as the machine may be busy.

use strict;
use warnings;

use File::Basename qw/basename dirname/;
use File::Path qw/make_path/;
use Time::HiRes qw/time/;

use QuicLB::Mutants qw/read_file/;

# the time that a test may take: seconds, and multiples of that of a good build

use constant UNIT_LIMIT => [10, 10];
use constant TEST_LIMIT => [60, 3];

my %flags = (
    plain => ['CFLAGS=-O0 -w'],
    asan => ['WARN=-w'],
);


sub new {
    my ($class, $checkout, $dir) = @_;

    make_path("$dir/tree");
    system('cp', '-a', map({ "$checkout/$_" } qw/config docs src t/),
           "$dir/tree") == 0 or die "cp failed\n";

    return bless { dir => $dir, tree => "$dir/tree", checkout => $checkout,
                   ready => {} }, $class;
}


sub try {
    my ($self, $mutant, @tests) = @_;

    my $path = "$self->{tree}/$mutant->{file}";
    my $source = read_file($path);
    my @steps = steps(@tests);

    # a test that does not pass without a mutant says nothing about one

    $self->prepare(@$_) for @steps;

    write_file($path, $mutant->{text});
    my $result = $self->result($mutant, @steps);
    write_file($path, $source);

    return $result;
}


# [test, how it is built]

sub steps {
    my @tests = @_;

    my @unit = grep { m{^unit/} } @tests;

    return (map({ [$_, 'plain'] } @unit), map({ [$_, 'asan'] } @unit),
            map({ [$_, 'module'] } grep { !m{^unit/} } @tests));
}


sub result {
    my ($self, $mutant, @steps) = @_;

    my %built;

    for my $step (@steps) {
        my ($test, $how) = @$step;
        my $key = $how eq 'module' ? $how : "@$step";

        if (!$built{$key}++ && !$self->build($mutant->{file}, $test, $how)) {
            return 'does not compile';
        }

        if (!$self->passes($test, $how, $self->{ready}{"@$step"})) {
            return "timed out in $test" if $self->{late} && $how eq 'module';
            return "killed by $test" . ($how eq 'asan' ? ', sanitizer' : '')
                   . ($self->{late} ? ', time-out' : '');
        }
    }

    return 'survived';
}


sub prepare {
    my ($self, $test, $how) = @_;

    my $ready = \$self->{ready}{"$test $how"};
    return if defined $$ready;

    $self->build(undef, $test, $how)
        or die "$test does not compile:\n" . read_file("$self->{dir}/log");

    my $start = time;
    my ($least, $times) = @{ $how eq 'module' ? TEST_LIMIT : UNIT_LIMIT };

    $self->passes($test, $how, 600)
        or die "$test fails without a mutant\n" . read_file("$self->{dir}/out");

    $$ready = $least + $times * (time - $start);
}


# builds all, or what depends on $file

sub build {
    my ($self, $file, $test, $how) = @_;

    return $how eq 'module' ? $self->build_module($file)
                            : $self->build_unit($file, $test, $how);
}


# The Makefile has one command for all sources of a program; only the mutant is
# compiled again.

sub build_unit {
    my ($self, $file, $test, $how) = @_;

    my $program = $self->program($test, $how);
    my $unit = "$self->{tree}/t/unit";
    my $dir = dirname($program);

    make_path($dir);

    my ($command) = `make -s -n -C $unit -W Makefile CC=gcc BUILD=$dir @{[
        map { "'$_'" } @{ $flags{$how} } ]} $program` =~ /^(gcc .*)/m;
    my @words = split ' ', $command;
    my (@objects, @sources, @libs, @options);

    while (defined(my $word = shift @words)) {
        if ($word eq '-o') {
            shift @words;

        } elsif ($word =~ /\.c$/) {
            push @sources, $word;

        } elsif ($word =~ /^-(?:l|Wl,)/) {
            push @libs, $word;

        } else {
            push @options, $word;
        }
    }

    for my $source (@sources) {
        my $object = "$program-" . basename($source) . '.o';

        if (!$file || $file =~ /\.h$/
            || basename($file) eq basename($source))
        {
            $self->quiet(60, 'sh', '-c', 'cd "$0" && exec "$@"', $unit,
                         @options, '-c', '-o', "$object.new", $source)
                or return 0;
        }

        # what the next mutant of another file is linked with

        rename "$object.new", $object if !$file;
        push @objects, -e "$object.new" ? "$object.new" : $object;
    }

    my $ok = $self->quiet(60, @options, '-o', $program, @objects, @libs);
    unlink map { "$_.new" } map { s/\.new$//r } @objects;

    return $ok;
}


sub program {
    my ($self, $test, $how) = @_;

    return "$self->{dir}/$how/" . basename($test) . '_test';
}


# nginx's Makefile tells how; its objects are copied and only the mutant's is
# made again

sub build_module {
    my ($self, $file) = @_;

    my $work = dirname($ENV{QUIC_LB_MODULES});
    my $base = dirname($work);
    my $objs = "$self->{dir}/objs";
    my $path = $file // 'src/stream/ngx_stream_quic_lb_module.c';

    if (!-d $objs) {
        system('cp', '-a', "$work/objs", $objs) == 0 or die "cp failed\n";
        system('cp', '-a', "$work/modules", "$self->{dir}/modules") == 0
            or die "cp failed\n";
    }

    # the file before this one

    my $last = $self->{last} // '';
    $self->{last} = $file;

    if ($file && $last && $last ne $file) {
        my $object = 'addon/stream/' . basename($last, '.c') . '.o';
        system('cp', '-a', "$work/objs/$object", "$objs/$object") == 0
            or die "cp failed\n";
    }

    my $made = `make -s -n -C $base/src -f $work/objs/Makefile -W @{[
        "$self->{checkout}/$path" ]} modules` =~ s/\\\n//gr;

    for my $command (grep { m{/\Q@{[ basename($path, '.c') ]}\E\.o} }
                     split /\n/, $made)
    {
        $command =~ s{\Q$work/objs\E}{$objs}g;
        $command =~ s{\Q$self->{checkout}\E/src}{$self->{tree}/src}g;
        $command =~ s{^cc -c}{cc -c -w};
        $command =~ s{-O2}{-O0 -U_FORTIFY_SOURCE};
        $command =~ s{-D_FORTIFY_SOURCE=2}{};
        $command =~ s{-Werror\S*}{}g;

        $self->quiet(120, 'sh', '-c', "cd $base/src && exec $command")
            or return 0;
    }

    my $so = 'ngx_stream_quic_lb_module.so';
    rename "$objs/$so", "$self->{dir}/modules/$so";

    return -e "$self->{dir}/modules/$so";
}


sub passes {
    my ($self, $test, $how, $limit) = @_;

    my $t = "$self->{tree}/t";

    if ($how ne 'module') {
        return $self->quiet($limit, $self->program($test, $how));
    }

    local $ENV{QUIC_LB_MODULES} = "$self->{dir}/modules";
    local $ENV{QUIC_LB_LOAD} =
        $ENV{QUIC_LB_LOAD} =~ s{\S+(?=/ngx_stream_quic_lb_module\.so)}
                               {$self->{dir}/modules}r;

    return $self->quiet($limit, "$t/lib/isolate", 'perl', "$t/$test");
}


# True if the command succeeds in time.  What it prints is in "out", and that of
# the compiler in "log"; the first test that fails ends it.

sub quiet {
    my ($self, $limit, @command) = @_;

    my $name = $command[0] =~ m{^(?:gcc|sh)$} ? 'log' : 'out';
    my $path = "$self->{dir}/$name";
    my $end = time + $limit;

    pipe my $in, my $out;
    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        setpgrp;
        open STDOUT, '>&', $out;
        open STDERR, '>', "$path.err";
        close $in;
        exec @command or exit 127;
    }

    close $out;
    open my $fh, '>', $path or die "$path: $!";

    my ($failed, $buffer) = (0, '');
    $self->{late} = 0;
    my $bits = '';
    vec($bits, fileno($in), 1) = 1;

    while (!$failed) {
        my $left = $end - time;

        if ($left <= 0 || !select(my $ready = $bits, undef, undef, $left)) {
            print $fh "# time-out\n";
            $failed = $self->{late} = 1;
            last;
        }

        sysread($in, $buffer, 65536, length $buffer) or last;
        $failed = $buffer =~ /^not ok(?! .*# TODO)/m;
        print $fh substr $buffer, 0, 1 + rindex($buffer, "\n"), '';
    }

    kill KILL => -$pid if $failed;
    waitpid $pid, 0;
    print $fh $buffer;
    close $fh;

    return !$failed && $? == 0;
}


sub write_file {
    my ($path, $text) = @_;

    open my $fh, '>', $path or die "$path: $!";
    print $fh $text;
    close $fh or die "$path: $!";
}


1;
