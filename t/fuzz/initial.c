
/*
 * Initial packets.  The first octet of the input selects: a datagram, each
 * Initial of which is opened with the keys of its DCID and, if it opens, must
 * be sealed to the same octets; or a packet to be sealed, which must open to
 * what it was.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_initial.h"


#define DATAGRAM  4096

/* of a packet to be: version, length of the number, number, DCID's length */

#define FIXED     11


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void datagram(quic_lb_initial_t *ctx, const uint8_t *data, size_t len);
static void open_packet(quic_lb_initial_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *data);
static void seal_packet(quic_lb_initial_t *ctx, const uint8_t *data,
    size_t len);
static size_t put_header(uint8_t *p, uint32_t version, const uint8_t *dcid,
    size_t dcid_len, const quic_lb_initial_opened_t *opened);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    quic_lb_initial_t  ctx;

    if (size == 0 || size > DATAGRAM / 2) {
        return 0;
    }

    if (quic_lb_initial_init(&ctx) != QUIC_LB_OK) {
        abort();
    }

    if (data[0] & 1) {
        seal_packet(&ctx, data + 1, size - 1);

    } else {
        datagram(&ctx, data + 1, size - 1);
    }

    quic_lb_initial_cleanup(&ctx);

    return 0;
}


static void
datagram(quic_lb_initial_t *ctx, const uint8_t *data, size_t len)
{
    const uint8_t           *packet, *last;
    quic_lb_packet_t         pkt;
    quic_lb_initial_walk_t   walk;

    last = data;
    quic_lb_initial_walk(&walk, data, len);

    while (quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK) {
        assert(packet >= last && packet < data + len);
        assert(pkt.type == QUIC_LB_PACKET_INITIAL);

        last = pkt.payload + pkt.payload_len;
        assert(last > packet && last <= data + len);

        open_packet(ctx, &pkt, packet);
    }
}


static void
open_packet(quic_lb_initial_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *data)
{
    int                        rc;
    size_t                     header_len;
    uint8_t                    out[DATAGRAM], sealed[DATAGRAM];
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    rc = quic_lb_initial_derive(ctx, &keys, pkt->version, pkt->dcid,
                                pkt->dcid_len);
    assert(rc == QUIC_LB_OK);

    rc = quic_lb_initial_open(ctx, &keys, pkt, data, 0, &opened, out);

    if (rc != QUIC_LB_OK) {
        assert(rc == (pkt->payload_len < 20 ? QUIC_LB_ERR_SHORT
                                            : QUIC_LB_ERR_INVALID));
        return;
    }

    assert(opened.payload == out);
    assert(quic_lb_initial_sealed_len(&opened) == pkt->payload_len);

    header_len = (size_t) (pkt->payload - data);
    memcpy(sealed, data, header_len);

    rc = quic_lb_initial_seal(ctx, &keys, &opened, sealed, header_len);
    assert(rc == QUIC_LB_OK);
    assert(memcmp(sealed, data, header_len + pkt->payload_len) == 0);
}


static void
seal_packet(quic_lb_initial_t *ctx, const uint8_t *data, size_t len)
{
    int                        rc;
    size_t                     i, dcid_len, header_len, sealed_len;
    uint8_t                    packet[DATAGRAM], out[DATAGRAM];
    uint32_t                   version;
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened, again;

    if (len < FIXED) {
        return;
    }

    version = (data[0] & 1) ? QUIC_LB_VERSION_1 : QUIC_LB_VERSION_2;

    opened.number_len = (data[1] & 3) + 1;
    opened.first = (version == QUIC_LB_VERSION_1) ? 0xc0 : 0xd0;
    opened.first |= data[1] & 0x0f;
    opened.number = 0;

    for (i = 2; i < 10; i++) {
        opened.number = opened.number << 8 | data[i];
    }

    opened.number &= (UINT64_C(1) << 62) - 1;

    dcid_len = data[10] % (QUIC_LB_CID_MAX + 1);
    data += FIXED;
    len -= FIXED;

    if (len < dcid_len) {
        return;
    }

    opened.payload = data + dcid_len;
    opened.payload_len = len - dcid_len;

    rc = quic_lb_initial_derive(ctx, &keys, version, data, dcid_len);
    assert(rc == QUIC_LB_OK);

    header_len = put_header(packet, version, data, dcid_len, &opened);
    sealed_len = quic_lb_initial_sealed_len(&opened);

    rc = quic_lb_initial_seal(ctx, &keys, &opened, packet, header_len);

    if (sealed_len < 20) {
        assert(rc == QUIC_LB_ERR_RANGE);
        return;
    }

    assert(rc == QUIC_LB_OK);

    rc = quic_lb_packet_parse(&pkt, packet, header_len + sealed_len);
    assert(rc == QUIC_LB_OK && pkt.type == QUIC_LB_PACKET_INITIAL);
    assert(pkt.payload == packet + header_len);
    assert(pkt.payload_len == sealed_len);

    rc = quic_lb_initial_open(ctx, &keys, &pkt, packet, opened.number, &again,
                              out);
    assert(rc == QUIC_LB_OK);
    assert(again.first == opened.first && again.number == opened.number);
    assert(again.payload_len == opened.payload_len);
    assert(memcmp(again.payload, opened.payload, opened.payload_len) == 0);
}


static size_t
put_header(uint8_t *p, uint32_t version, const uint8_t *dcid, size_t dcid_len,
    const quic_lb_initial_opened_t *opened)
{
    size_t          len;
    const uint8_t  *start;

    start = p;

    *p++ = opened->first;
    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;
    *p++ = (uint8_t) dcid_len;
    memcpy(p, dcid, dcid_len);
    p += dcid_len;
    *p++ = 0;
    *p++ = 0;

    len = quic_lb_initial_sealed_len(opened);
    *p++ = (uint8_t) (0x40 | len >> 8);
    *p++ = (uint8_t) len;

    return (size_t) (p - start);
}
