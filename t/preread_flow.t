#!/usr/bin/perl

# quic_preread and the connections of one address: each goes where its
# ClientHello asks for, the others stay where they are; and what is done when
# one of them fails.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Dns;
use QuicLB::Hello;
use QuicLB::Packet qw/initial zero_rtt retry handshake long short/;
use QuicLB::Udp;

# docs: connections of an address that wait
use constant CONNECTIONS => 16;

# octets of a ClientHello in two datagrams
use constant SIZE => 2000;

my $t = QuicLB->new();
my ($port, $stock, $limited, $virtual, $unlimited, $stats, $dns_port)
    = map { $t->port() } 1 .. 7;

my $dns = udp_bind('127.0.0.1', $dns_port);
my %backends = map { ($_ => udp_bind('127.0.0.1')) } qw/a b d x/;
my %addresses = map { ($_ => '127.0.0.1:' . $backends{$_}->sockport) }
                    keys %backends;
my %ids = (a => '0a', b => '0b', d => '0d');

my $upstreams = join '', map { <<"CONF" } sort keys %ids;
    upstream $_ {
        server $addresses{$_} max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 6;
            server_id $ids{$_} $addresses{$_};
        }
    }

    upstream stock_$_ {
        server $addresses{$_} max_fails=0;
    }
CONF

$t->conf(stream => <<"CONF");
    log_format hello '\$quic_preread_server_name|\$set_before|\$to|'
                     '\$upstream_addr';

    access_log @{[$t->path('access.log')]} hello;

    resolver 127.0.0.1:$dns_port ipv6=off;
    limit_conn_zone \$binary_remote_addr zone=one:32k;
    limit_conn_zone \$server_port zone=default:32k;
    limit_conn_zone \$server_addr zone=named:32k;

    $upstreams

    map \$quic_preread_server_name \$to {
        a.example.com a;
        b.example.com b;
        x.example.com $addresses{x};
        slow.example.com slow.example:@{[$backends{x}->sockport]};
        none.example.com 'no target';
        default d;
    }

    map \$quic_preread_server_name \$stock {
        a.example.com stock_a;
        b.example.com stock_b;
        default stock_d;
    }

    map \$quic_preread_server_name \$bind {
        bad.example.com nonsense;
        default 127.0.0.1;
    }

    quic_preread on;
    quic_preread_timeout 60s;

    server {
        listen 127.0.0.1:$port udp;
        set \$set_before set;
        quic_passthrough \$to;
        quic_passthrough_bind \$bind;
    }

    server {
        listen 127.0.0.1:$stock udp;
        quic_passthrough \$stock;
    }

    server {
        listen 127.0.0.1:$limited udp;
        quic_passthrough \$to;
        limit_conn one 1;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        quic_passthrough d;
        limit_conn default 1;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        server_name a.example.com;
        quic_passthrough a;
    }

    server {
        listen 127.0.0.1:$virtual udp;
        server_name b.example.com;
        quic_passthrough b;
        limit_conn named 100;
    }

    server {
        listen 127.0.0.1:$unlimited udp;
        quic_passthrough d;
        limit_conn named 100;
    }

    server {
        listen 127.0.0.1:$unlimited udp;
        server_name b.example.com;
        quic_passthrough b;
        limit_conn named 1;
    }

    server {
        listen 127.0.0.1:$unlimited udp;
        server_name a.example.com;
        quic_passthrough a;
    }

    @{[$t->counters_server($stats, qw/received hellos unread overload
                                      refused flows/)]}
CONF

$t->start();

my $hello = QuicLB::Hello->new($t);
my ($client, $connections);


sub cid {
    return pack 'C C a6', 0x00, 0xff, sprintf '%06d', ++$connections;
}


sub fresh {
    return $client = udp_connect('127.0.0.1', shift // $port);
}


sub halves {
    my ($name, $dcid, $scid) = @_;

    return $hello->datagrams(sni => "$name.example.com", size => SIZE,
                             dcid => $dcid, scid => $scid,
                             datagrams => [map { [{ frames => [$_] }] }
                                           [0, 1000], [1000, SIZE - 1000]]);
}


sub send_all {
    $client->send($_) for @_;
}


sub arrive {
    my ($name, $what, @datagrams) = @_;
    my @got = map { udp_receive($backends{$name}) } @datagrams;

    is_deeply([map { unpack 'H*', $_ // '' } @got],
              [map { unpack 'H*', $_ } @datagrams], $what);

    my %extra = map { ($_ => defined udp_receive($backends{$_}, 0)) }
                    keys %backends;
    is_deeply([grep { $extra{$_} } sort keys %extra], [],
              'and nothing comes to another server');
}


# a packet that only the server's connection ID routes

sub go_on {
    my ($name, $id) = @_;
    my $datagram = short(pack('H*', "00$ids{$id}") . 'nonce6', 'x' x 30);

    send_all($datagram);
    arrive($name, "the connection of $id goes on", $datagram);
}


# one after the other

fresh();
my @first = halves('a', cid(), 'client01');
send_all(@first);
arrive('a', 'the first connection', @first);
go_on('a', 'a');

my @second = halves('b', cid(), 'client02');
send_all($second[0]);
go_on('a', 'a');
send_all($second[1]);
arrive('b', 'a second one, with another name', @second);
go_on('a', 'a');
go_on('b', 'b');

send_all($first[1]);
arrive('a', 'a packet of the first one, again', $first[1]);
send_all(reverse @second);
arrive('b', 'and of the second', reverse @second);

my @third = $hello->datagrams(dcid => cid(), scid => 'client03');
send_all(@third);
arrive('d', 'one without a name', @third);
go_on('a', 'a');

# a connection is the pair of IDs: another one with the same ID of the client

my @again = halves('b', cid(), 'client01');
send_all(@again);
arrive('b', 'an equal client ID: the server of its own name', @again);
send_all(@first);
arrive('a', 'an equal client ID: the first connection stays', @first);


# several at a time, and clients without connection IDs

fresh();
my @mixed = map { [$_, halves($_, cid(), '')] } qw/a b d a b/;

send_all(map { $_->[1] } @mixed);
for my $connection (reverse @mixed) {
    my ($name, @datagrams) = @$connection;

    send_all($datagrams[1]);
    arrive($name, "of several that wait: $name", @datagrams);
}

for my $connection (@mixed) {
    my ($name, @datagrams) = @$connection;

    send_all($datagrams[0]);
    arrive($name, 'their packets are known by the first connection ID',
           $datagrams[0]);
}


# more of them than may wait

my $before = $t->counters($stats);

fresh();
my @waiting = map { [halves('a', cid(), sprintf 'client%02d', $_)] }
                  0 .. CONNECTIONS;

send_all(map { $_->[0] } @waiting);
$t->wait_for('one too many', sub {
    $t->counters($stats)->{overload} > $before->{overload};
});
send_all(map { $_->[1] } @waiting[1 .. CONNECTIONS - 1]);
arrive('a', 'those that may wait are read',
       map { @$_ } @waiting[1 .. CONNECTIONS - 1]);
send_all($waiting[CONNECTIONS][0], $waiting[CONNECTIONS][1]);
arrive('a', 'the other one when it comes again', @{ $waiting[CONNECTIONS] });
send_all($waiting[0][1]);
arrive('a', 'and the first one', @{ $waiting[0] });


# addresses, and such that have to be looked up

fresh();
my @to_x = halves('x', cid(), 'client20');
send_all(@to_x);
arrive('x', 'an address', @to_x);

my @to_a = halves('a', cid(), 'client21');
send_all(@to_a);
arrive('a', 'then an upstream', @to_a);

my @slow = halves('slow', cid(), 'client22');
send_all(@slow);
go_on('a', 'a');

my @meanwhile = halves('b', cid(), 'client23');
send_all(@meanwhile);

$t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') });
is_deeply([map { udp_receive($backends{x}) } @slow], \@slow,
          'a name that was looked up');
is_deeply([map { udp_receive($backends{b}) } @meanwhile], \@meanwhile,
          'and what has come meanwhile');

send_all($to_x[0]);
arrive('x', 'the first one is where it was', $to_x[0]);


# what fails costs the connection, and not the others

fresh();
@first = halves('a', cid(), 'client30');
send_all(@first);
arrive('a', 'a connection', @first);

for my $name (qw/none bad/) {
    $before = $t->counters($stats);

    send_all(halves($name, cid(), "client31$name"));
    $t->wait_for("refused: $name", sub {
        $t->counters($stats)->{refused} >= $before->{refused} + 2;
    });
    go_on('a', 'a');

    @second = halves('b', cid(), "client32$name");
    send_all(@second);
    arrive('b', 'another connection', @second);
    go_on('a', 'a');
}

fresh();
$before = $t->counters($stats);
send_all(halves('none', cid(), 'client33'));
$t->wait_for('refused', sub {
    $t->counters($stats)->{refused} >= $before->{refused} + 2;
});
send_all(halves('a', cid(), 'client34'));
$t->wait_for('the flow is', sub {
    $t->counters($stats)->{refused} >= $before->{refused} + 4;
});
arrive('a', 'a flow whose first connection fails is refused');


# what does not decrypt changes nothing

fresh();
my ($bare) = $hello->datagrams(sni => 'b.example.com', dcid => cid(),
                               scid => 'client36');
@first = $hello->datagrams(sni => 'a.example.com', alpn => ['garbage'],
                           dcid => cid(), scid => 'client35');
send_all(@first);
arrive('a', 'a connection', @first);

my $garbage = initial(cid(), 'client37');
send_all($garbage);
arrive('a', 'an Initial that does not decrypt, to the upstream of the flow',
       $garbage);
send_all($bare);
arrive('b', 'and one that does', $bare);


# a flow that begins with a packet of an established connection

fresh();
go_on('a', 'a');
@second = halves('b', cid(), 'client40');
send_all(@second);
arrive('b', 'a new connection on a flow of an established one', @second);
go_on('a', 'a');

# limit_conn is made up for

my $taken = fresh($limited);
@first = halves('a', cid(), 'client41');
send_all(@first);
arrive('a', 'the connection that is allowed', @first);

fresh($limited);
go_on('a', 'a');
$before = $t->counters($stats);
send_all(halves('b', cid(), 'client42'));
$t->wait_for('limited', sub {
    $t->counters($stats)->{refused} >= $before->{refused} + 2;
});
go_on('a', 'a');


# of the default server: the phase comes before the name is known

$taken = fresh($virtual);
@first = halves('a', cid(), 'client43');
send_all(@first);
arrive('a', 'virtual servers: the connection that is allowed', @first);

fresh($virtual);
go_on('a', 'a');
$before = $t->counters($stats);
send_all(halves('b', cid(), 'client44'));
$t->wait_for('virtual servers: limited by the default one', sub {
    $t->counters($stats)->{refused} >= $before->{refused} + 2;
});
go_on('a', 'a');

for my $begins (qw/established new/) {
    fresh($unlimited);
    go_on('a', 'a') if $begins eq 'established';
    @second = halves('b', cid(), "client45$begins");
    send_all(@second);
    arrive('b', "virtual servers: no limit of the named one, $begins",
           @second);
}


# the answers of a server

fresh();
@first = halves('a', cid(), '');
send_all(@first);

my $leg = $backends{a};
is_deeply([udp_receive($leg), udp_receive($leg)], \@first,
          'a client without a connection ID');

$leg->send(retry('', 'retried1', payload => 'token' x 5));
ok(defined udp_receive($client), 'gets a Retry');

my @retried = $hello->datagrams(sni => 'a.example.com', dcid => 'retried1',
                                datagrams => [[{ frames => [[0, 100]],
                                                 token => 'aa' x 8 }]]);
send_all(@retried);
arrive('a', 'and goes on with the same server, which is not read again',
       @retried);

# an address that is new to the worker: the keys follow from the Retry

fresh();
@retried = halves('b', 'retried2', 'client50');
send_all(@retried);
arrive('b', 'a connection after a Retry, from another address', @retried);


# stock balancers are asked for each connection

fresh($stock);
for my $name (qw/a b d a/) {
    my @datagrams = halves($name, cid(), "client6$name");
    send_all(@datagrams);
    arrive($name, "a stock balancer: $name", @datagrams);
    send_all($datagrams[0]);
    arrive($name, 'again', $datagrams[0]);
}


ok($t->stop(), 'nginx ends');
cmp_ok($t->access_count(qr/^none\.example\.com\|set\|/), '==', 1,
       'a refused flow has the variables of its ClientHello');
cmp_ok($t->access_count(qr/^b\.example\.com\|set\|b\|
                           \Q$addresses{a}, $addresses{b}\E/x), '>=', 1,
       'others those of the last one, and what was set before');

$t->done();
