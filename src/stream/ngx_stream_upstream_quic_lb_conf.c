
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The "quic_lb" block: reads it, checks what no directive can check alone, sets
 * up the cipher, and compares two blocks that are to decode alike.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_quic_lb_key.h"
#include "ngx_stream_upstream_quic_lb_conf.h"


static ngx_int_t ngx_stream_quic_lb_conf_check(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);
static ngx_int_t ngx_stream_quic_lb_conf_init_cid(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);
static void ngx_stream_quic_lb_conf_cleanup(void *data);


static ngx_conf_enum_t  ngx_stream_quic_lb_conf_unmapped_names[] = {
    { ngx_string("fallback"), NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK },
    { ngx_string("maglev"), NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV },
    { ngx_null_string, 0 }
};


ngx_stream_quic_lb_conf_t *
ngx_stream_quic_lb_conf_parse(ngx_conf_t *cf, ngx_uint_t config_id)
{
    char                       *rv;
    ngx_conf_t                  pcf;
    ngx_stream_conf_ctx_t       ctx;
    ngx_stream_quic_lb_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_lb_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&conf->ids, cf->pool, 4,
                       sizeof(ngx_stream_quic_lb_id_t))
        != NGX_OK)
    {
        return NULL;
    }

    conf->upstream = ngx_stream_conf_get_module_srv_conf(cf,
                                                   ngx_stream_upstream_module);
    conf->config_id = config_id;
    conf->unmapped = NGX_CONF_UNSET_UINT;
    conf->server_id_length = NGX_CONF_UNSET;
    conf->nonce_length = NGX_CONF_UNSET;
    conf->length_self_description = NGX_CONF_UNSET;
    conf->file_name = cf->conf_file->file.name.data;
    conf->line = cf->conf_file->line;

    /*
     * The directives of the block are ordinary commands of the module in a
     * context of their own, where |conf| is the module's configuration.
     */

    ctx = *(ngx_stream_conf_ctx_t *) cf->ctx;

    ctx.srv_conf = ngx_palloc(cf->temp_pool,
                              sizeof(void *) * ngx_stream_max_module);
    if (ctx.srv_conf == NULL) {
        return NULL;
    }

    ngx_memcpy(ctx.srv_conf, ((ngx_stream_conf_ctx_t *) cf->ctx)->srv_conf,
               sizeof(void *) * ngx_stream_max_module);

    ctx.srv_conf[ngx_stream_upstream_quic_lb_module.ctx_index] = conf;

    pcf = *cf;
    cf->ctx = &ctx;
    cf->cmd_type = NGX_STREAM_QUIC_LB_CONF;

    rv = ngx_conf_parse(cf, NULL);

    *cf = pcf;

    if (rv != NGX_CONF_OK) {
        return NULL;
    }

    ngx_conf_init_uint_value(conf->unmapped,
                             NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK);
    ngx_conf_init_value(conf->length_self_description, 0);

    if (ngx_stream_quic_lb_conf_check(cf, conf) != NGX_OK
        || ngx_stream_quic_lb_conf_check_ids(cf, conf) != NGX_OK
        || ngx_stream_quic_lb_conf_init_cid(cf, conf) != NGX_OK)
    {
        return NULL;
    }

    return conf;
}


static ngx_int_t
ngx_stream_quic_lb_conf_check(ngx_conf_t *cf, ngx_stream_quic_lb_conf_t *conf)
{
    ngx_int_t  sum;

    if (conf->server_id_length == NGX_CONF_UNSET) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no \"server_id_length\" in \"quic_lb %ui\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    if (conf->nonce_length == NGX_CONF_UNSET) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no \"nonce_length\" in \"quic_lb %ui\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    sum = conf->server_id_length + conf->nonce_length;

    if (sum > QUIC_LB_PLAINTEXT_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"server_id_length\" %i and \"nonce_length\" %i"
                           " in \"quic_lb %ui\" make %i octets,"
                           " it must be at most %d",
                           conf->server_id_length, conf->nonce_length,
                           conf->config_id, sum, QUIC_LB_PLAINTEXT_MAX);
        return NGX_ERROR;
    }

    if (conf->ids.nelts == 0
        && conf->unmapped == NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_lb %ui\" routes nothing: it must have a"
                           " \"server_id\" or \"unmapped maglev\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_conf_init_cid(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf)
{
    int                  rc;
    u_char              *k, key[QUIC_LB_KEY_LEN];
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_stream_quic_lb_conf_cleanup;
    cln->data = conf;

    k = NULL;

    if (conf->key_file.data) {
        if (ngx_stream_quic_lb_key_read(cf, &conf->key_file, key)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        k = key;
    }

    rc = quic_lb_cid_init(&conf->cid, conf->config_id, conf->server_id_length,
                          conf->nonce_length, k,
                          conf->length_self_description);

    ngx_explicit_memzero(key, QUIC_LB_KEY_LEN);

    if (rc != QUIC_LB_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_lb %ui\" failed to set up its cipher",
                           conf->config_id);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_stream_quic_lb_conf_cleanup(void *data)
{
    ngx_stream_quic_lb_conf_t *conf = data;

    quic_lb_cid_cleanup(&conf->cid);
}


char *
ngx_stream_quic_lb_conf_length(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char *p = conf;

    ngx_int_t              *np;
    ngx_str_t              *value;
    ngx_conf_num_bounds_t  *bounds;

    np = (ngx_int_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;
    bounds = cmd->post;

    *np = ngx_atoi(value[1].data, value[1].len);

    if (*np == NGX_ERROR || *np < bounds->low || *np > bounds->high) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " it must be a number from %i to %i",
                           &value[1], &cmd->name, bounds->low, bounds->high);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_stream_quic_lb_conf_unmapped(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_lb_conf_t *qlcf = conf;

    ngx_str_t        *value;
    ngx_conf_enum_t  *e;

    if (qlcf->unmapped != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = ngx_stream_quic_lb_conf_unmapped_names; e->name.len; e++) {

        if (e->name.len == value[1].len
            && ngx_strncmp(e->name.data, value[1].data, e->name.len) == 0)
        {
            qlcf->unmapped = e->value;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive,"
                       " it must be \"fallback\" or \"maglev\"",
                       &value[1], &cmd->name);

    return NGX_CONF_ERROR;
}


const char *
ngx_stream_quic_lb_conf_differs(ngx_stream_quic_lb_conf_t *one,
    ngx_stream_quic_lb_conf_t *two)
{
    ngx_uint_t  i;
    u_char      id[QUIC_LB_SERVER_ID_MAX], nonce[QUIC_LB_NONCE_MAX],
                cid1[QUIC_LB_CID_MAX], cid2[QUIC_LB_CID_MAX];

    if (one->server_id_length != two->server_id_length) {
        return "server_id_length";
    }

    if (one->nonce_length != two->nonce_length) {
        return "nonce_length";
    }

    if (one->length_self_description != two->length_self_description) {
        return "length_self_description";
    }

    if (one->unmapped != two->unmapped) {
        return "unmapped";
    }

    /*
     * The keys are gone, but not what they do: four connection IDs of at least
     * 40 encrypted bits each, never to be sent, tell two keys apart.
     */

    ngx_memzero(id, QUIC_LB_SERVER_ID_MAX);
    ngx_memzero(nonce, QUIC_LB_NONCE_MAX);

    for (i = 0; i < 4; i++) {
        nonce[0] = (u_char) i;

        if (quic_lb_cid_encode(&one->cid, cid1, 0, id, nonce) != QUIC_LB_OK
            || quic_lb_cid_encode(&two->cid, cid2, 0, id, nonce) != QUIC_LB_OK
            || ngx_memcmp(cid1, cid2, quic_lb_cid_len(&one->cid)) != 0)
        {
            return "key_file";
        }
    }

    return NULL;
}
