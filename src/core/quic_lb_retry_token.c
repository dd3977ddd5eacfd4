/*
 * Tokens, the balancer's and nginx's.  Each is an IV, AES-256-GCM of the
 * fields, and the tag, the balancer's after the last octet of its period.  The
 * balancer's fields, the connection IDs filled up with zeroes:
 *
 *   the beginning of SHA-1 of the address   16
 *   the time it expires, in seconds          4
 *   lengths of DCID and SCID             1 + 1
 *   DCID of the client's first Initial      20
 *   SCID of the Retry                       20
 *
 * nginx's fields, in the byte order of the machine:
 *
 *   SHA-1 of the address                    20
 *   the time it expires, a time_t            8
 *   1: made for a Retry                      1
 *   length of the DCID                       1
 *   DCID, and anything behind it
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_retry.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>


#define QUIC_LB_RETRY_SHA1_LEN     20
#define QUIC_LB_RETRY_SHA256_LEN   32

/* offsets of the balancer's fields, octets */

#define QUIC_LB_RETRY_ADDRESS_LEN  16
#define QUIC_LB_RETRY_EXPIRES      QUIC_LB_RETRY_ADDRESS_LEN
#define QUIC_LB_RETRY_LENGTHS      (QUIC_LB_RETRY_EXPIRES + 4)
#define QUIC_LB_RETRY_DCID         (QUIC_LB_RETRY_LENGTHS + 2)
#define QUIC_LB_RETRY_SCID         (QUIC_LB_RETRY_DCID + QUIC_LB_CID_MAX)

/* of HKDF: length, label, no context, number of the block */

#define QUIC_LB_RETRY_INFO_MAX     32


static int quic_lb_retry_derive_key(uint8_t *key, const uint8_t *prk,
    const char *label);
static const uint8_t *quic_lb_retry_period_key(quic_lb_retry_keys_t *keys,
    uint32_t period);
static int quic_lb_retry_hash(quic_lb_retry_t *ctx,
    const quic_lb_retry_address_t *address, uint8_t *out);
static int quic_lb_retry_seal(quic_lb_retry_t *ctx, const uint8_t *key,
    const uint8_t *iv, const uint8_t *plain, size_t len, uint8_t *out);
static int quic_lb_retry_unseal(quic_lb_retry_t *ctx, const uint8_t *key,
    const uint8_t *data, size_t len, uint8_t *plain);


int
quic_lb_retry_derive(quic_lb_retry_keys_t *keys, const uint8_t *secret,
    size_t len)
{
    int       rc;
    uint8_t   prk[QUIC_LB_RETRY_SHA256_LEN];
    unsigned  prk_len;

    static const char  salt[] = "ngx_quic";

    /* HKDF-Extract, RFC 5869, 2.2 */

    if (HMAC(EVP_sha256(), salt, sizeof(salt) - 1, secret, len, prk, &prk_len)
        == NULL)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    rc = quic_lb_retry_derive_key(keys->server, prk, "av_token_key");

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_retry_derive_key(keys->balancer, prk, "quic_lb_token_key");
    }

    OPENSSL_cleanse(prk, sizeof(prk));

    memset(keys->periods, 0, sizeof(keys->periods));

    return rc;
}


/* the first block of HKDF-Expand, RFC 5869, 2.3; the info is nginx's */

static int
quic_lb_retry_derive_key(uint8_t *key, const uint8_t *prk, const char *label)
{
    size_t    len;
    uint8_t   info[QUIC_LB_RETRY_INFO_MAX];
    unsigned  key_len;

    len = strlen(label);

    info[0] = 0;
    info[1] = QUIC_LB_RETRY_KEY_LEN;
    info[2] = (uint8_t) len;

    memcpy(info + 3, label, len);

    info[3 + len] = 0;
    info[3 + len + 1] = 1;

    if (HMAC(EVP_sha256(), prk, QUIC_LB_RETRY_SHA256_LEN, info, len + 5, key,
             &key_len)
        == NULL)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


/* HMAC is the PRF; NULL: the library has failed */

static const uint8_t *
quic_lb_retry_period_key(quic_lb_retry_keys_t *keys, uint32_t period)
{
    uint8_t                  text[4];
    unsigned                 len;
    quic_lb_retry_period_t  *kept;

    kept = &keys->periods[period % QUIC_LB_RETRY_PERIODS];

    if (kept->derived && kept->period == period) {
        return kept->key;
    }

    kept->derived = 0;

    text[0] = (uint8_t) (period >> 24);
    text[1] = (uint8_t) (period >> 16);
    text[2] = (uint8_t) (period >> 8);
    text[3] = (uint8_t) period;

    if (HMAC(EVP_sha256(), keys->balancer, QUIC_LB_RETRY_KEY_LEN, text,
             sizeof(text), kept->key, &len)
        == NULL)
    {
        return NULL;
    }

    kept->period = period;
    kept->derived = 1;

    return kept->key;
}


int
quic_lb_retry_make(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const quic_lb_retry_token_t *token, const quic_lb_retry_address_t *address,
    const uint8_t *iv, uint8_t *out)
{
    int             rc;
    uint8_t        *p, plain[QUIC_LB_RETRY_PLAIN_LEN];
    uint8_t         hash[QUIC_LB_RETRY_SHA1_LEN];
    uint32_t        period;
    const uint8_t  *key;

    if (token->dcid_len > QUIC_LB_CID_MAX
        || token->scid_len > QUIC_LB_CID_MAX)
    {
        return QUIC_LB_ERR_RANGE;
    }

    period = token->expires >> QUIC_LB_RETRY_PERIOD_BITS;

    key = quic_lb_retry_period_key(keys, period);
    if (key == NULL) {
        return QUIC_LB_ERR_CRYPTO;
    }

    rc = quic_lb_retry_hash(ctx, address, hash);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    memset(plain, 0, sizeof(plain));
    memcpy(plain, hash, QUIC_LB_RETRY_ADDRESS_LEN);

    p = plain + QUIC_LB_RETRY_EXPIRES;

    p[0] = (uint8_t) (token->expires >> 24);
    p[1] = (uint8_t) (token->expires >> 16);
    p[2] = (uint8_t) (token->expires >> 8);
    p[3] = (uint8_t) token->expires;

    p = plain + QUIC_LB_RETRY_LENGTHS;

    p[0] = token->dcid_len;
    p[1] = token->scid_len;

    memcpy(plain + QUIC_LB_RETRY_DCID, token->dcid, token->dcid_len);
    memcpy(plain + QUIC_LB_RETRY_SCID, token->scid, token->scid_len);

    *out++ = (uint8_t) period;

    return quic_lb_retry_seal(ctx, key, iv, plain, sizeof(plain), out);
}


int
quic_lb_retry_open(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len, const quic_lb_retry_address_t *address,
    uint32_t now, quic_lb_retry_token_t *token)
{
    int             rc;
    int8_t          away;
    uint8_t        *p, plain[QUIC_LB_RETRY_PLAIN_LEN];
    uint8_t         hash[QUIC_LB_RETRY_SHA1_LEN];
    uint32_t        period;
    const uint8_t  *key;

    if (len != QUIC_LB_RETRY_TOKEN_LEN) {
        return QUIC_LB_ERR_INVALID;
    }

    period = now >> QUIC_LB_RETRY_PERIOD_BITS;
    away = (int8_t) (data[0] - (uint8_t) period);

    if (away < -1 || away > 1) {
        return QUIC_LB_ERR_INVALID;
    }

    /* the time may wrap */

    period = (period + (uint32_t) away)
             & (UINT32_MAX >> QUIC_LB_RETRY_PERIOD_BITS);

    key = quic_lb_retry_period_key(keys, period);
    if (key == NULL) {
        return QUIC_LB_ERR_CRYPTO;
    }

    rc = quic_lb_retry_unseal(ctx, key, data + 1, len - 1, plain);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_retry_hash(ctx, address, hash);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    p = plain + QUIC_LB_RETRY_LENGTHS;

    /* who has the key may have made another format of it */

    if (p[0] > QUIC_LB_CID_MAX || p[1] > QUIC_LB_CID_MAX) {
        return QUIC_LB_ERR_INVALID;
    }

    token->dcid_len = p[0];
    token->scid_len = p[1];

    memcpy(token->dcid, plain + QUIC_LB_RETRY_DCID, QUIC_LB_CID_MAX);
    memcpy(token->scid, plain + QUIC_LB_RETRY_SCID, QUIC_LB_CID_MAX);

    p = plain + QUIC_LB_RETRY_EXPIRES;

    token->expires = (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16
                     | (uint32_t) p[2] << 8 | p[3];

    if (CRYPTO_memcmp(plain, hash, QUIC_LB_RETRY_ADDRESS_LEN) != 0
        || (int32_t) (now - token->expires) > 0)
    {
        return QUIC_LB_ERR_RANGE;
    }

    return QUIC_LB_OK;
}


int
quic_lb_retry_make_server(quic_lb_retry_t *ctx,
    const quic_lb_retry_keys_t *keys, const quic_lb_retry_token_t *token,
    const quic_lb_retry_address_t *address, int64_t expires,
    const uint8_t *iv, uint8_t *out, size_t len)
{
    int       rc;
    size_t    plain_len;
    uint8_t  *p, plain[QUIC_LB_RETRY_PLAIN_MAX];

    if (len < QUIC_LB_RETRY_IV_LEN + QUIC_LB_RETRY_TAG_LEN) {
        return QUIC_LB_ERR_RANGE;
    }

    plain_len = len - QUIC_LB_RETRY_IV_LEN - QUIC_LB_RETRY_TAG_LEN;

    if (token->dcid_len > QUIC_LB_CID_MAX
        || plain_len > QUIC_LB_RETRY_PLAIN_MAX
        || plain_len < QUIC_LB_RETRY_SHA1_LEN + sizeof(int64_t) + 2
                       + (size_t) token->dcid_len)
    {
        return QUIC_LB_ERR_RANGE;
    }

    memset(plain, 0, sizeof(plain));

    rc = quic_lb_retry_hash(ctx, address, plain);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    p = plain + QUIC_LB_RETRY_SHA1_LEN;

    memcpy(p, &expires, sizeof(int64_t));
    p += sizeof(int64_t);

    *p++ = 1;
    *p++ = token->dcid_len;
    memcpy(p, token->dcid, token->dcid_len);

    return quic_lb_retry_seal(ctx, keys->server, iv, plain, plain_len, out);
}


int
quic_lb_retry_open_server(quic_lb_retry_t *ctx,
    const quic_lb_retry_keys_t *keys, const uint8_t *data, size_t len,
    const quic_lb_retry_address_t *address, int64_t now,
    quic_lb_retry_token_t *token)
{
    int       rc;
    size_t    plain_len;
    int64_t   expires;
    uint8_t  *p, plain[QUIC_LB_RETRY_PLAIN_MAX], hash[QUIC_LB_RETRY_SHA1_LEN];

    if (len < QUIC_LB_RETRY_IV_LEN + QUIC_LB_RETRY_TAG_LEN) {
        return QUIC_LB_ERR_INVALID;
    }

    plain_len = len - QUIC_LB_RETRY_IV_LEN - QUIC_LB_RETRY_TAG_LEN;

    if (plain_len > QUIC_LB_RETRY_PLAIN_MAX
        || plain_len < QUIC_LB_RETRY_SHA1_LEN + sizeof(int64_t) + 2)
    {
        return QUIC_LB_ERR_INVALID;
    }

    rc = quic_lb_retry_unseal(ctx, keys->server, data, len, plain);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_retry_hash(ctx, address, hash);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    p = plain + QUIC_LB_RETRY_SHA1_LEN;

    memcpy(&expires, p, sizeof(int64_t));
    p += sizeof(int64_t);

    /* of a Retry, not of NEW_TOKEN */

    if (p[0] != 1 || p[1] > QUIC_LB_CID_MAX
        || p[1] > plain + plain_len - (p + 2))
    {
        return QUIC_LB_ERR_INVALID;
    }

    token->dcid_len = p[1];
    memcpy(token->dcid, p + 2, token->dcid_len);

    if (CRYPTO_memcmp(plain, hash, QUIC_LB_RETRY_SHA1_LEN) != 0
        || now > expires)
    {
        return QUIC_LB_ERR_RANGE;
    }

    return QUIC_LB_OK;
}


/* writes QUIC_LB_RETRY_SHA1_LEN octets */

static int
quic_lb_retry_hash(quic_lb_retry_t *ctx,
    const quic_lb_retry_address_t *address, uint8_t *out)
{
    if (EVP_DigestInit_ex(ctx->hash, NULL, NULL) != 1
        || EVP_DigestUpdate(ctx->hash, address->data, address->len) != 1
        || EVP_DigestFinal_ex(ctx->hash, out, NULL) != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


static int
quic_lb_retry_seal(quic_lb_retry_t *ctx, const uint8_t *key,
    const uint8_t *iv, const uint8_t *plain, size_t len, uint8_t *out)
{
    int  n;

    memcpy(out, iv, QUIC_LB_RETRY_IV_LEN);
    out += QUIC_LB_RETRY_IV_LEN;

    if (EVP_CipherInit_ex(ctx->token, NULL, NULL, key, iv, 1) != 1
        || EVP_CipherUpdate(ctx->token, out, &n, plain, (int) len) != 1
        || EVP_CipherFinal_ex(ctx->token, out + len, &n) != 1
        || EVP_CIPHER_CTX_ctrl(ctx->token, EVP_CTRL_AEAD_GET_TAG,
                               QUIC_LB_RETRY_TAG_LEN, out + len)
           != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


/* |len| octets, with IV and tag, and |plain| has room for what is between */

static int
quic_lb_retry_unseal(quic_lb_retry_t *ctx, const uint8_t *key,
    const uint8_t *data, size_t len, uint8_t *plain)
{
    int            n;
    size_t         plain_len;
    uint8_t        tag[QUIC_LB_RETRY_TAG_LEN];
    const uint8_t *in;

    in = data + QUIC_LB_RETRY_IV_LEN;
    plain_len = len - QUIC_LB_RETRY_IV_LEN - QUIC_LB_RETRY_TAG_LEN;

    /* the library wants it writable */

    memcpy(tag, in + plain_len, sizeof(tag));

    if (EVP_CipherInit_ex(ctx->token, NULL, NULL, key, data, 0) != 1
        || EVP_CipherUpdate(ctx->token, plain, &n, in, (int) plain_len) != 1
        || EVP_CIPHER_CTX_ctrl(ctx->token, EVP_CTRL_AEAD_SET_TAG,
                               QUIC_LB_RETRY_TAG_LEN, tag)
           != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    if (EVP_CipherFinal_ex(ctx->token, plain + plain_len, &n) != 1) {
        return QUIC_LB_ERR_INVALID;
    }

    return QUIC_LB_OK;
}
