
/*
 * Frames: each type of RFC 9000 and RFC 9221, each truncated at every octet,
 * unknown types, and STOP_SENDING among other frames.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_frame.h"
#include "tap.h"


#define ZEROS8   0, 0, 0, 0, 0, 0, 0, 0
#define ZEROS16  ZEROS8, ZEROS8

/* 2^62 - 1, as an integer of 8 octets */

#define MAX_VARINT  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff


/* a frame; |rest| is set if it ends only with the packet */

typedef struct {
    const char  *name;
    size_t       len;
    int          rest;
    uint8_t      data[48];
} frame_case_t;


static void test_frame(const frame_case_t *c);
static void test_huge(void);
static void test_padding(void);
static void test_unknown(void);
static void test_stop_sending(void);
static void test_walk(void);
static const uint8_t *read_copy(const uint8_t *data, size_t len,
    quic_lb_frame_t *frame, size_t *used);


static const frame_case_t  cases[] = {
    { "PING", 1, 0, { 0x01 } },
    { "ACK", 5, 0, { 0x02, 9, 1, 0, 3 } },
    { "ACK, two ranges", 9, 0, { 0x02, 9, 1, 2, 3, 1, 1, 0, 0 } },
    { "ACK with ECN", 8, 0, { 0x03, 9, 1, 0, 3, 7, 0, 0 } },
    { "ACK with ECN, a range", 10, 0, { 0x03, 9, 1, 1, 3, 1, 1, 7, 0, 0 } },
    { "RESET_STREAM", 5, 0, { 0x04, 3, 0x40, 1, 2 } },
    { "STOP_SENDING", 3, 0, { 0x05, 3, 2 } },
    { "CRYPTO", 6, 0, { 0x06, 1, 3, 5, 5, 5 } },
    { "CRYPTO, empty", 3, 0, { 0x06, 1, 0 } },
    { "NEW_TOKEN", 4, 0, { 0x07, 2, 5, 5 } },
    { "STREAM", 4, 1, { 0x08, 4, 5, 5 } },
    { "STREAM, FIN", 4, 1, { 0x09, 4, 5, 5 } },
    { "STREAM, LEN", 5, 0, { 0x0a, 4, 2, 5, 5 } },
    { "STREAM, LEN and FIN", 5, 0, { 0x0b, 4, 2, 5, 5 } },
    { "STREAM, OFF", 5, 1, { 0x0c, 4, 2, 5, 5 } },
    { "STREAM, OFF and FIN", 5, 1, { 0x0d, 4, 2, 5, 5 } },
    { "STREAM, OFF and LEN", 6, 0, { 0x0e, 4, 9, 2, 5, 5 } },
    { "STREAM, OFF, LEN and FIN", 6, 0, { 0x0f, 4, 9, 2, 5, 5 } },
    { "MAX_DATA", 9, 0, { 0x10, MAX_VARINT } },
    { "MAX_STREAM_DATA", 3, 0, { 0x11, 4, 9 } },
    { "MAX_STREAMS, bidirectional", 2, 0, { 0x12, 9 } },
    { "MAX_STREAMS, unidirectional", 2, 0, { 0x13, 9 } },
    { "DATA_BLOCKED", 2, 0, { 0x14, 9 } },
    { "STREAM_DATA_BLOCKED", 3, 0, { 0x15, 4, 9 } },
    { "STREAMS_BLOCKED, bidirectional", 2, 0, { 0x16, 9 } },
    { "STREAMS_BLOCKED, unidirectional", 2, 0, { 0x17, 9 } },
    { "NEW_CONNECTION_ID", 24, 0, { 0x18, 2, 1, 4, 1, 2, 3, 4, ZEROS16 } },
    { "RETIRE_CONNECTION_ID", 2, 0, { 0x19, 1 } },
    { "PATH_CHALLENGE", 9, 0, { 0x1a, ZEROS8 } },
    { "PATH_RESPONSE", 9, 0, { 0x1b, ZEROS8 } },
    { "CONNECTION_CLOSE", 6, 0, { 0x1c, 10, 6, 2, 5, 5 } },
    { "CONNECTION_CLOSE of the application", 5, 0, { 0x1d, 10, 2, 5, 5 } },
    { "HANDSHAKE_DONE", 1, 0, { 0x1e } },
    { "DATAGRAM", 3, 1, { 0x30, 5, 5 } },
    { "DATAGRAM with a length", 4, 0, { 0x31, 2, 5, 5 } },
    { "a long form of a type", 5, 0, { 0x40, 0x05, 3, 0x40, 2 } }
};


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_frame(&cases[i]);
    }

    test_huge();
    test_padding();
    test_unknown();
    test_stop_sending();
    test_walk();

    return tap_done();
}


static void
test_frame(const frame_case_t *c)
{
    size_t           len, used, min, bad;
    uint8_t          data[64];
    quic_lb_frame_t  frame;

    memcpy(data, c->data, c->len);
    data[c->len] = 0x01;

    ok(read_copy(data, c->len, &frame, &used) != NULL && used == c->len
       && frame.type == (data[0] == 0x40 ? data[1] : data[0]),
       "%s", c->name);

    (void) read_copy(data, c->len + 1, &frame, &used);
    ok(used == c->len + (c->rest ? 1 : 0), "%s and a PING", c->name);

    /* what ends with the packet only needs its integers */

    min = c->rest ? c->len - 2 : c->len;
    bad = 0;

    for (len = 0; len < c->len; len++) {
        if ((read_copy(data, len, &frame, &used) != NULL) != (len >= min)) {
            bad++;
        }
    }

    ok(bad == 0, "%s, truncated", c->name);
}


/* counts and lengths that do not fit into any memory */

static void
test_huge(void)
{
    size_t           i, used;
    quic_lb_frame_t  frame;

    static const frame_case_t  huge[] = {
        { "ACK ranges", 13, 0, { 0x02, 9, 1, MAX_VARINT, 0 } },
        { "ACK ranges with ECN", 13, 0, { 0x03, 9, 1, MAX_VARINT, 0 } },
        { "CRYPTO", 12, 0, { 0x06, 1, MAX_VARINT, 0 } },
        { "NEW_TOKEN", 11, 0, { 0x07, MAX_VARINT, 0 } },
        { "STREAM", 12, 0, { 0x0a, 4, MAX_VARINT, 0 } },
        { "NEW_CONNECTION_ID", 24, 0, { 0x18, 2, 1, 255, 0 } },
        { "reason", 12, 0, { 0x1d, 1, MAX_VARINT, 0 } },
        { "DATAGRAM", 11, 0, { 0x31, MAX_VARINT, 0 } }
    };

    for (i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        ok(read_copy(huge[i].data, huge[i].len, &frame, &used) == NULL,
           "%s of a length without end", huge[i].name);
    }
}


static void
test_padding(void)
{
    size_t           used;
    uint8_t          data[1200];
    quic_lb_frame_t  frame;

    memset(data, 0, sizeof(data));

    ok(read_copy(data, sizeof(data), &frame, &used) != NULL
       && used == sizeof(data) && frame.type == QUIC_LB_FRAME_PADDING,
       "a run of PADDING");

    data[700] = QUIC_LB_FRAME_PING;

    (void) read_copy(data, sizeof(data), &frame, &used);
    ok(used == 700, "PADDING up to another frame");
}


static void
test_unknown(void)
{
    size_t           i, used;
    quic_lb_frame_t  frame;

    static const uint8_t  types[][8] = {
        { 0x1f }, { 0x20 }, { 0x2f }, { 0x32 }, { 0x3f },
        { 0x40, 0x40 }, { MAX_VARINT }
    };

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        ok(read_copy(types[i], sizeof(types[i]), &frame, &used) == NULL,
           "unknown type 0x%02x", types[i][0]);
    }

    ok(quic_lb_frame_read(types[0], types[0], &frame) == NULL, "no frame");
}


static void
test_stop_sending(void)
{
    size_t           used;
    quic_lb_frame_t  frame;

    static const uint8_t  small[] = { 0x05, 0, 0 };
    static const uint8_t  medium[] = { 0x05, 0x40, 0x41, 0x80, 1, 2, 3 };
    static const uint8_t  large[] = { 0x05, MAX_VARINT, MAX_VARINT };
    static const uint8_t  reset[] = { 0x04, 4, 9, 9 };

    (void) read_copy(small, sizeof(small), &frame, &used);
    ok(frame.stream_id == 0 && frame.error_code == 0, "stream 0, code 0");

    (void) read_copy(medium, sizeof(medium), &frame, &used);
    ok(frame.stream_id == 0x41 && frame.error_code == 0x10203,
       "stream 0x41, code 0x10203");

    (void) read_copy(large, sizeof(large), &frame, &used);
    ok(frame.stream_id == UINT64_C(0x3fffffffffffffff)
       && frame.error_code == UINT64_C(0x3fffffffffffffff),
       "stream and code 2^62 - 1");

    (void) read_copy(reset, sizeof(reset), &frame, &used);
    ok(frame.stream_id == 0 && frame.error_code == 0,
       "nothing of RESET_STREAM");
}


/* all frames with an end of their own, one after another */

static void
test_walk(void)
{
    size_t           i, len, count, stops;
    uint8_t          data[1024];
    const uint8_t   *p, *end;
    quic_lb_frame_t  frame;

    len = 0;
    count = 0;
    stops = 0;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!cases[i].rest) {
            memcpy(data + len, cases[i].data, cases[i].len);
            len += cases[i].len;
            count++;
        }
    }

    p = data;
    end = data + len;

    while (p != NULL && p < end) {
        p = quic_lb_frame_read(p, end, &frame);
        count--;

        if (frame.type == QUIC_LB_FRAME_STOP_SENDING) {
            stops++;
        }
    }

    ok(p == end && count == 0, "all frames in a row");
    ok(stops == 2, "both STOP_SENDING frames found");
}


/* in memory of just that length, so that ASan sees an overrun */

static const uint8_t *
read_copy(const uint8_t *data, size_t len, quic_lb_frame_t *frame,
    size_t *used)
{
    uint8_t        *copy;
    const uint8_t  *p;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, data, len);

    p = quic_lb_frame_read(copy, copy + len, frame);
    *used = p ? (size_t) (p - copy) : 0;

    free(copy);

    return p ? data + *used : NULL;
}
