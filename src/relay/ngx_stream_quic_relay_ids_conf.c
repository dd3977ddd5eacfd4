
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_relay_server_id" and "quic_relay_host_key".
 */


#include "ngx_stream_quic_relay_module.h"
#include "ngx_stream_quic_lb_key.h"
#include "quic_lb_error.h"

#include <openssl/evp.h>


/* octets: what remains of a connection ID beside first octet and slot */
#define NGX_STREAM_QUIC_RELAY_IDS_MAX    (NGX_STREAM_QUIC_RELAY_CID - 3)

/* octets of a file with a host key, as nginx's own */
#define NGX_STREAM_QUIC_RELAY_HOST_KEY_MIN  16
#define NGX_STREAM_QUIC_RELAY_HOST_KEY_MAX  4096


typedef struct {
    ngx_str_t                     config_id;
    ngx_str_t                     id;
    ngx_str_t                     nonce_length;
    ngx_str_t                     key_file;
} ngx_stream_quic_relay_ids_args_t;


typedef struct {
    ngx_str_t                     prefix;
    size_t                        offset;
} ngx_stream_quic_relay_ids_param_t;


static ngx_int_t ngx_stream_quic_relay_ids_args(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_args_t *args);
static ngx_int_t ngx_stream_quic_relay_ids_number(ngx_conf_t *cf,
    const char *name, ngx_str_t *value, ngx_int_t min, ngx_int_t max);
static ngx_int_t ngx_stream_quic_relay_ids_init(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_t *ids, ngx_stream_quic_relay_ids_args_t *args);
static ngx_int_t ngx_stream_quic_relay_ids_key(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_t *ids, u_char *key, size_t id_len,
    size_t nonce_len, ngx_uint_t config_id);
static void ngx_stream_quic_relay_ids_cleanup(void *data);


static ngx_stream_quic_relay_ids_param_t  ngx_stream_quic_relay_ids_params[] = {

    { ngx_string("config_id="),
      offsetof(ngx_stream_quic_relay_ids_args_t, config_id) },

    { ngx_string("id="),
      offsetof(ngx_stream_quic_relay_ids_args_t, id) },

    { ngx_string("nonce_length="),
      offsetof(ngx_stream_quic_relay_ids_args_t, nonce_length) },

    { ngx_string("key_file="),
      offsetof(ngx_stream_quic_relay_ids_args_t, key_file) },

    { ngx_null_string, 0 }
};


char *
ngx_stream_quic_relay_ids_server_id(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_pool_cleanup_t                *cln;
    ngx_stream_quic_relay_ids_t       *ids;
    ngx_stream_quic_relay_ids_args_t   args;

    if (rscf->ids != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ngx_memzero(&args, sizeof(ngx_stream_quic_relay_ids_args_t));

    if (ngx_stream_quic_relay_ids_args(cf, &args) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, sizeof(ngx_stream_quic_relay_ids_t));
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    ids = cln->data;
    ngx_memzero(ids, sizeof(ngx_stream_quic_relay_ids_t));

    cln->handler = ngx_stream_quic_relay_ids_cleanup;

    if (ngx_stream_quic_relay_ids_init(cf, ids, &args) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    rscf->ids = ids;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_relay_ids_args(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_args_t *args)
{
    ngx_str_t                          *value, *arg;
    ngx_uint_t                          i;
    ngx_stream_quic_relay_ids_param_t  *param;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        for (param = ngx_stream_quic_relay_ids_params;
             param->prefix.len;
             param++)
        {
            if (ngx_strncmp(value[i].data, param->prefix.data,
                            param->prefix.len)
                == 0)
            {
                break;
            }
        }

        arg = (ngx_str_t *) ((u_char *) args + param->offset);

        if (param->prefix.len == 0 || arg->data) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "%s parameter \"%V\" in \"%V\" directive",
                               param->prefix.len ? "duplicate" : "invalid",
                               &value[i], &value[0]);
            return NGX_ERROR;
        }

        arg->data = value[i].data + param->prefix.len;
        arg->len = value[i].len - param->prefix.len;
    }

    /* the key file, which comes last, need not be there */

    for (param = ngx_stream_quic_relay_ids_params;
         param[1].prefix.len;
         param++)
    {
        arg = (ngx_str_t *) ((u_char *) args + param->offset);

        if (arg->data == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" must have the parameter \"%V\"",
                               &value[0], &param->prefix);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_ids_number(ngx_conf_t *cf, const char *name,
    ngx_str_t *value, ngx_int_t min, ngx_int_t max)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data, value->len);

    if (n == NGX_ERROR || n < min || n > max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%s\" of \"quic_relay_server_id\" must be "
                           "%i to %i, not \"%V\"", name, min, max, value);
        return NGX_ERROR;
    }

    return n;
}


static ngx_int_t
ngx_stream_quic_relay_ids_init(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_t *ids, ngx_stream_quic_relay_ids_args_t *args)
{
    size_t     len;
    ngx_int_t  config_id, nonce_len, rc;
    u_char     key[QUIC_LB_KEY_LEN];

    config_id = ngx_stream_quic_relay_ids_number(cf, "config_id",
                                                 &args->config_id, 0,
                                                 QUIC_LB_CONFIG_MAX);
    if (config_id == NGX_ERROR) {
        return NGX_ERROR;
    }

    nonce_len = ngx_stream_quic_relay_ids_number(cf, "nonce_length",
                                                 &args->nonce_length,
                                                 QUIC_LB_NONCE_MIN,
                                                 QUIC_LB_NONCE_MAX);
    if (nonce_len == NGX_ERROR) {
        return NGX_ERROR;
    }

    len = args->id.len / 2;

    if (args->id.len % 2
        || len < QUIC_LB_SERVER_ID_MIN
        || len > QUIC_LB_SERVER_ID_MAX
        || ngx_stream_quic_lb_key_hex(ids->server_id, args->id.data, len)
           != NGX_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"id\" of \"quic_relay_server_id\" must be %d to "
                           "%d octets as hexadecimal digits, not \"%V\"",
                           QUIC_LB_SERVER_ID_MIN, QUIC_LB_SERVER_ID_MAX,
                           &args->id);
        return NGX_ERROR;
    }

    if (len + nonce_len > NGX_STREAM_QUIC_RELAY_IDS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"id\" \"%V\" and \"nonce_length\" %i of "
                           "\"quic_relay_server_id\" are more than %d octets "
                           "together: two are needed to tell workers apart",
                           &args->id, nonce_len,
                           NGX_STREAM_QUIC_RELAY_IDS_MAX);
        return NGX_ERROR;
    }

    if (args->key_file.data == NULL) {
        return ngx_stream_quic_relay_ids_key(cf, ids, NULL, len, nonce_len,
                                             config_id);
    }

    if (args->key_file.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"key_file\" of \"quic_relay_server_id\" must "
                           "not be empty");
        return NGX_ERROR;
    }

    if (ngx_stream_quic_lb_key_read(cf, &args->key_file, key) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_stream_quic_relay_ids_key(cf, ids, key, len, nonce_len,
                                       config_id);

    ngx_explicit_memzero(key, sizeof(key));

    return rc;
}


/*
 * The same server ID and key under two codepoints, or in two servers, make the
 * same plaintext: such have their nonces in common.
 */

static ngx_int_t
ngx_stream_quic_relay_ids_key(ngx_conf_t *cf,
    ngx_stream_quic_relay_ids_t *ids, u_char *key, size_t id_len,
    size_t nonce_len, ngx_uint_t config_id)
{
    u_char                             *p;
    ngx_stream_quic_relay_ids_t       **idsp;
    ngx_stream_quic_relay_main_conf_t  *rmcf;
    u_char                              buf[QUIC_LB_KEY_LEN + 1
                                            + QUIC_LB_SERVER_ID_MAX];

    if (quic_lb_cid_init(&ids->lb, config_id, id_len, nonce_len, key, 0)
        != QUIC_LB_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "quic_lb_cid_init() of \"quic_relay_server_id\" "
                           "failed");
        return NGX_ERROR;
    }

    if (key == NULL) {
        return NGX_OK;
    }

    p = ngx_cpymem(buf, key, QUIC_LB_KEY_LEN);
    *p++ = (u_char) nonce_len;
    p = ngx_cpymem(p, ids->server_id, id_len);

    if (EVP_Digest(buf, p - buf, ids->digest, NULL, EVP_sha256(), NULL) != 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "EVP_Digest() failed");
        return NGX_ERROR;
    }

    ngx_explicit_memzero(buf, sizeof(buf));

    rmcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_quic_relay_module);

    idsp = ngx_array_push(&rmcf->ids);
    if (idsp == NULL) {
        return NGX_ERROR;
    }

    *idsp = ids;

    return NGX_OK;
}


static void
ngx_stream_quic_relay_ids_cleanup(void *data)
{
    ngx_stream_quic_relay_ids_t *ids = data;

    quic_lb_cid_cleanup(&ids->lb);
}


char *
ngx_stream_quic_relay_ids_host_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_relay_main_conf_t *rmcf = conf;

    int         rc;
    ngx_int_t   n;
    ngx_str_t  *value;
    u_char      buf[NGX_STREAM_QUIC_RELAY_HOST_KEY_MAX + 1];

    if (rmcf->has_host_key) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_stream_quic_lb_key_file(cf, "quic_relay_host_key", &value[1], buf,
                                    sizeof(buf));
    if (n == NGX_ERROR) {
        return NGX_CONF_ERROR;
    }

    if (n < NGX_STREAM_QUIC_RELAY_HOST_KEY_MIN
        || n > NGX_STREAM_QUIC_RELAY_HOST_KEY_MAX)
    {
        ngx_explicit_memzero(buf, sizeof(buf));
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" \"%V\" must have %d to %d octets",
                           &cmd->name, &value[1],
                           NGX_STREAM_QUIC_RELAY_HOST_KEY_MIN,
                           NGX_STREAM_QUIC_RELAY_HOST_KEY_MAX);
        return NGX_CONF_ERROR;
    }

    rc = EVP_Digest(buf, n, rmcf->host_key, NULL, EVP_sha256(), NULL);

    ngx_explicit_memzero(buf, sizeof(buf));

    if (rc != 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "EVP_Digest() failed");
        return NGX_CONF_ERROR;
    }

    rmcf->has_host_key = 1;

    return NGX_CONF_OK;
}
