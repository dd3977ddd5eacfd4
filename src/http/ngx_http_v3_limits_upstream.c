
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What upstreams need for a body that is passed while it is received, and
 * what they do when they answer before it is over.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_body.h"


static ngx_module_t *ngx_http_h3_limits_upstream_module(ngx_conf_t *cf,
    const char *name);
static ngx_uint_t ngx_http_h3_limits_upstream_offset(ngx_module_t *module,
    const char *name);
static ngx_uint_t ngx_http_h3_limits_upstream_is(ngx_http_upstream_t *u,
    ngx_module_t *module);
static void *ngx_http_h3_limits_upstream_field(ngx_http_request_t *r,
    ngx_module_t *module, ngx_uint_t offset);
static ngx_int_t ngx_http_h3_limits_upstream_create_request(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_h3_limits_upstream_output(void *data,
    ngx_chain_t *in);
static void ngx_http_h3_limits_upstream_consume(ngx_chain_t *cl);
static void ngx_http_h3_limits_upstream_send_handler(ngx_http_request_t *r,
    ngx_http_upstream_t *u);


void
ngx_http_h3_limits_upstream_init(ngx_conf_t *cf)
{
    ngx_http_h3_limits_upstreams_t  *hu;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_v3_limits_module);
    hu = &hmcf->upstreams;

    /* a module that is not built in cannot be named at link time */

    hu->proxy = ngx_http_h3_limits_upstream_module(cf,
                                                   "ngx_http_proxy_module");
    hu->proxy_v2 = ngx_http_h3_limits_upstream_module(cf,
                                                  "ngx_http_proxy_v2_module");
    hu->fastcgi = ngx_http_h3_limits_upstream_module(cf,
                                                   "ngx_http_fastcgi_module");
    hu->uwsgi = ngx_http_h3_limits_upstream_module(cf,
                                                   "ngx_http_uwsgi_module");
    hu->scgi = ngx_http_h3_limits_upstream_module(cf,
                                                  "ngx_http_scgi_module");

    hu->proxy_http_version = ngx_http_h3_limits_upstream_offset(hu->proxy,
                                                        "proxy_http_version");
    hu->proxy_set_body = ngx_http_h3_limits_upstream_offset(hu->proxy,
                                                            "proxy_set_body");
}


static ngx_module_t *
ngx_http_h3_limits_upstream_module(ngx_conf_t *cf, const char *name)
{
    ngx_uint_t      i;
    ngx_module_t  **modules;

    modules = cf->cycle->modules;

    for (i = 0; modules[i]; i++) {
        if (ngx_strcmp(modules[i]->name, name) == 0) {
            return modules[i];
        }
    }

    return NULL;
}


/* the configurations of modules are private, the directives are not */

static ngx_uint_t
ngx_http_h3_limits_upstream_offset(ngx_module_t *module, const char *name)
{
    ngx_command_t  *cmd;

    if (module == NULL) {
        return 0;
    }

    for (cmd = module->commands; cmd->name.len; cmd++) {
        if (ngx_strcmp(cmd->name.data, name) == 0) {
            return cmd->offset;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_h3_limits_upstream_is(ngx_http_upstream_t *u, ngx_module_t *module)
{
    return module && u->output.tag == (ngx_buf_tag_t) module;
}


static void *
ngx_http_h3_limits_upstream_field(ngx_http_request_t *r,
    ngx_module_t *module, ngx_uint_t offset)
{
    return (u_char *) r->loc_conf[module->ctx_index] + offset;
}


ngx_uint_t
ngx_http_h3_limits_upstream_needs_length(ngx_http_request_t *r)
{
    ngx_uint_t                      *version;
    ngx_http_upstream_t             *u;
    ngx_http_h3_limits_upstreams_t  *hu;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    u = r->upstream;
    hmcf = ngx_http_get_module_main_conf(r, ngx_http_v3_limits_module);
    hu = &hmcf->upstreams;

    if (ngx_http_h3_limits_upstream_is(u, hu->scgi)
        || ngx_http_h3_limits_upstream_is(u, hu->uwsgi))
    {
        return 1;
    }

    if (!ngx_http_h3_limits_upstream_is(u, hu->proxy)) {
        return 0;
    }

    version = ngx_http_h3_limits_upstream_field(r, hu->proxy,
                                                hu->proxy_http_version);

    return *version < NGX_HTTP_VERSION_11;
}


ngx_uint_t
ngx_http_h3_limits_upstream_wants_length(ngx_http_request_t *r)
{
    ngx_http_h3_limits_main_conf_t  *hmcf;

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_v3_limits_module);

    return ngx_http_h3_limits_upstream_is(r->upstream,
                                          hmcf->upstreams.fastcgi);
}


ngx_uint_t
ngx_http_h3_limits_upstream_has_own_body(ngx_http_request_t *r)
{
    ngx_str_t                       *source;
    ngx_http_upstream_t             *u;
    ngx_http_h3_limits_upstreams_t  *hu;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    u = r->upstream;
    hmcf = ngx_http_get_module_main_conf(r, ngx_http_v3_limits_module);
    hu = &hmcf->upstreams;

    /* both have the configuration of the first */

    if (!ngx_http_h3_limits_upstream_is(u, hu->proxy)
        && !ngx_http_h3_limits_upstream_is(u, hu->proxy_v2))
    {
        return 0;
    }

    source = ngx_http_h3_limits_upstream_field(r, hu->proxy,
                                               hu->proxy_set_body);

    return source->data != NULL;
}


ngx_http_upstream_conf_t *
ngx_http_h3_limits_upstream_conf(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_upstream_t       *u;
    ngx_http_upstream_conf_t  *conf;

    u = r->upstream;

    if (b->conf && u->conf == b->conf) {
        return b->conf;
    }

    conf = ngx_palloc(r->pool, sizeof(ngx_http_upstream_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    *conf = *u->conf;

    b->conf = conf;
    u->conf = conf;

    return conf;
}


ngx_int_t
ngx_http_h3_limits_upstream_pass(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_upstream_t       *u;
    ngx_http_upstream_conf_t  *conf;

    u = r->upstream;

    if (u->conf->preserve_output) {

        /* HTTP/2, which has all of this */

        return NGX_OK;
    }

    conf = ngx_http_h3_limits_upstream_conf(r, b);
    if (conf == NULL) {
        return NGX_ERROR;
    }

    /* else nginx stops to send when the upstream begins to answer */

    conf->preserve_output = 1;

    b->create_request = u->create_request;
    u->create_request = ngx_http_h3_limits_upstream_create_request;

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_upstream_create_request(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_buf_t                   buf;
    ngx_chain_t                 body;
    ngx_http_upstream_t        *u;
    ngx_http_h3_limits_body_t  *b;

    u = r->upstream;
    b = ngx_http_h3_limits_body_get(r);

    if (r->reading_body && b->declared > 0
        && ngx_http_h3_limits_upstream_is(u, b->hmcf->upstreams.scgi))
    {
        /*
         * before 1.29.6 the length told to an SCGI server was that of the
         * bufs, even if the body was unbuffered; they are not used otherwise
         */

        ngx_memzero(&buf, sizeof(ngx_buf_t));

        buf.in_file = 1;
        buf.file_last = b->declared;

        body.buf = &buf;
        body.next = NULL;

        u->request_bufs = &body;
    }

    rc = b->create_request(r);

    if (rc != NGX_OK || !r->request_body_no_buffering) {
        return rc;
    }

    if (u->output.output_filter == NULL) {
        u->output.output_filter = ngx_chain_writer;
        u->output.filter_ctx = &u->writer;
    }

    b->output_filter = u->output.output_filter;
    b->output_ctx = u->output.filter_ctx;

    u->output.output_filter = ngx_http_h3_limits_upstream_output;
    u->output.filter_ctx = r;

    return NGX_OK;
}


/*
 * An upstream that wants no more of a body may answer and close.  What is sent
 * then fails, but the answer is there: so it is read before the upstream is
 * given up, and what is left of the body goes nowhere.
 */

static ngx_int_t
ngx_http_h3_limits_upstream_output(void *data, ngx_chain_t *in)
{
    ngx_http_request_t *r = data;

    ngx_int_t                   rc;
    ngx_connection_t           *c;
    ngx_http_upstream_t        *u;
    ngx_http_h3_limits_body_t  *b;

    u = r->upstream;
    c = u->peer.connection;
    b = ngx_http_h3_limits_body_get(r);

    if (!c->write->error) {
        rc = b->output_filter(b->output_ctx, in);

        if (rc != NGX_ERROR || !c->write->error) {
            return rc;
        }

        c->read->ready = 1;
        ngx_post_event(c->read, &ngx_posted_events);
    }

    ngx_http_h3_limits_upstream_consume(in);
    ngx_http_h3_limits_upstream_consume(u->writer.out);

    u->writer.out = NULL;
    u->writer.last = &u->writer.out;

    return r->reading_body ? NGX_OK : NGX_AGAIN;
}


static void
ngx_http_h3_limits_upstream_consume(ngx_chain_t *cl)
{
    for ( /* void */ ; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


void
ngx_http_h3_limits_upstream_answers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (b->create_request == NULL || !r->request_body_no_buffering
        || u->create_request != ngx_http_h3_limits_upstream_create_request)
    {
        return;
    }

    b->send_handler = u->write_event_handler;
    u->write_event_handler = ngx_http_h3_limits_upstream_send_handler;
}


/* an upstream that has answered need not read on */

static void
ngx_http_h3_limits_upstream_send_handler(ngx_http_request_t *r,
    ngx_http_upstream_t *u)
{
    ngx_connection_t           *c;
    ngx_http_h3_limits_body_t  *b;

    c = u->peer.connection;

    if (c->write->timedout) {
        c->write->timedout = 0;

        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, c->log, 0,
                       "http3 limits: upstream reads no more of the body");

        return;
    }

    b = ngx_http_h3_limits_body_get(r);

    b->send_handler(r, u);
}
