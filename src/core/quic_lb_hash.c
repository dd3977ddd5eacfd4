
/*
 * SipHash-2-4: "SipHash: a fast short-input PRF" (INDOCRYPT 2012), section 2.
 */


#include "quic_lb_hash.h"


#define quic_lb_hash_rotl(x, b)  ((x) << (b) | (x) >> (64 - (b)))


typedef struct {
    uint64_t  v0;
    uint64_t  v1;
    uint64_t  v2;
    uint64_t  v3;
} quic_lb_hash_state_t;


static inline uint64_t quic_lb_hash_load(const uint8_t *p);
static inline void quic_lb_hash_compress(quic_lb_hash_state_t *s, uint64_t m);
static inline void quic_lb_hash_round(quic_lb_hash_state_t *s);


uint64_t
quic_lb_hash(const quic_lb_hash_key_t *key, const void *data, size_t len)
{
    size_t                 i, left;
    uint64_t               last;
    const uint8_t         *p;
    quic_lb_hash_state_t   s;

    s.v0 = key->k0 ^ 0x736f6d6570736575;
    s.v1 = key->k1 ^ 0x646f72616e646f6d;
    s.v2 = key->k0 ^ 0x6c7967656e657261;
    s.v3 = key->k1 ^ 0x7465646279746573;

    p = data;

    for (left = len; left >= 8; left -= 8) {
        quic_lb_hash_compress(&s, quic_lb_hash_load(p));
        p += 8;
    }

    last = (uint64_t) (len & 0xff) << 56;

    for (i = 0; i < left; i++) {
        last |= (uint64_t) p[i] << (8 * i);
    }

    quic_lb_hash_compress(&s, last);

    s.v2 ^= 0xff;

    quic_lb_hash_round(&s);
    quic_lb_hash_round(&s);
    quic_lb_hash_round(&s);
    quic_lb_hash_round(&s);

    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}


/* little-endian, whatever the machine; compilers make one load of it */

static inline uint64_t
quic_lb_hash_load(const uint8_t *p)
{
    return (uint64_t) p[0] | (uint64_t) p[1] << 8
           | (uint64_t) p[2] << 16 | (uint64_t) p[3] << 24
           | (uint64_t) p[4] << 32 | (uint64_t) p[5] << 40
           | (uint64_t) p[6] << 48 | (uint64_t) p[7] << 56;
}


static inline void
quic_lb_hash_compress(quic_lb_hash_state_t *s, uint64_t m)
{
    s->v3 ^= m;

    quic_lb_hash_round(s);
    quic_lb_hash_round(s);

    s->v0 ^= m;
}


static inline void
quic_lb_hash_round(quic_lb_hash_state_t *s)
{
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = quic_lb_hash_rotl(s->v1, 13);
    s->v3 = quic_lb_hash_rotl(s->v3, 16);
    s->v1 ^= s->v0;
    s->v3 ^= s->v2;
    s->v0 = quic_lb_hash_rotl(s->v0, 32);

    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = quic_lb_hash_rotl(s->v1, 17);
    s->v3 = quic_lb_hash_rotl(s->v3, 21);
    s->v1 ^= s->v2;
    s->v3 ^= s->v0;
    s->v2 = quic_lb_hash_rotl(s->v2, 32);
}
