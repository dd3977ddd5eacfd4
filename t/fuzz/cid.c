
/*
 * QUIC-LB connection IDs: the input is a configuration, a key and a CID.
 * What decodes is encoded again and must be the same; what does not must not
 * touch the outputs; and any encoded server ID and nonce must come back.
 *
 * Input: config ID and flags, server ID length, nonce length, octets of the
 * key, then the CID to decode.
 */


#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "quic_lb_cid.h"
#include "quic_lb_error.h"


#define HEAD      (3 + QUIC_LB_KEY_LEN)

#define SENTINEL  0xa5


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void check_decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid,
    size_t len, int exact);
static void check_untouched(const uint8_t *p, size_t len);
static void check_round_trip(const quic_lb_cid_conf_t *conf,
    const uint8_t *data, size_t len);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                  rc, valid;
    uint8_t             *copy;
    unsigned             config_id;
    quic_lb_cid_conf_t   conf;

    if (size < HEAD) {
        return 0;
    }

    config_id = data[0] & 0x0f;

    rc = quic_lb_cid_init(&conf, config_id, data[1], data[2],
                          (data[0] & 0x10) ? data + 3 : NULL,
                          data[0] & 0x20);

    valid = (config_id <= 6 && data[1] >= 1 && data[1] <= 15 && data[2] >= 4
             && data[2] <= 18 && data[1] + data[2] <= 19);

    assert(rc == (valid ? QUIC_LB_OK : QUIC_LB_ERR_RANGE));

    if (!valid) {
        return 0;
    }

    size -= HEAD;

    copy = malloc(size ? size : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, data + HEAD, size);

    check_decode(&conf, copy, size, 0);
    check_decode(&conf, copy, size, 1);
    check_round_trip(&conf, copy, size);

    free(copy);

    quic_lb_cid_cleanup(&conf);

    return 0;
}


static void
check_decode(const quic_lb_cid_conf_t *conf, const uint8_t *cid, size_t len,
    int exact)
{
    int      rc;
    uint8_t  sid[15], nonce[18], again[20], sid_only[15];

    memset(sid, SENTINEL, sizeof(sid));
    memset(nonce, SENTINEL, sizeof(nonce));
    memset(sid_only, SENTINEL, sizeof(sid_only));

    rc = quic_lb_cid_decode(conf, cid, len, exact, sid, nonce);

    assert(quic_lb_cid_decode(conf, cid, len, exact, sid_only, NULL) == rc);
    assert(memcmp(sid, sid_only, sizeof(sid)) == 0);

    if (rc != QUIC_LB_OK) {
        assert((rc == QUIC_LB_ERR_SHORT) == (len < quic_lb_cid_len(conf)));
        assert(rc == QUIC_LB_ERR_SHORT || rc == QUIC_LB_ERR_INVALID);
        check_untouched(sid, sizeof(sid));
        check_untouched(nonce, sizeof(nonce));
        return;
    }

    assert(len >= quic_lb_cid_len(conf));
    assert(cid[0] >> 5 == conf->config_id);

    check_untouched(sid + conf->server_id_len,
                    sizeof(sid) - conf->server_id_len);
    check_untouched(nonce + conf->nonce_len,
                    sizeof(nonce) - conf->nonce_len);

    assert(quic_lb_cid_encode(conf, again, cid[0], sid, nonce) == QUIC_LB_OK);
    assert(memcmp(again + 1, cid + 1, quic_lb_cid_len(conf) - 1) == 0);

    if (!conf->length_self_description) {
        assert(again[0] == cid[0]);
    }
}


static void
check_untouched(const uint8_t *p, size_t len)
{
    size_t  i;

    for (i = 0; i < len; i++) {
        assert(p[i] == SENTINEL);
    }
}


/* the server ID and the nonce are taken from |data|, zeroes beyond it */

static void
check_round_trip(const quic_lb_cid_conf_t *conf, const uint8_t *data,
    size_t len)
{
    uint8_t         in[19] = { 0 }, cid[20], sid[15], nonce[18];
    const uint8_t  *in_nonce;

    memcpy(in, data, (len < sizeof(in)) ? len : sizeof(in));
    in_nonce = in + conf->server_id_len;

    assert(quic_lb_cid_encode(conf, cid, in[0], in, in_nonce) == QUIC_LB_OK);
    assert(quic_lb_cid_decode(conf, cid, quic_lb_cid_len(conf), 1, sid, nonce)
           == QUIC_LB_OK);

    assert(memcmp(sid, in, conf->server_id_len) == 0);
    assert(memcmp(nonce, in_nonce, conf->nonce_len) == 0);
}
