
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The choice of a peer.  The server of a route is tried once, whatever its
 * state.  All else, and what has to be tried again, goes by Maglev to a peer
 * that is available: to that in the slot of the key, or of the key hashed again
 * and again, or else to any, first of the primary peers and then of the backup
 * ones.  The order depends on the key and the peers alone, so workers and
 * balancers agree.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


/* rehashes: as many as the stock "hash" makes */

#define NGX_STREAM_UPSTREAM_QUIC_LB_TRIES  20


/* the bit of the peer at |position| in its list */

#define ngx_stream_upstream_quic_lb_tried_word(qp, position)                  \
    (qp)->rrp.tried[(position) / (8 * sizeof(uintptr_t))]

#define ngx_stream_upstream_quic_lb_tried_bit(position)                       \
    ((uintptr_t) 1 << (position) % (8 * sizeof(uintptr_t)))

#define ngx_stream_upstream_quic_lb_tried(qp, position)                       \
    (ngx_stream_upstream_quic_lb_tried_word(qp, position)                     \
     & ngx_stream_upstream_quic_lb_tried_bit(position))

#define ngx_stream_upstream_quic_lb_set_tried(qp, position)                   \
    ngx_stream_upstream_quic_lb_tried_word(qp, position)                      \
        |= ngx_stream_upstream_quic_lb_tried_bit(position)


typedef struct {
    /* the round robin data must be first */
    ngx_stream_upstream_rr_peer_data_t     rrp;

    ngx_stream_upstream_quic_lb_peers_t   *ps;
    ngx_stream_upstream_rr_peers_t        *primary;

    /* to be tried before Maglev, or NULL */
    ngx_stream_quic_lb_server_t           *server;
    uint64_t                               hash;      /* the key of Maglev */

    unsigned                               exhausted:1;  /* the primary ones */
    unsigned                               regardless:1; /* of failures */
} ngx_stream_upstream_quic_lb_peer_data_t;


static ngx_stream_quic_lb_route_t *ngx_stream_upstream_quic_lb_route(
    ngx_stream_session_t *s, ngx_stream_upstream_srv_conf_t *us);
static void ngx_stream_upstream_quic_lb_route_datagram(ngx_connection_t *c,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_route_t *route);

static ngx_int_t ngx_stream_upstream_get_quic_lb_peer(
    ngx_peer_connection_t *pc, void *data);
static ngx_int_t ngx_stream_upstream_get_quic_lb_server(
    ngx_peer_connection_t *pc, ngx_stream_upstream_quic_lb_peer_data_t *qp);
static ngx_int_t ngx_stream_upstream_get_quic_lb_maglev(
    ngx_peer_connection_t *pc, ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peers_t *peers);
static ngx_int_t ngx_stream_upstream_quic_lb_walk(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_quic_lb_list_t *list);
static uint64_t ngx_stream_upstream_quic_lb_rehash(uint64_t hash,
    ngx_uint_t attempt);
static ngx_int_t ngx_stream_upstream_quic_lb_try(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_quic_lb_peer_t *entry);
static ngx_uint_t ngx_stream_upstream_quic_lb_available(
    ngx_stream_upstream_rr_peer_t *peer);
static void ngx_stream_upstream_quic_lb_take(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peer_t *peer);
static ngx_uint_t ngx_stream_upstream_quic_lb_select(
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peers_t *peers);
static void ngx_stream_upstream_free_quic_lb_peer(ngx_peer_connection_t *pc,
    void *data, ngx_uint_t state);


ngx_int_t
ngx_stream_upstream_quic_lb_init_peer(ngx_stream_session_t *s,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_stream_quic_lb_route_t               *route;
    ngx_stream_upstream_quic_lb_srv_conf_t   *qcf;
    ngx_stream_upstream_quic_lb_peer_data_t  *qp;

    qp = ngx_palloc(s->connection->pool,
                    sizeof(ngx_stream_upstream_quic_lb_peer_data_t));
    if (qp == NULL) {
        return NGX_ERROR;
    }

    s->upstream->peer.data = &qp->rrp;

    if (ngx_stream_upstream_init_round_robin_peer(s, us) != NGX_OK) {
        return NGX_ERROR;
    }

    s->upstream->peer.get = ngx_stream_upstream_get_quic_lb_peer;
    s->upstream->peer.free = ngx_stream_upstream_free_quic_lb_peer;

    route = ngx_stream_get_module_ctx(s, ngx_stream_upstream_quic_lb_module);

    if (route == NULL) {
        route = ngx_stream_upstream_quic_lb_route(s, us);
        if (route == NULL) {
            return NGX_ERROR;
        }
    }

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);

    qp->ps = &qcf->peers;
    qp->primary = qp->rrp.peers;
    qp->exhausted = 0;
    qp->regardless = 0;
    qp->server = NULL;
    qp->hash = route->hash;

    if (route->server) {

        /* the key in case that the server cannot be connected to */

        qp->hash = ngx_stream_quic_lb_hash(route->dcid, route->dcid_len);

        if (route->server->upstream == us) {
            qp->server = route->server;
        }
    }

    return NGX_OK;
}


/* the route of a session that nobody has routed: of "proxy_pass" */

static ngx_stream_quic_lb_route_t *
ngx_stream_upstream_quic_lb_route(ngx_stream_session_t *s,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_connection_t            *c;
    ngx_stream_quic_lb_route_t  *route;

    c = s->connection;

    route = ngx_pcalloc(c->pool, sizeof(ngx_stream_quic_lb_route_t));
    if (route == NULL) {
        return NULL;
    }

    ngx_stream_set_ctx(s, route, ngx_stream_upstream_quic_lb_module);

    route->config_id = NGX_STREAM_QUIC_LB_NO_CONFIG;

    if (c->type == SOCK_DGRAM) {
        ngx_stream_upstream_quic_lb_route_datagram(c, us, route);
        return route;
    }

    route->by = NGX_STREAM_QUIC_LB_MAGLEV;
    route->hash = ngx_stream_quic_lb_client_hash(c->sockaddr);

    return route;
}


static void
ngx_stream_upstream_quic_lb_route_datagram(ngx_connection_t *c,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_route_t *route)
{
    ngx_buf_t                               *b;
    quic_lb_packet_t                         pkt;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);
    b = c->buffer;

    if (b == NULL
        || quic_lb_packet_parse(&pkt, b->pos, b->last - b->pos) != QUIC_LB_OK)
    {
        ngx_memzero(&pkt, sizeof(quic_lb_packet_t));

    } else if (ngx_stream_quic_lb_router_route(&qcf->router, &pkt, route)
               == NGX_OK)
    {
        return;
    }

    route->by = NGX_STREAM_QUIC_LB_MAGLEV;
    route->hash = ngx_stream_quic_lb_fallback_hash(&pkt, c->sockaddr,
                                                   c->local_sockaddr);
}


static ngx_int_t
ngx_stream_upstream_get_quic_lb_peer(ngx_peer_connection_t *pc, void *data)
{
    ngx_stream_upstream_quic_lb_peer_data_t *qp = data;

    ngx_int_t  rc;

    ngx_log_debug1(NGX_LOG_DEBUG_STREAM, pc->log, 0,
                   "get quic_lb peer, try: %ui", pc->tries);

    pc->connection = NULL;

    if (qp->server) {
        return ngx_stream_upstream_get_quic_lb_server(pc, qp);
    }

    if (!qp->exhausted) {
        rc = ngx_stream_upstream_get_quic_lb_maglev(pc, qp, qp->primary);

        if (rc != NGX_BUSY) {
            return rc;
        }

        qp->exhausted = 1;
    }

    if (qp->primary->next) {

        ngx_log_debug0(NGX_LOG_DEBUG_STREAM, pc->log, 0, "backup servers");

        rc = ngx_stream_upstream_get_quic_lb_maglev(pc, qp, qp->primary->next);

        if (rc != NGX_BUSY) {
            return rc;
        }
    }

    /*
     * All of them fail.  What is known of servers of datagrams is never sure,
     * and anybody can make one look silent, so they are tried all the same.
     */

    if (!qp->regardless) {
        qp->regardless = 1;

        rc = ngx_stream_upstream_get_quic_lb_maglev(pc, qp, qp->primary);

        if (rc != NGX_BUSY) {
            return rc;
        }
    }

    pc->name = qp->primary->name;

    return NGX_BUSY;
}


/*
 * An established connection stays while its server answers, so this asks
 * neither for failures nor for the number of connections.
 */

static ngx_int_t
ngx_stream_upstream_get_quic_lb_server(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp)
{
    ngx_int_t                            rc;
    ngx_stream_quic_lb_server_t         *server;
    ngx_stream_upstream_rr_peer_t       *peer;
    ngx_stream_upstream_rr_peers_t      *peers;
    ngx_stream_upstream_quic_lb_peer_t  *entry;

    /* once: the next attempt is Maglev's */

    server = qp->server;
    qp->server = NULL;

    peers = qp->primary;

    rc = ngx_stream_upstream_quic_lb_peers_find(qp->ps, &peers, server, &entry);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {

        /* "resolve" has not found it yet, or does not any more */

        qp->rrp.current = NULL;

        pc->sockaddr = server->sockaddr;
        pc->socklen = server->socklen;
        pc->name = &server->name;

        return NGX_OK;
    }

    /* rc == NGX_OK */

    peer = entry->peer;

    if (ngx_stream_upstream_quic_lb_select(qp, peers)) {
        ngx_stream_upstream_quic_lb_set_tried(qp, entry->position);
    }

    ngx_stream_upstream_rr_peer_lock(peers, peer);
    ngx_stream_upstream_quic_lb_take(pc, qp, peer);
    ngx_stream_upstream_rr_peer_unlock(peers, peer);
    ngx_stream_upstream_rr_peers_unlock(peers);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_upstream_get_quic_lb_maglev(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_int_t                            rc;
    ngx_stream_upstream_quic_lb_list_t  *list;

    list = (peers == qp->primary) ? &qp->ps->primary : &qp->ps->backup;

    ngx_stream_upstream_rr_peers_rlock(peers);

    if (!ngx_stream_upstream_quic_lb_select(qp, peers)) {
        rc = NGX_BUSY;

    } else if (ngx_stream_upstream_quic_lb_peers_update(qp->ps, list, peers)
               != NGX_OK)
    {
        rc = NGX_ERROR;

    } else {
        rc = ngx_stream_upstream_quic_lb_walk(pc, qp, list);
    }

    ngx_stream_upstream_rr_peers_unlock(peers);

    return rc;
}


static ngx_int_t
ngx_stream_upstream_quic_lb_walk(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_quic_lb_list_t *list)
{
    uint64_t    hash;
    ngx_uint_t  i, n;

    if (list->nelts == 0) {
        return NGX_BUSY;
    }

    hash = qp->hash;
    n = hash % list->nelts;

    if (list->table) {

        for (i = 0; i <= NGX_STREAM_UPSTREAM_QUIC_LB_TRIES; i++) {

            if (i > 0) {
                hash = ngx_stream_upstream_quic_lb_rehash(hash, i);
            }

            n = quic_lb_maglev_lookup(list->table, qp->ps->size, hash);

            ngx_log_debug2(NGX_LOG_DEBUG_STREAM, pc->log, 0,
                           "quic_lb hash:%016xL, peer:%ui", hash, n);

            if (ngx_stream_upstream_quic_lb_try(pc, qp, &list->elts[n])
                == NGX_OK)
            {
                return NGX_OK;
            }
        }
    }

    /* one live peer among many dead ones is found, by all balancers alike */

    for (i = 0; i < list->nelts; i++) {

        if (ngx_stream_upstream_quic_lb_try(pc, qp, &list->elts[n])
            == NGX_OK)
        {
            return NGX_OK;
        }

        n = (n + 1) % list->nelts;
    }

    return NGX_BUSY;
}


static uint64_t
ngx_stream_upstream_quic_lb_rehash(uint64_t hash, ngx_uint_t attempt)
{
    u_char      buf[9];
    ngx_uint_t  i;

    for (i = 0; i < 8; i++) {
        buf[i] = (u_char) (hash >> (8 * i));
    }

    buf[8] = (u_char) attempt;

    return ngx_stream_quic_lb_hash(buf, sizeof(buf));
}


/* returns NGX_OK if the peer has been taken, else NGX_DECLINED */

static ngx_int_t
ngx_stream_upstream_quic_lb_try(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_quic_lb_peer_t *entry)
{
    ngx_int_t                       rc;
    ngx_stream_upstream_rr_peer_t  *peer;

    if (ngx_stream_upstream_quic_lb_tried(qp, entry->position)) {
        return NGX_DECLINED;
    }

    peer = entry->peer;

    ngx_stream_upstream_rr_peer_lock(qp->rrp.peers, peer);

    if (ngx_stream_quic_lb_health_off(peer)
        || (!qp->regardless && !ngx_stream_upstream_quic_lb_available(peer))
        || (peer->max_conns && peer->conns >= peer->max_conns))
    {
        rc = NGX_DECLINED;

    } else {
        ngx_stream_upstream_quic_lb_take(pc, qp, peer);
        ngx_stream_upstream_quic_lb_set_tried(qp, entry->position);
        rc = NGX_OK;
    }

    ngx_stream_upstream_rr_peer_unlock(qp->rrp.peers, peer);

    return rc;
}


/* the rule of round robin, with "quic_health_check"; |peer| is locked */

static ngx_uint_t
ngx_stream_upstream_quic_lb_available(ngx_stream_upstream_rr_peer_t *peer)
{
    if (peer->down) {
        return 0;
    }

    return peer->max_fails == 0
           || peer->fails < peer->max_fails
           || ngx_time() - peer->checked > peer->fail_timeout;
}


/* |peer| is locked */

static void
ngx_stream_upstream_quic_lb_take(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peer_t *peer)
{
    time_t  now;

    qp->rrp.current = peer;

#if (nginx_version >= 1027003)
    ngx_stream_upstream_rr_peer_ref(qp->rrp.peers, peer);
#endif

    pc->sockaddr = peer->sockaddr;
    pc->socklen = peer->socklen;
    pc->name = &peer->name;

    peer->conns++;

    now = ngx_time();

    if (now - peer->checked > peer->fail_timeout) {
        peer->checked = now;
    }
}


/*
 * Makes |peers|, which are locked, those of qp->rrp.  Returns 0 if they have
 * changed since: positions in them mean nothing then, and there may be more of
 * them than bits of "tried".
 */

static ngx_uint_t
ngx_stream_upstream_quic_lb_select(ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_uint_t  n, valid;

    valid = (qp->rrp.config
             == ngx_stream_upstream_quic_lb_peers_config(peers));

    if (qp->rrp.peers == peers) {
        return valid;
    }

    qp->rrp.peers = peers;

    if (valid) {
        n = (peers->number + (8 * sizeof(uintptr_t) - 1))
                / (8 * sizeof(uintptr_t));

        ngx_memzero(qp->rrp.tried, n * sizeof(uintptr_t));
    }

    return valid;
}


static void
ngx_stream_upstream_free_quic_lb_peer(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state)
{
    ngx_stream_upstream_quic_lb_peer_data_t *qp = data;

    if (qp->rrp.current) {
        ngx_stream_upstream_free_round_robin_peer(pc, &qp->rrp, state);
        return;
    }

    /* not a peer: there is nothing to account for */

    if (pc->tries) {
        pc->tries--;
    }
}


ngx_uint_t
ngx_stream_quic_lb_server_available(ngx_stream_quic_lb_server_t *server)
{
    ngx_uint_t                               available;
    ngx_stream_upstream_rr_peers_t          *peers;
    ngx_stream_upstream_quic_lb_peer_t      *entry;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    qcf = ngx_stream_conf_upstream_srv_conf(server->upstream,
                                           ngx_stream_upstream_quic_lb_module);

    peers = server->upstream->peer.data;

    if (ngx_stream_upstream_quic_lb_peers_find(&qcf->peers, &peers, server,
                                               &entry)
        != NGX_OK)
    {
        return 1;
    }

    ngx_stream_upstream_rr_peer_lock(peers, entry->peer);
    available = ngx_stream_upstream_quic_lb_available(entry->peer);
    ngx_stream_upstream_rr_peer_unlock(peers, entry->peer);
    ngx_stream_upstream_rr_peers_unlock(peers);

    return available;
}
