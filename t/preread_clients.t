#!/usr/bin/perl

# quic_preread before stock nginx: the client of ngtcp2, which resumes its
# sessions and sends 0-RTT, and curl; and servers that send a Retry.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;

my $t = QuicLB->new();
my ($port, $stats) = map { $t->port() } 1 .. 2;
my %servers = map { ($_ => $t->port()) } qw/a b retry d/;
my ($cert, $key) = $t->certificate();

my $upstreams = join '', map { <<"CONF" } sort keys %servers;
    upstream $_ {
        server 127.0.0.1:$servers{$_};
        quic_maglev;
    }
CONF

my $https = join '', map { <<"CONF" } sort keys %servers;
    server {
        listen 127.0.0.1:$servers{$_} quic;
        quic_retry @{[$_ eq 'retry' ? 'on' : 'off']};
        return 200 "$_ \$ssl_session_reused \$ssl_early_data\\n";
    }
CONF

$t->conf(stream => <<"STREAM", http => <<"HTTP");
    log_format hello '\$quic_preread_server_name|'
                     '\$quic_preread_alpn_protocols|\$quic_preread_version';
    access_log @{[$t->path('access.log')]} hello;

    $upstreams

    map \$quic_preread_server_name \$to {
        hostnames;
        a.example.com a;
        b.example.com b;
        *.retry.example.com retry;
        default d;
    }

    server {
        listen 127.0.0.1:$port udp;
        quic_preread on;
        quic_passthrough \$to;
    }

    @{[$t->counters_server($stats, qw/hellos unread/)]}
STREAM
    access_log off;
    ssl_certificate $cert;
    ssl_certificate_key $key;
    ssl_early_data on;
    ssl_session_tickets on;

    $https
HTTP

$t->start();


# the body, by ngtcp2's client

my $number = 0;

sub ngtcp2 {
    my ($name, @options) = @_;
    my $folder = $t->path('download' . ++$number);
    mkdir $folder or die "$folder: $!";

    # the name that it asks for is that of the host
    my $hosts = $t->write('hosts', "127.0.0.1 $name\n");

    $t->run("ngtcp2_$number", qw/unshare --mount sh -c/,
            'mount --bind "$0" /etc/hosts && exec "$@"', $hosts,
            'gtlsclient', '--quiet', "--download=$folder", '--timeout=60s',
            '--exit-on-all-streams-close', @options,
            $name, $port, "https://$name:$port/answer");

    return $t->read("download$number/answer");
}


sub reads {
    my ($what, $expected, $code) = @_;
    my $before = $t->counters($stats);

    is($code->(), $expected, $what);

    my $after = $t->counters($stats);
    is_deeply([$after->{hellos} - $before->{hellos},
               $after->{unread} - $before->{unread}], [1, 0],
              'one ClientHello is read');
}


for my $case (['a.example.com', 'a'], ['b.example.com', 'b'],
              ['other.example.com', 'd'], ['x.retry.example.com', 'retry'])
{
    my ($name, $server) = @$case;

    reads("curl: $name", "$server . \n", sub {
        return ($t->curl('--http3-only', '--connect-to', "::127.0.0.1:$port",
                         "https://$name:$port/"))[1];
    });
}

SKIP: {
    skip 'ngtcp2\'s client is not there', 1
        if !grep { -x "$_/gtlsclient" } split /:/, $ENV{PATH};

    for my $case (['a.example.com', 'a'], ['b.example.com', 'b'],
                  ['other.example.com', 'd'], ['x.retry.example.com', 'retry'])
    {
        my ($name, $server) = @$case;
        my @files = map { "--$_-file=" . $t->path("$server.$_") }
                        qw/session tp/;

        reads("ngtcp2: $name", "$server . \n",
              sub { return ngtcp2($name, @files, '--wait-for-ticket'); });

        # nginx takes 0-RTT only where its OpenSSL has QUIC; it is sent anyway
        my $body;
        reads("ngtcp2 resumes, with 0-RTT: $name", 1, sub {
            $body = ngtcp2($name, @files);
            return scalar($body =~ /^$server r 1?$/);
        });
        note($body);
    }

    reads('ngtcp2: a longer list of groups', "a . \n", sub {
        return ngtcp2('a.example.com', '--groups=-GROUP-ALL:+GROUP-X25519'
                      . ':+GROUP-SECP256R1:+GROUP-SECP384R1:+GROUP-SECP521R1');
    });

    reads('ngtcp2: connection IDs of no length', "a . \n",
          sub { return ngtcp2('a.example.com', '--scid='); });
}

ok($t->stop(), 'nginx ends');

cmp_ok($t->access_count(qr/^a\.example\.com\|h3.*\|1$/), '>=', 1,
       'the variables');

$t->done();
