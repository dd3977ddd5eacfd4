#!/usr/bin/perl

# A worker that starts late, when the next configuration has given its socket to
# the stock proxy_pass: it leaves the socket alone, of which the options are
# reset although no owner was left to be seen.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial/;
use QuicLB::Udp;

plan skip_all => "a preloaded library and the sanitizer's do not mix"
    if $ENV{NGINX_FLAVOR} eq 'asan';

my $t = QuicLB->new();
my $port = $t->port();

my $shim = $t->path('shim.so');
my $hold = $t->path('hold');

is(system(qw/cc -W -Wall -Werror -O2 -shared -fPIC -o/, $shim,
          "$FindBin::Bin/lib/shim.c", '-ldl'), 0, 'the shim');

my %backends = map { $_ => udp_bind('127.0.0.1') }
               qw/quic_passthrough proxy_pass/;

my $datagram = initial('clientid', 'clntscid');

conf('quic_passthrough');

{
    local $ENV{LD_PRELOAD} = $shim;
    local $ENV{QUIC_LB_SHIM_HOLD} = $hold;
    $t->start();
}

passes('quic_passthrough', 'at first');

late_worker();

conf('quic_passthrough');
ok($t->reload(), 'reload to quic_passthrough');
passes('quic_passthrough', 'again');

$t->done();


sub conf {
    my ($how) = @_;
    my $backend = $backends{$how}->sockport;

    $t->conf(stream => <<"CONF");
        server {
            listen 127.0.0.1:$port udp;
            $how 127.0.0.1:$backend;
        }
CONF
}


sub passes {
    my ($how, $name) = @_;

    udp_connect('127.0.0.1', $port)->send($datagram);
    ok(defined udp_receive($backends{$how}), "$name: a datagram by $how");
}


# one instead of a killed one, held until others run with proxy_pass

sub late_worker {
    my ($killed) = $t->workers();

    $t->write('hold', '');
    $t->kill_worker($killed);
    $t->wait_for('a worker that is held', sub { -e "$hold.held" });

    conf('proxy_pass');
    ok($t->reload(), "reload to proxy_pass");
    passes('proxy_pass', "with the late worker to come");

    my ($stock) = $t->workers();

    # the late worker has this to read, if it reads at all, before it knows that
    # it is to quit
    $t->while_stopped(sub {
        udp_connect('127.0.0.1', $port)->send($datagram);
        unlink "$hold.held" or die "$hold.held: $!";

        my $left = $t->wait_for('the late worker', sub {
            QuicLB::children($t->master(), qr/^nginx/) == 1;
        });
        ok($left, 'the late worker leaves');
    });

    is(($t->workers())[0], $stock, "the worker is the same");
    ok(defined udp_receive($backends{proxy_pass}),
       "it got what the late one left alone");
    is(udp_receive($backends{quic_passthrough}, 0), undef,
       "which has read nothing");
    passes('proxy_pass', "in the end");
}
