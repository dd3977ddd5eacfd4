
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The directives of passthrough.  What they demand of the servers around them
 * is in _addr.c.
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
static char *ngx_stream_quic_pt_set_buffer(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static void ngx_stream_quic_pt_unhook(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_pt_init_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);
static void ngx_stream_quic_pt_unused(ngx_conf_t *cf,
    ngx_stream_quic_pt_srv_conf_t *conf);
static ngx_int_t ngx_stream_quic_pt_init(ngx_conf_t *cf);


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
      ngx_stream_quic_pt_set_buffer,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_pt_srv_conf_t, rcvbuf),
      &ngx_stream_quic_pt_socket_buffer },

    { ngx_string("quic_passthrough_socket_sndbuf"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_pt_set_buffer,
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

    { ngx_string("quic_passthrough_address_rate"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE12,
      ngx_stream_quic_pt_rate,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
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
    ngx_stream_quic_pt_ports_init_module,  /* init module */
    ngx_stream_quic_pt_ports_init_process, /* init process */
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
     *     pmcf->ports = NULL;
     *     pmcf->worker = NULL;
     *     pmcf->used = 0;
     */

    return ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_main_conf_t));
}


static void *
ngx_stream_quic_pt_create_srv_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    ngx_stream_quic_pt_unhook(cf);

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
    pscf->address_rate = NGX_CONF_UNSET;
    pscf->address_burst = NGX_CONF_UNSET;
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

    ngx_stream_quic_pt_unused(cf, conf);

    ngx_conf_merge_ptr_value(conf->cids, prev->cids, NULL);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 60000);

    conf->default_rcvbuf = (conf->rcvbuf == NGX_CONF_UNSET_SIZE
                            && prev->rcvbuf == NGX_CONF_UNSET_SIZE);

    ngx_conf_merge_size_value(conf->rcvbuf, prev->rcvbuf,
                              NGX_STREAM_QUIC_PT_RCVBUF);
    ngx_conf_merge_size_value(conf->sndbuf, prev->sndbuf, 0);

    ngx_conf_merge_ptr_value(conf->bind, prev->bind, NULL);

    ngx_conf_merge_value(conf->address_flows, prev->address_flows, 0);

    if (conf->address_rate == NGX_CONF_UNSET) {
        conf->address_burst = prev->address_burst;
    }

    ngx_conf_merge_value(conf->address_rate, prev->address_rate, 0);

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

    if (pscf->upstream->srv_conf == NULL
        && pscf->upstream->port == 0
        && pscf->upstream->peer.init_upstream == NULL)
    {
        pscf->upstream->peer.init_upstream = ngx_stream_quic_pt_init_upstream;
    }

    return NGX_CONF_OK;
}


/* the "upstream" has come after all, and may have any balancer */

static void
ngx_stream_quic_pt_unhook(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    /* the "stream" block itself: there are no upstreams yet */

    if (cf->module_type != NGX_STREAM_MODULE) {
        return;
    }

    umcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if ((uscfp[i]->flags & NGX_STREAM_UPSTREAM_CREATE)
            && uscfp[i]->peer.init_upstream == ngx_stream_quic_pt_init_upstream)
        {
            uscfp[i]->peer.init_upstream = NULL;
        }
    }
}


/* nginx would say "no port" alone of a name that is mistyped */

static ngx_int_t
ngx_stream_quic_pt_init_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_str_t  names;

    if (ngx_stream_quic_lb_target_names(cf, &names) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "no port in upstream \"%V\", and no \"upstream\" block has "
                  "this name (%V) in %s:%ui",
                  &us->host, &names, us->file_name, us->line);

    return NGX_ERROR;
}


/* what is set in a server that has no use for it */

static void
ngx_stream_quic_pt_unused(ngx_conf_t *cf, ngx_stream_quic_pt_srv_conf_t *conf)
{
    char                        *name;
    ngx_stream_core_srv_conf_t  *cscf;

    cscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_core_module);

    if (cscf->handler == ngx_stream_quic_pt_session_handler) {
        return;
    }

    if (conf->cids != NGX_CONF_UNSET_PTR) {
        name = "cid_zone";

    } else if (conf->timeout != NGX_CONF_UNSET_MSEC) {
        name = "timeout";

    } else if (conf->rcvbuf != NGX_CONF_UNSET_SIZE) {
        name = "socket_rcvbuf";

    } else if (conf->sndbuf != NGX_CONF_UNSET_SIZE) {
        name = "socket_sndbuf";

    } else if (conf->bind != NGX_CONF_UNSET_PTR) {
        name = "bind";

    } else if (conf->address_flows != NGX_CONF_UNSET) {
        name = "address_flows";

    } else if (conf->address_rate != NGX_CONF_UNSET) {
        name = "address_rate";

    } else if (conf->retry_mode != NGX_CONF_UNSET_UINT) {
        name = "retry";

    } else if (conf->retry_keys != NGX_CONF_UNSET_PTR) {
        name = "retry_key";

    } else {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"quic_passthrough_%s\" has no effect without "
                  "\"quic_passthrough\" in the same server in %s:%ui",
                  name, cscf->file_name, cscf->line);
}


/* "off": the system's */

static char *
ngx_stream_quic_pt_set_buffer(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    size_t     *size;
    ngx_str_t  *value;

    size = (size_t *) (p + cmd->offset);
    value = cf->args->elts;

    if (*size == NGX_CONF_UNSET_SIZE
        && ngx_strcmp(value[1].data, "off") == 0)
    {
        *size = 0;
        return NGX_CONF_OK;
    }

    return ngx_conf_set_size_slot(cf, cmd, conf);
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
            if (ngx_stream_quic_pt_addr_init_port(cf, &port[i]) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    if (ngx_stream_quic_pt_check_servers(cf) != NGX_OK
        || ngx_stream_quic_pt_session_init(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_pt_rate_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_counters_init(cf);
}
