
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Upstreams that nginx takes, but whose servers may not be meant as they are
 * written: each a warning.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


static ngx_uint_t ngx_stream_quic_lb_check_down(
    ngx_stream_upstream_srv_conf_t *us);
static ngx_uint_t ngx_stream_quic_lb_check_maps(
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf);
static ngx_uint_t ngx_stream_quic_lb_check_named(
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf, ngx_addr_t *addr);


ngx_int_t
ngx_stream_quic_lb_check_servers(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_str_t    *name;
    ngx_uint_t    i;
    ngx_array_t   names;

    if (us->srv_conf == NULL) {
        return NGX_OK;
    }

    if (ngx_stream_quic_lb_check_down(us)) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "all servers of upstream \"%V\" are \"down\", no new"
                      " connection has a server in %s:%ui",
                      &us->host, us->file_name, us->line);
    }

    if (ngx_stream_quic_lb_conf_names(cf, us, &names) != NGX_OK) {
        return NGX_ERROR;
    }

    name = names.elts;

    for (i = 1; i < names.nelts; i++) {

        if (name[i - 1].len != name[i].len
            || ngx_memcmp(name[i - 1].data, name[i].data, name[i].len) != 0)
        {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"server %V\" is more than once in upstream \"%V\", use"
                      " \"weight\" for a larger share in %s:%ui",
                      &name[i], &us->host, us->file_name, us->line);
        break;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_lb_check_down(ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {
        if (!server[i].down) {
            return 0;
        }
    }

    return 1;
}


void
ngx_stream_quic_lb_check_server_ids(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                               i, j;
    ngx_stream_upstream_server_t            *server;
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (!ngx_stream_quic_lb_balances(us)
        || ngx_stream_quic_lb_conf_resolves(us))
    {
        return;
    }

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);

    if (ngx_stream_quic_lb_check_maps(qcf)) {
        return;
    }

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

        /* a server on its way out may have lost its line before */

        if (server[i].down) {
            continue;
        }

        for (j = 0; j < server[i].naddrs; j++) {

            if (ngx_stream_quic_lb_check_named(qcf, &server[i].addrs[j])) {
                continue;
            }

            ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                          "\"server %V\" of upstream \"%V\" has no"
                          " \"server_id\": without"
                          " \"quic_passthrough_cid_zone\" its connections end"
                          " when a client's address changes and at a reload"
                          " in %s:%ui",
                          &server[i].addrs[j].name, &us->host,
                          us->file_name, us->line);
            return;
        }
    }
}


ngx_uint_t
ngx_stream_quic_lb_maps(ngx_stream_upstream_srv_conf_t *uscf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    if (uscf == NULL || !ngx_stream_quic_lb_balances(uscf)) {
        return 0;
    }

    qcf = ngx_stream_conf_upstream_srv_conf(uscf,
                                           ngx_stream_upstream_quic_lb_module);

    return qcf->peers.servers.nelts && !ngx_stream_quic_lb_check_maps(qcf);
}


/* without any block nobody expects server IDs, and "maglev" needs no lines */

static ngx_uint_t
ngx_stream_quic_lb_check_maps(ngx_stream_upstream_quic_lb_srv_conf_t *qcf)
{
    ngx_uint_t                  i, n;
    ngx_stream_quic_lb_conf_t  *conf;

    n = 0;

    for (i = 0; i < NGX_STREAM_QUIC_LB_CONFIGS; i++) {
        conf = qcf->configs[i];

        if (conf == NULL) {
            continue;
        }

        if (conf->unmapped == NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV) {
            return 1;
        }

        n++;
    }

    return n == 0;
}


static ngx_uint_t
ngx_stream_quic_lb_check_named(ngx_stream_upstream_quic_lb_srv_conf_t *qcf,
    ngx_addr_t *addr)
{
    ngx_uint_t                  i, n;
    ngx_stream_quic_lb_id_t    *id;
    ngx_stream_quic_lb_conf_t  *conf;

    for (i = 0; i < NGX_STREAM_QUIC_LB_CONFIGS; i++) {
        conf = qcf->configs[i];

        if (conf == NULL) {
            continue;
        }

        id = conf->ids.elts;

        for (n = 0; n < conf->ids.nelts; n++) {
            if (ngx_stream_quic_lb_same_address(id[n].server->sockaddr,
                                                id[n].server->socklen,
                                                addr->sockaddr, addr->socklen))
            {
                return 1;
            }
        }
    }

    return 0;
}
