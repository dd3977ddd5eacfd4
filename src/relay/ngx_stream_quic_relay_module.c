
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The directives of the relay, and what they demand.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_relay_module.h"

#include <ngx_stream_ssl_module.h>


static void *ngx_stream_quic_relay_create_main_conf(ngx_conf_t *cf);
static void *ngx_stream_quic_relay_create_srv_conf(ngx_conf_t *cf);
static char *ngx_stream_quic_relay_merge_srv_conf(ngx_conf_t *cf,
    void *parent, void *child);
static char *ngx_stream_quic_relay(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_stream_quic_relay_set_target(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf, ngx_str_t *value);
static char *ngx_stream_quic_relay_range(ngx_conf_t *cf, void *post,
    void *data);
static ngx_int_t ngx_stream_quic_relay_init(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_relay_init_address(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);
static ngx_int_t ngx_stream_quic_relay_init_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf);
static char *ngx_stream_quic_relay_ssl_verify_depth(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_stream_quic_relay_set_ssl(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf);
static ngx_int_t ngx_stream_quic_relay_set_certificate(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf);


#define NGX_STREAM_QUIC_RELAY_DEPTH  100      /* certificates, at most */


/* what a value may be; the name is for the message */

typedef struct {
    ngx_conf_post_handler_pt         handler;
    const char                      *name;
    uint64_t                         min;
    uint64_t                         max;
} ngx_stream_quic_relay_range_t;


/* below 16k a round trip carries too little, above 1024m it is no bound */

static ngx_stream_quic_relay_range_t  ngx_stream_quic_relay_window_range = {
    ngx_stream_quic_relay_range, "quic_relay_stream_window",
    16 * 1024, 1024 * 1024 * 1024
};

static ngx_stream_quic_relay_range_t  ngx_stream_quic_relay_streams_range = {
    ngx_stream_quic_relay_range, "quic_relay_max_streams", 1, 65536
};

static ngx_stream_quic_relay_range_t  ngx_stream_quic_relay_queue_range = {
    ngx_stream_quic_relay_range, "quic_relay_datagram_queue", 1, 65536
};

static ngx_stream_quic_relay_range_t  ngx_stream_quic_relay_timeout_range = {
    ngx_stream_quic_relay_range, "quic_relay_timeout", 1000, 86400000
};

static ngx_stream_quic_relay_range_t  ngx_stream_quic_relay_connect_range = {
    ngx_stream_quic_relay_range, "quic_relay_connect_timeout", 100, 3600000
};


static ngx_command_t  ngx_stream_quic_relay_commands[] = {

    { ngx_string("quic_relay"),
      NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_relay,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_stream_window"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, stream_window),
      &ngx_stream_quic_relay_window_range },

    { ngx_string("quic_relay_max_streams"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, max_streams),
      &ngx_stream_quic_relay_streams_range },

    { ngx_string("quic_relay_datagram_queue"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, datagram_queue),
      &ngx_stream_quic_relay_queue_range },

    { ngx_string("quic_relay_timeout"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, timeout),
      &ngx_stream_quic_relay_timeout_range },

    { ngx_string("quic_relay_connect_timeout"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, connect_timeout),
      &ngx_stream_quic_relay_connect_range },

    { ngx_string("quic_relay_ssl_name"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_set_complex_value_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_name),
      NULL },

    { ngx_string("quic_relay_ssl_certificate"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_certificate),
      NULL },

    { ngx_string("quic_relay_ssl_certificate_key"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_certificate_key),
      NULL },

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

    { ngx_string("quic_relay_ssl_session_reuse"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_relay_srv_conf_t, ssl_session_reuse),
      NULL },

    { ngx_string("quic_relay_ssl_verify_depth"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_relay_ssl_verify_depth,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_preferred_address"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE12,
      ngx_stream_quic_relay_preferred_address,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_retry"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE12,
      ngx_stream_quic_relay_retry,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_retry_key"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_relay_token_key,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_server_id"),
      NGX_STREAM_MAIN_CONF|NGX_STREAM_SRV_CONF|NGX_CONF_1MORE,
      ngx_stream_quic_relay_ids_server_id,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_relay_host_key"),
      NGX_STREAM_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_relay_ids_host_key,
      NGX_STREAM_MAIN_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_quic_relay_module_ctx = {
    ngx_stream_quic_relay_add_variables,   /* preconfiguration */
    ngx_stream_quic_relay_init,            /* postconfiguration */

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
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    rmcf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_relay_main_conf_t));
    if (rmcf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     rmcf->worker = NULL;
     *     rmcf->shared = NULL;
     *     rmcf->server_name = 0;
     *     rmcf->has_host_key = 0;
     *     rmcf->used = 0;
     */

    if (ngx_array_init(&rmcf->ids, cf->pool, 4,
                       sizeof(ngx_stream_quic_relay_ids_t *))
        != NGX_OK)
    {
        return NULL;
    }

    return rmcf;
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
     *     conf->upstream = NULL;
     *     conf->upstream_value = NULL;
     *     conf->core = NULL;
     *     conf->ssl_certificate = { 0, NULL };
     *     conf->ssl_certificate_key = { 0, NULL };
     *     conf->ssl_trusted_certificate = { 0, NULL };
     *     conf->ssl_crl = { 0, NULL };
     *     conf->ssl.ctx = NULL;
     *     conf->tickets = NULL;
     *     conf->preferred4 = NULL;
     *     conf->preferred6 = NULL;
     *     conf->named = 0;
     */

    conf->ssl_name = NGX_CONF_UNSET_PTR;
    conf->ssl_verify_depth = NGX_CONF_UNSET_UINT;
    conf->ssl_session_reuse = NGX_CONF_UNSET;
    conf->stream_window = NGX_CONF_UNSET_SIZE;
    conf->max_streams = NGX_CONF_UNSET_UINT;
    conf->datagram_queue = NGX_CONF_UNSET_UINT;
    conf->timeout = NGX_CONF_UNSET_MSEC;
    conf->connect_timeout = NGX_CONF_UNSET_MSEC;
    conf->retry.mode = NGX_CONF_UNSET_UINT;
    conf->retry_keys = NGX_CONF_UNSET_PTR;
    conf->ids = NGX_CONF_UNSET_PTR;

    return conf;
}


static char *
ngx_stream_quic_relay_merge_srv_conf(ngx_conf_t *cf, void *parent,
    void *child)
{
    ngx_stream_quic_relay_srv_conf_t  *prev = parent;
    ngx_stream_quic_relay_srv_conf_t  *conf = child;

    ngx_conf_merge_str_value(conf->ssl_certificate, prev->ssl_certificate, "");
    ngx_conf_merge_str_value(conf->ssl_certificate_key,
                             prev->ssl_certificate_key, "");
    ngx_conf_merge_str_value(conf->ssl_trusted_certificate,
                             prev->ssl_trusted_certificate, "");
    ngx_conf_merge_str_value(conf->ssl_crl, prev->ssl_crl, "");
    ngx_conf_merge_uint_value(conf->ssl_verify_depth,
                              prev->ssl_verify_depth, 1);
    ngx_conf_merge_value(conf->ssl_session_reuse, prev->ssl_session_reuse, 1);
    ngx_conf_merge_size_value(conf->stream_window, prev->stream_window,
                              256 * 1024);
    ngx_conf_merge_uint_value(conf->max_streams, prev->max_streams, 256);
    ngx_conf_merge_uint_value(conf->datagram_queue, prev->datagram_queue,
                              1024);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 60000);
    ngx_conf_merge_msec_value(conf->connect_timeout, prev->connect_timeout,
                              10000);

    if (conf->retry.mode == NGX_CONF_UNSET_UINT) {
        conf->retry.threshold = prev->retry.threshold;
    }

    ngx_conf_merge_uint_value(conf->retry.mode, prev->retry.mode,
                              NGX_STREAM_QUIC_RELAY_RETRY_OFF);
    ngx_conf_merge_ptr_value(conf->retry_keys, prev->retry_keys, NULL);

    if (conf->preferred4 == NULL && conf->preferred6 == NULL) {
        conf->preferred4 = prev->preferred4;
        conf->preferred6 = prev->preferred6;
    }

    ngx_conf_merge_ptr_value(conf->ids, prev->ids, NULL);

    ngx_conf_merge_ptr_value(conf->ssl_name, prev->ssl_name, NULL);

    if (conf->upstream_value || (conf->ssl_name && conf->ssl_name->lengths)) {
        conf->named = 1;
    }

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

        if (conf->core) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"quic_relay\" to \"%V\" needs "
                               "\"quic_relay_ssl_trusted_certificate\": "
                               "upstreams are always verified",
                               conf->upstream ? &conf->upstream->host
                                              : &conf->upstream_value->value);
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

    if (ngx_stream_quic_relay_set_certificate(cf, conf) != NGX_OK
        || ngx_ssl_crl(cf, &conf->ssl, &conf->ssl_crl) != NGX_OK
        || ngx_stream_quic_relay_tls_init_upstream(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (conf->core
        && conf->ssl_session_reuse
        && ngx_stream_quic_relay_tickets_init(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* what an upstream that asks for one is shown */

static ngx_int_t
ngx_stream_quic_relay_set_certificate(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf)
{
    if (conf->ssl_certificate.len == 0) {

        if (conf->ssl_certificate_key.len) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"quic_relay_ssl_certificate_key\" \"%V\" "
                               "needs \"quic_relay_ssl_certificate\"",
                               &conf->ssl_certificate_key);
            return NGX_ERROR;
        }

        return NGX_OK;
    }

    if (conf->ssl_certificate_key.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_relay_ssl_certificate\" \"%V\" needs "
                           "\"quic_relay_ssl_certificate_key\"",
                           &conf->ssl_certificate);
        return NGX_ERROR;
    }

    return ngx_ssl_certificate(cf, &conf->ssl, &conf->ssl_certificate,
                               &conf->ssl_certificate_key, NULL);
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


static char *
ngx_stream_quic_relay(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_str_t                          *value;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    static ngx_str_t  server_name = ngx_string("ssl_server_name");

    if (rscf->core) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_stream_quic_relay_set_target(cf, rscf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    rscf->core = ngx_stream_conf_get_module_srv_conf(cf,
                                                     ngx_stream_core_module);
    rscf->core->handler = ngx_stream_quic_relay_session_handler;

    rmcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_quic_relay_module);
    rmcf->used = 1;
    rmcf->server_name = ngx_stream_get_variable_index(cf, &server_name);

    if (rmcf->server_name == NGX_ERROR
        || ngx_stream_quic_relay_ids_add_zone(cf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_relay_set_target(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf, ngx_str_t *value)
{
    ngx_url_t                            u;
    ngx_stream_complex_value_t           cv;
    ngx_stream_compile_complex_value_t   ccv;

    ngx_memzero(&ccv, sizeof(ngx_stream_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = value;
    ccv.complex_value = &cv;

    if (ngx_stream_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    if (cv.lengths) {
        conf->upstream_value = ngx_palloc(cf->pool,
                                          sizeof(ngx_stream_complex_value_t));
        if (conf->upstream_value == NULL) {
            return NGX_ERROR;
        }

        *conf->upstream_value = cv;

        return NGX_OK;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = *value;
    u.no_resolve = 1;

    conf->upstream = ngx_stream_upstream_add(cf, &u, 0);
    if (conf->upstream == NULL) {
        return NGX_ERROR;
    }

    if (u.family == AF_UNIX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_relay\" value \"%V\" is neither an "
                           "upstream nor an address with a port", value);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static char *
ngx_stream_quic_relay_range(ngx_conf_t *cf, void *post, void *data)
{
    ngx_stream_quic_relay_range_t *range = post;

    uint64_t    value;
    ngx_str_t  *args;

    /* all of them are of one size */

    value = *(size_t *) data;

    if (value >= range->min && value <= range->max) {
        return NGX_CONF_OK;
    }

    args = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"%s\" must be %uL to %uL, not \"%V\"",
                       range->name, range->min, range->max, &args[1]);

    return NGX_CONF_ERROR;
}


static ngx_int_t
ngx_stream_quic_relay_init(ngx_conf_t *cf)
{
    ngx_uint_t                          a, p;
    ngx_stream_conf_addr_t             *addr;
    ngx_stream_conf_port_t             *port;
    ngx_stream_core_main_conf_t        *cmcf;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    rmcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_quic_relay_module);
    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    if (!rmcf->used || cmcf->ports == NULL) {
        return NGX_OK;
    }

    port = cmcf->ports->elts;

    for (p = 0; p < cmcf->ports->nelts; p++) {
        addr = port[p].addrs.elts;

        for (a = 0; a < port[p].addrs.nelts; a++) {

            if (ngx_stream_quic_relay_init_address(cf, &addr[a]) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* datagrams cannot be read by two: all servers of an address relay, or none */

static ngx_int_t
ngx_stream_quic_relay_init_address(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                         i, relays;
    ngx_stream_core_srv_conf_t       **cscfp;
    ngx_stream_quic_relay_srv_conf_t  *rscf, *dscf;

    cscfp = addr->servers.elts;
    dscf = addr->default_server->ctx->srv_conf[
                                     ngx_stream_quic_relay_module.ctx_index];
    relays = 0;

    for (i = 0; i < addr->servers.nelts; i++) {
        rscf = cscfp[i]->ctx->srv_conf[ngx_stream_quic_relay_module.ctx_index];

        if (rscf->core == NULL) {
            continue;
        }

        relays++;

        if (addr->opt.type != SOCK_DGRAM) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"quic_relay\" needs \"listen %V udp\" in %s:%ui",
                          &addr->opt.addr_text, cscfp[i]->file_name,
                          cscfp[i]->line);
            return NGX_ERROR;
        }

        /* a connection ID is needed before the name is known */

        if (rscf->ids && rscf->ids != dscf->ids) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"quic_relay_server_id\" in %s:%ui has no effect: "
                          "that of the default server of \"listen %V udp\" "
                          "counts", cscfp[i]->file_name, cscfp[i]->line,
                          &addr->opt.addr_text);
            return NGX_ERROR;
        }

        if (ngx_stream_quic_relay_init_server(cf, cscfp[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (relays && relays != addr->servers.nelts) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "all servers of \"listen %V udp\" need \"quic_relay\", "
                      "or none", &addr->opt.addr_text);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_init_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf)
{
    ngx_stream_ssl_srv_conf_t         *sscf;
    ngx_stream_quic_relay_srv_conf_t  *rscf;

    sscf = cscf->ctx->srv_conf[ngx_stream_ssl_module.ctx_index];
    rscf = cscf->ctx->srv_conf[ngx_stream_quic_relay_module.ctx_index];

    rscf->retry.handshake = sscf->handshake_timeout;

    if (sscf->certificates == NULL || sscf->ssl.ctx == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "no \"ssl_certificate\" is defined for \"quic_relay\" "
                      "in %s:%ui", cscf->file_name, cscf->line);
        return NGX_ERROR;
    }

    /* RFC 9001, 4.2 */

    if (!(sscf->protocols & NGX_SSL_TLSv1_3)) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_relay\" needs \"ssl_protocols\" with "
                      "\"TLSv1.3\" in %s:%ui", cscf->file_name, cscf->line);
        return NGX_ERROR;
    }

    return ngx_stream_quic_relay_tls_init_server(cf, sscf->ssl.ctx);
}
