
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The routing table: which backend a client's datagram goes to.  In order,
 * the first match wins:
 *
 *   the DCID repeats                                   the same leg
 *   the DCID has been learned from a backend           that backend
 *   the DCID begins as those of one backend do         that backend
 *   the DCID decodes to a server                       that server
 *   it decodes, "unmapped maglev"                      Maglev over server ID
 *   long header, connection seen on this flow          its leg
 *   flow known, not the start of a connection          the flow's last leg
 *   long header                                        Maglev over the DCID
 *   short header or Handshake, nothing known           dropped
 *
 * The connections of a flow (_conn.c) are known by the pair of IDs in long
 * headers, both ways.
 *
 * With "quic_preread" a new connection, of a new flow or not, does not get here
 * before its upstream is known.  Its DCID is the client's choice and only picks
 * inside that upstream, in its later Initials, too: so those go by the
 * connection first.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_uint_t ngx_stream_quic_pt_route_names(
    ngx_stream_quic_lb_route_t *route, ngx_stream_quic_pt_leg_t *leg);
static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_route_last(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static ngx_uint_t ngx_stream_quic_pt_route_opens(quic_lb_packet_t *pkt);
static ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_route_conn_leg(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static ngx_stream_quic_pt_conn_t *ngx_stream_quic_pt_route_conn(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static void ngx_stream_quic_pt_route_prove(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_conn_t *conn, quic_lb_packet_t *pkt);
static ngx_uint_t ngx_stream_quic_pt_route_echoes(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);


/*
 * Returns the leg of the last decision if the DCID at |data| is the one it
 * was made for, else NULL.  This is the way of nearly all datagrams.
 */

ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_route_repeated(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len)
{
    size_t                       offset;
    ngx_stream_quic_pt_leg_t    *leg;
    ngx_stream_quic_lb_route_t  *route;

    leg = flow->route_leg;
    route = &flow->route;

    if (leg == NULL || leg->failed || route->dcid_len == 0) {
        return NULL;
    }

    if (data[0] & NGX_STREAM_QUIC_PT_LONG) {

        /* RFC 8999, 5.1: version and length come before the DCID */

        offset = 6;

        if (len <= offset || data[5] != route->dcid_len) {
            return NULL;
        }

        /* an Initial is still to be admitted, or refused */

        if (flow->established || flow->limited) {
            return NULL;
        }

    } else {
        offset = 1;
    }

    if (len < offset + route->dcid_len
        || ngx_memcmp(&data[offset], route->dcid, route->dcid_len) != 0)
    {
        return NULL;
    }

    return leg;
}


ngx_int_t
ngx_stream_quic_pt_route_decide(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_router_t *router, struct sockaddr *client,
    struct sockaddr *local, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route, ngx_stream_quic_pt_leg_t **leg)
{
    ngx_int_t  rc;

    *leg = NULL;

    /* only servers send these */

    if (pkt->type == QUIC_LB_PACKET_NEGOTIATION
        || pkt->type == QUIC_LB_PACKET_RETRY)
    {
        return NGX_DECLINED;
    }

    /* first, as a random ID may look as if it named a server */

    if (router->cids
        && ngx_stream_quic_pt_cid_route(router->cids, pkt, route) == NGX_OK)
    {
        return NGX_OK;
    }

    rc = ngx_stream_quic_lb_router_route(&router->router, pkt, route);

    if (flow && flow->preread && ngx_stream_quic_pt_route_opens(pkt)) {
        *leg = ngx_stream_quic_pt_route_conn_leg(flow, pkt);

        if (*leg) {

            if (rc == NGX_OK && ngx_stream_quic_pt_route_names(route, *leg)) {
                return NGX_OK;
            }

            ngx_stream_quic_lb_route_clear(route);
            route->by = NGX_STREAM_QUIC_LB_CONNECTION;
            return NGX_OK;
        }
    }

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    route->hash = ngx_stream_quic_lb_fallback_hash(pkt, client, local);

    if (flow && pkt->type != QUIC_LB_PACKET_SHORT) {
        *leg = ngx_stream_quic_pt_route_conn_leg(flow, pkt);

        if (*leg) {
            route->by = NGX_STREAM_QUIC_LB_CONNECTION;
            return NGX_OK;
        }
    }

    if (flow) {
        *leg = ngx_stream_quic_pt_route_last(flow, pkt);

        if (*leg) {
            route->by = NGX_STREAM_QUIC_LB_ADDRESS;
            return NGX_OK;
        }
    }

    if (pkt->type == QUIC_LB_PACKET_SHORT
        || pkt->type == QUIC_LB_PACKET_HANDSHAKE)
    {
        return NGX_DECLINED;
    }

    route->by = NGX_STREAM_QUIC_LB_MAGLEV;

    return NGX_OK;
}


/* whether the server ID is that of the leg's backend */

static ngx_uint_t
ngx_stream_quic_pt_route_names(ngx_stream_quic_lb_route_t *route,
    ngx_stream_quic_pt_leg_t *leg)
{
    return route->server
           && ngx_stream_quic_lb_same_address(&leg->backend->sockaddr.sockaddr,
                                              leg->backend->socklen,
                                              route->server->sockaddr,
                                              route->server->socklen);
}


void
ngx_stream_quic_pt_route_inside(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_router_t *router, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route)
{
    if (ngx_stream_quic_lb_router_route(&router->router, pkt, route) == NGX_OK
        && route->upstream == flow->upstream)
    {
        return;
    }

    ngx_stream_quic_lb_route_clear(route);

    route->by = NGX_STREAM_QUIC_LB_MAGLEV;
    route->hash = ngx_stream_quic_lb_fallback_hash(pkt, &flow->client.sockaddr,
                                                   &flow->local.sockaddr);
}


/* by this flow, or by its server's connection ID */

ngx_uint_t
ngx_stream_quic_pt_route_known(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    ngx_stream_quic_pt_conn_t    *conn;
    ngx_stream_quic_lb_route_t    route;
    ngx_stream_quic_pt_router_t  *router;

    conn = ngx_stream_quic_pt_route_conn(flow, pkt);

    if (conn && conn->known && !conn->leg->failed) {
        return 1;
    }

    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);

    return router->cids
           && ngx_stream_quic_pt_cid_route(router->cids, pkt, &route)
              == NGX_OK;
}


/*
 * The leg of a packet that only its address tells something about.  A short
 * header belongs to a connection that has been established, and so to a backend
 * that has sent some itself: a spoofed Initial does not draw it away, nor does
 * the stateless reset that any other spoofed packet is answered by.  A new
 * connection is not kept at a backend that is silent.
 */

static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_route_last(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    if (pkt->type == QUIC_LB_PACKET_SHORT
        && flow->settled && !flow->settled->failed)
    {
        return flow->settled;
    }

    if (flow->last == NULL || flow->last->failed) {
        return NULL;
    }

    if (ngx_stream_quic_pt_route_opens(pkt)
        && (!flow->last->answered
            || (flow->upstream
                && ngx_stream_quic_lb_balances(flow->upstream))))
    {
        return NULL;
    }

    return flow->last;
}


/* 0-RTT belongs to its Initial: both have the client's random DCID */

static ngx_uint_t
ngx_stream_quic_pt_route_opens(quic_lb_packet_t *pkt)
{
    return pkt->type == QUIC_LB_PACKET_INITIAL
           || pkt->type == QUIC_LB_PACKET_0RTT;
}


static ngx_stream_quic_pt_leg_t *
ngx_stream_quic_pt_route_conn_leg(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    ngx_stream_quic_pt_conn_t  *conn;

    conn = ngx_stream_quic_pt_route_conn(flow, pkt);

    return (conn && !conn->leg->failed) ? conn->leg : NULL;
}


/* the connection of a client's long header */

static ngx_stream_quic_pt_conn_t *
ngx_stream_quic_pt_route_conn(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    return ngx_stream_quic_pt_conn_find(flow,
               ngx_stream_quic_pt_conn_pair(flow, pkt->scid, pkt->scid_len,
                                            pkt->dcid, pkt->dcid_len));
}


/* both IDs in a client's long header */

void
ngx_stream_quic_pt_route_learn_client(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt, ngx_stream_quic_pt_leg_t *leg)
{
    uint64_t                    pair;
    ngx_stream_quic_pt_conn_t  *conn;

    if (pkt->type == QUIC_LB_PACKET_SHORT) {
        return;
    }

    pair = ngx_stream_quic_pt_conn_pair(flow, pkt->scid, pkt->scid_len,
                                        pkt->dcid, pkt->dcid_len);
    conn = ngx_stream_quic_pt_conn_find(flow, pair);

    if (conn == NULL) {
        conn = ngx_stream_quic_pt_conn_add(flow, pair, leg);
    }

    conn->leg = leg;
    conn->known = (pkt->type != QUIC_LB_PACKET_UNKNOWN);

    if (conn->issued) {
        ngx_stream_quic_pt_route_prove(flow, conn, pkt);
    }
}


/* the client has had the ID from the server, and so gets what is sent to it */

static void
ngx_stream_quic_pt_route_prove(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_conn_t *conn, quic_lb_packet_t *pkt)
{
    if (pkt->dcid_len < NGX_STREAM_QUIC_PT_CID_PROOF) {
        return;
    }

    ngx_stream_quic_pt_conn_prove(flow, conn);
    ngx_stream_quic_pt_flow_confirm(flow);
}


/* both IDs in a backend's long header */

void
ngx_stream_quic_pt_route_learn_server(ngx_stream_quic_pt_leg_t *leg,
    u_char *data, size_t len)
{
    uint64_t                    pair;
    quic_lb_packet_t            pkt;
    ngx_stream_quic_pt_conn_t  *conn;
    ngx_stream_quic_pt_flow_t  *flow;

    if (!(data[0] & NGX_STREAM_QUIC_PT_LONG)
        || quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK
        || pkt.type == QUIC_LB_PACKET_NEGOTIATION)
    {
        return;
    }

    flow = leg->flow;

    pair = ngx_stream_quic_pt_conn_pair(flow, pkt.dcid, pkt.dcid_len, pkt.scid,
                                        pkt.scid_len);
    conn = ngx_stream_quic_pt_conn_find(flow, pair);

    if (conn && conn->answered) {
        return;
    }

    if (conn == NULL) {
        conn = ngx_stream_quic_pt_conn_add(flow, pair, leg);
        conn->known = (pkt.type != QUIC_LB_PACKET_UNKNOWN);
        conn->issued = !ngx_stream_quic_pt_route_echoes(flow, &pkt);

        ngx_stream_quic_pt_cid_learn(leg, &pkt);
    }

    conn->answered = 1;
}


/* an ID that the client has sent proves nothing when it sends it again */

static ngx_uint_t
ngx_stream_quic_pt_route_echoes(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    if (flow->forgot
        && flow->class != NGX_STREAM_QUIC_PT_CONFIRMED
        && ngx_current_msec - flow->forgot_at < NGX_STREAM_QUIC_PT_HALF_OPEN)
    {
        return 1;
    }

    /* the whole datagram */

    return ngx_stream_quic_pt_conn_find(flow,
               ngx_stream_quic_pt_conn_pair(flow, pkt->scid, pkt->scid_len,
                                            pkt->dcid, pkt->dcid_len))
           != NULL;
}


/* whether the SCID of the backend's packet names it in all that answers it */

ngx_uint_t
ngx_stream_quic_pt_route_issued(ngx_stream_quic_pt_router_t *router,
    ngx_stream_quic_pt_leg_t *leg, quic_lb_packet_t *pkt)
{
    quic_lb_packet_t            answer;
    ngx_stream_quic_lb_route_t  route;

    ngx_memzero(&answer, sizeof(quic_lb_packet_t));

    answer.type = QUIC_LB_PACKET_HANDSHAKE;
    answer.dcid = pkt->scid;
    answer.dcid_len = pkt->scid_len;

    return pkt->scid_len <= QUIC_LB_CID_MAX
           && ngx_stream_quic_lb_router_route(&router->router, &answer, &route)
              == NGX_OK
           && ngx_stream_quic_pt_route_names(&route, leg);
}


/* the backend has sent a short header */

void
ngx_stream_quic_pt_route_settle(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = leg->flow;

    if (flow->settled == NULL || flow->settled->failed || leg->opened) {
        flow->settled = leg;
    }
}


void
ngx_stream_quic_pt_route_forget(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_leg_t *successor)
{
    ngx_stream_quic_pt_flow_t  *flow;

    flow = leg->flow;

    ngx_stream_quic_pt_conn_forget(flow, leg, successor);

    if (flow->route_leg == leg) {
        flow->route_leg = NULL;
    }

    if (flow->last == leg) {
        flow->last = NULL;
    }

    if (flow->settled == leg) {
        flow->settled = NULL;
    }
}


/* all long headers do, but Handshake packets that come with no other */

ngx_uint_t
ngx_stream_quic_pt_route_begins(quic_lb_packet_t *pkt, u_char *data,
    size_t len)
{
    const u_char     *p, *end;
    quic_lb_packet_t  next;

    next = *pkt;
    end = data + len;

    while (next.type == QUIC_LB_PACKET_HANDSHAKE) {
        p = next.payload + next.payload_len;

        if (p == end || quic_lb_packet_parse(&next, p, end - p) != QUIC_LB_OK)
        {
            return 0;
        }
    }

    return next.type != QUIC_LB_PACKET_SHORT;
}


/*
 * Returns the router of the address that |local| is: a wildcard socket may
 * serve other addresses of its port too.
 */

ngx_stream_quic_pt_router_t *
ngx_stream_quic_pt_route_router(ngx_stream_quic_pt_listener_t *listener,
    struct sockaddr *local)
{
    ngx_uint_t              i;
    ngx_stream_port_t      *port;
    struct sockaddr_in     *sin;
    ngx_stream_in_addr_t   *addr;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6    *sin6;
    ngx_stream_in6_addr_t  *addr6;
#endif

    port = listener->listening->servers;

    /* the last address is the wildcard, or the only one */

    switch (local->sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sin6 = (struct sockaddr_in6 *) local;
        addr6 = port->addrs;

        for (i = 0; i < port->naddrs - 1; i++) {
            if (ngx_memcmp(&addr6[i].addr6, &sin6->sin6_addr,
                           sizeof(struct in6_addr))
                == 0)
            {
                break;
            }
        }

        break;
#endif

    default: /* AF_INET */
        sin = (struct sockaddr_in *) local;
        addr = port->addrs;

        for (i = 0; i < port->naddrs - 1; i++) {
            if (addr[i].addr == sin->sin_addr.s_addr) {
                break;
            }
        }

        break;
    }

    return listener->routers[i];
}
