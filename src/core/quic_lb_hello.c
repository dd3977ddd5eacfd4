
/*
 * ClientHello, RFC 8446, 4.1.2.  A length that leads out of the message is an
 * error at once; one that leads out of what has come waits for the rest.
 */


#include <string.h>

#include "quic_lb_crypto.h"
#include "quic_lb_error.h"
#include "quic_lb_hello.h"


#define QUIC_LB_HELLO_CLIENT_HELLO  1     /* RFC 8446, 4: HandshakeType */
#define QUIC_LB_HELLO_HEADER_LEN    4     /* type and length */

#define QUIC_LB_HELLO_VERSION_LEN   2
#define QUIC_LB_HELLO_RANDOM_LEN    32
#define QUIC_LB_HELLO_SESSION_MAX   32

/* RFC 8446, 4.2: ExtensionType */

#define QUIC_LB_HELLO_SERVER_NAME   0
#define QUIC_LB_HELLO_ALPN          16

#define QUIC_LB_HELLO_HOST_NAME     0     /* RFC 6066, 3: NameType */


/* |end| is that of the message, |have| that of what has come of it */

typedef struct {
    const uint8_t  *pos;
    const uint8_t  *have;
    const uint8_t  *end;
} quic_lb_hello_reader_t;


static int quic_lb_hello_header(quic_lb_hello_reader_t *r,
    const uint8_t *data, size_t len);
static int quic_lb_hello_fields(quic_lb_hello_reader_t *r);
static int quic_lb_hello_extensions(quic_lb_hello_t *hello,
    quic_lb_hello_reader_t *r);
static int quic_lb_hello_extension(quic_lb_hello_t *hello, size_t type,
    const uint8_t *pos, size_t len);
static int quic_lb_hello_server_name(quic_lb_hello_t *hello,
    const uint8_t *pos, size_t len);
static int quic_lb_hello_is_address(const uint8_t *name, size_t len);
static int quic_lb_hello_alpn(quic_lb_hello_t *hello, const uint8_t *pos,
    size_t len);
static int quic_lb_hello_bytes(quic_lb_hello_reader_t *r, size_t len,
    const uint8_t **bytes);
static int quic_lb_hello_number(quic_lb_hello_reader_t *r, size_t octets,
    size_t *value);
static int quic_lb_hello_vector(quic_lb_hello_reader_t *r, size_t octets,
    size_t min, size_t max);
static size_t quic_lb_hello_integer(const uint8_t *p, size_t octets);


int
quic_lb_hello_parse(quic_lb_hello_t *hello, const uint8_t *data, size_t len)
{
    int                     rc;
    quic_lb_hello_reader_t  r;

    memset(hello, 0, sizeof(quic_lb_hello_t));

    rc = quic_lb_hello_header(&r, data, len);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_hello_fields(&r);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    return quic_lb_hello_extensions(hello, &r);
}


static int
quic_lb_hello_header(quic_lb_hello_reader_t *r, const uint8_t *data,
    size_t len)
{
    size_t  hello_len;

    if (len && data[0] != QUIC_LB_HELLO_CLIENT_HELLO) {
        return QUIC_LB_ERR_INVALID;
    }

    if (len < QUIC_LB_HELLO_HEADER_LEN) {
        return QUIC_LB_ERR_SHORT;
    }

    hello_len = quic_lb_hello_integer(data + 1, 3);

    if (hello_len > QUIC_LB_CRYPTO_MAX - QUIC_LB_HELLO_HEADER_LEN) {
        return QUIC_LB_ERR_FULL;
    }

    len -= QUIC_LB_HELLO_HEADER_LEN;

    r->pos = data + QUIC_LB_HELLO_HEADER_LEN;
    r->end = r->pos + hello_len;
    r->have = (len < hello_len) ? r->pos + len : r->end;

    return QUIC_LB_OK;
}


/* all before the extensions */

static int
quic_lb_hello_fields(quic_lb_hello_reader_t *r)
{
    int             rc;
    const uint8_t  *bytes;

    rc = quic_lb_hello_bytes(r, QUIC_LB_HELLO_VERSION_LEN
                                + QUIC_LB_HELLO_RANDOM_LEN, &bytes);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    /* legacy_session_id, cipher_suites, legacy_compression_methods */

    rc = quic_lb_hello_vector(r, 1, 0, QUIC_LB_HELLO_SESSION_MAX);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    rc = quic_lb_hello_vector(r, 2, 2, 65534);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    return quic_lb_hello_vector(r, 1, 1, 255);
}


static int
quic_lb_hello_extensions(quic_lb_hello_t *hello, quic_lb_hello_reader_t *r)
{
    int             rc;
    size_t          len, type;
    const uint8_t  *data;

    /* they end the message */

    rc = quic_lb_hello_number(r, 2, &len);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    if (len != (size_t) (r->end - r->pos)) {
        return QUIC_LB_ERR_INVALID;
    }

    while (r->pos < r->end) {
        rc = quic_lb_hello_number(r, 2, &type);
        if (rc != QUIC_LB_OK) {
            return rc;
        }

        rc = quic_lb_hello_number(r, 2, &len);
        if (rc != QUIC_LB_OK) {
            return rc;
        }

        rc = quic_lb_hello_bytes(r, len, &data);
        if (rc != QUIC_LB_OK) {
            return rc;
        }

        rc = quic_lb_hello_extension(hello, type, data, len);
        if (rc != QUIC_LB_OK) {
            return rc;
        }
    }

    return QUIC_LB_OK;
}


static int
quic_lb_hello_extension(quic_lb_hello_t *hello, size_t type,
    const uint8_t *pos, size_t len)
{
    switch (type) {

    case QUIC_LB_HELLO_SERVER_NAME:
        return quic_lb_hello_server_name(hello, pos, len);

    case QUIC_LB_HELLO_ALPN:
        return quic_lb_hello_alpn(hello, pos, len);

    default:
        return QUIC_LB_OK;
    }
}


/*
 * RFC 6066, 3 allows a name of each type, but host_name is the only type, and
 * TLS libraries refuse any other list.
 */

static int
quic_lb_hello_server_name(quic_lb_hello_t *hello, const uint8_t *pos,
    size_t len)
{
    size_t  name_len;

    /* RFC 8446, 4.2: an extension does not come twice */

    if (hello->server_name != NULL) {
        return QUIC_LB_ERR_INVALID;
    }

    /* length of the list, type and length of the name */

    if (len < 5
        || quic_lb_hello_integer(pos, 2) != len - 2
        || pos[2] != QUIC_LB_HELLO_HOST_NAME
        || quic_lb_hello_integer(pos + 3, 2) != len - 5)
    {
        return QUIC_LB_ERR_INVALID;
    }

    pos += 5;
    name_len = len - 5;

    if (name_len == 0
        || name_len > QUIC_LB_HELLO_NAME_MAX
        || memchr(pos, 0, name_len) != NULL)
    {
        return QUIC_LB_ERR_INVALID;
    }

    hello->server_name = pos;
    hello->server_name_len = name_len;
    hello->address = quic_lb_hello_is_address(pos, name_len);

    return QUIC_LB_OK;
}


static int
quic_lb_hello_is_address(const uint8_t *name, size_t len)
{
    size_t  i;

    if (memchr(name, ':', len) != NULL) {
        return 1;
    }

    for (i = 0; i < len; i++) {

        if (name[i] != '.' && (name[i] < '0' || name[i] > '9')) {
            return 0;
        }
    }

    return 1;
}


/* RFC 7301, 3.1 */

static int
quic_lb_hello_alpn(quic_lb_hello_t *hello, const uint8_t *pos, size_t len)
{
    const uint8_t  *p, *end;

    if (hello->alpn != NULL
        || len < 3
        || quic_lb_hello_integer(pos, 2) != len - 2)
    {
        return QUIC_LB_ERR_INVALID;
    }

    end = pos + len;

    for (p = pos + 2; p < end; p += 1 + p[0]) {

        if (p[0] == 0 || p[0] > end - p - 1) {
            return QUIC_LB_ERR_INVALID;
        }
    }

    hello->alpn = pos + 2;
    hello->alpn_len = len - 2;

    return QUIC_LB_OK;
}


static int
quic_lb_hello_bytes(quic_lb_hello_reader_t *r, size_t len,
    const uint8_t **bytes)
{
    if ((size_t) (r->end - r->pos) < len) {
        return QUIC_LB_ERR_INVALID;
    }

    if ((size_t) (r->have - r->pos) < len) {
        return QUIC_LB_ERR_SHORT;
    }

    *bytes = r->pos;
    r->pos += len;

    return QUIC_LB_OK;
}


/* an integer of as many |octets|: a length, or a type */

static int
quic_lb_hello_number(quic_lb_hello_reader_t *r, size_t octets, size_t *value)
{
    int             rc;
    const uint8_t  *bytes;

    rc = quic_lb_hello_bytes(r, octets, &bytes);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    *value = quic_lb_hello_integer(bytes, octets);

    return QUIC_LB_OK;
}


/* skips |min| to |max| octets behind their length */

static int
quic_lb_hello_vector(quic_lb_hello_reader_t *r, size_t octets, size_t min,
    size_t max)
{
    int             rc;
    size_t          len;
    const uint8_t  *bytes;

    rc = quic_lb_hello_number(r, octets, &len);
    if (rc != QUIC_LB_OK) {
        return rc;
    }

    if (len < min || len > max) {
        return QUIC_LB_ERR_INVALID;
    }

    return quic_lb_hello_bytes(r, len, &bytes);
}


static size_t
quic_lb_hello_integer(const uint8_t *p, size_t octets)
{
    size_t  i, value;

    value = 0;

    for (i = 0; i < octets; i++) {
        value = value << 8 | p[i];
    }

    return value;
}
