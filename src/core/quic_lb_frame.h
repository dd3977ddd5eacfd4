
/*
 * QUIC frames in the decrypted payload of a packet (RFC 9000, 19; RFC 9221,
 * 4), as far as it takes to walk over them and to read STOP_SENDING: ngtcp2
 * before 1.24 does not tell of a received one.  All frames of versions 1 and 2
 * are known; whether a frame is allowed in the packet's type is not checked.
 * Nothing is allocated or copied.
 */


#ifndef _QUIC_LB_FRAME_H_INCLUDED_
#define _QUIC_LB_FRAME_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* RFC 9000, 19; RFC 9221, 4: the types that have something particular */

#define QUIC_LB_FRAME_PADDING            0x00
#define QUIC_LB_FRAME_PING               0x01
#define QUIC_LB_FRAME_ACK                0x02
#define QUIC_LB_FRAME_ACK_ECN            0x03
#define QUIC_LB_FRAME_RESET_STREAM       0x04
#define QUIC_LB_FRAME_STOP_SENDING       0x05
#define QUIC_LB_FRAME_CRYPTO             0x06
#define QUIC_LB_FRAME_NEW_TOKEN          0x07
#define QUIC_LB_FRAME_STREAM             0x08    /* to 0x0f */
#define QUIC_LB_FRAME_NEW_CONNECTION_ID  0x18
#define QUIC_LB_FRAME_PATH_CHALLENGE     0x1a
#define QUIC_LB_FRAME_PATH_RESPONSE      0x1b
#define QUIC_LB_FRAME_CLOSE              0x1c
#define QUIC_LB_FRAME_CLOSE_APP          0x1d
#define QUIC_LB_FRAME_HANDSHAKE_DONE     0x1e
#define QUIC_LB_FRAME_DATAGRAM           0x30
#define QUIC_LB_FRAME_DATAGRAM_LEN       0x31

/* RFC 9000, 19.8: the low bits of a STREAM frame's type */

#define QUIC_LB_FRAME_STREAM_LEN         0x02
#define QUIC_LB_FRAME_STREAM_OFF         0x04


typedef struct {
    uint64_t  type;

    /* STOP_SENDING only, else 0; both at most 2^62 - 1 */

    uint64_t  stream_id;
    uint64_t  error_code;
} quic_lb_frame_t;


/*
 * Reads the frame at |pos|, which is before |end|, into |frame|; adjoining
 * PADDING frames are read as one.
 *
 * Returns the position behind it, always behind |pos| and at most |end|, or
 * NULL with |frame| undefined if the frame reaches over |end|, its type is
 * unknown, or |pos| is |end|.  An endpoint closes the connection for each of
 * these (RFC 9000, 12.4), so the rest of the payload has no meaning.
 */

const uint8_t *quic_lb_frame_read(const uint8_t *pos, const uint8_t *end,
    quic_lb_frame_t *frame);


#endif /* _QUIC_LB_FRAME_H_INCLUDED_ */
