package QuicLB::Owner;

# The owner of a socket that another process has open.
#
#   set_owner($pid, $port, $owner)      F_SETOWN of the UDP socket that process
#                       $pid has at $port

use strict;
use warnings;

use Exporter qw/import/;

use QuicLB::Process qw/slurp/;

our @EXPORT_OK = qw/set_owner/;

use constant {
    SYS_PIDFD_OPEN => 434,
    SYS_PIDFD_GETFD => 438,
    F_SETOWN => 8,
};


sub set_owner {
    my ($pid, $port, $owner) = @_;

    my $hex = sprintf '%04X', $port;
    my ($inode) = slurp("/proc/$pid/net/udp")
                  =~ /^\s*\d+: \w+:$hex (?:\S+ +){7}(\d+)/m
        or die "no socket at $port";

    my ($fd) = grep { (readlink("/proc/$pid/fd/$_") // '')
                      eq "socket:[$inode]" }
               map { m{/(\d+)$} } glob "/proc/$pid/fd/*";

    my $process = syscall(SYS_PIDFD_OPEN, $pid + 0, 0);
    die "pidfd_open: $!" if $process == -1;

    my $copy = syscall(SYS_PIDFD_GETFD, $process, $fd + 0, 0);
    die "pidfd_getfd: $!" if $copy == -1;

    open my $socket, '+<&=', $copy or die "fdopen: $!";
    open my $closed, '<&=', $process or die "fdopen: $!";

    fcntl $socket, F_SETOWN, $owner + 0 or die "F_SETOWN: $!";
}


1;
