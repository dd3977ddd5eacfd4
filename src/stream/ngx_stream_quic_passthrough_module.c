
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The directives of passthrough, and what they demand of the servers and
 * upstreams around them.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void *ngx_stream_quic_pt_create_main_conf(ngx_conf_t *cf);
static void *ngx_stream_quic_pt_create_srv_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_pt_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_stream_quic_passthrough(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_stream_quic_pt_init(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_pt_init_port(ngx_conf_t *cf,
    ngx_stream_conf_port_t *port);
static ngx_int_t ngx_stream_quic_pt_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted);
static ngx_uint_t ngx_stream_quic_pt_is_content(
    ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_pt_init_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_pt_init_cids(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_pt_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_pt_check_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *uscf);
static ngx_stream_core_srv_conf_t *ngx_stream_quic_pt_default_server(
    ngx_listening_t *ls);
static ngx_stream_quic_pt_router_t *ngx_stream_quic_pt_find_router(
    ngx_cycle_t *cycle, struct sockaddr *sockaddr, socklen_t socklen);


/* octets; the system counts twice as much, in an int */

static ngx_conf_num_bounds_t  ngx_stream_quic_pt_socket_buffer = {
    ngx_conf_check_num_bounds, 4096, 1073741823
};


static ngx_command_t  ngx_stream_quic_passthrough_commands[] = {

    { ngx_string("quic_passthrough"),
      NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_passthrough,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_passthrough_timeout"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_pt_srv_conf_t, timeout),
      NULL },

    { ngx_string("quic_passthrough_socket_rcvbuf"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_pt_srv_conf_t, rcvbuf),
      &ngx_stream_quic_pt_socket_buffer },

    { ngx_string("quic_passthrough_socket_sndbuf"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_pt_srv_conf_t, sndbuf),
      &ngx_stream_quic_pt_socket_buffer },

    { ngx_string("quic_passthrough_bind"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE12,
      ngx_stream_quic_passthrough_bind,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_passthrough_cid_zone"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE12,
      ngx_stream_quic_pt_cid_zone,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_passthrough_address_flows"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_pt_srv_conf_t, address_flows),
      NULL },

    { ngx_string("quic_passthrough_retry"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE123,
      ngx_stream_quic_passthrough_retry,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_passthrough_retry_key"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_passthrough_retry_key,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_quic_passthrough_module_ctx = {
    ngx_stream_quic_pt_counters_add_variables, /* preconfiguration */
    ngx_stream_quic_pt_init,               /* postconfiguration */

    ngx_stream_quic_pt_create_main_conf,   /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_stream_quic_pt_create_srv_conf,    /* create server configuration */
    ngx_stream_quic_pt_merge_srv_conf      /* merge server configuration */
};


ngx_module_t  ngx_stream_quic_passthrough_module = {
    NGX_MODULE_V1,
    &ngx_stream_quic_passthrough_module_ctx, /* module context */
    ngx_stream_quic_passthrough_commands,  /* module directives */
    NGX_STREAM_MODULE,                     /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_stream_quic_pt_create_main_conf(ngx_conf_t *cf)
{
    /*
     * set by ngx_pcalloc():
     *
     *     pmcf->counters = NULL;
     *     pmcf->worker = NULL;
     *     pmcf->used = 0;
     */

    return ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_main_conf_t));
}


static void *
ngx_stream_quic_pt_create_srv_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_srv_conf_t));
    if (pscf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     pscf->upstream = NULL;
     *     pscf->upstream_value = NULL;
     */

    pscf->cids = NGX_CONF_UNSET_PTR;
    pscf->timeout = NGX_CONF_UNSET_MSEC;
    pscf->rcvbuf = NGX_CONF_UNSET_SIZE;
    pscf->sndbuf = NGX_CONF_UNSET_SIZE;
    pscf->bind = NGX_CONF_UNSET_PTR;
    pscf->address_flows = NGX_CONF_UNSET;
    pscf->retry_mode = NGX_CONF_UNSET_UINT;
    pscf->retry_threshold = NGX_CONF_UNSET_UINT;
    pscf->retry_v2 = NGX_CONF_UNSET_UINT;
    pscf->retry_keys = NGX_CONF_UNSET_PTR;

    return pscf;
}


static char *
ngx_stream_quic_pt_merge_srv_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_stream_quic_pt_srv_conf_t  *prev = parent;
    ngx_stream_quic_pt_srv_conf_t  *conf = child;

    ngx_conf_merge_ptr_value(conf->cids, prev->cids, NULL);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 60000);

    ngx_conf_merge_size_value(conf->rcvbuf, prev->rcvbuf, 0);
    ngx_conf_merge_size_value(conf->sndbuf, prev->sndbuf, 0);

    ngx_conf_merge_ptr_value(conf->bind, prev->bind, NULL);

    ngx_conf_merge_value(conf->address_flows, prev->address_flows, 0);

    ngx_conf_merge_uint_value(conf->retry_mode, prev->retry_mode,
                              NGX_STREAM_QUIC_PT_RETRY_OFF);
    ngx_conf_merge_uint_value(conf->retry_threshold, prev->retry_threshold, 0);
    ngx_conf_merge_uint_value(conf->retry_v2, prev->retry_v2, 0);
    ngx_conf_merge_ptr_value(conf->retry_keys, prev->retry_keys, NULL);

    if (conf->timeout == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_passthrough_timeout\" must not be 0");
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_stream_quic_passthrough(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ngx_url_t                            u;
    ngx_str_t                           *value;
    ngx_stream_complex_value_t           cv;
    ngx_stream_core_srv_conf_t          *cscf;
    ngx_stream_quic_pt_main_conf_t      *pmcf;
    ngx_stream_compile_complex_value_t   ccv;

    if (pscf->upstream || pscf->upstream_value) {
        return "is duplicate";
    }

    cscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_core_module);

    if (cscf->handler) {
        return "conflicts with another content handler of this server";
    }

    cscf->handler = ngx_stream_quic_pt_session_handler;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);
    pmcf->used = 1;

    value = cf->args->elts;

    ngx_memzero(&ccv, sizeof(ngx_stream_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[1];
    ccv.complex_value = &cv;

    if (ngx_stream_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (cv.lengths) {
        pscf->upstream_value = ngx_palloc(cf->pool,
                                          sizeof(ngx_stream_complex_value_t));
        if (pscf->upstream_value == NULL) {
            return NGX_CONF_ERROR;
        }

        *pscf->upstream_value = cv;

        return NGX_CONF_OK;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];
    u.no_resolve = 1;

    if (ngx_strncasecmp(value[1].data, (u_char *) "unix:", 5) == 0) {
        return "needs an upstream or an IP address";
    }

    pscf->upstream = ngx_stream_upstream_add(cf, &u, 0);
    if (pscf->upstream == NULL) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_pt_init(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_stream_conf_port_t          *port;
    ngx_stream_core_main_conf_t     *cmcf;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    if (!pmcf->used) {
        return NGX_OK;
    }

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    if (ngx_array_init(&pmcf->routers, cf->pool, 4,
                       sizeof(ngx_stream_quic_pt_router_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (cmcf->ports) {
        port = cmcf->ports->elts;

        for (i = 0; i < cmcf->ports->nelts; i++) {
            if (ngx_stream_quic_pt_init_port(cf, &port[i]) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    if (ngx_stream_quic_pt_session_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_counters_init(cf);
}


/*
 * A socket is read either by nginx or by this module, so all the servers
 * behind one must agree.  Those behind a wildcard socket are the ones of its
 * port that have no socket of their own.
 */

static ngx_int_t
ngx_stream_quic_pt_init_port(ngx_conf_t *cf, ngx_stream_conf_port_t *port)
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

        wanted = ngx_stream_quic_pt_is_content(
                     (wildcard && !addr[i].opt.bind)
                     ? wildcard->default_server : addr[i].default_server);

        cscfp = addr[i].servers.elts;

        for (n = 0; n < addr[i].servers.nelts; n++) {
            if (ngx_stream_quic_pt_check_server(cf, cscfp[n], &addr[i], wanted)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        if (wanted && ngx_stream_quic_pt_init_addr(cf, &addr[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted)
{
    char                           *rule;
    ngx_uint_t                      is_content;
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    is_content = ngx_stream_quic_pt_is_content(cscf);

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
ngx_stream_quic_pt_is_content(ngx_stream_core_srv_conf_t *cscf)
{
    return cscf->handler == ngx_stream_quic_pt_session_handler;
}


static ngx_int_t
ngx_stream_quic_pt_init_addr(ngx_conf_t *cf, ngx_stream_conf_addr_t *addr)
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
        if (ngx_stream_quic_pt_add_upstreams(cf, &router->router, cscfp[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_stream_quic_pt_init_cids(cf, router, addr) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_retry_init(cf, router, addr);
}


/* a connection ID is looked up before there is a server to ask */

static ngx_int_t
ngx_stream_quic_pt_init_cids(ngx_conf_t *cf,
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
ngx_stream_quic_pt_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf)
{
    ngx_uint_t                        i;
    ngx_stream_quic_pt_srv_conf_t    *pscf;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->upstream) {

        if (ngx_stream_quic_pt_check_upstream(cf, pscf->upstream) != NGX_OK) {
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
ngx_stream_quic_pt_check_upstream(ngx_conf_t *cf,
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

    return ngx_stream_quic_pt_is_content(ngx_stream_quic_pt_default_server(ls));
}


/* all the servers of a socket agree, so any address will do */

static ngx_stream_core_srv_conf_t *
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

        routers[i] = ngx_stream_quic_pt_find_router(cycle, &sa.sockaddr,
                                                    ls->socklen);
        if (routers[i] == NULL) {
            return NULL;
        }
    }

    return routers;
}


static ngx_stream_quic_pt_router_t *
ngx_stream_quic_pt_find_router(ngx_cycle_t *cycle, struct sockaddr *sockaddr,
    socklen_t socklen)
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
