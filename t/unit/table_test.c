
/*
 * The bounded hash table.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_table.h"
#include "tap.h"


#define NODES  64


static void test_buckets(void);
static void test_insert_find_remove(void);
static void test_limit(void);
static void test_equal_hashes(void);
static void test_chain(void);
static void test_remove_in_walk(void);

static size_t count_hash(const quic_lb_table_t *table, uint64_t hash);


static quic_lb_table_node_t   nodes[NODES];
static quic_lb_table_node_t  *buckets[NODES];


int
main(void)
{
    test_buckets();
    test_insert_find_remove();
    test_limit();
    test_equal_hashes();
    test_chain();
    test_remove_in_walk();

    return tap_done();
}


static void
test_buckets(void)
{
    size_t  i;

    static const struct {
        size_t  limit;
        size_t  buckets;
    } cases[] = {
        { 0, 16 }, { 1, 16 }, { 16, 16 }, { 17, 32 }, { 32, 32 },
        { 33, 64 }, { 65535, 65536 }, { 65536, 65536 }, { 65537, 131072 },
        { SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ok(quic_lb_table_buckets(cases[i].limit) == cases[i].buckets,
           "buckets for %zu nodes", cases[i].limit);
    }

    ok(quic_lb_table_buckets(SIZE_MAX) != 0, "buckets for SIZE_MAX: an end");
}


static void
test_insert_find_remove(void)
{
    quic_lb_table_t  table;

    memset(buckets, 0xff, sizeof(buckets));

    quic_lb_table_init(&table, buckets, 4);

    ok(table.count == 0 && quic_lb_table_first(&table, 0) == NULL,
       "a new table is empty");

    ok(quic_lb_table_insert(&table, &nodes[0], 7) == QUIC_LB_OK
       && table.count == 1,
       "insert");
    ok(quic_lb_table_first(&table, 7) == &nodes[0], "found");
    ok(quic_lb_table_next(&nodes[0]) == NULL, "once");
    ok(quic_lb_table_first(&table, 7 + 16) == NULL,
       "another hash of the same bucket is not");
    ok(quic_lb_table_first(&table, 7 | UINT64_C(1) << 63) == NULL,
       "nor one that differs in the top bit");

    quic_lb_table_remove(&table, &nodes[0]);

    ok(quic_lb_table_first(&table, 7) == NULL && table.count == 0, "removed");
    ok(quic_lb_table_insert(&table, &nodes[0], UINT64_MAX) == QUIC_LB_OK
       && quic_lb_table_first(&table, UINT64_MAX) == &nodes[0],
       "inserted again under another hash");
}


static void
test_limit(void)
{
    quic_lb_table_t  table;

    quic_lb_table_init(&table, buckets, 2);

    ok(quic_lb_table_insert(&table, &nodes[0], 1) == QUIC_LB_OK
       && quic_lb_table_insert(&table, &nodes[1], 2) == QUIC_LB_OK,
       "insert up to the limit");
    ok(quic_lb_table_insert(&table, &nodes[2], 3) == QUIC_LB_ERR_FULL
       && quic_lb_table_first(&table, 3) == NULL && table.count == 2,
       "full: nothing inserted");

    quic_lb_table_remove(&table, &nodes[0]);

    ok(quic_lb_table_insert(&table, &nodes[2], 3) == QUIC_LB_OK
       && quic_lb_table_first(&table, 3) == &nodes[2] && table.count == 2,
       "room again");

    quic_lb_table_init(&table, buckets, 0);

    ok(quic_lb_table_insert(&table, &nodes[0], 1) == QUIC_LB_ERR_FULL,
       "limit 0");
}


static void
test_equal_hashes(void)
{
    size_t           i;
    quic_lb_table_t  table;

    quic_lb_table_init(&table, buckets, NODES);

    for (i = 0; i < 5; i++) {
        (void) quic_lb_table_insert(&table, &nodes[i], 9);
    }

    ok(count_hash(&table, 9) == 5, "five nodes of one hash");

    quic_lb_table_remove(&table, &nodes[2]);
    ok(count_hash(&table, 9) == 4, "one out of the middle removed");

    quic_lb_table_remove(&table, &nodes[4]);
    quic_lb_table_remove(&table, &nodes[0]);
    ok(count_hash(&table, 9) == 2, "both ends removed");

    quic_lb_table_remove(&table, &nodes[1]);
    ok(quic_lb_table_first(&table, 9) == &nodes[3]
       && quic_lb_table_next(&nodes[3]) == NULL,
       "the last one stays");
}


/* two hashes take turns in one bucket */

static void
test_chain(void)
{
    size_t           i;
    quic_lb_table_t  table;

    quic_lb_table_init(&table, buckets, NODES);

    for (i = 0; i < NODES; i++) {
        (void) quic_lb_table_insert(&table, &nodes[i],
                                    (i % 2) ? 5 : 5 + NODES);
    }

    ok(table.count == NODES && count_hash(&table, 5) == NODES / 2
       && count_hash(&table, 5 + NODES) == NODES / 2,
       "a walk skips the other hash of its bucket");

    for (i = 1; i < NODES; i += 2) {
        quic_lb_table_remove(&table, &nodes[i]);
    }

    ok(count_hash(&table, 5) == 0 && count_hash(&table, 5 + NODES) == NODES / 2,
       "one hash gone, the other whole");
}


static void
test_remove_in_walk(void)
{
    size_t                 i;
    quic_lb_table_t        table;
    quic_lb_table_node_t  *node, *next;

    quic_lb_table_init(&table, buckets, NODES);

    for (i = 0; i < NODES; i++) {
        (void) quic_lb_table_insert(&table, &nodes[i], i % 4);
    }

    for (node = quic_lb_table_first(&table, 3); node != NULL; node = next) {
        next = quic_lb_table_next(node);
        quic_lb_table_remove(&table, node);
    }

    ok(count_hash(&table, 3) == 0 && table.count == NODES - NODES / 4,
       "removed in a walk");
}


static size_t
count_hash(const quic_lb_table_t *table, uint64_t hash)
{
    size_t                 n;
    quic_lb_table_node_t  *node;

    n = 0;

    for (node = quic_lb_table_first(table, hash);
         node != NULL;
         node = quic_lb_table_next(node))
    {
        n++;
    }

    return n;
}
