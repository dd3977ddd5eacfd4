#!/usr/bin/perl

# A client keeps its port at the server over reloads, killed workers, a binary
# upgrade, its rollback, and the end of its flow; and no two clients share one,
# with few ports for many of them.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Net;
use QuicLB::Packet qw/short/;
use QuicLB::Udp;

use IO::Socket::IP;
use Socket qw/SOCK_DGRAM unpack_sockaddr_in unpack_sockaddr_in6/;

use constant CLIENTS => 6;

# ports of the system: 34, without the reserved ones
use constant FEW => [40000 .. 40009, 40016 .. 40039];
use constant { RANGE => '40000 40039', RESERVED => '40010-40015' };

QuicLB::Net::alone();

my $t = QuicLB->new();
my %ways = (
    four => { host => '127.0.0.1', server => '127.0.0.1' },
    six => { host => '::1', server => '::1' },
    wildcard => { host => '127.0.0.3', server => '127.0.0.1', listen => '' },
    bound => { host => '127.0.0.1', server => '127.0.0.1',
               bind => 'quic_passthrough_bind 127.0.0.2;' },
);
my $stream = '';

for my $name (sort keys %ways) {
    my $way = $ways{$name};
    my ($host, $server) = map { /:/ ? "[$_]" : $_ } @$way{qw/host server/};

    $way->{port} = $t->port();
    $way->{backend} = udp_bind($way->{server});

    my $address = "$server:" . $way->{backend}->sockport();
    my $listen = $way->{listen} // "$host:";

    $stream .= <<"CONF";
        upstream $name {
            server $address;
            quic_lb 0 {
                server_id_length 1;
                nonce_length 4;
                server_id 01 $address;
            }
        }

        server {
            listen $listen$way->{port} udp reuseport;
            quic_passthrough $name;
            @{[$way->{bind} // '']}
        }
CONF
}

sub conf {
    my ($workers, $timeout) = @_;

    $t->conf(workers => $workers,
             stream => "quic_passthrough_timeout $timeout;\n$stream");
}

sub clients {
    my ($count, @names) = @_;

    return map {
        my $name = $_;

        map { {
            way => $ways{$name},
            # the system's ports are for nginx
            socket => IO::Socket::IP->new(PeerHost => $ways{$name}{host},
                                          PeerPort => $ways{$name}{port},
                                          LocalPort => $t->port(),
                                          Type => SOCK_DGRAM) // die $@,
        } } 1 .. $count;
    } @names;
}


# the ports that a client has at its server, by what the server has got; each
# answers, and nobody else gets that

my $sent = 0;

sub ports {
    return map { port($_) } @_;
}

sub port {
    my ($client) = @_;

    # a worker that is killed takes with it what it has read
    for (1 .. 5) {
        my $text = 'ping ' . ++$sent;

        $client->{socket}->send(short("\x05\x01abcd", $text));

        while (my ($port, $from) = heard($client->{way}{backend}, $text)) {
            $client->{way}{backend}->send(short('', $text), 0, $from);

            my $answer = udp_receive($client->{socket}, 5) // 'no answer';
            return $port if $answer eq short('', $text);
        }
    }

    return 'none';
}

sub heard {
    my ($backend, $text) = @_;

    while (IO::Select->new($backend)->can_read(2)) {
        my $from = $backend->recv(my $datagram, 2048) // next;
        my ($port) = length $from == 16 ? unpack_sockaddr_in($from)
                                        : unpack_sockaddr_in6($from);

        return ($port, $from) if $datagram =~ /\Q$text\E$/;
    }

    return ();
}

sub silent {
    my (@clients) = @_;

    return !grep { defined udp_receive($_->{socket}, 0) } @clients;
}

sub distinct {
    my %seen;

    return !grep { $seen{$_}++ } @_;
}


# legs at these ports: connected sockets, with the state in the fourth column

sub legs {
    my %ports = map { sprintf('%04X', $_) => 1 } @_;
    my $table = join '', map { QuicLB::Process::slurp($_) }
                         '/proc/self/net/udp', '/proc/self/net/udp6';
    my %servers = map { sprintf('%04X', $_->{backend}->sockport()) => 1 }
                  values %ways;
    my @found;

    while ($table =~ /^ *\d+: [^:]+:(\w{4}) [^:]+:(\w{4}) 01/mg) {
        push @found, $1 if $ports{$1} && $servers{$2};
    }

    return @found;
}


# the table of a process, by the inode of its memory

sub tables {
    my ($pid) = @_;

    return map { (stat $_)[1] }
           grep { (readlink($_) // '') =~ /ngx-quic-lb-ports/ }
           glob "/proc/$pid/fd/*";
}


# one after another

conf(2, '10s');
is(($t->test_conf(workers => 2, stream => $stream))[0], 1, 'nginx -t');
$t->start();

my @clients = clients(CLIENTS, sort keys %ways);
my @first = ports(@clients);

ok(distinct(@first), 'each client has a port of its own') or diag("@first");
unlike("@first", qr/none/, 'all clients get answers');

my @table = tables($t->master());
is(scalar @table, 1, 'the master has one table');
is_deeply([map { tables($_) } $t->workers()], [],
          'workers do not have its descriptor');

sub kept {
    my ($event) = @_;

    is_deeply([ports(@clients)], \@first, "$event: the same ports");
    ok(silent(@clients), "$event: nobody gets the answers of another");
}

for my $n (1 .. 2) {
    ok($t->reload(), "reload $n");
    kept("reload $n");
}

$t->kill_worker($t->workers());
$t->wait_for('new workers', sub { $t->workers() == 2 });
kept('killed workers');

conf(1, '10s');
ok($t->reload(), 'reload with another number of workers');
kept('another number of workers');

conf(2, '1s');
ok($t->reload(), 'reload with a short timeout');
kept('short timeout');
is_deeply([tables($t->master())], \@table, 'the master has the same table');

my $old = $t->upgrade_begin();
kept('two binaries');
is_deeply([tables($t->master())], \@table, 'both have the same table');

my $new = $t->master();
kill 'QUIT', $new;
$t->wait_for('the old pid file', sub { ($t->master() // 0) == $old });
kept('while the new binary leaves');
ok($t->wait_gone($new), 'the new binary leaves');
kept('rolled back');

is($t->upgrade(), $old, 'upgrade');
kept('upgrade');
is_deeply([tables($t->master())], \@table, 'the new binary has the table');

my @idle = clients(CLIENTS, sort keys %ways);
my @before = ports(@idle);
$t->wait_for('idle flows to end', sub { !legs(@before) });
is_deeply([ports(@idle)], \@before, 'flows that were idle: the same ports');

ok($t->wait_gone($old), 'the old binary leaves');


# few ports

sub sysctl {
    my ($name, $value) = @_;

    open my $fh, '>', "/proc/sys/net/ipv4/$name" or die "$name: $!";
    print $fh $value;
    close $fh or die "$name: $!";
}

sysctl('ip_local_reserved_ports', RESERVED);
sysctl('ip_local_port_range', RANGE);

conf(2, '2s');
ok($t->reload(), 'reload with few ports');

my @few = clients(30, 'four');
@first = ports(@few);

ok(distinct(@first), 'few ports: none is shared') or diag("@first");
unlike("@first", qr/none/, 'few ports: all clients get answers');

my %few = map { $_ => 1 } @{ +FEW };
is(join(' ', grep { !$few{$_} } @first), '', "few ports: all are the system's");

ok($t->reload(), 'reload with most of them in use');
is_deeply([ports(@few)], \@first, 'few ports: the same after a reload');

# ports that have been of others, some of which come back

$t->wait_for('idle flows to end', sub { !legs(@first) });

my @later = clients(20, 'four');
my @all = (@later, @few[0 .. 9]);
my @second = ports(@all);

unlike("@second", qr/none/, 'ports of others: all clients get answers');
ok(distinct(@second), 'ports of others: none is shared') or diag("@second");

conf(2, '60s');
ok($t->reload(), 'reload with ports of others');
is_deeply([ports(@all)], \@second, 'ports of others: the same after a reload');
ok(silent(@few, @later), 'nobody gets the answers of another');

# more clients than ports

my @many = clients(20, 'four');
my @third = grep { $_ ne 'none' } map {
    $_->{socket}->send(short("\x05\x01abcd", 'many ' . ++$sent));
    (heard($_->{way}{backend}, "many $sent"))[0] // 'none';
} @many[0 .. 5];

cmp_ok(scalar @third, '<=', @{ +FEW } - @all, 'no more ports than there are');
ok(distinct(@second, @third), 'and none is shared');
is_deeply([ports(@all)], \@second, 'who has a port keeps it');

ok($t->stop(), 'stop');


# a system without memory that an upgrade keeps; ASan has to be loaded first

without_memfd() if $ENV{NGINX_FLAVOR} ne 'asan';

$t->done();


sub without_memfd {
    my $shim = $t->path('shim.so');

    is(system('cc', qw/-W -Wall -Werror -O2 -shared -fPIC -o/, $shim,
              "$FindBin::Bin/lib/shim.c", '-ldl'), 0, 'the shim');

    {
        local $ENV{LD_PRELOAD} = $shim;
        local $ENV{QUIC_LB_SHIM} = 'nomemfd';

        conf(2, '60s');
        $t->start();
    }

    $t->wait_log(qr/no memory to be kept by a binary upgrade/);

    @clients = clients(CLIENTS, 'four');
    @first = ports(@clients);
    is_deeply([tables($t->master())], [], 'no memfd');

    ok($t->reload(), 'reload without memfd');
    kept('without memfd, reload');

    $t->kill_worker($t->workers());
    $t->wait_for('new workers', sub { $t->workers() == 2 });
    kept('without memfd, killed workers');
}
