#!/usr/bin/perl

# Reloads between quic_passthrough and the stock proxy_pass on one socket, and
# other ways to run: the accept mutex, other event methods.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Udp;

# client addresses enough to meet each socket of a "reuseport" listen
use constant ADDRESSES => 24;

my $t = QuicLB->new();
my $port = $t->port();

my %ids = (one => '0a', two => '0b');

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids], '--nonce-length', 7);

my $probe = udp_bind('127.0.0.1');
my $probe_address = '127.0.0.1:' . $probe->sockport;

sub conf {
    my ($how, %more) = @_;

    my $workers = $more{workers} // 2;
    my $reuseport = $workers > 1 ? 'reuseport' : '';

    $t->conf(%more, workers => $workers, stream => <<"CONF");
        upstream h3 {
            @{[$servers->lines(\%ids)]}
            server $probe_address down;

            quic_lb 0 {
                server_id_length 1;
                nonce_length 7;
                @{[$servers->id_lines(\%ids)]}
                server_id 0c $probe_address;
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

    # a while after the start, when nobody else can be reading the sockets
    my $set = $t->wait_for('socket options', sub {
        return !grep {
            !udp_read_as_one(udp_connect('127.0.0.1', $port), $probe,
                             "\x08\x0cnonce77")
        } 1 .. ADDRESSES;
    });
    ok($set, 'the options of all sockets are set');

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
