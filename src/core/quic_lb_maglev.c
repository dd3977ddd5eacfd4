
/*
 * Weighted Maglev hashing.
 *
 * Each peer has a permutation of the slots of its own and claims them in that
 * order, skipping those that are taken.  The paper lets all peers claim in
 * turn.  Here claim number k, from 0, of a peer of weight w is due at time
 * k / w, and the earliest goes first.  So weights hold over the whole table,
 * whatever their ratio; each peer gets at least one slot; and when two peers
 * claim does not depend on any third, which keeps their slots where they are
 * if it leaves.
 *
 * If W is the sum of the weights, a peer gets at least (size - npeers) * w / W
 * slots and at most size * w / W + 1.
 *
 * Cost: one step in a heap of peers for each slot, and size * ln(size) probes
 * of the table on average.
 */


#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_hash.h"
#include "quic_lb_maglev.h"


#define QUIC_LB_MAGLEV_FREE  UINT32_MAX    /* no index of a peer */


static int quic_lb_maglev_valid(uint32_t size,
    const quic_lb_maglev_peer_t *peers, size_t npeers);
static void quic_lb_maglev_sort(quic_lb_maglev_peer_t *peers, size_t npeers);
static int quic_lb_maglev_compare(const quic_lb_maglev_peer_t *a,
    const quic_lb_maglev_peer_t *b);
static uint32_t quic_lb_maglev_claim(uint32_t *table, uint32_t size,
    quic_lb_maglev_peer_t *peer);
static void quic_lb_maglev_requeue(quic_lb_maglev_peer_t *peers,
    size_t npeers);
static int quic_lb_maglev_earlier(const quic_lb_maglev_peer_t *peers,
    uint32_t a, uint32_t b);


/*
 * Balancers with the same peers must agree on the table: never change these.
 */

static const quic_lb_hash_key_t  quic_lb_maglev_offset_key = { 0, 1 };
static const quic_lb_hash_key_t  quic_lb_maglev_skip_key = { 0, 2 };


int
quic_lb_maglev_build(uint32_t *table, uint32_t size,
    quic_lb_maglev_peer_t *peers, size_t npeers)
{
    size_t    i;
    uint32_t  n, slot;
    uint64_t  hash;

    if (!quic_lb_maglev_valid(size, peers, npeers)) {
        return QUIC_LB_ERR_RANGE;
    }

    for (i = 0; i < npeers; i++) {
        peers[i].index = (uint32_t) i;
    }

    quic_lb_maglev_sort(peers, npeers);

    for (i = 0; i < npeers; i++) {
        hash = quic_lb_hash(&quic_lb_maglev_offset_key, peers[i].name,
                            peers[i].name_len);
        peers[i].offset = (uint32_t) (hash % size);

        hash = quic_lb_hash(&quic_lb_maglev_skip_key, peers[i].name,
                            peers[i].name_len);
        peers[i].skip = (uint32_t) (hash % (size - 1) + 1);

        /* all first claims are due at once: any ascending order is a heap */

        peers[i].claims = 0;
        peers[i].queue = (uint32_t) i;
    }

    for (slot = 0; slot < size; slot++) {
        table[slot] = QUIC_LB_MAGLEV_FREE;
    }

    for (n = 0; n < size; n++) {
        i = peers[0].queue;

        slot = quic_lb_maglev_claim(table, size, &peers[i]);
        table[slot] = peers[i].index;

        quic_lb_maglev_requeue(peers, npeers);
    }

    return QUIC_LB_OK;
}


int
quic_lb_maglev_is_prime(uint32_t n)
{
    uint32_t  d;

    if (n < 2) {
        return 0;
    }

    for (d = 2; d <= n / d; d++) {
        if (n % d == 0) {
            return 0;
        }
    }

    return 1;
}


static int
quic_lb_maglev_valid(uint32_t size, const quic_lb_maglev_peer_t *peers,
    size_t npeers)
{
    size_t  i;

    if (size > QUIC_LB_MAGLEV_SIZE_MAX || !quic_lb_maglev_is_prime(size)) {
        return 0;
    }

    if (npeers == 0 || npeers > size) {
        return 0;
    }

    for (i = 0; i < npeers; i++) {
        if (peers[i].weight == 0) {
            return 0;
        }
    }

    return 1;
}


/* Shell sort: qsort() may allocate */

static void
quic_lb_maglev_sort(quic_lb_maglev_peer_t *peers, size_t npeers)
{
    size_t                 i, j, gap;
    quic_lb_maglev_peer_t  peer;

    gap = 1;

    while (gap < npeers / 3) {
        gap = gap * 3 + 1;
    }

    for ( /* void */ ; gap > 0; gap /= 3) {

        for (i = gap; i < npeers; i++) {
            peer = peers[i];

            for (j = i;
                 j >= gap && quic_lb_maglev_compare(&peers[j - gap], &peer) > 0;
                 j -= gap)
            {
                peers[j] = peers[j - gap];
            }

            peers[j] = peer;
        }
    }
}


/*
 * Peers of one name and weight are interchangeable; the caller's order
 * between them only makes the result definite.
 */

static int
quic_lb_maglev_compare(const quic_lb_maglev_peer_t *a,
    const quic_lb_maglev_peer_t *b)
{
    int     rc;
    size_t  len;

    len = (a->name_len < b->name_len) ? a->name_len : b->name_len;

    rc = (len == 0) ? 0 : memcmp(a->name, b->name, len);
    if (rc != 0) {
        return rc;
    }

    if (a->name_len != b->name_len) {
        return (a->name_len < b->name_len) ? -1 : 1;
    }

    if (a->weight != b->weight) {
        return (a->weight < b->weight) ? -1 : 1;
    }

    return (a->index < b->index) ? -1 : 1;
}


/*
 * Returns the next free slot of |peer|, of which there must be one.  As
 * |size| is a prime, steps of any length from 1 visit all slots.
 */

static uint32_t
quic_lb_maglev_claim(uint32_t *table, uint32_t size,
    quic_lb_maglev_peer_t *peer)
{
    uint32_t  slot;

    slot = peer->offset;

    while (table[slot] != QUIC_LB_MAGLEV_FREE) {
        slot += peer->skip;

        if (slot >= size) {
            slot -= size;
        }
    }

    peer->offset = slot;
    peer->claims++;

    return slot;
}


/* sifts the head of the queue down to where its next claim belongs */

static void
quic_lb_maglev_requeue(quic_lb_maglev_peer_t *peers, size_t npeers)
{
    size_t    i, child;
    uint32_t  head;

    head = peers[0].queue;

    for (i = 0; (child = 2 * i + 1) < npeers; i = child) {

        if (child + 1 < npeers
            && quic_lb_maglev_earlier(peers, peers[child + 1].queue,
                                      peers[child].queue))
        {
            child++;
        }

        if (quic_lb_maglev_earlier(peers, head, peers[child].queue)) {
            break;
        }

        peers[i].queue = peers[child].queue;
    }

    peers[i].queue = head;
}


/*
 * Whether the next claim of peer |a| is due before that of peer |b|.  Claims
 * stay under 2^24 and weights under 2^32.
 */

static int
quic_lb_maglev_earlier(const quic_lb_maglev_peer_t *peers, uint32_t a,
    uint32_t b)
{
    uint64_t  ta, tb;

    ta = (uint64_t) peers[a].claims * peers[b].weight;
    tb = (uint64_t) peers[b].claims * peers[a].weight;

    return (ta != tb) ? ta < tb : a < b;
}
