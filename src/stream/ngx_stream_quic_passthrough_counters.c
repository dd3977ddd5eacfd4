
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The counters of passthrough: shared by the workers, kept over a reload, read
 * by variables.  Their zone holds the evidence against backends, too.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


typedef struct {
    ngx_atomic_t                   counters[NGX_STREAM_QUIC_PT_COUNTERS];
    ngx_stream_quic_pt_evidence_t  evidence[NGX_STREAM_QUIC_PT_EVIDENCE];
} ngx_stream_quic_pt_shared_t;


static ngx_int_t ngx_stream_quic_pt_counters_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_pt_counters_init_zone(
    ngx_shm_zone_t *shm_zone, void *data);


/* in the order of ngx_stream_quic_pt_counter_e */

static ngx_str_t  ngx_stream_quic_pt_counters[] = {
    ngx_string("quic_passthrough_received"),
    ngx_string("quic_passthrough_sent"),
    ngx_string("quic_passthrough_replies"),
    ngx_string("quic_passthrough_flows"),
    ngx_string("quic_passthrough_evicted"),
    ngx_string("quic_passthrough_learned"),
    ngx_string("quic_passthrough_retry_sent"),
    ngx_string("quic_passthrough_retry_accepted"),
    ngx_string("quic_passthrough_retry_refused"),
    ngx_string("quic_passthrough_retry_dropped"),
    ngx_string("quic_passthrough_malformed"),
    ngx_string("quic_passthrough_unroutable"),
    ngx_string("quic_passthrough_refused"),
    ngx_string("quic_passthrough_overload"),
    ngx_string("quic_passthrough_no_backend"),
    ngx_string("quic_passthrough_send_failed"),
    ngx_string("quic_passthrough_too_big"),
    ngx_string("quic_passthrough_overflow"),
    ngx_string("quic_passthrough_hellos"),
    ngx_string("quic_passthrough_unread"),
    ngx_string("quic_passthrough_unknown_id")
};


ngx_int_t
ngx_stream_quic_pt_counters_add_variables(ngx_conf_t *cf)
{
    ngx_uint_t              i;
    ngx_stream_variable_t  *var;

    for (i = 0; i < NGX_STREAM_QUIC_PT_COUNTERS; i++) {
        var = ngx_stream_add_variable(cf, &ngx_stream_quic_pt_counters[i],
                                      NGX_STREAM_VAR_NOCACHEABLE);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = ngx_stream_quic_pt_counters_variable;
        var->data = i;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_counters_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                          *p;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_get_module_main_conf(s,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf->counters == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, NGX_ATOMIC_T_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(p, "%uA", pmcf->counters[data]) - p;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_pt_counters_init(ngx_conf_t *cf)
{
    size_t                           size;
    ngx_str_t                        name;
    ngx_shm_zone_t                  *zone;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    ngx_str_set(&name, "quic_passthrough");

    /* and the least that a zone may have */

    size = ngx_align(sizeof(ngx_stream_quic_pt_shared_t), ngx_pagesize)
           + 8 * ngx_pagesize;

    zone = ngx_shared_memory_add(cf, &name, size,
                                 &ngx_stream_quic_passthrough_module);
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->init = ngx_stream_quic_pt_counters_init_zone;
    zone->data = pmcf;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_counters_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_stream_quic_pt_main_conf_t *old = data;

    ngx_slab_pool_t                 *shpool;
    ngx_stream_quic_pt_shared_t     *shared;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = shm_zone->data;

    if (old) {
        pmcf->counters = old->counters;
        pmcf->evidence = old->evidence;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        shared = shpool->data;

    } else {
        shared = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_pt_shared_t));
    }

    if (shared == NULL) {
        return NGX_ERROR;
    }

    shpool->data = shared;

    pmcf->counters = shared->counters;
    pmcf->evidence = shared->evidence;

    return NGX_OK;
}
