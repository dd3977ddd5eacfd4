
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Frames of unknown types within a request body, which nginx has to skip
 * (RFC 9114, 9).
 *
 * nginx keeps what is left of such a frame where it keeps what is left of a
 * DATA frame.  Up to 1.30.5 it mistakes the one for the other: the rest of a
 * frame that comes in two parts is passed as data, and after a whole one as
 * many octets are, or the end of the stream is an error.  Here such data is
 * taken out, and the length forgotten when the frame is over.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


static ngx_int_t ngx_http_h3_limits_unknown_strip(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in);


/* fixes are backported without a change of the version, so nginx is asked */

void
ngx_http_h3_limits_unknown_init(ngx_conf_t *cf)
{
    ngx_buf_t                        buf;
    ngx_connection_t                 c;
    ngx_http_v3_parse_data_t         st;
    ngx_http_h3_limits_main_conf_t  *hmcf;
    u_char                           data[] = {
        NGX_HTTP_H3_LIMITS_FRAME_SKIPPED, 2, 0
    };

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_v3_limits_module);

    ngx_memzero(&c, sizeof(ngx_connection_t));
    ngx_memzero(&st, sizeof(ngx_http_v3_parse_data_t));
    ngx_memzero(&buf, sizeof(ngx_buf_t));

    c.log = cf->log;
    buf.pos = data;
    buf.last = data + sizeof(data);

    (void) ngx_http_v3_parse_data(&c, &st, &buf);

    /* one octet is left, of no data */

    hmcf->unknown_is_data = st.length != 0;
}


ngx_int_t
ngx_http_h3_limits_unknown(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in)
{
    ngx_buf_t                 *buf;
    ngx_http_v3_parse_data_t  *st;

    if (!b->hmcf->unknown_is_data) {
        return NGX_OK;
    }

    st = &r->v3_parse->body;

    if (b->unknown && *in) {
        if (ngx_http_h3_limits_unknown_strip(r, b, in) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_http_h3_limits_unknown_mend(b, st);

    if (st->state == NGX_HTTP_H3_LIMITS_PARSE_SKIP) {

        /* nothing has been read but what has been parsed */

        buf = r->request_body->buf ? r->request_body->buf : r->header_in;

        b->unknown = st->length;
        b->unknown_pos = buf->last;

        return NGX_OK;
    }

    b->unknown = 0;

    return NGX_OK;
}


void
ngx_http_h3_limits_unknown_mend(ngx_http_h3_limits_body_t *b,
    ngx_http_v3_parse_data_t *st)
{
    if (!b->hmcf->unknown_is_data) {
        return;
    }

    if (st->state == NGX_HTTP_H3_LIMITS_PARSE_SKIP && st->length == 0) {
        st->state = NGX_HTTP_H3_LIMITS_PARSE_TYPE;
    }

    if (st->state == NGX_HTTP_H3_LIMITS_PARSE_LENGTH
        || (st->state == NGX_HTTP_H3_LIMITS_PARSE_TYPE
            && st->type != NGX_HTTP_V3_FRAME_DATA))
    {
        st->length = 0;
    }
}


/*
 * What is read next begins with the rest of the frame, so data that begins
 * there is none.
 */

static ngx_int_t
ngx_http_h3_limits_unknown_strip(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in)
{
    size_t                    size;
    ngx_buf_t                *buf;
    ngx_http_request_body_t  *rb;

    rb = r->request_body;
    buf = (*in)->buf;

    if (!buf->temporary
        || (buf->pos != b->unknown_pos && buf->pos != rb->buf->start))
    {
        return NGX_OK;
    }

    size = ngx_min((size_t) (buf->last - buf->pos), b->unknown);

    buf->pos += size;
    rb->received -= size;

    if (buf->pos != buf->last) {
        return NGX_OK;
    }

    return ngx_http_h3_limits_body_copy(r, in, 1);
}
