
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Connection IDs for clients, 20 octets:
 *
 *     what QUIC-LB balancers read, first octet, server ID and nonce; random
 *     octets where that is shorter;
 *
 *     2 octets of our own: the slot of the worker, masked by a keyed hash of
 *     all before it (QUIC-LB, "Server Process Demultiplexing").
 *
 * The place of the slot is the same in all configurations, so that a worker
 * can tell it in connection IDs of older ones.  The first octet states the
 * length.  Without "quic_relay_server_id" it has the codepoint for that.
 */


#include "ngx_stream_quic_relay_module.h"
#include "quic_lb_error.h"
#include "quic_lb_nonce.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>


/* octets of the slot, and of what is before it */
#define NGX_STREAM_QUIC_RELAY_SLOT   2
#define NGX_STREAM_QUIC_RELAY_HEAD                                            \
    (NGX_STREAM_QUIC_RELAY_CID - NGX_STREAM_QUIC_RELAY_SLOT)

/* pages: a key, server ID or length in use for the first time takes 128 octets
 */
#define NGX_STREAM_QUIC_RELAY_PAGES  16


static ngx_int_t ngx_stream_quic_relay_ids_init_zone(ngx_shm_zone_t *zone,
    void *data);
static ngx_int_t ngx_stream_quic_relay_ids_init_shared(
    ngx_slab_pool_t *shpool, ngx_stream_quic_relay_main_conf_t *rmcf,
    ngx_log_t *log);
static ngx_stream_quic_relay_nonces_t *ngx_stream_quic_relay_ids_nonces(
    ngx_slab_pool_t *shpool, ngx_stream_quic_relay_shared_t *shared,
    u_char *digest);
static ngx_int_t ngx_stream_quic_relay_ids_nonce(
    ngx_stream_quic_relay_worker_t *worker, ngx_stream_quic_relay_ids_t *ids,
    u_char *nonce);
static ngx_uint_t ngx_stream_quic_relay_ids_mask(
    ngx_stream_quic_relay_worker_t *worker, const uint8_t *cid);


ngx_int_t
ngx_stream_quic_relay_ids_add_zone(ngx_conf_t *cf)
{
    ngx_str_t        name;
    ngx_shm_zone_t  *zone;

    ngx_str_set(&name, "quic_relay");

    zone = ngx_shared_memory_add(cf, &name,
                                 NGX_STREAM_QUIC_RELAY_PAGES * ngx_pagesize,
                                 &ngx_stream_quic_relay_module);
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->init = ngx_stream_quic_relay_ids_init_zone;
    zone->data = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_quic_relay_module);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_ids_init_zone(ngx_shm_zone_t *zone, void *data)
{
    ngx_stream_quic_relay_main_conf_t *old = data;

    ngx_uint_t                          i;
    ngx_slab_pool_t                    *shpool;
    ngx_stream_quic_relay_ids_t       **ids;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    rmcf = zone->data;
    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (old) {
        rmcf->shared = old->shared;

    } else if (zone->shm.exists) {
        rmcf->shared = shpool->data;

    } else if (ngx_stream_quic_relay_ids_init_shared(shpool, rmcf,
                                                     zone->shm.log)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    ids = rmcf->ids.elts;

    for (i = 0; i < rmcf->ids.nelts; i++) {
        ids[i]->nonces = ngx_stream_quic_relay_ids_nonces(shpool, rmcf->shared,
                                                          ids[i]->digest);
        if (ids[i]->nonces == NULL) {
            ngx_log_error(NGX_LOG_EMERG, zone->shm.log, 0,
                          "no room to count nonces of one more "
                          "\"quic_relay_server_id\": nginx has to be "
                          "restarted");
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_ids_init_shared(ngx_slab_pool_t *shpool,
    ngx_stream_quic_relay_main_conf_t *rmcf, ngx_log_t *log)
{
    ngx_stream_quic_relay_shared_t  *shared;

    shared = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_relay_shared_t));
    if (shared == NULL) {
        return NGX_ERROR;
    }

    ngx_queue_init(&shared->nonces);

    if (RAND_bytes(shared->tokens, NGX_STREAM_QUIC_RELAY_SECRET) != 1
        || RAND_bytes(shared->workers, NGX_STREAM_QUIC_RELAY_SECRET) != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    /* workers of another binary shall find each other, too */

    if (rmcf->has_host_key
        && ngx_stream_quic_relay_ids_secret(shared->workers, rmcf->host_key,
                                            "workers")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    rmcf->shared = shared;
    shpool->data = shared;

    return NGX_OK;
}


/*
 * Nonces begin at a random place and, in the last 8 octets, at the time in
 * microseconds: with 7 octets or more they do not come back after a restart,
 * unless more than a million a second were used before.
 */

static ngx_stream_quic_relay_nonces_t *
ngx_stream_quic_relay_ids_nonces(ngx_slab_pool_t *shpool,
    ngx_stream_quic_relay_shared_t *shared, u_char *digest)
{
    uint64_t                         time;
    ngx_uint_t                       i;
    ngx_queue_t                     *q;
    struct timeval                   tv;
    ngx_stream_quic_relay_nonces_t  *nonces;

    for (q = ngx_queue_head(&shared->nonces);
         q != ngx_queue_sentinel(&shared->nonces);
         q = ngx_queue_next(q))
    {
        nonces = ngx_queue_data(q, ngx_stream_quic_relay_nonces_t, queue);

        if (ngx_memcmp(nonces->digest, digest, NGX_STREAM_QUIC_RELAY_SECRET)
            == 0)
        {
            return nonces;
        }
    }

    nonces = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_relay_nonces_t));
    if (nonces == NULL) {
        return NULL;
    }

    if (RAND_bytes(nonces->start, QUIC_LB_NONCE_MAX) != 1) {
        ngx_slab_free(shpool, nonces);
        return NULL;
    }

    ngx_gettimeofday(&tv);
    time = (uint64_t) tv.tv_sec * 1000000 + tv.tv_usec;

    for (i = 1; i <= sizeof(uint64_t); i++) {
        nonces->start[QUIC_LB_NONCE_MAX - i] = (u_char) time;
        time >>= 8;
    }

    ngx_memcpy(nonces->digest, digest, NGX_STREAM_QUIC_RELAY_SECRET);
    ngx_queue_insert_tail(&shared->nonces, &nonces->queue);

    return nonces;
}


ngx_int_t
ngx_stream_quic_relay_ids_secret(u_char *secret, const u_char *from,
    const char *label)
{
    if (HMAC(EVP_sha256(), from, NGX_STREAM_QUIC_RELAY_SECRET,
             (const u_char *) label, ngx_strlen(label), secret, NULL)
        == NULL)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_relay_ids_init_worker(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_main_conf_t *rmcf)
{
    u_char  *tokens, mask[NGX_STREAM_QUIC_RELAY_SECRET];

    tokens = rmcf->has_host_key ? rmcf->host_key : rmcf->shared->tokens;

    if (ngx_stream_quic_relay_ids_secret(worker->secret, tokens, "reset")
        != NGX_OK
        || ngx_stream_quic_relay_ids_secret(worker->retry, tokens, "retry")
           != NGX_OK
        || ngx_stream_quic_relay_ids_secret(mask, rmcf->shared->workers,
                                            "mask")
           != NGX_OK)
    {
        ngx_log_error(NGX_LOG_EMERG, worker->log, 0, "HMAC() failed");
        return NGX_ERROR;
    }

    ngx_memcpy(&worker->mask, mask, sizeof(quic_lb_hash_key_t));

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_relay_ids_mint(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_ids_t *ids, ngx_uint_t slot, ngtcp2_cid *cid)
{
    ngx_int_t  rc;
    u_char     nonce[QUIC_LB_NONCE_MAX];

    cid->datalen = NGX_STREAM_QUIC_RELAY_CID;

    if (RAND_bytes(cid->data, NGX_STREAM_QUIC_RELAY_CID) != 1) {
        return NGX_ERROR;
    }

    rc = NGX_DECLINED;

    if (ids) {
        rc = ngx_stream_quic_relay_ids_nonce(worker, ids, nonce);
    }

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        cid->data[0] = QUIC_LB_CONFIG_UNROUTABLE << 5
                       | (NGX_STREAM_QUIC_RELAY_CID - 1);

    } else if (quic_lb_cid_encode(&ids->lb, cid->data,
                                  NGX_STREAM_QUIC_RELAY_CID - 1,
                                  ids->server_id, nonce)
               != QUIC_LB_OK)
    {
        return NGX_ERROR;
    }

    slot ^= ngx_stream_quic_relay_ids_mask(worker, cid->data);

    cid->data[NGX_STREAM_QUIC_RELAY_HEAD] = (uint8_t) (slot >> 8);
    cid->data[NGX_STREAM_QUIC_RELAY_HEAD + 1] = (uint8_t) slot;

    return NGX_OK;
}


/* NGX_DECLINED: each nonce has been used */

static ngx_int_t
ngx_stream_quic_relay_ids_nonce(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_ids_t *ids, u_char *nonce)
{
    size_t    len;
    uint64_t  used;

    len = ids->lb.nonce_len;

    /* without a key anybody sees which follow each other */

    if (ids->nonces == NULL) {
        return RAND_bytes(nonce, (int) len) == 1 ? NGX_OK : NGX_ERROR;
    }

    used = ngx_atomic_fetch_add(&ids->nonces->used, 1);

    if (quic_lb_nonce_count(nonce,
                            ids->nonces->start + QUIC_LB_NONCE_MAX - len, len,
                            used)
        != QUIC_LB_OK)
    {
        if (!ids->exhausted) {
            ngx_log_error(NGX_LOG_ERR, worker->log, 0,
                          "quic relay: all nonces of \"quic_relay_server_id\" "
                          "with config_id=%d are used, new connection IDs do "
                          "not name the server: a new \"key_file\" is needed",
                          ids->lb.config_id);
        }

        ids->exhausted = 1;

        return NGX_DECLINED;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_relay_ids_mask(ngx_stream_quic_relay_worker_t *worker,
    const uint8_t *cid)
{
    return quic_lb_hash(&worker->mask, cid, NGX_STREAM_QUIC_RELAY_HEAD)
           & 0xffff;
}


ngx_uint_t
ngx_stream_quic_relay_ids_slot(ngx_stream_quic_relay_worker_t *worker,
    const uint8_t *cid, size_t len)
{
    ngx_uint_t  slot;

    if (len != NGX_STREAM_QUIC_RELAY_CID) {
        return NGX_STREAM_QUIC_RELAY_NO_SLOT;
    }

    slot = ((ngx_uint_t) cid[NGX_STREAM_QUIC_RELAY_HEAD] << 8
            | cid[NGX_STREAM_QUIC_RELAY_HEAD + 1])
           ^ ngx_stream_quic_relay_ids_mask(worker, cid);

    return ngx_min(slot, NGX_STREAM_QUIC_RELAY_NO_SLOT);
}


/* the same in all workers, so that a token outlives the worker that sent it */

ngx_int_t
ngx_stream_quic_relay_ids_token(ngx_stream_quic_relay_worker_t *worker,
    const ngtcp2_cid *cid, uint8_t *token)
{
    if (ngtcp2_crypto_generate_stateless_reset_token(token, worker->secret,
                                                     sizeof(worker->secret),
                                                     cid)
        != 0)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}
