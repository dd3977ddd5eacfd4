#!/usr/bin/perl

# Reload and binary upgrade with HTTP/3: the connections of older workers are
# drained, nothing in flight is lost, and new clients are served throughout.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Http3;

use constant WORKERS => 2;
use constant CLIENTS => 8;

my $t = QuicLB->new();
my ($port, $any) = map { $t->port() } 1 .. 2;

# 3 seconds
$t->write('slow', 'x' x 1000000);
$t->write('host.key', 'x' x 32);

sub conf {
    my ($workers, $name) = @_;

    my $locations = <<"CONF";
        root @{[$t->path('')]};
        quic_host_key @{[$t->path('host.key')]};

        location / {
            return 200 "$name\\n";
        }

        location /slow {
            limit_rate 250k;
        }
CONF

    $t->conf(workers => $workers, http => <<"CONF");
        access_log off;

        server {
            @{[listen_lines($t, $port)]}
            $locations
        }

        server {
            listen $any quic reuseport;
            listen [::]:$any quic reuseport ipv6only=on;
            ssl_certificate @{[($t->certificate())[0]]};
            ssl_certificate_key @{[($t->certificate())[1]]};
            http3_max_requests 0;
            $locations
        }
CONF
}

sub downloads {
    my @clients;

    # not complete before the GOAWAY is there
    my @window = ('--window', 100000);
    my @begin = (['hold', 'a'], ['get', 'a', '/slow'], ['wait_status', 'a'],
                 ['say', 'up']);
    my @end = (['unhold', 'a'], ['wait', 'a'], ['wait_close']);

    for my $n (1 .. CLIENTS) {
        my $client = $t->h3_start('--connect', "127.0.0.1:$port",
                                  @window, 'script');
        $client->actions(@begin, ['wait_goaway'], ['get', 'b', '/'],
                         ['wait', 'b'], @end);
        push @clients, $client;
    }

    # a wildcard, IPv6, and a server that leaves connections to nginx
    for my $address ("127.0.0.2:$any", "[::1]:$any") {
        my $client = $t->h3_start('--connect', $address, @window, 'script');
        $client->actions(@begin, ['wait_goaway'], @end);
        push @clients, $client;
    }

    $_->wait_said('up') for @clients;

    return @clients;
}

sub complete {
    my ($what, @clients) = @_;

    my @connections = map {
        my $report = $_->report();
        diag("$what: $report->{error}") if $report->{error};
        $report->{connections}[0];
    } @clients;

    is(scalar(grep { ((streams($_))[0] // {})->{length} == 1000000 }
                   @connections),
       CLIENTS + 2, "$what: all downloads complete");
    is(scalar(grep { "@{ $_->{goaways} }" eq '4' } @connections),
       CLIENTS + 2, 'GOAWAY for all');
    is(scalar(grep { rejected($_) == 1 } @connections), CLIENTS,
       'late requests are rejected');
    is(scalar(grep { ($_->{close}{code} // 0) == H3_NO_ERROR
                     && $_->{close}{app} } @connections),
       CLIENTS + 2, 'H3_NO_ERROR for all');
}

# what new clients get, meanwhile; a lost first packet is a second more

sub served {
    my ($what, $count) = @_;
    my %names;

    for (1 .. $count) {
        my ($code, $output) = $t->curl('--http3-only', '--max-time', 20,
                                       "https://localhost:$port/");
        $names{ $code ? "error $code" : $output =~ s/\n//r }++;
    }

    is(join(' ', grep { /error/ } sort keys %names), '',
       "$what: new clients are served");

    return %names;
}

conf(WORKERS, 'one');
$t->start();

my @clients = downloads();

conf(WORKERS, 'two');
ok($t->reload(), 'reload');
served('reload', 20);
complete('reload', @clients);
is(join(' ', served('after it', 5)), 'two 5', 'by the new workers');

$t->wait_for('old workers to leave', sub { $t->leaving_workers() == 0 });


# several at once

@clients = downloads();

for my $name (qw/three four five/) {
    conf(WORKERS, $name);
    ok($t->reload(), "reload $name");
}

served('three reloads', 5);
complete('three reloads', @clients);
is(join(' ', served('after them', 5)), 'five 5', 'by the newest workers');


# binary upgrade

@clients = downloads();
conf(WORKERS, 'six');

my $old = $t->upgrade_begin();
is(join(' ', served('upgrade', 5)), 'five 5',
   'the old workers go on until they are told to quit');

kill 'QUIT', $old;
served('upgrade', 10);
complete('upgrade', @clients);
ok($t->wait_gone($old), 'the old binary leaves');
is(join(' ', served('after it', 5)), 'six 5', 'by the new binary');


# a worker that is killed has an heir

$t->kill_worker($t->workers());

$t->wait_for('new workers', sub { $t->workers() == WORKERS });
is(join(' ', served('killed workers', 5)), 'six 5', 'by the new ones');

is($t->log_count(qr/\[(?:warn|error|crit)\]/), 0, 'nothing failed')
    or diag($t->error_log() =~ /^(.*\[(?:warn|error|crit)\].*)$/m);

$t->done();
