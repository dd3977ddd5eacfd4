
/*
 * Initial packets of clients, versions 1 and 2: their keys, which follow from
 * the first Destination Connection ID (RFC 9001, 5.2; RFC 9369, 3.3), header
 * protection (RFC 9001, 5.4) and AEAD (RFC 9001, 5.3), both ways.  Whoever
 * sees the packets can do this: an opened packet proves nothing about who sent
 * it.  Of servers' packets there are only the keys; all later ones are out of
 * reach.
 *
 * Memory is allocated only by quic_lb_initial_init(), inside the cryptographic
 * library.  No function promises to take a time that does not depend on its
 * input: all of it is public.
 */


#ifndef _QUIC_LB_INITIAL_H_INCLUDED_
#define _QUIC_LB_INITIAL_H_INCLUDED_


#include "quic_lb_packet.h"


/* RFC 9001, 5.2 and 5.3: AES-128-GCM, AES-128-ECB for the header; octets */

#define QUIC_LB_INITIAL_KEY_LEN   16
#define QUIC_LB_INITIAL_IV_LEN    12
#define QUIC_LB_INITIAL_TAG_LEN   16

/* RFC 9000, 17.1: the longest packet number on the wire, octets */

#define QUIC_LB_INITIAL_NUMBER_MAX  4


/*
 * What the functions below work with, set up once by quic_lb_initial_init();
 * it is working memory, too: one thread at a time may use it.  It keeps
 * nothing of one call for the next.
 */

typedef struct {
    void  *mac;                   /* EVP_MAC_CTX, HMAC-SHA256 */
    void  *aead;                  /* EVP_CIPHER_CTX, AES-128-GCM */
    void  *mask;                  /* EVP_CIPHER_CTX, AES-128-ECB */
} quic_lb_initial_t;


/* the keys of one side's Initial packets; may be copied and kept */

typedef struct {
    uint8_t  key[QUIC_LB_INITIAL_KEY_LEN];
    uint8_t  iv[QUIC_LB_INITIAL_IV_LEN];
    uint8_t  hp[QUIC_LB_INITIAL_KEY_LEN];
} quic_lb_initial_keys_t;


/* a packet without its protection */

typedef struct {
    uint8_t         first;        /* the first octet */
    uint8_t         number_len;   /* octets on the wire, 1..4 */
    uint64_t        number;       /* the whole packet number, below 2^62 */
    const uint8_t  *payload;      /* frames, in memory of the caller */
    size_t          payload_len;  /* octets */
} quic_lb_initial_opened_t;


/* a place in a datagram, for quic_lb_initial_next() */

typedef struct {
    const uint8_t  *pos;          /* both in memory of the caller */
    const uint8_t  *end;
    const uint8_t  *dcid;         /* that of the first packet, NULL before */
    size_t          dcid_len;     /* octets */
} quic_lb_initial_walk_t;


/*
 * Sets up |ctx|, whatever it contains.
 *
 * Returns QUIC_LB_OK or QUIC_LB_ERR_CRYPTO; on failure |ctx| is all zeroes
 * and nothing is left to release.
 */

int quic_lb_initial_init(quic_lb_initial_t *ctx);

/*
 * Releases what quic_lb_initial_init() allocated and zeroes |ctx|; harmless on
 * a |ctx| of zeroes.
 */

void quic_lb_initial_cleanup(quic_lb_initial_t *ctx);


/*
 * Derives the |keys| of the client's Initial packets in |version| from the
 * |dcid_len| octets at |dcid|: the DCID of the client's first Initial or, after
 * a Retry, its SCID (RFC 9001, 5.2).  Later Initials carry another DCID, but
 * keep the keys.
 *
 * Returns QUIC_LB_OK, or with |keys| undefined
 * QUIC_LB_ERR_RANGE   another version, or a DCID over QUIC_LB_CID_MAX octets;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_initial_derive(quic_lb_initial_t *ctx,
    quic_lb_initial_keys_t *keys, uint32_t version, const uint8_t *dcid,
    size_t dcid_len);

/* Does the same for the Initial packets of the server. */

int quic_lb_initial_derive_server(quic_lb_initial_t *ctx,
    quic_lb_initial_keys_t *keys, uint32_t version, const uint8_t *dcid,
    size_t dcid_len);


/*
 * Begins to walk over the |len| octets of a datagram at |data|, which must
 * stay as long as |walk| is in use.
 */

void quic_lb_initial_walk(quic_lb_initial_walk_t *walk, const uint8_t *data,
    size_t len);

/*
 * Finds the next Initial packet of version 1 or 2: reads its header into |pkt|
 * and sets |data| to its first octet.  Passed over are packets of other types
 * and versions, and those with another DCID than the first of the datagram
 * (RFC 9000, 12.2).
 *
 * Returns QUIC_LB_OK, or with |data| untouched and |pkt| undefined
 * QUIC_LB_ERR_SHORT   there is none: the end of the datagram, or what cannot
 *                     be read as a packet.
 */

int quic_lb_initial_next(quic_lb_initial_walk_t *walk, quic_lb_packet_t *pkt,
    const uint8_t **data);


/*
 * Opens the Initial packet |pkt| that begins at |data|.  |expected| is the
 * packet number after the largest one of that client so far, 0 if there is
 * none (RFC 9000, A.3).  The frames go to |out|, which has room for
 * |pkt->payload_len| octets and does not overlap the packet; what |opened|
 * points to is there.  The packet is left as it is.  The reserved bits and
 * the fixed bit are in |opened->first|, but are not looked at.
 *
 * Returns QUIC_LB_OK, or with |opened| and |out| undefined
 * QUIC_LB_ERR_SHORT    too short to be protected (RFC 9001, 5.4.2);
 * QUIC_LB_ERR_INVALID  other keys, a changed packet or a wrong |expected|;
 * QUIC_LB_ERR_CRYPTO.
 */

int quic_lb_initial_open(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys, const quic_lb_packet_t *pkt,
    const uint8_t *data, uint64_t expected, quic_lb_initial_opened_t *opened,
    uint8_t *out);

/*
 * Protects |opened| with |keys|.  |data| begins with the |header_len| octets of
 * its header before the packet number, which may be another one by now, if
 * only the Length field is right.  First octet, packet number, payload and
 * tag are written: quic_lb_initial_sealed_len() octets behind the header.
 * |opened->payload| does not overlap them.  With the header and the keys of
 * quic_lb_initial_open() this makes the same packet again.
 *
 * Returns QUIC_LB_OK, or
 * QUIC_LB_ERR_RANGE   a |number_len|, or a payload that is too short to be
 *                     protected: |data| is untouched;
 * QUIC_LB_ERR_CRYPTO  |data| is undefined.
 */

int quic_lb_initial_seal(quic_lb_initial_t *ctx,
    const quic_lb_initial_keys_t *keys,
    const quic_lb_initial_opened_t *opened, uint8_t *data, size_t header_len);

/* Returns the value of the Length field that belongs to |opened|. */

#define quic_lb_initial_sealed_len(opened)                                    \
    ((opened)->number_len + (opened)->payload_len + QUIC_LB_INITIAL_TAG_LEN)


#endif /* _QUIC_LB_INITIAL_H_INCLUDED_ */
