#!/usr/bin/perl

# Names of the modules' symbols.  nginx exports all of its own and loads
# modules with RTLD_GLOBAL, so one that nginx has, too, would bind to nginx's.

use strict;
use warnings;

use Test::More;

my ($nginx, $modules) = @ENV{qw/NGINX_BIN QUIC_LB_MODULES/};

# what nginx itself puts into every module, and what ASan adds
my $generated = qr/^(?:ngx_modules|ngx_module_names|ngx_module_order
                       |__odr_asan\..*)$/x;

my $ours = qr/^(?:quic_lb_|ngx_stream_(?:upstream_)?quic_|ngx_http_h3_limits_)/;

# nginx finds a module by the symbol that its .so is named after
my $named = qr/^ngx_http_v3_limits_module$/;

my %theirs = map { $_ => 1 } symbols('-D', $nginx,
    $ENV{QUIC_LB_LOAD} =~ m{^load_module (/usr/lib/\S+);}mg);

cmp_ok(scalar keys %theirs, '>', 500, 'nginx exports its symbols');

my @files = glob "$modules/*.so";
cmp_ok(scalar @files, '>', 0, 'modules');

for my $file (@files) {
    my ($name) = $file =~ m{([^/]+)$};
    my @exported = grep { !/$generated|$named/ } symbols('-D', $file);

    cmp_ok(scalar @exported, '>', 0, "$name: exports");
    is(join("\n", grep { !/$ours/ } @exported), '', "$name: prefixes");
    is(join("\n", grep { $theirs{$_} } @exported), '', "$name: none of nginx");
    is(join("\n", grep { /^ngx_(?:quic|http_v3)_/ && !/$named/ }
                       symbols($file)), '',
       "$name: no name of nginx's QUIC, not even a static one");
}

done_testing();


sub symbols {
    my (@arguments) = @_;

    my @command = ('nm', '--defined-only', '--format=posix', @arguments);
    open my $pipe, '-|', @command or die "nm: $!";
    my @names = map { /^(\S+) [A-Za-z] / ? $1 : () } <$pipe>;
    close $pipe or die "nm: failed";

    return @names;
}
