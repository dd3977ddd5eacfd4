
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_passthrough_retry", and the keys that its tokens are made with.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_key.h"
#include "ngx_stream_quic_passthrough_module.h"


/* octets of a key file: what is worth to be called a key, and a bound */

#define NGX_STREAM_QUIC_PT_RETRY_KEY_MIN  16
#define NGX_STREAM_QUIC_PT_RETRY_KEY_MAX  65536


static ngx_int_t ngx_stream_quic_pt_retry_parameter(
    ngx_stream_quic_pt_srv_conf_t *pscf, ngx_str_t *value);
static ngx_int_t ngx_stream_quic_pt_retry_read_key(ngx_conf_t *cf,
    ngx_stream_quic_pt_retry_key_t *key);
static void ngx_stream_quic_pt_retry_erase(void *data);
static ngx_uint_t ngx_stream_quic_pt_retry_same(
    ngx_stream_quic_pt_srv_conf_t *one, ngx_stream_quic_pt_srv_conf_t *two);
static ngx_stream_quic_pt_retry_t *ngx_stream_quic_pt_retry_create(
    ngx_conf_t *cf, ngx_stream_quic_pt_router_t *router,
    ngx_stream_quic_pt_srv_conf_t *pscf);
static void ngx_stream_quic_pt_retry_cleanup(void *data);


static ngx_conf_enum_t  ngx_stream_quic_pt_retry_modes[] = {
    { ngx_string("off"), NGX_STREAM_QUIC_PT_RETRY_OFF },
    { ngx_string("on"), NGX_STREAM_QUIC_PT_RETRY_ON },
    { ngx_string("adaptive"), NGX_STREAM_QUIC_PT_RETRY_ADAPTIVE },
    { ngx_null_string, 0 }
};


char *
ngx_stream_quic_passthrough_retry(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_conf_enum_t  *e;

    if (pscf->retry_mode != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = ngx_stream_quic_pt_retry_modes; e->name.len; e++) {
        if (e->name.len == value[1].len
            && ngx_strncmp(e->name.data, value[1].data, e->name.len) == 0)
        {
            break;
        }
    }

    if (e->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive, it must "
                           "be \"off\", \"on\" or \"adaptive\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    pscf->retry_mode = e->value;
    pscf->retry_threshold = 0;
    pscf->retry_v2 = 0;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_stream_quic_pt_retry_parameter(pscf, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\" directive, "
                               "it must be \"v2\" or, with \"adaptive\", "
                               "\"threshold=number\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* each once, "threshold=" only with "adaptive" */

static ngx_int_t
ngx_stream_quic_pt_retry_parameter(ngx_stream_quic_pt_srv_conf_t *pscf,
    ngx_str_t *value)
{
    ngx_int_t  n;

    if (value->len == 2 && ngx_strncmp(value->data, "v2", 2) == 0
        && !pscf->retry_v2)
    {
        pscf->retry_v2 = 1;
        return NGX_OK;
    }

    if (ngx_strncmp(value->data, "threshold=", 10) != 0
        || pscf->retry_mode != NGX_STREAM_QUIC_PT_RETRY_ADAPTIVE
        || pscf->retry_threshold)
    {
        return NGX_ERROR;
    }

    n = ngx_atoi(value->data + 10, value->len - 10);

    if (n == NGX_ERROR || n == 0) {
        return NGX_ERROR;
    }

    pscf->retry_threshold = n;

    return NGX_OK;
}


char *
ngx_stream_quic_passthrough_retry_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ngx_str_t                        *value;
    ngx_pool_cleanup_t               *cln;
    ngx_stream_quic_pt_retry_key_t   *key, **keyp;

    if (pscf->retry_keys == NGX_CONF_UNSET_PTR) {
        pscf->retry_keys = ngx_array_create(cf->pool,
                                    NGX_STREAM_QUIC_PT_RETRY_KEYS,
                                    sizeof(ngx_stream_quic_pt_retry_key_t *));
        if (pscf->retry_keys == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (pscf->retry_keys->nelts == NGX_STREAM_QUIC_PT_RETRY_KEYS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "there must be at most %d \"%V\" directives",
                           NGX_STREAM_QUIC_PT_RETRY_KEYS, &cmd->name);
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    key = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_retry_key_t));
    if (key == NULL) {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_stream_quic_pt_retry_erase;
    cln->data = key;

    key->file = value[1];

    if (ngx_stream_quic_pt_retry_read_key(cf, key) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    keyp = ngx_array_push(pscf->retry_keys);
    if (keyp == NULL) {
        return NGX_CONF_ERROR;
    }

    *keyp = key;

    return NGX_CONF_OK;
}


static void
ngx_stream_quic_pt_retry_erase(void *data)
{
    ngx_stream_quic_pt_retry_key_t *key = data;

    ngx_explicit_memzero(&key->keys, sizeof(quic_lb_retry_keys_t));
}


/* all octets of the file are the key, as for "quic_host_key" */

static ngx_int_t
ngx_stream_quic_pt_retry_read_key(ngx_conf_t *cf,
    ngx_stream_quic_pt_retry_key_t *key)
{
    size_t      size;
    u_char     *secret;
    ngx_int_t   n, rc;

    /* one more, to know of a longer one */

    size = NGX_STREAM_QUIC_PT_RETRY_KEY_MAX + 1;

    secret = ngx_alloc(size, cf->log);
    if (secret == NULL) {
        return NGX_ERROR;
    }

    n = ngx_stream_quic_lb_key_file(cf, "quic_passthrough_retry_key",
                                    &key->file, secret, size);
    rc = NGX_ERROR;

    if (n == NGX_ERROR) {
        goto done;
    }

    if (n < NGX_STREAM_QUIC_PT_RETRY_KEY_MIN
        || n > NGX_STREAM_QUIC_PT_RETRY_KEY_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_passthrough_retry_key\" \"%V\" must have "
                           "%d to %d octets, it has %s%i", &key->file,
                           NGX_STREAM_QUIC_PT_RETRY_KEY_MIN,
                           NGX_STREAM_QUIC_PT_RETRY_KEY_MAX,
                           (size_t) n == size ? "at least " : "", n);
        goto done;
    }

    if (quic_lb_retry_derive(&key->keys, secret, n) != QUIC_LB_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_passthrough_retry_key\" \"%V\": HMAC() "
                           "failed", &key->file);
        goto done;
    }

    rc = NGX_OK;

done:

    ngx_explicit_memzero(secret, size);
    ngx_free(secret);

    return rc;
}


/* what a token proves must not depend on which server is asked */

ngx_int_t
ngx_stream_quic_pt_retry_init(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_conf_addr_t *addr)
{
    char                           *rule;
    ngx_uint_t                      i;
    ngx_stream_core_srv_conf_t    **cscfp;
    ngx_stream_quic_pt_srv_conf_t  *pscf, *first;

    cscfp = addr->servers.elts;

    first = ngx_stream_get_module_srv_conf(cscfp[0]->ctx,
                                          ngx_stream_quic_passthrough_module);

    for (i = 0; i < addr->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        if (pscf->retry_mode != NGX_STREAM_QUIC_PT_RETRY_OFF
            && pscf->retry_keys == NULL)
        {
            rule = "needs the servers' \"quic_host_key\" in "
                   "\"quic_passthrough_retry_key\"";

        } else if (!ngx_stream_quic_pt_retry_same(first, pscf)) {
            rule = "and its keys must be the same in all servers that share "
                   "a listen address";

        } else {
            continue;
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_passthrough_retry\" %s, listen %V, server in "
                      "%s:%ui", rule, &addr->opt.addr_text,
                      cscfp[i]->file_name, cscfp[i]->line);

        return NGX_ERROR;
    }

    /* with "off" there may still be tokens that have been handed out */

    if (first->retry_keys) {
        router->retry = ngx_stream_quic_pt_retry_create(cf, router, first);
        if (router->retry == NULL) {
            return NGX_ERROR;
        }

        router->retry->addr_text = addr->opt.addr_text;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_pt_retry_same(ngx_stream_quic_pt_srv_conf_t *one,
    ngx_stream_quic_pt_srv_conf_t *two)
{
    ngx_uint_t                        i;
    ngx_stream_quic_pt_retry_key_t  **a, **b;

    if (one->retry_mode != two->retry_mode
        || one->retry_threshold != two->retry_threshold
        || one->retry_v2 != two->retry_v2)
    {
        return 0;
    }

    if (one->retry_keys == two->retry_keys) {
        return 1;
    }

    if (one->retry_keys == NULL || two->retry_keys == NULL
        || one->retry_keys->nelts != two->retry_keys->nelts)
    {
        return 0;
    }

    a = one->retry_keys->elts;
    b = two->retry_keys->elts;

    for (i = 0; i < one->retry_keys->nelts; i++) {
        if (ngx_memcmp(&a[i]->keys, &b[i]->keys, sizeof(quic_lb_retry_keys_t))
            != 0)
        {
            return 0;
        }
    }

    return 1;
}


static ngx_stream_quic_pt_retry_t *
ngx_stream_quic_pt_retry_create(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_quic_pt_srv_conf_t *pscf)
{
    ngx_uint_t                   i;
    ngx_pool_cleanup_t          *cln;
    ngx_stream_quic_pt_retry_t  *retry;

    retry = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_retry_t));
    if (retry == NULL) {
        return NULL;
    }

    retry->scratch = ngx_palloc(cf->pool, NGX_STREAM_QUIC_PT_BUFFER);
    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (retry->scratch == NULL || cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_stream_quic_pt_retry_cleanup;
    cln->data = retry;

    if (quic_lb_retry_init(&retry->ctx) != QUIC_LB_OK) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_passthrough_retry\": the cryptographic library "
                      "failed");
        return NULL;
    }

    retry->mode = pscf->retry_mode;
    retry->threshold = pscf->retry_threshold;
    retry->v2 = pscf->retry_v2;
    retry->keys = pscf->retry_keys;

    /* connection IDs with these go by Maglev, as those of clients do */

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {
        if (router->router.configs[i] == NULL) {
            retry->codepoints[retry->ncodepoints++] = (u_char) i;
        }
    }

    return retry;
}


static void
ngx_stream_quic_pt_retry_cleanup(void *data)
{
    ngx_stream_quic_pt_retry_t *retry = data;

    /* one process goes on with the next configuration */

    if (retry->event.timer_set) {
        ngx_del_timer(&retry->event);
    }

    quic_lb_retry_cleanup(&retry->ctx);
}
