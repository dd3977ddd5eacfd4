package QuicLB::Packet;

# QUIC packets made by hand, as far as a load balancer reads them (RFC 8999,
# RFC 9000, 17; RFC 9369, 3.2): nothing is encrypted, no server answers them.
#
#   initial($dcid, $scid, %fields)      also zero_rtt, handshake, retry
#   negotiation($dcid, $scid)
#   long($version, $dcid, $scid)        a version that is not known
#   short($dcid, $payload)
#
# Fields: version (V1), token (Initial; none), payload (PAYLOAD octets).
# Connection IDs and payloads are octets, $scid and payloads may be left out.

use strict;
use warnings;

use Exporter qw/import/;

our @EXPORT_OK = qw/initial zero_rtt handshake retry negotiation long short
                    V1 V2/;

use constant { V1 => 1, V2 => 0x6b3343cf };

use constant PAYLOAD => 100;

# the two bits of the type, in the first octet
my %types = (
    V1, { initial => 0x00, zero_rtt => 0x10, handshake => 0x20,
          retry => 0x30 },
    V2, { retry => 0x00, initial => 0x10, zero_rtt => 0x20,
          handshake => 0x30 },
);


sub initial {
    my ($dcid, $scid, %fields) = @_;

    return header('initial', $dcid, $scid, %fields)
           . varint(length($fields{token} // '')) . ($fields{token} // '')
           . payload(%fields);
}


sub zero_rtt {
    my ($dcid, $scid, %fields) = @_;

    return header('zero_rtt', $dcid, $scid, %fields) . payload(%fields);
}


sub handshake {
    my ($dcid, $scid, %fields) = @_;

    return header('handshake', $dcid, $scid, %fields) . payload(%fields);
}


# the payload is the token and the integrity tag, and has no length

sub retry {
    my ($dcid, $scid, %fields) = @_;

    return header('retry', $dcid, $scid, %fields) . ($fields{payload} // '');
}


sub negotiation {
    my ($dcid, $scid) = @_;

    return long(0, $dcid, $scid);
}


# what comes after the connection IDs is up to the version

sub long {
    my ($version, $dcid, $scid) = @_;

    return invariant(0xc0, $version, $dcid, $scid) . 'x' x PAYLOAD;
}


sub short {
    my ($dcid, $payload) = @_;

    return "\x40$dcid" . ($payload // '');
}


sub header {
    my ($type, $dcid, $scid, %fields) = @_;
    my $version = $fields{version} // V1;

    return invariant(0xc0 | $types{$version}{$type}, $version, $dcid, $scid);
}


sub invariant {
    my ($first, $version, $dcid, $scid) = @_;

    return pack 'C N C/a C/a', $first, $version, $dcid, $scid // '';
}


sub payload {
    my (%fields) = @_;
    my $payload = $fields{payload} // 'x' x PAYLOAD;

    return varint(length $payload) . $payload;
}


# RFC 9000, 16: of two octets

sub varint {
    my ($value) = @_;

    return pack 'n', 0x4000 | $value;
}


1;
