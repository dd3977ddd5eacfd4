
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Learned connection IDs: those that backends without a server ID have issued,
 * as far as they are seen, that is in long headers.
 *
 * The key is the connection ID alone, so a packet finds its backend from any
 * address and on any worker.  Entered by what backends send, never by what
 * clients do: nobody can claim the ID of another's connection, and the first
 * backend that issues an ID keeps it.  An ID that a client has used is
 * confirmed; others are the first to go, and are never more than what the
 * confirmed ones leave.  Removed when idle for the timeout, or as the one that
 * was used the longest ago when there is no room.  In shared memory, of a fixed
 * size, kept over a reload; a look-up takes the lock of the zone, and is needed
 * only when the DCID of a flow changes.
 *
 * The master frees the lock of a worker that is killed.  So whoever takes it
 * has the table checked, and made good again: quic_lb_learned.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"
#include "quic_lb_learned.h"

#include <openssl/rand.h>


/*
 * Octets.  Short headers do not tell the length of their connection ID, so a
 * shorter one would too often match by chance.
 */

#define NGX_STREAM_QUIC_PT_CID_MIN      4

/* ms; servers seldom keep a silent connection for longer */

#define NGX_STREAM_QUIC_PT_CID_TIMEOUT  300000

/* ms after which it is told again that an ID is in use */

#define NGX_STREAM_QUIC_PT_CID_TOUCH    5000

static ngx_int_t ngx_stream_quic_pt_cid_parse_zone(ngx_conf_t *cf,
    ngx_str_t *value, ngx_str_t *name, ssize_t *size);
static ngx_int_t ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static quic_lb_learned_t *ngx_stream_quic_pt_cid_lock(
    ngx_stream_quic_pt_cids_t *cids);
static void ngx_stream_quic_pt_cid_unlock(ngx_stream_quic_pt_cids_t *cids);
static quic_lb_learned_entry_t *ngx_stream_quic_pt_cid_find(
    ngx_stream_quic_pt_cids_t *cids, quic_lb_learned_t *learned,
    quic_lb_packet_t *pkt);
static ngx_uint_t ngx_stream_quic_pt_cid_of_client(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static ngx_uint_t ngx_stream_quic_pt_cid_needless(
    ngx_stream_quic_lb_router_t *router, ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt);


static const ngx_str_t  ngx_stream_quic_pt_cid_tag =
    ngx_string("quic_passthrough_cid_zone");


char *
ngx_stream_quic_pt_cid_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ssize_t                     size;
    ngx_str_t                  *value, name, s;
    ngx_uint_t                  i;
    ngx_shm_zone_t             *zone;
    ngx_stream_quic_pt_cids_t  *cids;

    if (pscf->cids != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        pscf->cids = NULL;
        return NGX_CONF_OK;
    }

    cids = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_cids_t));
    if (cids == NULL) {
        return NGX_CONF_ERROR;
    }

    cids->timeout = NGX_STREAM_QUIC_PT_CID_TIMEOUT;

    ngx_str_null(&name);
    size = 0;

    for (i = 1; i < cf->args->nelts; i++) {

        if (name.len == 0 && ngx_strncmp(value[i].data, "zone=", 5) == 0) {

            if (ngx_stream_quic_pt_cid_parse_zone(cf, &value[i], &name, &size)
                != NGX_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_strncmp(value[i].data, "timeout=", 8) == 0) {

            s.data = value[i].data + 8;
            s.len = value[i].len - 8;

            cids->timeout = ngx_parse_time(&s, 0);

            if (cids->timeout != (ngx_msec_t) NGX_ERROR
                && cids->timeout != 0)
            {
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" of \"%V\", it must be "
                           "\"zone=name[:size]\" or \"timeout=time\"",
                           &value[i], &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (name.len == 0) {
        return "must have the \"zone\" parameter";
    }

    /* without a size it is a zone that is declared elsewhere */

    zone = ngx_shared_memory_add(cf, &name, size,
                                 (void *) &ngx_stream_quic_pt_cid_tag);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    zone->init = ngx_stream_quic_pt_cid_init_zone;
    zone->data = zone;

    cids->zone = zone;
    pscf->cids = cids;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_pt_cid_parse_zone(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *name, ssize_t *size)
{
    u_char     *p, *last;
    ngx_str_t   s;

    name->data = value->data + 5;
    last = value->data + value->len;

    p = ngx_strlchr(name->data, last, ':');

    name->len = (p ? p : last) - name->data;

    if (name->len == 0) {
        goto invalid;
    }

    if (p == NULL) {
        return NGX_OK;
    }

    s.data = p + 1;
    s.len = last - s.data;

    *size = ngx_parse_size(&s);

    if (*size == NGX_ERROR) {
        goto invalid;
    }

    if (*size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" in \"quic_passthrough_cid_zone\" is "
                           "too small, it must have at least %ui octets",
                           name, 8 * ngx_pagesize);
        return NGX_ERROR;
    }

    return NGX_OK;

invalid:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" of "
                       "\"quic_passthrough_cid_zone\", it must be "
                       "\"zone=name[:size]\"", value);

    return NGX_ERROR;
}


/* as many entries as the zone has room for: nothing is allocated later */

static ngx_int_t
ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    void                *memory;
    size_t               n;
    ngx_slab_pool_t     *shpool;
    quic_lb_learned_t   *learned;
    quic_lb_hash_key_t   key;

    /* shpool->data stays what it is over a reload */

    if (data || shm_zone->shm.exists) {
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    learned = ngx_slab_calloc(shpool, sizeof(quic_lb_learned_t));
    if (learned == NULL) {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) &key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "RAND_bytes() failed");
        return NGX_ERROR;
    }

    n = shpool->pfree * ngx_pagesize / sizeof(quic_lb_learned_entry_t);

    while (quic_lb_learned_size(n) > shpool->pfree * ngx_pagesize) {
        n--;
    }

    memory = ngx_slab_calloc(shpool, quic_lb_learned_size(n));
    if (memory == NULL) {
        return NGX_ERROR;
    }

    quic_lb_learned_init(learned, memory, n, &key);

    shpool->data = learned;

    return NGX_OK;
}


/* the only way to the table */

static quic_lb_learned_t *
ngx_stream_quic_pt_cid_lock(ngx_stream_quic_pt_cids_t *cids)
{
    ngx_slab_pool_t    *shpool;
    quic_lb_learned_t  *learned;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    learned = shpool->data;

    if (quic_lb_learned_check(learned)) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "a worker was killed while it wrote to the zone \"%V\" "
                      "of connection IDs: the zone is repaired",
                      &cids->zone->shm.name);
    }

    return learned;
}


static void
ngx_stream_quic_pt_cid_unlock(ngx_stream_quic_pt_cids_t *cids)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;

    ngx_shmtx_unlock(&shpool->mutex);
}


ngx_int_t
ngx_stream_quic_pt_cid_route(ngx_stream_quic_pt_cids_t *cids,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    quic_lb_learned_t        *learned;
    quic_lb_learned_entry_t  *entry;

    learned = ngx_stream_quic_pt_cid_lock(cids);

    entry = ngx_stream_quic_pt_cid_find(cids, learned, pkt);

    if (entry == NULL) {
        ngx_stream_quic_pt_cid_unlock(cids);
        return NGX_DECLINED;
    }

    quic_lb_learned_confirm(learned, entry, ngx_current_msec);

    ngx_memzero(route, sizeof(ngx_stream_quic_lb_route_t));

    route->by = NGX_STREAM_QUIC_LB_CID;
    route->config_id = NGX_STREAM_QUIC_LB_NO_CONFIG;
    route->version = pkt->version;
    route->dcid_len = entry->len;
    ngx_memcpy(route->dcid, entry->id, entry->len);

    route->backend.socklen = entry->address_len;
    ngx_memcpy(&route->backend.u, entry->address, entry->address_len);

    ngx_stream_quic_pt_cid_unlock(cids);

    return NGX_OK;
}


/* a short header does not tell the length of its DCID */

static quic_lb_learned_entry_t *
ngx_stream_quic_pt_cid_find(ngx_stream_quic_pt_cids_t *cids,
    quic_lb_learned_t *learned, quic_lb_packet_t *pkt)
{
    size_t                    len, least;
    quic_lb_learned_entry_t  *entry;

    least = (pkt->type == QUIC_LB_PACKET_SHORT) ? NGX_STREAM_QUIC_PT_CID_MIN
                                                : pkt->dcid_len;

    for (len = pkt->dcid_len; len >= least && len > 0; len--) {

        entry = quic_lb_learned_find(learned, pkt->dcid, len,
                                     ngx_current_msec, cids->timeout);
        if (entry) {
            return entry;
        }
    }

    return NULL;
}


void
ngx_stream_quic_pt_cid_learn(ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt)
{
    quic_lb_learned_t             *learned;
    ngx_stream_quic_pt_flow_t     *flow;
    ngx_stream_quic_pt_cids_t     *cids;
    ngx_stream_quic_pt_router_t   *router;
    ngx_stream_quic_pt_backend_t  *backend;

    flow = leg->flow;
    backend = leg->backend;

    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);
    cids = router->cids;

    if (cids == NULL
        || pkt->scid_len < NGX_STREAM_QUIC_PT_CID_MIN
        || pkt->scid_len > QUIC_LB_CID_MAX
        || ngx_stream_quic_pt_cid_of_client(flow, pkt)
        || ngx_stream_quic_pt_cid_needless(&router->router, leg, pkt))
    {
        return;
    }

    learned = ngx_stream_quic_pt_cid_lock(cids);

    if (quic_lb_learned_find(learned, pkt->scid, pkt->scid_len,
                             ngx_current_msec, cids->timeout)
        == NULL)
    {
        (void) quic_lb_learned_insert(learned, pkt->scid, pkt->scid_len,
                                      &backend->sockaddr, backend->socklen,
                                      ngx_current_msec);

        ngx_stream_quic_pt_count(flow->listener->worker,
                                 NGX_STREAM_QUIC_PT_LEARNED, 1);
    }

    ngx_stream_quic_pt_cid_unlock(cids);
}


/*
 * The ID of a server that goes by the DCID its client chose: a client could so
 * claim the ID of another's connection.
 */

static ngx_uint_t
ngx_stream_quic_pt_cid_of_client(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    return flow->route.by != NGX_STREAM_QUIC_LB_CID
           && pkt->scid_len == flow->route.dcid_len
           && ngx_memcmp(pkt->scid, flow->route.dcid, pkt->scid_len) == 0;
}


/* whether the connection ID names its backend by itself */

static ngx_uint_t
ngx_stream_quic_pt_cid_needless(ngx_stream_quic_lb_router_t *router,
    ngx_stream_quic_pt_leg_t *leg, quic_lb_packet_t *pkt)
{
    quic_lb_packet_t              reply;
    ngx_stream_quic_lb_route_t    route;
    ngx_stream_quic_lb_server_t  *server;

    ngx_memzero(&reply, sizeof(quic_lb_packet_t));

    reply.type = QUIC_LB_PACKET_SHORT;
    reply.dcid = pkt->scid;
    reply.dcid_len = pkt->scid_len;

    if (ngx_stream_quic_lb_router_route(router, &reply, &route) != NGX_OK) {
        return 0;
    }

    server = route.server;

    return server
           && ngx_stream_quic_lb_same_address(server->sockaddr,
                                              server->socklen,
                                              &leg->backend->sockaddr.sockaddr,
                                              leg->backend->socklen);
}


void
ngx_stream_quic_pt_cid_touch(ngx_stream_quic_pt_flow_t *flow)
{
    quic_lb_learned_t           *learned;
    quic_lb_learned_entry_t     *entry;
    ngx_stream_quic_pt_cids_t   *cids;
    ngx_stream_quic_lb_route_t  *route;

    if (ngx_current_msec - flow->touched < NGX_STREAM_QUIC_PT_CID_TOUCH) {
        return;
    }

    flow->touched = ngx_current_msec;
    route = &flow->route;

    cids = ngx_stream_quic_pt_route_router(flow->listener,
                                           &flow->local.sockaddr)->cids;

    learned = ngx_stream_quic_pt_cid_lock(cids);

    entry = quic_lb_learned_find(learned, route->dcid, route->dcid_len,
                                 ngx_current_msec, cids->timeout);

    if (entry == NULL) {

        /* it had to make room */

        entry = quic_lb_learned_insert(learned, route->dcid, route->dcid_len,
                                       &route->backend.u,
                                       route->backend.socklen,
                                       ngx_current_msec);
    }

    quic_lb_learned_confirm(learned, entry, ngx_current_msec);

    ngx_stream_quic_pt_cid_unlock(cids);
}
