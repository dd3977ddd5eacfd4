
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * When new clients have to prove their address by a Retry.  What is in it, and
 * in tokens, is in _token.c.
 */


#include "ngx_stream_quic_relay_module.h"


/* ms after a Retry in which another datagram of the same hello may come */
#define NGX_STREAM_QUIC_RELAY_RETRY_HELLO  100

/* s without need until "adaptive" ends */
#define NGX_STREAM_QUIC_RELAY_RETRY_QUIET  5


static ngx_uint_t ngx_stream_quic_relay_retry_answered(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngtcp2_cid *dcid);
static ngx_uint_t ngx_stream_quic_relay_retry_threshold(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry);
static void ngx_stream_quic_relay_retry_begin(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngx_listening_t *ls);
static void ngx_stream_quic_relay_retry_tick(ngx_event_t *ev);


static ngx_conf_enum_t  ngx_stream_quic_relay_retry_modes[] = {
    { ngx_string("off"), NGX_STREAM_QUIC_RELAY_RETRY_OFF },
    { ngx_string("on"), NGX_STREAM_QUIC_RELAY_RETRY_ON },
    { ngx_string("adaptive"), NGX_STREAM_QUIC_RELAY_RETRY_ADAPTIVE },
    { ngx_null_string, 0 }
};


char *
ngx_stream_quic_relay_retry(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_int_t         n;
    ngx_str_t        *value;
    ngx_conf_enum_t  *e;

    if (rscf->retry.mode != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = ngx_stream_quic_relay_retry_modes; e->name.len; e++) {
        if (e->name.len == value[1].len
            && ngx_strncmp(e->name.data, value[1].data, e->name.len) == 0)
        {
            break;
        }
    }

    if (e->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive, it must "
                           "be \"off\", \"on\" or \"adaptive\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    rscf->retry.mode = e->value;
    rscf->retry.threshold = 0;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    n = NGX_ERROR;

    if (rscf->retry.mode == NGX_STREAM_QUIC_RELAY_RETRY_ADAPTIVE
        && ngx_strncmp(value[2].data, "threshold=", 10) == 0)
    {
        n = ngx_atoi(value[2].data + 10, value[2].len - 10);
    }

    if (n == NGX_ERROR || n == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive",
                           &value[2], &cmd->name);
        return NGX_CONF_ERROR;
    }

    rscf->retry.threshold = n;

    return NGX_CONF_OK;
}


ngx_uint_t
ngx_stream_quic_relay_retry_wanted(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngx_listening_t *ls)
{
    if (retry->mode != NGX_STREAM_QUIC_RELAY_RETRY_ADAPTIVE) {
        return retry->mode;
    }

    if (retry->worker == NULL
        && worker->nhalf_open
           >= ngx_stream_quic_relay_retry_threshold(worker, retry))
    {
        ngx_stream_quic_relay_retry_begin(worker, retry, ls);
    }

    return retry->worker != NULL;
}


size_t
ngx_stream_quic_relay_retry_write(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_srv_conf_t *conf, ngtcp2_path *path,
    ngtcp2_pkt_hd *hd)
{
    size_t  n;

    if (ngx_stream_quic_relay_retry_answered(worker, &conf->retry, &hd->dcid))
    {
        return 0;
    }

    n = ngx_stream_quic_relay_token_retry(worker, conf->ids, path, hd);

    if (n) {
        conf->retry.sent++;
    }

    return n;
}


/*
 * A ClientHello of two datagrams needs one Retry, clients ignore the second
 * (RFC 9000, 17.2.5.2); nor is it to look like another client to "adaptive".
 * What a client sends again comes later.
 */

static ngx_uint_t
ngx_stream_quic_relay_retry_answered(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngtcp2_cid *dcid)
{
    uint64_t  hash;

    hash = quic_lb_hash(&worker->key, dcid->data, dcid->datalen);

    if (hash == retry->answered
        && ngx_current_msec - retry->answered_at
           < NGX_STREAM_QUIC_RELAY_RETRY_HELLO)
    {
        return 1;
    }

    retry->answered = hash;
    retry->answered_at = ngx_current_msec;

    return 0;
}


/* there are never more half-open connections than their limit */

static ngx_uint_t
ngx_stream_quic_relay_retry_threshold(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry)
{
    ngx_uint_t  threshold;

    threshold = retry->threshold ? retry->threshold
                                 : worker->half_open_limit / 2;

    return ngx_min(ngx_max(threshold, 1), worker->half_open_limit);
}


static void
ngx_stream_quic_relay_retry_begin(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngx_listening_t *ls)
{
    retry->worker = worker;
    retry->listening = ls;
    retry->since = ngx_time();
    retry->quiet = 0;
    retry->sent = 0;
    retry->accepted = 0;
    retry->unanswered = 0;

    retry->event.handler = ngx_stream_quic_relay_retry_tick;
    retry->event.data = retry;
    retry->event.log = worker->log;
    retry->event.cancelable = 1;

    ngx_add_timer(&retry->event, 1000);

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "%ui half-open QUIC connections: Retry is on; if this is no "
                  "attack, increase \"threshold\" of \"quic_relay_retry\" or "
                  "worker_connections, listen %V",
                  worker->nhalf_open, &ls->addr_text);
}


/*
 * While Retry is on there are few half-open connections, whatever comes in.
 * Those that there would be without are the ones whose clients do not come back
 * with a token, for as long as a handshake may take.
 */

static void
ngx_stream_quic_relay_retry_tick(ngx_event_t *ev)
{
    ngx_uint_t                       n, unanswered;
    ngx_stream_quic_relay_retry_t   *retry;
    ngx_stream_quic_relay_worker_t  *worker;

    retry = ev->data;
    worker = retry->worker;

    unanswered = retry->sent - ngx_min(retry->accepted, retry->sent);

    n = worker->nhalf_open;

    if (unanswered > retry->unanswered) {
        n += (unanswered - retry->unanswered)
             * ngx_max(retry->handshake / 1000, 1);
    }

    retry->unanswered = unanswered;

    if (2 * n < ngx_stream_quic_relay_retry_threshold(worker, retry)) {
        retry->quiet++;

    } else {
        retry->quiet = 0;
    }

    if (retry->quiet < NGX_STREAM_QUIC_RELAY_RETRY_QUIET) {
        ngx_add_timer(ev, 1000);
        return;
    }

    retry->worker = NULL;

    ngx_log_error(NGX_LOG_NOTICE, worker->log, 0,
                  "few half-open QUIC connections: Retry is off again, after "
                  "%T s, %ui sent and %ui tokens accepted, listen %V",
                  ngx_time() - retry->since, retry->sent, retry->accepted,
                  &retry->listening->addr_text);
}
