#!/usr/bin/perl

# What t/mutate makes of a small source, and that all of t/lib/mutants is about
# sources that are there.  The mutants themselves are run by hand.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB::Mutants qw/mutants read_equivalent read_file/;

my $checkout = $FindBin::Bin =~ s{/t$}{}r;

my $source = <<'END';
#define LIMIT  16    /* octets */
#define ZERO   0
#define NAME   "16"


static int  value[] = { 1 < 2 };


int
first(int a, int b)
{
    /* if (a < b) */

    if (a == b
        && (a || !b))
    {
        return a < LIMIT;
    }

    for ( ;; ) {
        a = b ? 1 : 2;
    }
}
END

my @want = (
    ['-', '#define LIMIT 16 /* octets */',
          '#define LIMIT (2 * (16)) /* octets */'],
    ['first', 'if (a == b', 'if (!(a == b)'],
    ['first', 'if (a == b && (a || !b))', 'if (!(a == b && (a || !b)))'],
    ['first', '&& (a || !b))', '&& !((a || !b)))'],
    ['first', '&& (a || !b))', '&& (!(a) || !b))'],
    ['first', '&& (a || !b))', '&& (a || !(!b)))'],
    ['first', 'return a < LIMIT;', 'return !(a < LIMIT);'],
    ['first', 'return a < LIMIT;', 'return a <= LIMIT;'],
    ['first', 'return a < LIMIT;', 'return a < 2 * (LIMIT);'],
    ['first', 'a = b ? 1 : 2;', 'a = !(b) ? 1 : 2;'],
);

is_deeply([map { [@$_{qw/function before after/}] } mutants($source)], \@want,
          'mutants');

my ($negated) = grep { $_->{after} =~ /a = !/ } mutants($source);

is($negated->{line}, 21, 'the line');
is($negated->{text}, $source =~ s/a = b/a = !(b)/r, 'the whole source');
is($negated->{new}, $negated->{old} =~ s/a = b/a = !(b)/r, 'the function');

# what is equivalent is looked for in the sources of today

my %reasons = read_equivalent("$FindBin::Bin/lib/mutants/equivalent");
my (%there, %read);

for my $key (keys %reasons) {
    my ($file) = split /\n/, $key;
    next if $read{$file}++ || !-e "$checkout/$file";

    $there{join "\n", $file, @$_{qw/function before after/}} = 1
        for mutants(read_file("$checkout/$file"));
}

is(join("\n\n", grep { !$there{$_} } sort keys %reasons), '',
   'equivalent mutants are there');
is(join("\n\n", grep { !length $reasons{$_} } sort keys %reasons), '',
   'and have a reason');

for my $line (grep { /^[^#\s]/ }
              split /\n/, read_file("$FindBin::Bin/lib/mutants/tests")
                          =~ s/\\\n//gr)
{
    my ($file, @tests) = split ' ', $line;

    ok(-e "$checkout/$file", $file);
    is(join(' ', grep { !-e "$FindBin::Bin/" . s{^(unit/.*)}{$1_test.c}r }
                 @tests), '', "$file: tests");
}

done_testing();
