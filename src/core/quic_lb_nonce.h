
/*
 * Nonces of QUIC-LB connection IDs that are counted
 * (draft-ietf-quic-load-balancers, "Connection ID Entropy"): each is used once,
 * from a start of the caller's on.  Who counts is the caller's.  Nothing is
 * allocated.
 */


#ifndef _QUIC_LB_NONCE_H_INCLUDED_
#define _QUIC_LB_NONCE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/*
 * Writes the nonce of |len| octets, at least 1, that is |count| after |start|,
 * which has |len| octets, too, to |nonce|: both are big-endian numbers, and the
 * last one is followed by 0.  So nonces differ if their counts do.
 *
 * Returns QUIC_LB_OK or, with |nonce| untouched, QUIC_LB_ERR_RANGE: so many
 * nonces of this length there are not.
 */

int quic_lb_nonce_count(uint8_t *nonce, const uint8_t *start, size_t len,
    uint64_t count);


#endif /* _QUIC_LB_NONCE_H_INCLUDED_ */
