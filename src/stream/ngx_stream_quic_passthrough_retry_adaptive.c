
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_passthrough_retry adaptive": when Retry goes on, and off again.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_uint_t ngx_stream_quic_pt_retry_threshold(
    ngx_stream_quic_pt_retry_t *retry, ngx_stream_quic_pt_worker_t *worker);
static void ngx_stream_quic_pt_retry_begin(ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_worker_t *worker);
static void ngx_stream_quic_pt_retry_tick(ngx_event_t *ev);


ngx_uint_t
ngx_stream_quic_pt_retry_wanted(ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_worker_t *worker)
{
    if (retry->mode != NGX_STREAM_QUIC_PT_RETRY_ADAPTIVE) {
        return retry->mode;
    }

    if (retry->worker == NULL
        && ngx_stream_quic_pt_room_unproven(worker)
           >= ngx_stream_quic_pt_retry_threshold(retry, worker))
    {
        ngx_stream_quic_pt_retry_begin(retry, worker);
    }

    return retry->worker != NULL;
}


/* half-open flows alone have to meet it, of which there is a limit */

static ngx_uint_t
ngx_stream_quic_pt_retry_threshold(ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_worker_t *worker)
{
    ngx_uint_t  threshold;

    threshold = retry->threshold ? retry->threshold
                                 : worker->half_open_limit / 2;

    return ngx_min(ngx_max(threshold, 1), worker->half_open_limit);
}


static void
ngx_stream_quic_pt_retry_begin(ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_worker_t *worker)
{
    retry->worker = worker;
    retry->since = ngx_time();
    retry->quiet = 0;
    retry->sent = 0;
    retry->accepted = 0;
    retry->unanswered = 0;

    retry->event.handler = ngx_stream_quic_pt_retry_tick;
    retry->event.data = retry;
    retry->event.log = worker->log;
    retry->event.cancelable = 1;

    ngx_add_timer(&retry->event, 1000);

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "%ui unproven QUIC flows: Retry is on; if this is no "
                  "attack, increase \"threshold\" of "
                  "\"quic_passthrough_retry\" or worker_connections, "
                  "listen %V", ngx_stream_quic_pt_room_unproven(worker),
                  &retry->addr_text);
}


/*
 * While Retry is on there are few half-open flows, whatever comes in.  Those
 * that there would be without are the ones whose clients do not come back with
 * a token, for as long as a half-open flow lives.
 */

static void
ngx_stream_quic_pt_retry_tick(ngx_event_t *ev)
{
    ngx_uint_t                    n, unanswered;
    ngx_stream_quic_pt_retry_t   *retry;
    ngx_stream_quic_pt_worker_t  *worker;

    retry = ev->data;
    worker = retry->worker;

    unanswered = retry->sent - ngx_min(retry->accepted, retry->sent);

    n = 0;

    if (unanswered > retry->unanswered) {
        n = (unanswered - retry->unanswered)
            * (NGX_STREAM_QUIC_PT_HALF_OPEN / 1000);
    }

    retry->unanswered = unanswered;

    n += ngx_stream_quic_pt_room_unproven(worker);

    if (2 * n < ngx_stream_quic_pt_retry_threshold(retry, worker)) {
        retry->quiet++;

    } else {
        retry->quiet = 0;
    }

    if (retry->quiet < NGX_STREAM_QUIC_PT_RETRY_QUIET) {
        ngx_add_timer(ev, 1000);
        return;
    }

    retry->worker = NULL;

    ngx_log_error(NGX_LOG_NOTICE, worker->log, 0,
                  "few unproven QUIC flows: Retry is off again, after %T s, "
                  "%ui sent and %ui tokens accepted, listen %V",
                  ngx_time() - retry->since, retry->sent, retry->accepted,
                  &retry->addr_text);
}
