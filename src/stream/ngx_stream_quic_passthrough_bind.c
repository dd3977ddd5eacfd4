
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_passthrough_bind": the local address of legs.  It is evaluated once a
 * flow, and used for the backends of its family.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static char *ngx_stream_quic_pt_bind_address(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_stream_quic_pt_bind_t *bind, ngx_str_t *value);
static void ngx_stream_quic_pt_bind_test(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_addr_t *addr);
static char *ngx_stream_quic_pt_bind_transparent(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_stream_quic_pt_bind_t *bind, ngx_str_t *value);
#if (NGX_HAVE_INET6)
static ngx_int_t ngx_stream_quic_pt_bind_unmap(ngx_pool_t *pool,
    ngx_addr_t *addr);
#endif


char *
ngx_stream_quic_passthrough_bind(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    char                                *rv;
    ngx_str_t                           *value;
    ngx_stream_quic_pt_bind_t           *bind;
    ngx_stream_complex_value_t           cv;
    ngx_stream_compile_complex_value_t   ccv;

    if (pscf->bind != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        pscf->bind = NULL;
        return NGX_CONF_OK;
    }

    bind = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_pt_bind_t));
    if (bind == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_stream_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[1];
    ccv.complex_value = &cv;

    if (ngx_stream_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (cv.lengths) {
        bind->value = ngx_palloc(cf->pool, sizeof(ngx_stream_complex_value_t));
        if (bind->value == NULL) {
            return NGX_CONF_ERROR;
        }

        *bind->value = cv;

    } else {
        rv = ngx_stream_quic_pt_bind_address(cf, cmd, bind, &value[1]);
        if (rv != NGX_CONF_OK) {
            return rv;
        }
    }

    pscf->bind = bind;

    if (cf->args->nelts == 2) {

        if (bind->addr) {
            ngx_stream_quic_pt_bind_test(cf, cmd, bind->addr);
        }

        return NGX_CONF_OK;
    }

    return ngx_stream_quic_pt_bind_transparent(cf, cmd, bind, &value[2]);
}


/*
 * Without a port: legs of one address and port to one backend would be one and
 * the same to the system, which could not tell whose a reply is.
 */

static char *
ngx_stream_quic_pt_bind_address(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_stream_quic_pt_bind_t *bind, ngx_str_t *value)
{
    ngx_int_t  rc;

    bind->addr = ngx_pcalloc(cf->pool, sizeof(ngx_addr_t));
    if (bind->addr == NULL) {
        return NGX_CONF_ERROR;
    }

    rc = ngx_parse_addr(cf->pool, bind->addr, value->data, value->len);

    if (rc == NGX_ERROR) {
        return NGX_CONF_ERROR;
    }

    if (rc == NGX_DECLINED) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid address \"%V\" in \"%V\" directive, it "
                           "must be \"off\", an IP address without a port or "
                           "have variables", value, &cmd->name);
        return NGX_CONF_ERROR;
    }

    bind->addr->name = *value;

    return NGX_CONF_OK;
}


/* it may be an address that another machine has now */

static void
ngx_stream_quic_pt_bind_test(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_addr_t *addr)
{
    ngx_err_t     err;
    ngx_socket_t  fd;

    fd = ngx_socket(addr->sockaddr->sa_family, SOCK_DGRAM, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, ngx_socket_errno,
                           ngx_socket_n " for \"%V %V\" failed",
                           &cmd->name, &addr->name);
        return;
    }

    if (bind(fd, addr->sockaddr, addr->socklen) == -1) {
        err = ngx_socket_errno;

        ngx_conf_log_error(NGX_LOG_WARN, cf, err,
                           "\"%V %V\": nothing can be sent from this address "
                           "until the machine has it, or with \"transparent\"",
                           &cmd->name, &addr->name);
    }

    if (ngx_close_socket(fd) == -1) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_socket_errno,
                           ngx_close_socket_n " failed");
    }
}


static char *
ngx_stream_quic_pt_bind_transparent(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_stream_quic_pt_bind_t *bind, ngx_str_t *value)
{
#if (NGX_HAVE_TRANSPARENT_PROXY)
    ngx_core_conf_t  *ccf;
#endif

    if (ngx_strcmp(value->data, "transparent") != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive, it "
                           "must be \"transparent\"", value, &cmd->name);
        return NGX_CONF_ERROR;
    }

#if (NGX_HAVE_TRANSPARENT_PROXY)

    /* workers keep CAP_NET_RAW */

    ccf = (ngx_core_conf_t *) ngx_get_conf(cf->cycle->conf_ctx,
                                           ngx_core_module);
    ccf->transparent = 1;
    bind->transparent = 1;

    return NGX_CONF_OK;

#else

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"transparent\" in \"%V\" directive is not supported "
                       "on this platform", &cmd->name);
    return NGX_CONF_ERROR;

#endif
}


ngx_int_t
ngx_stream_quic_pt_bind_flow(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_bind_t *bind)
{
    ngx_int_t              rc;
    ngx_str_t              value;
    ngx_addr_t            *addr;
    ngx_pool_t            *pool;
    ngx_stream_session_t  *s;

    if (bind == NULL) {
        return NGX_OK;
    }

    flow->transparent = bind->transparent;
    flow->bind = bind->addr;

    if (bind->value == NULL) {
        return NGX_OK;
    }

    s = flow->session;
    pool = s->connection->pool;

    if (ngx_stream_complex_value(s, bind->value, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0) {
        return NGX_OK;
    }

    addr = ngx_palloc(pool, sizeof(ngx_addr_t));
    if (addr == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_parse_addr_port(pool, addr, value.data, value.len);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        ngx_log_error(NGX_LOG_ERR, s->connection->log, 0,
                      "invalid address \"%V\" in \"quic_passthrough_bind\"",
                      &value);
        return NGX_ERROR;
    }

    addr->name = value;
    flow->bind = addr;

#if (NGX_HAVE_INET6)
    return ngx_stream_quic_pt_bind_unmap(pool, addr);
#else
    return NGX_OK;
#endif
}


/* an IPv4 client of an IPv6 socket is to be one to an IPv4 backend */

#if (NGX_HAVE_INET6)

static ngx_int_t
ngx_stream_quic_pt_bind_unmap(ngx_pool_t *pool, ngx_addr_t *addr)
{
    struct sockaddr_in   *sin;
    struct sockaddr_in6  *sin6;

    sin6 = (struct sockaddr_in6 *) addr->sockaddr;

    if (addr->sockaddr->sa_family != AF_INET6
        || !IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr))
    {
        return NGX_OK;
    }

    sin = ngx_pcalloc(pool, sizeof(struct sockaddr_in));
    if (sin == NULL) {
        return NGX_ERROR;
    }

    sin->sin_family = AF_INET;
    sin->sin_port = sin6->sin6_port;
    ngx_memcpy(&sin->sin_addr, &sin6->sin6_addr.s6_addr[12], 4);

    addr->sockaddr = (struct sockaddr *) sin;
    addr->socklen = sizeof(struct sockaddr_in);

    return NGX_OK;
}

#endif


ngx_int_t
ngx_stream_quic_pt_bind_leg(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_peer_connection_t        *pc;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_worker_t  *worker;

    flow = leg->flow;
    worker = flow->listener->worker;
    pc = &leg->upstream.peer;

    if (flow->bind == NULL) {
        return NGX_OK;
    }

    if (flow->bind->sockaddr->sa_family == pc->sockaddr->sa_family) {
        pc->local = flow->bind;
#if (NGX_HAVE_TRANSPARENT_PROXY)
        pc->transparent = flow->transparent;
#endif
        return NGX_OK;
    }

    if (worker->unbindable != ngx_time()) {
        worker->unbindable = ngx_time();

        ngx_log_error(NGX_LOG_ERR, flow->session->connection->log, 0,
                      "\"quic_passthrough_bind\" address \"%V\" and upstream "
                      "\"%V\" are not of one address family",
                      &flow->bind->name, pc->name);
    }

    return NGX_ERROR;
}
