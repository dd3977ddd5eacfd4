
/*
 * QUIC packet headers: every type of versions 1 and 2, version-independent
 * fields of all others, short headers, coalesced packets, every truncation.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_packet.h"
#include "tap.h"


#define GREASED     0x1a2a3a4a    /* RFC 9000, 15: reserved version */

#define TOKEN       "token"
#define PAYLOAD     "packet number, ciphertext and tag"

#define DATAGRAM    2048


/* a packet to be, and what it must parse to */

typedef struct {
    const char             *name;
    uint8_t                 first;
    uint32_t                version;
    quic_lb_packet_type_e   type;
    size_t                  dcid_len;
    size_t                  scid_len;
} packet_case_t;


static void test_long(const packet_case_t *c);
static void test_truncated(const packet_case_t *c, const uint8_t *datagram,
    size_t len);
static void test_cid_lengths(uint32_t version, size_t max);
static void test_length_field(void);
static void test_token_length(void);
static void test_coalesced(void);
static void test_short(void);
static void test_empty(void);

static uint8_t *put_packet(uint8_t *p, const packet_case_t *c);
static uint8_t *put_invariants(uint8_t *p, uint8_t first, uint32_t version,
    size_t dcid_len, size_t scid_len);
static uint8_t *put_bytes(uint8_t *p, const void *data, size_t len);
static int has_token(const packet_case_t *c);
static int has_length(const packet_case_t *c);
static int parse(quic_lb_packet_t *pkt, const uint8_t *data, size_t len);


/* without the fixed bit: v2 Retry, 0x80, differs from a v1 Initial */

static const packet_case_t  cases[] = {
    { "v1 Initial", 0xc3, QUIC_LB_VERSION_1, QUIC_LB_PACKET_INITIAL, 8, 5 },
    { "v1 0-RTT", 0xd3, QUIC_LB_VERSION_1, QUIC_LB_PACKET_0RTT, 8, 5 },
    { "v1 Handshake", 0xe3, QUIC_LB_VERSION_1, QUIC_LB_PACKET_HANDSHAKE,
      20, 20 },
    { "v1 Retry", 0xff, QUIC_LB_VERSION_1, QUIC_LB_PACKET_RETRY, 0, 8 },

    { "v2 Initial", 0xd3, QUIC_LB_VERSION_2, QUIC_LB_PACKET_INITIAL, 20, 0 },
    { "v2 0-RTT", 0xe3, QUIC_LB_VERSION_2, QUIC_LB_PACKET_0RTT, 8, 5 },
    { "v2 Handshake", 0xf3, QUIC_LB_VERSION_2, QUIC_LB_PACKET_HANDSHAKE,
      0, 0 },
    { "v2 Retry", 0xc0, QUIC_LB_VERSION_2, QUIC_LB_PACKET_RETRY, 8, 5 },

    { "v1 Initial, fixed bit 0", 0x80, QUIC_LB_VERSION_1,
      QUIC_LB_PACKET_INITIAL, 8, 5 },
    { "v2 Handshake, fixed bit 0", 0xb0, QUIC_LB_VERSION_2,
      QUIC_LB_PACKET_HANDSHAKE, 8, 5 },
    { "v2 Retry, fixed bit 0", 0x80, QUIC_LB_VERSION_2,
      QUIC_LB_PACKET_RETRY, 8, 5 },

    { "Version Negotiation", 0x80, 0, QUIC_LB_PACKET_NEGOTIATION, 8, 5 },
    { "Version Negotiation, long IDs", 0xff, 0, QUIC_LB_PACKET_NEGOTIATION,
      255, 255 },

    { "reserved version", 0xc0, GREASED, QUIC_LB_PACKET_UNKNOWN, 8, 5 },
    { "unknown version, long IDs", 0xf0, 0xffffffff, QUIC_LB_PACKET_UNKNOWN,
      255, 255 },
    { "unknown version, no IDs", 0x80, 2, QUIC_LB_PACKET_UNKNOWN, 0, 0 }
};


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_long(&cases[i]);
    }

    test_cid_lengths(QUIC_LB_VERSION_1, QUIC_LB_CID_MAX);
    test_cid_lengths(QUIC_LB_VERSION_2, QUIC_LB_CID_MAX);
    test_cid_lengths(GREASED, 255);
    test_cid_lengths(0, 255);

    test_length_field();
    test_token_length();
    test_coalesced();
    test_short();
    test_empty();

    return tap_done();
}


static void
test_long(const packet_case_t *c)
{
    size_t             len, token_len;
    uint8_t            datagram[DATAGRAM];
    const uint8_t     *p;
    quic_lb_packet_t   pkt;

    len = put_packet(datagram, c) - datagram;

    ok(parse(&pkt, datagram, len) == QUIC_LB_OK, "%s", c->name);

    ok(pkt.type == c->type, "%s: type", c->name);
    ok(pkt.version == c->version, "%s: version", c->name);

    p = datagram + 6;
    ok(pkt.dcid == p && pkt.dcid_len == c->dcid_len, "%s: DCID", c->name);

    p += c->dcid_len + 1;
    ok(pkt.scid == p && pkt.scid_len == c->scid_len, "%s: SCID", c->name);

    p += c->scid_len;

    if (has_token(c)) {
        token_len = strlen(TOKEN);
        p++;
        ok(pkt.token == p && pkt.token_len == token_len, "%s: token", c->name);
        p += token_len;

    } else {
        ok(pkt.token == NULL && pkt.token_len == 0, "%s: no token", c->name);
    }

    if (has_length(c)) {
        p++;
    }

    ok(pkt.payload == p && pkt.payload_len == strlen(PAYLOAD)
       && memcmp(pkt.payload, PAYLOAD, pkt.payload_len) == 0,
       "%s: payload", c->name);

    test_truncated(c, datagram, len);
}


/* what has no Length field is complete with the header */

static void
test_truncated(const packet_case_t *c, const uint8_t *datagram, size_t len)
{
    int               failed;
    size_t            n, needed;
    quic_lb_packet_t  pkt;

    needed = has_length(c) ? len : len - strlen(PAYLOAD);
    failed = 0;

    for (n = 0; n < needed; n++) {
        if (parse(&pkt, datagram, n) != QUIC_LB_ERR_SHORT) {
            printf("# accepted: %zu of %zu octets\n", n, len);
            failed++;
        }
    }

    ok(!failed, "%s: each of %zu truncations is refused", c->name, needed);

    for (n = needed; n <= len; n++) {
        if (parse(&pkt, datagram, n) != QUIC_LB_OK
            || (!has_length(c) && pkt.payload_len != n - needed))
        {
            printf("# refused or wrong: %zu of %zu octets\n", n, len);
            failed++;
        }
    }

    ok(!failed, "%s: taken from %zu octets on", c->name, needed);
}


static void
test_cid_lengths(uint32_t version, size_t max)
{
    int               rc, failed;
    size_t            n, len;
    uint8_t           datagram[DATAGRAM];
    quic_lb_packet_t  pkt;

    failed = 0;

    for (n = 0; n <= 255; n++) {

        /* two zeroes are an empty token and an empty payload */

        len = put_invariants(datagram, 0xd0, version, n, 0) - datagram;
        memset(datagram + len, 0, 2);

        rc = parse(&pkt, datagram, len + 2);
        failed += (rc != (n <= max ? QUIC_LB_OK : QUIC_LB_ERR_INVALID));

        len = put_invariants(datagram, 0xd0, version, 0, n) - datagram;
        memset(datagram + len, 0, 2);

        rc = parse(&pkt, datagram, len + 2);
        failed += (rc != (n <= max ? QUIC_LB_OK : QUIC_LB_ERR_INVALID));
    }

    ok(!failed, "version 0x%08" PRIx32 ": IDs up to %zu octets", version, max);
}


static void
test_length_field(void)
{
    size_t            len;
    uint8_t           datagram[DATAGRAM], *p;
    quic_lb_packet_t  pkt;

    p = put_invariants(datagram, 0xe0, QUIC_LB_VERSION_1, 8, 8);

    len = put_bytes(p, "\x00", 1) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_OK && pkt.payload_len == 0
       && pkt.payload == datagram + len,
       "Length 0");

    len = put_bytes(p, "\x40\x03" "abc", 5) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_OK && pkt.payload_len == 3,
       "Length of two octets");

    len = put_bytes(p, "\xc0\x00\x00\x00\x00\x00\x00\x03" "abcd", 12)
          - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_OK && pkt.payload_len == 3
       && memcmp(pkt.payload, "abc", 3) == 0,
       "Length of eight octets, datagram longer");

    len = put_bytes(p, "\x04" "abc", 4) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT,
       "Length one octet beyond the datagram");

    len = put_bytes(p, "\xff\xff\xff\xff\xff\xff\xff\xff" "abc", 11)
          - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT, "Length 2^62 - 1");

    len = put_bytes(p, "\xc0\x00\x00\x01\x00\x00\x00\x00" "abc", 11)
          - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT,
       "Length 2^32: no low bits only");
}


static void
test_token_length(void)
{
    size_t            len;
    uint8_t           datagram[DATAGRAM], *p;
    quic_lb_packet_t  pkt;

    p = put_invariants(datagram, 0xc0, QUIC_LB_VERSION_1, 8, 8);

    len = put_bytes(p, "\x00\x01" "a", 3) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_OK && pkt.token == p + 1
       && pkt.token_len == 0 && pkt.payload_len == 1,
       "an empty token");

    len = put_bytes(p, "\x03\x01" "a", 3) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT,
       "a token beyond the datagram");

    len = put_bytes(p, "\x02\x01" "a", 3) - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT,
       "a token up to the end, no Length");

    len = put_bytes(p, "\xff\xff\xff\xff\xff\xff\xff\xff\x01" "a", 10)
          - datagram;
    ok(parse(&pkt, datagram, len) == QUIC_LB_ERR_SHORT,
       "a token of 2^62 - 1 octets");
}


/* as a server answers: Initial, Handshake, 1-RTT in one datagram */

static void
test_coalesced(void)
{
    size_t            i;
    uint8_t           datagram[DATAGRAM], *p;
    const uint8_t    *pos, *end;
    quic_lb_packet_t  pkt;

    static const quic_lb_packet_type_e  types[] = {
        QUIC_LB_PACKET_INITIAL, QUIC_LB_PACKET_HANDSHAKE,
        QUIC_LB_PACKET_INITIAL, QUIC_LB_PACKET_SHORT
    };

    p = put_packet(datagram, &cases[0]);
    p = put_packet(p, &cases[2]);
    p = put_packet(p, &cases[4]);
    p = put_bytes(p, "\x40" "12345678", 9);

    pos = datagram;
    end = p;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (!ok(parse(&pkt, pos, (size_t) (end - pos)) == QUIC_LB_OK
                && pkt.type == types[i],
                "packet %zu of a datagram", i))
        {
            return;
        }

        pos += pkt.payload + pkt.payload_len - pkt.dcid
               + (pkt.type == QUIC_LB_PACKET_SHORT ? 1 : 6);
    }

    ok(pos == end, "no more packets");
}


static void
test_short(void)
{
    size_t            len;
    uint8_t           datagram[DATAGRAM];
    quic_lb_packet_t  pkt;

    memset(datagram, 0x7f, sizeof(datagram));

    for (len = 1; len <= 24; len++) {
        ok(parse(&pkt, datagram, len) == QUIC_LB_OK
           && pkt.type == QUIC_LB_PACKET_SHORT && pkt.version == 0
           && pkt.dcid == datagram + 1
           && pkt.dcid_len == (len - 1 < 20 ? len - 1 : 20)
           && pkt.scid == NULL && pkt.scid_len == 0
           && pkt.token == NULL && pkt.token_len == 0
           && pkt.payload == datagram + 1 && pkt.payload_len == len - 1,
           "short header, %zu octets", len);
    }

    datagram[0] = 0x00;

    ok(parse(&pkt, datagram, sizeof(datagram)) == QUIC_LB_OK
       && pkt.type == QUIC_LB_PACKET_SHORT && pkt.dcid_len == 20,
       "short header, fixed bit 0");
}


static void
test_empty(void)
{
    quic_lb_packet_t  pkt;

    ok(quic_lb_packet_parse(&pkt, NULL, 0) == QUIC_LB_ERR_SHORT,
       "an empty datagram");
}


static uint8_t *
put_packet(uint8_t *p, const packet_case_t *c)
{
    p = put_invariants(p, c->first, c->version, c->dcid_len, c->scid_len);

    if (has_token(c)) {
        *p++ = (uint8_t) strlen(TOKEN);
        p = put_bytes(p, TOKEN, strlen(TOKEN));
    }

    if (has_length(c)) {
        *p++ = (uint8_t) strlen(PAYLOAD);
    }

    return put_bytes(p, PAYLOAD, strlen(PAYLOAD));
}


static uint8_t *
put_invariants(uint8_t *p, uint8_t first, uint32_t version, size_t dcid_len,
    size_t scid_len)
{
    *p++ = first;
    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;

    *p++ = (uint8_t) dcid_len;
    memset(p, 0xd1, dcid_len);
    p += dcid_len;

    *p++ = (uint8_t) scid_len;
    memset(p, 0x51, scid_len);

    return p + scid_len;
}


static uint8_t *
put_bytes(uint8_t *p, const void *data, size_t len)
{
    memcpy(p, data, len);

    return p + len;
}


static int
has_token(const packet_case_t *c)
{
    return c->type == QUIC_LB_PACKET_INITIAL;
}


static int
has_length(const packet_case_t *c)
{
    return c->type == QUIC_LB_PACKET_INITIAL
           || c->type == QUIC_LB_PACKET_0RTT
           || c->type == QUIC_LB_PACKET_HANDSHAKE;
}


/*
 * Parses a copy of just |len| octets, so that the sanitizer sees every octet
 * read beyond them, and moves what points into it back to |data|.
 */

static int
parse(quic_lb_packet_t *pkt, const uint8_t *data, size_t len)
{
    int       rc;
    uint8_t  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, data, len);

    rc = quic_lb_packet_parse(pkt, copy, len);

    if (rc == QUIC_LB_OK) {
        pkt->dcid = data + (pkt->dcid - copy);
        pkt->payload = data + (pkt->payload - copy);

        if (pkt->scid != NULL) {
            pkt->scid = data + (pkt->scid - copy);
        }

        if (pkt->token != NULL) {
            pkt->token = data + (pkt->token - copy);
        }
    }

    free(copy);

    return rc;
}
