
/*
 * Retry: the RFCs' vectors, a Retry and a token that nginx 1.26.3 has made,
 * tokens that are changed, cut, late, of another address or key, the exchange
 * of tokens in coalesced Initials, the close of a connection, a cryptographic
 * library that fails.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_retry.h"
#include "initial_vectors.h"
#include "tap.h"

#include <openssl/evp.h>


#define DATAGRAM  4096
#define NOW       1700000000


/* each wrapped call counts |fail_in| down and fails when it gets to zero */

#define wrap(type, name, failed, parameters, arguments)                       \
    type __real_##name parameters;                                            \
    type __wrap_##name parameters;                                            \
                                                                              \
    type                                                                      \
    __wrap_##name parameters                                                  \
    {                                                                         \
        return (fail_in && --fail_in == 0) ? failed                           \
                                           : __real_##name arguments;         \
    }


typedef struct {
    const char  *name;
    uint32_t     version;
    const char  *retry;           /* RFC 9001, A.4; RFC 9369, A.4 */
    const char  *key;             /* of the server's Initials: A.1 */
    const char  *iv;
    const char  *hp;
} vector_t;


static void test_packet(const vector_t *v);
static void test_server_keys(const vector_t *v);
static void test_packet_ranges(void);
static void test_nginx(void);
static void test_open_server(const uint8_t *data, size_t len,
    const char *what);
static void test_server_lengths(void);
static void test_forged(void);
static void test_forged_server(void);
static void test_token(void);
static void test_token_bad(void);
static void test_token_time(void);
static void test_token_period(void);
static void test_replace(uint32_t version);
static void test_replace_partly(void);
static void test_close(uint32_t version);
static void test_failures(void);

static int whole(void);
static size_t unhex(uint8_t *to, const char *hex);
static void derive(quic_lb_retry_keys_t *keys, uint8_t first);
static void make(const quic_lb_retry_address_t *address, uint8_t *to);
static size_t forge(uint8_t *data, size_t len, size_t new_len,
    const uint8_t *key, size_t offset, unsigned value);
static int open_token(const quic_lb_retry_address_t *address,
    const uint8_t *data, size_t len, uint32_t now);
static size_t put_initial(uint8_t *data, uint32_t version, const char *dcid,
    const char *keys_of, const uint8_t *value, size_t value_len,
    uint64_t number);
static int check_initial(const uint8_t *packet, const quic_lb_packet_t *pkt,
    const char *keys_of, const uint8_t *value, uint64_t number);


static const vector_t  vectors[] = {
    { "version 1", QUIC_LB_VERSION_1,
      "ff000000010008f067a5502a4262b5746f6b656e"
      "04a265ba2eff4d829058fb3f0f2496ba",
      "cf3a5331653c364c88f0f379b6067e37", "0ac1493ca1905853b0bba03e",
      "c206b8d9b9f0f37644430b490eeaa314" },
    { "version 2", QUIC_LB_VERSION_2,
      "cf6b3343cf0008f067a5502a4262b5746f6b656e"
      "c8646ce8bfe33952d955543665dcc7b6",
      "82db637861d55e1d011f19ea71d5d2a7", "dd13c276499c0249d3310652",
      "edf6d05c83121201b436e16877593c3a" }
};


/*
 * nginx 1.26.3, "quic_retry on" and a "quic_host_key" of the octets 0 to 31,
 * to the client "abcd" at 127.0.0.1:40001 with the RFCs' DCID.
 */

static const char  nginx_retry[] =
    "ff00000001046162636414cf597fcb332d68dd116122d3def2d8e163cb98481c"
    "87f778aba884f58fa2421a4c1702f034cd1a0e5becfbdf1050860881a00602d9"
    "60756fc75ab1fbef1ef7390b528a0b93d28ef40d517ab2c60b07300ff1caa18b"
    "08620e771023ffd33e2f34636f80bbd0cc";

#define NGINX_EXPIRES    INT64_C(1796027127)
#define NGINX_SCID       11
#define NGINX_TOKEN      (NGINX_SCID + 20)
#define NGINX_TOKEN_LEN  66

/* a struct sockaddr_in of Linux on a machine of little byte order */

static const uint8_t  loopback[16] = { 2, 0, 0x9c, 0x41, 127, 0, 0, 1 };
static const uint8_t  other_port[16] = { 2, 0, 0x9c, 0x42, 127, 0, 0, 1 };

static const quic_lb_retry_address_t  home = { loopback, sizeof(loopback) };
static const quic_lb_retry_address_t  away = { other_port, sizeof(other_port) };
static const quic_lb_retry_address_t  cut = { loopback, 4 };

static const uint8_t  iv[] = "twelve octets";


static quic_lb_retry_t        ctx;
static quic_lb_retry_keys_t   keys, other_keys;
static quic_lb_retry_token_t  said, got;
static unsigned               fail_in;
static uint8_t                token[QUIC_LB_RETRY_TOKEN_LEN];
static uint8_t                scratch[DATAGRAM];


wrap(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_new, NULL, (void), ())
wrap(int, EVP_CipherInit_ex, 0,
    (EVP_CIPHER_CTX *c, const EVP_CIPHER *cipher, ENGINE *engine,
     const unsigned char *key, const unsigned char *nonce, int encrypt),
    (c, cipher, engine, key, nonce, encrypt))
wrap(int, EVP_CIPHER_CTX_ctrl, 0,
    (EVP_CIPHER_CTX *c, int type, int arg, void *p), (c, type, arg, p))
wrap(int, EVP_CipherUpdate, 0,
    (EVP_CIPHER_CTX *c, unsigned char *to, int *to_len,
     const unsigned char *from, int len), (c, to, to_len, from, len))
wrap(EVP_MD_CTX *, EVP_MD_CTX_new, NULL, (void), ())
wrap(int, EVP_DigestInit_ex, 0,
    (EVP_MD_CTX *c, const EVP_MD *type, ENGINE *engine), (c, type, engine))
wrap(int, EVP_DigestUpdate, 0, (EVP_MD_CTX *c, const void *data, size_t len),
    (c, data, len))
wrap(int, EVP_DigestFinal_ex, 0,
    (EVP_MD_CTX *c, unsigned char *to, unsigned *len), (c, to, len))


int
main(void)
{
    size_t  i;

    if (!ok(quic_lb_retry_init(&ctx) == QUIC_LB_OK, "init")) {
        return tap_done();
    }

    derive(&keys, 0);
    derive(&other_keys, 1);

    said.expires = NOW + 10;
    said.dcid_len = (uint8_t) unhex(said.dcid, VECTOR_DCID);
    said.scid_len = (uint8_t) unhex(said.scid, "c0ffee00c0ffee00c0ffee00");

    for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        test_packet(&vectors[i]);
        test_server_keys(&vectors[i]);
        test_replace(vectors[i].version);
        test_close(vectors[i].version);
    }

    test_packet_ranges();
    test_nginx();
    test_server_lengths();
    test_forged();
    test_forged_server();
    test_token();
    test_token_bad();
    test_token_time();
    test_token_period();
    test_replace_partly();
    test_failures();

    quic_lb_retry_cleanup(&ctx);
    quic_lb_retry_cleanup(&ctx);
    ok(ctx.token == NULL && ctx.integrity == NULL && ctx.hash == NULL,
       "cleanup, twice");

    return tap_done();
}


static void
test_packet(const vector_t *v)
{
    int               len;
    size_t            n;
    uint8_t           dcid[QUIC_LB_CID_MAX], wanted[64], to[64];
    quic_lb_packet_t  pkt;

    memset(&pkt, 0, sizeof(pkt));

    pkt.version = v->version;
    pkt.dcid = dcid;
    pkt.dcid_len = unhex(dcid, VECTOR_DCID);
    pkt.scid = dcid;

    n = unhex(wanted, v->retry);

    len = quic_lb_retry_packet(&ctx, &pkt, wanted + 7, 8,
                               (const uint8_t *) "token", 5, to);

    ok(len == (int) n && memcmp(to, wanted, n) == 0, "%s: Retry of the RFC",
       v->name);
}


static void
test_server_keys(const vector_t *v)
{
    uint8_t                 dcid[QUIC_LB_CID_MAX], wanted[48];
    quic_lb_initial_keys_t  k;

    unhex(wanted, v->key);
    unhex(wanted + 16, v->iv);
    unhex(wanted + 28, v->hp);

    ok(quic_lb_initial_derive_server(&ctx.initial, &k, v->version, dcid,
                                     unhex(dcid, VECTOR_DCID))
       == QUIC_LB_OK
       && memcmp(k.key, wanted, 16) == 0
       && memcmp(k.iv, wanted + 16, 12) == 0
       && memcmp(k.hp, wanted + 28, 16) == 0,
       "%s: keys of the server's Initials", v->name);
}


static void
test_packet_ranges(void)
{
    uint8_t           to[QUIC_LB_RETRY_PACKET_MAX], cid[QUIC_LB_CID_MAX + 1];
    quic_lb_packet_t  pkt;

    memset(&pkt, 0, sizeof(pkt));
    memset(cid, 1, sizeof(cid));

    pkt.version = QUIC_LB_VERSION_1;
    pkt.dcid = pkt.scid = cid;
    pkt.dcid_len = pkt.scid_len = QUIC_LB_CID_MAX;

    ok(quic_lb_retry_packet(&ctx, &pkt, cid, QUIC_LB_CID_MAX, token,
                            sizeof(token), to)
       == QUIC_LB_RETRY_PACKET_MAX, "the longest Retry");

    ok(quic_lb_retry_packet(&ctx, &pkt, cid, QUIC_LB_CID_MAX + 1, token,
                            sizeof(token), to)
       == QUIC_LB_ERR_RANGE, "an SCID that is too long");

    pkt.version = 0x0a0a0a0a;

    ok(quic_lb_retry_packet(&ctx, &pkt, cid, 8, token, sizeof(token), to)
       == QUIC_LB_ERR_RANGE, "a version without Retry");
    ok(quic_lb_retry_close(&ctx, &pkt, cid, to, scratch) == QUIC_LB_ERR_RANGE,
       "a version that cannot be closed");
}


/* what nginx has made is made again */

static void
test_nginx(void)
{
    size_t            n;
    uint8_t           wanted[256], to[256], dcid[QUIC_LB_CID_MAX];
    quic_lb_packet_t  pkt;

    n = unhex(wanted, nginx_retry);

    ok(quic_lb_retry_make_server(&ctx, &keys, &said, &home, NGINX_EXPIRES,
                                 wanted + NGINX_TOKEN, to, NGINX_TOKEN_LEN)
       == QUIC_LB_OK
       && memcmp(to, wanted + NGINX_TOKEN, NGINX_TOKEN_LEN) == 0,
       "the token of nginx");

    memset(&pkt, 0, sizeof(pkt));

    pkt.version = QUIC_LB_VERSION_1;
    pkt.dcid = dcid;
    pkt.dcid_len = unhex(dcid, VECTOR_DCID);
    pkt.scid = (const uint8_t *) "abcd";
    pkt.scid_len = 4;

    ok(quic_lb_retry_packet(&ctx, &pkt, wanted + NGINX_SCID, 20,
                            wanted + NGINX_TOKEN, NGINX_TOKEN_LEN, to)
       == (int) n && memcmp(to, wanted, n) == 0, "the Retry of nginx");

    /* the longer one is the same but for the tag and what is behind */

    ok(quic_lb_retry_make_server(&ctx, &keys, &said, &home, NGINX_EXPIRES,
                                 wanted + NGINX_TOKEN, to, sizeof(token))
       == QUIC_LB_OK
       && memcmp(to, wanted + NGINX_TOKEN,
                 NGINX_TOKEN_LEN - QUIC_LB_RETRY_TAG_LEN)
          == 0, "and a longer one");

    test_open_server(wanted + NGINX_TOKEN, NGINX_TOKEN_LEN, "nginx's token");
    test_open_server(to, sizeof(token), "a longer one");
}


/* what a server makes of one; |what| has been made by nginx's rules */

static void
test_open_server(const uint8_t *data, size_t len, const char *what)
{
    size_t                 i, refused;
    uint8_t                changed[256];
    quic_lb_retry_token_t  out;

    memset(&out, 0, sizeof(out));

    ok(quic_lb_retry_open_server(&ctx, &keys, data, len, &home, NGINX_EXPIRES,
                                 &out)
       == QUIC_LB_OK
       && out.dcid_len == said.dcid_len
       && memcmp(out.dcid, said.dcid, said.dcid_len) == 0,
       "%s: opened", what);

    ok(quic_lb_retry_open_server(&ctx, &keys, data, len, &home,
                                 NGINX_EXPIRES + 1, &out)
       == QUIC_LB_ERR_RANGE, "%s: expired", what);

    ok(quic_lb_retry_open_server(&ctx, &keys, data, len, &away,
                                 NGINX_EXPIRES, &out)
       == QUIC_LB_ERR_RANGE, "%s: from another address", what);

    refused = 0;

    for (i = 0; i < len; i++) {
        memcpy(changed, data, len);
        changed[i] ^= 1;

        refused += quic_lb_retry_open_server(&ctx, &keys, changed, len, &home,
                                             NGINX_EXPIRES, &out)
                   == QUIC_LB_ERR_INVALID;
        refused += quic_lb_retry_open_server(&ctx, &keys, data, i, &home,
                                             NGINX_EXPIRES, &out)
                   == QUIC_LB_ERR_INVALID;
    }

    ok(refused == 2 * len, "%s: changed or cut anywhere", what);
}


static void
test_server_lengths(void)
{
    size_t                 len, least;
    uint8_t                to[128];
    quic_lb_retry_token_t  t;

    t = said;
    least = QUIC_LB_RETRY_IV_LEN + 30 + t.dcid_len + QUIC_LB_RETRY_TAG_LEN;

    for (len = 0; len < sizeof(to); len++) {
        if ((quic_lb_retry_make_server(&ctx, &keys, &t, &home, NOW, iv, to,
                                       len)
             == QUIC_LB_OK)
            != (len >= least && len <= QUIC_LB_RETRY_IV_LEN
                                       + QUIC_LB_RETRY_PLAIN_MAX
                                       + QUIC_LB_RETRY_TAG_LEN))
        {
            break;
        }
    }

    ok(len == sizeof(to), "a server's token of each length, stopped at %zu",
       len);

    t.dcid_len = QUIC_LB_CID_MAX;
    ok(quic_lb_retry_make_server(&ctx, &keys, &t, &home, NOW, iv, to,
                                 sizeof(token))
       == QUIC_LB_OK, "one for the longest DCID");

    t.dcid_len++;
    ok(quic_lb_retry_make_server(&ctx, &keys, &t, &home, NOW, iv, to,
                                 sizeof(token))
       == QUIC_LB_ERR_RANGE, "a DCID that is too long");
    ok(quic_lb_retry_make(&ctx, &keys, &t, &home, iv, to) == QUIC_LB_ERR_RANGE,
       "a DCID that is too long in a token of the balancer");

    t.dcid_len = 0;
    t.scid_len = QUIC_LB_CID_MAX + 1;
    ok(quic_lb_retry_make(&ctx, &keys, &t, &home, iv, to) == QUIC_LB_ERR_RANGE,
       "an SCID that is too long");
}


/* the lengths in a token of the balancer, by who has the key */

static void
test_forged(void)
{
    unsigned  i, which, failed;

    failed = 0;

    for (which = 0; which < 2; which++) {
        for (i = 0; i < 256; i++) {
            make(&home, token);
            (void) forge(token + 1, sizeof(token) - 1, sizeof(token) - 1,
                         keys.periods[NOW / 256 % QUIC_LB_RETRY_PERIODS].key,
                         20 + which, i);

            failed += open_token(&home, token, sizeof(token), NOW)
                      != (i <= QUIC_LB_CID_MAX ? QUIC_LB_OK
                                               : QUIC_LB_ERR_INVALID);
        }
    }

    ok(!failed, "lengths in a token that has the right key");
}


/* and in those of a server: its format, the length of the DCID */

static void
test_forged_server(void)
{
    size_t                 len;
    uint8_t                to[256];
    unsigned               i, plain, failed;
    quic_lb_retry_token_t  t;

    static const unsigned  plains[] = { 30, 31, 35, 49, 50, 51, 63, 64, 65 };

    failed = 0;

    for (i = 0; i < 256 * sizeof(plains) / sizeof(plains[0]); i++) {
        plain = plains[i / 256];

        t = said;
        t.dcid_len = 0;
        len = QUIC_LB_RETRY_IV_LEN + (plain < 64 ? plain : 64)
              + QUIC_LB_RETRY_TAG_LEN;

        failed += quic_lb_retry_make_server(&ctx, &keys, &t, &home, NOW, iv,
                                            to, len)
                  != QUIC_LB_OK;

        len = forge(to, len, QUIC_LB_RETRY_IV_LEN + plain
                             + QUIC_LB_RETRY_TAG_LEN,
                    keys.server, 29, i % 256);

        failed += quic_lb_retry_open_server(&ctx, &keys, to, len, &home, NOW,
                                            &t)
                  != (i % 256 <= QUIC_LB_CID_MAX && i % 256 <= plain - 30
                      && plain <= QUIC_LB_RETRY_PLAIN_MAX
                      ? QUIC_LB_OK : QUIC_LB_ERR_INVALID);
    }

    ok(!failed, "lengths of a server's token and of the DCID in it, %u wrong",
       failed);
}


static void
test_token(void)
{
    unsigned  dcid_len, scid_len, failed;

    failed = 0;

    for (dcid_len = 0; dcid_len <= QUIC_LB_CID_MAX; dcid_len++) {
        for (scid_len = 0; scid_len <= QUIC_LB_CID_MAX; scid_len++) {
            quic_lb_retry_token_t  t;

            t = said;
            t.dcid_len = (uint8_t) dcid_len;
            t.scid_len = (uint8_t) scid_len;
            memset(t.dcid, (int) dcid_len, dcid_len);
            memset(t.scid, (int) scid_len, scid_len);

            if (quic_lb_retry_make(&ctx, &keys, &t, &home, iv, token)
                != QUIC_LB_OK
                || open_token(&home, token, sizeof(token), NOW) != QUIC_LB_OK
                || got.expires != t.expires
                || got.dcid_len != dcid_len || got.scid_len != scid_len
                || memcmp(got.dcid, t.dcid, dcid_len) != 0
                || memcmp(got.scid, t.scid, scid_len) != 0)
            {
                failed++;
            }
        }
    }

    ok(failed == 0, "tokens say what they were told, %u do not", failed);
}


static void
test_token_bad(void)
{
    size_t   i;
    uint8_t  data[128];

    memset(data, 0, sizeof(data));
    make(&home, data);

    for (i = 0; i < sizeof(data); i++) {
        if (i != sizeof(token)
            && open_token(&home, data, i, NOW) != QUIC_LB_ERR_INVALID)
        {
            break;
        }
    }

    ok(i == sizeof(data), "each other length, stopped at %zu", i);

    for (i = 0; i < 8 * sizeof(token); i++) {
        data[i / 8] ^= (uint8_t) (1 << i % 8);

        if (open_token(&home, data, sizeof(token), NOW)
            != QUIC_LB_ERR_INVALID)
        {
            break;
        }

        data[i / 8] ^= (uint8_t) (1 << i % 8);
    }

    ok(i == 8 * sizeof(token), "each flipped bit, stopped at %zu", i);

    ok(open_token(&away, data, sizeof(token), NOW) == QUIC_LB_ERR_RANGE
       && got.dcid_len == said.dcid_len, "another port");
    ok(open_token(&cut, data, sizeof(token), NOW) == QUIC_LB_ERR_RANGE,
       "another address");

    ok(quic_lb_retry_open(&ctx, &other_keys, data, sizeof(token), &home, NOW,
                          &got)
       == QUIC_LB_ERR_INVALID, "another key");

    ok(quic_lb_retry_make_server(&ctx, &keys, &said, &home, NOW + 10, iv, data,
                                 sizeof(token))
       == QUIC_LB_OK
       && open_token(&home, data, sizeof(token), NOW) == QUIC_LB_ERR_INVALID,
       "a server's token is none of the balancer");
}


static void
test_token_time(void)
{
    make(&home, token);

    ok(open_token(&home, token, sizeof(token), NOW + 10) == QUIC_LB_OK,
       "the last second");
    ok(open_token(&home, token, sizeof(token), NOW + 11) == QUIC_LB_ERR_RANGE
       && got.scid_len == said.scid_len, "expired");

    said.expires = 3;
    make(&home, token);
    said.expires = NOW + 10;

    ok(open_token(&home, token, sizeof(token), UINT32_MAX - 3) == QUIC_LB_OK
       && open_token(&home, token, sizeof(token), 4) == QUIC_LB_ERR_RANGE,
       "seconds that begin again");
}


/* what two keys encrypt differently with one IV: the connection IDs */

static void
test_token_period(void)
{
    uint8_t               other[sizeof(token)], *ids;
    size_t                len;
    quic_lb_retry_keys_t  fresh[2];

    len = 2 * QUIC_LB_CID_MAX;
    ids = token + sizeof(token) - QUIC_LB_RETRY_TAG_LEN - len;

    said.expires = NOW;
    make(&home, token);

    said.expires = NOW + 255;
    make(&home, other);

    ok(memcmp(other + (ids - token), ids, len) == 0, "a period has one key");

    said.expires = NOW + 256;
    make(&home, other);

    ok(memcmp(other + (ids - token), ids, len) != 0, "the next has another");
    ok(open_token(&home, other, sizeof(other), NOW + 246) == QUIC_LB_OK
       && got.expires == NOW + 256, "it may have begun when a token comes");
    ok(open_token(&home, other, sizeof(other), NOW - 1)
       == QUIC_LB_ERR_INVALID, "but not longer ago");

    said.expires = NOW - 1;
    make(&home, other);

    ok(open_token(&home, other, sizeof(other), NOW) == QUIC_LB_ERR_RANGE
       && open_token(&home, other, sizeof(other), NOW + 255)
          == QUIC_LB_ERR_RANGE,
       "one of the last period has expired");
    ok(open_token(&home, other, sizeof(other), NOW + 256)
       == QUIC_LB_ERR_INVALID, "of the one before nothing is known");

    /* the periods that are kept make room for others */

    for (said.expires = NOW; said.expires < NOW + 9 * 256;
         said.expires += 256)
    {
        make(&home, other);
    }

    said.expires = NOW;
    make(&home, other);

    ok(memcmp(other, token, sizeof(token)) == 0, "a key is derived again");

    said.expires = NOW + QUIC_LB_RETRY_PERIODS * 256;
    make(&home, other);

    ok(memcmp(other + (ids - token), ids, len) != 0,
       "not the one of the period whose place it takes");

    /* a place that is empty is not the key of period 0 */

    derive(&fresh[0], 1);
    derive(&fresh[1], 2);

    said.expires = 1;

    ok(quic_lb_retry_make(&ctx, &fresh[0], &said, &home, iv, token)
       == QUIC_LB_OK
       && quic_lb_retry_make(&ctx, &fresh[1], &said, &home, iv, other)
          == QUIC_LB_OK
       && memcmp(other + (ids - token), ids, len) != 0,
       "the first period has a key of its own");

    said.expires = NOW + 10;
}


/* two Initials and something behind; the second as if from a later flight */

static void
test_replace(uint32_t version)
{
    size_t                  one, two, len;
    uint8_t                 data[DATAGRAM], next[QUIC_LB_RETRY_TOKEN_LEN];
    quic_lb_packet_t        pkt;
    const uint8_t          *packet;
    quic_lb_initial_walk_t  walk;

    make(&home, token);
    memset(next, 'n', sizeof(next));

    one = put_initial(data, version, "aabbccddeeff0011",
                      "c0ffee00c0ffee00c0ffee00", token, sizeof(token), 2);
    two = put_initial(data + one, version, "aabbccddeeff0011",
                      "c0ffee00c0ffee00c0ffee00", token, sizeof(token), 3);
    len = one + two;

    memcpy(data + len, "\x40 and a short header", 20);
    len += 20;

    ok(quic_lb_retry_replace(&ctx, data, len, &said, token, next, scratch)
       == 2, "two tokens replaced");

    quic_lb_initial_walk(&walk, data, len);

    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK
       && check_initial(packet, &pkt, "c0ffee00c0ffee00c0ffee00", next, 2),
       "the first is as before but for its token");
    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK
       && check_initial(packet, &pkt, "c0ffee00c0ffee00c0ffee00", next, 3),
       "so is the second");
    ok(memcmp(data + one + two, "\x40 and a short header", 20) == 0,
       "and what is behind");

    /* the old token may be the one in the datagram */

    quic_lb_initial_walk(&walk, data, len);
    (void) quic_lb_initial_next(&walk, &pkt, &packet);

    ok(quic_lb_retry_replace(&ctx, data, len, &said, pkt.token, token, scratch)
       == 2, "and back again");
}


static void
test_replace_partly(void)
{
    size_t   one, two, three, len;
    uint8_t  data[DATAGRAM], copy[DATAGRAM], next[QUIC_LB_RETRY_TOKEN_LEN];

    make(&home, token);
    memset(next, 'n', sizeof(next));

    one = put_initial(data, QUIC_LB_VERSION_1, "aabbccddeeff0011",
                      "aabbccddeeff0011", token, sizeof(token), 0);
    two = put_initial(data + one, QUIC_LB_VERSION_1, "aabbccddeeff0011",
                      "c0ffee00c0ffee00c0ffee00", next, sizeof(next), 1);
    three = put_initial(data + one + two, QUIC_LB_VERSION_1,
                        "aabbccddeeff0011", "c0ffee00c0ffee00c0ffee00",
                        token, 20, 2);
    len = one + two + three;

    memcpy(copy, data, len);

    ok(quic_lb_retry_replace(&ctx, data, len, &said, token, next, scratch)
       == 0 && memcmp(copy, data, len) == 0,
       "other keys, another token, a shorter one: nothing is changed");

    for (len = 0; len < one; len++) {
        memcpy(copy, data, len);

        if (quic_lb_retry_replace(&ctx, copy, len, &said, token, next, scratch)
            != 0)
        {
            break;
        }
    }

    ok(len == one, "a cut datagram, stopped at %zu", len);
}


static void
test_close(uint32_t version)
{
    int                       len;
    size_t                    n;
    uint8_t                   data[DATAGRAM], to[QUIC_LB_RETRY_CLOSE_MAX];
    uint8_t                   dcid[QUIC_LB_CID_MAX];
    quic_lb_packet_t          pkt, answer;
    quic_lb_initial_keys_t    k;
    quic_lb_initial_opened_t  opened;

    n = put_initial(data, version, "aabbccddeeff0011", "aabbccddeeff0011",
                    token, sizeof(token), 2);

    if (!ok(quic_lb_packet_parse(&pkt, data, n) == QUIC_LB_OK, "a packet")) {
        return;
    }

    len = quic_lb_retry_close(&ctx, &pkt, data, to, scratch);

    ok(len > 0 && quic_lb_packet_parse(&answer, to, (size_t) len) == QUIC_LB_OK
       && answer.type == QUIC_LB_PACKET_INITIAL && answer.version == version
       && answer.token_len == 0
       && answer.payload + answer.payload_len == to + len
       && answer.dcid_len == pkt.scid_len && answer.scid_len == pkt.dcid_len
       && memcmp(answer.scid, pkt.dcid, pkt.dcid_len) == 0,
       "a close is an Initial back");

    n = unhex(dcid, "aabbccddeeff0011");

    ok(quic_lb_initial_derive_server(&ctx.initial, &k, version, dcid, n)
       == QUIC_LB_OK
       && quic_lb_initial_open(&ctx.initial, &k, &answer, to, 0, &opened,
                               scratch)
          == QUIC_LB_OK
       && opened.number == 0 && opened.payload_len == 4
       && memcmp(opened.payload, "\x1c\x0b\0\0", 4) == 0,
       "CONNECTION_CLOSE, INVALID_TOKEN");

    data[pkt.payload - data + 30] ^= 1;

    ok(quic_lb_retry_close(&ctx, &pkt, data, to, scratch)
       == QUIC_LB_ERR_INVALID, "no close for a bogus Initial");
}


static void
test_failures(void)
{
    unsigned          i, failures;
    uint8_t           data[DATAGRAM], to[QUIC_LB_RETRY_PACKET_MAX];
    size_t            len;
    quic_lb_retry_t   saved;
    quic_lb_packet_t  pkt;

    saved = ctx;

    for (i = 1; ; i++) {
        fail_in = i;

        if (quic_lb_retry_init(&ctx) == QUIC_LB_OK) {
            break;
        }

        if (fail_in || ctx.token || ctx.integrity || ctx.hash) {
            break;
        }
    }

    ok(fail_in && i > 5, "init fails at %u calls", i - 1);

    fail_in = 0;
    quic_lb_retry_cleanup(&ctx);
    ctx = saved;

    failures = 0;

    for (i = 1; whole() == QUIC_LB_OK; i++) {
        make(&home, token);
        len = put_initial(data, QUIC_LB_VERSION_1, "aabbccddeeff0011",
                          "c0ffee00c0ffee00c0ffee00", token, sizeof(token), 0);
        (void) quic_lb_packet_parse(&pkt, data, len);

        fail_in = i;

        if (quic_lb_retry_make(&ctx, &keys, &said, &home, iv, token)
            == QUIC_LB_ERR_CRYPTO
            || quic_lb_retry_open(&ctx, &keys, token, sizeof(token), &home,
                                  NOW, &got)
               == QUIC_LB_ERR_CRYPTO
            || quic_lb_retry_make_server(&ctx, &keys, &said, &home, NOW, iv,
                                         to, sizeof(token))
               == QUIC_LB_ERR_CRYPTO
            || quic_lb_retry_packet(&ctx, &pkt, said.scid, said.scid_len,
                                    token, sizeof(token), to)
               == QUIC_LB_ERR_CRYPTO
            || quic_lb_retry_replace(&ctx, data, len, &said, token, token,
                                     scratch)
               == QUIC_LB_ERR_CRYPTO)
        {
            failures++;
            fail_in = 0;
            continue;
        }

        break;
    }

    ok(fail_in && failures == i - 1 && failures > 20,
       "%u calls of the library fail, each is told", failures);

    fail_in = 0;
    ok(whole() == QUIC_LB_OK, "none does harm");
}


/* nothing of a failed call is left for the next */

static int
whole(void)
{
    fail_in = 0;

    make(&home, token);

    return open_token(&home, token, sizeof(token), NOW);
}


static size_t
unhex(uint8_t *to, const char *hex)
{
    size_t  i, len;
    char    octet[3] = { 0, 0, 0 };

    len = strlen(hex) / 2;

    for (i = 0; i < len; i++) {
        octet[0] = hex[2 * i];
        octet[1] = hex[2 * i + 1];
        to[i] = (uint8_t) strtoul(octet, NULL, 16);
    }

    return len;
}


/* from a secret of 32 octets, each one more than that before */

static void
derive(quic_lb_retry_keys_t *to, uint8_t first)
{
    size_t   i;
    uint8_t  secret[32];

    for (i = 0; i < sizeof(secret); i++) {
        secret[i] = (uint8_t) (first + i);
    }

    ok(quic_lb_retry_derive(to, secret, sizeof(secret)) == QUIC_LB_OK,
       "derive");
}


static void
make(const quic_lb_retry_address_t *address, uint8_t *to)
{
    if (quic_lb_retry_make(&ctx, &keys, &said, address, iv, to)
        != QUIC_LB_OK)
    {
        ok(0, "make");
    }
}


/* changes one octet of a token, and its length, and seals it again */

static size_t
forge(uint8_t *data, size_t len, size_t new_len, const uint8_t *key,
    size_t offset, unsigned value)
{
    int      n;
    uint8_t  plain[128];

    memset(plain, 0, sizeof(plain));

    len -= QUIC_LB_RETRY_IV_LEN + QUIC_LB_RETRY_TAG_LEN;
    new_len -= QUIC_LB_RETRY_IV_LEN + QUIC_LB_RETRY_TAG_LEN;

    if (EVP_CipherInit_ex(ctx.token, NULL, NULL, key, data, 0) != 1
        || EVP_CipherUpdate(ctx.token, plain, &n, data + QUIC_LB_RETRY_IV_LEN,
                            (int) len)
           != 1)
    {
        ok(0, "forge");
    }

    plain[offset] = (uint8_t) value;

    if (EVP_CipherInit_ex(ctx.token, NULL, NULL, key, data, 1) != 1
        || EVP_CipherUpdate(ctx.token, data + QUIC_LB_RETRY_IV_LEN, &n, plain,
                            (int) new_len)
           != 1
        || EVP_CipherFinal_ex(ctx.token, plain, &n) != 1
        || EVP_CIPHER_CTX_ctrl(ctx.token, EVP_CTRL_AEAD_GET_TAG,
                               QUIC_LB_RETRY_TAG_LEN,
                               data + QUIC_LB_RETRY_IV_LEN + new_len)
           != 1)
    {
        ok(0, "forge");
    }

    return QUIC_LB_RETRY_IV_LEN + new_len + QUIC_LB_RETRY_TAG_LEN;
}


static int
open_token(const quic_lb_retry_address_t *address, const uint8_t *data,
    size_t len, uint32_t now)
{
    return quic_lb_retry_open(&ctx, &keys, data, len, address, now, &got);
}


/* an Initial of the client "client" with two PINGs and 100 octets of PADDING */

static size_t
put_initial(uint8_t *data, uint32_t version, const char *dcid,
    const char *keys_of, const uint8_t *value, size_t value_len,
    uint64_t number)
{
    size_t                    len, header_len;
    uint8_t                  *p, cid[QUIC_LB_CID_MAX], frames[102];
    quic_lb_initial_keys_t    k;
    quic_lb_initial_opened_t  opened;

    memset(frames, 0, sizeof(frames));
    frames[0] = frames[1] = 1;

    opened.first = (version == QUIC_LB_VERSION_1) ? 0xc0 : 0xd0;
    opened.number_len = 1;
    opened.number = number;
    opened.payload = frames;
    opened.payload_len = sizeof(frames);

    p = data;
    *p++ = opened.first;
    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;

    len = unhex(cid, dcid);
    *p++ = (uint8_t) len;
    memcpy(p, cid, len);
    p += len;

    *p++ = 6;
    memcpy(p, "client", 6);
    p += 6;

    *p++ = (uint8_t) (0x40 | value_len >> 8);
    *p++ = (uint8_t) value_len;
    memcpy(p, value, value_len);
    p += value_len;

    len = quic_lb_initial_sealed_len(&opened);
    *p++ = (uint8_t) (0x40 | len >> 8);
    *p++ = (uint8_t) len;

    header_len = (size_t) (p - data);

    if (quic_lb_initial_derive(&ctx.initial, &k, version, cid,
                               unhex(cid, keys_of))
        != QUIC_LB_OK
        || quic_lb_initial_seal(&ctx.initial, &k, &opened, data, header_len)
           != QUIC_LB_OK)
    {
        ok(0, "an Initial");
    }

    return header_len + len;
}


static int
check_initial(const uint8_t *packet, const quic_lb_packet_t *pkt,
    const char *keys_of, const uint8_t *value, uint64_t number)
{
    uint8_t                   cid[QUIC_LB_CID_MAX];
    quic_lb_initial_keys_t    k;
    quic_lb_initial_opened_t  opened;

    return pkt->token_len == QUIC_LB_RETRY_TOKEN_LEN
           && memcmp(pkt->token, value, pkt->token_len) == 0
           && quic_lb_initial_derive(&ctx.initial, &k, pkt->version, cid,
                                     unhex(cid, keys_of))
              == QUIC_LB_OK
           && quic_lb_initial_open(&ctx.initial, &k, pkt, packet, 0, &opened,
                                   scratch)
              == QUIC_LB_OK
           && opened.number == number && opened.payload_len == 102
           && memcmp(opened.payload, "\1\1\0", 3) == 0;
}
