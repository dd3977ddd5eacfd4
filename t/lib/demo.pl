#!/usr/bin/perl

# What t/demo runs inside the environment.  All figures are those of this run:
# from the reports of the clients, the logs of the servers, and nginx.

use strict;
use warnings;


# the harness of the tests, without their output

package Demo;

use FindBin;
use lib $FindBin::Bin;

use parent 'QuicLB';


sub wait_for {
    my ($self, $what, @condition) = @_;

    return QuicLB::Process::wait_for(@condition) || die "$what: not in time\n";
}


# in place of done()

sub end {
    my ($self) = @_;

    $self->cleanup();
    $self->{checked} = 1;

    my %faults = $self->faults();

    return map { @$_ } values %faults;
}


package main;

use IO::Socket::IP;

use constant REQUESTS => 6;
use constant CONNECTIONS => 20;
use constant RELOADS => 3;

my $key = '8f95f09245765f80256934e50c66207f';
my %ids = (alpha => '31441a', beta => '31441b', gamma => '31441c');

my ($connections, $migrations, $rebindings, $reloads, $kills) = (0) x 5;
my (@moved, @lost);

$| = 1;

my $t = Demo->new();
my ($port, $status_port) = ($t->port(), $t->port());
my $servers = $t->servers([map { [$_, '127.0.0.1:0', $ids{$_}] }
                           sort keys %ids], '--lb-key', $key);
my %names = map { ($servers->address($_) => $_) } keys %ids;

configure();
show_nginx();
show_curl();
show_migration();
show_reload();
show_log();
show_counters();

exit(finish() ? 0 : 1);


sub configure {
    my @names = sort keys %ids;
    my $list = join "\n        ",
                    map { 'server ' . $servers->address($_) . ';' } @names;
    my $map = join "\n            ",
                   map { "server_id $ids{$_} " . $servers->address($_) . ';' }
                   @names;

    chmod 0600, $t->write('quic-lb.key', "$key\n");

    $t->conf(workers => 2, stream => <<"END");
    log_format quic '\$remote_addr:\$remote_port \$upstream_addr '
                    '\$quic_routed_by \$quic_config_id '
                    '\$quic_server_id \$quic_dcid '
                    '\$bytes_received \$bytes_sent';

    access_log @{[$t->path('access.log')]} quic;

    upstream h3 {
        zone h3 1m;
        $list

        quic_lb 0 {
            server_id_length 3;
            nonce_length 4;
            key_file @{[$t->path('quic-lb.key')]};
            $map
        }
    }

    server {
        listen 127.0.0.1:$port udp reuseport;
        quic_passthrough h3;
        quic_passthrough_timeout 2s;
    }

    server {
        listen 127.0.0.1:$status_port;
        return "received from clients: \$quic_passthrough_received
            sent to servers: \$quic_passthrough_sent
            replies to clients: \$quic_passthrough_replies
            flows (client addresses, of each worker): \$quic_passthrough_flows
            malformed: \$quic_passthrough_malformed
            unroutable: \$quic_passthrough_unroutable
            no backend: \$quic_passthrough_no_backend
            send failed: \$quic_passthrough_send_failed";
    }
END

    $t->start();
}


sub show_nginx {
    $t->run('version', $ENV{NGINX_BIN}, '-v');
    my ($version) = $t->read('version.err') =~ /: (.*)/;

    title("$version ($ENV{NGINX_BIN}) with this configuration");

    my ($load, $stream) = $t->read('nginx.conf')
                          =~ /^(.*?)^pid .*?^(stream .*)/ms;
    my $dir = $t->path('');

    print indented("$load\n$stream" =~ s/\Q$dir\E//gr);

    title('Three HTTP/3 servers whose connection IDs have their server ID, '
          . 'encrypted');
    printf "    %-5s  %s  server ID %s\n", $names{$_}, $_, $ids{$names{$_}}
        for sort { $names{$a} cmp $names{$b} } keys %names;
}


sub show_curl {
    title('curl, a new connection each time: any server');

    my @command = ('--http3-only', "https://127.0.0.1:$port/name");
    print "    curl --insecure @command\n";

    for my $n (1 .. REQUESTS) {
        my ($status, $body) = $t->curl(@command);
        chomp $body;

        print "    request $n: $body\n";
        lose("curl: exit status $status, \"$body\"")
            if $status != 0 || !$ids{$body};

        $connections++;
    }
}


sub show_migration {
    title('One connection that moves: the same server');

    my $report = $t->client('--connect', "127.0.0.1:$port",
                            '--local', '127.0.0.1',
                            'run', 'get:/name', 'rebind', 'get:/name',
                            'migrate', 'get:/name');
    count($report);

    my ($connection) = @{ $report->{connections} };
    @moved = @{ $connection->{locals} };

    my @datagrams = $servers->events(event => 'datagram',
                                     connection => $connection->{dcids}[0]);

    my @locals = @moved;
    my (%local, $shown);
    my $row = "    %-15s  %-16s  %-9s  %s\n";

    printf $row, 'client', 'connection ID', 'server ID', 'server';

    for my $datagram (@datagrams) {
        my ($peer, $id, $name) = @$datagram{qw/peer dcid server/};

        # nginx has a new address, too, for each of the client's
        $local{$peer} //= shift(@locals) // '?';

        next if "$local{$peer} $id $name" eq ($shown // '');
        $shown = "$local{$peer} $id $name";

        printf $row, $local{$peer}, $id,
               $id eq $connection->{dcids}[0] ? 'none yet' : server_id($id),
               $name;
    }

    my %seen = map { ($_->{server} => 1) } @datagrams;

    lose('the connection met servers ' . join(', ', sort keys %seen))
        if keys %seen != 1;
    lose('the connection did not move')
        if !$connection->{rebinds} || !$connection->{migrations};
    lose('servers saw ' . keys(%local) . ' addresses') if @locals;

    print "    (the first ID is the client's own; then the port changes as ",
          "behind a NAT,\n    then the client migrates with a new ID)\n";
}


sub server_id {
    my ($cid) = @_;

    return '-' if $t->run('decode', 'python3', '-B',
                          "$FindBin::Bin/quic_lb.py", 'decode', 0, $key, 3, 4,
                          $cid) != 0;

    return (split ' ', $t->read('decode.out'))[0];
}


sub show_reload {
    title(CONNECTIONS . ' connections that download all the time');

    my $client = $t->client_start('--connect', "127.0.0.1:$port",
                                  '--connections', CONNECTIONS,
                                  '--interval', '0.05', 'hold');
    $client->ready();
    progress($client, 'all are up');

    for (1 .. RELOADS) {
        $t->reload() ? $reloads++ : lose('nginx refused to reload');
        progress($client, "reload $_ (HUP), new workers");
    }

    $t->kill_worker(($t->workers())[0]);
    $t->wait_for('a new worker', sub { $t->workers() == 2 });
    $kills++;
    progress($client, 'a worker killed (KILL)');

    $client->command('migrate');
    progress($client, 'all migrate');

    count($client->stop_and_report());
}


sub progress {
    my ($client, $what) = @_;

    my $answer = $client->command('progress 3');

    printf "    %-29s  %4d downloads, %d of %d connections alive\n", $what,
           @$answer{qw/ticks alive/}, CONNECTIONS;
}


sub count {
    my ($report) = @_;

    for my $connection (@{ $report->{connections} }) {
        $connections++;
        $migrations += $connection->{migrations};
        $rebindings += $connection->{rebinds};

        lose("connection $connection->{id}: "
             . ($connection->{error} // 'not closed')) if !$connection->{ok};
    }

    lose($_) for @{ $report->{errors} };
}


sub show_log {
    title('nginx\'s log: a line for each address, here of the connection that '
          . 'moved');

    my $moved = join '|', map { quotemeta } @moved;
    my @lines;

    QuicLB::Process::wait_for(sub {
        @lines = $t->read('access.log') =~ /^((?:$moved) .*\n)/mg;
        return @lines >= @moved;
    }) or lose('lines in the log');

    print indented(join '', @lines);
}


sub show_counters {
    title('nginx\'s counters');

    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $status_port)
        or die "status: $@\n";

    print indented(join '', map { s/^\s+//r } <$socket>);
}


sub finish {
    my $routes = $t->routes($servers);
    my $requests = () = $servers->events(event => 'request');

    lose("$routes->{misrouted_count} packets met another server")
        if $routes->{misrouted_count};

    lose($_) for $t->end();

    my $lost = @lost;
    print "\n", ($lost ? 'FAILED' : 'ok'), ': ',
          join(', ', many($requests, 'request'),
                     many($connections, 'connection'),
                     many($migrations, 'migration'),
                     many($rebindings, 'rebinding'),
                     many($reloads, 'reload'),
                     many($kills, 'killed worker'),
                     "$lost lost"), "\n";

    return $lost == 0;
}


sub many {
    my ($count, $what) = @_;

    return "$count $what" . ($count == 1 ? '' : 's');
}


sub lose {
    my ($what) = @_;

    push @lost, $what;
    print "    FAILED: $what\n";
}


sub title {
    my ($text) = @_;

    print "\n$text\n\n";
}


sub indented {
    my ($text) = @_;

    $text =~ s/\s+\z//;
    $text =~ s/^(?=.)/    /mg;

    return "$text\n";
}
