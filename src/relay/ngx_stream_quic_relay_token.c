
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Tokens by which clients prove their address (RFC 9000, 8.1): those of Retry
 * packets, and those of NEW_TOKEN frames for a later connection.  Nothing is
 * kept for a client that has not proved it.
 */


#include "ngx_stream_quic_relay_module.h"
#include "ngx_stream_quic_lb_key.h"

#include "quic_lb_error.h"
#include "quic_lb_retry.h"


/* how long tokens are good for */

#define NGX_STREAM_QUIC_RELAY_RETRY_LIFE  (10 * NGTCP2_SECONDS)
#define NGX_STREAM_QUIC_RELAY_TOKEN_LIFE  (24 * 3600 * NGTCP2_SECONDS)


/* octets of a file that balancers have, too, "quic_passthrough_retry_key" */

#define NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MIN  16
#define NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX  65536

/* the newer and the older one */

#define NGX_STREAM_QUIC_RELAY_TOKEN_KEYS  2


/* what opens the tokens that a balancer has made */

typedef struct {
    quic_lb_retry_t       ctx;
    quic_lb_retry_keys_t  keys;
} ngx_stream_quic_relay_token_key_t;


static ngtcp2_tstamp ngx_stream_quic_relay_token_now(void);
static ngx_int_t ngx_stream_quic_relay_token_balancer(ngx_array_t *keys,
    ngtcp2_path *path, ngtcp2_pkt_hd *hd,
    ngx_stream_quic_relay_token_t *token);
static ngx_int_t ngx_stream_quic_relay_token_read(ngx_conf_t *cf,
    ngx_str_t *name, ngx_str_t *file, quic_lb_retry_keys_t *keys);
static void ngx_stream_quic_relay_token_cleanup(void *data);


/* not since boot: other machines, and later boots, take them, too */

static ngtcp2_tstamp
ngx_stream_quic_relay_token_now(void)
{
    struct timeval  tv;

    ngx_gettimeofday(&tv);

    return (ngtcp2_tstamp) tv.tv_sec * NGTCP2_SECONDS
           + (ngtcp2_tstamp) tv.tv_usec * NGTCP2_MICROSECONDS;
}


ngx_int_t
ngx_stream_quic_relay_token_check(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_srv_conf_t *conf, ngtcp2_path *path,
    ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token)
{
    int            rc;
    ngx_int_t      known;
    ngtcp2_tstamp  now;

    token->type = NGTCP2_TOKEN_TYPE_UNKNOWN;

    if (hd->tokenlen == 0) {
        return NGX_DECLINED;
    }

    /* first, as these may begin with any octet */

    if (conf->retry_keys) {
        known = ngx_stream_quic_relay_token_balancer(conf->retry_keys, path,
                                                     hd, token);
        if (known != NGX_DECLINED) {
            return known;
        }
    }

    now = ngx_stream_quic_relay_token_now();

    if (hd->token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_RETRY2) {
        rc = ngtcp2_crypto_verify_retry_token2(&token->odcid, hd->token,
                                               hd->tokenlen, worker->retry,
                                               sizeof(worker->retry),
                                               hd->version, path->remote.addr,
                                               path->remote.addrlen, &hd->dcid,
                                               NGX_STREAM_QUIC_RELAY_RETRY_LIFE,
                                               now);
        if (rc == 0) {
            token->type = NGTCP2_TOKEN_TYPE_RETRY;
            conf->retry.accepted++;
            return NGX_OK;
        }

        return rc == NGTCP2_CRYPTO_ERR_VERIFY_TOKEN ? NGX_ERROR : NGX_DECLINED;
    }

    if (hd->token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_REGULAR
        && ngtcp2_crypto_verify_regular_token(hd->token, hd->tokenlen,
                                              worker->retry,
                                              sizeof(worker->retry),
                                              path->remote.addr,
                                              path->remote.addrlen,
                                              NGX_STREAM_QUIC_RELAY_TOKEN_LIFE,
                                              now)
           == 0)
    {
        token->type = NGTCP2_TOKEN_TYPE_NEW_TOKEN;
        return NGX_OK;
    }

    /* perhaps of another server: RFC 9000, 8.1.3 */

    return NGX_DECLINED;
}


/* the Retry was a balancer's: it has exchanged its token for one of a server */

static ngx_int_t
ngx_stream_quic_relay_token_balancer(ngx_array_t *keys, ngtcp2_path *path,
    ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token)
{
    int                                  rc;
    ngx_uint_t                           i;
    quic_lb_retry_token_t                said;
    quic_lb_retry_address_t              address;
    ngx_stream_quic_relay_token_key_t  **keyp;

    address.data = path->remote.addr;
    address.len = path->remote.addrlen;

    keyp = keys->elts;

    for (i = 0; i < keys->nelts; i++) {

        rc = quic_lb_retry_open_server(&keyp[i]->ctx, &keyp[i]->keys,
                                       hd->token, hd->tokenlen, &address,
                                       ngx_time(), &said);

        if (rc == QUIC_LB_ERR_RANGE) {
            return NGX_ERROR;
        }

        if (rc == QUIC_LB_OK) {
            token->type = NGTCP2_TOKEN_TYPE_RETRY;
            ngtcp2_cid_init(&token->odcid, said.dcid, said.dcid_len);
            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


size_t
ngx_stream_quic_relay_token_retry(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_ids_t *ids, ngtcp2_path *path, ngtcp2_pkt_hd *hd)
{
    ngtcp2_cid    scid;
    ngtcp2_ssize  n;
    uint8_t       token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN2];

    /* for any worker: there is no connection yet */

    if (ngx_stream_quic_relay_ids_mint(worker, ids,
                                       NGX_STREAM_QUIC_RELAY_NO_SLOT, &scid)
        != NGX_OK)
    {
        return 0;
    }

    n = ngtcp2_crypto_generate_retry_token2(token, worker->retry,
                                            sizeof(worker->retry), hd->version,
                                            path->remote.addr,
                                            path->remote.addrlen, &scid,
                                            &hd->dcid,
                                            ngx_stream_quic_relay_token_now());
    if (n < 0) {
        return 0;
    }

    n = ngtcp2_crypto_write_retry(worker->out, NGX_STREAM_QUIC_RELAY_BUFFER,
                                  hd->version, &hd->scid, &scid, &hd->dcid,
                                  token, (size_t) n);
    if (n < 0) {
        return 0;
    }

    ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_RETRIES, 1);

    return (size_t) n;
}


/* spares the client of a later connection the round trip of a Retry */

ngx_int_t
ngx_stream_quic_relay_token_new(ngx_stream_quic_relay_conn_t *conn)
{
    ngtcp2_ssize                     n;
    const ngtcp2_path               *path;
    ngx_stream_quic_relay_worker_t  *worker;
    uint8_t                          token[NGTCP2_CRYPTO_MAX_REGULAR_TOKENLEN];

    worker = conn->relay->worker;
    path = ngtcp2_conn_get_path(conn->qc);

    n = ngtcp2_crypto_generate_regular_token(token, worker->retry,
                                             sizeof(worker->retry),
                                             path->remote.addr,
                                             path->remote.addrlen,
                                             ngx_stream_quic_relay_token_now());
    if (n < 0
        || ngtcp2_conn_submit_new_token(conn->qc, token, (size_t) n) != 0)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


char *
ngx_stream_quic_relay_token_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_str_t                           *value;
    ngx_pool_cleanup_t                  *cln;
    ngx_stream_quic_relay_token_key_t   *key, **keyp;

    if (rscf->retry_keys == NGX_CONF_UNSET_PTR) {
        rscf->retry_keys = ngx_array_create(cf->pool,
                                  NGX_STREAM_QUIC_RELAY_TOKEN_KEYS,
                                  sizeof(ngx_stream_quic_relay_token_key_t *));
        if (rscf->retry_keys == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (rscf->retry_keys->nelts == NGX_STREAM_QUIC_RELAY_TOKEN_KEYS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "there must be at most %d \"%V\" directives",
                           NGX_STREAM_QUIC_RELAY_TOKEN_KEYS, &cmd->name);
        return NGX_CONF_ERROR;
    }

    key = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_relay_token_key_t));
    if (key == NULL) {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_stream_quic_relay_token_cleanup;
    cln->data = key;

    value = cf->args->elts;

    if (ngx_stream_quic_relay_token_read(cf, &value[0], &value[1], &key->keys)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (quic_lb_retry_init(&key->ctx) != QUIC_LB_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" failed to set up its cipher", &cmd->name);
        return NGX_CONF_ERROR;
    }

    keyp = ngx_array_push(rscf->retry_keys);
    if (keyp == NULL) {
        return NGX_CONF_ERROR;
    }

    *keyp = key;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_relay_token_read(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *file, quic_lb_retry_keys_t *keys)
{
    int        rc;
    u_char    *buf;
    ngx_int_t  n;

    buf = ngx_alloc(NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX + 1, cf->log);
    if (buf == NULL) {
        return NGX_ERROR;
    }

    rc = QUIC_LB_ERR_RANGE;

    n = ngx_stream_quic_lb_key_file(cf, (char *) name->data, file, buf,
                                    NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX + 1);

    if (n == NGX_ERROR) {
        goto done;
    }

    if (n < NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MIN
        || n > NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" \"%V\" must have %d to %d octets",
                           name, file, NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MIN,
                           NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX);
        goto done;
    }

    rc = quic_lb_retry_derive(keys, buf, n);

    if (rc != QUIC_LB_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" \"%V\": HMAC() failed", name, file);
    }

done:

    ngx_explicit_memzero(buf, NGX_STREAM_QUIC_RELAY_TOKEN_KEY_MAX + 1);
    ngx_free(buf);

    return rc == QUIC_LB_OK ? NGX_OK : NGX_ERROR;
}


static void
ngx_stream_quic_relay_token_cleanup(void *data)
{
    ngx_stream_quic_relay_token_key_t *key = data;

    quic_lb_retry_cleanup(&key->ctx);
    ngx_explicit_memzero(&key->keys, sizeof(quic_lb_retry_keys_t));
}
