#!/usr/bin/perl

# Reload with HTTP/3 on a port below 1024, whose workers have an unprivileged
# "user": connections are drained all the same, and the workers have no more
# rights than they need for it.

use strict;
use warnings;

use List::Util qw/first/;
use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

use constant CAP_NET_BIND_SERVICE => '0000000000000400';
use constant NONE => '0' x 16;
use constant CLIENTS => 4;

my $t = QuicLB->new();

my $port = first { QuicLB::port_free($_) && QuicLB::reserve($_) } 512 .. 1023
    or die "no free port below 1024";
my $high = $t->port();

$t->write('slow', 'x' x 1000000);
chmod 0755, $t->path('');

sub conf {
    my ($listen, $main) = @_;

    $t->conf(workers => 2, main => 'user www-data; ' . ($main // ''),
             http => <<"CONF");
        access_log off;
        proxy_cache_path @{[$t->path('cache')]} keys_zone=cache:1m;

        server {
            @{[listen_lines($t, $listen)]}
            root @{[$t->path('')]};

            location / {
                return 200 "ok\\n";
            }

            location /slow {
                limit_rate 250k;
            }
        }
CONF
}

# of all of nginx but the master

sub capabilities {
    my ($set, @pids) = @_;
    my %values;

    for my $pid (@pids) {
        open my $fh, '<', "/proc/$pid/status" or next;
        my ($value) = join('', <$fh>) =~ /^Cap$set:\s+([0-9a-f]+)$/m;
        $values{$value}++;
    }

    return join ' ', map { "$_ $values{$_}" } sort keys %values;
}

sub cache_managers {
    return QuicLB::children($t->master(), qr/^nginx: cache/);
}

conf($port);
$t->start();

is(capabilities('Prm', $t->workers()), CAP_NET_BIND_SERVICE . ' 2',
   'workers may bind to the port');
is(capabilities('Eff', $t->workers()), NONE . ' 2', 'not without asking');
is(capabilities('Inh', $t->workers()), NONE . ' 2', 'nothing to inherit');
is(capabilities('Prm', cache_managers()), NONE . ' 2',
   'nothing for the cache manager and loader');

my @clients = map {
    my $client = $t->h3_start('--connect', "127.0.0.1:$port",
                              '--window', 100000, 'script');
    $client->actions(['hold', 'a'], ['get', 'a', '/slow'],
                     ['wait_status', 'a'], ['say', 'up'],
                     ['wait_goaway'], ['unhold', 'a'], ['wait', 'a'],
                     ['wait_close']);
    $client;
} 1 .. CLIENTS;

$_->wait_said('up') for @clients;

ok($t->reload(), 'reload');

my @connections = map { $_->report()->{connections}[0] } @clients;

is(scalar(grep { ((streams($_))[0] // {})->{length} == 1000000 }
               @connections),
   CLIENTS, 'all downloads complete');
is(scalar(grep { ($_->{close}{code} // 0) == H3_NO_ERROR && $_->{close}{app} }
               @connections),
   CLIENTS, 'H3_NO_ERROR for all');
is($t->log_count(qr/\[(?:warn|error|crit|alert|emerg)\]/), 0, 'nothing failed')
    or diag($t->error_log() =~ /^(.*\[(?:warn|error|crit|alert|emerg)\].*)$/m);


# nothing to bind to: nothing is kept

conf($high);
ok($t->reload(), 'a port above 1024');
$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });
is(capabilities('Prm', $t->workers()), NONE . ' 2', 'no capabilities');

conf($port);
ok($t->reload(), 'and below');
$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });
is(capabilities('Prm', $t->workers()), CAP_NET_BIND_SERVICE . ' 2',
   'kept again');

$t->done();
