#!/usr/bin/perl

# A router that gives each datagram to another of two balancers, as multipath
# routes do when their hash or their next hops change: a ClientHello of two
# datagrams meets both.  Without quic_preread both balancers send it to the same
# server; with it each waits for what the other has, and the connection is made
# all the same, at the server that the name asks for or at the default one.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;

use constant { CONNECTIONS => 10, CURLS => 3 };

my $t = QuicLB->new();
my @balancers = map { QuicLB->new() } 1 .. 2;

my $net = QuicLB::Net->new($t, qw/client router one two backend/);

$net->link('client', '10.0.1.1/24', 'router', '10.0.1.2/24');

my %subnet = (one => 11, two => 12);

for my $name (sort keys %subnet) {
    $net->link($name, "10.0.$subnet{$name}.1/24",
               'router', "10.0.$subnet{$name}.2/24");
    $net->ip($name, 'address add 10.9.9.9/32 dev lo');
    $net->ip($name, "route add default via 10.0.$subnet{$name}.2");
}

$net->link('backend', '10.0.2.1/24', 'router', '10.0.2.2/24');
$net->ip($_->[0], "route add default via $_->[1]")
    for ['client', '10.0.1.2'], ['backend', '10.0.2.2'];

$net->sysctl('router', 'net.ipv4.ip_forward=1');
$net->sysctl('router', "net.ipv4.conf.$_.rp_filter=0") for qw/all default/;

my ($port, $named) = map { $t->port() } 1 .. 2;

# each datagram of the service takes the other way than the one before
$net->run('router', 'nft', <<"NFT");
table ip spray {
    chain pre {
        type filter hook prerouting priority -150;
        ip daddr 10.9.9.9 meta mark set numgen inc mod 2 offset 1
    }
}
NFT

$net->ip('router', $_) for
    'rule add fwmark 1 table 101', 'rule add fwmark 2 table 102',
    'route add 10.9.9.9 via 10.0.11.1 table 101',
    'route add 10.9.9.9 via 10.0.12.1 table 102';

my %ids = (a1 => '0a', a2 => '0b', a3 => '0c', d => '0d');

my $servers = $net->in('backend', sub {
    $t->servers([map { [$_, '10.0.2.1:0', $ids{$_}] } sort keys %ids]);
});

for my $i (0, 1) {
    $balancers[$i]->conf(workers => 2, stream => <<"CONF");
    @{[upstream('a', qw/a1 a2 a3/)]}
    @{[upstream('d', 'd')]}

    quic_passthrough_timeout 5s;

    server {
        listen 10.9.9.9:$port udp reuseport;
        quic_passthrough a;
    }

    server {
        listen 10.9.9.9:$named udp reuseport;
        quic_preread on;
        quic_preread_timeout 1s;
        quic_passthrough d;
    }

    server {
        listen 10.9.9.9:$named udp;
        server_name a.example.com;
        quic_preread on;
        quic_passthrough a;
    }
CONF
    $net->in((qw/one two/)[$i], sub { $balancers[$i]->start() });
}


for my $case (['no quic_preread', $port, qr/^a[123]$/],
              ['quic_preread', $named, qr/^(?:a[123]|d)$/])
{
    my ($name, $to, $server) = @$case;

    my $report = $net->in('client', sub {
        $t->client('--connect', "10.9.9.9:$to", '--sni', 'a.example.com',
                   '--connections', CONNECTIONS, 'run', 'get:/name',
                   'transfer:60000:rebind:migrate', 'get:/name');
    });

    is($report->{failed}, 0, "$name: aioquic") or $t->explain($report);
    note(join ' ', map { $_->{server} } @{ $report->{connections} });
    is(scalar(grep { $_->{server} =~ $server }
              @{ $report->{connections} }), CONNECTIONS,
       "$name: at servers that they may have");

    # its key makes the ClientHello two datagrams long

    my $served = 0;

    for (1 .. CURLS) {
        my ($status, $body) = $net->in('client', sub {
            $t->curl('--http3-only', '--connect-to', "::10.9.9.9:$to",
                     "https://a.example.com:$to/name");
        });
        note($body);
        $served++ if $status == 0 && $body =~ $server;
    }

    is($served, CURLS, "$name: curl");
    next if $to != $port;

    my ($met, $through) = seen();

    is(scalar(grep { keys %$_ > 1 } values %$met), 0,
       "$name: all Initials of a connection meet one server");
    cmp_ok(scalar(grep { keys %$_ > 1 } values %$through), '>=', CURLS,
           "$name: through both balancers");
}

$_->check() for @balancers;
$t->done();


sub upstream {
    my ($name, @own) = @_;
    my %own = map { ($_ => $ids{$_}) } @own;

    return <<"CONF";
    upstream $name {
        zone $name 256k;
        @{[$servers->lines(\%own)]}

        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            @{[$servers->id_lines(\%own)]}
        }
    }
CONF
}


# by connection, the servers that its Initials have met, and their balancers

sub seen {
    my (%servers, %balancers);

    for my $event ($servers->events(event => 'datagram', type => 'initial')) {
        my $connection = $event->{connection} // next;
        my ($balancer) = $event->{peer} =~ /^10\.0\.(1[12])\./ or next;

        $servers{$connection}{$event->{server}} = 1;
        $balancers{$connection}{$balancer} = 1;
    }

    return (\%servers, \%balancers);
}
