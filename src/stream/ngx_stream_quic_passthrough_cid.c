
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Learned connection IDs: those that backends without a server ID have issued.
 *
 * The key is the connection ID alone, so a packet finds its backend from any
 * address and on any worker.  Entered are IDs
 *
 *   in long headers of backends, unless the client chose them;
 *   that a client changes to, when the backend answers: it has issued them
 *   inside of the connection.  Only for flows that are not half-open, and each
 *   leg has a few of them at most.
 *
 * Nobody can claim the ID of another's connection: the first backend that an
 * ID is learned of keeps it.  An ID that a client has used is confirmed; others
 * are the first to go, and are never more than what the confirmed ones leave.
 * Removed when idle for the timeout, or as the one that was used the longest
 * ago when there is no room.
 *
 * What all IDs of a backend begin with (quic_lb_prefix.h) is in a table of its
 * own, and names the backend of short headers with an ID that is not known.
 *
 * Both are in shared memory, of a fixed size, kept over a reload; a look-up
 * takes the lock of the zone, and is needed only when the DCID of a flow
 * changes.  The master frees the lock of a worker that is killed.  So whoever
 * takes it has the tables checked, and made good again: quic_lb_learned.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"
#include "quic_lb_prefix.h"


/* ms after which it is told again that an ID is in use */

#define NGX_STREAM_QUIC_PT_CID_TOUCH    5000

static ngx_stream_quic_pt_cids_sh_t *ngx_stream_quic_pt_cid_lock(
    ngx_stream_quic_pt_cids_t *cids);
static void ngx_stream_quic_pt_cid_unlock(ngx_stream_quic_pt_cids_t *cids);
static quic_lb_learned_entry_t *ngx_stream_quic_pt_cid_find(
    ngx_stream_quic_pt_cids_t *cids, ngx_stream_quic_pt_cids_sh_t *sh,
    quic_lb_packet_t *pkt);
static ngx_uint_t ngx_stream_quic_pt_cid_of_client(
    ngx_stream_quic_pt_flow_t *flow, quic_lb_packet_t *pkt);
static void ngx_stream_quic_pt_cid_insert(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_cids_sh_t *sh, const u_char *cid, size_t len);
static void ngx_stream_quic_pt_cid_changed_bound(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_cids_t *cids, ngx_stream_quic_pt_cids_sh_t *sh);
static ngx_stream_quic_pt_cids_t *ngx_stream_quic_pt_cids(
    ngx_stream_quic_pt_flow_t *flow);


/* the only way to the tables */

static ngx_stream_quic_pt_cids_sh_t *
ngx_stream_quic_pt_cid_lock(ngx_stream_quic_pt_cids_t *cids)
{
    ngx_uint_t                     repaired;
    ngx_slab_pool_t               *shpool;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    sh = shpool->data;

    repaired = quic_lb_learned_check(&sh->ids);
    repaired |= quic_lb_learned_check(&sh->prefixes);

    if (repaired) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "a worker was killed while it wrote to the zone \"%V\" "
                      "of connection IDs: the zone is repaired",
                      &cids->zone->shm.name);
    }

    return sh;
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
    ngx_uint_t                     prefix;
    quic_lb_learned_entry_t       *entry;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    sh = ngx_stream_quic_pt_cid_lock(cids);

    entry = ngx_stream_quic_pt_cid_find(cids, sh, pkt);
    prefix = 0;

    if (entry == NULL && pkt->type == QUIC_LB_PACKET_SHORT) {
        entry = quic_lb_prefix_find(&sh->prefixes, pkt->dcid, pkt->dcid_len,
                                    ngx_current_msec, cids->timeout);
        prefix = 1;
    }

    if (entry == NULL) {
        ngx_stream_quic_pt_cid_unlock(cids);
        return NGX_DECLINED;
    }

    quic_lb_learned_confirm(prefix ? &sh->prefixes : &sh->ids, entry,
                            ngx_current_msec);

    ngx_memzero(route, sizeof(ngx_stream_quic_lb_route_t));

    route->by = NGX_STREAM_QUIC_LB_CID;
    route->prefix = prefix;
    route->config_id = NGX_STREAM_QUIC_LB_NO_CONFIG;
    route->unknown = 0;
    route->version = pkt->version;
    route->dcid_len = prefix ? entry->id_len : entry->len;
    ngx_memcpy(route->dcid, pkt->dcid, route->dcid_len);

    route->backend.socklen = entry->address_len;
    ngx_memcpy(&route->backend.u, entry->address, entry->address_len);

    ngx_stream_quic_pt_cid_unlock(cids);

    return NGX_OK;
}


/* a short header does not tell the length of its DCID */

static quic_lb_learned_entry_t *
ngx_stream_quic_pt_cid_find(ngx_stream_quic_pt_cids_t *cids,
    ngx_stream_quic_pt_cids_sh_t *sh, quic_lb_packet_t *pkt)
{
    size_t                    len, least;
    quic_lb_learned_entry_t  *entry;

    least = (pkt->type == QUIC_LB_PACKET_SHORT) ? NGX_STREAM_QUIC_PT_CID_MIN
                                                : pkt->dcid_len;

    for (len = pkt->dcid_len; len >= least && len > 0; len--) {

        entry = quic_lb_learned_find(&sh->ids, pkt->dcid, len,
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
    ngx_stream_quic_pt_flow_t     *flow;
    ngx_stream_quic_pt_cids_t     *cids;
    ngx_stream_quic_pt_router_t   *router;
    ngx_stream_quic_pt_backend_t  *backend;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    flow = leg->flow;
    backend = leg->backend;

    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);
    cids = router->cids;

    if (cids == NULL
        || pkt->scid_len < NGX_STREAM_QUIC_PT_CID_MIN
        || pkt->scid_len > QUIC_LB_CID_MAX
        || ngx_stream_quic_pt_cid_of_client(flow, pkt)
        || ngx_stream_quic_pt_route_issued(router, leg, pkt))
    {
        return;
    }

    leg->id_len = pkt->scid_len;

    sh = ngx_stream_quic_pt_cid_lock(cids);

    if (quic_lb_learned_find(&sh->ids, pkt->scid, pkt->scid_len,
                             ngx_current_msec, cids->timeout)
        == NULL)
    {
        ngx_stream_quic_pt_cid_insert(leg, sh, pkt->scid, pkt->scid_len);

        quic_lb_prefix_issued(&sh->prefixes, pkt->scid, pkt->scid_len,
                              &backend->sockaddr, backend->socklen,
                              ngx_current_msec, cids->timeout);
    }

    ngx_stream_quic_pt_cid_unlock(cids);
}


/*
 * The ID of a server that goes by the DCID its client chose: a client could so
 * claim the ID of another's connection.  The flow may have forgotten the pair.
 */

static ngx_uint_t
ngx_stream_quic_pt_cid_of_client(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt)
{
    return flow->route.by != NGX_STREAM_QUIC_LB_CID
           && pkt->scid_len == flow->route.dcid_len
           && ngx_memcmp(pkt->scid, flow->route.dcid, pkt->scid_len) == 0;
}


static void
ngx_stream_quic_pt_cid_insert(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_cids_sh_t *sh, const u_char *cid, size_t len)
{
    (void) quic_lb_learned_insert(&sh->ids, cid, len, &leg->backend->sockaddr,
                                  leg->backend->socklen, ngx_current_msec);

    ngx_stream_quic_pt_count(leg->flow->listener->worker,
                             NGX_STREAM_QUIC_PT_LEARNED, 1);
}


/*
 * Not before the server answers: what it does not know it only resets, and a
 * flow of a forged address shall not enter anything.
 */

void
ngx_stream_quic_pt_cid_changed(ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt)
{
    if (pkt->type != QUIC_LB_PACKET_SHORT
        || leg->id_len == 0
        || leg->id_len > pkt->dcid_len)
    {
        return;
    }

    leg->changed_len = leg->id_len;
    ngx_memcpy(leg->changed, pkt->dcid, leg->id_len);
}


void
ngx_stream_quic_pt_cid_answered(ngx_stream_quic_pt_leg_t *leg)
{
    size_t                         len;
    ngx_stream_quic_pt_cids_t     *cids;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    len = leg->changed_len;
    leg->changed_len = 0;

    cids = ngx_stream_quic_pt_cids(leg->flow);

    if (cids == NULL || !ngx_stream_quic_pt_teaches(leg->flow)) {
        return;
    }

    sh = ngx_stream_quic_pt_cid_lock(cids);

    if (quic_lb_learned_find(&sh->ids, leg->changed, len, ngx_current_msec,
                             cids->timeout)
        == NULL)
    {
        ngx_stream_quic_pt_cid_changed_bound(leg, cids, sh);
        ngx_stream_quic_pt_cid_insert(leg, sh, leg->changed, len);
    }

    ngx_stream_quic_pt_cid_unlock(cids);
}


/* a client that goes on changing only pushes out its own */

static void
ngx_stream_quic_pt_cid_changed_bound(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_cids_t *cids, ngx_stream_quic_pt_cids_sh_t *sh)
{
    ngx_stream_quic_pt_id_t  *id;
    quic_lb_learned_entry_t  *entry;

    id = &leg->ids[leg->nids++ % NGX_STREAM_QUIC_PT_CHANGES];

    if (id->len) {
        entry = quic_lb_learned_find(&sh->ids, id->data, id->len,
                                     ngx_current_msec, cids->timeout);
        if (entry) {
            quic_lb_learned_remove(&sh->ids, entry);
        }
    }

    id->len = leg->id_len;
    ngx_memcpy(id->data, leg->changed, leg->id_len);
}


void
ngx_stream_quic_pt_cid_touch(ngx_stream_quic_pt_flow_t *flow)
{
    quic_lb_learned_entry_t       *entry;
    ngx_stream_quic_pt_cids_t     *cids;
    ngx_stream_quic_lb_route_t    *route;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    if (ngx_current_msec - flow->touched < NGX_STREAM_QUIC_PT_CID_TOUCH) {
        return;
    }

    flow->touched = ngx_current_msec;
    route = &flow->route;

    cids = ngx_stream_quic_pt_cids(flow);
    sh = ngx_stream_quic_pt_cid_lock(cids);

    if (route->prefix) {
        entry = quic_lb_prefix_find(&sh->prefixes, route->dcid,
                                    route->dcid_len, ngx_current_msec,
                                    cids->timeout);
        if (entry) {
            quic_lb_learned_confirm(&sh->prefixes, entry, ngx_current_msec);
        }

        if (entry || !ngx_stream_quic_pt_teaches(flow)) {
            ngx_stream_quic_pt_cid_unlock(cids);
            return;
        }

        /* another server has it now, too */

        route->prefix = 0;
    }

    entry = quic_lb_learned_find(&sh->ids, route->dcid, route->dcid_len,
                                 ngx_current_msec, cids->timeout);

    if (entry == NULL) {

        /* it had to make room */

        entry = quic_lb_learned_insert(&sh->ids, route->dcid, route->dcid_len,
                                       &route->backend.u,
                                       route->backend.socklen,
                                       ngx_current_msec);
    }

    quic_lb_learned_confirm(&sh->ids, entry, ngx_current_msec);

    ngx_stream_quic_pt_cid_unlock(cids);
}


static ngx_stream_quic_pt_cids_t *
ngx_stream_quic_pt_cids(ngx_stream_quic_pt_flow_t *flow)
{
    return ngx_stream_quic_pt_route_router(flow->listener,
                                           &flow->local.sockaddr)->cids;
}
