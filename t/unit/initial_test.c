
/*
 * Initial packets of clients: the RFCs' vectors both ways, every truncation,
 * every changed octet, packet numbers of all lengths, an exchanged token,
 * coalesced packets, a cryptographic library that fails.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_initial.h"
#include "initial_vectors.h"
#include "tap.h"

#include <openssl/evp.h>


#define DATAGRAM  2048


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
    const char  *packet;
    const char  *key;
    const char  *iv;
    const char  *hp;
    uint32_t     version;
    uint8_t      first;    /* without header protection */
} vector_t;


static void test_vector(const vector_t *v);
static void test_truncated(const vector_t *v);
static void test_changed(const vector_t *v);
static void test_token(const vector_t *v);
static void test_numbers(const vector_t *v);
static void test_expected(void);
static void test_ranges(void);
static void test_coalesced(void);
static void test_failures(void);

static int whole(void);
static size_t unhex(uint8_t *out, const char *hex);
static void derive(quic_lb_initial_keys_t *keys, uint32_t version);
static size_t put_packet(uint8_t *data, uint32_t version, const char *token,
    const char *dcid, quic_lb_initial_opened_t *opened);
static int parse(quic_lb_packet_t *pkt, const uint8_t *data, size_t len);
static int open_number(unsigned number_len, uint64_t number,
    uint64_t expected, quic_lb_initial_opened_t *opened);


static const vector_t  vectors[] = {
    { "RFC 9001, A.2", vector_v1, "1f369613dd76d5467730efcbe3b1a22d",
      "fa044b2f42a3fd3b46fb255c", "9f50449e04a0e810283a1e9933adedd2",
      QUIC_LB_VERSION_1, 0xc3 },
    { "RFC 9369, A.2", vector_v2, "8b1a0bc121284290a29e0971b5cd045d",
      "91f73e2351d8fa91660e909f", "45b95e15235d6f45a6b19cbcb0294ba9",
      QUIC_LB_VERSION_2, 0xd3 }
};

static quic_lb_initial_t  ctx;
static unsigned           fail_in;
static uint8_t            out[DATAGRAM];


wrap(EVP_MAC *, EVP_MAC_fetch, NULL,
    (OSSL_LIB_CTX *lib, const char *name, const char *properties),
    (lib, name, properties))
wrap(EVP_MAC_CTX *, EVP_MAC_CTX_new, NULL, (EVP_MAC *mac), (mac))
wrap(int, EVP_MAC_CTX_set_params, 0,
    (EVP_MAC_CTX *mac, const OSSL_PARAM params[]), (mac, params))
wrap(int, EVP_MAC_init, 0,
    (EVP_MAC_CTX *mac, const unsigned char *key, size_t len,
     const OSSL_PARAM params[]), (mac, key, len, params))
wrap(int, EVP_MAC_update, 0,
    (EVP_MAC_CTX *mac, const unsigned char *data, size_t len),
    (mac, data, len))
wrap(int, EVP_MAC_final, 0,
    (EVP_MAC_CTX *mac, unsigned char *to, size_t *len, size_t size),
    (mac, to, len, size))
wrap(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_new, NULL, (void), ())
wrap(int, EVP_CipherInit_ex, 0,
    (EVP_CIPHER_CTX *c, const EVP_CIPHER *cipher, ENGINE *engine,
     const unsigned char *key, const unsigned char *iv, int encrypt),
    (c, cipher, engine, key, iv, encrypt))
wrap(int, EVP_CIPHER_CTX_set_padding, 0, (EVP_CIPHER_CTX *c, int padding),
    (c, padding))
wrap(int, EVP_CIPHER_CTX_ctrl, 0,
    (EVP_CIPHER_CTX *c, int type, int arg, void *p), (c, type, arg, p))
wrap(int, EVP_CipherUpdate, 0,
    (EVP_CIPHER_CTX *c, unsigned char *to, int *to_len,
     const unsigned char *from, int len), (c, to, to_len, from, len))


int
main(void)
{
    size_t  i;

    if (!ok(quic_lb_initial_init(&ctx) == QUIC_LB_OK, "init")) {
        return tap_done();
    }

    for (i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        test_vector(&vectors[i]);
        test_truncated(&vectors[i]);
        test_changed(&vectors[i]);
        test_token(&vectors[i]);
        test_numbers(&vectors[i]);
    }

    test_expected();
    test_ranges();
    test_coalesced();

    quic_lb_initial_cleanup(&ctx);
    ok(ctx.mac == NULL && ctx.aead == NULL && ctx.mask == NULL, "cleanup");
    quic_lb_initial_cleanup(&ctx);

    test_failures();

    return tap_done();
}


static void
test_vector(const vector_t *v)
{
    uint8_t                    packet[DATAGRAM], frame[DATAGRAM], key[64];
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;
    uint8_t                    sealed[DATAGRAM];
    size_t                     len, header_len;

    derive(&keys, v->version);

    unhex(key, v->key);
    ok(memcmp(keys.key, key, sizeof(keys.key)) == 0, "%s: key", v->name);
    unhex(key, v->iv);
    ok(memcmp(keys.iv, key, sizeof(keys.iv)) == 0, "%s: iv", v->name);
    unhex(key, v->hp);
    ok(memcmp(keys.hp, key, sizeof(keys.hp)) == 0, "%s: hp", v->name);

    ok(unhex(packet, v->packet) == VECTOR_LEN
       && parse(&pkt, packet, VECTOR_LEN) == QUIC_LB_OK,
       "%s: header", v->name);

    ok(quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out)
       == QUIC_LB_OK, "%s: opens", v->name);
    ok(opened.number == VECTOR_NUMBER && opened.number_len == 4
       && opened.first == v->first, "%s: packet number, first octet", v->name);

    memset(frame, 0, sizeof(frame));
    len = unhex(frame, vector_frame);
    ok(len == 245 && opened.payload == out
       && opened.payload_len == VECTOR_PAYLOAD_LEN
       && memcmp(out, frame, VECTOR_PAYLOAD_LEN) == 0,
       "%s: payload", v->name);

    memset(sealed, 0xa5, sizeof(sealed));
    header_len = (size_t) (pkt.payload - packet);
    memcpy(sealed, packet, header_len);

    ok(quic_lb_initial_seal(&ctx, &keys, &opened, sealed, header_len)
       == QUIC_LB_OK
       && memcmp(sealed, packet, VECTOR_LEN) == 0, "%s: sealed", v->name);
    ok(header_len + quic_lb_initial_sealed_len(&opened) == VECTOR_LEN
       && sealed[VECTOR_LEN] == 0xa5, "%s: nothing behind it", v->name);
}


/* the header alone decides on the first, and the tag on the second */

static void
test_truncated(const vector_t *v)
{
    int                        rc;
    size_t                     len, refused, header_len;
    uint8_t                   *copy, packet[DATAGRAM];
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    derive(&keys, v->version);
    unhex(packet, v->packet);

    refused = 0;

    for (len = 0; len < VECTOR_LEN; len++) {
        refused += (parse(&pkt, packet, len) == QUIC_LB_ERR_SHORT);
    }

    ok(refused == VECTOR_LEN, "%s: every truncation", v->name);

    parse(&pkt, packet, VECTOR_LEN);
    header_len = (size_t) (pkt.payload - packet);

    refused = 0;

    for (len = header_len; len < VECTOR_LEN; len++) {
        copy = malloc(len);
        if (copy == NULL) {
            abort();
        }

        memcpy(copy, packet, len);

        pkt.payload = copy + header_len;
        pkt.payload_len = len - header_len;

        rc = quic_lb_initial_open(&ctx, &keys, &pkt, copy, 0, &opened, out);
        refused += (rc == (pkt.payload_len < 20 ? QUIC_LB_ERR_SHORT
                                                : QUIC_LB_ERR_INVALID));
        free(copy);
    }

    ok(refused == VECTOR_LEN - header_len,
       "%s: every truncation with a Length that fits", v->name);
}


static void
test_changed(const vector_t *v)
{
    size_t                     i, refused;
    uint8_t                    packet[DATAGRAM];
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    derive(&keys, v->version);
    unhex(packet, v->packet);
    parse(&pkt, packet, VECTOR_LEN);

    refused = 0;

    for (i = 0; i < VECTOR_LEN; i++) {
        packet[i] ^= 1 << i % 8;
        refused += (quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened,
                                         out)
                    == QUIC_LB_ERR_INVALID);
        packet[i] ^= 1 << i % 8;
    }

    ok(refused == VECTOR_LEN, "%s: every changed octet", v->name);

    ok(quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out)
       == QUIC_LB_OK, "%s: none is changed", v->name);

    derive(&keys, v->version == QUIC_LB_VERSION_1 ? QUIC_LB_VERSION_2
                                                  : QUIC_LB_VERSION_1);
    ok(quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out)
       == QUIC_LB_ERR_INVALID, "%s: keys of the other version", v->name);
}


/* a token of the same length in the place of another */

static void
test_token(const vector_t *v)
{
    size_t                     len, header_len;
    uint8_t                    packet[DATAGRAM], payload[DATAGRAM];
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    derive(&keys, v->version);

    memset(payload, 'p', sizeof(payload));
    opened.first = v->first & 0xf0;
    opened.number_len = 1;
    opened.number = 7;
    opened.payload = payload;
    opened.payload_len = 300;

    len = put_packet(packet, v->version, "one token", VECTOR_DCID, &opened);
    parse(&pkt, packet, len);

    ok(quic_lb_initial_open(&ctx, &keys, &pkt, packet, 7, &opened, out)
       == QUIC_LB_OK, "%s: with a token", v->name);

    memcpy(packet + (pkt.token - packet), "the other", pkt.token_len);

    ok(quic_lb_initial_open(&ctx, &keys, &pkt, packet, 7, &opened, payload)
       == QUIC_LB_ERR_INVALID, "%s: the token is protected", v->name);

    opened.payload = out;
    opened.payload_len = 300;
    header_len = (size_t) (pkt.payload - packet);

    ok(quic_lb_initial_seal(&ctx, &keys, &opened, packet, header_len)
       == QUIC_LB_OK
       && parse(&pkt, packet, len) == QUIC_LB_OK
       && quic_lb_initial_open(&ctx, &keys, &pkt, packet, 7, &opened, payload)
          == QUIC_LB_OK
       && opened.number == 7 && opened.payload_len == 300
       && payload[0] == 'p' && memcmp(payload, payload + 1, 299) == 0
       && memcmp(pkt.token, "the other", pkt.token_len) == 0,
       "%s: another token", v->name);
}


/* all lengths of the number, with the shortest payload that it allows */

static void
test_numbers(const vector_t *v)
{
    size_t                     len, least;
    uint8_t                    packet[DATAGRAM], payload[DATAGRAM];
    unsigned                   n;
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    derive(&keys, v->version);
    memset(payload, 1, sizeof(payload));

    for (n = 1; n <= 4; n++) {
        least = 4 - n;

        opened.first = (v->first & 0xf0) | (uint8_t) (n - 1);
        opened.number_len = (uint8_t) n;
        opened.number = 3;
        opened.payload = payload;
        opened.payload_len = least;

        len = put_packet(packet, v->version, "", VECTOR_DCID, &opened);

        ok(parse(&pkt, packet, len) == QUIC_LB_OK
           && quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out)
              == QUIC_LB_OK
           && opened.number == 3 && opened.number_len == n
           && opened.payload_len == least
           && memcmp(out, payload, least) == 0,
           "%s: number of %u octets", v->name, n);

        if (least) {
            opened.payload_len = least - 1;
            ok(quic_lb_initial_seal(&ctx, &keys, &opened, packet, 20)
               == QUIC_LB_ERR_RANGE, "%s: %u octets, too short", v->name, n);
        }
    }
}


/* RFC 9000, A.3: the nonce is right only if the whole number is */

static void
test_expected(void)
{
    quic_lb_initial_opened_t  opened;

    ok(open_number(2, 0xa82f9b32, 0xa82f30ea + 1, &opened) == QUIC_LB_OK
       && opened.number == 0xa82f9b32, "the RFC's example");

    ok(open_number(1, 0x100, 0xff, &opened) == QUIC_LB_OK
       && opened.number == 0x100, "into the next window");
    ok(open_number(1, 0xff, 0x101, &opened) == QUIC_LB_OK
       && opened.number == 0xff, "back from the next window");
    ok(open_number(1, 0x7f, 0, &opened) == QUIC_LB_OK
       && opened.number == 0x7f, "first, half a window");
    ok(open_number(1, 0xff, 0, &opened) == QUIC_LB_OK
       && opened.number == 0xff, "first, no negative numbers");
    ok(open_number(4, 0xfedcba98, 0, &opened) == QUIC_LB_OK
       && opened.number == 0xfedcba98, "first, four octets");
    ok(open_number(1, (UINT64_C(1) << 62) - 1, (UINT64_C(1) << 62) - 1,
                   &opened)
       == QUIC_LB_OK
       && opened.number == (UINT64_C(1) << 62) - 1, "the largest");
    ok(open_number(1, 0x200, 0, &opened) == QUIC_LB_ERR_INVALID,
       "too far from the expected");

    /* as near to either side */

    ok(open_number(1, 0x200, 0x180, &opened) == QUIC_LB_OK
       && opened.number == 0x200, "half a window ahead, not behind");
    ok(open_number(1, 0x180, 0x100, &opened) == QUIC_LB_OK
       && opened.number == 0x180, "half a window ahead");
    ok(open_number(1, (UINT64_C(1) << 62) - 256, (UINT64_C(1) << 62) - 1,
                   &opened)
       == QUIC_LB_OK
       && opened.number == (UINT64_C(1) << 62) - 256,
       "far behind, as numbers end there");
}


static void
test_ranges(void)
{
    uint8_t                    dcid[QUIC_LB_CID_MAX + 1], packet[64];
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    memset(dcid, 1, sizeof(dcid));
    memset(packet, 0, sizeof(packet));

    ok(quic_lb_initial_derive(&ctx, &keys, 0, dcid, 8) == QUIC_LB_ERR_RANGE,
       "version 0");
    ok(quic_lb_initial_derive(&ctx, &keys, 0xff00001d, dcid, 8)
       == QUIC_LB_ERR_RANGE, "draft version");
    ok(quic_lb_initial_derive(&ctx, &keys, 1, dcid, QUIC_LB_CID_MAX + 1)
       == QUIC_LB_ERR_RANGE, "long DCID");
    ok(quic_lb_initial_derive(&ctx, &keys, 1, dcid, QUIC_LB_CID_MAX)
       == QUIC_LB_OK, "the longest DCID");
    ok(quic_lb_initial_derive(&ctx, &keys, 1, dcid, 0) == QUIC_LB_OK,
       "empty DCID");

    opened.first = 0xc1;
    opened.number_len = 4;
    opened.number = 0;
    opened.payload = dcid;
    opened.payload_len = sizeof(dcid);

    ok(quic_lb_initial_seal(&ctx, &keys, &opened, packet, 10)
       == QUIC_LB_ERR_RANGE && packet[0] == 0 && packet[10] == 0,
       "a length of the number that the first octet does not state");
}


static void
test_coalesced(void)
{
    size_t                     len, one, two, other;
    uint8_t                    data[2 * DATAGRAM], payload[64];
    const uint8_t             *packet;
    quic_lb_packet_t           pkt;
    quic_lb_initial_walk_t     walk;
    quic_lb_initial_opened_t   opened;

    static const uint8_t  handshake[] = {
        0xe0, 0, 0, 0, 1, 8, 0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08,
        0, 2, 'h', 's'
    };

    memset(payload, 0, sizeof(payload));
    opened.first = 0xc0;
    opened.number_len = 1;
    opened.number = 0;
    opened.payload = payload;
    opened.payload_len = sizeof(payload);

    one = put_packet(data, QUIC_LB_VERSION_1, "", VECTOR_DCID, &opened);
    len = one;
    memcpy(data + len, handshake, sizeof(handshake));
    len += sizeof(handshake);
    other = put_packet(data + len, QUIC_LB_VERSION_1, "", "8394c8f03e515709",
                       &opened);
    len += other;
    two = len;
    len += put_packet(data + len, QUIC_LB_VERSION_1, "token", VECTOR_DCID,
                      &opened);
    memcpy(data + len, "trailing octets", 15);

    quic_lb_initial_walk(&walk, data, len + 15);

    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK
       && packet == data && pkt.payload + pkt.payload_len == data + one,
       "first Initial of a datagram");
    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK
       && packet == data + two && pkt.token_len == 5,
       "second, behind a Handshake packet and another DCID");
    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_ERR_SHORT
       && quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_ERR_SHORT,
       "no third");

    quic_lb_initial_walk(&walk, data, two + 20);
    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK
       && quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_ERR_SHORT,
       "the second is cut");

    quic_lb_initial_walk(&walk, data, 0);
    ok(quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_ERR_SHORT,
       "empty datagram");
}


/* each call of the library fails once */

static void
test_failures(void)
{
    unsigned  n, refused;

    refused = 0;

    for (n = 1; n < 100; n++) {
        fail_in = n;

        if (whole() == QUIC_LB_OK) {
            break;
        }

        refused++;
    }

    ok(refused > 30 && n < 100 && fail_in > 0, "%u calls fail", refused);
    fail_in = 0;
}


/* the way from init to seal; fails only as the library does */

static int
whole(void)
{
    int                        rc;
    uint8_t                    packet[DATAGRAM], dcid[QUIC_LB_CID_MAX];
    quic_lb_packet_t           pkt;
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    unhex(packet, vector_v1);
    unhex(dcid, VECTOR_DCID);
    parse(&pkt, packet, VECTOR_LEN);

    rc = quic_lb_initial_init(&ctx);

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_initial_derive(&ctx, &keys, 1, dcid, 8);
    }

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out);
    }

    if (rc == QUIC_LB_OK) {
        rc = quic_lb_initial_seal(&ctx, &keys, &opened, packet,
                                  (size_t) (pkt.payload - packet));
    }

    if (rc != QUIC_LB_OK && rc != QUIC_LB_ERR_CRYPTO) {
        ok(0, "a failure of the library is told as %d", rc);
    }

    quic_lb_initial_cleanup(&ctx);

    return rc;
}


static size_t
unhex(uint8_t *to, const char *hex)
{
    size_t    n;
    unsigned  octet;

    for (n = 0; sscanf(hex + 2 * n, "%2x", &octet) == 1; n++) {
        to[n] = (uint8_t) octet;
    }

    return n;
}


static void
derive(quic_lb_initial_keys_t *keys, uint32_t version)
{
    uint8_t  dcid[QUIC_LB_CID_MAX];

    if (quic_lb_initial_derive(&ctx, keys, version, dcid,
                               unhex(dcid, VECTOR_DCID))
        != QUIC_LB_OK)
    {
        ok(0, "keys");
    }
}


/* always under the keys of VECTOR_DCID; returns the length */

static size_t
put_packet(uint8_t *data, uint32_t version, const char *token,
    const char *dcid, quic_lb_initial_opened_t *opened)
{
    size_t                   len;
    uint8_t                 *p;
    quic_lb_initial_keys_t   keys;

    p = data;
    *p++ = opened->first;
    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;

    len = unhex(p + 1, dcid);
    *p++ = (uint8_t) len;
    p += len;
    *p++ = 0;

    len = strlen(token);
    *p++ = (uint8_t) len;
    memcpy(p, token, len);
    p += len;

    len = quic_lb_initial_sealed_len(opened);
    *p++ = (uint8_t) (0x40 | len >> 8);
    *p++ = (uint8_t) len;

    derive(&keys, version);

    if (quic_lb_initial_seal(&ctx, &keys, opened, data, (size_t) (p - data))
        != QUIC_LB_OK)
    {
        ok(0, "seal");
    }

    return (size_t) (p - data) + len;
}


static int
parse(quic_lb_packet_t *pkt, const uint8_t *data, size_t len)
{
    return quic_lb_packet_parse(pkt, data, len);
}


static int
open_number(unsigned number_len, uint64_t number, uint64_t expected,
    quic_lb_initial_opened_t *opened)
{
    size_t                   len;
    uint8_t                  packet[DATAGRAM], payload[64];
    quic_lb_packet_t         pkt;
    quic_lb_initial_keys_t   keys;

    memset(payload, 0, sizeof(payload));

    opened->first = 0xc0 | (uint8_t) (number_len - 1);
    opened->number_len = (uint8_t) number_len;
    opened->number = number;
    opened->payload = payload;
    opened->payload_len = sizeof(payload);

    len = put_packet(packet, QUIC_LB_VERSION_1, "", VECTOR_DCID, opened);
    derive(&keys, QUIC_LB_VERSION_1);

    if (parse(&pkt, packet, len) != QUIC_LB_OK) {
        return QUIC_LB_ERR_SHORT;
    }

    return quic_lb_initial_open(&ctx, &keys, &pkt, packet, expected, opened,
                                out);
}
