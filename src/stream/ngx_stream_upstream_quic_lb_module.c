
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_conf.h"
#include "ngx_stream_upstream_quic_lb_peers.h"


/* as many as the stock "hash" makes */

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
    ngx_uint_t                             size;      /* "quic_maglev" */
    ngx_stream_quic_lb_conf_t             *configs[QUIC_LB_CONFIG_MAX + 1];

    ngx_stream_quic_lb_router_t            router;    /* of configs alone */
    ngx_stream_upstream_quic_lb_peers_t    peers;
} ngx_stream_upstream_quic_lb_srv_conf_t;


typedef struct {
    /* the round robin data must be first */
    ngx_stream_upstream_rr_peer_data_t     rrp;

    ngx_stream_upstream_quic_lb_peers_t   *ps;
    ngx_stream_upstream_rr_peers_t        *primary;

    /* to be tried before Maglev, or NULL */
    ngx_stream_quic_lb_server_t           *server;
    uint64_t                               hash;      /* the key of Maglev */

    unsigned                               exhausted:1;  /* the primary ones */
} ngx_stream_upstream_quic_lb_peer_data_t;


static ngx_int_t ngx_stream_upstream_init_quic_lb(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);
static ngx_int_t ngx_stream_upstream_quic_lb_check_unix(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);

static ngx_int_t ngx_stream_upstream_init_quic_lb_peer(ngx_stream_session_t *s,
    ngx_stream_upstream_srv_conf_t *us);
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
static void ngx_stream_upstream_quic_lb_take(ngx_peer_connection_t *pc,
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peer_t *peer);
static ngx_uint_t ngx_stream_upstream_quic_lb_select(
    ngx_stream_upstream_quic_lb_peer_data_t *qp,
    ngx_stream_upstream_rr_peers_t *peers);
static void ngx_stream_upstream_free_quic_lb_peer(ngx_peer_connection_t *pc,
    void *data, ngx_uint_t state);

static ngx_int_t ngx_stream_upstream_quic_lb_postconfiguration(ngx_conf_t *cf);
static void *ngx_stream_upstream_quic_lb_create_conf(ngx_conf_t *cf);
static void ngx_stream_upstream_quic_lb_set_balancer(ngx_conf_t *cf);
static char *ngx_stream_upstream_quic_maglev(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_stream_upstream_quic_lb(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_conf_num_bounds_t  ngx_stream_upstream_quic_lb_server_id_bounds = {
    NULL, QUIC_LB_SERVER_ID_MIN, QUIC_LB_SERVER_ID_MAX
};


static ngx_conf_num_bounds_t  ngx_stream_upstream_quic_lb_nonce_bounds = {
    NULL, QUIC_LB_NONCE_MIN, QUIC_LB_NONCE_MAX
};


static ngx_command_t  ngx_stream_upstream_quic_lb_commands[] = {

    { ngx_string("quic_maglev"),
      NGX_STREAM_UPS_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_stream_upstream_quic_maglev,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("quic_lb"),
      NGX_STREAM_UPS_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_stream_upstream_quic_lb,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("server_id_length"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_length,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, server_id_length),
      &ngx_stream_upstream_quic_lb_server_id_bounds },

    { ngx_string("nonce_length"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_length,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, nonce_length),
      &ngx_stream_upstream_quic_lb_nonce_bounds },

    { ngx_string("key_file"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, key_file),
      NULL },

    { ngx_string("server_id"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE2,
      ngx_stream_quic_lb_conf_server_id,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("unmapped"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_TAKE1,
      ngx_stream_quic_lb_conf_unmapped,
      NGX_STREAM_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("length_self_description"),
      NGX_STREAM_QUIC_LB_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_STREAM_SRV_CONF_OFFSET,
      offsetof(ngx_stream_quic_lb_conf_t, length_self_description),
      NULL },

      ngx_null_command
};


static ngx_stream_module_t  ngx_stream_upstream_quic_lb_module_ctx = {
    ngx_stream_quic_lb_add_variables,      /* preconfiguration */
    ngx_stream_upstream_quic_lb_postconfiguration,  /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_stream_upstream_quic_lb_create_conf,  /* create server configuration */
    NULL                                   /* merge server configuration */
};


ngx_module_t  ngx_stream_upstream_quic_lb_module = {
    NGX_MODULE_V1,
    &ngx_stream_upstream_quic_lb_module_ctx,  /* module context */
    ngx_stream_upstream_quic_lb_commands,  /* module directives */
    NGX_STREAM_MODULE,                     /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_stream_upstream_init_quic_lb(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (ngx_stream_upstream_init_round_robin(cf, us) != NGX_OK) {
        return NGX_ERROR;
    }

    us->peer.init = ngx_stream_upstream_init_quic_lb_peer;

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);

    ngx_conf_init_uint_value(qcf->size, QUIC_LB_MAGLEV_SIZE);

    if (ngx_stream_upstream_quic_lb_check_unix(cf, us) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_lb_conf_init(cf, us, qcf->configs, &qcf->peers.servers)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    qcf->peers.size = qcf->size;

    if (ngx_stream_upstream_quic_lb_peers_init(cf, &qcf->peers, us)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_stream_quic_lb_router_add(cf, &qcf->router, us);
}


static ngx_int_t
ngx_stream_upstream_quic_lb_check_unix(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

        if (server[i].naddrs
            && server[i].addrs[0].sockaddr->sa_family == AF_UNIX)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "invalid address \"%V\" in \"server\" directive,"
                          " it must not be a UNIX domain socket in upstream"
                          " \"%V\" with \"quic_lb\" or \"quic_maglev\""
                          " in %s:%ui",
                          &server[i].name, &us->host, us->file_name, us->line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_upstream_init_quic_lb_peer(ngx_stream_session_t *s,
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

    route->config_id = 0xff;

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

    } else if (ngx_stream_quic_lb_router_decode(&qcf->router, &pkt, route)
               == NGX_OK)
    {
        /*
         * Only the server of a connection can go on with it, whatever its
         * state; what may begin one goes to a server that takes new ones.
         */

        if (route->server == NULL
            || pkt.type == QUIC_LB_PACKET_SHORT
            || pkt.type == QUIC_LB_PACKET_HANDSHAKE
            || ngx_stream_quic_lb_server_state(route->server) == NGX_OK)
        {
            return;
        }

        route->upstream = NULL;
        route->server = NULL;
        route->config_id = 0xff;
        route->server_id_len = 0;
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
    ngx_stream_quic_lb_server_t         *server;
    ngx_stream_upstream_rr_peer_t       *peer;
    ngx_stream_upstream_rr_peers_t      *peers;
    ngx_stream_upstream_quic_lb_list_t  *list;
    ngx_stream_upstream_quic_lb_peer_t  *entry;

    /* once: the next attempt is Maglev's */

    server = qp->server;
    qp->server = NULL;

    list = &qp->ps->primary;

    for (peers = qp->primary; peers; peers = peers->next) {

        ngx_stream_upstream_rr_peers_rlock(peers);

        if (ngx_stream_upstream_quic_lb_peers_update(qp->ps, list, peers)
            != NGX_OK)
        {
            ngx_stream_upstream_rr_peers_unlock(peers);
            return NGX_ERROR;
        }

        entry = list->servers[server->index];

        if (entry) {
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

        ngx_stream_upstream_rr_peers_unlock(peers);

        list = &qp->ps->backup;
    }

    /* "resolve" has not found it yet, or does not any more */

    qp->rrp.current = NULL;

    pc->sockaddr = server->sockaddr;
    pc->socklen = server->socklen;
    pc->name = &server->name;

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

        for (i = 1; /* void */ ; i++) {
            n = quic_lb_maglev_lookup(list->table, qp->ps->size, hash);

            ngx_log_debug2(NGX_LOG_DEBUG_STREAM, pc->log, 0,
                           "quic_lb hash:%016xL, peer:%ui", hash, n);

            if (ngx_stream_upstream_quic_lb_try(pc, qp, &list->elts[n])
                == NGX_OK)
            {
                return NGX_OK;
            }

            if (i > NGX_STREAM_UPSTREAM_QUIC_LB_TRIES) {
                break;
            }

            hash = ngx_stream_upstream_quic_lb_rehash(hash, i);
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

    if (peer->down
        || ngx_stream_upstream_quic_lb_peer_failing(peer, ngx_time())
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


ngx_int_t
ngx_stream_quic_lb_server_state(ngx_stream_quic_lb_server_t *server)
{
    ngx_int_t                                rc;
    ngx_stream_upstream_rr_peer_t           *peer;
    ngx_stream_upstream_rr_peers_t          *peers;
    ngx_stream_upstream_quic_lb_peer_t      *entry;
    ngx_stream_upstream_quic_lb_list_t      *list;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    qcf = ngx_stream_conf_upstream_srv_conf(server->upstream,
                                           ngx_stream_upstream_quic_lb_module);

    list = &qcf->peers.primary;

    for (peers = server->upstream->peer.data; peers; peers = peers->next) {

        ngx_stream_upstream_rr_peers_rlock(peers);

        entry = NULL;

        if (ngx_stream_upstream_quic_lb_peers_update(&qcf->peers, list, peers)
            == NGX_OK)
        {
            entry = list->servers[server->index];
        }

        if (entry) {
            peer = entry->peer;

            ngx_stream_upstream_rr_peer_lock(peers, peer);

            if (peer->down) {
                rc = NGX_DECLINED;

            } else if (ngx_stream_upstream_quic_lb_peer_failing(peer,
                                                                ngx_time()))
            {
                rc = NGX_BUSY;

            } else {
                rc = NGX_OK;
            }

            ngx_stream_upstream_rr_peer_unlock(peers, peer);
            ngx_stream_upstream_rr_peers_unlock(peers);

            return rc;
        }

        ngx_stream_upstream_rr_peers_unlock(peers);

        list = &qcf->peers.backup;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_lb_balances(ngx_stream_upstream_srv_conf_t *uscf)
{
    return uscf->peer.init_upstream == ngx_stream_upstream_init_quic_lb;
}


ngx_stream_quic_lb_conf_t **
ngx_stream_upstream_quic_lb_configs(ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    qcf = ngx_stream_conf_upstream_srv_conf(uscf,
                                           ngx_stream_upstream_quic_lb_module);

    return qcf->configs;
}


/* a "quic_lb" block that another balancer has replaced would be ignored */

static ngx_int_t
ngx_stream_upstream_quic_lb_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                        i, n;
    ngx_stream_quic_lb_conf_t       **configs;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_upstream_module);

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL
            || ngx_stream_quic_lb_balances(uscfp[i]))
        {
            continue;
        }

        configs = ngx_stream_upstream_quic_lb_configs(uscfp[i]);

        for (n = 0; n <= QUIC_LB_CONFIG_MAX; n++) {

            if (configs[n]) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "\"quic_lb %ui\" in upstream \"%V\" must not be"
                              " followed by another load balancing method"
                              " in %s:%ui",
                              n, &uscfp[i]->host,
                              configs[n]->file_name, configs[n]->line);
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


static void *
ngx_stream_upstream_quic_lb_create_conf(ngx_conf_t *cf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool,
                       sizeof(ngx_stream_upstream_quic_lb_srv_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->size = NGX_CONF_UNSET_UINT;

    return conf;
}


static void
ngx_stream_upstream_quic_lb_set_balancer(ngx_conf_t *cf)
{
    ngx_stream_upstream_srv_conf_t  *uscf;

    uscf = ngx_stream_conf_get_module_srv_conf(cf, ngx_stream_upstream_module);

    if (uscf->peer.init_upstream && !ngx_stream_quic_lb_balances(uscf)) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "load balancing method redefined");
    }

    /* uscf->flags already allow all that "server" may have */

    uscf->peer.init_upstream = ngx_stream_upstream_init_quic_lb;
}


static char *
ngx_stream_upstream_quic_maglev(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf = conf;

    ngx_int_t   size;
    ngx_str_t  *value;

    if (qcf->size != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    ngx_stream_upstream_quic_lb_set_balancer(cf);

    if (cf->args->nelts == 1) {
        qcf->size = QUIC_LB_MAGLEV_SIZE;
        return NGX_CONF_OK;
    }

    value = cf->args->elts;

    if (ngx_strncmp(value[1].data, "size=", 5) != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive,"
                           " it must be \"size=number\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    size = ngx_atoi(value[1].data + 5, value[1].len - 5);

    if (size == NGX_ERROR
        || size > QUIC_LB_MAGLEV_SIZE_MAX
        || !quic_lb_maglev_is_prime((uint32_t) size))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " the size must be a prime number of at most %d",
                           &value[1], &cmd->name, QUIC_LB_MAGLEV_SIZE_MAX);
        return NGX_CONF_ERROR;
    }

    qcf->size = size;

    return NGX_CONF_OK;
}


static char *
ngx_stream_upstream_quic_lb(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n > QUIC_LB_CONFIG_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " the codepoint must be a number from 0 to %d",
                           &value[1], &cmd->name, QUIC_LB_CONFIG_MAX);
        return NGX_CONF_ERROR;
    }

    if (qcf->configs[n]) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate \"%V %i\", an upstream must have one"
                           " block for each codepoint", &cmd->name, n);
        return NGX_CONF_ERROR;
    }

    ngx_stream_upstream_quic_lb_set_balancer(cf);

    qcf->configs[n] = ngx_stream_quic_lb_conf_parse(cf, n);

    return qcf->configs[n] ? NGX_CONF_OK : NGX_CONF_ERROR;
}
