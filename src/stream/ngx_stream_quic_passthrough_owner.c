
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The owners of listening sockets.
 *
 * Workers of an older and a newer configuration, or binary, share a socket for
 * a while.  If both read it, the datagrams of a client are split between them:
 * they overtake each other, and each worker knows half of a handshake.  So a
 * socket has an owner, and only the owner reads: the process in F_SETOWN, kept
 * in the open file that all of them share.  The newest worker makes itself the
 * owner when it starts.  A worker that quits gives the socket up (0) and reads
 * on until there is another owner; one that finds its owner dead takes it back.
 * A socket that is to be used no more belongs to the master that found it so.
 * One without an owner is left to another instance that opens its port.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void ngx_stream_quic_pt_owner_reuse(ngx_listening_t *ls,
    ngx_log_t *log);
static void ngx_stream_quic_pt_owner_release(ngx_listening_t *old,
    ngx_cycle_t *cycle);
static ngx_uint_t ngx_stream_quic_pt_owner_covers(ngx_listening_t *ls,
    ngx_listening_t *old);
static ngx_uint_t ngx_stream_quic_pt_owner_retired(ngx_socket_t fd);
static void ngx_stream_quic_pt_owner_set(ngx_socket_t fd, ngx_pid_t owner,
    ngx_log_t *log);


/*
 * In the master, before it closes what the new configuration does not keep.
 */

ngx_int_t
ngx_stream_quic_pt_owner_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    if (ngx_test_config || ngx_process == NGX_PROCESS_SIGNALLER) {
        return NGX_OK;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM || ls[i].fd == (ngx_socket_t) -1) {
            continue;
        }

        if (ngx_stream_quic_pt_listening(&ls[i])) {
            ngx_stream_quic_pt_owner_reuse(&ls[i], cycle->log);
            continue;
        }

        if (fcntl(ls[i].fd, F_GETOWN) == 0
            && (ls[i].previous == NULL
                || !ngx_stream_quic_pt_listening(ls[i].previous)))
        {
            continue;
        }

        /* others read it now: older workers shall stop */

        if (!ls[i].quic) {

            /* else its owner is up to the http module that terminates QUIC */

            ngx_stream_quic_pt_owner_set(ls[i].fd, ngx_pid, cycle->log);
        }

        ngx_stream_quic_pt_udp_options(ls[i].fd, ls[i].sockaddr->sa_family, 0,
                                       cycle->log);
    }

    if (cycle->old_cycle == NULL) {
        return NGX_OK;
    }

    ls = cycle->old_cycle->listening.elts;

    for (i = 0; i < cycle->old_cycle->listening.nelts; i++) {

        if (ls[i].type == SOCK_DGRAM
            && ls[i].fd != (ngx_socket_t) -1
            && !ls[i].quic
            && !ls[i].remain
            && fcntl(ls[i].fd, F_GETOWN) != 0)
        {
            ngx_stream_quic_pt_owner_release(&ls[i], cycle);
        }
    }

    return NGX_OK;
}


/* an owner that is the master means to workers that others read the socket */

static void
ngx_stream_quic_pt_owner_reuse(ngx_listening_t *ls, ngx_log_t *log)
{
    if (fcntl(ls->fd, F_GETOWN) == ngx_pid) {
        ngx_stream_quic_pt_owner_set(ls->fd, 0, log);
    }
}


/*
 * With fewer workers a "reuseport" socket is left over, and one of an address
 * when a wildcard takes its place.  Older workers still have it open, so the
 * kernel would go on choosing it for new clients; a connected socket is not
 * chosen.
 */

static void
ngx_stream_quic_pt_owner_release(ngx_listening_t *old, ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM
            || !ngx_stream_quic_pt_owner_covers(&ls[i], old))
        {
            continue;
        }

        if (connect(old->fd, old->sockaddr, old->socklen) == -1) {
            ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_socket_errno,
                          "connect() to retire the socket of %V failed",
                          &old->addr_text);
        }

        /* as long as this master lives */

        ngx_stream_quic_pt_owner_set(old->fd, ngx_pid, cycle->log);

        return;
    }

    /* the address itself is gone: the flows keep the socket to the end */
}


static ngx_uint_t
ngx_stream_quic_pt_owner_covers(ngx_listening_t *ls, ngx_listening_t *old)
{
    if (ngx_cmp_sockaddr(ls->sockaddr, ls->socklen, old->sockaddr,
                         old->socklen, 1)
        == NGX_OK)
    {
        return 1;
    }

    if (!ls->wildcard
        || ngx_inet_get_port(ls->sockaddr) != ngx_inet_get_port(old->sockaddr))
    {
        return 0;
    }

    if (ls->sockaddr->sa_family == old->sockaddr->sa_family) {
        return 1;
    }

#if (NGX_HAVE_INET6)
    return ls->sockaddr->sa_family == AF_INET6 && !ls->ipv6only;
#else
    return 0;
#endif
}


void
ngx_stream_quic_pt_owner_take(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_socket_t    fd;
    ngx_sockaddr_t  sa;

    fd = listener->socket.connection->fd;

    if (fcntl(fd, F_GETOWN) == ngx_parent) {

        /* a newer configuration was loaded before this worker has started */

        return;
    }

    ngx_stream_quic_pt_owner_set(fd, ngx_pid, listener->worker->log);

    /* a binary upgrade that is rolled back: undo its retirement */

    if (!ngx_stream_quic_pt_owner_retired(fd)) {
        return;
    }

    ngx_memzero(&sa, sizeof(ngx_sockaddr_t));
    sa.sockaddr.sa_family = AF_UNSPEC;

    if (connect(fd, &sa.sockaddr, sizeof(struct sockaddr)) == -1) {
        ngx_log_error(NGX_LOG_WARN, listener->worker->log, ngx_socket_errno,
                      "connect() to use the socket of %V again failed",
                      &listener->listening->addr_text);
    }
}


ngx_uint_t
ngx_stream_quic_pt_owner_claim(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_pid_t  owner;

    owner = fcntl(listener->socket.connection->fd, F_GETOWN);

    if (owner == ngx_pid) {
        return 1;
    }

    if (quic_lb_owner_alive(&listener->owner, owner)) {

        /* what has come before the socket was retired is still to be read */

        return ngx_stream_quic_pt_owner_retired(
                                          listener->socket.connection->fd);
    }

    if (!listener->exiting) {
        ngx_stream_quic_pt_owner_take(listener);
    }

    return 1;
}


static ngx_uint_t
ngx_stream_quic_pt_owner_retired(ngx_socket_t fd)
{
    socklen_t       socklen;
    ngx_sockaddr_t  sa;

    socklen = sizeof(ngx_sockaddr_t);

    return getpeername(fd, &sa.sockaddr, &socklen) == 0;
}


void
ngx_stream_quic_pt_owner_yield(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_log_t        *log;
    ngx_socket_t      fd;
    ngx_listening_t  *ls;

    ls = listener->listening;
    log = listener->worker->log;
    fd = listener->socket.connection->fd;

    if (listener->exiting
        && !ngx_stream_quic_pt_owner_retired(fd)
        && ngx_stream_quic_lb_successor_found(&listener->worker->successor,
                                              ls, log))
    {
        ngx_stream_quic_lb_successor_yield(fd, ls, log);
    }
}


void
ngx_stream_quic_pt_owner_give_up(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_socket_t  fd;

    fd = listener->socket.connection->fd;

    if (fcntl(fd, F_GETOWN) == ngx_pid) {
        ngx_stream_quic_pt_owner_set(fd, 0, listener->worker->log);
    }
}


static void
ngx_stream_quic_pt_owner_set(ngx_socket_t fd, ngx_pid_t owner,
    ngx_log_t *log)
{
    if (fcntl(fd, F_SETOWN, owner) == -1) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno, "fcntl(F_SETOWN) failed");
    }
}
