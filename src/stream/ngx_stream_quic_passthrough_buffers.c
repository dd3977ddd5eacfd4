
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The buffers of sockets.  Those of listening sockets are set by the master,
 * which is allowed to exceed net.core.rmem_max if it is root.  The default is
 * large: new connections come in bursts, and the system's own size is for some
 * ninety datagrams.  It is a limit, no memory is taken before it is needed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void ngx_stream_quic_pt_buffers_listen(ngx_cycle_t *cycle,
    ngx_listening_t *ls, ngx_uint_t *told);
static size_t ngx_stream_quic_pt_buffers_set(ngx_socket_t fd, int force,
    int name, size_t size, ngx_log_t *log);


ngx_int_t
ngx_stream_quic_pt_buffers_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t        i, told;
    ngx_listening_t  *ls;

    if (ngx_test_config) {
        return NGX_OK;
    }

    ls = cycle->listening.elts;
    told = 0;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].fd != (ngx_socket_t) -1
            && ngx_stream_quic_pt_listening(&ls[i]))
        {
            ngx_stream_quic_pt_buffers_listen(cycle, &ls[i], &told);
        }
    }

    return NGX_OK;
}


static void
ngx_stream_quic_pt_buffers_listen(ngx_cycle_t *cycle, ngx_listening_t *ls,
    ngx_uint_t *told)
{
    size_t                          size;
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_quic_pt_srv_conf(ls);

    /* "rcvbuf" of "listen" is meant as it is */

    if (pscf->rcvbuf && (ls->rcvbuf == -1 || !pscf->default_rcvbuf)) {
        size = ngx_stream_quic_pt_buffers_set(ls->fd, SO_RCVBUFFORCE,
                                              SO_RCVBUF, pscf->rcvbuf,
                                              cycle->log);

        if (size < pscf->rcvbuf && !*told) {
            *told = 1;

            ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                          "\"quic_passthrough_socket_rcvbuf\" of %V is %uz, "
                          "the system allows %uz: bursts of new connections "
                          "lose datagrams, set net.core.rmem_max to %uz",
                          &ls->addr_text, pscf->rcvbuf, size, pscf->rcvbuf);
        }
    }

    if (pscf->sndbuf) {
        size = ngx_stream_quic_pt_buffers_set(ls->fd, SO_SNDBUFFORCE,
                                              SO_SNDBUF, pscf->sndbuf,
                                              cycle->log);

        if (size < pscf->sndbuf && !*told) {
            *told = 1;

            ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                          "\"quic_passthrough_socket_sndbuf\" of %V is %uz, "
                          "the system allows %uz: set net.core.wmem_max to "
                          "%uz", &ls->addr_text, pscf->sndbuf, size,
                          pscf->sndbuf);
        }
    }
}


/* returns what the system has granted */

static size_t
ngx_stream_quic_pt_buffers_set(ngx_socket_t fd, int force, int name,
    size_t size, ngx_log_t *log)
{
    int        value;
    socklen_t  len;

    value = (int) size;

    /* not without CAP_NET_ADMIN */

    if (setsockopt(fd, SOL_SOCKET, force, (const void *) &value, sizeof(int))
        == -1
        && setsockopt(fd, SOL_SOCKET, name, (const void *) &value,
                      sizeof(int))
           == -1)
    {
        ngx_log_error(NGX_LOG_WARN, log, ngx_socket_errno,
                      "setsockopt(%s) failed, ignored",
                      name == SO_RCVBUF ? "SO_RCVBUF" : "SO_SNDBUF");
        return size;
    }

    len = sizeof(int);

    if (getsockopt(fd, SOL_SOCKET, name, (void *) &value, &len) == -1) {
        return size;
    }

    /* Linux shows twice of what it allows for datagrams */

    return (size_t) value / 2;
}


/* as far as the system allows it to workers; 0: the system's size */

void
ngx_stream_quic_pt_buffers_leg(ngx_socket_t fd, int name, size_t size,
    ngx_log_t *log)
{
    int  value;

    if (size == 0) {
        return;
    }

    value = (int) size;

    if (setsockopt(fd, SOL_SOCKET, name, (const void *) &value, sizeof(int))
        == -1)
    {
        ngx_log_error(NGX_LOG_INFO, log, ngx_socket_errno,
                      "setsockopt(%s) failed, ignored",
                      name == SO_RCVBUF ? "SO_RCVBUF" : "SO_SNDBUF");
    }
}
