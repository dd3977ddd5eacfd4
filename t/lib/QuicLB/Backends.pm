package QuicLB::Backends;

# HTTP/3 servers of a stock nginx without any module: its connection IDs are
# random, its tokens those of "quic_host_key".
#
#   my $backends = QuicLB::Backends->new($t, names => [qw/one two/], %options);
#   $backends->lines()                  # "server ADDRESS;", for an upstream
#   $backends->address('one')           # 127.0.0.1:PORT
#   $backends->peers('one')             # addresses that have asked it
#   $backends->reload(%options)         # with other options
#   $backends->error_log()
#
# Options: address (127.0.0.1), host_key (a file), retry (off), http, more of
# the "http" block.  They answer as quic_server.py does: GET /name, and
# /bytes/N for the numbers of SIZES.  They have a spare connection ID for each
# of some changes of path.

use strict;
use warnings;

use QuicLB::Process qw/slurp wait_for/;

use constant SIZES => (2000, 20000, 800000);

my $count = 0;


sub new {
    my ($class, $t, %options) = @_;

    my $self = bless {
        t => $t,
        name => 'backends' . ++$count,
        names => $options{names},
        host => $options{address} // '127.0.0.1',
        ports => { map { $_ => $t->port() } @{ $options{names} } },
    }, $class;

    $self->_files();
    $self->_conf(%options);

    delete local $ENV{NGINX};

    my $process = $t->helper($self->{name}, $ENV{NGINX_BIN},
        '-p', $t->path(''), '-e', $t->path("$self->{name}.error"),
        '-c', $t->path("$self->{name}.conf"), '-g', 'daemon off;');

    $self->{process} = $process;

    wait_for(sub { $t->workers($process->pid()) == 1
                   || defined $process->status() })
        && !defined $process->status()
        or die "$self->{name}:\n" . $process->stderr() . $self->error_log();

    return $self;
}


# nginx has the pattern in files

sub _files {
    my ($self) = @_;

    (my $lib = __FILE__) =~ s{/QuicLB/Backends\.pm$}{};
    my $t = $self->{t};

    return if -d $t->path('bytes');
    mkdir $t->path('bytes');

    $t->run('pattern', 'python3', '-B', '-c', <<'PYTHON', $lib,
import sys
sys.path.insert(0, sys.argv[1])
from quic_net import pattern
for size in sys.argv[3:]:
    open(f"{sys.argv[2]}/{size}", "wb").write(pattern(0, int(size)))
PYTHON
        $t->path('bytes'), SIZES) == 0 or die $t->read('pattern.err');
}


sub _conf {
    my ($self, %options) = @_;

    my $t = $self->{t};
    my ($cert, $key) = $t->certificate();
    my $host_key = $options{host_key} ? "quic_host_key $options{host_key};"
                                      : '';
    my $retry = $options{retry} // 'off';
    my $http = $options{http} // '';

    my $servers = join '', map { <<"CONF" } @{ $self->{names} };

    server {
        listen $self->{host}:$self->{ports}{$_} quic;

        location = /name {
            add_header server-name $_;
            return 200 "$_\\n";
        }

        location /bytes/ {
            add_header server-name $_;
            root @{[ $t->path('') ]};
        }

        access_log @{[ $t->path("$self->{name}-$_.access") ]} peer;
    }
CONF

    $t->write("$self->{name}.conf", <<"CONF");
pid @{[ $t->path("$self->{name}.pid") ]};
error_log @{[ $t->path("$self->{name}.error") ]} info;
worker_processes 1;

events {
    worker_connections 16384;
}

http {
    log_format peer '\$remote_addr:\$remote_port';
    ssl_certificate $cert;
    ssl_certificate_key $key;
    quic_active_connection_id_limit 8;
    quic_retry $retry;
    $host_key
    $http
$servers
}
CONF
}


sub lines {
    my ($self) = @_;

    return join "\n", map { "server " . $self->address($_) . ';' }
                      @{ $self->{names} };
}


sub address {
    my ($self, $name) = @_;

    return "$self->{host}:$self->{ports}{$name}";
}


sub peers {
    my ($self, $name) = @_;

    return split /\n/, slurp($self->{t}->path("$self->{name}-$name.access"));
}


sub reload {
    my ($self, %options) = @_;

    my $t = $self->{t};
    my $master = $self->{process}->pid();
    my ($old) = $t->workers($master);

    $self->_conf(%options);
    $self->{process}->signal('HUP');

    return $t->wait_for('reload of backends', sub {
        my @workers = $t->workers($master);
        return @workers == 1 && $workers[0] != $old;
    });
}


sub error_log {
    my ($self) = @_;

    return slurp($self->{t}->path("$self->{name}.error"));
}


1;
