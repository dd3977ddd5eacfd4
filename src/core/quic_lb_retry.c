/*
 * Retry packets, and what becomes of Initials with a token.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_retry.h"

#include <openssl/evp.h>


/* RFC 9000, 19.19 and 20.1; the frame type that caused it, and no reason */

#define QUIC_LB_RETRY_CLOSE_FRAME  0x1c
#define QUIC_LB_RETRY_CLOSE_CODE   0x0b
#define QUIC_LB_RETRY_CLOSE_LEN    4


typedef struct {
    uint8_t  first;               /* the first octet, unused bits set */
    uint8_t  key[16];
    uint8_t  nonce[12];
} quic_lb_retry_version_t;


static void *quic_lb_retry_cipher(const EVP_CIPHER *cipher);
static void *quic_lb_retry_digest(void);
static int quic_lb_retry_swap(quic_lb_retry_t *ctx,
    const quic_lb_initial_keys_t *keys, const quic_lb_packet_t *pkt,
    const uint8_t *packet, uint8_t *data, const uint8_t *new_token,
    uint8_t *scratch);
static const quic_lb_retry_version_t *quic_lb_retry_version(uint32_t version);
static int quic_lb_retry_tag(quic_lb_retry_t *ctx,
    const quic_lb_retry_version_t *version, const quic_lb_packet_t *pkt,
    const uint8_t *packet, size_t len, uint8_t *tag);
static uint8_t *quic_lb_retry_header(uint8_t *p, uint8_t first,
    uint32_t version, const uint8_t *dcid, size_t dcid_len,
    const uint8_t *scid, size_t scid_len);


/* RFC 9001, 5.8 */

static const quic_lb_retry_version_t  quic_lb_retry_v1 = {
    0xff,
    { 0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a,
      0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e },
    { 0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2,
      0x23, 0x98, 0x25, 0xbb }
};

/* RFC 9369, 3.2 and 3.3.3 */

static const quic_lb_retry_version_t  quic_lb_retry_v2 = {
    0xcf,
    { 0x8f, 0xb4, 0xb0, 0x1b, 0x56, 0xac, 0x48, 0xe2,
      0x60, 0xfb, 0xcb, 0xce, 0xad, 0x7c, 0xcc, 0x92 },
    { 0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99,
      0x90, 0xef, 0xb0, 0x4a }
};


int
quic_lb_retry_init(quic_lb_retry_t *ctx)
{
    memset(ctx, 0, sizeof(quic_lb_retry_t));

    ctx->token = quic_lb_retry_cipher(EVP_aes_256_gcm());
    ctx->integrity = quic_lb_retry_cipher(EVP_aes_128_gcm());
    ctx->hash = quic_lb_retry_digest();

    if (ctx->token == NULL || ctx->integrity == NULL || ctx->hash == NULL
        || quic_lb_initial_init(&ctx->initial) != QUIC_LB_OK)
    {
        quic_lb_retry_cleanup(ctx);
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


void
quic_lb_retry_cleanup(quic_lb_retry_t *ctx)
{
    EVP_CIPHER_CTX_free(ctx->token);
    EVP_CIPHER_CTX_free(ctx->integrity);
    EVP_MD_CTX_free(ctx->hash);
    quic_lb_initial_cleanup(&ctx->initial);

    memset(ctx, 0, sizeof(quic_lb_retry_t));
}


static void *
quic_lb_retry_cipher(const EVP_CIPHER *cipher)
{
    EVP_CIPHER_CTX  *ctx;

    ctx = EVP_CIPHER_CTX_new();
    if (ctx == NULL) {
        return NULL;
    }

    if (EVP_CipherInit_ex(ctx, cipher, NULL, NULL, NULL, 1) != 1) {
        EVP_CIPHER_CTX_free(ctx);
        return NULL;
    }

    return ctx;
}


static void *
quic_lb_retry_digest(void)
{
    EVP_MD_CTX  *ctx;

    ctx = EVP_MD_CTX_new();
    if (ctx == NULL) {
        return NULL;
    }

    if (EVP_DigestInit_ex(ctx, EVP_sha1(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return NULL;
    }

    return ctx;
}


int
quic_lb_retry_replace(quic_lb_retry_t *ctx, uint8_t *data, size_t len,
    const quic_lb_retry_token_t *token, const uint8_t *old_token,
    const uint8_t *new_token, uint8_t *scratch)
{
    int                      rc, n;
    uint8_t                  old[QUIC_LB_RETRY_TOKEN_LEN];
    const uint8_t           *packet;
    quic_lb_packet_t         pkt;
    quic_lb_initial_walk_t   walk;
    quic_lb_initial_keys_t   keys;

    /* it may be in the datagram */

    memcpy(old, old_token, sizeof(old));

    quic_lb_initial_walk(&walk, data, len);
    n = 0;

    while (quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK) {

        if (pkt.token_len != sizeof(old)
            || memcmp(pkt.token, old, sizeof(old)) != 0)
        {
            continue;
        }

        rc = quic_lb_initial_derive(&ctx->initial, &keys, pkt.version,
                                    token->scid, token->scid_len);

        if (rc == QUIC_LB_OK) {
            rc = quic_lb_retry_swap(ctx, &keys, &pkt, packet,
                                    data + (packet - data), new_token,
                                    scratch);
        }

        if (rc == QUIC_LB_ERR_CRYPTO) {
            return rc;
        }

        if (rc == QUIC_LB_OK) {
            n++;
        }
    }

    return n;
}


/* |packet| is |data|, which may be written to */

static int
quic_lb_retry_swap(quic_lb_retry_t *ctx, const quic_lb_initial_keys_t *keys,
    const quic_lb_packet_t *pkt, const uint8_t *packet, uint8_t *data,
    const uint8_t *new_token, uint8_t *scratch)
{
    int                       rc;
    size_t                    header_len;
    quic_lb_initial_opened_t  opened;

    rc = quic_lb_initial_open(&ctx->initial, keys, pkt, packet, 0, &opened,
                              scratch);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    header_len = (size_t) (pkt->payload - packet);

    memcpy(data + (pkt->token - packet), new_token, QUIC_LB_RETRY_TOKEN_LEN);

    return quic_lb_initial_seal(&ctx->initial, keys, &opened, data,
                                header_len);
}


int
quic_lb_retry_packet(quic_lb_retry_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *scid, size_t scid_len, const uint8_t *token,
    size_t token_len, uint8_t *out)
{
    int                             rc;
    uint8_t                        *p;
    const quic_lb_retry_version_t  *v;

    v = quic_lb_retry_version(pkt->version);

    if (v == NULL || scid_len > QUIC_LB_CID_MAX) {
        return QUIC_LB_ERR_RANGE;
    }

    p = quic_lb_retry_header(out, v->first, pkt->version, pkt->scid,
                             pkt->scid_len, scid, scid_len);

    memcpy(p, token, token_len);
    p += token_len;

    rc = quic_lb_retry_tag(ctx, v, pkt, out, (size_t) (p - out), p);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    return (int) (p - out) + QUIC_LB_RETRY_TAG_LEN;
}


static const quic_lb_retry_version_t *
quic_lb_retry_version(uint32_t version)
{
    switch (version) {

    case QUIC_LB_VERSION_1:
        return &quic_lb_retry_v1;

    case QUIC_LB_VERSION_2:
        return &quic_lb_retry_v2;

    default:
        return NULL;
    }
}


/* RFC 9001, 5.8: of a pseudo-packet that begins with the client's DCID */

static int
quic_lb_retry_tag(quic_lb_retry_t *ctx, const quic_lb_retry_version_t *version,
    const quic_lb_packet_t *pkt, const uint8_t *packet, size_t len,
    uint8_t *tag)
{
    int      n;
    uint8_t  dcid_len;

    dcid_len = (uint8_t) pkt->dcid_len;

    if (EVP_CipherInit_ex(ctx->integrity, NULL, NULL, version->key,
                          version->nonce, 1)
        != 1
        || EVP_CipherUpdate(ctx->integrity, NULL, &n, &dcid_len, 1) != 1
        || EVP_CipherUpdate(ctx->integrity, NULL, &n, pkt->dcid,
                            (int) pkt->dcid_len)
           != 1
        || EVP_CipherUpdate(ctx->integrity, NULL, &n, packet, (int) len) != 1
        || EVP_CipherFinal_ex(ctx->integrity, tag, &n) != 1
        || EVP_CIPHER_CTX_ctrl(ctx->integrity, EVP_CTRL_AEAD_GET_TAG,
                               QUIC_LB_RETRY_TAG_LEN, tag)
           != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


int
quic_lb_retry_close(quic_lb_retry_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *data, uint8_t *out, uint8_t *scratch)
{
    int                       rc;
    size_t                    len;
    uint8_t                  *p;
    quic_lb_initial_keys_t    keys;
    quic_lb_initial_opened_t  opened;

    static const uint8_t  frame[QUIC_LB_RETRY_CLOSE_LEN] =
        { QUIC_LB_RETRY_CLOSE_FRAME, QUIC_LB_RETRY_CLOSE_CODE, 0, 0 };

    rc = quic_lb_initial_derive(&ctx->initial, &keys, pkt->version, pkt->dcid,
                                pkt->dcid_len);

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_initial_open(&ctx->initial, &keys, pkt, data, 0, &opened,
                                  scratch);
    }

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_initial_derive_server(&ctx->initial, &keys, pkt->version,
                                           pkt->dcid, pkt->dcid_len);
    }

    if (rc != QUIC_LB_OK) {
        return rc == QUIC_LB_ERR_SHORT ? QUIC_LB_ERR_INVALID : rc;
    }

    /* the number is 0, in one octet; version 2 has another type */

    opened.first = (pkt->version == QUIC_LB_VERSION_2) ? 0xd0 : 0xc0;
    opened.number_len = 1;
    opened.number = 0;
    opened.payload = frame;
    opened.payload_len = sizeof(frame);

    p = quic_lb_retry_header(out, opened.first, pkt->version, pkt->scid,
                             pkt->scid_len, pkt->dcid, pkt->dcid_len);

    len = quic_lb_initial_sealed_len(&opened);

    *p++ = 0;                     /* no token */
    *p++ = (uint8_t) len;         /* below 64: one octet */

    rc = quic_lb_initial_seal(&ctx->initial, &keys, &opened, out,
                              (size_t) (p - out));
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    return (int) (p - out) + (int) len;
}


/* a long header up to its connection IDs; returns the position behind them */

static uint8_t *
quic_lb_retry_header(uint8_t *p, uint8_t first, uint32_t version,
    const uint8_t *dcid, size_t dcid_len, const uint8_t *scid, size_t scid_len)
{
    *p++ = first;

    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;

    *p++ = (uint8_t) dcid_len;
    memcpy(p, dcid, dcid_len);
    p += dcid_len;

    *p++ = (uint8_t) scid_len;
    memcpy(p, scid, scid_len);

    return p + scid_len;
}
