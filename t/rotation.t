#!/usr/bin/perl

# Rotation of QUIC-LB configurations as docs/deployment.md describes it: by
# reloads a codepoint is added, changed and removed while connections with the
# IDs of others live, or with its own, and none of them is lost.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw/time/;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my %keys = (0 => '000102030405060708090a0b0c0d0e0f',
            1 => 'f0e0d0c0b0a090807060504030201000');
my %ids = (a0 => '01', b0 => '02', a1 => '0101', b1 => '0102');
my %nonces = (0 => 7, 1 => 14);

my $t = QuicLB->new();
my $port = $t->port();

sub generation {
    my ($codepoint, $nonce) = @_;

    my @list = map { [$_, '127.0.0.1:0', $ids{$_}] }
               grep { /$codepoint$/ } sort keys %ids;

    return $t->servers(\@list, '--config-id', $codepoint, '--lb-key',
                       $keys{$codepoint}, '--nonce-length', $nonce);
}

my %servers = map { $_ => generation($_, $nonces{$_}) } keys %nonces;

$t->write("key$_", "$keys{$_}\n") for keys %keys;
chmod 0600, map { $t->path("key$_") } keys %keys;

# the servers @$up get new connections, those of the codepoints @$down do not;
# for @$bare there are servers, but no block

sub conf {
    my ($up, $down, $bare) = @_;

    my ($lines, $blocks) = ('', '');

    for my $codepoint (@$up, @$down) {
        my %names = map { $_ => $ids{$_} }
                    grep { /$codepoint$/ } keys %ids;
        my $parameters = (grep { $_ == $codepoint } @$down) ? 'down' : undef;
        my ($name) = keys %names;
        my $length = length($ids{$name}) / 2;
        my $key = $t->path("key$codepoint");
        my $map = $servers{$codepoint}->id_lines(\%names);

        $lines .= $servers{$codepoint}->lines(\%names, $parameters) . "\n";
        next if grep { $_ == $codepoint } @{ $bare // [] };

        $blocks .= "quic_lb $codepoint {
            server_id_length $length;
            nonce_length $nonces{$codepoint};
            key_file $key;
            $map
        }\n";
    }

    $t->conf(workers => 2, stream => <<"CONF");
        upstream h3 {
            zone h3 1m;
            $lines
            $blocks
        }

        server {
            listen 127.0.0.1:$port udp reuseport;
            quic_passthrough h3;
            quic_passthrough_timeout 3s;
        }
CONF
}

my %held;

sub hold {
    my ($name, $servers) = @_;

    my $start = time();
    $held{$name} = $t->client_start('--connect', "127.0.0.1:$port",
                                    '--timeout', 60, '--connections', 48,
                                    'hold');
    $held{$name}->ready();

    my %used = map { $_->{server} => 1 } grep { $_->{time} > $start }
               map { $_->events(event => 'connected') } values %servers;
    is_deeply([sort keys %used], $servers, "$name ones have @$servers");
}

# all connections work on, from where they are, from another port, and with
# other IDs

sub alive {
    my ($what) = @_;

    for my $name (sort keys %held) {
        for my $step ('progress 3', 'rebind', 'migrate', 'progress 3') {
            is($held{$name}->command($step)->{failed}, 0,
               "$what: $name, $step");
        }
    }
}

sub finish {
    my ($name) = @_;

    my $report = delete($held{$name})->stop_and_report();
    is($report->{failed}, 0, "no connection of the $name is lost")
        or $t->explain($report);
}

conf([0], []);
$t->start();
hold('old', [qw/a0 b0/]);

# another codepoint, for the balancers first

conf([0, 1], []);
ok($t->reload(), 'a codepoint is added');
alive('added');

# servers of both generations

hold('both', [qw/a0 a1 b0 b1/]);
alive('both in use');

# the old ones are retired

conf([1], [0]);
ok($t->reload(), 'the servers of the first codepoint are down');
hold('new', [qw/a1 b1/]);
alive('retiring');

finish('old');
finish('both');

# none of it is left, and it is removed

conf([1], []);
ok($t->reload(), 'the first codepoint is removed');
alive('removed');

# the codepoint comes back with another key, another length and other servers

$keys{0} = '0f1e2d3c4b5a69788796a5b4c3d2e1f0';
delete @ids{qw/a0 b0/};
$ids{c0} = '0303';
$nonces{0} = 10;
$t->write('key0', "$keys{0}\n");
$servers{0}->stop();
$servers{0} = generation(0, $nonces{0});

conf([0, 1], []);
ok($t->reload(), 'it is changed: another key, length and server');
alive('changed');
hold('newest', [qw/a1 b1 c0/]);
alive('all');

# its connections live on when it is removed too early, or changed, over more
# than one reload; the log tells

my $retired = qr/"quic_lb 1" of upstream "h3" as it was goes on/;
my $told = $t->log_count($retired);

conf([0], [1], [1]);
ok($t->reload(), 'a codepoint in use is removed');
alive('removed in use');
is($t->log_count($retired), $told + 1, 'the log tells');

$t->write('key0', "00112233445566778899aabbccddeeff\n");
conf([0], [1], [1]);
ok($t->reload(), 'and the key of another one is changed');
alive('changed in use');

ok($t->reload(), 'another reload');
alive('later');

# back as they were

$t->write('key0', "$keys{0}\n");
conf([0, 1], []);
ok($t->reload(), 'both are back');
alive('back');

finish($_) for sort keys %held;

my $routes = $t->routes(values %servers);
is($routes->{misrouted_count}, 0, 'no packet came to a wrong server')
    or diag(explain($routes->{misrouted}));

$t->done();
