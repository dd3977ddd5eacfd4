
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What a socket has no room for waits in its backlog: a copy, as the batch is
 * gone by then.  It is small, a router would not keep more; what finds no room
 * there either is dropped and counted.  As long as there is a backlog all that
 * leaves by the socket goes through it, so that nothing is overtaken.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_stream_quic_pt_waiting_t *ngx_stream_quic_pt_backlog_copy(
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run);
static ngx_int_t ngx_stream_quic_pt_backlog_wait(
    ngx_stream_quic_pt_socket_t *sock);
static void ngx_stream_quic_pt_backlog_remove(
    ngx_stream_quic_pt_socket_t *sock, ngx_stream_quic_pt_waiting_t *w);
static ngx_uint_t ngx_stream_quic_pt_backlog_flags(ngx_connection_t *c);


void
ngx_stream_quic_pt_backlog_init(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, ngx_connection_t *c)
{
    sock->connection = c;
    sock->plain = worker->plain;

    ngx_queue_init(&sock->backlog);
}


void
ngx_stream_quic_pt_backlog_add(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run)
{
    ngx_stream_quic_pt_socket_t   *sock;
    ngx_stream_quic_pt_waiting_t  *w;

    sock = tx->socket;
    w = NULL;

    if (sock->size + run->size <= NGX_STREAM_QUIC_PT_BACKLOG) {
        w = ngx_stream_quic_pt_backlog_copy(tx, run);
    }

    if (w == NULL) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_SEND_FAILED,
                                 run->segments);
        return;
    }

    ngx_queue_insert_tail(&sock->backlog, &w->queue);
    sock->size += run->size;

    if (ngx_stream_quic_pt_backlog_wait(sock) != NGX_OK) {
        ngx_stream_quic_pt_backlog_drop(worker, sock);
    }
}


/*
 * For room.  No event comes when a device, or the system, that was congested
 * has room again; the socket is writable meanwhile.
 */

static ngx_int_t
ngx_stream_quic_pt_backlog_wait(ngx_stream_quic_pt_socket_t *sock)
{
    ngx_uint_t    flags;
    ngx_event_t  *wev;

    wev = sock->connection->write;
    flags = ngx_stream_quic_pt_backlog_flags(sock->connection);

    if (!sock->congested) {

        return wev->active ? NGX_OK
                           : ngx_add_event(wev, NGX_WRITE_EVENT, flags);
    }

    if (wev->active && ngx_del_event(wev, NGX_WRITE_EVENT, flags) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!wev->timer_set) {
        wev->cancelable = 1;
        ngx_add_timer(wev, NGX_STREAM_QUIC_PT_CONGESTED);
    }

    return NGX_OK;
}


static ngx_stream_quic_pt_waiting_t *
ngx_stream_quic_pt_backlog_copy(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run)
{
    u_char                        *p;
    ngx_stream_quic_pt_piece_t    *piece;
    ngx_stream_quic_pt_waiting_t  *w;

    w = ngx_alloc(offsetof(ngx_stream_quic_pt_waiting_t, data) + run->size,
                  tx->socket->connection->log);
    if (w == NULL) {
        return NULL;
    }

    p = w->data;

    for (piece = run->pieces; piece; piece = piece->next) {
        p = ngx_cpymem(p, piece->data, piece->len);
    }

    w->piece.data = w->data;
    w->piece.len = run->size;
    w->piece.next = NULL;

    w->size = run->size;

    w->run = *run;
    w->run.pieces = &w->piece;
    w->run.next = NULL;

    w->family = tx->family;
    w->counter = tx->counter;

    w->socklen = tx->socklen;
    ngx_memcpy(&w->sockaddr, tx->sockaddr, tx->socklen);

    w->local.sockaddr.sa_family = AF_UNSPEC;

    if (tx->local) {
        ngx_memcpy(&w->local, tx->local, tx->socklen);
    }

    return w;
}


void
ngx_stream_quic_pt_backlog_send(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock)
{
    ngx_err_t                      told;
    ngx_queue_t                   *q;
    ngx_connection_t              *c;
    ngx_stream_quic_pt_tx_t        tx;
    ngx_stream_quic_pt_waiting_t  *w;

    c = sock->connection;
    c->write->timedout = 0;

    while (!ngx_queue_empty(&sock->backlog)) {

        q = ngx_queue_head(&sock->backlog);
        w = ngx_queue_data(q, ngx_stream_quic_pt_waiting_t, queue);

        ngx_memzero(&tx, sizeof(ngx_stream_quic_pt_tx_t));

        tx.socket = sock;
        tx.family = w->family;
        tx.counter = w->counter;

        if (w->socklen) {
            tx.sockaddr = &w->sockaddr.sockaddr;
            tx.socklen = w->socklen;
        }

        if (w->local.sockaddr.sa_family != AF_UNSPEC) {
            tx.local = &w->local.sockaddr;
        }

        told = 0;

        if (ngx_stream_quic_pt_udp_send(worker, &tx, &w->run, &told)) {

            if (ngx_stream_quic_pt_backlog_wait(sock) != NGX_OK) {
                ngx_stream_quic_pt_backlog_drop(worker, sock);
            }

            return;
        }

        ngx_stream_quic_pt_backlog_remove(sock, w);
    }

    if (c->write->active) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT,
                             ngx_stream_quic_pt_backlog_flags(c));
    }
}


/* before the socket is closed */

void
ngx_stream_quic_pt_backlog_drop(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock)
{
    ngx_queue_t                   *q;
    ngx_stream_quic_pt_waiting_t  *w;

    while (!ngx_queue_empty(&sock->backlog)) {
        q = ngx_queue_head(&sock->backlog);
        w = ngx_queue_data(q, ngx_stream_quic_pt_waiting_t, queue);

        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_SEND_FAILED,
                                 w->run.segments);
        ngx_stream_quic_pt_backlog_remove(sock, w);
    }
}


static void
ngx_stream_quic_pt_backlog_remove(ngx_stream_quic_pt_socket_t *sock,
    ngx_stream_quic_pt_waiting_t *w)
{
    ngx_queue_remove(&w->queue);
    sock->size -= w->size;

    ngx_free(w);
}


/* listening sockets are level-triggered, legs as ngx_event_connect_peer() is */

static ngx_uint_t
ngx_stream_quic_pt_backlog_flags(ngx_connection_t *c)
{
    return (!c->read->accept && (ngx_event_flags & NGX_USE_CLEAR_EVENT))
           ? NGX_CLEAR_EVENT : NGX_LEVEL_EVENT;
}
