
/*
 * ClientHellos, and all that has come of one before its end: what is found in
 * less of it is found in more, and all of it decides.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_error.h"
#include "quic_lb_hello.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static int parse_more(quic_lb_hello_t *hello, int last, const uint8_t *data,
    size_t len);
static int parse(quic_lb_hello_t *hello, const uint8_t *data, size_t len);
static void check(const quic_lb_hello_t *hello, const uint8_t *data,
    size_t len);
static void check_inside(const uint8_t *p, size_t p_len, const uint8_t *data,
    size_t len);
static void check_kept(const uint8_t *p, size_t p_len, const uint8_t *q,
    size_t q_len);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int               rc;
    size_t            n, step;
    quic_lb_hello_t   hello;

    memset(&hello, 0, sizeof(hello));
    rc = QUIC_LB_ERR_SHORT;

    /* not octet by octet, else the work is quadratic */

    step = 1 + size / 128;

    for (n = 0; n < size; n += step) {
        rc = parse_more(&hello, rc, data, n);
    }

    (void) parse_more(&hello, rc, data, size);

    return 0;
}


/* |hello| and |last| are the result of fewer octets */

static int
parse_more(quic_lb_hello_t *hello, int last, const uint8_t *data, size_t len)
{
    int               rc;
    quic_lb_hello_t   before;

    before = *hello;
    rc = parse(hello, data, len);

    /* once decided, for good */

    assert(last == QUIC_LB_ERR_SHORT || rc == last);

    if (rc != QUIC_LB_OK && rc != QUIC_LB_ERR_SHORT) {
        assert(rc == QUIC_LB_ERR_INVALID || rc == QUIC_LB_ERR_FULL);
        memset(hello, 0, sizeof(quic_lb_hello_t));
        return rc;
    }

    check(hello, data, len);

    check_kept(before.server_name, before.server_name_len,
               hello->server_name, hello->server_name_len);
    check_kept(before.alpn, before.alpn_len, hello->alpn, hello->alpn_len);

    return rc;
}


/* in memory of just that length; |hello| then points into |data| */

static int
parse(quic_lb_hello_t *hello, const uint8_t *data, size_t len)
{
    int       rc;
    uint8_t  *exact;

    exact = malloc(len ? len : 1);
    if (exact == NULL) {
        abort();
    }

    memcpy(exact, data, len);
    rc = quic_lb_hello_parse(hello, exact, len);
    free(exact);

    assert(quic_lb_hello_parse(hello, data, len) == rc);

    return rc;
}


static void
check(const quic_lb_hello_t *hello, const uint8_t *data, size_t len)
{
    const uint8_t  *p, *end;

    if (hello->server_name == NULL) {
        assert(hello->server_name_len == 0 && !hello->address);

    } else {
        check_inside(hello->server_name, hello->server_name_len, data, len);
        assert(hello->server_name_len <= QUIC_LB_HELLO_NAME_MAX);
        assert(memchr(hello->server_name, 0, hello->server_name_len) == NULL);
    }

    if (hello->alpn == NULL) {
        assert(hello->alpn_len == 0);
        return;
    }

    check_inside(hello->alpn, hello->alpn_len, data, len);

    end = hello->alpn + hello->alpn_len;

    for (p = hello->alpn; p < end; p += 1 + p[0]) {
        assert(p[0] != 0);
    }

    assert(p == end);
}


static void
check_inside(const uint8_t *p, size_t p_len, const uint8_t *data, size_t len)
{
    assert(p_len > 0);
    assert(p > data && p < data + len);
    assert(p_len <= (size_t) (data + len - p));
}


static void
check_kept(const uint8_t *p, size_t p_len, const uint8_t *q, size_t q_len)
{
    assert(p == NULL || (p == q && p_len == q_len));
}
