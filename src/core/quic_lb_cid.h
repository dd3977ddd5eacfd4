
/*
 * QUIC-LB connection IDs (draft-ietf-quic-load-balancers): plaintext,
 * single-pass and four-pass AES-128-ECB encoding of a server ID and a nonce.
 * Which server an ID names and where nonces come from is the caller's.
 *
 * Memory is allocated only by quic_lb_cid_init(), inside the cryptographic
 * library.  The cipher contexts are working memory of encoding and decoding
 * too: one thread at a time may use a configuration.  No function promises to
 * take a time that does not depend on its input.
 */


#ifndef _QUIC_LB_CID_H_INCLUDED_
#define _QUIC_LB_CID_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* "Config Rotation": codepoints 0 to 6 name a configuration */

#define QUIC_LB_CONFIG_MAX         6
#define QUIC_LB_CONFIG_UNROUTABLE  7    /* "Configuration Failover" */

/*
 * "Configuration Agent Actions": lengths in octets.  The longest server ID is
 * what the shortest nonce leaves of the sum, and the other way round.
 */

#define QUIC_LB_PLAINTEXT_MAX      19   /* server ID and nonce together */
#define QUIC_LB_SERVER_ID_MIN      1
#define QUIC_LB_SERVER_ID_MAX      15
#define QUIC_LB_NONCE_MIN          4
#define QUIC_LB_NONCE_MAX          18

/* the key, of AES-128, in octets */

#define QUIC_LB_KEY_LEN            16


/*
 * A configuration, set up by quic_lb_cid_init(), released by
 * quic_lb_cid_cleanup() and not to be written in between.
 */

typedef struct {
    uint8_t   config_id;            /* 0..QUIC_LB_CONFIG_MAX */
    uint8_t   server_id_len;        /* octets, in the bounds above */
    uint8_t   nonce_len;            /* octets, in the bounds above */
    uint8_t   length_self_description;  /* 0 or 1 */
    void     *encrypt;              /* EVP_CIPHER_CTX, NULL for plaintext */
    void     *decrypt;              /* the same, single-pass only */
} quic_lb_cid_conf_t;


/*
 * Returns the number of octets of a CID that |conf| describes, the first octet
 * included, from 6 to QUIC_LB_CID_MAX (quic_lb_packet.h); servers may append
 * more.
 */

#define quic_lb_cid_len(conf)                                                 \
    ((size_t) 1 + (conf)->server_id_len + (conf)->nonce_len)

/*
 * Returns the codepoint of a CID that begins with |first_octet|, a uint8_t:
 * from 0 to QUIC_LB_CONFIG_MAX, or QUIC_LB_CONFIG_UNROUTABLE.
 */

#define quic_lb_cid_config_id(first_octet)  ((first_octet) >> 5)


/*
 * Sets up |conf|, whatever it contains, for the codepoint |config_id| and the
 * lengths |server_id_len| and |nonce_len|.  |key| has QUIC_LB_KEY_LEN octets
 * and is copied into the library's cipher context; NULL means plaintext.
 * |length_self_description| is true if the first octet states the length.
 *
 * Returns QUIC_LB_OK, QUIC_LB_ERR_RANGE (config ID or a length) or
 * QUIC_LB_ERR_CRYPTO; on failure |conf| is all zeroes and nothing is left to
 * release.
 */

int quic_lb_cid_init(quic_lb_cid_conf_t *conf, unsigned config_id,
    size_t server_id_len, size_t nonce_len, const uint8_t *key,
    int length_self_description);

/*
 * Makes |conf|, whatever it contains, a copy of |from| that is released by
 * itself.  Returns QUIC_LB_OK or QUIC_LB_ERR_CRYPTO; on failure |conf| is all
 * zeroes.
 */

int quic_lb_cid_copy(quic_lb_cid_conf_t *conf, const quic_lb_cid_conf_t *from);

/*
 * Erases the keys, releases what quic_lb_cid_init() allocated and zeroes
 * |conf|; harmless on a |conf| of zeroes.
 */

void quic_lb_cid_cleanup(quic_lb_cid_conf_t *conf);


/*
 * Writes a CID of quic_lb_cid_len(conf) octets to |cid|.  |server_id| and
 * |nonce| have the lengths that |conf| states.  The low five bits of the
 * first octet are the length of the rest if the length is self-described,
 * else those of |random|.  Never repeat a nonce under one key.
 *
 * Returns QUIC_LB_OK or QUIC_LB_ERR_CRYPTO (|cid| is then undefined).
 */

int quic_lb_cid_encode(const quic_lb_cid_conf_t *conf, uint8_t *cid,
    uint8_t random, const uint8_t *server_id, const uint8_t *nonce);


/*
 * Takes the server ID out of the CID at |cid| into |server_id|, which has
 * room for |conf->server_id_len| octets, and the nonce into |nonce| unless it
 * is NULL (a pass is saved then, where the nonce is at least as long as the
 * server ID).
 *
 * |len| is the CID's length if |exact| is set (long headers), else the number
 * of octets that may belong to it (short headers).  Octets beyond
 * quic_lb_cid_len(conf) are ignored.  A self-described length must be |len|
 * less 1 if |exact| is set, else anything from quic_lb_cid_len(conf) less 1
 * to |len| less 1, and at most QUIC_LB_CID_MAX less 1.
 *
 * Returns QUIC_LB_OK, or with the outputs untouched
 * QUIC_LB_ERR_SHORT    fewer octets than the configuration needs;
 * QUIC_LB_ERR_INVALID  another config ID, or a self-described length that
 *                      contradicts |len| or the configuration;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_cid_decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    size_t len, int exact, uint8_t *server_id, uint8_t *nonce);


#endif /* _QUIC_LB_CID_H_INCLUDED_ */
