
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What a worker has: its tables, its limits, and the memory of a batch.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>


static ngx_stream_quic_pt_batch_t *ngx_stream_quic_pt_worker_batch(
    ngx_cycle_t *cycle);
static ngx_int_t ngx_stream_quic_pt_worker_table(ngx_cycle_t *cycle,
    quic_lb_table_t *table, size_t limit);


ngx_int_t
ngx_stream_quic_pt_worker_init(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_main_conf_t *pmcf)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = ngx_pcalloc(cycle->pool, sizeof(ngx_stream_quic_pt_worker_t));
    if (worker == NULL) {
        return NGX_ERROR;
    }

    worker->cycle = cycle;
    worker->log = cycle->log;
    worker->counters = pmcf->counters;
    worker->ports = pmcf->ports;
    worker->evidence = pmcf->evidence;

    worker->batch = ngx_stream_quic_pt_worker_batch(cycle);
    if (worker->batch == NULL) {
        return NGX_ERROR;
    }

    /* a refused flow takes no connection, so there may be more flows */

    if (ngx_stream_quic_pt_worker_table(cycle, &worker->flows,
                                        2 * cycle->connection_n)
        != NGX_OK
        || ngx_stream_quic_pt_worker_table(cycle, &worker->sources,
                                           cycle->connection_n)
           != NGX_OK
        || ngx_stream_quic_pt_worker_table(cycle, &worker->backends,
                                           cycle->connection_n)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) &worker->key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    /*
     * A flow takes two connections, so half of all may be in half-open flows.
     * Flows leave some to all else that the worker does.
     */

    worker->half_open_limit = ngx_stream_quic_pt_half_open_limit(cycle);
    worker->reserve = cycle->connection_n / 16;

    worker->leg_limit = cycle->connection_n;
    worker->conns_limit = 8 * cycle->connection_n;

    /* without open files each leg makes an alert */

    worker->quiet = *cycle->log;
    worker->quiet.log_level = NGX_LOG_EMERG;

    ngx_stream_quic_pt_budget_init(&worker->queued,
                                   NGX_STREAM_QUIC_PT_QUEUED_ALL);

    ngx_stream_quic_pt_room_init(worker);

    ngx_queue_init(&worker->listeners);
    ngx_queue_init(&worker->pending);

    if (ngx_stream_quic_lb_successor_init(&worker->successor, cycle) != NGX_OK
        || ngx_stream_quic_preread_init_process(cycle, worker) != NGX_OK)
    {
        return NGX_ERROR;
    }

    pmcf->worker = worker;

    return NGX_OK;
}


static ngx_stream_quic_pt_batch_t *
ngx_stream_quic_pt_worker_batch(ngx_cycle_t *cycle)
{
    u_char                      *p;
    ngx_uint_t                   i;
    ngx_stream_quic_pt_batch_t  *batch;

    batch = ngx_palloc(cycle->pool, sizeof(ngx_stream_quic_pt_batch_t));
    if (batch == NULL) {
        return NULL;
    }

    ngx_stream_quic_pt_batch_reset(batch);

    p = ngx_palloc(cycle->pool,
                   NGX_STREAM_QUIC_PT_MESSAGES * NGX_STREAM_QUIC_PT_BUFFER);
    if (p == NULL) {
        return NULL;
    }

    for (i = 0; i < NGX_STREAM_QUIC_PT_MESSAGES; i++) {
        batch->messages[i].data = p;
        p += NGX_STREAM_QUIC_PT_BUFFER;
    }

    return batch;
}


static ngx_int_t
ngx_stream_quic_pt_worker_table(ngx_cycle_t *cycle, quic_lb_table_t *table,
    size_t limit)
{
    quic_lb_table_node_t  **buckets;

    buckets = ngx_pcalloc(cycle->pool,
                          quic_lb_table_buckets(limit)
                          * sizeof(quic_lb_table_node_t *));
    if (buckets == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(table, buckets, limit);

    return NGX_OK;
}


/* |fd| is the lowest that was free: as many files, or nearly, are in use */

void
ngx_stream_quic_pt_worker_limit_legs(ngx_stream_quic_pt_worker_t *worker,
    ngx_socket_t fd)
{
    ngx_uint_t     n;
    struct rlimit  rlmt;

    if (getrlimit(RLIMIT_NOFILE, &rlmt) == -1
        || rlmt.rlim_cur == RLIM_INFINITY)
    {
        return;
    }

    n = rlmt.rlim_cur - rlmt.rlim_cur / 16;
    n = (n > (ngx_uint_t) fd) ? n - fd : 1;

    worker->leg_limit = ngx_min(worker->leg_limit, n);
}
