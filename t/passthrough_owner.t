#!/usr/bin/perl

# A socket whose owner is gone, and whose PID is another program's now, is read.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use POSIX qw/setsid pause/;

use QuicLB;
use QuicLB::Owner qw/set_owner/;

my $t = QuicLB->new();
my $port = $t->port();
my $servers = $t->servers([['one', '127.0.0.1:0', '01']]);

$t->conf(stream => <<"CONF");
    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough @{[$servers->address('one')]};
    }
CONF
$t->start();

# of no session that has to do with nginx

pipe my $ready, my $tell or die "pipe: $!";
my $other = fork() // die "fork: $!";

if (!$other) {
    setsid();
    close $tell;
    pause() while 1;
}

close $tell;
is(scalar(<$ready>), undef, 'a program');

set_owner($t->workers(), $port, $other);

my $report = $t->client('--connect', "127.0.0.1:$port", 'run', 'get:/name');
is($report->{failed}, 0, 'its socket is read') or $t->explain($report);

kill 'KILL', $other;
waitpid $other, 0;

$t->done();
