
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Where a relay goes, and the name that its upstream has to prove: both may
 * have variables.  A name that is to be resolved makes the client wait.
 */


#include "ngx_stream_quic_relay_module.h"


static ngx_int_t ngx_stream_quic_relay_target_group(
    ngx_stream_quic_relay_t *relay, ngx_stream_upstream_srv_conf_t *uscf);
static ngx_int_t ngx_stream_quic_relay_target_name(
    ngx_stream_quic_relay_t *relay, ngx_str_t *host);
static void ngx_stream_quic_relay_target_resolved(ngx_resolver_ctx_t *ctx);


ngx_int_t
ngx_stream_quic_relay_target(ngx_stream_quic_relay_t *relay)
{
    ngx_int_t                          rc;
    ngx_stream_session_t              *s;
    ngx_stream_upstream_srv_conf_t    *uscf;
    ngx_stream_upstream_resolved_t    *ur;
    ngx_stream_quic_relay_srv_conf_t  *conf;

    s = relay->session;
    conf = relay->conf;

    if (conf->upstream) {
        return ngx_stream_quic_relay_target_group(relay, conf->upstream);
    }

    rc = ngx_stream_quic_lb_target_eval(s, conf->upstream_value, "quic_relay",
                                        &relay->worker->complaints, &uscf,
                                        &ur);
    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (uscf) {
        return ngx_stream_quic_relay_target_group(relay, uscf);
    }

    s->upstream->resolved = ur;

    if (ngx_stream_quic_relay_target_name(relay, &ur->host) != NGX_OK) {
        return NGX_ERROR;
    }

    if (rc == NGX_OK) {
        return ngx_stream_upstream_create_round_robin_peer(s, ur);
    }

    rc = ngx_stream_quic_lb_target_resolve(s, conf->core, ur,
                                       &relay->worker->complaints,
                                       ngx_stream_quic_relay_target_resolved,
                                       relay);

    return (rc == NGX_OK) ? NGX_AGAIN : NGX_ERROR;
}


static ngx_int_t
ngx_stream_quic_relay_target_group(ngx_stream_quic_relay_t *relay,
    ngx_stream_upstream_srv_conf_t *uscf)
{
    relay->session->upstream->upstream = uscf;

    if (ngx_stream_quic_relay_target_name(relay, &uscf->host) != NGX_OK) {
        return NGX_ERROR;
    }

    return uscf->peer.init(relay->session, uscf);
}


/* never an empty one, by which any certificate would do */

static ngx_int_t
ngx_stream_quic_relay_target_name(ngx_stream_quic_relay_t *relay,
    ngx_str_t *host)
{
    ngx_str_t                          name;
    ngx_stream_quic_relay_srv_conf_t  *conf;

    conf = relay->conf;
    ngx_str_null(&name);

    if (conf->ssl_name
        && ngx_stream_complex_value(relay->session, conf->ssl_name, &name)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (name.len == 0) {
        name = *host;
    }

    /* an IPv6 address as certificates have it */

    if (name.len > 2
        && name.data[0] == '['
        && name.data[name.len - 1] == ']')
    {
        name.data++;
        name.len -= 2;
    }

    if (name.len == 0
        || ngx_strlchr(name.data, name.data + name.len, '\0'))
    {
        ngx_log_error(ngx_stream_quic_relay_target_level(relay),
                      relay->upstream.log, 0,
                      "quic relay: name \"%V\" cannot be verified", &name);
        return NGX_ERROR;
    }

    relay->ssl_name.len = name.len;
    relay->ssl_name.data = ngx_pnalloc(relay->pool, name.len + 1);

    if (relay->ssl_name.data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_cpystrn(relay->ssl_name.data, name.data, name.len + 1);

    return NGX_OK;
}


static void
ngx_stream_quic_relay_target_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_int_t                        rc;
    ngx_stream_quic_relay_t         *relay;
    ngx_stream_upstream_resolved_t  *ur;

    relay = ctx->data;
    ur = relay->session->upstream->resolved;

    rc = ngx_stream_quic_lb_target_resolved(relay->session, ctx,
                                            &relay->worker->complaints);
    if (rc == NGX_OK) {
        ur->naddrs = ctx->naddrs;
        ur->addrs = ctx->addrs;

        rc = ngx_stream_upstream_create_round_robin_peer(relay->session, ur);
    }

    ngx_resolve_name_done(ctx);
    ur->ctx = NULL;

    ngx_stream_quic_relay_upstream_start(relay, rc);
}


void
ngx_stream_quic_relay_target_cancel(ngx_stream_quic_relay_t *relay)
{
    ngx_stream_upstream_resolved_t  *ur;

    ur = relay->session->upstream->resolved;

    if (ur && ur->ctx) {
        ngx_resolve_name_done(ur->ctx);
        ur->ctx = NULL;
    }
}


/* what clients may have named is logged a few times in a second only */

ngx_uint_t
ngx_stream_quic_relay_target_level(ngx_stream_quic_relay_t *relay)
{
    if (!relay->conf->named) {
        return NGX_LOG_ERR;
    }

    return ngx_stream_quic_lb_target_level(&relay->worker->complaints);
}
