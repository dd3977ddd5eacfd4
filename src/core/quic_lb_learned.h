
/*
 * Connection IDs that are known to be of a server: a bounded table in memory
 * that several processes share, of which any may be killed at any time.
 *
 * Entries are unconfirmed when they are inserted.  Unconfirmed ones make room
 * for each other, the one that was used the longest ago first; so do confirmed
 * ones, which never take the last eighth.  Nothing is allocated; the caller
 * holds a lock for each call, and passes the time, in ms, that may wrap.
 *
 * What is killed with the lock held leaves |dirty| set.  All but the array of
 * entries is then made anew: an entry is whole if its state says so, which is
 * stored last when it is made and first when it goes.  So nothing is lost but
 * what was just being written.
 */


#ifndef _QUIC_LB_LEARNED_H_INCLUDED_
#define _QUIC_LB_LEARNED_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "quic_lb_hash.h"
#include "quic_lb_packet.h"
#include "quic_lb_table.h"


/* octets of a server's address: a struct sockaddr_in6 */

#define QUIC_LB_LEARNED_ADDRESS  28

/* the least number of entries */

#define QUIC_LB_LEARNED_MIN      8


typedef enum {
    QUIC_LB_LEARNED_FREE = 0,
    QUIC_LB_LEARNED_UNCONFIRMED,
    QUIC_LB_LEARNED_CONFIRMED,
    QUIC_LB_LEARNED_STATES
} quic_lb_learned_state_e;


typedef struct quic_lb_learned_link_s  quic_lb_learned_link_t;

struct quic_lb_learned_link_s {
    quic_lb_learned_link_t    *prev;
    quic_lb_learned_link_t    *next;
};


typedef struct {
    quic_lb_table_node_t       node;         /* must be first */
    quic_lb_learned_link_t     link;         /* in the list of its state */
    size_t                     used;         /* ms */
    volatile uint8_t           state;        /* quic_lb_learned_state_e */
    uint8_t                    len;          /* octets of id, 1 to 20 */
    uint8_t                    address_len;  /* octets of address, 1 to 28 */
    uint8_t                    count;        /* 0 at first; quic_lb_prefix.h */
    uint8_t                    id_len;       /* the same */
    uint8_t                    id[QUIC_LB_CID_MAX];
    uint8_t                    address[QUIC_LB_LEARNED_ADDRESS];
} quic_lb_learned_entry_t;


typedef struct {
    volatile uint32_t          dirty;        /* somebody writes, or died so */

    quic_lb_hash_key_t         key;          /* secret: IDs are chosen */
    quic_lb_learned_entry_t   *entries;
    size_t                     limit;        /* entries there are */
    size_t                     confirmed_limit;

    quic_lb_table_t            table;
    quic_lb_learned_link_t     lists[QUIC_LB_LEARNED_STATES];
    size_t                     counts[QUIC_LB_LEARNED_STATES];
    size_t                     lengths[QUIC_LB_CID_MAX + 1];
} quic_lb_learned_t;


/* returns the octets of memory for |n| entries */

size_t quic_lb_learned_size(size_t n);

/*
 * Sets up |learned| with |n| free entries, at least QUIC_LB_LEARNED_MIN, in
 * |memory|: quic_lb_learned_size(n) zeroed octets, aligned as for a pointer.
 */

void quic_lb_learned_init(quic_lb_learned_t *learned, void *memory, size_t n,
    const quic_lb_hash_key_t *key);

/*
 * To be called first whenever the lock has been taken.  Returns 1 if the last
 * holder of the lock had not finished, and all is made good again; else 0.
 */

int quic_lb_learned_check(quic_lb_learned_t *learned);

/*
 * Returns the entry with the |len| octets at |id|, or NULL.  One that has not
 * been used for |timeout| is removed.
 */

quic_lb_learned_entry_t *quic_lb_learned_find(quic_lb_learned_t *learned,
    const uint8_t *id, size_t len, size_t now, size_t timeout);

/*
 * Inserts an unconfirmed entry, with an |id| that no other one has, and returns
 * it.  There is always room: another one may go.
 */

quic_lb_learned_entry_t *quic_lb_learned_insert(quic_lb_learned_t *learned,
    const uint8_t *id, size_t len, const void *address, size_t address_len,
    size_t now);

/* |entry| is in use, and confirmed: another one may go */

void quic_lb_learned_confirm(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry, size_t now);

void quic_lb_learned_remove(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry);


#endif /* _QUIC_LB_LEARNED_H_INCLUDED_ */
