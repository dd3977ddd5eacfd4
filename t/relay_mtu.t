#!/usr/bin/perl

# A path that takes less than ngtcp2 would like to send: nothing is fragmented
# (RFC 9000, 14), and what is too long for it ends no transfer.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# octets of the path, less than ngtcp2 tries; of a transfer, and the seconds in
# which it is done, unless most of it is lost
use constant { MTU => 1400, SIZE => 2_000_000, PATIENCE => 30 };

my $t = QuicLB->new();
my $net = QuicLB::Net->new($t, 'path');

$net->ip('path', 'link set lo mtu ' . MTU);

for my $upstream ('127.0.0.1', '[::1]') {
    my $relay = QuicLB::Relay->new($t);
    my $port = $relay->{upstream};

    # the ends are on IPv4: to go over IPv6 it takes another relay
    if ($upstream ne '127.0.0.1') {
        my ($cert, $key) = $t->certificate();
        my $between = $t->port();

        $relay = QuicLB::Relay->new($t, target => "$upstream:$between",
                                    stream => <<"CONF");
    server {
        listen $upstream:$between udp;
        ssl_certificate $cert;
        ssl_certificate_key $key;
        quic_relay 127.0.0.1:$port;
        quic_relay_ssl_name localhost;
        quic_relay_ssl_trusted_certificate $cert;
    }
CONF
        $relay->{upstream} = $port;
    }

    $net->in('path', sub { $t->start() });

    my $before = fragments();
    my $began = time;
    my $report = $net->in('path', sub { $relay->ends('moves', 1, 0, SIZE) });

    is_deeply($report->{failed}, [], "$upstream: a connection")
        or diag($report->{error});
    cmp_ok(time - $began, '<', PATIENCE, "$upstream: in time");
    is(fragments() - $before, 0, "$upstream: nothing was fragmented");

    $net->in('path', sub { ok($t->stop('QUIT'), "$upstream: nginx ends") });
}

$t->done();


# made in the namespace so far, by both versions of IP

sub fragments {
    return $net->in('path', sub {
        $t->run('fragments', 'sh', '-c',
                'cat /proc/self/net/snmp /proc/self/net/snmp6');

        my $text = $t->read('fragments.out');
        my ($names, $values) = $text =~ /^Ip: (.*)\nIp: (.*)$/m;
        my %ip;

        @ip{split ' ', $names} = split ' ', $values;

        return $ip{FragCreates} + ($text =~ /^Ip6FragCreates\s+(\d+)/m)[0];
    });
}
