
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The $quic_... variables: the route of a session, which may change from one
 * datagram to the next.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_router.h"
#include "ngx_stream_upstream_quic_lb_module.h"


static ngx_int_t ngx_stream_quic_lb_routed_by_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_lb_config_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_lb_server_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_lb_dcid_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_stream_quic_lb_version_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static ngx_stream_quic_lb_route_t *ngx_stream_quic_lb_variable_route(
    ngx_stream_session_t *s, ngx_stream_variable_value_t *v);
static ngx_int_t ngx_stream_quic_lb_variable_hex(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, u_char *src, size_t len);


static ngx_stream_variable_t  ngx_stream_quic_lb_vars[] = {

    { ngx_string("quic_routed_by"), NULL,
      ngx_stream_quic_lb_routed_by_variable, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_config_id"), NULL,
      ngx_stream_quic_lb_config_id_variable, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_server_id"), NULL,
      ngx_stream_quic_lb_server_id_variable, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_dcid"), NULL,
      ngx_stream_quic_lb_dcid_variable, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

    { ngx_string("quic_version"), NULL,
      ngx_stream_quic_lb_version_variable, 0,
      NGX_STREAM_VAR_NOCACHEABLE, 0 },

      ngx_stream_null_variable
};


/* by ngx_stream_quic_lb_by_e */

static const ngx_str_t  ngx_stream_quic_lb_by_names[] = {
    ngx_null_string,
    ngx_string("server_id"),
    ngx_string("maglev_server_id"),
    ngx_string("cid"),
    ngx_string("connection"),
    ngx_string("address"),
    ngx_string("maglev"),
    ngx_string("upstream")
};


ngx_int_t
ngx_stream_quic_lb_add_variables(ngx_conf_t *cf)
{
    ngx_stream_variable_t  *var, *v;

    for (v = ngx_stream_quic_lb_vars; v->name.len; v++) {
        var = ngx_stream_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_routed_by_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    const ngx_str_t             *name;
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_quic_lb_variable_route(s, v);
    if (route == NULL) {
        return NGX_OK;
    }

    if (route->by == NGX_STREAM_QUIC_LB_NONE) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &ngx_stream_quic_lb_by_names[route->by];

    ngx_stream_quic_lb_variable_set(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_config_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                      *p;
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_quic_lb_variable_route(s, v);
    if (route == NULL) {
        return NGX_OK;
    }

    if (route->config_id == NGX_STREAM_QUIC_LB_NO_CONFIG) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    *p = (u_char) ('0' + route->config_id);

    ngx_stream_quic_lb_variable_set(v, p, 1);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_server_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_quic_lb_variable_route(s, v);
    if (route == NULL) {
        return NGX_OK;
    }

    return ngx_stream_quic_lb_variable_hex(s, v, route->server_id,
                                           route->server_id_len);
}


static ngx_int_t
ngx_stream_quic_lb_dcid_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_quic_lb_variable_route(s, v);
    if (route == NULL) {
        return NGX_OK;
    }

    return ngx_stream_quic_lb_variable_hex(s, v, route->dcid, route->dcid_len);
}


static ngx_int_t
ngx_stream_quic_lb_version_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    size_t                       len;
    u_char                      *p;
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_quic_lb_variable_route(s, v);
    if (route == NULL) {
        return NGX_OK;
    }

    if (route->version == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, sizeof("0x00000001") - 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    len = ngx_sprintf(p, "0x%08xD", route->version) - p;

    ngx_stream_quic_lb_variable_set(v, p, len);

    return NGX_OK;
}


/* returns the route of |s|, or NULL with |v| not found */

static ngx_stream_quic_lb_route_t *
ngx_stream_quic_lb_variable_route(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v)
{
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL) {
        v->not_found = 1;
    }

    return route;
}


static ngx_int_t
ngx_stream_quic_lb_variable_hex(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, u_char *src, size_t len)
{
    u_char  *p;

    if (len == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, 2 * len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_hex_dump(p, src, len);
    ngx_stream_quic_lb_variable_set(v, p, 2 * len);

    return NGX_OK;
}


void
ngx_stream_quic_lb_variable_set(ngx_stream_variable_value_t *v, u_char *data,
    size_t len)
{
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = len;
    v->data = data;
}
