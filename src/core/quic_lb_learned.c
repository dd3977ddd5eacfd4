
/*
 * Learned connection IDs.  Key: the ID.  Entered and removed by the caller, or
 * removed for another one when there is no room.  Bound: the number of entries
 * that it was made with.
 *
 * Stores have an order only for a process that is killed: what it has done is
 * seen in the order of its instructions by who takes the lock later.  So it is
 * the compiler alone that must not move them.
 */


#include <stdatomic.h>
#include <string.h>

#include "quic_lb_learned.h"


/* the part that confirmed entries never take: one of so many */

#define QUIC_LB_LEARNED_ROOM  8


#define quic_lb_learned_fence()  atomic_signal_fence(memory_order_seq_cst)


static void quic_lb_learned_begin(quic_lb_learned_t *learned);
static void quic_lb_learned_end(quic_lb_learned_t *learned);
static void quic_lb_learned_rebuild(quic_lb_learned_t *learned);
static int quic_lb_learned_whole(const quic_lb_learned_entry_t *entry);
static void quic_lb_learned_enter(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry);
static void quic_lb_learned_leave(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry);
static quic_lb_learned_entry_t *quic_lb_learned_oldest(
    quic_lb_learned_t *learned, int state);
static quic_lb_learned_entry_t *quic_lb_learned_entry(
    quic_lb_learned_link_t *link);
static void quic_lb_learned_link(quic_lb_learned_link_t *list,
    quic_lb_learned_link_t *link);
static void quic_lb_learned_unlink(quic_lb_learned_link_t *link);
static void quic_lb_learned_sort(quic_lb_learned_link_t *list);
static quic_lb_learned_link_t *quic_lb_learned_merge(
    quic_lb_learned_link_t *a, quic_lb_learned_link_t *b);


size_t
quic_lb_learned_size(size_t n)
{
    return n * sizeof(quic_lb_learned_entry_t)
           + quic_lb_table_buckets(n) * sizeof(quic_lb_table_node_t *);
}


void
quic_lb_learned_init(quic_lb_learned_t *learned, void *memory, size_t n,
    const quic_lb_hash_key_t *key)
{
    learned->entries = memory;
    learned->limit = n;
    learned->confirmed_limit = n - n / QUIC_LB_LEARNED_ROOM;
    learned->key = *key;

    /* the buckets are behind the entries */

    learned->table.buckets = (quic_lb_table_node_t **) (learned->entries + n);

    quic_lb_learned_begin(learned);
    quic_lb_learned_rebuild(learned);
    quic_lb_learned_end(learned);
}


int
quic_lb_learned_check(quic_lb_learned_t *learned)
{
    if (learned->dirty == 0) {
        return 0;
    }

    /* if this one is killed as well, the next one begins again */

    quic_lb_learned_rebuild(learned);
    quic_lb_learned_end(learned);

    return 1;
}


static void
quic_lb_learned_begin(quic_lb_learned_t *learned)
{
    learned->dirty = 1;
    quic_lb_learned_fence();
}


static void
quic_lb_learned_end(quic_lb_learned_t *learned)
{
    quic_lb_learned_fence();
    learned->dirty = 0;
}


/* trusts nothing but the entries, and what never changes */

static void
quic_lb_learned_rebuild(quic_lb_learned_t *learned)
{
    int                       state;
    size_t                    i;
    quic_lb_learned_entry_t  *entry;

    quic_lb_table_init(&learned->table, learned->table.buckets,
                       learned->limit);

    memset(learned->lengths, 0, sizeof(learned->lengths));

    for (state = 0; state < QUIC_LB_LEARNED_STATES; state++) {
        learned->lists[state].prev = &learned->lists[state];
        learned->lists[state].next = &learned->lists[state];
        learned->counts[state] = 0;
    }

    for (i = 0; i < learned->limit; i++) {
        entry = &learned->entries[i];

        if (quic_lb_learned_whole(entry)) {
            quic_lb_learned_enter(learned, entry);
            continue;
        }

        entry->state = QUIC_LB_LEARNED_FREE;
        learned->counts[QUIC_LB_LEARNED_FREE]++;
        quic_lb_learned_link(&learned->lists[QUIC_LB_LEARNED_FREE],
                             &entry->link);
    }

    quic_lb_learned_sort(&learned->lists[QUIC_LB_LEARNED_UNCONFIRMED]);
    quic_lb_learned_sort(&learned->lists[QUIC_LB_LEARNED_CONFIRMED]);
}


static int
quic_lb_learned_whole(const quic_lb_learned_entry_t *entry)
{
    return (entry->state == QUIC_LB_LEARNED_UNCONFIRMED
            || entry->state == QUIC_LB_LEARNED_CONFIRMED)
           && entry->len > 0
           && entry->len <= QUIC_LB_CID_MAX
           && entry->address_len > 0
           && entry->address_len <= QUIC_LB_LEARNED_ADDRESS;
}


quic_lb_learned_entry_t *
quic_lb_learned_find(quic_lb_learned_t *learned, const uint8_t *id, size_t len,
    size_t now, size_t timeout)
{
    uint64_t                  hash;
    quic_lb_table_node_t     *node;
    quic_lb_learned_entry_t  *entry;

    if (len > QUIC_LB_CID_MAX || learned->lengths[len] == 0) {
        return NULL;
    }

    hash = quic_lb_hash(&learned->key, id, len);

    for (node = quic_lb_table_first(&learned->table, hash);
         node != NULL;
         node = quic_lb_table_next(node))
    {
        entry = (quic_lb_learned_entry_t *) node;

        if (entry->len != len || memcmp(entry->id, id, len) != 0) {
            continue;
        }

        /* processes do not see the time at the same time */

        if ((ptrdiff_t) (now - entry->used) < (ptrdiff_t) timeout) {
            return entry;
        }

        quic_lb_learned_remove(learned, entry);

        return NULL;
    }

    return NULL;
}


quic_lb_learned_entry_t *
quic_lb_learned_insert(quic_lb_learned_t *learned, const uint8_t *id,
    size_t len, const void *address, size_t address_len, size_t now)
{
    quic_lb_learned_entry_t  *entry;

    quic_lb_learned_begin(learned);

    if (learned->counts[QUIC_LB_LEARNED_FREE] == 0) {
        entry = quic_lb_learned_oldest(learned, QUIC_LB_LEARNED_UNCONFIRMED);
        quic_lb_learned_leave(learned, entry);
    }

    entry = quic_lb_learned_oldest(learned, QUIC_LB_LEARNED_FREE);

    learned->counts[QUIC_LB_LEARNED_FREE]--;
    quic_lb_learned_unlink(&entry->link);

    entry->used = now;
    entry->count = 0;
    entry->len = (uint8_t) len;
    entry->address_len = (uint8_t) address_len;
    memcpy(entry->id, id, len);
    memcpy(entry->address, address, address_len);

    quic_lb_learned_fence();
    entry->state = QUIC_LB_LEARNED_UNCONFIRMED;
    quic_lb_learned_fence();

    quic_lb_learned_enter(learned, entry);

    quic_lb_learned_end(learned);

    return entry;
}


void
quic_lb_learned_confirm(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry, size_t now)
{
    quic_lb_learned_begin(learned);

    entry->used = now;

    if (entry->state != QUIC_LB_LEARNED_CONFIRMED) {

        if (learned->counts[QUIC_LB_LEARNED_CONFIRMED]
            >= learned->confirmed_limit)
        {
            quic_lb_learned_leave(learned,
                quic_lb_learned_oldest(learned, QUIC_LB_LEARNED_CONFIRMED));
        }

        learned->counts[QUIC_LB_LEARNED_UNCONFIRMED]--;
        learned->counts[QUIC_LB_LEARNED_CONFIRMED]++;

        entry->state = QUIC_LB_LEARNED_CONFIRMED;
    }

    quic_lb_learned_unlink(&entry->link);
    quic_lb_learned_link(&learned->lists[QUIC_LB_LEARNED_CONFIRMED],
                         &entry->link);

    quic_lb_learned_end(learned);
}


void
quic_lb_learned_remove(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry)
{
    quic_lb_learned_begin(learned);
    quic_lb_learned_leave(learned, entry);
    quic_lb_learned_end(learned);
}


/* |entry| is whole, and in no list */

static void
quic_lb_learned_enter(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry)
{
    /* the table has room for all entries there are */

    (void) quic_lb_table_insert(&learned->table, &entry->node,
                                quic_lb_hash(&learned->key, entry->id,
                                             entry->len));

    learned->lengths[entry->len]++;
    learned->counts[entry->state]++;

    quic_lb_learned_link(&learned->lists[entry->state], &entry->link);
}


static void
quic_lb_learned_leave(quic_lb_learned_t *learned,
    quic_lb_learned_entry_t *entry)
{
    learned->counts[entry->state]--;

    quic_lb_learned_fence();
    entry->state = QUIC_LB_LEARNED_FREE;
    quic_lb_learned_fence();

    quic_lb_table_remove(&learned->table, &entry->node);

    learned->lengths[entry->len]--;
    learned->counts[QUIC_LB_LEARNED_FREE]++;

    quic_lb_learned_unlink(&entry->link);
    quic_lb_learned_link(&learned->lists[QUIC_LB_LEARNED_FREE], &entry->link);
}


static quic_lb_learned_entry_t *
quic_lb_learned_oldest(quic_lb_learned_t *learned, int state)
{
    return quic_lb_learned_entry(learned->lists[state].next);
}


static quic_lb_learned_entry_t *
quic_lb_learned_entry(quic_lb_learned_link_t *link)
{
    return (quic_lb_learned_entry_t *)
           ((char *) link - offsetof(quic_lb_learned_entry_t, link));
}


/* as the newest of |list| */

static void
quic_lb_learned_link(quic_lb_learned_link_t *list,
    quic_lb_learned_link_t *link)
{
    link->prev = list->prev;
    link->next = list;
    link->prev->next = link;
    list->prev = link;
}


static void
quic_lb_learned_unlink(quic_lb_learned_link_t *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
}


/* by last use; runs of 1, 2, 4, ... entries wait until there are two of a size
 */

static void
quic_lb_learned_sort(quic_lb_learned_link_t *list)
{
    size_t                   i;
    quic_lb_learned_link_t  *link, *next, *run, *runs[8 * sizeof(size_t)];

    memset(runs, 0, sizeof(runs));

    for (link = list->next; link != list; link = next) {
        next = link->next;

        link->next = NULL;
        run = link;

        for (i = 0; runs[i] != NULL; i++) {
            run = quic_lb_learned_merge(runs[i], run);
            runs[i] = NULL;
        }

        runs[i] = run;
    }

    run = NULL;

    for (i = 0; i < 8 * sizeof(size_t); i++) {
        run = quic_lb_learned_merge(runs[i], run);
    }

    list->prev = list;
    list->next = list;

    for (link = run; link != NULL; link = next) {
        next = link->next;
        quic_lb_learned_link(list, link);
    }
}


static quic_lb_learned_link_t *
quic_lb_learned_merge(quic_lb_learned_link_t *a, quic_lb_learned_link_t *b)
{
    quic_lb_learned_link_t  *first, **last;

    for (last = &first; a != NULL && b != NULL; last = &(*last)->next) {

        if ((ptrdiff_t) (quic_lb_learned_entry(a)->used
                         - quic_lb_learned_entry(b)->used)
            <= 0)
        {
            *last = a;
            a = a->next;

        } else {
            *last = b;
            b = b->next;
        }
    }

    *last = (a != NULL) ? a : b;

    return first;
}
