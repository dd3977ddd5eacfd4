
/*
 * Prefixes of connection IDs.  Key: the prefix.  Entered by the first ID that a
 * server issues with it; removed when no ID with it was issued or used for the
 * timeout, as that of a server that has been restarted is not, or for another
 * one when there is no room.  Bound: the table.
 *
 * Servers with random IDs enter one prefix an ID.  These are never confirmed,
 * and so only make room for each other.
 */


#include <string.h>

#include "quic_lb_prefix.h"


/* the count of one that several servers use */

#define QUIC_LB_PREFIX_SHARED  0xff


void
quic_lb_prefix_issued(quic_lb_learned_t *prefixes, const uint8_t *id,
    size_t len, const void *address, size_t address_len, size_t now,
    size_t timeout)
{
    quic_lb_learned_entry_t  *entry;

    if (len <= QUIC_LB_PREFIX) {
        return;
    }

    entry = quic_lb_learned_find(prefixes, id, QUIC_LB_PREFIX, now, timeout);

    if (entry == NULL) {
        entry = quic_lb_learned_insert(prefixes, id, QUIC_LB_PREFIX, address,
                                       address_len, now);
    }

    /* single octets: a process that is killed leaves one or the other */

    if (entry->address_len != address_len
        || memcmp(entry->address, address, address_len) != 0)
    {
        entry->count = QUIC_LB_PREFIX_SHARED;

    } else if (entry->count < QUIC_LB_PREFIX_IDS) {
        entry->id_len = (uint8_t) len;
        entry->count++;
    }

    if (entry->count >= QUIC_LB_PREFIX_IDS) {
        quic_lb_learned_confirm(prefixes, entry, now);
    }
}


quic_lb_learned_entry_t *
quic_lb_prefix_find(quic_lb_learned_t *prefixes, const uint8_t *id, size_t len,
    size_t now, size_t timeout)
{
    quic_lb_learned_entry_t  *entry;

    if (len <= QUIC_LB_PREFIX) {
        return NULL;
    }

    entry = quic_lb_learned_find(prefixes, id, QUIC_LB_PREFIX, now, timeout);

    if (entry == NULL
        || entry->count != QUIC_LB_PREFIX_IDS
        || entry->id_len > len)
    {
        return NULL;
    }

    return entry;
}
