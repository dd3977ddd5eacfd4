
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_conf.h"


/* an IPv6 address and a port */

#define NGX_STREAM_QUIC_LB_ADDRESS_MAX  (16 + 2)


static ngx_uint_t ngx_stream_quic_lb_router_has(
    ngx_stream_quic_lb_router_t *router, ngx_stream_upstream_srv_conf_t *uscf);
static ngx_int_t ngx_stream_quic_lb_router_add_conf(ngx_conf_t *cf,
    ngx_array_t **configs, ngx_stream_quic_lb_conf_t *conf);
static ngx_int_t ngx_stream_quic_lb_router_check(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *one, ngx_stream_quic_lb_conf_t *two);
static ngx_stream_quic_lb_id_t *ngx_stream_quic_lb_router_common_id(
    ngx_stream_quic_lb_conf_t *one, ngx_stream_quic_lb_conf_t *two);
static void ngx_stream_quic_lb_router_set_dcid(
    ngx_stream_quic_lb_route_t *route, quic_lb_packet_t *pkt, size_t max);
static ngx_int_t ngx_stream_quic_lb_router_map(ngx_array_t *configs,
    ngx_stream_quic_lb_route_t *route);
static size_t ngx_stream_quic_lb_address(u_char *buf, struct sockaddr *sa,
    ngx_uint_t with_port);

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
static ngx_int_t ngx_stream_quic_lb_hex_value(ngx_stream_session_t *s,
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
    ngx_string("connection"),
    ngx_string("cid"),
    ngx_string("address"),
    ngx_string("maglev"),
    ngx_string("upstream")
};


/* balancers must agree on what goes where: never change this */

static const quic_lb_hash_key_t  ngx_stream_quic_lb_hash_key = { 0, 3 };


ngx_int_t
ngx_stream_quic_lb_router_add(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_uint_t                   i;
    ngx_stream_quic_lb_conf_t  **configs;

    if (!ngx_stream_quic_lb_balances(uscf)
        || ngx_stream_quic_lb_router_has(router, uscf))
    {
        return NGX_OK;
    }

    configs = ngx_stream_upstream_quic_lb_configs(uscf);

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {

        if (configs[i] == NULL) {
            continue;
        }

        if (ngx_stream_quic_lb_router_add_conf(cf, &router->configs[i],
                                               configs[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_lb_router_has(ngx_stream_quic_lb_router_t *router,
    ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_uint_t                   i, j;
    ngx_stream_quic_lb_conf_t  **confp;

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {

        if (router->configs[i] == NULL) {
            continue;
        }

        confp = router->configs[i]->elts;

        for (j = 0; j < router->configs[i]->nelts; j++) {
            if (confp[j]->upstream == uscf) {
                return 1;
            }
        }
    }

    return 0;
}


static ngx_int_t
ngx_stream_quic_lb_router_add_conf(ngx_conf_t *cf, ngx_array_t **configs,
    ngx_stream_quic_lb_conf_t *conf)
{
    ngx_uint_t                   i;
    ngx_stream_quic_lb_conf_t  **confp;

    if (*configs == NULL) {
        *configs = ngx_array_create(cf->pool, 1,
                                    sizeof(ngx_stream_quic_lb_conf_t *));
        if (*configs == NULL) {
            return NGX_ERROR;
        }
    }

    confp = (*configs)->elts;

    for (i = 0; i < (*configs)->nelts; i++) {
        if (ngx_stream_quic_lb_router_check(cf, confp[i], conf) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    confp = ngx_array_push(*configs);
    if (confp == NULL) {
        return NGX_ERROR;
    }

    *confp = conf;

    return NGX_OK;
}


/* whether two upstreams may share a codepoint at one listen address */

static ngx_int_t
ngx_stream_quic_lb_router_check(ngx_conf_t *cf, ngx_stream_quic_lb_conf_t *one,
    ngx_stream_quic_lb_conf_t *two)
{
    const char               *directive;
    ngx_stream_quic_lb_id_t  *id;

    directive = ngx_stream_quic_lb_conf_differs(one, two);

    if (directive) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_lb %ui\" of upstreams \"%V\" and \"%V\" share a"
                      " listen address and must have the same \"%s\""
                      " in %s:%ui",
                      two->config_id, &one->upstream->host,
                      &two->upstream->host, directive,
                      two->file_name, two->line);
        return NGX_ERROR;
    }

    if (one->unmapped == NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_lb %ui\" of upstreams \"%V\" and \"%V\" share a"
                      " listen address and must not have \"unmapped maglev\","
                      " which names no upstream in %s:%ui",
                      two->config_id, &one->upstream->host,
                      &two->upstream->host, two->file_name, two->line);
        return NGX_ERROR;
    }

    id = ngx_stream_quic_lb_router_common_id(one, two);

    if (id) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"server_id %V\" in \"quic_lb %ui\" of upstreams \"%V\""
                      " and \"%V\", which share a listen address,"
                      " must be in one of them in %s:%ui",
                      &id->text, two->config_id, &one->upstream->host,
                      &two->upstream->host, id->file_name, id->line);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_stream_quic_lb_id_t *
ngx_stream_quic_lb_router_common_id(ngx_stream_quic_lb_conf_t *one,
    ngx_stream_quic_lb_conf_t *two)
{
    ngx_uint_t                i;
    ngx_stream_quic_lb_id_t  *id;

    id = two->ids.elts;

    for (i = 0; i < two->ids.nelts; i++) {
        if (ngx_stream_quic_lb_conf_find(one, id[i].id)) {
            return &id[i];
        }
    }

    return NULL;
}


ngx_int_t
ngx_stream_quic_lb_router_decode(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    int                         exact;
    ngx_uint_t                  id;
    ngx_array_t                *configs;
    ngx_stream_quic_lb_conf_t  *conf;

    exact = (pkt->type != QUIC_LB_PACKET_SHORT);

    route->by = NGX_STREAM_QUIC_LB_NONE;
    route->upstream = NULL;
    route->server = NULL;
    route->version = pkt->version;
    route->config_id = 0xff;
    route->server_id_len = 0;

    ngx_stream_quic_lb_router_set_dcid(route, pkt, exact ? QUIC_LB_CID_MAX : 0);

    if (pkt->dcid_len == 0) {
        return NGX_DECLINED;
    }

    id = quic_lb_cid_config_id(pkt->dcid[0]);

    if (id > QUIC_LB_CONFIG_MAX || router->configs[id] == NULL) {
        return NGX_DECLINED;
    }

    /* all configurations of a codepoint decode alike */

    configs = router->configs[id];
    conf = *(ngx_stream_quic_lb_conf_t **) configs->elts;

    if (!exact) {
        ngx_stream_quic_lb_router_set_dcid(route, pkt,
                                           quic_lb_cid_len(&conf->cid));
    }

    if (quic_lb_cid_decode(&conf->cid, pkt->dcid, pkt->dcid_len, exact,
                           route->server_id, NULL)
        != QUIC_LB_OK)
    {
        return NGX_DECLINED;
    }

    route->config_id = (u_char) id;
    route->server_id_len = conf->cid.server_id_len;

    if (ngx_stream_quic_lb_router_map(configs, route) == NGX_OK) {
        return NGX_OK;
    }

    route->config_id = 0xff;
    route->server_id_len = 0;

    return NGX_DECLINED;
}


static void
ngx_stream_quic_lb_router_set_dcid(ngx_stream_quic_lb_route_t *route,
    quic_lb_packet_t *pkt, size_t max)
{
    route->dcid_len = (u_char) ngx_min(pkt->dcid_len, max);

    ngx_memcpy(route->dcid, pkt->dcid, route->dcid_len);
}


/* maps the server ID of |route| */

static ngx_int_t
ngx_stream_quic_lb_router_map(ngx_array_t *configs,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_uint_t                   i;
    ngx_stream_quic_lb_id_t     *id;
    ngx_stream_quic_lb_conf_t  **confp;

    confp = configs->elts;

    for (i = 0; i < configs->nelts; i++) {

        id = ngx_stream_quic_lb_conf_find(confp[i], route->server_id);

        if (id) {
            route->by = NGX_STREAM_QUIC_LB_SERVER_ID;
            route->upstream = confp[i]->upstream;
            route->server = id->server;
            return NGX_OK;
        }
    }

    /* such a configuration has the codepoint for itself */

    if (confp[0]->unmapped == NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV) {
        route->by = NGX_STREAM_QUIC_LB_MAGLEV_SERVER_ID;
        route->upstream = confp[0]->upstream;
        route->hash = ngx_stream_quic_lb_hash(route->server_id,
                                              route->server_id_len);
        return NGX_OK;
    }

    return NGX_DECLINED;
}


uint64_t
ngx_stream_quic_lb_fallback_hash(quic_lb_packet_t *pkt,
    struct sockaddr *client, struct sockaddr *local)
{
    size_t  len;
    u_char  buf[2 * NGX_STREAM_QUIC_LB_ADDRESS_MAX];

    if (pkt->type != QUIC_LB_PACKET_SHORT
        && pkt->dcid_len
        && quic_lb_cid_config_id(pkt->dcid[0]) != QUIC_LB_CONFIG_UNROUTABLE)
    {
        return ngx_stream_quic_lb_hash(pkt->dcid, pkt->dcid_len);
    }

    len = ngx_stream_quic_lb_address(buf, client, 1);
    len += ngx_stream_quic_lb_address(buf + len, local, 1);

    return ngx_stream_quic_lb_hash(buf, len);
}


uint64_t
ngx_stream_quic_lb_client_hash(struct sockaddr *client)
{
    size_t  len;
    u_char  buf[NGX_STREAM_QUIC_LB_ADDRESS_MAX];

    len = ngx_stream_quic_lb_address(buf, client, 0);

    return ngx_stream_quic_lb_hash(buf, len);
}


/*
 * Writes the octets of an IP address, and of its port if asked, to |buf|.  An
 * address that a dual-stack socket shows as IPv6 is the IPv4 address that
 * another balancer may see.
 */

static size_t
ngx_stream_quic_lb_address(u_char *buf, struct sockaddr *sa,
    ngx_uint_t with_port)
{
    u_char               *p;
    in_port_t             port;
    struct sockaddr_in   *sin;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    switch (sa->sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sin6 = (struct sockaddr_in6 *) sa;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            p = ngx_cpymem(buf, &sin6->sin6_addr.s6_addr[12], 4);

        } else {
            p = ngx_cpymem(buf, &sin6->sin6_addr, 16);
        }

        break;
#endif

    case AF_INET:
        sin = (struct sockaddr_in *) sa;
        p = ngx_cpymem(buf, &sin->sin_addr, 4);
        break;

    default:
        return 0;
    }

    if (with_port) {
        port = ngx_inet_get_port(sa);

        *p++ = (u_char) (port >> 8);
        *p++ = (u_char) (port & 0xff);
    }

    return p - buf;
}


uint64_t
ngx_stream_quic_lb_hash(const void *data, size_t len)
{
    return quic_lb_hash(&ngx_stream_quic_lb_hash_key, data, len);
}


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
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL || route->by == NGX_STREAM_QUIC_LB_NONE) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = ngx_stream_quic_lb_by_names[route->by].len;
    v->data = ngx_stream_quic_lb_by_names[route->by].data;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_config_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                      *p;
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL || route->config_id > QUIC_LB_CONFIG_MAX) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    *p = (u_char) ('0' + route->config_id);

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = 1;
    v->data = p;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_server_id_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_stream_quic_lb_hex_value(s, v, route->server_id,
                                        route->server_id_len);
}


static ngx_int_t
ngx_stream_quic_lb_dcid_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_stream_quic_lb_hex_value(s, v, route->dcid, route->dcid_len);
}


static ngx_int_t
ngx_stream_quic_lb_version_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    u_char                      *p;
    ngx_stream_quic_lb_route_t  *route;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL || route->version == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    p = ngx_pnalloc(s->connection->pool, sizeof("0x00000001") - 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = ngx_sprintf(p, "0x%08xD", route->version) - p;
    v->data = p;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_hex_value(ngx_stream_session_t *s,
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

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = ngx_hex_dump(p, src, len) - p;
    v->data = p;

    return NGX_OK;
}
