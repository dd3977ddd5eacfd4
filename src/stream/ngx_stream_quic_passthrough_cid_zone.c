
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_passthrough_cid_zone": the directive, and the memory of the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>


/* ms; servers seldom keep a silent connection for longer */

#define NGX_STREAM_QUIC_PT_CID_TIMEOUT  300000

/* IDs for each prefix; the least zone has some 250 IDs */

#define NGX_STREAM_QUIC_PT_CID_PREFIXES  16


static ngx_int_t ngx_stream_quic_pt_cid_parse_zone(ngx_conf_t *cf,
    ngx_str_t *value, ngx_str_t *name, ssize_t *size);
static ngx_int_t ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static size_t ngx_stream_quic_pt_cid_size(size_t n);


static const ngx_str_t  ngx_stream_quic_pt_cid_tag =
    ngx_string("quic_passthrough_cid_zone");


char *
ngx_stream_quic_pt_cid_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ssize_t                     size;
    ngx_str_t                  *value, name, s;
    ngx_uint_t                  i;
    ngx_shm_zone_t             *zone;
    ngx_stream_quic_pt_cids_t  *cids;

    if (pscf->cids != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        pscf->cids = NULL;
        return NGX_CONF_OK;
    }

    cids = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_cids_t));
    if (cids == NULL) {
        return NGX_CONF_ERROR;
    }

    cids->timeout = NGX_STREAM_QUIC_PT_CID_TIMEOUT;

    ngx_str_null(&name);
    size = 0;

    for (i = 1; i < cf->args->nelts; i++) {

        if (name.len == 0 && ngx_strncmp(value[i].data, "zone=", 5) == 0) {

            if (ngx_stream_quic_pt_cid_parse_zone(cf, &value[i], &name, &size)
                != NGX_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_strncmp(value[i].data, "timeout=", 8) == 0) {

            s.data = value[i].data + 8;
            s.len = value[i].len - 8;

            cids->timeout = ngx_parse_time(&s, 0);

            if (cids->timeout != (ngx_msec_t) NGX_ERROR
                && cids->timeout != 0)
            {
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" of \"%V\", it must be "
                           "\"zone=name[:size]\" or \"timeout=time\"",
                           &value[i], &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (name.len == 0) {
        return "must have the \"zone\" parameter";
    }

    /* without a size it is a zone that is declared elsewhere */

    zone = ngx_shared_memory_add(cf, &name, size,
                                 (void *) &ngx_stream_quic_pt_cid_tag);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    zone->init = ngx_stream_quic_pt_cid_init_zone;
    zone->data = zone;

    cids->zone = zone;
    pscf->cids = cids;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_pt_cid_parse_zone(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *name, ssize_t *size)
{
    u_char     *p, *last;
    ngx_str_t   s;

    name->data = value->data + 5;
    last = value->data + value->len;

    p = ngx_strlchr(name->data, last, ':');

    name->len = (p ? p : last) - name->data;

    if (name->len == 0) {
        goto invalid;
    }

    if (p == NULL) {
        return NGX_OK;
    }

    s.data = p + 1;
    s.len = last - s.data;

    *size = ngx_parse_size(&s);

    if (*size == NGX_ERROR) {
        goto invalid;
    }

    if (*size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" in \"quic_passthrough_cid_zone\" is "
                           "too small, it must have at least %ui octets",
                           name, 8 * ngx_pagesize);
        return NGX_ERROR;
    }

    return NGX_OK;

invalid:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" of "
                       "\"quic_passthrough_cid_zone\", it must be "
                       "\"zone=name[:size]\"", value);

    return NGX_ERROR;
}


/* as many entries as the zone has room for: nothing is allocated later */

static ngx_int_t
ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    u_char                        *memory;
    size_t                         n, room;
    ngx_slab_pool_t               *shpool;
    quic_lb_hash_key_t             key;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    /* shpool->data stays what it is over a reload */

    if (data || shm_zone->shm.exists) {
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    sh = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_pt_cids_sh_t));
    if (sh == NULL) {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) &key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "RAND_bytes() failed");
        return NGX_ERROR;
    }

    room = shpool->pfree * ngx_pagesize;
    n = room / sizeof(quic_lb_learned_entry_t);

    while (ngx_stream_quic_pt_cid_size(n) > room) {
        n--;
    }

    memory = ngx_slab_calloc(shpool, ngx_stream_quic_pt_cid_size(n));
    if (memory == NULL) {
        return NGX_ERROR;
    }

    quic_lb_learned_init(&sh->ids, memory, n, &key);

    quic_lb_learned_init(&sh->prefixes, memory + quic_lb_learned_size(n),
                         n / NGX_STREAM_QUIC_PT_CID_PREFIXES, &key);

    shpool->data = sh;

    return NGX_OK;
}


static size_t
ngx_stream_quic_pt_cid_size(size_t n)
{
    return quic_lb_learned_size(n)
           + quic_lb_learned_size(n / NGX_STREAM_QUIC_PT_CID_PREFIXES);
}
