
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Flows: what one client address sends to one local address.  A flow is an
 * nginx session, so limit_conn, access and log work as for any other; the
 * session's connection only lends the listening socket.
 *
 * A flow is unproven until its client has shown that it gets what is sent to
 * its address.  Unproven flows make room for others (_room.c), and without an
 * answer they are short-lived; with one they may be a connection that is quiet.
 * The flow of a refused session stays for some seconds without one, so that the
 * client's next datagrams cost a lookup and not a session and a log line.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void ngx_stream_quic_pt_flow_session(ngx_stream_quic_pt_flow_t *flow,
    ngx_connection_t *c);
static ngx_connection_t *ngx_stream_quic_pt_flow_connection(
    ngx_stream_quic_pt_flow_t *flow);
static ngx_int_t ngx_stream_quic_pt_flow_addresses(
    ngx_stream_quic_pt_flow_t *flow, ngx_connection_t *c);
static void ngx_stream_quic_pt_flow_read(ngx_event_t *rev);
static void ngx_stream_quic_pt_flow_write(ngx_event_t *wev);
static void ngx_stream_quic_pt_flow_expire(ngx_stream_quic_pt_flow_t *flow,
    ngx_event_t *ev);
static void ngx_stream_quic_pt_flow_finalize(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc);
static void ngx_stream_quic_pt_flow_end(ngx_stream_quic_pt_flow_t *flow);
static void ngx_stream_quic_pt_flow_cleanup(void *data);
static void ngx_stream_quic_pt_flow_enter(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t class);
static void ngx_stream_quic_pt_flow_leave(ngx_stream_quic_pt_flow_t *flow);
static void ngx_stream_quic_pt_flow_done_queue(ngx_queue_t *queue);
static ssize_t ngx_stream_quic_pt_flow_recv(ngx_connection_t *c, u_char *buf,
    size_t size);


ngx_stream_quic_pt_flow_t *
ngx_stream_quic_pt_flow_create(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m, ngx_stream_quic_lb_route_t *route,
    ngx_uint_t class, ngx_uint_t established, uint64_t hash)
{
    ngx_connection_t             *c;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = listener->worker;

    if ((listener->exiting && !established)
        || ngx_stream_quic_pt_source_full(listener, &m->sockaddr.sockaddr)
        || ngx_stream_quic_pt_room_for_flow(worker, class) != NGX_OK)
    {
        return NULL;
    }

    flow = ngx_calloc(sizeof(ngx_stream_quic_pt_flow_t), worker->log);
    if (flow == NULL) {
        return NULL;
    }

    if (quic_lb_table_insert(&worker->flows, &flow->node, hash)
        != QUIC_LB_OK)
    {
        ngx_free(flow);
        return NULL;
    }

    flow->listener = listener;
    flow->route = *route;
    flow->started = ngx_current_msec;
    flow->round = ngx_current_msec;
    flow->client = m->sockaddr;
    flow->local = m->local;
    flow->socklen = m->socklen;
    flow->established = established;
    flow->drops = NGX_STREAM_QUIC_PT_REFUSED_FLOW;

    ngx_queue_init(&flow->legs);
    ngx_queue_init(&flow->datagrams);

    ngx_stream_quic_pt_conn_init(flow);

    ngx_stream_quic_pt_flow_enter(flow, class);

    c = NULL;

    if (ngx_stream_quic_pt_source_attach(flow) == NGX_OK) {
        c = ngx_stream_quic_pt_flow_connection(flow);
    }

    if (c == NULL) {
        ngx_stream_quic_pt_flow_free(flow);
        return NULL;
    }

    worker->recent = flow;

    ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_FLOWS, 1);
    ngx_stream_quic_pt_flow_session(flow, c);

    return worker->recent;
}


/*
 * Starts the session.  It may come to its content handler, be refused, or
 * wait for something, all before this returns.
 */

static void
ngx_stream_quic_pt_flow_session(ngx_stream_quic_pt_flow_t *flow,
    ngx_connection_t *c)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;

#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_accepted, 1);
    (void) ngx_atomic_fetch_add(ngx_stat_active, 1);
    (void) ngx_atomic_fetch_add(ngx_stat_handled, 1);
#endif

    c->listening->handler(c);

    if (worker->recent == flow && !flow->refused) {

        /* with the accept mutex the phases run later */

        flow->session = c->data;
    }
}


/* what ngx_event_recvmsg() sets up for a new client address */

static ngx_connection_t *
ngx_stream_quic_pt_flow_connection(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_log_t           *log;
    ngx_listening_t     *ls;
    ngx_connection_t    *c;
    ngx_pool_cleanup_t  *cln;

    ls = flow->listener->listening;
    log = flow->listener->worker->log;

    c = ngx_get_connection(flow->listener->socket.connection->fd, log);
    if (c == NULL) {
        return NULL;
    }

    c->shared = 1;
    c->type = SOCK_DGRAM;

    c->pool = ngx_create_pool(ls->pool_size, log);
    if (c->pool == NULL) {
        goto failed;
    }

    log = ngx_palloc(c->pool, sizeof(ngx_log_t));
    if (log == NULL) {
        goto failed;
    }

    *log = ls->log;

    log->data = NULL;
    log->handler = NULL;

    c->log = log;
    c->pool->log = log;
    c->listening = ls;

    c->recv = ngx_stream_quic_pt_flow_recv;
    c->send = ngx_udp_send;
    c->send_chain = ngx_udp_send_chain;
    c->need_flush_buf = 1;

    c->read->active = 1;
    c->write->ready = 1;
    c->read->log = log;
    c->write->log = log;

    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    if (ngx_stream_quic_pt_flow_addresses(flow, c) != NGX_OK) {
        goto failed;
    }

    cln = ngx_pool_cleanup_add(c->pool, 0);
    if (cln == NULL) {
        goto failed;
    }

    cln->handler = ngx_stream_quic_pt_flow_cleanup;
    cln->data = flow;

    return c;

failed:

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;

    if (c->pool) {
        ngx_destroy_pool(c->pool);
    }

    return NULL;
}


static ngx_int_t
ngx_stream_quic_pt_flow_addresses(ngx_stream_quic_pt_flow_t *flow,
    ngx_connection_t *c)
{
    ngx_listening_t  *ls;

    ls = c->listening;

    /* copies: the session is logged when the flow may be gone */

    c->sockaddr = ngx_palloc(c->pool, flow->socklen);
    c->local_sockaddr = ngx_palloc(c->pool, ls->socklen);

    if (c->sockaddr == NULL || c->local_sockaddr == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(c->sockaddr, &flow->client, flow->socklen);
    c->socklen = flow->socklen;

    ngx_memcpy(c->local_sockaddr, &flow->local, ls->socklen);
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


ngx_stream_quic_pt_flow_t *
ngx_stream_quic_pt_flow_find(ngx_stream_session_t *s)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = s->connection->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_stream_quic_pt_flow_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


/*
 * The session has come to its content handler, within the batch that made the
 * flow or later.
 */

void
ngx_stream_quic_pt_flow_content(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_connection_t  *c;

    c = flow->session->connection;

    c->read->handler = ngx_stream_quic_pt_flow_read;
    c->write->handler = ngx_stream_quic_pt_flow_write;
}


/* its upstream is known */

void
ngx_stream_quic_pt_flow_ready(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_connection_t  *c;

    c = flow->session->connection;

    flow->ready = 1;

    c->log->action = "passing QUIC datagrams";

    ngx_add_timer(c->read, ngx_stream_quic_pt_unanswered(flow));

    ngx_stream_quic_pt_datagram_ready(flow);
}


void
ngx_stream_quic_pt_flow_confirm(ngx_stream_quic_pt_flow_t *flow)
{
    flow->unvalidated = 0;

    if (flow->class == NGX_STREAM_QUIC_PT_CONFIRMED) {
        return;
    }

    ngx_stream_quic_pt_flow_leave(flow);
    ngx_stream_quic_pt_flow_enter(flow, NGX_STREAM_QUIC_PT_CONFIRMED);
}


/*
 * A connection that has come from elsewhere cannot prove its address, but goes
 * on for some time: who forges addresses has to do so for each.  Of sustained
 * flows the least recently used one is the first to go.
 */

void
ngx_stream_quic_pt_flow_sent(ngx_stream_quic_pt_flow_t *flow)
{
    if (!flow->replied
        || ngx_current_msec - flow->round < NGX_STREAM_QUIC_PT_ROUND)
    {
        return;
    }

    flow->replied = 0;
    flow->round = ngx_current_msec;

    if (++flow->rounds < NGX_STREAM_QUIC_PT_ROUNDS) {
        return;
    }

    ngx_stream_quic_pt_flow_leave(flow);
    ngx_stream_quic_pt_flow_enter(flow, NGX_STREAM_QUIC_PT_SUSTAINED);
}


static void
ngx_stream_quic_pt_flow_enter(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t class)
{
    ngx_stream_quic_pt_class_t  *to;

    to = &flow->listener->worker->classes[class];

    flow->class = class;

    ngx_queue_insert_tail(&to->flows, &flow->queue);
    to->nflows++;
}


static void
ngx_stream_quic_pt_flow_leave(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_remove(&flow->queue);
    flow->listener->worker->classes[flow->class].nflows--;

    ngx_stream_quic_pt_source_settle(flow);
}


static void
ngx_stream_quic_pt_flow_read(ngx_event_t *rev)
{
    ngx_connection_t           *c;
    ngx_stream_session_t       *s;
    ngx_stream_quic_pt_flow_t  *flow;

    c = rev->data;
    s = c->data;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (c->close) {

        /* worker_shutdown_timeout */

        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    if (flow->looked_up) {
        ngx_stream_quic_pt_session_looked_up(flow);
        return;
    }

    if (rev->timedout) {
        rev->timedout = 0;
        ngx_stream_quic_pt_flow_expire(flow, rev);
    }
}


static void
ngx_stream_quic_pt_flow_write(ngx_event_t *wev)
{
    /* the listening socket is written to without waiting */
}


/* the idle timer, lazy: datagrams only leave their time in the legs */

static void
ngx_stream_quic_pt_flow_expire(ngx_stream_quic_pt_flow_t *flow,
    ngx_event_t *ev)
{
    ngx_msec_t                 idle, wait;
    ngx_queue_t               *q, *next;
    ngx_stream_quic_pt_leg_t  *leg;

    if (!flow->answered) {
        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    wait = 0;

    for (q = ngx_queue_head(&flow->legs);
         q != ngx_queue_sentinel(&flow->legs);
         q = next)
    {
        next = ngx_queue_next(q);
        leg = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, queue);

        idle = ngx_current_msec - leg->active;

        if (idle >= flow->timeout) {
            ngx_stream_quic_pt_leg_close(leg);
            continue;
        }

        wait = ngx_max(wait, flow->timeout - idle);
    }

    if (wait == 0) {
        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    ngx_add_timer(ev, wait);
}


void
ngx_stream_quic_pt_flow_close(ngx_stream_quic_pt_flow_t *flow, ngx_uint_t rc)
{
    flow->closing = 1;

    ngx_stream_quic_pt_flow_finalize(flow, rc);
}


void
ngx_stream_quic_pt_flow_evict(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_pt_count(flow->listener->worker,
                             NGX_STREAM_QUIC_PT_EVICTED, 1);

    flow->drops = NGX_STREAM_QUIC_PT_OVERLOAD;

    ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_SERVICE_UNAVAILABLE);
}


void
ngx_stream_quic_pt_flow_refuse(ngx_stream_quic_pt_flow_t *flow, ngx_uint_t rc,
    ngx_uint_t counter)
{
    flow->drops = counter;

    ngx_stream_quic_pt_flow_finalize(flow, rc);
}


static void
ngx_stream_quic_pt_flow_finalize(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc)
{
    ngx_stream_session_t  *s;

    s = flow->session;

    /* the log phase reads what the legs leave in s->upstream_states */

    ngx_stream_quic_pt_flow_end(flow);
    ngx_stream_finalize_session(s, rc);
}


static void
ngx_stream_quic_pt_flow_end(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_t               *q;
    ngx_stream_quic_pt_leg_t  *leg;

    (void) ngx_stream_quic_pt_session_give_up(flow);

    while (!ngx_queue_empty(&flow->legs)) {
        q = ngx_queue_head(&flow->legs);
        leg = ngx_queue_data(q, ngx_stream_quic_pt_leg_t, queue);

        ngx_stream_quic_pt_leg_close(leg);
    }
}


/* the session ends, whoever ended it */

static void
ngx_stream_quic_pt_flow_cleanup(void *data)
{
    ngx_stream_quic_pt_flow_t *flow = data;

    ngx_stream_quic_pt_queued_t  *dg;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;

    ngx_stream_quic_pt_flow_end(flow);
    ngx_stream_quic_pt_conn_free(flow);
    ngx_stream_quic_preread_end(flow);

    for ( ;; ) {
        dg = ngx_stream_quic_pt_datagram_dequeue(flow);

        if (dg == NULL) {
            break;
        }

        ngx_free(dg);
        ngx_stream_quic_pt_count(worker, flow->drops, 1);
    }

    flow->session = NULL;
    flow->refused = 1;

    if (flow->closing) {
        ngx_stream_quic_pt_flow_free(flow);
        return;
    }

    flow->ready = 0;
    flow->started = ngx_current_msec;

    ngx_stream_quic_pt_flow_leave(flow);
    ngx_stream_quic_pt_source_detach(flow);
    ngx_stream_quic_pt_flow_enter(flow, NGX_STREAM_QUIC_PT_GONE);
}


/* |flow| has no session, and thus neither legs nor datagrams */

void
ngx_stream_quic_pt_flow_free(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;

    if (worker->recent == flow) {
        worker->recent = NULL;
    }

    ngx_stream_quic_pt_flow_leave(flow);
    ngx_stream_quic_pt_source_detach(flow);

    quic_lb_table_remove(&worker->flows, &flow->node);

    ngx_free(flow);
}


/* when the worker exits */

void
ngx_stream_quic_pt_flow_done(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_STREAM_QUIC_PT_CLASSES; i++) {
        ngx_stream_quic_pt_flow_done_queue(&worker->classes[i].flows);
    }
}


static void
ngx_stream_quic_pt_flow_done_queue(ngx_queue_t *queue)
{
    ngx_queue_t                *q;
    ngx_stream_quic_pt_flow_t  *flow;

    while (!ngx_queue_empty(queue)) {
        q = ngx_queue_head(queue);
        flow = ngx_queue_data(q, ngx_stream_quic_pt_flow_t, queue);

        if (flow->refused) {
            ngx_stream_quic_pt_flow_free(flow);

        } else {
            ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
        }
    }
}


static ssize_t
ngx_stream_quic_pt_flow_recv(ngx_connection_t *c, u_char *buf, size_t size)
{
    /* datagrams do not come by the session's connection */

    return NGX_AGAIN;
}
