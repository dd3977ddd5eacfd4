
/*
 * The frames of clients' Initial packets (RFC 9000, 12.4 and 19) and the
 * stream in their CRYPTO frames, put together again: it begins with the
 * ClientHello.  Frames come in any order, packet and number.  Nothing is
 * allocated; the stream is kept in memory of the caller.
 */


#ifndef _QUIC_LB_CRYPTO_H_INCLUDED_
#define _QUIC_LB_CRYPTO_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* The longest stream, octets: no ClientHello in use comes near to it. */

#define QUIC_LB_CRYPTO_MAX  16384


/* set up by quic_lb_crypto_init(), and not to be written after that */

typedef struct {
    uint8_t  *data;               /* the stream, in memory of the caller */
    uint8_t  *have;               /* a bit for each octet of |data| */
    size_t    size;               /* room in |data|, octets */
    size_t    len;                /* octets of |data| without a gap */
} quic_lb_crypto_t;


/* Returns the octets of memory that a stream of up to |size| octets takes. */

#define quic_lb_crypto_room(size)  ((size_t) (size) + ((size_t) (size) + 7) / 8)


/*
 * Sets up |crypto|, whatever it contains, for a stream of up to |size| octets,
 * from 1 to QUIC_LB_CRYPTO_MAX, in |memory|, of quic_lb_crypto_room(size)
 * octets, which the caller keeps as long as it uses |crypto|.  There is
 * nothing to release.
 *
 * Returns QUIC_LB_OK or QUIC_LB_ERR_RANGE (|size|; |crypto| is untouched).
 */

int quic_lb_crypto_init(quic_lb_crypto_t *crypto, void *memory, size_t size);

/*
 * Reads the |len| octets of frames at |payload|, of one Initial packet, and
 * adds what is in its CRYPTO frames to |crypto|; |crypto->len| grows where
 * gaps are closed.  Octets that are there already stay as they are, even if
 * they come again with another content.  PADDING, PING, ACK and
 * CONNECTION_CLOSE are passed over: of the fields of an ACK only the form
 * counts.
 *
 * Returns QUIC_LB_OK, or with the frames before the faulty one added
 * QUIC_LB_ERR_INVALID  no frame at all, one that is cut, or one that Initial
 *                      packets do not have;
 * QUIC_LB_ERR_FULL     a CRYPTO frame that ends behind |size| octets.
 */

int quic_lb_crypto_read(quic_lb_crypto_t *crypto, const uint8_t *payload,
    size_t len);


#endif /* _QUIC_LB_CRYPTO_H_INCLUDED_ */
