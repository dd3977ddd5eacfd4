
/*
 * Server name (RFC 6066, 3) and ALPN protocols (RFC 7301, 3.1) out of a TLS
 * ClientHello (RFC 8446, 4.1.2), whole or as far as it has come.  Of a client
 * that encrypts its ClientHello this is the outer one: its server name is the
 * public name of the server.  Whatever a server would refuse beyond that form
 * is not noticed.  Nothing is allocated or copied: all pointers lead into the
 * caller's octets.
 */


#ifndef _QUIC_LB_HELLO_H_INCLUDED_
#define _QUIC_LB_HELLO_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* The longest host name that TLS libraries accept, octets. */

#define QUIC_LB_HELLO_NAME_MAX  255


typedef struct {

    /*
     * As the client wrote it, in any case: 1 to QUIC_LB_HELLO_NAME_MAX octets
     * without NUL; whether they make a name is not looked at.  NULL and 0 if
     * there is none.
     */

    const uint8_t  *server_name;
    size_t          server_name_len;

    /*
     * 1 if |server_name| looks like an address, which RFC 6066, 3 does not
     * permit there, but clients send: digits and dots only, or with a colon.
     */

    int             address;

    /*
     * The list: names of 1 to 255 octets, each behind an octet with its
     * length.  At least one; NULL and 0 if the client does not offer any.
     */

    const uint8_t  *alpn;
    size_t          alpn_len;
} quic_lb_hello_t;


/*
 * Reads the ClientHello that begins at |data|, of which |len| octets have come.
 * Octets behind its end are ignored.  There is no state: call it again with
 * all octets when there are more of them.
 *
 * Returns QUIC_LB_OK, or
 * QUIC_LB_ERR_SHORT    it is not complete: |hello| has what was found so far,
 *                      and more octets never change a name or list that is
 *                      there, but may make the rest invalid;
 * QUIC_LB_ERR_INVALID  not a ClientHello, or one that breaks its form: |hello|
 *                      is undefined;
 * QUIC_LB_ERR_FULL     it is longer than QUIC_LB_CRYPTO_MAX (quic_lb_crypto.h):
 *                      |hello| is undefined.
 */

int quic_lb_hello_parse(quic_lb_hello_t *hello, const uint8_t *data,
    size_t len);


#endif /* _QUIC_LB_HELLO_H_INCLUDED_ */
