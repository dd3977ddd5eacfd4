package QuicLB::Relay;

# A relay between both ends of relay_ends.py; for the t/relay*.t.
#
#   my $r = QuicLB::Relay->new($t, %options);   # nginx is configured
#   $t->start();
#   my $report = $r->ends('queries', 100);      # of relay_ends.py
#   my $report = $r->ends_with(sub { ... }, 'wait');    # while it waits
#   my $process = $r->ends_start('queries', 100);       # and
#   my $report = $r->ends_report($process);
#
# Options: server, more directives of the server; stream, more of the block;
# address (127.0.0.1) and listen, more parameters of "listen"; parts, as of
# $t->conf(); upstream, the port of the server; target, what is relayed to;
# upstream_cert and upstream_key, else those of $t->certificate(); name, by
# which the upstream is verified (localhost), ca (the certificate itself).
# relay_ends.py gets @{ $r->{options} }, too; @{ $r->{conf} } is what $t->conf()
# has got.

use strict;
use warnings;

use JSON::PP;

# of all relays of a test: what is left of one is not to be another's report
my $count = 0;


sub new {
    my ($class, $t, %options) = @_;

    my ($cert, $key) = $t->certificate();

    my $self = bless {
        t => $t,
        port => $t->port(),
        upstream => $options{upstream} // $t->port(),
        options => [],
        cert => $options{upstream_cert} // $cert,
        key => $options{upstream_key} // $key,
    }, $class;

    my $name = $options{name} // 'localhost';
    my $ca = $options{ca} // $cert;
    my $server = $options{server} // '';
    my $stream = $options{stream} // '';
    my $listen = $options{listen} // '';
    my $address = $options{address} // '127.0.0.1';
    my $target = $options{target} // "127.0.0.1:$self->{upstream}";

    $self->{conf} = [%{ $options{parts} // {} }, stream => <<"CONF"];
    log_format relay '\$protocol \$status \$upstream_addr';
    access_log @{[ $t->path('access.log') ]} relay;
    $stream

    server {
        listen $address:$self->{port} udp $listen;

        ssl_certificate $cert;
        ssl_certificate_key $key;

        quic_relay $target;
        quic_relay_ssl_name $name;
        quic_relay_ssl_trusted_certificate $ca;
        $server
    }
CONF

    $t->conf(@{ $self->{conf} });

    return $self;
}


sub ends {
    my ($self, @scenario) = @_;

    return $self->ends_with(undef, @scenario);
}


# |$ready|: a sub to be called when the scenario has written "ready", which is
# then told that it is over

sub ends_with {
    my ($self, $ready, @scenario) = @_;

    my $process = $self->ends_start(@scenario);

    if ($ready) {
        $process->wait_line(qr/^(ready)$/, 300)
            or die "not ready\n" . $process->stderr();
        $ready->();
        $process->say('done');
    }

    return $self->ends_report($process);
}


sub ends_start {
    my ($self, @scenario) = @_;

    my $t = $self->{t};
    my $name = 'ends' . ++$count;
    my ($worker) = $t->workers();
    (my $lib = __FILE__) =~ s{/QuicLB/Relay\.pm$}{};

    return $t->helper($name, 'python3', '-B', "$lib/relay_ends.py",
        '--connect', "127.0.0.1:$self->{port}",
        '--listen', "127.0.0.1:$self->{upstream}",
        '--cert', $self->{cert}, '--key', $self->{key},
        '--worker', $worker, @{ $self->{options} }, @scenario);
}


sub ends_report {
    my ($self, $process) = @_;

    my ($line) = $process->wait_line(qr/^(\{.*\})$/, 600)
        or die "no report\n" . $process->stderr();

    $process->wait();

    return decode_json($line);
}


1;
