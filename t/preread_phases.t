#!/usr/bin/perl

# quic_preread, a handler that fails in nginx's phases: for the first connection
# of a flow the flow is refused, for a further one only this connection.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Hello;
use QuicLB::Packet qw/short/;
use QuicLB::Udp;

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;

my $backend = udp_bind('127.0.0.1');
my $address = '127.0.0.1:' . $backend->sockport;

# matching the name that fails takes more steps than PCRE makes
my $fails = 'a' x 40 . 'b.example.com';

$t->conf(stream => <<"CONF");
    log_format status '\$quic_preread_server_name|\$status|\$upstream_addr';

    access_log @{[$t->path('access.log')]} status;

    upstream a {
        server $address max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 6;
            server_id 0a $address;
        }
    }

    quic_preread on;

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough a;
    }

    server {
        listen 127.0.0.1:$port udp;
        server_name ~^(a+)+\\.example\\.com\$;
        quic_passthrough a;
    }

    @{[$t->counters_server($stats, qw/hellos refused flows/)]}
CONF

$t->start();
$t->expect_log(qr/pcre2?_\w+\(\) failed: -?\d+ on "\Q$fails\E"/);

my $hello = QuicLB::Hello->new($t);
my $connections = 0;
my $more = short("\x00\x0anonce6", 'x' x 30);


sub first {
    my ($name) = @_;

    return $hello->datagrams(sni => $name,
                             dcid => sprintf('dcid%06d', ++$connections),
                             scid => sprintf('scid%06d', $connections));
}


sub begins {
    my ($client, $what) = @_;
    my ($begin) = first('b.example.com');

    $client->send($begin);
    is(udp_receive($backend, 10), $begin, $what);
}


sub refused {
    my ($client) = @_;
    my $before = $t->counters($stats)->{refused};

    $client->send(first($fails));
    $t->wait_for('refused', sub {
        $t->counters($stats)->{refused} > $before;
    });
}


my $client = udp_connect('127.0.0.1', $port);
begins($client, 'a connection');

for my $round (1 .. 2) {
    refused($client);
    $client->send($more);
    is(udp_receive($backend, 10), $more, 'it goes on when another one fails');
    begins($client, 'and so does a further one');
}

is($t->counters($stats)->{flows}, 1, 'all of them are of one flow');

my $other = udp_connect('127.0.0.1', $port);
refused($other);
$other->send(first('b.example.com'));
$t->wait_for('refused', sub { $t->counters($stats)->{refused} == 4 });
ok(!defined udp_receive($backend, 0), 'a first one that fails: the flow, too');

ok($t->stop(), 'nginx ends');
is($t->access_count(qr/^b\.example\.com\|200\|\Q$address\E$/), 1,
   'the line of the flow shows the last connection that was not refused');
is($t->access_count(qr/^\Q$fails\E\|500\|/), 1, 'that of a refused one does');
is($t->log_count(qr/\[info\].*connection of a QUIC flow is refused, status: 5/),
   2, 'the error log has the others');

$t->done();
