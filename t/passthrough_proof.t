#!/usr/bin/perl

# What proves a client's address, and what does not: whoever forges an address
# knows no connection ID that a server has sent there, and so never gets a flow
# that others do not make go.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use IO::Select;
use Time::HiRes qw/time/;

use QuicLB;
use QuicLB::Packet qw/initial handshake retry negotiation long short/;
use QuicLB::Udp;

# of a worker; half of the connections are in half-open flows at most
use constant { CONNECTIONS => 128, HALF_OPEN => 128 / 4, FOREIGN => 128 / 32 };

# docs: rounds that make a flow a sustained one
use constant ROUNDS => 4;

my $t = QuicLB->new();
my ($port, $on, $adaptive, $stats) = map { $t->port() } 1 .. 4;

my $backend = udp_bind('127.0.0.1');
my $address = '127.0.0.1:' . $backend->sockport;

my $key = $t->write('host.key', 'a key of the servers and of the balancer');
chmod 0600, $key;

sub conf {
    $t->conf(connections => CONNECTIONS, stream => <<"CONF");
    upstream lb {
        server $address max_fails=0;

        quic_lb 0 {
            server_id_length 1;
            nonce_length 7;
            server_id aa $address;
        }
    }

    quic_passthrough_retry_key $key;

    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough lb;
        quic_passthrough_retry off;
    }

    server {
        listen 127.0.0.1:$on udp;
        quic_passthrough lb;
        quic_passthrough_retry on;
    }

    server {
        listen 127.0.0.1:$adaptive udp;
        quic_passthrough lb;
        quic_passthrough_retry adaptive threshold=20;
    }

    @{[ $t->counters_server($stats, qw/flows overload evicted received
                                       retry_dropped retry_sent/) ]}
CONF
}

my $made = 0;


# datagrams by which a forged flow begins, and what servers answer them by:
# [port, datagram, answer]

sub nonce {
    return sprintf '%07d', ++$made;
}

my %kinds = (
    'Initial' => sub {
        return ($port, initial('chosen' . nonce(), 'client'),
                initial('client', "\x08\xaa" . nonce()));
    },
    'Initial, the server echoes its ID' => sub {
        my $dcid = 'chosen' . nonce();
        return ($port, initial($dcid, 'client'), initial('client', $dcid));
    },
    'Initial, the server echoes the datagram' => sub {
        my $datagram = initial('chosen' . nonce(), 'client' . nonce());
        return ($port, $datagram, $datagram);
    },
    'Initial, a Retry of the server' => sub {
        return ($port, initial('chosen' . nonce(), 'client'),
                retry('client', "\x08\xaa" . nonce(), payload => 'x' x 30));
    },
    'version, negotiated' => sub {
        my $dcid = 'chosen' . nonce();
        return ($port, long(0x1a2a3a4a, $dcid, 'client'),
                negotiation('client', $dcid));
    },
    'version, Retry on' => sub {
        my $dcid = 'chosen' . nonce();
        return ($on, long(0x1a2a3a4a, $dcid, 'client'),
                negotiation('client', $dcid));
    },
    'version, answered' => sub {
        return ($port, long(0x1a2a3a4a, 'chosen' . nonce(), 'client'),
                long(0x1a2a3a4a, 'client', "\x08\xaa" . nonce()));
    },
    'short header' => sub {
        return ($port, short("\x08\xaa" . nonce(), 'x' x 30),
                short('reset', 'x' x 30));
    },
    'short header, Retry on' => sub {
        return ($on, short("\x08\xaa" . nonce(), 'x' x 30),
                short('reset', 'x' x 30));
    },
    'Handshake packet' => sub {
        my $dcid = "\x08\xaa" . nonce();
        return ($port, handshake($dcid, 'client'),
                handshake('client', $dcid));
    },
);

for my $kind (sort keys %kinds) {
    conf();
    $t->start();
    udp_drain($backend);

    # as many as there are connections, each sends twice
    for (1 .. CONNECTIONS) {
        my ($to, $datagram, $answer) = $kinds{$kind}->();
        my $forged = client($to);

        my $from = arrives($forged, $datagram, 3) or next;
        $backend->send($answer, 0, $from);
        udp_receive($forged);
        arrives($forged, $datagram, 3);
    }

    my $got = grep { handshake_of(client($port)) } 1 .. 5;
    is($got, 5, "$kind, twice: new clients get in");

    is($t->log_count(qr/no connections or open files left/), 0,
       "$kind, twice: there was room");

    $t->stop('TERM');
}


# what proves it

my %proofs = (
    'the ID of an Initial' => sub {
        my ($client) = @_;
        return handshake_of($client);
    },
    'the ID of a Retry' => sub {
        my ($client) = @_;
        return handshake_of($client,
                            retry('client', "\x08\xaaretried", payload => 'x'),
                            initial("\x08\xaaretried", 'client'));
    },
    'the ID of an unknown version' => sub {
        my ($client) = @_;
        return handshake_of($client,
                            long(0x1a2a3a4a, 'client', "\x08\xaaunknown"),
                            long(0x1a2a3a4a, "\x08\xaaunknown", 'client'),
                            long(0x1a2a3a4a, 'first', 'client'));
    },
    'the ID of a connection on a flow that began with another' => sub {
        my ($client) = @_;
        arrives($client, short("\x08\xaaothers!", 'x' x 30)) or return 0;
        return handshake_of($client);
    },
);

conf();
$t->start();
udp_drain($backend);

my @proven = map { my $client = client($port); $proofs{$_}->($client)
                   ? [$_, $client] : () } sort keys %proofs;
is(scalar(@proven), scalar(keys %proofs), 'proofs: handshakes');

my $evicted = $t->counters($stats)->{evicted};

arrives(client($port), initial('flood' . nonce(), 'client'))
    for 1 .. 2 * HALF_OPEN;

$t->wait_for('flows that make room', sub {
    arrives(client($port), initial('flood' . nonce(), 'client'), 1);
    $t->counters($stats)->{evicted} > $evicted + HALF_OPEN;
});

ok(kept($_->[1], short("\x08\xaa" . nonce(), 'x' x 30)), "proof: $_->[0]")
    for @proven;

$t->stop('TERM');


# flows that began inside a connection make room first, and of these the ones
# that have gone on for a while last

conf();
$t->start();
udp_drain($backend);

my $sustained = client($port);
my $id = "\x08\xaasustain";
my $same = arrives($sustained, short($id, 'x'));
my $idle = client($port);
arrives($idle, short("\x08\xaaidle...", 'x'));

for (1 .. ROUNDS) {
    my $since = time();

    # a round takes some time
    $t->wait_for('time', sub { time() - $since > 0.55 });
    $backend->send(short('client', 'answer'), 0, $same);
    udp_receive($sustained);
    arrives($sustained, short($id, 'x'));
}

my @half_open = map { [client($port), initial('half' . nonce(), 'client')] }
                    1 .. HALF_OPEN / 2;
is(scalar(grep { arrives(@$_) } @half_open), HALF_OPEN / 2,
   'half-open flows');

arrives(client($port), short("\x08\xaa" . nonce(), 'x'), 1)
    for 1 .. CONNECTIONS;

cmp_ok($t->counters($stats)->{evicted}, '>', 0, 'presumed: some made room');
is(scalar(grep { kept(@$_) } @half_open), HALF_OPEN / 2,
   'presumed: not at the cost of half-open ones');
ok(kept($sustained, short($id, 'x')), 'presumed: the sustained one stays');
ok(!kept($idle, short("\x08\xaaidle...", 'x')),
   'presumed: the oldest went first');

$evicted = $t->counters($stats)->{evicted};
$t->wait_for('half-open ones make room', sub {
    arrives(client($port), initial('more' . nonce(), 'client'), 1);
    $t->counters($stats)->{evicted} > $evicted + CONNECTIONS;
});
ok(kept($sustained, short($id, 'x')),
   'sustained: stays in a flood of Initials');

$t->stop('TERM');


# a flow of an unknown version does not let Initials past Retry

conf();
$t->start();
udp_drain($backend);

my $client = client($on);
ok(arrives($client, long(0x1a2a3a4a, 'version1', 'client')),
   'Retry on: an unknown version');
my $before = $t->counters($stats);
$client->send(initial('aninitial', 'client'));
$t->wait_for('the Initial', sub {
    $t->counters($stats)->{retry_dropped} > $before->{retry_dropped};
});

# nor does a Handshake packet in front of one
$before = $t->counters($stats);
client($on)->send(handshake("\x08\xaafront..", 'client')
                  . initial("\x08\xaafront..", 'client'));
$t->wait_for('the Initial behind', sub {
    $t->counters($stats)->{retry_dropped} > $before->{retry_dropped};
});
ok(!defined udp_receive($backend, 0), 'Retry on: no Initial without a token');


# "adaptive" counts them, but for those that a reload may make

my $is_on = qr/unproven QUIC flows: Retry is on/;

adaptive();
client($adaptive)->send(long(0x1a2a3a4a, 'v' . nonce(), 'client')) for 1 .. 30;
ok(begins(), 'adaptive: a flood of unknown versions');

adaptive();
client($adaptive)->send(short("\x08\xaa" . nonce(), 'x')) for 1 .. 30;
ok(!begins(), 'adaptive: short headers that find room are no flood');
client($adaptive)->send(short("\x08\xaa" . nonce(), 'x')) for 1 .. 200;
ok(begins(), 'adaptive: those that find none are one');

$t->done();


sub client {
    my ($to) = @_;

    return udp_connect('127.0.0.1', $to);
}


# a new instance, in which nothing has happened yet

sub adaptive {
    $t->stop('TERM');
    $t->write('error.log', '');
    conf();
    $t->start();
}


# whether a few new clients find Retry on; they are no flood themselves

sub begins {
    my $before = $t->counters($stats)->{received};

    client($adaptive)->send(initial('dcid' . nonce(), 'client')) for 1 .. 5;

    $t->wait_for('new clients', sub {
        $t->counters($stats)->{received} >= $before + 5;
    });

    return $t->log_count($is_on);
}


# where the server gets a client's datagram from, which comes again, as those of
# a client do, if it had to be dropped: up to this many times

sub arrives {
    my ($client, $datagram, $times) = @_;

    for (1 .. $times // 100) {
        $client->send($datagram);

        while (IO::Select->new($backend)->can_read(0.1)) {
            my $from = $backend->recv(my $got, 2048);
            return $from if $got eq $datagram;
        }
    }

    return undef;
}


# whether a client's handshake comes as far as to prove its address

sub handshake_of {
    my ($client, $answer, $proof, $first) = @_;
    my $id = "\x08\xaa" . nonce();

    $first //= initial('first' . nonce(), 'client');
    $answer //= initial('client', $id);
    $proof //= handshake($id, 'client');

    my $from = arrives($client, $first) or return 0;
    $backend->send($answer, 0, $from);
    (udp_receive($client) // '') eq $answer or return 0;

    return defined arrives($client, $proof);
}


# whether a client still has its flow

sub kept {
    my ($client, $datagram) = @_;
    my $flows = $t->counters($stats)->{flows};

    return defined arrives($client, $datagram)
           && $t->counters($stats)->{flows} == $flows;
}
