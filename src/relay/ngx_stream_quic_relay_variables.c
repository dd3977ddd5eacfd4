
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Variables of a session, and counters of all workers.
 */


#include "ngx_stream_quic_relay_module.h"


/* what a variable of a session tells, by a number: these are texts */

#define NGX_STREAM_QUIC_RELAY_VAR_TYPE  0
#define NGX_STREAM_QUIC_RELAY_VAR_BY    1


static ngx_int_t ngx_stream_quic_relay_variable_number(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_code(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_text(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_alpn(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_reused(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_total(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_relay_variable_set(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uint64_t n);


static ngx_stream_variable_t  ngx_stream_quic_relay_vars[] = {

    { ngx_string("quic_relay_streams"), NULL,
      ngx_stream_quic_relay_variable_number,
      offsetof(ngx_stream_quic_relay_t, nstreams),
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_datagrams"), NULL,
      ngx_stream_quic_relay_variable_number,
      offsetof(ngx_stream_quic_relay_t, ndatagrams),
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_datagrams_dropped"), NULL,
      ngx_stream_quic_relay_variable_number,
      offsetof(ngx_stream_quic_relay_t, ndropped),
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_alpn_protocols"), NULL,
      ngx_stream_quic_relay_variable_alpn, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_ssl_session_reused"), NULL,
      ngx_stream_quic_relay_variable_reused, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_close_code"), NULL,
      ngx_stream_quic_relay_variable_code, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_close_type"), NULL,
      ngx_stream_quic_relay_variable_text, NGX_STREAM_QUIC_RELAY_VAR_TYPE,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_relay_closed_by"), NULL,
      ngx_stream_quic_relay_variable_text, NGX_STREAM_QUIC_RELAY_VAR_BY,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

      ngx_stream_null_variable
};


/* in the order of ngx_stream_quic_relay_total_e */

static ngx_str_t  ngx_stream_quic_relay_totals[] = {
    ngx_string("quic_relay_total_connections"),
    ngx_string("quic_relay_total_refused"),
    ngx_string("quic_relay_total_evicted"),
    ngx_string("quic_relay_total_upstream_failed"),
    ngx_string("quic_relay_total_streams"),
    ngx_string("quic_relay_total_datagrams"),
    ngx_string("quic_relay_total_datagrams_dropped"),
    ngx_string("quic_relay_total_handed_over"),
    ngx_string("quic_relay_total_handover_lost"),
    ngx_string("quic_relay_total_stateless_resets"),
    ngx_string("quic_relay_total_retries")
};


ngx_int_t
ngx_stream_quic_relay_add_variables(ngx_conf_t *cf)
{
    ngx_uint_t              i;
    ngx_stream_variable_t  *var, *v;

    for (v = ngx_stream_quic_relay_vars; v->name.len; v++) {
        var = ngx_stream_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    for (i = 0; i < NGX_STREAM_QUIC_RELAY_TOTALS; i++) {
        var = ngx_stream_add_variable(cf, &ngx_stream_quic_relay_totals[i],
                                      NGX_STREAM_VAR_NOCACHEABLE);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = ngx_stream_quic_relay_variable_total;
        var->data = i;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_variable_number(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_relay_t  *relay;

    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (relay == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_stream_quic_relay_variable_set(s, v,
                                   *(ngx_uint_t *) ((u_char *) relay + data));
}


static ngx_int_t
ngx_stream_quic_relay_variable_code(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_relay_t  *relay;

    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (relay == NULL || relay->end.by == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_stream_quic_relay_variable_set(s, v, relay->end.code);
}


static ngx_int_t
ngx_stream_quic_relay_variable_text(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    const char               *text;
    ngx_stream_quic_relay_t  *relay;

    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (relay == NULL || relay->end.by == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    text = relay->end.by;

    if (data == NGX_STREAM_QUIC_RELAY_VAR_TYPE) {
        text = relay->end.application ? "application" : "transport";
    }

    v->len = ngx_strlen(text);
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = (u_char *) text;

    return NGX_OK;
}


/* the offer as on the wire: a name's length becomes the comma before it */

static ngx_int_t
ngx_stream_quic_relay_variable_alpn(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                   *p;
    size_t                    pos, size;
    ngx_stream_quic_relay_t  *relay;

    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (relay == NULL || relay->alpn_len == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, relay->alpn_len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, relay->alpn, relay->alpn_len);

    for (pos = 0; pos < relay->alpn_len; pos += 1 + size) {
        size = p[pos];
        p[pos] = ',';
    }

    v->len = relay->alpn_len - 1;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p + 1;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_variable_reused(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_relay_t  *relay;

    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (relay == NULL || !relay->answered) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->len = 1;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = (u_char *) (relay->reused ? "r" : ".");

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_variable_total(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    rmcf = ngx_stream_get_module_main_conf(s, ngx_stream_quic_relay_module);

    if (rmcf->shared == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_stream_quic_relay_variable_set(s, v,
                                              rmcf->shared->totals[data]);
}


static ngx_int_t
ngx_stream_quic_relay_variable_set(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uint64_t n)
{
    u_char  *p;

    p = ngx_pnalloc(s->connection->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(p, "%uL", n) - p;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}
