
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Where a session goes, by a value with variables as in "proxy_pass": to a
 * group of an "upstream" block, to an address, or to a name that is resolved
 * while the session waits.
 */


#ifndef _NGX_STREAM_QUIC_LB_TARGET_H_INCLUDED_
#define _NGX_STREAM_QUIC_LB_TARGET_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>


/*
 * Where a target depends on what clients send, as a server name, anybody can
 * bring about many lines: each worker has a few in a second.  All zero at
 * first.
 */

typedef struct {
    time_t                           second;
    ngx_uint_t                       lines;       /* in it */
} ngx_stream_quic_lb_complaints_t;


/*
 * For messages: upstream returns the block |name|, or NULL; names makes |names|
 * the text "the upstreams are "a", "b"", of a few of them.
 */

ngx_stream_upstream_srv_conf_t *ngx_stream_quic_lb_target_upstream(
    ngx_conf_t *cf, ngx_str_t *name);
ngx_int_t ngx_stream_quic_lb_target_names(ngx_conf_t *cf, ngx_str_t *names);

/* NGX_LOG_ERR for a line that may be logged, else NGX_LOG_DEBUG */

ngx_uint_t ngx_stream_quic_lb_target_level(
    ngx_stream_quic_lb_complaints_t *complaints);

/*
 * Evaluates |value| of |directive| in the pool of the session's connection.
 * Returns NGX_OK: |*uscf| is the group and |*ur| NULL, or the other way round
 * and |*ur| has the address; NGX_AGAIN: |*ur| has a name that is to be
 * resolved; NGX_ERROR: it is none of these, which is logged.
 */

ngx_int_t ngx_stream_quic_lb_target_eval(ngx_stream_session_t *s,
    ngx_stream_complex_value_t *value, const char *directive,
    ngx_stream_quic_lb_complaints_t *complaints,
    ngx_stream_upstream_srv_conf_t **uscf,
    ngx_stream_upstream_resolved_t **ur);

/*
 * Resolves the name in |ur| by the resolver of |cscf|.  Returns NGX_OK:
 * |handler| gets |data|, and may have got it already; until then |ur->ctx| is
 * set, to be ended by ngx_resolve_name_done(); NGX_ERROR: it does not.
 */

ngx_int_t ngx_stream_quic_lb_target_resolve(ngx_stream_session_t *s,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_upstream_resolved_t *ur,
    ngx_stream_quic_lb_complaints_t *complaints,
    ngx_resolver_handler_pt handler, void *data);

/*
 * To be called by the handler first.  Returns NGX_OK: |ctx| has addresses;
 * NGX_ERROR: it has none, which is logged.
 */

ngx_int_t ngx_stream_quic_lb_target_resolved(ngx_stream_session_t *s,
    ngx_resolver_ctx_t *ctx, ngx_stream_quic_lb_complaints_t *complaints);


#endif /* _NGX_STREAM_QUIC_LB_TARGET_H_INCLUDED_ */
