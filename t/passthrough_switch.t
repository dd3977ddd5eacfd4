#!/usr/bin/perl

# Reloads between quic_passthrough and the stock proxy_pass on one socket, and
# other ways to run: the accept mutex, other event methods.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my $port = $t->port();

my $servers = $t->servers([['one', '127.0.0.1:0', '0a'],
                           ['two', '127.0.0.1:0', '0b']]);
my ($one, $two) = map { $servers->address($_) } qw/one two/;

sub conf {
    my ($how, %more) = @_;

    my $workers = $more{workers} // 2;
    my $reuseport = $workers > 1 ? 'reuseport' : '';

    $t->conf(%more, workers => $workers, stream => <<"CONF");
        upstream h3 {
            server $one;
            server $two;

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                server_id 0a $one;
                server_id 0b $two;
            }
        }

        server {
            listen $port udp $reuseport;
            $how h3;
        }
CONF
}

sub works {
    my ($name, @arguments) = @_;

    my $report = $t->client('--connect', "127.0.0.1:$port",
                            '--connections', 4, @arguments,
                            'run', 'get:/name', 'transfer:60000');
    is($report->{failed}, 0, $name) or $t->explain($report);
}


# the stock module reads no control messages: left-over options would make it
# drop whatever has one

conf('proxy_pass');
$t->start();
works('proxy_pass');

my $client = $t->client_start('--connect', "127.0.0.1:$port",
                              '--connections', 4, 'hold');
$client->ready();

for my $round (1, 2) {
    conf('quic_passthrough');
    ok($t->reload(), 'reload to quic_passthrough');
    is($client->command('progress 5')->{failed}, 0, 'connections go on');
    works('new connections');

    # options are set a while after the start
    $client->command('progress 5');

    conf('proxy_pass');
    ok($t->reload(), 'reload to proxy_pass');
    works('new connections');

    if ($round == 1) {
        is($client->stop_and_report()->{failed}, 0, 'which keeps them');
        $client = $t->client_start('--connect', "127.0.0.1:$port",
                                   '--connections', 4, 'hold');
        $client->ready();
    }
}

unlike($t->error_log(), qr/truncated data/, 'no datagram is taken for cut');
$t->stop();


# other ways to run

for my $case (['the accept mutex', events => 'accept_mutex on;'],
              ['poll', events => 'use poll;'],
              ['select', events => 'use select;', connections => 512],
              ['one worker', workers => 1])
{
    my ($name, %parts) = @$case;

    SKIP: {
        my ($ok, $output) = $t->test_conf(%parts);
        skip "$name: $1", 2 if !$ok && $output =~ /(invalid event type)/;

        conf('quic_passthrough', %parts);
        $t->start();
        works($name);
        works("$name, one socket", '--shared-socket');
        $t->stop();
    }
}

$t->done();
