
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_lb" and "quic_maglev": the directives, those inside "quic_lb" too, and
 * what an upstream needs once all its lines are known.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


static ngx_int_t ngx_stream_upstream_init_quic_lb(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);
static ngx_int_t ngx_stream_upstream_quic_lb_check_unix(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);

static ngx_int_t ngx_stream_upstream_quic_lb_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_stream_upstream_quic_lb_postconfiguration(ngx_conf_t *cf);
static void *ngx_stream_upstream_quic_lb_create_conf(ngx_conf_t *cf);
static void ngx_stream_upstream_quic_lb_set_balancer(ngx_conf_t *cf);
static char *ngx_stream_upstream_quic_maglev(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_stream_upstream_quic_lb(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_conf_num_bounds_t  ngx_stream_upstream_quic_lb_server_id_bounds = {
    NULL, QUIC_LB_SERVER_ID_MIN, QUIC_LB_SERVER_ID_MAX
};


static ngx_conf_num_bounds_t  ngx_stream_upstream_quic_lb_nonce_bounds = {
    NULL, QUIC_LB_NONCE_MIN, QUIC_LB_NONCE_MAX
};


static ngx_command_t  ngx_stream_upstream_quic_lb_commands[] = {

    { ngx_string("quic_maglev"),
      NGX_STREAM_UPS_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_stream_upstream_quic_maglev,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_lb"),
      NGX_STREAM_UPS_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_stream_upstream_quic_lb,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("server_id_length"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_length,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, server_id_length),
      &ngx_stream_upstream_quic_lb_server_id_bounds },

    { ngx_string("nonce_length"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_length,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, nonce_length),
      &ngx_stream_upstream_quic_lb_nonce_bounds },

    { ngx_string("key_file"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, key_file),
      NULL },

    { ngx_string("server_id"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE2,
      ngx_stream_quic_lb_conf_server_id,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("unmapped"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_unmapped,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("length_self_description"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, length_self_description),
      NULL },

    { ngx_string("quic_health_check"),
      NGX_STREAM_UPS_CONF|NGX_CONF_ANY,
      ngx_stream_quic_lb_health_check,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_upstream_quic_lb_module_ctx = {
    ngx_stream_upstream_quic_lb_preconfiguration,  /* preconfiguration */
    ngx_stream_upstream_quic_lb_postconfiguration,  /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_stream_upstream_quic_lb_create_conf,  /* create server configuration */
    NULL                                   /* merge server configuration */
};


ngx_module_t  ngx_stream_upstream_quic_lb_module = {
    NGX_MODULE_V1,
    &ngx_stream_upstream_quic_lb_module_ctx,  /* module context */
    ngx_stream_upstream_quic_lb_commands,  /* module directives */
    NGX_STREAM_MODULE,                     /* module type */
    NULL,                                  /* init master */
    ngx_stream_quic_lb_health_init_module,  /* init module */
    ngx_stream_quic_lb_health_init_process,  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_stream_quic_lb_health_exit_process,  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_stream_upstream_init_quic_lb(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_stream_quic_lb_conf_t               *configs[
                                               2 * NGX_STREAM_QUIC_LB_CONFIGS];
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (ngx_stream_upstream_init_round_robin(cf, us) != NGX_OK) {
        return NGX_ERROR;
    }

    us->peer.init = ngx_stream_upstream_quic_lb_init_peer;

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);

    ngx_conf_init_uint_value(qcf->size, QUIC_LB_MAGLEV_SIZE);

    if (ngx_stream_upstream_quic_lb_check_unix(cf, us) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_lb_conf_retire(cf, us, qcf->configs, qcf->retired)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(configs, qcf->configs, sizeof(qcf->configs));
    ngx_memcpy(configs + NGX_STREAM_QUIC_LB_CONFIGS, qcf->retired,
               sizeof(qcf->retired));

    if (ngx_stream_quic_lb_conf_init_servers(cf, us, configs,
                                             2 * NGX_STREAM_QUIC_LB_CONFIGS,
                                             &qcf->peers.servers)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    qcf->peers.size = qcf->size;

    if (ngx_stream_upstream_quic_lb_peers_init(cf, &qcf->peers, us)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_stream_quic_lb_router_add(cf, &qcf->router, us);
}


static ngx_int_t
ngx_stream_upstream_quic_lb_check_unix(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

        if (server[i].naddrs
            && server[i].addrs[0].sockaddr->sa_family == AF_UNIX)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "invalid address \"%V\" in \"server\" directive,"
                          " it must not be a UNIX domain socket in upstream"
                          " \"%V\" with \"quic_lb\" or \"quic_maglev\""
                          " in %s:%ui",
                          &server[i].name, &us->host, us->file_name, us->line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_lb_balances(ngx_stream_upstream_srv_conf_t *uscf)
{
    return uscf->peer.init_upstream == ngx_stream_upstream_init_quic_lb;
}


ngx_uint_t
ngx_stream_quic_lb_asked(ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (uscf == NULL || !ngx_stream_quic_lb_balances(uscf)) {
        return 0;
    }

    qcf = ngx_stream_conf_upstream_srv_conf(uscf,
                                           ngx_stream_upstream_quic_lb_module);

    return qcf->health && qcf->health->port == 0;
}


static ngx_int_t
ngx_stream_upstream_quic_lb_preconfiguration(ngx_conf_t *cf)
{
    if (ngx_stream_quic_lb_add_variables(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_lb_health_add_variables(cf);
}


/* a "quic_lb" block that another balancer has replaced would be ignored */

static ngx_int_t
ngx_stream_upstream_quic_lb_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                               i, n;
    ngx_stream_upstream_srv_conf_t         **uscfp;
    ngx_stream_upstream_main_conf_t         *umcf;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    umcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_upstream_module);

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        qcf = ngx_stream_conf_upstream_srv_conf(uscfp[i],
                                           ngx_stream_upstream_quic_lb_module);

        if (qcf->health
            && ngx_stream_quic_lb_health_init(cf, qcf->health) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (ngx_stream_quic_lb_balances(uscfp[i])) {

            if (ngx_stream_quic_lb_check_servers(cf, uscfp[i]) != NGX_OK) {
                return NGX_ERROR;
            }

            continue;
        }

        for (n = 0; n <= QUIC_LB_CONFIG_MAX; n++) {

            if (qcf->configs[n]) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "\"quic_lb %ui\" in upstream \"%V\" must not be"
                              " followed by another load balancing method"
                              " in %s:%ui",
                              n, &uscfp[i]->host,
                              qcf->configs[n]->file_name,
                              qcf->configs[n]->line);
                return NGX_ERROR;
            }
        }
    }

    return ngx_stream_quic_lb_health_check_variables(cf);
}


static void *
ngx_stream_upstream_quic_lb_create_conf(ngx_conf_t *cf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool,
                       sizeof(ngx_stream_upstream_quic_lb_srv_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->size = NGX_CONF_UNSET_UINT;

    return conf;
}


static void
ngx_stream_upstream_quic_lb_set_balancer(ngx_conf_t *cf)
{
    ngx_stream_upstream_srv_conf_t  *uscf;

    uscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_upstream_module);

    if (uscf->peer.init_upstream && !ngx_stream_quic_lb_balances(uscf)) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "load balancing method redefined");
    }

    /* uscf->flags already allow all that "server" may have */

    uscf->peer.init_upstream = ngx_stream_upstream_init_quic_lb;
}


static char *
ngx_stream_upstream_quic_maglev(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf = conf;

    ngx_int_t   size;
    ngx_str_t  *value;

    if (qcf->size != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    ngx_stream_upstream_quic_lb_set_balancer(cf);

    if (cf->args->nelts == 1) {
        qcf->size = QUIC_LB_MAGLEV_SIZE;
        return NGX_CONF_OK;
    }

    value = cf->args->elts;

    if (ngx_strncmp(value[1].data, "size=", 5) != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive,"
                           " it must be \"size=number\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    size = ngx_atoi(value[1].data + 5, value[1].len - 5);

    if (size == NGX_ERROR
        || size > QUIC_LB_MAGLEV_SIZE_MAX
        || !quic_lb_maglev_is_prime((uint32_t) size))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " the size must be a prime number of at most %d",
                           &value[1], &cmd->name, QUIC_LB_MAGLEV_SIZE_MAX);
        return NGX_CONF_ERROR;
    }

    qcf->size = size;

    return NGX_CONF_OK;
}


static char *
ngx_stream_upstream_quic_lb(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n > QUIC_LB_CONFIG_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " the codepoint must be a number from 0 to %d",
                           &value[1], &cmd->name, QUIC_LB_CONFIG_MAX);
        return NGX_CONF_ERROR;
    }

    if (qcf->configs[n]) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate \"%V %i\", an upstream must have one"
                           " block for each codepoint", &cmd->name, n);
        return NGX_CONF_ERROR;
    }

    ngx_stream_upstream_quic_lb_set_balancer(cf);

    qcf->configs[n] = ngx_stream_quic_lb_conf_parse(cf, n);

    return qcf->configs[n] ? NGX_CONF_OK : NGX_CONF_ERROR;
}
