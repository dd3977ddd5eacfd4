
/*
 * SipHash-2-4 against reference vectors.
 */


#include <string.h>

#include "quic_lb_hash.h"
#include "tap.h"


static void test_vectors(void);
static void test_alignment(void);
static void test_keys(void);


int
main(void)
{
    test_vectors();
    test_alignment();
    test_keys();

    return tap_done();
}


/*
 * Key 00..0f, message 00, 01, 02, ...; that of 15 octets is in the paper's
 * appendix A, the others are from the authors' reference implementation
 * (vectors.h), up to 16 octets; 33 octets: computed with OpenSSL's SIPHASH.
 */

static void
test_vectors(void)
{
    size_t    i;
    uint8_t   data[33];
    uint64_t  hash;

    const quic_lb_hash_key_t  key = { 0x0706050403020100,
                                      0x0f0e0d0c0b0a0908 };

    static const struct {
        size_t    len;
        uint64_t  hash;
    } cases[] = {
        { 0, 0x726fdb47dd0e0e31 },
        { 1, 0x74f839c593dc67fd },
        { 2, 0x0d6c8009d9a94f5a },
        { 3, 0x85676696d7fb7e2d },
        { 7, 0xab0200f58b01d137 },
        { 8, 0x93f5f5799a932462 },
        { 15, 0xa129ca6149be45e5 },
        { 16, 0x3f2acc7f57c29bdb },
        { 33, 0xa7f32346f95978e3 }
    };

    for (i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t) i;
    }

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hash = quic_lb_hash(&key, data, cases[i].len);
        ok(hash == cases[i].hash, "vector of %zu octets: %016" PRIx64,
           cases[i].len, hash);
    }

    ok(quic_lb_hash(&key, NULL, 0) == cases[0].hash, "no octets at NULL");
}


static void
test_alignment(void)
{
    size_t    i;
    uint8_t   data[40];
    uint64_t  hash;

    const quic_lb_hash_key_t  key = { 1, 2 };

    hash = quic_lb_hash(&key, "twenty-four octets, all.", 24);

    for (i = 0; i < 16; i++) {
        memcpy(data + i, "twenty-four octets, all.", 24);
        ok(quic_lb_hash(&key, data + i, 24) == hash, "at offset %zu", i);
    }
}


static void
test_keys(void)
{
    const quic_lb_hash_key_t  key0 = { 0, 0 };
    const quic_lb_hash_key_t  key1 = { 1, 0 };
    const quic_lb_hash_key_t  key2 = { 0, 1 };

    ok(quic_lb_hash(&key0, "a", 1) != quic_lb_hash(&key1, "a", 1)
       && quic_lb_hash(&key0, "a", 1) != quic_lb_hash(&key2, "a", 1)
       && quic_lb_hash(&key1, "a", 1) != quic_lb_hash(&key2, "a", 1),
       "both halves of the key count");
}
