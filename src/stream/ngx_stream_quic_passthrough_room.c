
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Room for flows and legs: connections and open files.  Flows make room by
 * their class: foreign ones first, then presumed, half-open and sustained ones;
 * confirmed ones never do.  In a class it is the oldest one of a heavy source,
 * else the oldest of all, or of sustained ones the least recently used.
 *
 * A flow costs some 30 us to make and to end.  So one that would only take the
 * place of another one of its unproven class does so at a limited pace, and
 * otherwise is not made; and what is there has the time for an answer.
 *
 * To "adaptive" a flood is one of half-open and foreign flows, and one of
 * presumed flows that finds no room: those of a reload are no flood.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* a flow takes a connection for its session and one for its first leg */

#define NGX_STREAM_QUIC_PT_CONNECTIONS  2

/* ms in which a class may be replaced as a whole */

#define NGX_STREAM_QUIC_PT_STAY         64

/* flows a ms that may be replaced: a quarter, or a tenth, of a worker's time */

#define NGX_STREAM_QUIC_PT_PACE         8
#define NGX_STREAM_QUIC_PT_PACE_OTHERS  3


static void ngx_stream_quic_pt_room_refused(
    ngx_stream_quic_pt_worker_t *worker);
static ngx_uint_t ngx_stream_quic_pt_room_free(
    ngx_stream_quic_pt_worker_t *worker, ngx_uint_t n);
static ngx_uint_t ngx_stream_quic_pt_room_victim(
    ngx_stream_quic_pt_worker_t *worker, ngx_uint_t class);
static ngx_uint_t ngx_stream_quic_pt_room_first(
    ngx_stream_quic_pt_worker_t *worker, ngx_uint_t end);
static ngx_int_t ngx_stream_quic_pt_room_replace(
    ngx_stream_quic_pt_class_t *class);
static void ngx_stream_quic_pt_room_evict(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t class);
static void ngx_stream_quic_pt_room_roll(ngx_stream_quic_pt_window_t *window);


void
ngx_stream_quic_pt_room_init(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_uint_t                   i, limit;
    ngx_stream_quic_pt_class_t  *class;

    limit = worker->half_open_limit;

    for (i = 0; i < NGX_STREAM_QUIC_PT_CLASSES; i++) {
        class = &worker->classes[i];

        ngx_queue_init(&class->flows);
        ngx_queue_init(&class->heavy);

        class->limit = NGX_MAX_INT_T_VALUE;
        class->share = limit / 8;
        class->pace = NGX_STREAM_QUIC_PT_PACE_OTHERS;
    }

    worker->classes[NGX_STREAM_QUIC_PT_OPENING].limit = limit;
    worker->classes[NGX_STREAM_QUIC_PT_OPENING].pace = NGX_STREAM_QUIC_PT_PACE;

    /* few clients do so, and presumed flows are those of connections */

    class = &worker->classes[NGX_STREAM_QUIC_PT_FOREIGN];

    class->limit = ngx_max(limit / 8, 1);
    class->share = class->limit / 8;
}


/*
 * Makes room for one more flow.  ngx_get_connection() would log an alert for
 * each datagram, so the last connections are left to others.
 */

ngx_int_t
ngx_stream_quic_pt_room_for_flow(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t class)
{
    ngx_uint_t                   victim;
    ngx_stream_quic_pt_class_t  *own;

    ngx_stream_quic_pt_room_refused(worker);

    own = &worker->classes[class];

    ngx_stream_quic_pt_room_roll(&worker->attempts);

    if (class == NGX_STREAM_QUIC_PT_FOREIGN
        || (class == NGX_STREAM_QUIC_PT_PRESUMED
            && !ngx_stream_quic_pt_room_free(worker,
                                             NGX_STREAM_QUIC_PT_CONNECTIONS)))
    {
        worker->attempts.current++;
    }

    while (own->nflows >= own->limit
           || !ngx_stream_quic_pt_room_free(worker,
                                            NGX_STREAM_QUIC_PT_CONNECTIONS))
    {
        victim = (own->nflows >= own->limit) ? class
                             : ngx_stream_quic_pt_room_victim(worker, class);

        if (victim == NGX_STREAM_QUIC_PT_CLASSES) {

            /* foreign flows only have what others leave */

            if (class != NGX_STREAM_QUIC_PT_FOREIGN) {
                ngx_stream_quic_pt_room_complain(worker);
            }

            return NGX_ERROR;
        }

        if (victim == class
            && ngx_stream_quic_pt_room_replace(own) != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_stream_quic_pt_room_evict(worker, victim);
    }

    return NGX_OK;
}


/* two refusals for each new flow: the old ones do not pile up */

static void
ngx_stream_quic_pt_room_refused(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_uint_t                  i;
    ngx_queue_t                *q, *refused;
    ngx_stream_quic_pt_flow_t  *flow;

    refused = &worker->classes[NGX_STREAM_QUIC_PT_GONE].flows;

    for (i = 0; i < 2 && !ngx_queue_empty(refused); i++) {
        q = ngx_queue_head(refused);
        flow = ngx_queue_data(q, ngx_stream_quic_pt_flow_t, queue);

        if (worker->flows.count < worker->flows.limit
            && ngx_current_msec - flow->started < NGX_STREAM_QUIC_PT_REFUSED)
        {
            break;
        }

        ngx_stream_quic_pt_flow_free(flow);
    }
}


/* flows of the classes before its own also make room for another leg */

ngx_int_t
ngx_stream_quic_pt_room_for_leg(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_uint_t                    class;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;

    while (!ngx_stream_quic_pt_room_free(worker, 1)) {
        class = ngx_stream_quic_pt_room_first(worker, flow->class);

        if (class == NGX_STREAM_QUIC_PT_CLASSES) {
            return NGX_ERROR;
        }

        ngx_stream_quic_pt_room_evict(worker, class);
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


/*
 * The class that makes room for a new flow of |class|.  However many sustained
 * flows there are, they leave some to those that begin.
 */

static ngx_uint_t
ngx_stream_quic_pt_room_victim(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t class)
{
    ngx_uint_t                   first;
    ngx_stream_quic_pt_class_t  *opening;

    opening = &worker->classes[NGX_STREAM_QUIC_PT_OPENING];

    if (class != NGX_STREAM_QUIC_PT_OPENING) {
        return ngx_stream_quic_pt_room_first(worker, class + 1);
    }

    first = ngx_stream_quic_pt_room_first(worker, class);

    if (first != NGX_STREAM_QUIC_PT_CLASSES) {
        return first;
    }

    if (opening->nflows <= opening->limit / 8
        && worker->classes[NGX_STREAM_QUIC_PT_SUSTAINED].nflows)
    {
        return NGX_STREAM_QUIC_PT_SUSTAINED;
    }

    return ngx_stream_quic_pt_room_first(worker, class + 1);
}


/* the first class with a flow in it, up to |end| or to the confirmed ones */

static ngx_uint_t
ngx_stream_quic_pt_room_first(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t end)
{
    ngx_uint_t  i;

    end = ngx_min(end, NGX_STREAM_QUIC_PT_CONFIRMED);

    for (i = 0; i < end; i++) {
        if (worker->classes[i].nflows) {
            return i;
        }
    }

    return NGX_STREAM_QUIC_PT_CLASSES;
}


/* NGX_OK if a flow of |class| may take the place of another one now */

static ngx_int_t
ngx_stream_quic_pt_room_replace(ngx_stream_quic_pt_class_t *class)
{
    ngx_msec_t  elapsed;
    ngx_uint_t  n;

    /* STAY flows a ms for each unit of credit */

    n = ngx_min(class->nflows, class->pace * NGX_STREAM_QUIC_PT_STAY);

    elapsed = ngx_min(ngx_current_msec - class->credited,
                      NGX_STREAM_QUIC_PT_STAY);

    class->credited = ngx_current_msec;
    class->credit = ngx_min(class->credit + elapsed * n,
                            n * NGX_STREAM_QUIC_PT_STAY);

    if (class->credit < NGX_STREAM_QUIC_PT_STAY) {
        return NGX_DECLINED;
    }

    class->credit -= NGX_STREAM_QUIC_PT_STAY;

    return NGX_OK;
}


static void
ngx_stream_quic_pt_room_evict(ngx_stream_quic_pt_worker_t *worker,
    ngx_uint_t class)
{
    ngx_queue_t                *q;
    ngx_stream_quic_pt_flow_t  *flow;

    flow = ngx_stream_quic_pt_source_heavy(&worker->classes[class]);

    if (flow == NULL) {
        q = ngx_queue_head(&worker->classes[class].flows);
        flow = ngx_queue_data(q, ngx_stream_quic_pt_flow_t, queue);
    }

    ngx_stream_quic_pt_flow_evict(flow);
}


ngx_uint_t
ngx_stream_quic_pt_room_unproven(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_msec_t                    rest;
    ngx_stream_quic_pt_window_t  *window;

    window = &worker->attempts;

    ngx_stream_quic_pt_room_roll(window);

    /* a share of the former interval */

    rest = NGX_STREAM_QUIC_PT_HALF_OPEN - (ngx_current_msec - window->since);

    return worker->classes[NGX_STREAM_QUIC_PT_OPENING].nflows
           + window->current
           + window->former * rest / NGX_STREAM_QUIC_PT_HALF_OPEN;
}


static void
ngx_stream_quic_pt_room_roll(ngx_stream_quic_pt_window_t *window)
{
    ngx_msec_t  elapsed;

    elapsed = ngx_current_msec - window->since;

    if (elapsed < NGX_STREAM_QUIC_PT_HALF_OPEN) {
        return;
    }

    if (elapsed < 2 * NGX_STREAM_QUIC_PT_HALF_OPEN) {
        window->since += NGX_STREAM_QUIC_PT_HALF_OPEN;
        window->former = window->current;

    } else {
        window->since = ngx_current_msec;
        window->former = 0;
    }

    window->current = 0;
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
