
/*
 * QUIC-LB connection IDs (draft-ietf-quic-load-balancers, "Server ID Encoding
 * in Connection IDs").  The cipher contexts are keyed once, at init, without
 * padding; they carry no state from one block to the next, so encoding and
 * decoding need no further set-up.
 */


#include <string.h>

#include "quic_lb_cid.h"
#include "quic_lb_error.h"
#include "quic_lb_packet.h"

#include <openssl/evp.h>


#define QUIC_LB_CID_BLOCK_LEN  16    /* AES */

/* server ID and nonce of this length together take a single pass */

#define QUIC_LB_CID_SINGLE     QUIC_LB_CID_BLOCK_LEN

/* half of the server ID and nonce, rounded up: octets */

#define QUIC_LB_CID_HALF_MAX   ((QUIC_LB_PLAINTEXT_MAX + 1) / 2)

/*
 * The largest self-described length, in which the first octet is not counted.
 * Five bits can state more, up to 31, but a CID of QUIC versions 1 and 2 cannot
 * be that long.
 */

#define QUIC_LB_CID_LENGTH_MAX  (QUIC_LB_CID_MAX - 1)


#define quic_lb_cid_plaintext_len(conf)                                       \
    ((size_t) (conf)->server_id_len + (conf)->nonce_len)


static EVP_CIPHER_CTX *quic_lb_cid_cipher(const uint8_t *key, int encrypt);
static int quic_lb_cid_cipher_copy(void **ctx, const void *from);
static int quic_lb_cid_length_valid(const quic_lb_cid_conf_t *conf,
    uint8_t first, size_t len, int exact);
static int quic_lb_cid_encrypt(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in);
static int quic_lb_cid_decrypt(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in, int nonce);
static int quic_lb_cid_feistel(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in, int first, int last);
static int quic_lb_cid_pass(EVP_CIPHER_CTX *ctx, uint8_t *to,
    const uint8_t *from, size_t plaintext_len, int pass);
static int quic_lb_cid_block(EVP_CIPHER_CTX *ctx, uint8_t *out,
    const uint8_t *in);


int
quic_lb_cid_init(quic_lb_cid_conf_t *conf, unsigned config_id,
    size_t server_id_len, size_t nonce_len, const uint8_t *key,
    int length_self_description)
{
    memset(conf, 0, sizeof(quic_lb_cid_conf_t));

    /* each length has a bound of its own, so the sum cannot wrap */

    if (config_id > QUIC_LB_CONFIG_MAX
        || server_id_len < QUIC_LB_SERVER_ID_MIN
        || server_id_len > QUIC_LB_SERVER_ID_MAX
        || nonce_len < QUIC_LB_NONCE_MIN
        || nonce_len > QUIC_LB_NONCE_MAX
        || server_id_len + nonce_len > QUIC_LB_PLAINTEXT_MAX)
    {
        return QUIC_LB_ERR_RANGE;
    }

    if (key != NULL) {
        conf->encrypt = quic_lb_cid_cipher(key, 1);
        if (conf->encrypt == NULL) {
            goto failed;
        }

        if (server_id_len + nonce_len == QUIC_LB_CID_SINGLE) {
            conf->decrypt = quic_lb_cid_cipher(key, 0);
            if (conf->decrypt == NULL) {
                goto failed;
            }
        }
    }

    conf->config_id = (uint8_t) config_id;
    conf->server_id_len = (uint8_t) server_id_len;
    conf->nonce_len = (uint8_t) nonce_len;
    conf->length_self_description = (length_self_description != 0);

    return QUIC_LB_OK;

failed:

    quic_lb_cid_cleanup(conf);

    return QUIC_LB_ERR_CRYPTO;
}


int
quic_lb_cid_copy(quic_lb_cid_conf_t *conf, const quic_lb_cid_conf_t *from)
{
    *conf = *from;

    conf->encrypt = NULL;
    conf->decrypt = NULL;

    if (quic_lb_cid_cipher_copy(&conf->encrypt, from->encrypt) != QUIC_LB_OK
        || quic_lb_cid_cipher_copy(&conf->decrypt, from->decrypt)
           != QUIC_LB_OK)
    {
        quic_lb_cid_cleanup(conf);
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


static int
quic_lb_cid_cipher_copy(void **ctx, const void *from)
{
    if (from == NULL) {
        return QUIC_LB_OK;
    }

    *ctx = EVP_CIPHER_CTX_new();

    if (*ctx == NULL || EVP_CIPHER_CTX_copy(*ctx, from) != 1) {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}


void
quic_lb_cid_cleanup(quic_lb_cid_conf_t *conf)
{
    /* the library erases the key schedules */

    EVP_CIPHER_CTX_free(conf->encrypt);
    EVP_CIPHER_CTX_free(conf->decrypt);

    memset(conf, 0, sizeof(quic_lb_cid_conf_t));
}


int
quic_lb_cid_encode(const quic_lb_cid_conf_t *conf, uint8_t *cid,
    uint8_t random, const uint8_t *server_id, const uint8_t *nonce)
{
    uint8_t  low, plaintext[QUIC_LB_PLAINTEXT_MAX];

    low = conf->length_self_description
          ? (uint8_t) quic_lb_cid_plaintext_len(conf)
          : random & 0x1f;

    cid[0] = (uint8_t) (conf->config_id << 5 | low);

    memcpy(plaintext, server_id, conf->server_id_len);
    memcpy(plaintext + conf->server_id_len, nonce, conf->nonce_len);

    return quic_lb_cid_encrypt(conf, cid + 1, plaintext);
}


int
quic_lb_cid_decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    size_t len, int exact, uint8_t *server_id, uint8_t *nonce)
{
    int      rc;
    uint8_t  plaintext[QUIC_LB_PLAINTEXT_MAX];

    if (len < quic_lb_cid_len(conf)) {
        return QUIC_LB_ERR_SHORT;
    }

    if (quic_lb_cid_config_id(cid[0]) != conf->config_id
        || !quic_lb_cid_length_valid(conf, cid[0], len, exact))
    {
        return QUIC_LB_ERR_INVALID;
    }

    rc = quic_lb_cid_decrypt(conf, plaintext, cid + 1, nonce != NULL);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    memcpy(server_id, plaintext, conf->server_id_len);

    if (nonce != NULL) {
        memcpy(nonce, plaintext + conf->server_id_len, conf->nonce_len);
    }

    return QUIC_LB_OK;
}


static EVP_CIPHER_CTX *
quic_lb_cid_cipher(const uint8_t *key, int encrypt)
{
    EVP_CIPHER_CTX  *ctx;

    ctx = EVP_CIPHER_CTX_new();
    if (ctx == NULL) {
        return NULL;
    }

    if (EVP_CipherInit_ex(ctx, EVP_aes_128_ecb(), NULL, key, NULL, encrypt)
        != 1
        || EVP_CIPHER_CTX_set_padding(ctx, 0) != 1)
    {
        EVP_CIPHER_CTX_free(ctx);
        return NULL;
    }

    return ctx;
}


/* "Length Self-Description": the first octet is not counted */

static int
quic_lb_cid_length_valid(const quic_lb_cid_conf_t *conf, uint8_t first,
    size_t len, int exact)
{
    size_t  described;

    if (!conf->length_self_description) {
        return 1;
    }

    described = first & 0x1f;

    if (exact) {
        return described == len - 1;
    }

    return described >= quic_lb_cid_plaintext_len(conf)
           && described <= len - 1
           && described <= QUIC_LB_CID_LENGTH_MAX;
}


static int
quic_lb_cid_encrypt(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in)
{
    if (conf->encrypt == NULL) {
        memcpy(out, in, quic_lb_cid_plaintext_len(conf));
        return QUIC_LB_OK;
    }

    if (quic_lb_cid_plaintext_len(conf) == QUIC_LB_CID_SINGLE) {
        return quic_lb_cid_block(conf->encrypt, out, in);
    }

    return quic_lb_cid_feistel(conf, out, in, 1, 4);
}


/* if |nonce| is not set, only the server ID in |out| need be right */

static int
quic_lb_cid_decrypt(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in, int nonce)
{
    int  last;

    if (conf->encrypt == NULL) {
        memcpy(out, in, quic_lb_cid_plaintext_len(conf));
        return QUIC_LB_OK;
    }

    if (quic_lb_cid_plaintext_len(conf) == QUIC_LB_CID_SINGLE) {
        return quic_lb_cid_block(conf->decrypt, out, in);
    }

    /* a server ID not longer than the nonce lies in left_0, out of pass 2 */

    last = (!nonce && conf->nonce_len >= conf->server_id_len) ? 2 : 1;

    return quic_lb_cid_feistel(conf, out, in, 4, last);
}


/*
 * "General Case: Four-Pass Encryption".  A pass undoes itself, so passes 1 to
 * 4 encrypt and 4 to 1 decrypt.  Halves of an odd number of octets share the
 * middle one: its high bits belong to the left half, the low to the right.
 */

static int
quic_lb_cid_feistel(const quic_lb_cid_conf_t *conf, uint8_t *out,
    const uint8_t *in, int first, int last)
{
    int      rc, pass, step;
    size_t   len, half;
    uint8_t  left[QUIC_LB_CID_HALF_MAX], right[QUIC_LB_CID_HALF_MAX];

    len = quic_lb_cid_plaintext_len(conf);
    half = (len + 1) / 2;

    memcpy(left, in, half);
    memcpy(right, in + len - half, half);

    if (len % 2) {
        left[half - 1] &= 0xf0;
        right[0] &= 0x0f;
    }

    step = (first < last) ? 1 : -1;

    for (pass = first; pass != last + step; pass += step) {

        rc = (pass % 2)
             ? quic_lb_cid_pass(conf->encrypt, right, left, len, pass)
             : quic_lb_cid_pass(conf->encrypt, left, right, len, pass);

        if (rc != QUIC_LB_OK) {
            return rc;
        }
    }

    if (len % 2) {
        right[0] |= left[half - 1];
    }

    memcpy(out, left, half);
    memcpy(out + len - half, right, half);

    return QUIC_LB_OK;
}


/* XORs the encryption of half |from| into half |to| */

static int
quic_lb_cid_pass(EVP_CIPHER_CTX *ctx, uint8_t *to, const uint8_t *from,
    size_t plaintext_len, int pass)
{
    int      rc;
    size_t   i, half;
    uint8_t  in[QUIC_LB_CID_BLOCK_LEN], out[QUIC_LB_CID_BLOCK_LEN];

    half = (plaintext_len + 1) / 2;

    /* expand(): length and pass number in the last two octets */

    memset(in, 0, sizeof(in));
    memcpy(in, from, half);

    in[14] = (uint8_t) plaintext_len;
    in[15] = (uint8_t) pass;

    rc = quic_lb_cid_block(ctx, out, in);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    for (i = 0; i < half; i++) {
        to[i] ^= out[i];
    }

    if (plaintext_len % 2) {
        if (pass % 2) {
            to[0] &= 0x0f;

        } else {
            to[half - 1] &= 0xf0;
        }
    }

    return QUIC_LB_OK;
}


static int
quic_lb_cid_block(EVP_CIPHER_CTX *ctx, uint8_t *out, const uint8_t *in)
{
    int  len;

    if (EVP_CipherUpdate(ctx, out, &len, in, QUIC_LB_CID_BLOCK_LEN) != 1
        || len != QUIC_LB_CID_BLOCK_LEN)
    {
        return QUIC_LB_ERR_CRYPTO;
    }

    return QUIC_LB_OK;
}
