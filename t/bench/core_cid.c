
/*
 * Time of the functions of src/core that may run for a packet: "core_cid
 * ROUNDS" prints lines of round, name and ns for one call, separated by tabs.
 * The inputs change from call to call; the results are used, so that no call
 * is optimized away.
 */


#define _GNU_SOURCE

#include "quic_lb_cid.h"
#include "quic_lb_error.h"
#include "quic_lb_hash.h"
#include "quic_lb_packet.h"
#include "quic_lb_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>


#define CALLS     1000000
#define INPUTS    1024               /* a power of two */
#define ADDRESS   6                  /* octets, IPv4 and a port */
#define CID       (1 + QUIC_LB_PLAINTEXT_MAX)


typedef struct {
    const char           *name;
    size_t                server_id_len;
    size_t                nonce_len;
    int                   encrypted;
} cid_case_t;


typedef struct {
    quic_lb_table_node_t  node;
    uint8_t               address[ADDRESS];
} entry_t;


static void cids(unsigned round, const cid_case_t *c);
static void packets(unsigned round);
static void table(unsigned round, uint32_t n);
static uint64_t lookup(quic_lb_table_t *t, const quic_lb_hash_key_t *key,
    const uint8_t *address);
static void address(uint8_t *p, uint32_t n);
static void timer(void);
static void report(unsigned round, const char *what, const char *name);
static void check(int ok);


static const cid_case_t  cases[] = {
    { "plaintext, 3 + 4 octets", 3, 4, 0 },
    { "single-pass, 8 + 8 octets", 8, 8, 1 },
    { "four-pass, 3 + 4 octets", 3, 4, 1 },
    { "four-pass, 9 + 9 octets", 9, 9, 1 },
    { "four-pass, 8 + 4 octets", 8, 4, 1 }
};


static struct timespec    began;
static volatile uint64_t  sink;      /* of results */


int
main(int argc, char **argv)
{
    size_t    i;
    unsigned  round, rounds;

    rounds = argc > 1 ? (unsigned) atoi(argv[1]) : 1;

    for (round = 0; round < rounds; round++) {

        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            cids(round, &cases[i]);
        }

        packets(round);
        table(round, 1);
        table(round, 2000);
        table(round, 100000);
    }

    return 0;
}


static void
cids(unsigned round, const cid_case_t *c)
{
    uint8_t             id[QUIC_LB_PLAINTEXT_MAX], nonce[CID];
    uint8_t             in[INPUTS][CID];
    uint64_t            sum;
    uint32_t            i;
    quic_lb_cid_conf_t  conf;

    memset(id, 0x31, sizeof(id));
    memset(nonce, 0, sizeof(nonce));
    sum = 0;

    check(quic_lb_cid_init(&conf, 0, c->server_id_len, c->nonce_len,
                           c->encrypted ? (const uint8_t *) "0123456789abcdef"
                                        : NULL, 0)
          == QUIC_LB_OK);

    timer();

    for (i = 0; i < CALLS; i++) {
        memcpy(nonce, &i, sizeof(i));
        sum += (uint64_t) quic_lb_cid_encode(&conf, in[i % INPUTS], 0, id,
                                             nonce);
    }

    report(round, "encode", c->name);

    timer();

    for (i = 0; i < CALLS; i++) {
        sum += (uint64_t) quic_lb_cid_decode(&conf, in[i % INPUTS],
                                             QUIC_LB_CID_MAX, 0, id, NULL);
        sum += id[0] ^ 0x31u;
    }

    report(round, "decode", c->name);
    check(sum == 0);

    quic_lb_cid_cleanup(&conf);
}


static void
packets(unsigned round)
{
    uint8_t           in[INPUTS][64];
    uint64_t          sum;
    uint32_t          i, kind;
    quic_lb_packet_t  pkt;

    /* an Initial of version 1: DCID of 8, SCID of 8, no token, 32 octets */

    static const uint8_t  initial[] = { 0xc3, 0, 0, 0, 1, 8, 0, 1, 2, 3, 4, 5,
                                        6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 0,
                                        32 };

    for (kind = 0; kind < 2; kind++) {
        memset(in, 0x41, sizeof(in));

        for (i = 0; i < INPUTS; i++) {
            if (kind == 1) {
                memcpy(in[i], initial, sizeof(initial));
            }

            memcpy(in[i] + (kind ? 6 : 1), &i, sizeof(i));
        }

        sum = 0;
        timer();

        for (i = 0; i < CALLS; i++) {
            check(quic_lb_packet_parse(&pkt, in[i % INPUTS], sizeof(in[0]))
                  == QUIC_LB_OK);
            sum += pkt.dcid[0];
        }

        report(round, "parse", kind ? "Initial" : "short header");
        sink = sum;
    }
}


/* as the flow table is used: hash of an address, then the node */

static void
table(unsigned round, uint32_t n)
{
    char                   name[64];
    entry_t               *entries;
    uint8_t                key_of[ADDRESS];
    uint64_t               sum;
    uint32_t               i;
    quic_lb_table_t        t;
    quic_lb_hash_key_t     key;
    quic_lb_table_node_t **buckets;

    key.k0 = 0x0706050403020100;
    key.k1 = 0x0f0e0d0c0b0a0908;

    entries = calloc(n, sizeof(entry_t));
    buckets = calloc(quic_lb_table_buckets(n), sizeof(*buckets));
    check(entries != NULL && buckets != NULL);

    quic_lb_table_init(&t, buckets, n);

    for (i = 0; i < n; i++) {
        address(entries[i].address, i);
        check(quic_lb_table_insert(&t, &entries[i].node,
                                   quic_lb_hash(&key, entries[i].address,
                                                ADDRESS))
              == QUIC_LB_OK);
    }

    sum = 0;
    timer();

    for (i = 0; i < CALLS; i++) {
        address(key_of, (uint32_t) ((uint64_t) i * 2654435761u % n));
        sum += lookup(&t, &key, key_of);
    }

    snprintf(name, sizeof(name), "of %u", n);
    report(round, "hash and lookup", name);
    check(sum == CALLS);

    free(entries);
    free(buckets);
}


static uint64_t
lookup(quic_lb_table_t *t, const quic_lb_hash_key_t *key,
    const uint8_t *address)
{
    entry_t               *entry;
    quic_lb_table_node_t  *node;

    for (node = quic_lb_table_first(t, quic_lb_hash(key, address, ADDRESS));
         node;
         node = quic_lb_table_next(node))
    {
        entry = (entry_t *) node;

        if (memcmp(entry->address, address, ADDRESS) == 0) {
            return 1;
        }
    }

    return 0;
}


static void
address(uint8_t *p, uint32_t n)
{
    n *= 2654435761u;                /* one to one */

    memcpy(p, &n, sizeof(n));
    memset(p + sizeof(n), 0, ADDRESS - sizeof(n));
}


static void
timer(void)
{
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
}


static void
report(unsigned round, const char *what, const char *name)
{
    double           ns;
    struct timespec  now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);

    ns = (double) (now.tv_sec - began.tv_sec) * 1e9
         + (double) (now.tv_nsec - began.tv_nsec);

    printf("%u\t%s: %s\t%.2f\tns\n", round, what, name, ns / CALLS);
}


static void
check(int ok)
{
    if (!ok) {
        fprintf(stderr, "core_cid: a call failed\n");
        exit(1);
    }
}
