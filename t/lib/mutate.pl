#!/usr/bin/perl

# The inner half of t/mutate, inside the environment.

use strict;
use warnings;

use Digest::SHA qw/sha256_hex/;
use Fcntl qw/:flock/;
use File::Basename qw/basename/;
use File::Temp qw/tempdir/;
use FindBin;
use Getopt::Long;
use List::Util qw/sum0/;

use lib $FindBin::Bin;

use QuicLB::MutantBuild;
use QuicLB::Mutants qw/mutants read_equivalent read_file/;

my %o = (jobs => 1, seed => 1, shard => '1/1', function => '');
GetOptions(\%o, 'results=s', 'jobs=i', 'shard=s', 'sample=i', 'seed=i',
           'function=s', 'list', 'report')
    or exit 2;

my ($shard, $shards) = $o{shard} =~ m{^([1-9]\d*)/([1-9]\d*)$}
    or die "--shard $o{shard} is not K/N\n";

my $checkout = $FindBin::Bin =~ s{/t/lib$}{}r;
my %tests = read_tests("$FindBin::Bin/mutants/tests");
my %equivalent = read_equivalent("$FindBin::Bin/mutants/equivalent");
my %results = read_results($o{results});

my @files = map { s{^\Q$checkout\E/}{}r } @ARGV;

for my $file (@files) {
    die "$file: no tests in t/lib/mutants/tests\n" if !$tests{$file};
}

my @mutants = map { $o{report} ? all($_) : chosen(all($_)) } @files;

if ($o{report}) {
    report();

} elsif ($o{list}) {
    print line($_, ''), "\n" for @mutants;

} else {
    exit(run() ? 1 : 0);
}


sub all {
    my ($file) = @_;

    my @found = grep { $_->{function} =~ /(?:$o{function})/ }
                mutants(read_file("$checkout/$file"));

    for my $m (@found) {
        $m->{file} = $file;
        $m->{key} = substr sha256_hex(join "\n", $file, @$m{qw/old new/}),
                    0, 16;
    }

    return @found;
}


sub chosen {
    my @list = @_;

    if (defined $o{sample}) {

        # the order by a hash is that of no machine's random numbers
        my %order = map { $_->{key} => sha256_hex("$o{seed}/$_->{key}") }
                    @list;

        @list = sort { $order{$a->{key}} cmp $order{$b->{key}} } @list;
        $#list = $o{sample} - 1 if @list > $o{sample};
        @list = sort { $a->{line} <=> $b->{line} } @list;
    }

    return @list[grep { $_ % $shards == $shard - 1 } 0 .. $#list];
}


sub is_equivalent {
    my ($m) = @_;

    return $equivalent{join "\n", @$m{qw/file function before after/}};
}


sub line {
    my ($m, $result) = @_;

    return "$m->{file}:$m->{line}: $m->{before}  =>  $m->{after}"
           . ($result && ": $result");
}


sub run {
    my (@todo, %pids);

    for my $m (@mutants) {
        my $result = $results{$m->{key}} // '';

        if (is_equivalent($m)) {
            print line($m, 'equivalent'), "\n";

        } elsif ($result =~ /^killed/) {
            print line($m, $result), "\n";

        } else {
            push @todo, $m;
        }
    }

    my $dir = tempdir(CLEANUP => 1);
    pipe my $in, my $out;
    $out->autoflush(1);

    # each worker takes the next number out of the pipe

    print $out pack('N', $_) for 0 .. $#todo;
    close $out;

    for my $job (1 .. $o{jobs}) {
        my $pid = fork() // die "fork: $!";

        if ($pid == 0) {
            work("$dir/$job", $in, \@todo);
            exit 0;
        }

        $pids{$pid} = 1;
    }

    my $failed = 0;

    while (%pids) {
        my $pid = wait;
        $failed = 1 if delete $pids{$pid} && $?;
    }

    %results = read_results($o{results});

    return $failed
           || grep { ($results{$_->{key}} // '') !~ /^(?:killed|does)/ } @todo;
}


sub work {
    my ($dir, $in, $todo) = @_;

    my $build = QuicLB::MutantBuild->new($checkout, $dir);

    while (sysread($in, my $number, 4)) {
        my $m = $todo->[unpack 'N', $number];
        my $result = $build->try($m, @{ $tests{$m->{file}} });

        open my $fh, '>>', $o{results} or die "$o{results}: $!";
        flock $fh, LOCK_EX;
        print $fh "$m->{key} $result\n";
        close $fh;

        # one write(): the lines of two workers do not mix
        syswrite STDOUT, line($m, $result) . "\n";
    }
}


sub report {
    my @columns = qw/killed invalid equivalent survived none/;

    print "| file | mutants | killed | does not compile | equivalent",
          " | survived | not run |\n|---|---|---|---|---|---|---|\n";

    for my $file (@files) {
        my %count = map { $_ => 0 } @columns;

        for my $m (grep { $_->{file} eq $file } @mutants) {
            my $result = $results{$m->{key}} // 'none';

            $count{is_equivalent($m) ? 'equivalent'
                   : $result =~ /^killed/ ? 'killed'
                   : $result =~ /compile/ ? 'invalid'
                   : $result eq 'survived' ? $result
                   : 'none'}++;
        }

        print join(' | ', '| ' . basename($file) =~ s/_/\\_/gr,
                   sum0(values %count), @count{@columns}),
              " |\n";
    }
}


# FILE TEST...

sub read_tests {
    my ($path) = @_;

    my @lines = grep { /^[^#\s]/ } split /\n/, read_file($path) =~ s/\\\n//gr;

    return map { my ($file, @list) = split; ($file => \@list) } @lines;
}


# KEY RESULT, of which the last one counts

sub read_results {
    my ($path) = @_;

    return if !-e $path;

    return read_file($path) =~ /^(\w+) (.*)$/mg;
}
