#!/usr/bin/perl

# System calls that fail, each with any error: a plainer call takes the place of
# the one that fails, and nothing is lost; where none works, what is lost is
# counted. There is one line about it, and never a loop.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use Errno ();

use QuicLB;
use QuicLB::Packet qw/short/;
use QuicLB::Udp;

# datagrams of each case and direction; calls that work at first
use constant { FLOWS => 4, COUNT => 1000, FROM => 20 };

# calls that fail while nothing works: a socket is left alone in between, for
# which a loop makes a million of them
use constant LOOP => 1000;

plan skip_all => "a preloaded library and the sanitizer's do not mix"
    if $ENV{NGINX_FLAVOR} eq 'asan';

my @any = qw/EIO EINVAL EPERM ENOSYS EACCES EOPNOTSUPP ECONNREFUSED
             ENETUNREACH EINTR EFAULT/;

# a call of shim.c, what is logged once, errors
my @plainer = (
    [recvmmsg => qr/recvmmsg\(\) failed, reading messages one by one/,
     @any, qw/ENOMEM/],
    [sendmmsg => qr/sendmmsg\(\) failed, sending messages one by one/, @any],
    [segment => qr/UDP_SEGMENT failed, sending datagrams one by one/,
     grep({ !/ECONNREFUSED|ENETUNREACH/ } @any), qw/EMSGSIZE ENOPROTOOPT/],
    [segment => undef, qw/ECONNREFUSED ENETUNREACH/],
    [gro => undef, @any],
);

my $t = QuicLB->new();
my ($port, $server, $stats) = map { $t->port() } 1 .. 3;

my ($shim, $datagrams) = map { $t->path($_) } qw/shim.so datagrams/;
my $failures = $t->path('failures');
my @cc = qw/cc -W -Wall -Werror -O2/;

is(system(@cc, qw/-shared -fPIC -o/, $shim, "$FindBin::Bin/lib/shim.c",
          '-ldl'), 0, 'the shim');
is(system(@cc, '-o', $datagrams, "$FindBin::Bin/lib/datagrams.c"), 0,
   'the ends');

$t->conf(stream => <<"CONF");
    upstream quic {
        server 127.0.0.1:$server;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id 0a 127.0.0.1:$server;
        }
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough quic;
    }

    @{[$t->counters_server($stats, qw/received sent replies send_failed/)]}
CONF


# a plainer call works

for my $case (@plainer) {
    my ($call, $log, @errors) = @$case;

    for my $error (@errors) {
        passes("$call: $error", $log, fault($call, $error,
                                                $call eq 'gro' ? 1 : FROM));
    }
}


# what passes

for my $error (qw/ENOBUFS ENOMEM EAGAIN/) {
    passes("send: $error for a while", undef, fault('send', $error, FROM, 5));
}

passes('receive: EIO for a while', qr/recvmsg\(\) failed, reading pauses/,
       fault('receive', 'EIO', FROM, 18));
passes('receive: ECONNREFUSED for a while', undef,
       fault('receive', 'ECONNREFUSED', FROM, 18));

passes('recvmmsg: EIO, once', undef, fault('recvmmsg', 'EIO', FROM, 1));
passes('sendmmsg: EIO, once', undef, fault('sendmmsg', 'EIO', FROM, 1));


# nothing works

for my $error (@any, qw/ENOBUFS/) {
    start(fault('send', $error, 1));

    my $backend = udp_bind('127.0.0.1', $server);
    my $client = udp_connect('127.0.0.1', $port);
    my @train = map { short("\x08\x0anonce77", 'x' x 200) } 1 .. 8;

    $client->send($train[0]);
    udp_train($client, @train);
    $t->wait_for("$error: received", sub { counter('received') == 9 });

    if ($error eq 'ENOBUFS') {
        is(counter('send_failed'), 0, 'ENOBUFS: datagrams wait');
        $t->wait_for('ENOBUFS: tried again', sub { failures() > 9 });

    } else {
        $t->wait_for("$error: a drop", sub { counter('send_failed') == 9 });
        like($t->error_log(),
             qr/sendmsg\(\)\ failed,\ datagrams\ are\ dropped,\ upstream:
                \ 127\.0\.0\.1:$server\ \(@{[number($error)]}:/x,
             "$error: logged");
    }

    cmp_ok(failures(), '<', LOOP, "$error: no loop");
    $t->stop();
    ok(!defined udp_receive($backend, 0), "$error: nothing is sent");
}

for my $error (qw/EIO EINVAL ECONNREFUSED/) {
    start(fault('receive', $error, 1));

    udp_connect('127.0.0.1', $port)->send('x');
    $t->wait_log(qr/recvmsg\(\)\ failed,\ reading\ pauses,\ listen:
                    \ 127\.0\.0\.1:$port\ \(@{[number($error)]}:/x);

    my $before = failures();
    $t->wait_for("$error: tried again", sub { failures() > $before });

    cmp_ok(failures(), '<', LOOP, "receiving, $error: no loop");
    is(counter('received'), 0, 'nothing is received');
    $t->stop();
}

$t->done();


sub number {
    my ($error) = @_;

    return Errno->can($error)->();
}


sub fault {
    my ($call, $error, @times) = @_;

    return join ':', $call, number($error), @times;
}


sub start {
    my ($fault) = @_;

    unlink $failures;

    local $ENV{LD_PRELOAD} = $shim;
    local $ENV{QUIC_LB_SHIM} = $fault;
    local $ENV{QUIC_LB_SHIM_FAILURES} = $failures;
    $t->start();
}


sub failures {
    return -s $failures // 0;
}


sub counter {
    my ($name) = @_;

    return $t->counters($stats)->{$name};
}


sub passes {
    my ($name, $log, $fault) = @_;
    my $before = length $t->error_log();

    start($fault);

    is(run(), "ok: @{[COUNT]} up, @{[COUNT]} down\n", "$name: all arrive");

    my $c = $t->counters($stats);
    is("$c->{sent} $c->{replies} $c->{send_failed}",
       "@{[COUNT]} @{[COUNT]} 0", "$name: all are counted");
    cmp_ok(failures(), '>', 0, "$name: it has failed");

    my $error = (split /:/, $fault)[1];
    my @told = grep { $log && $_ =~ $log }
                    split /\n/, substr($t->error_log(), $before);
    is(scalar(@told), 1, "$name: logged once") or diag("@told") if $log;
    like($told[0] // '', qr/(?:listen|upstream|client): .*\($error: /,
         "$name: with the address and the error") if $log;

    $t->stop();
}


sub run {
    open my $pipe, '-|', $datagrams, $port, $server, FLOWS, COUNT, 1, 1,
         ++$t->{seed}
        or die "datagrams: $!";
    local $/;

    return <$pipe>;
}
