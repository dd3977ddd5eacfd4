
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The balancer behind "quic_lb" and "quic_maglev", as other modules see it: the
 * route that is the session's context of the module chooses the peer.
 */


#ifndef _NGX_STREAM_UPSTREAM_QUIC_LB_MODULE_H_INCLUDED_
#define _NGX_STREAM_UPSTREAM_QUIC_LB_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_router.h"


/* whether |uscf| is balanced by "quic_lb" or "quic_maglev" */

ngx_uint_t ngx_stream_quic_lb_balances(ngx_stream_upstream_srv_conf_t *uscf);

/*
 * _check.c: log warnings of an upstream whose lines are all known.  servers is
 * for any upstream, and returns NGX_OK or NGX_ERROR; server_ids is for one that
 * passthrough uses without a zone of learned connection IDs.
 */

ngx_int_t ngx_stream_quic_lb_check_servers(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);
void ngx_stream_quic_lb_check_server_ids(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);

/*
 * Whether each server of |uscf|, which may be NULL, is to issue connection IDs
 * that a "server_id" line takes to it.
 */

ngx_uint_t ngx_stream_quic_lb_maps(ngx_stream_upstream_srv_conf_t *uscf);

/*
 * Whether "quic_health_check" asks the servers of |uscf|, which may be NULL, at
 * their own ports.
 */

ngx_uint_t ngx_stream_quic_lb_asked(ngx_stream_upstream_srv_conf_t *uscf);


extern ngx_module_t  ngx_stream_upstream_quic_lb_module;


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_MODULE_H_INCLUDED_ */
