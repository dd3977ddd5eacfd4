package QuicLB::Process;

# A child process of a test: its output in files, its commands by a pipe.
#
#   my $p = QuicLB::Process->new($name, $dir, \@command, stdin => 1);
#   $p->say("stop");                    # a line to its standard input
#   my @found = $p->wait_line(qr/^ready (\S+)/, $seconds);
#   my $status = $p->wait($seconds);    # as $?, undef: still running
#   $p->stop("TERM");                   # and wait, KILL as the last resort

use strict;
use warnings;

use Exporter qw/import/;
use POSIX qw/WNOHANG/;
use Time::HiRes qw/sleep time/;

our @EXPORT_OK = qw/wait_for slurp pid_gone/;

# what every command is run by; QuicLB::Net sets it
our @prefix;

use constant INTERVAL => 0.02;

# how long to wait for what is bound to come, on a busy machine, too; less than
# the usual idle timeouts, which are not to be what it comes from
use constant PATIENCE => 50;


sub wait_for {
    my ($condition, $seconds) = @_;
    my $deadline = time() + ($seconds // PATIENCE);

    while (1) {
        my $late = time() > $deadline;
        my $result = $condition->();

        return $result if $result || $late;

        sleep(INTERVAL);
    }
}


sub slurp {
    my ($path) = @_;

    open my $fh, '<:raw', $path or return '';
    local $/;

    return <$fh> // '';
}


# a zombie is gone, too: reaping may be up to another process

sub pid_gone {
    my ($pid) = @_;

    return slurp("/proc/$pid/stat") !~ /\) [^ZX] /;
}


sub new {
    my ($class, $name, $dir, $command, %options) = @_;

    my $self = bless {
        name => $name,
        out => "$dir/$name.out",
        err => "$dir/$name.err",
        seen => 0,
    }, $class;

    pipe(my $reader, my $writer) or die "pipe: $!";
    $writer->autoflush(1);

    $self->{pid} = fork() // die "fork: $!";

    if ($self->{pid} == 0) {
        $command = [@prefix, @$command];
        close $writer;
        $self->_exec($command, $options{stdin} ? $reader : undef);
    }

    close $reader;
    $self->{stdin} = $writer if $options{stdin};

    return $self;
}


sub _exec {
    my ($self, $command, $stdin) = @_;

    eval {
        if ($stdin) {
            open STDIN, '<&', $stdin or die;

        } else {
            open STDIN, '<', '/dev/null' or die;
        }

        open STDOUT, '>', $self->{out} or die;
        open STDERR, '>', $self->{err} or die;

        exec { $command->[0] } @$command or die "$command->[0]: $!\n";
    };

    # not exit(): the parent's END blocks are not this process's
    print STDERR $@;
    POSIX::_exit(127);
}


sub pid {
    my ($self) = @_;

    return $self->{pid};
}


sub stdout {
    my ($self) = @_;

    return slurp($self->{out});
}


sub stderr {
    my ($self) = @_;

    return slurp($self->{err});
}


sub say {
    my ($self, $line) = @_;

    local $SIG{PIPE} = 'IGNORE';

    return print { $self->{stdin} } "$line\n";
}


# the next whole line of output after those that were returned before

sub next_line {
    my ($self) = @_;

    my $text = substr($self->stdout(), $self->{seen});

    return undef if $text !~ /^(.*)\n/;

    $self->{seen} += length($1) + 1;

    return $1;
}


# passes over lines until one matches; empty when it ends or time is up

sub wait_line {
    my ($self, $regex, $seconds) = @_;

    my ($line, $ended);

    wait_for(sub {
        $ended = defined $self->status();

        while (defined($line = $self->next_line())) {
            return 1 if $line =~ $regex;
        }

        return $ended;
    }, $seconds);

    return defined $line ? $line =~ $regex : ();
}


sub status {
    my ($self) = @_;

    if (!defined $self->{status} && waitpid($self->{pid}, WNOHANG) > 0) {
        $self->{status} = $?;
    }

    return $self->{status};
}


sub wait {
    my ($self, $seconds) = @_;

    wait_for(sub { defined $self->status() }, $seconds);

    return $self->{status};
}


sub signal {
    my ($self, $signal) = @_;

    return defined $self->status() ? 0 : kill($signal, $self->{pid});
}


sub stop {
    my ($self, $signal) = @_;

    $self->signal($signal // 'TERM');

    if (!defined $self->wait(30)) {
        $self->signal('KILL');
        $self->wait();
    }

    return $self->{status};
}


1;
