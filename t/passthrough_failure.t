#!/usr/bin/perl

# A backend that is gone: told by ICMP, or only by its silence; and one that
# is down by configuration.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my %ids = map { ("s$_" => "0$_") } 1 .. 3;

my $t = QuicLB->new();
my ($port, $lone, $closed) = map { $t->port() } 1 .. 3;

my %servers = map { $_ => $t->servers([[$_, '127.0.0.1:0', $ids{$_}]]) }
              sort keys %ids;
my %addresses = map { $_ => $servers{$_}->address($_) } sort keys %ids;

my $map = join "\n", map { "server_id $ids{$_} $addresses{$_};" }
                     sort keys %ids;

sub conf {
    my (%parameters) = @_;

    my $lines = join "\n", map {
        "server $addresses{$_} " . ($parameters{$_} // '') . ';'
    } sort keys %ids;

    $t->conf(workers => 2, stream => <<"CONF");
        log_format route '\$quic_routed_by \$upstream_addr';
        access_log @{[$t->path('access.log')]} route;

        upstream h3 {
            zone h3 1m;
            $lines

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                $map
            }
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            quic_passthrough h3;
            quic_passthrough_timeout 2s;
        }

        upstream lone {
            server 127.0.0.1:$closed;
            quic_maglev;
        }

        server {
            listen 127.0.0.1:$lone udp reuseport;
            quic_passthrough lone;
            quic_passthrough_timeout 2s;
        }
CONF
}

sub servers_of {
    my ($report) = @_;

    my %count;
    $count{$_->{server}}++ for @{ $report->{connections} };

    return \%count;
}

sub run {
    my ($connections, @steps) = @_;

    return $t->client('--connect', "127.0.0.1:$port",
                      '--connections', $connections, 'run', 'get:/name',
                      @steps);
}

conf(map { $_ => 'fail_timeout=30s' } keys %ids);
$t->start();

is(scalar(keys %{ servers_of(run(30)) }), 3, 'all servers are used');


# killed: the first to find out tries again, the others avoid it at once

$servers{s2}->stop('KILL');

my $report = run(30);
is($report->{failed}, 0, 'no connection fails for a killed server')
    or $t->explain($report);
is(servers_of($report)->{s2}, undef, 'which gets none');

my $refused = () = $t->error_log() =~ /does not take datagrams/g;
cmp_ok($refused, '>', 0, 'the log names what happened');

# its own connection IDs go there and nowhere else, what it cannot be decoded
# does not follow them

my $before = () = $t->error_log() =~ /does not take datagrams/g;
$report = run(20);
is($report->{failed}, 0, 'later connections');
my $after = () = $t->error_log() =~ /does not take datagrams/g;
is($after, $before, 'do not even try it');


# the only server of an upstream is tried again and again, on one socket

my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1', PeerPort => $lone,
                                 Type => Socket::SOCK_DGRAM);
my $deadline = time() + 2;
my $sent = 0;

while (time() < $deadline) {
    $socket->send("\xc0\xff\0\0\1\x08" . pack('N2', rand(2**32), $sent++)
                  . "\0" . 'x' x 100);
    select(undef, undef, undef, 0.01);
}

my $lines = () = $t->error_log() =~ /does not take datagrams.*$closed/g;
cmp_ok($lines, '>', 0, "$sent datagrams to a dead server are logged");
cmp_ok($lines, '<', 5, 'once a second');

$t->wait_for('its flow to end', sub {
    $t->read('access.log') =~ /^maglev 127\.0\.0\.1:$closed$/m
}, 15);
pass('as one upstream address');


# down: no new connections, but those that are established go on

conf(s2 => 'down');
$t->reload();

my $client = $t->client_start('--connect', "127.0.0.1:$port",
                              '--connections', 20, 'hold');
$client->ready();

conf(s2 => 'down', s3 => 'down');
$t->reload();

is($client->command('progress 3')->{failed}, 0,
   'connections of a server that is now down go on');

is_deeply(servers_of(run(10)), { s1 => 10 }, 'new ones avoid it');

$client->command('migrate');
is($client->command('progress 3')->{failed}, 0, 'and may still migrate');
is($client->stop_and_report()->{failed}, 0, 'to their end');


# silent: new connections move on when it has answered nobody for so long

conf(s1 => 'max_fails=1 fail_timeout=60s', s2 => 'down');
$t->reload();

$servers{s1}->command('pause', 's1');
$report = run(12);
is($report->{failed}, 0, 'connections leave a silent server')
    or $t->explain($report);
is_deeply(servers_of($report), { s3 => 12 }, 'for the one that answers');

my $start = time();
$report = run(10);
is($report->{failed}, 0, 'later ones');
cmp_ok(time() - $start, '<', 9, 'do not wait for it');

$t->done();
