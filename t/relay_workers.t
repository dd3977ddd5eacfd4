#!/usr/bin/perl

# Several workers: a connection goes on wherever its client's packets arrive.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use Socket qw/AF_INET6 AF_UNIX SOCK_DGRAM inet_aton pack_sockaddr_in
              pack_sockaddr_un/;

use QuicLB;
use QuicLB::Process qw/slurp/;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

my $t = QuicLB->new();
my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
                               parts => { workers => 4 });

$t->start();

my $report = $relay->ends('queries', 200);
is($report->{wrong}, 0, 'queries in one place') or diag($report->{error});

for my $change ('', 'new') {
    $report = $relay->ends('rebind', 12, $change || ());
    ok($report->{intact}, 'twelve other ports, connection ID '
                          . ($change || 'as before'))
        or diag($report->{error});
}

$report = $relay->ends('moves', 12, 6, 400_000);
is_deeply($report->{failed}, [], 'twelve connections migrate in mid-transfer')
    or diag($report->{error});


# a worker dies: its clients are told, the others' connections go on

my $victim = ($t->workers())[1];

$report = $relay->ends_with(sub {
    $t->kill_worker($victim);
    $t->wait_for('another worker', sub { $t->workers() == 4 });
}, 'hold', 12);

cmp_ok($report->{reset}, '<', 12, 'a worker dies: others go on')
    or diag($report->{error});
is(scalar @{ $report->{failed} }, $report->{reset},
   'and each connection that was lost has a stateless reset')
    or diag(join "\n", @{ $report->{failed} });

$report = $relay->ends('moves', 8, 4, 100_000);
is_deeply($report->{failed}, [], 'and the new worker takes its place')
    or diag($report->{error});

$t->stop('QUIT');


# wildcards: what goes back comes from where the client has sent to

for my $case (['*', 'reuseport'], ['[::]', 'reuseport ipv6only=off']) {
    my ($address, $listen) = @$case;

    $relay = QuicLB::Relay->new($t, address => $address, listen => $listen,
                                parts => { workers => 4 });
    $t->start();

    $report = $relay->ends('moves', 8, 4, 100_000);
    is_deeply($report->{failed}, [], "$address: connections migrate")
        or diag($report->{error});

    $report = $relay->ends_with(sub {
        ok($t->reload(), "$address: a reload");
    }, 'hold', 6);

    is_deeply($report->{failed}, [], "$address: nothing is lost")
        or diag($report->{error});
    is_deeply($report->{new}, [], "$address: and new clients are served");

    $t->stop('QUIT');
}

# what another process of the same user sends to workers does no harm

# of _handover.c
use constant { FORMAT => 0x71726c32, ADDRESS => 28 };

$relay = QuicLB::Relay->new($t, listen => 'reuseport',
                            parts => { workers => 2, main => 'user root;' });
$t->start();

my @workers = $t->workers();
my @names = map { names($_) } @workers;
is(scalar @names, 2, 'each worker has a name');

socket my $other, AF_UNIX, SOCK_DGRAM, 0 or die "socket: $!";

my $inet = pack_sockaddr_in(9, inet_aton('127.0.0.1'));
my $here = pack_sockaddr_in($relay->{port}, inet_aton('127.0.0.1'));

# of a client that begins a connection
my $datagram = "\xc0\0\0\0\1\x08" . 'datagram' . "\0\0\x44\x9e"
               . 'x' x 1182;

sub handed {
    my ($socklen, $remote, $length) = @_;

    return pack('L4', FORMAT, $length // length $datagram, $socklen,
                0)
           . pack('a' . ADDRESS, $here) . pack('a' . ADDRESS, $remote)
           . $datagram;
}

my @messages = (
    handed(length $inet, pack('S a14', AF_UNIX, 'x' x 14)),
    handed(length $inet, pack('S a26', AF_INET6, "\xff" x 26)),
    handed(ADDRESS, $inet),
    handed(0, $inet), handed(1, $inet), handed(2, $inet),
    handed(2 ** 32 - 1, $inet),
    handed(length $inet, $inet, 2 ** 32 - 1),
    handed(length $inet, $inet) x 2,
    '', 'x', 'x' x 65000,
);

for my $name (@names) {
    for my $message (@messages) {
        my $sent = send $other, $message, 0, pack_sockaddr_un("\0$name");
        defined $sent or die "send: $!";
    }
}

$report = $relay->ends('queries', 40);
is($report->{wrong}, 0, 'messages of another process')
    or diag($report->{error});
is_deeply([sort $t->workers()], [sort @workers], 'and all workers live');

$t->done();


# of a worker's sockets: other nginx's have some, too

sub names {
    my ($pid) = @_;

    my %inodes = map { $_ => 1 }
                     map { (readlink($_) // '') =~ /^socket:\[(\d+)\]/ }
                         glob("/proc/$pid/fd/*");

    return map { / (\d+) \@(quic_relay\.\S+)$/ && $inodes{$1} ? $2 : () }
               split /\n/, slurp('/proc/net/unix');
}
