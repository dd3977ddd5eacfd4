
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The counters of the HTTP/3 limits: shared by the workers, kept over a
 * reload, read by variables.
 *
 * All grow only, but for the octets that bodies hold in memory: a worker that
 * dies takes its octets with it.  So each process counts its own, in a word
 * that nobody else writes, what is read is their sum, and the next process that
 * starts clears those of the dead.  No value is kept twice: a process that is
 * killed between two stores leaves nothing behind that is wrong for good.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


static ngx_int_t ngx_http_h3_limits_counters_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_h3_limits_counters_init_zone(
    ngx_shm_zone_t *shm_zone, void *data);
static ngx_uint_t ngx_http_h3_limits_counters_gone(ngx_pid_t pid);
static void ngx_http_h3_limits_counters_raise(ngx_atomic_t *most,
    ngx_atomic_uint_t value);
static ngx_atomic_uint_t ngx_http_h3_limits_counters_sum(
    ngx_http_h3_limits_shared_t *shared);


/* in the order of ngx_http_h3_limits_counter_e */

static ngx_str_t  ngx_http_h3_limits_counters[] = {
    ngx_string("http3_limits_recycled"),
    ngx_string("http3_limits_goaways"),
    ngx_string("http3_limits_deferred"),
    ngx_string("http3_limits_rejected"),
    ngx_string("http3_limits_paused"),
    ngx_string("http3_limits_too_large"),
    ngx_string("http3_limits_cut"),
    ngx_string("http3_limits_in_flight"),
    ngx_string("http3_limits_peak")
};


ngx_int_t
ngx_http_h3_limits_counters_add_variables(ngx_conf_t *cf)
{
    ngx_uint_t            i;
    ngx_http_variable_t  *var;

    for (i = 0; i < NGX_HTTP_H3_LIMITS_COUNTERS; i++) {
        var = ngx_http_add_variable(cf, &ngx_http_h3_limits_counters[i],
                                    NGX_HTTP_VAR_NOCACHEABLE);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = ngx_http_h3_limits_counters_variable;
        var->data = i;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_counters_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                          *p;
    ngx_atomic_uint_t                value;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_v3_limits_module);

    value = (data == NGX_HTTP_H3_LIMITS_IN_FLIGHT)
            ? ngx_http_h3_limits_counters_sum(hmcf->shared)
            : hmcf->shared->counters[data];

    p = ngx_pnalloc(r->pool, NGX_ATOMIC_T_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(p, "%uA", value) - p;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}


ngx_int_t
ngx_http_h3_limits_counters_init(ngx_conf_t *cf)
{
    size_t                           size;
    ngx_str_t                        name;
    ngx_shm_zone_t                  *zone;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_v3_limits_module);

    ngx_str_set(&name, "http3_limits");

    /* the slab needs pages of its own; there are at least 8 */

    size = ngx_align(sizeof(ngx_http_h3_limits_shared_t), ngx_pagesize)
           + 8 * ngx_pagesize;

    zone = ngx_shared_memory_add(cf, &name, size, &ngx_http_v3_limits_module);
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->init = ngx_http_h3_limits_counters_init_zone;
    zone->data = hmcf;

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_counters_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_h3_limits_main_conf_t *old = data;

    ngx_slab_pool_t                 *shpool;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = shm_zone->data;

    if (old) {
        hmcf->shared = old->shared;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        hmcf->shared = shpool->data;
        return NGX_OK;
    }

    hmcf->shared = ngx_slab_calloc(shpool,
                                   sizeof(ngx_http_h3_limits_shared_t));
    if (hmcf->shared == NULL) {
        return NGX_ERROR;
    }

    shpool->data = hmcf->shared;

    return NGX_OK;
}


void
ngx_http_h3_limits_counters_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i;
    ngx_atomic_uint_t                pid;
    ngx_http_h3_limits_share_t      *share;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_v3_limits_module);

    if (hmcf == NULL || hmcf->shared == NULL) {
        return;
    }

    for (i = 0; i < NGX_MAX_PROCESSES; i++) {
        share = &hmcf->shared->shares[i];
        pid = share->pid;

        if (pid == 0 && hmcf->share) {
            continue;
        }

        if (!ngx_http_h3_limits_counters_gone(pid)
            || !ngx_atomic_cmp_set(&share->pid, pid, ngx_pid))
        {
            continue;
        }

        share->in_flight = 0;

        if (hmcf->share == NULL) {
            ngx_http_h3_limits_counters_raise(&hmcf->shared->nshares, i + 1);
            hmcf->share = share;

        } else {
            share->pid = 0;
        }
    }
}


static ngx_uint_t
ngx_http_h3_limits_counters_gone(ngx_pid_t pid)
{
    if (pid == 0 || pid == ngx_pid) {

        /* nobody's, or of a process that had the same ID */

        return 1;
    }

    return kill(pid, 0) == -1 && ngx_errno == NGX_ESRCH;
}


void
ngx_http_h3_limits_count(ngx_http_h3_limits_main_conf_t *hmcf,
    ngx_http_h3_limits_counter_e n)
{
    (void) ngx_atomic_fetch_add(&hmcf->shared->counters[n], 1);
}


void
ngx_http_h3_limits_in_flight(ngx_http_h3_limits_main_conf_t *hmcf,
    ssize_t delta)
{
    /* there are as many as there may be processes */

    if (hmcf->share == NULL) {
        return;
    }

    hmcf->share->in_flight += delta;

    if (delta > 0) {
        ngx_http_h3_limits_counters_raise(
                           &hmcf->shared->counters[NGX_HTTP_H3_LIMITS_PEAK],
                           ngx_http_h3_limits_counters_sum(hmcf->shared));
    }
}


static void
ngx_http_h3_limits_counters_raise(ngx_atomic_t *most, ngx_atomic_uint_t value)
{
    ngx_atomic_uint_t  old;

    for ( ;; ) {
        old = *most;

        if (value <= old || ngx_atomic_cmp_set(most, old, value)) {
            return;
        }
    }
}


static ngx_atomic_uint_t
ngx_http_h3_limits_counters_sum(ngx_http_h3_limits_shared_t *shared)
{
    ngx_uint_t         i;
    ngx_atomic_uint_t  sum;

    sum = 0;

    for (i = 0; i < shared->nshares; i++) {
        sum += shared->shares[i].in_flight;
    }

    return sum;
}
