package QuicLB::Bodies;

# What the tests of bodies over HTTP/3 share.
#
#   my $up = upstreams($t, 'http', 'fastcgi');      # http_upstream.py
#   $up->{port}[0];
#   my @requests = seen($up);                       # and forgotten
#   my @requests = seen($up, 3);                    # when there are 3
#   my @answers = http3($t, $port, \@requests);     # http3_client.py
#   my $client = http3_start($t, $port, \@requests);
#   my @answers = http3_report($client);
#   server($t, $port, $text)    a server block that listens for HTTP/3
#   params                      what fastcgi, scgi and uwsgi have to be told
#   post($path, $size, $length) a request; without $length none is declared
#   proxy_http2($t)             whether nginx has "proxy_http_version 2"
#   tcp_wmem("MIN DEFAULT MAX") buffers of TCP in the namespace of t/env
#   temp_files($t)              temporary files that workers have open
#   rss($t)                     of the worker, octets

use strict;
use warnings;

use Cwd qw/abs_path/;
use Exporter qw/import/;
use File::Basename qw/dirname/;
use JSON::PP;

use QuicLB::Process qw/slurp/;

our @EXPORT = qw/upstreams seen http3 http3_start http3_report server params
                 post proxy_http2 tcp_wmem temp_files rss/;

my $lib = dirname(dirname(abs_path(__FILE__)));
my $count = 0;


sub upstreams {
    my ($t, @kinds) = @_;

    my $p = $t->helper('upstream' . ++$count, 'python3', '-B',
                       "$lib/http_upstream.py", @kinds);
    my ($ports) = $p->wait_line(qr/^ready (.*)/)
        or die "upstream: " . $p->stderr();

    return { process => $p, port => [split ' ', $ports], seen => [],
             test => $t };
}


# those that have ended, when none is left

sub seen {
    my ($up, $want) = @_;

    $up->{test}->wait_for('upstreams are idle', sub {
        $up->{process}->say('forget');
        my ($line) = $up->{process}->wait_line(qr/^(\{.*)/)
            or die "upstream: " . $up->{process}->stderr();
        my $report = decode_json($line);

        push @{ $up->{seen} }, @{ $report->{requests} };

        return $report->{active} == 0 && @{ $up->{seen} } >= ($want // 0);
    });

    my @seen = @{ $up->{seen} };
    $up->{seen} = [];

    return @seen;
}


sub http3_start {
    my ($t, $port, $requests, @options) = @_;

    my $p = $t->helper('http3_' . ++$count, 'python3', '-B',
                       "$lib/http3_client.py", @options, "127.0.0.1:$port");
    $p->say(encode_json($requests));

    return $p;
}


sub http3_report {
    my ($p, $seconds) = @_;

    my ($line) = $p->wait_line(qr/^(\[.*)/, $seconds // 300)
        or die "client: " . $p->stderr();

    return @{ decode_json($line) };
}


sub http3 {
    my ($t, $port, $requests, @options) = @_;

    my $p = http3_start($t, $port, $requests, @options);
    my @answers = http3_report($p);

    $p->wait();

    return @answers;
}


sub post {
    my ($path, $size, $length) = @_;

    return { method => 'POST', path => $path,
             headers => [defined $length ? ['content-length', "$length"] : ()],
             send => [{ data => $size }, { fin => 1 }] };
}


sub server {
    my ($t, $port, $text) = @_;

    my ($cert, $key) = $t->certificate();

    return <<"CONF";
    server {
        listen 127.0.0.1:$port quic;
        ssl_certificate $cert;
        ssl_certificate_key $key;
        http3_max_concurrent_streams 1024;
        client_max_body_size 0;
        $text
    }
CONF
}


sub params {
    return join '', map { <<"CONF" } qw/fastcgi scgi uwsgi/;
        ${_}_param REQUEST_URI \$request_uri;
        ${_}_param CONTENT_LENGTH \$content_length;
CONF
}


sub proxy_http2 {
    my ($t) = @_;

    my ($ok) = $t->test_conf(http => 'proxy_http_version 2;');

    return $ok;
}


sub tcp_wmem {
    my ($value) = @_;
    my $path = '/proc/sys/net/ipv4/tcp_wmem';

    open my $fh, '>', $path or die "$path: $!";
    print $fh $value;
    close $fh or die "$path: $!";
}


sub temp_files {
    my ($t) = @_;

    return grep { /_temp\b|\(deleted\)/ && !/\bzero\b|\/dev\// }
           map { readlink($_) // () }
           map { glob "/proc/$_/fd/*" } $t->workers();
}


sub rss {
    my ($t) = @_;
    my ($pid) = $t->workers();

    my ($kb) = slurp("/proc/$pid/status") =~ /^VmRSS:\s+(\d+)/m;

    return $kb * 1024;
}


1;
