
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Listen addresses: what the servers that share one, or its socket, must agree
 * on, and the router of each.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_pt_addr_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted);
static ngx_uint_t ngx_stream_quic_pt_addr_is_content(
    ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_pt_addr_init_router(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_pt_addr_init_cids(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_pt_addr_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_pt_addr_check_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *uscf);
static ngx_stream_quic_pt_router_t *ngx_stream_quic_pt_addr_find_router(
    ngx_cycle_t *cycle, struct sockaddr *sockaddr, socklen_t socklen);


/*
 * A socket is read either by nginx or by this module, so all the servers
 * behind one must agree.  Those behind a wildcard socket are the ones of its
 * port that have no socket of their own.
 */

ngx_int_t
ngx_stream_quic_pt_addr_init_port(ngx_conf_t *cf, ngx_stream_conf_port_t *port)
{
    ngx_uint_t                    i, n, wanted;
    ngx_stream_conf_addr_t       *addr, *wildcard;
    ngx_stream_core_srv_conf_t  **cscfp;

    addr = port->addrs.elts;
    wildcard = NULL;

    for (i = 0; i < port->addrs.nelts; i++) {
        if (addr[i].opt.wildcard) {
            wildcard = &addr[i];
        }
    }

    for (i = 0; i < port->addrs.nelts; i++) {

        wanted = ngx_stream_quic_pt_addr_is_content(
                     (wildcard && !addr[i].opt.bind)
                     ? wildcard->default_server : addr[i].default_server);

        cscfp = addr[i].servers.elts;

        for (n = 0; n < addr[i].servers.nelts; n++) {
            if (ngx_stream_quic_pt_addr_check_server(cf, cscfp[n], &addr[i],
                                                     wanted)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        if (wanted
            && (ngx_stream_quic_pt_check_addr(cf, &addr[i]) != NGX_OK
                || ngx_stream_quic_pt_loop_check(cf, port, &addr[i]) != NGX_OK
                || ngx_stream_quic_pt_addr_init_router(cf, &addr[i]) != NGX_OK))
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_addr_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted)
{
    char                           *rule;
    ngx_uint_t                      is_content;
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    is_content = ngx_stream_quic_pt_addr_is_content(cscf);

    if (!is_content && (pscf->upstream || pscf->upstream_value)) {
        rule = "conflicts with another content handler of this server";

    } else if (is_content && addr->opt.sockaddr->sa_family == AF_UNIX) {
        rule = "needs an IP address";

    } else if (is_content && addr->opt.type != SOCK_DGRAM) {
        rule = "needs the \"udp\" parameter of \"listen\"";

    } else if (is_content != wanted) {
        rule = "must be in all servers or in none that share the socket";

    } else {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"quic_passthrough\" %s, listen %V, server in %s:%ui",
                  rule, &addr->opt.addr_text, cscf->file_name, cscf->line);

    return NGX_ERROR;
}


static ngx_uint_t
ngx_stream_quic_pt_addr_is_content(ngx_stream_core_srv_conf_t *cscf)
{
    return cscf->handler == ngx_stream_quic_pt_session_handler;
}


static ngx_int_t
ngx_stream_quic_pt_addr_init_router(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                       i;
    ngx_stream_core_srv_conf_t     **cscfp;
    ngx_stream_quic_pt_router_t     *router;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    router = ngx_array_push(&pmcf->routers);
    if (router == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(router, sizeof(ngx_stream_quic_pt_router_t));

    router->sockaddr = addr->opt.sockaddr;
    router->socklen = addr->opt.socklen;

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        if (ngx_stream_quic_pt_addr_add_upstreams(cf, &router->router, cscfp[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_stream_quic_pt_addr_init_cids(cf, router, addr) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_retry_init(cf, router, addr);
}


/* a connection ID is looked up before there is a server to ask */

static ngx_int_t
ngx_stream_quic_pt_addr_init_cids(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                      i;
    ngx_stream_core_srv_conf_t    **cscfp;
    ngx_stream_quic_pt_srv_conf_t  *pscf, *first;

    cscfp = addr->servers.elts;

    first = ngx_stream_get_module_srv_conf(cscfp[0]->ctx,
                                          ngx_stream_quic_passthrough_module);

    for (i = 1; i < addr->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        if (pscf->cids == first->cids
            || (pscf->cids && first->cids
                && pscf->cids->zone == first->cids->zone
                && pscf->cids->timeout == first->cids->timeout))
        {
            continue;
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_passthrough_cid_zone\" must be the same in all "
                      "servers that share a listen address, listen %V, "
                      "server in %s:%ui", &addr->opt.addr_text,
                      cscfp[i]->file_name, cscfp[i]->line);

        return NGX_ERROR;
    }

    router->cids = first->cids;

    return NGX_OK;
}


/* a variable may name any upstream */

static ngx_int_t
ngx_stream_quic_pt_addr_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf)
{
    ngx_uint_t                        i;
    ngx_stream_quic_pt_srv_conf_t    *pscf;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->upstream) {

        if (ngx_stream_quic_pt_addr_check_upstream(cf, pscf->upstream)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_stream_quic_lb_router_add(cf, router, pscf->upstream);
    }

    umcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {
        if (ngx_stream_quic_lb_router_add(cf, router, uscfp[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* a stream of datagrams to a local socket is not QUIC */

static ngx_int_t
ngx_stream_quic_pt_addr_check_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    if (uscf->servers == NULL) {
        return NGX_OK;
    }

    server = uscf->servers->elts;

    for (i = 0; i < uscf->servers->nelts; i++) {

        if (server[i].naddrs
            && server[i].addrs[0].sockaddr->sa_family == AF_UNIX)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"quic_passthrough\" needs IP addresses, upstream "
                          "\"%V\" in %s:%ui has \"server %V\"",
                          &uscf->host, uscf->file_name, uscf->line,
                          &server[i].name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_pt_listening(ngx_listening_t *ls)
{
    if (ls->handler != ngx_stream_init_connection || ls->type != SOCK_DGRAM) {
        return 0;
    }

    return ngx_stream_quic_pt_addr_is_content(
                                         ngx_stream_quic_pt_default_server(ls));
}


/* all the servers of a socket agree, so any address will do */

ngx_stream_core_srv_conf_t *
ngx_stream_quic_pt_default_server(ngx_listening_t *ls)
{
    ngx_stream_port_t      *port;
    ngx_stream_in_addr_t   *addr;
#if (NGX_HAVE_INET6)
    ngx_stream_in6_addr_t  *addr6;
#endif

    port = ls->servers;

#if (NGX_HAVE_INET6)
    if (ls->sockaddr->sa_family == AF_INET6) {
        addr6 = port->addrs;
        return addr6[0].conf.default_server;
    }
#endif

    addr = port->addrs;

    return addr[0].conf.default_server;
}


ngx_stream_quic_pt_srv_conf_t *
ngx_stream_quic_pt_srv_conf(ngx_listening_t *ls)
{
    return ngx_stream_get_module_srv_conf(
               ngx_stream_quic_pt_default_server(ls)->ctx,
               ngx_stream_quic_passthrough_module);
}


ngx_stream_quic_pt_router_t **
ngx_stream_quic_pt_routers(ngx_cycle_t *cycle, ngx_listening_t *ls)
{
    ngx_uint_t                     i;
    ngx_sockaddr_t                 sa;
    ngx_stream_port_t             *port;
    ngx_stream_in_addr_t          *addr;
    ngx_stream_quic_pt_router_t  **routers;
#if (NGX_HAVE_INET6)
    ngx_stream_in6_addr_t         *addr6;
#endif

    port = ls->servers;

    routers = ngx_palloc(cycle->pool,
                         port->naddrs * sizeof(ngx_stream_quic_pt_router_t *));
    if (routers == NULL) {
        return NULL;
    }

    ngx_memcpy(&sa, ls->sockaddr, ls->socklen);

    for (i = 0; i < port->naddrs; i++) {

        switch (ls->sockaddr->sa_family) {

#if (NGX_HAVE_INET6)
        case AF_INET6:
            addr6 = port->addrs;
            sa.sockaddr_in6.sin6_addr = addr6[i].addr6;
            break;
#endif

        default: /* AF_INET */
            addr = port->addrs;
            sa.sockaddr_in.sin_addr.s_addr = addr[i].addr;
            break;
        }

        routers[i] = ngx_stream_quic_pt_addr_find_router(cycle, &sa.sockaddr,
                                                         ls->socklen);
        if (routers[i] == NULL) {
            return NULL;
        }
    }

    return routers;
}


static ngx_stream_quic_pt_router_t *
ngx_stream_quic_pt_addr_find_router(ngx_cycle_t *cycle,
    struct sockaddr *sockaddr, socklen_t socklen)
{
    ngx_uint_t                       i;
    ngx_stream_quic_pt_router_t     *router;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);
    router = pmcf->routers.elts;

    for (i = 0; i < pmcf->routers.nelts; i++) {

        if (ngx_cmp_sockaddr(router[i].sockaddr, router[i].socklen, sockaddr,
                             socklen, 1)
            == NGX_OK)
        {
            return &router[i];
        }
    }

    ngx_log_error(NGX_LOG_ALERT, cycle->log, 0,
                  "a listen address without a router in \"quic_passthrough\"");

    return NULL;
}
