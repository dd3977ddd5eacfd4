
/*
 * QUIC packets, right and wrong, for a stateful fuzz of the datapath.  What
 * has to be sealed is sealed by src/core.  All randomness is that of
 * random_seed(): a seed gives the same packets again.
 */


#ifndef _TRAFFIC_PACKETS_H_INCLUDED_
#define _TRAFFIC_PACKETS_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "quic_lb_cid.h"
#include "quic_lb_error.h"
#include "quic_lb_initial.h"
#include "quic_lb_retry.h"


#define MTU          1500
#define HELLO_MAX    4096
#define TOKEN_MAX    1200
#define CID_LONGEST  255

/* the "quic_lb" blocks of the test */
#define CONFIGS      3


typedef struct {
    size_t              len;
    uint8_t             data[CID_LONGEST];
} cid_t;


/* a client's connection */

typedef struct {
    uint32_t            version;
    cid_t               dcid;     /* of the packets that it sends */
    cid_t               keys;     /* that the keys of Initials follow from */
    cid_t               scid;
    size_t              token_len;
    uint8_t             token[TOKEN_MAX];
    size_t              hello_len;
    size_t              hello_sent;
    uint64_t            number;
    uint8_t             hello[HELLO_MAX];
} connection_t;


void random_seed(uint64_t seed);

/* from 0 to |n| - 1 */
uint32_t random_below(uint32_t n);
void random_octets(uint8_t *p, size_t n);

/* true once in |n| times */
int one_in(uint32_t n);


/* sets up the ciphers; |secret| is the "quic_host_key" */
void packets_init(const uint8_t *lb_key, const uint8_t *secret,
    size_t secret_len);

void cid_random(cid_t *cid, size_t len);

/* one that names |server|, by one of the configurations */
void cid_of_server(cid_t *cid, unsigned server);

void connection_begin(connection_t *c, const char *name, size_t hello);

/*
 * All of these write a packet to |out|, which has room for MTU octets, and
 * return its length.
 */

size_t packet_initial(connection_t *c, uint8_t *out);
size_t packet_long(uint8_t *out, unsigned type, uint32_t version,
    const cid_t *dcid, const cid_t *scid, size_t payload);
size_t packet_short(uint8_t *out, const cid_t *dcid, size_t payload);
size_t packet_retry(uint8_t *out, uint32_t version, const cid_t *dcid,
    const cid_t *scid);
size_t packet_negotiation(uint8_t *out, const cid_t *dcid, const cid_t *scid);

/* what a balancer with the key would give to |address|, now or long ago */
size_t token_make(uint8_t *out, const uint8_t *address, size_t len,
    const cid_t *dcid, const cid_t *scid);


#endif /* _TRAFFIC_PACKETS_H_INCLUDED_ */
