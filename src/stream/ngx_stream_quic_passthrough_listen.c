
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Listening sockets over the life of processes.
 *
 * Each worker reads a listening socket through a descriptor of its own, made
 * by dup(): nginx closes the listening ones as soon as a worker is told to
 * quit, while flows still have replies to send and, if nobody else reads the
 * socket, datagrams to receive.  Who reads is up to _owner.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/*
 * ms between looks at the owner; datagrams wait that long when an owner dies,
 * less than a PTO of most clients that have just begun (RFC 9002, 6.2.2)
 */

#define NGX_STREAM_QUIC_PT_POLL     200

/*
 * ms until a socket that is older than the configuration has the options set
 * that make the kernel add control messages: until then workers without
 * "quic_passthrough" may read it, and they take a datagram with such a message
 * for truncated; the master tells them to quit 100 ms after it has started new
 * ones
 */

#define NGX_STREAM_QUIC_PT_OPTIONS  500


static ngx_int_t ngx_stream_quic_pt_listen_open(
    ngx_stream_quic_pt_worker_t *worker, ngx_listening_t *ls);
static ngx_int_t ngx_stream_quic_pt_listen_connection(
    ngx_stream_quic_pt_listener_t *listener);
static void ngx_stream_quic_pt_listen_timer(
    ngx_stream_quic_pt_listener_t *listener, ngx_event_t *ev,
    ngx_event_handler_pt handler);
static void ngx_stream_quic_pt_listen_read(ngx_event_t *rev);
static void ngx_stream_quic_pt_listen_write(ngx_event_t *wev);
static void ngx_stream_quic_pt_listen_shutdown(
    ngx_stream_quic_pt_listener_t *listener);
static void ngx_stream_quic_pt_listen_poll(ngx_event_t *ev);
static void ngx_stream_quic_pt_listen_options(ngx_event_t *ev);
static void ngx_stream_quic_pt_listen_unused(ngx_event_t *ev);


ngx_int_t
ngx_stream_quic_pt_listen_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i;
    ngx_listening_t                 *ls;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf == NULL || !pmcf->used) {
        return NGX_OK;
    }

    if (ngx_stream_quic_pt_worker_init(cycle, pmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].connection == NULL
            || !ngx_stream_quic_pt_listening(&ls[i]))
        {
            continue;
        }

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport && ls[i].worker != ngx_worker) {
            continue;
        }
#endif

        if (ngx_stream_quic_pt_listen_open(pmcf->worker, &ls[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_listen_open(ngx_stream_quic_pt_worker_t *worker,
    ngx_listening_t *ls)
{
    ngx_connection_t               *lc;
    ngx_stream_quic_pt_listener_t  *listener;

    listener = ngx_pcalloc(worker->cycle->pool,
                           sizeof(ngx_stream_quic_pt_listener_t));
    if (listener == NULL) {
        return NGX_ERROR;
    }

    listener->worker = worker;
    listener->listening = ls;

    listener->routers = ngx_stream_quic_pt_routers(worker->cycle, ls);
    if (listener->routers == NULL) {
        return NGX_ERROR;
    }

    /* whatever turns the stock event on again: it has nothing to read */

    lc = ls->connection;
    lc->read->handler = ngx_stream_quic_pt_listen_unused;

    if (lc->read->active
        && ngx_del_event(lc->read, NGX_READ_EVENT, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_pt_listen_connection(listener) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_queue_insert_tail(&worker->listeners, &listener->queue);

    ngx_stream_quic_pt_listen_timer(listener, &listener->poll,
                                    ngx_stream_quic_pt_listen_poll);
    ngx_stream_quic_pt_listen_timer(listener, &listener->options,
                                    ngx_stream_quic_pt_listen_options);

    ngx_stream_quic_pt_owner_take(listener);

    ngx_add_timer(&listener->poll, NGX_STREAM_QUIC_PT_POLL);

    if (ls->previous || ls->inherited) {
        ngx_add_timer(&listener->options, NGX_STREAM_QUIC_PT_OPTIONS);

    } else {
        ngx_stream_quic_pt_listen_options(&listener->options);
    }

    return ngx_add_event(listener->socket.connection->read, NGX_READ_EVENT, 0);
}


static ngx_int_t
ngx_stream_quic_pt_listen_connection(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_log_t                    *log;
    ngx_socket_t                  fd;
    ngx_listening_t              *ls;
    ngx_connection_t             *c;
    ngx_stream_quic_pt_worker_t  *worker;

    ls = listener->listening;
    log = listener->worker->log;

    fd = fcntl(ls->fd, F_DUPFD_CLOEXEC, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_socket_errno,
                      "fcntl(F_DUPFD_CLOEXEC) of %V failed", &ls->addr_text);
        return NGX_ERROR;
    }

    c = ngx_get_connection(fd, log);

    if (c == NULL) {
        if (ngx_close_socket(fd) == -1) {
            ngx_log_error(NGX_LOG_ALERT, log, ngx_socket_errno,
                          ngx_close_socket_n " failed");
        }

        return NGX_ERROR;
    }

    worker = listener->worker;

    ngx_stream_quic_pt_worker_limit_legs(worker, fd);

    if (!worker->plain) {
        worker->plain = ngx_stream_quic_pt_udp_plain(fd, log);
    }

    ngx_stream_quic_pt_backlog_init(worker, &listener->socket, c);
    listener->socket.overflow = ngx_stream_quic_pt_udp_overflow(fd);

    c->type = SOCK_DGRAM;
    c->log = &ls->log;
    c->listening = ls;
    c->data = listener;

    /* to be told of a graceful shutdown, and not be counted as a leak then */

    c->idle = 1;

    c->read->log = c->log;
    c->read->accept = 1;
    c->read->handler = ngx_stream_quic_pt_listen_read;

    c->write->log = c->log;
    c->write->handler = ngx_stream_quic_pt_listen_write;

    return NGX_OK;
}


static void
ngx_stream_quic_pt_listen_timer(ngx_stream_quic_pt_listener_t *listener,
    ngx_event_t *ev, ngx_event_handler_pt handler)
{
    ev->data = listener;
    ev->log = listener->socket.connection->log;
    ev->handler = handler;
    ev->cancelable = 1;
}


static void
ngx_stream_quic_pt_listen_read(ngx_event_t *rev)
{
    ngx_int_t                       i, n;
    ngx_uint_t                      turn;
    ngx_connection_t               *c;
    ngx_stream_quic_pt_worker_t    *worker;
    ngx_stream_quic_pt_listener_t  *listener;

    c = rev->data;
    listener = c->data;
    worker = listener->worker;

    if (c->close) {
        ngx_stream_quic_pt_listen_shutdown(listener);
        return;
    }

    if (!ngx_stream_quic_pt_owner_claim(listener)) {

        (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
        return;
    }

    for (turn = 0; turn < NGX_STREAM_QUIC_PT_TURN; turn++) {

        n = ngx_stream_quic_pt_udp_recv(worker, &listener->socket,
                                        listener->listening);

        if (n == NGX_ABORT) {

            /* until the next look at the owner */

            (void) ngx_del_event(rev, NGX_READ_EVENT, 0);
            return;
        }

        if (n == NGX_ERROR) {

            /* such as what ICMP told about a reply: no reason to stop */

            ngx_log_debug0(NGX_LOG_DEBUG_STREAM, c->log, ngx_socket_errno,
                           "quic passthrough: recvmmsg() failed");
            continue;
        }

        for (i = 0; i < n; i++) {
            ngx_stream_quic_pt_datagram_read(listener,
                                                &worker->batch->messages[i]);
        }

        worker->recent = NULL;

        ngx_stream_quic_pt_leg_flush_all(worker);

        if (n < NGX_STREAM_QUIC_PT_MESSAGES) {
            return;
        }
    }

    /* the event is level-triggered: what is left comes after the others */
}


static void
ngx_stream_quic_pt_listen_write(ngx_event_t *wev)
{
    ngx_connection_t               *c;
    ngx_stream_quic_pt_listener_t  *listener;

    c = wev->data;
    listener = c->data;

    ngx_stream_quic_pt_backlog_send(listener->worker, &listener->socket);
}


static void
ngx_stream_quic_pt_listen_shutdown(ngx_stream_quic_pt_listener_t *listener)
{
    ngx_connection_t  *c;

    c = listener->socket.connection;

    ngx_stream_quic_pt_owner_give_up(listener);

    listener->exiting = 1;
    c->close = 0;
    c->idle = 0;
}


static void
ngx_stream_quic_pt_listen_poll(ngx_event_t *ev)
{
    ngx_event_t                    *rev;
    ngx_stream_quic_pt_listener_t  *listener;

    listener = ev->data;
    rev = listener->socket.connection->read;

    /* a retired socket has no read events to find its owner gone */

    if (ngx_stream_quic_pt_owner_claim(listener)) {

        if (!rev->active) {
            (void) ngx_add_event(rev, NGX_READ_EVENT, 0);
        }

        ngx_stream_quic_pt_owner_yield(listener);
    }

    ngx_add_timer(ev, NGX_STREAM_QUIC_PT_POLL);
}


static void
ngx_stream_quic_pt_listen_options(ngx_event_t *ev)
{
    ngx_stream_quic_pt_listener_t  *listener;

    listener = ev->data;

    if (listener->exiting
        || !ngx_stream_quic_pt_owner_claim(listener))
    {
        return;
    }

    ngx_stream_quic_pt_udp_options(listener->socket.connection->fd,
                                   listener->listening->sockaddr->sa_family, 1,
                                   listener->worker->log);

    /* the master may have reset them meanwhile, for others */

    if (!ngx_stream_quic_pt_owner_claim(listener)) {
        ngx_stream_quic_pt_udp_options(listener->socket.connection->fd,
                                   listener->listening->sockaddr->sa_family, 0,
                                   listener->worker->log);
    }
}


static void
ngx_stream_quic_pt_listen_unused(ngx_event_t *ev)
{
    (void) ngx_del_event(ev, NGX_READ_EVENT, 0);
}


void
ngx_stream_quic_pt_listen_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t                     *q;
    ngx_connection_t                *c;
    ngx_stream_quic_pt_worker_t     *worker;
    ngx_stream_quic_pt_listener_t   *listener;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf == NULL || pmcf->worker == NULL) {
        return;
    }

    worker = pmcf->worker;

    ngx_stream_quic_pt_flow_done(worker);
    ngx_stream_quic_preread_exit_process(worker);

    while (!ngx_queue_empty(&worker->listeners)) {

        q = ngx_queue_head(&worker->listeners);
        ngx_queue_remove(q);

        listener = ngx_queue_data(q, ngx_stream_quic_pt_listener_t,
                                  queue);
        c = listener->socket.connection;

        ngx_stream_quic_pt_owner_give_up(listener);
        ngx_stream_quic_pt_backlog_drop(worker, &listener->socket);

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
