
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
 *   would take more than a flow may hold, or more than all of a worker may:
 *   the oldest ones go first;
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
static ngx_int_t ngx_stream_quic_preread_read(
    ngx_stream_quic_preread_hello_t *hello, quic_lb_hello_t *found);
static ngx_int_t ngx_stream_quic_preread_read_datagram(
    ngx_stream_quic_preread_hello_t *hello, ngx_stream_quic_pt_queued_t *dg,
    quic_lb_crypto_t *crypto, uint64_t *expected, ngx_uint_t *initials);
static ngx_int_t ngx_stream_quic_preread_keep(
    ngx_stream_quic_preread_hello_t *hello, quic_lb_hello_t *found);
static void ngx_stream_quic_preread_unread(
    ngx_stream_quic_preread_hello_t *hello, const char *why);
static void ngx_stream_quic_preread_decide(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_leave(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_deadline(ngx_event_t *ev);
static void ngx_stream_quic_preread_release(
    ngx_stream_quic_preread_hello_t *hello, ngx_queue_t *datagrams);
static void ngx_stream_quic_preread_destroy(
    ngx_stream_quic_preread_hello_t *hello);


ngx_int_t
ngx_stream_quic_preread_init_process(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_worker_t *worker)
{
    ngx_stream_quic_preread_t            *preread;
    ngx_stream_quic_preread_main_conf_t  *conf;

    conf = ngx_stream_cycle_get_module_main_conf(cycle,
                                              ngx_stream_quic_preread_module);

    if (!conf->used) {
        return NGX_OK;
    }

    preread = ngx_pcalloc(cycle->pool, sizeof(ngx_stream_quic_preread_t));
    if (preread == NULL) {
        return NGX_ERROR;
    }

    preread->payload = ngx_palloc(cycle->pool, NGX_STREAM_QUIC_PT_BUFFER);
    preread->crypto = ngx_palloc(cycle->pool,
                                 quic_lb_crypto_room(QUIC_LB_CRYPTO_MAX));

    if (preread->payload == NULL || preread->crypto == NULL) {
        return NGX_ERROR;
    }

    if (quic_lb_initial_init(&preread->initial) != QUIC_LB_OK) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0,
                      "\"quic_preread\": no AES or SHA-256 in libcrypto");
        return NGX_ERROR;
    }

    preread->limit = conf->memory;

    ngx_queue_init(&preread->awaited);

    worker->preread = preread;

    return NGX_OK;
}


void
ngx_stream_quic_preread_exit_process(ngx_stream_quic_pt_worker_t *worker)
{
    if (worker->preread) {
        quic_lb_initial_cleanup(&worker->preread->initial);
    }
}


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

        if (hello->ndatagrams == 0) {
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
    ngx_queue_insert_tail(&preread->awaited, &hello->order);

    ctx->nhellos++;

    ngx_stream_quic_preread_account(hello, NGX_STREAM_QUIC_PREREAD_POOL);
    ngx_add_timer(&hello->deadline, ctx->conf->timeout);

    return hello;
}


static void
ngx_stream_quic_preread_account(ngx_stream_quic_preread_hello_t *hello,
    size_t size)
{
    hello->size += size;
    hello->flow->listener->worker->preread->size += size;
}


/*
 * Returns NGX_BUSY if the connection holds as much as it may, NGX_ERROR if
 * there is no memory, even though trim() has made some.
 */

static ngx_int_t
ngx_stream_quic_preread_hold(ngx_stream_quic_preread_hello_t *hello,
    u_char *data, size_t len, ngx_uint_t ecn)
{
    size_t                        size;
    ngx_stream_quic_preread_t    *preread;
    ngx_stream_quic_pt_queued_t  *dg;

    preread = hello->flow->listener->worker->preread;
    size = offsetof(ngx_stream_quic_pt_queued_t, data) + len;

    if (hello->ndatagrams == NGX_STREAM_QUIC_PT_QUEUE
        || hello->size + size > NGX_STREAM_QUIC_PT_QUEUED)
    {
        return NGX_BUSY;
    }

    if (preread->size > preread->limit + NGX_STREAM_QUIC_PT_BUFFER) {
        return NGX_ERROR;
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


/*
 * Returns NGX_OK if |found| has what there is to know, NGX_AGAIN if more
 * datagrams may tell more, NGX_ERROR if not.  What |found| points to is good
 * until the next datagram is looked at.
 */

static ngx_int_t
ngx_stream_quic_preread_read(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found)
{
    int                           rc;
    uint64_t                      expected;
    ngx_uint_t                    initials;
    ngx_queue_t                  *q;
    quic_lb_crypto_t              crypto;
    ngx_stream_quic_preread_t    *preread;
    ngx_stream_quic_pt_queued_t  *dg;

    preread = hello->flow->listener->worker->preread;

    (void) quic_lb_crypto_init(&crypto, preread->crypto, QUIC_LB_CRYPTO_MAX);

    expected = 0;
    initials = 0;

    for (q = ngx_queue_head(&hello->datagrams);
         q != ngx_queue_sentinel(&hello->datagrams);
         q = ngx_queue_next(q))
    {
        dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);

        if (ngx_stream_quic_preread_read_datagram(hello, dg, &crypto,
                                                  &expected, &initials)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (!hello->opened) {
        return initials ? NGX_ERROR : NGX_AGAIN;
    }

    if (crypto.len == 0) {
        return NGX_AGAIN;
    }

    rc = quic_lb_hello_parse(found, crypto.data, crypto.len);

    if (rc == QUIC_LB_ERR_SHORT) {

        /* the rest may wait for a datagram that is lost */

        return (found->server_name && found->alpn) ? NGX_OK : NGX_AGAIN;
    }

    return (rc == QUIC_LB_OK) ? NGX_OK : NGX_ERROR;
}


/* a packet that does not open may be anybody's, and is passed over */

static ngx_int_t
ngx_stream_quic_preread_read_datagram(ngx_stream_quic_preread_hello_t *hello,
    ngx_stream_quic_pt_queued_t *dg, quic_lb_crypto_t *crypto,
    uint64_t *expected, ngx_uint_t *initials)
{
    const u_char               *data;
    quic_lb_packet_t            pkt;
    quic_lb_initial_walk_t      walk;
    quic_lb_initial_opened_t    opened;
    ngx_stream_quic_preread_t  *preread;

    preread = hello->flow->listener->worker->preread;

    quic_lb_initial_walk(&walk, dg->data, dg->len);

    while (quic_lb_initial_next(&walk, &pkt, &data) == QUIC_LB_OK) {

        (*initials)++;

        if (pkt.version != hello->version
            || quic_lb_initial_open(&preread->initial, &hello->keys, &pkt,
                                    data, *expected, &opened,
                                    preread->payload)
               != QUIC_LB_OK)
        {
            continue;
        }

        hello->opened = 1;

        *expected = ngx_max(*expected, opened.number + 1);

        if (quic_lb_crypto_read(crypto, opened.payload, opened.payload_len)
            != QUIC_LB_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_preread_keep(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found)
{
    u_char         *p;
    size_t          len;
    const uint8_t  *alpn, *last;

    if (found->server_name_len) {
        p = ngx_pnalloc(hello->pool, found->server_name_len);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(p, found->server_name, found->server_name_len);

        hello->server_name.data = p;
        hello->server_name.len = found->server_name_len;
        hello->address = found->address;
    }

    if (found->alpn_len == 0) {
        return NGX_OK;
    }

    /* a comma takes the place of each length but the first */

    p = ngx_pnalloc(hello->pool, found->alpn_len - 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    hello->alpn.data = p;
    hello->alpn.len = found->alpn_len - 1;

    alpn = found->alpn;
    last = alpn + found->alpn_len;

    for ( ;; ) {
        len = *alpn++;

        p = ngx_cpymem(p, alpn, len);
        alpn += len;

        if (alpn == last) {
            return NGX_OK;
        }

        *p++ = ',';
    }
}


static void
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
    ngx_queue_remove(&hello->order);

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


/* runs the session for a connection that is decided, if it is free to run */

void
ngx_stream_quic_preread_next(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;

    if (ctx == NULL || ctx->deciding || !(ctx->waiting || flow->ready)) {
        return;
    }

    hello = ngx_stream_quic_preread_decided(ctx);

    if (hello) {
        ngx_stream_quic_preread_run(flow, hello);
    }
}


ngx_stream_quic_preread_hello_t *
ngx_stream_quic_preread_decided(ngx_stream_quic_preread_ctx_t *ctx)
{
    ngx_queue_t                      *q;
    ngx_stream_quic_preread_hello_t  *hello;

    for (q = ngx_queue_head(&ctx->hellos);
         q != ngx_queue_sentinel(&ctx->hellos);
         q = ngx_queue_next(q))
    {
        hello = ngx_queue_data(q, ngx_stream_quic_preread_hello_t, queue);

        if (hello->decided) {
            return hello;
        }
    }

    return NULL;
}


/* a flow that waits without a ClientHello to wait for */

void
ngx_stream_quic_preread_pass(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_preread_ctx_t  *ctx;

    ctx = flow->preread;

    if (ctx && ctx->waiting && ctx->nhellos == 0) {
        ngx_stream_quic_preread_run(flow, NULL);
    }
}


/* the session has run to its end: its upstream is known */

void
ngx_stream_quic_preread_ready(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_queue_t                       datagrams;
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;

    if (ctx == NULL || ctx->deciding == NULL) {
        return;
    }

    hello = ctx->deciding;
    ctx->deciding = NULL;

    ngx_stream_quic_preread_release(hello, &datagrams);

    /* nothing of the flow refers to the last one any more */

    if (ctx->current) {
        ngx_destroy_pool(ctx->current->pool);
    }

    ctx->current = hello;

    ngx_stream_quic_pt_datagram_release(flow, &datagrams, hello->opened);
}


/*
 * It has not: the connection cannot be passed on, those that the flow has
 * already are.  Returns NGX_DECLINED if there are none, and the flow is to be
 * refused.
 */

ngx_int_t
ngx_stream_quic_preread_failed(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;

    if (ctx == NULL || ctx->deciding == NULL || !flow->ready) {
        return NGX_DECLINED;
    }

    hello = ctx->deciding;
    ctx->deciding = NULL;

    ngx_stream_quic_pt_count(flow->listener->worker,
                             NGX_STREAM_QUIC_PT_REFUSED_FLOW,
                             hello->ndatagrams);

    flow->bind = ctx->bind;
    flow->transparent = ctx->transparent;

    ngx_stream_quic_preread_reset(flow, ctx->current ? ctx->current->srv_conf
                                                     : ctx->srv_conf);
    ngx_stream_quic_preread_destroy(hello);

    ngx_add_timer(flow->session->connection->read,
                  ngx_stream_quic_pt_unanswered(flow));

    ngx_stream_quic_preread_next(flow);

    return NGX_OK;
}


/* where to allocate what is of use until the next decision */

ngx_pool_t *
ngx_stream_quic_preread_pool(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_preread_ctx_t  *ctx;

    ctx = flow->preread;

    return (ctx && ctx->deciding) ? ctx->deciding->pool
                                  : flow->session->connection->pool;
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

    ngx_stream_quic_pt_count(flow->listener->worker,
                             NGX_STREAM_QUIC_PT_REFUSED_FLOW,
                             hello->ndatagrams);

    ngx_stream_quic_preread_destroy(hello);

    if (ctx->waiting && ctx->nhellos == 0) {
        ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_OK);
    }
}


void
ngx_stream_quic_preread_trim(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_queue_t                      *q;
    ngx_stream_quic_preread_t        *preread;
    ngx_stream_quic_preread_hello_t  *hello;

    preread = worker->preread;

    while (preread->size > preread->limit
           && !ngx_queue_empty(&preread->awaited))
    {
        if (preread->full != ngx_time()) {
            preread->full = ngx_time();

            ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                          "too many QUIC ClientHellos are awaited, the oldest "
                          "go to the default server, increase "
                          "\"quic_preread_memory\"");
        }

        q = ngx_queue_head(&preread->awaited);
        hello = ngx_queue_data(q, ngx_stream_quic_preread_hello_t, order);

        ngx_stream_quic_preread_unread(hello, "has had to make room");
    }
}


/* gives |datagrams|, to be initialized, all that is held for a connection */

static void
ngx_stream_quic_preread_release(ngx_stream_quic_preread_hello_t *hello,
    ngx_queue_t *datagrams)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = hello->flow;

    ngx_queue_init(datagrams);

    if (!ngx_queue_empty(&hello->datagrams)) {
        ngx_queue_add(datagrams, &hello->datagrams);
        ngx_queue_init(&hello->datagrams);
    }

    ngx_queue_remove(&hello->queue);
    flow->preread->nhellos--;

    flow->listener->worker->preread->size -= hello->size;

    hello->ndatagrams = 0;
    hello->size = 0;
}


static void
ngx_stream_quic_preread_destroy(ngx_stream_quic_preread_hello_t *hello)
{
    ngx_queue_t                  *q, datagrams;
    ngx_stream_quic_pt_queued_t  *dg;

    if (!hello->decided) {
        ngx_queue_remove(&hello->order);

        if (hello->deadline.timer_set) {
            ngx_del_timer(&hello->deadline);
        }
    }

    ngx_stream_quic_preread_release(hello, &datagrams);

    while (!ngx_queue_empty(&datagrams)) {
        q = ngx_queue_head(&datagrams);
        ngx_queue_remove(q);

        dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);
        ngx_free(dg);
    }

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

        ngx_stream_quic_pt_count(flow->listener->worker,
                                 NGX_STREAM_QUIC_PT_REFUSED_FLOW,
                                 hello->ndatagrams);
        ngx_stream_quic_preread_destroy(hello);
    }

    if (ctx->current) {
        ngx_destroy_pool(ctx->current->pool);
    }

    flow->preread = NULL;
}
