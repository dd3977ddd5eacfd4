#!/usr/bin/perl

# Connection IDs of the relay: what balancers read in them, nonces, and
# stateless resets after the worker, or nginx, is gone.

use strict;
use warnings;

use Test::More;

use FindBin;
use lib "$FindBin::Bin/lib";

use QuicLB;
use QuicLB::Relay;

plan(skip_all => 'the relay is not built: no ngtcp2')
    if $ENV{QUIC_LB_LOAD} !~ /ngx_stream_quic_relay_module/;

use constant CLIENTS => 20;

my $t = QuicLB->new();
my $key = '8f95f09245765f80256934e50c66207f';
my $key_file = $t->write('lb.key', "$key\n");
my $host_key = $t->write('host.key', 'a secret of this very host');
chmod 0600, $key_file, $host_key;

# codepoint, server ID, nonce length, key
my @plain = (0, 'aabb', 6);
my @single = (1, '31441a', 13, $key);
my @four = (2, '0102030405', 12, $key);
my @short = (3, '07', 4, $key);

my $relay = QuicLB::Relay->new($t, listen => 'reuseport',
    parts => { workers => 2 }, stream => "quic_relay_host_key $host_key;",
    server => server_id(@plain));

$t->start();

routable('plaintext', @plain);

for my $case (['single pass', @single], ['four passes', @four],
              ['the shortest', @short], ['plaintext again', @plain])
{
    my ($name, @id) = @$case;

    configure(@id);
    ok($t->reload(), "$name: a reload");
    routable($name, @id);
}

# an old connection keeps its configuration, and gets IDs of it

configure(@four);
ok($t->reload(), 'another configuration');

my $report = $relay->ends_with(sub {
    configure(@short);
    ok($t->reload(), 'and a third one');
}, 'hold', 4);

is_deeply($report->{failed}, [], 'connections go on with new IDs')
    or diag($report->{error});
routable('the third one', @short);

configure();
ok($t->reload(), 'no server ID any more');
$report = $relay->ends('given', CLIENTS, $plain[0], '-', 2, 6);
is_deeply($report->{first}, [0xf3], 'the codepoint for that, and the length')
    or diag($report->{error});


# stateless resets

for my $id ([], \@four) {
    configure(@$id);
    ok($t->reload(), 'a reload');

    $report = $relay->ends_with(sub {
        $t->kill_worker($t->workers());
        $t->wait_for('other workers', sub { $t->workers() == 2 });
    }, 'reset');

    ok($report->{reset}, 'a reset of a worker that has crashed')
        or diag($report->{error});
}

$report = $relay->ends_with(sub {
    $t->stop('TERM');
    $t->start();
}, 'reset');

ok($report->{reset}, 'a reset of nginx that has been restarted')
    or diag($report->{error});

$t->done();


sub server_id {
    my ($config_id, $id, $nonce_length, $key) = @_;

    return '' if !defined $id;

    my $file = $key ? "key_file=$key_file" : '';

    return "quic_relay_server_id config_id=$config_id id=$id
            nonce_length=$nonce_length $file;";
}


sub configure {
    my (@id) = @_;

    my $text = $t->read('nginx.conf');
    my $directive = server_id(@id);

    $text =~ s/quic_relay_server_id[^;]*;//g;
    $text =~ s/(quic_relay_ssl_name [^;]*;)/$1 $directive/;
    $t->write('nginx.conf', $text);
}


sub routable {
    my ($name, $config_id, $id, $nonce_length, $key) = @_;

    my $report = $relay->ends('given', CLIENTS, $config_id, $key // '-',
                              length($id) / 2, $nonce_length);

    is_deeply([@$report{qw/lengths first server_ids wrong/}],
              [[20], [$config_id << 5 | 19], [$id], 0],
              "$name: length, first octet, server ID")
        or diag($report->{error});
    cmp_ok($report->{cids}, '>=', 5 * CLIENTS, "$name: several for a client");
    is($report->{distinct}, $report->{cids}, "$name: no ID twice");
    is($report->{nonces}, $report->{cids}, "$name: no nonce twice");
}
