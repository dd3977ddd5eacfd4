
/*
 * Weighted Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable
 * Software Network Load Balancer", NSDI 2016, section 3.4).  The table
 * depends on the set of names and weights, not on their order, so balancers
 * with the same peers agree; a name may occur several times.  Nothing is
 * allocated.
 */


#ifndef _QUIC_LB_MAGLEV_H_INCLUDED_
#define _QUIC_LB_MAGLEV_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/*
 * Numbers of slots.  The default is the smaller of the primes that the paper
 * measures (section 5.3); it has the 100 slots for each peer that make shares
 * right to 1% (section 3.4) for up to 655 peers.  The other is the largest
 * prime below 2^24, and stands for 64 MiB of slots.
 */

#define QUIC_LB_MAGLEV_SIZE      65537
#define QUIC_LB_MAGLEV_SIZE_MAX  16777213


/* a peer; what the name points to stays the caller's */

typedef struct {
    const uint8_t  *name;       /* identity, not terminated */
    size_t          name_len;   /* octets */
    uint32_t        weight;     /* from 1 */

    /* scratch of quic_lb_maglev_build() */

    uint32_t        offset;     /* the slot to try next */
    uint32_t        skip;       /* from one slot to the next */
    uint32_t        index;      /* in the caller's order */
    uint32_t        claims;     /* slots so far */

    /*
     * Of all peers together: |peers[i].queue| is the index of the peer that is
     * at place i of the heap of next claims.
     */

    uint32_t        queue;
} quic_lb_maglev_peer_t;


/*
 * Fills |table|, of |size| slots, with indices into |peers| as the caller
 * ordered them; |peers| is sorted in place and its scratch overwritten.
 *
 * Each peer gets its weight's share of the whole table and at least one slot.
 * With W the sum of the weights, a peer of weight w has no less than
 * (size - npeers) * w / W and no more than size * w / W + 1 slots.
 *
 * Takes milliseconds for the default size, whatever the weights; not meant
 * for the datapath.
 *
 * Returns QUIC_LB_OK or, with |table| and |peers| untouched,
 * QUIC_LB_ERR_RANGE: |size| not a prime or over QUIC_LB_MAGLEV_SIZE_MAX, no
 * peers, more peers than slots, weight 0.
 */

int quic_lb_maglev_build(uint32_t *table, uint32_t size,
    quic_lb_maglev_peer_t *peers, size_t npeers);


/* returns 1 if |n| is a prime, else 0; takes up to 65535 divisions */

int quic_lb_maglev_is_prime(uint32_t n);


/*
 * Returns the index of the peer for |hash|, 64 bits evenly spread, in |table|
 * of |size| slots.
 */

#define quic_lb_maglev_lookup(table, size, hash)                              \
    ((table)[(hash) % (size)])


#endif /* _QUIC_LB_MAGLEV_H_INCLUDED_ */
