#!/usr/bin/perl

# Learned connection IDs: backends that are stock nginx keep their connections
# through NAT rebinding, reloads, and other numbers of workers.
#
# To take a new path nginx needs a connection ID that the client has issued and
# no path uses; the two that it asks for by default are soon used up.

use strict;
use warnings;

use IO::Select;
use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Packet qw/initial long negotiation short/;
use QuicLB::Udp;

use constant CONNECTIONS => 100;
use constant TICK => 2000;              # octets of a download of "hold"

my $backends = QuicLB->new();
my $t = QuicLB->new();

my ($port, $counters_port) = ($t->port(), $t->port());
my %ports = map { $_ => $t->port() } qw/one two three/;

my ($cert, $key) = $backends->certificate();

# what quic_net.py calls the pattern
my $tick = pattern();
mkdir $backends->path('bytes');
$backends->write('bytes/' . TICK, $tick);

$backends->conf(http => join "\n", <<"CONF", map { backend($_) } keys %ports);
    ssl_certificate $cert;
    ssl_certificate_key $key;
    access_log off;
    keepalive_requests 100000;
    quic_active_connection_id_limit 8;
    root @{[$backends->path('')]};
CONF

$backends->start();

sub backend {
    my ($name) = @_;

    return <<"CONF";
    server {
        listen 127.0.0.1:$ports{$name} quic;
        add_header server-name $name;
        location /name { return 200 "$name\\n"; }
    }
CONF
}

sub pattern {
    my $code = 'import sys; from quic_net import pattern; '
               . 'sys.stdout.buffer.write(pattern(0, ' . TICK . '))';

    $t->run('pattern', 'env', "PYTHONPATH=$FindBin::Bin/lib", 'python3', '-B',
            '-c', $code) == 0
        or die 'pattern: ' . $t->read('pattern.err');

    return $t->read('pattern.out');
}

sub conf {
    my ($workers, %more) = @_;

    my @names = grep { $_ ne ($more{without} // '') } keys %ports;
    my $zone = $more{zone} // 'quic_passthrough_cid_zone zone=cids:1m;';
    my $timeout = $more{timeout} // '60s';

    $t->conf(workers => $workers, stream => <<"CONF");
        log_format by '\$quic_routed_by \$upstream_addr';

        upstream h3 {
            @{[map { "server 127.0.0.1:$ports{$_};" } sort @names]}
            @{[$more{servers} // '']}
            quic_maglev;
            @{[$more{lb} // '']}
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            access_log @{[$t->path('access.log')]} by;
            quic_passthrough h3;
            quic_passthrough_timeout $timeout;
            $zone
        }

        @{[$t->counters_server($counters_port,
                               qw/learned unroutable flows/)]}
CONF
}


# without it a rebinding ends the connection

conf(1, zone => '');
$t->start();

my $report = $t->client('--connect', "127.0.0.1:$port", '--timeout', 5,
                        'run', 'rebind', 'get:/name');
like($report->{connections}[0]{error}, qr/timeout/,
     'not learned: lost by a rebinding');
cmp_ok($t->counters($counters_port)->{unroutable}, '>', 0, 'as unroutable');
$t->stop();


# with it none of many is lost

conf(4);
$t->start();

my $client = $t->client_start('--connect', "127.0.0.1:$port",
                              '--interval', '0.5', '--timeout', 60,
                              '--connections', CONNECTIONS, 'hold');
is($client->ready()->{failed}, 0, CONNECTIONS . ' connections');

$client->command('rebind');
is($client->command('progress 1')->{failed}, 0, 'rebinding');

for my $workers (2, 4, 4) {
    conf($workers);
    ok($t->reload(), "reload with $workers workers");
    is($client->command('progress 2')->{failed}, 0, 'all go on');
}

conf(4, without => 'two');
ok($t->reload(), 'a server leaves the upstream');
is($client->command('progress 2')->{failed}, 0, 'its connections go on');

$client->command('rebind');
is($client->command('progress 1')->{failed}, 0, 'rebinding after all that');

$report = $client->stop_and_report();
is($report->{failed}, 0, 'none was lost') or $t->explain($report);

my %met = map { $_->{server} => 1 } @{ $report->{connections} };
is(join(' ', sort keys %met), join(' ', sort keys %ports),
   'all servers had some');

$t->stop();
cmp_ok($t->access_count(qr/^cid /), '>', 0, 'they are routed by "cid"');
is($backends->log_count(qr/\[(?:alert|emerg|crit|error)\]/), 0,
   'the servers have nothing to complain of');


# a mixed upstream: a random ID may look as if it named a server

my $lb = $t->servers([['mapped', '127.0.0.1:0', '0a'],
                      ['random', '127.0.0.1:0', '-']],
                     '--random-length', 8, '--nonce-length', 6);

sub mixed {
    conf(2, servers => 'server ' . $lb->address('mapped') . '; '
                       . 'server ' . $lb->address('random') . ';',
         lb => <<"CONF");
            quic_lb 0 {
                server_id_length 1;
                nonce_length 6;
                length_self_description off;
                @{[map { sprintf 'server_id %02x %s;', $_,
                         $lb->address('mapped') } 0 .. 255]}
            }
CONF
}

mixed();
$t->start();

$client = $t->client_start('--connect', "127.0.0.1:$port",
                           '--interval', '0.5', '--connections', 24, 'hold');
is($client->ready()->{failed}, 0, 'mixed upstream');
$client->command('rebind');
is($client->command('progress 1')->{failed}, 0, 'rebinding');
$report = $client->stop_and_report();
is($report->{failed}, 0, 'none was lost') or $t->explain($report);
is($t->routes($lb)->{misrouted_count}, 0, 'no packet met another server');
$t->stop();


# what a backend says, datagram by datagram

my $backend = udp_bind('127.0.0.1');

sub raw {
    my ($zone) = @_;

    $t->conf(stream => <<"CONF");
        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough 127.0.0.1:@{[$backend->sockport]};
            quic_passthrough_cid_zone $zone;
        }

        @{[$t->counters_server($counters_port, qw/learned unroutable/)]}
CONF
    $t->start();

    return udp_connect('127.0.0.1', $port);
}

# the backend answers what the client sends

sub exchange {
    my ($client, $data, @answers) = @_;

    $client->send($data);
    defined udp_receive($backend) or die 'nothing reaches the backend';

    for my $answer (@answers) {
        $backend->send($answer);
        defined udp_receive($client) or die 'nothing reaches the client';
    }
}

# whether a short header with that ID reaches the backend from a new address

sub routes {
    my ($cid) = @_;

    my $client = udp_connect('127.0.0.1', $port);
    my $dropped = unroutable();

    $client->send(short($cid, 'x' x 40));
    $t->wait_for('a decision', sub {
        unroutable() > $dropped || IO::Select->new($backend)->can_read(0);
    });

    return defined udp_receive($backend, 0);
}

sub unroutable { return $t->counters($counters_port)->{unroutable} }
sub learned { return $t->counters($counters_port)->{learned} }

my $client_side = raw('zone=cids:1m timeout=1h');

exchange($client_side, initial('clientid', 'clntscid'),
         initial('clntscid', 'serverid'));
is(learned(), 1, "a server's ID is learned");
ok(routes('serverid'), 'and routes from another address');
ok(!routes('clientid'), "the client's is not");
ok(!routes('servexxx'), 'nor does a part of one route');

exchange($client_side, long(0x0a1a2a3a, 'clientno', 'clntscid'),
         long(0x0a1a2a3a, 'clntscid', 'clientno'));
ok(!routes('clientno'), 'not learned: what the client has chosen');

exchange($client_side, long(0x0a1a2a3a, 'vnvnvnvn', 'clntscid'),
         negotiation('clntscid', 'otherone'));
ok(!routes('otherone'), 'Version Negotiation');

exchange($client_side, initial('clientid', 'clntscid'),
         initial('clntscid', 'abc'));
ok(!routes('abc'), 'three octets');

for my $length (4, 20) {
    my $cid = substr 'lengthslengthslengths', 0, $length;

    exchange($client_side, initial('clientid', 'clntscid'),
             initial('clntscid', $cid));
    ok(routes($cid), "learned: $length octets");
}

is(learned(), 3, 'three IDs in all');
$t->stop();


# the zone is full: what no client has used is the first to go

use constant MANY => 1000;

$client_side = raw('zone=cids:32k');

exchange($client_side, initial('clientid', 'clntscid'),
         initial('clntscid', 'keepthis'));
ok(routes('keepthis'), 'used');

exchange($client_side, initial('clientid', 'clntscid'),
         map { initial('clntscid', pack 'a4N', 'many', $_) } 1 .. MANY);

is(learned(), 1 + MANY, 'many IDs are learned');
ok(routes('keepthis'), 'what was used stays');
ok(routes(pack 'a4N', 'many', MANY), 'the newest is there');
ok(!routes(pack 'a4N', 'many', 1), 'the oldest is gone');

# all are used: the one that was used the longest ago goes

ok(routes('keepthis'), 'used again');

for my $n (1 .. MANY) {
    exchange($client_side, initial('clientid', 'clntscid'),
             initial('clntscid', pack 'a4N', 'used', $n));
    routes(pack 'a4N', 'used', $n) or die "used $n";
}

ok(!routes('keepthis'), 'the one used the longest ago goes');
ok(routes(pack 'a4N', 'used', MANY), 'the one used last stays');
$t->stop();


# an ID that is idle is forgotten

$client_side = raw('zone=cids:1m timeout=1ms');

exchange($client_side, initial('clientid', 'clntscid'),
         initial('clntscid', 'shortone'));
is(learned(), 1, 'learned');
ok($t->wait_for('the end of an ID', sub { !routes('shortone') }),
   'forgotten after the timeout');
$t->stop();


# the directive

for my $case (
    ['', 'invalid number of arguments'],
    ['zone=', 'invalid parameter "zone="'],
    ['zone=a:x', 'invalid parameter "zone=a:x"'],
    ['zone=a:', 'invalid parameter "zone=a:"'],
    ['zone=:1m', 'invalid parameter "zone=:1m"'],
    ['zone=a:8k', 'is too small'],
    ['timeout=5s', 'must have the "zone" parameter'],
    ['zone=a:1m timeout=0', 'invalid parameter "timeout=0"'],
    ['zone=a:1m timeout=x', 'invalid parameter "timeout=x"'],
    ['zone=a:1m bogus', 'invalid parameter "bogus"'],
    ['zone=a:1m zone=b:1m', 'invalid parameter "zone=b:1m"'],
    ['zone=quic_passthrough:32k', 'quic_passthrough'],
    ['zone=nowhere',
     'zone "nowhere" of "quic_passthrough_cid_zone" has no size'],
) {
    my ($arguments, $error) = @$case;
    my ($ok, $output) = $t->test_conf(stream => <<"CONF");
        server {
            listen 127.0.0.1:$port udp;
            quic_passthrough 127.0.0.1:1;
            quic_passthrough_cid_zone $arguments;
        }
CONF
    ok(!$ok, "\"$arguments\" is refused");
    like($output, qr/\Q$error\E/, 'with a reason');
}

my ($ok, $output) = $t->test_conf(stream => <<"CONF");
    quic_passthrough_cid_zone zone=a:1m;
    server {
        listen 127.0.0.1:$port udp;
        quic_passthrough 127.0.0.1:1;
    }
    server {
        listen 127.0.0.1:@{[$t->port()]} udp;
        quic_passthrough 127.0.0.1:1;
        quic_passthrough_cid_zone off;
    }
    server {
        listen 127.0.0.1:@{[$t->port()]} udp;
        quic_passthrough 127.0.0.1:1;
        quic_passthrough_cid_zone zone=a timeout=10s;
    }
CONF
ok($ok, 'inherited, off, and another timeout') or diag($output);

$backends->check();
$t->done();
