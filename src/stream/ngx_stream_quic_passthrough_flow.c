
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Flows: what one client address sends to one local address.  A flow is an
 * nginx session, so limit_conn, access and log work as for any other; the
 * session's connection only lends the listening socket.
 *
 * A flow is half-open until its backend has answered and the client has sent
 * again.  Half-open flows are counted and are the first to go, and without an
 * answer they live shortly; with one they may be a connection that is quiet.
 * The flow of a refused session stays for some seconds without one, so that
 * the client's next datagrams cost a lookup and not a session and a log line.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


#define NGX_STREAM_QUIC_PT_KEY                                                \
    (2 * (sizeof(struct in6_addr) + sizeof(in_port_t)) + sizeof(uintptr_t))


static uint64_t ngx_stream_quic_passthrough_flow_hash(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m);
static u_char *ngx_stream_quic_passthrough_put_address(u_char *p,
    struct sockaddr *sa);
static ngx_stream_quic_passthrough_flow_t *
    ngx_stream_quic_passthrough_flow_lookup(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m, uint64_t hash);
static ngx_uint_t ngx_stream_quic_passthrough_flow_matches(
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m);
static void ngx_stream_quic_passthrough_datagram(
    ngx_stream_quic_passthrough_flow_t *flow, u_char *data, size_t len,
    ngx_uint_t ecn);
static void ngx_stream_quic_passthrough_forward(
    ngx_stream_quic_passthrough_flow_t *flow, u_char *data, size_t len,
    ngx_uint_t ecn);
static void ngx_stream_quic_passthrough_enqueue(
    ngx_stream_quic_passthrough_flow_t *flow, u_char *data, size_t len,
    ngx_uint_t ecn);
static ngx_stream_quic_passthrough_flow_t *
    ngx_stream_quic_passthrough_flow_create(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m, u_char *data, size_t len,
    uint64_t hash);
static ngx_int_t ngx_stream_quic_passthrough_flow_room(
    ngx_stream_quic_passthrough_worker_t *worker);
static ngx_int_t ngx_stream_quic_passthrough_flow_session(
    ngx_stream_quic_passthrough_flow_t *flow);
static ngx_connection_t *ngx_stream_quic_passthrough_flow_connection(
    ngx_stream_quic_passthrough_flow_t *flow);
static ngx_int_t ngx_stream_quic_passthrough_flow_addresses(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_connection_t *c);
static void ngx_stream_quic_passthrough_flow_confirm(
    ngx_stream_quic_passthrough_flow_t *flow);
static void ngx_stream_quic_passthrough_flow_event(ngx_event_t *ev);
static void ngx_stream_quic_passthrough_flow_write(ngx_event_t *ev);
static void ngx_stream_quic_passthrough_flow_end(
    ngx_stream_quic_passthrough_flow_t *flow);
static void ngx_stream_quic_passthrough_flow_cleanup(void *data);
static void ngx_stream_quic_passthrough_flow_free(
    ngx_stream_quic_passthrough_flow_t *flow);
static ssize_t ngx_stream_quic_passthrough_no_recv(ngx_connection_t *c,
    u_char *buf, size_t size);


void
ngx_stream_quic_passthrough_message(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m)
{
    u_char                                *p, *last;
    size_t                                 len;
    uint64_t                               hash;
    ngx_uint_t                             n;
    ngx_stream_quic_passthrough_flow_t    *flow;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = listener->worker;

    n = m->len ? (m->len + m->segment - 1) / m->segment : 1;

    ngx_stream_quic_passthrough_count(worker, NGX_STREAM_QUIC_PT_RECEIVED, n);

    if (m->len == 0) {
        ngx_stream_quic_passthrough_count(worker,
                                          NGX_STREAM_QUIC_PT_MALFORMED, 1);
        return;
    }

    flow = worker->recent;

    if (flow && ngx_stream_quic_passthrough_flow_matches(flow, listener, m)) {
        hash = flow->node.hash;

    } else {
        hash = ngx_stream_quic_passthrough_flow_hash(listener, m);
        flow = ngx_stream_quic_passthrough_flow_lookup(listener, m, hash);
    }

    p = m->data;
    last = p + m->len;

    while (p < last) {

        len = ngx_min(m->segment, (size_t) (last - p));

        if (flow == NULL) {
            flow = ngx_stream_quic_passthrough_flow_create(listener, m, p, len,
                                                           hash);
        }

        if (flow) {
            ngx_stream_quic_passthrough_datagram(flow, p, len, m->ecn);

            /* it may have lost its session, or all it was */

            flow = worker->recent;
        }

        p += len;
    }
}


static uint64_t
ngx_stream_quic_passthrough_flow_hash(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m)
{
    u_char  *p, key[NGX_STREAM_QUIC_PT_KEY];

    p = ngx_cpymem(key, &listener, sizeof(uintptr_t));
    p = ngx_stream_quic_passthrough_put_address(p, &m->sockaddr.sockaddr);

    if (listener->listening->wildcard) {
        p = ngx_stream_quic_passthrough_put_address(p, &m->local.sockaddr);
    }

    return quic_lb_hash(&listener->worker->key, key, p - key);
}


static u_char *
ngx_stream_quic_passthrough_put_address(u_char *p, struct sockaddr *sa)
{
    struct sockaddr_in   *sin;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    switch (sa->sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sin6 = (struct sockaddr_in6 *) sa;
        p = ngx_cpymem(p, &sin6->sin6_addr, sizeof(struct in6_addr));
        return ngx_cpymem(p, &sin6->sin6_port, sizeof(in_port_t));
#endif

    default: /* AF_INET */
        sin = (struct sockaddr_in *) sa;
        p = ngx_cpymem(p, &sin->sin_addr, sizeof(struct in_addr));
        return ngx_cpymem(p, &sin->sin_port, sizeof(in_port_t));
    }
}


static ngx_stream_quic_passthrough_flow_t *
ngx_stream_quic_passthrough_flow_lookup(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m, uint64_t hash)
{
    quic_lb_table_node_t                  *node;
    ngx_stream_quic_passthrough_flow_t    *flow;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = listener->worker;
    worker->recent = NULL;

    for (node = quic_lb_table_first(&worker->flows, hash);
         node;
         node = quic_lb_table_next(node))
    {
        flow = (ngx_stream_quic_passthrough_flow_t *) node;

        if (!ngx_stream_quic_passthrough_flow_matches(flow, listener, m)) {
            continue;
        }

        if (flow->refused
            && ngx_current_msec - flow->started >= NGX_STREAM_QUIC_PT_REFUSED)
        {
            ngx_stream_quic_passthrough_flow_free(flow);
            return NULL;
        }

        worker->recent = flow;
        return flow;
    }

    return NULL;
}


static ngx_uint_t
ngx_stream_quic_passthrough_flow_matches(
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m)
{
    if (flow->listener != listener
        || ngx_cmp_sockaddr(&flow->client.sockaddr, flow->socklen,
                            &m->sockaddr.sockaddr, m->socklen, 1)
           != NGX_OK)
    {
        return 0;
    }

    if (!listener->listening->wildcard) {
        return 1;
    }

    return ngx_cmp_sockaddr(&flow->local.sockaddr,
                            listener->listening->socklen, &m->local.sockaddr,
                            listener->listening->socklen, 0)
           == NGX_OK;
}


static void
ngx_stream_quic_passthrough_datagram(ngx_stream_quic_passthrough_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    if (flow->refused) {
        ngx_stream_quic_passthrough_count(flow->listener->worker,
                                         NGX_STREAM_QUIC_PT_REFUSED_FLOW, 1);
        return;
    }

    flow->session->received += len;

    if (!flow->ready) {
        ngx_stream_quic_passthrough_enqueue(flow, data, len, ecn);
        return;
    }

    ngx_stream_quic_passthrough_forward(flow, data, len, ecn);
}


static void
ngx_stream_quic_passthrough_forward(ngx_stream_quic_passthrough_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    quic_lb_packet_t                       pkt;
    ngx_stream_quic_lb_route_t             route;
    ngx_stream_quic_passthrough_leg_t     *leg;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = flow->listener->worker;

    leg = ngx_stream_quic_passthrough_repeated(flow, data, len);

    if (leg == NULL) {

        if (quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK) {
            ngx_stream_quic_passthrough_count(worker,
                                             NGX_STREAM_QUIC_PT_MALFORMED, 1);
            return;
        }

        if (ngx_stream_quic_passthrough_decide(flow,
                ngx_stream_quic_passthrough_router(flow->listener->listening,
                                                   &flow->local.sockaddr),
                &flow->client.sockaddr, &flow->local.sockaddr, &pkt, &route,
                &leg)
            != NGX_OK)
        {
            ngx_stream_quic_passthrough_count(worker,
                                            NGX_STREAM_QUIC_PT_UNROUTABLE, 1);
            return;
        }

        if (pkt.type == QUIC_LB_PACKET_INITIAL
            && ngx_stream_quic_passthrough_admit(flow) != NGX_OK)
        {
            ngx_stream_quic_passthrough_count(worker,
                                          NGX_STREAM_QUIC_PT_REFUSED_FLOW, 1);
            return;
        }

        if (leg == NULL) {
            leg = ngx_stream_quic_passthrough_leg_get(flow, &route);
        }

        if (leg == NULL) {
            ngx_stream_quic_passthrough_count(worker,
                                            NGX_STREAM_QUIC_PT_NO_BACKEND, 1);

            if (flow->nlegs == 0) {
                ngx_stream_quic_passthrough_flow_refuse(flow,
                                                      NGX_STREAM_BAD_GATEWAY);
            }

            return;
        }

        flow->route = route;
        flow->route_leg = leg;
        flow->last = leg;

        if (pkt.type == QUIC_LB_PACKET_INITIAL) {
            leg->opened = 1;
        }

        ngx_stream_quic_passthrough_learn_client(flow, &pkt, leg);
    }

    if (flow->half_open && flow->answered) {
        ngx_stream_quic_passthrough_flow_confirm(flow);
    }

    ngx_stream_quic_passthrough_leg_send(leg, data, len, ecn);
}


static void
ngx_stream_quic_passthrough_enqueue(ngx_stream_quic_passthrough_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    ngx_stream_quic_passthrough_queued_t  *dg;

    if (flow->ndatagrams == NGX_STREAM_QUIC_PT_QUEUE) {
        goto drop;
    }

    dg = ngx_alloc(offsetof(ngx_stream_quic_passthrough_queued_t, data) + len,
                   flow->listener->worker->log);
    if (dg == NULL) {
        goto drop;
    }

    ngx_memcpy(dg->data, data, len);
    dg->len = len;
    dg->ecn = ecn;

    ngx_queue_insert_tail(&flow->datagrams, &dg->queue);
    flow->ndatagrams++;

    return;

drop:

    ngx_stream_quic_passthrough_count(flow->listener->worker,
                                      NGX_STREAM_QUIC_PT_OVERLOAD, 1);
}


/*
 * The session has come to its content handler, within the batch that made the
 * flow or later.
 */

void
ngx_stream_quic_passthrough_flow_ready(
    ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_queue_t                           *q;
    ngx_connection_t                      *c;
    ngx_stream_quic_passthrough_worker_t  *worker;
    ngx_stream_quic_passthrough_queued_t  *dg;

    worker = flow->listener->worker;
    c = flow->session->connection;

    flow->ready = 1;

    c->log->action = "passing QUIC datagrams";
    c->read->handler = ngx_stream_quic_passthrough_flow_event;
    c->write->handler = ngx_stream_quic_passthrough_flow_write;

    ngx_add_timer(c->read, ngx_min(flow->timeout,
                                   NGX_STREAM_QUIC_PT_HALF_OPEN));

    if (flow->ndatagrams == 0) {
        return;
    }

    /* what was queued is freed below, so it is sent before that */

    worker->batch->npieces = 0;
    worker->batch->nruns = 0;

    for (q = ngx_queue_head(&flow->datagrams);
         !flow->refused && q != ngx_queue_sentinel(&flow->datagrams);
         q = ngx_queue_next(q))
    {
        dg = ngx_queue_data(q, ngx_stream_quic_passthrough_queued_t, queue);

        ngx_stream_quic_passthrough_forward(flow, dg->data, dg->len, dg->ecn);
    }

    ngx_stream_quic_passthrough_legs_flush(worker);

    while (!ngx_queue_empty(&flow->datagrams)) {
        q = ngx_queue_head(&flow->datagrams);
        ngx_queue_remove(q);
        ngx_free(ngx_queue_data(q, ngx_stream_quic_passthrough_queued_t,
                                queue));
    }

    flow->ndatagrams = 0;
}


static ngx_stream_quic_passthrough_flow_t *
ngx_stream_quic_passthrough_flow_create(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m, u_char *data, size_t len,
    uint64_t hash)
{
    ngx_uint_t                             established;
    quic_lb_packet_t                       pkt;
    ngx_stream_quic_lb_route_t             route;
    ngx_stream_quic_passthrough_leg_t     *leg;
    ngx_stream_quic_passthrough_flow_t    *flow;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = listener->worker;

    if (quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK) {
        ngx_stream_quic_passthrough_count(worker,
                                          NGX_STREAM_QUIC_PT_MALFORMED, 1);
        return NULL;
    }

    if (ngx_stream_quic_passthrough_decide(NULL,
            ngx_stream_quic_passthrough_router(listener->listening,
                                               &m->local.sockaddr),
            &m->sockaddr.sockaddr, &m->local.sockaddr, &pkt, &route, &leg)
        != NGX_OK)
    {
        ngx_stream_quic_passthrough_count(worker,
                                          NGX_STREAM_QUIC_PT_UNROUTABLE, 1);
        return NULL;
    }

    /* only a backend's connection ID makes such a packet routable */

    established = (pkt.type == QUIC_LB_PACKET_SHORT
                   || pkt.type == QUIC_LB_PACKET_HANDSHAKE);

    if (listener->exiting && !established) {
        goto overload;
    }

    if (ngx_stream_quic_passthrough_flow_room(worker) != NGX_OK) {
        goto overload;
    }

    flow = ngx_calloc(sizeof(ngx_stream_quic_passthrough_flow_t), worker->log);
    if (flow == NULL) {
        goto overload;
    }

    if (quic_lb_table_insert(&worker->flows, &flow->node, hash)
        != QUIC_LB_OK)
    {
        ngx_free(flow);
        goto overload;
    }

    flow->listener = listener;
    flow->route = route;
    flow->started = ngx_current_msec;
    flow->client = m->sockaddr;
    flow->local = m->local;
    flow->socklen = m->socklen;
    flow->half_open = 1;
    flow->established = established;

    ngx_queue_init(&flow->legs);
    ngx_queue_init(&flow->datagrams);
    ngx_queue_insert_tail(&worker->half_open, &flow->queue);
    worker->nhalf_open++;

    worker->recent = flow;

    ngx_stream_quic_passthrough_count(worker, NGX_STREAM_QUIC_PT_FLOWS, 1);

    if (ngx_stream_quic_passthrough_flow_session(flow) != NGX_OK) {
        goto overload;
    }

    return worker->recent;

overload:

    ngx_stream_quic_passthrough_count(worker, NGX_STREAM_QUIC_PT_OVERLOAD, 1);

    return NULL;
}


/*
 * Makes room for one more flow.  ngx_get_connection() would log an alert for
 * each datagram, so the last connections are left to others.
 */

static ngx_int_t
ngx_stream_quic_passthrough_flow_room(
    ngx_stream_quic_passthrough_worker_t *worker)
{
    ngx_uint_t                           i;
    ngx_queue_t                         *q;
    ngx_stream_quic_passthrough_flow_t  *flow;

    /* two refusals for each new flow: the old ones do not pile up */

    for (i = 0; i < 2 && !ngx_queue_empty(&worker->refused); i++) {
        q = ngx_queue_head(&worker->refused);
        flow = ngx_queue_data(q, ngx_stream_quic_passthrough_flow_t, queue);

        if (worker->flows.count < worker->flows.limit
            && ngx_current_msec - flow->started < NGX_STREAM_QUIC_PT_REFUSED)
        {
            break;
        }

        ngx_stream_quic_passthrough_flow_free(flow);
    }

    while (worker->nhalf_open >= worker->half_open_limit
           || ngx_cycle->free_connection_n < worker->reserve + 2)
    {
        if (ngx_queue_empty(&worker->half_open)) {

            if (worker->complained != ngx_time()) {
                worker->complained = ngx_time();

                ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                              "no connections left for new QUIC flows, "
                              "increase worker_connections");
            }

            return NGX_ERROR;
        }

        q = ngx_queue_head(&worker->half_open);
        flow = ngx_queue_data(q, ngx_stream_quic_passthrough_flow_t, queue);

        ngx_stream_quic_passthrough_count(worker, NGX_STREAM_QUIC_PT_EVICTED,
                                          1);

        ngx_stream_quic_passthrough_flow_close(flow,
                                               NGX_STREAM_SERVICE_UNAVAILABLE);
    }

    return NGX_OK;
}


/*
 * Starts the session.  It may come to its content handler, be refused, or
 * wait for something, all before this returns.
 */

static ngx_int_t
ngx_stream_quic_passthrough_flow_session(
    ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_connection_t                      *c;
    ngx_pool_cleanup_t                    *cln;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = flow->listener->worker;

    c = ngx_stream_quic_passthrough_flow_connection(flow);

    if (c == NULL) {
        ngx_stream_quic_passthrough_flow_free(flow);
        return NGX_ERROR;
    }

    cln = ngx_pool_cleanup_add(c->pool, 0);

    if (cln == NULL) {
        ngx_close_connection(c);
        ngx_destroy_pool(c->pool);
        ngx_stream_quic_passthrough_flow_free(flow);
        return NGX_ERROR;
    }

    cln->handler = ngx_stream_quic_passthrough_flow_cleanup;
    cln->data = flow;

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

    return NGX_OK;
}


/* what ngx_event_recvmsg() sets up for a new client address */

static ngx_connection_t *
ngx_stream_quic_passthrough_flow_connection(
    ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_log_t                               *log;
    ngx_connection_t                        *c;
    ngx_stream_quic_passthrough_listener_t  *listener;

    listener = flow->listener;

    c = ngx_get_connection(listener->connection->fd, listener->worker->log);
    if (c == NULL) {
        return NULL;
    }

    c->shared = 1;
    c->type = SOCK_DGRAM;

    c->pool = ngx_create_pool(listener->listening->pool_size,
                              listener->worker->log);
    if (c->pool == NULL) {
        goto failed;
    }

    log = ngx_palloc(c->pool, sizeof(ngx_log_t));
    if (log == NULL) {
        goto failed;
    }

    *log = listener->listening->log;

    log->data = NULL;
    log->handler = NULL;

    c->log = log;
    c->pool->log = log;
    c->listening = listener->listening;

    c->recv = ngx_stream_quic_passthrough_no_recv;
    c->send = ngx_udp_send;
    c->send_chain = ngx_udp_send_chain;
    c->need_flush_buf = 1;

    c->read->active = 1;
    c->write->ready = 1;
    c->read->log = log;
    c->write->log = log;

    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    if (ngx_stream_quic_passthrough_flow_addresses(flow, c) != NGX_OK) {
        goto failed;
    }

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
ngx_stream_quic_passthrough_flow_addresses(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_connection_t *c)
{
    ngx_listening_t  *ls;

    ls = c->listening;

    /* copies: the session may outlive the flow */

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


/* the flow of a session that is only starting */

ngx_stream_quic_passthrough_flow_t *
ngx_stream_quic_passthrough_flow_find(ngx_stream_session_t *s)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = s->connection->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_stream_quic_passthrough_flow_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


static void
ngx_stream_quic_passthrough_flow_confirm(
    ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = flow->listener->worker;

    ngx_queue_remove(&flow->queue);
    ngx_queue_insert_tail(&worker->confirmed, &flow->queue);

    flow->half_open = 0;
    worker->nhalf_open--;
}


/*
 * The idle timer, lazy: datagrams only leave their time in the legs.
 */

static void
ngx_stream_quic_passthrough_flow_event(ngx_event_t *ev)
{
    ngx_msec_t                           idle, wait;
    ngx_queue_t                         *q, *next;
    ngx_connection_t                    *c;
    ngx_stream_session_t                *s;
    ngx_stream_quic_passthrough_leg_t   *leg;
    ngx_stream_quic_passthrough_flow_t  *flow;

    c = ev->data;
    s = c->data;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (c->close) {
        ngx_stream_quic_passthrough_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    if (!ev->timedout) {
        return;
    }

    ev->timedout = 0;

    if (!flow->answered) {
        ngx_stream_quic_passthrough_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    wait = 0;

    for (q = ngx_queue_head(&flow->legs);
         q != ngx_queue_sentinel(&flow->legs);
         q = next)
    {
        next = ngx_queue_next(q);
        leg = ngx_queue_data(q, ngx_stream_quic_passthrough_leg_t, queue);

        idle = ngx_current_msec - leg->active;

        if (idle >= flow->timeout) {
            ngx_stream_quic_passthrough_leg_close(leg);
            continue;
        }

        wait = ngx_max(wait, flow->timeout - idle);
    }

    if (wait == 0) {
        ngx_stream_quic_passthrough_flow_close(flow, NGX_STREAM_OK);
        return;
    }

    ngx_add_timer(ev, wait);
}


static void
ngx_stream_quic_passthrough_flow_write(ngx_event_t *ev)
{
    /* the listening socket is written to without waiting */
}


void
ngx_stream_quic_passthrough_flow_close(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_uint_t rc)
{
    flow->closing = 1;

    ngx_stream_quic_passthrough_flow_refuse(flow, rc);
}


/* ends the session; the flow stays to drop what the client goes on sending */

void
ngx_stream_quic_passthrough_flow_refuse(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_uint_t rc)
{
    ngx_stream_session_t  *s;

    s = flow->session;

    ngx_stream_quic_passthrough_flow_end(flow);
    ngx_stream_finalize_session(s, rc);
}


static void
ngx_stream_quic_passthrough_flow_end(ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_queue_t                        *q;
    ngx_stream_quic_passthrough_leg_t  *leg;

    if (flow->resolved && flow->resolved->ctx) {
        ngx_resolve_name_done(flow->resolved->ctx);
        flow->resolved->ctx = NULL;
    }

    while (!ngx_queue_empty(&flow->legs)) {
        q = ngx_queue_head(&flow->legs);
        leg = ngx_queue_data(q, ngx_stream_quic_passthrough_leg_t, queue);

        ngx_stream_quic_passthrough_leg_close(leg);
    }
}


static void
ngx_stream_quic_passthrough_flow_cleanup(void *data)
{
    ngx_stream_quic_passthrough_flow_t *flow = data;

    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = flow->listener->worker;

    ngx_stream_quic_passthrough_flow_end(flow);

    flow->session = NULL;
    flow->refused = 1;

    if (flow->closing) {
        ngx_stream_quic_passthrough_flow_free(flow);
        return;
    }

    if (flow->half_open) {
        flow->half_open = 0;
        worker->nhalf_open--;
    }

    ngx_queue_remove(&flow->queue);
    ngx_queue_insert_tail(&worker->refused, &flow->queue);

    flow->ready = 0;
    flow->started = ngx_current_msec;
}


static void
ngx_stream_quic_passthrough_flow_free(ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_queue_t                           *q;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = flow->listener->worker;

    if (worker->recent == flow) {
        worker->recent = NULL;
    }

    if (flow->half_open) {
        worker->nhalf_open--;
    }

    while (!ngx_queue_empty(&flow->datagrams)) {
        q = ngx_queue_head(&flow->datagrams);
        ngx_queue_remove(q);
        ngx_free(ngx_queue_data(q, ngx_stream_quic_passthrough_queued_t,
                                queue));
    }

    ngx_queue_remove(&flow->queue);
    quic_lb_table_remove(&worker->flows, &flow->node);

    ngx_free(flow);
}


/* when the worker exits */

void
ngx_stream_quic_passthrough_flows_done(
    ngx_stream_quic_passthrough_worker_t *worker)
{
    ngx_uint_t                           i;
    ngx_queue_t                         *q, *queues[3];
    ngx_stream_quic_passthrough_flow_t  *flow;

    queues[0] = &worker->half_open;
    queues[1] = &worker->confirmed;
    queues[2] = &worker->refused;

    for (i = 0; i < 3; i++) {

        while (!ngx_queue_empty(queues[i])) {
            q = ngx_queue_head(queues[i]);
            flow = ngx_queue_data(q, ngx_stream_quic_passthrough_flow_t,
                                  queue);

            if (flow->refused) {
                ngx_stream_quic_passthrough_flow_free(flow);

            } else {
                ngx_stream_quic_passthrough_flow_close(flow, NGX_STREAM_OK);
            }
        }
    }
}


static ssize_t
ngx_stream_quic_passthrough_no_recv(ngx_connection_t *c, u_char *buf,
    size_t size)
{
    /* datagrams do not come by the session's connection */

    return NGX_AGAIN;
}
