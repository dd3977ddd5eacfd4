#!/usr/bin/perl

# quic_passthrough_retry: clients complete with servers of a stock nginx that
# only share its "quic_host_key", move, and outlive a reload; which tokens are
# refused, and how; keys that rotate; servers with a Retry of their own.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;

use QuicLB;
use QuicLB::Backends;

my $t = QuicLB->new();
my ($on, $off, $two, $six, $dual, $sni, $stats) = map { $t->port() } 1 .. 7;

sub key {
    my ($name, $first) = @_;

    my $path = $t->write($name, join '', map { chr($first + $_) } 1 .. 32);
    chmod 0600, $path;

    return $path;
}

my ($key, $new, $strange) = map { key("key$_", $_) } 0 .. 2;

my @names = qw/one two three/;
my $backends = QuicLB::Backends->new($t, names => \@names, host_key => $key);
my $own = QuicLB::Backends->new($t, names => \@names, retry => 'on');
my $ipv6 = QuicLB::Backends->new($t, names => ['six'], host_key => $key,
                                 address => '[::1]');
my $servers = $t->servers([['v2', '127.0.0.1:0', 'aabb']],
                          '--host-key', $key);

sub conf {
    my (@keys) = @_;
    my $keys = join "\n", map { "quic_passthrough_retry_key $_;" } @keys;

    $t->conf(workers => 2, stream => <<"CONF");
    upstream nginx {
        zone nginx 256k;
        @{[ $backends->lines() ]}
        quic_maglev;
    }

    upstream own {
        zone own 256k;
        @{[ $own->lines() ]}
        quic_maglev;
    }

    upstream lb {
        server @{[ $servers->address('v2') ]};

        quic_lb 0 {
            server_id_length 2;
            nonce_length 4;
            server_id aabb @{[ $servers->address('v2') ]};
        }
    }

    upstream six {
        @{[ $ipv6->lines() ]}
    }

    quic_passthrough_cid_zone zone=cids:1m;
    quic_passthrough_retry on;
    $keys

    server {
        listen 127.0.0.1:$on udp reuseport;
        quic_passthrough nginx;
    }

    server {
        listen 127.0.0.1:$off udp reuseport;
        quic_passthrough own;
        quic_passthrough_retry off;
    }

    server {
        listen 127.0.0.1:$two udp reuseport;
        quic_passthrough lb;
        quic_passthrough_retry on v2;
    }

    server {
        listen [::1]:$six udp reuseport;
        quic_passthrough six;
    }

    map \$quic_preread_server_name \$to {
        a.example.com nginx;
        default lb;
    }

    server {
        listen 127.0.0.1:$sni udp reuseport;
        quic_preread on;
        quic_passthrough \$to;
    }

    server {
        listen [::]:$dual udp reuseport ipv6only=off;
        quic_passthrough nginx;
    }

    @{[ $t->counters_server($stats, qw/flows retry_sent retry_accepted
                                       retry_refused retry_dropped/) ]}
CONF
}

conf($key);
$t->start();


# clients complete

my $before = $t->counters($stats);
my %used;

for my $case (
    ['nginx', "127.0.0.1:$on", 20],
    ['a dual-stack socket', "127.0.0.1:$dual", 5],
    ['IPv6', "[::1]:$six", 5],
    ['a zero-length connection ID', "127.0.0.1:$on", 5, '--cid-length', 0],
    ['a long first DCID', "127.0.0.1:$on", 1, '--dcid', 'ab' x 20],
    ['QUIC-LB', "127.0.0.1:$two", 5],
    ['version 2', "127.0.0.1:$two", 5, '--version', 2],
    ['version 1, then 2', "127.0.0.1:$two", 5, '--version', 'upgrade'],
) {
    my ($name, $address, $count, @options) = @$case;

    my $report = $t->client('--connect', $address, '--connections', $count,
                            @options, 'run', 'get:/bytes/20000');
    is($report->{failed}, 0, "aioquic, $name") or $t->explain($report);

    $used{$_->{server}} = 1 for @{ $report->{connections} };
}

is(join(' ', sort keys %used), 'one six three two v2', 'all servers are used');

my $counters = $t->counters($stats);
my $flows = $counters->{flows} - $before->{flows};

is($flows, 51, 'a flow for each connection, none for an Initial without token');
is($counters->{retry_accepted}, $flows, 'each by its token');
cmp_ok($counters->{retry_sent}, '>=', $flows, 'each has had a Retry');
is($counters->{retry_refused}, 0, 'no token is refused');

# Debian's curl is ngtcp2 on OpenSSL 3.5, whose ClientHello takes two datagrams

for (1 .. 10) {
    my ($code, $body) = $t->curl('--http3-only', "https://127.0.0.1:$on/name");
    ok($code == 0 && $body =~ /^(?:one|two|three)$/, "curl, $_");
}

SKIP: {
    for (1 .. 5) {
        my $body = $t->ngtcp2('127.0.0.1', $on, "https://localhost:$on/name");
        skip('ngtcp2\'s client is not there', 1) if !defined $body;
        like($body, qr/^(?:one|two|three)$/, "ngtcp2, $_");
    }
}

is($t->counters($stats)->{retry_refused}, 0, 'and none of their tokens');


# and go where their ClientHello says, of which halves wait until both are there

for my $case (
    ['a.example.com', qr/^(?:one|two|three)$/],
    ['b.example.com', qr/^v2$/],
) {
    my ($name, $wanted) = @$case;

    my $report = $t->client('--connect', "127.0.0.1:$sni", '--sni', $name,
                            '--connections', 5, 'run', 'get:/bytes/20000');
    is($report->{failed}, 0, "aioquic, $name") or $t->explain($report);
    is(scalar(grep { $_->{server} =~ $wanted } @{ $report->{connections} }), 5,
       'its servers');

    my (undef, $body) = $t->curl('--http3-only', '--resolve',
        "$name:$sni:127.0.0.1", "https://$name:$sni/name");
    like($body, $wanted, "curl, $name");
}


# a version that the servers do not know is theirs to refuse: no Retry for it

is(probe('unknown')->{answer}, 'negotiation', 'an unknown version');
is(probe_port($on, 2, 'none'), 'negotiation', 'version 2, unless "v2" is set');


# connections move, and a reload loses none

my ($random, $lb) = map {
    $t->client_start('--connect', "127.0.0.1:$_", '--connections', 5, 'hold')
} $on, $two;

is($_->ready()->{failed}, 0, 'connections') for $random, $lb;
is($_->command('rebind')->{failed}, 0, 'rebinding') for $random, $lb;
is($lb->command('migrate')->{failed}, 0, 'migration');

ok($t->reload(), 'reload');
is($_->command('progress 5')->{failed}, 0, 'they go on') for $random, $lb;

my $report = $random->stop_and_report();
is($report->{failed}, 0, 'to the end') or $t->explain($report);


# tokens that are of no use

$before = $t->counters($stats);

for my $case (
    ['none', 'retry', 'no token'],
    ['short', undef, 'a datagram of 1199 octets'],
    ['dcid', undef, 'a DCID of 7 octets'],
    ['0rtt', undef, '0-RTT alone'],
    ['garbage', 'retry', 'a token that nobody has made'],
    ['foreign', 'retry', 'one of another length'],
    ['bit', 'retry', 'a flipped bit'],
    ["key=$strange", 'retry', 'another key'],
    ['other', 'close 11', 'another port'],
    ['expired', 'close 11', 'expired'],
    ['small', undef, 'expired, in a datagram of 1199 octets'],
    ['bogus', undef, 'expired, in a bogus Initial'],
    ['good', 'initial', 'a good one'],
    ['returned', 'initial', 'that of a Retry'],
) {
    my ($what, $answer, $name) = @$case;
    my $got = probe($what);

    is($got->{answer}, $answer, "$name: " . ($answer // 'no answer'));

    # RFC 9000, 8.1
    cmp_ok($got->{received}, '<=', $got->{sent}, "$name: no amplification")
        if ($answer // '') ne 'initial';
}

# a flow that is there by a connection ID of a server is no token; connection
# IDs of codepoint 0 name the server "v2"

for my $port ($two, $sni) {
    is(probe_port($port, 1, 'behind=06aabb11223344'), 'retry',
       'no token, on a flow that no Initial has made');
}

is(probe('again')->{answers}, 1, 'one Retry for a hello of two datagrams');

$counters = $t->counters($stats);
is($counters->{retry_refused} - $before->{retry_refused}, 4, 'refused');
is($counters->{retry_accepted} - $before->{retry_accepted}, 2, 'accepted');
is($counters->{retry_dropped} - $before->{retry_dropped}, 4, 'dropped');
is($counters->{flows} - $before->{flows}, 4,
   'flows of the good ones, and of short headers');


# keys rotate

conf($new, $key);
ok($t->reload(), 'a new key, and the former');

# the servers have not changed theirs, so a token of ours is not enough
is(probe('good')->{answer}, 'close 11', 'the servers refuse what is new');

ok($backends->reload(host_key => $new), 'servers with the new key');
is(probe("key=$key")->{answer}, 'initial', 'a token of the former key');
is(probe("key=$new")->{answer}, 'initial', 'and one of the new key');
is(complete($on, 5), 0, 'clients complete');

conf($new);
ok($t->reload(), 'without the former key');
is(probe("key=$key")->{answer}, 'retry', 'it is of no use any more');
is(complete($on, 5), 0, 'clients complete');


# servers with a Retry of their own, of which the balancer has no key

$before = $t->counters($stats)->{retry_sent};
is(complete($off, 20), 0, 'a Retry of the servers: clients complete');

for (1 .. 5) {
    my ($code) = $t->curl('--http3-only', "https://127.0.0.1:$off/name");
    is($code, 0, "curl, $_");
}

is($t->counters($stats)->{retry_sent}, $before, 'and none is ours');


# what was held has outlived three reloads

is($lb->command('progress 3')->{failed}, 0, 'connections go on');

$report = $lb->stop_and_report();
is($report->{failed}, 0, 'to the end') or $t->explain($report);

$t->done();


sub complete {
    my ($port, $count) = @_;

    my $report = $t->client('--connect', "127.0.0.1:$port", '--connections',
                            $count, 'run', 'get:/bytes/20000', 'rebind',
                            'get:/name');
    $t->explain($report);

    return $report->{failed};
}


sub probe {
    my ($case) = @_;

    return probe_any($on, 1, $case);
}


sub probe_port {
    my ($port, $version, $case) = @_;

    return probe_any($port, $version, $case)->{answer};
}


sub probe_any {
    my ($port, $version, $case) = @_;

    my $name = 'probe' . ++$t->{probe_count};

    $t->run($name, 'python3', '-B', "$FindBin::Bin/lib/retry_probe.py",
            '--connect', "127.0.0.1:$port", '--version', $version,
            '--key', $key, $case) == 0
        or diag($t->read("$name.err"));

    my $text = $t->read("$name.out");

    return $text ? decode_json($text) : {};
}
