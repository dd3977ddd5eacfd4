
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The way of a client's datagram: a message is looked up once, each of its
 * datagrams is routed, and goes to a leg or waits until its flow is ready.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


#define NGX_STREAM_QUIC_PT_KEY                                                \
    (sizeof(uintptr_t) + 2 * NGX_STREAM_QUIC_LB_ADDRESS_MAX)


static uint64_t ngx_stream_quic_pt_datagram_hash(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_message_t *m);
static ngx_stream_quic_pt_flow_t *ngx_stream_quic_pt_datagram_flow(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_message_t *m,
    uint64_t hash);
static ngx_uint_t ngx_stream_quic_pt_datagram_matches(
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m);
static ngx_stream_quic_pt_flow_t *ngx_stream_quic_pt_datagram_first(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_message_t *m,
    u_char *data, size_t len, uint64_t hash);
static ngx_uint_t ngx_stream_quic_pt_datagram_class(quic_lb_packet_t *pkt);
static ngx_int_t ngx_stream_quic_pt_datagram_route(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_flow_t *flow,
    struct sockaddr *client, struct sockaddr *local, u_char *data, size_t len,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route,
    ngx_stream_quic_pt_leg_t **leg);
static void ngx_stream_quic_pt_datagram_unknown(
    ngx_stream_quic_pt_worker_t *worker, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route);
static void ngx_stream_quic_pt_datagram_pass(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn);
static void ngx_stream_quic_pt_datagram_forward(
    ngx_stream_quic_pt_flow_t *flow, u_char *data, size_t len, ngx_uint_t ecn);
static void ngx_stream_quic_pt_datagram_send(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_leg_t *leg, u_char *data, size_t len, ngx_uint_t ecn);
static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_datagram_leg(
    ngx_stream_quic_pt_flow_t *flow, u_char *data, size_t len,
    ngx_uint_t opened);
static void ngx_stream_quic_pt_datagram_flush(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_queued_t **sent,
    ngx_uint_t n);
static void ngx_stream_quic_pt_datagram_enqueue(
    ngx_stream_quic_pt_flow_t *flow, u_char *data, size_t len, ngx_uint_t ecn);


void
ngx_stream_quic_pt_datagram_read(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m)
{
    u_char                       *p, *last;
    size_t                        len;
    uint64_t                      hash;
    ngx_uint_t                    n;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = listener->worker;

    n = m->len ? (m->len + m->segment - 1) / m->segment : 1;

    ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RECEIVED, n);

    /* nothing can be sent to port 0 */

    if (m->len == 0 || ngx_inet_get_port(&m->sockaddr.sockaddr) == 0) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_MALFORMED, n);
        return;
    }

    ngx_stream_quic_pt_budget_trim(worker);

    if (worker->preread) {
        ngx_stream_quic_preread_trim(worker);
    }

    flow = worker->recent;

    if (flow && ngx_stream_quic_pt_datagram_matches(flow, listener, m)) {
        hash = flow->node.hash;

    } else {
        hash = ngx_stream_quic_pt_datagram_hash(listener, m);
        flow = ngx_stream_quic_pt_datagram_flow(listener, m, hash);
    }

    p = m->data;
    last = p + m->len;

    while (p < last) {

        len = ngx_min(m->segment, (size_t) (last - p));

        if (flow == NULL) {
            flow = ngx_stream_quic_pt_datagram_first(listener, m, p, len,
                                                     hash);
        }

        if (flow) {
            ngx_stream_quic_pt_datagram_pass(flow, p, len, m->ecn);

            /* it may have lost its session, or been freed */

            flow = worker->recent;
        }

        p += len;
    }
}


static uint64_t
ngx_stream_quic_pt_datagram_hash(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m)
{
    u_char  *p, key[NGX_STREAM_QUIC_PT_KEY];

    p = ngx_cpymem(key, &listener, sizeof(uintptr_t));
    p = ngx_stream_quic_lb_address_key(p, &m->sockaddr.sockaddr);

    if (listener->listening->wildcard) {
        p = ngx_stream_quic_lb_address(p, &m->local.sockaddr);
    }

    return quic_lb_hash(&listener->worker->key, key, p - key);
}


static ngx_stream_quic_pt_flow_t *
ngx_stream_quic_pt_datagram_flow(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m, uint64_t hash)
{
    quic_lb_table_node_t         *node;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = listener->worker;
    worker->recent = NULL;

    for (node = quic_lb_table_first(&worker->flows, hash);
         node;
         node = quic_lb_table_next(node))
    {
        flow = (ngx_stream_quic_pt_flow_t *) node;

        if (!ngx_stream_quic_pt_datagram_matches(flow, listener, m)) {
            continue;
        }

        if (flow->refused
            && ngx_current_msec - flow->started >= NGX_STREAM_QUIC_PT_REFUSED)
        {
            ngx_stream_quic_pt_flow_free(flow);
            return NULL;
        }

        worker->recent = flow;
        return flow;
    }

    return NULL;
}


static ngx_uint_t
ngx_stream_quic_pt_datagram_matches(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_message_t *m)
{
    ngx_listening_t  *ls;

    if (flow->listener != listener
        || !ngx_stream_quic_lb_same_address(&flow->client.sockaddr,
                                            flow->socklen,
                                            &m->sockaddr.sockaddr, m->socklen))
    {
        return 0;
    }

    ls = listener->listening;

    return !ls->wildcard
           || ngx_cmp_sockaddr(&flow->local.sockaddr, ls->socklen,
                               &m->local.sockaddr, ls->socklen, 0)
              == NGX_OK;
}


/* the first datagram of an address makes its flow, if it can be routed */

static ngx_stream_quic_pt_flow_t *
ngx_stream_quic_pt_datagram_first(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m, u_char *data, size_t len, uint64_t hash)
{
    ngx_uint_t                   class, established;
    quic_lb_packet_t             pkt;
    ngx_stream_quic_pt_leg_t    *leg;
    ngx_stream_quic_pt_flow_t   *flow;
    ngx_stream_quic_lb_route_t   route;
    ngx_stream_quic_pt_retry_t  *retry;

    if (ngx_stream_quic_pt_datagram_route(listener, NULL,
                                          &m->sockaddr.sockaddr,
                                          &m->local.sockaddr, data, len, &pkt,
                                          &route, &leg)
        != NGX_OK)
    {
        return NULL;
    }

    established = !ngx_stream_quic_pt_route_begins(&pkt, data, len);
    class = ngx_stream_quic_pt_datagram_class(&pkt);

    retry = ngx_stream_quic_pt_route_router(listener, &m->local.sockaddr)
            ->retry;

    if (retry && !established
        && ngx_stream_quic_pt_retry_first(listener, retry, m, data, len,
                                          &class)
           != NGX_OK)
    {
        return NULL;
    }

    flow = NULL;

    if (established
        || ngx_stream_quic_pt_rate_first(listener, &m->sockaddr.sockaddr)
           == NGX_OK)
    {
        flow = ngx_stream_quic_pt_flow_create(listener, m, &route, class,
                                              established, hash);
    }

    if (flow == NULL) {
        ngx_stream_quic_pt_count(listener->worker,
                                 NGX_STREAM_QUIC_PT_OVERLOAD, 1);
        return NULL;
    }

    flow->retry = retry;
    flow->unvalidated = (class < NGX_STREAM_QUIC_PT_OPENING);
    flow->fresh = !established;

    return flow;
}


/* what a flow that begins with this packet is taken for */

static ngx_uint_t
ngx_stream_quic_pt_datagram_class(quic_lb_packet_t *pkt)
{
    switch (pkt->type) {

    case QUIC_LB_PACKET_INITIAL:
    case QUIC_LB_PACKET_0RTT:
        return NGX_STREAM_QUIC_PT_OPENING;

    case QUIC_LB_PACKET_UNKNOWN:
        return NGX_STREAM_QUIC_PT_FOREIGN;

    default:
        return NGX_STREAM_QUIC_PT_PRESUMED;
    }
}


/* returns NGX_DECLINED for a datagram to be dropped, which is counted */

static ngx_int_t
ngx_stream_quic_pt_datagram_route(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_flow_t *flow, struct sockaddr *client,
    struct sockaddr *local, u_char *data, size_t len, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route, ngx_stream_quic_pt_leg_t **leg)
{
    ngx_stream_quic_pt_router_t  *router;

    if (quic_lb_packet_parse(pkt, data, len) != QUIC_LB_OK) {
        ngx_stream_quic_pt_count(listener->worker,
                                 NGX_STREAM_QUIC_PT_MALFORMED, 1);
        return NGX_DECLINED;
    }

    router = ngx_stream_quic_pt_route_router(listener, local);

    if (ngx_stream_quic_pt_route_decide(flow, router, client, local, pkt,
                                        route, leg)
        != NGX_OK)
    {
        ngx_stream_quic_pt_datagram_unknown(listener->worker, pkt, route);
        ngx_stream_quic_pt_count(listener->worker,
                                 NGX_STREAM_QUIC_PT_UNROUTABLE, 1);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* an ID of a server's choice: that of a first Initial is the client's */

static void
ngx_stream_quic_pt_datagram_unknown(ngx_stream_quic_pt_worker_t *worker,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    if ((pkt->type == QUIC_LB_PACKET_SHORT
         || pkt->type == QUIC_LB_PACKET_HANDSHAKE)
        && route->unknown)
    {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_UNKNOWN_ID, 1);
    }
}


static void
ngx_stream_quic_pt_datagram_pass(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len, ngx_uint_t ecn)
{
    if (flow->refused) {
        ngx_stream_quic_pt_count(flow->listener->worker, flow->drops, 1);
        return;
    }

    if (flow->unvalidated && flow->retry
        && (data[0] & NGX_STREAM_QUIC_PT_LONG)
        && ngx_stream_quic_pt_retry_admit(flow, data, len) != NGX_OK)
    {
        return;
    }

    if ((data[0] & NGX_STREAM_QUIC_PT_LONG)
        && ngx_stream_quic_pt_rate_admit(flow, data, len) != NGX_OK)
    {
        ngx_stream_quic_pt_count(flow->listener->worker,
                                 NGX_STREAM_QUIC_PT_OVERLOAD, 1);
        return;
    }

    flow->session->received += len;

    if (flow->preread
        && (data[0] & NGX_STREAM_QUIC_PT_LONG)
        && ngx_stream_quic_preread_take(flow, data, len, ecn) == NGX_OK)
    {
        return;
    }

    if (!flow->ready) {
        ngx_stream_quic_pt_datagram_enqueue(flow, data, len, ecn);
        ngx_stream_quic_preread_pass(flow);
        return;
    }

    ngx_stream_quic_pt_datagram_forward(flow, data, len, ecn);
}


static void
ngx_stream_quic_pt_datagram_forward(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    ngx_stream_quic_pt_leg_t  *leg;

    leg = ngx_stream_quic_pt_route_repeated(flow, data, len);

    if (leg == NULL) {
        leg = ngx_stream_quic_pt_datagram_leg(flow, data, len, 0);

        if (leg == NULL) {
            return;
        }
    }

    ngx_stream_quic_pt_datagram_send(flow, leg, data, len, ecn);
}


static void
ngx_stream_quic_pt_datagram_send(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_leg_t *leg, u_char *data, size_t len, ngx_uint_t ecn)
{
    quic_lb_packet_t  pkt;

    if (flow->class != NGX_STREAM_QUIC_PT_CONFIRMED) {
        ngx_stream_quic_pt_flow_sent(flow);
    }

    if (flow->route.by == NGX_STREAM_QUIC_LB_CID) {
        ngx_stream_quic_pt_cid_touch(flow);
    }

    if (flow->route.unknown
        && quic_lb_packet_parse(&pkt, data, len) == QUIC_LB_OK)
    {
        ngx_stream_quic_pt_datagram_unknown(flow->listener->worker, &pkt,
                                            &flow->route);
    }

    if (flow->retry && (data[0] & NGX_STREAM_QUIC_PT_LONG)) {
        ngx_stream_quic_pt_retry_token(leg, data, len);
    }

    ngx_stream_quic_pt_leg_send(leg, data, len, ecn);
}


/* the leg for a datagram whose DCID is another than the last one's */

static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_datagram_leg(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len, ngx_uint_t opened)
{
    ngx_uint_t                  counter;
    quic_lb_packet_t            pkt;
    ngx_stream_quic_pt_leg_t   *leg;
    ngx_stream_quic_lb_route_t  route;

    if (ngx_stream_quic_pt_datagram_route(flow->listener, flow,
                                          &flow->client.sockaddr,
                                          &flow->local.sockaddr, data, len,
                                          &pkt, &route, &leg)
        != NGX_OK)
    {
        return NULL;
    }

    if (opened) {
        leg = NULL;
        ngx_stream_quic_pt_route_inside(flow,
            ngx_stream_quic_pt_route_router(flow->listener,
                                            &flow->local.sockaddr),
            &pkt, &route);
    }

    if (ngx_stream_quic_pt_route_begins(&pkt, data, len)
        && ngx_stream_quic_pt_session_admit(flow) != NGX_OK)
    {
        ngx_stream_quic_pt_count(flow->listener->worker,
                                 NGX_STREAM_QUIC_PT_REFUSED_FLOW, 1);
        return NULL;
    }

    if (leg == NULL) {
        leg = ngx_stream_quic_pt_leg_get(flow, &route, &counter);

        if (leg == NULL) {
            ngx_stream_quic_pt_count(flow->listener->worker, counter, 1);

            if (flow->nlegs == 0) {
                ngx_stream_quic_pt_flow_refuse(flow, NGX_STREAM_BAD_GATEWAY,
                                               counter);
            }

            return NULL;
        }
    }

    if (pkt.type == QUIC_LB_PACKET_INITIAL) {
        leg->opened = 1;
    }

    flow->route = route;
    flow->route_leg = leg;
    flow->last = leg;

    ngx_stream_quic_pt_route_learn_client(flow, &pkt, leg);

    if (route.by == NGX_STREAM_QUIC_LB_CID) {
        leg->id_len = route.dcid_len;

    } else if (route.by == NGX_STREAM_QUIC_LB_ADDRESS) {
        ngx_stream_quic_pt_cid_changed(leg, &pkt);
    }

    return leg;
}


static void
ngx_stream_quic_pt_datagram_enqueue(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    ngx_stream_quic_pt_queued_t  *dg;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;
    dg = NULL;

    if (flow->ndatagrams < NGX_STREAM_QUIC_PT_QUEUE
        && flow->queued + len <= NGX_STREAM_QUIC_PT_QUEUED)
    {
        dg = ngx_alloc(ngx_stream_quic_pt_size(len), worker->log);
    }

    if (dg == NULL) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_OVERLOAD, 1);
        return;
    }

    ngx_memcpy(dg->data, data, len);
    dg->len = len;
    dg->ecn = ecn;

    ngx_stream_quic_pt_datagram_requeue(flow, dg);
}


ngx_stream_quic_pt_queued_t *
ngx_stream_quic_pt_datagram_dequeue(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_t                  *q;
    ngx_stream_quic_pt_queued_t  *dg;

    if (ngx_queue_empty(&flow->datagrams)) {
        return NULL;
    }

    q = ngx_queue_head(&flow->datagrams);
    ngx_queue_remove(q);

    dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);

    flow->ndatagrams--;
    flow->queued -= dg->len;

    ngx_stream_quic_pt_budget_sub(&flow->held,
                                  ngx_stream_quic_pt_size(dg->len));

    return dg;
}


void
ngx_stream_quic_pt_datagram_requeue(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_queued_t *dg)
{
    ngx_queue_insert_tail(&flow->datagrams, &dg->queue);

    flow->ndatagrams++;
    flow->queued += dg->len;

    ngx_stream_quic_pt_budget_add(&flow->listener->worker->queued,
                                  &flow->source->queued, &flow->held,
                                  ngx_stream_quic_pt_size(dg->len));
}


void
ngx_stream_quic_pt_datagram_ready(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_uint_t                    n;
    ngx_stream_quic_pt_queued_t  *dg, *sent[NGX_STREAM_QUIC_PT_QUEUE];

    ngx_stream_quic_preread_ready(flow);

    /* a refused flow has counted and freed what was left */

    for (n = 0; n < NGX_STREAM_QUIC_PT_QUEUE; n++) {
        dg = ngx_stream_quic_pt_datagram_dequeue(flow);

        if (dg == NULL) {
            break;
        }

        ngx_stream_quic_pt_datagram_forward(flow, dg->data, dg->len, dg->ecn);
        sent[n] = dg;
    }

    ngx_stream_quic_pt_datagram_flush(flow->listener->worker, sent, n);

    ngx_stream_quic_preread_next(flow);
}


void
ngx_stream_quic_pt_datagram_release(ngx_stream_quic_pt_flow_t *flow,
    ngx_queue_t *datagrams, ngx_uint_t opened)
{
    ngx_uint_t                    n;
    ngx_queue_t                  *q;
    ngx_stream_quic_pt_leg_t     *leg;
    ngx_stream_quic_pt_queued_t  *dg, *sent[NGX_STREAM_QUIC_PT_QUEUE];

    leg = NULL;

    for (n = 0; !ngx_queue_empty(datagrams); n++) {
        q = ngx_queue_head(datagrams);
        ngx_queue_remove(q);

        dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);
        sent[n] = dg;

        if (flow->refused) {
            ngx_stream_quic_pt_count(flow->listener->worker, flow->drops, 1);
            continue;
        }

        /* all of them belong to one connection */

        if (leg == NULL) {
            leg = ngx_stream_quic_pt_datagram_leg(flow, dg->data, dg->len,
                                                  opened);
        }

        if (leg) {
            ngx_stream_quic_pt_datagram_send(flow, leg, dg->data, dg->len,
                                             dg->ecn);
        }
    }

    ngx_stream_quic_pt_datagram_flush(flow->listener->worker, sent, n);
}


/* within a batch that goes on there may be nothing to flush */

static void
ngx_stream_quic_pt_datagram_flush(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_queued_t **sent, ngx_uint_t n)
{
    ngx_uint_t  i;

    if (n == 0) {
        return;
    }

    ngx_stream_quic_pt_leg_flush_all(worker);

    for (i = 0; i < n; i++) {
        ngx_free(sent[i]);
    }
}
