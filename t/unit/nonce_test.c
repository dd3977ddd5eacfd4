
/*
 * Nonces that are counted.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_nonce.h"
#include "tap.h"


static void test_cases(void);
static void test_distinct(void);
static void test_range(void);


int
main(void)
{
    test_cases();
    test_distinct();
    test_range();

    return tap_done();
}


static void
test_cases(void)
{
    size_t   i;
    uint8_t  nonce[18];

    static const struct {
        size_t    len;
        uint64_t  count;
        uint8_t   start[18];
        uint8_t   nonce[18];
    } cases[] = {
        { 4, 0, { 1, 2, 3, 4 }, { 1, 2, 3, 4 } },
        { 4, 1, { 0, 0, 0, 0xff }, { 0, 0, 1, 0 } },
        { 4, 0x1ff, { 0xff, 0xff, 0xfe, 1 }, { 0, 0, 0, 0 } },
        { 4, 0xffffffff, { 0, 0, 0, 1 }, { 0, 0, 0, 0 } },
        { 4, 0xffffffff, { 0, 0, 0, 2 }, { 0, 0, 0, 1 } },
        { 8, UINT64_MAX, { 0 }, { 0xff, 0xff, 0xff, 0xff,
                                  0xff, 0xff, 0xff, 0xff } },
        { 9, UINT64_MAX, { 7, 0, 0, 0, 0, 0, 0, 0, 1 }, { 8 } },
        { 18, 0x100, { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                       0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 5 },
          { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5 } }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ok(quic_lb_nonce_count(nonce, cases[i].start, cases[i].len,
                               cases[i].count)
           == QUIC_LB_OK, "case %zu is taken", i);
        ok(memcmp(nonce, cases[i].nonce, cases[i].len) == 0,
           "case %zu: the nonce", i);
    }
}


/* one octet has no more nonces than it has values: each comes once */

static void
test_distinct(void)
{
    uint8_t   nonce, seen[256];
    uint64_t  count;
    unsigned  repeated;

    static const uint8_t  start = 200;

    memset(seen, 0, sizeof(seen));
    repeated = 0;

    for (count = 0; count < 256; count++) {
        if (quic_lb_nonce_count(&nonce, &start, 1, count) != QUIC_LB_OK
            || seen[nonce]++)
        {
            repeated++;
        }
    }

    ok(repeated == 0, "each nonce of one octet comes once");
}


static void
test_range(void)
{
    size_t   len;
    uint8_t  nonce[8];

    static const uint8_t  start[8] = { 0 }, untouched[8] = { 9, 9, 9, 9, 9, 9,
                                                             9, 9 };

    for (len = 1; len < 8; len++) {
        memcpy(nonce, untouched, sizeof(nonce));

        ok(quic_lb_nonce_count(nonce, start, len, UINT64_C(1) << (8 * len))
           == QUIC_LB_ERR_RANGE, "%zu octets: one more than there are", len);
        ok(memcmp(nonce, untouched, sizeof(nonce)) == 0,
           "%zu octets: nothing is written", len);
        ok(quic_lb_nonce_count(nonce, start, len,
                               (UINT64_C(1) << (8 * len)) - 1)
           == QUIC_LB_OK, "%zu octets: the last one", len);
    }
}
