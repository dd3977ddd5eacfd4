
/*
 * Learned connection IDs.
 *
 * The second half stops a process after each store that it makes while it
 * changes the table, and takes what it has left: nothing may be lost but what
 * was being written, and all must go on.
 */


#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quic_lb_learned.h"
#include "tap.h"


#define ENTRIES  8
#define LIMIT    (ENTRIES - ENTRIES / 8)
#define IDS      64
#define TIMEOUT  1000000
#define MEMORY   8192


typedef struct {
    quic_lb_learned_t  learned;
    uint8_t            memory[MEMORY];
} shared_t;


/* what is in the table, by the number of the ID */

typedef struct {
    uint8_t            state[IDS];
    size_t             used[IDS];
} model_t;


typedef struct {
    const char        *name;
    void             (*prepare)(quic_lb_learned_t *l);
    void             (*change)(quic_lb_learned_t *l);
} change_t;


static void test_insert_find_remove(void);
static void test_timeout(void);
static void test_room(void);
static void test_confirmed_room(void);
static void test_rebuild(void);
static void test_torn(void);
static void test_longest(void);
static void test_killed(const change_t *change);

static size_t step(pid_t pid, const change_t *change, const model_t *before,
    const model_t *after);
static int survives(const model_t *before, const model_t *after);
static int goes_on(quic_lb_learned_t *l);

static void prepare_few(quic_lb_learned_t *l);
static void prepare_full(quic_lb_learned_t *l);
static void prepare_confirmed(quic_lb_learned_t *l);
static void prepare_dirty(quic_lb_learned_t *l);
static void change_insert(quic_lb_learned_t *l);
static void change_confirm(quic_lb_learned_t *l);
static void change_touch(quic_lb_learned_t *l);
static void change_remove(quic_lb_learned_t *l);
static void change_expire(quic_lb_learned_t *l);
static void change_rebuild(quic_lb_learned_t *l);

static quic_lb_learned_t *make(void);
static uint8_t *id(unsigned n);
static size_t id_len(unsigned n);
static quic_lb_learned_entry_t *find(quic_lb_learned_t *l, unsigned n);
static quic_lb_learned_entry_t *insert(quic_lb_learned_t *l, unsigned n,
    size_t now);
static void confirm(quic_lb_learned_t *l, unsigned n, size_t now);
static void model(quic_lb_learned_t *l, model_t *m);
static int sound(const quic_lb_learned_t *l);


static shared_t  *shared;

static const quic_lb_hash_key_t  key = { 1, 2 };


static const change_t  changes[] = {
    { "insert", prepare_few, change_insert },
    { "insert into a full table", prepare_full, change_insert },
    { "confirm", prepare_few, change_confirm },
    { "confirm, with no more room", prepare_confirmed, change_confirm },
    { "touch", prepare_confirmed, change_touch },
    { "remove", prepare_full, change_remove },
    { "find one that is too old", prepare_few, change_expire },
    { "rebuild", prepare_dirty, change_rebuild }
};


int
main(void)
{
    size_t  i;

    shared = mmap(NULL, sizeof(shared_t), PROT_READ|PROT_WRITE,
                  MAP_SHARED|MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED) {
        return 1;
    }

    ok(quic_lb_learned_size(ENTRIES) <= MEMORY, "memory for the test");

    test_insert_find_remove();
    test_timeout();
    test_room();
    test_confirmed_room();
    test_rebuild();
    test_torn();
    test_longest();

    for (i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        test_killed(&changes[i]);
    }

    return tap_done();
}


static void
test_insert_find_remove(void)
{
    quic_lb_learned_t        *l;
    quic_lb_learned_entry_t  *entry;

    l = make();

    ok(find(l, 1) == NULL, "a new table is empty");
    ok(sound(l), "and sound");

    entry = insert(l, 1, 5);

    ok(find(l, 1) == entry, "found");
    ok(entry->len == id_len(1) && memcmp(entry->id, id(1), entry->len) == 0
       && entry->address_len == 16 && entry->address[15] == 1
       && entry->used == 5,
       "as it was inserted");
    ok(find(l, 2) == NULL, "another is not");
    ok(quic_lb_learned_find(l, id(1), id_len(1) - 1, 0, TIMEOUT) == NULL,
       "nor a part of it");
    ok(quic_lb_learned_find(l, id(1), 255, 0, TIMEOUT) == NULL,
       "an ID of 255 octets is in no table");
    ok(sound(l), "sound");

    quic_lb_learned_remove(l, entry);

    ok(find(l, 1) == NULL && sound(l), "removed");
    ok(quic_lb_learned_check(l) == 0, "nothing to mend");
}


static void
test_timeout(void)
{
    quic_lb_learned_t  *l;

    l = make();
    (void) insert(l, 1, 100);

    ok(quic_lb_learned_find(l, id(1), id_len(1), 109, 10) != NULL,
       "shorter ago than the timeout");
    ok(quic_lb_learned_find(l, id(1), id_len(1), 95, 10) != NULL,
       "by a clock that is ahead");
    ok(quic_lb_learned_find(l, id(1), id_len(1), 110, 10) == NULL,
       "the timeout");
    ok(find(l, 1) == NULL && sound(l), "it is removed");

    (void) insert(l, 1, SIZE_MAX - 1);
    ok(quic_lb_learned_find(l, id(1), id_len(1), 5, 10) != NULL
       && quic_lb_learned_find(l, id(1), id_len(1), 9, 10) == NULL,
       "over the end of the clock");
}


static void
test_room(void)
{
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < ENTRIES + 3; i++) {
        (void) insert(l, i, i);
    }

    ok(find(l, 2) == NULL && find(l, 3) != NULL && find(l, ENTRIES + 2)
       != NULL,
       "full: the oldest have made room");
    ok(sound(l), "sound");

    confirm(l, 3, ENTRIES + 3);
    (void) insert(l, ENTRIES + 3, ENTRIES + 3);

    ok(find(l, 3) != NULL && find(l, 4) == NULL, "but not the confirmed one");
}


static void
test_confirmed_room(void)
{
    unsigned            i, n, gone;
    quic_lb_learned_t  *l;

    l = make();
    gone = ENTRIES - LIMIT;

    for (i = 0; i < ENTRIES; i++) {
        (void) insert(l, i, i);
        confirm(l, i, i);
    }

    for (n = 0, i = 0; i < ENTRIES; i++) {
        n += (find(l, i) != NULL);
    }

    ok(n == LIMIT && l->counts[QUIC_LB_LEARNED_CONFIRMED] == LIMIT,
       "an eighth is not for confirmed ones");
    ok(find(l, gone - 1) == NULL && find(l, gone) != NULL,
       "the oldest have gone");

    confirm(l, gone, 50);
    (void) insert(l, 20, 51);
    confirm(l, 20, 51);

    ok(find(l, gone) != NULL && find(l, gone + 1) == NULL,
       "of those the one used the longest ago goes");
    ok(sound(l), "sound");
}


/* after a rebuild entries go in the order that they would have gone in */

static void
test_rebuild(void)
{
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < ENTRIES; i++) {
        (void) insert(l, i, (i * 7) % ENTRIES);
    }

    l->dirty = 1;

    ok(quic_lb_learned_check(l) == 1 && l->dirty == 0 && sound(l),
       "made anew");

    for (i = 0; i < ENTRIES / 2; i++) {
        (void) insert(l, ENTRIES + i, ENTRIES + i);
    }

    for (i = 0; i < ENTRIES; i++) {
        ok((find(l, i) != NULL) == ((i * 7) % ENTRIES >= ENTRIES / 2),
           "%u: the oldest go first", i);
    }
}


/* entries that no order of stores leaves, but memory may have */

static void
test_torn(void)
{
    size_t                    i;
    quic_lb_learned_t        *l;
    quic_lb_learned_entry_t  *entries[6];

    l = make();

    for (i = 0; i < 6; i++) {
        entries[i] = insert(l, (unsigned) i, i);
    }

    entries[0]->state = QUIC_LB_LEARNED_STATES;
    entries[1]->len = 0;
    entries[2]->len = QUIC_LB_CID_MAX + 1;
    entries[3]->address_len = QUIC_LB_LEARNED_ADDRESS + 1;
    entries[5]->address_len = 0;
    l->dirty = 1;

    ok(quic_lb_learned_check(l) == 1 && sound(l), "made anew");
    ok(l->counts[QUIC_LB_LEARNED_UNCONFIRMED] == 1 && find(l, 4) != NULL,
       "what makes no sense is dropped");
}


/* what a rebuild keeps of an entry of the longest ID and the longest address */

static void
test_longest(void)
{
    size_t                    len;
    uint8_t                   address[QUIC_LB_LEARNED_ADDRESS];
    quic_lb_learned_t        *l;
    quic_lb_learned_entry_t  *entry;

    l = make();
    memset(address, 0x5a, sizeof(address));

    entry = quic_lb_learned_insert(l, id(1), QUIC_LB_CID_MAX, address,
                                   sizeof(address), 0);
    l->dirty = 1;

    ok(quic_lb_learned_check(l) == 1
       && quic_lb_learned_find(l, id(1), QUIC_LB_CID_MAX, 0, TIMEOUT) == entry
       && memcmp(entry->address, address, sizeof(address)) == 0,
       "the longest ID and address are kept");

    (void) insert(l, 2, 0);

    for (len = QUIC_LB_CID_MAX + 1; len < 256; len++) {
        if (quic_lb_learned_find(l, id(1), len, 0, TIMEOUT) != NULL) {
            break;
        }
    }

    ok(len == 256, "longer IDs are in no table, and not read");
}


static void
test_killed(const change_t *change)
{
    pid_t     pid;
    size_t    stores;
    model_t   before, after;
    shared_t  start;

    (void) make();
    change->prepare(&shared->learned);
    model(&shared->learned, &before);
    memcpy(&start, shared, sizeof(shared_t));

    change->change(&shared->learned);
    model(&shared->learned, &after);
    memcpy(shared, &start, sizeof(shared_t));

    pid = fork();

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == -1) {
            _exit(1);
        }

        (void) raise(SIGSTOP);
        change->change(&shared->learned);
        _exit(0);
    }

    stores = step(pid, change, &before, &after);

    ok(stores > 3, "%s: stopped after each of %zu stores", change->name,
       stores);
}


/* returns the number of stores seen, 0 if anything was wrong after one */

static size_t
step(pid_t pid, const change_t *change, const model_t *before,
    const model_t *after)
{
    int              status;
    size_t           stores;
    static shared_t  last;

    stores = 0;
    memcpy(&last, shared, sizeof(shared_t));

    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {

        if (memcmp(&last, shared, sizeof(shared_t)) != 0) {
            stores++;
            memcpy(&last, shared, sizeof(shared_t));

            /* as the next holder of the lock */

            if (!survives(before, after)) {
                printf("# %s: not after store %zu\n", change->name, stores);
                (void) kill(pid, SIGKILL);
                (void) waitpid(pid, &status, 0);
                return 0;
            }

            memcpy(shared, &last, sizeof(shared_t));
        }

        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == -1) {
            return 0;
        }
    }

    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) ? stores : 0;
}


/* |before|, |after|, or part of it done */

static int
survives(const model_t *before, const model_t *after)
{
    unsigned            i;
    model_t             now;
    quic_lb_learned_t  *l;

    l = &shared->learned;

    (void) quic_lb_learned_check(l);

    if (!sound(l)) {
        return 0;
    }

    model(l, &now);

    for (i = 0; i < IDS; i++) {

        if (now.state[i] != before->state[i]
            && now.state[i] != after->state[i])
        {
            return 0;
        }

        if (now.state[i]
            && now.used[i] != before->used[i]
            && now.used[i] != after->used[i])
        {
            return 0;
        }
    }

    return goes_on(l);
}


/* a new generation replaces all there is */

static int
goes_on(quic_lb_learned_t *l)
{
    unsigned  i, n;

    for (i = 32; i < 32 + ENTRIES; i++) {

        if (find(l, i) == NULL) {
            (void) insert(l, i, 1000 + i);
        }

        if (find(l, i) == NULL || !sound(l)) {
            return 0;
        }

        confirm(l, i, 1000 + i);

        if (!sound(l)) {
            return 0;
        }
    }

    for (n = 0, i = 0; i < IDS; i++) {
        n += (find(l, i) != NULL);
    }

    return n >= LIMIT && find(l, 32 + ENTRIES - 1) != NULL;
}


static void
prepare_few(quic_lb_learned_t *l)
{
    (void) insert(l, 1, 1);
    (void) insert(l, 2, 2);
    confirm(l, 2, 3);
    (void) insert(l, 3, 4);
}


static void
prepare_full(quic_lb_learned_t *l)
{
    unsigned  i;

    for (i = 1; i <= ENTRIES; i++) {
        (void) insert(l, i, i);
    }

    confirm(l, 2, 20);
}


static void
prepare_confirmed(quic_lb_learned_t *l)
{
    unsigned  i;

    for (i = 2; i < 2 + LIMIT; i++) {
        (void) insert(l, i, i);
        confirm(l, i, i);
    }

    (void) insert(l, 1, 20);
}


static void
prepare_dirty(quic_lb_learned_t *l)
{
    prepare_full(l);

    l->dirty = 1;
    l->counts[QUIC_LB_LEARNED_FREE] = 5;
    l->table.buckets[0] = NULL;
}


static void
change_insert(quic_lb_learned_t *l)
{
    (void) insert(l, 30, 30);
}


static void
change_confirm(quic_lb_learned_t *l)
{
    confirm(l, 1, 30);
}


static void
change_touch(quic_lb_learned_t *l)
{
    confirm(l, 2, 30);
}


static void
change_remove(quic_lb_learned_t *l)
{
    quic_lb_learned_remove(l, find(l, 2));
}


static void
change_expire(quic_lb_learned_t *l)
{
    (void) quic_lb_learned_find(l, id(2), id_len(2), 100, 10);
}


static void
change_rebuild(quic_lb_learned_t *l)
{
    (void) quic_lb_learned_check(l);
}


static quic_lb_learned_t *
make(void)
{
    memset(shared, 0, sizeof(shared_t));
    quic_lb_learned_init(&shared->learned, shared->memory, ENTRIES, &key);

    return &shared->learned;
}


static uint8_t *
id(unsigned n)
{
    static uint8_t  octets[QUIC_LB_CID_MAX];

    memset(octets, 0xa5, sizeof(octets));
    octets[3] = (uint8_t) n;

    return octets;
}


static size_t
id_len(unsigned n)
{
    return 4 + n % (QUIC_LB_CID_MAX - 3);
}


static quic_lb_learned_entry_t *
find(quic_lb_learned_t *l, unsigned n)
{
    return quic_lb_learned_find(l, id(n), id_len(n), 0, TIMEOUT);
}


static quic_lb_learned_entry_t *
insert(quic_lb_learned_t *l, unsigned n, size_t now)
{
    uint8_t  address[16] = { 0 };

    address[15] = (uint8_t) n;

    return quic_lb_learned_insert(l, id(n), id_len(n), address,
                                  sizeof(address), now);
}


static void
confirm(quic_lb_learned_t *l, unsigned n, size_t now)
{
    quic_lb_learned_confirm(l, find(l, n), now);
}


static void
model(quic_lb_learned_t *l, model_t *m)
{
    unsigned                  i;
    quic_lb_learned_entry_t  *entry;

    memset(m, 0, sizeof(model_t));

    /* a rebuild is to change nothing */

    if (l->dirty) {
        for (i = 0; i < l->limit; i++) {
            m->state[l->entries[i].id[3]] = l->entries[i].state;
            m->used[l->entries[i].id[3]] = l->entries[i].used;
        }

        return;
    }

    for (i = 0; i < IDS; i++) {
        entry = find(l, i);

        if (entry == NULL) {
            continue;
        }

        m->state[i] = entry->state;
        m->used[i] = entry->used;

        if (entry->address_len != 16 || entry->address[15] != i) {
            m->state[i] = 0xff;
        }
    }
}


/* each entry is in one list, the whole ones also in the table; counts agree */

static int
sound(const quic_lb_learned_t *l)
{
    int                             state;
    size_t                          i, n, all, lengths[QUIC_LB_CID_MAX + 1];
    quic_lb_table_node_t           *node;
    const quic_lb_learned_link_t   *link;
    const quic_lb_learned_entry_t  *entry;

    memset(lengths, 0, sizeof(lengths));

    if (l->dirty) {
        return 0;
    }

    for (all = 0, state = 0; state < QUIC_LB_LEARNED_STATES; state++) {
        n = 0;

        for (link = l->lists[state].next;
             link != &l->lists[state];
             link = link->next)
        {
            entry = (const quic_lb_learned_entry_t *)
                    ((const char *) link
                     - offsetof(quic_lb_learned_entry_t, link));

            if (link->next->prev != link || entry->state != state
                || n++ > l->limit)
            {
                return 0;
            }
        }

        if (n != l->counts[state]) {
            return 0;
        }

        all += n;
    }

    n = 0;

    for (i = 0; i < quic_lb_table_buckets(l->limit); i++) {
        for (node = l->table.buckets[i]; node != NULL; node = node->next) {
            entry = (quic_lb_learned_entry_t *) node;
            lengths[entry->len]++;

            if (entry->state == QUIC_LB_LEARNED_FREE || n++ > l->limit) {
                return 0;
            }
        }
    }

    return all == l->limit
           && n == l->table.count
           && n == l->limit - l->counts[QUIC_LB_LEARNED_FREE]
           && l->counts[QUIC_LB_LEARNED_CONFIRMED] <= l->confirmed_limit
           && memcmp(lengths, l->lengths, sizeof(lengths)) == 0;
}
