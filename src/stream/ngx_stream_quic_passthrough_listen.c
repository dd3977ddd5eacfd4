
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Listening sockets over the life of processes.
 *
 * Each worker reads a listening socket through a descriptor of its own, made
 * by dup(): nginx closes the listening ones as soon as a worker is told to
 * quit, while flows still have replies to send and, if nobody else reads the
 * socket, datagrams to receive.
 *
 * Workers of an older and a newer configuration, or binary, share the socket
 * for a while.  If both read it, a flow's datagrams take turns between two
 * legs and its backend sees the path change over and over.  So a socket has
 * an owner, and only the owner reads: the process in F_SETOWN, which is kept
 * in the open file that all of them share.  The newest worker makes itself
 * the owner when it starts.  A worker that quits gives the socket up (0) and
 * reads on until there is another owner; one that finds its owner dead takes
 * it back.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>


#define NGX_STREAM_QUIC_PT_POLL     200    /* ms between looks at the owner */

/*
 * ms until the options are set that make the kernel add control messages:
 * until then workers of a configuration without "quic_passthrough" may read
 * the socket, and they take a datagram with such a message for truncated
 */

#define NGX_STREAM_QUIC_PT_OPTIONS  500


static ngx_int_t ngx_stream_quic_passthrough_init_worker(ngx_cycle_t *cycle,
    ngx_stream_quic_passthrough_main_conf_t *pmcf);
static ngx_int_t ngx_stream_quic_passthrough_open(
    ngx_stream_quic_passthrough_worker_t *worker, ngx_listening_t *ls);
static void ngx_stream_quic_passthrough_own(
    ngx_stream_quic_passthrough_listener_t *listener);
static ngx_uint_t ngx_stream_quic_passthrough_may_read(
    ngx_stream_quic_passthrough_listener_t *listener);
static void ngx_stream_quic_passthrough_read_handler(ngx_event_t *rev);
static void ngx_stream_quic_passthrough_poll_handler(ngx_event_t *ev);
static void ngx_stream_quic_passthrough_options_handler(ngx_event_t *ev);
static void ngx_stream_quic_passthrough_unused_handler(ngx_event_t *ev);
static void ngx_stream_quic_passthrough_release(ngx_listening_t *ls,
    ngx_cycle_t *cycle);


/*
 * In the master, before it closes what the new configuration does not keep.
 */

ngx_int_t
ngx_stream_quic_passthrough_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    if (ngx_test_config || ngx_process == NGX_PROCESS_SIGNALLER) {
        return NGX_OK;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM
            || ls[i].fd == (ngx_socket_t) -1
            || fcntl(ls[i].fd, F_GETOWN) == 0
            || ngx_stream_quic_passthrough_listening(&ls[i]))
        {
            continue;
        }

        /* others read it now: older workers shall stop */

        ngx_stream_quic_passthrough_socket_options(ls[i].fd,
                                    ls[i].sockaddr->sa_family, 0, cycle->log);

        (void) fcntl(ls[i].fd, F_SETOWN, ngx_pid);
    }

    if (cycle->old_cycle == NULL) {
        return NGX_OK;
    }

    ls = cycle->old_cycle->listening.elts;

    for (i = 0; i < cycle->old_cycle->listening.nelts; i++) {

        if (ls[i].type == SOCK_DGRAM
            && ls[i].fd != (ngx_socket_t) -1
            && !ls[i].remain
            && fcntl(ls[i].fd, F_GETOWN) != 0)
        {
            ngx_stream_quic_passthrough_release(&ls[i], cycle);
        }
    }

    return NGX_OK;
}


/*
 * With fewer workers a "reuseport" socket is left over.  Older workers still
 * have it open, so the kernel would go on choosing it for new clients; a
 * connected socket is not chosen.
 */

static void
ngx_stream_quic_passthrough_release(ngx_listening_t *old, ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM
            || ngx_cmp_sockaddr(ls[i].sockaddr, ls[i].socklen,
                                old->sockaddr, old->socklen, 1)
               != NGX_OK)
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

    /* the address itself is gone: the flows keep the socket to the end */
}


ngx_int_t
ngx_stream_quic_passthrough_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                                i;
    ngx_listening_t                          *ls;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf == NULL || !pmcf->used) {
        return NGX_OK;
    }

    if (ngx_stream_quic_passthrough_init_worker(cycle, pmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].connection == NULL
            || !ngx_stream_quic_passthrough_listening(&ls[i]))
        {
            continue;
        }

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport && ls[i].worker != ngx_worker) {
            continue;
        }
#endif

        if (ngx_stream_quic_passthrough_open(pmcf->worker, &ls[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_passthrough_init_worker(ngx_cycle_t *cycle,
    ngx_stream_quic_passthrough_main_conf_t *pmcf)
{
    size_t                                 n, limit;
    u_char                                *p;
    ngx_uint_t                             i;
    ngx_stream_quic_passthrough_batch_t   *batch;
    ngx_stream_quic_passthrough_worker_t  *worker;

    worker = ngx_pcalloc(cycle->pool,
                         sizeof(ngx_stream_quic_passthrough_worker_t));
    if (worker == NULL) {
        return NGX_ERROR;
    }

    batch = ngx_palloc(cycle->pool,
                       sizeof(ngx_stream_quic_passthrough_batch_t));
    if (batch == NULL) {
        return NGX_ERROR;
    }

    p = ngx_palloc(cycle->pool,
                   NGX_STREAM_QUIC_PT_MESSAGES * NGX_STREAM_QUIC_PT_BUFFER);
    if (p == NULL) {
        return NGX_ERROR;
    }

    batch->buffers = p;

    for (i = 0; i < NGX_STREAM_QUIC_PT_MESSAGES; i++) {
        batch->messages[i].data = p;
        p += NGX_STREAM_QUIC_PT_BUFFER;
    }

    /* a refused flow takes no connection, so there may be more flows */

    limit = 2 * cycle->connection_n;
    n = quic_lb_table_buckets(limit);

    worker->flow_buckets = ngx_pcalloc(cycle->pool, n * sizeof(void *));
    if (worker->flow_buckets == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(&worker->flows, worker->flow_buckets, limit);

    limit = cycle->connection_n;
    n = quic_lb_table_buckets(limit);

    worker->backend_buckets = ngx_pcalloc(cycle->pool, n * sizeof(void *));
    if (worker->backend_buckets == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(&worker->backends, worker->backend_buckets, limit);

    if (RAND_bytes((u_char *) &worker->key, sizeof(quic_lb_hash_key_t)) != 1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    worker->cycle = cycle;
    worker->log = cycle->log;
    worker->counters = pmcf->counters;
    worker->batch = batch;

    /* a flow takes two connections; half of all may be in half-open flows */

    worker->half_open_limit = ngx_max(cycle->connection_n / 4, 1);
    worker->reserve = cycle->connection_n / 16;

    ngx_queue_init(&worker->half_open);
    ngx_queue_init(&worker->confirmed);
    ngx_queue_init(&worker->refused);
    ngx_queue_init(&worker->listeners);
    ngx_queue_init(&worker->pending);

    pmcf->worker = worker;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_passthrough_open(ngx_stream_quic_passthrough_worker_t *worker,
    ngx_listening_t *ls)
{
    ngx_event_t                             *rev;
    ngx_socket_t                             fd;
    ngx_connection_t                        *c, *lc;
    ngx_stream_quic_passthrough_listener_t  *listener;

    listener = ngx_pcalloc(worker->cycle->pool,
                           sizeof(ngx_stream_quic_passthrough_listener_t));
    if (listener == NULL) {
        return NGX_ERROR;
    }

    /* whatever turns the stock event on again: it has nothing to read */

    lc = ls->connection;
    lc->read->handler = ngx_stream_quic_passthrough_unused_handler;

    if (lc->read->active
        && ngx_del_event(lc->read, NGX_READ_EVENT, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    fd = fcntl(ls->fd, F_DUPFD_CLOEXEC, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_EMERG, worker->log, ngx_socket_errno,
                      "fcntl(F_DUPFD_CLOEXEC) of %V failed", &ls->addr_text);
        return NGX_ERROR;
    }

    c = ngx_get_connection(fd, worker->log);

    if (c == NULL) {
        if (ngx_close_socket(fd) == -1) {
            ngx_log_error(NGX_LOG_ALERT, worker->log, ngx_socket_errno,
                          ngx_close_socket_n " failed");
        }

        return NGX_ERROR;
    }

    listener->worker = worker;
    listener->listening = ls;
    listener->connection = c;

#if !(NGX_HAVE_UDP_SEGMENT)
    listener->plain = 1;
#endif

    c->type = SOCK_DGRAM;
    c->log = &ls->log;
    c->listening = ls;
    c->data = listener;

    /* to be told of a graceful shutdown, and not be counted as a leak then */

    c->idle = 1;

    rev = c->read;
    rev->log = c->log;
    rev->accept = 1;
    rev->handler = ngx_stream_quic_passthrough_read_handler;

    listener->poll.data = listener;
    listener->poll.log = c->log;
    listener->poll.handler = ngx_stream_quic_passthrough_poll_handler;
    listener->poll.cancelable = 1;

    listener->options.data = listener;
    listener->options.log = c->log;
    listener->options.handler = ngx_stream_quic_passthrough_options_handler;
    listener->options.cancelable = 1;

    ngx_queue_insert_tail(&worker->listeners, &listener->queue);

    ngx_stream_quic_passthrough_own(listener);
    ngx_add_timer(&listener->options, NGX_STREAM_QUIC_PT_OPTIONS);

    return ngx_add_event(rev, NGX_READ_EVENT, 0);
}


static void
ngx_stream_quic_passthrough_own(
    ngx_stream_quic_passthrough_listener_t *listener)
{
    ngx_socket_t     fd;
    ngx_sockaddr_t   sa;
    socklen_t        socklen;

    fd = listener->connection->fd;

    if (fcntl(fd, F_SETOWN, ngx_pid) == -1) {
        ngx_log_error(NGX_LOG_ALERT, listener->worker->log, ngx_errno,
                      "fcntl(F_SETOWN) of %V failed",
                      &listener->listening->addr_text);
    }

    /* a binary upgrade that is rolled back: undo its retirement */

    socklen = sizeof(ngx_sockaddr_t);

    if (getpeername(fd, &sa.sockaddr, &socklen) == -1) {
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


static ngx_uint_t
ngx_stream_quic_passthrough_may_read(
    ngx_stream_quic_passthrough_listener_t *listener)
{
    ngx_pid_t  owner;

    owner = fcntl(listener->connection->fd, F_GETOWN);

    if (owner == ngx_pid) {
        return 1;
    }

    /* kernels differ in whether they forget a process that is gone */

    if (owner != 0 && (kill(owner, 0) == 0 || ngx_errno != NGX_ESRCH)) {
        return 0;
    }

    if (!listener->exiting) {
        ngx_stream_quic_passthrough_own(listener);
    }

    return 1;
}


static void
ngx_stream_quic_passthrough_read_handler(ngx_event_t *rev)
{
    ngx_int_t                                i, n;
    ngx_uint_t                               turn;
    ngx_connection_t                        *c;
    ngx_stream_quic_passthrough_worker_t    *worker;
    ngx_stream_quic_passthrough_listener_t  *listener;

    c = rev->data;
    listener = c->data;
    worker = listener->worker;

    if (c->close) {

        /* graceful shutdown, or its deadline */

        if (!listener->exiting
            && fcntl(c->fd, F_GETOWN) == ngx_pid)
        {
            (void) fcntl(c->fd, F_SETOWN, 0);
        }

        listener->exiting = 1;
        c->close = 0;
        c->idle = 0;

        return;
    }

    if (!ngx_stream_quic_passthrough_may_read(listener)) {

        if (ngx_del_event(rev, NGX_READ_EVENT, 0) == NGX_OK) {
            ngx_add_timer(&listener->poll, NGX_STREAM_QUIC_PT_POLL);
        }

        return;
    }

    for (turn = 0; turn < NGX_STREAM_QUIC_PT_TURN; turn++) {

        n = ngx_stream_quic_passthrough_recv(worker, c->fd,
                                             listener->listening);

        if (n == NGX_ERROR) {

            /* such as what ICMP told about a reply: no reason to stop */

            ngx_log_debug0(NGX_LOG_DEBUG_STREAM, c->log, ngx_socket_errno,
                           "quic passthrough: recvmmsg() failed");
            continue;
        }

        for (i = 0; i < n; i++) {
            ngx_stream_quic_passthrough_message(listener,
                                                &worker->batch->messages[i]);
        }

        worker->recent = NULL;

        ngx_stream_quic_passthrough_legs_flush(worker);

        if (n < NGX_STREAM_QUIC_PT_MESSAGES) {
            return;
        }
    }

    /* the event is level-triggered: what is left comes after the others */
}


static void
ngx_stream_quic_passthrough_poll_handler(ngx_event_t *ev)
{
    ngx_stream_quic_passthrough_listener_t  *listener;

    listener = ev->data;

    if (ngx_stream_quic_passthrough_may_read(listener)
        && ngx_add_event(listener->connection->read, NGX_READ_EVENT, 0)
           == NGX_OK)
    {
        return;
    }

    ngx_add_timer(ev, NGX_STREAM_QUIC_PT_POLL);
}


static void
ngx_stream_quic_passthrough_options_handler(ngx_event_t *ev)
{
    ngx_stream_quic_passthrough_listener_t  *listener;

    listener = ev->data;

    if (listener->exiting
        || !ngx_stream_quic_passthrough_may_read(listener))
    {
        return;
    }

    ngx_stream_quic_passthrough_socket_options(listener->connection->fd,
                              listener->listening->sockaddr->sa_family, 1,
                              listener->worker->log);
}


static void
ngx_stream_quic_passthrough_unused_handler(ngx_event_t *ev)
{
    (void) ngx_del_event(ev, NGX_READ_EVENT, 0);
}


void
ngx_stream_quic_passthrough_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t                              *q;
    ngx_connection_t                         *c;
    ngx_stream_quic_passthrough_worker_t     *worker;
    ngx_stream_quic_passthrough_listener_t   *listener;
    ngx_stream_quic_passthrough_main_conf_t  *pmcf;

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf == NULL || pmcf->worker == NULL) {
        return;
    }

    worker = pmcf->worker;

    ngx_stream_quic_passthrough_flows_done(worker);

    while (!ngx_queue_empty(&worker->listeners)) {

        q = ngx_queue_head(&worker->listeners);
        ngx_queue_remove(q);

        listener = ngx_queue_data(q, ngx_stream_quic_passthrough_listener_t,
                                  queue);
        c = listener->connection;

        if (fcntl(c->fd, F_GETOWN) == ngx_pid) {
            (void) fcntl(c->fd, F_SETOWN, 0);
        }

        if (listener->poll.timer_set) {
            ngx_del_timer(&listener->poll);
        }

        if (listener->options.timer_set) {
            ngx_del_timer(&listener->options);
        }

        ngx_close_connection(c);
    }

    pmcf->worker = NULL;
}
