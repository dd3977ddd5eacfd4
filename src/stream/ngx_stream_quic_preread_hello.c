
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * ClientHellos that are awaited.  A new connection begins with Initial and
 * 0-RTT packets that have a DCID of the client's choice, which also gives the
 * keys (RFC 9001, 5.2).  Its datagrams are held, by flow and DCID, in the order
 * in which they came, until the ClientHello in them
 *
 *   is complete, or all that is asked of it is there;
 *   cannot be read: the packets do not open, or are not what a client sends;
 *   would take more than a flow may hold, or more than all of a worker may;
 *   has not come by the deadline.
 *
 * In all but the first case the default server gets the connection.  What does
 * not open at all is likely to belong to a connection that is established, and
 * is routed as if it had not been looked at.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


/* octets; most ALPN lists and names fit in what is left */

#define NGX_STREAM_QUIC_PREREAD_POOL  1024


static ngx_uint_t ngx_stream_quic_preread_wanted(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt, u_char *data,
    size_t len);
static ngx_uint_t ngx_stream_quic_preread_repeated(
    ngx_stream_quic_pt_flow_t *flow, u_char *data, size_t len);
static ngx_stream_quic_preread_hello_t *ngx_stream_quic_preread_find(
    ngx_stream_quic_preread_ctx_t *ctx, quic_lb_packet_t *pkt);
static ngx_stream_quic_preread_hello_t *ngx_stream_quic_preread_create(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static void ngx_stream_quic_preread_account(
    ngx_stream_quic_preread_hello_t *hello, size_t size);
static ngx_int_t ngx_stream_quic_preread_hold(
    ngx_stream_quic_preread_hello_t *hello, u_char *data, size_t len,
    ngx_uint_t ecn);
static void ngx_stream_quic_preread_look(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_decide(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_leave(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_deadline(ngx_event_t *ev);


ngx_int_t
ngx_stream_quic_preread_take(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len, ngx_uint_t ecn)
{
    quic_lb_packet_t                  pkt;
    ngx_stream_quic_preread_hello_t  *hello;

    if (!ngx_stream_quic_preread_wanted(flow, &pkt, data, len)) {
        return NGX_DECLINED;
    }

    hello = ngx_stream_quic_preread_find(flow->preread, &pkt);

    if (hello == NULL) {

        if (ngx_stream_quic_pt_route_known(flow, &pkt)) {
            return NGX_DECLINED;
        }

        hello = ngx_stream_quic_preread_create(flow, &pkt);

        if (hello == NULL) {
            goto dropped;
        }
    }

    switch (ngx_stream_quic_preread_hold(hello, data, len, ecn)) {

    case NGX_OK:
        if (!hello->decided) {
            ngx_stream_quic_preread_look(hello);
        }

        return NGX_OK;

    case NGX_BUSY:

        /* 0-RTT packets, which a client sends many of, do not decide */

        if (!hello->decided && pkt.type == QUIC_LB_PACKET_INITIAL) {
            ngx_stream_quic_preread_unread(hello, "takes too many datagrams");
        }

        break;

    default: /* NGX_ERROR */

        if (hello->ndatagrams == 0 && !hello->decided) {
            ngx_stream_quic_preread_destroy(hello);
        }

        break;
    }

dropped:

    ngx_stream_quic_pt_count(flow->listener->worker,
                             NGX_STREAM_QUIC_PT_OVERLOAD, 1);

    if (flow->preread && flow->preread->waiting
        && flow->preread->nhellos == 0)
    {
        /* nothing is left to wait for */

        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_SERVICE_UNAVAILABLE);
    }

    return NGX_OK;
}


/* whether the datagram begins with a packet that begins a connection */

static ngx_uint_t
ngx_stream_quic_preread_wanted(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt, u_char *data, size_t len)
{
    if (flow->preread->nhellos == 0
        && ngx_stream_quic_preread_repeated(flow, data, len))
    {
        return 0;
    }

    return quic_lb_packet_parse(pkt, data, len) == QUIC_LB_OK
           && (pkt->type == QUIC_LB_PACKET_INITIAL
               || pkt->type == QUIC_LB_PACKET_0RTT);
}


/* the connection that is routed already, if it is of the same version */

static ngx_uint_t
ngx_stream_quic_preread_repeated(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len)
{
    uint32_t  version;

    if (ngx_stream_quic_pt_route_repeated(flow, data, len) == NULL) {
        return 0;
    }

    /* the length has been compared */

    version = (uint32_t) data[1] << 24 | (uint32_t) data[2] << 16
              | (uint32_t) data[3] << 8 | data[4];

    return version == flow->route.version;
}


static ngx_stream_quic_preread_hello_t *
ngx_stream_quic_preread_find(ngx_stream_quic_preread_ctx_t *ctx,
    quic_lb_packet_t *pkt)
{
    ngx_queue_t                      *q;
    ngx_stream_quic_preread_hello_t  *hello;

    for (q = ngx_queue_head(&ctx->hellos);
         q != ngx_queue_sentinel(&ctx->hellos);
         q = ngx_queue_next(q))
    {
        hello = ngx_queue_data(q, ngx_stream_quic_preread_hello_t, queue);

        if (hello->version == pkt->version
            && hello->dcid_len == pkt->dcid_len
            && ngx_memcmp(hello->dcid, pkt->dcid, pkt->dcid_len) == 0)
        {
            return hello;
        }
    }

    return NULL;
}


static ngx_stream_quic_preread_hello_t *
ngx_stream_quic_preread_create(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    ngx_log_t                        *log;
    ngx_pool_t                       *pool;
    ngx_stream_quic_preread_t        *preread;
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;
    preread = flow->listener->worker->preread;
    log = flow->session->connection->log;

    if (ctx->nhellos == NGX_STREAM_QUIC_PREREAD_HELLOS) {
        return NULL;
    }

    pool = ngx_create_pool(NGX_STREAM_QUIC_PREREAD_POOL, log);
    if (pool == NULL) {
        return NULL;
    }

    hello = ngx_pcalloc(pool, sizeof(ngx_stream_quic_preread_hello_t));

    if (hello == NULL
        || quic_lb_initial_derive(&preread->initial, &hello->keys,
                                  pkt->version, pkt->dcid, pkt->dcid_len)
           != QUIC_LB_OK)
    {
        ngx_destroy_pool(pool);
        return NULL;
    }

    hello->pool = pool;
    hello->flow = flow;
    hello->version = pkt->version;
    hello->dcid_len = (u_char) pkt->dcid_len;

    ngx_memcpy(hello->dcid, pkt->dcid, pkt->dcid_len);

    hello->deadline.handler = ngx_stream_quic_preread_deadline;
    hello->deadline.data = hello;
    hello->deadline.log = log;

    ngx_queue_init(&hello->datagrams);
    ngx_queue_insert_tail(&ctx->hellos, &hello->queue);

    ctx->nhellos++;

    ngx_stream_quic_preread_account(hello, NGX_STREAM_QUIC_PREREAD_POOL);
    ngx_add_timer(&hello->deadline, ctx->conf->timeout);

    return hello;
}


static void
ngx_stream_quic_preread_account(ngx_stream_quic_preread_hello_t *hello,
    size_t size)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = hello->flow;

    ngx_stream_quic_pt_budget_add(&flow->listener->worker->preread->memory,
                                  &flow->source->hellos, &hello->held, size);
}


/*
 * Returns NGX_BUSY if the connection holds as much as it may, NGX_ERROR if the
 * system has no memory.
 */

static ngx_int_t
ngx_stream_quic_preread_hold(ngx_stream_quic_preread_hello_t *hello,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    size_t                        size;
    ngx_stream_quic_pt_queued_t  *dg;

    size = ngx_stream_quic_pt_size(len);

    if (hello->ndatagrams == NGX_STREAM_QUIC_PT_QUEUE
        || hello->held.size + size > NGX_STREAM_QUIC_PT_QUEUED)
    {
        return NGX_BUSY;
    }

    dg = ngx_alloc(size, hello->pool->log);
    if (dg == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(dg->data, data, len);
    dg->len = len;
    dg->ecn = ecn;

    ngx_queue_insert_tail(&hello->datagrams, &dg->queue);
    hello->ndatagrams++;

    ngx_stream_quic_preread_account(hello, size);

    return NGX_OK;
}


/* what has waited while the session was in other hands */

void
ngx_stream_quic_preread_queued(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_uint_t                    n;
    ngx_stream_quic_pt_queued_t  *dg;

    for (n = flow->ndatagrams; n; n--) {
        dg = ngx_stream_quic_pt_datagram_dequeue(flow);

        if ((dg->data[0] & NGX_STREAM_QUIC_PT_LONG)
            && ngx_stream_quic_preread_take(flow, dg->data, dg->len, dg->ecn)
               == NGX_OK)
        {
            ngx_free(dg);
            continue;
        }

        ngx_stream_quic_pt_datagram_requeue(flow, dg);
    }
}


static void
ngx_stream_quic_preread_look(ngx_stream_quic_preread_hello_t *hello)
{
    quic_lb_hello_t  found;

    switch (ngx_stream_quic_preread_read(hello, &found)) {

    case NGX_AGAIN:
        return;

    case NGX_OK:
        if (ngx_stream_quic_preread_keep(hello, &found) == NGX_OK) {
            ngx_stream_quic_pt_count(hello->flow->listener->worker,
                                     NGX_STREAM_QUIC_PT_HELLOS, 1);
            ngx_stream_quic_preread_decide(hello);
            return;
        }

        /* fall through */

    default: /* NGX_ERROR */

        ngx_stream_quic_preread_unread(hello, hello->opened
                                              ? "cannot be read"
                                              : "cannot be decrypted");
    }
}


void
ngx_stream_quic_preread_unread(ngx_stream_quic_preread_hello_t *hello,
    const char *why)
{
    ngx_str_null(&hello->server_name);
    ngx_str_null(&hello->alpn);

    ngx_log_error(NGX_LOG_INFO, hello->flow->session->connection->log, 0,
                  "QUIC ClientHello %s, \"quic_preread\" does not know its "
                  "server name", why);

    ngx_stream_quic_pt_count(hello->flow->listener->worker,
                             NGX_STREAM_QUIC_PT_UNREAD, 1);

    ngx_stream_quic_preread_decide(hello);
}


static void
ngx_stream_quic_preread_decide(ngx_stream_quic_preread_hello_t *hello)
{
    if (hello->deadline.timer_set) {
        ngx_del_timer(&hello->deadline);
    }

    hello->decided = 1;

    if (!hello->opened && hello->flow->ready) {
        ngx_stream_quic_preread_leave(hello);
        return;
    }

    ngx_stream_quic_preread_next(hello->flow);
}


/* what does not open changes nothing for a flow that has its server */

static void
ngx_stream_quic_preread_leave(ngx_stream_quic_preread_hello_t *hello)
{
    ngx_queue_t                 datagrams;
    ngx_stream_quic_pt_flow_t  *flow;

    flow = hello->flow;

    ngx_stream_quic_preread_release(hello, &datagrams);
    ngx_destroy_pool(hello->pool);

    ngx_stream_quic_pt_datagram_release(flow, &datagrams, 0);
}


static void
ngx_stream_quic_preread_deadline(ngx_event_t *ev)
{
    ngx_stream_quic_pt_flow_t        *flow;
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    hello = ev->data;
    flow = hello->flow;
    ctx = flow->preread;

    if (!flow->listener->exiting) {
        ngx_stream_quic_preread_unread(hello, "has not come in time");
        return;
    }

    /* its rest, and what the client sends again, are another worker's */

    ngx_stream_quic_preread_discard(hello, NGX_STREAM_QUIC_PT_REFUSED_FLOW);
    ngx_stream_quic_preread_destroy(hello);

    if (ctx->waiting && ctx->nhellos == 0) {
        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
    }
}


void
ngx_stream_quic_preread_release(ngx_stream_quic_preread_hello_t *hello,
    ngx_queue_t *datagrams)
{
    ngx_queue_init(datagrams);

    if (!ngx_queue_empty(&hello->datagrams)) {
        ngx_queue_add(datagrams, &hello->datagrams);
        ngx_queue_init(&hello->datagrams);
    }

    ngx_queue_remove(&hello->queue);
    hello->flow->preread->nhellos--;

    ngx_stream_quic_pt_budget_sub(&hello->held, hello->held.size);

    hello->ndatagrams = 0;
}


void
ngx_stream_quic_preread_discard(ngx_stream_quic_preread_hello_t *hello,
    ngx_stream_quic_pt_counter_e counter)
{
    ngx_queue_t                  *q;
    ngx_stream_quic_pt_queued_t  *dg;

    ngx_stream_quic_pt_count(hello->flow->listener->worker, counter,
                             hello->ndatagrams);

    while (!ngx_queue_empty(&hello->datagrams)) {
        q = ngx_queue_head(&hello->datagrams);
        ngx_queue_remove(q);

        dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);
        ngx_free(dg);
    }

    hello->ndatagrams = 0;

    ngx_stream_quic_pt_budget_sub(&hello->held, hello->held.size);
}


/* |hello| has no datagrams any more */

void
ngx_stream_quic_preread_destroy(ngx_stream_quic_preread_hello_t *hello)
{
    ngx_queue_t  datagrams;

    if (hello->deadline.timer_set) {
        ngx_del_timer(&hello->deadline);
    }

    ngx_stream_quic_preread_release(hello, &datagrams);

    ngx_destroy_pool(hello->pool);
}


/* the session ends */

void
ngx_stream_quic_preread_end(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_t                      *q;
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;

    if (ctx == NULL) {
        return;
    }

    while (!ngx_queue_empty(&ctx->hellos)) {
        q = ngx_queue_head(&ctx->hellos);
        hello = ngx_queue_data(q, ngx_stream_quic_preread_hello_t, queue);

        ngx_stream_quic_preread_discard(hello, flow->drops);
        ngx_stream_quic_preread_destroy(hello);
    }

    if (ctx->current) {
        ngx_destroy_pool(ctx->current->pool);
    }

    flow->preread = NULL;
}
