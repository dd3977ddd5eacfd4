
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * nginx's phases for a further connection of a flow.  nginx ends the session
 * when a handler refuses, or fails: with it all connections of the flow would
 * end.  So such a session has a main configuration of its own, which differs in
 * the checkers of the phases; they see the same, also when a handler is waited
 * for and runs the phases on itself, but refuse the one connection only.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


static ngx_stream_phase_handler_t *ngx_stream_quic_preread_phases_copy(
    ngx_cycle_t *cycle, ngx_stream_phase_handler_t *handlers);
static ngx_int_t ngx_stream_quic_preread_phases_checker(
    ngx_stream_session_t *s, ngx_stream_phase_handler_t *ph);


ngx_int_t
ngx_stream_quic_preread_phases_init(ngx_cycle_t *cycle,
    ngx_stream_quic_preread_t *preread)
{
    size_t                        size;
    ngx_stream_conf_ctx_t        *ctx;
    ngx_stream_core_main_conf_t  *cmcf;

    ctx = (ngx_stream_conf_ctx_t *) ngx_get_conf(cycle->conf_ctx,
                                                 ngx_stream_module);
    size = ngx_stream_max_module * sizeof(void *);

    preread->main_conf = ngx_palloc(cycle->pool, size);
    cmcf = ngx_palloc(cycle->pool, sizeof(ngx_stream_core_main_conf_t));

    if (preread->main_conf == NULL || cmcf == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(preread->main_conf, ctx->main_conf, size);

    *cmcf = *(ngx_stream_core_main_conf_t *)
             ctx->main_conf[ngx_stream_core_module.ctx_index];

    cmcf->phase_engine.handlers =
        ngx_stream_quic_preread_phases_copy(cycle,
                                            cmcf->phase_engine.handlers);
    if (cmcf->phase_engine.handlers == NULL) {
        return NGX_ERROR;
    }

    preread->main_conf[ngx_stream_core_module.ctx_index] = cmcf;

    return NGX_OK;
}


static ngx_stream_phase_handler_t *
ngx_stream_quic_preread_phases_copy(ngx_cycle_t *cycle,
    ngx_stream_phase_handler_t *handlers)
{
    ngx_uint_t                   i, n;
    ngx_stream_phase_handler_t  *ph;

    for (n = 0; handlers[n].checker; n++) { /* void */ }

    ph = ngx_palloc(cycle->pool, (n + 1) * sizeof(ngx_stream_phase_handler_t));
    if (ph == NULL) {
        return NULL;
    }

    /* of the last one nginx allocates the checker only, NULL */

    ngx_memcpy(ph, handlers, n * sizeof(ngx_stream_phase_handler_t));
    ngx_memzero(&ph[n], sizeof(ngx_stream_phase_handler_t));

    /* the content phase ends no session of datagrams */

    for (i = 0; i < n; i++) {
        if (ph[i].checker != ngx_stream_core_content_phase) {
            ph[i].checker = ngx_stream_quic_preread_phases_checker;
        }
    }

    return ph;
}


/* of all phases but content */

static ngx_int_t
ngx_stream_quic_preread_phases_checker(ngx_stream_session_t *s,
    ngx_stream_phase_handler_t *ph)
{
    ngx_int_t                   rc;
    ngx_stream_quic_pt_flow_t  *flow;

    rc = ph->handler(s);

    if (rc == NGX_OK) {
        s->phase_handler = ph->next;
        return NGX_AGAIN;
    }

    if (rc == NGX_DECLINED) {
        s->phase_handler++;
        return NGX_AGAIN;
    }

    if (rc == NGX_AGAIN || rc == NGX_DONE) {
        return NGX_OK;
    }

    if (rc == NGX_ERROR) {
        rc = NGX_STREAM_INTERNAL_SERVER_ERROR;
    }

    ngx_log_error(NGX_LOG_INFO, s->connection->log, 0,
                  "a new connection of a QUIC flow is refused, status: %i",
                  rc);

    flow = ngx_stream_get_module_ctx(s, ngx_stream_quic_passthrough_module);

    if (ngx_stream_quic_preread_failed(flow) != NGX_OK) {
        ngx_stream_quic_pt_flow_refuse(flow, rc,
                                       NGX_STREAM_QUIC_PT_REFUSED_FLOW);
    }

    return NGX_OK;
}
