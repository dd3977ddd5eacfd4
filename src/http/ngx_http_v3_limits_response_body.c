
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Bodies of responses that come from an upstream.
 *
 * Unbuffered, nginx reads from the upstream what the client takes, through a
 * buffer of its own.  That knows neither caches nor rates: those have nginx's
 * buffered way, with buffers cut to the window and no temporary file, but for
 * what is to be stored.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


static ngx_int_t ngx_http_h3_limits_response_header_filter(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_response_begin(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_http_h3_limits_loc_conf_t *hlcf);
static ngx_uint_t ngx_http_h3_limits_response_has_body(ngx_http_request_t *r);
static ngx_uint_t ngx_http_h3_limits_response_has_rate(ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_response_buffers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, size_t window);
static void ngx_http_h3_limits_response_meter(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static ngx_int_t ngx_http_h3_limits_response_input_init(void *data);
static ngx_int_t ngx_http_h3_limits_response_input(void *data, ssize_t bytes);
static ngx_int_t ngx_http_h3_limits_response_pipe(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static ngx_int_t ngx_http_h3_limits_response_add(ngx_http_request_t *r,
    ngx_chain_t *cl);
static ngx_int_t ngx_http_h3_limits_response_too_large(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, off_t max);
static ngx_int_t ngx_http_h3_limits_response_body_filter(
    ngx_http_request_t *r, ngx_chain_t *in);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


ngx_int_t
ngx_http_h3_limits_response_body_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_h3_limits_response_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_h3_limits_response_body_filter;

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_response_header_filter(ngx_http_request_t *r)
{
    ngx_http_upstream_t            *u;
    ngx_http_h3_limits_body_t      *b;
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    if (r->main->http_version != NGX_HTTP_VERSION_30) {
        return ngx_http_next_header_filter(r);
    }

    b = ngx_http_h3_limits_body_get(r);

    if (b) {

        /* whatever answers, the body goes nowhere any more */

        ngx_http_h3_limits_look_ahead_cancel(b);
    }

    u = r->upstream;
    hlcf = ngx_http_get_module_loc_conf(r, ngx_http_v3_limits_module);

    /* without a cleanup handler nothing is received: from cache, redirected */

    if (u == NULL || u->cleanup == NULL || u->upgrade || r->post_action
        || (hlcf->body_window == 0 && hlcf->max_body_size == 0))
    {
        return ngx_http_next_header_filter(r);
    }

    b = ngx_http_h3_limits_body_make(r);

    if (b == NULL
        || ngx_http_h3_limits_response_begin(r, b, hlcf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_http_h3_limits_response_begin(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_http_h3_limits_loc_conf_t *hlcf)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    b->response = 1;

    ngx_http_h3_limits_upstream_answers(r, b);

    if (hlcf->max_body_size
        && r->headers_out.content_length_n > hlcf->max_body_size
        && ngx_http_h3_limits_response_has_body(r))
    {
        return ngx_http_h3_limits_response_too_large(r, b,
                                                     hlcf->max_body_size);
    }

    if (hlcf->body_window && u->buffering) {

        if (r == r->main && !u->cacheable && !u->store
            && !ngx_http_h3_limits_response_has_rate(r))
        {
            u->buffering = 0;

        } else if (ngx_http_h3_limits_response_buffers(r, b,
                                                       hlcf->body_window)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (hlcf->max_body_size) {
        ngx_http_h3_limits_response_meter(r, b);
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_h3_limits_response_has_body(ngx_http_request_t *r)
{
    return r->method != NGX_HTTP_HEAD
           && r->headers_out.status != NGX_HTTP_NO_CONTENT
           && r->headers_out.status != NGX_HTTP_NOT_MODIFIED;
}


static ngx_uint_t
ngx_http_h3_limits_response_has_rate(ngx_http_request_t *r)
{
    ngx_http_core_loc_conf_t  *clcf;

    if (r->upstream->conf->limit_rate) {
        return 1;
    }

    if (r->limit_rate_set) {
        return r->limit_rate != 0;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    return ngx_http_complex_value_size(r, clcf->limit_rate, 0) != 0;
}


static ngx_int_t
ngx_http_h3_limits_response_buffers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, size_t window)
{
    size_t                     size;
    ngx_http_upstream_conf_t  *conf;

    conf = ngx_http_h3_limits_upstream_conf(r, b);
    if (conf == NULL) {
        return NGX_ERROR;
    }

    conf->max_temp_file_size = 0;

    if (conf->buffer_size + conf->bufs.num * conf->bufs.size <= window) {
        return NGX_OK;
    }

    /* two buffers at least: one is filled while the other is sent */

    size = window > conf->buffer_size ? window - conf->buffer_size : 0;
    size = ngx_max(size, 2048);

    conf->bufs.size = ngx_min(conf->bufs.size, size / 2);
    conf->bufs.num = size / conf->bufs.size;

    conf->busy_buffers_size = ngx_min(conf->busy_buffers_size,
                                      (conf->bufs.num - 1) * conf->bufs.size);

    return NGX_OK;
}


/*
 * Counts at what the upstream sends: a cache must not grow any more either.
 * The filters to be metered are chosen when they are initialized, later.
 */

static void
ngx_http_h3_limits_response_meter(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->input_filter_init == ngx_http_h3_limits_response_input_init
        || (u->buffering && u->pipe->input_ctx != r))
    {
        return;
    }

    if (u->input_filter == NULL) {

        /* as nginx does, but later */

        u->input_filter_init = ngx_http_upstream_non_buffered_filter_init;
        u->input_filter = ngx_http_upstream_non_buffered_filter;
        u->input_filter_ctx = r;
    }

    b->input_init = u->input_filter_init;
    b->input_ctx = u->input_filter_ctx;

    u->input_filter_init = ngx_http_h3_limits_response_input_init;
    u->input_filter_ctx = r;
}


static ngx_int_t
ngx_http_h3_limits_response_input_init(void *data)
{
    ngx_http_request_t *r = data;

    ngx_http_upstream_t        *u;
    ngx_http_h3_limits_body_t  *b;

    u = r->upstream;
    b = ngx_http_h3_limits_body_get(r);

    if (b->input_init
        && b->input_init(u->buffering ? r : b->input_ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (u->buffering) {
        b->pipe_filter = u->pipe->input_filter;
        u->pipe->input_filter = ngx_http_h3_limits_response_pipe;

    } else {
        b->input_filter = u->input_filter;
        u->input_filter = ngx_http_h3_limits_response_input;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_response_input(void *data, ssize_t bytes)
{
    ngx_http_request_t *r = data;

    ngx_chain_t               **ll;
    ngx_http_upstream_t        *u;
    ngx_http_h3_limits_body_t  *b;

    u = r->upstream;
    b = ngx_http_h3_limits_body_get(r);

    for (ll = &u->out_bufs; *ll; ll = &(*ll)->next) { /* void */ }

    if (b->input_filter(b->input_ctx, bytes) == NGX_ERROR) {
        return NGX_ERROR;
    }

    return ngx_http_h3_limits_response_add(r, *ll);
}


static ngx_int_t
ngx_http_h3_limits_response_pipe(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_int_t                   rc;
    ngx_chain_t               **ll;
    ngx_http_request_t         *r;
    ngx_http_h3_limits_body_t  *b;

    r = p->output_ctx;
    b = ngx_http_h3_limits_body_get(r);

    ll = p->in ? p->last_in : &p->in;

    rc = b->pipe_filter(p, buf);

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_h3_limits_response_add(r, *ll);
}


static ngx_int_t
ngx_http_h3_limits_response_add(ngx_http_request_t *r, ngx_chain_t *cl)
{
    ngx_http_h3_limits_body_t      *b;
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    b = ngx_http_h3_limits_body_get(r);
    hlcf = ngx_http_get_module_loc_conf(r, ngx_http_v3_limits_module);

    b->sent += ngx_http_h3_limits_body_size(cl);

    if (b->sent <= hlcf->max_body_size) {
        return NGX_OK;
    }

    return ngx_http_h3_limits_response_too_large(r, b, hlcf->max_body_size);
}


static ngx_int_t
ngx_http_h3_limits_response_too_large(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, off_t max)
{
    ngx_http_h3_limits_count(b->hmcf, NGX_HTTP_H3_LIMITS_CUT);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "upstream sent too large response, "
                  "\"http3_max_body_size\" allows %O bytes", max);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_h3_limits_response_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in)
{
    ngx_int_t                   rc;
    ngx_http_h3_limits_body_t  *b;

    rc = ngx_http_next_body_filter(r, in);

    if (r->main->http_version != NGX_HTTP_VERSION_30) {
        return rc;
    }

    b = ngx_http_h3_limits_body_get(r);

    if (b == NULL || !b->response) {
        return rc;
    }

    ngx_http_h3_limits_body_held(b, &b->response_held,
                                 ngx_http_h3_limits_body_size(r->out));

    if (!b->response_paused && r->out && !r->connection->write->ready) {
        b->response_paused = 1;
        ngx_http_h3_limits_count(b->hmcf, NGX_HTTP_H3_LIMITS_PAUSED);
    }

    return rc;
}
