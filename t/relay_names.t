#!/usr/bin/perl

# Where the relay goes by variables: to groups, addresses, and names that are
# resolved while the client waits; and the name that is verified then.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Dns;
use QuicLB::Relay;
use QuicLB::Udp;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

# RFC 9001, 4.8: an alert of TLS as an error code
use constant INTERNAL_ERROR => 0x100 + 80;

use constant CLIENTS => 120;

my $t = QuicLB->new();
my ($upstream, $dead, $dns_port) = map { $t->port() } 1 .. 3;
my $dns = udp_bind('127.0.0.1', $dns_port);
my $access = $t->path('access.log');

my $stream = <<"CONF";
    log_format names '\$ssl_server_name \$status \$upstream_addr';

    upstream group {
        server 127.0.0.1:$upstream;
        server 127.0.0.1:$dead backup;
    }

    map \$ssl_server_name \$to {
        a.example.com     group;
        b.example.com     127.0.0.1:$upstream;
        one.example       one.test:$upstream;
        two.example       two.test:$upstream;
        missing.example   missing.test:$upstream;
        silent.example    silent.test:$upstream;
        left.example      left.test:$upstream;
        no-port.example   no-port.test;
        bad-port.example  127.0.0.1:0x35;
        unix.example      unix:/tmp/socket;
        empty.example     '';
        default           group;
    }

    map \$quic_relay_alpn_protocols \$by_protocol {
        doq               127.0.0.1:$dead;
        moq-00,doq,echo   127.0.0.1:$upstream;
    }
CONF

my $resolver = "resolver 127.0.0.1:$dns_port ipv6=off;";
my $log = "access_log $access names;";


# groups, addresses, names

my $relay = relay(target => '$to', server => "$resolver $log");

taken('a.example.com', 'a group');
taken('b.example.com', 'an address');

my $client = client('one.example', 'queries', 1);
ok($t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') }), 'a name');
report_ok($client, 'is resolved while the client waits');
logged('one.example', "127.0.0.1:$upstream");

taken('one.example', 'a name that the resolver remembers');

$client = client('two.example', 'queries', 1);
$t->wait_for('a query', sub { dns_answer($dns, '127.0.0.2', '127.0.0.1') });
report_ok($client, 'a name of two addresses, one of them in vain');

# the resolver begins with either

for my $count (1 .. 30) {
    $t->wait_for('the log', sub {
        $t->access_count(qr/^two\.example /) == $count
    });
    last if $t->access_count(qr/^two\.example 200 127\.0\.0\.2/);
    report_ok(client('two.example', 'queries', 1), 'again');
}

logged('two.example', "127.0.0.2:$upstream, 127.0.0.1:$upstream");


# what cannot be

my %cannot = (
    'no-port.example' => qr/"no-port.test" is neither an upstream nor an/,
    'bad-port.example' => qr/invalid port in "quic_relay" value "127\.0\./,
    'unix.example' => qr{value "unix:/tmp/socket" is neither an upstream},
    'empty.example' => qr/no host in "quic_relay" value ""/,
);

refused($_, $cannot{$_}) for sort keys %cannot;

$client = client('missing.example', 'refused');
$t->wait_for('a query', sub { dns_answer($dns) });
is_refused($client, 'missing.example',
           qr/missing\.test could not be resolved \(3: Host not found\)/);


# a client that does not wait for the answer

my $process = client('left.example', 'abandon');
$process->wait_line(qr/^(ready)$/, 60) or die $process->stderr();
ok($t->wait_for('a query', sub { dns_asked($dns) }), 'a name is asked for');
$process->say('leave');
report_ok($process, 'the client leaves');
ok($t->wait_for('the end', sub { $t->access_count(qr/^left\.example /) }),
   'its session ends');
dns_answer($dns, '127.0.0.1');
taken('left.example', 'the next one gets the answer');


# many clients cannot fill the log

{
    my $line = qr/"no-port.test" is neither/;
    my ($before, $start) = ($t->log_count($line), time());

    my $report = $relay->ends_report(client('no-port.example', 'refused',
                                            CLIENTS));
    is($report->{code}, INTERNAL_ERROR, 'many clients')
        or diag($report->{error});

    my $lines = $t->log_count($line) - $before;
    cmp_ok($lines, '>', 0, 'are logged');
    cmp_ok($lines, '<=', 8 * (time() - $start + 2), 'a few times in a second');
}

$t->stop('QUIT');


# a resolver that does not answer, or is not there

$relay = relay(target => '$to',
               server => "$resolver resolver_timeout 1s; $log");

refused('silent.example', qr/silent\.test could not be resolved \(110: /);
$t->stop('QUIT');
udp_drain($dns);

$relay = relay(target => '$to', server => $log);

refused('one.example', qr/no resolver defined to resolve one\.test/);
taken('a.example.com', 'a group needs none');
$t->stop('QUIT');


# the name that is verified

$relay = relay(target => '$to', name => '$ssl_server_name',
               server => "$resolver $log");

taken('a.example.com', 'the name that the client asks for');
taken('A.EXAMPLE.com', 'in upper case, too');
refused('c.example.com', qr/\(62:.* depth 0, the name is "c\.example\.com"/,
        qr/no connection to upstream 127\.0\.0\.1:$upstream/);
taken('a.example.com', 'others are not cut off by that');

# none: that of the group, or the address, which the certificate has

refused('', qr/\(62:.* depth 0, the name is "group"/);
$t->stop('QUIT');

$relay = relay(target => "127.0.0.1:$upstream", name => '$ssl_server_name',
               server => $log);
taken('', 'no name: the address');
$t->stop('QUIT');

$relay = relay(target => "127.0.0.\${one}:$upstream", server => $log,
               name => '"$empty"', more => 'map 1 $one { default 1; }
                                            map 1 $empty { default ""; }');
taken('localhost', 'an empty name: the address');
$t->stop('QUIT');


# the protocols that a client offers

$relay = relay(target => '$by_protocol', server => $log);
taken('localhost', 'by the protocols', '--alpn', 'moq-00,doq,echo');
$t->stop('QUIT');


# a group whose servers are resolved

SKIP: {
    my $group = "upstream resolved {
        zone resolved 1m;
        $resolver
        server group.test:$upstream resolve;
    }";

    my ($ok, $output) = $t->test_conf(stream => $group);
    skip('this nginx has no "resolve"', 2)
        if !$ok && $output =~ /"resolver" directive is not allowed here/;

    $relay = relay(target => '$ssl_server_name', server => $log,
                   more => $group);
    ok($t->wait_for('a query', sub { dns_answer($dns, '127.0.0.1') }),
       'a group is resolved');
    $t->wait_for('a server', sub {
        1 while dns_answer($dns, '127.0.0.1');
        return $relay->ends_report(client('resolved', 'queries', 1))->{ok};
    });
    logged('resolved', "127.0.0.1:$upstream");
    $t->stop('QUIT');
}

$t->done();


sub relay {
    my (%options) = @_;

    my $more = delete $options{more} // '';
    my $relay = QuicLB::Relay->new($t, upstream => $upstream,
                                   stream => "$stream $more", %options);
    unlink $t->path('access.log');
    $t->start();

    return $relay;
}


# a client that asks for the name, running

sub client {
    my ($name, @scenario) = @_;

    $relay->{options} = ['--server-name', $name];

    return $relay->ends_start(@scenario);
}


sub report_ok {
    my ($process, $what) = @_;

    my $report = $relay->ends_report($process);

    ok($report->{ok}, $what) or diag($report->{error}, $t->error_log());
}


sub taken {
    my ($name, $what, @options) = @_;

    report_ok(client($name, @options, 'queries', 1), $what);
    logged(lc $name || '-', "127.0.0.1:$upstream");
}


# refused, and why is in the log

sub refused {
    my ($name, @lines) = @_;

    is_refused(client($name, 'refused'), $name || '-', @lines);
}


sub is_refused {
    my ($process, $name, @lines) = @_;

    my $report = $relay->ends_report($process);

    is($report->{code}, INTERNAL_ERROR, "refused: $name")
        or diag($report->{error});
    like($t->error_log(), $_, 'the log says it') for @lines;

    my $session = qr/^\Q$name\E 502 /;
    ok($t->wait_for($session, sub { $t->access_count($session) }),
       'and the status of the session');
}


sub logged {
    my ($name, $address) = @_;

    my $line = qr/^\Q$name 200 $address\E$/;
    ok($t->wait_for($line, sub { $t->access_count($line) }),
       "logged: $name") or diag($t->read('access.log'));
}
