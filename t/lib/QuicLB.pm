package QuicLB;

# Harness of the tests with real servers and clients; for Test::More.
#
#   use lib 't/lib';                    # or FindBin's "$FindBin::Bin/lib"
#   use QuicLB;
#
#   my $t = QuicLB->new();
#   my $port = $t->port();              # free, UDP and TCP, IPv4 and IPv6
#   my $servers = $t->servers([['one', '127.0.0.1:0', 'aabbcc']],
#                             '--lb-key', $key);
#   $t->conf(workers => 2, stream => "server { ... }");
#   $t->start();
#   my $report = $t->client('--connect', "127.0.0.1:$port", 'run', 'get:/');
#   ok($report->{ok}, 'answered') or $t->explain($report);
#   $t->done();                         # check() and done_testing()
#
# nginx:
#   conf(%parts)        nginx.conf; parts: main, events, stream, http, workers
#                       (1), log (level of error.log, info), connections
#   test_conf(%parts)   (true when valid, output) of nginx -t, apart from conf
#   start, stop($signal), reload, upgrade, upgrade_begin
#                       each waits until it is done; reload is false when the
#                       configuration was refused; upgrade returns the old
#                       master's pid: wait_gone() it when its flows are idle;
#                       upgrade_begin leaves both masters, and the choice of
#                       the one to quit
#   master, workers, leaving_workers, kill_worker(@pids)
#   while_stopped($sub) the workers read what $sub sends only after all of it
#   error_log, wait_log($regex, $seconds), expect_log($regex): an [alert] or
#                       [emerg] that is wanted
#   log_count($regex), access_count($regex)     matching lines of error.log, and
#                       of access.log, which is for conf() to set
#   counters_server($port, @names)      a "server" of "stream" that tells these
#                       counters, $quic_passthrough_NAME
#   counters($port)     what it tells: { name => value }
# peers:
#   servers($list, @options)    a QuicLB::Servers, $list of [name, addr, id]
#   routes(@servers)            what their logs tell; see quic_log.py
#   client(@arguments)          the report of a finished quic_client.py
#   client_start(@arguments)    a QuicLB::Client
#   h3(@arguments)              the report of a finished h3_client.py
#   ngtcp2($host, $port, $url, @options)   its body, undefined without ngtcp2
#   h3_start(@arguments)        a QuicLB::H3Client
#   h3_script($address, @actions)       the report of a finished script
#   curl(@arguments)            (exit code, output)
#   helper($name, @command)     a QuicLB::Process that takes commands
#   udp_ask($addr, $port, $data, $seconds)      the answer or undef; for more
#                       see QuicLB::Udp and QuicLB::Packet
# small things:
#   wait_for($what, $sub, $seconds)     polls; fails the test when time is up
#   path($name), write($name, $text), read($name)       files of the test
#   certificate         (certificate, key) file names
#
# Environment: NGINX_BIN, QUIC_LB_LOAD (t/env sets them); QUIC_LB_KEEP=1
# keeps the test's folder.
#
# When the test ends, check() fails it for an [alert] or [emerg] in error.log,
# a sanitizer's report anywhere, or a traceback of a server or client; a test
# that never calls either gets the same as a failing exit status.

use strict;
use warnings;

use Cwd qw/abs_path/;
use File::Basename qw/dirname/;
use File::Temp qw/tempdir/;
use IO::Select;
use IO::Socket::IP;
use JSON::PP;
use Socket qw/AF_UNIX SOCK_DGRAM SOCK_STREAM pack_sockaddr_un/;
use Test::More ();
use Time::HiRes;

use QuicLB::Client;
use QuicLB::H3Client;
use QuicLB::Process qw/slurp pid_gone/;
use QuicLB::Servers;

my $lib = dirname(abs_path(__FILE__));

# below the usual range of ephemeral ports, so that none is taken by chance
use constant FIRST_PORT => 10000;
use constant PORTS => 20000;

# what the certificate is valid for, beside localhost
use constant NAMES => [qw/example.com a.example.com b.example.com/];

my $sanitizer = qr/(?:Address|Leak|UndefinedBehavior|Thread)Sanitizer
                   |runtime\ error:/x;

# kept to the end, so that END finds what a dying test leaves
my @live;

# of all objects of a test: the next port to try, and what reserves those that
# were given
my $next_port = ($$ * 37) % PORTS;
my @reserved;


sub new {
    my ($class) = @_;

    my $self = bless {
        dir => tempdir('quic-lb-XXXXXXXX', TMPDIR => 1,
                       CLEANUP => !$ENV{QUIC_LB_KEEP}),
        processes => [],
        expected => [],
        masters => {},
        old_workers => {},
        workers => 1,
        owner => $$,
    }, $class;

    # workers run as another user
    chmod 0755, $self->{dir};

    # where an nginx built with default paths has its access log
    mkdir $self->path('logs');

    push @live, $self;

    return $self;
}


# files

sub path {
    my ($self, $name) = @_;

    return "$self->{dir}/$name";
}


sub write {
    my ($self, $name, $text) = @_;

    my $path = $self->path($name);
    open my $fh, '>:raw', $path or die "$path: $!";
    print $fh $text;
    close $fh or die "$path: $!";

    return $path;
}


sub read {
    my ($self, $name) = @_;

    return slurp($self->path($name));
}


sub certificate {
    my ($self) = @_;

    my ($cert, $key) = map { $self->path($_) } qw/cert.pem key.pem/;

    if (!-e $cert) {
        # no wildcard: python3-service-identity fails on "localhost" with one
        my @names = (map({ "DNS:$_" } 'localhost', @{ +NAMES }),
                     'IP:127.0.0.1', 'IP:::1');

        $self->run('openssl', qw/openssl req -x509 -nodes -days 30
            -newkey ec -pkeyopt ec_paramgen_curve:prime256v1
            -subj/, '/CN=localhost',
            '-addext', 'subjectAltName=' . join(',', @names),
            '-keyout', $key, '-out', $cert) == 0
            or die "openssl:\n" . $self->read('openssl.err');
    }

    return ($cert, $key);
}


# ports and datagrams

sub port {
    my ($self) = @_;

    for (1 .. PORTS) {
        my $port = FIRST_PORT + $next_port++ % PORTS;

        return $port if reserve($port) && port_free($port);
    }

    die "no free port";
}


# other tests of the network namespace do not take the port before nginx does,
# nor while nobody is to listen at it: the name is in use as long as this test

sub reserve {
    my ($port) = @_;

    socket my $socket, AF_UNIX, SOCK_DGRAM, 0 or die "socket: $!";
    bind $socket, pack_sockaddr_un("\0quic-lb-port-$port") or return 0;

    return push @reserved, $socket;
}


sub port_free {
    my ($port) = @_;

    for my $host ('0.0.0.0', '::') {
        for my $type (SOCK_DGRAM, SOCK_STREAM) {
            IO::Socket::IP->new(LocalHost => $host, LocalPort => $port,
                                Type => $type, V6Only => 1)
                or return 0;
        }
    }

    return 1;
}


sub udp_ask {
    my ($self, $address, $port, $data, $seconds) = @_;

    my $socket = IO::Socket::IP->new(PeerHost => $address, PeerPort => $port,
                                     Type => SOCK_DGRAM)
        or die "$address:$port: $@";

    $socket->send($data);
    IO::Select->new($socket)->can_read($seconds // 30) or return undef;

    my $answer;

    return defined $socket->recv($answer, 65536) ? $answer : undef;
}


# polling

sub wait_for {
    my ($self, $what, $condition, $seconds) = @_;

    my $result = QuicLB::Process::wait_for($condition, $seconds);
    Test::More::fail("$what: in time") if !$result;

    return $result;
}


sub wait_gone {
    my ($self, $pid, $seconds) = @_;

    return QuicLB::Process::wait_for(sub { pid_gone($pid) }, $seconds);
}


sub wait_log {
    my ($self, $regex, $seconds) = @_;

    return $self->wait_for("log $regex",
                           sub { $self->error_log() =~ $regex }, $seconds);
}


# processes

# runs to the end; output in NAME.out and NAME.err; the exit status

sub run {
    my ($self, $name, @command) = @_;

    my $process = QuicLB::Process->new($name, $self->{dir}, \@command);
    push @{ $self->{processes} }, $process;

    return $process->wait(300) // die "$name: does not end";
}


sub servers {
    my ($self, $list, @options) = @_;

    my ($cert, $key) = $self->certificate();
    my $name = 'servers' . ++$self->{server_count};
    my $servers = QuicLB::Servers->new($name, $self->{dir},
        ['python3', '-B', "$lib/quic_server.py", '--cert', $cert,
         '--key', $key, @options], $list);

    push @{ $self->{processes} }, $servers;

    return $servers;
}


sub routes {
    my ($self, @servers) = @_;

    $self->run('routes', 'python3', '-B', "$lib/quic_log.py",
               map { $_->log_path() } @servers) == 0
        or die "routes:\n" . $self->read('routes.err');

    return decode_json($self->read('routes.out'));
}


sub client_start {
    my ($self, @arguments) = @_;

    local $ENV{QUIC_LB_PORTS} = $self->path('ports');

    my $name = 'client' . ++$self->{client_count};
    my $client = QuicLB::Client->new($name, $self->{dir},
        ['python3', '-B', "$lib/quic_client.py", @arguments], stdin => 1);

    push @{ $self->{processes} }, $client;

    return $client;
}


sub client {
    my ($self, @arguments) = @_;

    return $self->client_start(@arguments)->report();
}


sub h3_start {
    my ($self, @arguments) = @_;

    my $name = 'h3client' . ++$self->{h3_count};
    my $client = QuicLB::H3Client->new($name, $self->{dir},
        ['python3', '-B', "$lib/h3_client.py", @arguments], stdin => 1);

    push @{ $self->{processes} }, $client;

    return $client;
}


sub h3 {
    my ($self, @arguments) = @_;

    return $self->h3_start(@arguments)->report();
}


sub h3_script {
    my ($self, $address, @actions) = @_;

    my $client = $self->h3_start('--connect', $address, 'script');
    $client->actions(@actions);

    return $client->report();
}


sub helper {
    my ($self, $name, @command) = @_;

    my $process = QuicLB::Process->new($name, $self->{dir}, \@command,
                                       stdin => 1);
    push @{ $self->{processes} }, $process;

    return $process;
}


# the body that ngtcp2's client gets; undefined where that client is not there

sub ngtcp2 {
    my ($self, $host, $port, $url, @options) = @_;

    return if !grep { -x "$_/gtlsclient" } split /:/, $ENV{PATH};

    my $number = ++$self->{ngtcp2_count};
    my $folder = $self->path("ngtcp2_$number");
    mkdir $folder or die "$folder: $!";

    $self->run("gtlsclient$number", 'gtlsclient', '--quiet',
               "--download=$folder", '--timeout=60s',
               '--exit-on-all-streams-close', @options, $host, $port, $url);

    my ($name) = $url =~ m{([^/]+)$};
    return -e "$folder/$name" ? $self->read("ngtcp2_$number/$name") : '';
}


sub curl {
    my ($self, @arguments) = @_;

    my $name = 'curl' . ++$self->{curl_count};
    my $status = $self->run($name, 'curl', '--silent', '--show-error',
                            '--insecure', '--max-time', 100, @arguments);

    return ($status >> 8, $self->read("$name.out"));
}


# the faults of a report, as diagnostics

sub explain {
    my ($self, $report) = @_;

    Test::More::diag("client: $_") for @{ $report->{errors} };

    for my $connection (grep { !$_->{ok} } @{ $report->{connections} }) {
        Test::More::diag("connection $connection->{id}: "
                         . ($connection->{error} // 'not closed'));
    }
}


# nginx

sub conf {
    my ($self, %parts) = @_;

    $self->{workers} = $parts{workers} // 1;
    $self->write('nginx.conf', $self->_conf_text('error.log', %parts));
}


sub _conf_text {
    my ($self, $log, %parts) = @_;

    my $load = $ENV{QUIC_LB_LOAD} // '';
    my $workers = $parts{workers} // 1;
    my $level = $parts{log} // 'info';
    my $connections = $parts{connections} // 4096;
    my $main = $parts{main} // '';
    my $events = $parts{events} // '';

    my $text = <<"EOF";
$load
pid $self->{dir}/nginx.pid;
error_log $self->{dir}/$log $level;
worker_processes $workers;
$main
events {
    worker_connections $connections;
    $events
}
EOF

    for my $block (grep { defined $parts{$_} } qw/stream http/) {
        $text .= "$block {\n$parts{$block}\n}\n";
    }

    return $text;
}


sub nginx {
    my ($self, $conf, $log, @arguments) = @_;

    my $binary = $ENV{NGINX_BIN} or die "NGINX_BIN is not set: use t/env";
    my $name = 'nginx' . ++$self->{nginx_count};

    # t/env's setting; to nginx it would be a list of inherited sockets
    delete local $ENV{NGINX};

    my $status = $self->run($name, $binary, '-p', "$self->{dir}/",
                            '-e', $self->path($log), '-c', $self->path($conf),
                            @arguments);

    return ($status == 0, $self->read("$name.err"));
}


sub test_conf {
    my ($self, %parts) = @_;

    $self->write('test.conf', $self->_conf_text('test.log', %parts));

    return $self->nginx('test.conf', 'test.log', '-t');
}


sub start {
    my ($self) = @_;

    my ($ok, $output) = $self->nginx('nginx.conf', 'error.log');
    die "nginx does not start:\n$output" if !$ok;

    QuicLB::Process::wait_for(sub {
        my $pid = $self->master();
        return $pid && $self->workers() == $self->{workers};
    }) or die "nginx: no workers\n" . $self->error_log();

    $self->_remember();
}


sub stop {
    my ($self, $signal, $seconds) = @_;

    my $pid = $self->master() or return 1;

    kill $signal // 'TERM', $pid;

    return $self->wait_gone($pid, $seconds);
}


sub reload {
    my ($self) = @_;

    my $master = $self->master();
    my %old = map { $_ => 1 } $self->workers();
    my $refusals = () = $self->error_log() =~ /\[emerg\]/g;

    kill 'HUP', $master;

    my $refused = 0;
    my $done = $self->wait_for('reload', sub {
        my $count = () = $self->error_log() =~ /\[emerg\]/g;
        return $refused = 1 if $count > $refusals;

        my @workers = $self->workers();
        return @workers == $self->{workers} && !grep { $old{$_} } @workers;
    });

    $self->_remember();

    return $done && !$refused;
}


sub upgrade {
    my ($self) = @_;

    my $old = $self->upgrade_begin();
    kill 'QUIT', $old;

    return $old;
}


# nginx refuses USR2 while its own parent lives, hence daemons only

sub upgrade_begin {
    my ($self) = @_;

    my $old = $self->master();

    kill 'USR2', $old;

    $self->wait_for('binary upgrade', sub {
        my $new = $self->master();
        return $new && $new != $old && -e $self->path('nginx.pid.oldbin')
               && $self->workers() == $self->{workers};
    });

    $self->_remember();

    return $old;
}


sub master {
    my ($self) = @_;

    my ($pid) = $self->read('nginx.pid') =~ /^(\d+)$/;

    return defined $pid && !pid_gone($pid) ? $pid : undef;
}


# initialized and not leaving; of the current master by default

sub workers {
    my ($self, $master) = @_;

    return children($master // $self->master(), qr/^nginx: worker process$/);
}


sub leaving_workers {
    my ($self, $master) = @_;

    return children($master // $self->master(),
                    qr/^nginx: worker process is shutting down$/);
}


# returns when they are gone; one may have had the lock of a zone

sub kill_worker {
    my ($self, @pids) = @_;

    for my $pid (@pids) {
        $self->expect_log(qr/worker process $pid exited on signal 9/);
        $self->expect_log(qr/shared memory zone .* was locked by $pid$/);
    }

    kill 'KILL', @pids;

    for my $pid (@pids) {
        $self->wait_for('a killed worker', sub { pid_gone($pid) });
    }
}


sub while_stopped {
    my ($self, $sub) = @_;
    my @workers = $self->workers();

    kill 'STOP', @workers;

    for my $pid (@workers) {
        $self->wait_for('a stopped worker',
                        sub { slurp("/proc/$pid/stat") =~ /\) T / });
    }

    $sub->();
    kill 'CONT', @workers;
}


sub children {
    my ($parent, $title) = @_;

    my @found;
    return @found if !defined $parent;

    for my $path (glob '/proc/[0-9]*') {
        my ($ppid) = slurp("$path/stat") =~ /\) [^ZX] (\d+) / or next;
        next if $ppid != $parent;

        (my $found = slurp("$path/cmdline")) =~ s/[\0 ]+$//;
        push @found, $path =~ /(\d+)$/ if $found =~ $title;
    }

    return @found;
}


# what cleanup() may have to kill

sub _remember {
    my ($self) = @_;

    my $master = $self->master() or return;

    $self->{masters}{$master} = 1;
    $self->{old_workers}{$_} = 1 for $self->workers();
}


# the counters of quic_passthrough

sub counters_server {
    my ($self, $port, @names) = @_;

    my $text = join ' ', map { "$_ \$quic_passthrough_$_" } @names;

    return <<"EOF";
server {
    listen 127.0.0.1:$port;
    access_log off;
    return "$text";
}
EOF
}


sub counters {
    my ($self, $port) = @_;

    my $socket = IO::Socket::IP->new(PeerHost => '127.0.0.1',
                                     PeerPort => $port, Timeout => 30)
        or die "counters: $@";

    return { split ' ', <$socket> };
}


# logs and the last checks

sub error_log {
    my ($self) = @_;

    return $self->read('error.log');
}


sub log_count {
    my ($self, $regex) = @_;

    return scalar(grep { $_ =~ $regex } split /\n/, $self->error_log());
}


sub access_count {
    my ($self, $regex) = @_;

    return scalar(grep { $_ =~ $regex } split /\n/, $self->read('access.log'));
}


sub expect_log {
    my ($self, $regex) = @_;

    push @{ $self->{expected} }, $regex;
}


sub done {
    my ($self) = @_;

    $self->check();
    Test::More::done_testing();
}


# stops all; done() without the end of the tests, where there are two harnesses

sub check {
    my ($self) = @_;

    $self->cleanup();
    my %faults = $self->faults();

    for my $what (sort keys %faults) {
        Test::More::is(join("\n", @{ $faults{$what} }), '', "no $what");
    }

    $self->{checked} = 1;
}


sub faults {
    my ($self) = @_;

    my @log = split /\n/, $self->error_log();
    my @stderr = map { split /\n/, $_->stderr() } @{ $self->{processes} };

    my @loud = grep { /\[(?:alert|emerg)\]/ } @log;

    for my $regex (@{ $self->{expected} }) {
        @loud = grep { $_ !~ $regex } @loud;
    }

    return (
        'alert or emerg in error.log' => \@loud,
        'sanitizer report' => [grep { $_ =~ $sanitizer } @log, @stderr],
        'fault of a test server or client'
            => [grep { /Traceback|Exception|Error:/ } @stderr],
    );
}


sub cleanup {
    my ($self) = @_;

    end_nginx(keys %{ $self->{masters} });
    $_->stop() for @{ $self->{processes} };

    # workers outlive a master that was killed
    end_nginx(keys %{ $self->{old_workers} });

    ($self->{masters}, $self->{old_workers}) = ({}, {});
}


sub end_nginx {
    my @pids = grep { is_nginx($_) } @_;

    kill 'TERM', @pids;

    for my $pid (@pids) {
        next if QuicLB::Process::wait_for(sub { !is_nginx($pid) }, 30);

        Test::More::diag("nginx process $pid does not end: killed");
        kill 'KILL', $pid;
    }
}


# by its title, too: the pid may be another process's by now

sub is_nginx {
    my ($pid) = @_;

    return !pid_gone($pid) && slurp("/proc/$pid/cmdline") =~ /^nginx: /;
}


END {
    my $status = $?;

    for my $self (grep { $_->{owner} == $$ } @live) {
        $self->cleanup();
        next if $self->{checked};

        my %faults = $self->faults();
        my @lines = map { @$_ } values %faults;

        Test::More::diag("done() was not called");
        Test::More::diag($_) for @lines;
        $status ||= 1 if @lines;
    }

    $? = $status;
}


1;
