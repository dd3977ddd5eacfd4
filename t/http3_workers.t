#!/usr/bin/perl

# Reload to as many workers, fewer and more, with "quic_bpf" off and on: what is
# admitted completes, and new clients are served.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

use constant CLIENTS => 8;

my $t = QuicLB->new();
my $port = $t->port();

$t->write('slow', 'x' x 1000000);

sub conf {
    my ($bpf, $workers, $name) = @_;

    $t->conf(workers => $workers, main => "quic_bpf $bpf;", http => <<"CONF");
        access_log off;

        server {
            @{[listen_lines($t, $port)]}
            root @{[$t->path('')]};

            location / {
                return 200 "$name\\n";
            }

            location /slow {
                limit_rate 250k;
            }
        }
CONF
}

sub reload {
    my ($bpf, $workers, $name) = @_;

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

    conf($bpf, $workers, $name);
    ok($t->reload(), "quic_bpf $bpf: $name");

    my @connections = map { $_->report()->{connections}[0] } @clients;

    is(scalar(grep { ((streams($_))[0] // {})->{length} == 1000000 }
                   @connections),
       CLIENTS, "$name: all downloads complete");
    is(scalar(grep { ($_->{close}{code} // 0) == H3_NO_ERROR
                     && $_->{close}{app} } @connections),
       CLIENTS, "$name: H3_NO_ERROR for all");

    $t->wait_for('old workers to leave',
                 sub { $t->leaving_workers() == 0 });

    my %names;

    for (1 .. 5) {
        my ($code, $output) = $t->curl('--http3-only', '--max-time', 20,
                                       "https://localhost:$port/");
        $names{ $code ? "error $code" : $output =~ s/\n//r }++;
    }

    is(join(' ', %names), "$name 5", "$name: new clients are served");
}

conf('off', 2, 'first');
$t->start();

reload('off', 2, 'as many');
reload('off', 1, 'fewer');
reload('off', 3, 'more');

$t->stop();
conf('on', 2, 'first');
$t->start();

SKIP: {
    skip 'the system does not let nginx use BPF', 12
        if $t->log_count(qr/quic bpf .*failed/);

    reload('on', 2, 'as many');
    reload('on', 1, 'fewer');
    reload('on', 3, 'more');
}

$t->done();
