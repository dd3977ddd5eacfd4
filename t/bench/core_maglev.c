
/*
 * Time of Maglev tables: "core_maglev ROUNDS" prints lines of round, what was
 * done, and ms or, for a lookup, ns, separated by tabs.
 */


#define _GNU_SOURCE

#include "quic_lb_error.h"
#include "quic_lb_maglev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>


#define LOOKUPS    1000000
#define PEERS_MAX  10000
#define NAME       32


static void build(unsigned round, uint32_t size, size_t npeers,
    uint32_t heaviest);
static void lookup(unsigned round, uint32_t size);
static double seconds(void);


static char                   names[PEERS_MAX][NAME];
static quic_lb_maglev_peer_t  peers[PEERS_MAX];
static uint32_t              *table;
static volatile uint64_t      sink;      /* of results */


int
main(int argc, char **argv)
{
    size_t                  i;
    unsigned                round, rounds;
    static const size_t     counts[] = { 2, 10, 100, 1000, 10000 };
    static const uint32_t   big = 655373;

    rounds = argc > 1 ? (unsigned) atoi(argv[1]) : 1;
    table = malloc(big * sizeof(uint32_t));

    if (table == NULL) {
        return 1;
    }

    for (round = 0; round < rounds; round++) {

        for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            build(round, QUIC_LB_MAGLEV_SIZE, counts[i], 1);
        }

        build(round, QUIC_LB_MAGLEV_SIZE, 1000, 10);
        build(round, big, 1000, 1);

        lookup(round, QUIC_LB_MAGLEV_SIZE);
        lookup(round, big);
    }

    free(table);

    return 0;
}


static void
build(unsigned round, uint32_t size, size_t npeers, uint32_t heaviest)
{
    size_t  i;
    double  began;

    for (i = 0; i < npeers; i++) {
        peers[i].name_len = (size_t) snprintf(names[i], NAME,
                                              "192.0.%zu.%zu:443",
                                              i / 250, i % 250);
        peers[i].name = (const uint8_t *) names[i];
        peers[i].weight = 1 + (uint32_t) i % heaviest;
    }

    began = seconds();

    if (quic_lb_maglev_build(table, size, peers, npeers) != QUIC_LB_OK) {
        fprintf(stderr, "core_maglev: no table\n");
        exit(1);
    }

    printf("%u\tbuild: %u slots, %zu servers, weights 1 to %u\t%.4f\tms\n",
           round, size, npeers, heaviest, (seconds() - began) * 1e3);
}


static void
lookup(unsigned round, uint32_t size)
{
    double    began;
    uint64_t  hash, sum;
    uint32_t  i;

    sum = 0;
    hash = 1;
    began = seconds();

    for (i = 0; i < LOOKUPS; i++) {
        hash = hash * 6364136223846793005 + 1442695040888963407;
        sum += quic_lb_maglev_lookup(table, size, hash);
    }

    printf("%u\tlookup: %u slots\t%.2f\tns\n", round, size,
           (seconds() - began) * 1e9 / LOOKUPS);
    sink = sum;
}


static double
seconds(void)
{
    struct timespec  now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);

    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}
