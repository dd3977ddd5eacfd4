
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Error codes of request streams, where nginx has others than RFC 9114 and
 * RFC 9204 want.
 *
 * nginx answers a malformed request by 400.  It never gets to the phases, so
 * one that did not is reset with H3_MESSAGE_ERROR (RFC 9114, 4.1.2) as soon as
 * the header of the 400 is to be sent.  A field section that cannot be decoded
 * is an internal error to nginx, and no response: this is seen in the log
 * phase, which comes before nginx resets the stream.  A stream that was reset
 * once is not reset again, so the code given first is the one that is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


/* of RFC 9114, 8.1; nginx has no name for it */

#define NGX_HTTP_H3_LIMITS_MESSAGE_ERROR  0x10e

/*
 * from this state on ngx_http_v3_parse_headers() is inside of the field
 * section of a HEADERS frame
 */

#define NGX_HTTP_H3_LIMITS_FIELD_SECTION  4


static ngx_http_h3_limits_stream_t *ngx_http_h3_limits_codes_stream(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_codes_post_read(ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_codes_header_filter(ngx_http_request_t *r);
static ngx_uint_t ngx_http_h3_limits_codes_malformed(ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_codes_log(ngx_http_request_t *r);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


ngx_int_t
ngx_http_h3_limits_codes_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt             *h;
    ngx_http_core_main_conf_t       *cmcf;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_v3_limits_module);

    if (!hmcf->limit_requests) {
        return NGX_OK;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_POST_READ_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_h3_limits_codes_post_read;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_h3_limits_codes_log;

    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_h3_limits_codes_header_filter;

    return NGX_OK;
}


/* NULL: not a stream of HTTP/3, or one that is left to nginx */

static ngx_http_h3_limits_stream_t *
ngx_http_h3_limits_codes_stream(ngx_http_request_t *r)
{
    if (r->connection->quic == NULL || r != r->main) {
        return NULL;
    }

    return ngx_http_h3_limits_stream(r->connection);
}


static ngx_int_t
ngx_http_h3_limits_codes_post_read(ngx_http_request_t *r)
{
    ngx_http_h3_limits_stream_t  *stream;

    stream = ngx_http_h3_limits_codes_stream(r);

    if (stream) {
        stream->processed = 1;
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_h3_limits_codes_header_filter(ngx_http_request_t *r)
{
    ngx_http_h3_limits_stream_t  *stream;

    if (r->err_status != NGX_HTTP_BAD_REQUEST) {
        return ngx_http_next_header_filter(r);
    }

    stream = ngx_http_h3_limits_codes_stream(r);

    if (stream == NULL
        || stream->processed
        || !ngx_http_h3_limits_codes_malformed(r))
    {
        return ngx_http_next_header_filter(r);
    }

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "http3 limits: malformed request");

    (void) ngx_quic_reset_stream(r->connection,
                                 NGX_HTTP_H3_LIMITS_MESSAGE_ERROR);

    return NGX_ERROR;
}


/*
 * nginx's own codes for a header that is too large, and for what is wrong with
 * the client's certificate, are 400 by now, too: they stay what they are
 */

static ngx_uint_t
ngx_http_h3_limits_codes_malformed(ngx_http_request_t *r)
{
    ngx_http_ssl_srv_conf_t    *sscf;
    ngx_http_v3_parse_field_t  *field;
#if (nginx_version >= 1029008)
    ngx_http_core_srv_conf_t   *cscf;
#endif

    field = &r->v3_parse->headers.field_rep.field;

    if (field->name.len + field->value.len > r->v3_parse->header_limit) {
        return 0;
    }

#if (nginx_version >= 1029008)

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    if (r->headers_in.count > cscf->max_headers) {
        return 0;
    }

#endif

    sscf = ngx_http_get_module_srv_conf(r, ngx_http_ssl_module);

    return !sscf->verify;
}


static ngx_int_t
ngx_http_h3_limits_codes_log(ngx_http_request_t *r)
{
    ngx_connection_t             *c;
    ngx_http_h3_limits_stream_t  *stream;

    stream = ngx_http_h3_limits_codes_stream(r);
    c = r->connection;

    if (stream == NULL
        || stream->processed
        || r->header_sent
        || r->v3_parse == NULL
        || c->timedout
        || c->close)
    {
        return NGX_OK;
    }

    if (c->read->eof) {
        (void) ngx_quic_reset_stream(c, NGX_HTTP_V3_ERR_REQUEST_INCOMPLETE);
        return NGX_OK;
    }

    if (!c->read->error
        && r->v3_parse->headers.state >= NGX_HTTP_H3_LIMITS_FIELD_SECTION)
    {
        (void) ngx_quic_reset_stream(c, NGX_HTTP_V3_ERR_DECOMPRESSION_FAILED);
    }

    return NGX_OK;
}
