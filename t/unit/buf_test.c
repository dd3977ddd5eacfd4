
/*
 * The readers of quic_lb_buf.h.
 */


#include "quic_lb_buf.h"
#include "tap.h"


static void test_integers(void);
static void test_varint(void);
static void test_bytes(void);


int
main(void)
{
    test_integers();
    test_varint();
    test_bytes();

    return tap_done();
}


static void
test_integers(void)
{
    size_t         len;
    uint8_t        u8;
    uint32_t       u32;
    const uint8_t  in[] = { 0xfe, 0xdc, 0xba, 0x98 };

    u8 = 1;
    ok(quic_lb_buf_read_uint8(in, in, &u8) == NULL && u8 == 1,
       "uint8 of no octets");
    ok(quic_lb_buf_read_uint8(in, in + 1, &u8) == in + 1 && u8 == 0xfe,
       "uint8");

    u32 = 1;

    for (len = 0; len < 4; len++) {
        ok(quic_lb_buf_read_uint32(in, in + len, &u32) == NULL && u32 == 1,
           "uint32 of %zu octets", len);
    }

    ok(quic_lb_buf_read_uint32(in, in + 4, &u32) == in + 4
       && u32 == 0xfedcba98,
       "uint32");
}


/* RFC 9000, A.1, and the bounds of each length */

static void
test_varint(void)
{
    size_t    i, len;
    uint64_t  value;

    static const struct {
        size_t    len;
        uint64_t  value;
        uint8_t   in[8];
    } cases[] = {
        { 8, 151288809941952652,
          { 0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c } },
        { 4, 494878333, { 0x9d, 0x7f, 0x3e, 0x7d } },
        { 2, 15293, { 0x7b, 0xbd } },
        { 1, 37, { 0x25 } },
        { 2, 37, { 0x40, 0x25 } },
        { 1, 0, { 0x00 } },
        { 1, 63, { 0x3f } },
        { 2, 16383, { 0x7f, 0xff } },
        { 4, 1073741823, { 0xbf, 0xff, 0xff, 0xff } },
        { 8, 4611686018427387903,
          { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff } },
        { 8, 0, { 0xc0 } }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        value = 1;

        for (len = 0; len < cases[i].len; len++) {
            ok(quic_lb_buf_read_varint(cases[i].in, cases[i].in + len, &value)
               == NULL && value == 1,
               "varint %zu cut to %zu octets", i, len);
        }

        ok(quic_lb_buf_read_varint(cases[i].in, cases[i].in + cases[i].len,
                                   &value)
           == cases[i].in + cases[i].len && value == cases[i].value,
           "varint %zu, at the end, is %" PRIu64, i, cases[i].value);

        value = 1;

        ok(quic_lb_buf_read_varint(cases[i].in, cases[i].in + 8, &value)
           == cases[i].in + cases[i].len && value == cases[i].value,
           "varint %zu is %" PRIu64, i, cases[i].value);
    }
}


static void
test_bytes(void)
{
    const uint8_t   in[4] = { 0 };
    const uint8_t  *out;

    out = NULL;

    ok(quic_lb_buf_read_bytes(in, in + 4, 5, &out) == NULL && out == NULL,
       "more octets than there are");
    ok(quic_lb_buf_read_bytes(in, in + 4, UINT64_MAX, &out) == NULL
       && out == NULL,
       "a length that would wrap");
    ok(quic_lb_buf_read_bytes(in, in + 4, 4, &out) == in + 4 && out == in,
       "all octets");
    ok(quic_lb_buf_read_bytes(in + 4, in + 4, 0, &out) == in + 4
       && out == in + 4,
       "no octets at the end");
}
