
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The nginx session of a client's connection: it goes through the phases
 * (realip, limit_conn, access) before a QUIC connection is made, and is logged
 * when that ends.
 */


#include "ngx_stream_quic_relay_module.h"


static ngx_connection_t *ngx_stream_quic_relay_session_connection(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_sockaddr_t *remote, socklen_t socklen);
static ngx_int_t ngx_stream_quic_relay_session_addresses(ngx_connection_t *c,
    ngx_sockaddr_t *remote, socklen_t socklen);
static ngx_stream_quic_relay_t *ngx_stream_quic_relay_session_init(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *c);
static void ngx_stream_quic_relay_session_quit(ngx_event_t *rev);
static void ngx_stream_quic_relay_session_finished(ngx_event_t *ev);
static void ngx_stream_quic_relay_session_free(void *data);


ngx_stream_quic_relay_t *
ngx_stream_quic_relay_session_create(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngx_sockaddr_t *remote, socklen_t socklen,
    ngx_uint_t validated)
{
    ngx_connection_t         *c;
    ngx_stream_quic_relay_t  *relay;

    if (ngx_exiting
        || ngx_stream_quic_relay_half_open_room(worker, validated) != NGX_OK)
    {
        ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_REFUSED, 1);
        ngx_log_error(NGX_LOG_INFO, worker->log, 0,
                      "quic relay: a client is dropped: the worker %s",
                      ngx_exiting ? "exits" : "has no connections left, "
                                              "increase worker_connections");
        return NULL;
    }

    c = ngx_stream_quic_relay_session_connection(worker, lc, remote, socklen);
    if (c == NULL) {
        return NULL;
    }

    relay = ngx_stream_quic_relay_session_init(worker, c);

    if (relay == NULL) {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        ngx_destroy_pool(c->pool);
        return NULL;
    }

#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_accepted, 1);
    (void) ngx_atomic_fetch_add(ngx_stat_active, 1);
    (void) ngx_atomic_fetch_add(ngx_stat_handled, 1);
#endif

    worker->current = relay;
    c->listening->handler(c);

    /* with the accept mutex the phases would run later */

    if (worker->current && c->read->posted) {
        ngx_delete_posted_event(c->read);
        c->read->handler(c->read);
    }

    if (worker->current == NULL) {
        return NULL;
    }

    worker->current = NULL;
    ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_CONNECTIONS, 1);

    if (relay->session == NULL) {
        ngx_log_error(NGX_LOG_ERR, c->log, 0,
                      "quic relay: a phase waits for data of the client, "
                      "which \"quic_relay\" has none of");
        ngx_stream_finalize_session(c->data, NGX_STREAM_INTERNAL_SERVER_ERROR);
        return NULL;
    }

    ngx_stream_quic_relay_half_open_add(relay, validated);

    return relay;
}


/* what ngx_event_recvmsg() sets up for a new client address */

static ngx_connection_t *
ngx_stream_quic_relay_session_connection(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_sockaddr_t *remote, socklen_t socklen)
{
    ngx_log_t         *log;
    ngx_connection_t  *c;

    c = ngx_get_connection(lc->fd, worker->log);
    if (c == NULL) {
        return NULL;
    }

    c->shared = 1;
    c->type = SOCK_DGRAM;
    c->listening = lc->listening;

    c->pool = ngx_create_pool(lc->listening->pool_size, worker->log);
    if (c->pool == NULL) {
        goto failed;
    }

    log = ngx_palloc(c->pool, sizeof(ngx_log_t));
    if (log == NULL) {
        goto failed;
    }

    *log = lc->listening->log;
    log->data = NULL;
    log->handler = NULL;

    c->log = log;
    c->pool->log = log;
    c->recv = ngx_udp_recv;
    c->send = ngx_udp_send;
    c->send_chain = ngx_udp_send_chain;
    c->need_flush_buf = 1;

    c->read->active = 1;
    c->read->log = log;
    c->write->ready = 1;
    c->write->log = log;

    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    if (ngx_stream_quic_relay_session_addresses(c, remote, socklen) == NGX_OK) {
        return c;
    }

failed:

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;

    if (c->pool) {
        ngx_destroy_pool(c->pool);
    }

    return NULL;
}


static ngx_int_t
ngx_stream_quic_relay_session_addresses(ngx_connection_t *c,
    ngx_sockaddr_t *remote, socklen_t socklen)
{
    ngx_listening_t  *ls;

    ls = c->listening;

    c->sockaddr = ngx_palloc(c->pool, socklen);
    c->local_sockaddr = ngx_palloc(c->pool, ls->socklen);

    if (c->sockaddr == NULL || c->local_sockaddr == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(c->sockaddr, remote, socklen);
    c->socklen = socklen;

    ngx_memcpy(c->local_sockaddr, ls->sockaddr, ls->socklen);
    c->local_socklen = ls->socklen;

    if (!ls->addr_ntop) {
        return NGX_OK;
    }

    c->addr_text.data = ngx_pnalloc(c->pool, ls->addr_text_max_len);
    if (c->addr_text.data == NULL) {
        return NGX_ERROR;
    }

    c->addr_text.len = ngx_sock_ntop(c->sockaddr, c->socklen,
                                     c->addr_text.data,
                                     ls->addr_text_max_len, 0);

    return c->addr_text.len ? NGX_OK : NGX_ERROR;
}


static ngx_stream_quic_relay_t *
ngx_stream_quic_relay_session_init(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *c)
{
    ngx_pool_cleanup_t       *cln;
    ngx_stream_quic_relay_t  *relay;

    cln = ngx_pool_cleanup_add(c->pool, sizeof(ngx_stream_quic_relay_t));
    if (cln == NULL) {
        return NULL;
    }

    relay = cln->data;
    ngx_memzero(relay, sizeof(ngx_stream_quic_relay_t));

    relay->worker = worker;
    relay->pool = c->pool;
    relay->alert = SSL_AD_INTERNAL_ERROR;

    relay->client.relay = relay;
    relay->client.peer = &relay->upstream;
    relay->client.log = c->log;
    ngx_queue_init(&relay->client.cids);

    relay->upstream.relay = relay;
    relay->upstream.peer = &relay->client;
    relay->upstream.log = c->log;
    ngx_queue_init(&relay->upstream.cids);

    relay->finish.data = relay;
    relay->finish.log = c->log;
    relay->finish.handler = ngx_stream_quic_relay_session_finished;

    if (ngx_stream_quic_relay_streams_init(relay) != NGX_OK) {
        return NULL;
    }

    cln->handler = ngx_stream_quic_relay_session_free;

    return relay;
}


/* content handler */

void
ngx_stream_quic_relay_session_handler(ngx_stream_session_t *s)
{
    ngx_connection_t         *c;
    ngx_pool_cleanup_t       *cln;
    ngx_stream_quic_relay_t  *relay;

    c = s->connection;

    for (cln = c->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_stream_quic_relay_session_free) {
            break;
        }
    }

    if (cln == NULL) {
        ngx_log_error(NGX_LOG_ALERT, c->log, 0,
                      "a session without a connection in \"quic_relay\"");
        ngx_stream_finalize_session(s, NGX_STREAM_INTERNAL_SERVER_ERROR);
        return;
    }

    relay = cln->data;

    relay->session = s;
    relay->conf = ngx_stream_get_module_srv_conf(s,
                                                 ngx_stream_quic_relay_module);
    relay->ids = relay->conf->ids;

    ngx_stream_set_ctx(s, relay, ngx_stream_quic_relay_module);

    c->log->action = "relaying";
    c->read->handler = ngx_stream_quic_relay_session_quit;
}


/*
 * A worker that quits goes on until its connections have ended, or
 * "worker_shutdown_timeout" has: then nginx calls this.
 */

static void
ngx_stream_quic_relay_session_quit(ngx_event_t *rev)
{
    ngx_connection_t         *c;
    ngx_stream_session_t     *s;
    ngx_stream_quic_relay_t  *relay;

    c = rev->data;
    s = c->data;
    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (!c->close) {
        return;
    }

    if (relay->finish.timer_set) {
        ngx_del_timer(&relay->finish);
        ngx_post_event(&relay->finish, &ngx_posted_events);
        return;
    }

    ngx_stream_quic_relay_session_end(relay, "relay", NULL);
    ngx_stream_quic_relay_session_finish(relay, NGX_STREAM_OK);
}


void
ngx_stream_quic_relay_session_end(ngx_stream_quic_relay_t *relay,
    const char *by, const ngtcp2_ccerr *error)
{
    if (relay->end.by) {
        return;
    }

    relay->end.by = by;

    if (error) {
        relay->end.code = error->error_code;
        relay->end.application =
                             (error->type == NGTCP2_CCERR_TYPE_APPLICATION);
    }
}


void
ngx_stream_quic_relay_session_finish(ngx_stream_quic_relay_t *relay,
    ngx_int_t status)
{
    ngx_msec_t  client, upstream;

    if (relay->finishing) {
        return;
    }

    relay->finishing = 1;
    relay->status = status;

    client = ngx_stream_quic_relay_conn_closing(&relay->client);
    upstream = ngx_stream_quic_relay_conn_closing(&relay->upstream);

    /* at the end of a shutdown there is no time to say it again */

    if (relay->session->connection->close || client + upstream == 0) {
        ngx_post_event(&relay->finish, &ngx_posted_events);
        return;
    }

    ngx_add_timer(&relay->finish, ngx_max(client, upstream));
}


void
ngx_stream_quic_relay_session_evict(ngx_stream_quic_relay_t *relay)
{
    ngtcp2_ccerr  *error;

    error = &relay->client.error;

    ngtcp2_ccerr_set_transport_error(error, NGTCP2_CONNECTION_REFUSED, NULL,
                                     0);
    ngx_stream_quic_relay_session_end(relay, "relay", error);

    relay->status = NGX_STREAM_SERVICE_UNAVAILABLE;

    ngx_stream_quic_relay_session_finished(&relay->finish);
}


static void
ngx_stream_quic_relay_session_finished(ngx_event_t *ev)
{
    ngx_stream_session_t     *s;
    ngx_stream_quic_relay_t  *relay = ev->data;

    s = relay->session;

    ngx_stream_quic_relay_session_free(relay);
    ngx_stream_finalize_session(s, relay->status);
}


/* also if nginx ends the session: the second time there is nothing left */

static void
ngx_stream_quic_relay_session_free(void *data)
{
    ngx_stream_quic_relay_t *relay = data;

    if (relay->worker->current == relay) {
        relay->worker->current = NULL;
    }

    ngx_stream_quic_relay_half_open_remove(relay);

    if (relay->finish.timer_set) {
        ngx_del_timer(&relay->finish);
    }

    if (relay->finish.posted) {
        ngx_delete_posted_event(&relay->finish);
    }

    ngx_stream_quic_relay_conn_close(&relay->client);
    ngx_stream_quic_relay_conn_close(&relay->upstream);

    ngx_stream_quic_relay_streams_free(relay);
    ngx_stream_quic_relay_datagrams_free(relay);

    ngx_stream_quic_relay_conn_free(&relay->client);
    ngx_stream_quic_relay_upstream_close(relay);
}
