
/*
 * Frames of Initial packets and the CRYPTO stream.  What has come is marked
 * octet by octet: no sequence of frames, however small and scattered, takes
 * more memory or more time than its octets do.
 */


#include <string.h>

#include "quic_lb_buf.h"
#include "quic_lb_crypto.h"
#include "quic_lb_error.h"


/* RFC 9000, 12.4, table 3: the frames that Initial packets may have */

#define QUIC_LB_CRYPTO_PADDING  0x00
#define QUIC_LB_CRYPTO_PING     0x01
#define QUIC_LB_CRYPTO_ACK      0x02
#define QUIC_LB_CRYPTO_ACK_ECN  0x03
#define QUIC_LB_CRYPTO_CRYPTO   0x06
#define QUIC_LB_CRYPTO_CLOSE    0x1c


static int quic_lb_crypto_frame(quic_lb_crypto_t *crypto,
    const uint8_t **pos, const uint8_t *end);
static const uint8_t *quic_lb_crypto_skip_ack(const uint8_t *pos,
    const uint8_t *end, int ecn);
static const uint8_t *quic_lb_crypto_skip_close(const uint8_t *pos,
    const uint8_t *end);
static const uint8_t *quic_lb_crypto_skip_varints(const uint8_t *pos,
    const uint8_t *end, uint64_t count);
static int quic_lb_crypto_stream(quic_lb_crypto_t *crypto,
    const uint8_t **pos, const uint8_t *end);
static void quic_lb_crypto_add(quic_lb_crypto_t *crypto, size_t offset,
    const uint8_t *data, size_t len);


#define quic_lb_crypto_has(crypto, i)                                         \
    ((crypto)->have[(i) / 8] & 1 << (i) % 8)


int
quic_lb_crypto_init(quic_lb_crypto_t *crypto, void *memory, size_t size)
{
    if (size == 0 || size > QUIC_LB_CRYPTO_MAX) {
        return QUIC_LB_ERR_RANGE;
    }

    crypto->data = memory;
    crypto->have = crypto->data + size;
    crypto->size = size;
    crypto->len = 0;

    memset(crypto->have, 0, quic_lb_crypto_room(size) - size);

    return QUIC_LB_OK;
}


int
quic_lb_crypto_read(quic_lb_crypto_t *crypto, const uint8_t *payload,
    size_t len)
{
    int             rc;
    const uint8_t  *pos, *end;

    /* RFC 9000, 12.4 */

    if (len == 0) {
        return QUIC_LB_ERR_INVALID;
    }

    pos = payload;
    end = payload + len;

    while (pos < end) {
        rc = quic_lb_crypto_frame(crypto, &pos, end);
        if (rc != QUIC_LB_OK) {
            return rc;
        }
    }

    return QUIC_LB_OK;
}


/* moves |pos| behind the frame */

static int
quic_lb_crypto_frame(quic_lb_crypto_t *crypto, const uint8_t **pos,
    const uint8_t *end)
{
    uint64_t  type;

    *pos = quic_lb_buf_read_varint(*pos, end, &type);
    if (*pos == NULL) {
        return QUIC_LB_ERR_INVALID;
    }

    switch (type) {

    case QUIC_LB_CRYPTO_PADDING:
    case QUIC_LB_CRYPTO_PING:
        break;

    case QUIC_LB_CRYPTO_ACK:
    case QUIC_LB_CRYPTO_ACK_ECN:
        *pos = quic_lb_crypto_skip_ack(*pos, end,
                                       type == QUIC_LB_CRYPTO_ACK_ECN);
        break;

    case QUIC_LB_CRYPTO_CRYPTO:
        return quic_lb_crypto_stream(crypto, pos, end);

    case QUIC_LB_CRYPTO_CLOSE:
        *pos = quic_lb_crypto_skip_close(*pos, end);
        break;

    default:
        return QUIC_LB_ERR_INVALID;
    }

    return (*pos == NULL) ? QUIC_LB_ERR_INVALID : QUIC_LB_OK;
}


/* RFC 9000, 19.3, without the type */

static const uint8_t *
quic_lb_crypto_skip_ack(const uint8_t *pos, const uint8_t *end, int ecn)
{
    uint64_t  ranges;

    /* Largest Acknowledged, ACK Delay */

    pos = quic_lb_crypto_skip_varints(pos, end, 2);
    if (pos == NULL) {
        return NULL;
    }

    pos = quic_lb_buf_read_varint(pos, end, &ranges);
    if (pos == NULL) {
        return NULL;
    }

    /* First ACK Range, two in each range, ECN Counts: below 2^64 */

    return quic_lb_crypto_skip_varints(pos, end,
                                       1 + 2 * ranges + (ecn ? 3 : 0));
}


/* RFC 9000, 19.19, without the type */

static const uint8_t *
quic_lb_crypto_skip_close(const uint8_t *pos, const uint8_t *end)
{
    uint64_t        len;
    const uint8_t  *reason;

    /* Error Code, Frame Type */

    pos = quic_lb_crypto_skip_varints(pos, end, 2);
    if (pos == NULL) {
        return NULL;
    }

    pos = quic_lb_buf_read_varint(pos, end, &len);
    if (pos == NULL) {
        return NULL;
    }

    return quic_lb_buf_read_bytes(pos, end, len, &reason);
}


static const uint8_t *
quic_lb_crypto_skip_varints(const uint8_t *pos, const uint8_t *end,
    uint64_t count)
{
    uint64_t  value;

    while (count && pos != NULL) {
        pos = quic_lb_buf_read_varint(pos, end, &value);
        count--;
    }

    return pos;
}


/* RFC 9000, 19.6, without the type */

static int
quic_lb_crypto_stream(quic_lb_crypto_t *crypto, const uint8_t **pos,
    const uint8_t *end)
{
    uint64_t        offset, len;
    const uint8_t  *data;

    *pos = quic_lb_buf_read_varint(*pos, end, &offset);
    if (*pos == NULL) {
        return QUIC_LB_ERR_INVALID;
    }

    *pos = quic_lb_buf_read_varint(*pos, end, &len);
    if (*pos == NULL) {
        return QUIC_LB_ERR_INVALID;
    }

    *pos = quic_lb_buf_read_bytes(*pos, end, len, &data);
    if (*pos == NULL) {
        return QUIC_LB_ERR_INVALID;
    }

    if (offset > crypto->size || len > crypto->size - offset) {
        return QUIC_LB_ERR_FULL;
    }

    quic_lb_crypto_add(crypto, (size_t) offset, data, (size_t) len);

    return QUIC_LB_OK;
}


/* the first content of an octet stays, as it does in endpoints */

static void
quic_lb_crypto_add(quic_lb_crypto_t *crypto, size_t offset,
    const uint8_t *data, size_t len)
{
    size_t  i;

    for (i = offset; i < offset + len; i++) {

        if (!quic_lb_crypto_has(crypto, i)) {
            crypto->data[i] = data[i - offset];
            crypto->have[i / 8] |= (uint8_t) (1 << i % 8);
        }
    }

    while (crypto->len < crypto->size
           && quic_lb_crypto_has(crypto, crypto->len))
    {
        crypto->len++;
    }
}
