
/*
 * Every frame but NEW_CONNECTION_ID and the ACKs is a number of integers and
 * then, for some, octets whose number is the last integer, or fixed, or the
 * rest of the packet; so most are read from a table.
 */


#include "quic_lb_buf.h"
#include "quic_lb_frame.h"


#define FRAME_UNKNOWN     0
#define FRAME_INTEGERS    1     /* integers only */
#define FRAME_COUNTED     2     /* octets, as many as the last integer says */
#define FRAME_REST        3     /* octets up to the end of the packet */
#define FRAME_PATH        4     /* 8 octets (RFC 9000, 19.17) */
#define FRAME_PADDING     5
#define FRAME_ACK         6
#define FRAME_CONN_ID     7

#define PATH_DATA_LEN     8
#define RESET_TOKEN_LEN   16    /* RFC 9000, 19.15 */


typedef struct {
    uint8_t  form;
    uint8_t  integers;
} quic_lb_frame_form_t;


static const uint8_t *quic_lb_frame_read_body(const uint8_t *pos,
    const uint8_t *end, const quic_lb_frame_form_t *form,
    quic_lb_frame_t *frame);
static const uint8_t *quic_lb_frame_skip_padding(const uint8_t *pos,
    const uint8_t *end);
static const uint8_t *quic_lb_frame_skip_ack(const uint8_t *pos,
    const uint8_t *end, uint64_t type);
static const uint8_t *quic_lb_frame_skip_conn_id(const uint8_t *pos,
    const uint8_t *end);
static const uint8_t *quic_lb_frame_skip_integers(const uint8_t *pos,
    const uint8_t *end, uint64_t n, uint64_t *last);


/* by type, RFC 9000, table 3, and RFC 9221, 4 */

static const quic_lb_frame_form_t  quic_lb_frame_forms[] = {
    { FRAME_PADDING, 0 },
    { FRAME_INTEGERS, 0 },      /* PING */
    { FRAME_ACK, 0 },
    { FRAME_ACK, 0 },           /* with ECN counts */
    { FRAME_INTEGERS, 3 },      /* RESET_STREAM */
    { FRAME_INTEGERS, 2 },      /* STOP_SENDING */
    { FRAME_COUNTED, 2 },       /* CRYPTO */
    { FRAME_COUNTED, 1 },       /* NEW_TOKEN */

    { FRAME_REST, 1 },          /* STREAM */
    { FRAME_REST, 1 },          /* FIN */
    { FRAME_COUNTED, 2 },       /* LEN */
    { FRAME_COUNTED, 2 },       /* LEN, FIN */
    { FRAME_REST, 2 },          /* OFF */
    { FRAME_REST, 2 },          /* OFF, FIN */
    { FRAME_COUNTED, 3 },       /* OFF, LEN */
    { FRAME_COUNTED, 3 },       /* OFF, LEN, FIN */

    { FRAME_INTEGERS, 1 },      /* MAX_DATA */
    { FRAME_INTEGERS, 2 },      /* MAX_STREAM_DATA */
    { FRAME_INTEGERS, 1 },      /* MAX_STREAMS */
    { FRAME_INTEGERS, 1 },
    { FRAME_INTEGERS, 1 },      /* DATA_BLOCKED */
    { FRAME_INTEGERS, 2 },      /* STREAM_DATA_BLOCKED */
    { FRAME_INTEGERS, 1 },      /* STREAMS_BLOCKED */
    { FRAME_INTEGERS, 1 },

    { FRAME_CONN_ID, 0 },       /* NEW_CONNECTION_ID */
    { FRAME_INTEGERS, 1 },      /* RETIRE_CONNECTION_ID */
    { FRAME_PATH, 0 },          /* PATH_CHALLENGE */
    { FRAME_PATH, 0 },          /* PATH_RESPONSE */
    { FRAME_COUNTED, 3 },       /* CONNECTION_CLOSE */
    { FRAME_COUNTED, 2 },       /* CONNECTION_CLOSE of the application */
    { FRAME_INTEGERS, 0 },      /* HANDSHAKE_DONE */
    { FRAME_UNKNOWN, 0 }
};

static const quic_lb_frame_form_t  quic_lb_frame_datagram_forms[] = {
    { FRAME_REST, 0 },          /* DATAGRAM */
    { FRAME_COUNTED, 1 }        /* DATAGRAM with a length */
};

static const quic_lb_frame_form_t  quic_lb_frame_unknown = {
    FRAME_UNKNOWN, 0
};


const uint8_t *
quic_lb_frame_read(const uint8_t *pos, const uint8_t *end,
    quic_lb_frame_t *frame)
{
    size_t                       n;
    const quic_lb_frame_form_t  *form;

    frame->stream_id = 0;
    frame->error_code = 0;

    pos = quic_lb_buf_read_varint(pos, end, &frame->type);
    if (pos == NULL) {
        return NULL;
    }

    n = sizeof(quic_lb_frame_forms) / sizeof(quic_lb_frame_forms[0]);

    if (frame->type < n) {
        form = &quic_lb_frame_forms[frame->type];

    } else if (frame->type == QUIC_LB_FRAME_DATAGRAM
               || frame->type == QUIC_LB_FRAME_DATAGRAM_LEN)
    {
        form = &quic_lb_frame_datagram_forms[frame->type & 1];

    } else {
        form = &quic_lb_frame_unknown;
    }

    return quic_lb_frame_read_body(pos, end, form, frame);
}


static const uint8_t *
quic_lb_frame_read_body(const uint8_t *pos, const uint8_t *end,
    const quic_lb_frame_form_t *form, quic_lb_frame_t *frame)
{
    uint64_t        last;
    const uint8_t  *p, *data;

    last = 0;

    p = quic_lb_frame_skip_integers(pos, end, form->integers, &last);
    if (p == NULL) {
        return NULL;
    }

    switch (form->form) {

    case FRAME_INTEGERS:

        if (frame->type == QUIC_LB_FRAME_STOP_SENDING) {
            (void) quic_lb_buf_read_varint(pos, p, &frame->stream_id);
            frame->error_code = last;
        }

        return p;

    case FRAME_COUNTED:
        return quic_lb_buf_read_bytes(p, end, last, &data);

    case FRAME_REST:
        return end;

    case FRAME_PATH:
        return quic_lb_buf_read_bytes(p, end, PATH_DATA_LEN, &data);

    case FRAME_PADDING:
        return quic_lb_frame_skip_padding(p, end);

    case FRAME_ACK:
        return quic_lb_frame_skip_ack(p, end, frame->type);

    case FRAME_CONN_ID:
        return quic_lb_frame_skip_conn_id(p, end);

    default: /* FRAME_UNKNOWN */
        return NULL;
    }
}


static const uint8_t *
quic_lb_frame_skip_padding(const uint8_t *pos, const uint8_t *end)
{
    while (pos < end && *pos == QUIC_LB_FRAME_PADDING) {
        pos++;
    }

    return pos;
}


/* RFC 9000, 19.3 */

static const uint8_t *
quic_lb_frame_skip_ack(const uint8_t *pos, const uint8_t *end, uint64_t type)
{
    uint64_t  n, last;

    /* Largest Acknowledged, ACK Delay, ACK Range Count */

    pos = quic_lb_frame_skip_integers(pos, end, 3, &n);
    if (pos == NULL) {
        return NULL;
    }

    /*
     * First ACK Range, then Gap and ACK Range Length of each; the count is at
     * most 2^62 - 1, so that this does not overflow
     */

    n = 1 + 2 * n;

    if (type == QUIC_LB_FRAME_ACK_ECN) {
        n += 3;
    }

    return quic_lb_frame_skip_integers(pos, end, n, &last);
}


/* RFC 9000, 19.15 */

static const uint8_t *
quic_lb_frame_skip_conn_id(const uint8_t *pos, const uint8_t *end)
{
    uint8_t         len;
    uint64_t        last;
    const uint8_t  *data;

    pos = quic_lb_frame_skip_integers(pos, end, 2, &last);
    if (pos == NULL) {
        return NULL;
    }

    pos = quic_lb_buf_read_uint8(pos, end, &len);
    if (pos == NULL) {
        return NULL;
    }

    return quic_lb_buf_read_bytes(pos, end, (uint64_t) len + RESET_TOKEN_LEN,
                                  &data);
}


/* |last| gets the value of the last one and is untouched if |n| is 0 */

static const uint8_t *
quic_lb_frame_skip_integers(const uint8_t *pos, const uint8_t *end,
    uint64_t n, uint64_t *last)
{
    while (n--) {
        pos = quic_lb_buf_read_varint(pos, end, last);
        if (pos == NULL) {
            return NULL;
        }
    }

    return pos;
}
