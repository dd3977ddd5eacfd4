
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The filter of request bodies: first what a body is, then, for each part of
 * it, whether it is too large, whether it has ended, and whether it goes on.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


/* for the headers of DATA frames, which lie in the same buffer */

#define NGX_HTTP_H3_LIMITS_FRAMES  512


static ngx_int_t ngx_http_h3_limits_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_h3_limits_request_body_next(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in);
static ngx_int_t ngx_http_h3_limits_request_body_begin(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, size_t window);
static ngx_uint_t ngx_http_h3_limits_request_body_too_large(
    ngx_http_request_t *r, ngx_http_h3_limits_body_t *b);
static ngx_int_t ngx_http_h3_limits_request_body_buffer(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static ngx_chain_t *ngx_http_h3_limits_request_body_discard(ngx_chain_t *in);
static void ngx_http_h3_limits_request_body_count(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in);


static ngx_http_request_body_filter_pt  ngx_http_next_request_body_filter;


ngx_int_t
ngx_http_h3_limits_request_body_init(ngx_conf_t *cf)
{
    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_h3_limits_request_body_filter;

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t                       rc;
    ngx_http_h3_limits_body_t      *b;
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    hlcf = ngx_http_get_module_loc_conf(r, ngx_http_v3_limits_module);

    if (r->http_version != NGX_HTTP_VERSION_30
        || (hlcf->body_window == 0 && hlcf->max_body_size == 0))
    {
        return ngx_http_next_request_body_filter(r, in);
    }

    b = ngx_http_h3_limits_body_make(r);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = NGX_OK;

    if (!b->begun) {
        b->begun = 1;
        rc = ngx_http_h3_limits_request_body_begin(r, b, hlcf->body_window);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_h3_limits_request_body_next(r, b, in);
    }

    if (rc != NGX_OK) {
        ngx_http_h3_limits_look_ahead_cancel(b);
    }

    return rc;
}


static ngx_int_t
ngx_http_h3_limits_request_body_next(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in)
{
    ngx_int_t  rc;

    if (b->loc_conf) {

        /* the reader has allocated its buffer */

        r->loc_conf = b->loc_conf;
        b->loc_conf = NULL;
        b->reader = r->read_event_handler;
    }

    if (b->window && ngx_http_h3_limits_unknown(r, b, &in) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_h3_limits_request_body_too_large(r, b)) {
        return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
    }

    if (b->window == 0) {
        return ngx_http_next_request_body_filter(r, in);
    }

    rc = ngx_http_h3_limits_body_end(r, b, &in);
    if (rc != NGX_OK) {
        return rc;
    }

    if (b->discard) {
        in = ngx_http_h3_limits_request_body_discard(in);

    } else if (ngx_http_h3_limits_body_hold(r, b, &in) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_h3_limits_look_ahead_next(r, b, in);
    if (rc != NGX_OK) {
        return rc;
    }

    rc = ngx_http_next_request_body_filter(r, in);
    if (rc != NGX_OK) {
        return rc;
    }

    ngx_http_h3_limits_request_body_count(r, b, in);
    ngx_http_h3_limits_gather(r, b);

    if (r->request_body->buf == NULL && !b->ended) {
        return ngx_http_h3_limits_request_body_buffer(r, b);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_request_body_begin(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, size_t window)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    /* "chunked" tells that there is no Content-Length */

    b->declared = r->headers_in.chunked ? -1 : r->headers_in.content_length_n;
    b->window = window;

    if (window == 0
        || u == NULL
        || r->request_body->post_handler != ngx_http_upstream_init
        || ngx_http_h3_limits_upstream_has_own_body(r))
    {
        return NGX_OK;
    }

    r->request_body_in_file_only = 0;

    if (!u->conf->pass_request_body) {
        b->discard = 1;
        return NGX_OK;
    }

    if (b->declared == 0) {

        /* an upstream would take it for complete before its end has come */

        r->request_body_no_buffering = 0;
        return NGX_OK;
    }

    if (r->request_body_no_buffering || b->declared > (off_t) window) {
        r->request_body_no_buffering = 1;
        return ngx_http_h3_limits_upstream_pass(r, b);
    }

    ngx_http_h3_limits_look_ahead(r, b);

    return NGX_OK;
}


static ngx_uint_t
ngx_http_h3_limits_request_body_too_large(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    hlcf = ngx_http_get_module_loc_conf(r, ngx_http_v3_limits_module);

    if (hlcf->max_body_size == 0
        || r->request_body->received <= hlcf->max_body_size)
    {
        return 0;
    }

    if (!b->refused) {
        b->refused = 1;

        ngx_http_h3_limits_count(b->hmcf, NGX_HTTP_H3_LIMITS_TOO_LARGE);

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "client sent too large body, "
                      "\"http3_max_body_size\" allows %O bytes",
                      hlcf->max_body_size);
    }

    return 1;
}


/*
 * nginx will allocate a buffer as large as "client_body_buffer_size" of the
 * location tells right after the first call; here it is as large as what is
 * left of the window
 */

static ngx_int_t
ngx_http_h3_limits_request_body_buffer(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    off_t                      size;
    void                     **loc_conf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_palloc(r->pool, sizeof(ngx_http_core_loc_conf_t));
    loc_conf = ngx_palloc(r->pool, ngx_http_max_module * sizeof(void *));

    if (clcf == NULL || loc_conf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    size = b->window;

    if (b->declared != -1 && b->declared < size) {
        size = b->declared;
    }

    size = ngx_max(size - r->request_body->received, 0);

    ngx_memcpy(clcf, r->loc_conf[ngx_http_core_module.ctx_index],
               sizeof(ngx_http_core_loc_conf_t));
    ngx_memcpy(loc_conf, r->loc_conf, ngx_http_max_module * sizeof(void *));

    clcf->client_body_buffer_size = size + NGX_HTTP_H3_LIMITS_FRAMES;
    loc_conf[ngx_http_core_module.ctx_index] = clcf;

    b->loc_conf = r->loc_conf;
    r->loc_conf = loc_conf;

    return NGX_OK;
}


/* what is left is the buf that ends the body, if it is there */

static ngx_chain_t *
ngx_http_h3_limits_request_body_discard(ngx_chain_t *in)
{
    for ( /* void */ ; in && !in->buf->last_buf; in = in->next) {
        in->buf->pos = in->buf->last;
    }

    return in;
}


static void
ngx_http_h3_limits_request_body_count(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in)
{
    off_t                     busy;
    ngx_connection_t         *c;
    ngx_http_request_body_t  *rb;

    rb = r->request_body;
    busy = ngx_http_h3_limits_body_size(rb->busy);

    ngx_http_h3_limits_body_held(b, &b->request_held,
                                 busy + ngx_http_h3_limits_body_size(in));

    if (b->request_paused || !r->reading_body || in || busy == 0
        || rb->buf->last != rb->buf->end)
    {
        return;
    }

    /* the window is full, and the upstream takes no more */

    c = r->upstream->peer.connection;

    if (c && !c->write->ready) {
        b->request_paused = 1;
        ngx_http_h3_limits_count(b->hmcf, NGX_HTTP_H3_LIMITS_PAUSED);
    }
}
