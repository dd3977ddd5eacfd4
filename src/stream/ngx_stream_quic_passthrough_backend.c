
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Backends: what a worker knows of an address that it has legs to, and what
 * counts as its failure.
 *
 * A leg that ICMP has told of gives its peer back as failed.  Silence counts
 * only if the backend answered nobody while new connections of two clients
 * waited, else anybody's bogus Initials could take it out.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static void ngx_stream_quic_pt_backend_complain(ngx_stream_quic_pt_leg_t *leg,
    ngx_err_t err);
static ngx_uint_t ngx_stream_quic_pt_backend_unreachable(ngx_err_t err);
static ngx_uint_t ngx_stream_quic_pt_backend_told(
    ngx_stream_quic_pt_worker_t *worker);


ngx_int_t
ngx_stream_quic_pt_backend_attach(ngx_stream_quic_pt_leg_t *leg)
{
    u_char                        *p, key[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    uint64_t                       hash;
    quic_lb_table_node_t          *node;
    ngx_peer_connection_t         *pc;
    ngx_stream_quic_pt_worker_t   *worker;
    ngx_stream_quic_pt_backend_t  *backend;

    worker = leg->flow->listener->worker;
    pc = &leg->upstream.peer;

    p = ngx_stream_quic_lb_address_key(key, pc->sockaddr);
    hash = quic_lb_hash(&worker->key, key, p - key);

    for (node = quic_lb_table_first(&worker->backends, hash);
         node;
         node = quic_lb_table_next(node))
    {
        backend = (ngx_stream_quic_pt_backend_t *) node;

        if (ngx_stream_quic_lb_same_address(&backend->sockaddr.sockaddr,
                                            backend->socklen, pc->sockaddr,
                                            pc->socklen))
        {
            goto found;
        }
    }

    backend = ngx_calloc(sizeof(ngx_stream_quic_pt_backend_t),
                         worker->log);
    if (backend == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(&backend->sockaddr, pc->sockaddr, pc->socklen);
    backend->socklen = pc->socklen;
    backend->answered = leg->started - 1;

    if (quic_lb_table_insert(&worker->backends, &backend->node, hash)
        != QUIC_LB_OK)
    {
        ngx_free(backend);
        return NGX_ERROR;
    }

found:

    backend->refs++;
    leg->backend = backend;

    return NGX_OK;
}


void
ngx_stream_quic_pt_backend_detach(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_stream_quic_pt_worker_t   *worker;
    ngx_stream_quic_pt_backend_t  *backend;

    worker = leg->flow->listener->worker;
    backend = leg->backend;

    if (backend && --backend->refs == 0) {
        quic_lb_table_remove(&worker->backends, &backend->node);
        ngx_free(backend);
    }
}


void
ngx_stream_quic_pt_backend_answered(ngx_stream_quic_pt_leg_t *leg)
{
    leg->backend->answered = ngx_current_msec;
    leg->backend->silent = 0;
}


void
ngx_stream_quic_pt_backend_failed(ngx_stream_quic_pt_leg_t *leg, ngx_err_t err)
{
    if (leg->failed || !ngx_stream_quic_pt_backend_unreachable(err)) {
        return;
    }

    leg->failed = 1;

    ngx_stream_quic_pt_backend_complain(leg, err);
    ngx_stream_quic_pt_backend_peer_failed(leg);
}


/* once a second for each backend, and not often for all of them together */

static void
ngx_stream_quic_pt_backend_complain(ngx_stream_quic_pt_leg_t *leg,
    ngx_err_t err)
{
    size_t                         len;
    u_char                         text[NGX_SOCKADDR_STRLEN];
    ngx_stream_quic_pt_worker_t   *worker;
    ngx_stream_quic_pt_backend_t  *backend;

    worker = leg->flow->listener->worker;
    backend = leg->backend;

    if (worker->complained != ngx_time()) {
        worker->complained = ngx_time();
        worker->ncomplaints = 0;
    }

    if (backend->complained == ngx_time()
        || worker->ncomplaints == NGX_STREAM_QUIC_PT_COMPLAINTS)
    {
        return;
    }

    backend->complained = ngx_time();
    worker->ncomplaints++;

    /* the peer and its name may be gone */

    len = ngx_sock_ntop(&backend->sockaddr.sockaddr, backend->socklen, text,
                        NGX_SOCKADDR_STRLEN, 1);

    ngx_log_error(NGX_LOG_ERR, leg->socket.connection->log, err,
                  "upstream does not take datagrams, upstream: \"%*s\"",
                  len, text);
}


/*
 * Gives the peer back as failed.  A server that is known to fail already may
 * still be tried for what names it; this tells nothing new.
 */

void
ngx_stream_quic_pt_backend_peer_failed(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_uint_t  state;

    state = NGX_PEER_FAILED;

    if (leg->server && !ngx_stream_quic_lb_server_available(leg->server)) {
        state = 0;
    }

    ngx_stream_quic_pt_backend_free_peer(leg, state);
}


/* what ICMP becomes; all else is this machine's own affair */

static ngx_uint_t
ngx_stream_quic_pt_backend_unreachable(ngx_err_t err)
{
    return err == NGX_ECONNREFUSED
           || err == NGX_EHOSTUNREACH
           || err == NGX_ENETUNREACH
           || err == NGX_EHOSTDOWN
           || err == NGX_ENETDOWN;
}


void
ngx_stream_quic_pt_backend_free_peer(ngx_stream_quic_pt_leg_t *leg,
    ngx_uint_t state)
{
    ngx_log_t              *log;
    ngx_peer_connection_t  *pc;

    pc = &leg->upstream.peer;

    if (pc->free == NULL || pc->sockaddr == NULL) {
        return;
    }

    log = pc->log;

    if ((state & NGX_PEER_FAILED)
        && ngx_stream_quic_pt_backend_told(leg->flow->listener->worker))
    {
        pc->log = &leg->flow->listener->worker->quiet;
    }

    pc->free(pc, pc->data, state);

    pc->log = log;
    pc->sockaddr = NULL;
}


/*
 * A balancer logs each failure of a peer that it has disabled.  If all of them
 * are, each is tried all the same, so anybody could bring about many lines.
 */

static ngx_uint_t
ngx_stream_quic_pt_backend_told(ngx_stream_quic_pt_worker_t *worker)
{
    if (worker->failed != ngx_time()) {
        worker->failed = ngx_time();
        worker->nfailures = 0;
    }

    if (worker->nfailures == NGX_STREAM_QUIC_PT_COMPLAINTS) {
        return 1;
    }

    worker->nfailures++;

    return 0;
}


/*
 * Whether new connections of two clients have waited in vain while nobody else
 * got an answer.  Backends do not answer bogus Initials either, so one client
 * alone proves nothing.
 */

ngx_uint_t
ngx_stream_quic_pt_backend_silent(ngx_stream_quic_pt_leg_t *leg)
{
    uint64_t                       client;
    ngx_stream_quic_pt_backend_t  *backend;

    backend = leg->backend;

    if (!leg->opened
        || leg->answered
        || (ngx_msec_int_t) (backend->answered - leg->started) >= 0
        || ngx_current_msec - leg->started
           < ngx_stream_quic_pt_unanswered(leg->flow))
    {
        return 0;
    }

    client = ngx_stream_quic_lb_client_hash(&leg->flow->client.sockaddr);

    if (backend->silent && backend->silent != client) {
        return 1;
    }

    backend->silent = client;

    return 0;
}
