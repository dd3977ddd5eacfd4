
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * HTTP/3 limits: directives and the life of the module.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


/* a body must get on by more than a QUIC packet at a time */

#define NGX_HTTP_H3_LIMITS_MIN_WINDOW  4096


static void *ngx_http_h3_limits_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_h3_limits_create_srv_conf(ngx_conf_t *cf);
static char *ngx_http_h3_limits_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child);
static void *ngx_http_h3_limits_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_h3_limits_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_h3_limits_set_max_requests(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_h3_limits_set_body_window(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_h3_limits_set_max_body_size(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_h3_limits_invalid(ngx_conf_t *cf, const char *rule);
static ngx_int_t ngx_http_h3_limits_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_h3_limits_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_h3_limits_init_process(ngx_cycle_t *cycle);


static ngx_command_t  ngx_http_h3_limits_commands[] = {

    { ngx_string("http3_max_requests"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_CONF_TAKE1,
      ngx_http_h3_limits_set_max_requests,
      NGX_HTTP_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("http3_body_window"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_h3_limits_set_body_window,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("http3_max_body_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_h3_limits_set_max_body_size,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_h3_limits_module_ctx = {
    ngx_http_h3_limits_add_variables,      /* preconfiguration */
    ngx_http_h3_limits_init,               /* postconfiguration */

    ngx_http_h3_limits_create_main_conf,   /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_http_h3_limits_create_srv_conf,    /* create server configuration */
    ngx_http_h3_limits_merge_srv_conf,     /* merge server configuration */

    ngx_http_h3_limits_create_loc_conf,    /* create location configuration */
    ngx_http_h3_limits_merge_loc_conf      /* merge location configuration */
};


ngx_module_t  ngx_http_v3_limits_module = {
    NGX_MODULE_V1,
    &ngx_http_h3_limits_module_ctx,        /* module context */
    ngx_http_h3_limits_commands,           /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_h3_limits_init_module,        /* init module */
    ngx_http_h3_limits_init_process,       /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_http_h3_limits_create_main_conf(ngx_conf_t *cf)
{
    /*
     * set by ngx_pcalloc():
     *
     *     hmcf->shared = NULL;
     *     hmcf->share = NULL;
     *     hmcf->limit_requests = 0;
     *     hmcf->upstreams = { NULL };
     *     hmcf->unknown_is_data = 0;
     */

    return ngx_pcalloc(cf->pool, sizeof(ngx_http_h3_limits_main_conf_t));
}


static void *
ngx_http_h3_limits_create_srv_conf(ngx_conf_t *cf)
{
    ngx_http_h3_limits_srv_conf_t  *hscf;

    hscf = ngx_palloc(cf->pool, sizeof(ngx_http_h3_limits_srv_conf_t));
    if (hscf == NULL) {
        return NULL;
    }

    hscf->max_requests = NGX_CONF_UNSET_UINT;

    return hscf;
}


static char *
ngx_http_h3_limits_merge_srv_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_h3_limits_srv_conf_t *prev = parent;
    ngx_http_h3_limits_srv_conf_t *conf = child;

    ngx_conf_merge_uint_value(conf->max_requests, prev->max_requests, 1000);

    return NGX_CONF_OK;
}


static void *
ngx_http_h3_limits_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    hlcf = ngx_palloc(cf->pool, sizeof(ngx_http_h3_limits_loc_conf_t));
    if (hlcf == NULL) {
        return NULL;
    }

    hlcf->body_window = NGX_CONF_UNSET_SIZE;
    hlcf->max_body_size = NGX_CONF_UNSET;

    return hlcf;
}


static char *
ngx_http_h3_limits_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_h3_limits_loc_conf_t *prev = parent;
    ngx_http_h3_limits_loc_conf_t *conf = child;

    ngx_conf_merge_size_value(conf->body_window, prev->body_window,
                              64 * 1024);
    ngx_conf_merge_off_value(conf->max_body_size, prev->max_body_size,
                             64 * 1024 * 1024);

    return NGX_CONF_OK;
}


static char *
ngx_http_h3_limits_set_max_requests(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_h3_limits_srv_conf_t *hscf = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    if (hscf->max_requests != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);
    if (n == NGX_ERROR) {
        return ngx_http_h3_limits_invalid(cf, "a number, or 0 for no limit");
    }

    hscf->max_requests = n;

    return NGX_CONF_OK;
}


static char *
ngx_http_h3_limits_set_body_window(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_h3_limits_loc_conf_t *hlcf = conf;

    ssize_t     n;
    ngx_str_t  *value;

    if (hlcf->body_window != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_parse_size(&value[1]);
    if (n == NGX_ERROR || (n != 0 && n < NGX_HTTP_H3_LIMITS_MIN_WINDOW)) {
        return ngx_http_h3_limits_invalid(cf,
                                          "a size of 4k or more, or 0 for no "
                                          "limit");
    }

    hlcf->body_window = n;

    return NGX_CONF_OK;
}


static char *
ngx_http_h3_limits_set_max_body_size(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_h3_limits_loc_conf_t *hlcf = conf;

    off_t       n;
    ngx_str_t  *value;

    if (hlcf->max_body_size != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_parse_offset(&value[1]);
    if (n == NGX_ERROR) {
        return ngx_http_h3_limits_invalid(cf, "a size, or 0 for no limit");
    }

    hlcf->max_body_size = n;

    return NGX_CONF_OK;
}


static char *
ngx_http_h3_limits_invalid(ngx_conf_t *cf, const char *rule)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive, it must be "
                       "%s", &value[1], &value[0], rule);

    return NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_h3_limits_init(ngx_conf_t *cf)
{
    if (ngx_http_h3_limits_counters_init(cf) != NGX_OK
        || ngx_http_h3_limits_requests_init(cf) != NGX_OK
        || ngx_http_h3_limits_codes_init(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_h3_limits_body_init(cf);
}


static ngx_int_t
ngx_http_h3_limits_init_module(ngx_cycle_t *cycle)
{
    ngx_http_h3_limits_requests_init_module(cycle);
    ngx_http_h3_limits_capability_init_module(cycle);

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_init_process(ngx_cycle_t *cycle)
{
    if (ngx_http_h3_limits_capability_init_process(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_h3_limits_counters_init_process(cycle);

    return ngx_http_h3_limits_handover_init_process(cycle);
}
