
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Connections that make room when "quic_preread_memory" is short.  One whose
 * ClientHello is awaited goes on to the default server.  One that is decided
 * holds its datagrams because a name is looked up, for it or for one of its
 * flow before it, or another module takes its time: it is dropped, and with it
 * its flow if that has no other connections.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


static void ngx_stream_quic_preread_evict(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_evict_deciding(
    ngx_stream_quic_preread_hello_t *hello);
static void ngx_stream_quic_preread_complain(
    ngx_stream_quic_preread_hello_t *hello);
static ngx_uint_t ngx_stream_quic_preread_told(time_t *when);


void
ngx_stream_quic_preread_trim(ngx_stream_quic_pt_worker_t *worker)
{
    ngx_stream_quic_pt_held_t        *held;
    ngx_stream_quic_preread_hello_t  *hello;

    for ( ;; ) {
        held = ngx_stream_quic_pt_budget_victim(&worker->preread->memory);

        if (held == NULL) {
            return;
        }

        hello = (ngx_stream_quic_preread_hello_t *)
                ((u_char *) held
                 - offsetof(ngx_stream_quic_preread_hello_t, held));

        ngx_stream_quic_preread_complain(hello);
        ngx_stream_quic_preread_evict(hello);
    }
}


/* one that is decided only now may be the next to go */

static void
ngx_stream_quic_preread_evict(ngx_stream_quic_preread_hello_t *hello)
{
    if (!hello->decided) {
        ngx_stream_quic_preread_unread(hello, "has had to make room");
        return;
    }

    if (hello == hello->flow->preread->deciding) {
        ngx_stream_quic_preread_evict_deciding(hello);
        return;
    }

    ngx_stream_quic_preread_discard(hello, NGX_STREAM_QUIC_PT_OVERLOAD);
    ngx_stream_quic_preread_destroy(hello);
}


static void
ngx_stream_quic_preread_evict_deciding(ngx_stream_quic_preread_hello_t *hello)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = hello->flow;

    if (!flow->ready) {
        ngx_stream_quic_pt_flow_evict(flow);
        return;
    }

    if (ngx_stream_quic_pt_session_give_up(flow) == NGX_OK) {
        ngx_stream_quic_preread_skip(flow, NGX_STREAM_QUIC_PT_OVERLOAD);
        return;
    }

    /* another module is to run the session on, and may refer to it */

    ngx_stream_quic_preread_discard(hello, NGX_STREAM_QUIC_PT_OVERLOAD);
}


static void
ngx_stream_quic_preread_complain(ngx_stream_quic_preread_hello_t *hello)
{
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_preread_t    *preread;
    ngx_stream_quic_pt_worker_t  *worker;

    flow = hello->flow;
    worker = flow->listener->worker;
    preread = worker->preread;

    if (!hello->decided) {

        if (ngx_stream_quic_preread_told(&preread->no_hellos)) {
            return;
        }

        ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                      "too many QUIC ClientHellos are awaited, the oldest "
                      "go to the default server, increase "
                      "\"quic_preread_memory\"");
        return;
    }

    if (ngx_stream_quic_preread_told(&preread->no_answers)) {
        return;
    }

    if (flow->resolving) {
        ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                      "too many QUIC connections wait for the resolver, the "
                      "oldest are dropped, check \"resolver\", decrease "
                      "\"resolver_timeout\" or increase "
                      "\"quic_preread_memory\"");
        return;
    }

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "too many QUIC connections wait for their sessions, the "
                  "oldest are dropped, increase \"quic_preread_memory\"");
}


/* whether it was logged in this second */

static ngx_uint_t
ngx_stream_quic_preread_told(time_t *when)
{
    if (*when == ngx_time()) {
        return 1;
    }

    *when = ngx_time();

    return 0;
}
