
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include "ngx_stream_quic_lb_target.h"


/* lines in a second */
#define NGX_STREAM_QUIC_LB_COMPLAINTS  8

/* names in a line */
#define NGX_STREAM_QUIC_LB_NAMES       8


static ngx_stream_upstream_srv_conf_t *ngx_stream_quic_lb_target_group(
    ngx_stream_session_t *s, ngx_stream_upstream_resolved_t *ur);


ngx_stream_upstream_srv_conf_t *
ngx_stream_quic_lb_target_upstream(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf
            && uscfp[i]->host.len == name->len
            && ngx_strncasecmp(uscfp[i]->host.data, name->data, name->len) == 0)
        {
            return uscfp[i];
        }
    }

    return NULL;
}


ngx_int_t
ngx_stream_quic_lb_target_names(ngx_conf_t *cf, ngx_str_t *names)
{
    size_t                            len;
    u_char                           *p;
    ngx_uint_t                        i, n;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    len = sizeof("the upstreams are , ...") - 1;

    for (i = 0; i < umcf->upstreams.nelts; i++) {
        len += sizeof(", \"\"") - 1 + uscfp[i]->host.len;
    }

    names->data = ngx_pnalloc(cf->temp_pool, len);
    if (names->data == NULL) {
        return NGX_ERROR;
    }

    p = names->data;
    n = 0;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        if (n == NGX_STREAM_QUIC_LB_NAMES) {
            p = ngx_sprintf(p, ", ...");
            break;
        }

        p = ngx_sprintf(p, "%s\"%V\"", n++ ? ", " : "the upstreams are ",
                        &uscfp[i]->host);
    }

    if (n == 0) {
        p = ngx_sprintf(p, "there are none");
    }

    names->len = p - names->data;

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_lb_target_level(ngx_stream_quic_lb_complaints_t *complaints)
{
    if (complaints->second != ngx_time()) {
        complaints->second = ngx_time();
        complaints->lines = 0;
    }

    if (complaints->lines == NGX_STREAM_QUIC_LB_COMPLAINTS) {
        return NGX_LOG_DEBUG;
    }

    complaints->lines++;

    return NGX_LOG_ERR;
}


ngx_int_t
ngx_stream_quic_lb_target_eval(ngx_stream_session_t *s,
    ngx_stream_complex_value_t *value, const char *directive,
    ngx_stream_quic_lb_complaints_t *complaints,
    ngx_stream_upstream_srv_conf_t **uscf,
    ngx_stream_upstream_resolved_t **ur)
{
    ngx_str_t                        host;
    ngx_url_t                        url;
    ngx_uint_t                       level;
    ngx_stream_upstream_resolved_t  *resolved;

    if (ngx_stream_complex_value(s, value, &host) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&url, sizeof(ngx_url_t));

    url.url = host;
    url.no_resolve = 1;

    if (ngx_parse_url(s->connection->pool, &url) != NGX_OK) {
        level = ngx_stream_quic_lb_target_level(complaints);

        ngx_log_error(level, s->connection->log, 0,
                      "%s in \"%s\" value \"%V\"",
                      url.err ? url.err : "error", directive, &host);
        return NGX_ERROR;
    }

    resolved = ngx_pcalloc(s->connection->pool,
                           sizeof(ngx_stream_upstream_resolved_t));
    if (resolved == NULL) {
        return NGX_ERROR;
    }

    resolved->host = url.host;
    resolved->port = url.port;
    resolved->no_port = url.no_port;

    if (url.addrs) {
        resolved->sockaddr = url.addrs[0].sockaddr;
        resolved->socklen = url.addrs[0].socklen;
        resolved->name = url.addrs[0].name;
        resolved->naddrs = 1;
    }

    *ur = NULL;
    *uscf = ngx_stream_quic_lb_target_group(s, resolved);

    if (*uscf) {
        return NGX_OK;
    }

    *ur = resolved;

    if (resolved->port == 0) {
        level = ngx_stream_quic_lb_target_level(complaints);

        ngx_log_error(level, s->connection->log, 0,
                      "\"%s\" value \"%V\" is neither an upstream nor an "
                      "address with a port", directive, &host);
        return NGX_ERROR;
    }

    return resolved->sockaddr ? NGX_OK : NGX_AGAIN;
}


static ngx_stream_upstream_srv_conf_t *
ngx_stream_quic_lb_target_group(ngx_stream_session_t *s,
    ngx_stream_upstream_resolved_t *ur)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_get_module_main_conf(s, ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->host.len == ur->host.len
            && ((uscfp[i]->port == 0 && ur->no_port)
                || uscfp[i]->port == ur->port)
            && ngx_strncasecmp(uscfp[i]->host.data, ur->host.data,
                               ur->host.len)
               == 0)
        {
            return uscfp[i];
        }
    }

    return NULL;
}


ngx_int_t
ngx_stream_quic_lb_target_resolve(ngx_stream_session_t *s,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_upstream_resolved_t *ur,
    ngx_stream_quic_lb_complaints_t *complaints,
    ngx_resolver_handler_pt handler, void *data)
{
    ngx_uint_t           level;
    ngx_resolver_ctx_t  *ctx, temp;

    temp.name = ur->host;

    ctx = ngx_resolve_start(cscf->resolver, &temp);
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    if (ctx == NGX_NO_RESOLVER) {
        level = ngx_stream_quic_lb_target_level(complaints);

        ngx_log_error(level, s->connection->log, 0,
                      "no resolver defined to resolve %V", &ur->host);
        return NGX_ERROR;
    }

    ctx->name = ur->host;
    ctx->handler = handler;
    ctx->data = data;
    ctx->timeout = cscf->resolver_timeout;

    ur->ctx = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        ur->ctx = NULL;
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_lb_target_resolved(ngx_stream_session_t *s,
    ngx_resolver_ctx_t *ctx, ngx_stream_quic_lb_complaints_t *complaints)
{
    ngx_uint_t  level;

    if (ctx->state == 0) {
        return NGX_OK;
    }

    level = ngx_stream_quic_lb_target_level(complaints);

    ngx_log_error(level, s->connection->log, 0,
                  "%V could not be resolved (%i: %s)",
                  &ctx->name, ctx->state, ngx_resolver_strerror(ctx->state));

    return NGX_ERROR;
}
