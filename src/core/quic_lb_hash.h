
/*
 * SipHash-2-4 (Aumasson, Bernstein): a keyed hash of short inputs.  With a
 * secret random key it keeps peers from choosing what collides in a table;
 * with a fixed key it is the same on every worker and every balancer.
 */


#ifndef _QUIC_LB_HASH_H_INCLUDED_
#define _QUIC_LB_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


typedef struct {
    uint64_t  k0;
    uint64_t  k1;
} quic_lb_hash_key_t;


/*
 * Returns the hash of the |len| octets at |data| under |key|.  The same on
 * machines of any byte order.
 */

uint64_t quic_lb_hash(const quic_lb_hash_key_t *key, const void *data,
    size_t len);


#endif /* _QUIC_LB_HASH_H_INCLUDED_ */
