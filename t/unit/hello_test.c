
/*
 * ClientHellos: names, protocols, everything that breaks their form, every
 * truncation; and generated ones the whole way, through sealed Initial packets
 * and CRYPTO frames in any order.
 */


#include <stdlib.h>
#include <string.h>

#include "quic_lb_crypto.h"
#include "quic_lb_error.h"
#include "quic_lb_hello.h"
#include "quic_lb_initial.h"
#include "initial_vectors.h"
#include "tap.h"


#define SPLITS      10000
#define FRAMES      40
#define REPEATED    8
#define DATAGRAMS   4
#define HELLO       4096
#define DATAGRAM    16384

#define SNI         0
#define ALPN        16
#define KEY_SHARE   51
#define ECH         0xfe0d


typedef struct {
    uint8_t    data[HELLO];
    size_t     len;
} message_t;

typedef struct {
    size_t     offset;
    size_t     len;
} frame_t;

typedef struct {
    uint8_t    data[DATAGRAM];
    size_t     len;
} payload_t;


static void test_vector(void);
static void test_names(void);
static void test_name(const char *name, int address);
static void test_refused_names(void);
static void test_alpn(void);
static void test_extensions(void);
static void test_fields(void);
static void test_vectors(void);
static void test_truncated(void);
static void test_lengths(void);

static void test_splits(void);
static void generate(message_t *m, char *name);
static size_t split(const message_t *m, frame_t *frames);
static int deliver(const message_t *m, const char *name, int *whole);
static void put_frame(payload_t *p, const message_t *m, const frame_t *f);
static void put_other(payload_t *p);
static size_t seal(uint8_t *data, const payload_t *p, uint64_t number);
static int receive(quic_lb_crypto_t *crypto, const uint8_t *data, size_t len);

static void begin(message_t *m);
static void end(message_t *m);
static void put(message_t *m, const void *data, size_t len);
static void put_integer(message_t *m, size_t value, size_t octets);
static void put_extension(message_t *m, unsigned type, const void *data,
    size_t len);
static void put_name(message_t *m, const char *name, size_t len);
static int parse(quic_lb_hello_t *hello, const message_t *m);
static int is(const uint8_t *data, size_t len, const char *expected);
static size_t below(size_t limit);


static quic_lb_initial_t       ctx;
static quic_lb_initial_keys_t  keys;


int
main(void)
{
    static const uint8_t  dcid[] = {
        0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08
    };

    test_vector();
    test_names();
    test_refused_names();
    test_alpn();
    test_extensions();
    test_fields();
    test_vectors();
    test_truncated();
    test_lengths();

    if (ok(quic_lb_initial_init(&ctx) == QUIC_LB_OK
           && quic_lb_initial_derive(&ctx, &keys, QUIC_LB_VERSION_2, dcid,
                                     sizeof(dcid))
              == QUIC_LB_OK, "keys"))
    {
        test_splits();
    }

    quic_lb_initial_cleanup(&ctx);

    return tap_done();
}


static void
test_vector(void)
{
    size_t            i;
    unsigned          octet;
    message_t         m;
    quic_lb_hello_t   hello;

    /* behind the header of the CRYPTO frame */

    for (i = 0; sscanf(vector_frame + 8 + 2 * i, "%2x", &octet) == 1; i++) {
        m.data[i] = (uint8_t) octet;
    }

    m.len = i;

    ok(parse(&hello, &m) == QUIC_LB_OK
       && is(hello.server_name, hello.server_name_len, "example.com")
       && is(hello.alpn, hello.alpn_len, "\4alpn") && !hello.address,
       "RFC 9001, A.2");
}


static void
test_names(void)
{
    char              name[QUIC_LB_HELLO_NAME_MAX + 1];
    message_t         m;
    quic_lb_hello_t   hello;

    test_name("a.example", 0);
    test_name("MiXed.Example.", 0);
    test_name("x", 0);
    test_name("1.2.3.4.example", 0);
    test_name("192.0.2.1", 1);
    test_name("2001:db8::1", 1);
    test_name("[::1]", 1);

    memset(name, 'n', sizeof(name));
    name[QUIC_LB_HELLO_NAME_MAX] = '\0';
    test_name(name, 0);

    begin(&m);
    put_extension(&m, ALPN, "\0\3\2h3", 5);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_OK && hello.server_name == NULL
       && hello.server_name_len == 0 && !hello.address
       && is(hello.alpn, hello.alpn_len, "\2h3"), "no name");

    begin(&m);
    put_extension(&m, ECH, "\0outer", 6);
    put_name(&m, "public.example", 14);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_OK
       && is(hello.server_name, hello.server_name_len, "public.example"),
       "the outer name of an encrypted ClientHello");
}


static void
test_name(const char *name, int address)
{
    message_t         m;
    quic_lb_hello_t   hello;

    begin(&m);
    put_extension(&m, KEY_SHARE, "some key", 8);
    put_name(&m, name, strlen(name));
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_OK
       && is(hello.server_name, hello.server_name_len, name)
       && hello.address == address && hello.alpn == NULL,
       "name %.20s", name);
}


static void
test_refused_names(void)
{
    char              name[QUIC_LB_HELLO_NAME_MAX + 2];
    size_t            i;
    message_t         m;
    quic_lb_hello_t   hello;

    static const struct {
        const char  *name;
        const char  *data;
        size_t       len;
    } cases[] = {
        { "no list", "", 0 },
        { "empty list", "\0\0", 2 },
        { "cut list", "\0\4\0\0\1", 5 },
        { "empty name", "\0\3\0\0\0", 5 },
        { "NUL in the name", "\0\6\0\0\3a\0b", 8 },
        { "another type of name", "\0\4\1\0\1a", 6 },
        { "two names", "\0\10\0\0\1a\0\0\1b", 10 },
        { "octets behind the list", "\0\4\0\0\1ab", 7 },
        { "octets behind the name", "\0\5\0\0\1ab", 7 },
        { "name longer than the list", "\0\4\0\0\2a", 6 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&m);
        put_extension(&m, SNI, cases[i].data, cases[i].len);
        end(&m);

        ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "%s", cases[i].name);
    }

    memset(name, 'n', sizeof(name));

    begin(&m);
    put_name(&m, name, QUIC_LB_HELLO_NAME_MAX + 1);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "name that is too long");

    begin(&m);
    put_name(&m, "a.example", 9);
    put_name(&m, "a.example", 9);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "two extensions of names");
}


static void
test_alpn(void)
{
    size_t            i;
    message_t         m;
    quic_lb_hello_t   hello;

    static const struct {
        const char  *name;
        const char  *data;
        size_t       len;
    } cases[] = {
        { "no ALPN list", "", 0 },
        { "empty ALPN list", "\0\0", 2 },
        { "empty protocol", "\0\1\0", 3 },
        { "empty second protocol", "\0\4\2h3\0", 6 },
        { "cut protocol", "\0\3\3h3", 5 },
        { "octets behind the ALPN list", "\0\3\2h3x", 6 },
        { "ALPN list that is cut", "\0\4\2h3", 5 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&m);
        put_extension(&m, ALPN, cases[i].data, cases[i].len);
        end(&m);

        ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "%s", cases[i].name);
    }

    begin(&m);
    put_extension(&m, ALPN, "\0\11\2h3\5h3-29", 11);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_OK
       && is(hello.alpn, hello.alpn_len, "\2h3\5h3-29"), "two protocols");

    begin(&m);
    put_extension(&m, ALPN, "\0\3\2h3", 5);
    put_extension(&m, ALPN, "\0\3\2h3", 5);
    end(&m);

    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "two ALPN extensions");
}


static void
test_extensions(void)
{
    message_t         m;
    quic_lb_hello_t   hello;

    begin(&m);
    end(&m);
    ok(parse(&hello, &m) == QUIC_LB_OK && hello.server_name == NULL
       && hello.alpn == NULL, "an empty list of extensions");

    begin(&m);
    put_name(&m, "a.example", 9);
    put(&m, "xyz", 3);
    end(&m);
    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "half an extension");

    begin(&m);
    put(&m, "\x12\x34\xff\xff", 4);
    end(&m);
    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID,
       "an extension that leads out of the message");

    begin(&m);
    put_name(&m, "a.example", 9);
    end(&m);
    put(&m, "another message", 15);
    ok(parse(&hello, &m) == QUIC_LB_OK
       && is(hello.server_name, hello.server_name_len, "a.example"),
       "octets behind the ClientHello");
}


/* a ClientHello with one octet changed, by its offset */

static void
test_fields(void)
{
    size_t            i;
    message_t         m;
    quic_lb_hello_t   hello;

    static const struct {
        const char  *name;
        size_t       offset;
        uint8_t      value;
        int          rc;
    } cases[] = {
        { "another message", 0, 2, QUIC_LB_ERR_INVALID },
        { "16 MB", 1, 255, QUIC_LB_ERR_FULL },
        { "16 KiB", 2, 0x40, QUIC_LB_ERR_FULL },
        { "message that is longer than its extensions", 3, 255,
          QUIC_LB_ERR_INVALID },
        { "message that ends in its random", 3, 20, QUIC_LB_ERR_INVALID },
        { "session ID of 33 octets", 38, 33, QUIC_LB_ERR_INVALID },
        { "no cipher suites", 40, 0, QUIC_LB_ERR_INVALID },
        { "cipher suites out of the message", 39, 200, QUIC_LB_ERR_INVALID },
        { "no compression methods", 43, 0, QUIC_LB_ERR_INVALID },
        { "fewer extensions than there are", 46, 1, QUIC_LB_ERR_INVALID },
        { "another version", 4, 9, QUIC_LB_OK }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&m);
        put_name(&m, "a.example", 9);
        end(&m);
        m.data[cases[i].offset] = cases[i].value;

        ok(parse(&hello, &m) == cases[i].rc, "%s", cases[i].name);
    }
}


/* the fields whose length is a choice, at their bounds */

static void
test_vectors(void)
{
    size_t            i;
    message_t         m;
    quic_lb_hello_t   hello;

    static const uint8_t  octets[256] = { 0 };

    static const struct {
        size_t  session;
        size_t  suites;
        size_t  methods;
        int     rc;
    } cases[] = {
        { 0, 2, 1, QUIC_LB_OK },
        { 1, 2, 1, QUIC_LB_OK },
        { 32, 2, 1, QUIC_LB_OK },
        { 33, 2, 1, QUIC_LB_ERR_INVALID },
        { 64, 2, 1, QUIC_LB_ERR_INVALID },
        { 0, 0, 1, QUIC_LB_ERR_INVALID },
        { 0, 1, 1, QUIC_LB_ERR_INVALID },
        { 0, 256, 1, QUIC_LB_OK },
        { 0, 2, 0, QUIC_LB_ERR_INVALID },
        { 0, 2, 255, QUIC_LB_OK },
        { 32, 256, 255, QUIC_LB_OK }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        m.len = 0;
        put(&m, "\1\0", 2);
        put_integer(&m, 2 + 32 + 1 + cases[i].session + 2 + cases[i].suites
                        + 1 + cases[i].methods + 2, 2);
        put(&m, "\3\3", 2);
        put(&m, octets, 32);
        put_integer(&m, cases[i].session, 1);
        put(&m, octets, cases[i].session);
        put_integer(&m, cases[i].suites, 2);
        put(&m, octets, cases[i].suites);
        put_integer(&m, cases[i].methods, 1);
        put(&m, octets, cases[i].methods);
        put_integer(&m, 0, 2);

        ok(parse(&hello, &m) == cases[i].rc,
           "session ID of %zu octets, cipher suites of %zu, methods of %zu",
           cases[i].session, cases[i].suites, cases[i].methods);
    }
}


/* none is complete; the name is there once all of its extension has come */

static void
test_truncated(void)
{
    size_t            n, len, behind, count, named;
    message_t         m;
    quic_lb_hello_t   hello;

    begin(&m);
    put_extension(&m, KEY_SHARE, "some key", 8);
    put_name(&m, "a.example", 9);
    behind = m.len;
    put_extension(&m, ALPN, "\0\3\2h3", 5);
    put_extension(&m, KEY_SHARE + 1, "another", 7);
    end(&m);

    len = m.len;
    count = 0;
    named = 0;

    for (n = 0; n < len; n++) {
        m.len = n;
        count += (parse(&hello, &m) == QUIC_LB_ERR_SHORT);
        named += (n < behind
                  ? hello.server_name == NULL
                  : is(hello.server_name, hello.server_name_len,
                       "a.example"));
    }

    ok(count == len, "every truncation");
    ok(named == len, "the name in every truncation");
}


/* of the longest that is read, no more than the header */

static void
test_lengths(void)
{
    message_t         m;
    quic_lb_hello_t   hello;

    m.len = 4;

    memcpy(m.data, "\1\0\x3f\xfc", 4);
    ok(parse(&hello, &m) == QUIC_LB_ERR_SHORT, "of 16 KiB");

    memcpy(m.data, "\1\0\x3f\xfd", 4);
    ok(parse(&hello, &m) == QUIC_LB_ERR_FULL, "an octet longer");

    memcpy(m.data, "\1\0\0\0", 4);
    ok(parse(&hello, &m) == QUIC_LB_ERR_INVALID, "empty");
}


static void
test_splits(void)
{
    int         whole;
    char        name[QUIC_LB_HELLO_NAME_MAX + 1];
    unsigned    i, right, complete;
    message_t   m;

    right = 0;
    complete = 0;

    for (i = 0; i < SPLITS; i++) {
        generate(&m, name);
        right += deliver(&m, name, &whole);
        complete += whole;
    }

    ok(right == SPLITS, "%u splits, never another name", SPLITS);
    ok(complete > SPLITS / 2 && complete < SPLITS,
       "%u complete, some lose a datagram", complete);
}


/* extensions in any order, |name| in one of them, or empty */

static void
generate(message_t *m, char *name)
{
    size_t   i, n, len, at;
    uint8_t  key[2000];

    len = below(8) ? 1 + below(60) : 0;

    for (i = 0; i < len; i++) {
        name[i] = (char) ('a' + below(26));
    }

    name[len] = '\0';

    n = 1 + below(8);
    at = below(n);

    begin(m);

    for (i = 0; i < n; i++) {

        if (i == at && len) {
            put_name(m, name, len);

        } else {
            len = below(n > 1 ? 400 : sizeof(key));
            tap_random_bytes(key, len);
            put_extension(m, KEY_SHARE + (unsigned) i, key, len);
            len = strlen(name);
        }
    }

    end(m);
}


/* into frames in any order, some of them empty, some twice or overlapping */

static size_t
split(const message_t *m, frame_t *frames)
{
    size_t   i, j, n, cut, count;
    frame_t  f;

    count = 1 + below(FRAMES);
    f.offset = 0;

    for (n = 0; n < count; n++) {
        cut = (n == count - 1)
              ? m->len
              : f.offset + below(1 + 2 * (m->len - f.offset) / (count - n));

        f.len = (cut > m->len ? m->len : cut) - f.offset;
        frames[n] = f;
        f.offset += f.len;
    }

    for (i = below(REPEATED); i > 0; i--) {
        f.offset = below(m->len);
        f.len = below(1 + m->len - f.offset);
        frames[n++] = f;
    }

    for (i = n - 1; i > 0; i--) {
        j = below(i + 1);
        f = frames[i];
        frames[i] = frames[j];
        frames[j] = f;
    }

    return n;
}


/*
 * Two Initial packets in each datagram.  What comes last contradicts all that
 * has come before; the octets of a datagram that is lost are missing, and so
 * must not be contradicted.
 */

static int
deliver(const message_t *m, const char *name, int *whole)
{
    int                rc, lost, named;
    size_t             i, n, len, count, packet;
    frame_t            frames[FRAMES + REPEATED];
    message_t          wrong;
    quic_lb_hello_t    hello;
    quic_lb_crypto_t   crypto;

    static uint8_t     memory[quic_lb_crypto_room(HELLO)];
    static uint8_t     datagram[2 * DATAGRAM];
    static payload_t   payloads[2 * DATAGRAMS];

    *whole = 0;

    if (quic_lb_crypto_init(&crypto, memory, HELLO) != QUIC_LB_OK) {
        return 0;
    }

    n = split(m, frames);
    count = 2 * (1 + below(DATAGRAMS));
    lost = below(6) ? -1 : (int) (2 * below(count / 2));

    for (i = 0; i < count; i++) {
        payloads[i].len = 0;
        put_other(&payloads[i]);
    }

    for (i = 0; i < n; i++) {
        packet = below(count);
        put_frame(&payloads[packet], m, &frames[i]);
        put_other(&payloads[packet]);
    }

    named = 1;

    for (i = 0; i < count; i += 2) {

        if ((int) i == lost) {
            continue;
        }

        len = seal(datagram, &payloads[i], i);
        len += seal(datagram + len, &payloads[i + 1], i + 1);

        if (receive(&crypto, datagram, len) != QUIC_LB_OK) {
            return 0;
        }

        memset(wrong.data, 'x', sizeof(wrong.data));
        wrong.len = crypto.len;
        payloads[i].len = 0;
        put_frame(&payloads[i], &wrong, &(frame_t) { 0, crypto.len });

        len = seal(datagram, &payloads[i], i + 2);

        if (receive(&crypto, datagram, len) != QUIC_LB_OK) {
            return 0;
        }

        rc = quic_lb_hello_parse(&hello, crypto.data, crypto.len);

        if (rc != QUIC_LB_OK && rc != QUIC_LB_ERR_SHORT) {
            return 0;
        }

        if (rc == QUIC_LB_OK || hello.server_name != NULL) {
            named = is(hello.server_name, hello.server_name_len, name);
        }

        if (!named) {
            return 0;
        }
    }

    *whole = (crypto.len == m->len);

    return *whole ? memcmp(crypto.data, m->data, m->len) == 0 : lost >= 0;
}


static void
put_frame(payload_t *p, const message_t *m, const frame_t *f)
{
    uint8_t  *pos;

    pos = p->data + p->len;

    *pos++ = 6;
    *pos++ = (uint8_t) (0x40 | f->offset >> 8);
    *pos++ = (uint8_t) f->offset;
    *pos++ = (uint8_t) (0x40 | f->len >> 8);
    *pos++ = (uint8_t) f->len;
    memcpy(pos, m->data + f->offset, f->len);

    p->len = (size_t) (pos - p->data) + f->len;
}


static void
put_other(payload_t *p)
{
    static const struct {
        uint8_t  data[8];
        size_t   len;
    } others[] = {
        { { 0, 0, 0, 0 }, 4 },
        { { 1, 0, 0, 1 }, 4 },
        { { 2, 5, 0, 0, 5 }, 5 },
        { { 3, 9, 0, 0, 1, 1, 2, 3 }, 8 }
    };

    size_t  i;

    i = below(sizeof(others) / sizeof(others[0]));
    memcpy(p->data + p->len, others[i].data, others[i].len);
    p->len += others[i].len;
}


static size_t
seal(uint8_t *data, const payload_t *p, uint64_t number)
{
    size_t                     len;
    quic_lb_initial_opened_t   opened;

    static const uint8_t  header[] = {
        0xd0, 0x6b, 0x33, 0x43, 0xcf, 4, 'd', 'c', 'i', 'd', 0, 0
    };

    opened.first = 0xd0;
    opened.number_len = 1;
    opened.number = number;
    opened.payload = p->data;
    opened.payload_len = p->len;

    len = quic_lb_initial_sealed_len(&opened);

    memcpy(data, header, sizeof(header));
    data[12] = (uint8_t) (0x80 | len >> 24);
    data[13] = (uint8_t) (len >> 16);
    data[14] = (uint8_t) (len >> 8);
    data[15] = (uint8_t) len;

    if (quic_lb_initial_seal(&ctx, &keys, &opened, data, 16) != QUIC_LB_OK) {
        return 0;
    }

    return 16 + len;
}


static int
receive(quic_lb_crypto_t *crypto, const uint8_t *data, size_t len)
{
    int                        rc;
    const uint8_t             *packet;
    quic_lb_packet_t           pkt;
    quic_lb_initial_walk_t     walk;
    quic_lb_initial_opened_t   opened;

    static uint8_t  out[2 * DATAGRAM];

    quic_lb_initial_walk(&walk, data, len);

    while (quic_lb_initial_next(&walk, &pkt, &packet) == QUIC_LB_OK) {
        rc = quic_lb_initial_open(&ctx, &keys, &pkt, packet, 0, &opened, out);
        if (rc != QUIC_LB_OK) {
            return rc;
        }

        rc = quic_lb_crypto_read(crypto, opened.payload, opened.payload_len);
        if (rc != QUIC_LB_OK) {
            return rc;
        }
    }

    return QUIC_LB_OK;
}


/* up to the extensions; end() puts the lengths in */

static void
begin(message_t *m)
{
    m->len = 0;
    put(m, "\1\0\0\0\3\3", 6);
    put(m, "0123456789abcdef0123456789abcdef", 32);
    put(m, "\0\0\2\x13\1\1\0\0\0", 9);
}


static void
end(message_t *m)
{
    size_t  len;

    len = m->len;

    m->len = 1;
    put_integer(m, len - 4, 3);
    m->len = 45;
    put_integer(m, len - 47, 2);

    m->len = len;
}


static void
put(message_t *m, const void *data, size_t len)
{
    if (len > HELLO - m->len) {
        abort();
    }

    memcpy(m->data + m->len, data, len);
    m->len += len;
}


static void
put_integer(message_t *m, size_t value, size_t octets)
{
    uint8_t  octet;

    while (octets--) {
        octet = (uint8_t) (value >> 8 * octets);
        put(m, &octet, 1);
    }
}


static void
put_extension(message_t *m, unsigned type, const void *data, size_t len)
{
    put_integer(m, type, 2);
    put_integer(m, len, 2);
    put(m, data, len);
}


static void
put_name(message_t *m, const char *name, size_t len)
{
    put_integer(m, SNI, 2);
    put_integer(m, len + 5, 2);
    put_integer(m, len + 3, 2);
    put_integer(m, 0, 1);
    put_integer(m, len, 2);
    put(m, name, len);
}


/* in memory of just that length; |hello| then points into |m| */

static int
parse(quic_lb_hello_t *hello, const message_t *m)
{
    int       rc, again;
    uint8_t  *copy;

    copy = malloc(m->len ? m->len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, m->data, m->len);
    rc = quic_lb_hello_parse(hello, copy, m->len);
    free(copy);

    again = quic_lb_hello_parse(hello, m->data, m->len);

    return (again == rc) ? rc : 1;
}


/* an empty string is for none */

static int
is(const uint8_t *data, size_t len, const char *expected)
{
    if (data == NULL) {
        return len == 0 && expected[0] == '\0';
    }

    return len == strlen(expected) && memcmp(data, expected, len) == 0;
}


static size_t
below(size_t limit)
{
    return (size_t) (tap_random() >> 32) % limit;
}
