
/*
 * Frames of Initial packets, every truncation of them, and the CRYPTO stream:
 * out of order, overlapping, empty frames, its bound.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_crypto.h"
#include "quic_lb_error.h"
#include "tap.h"


#define SIZE    64
#define STREAM  "abcdefghijklmnopqrstuvwxyz"


typedef struct {
    const char  *name;
    uint8_t      frame[24];
    size_t       len;
} frame_t;


static void test_frames(void);
static void test_truncated(const frame_t *f);
static void test_refused(void);
static void test_order(void);
static void test_overlap(void);
static void test_empty(void);
static void test_bound(void);
static void test_size(void);

static void start(void);
static int add(size_t offset, const char *data);
static int read_copy(const uint8_t *payload, size_t len);


static const frame_t  frames[] = {
    { "PADDING", { 0 }, 1 },
    { "PING", { 1 }, 1 },
    { "PING, longer form", { 0x40, 1 }, 2 },
    { "ACK", { 2, 5, 0, 0, 1 }, 5 },
    { "ACK, two ranges", { 2, 0x40, 0x50, 0x80, 0, 0, 1, 2, 1, 0, 1, 0, 1 },
      13 },
    { "ACK, ECN", { 3, 9, 0, 1, 1, 0, 1, 7, 8, 0x40, 9 }, 11 },
    { "CRYPTO", { 6, 0, 3, 'a', 'b', 'c' }, 6 },
    { "CRYPTO, long forms", { 6, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0x40, 3, 'a', 'b',
      'c' }, 14 },
    { "CONNECTION_CLOSE", { 0x1c, 0x40, 0x80, 6, 2, 'n', 'o' }, 7 },
    { "CONNECTION_CLOSE, no reason", { 0x1c, 0, 0, 0 }, 4 }
};

/* of table 3 of RFC 9000, and more */

static const uint8_t  refused[] = {
    0x04, 0x05, 0x07, 0x08, 0x0f, 0x10, 0x18, 0x1a, 0x1d, 0x1e, 0x1f, 0x30
};

static quic_lb_crypto_t  crypto;
static uint8_t           memory[quic_lb_crypto_room(QUIC_LB_CRYPTO_MAX)];


int
main(void)
{
    test_frames();
    test_refused();
    test_order();
    test_overlap();
    test_empty();
    test_bound();
    test_size();

    return tap_done();
}


/* each alone and before a CRYPTO frame, so that its length counts */

static void
test_frames(void)
{
    size_t    i;
    uint8_t   data[64];

    static const uint8_t  last[] = { 6, 0, 4, 'a', 'b', 'c', 'd' };

    for (i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        start();
        ok(read_copy(frames[i].frame, frames[i].len) == QUIC_LB_OK,
           "%s", frames[i].name);

        memcpy(data, frames[i].frame, frames[i].len);
        memcpy(data + frames[i].len, last, sizeof(last));

        ok(read_copy(data, frames[i].len + sizeof(last)) == QUIC_LB_OK
           && crypto.len == 4 && memcmp(crypto.data, "abcd", 4) == 0,
           "%s and CRYPTO", frames[i].name);

        test_truncated(&frames[i]);
    }
}


static void
test_truncated(const frame_t *f)
{
    size_t  n, count;

    count = 0;

    for (n = 0; n < f->len; n++) {
        start();
        count += (read_copy(f->frame, n) == QUIC_LB_ERR_INVALID
                  && crypto.len == 0);
    }

    ok(count == f->len, "%s, every truncation", f->name);
}


static void
test_refused(void)
{
    size_t   i;
    uint8_t  data[16];

    static const uint8_t  ack[] = {
        2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0
    };

    memset(data, 0, sizeof(data));

    for (i = 0; i < sizeof(refused); i++) {
        data[0] = refused[i];
        start();
        ok(read_copy(data, sizeof(data)) == QUIC_LB_ERR_INVALID,
           "frame type 0x%x", data[0]);
    }

    ok(read_copy(ack, sizeof(ack)) == QUIC_LB_ERR_INVALID,
       "ACK of more ranges than there are");

    memcpy(data, "\x06\x00\x03xyz\x08", 7);
    ok(read_copy(data, 7) == QUIC_LB_ERR_INVALID && crypto.len == 3,
       "what is before the fault is taken");
}


static void
test_order(void)
{
    start();

    ok(add(20, "uvwxyz") == QUIC_LB_OK && crypto.len == 0, "the end first");
    ok(add(10, "klmno") == QUIC_LB_OK && crypto.len == 0, "a piece");
    ok(add(0, "abcdefghij") == QUIC_LB_OK && crypto.len == 15,
       "the beginning, up to the gap");
    ok(add(15, "pqrst") == QUIC_LB_OK && crypto.len == 26
       && memcmp(crypto.data, STREAM, 26) == 0, "the gap");
    ok(add(0, STREAM) == QUIC_LB_OK && crypto.len == 26, "all again");
}


static void
test_overlap(void)
{
    start();

    add(4, "efgh");
    add(10, "kl");

    ok(add(2, "cdXXXXijYYmn") == QUIC_LB_OK && crypto.len == 0,
       "over two pieces");
    ok(add(0, "abZZZZ") == QUIC_LB_OK && crypto.len == 14
       && memcmp(crypto.data, STREAM, 14) == 0, "first octets win");
    ok(add(1, "QQ") == QUIC_LB_OK && crypto.len == 14
       && memcmp(crypto.data, STREAM, 14) == 0, "also where read already");
}


static void
test_empty(void)
{
    start();

    ok(add(0, "") == QUIC_LB_OK && crypto.len == 0, "no octets");
    ok(add(9, "") == QUIC_LB_OK && crypto.len == 0, "no octets, behind a gap");
    ok(add(0, "abc") == QUIC_LB_OK && crypto.len == 3, "three octets");
    ok(add(3, "") == QUIC_LB_OK && add(1, "") == QUIC_LB_OK
       && crypto.len == 3, "no octets at the end and within");
}


static void
test_bound(void)
{
    static const uint8_t  far[] = {
        6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 'x'
    };

    start();

    ok(add(SIZE - 3, "xyz") == QUIC_LB_OK, "up to the bound");
    ok(add(SIZE - 3, "wxyz") == QUIC_LB_ERR_FULL, "beyond it");
    ok(add(SIZE, "") == QUIC_LB_OK, "no octets at the bound");
    ok(add(SIZE + 1, "") == QUIC_LB_ERR_FULL, "no octets beyond it");
    ok(read_copy(far, sizeof(far)) == QUIC_LB_ERR_FULL, "far beyond it");
    ok(crypto.len == 0 && memory[quic_lb_crypto_room(SIZE)] == 0xa5,
       "no octet behind the memory is written");
}


static void
test_size(void)
{
    size_t   offset;
    uint8_t  frame[5 + 64];

    ok(quic_lb_crypto_init(&crypto, memory, 0) == QUIC_LB_ERR_RANGE,
       "size 0");
    ok(quic_lb_crypto_init(&crypto, memory, QUIC_LB_CRYPTO_MAX + 1)
       == QUIC_LB_ERR_RANGE, "size beyond the largest");
    ok(quic_lb_crypto_init(&crypto, memory, 1) == QUIC_LB_OK
       && add(0, "a") == QUIC_LB_OK && crypto.len == 1
       && add(1, "b") == QUIC_LB_ERR_FULL, "size 1");

    ok(quic_lb_crypto_init(&crypto, memory, QUIC_LB_CRYPTO_MAX) == QUIC_LB_OK,
       "the largest size");

    memset(frame, 'x', sizeof(frame));

    for (offset = QUIC_LB_CRYPTO_MAX; offset >= 64; offset -= 64) {
        frame[0] = 6;
        frame[1] = (uint8_t) (0x40 | (offset - 64) >> 8);
        frame[2] = (uint8_t) (offset - 64);
        frame[3] = 0x40;
        frame[4] = 64;

        if (read_copy(frame, sizeof(frame)) != QUIC_LB_OK) {
            break;
        }
    }

    ok(offset == 0 && crypto.len == QUIC_LB_CRYPTO_MAX
       && crypto.data[QUIC_LB_CRYPTO_MAX - 1] == 'x', "is filled, backwards");
}


static void
start(void)
{
    memset(memory, 0xa5, sizeof(memory));

    if (quic_lb_crypto_init(&crypto, memory, SIZE) != QUIC_LB_OK) {
        ok(0, "init");
    }
}


static int
add(size_t offset, const char *data)
{
    size_t   len;
    uint8_t  frame[4 + SIZE];

    len = strlen(data);

    frame[0] = 6;
    frame[1] = 0x40;
    frame[2] = (uint8_t) offset;
    frame[3] = (uint8_t) len;
    memcpy(frame + 4, data, len);

    return read_copy(frame, 4 + len);
}


/* in memory of just that length */

static int
read_copy(const uint8_t *payload, size_t len)
{
    int       rc;
    uint8_t  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, payload, len);
    rc = quic_lb_crypto_read(&crypto, copy, len);
    free(copy);

    return rc;
}
