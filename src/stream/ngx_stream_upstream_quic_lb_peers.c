
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The lists themselves: made, brought up to date and searched.  See the header
 * for when, and by whom.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_peers.h"


static ngx_int_t ngx_stream_upstream_quic_lb_peers_make(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers, ngx_pool_t *pool);
static ngx_int_t ngx_stream_upstream_quic_lb_peers_table(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers, ngx_pool_t *pool);
static void ngx_stream_upstream_quic_lb_peers_collect(
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers);
static void ngx_stream_upstream_quic_lb_peers_servers(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list);
static int ngx_libc_cdecl ngx_stream_upstream_quic_lb_peers_cmp(
    const void *one, const void *two);
static int ngx_libc_cdecl ngx_stream_upstream_quic_lb_peers_cmp_name(
    const void *one, const void *two);
static void ngx_stream_upstream_quic_lb_peers_cleanup(void *data);


ngx_int_t
ngx_stream_upstream_quic_lb_peers_init(ngx_conf_t *cf,
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                       n;
    ngx_pool_cleanup_t              *cln;
    ngx_stream_upstream_rr_peers_t  *peers;

    peers = us->peer.data;

    n = peers->number;

    if (peers->next && peers->next->number > n) {
        n = peers->next->number;
    }

    if (n > ps->size) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"quic_maglev\" size %ui is less than the %ui servers"
                      " in upstream \"%V\", it must not be in %s:%ui",
                      ps->size, n, &us->host, us->file_name, us->line);
        return NGX_ERROR;
    }

    ps->resolve = ngx_stream_quic_lb_conf_resolves(us);

    if (ps->resolve) {

        cln = ngx_pool_cleanup_add(cf->pool, 0);
        if (cln == NULL) {
            return NGX_ERROR;
        }

        cln->handler = ngx_stream_upstream_quic_lb_peers_cleanup;
        cln->data = ps;

        return NGX_OK;
    }

    if (ngx_stream_upstream_quic_lb_peers_make(ps, &ps->primary, peers,
                                               cf->pool)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (peers->next == NULL) {
        return NGX_OK;
    }

    return ngx_stream_upstream_quic_lb_peers_make(ps, &ps->backup, peers->next,
                                                  cf->pool);
}


ngx_int_t
ngx_stream_upstream_quic_lb_peers_update(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_pool_t  *pool;

    if (list->peers == peers
        && list->config == ngx_stream_upstream_quic_lb_peers_config(peers))
    {
        return NGX_OK;
    }

    if (!ps->resolve) {

        /* the same peers, moved to a zone: the table holds */

        ngx_stream_upstream_quic_lb_peers_collect(list, peers);
        return NGX_OK;
    }

    pool = ngx_create_pool(NGX_DEFAULT_POOL_SIZE, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    if (list->pool) {
        ngx_destroy_pool(list->pool);
    }

    list->pool = pool;

    return ngx_stream_upstream_quic_lb_peers_make(ps, list, peers, pool);
}


ngx_int_t
ngx_stream_upstream_quic_lb_peers_find(ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_rr_peers_t **peersp,
    ngx_stream_quic_lb_server_t *server,
    ngx_stream_upstream_quic_lb_peer_t **entry)
{
    ngx_stream_upstream_rr_peers_t      *peers;
    ngx_stream_upstream_quic_lb_list_t  *list;

    list = &ps->primary;

    for (peers = *peersp; peers; peers = peers->next) {

        ngx_stream_upstream_rr_peers_rlock(peers);

        if (ngx_stream_upstream_quic_lb_peers_update(ps, list, peers)
            != NGX_OK)
        {
            ngx_stream_upstream_rr_peers_unlock(peers);
            return NGX_ERROR;
        }

        *entry = list->servers[server->index];

        if (*entry) {
            *peersp = peers;
            return NGX_OK;
        }

        ngx_stream_upstream_rr_peers_unlock(peers);

        list = &ps->backup;
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_stream_upstream_quic_lb_peers_make(ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers, ngx_pool_t *pool)
{
    /* whatever fails, nothing of the former list may be used again */

    list->peers = NULL;
    list->table = NULL;
    list->nelts = peers->number;

    /* one more of each: there may be none, and malloc(0) may return NULL */

    list->elts = ngx_pcalloc(pool, (list->nelts + 1)
                                * sizeof(ngx_stream_upstream_quic_lb_peer_t));
    if (list->elts == NULL) {
        return NGX_ERROR;
    }

    list->servers = ngx_pcalloc(pool, (ps->servers.nelts + 1)
                               * sizeof(ngx_stream_upstream_quic_lb_peer_t *));
    if (list->servers == NULL) {
        return NGX_ERROR;
    }

    ngx_stream_upstream_quic_lb_peers_collect(list, peers);
    ngx_stream_upstream_quic_lb_peers_servers(ps, list);

    if (ngx_stream_upstream_quic_lb_peers_table(ps, list, peers, pool)
        != NGX_OK)
    {
        list->peers = NULL;
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_upstream_quic_lb_peers_table(ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers, ngx_pool_t *pool)
{
    ngx_uint_t              i;
    quic_lb_maglev_peer_t  *mp;

    if (list->nelts == 0) {
        return NGX_OK;
    }

    if (list->nelts > ps->size) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "\"quic_maglev\" size %ui is less than the %ui servers"
                      " that upstream \"%V\" was resolved to",
                      ps->size, list->nelts, peers->name);
        return NGX_OK;
    }

    list->table = ngx_palloc(pool, ps->size * sizeof(uint32_t));
    if (list->table == NULL) {
        return NGX_ERROR;
    }

    mp = ngx_alloc(list->nelts * sizeof(quic_lb_maglev_peer_t),
                   ngx_cycle->log);
    if (mp == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < list->nelts; i++) {
        mp[i].name = list->elts[i].peer->name.data;
        mp[i].name_len = list->elts[i].peer->name.len;
        mp[i].weight = (uint32_t) ngx_min(list->elts[i].peer->weight,
                                          (ngx_int_t) UINT32_MAX);
    }

    if (quic_lb_maglev_build(list->table, (uint32_t) ps->size, mp, list->nelts)
        != QUIC_LB_OK)
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "\"quic_maglev\" table of %ui slots for %ui servers"
                      " could not be made", ps->size, list->nelts);
        ngx_free(mp);
        return NGX_ERROR;
    }

    ngx_free(mp);

    return NGX_OK;
}


/* without "resolve" the order, and so all but the pointers, stays the same */

static void
ngx_stream_upstream_quic_lb_peers_collect(
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_uint_t                      i;
    ngx_stream_upstream_rr_peer_t  *peer;

    for (peer = peers->peer, i = 0;
         peer && i < list->nelts;
         peer = peer->next, i++)
    {
        list->elts[i].peer = peer;
        list->elts[i].position = i;
    }

    list->nelts = i;

    ngx_qsort(list->elts, list->nelts,
              sizeof(ngx_stream_upstream_quic_lb_peer_t),
              ngx_stream_upstream_quic_lb_peers_cmp);

    list->peers = peers;
    list->config = ngx_stream_upstream_quic_lb_peers_config(peers);
}


/* the names of peers and servers are addresses in one and the same form */

static void
ngx_stream_upstream_quic_lb_peers_servers(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list)
{
    ngx_uint_t                    i;
    ngx_stream_quic_lb_server_t  *server;

    server = ps->servers.elts;

    for (i = 0; i < ps->servers.nelts; i++) {
        list->servers[i] = bsearch(&server[i].name, list->elts, list->nelts,
                                   sizeof(ngx_stream_upstream_quic_lb_peer_t),
                                   ngx_stream_upstream_quic_lb_peers_cmp_name);
    }
}


static int ngx_libc_cdecl
ngx_stream_upstream_quic_lb_peers_cmp(const void *one, const void *two)
{
    int                                        rc;
    const ngx_stream_upstream_quic_lb_peer_t  *first = one;
    const ngx_stream_upstream_quic_lb_peer_t  *second = two;

    rc = ngx_stream_upstream_quic_lb_peers_cmp_name(&first->peer->name, two);

    if (rc) {
        return rc;
    }

    return (first->position > second->position)
           - (first->position < second->position);
}


static int ngx_libc_cdecl
ngx_stream_upstream_quic_lb_peers_cmp_name(const void *one, const void *two)
{
    const ngx_str_t                           *name = one;
    const ngx_stream_upstream_quic_lb_peer_t  *entry = two;

    return (int) ngx_memn2cmp(name->data, entry->peer->name.data,
                              name->len, entry->peer->name.len);
}


static void
ngx_stream_upstream_quic_lb_peers_cleanup(void *data)
{
    ngx_stream_upstream_quic_lb_peers_t *ps = data;

    if (ps->primary.pool) {
        ngx_destroy_pool(ps->primary.pool);
        ps->primary.pool = NULL;
    }

    if (ps->backup.pool) {
        ngx_destroy_pool(ps->backup.pool);
        ps->backup.pool = NULL;
    }
}
