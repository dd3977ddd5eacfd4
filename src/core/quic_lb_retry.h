
/*
 * Retry for servers that are somewhere else: Retry packets (RFC 9000, 17.2.5)
 * of versions 1 and 2, their tokens, and the exchange of these for tokens that
 * nginx takes for its own (src/event/quic/ngx_event_quic_tokens.c, the same in
 * 1.26 to 1.31).
 *
 * A server must tell its client the DCID of the first Initial and the SCID of
 * the Retry (RFC 9000, 7.3).  nginx takes the first out of its token, and the
 * second is the DCID of the Initial with it.  That token is bound to the
 * address nginx sees, which is known only when there is a socket to the server.
 * So clients get a token of the balancer, and Initials with one have it
 * replaced by nginx's, which is made as long, and are protected again with
 * their keys.  These derive from the SCID of the Retry in all Initials of the
 * connection, so it is in the token and nobody has to remember it.
 *
 * Memory is allocated only by quic_lb_retry_init(), inside the cryptographic
 * library.  There is no randomness and no clock: both are given.  Tags are
 * compared in constant time.
 */


#ifndef _QUIC_LB_RETRY_H_INCLUDED_
#define _QUIC_LB_RETRY_H_INCLUDED_


#include "quic_lb_initial.h"


/* AES-256-GCM: octets */

#define QUIC_LB_RETRY_KEY_LEN    32
#define QUIC_LB_RETRY_IV_LEN     12
#define QUIC_LB_RETRY_TAG_LEN    16

/* of a token without IV and tag: what nginx takes, and what the balancer has */

#define QUIC_LB_RETRY_PLAIN_MAX  64
#define QUIC_LB_RETRY_PLAIN_LEN  62

/* the tokens of the balancer, octets: the period is in front */

#define QUIC_LB_RETRY_TOKEN_LEN                                               \
    (1 + QUIC_LB_RETRY_IV_LEN + QUIC_LB_RETRY_PLAIN_LEN                       \
     + QUIC_LB_RETRY_TAG_LEN)

/*
 * Each period of the time that tokens expire at has its own key, so that a key
 * is not used for the 2^32 random IVs that GCM allows (NIST SP 800-38D, 8.3):
 * in 256 s that would be 16 million tokens a second of all balancers together.
 * Tokens of the period before and behind are opened.
 */

#define QUIC_LB_RETRY_PERIOD_BITS   8

/* keys of periods that are kept: three may be in use */

#define QUIC_LB_RETRY_PERIODS       4

/* first octet, version, two connection IDs, token, integrity tag */

#define QUIC_LB_RETRY_PACKET_MAX                                              \
    (1 + 4 + 2 * (1 + QUIC_LB_CID_MAX) + QUIC_LB_RETRY_TOKEN_LEN              \
     + QUIC_LB_RETRY_TAG_LEN)

/* an Initial with nothing but a CONNECTION_CLOSE of a few octets */

#define QUIC_LB_RETRY_CLOSE_MAX                                               \
    (1 + 4 + 2 * (1 + QUIC_LB_CID_MAX) + 1 + 2 + 1 + 32                       \
     + QUIC_LB_INITIAL_TAG_LEN)

/* RFC 9000, 14.1: a shorter datagram may not be answered, octets */

#define QUIC_LB_RETRY_DATAGRAM_MIN  1200

/* RFC 9000, 7.2: the shortest DCID of a first Initial, octets */

#define QUIC_LB_RETRY_DCID_MIN   8


/*
 * What the functions below work with, set up once by quic_lb_retry_init(); one
 * thread at a time may use it.  It keeps nothing of one call for the next.
 */

typedef struct {
    void               *token;    /* EVP_CIPHER_CTX, AES-256-GCM */
    void               *integrity;  /* EVP_CIPHER_CTX, AES-128-GCM */
    void               *hash;     /* EVP_MD_CTX, SHA-1 */
    quic_lb_initial_t   initial;
} quic_lb_retry_t;


/* of one period, by its last bits; derived when it is first needed */

typedef struct {
    uint32_t            period;
    int                 derived;
    uint8_t             key[QUIC_LB_RETRY_KEY_LEN];
} quic_lb_retry_period_t;


/*
 * All from one secret, the file of "quic_host_key"; to be erased when done.
 * |balancer| only derives the keys of periods; |server| is nginx's.
 */

typedef struct {
    uint8_t                 balancer[QUIC_LB_RETRY_KEY_LEN];
    uint8_t                 server[QUIC_LB_RETRY_KEY_LEN];
    quic_lb_retry_period_t  periods[QUIC_LB_RETRY_PERIODS];
} quic_lb_retry_keys_t;


/* what a token of the balancer says; lengths in octets */

typedef struct {
    uint32_t            expires;  /* s, of the caller's clock, may wrap */
    uint8_t             dcid_len; /* of the client's first Initial */
    uint8_t             scid_len; /* of the Retry */
    uint8_t             dcid[QUIC_LB_CID_MAX];
    uint8_t             scid[QUIC_LB_CID_MAX];
} quic_lb_retry_token_t;


/*
 * An address as nginx has it in memory: a struct sockaddr_in or sockaddr_in6
 * with all octets that are not used being zero.
 */

typedef struct {
    const void         *data;
    size_t              len;      /* octets */
} quic_lb_retry_address_t;


/*
 * Sets up |ctx|, whatever it contains.
 *
 * Returns QUIC_LB_OK or QUIC_LB_ERR_CRYPTO; on failure |ctx| is all zeroes
 * and nothing is left to release.
 */

int quic_lb_retry_init(quic_lb_retry_t *ctx);

/*
 * Releases what quic_lb_retry_init() allocated and zeroes |ctx|; harmless on a
 * |ctx| of zeroes.
 */

void quic_lb_retry_cleanup(quic_lb_retry_t *ctx);


/*
 * Derives |keys| from the |len| octets of |secret|.
 *
 * Returns QUIC_LB_OK, or with |keys| undefined
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_derive(quic_lb_retry_keys_t *keys, const uint8_t *secret,
    size_t len);


/*
 * Writes a token for the client at |address| that says |token| to |out|, which
 * has room for QUIC_LB_RETRY_TOKEN_LEN octets.  |iv| has QUIC_LB_RETRY_IV_LEN
 * octets, random ones: never use them again with these keys.  |keys| keep the
 * key of the period.
 *
 * Returns QUIC_LB_OK, or with |out| undefined
 * QUIC_LB_ERR_RANGE    a connection ID over QUIC_LB_CID_MAX octets;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_make(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const quic_lb_retry_token_t *token, const quic_lb_retry_address_t *address,
    const uint8_t *iv, uint8_t *out);

/*
 * Opens the |len| octets of a token at |data| that has come from |address| at
 * the time |now|.
 *
 * Returns QUIC_LB_OK with |token| set, or
 * QUIC_LB_ERR_RANGE    it was made for another address, or has expired: |token|
 *                      is set all the same;
 * QUIC_LB_ERR_INVALID  it was not made with these keys, has been changed, or
 *                      its period is too far away: |token| is untouched;
 * QUIC_LB_ERR_CRYPTO   the same.
 */

int quic_lb_retry_open(quic_lb_retry_t *ctx, quic_lb_retry_keys_t *keys,
    const uint8_t *data, size_t len, const quic_lb_retry_address_t *address,
    uint32_t now, quic_lb_retry_token_t *token);

/*
 * Writes a token of |len| octets to |out| that an nginx with this secret takes
 * for that of its own Retry to a client at |address|, until |expires|, in
 * seconds of the server's clock.  Of |token| only the DCID is used.  |iv| as
 * above, but there are no periods: nginx has one key for all of the time.
 * Octets that nginx would not need are zeroes, to make the length.
 *
 * Returns QUIC_LB_OK, or with |out| undefined
 * QUIC_LB_ERR_RANGE    |len| is too little for the DCID or more than nginx
 *                      takes;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_make_server(quic_lb_retry_t *ctx,
    const quic_lb_retry_keys_t *keys, const quic_lb_retry_token_t *token,
    const quic_lb_retry_address_t *address, int64_t expires,
    const uint8_t *iv, uint8_t *out, size_t len);

/*
 * Opens the |len| octets at |data| of a token that quic_lb_retry_make_server()
 * has made, for a server that is no nginx: it has come from |address| at the
 * time |now|, in seconds of this clock.  Of |token| only the DCID is set.
 *
 * Returns QUIC_LB_OK,
 * QUIC_LB_ERR_RANGE    it was made for another address, or has expired;
 * QUIC_LB_ERR_INVALID  it was not made with these keys for a Retry, or has been
 *                      changed;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_open_server(quic_lb_retry_t *ctx,
    const quic_lb_retry_keys_t *keys, const uint8_t *data, size_t len,
    const quic_lb_retry_address_t *address, int64_t now,
    quic_lb_retry_token_t *token);

/*
 * Replaces the token of the balancer in all Initials of the datagram of |len|
 * octets at |data| that have one: those whose token is the |old_token|, which
 * says |token|.  |new_token| is as long, QUIC_LB_RETRY_TOKEN_LEN octets, and so
 * nothing moves.  |scratch| has room for |len| octets.  An Initial that cannot
 * be opened is left as it is.
 *
 * Returns the number of Initials that were changed, or QUIC_LB_ERR_CRYPTO with
 * the datagram undefined.
 */

int quic_lb_retry_replace(quic_lb_retry_t *ctx, uint8_t *data, size_t len,
    const quic_lb_retry_token_t *token, const uint8_t *old_token,
    const uint8_t *new_token, uint8_t *scratch);


/*
 * Writes the Retry that answers the Initial |pkt| of version 1 or 2 to |out|,
 * which has room for 1 + 4 + 2 * (1 + QUIC_LB_CID_MAX) + |token_len|
 * + QUIC_LB_RETRY_TAG_LEN octets.
 *
 * Returns its length, or with |out| undefined
 * QUIC_LB_ERR_RANGE    a version that has no Retry, or |scid_len|;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_packet(quic_lb_retry_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *scid, size_t scid_len, const uint8_t *token,
    size_t token_len, uint8_t *out);

/*
 * Writes the Initial that closes the connection of the Initial |pkt|, which
 * begins at |data|, with INVALID_TOKEN (RFC 9000, 8.1.2) to |out|, which has
 * room for QUIC_LB_RETRY_CLOSE_MAX octets.  |scratch| has room for
 * |pkt->payload_len| octets.
 *
 * Returns its length, or with |out| undefined
 * QUIC_LB_ERR_INVALID  |pkt| is not one that its DCID makes the keys of;
 * QUIC_LB_ERR_RANGE    another version;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_retry_close(quic_lb_retry_t *ctx, const quic_lb_packet_t *pkt,
    const uint8_t *data, uint8_t *out, uint8_t *scratch);


#endif /* _QUIC_LB_RETRY_H_INCLUDED_ */
