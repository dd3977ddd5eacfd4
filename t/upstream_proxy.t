#!/usr/bin/env perl

# "quic_lb" and "quic_maglev" under the stock proxy_pass: which server gets a
# session's first datagram, and what the variables say of it.

use strict;
use warnings;

use FindBin;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use Socket;
use Test::More;

use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Process qw/slurp/;

my ($v1, $v2, $unknown) = (0x00000001, 0x6b3343cf, 0x7a8a9aaa);
my ($initial, $zero_rtt, $handshake) = (0, 1, 2);

my $t = QuicLB->new();

# the servers are sockets of this test, which answers for them by their names

my %port = map { $_ => $t->port() } qw/one two three four dead/;
my %address = map { $_ => "127.0.0.1:$port{$_}" } keys %port;
my %name = reverse %address;
my %socket = map { $_ => udp($port{$_}) } qw/one two three four/;

my $vectors = decode_json(slurp("$FindBin::Bin/assets/quic-lb.json"));
my @encrypted = grep { $_->{key} } @{ $vectors->{vectors} };
my ($single) = grep { cid_length($_) == 17 } @encrypted;
my ($four) = grep { cid_length($_) != 17 } @encrypted;

for my $v ($single, $four) {
    my $path = $t->write("key$v->{config_id}", $v->{key});
    chmod 0600, $path or die "$path: $!";
}

my $three = join '', map { "server $address{$_};\n" } qw/three one two/;
my $ids = <<"EOF";
    server_id_length 3;
    nonce_length 4;
    server_id 000001 $address{one};
    server_id 000002 $address{two};
    server_id 0000f2 $address{two};
    server_id 000003 $address{three};
EOF

my %upstream = (
    plain => "$three quic_lb 0 { $ids } quic_lb 6 { $ids }",
    zone => "zone plain 256k; $three quic_lb 0 { $ids } quic_lb 6 { $ids }",
    order => 'quic_maglev;'
        . join('', map { "server $address{$_};" } qw/one two three/),
    small => "$three quic_maglev size=7;",
    self => "$three quic_lb 1 { $ids length_self_description on; }",
    pool => "$three server $address{four} backup; quic_lb 2 {"
        . 'server_id_length 2; nonce_length 6; unmapped maglev;'
        . "server_id beef $address{four}; }",
    keys => "$three server $address{four};" . join('', map { <<"EOF" }
    quic_lb $_->[0]{config_id} {
        server_id_length ${\ (length($_->[0]{server_id}) / 2)};
        nonce_length ${\ (length($_->[0]{nonce}) / 2)};
        key_file key$_->[0]{config_id};
        server_id $_->[0]{server_id} $address{$_->[1]};
    }
EOF
        ([$single, 'two'], [$four, 'four'])),
    weight => "quic_maglev; server $address{one};"
        . "server $address{two} weight=2; server $address{three} weight=5;",
    down => "server $address{one}; server $address{three};"
        . "server $address{two} down; quic_lb 0 { $ids }",
    backup => "server $address{one} down; server $address{two} backup;"
        . "server $address{three} backup; quic_lb 0 { $ids }",
    spare => "server $address{one}; server $address{two} backup;"
        . "server $address{three} backup; quic_lb 0 { $ids }",
    dark => "quic_maglev; server $address{one} down;"
        . "server $address{two} down;",
    many => join('', map { "server 127.0.0.2:$_ down;" } 1 .. 99)
        . "quic_maglev; server $address{four};",
    fails => "zone fails 256k; server $address{two};"
        . "server $address{dead} max_fails=1 fail_timeout=600s;"
        . 'quic_lb 0 { server_id_length 3; nonce_length 4;'
        . "server_id 0000de $address{dead}; }",
    recovers => 'zone recovers 256k; quic_maglev;'
        . "server $address{dead} max_fails=1 fail_timeout=1s;"
        . "server $address{two} down;",
    crowded => 'zone crowded 256k; quic_maglev;'
        . "server $address{one} max_conns=1; server $address{two} backup;",
    refused => "server $address{one}; server 255.255.255.255:9;"
        . 'quic_maglev;',
    refused_backup => "server $address{one}; server 255.255.255.255:9 backup;"
        . 'quic_lb 0 { server_id_length 3; nonce_length 4;'
        . 'server_id 0000ff 255.255.255.255:9; }',
    tcp => "$three quic_maglev;",
);

my $log_size = 0;       # before the last session

my %listen = map { $_ => $t->port() } sort keys %upstream;

$t->conf(workers => 2, stream => join '', <<'EOF',
log_format quic '$remote_port "$quic_routed_by" "$quic_config_id"'
                ' "$quic_server_id" "$quic_dcid" "$quic_version"'
                ' "$upstream_addr" $pid';
access_log access.log quic;
proxy_timeout 30s;
proxy_responses 1;
EOF
    map { <<"EOF" } sort keys %upstream);
upstream $_ {
    $upstream{$_}
}
server {
    listen 127.0.0.1:$listen{$_} ${\ ($_ eq 'tcp' ? '' : 'udp')} reuseport;
    proxy_pass $_;
}
EOF

$t->start();


# routable connection IDs

for my $upstream (qw/plain zone/) {
    my $cid = '00000002aabbccdd';
    my $dcid = $cid . '99' x 12;

    routed($upstream, 'two', short($cid, 30),
           "server_id 0 000002 $cid -", 'short header');
    routed($upstream, 'two', long($v1, $initial, $dcid),
           "server_id 0 000002 $dcid 0x00000001", 'Initial, appended octets');
    routed($upstream, 'two', long($v2, $initial, '1f0000f2aabbccdd'),
           'server_id 0 0000f2 1f0000f2aabbccdd 0x6b3343cf', 'version 2');
    routed($upstream, 'one', long($v1, $handshake, '00000001aabbccdd'),
           'server_id 0 000001 00000001aabbccdd 0x00000001', 'Handshake');
    routed($upstream, 'three', long($v1, $zero_rtt, '00000003aabbccdd'),
           'server_id 0 000003 00000003aabbccdd 0x00000001', '0-RTT');
    routed($upstream, 'three',
           long($unknown, 3, 'c0000003aabbccdd' . '01' x 40),
           'server_id 6 000003 c0000003aabbccdd' . '01' x 12 . ' 0x7a8a9aaa',
           'unknown version, second generation');
}

for my $case ([$single, 'two'], [$four, 'four']) {
    my ($v, $server) = @$case;

    routed('keys', $server, short($v->{cid}, 25),
           "server_id $v->{config_id} $v->{server_id} $v->{cid} -",
           "encrypted, $v->{cid}");
}


# what is not routable

my %maglev = ('server that is not there' => '000000ffaabbccdd',
              'another configuration' => '20000002aabbccdd',
              'failover' => 'e0000002aabbccdd',
              'one octet short' => '00000002aabbcc');

for my $case (sort keys %maglev) {
    my $cid = $maglev{$case};

    like(route('plain', long($v1, $initial, $cid)),
         qr/^\w+ maglev - - $cid 0x00000001$/, $case);
}

like(route('plain', long($v1, $initial, '')),
     qr/^\w+ maglev - - - 0x00000001$/, 'empty connection ID');
like(route('plain', short('00000002aabbcc', 7)),
     qr/^\w+ maglev - - 00000002aabbcc -$/, 'short header, one octet short');
like(route('plain', short('20000002aabbccdd', 30)),
     qr/^\w+ maglev - - - -$/, 'short header of another configuration');
like(route('plain', 'x'), qr/^\w+ maglev - - - -$/, 'one octet');
like(route('plain', pack('CN', 0xc0, 1)), qr/^\w+ maglev - - - -$/,
     'cut long header');
like(route('plain', long($v1, $initial, '00' x 21)),
     qr/^\w+ maglev - - - -$/, 'connection ID over 20 octets');


# length self-description

routed('self', 'two', long($v1, $initial, '27000002aabbccdd'),
       'server_id 1 000002 27000002aabbccdd 0x00000001', 'described length');
routed('self', 'two', short('29000002aabbccdd', 30),
       'server_id 1 000002 29000002aabbccdd -', 'longer in a short header');
like(route('self', long($v1, $initial, '28000002aabbccdd')),
     qr/^\w+ maglev - - 28000002aabbccdd 0x00000001$/, 'contradicting length');


# unmapped maglev

my %by_id;

for my $id (1 .. 40) {
    my $hex = sprintf '%04x', $id;
    my @found = map { route('pool', $_) }
        (long($v1, $initial, "40${hex}010203040506"),
         long($unknown, 1, "5f${hex}0a0203040506"),
         short("40${hex}0b0c03040506", 20));

    my @servers = uniq(map { /^(\w+)/ } @found);
    push @{ $by_id{$servers[0]} }, $id;

    ok(@servers == 1 && @found == (grep { / maglev_server_id 2 $hex / } @found),
       "server ID $hex goes to one server") or diag(explain(\@found));
}

is_deeply([sort keys %by_id], [qw/one three two/], 'server IDs are spread');
routed('pool', 'four', short('40beef0102030405ff', 20),
       'server_id 2 beef 40beef0102030405ff -', 'mapped server ID');


# Maglev over connection IDs: the same on all workers, in any order of lines

my @cids = map { sprintf 'a0%08x%06x', $_ * 0x9e3779b1 & 0xffffffff, $_ }
               1 .. 400;
my %server = map { $_ => served('plain', $_) } @cids[0 .. 149];

is_deeply([sort(uniq(values %server))], [qw/one three two/],
          'connection IDs are spread');

for my $other (qw/plain zone order/) {
    is_deeply(moved($other, \%server), {}, "the same servers: $other");
}

my %few = map { $_ => served('small', $_) } @cids[0 .. 59];
is_deeply([sort(uniq(values %few))], [qw/one three two/], 'seven slots');


# the 4-tuple of 0b111

my @clients = map { udp(0) } 1 .. 8;
my %seen;

for my $client (@clients) {
    my @found = uniq(map { served('plain', $_, $client) }
                         'e0' . '01' x 7, 'ff' . '02' x 9, 'e1');

    $seen{$found[0]}++;
    is(@found, 1, '0b111 by address, not by connection ID');
}

cmp_ok(keys %seen, '>', 1, '0b111 is spread');


# weights: by five standard deviations of 400 draws

my %share;
$share{served('weight', $_)}++ for @cids;

for my $case (['one', 1], ['two', 2], ['three', 5]) {
    my ($server, $weight) = @$case;
    my $p = $weight / 8;

    cmp_ok(abs(($share{$server} // 0) - 400 * $p), '<',
           5 * sqrt(400 * $p * (1 - $p)), "weight $weight");
}


# down

my $moved = moved('down', \%server);

is_deeply([sort(uniq(map { $server{$_} } keys %$moved))], ['two'],
          'down moves the keys of one server');
is(keys %$moved, (grep { $_ eq 'two' } values %server), 'all of them');
is_deeply([sort(uniq(values %$moved))], [qw/one three/], 'to both others');

routed('down', 'two', short('00000002aabbccdd', 20),
       'server_id 0 000002 00000002aabbccdd -', 'down, short header');
routed('down', 'two', long($v1, $handshake, '00000002aabbccdd'),
       'server_id 0 000002 00000002aabbccdd 0x00000001', 'down, Handshake');

for my $datagram (long($v1, $initial, '00000002aabbccdd'),
                  long($v2, $zero_rtt, '00000002aabbccdd'),
                  long($unknown, $handshake, '00000002aabbccdd'))
{
    like(route('down', $datagram),
         qr/^(?:one|three) maglev - - 00000002aabbccdd 0x/,
         'down, new connection');
}

is(served('many', $_), 'four', 'one of 100 is up') for @cids[0 .. 9];
is_deeply([fallen('dark', long($v1, $initial, 'a0' x 8))],
          ['dark', 'maglev'], 'all are down');
like($t->error_log(), qr/no live upstreams/, 'all are down: in the log');


# backup

my %backup = map { $_ => served('backup', $_) } @cids[0 .. 39];

is_deeply([sort(uniq(values %backup))], [qw/three two/], 'backup servers');
is_deeply(moved('backup', \%backup), {}, 'backup servers by Maglev');
is_deeply([uniq(map { served('spare', $_) } @cids[0 .. 9])], ['one'],
          'no backup server while another is up');

routed('spare', 'three', short('00000003aabbccdd', 20),
       'server_id 0 000003 00000003aabbccdd -', 'backup server by its ID');


# max_fails

my $dead_cid = '000000deaabbccdd';

is_deeply([fallen('fails', short($dead_cid, 20))], ['dead', 'server_id'],
          'nobody listens');

like(route('fails', long($v1, $initial, $dead_cid)),
     qr/^two maglev - - $dead_cid /, 'failing, Initial');
is_deeply([uniq(map { served('fails', $_) } @cids[0 .. 19])], ['two'],
          'failing, by Maglev');
is_deeply([fallen('fails', short($dead_cid, 20))], ['dead', 'server_id'],
          'failing, short header');
is_deeply([fallen('fails', long($v1, $handshake, $dead_cid))],
          ['dead', 'server_id'], 'failing, Handshake');

is_deeply([fallen('recovers', long($v1, $initial, 'a0' x 8))],
          ['dead', 'maglev'], 'fails');
is_deeply([fallen('recovers', long($v1, $initial, 'a0' x 8))],
          ['dead', 'maglev'], 'failing, but there is no other');

$socket{dead} = udp($port{dead});

ok($t->wait_for('recovery', sub {
    return answered('recovers', long($v1, $initial, 'a0' x 8), udp(0), 0.2);
}), 'and back when it answers');


# connect() fails at once: the next attempt is Maglev's

is_deeply([uniq(map { served('refused', $_) } @cids[0 .. 19])], ['one'],
          'connect() refused');

my $client = udp(0);
is(answered('refused_backup', short('000000ffaabbccdd', 20), $client, 30),
   'one', 'connect() to a backup server refused');
is(($t->wait_for('log', sub { logged($client->sockport()) }) || [])->[-1],
   "255.255.255.255:9, $address{one}", 'both are logged');


# max_conns

my $waiting = udp(0);
ask('crowded', long($v1, $initial, 'a0' x 8), $waiting);
is(arrived(5), 'one', 'max_conns, first connection');
is(served('crowded', 'a0' x 8), 'two', 'max_conns, second connection');
$socket{one}->send('one');
ok(readable($waiting, 30), 'max_conns, answer');
ok($t->wait_for('end of session', sub { logged($waiting->sockport()) }),
   'max_conns, end');
is(served('crowded', 'a0' x 8), 'one', 'max_conns, free again');


# TCP

my %tcp = map { $_ => tcp($port{$_}) } qw/one two three/;
my %accepted;

for (1 .. 6) {
    my $client = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$listen{tcp}")
        or die "tcp: $@";
    my ($ready) = IO::Select->new(values %tcp)->can_read(30);
    my ($server) = grep { $tcp{$_} == ($ready // 0) } keys %tcp;

    $accepted{$server // 'none'}++;
    $tcp{$server}->accept()->close() if $server;
    readable($client, 30);
}

is_deeply([values %accepted], [6], 'TCP by the address of the client');


# every one of the workers has had its part

is(uniq($t->read('access.log') =~ / (\d+)$/mg), 2, 'two workers');

$t->done();


# datagrams

sub short {
    my ($dcid, $length) = @_;

    return chr(0x41) . substr(pack('H*', $dcid) . "\xee" x 40, 0, $length);
}


sub long {
    my ($version, $type, $dcid) = @_;
    my $payload = "\xdd" x 60;

    # RFC 9369, 3.2: version 2 numbers the types from 1
    my $bits = $version == $v2 ? ($type + 1) % 4 : $type;

    my $known = $version == $v1 || $version == $v2;
    my $token = $known && $type == $initial ? "\0" : '';
    my $length = $known ? pack('n', 0x4000 | length $payload) : '';

    return pack('CNC/aC/a', 0xc0 | $bits << 4, $version, pack('H*', $dcid),
                "\1\2\3\4") . $token . $length . $payload;
}


sub cid_length {
    my ($vector) = @_;

    return 1 + length($vector->{server_id} . $vector->{nonce}) / 2;
}


# sockets

sub udp {
    my ($port) = @_;

    return IO::Socket::INET->new(LocalAddr => "127.0.0.1:$port",
                                 Proto => 'udp') // die "udp $port: $@";
}


sub tcp {
    my ($port) = @_;

    return IO::Socket::INET->new(LocalAddr => "127.0.0.1:$port", Listen => 8,
                                 ReuseAddr => 1) // die "tcp $port: $@";
}


sub readable {
    my ($socket, $seconds) = @_;

    return scalar IO::Select->new($socket)->can_read($seconds);
}


# sessions

sub ask {
    my ($upstream, $datagram, $client) = @_;
    my $to = pack_sockaddr_in($listen{$upstream}, inet_aton('127.0.0.1'));

    $log_size = -s $t->path('access.log');
    $client->send($datagram, 0, $to) // die "send: $!";
}


# the name of the server that a datagram arrives at

sub arrived {
    my ($seconds) = @_;
    my ($ready) = IO::Select->new(values %socket)->can_read($seconds)
        or return undef;
    my ($server) = grep { $socket{$_} == $ready } keys %socket;

    $ready->recv(my $data, 65536) // return undef;

    return $server;
}


# the same, after it has answered

sub answered {
    my ($upstream, $datagram, $client, $seconds) = @_;

    ask($upstream, $datagram, $client);
    my $server = arrived($seconds) // return undef;

    $socket{$server}->send($server);
    readable($client, 30) or return undef;
    $client->recv(my $answer, 100) // return undef;

    return $answer;
}


sub served {
    my ($upstream, $dcid, $client) = @_;

    return answered($upstream, long($v1, $initial, $dcid),
                    $client // udp(0), 30) // 'none';
}


# the server that answers, and what is logged before $upstream_addr

sub route {
    my ($upstream, $datagram) = @_;
    my $client = udp(0);
    my $server = answered($upstream, $datagram, $client, 30) // 'none';
    my @log = @{ $t->wait_for('log', sub { logged($client->sockport()) })
                 || [] };

    pop @log;

    return join ' ', $server, @log;
}


sub routed {
    my ($upstream, $server, $datagram, $expected, $name) = @_;

    is(route($upstream, $datagram), "$server $expected", "$name: $upstream");
}


# the server of a session without an answer, and $quic_routed_by

sub fallen {
    my ($upstream, $datagram) = @_;
    my $client = udp(0);

    ask($upstream, $datagram, $client);

    my @log = @{ $t->wait_for('log', sub { logged($client->sockport()) })
                 || [] };

    return @log ? ($name{$log[-1]} // $log[-1], $log[0]) : ();
}


# the fields of the access log line of a client's session, once it has ended

sub logged {
    my ($port) = @_;
    my $log = substr $t->read('access.log'), $log_size;
    my ($line) = $log =~ /^$port (".*") \d+$/m or return 0;

    return [$line =~ /"([^"]*)"/g];
}


# where %$server differs: by connection ID, the other server

sub moved {
    my ($upstream, $server) = @_;
    my %moved;

    for my $cid (sort keys %$server) {
        my $other = served($upstream, $cid);

        $moved{$cid} = $other if $other ne $server->{$cid};
    }

    return \%moved;
}


sub uniq {
    my %seen;

    return grep { !$seen{$_}++ } @_;
}
