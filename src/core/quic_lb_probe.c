
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include <string.h>

#include "quic_lb_buf.h"
#include "quic_lb_error.h"
#include "quic_lb_packet.h"
#include "quic_lb_probe.h"


static int quic_lb_probe_same(const uint8_t *cid, size_t len,
    const uint8_t *expected);


void
quic_lb_probe_init(quic_lb_probe_t *probe, const uint8_t *random)
{
    (void) quic_lb_buf_read_uint32(random, random + 4, &probe->version);

    /* RFC 9000, 15: the pattern of reserved versions */

    probe->version = (probe->version & 0xf0f0f0f0) | 0x0a0a0a0a;

    memcpy(probe->dcid, random + 4, QUIC_LB_PROBE_CID_LEN);
    memcpy(probe->scid, random + 4 + QUIC_LB_PROBE_CID_LEN,
           QUIC_LB_PROBE_CID_LEN);
}


void
quic_lb_probe_write(const quic_lb_probe_t *probe, uint8_t *dst)
{
    uint8_t  *p;

    memset(dst, 0, QUIC_LB_PROBE_LEN);

    p = dst;

    /* a long header with the fixed bit, which some servers ask for */

    *p++ = 0xc0;

    *p++ = (uint8_t) (probe->version >> 24);
    *p++ = (uint8_t) (probe->version >> 16);
    *p++ = (uint8_t) (probe->version >> 8);
    *p++ = (uint8_t) probe->version;

    *p++ = QUIC_LB_PROBE_CID_LEN;
    memcpy(p, probe->dcid, QUIC_LB_PROBE_CID_LEN);
    p += QUIC_LB_PROBE_CID_LEN;

    *p++ = QUIC_LB_PROBE_CID_LEN;
    memcpy(p, probe->scid, QUIC_LB_PROBE_CID_LEN);
}


int
quic_lb_probe_check(const quic_lb_probe_t *probe, const uint8_t *data,
    size_t len)
{
    uint32_t          version;
    const uint8_t    *p, *end;
    quic_lb_packet_t  pkt;

    if (quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK
        || pkt.type != QUIC_LB_PACKET_NEGOTIATION
        || !quic_lb_probe_same(pkt.dcid, pkt.dcid_len, probe->scid)
        || !quic_lb_probe_same(pkt.scid, pkt.scid_len, probe->dcid))
    {
        return QUIC_LB_ERR_INVALID;
    }

    /* RFC 8999, 6: the versions, one at least */

    if (pkt.payload_len == 0 || pkt.payload_len % 4) {
        return QUIC_LB_ERR_INVALID;
    }

    /* RFC 9000, 6.2: not the one that was asked for */

    p = pkt.payload;
    end = p + pkt.payload_len;

    while ((p = quic_lb_buf_read_uint32(p, end, &version)) != NULL) {
        if (version == probe->version) {
            return QUIC_LB_ERR_INVALID;
        }
    }

    return QUIC_LB_OK;
}


static int
quic_lb_probe_same(const uint8_t *cid, size_t len, const uint8_t *expected)
{
    return len == QUIC_LB_PROBE_CID_LEN && memcmp(cid, expected, len) == 0;
}
