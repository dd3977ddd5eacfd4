
/*
 * A bounded hash table of nodes that the caller embeds in its own structures.
 * The table stores no keys and compares none: the caller walks the nodes with
 * an equal hash.  Nothing is allocated.  Hashes of what peers can choose must
 * be keyed with a secret (quic_lb_hash.h), else they choose long buckets.
 */


#ifndef _QUIC_LB_TABLE_H_INCLUDED_
#define _QUIC_LB_TABLE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


typedef struct quic_lb_table_node_s  quic_lb_table_node_t;

struct quic_lb_table_node_s {
    quic_lb_table_node_t   *next;      /* in the bucket */
    uint64_t                hash;
};


typedef struct {
    quic_lb_table_node_t  **buckets;   /* owned by the caller */
    size_t                  mask;      /* number of buckets less 1 */
    size_t                  count;     /* nodes in the table */
    size_t                  limit;     /* the most nodes there may be */
} quic_lb_table_t;


/*
 * Returns the number of buckets for |limit| nodes: a power of two, at least
 * |limit|, at least 16.  |limit| is at most SIZE_MAX / 2 + 1.
 */

size_t quic_lb_table_buckets(size_t limit);

/*
 * Sets up an empty |table| over |buckets|, an array of
 * quic_lb_table_buckets(limit) pointers that the caller keeps.
 */

void quic_lb_table_init(quic_lb_table_t *table, quic_lb_table_node_t **buckets,
    size_t limit);

/*
 * quic_lb_table_first() returns a node with |hash| or NULL,
 * quic_lb_table_next() the next one with the hash of |node| or NULL.  Nodes
 * of one hash come in no promised order.  Before a node is removed in a walk,
 * the next one must be taken.
 */

quic_lb_table_node_t *quic_lb_table_first(const quic_lb_table_t *table,
    uint64_t hash);
quic_lb_table_node_t *quic_lb_table_next(const quic_lb_table_node_t *node);

/*
 * Inserts |node|, which must be in no table, under |hash|; it must stay where
 * it is until it is removed.  Returns QUIC_LB_OK or, with |limit| nodes
 * present and nothing changed, QUIC_LB_ERR_FULL.
 */

int quic_lb_table_insert(quic_lb_table_t *table, quic_lb_table_node_t *node,
    uint64_t hash);

/* removes |node|, which must be in |table| */

void quic_lb_table_remove(quic_lb_table_t *table, quic_lb_table_node_t *node);


#endif /* _QUIC_LB_TABLE_H_INCLUDED_ */
