
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "packets.h"


/* RFC 9000, 17.2: the types of version 1 */

#define INITIAL  0
#define RETRY    3

#define NUMBER   4
#define MINIMUM  1200


typedef struct {
    unsigned   id;
    size_t     server_id;
    size_t     nonce;
    int        encrypted;
    int        length;
} config_t;


static config_t  configs[CONFIGS] = {
    { 0, 1, 7, 1, 0 },
    { 1, 3, 13, 1, 1 },
    { 2, 2, 6, 0, 0 }
};

static uint64_t              state;
static quic_lb_cid_conf_t    confs[CONFIGS];
static quic_lb_retry_t       retry;
static quic_lb_retry_keys_t  retry_keys;


static uint8_t *write_cid(uint8_t *p, const cid_t *cid);
static uint8_t *write_varint(uint8_t *p, uint64_t value);
static uint8_t *write_header(uint8_t *p, unsigned type, uint32_t version,
    const cid_t *dcid, const cid_t *scid);
static uint8_t *write_crypto(uint8_t *p, connection_t *c, size_t offset,
    size_t len);
static uint8_t *write_frames(uint8_t *p, connection_t *c, size_t room);
static size_t hello_make(uint8_t *out, const char *name, size_t size);


void
random_seed(uint64_t seed)
{
    state = seed * 2685821657736338717u + 88172645463325252u;
}


/* xorshift64 */

uint32_t
random_below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;

    return (uint32_t) (state >> 32) % n;
}


void
random_octets(uint8_t *p, size_t n)
{
    while (n--) {
        *p++ = (uint8_t) random_below(256);
    }
}


int
one_in(uint32_t n)
{
    return random_below(n) == 0;
}


void
packets_init(const uint8_t *lb_key, const uint8_t *secret, size_t secret_len)
{
    int              rc;
    unsigned         i;
    const config_t  *cf;

    rc = quic_lb_retry_init(&retry);
    rc |= quic_lb_retry_derive(&retry_keys, secret, secret_len);

    for (i = 0; i < CONFIGS; i++) {
        cf = &configs[i];
        rc |= quic_lb_cid_init(&confs[i], cf->id, cf->server_id, cf->nonce,
                               cf->encrypted ? lb_key : NULL, cf->length);
    }

    if (rc != QUIC_LB_OK) {
        fprintf(stderr, "no ciphers\n");
        exit(2);
    }
}


void
cid_random(cid_t *cid, size_t len)
{
    cid->len = len;
    random_octets(cid->data, len);
}


void
cid_of_server(cid_t *cid, unsigned server)
{
    uint8_t          id[QUIC_LB_SERVER_ID_MAX], nonce[QUIC_LB_NONCE_MAX];
    unsigned         i;
    const config_t  *cf;

    i = random_below(CONFIGS);
    cf = &configs[i];

    memset(id, 0, sizeof(id));
    id[cf->server_id - 1] = (uint8_t) server;
    random_octets(nonce, sizeof(nonce));

    if (quic_lb_cid_encode(&confs[i], cid->data, (uint8_t) random_below(256),
                           id, nonce)
        != QUIC_LB_OK)
    {
        fprintf(stderr, "no connection ID\n");
        exit(2);
    }

    cid->len = quic_lb_cid_len(&confs[i]);
}


void
connection_begin(connection_t *c, const char *name, size_t hello)
{
    c->version = one_in(4) ? QUIC_LB_VERSION_2 : QUIC_LB_VERSION_1;

    cid_random(&c->dcid, one_in(8) ? random_below(21) : 8 + random_below(13));
    cid_random(&c->scid, one_in(4) ? 0 : random_below(21));

    c->keys = c->dcid;
    c->token_len = 0;
    c->hello_len = hello_make(c->hello, name, hello);
    c->hello_sent = 0;
    c->number = random_below(4);
}


static uint8_t *
write_cid(uint8_t *p, const cid_t *cid)
{
    *p++ = (uint8_t) cid->len;
    memcpy(p, cid->data, cid->len);

    return p + cid->len;
}


/* RFC 9000, 16: of two octets, or eight */

static uint8_t *
write_varint(uint8_t *p, uint64_t value)
{
    int  i;

    if (value < 0x4000) {
        *p++ = (uint8_t) (0x40 | value >> 8);
        *p++ = (uint8_t) value;
        return p;
    }

    value |= UINT64_C(0xc0) << 56;

    for (i = 7; i >= 0; i--) {
        *p++ = (uint8_t) (value >> 8 * i);
    }

    return p;
}


static uint8_t *
write_header(uint8_t *p, unsigned type, uint32_t version, const cid_t *dcid,
    const cid_t *scid)
{
    if (version == QUIC_LB_VERSION_2) {
        type = (type + 1) % 4;
    }

    *p++ = (uint8_t) (0xc0 | type << 4 | (NUMBER - 1));
    *p++ = (uint8_t) (version >> 24);
    *p++ = (uint8_t) (version >> 16);
    *p++ = (uint8_t) (version >> 8);
    *p++ = (uint8_t) version;

    p = write_cid(p, dcid);

    return write_cid(p, scid);
}


static uint8_t *
write_crypto(uint8_t *p, connection_t *c, size_t offset, size_t len)
{
    *p++ = 0x06;
    p = write_varint(p, offset);
    p = write_varint(p, len);
    memcpy(p, c->hello + offset, len);

    return p + len;
}


/* the next piece of the ClientHello in frames of any order, with others */

static uint8_t *
write_frames(uint8_t *p, connection_t *c, size_t room)
{
    size_t    at, len, half;
    uint8_t  *start;

    start = p;
    at = c->hello_sent;

    /* again from anywhere, if all of it is sent */

    if (at >= c->hello_len || one_in(8)) {
        at = random_below((uint32_t) c->hello_len);
    }

    len = c->hello_len - at;

    if (len > room - 80) {
        len = room - 80;
    }

    if (one_in(3)) {
        len = 1 + random_below((uint32_t) len);
    }

    if (one_in(4)) {
        *p++ = 0x01;
    }

    if (one_in(8)) {

        /* an acknowledgment */

        memcpy(p, "\x02\x00\x00\x00\x00", 5);
        p += 5;
    }

    half = random_below((uint32_t) len + 1);

    if (one_in(2)) {
        p = write_crypto(p, c, at + half, len - half);
        p = write_crypto(p, c, at, half);

    } else {
        p = write_crypto(p, c, at, len);
    }

    if (one_in(32)) {
        start[random_below((uint32_t) (p - start))] ^= 1 << random_below(8);
    }

    if (at <= c->hello_sent && at + len > c->hello_sent) {
        c->hello_sent = at + len;
    }

    return p;
}


size_t
packet_initial(connection_t *c, uint8_t *out)
{
    size_t                     head, want;
    uint8_t                   *p, *frames, *end, text[MTU];
    quic_lb_initial_keys_t     keys;
    quic_lb_initial_opened_t   opened;

    p = write_header(out, INITIAL, c->version, &c->dcid, &c->scid);
    p = write_varint(p, c->token_len);
    memcpy(p, c->token, c->token_len);
    p += c->token_len;

    head = (size_t) (p - out) + 2;
    frames = text;

    end = write_frames(frames, c, 1300 - (head < 1100 ? head : 1100));

    want = one_in(8) ? 40 : MINIMUM;
    memset(end, 0, (size_t) (text + MTU - end));

    if ((size_t) (end - frames) + head + NUMBER + QUIC_LB_INITIAL_TAG_LEN
        < want)
    {
        end = frames + want - head - NUMBER - QUIC_LB_INITIAL_TAG_LEN;
    }

    if (head + (size_t) (end - frames) + NUMBER + QUIC_LB_INITIAL_TAG_LEN
        > MTU)
    {
        end = frames + MTU - head - NUMBER - QUIC_LB_INITIAL_TAG_LEN;
    }

    opened.first = out[0];
    opened.number_len = NUMBER;
    opened.number = c->number++;
    opened.payload = frames;
    opened.payload_len = (size_t) (end - frames);

    p = write_varint(p, quic_lb_initial_sealed_len(&opened));

    if (quic_lb_initial_derive(&retry.initial, &keys, c->version, c->keys.data,
                               c->keys.len)
        != QUIC_LB_OK
        || quic_lb_initial_seal(&retry.initial, &keys, &opened, out,
                                (size_t) (p - out))
           != QUIC_LB_OK)
    {
        random_octets(p, 40);
        return (size_t) (p - out) + 40;
    }

    return (size_t) (p - out) + quic_lb_initial_sealed_len(&opened);
}


size_t
packet_long(uint8_t *out, unsigned type, uint32_t version, const cid_t *dcid,
    const cid_t *scid, size_t payload)
{
    uint8_t  *p;

    p = write_header(out, type, version, dcid, scid);

    if (type == INITIAL && version != 0) {
        *p++ = 0;
    }

    if (p - out + payload + 2 > MTU) {
        payload = (size_t) (MTU - 2 - (p - out));
    }

    p = write_varint(p, payload);
    random_octets(p, payload);

    return (size_t) (p - out) + payload;
}


size_t
packet_short(uint8_t *out, const cid_t *dcid, size_t payload)
{
    out[0] = (uint8_t) (0x40 | random_below(64));
    memcpy(out + 1, dcid->data, dcid->len);
    random_octets(out + 1 + dcid->len, payload);

    return 1 + dcid->len + payload;
}


size_t
packet_retry(uint8_t *out, uint32_t version, const cid_t *dcid,
    const cid_t *scid)
{
    size_t    len;
    uint8_t  *p;

    p = write_header(out, RETRY, version, dcid, scid);
    len = random_below(120);
    random_octets(p, len);

    return (size_t) (p - out) + len;
}


size_t
packet_negotiation(uint8_t *out, const cid_t *dcid, const cid_t *scid)
{
    uint8_t  *p;

    p = write_header(out, random_below(4), 0, dcid, scid);
    memcpy(p, "\0\0\0\1\x6b\x33\x43\xcf", 8);

    return (size_t) (p - out) + 8;
}


size_t
token_make(uint8_t *out, const uint8_t *address, size_t len,
    const cid_t *dcid, const cid_t *scid)
{
    uint8_t                  iv[QUIC_LB_RETRY_IV_LEN];
    quic_lb_retry_token_t    token;
    quic_lb_retry_address_t  from;

    memset(&token, 0, sizeof(token));

    /* seconds */
    token.expires = (uint32_t) time(NULL) + 5 - (one_in(4) ? 60 : 0);

    token.dcid_len = (uint8_t) (dcid->len % (QUIC_LB_CID_MAX + 1));
    memcpy(token.dcid, dcid->data, token.dcid_len);

    token.scid_len = (uint8_t) (scid->len % (QUIC_LB_CID_MAX + 1));
    memcpy(token.scid, scid->data, token.scid_len);

    from.data = address;
    from.len = len;
    random_octets(iv, sizeof(iv));

    if (quic_lb_retry_make(&retry, &retry_keys, &token, &from, iv, out)
        != QUIC_LB_OK)
    {
        return 0;
    }

    return QUIC_LB_RETRY_TOKEN_LEN;
}


/* RFC 8446, 4.1.2; |size| is reached by a padding extension */

static size_t
hello_make(uint8_t *out, const char *name, size_t size)
{
    size_t    len, n;
    uint8_t  *p, *extensions;

    memcpy(out, "\x01\x00\x00\x00\x03\x03", 6);
    random_octets(out + 6, 32);
    p = out + 38;

    memcpy(p, "\x00\x00\x02\x13\x01\x01\x00", 7);
    extensions = p + 7;
    p = extensions + 2;

    len = strlen(name);

    if (len) {
        n = len + 5;
        *p++ = 0;
        *p++ = 0;
        *p++ = (uint8_t) (n >> 8);
        *p++ = (uint8_t) n;
        *p++ = (uint8_t) ((n - 2) >> 8);
        *p++ = (uint8_t) (n - 2);
        *p++ = 0;
        *p++ = (uint8_t) (len >> 8);
        *p++ = (uint8_t) len;
        memcpy(p, name, len);
        p += len;
    }

    if (one_in(2)) {
        memcpy(p, "\x00\x10\x00\x05\x00\x03\x02h3", 9);
        p += 9;
    }

    if ((size_t) (p - out) + 4 < size) {
        n = size - (size_t) (p - out) - 4;
        *p++ = 0;
        *p++ = 21;
        *p++ = (uint8_t) (n >> 8);
        *p++ = (uint8_t) n;
        memset(p, 0, n);
        p += n;
    }

    n = (size_t) (p - extensions) - 2;
    extensions[0] = (uint8_t) (n >> 8);
    extensions[1] = (uint8_t) n;

    n = (size_t) (p - out) - 4;
    out[2] = (uint8_t) (n >> 8);
    out[3] = (uint8_t) n;

    return (size_t) (p - out);
}
