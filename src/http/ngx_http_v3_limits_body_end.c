
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The end of a request body.
 *
 * nginx takes a body for complete when the stream has ended outside a DATA
 * frame, even within the header of a frame or within a frame of an unknown
 * type, and as soon as trailers begin.  And an upstream takes it for complete
 * when it has Content-Length octets, although the stream may yet be reset.
 * Here a body is complete when the stream has ended after a whole frame
 * (RFC 9114, 4.1 and 7.1), and the upstream does not see its last octet before.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


static ngx_int_t ngx_http_h3_limits_body_trailers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in);
static ngx_int_t ngx_http_h3_limits_body_skip(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_buf_t *buf);
static ngx_int_t ngx_http_h3_limits_body_check(ngx_http_request_t *r,
    ngx_http_v3_parse_data_t *st);
static ngx_chain_t *ngx_http_h3_limits_body_buf(ngx_http_request_t *r);


ngx_int_t
ngx_http_h3_limits_body_end(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in)
{
    ngx_int_t                  rc;
    ngx_chain_t               *cl;
    ngx_http_request_body_t   *rb;
    ngx_http_v3_parse_data_t  *st;

    if (b->trailers) {
        return ngx_http_h3_limits_body_trailers(r, b, in);
    }

    for (cl = *in; cl; cl = cl->next) {
        if (cl->buf->last_buf) {
            break;
        }
    }

    if (cl == NULL) {
        return NGX_OK;
    }

    st = &r->v3_parse->body;

    if (st->state != NGX_HTTP_H3_LIMITS_PARSE_START
        || st->type != NGX_HTTP_V3_FRAME_HEADERS)
    {
        b->ended = 1;
        return ngx_http_h3_limits_body_check(r, st);
    }

    /* trailers: nginx has read the type of their frame, and stops there */

    b->trailers = 1;
    b->after.state = NGX_HTTP_H3_LIMITS_PARSE_LENGTH;
    b->after.type = NGX_HTTP_H3_LIMITS_FRAME_SKIPPED;

    if (ngx_http_h3_limits_body_copy(r, in, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rb = r->request_body;

    rc = ngx_http_h3_limits_body_skip(r, b, rb->buf ? rb->buf : r->header_in);
    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_h3_limits_body_trailers(r, b, in);
}


/* reads what is left of the stream; at its end the body may end */

static ngx_int_t
ngx_http_h3_limits_body_trailers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in)
{
    ssize_t            n;
    ngx_int_t          rc;
    ngx_buf_t          buf;
    ngx_chain_t       *cl, **ll;
    ngx_connection_t  *c;
    u_char             data[512];

    if (b->ended) {
        return NGX_OK;
    }

    /* else nginx would read on itself */

    r->request_body->rest = 0;

    c = r->connection;

    ngx_memzero(&buf, sizeof(ngx_buf_t));

    while ((n = c->recv(c, data, sizeof(data))) > 0) {

        r->request_length += n;

        buf.pos = data;
        buf.last = data + n;

        rc = ngx_http_h3_limits_body_skip(r, b, &buf);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (n == NGX_AGAIN) {
        return NGX_OK;
    }

    if (n == NGX_ERROR) {
        c->error = 1;
        return NGX_HTTP_BAD_REQUEST;
    }

    b->ended = 1;

    rc = ngx_http_h3_limits_body_check(r, &b->after);
    if (rc != NGX_OK) {
        return rc;
    }

    cl = ngx_http_h3_limits_body_buf(r);
    if (cl == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    cl->buf->last_buf = 1;

    for (ll = in; *ll; ll = &(*ll)->next) { /* void */ }

    *ll = cl;

    return NGX_OK;
}


/* only frames of unknown types may follow trailers (RFC 9114, 4.1) */

static ngx_int_t
ngx_http_h3_limits_body_skip(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_buf_t *buf)
{
    ngx_int_t          rc;
    ngx_connection_t  *c;

    c = r->connection;

    if (buf->pos == buf->last) {
        return NGX_OK;
    }

    do {
        rc = ngx_http_v3_parse_data(c, &b->after, buf);

        /* an empty frame of an unknown type is told as one of data is */

    } while (rc == NGX_OK && b->after.type != NGX_HTTP_V3_FRAME_DATA
             && buf->pos != buf->last);

    ngx_http_h3_limits_unknown_mend(b, &b->after);

    if (rc == NGX_AGAIN
        || (rc == NGX_OK && b->after.type != NGX_HTTP_V3_FRAME_DATA))
    {
        return NGX_OK;
    }

    if (rc == NGX_OK || rc == NGX_DONE) {
        rc = NGX_HTTP_V3_ERR_FRAME_UNEXPECTED;
    }

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_log_error(NGX_LOG_INFO, c->log, 0,
                  "client sent invalid frame after trailers");

    ngx_quic_reset_stream(c, rc);
    c->error = 1;

    return NGX_HTTP_BAD_REQUEST;
}


static ngx_int_t
ngx_http_h3_limits_body_check(ngx_http_request_t *r,
    ngx_http_v3_parse_data_t *st)
{
    ngx_connection_t  *c;

    if (st->state <= NGX_HTTP_H3_LIMITS_PARSE_TYPE
        && st->vlint.state == 0
        && st->length == 0)
    {
        return NGX_OK;
    }

    c = r->connection;

    ngx_log_error(NGX_LOG_INFO, c->log, 0,
                  "client closed stream within a frame of the request body");

    ngx_quic_reset_stream(c, NGX_HTTP_V3_ERR_REQUEST_INCOMPLETE);
    c->error = 1;

    return NGX_HTTP_BAD_REQUEST;
}


ngx_int_t
ngx_http_h3_limits_body_copy(ngx_http_request_t *r, ngx_chain_t **in,
    ngx_uint_t end)
{
    ngx_chain_t  *cl, *tl, **ll;

    ll = in;

    for (cl = *in; cl; cl = cl->next) {

        if (cl->buf->pos == cl->buf->last && !(end && cl->buf->last_buf)) {
            continue;
        }

        tl = ngx_alloc_chain_link(r->pool);
        if (tl == NULL) {
            return NGX_ERROR;
        }

        tl->buf = cl->buf;
        *ll = tl;
        ll = &tl->next;
    }

    *ll = NULL;

    return NGX_OK;
}


ngx_int_t
ngx_http_h3_limits_body_hold(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in)
{
    ngx_buf_t    *buf;
    ngx_chain_t  *cl;

    if (b->ended) {

        if (!b->holding) {
            return NGX_OK;
        }

        cl = ngx_http_h3_limits_body_buf(r);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        buf = cl->buf;

        buf->temporary = 1;
        buf->start = &b->octet;
        buf->pos = &b->octet;
        buf->last = buf->pos + 1;
        buf->end = buf->last;
        buf->flush = r->request_body_no_buffering;

        cl->next = *in;
        *in = cl;

        b->holding = 0;

        return NGX_OK;
    }

    if (b->declared <= 0 || b->holding
        || r->request_body->received < b->declared)
    {
        return NGX_OK;
    }

    buf = NULL;

    for (cl = *in; cl; cl = cl->next) {
        if (cl->buf->last > cl->buf->pos) {
            buf = cl->buf;
        }
    }

    if (buf == NULL) {
        return NGX_OK;
    }

    b->octet = *--buf->last;
    b->holding = 1;

    if (buf->pos == buf->last) {
        return ngx_http_h3_limits_body_copy(r, in, 0);
    }

    return NGX_OK;
}


static ngx_chain_t *
ngx_http_h3_limits_body_buf(ngx_http_request_t *r)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(r->pool);
    if (cl == NULL) {
        return NULL;
    }

    cl->buf = ngx_calloc_buf(r->pool);
    if (cl->buf == NULL) {
        return NULL;
    }

    cl->next = NULL;

    return cl;
}
