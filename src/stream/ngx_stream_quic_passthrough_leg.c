
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Legs: the connected socket of a flow to one of its backends, with the
 * backend's peer taken from the balancer.  A new client address always gets a
 * new leg, so a backend sees a new path and validates it.
 *
 * ICMP errors come in as errors of the socket.  A leg with one is failed: only
 * packets whose connection ID names the backend still use it, until it answers
 * again.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_leg_find(
    ngx_stream_quic_pt_flow_t *flow, struct sockaddr *sockaddr,
    socklen_t socklen);
static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_leg_create(
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_lb_route_t *route);
static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_leg_connect(
    ngx_stream_quic_pt_leg_t *leg, ngx_stream_quic_lb_route_t *route);
static void ngx_stream_quic_pt_leg_no_live(ngx_stream_quic_pt_leg_t *leg);
static ngx_int_t ngx_stream_quic_pt_leg_start(ngx_stream_quic_pt_leg_t *leg);
static void ngx_stream_quic_pt_leg_take_over(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_leg_t *old);
static ngx_int_t ngx_stream_quic_pt_leg_state(ngx_stream_quic_pt_leg_t *leg);
static void ngx_stream_quic_pt_leg_room(ngx_stream_quic_pt_flow_t *flow);
static void ngx_stream_quic_pt_leg_destroy(ngx_stream_quic_pt_leg_t *leg);


ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_leg_get(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_lb_route_t *route, ngx_uint_t *counter)
{
    ngx_stream_quic_pt_leg_t  *leg;

    if (route->server) {
        leg = ngx_stream_quic_pt_leg_find(flow, route->server->sockaddr,
                                          route->server->socklen);
        if (leg) {
            return leg;
        }
    }

    if (route->by == NGX_STREAM_QUIC_LB_CID) {
        leg = ngx_stream_quic_pt_leg_find(flow, &route->backend.u.sockaddr,
                                          route->backend.socklen);
        if (leg) {
            return leg;
        }
    }

    if (ngx_stream_quic_pt_room_for_leg(flow) != NGX_OK) {
        ngx_stream_quic_pt_room_complain(flow->listener->worker);
        *counter = NGX_STREAM_QUIC_PT_OVERLOAD;
        return NULL;
    }

    *counter = NGX_STREAM_QUIC_PT_NO_BACKEND;

    leg = ngx_stream_quic_pt_leg_create(flow, route);

    if (leg && ngx_stream_quic_pt_peer_init(leg, route) != NGX_OK) {
        ngx_stream_quic_pt_leg_destroy(leg);
        leg = NULL;
    }

    if (leg) {
        leg = ngx_stream_quic_pt_leg_connect(leg, route);
    }

    return leg;
}


static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_leg_find(ngx_stream_quic_pt_flow_t *flow,
    struct sockaddr *sockaddr, socklen_t socklen)
{
    ngx_queue_t               *q;
    ngx_stream_quic_pt_leg_t  *leg;

    for (q = ngx_queue_head(&flow->legs);
         q != ngx_queue_sentinel(&flow->legs);
         q = ngx_queue_next(q))
    {
        leg = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, queue);

        if (ngx_stream_quic_lb_same_address(&leg->backend->sockaddr.sockaddr,
                                            leg->backend->socklen, sockaddr,
                                            socklen))
        {
            return leg;
        }
    }

    return NULL;
}


static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_leg_create(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_log_t                 *log;
    ngx_pool_t                *pool;
    ngx_stream_upstream_t     *u;
    ngx_stream_quic_pt_leg_t  *leg;

    log = flow->session->connection->log;

    /* and what a balancer needs for a peer of a small upstream */

    pool = ngx_create_pool(sizeof(ngx_stream_quic_pt_leg_t) + 512, log);
    if (pool == NULL) {
        return NULL;
    }

    leg = ngx_pcalloc(pool, sizeof(ngx_stream_quic_pt_leg_t));
    if (leg == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    leg->pool = pool;
    leg->flow = flow;
    leg->server = route->server;
    leg->started = ngx_current_msec;
    leg->active = ngx_current_msec;

    leg->log = *log;
    leg->log.handler = ngx_stream_quic_pt_backend_log_error;
    leg->log.data = leg;

    u = &leg->upstream;

    u->upstream = flow->upstream;

    u->peer.type = SOCK_DGRAM;
    u->peer.log = &leg->log;
    u->peer.log_error = NGX_ERROR_ERR;

    return leg;
}


/*
 * Asks the balancer until a peer can be connected to.  Returns |leg|, or the
 * leg that the flow already has to the same backend, or NULL.
 */

static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_leg_connect(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_int_t                     rc;
    ngx_event_get_peer_pt         get;
    ngx_peer_connection_t        *pc;
    ngx_stream_quic_pt_leg_t     *old;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    flow = leg->flow;
    worker = flow->listener->worker;
    pc = &leg->upstream.peer;
    get = pc->get;

    for ( ;; ) {
        rc = get(pc, pc->data);

        if (rc != NGX_OK) {
            break;
        }

        old = ngx_stream_quic_pt_leg_find(flow, pc->sockaddr, pc->socklen);

        if (old && old->failed) {
            ngx_stream_quic_pt_leg_take_over(leg, old);
            return leg;
        }

        if (old) {
            ngx_stream_quic_pt_backend_free_peer(leg, 0);
            ngx_stream_quic_pt_leg_destroy(leg);
            return old;
        }

        /* it logs each failure, and anybody can bring about many */

        pc->log = (worker->unreachable == ngx_time()) ? &worker->quiet
                                                      : &leg->log;

        rc = ngx_stream_quic_pt_bind_leg(leg);

        if (rc == NGX_OK) {
            rc = ngx_stream_quic_pt_connect(leg);
        }

        if (rc == NGX_OK) {
            rc = ngx_stream_quic_pt_leg_start(leg);

            if (rc == NGX_OK) {
                return leg;
            }

        } else {
            worker->unreachable = ngx_time();
        }

        if (rc == NGX_DECLINED) {
            ngx_stream_quic_pt_backend_peer_failed(leg);

        } else {
            ngx_stream_quic_pt_backend_free_peer(leg, 0);
        }

        /* what names a server is of no use to another */

        if (rc == NGX_ERROR || route->server || pc->tries == 0) {
            break;
        }
    }

    if (rc != NGX_ERROR) {
        ngx_stream_quic_pt_leg_no_live(leg);
    }

    ngx_stream_quic_pt_leg_destroy(leg);

    return NULL;
}


static void
ngx_stream_quic_pt_leg_no_live(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    flow = leg->flow;
    worker = flow->listener->worker;

    if (worker->no_live == ngx_time()) {
        return;
    }

    worker->no_live = ngx_time();

    ngx_log_error(NGX_LOG_ERR, flow->session->connection->log, 0,
                  "no live upstreams while connecting to upstream, "
                  "upstream: \"%V\"",
                  leg->upstream.upstream ? &leg->upstream.upstream->host
                                         : &flow->resolved->host);
}


static ngx_int_t
ngx_stream_quic_pt_leg_start(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_connection_t           *c;
    ngx_stream_session_t       *s;
    ngx_peer_connection_t      *pc;
    ngx_stream_quic_pt_flow_t  *flow;

    flow = leg->flow;
    s = flow->session;
    pc = &leg->upstream.peer;
    c = pc->connection;

    c->data = leg;
    c->log = s->connection->log;
    c->pool = leg->pool;
    c->read->log = c->log;
    c->write->log = c->log;
    c->read->handler = ngx_stream_quic_pt_leg_read;
    c->write->handler = ngx_stream_quic_pt_leg_write;

    /* what the system lacks is told for the listening sockets */

    ngx_stream_quic_pt_udp_options(c->fd, pc->sockaddr->sa_family, 1,
                                   &flow->listener->worker->quiet);

    ngx_stream_quic_pt_buffers_leg(c->fd, SO_SNDBUF, flow->sndbuf, c->log);

    ngx_stream_quic_pt_backlog_init(flow->listener->worker, &leg->socket, c);

    leg->tx.socket = &leg->socket;
    leg->tx.family = pc->sockaddr->sa_family;
    leg->tx.counter = NGX_STREAM_QUIC_PT_SENT;

    if (ngx_stream_quic_pt_backend_attach(leg) != NGX_OK
        || ngx_stream_quic_pt_leg_state(leg) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_stream_quic_pt_leg_room(flow);

    ngx_queue_insert_head(&flow->legs, &leg->queue);
    flow->nlegs++;
    flow->listener->worker->nlegs++;

    return NGX_OK;
}


/*
 * The balancer offers a backend again that |old| has given back: the socket
 * stays, under the new peer.
 */

static void
ngx_stream_quic_pt_leg_take_over(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_leg_t *old)
{
    ngx_connection_t           *c;
    ngx_stream_quic_pt_flow_t  *flow;

    flow = leg->flow;

    if (old->is_pending) {
        ngx_stream_quic_pt_leg_flush(old);
    }

    c = old->upstream.peer.connection;
    c->data = leg;
    c->pool = leg->pool;

    leg->upstream.peer.connection = c;
    ngx_stream_quic_pt_backlog_drop(flow->listener->worker, &old->socket);
    ngx_stream_quic_pt_backlog_init(flow->listener->worker, &leg->socket, c);

    leg->socket.plain = old->socket.plain;
    leg->socket.overflow = old->socket.overflow;
    leg->tx = old->tx;
    leg->tx.socket = &leg->socket;
    leg->backend = old->backend;
    leg->state = old->state;
    leg->opened = old->opened;
    leg->judged = old->judged;
    leg->started = old->started;
    leg->received = old->received;

    ngx_queue_remove(&old->queue);
    ngx_queue_insert_head(&flow->legs, &leg->queue);

    ngx_stream_quic_pt_route_forget(old, leg);

    old->upstream.peer.connection = NULL;
    old->backend = NULL;

    ngx_stream_quic_pt_leg_destroy(old);
}


/* the leg's entry in $upstream_addr and the like */

static ngx_int_t
ngx_stream_quic_pt_leg_state(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_str_t                    *name;
    ngx_pool_t                   *pool;
    ngx_stream_session_t         *s;
    ngx_stream_upstream_state_t  *state;

    s = leg->flow->session;
    pool = s->connection->pool;

    if (s->upstream_states == NULL) {
        s->upstream_states = ngx_array_create(pool, 1,
                                         sizeof(ngx_stream_upstream_state_t));
        if (s->upstream_states == NULL) {
            return NGX_ERROR;
        }
    }

    if (s->upstream_states->nelts == NGX_STREAM_QUIC_PT_STATES) {

        /* the rest is counted in the last one */

        leg->state = NGX_STREAM_QUIC_PT_STATES - 1;
        return NGX_OK;
    }

    /* the peer, and its name, may go before the session is logged */

    name = ngx_palloc(pool, sizeof(ngx_str_t));
    if (name == NULL) {
        return NGX_ERROR;
    }

    name->len = leg->upstream.peer.name->len;
    name->data = ngx_pstrdup(pool, leg->upstream.peer.name);
    if (name->data == NULL) {
        return NGX_ERROR;
    }

    state = ngx_array_push(s->upstream_states);
    if (state == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(state, sizeof(ngx_stream_upstream_state_t));

    state->connect_time = 0;
    state->first_byte_time = (ngx_msec_t) -1;
    state->response_time = (ngx_msec_t) -1;
    state->peer = name;

    leg->state = s->upstream_states->nelts - 1;

    return NGX_OK;
}


/* a flow of very many connections: the leg that is idle the longest goes */

static void
ngx_stream_quic_pt_leg_room(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_t               *q;
    ngx_stream_quic_pt_leg_t  *leg, *oldest;

    if (flow->nlegs < NGX_STREAM_QUIC_PT_LEGS) {
        return;
    }

    q = ngx_queue_head(&flow->legs);
    oldest = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, queue);

    for (q = ngx_queue_next(q);
         q != ngx_queue_sentinel(&flow->legs);
         q = ngx_queue_next(q))
    {
        leg = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, queue);

        if ((ngx_msec_int_t) (leg->active - oldest->active) <= 0) {
            oldest = leg;
        }
    }

    ngx_stream_quic_pt_leg_close(oldest);
}


void
ngx_stream_quic_pt_leg_close(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_uint_t                    silent;
    ngx_stream_session_t         *s;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_upstream_state_t  *state;

    flow = leg->flow;
    s = flow->session;

    if (leg->is_pending) {
        ngx_stream_quic_pt_leg_flush(leg);
    }

    ngx_stream_quic_pt_backlog_drop(flow->listener->worker, &leg->socket);

    state = s->upstream_states->elts;
    state += leg->state;

    state->bytes_received += leg->received;
    state->bytes_sent += leg->upstream.peer.connection->sent;
    state->response_time = ngx_current_msec - leg->started;

    ngx_queue_remove(&leg->queue);
    flow->nlegs--;
    flow->listener->worker->nlegs--;

    ngx_stream_quic_pt_route_forget(leg, NULL);

    silent = ngx_stream_quic_pt_backend_silent(leg);

    ngx_stream_quic_pt_backend_free_peer(leg, silent ? NGX_PEER_FAILED : 0);
    ngx_stream_quic_pt_leg_destroy(leg);
}


static void
ngx_stream_quic_pt_leg_destroy(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_stream_quic_pt_backend_detach(leg);

    if (leg->upstream.peer.connection) {
        ngx_close_connection(leg->upstream.peer.connection);
    }

    ngx_destroy_pool(leg->pool);
}
