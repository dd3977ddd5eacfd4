
/*
 * Walks the frames of a payload and asserts what quic_lb_frame.h promises:
 * every step goes ahead and stays inside, a shorter payload never yields
 * another frame, and STOP_SENDING reads back what is written.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_frame.h"


#define MAX_VARINT  UINT64_C(0x3fffffffffffffff)


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void check_prefixes(const quic_lb_frame_t *frame, const uint8_t *data,
    size_t len);
static void check_written(const quic_lb_frame_t *frame);
static uint8_t *put_varint(uint8_t *p, uint64_t value);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t           steps;
    const uint8_t   *pos, *end, *next;
    quic_lb_frame_t  frame;

    pos = data;
    end = data + size;
    steps = 0;

    while (pos < end) {
        next = quic_lb_frame_read(pos, end, &frame);
        if (next == NULL) {
            return 0;
        }

        assert(next > pos && next <= end);
        assert(frame.stream_id <= MAX_VARINT && frame.error_code <= MAX_VARINT);

        if (frame.type == QUIC_LB_FRAME_STOP_SENDING) {
            check_written(&frame);

        } else {
            assert(frame.stream_id == 0 && frame.error_code == 0);
        }

        /* of some frames only, else the work is quadratic */

        if (steps++ < 8) {
            check_prefixes(&frame, pos, (size_t) (next - pos));
        }

        pos = next;
    }

    return 0;
}


/* in memory of just that length; what ends with the packet may be shorter */

static void
check_prefixes(const quic_lb_frame_t *frame, const uint8_t *data, size_t len)
{
    size_t           n;
    uint8_t         *copy;
    const uint8_t   *p;
    quic_lb_frame_t  prefix;

    for (n = 0; n < len && n < 80; n++) {
        copy = malloc(n ? n : 1);
        if (copy == NULL) {
            abort();
        }

        memcpy(copy, data, n);

        p = quic_lb_frame_read(copy, copy + n, &prefix);

        if (p != NULL) {
            assert(p == copy + n);
            assert(prefix.type == frame->type);
            assert(frame->type == QUIC_LB_FRAME_PADDING
                   || frame->type == QUIC_LB_FRAME_DATAGRAM
                   || ((frame->type & ~UINT64_C(7)) == QUIC_LB_FRAME_STREAM
                       && !(frame->type & QUIC_LB_FRAME_STREAM_LEN)));
        }

        free(copy);
    }
}


static void
check_written(const quic_lb_frame_t *frame)
{
    uint8_t          data[17], *p;
    quic_lb_frame_t  again;

    data[0] = QUIC_LB_FRAME_STOP_SENDING;
    p = put_varint(data + 1, frame->stream_id);
    p = put_varint(p, frame->error_code);

    assert(quic_lb_frame_read(data, p, &again) == p);
    assert(memcmp(frame, &again, sizeof(again)) == 0);
}


static uint8_t *
put_varint(uint8_t *p, uint64_t value)
{
    int  i;

    for (i = 7; i >= 0; i--) {
        p[i] = (uint8_t) value;
        value >>= 8;
    }

    p[0] |= 0xc0;

    return p + 8;
}
