
/*
 * Weighted Maglev tables: shares, stability, order independence, bounds, and
 * agreement with a slow model of the same rule.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_hash.h"
#include "quic_lb_maglev.h"
#include "tap.h"


#define SIZE   QUIC_LB_MAGLEV_SIZE
#define PEERS  1000


static void test_is_prime(void);
static void test_range(void);
static void test_golden(void);
static void test_single(void);
static void test_full(void);
static void test_equal_shares(void);
static void test_weighted_shares(void);
static void test_leaving(void);
static void test_order(void);
static void test_duplicates(void);
static void test_names(void);
static void test_prefixes(void);
static void test_equal_peers(void);
static void test_extreme_weights(void);
static void test_model(void);

static void set_peers(size_t n);
static void shuffle(size_t n);
static int build(uint32_t *table, uint32_t size, size_t n);
static int build_by_name(uint32_t *table, uint32_t size, size_t n);
static int count(const uint32_t *table, uint32_t size, size_t n);
static int shares_hold(uint32_t size, size_t n, const uint32_t *weights);
static void model(uint32_t *table, uint32_t size,
    const quic_lb_maglev_peer_t *sorted, size_t n);


static char                   names[PEERS][24];
static quic_lb_maglev_peer_t  peers[PEERS];
static uint32_t               weights[PEERS];
static uint32_t               counts[PEERS];
static uint32_t               table[SIZE], other[SIZE];


int
main(void)
{
    size_t  i;

    for (i = 0; i < PEERS; i++) {
        snprintf(names[i], sizeof(names[i]), "192.0.2.%zu:%zu", i % 250,
                 443 + i / 250);
    }

    test_is_prime();
    test_range();
    test_golden();
    test_single();
    test_full();
    test_equal_shares();
    test_weighted_shares();
    test_leaving();
    test_order();
    test_duplicates();
    test_names();
    test_prefixes();
    test_equal_peers();
    test_extreme_weights();
    test_model();

    return tap_done();
}


static void
test_is_prime(void)
{
    size_t  i;

    static const struct {
        uint32_t  n;
        int       prime;
    } cases[] = {
        { 0, 0 }, { 1, 0 }, { 2, 1 }, { 3, 1 }, { 4, 0 }, { 7, 1 }, { 9, 0 },
        { 11, 1 }, { 25, 0 }, { 65535, 0 }, { 65536, 0 }, { 65537, 1 },
        { 65521 * 65521u, 0 }, { QUIC_LB_MAGLEV_SIZE_MAX, 1 },
        { QUIC_LB_MAGLEV_SIZE_MAX + 2, 0 }, { 4294967291u, 1 },
        { UINT32_MAX, 0 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ok(quic_lb_maglev_is_prime(cases[i].n) == cases[i].prime,
           "%" PRIu32 " is %sprime", cases[i].n, cases[i].prime ? "" : "not ");
    }
}


static void
test_range(void)
{
    uint32_t  *largest;

    set_peers(8);

    memset(table, 0xa5, sizeof(table));
    memcpy(other, table, sizeof(other));

    ok(build(table, 0, 1) == QUIC_LB_ERR_RANGE, "size 0");
    ok(build(table, 1, 1) == QUIC_LB_ERR_RANGE, "size 1");
    ok(build(table, 9, 1) == QUIC_LB_ERR_RANGE, "size 9");
    ok(build(table, 65536, 1) == QUIC_LB_ERR_RANGE, "size 65536");
    ok(build(table, 16777259, 1) == QUIC_LB_ERR_RANGE
       && quic_lb_maglev_is_prime(16777259),
       "a prime over the largest size");
    ok(build(table, 11, 0) == QUIC_LB_ERR_RANGE, "no peers");
    ok(build(table, 7, 8) == QUIC_LB_ERR_RANGE, "more peers than slots");

    largest = malloc(QUIC_LB_MAGLEV_SIZE_MAX * sizeof(uint32_t));

    ok(largest != NULL
       && build(largest, QUIC_LB_MAGLEV_SIZE_MAX, 1) == QUIC_LB_OK,
       "the largest size");

    free(largest);

    peers[3].weight = 0;

    ok(build(table, 11, 8) == QUIC_LB_ERR_RANGE, "weight 0");
    ok(memcmp(table, other, sizeof(table)) == 0, "the table is untouched");
}


/*
 * A change of these tables is a change of every installed balancer's mind:
 * connections break while old and new ones run side by side.
 */

static void
test_golden(void)
{
    static const uint32_t  equal[] = { 2, 0, 0, 1, 2, 1, 2, 0, 1, 0, 1 };
    static const uint32_t  named[] = { 2, 1, 1, 2, 0, 0, 0, 1, 2, 0, 0 };
    static const uint32_t  weighted[] = { 2, 0, 0, 2, 2, 1, 2, 2, 1, 2, 1 };

    set_peers(3);

    ok(build(table, 11, 3) == QUIC_LB_OK
       && memcmp(table, equal, sizeof(equal)) == 0,
       "golden table of 11 slots, three equal peers");

    set_peers(3);
    peers[1].weight = 2;
    peers[2].weight = 5;

    ok(build(table, 11, 3) == QUIC_LB_OK
       && memcmp(table, weighted, sizeof(weighted)) == 0,
       "golden table of 11 slots, weights 1:2:5");

    set_peers(3);
    peers[1].name = peers[0].name;
    peers[1].name_len = peers[0].name_len;
    peers[0].weight = 2;

    ok(build(table, 11, 3) == QUIC_LB_OK
       && memcmp(table, named, sizeof(named)) == 0,
       "golden table of 11 slots, two weights of one name");

    ok(quic_lb_maglev_lookup(table, 11, UINT64_C(11) * 12345 + 4) == table[4],
       "lookup");
}


static void
test_single(void)
{
    set_peers(1);

    ok(build(table, 2, 1) == QUIC_LB_OK && table[0] == 0 && table[1] == 0,
       "a single peer of 2 slots");

    set_peers(1);
    peers[0].weight = UINT32_MAX;

    ok(build(table, SIZE, 1) == QUIC_LB_OK && count(table, SIZE, 1)
       && counts[0] == SIZE,
       "a single peer of 65537 slots");
}


static void
test_full(void)
{
    size_t  i;

    set_peers(7);

    for (i = 0; i < 7; i++) {
        peers[i].weight = (uint32_t) (1 + i * 100);
    }

    ok(build(table, 7, 7) == QUIC_LB_OK && count(table, 7, 7)
       && counts[0] == 1 && counts[3] == 1 && counts[6] == 1,
       "as many peers as slots: one slot each, whatever the weights");
}


static void
test_equal_shares(void)
{
    size_t    i;
    uint32_t  most, least;

    set_peers(10);

    ok(build(table, SIZE, 10) == QUIC_LB_OK && count(table, SIZE, 10),
       "10 equal peers");

    most = 0;
    least = SIZE;

    for (i = 0; i < 10; i++) {
        most = (counts[i] > most) ? counts[i] : most;
        least = (counts[i] < least) ? counts[i] : least;
    }

    ok(least * 10.0 >= SIZE * 0.99 && most * 10.0 <= SIZE * 1.01,
       "10 equal peers: within 1 %% (%" PRIu32 " to %" PRIu32 ")", least,
       most);
    ok(most - least <= 1, "10 equal peers: one slot apart at most");
}


static void
test_weighted_shares(void)
{
    size_t  i, n;
    double  share;

    static const uint32_t  scales[] = { 1, 3, 1000, 800000000 };
    static const uint32_t  ratio[] = { 1, 2, 5 };

    for (n = 0; n < sizeof(scales) / sizeof(scales[0]); n++) {

        set_peers(3);

        for (i = 0; i < 3; i++) {
            peers[i].weight = ratio[i] * scales[n];
        }

        ok(build(table, SIZE, 3) == QUIC_LB_OK && count(table, SIZE, 3),
           "weights 1:2:5 times %" PRIu32, scales[n]);

        for (i = 0; i < 3; i++) {
            share = SIZE * (double) ratio[i] / 8;

            ok(counts[i] > share * 0.99 && counts[i] < share * 1.01,
               "weight %" PRIu32 ": %" PRIu32 " slots, within 1 %%",
               ratio[i], counts[i]);
        }
    }
}


/* whichever of the ten peers leaves */

static void
test_leaving(void)
{
    int       w;
    size_t    i, gone;
    uint32_t  slot, kept, moved;
    double    part, worst;

    for (w = 0; w <= 1; w++) {
        worst = 0;

        set_peers(10);

        for (i = 0; w && i < 10; i++) {
            peers[i].weight = (uint32_t) (1 + i);
        }

        (void) build(table, SIZE, 10);

        for (gone = 0; gone < 10; gone++) {

            set_peers(10);

            for (i = 0; w && i < 10; i++) {
                peers[i].weight = (uint32_t) (1 + i);
            }

            for (i = gone; i < 9; i++) {
                peers[i] = peers[i + 1];
            }

            (void) build(other, SIZE, 9);

            kept = 0;
            moved = 0;

            for (slot = 0; slot < SIZE; slot++) {
                if (table[slot] != gone) {
                    kept++;
                    moved += (other[slot] + (other[slot] >= gone)
                              != table[slot]);
                }
            }

            part = (double) moved / kept;
            worst = (part > worst) ? part : worst;
        }

        ok(worst <= 0.12,
           "one of 10 %s peers leaves: %.2f %% of the others' slots move",
           w ? "weighted" : "equal", worst * 100);
    }
}


static void
test_order(void)
{
    int     failed;
    size_t  i, n;

    failed = 0;

    set_peers(50);

    for (i = 0; i < 50; i++) {
        peers[i].weight = weights[i] = (uint32_t) (1 + i % 7);
    }

    (void) build(table, SIZE, 50);

    for (n = 0; n < 5; n++) {
        set_peers(50);

        for (i = 0; i < 50; i++) {
            peers[i].weight = weights[i];
        }

        shuffle(50);

        failed += (build_by_name(other, SIZE, 50) != QUIC_LB_OK);
        failed += (memcmp(table, other, sizeof(table)) != 0);
    }

    ok(!failed, "the order of the peers does not count");
}


/* as several "server" lines of one address */

static void
test_duplicates(void)
{
    int     failed;
    size_t  n;

    failed = 0;

    for (n = 0; n < 6; n++) {
        set_peers(5);

        peers[0].name = peers[1].name = peers[2].name;
        peers[0].name_len = peers[1].name_len = peers[2].name_len;
        peers[2].weight = 4;

        if (n == 0) {
            failed += build_by_name(table, SIZE, 5) != QUIC_LB_OK;
            continue;
        }

        shuffle(5);

        failed += build_by_name(other, SIZE, 5) != QUIC_LB_OK;
        failed += memcmp(table, other, sizeof(table)) != 0;
    }

    ok(!failed, "peers of one name in any order");

    /* only the lighter one first can be right, whatever came first */

    for (n = 0; n < 2; n++) {
        set_peers(2);
        peers[1].name = peers[0].name;
        peers[1].name_len = peers[0].name_len;
        peers[n].weight = 4;
        peers[1 - n].weight = 3;

        failed += build(other, SIZE, 2) != QUIC_LB_OK
                  || peers[0].weight != 3 || peers[1].weight != 4;
    }

    ok(!failed, "the lighter one of a name first");

    (void) count(table, SIZE, PEERS);
    ok(counts[2] > SIZE * 0.74 && counts[2] < SIZE * 0.76,
       "their shares add up: %" PRIu32 " slots", counts[2]);
}


/* lengths count, and no octet ends a name */

static void
test_names(void)
{
    set_peers(4);

    peers[0].name = (const uint8_t *) "a\0b";
    peers[0].name_len = 3;
    peers[1].name = (const uint8_t *) "a\0c";
    peers[1].name_len = 3;
    peers[2].name = (const uint8_t *) "a";
    peers[2].name_len = 1;
    peers[3].name = NULL;
    peers[3].name_len = 0;

    ok(build(table, SIZE, 4) == QUIC_LB_OK && count(table, SIZE, 4),
       "names with zeroes and without octets");
    ok(peers[0].name_len == 0 && peers[1].name_len == 1
       && peers[2].name[2] == 'b' && peers[3].name[2] == 'c',
       "sorted");
}


/* names that begin alike, and what is behind the end of the shorter ones */

static void
test_prefixes(void)
{
    int       failed;
    size_t    i, n;
    uint32_t  slot, order[4];

    static const char  *texts[] = { "aaaz", "aaab", "aaac", "aaaa" };
    static const size_t  lens[] = { 3, 4, 4, 2 };

    failed = 0;

    for (n = 0; n < 24; n++) {
        set_peers(4);

        for (i = 0; i < 4; i++) {
            peers[i].name = (const uint8_t *) texts[i];
            peers[i].name_len = lens[i];
            peers[i].queue = (uint32_t) i;
        }

        shuffle(n ? 4 : 1);

        for (i = 0; i < 4; i++) {
            order[i] = peers[i].queue;
        }

        failed += build(n ? other : table, 251, 4) != QUIC_LB_OK;

        failed += peers[0].name != (const uint8_t *) texts[3]
                  || peers[1].name != (const uint8_t *) texts[0]
                  || peers[2].name != (const uint8_t *) texts[1]
                  || peers[3].name != (const uint8_t *) texts[2];

        for (slot = 0; slot < 251; slot++) {
            if (n == 0) {
                table[slot] = order[table[slot]];

            } else {
                failed += order[other[slot]] != table[slot];
            }
        }
    }

    ok(!failed, "names that begin alike, in any order");
}


/*
 * Of equal peers the first in the caller's order goes first: what stands
 * between them does not count.
 */

static void
test_equal_peers(void)
{
    int       failed;
    size_t    i, j, n, rank;
    uint32_t  slot, to[20];

    set_peers(2);
    peers[1] = peers[0];

    ok(build(table, 251, 2) == QUIC_LB_OK && count(table, 251, 2)
       && counts[0] == 126 && counts[1] == 125,
       "the first of two equal peers has the odd slot");

    /* 20 peers of 4 names, sorted, and then in many other orders */

    failed = 0;

    for (n = 0; n < 50; n++) {
        set_peers(20);

        for (i = 0; i < 20; i++) {
            peers[i].name = (const uint8_t *) names[i / 5];
            peers[i].name_len = strlen(names[i / 5]);
            peers[i].weight = 1 + i / 5 % 2;
        }

        if (n) {
            shuffle(20);
        }

        for (i = 0; i < 20; i++) {
            rank = 0;

            for (j = 0; j < i; j++) {
                rank += peers[j].name == peers[i].name;
            }

            to[i] = (uint32_t) (((const char *) peers[i].name - names[0])
                                / sizeof(names[0]) * 5 + rank);
        }

        failed += build(n ? other : table, 1009, 20) != QUIC_LB_OK;

        for (slot = 0; slot < 1009; slot++) {
            if (n == 0) {
                table[slot] = to[table[slot]];

            } else {
                failed += to[other[slot]] != table[slot];
            }
        }
    }

    ok(!failed, "equal peers among others keep their order");
}


static void
test_extreme_weights(void)
{
    size_t  i, n;

    static const struct {
        const char  *name;
        size_t       n;
        uint32_t     light;
        uint32_t     heavy;
        size_t       nheavy;
    } cases[] = {
        { "1:65535", 2, 1, 65535, 1 },
        { "1:1000000", 2, 1, 1000000, 1 },
        { "999 light peers, one of 1000000", 1000, 1, 1000000, 1 },
        { "one light peer, 999 of 1000000", 1000, 1, 1000000, 999 },
        { "all of UINT32_MAX", 1000, 1, UINT32_MAX, 1000 },
        { "half of UINT32_MAX", 1000, 1, UINT32_MAX, 500 },
        { "one of UINT32_MAX - 1", 3, UINT32_MAX - 1, UINT32_MAX, 2 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        set_peers(cases[i].n);

        for (n = 0; n < cases[i].n; n++) {
            peers[n].weight = weights[n]
                = (n < cases[i].nheavy) ? cases[i].heavy : cases[i].light;
        }

        ok(build(table, SIZE, cases[i].n) == QUIC_LB_OK
           && count(table, SIZE, cases[i].n)
           && shares_hold(SIZE, cases[i].n, weights),
           "weights: %s", cases[i].name);
    }
}


static void
test_model(void)
{
    int       failed;
    size_t    i, n, npeers;
    uint32_t  size;

    static const uint32_t  sizes[] = { 2, 3, 7, 11, 101, 251, 1009 };

    failed = 0;

    for (n = 0; n < 300; n++) {
        size = sizes[tap_random() % 7];
        npeers = 1 + tap_random() % (size < 40 ? size : 40);

        set_peers(npeers);

        for (i = 0; i < npeers; i++) {
            peers[i].weight = (tap_random() % 3)
                              ? 1 + (uint32_t) (tap_random() % 10)
                              : 1 + (uint32_t) (tap_random() % UINT32_MAX);
            weights[i] = peers[i].weight;
        }

        shuffle(npeers);

        failed += build_by_name(table, size, npeers) != QUIC_LB_OK;
        failed += !count(table, size, npeers);
        failed += !shares_hold(size, npeers, weights);

        /* now sorted */

        model(other, size, peers, npeers);
        failed += memcmp(table, other, size * sizeof(uint32_t)) != 0;
    }

    ok(!failed, "%zu random tables agree with the model", n);
}


/* peer i has names[i] and weight 1 */

static void
set_peers(size_t n)
{
    size_t  i;

    memset(peers, 0xa5, sizeof(peers));

    for (i = 0; i < n; i++) {
        peers[i].name = (const uint8_t *) names[i];
        peers[i].name_len = strlen(names[i]);
        peers[i].weight = 1;
    }
}


static void
shuffle(size_t n)
{
    size_t                 i, j;
    quic_lb_maglev_peer_t  peer;

    for (i = n - 1; i > 0; i--) {
        j = tap_random() % (i + 1);

        peer = peers[i];
        peers[i] = peers[j];
        peers[j] = peer;
    }
}


static int
build(uint32_t *t, uint32_t size, size_t n)
{
    return quic_lb_maglev_build(t, size, peers, n);
}


/* the table then holds indices into names[], of equal names the last */

static int
build_by_name(uint32_t *t, uint32_t size, size_t n)
{
    int       rc;
    size_t    i;
    uint32_t  slot, number[PEERS];

    for (i = 0; i < n; i++) {
        number[i] = (uint32_t) (((const char *) peers[i].name - names[0])
                                / sizeof(names[0]));
    }

    rc = build(t, size, n);

    for (slot = 0; rc == QUIC_LB_OK && slot < size; slot++) {
        t[slot] = number[t[slot]];
    }

    return rc;
}


/* counts the slots of each of |n| peers; 0 if a slot has none of them */

static int
count(const uint32_t *t, uint32_t size, size_t n)
{
    uint32_t  slot;

    memset(counts, 0, sizeof(counts));

    for (slot = 0; slot < size; slot++) {
        if (t[slot] >= n) {
            return 0;
        }

        counts[t[slot]]++;
    }

    return 1;
}


/* the bounds that quic_lb_maglev.h promises, in integers */

static int
shares_hold(uint32_t size, size_t n, const uint32_t *w)
{
    size_t    i;
    uint64_t  total;

    total = 0;

    for (i = 0; i < n; i++) {
        total += w[i];
    }

    for (i = 0; i < n; i++) {
        if (counts[i] < 1
            || counts[i] * total < (size - n) * w[i]
            || (counts[i] - 1) * total > (uint64_t) size * w[i])
        {
            printf("# peer %zu: %" PRIu32 " slots\n", i, counts[i]);
            return 0;
        }
    }

    return 1;
}


/*
 * For each slot asks all peers whose claim is due first, and counts their
 * permutation from its start; gives indices into names[].
 */

static void
model(uint32_t *t, uint32_t size, const quic_lb_maglev_peer_t *sorted,
    size_t n)
{
    size_t    i, best;
    uint32_t  slot, filled, k, claims[PEERS] = { 0 };
    uint64_t  offset, skip;

    const quic_lb_hash_key_t  offset_key = { 0, 1 };
    const quic_lb_hash_key_t  skip_key = { 0, 2 };

    memset(t, 0xff, size * sizeof(uint32_t));

    for (filled = 0; filled < size; filled++) {
        best = 0;

        for (i = 1; i < n; i++) {
            if ((uint64_t) claims[i] * sorted[best].weight
                < (uint64_t) claims[best] * sorted[i].weight)
            {
                best = i;
            }
        }

        claims[best]++;

        offset = quic_lb_hash(&offset_key, sorted[best].name,
                              sorted[best].name_len) % size;
        skip = quic_lb_hash(&skip_key, sorted[best].name,
                            sorted[best].name_len) % (size - 1) + 1;

        for (k = 0; k < size; k++) {
            slot = (uint32_t) ((offset + k * skip) % size);

            if (t[slot] == UINT32_MAX) {
                break;
            }
        }

        t[slot] = (uint32_t) (((const char *) sorted[best].name - names[0])
                              / sizeof(names[0]));
    }
}
