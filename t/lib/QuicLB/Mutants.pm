package QuicLB::Mutants;

# The mutants of a C source in nginx's style: the same text with one condition
# negated, or one bound moved or doubled.
#
#   my @mutants = mutants($text);
#
# Each is { function, line, before, after, text, old, new }: "text" is the whole
# mutated source, "before" and "after" are the lines that differ with their
# blanks collapsed, "old" and "new" the whole function, and "function" is its
# name, "-" for a #define.  Where a function has the same change twice, the
# second "after" ends with " #2".
#
#   my %reasons = read_equivalent($path);
#
# by "file\nfunction\nbefore\nafter"; the format is described there.
#
#   negated      the condition of if, while, for and ?:, each operand of && and
#                ||, and comparisons elsewhere
#   moved        < and <=, > and >=
#   doubled      the right side of these, the left one where that is constant,
#                and numbers that the source itself defines
#
# There is no preprocessor: both branches of an #if have mutants.

use strict;
use warnings;

use Exporter 'import';

our @EXPORT_OK = qw/mutants read_equivalent read_file/;

my $token = qr{
    (?<space> \s+ | /\*.*?\*/ | ^\#(?:\\\n|[^\n])* )
    | (?<word> [A-Za-z_]\w* )
    | (?<number> \d[\w.]* )
    | (?<string> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)+' )
    | (?<operator> <<= | >>= | \.\.\. | -> | \+\+ | -- | << | >> | [<>=!]=
                   | && | \|\| | [-+*/%&|^]= | . )
}xsm;

my %opens = ('(' => ')', '[' => ']', '{' => '}');
my %closes = reverse %opens;
my %moved = ('<' => '<=', '<=' => '<', '>' => '>=', '>=' => '>');

# where an operand ends, to either side; parentheses end it, too

my @statement = (qw/; return = += -= *= \/= %= &= |= ^= <<= >>= { } case/, ',',
                 'else', 'do');
my %condition = map { $_ => 1 } @statement, '?', ':';
my %or_operand = (%condition, '||' => 1);
my %and_operand = (%or_operand, '&&' => 1);
my %side = (%and_operand, map { $_ => 1 } qw/== != & | ^/);


sub mutants {
    my ($text) = @_;

    my $source = parse($text);
    my (@found, %seen);

    push @found, negated($source), moved($source), doubled($source),
         defined_numbers($text);

    my %same;
    my @mutants = map { describe($text, $source, $_) }
           sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1]
                  || $a->[2] cmp $b->[2] }
           grep { !$seen{"@$_"}++ } @found;

    for my $m (@mutants) {
        my $number = ++$same{"$m->{function}\n$m->{before}\n$m->{after}"};
        $m->{after} .= " #$number" if $number > 1;
    }

    return @mutants;
}


# { tokens => [[type, text, offset]], match => other parenthesis by index,
#   functions => [[name, first, end]] by offset }

sub parse {
    my ($text) = @_;

    my (@tokens, @open, @match, @functions);

    while ($text =~ /\G$token/gc) {
        my ($type) = keys %+;
        next if $type eq 'space';

        push @tokens, [$type, $+{$type}, $-[0]];
    }

    for my $i (0 .. $#tokens) {
        my ($type, $value) = @{ $tokens[$i] };
        next if $type ne 'operator';

        if ($opens{$value}) {
            push @open, $i;

        } elsif ($closes{$value} && @open) {
            my $other = pop @open;
            @match[$i, $other] = ($other, $i);
        }
    }

    pos($text) = 0;

    while ($text =~ /^(\w+)\((?:[^;{}]*)\)\n\{.*?^\}/msg) {
        push @functions, [$1, $-[0], $+[0]];
    }

    return { text => $text, tokens => \@tokens, match => \@match,
             functions => \@functions };
}


# each change is [offset, length, replacement]

sub negated {
    my ($source) = @_;

    my @tokens = @{ $source->{tokens} };
    my @ranges = map { conditions($source, $_) } 0 .. $#tokens;

    for my $i (0 .. $#tokens) {
        my ($type, $value) = @{ $tokens[$i] };

        if ($value eq '&&' || $value eq '||') {
            my $ends = $value eq '&&' ? \%and_operand : \%or_operand;
            push @ranges, [left($source, $i, $ends), $i - 1],
                          [$i + 1, right($source, $i, $ends)];
        }
    }

    # comparisons that are no condition, such as what a function returns

    for my $i (grep { $tokens[$_][0] eq 'operator' } 0 .. $#tokens) {
        next if $tokens[$i][1] !~ /^(?:[<>=!]=|[<>])$/;
        next if grep { $_->[0] < $i && $i < $_->[1] } @ranges;

        push @ranges, [left($source, $i, \%and_operand),
                       right($source, $i, \%and_operand)];
    }

    return map { change($source, @$_, '!(%s)') } @ranges;
}


sub conditions {
    my ($source, $i) = @_;

    my @tokens = @{ $source->{tokens} };
    my ($type, $value) = @{ $tokens[$i] };

    if ($value eq '?' && $type eq 'operator') {
        return [left($source, $i, \%condition), $i - 1];
    }

    return if $value !~ /^(?:if|while|for)$/ || $tokens[$i + 1][1] ne '(';

    my ($first, $last) = ($i + 2, $source->{match}[$i + 1] - 1);

    if ($value eq 'for') {
        my @ends = grep { $tokens[$_][1] eq ';' } $first .. $last;
        ($first, $last) = ($ends[0] + 1, $ends[1] - 1);
    }

    return $last < $first ? () : [$first, $last];
}


sub moved {
    my ($source) = @_;

    my @tokens = @{ $source->{tokens} };

    return map { change($source, $_, $_, $moved{$tokens[$_][1]}) }
           grep { $tokens[$_][0] eq 'operator' && $moved{$tokens[$_][1]} }
           0 .. $#tokens;
}


sub doubled {
    my ($source) = @_;

    my @tokens = @{ $source->{tokens} };
    my @found;

    for my $i (0 .. $#tokens) {
        next if $tokens[$i][0] ne 'operator' || !$moved{$tokens[$i][1]};

        my @left = (left($source, $i, \%side), $i - 1);
        my @right = ($i + 1, right($source, $i, \%side));
        my $range = constant($source, @left) && !constant($source, @right)
                    ? \@left : \@right;

        # 0 and -1 have no double

        next if join('', map { $_->[1] } @tokens[$range->[0] .. $range->[1]])
                =~ /^(?:0|-1|NULL)$/;

        push @found, change($source, @$range, '2 * (%s)');
    }

    return @found;
}


sub defined_numbers {
    my ($text) = @_;

    my @found;

    while ($text =~ /^\#define[ ]+[A-Z]\w*[ ]+(?=\S*[1-9])
                     ([\w(][-+*()\ \w]*\b\)*)/mgx)
    {
        push @found, [$-[1], $+[1] - $-[1], "(2 * ($1))"];
    }

    return @found;
}


sub constant {
    my ($source, $first, $last) = @_;

    return !grep { $_->[1] =~ /[a-z]/ && $_->[0] eq 'word' }
           @{ $source->{tokens} }[$first .. $last];
}


# the first token of the operand that ends before token $i

sub left {
    my ($source, $i, $ends) = @_;

    my ($tokens, $match) = @$source{qw/tokens match/};
    my $first = $i;

    while ($first > 0) {
        my ($type, $value) = @{ $tokens->[$first - 1] };

        last if $ends->{$value} || $opens{$value};

        $first = $closes{$value} ? $match->[$first - 1] : $first - 1;
    }

    return $first;
}


# and the last one of that which begins behind it

sub right {
    my ($source, $i, $ends) = @_;

    my ($tokens, $match) = @$source{qw/tokens match/};
    my $last = $i;

    while ($last < $#$tokens) {
        my ($type, $value) = @{ $tokens->[$last + 1] };

        last if $ends->{$value} || $closes{$value};

        $last = $opens{$value} ? $match->[$last + 1] : $last + 1;
    }

    return $last;
}


# nothing outside of functions: initializers and prototypes have no conditions

sub change {
    my ($source, $first, $last, $format) = @_;

    my @tokens = @{ $source->{tokens} };
    my $start = $tokens[$first][2];
    my $end = $tokens[$last][2] + length $tokens[$last][1];

    return if $last < $first
              || !grep { $_->[1] <= $start && $end <= $_->[2] }
                 @{ $source->{functions} };

    my $old = substr $source->{text}, $start, $end - $start;

    return [$start, $end - $start, $format =~ s{%s}{$old}r];
}


sub describe {
    my ($text, $source, $change) = @_;

    my ($start, $length, $new) = @$change;
    my $first = 1 + rindex $text, "\n", $start;
    my $last = index $text, "\n", $start + $length;
    my ($function) = grep { $_->[1] <= $start && $start < $_->[2] }
                     @{ $source->{functions} };

    my $head = substr $text, $first, $start - $first;
    my $tail = substr $text, $start + $length, $last - $start - $length;
    my $mutant = $text;
    substr $mutant, $start, $length, $new;

    my ($name, $begin, $end) = $function ? @$function : ('-', $first, $last);
    my $grown = length($mutant) - length $text;

    return {
        function => $name,
        line => 1 + (substr($text, 0, $start) =~ tr/\n//),
        before => collapsed(substr $text, $first, $last - $first),
        after => collapsed("$head$new$tail"),
        text => $mutant,
        old => substr($text, $begin, $end - $begin),
        new => substr($mutant, $begin, $end - $begin + $grown),
    };
}


sub collapsed {
    my ($text) = @_;

    return $text =~ s/\s+/ /gr =~ s/^ | $//gr;
}


sub read_equivalent {
    my ($path) = @_;

    my %reasons;

    for my $block (split /\n\n+/, read_file($path)) {
        next if $block !~ s/^(?!#)(\S+) (\S+)\n//m || $block =~ /^#/;

        my ($file, $function) = ($1, $2);
        my @changes = $block =~ /^- (.*)\n\+ (.*)\n/mg;
        my ($reason) = $block =~ /^(?![-+] )\s*(\S.*)\z/ms;

        while (my ($before, $after) = splice @changes, 0, 2) {
            $reasons{join "\n", $file, $function, $before, $after} =
                collapsed($reason // '');
        }
    }

    return %reasons;
}


sub read_file {
    my ($path) = @_;

    open my $fh, '<', $path or die "$path: $!";
    local $/;

    return <$fh> // '';
}


1;
