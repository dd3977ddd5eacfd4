
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Looking ahead: while a body may yet turn out to be a small one, nginx reads
 * it as a buffered one, and has not begun with the upstream.  It goes on as
 * nginx does when the body ends.  When it fills the window, or pauses, it
 * becomes an unbuffered one, and the upstream begins with what there is.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


/*
 * A client that pauses for so long waits for an answer rather than for
 * acknowledgments.
 */

#define NGX_HTTP_H3_LIMITS_PAUSE  200


static ngx_uint_t ngx_http_h3_limits_look_ahead_full(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static ngx_int_t ngx_http_h3_limits_look_ahead_end(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in);
static void ngx_http_h3_limits_look_ahead_wait(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static void ngx_http_h3_limits_look_ahead_handler(ngx_event_t *ev);
static void ngx_http_h3_limits_look_ahead_switch(ngx_http_request_t *r);


void
ngx_http_h3_limits_look_ahead(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_connection_t  *c;

    c = r->connection;

    b->look_ahead = 1;

    b->switch_event.data = c;
    b->switch_event.log = c->log;
    b->switch_event.handler = ngx_http_h3_limits_look_ahead_handler;

    if (b->declared != -1) {
        return;
    }

    b->needs_length = ngx_http_h3_limits_upstream_needs_length(r);

    b->patient = b->needs_length
                 || ngx_http_h3_limits_upstream_wants_length(r);
}


ngx_int_t
ngx_http_h3_limits_look_ahead_next(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in)
{
    if (!b->look_ahead) {
        return NGX_OK;
    }

    if (b->ended) {
        ngx_http_h3_limits_look_ahead_cancel(b);
        return NGX_OK;
    }

    if (!ngx_http_h3_limits_look_ahead_full(r, b)) {

        if (in || !b->switch_event.timer_set) {
            ngx_http_h3_limits_look_ahead_wait(r, b);
        }

        return NGX_OK;
    }

    if (b->needs_length) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "client sent body larger than \"http3_body_window\" "
                      "without Content-Length, which the upstream needs");

        return NGX_HTTP_LENGTH_REQUIRED;
    }

    if (ngx_http_h3_limits_look_ahead_end(r, b, in) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* nginx is still reading */

    ngx_post_event(&b->switch_event, &ngx_posted_events);

    return NGX_OK;
}


static ngx_uint_t
ngx_http_h3_limits_look_ahead_full(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_request_body_t  *rb;

    rb = r->request_body;

    if (b->trailers) {
        return 0;
    }

    return rb->received > (off_t) b->window
           || (rb->buf && rb->buf->last == rb->buf->end);
}


static ngx_int_t
ngx_http_h3_limits_look_ahead_end(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "http3 limits look ahead: %O bytes, passing on",
                   r->request_body->received);

    ngx_http_h3_limits_look_ahead_cancel(b);

    r->request_body_no_buffering = 1;

    /* as the reader would have done */

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        cl->buf->flush = 1;
    }

    for (cl = in; cl; cl = cl->next) {
        cl->buf->flush = 1;
    }

    return ngx_http_h3_limits_upstream_pass(r, b);
}


static void
ngx_http_h3_limits_look_ahead_wait(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    if (b->patient) {
        return;
    }

    if (b->declared == -1 && r->request_body->received == 0
        && (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)))
    {
        /* no body is to be expected: only the end of the stream is late */

        return;
    }

    /* nginx moves timers by more than 300 milliseconds only */

    if (b->switch_event.timer_set) {
        ngx_del_timer(&b->switch_event);
    }

    ngx_add_timer(&b->switch_event, NGX_HTTP_H3_LIMITS_PAUSE);
}


void
ngx_http_h3_limits_look_ahead_cancel(ngx_http_h3_limits_body_t *b)
{
    b->look_ahead = 0;

    if (b->switch_event.timer_set) {
        ngx_del_timer(&b->switch_event);
    }

    if (b->switch_event.posted) {
        ngx_delete_posted_event(&b->switch_event);
    }
}


static void
ngx_http_h3_limits_look_ahead_handler(ngx_event_t *ev)
{
    ngx_connection_t           *c;
    ngx_http_request_t         *r;
    ngx_http_h3_limits_body_t  *b;

    c = ev->data;
    r = c->data;
    r = r->main;

    ngx_http_set_log_request(c->log, r);

    b = ngx_http_h3_limits_body_get(r);

    if (ev->timedout) {
        ev->timedout = 0;

        if (ngx_http_h3_limits_look_ahead_end(r, b, NULL) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }
    }

    /* else the reader has found at once that the body is unbuffered */

    if (r->read_event_handler == b->reader) {
        ngx_http_h3_limits_look_ahead_switch(r);
    }

    ngx_http_run_posted_requests(c);
}


/* what ngx_http_read_client_request_body() does with an unbuffered body */

static void
ngx_http_h3_limits_look_ahead_switch(ngx_http_request_t *r)
{
    ngx_http_request_body_t  *rb;

    rb = r->request_body;

    if (rb->rest == 0 && rb->last_saved) {
        r->request_body_no_buffering = 0;

    } else {
        r->reading_body = 1;
    }

    r->read_event_handler = ngx_http_block_reading;

    rb->post_handler(r);
}
