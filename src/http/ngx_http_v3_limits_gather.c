
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Bodies that are passed, in larger pieces.
 *
 * nginx reads one datagram an event, and what it has brought would go on by a
 * send() of its own, which costs more than all else that is done for it.  So
 * what comes right after something that was passed waits for more, but not
 * for long.  Messages that do not fill a datagram are not delayed: their
 * sender may be waiting for an answer.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


/* octets that go on at once, or half of the credit of a stream */

#define NGX_HTTP_H3_LIMITS_GATHERED   16384

/* fewer do not fill a datagram (RFC 9000, 14: at least 1200 with headers) */

#define NGX_HTTP_H3_LIMITS_MESSAGE    1000

/* ms */

#define NGX_HTTP_H3_LIMITS_GATHERING  1


static void ngx_http_h3_limits_gather_read(ngx_http_request_t *r);
static ngx_uint_t ngx_http_h3_limits_gather_more(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static void ngx_http_h3_limits_gather_timeout(ngx_event_t *ev);


void
ngx_http_h3_limits_gather(ngx_http_request_t *r, ngx_http_h3_limits_body_t *b)
{
    if (!r->request_body_no_buffering
        || !r->reading_body
        || r->upstream == NULL
        || !r->upstream->request_sent
        || r->read_event_handler == ngx_http_h3_limits_gather_read)
    {
        return;
    }

    b->gather.handler = ngx_http_h3_limits_gather_timeout;
    b->gather.data = r->connection;
    b->gather.log = r->connection->log;

    b->pass = r->read_event_handler;
    b->passed = ngx_current_msec;

    r->read_event_handler = ngx_http_h3_limits_gather_read;
}


void
ngx_http_h3_limits_gather_cancel(ngx_http_h3_limits_body_t *b)
{
    if (b->gather.timer_set) {
        ngx_del_timer(&b->gather);
    }
}


static void
ngx_http_h3_limits_gather_read(ngx_http_request_t *r)
{
    ngx_http_h3_limits_body_t  *b;

    b = ngx_http_h3_limits_body_get(r);

    if (ngx_http_h3_limits_gather_more(r, b)) {

        if (!b->gather.timer_set) {
            ngx_add_timer(&b->gather, NGX_HTTP_H3_LIMITS_GATHERING);
        }

        return;
    }

    ngx_http_h3_limits_gather_cancel(b);

    b->passed = ngx_current_msec;
    b->pass(r);
}


static ngx_uint_t
ngx_http_h3_limits_gather_more(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    uint64_t            waiting;
    ngx_connection_t   *c;
    ngx_quic_stream_t  *qs;

    c = r->connection;
    qs = c->quic;

    if (c->read->timedout
        || c->read->error
        || qs->recv_state != NGX_QUIC_STREAM_RECV_RECV
        || ngx_current_msec - b->passed > NGX_HTTP_H3_LIMITS_GATHERING)
    {
        return 0;
    }

    waiting = qs->recv_last - qs->recv_offset;

    return waiting >= NGX_HTTP_H3_LIMITS_MESSAGE
           && waiting < ngx_min(NGX_HTTP_H3_LIMITS_GATHERED,
                                qs->recv_window / 2);
}


static void
ngx_http_h3_limits_gather_timeout(ngx_event_t *ev)
{
    ngx_connection_t           *c;
    ngx_http_request_t         *r;
    ngx_http_h3_limits_body_t  *b;

    c = ev->data;
    r = c->data;
    r = r->main;

    ngx_http_set_log_request(c->log, r);

    if (r->read_event_handler == ngx_http_h3_limits_gather_read) {
        b = ngx_http_h3_limits_body_get(r);

        b->passed = ngx_current_msec;
        b->pass(r);
    }

    ngx_http_run_posted_requests(c);
}
