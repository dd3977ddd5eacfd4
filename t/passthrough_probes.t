#!/usr/bin/perl

# An outer balancer that probes this one: its questions are answered by the
# servers, whatever else is set, and leave nothing behind; probes that are not
# QUIC are dropped.  And what two balancers have to say to each other when
# somebody forges the address of one of them: no answer calls forth another.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use Socket qw/AF_INET SOCK_RAW inet_aton pack_sockaddr_in/;

use QuicLB;
use QuicLB::Packet qw/retry negotiation short/;
use QuicLB::Udp;

# Linux: netinet/in.h
use constant { IPPROTO_RAW => 255, IPPROTO_UDP => 17 };

use constant { ROUNDS => 20, CONNECTIONS => 6 };

my $t = QuicLB->new();
my ($inner, $guarded, $outer, $stats, $health) = map { $t->port() } 1 .. 5;

my %ids = (one => '0a', two => '0b');

my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids]);

chmod 0600, $t->write('host.key', 'a key that nobody else has');

# the balancers of both tiers are one nginx: they know nothing of each other

sub conf {
    my ($check) = @_;

    $t->conf(workers => 2, stream => <<"CONF");
    log_format port '\$server_port \$remote_port';
    access_log @{[$t->path('access.log')]} port;

    quic_passthrough_timeout 1s;

    upstream h3 {
        zone h3 256k;
        @{[$servers->lines(\%ids, 'max_fails=0')]}

        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            @{[$servers->id_lines(\%ids)]}
        }
    }

    upstream inner {
        zone inner 256k;
        server 127.0.0.1:$inner;
        server 127.0.0.1:$guarded;
        server 127.0.0.2:$inner;
        quic_maglev;
        $check
    }

    upstream tier {
        server 127.0.0.1:$inner;
        server 127.0.0.2:$inner;
        quic_maglev;
    }

    server {
        listen 127.0.0.1:$inner udp reuseport;
        listen 127.0.0.2:$inner udp reuseport;
        quic_passthrough h3;
    }

    server {
        listen 127.0.0.1:$guarded udp reuseport;
        quic_passthrough h3;
        quic_passthrough_retry on;
        quic_passthrough_retry_key @{[$t->path('host.key')]};
    }

    server {
        listen 127.0.0.1:$outer udp reuseport;
        quic_passthrough tier;
    }

    @{[$check ? "server { listen 127.0.0.1:$health; access_log off;
                          return \$quic_health_inner; }" : '']}

    @{[$t->counters_server($stats, qw/received sent replies flows malformed
                                      unroutable retry_sent overload evicted
                                      refused/)]}
CONF
}

conf('quic_health_check interval=100ms fails=2 passes=1;');
$t->start();


# questions of quic_health_check, of a version that nobody knows

ok($t->wait_for('questions', sub { asked() >= 3 * ROUNDS }),
   'the outer balancer asks');
is(join(' ', health()), 'alive alive alive',
   'and is answered, by the servers, with Retry, too');
is($t->log_count(qr/server is not healthy/), 0, 'each time');

$servers->command('pause', $_) for sort keys %ids;
ok($t->wait_for('silence', sub { !grep { $_ ne 'silent' } health() }),
   'servers that say nothing are missed');

$servers->command('resume', $_) for sort keys %ids;
ok($t->wait_for('answers', sub { !grep { $_ ne 'alive' } health() }),
   'and are found again');

conf('');
ok($t->reload(), 'nobody asks any more');
ok($t->wait_for('the end of flows', sub {
    return $t->access_count(qr/./) == $t->counters($stats)->{flows};
}), 'and all flows have ended');


# probes that are not QUIC: no answer, no flow

my $before = $t->counters($stats);
my @probes = ('ping', '', "\n", "\0", "\xff", "\xc0" x 5, "\0" x 16,
              'GET / HTTP/1.0', "\x40" . 'x' x 100);

my $client = udp_connect('127.0.0.1', $inner);
$client->send($_) for @probes;

my $after;
$t->wait_for('probes', sub {
    $after = $t->counters($stats);
    return $after->{received} == $before->{received} + @probes;
});

is($after->{unroutable} + $after->{malformed}
   - $before->{unroutable} - $before->{malformed}, scalar @probes,
   'what is not QUIC is dropped');
is($after->{flows}, $before->{flows}, 'without a flow');
is(udp_receive($client, 0), undef, 'and an answer');


# connections through both tiers

my $report = $t->client('--connect', "127.0.0.1:$outer", '--connections',
                        CONNECTIONS, 'run', 'get:/name', 'transfer:60000');
is($report->{failed}, 0, 'connections through both tiers')
    or $t->explain($report);


# packets that only servers send, and what they answer to, from the address of
# another balancer: what it gets is no question

socket my $raw, AF_INET, SOCK_RAW, IPPROTO_RAW or die "socket: $!";

# RFC 9000, 14.1: servers answer no less
my $unknown = pack 'C N C/a C/a a1200', 0xc0, 0x1a2a3a4a, 'an ID of', 'ID that',
                   '';

for my $case (
    ['Version Negotiation', negotiation('an ID of', 'ID that'), 0],
    ['Retry', retry('an ID of', 'ID that', payload => 'x' x 40), 0],
    ['a stateless reset', short('no ID of any server', 'x' x 20), 0],
    ['an unknown version', $unknown, 1],
) {
    my ($name, $datagram, $answers) = @$case;
    my $before = $t->counters($stats);

    forge('127.0.0.2', '127.0.0.1', $datagram) for 1 .. ROUNDS;
    forge('127.0.0.1', '127.0.0.2', $datagram) for 1 .. ROUNDS;

    # the answers of the servers come to the other balancer
    my $expected = 2 * ROUNDS * (1 + $answers);
    my $after = settled($before, $expected);

    is($after->{received} - $before->{received}, $expected,
       "$name: as many datagrams as there have to be");
    is($after->{unroutable} - $before->{unroutable}, 2 * ROUNDS,
       "$name: ends at the balancer");
}

$t->done();


sub asked {
    return $t->counters($stats)->{replies};
}


sub health {
    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $health) or die $@;
    local $/;

    return sort((<$socket> // '') =~ /^\S+ (\w+)$/mg);
}


# when a question behind all of it has been answered

sub settled {
    my ($before, $expected) = @_;

    $t->wait_for('datagrams', sub {
        return $t->counters($stats)->{received}
               >= $before->{received} + $expected;
    });

    for my $host ('127.0.0.1', '127.0.0.2') {
        my $client = udp_connect($host, $inner);
        $client->send($unknown);
        udp_receive($client) or fail("an answer from $host");
    }

    my $after = $t->counters($stats);
    $after->{received} -= 2;

    return $after;
}


# from and to the port of the inner balancers; the kernel adds what is 0

sub forge {
    my ($from, $to, $datagram) = @_;

    my $udp = pack 'n4 a*', $inner, $inner, 8 + length $datagram, 0, $datagram;
    my $ip = pack 'C2 n3 C2 n a4 a4', 0x45, 0, 20 + length $udp, 0, 0, 64,
                  IPPROTO_UDP, 0, inet_aton($from), inet_aton($to);

    send($raw, $ip . $udp, 0, pack_sockaddr_in($inner, inet_aton($to)))
        or die "send: $!";
}
