
/*
 * The probe of a server and what answers it.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_packet.h"
#include "quic_lb_probe.h"
#include "tap.h"


static void test_question(void);
static void test_answer(void);
static size_t make_answer(const quic_lb_probe_t *probe, uint8_t *dst);


static const uint8_t  noise[QUIC_LB_PROBE_RANDOM_LEN + 1] =
    "\x12\x34\x56\x78" "destinat" "sourceid";


int
main(void)
{
    test_question();
    test_answer();

    return tap_done();
}


static void
test_question(void)
{
    uint8_t           data[QUIC_LB_PROBE_LEN + 1];
    quic_lb_probe_t   probe;
    quic_lb_packet_t  pkt;

    data[QUIC_LB_PROBE_LEN] = 0x55;

    quic_lb_probe_init(&probe, noise);
    quic_lb_probe_write(&probe, data);

    ok(data[QUIC_LB_PROBE_LEN] == 0x55, "no octet more than its length");
    ok(quic_lb_packet_parse(&pkt, data, QUIC_LB_PROBE_LEN) == QUIC_LB_OK
       && pkt.type == QUIC_LB_PACKET_UNKNOWN,
       "a long header of an unknown version");
    ok(pkt.version == 0x1a3a5a7a, "a reserved one");
    ok((data[0] & 0xc0) == 0xc0, "with the fixed bit");
    ok(pkt.dcid_len == 8 && memcmp(pkt.dcid, noise + 4, 8) == 0, "its DCID");
    ok(pkt.scid_len == 8 && memcmp(pkt.scid, noise + 12, 8) == 0, "its SCID");
}


static void
test_answer(void)
{
    size_t           i, len;
    uint8_t          data[64], mirrored[64];
    quic_lb_probe_t  probe, other;

    quic_lb_probe_init(&probe, noise);
    len = make_answer(&probe, data);

    ok(quic_lb_probe_check(&probe, data, len) == QUIC_LB_OK, "the answer");
    ok(quic_lb_probe_check(&probe, data, len - 4) == QUIC_LB_OK,
       "with one version");

    for (i = 0; i < len; i++) {
        if (i != len - 4
            && quic_lb_probe_check(&probe, data, i) == QUIC_LB_OK)
        {
            break;
        }
    }

    ok(i == len, "no shorter one");

    /* up to the versions each octet but the first matters */

    for (i = 1; i < len - 8; i++) {
        data[i] ^= 1;

        if (quic_lb_probe_check(&probe, data, len) == QUIC_LB_OK) {
            break;
        }

        data[i] ^= 1;
    }

    ok(i == len - 8, "no changed one");

    data[0] = 0x40;
    ok(quic_lb_probe_check(&probe, data, len) != QUIC_LB_OK,
       "no short header");
    data[0] = 0x80;
    ok(quic_lb_probe_check(&probe, data, len) == QUIC_LB_OK,
       "the other bits of the first octet mean nothing");

    memcpy(&data[len - 4], "\x1a\x3a\x5a\x7a", 4);
    ok(quic_lb_probe_check(&probe, data, len) != QUIC_LB_OK,
       "no list with the version of the question");

    other = probe;
    memcpy(other.dcid, probe.scid, sizeof(other.dcid));
    memcpy(other.scid, probe.dcid, sizeof(other.scid));
    len = make_answer(&other, mirrored);
    ok(quic_lb_probe_check(&probe, mirrored, len) != QUIC_LB_OK,
       "no IDs the wrong way round");
}


static size_t
make_answer(const quic_lb_probe_t *probe, uint8_t *dst)
{
    uint8_t  *p = dst;

    memcpy(p, "\xff\0\0\0\0\x08", 6);
    p += 6;
    memcpy(p, probe->scid, 8);
    p += 8;
    *p++ = 8;
    memcpy(p, probe->dcid, 8);
    p += 8;
    memcpy(p, "\0\0\0\x01\x6b\x33\x43\xcf", 8);
    p += 8;

    return p - dst;
}
