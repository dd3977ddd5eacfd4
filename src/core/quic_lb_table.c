
/*
 * A bounded hash table: an array of singly linked buckets.  As there are at
 * least as many buckets as nodes, a bucket holds one node on average; this
 * takes a hash whose low bits no peer can choose.  The table neither grows
 * nor evicts: at the bound the caller decides what goes.
 */


#include "quic_lb_error.h"
#include "quic_lb_table.h"


#define QUIC_LB_TABLE_BUCKETS_MIN  16


static quic_lb_table_node_t *quic_lb_table_match(quic_lb_table_node_t *node,
    uint64_t hash);


size_t
quic_lb_table_buckets(size_t limit)
{
    size_t  n;

    n = QUIC_LB_TABLE_BUCKETS_MIN;

    while (n < limit && n <= SIZE_MAX / 2) {
        n *= 2;
    }

    return n;
}


void
quic_lb_table_init(quic_lb_table_t *table, quic_lb_table_node_t **buckets,
    size_t limit)
{
    size_t  i, n;

    n = quic_lb_table_buckets(limit);

    for (i = 0; i < n; i++) {
        buckets[i] = NULL;
    }

    table->buckets = buckets;
    table->mask = n - 1;
    table->count = 0;
    table->limit = limit;
}


quic_lb_table_node_t *
quic_lb_table_first(const quic_lb_table_t *table, uint64_t hash)
{
    return quic_lb_table_match(table->buckets[hash & table->mask], hash);
}


quic_lb_table_node_t *
quic_lb_table_next(const quic_lb_table_node_t *node)
{
    return quic_lb_table_match(node->next, node->hash);
}


int
quic_lb_table_insert(quic_lb_table_t *table, quic_lb_table_node_t *node,
    uint64_t hash)
{
    quic_lb_table_node_t  **bucket;

    if (table->count >= table->limit) {
        return QUIC_LB_ERR_FULL;
    }

    bucket = &table->buckets[hash & table->mask];

    node->hash = hash;
    node->next = *bucket;
    *bucket = node;

    table->count++;

    return QUIC_LB_OK;
}


void
quic_lb_table_remove(quic_lb_table_t *table, quic_lb_table_node_t *node)
{
    quic_lb_table_node_t  **link;

    link = &table->buckets[node->hash & table->mask];

    while (*link != node) {
        link = &(*link)->next;
    }

    *link = node->next;

    table->count--;
}


static quic_lb_table_node_t *
quic_lb_table_match(quic_lb_table_node_t *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash) {
        node = node->next;
    }

    return node;
}
