
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The directives of the relay's TLS toward the upstream, which is verified
 * always: there is no switch for that.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_relay_module.h"


static void *ngx_stream_quic_relay_create_main_conf(ngx_conf_t *cf);
static void *ngx_stream_quic_relay_create_srv_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_relay_merge_srv_conf(ngx_conf_t *cf,
    void *parent, void *child);
static char *ngx_stream_quic_relay_ssl_verify_depth(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_stream_quic_relay_set_ssl(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf);


#define NGX_STREAM_QUIC_RELAY_DEPTH  100      /* certificates, at most */


static ngx_command_t  ngx_stream_quic_relay_commands[] = {

    { ngx_string("quic_relay_ssl_trusted_certificate"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_trusted_certificate),
      NULL },

    { ngx_string("quic_relay_ssl_crl"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_crl),
      NULL },

    { ngx_string("quic_relay_ssl_verify_depth"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_relay_ssl_verify_depth,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_quic_relay_module_ctx = {
    NULL,                                  /* preconfiguration */
    NULL,                                  /* postconfiguration */

    ngx_stream_quic_relay_create_main_conf, /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_stream_quic_relay_create_srv_conf, /* create server configuration */
    ngx_stream_quic_relay_merge_srv_conf   /* merge server configuration */
};


ngx_module_t  ngx_stream_quic_relay_module = {
    NGX_MODULE_V1,
    &ngx_stream_quic_relay_module_ctx,     /* module context */
    ngx_stream_quic_relay_commands,        /* module directives */
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
ngx_stream_quic_relay_create_main_conf(ngx_conf_t *cf)
{
    /*
     * set by ngx_pcalloc():
     *
     *     rmcf->worker = NULL;
     *     rmcf->used = 0;
     */

    return ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_relay_main_conf_t));
}


static void *
ngx_stream_quic_relay_create_srv_conf(ngx_conf_t *cf)
{
    ngx_stream_quic_relay_srv_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_relay_srv_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->ssl_trusted_certificate = { 0, NULL };
     *     conf->ssl_crl = { 0, NULL };
     *     conf->ssl.ctx = NULL;
     */

    conf->ssl_verify_depth = NGX_CONF_UNSET_UINT;

    return conf;
}


static char *
ngx_stream_quic_relay_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child)
{
    ngx_stream_quic_relay_srv_conf_t  *prev = parent;
    ngx_stream_quic_relay_srv_conf_t  *conf = child;

    ngx_conf_merge_str_value(conf->ssl_trusted_certificate,
                             prev->ssl_trusted_certificate, "");
    ngx_conf_merge_str_value(conf->ssl_crl, prev->ssl_crl, "");
    ngx_conf_merge_uint_value(conf->ssl_verify_depth,
                              prev->ssl_verify_depth, 1);

    return ngx_stream_quic_relay_set_ssl(cf, conf);
}


static char *
ngx_stream_quic_relay_set_ssl(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf)
{
    ngx_pool_cleanup_t  *cln;

    if (conf->ssl_trusted_certificate.len == 0) {

        if (conf->ssl_crl.len) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"quic_relay_ssl_crl\" \"%V\" needs "
                               "\"quic_relay_ssl_trusted_certificate\"",
                               &conf->ssl_crl);
            return NGX_CONF_ERROR;
        }

        return NGX_CONF_OK;
    }

    conf->ssl.log = cf->log;

    /* RFC 9001, 4.2: TLS 1.3 or newer */

    if (ngx_ssl_create(&conf->ssl, NGX_SSL_TLSv1_3, NULL) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        ngx_ssl_cleanup_ctx(&conf->ssl);
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = &conf->ssl;

    if (ngx_ssl_trusted_certificate(cf, &conf->ssl,
                                    &conf->ssl_trusted_certificate,
                                    conf->ssl_verify_depth)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (ngx_ssl_crl(cf, &conf->ssl, &conf->ssl_crl) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_stream_quic_relay_ssl_verify_depth(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_int_t   depth;
    ngx_str_t  *value;

    if (rscf->ssl_verify_depth != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    depth = ngx_atoi(value[1].data, value[1].len);

    if (depth < 1 || depth > NGX_STREAM_QUIC_RELAY_DEPTH) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must be 1 to %d, not \"%V\"",
                           &cmd->name, NGX_STREAM_QUIC_RELAY_DEPTH, &value[1]);
        return NGX_CONF_ERROR;
    }

    rscf->ssl_verify_depth = depth;

    return NGX_CONF_OK;
}
