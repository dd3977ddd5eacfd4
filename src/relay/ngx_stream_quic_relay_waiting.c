
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Batches that wait for room in the sockets of other workers.
 *
 * A worker that has no CPU for a moment leaves its socket full.  Most packets
 * would be sent again, but not a CONNECTION_CLOSE: without it a connection
 * stays for all of its idle timeout.  A socket tells only those that have
 * connected to it when it has room, so each batch is tried again and again.
 * There are few of them, as those for the same worker are joined, and none
 * waits for long: a worker that does not read at all has other troubles.
 */


#include "ngx_stream_quic_relay_module.h"
#include "ngx_stream_quic_relay_handover.h"


/* batches in all */
#define NGX_STREAM_QUIC_RELAY_WAITING  16

/* ms from one attempt to the next, and until it is given up */
#define NGX_STREAM_QUIC_RELAY_RETRY    1
#define NGX_STREAM_QUIC_RELAY_STALLED  10000


static void ngx_stream_quic_relay_waiting_retry(ngx_event_t *ev);
static ngx_int_t ngx_stream_quic_relay_waiting_send(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *batch);
static ngx_stream_quic_relay_batch_t *ngx_stream_quic_relay_waiting_last(
    ngx_stream_quic_relay_handover_t *handover, ngx_queue_t *before,
    ngx_uint_t slot);
static ngx_stream_quic_relay_batch_t *ngx_stream_quic_relay_waiting_batch(
    ngx_stream_quic_relay_worker_t *worker, ngx_uint_t slot, size_t len);


void
ngx_stream_quic_relay_waiting_init(ngx_stream_quic_relay_worker_t *worker)
{
    ngx_stream_quic_relay_handover_t  *handover;

    handover = worker->handover;

    ngx_queue_init(&handover->waiting);

    handover->retry.handler = ngx_stream_quic_relay_waiting_retry;
    handover->retry.data = worker;
    handover->retry.log = worker->log;
    handover->retry.cancelable = 1;
}


void
ngx_stream_quic_relay_waiting_free(ngx_stream_quic_relay_handover_t *handover)
{
    ngx_queue_t  *q;

    if (handover->retry.timer_set) {
        ngx_del_timer(&handover->retry);
    }

    while (!ngx_queue_empty(&handover->waiting)) {
        q = ngx_queue_head(&handover->waiting);
        ngx_queue_remove(q);

        ngx_free(ngx_queue_data(q, ngx_stream_quic_relay_batch_t, queue));
    }

    handover->nwaiting = 0;
}


ngx_uint_t
ngx_stream_quic_relay_waiting_for(ngx_stream_quic_relay_handover_t *handover,
    ngx_uint_t slot)
{
    return ngx_stream_quic_relay_waiting_last(handover, &handover->waiting,
                                              slot)
           != NULL;
}


void
ngx_stream_quic_relay_waiting_add(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *out)
{
    ngx_event_t                    *retry;
    ngx_stream_quic_relay_batch_t  *batch;

    batch = ngx_stream_quic_relay_waiting_batch(worker, out->target,
                                                out->len);
    if (batch == NULL) {
        ngx_stream_quic_relay_count(worker,
                                    NGX_STREAM_QUIC_RELAY_HANDOVER_LOST,
                                    out->count);
        return;
    }

    ngx_memcpy(batch->data + batch->len, out->data, out->len);
    batch->len += out->len;
    batch->count += out->count;

    retry = &worker->handover->retry;

    if (!retry->timer_set) {
        ngx_add_timer(retry, NGX_STREAM_QUIC_RELAY_RETRY);
    }
}


/* one with room: the last one for that slot, or a new one */

static ngx_stream_quic_relay_batch_t *
ngx_stream_quic_relay_waiting_batch(ngx_stream_quic_relay_worker_t *worker,
    ngx_uint_t slot, size_t len)
{
    ngx_stream_quic_relay_batch_t     *batch;
    ngx_stream_quic_relay_handover_t  *handover;

    handover = worker->handover;

    batch = ngx_stream_quic_relay_waiting_last(handover, &handover->waiting,
                                               slot);

    if (batch && len <= NGX_STREAM_QUIC_RELAY_MESSAGE - batch->len) {
        return batch;
    }

    if (handover->nwaiting == NGX_STREAM_QUIC_RELAY_WAITING) {
        return NULL;
    }

    batch = ngx_alloc(sizeof(ngx_stream_quic_relay_batch_t), worker->log);
    if (batch == NULL) {
        return NULL;
    }

    batch->start = ngx_current_msec;
    batch->target = slot;
    batch->count = 0;
    batch->len = 0;

    ngx_queue_insert_tail(&handover->waiting, &batch->queue);
    handover->nwaiting++;

    return batch;
}


/* the last one for the slot among those before the given one */

static ngx_stream_quic_relay_batch_t *
ngx_stream_quic_relay_waiting_last(ngx_stream_quic_relay_handover_t *handover,
    ngx_queue_t *before, ngx_uint_t slot)
{
    ngx_queue_t                    *q;
    ngx_stream_quic_relay_batch_t  *batch;

    for (q = ngx_queue_prev(before);
         q != ngx_queue_sentinel(&handover->waiting);
         q = ngx_queue_prev(q))
    {
        batch = ngx_queue_data(q, ngx_stream_quic_relay_batch_t, queue);

        if (batch->target == slot) {
            return batch;
        }
    }

    return NULL;
}


static void
ngx_stream_quic_relay_waiting_retry(ngx_event_t *ev)
{
    ngx_queue_t                       *q, *next;
    ngx_stream_quic_relay_worker_t    *worker;
    ngx_stream_quic_relay_batch_t     *batch;
    ngx_stream_quic_relay_handover_t  *handover;

    worker = ev->data;
    handover = worker->handover;

    for (q = ngx_queue_head(&handover->waiting);
         q != ngx_queue_sentinel(&handover->waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        batch = ngx_queue_data(q, ngx_stream_quic_relay_batch_t, queue);

        if (ngx_stream_quic_relay_waiting_send(worker, batch) == NGX_OK) {
            ngx_queue_remove(q);
            ngx_free(batch);
            handover->nwaiting--;
        }
    }

    if (handover->nwaiting) {
        ngx_add_timer(ev, NGX_STREAM_QUIC_RELAY_RETRY);
    }
}


/* NGX_OK: it need not wait any more */

static ngx_int_t
ngx_stream_quic_relay_waiting_send(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *batch)
{
    if (ngx_stream_quic_relay_waiting_last(worker->handover, &batch->queue,
                                           batch->target)
        == NULL
        && ngx_stream_quic_relay_handover_send(worker, batch) == NGX_OK)
    {
        return NGX_OK;
    }

    if (ngx_current_msec - batch->start < NGX_STREAM_QUIC_RELAY_STALLED) {
        return NGX_AGAIN;
    }

    ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_HANDOVER_LOST,
                                batch->count);
    return NGX_OK;
}
