
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Listening sockets over the life of processes.
 *
 * A worker reads a listening socket through a descriptor made by dup(): nginx
 * closes its own as soon as the worker is told to quit, while connections go
 * on.  Workers of an older and a newer configuration, or binary, have the same
 * socket open.  Only its owner reads it, the process in F_SETOWN, which is kept
 * in the open file that all of them share:
 *
 *     a worker that starts makes itself the owner;
 *     one that finds another living owner stops to read, and looks again now
 *     and then;
 *     one that is told to quit gives the socket up, but reads on until there
 *     is an owner.
 *
 * What the owner reads for connections of others it hands over (_handover.c).
 */


#include "ngx_stream_quic_relay_module.h"
#include "quic_lb_error.h"

#include <openssl/rand.h>


/*
 * ms between looks at the owner; datagrams wait that long when an owner dies,
 * less than a PTO of most clients that have just begun (RFC 9002, 6.2.2)
 */
#define NGX_STREAM_QUIC_RELAY_POLL    200

/*
 * ms until a socket that is older than the configuration has the options set
 * that make the kernel join datagrams and add control messages: until then
 * stock workers may read it, which the master tells to quit 100 ms after it
 * has started new ones
 */
#define NGX_STREAM_QUIC_RELAY_OPTIONS  500

/* connection IDs that all connections of a worker may have, for each one */
#define NGX_STREAM_QUIC_RELAY_SHARE   8


static ngx_uint_t ngx_stream_quic_relay_listen_used(ngx_cycle_t *cycle);
static void ngx_stream_quic_relay_listen_release(ngx_cycle_t *cycle,
    ngx_listening_t *old);
static ngx_uint_t ngx_stream_quic_relay_listen_covers(ngx_listening_t *ls,
    ngx_listening_t *old);
static ngx_int_t ngx_stream_quic_relay_listen_init_worker(ngx_cycle_t *cycle,
    ngx_stream_quic_relay_main_conf_t *rmcf);
static ngx_int_t ngx_stream_quic_relay_listen_open(ngx_cycle_t *cycle,
    ngx_stream_quic_relay_worker_t *worker, ngx_listening_t *ls);
static ngx_connection_t *ngx_stream_quic_relay_listen_connection(
    ngx_listening_t *ls, ngx_log_t *log);
static void ngx_stream_quic_relay_listen_timer(
    ngx_stream_quic_relay_listener_t *listener, ngx_event_t *ev,
    ngx_event_handler_pt handler);
static void ngx_stream_quic_relay_listen_set_owner(ngx_socket_t fd,
    ngx_pid_t owner, ngx_log_t *log);
static ngx_uint_t ngx_stream_quic_relay_listen_claim(
    ngx_stream_quic_relay_listener_t *listener);
static void ngx_stream_quic_relay_listen_disown(
    ngx_stream_quic_relay_listener_t *listener);
static ngx_uint_t ngx_stream_quic_relay_listen_retired(ngx_socket_t fd);
static void ngx_stream_quic_relay_listen_read(ngx_event_t *rev);
static void ngx_stream_quic_relay_listen_poll(ngx_event_t *ev);
static void ngx_stream_quic_relay_listen_options(ngx_event_t *ev);
static void ngx_stream_quic_relay_listen_unused(ngx_event_t *ev);


/* all servers of an address relay, or none: the default one tells */

ngx_uint_t
ngx_stream_quic_relay_listening(ngx_listening_t *ls)
{
    ngx_stream_quic_relay_srv_conf_t  *conf;

    if (ls->type != SOCK_DGRAM || ls->handler != ngx_stream_init_connection) {
        return 0;
    }

    conf = ngx_stream_quic_relay_listen_conf(ls, ls->sockaddr);

    return conf->core != NULL;
}


/* as ngx_stream_init_connection() finds it: the last address is the wildcard */

ngx_stream_quic_relay_srv_conf_t *
ngx_stream_quic_relay_listen_conf(ngx_listening_t *ls, struct sockaddr *local)
{
    ngx_uint_t              i;
    ngx_stream_port_t      *port;
    struct sockaddr_in     *sin;
    ngx_stream_in_addr_t   *addr;
    ngx_stream_conf_ctx_t  *ctx;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6    *sin6;
    ngx_stream_in6_addr_t  *addr6;
#endif

    port = ls->servers;

#if (NGX_HAVE_INET6)
    if (ls->sockaddr->sa_family == AF_INET6) {
        sin6 = (struct sockaddr_in6 *) local;
        addr6 = port->addrs;

        for (i = 0; i < port->naddrs - 1; i++) {
            if (ngx_memcmp(&addr6[i].addr6, &sin6->sin6_addr, 16) == 0) {
                break;
            }
        }

        ctx = addr6[i].conf.default_server->ctx;

    } else
#endif
    {
        sin = (struct sockaddr_in *) local;
        addr = port->addrs;

        for (i = 0; i < port->naddrs - 1; i++) {
            if (addr[i].addr == sin->sin_addr.s_addr) {
                break;
            }
        }

        ctx = addr[i].conf.default_server->ctx;
    }

    return ctx->srv_conf[ngx_stream_quic_relay_module.ctx_index];
}


/* a configuration that does not load the module has no place for it */

static ngx_uint_t
ngx_stream_quic_relay_listen_used(ngx_cycle_t *cycle)
{
    ngx_uint_t                          i;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    if (cycle == NULL || cycle->conf_ctx == NULL || cycle->modules == NULL) {
        return 0;
    }

    for (i = 0; cycle->modules[i]; i++) {
        if (cycle->modules[i] == &ngx_stream_quic_relay_module) {
            rmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                ngx_stream_quic_relay_module);
            return rmcf && rmcf->used;
        }
    }

    return 0;
}


/* in the master: what older workers read, and newer ones are not to share */

ngx_int_t
ngx_stream_quic_relay_listen_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t        i, n;
    ngx_listening_t  *ls, *old;

    if (ngx_test_config
        || ngx_process == NGX_PROCESS_SIGNALLER
        || !ngx_stream_quic_relay_listen_used(cycle->old_cycle))
    {
        return NGX_OK;
    }

    ls = cycle->listening.elts;
    old = cycle->old_cycle->listening.elts;

    for (i = 0; i < cycle->old_cycle->listening.nelts; i++) {

        if (old[i].fd == (ngx_socket_t) -1
            || !ngx_stream_quic_relay_listening(&old[i]))
        {
            continue;
        }

        if (!old[i].remain) {
            ngx_stream_quic_relay_listen_release(cycle, &old[i]);
            continue;
        }

        for (n = 0; n < cycle->listening.nelts; n++) {

            if (ls[n].fd != old[i].fd) {
                continue;
            }

            if (ngx_stream_quic_relay_listening(&ls[n])) {

                /* another module may have taken them for left over */

                ngx_stream_quic_relay_udp_options(ls[n].fd,
                                                  ls[n].sockaddr->sa_family, 1,
                                                  cycle->log);
                continue;
            }

            /* stock nginx reads it now, which knows of no owner, either */

            ngx_stream_quic_relay_udp_options(ls[n].fd,
                                              ls[n].sockaddr->sa_family, 0,
                                              cycle->log);

            if (!ls[n].quic) {
                ngx_stream_quic_relay_listen_set_owner(ls[n].fd, ngx_pid,
                                                       cycle->log);
            }
        }
    }

    return NGX_OK;
}


/*
 * With fewer workers a "reuseport" socket is left over, and one of an address
 * when a wildcard takes its place.  Older workers have it open, so the kernel
 * would go on choosing it for new clients; a connected socket is not chosen.
 */

static void
ngx_stream_quic_relay_listen_release(ngx_cycle_t *cycle, ngx_listening_t *old)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM
            || !ngx_stream_quic_relay_listen_covers(&ls[i], old))
        {
            continue;
        }

        if (connect(old->fd, old->sockaddr, old->socklen) == -1) {
            ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_socket_errno,
                          "connect() to retire the socket of %V failed",
                          &old->addr_text);
        }

        return;
    }

    /* the address itself is gone: connections keep the socket to the end */
}


static ngx_uint_t
ngx_stream_quic_relay_listen_covers(ngx_listening_t *ls, ngx_listening_t *old)
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


ngx_int_t
ngx_stream_quic_relay_listen_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                          i;
    ngx_listening_t                    *ls;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    if (!ngx_stream_quic_relay_listen_used(cycle)) {
        return NGX_OK;
    }

    rmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                ngx_stream_quic_relay_module);

    if (ngx_stream_quic_relay_listen_init_worker(cycle, rmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].connection == NULL
            || !ngx_stream_quic_relay_listening(&ls[i]))
        {
            continue;
        }

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport && ls[i].worker != ngx_worker) {
            continue;
        }
#endif

        if (ngx_stream_quic_relay_listen_open(cycle, rmcf->worker, &ls[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_listen_init_worker(ngx_cycle_t *cycle,
    ngx_stream_quic_relay_main_conf_t *rmcf)
{
    size_t                           limit;
    quic_lb_table_node_t           **buckets;
    ngx_stream_quic_relay_worker_t  *worker;

    if (ngtcp2_crypto_ossl_init() != 0) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "ngtcp2_crypto_ossl_init() failed");
        return NGX_ERROR;
    }

    worker = ngx_pcalloc(cycle->pool, sizeof(ngx_stream_quic_relay_worker_t));
    if (worker == NULL) {
        return NGX_ERROR;
    }

    worker->log = cycle->log;
    worker->shared = rmcf->shared;
    worker->segments = NGX_STREAM_QUIC_RELAY_SEGMENTS;

    ngx_queue_init(&worker->listeners);
    ngx_stream_quic_relay_half_open_init(worker, cycle->connection_n);

    worker->buffer = ngx_palloc(cycle->pool, NGX_STREAM_QUIC_RELAY_BUFFER);
    worker->out = ngx_palloc(cycle->pool, NGX_STREAM_QUIC_RELAY_BUFFER);

    limit = NGX_STREAM_QUIC_RELAY_SHARE * cycle->connection_n;
    buckets = ngx_pcalloc(cycle->pool, quic_lb_table_buckets(limit)
                                       * sizeof(quic_lb_table_node_t *));

    if (worker->buffer == NULL || worker->out == NULL || buckets == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(&worker->cids, buckets, limit);

    if (RAND_bytes((u_char *) &worker->key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    rmcf->worker = worker;

    if (ngx_stream_quic_relay_ids_init_worker(worker, rmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_relay_handover_open(worker, cycle, rmcf->shared);
}


static ngx_int_t
ngx_stream_quic_relay_listen_open(ngx_cycle_t *cycle,
    ngx_stream_quic_relay_worker_t *worker, ngx_listening_t *ls)
{
    ngx_connection_t                  *c;
    ngx_stream_quic_relay_listener_t  *listener;

    listener = ngx_pcalloc(cycle->pool,
                           sizeof(ngx_stream_quic_relay_listener_t));
    if (listener == NULL) {
        return NGX_ERROR;
    }

    /* whatever turns the stock event on again: it has nothing to read */

    c = ls->connection;
    c->read->handler = ngx_stream_quic_relay_listen_unused;

    if (c->read->active
        && ngx_del_event(c->read, NGX_READ_EVENT, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    c = ngx_stream_quic_relay_listen_connection(ls, worker->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = listener;

    listener->worker = worker;
    listener->listening = ls;
    listener->connection = c;

    if (worker->segments > 1 && ngx_stream_quic_relay_udp_plain(c->fd, c->log))
    {
        worker->segments = 1;
    }

    ngx_stream_quic_relay_listen_timer(listener, &listener->poll,
                                       ngx_stream_quic_relay_listen_poll);
    ngx_stream_quic_relay_listen_timer(listener, &listener->options,
                                       ngx_stream_quic_relay_listen_options);

    ngx_queue_insert_tail(&worker->listeners, &listener->queue);

    ngx_stream_quic_relay_listen_set_owner(c->fd, ngx_pid, c->log);
    ngx_add_timer(&listener->poll, NGX_STREAM_QUIC_RELAY_POLL);

    if (ls->previous || ls->inherited) {
        ngx_add_timer(&listener->options, NGX_STREAM_QUIC_RELAY_OPTIONS);

    } else {
        ngx_stream_quic_relay_listen_options(&listener->options);
    }

    return ngx_add_event(c->read, NGX_READ_EVENT, 0);
}


static ngx_connection_t *
ngx_stream_quic_relay_listen_connection(ngx_listening_t *ls, ngx_log_t *log)
{
    ngx_socket_t       fd;
    ngx_connection_t  *c;

    fd = fcntl(ls->fd, F_DUPFD_CLOEXEC, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_socket_errno,
                      "fcntl(F_DUPFD_CLOEXEC) of %V failed", &ls->addr_text);
        return NULL;
    }

    c = ngx_get_connection(fd, log);

    if (c == NULL) {
        if (ngx_close_socket(fd) == -1) {
            ngx_log_error(NGX_LOG_ALERT, log, ngx_socket_errno,
                          ngx_close_socket_n " failed");
        }

        return NULL;
    }

    c->type = SOCK_DGRAM;
    c->log = &ls->log;
    c->listening = ls;

    /* to be told of a graceful shutdown, and not be counted as a leak then */

    c->idle = 1;

    c->read->accept = 1;
    c->read->log = c->log;
    c->read->handler = ngx_stream_quic_relay_listen_read;
    c->write->log = c->log;

    return c;
}


static void
ngx_stream_quic_relay_listen_timer(ngx_stream_quic_relay_listener_t *listener,
    ngx_event_t *ev, ngx_event_handler_pt handler)
{
    ev->data = listener;
    ev->log = listener->connection->log;
    ev->handler = handler;
    ev->cancelable = 1;
}


static void
ngx_stream_quic_relay_listen_set_owner(ngx_socket_t fd, ngx_pid_t owner,
    ngx_log_t *log)
{
    if (fcntl(fd, F_SETOWN, owner) == -1) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno, "fcntl(F_SETOWN) failed");
    }
}


/* whether this process is to read the socket */

static ngx_uint_t
ngx_stream_quic_relay_listen_claim(ngx_stream_quic_relay_listener_t *listener)
{
    ngx_pid_t     owner;
    ngx_socket_t  fd;

    fd = listener->connection->fd;
    owner = fcntl(fd, F_GETOWN);

    if (owner == ngx_pid) {
        return 1;
    }

    if (quic_lb_owner_alive(&listener->owner, owner)) {

        /* what has come before the socket was retired is still to be read */

        return ngx_stream_quic_relay_listen_retired(fd);
    }

    if (!listener->exiting) {
        ngx_stream_quic_relay_listen_set_owner(fd, ngx_pid,
                                               listener->connection->log);
    }

    return 1;
}


static void
ngx_stream_quic_relay_listen_disown(ngx_stream_quic_relay_listener_t *listener)
{
    ngx_socket_t  fd;

    fd = listener->connection->fd;

    if (fcntl(fd, F_GETOWN) == ngx_pid) {
        ngx_stream_quic_relay_listen_set_owner(fd, 0,
                                               listener->connection->log);
    }
}


static ngx_uint_t
ngx_stream_quic_relay_listen_retired(ngx_socket_t fd)
{
    socklen_t       socklen;
    ngx_sockaddr_t  sa;

    socklen = sizeof(ngx_sockaddr_t);

    return getpeername(fd, &sa.sockaddr, &socklen) == 0;
}


static void
ngx_stream_quic_relay_listen_read(ngx_event_t *rev)
{
    ngx_connection_t                  *c;
    ngx_stream_quic_relay_listener_t  *listener;

    c = rev->data;
    listener = c->data;

    if (c->close) {
        c->close = 0;
        c->idle = 0;

        ngx_stream_quic_relay_listen_disown(listener);
        listener->exiting = 1;

        return;
    }

    if (!ngx_stream_quic_relay_listen_claim(listener)) {
        (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
        return;
    }

    ngx_stream_quic_relay_input_client(listener->worker, c);
}


static void
ngx_stream_quic_relay_listen_poll(ngx_event_t *ev)
{
    ngx_event_t                       *rev;
    ngx_stream_quic_relay_listener_t  *listener = ev->data;

    rev = listener->connection->read;

    if (!rev->active && ngx_stream_quic_relay_listen_claim(listener)) {
        (void) ngx_add_event(rev, NGX_READ_EVENT, 0);
    }

    ngx_add_timer(ev, NGX_STREAM_QUIC_RELAY_POLL);
}


static void
ngx_stream_quic_relay_listen_options(ngx_event_t *ev)
{
    ngx_connection_t                  *c;
    ngx_stream_quic_relay_listener_t  *listener = ev->data;

    c = listener->connection;

    if (!listener->exiting && ngx_stream_quic_relay_listen_claim(listener)) {
        ngx_stream_quic_relay_udp_options(c->fd,
                                     listener->listening->sockaddr->sa_family,
                                     1, c->log);
    }
}


static void
ngx_stream_quic_relay_listen_unused(ngx_event_t *ev)
{
    (void) ngx_del_event(ev, NGX_READ_EVENT, 0);
}


ngx_connection_t *
ngx_stream_quic_relay_listen_find(ngx_stream_quic_relay_worker_t *worker,
    struct sockaddr *local, socklen_t socklen)
{
    ngx_queue_t                       *q;
    ngx_listening_t                   *ls;
    ngx_stream_quic_relay_listener_t  *listener;

    for (q = ngx_queue_head(&worker->listeners);
         q != ngx_queue_sentinel(&worker->listeners);
         q = ngx_queue_next(q))
    {
        listener = ngx_queue_data(q, ngx_stream_quic_relay_listener_t, queue);
        ls = listener->listening;

        if (ls->sockaddr->sa_family != local->sa_family) {
            continue;
        }

        if (ls->wildcard
            ? ngx_inet_get_port(ls->sockaddr) == ngx_inet_get_port(local)
            : ngx_cmp_sockaddr(ls->sockaddr, ls->socklen, local, socklen, 1)
              == NGX_OK)
        {
            return listener->connection;
        }
    }

    return NULL;
}


void
ngx_stream_quic_relay_listen_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t                        *q;
    ngx_stream_quic_relay_worker_t     *worker;
    ngx_stream_quic_relay_listener_t   *listener;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    if (!ngx_stream_quic_relay_listen_used(cycle)) {
        return;
    }

    rmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                ngx_stream_quic_relay_module);
    worker = rmcf->worker;

    if (worker == NULL) {
        return;
    }

    while (!ngx_queue_empty(&worker->listeners)) {

        q = ngx_queue_head(&worker->listeners);
        ngx_queue_remove(q);

        listener = ngx_queue_data(q, ngx_stream_quic_relay_listener_t, queue);

        ngx_stream_quic_relay_listen_disown(listener);

        if (listener->poll.timer_set) {
            ngx_del_timer(&listener->poll);
        }

        if (listener->options.timer_set) {
            ngx_del_timer(&listener->options);
        }

        ngx_close_connection(listener->connection);
    }

    ngx_stream_quic_relay_handover_close(worker);
}
