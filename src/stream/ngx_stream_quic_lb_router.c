
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * From a DCID to a server: the configurations of a listen address by codepoint,
 * which two upstreams may share if their server IDs tell them apart; and the
 * keys by which Maglev spreads what no configuration decodes.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_router.h"
#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


static ngx_uint_t ngx_stream_quic_lb_router_has(
    ngx_stream_quic_lb_router_t *router, ngx_stream_upstream_srv_conf_t *uscf);
static ngx_uint_t ngx_stream_quic_lb_router_in(ngx_array_t *configs,
    ngx_stream_upstream_srv_conf_t *uscf);
static ngx_int_t ngx_stream_quic_lb_router_add_conf(ngx_conf_t *cf,
    ngx_array_t **configs, ngx_stream_quic_lb_conf_t *conf);
static ngx_int_t ngx_stream_quic_lb_router_check(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *one, ngx_stream_quic_lb_conf_t *two);
static ngx_stream_quic_lb_id_t *ngx_stream_quic_lb_router_common_id(
    ngx_stream_quic_lb_conf_t *one, ngx_stream_quic_lb_conf_t *two);
static ngx_int_t ngx_stream_quic_lb_router_push(ngx_conf_t *cf,
    ngx_array_t **configs, ngx_stream_quic_lb_conf_t *conf);
static ngx_int_t ngx_stream_quic_lb_router_decode(
    ngx_stream_quic_lb_router_t *router, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route);
static ngx_uint_t ngx_stream_quic_lb_router_configured(
    ngx_stream_quic_lb_router_t *router, quic_lb_packet_t *pkt);
static ngx_int_t ngx_stream_quic_lb_router_retired(
    ngx_stream_quic_lb_router_t *router, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route);
static void ngx_stream_quic_lb_router_set_dcid(
    ngx_stream_quic_lb_route_t *route, quic_lb_packet_t *pkt, size_t max);
static ngx_int_t ngx_stream_quic_lb_router_map(
    ngx_stream_quic_lb_conf_t **confp, ngx_uint_t n,
    ngx_stream_quic_lb_route_t *route);
static u_char *ngx_stream_quic_lb_ip(u_char *p, struct sockaddr *sa);


/* balancers must agree on what goes where: never change this */

static const quic_lb_hash_key_t  ngx_stream_quic_lb_hash_key = { 0, 3 };


ngx_int_t
ngx_stream_quic_lb_router_add(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router, ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_uint_t                               i;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (!ngx_stream_quic_lb_balances(uscf)
        || ngx_stream_quic_lb_router_has(router, uscf))
    {
        return NGX_OK;
    }

    qcf = ngx_stream_conf_upstream_srv_conf(uscf,
                                           ngx_stream_upstream_quic_lb_module);

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {

        if (qcf->configs[i]
            && ngx_stream_quic_lb_router_add_conf(cf, &router->configs[i],
                                                  qcf->configs[i])
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (qcf->retired[i]
            && ngx_stream_quic_lb_router_push(cf, &router->retired[i],
                                              qcf->retired[i])
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
    ngx_uint_t  i;

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {

        if (ngx_stream_quic_lb_router_in(router->configs[i], uscf)
            || ngx_stream_quic_lb_router_in(router->retired[i], uscf))
        {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_stream_quic_lb_router_in(ngx_array_t *configs,
    ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_uint_t                   i;
    ngx_stream_quic_lb_conf_t  **confp;

    if (configs == NULL) {
        return 0;
    }

    confp = configs->elts;

    for (i = 0; i < configs->nelts; i++) {
        if (confp[i]->upstream == uscf) {
            return 1;
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

    if (*configs) {

        confp = (*configs)->elts;

        for (i = 0; i < (*configs)->nelts; i++) {
            if (ngx_stream_quic_lb_router_check(cf, confp[i], conf) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return ngx_stream_quic_lb_router_push(cf, configs, conf);
}


static ngx_int_t
ngx_stream_quic_lb_router_push(ngx_conf_t *cf, ngx_array_t **configs,
    ngx_stream_quic_lb_conf_t *conf)
{
    ngx_stream_quic_lb_conf_t  **confp;

    if (*configs == NULL) {
        *configs = ngx_array_create(cf->pool, 1,
                                    sizeof(ngx_stream_quic_lb_conf_t *));
        if (*configs == NULL) {
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


/*
 * A random DCID may happen to name a server.  That decides as well as
 * anything, but not for one that shall get no new connections; while what can
 * only belong to an established connection goes to its server in any case.
 */

ngx_int_t
ngx_stream_quic_lb_router_route(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    route->unknown = 0;

    if (ngx_stream_quic_lb_router_decode(router, pkt, route) == NGX_OK
        && (route->by != NGX_STREAM_QUIC_LB_SERVER_ID
            || pkt->type == QUIC_LB_PACKET_SHORT
            || pkt->type == QUIC_LB_PACKET_HANDSHAKE
            || ngx_stream_quic_lb_server_available(route->server)))
    {
        return NGX_OK;
    }

    if (ngx_stream_quic_lb_router_retired(router, pkt, route) == NGX_OK) {
        return NGX_OK;
    }

    ngx_stream_quic_lb_route_clear(route);

    route->unknown = ngx_stream_quic_lb_router_configured(router, pkt);

    return NGX_DECLINED;
}


static ngx_uint_t
ngx_stream_quic_lb_router_configured(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt)
{
    ngx_uint_t  id;

    if (pkt->dcid_len == 0) {
        return 0;
    }

    id = quic_lb_cid_config_id(pkt->dcid[0]);

    return id <= QUIC_LB_CONFIG_MAX && router->configs[id];
}


static ngx_int_t
ngx_stream_quic_lb_router_decode(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    int                         exact;
    ngx_uint_t                  id;
    ngx_array_t                *configs;
    ngx_stream_quic_lb_conf_t  *conf;

    exact = (pkt->type != QUIC_LB_PACKET_SHORT);

    route->version = pkt->version;

    ngx_stream_quic_lb_router_set_dcid(route, pkt, exact ? QUIC_LB_CID_MAX : 0);

    if (!ngx_stream_quic_lb_router_configured(router, pkt)) {
        return NGX_DECLINED;
    }

    id = quic_lb_cid_config_id(pkt->dcid[0]);

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

    return ngx_stream_quic_lb_router_map(configs->elts, configs->nelts, route);
}


static ngx_int_t
ngx_stream_quic_lb_router_retired(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    int                          exact;
    ngx_uint_t                   i, id;
    ngx_array_t                 *retired;
    ngx_stream_quic_lb_conf_t  **confp;

    exact = (pkt->type != QUIC_LB_PACKET_SHORT);

    if (pkt->dcid_len == 0 || (exact && pkt->type != QUIC_LB_PACKET_HANDSHAKE))
    {
        return NGX_DECLINED;
    }

    id = quic_lb_cid_config_id(pkt->dcid[0]);

    if (id > QUIC_LB_CONFIG_MAX || router->retired[id] == NULL) {
        return NGX_DECLINED;
    }

    /* each decodes as it did, not as another upstream's */

    retired = router->retired[id];
    confp = retired->elts;

    for (i = 0; i < retired->nelts; i++) {

        if (quic_lb_cid_decode(&confp[i]->cid, pkt->dcid, pkt->dcid_len, exact,
                               route->server_id, NULL)
            != QUIC_LB_OK)
        {
            continue;
        }

        route->server_id_len = confp[i]->cid.server_id_len;

        if (ngx_stream_quic_lb_router_map(&confp[i], 1, route) != NGX_OK) {
            continue;
        }

        route->config_id = (u_char) id;

        if (!exact) {
            ngx_stream_quic_lb_router_set_dcid(route, pkt,
                                            quic_lb_cid_len(&confp[i]->cid));
        }

        return NGX_OK;
    }

    return NGX_DECLINED;
}


/* but for what the header tells: version and dcid */

void
ngx_stream_quic_lb_route_clear(ngx_stream_quic_lb_route_t *route)
{
    route->by = NGX_STREAM_QUIC_LB_NONE;
    route->upstream = NULL;
    route->server = NULL;
    route->config_id = NGX_STREAM_QUIC_LB_NO_CONFIG;
    route->server_id_len = 0;
}


static void
ngx_stream_quic_lb_router_set_dcid(ngx_stream_quic_lb_route_t *route,
    quic_lb_packet_t *pkt, size_t max)
{
    route->dcid_len = (u_char) ngx_min(pkt->dcid_len, max);

    ngx_memcpy(route->dcid, pkt->dcid, route->dcid_len);
}


/* takes the server ID of |route| to a server or to a key of Maglev */

static ngx_int_t
ngx_stream_quic_lb_router_map(ngx_stream_quic_lb_conf_t **confp, ngx_uint_t n,
    ngx_stream_quic_lb_route_t *route)
{
    ngx_uint_t                i;
    ngx_stream_quic_lb_id_t  *id;

    for (i = 0; i < n; i++) {

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
        route->server = NULL;
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
    u_char  *p, buf[2 * NGX_STREAM_QUIC_LB_ADDRESS_MAX];

    if (pkt->type != QUIC_LB_PACKET_SHORT
        && pkt->dcid_len
        && quic_lb_cid_config_id(pkt->dcid[0]) != QUIC_LB_CONFIG_UNROUTABLE)
    {
        return ngx_stream_quic_lb_hash(pkt->dcid, pkt->dcid_len);
    }

    p = ngx_stream_quic_lb_address(buf, client);
    p = ngx_stream_quic_lb_address(p, local);

    return ngx_stream_quic_lb_hash(buf, p - buf);
}


uint64_t
ngx_stream_quic_lb_client_hash(struct sockaddr *client)
{
    u_char  *p, buf[NGX_STREAM_QUIC_LB_ADDRESS_MAX];

    p = ngx_stream_quic_lb_ip(buf, client);

    return ngx_stream_quic_lb_hash(buf, p - buf);
}


uint64_t
ngx_stream_quic_lb_hash(const void *data, size_t len)
{
    return quic_lb_hash(&ngx_stream_quic_lb_hash_key, data, len);
}


u_char *
ngx_stream_quic_lb_address(u_char *p, struct sockaddr *sa)
{
    u_char     *last;
    in_port_t   port;

    last = ngx_stream_quic_lb_ip(p, sa);

    if (last == p) {
        return p;
    }

    port = ngx_inet_get_port(sa);

    *last++ = (u_char) (port >> 8);
    *last++ = (u_char) (port & 0xff);

    return last;
}


u_char *
ngx_stream_quic_lb_address_key(u_char *p, struct sockaddr *sa)
{
    p = ngx_stream_quic_lb_address(p, sa);

    return ngx_stream_quic_lb_zone(p, sa);
}


u_char *
ngx_stream_quic_lb_zone(u_char *p, struct sockaddr *sa)
{
#if (NGX_HAVE_INET6)
    uint32_t              zone;
    struct sockaddr_in6  *sin6;

    if (sa->sa_family != AF_INET6) {
        return p;
    }

    sin6 = (struct sockaddr_in6 *) sa;
    zone = sin6->sin6_scope_id;

    if (zone) {
        p = ngx_cpymem(p, &zone, sizeof(uint32_t));
    }
#endif

    return p;
}


ngx_uint_t
ngx_stream_quic_lb_same_address(struct sockaddr *one, socklen_t len1,
    struct sockaddr *two, socklen_t len2)
{
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *first, *second;
#endif

    if (ngx_cmp_sockaddr(one, len1, two, len2, 1) != NGX_OK) {
        return 0;
    }

#if (NGX_HAVE_INET6)
    if (one->sa_family == AF_INET6) {
        first = (struct sockaddr_in6 *) one;
        second = (struct sockaddr_in6 *) two;

        return first->sin6_scope_id == second->sin6_scope_id;
    }
#endif

    return 1;
}


/*
 * An address that a dual-stack socket shows as IPv6 is the IPv4 address that
 * another balancer, or another socket, may see.
 */

static u_char *
ngx_stream_quic_lb_ip(u_char *p, struct sockaddr *sa)
{
    struct sockaddr_in   *sin;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    switch (sa->sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sin6 = (struct sockaddr_in6 *) sa;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            return ngx_cpymem(p, &sin6->sin6_addr.s6_addr[12], 4);
        }

        return ngx_cpymem(p, &sin6->sin6_addr, 16);
#endif

    case AF_INET:
        sin = (struct sockaddr_in *) sa;
        return ngx_cpymem(p, &sin->sin_addr, 4);

    default:
        return p;
    }
}
