
/*
 * Nonces of QUIC-LB connection IDs that are counted.
 */


#include "quic_lb_nonce.h"
#include "quic_lb_error.h"


int
quic_lb_nonce_count(uint8_t *nonce, const uint8_t *start, size_t len,
    uint64_t count)
{
    size_t    i;
    unsigned  carry;

    if (len < sizeof(uint64_t) && count >> (8 * len)) {
        return QUIC_LB_ERR_RANGE;
    }

    carry = 0;

    for (i = len; i > 0; i--) {
        carry += start[i - 1] + (unsigned) (count & 0xff);
        nonce[i - 1] = (uint8_t) carry;
        carry >>= 8;
        count >>= 8;
    }

    return QUIC_LB_OK;
}
