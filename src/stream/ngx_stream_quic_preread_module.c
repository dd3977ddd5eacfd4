
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_preread" in nginx's phases: the virtual server and the variables that a
 * ClientHello asks for.  A session waits in the preread phase by NGX_DONE and
 * is run on by whoever has what it waits for: with NGX_AGAIN nginx would read
 * the listening socket itself.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


static ngx_int_t ngx_stream_quic_preread_handler(ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_preread_begin(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_preread_srv_conf_t *conf);
static ngx_int_t ngx_stream_quic_preread_server(ngx_stream_session_t *s,
    ngx_stream_quic_preread_hello_t *hello);
static ngx_int_t ngx_stream_quic_preread_find_server(ngx_stream_session_t *s,
    ngx_stream_quic_preread_hello_t *hello,
    ngx_stream_core_srv_conf_t **cscf);
static ngx_stream_quic_preread_hello_t *ngx_stream_quic_preread_shown(
    ngx_stream_session_t *s);
static ngx_int_t ngx_stream_quic_preread_server_name_variable(
    ngx_stream_session_t *s, ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_preread_alpn_variable(
    ngx_stream_session_t *s, ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_preread_version_variable(
    ngx_stream_session_t *s, ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_preread_add_variables(ngx_conf_t *cf);
static void *ngx_stream_quic_preread_create_main_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_preread_init_main_conf(ngx_conf_t *cf,
    void *conf);
static void *ngx_stream_quic_preread_create_srv_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_preread_merge_srv_conf(ngx_conf_t *cf,
    void *parent, void *child);
static ngx_int_t ngx_stream_quic_preread_init(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_preread_check_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);


/* octets; what one connection may hold must have room */

static ngx_conf_num_bounds_t  ngx_stream_quic_preread_memory_bounds = {
    ngx_conf_check_num_bounds, 2 * NGX_STREAM_QUIC_PT_QUEUED, -1
};


static ngx_command_t  ngx_stream_quic_preread_commands[] = {

    { ngx_string("quic_preread"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_preread_srv_conf_t, enabled),
      NULL },

    { ngx_string("quic_preread_timeout"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_preread_srv_conf_t, timeout),
      NULL },

    { ngx_string("quic_preread_memory"),
      NGX_STREAM_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_STREAM_MAIN_CONF_OFFSET,
      offsetof(ngx_stream_quic_preread_main_conf_t, memory),
      &ngx_stream_quic_preread_memory_bounds },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_quic_preread_module_ctx = {
    ngx_stream_quic_preread_add_variables, /* preconfiguration */
    ngx_stream_quic_preread_init,          /* postconfiguration */

    ngx_stream_quic_preread_create_main_conf, /* create main configuration */
    ngx_stream_quic_preread_init_main_conf, /* init main configuration */

    ngx_stream_quic_preread_create_srv_conf, /* create server configuration */
    ngx_stream_quic_preread_merge_srv_conf /* merge server configuration */
};


ngx_module_t  ngx_stream_quic_preread_module = {
    NGX_MODULE_V1,
    &ngx_stream_quic_preread_module_ctx,   /* module context */
    ngx_stream_quic_preread_commands,      /* module directives */
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


static ngx_stream_variable_t  ngx_stream_quic_preread_vars[] = {

    { ngx_string("quic_preread_server_name"), NULL,
      ngx_stream_quic_preread_server_name_variable, 0, 0, 0 },

    { ngx_string("quic_preread_alpn_protocols"), NULL,
      ngx_stream_quic_preread_alpn_variable, 0, 0, 0 },

    { ngx_string("quic_preread_version"), NULL,
      ngx_stream_quic_preread_version_variable, 0, 0, 0 },

      ngx_stream_null_variable
};


static ngx_int_t
ngx_stream_quic_preread_handler(ngx_stream_session_t *s)
{
    ngx_stream_quic_pt_flow_t           *flow;
    ngx_stream_quic_preread_ctx_t       *ctx;
    ngx_stream_quic_preread_srv_conf_t  *conf;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (flow == NULL) {
        return NGX_DECLINED;
    }

    ctx = flow->preread;

    if (ctx == NULL) {
        conf = ngx_stream_get_module_srv_conf(s,
                                              ngx_stream_quic_preread_module);

        return conf->enabled ? ngx_stream_quic_preread_begin(s, flow, conf)
                             : NGX_DECLINED;
    }

    if (ctx->deciding) {
        return ngx_stream_quic_preread_server(s, ctx->deciding);
    }

    return ctx->passed ? NGX_DECLINED : NGX_DONE;
}


/*
 * The session of a new flow.  Usually its first datagram is still to come, by
 * ngx_stream_quic_preread_take(); an earlier phase, or the accept mutex, may
 * have made some wait.
 */

static ngx_int_t
ngx_stream_quic_preread_begin(ngx_stream_session_t *s,
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_preread_srv_conf_t *conf)
{
    ngx_stream_quic_preread_ctx_t  *ctx;

    ctx = ngx_pcalloc(s->connection->pool,
                      sizeof(ngx_stream_quic_preread_ctx_t));
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_queue_init(&ctx->hellos);

    ctx->conf = conf;

    if (ngx_stream_quic_preread_save(s, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    flow->preread = ctx;

    if (flow->established) {
        ctx->passed = 1;
        return NGX_DECLINED;
    }

    if (flow->ndatagrams) {
        ngx_stream_quic_preread_queued(flow);

        ctx->deciding = ngx_stream_quic_preread_decided(ctx);

        if (ctx->deciding) {
            ctx->passed = 1;
            return ngx_stream_quic_preread_server(s, ctx->deciding);
        }

        if (ctx->nhellos == 0) {
            ctx->passed = 1;
            return NGX_DECLINED;
        }
    }

    ctx->waiting = 1;

    s->connection->log->action = "waiting for a QUIC ClientHello";

    ngx_stream_quic_pt_flow_content(flow);

    return NGX_DONE;
}


static ngx_int_t
ngx_stream_quic_preread_server(ngx_stream_session_t *s,
    ngx_stream_quic_preread_hello_t *hello)
{
    ngx_int_t                    rc;
    ngx_pool_t                  *pool;
    ngx_connection_t            *c;
    ngx_stream_core_srv_conf_t  *cscf;

    c = s->connection;

    ngx_log_debug2(NGX_LOG_DEBUG_STREAM, c->log, 0,
                   "quic preread server name: \"%V\", alpn: \"%V\"",
                   &hello->server_name, &hello->alpn);

    /* what this allocates goes with the ClientHello */

    pool = c->pool;
    c->pool = hello->pool;

    rc = ngx_stream_quic_preread_find_server(s, hello, &cscf);

    c->pool = pool;

    if (rc == NGX_OK) {
        s->srv_conf = cscf->ctx->srv_conf;
        ngx_set_connection_log(c, cscf->error_log);
    }

    hello->srv_conf = s->srv_conf;

    /* the handlers of other modules may have something to do with it */

    return (rc == NGX_ERROR) ? NGX_ERROR : NGX_DECLINED;
}


static ngx_int_t
ngx_stream_quic_preread_find_server(ngx_stream_session_t *s,
    ngx_stream_quic_preread_hello_t *hello, ngx_stream_core_srv_conf_t **cscf)
{
    ngx_int_t  rc;
    ngx_str_t  host;

    if (hello->server_name.len == 0) {
        return NGX_DECLINED;
    }

    host = hello->server_name;

    rc = ngx_stream_validate_host(&host, hello->pool, 1);

    if (rc == NGX_DECLINED) {

        /* no name of a host, and not to be taken for one by a "map" */

        ngx_str_null(&hello->server_name);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    /* of what has a colon a part would be left, that nobody has asked for */

    if (hello->address
        && ngx_strlchr(hello->server_name.data,
                       hello->server_name.data + hello->server_name.len, ':'))
    {
        return NGX_DECLINED;
    }

    return ngx_stream_find_virtual_server(s, &host, cscf);
}


/* the connection that the session is run for, or was run for last */

static ngx_stream_quic_preread_hello_t *
ngx_stream_quic_preread_shown(ngx_stream_session_t *s)
{
    ngx_stream_quic_pt_flow_t      *flow;
    ngx_stream_quic_preread_ctx_t  *ctx;

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (flow == NULL || flow->preread == NULL) {
        return NULL;
    }

    ctx = flow->preread;

    return ctx->deciding ? ctx->deciding : ctx->current;
}


static ngx_int_t
ngx_stream_quic_preread_server_name_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_preread_hello_t  *hello;

    hello = ngx_stream_quic_preread_shown(s);

    if (hello == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_stream_quic_lb_variable_set(v, hello->server_name.data,
                                    hello->server_name.len);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_preread_alpn_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_preread_hello_t  *hello;

    hello = ngx_stream_quic_preread_shown(s);

    if (hello == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_stream_quic_lb_variable_set(v, hello->alpn.data, hello->alpn.len);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_preread_version_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_preread_hello_t  *hello;

    hello = ngx_stream_quic_preread_shown(s);

    if (hello == NULL || !hello->opened) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_stream_quic_lb_variable_set(v,
                                    (u_char *)
                                    (hello->version == QUIC_LB_VERSION_1
                                     ? "1" : "2"), 1);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_preread_add_variables(ngx_conf_t *cf)
{
    ngx_stream_variable_t  *var, *v;

    for (v = ngx_stream_quic_preread_vars; v->name.len; v++) {
        var = ngx_stream_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static void *
ngx_stream_quic_preread_create_main_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_preread_main_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_preread_main_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->used = 0;
     */

    conf->memory = NGX_CONF_UNSET_SIZE;

    return conf;
}


static char *
ngx_stream_quic_preread_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_stream_quic_preread_main_conf_t *prcf = conf;

    ngx_conf_init_size_value(prcf->memory, 8 * 1024 * 1024);

    return NGX_CONF_OK;
}


static void *
ngx_stream_quic_preread_create_srv_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_preread_srv_conf_t  *conf;

    conf = ngx_palloc(cf->pool, sizeof(ngx_stream_quic_preread_srv_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->enabled = NGX_CONF_UNSET;
    conf->timeout = NGX_CONF_UNSET_MSEC;

    return conf;
}


static char *
ngx_stream_quic_preread_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child)
{
    ngx_stream_quic_preread_srv_conf_t *prev = parent;
    ngx_stream_quic_preread_srv_conf_t *conf = child;

    ngx_stream_core_srv_conf_t           *cscf;
    ngx_stream_quic_preread_main_conf_t  *prcf;

    cscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_core_module);

    if (conf->enabled == 1
        && cscf->handler != ngx_stream_quic_pt_session_handler)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_preread on\" needs \"quic_passthrough\" in the "
                      "same server, in %s:%ui", cscf->file_name, cscf->line);
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_value(conf->enabled, prev->enabled, 0);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 3000);

    if (conf->timeout == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_preread_timeout\" must not be 0");
        return NGX_CONF_ERROR;
    }

    if (conf->enabled) {
        prcf = ngx_stream_conf_get_module_main_conf(cf,
                                              ngx_stream_quic_preread_module);
        prcf->used = 1;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_preread_init(ngx_conf_t *cf)
{
    ngx_uint_t                            i, n;
    ngx_stream_handler_pt                *h;
    ngx_stream_conf_port_t               *port;
    ngx_stream_conf_addr_t               *addr;
    ngx_stream_core_main_conf_t          *cmcf;
    ngx_stream_quic_preread_main_conf_t  *prcf;

    prcf = ngx_stream_conf_get_module_main_conf(cf,
                                              ngx_stream_quic_preread_module);

    if (!prcf->used) {
        return NGX_OK;
    }

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    if (cmcf->ports) {
        port = cmcf->ports->elts;

        for (i = 0; i < cmcf->ports->nelts; i++) {
            addr = port[i].addrs.elts;

            for (n = 0; n < port[i].addrs.nelts; n++) {
                if (ngx_stream_quic_preread_check_addr(cf, &addr[n])
                    != NGX_OK)
                {
                    return NGX_ERROR;
                }
            }
        }
    }

    h = ngx_array_push(&cmcf->phases[NGX_STREAM_PREREAD_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_stream_quic_preread_handler;

    return NGX_OK;
}


/* nobody would read for a virtual server what its default one does not read */

static ngx_int_t
ngx_stream_quic_preread_check_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                           i;
    ngx_stream_core_srv_conf_t         **cscfp;
    ngx_stream_quic_preread_srv_conf_t  *conf;

    conf = ngx_stream_get_module_srv_conf(addr->default_server->ctx,
                                          ngx_stream_quic_preread_module);

    if (conf->enabled) {
        return NGX_OK;
    }

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        conf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                              ngx_stream_quic_preread_module);

        if (!conf->enabled) {
            continue;
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_preread on\" must be in the default server of "
                      "listen %V, too, server in %s:%ui",
                      &addr->opt.addr_text, cscfp[i]->file_name,
                      cscfp[i]->line);
        return NGX_ERROR;
    }

    return NGX_OK;
}
