
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * A server that is asked whether it is healthy.  Each question has a socket of
 * its own, so that late answers to earlier ones need not be told apart, and
 * waits for its answer until it is time for the next one.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_health.h"
#include "ngx_stream_upstream_quic_lb_peers.h"

#include <openssl/rand.h>


/* ms in which the first questions of a worker are asked */

#define NGX_STREAM_QUIC_LB_TARGET_START  1000

/* octets; what is longer is no answer, or one with very many versions */

#define NGX_STREAM_QUIC_LB_TARGET_READ   2048


static void ngx_stream_quic_lb_target_peers(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peers_t *peers);
static ngx_stream_quic_lb_target_t *ngx_stream_quic_lb_target_find(
    ngx_stream_quic_lb_health_t *health, ngx_stream_upstream_rr_peer_t *peer);
static void ngx_stream_quic_lb_target_add(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peer_t *peer);
static void ngx_stream_quic_lb_target_timer(ngx_event_t *ev);
static void ngx_stream_quic_lb_target_ask(ngx_stream_quic_lb_target_t *target);
static ngx_connection_t *ngx_stream_quic_lb_target_connect(
    ngx_stream_quic_lb_target_t *target);
static void ngx_stream_quic_lb_target_read(ngx_event_t *rev);
static void ngx_stream_quic_lb_target_judge(
    ngx_stream_quic_lb_target_t *target, ngx_uint_t state, ngx_err_t err);
static void ngx_stream_quic_lb_target_change(
    ngx_stream_quic_lb_target_t *target, ngx_uint_t state, ngx_err_t err);


void
ngx_stream_quic_lb_target_update(ngx_stream_quic_lb_health_t *health)
{
    ngx_queue_t                     *q, *next;
    ngx_stream_quic_lb_target_t     *target;
    ngx_stream_upstream_rr_peers_t  *peers, *backup;

    peers = health->upstream->peer.data;
    backup = peers->next;

    for (q = ngx_queue_head(&health->targets);
         q != ngx_queue_sentinel(&health->targets);
         q = ngx_queue_next(q))
    {
        target = ngx_queue_data(q, ngx_stream_quic_lb_target_t, queue);
        target->stale = 1;
    }

    ngx_stream_upstream_rr_peers_rlock(peers);
    health->config = ngx_stream_upstream_quic_lb_peers_config(peers);
    ngx_stream_quic_lb_target_peers(health, peers);
    ngx_stream_upstream_rr_peers_unlock(peers);

    if (backup) {
        ngx_stream_upstream_rr_peers_rlock(backup);
        health->backup_config =
                              ngx_stream_upstream_quic_lb_peers_config(backup);
        ngx_stream_quic_lb_target_peers(health, backup);
        ngx_stream_upstream_rr_peers_unlock(backup);
    }

    for (q = ngx_queue_head(&health->targets);
         q != ngx_queue_sentinel(&health->targets);
         q = next)
    {
        next = ngx_queue_next(q);
        target = ngx_queue_data(q, ngx_stream_quic_lb_target_t, queue);

        if (target->stale) {
            ngx_stream_quic_lb_target_delete(target);
        }
    }
}


/* |peers| are locked */

static void
ngx_stream_quic_lb_target_peers(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_stream_quic_lb_target_t    *target;
    ngx_stream_upstream_rr_peer_t  *peer;

    for (peer = peers->peer; peer; peer = peer->next) {

        if (ngx_stream_quic_lb_health_off(peer)) {
            continue;
        }

        target = ngx_stream_quic_lb_target_find(health, peer);

        if (target) {
            target->stale = 0;

        } else {
            ngx_stream_quic_lb_target_add(health, peer);
        }
    }
}


static ngx_stream_quic_lb_target_t *
ngx_stream_quic_lb_target_find(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peer_t *peer)
{
    ngx_queue_t                  *q;
    ngx_stream_quic_lb_target_t  *target;

    for (q = ngx_queue_head(&health->targets);
         q != ngx_queue_sentinel(&health->targets);
         q = ngx_queue_next(q))
    {
        target = ngx_queue_data(q, ngx_stream_quic_lb_target_t, queue);

        if (ngx_memn2cmp(target->name, peer->name.data, target->len,
                         peer->name.len)
            == 0)
        {
            return target;
        }
    }

    return NULL;
}


static void
ngx_stream_quic_lb_target_add(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peer_t *peer)
{
    ngx_msec_t                    delay;
    ngx_stream_quic_lb_target_t  *target;

    target = ngx_calloc(sizeof(ngx_stream_quic_lb_target_t), health->log);
    if (target == NULL) {
        return;
    }

    target->health = health;
    target->state = peer->down & NGX_STREAM_QUIC_LB_HEALTH;

    target->len = ngx_min(peer->name.len, NGX_SOCKADDR_STRLEN);
    ngx_memcpy(target->name, peer->name.data, target->len);

    target->socklen = peer->socklen;
    ngx_memcpy(&target->sockaddr, peer->sockaddr, peer->socklen);

    if (health->port) {
        ngx_inet_set_port(&target->sockaddr.sockaddr, health->port);
    }

    target->timer.handler = ngx_stream_quic_lb_target_timer;
    target->timer.data = target;
    target->timer.log = health->log;
    target->timer.cancelable = 1;

    ngx_queue_insert_tail(&health->targets, &target->queue);

    delay = ngx_min(health->interval, NGX_STREAM_QUIC_LB_TARGET_START);

    ngx_add_timer(&target->timer, (ngx_msec_t) ngx_random() % delay);
}


void
ngx_stream_quic_lb_target_delete(ngx_stream_quic_lb_target_t *target)
{
    if (target->timer.timer_set) {
        ngx_del_timer(&target->timer);
    }

    if (target->connection) {
        ngx_close_connection(target->connection);
    }

    ngx_queue_remove(&target->queue);
    ngx_free(target);
}


static void
ngx_stream_quic_lb_target_timer(ngx_event_t *ev)
{
    ngx_msec_t                    wait;
    ngx_stream_quic_lb_target_t  *target;
    ngx_stream_quic_lb_health_t  *health;

    target = ev->data;
    health = target->health;

    if (target->connection) {
        ngx_stream_quic_lb_target_judge(target,
                            target->garbage ? NGX_STREAM_QUIC_LB_HEALTH_GARBAGE
                                            : NGX_STREAM_QUIC_LB_HEALTH_SILENT,
                            0);
    }

    if (ngx_exiting || ngx_terminate || ngx_quit) {

        /* the next generation asks */

        return;
    }

    wait = health->interval;

    if (health->jitter) {
        wait += (ngx_msec_t) ngx_random() % (health->jitter + 1);
    }

    ngx_add_timer(ev, wait);

    ngx_stream_quic_lb_target_ask(target);
}


static void
ngx_stream_quic_lb_target_ask(ngx_stream_quic_lb_target_t *target)
{
    u_char             data[QUIC_LB_PROBE_LEN];
    u_char             random[QUIC_LB_PROBE_RANDOM_LEN];
    ngx_err_t          err;
    ngx_connection_t  *c;

    if (RAND_bytes(random, sizeof(random)) != 1) {
        ngx_log_error(NGX_LOG_ALERT, target->health->log, 0,
                      "RAND_bytes() failed");
        return;
    }

    quic_lb_probe_init(&target->probe, random);
    quic_lb_probe_write(&target->probe, data);

    target->garbage = 0;

    c = ngx_stream_quic_lb_target_connect(target);
    if (c == NULL) {
        return;
    }

    if (connect(c->fd, &target->sockaddr.sockaddr, target->socklen) != -1
        && send(c->fd, data, sizeof(data), 0) != -1)
    {
        return;
    }

    err = ngx_socket_errno;

    /* without a route to it nobody would get there; all else tells nothing */

    if (err == NGX_ENETUNREACH || err == NGX_EHOSTUNREACH
        || err == NGX_ENETDOWN || err == NGX_ECONNREFUSED)
    {
        ngx_stream_quic_lb_target_judge(target,
                                        NGX_STREAM_QUIC_LB_HEALTH_CLOSED, err);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, target->health->log, err,
                  "cannot ask server \"%*s\" for its health",
                  target->len, target->name);

    ngx_close_connection(c);
    target->connection = NULL;
}


static ngx_connection_t *
ngx_stream_quic_lb_target_connect(ngx_stream_quic_lb_target_t *target)
{
    ngx_log_t         *log;
    ngx_socket_t       s;
    ngx_connection_t  *c;

    log = target->health->log;

    /* clients need them more, and the lack is logged already */

    if (ngx_cycle->free_connection_n == 0) {
        return NULL;
    }

    s = ngx_socket(target->sockaddr.sockaddr.sa_family, SOCK_DGRAM, 0);
    if (s == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ERR, log, ngx_socket_errno,
                      ngx_socket_n " for \"quic_health_check\" failed");
        return NULL;
    }

    c = ngx_get_connection(s, log);
    if (c == NULL) {
        (void) ngx_close_socket(s);
        return NULL;
    }

    c->type = SOCK_DGRAM;
    c->data = target;
    c->log = log;
    c->read->log = log;
    c->write->log = log;
    c->read->handler = ngx_stream_quic_lb_target_read;

    if (ngx_nonblocking(s) == -1
        || ngx_add_event(c->read, NGX_READ_EVENT,
                         (ngx_event_flags & NGX_USE_CLEAR_EVENT)
                             ? NGX_CLEAR_EVENT : NGX_LEVEL_EVENT)
           != NGX_OK)
    {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_socket_errno,
                      "a socket for \"quic_health_check\" is of no use");
        ngx_close_connection(c);
        return NULL;
    }

    target->connection = c;

    return c;
}


static void
ngx_stream_quic_lb_target_read(ngx_event_t *rev)
{
    u_char                        data[NGX_STREAM_QUIC_LB_TARGET_READ];
    ssize_t                       n;
    ngx_err_t                     err;
    ngx_connection_t             *c;
    ngx_stream_quic_lb_target_t  *target;

    c = rev->data;
    target = c->data;

    for ( ;; ) {
        n = recv(c->fd, data, sizeof(data), 0);

        if (n == -1) {
            break;
        }

        if (quic_lb_probe_check(&target->probe, data, n) == QUIC_LB_OK) {
            ngx_stream_quic_lb_target_judge(target, 0, 0);
            return;
        }

        /* anybody may have sent it: the answer may still come */

        target->garbage = 1;
    }

    err = ngx_socket_errno;

    if (err != NGX_EAGAIN && err != NGX_EINTR) {
        ngx_stream_quic_lb_target_judge(target,
                                        NGX_STREAM_QUIC_LB_HEALTH_CLOSED, err);
    }
}


/* the end of a question: |state| is what it tells, 0 for a healthy server */

static void
ngx_stream_quic_lb_target_judge(ngx_stream_quic_lb_target_t *target,
    ngx_uint_t state, ngx_err_t err)
{
    ngx_close_connection(target->connection);
    target->connection = NULL;

    if (state == 0) {
        target->fails = 0;
        target->passes++;

        if (target->state && target->passes >= target->health->passes) {
            ngx_stream_quic_lb_target_change(target, 0, 0);
        }

        return;
    }

    target->passes = 0;
    target->fails++;

    if (target->state != state && target->fails >= target->health->fails) {
        ngx_stream_quic_lb_target_change(target, state, err);
    }
}


static void
ngx_stream_quic_lb_target_change(ngx_stream_quic_lb_target_t *target,
    ngx_uint_t state, ngx_err_t err)
{
    char                         *seen;
    ngx_str_t                     name, *host;
    ngx_uint_t                    old;
    ngx_stream_quic_lb_health_t  *health;

    health = target->health;
    host = &health->upstream->host;

    name.len = target->len;
    name.data = target->name;

    old = target->state;
    target->state = state;

    ngx_stream_quic_lb_health_set(health, &name, state);

    if (state == 0) {
        ngx_log_error(NGX_LOG_WARN, health->log, 0,
                      "server \"%V\" in upstream \"%V\" is healthy again: it "
                      "has answered %ui times", &name, host, target->passes);
        return;
    }

    if (old) {

        /* another way to fail is no news */

        return;
    }

    switch (state) {

    case NGX_STREAM_QUIC_LB_HEALTH_CLOSED:
        seen = "it cannot be reached";
        break;

    case NGX_STREAM_QUIC_LB_HEALTH_SILENT:
        seen = "it does not answer";
        break;

    default: /* NGX_STREAM_QUIC_LB_HEALTH_GARBAGE */
        seen = "it answers, but not with QUIC Version Negotiation";
        break;
    }

    ngx_log_error(NGX_LOG_ERR, health->log, err,
                  "server \"%V\" in upstream \"%V\" is not healthy: %s, %ui "
                  "times; new connections avoid it",
                  &name, host, seen, target->fails);
}
