
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
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

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

/* the part of a zone that confirmed IDs never take: one of so many */

#define NGX_STREAM_QUIC_PT_CID_ROOM     8


typedef struct {
    quic_lb_table_node_t              node;       /* must be first */
    ngx_queue_t                       queue;      /* in one of three */
    ngx_msec_t                        used;
    u_char                            confirmed;  /* 0 or 1 */
    u_char                            len;
    u_char                            cid[QUIC_LB_CID_MAX];
    ngx_stream_quic_lb_backend_t      backend;
} ngx_stream_quic_pt_cid_t;


typedef struct {
    quic_lb_hash_key_t                key;
    quic_lb_table_t                   table;
    ngx_queue_t                       free;
    ngx_queue_t                       unconfirmed; /* oldest first */
    ngx_queue_t                       confirmed;   /* least used first */
    ngx_uint_t                        nconfirmed;
    ngx_uint_t                        confirmed_limit;
    ngx_uint_t                        lengths[QUIC_LB_CID_MAX + 1];
} ngx_stream_quic_pt_cids_sh_t;


static ngx_int_t ngx_stream_quic_pt_cid_parse_zone(ngx_conf_t *cf,
    ngx_str_t *value, ngx_str_t *name, ssize_t *size);
static ngx_int_t ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_stream_quic_pt_cid_alloc(ngx_slab_pool_t *shpool,
    ngx_stream_quic_pt_cids_sh_t *sh);
static ngx_stream_quic_pt_cid_t *ngx_stream_quic_pt_cid_find(
    ngx_stream_quic_pt_cids_t *cids, const u_char *cid, size_t len);
static ngx_stream_quic_pt_cid_t *ngx_stream_quic_pt_cid_find_prefix(
    ngx_stream_quic_pt_cids_t *cids, quic_lb_packet_t *pkt);
static ngx_stream_quic_pt_cid_t *ngx_stream_quic_pt_cid_insert(
    ngx_stream_quic_pt_cids_sh_t *sh, const u_char *cid, size_t len);
static void ngx_stream_quic_pt_cid_remove(ngx_stream_quic_pt_cids_sh_t *sh,
    ngx_stream_quic_pt_cid_t *entry);
static void ngx_stream_quic_pt_cid_confirm(ngx_stream_quic_pt_cids_sh_t *sh,
    ngx_stream_quic_pt_cid_t *entry);
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
                           "invalid parameter \"%V\" of \"%V\"",
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
                       "\"quic_passthrough_cid_zone\"", value);

    return NGX_ERROR;
}


static ngx_int_t
ngx_stream_quic_pt_cid_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t               *shpool;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    /* shpool->data stays what it is over a reload */

    if (data || shm_zone->shm.exists) {
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    sh = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_pt_cids_sh_t));
    if (sh == NULL) {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) &sh->key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "RAND_bytes() failed");
        return NGX_ERROR;
    }

    shpool->data = sh;

    return ngx_stream_quic_pt_cid_alloc(shpool, sh);
}


/* as many entries as the zone has room for: nothing is allocated later */

static ngx_int_t
ngx_stream_quic_pt_cid_alloc(ngx_slab_pool_t *shpool,
    ngx_stream_quic_pt_cids_sh_t *sh)
{
    size_t                     n, buckets_size, entries_size;
    ngx_uint_t                 i;
    quic_lb_table_node_t     **buckets;
    ngx_stream_quic_pt_cid_t  *entries;

    n = shpool->pfree * ngx_pagesize / sizeof(ngx_stream_quic_pt_cid_t);

    for ( ;; n--) {
        buckets_size = quic_lb_table_buckets(n)
                       * sizeof(quic_lb_table_node_t *);
        entries_size = n * sizeof(ngx_stream_quic_pt_cid_t);

        if (ngx_align(buckets_size, ngx_pagesize)
            + ngx_align(entries_size, ngx_pagesize)
            <= shpool->pfree * ngx_pagesize)
        {
            break;
        }
    }

    buckets = ngx_slab_alloc(shpool, buckets_size);
    entries = ngx_slab_calloc(shpool, entries_size);

    if (buckets == NULL || entries == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(&sh->table, buckets, n);

    ngx_queue_init(&sh->free);
    ngx_queue_init(&sh->unconfirmed);
    ngx_queue_init(&sh->confirmed);

    for (i = 0; i < n; i++) {
        ngx_queue_insert_tail(&sh->free, &entries[i].queue);
    }

    sh->confirmed_limit = n - n / NGX_STREAM_QUIC_PT_CID_ROOM;

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_pt_cid_route(ngx_stream_quic_pt_cids_t *cids,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route)
{
    ngx_slab_pool_t               *shpool;
    ngx_stream_quic_pt_cid_t      *entry;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;
    sh = shpool->data;

    ngx_shmtx_lock(&shpool->mutex);

    entry = (pkt->type == QUIC_LB_PACKET_SHORT)
            ? ngx_stream_quic_pt_cid_find_prefix(cids, pkt)
            : ngx_stream_quic_pt_cid_find(cids, pkt->dcid, pkt->dcid_len);

    if (entry == NULL) {
        ngx_shmtx_unlock(&shpool->mutex);
        return NGX_DECLINED;
    }

    ngx_stream_quic_pt_cid_confirm(sh, entry);

    ngx_memzero(route, sizeof(ngx_stream_quic_lb_route_t));

    route->by = NGX_STREAM_QUIC_LB_CID;
    route->config_id = NGX_STREAM_QUIC_LB_NO_CONFIG;
    route->version = pkt->version;
    route->backend = entry->backend;
    route->dcid_len = entry->len;
    ngx_memcpy(route->dcid, entry->cid, entry->len);

    ngx_shmtx_unlock(&shpool->mutex);

    return NGX_OK;
}


/* a short header does not tell the length of its DCID */

static ngx_stream_quic_pt_cid_t *
ngx_stream_quic_pt_cid_find_prefix(ngx_stream_quic_pt_cids_t *cids,
    quic_lb_packet_t *pkt)
{
    size_t                         len;
    ngx_slab_pool_t               *shpool;
    ngx_stream_quic_pt_cid_t      *entry;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;
    sh = shpool->data;

    for (len = pkt->dcid_len; len >= NGX_STREAM_QUIC_PT_CID_MIN; len--) {

        if (sh->lengths[len] == 0) {
            continue;
        }

        entry = ngx_stream_quic_pt_cid_find(cids, pkt->dcid, len);

        if (entry) {
            return entry;
        }
    }

    return NULL;
}


static ngx_stream_quic_pt_cid_t *
ngx_stream_quic_pt_cid_find(ngx_stream_quic_pt_cids_t *cids,
    const u_char *cid, size_t len)
{
    uint64_t                       hash;
    ngx_slab_pool_t               *shpool;
    quic_lb_table_node_t          *node;
    ngx_stream_quic_pt_cid_t      *entry;
    ngx_stream_quic_pt_cids_sh_t  *sh;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;
    sh = shpool->data;

    hash = quic_lb_hash(&sh->key, cid, len);

    for (node = quic_lb_table_first(&sh->table, hash);
         node;
         node = quic_lb_table_next(node))
    {
        entry = (ngx_stream_quic_pt_cid_t *) node;

        if (entry->len != len || ngx_memcmp(entry->cid, cid, len) != 0) {
            continue;
        }

        /* workers do not see the time at the same time */

        if ((ngx_msec_int_t) (ngx_current_msec - entry->used)
            < (ngx_msec_int_t) cids->timeout)
        {
            return entry;
        }

        ngx_stream_quic_pt_cid_remove(sh, entry);

        return NULL;
    }

    return NULL;
}


void
ngx_stream_quic_pt_cid_learn(ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt)
{
    ngx_slab_pool_t              *shpool;
    ngx_stream_quic_pt_cid_t     *entry;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_cids_t    *cids;
    ngx_stream_quic_pt_router_t  *router;

    flow = leg->flow;

    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);
    cids = router->cids;

    if (cids == NULL
        || pkt->scid_len < NGX_STREAM_QUIC_PT_CID_MIN
        || pkt->scid_len > QUIC_LB_CID_MAX
        || ngx_stream_quic_pt_cid_needless(&router->router, leg, pkt))
    {
        return;
    }

    /*
     * a server that goes by the DCID its client chose: a client could so claim
     * the ID of another's connection
     */

    if (flow->route.by != NGX_STREAM_QUIC_LB_CID
        && pkt->scid_len == flow->route.dcid_len
        && ngx_memcmp(pkt->scid, flow->route.dcid, pkt->scid_len) == 0)
    {
        return;
    }

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    if (ngx_stream_quic_pt_cid_find(cids, pkt->scid, pkt->scid_len) == NULL) {

        entry = ngx_stream_quic_pt_cid_insert(shpool->data, pkt->scid,
                                              pkt->scid_len);

        entry->backend.socklen = leg->backend->socklen;
        ngx_memcpy(&entry->backend.u, &leg->backend->sockaddr,
                   leg->backend->socklen);

        ngx_stream_quic_pt_count(flow->listener->worker,
                                 NGX_STREAM_QUIC_PT_LEARNED, 1);
    }

    ngx_shmtx_unlock(&shpool->mutex);
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
    ngx_slab_pool_t              *shpool;
    ngx_stream_quic_pt_cid_t     *entry;
    ngx_stream_quic_pt_cids_t    *cids;
    ngx_stream_quic_lb_route_t   *route;
    ngx_stream_quic_pt_router_t  *router;

    if (ngx_current_msec - flow->touched < NGX_STREAM_QUIC_PT_CID_TOUCH) {
        return;
    }

    flow->touched = ngx_current_msec;
    route = &flow->route;

    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);
    cids = router->cids;

    shpool = (ngx_slab_pool_t *) cids->zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    entry = ngx_stream_quic_pt_cid_find(cids, route->dcid, route->dcid_len);

    if (entry == NULL) {

        /* it had to make room */

        entry = ngx_stream_quic_pt_cid_insert(shpool->data, route->dcid,
                                              route->dcid_len);
        entry->backend = route->backend;
    }

    ngx_stream_quic_pt_cid_confirm(shpool->data, entry);

    ngx_shmtx_unlock(&shpool->mutex);
}


/* what is new is not confirmed; there is always room for that */

static ngx_stream_quic_pt_cid_t *
ngx_stream_quic_pt_cid_insert(ngx_stream_quic_pt_cids_sh_t *sh,
    const u_char *cid, size_t len)
{
    ngx_queue_t               *q;
    ngx_stream_quic_pt_cid_t  *entry;

    if (ngx_queue_empty(&sh->free)) {
        q = ngx_queue_head(&sh->unconfirmed);
        entry = ngx_queue_data(q, ngx_stream_quic_pt_cid_t, queue);

        ngx_stream_quic_pt_cid_remove(sh, entry);
    }

    q = ngx_queue_head(&sh->free);
    entry = ngx_queue_data(q, ngx_stream_quic_pt_cid_t, queue);

    entry->confirmed = 0;
    entry->used = ngx_current_msec;
    entry->len = (u_char) len;
    ngx_memcpy(entry->cid, cid, len);

    ngx_queue_remove(q);
    ngx_queue_insert_tail(&sh->unconfirmed, q);

    sh->lengths[len]++;

    /* the table has room for all entries there are */

    (void) quic_lb_table_insert(&sh->table, &entry->node,
                                quic_lb_hash(&sh->key, cid, len));

    return entry;
}


static void
ngx_stream_quic_pt_cid_remove(ngx_stream_quic_pt_cids_sh_t *sh,
    ngx_stream_quic_pt_cid_t *entry)
{
    quic_lb_table_remove(&sh->table, &entry->node);

    sh->lengths[entry->len]--;
    sh->nconfirmed -= entry->confirmed;

    ngx_queue_remove(&entry->queue);
    ngx_queue_insert_head(&sh->free, &entry->queue);
}


/* a client has used it */

static void
ngx_stream_quic_pt_cid_confirm(ngx_stream_quic_pt_cids_sh_t *sh,
    ngx_stream_quic_pt_cid_t *entry)
{
    ngx_queue_t  *q;

    if (!entry->confirmed) {

        if (sh->nconfirmed == sh->confirmed_limit) {
            q = ngx_queue_head(&sh->confirmed);
            ngx_stream_quic_pt_cid_remove(sh,
                        ngx_queue_data(q, ngx_stream_quic_pt_cid_t, queue));
        }

        entry->confirmed = 1;
        sh->nconfirmed++;
    }

    entry->used = ngx_current_msec;

    ngx_queue_remove(&entry->queue);
    ngx_queue_insert_tail(&sh->confirmed, &entry->queue);
}
