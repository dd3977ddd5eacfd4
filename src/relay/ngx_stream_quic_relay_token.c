
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Tokens by which clients prove their address (RFC 9000, 8.1): those of Retry
 * packets, and those of NEW_TOKEN frames for a later connection.  Nothing is
 * kept for a client that has not proved it.
 */


#include "ngx_stream_quic_relay_module.h"


/* how long tokens are good for */

#define NGX_STREAM_QUIC_RELAY_RETRY_LIFE  (10 * NGTCP2_SECONDS)
#define NGX_STREAM_QUIC_RELAY_TOKEN_LIFE  (24 * 3600 * NGTCP2_SECONDS)


static ngtcp2_tstamp ngx_stream_quic_relay_token_now(void);


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
    ngtcp2_path *path, ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token)
{
    int            rc;
    ngtcp2_tstamp  now;

    token->type = NGTCP2_TOKEN_TYPE_UNKNOWN;

    if (hd->tokenlen == 0) {
        return NGX_DECLINED;
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
