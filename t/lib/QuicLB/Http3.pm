package QuicLB::Http3;

# What the tests of HTTP/3 limits share.
#
#   use QuicLB::Http3;
#
#   listen_lines($t, $port, $more)      a server's listen and certificate
#   counters_location($path)            a location that tells the counters
#   h3_counters($t, $port)              what "/counters" tells: { name => n }
#   without_limits()                    load_module lines without the module
#   streams($connection)                its streams, by ID
#   completed, rejected($connection)    how many streams were
#   close_is($connection, $code, $name)
#
# Codes are constants: H3_NO_ERROR and so on.

use strict;
use warnings;

use Exporter qw/import/;
use Test::More ();

use constant {
    H3_NO_ERROR => 0x100,
    H3_INTERNAL_ERROR => 0x102,
    H3_CLOSED_CRITICAL_STREAM => 0x104,
    H3_FRAME_UNEXPECTED => 0x105,
    H3_EXCESSIVE_LOAD => 0x107,
    H3_REQUEST_REJECTED => 0x10b,
    H3_MESSAGE_ERROR => 0x10e,
    QPACK_DECOMPRESSION_FAILED => 0x200,
};

our @EXPORT = qw/listen_lines counters_location h3_counters without_limits
    streams completed rejected close_is
    H3_NO_ERROR H3_INTERNAL_ERROR H3_CLOSED_CRITICAL_STREAM
    H3_FRAME_UNEXPECTED H3_EXCESSIVE_LOAD H3_REQUEST_REJECTED H3_MESSAGE_ERROR
    QPACK_DECOMPRESSION_FAILED/;

my @counters = qw/recycled goaways deferred rejected paused too_large cut
    in_flight peak/;


sub listen_lines {
    my ($t, $port, $more) = @_;

    my ($cert, $key) = $t->certificate();

    return join "\n", "listen 127.0.0.1:$port quic reuseport;", $more // (),
        "ssl_certificate $cert;", "ssl_certificate_key $key;";
}


sub counters_location {
    my ($path) = @_;

    my $text = join ' ', map { "$_ \$http3_limits_$_" } @counters;

    return "location = $path { access_log off; return 200 '$text'; }";
}


sub h3_counters {
    my ($t, $port) = @_;

    my (undef, $text) = $t->curl("http://127.0.0.1:$port/counters");

    return { split ' ', $text };
}


sub without_limits {
    return join "\n", grep { !/ngx_http_v3_limits_module/ }
                           split /\n/, $ENV{QUIC_LB_LOAD};
}


sub streams {
    my ($connection) = @_;

    return @{ $connection->{streams} }{
        sort { $a <=> $b } keys %{ $connection->{streams} } };
}


sub completed {
    my ($connection) = @_;

    return scalar grep { $_->{fin} && !defined $_->{reset} }
                       streams($connection);
}


sub rejected {
    my ($connection) = @_;

    return scalar grep { ($_->{reset} // 0) == H3_REQUEST_REJECTED }
                       streams($connection);
}


sub close_is {
    my ($connection, $code, $name) = @_;

    my $close = $connection->{close} // {};

    Test::More::is(sprintf('%s 0x%x', $close->{app} ? 'application' : 'other',
                           $close->{code} // 0),
                   sprintf('application 0x%x', $code), $name);
}


1;
