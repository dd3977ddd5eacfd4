
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Requests of an HTTP/3 connection: which are admitted, which are rejected.
 *
 * nginx's own limit, "keepalive_requests", closes a connection when twice as
 * many streams were opened, and leaves streams that come after its GOAWAY
 * unanswered: ngx_quic_shutdown_connection() makes QUIC drop them.  So here
 * neither is used: a stream is either given to nginx, with its limit out of
 * reach, or reset with H3_REQUEST_REJECTED, which tells the client that the
 * request may be sent again (RFC 9114, 4.1.1).
 *
 * The module gets to see
 *
 *     a new connection, when its handshake is done: by "init" of nginx's
 *     HTTP/3 configuration;
 *     a new stream: by the handler of the listening socket, which nginx calls
 *     for streams as well as for connections;
 *     the end of a request: by a cleanup of the stream's pool, which nginx
 *     destroys with it;
 *     a graceful shutdown: by "shutdown" of nginx's HTTP/3 configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


/*
 * How many streams are rejected, if "http3_max_requests" is not more: a client
 * may open 128 by default before it sees the GOAWAY, and as many again for
 * those that are reset meanwhile.  One that goes on does not heed it.
 */

#define NGX_HTTP_H3_LIMITS_MAX_REJECTED  1000

/* ms, and octets, for which the rest of a rejected request is discarded */

#define NGX_HTTP_H3_LIMITS_DISCARD_TIME  5000
#define NGX_HTTP_H3_LIMITS_DISCARD_SIZE  (1024 * 1024)


static ngx_int_t ngx_http_h3_limits_connection_init(ngx_connection_t *c);
static void ngx_http_h3_limits_connection_shutdown(ngx_connection_t *c);
static void ngx_http_h3_limits_connection_cleanup(void *data);
static void ngx_http_h3_limits_admit(ngx_http_h3_limits_session_t *s,
    ngx_connection_t *c);
static ngx_int_t ngx_http_h3_limits_track(ngx_http_h3_limits_session_t *s,
    ngx_connection_t *c);
static ngx_http_h3_limits_stream_t *ngx_http_h3_limits_get_stream(
    ngx_http_h3_limits_session_t *s);
static void ngx_http_h3_limits_stream_cleanup(void *data);
static void ngx_http_h3_limits_reject(ngx_http_h3_limits_session_t *s,
    ngx_connection_t *c);
static void ngx_http_h3_limits_reject_handler(ngx_event_t *rev);
static void ngx_http_h3_limits_reject_close(ngx_http_h3_limits_session_t *s,
    ngx_connection_t *c);


ngx_int_t
ngx_http_h3_limits_requests_init(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_v3_srv_conf_t          *h3scf;
    ngx_http_core_srv_conf_t       **cscfp;
    ngx_http_core_main_conf_t       *cmcf;
    ngx_http_h3_limits_srv_conf_t   *hscf;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_v3_limits_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    cscfp = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {

        hscf = ngx_http_get_module_srv_conf(cscfp[i]->ctx,
                                            ngx_http_v3_limits_module);
        if (hscf->max_requests) {
            hmcf->limit_requests = 1;
        }
    }

    if (!hmcf->limit_requests) {
        return NGX_OK;
    }

    /* of all servers: QUIC has that of the address, requests that of SNI */

    for (i = 0; i < cmcf->servers.nelts; i++) {

        h3scf = ngx_http_get_module_srv_conf(cscfp[i]->ctx,
                                             ngx_http_v3_module);

        h3scf->quic.init = ngx_http_h3_limits_connection_init;
        h3scf->quic.shutdown = ngx_http_h3_limits_connection_shutdown;
    }

    return NGX_OK;
}


void
ngx_http_h3_limits_requests_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i;
    ngx_listening_t                 *ls;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_v3_limits_module);

    if (hmcf == NULL || !hmcf->limit_requests) {
        return;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].quic && ls[i].handler == ngx_http_init_connection) {
            ls[i].handler = ngx_http_h3_limits_handler;
        }
    }
}


static ngx_int_t
ngx_http_h3_limits_connection_init(ngx_connection_t *c)
{
    ngx_pool_cleanup_t             *cln;
    ngx_http_connection_t          *hc;
    ngx_http_v3_session_t          *h3c;
    ngx_http_h3_limits_session_t   *s;
    ngx_http_h3_limits_srv_conf_t  *hscf;

    hc = c->data;

    if (ngx_http_v3_init(c) != NGX_OK) {
        return NGX_ERROR;
    }

    hscf = ngx_http_get_module_srv_conf(hc->conf_ctx,
                                        ngx_http_v3_limits_module);
    h3c = c->data;

    if (hscf->max_requests == 0 || h3c->hq) {
        return NGX_OK;
    }

    cln = ngx_pool_cleanup_add(c->pool, sizeof(ngx_http_h3_limits_session_t));
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_http_h3_limits_connection_cleanup;

    s = cln->data;
    ngx_memzero(s, sizeof(ngx_http_h3_limits_session_t));

    s->connection = c;
    s->main_conf = ngx_http_get_module_main_conf(hc->conf_ctx,
                                                 ngx_http_v3_limits_module);
    s->max_requests = hscf->max_requests;

    ngx_queue_init(&s->streams);
    ngx_queue_init(&s->free);

    ngx_http_h3_limits_drain_init(s);

    if (ngx_exiting) {

        /* the handshake was under way: another worker is there for requests */

        ngx_http_h3_limits_drain(s);
    }

    return NGX_OK;
}


ngx_http_h3_limits_session_t *
ngx_http_h3_limits_session(ngx_connection_t *c)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = c->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_h3_limits_connection_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


static void
ngx_http_h3_limits_connection_cleanup(void *data)
{
    ngx_http_h3_limits_session_t *s = data;

    if (s->timer.timer_set) {
        ngx_del_timer(&s->timer);
    }
}


static void
ngx_http_h3_limits_connection_shutdown(ngx_connection_t *c)
{
    ngx_http_h3_limits_session_t  *s;

    s = ngx_http_h3_limits_session(c);

    if (!c->error) {
        ngx_http_h3_limits_handover(c);
    }

    if (s == NULL) {
        ngx_http_v3_shutdown(c);
        return;
    }

    if (c->error) {

        /* the end of "worker_shutdown_timeout" */

        ngx_quic_finalize_connection(c, NGX_HTTP_V3_ERR_NO_ERROR,
                                     "shutdown timeout");
        return;
    }

    ngx_http_h3_limits_drain(s);
}


void
ngx_http_h3_limits_handler(ngx_connection_t *c)
{
    ngx_http_h3_limits_session_t  *s;

    if (c->quic == NULL && ngx_exiting) {
        ngx_http_h3_limits_handover(c);
    }

    if (c->quic == NULL || (c->quic->id & NGX_QUIC_STREAM_UNIDIRECTIONAL)) {
        ngx_http_init_connection(c);
        return;
    }

    s = ngx_http_h3_limits_session(c->quic->parent);

    if (s == NULL) {
        ngx_http_init_connection(c);
        return;
    }

    if (s->draining) {
        ngx_http_h3_limits_reject(s, c);
        return;
    }

    ngx_http_h3_limits_admit(s, c);
}


static void
ngx_http_h3_limits_admit(ngx_http_h3_limits_session_t *s, ngx_connection_t *c)
{
    ngx_msec_t                 time;
    ngx_uint_t                 requests;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_v3_get_module_loc_conf(c, ngx_http_core_module);

    requests = clcf->keepalive_requests;
    time = clcf->keepalive_time;

    if (ngx_http_h3_limits_track(s, c) != NGX_OK) {
        ngx_http_h3_limits_reject(s, c);
        return;
    }

    s->requests++;
    s->next_id = c->quic->id + 0x04;

    if (s->requests >= s->max_requests
        || ngx_current_msec - c->start_time > time)
    {
        ngx_http_h3_limits_count(s->main_conf,
                                 NGX_HTTP_H3_LIMITS_RECYCLED);

        /* GOAWAY leaves before the response */

        ngx_http_h3_limits_drain(s);
    }

    /*
     * nginx compares the number of the stream, and the age of the connection,
     * before it returns; no other connection is looked at meanwhile
     */

    clcf->keepalive_requests = NGX_MAX_INT_T_VALUE / 2;
    clcf->keepalive_time = (ngx_msec_t) -1;

    ngx_http_init_connection(c);

    clcf->keepalive_requests = requests;
    clcf->keepalive_time = time;
}


static ngx_int_t
ngx_http_h3_limits_track(ngx_http_h3_limits_session_t *s, ngx_connection_t *c)
{
    ngx_pool_cleanup_t           *cln;
    ngx_http_h3_limits_stream_t  *stream;

    cln = ngx_pool_cleanup_add(c->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    stream = ngx_http_h3_limits_get_stream(s);
    if (stream == NULL) {
        return NGX_ERROR;
    }

    stream->session = s;
    stream->stream = c->quic;
    stream->id = c->quic->id;
    stream->processed = 0;

    ngx_queue_insert_tail(&s->streams, &stream->queue);

    /* runs after that of nginx, which counts the requests */

    cln->handler = ngx_http_h3_limits_stream_cleanup;
    cln->data = stream;

    return NGX_OK;
}


ngx_http_h3_limits_stream_t *
ngx_http_h3_limits_stream(ngx_connection_t *c)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = c->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_h3_limits_stream_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


/*
 * A stream that is acknowledged tells nobody.  Two are looked at for each one
 * that comes, so there are never more than about twice those that are open,
 * and it costs the same each time.
 */

static ngx_http_h3_limits_stream_t *
ngx_http_h3_limits_get_stream(ngx_http_h3_limits_session_t *s)
{
    ngx_uint_t                    i;
    ngx_queue_t                  *q;
    ngx_http_h3_limits_stream_t  *stream;

    for (i = 0; i < 2 && !ngx_queue_empty(&s->streams); i++) {

        q = ngx_queue_head(&s->streams);
        ngx_queue_remove(q);

        stream = ngx_queue_data(q, ngx_http_h3_limits_stream_t, queue);

        if (ngx_http_h3_limits_stream_done(stream)) {
            ngx_queue_insert_tail(&s->free, q);

        } else {
            ngx_queue_insert_tail(&s->streams, q);
        }
    }

    if (ngx_queue_empty(&s->free)) {
        return ngx_palloc(s->connection->pool,
                          sizeof(ngx_http_h3_limits_stream_t));
    }

    q = ngx_queue_head(&s->free);
    ngx_queue_remove(q);

    return ngx_queue_data(q, ngx_http_h3_limits_stream_t, queue);
}


ngx_uint_t
ngx_http_h3_limits_stream_done(ngx_http_h3_limits_stream_t *stream)
{
    ngx_quic_stream_t  *qs;

    qs = stream->stream;

    if (qs->id != stream->id) {
        return 1;
    }

    /*
     * what the client sends does not matter: one that ignores STOP_SENDING
     * would hold up the end of the connection
     */

    return qs->connection == NULL
           && (qs->send_state == NGX_QUIC_STREAM_SEND_DATA_RECVD
               || qs->send_state == NGX_QUIC_STREAM_SEND_RESET_RECVD);
}


static void
ngx_http_h3_limits_stream_cleanup(void *data)
{
    ngx_http_h3_limits_stream_t *stream = data;

    if (stream->session->draining) {
        ngx_http_h3_limits_drain_request_done(stream->session);
    }
}


static void
ngx_http_h3_limits_reject(ngx_http_h3_limits_session_t *s, ngx_connection_t *c)
{
    ngx_connection_t  *pc;

    pc = s->connection;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, pc->log, 0,
                   "http3 limits: stream 0x%xL rejected", c->quic->id);

    s->rejected++;
    s->rejecting++;
    s->lingering = 0;
    ngx_http_h3_limits_count(s->main_conf, NGX_HTTP_H3_LIMITS_REJECTED);

    if (ngx_quic_reset_stream(c, NGX_HTTP_V3_ERR_REQUEST_REJECTED) == NGX_OK) {
        c->read->handler = ngx_http_h3_limits_reject_handler;
        ngx_add_timer(c->read, NGX_HTTP_H3_LIMITS_DISCARD_TIME);

        ngx_http_h3_limits_reject_handler(c->read);

    } else {
        ngx_http_h3_limits_reject_close(s, c);
    }

    if (s->rejected > ngx_max(s->max_requests,
                              NGX_HTTP_H3_LIMITS_MAX_REJECTED))
    {
        ngx_log_error(NGX_LOG_INFO, pc->log, 0,
                      "client opened %ui streams after GOAWAY", s->rejected);

        ngx_quic_finalize_connection(pc, NGX_HTTP_V3_ERR_EXCESSIVE_LOAD,
                                     "too many streams after GOAWAY");
    }
}


/*
 * What the client goes on to send is discarded, as after a response, and only
 * when that is too much is it told to stop: curl 8.21 does not send again a
 * request that it was told to stop, though it does after RESET_STREAM alone
 */

static void
ngx_http_h3_limits_reject_handler(ngx_event_t *rev)
{
    ssize_t                        n;
    ngx_connection_t              *c;
    ngx_http_h3_limits_session_t  *s;
    u_char                         buffer[NGX_HTTP_DISCARD_BUFFER_SIZE];

    c = rev->data;

    if (!rev->timedout && !c->close) {

        do {
            n = c->recv(c, buffer, NGX_HTTP_DISCARD_BUFFER_SIZE);

            if (n == NGX_AGAIN) {
                return;
            }

        } while (n > 0
                 && c->quic->recv_offset < NGX_HTTP_H3_LIMITS_DISCARD_SIZE);
    }

    s = ngx_http_h3_limits_session(c->quic->parent);

    ngx_http_h3_limits_reject_close(s, c);
}


static void
ngx_http_h3_limits_reject_close(ngx_http_h3_limits_session_t *s,
    ngx_connection_t *c)
{
    ngx_int_t                code;
    ngx_http_connection_t   *hc;
    ngx_http_v3_srv_conf_t  *h3scf;

    s->rejecting--;

#if (NGX_STAT_STUB)
    /* ngx_http_close_connection() subtracts it */
    (void) ngx_atomic_fetch_add(ngx_stat_active, 1);
#endif

    /* as RESET_STREAM, STOP_SENDING shall have H3_REQUEST_REJECTED */

    c->close = 1;

    hc = ngx_http_quic_get_connection(c);
    h3scf = ngx_http_get_module_srv_conf(hc->addr_conf->default_server->ctx,
                                         ngx_http_v3_module);

    code = h3scf->quic.stream_close_code;
    h3scf->quic.stream_close_code = NGX_HTTP_V3_ERR_REQUEST_REJECTED;

    ngx_http_close_connection(c);

    h3scf->quic.stream_close_code = code;
}
