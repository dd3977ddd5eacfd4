
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What the balancer derives from a list of round robin peers: a Maglev table
 * and the peers of the "server_id" lines.
 *
 * One such list is made at configuration time for the primary and one for the
 * backup servers.  Peers may move to a shared zone before the workers start,
 * and since nginx 1.27.3 "resolve" replaces them at any time, possibly by
 * others at the same place in memory.  So each worker brings its copy up to
 * date under the lock of the peers before each use, and uses it under that
 * lock only.  This costs two comparisons unless the peers have changed; then
 * the pointers, and with "resolve" also the table, are made anew.
 */


#ifndef _NGX_STREAM_UPSTREAM_QUIC_LB_PEERS_H_INCLUDED_
#define _NGX_STREAM_UPSTREAM_QUIC_LB_PEERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_conf.h"

#include "quic_lb_maglev.h"


typedef struct {
    ngx_stream_upstream_rr_peer_t         *peer;
    ngx_uint_t                             position;  /* in the list */
} ngx_stream_upstream_quic_lb_peer_t;


typedef struct {
    ngx_stream_upstream_rr_peers_t        *peers;     /* NULL: to be made */
    ngx_uint_t                             config;    /* of peers */
    ngx_pool_t                            *pool;      /* "resolve" only */

    /* sorted by name, so that balancers with the same peers agree */
    ngx_stream_upstream_quic_lb_peer_t    *elts;
    ngx_uint_t                             nelts;

    /* indices into elts; NULL with no peers or too many */
    uint32_t                              *table;

    /* by ngx_stream_quic_lb_server_t index; NULL: not among the peers */
    ngx_stream_upstream_quic_lb_peer_t   **servers;
} ngx_stream_upstream_quic_lb_list_t;


typedef struct {
    ngx_uint_t                             size;      /* slots of a table */
    ngx_uint_t                             resolve;   /* at run time */
    ngx_stream_quic_lb_servers_t           servers;
    ngx_stream_upstream_quic_lb_list_t     primary;
    ngx_stream_upstream_quic_lb_list_t     backup;
} ngx_stream_upstream_quic_lb_peers_t;


/*
 * Makes the lists of the peers of |us|, or with |ps->resolve| prepares for
 * making them at run time.  |ps->size| and |ps->servers| must be set.  Returns
 * NGX_OK, or NGX_ERROR with the error logged.
 */

ngx_int_t ngx_stream_upstream_quic_lb_peers_init(ngx_conf_t *cf,
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_srv_conf_t *us);

/*
 * Brings |list|, |&ps->primary| or |&ps->backup|, up to date with |peers|,
 * whose lock the caller holds.  Returns NGX_OK, or NGX_ERROR if there is no
 * memory.
 */

ngx_int_t ngx_stream_upstream_quic_lb_peers_update(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_quic_lb_list_t *list,
    ngx_stream_upstream_rr_peers_t *peers);

/*
 * Finds |server| among |*peers|, the primary ones of |ps|, and the backup ones.
 * Returns
 * NGX_OK        |*entry| is its peer, in |*peers|, which are locked for reading
 *               and which the caller unlocks;
 * NGX_DECLINED  it is no peer at the moment ("resolve" only);
 * NGX_ERROR     there is no memory.
 */

ngx_int_t ngx_stream_upstream_quic_lb_peers_find(
    ngx_stream_upstream_quic_lb_peers_t *ps,
    ngx_stream_upstream_rr_peers_t **peers,
    ngx_stream_quic_lb_server_t *server,
    ngx_stream_upstream_quic_lb_peer_t **entry);


/* changes with the peers; without "resolve" they do not change */

#if (nginx_version >= 1027003 && NGX_STREAM_UPSTREAM_ZONE)

#define ngx_stream_upstream_quic_lb_peers_config(peers)                       \
    ((peers)->config ? *(peers)->config : 0)

#else

#define ngx_stream_upstream_quic_lb_peers_config(peers)  0

#endif


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_PEERS_H_INCLUDED_ */
