
/*
 * Readers of octets between |pos| and |end|, which is |pos| or behind it.  Each
 * returns the position behind what it read, or NULL with its output untouched
 * if the input ends earlier.  Integers are in network byte order.  Nothing is
 * copied or allocated.
 */


#ifndef _QUIC_LB_BUF_H_INCLUDED_
#define _QUIC_LB_BUF_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* reads one octet into |value| */

static inline const uint8_t *
quic_lb_buf_read_uint8(const uint8_t *pos, const uint8_t *end, uint8_t *value)
{
    if (end - pos < 1) {
        return NULL;
    }

    *value = pos[0];

    return pos + 1;
}


/* reads an integer of four octets into |value| */

static inline const uint8_t *
quic_lb_buf_read_uint32(const uint8_t *pos, const uint8_t *end,
    uint32_t *value)
{
    if (end - pos < 4) {
        return NULL;
    }

    *value = (uint32_t) pos[0] << 24 | (uint32_t) pos[1] << 16
             | (uint32_t) pos[2] << 8 | pos[3];

    return pos + 4;
}


/*
 * Reads a variable-length integer (RFC 9000, 16), of 1, 2, 4 or 8 octets, into
 * |value|, which gets at most 2^62 - 1.  Longer forms than needed are accepted.
 */

static inline const uint8_t *
quic_lb_buf_read_varint(const uint8_t *pos, const uint8_t *end,
    uint64_t *value)
{
    size_t    i, len;
    uint64_t  v;

    if (end - pos < 1) {
        return NULL;
    }

    len = (size_t) 1 << (pos[0] >> 6);

    if ((size_t) (end - pos) < len) {
        return NULL;
    }

    v = pos[0] & 0x3f;

    for (i = 1; i < len; i++) {
        v = v << 8 | pos[i];
    }

    *value = v;

    return pos + len;
}


/*
 * Sets |bytes| to the |len| octets at |pos|, which stay the caller's; |len| may
 * be of any size.
 */

static inline const uint8_t *
quic_lb_buf_read_bytes(const uint8_t *pos, const uint8_t *end, uint64_t len,
    const uint8_t **bytes)
{
    if ((uint64_t) (end - pos) < len) {
        return NULL;
    }

    *bytes = pos;

    return pos + len;
}


#endif /* _QUIC_LB_BUF_H_INCLUDED_ */
