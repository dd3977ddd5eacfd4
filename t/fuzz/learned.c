
/*
 * Learned connection IDs against a naive model: an array that says which are
 * in, whether they are confirmed, and when they were used.
 *
 * Input: operations of two octets: what to do, with which ID.  Each takes a
 * millisecond, so that no two are used at the same time.
 */


#include <assert.h>
#include <string.h>

#include "quic_lb_learned.h"


#define ENTRIES  16
#define LIMIT    (ENTRIES - ENTRIES / 8)
#define IDS      32
#define TIMEOUT  200


typedef struct {
    quic_lb_learned_t        learned;
    quic_lb_learned_entry_t  memory[ENTRIES * 2];

    size_t                   now;
    int                      state[IDS];
    size_t                   used[IDS];
} state_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static quic_lb_learned_entry_t *find(state_t *s, unsigned n);
static void insert(state_t *s, unsigned n);
static void confirm(state_t *s, unsigned n);
static void make_room(state_t *s, int state, size_t limit);
static void check(state_t *s);
static size_t count(state_t *s, int state);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned                  n;
    state_t                   s;
    quic_lb_learned_entry_t  *entry;

    static const quic_lb_hash_key_t  key = { 3, 4 };

    memset(&s, 0, sizeof(s));

    assert(quic_lb_learned_size(ENTRIES) <= sizeof(s.memory));
    quic_lb_learned_init(&s.learned, s.memory, ENTRIES, &key);

    for ( /* void */ ; size >= 2; data += 2, size -= 2) {
        n = data[1] % IDS;
        entry = find(&s, n);

        switch (data[0] % 8) {

        case 0:
            if (entry != NULL) {
                quic_lb_learned_remove(&s.learned, entry);
                s.state[n] = QUIC_LB_LEARNED_FREE;
            }

            break;

        case 1:
        case 2:
        case 3:
            if (entry != NULL) {
                confirm(&s, n);
            }

            break;

        case 4:
            s.learned.dirty = 1;
            s.learned.table.count = data[1];
            s.learned.counts[data[1] % QUIC_LB_LEARNED_STATES] += data[1];
            assert(quic_lb_learned_check(&s.learned) == 1);
            break;

        case 5:
            s.now += data[1];
            break;

        default:
            if (entry == NULL) {
                insert(&s, n);
            }
        }

        s.now++;

        check(&s);
    }

    return 0;
}


static quic_lb_learned_entry_t *
find(state_t *s, unsigned n)
{
    uint8_t                   id[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    quic_lb_learned_entry_t  *entry;

    id[0] = (uint8_t) n;

    entry = quic_lb_learned_find(&s->learned, id, sizeof(id) - n / 16, s->now,
                                 TIMEOUT);

    if (s->state[n] && s->now - s->used[n] >= TIMEOUT) {
        s->state[n] = QUIC_LB_LEARNED_FREE;
    }

    assert((entry != NULL) == (s->state[n] != QUIC_LB_LEARNED_FREE));
    assert(entry == NULL || entry->state == s->state[n]);
    assert(entry == NULL || entry->address[0] == n);

    return entry;
}


static void
insert(state_t *s, unsigned n)
{
    uint8_t  id[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, address[4] = { 0 };

    id[0] = (uint8_t) n;
    address[0] = (uint8_t) n;

    if (count(s, QUIC_LB_LEARNED_CONFIRMED)
        + count(s, QUIC_LB_LEARNED_UNCONFIRMED) == ENTRIES)
    {
        make_room(s, QUIC_LB_LEARNED_UNCONFIRMED, 1);
    }

    (void) quic_lb_learned_insert(&s->learned, id, sizeof(id) - n / 16,
                                  address, sizeof(address), s->now);

    s->state[n] = QUIC_LB_LEARNED_UNCONFIRMED;
    s->used[n] = s->now;
}


static void
confirm(state_t *s, unsigned n)
{
    if (s->state[n] != QUIC_LB_LEARNED_CONFIRMED) {
        make_room(s, QUIC_LB_LEARNED_CONFIRMED, LIMIT);
    }

    quic_lb_learned_confirm(&s->learned, find(s, n), s->now);

    s->state[n] = QUIC_LB_LEARNED_CONFIRMED;
    s->used[n] = s->now;
}


static void
make_room(state_t *s, int state, size_t limit)
{
    unsigned  i, oldest;

    if (count(s, state) < limit) {
        return;
    }

    for (i = 0, oldest = IDS; i < IDS; i++) {
        if (s->state[i] == state
            && (oldest == IDS || s->used[i] < s->used[oldest]))
        {
            oldest = i;
        }
    }

    assert(oldest < IDS);
    s->state[oldest] = QUIC_LB_LEARNED_FREE;
}


static void
check(state_t *s)
{
    unsigned  i;

    for (i = 0; i < IDS; i++) {
        (void) find(s, i);
    }

    assert(s->learned.dirty == 0);
    assert(s->learned.counts[QUIC_LB_LEARNED_CONFIRMED]
           == count(s, QUIC_LB_LEARNED_CONFIRMED));
    assert(s->learned.counts[QUIC_LB_LEARNED_UNCONFIRMED]
           == count(s, QUIC_LB_LEARNED_UNCONFIRMED));
}


static size_t
count(state_t *s, int state)
{
    size_t  i, n;

    for (n = 0, i = 0; i < IDS; i++) {
        n += (s->state[i] == state);
    }

    return n;
}
