
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Workers with an unprivileged "user" that may bind to ports below 1024.
 *
 * The handover gives connections sockets bound to the address of the listening
 * one, long after the worker has changed its user.  So, if an HTTP/3 server
 * listens on such a port, the master lets its children keep their capabilities
 * over setuid(), as nginx does for "transparent"; a worker drops all of them
 * but CAP_NET_BIND_SERVICE before it serves anybody, and has that one in effect
 * for the length of a bind() only.  See capabilities(7).
 *
 * With "transparent" nginx itself leaves CAP_NET_RAW and nothing else.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/capability.h>


#define NGX_HTTP_H3_LIMITS_UNPRIVILEGED_PORT  1024

#define NGX_HTTP_H3_LIMITS_CAPABILITY_BIND                                    \
    CAP_TO_MASK(CAP_NET_BIND_SERVICE)


static ngx_uint_t ngx_http_h3_limits_capability_needed(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_h3_limits_capability_set(ngx_log_t *log,
    uint32_t permitted, uint32_t effective);


/* in this process, or inherited from the master */

static ngx_uint_t  ngx_http_h3_limits_capability_kept;


/* in the master, before it starts workers */

void
ngx_http_h3_limits_capability_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t  keep;

    if (ngx_test_config || ngx_process == NGX_PROCESS_SIGNALLER) {
        return;
    }

    keep = ngx_http_h3_limits_capability_needed(cycle);

    if (keep == ngx_http_h3_limits_capability_kept) {
        return;
    }

    if (prctl(PR_SET_KEEPCAPS, keep, 0, 0, 0) == -1) {
        ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_errno,
                      "prctl(PR_SET_KEEPCAPS, %ui) failed, HTTP/3 connections "
                      "may be lost at reload", keep);
        return;
    }

    ngx_http_h3_limits_capability_kept = keep;
}


static ngx_uint_t
ngx_http_h3_limits_capability_needed(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    if (!ccf->master || geteuid() != 0 || ccf->user == 0 || ccf->transparent) {
        return 0;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].handler == ngx_http_h3_limits_handler
            && ngx_inet_get_port(ls[i].sockaddr)
               < NGX_HTTP_H3_LIMITS_UNPRIVILEGED_PORT)
        {
            return 1;
        }
    }

    return 0;
}


/* in workers and in the processes that manage caches, which need none */

ngx_int_t
ngx_http_h3_limits_capability_init_process(ngx_cycle_t *cycle)
{
    if (!ngx_http_h3_limits_capability_kept) {
        return NGX_OK;
    }

    if (ngx_process != NGX_PROCESS_WORKER) {
        ngx_http_h3_limits_capability_kept = 0;
        return ngx_http_h3_limits_capability_set(cycle->log, 0, 0);
    }

    return ngx_http_h3_limits_capability_set(cycle->log,
                                       NGX_HTTP_H3_LIMITS_CAPABILITY_BIND, 0);
}


int
ngx_http_h3_limits_capability_bind(ngx_socket_t fd, struct sockaddr *sockaddr,
    socklen_t socklen, ngx_log_t *log)
{
    int        rc;
    ngx_err_t  err;

    if (!ngx_http_h3_limits_capability_kept
        || ngx_inet_get_port(sockaddr) >= NGX_HTTP_H3_LIMITS_UNPRIVILEGED_PORT)
    {
        return bind(fd, sockaddr, socklen);
    }

    (void) ngx_http_h3_limits_capability_set(log,
                                         NGX_HTTP_H3_LIMITS_CAPABILITY_BIND,
                                         NGX_HTTP_H3_LIMITS_CAPABILITY_BIND);

    rc = bind(fd, sockaddr, socklen);
    err = ngx_socket_errno;

    (void) ngx_http_h3_limits_capability_set(log,
                                       NGX_HTTP_H3_LIMITS_CAPABILITY_BIND, 0);

    ngx_set_socket_errno(err);

    return rc;
}


/*
 * |permitted| is what remains for good, |effective| what is in effect now; both
 * only as far as the process has them, for containers may have none
 */

static ngx_int_t
ngx_http_h3_limits_capability_set(ngx_log_t *log, uint32_t permitted,
    uint32_t effective)
{
    struct __user_cap_data_struct    data[_LINUX_CAPABILITY_U32S_3];
    struct __user_cap_header_struct  header;

    ngx_memzero(&header, sizeof(struct __user_cap_header_struct));
    header.version = _LINUX_CAPABILITY_VERSION_3;

    if (syscall(SYS_capget, &header, data) == -1) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno, "capget() failed");
        return NGX_ERROR;
    }

    permitted &= data[0].permitted;

    /* the first 32; all others, and inheritable ones, are dropped */

    ngx_memzero(data, sizeof(data));

    data[0].permitted = permitted;
    data[0].effective = effective & permitted;

    if (syscall(SYS_capset, &header, data) == -1) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno, "capset() failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}
