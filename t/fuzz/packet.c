
/*
 * Walks the packets of a datagram, as for coalesced ones, and asserts what
 * quic_lb_packet.h promises of each.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_packet.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void check_packet(const quic_lb_packet_t *pkt, const uint8_t *data,
    size_t len);
static void check_inside(const uint8_t *p, size_t p_len, const uint8_t *data,
    size_t len);
static void check_prefixes(const quic_lb_packet_t *pkt, const uint8_t *data,
    size_t len);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                rc;
    const uint8_t     *pos, *end, *next;
    quic_lb_packet_t   pkt;

    pos = data;
    end = data + size;

    for ( ;; ) {
        rc = quic_lb_packet_parse(&pkt, pos, (size_t) (end - pos));

        if (rc != QUIC_LB_OK) {
            assert(rc == QUIC_LB_ERR_SHORT || rc == QUIC_LB_ERR_INVALID);
            return 0;
        }

        check_packet(&pkt, pos, (size_t) (end - pos));

        /* of the first packet only, else the work is cubic */

        if (pos == data) {
            check_prefixes(&pkt, pos, (size_t) (end - pos));
        }

        next = pkt.payload + pkt.payload_len;
        assert(next > pos && next <= end);

        pos = next;
    }
}


static void
check_packet(const quic_lb_packet_t *pkt, const uint8_t *data, size_t len)
{
    check_inside(pkt->dcid, pkt->dcid_len, data, len);
    check_inside(pkt->payload, pkt->payload_len, data, len);

    if (pkt->type == QUIC_LB_PACKET_SHORT) {
        assert(!(data[0] & 0x80));
        assert(pkt->version == 0 && pkt->scid == NULL && pkt->scid_len == 0);
        assert(pkt->dcid == data + 1 && pkt->dcid_len <= QUIC_LB_CID_MAX);

    } else {
        assert(data[0] & 0x80);
        check_inside(pkt->scid, pkt->scid_len, data, len);
        assert(pkt->scid == pkt->dcid + pkt->dcid_len + 1);
        assert(pkt->payload >= pkt->scid + pkt->scid_len);
    }

    if (pkt->type == QUIC_LB_PACKET_INITIAL) {
        check_inside(pkt->token, pkt->token_len, data, len);
        assert(pkt->token > pkt->scid + pkt->scid_len);
        assert(pkt->payload > pkt->token + pkt->token_len);

    } else {
        assert(pkt->token == NULL && pkt->token_len == 0);
    }

    assert((pkt->type == QUIC_LB_PACKET_NEGOTIATION)
           == ((data[0] & 0x80) && pkt->version == 0));

    if (pkt->version == QUIC_LB_VERSION_1
        || pkt->version == QUIC_LB_VERSION_2)
    {
        assert(pkt->type >= QUIC_LB_PACKET_INITIAL
               && pkt->type <= QUIC_LB_PACKET_RETRY);
        assert(pkt->dcid_len <= QUIC_LB_CID_MAX);
        assert(pkt->scid_len <= QUIC_LB_CID_MAX);
    }
}


static void
check_inside(const uint8_t *p, size_t p_len, const uint8_t *data, size_t len)
{
    assert(p > data && p <= data + len);
    assert(p_len <= (size_t) (data + len - p));
}


/*
 * Each prefix is parsed in memory of just its length.  What has a Length
 * field is refused without all of its payload; the rest is not, once its
 * header is there, and reads the same.
 */

static void
check_prefixes(const quic_lb_packet_t *pkt, const uint8_t *data, size_t len)
{
    int                rc;
    size_t             n, needed;
    uint8_t           *copy;
    quic_lb_packet_t   prefix;

    needed = (size_t) (pkt->payload - data);

    if (pkt->type >= QUIC_LB_PACKET_INITIAL
        && pkt->type <= QUIC_LB_PACKET_HANDSHAKE)
    {
        needed += pkt->payload_len;
    }

    for (n = 0; n <= len && n <= 600; n++) {
        copy = malloc(n ? n : 1);
        if (copy == NULL) {
            abort();
        }

        memcpy(copy, data, n);

        rc = quic_lb_packet_parse(&prefix, copy, n);

        if (n < needed) {
            assert(rc == QUIC_LB_ERR_SHORT);

        } else {
            assert(rc == QUIC_LB_OK);
            check_packet(&prefix, copy, n);

            assert(prefix.type == pkt->type);
            assert(prefix.version == pkt->version);
            assert(prefix.scid_len == pkt->scid_len);
            assert(prefix.token_len == pkt->token_len);
            assert(prefix.payload - copy == pkt->payload - data);
        }

        free(copy);
    }
}
