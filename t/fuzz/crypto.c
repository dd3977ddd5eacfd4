
/*
 * Frames of Initial packets and the CRYPTO stream.  The first octet selects:
 * payloads as they are, each behind an octet with its length, in memory of
 * just that length; or CRYPTO frames made of three octets, offset, length and
 * content, against a naive model.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_crypto.h"
#include "quic_lb_error.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void payloads(quic_lb_crypto_t *crypto, const uint8_t *data,
    size_t len);
static void frames(quic_lb_crypto_t *crypto, const uint8_t *data, size_t len);
static void check_model(const quic_lb_crypto_t *crypto, const int *model);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                rc;
    size_t             stream;
    uint8_t           *memory;
    quic_lb_crypto_t   crypto;

    if (size < 2) {
        return 0;
    }

    stream = (size_t) data[1] + 1;

    memory = malloc(quic_lb_crypto_room(stream));
    if (memory == NULL) {
        abort();
    }

    rc = quic_lb_crypto_init(&crypto, memory, stream);
    assert(rc == QUIC_LB_OK && crypto.len == 0 && crypto.data == memory);

    if (data[0] & 1) {
        frames(&crypto, data + 2, size - 2);

    } else {
        payloads(&crypto, data + 2, size - 2);
    }

    free(memory);

    return 0;
}


static void
payloads(quic_lb_crypto_t *crypto, const uint8_t *data, size_t len)
{
    int       rc;
    size_t    n, before;
    uint8_t  *copy, *stream;

    while (len) {
        n = (data[0] < len - 1) ? data[0] : len - 1;
        before = crypto->len;

        copy = malloc(n ? n : 1);
        stream = malloc(before ? before : 1);

        if (copy == NULL || stream == NULL) {
            abort();
        }

        memcpy(copy, data + 1, n);
        memcpy(stream, crypto->data, before);

        rc = quic_lb_crypto_read(crypto, copy, n);

        assert(rc == QUIC_LB_OK || rc == QUIC_LB_ERR_INVALID
               || rc == QUIC_LB_ERR_FULL);
        assert(n != 0 || rc == QUIC_LB_ERR_INVALID);
        assert(crypto->len >= before && crypto->len <= crypto->size);

        /* what a reader has seen does not change */

        assert(memcmp(stream, crypto->data, before) == 0);

        free(stream);
        free(copy);

        data += n + 1;
        len -= n + 1;
    }
}


static void
frames(quic_lb_crypto_t *crypto, const uint8_t *data, size_t len)
{
    int      rc, model[256];
    size_t   i, offset, n;
    uint8_t  frame[5 + 64];

    memset(model, -1, sizeof(model));

    for ( /* void */ ; len >= 3; data += 3, len -= 3) {
        offset = data[0];
        n = data[1] % 64;

        frame[0] = 6;
        frame[1] = 0x40;
        frame[2] = (uint8_t) offset;
        frame[3] = (uint8_t) n;
        memset(frame + 4, data[2], n);
        frame[4 + n] = 1;

        rc = quic_lb_crypto_read(crypto, frame, 5 + n);

        if (offset + n > crypto->size) {
            assert(rc == QUIC_LB_ERR_FULL);

        } else {
            assert(rc == QUIC_LB_OK);

            for (i = offset; i < offset + n; i++) {
                if (model[i] < 0) {
                    model[i] = data[2];
                }
            }
        }

        check_model(crypto, model);
    }
}


static void
check_model(const quic_lb_crypto_t *crypto, const int *model)
{
    size_t  i;

    for (i = 0; i < crypto->len; i++) {
        assert(model[i] == crypto->data[i]);
    }

    assert(crypto->len == crypto->size || model[crypto->len] < 0);
}
