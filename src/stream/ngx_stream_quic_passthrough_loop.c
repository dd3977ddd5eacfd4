
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Forwarding loops: a server that is the listen address it is used by.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <ifaddrs.h>


static ngx_addr_t *ngx_stream_quic_pt_loop_find(ngx_stream_conf_port_t *port,
    ngx_stream_conf_addr_t *addr, ngx_stream_upstream_srv_conf_t *us);
static ngx_uint_t ngx_stream_quic_pt_loop_reaches(ngx_stream_conf_port_t *port,
    ngx_stream_conf_addr_t *addr, ngx_addr_t *server);
static ngx_uint_t ngx_stream_quic_pt_loop_local(struct sockaddr *sa,
    socklen_t socklen);


ngx_int_t
ngx_stream_quic_pt_loop_check(ngx_conf_t *cf, ngx_stream_conf_port_t *port,
    ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                       i;
    ngx_addr_t                      *server;
    ngx_stream_core_srv_conf_t     **cscfp;
    ngx_stream_quic_pt_srv_conf_t   *pscf;

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        if (pscf->upstream == NULL) {
            continue;
        }

        server = ngx_stream_quic_pt_loop_find(port, addr, pscf->upstream);

        if (server) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"quic_passthrough\" would pass datagrams to "
                          "itself: \"%V\" of upstream \"%V\" is listen %V, use "
                          "another address or port, server in %s:%ui",
                          &server->name, &pscf->upstream->host,
                          &addr->opt.addr_text, cscfp[i]->file_name,
                          cscfp[i]->line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* a server of |us| that is not "down" and that |addr| listens for, or NULL */

static ngx_addr_t *
ngx_stream_quic_pt_loop_find(ngx_stream_conf_port_t *port,
    ngx_stream_conf_addr_t *addr, ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                      i, j;
    ngx_addr_t                     *server;
    ngx_stream_upstream_server_t   *servers;

    if (us->servers == NULL) {
        return NULL;
    }

    servers = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

        if (servers[i].down) {
            continue;
        }

        for (j = 0; j < servers[i].naddrs; j++) {
            server = &servers[i].addrs[j];

            if (ngx_stream_quic_pt_loop_reaches(port, addr, server)) {
                return server;
            }
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_stream_quic_pt_loop_reaches(ngx_stream_conf_port_t *port,
    ngx_stream_conf_addr_t *addr, ngx_addr_t *server)
{
    ngx_uint_t               i;
    ngx_stream_conf_addr_t  *other;

    if (ngx_cmp_sockaddr(server->sockaddr, server->socklen,
                         addr->opt.sockaddr, addr->opt.socklen, 1)
        == NGX_OK)
    {
        return 1;
    }

    if (!addr->opt.wildcard
        || server->sockaddr->sa_family != addr->opt.sockaddr->sa_family
        || ngx_inet_get_port(server->sockaddr)
           != ngx_inet_get_port(addr->opt.sockaddr))
    {
        return 0;
    }

    /* a more specific listen takes precedence */

    other = port->addrs.elts;

    for (i = 0; i < port->addrs.nelts; i++) {

        if (ngx_cmp_sockaddr(server->sockaddr, server->socklen,
                             other[i].opt.sockaddr, other[i].opt.socklen, 1)
            == NGX_OK)
        {
            return 0;
        }
    }

    return ngx_stream_quic_pt_loop_local(server->sockaddr, server->socklen);
}


/* an address of this machine */

static ngx_uint_t
ngx_stream_quic_pt_loop_local(struct sockaddr *sa, socklen_t socklen)
{
    ngx_uint_t       found;
    struct ifaddrs  *ifa, *first;

    if (sa->sa_family == AF_INET
        && (ntohl(((struct sockaddr_in *) sa)->sin_addr.s_addr) >> 24) == 127)
    {
        return 1;
    }

    if (getifaddrs(&first) == -1) {
        return 0;
    }

    found = 0;

    for (ifa = first; ifa && !found; ifa = ifa->ifa_next) {
        found = (ifa->ifa_addr
                 && ifa->ifa_addr->sa_family == sa->sa_family
                 && ngx_cmp_sockaddr(ifa->ifa_addr, socklen, sa, socklen, 0)
                    == NGX_OK);
    }

    freeifaddrs(first);

    return found;
}
