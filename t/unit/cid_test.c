
/*
 * QUIC-LB connection IDs: the draft's vectors, round trips over all lengths,
 * what must be refused, and failures of the cryptographic library.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_cid.h"
#include "quic_lb_error.h"
#include "tap.h"

#include <openssl/evp.h>


#define ROUND_TRIPS  10000

#define SENTINEL     0xa5


typedef struct {
    unsigned     config_id;
    const char  *key;
    const char  *server_id;
    const char  *nonce;
    const char  *cid;
} vector_t;


static void test_vector(const vector_t *v);
static void test_truncated(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    const char *name);
static void test_init_range(void);
static void test_all_lengths(void);
static void test_round_trips(void);
static unsigned round_trip(size_t server_id_len, size_t nonce_len);
static void test_passes(void);
static void test_config_id(void);
static void test_first_octet(void);
static void test_described_exact(void);
static void test_described_short(void);
static void test_appended(void);
static void test_init_failures(void);
static void test_pass_failures(void);
static void test_cleanup(void);
static void test_copy(void);

static size_t unhex(uint8_t *p, const char *hex);
static int decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    size_t len, int exact, uint8_t *server_id, uint8_t *nonce);
static int refused(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    size_t len, int exact, int error);

EVP_CIPHER_CTX *__real_EVP_CIPHER_CTX_new(void);
EVP_CIPHER_CTX *__wrap_EVP_CIPHER_CTX_new(void);
int __real_EVP_CipherInit_ex(EVP_CIPHER_CTX *ctx, const EVP_CIPHER *cipher,
    ENGINE *engine, const unsigned char *key, const unsigned char *iv,
    int enc);
int __wrap_EVP_CipherInit_ex(EVP_CIPHER_CTX *ctx, const EVP_CIPHER *cipher,
    ENGINE *engine, const unsigned char *key, const unsigned char *iv,
    int enc);
int __real_EVP_CipherUpdate(EVP_CIPHER_CTX *ctx, unsigned char *out,
    int *outl, const unsigned char *in, int inl);
int __wrap_EVP_CipherUpdate(EVP_CIPHER_CTX *ctx, unsigned char *out,
    int *outl, const unsigned char *in, int inl);


/*
 * draft-ietf-quic-load-balancers, "Load Balancer Test Vectors" and
 * "Encryption Example".  Length self-description is on.
 *
 * Errata: the draft prints the fifth with first octet 0x12, though its
 * configuration is 3: 0x72.  Its second unencrypted one, of configuration 1,
 * lacks a digit of the nonce and is left out.
 */

#define KEY  "8f95f09245765f80256934e50c66207f"

static const vector_t  vectors[] = {
    { 0, NULL, "c4605e", "4504cc4f", "07c4605e4504cc4f" },
    { 0, KEY, "ed793a", "ee080dbf", "0720b1d07b359d3c" },
    { 1, KEY, "ed793a51d49b8f5fab65", "ee080dbf48",
      "2fcc381bc74cb4fbad2823a3d1f8fed2" },
    { 2, KEY, "ed793a51d49b8f5f", "ee080dbf48c0d1e5",
      "504dd2d05a7b0de9b2b9907afb5ecf8cc3" },
    { 3, KEY, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d",
      "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc" },
    { 0, "fdf726a9893ec05c0632d3956680baf0", "31441a", "9c69c275",
      "0767947d29be054a" }
};

static const uint8_t  test_key[QUIC_LB_KEY_LEN] = "0123456789abcdef";

/* of the wrapped functions: calls so far, and the one that fails, from 1 */

static unsigned  calls, fail_at;

/* fails by a wrong length rather than by its result */

static int  fail_length;


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        test_vector(&vectors[i]);
    }

    test_init_range();
    test_all_lengths();
    test_round_trips();
    test_passes();
    test_config_id();
    test_first_octet();
    test_described_exact();
    test_described_short();
    test_appended();
    test_init_failures();
    test_pass_failures();
    test_cleanup();
    test_copy();

    return tap_done();
}


static void
test_vector(const vector_t *v)
{
    size_t              sid_len, nonce_len, cid_len;
    uint8_t             key[16], sid[16], nonce[20], cid[20];
    uint8_t             out[20], out_sid[16], out_nonce[20];
    quic_lb_cid_conf_t  conf;

    sid_len = unhex(sid, v->server_id);
    nonce_len = unhex(nonce, v->nonce);
    cid_len = unhex(cid, v->cid);

    if (v->key != NULL) {
        (void) unhex(key, v->key);
    }

    ok(quic_lb_cid_init(&conf, v->config_id, sid_len, nonce_len,
                        v->key ? key : NULL, 1)
       == QUIC_LB_OK
       && quic_lb_cid_len(&conf) == cid_len,
       "%s: init", v->cid);

    ok(quic_lb_cid_encode(&conf, out, 0xff, sid, nonce) == QUIC_LB_OK
       && memcmp(out, cid, cid_len) == 0,
       "%s: encode", v->cid);

    ok(decode(&conf, cid, cid_len, 1, out_sid, out_nonce) == QUIC_LB_OK
       && memcmp(out_sid, sid, sid_len) == 0
       && memcmp(out_nonce, nonce, nonce_len) == 0,
       "%s: decode", v->cid);

    ok(decode(&conf, cid, cid_len, 0, out_sid, NULL) == QUIC_LB_OK
       && memcmp(out_sid, sid, sid_len) == 0,
       "%s: decode without the nonce, of a short header", v->cid);

    test_truncated(&conf, cid, v->cid);

    quic_lb_cid_cleanup(&conf);
}


static void
test_truncated(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    const char *name)
{
    int     failed;
    size_t  len;

    failed = 0;

    for (len = 0; len < quic_lb_cid_len(conf); len++) {
        failed += !refused(conf, cid, len, 0, QUIC_LB_ERR_SHORT);
        failed += !refused(conf, cid, len, 1, QUIC_LB_ERR_SHORT);
    }

    ok(!failed, "%s: each truncation is refused", name);
}


static void
test_init_range(void)
{
    size_t              i;
    quic_lb_cid_conf_t  conf, zero;

    static const struct {
        const char  *name;
        unsigned     config_id;
        size_t       server_id_len;
        size_t       nonce_len;
        int          rc;
    } cases[] = {
        { "the shortest", 0, 1, 4, QUIC_LB_OK },
        { "the longest server ID", 6, 15, 4, QUIC_LB_OK },
        { "the longest nonce", 6, 1, 18, QUIC_LB_OK },
        { "config ID 7", 7, 3, 4, QUIC_LB_ERR_RANGE },
        { "config ID 8", 8, 3, 4, QUIC_LB_ERR_RANGE },
        { "config ID 256", 256, 3, 4, QUIC_LB_ERR_RANGE },
        { "no server ID", 0, 0, 4, QUIC_LB_ERR_RANGE },
        { "server ID of 16", 0, 16, 4, QUIC_LB_ERR_RANGE },
        { "server ID of 257", 0, 257, 4, QUIC_LB_ERR_RANGE },
        { "server ID of SIZE_MAX", 0, SIZE_MAX, 18, QUIC_LB_ERR_RANGE },
        { "nonce of 3", 0, 3, 3, QUIC_LB_ERR_RANGE },
        { "no nonce", 0, 15, 0, QUIC_LB_ERR_RANGE },
        { "nonce of 19", 0, 1, 19, QUIC_LB_ERR_RANGE },
        { "nonce of SIZE_MAX", 0, 15, SIZE_MAX, QUIC_LB_ERR_RANGE },
        { "sum of 20", 0, 15, 5, QUIC_LB_ERR_RANGE },
        { "sum of 20 by the nonce", 0, 2, 18, QUIC_LB_ERR_RANGE }
    };

    memset(&zero, 0, sizeof(zero));

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&conf, SENTINEL, sizeof(conf));

        ok(quic_lb_cid_init(&conf, cases[i].config_id, cases[i].server_id_len,
                            cases[i].nonce_len, test_key, 0)
           == cases[i].rc
           && (cases[i].rc == QUIC_LB_OK
               || memcmp(&conf, &zero, sizeof(conf)) == 0),
           "init: %s", cases[i].name);

        quic_lb_cid_cleanup(&conf);
    }
}


/* neither an encoder nor a decoder may leave out a pair */

static void
test_all_lengths(void)
{
    size_t    s, n;
    unsigned  pairs, failed;

    pairs = 0;
    failed = 0;

    for (s = 1; s <= 15; s++) {
        for (n = 4; n <= 18 && s + n <= 19; n++) {
            failed += round_trip(s, n);
            pairs++;
        }
    }

    ok(pairs == 120 && failed == 0, "round trips: all %u pairs of lengths",
       pairs);
}


static void
test_round_trips(void)
{
    size_t    s, n;
    unsigned  i, failed;

    failed = 0;

    for (i = 0; i < ROUND_TRIPS; i++) {
        s = 1 + tap_random() % 15;
        n = 4 + tap_random() % (16 - s);

        failed += round_trip(s, n);
    }

    ok(failed == 0, "round trips: %u random ones", i);
}


/* random octets, with and without key and self-description; 0 if all agree */

static unsigned
round_trip(size_t server_id_len, size_t nonce_len)
{
    int                 described;
    size_t              len;
    uint8_t             key[16], sid[15], nonce[18], cid[20];
    uint8_t             out_sid[15], out_nonce[18], random;
    unsigned            config_id, plaintext, failed;
    quic_lb_cid_conf_t  conf;

    failed = 0;

    tap_random_bytes(key, sizeof(key));
    tap_random_bytes(sid, sizeof(sid));
    tap_random_bytes(nonce, sizeof(nonce));
    tap_random_bytes(&random, 1);

    config_id = tap_random() % 7;
    plaintext = (tap_random() % 8 == 0);

    for (described = 0; described <= 1; described++) {

        if (quic_lb_cid_init(&conf, config_id, server_id_len, nonce_len,
                             plaintext ? NULL : key, described)
            != QUIC_LB_OK)
        {
            return 1;
        }

        len = quic_lb_cid_len(&conf);

        failed += quic_lb_cid_encode(&conf, cid, random, sid, nonce)
                  != QUIC_LB_OK;
        failed += quic_lb_cid_config_id(cid[0]) != (int) config_id;
        failed += (cid[0] & 0x1f)
                  != (described ? (int) len - 1 : (random & 0x1f));

        if (!plaintext) {
            failed += memcmp(cid + 1, sid, server_id_len) == 0
                      && memcmp(cid + 1 + server_id_len, nonce, nonce_len)
                         == 0;
        }

        failed += decode(&conf, cid, len, 1, out_sid, out_nonce)
                  != QUIC_LB_OK;
        failed += memcmp(out_sid, sid, server_id_len) != 0;
        failed += memcmp(out_nonce, nonce, nonce_len) != 0;

        memset(out_sid, 0, sizeof(out_sid));

        failed += decode(&conf, cid, len, 0, out_sid, NULL) != QUIC_LB_OK;
        failed += memcmp(out_sid, sid, server_id_len) != 0;

        failed += !refused(&conf, cid, len - 1, 0, QUIC_LB_ERR_SHORT);

        quic_lb_cid_cleanup(&conf);
    }

    return failed ? 1 : 0;
}


static void
test_passes(void)
{
    size_t              i;
    uint8_t             cid[20], sid[15], nonce[18];
    quic_lb_cid_conf_t  conf;

    static const struct {
        const char     *name;
        size_t          server_id_len;
        size_t          nonce_len;
        const uint8_t  *key;
        unsigned        encode;
        unsigned        decode;
        unsigned        decode_nonce;
    } cases[] = {
        { "nonce longer", 3, 4, test_key, 4, 3, 4 },
        { "nonce as long", 7, 7, test_key, 4, 3, 4 },
        { "nonce shorter", 5, 4, test_key, 4, 4, 4 },
        { "single pass", 8, 8, test_key, 1, 1, 1 },
        { "plaintext", 3, 4, NULL, 0, 0, 0 }
    };

    memset(sid, 1, sizeof(sid));
    memset(nonce, 2, sizeof(nonce));

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        (void) quic_lb_cid_init(&conf, 0, cases[i].server_id_len,
                                cases[i].nonce_len, cases[i].key, 0);
        calls = 0;
        (void) quic_lb_cid_encode(&conf, cid, 0, sid, nonce);
        ok(calls == cases[i].encode, "%s: %u passes to encode",
           cases[i].name, calls);

        calls = 0;
        (void) quic_lb_cid_decode(&conf, cid, 20, 0, sid, NULL);
        ok(calls == cases[i].decode, "%s: %u passes to decode",
           cases[i].name, calls);

        calls = 0;
        (void) quic_lb_cid_decode(&conf, cid, 20, 0, sid, nonce);
        ok(calls == cases[i].decode_nonce,
           "%s: %u passes to decode with the nonce", cases[i].name, calls);

        quic_lb_cid_cleanup(&conf);
    }
}


static void
test_config_id(void)
{
    uint8_t             cid[8] = { 0 };
    unsigned            id, failed;
    quic_lb_cid_conf_t  conf;

    (void) quic_lb_cid_init(&conf, 5, 3, 4, test_key, 0);

    failed = 0;

    for (id = 0; id <= 7; id++) {
        cid[0] = (uint8_t) (id << 5);

        if (id != 5) {
            failed += !refused(&conf, cid, 8, 0, QUIC_LB_ERR_INVALID);
            failed += !refused(&conf, cid, 8, 1, QUIC_LB_ERR_INVALID);
        }
    }

    ok(!failed, "other config IDs are refused");

    quic_lb_cid_cleanup(&conf);
}


/* without self-description the five bits mean nothing */

static void
test_first_octet(void)
{
    uint8_t             cid[8], sid[3], nonce[4], out[3];
    unsigned            low, failed;
    quic_lb_cid_conf_t  conf;

    memset(sid, 3, sizeof(sid));
    memset(nonce, 4, sizeof(nonce));

    (void) quic_lb_cid_init(&conf, 6, 3, 4, test_key, 0);

    failed = 0;

    for (low = 0; low < 256; low++) {
        failed += quic_lb_cid_encode(&conf, cid, (uint8_t) low, sid, nonce)
                  != QUIC_LB_OK
                  || cid[0] != (0xc0 | (low & 0x1f))
                  || decode(&conf, cid, 8, 1, out, NULL) != QUIC_LB_OK
                  || memcmp(out, sid, 3) != 0;
    }

    ok(!failed, "any low five bits without self-description");

    quic_lb_cid_cleanup(&conf);
}


/* a long header states the length: the CID's must be the same */

static void
test_described_exact(void)
{
    int                 want;
    size_t              len;
    uint8_t             cid[40] = { 0 }, sid[3];
    unsigned            low, failed;
    quic_lb_cid_conf_t  conf;

    (void) quic_lb_cid_init(&conf, 0, 3, 4, NULL, 1);

    failed = 0;

    for (low = 0; low < 32; low++) {
        cid[0] = (uint8_t) low;

        for (len = 8; len <= 40; len++) {
            want = (low == len - 1) ? QUIC_LB_OK : QUIC_LB_ERR_INVALID;

            failed += (want == QUIC_LB_OK)
                      ? decode(&conf, cid, len, 1, sid, NULL) != QUIC_LB_OK
                      : !refused(&conf, cid, len, 1, want);
        }
    }

    ok(!failed, "self-described length of long headers");

    quic_lb_cid_cleanup(&conf);
}


static void
test_described_short(void)
{
    int                 valid;
    size_t              len;
    uint8_t             cid[40] = { 0 }, sid[3];
    unsigned            low, failed;
    quic_lb_cid_conf_t  conf;

    (void) quic_lb_cid_init(&conf, 0, 3, 4, NULL, 1);

    failed = 0;

    for (low = 0; low < 32; low++) {
        cid[0] = (uint8_t) low;

        for (len = 8; len <= 40; len++) {
            valid = (low >= 7 && low <= len - 1 && low <= 19);

            failed += valid
                      ? decode(&conf, cid, len, 0, sid, NULL) != QUIC_LB_OK
                      : !refused(&conf, cid, len, 0, QUIC_LB_ERR_INVALID);
        }
    }

    ok(!failed, "self-described length of short headers");

    quic_lb_cid_cleanup(&conf);
}


static void
test_appended(void)
{
    int                 k;
    size_t              len;
    uint8_t             cid[255], sid[3], nonce[4], out_sid[3], out_nonce[4];
    unsigned            failed;
    quic_lb_cid_conf_t  conf;

    tap_random_bytes(cid, sizeof(cid));
    tap_random_bytes(sid, sizeof(sid));
    tap_random_bytes(nonce, sizeof(nonce));

    for (k = 0; k <= 1; k++) {

        (void) quic_lb_cid_init(&conf, 1, 3, 4, k ? test_key : NULL, 0);
        (void) quic_lb_cid_encode(&conf, cid, 0, sid, nonce);

        failed = 0;

        for (len = 8; len <= sizeof(cid); len++) {
            failed += decode(&conf, cid, len, 1, out_sid, out_nonce)
                      != QUIC_LB_OK
                      || memcmp(out_sid, sid, 3) != 0
                      || memcmp(out_nonce, nonce, 4) != 0;
        }

        ok(!failed, "appended octets are ignored, %s",
           k ? "encrypted" : "plaintext");

        quic_lb_cid_cleanup(&conf);
    }
}


/* the single pass has two contexts, so the most that can fail */

static void
test_init_failures(void)
{
    unsigned            i;
    quic_lb_cid_conf_t  conf, zero;

    memset(&zero, 0, sizeof(zero));

    for (i = 1; i <= 4; i++) {
        calls = 0;
        fail_at = i;

        memset(&conf, SENTINEL, sizeof(conf));

        ok(quic_lb_cid_init(&conf, 0, 8, 8, test_key, 0) == QUIC_LB_ERR_CRYPTO
           && memcmp(&conf, &zero, sizeof(conf)) == 0,
           "init: call %u into the library fails", i);
    }

    calls = 0;
    fail_at = 5;

    ok(quic_lb_cid_init(&conf, 0, 8, 8, test_key, 0) == QUIC_LB_OK
       && calls == 4,
       "init: no more calls than these");

    fail_at = 0;

    quic_lb_cid_cleanup(&conf);
}


static void
test_pass_failures(void)
{
    size_t              i;
    uint8_t             cid[20], sid[15] = { 0 }, nonce[18] = { 0 };
    unsigned            n, failed;
    quic_lb_cid_conf_t  conf;

    static const struct {
        size_t    server_id_len;
        size_t    nonce_len;
        unsigned  passes;
    } cases[] = {
        { 3, 4, 4 }, { 8, 8, 1 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        (void) quic_lb_cid_init(&conf, 0, cases[i].server_id_len,
                                cases[i].nonce_len, test_key, 0);
        failed = 0;

        for (n = 1; n <= cases[i].passes; n++) {
            for (fail_length = 0; fail_length <= 1; fail_length++) {

                calls = 0;
                fail_at = n;
                failed += quic_lb_cid_encode(&conf, cid, 0, sid, nonce)
                          != QUIC_LB_ERR_CRYPTO;

                cid[0] = 0;
                calls = 0;
                failed += !refused(&conf, cid, 20, 0, QUIC_LB_ERR_CRYPTO);
            }
        }

        fail_at = 0;
        fail_length = 0;

        ok(!failed, "a failure in any of %u passes is told", cases[i].passes);

        quic_lb_cid_cleanup(&conf);
    }
}


static void
test_cleanup(void)
{
    quic_lb_cid_conf_t  conf, zero;

    memset(&zero, 0, sizeof(zero));
    memset(&conf, 0, sizeof(conf));

    quic_lb_cid_cleanup(&conf);
    ok(memcmp(&conf, &zero, sizeof(conf)) == 0, "cleanup of zeroes");

    (void) quic_lb_cid_init(&conf, 0, 8, 8, test_key, 1);

    quic_lb_cid_cleanup(&conf);
    quic_lb_cid_cleanup(&conf);
    ok(memcmp(&conf, &zero, sizeof(conf)) == 0, "cleanup twice");
}


static void
test_copy(void)
{
    size_t              i;
    uint8_t             cid[20], sid[15], out[15], nonce[18] = { 0 };
    quic_lb_cid_conf_t  conf, copy, zero;

    static const struct {
        const char     *name;
        const uint8_t  *key;
        size_t          server_id_len;
        size_t          nonce_len;
    } cases[] = {
        { "plaintext", NULL, 3, 4 },
        { "four passes", test_key, 3, 4 },
        { "a single pass", test_key, 8, 8 }
    };

    memset(&zero, 0, sizeof(zero));
    memset(sid, SENTINEL, sizeof(sid));

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        (void) quic_lb_cid_init(&conf, 2, cases[i].server_id_len,
                                cases[i].nonce_len, cases[i].key, 1);
        (void) quic_lb_cid_encode(&conf, cid, 0, sid, nonce);

        memset(&copy, SENTINEL, sizeof(copy));

        ok(quic_lb_cid_copy(&copy, &conf) == QUIC_LB_OK, "copy: %s",
           cases[i].name);

        quic_lb_cid_cleanup(&conf);

        ok(quic_lb_cid_decode(&copy, cid, quic_lb_cid_len(&copy), 1, out, NULL)
           == QUIC_LB_OK
           && memcmp(out, sid, cases[i].server_id_len) == 0,
           "copy: %s: decodes when the other one is gone", cases[i].name);

        quic_lb_cid_cleanup(&copy);
    }

    (void) quic_lb_cid_init(&conf, 0, 8, 8, test_key, 0);

    for (i = 1; i <= 2; i++) {
        calls = 0;
        fail_at = (unsigned) i;

        ok(quic_lb_cid_copy(&copy, &conf) == QUIC_LB_ERR_CRYPTO
           && memcmp(&copy, &zero, sizeof(copy)) == 0,
           "copy: call %zu into the library fails", i);
    }

    fail_at = 0;

    quic_lb_cid_cleanup(&conf);
}


static size_t
unhex(uint8_t *p, const char *hex)
{
    size_t    n;
    unsigned  octet;

    for (n = 0; sscanf(hex + 2 * n, "%2x", &octet) == 1; n++) {
        p[n] = (uint8_t) octet;
    }

    return n;
}


/* decodes a copy of just |len| octets: the sanitizer sees any read beyond */

static int
decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid, size_t len,
    int exact, uint8_t *server_id, uint8_t *nonce)
{
    int       rc;
    uint8_t  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, cid, len);

    rc = quic_lb_cid_decode(conf, copy, len, exact, server_id, nonce);

    free(copy);

    return rc;
}


/* whether decoding ends in |error| and touches no output */

static int
refused(const quic_lb_cid_conf_t *conf, const uint8_t *cid, size_t len,
    int exact, int error)
{
    size_t   i;
    uint8_t  sid[QUIC_LB_SERVER_ID_MAX], nonce[QUIC_LB_NONCE_MAX];

    memset(sid, SENTINEL, sizeof(sid));
    memset(nonce, SENTINEL, sizeof(nonce));

    if (decode(conf, cid, len, exact, sid, nonce) != error) {
        return 0;
    }

    for (i = 0; i < sizeof(sid); i++) {
        if (sid[i] != SENTINEL) {
            return 0;
        }
    }

    for (i = 0; i < sizeof(nonce); i++) {
        if (nonce[i] != SENTINEL) {
            return 0;
        }
    }

    return 1;
}


EVP_CIPHER_CTX *
__wrap_EVP_CIPHER_CTX_new(void)
{
    return (++calls == fail_at) ? NULL : __real_EVP_CIPHER_CTX_new();
}


int
__wrap_EVP_CipherInit_ex(EVP_CIPHER_CTX *ctx, const EVP_CIPHER *cipher,
    ENGINE *engine, const unsigned char *key, const unsigned char *iv, int enc)
{
    if (++calls == fail_at) {
        return 0;
    }

    return __real_EVP_CipherInit_ex(ctx, cipher, engine, key, iv, enc);
}


int
__wrap_EVP_CipherUpdate(EVP_CIPHER_CTX *ctx, unsigned char *out, int *outl,
    const unsigned char *in, int inl)
{
    int  rc;

    rc = __real_EVP_CipherUpdate(ctx, out, outl, in, inl);

    if (++calls == fail_at) {
        if (!fail_length) {
            return 0;
        }

        *outl = 0;
    }

    return rc;
}
