
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Budgets: memory for datagrams that wait for the session of their flow, and
 * for connections whose ClientHello, or server, is awaited.
 *
 * All that is charged to a budget can be made free: whoever holds some of it is
 * in a queue from the first octet to the last.  When there is too much, the
 * oldest makes room, but of the source that holds the most if that is more than
 * its share, an eighth: nobody has to go for what another one sends.
 *
 * A budget is checked before a message is read, so it may be exceeded by what
 * one message adds.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


#define NGX_STREAM_QUIC_PT_SHARE  8


static void ngx_stream_quic_pt_budget_weigh(
    ngx_stream_quic_pt_budget_t *budget, ngx_stream_quic_pt_share_t *share);
static ngx_stream_quic_pt_share_t *ngx_stream_quic_pt_budget_heaviest(
    ngx_stream_quic_pt_budget_t *budget);
static void ngx_stream_quic_pt_budget_complain(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_flow_t *flow);


void
ngx_stream_quic_pt_budget_init(ngx_stream_quic_pt_budget_t *budget,
    size_t limit)
{
    budget->size = 0;
    budget->limit = limit;

    ngx_queue_init(&budget->held);
    ngx_queue_init(&budget->heavy);
}


void
ngx_stream_quic_pt_budget_add(ngx_stream_quic_pt_budget_t *budget,
    ngx_stream_quic_pt_share_t *share, ngx_stream_quic_pt_held_t *held,
    size_t size)
{
    if (share->size == 0) {
        ngx_queue_init(&share->held);
    }

    if (held->size == 0) {
        held->budget = budget;
        held->share = share;

        ngx_queue_insert_tail(&budget->held, &held->order);
        ngx_queue_insert_tail(&share->held, &held->queue);
    }

    held->size += size;
    share->size += size;
    budget->size += size;

    ngx_stream_quic_pt_budget_weigh(budget, share);
}


void
ngx_stream_quic_pt_budget_sub(ngx_stream_quic_pt_held_t *held, size_t size)
{
    if (size == 0) {
        return;
    }

    held->size -= size;
    held->share->size -= size;
    held->budget->size -= size;

    if (held->size == 0) {
        ngx_queue_remove(&held->order);
        ngx_queue_remove(&held->queue);
    }

    ngx_stream_quic_pt_budget_weigh(held->budget, held->share);
}


static void
ngx_stream_quic_pt_budget_weigh(ngx_stream_quic_pt_budget_t *budget,
    ngx_stream_quic_pt_share_t *share)
{
    ngx_uint_t  heavy;

    heavy = share->size > budget->limit / NGX_STREAM_QUIC_PT_SHARE;

    if (heavy == share->heavy) {
        return;
    }

    share->heavy = heavy;

    if (heavy) {
        ngx_queue_insert_tail(&budget->heavy, &share->queue);

    } else {
        ngx_queue_remove(&share->queue);
    }
}


ngx_stream_quic_pt_held_t *
ngx_stream_quic_pt_budget_victim(ngx_stream_quic_pt_budget_t *budget)
{
    ngx_queue_t                 *q;
    ngx_stream_quic_pt_share_t  *share;

    if (budget->size <= budget->limit) {
        return NULL;
    }

    share = ngx_stream_quic_pt_budget_heaviest(budget);

    if (share) {
        q = ngx_queue_head(&share->held);

        return ngx_queue_data(q, ngx_stream_quic_pt_held_t, queue);
    }

    q = ngx_queue_head(&budget->held);

    return ngx_queue_data(q, ngx_stream_quic_pt_held_t, order);
}


/* of a few: the shares are so large */

static ngx_stream_quic_pt_share_t *
ngx_stream_quic_pt_budget_heaviest(ngx_stream_quic_pt_budget_t *budget)
{
    ngx_queue_t                 *q;
    ngx_stream_quic_pt_share_t  *share, *heaviest;

    heaviest = NULL;

    for (q = ngx_queue_head(&budget->heavy);
         q != ngx_queue_sentinel(&budget->heavy);
         q = ngx_queue_next(q))
    {
        share = ngx_queue_data(q, ngx_stream_quic_pt_share_t, queue);

        if (heaviest == NULL || share->size > heaviest->size) {
            heaviest = share;
        }
    }

    return heaviest;
}


void
ngx_stream_quic_pt_budget_trim(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_stream_quic_pt_flow_t  *flow;
    ngx_stream_quic_pt_held_t  *held;

    for ( ;; ) {
        held = ngx_stream_quic_pt_budget_victim(&worker->queued);

        if (held == NULL) {
            return;
        }

        flow = (ngx_stream_quic_pt_flow_t *)
               ((u_char *) held - offsetof(ngx_stream_quic_pt_flow_t, held));

        ngx_stream_quic_pt_budget_complain(worker, flow);
        ngx_stream_quic_pt_flow_evict(flow);
    }
}


static void
ngx_stream_quic_pt_budget_complain(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_flow_t *flow)
{
    if (worker->no_memory == ngx_time()) {
        return;
    }

    worker->no_memory = ngx_time();

    if (flow->resolving) {
        ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                      "datagrams of QUIC flows that wait for the resolver take "
                      "more than %uzm, flows are closed, check \"resolver\" "
                      "and decrease \"resolver_timeout\"",
                      worker->queued.limit / 1024 / 1024);
        return;
    }

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "datagrams of QUIC flows whose sessions wait take more than "
                  "%uzm, flows are closed",
                  worker->queued.limit / 1024 / 1024);
}
