
/*
 * Retry.  The first octet of the input selects: a token of a client, which no
 * one can have made; a token that is made, changed at one place and opened; or
 * a datagram in whose Initials a token is to be replaced.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_retry.h"


#define DATAGRAM  4096
#define NOW       1000

/* of a token to be: lengths, expiry, the place of the change and its value */

#define FIXED     5


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void open_any(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len);
static void open_made(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len);
static void replace(quic_lb_retry_t *ctx, const uint8_t *data, size_t len);


static const quic_lb_retry_address_t  address = { "address", 7 };
static const uint8_t                  iv[] = "twelve octets";


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    quic_lb_retry_t       ctx;
    quic_lb_retry_keys_t  keys;

    if (size == 0 || size > DATAGRAM) {
        return 0;
    }

    if (quic_lb_retry_init(&ctx) != QUIC_LB_OK
        || quic_lb_retry_derive(&keys, (const uint8_t *) "secret", 6)
           != QUIC_LB_OK)
    {
        abort();
    }

    switch (data[0] % 3) {

    case 0:
        open_any(&ctx, &keys, data + 1, size - 1);
        break;

    case 1:
        open_made(&ctx, &keys, data + 1, size - 1);
        break;

    default:
        replace(&ctx, data + 1, size - 1);
        break;
    }

    quic_lb_retry_cleanup(&ctx);

    return 0;
}


static void
open_any(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len)
{
    quic_lb_retry_token_t  token;

    assert(quic_lb_retry_open(ctx, keys, data, len, &address, NOW, &token)
           == QUIC_LB_ERR_INVALID);
}


static void
open_made(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len)
{
    int                    rc;
    uint8_t                out[QUIC_LB_RETRY_TOKEN_LEN];
    quic_lb_retry_token_t  token, got;

    if (len < FIXED) {
        return;
    }

    memset(&token, 0, sizeof(token));

    token.dcid_len = data[0];
    token.scid_len = data[1];
    token.expires = (uint32_t) (NOW - 100 + data[2]);

    memset(token.dcid, data[3], sizeof(token.dcid));
    memset(token.scid, data[4], sizeof(token.scid));

    rc = quic_lb_retry_make(ctx, keys, &token, &address, iv, out);

    if (token.dcid_len > QUIC_LB_CID_MAX || token.scid_len > QUIC_LB_CID_MAX) {
        assert(rc == QUIC_LB_ERR_RANGE);
        return;
    }

    assert(rc == QUIC_LB_OK);

    rc = quic_lb_retry_open(ctx, keys, out, sizeof(out), &address, NOW, &got);

    assert(rc == (token.expires < NOW ? QUIC_LB_ERR_RANGE : QUIC_LB_OK));
    assert(got.expires == token.expires);
    assert(got.dcid_len == token.dcid_len && got.scid_len == token.scid_len);
    assert(memcmp(got.dcid, token.dcid, token.dcid_len) == 0);
    assert(memcmp(got.scid, token.scid, token.scid_len) == 0);

    if (data[4]) {
        out[data[3] % sizeof(out)] ^= data[4];

        assert(quic_lb_retry_open(ctx, keys, out, sizeof(out), &address, NOW,
                                  &got)
               == QUIC_LB_ERR_INVALID);
    }
}


/* the token and the SCID are those of the first Initial, so it may open */

static void
replace(quic_lb_retry_t *ctx, const uint8_t *data, size_t len)
{
    int                      n;
    uint8_t                  copy[DATAGRAM], scratch[DATAGRAM];
    uint8_t                  next[QUIC_LB_RETRY_TOKEN_LEN];
    const uint8_t           *packet;
    quic_lb_packet_t         pkt;
    quic_lb_retry_token_t    token;
    quic_lb_initial_walk_t   walk;

    quic_lb_initial_walk(&walk, data, len);

    if (quic_lb_initial_next(&walk, &pkt, &packet) != QUIC_LB_OK
        || pkt.token_len != sizeof(next))
    {
        return;
    }

    memset(&token, 0, sizeof(token));
    token.scid_len = (uint8_t) pkt.dcid_len;
    memcpy(token.scid, pkt.dcid, pkt.dcid_len);

    memcpy(copy, data, len);
    memset(next, 'n', sizeof(next));

    n = quic_lb_retry_replace(ctx, copy, len, &token, pkt.token, next,
                              scratch);
    assert(n >= 0);

    if (n == 0) {
        assert(memcmp(copy, data, len) == 0);
        return;
    }

    /* and back: as it was */

    assert(quic_lb_retry_replace(ctx, copy, len, &token, next, pkt.token,
                                 scratch)
           >= n);
    assert(n > 1 || memcmp(copy, data, len) == 0);
}
