#!/usr/bin/perl

# Servers that are drained by "down" while clients go on to open connections on
# the socket that their others use: new ones go elsewhere, the old ones stay,
# each with its server, whatever connection IDs the servers issue.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

# connections that a client has, and those that it opens later, each time
use constant { FIRST => 6, MORE => 6 };

my $t = QuicLB->new();

for my $case (
    ['QUIC-LB', { one => '0a', two => '0b' }, ''],
    ['learned connection IDs', { one => '-', two => '-' },
     'quic_passthrough_cid_zone zone=cids:256k;'],
    ['QUIC-LB with quic_preread', { one => '0a', two => '0b' },
     'quic_preread on;'],
) {
    my ($name, $ids, $more) = @$case;

    my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids->{$_}] }
                               sort keys %$ids]);
    my $port = $t->port();

    my $conf = sub { conf($servers, $ids, $port, $more, @_) };

    $conf->();
    $t->start();

    my $client = $t->client_start('--connect', "127.0.0.1:$port", '--alpn',
                                  'echo', '--interval', '0.1',
                                  '--shared-socket', '--connections', FIRST,
                                  'hold');
    is($client->ready()->{failed}, 0, "$name: connections");

    # one after the other, and then again

    my @drained = (undef);

    for my $down (qw/one two one/) {
        $conf->($down);
        ok($t->reload(), "$name: $down is down");

        is($client->command('open ' . MORE)->{failed}, 0,
           "$name: the client opens more connections");
        is($client->command('progress 3')->{failed}, 0,
           "$name: all connections go on");

        push @drained, $down;
    }

    is($client->command('migrate')->{failed}, 0, "$name: all migrate")
        if !$more;

    my $report = $client->stop_and_report();
    is($report->{failed}, 0, "$name: to the end") or $t->explain($report);
    is_deeply($report->{errors}, [], "$name: no datagram of others");

    my %servers = servers($servers);
    my %used;

    for my $connection (@{ $report->{connections} }) {
        my $server = $servers{$connection->{dcids}[0]};
        my $round = $connection->{id} < FIRST
                    ? 0 : 1 + int(($connection->{id} - FIRST) / MORE);

        $used{$server}++ if $round == 0;
        next if $round == 0;

        isnt($server, $drained[$round],
             "$name: connection $connection->{id} is not opened at "
             . $drained[$round]);
    }

    is(scalar(grep { $_ eq 'many' } values %servers), 0,
       "$name: each connection has one server");
    note(join ' ', %used);

    ok($t->stop(), 'nginx ends');
}

$t->done();


sub conf {
    my ($servers, $ids, $port, $more, $down) = @_;

    $down //= '';

    my $lines = join "\n", map {
        'server ' . $servers->address($_) . ($_ eq $down ? ' down;' : ';')
    } sort keys %$ids;

    my $balancer = $ids->{one} eq '-' ? 'quic_maglev;' : <<"CONF";
        quic_lb 0 {
            server_id_length 1;
            nonce_length 4;
            @{[$servers->id_lines($ids)]}
        }
CONF

    $t->conf(workers => 2, stream => <<"CONF");
    upstream u {
        zone u 256k;
        $lines
        $balancer
    }

    server {
        listen 127.0.0.1:$port udp reuseport;
        quic_passthrough u;
        quic_passthrough_timeout 5s;
        $more
    }
CONF
}


# the server of each connection, by its first DCID; "many" for several

sub servers {
    my ($servers) = @_;
    my %found;

    for my $event ($servers->events(event => 'connected')) {
        my $connection = $event->{connection};

        $found{$connection} = exists $found{$connection} ? 'many'
                                                         : $event->{server};
    }

    for my $event ($servers->events(event => 'datagram')) {
        my $connection = $event->{connection} // next;

        $found{$connection} = 'many'
            if ($found{$connection} // '') ne $event->{server};
    }

    return %found;
}
