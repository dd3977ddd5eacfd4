
/*
 * The bounded hash table against a naive model: an array that says which
 * nodes are in and under which hash.
 *
 * Input: the limit, then operations of three octets: what to do, with which
 * node, under which hash.  There are few hashes, so that they meet in
 * buckets, and some differ in high bits only.
 */


#include <assert.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_table.h"


#define NODES  48


typedef struct {
    quic_lb_table_node_t    nodes[NODES];
    quic_lb_table_node_t   *buckets[64];
    quic_lb_table_t         table;

    size_t                  count;
    int                     present[NODES];
    uint64_t                hashes[NODES];
} state_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void insert(state_t *s, size_t i, uint64_t hash);
static void take_out(state_t *s, size_t i);
static void take_out_hash(state_t *s, uint64_t hash);
static void check(state_t *s, uint64_t hash);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t    i, limit;
    state_t   s;
    uint64_t  hash;

    if (size == 0) {
        return 0;
    }

    memset(&s, 0, sizeof(s));
    memset(s.buckets, 0xa5, sizeof(s.buckets));

    limit = data[0] % 64;

    assert(quic_lb_table_buckets(limit) <= 64);
    quic_lb_table_init(&s.table, s.buckets, limit);

    for (data++, size--; size >= 3; data += 3, size -= 3) {

        i = data[1] % NODES;
        hash = (data[2] & 0x3f) | (uint64_t) (data[2] >> 6) << 62;

        switch (data[0] % 8) {

        case 0:
            take_out_hash(&s, hash);
            break;

        case 1:
        case 2:
        case 3:
            take_out(&s, i);
            break;

        default:
            insert(&s, i, hash);
        }

        check(&s, hash);
    }

    return 0;
}


static void
insert(state_t *s, size_t i, uint64_t hash)
{
    int  rc;

    if (s->present[i]) {
        return;
    }

    rc = quic_lb_table_insert(&s->table, &s->nodes[i], hash);

    if (s->count == s->table.limit) {
        assert(rc == QUIC_LB_ERR_FULL);
        return;
    }

    assert(rc == QUIC_LB_OK);

    s->present[i] = 1;
    s->hashes[i] = hash;
    s->count++;
}


static void
take_out(state_t *s, size_t i)
{
    if (!s->present[i]) {
        return;
    }

    quic_lb_table_remove(&s->table, &s->nodes[i]);

    s->present[i] = 0;
    s->count--;
}


static void
take_out_hash(state_t *s, uint64_t hash)
{
    quic_lb_table_node_t  *node, *next;

    for (node = quic_lb_table_first(&s->table, hash);
         node != NULL;
         node = next)
    {
        next = quic_lb_table_next(node);
        take_out(s, (size_t) (node - s->nodes));
    }
}


/* the nodes of |hash| are just those of the model, each once */

static void
check(state_t *s, uint64_t hash)
{
    int                    seen[NODES] = { 0 };
    size_t                 i;
    quic_lb_table_node_t  *node;

    assert(s->table.count == s->count);

    for (node = quic_lb_table_first(&s->table, hash);
         node != NULL;
         node = quic_lb_table_next(node))
    {
        i = (size_t) (node - s->nodes);
        assert(i < NODES && !seen[i]);
        seen[i] = 1;
    }

    for (i = 0; i < NODES; i++) {
        assert(seen[i] == (s->present[i] && s->hashes[i] == hash));
    }
}
