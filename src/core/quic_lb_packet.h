
/*
 * QUIC packet headers as a balancer sees them: the version-independent
 * fields (RFC 8999) and, for versions 1 and 2 (RFC 9000, 17; RFC 9369, 3),
 * the long header fields that are not encrypted.  Nothing is decrypted,
 * allocated or copied: all pointers lead into the caller's datagram.
 */


#ifndef _QUIC_LB_PACKET_H_INCLUDED_
#define _QUIC_LB_PACKET_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* RFC 9000, 17.2 and RFC 9369, 3.1 */

#define QUIC_LB_VERSION_1  0x00000001
#define QUIC_LB_VERSION_2  0x6b3343cf

/* RFC 9000, 17.2: the longest connection ID of versions 1 and 2, octets */

#define QUIC_LB_CID_MAX    20


typedef enum {
    QUIC_LB_PACKET_SHORT = 0,     /* short header, any version */
    QUIC_LB_PACKET_INITIAL,       /* the four types of versions 1 and 2 */
    QUIC_LB_PACKET_0RTT,
    QUIC_LB_PACKET_HANDSHAKE,
    QUIC_LB_PACKET_RETRY,
    QUIC_LB_PACKET_NEGOTIATION,   /* version 0: only servers send it */
    QUIC_LB_PACKET_UNKNOWN        /* long header, other version */
} quic_lb_packet_type_e;


typedef struct {
    quic_lb_packet_type_e  type;
    uint32_t               version;   /* 0 for short headers */

    /*
     * Connection IDs are up to QUIC_LB_CID_MAX octets long in versions 1 and
     * 2, up to 255 in all others.  Short headers do not tell the length of
     * their DCID: |dcid_len| is then the number of octets that may belong to
     * it, from 0 to QUIC_LB_CID_MAX.  All lengths are in octets.
     */

    const uint8_t         *dcid;
    size_t                 dcid_len;

    const uint8_t         *scid;      /* NULL for short headers */
    size_t                 scid_len;  /* octets, as above */

    const uint8_t         *token;     /* Initial only, else NULL */
    size_t                 token_len; /* octets, 0 if there is none */

    /*
     * The first octet behind the known fields.  For Initial, 0-RTT and
     * Handshake packets of versions 1 and 2 this is the packet number and
     * |payload_len| the value of the Length field; for all other packets it
     * reaches to the end of the datagram.  Of a short header only the first
     * octet is known: the payload begins with the DCID.
     */

    const uint8_t         *payload;
    size_t                 payload_len;
} quic_lb_packet_t;


/*
 * Reads the header of the packet at |data|, of |len| octets, into |pkt|.
 * Only the first packet of a datagram is read; the next coalesced one, if
 * any, begins at |pkt->payload| + |pkt->payload_len|.
 *
 * Returns QUIC_LB_OK, or with |pkt| undefined
 * QUIC_LB_ERR_SHORT    the datagram ends inside the header or before Length
 *                      octets of payload, or is empty;
 * QUIC_LB_ERR_INVALID  a connection ID over QUIC_LB_CID_MAX octets in
 *                      version 1 or 2.
 */

int quic_lb_packet_parse(quic_lb_packet_t *pkt, const uint8_t *data,
    size_t len);


#endif /* _QUIC_LB_PACKET_H_INCLUDED_ */
