
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What passes through a leg: a client's datagrams, which are collected until
 * the batch that they came in has been read, and the replies of its backend.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void ngx_stream_quic_pt_leg_replies(ngx_stream_quic_pt_leg_t *leg,
    ngx_int_t n);


/* |data| is in the worker's batch, or otherwise stays until the flush */

void
ngx_stream_quic_pt_leg_send(ngx_stream_quic_pt_leg_t *leg, u_char *data,
    size_t len, ngx_uint_t ecn)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = leg->flow->listener->worker;

    if (ngx_stream_quic_pt_batch_full(worker->batch)) {
        ngx_stream_quic_pt_leg_flush_all(worker);
    }

    if (!leg->is_pending) {
        leg->is_pending = 1;
        leg->active = ngx_current_msec;
        ngx_queue_insert_tail(&worker->pending, &leg->pending);
    }

    leg->upstream.peer.connection->sent += len;

    ngx_stream_quic_pt_udp_append(worker, &leg->tx, data, len, ecn);
}


void
ngx_stream_quic_pt_leg_flush_all(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_queue_t               *q;
    ngx_stream_quic_pt_leg_t  *leg;

    while (!ngx_queue_empty(&worker->pending)) {
        q = ngx_queue_head(&worker->pending);
        leg = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, pending);

        ngx_stream_quic_pt_leg_flush(leg);
    }

    /* nothing refers to the batch any more */

    ngx_stream_quic_pt_batch_reset(worker->batch);
}


void
ngx_stream_quic_pt_leg_flush(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_err_t  err;

    ngx_queue_remove(&leg->pending);
    leg->is_pending = 0;

    err = ngx_stream_quic_pt_udp_flush(leg->flow->listener->worker, &leg->tx);
    if (err) {
        ngx_stream_quic_pt_backend_failed(leg, err);
    }
}


void
ngx_stream_quic_pt_leg_read(ngx_event_t *rev)
{
    ngx_int_t                     n;
    ngx_uint_t                    turn;
    ngx_connection_t             *c;
    ngx_stream_quic_pt_leg_t     *leg;
    ngx_stream_quic_pt_worker_t  *worker;

    c = rev->data;
    leg = c->data;
    worker = leg->flow->listener->worker;

    if (c->close) {

        /* worker_shutdown_timeout */

        ngx_stream_quic_pt_flow_close(leg->flow, NGX_STREAM_OK);
        return;
    }

    rev->timedout = 0;

    for (turn = 0; turn < NGX_STREAM_QUIC_PT_TURN; turn++) {

        n = ngx_stream_quic_pt_udp_recv(worker, &leg->socket, NULL);

        if (n == NGX_ABORT) {
            rev->cancelable = 1;
            ngx_add_timer(rev, NGX_STREAM_QUIC_PT_PAUSE);
            return;
        }

        if (n == 0) {
            rev->ready = 0;
            return;
        }

        if (n == NGX_ERROR) {
            ngx_stream_quic_pt_backend_failed(leg, ngx_socket_errno);
            continue;
        }

        ngx_stream_quic_pt_leg_replies(leg, n);
    }

    /* the event is edge-triggered and will not come again for the rest */

    ngx_post_event(rev, &ngx_posted_next_events);
}


void
ngx_stream_quic_pt_leg_write(ngx_event_t *wev)
{
    ngx_connection_t          *c;
    ngx_stream_quic_pt_leg_t  *leg;

    c = wev->data;
    leg = c->data;

    ngx_stream_quic_pt_backlog_send(leg->flow->listener->worker,
                                    &leg->socket);
}


static void
ngx_stream_quic_pt_leg_replies(ngx_stream_quic_pt_leg_t *leg, ngx_int_t n)
{
    u_char                         *p, *last;
    size_t                          len;
    ngx_int_t                       i;
    ngx_connection_t               *c;
    ngx_stream_quic_pt_tx_t         tx;
    ngx_stream_quic_pt_flow_t      *flow;
    ngx_stream_quic_pt_worker_t    *worker;
    ngx_stream_quic_pt_message_t   *m;
    ngx_stream_quic_pt_listener_t  *listener;

    flow = leg->flow;
    listener = flow->listener;
    worker = listener->worker;
    c = flow->session->connection;

    ngx_memzero(&tx, sizeof(ngx_stream_quic_pt_tx_t));

    tx.socket = &listener->socket;
    tx.sockaddr = &flow->client.sockaddr;
    tx.socklen = flow->socklen;
    tx.family = ngx_stream_quic_pt_leg_family(&flow->client);
    tx.counter = NGX_STREAM_QUIC_PT_REPLIES;

    if (listener->listening->wildcard) {
        tx.local = &flow->local.sockaddr;
    }

    for (i = 0; i < n; i++) {
        m = &worker->batch->messages[i];

        leg->received += m->len;
        c->sent += m->len;

        p = m->data;
        last = p + m->len;

        while (p < last) {
            len = ngx_min(m->segment, (size_t) (last - p));

            if (ngx_stream_quic_pt_batch_full(worker->batch)) {
                (void) ngx_stream_quic_pt_udp_flush(worker, &tx);
                ngx_stream_quic_pt_batch_reset(worker->batch);
            }

            if (p[0] & NGX_STREAM_QUIC_PT_LONG) {
                ngx_stream_quic_pt_route_learn_server(leg, p, len);
                ngx_stream_quic_pt_backend_judge(leg, p, len);

            } else if (leg != flow->settled) {
                ngx_stream_quic_pt_route_settle(leg);
            }

            ngx_stream_quic_pt_udp_append(worker, &tx, p, len, m->ecn);

            p += len;
        }
    }

    /* not if the client has gone to another worker, which shares the port */

    if (listener->socket.connection->read->active) {
        leg->active = ngx_current_msec;
    }

    leg->answered = 1;
    leg->failed = 0;

    ngx_stream_quic_pt_backend_answered(leg);

    if (leg->changed_len) {
        ngx_stream_quic_pt_cid_answered(leg);
    }

    flow->answered = 1;
    flow->replied = 1;

    (void) ngx_stream_quic_pt_udp_flush(worker, &tx);
    ngx_stream_quic_pt_batch_reset(worker->batch);
}


/* an IPv4 client of an IPv6 socket gets IPv4 headers, and options */

ngx_uint_t
ngx_stream_quic_pt_leg_family(ngx_sockaddr_t *sa)
{
#if (NGX_HAVE_INET6)
    if (sa->sockaddr.sa_family == AF_INET6
        && IN6_IS_ADDR_V4MAPPED(&sa->sockaddr_in6.sin6_addr))
    {
        return AF_INET;
    }
#endif

    return sa->sockaddr.sa_family;
}
