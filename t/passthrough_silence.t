#!/usr/bin/perl

# Silence is judged by what all workers, and health checks, have heard of a
# server: garbage of a few addresses takes none out that answers anybody.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial/;
use QuicLB::Udp;

use constant { WORKERS => 4, PORTS => 12 };

my $t = QuicLB->new();
my ($port, $asked, $failing) = map { $t->port() } 1 .. 3;

my $servers = $t->servers([['one', '127.0.0.1:0', '0a'],
                           ['two', '127.0.0.1:0', '0b']]);
my %address = map { $_ => $servers->address($_) } qw/one two/;

# reads nothing, and so is silent
my $mute = udp_bind('127.0.0.1');
my $mute_address = '127.0.0.1:' . $mute->sockport;

my $both = join "\n", map { "server $address{$_};" } qw/one two/;
my $lb = 'quic_lb 0 { server_id_length 1; nonce_length 7; '
         . "server_id 0a $address{one}; server_id 0b $address{two};"
         . ' }';

$t->conf(workers => WORKERS, stream => <<"CONF");
    log_format flow '\$server_port \$remote_addr \$upstream_addr';
    access_log @{[ $t->path('access.log') ]} flow;

    upstream heard { zone heard 256k; $both $lb }
    upstream asked {
        zone asked 256k; $both $lb
        quic_health_check interval=100ms;
    }
    upstream failing {
        zone failing 256k;
        server $mute_address;
        server $address{one};
        quic_lb 0 { server_id_length 1; nonce_length 7;
                    server_id 0a $address{one};
                    server_id 0c $mute_address; }
    }

    quic_passthrough_timeout 1s;

    server { listen 127.0.0.1:$port udp reuseport; quic_passthrough heard; }
    server { listen 127.0.0.1:$asked udp reuseport; quic_passthrough asked; }
    server { listen 127.0.0.1:$failing udp reuseport;
             quic_passthrough failing; }
CONF
$t->start();


# a connection of one worker shows that the server is alive

my $held = $t->client_start('--connect', "127.0.0.1:$port", '--dcid',
                            '000a01020304050607', 'hold');
is($held->ready()->{failed}, 0, 'a connection');

garbage($port, '0a');

is($t->log_count(qr/temporarily disabled/), 0,
   'a server that answers anybody is not disabled');

my $report = $held->stop_and_report();
is($report->{failed}, 0, 'and the connection goes on');


# nobody else has a connection, but the server answers questions

garbage($asked, '0a');
garbage($asked, '0b');

is($t->log_count(qr/temporarily disabled/), 0,
   'a server that health checks find alive is not disabled');


# it can be disabled

garbage($failing, '0c');

my $named = qr/server "\Q$mute_address\E" in upstream "failing"/;
ok($t->wait_log(qr/\[warn\].* temporarily disabled .*$named/),
   'a server that answers nobody is');

$t->done();


# what opens no connection, with the ID of a server, from three addresses and
# many ports, that all workers see; returns when its flows have ended

sub garbage {
    my ($to, $id) = @_;

    my $ended = $t->access_count(qr/^$to /);
    my @sockets;

    for my $host (2 .. 4) {
        for my $n (1 .. PORTS) {
            my $socket = udp_connect('127.0.0.1', $to, "127.0.0.$host");

            $socket->send(initial(pack 'H2 H2 N n x', '00', $id, $host, $n));
            push @sockets, $socket;
        }
    }

    $t->wait_for('flows to end', sub {
        return $t->access_count(qr/^$to /) >= $ended + @sockets;
    });
}
