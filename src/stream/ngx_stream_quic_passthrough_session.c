
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The session of a flow in nginx's phases, and where it is to go: an upstream,
 * an address, or a name that is resolved while the flow waits.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_pt_session_post_accept(
    ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_pt_session_preaccess(ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_pt_session_target(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_pt_srv_conf_t *pscf,
    ngx_stream_upstream_srv_conf_t **uscf);
static void ngx_stream_quic_pt_session_done(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_upstream_srv_conf_t *uscf);
static void ngx_stream_quic_pt_session_failed(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc);
static ngx_int_t ngx_stream_quic_pt_session_resolve(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow);
static void ngx_stream_quic_pt_session_resolved(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_stream_quic_pt_session_copy_addrs(
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_upstream_resolved_t *ur,
    ngx_resolver_ctx_t *ctx);


ngx_int_t
ngx_stream_quic_pt_session_init(ngx_conf_t *cf)
{
    ngx_stream_handler_pt        *h;
    ngx_stream_core_main_conf_t  *cmcf;

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_STREAM_POST_ACCEPT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_stream_quic_pt_session_post_accept;

    h = ngx_array_push(&cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_stream_quic_pt_session_preaccess;

    return NGX_OK;
}


/* session and flow find each other in the first phase */

static ngx_int_t
ngx_stream_quic_pt_session_post_accept(ngx_stream_session_t *s)
{
    ngx_stream_quic_pt_flow_t  *flow;

    if (s->connection->type != SOCK_DGRAM) {
        return NGX_DECLINED;
    }

    flow = ngx_stream_quic_pt_flow_find(s);

    if (flow == NULL) {
        return NGX_DECLINED;
    }

    flow->session = s;

    ngx_stream_set_ctx(s, flow, ngx_stream_quic_passthrough_module);
    ngx_stream_set_ctx(s, &flow->route, ngx_stream_upstream_quic_lb_module);

    return NGX_DECLINED;
}


/*
 * A connection that comes from another address or worker is not a new one:
 * "limit_conn" would count it twice, and cut off the second.
 */

static ngx_int_t
ngx_stream_quic_pt_session_preaccess(ngx_stream_session_t *s)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    return (flow && flow->established) ? NGX_OK : NGX_DECLINED;
}


/*
 * The phase is made up for when such a flow begins a connection after all, or
 * a datagram with a server's ID would be all it takes to get around a limit.
 * It comes before preread: its limits are those of the default server, whatever
 * the session was run for meanwhile.
 */

ngx_int_t
ngx_stream_quic_pt_session_admit(ngx_stream_quic_pt_flow_t *flow)
{
    void                        **srv_conf;
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_stream_handler_pt        *h;
    ngx_stream_session_t         *s;
    ngx_stream_core_main_conf_t  *cmcf;

    if (flow->limited) {
        return NGX_DECLINED;
    }

    if (!flow->established) {
        return NGX_OK;
    }

    flow->established = 0;

    s = flow->session;

    cmcf = ngx_stream_get_module_main_conf(s, ngx_stream_core_module);

    h = cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers.elts;
    i = cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers.nelts;

    srv_conf = s->srv_conf;
    s->srv_conf = ngx_stream_quic_preread_default_server(flow);

    rc = NGX_DECLINED;

    /* the last one registered is the first */

    while (i-- > 0 && rc == NGX_DECLINED) {
        rc = h[i](s);
    }

    s->srv_conf = srv_conf;

    if (rc != NGX_OK && rc != NGX_DECLINED) {
        flow->limited = 1;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* of a flow's first connection and, with "quic_preread", of others, too */

void
ngx_stream_quic_pt_session_handler(ngx_stream_session_t *s)
{
    ngx_int_t                        rc;
    ngx_pool_t                      *pool;
    ngx_stream_quic_pt_flow_t       *flow;
    ngx_stream_quic_pt_srv_conf_t   *pscf;
    ngx_stream_upstream_srv_conf_t  *uscf;

    pscf = ngx_stream_get_module_srv_conf(s,
                                          ngx_stream_quic_passthrough_module);

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (flow == NULL) {
        ngx_log_error(NGX_LOG_ALERT, s->connection->log, 0,
                      "a session without a flow in \"quic_passthrough\"");
        ngx_stream_finalize_session(s, NGX_STREAM_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_stream_quic_pt_flow_content(flow);

    flow->timeout = pscf->timeout;
    flow->rcvbuf = pscf->rcvbuf;
    flow->sndbuf = pscf->sndbuf;

    /* values are evaluated for one connection only */

    pool = s->connection->pool;
    s->connection->pool = ngx_stream_quic_preread_pool(flow);

    rc = ngx_stream_quic_pt_session_target(s, flow, pscf, &uscf);

    s->connection->pool = pool;

    if (rc == NGX_AGAIN) {
        rc = ngx_stream_quic_pt_session_resolve(s, flow);

        /* it goes on when the name has been looked up */

        if (rc == NGX_OK) {
            return;
        }
    }

    if (rc != NGX_OK) {
        ngx_stream_quic_pt_session_failed(flow,
                                          NGX_STREAM_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_stream_quic_pt_session_done(flow, uscf);
}


/* NGX_AGAIN: there is a name to be resolved */

static ngx_int_t
ngx_stream_quic_pt_session_target(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_pt_srv_conf_t *pscf,
    ngx_stream_upstream_srv_conf_t **uscf)
{
    flow->resolving = NULL;
    flow->bind = NULL;
    flow->transparent = 0;

    if (ngx_stream_quic_pt_bind_flow(flow, pscf->bind) != NGX_OK) {
        return NGX_ERROR;
    }

    if (pscf->upstream_value) {
        return ngx_stream_quic_lb_target_eval(s, pscf->upstream_value,
                                          "quic_passthrough",
                                          &flow->listener->worker->untargeted,
                                          uscf, &flow->resolving);
    }

    *uscf = pscf->upstream;

    return NGX_OK;
}


static void
ngx_stream_quic_pt_session_done(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_upstream_srv_conf_t *uscf)
{
    flow->upstream = uscf;
    flow->resolved = flow->resolving;
    flow->resolving = NULL;

    ngx_stream_quic_pt_flow_ready(flow);
}


static void
ngx_stream_quic_pt_session_failed(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc)
{
    flow->resolving = NULL;

    if (ngx_stream_quic_preread_failed(flow) != NGX_OK) {
        ngx_stream_quic_pt_flow_refuse(flow, rc,
                                       NGX_STREAM_QUIC_PT_REFUSED_FLOW);
    }
}


static ngx_int_t
ngx_stream_quic_pt_session_resolve(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_core_srv_conf_t  *cscf;

    cscf = ngx_stream_get_module_srv_conf(s, ngx_stream_core_module);

    return ngx_stream_quic_lb_target_resolve(s, cscf, flow->resolving,
                                          &flow->listener->worker->untargeted,
                                          ngx_stream_quic_pt_session_resolved,
                                          flow);
}


/*
 * The resolver is in the middle of those that wait for the name.  What the flow
 * does next may make others go, which wait there too: it does it later.
 */

static void
ngx_stream_quic_pt_session_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_stream_quic_pt_flow_t       *flow;
    ngx_stream_upstream_resolved_t  *ur;

    flow = ctx->data;
    ur = flow->resolving;

    flow->looked_up = 1;
    flow->found = 0;

    if (ngx_stream_quic_lb_target_resolved(flow->session, ctx,
                                         &flow->listener->worker->untargeted)
        == NGX_OK
        && ngx_stream_quic_pt_session_copy_addrs(flow, ur, ctx) == NGX_OK)
    {
        flow->found = 1;
    }

    ngx_resolve_name_done(ctx);
    ur->ctx = NULL;

    ngx_post_event(flow->session->connection->read, &ngx_posted_events);
}


void
ngx_stream_quic_pt_session_looked_up(ngx_stream_quic_pt_flow_t *flow)
{
    flow->looked_up = 0;

    if (!flow->found) {
        ngx_stream_quic_pt_session_failed(flow, NGX_STREAM_BAD_GATEWAY);
        return;
    }

    ngx_stream_quic_pt_session_done(flow, NULL);
}


ngx_int_t
ngx_stream_quic_pt_session_give_up(ngx_stream_quic_pt_flow_t *flow)
{
    if (flow->resolving == NULL) {
        return NGX_DECLINED;
    }

    if (flow->resolving->ctx) {
        ngx_resolve_name_done(flow->resolving->ctx);
        flow->resolving->ctx = NULL;
    }

    flow->resolving = NULL;
    flow->looked_up = 0;

    return NGX_OK;
}


/* the resolver's addresses go with its context, later legs need them too */

static ngx_int_t
ngx_stream_quic_pt_session_copy_addrs(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_upstream_resolved_t *ur, ngx_resolver_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_pool_t           *pool;
    ngx_resolver_addr_t  *addr;

    pool = ngx_stream_quic_preread_pool(flow);

    addr = ngx_pcalloc(pool, ctx->naddrs * sizeof(ngx_resolver_addr_t));
    if (addr == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->naddrs; i++) {
        addr[i].socklen = ctx->addrs[i].socklen;
        addr[i].priority = ctx->addrs[i].priority;
        addr[i].weight = ctx->addrs[i].weight;

        addr[i].sockaddr = ngx_palloc(pool, addr[i].socklen);
        if (addr[i].sockaddr == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(addr[i].sockaddr, ctx->addrs[i].sockaddr, addr[i].socklen);
    }

    ur->addrs = addr;
    ur->naddrs = ctx->naddrs;

    return NGX_OK;
}
