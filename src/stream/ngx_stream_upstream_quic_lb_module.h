
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


extern ngx_module_t  ngx_stream_upstream_quic_lb_module;


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_MODULE_H_INCLUDED_ */
