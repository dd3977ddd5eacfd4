package QuicLB::Net;

# Network namespaces of a test, and what runs in them.
#
#   my $net = QuicLB::Net->new($t, qw/client balancer backend/);
#   $net->link('client', '10.0.1.1/24', 'balancer', '10.0.1.2/24');
#   $net->ip('client', 'route add default via 10.0.1.2');
#   $net->in('client', sub { $t->client(...) });
#   $net->run('balancer', 'nft', ...);  # dies if it fails
#   my $file = $net->file('balancer');  # of the namespace, for setns()
#   QuicLB::Net::alone();               # before anything else: what the test
#                                       # sets is not for those beside it
#
# A namespace lives as long as the process that keeps it, which ends with the
# test.  All that $t starts inside of in() runs there, and goes on there when
# in() returns.  An interface is called as the namespace at its other end.  IPv6
# addresses are usable at once.

use strict;
use warnings;

use QuicLB::Process;


# the test begins anew in a namespace of its own

sub alone {
    return if $ENV{QUIC_LB_ALONE};

    local $ENV{QUIC_LB_ALONE} = 1;

    exec(qw/unshare --net -- sh -c/, 'ip link set lo up && exec "$@"', 'sh',
         $^X, $0, @ARGV)
        or die "unshare: $!";
}


sub new {
    my ($class, $t, @names) = @_;

    my $self = bless { t => $t }, $class;

    for my $name (@names) {
        my $keeper = $t->helper("net-$name", qw/unshare --net sh -c/,
            'ip link set lo up && echo ready && exec cat');

        $keeper->wait_line(qr/^ready$/)
            or die "namespace $name:\n" . $keeper->stderr();

        $self->{pids}{$name} = $keeper->pid();
    }

    return $self;
}


sub file {
    my ($self, $name) = @_;

    return "/proc/$self->{pids}{$name}/ns/net";
}


sub in {
    my ($self, $name, $sub) = @_;

    local @QuicLB::Process::prefix = ('nsenter', '--net=' . $self->file($name),
                                      '--');
    return $sub->();
}


sub run {
    my ($self, $name, @command) = @_;

    my $t = $self->{t};
    my $status = $self->in($name, sub { $t->run("net-run", @command) });

    die "$name: @command:\n" . $t->read('net-run.err') if $status;
}


sub ip {
    my ($self, $name, $arguments) = @_;

    $self->run($name, 'ip', split ' ', $arguments);
}


sub sysctl {
    my ($self, $name, @settings) = @_;

    $self->run($name, 'sysctl', '-qw', @settings);
}


# addresses are alternately for the one and the other end

sub link {
    my ($self, $one, $first, $other, @addresses) = @_;

    my @ends = ([$one, $other], [$other, $one]);

    $self->ip($one, "link add $other type veth peer name $one"
                    . " netns $self->{pids}{$other}");

    for my $address ($first, @addresses) {
        my ($here, $there) = @{ $ends[0] };
        my $nodad = $address =~ /:/ ? ' nodad' : '';

        $self->ip($here, "address add $address dev $there$nodad");
        @ends = reverse @ends;
    }

    $self->ip($_->[0], "link set $_->[1] up") for @ends;
}


1;
