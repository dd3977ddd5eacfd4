
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The part of passthrough that belongs to nginx's core and not to its stream
 * module: checks that need all of the configuration, and the processes' life.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_lb_init_module(ngx_cycle_t *cycle);
static char *ngx_stream_quic_lb_init_conf(ngx_cycle_t *cycle, void *conf);
static char *ngx_stream_quic_lb_connections(ngx_cycle_t *cycle);


static ngx_core_module_t  ngx_stream_quic_lb_module_ctx = {
    ngx_string("quic_lb"),
    NULL,
    ngx_stream_quic_lb_init_conf
};


ngx_module_t  ngx_stream_quic_lb_module = {
    NGX_MODULE_V1,
    &ngx_stream_quic_lb_module_ctx,        /* module context */
    NULL,                                  /* module directives */
    NGX_CORE_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_stream_quic_lb_init_module,        /* init module */
    ngx_stream_quic_pt_listen_init_process,  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_stream_quic_pt_listen_exit_process,  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_stream_quic_lb_init_module(ngx_cycle_t *cycle)
{
    if (ngx_stream_quic_pt_buffers_init_module(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_owner_init_module(cycle);
}


/*
 * Without "reuseport" several workers would read one socket, and a flow's
 * datagrams would take turns between their legs.
 */

static char *
ngx_stream_quic_lb_init_conf(ngx_cycle_t *cycle, void *conf)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    if (ngx_stream_quic_pt_check_cycle(cycle) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (ccf->master == 0 || ccf->worker_processes < 2) {
        return ngx_stream_quic_lb_connections(cycle);
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport) {
            continue;
        }
#endif

        if (ngx_stream_quic_pt_listening(&ls[i])) {
            ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                          "\"quic_passthrough\" with %i worker processes "
                          "needs the \"reuseport\" parameter of \"listen %V\"",
                          ccf->worker_processes, &ls[i].addr_text);
            return NGX_CONF_ERROR;
        }
    }

    return ngx_stream_quic_lb_connections(cycle);
}


/*
 * A listening socket takes a connection, and its duplicate another one.
 * Workers that cannot have them end at once, and nginx runs without any.
 */

static char *
ngx_stream_quic_lb_connections(ngx_cycle_t *cycle)
{
    ngx_uint_t        i, n, own;
    ngx_listening_t  *ls;

    ls = cycle->listening.elts;
    n = 0;
    own = 0;

    for (i = 0; i < cycle->listening.nelts; i++) {

#if (NGX_HAVE_REUSEPORT)
        /* the sockets of the other workers */

        if (ls[i].reuseport && ls[i].worker != 0) {
            continue;
        }
#endif

        n++;

        if (ngx_stream_quic_pt_listening(&ls[i])) {
            own++;
        }
    }

    /* one for the channel to the master, two for a flow */

    if (own && cycle->connection_n - cycle->connection_n / 16 < n + own + 3) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "%ui worker_connections are not enough for %ui listening "
                      "sockets, of which %ui are of \"quic_passthrough\" and "
                      "take two, and for clients",
                      cycle->connection_n, n, own);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
