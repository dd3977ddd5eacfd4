
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Reload and binary upgrade: who reads a QUIC listening socket.
 *
 * Workers of an older and a newer configuration share the socket.  In stock
 * nginx both read it, and a datagram that meets the wrong one is lost, or
 * even answered by a stateless reset.  Here a socket has one reader, the
 * process in F_SETOWN, which is kept in the open file that all share:
 *
 *     a new worker does not read while the owner lives;
 *     a worker that is told to quit gives each of its connections a socket of
 *     its own, bound to the same address and connected to the client, which
 *     the kernel prefers for datagrams of that client; then it sets the owner
 *     to 0, and reads the listening socket until there is another owner;
 *     the new worker, which looks again and again, makes itself the owner.
 *
 * A client whose address changes while its connection is drained is not found
 * any more.  With "quic_bpf" nginx has sockets of their own for each
 * configuration, and the kernel finds connections by ID: then there is nothing
 * to do.  Nor is there without "reuseport" in several workers, which does not
 * work with QUIC anyway.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"
#include "quic_lb_owner.h"

#include <linux/filter.h>


/* ms between looks at the owner, while there is another one */

#define NGX_HTTP_H3_LIMITS_HANDOVER_POLL  20


typedef struct {
    ngx_connection_t  *connection;          /* of the listening socket */
    ngx_event_t        timer;
    quic_lb_owner_t    owner;               /* last seen */
    ngx_uint_t         failed;
    unsigned           waiting:1;           /* for the older worker */
    unsigned           leaving:1;           /* for the newer one */
} ngx_http_h3_limits_listener_t;


static ngx_int_t ngx_http_h3_limits_handover_listen(ngx_cycle_t *cycle,
    ngx_listening_t *ls);
static ngx_uint_t ngx_http_h3_limits_handover_owned(ngx_connection_t *lc);
static void ngx_http_h3_limits_handover_set_owner(ngx_connection_t *lc,
    ngx_pid_t owner);
static void ngx_http_h3_limits_handover_read(ngx_event_t *rev);
static void ngx_http_h3_limits_handover_timer(ngx_event_t *ev);
static ngx_http_h3_limits_listener_t *ngx_http_h3_limits_handover_listener(
    ngx_listening_t *ls);
static ngx_socket_t ngx_http_h3_limits_handover_socket(ngx_connection_t *c);
static ngx_int_t ngx_http_h3_limits_handover_options(ngx_connection_t *c,
    ngx_socket_t fd);
static ngx_int_t ngx_http_h3_limits_handover_event(ngx_connection_t *c,
    ngx_socket_t fd);
static void ngx_http_h3_limits_handover_cleanup(void *data);


ngx_int_t
ngx_http_h3_limits_handover_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;
    ngx_core_conf_t  *ccf;

    if (ngx_process != NGX_PROCESS_WORKER) {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].handler != ngx_http_h3_limits_handler
            || ls[i].connection == NULL
            || ls[i].ignore)
        {
            continue;
        }

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport) {

            if (ls[i].worker != ngx_worker) {
                continue;
            }

        } else
#endif
        if (ccf->worker_processes > 1) {
            continue;
        }

        if (ngx_http_h3_limits_handover_listen(cycle, &ls[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_handover_listen(ngx_cycle_t *cycle, ngx_listening_t *ls)
{
    ngx_connection_t               *lc;
    ngx_http_h3_limits_listener_t  *listener;

    listener = ngx_pcalloc(cycle->pool, sizeof(ngx_http_h3_limits_listener_t));
    if (listener == NULL) {
        return NGX_ERROR;
    }

    lc = ls->connection;

    listener->connection = lc;
    listener->timer.data = listener;
    listener->timer.log = lc->log;
    listener->timer.handler = ngx_http_h3_limits_handover_timer;
    listener->timer.cancelable = 1;

    lc->data = listener;
    lc->read->handler = ngx_http_h3_limits_handover_read;

    /* to be told of a graceful shutdown */

    lc->idle = 1;

    if (!ngx_http_h3_limits_handover_owned(lc)) {
        ngx_http_h3_limits_handover_set_owner(lc, ngx_pid);
        return NGX_OK;
    }

    listener->waiting = 1;
    ngx_add_timer(&listener->timer, NGX_HTTP_H3_LIMITS_HANDOVER_POLL);

    return ngx_del_event(lc->read, NGX_READ_EVENT, 0);
}


/* by another process that lives */

static ngx_uint_t
ngx_http_h3_limits_handover_owned(ngx_connection_t *lc)
{
    ngx_pid_t                       owner;
    ngx_http_h3_limits_listener_t  *listener;

    owner = fcntl(lc->fd, F_GETOWN);

    if (owner == ngx_pid) {
        return 0;
    }

    listener = lc->data;

    return quic_lb_owner_alive(&listener->owner, owner);
}


static void
ngx_http_h3_limits_handover_set_owner(ngx_connection_t *lc, ngx_pid_t owner)
{
    if (fcntl(lc->fd, F_SETOWN, owner) == -1) {
        ngx_log_error(NGX_LOG_ALERT, lc->log, ngx_errno,
                      "fcntl(F_SETOWN) failed");
    }
}


static void
ngx_http_h3_limits_handover_read(ngx_event_t *rev)
{
    ngx_connection_t               *lc;
    ngx_http_h3_limits_listener_t  *listener;

    lc = rev->data;
    listener = lc->data;

    if (lc->close) {

        /* connections are told next; the owner changes after all of them */

        lc->close = 0;
        lc->idle = 0;

        listener->leaving = !listener->waiting;
        listener->waiting = 0;

        if (listener->leaving) {
            ngx_add_timer(&listener->timer, 1);

        } else if (listener->timer.timer_set) {
            ngx_del_timer(&listener->timer);
        }

        return;
    }

    if (listener->waiting
        || (ngx_exiting && ngx_http_h3_limits_handover_owned(lc)))
    {
        (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
        return;
    }

    ngx_quic_recvmsg(rev);
}


static void
ngx_http_h3_limits_handover_timer(ngx_event_t *ev)
{
    ngx_connection_t               *lc;
    ngx_http_h3_limits_listener_t  *listener;

    listener = ev->data;
    lc = listener->connection;

    if (listener->leaving) {

        ngx_log_debug1(NGX_LOG_DEBUG_HTTP, lc->log, 0,
                       "http3 limits: %V is for another worker",
                       &lc->listening->addr_text);

        ngx_http_h3_limits_handover_set_owner(lc, 0);
        return;
    }

    if (ngx_http_h3_limits_handover_owned(lc)) {
        ngx_add_timer(ev, NGX_HTTP_H3_LIMITS_HANDOVER_POLL);
        return;
    }

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, lc->log, 0,
                   "http3 limits: %V is taken over",
                   &lc->listening->addr_text);

    listener->waiting = 0;
    ngx_http_h3_limits_handover_set_owner(lc, ngx_pid);

    (void) ngx_add_event(lc->read, NGX_READ_EVENT, 0);
}


static ngx_http_h3_limits_listener_t *
ngx_http_h3_limits_handover_listener(ngx_listening_t *ls)
{
    ngx_connection_t  *lc;

    lc = ls->connection;

    if (lc == NULL
        || lc->read->handler != ngx_http_h3_limits_handover_read)
    {
        return NULL;
    }

    return lc->data;
}


void
ngx_http_h3_limits_handover(ngx_connection_t *c)
{
    ngx_socket_t                    fd;
    ngx_http_h3_limits_listener_t  *listener;

    listener = ngx_http_h3_limits_handover_listener(c->listening);

    if (listener == NULL) {
        return;
    }

    /* what has come by the socket of an older connection of the client */

    c->fd = c->listening->fd;

    fd = ngx_http_h3_limits_handover_socket(c);

    if (fd != (ngx_socket_t) -1
        && ngx_http_h3_limits_handover_event(c, fd) == NGX_OK)
    {
        return;
    }

    if (listener->failed++ == 0) {
        ngx_log_error(NGX_LOG_WARN, c->log, 0,
                      "no socket for an HTTP/3 connection of a worker that "
                      "quits: it will be lost at reload, and so may others");
    }
}


static ngx_socket_t
ngx_http_h3_limits_handover_socket(ngx_connection_t *c)
{
    int                 value;
    ngx_err_t           err;
    ngx_socket_t        fd;
    struct sock_fprog   program;
    struct sock_filter  drop[1] = { BPF_STMT(BPF_RET|BPF_K, 0) };

    fd = socket(c->sockaddr->sa_family, SOCK_DGRAM|SOCK_CLOEXEC|SOCK_NONBLOCK,
                0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return (ngx_socket_t) -1;
    }

    /* until it is connected, datagrams of other clients would come, too */

    program.len = 1;
    program.filter = drop;

    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                   sizeof(struct sock_fprog))
        == -1)
    {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      "setsockopt(SO_ATTACH_FILTER) failed");
        goto failed;
    }

    if (ngx_http_h3_limits_handover_options(c, fd) != NGX_OK) {
        goto failed;
    }

    if (ngx_http_h3_limits_capability_bind(fd, c->local_sockaddr,
                                           c->local_socklen, c->log)
        == -1)
    {
        err = ngx_socket_errno;

        ngx_log_error(NGX_LOG_ERR, c->log, err, "bind() failed%s",
                      err == NGX_EACCES
                      ? ", workers may not use the port: lower the sysctl "
                        "net.ipv4.ip_unprivileged_port_start"
                      : "");
        goto failed;
    }

    if (connect(fd, c->sockaddr, c->socklen) == -1) {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      "connect() failed");
        goto failed;
    }

    value = 0;

    if (setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &value, sizeof(int))
        == -1)
    {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      "setsockopt(SO_DETACH_FILTER) failed");
        goto failed;
    }

    return fd;

failed:

    if (ngx_close_socket(fd) == -1) {
        ngx_log_error(NGX_LOG_ALERT, c->log, ngx_socket_errno,
                      ngx_close_socket_n " failed");
    }

    return (ngx_socket_t) -1;
}


/*
 * as nginx sets them on the listening socket; SO_REUSEPORT would make it one
 * more of the group
 */

static ngx_int_t
ngx_http_h3_limits_handover_options(ngx_connection_t *c, ngx_socket_t fd)
{
    int         value;
    ngx_uint_t  inet6;

    value = 1;

#if (NGX_HAVE_INET6)
    inet6 = (c->sockaddr->sa_family == AF_INET6);
#else
    inet6 = 0;
#endif

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(int)) == -1) {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      "setsockopt(SO_REUSEADDR) failed");
        return NGX_ERROR;
    }

    /* nginx looks for a connection by the local address, too */

    if (c->listening->wildcard
        && setsockopt(fd, inet6 ? IPPROTO_IPV6 : IPPROTO_IP,
                      inet6 ? IPV6_RECVPKTINFO : IP_PKTINFO,
                      &value, sizeof(int))
           == -1)
    {
        ngx_log_error(NGX_LOG_ERR, c->log, ngx_socket_errno,
                      "setsockopt(%s) failed",
                      inet6 ? "IPV6_RECVPKTINFO" : "IP_PKTINFO");
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_h3_limits_handover_event(ngx_connection_t *c, ngx_socket_t fd)
{
    ngx_connection_t    *lc;
    ngx_pool_cleanup_t  *cln;

    lc = NULL;

    cln = ngx_pool_cleanup_add(c->pool, 0);

    /* ngx_get_connection() would close others, or log an alert */

    if (cln && ngx_cycle->free_connection_n) {
        lc = ngx_get_connection(fd, c->listening->connection->log);
    }

    if (lc == NULL) {
        if (ngx_close_socket(fd) == -1) {
            ngx_log_error(NGX_LOG_ALERT, c->log, ngx_socket_errno,
                          ngx_close_socket_n " failed");
        }

        return NGX_ERROR;
    }

    lc->type = SOCK_DGRAM;
    lc->log = c->listening->connection->log;
    lc->listening = c->listening;

    lc->read->log = lc->log;
    lc->write->log = lc->log;

    /* neither a connection of a client nor left open */

    lc->read->accept = 1;
    lc->read->handler = ngx_quic_recvmsg;

    cln->handler = ngx_http_h3_limits_handover_cleanup;
    cln->data = lc;

    return ngx_add_event(lc->read, NGX_READ_EVENT, 0);
}


static void
ngx_http_h3_limits_handover_cleanup(void *data)
{
    ngx_connection_t  *lc = data;

    ngx_close_connection(lc);
}
