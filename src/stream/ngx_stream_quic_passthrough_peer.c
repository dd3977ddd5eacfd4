
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The peer of a leg: from the balancer of an upstream, from addresses that a
 * name was resolved to, or the backend that a learned connection ID tells.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_pt_peer_resolved(
    ngx_stream_quic_pt_leg_t *leg);
static ngx_int_t ngx_stream_quic_pt_peer_learned(
    ngx_stream_quic_pt_leg_t *leg, ngx_stream_quic_lb_route_t *route);
static ngx_stream_variable_value_t *ngx_stream_quic_pt_peer_variables(
    ngx_stream_quic_pt_leg_t *leg);


/*
 * Balancers take the upstream from the session and their memory from its
 * pool, so the leg lends it both: what they allocate goes with the leg.  So do
 * the values of variables that they ask for, which must not stay in the
 * session's cache.
 */

ngx_int_t
ngx_stream_quic_pt_peer_init(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_int_t                        rc;
    ngx_pool_t                      *pool;
    ngx_stream_session_t            *s, saved;
    ngx_stream_quic_pt_flow_t       *flow;
    ngx_stream_upstream_srv_conf_t  *uscf;

    if (route->by == NGX_STREAM_QUIC_LB_CID) {
        return ngx_stream_quic_pt_peer_learned(leg, route);
    }

    flow = leg->flow;
    s = flow->session;
    saved = *s;

    s->variables = ngx_stream_quic_pt_peer_variables(leg);
    if (s->variables == NULL) {
        s->variables = saved.variables;
        return NGX_ERROR;
    }

#if (NGX_PCRE)
    s->captures = NULL;
    s->ncaptures = 0;
#endif

    uscf = route->upstream ? route->upstream : flow->upstream;

    pool = s->connection->pool;
    s->connection->pool = leg->pool;
    s->upstream = &leg->upstream;

    ngx_stream_set_ctx(s, route, ngx_stream_upstream_quic_lb_module);

    if (uscf) {
        leg->upstream.upstream = uscf;
        rc = uscf->peer.init(s, uscf);

        if (!ngx_stream_quic_lb_balances(uscf)) {
            route->by = NGX_STREAM_QUIC_LB_UPSTREAM;
        }

    } else {
        rc = ngx_stream_quic_pt_peer_resolved(leg);
        route->by = NGX_STREAM_QUIC_LB_UPSTREAM;
    }

    ngx_stream_set_ctx(s, &flow->route, ngx_stream_upstream_quic_lb_module);

    s->connection->pool = pool;
    s->upstream = NULL;
    s->variables = saved.variables;

#if (NGX_PCRE)
    s->captures = saved.captures;
    s->ncaptures = saved.ncaptures;
    s->captures_data = saved.captures_data;
#endif

    return rc;
}


/* the flow may have to do with another address by the time the leg ends */

static ngx_int_t
ngx_stream_quic_pt_peer_resolved(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_pool_t                      *pool;
    ngx_stream_upstream_resolved_t  *ur;

    pool = leg->pool;

    ur = ngx_palloc(pool, sizeof(ngx_stream_upstream_resolved_t));
    if (ur == NULL) {
        return NGX_ERROR;
    }

    *ur = *leg->flow->resolved;

    ur->host.data = ngx_pstrdup(pool, &ur->host);
    if (ur->host.data == NULL) {
        return NGX_ERROR;
    }

    if (ur->sockaddr) {
        ur->name.data = ngx_pstrdup(pool, &ur->name);
        ur->sockaddr = ngx_palloc(pool, ur->socklen);

        if (ur->name.data == NULL || ur->sockaddr == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(ur->sockaddr, leg->flow->resolved->sockaddr, ur->socklen);
    }

    return ngx_stream_upstream_create_round_robin_peer(leg->flow->session, ur);
}


/*
 * The backend of an established connection is no balancer's choice.  It may
 * even have left the upstream: the connection goes on until it ends.
 */

static ngx_int_t
ngx_stream_quic_pt_peer_learned(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_str_t              *name;
    struct sockaddr        *sockaddr;
    ngx_peer_connection_t  *pc;

    name = ngx_palloc(leg->pool, sizeof(ngx_str_t) + NGX_SOCKADDR_STRLEN);
    sockaddr = ngx_palloc(leg->pool, route->backend.socklen);

    if (name == NULL || sockaddr == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(sockaddr, &route->backend.u, route->backend.socklen);

    name->data = (u_char *) name + sizeof(ngx_str_t);
    name->len = ngx_sock_ntop(sockaddr, route->backend.socklen, name->data,
                              NGX_SOCKADDR_STRLEN, 1);

    pc = &leg->upstream.peer;

    pc->get = ngx_event_get_peer;
    pc->sockaddr = sockaddr;
    pc->socklen = route->backend.socklen;
    pc->name = name;

    return NGX_OK;
}


static ngx_stream_variable_value_t *
ngx_stream_quic_pt_peer_variables(ngx_stream_quic_pt_leg_t *leg)
{
    size_t                        size;
    ngx_stream_session_t         *s;
    ngx_stream_core_main_conf_t  *cmcf;
    ngx_stream_variable_value_t  *values;

    s = leg->flow->session;
    cmcf = ngx_stream_get_module_main_conf(s, ngx_stream_core_module);

    size = cmcf->variables.nelts * sizeof(ngx_stream_variable_value_t);

    values = ngx_palloc(leg->pool, ngx_max(size, 1));

    if (values && size) {
        ngx_memcpy(values, s->variables, size);
    }

    return values;
}
