
/*
 * What the connection IDs of a server begin with.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_prefix.h"
#include "tap.h"


#define ENTRIES  16
#define TIMEOUT  1000


static void test_known(void);
static void test_length(void);
static void test_shared(void);
static void test_timeout(void);
static void test_random(void);
static void test_killed(void);

static quic_lb_learned_t *make(void);
static void issue(quic_lb_learned_t *l, const char *id, char server,
    size_t now);
static int known(quic_lb_learned_t *l, const char *id, char server,
    size_t now);


int
main(void)
{
    test_known();
    test_length();
    test_shared();
    test_timeout();
    test_random();
    test_killed();

    return tap_done();
}


static void
test_known(void)
{
    quic_lb_learned_t  *l;

    l = make();

    issue(l, "prefix-1aaaa", 'A', 0);
    issue(l, "prefix-1bbbb", 'A', 0);
    ok(!known(l, "prefix-1zzzz", 'A', 0), "two IDs are not enough");

    issue(l, "prefix-1cccc", 'A', 0);
    ok(known(l, "prefix-1zzzz", 'A', 0), "three are");
    ok(!known(l, "prefix-2zzzz", 'A', 0), "another prefix is not known");

    issue(l, "prefix-1dddd", 'A', 0);
    ok(known(l, "prefix-1zzzz", 'A', 0), "nor are four too many");
}


static void
test_length(void)
{
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < 4; i++) {
        issue(l, "prefix-3", 'A', 0);
    }

    ok(!known(l, "prefix-3", 'A', 0) && !known(l, "prefix-3zzzz", 'A', 0),
       "an ID that is no longer than a prefix has none");

    issue(l, "prefix-1aaaa", 'A', 0);
    issue(l, "prefix-1bbbb", 'A', 0);
    issue(l, "prefix-1cccc", 'A', 0);

    ok(quic_lb_prefix_find(l, (const uint8_t *) "prefix-1zzzzzz", 14, 0,
                           TIMEOUT)->id_len == 12,
       "the length of the IDs is known");
    ok(!known(l, "prefix-1zzz", 'A', 0), "there is less than an ID");
    ok(!known(l, "prefix-1", 'A', 0), "or only the prefix");
}


static void
test_shared(void)
{
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-1aaaa", 'A', 0);
    }

    issue(l, "prefix-1bbbb", 'B', 0);
    ok(!known(l, "prefix-1zzzz", 'A', 0), "two servers have it");

    for (i = 0; i < 300; i++) {
        issue(l, "prefix-1cccc", i % 2 ? 'A' : 'B', 0);
    }

    ok(!known(l, "prefix-1zzzz", 'A', 0), "and so it stays");

    issue(l, "prefix-2aaaa", 'A', 0);
    issue(l, "prefix-2bbbb", 'B', 0);

    for (i = 0; i < 5; i++) {
        issue(l, "prefix-2cccc", 'A', 0);
    }

    ok(!known(l, "prefix-2zzzz", 'A', 0), "from the second ID on");
}


static void
test_timeout(void)
{
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-1aaaa", 'A', 0);
    }

    issue(l, "prefix-1bbbb", 'A', 500);
    ok(known(l, "prefix-1zzzz", 'A', 1400), "a new ID keeps it");
    ok(!known(l, "prefix-1zzzz", 'A', 1500), "it is forgotten");

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-1aaaa", 'B', 1500);
    }

    ok(known(l, "prefix-1zzzz", 'B', 1500), "and free for another server");
}


/* a server with random IDs does not push out what is known */

static void
test_random(void)
{
    char                id[13];
    unsigned            i;
    quic_lb_learned_t  *l;

    l = make();

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-1aaaa", 'A', 0);
    }

    issue(l, "prefix-2aaaa", 'A', 0);
    issue(l, "prefix-2bbbb", 'B', 0);

    for (i = 0; i < 100; i++) {
        snprintf(id, sizeof(id), "%04ux%07u", i, i);
        issue(l, id, 'R', 1);
    }

    ok(known(l, "prefix-1zzzz", 'A', 1), "a known one stays");

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-2cccc", 'A', 1);
    }

    ok(!known(l, "prefix-2zzzz", 'A', 1), "so does one of two servers");
}


/* an entry that was made, and not yet counted, of which nothing is known */

static void
test_killed(void)
{
    unsigned                  i;
    quic_lb_learned_t        *l;
    quic_lb_learned_entry_t  *entry;

    l = make();

    for (i = 0; i < 3; i++) {
        issue(l, "prefix-1aaaa", 'A', 0);
    }

    entry = quic_lb_prefix_find(l, (const uint8_t *) "prefix-1aaaa", 12, 0,
                                TIMEOUT);
    quic_lb_learned_remove(l, entry);

    for (i = 0; i < ENTRIES; i++) {
        entry = quic_lb_learned_insert(l, (const uint8_t *) "prefix-1", 8,
                                       "A", 1, 0);

        if (entry->count != 0) {
            break;
        }

        quic_lb_learned_remove(l, entry);
    }

    ok(i == ENTRIES, "a new entry counts from 0");
}


static quic_lb_learned_t *
make(void)
{
    static uint8_t                   memory[4096];
    static quic_lb_learned_t         learned;
    static const quic_lb_hash_key_t  key = { 5, 6 };

    memset(memory, 0, sizeof(memory));
    memset(&learned, 0, sizeof(learned));

    if (quic_lb_learned_size(ENTRIES) > sizeof(memory)) {
        abort();
    }

    quic_lb_learned_init(&learned, memory, ENTRIES, &key);

    return &learned;
}


static void
issue(quic_lb_learned_t *l, const char *id, char server, size_t now)
{
    quic_lb_prefix_issued(l, (const uint8_t *) id, strlen(id), &server, 1, now,
                          TIMEOUT);
}


static int
known(quic_lb_learned_t *l, const char *id, char server, size_t now)
{
    quic_lb_learned_entry_t  *entry;

    entry = quic_lb_prefix_find(l, (const uint8_t *) id, strlen(id), now,
                                TIMEOUT);

    return entry != NULL && entry->address[0] == (uint8_t) server;
}
