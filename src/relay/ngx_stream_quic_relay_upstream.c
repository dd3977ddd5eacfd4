
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The upstream of a relay: a balancer's choice, the next one if a connect or
 * a handshake fails.  Nothing has been relayed by then, so nothing is lost.
 */


#include "ngx_stream_quic_relay_module.h"


static ngx_int_t ngx_stream_quic_relay_upstream_init(
    ngx_stream_quic_relay_t *relay);
static void ngx_stream_quic_relay_upstream_next(
    ngx_stream_quic_relay_t *relay);
static ngx_int_t ngx_stream_quic_relay_upstream_open(
    ngx_stream_quic_relay_t *relay);
static ngx_int_t ngx_stream_quic_relay_upstream_socket(
    ngx_stream_quic_relay_conn_t *conn, ngx_connection_t *c);
static void ngx_stream_quic_relay_upstream_disconnect(
    ngx_stream_quic_relay_t *relay, ngx_uint_t state);
static void ngx_stream_quic_relay_upstream_refuse(
    ngx_stream_quic_relay_t *relay);
static ngx_uint_t ngx_stream_quic_relay_upstream_offered(
    ngx_stream_quic_relay_t *relay, const u_char *name, size_t len);
static void ngx_stream_quic_relay_upstream_unused(ngx_event_t *ev);


/* RFC 9001, 4.8: a TLS alert as an error code */
#define NGX_STREAM_QUIC_RELAY_ALERT  0x100


void
ngx_stream_quic_relay_upstream_connect(ngx_stream_quic_relay_t *relay)
{
    ngx_int_t  rc;

    rc = ngx_stream_quic_relay_upstream_init(relay);

    if (rc == NGX_OK) {
        rc = ngx_stream_quic_relay_target(relay);
    }

    if (rc != NGX_AGAIN) {
        ngx_stream_quic_relay_upstream_start(relay, rc);
    }
}


void
ngx_stream_quic_relay_upstream_start(ngx_stream_quic_relay_t *relay,
    ngx_int_t rc)
{
    /* the client has left while a name was resolved */

    if (relay->finishing) {
        return;
    }

    if (rc != NGX_OK) {
        ngx_stream_quic_relay_upstream_refuse(relay);
        return;
    }

    relay->session->upstream->peer.start_time = ngx_current_msec;

    ngx_stream_quic_relay_upstream_next(relay);
}


static ngx_int_t
ngx_stream_quic_relay_upstream_init(ngx_stream_quic_relay_t *relay)
{
    ngx_stream_session_t   *s;
    ngx_stream_upstream_t  *u;

    s = relay->session;

    u = ngx_pcalloc(relay->pool, sizeof(ngx_stream_upstream_t));
    if (u == NULL) {
        return NGX_ERROR;
    }

    s->upstream = u;
    s->upstream_states = ngx_array_create(relay->pool, 1,
                                        sizeof(ngx_stream_upstream_state_t));
    if (s->upstream_states == NULL) {
        return NGX_ERROR;
    }

    u->start_sec = ngx_time();
    u->peer.type = SOCK_DGRAM;
    u->peer.log = relay->client.log;
    u->peer.log_error = NGX_ERROR_ERR;

    return NGX_OK;
}


static void
ngx_stream_quic_relay_upstream_next(ngx_stream_quic_relay_t *relay)
{
    ngx_int_t               rc;
    ngx_peer_connection_t  *pc;
    ngx_stream_upstream_t  *u;

    u = relay->session->upstream;
    pc = &u->peer;

    for ( ;; ) {
        u->state = ngx_array_push(relay->session->upstream_states);
        if (u->state == NULL) {
            break;
        }

        ngx_memzero(u->state, sizeof(ngx_stream_upstream_state_t));

        u->state->connect_time = (ngx_msec_t) -1;
        u->state->first_byte_time = (ngx_msec_t) -1;
        u->state->response_time = (ngx_msec_t) -1;

        rc = ngx_event_connect_peer(pc);

        u->state->peer = pc->name;

        if (rc == NGX_BUSY) {
            ngx_log_error(NGX_LOG_ERR, pc->log, 0, "no live upstreams");
            break;
        }

        if (rc == NGX_ERROR) {
            break;
        }

        relay->peered = 1;

        if (rc == NGX_OK || rc == NGX_AGAIN) {

            if (ngx_stream_quic_relay_upstream_open(relay) == NGX_OK) {
                return;
            }

            ngx_stream_quic_relay_upstream_disconnect(relay, 0);
            break;
        }

        /* NGX_DECLINED */

        ngx_stream_quic_relay_upstream_disconnect(relay, NGX_PEER_FAILED);

        if (pc->tries == 0) {
            break;
        }
    }

    ngx_stream_quic_relay_upstream_refuse(relay);
}


static ngx_int_t
ngx_stream_quic_relay_upstream_open(ngx_stream_quic_relay_t *relay)
{
    ngx_connection_t              *c;
    ngx_stream_quic_relay_conn_t  *conn;

    c = relay->session->upstream->peer.connection;
    conn = &relay->upstream;

    conn->connection = c;
    conn->closed = 0;
    conn->handshaked = 0;

    c->data = conn;
    c->pool = relay->pool;
    c->log = conn->log;
    c->read->log = conn->log;
    c->write->log = conn->log;
    c->read->handler = ngx_stream_quic_relay_input_upstream;
    c->write->handler = ngx_stream_quic_relay_upstream_unused;

    if (ngx_stream_quic_relay_upstream_socket(conn, c) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_stream_quic_relay_udp_options(c->fd, conn->remote.sockaddr.sa_family,
                                      1, c->log);

    return ngx_stream_quic_relay_conn_connect(conn);
}


static ngx_int_t
ngx_stream_quic_relay_upstream_socket(ngx_stream_quic_relay_conn_t *conn,
    ngx_connection_t *c)
{
    socklen_t               len;
    ngx_peer_connection_t  *pc;

    pc = &conn->relay->session->upstream->peer;

    conn->socklen = pc->socklen;
    ngx_memcpy(&conn->remote, pc->sockaddr, pc->socklen);

    len = sizeof(ngx_sockaddr_t);

    if (getsockname(c->fd, &conn->local.sockaddr, &len) == -1) {
        ngx_log_error(NGX_LOG_ALERT, conn->log, ngx_socket_errno,
                      "getsockname() failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* the socket is written whenever it takes something */

static void
ngx_stream_quic_relay_upstream_unused(ngx_event_t *ev)
{
    if (ev->active && (ngx_event_flags & NGX_USE_LEVEL_EVENT)) {
        (void) ngx_del_event(ev, NGX_WRITE_EVENT, 0);
    }
}


/* |state| is what the balancer is told */

static void
ngx_stream_quic_relay_upstream_disconnect(ngx_stream_quic_relay_t *relay,
    ngx_uint_t state)
{
    ngx_connection_t       *c;
    ngx_peer_connection_t  *pc;

    pc = &relay->session->upstream->peer;
    c = pc->connection;

    ngx_stream_quic_relay_conn_free(&relay->upstream);
    relay->upstream.connection = NULL;

    if (c) {
        /* set up half, it may have TLS of its own */

        if (c->ssl) {
            SSL_free(c->ssl->connection);
            c->ssl = NULL;
        }

        c->pool = NULL;
        ngx_close_connection(c);
        pc->connection = NULL;
    }

    if (relay->peered && pc->free) {
        pc->free(pc, pc->data, state);
        pc->sockaddr = NULL;
    }

    relay->peered = 0;
}


void
ngx_stream_quic_relay_upstream_answered(ngx_stream_quic_relay_t *relay)
{
    unsigned int                   len;
    const unsigned char           *name;
    ngx_stream_upstream_t         *u;
    ngx_stream_quic_relay_conn_t  *conn;

    u = relay->session->upstream;
    conn = &relay->upstream;

    SSL_get0_alpn_selected(conn->ssl, &name, &len);

    if (!ngx_stream_quic_relay_upstream_offered(relay, name, len)) {
        ngx_log_error(NGX_LOG_ERR, conn->log, 0,
                      "quic relay: upstream %V has chosen no protocol that "
                      "the client offers", u->peer.name);
        relay->alert = SSL_AD_NO_APPLICATION_PROTOCOL;
        ngx_stream_quic_relay_upstream_refuse(relay);
        return;
    }

    ngx_memcpy(relay->chosen, name, len);
    relay->chosen_len = len;
    relay->answered = 1;
    relay->reused = SSL_session_reused(conn->ssl);

    u->connected = 1;
    u->state->connect_time = ngx_current_msec - u->peer.start_time;

    ngx_stream_quic_relay_conn_resume(&relay->client);
}


static ngx_uint_t
ngx_stream_quic_relay_upstream_offered(ngx_stream_quic_relay_t *relay,
    const u_char *name, size_t len)
{
    size_t  pos, size;

    for (pos = 0; pos < relay->alpn_len; pos += 1 + size) {
        size = relay->alpn[pos];

        if (len
            && size == len
            && size < relay->alpn_len - pos
            && ngx_memcmp(&relay->alpn[pos + 1], name, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* from _conn.c: the connection is closed; from _udp.c: it is not yet */

void
ngx_stream_quic_relay_upstream_failed(ngx_stream_quic_relay_t *relay)
{
    uint64_t                code;
    ngx_peer_connection_t  *pc;

    if (relay->finishing) {
        return;
    }

    pc = &relay->session->upstream->peer;
    code = relay->upstream.error.error_code;

    ngx_stream_quic_relay_count(relay->worker,
                                NGX_STREAM_QUIC_RELAY_UPSTREAM_FAILED, 1);

    ngx_log_error(ngx_stream_quic_relay_target_level(relay),
                  relay->upstream.log, 0,
                  "quic relay: no connection to upstream %V, code 0x%xL",
                  pc->name, code);

    ngx_stream_quic_relay_tickets_failed(&relay->upstream);

    /* another one would refuse the same protocols */

    if (code == NGX_STREAM_QUIC_RELAY_ALERT + SSL_AD_NO_APPLICATION_PROTOCOL) {
        relay->alert = SSL_AD_NO_APPLICATION_PROTOCOL;
        ngx_stream_quic_relay_upstream_disconnect(relay, 0);
        ngx_stream_quic_relay_upstream_refuse(relay);
        return;
    }

    /* a client that names what is not there shall not cut off the others */

    if (relay->conf->named
        && (relay->misnamed
            || code == NGX_STREAM_QUIC_RELAY_ALERT + SSL_AD_UNRECOGNIZED_NAME))
    {
        ngx_stream_quic_relay_upstream_disconnect(relay, 0);
        ngx_stream_quic_relay_upstream_refuse(relay);
        return;
    }

    /* what may have been the client's offer is for the client to know */

    relay->alert = SSL_AD_INTERNAL_ERROR;

    if (code == NGX_STREAM_QUIC_RELAY_ALERT + SSL_AD_HANDSHAKE_FAILURE) {
        relay->alert = SSL_AD_HANDSHAKE_FAILURE;
    }

    ngx_stream_quic_relay_upstream_disconnect(relay, NGX_PEER_FAILED);

    if (pc->tries == 0) {
        ngx_stream_quic_relay_upstream_refuse(relay);
        return;
    }

    ngx_stream_quic_relay_upstream_next(relay);
}


/* the client's handshake fails by relay->alert */

static void
ngx_stream_quic_relay_upstream_refuse(ngx_stream_quic_relay_t *relay)
{
    relay->refused = 1;
    ngx_stream_quic_relay_conn_resume(&relay->client);
}


void
ngx_stream_quic_relay_upstream_close(ngx_stream_quic_relay_t *relay)
{
    if (relay->session && relay->session->upstream) {
        ngx_stream_quic_relay_target_cancel(relay);
        ngx_stream_quic_relay_upstream_disconnect(relay, 0);
    }
}
