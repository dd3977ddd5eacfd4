
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Retired configurations.  A "quic_lb" block that a reload has removed or
 * changed may still be that of connections which are alive, so it is kept to
 * decode what can only belong to them, until its codepoint retires another one
 * or nginx is started anew.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


static ngx_stream_upstream_quic_lb_srv_conf_t *
    ngx_stream_quic_lb_retired_find(ngx_cycle_t *cycle, ngx_str_t *host);
static ngx_uint_t ngx_stream_quic_lb_retired_knows(ngx_cycle_t *cycle);
static ngx_stream_quic_lb_conf_t *ngx_stream_quic_lb_retired_choose(
    ngx_stream_quic_lb_conf_t *conf, ngx_stream_quic_lb_conf_t *before,
    ngx_stream_quic_lb_conf_t *retired);
static ngx_stream_quic_lb_conf_t *ngx_stream_quic_lb_retired_copy(
    ngx_conf_t *cf, ngx_stream_upstream_srv_conf_t *us,
    ngx_stream_quic_lb_conf_t *from);
static ngx_int_t ngx_stream_quic_lb_retired_copy_ids(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf, ngx_stream_quic_lb_conf_t *from);
static void ngx_stream_quic_lb_retired_cleanup(void *data);


ngx_int_t
ngx_stream_quic_lb_conf_retire(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_conf_t **configs,
    ngx_stream_quic_lb_conf_t **retired)
{
    ngx_uint_t                               i;
    ngx_stream_quic_lb_conf_t               *from;
    ngx_stream_upstream_quic_lb_srv_conf_t  *before;

    before = ngx_stream_quic_lb_retired_find(cf->cycle->old_cycle, &us->host);

    if (before == NULL) {
        return NGX_OK;
    }

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {

        from = ngx_stream_quic_lb_retired_choose(configs[i],
                                                 before->configs[i],
                                                 before->retired[i]);
        if (from == NULL) {
            continue;
        }

        retired[i] = ngx_stream_quic_lb_retired_copy(cf, us, from);
        if (retired[i] == NULL) {
            return NGX_ERROR;
        }

        ngx_log_error(NGX_LOG_INFO, cf->log, 0,
                      "\"quic_lb %ui\" of upstream \"%V\" as it was goes on"
                      " for connections with its connection IDs",
                      i, &us->host);
    }

    return NGX_OK;
}


/* the configuration of the upstream |host| in |cycle|, or NULL */

static ngx_stream_upstream_quic_lb_srv_conf_t *
ngx_stream_quic_lb_retired_find(ngx_cycle_t *cycle, ngx_str_t *host)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    if (cycle == NULL || !ngx_stream_quic_lb_retired_knows(cycle)) {
        return NULL;
    }

    umcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                 ngx_stream_upstream_module);
    if (umcf == NULL) {
        return NULL;
    }

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf
            && uscfp[i]->host.len == host->len
            && ngx_strncmp(uscfp[i]->host.data, host->data, host->len) == 0)
        {
            return ngx_stream_conf_upstream_srv_conf(uscfp[i],
                                           ngx_stream_upstream_quic_lb_module);
        }
    }

    return NULL;
}


/* another binary of the module may have been loaded since */

static ngx_uint_t
ngx_stream_quic_lb_retired_knows(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    if (cycle->conf_ctx == NULL || cycle->modules == NULL) {
        return 0;
    }

    for (i = 0; cycle->modules[i]; i++) {
        if (cycle->modules[i] == &ngx_stream_upstream_quic_lb_module) {
            return 1;
        }
    }

    return 0;
}


/*
 * Of a codepoint: |conf| is what it is now, or NULL, |before| what it was, and
 * |retired| what had been retired then.
 */

static ngx_stream_quic_lb_conf_t *
ngx_stream_quic_lb_retired_choose(ngx_stream_quic_lb_conf_t *conf,
    ngx_stream_quic_lb_conf_t *before, ngx_stream_quic_lb_conf_t *retired)
{
    if (before
        && (conf == NULL || ngx_stream_quic_lb_conf_differs(conf, before)))
    {
        return before;
    }

    /* it is in use again */

    if (conf && retired
        && ngx_stream_quic_lb_conf_differs(conf, retired) == NULL)
    {
        return NULL;
    }

    return retired;
}


static ngx_stream_quic_lb_conf_t *
ngx_stream_quic_lb_retired_copy(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_conf_t *from)
{
    ngx_pool_cleanup_t         *cln;
    ngx_stream_quic_lb_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_lb_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->upstream = us;
    conf->unmapped = from->unmapped;
    conf->config_id = from->config_id;
    conf->server_id_length = from->server_id_length;
    conf->nonce_length = from->nonce_length;
    conf->length_self_description = from->length_self_description;

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_stream_quic_lb_retired_cleanup;
    cln->data = conf;

    if (quic_lb_cid_copy(&conf->cid, &from->cid) != QUIC_LB_OK) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_lb %ui\" of upstream \"%V\" failed to copy its"
                      " cipher", conf->config_id, &us->host);
        return NULL;
    }

    if (ngx_stream_quic_lb_retired_copy_ids(cf, conf, from) != NGX_OK) {
        return NULL;
    }

    return conf;
}


/* those whose servers are there still */

static ngx_int_t
ngx_stream_quic_lb_retired_copy_ids(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf, ngx_stream_quic_lb_conf_t *from)
{
    ngx_uint_t                i;
    ngx_array_t               names;
    ngx_stream_quic_lb_id_t  *id, *ids;

    if (ngx_stream_quic_lb_conf_names(cf, conf->upstream, &names) != NGX_OK
        || ngx_array_init(&conf->ids, cf->pool, from->ids.nelts + 1,
                          sizeof(ngx_stream_quic_lb_id_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ids = from->ids.elts;

    for (i = 0; i < from->ids.nelts; i++) {

        if (!ngx_stream_quic_lb_conf_has_name(&names, &ids[i].server->name)
            && !ngx_stream_quic_lb_conf_resolves(conf->upstream))
        {
            continue;
        }

        id = ngx_array_push(&conf->ids);
        if (id == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(id, sizeof(ngx_stream_quic_lb_id_t));
        ngx_memcpy(id->id, ids[i].id, QUIC_LB_SERVER_ID_MAX);

        /* the address, not the text that named it then */

        id->address.len = ids[i].server->name.len;
        id->address.data = ngx_pstrdup(cf->pool, &ids[i].server->name);

        if (id->address.data == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static void
ngx_stream_quic_lb_retired_cleanup(void *data)
{
    ngx_stream_quic_lb_conf_t *conf = data;

    quic_lb_cid_cleanup(&conf->cid);
}
