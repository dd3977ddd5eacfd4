
/*
 * What the connection IDs of a server have in common: those of nginx begin with
 * 8 octets of the socket that it listens on.  So an ID that nobody has seen
 * yet, as it was issued inside of a connection, names its server.
 *
 * A prefix is known when one server has issued so many IDs with it and no other
 * server has issued any.  One that two servers use is remembered as such, and
 * names none.  Prefixes are kept in a table of their own, unconfirmed until
 * they are known: quic_lb_learned.h, with all that it says about killed
 * processes.
 */


#ifndef _QUIC_LB_PREFIX_H_INCLUDED_
#define _QUIC_LB_PREFIX_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "quic_lb_learned.h"


/* octets of a prefix; a longer ID has more, so that IDs with it differ */

#define QUIC_LB_PREFIX  8

/* IDs that make a prefix known */

#define QUIC_LB_PREFIX_IDS  3


/*
 * Takes note of an ID of |len| octets, at most QUIC_LB_CID_MAX, that the server
 * at |address| has issued, each ID once.
 */

void quic_lb_prefix_issued(quic_lb_learned_t *prefixes, const uint8_t *id,
    size_t len, const void *address, size_t address_len, size_t now,
    size_t timeout);

/*
 * Returns the known prefix of the ID that |id| begins with, of which there are
 * |len| octets, or more, or NULL.  |id_len| of the entry is the length of the
 * ID, at most |len|.
 */

quic_lb_learned_entry_t *quic_lb_prefix_find(quic_lb_learned_t *prefixes,
    const uint8_t *id, size_t len, size_t now, size_t timeout);


#endif /* _QUIC_LB_PREFIX_H_INCLUDED_ */
