
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * A question that every QUIC server answers, whatever versions it speaks: a
 * long header with a version that is reserved to be unknown (RFC 9000, 15), in
 * a datagram as large as that of an Initial (14.1).  The answer is a Version
 * Negotiation packet (6.1), which has the connection IDs of the question, so
 * that nobody who has not seen it can forge one.  Nothing is allocated.
 */


#ifndef _QUIC_LB_PROBE_H_INCLUDED_
#define _QUIC_LB_PROBE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* octets of the datagram (RFC 9000, 14.1) */
#define QUIC_LB_PROBE_LEN         1200

/* octets of each connection ID: what a DCID must have at least (7.2) */
#define QUIC_LB_PROBE_CID_LEN     8

#define QUIC_LB_PROBE_RANDOM_LEN  (4 + 2 * QUIC_LB_PROBE_CID_LEN)


typedef struct {
    uint32_t  version;      /* 0x?a?a?a?a */
    uint8_t   dcid[QUIC_LB_PROBE_CID_LEN];
    uint8_t   scid[QUIC_LB_PROBE_CID_LEN];
} quic_lb_probe_t;


/*
 * Makes |probe| of the QUIC_LB_PROBE_RANDOM_LEN octets at |random|, which must
 * not be predictable.
 */

void quic_lb_probe_init(quic_lb_probe_t *probe, const uint8_t *random);

/* writes the QUIC_LB_PROBE_LEN octets of the datagram to |dst| */

void quic_lb_probe_write(const quic_lb_probe_t *probe, uint8_t *dst);

/*
 * Returns QUIC_LB_OK if the |len| octets at |data| are a Version Negotiation
 * packet that answers |probe|, else QUIC_LB_ERR_INVALID.
 */

int quic_lb_probe_check(const quic_lb_probe_t *probe, const uint8_t *data,
    size_t len);


#endif /* _QUIC_LB_PROBE_H_INCLUDED_ */
