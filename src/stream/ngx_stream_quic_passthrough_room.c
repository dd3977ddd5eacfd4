
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Room for flows and legs: connections and open files.  Half-open flows are the
 * first to go.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* a flow takes a connection for its session and one for its first leg */

#define NGX_STREAM_QUIC_PT_CONNECTIONS  2


static ngx_uint_t ngx_stream_quic_pt_room_free(
    ngx_stream_quic_pt_worker_t *worker, ngx_uint_t n);
static ngx_int_t ngx_stream_quic_pt_room_evict(
    ngx_stream_quic_pt_worker_t *worker);


/*
 * Makes room for one more flow.  ngx_get_connection() would log an alert for
 * each datagram, so the last connections are left to others.
 */

ngx_int_t
ngx_stream_quic_pt_room_for_flow(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_uint_t                  i;
    ngx_queue_t                *q;
    ngx_stream_quic_pt_flow_t  *flow;

    /* two refusals for each new flow: the old ones do not pile up */

    for (i = 0; i < 2 && !ngx_queue_empty(&worker->refused); i++) {
        q = ngx_queue_head(&worker->refused);
        flow = ngx_queue_data(q, ngx_stream_quic_pt_flow_t, queue);

        if (worker->flows.count < worker->flows.limit
            && ngx_current_msec - flow->started < NGX_STREAM_QUIC_PT_REFUSED)
        {
            break;
        }

        ngx_stream_quic_pt_flow_free(flow);
    }

    while (worker->nhalf_open >= worker->half_open_limit
           || !ngx_stream_quic_pt_room_free(worker,
                                            NGX_STREAM_QUIC_PT_CONNECTIONS))
    {
        if (ngx_stream_quic_pt_room_evict(worker) != NGX_OK) {
            ngx_stream_quic_pt_room_complain(worker);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* half-open flows also make room for another leg of one that is not */

ngx_int_t
ngx_stream_quic_pt_room_for_leg(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;

    while (!ngx_stream_quic_pt_room_free(worker, 1)) {

        if (flow->half_open
            || ngx_stream_quic_pt_room_evict(worker) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_pt_room_free(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t n)
{
    return ngx_cycle->free_connection_n >= worker->reserve + n
           && worker->nlegs < worker->leg_limit;
}


static ngx_int_t
ngx_stream_quic_pt_room_evict(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_queue_t                *q;
    ngx_stream_quic_pt_flow_t  *flow;

    if (ngx_queue_empty(&worker->half_open)) {
        return NGX_DECLINED;
    }

    flow = ngx_stream_quic_pt_source_heavy(worker);

    if (flow == NULL) {
        q = ngx_queue_head(&worker->half_open);
        flow = ngx_queue_data(q, ngx_stream_quic_pt_flow_t, queue);
    }

    ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_EVICTED, 1);
    ngx_stream_quic_pt_flow_close(flow, NGX_STREAM_SERVICE_UNAVAILABLE);

    return NGX_OK;
}


void
ngx_stream_quic_pt_room_complain(ngx_stream_quic_pt_worker_t *worker)
{
    if (worker->no_room == ngx_time()) {
        return;
    }

    worker->no_room = ngx_time();

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "no connections or open files left for QUIC flows, "
                  "increase worker_connections and worker_rlimit_nofile");
}
