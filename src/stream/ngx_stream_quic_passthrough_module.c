
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_passthrough_post_accept(
    ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_passthrough_preaccess(
    ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_passthrough_eval(ngx_stream_session_t *s,
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_complex_value_t *value);
static ngx_stream_upstream_srv_conf_t *
    ngx_stream_quic_passthrough_find_upstream(ngx_stream_session_t *s,
    ngx_stream_upstream_resolved_t *ur);
static ngx_int_t ngx_stream_quic_passthrough_resolve(ngx_stream_session_t *s,
    ngx_stream_quic_passthrough_flow_t *flow);
static void ngx_stream_quic_passthrough_resolve_handler(
    ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_stream_quic_passthrough_copy_addrs(
    ngx_stream_session_t *s, ngx_stream_upstream_resolved_t *ur,
    ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_stream_quic_passthrough_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_passthrough_add_variables(ngx_conf_t *cf);
static void *ngx_stream_quic_passthrough_create_main_conf(ngx_conf_t *cf);
static void *ngx_stream_quic_passthrough_create_srv_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_passthrough_merge_srv_conf(ngx_conf_t *cf,
    void *parent, void *child);
static char *ngx_stream_quic_passthrough(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_stream_quic_passthrough_init(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_passthrough_init_port(ngx_conf_t *cf,
    ngx_stream_conf_port_t *port);
static ngx_int_t ngx_stream_quic_passthrough_init_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_passthrough_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted);
static ngx_uint_t ngx_stream_quic_passthrough_is_content(
    ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_passthrough_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf);
static ngx_int_t ngx_stream_quic_passthrough_init_counters(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_passthrough_init_zone(
    ngx_shm_zone_t *shm_zone, void *data);


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
      offsetof(ngx_stream_quic_passthrough_srv_conf_t, timeout),
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_quic_passthrough_module_ctx = {
    ngx_stream_quic_passthrough_add_variables,    /* preconfiguration */
    ngx_stream_quic_passthrough_init,             /* postconfiguration */

    ngx_stream_quic_passthrough_create_main_conf, /* create main */
    NULL,                                         /* init main */

    ngx_stream_quic_passthrough_create_srv_conf,  /* create server */
    ngx_stream_quic_passthrough_merge_srv_conf    /* merge server */
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


/* in the order of ngx_stream_quic_passthrough_counter_e */

static ngx_str_t  ngx_stream_quic_passthrough_counters[] = {
    ngx_string("quic_passthrough_received"),
    ngx_string("quic_passthrough_sent"),
    ngx_string("quic_passthrough_replies"),
    ngx_string("quic_passthrough_flows"),
    ngx_string("quic_passthrough_evicted"),
    ngx_string("quic_passthrough_malformed"),
    ngx_string("quic_passthrough_unroutable"),
    ngx_string("quic_passthrough_refused"),
    ngx_string("quic_passthrough_overload"),
    ngx_string("quic_passthrough_no_backend"),
    ngx_string("quic_passthrough_send_failed")
};


/* session and flow find each other in the first phase */

static ngx_int_t
ngx_stream_quic_passthrough_post_accept(ngx_stream_session_t *s)
{
    ngx_stream_quic_passthrough_flow_t  *flow;

    if (s->connection->type != SOCK_DGRAM) {
        return NGX_DECLINED;
    }

    flow = ngx_stream_quic_passthrough_flow_find(s);

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
ngx_stream_quic_passthrough_preaccess(ngx_stream_session_t *s)
{
    ngx_stream_quic_passthrough_flow_t  *flow;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    return (flow && flow->established) ? NGX_OK : NGX_DECLINED;
}


/*
 * The phase is made up for when such a flow begins a connection after all, or
 * a datagram with a server's ID would be all it takes to get around a limit.
 */

ngx_int_t
ngx_stream_quic_passthrough_admit(ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_stream_handler_pt        *h;
    ngx_stream_core_main_conf_t  *cmcf;

    if (flow->limited) {
        return NGX_DECLINED;
    }

    if (!flow->established) {
        return NGX_OK;
    }

    flow->established = 0;

    cmcf = ngx_stream_get_module_main_conf(flow->session,
                                           ngx_stream_core_module);

    h = cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers.elts;
    i = cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers.nelts;

    /* the last one registered is the first */

    while (i-- > 0) {
        rc = h[i](flow->session);

        if (rc == NGX_OK) {
            break;
        }

        if (rc != NGX_DECLINED) {
            flow->limited = 1;
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


void
ngx_stream_quic_passthrough_handler(ngx_stream_session_t *s)
{
    ngx_int_t                                rc;
    ngx_stream_quic_passthrough_flow_t      *flow;
    ngx_stream_quic_passthrough_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(s,
                                          ngx_stream_quic_passthrough_module);

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (flow == NULL) {
        ngx_log_error(NGX_LOG_ALERT, s->connection->log, 0,
                      "a session without a flow in \"quic_passthrough\"");
        ngx_stream_finalize_session(s, NGX_STREAM_INTERNAL_SERVER_ERROR);
        return;
    }

    flow->timeout = pscf->timeout;
    flow->upstream = pscf->upstream;

    if (pscf->upstream_value) {
        rc = ngx_stream_quic_passthrough_eval(s, flow, pscf->upstream_value);

        if (rc == NGX_AGAIN) {
            return;
        }

        if (rc != NGX_OK) {
            ngx_stream_quic_passthrough_flow_refuse(flow,
                                            NGX_STREAM_INTERNAL_SERVER_ERROR);
            return;
        }
    }

    ngx_stream_quic_passthrough_flow_ready(flow);
}


/* NGX_AGAIN: a name is being resolved */

static ngx_int_t
ngx_stream_quic_passthrough_eval(ngx_stream_session_t *s,
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_complex_value_t *value)
{
    ngx_str_t                        host;
    ngx_url_t                        url;
    ngx_stream_upstream_resolved_t  *ur;

    if (ngx_stream_complex_value(s, value, &host) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&url, sizeof(ngx_url_t));

    url.url = host;
    url.no_resolve = 1;

    if (ngx_parse_url(s->connection->pool, &url) != NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, s->connection->log, 0,
                      "%s in \"quic_passthrough\" value \"%V\"",
                      url.err ? url.err : "error", &url.url);
        return NGX_ERROR;
    }

    ur = ngx_pcalloc(s->connection->pool,
                     sizeof(ngx_stream_upstream_resolved_t));
    if (ur == NULL) {
        return NGX_ERROR;
    }

    ur->host = url.host;
    ur->port = url.port;
    ur->no_port = url.no_port;

    if (url.addrs) {
        ur->sockaddr = url.addrs[0].sockaddr;
        ur->socklen = url.addrs[0].socklen;
        ur->name = url.addrs[0].name;
        ur->naddrs = 1;
    }

    flow->upstream = ngx_stream_quic_passthrough_find_upstream(s, ur);

    if (flow->upstream) {
        return NGX_OK;
    }

    flow->resolved = ur;

    if (ur->port == 0) {
        ngx_log_error(NGX_LOG_ERR, s->connection->log, 0,
                      "\"quic_passthrough\" value \"%V\" is neither an "
                      "upstream nor an address with a port", &url.url);
        return NGX_ERROR;
    }

    if (ur->sockaddr) {
        return NGX_OK;
    }

    return ngx_stream_quic_passthrough_resolve(s, flow);
}


static ngx_stream_upstream_srv_conf_t *
ngx_stream_quic_passthrough_find_upstream(ngx_stream_session_t *s,
    ngx_stream_upstream_resolved_t *ur)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_get_module_main_conf(s, ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->host.len == ur->host.len
            && ((uscfp[i]->port == 0 && ur->no_port)
                || uscfp[i]->port == ur->port)
            && ngx_strncasecmp(uscfp[i]->host.data, ur->host.data,
                               ur->host.len)
               == 0)
        {
            return uscfp[i];
        }
    }

    return NULL;
}


static ngx_int_t
ngx_stream_quic_passthrough_resolve(ngx_stream_session_t *s,
    ngx_stream_quic_passthrough_flow_t *flow)
{
    ngx_resolver_ctx_t              *ctx, temp;
    ngx_stream_core_srv_conf_t      *cscf;
    ngx_stream_upstream_resolved_t  *ur;

    ur = flow->resolved;
    cscf = ngx_stream_get_module_srv_conf(s, ngx_stream_core_module);

    temp.name = ur->host;

    ctx = ngx_resolve_start(cscf->resolver, &temp);
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    if (ctx == NGX_NO_RESOLVER) {
        ngx_log_error(NGX_LOG_ERR, s->connection->log, 0,
                      "no resolver defined to resolve %V", &ur->host);
        return NGX_ERROR;
    }

    ctx->name = ur->host;
    ctx->handler = ngx_stream_quic_passthrough_resolve_handler;
    ctx->data = flow;
    ctx->timeout = cscf->resolver_timeout;

    ur->ctx = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        ur->ctx = NULL;
        return NGX_ERROR;
    }

    /* a cached answer has called the handler already */

    return NGX_AGAIN;
}


static void
ngx_stream_quic_passthrough_resolve_handler(ngx_resolver_ctx_t *ctx)
{
    ngx_int_t                            rc;
    ngx_stream_session_t                *s;
    ngx_stream_upstream_resolved_t      *ur;
    ngx_stream_quic_passthrough_flow_t  *flow;

    flow = ctx->data;
    s = flow->session;
    ur = flow->resolved;

    if (ctx->state) {
        ngx_log_error(NGX_LOG_ERR, s->connection->log, 0,
                      "%V could not be resolved (%i: %s)",
                      &ctx->name, ctx->state,
                      ngx_resolver_strerror(ctx->state));
        rc = NGX_ERROR;

    } else {
        rc = ngx_stream_quic_passthrough_copy_addrs(s, ur, ctx);
    }

    ngx_resolve_name_done(ctx);
    ur->ctx = NULL;

    if (rc != NGX_OK) {
        ngx_stream_quic_passthrough_flow_refuse(flow, NGX_STREAM_BAD_GATEWAY);
        return;
    }

    ngx_stream_quic_passthrough_flow_ready(flow);
}


/* the resolver's addresses go with its context, later legs need them too */

static ngx_int_t
ngx_stream_quic_passthrough_copy_addrs(ngx_stream_session_t *s,
    ngx_stream_upstream_resolved_t *ur, ngx_resolver_ctx_t *ctx)
{
    ngx_uint_t            i;
    ngx_pool_t           *pool;
    ngx_resolver_addr_t  *addr;

    pool = s->connection->pool;

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


static ngx_int_t
ngx_stream_quic_passthrough_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                                   *p;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    pmcf = ngx_stream_get_module_main_conf(s,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf->counters == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, NGX_ATOMIC_T_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(p, "%uA", pmcf->counters[data]) - p;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_passthrough_add_variables(ngx_conf_t *cf)
{
    ngx_uint_t              i;
    ngx_stream_variable_t  *var;

    for (i = 0; i < NGX_STREAM_QUIC_PT_COUNTERS; i++) {
        var = ngx_stream_add_variable(cf,
                                      &ngx_stream_quic_passthrough_counters[i],
                                      NGX_STREAM_VAR_NOCACHEABLE);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = ngx_stream_quic_passthrough_variable;
        var->data = i;
    }

    return NGX_OK;
}


static void *
ngx_stream_quic_passthrough_create_main_conf(ngx_conf_t *cf)
{
    /*
     * set by ngx_pcalloc():
     *
     *     pmcf->zone = NULL;
     *     pmcf->counters = NULL;
     *     pmcf->worker = NULL;
     *     pmcf->used = 0;
     */

    return ngx_pcalloc(cf->pool,
                       sizeof(ngx_stream_quic_passthrough_main_conf_t));
}


static void *
ngx_stream_quic_passthrough_create_srv_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_passthrough_srv_conf_t  *pscf;

    pscf = ngx_pcalloc(cf->pool,
                       sizeof(ngx_stream_quic_passthrough_srv_conf_t));
    if (pscf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     pscf->upstream = NULL;
     *     pscf->upstream_value = NULL;
     *     pscf->router = NULL;
     */

    pscf->timeout = NGX_CONF_UNSET_MSEC;

    return pscf;
}


static char *
ngx_stream_quic_passthrough_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child)
{
    ngx_stream_quic_passthrough_srv_conf_t *prev = parent;
    ngx_stream_quic_passthrough_srv_conf_t *conf = child;

    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 60000);

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
    ngx_stream_quic_passthrough_srv_conf_t *pscf = conf;

    ngx_url_t                                 u;
    ngx_str_t                                *value;
    ngx_stream_complex_value_t                cv;
    ngx_stream_core_srv_conf_t               *cscf;
    ngx_stream_compile_complex_value_t        ccv;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    if (pscf->upstream || pscf->upstream_value) {
        return "is duplicate";
    }

    cscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_core_module);

    if (cscf->handler) {
        return "conflicts with another content handler of this server";
    }

    cscf->handler = ngx_stream_quic_passthrough_handler;

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

    pscf->upstream = ngx_stream_upstream_add(cf, &u, 0);
    if (pscf->upstream == NULL) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_passthrough_init(ngx_conf_t *cf)
{
    ngx_uint_t                                i;
    ngx_stream_handler_pt                    *h;
    ngx_stream_conf_port_t                   *port;
    ngx_stream_core_main_conf_t              *cmcf;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    if (!pmcf->used) {
        return NGX_OK;
    }

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    if (cmcf->ports) {
        port = cmcf->ports->elts;

        for (i = 0; i < cmcf->ports->nelts; i++) {
            if (ngx_stream_quic_passthrough_init_port(cf, &port[i])
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    h = ngx_array_push(&cmcf->phases[NGX_STREAM_POST_ACCEPT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_stream_quic_passthrough_post_accept;

    h = ngx_array_push(&cmcf->phases[NGX_STREAM_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_stream_quic_passthrough_preaccess;

    return ngx_stream_quic_passthrough_init_counters(cf);
}


/*
 * A socket is read either by nginx or by this module, so all the servers
 * behind one must agree.  Those behind a wildcard socket are the ones of its
 * port that have no socket of their own.
 */

static ngx_int_t
ngx_stream_quic_passthrough_init_port(ngx_conf_t *cf,
    ngx_stream_conf_port_t *port)
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

        wanted = ngx_stream_quic_passthrough_is_content(
                     (wildcard && !addr[i].opt.bind)
                     ? wildcard->default_server : addr[i].default_server);

        cscfp = addr[i].servers.elts;

        for (n = 0; n < addr[i].servers.nelts; n++) {
            if (ngx_stream_quic_passthrough_check_server(cf, cscfp[n],
                                                         &addr[i], wanted)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        if (wanted
            && ngx_stream_quic_passthrough_init_addr(cf, &addr[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_passthrough_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_conf_addr_t *addr,
    ngx_uint_t wanted)
{
    char                                    *rule;
    ngx_uint_t                               is_content;
    ngx_stream_quic_passthrough_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    is_content = ngx_stream_quic_passthrough_is_content(cscf);

    if (!is_content && (pscf->upstream || pscf->upstream_value)) {
        rule = "conflicts with another content handler of this server";

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
ngx_stream_quic_passthrough_is_content(ngx_stream_core_srv_conf_t *cscf)
{
    return cscf->handler == ngx_stream_quic_passthrough_handler;
}


static ngx_int_t
ngx_stream_quic_passthrough_init_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                               i;
    ngx_stream_core_srv_conf_t             **cscfp;
    ngx_stream_quic_passthrough_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(addr->default_server->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->router == NULL) {
        pscf->router = ngx_pcalloc(cf->pool,
                                   sizeof(ngx_stream_quic_lb_router_t));
        if (pscf->router == NULL) {
            return NGX_ERROR;
        }
    }

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        if (ngx_stream_quic_passthrough_add_upstreams(cf, pscf->router,
                                                      cscfp[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* a variable may name any upstream */

static ngx_int_t
ngx_stream_quic_passthrough_add_upstreams(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_core_srv_conf_t *cscf)
{
    ngx_uint_t                                i;
    ngx_stream_upstream_srv_conf_t          **uscfp;
    ngx_stream_upstream_main_conf_t          *umcf;
    ngx_stream_quic_passthrough_srv_conf_t   *pscf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->upstream) {
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


static ngx_int_t
ngx_stream_quic_passthrough_init_counters(ngx_conf_t *cf)
{
    ngx_str_t                                 name;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    ngx_str_set(&name, "quic_passthrough");

    pmcf->zone = ngx_shared_memory_add(cf, &name, 8 * ngx_pagesize,
                                       &ngx_stream_quic_passthrough_module);
    if (pmcf->zone == NULL) {
        return NGX_ERROR;
    }

    pmcf->zone->init = ngx_stream_quic_passthrough_init_zone;
    pmcf->zone->data = pmcf;

    return NGX_OK;
}


/* the counters go on over a reload */

static ngx_int_t
ngx_stream_quic_passthrough_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_stream_quic_passthrough_main_conf_t  *old = data;

    ngx_slab_pool_t                          *shpool;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    pmcf = shm_zone->data;

    if (old) {
        pmcf->counters = old->counters;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        pmcf->counters = shpool->data;
        return NGX_OK;
    }

    pmcf->counters = ngx_slab_calloc(shpool, NGX_STREAM_QUIC_PT_COUNTERS
                                             * sizeof(ngx_atomic_t));
    if (pmcf->counters == NULL) {
        return NGX_ERROR;
    }

    shpool->data = (void *) pmcf->counters;

    return NGX_OK;
}


/* whether this module reads the socket of |ls| */

ngx_uint_t
ngx_stream_quic_passthrough_listening(ngx_listening_t *ls)
{
    ngx_stream_port_t           *port;
    ngx_stream_in_addr_t        *addr;
    ngx_stream_core_srv_conf_t  *cscf;
#if (NGX_HAVE_INET6)
    ngx_stream_in6_addr_t       *addr6;
#endif

    if (ls->handler != ngx_stream_init_connection || ls->type != SOCK_DGRAM) {
        return 0;
    }

    port = ls->servers;

#if (NGX_HAVE_INET6)
    if (ls->sockaddr->sa_family == AF_INET6) {
        addr6 = port->addrs;
        cscf = addr6[0].conf.default_server;

        return ngx_stream_quic_passthrough_is_content(cscf);
    }
#endif

    addr = port->addrs;
    cscf = addr[0].conf.default_server;

    return ngx_stream_quic_passthrough_is_content(cscf);
}
