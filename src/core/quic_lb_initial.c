
/*
 * Protection of clients' Initial packets.  All contexts are made once and only
 * keyed for a packet: looking up an algorithm costs more than using it.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_initial.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>


#define QUIC_LB_INITIAL_HASH_LEN    32    /* SHA-256 */
#define QUIC_LB_INITIAL_SALT_LEN    20
#define QUIC_LB_INITIAL_SAMPLE_LEN  16    /* RFC 9001, 5.4.3 */

/* the sample begins where the longest packet number ends: RFC 9001, 5.4.2 */

#define QUIC_LB_INITIAL_PAYLOAD_MIN                                           \
    (QUIC_LB_INITIAL_NUMBER_MAX + QUIC_LB_INITIAL_SAMPLE_LEN)

/* of HKDF-Expand-Label: length, prefixed label, empty context, octets */

#define QUIC_LB_INITIAL_INFO_MAX    64


typedef struct {
    uint8_t      salt[QUIC_LB_INITIAL_SALT_LEN];
    const char  *key;
    const char  *iv;
    const char  *hp;
} quic_lb_initial_version_t;


static void *quic_lb_initial_mac(void);
static void *quic_lb_initial_cipher(const EVP_CIPHER *cipher);
static const quic_lb_initial_version_t *quic_lb_initial_version(
    uint32_t version);
static int quic_lb_initial_derive_side(quic_lb_initial_t *ctx,
    quic_lb_initial_keys_t *keys, uint32_t version, const uint8_t *dcid,
    size_t dcid_len, const char *label);
static int quic_lb_initial_hmac(quic_lb_initial_t *ctx, uint8_t *out,
    const uint8_t *key, size_t key_len, const uint8_t *data, size_t len);
static int quic_lb_initial_expand(quic_lb_initial_t *ctx, uint8_t *out,
    size_t out_len, const uint8_t *secret, const char *label);
static int quic_lb_initial_mask(quic_lb_initial_t *ctx, uint8_t *mask,
    const quic_lb_initial_keys_t *keys, const uint8_t *payload);
static uint64_t quic_lb_initial_number(uint64_t truncated, size_t len,
    uint64_t expected);
static int quic_lb_initial_begin(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys, uint64_t number, int encrypt);
static int quic_lb_initial_aad(quic_lb_initial_t *ctx, const uint8_t *data,
    size_t len);
static int quic_lb_initial_decrypt(quic_lb_initial_t *ctx, uint8_t *out,
    const uint8_t *in, size_t len);
static int quic_lb_initial_encrypt(quic_lb_initial_t *ctx, uint8_t *out,
    const uint8_t *in, size_t len);


/* RFC 9001, 5.1 and 5.2 */

static const quic_lb_initial_version_t  quic_lb_initial_v1 = {
    { 0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17,
      0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a },
    "tls13 quic key",
    "tls13 quic iv",
    "tls13 quic hp"
};

/* RFC 9369, 3.3.1 and 3.3.2 */

static const quic_lb_initial_version_t  quic_lb_initial_v2 = {
    { 0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93,
      0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9 },
    "tls13 quicv2 key",
    "tls13 quicv2 iv",
    "tls13 quicv2 hp"
};


int
quic_lb_initial_init(quic_lb_initial_t *ctx)
{
    ctx->mac = quic_lb_initial_mac();
    ctx->aead = quic_lb_initial_cipher(EVP_aes_128_gcm());
    ctx->mask = quic_lb_initial_cipher(EVP_aes_128_ecb());

    if (ctx->mac == NULL || ctx->aead == NULL || ctx->mask == NULL) {
        quic_lb_initial_cleanup(ctx);
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


void
quic_lb_initial_cleanup(quic_lb_initial_t *ctx)
{
    EVP_MAC_CTX_free(ctx->mac);
    EVP_CIPHER_CTX_free(ctx->aead);
    EVP_CIPHER_CTX_free(ctx->mask);

    memset(ctx, 0, sizeof(quic_lb_initial_t));
}


static void *
quic_lb_initial_mac(void)
{
    char          digest[] = "SHA256";
    EVP_MAC      *mac;
    OSSL_PARAM    params[2];
    EVP_MAC_CTX  *ctx;

    mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    if (mac == NULL) {
        return NULL;
    }

    /* the context holds a reference of its own */

    ctx = EVP_MAC_CTX_new(mac);
    EVP_MAC_free(mac);

    if (ctx == NULL) {
        return NULL;
    }

    params[0] = OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest,
                                                 0);
    params[1] = OSSL_PARAM_construct_end();

    if (EVP_MAC_CTX_set_params(ctx, params) != 1) {
        EVP_MAC_CTX_free(ctx);
        return NULL;
    }

    return ctx;
}


static void *
quic_lb_initial_cipher(const EVP_CIPHER *cipher)
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


int
quic_lb_initial_derive(quic_lb_initial_t *ctx, quic_lb_initial_keys_t *keys,
    uint32_t version, const uint8_t *dcid, size_t dcid_len)
{
    return quic_lb_initial_derive_side(ctx, keys, version, dcid, dcid_len,
                                       "tls13 client in");
}


int
quic_lb_initial_derive_server(quic_lb_initial_t *ctx,
    quic_lb_initial_keys_t *keys, uint32_t version, const uint8_t *dcid,
    size_t dcid_len)
{
    return quic_lb_initial_derive_side(ctx, keys, version, dcid, dcid_len,
                                       "tls13 server in");
}


static int
quic_lb_initial_derive_side(quic_lb_initial_t *ctx,
    quic_lb_initial_keys_t *keys, uint32_t version, const uint8_t *dcid,
    size_t dcid_len, const char *label)
{
    int                               rc;
    uint8_t                           initial[QUIC_LB_INITIAL_HASH_LEN];
    uint8_t                           secret[QUIC_LB_INITIAL_HASH_LEN];
    const quic_lb_initial_version_t  *v;

    v = quic_lb_initial_version(version);

    if (v == NULL || dcid_len > QUIC_LB_CID_MAX) {
        return QUIC_LB_ERR_RANGE;
    }

    /* HKDF-Extract, RFC 5869, 2.2, is one HMAC */

    rc = quic_lb_initial_hmac(ctx, initial, v->salt, sizeof(v->salt), dcid,
                              dcid_len);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_initial_expand(ctx, secret, sizeof(secret), initial,
                                label);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_initial_expand(ctx, keys->key, sizeof(keys->key), secret,
                                v->key);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_initial_expand(ctx, keys->iv, sizeof(keys->iv), secret,
                                v->iv);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    return quic_lb_initial_expand(ctx, keys->hp, sizeof(keys->hp), secret,
                                  v->hp);
}


static const quic_lb_initial_version_t *
quic_lb_initial_version(uint32_t version)
{
    switch (version) {

    case QUIC_LB_VERSION_1:
        return &quic_lb_initial_v1;

    case QUIC_LB_VERSION_2:
        return &quic_lb_initial_v2;

    default:
        return NULL;
    }
}


/* writes QUIC_LB_INITIAL_HASH_LEN octets */

static int
quic_lb_initial_hmac(quic_lb_initial_t *ctx, uint8_t *out, const uint8_t *key,
    size_t key_len, const uint8_t *data, size_t len)
{
    size_t  out_len;

    if (EVP_MAC_init(ctx->mac, key, key_len, NULL) != 1
        || EVP_MAC_update(ctx->mac, data, len) != 1
        || EVP_MAC_final(ctx->mac, out, &out_len, QUIC_LB_INITIAL_HASH_LEN)
           != 1
        || out_len != QUIC_LB_INITIAL_HASH_LEN)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


/*
 * HKDF-Expand-Label, RFC 8446, 7.1, without context.  No more than a hash is
 * ever wanted, which is the first block of HKDF-Expand, RFC 5869, 2.3.
 */

static int
quic_lb_initial_expand(quic_lb_initial_t *ctx, uint8_t *out, size_t out_len,
    const uint8_t *secret, const char *label)
{
    int      rc;
    size_t   len;
    uint8_t  info[QUIC_LB_INITIAL_INFO_MAX], block[QUIC_LB_INITIAL_HASH_LEN];

    len = strlen(label);

    info[0] = 0;
    info[1] = (uint8_t) out_len;
    info[2] = (uint8_t) len;

    memcpy(info + 3, label, len);

    info[3 + len] = 0;        /* length of the context */
    info[3 + len + 1] = 1;    /* number of the block */

    rc = quic_lb_initial_hmac(ctx, block, secret, QUIC_LB_INITIAL_HASH_LEN,
                              info, len + 5);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    memcpy(out, block, out_len);

    return QUIC_LB_OK;
}


void
quic_lb_initial_walk(quic_lb_initial_walk_t *walk, const uint8_t *data,
    size_t len)
{
    walk->pos = data;
    walk->end = data + len;
    walk->dcid = NULL;
    walk->dcid_len = 0;
}


int
quic_lb_initial_next(quic_lb_initial_walk_t *walk, quic_lb_packet_t *pkt,
    const uint8_t **data)
{
    const uint8_t  *start;

    for ( ;; ) {
        start = walk->pos;

        if (quic_lb_packet_parse(pkt, start, (size_t) (walk->end - start))
            != QUIC_LB_OK)
        {
            walk->pos = walk->end;
            return QUIC_LB_ERR_SHORT;
        }

        walk->pos = pkt->payload + pkt->payload_len;

        if (walk->dcid == NULL) {
            walk->dcid = pkt->dcid;
            walk->dcid_len = pkt->dcid_len;
        }

        if (pkt->type == QUIC_LB_PACKET_INITIAL
            && pkt->dcid_len == walk->dcid_len
            && memcmp(pkt->dcid, walk->dcid, pkt->dcid_len) == 0)
        {
            *data = start;
            return QUIC_LB_OK;
        }
    }
}


int
quic_lb_initial_open(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys, const quic_lb_packet_t *pkt,
    const uint8_t *data, uint64_t expected, quic_lb_initial_opened_t *opened,
    uint8_t *out)
{
    int       rc;
    size_t    i;
    uint8_t   mask[QUIC_LB_INITIAL_SAMPLE_LEN];
    uint8_t   number[QUIC_LB_INITIAL_NUMBER_MAX];
    uint64_t  truncated;

    if (pkt->payload_len < QUIC_LB_INITIAL_PAYLOAD_MIN) {
        return QUIC_LB_ERR_SHORT;
    }

    rc = quic_lb_initial_mask(ctx, mask, keys, pkt->payload);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    opened->first = data[0] ^ (mask[0] & 0x0f);
    opened->number_len = (opened->first & 0x03) + 1;

    truncated = 0;

    for (i = 0; i < opened->number_len; i++) {
        number[i] = pkt->payload[i] ^ mask[1 + i];
        truncated = truncated << 8 | number[i];
    }

    opened->number = quic_lb_initial_number(truncated, opened->number_len,
                                            expected);
    opened->payload = out;
    opened->payload_len = pkt->payload_len - opened->number_len
                          - QUIC_LB_INITIAL_TAG_LEN;

    if (quic_lb_initial_begin(ctx, keys, opened->number, 0) != QUIC_LB_OK
        || quic_lb_initial_aad(ctx, &opened->first, 1) != QUIC_LB_OK
        || quic_lb_initial_aad(ctx, data + 1,
                               (size_t) (pkt->payload - data) - 1)
           != QUIC_LB_OK
        || quic_lb_initial_aad(ctx, number, opened->number_len) != QUIC_LB_OK)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return quic_lb_initial_decrypt(ctx, out, pkt->payload + opened->number_len,
                                   opened->payload_len);
}


int
quic_lb_initial_seal(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys,
    const quic_lb_initial_opened_t *opened, uint8_t *data, size_t header_len)
{
    int       rc;
    size_t    i, number_len;
    uint8_t  *number, mask[QUIC_LB_INITIAL_SAMPLE_LEN];

    number_len = opened->number_len;

    if (number_len != (size_t) (opened->first & 0x03) + 1
        || quic_lb_initial_sealed_len(opened) < QUIC_LB_INITIAL_PAYLOAD_MIN)
    {
        return QUIC_LB_ERR_RANGE;
    }

    number = data + header_len;

    data[0] = opened->first;

    for (i = 0; i < number_len; i++) {
        number[i] = (uint8_t) (opened->number >> 8 * (number_len - 1 - i));
    }

    if (quic_lb_initial_begin(ctx, keys, opened->number, 1) != QUIC_LB_OK
        || quic_lb_initial_aad(ctx, data, header_len + number_len)
           != QUIC_LB_OK)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    rc = quic_lb_initial_encrypt(ctx, number + number_len, opened->payload,
                                 opened->payload_len);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_initial_mask(ctx, mask, keys, number);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    data[0] ^= mask[0] & 0x0f;

    for (i = 0; i < number_len; i++) {
        number[i] ^= mask[1 + i];
    }

    return QUIC_LB_OK;
}


/* RFC 9001, 5.4.3; |payload| begins with the packet number */

static int
quic_lb_initial_mask(quic_lb_initial_t *ctx, uint8_t *mask,
    const quic_lb_initial_keys_t *keys, const uint8_t *payload)
{
    int  len;

    if (EVP_CipherInit_ex(ctx->mask, NULL, NULL, keys->hp, NULL, 1) != 1
        || EVP_CIPHER_CTX_set_padding(ctx->mask, 0) != 1
        || EVP_CipherUpdate(ctx->mask, mask, &len,
                            payload + QUIC_LB_INITIAL_NUMBER_MAX,
                            QUIC_LB_INITIAL_SAMPLE_LEN)
           != 1
        || len != QUIC_LB_INITIAL_SAMPLE_LEN)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


/* RFC 9000, A.3: of all numbers that end so, that next to the expected one */

static uint64_t
quic_lb_initial_number(uint64_t truncated, size_t len, uint64_t expected)
{
    uint64_t  window, number;

    window = UINT64_C(1) << 8 * len;
    number = (expected & ~(window - 1)) | truncated;

    if (number + window / 2 <= expected
        && number < (UINT64_C(1) << 62) - window)
    {
        return number + window;
    }

    if (number > expected + window / 2 && number >= window) {
        return number - window;
    }

    return number;
}


/* RFC 9001, 5.3: the nonce is the IV with the packet number in its end */

static int
quic_lb_initial_begin(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys, uint64_t number, int encrypt)
{
    size_t   i;
    uint8_t  nonce[QUIC_LB_INITIAL_IV_LEN];

    memcpy(nonce, keys->iv, sizeof(nonce));

    for (i = 0; i < sizeof(number); i++) {
        nonce[sizeof(nonce) - 1 - i] ^= (uint8_t) (number >> 8 * i);
    }

    if (EVP_CipherInit_ex(ctx->aead, NULL, NULL, keys->key, nonce, encrypt)
        != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


static int
quic_lb_initial_aad(quic_lb_initial_t *ctx, const uint8_t *data, size_t len)
{
    int  n;

    if (EVP_CipherUpdate(ctx->aead, NULL, &n, data, (int) len) != 1) {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


/* the tag follows the |len| octets at |in| */

static int
quic_lb_initial_decrypt(quic_lb_initial_t *ctx, uint8_t *out,
    const uint8_t *in, size_t len)
{
    int      n;
    uint8_t  tag[QUIC_LB_INITIAL_TAG_LEN];

    /* the library wants it writable */

    memcpy(tag, in + len, sizeof(tag));

    if (EVP_CipherUpdate(ctx->aead, out, &n, in, (int) len) != 1
        || EVP_CIPHER_CTX_ctrl(ctx->aead, EVP_CTRL_AEAD_SET_TAG,
                               QUIC_LB_INITIAL_TAG_LEN, tag)
           != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    if (EVP_CipherFinal_ex(ctx->aead, out + len, &n) != 1) {
        return QUIC_LB_ERR_INVALID;
    }

    return QUIC_LB_OK;
}


/* the tag goes behind the |len| octets at |out| */

static int
quic_lb_initial_encrypt(quic_lb_initial_t *ctx, uint8_t *out,
    const uint8_t *in, size_t len)
{
    int  n;

    if (EVP_CipherUpdate(ctx->aead, out, &n, in, (int) len) != 1
        || EVP_CipherFinal_ex(ctx->aead, out + len, &n) != 1
        || EVP_CIPHER_CTX_ctrl(ctx->aead, EVP_CTRL_AEAD_GET_TAG,
                               QUIC_LB_INITIAL_TAG_LEN, out + len)
           != 1)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}
