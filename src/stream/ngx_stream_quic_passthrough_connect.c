
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Opening the socket of a leg: ngx_event_connect_peer() with a port of
 * _ports.c, for which there is no place between its socket() and bind().
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_int_t ngx_stream_quic_pt_connect_open(
    ngx_stream_quic_pt_leg_t *leg);
static ngx_socket_t ngx_stream_quic_pt_connect_port(
    ngx_stream_quic_pt_leg_t *leg);
static ngx_socket_t ngx_stream_quic_pt_connect_socket(
    ngx_stream_quic_pt_leg_t *leg);
static ngx_int_t ngx_stream_quic_pt_connect_transparent(
    ngx_peer_connection_t *pc, ngx_socket_t s);
static ngx_int_t ngx_stream_quic_pt_connect_bind(ngx_peer_connection_t *pc,
    ngx_socket_t s);
static ngx_int_t ngx_stream_quic_pt_connect_join(ngx_stream_quic_pt_leg_t *leg,
    ngx_socket_t s, uint64_t key, in_port_t port);
static ngx_int_t ngx_stream_quic_pt_connect_claim(
    ngx_stream_quic_pt_leg_t *leg, ngx_socket_t s, uint64_t key);
static ngx_int_t ngx_stream_quic_pt_connect_bind_port(
    ngx_peer_connection_t *pc, ngx_socket_t s, in_port_t port,
    ngx_uint_t level);
static ngx_int_t ngx_stream_quic_pt_connect_option(ngx_peer_connection_t *pc,
    ngx_socket_t s, int level, int name, int value, const char *text);
static ngx_int_t ngx_stream_quic_pt_connect_connection(
    ngx_peer_connection_t *pc, ngx_socket_t s);
static void ngx_stream_quic_pt_connect_close(ngx_peer_connection_t *pc,
    ngx_socket_t s);


ngx_int_t
ngx_stream_quic_pt_connect(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_int_t               rc;
    ngx_err_t               err;
    ngx_uint_t              level;
    ngx_event_t            *rev;
    ngx_connection_t       *c;
    ngx_peer_connection_t  *pc;

    pc = &leg->upstream.peer;

    if (ngx_stream_quic_pt_connect_open(leg) != NGX_OK) {
        return NGX_ERROR;
    }

    c = pc->connection;
    rev = c->read;

    ngx_log_debug3(NGX_LOG_DEBUG_STREAM, pc->log, 0,
                   "quic passthrough: connect to %V, fd:%d #%uA",
                   pc->name, c->fd, c->number);

    if (connect(c->fd, pc->sockaddr, pc->socklen) == -1) {
        err = ngx_socket_errno;

        level = (err == NGX_ECONNREFUSED
                 || err == NGX_ENETDOWN
                 || err == NGX_ENETUNREACH
                 || err == NGX_EHOSTDOWN
                 || err == NGX_EHOSTUNREACH) ? NGX_LOG_ERR : NGX_LOG_CRIT;

        ngx_log_error(level, c->log, err, "connect() to %V failed", pc->name);

        rc = NGX_DECLINED;
        goto failed;
    }

    c->write->ready = 1;

    if (ngx_add_event(rev, NGX_READ_EVENT,
                      (ngx_event_flags & NGX_USE_CLEAR_EVENT)
                      ? NGX_CLEAR_EVENT : NGX_LEVEL_EVENT)
        != NGX_OK)
    {
        rc = NGX_ERROR;
        goto failed;
    }

    return NGX_OK;

failed:

    ngx_close_connection(c);
    pc->connection = NULL;

    return rc;
}


/* a socket with its port, and the connection around it */

static ngx_int_t
ngx_stream_quic_pt_connect_open(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_socket_t            s;
    ngx_peer_connection_t  *pc;

    pc = &leg->upstream.peer;

    s = ngx_stream_quic_pt_connect_port(leg);

    if (s == (ngx_socket_t) -1) {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_pt_connect_connection(pc, s) != NGX_OK) {
        ngx_stream_quic_pt_connect_close(pc, s);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* returns a socket with a port by which later legs of the same key find it */

static ngx_socket_t
ngx_stream_quic_pt_connect_port(ngx_stream_quic_pt_leg_t *leg)
{
    uint64_t                     key;
    in_port_t                    port;
    ngx_int_t                    rc;
    ngx_socket_t                 s;
    ngx_peer_connection_t       *pc;
    ngx_stream_quic_pt_ports_t  *ports;

    pc = &leg->upstream.peer;
    ports = leg->flow->listener->worker->ports;

    s = ngx_stream_quic_pt_connect_socket(leg);

    if (s == (ngx_socket_t) -1) {
        return s;
    }

    if (ports == NULL
        || (pc->local && ngx_inet_get_port(pc->local->sockaddr) != 0))
    {
        rc = ngx_stream_quic_pt_connect_bind(pc, s);
        goto done;
    }

    key = ngx_stream_quic_pt_ports_key(ports, leg);
    port = ngx_stream_quic_pt_ports_find(ports, key);

    if (port) {
        if (ngx_stream_quic_pt_connect_join(leg, s, key, port) == NGX_OK) {
            return s;
        }

        /* with SO_REUSEPORT the system might choose a port of others */

        ngx_stream_quic_pt_connect_close(pc, s);
        s = ngx_stream_quic_pt_connect_socket(leg);

        if (s == (ngx_socket_t) -1) {
            return s;
        }
    }

    rc = ngx_stream_quic_pt_connect_claim(leg, s, key);

done:

    if (rc != NGX_OK) {
        ngx_stream_quic_pt_connect_close(pc, s);
        return (ngx_socket_t) -1;
    }

    return s;
}


static ngx_socket_t
ngx_stream_quic_pt_connect_socket(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_socket_t            s;
    ngx_peer_connection_t  *pc;

    pc = &leg->upstream.peer;

    s = ngx_socket(pc->sockaddr->sa_family,
                   SOCK_DGRAM|SOCK_NONBLOCK|SOCK_CLOEXEC, 0);

    if (s == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return (ngx_socket_t) -1;
    }

    ngx_stream_quic_pt_buffers_leg(s, SO_RCVBUF, leg->flow->rcvbuf, pc->log);

    if (ngx_stream_quic_pt_connect_transparent(pc, s) != NGX_OK) {
        ngx_stream_quic_pt_connect_close(pc, s);
        return (ngx_socket_t) -1;
    }

    return s;
}


static ngx_int_t
ngx_stream_quic_pt_connect_transparent(ngx_peer_connection_t *pc,
    ngx_socket_t s)
{
#if (NGX_HAVE_TRANSPARENT_PROXY)

    if (pc->local == NULL || !pc->transparent) {
        return NGX_OK;
    }

#if (NGX_HAVE_INET6 && defined IPV6_TRANSPARENT)
    if (pc->local->sockaddr->sa_family == AF_INET6) {
        return ngx_stream_quic_pt_connect_option(pc, s, IPPROTO_IPV6,
                                                 IPV6_TRANSPARENT, 1,
                                                 "IPV6_TRANSPARENT");
    }
#endif

    return ngx_stream_quic_pt_connect_option(pc, s, IPPROTO_IP, IP_TRANSPARENT,
                                             1, "IP_TRANSPARENT");

#else

    return NGX_OK;

#endif
}


/* the port of "quic_passthrough_bind", or any */

static ngx_int_t
ngx_stream_quic_pt_connect_bind(ngx_peer_connection_t *pc, ngx_socket_t s)
{
    in_port_t  port;

    port = pc->local ? ngx_inet_get_port(pc->local->sockaddr) : 0;

    if (port
        && ngx_stream_quic_pt_connect_option(pc, s, SOL_SOCKET, SO_REUSEADDR,
                                             1, "SO_REUSEADDR")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_connect_bind_port(pc, s, port, NGX_LOG_CRIT);
}


/* the port that a leg of the same key has, or had, and nobody else */

static ngx_int_t
ngx_stream_quic_pt_connect_join(ngx_stream_quic_pt_leg_t *leg, ngx_socket_t s,
    uint64_t key, in_port_t port)
{
    ngx_peer_connection_t       *pc;
    ngx_stream_quic_pt_ports_t  *ports;

    pc = &leg->upstream.peer;
    ports = leg->flow->listener->worker->ports;

    if (ngx_stream_quic_pt_connect_option(pc, s, SOL_SOCKET, SO_REUSEPORT, 1,
                                          "SO_REUSEPORT")
        != NGX_OK
        || ngx_stream_quic_pt_connect_bind_port(pc, s, port, NGX_LOG_DEBUG)
           != NGX_OK
        || ngx_stream_quic_pt_ports_owner(ports, port) != key)
    {
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* a port that nobody has; the order matters, see _ports.c */

static ngx_int_t
ngx_stream_quic_pt_connect_claim(ngx_stream_quic_pt_leg_t *leg, ngx_socket_t s,
    uint64_t key)
{
    in_port_t                    port;
    socklen_t                    socklen;
    ngx_sockaddr_t               sa;
    ngx_peer_connection_t       *pc;
    ngx_stream_quic_pt_ports_t  *ports;

    pc = &leg->upstream.peer;
    ports = leg->flow->listener->worker->ports;

    if (ngx_stream_quic_pt_connect_bind_port(pc, s, 0, NGX_LOG_CRIT)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    socklen = sizeof(ngx_sockaddr_t);

    if (getsockname(s, &sa.sockaddr, &socklen) == -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno,
                      "getsockname() failed");
        return NGX_ERROR;
    }

    port = ngx_inet_get_port(&sa.sockaddr);

    ngx_stream_quic_pt_ports_own(ports, port, key);

    if (ngx_stream_quic_pt_connect_option(pc, s, SOL_SOCKET, SO_REUSEPORT, 1,
                                          "SO_REUSEPORT")
        == NGX_OK)
    {
        ngx_stream_quic_pt_ports_enter(ports, key, port);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_connect_bind_port(ngx_peer_connection_t *pc, ngx_socket_t s,
    in_port_t port, ngx_uint_t level)
{
    size_t          len;
    u_char          text[NGX_SOCKADDR_STRLEN];
    ngx_err_t       err;
    socklen_t       socklen;
    ngx_sockaddr_t  sa;

    if (pc->local) {
        socklen = pc->local->socklen;
        ngx_memcpy(&sa, pc->local->sockaddr, socklen);

    } else {
        socklen = pc->socklen;
        ngx_memzero(&sa, sizeof(ngx_sockaddr_t));
        sa.sockaddr.sa_family = pc->sockaddr->sa_family;
    }

    ngx_inet_set_port(&sa.sockaddr, port);

    if (bind(s, &sa.sockaddr, socklen) == 0) {
        return NGX_OK;
    }

    err = ngx_socket_errno;
    len = ngx_sock_ntop(&sa.sockaddr, socklen, text, NGX_SOCKADDR_STRLEN, 1);

    ngx_log_error(level, pc->log, err, "bind(%*s) failed", len, text);

    return NGX_ERROR;
}


static ngx_int_t
ngx_stream_quic_pt_connect_option(ngx_peer_connection_t *pc, ngx_socket_t s,
    int level, int name, int value, const char *text)
{
    if (setsockopt(s, level, name, (const void *) &value, sizeof(int)) == -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno,
                      "setsockopt(%s) failed", text);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_connect_connection(ngx_peer_connection_t *pc,
    ngx_socket_t s)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(s, pc->log);

    if (c == NULL) {
        return NGX_ERROR;
    }

    c->type = SOCK_DGRAM;

    c->recv = ngx_udp_recv;
    c->send = ngx_send;
    c->send_chain = ngx_udp_send_chain;
    c->need_flush_buf = 1;

    c->log_error = pc->log_error;
    c->read->log = pc->log;
    c->write->log = pc->log;

    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    pc->connection = c;

    return NGX_OK;
}


static void
ngx_stream_quic_pt_connect_close(ngx_peer_connection_t *pc, ngx_socket_t s)
{
    if (ngx_close_socket(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno,
                      ngx_close_socket_n " failed");
    }
}
