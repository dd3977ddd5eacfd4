
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The session of a flow, which is run from the preread phase on for each new
 * connection: as it was when it came to the phase, and with what its
 * ClientHello asks for.  One connection has its run at a time; those that are
 * decided meanwhile, while a name is looked up for instance, have theirs after
 * it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


static void ngx_stream_quic_preread_run(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_reset(ngx_stream_quic_pt_flow_t *flow,
    void **srv_conf);
static void ngx_stream_quic_preread_timer(ngx_stream_quic_pt_flow_t *flow);


ngx_int_t
ngx_stream_quic_preread_save(ngx_stream_session_t *s,
    ngx_stream_quic_preread_ctx_t *ctx)
{
    size_t                        size;
    ngx_stream_core_main_conf_t  *cmcf;

    cmcf = ngx_stream_get_module_main_conf(s, ngx_stream_core_module);

    size = cmcf->variables.nelts * sizeof(ngx_stream_variable_value_t);

    ctx->variables = ngx_palloc(s->connection->pool, ngx_max(size, 1));
    if (ctx->variables == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->variables, s->variables, size);

    ctx->phase_handler = s->phase_handler;
    ctx->srv_conf = s->srv_conf;

    return NGX_OK;
}


static void
ngx_stream_quic_preread_run(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_preread_hello_t *hello)
{
    ngx_msec_int_t                  rest;
    ngx_connection_t               *c;
    ngx_stream_session_t           *s;
    ngx_stream_quic_preread_ctx_t  *ctx;

    s = flow->session;
    c = s->connection;
    ctx = flow->preread;

    ctx->waiting = 0;
    ctx->passed = 1;
    ctx->deciding = hello;

    ctx->bind = flow->bind;
    ctx->transparent = flow->transparent;

    ngx_stream_quic_preread_reset(flow, ctx->srv_conf);

    s->phase_handler = ctx->phase_handler;

    /* what fails from now on must not end the connections that there are */

    if (flow->ready) {
        s->main_conf = flow->listener->worker->preread->main_conf;
    }

    ctx->rest = 0;

    /* the phase calls nobody while there is a timer: it is set again later */

    if (c->read->timer_set) {
        rest = (ngx_msec_int_t) (c->read->timer.key - ngx_current_msec);
        ctx->rest = (rest > 0) ? (ngx_msec_t) rest : 1;

        ngx_del_timer(c->read);
    }

    ngx_stream_core_run_phases(s);
}


/* nothing of an earlier connection of the flow is left */

static void
ngx_stream_quic_preread_reset(ngx_stream_quic_pt_flow_t *flow,
    void **srv_conf)
{
    ngx_stream_session_t           *s;
    ngx_stream_core_srv_conf_t     *cscf;
    ngx_stream_core_main_conf_t    *cmcf;
    ngx_stream_quic_preread_ctx_t  *ctx;

    s = flow->session;
    ctx = flow->preread;

    cmcf = ngx_stream_get_module_main_conf(s, ngx_stream_core_module);

    ngx_memcpy(s->variables, ctx->variables,
               cmcf->variables.nelts * sizeof(ngx_stream_variable_value_t));

#if (NGX_PCRE)
    s->captures = NULL;
    s->ncaptures = 0;
#endif

    if (s->srv_conf == srv_conf) {
        return;
    }

    s->srv_conf = srv_conf;

    cscf = ngx_stream_get_module_srv_conf(s, ngx_stream_core_module);

    ngx_set_connection_log(s->connection, cscf->error_log);
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

    if (ctx->rest && !flow->answered) {
        ngx_stream_quic_preread_timer(flow);
    }

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
    ngx_stream_quic_preread_ctx_t  *ctx;

    ctx = flow->preread;

    if (ctx == NULL || ctx->deciding == NULL || !flow->ready) {
        return NGX_DECLINED;
    }

    ngx_stream_quic_preread_skip(flow, NGX_STREAM_QUIC_PT_REFUSED_FLOW);

    return NGX_OK;
}


void
ngx_stream_quic_preread_skip(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_counter_e counter)
{
    ngx_stream_quic_preread_ctx_t    *ctx;
    ngx_stream_quic_preread_hello_t  *hello;

    ctx = flow->preread;

    hello = ctx->deciding;
    ctx->deciding = NULL;

    flow->bind = ctx->bind;
    flow->transparent = ctx->transparent;

    ngx_stream_quic_preread_reset(flow, ctx->current ? ctx->current->srv_conf
                                                     : ctx->srv_conf);

    ngx_stream_quic_preread_discard(hello, counter);
    ngx_stream_quic_preread_destroy(hello);

    ngx_stream_quic_preread_timer(flow);

    ngx_stream_quic_preread_next(flow);
}


/* new connections do not prolong the life of a flow that nobody answers */

static void
ngx_stream_quic_preread_timer(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_add_timer(flow->session->connection->read, flow->preread->rest);
}


/* the configuration of the session as it came to the phase */

void **
ngx_stream_quic_preread_default_server(ngx_stream_quic_pt_flow_t *flow)
{
    return flow->preread ? flow->preread->srv_conf : flow->session->srv_conf;
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
