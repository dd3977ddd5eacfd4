
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What variables tell about the HTTP/3 connection of a request.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


static ngx_int_t ngx_http_h3_limits_variable_requests(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_h3_limits_variable_goaway(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_h3_limits_variable_set(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uint64_t value);


static ngx_http_variable_t  ngx_http_h3_limits_vars[] = {

    { ngx_string("http3_requests"), NULL,
      ngx_http_h3_limits_variable_requests, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("http3_goaway"), NULL,
      ngx_http_h3_limits_variable_goaway, 0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_h3_limits_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_h3_limits_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return ngx_http_h3_limits_counters_add_variables(cf);
}


static ngx_int_t
ngx_http_h3_limits_variable_requests(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    uint64_t                       n;
    ngx_connection_t              *c;
    ngx_http_h3_limits_session_t  *s;

    c = r->connection;

    if (c->quic == NULL) {
        *v = ngx_http_variable_null_value;
        return NGX_OK;
    }

    s = ngx_http_h3_limits_session(c->quic->parent);
    n = s ? s->requests : ngx_http_v3_get_session(c)->next_request_id >> 2;

    return ngx_http_h3_limits_variable_set(r, v, n);
}


static ngx_int_t
ngx_http_h3_limits_variable_goaway(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_connection_t              *c;
    ngx_http_v3_session_t         *h3c;
    ngx_http_h3_limits_session_t  *s;

    c = r->connection;

    if (c->quic) {
        h3c = ngx_http_v3_get_session(c);
        s = ngx_http_h3_limits_session(c->quic->parent);

        if (s ? s->goaway_written : h3c->goaway) {
            return ngx_http_h3_limits_variable_set(r, v,
                                         s ? s->next_id : h3c->next_request_id);
        }
    }

    *v = ngx_http_variable_null_value;

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_variable_set(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uint64_t value)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(p, "%uL", value) - p;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}
