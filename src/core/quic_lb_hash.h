
/*
 * SipHash-2-4 (Aumasson, Bernstein): a keyed hash of short inputs.  With a
 * secret random key it keeps peers from choosing what collides in a table;
 * with a fixed key it is the same on every worker and every balancer.  Nothing
 * is allocated.
 */


#ifndef _QUIC_LB_HASH_H_INCLUDED_
#define _QUIC_LB_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* the key of 128 bits: its halves, as little-endian integers */

typedef struct {
    uint64_t  k0;                   /* octets 0 to 7 */
    uint64_t  k1;                   /* octets 8 to 15 */
} quic_lb_hash_key_t;


/*
 * Returns the hash of the |len| octets at |data| under |key|; |data| may be
 * NULL if |len| is 0.  The same on machines of any byte order.  Takes a time
 * that depends on |len| alone.
 */

uint64_t quic_lb_hash(const quic_lb_hash_key_t *key, const void *data,
    size_t len);


#endif /* _QUIC_LB_HASH_H_INCLUDED_ */
