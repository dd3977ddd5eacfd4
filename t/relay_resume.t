#!/usr/bin/perl

# TLS sessions with upstreams are resumed, but never where the upstream would
# have to prove anything else than it did then.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use JSON::PP;
use POSIX qw/strftime/;

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# seconds of a certificate that is to expire: time enough for two connections
use constant LIFE => 20;

# sessions of a server block
use constant ROOM => 256;

# what relay_ends.py tells of a connection
my ($full, $resumed, $refused) = (JSON::PP::false, JSON::PP::true, undef);
my ($a, $b) = qw/a.example.com b.example.com/;

my $t = QuicLB->new();
my ($cert, $key) = $t->certificate();
my $upstream = $t->port();
my ($other) = certificate('other');
my $relay = relay();


resumes('the second time', [$a, $a, $a], [$full, $resumed, $resumed]);
resumes('by one name only', [$a, $b, $a, $b],
        [$full, $full, $resumed, $resumed]);
resumes('a server that does not know the ticket', [$a, $a],
        [$full, $resumed]);

is_deeply([lines(9)], [("$a .") x 3, ("$a r") x 4, "$b .", "$b r"],
          'the log tells');

resumes('nothing that a handshake has failed with', [$a, '!', $a, $a, $a],
        [$full, $refused, $full, $resumed]);


# a reload begins anew

resumes('over a reload', [$a, $a, '+', $a, $a],
        [$full, $resumed, $full, $resumed],
        sub { ok($t->reload(), 'reload') });

resumes('no upstream that another CA refuses', [$a, $a, '+', $a],
        [$full, $resumed, $refused], sub { change($cert, $other) });
like($t->error_log(), qr/certificate is refused: \(18:/, 'the log says it');

change($other, $cert);

my $crl = $t->path('revoked.pem');
revoke();

resumes('no upstream that a CRL refuses', [$a, $a, '+', $a],
        [$full, $resumed, $refused],
        sub { change($cert, "$cert; quic_relay_ssl_crl $crl") });
like($t->error_log(), qr/certificate is refused: \(23:/, 'the log says it');
$t->stop('QUIT');


# the same upstreams in shared memory; another server block

$relay = relay(zone => 'zone pool 1m;');

resumes('with a zone', [$a, $a, '+', $a], [$full, $resumed, $refused],
        sub { change($cert, $other) });
change($other, $cert);

resumes('no upstream that another server refuses', [$a, $a, 'other', $a],
        [$full, $resumed, $refused, $resumed]);
$t->stop('QUIT');


# a certificate that expires meanwhile

my $expiry = time() + LIFE;
my ($short, $short_key) = certificate('short', '-not_after',
    strftime('%Y%m%d%H%M%SZ', gmtime $expiry));

$relay = relay(ca => $short, upstream_cert => $short,
               upstream_key => $short_key, name => 'localhost');

resumes('no upstream whose certificate has expired', [$a, $a, '+', $a],
        [$full, $resumed, $refused], sub {
            $t->wait_for('the end of a certificate',
                         sub { time() > $expiry }, 2 * LIFE);
        });
like($t->error_log(), qr/certificate is refused: \(10:/, 'the log says it');
$t->stop('QUIT');


# more names than there is room for: the oldest one goes

my ($many, $many_key) = certificate('many', '-days', 30);
my @names = map { "n$_.many.example" } 1 .. ROOM + 1;

$relay = relay(ca => $many, upstream_cert => $many, upstream_key => $many_key);
resumes('as many as there is room for', [@names[0 .. 1], @names, @names[1, 0]],
        [$full, $full, $resumed, $resumed, ($full) x (ROOM - 1),
         $resumed, $full]);
$t->stop('QUIT');


# off

$relay = relay(server => 'quic_relay_ssl_session_reuse off;');
resumes('off', [$a, $a], [$full, $full]);
$t->stop('QUIT');


# the upstream's choice of a protocol counts, not that of the session

$relay = relay();
$relay->{options} = ['--server-alpn', 'echo,doq'];

my $report = $relay->ends('resume_alpn', qw/echo doq echo/);
is_deeply($report->{chosen}, [qw/echo doq echo/], 'each time another protocol')
    or diag($report->{error});
is_deeply($report->{resumed}, [$full, $resumed, $resumed], 'by one ticket');

$t->done();


sub relay {
    my (%options) = @_;

    my $zone = delete $options{zone} // '';

    my $relay = QuicLB::Relay->new($t, upstream => $upstream, target => 'pool',
        name => '$name', %options, stream => <<"CONF");
    log_format reused '\$ssl_server_name \$quic_relay_ssl_session_reused';
    access_log @{[ $t->path('reused.log') ]} reused;

    upstream pool {
        $zone
        server 127.0.0.1:$upstream;
    }

    map \$ssl_server_name \$name {
        other    $a;
        default  \$ssl_server_name;
    }
CONF

    # another server of the same address, which the same client can ask for

    my $text = $t->read('nginx.conf');
    $text =~ s/^(    server \{.*^    \})\n/my $one = $1;
               (my $two = $one) =~ s{(?=\n\s+quic_relay pool)}
                                    {\n        server_name other;};
               $two =~ s{(trusted_certificate) \S+;}{$1 $other;};
               "$one\n\n$two\n"/mse;
    $t->write('nginx.conf', $text);

    unlink $t->path('reused.log');
    $t->start();

    return $relay;
}


sub resumes {
    my ($what, $names, $expected, $ready) = @_;

    my $report = $relay->ends_with($ready, 'resume', @$names);

    is_deeply($report->{resumed}, $expected, $what)
        or diag(explain($report), $t->error_log());
}


# the first server's CA, or what is behind it

sub change {
    my ($from, $to) = @_;

    my $text = $t->read('nginx.conf');
    $text =~ s/(quic_relay_ssl_trusted_certificate) \Q$from\E/$1 $to/;
    $t->write('nginx.conf', $text);

    ok($t->reload(), 'reload');
}


sub lines {
    my ($count) = @_;

    my @lines;

    $t->wait_for('the log', sub {
        @lines = split /\n/, $t->read('reused.log');
        return @lines >= $count;
    });

    return sort @lines;
}


sub certificate {
    my ($name, @dates) = @_;

    my ($cert, $key) = map { $t->path("$name.$_") } qw/pem key/;

    $t->run('openssl', qw/openssl req -x509 -nodes -newkey ec
            -pkeyopt ec_paramgen_curve:prime256v1 -subj/, '/CN=localhost',
            '-addext', 'subjectAltName=DNS:localhost,DNS:*.many.example',
            @dates ? @dates : ('-days', 30), '-keyout', $key, '-out', $cert)
        == 0 or die $t->read('openssl.err');

    return ($cert, $key);
}


# the certificate is its own CA, which revokes it

sub revoke {
    my $conf = $t->write('ca.conf', <<"CONF");
[ca]
default_ca = own
[own]
database = @{[ $t->path('index') ]}
certificate = $cert
private_key = $key
default_md = sha256
default_crl_days = 30
CONF

    $t->write('index', '');

    for my $command (["-revoke", $cert], ['-gencrl', '-out', $crl]) {
        $t->run('openssl-ca', qw/openssl ca -config/, $conf, @$command) == 0
            or die $t->read('openssl-ca.err');
    }
}
