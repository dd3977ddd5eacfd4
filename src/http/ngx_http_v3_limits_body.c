
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Bodies of HTTP/3 requests and responses: their state, and what is decided
 * before a body is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


static ngx_int_t ngx_http_h3_limits_body_preaccess(ngx_http_request_t *r);
static void ngx_http_h3_limits_body_drop(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);
static void ngx_http_h3_limits_body_cleanup(void *data);


ngx_int_t
ngx_http_h3_limits_body_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_h3_limits_body_preaccess;

    ngx_http_h3_limits_upstream_init(cf);
    ngx_http_h3_limits_unknown_init(cf);

    if (ngx_http_h3_limits_request_body_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_h3_limits_response_body_init(cf);
}


static ngx_int_t
ngx_http_h3_limits_body_preaccess(ngx_http_request_t *r)
{
    ngx_http_h3_limits_body_t      *b;
    ngx_http_h3_limits_loc_conf_t  *hlcf;

    if (r != r->main || r->http_version != NGX_HTTP_VERSION_30) {
        return NGX_DECLINED;
    }

    b = ngx_http_h3_limits_body_get(r);

    if (b) {
        ngx_http_h3_limits_body_drop(r, b);
    }

    hlcf = ngx_http_get_module_loc_conf(r, ngx_http_v3_limits_module);

    if (hlcf->max_body_size == 0
        || r->headers_in.content_length_n <= hlcf->max_body_size
        || r->request_body
        || (b && b->refused))
    {
        return NGX_DECLINED;
    }

    b = ngx_http_h3_limits_body_make(r);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* error_page may lead here again */

    b->refused = 1;

    ngx_http_h3_limits_count(b->hmcf, NGX_HTTP_H3_LIMITS_TOO_LARGE);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "client intended to send too large body: %O bytes, "
                  "\"http3_max_body_size\" allows %O",
                  r->headers_in.content_length_n, hlcf->max_body_size);

    return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
}


/*
 * error_page or X-Accel-Redirect leads to a location while the body has not
 * been read to its end: an upstream there would take the part for the whole,
 * or read a body that has been refused
 */

static void
ngx_http_h3_limits_body_drop(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_request_body_t  *rb;

    rb = r->request_body;

    if (rb == NULL) {

        if (!b->refused) {
            return;
        }

    } else {

        if (!b->begun || rb->last_saved) {
            return;
        }

        rb->bufs = NULL;
    }

    ngx_http_h3_limits_look_ahead_cancel(b);
    ngx_http_h3_limits_gather_cancel(b);

    r->reading_body = 0;
    r->request_body_no_buffering = 0;
    r->headers_in.chunked = 0;
    r->headers_in.content_length = NULL;
    r->headers_in.content_length_n = -1;
}


ngx_http_h3_limits_body_t *
ngx_http_h3_limits_body_get(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t         *cln;
    ngx_http_h3_limits_body_t  *b;

    b = ngx_http_get_module_ctx(r, ngx_http_v3_limits_module);

    if (b || (!r->internal && !r->filter_finalize)) {
        return b;
    }

    /* nginx forgets the contexts at an internal redirect */

    for (cln = r->pool->cleanup; cln; cln = cln->next) {

        if (cln->handler != ngx_http_h3_limits_body_cleanup) {
            continue;
        }

        b = cln->data;

        if (b->request == r) {
            ngx_http_set_ctx(r, b, ngx_http_v3_limits_module);
            return b;
        }
    }

    return NULL;
}


ngx_http_h3_limits_body_t *
ngx_http_h3_limits_body_make(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t         *cln;
    ngx_http_h3_limits_body_t  *b;

    b = ngx_http_h3_limits_body_get(r);

    if (b) {
        return b;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_h3_limits_body_t));
    if (cln == NULL) {
        return NULL;
    }

    b = cln->data;

    ngx_memzero(b, sizeof(ngx_http_h3_limits_body_t));

    b->request = r;
    b->hmcf = ngx_http_get_module_main_conf(r, ngx_http_v3_limits_module);

    cln->handler = ngx_http_h3_limits_body_cleanup;

    ngx_http_set_ctx(r, b, ngx_http_v3_limits_module);

    return b;
}


static void
ngx_http_h3_limits_body_cleanup(void *data)
{
    ngx_http_h3_limits_body_t *b = data;

    ngx_http_h3_limits_look_ahead_cancel(b);
    ngx_http_h3_limits_gather_cancel(b);

    ngx_http_h3_limits_body_held(b, &b->request_held, 0);
    ngx_http_h3_limits_body_held(b, &b->response_held, 0);
}


void
ngx_http_h3_limits_body_held(ngx_http_h3_limits_body_t *b, off_t *held,
    off_t now)
{
    if (now != *held) {
        ngx_http_h3_limits_in_flight(b->hmcf, (ssize_t) (now - *held));
        *held = now;
    }
}


off_t
ngx_http_h3_limits_body_size(ngx_chain_t *cl)
{
    off_t  size;

    for (size = 0; cl; cl = cl->next) {
        if (ngx_buf_in_memory(cl->buf)) {
            size += cl->buf->last - cl->buf->pos;
        }
    }

    return size;
}
