
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What an upstream with "quic_lb" or "quic_maglev" is made of, and the choice
 * of a peer in it.
 */


#ifndef _NGX_STREAM_UPSTREAM_QUIC_LB_BALANCER_H_INCLUDED_
#define _NGX_STREAM_UPSTREAM_QUIC_LB_BALANCER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_router.h"
#include "ngx_stream_upstream_quic_lb_conf.h"
#include "ngx_stream_upstream_quic_lb_health.h"
#include "ngx_stream_upstream_quic_lb_peers.h"


typedef struct {
    ngx_uint_t                             size;      /* "quic_maglev" */

    /* the "quic_lb" blocks by codepoint, NULL where there is none */
    ngx_stream_quic_lb_conf_t             *configs[NGX_STREAM_QUIC_LB_CONFIGS];

    /* of the cycle before, where they have been removed or changed */
    ngx_stream_quic_lb_conf_t             *retired[NGX_STREAM_QUIC_LB_CONFIGS];

    ngx_stream_quic_lb_router_t            router;    /* of these alone */
    ngx_stream_upstream_quic_lb_peers_t    peers;
    ngx_stream_quic_lb_health_t           *health;    /* NULL: not asked */
} ngx_stream_upstream_quic_lb_srv_conf_t;


/*
 * The peer.init of |us|.  Takes the route out of the session's context of
 * ngx_stream_upstream_quic_lb_module, or puts one there: of the session's first
 * datagram, or of its client's address if it is a TCP session.
 */

ngx_int_t ngx_stream_upstream_quic_lb_init_peer(ngx_stream_session_t *s,
    ngx_stream_upstream_srv_conf_t *us);


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_BALANCER_H_INCLUDED_ */
