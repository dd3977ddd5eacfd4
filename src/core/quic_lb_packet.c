
/*
 * QUIC packet headers.  The version-independent part (RFC 8999) is read
 * first and does not depend on the rest; only then, for versions 1 and 2,
 * come the fields that are theirs.  The fixed bit is not looked at: it may be
 * greased (RFC 9287), and other versions need not have it.
 */


#include <string.h>

#include "quic_lb_buf.h"
#include "quic_lb_error.h"
#include "quic_lb_packet.h"


static void quic_lb_packet_parse_short(quic_lb_packet_t *pkt,
    const uint8_t *pos, const uint8_t *end);
static const uint8_t *quic_lb_packet_read_invariants(quic_lb_packet_t *pkt,
    const uint8_t *pos, const uint8_t *end);
static const uint8_t *quic_lb_packet_read_bytes8(const uint8_t *pos,
    const uint8_t *end, const uint8_t **bytes, size_t *bytes_len);
static int quic_lb_packet_parse_versioned(quic_lb_packet_t *pkt,
    uint8_t first, const uint8_t *pos, const uint8_t *end);
static const uint8_t *quic_lb_packet_read_token(quic_lb_packet_t *pkt,
    const uint8_t *pos, const uint8_t *end);
static int quic_lb_packet_read_payload(quic_lb_packet_t *pkt,
    const uint8_t *pos, const uint8_t *end);
static void quic_lb_packet_set_payload(quic_lb_packet_t *pkt,
    const uint8_t *pos, const uint8_t *end);


/* by the two type bits: RFC 9000, 17.2, table 5 and RFC 9369, 3.2 */

static const quic_lb_packet_type_e  quic_lb_packet_types_v1[] = {
    QUIC_LB_PACKET_INITIAL,
    QUIC_LB_PACKET_0RTT,
    QUIC_LB_PACKET_HANDSHAKE,
    QUIC_LB_PACKET_RETRY
};

static const quic_lb_packet_type_e  quic_lb_packet_types_v2[] = {
    QUIC_LB_PACKET_RETRY,
    QUIC_LB_PACKET_INITIAL,
    QUIC_LB_PACKET_0RTT,
    QUIC_LB_PACKET_HANDSHAKE
};


int
quic_lb_packet_parse(quic_lb_packet_t *pkt, const uint8_t *data, size_t len)
{
    const uint8_t  *pos, *end;

    if (len == 0) {
        return QUIC_LB_ERR_SHORT;
    }

    memset(pkt, 0, sizeof(quic_lb_packet_t));

    pos = data + 1;
    end = data + len;

    if (!(data[0] & 0x80)) {
        quic_lb_packet_parse_short(pkt, pos, end);
        return QUIC_LB_OK;
    }

    pos = quic_lb_packet_read_invariants(pkt, pos, end);
    if (pos == NULL) {
        return QUIC_LB_ERR_SHORT;
    }

    switch (pkt->version) {

    case QUIC_LB_VERSION_1:
    case QUIC_LB_VERSION_2:
        return quic_lb_packet_parse_versioned(pkt, data[0], pos, end);

    case 0:
        pkt->type = QUIC_LB_PACKET_NEGOTIATION;
        break;

    default:
        pkt->type = QUIC_LB_PACKET_UNKNOWN;
    }

    quic_lb_packet_set_payload(pkt, pos, end);

    return QUIC_LB_OK;
}


static void
quic_lb_packet_parse_short(quic_lb_packet_t *pkt, const uint8_t *pos,
    const uint8_t *end)
{
    pkt->type = QUIC_LB_PACKET_SHORT;
    pkt->dcid = pos;
    pkt->dcid_len = (size_t) (end - pos);

    if (pkt->dcid_len > QUIC_LB_CID_MAX) {
        pkt->dcid_len = QUIC_LB_CID_MAX;
    }

    quic_lb_packet_set_payload(pkt, pos, end);
}


/* RFC 8999, 5.1, without the first octet */

static const uint8_t *
quic_lb_packet_read_invariants(quic_lb_packet_t *pkt, const uint8_t *pos,
    const uint8_t *end)
{
    pos = quic_lb_buf_read_uint32(pos, end, &pkt->version);
    if (pos == NULL) {
        return NULL;
    }

    pos = quic_lb_packet_read_bytes8(pos, end, &pkt->dcid, &pkt->dcid_len);
    if (pos == NULL) {
        return NULL;
    }

    return quic_lb_packet_read_bytes8(pos, end, &pkt->scid, &pkt->scid_len);
}


/* a length of one octet and as many octets */

static const uint8_t *
quic_lb_packet_read_bytes8(const uint8_t *pos, const uint8_t *end,
    const uint8_t **bytes, size_t *bytes_len)
{
    uint8_t  len;

    pos = quic_lb_buf_read_uint8(pos, end, &len);
    if (pos == NULL) {
        return NULL;
    }

    *bytes_len = len;

    return quic_lb_buf_read_bytes(pos, end, len, bytes);
}


static int
quic_lb_packet_parse_versioned(quic_lb_packet_t *pkt, uint8_t first,
    const uint8_t *pos, const uint8_t *end)
{
    uint8_t  bits;

    if (pkt->dcid_len > QUIC_LB_CID_MAX || pkt->scid_len > QUIC_LB_CID_MAX) {
        return QUIC_LB_ERR_INVALID;
    }

    bits = (first & 0x30) >> 4;

    pkt->type = (pkt->version == QUIC_LB_VERSION_1)
                ? quic_lb_packet_types_v1[bits]
                : quic_lb_packet_types_v2[bits];

    if (pkt->type == QUIC_LB_PACKET_RETRY) {
        quic_lb_packet_set_payload(pkt, pos, end);
        return QUIC_LB_OK;
    }

    if (pkt->type == QUIC_LB_PACKET_INITIAL) {
        pos = quic_lb_packet_read_token(pkt, pos, end);
        if (pos == NULL) {
            return QUIC_LB_ERR_SHORT;
        }
    }

    return quic_lb_packet_read_payload(pkt, pos, end);
}


static const uint8_t *
quic_lb_packet_read_token(quic_lb_packet_t *pkt, const uint8_t *pos,
    const uint8_t *end)
{
    uint64_t  len;

    pos = quic_lb_buf_read_varint(pos, end, &len);
    if (pos == NULL) {
        return NULL;
    }

    pos = quic_lb_buf_read_bytes(pos, end, len, &pkt->token);
    if (pos == NULL) {
        return NULL;
    }

    pkt->token_len = (size_t) len;

    return pos;
}


/* Length, and the octets it counts; more packets may follow */

static int
quic_lb_packet_read_payload(quic_lb_packet_t *pkt, const uint8_t *pos,
    const uint8_t *end)
{
    uint64_t  len;

    pos = quic_lb_buf_read_varint(pos, end, &len);
    if (pos == NULL) {
        return QUIC_LB_ERR_SHORT;
    }

    pos = quic_lb_buf_read_bytes(pos, end, len, &pkt->payload);
    if (pos == NULL) {
        return QUIC_LB_ERR_SHORT;
    }

    pkt->payload_len = (size_t) len;

    return QUIC_LB_OK;
}


static void
quic_lb_packet_set_payload(quic_lb_packet_t *pkt, const uint8_t *pos,
    const uint8_t *end)
{
    pkt->payload = pos;
    pkt->payload_len = (size_t) (end - pos);
}
