
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The end of an HTTP/3 connection that loses no request (RFC 9114, 5.2).
 *
 *     GOAWAY is written to the control stream; nginx's buffer of the stream
 *     keeps it until there is credit;
 *     requests that were admitted run to their end;
 *     their responses and the GOAWAY are acknowledged: no event tells that, so
 *     a timer looks;
 *     requests that were rejected have ended, too;
 *     a while later the connection is closed with H3_NO_ERROR.
 *
 * Nothing is waited for without end: a response must get on within
 * "send_timeout", and the rest has some seconds after the last of them.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


/* ms between two looks at what is acknowledged */

#define NGX_HTTP_H3_LIMITS_POLL         50

/* ms for a GOAWAY to be acknowledged, and rejected requests to end */

#define NGX_HTTP_H3_LIMITS_GOAWAY_WAIT  10000

/*
 * ms from the last acknowledgment, or rejected request, to the close: the
 * client has what it needs, and may close first; resets get their time, too
 */

#define NGX_HTTP_H3_LIMITS_LINGER       300

/* type, length, and a stream ID, each of the greatest length */

#define NGX_HTTP_H3_LIMITS_GOAWAY_LEN   (3 * NGX_HTTP_V3_VARLEN_INT_LEN)


static void ngx_http_h3_limits_drain_handler(ngx_event_t *ev);
static ngx_quic_stream_t *ngx_http_h3_limits_control_stream(
    ngx_http_h3_limits_session_t *s);
static void ngx_http_h3_limits_goaway(ngx_http_h3_limits_session_t *s);
static ngx_int_t ngx_http_h3_limits_goaway_write(
    ngx_http_h3_limits_session_t *s, ngx_quic_stream_t *qs);
static const char *ngx_http_h3_limits_drain_waits(
    ngx_http_h3_limits_session_t *s);
static ngx_uint_t ngx_http_h3_limits_drain_responses(
    ngx_http_h3_limits_session_t *s);
static ngx_uint_t ngx_http_h3_limits_drain_timed_out(
    ngx_http_h3_limits_session_t *s);
static void ngx_http_h3_limits_drain_close(ngx_http_h3_limits_session_t *s,
    const char *reason);


void
ngx_http_h3_limits_drain_init(ngx_http_h3_limits_session_t *s)
{
    s->timer.data = s;
    s->timer.log = s->connection->log;
    s->timer.handler = ngx_http_h3_limits_drain_handler;
}


void
ngx_http_h3_limits_drain(ngx_http_h3_limits_session_t *s)
{
    if (s->draining) {
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, s->connection->log, 0,
                   "http3 limits: drain after %ui requests, goaway %uL",
                   s->requests, s->next_id);

    s->draining = 1;
    s->since = ngx_current_msec;

    ngx_http_h3_limits_goaway(s);

    ngx_add_timer(&s->timer, NGX_HTTP_H3_LIMITS_POLL);
}


void
ngx_http_h3_limits_drain_request_done(ngx_http_h3_limits_session_t *s)
{
    ngx_http_v3_session_t  *h3c;

    h3c = s->connection->data;

    if (h3c->nrequests) {
        return;
    }

    /* nginx has just set it; what ends the connection is here now */

    if (h3c->keepalive.timer_set) {
        ngx_del_timer(&h3c->keepalive);
    }

    s->since = ngx_current_msec;

    if (!s->timer.timer_set) {
        ngx_add_timer(&s->timer, NGX_HTTP_H3_LIMITS_POLL);
    }
}


static void
ngx_http_h3_limits_drain_handler(ngx_event_t *ev)
{
    const char                    *what;
    ngx_http_v3_session_t         *h3c;
    ngx_http_h3_limits_session_t  *s;

    s = ev->data;
    h3c = s->connection->data;

    if (s->lingering) {
        ngx_http_h3_limits_drain_close(s, "connection drained");
        return;
    }

    if (!s->goaway_sent) {
        ngx_http_h3_limits_goaway(s);
    }

    if (h3c->nrequests) {

        /* the end of the last one sets the timer again */

        if (!s->goaway_sent) {
            ngx_add_timer(ev, NGX_HTTP_H3_LIMITS_POLL);
        }

        return;
    }

    /* of a connection without any request when the drain began */

    if (h3c->keepalive.timer_set) {
        ngx_del_timer(&h3c->keepalive);
    }

    what = ngx_http_h3_limits_drain_waits(s);

    if (what == NULL) {
        s->lingering = 1;
        ngx_add_timer(ev, NGX_HTTP_H3_LIMITS_LINGER);
        return;
    }

    if (ngx_http_h3_limits_drain_timed_out(s)) {
        ngx_log_error(NGX_LOG_INFO, s->connection->log, NGX_ETIMEDOUT,
                      "client did not %s in time", what);

        ngx_http_h3_limits_drain_close(s, "drain timeout");
        return;
    }

    ngx_add_timer(ev, NGX_HTTP_H3_LIMITS_POLL);
}


static ngx_quic_stream_t *
ngx_http_h3_limits_control_stream(ngx_http_h3_limits_session_t *s)
{
    ngx_connection_t       *cc;
    ngx_http_v3_session_t  *h3c;

    h3c = s->connection->data;
    cc = h3c->known_streams[NGX_HTTP_V3_STREAM_SERVER_CONTROL];

    return cc ? cc->quic : NULL;
}


static void
ngx_http_h3_limits_goaway(ngx_http_h3_limits_session_t *s)
{
    ngx_quic_stream_t  *qs;

    qs = ngx_http_h3_limits_control_stream(s);

    if (qs == NULL) {
        return;
    }

    if (qs->send_state != NGX_QUIC_STREAM_SEND_READY
        && qs->send_state != NGX_QUIC_STREAM_SEND_SEND)
    {
        ngx_quic_finalize_connection(s->connection,
                                     NGX_HTTP_V3_ERR_CLOSED_CRITICAL_STREAM,
                                     "control stream closed by client");
        return;
    }

    if (!s->goaway_written
        && ngx_http_h3_limits_goaway_write(s, qs) == NGX_ERROR)
    {
        return;
    }

    if (s->goaway_written && qs->send_offset >= s->goaway_end) {
        s->goaway_sent = 1;
        ngx_http_h3_limits_count(s->main_conf, NGX_HTTP_H3_LIMITS_GOAWAYS);
        return;
    }

    if (!s->goaway_deferred) {
        s->goaway_deferred = 1;
        ngx_http_h3_limits_count(s->main_conf, NGX_HTTP_H3_LIMITS_DEFERRED);
    }
}


static ngx_int_t
ngx_http_h3_limits_goaway_write(ngx_http_h3_limits_session_t *s,
    ngx_quic_stream_t *qs)
{
    ngx_http_v3_session_t   *h3c;
    ngx_http_v3_srv_conf_t  *h3scf;

    h3c = s->connection->data;
    h3scf = ngx_http_get_module_srv_conf(
                h3c->http_connection->addr_conf->default_server->ctx,
                ngx_http_v3_module);

    /* a GOAWAY that does not fit into the buffer would end the connection */

    if (qs->acked + h3scf->quic.stream_buffer_size
        < qs->sent + NGX_HTTP_H3_LIMITS_GOAWAY_LEN)
    {
        return NGX_AGAIN;
    }

    if (ngx_http_v3_send_goaway(s->connection, s->next_id) != NGX_OK) {
        return NGX_ERROR;
    }

    s->goaway_written = 1;
    s->goaway_end = qs->sent;

    return NGX_OK;
}


/* NULL if the client has all that it is to have */

static const char *
ngx_http_h3_limits_drain_waits(ngx_http_h3_limits_session_t *s)
{
    ngx_quic_stream_t  *qs;

    if (ngx_http_h3_limits_drain_responses(s)) {
        return "take a response";
    }

    qs = ngx_http_h3_limits_control_stream(s);

    if (qs && (!s->goaway_sent || qs->acked < s->goaway_end)) {
        return "take GOAWAY";
    }

    return s->rejecting ? "end rejected requests" : NULL;
}


/* forgets responses that are acknowledged; whether there are others */

static ngx_uint_t
ngx_http_h3_limits_drain_responses(ngx_http_h3_limits_session_t *s)
{
    uint64_t                      progress;
    ngx_queue_t                  *q, *next;
    ngx_http_h3_limits_stream_t  *stream;

    progress = 0;

    for (q = ngx_queue_head(&s->streams);
         q != ngx_queue_sentinel(&s->streams);
         q = next)
    {
        next = ngx_queue_next(q);
        stream = ngx_queue_data(q, ngx_http_h3_limits_stream_t, queue);

        if (ngx_http_h3_limits_stream_done(stream)) {
            ngx_queue_remove(q);
            s->since = ngx_current_msec;
            continue;
        }

        progress += stream->stream->send_offset + stream->stream->acked;
    }

    if (progress != s->progress) {
        s->progress = progress;
        s->since = ngx_current_msec;
    }

    return !ngx_queue_empty(&s->streams);
}


static ngx_uint_t
ngx_http_h3_limits_drain_timed_out(ngx_http_h3_limits_session_t *s)
{
    ngx_msec_t                 timeout;
    ngx_http_core_loc_conf_t  *clcf;

    timeout = NGX_HTTP_H3_LIMITS_GOAWAY_WAIT;

    if (!ngx_queue_empty(&s->streams)) {
        clcf = ngx_http_v3_get_module_loc_conf(s->connection,
                                               ngx_http_core_module);
        timeout = clcf->send_timeout;
    }

    return ngx_current_msec - s->since > timeout;
}


static void
ngx_http_h3_limits_drain_close(ngx_http_h3_limits_session_t *s,
    const char *reason)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, s->connection->log, 0,
                   "http3 limits: close, %s", reason);

    ngx_quic_finalize_connection(s->connection, NGX_HTTP_V3_ERR_NO_ERROR,
                                 reason);
}
