#!/usr/bin/perl

# Relays behind a balancer: clients that move keep their connections, by the
# relay's connection IDs through both.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

use constant CONNECTIONS => 50;

my ($t, $balancer) = map { QuicLB->new() } 1 .. 2;
my ($other, $front, $counters, $totals) = map { $t->port() } 1 .. 4;
my ($cert, $key) = $t->certificate();

for my $tier ($t, $balancer) {
    chmod 0600, $tier->write('lb.key', '8f95f09245765f80256934e50c66207f');
}

# two relays, as two machines would be

my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
    parts => { workers => 4 },
    server => server_id('0a01'),
    stream => counters('quic_relay_total', $totals, 'handed_over',
                       'stateless_resets'));

my $text = $t->read('nginx.conf');
my ($server) = $text =~ /(^ {4}server \{\n +listen [^\n]* udp .*?^ {4}\})/ms;
my $copy = $server =~ s/listen \S+/listen 127.0.0.1:$other/r
                   =~ s/id=0a01/id=0a02/r;
$text =~ s/\Q$server\E/$server\n$copy/;
$t->write('nginx.conf', $text);

$balancer->conf(workers => 4, stream => <<"CONF");
    @{[ counters('quic_passthrough', $counters, 'no_backend', 'unroutable') ]}

    upstream relays {
        server 127.0.0.1:$relay->{port};
        server 127.0.0.1:$other;

        quic_lb 2 {
            server_id_length 2;
            nonce_length 8;
            key_file @{[ $balancer->path('lb.key') ]};
            server_id 0a01 127.0.0.1:$relay->{port};
            server_id 0a02 127.0.0.1:$other;
            length_self_description on;
        }
    }

    log_format routed '\$quic_routed_by \$quic_config_id \$quic_server_id';
    access_log @{[ $balancer->path('access.log') ]} routed;

    server {
        listen 127.0.0.1:$front udp reuseport;
        quic_passthrough relays;
        quic_passthrough_timeout 5s;
    }
CONF

$t->start();
$balancer->start();

# clients know the balancer

$relay->{port} = $front;

my $report = $relay->ends('moves', CONNECTIONS, 3, 60_000);

is_deeply($report->{failed}, [], CONNECTIONS . ' connections migrate')
    or diag($report->{error});

my $total = $t->counters($totals);

cmp_ok($total->{handed_over}, '>', 0, 'to other workers of the relay');
is($total->{stateless_resets}, 0, 'and none of them says no');

# a reload of the balancer is a rebinding to the relay: see move() in
# relay_workers.py for why clients do not move then

$report = $relay->ends_with(sub {
    ok($t->reload(), 'a reload of the relay');
    ok($balancer->reload(), 'and of the balancer');
}, 'hold', 8, 'still');

is_deeply($report->{failed}, [], 'reloads: nothing is lost')
    or diag($report->{error});
is_deeply($report->{new}, [], 'and new clients are served');

is_deeply($balancer->counters($counters),
          { no_backend => 0, unroutable => 0 },
          'the balancer knew a relay for each datagram');

ok($balancer->stop('QUIT'), 'the balancer ends');

for my $id ('0a01', '0a02') {
    cmp_ok($balancer->access_count(qr/^server_id 2 $id$/), '>', 0,
           "clients that moved were routed by the server ID $id");
}

$balancer->check();
$t->done();


sub server_id {
    my ($id) = @_;
    my $file = $t->path('lb.key');

    return "quic_relay_server_id config_id=2 id=$id nonce_length=8
            key_file=$file;";
}


sub counters {
    my ($prefix, $port, @names) = @_;
    my $text = join ' ', map { "$_ \$${prefix}_$_" } @names;

    return "server { listen 127.0.0.1:$port; access_log off;
            return '$text'; }";
}
