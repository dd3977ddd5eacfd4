
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Backends: what a worker knows of an address that it has legs to, and what
 * counts as its failure.
 *
 * A leg with an ICMP error gives its peer back as failed: only the server, or
 * the network before it, can send one to a connected socket.  If the leg has
 * the client's address it may be about that, and proves no more than silence.
 * Silence counts only if the backend answered nobody while new connections of
 * two clients waited, else a few bogus Initials could take it out; and not at
 * all if "quic_health_check" asks.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* octets of a server and the name of its upstream in a line */

#define NGX_STREAM_QUIC_PT_BACKEND_TEXT  512


static void ngx_stream_quic_pt_backend_unnamed(ngx_stream_quic_pt_leg_t *leg);
static void ngx_stream_quic_pt_backend_complain(ngx_stream_quic_pt_leg_t *leg,
    ngx_err_t err);
static ngx_uint_t ngx_stream_quic_pt_backend_unreachable(ngx_err_t err);
static ngx_uint_t ngx_stream_quic_pt_backend_told(
    ngx_stream_quic_pt_worker_t *worker);
static ngx_uint_t ngx_stream_quic_pt_backend_unanswered(
    ngx_stream_quic_pt_leg_t *leg);
static u_char *ngx_stream_quic_pt_backend_text(ngx_stream_quic_pt_leg_t *leg,
    u_char *buf, size_t len);


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
    backend->id = ngx_stream_quic_pt_evidence_id(pc->sockaddr);
    backend->answered = ngx_current_msec - NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN;

    if (quic_lb_table_insert(&worker->backends, &backend->node, hash)
        != QUIC_LB_OK)
    {
        ngx_free(backend);
        return NGX_ERROR;
    }

found:

    backend->refs++;
    leg->backend = backend;

    (void) ngx_stream_quic_pt_evidence_get(worker, backend->id);

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
    u_char                         text[NGX_STREAM_QUIC_PT_BACKEND_TEXT];
    u_char                        *last;
    ngx_stream_quic_pt_worker_t   *worker;
    ngx_stream_quic_pt_backend_t  *backend;

    worker = leg->flow->listener->worker;
    backend = leg->backend;

    if (ngx_current_msec - backend->answered
        < NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN / 2)
    {
        return;
    }

    backend->answered = ngx_current_msec;

    if (ngx_stream_quic_pt_evidence_answered(worker, backend->id)) {

        last = ngx_stream_quic_pt_backend_text(leg, text, sizeof(text));

        ngx_log_error(NGX_LOG_NOTICE, worker->log, 0,
                      "%*s answers again", (size_t) (last - text), text);
    }
}


/*
 * Only a Handshake packet shows the ID that a client will use: the Initial that
 * closes a connection early may have the client's own for its SCID.
 */

void
ngx_stream_quic_pt_backend_judge(ngx_stream_quic_pt_leg_t *leg, u_char *data,
    size_t len)
{
    quic_lb_packet_t              pkt;
    ngx_stream_quic_pt_flow_t    *flow;
    ngx_stream_quic_pt_router_t  *router;

    if (leg->judged) {
        return;
    }

    do {
        if (quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK) {
            return;
        }

        len -= (size_t) (pkt.payload + pkt.payload_len - data);
        data = (u_char *) pkt.payload + pkt.payload_len;

    } while (pkt.type != QUIC_LB_PACKET_HANDSHAKE);

    leg->judged = 1;

    flow = leg->flow;
    router = ngx_stream_quic_pt_route_router(flow->listener,
                                             &flow->local.sockaddr);

    if (router->cids == NULL
        && ngx_stream_quic_lb_maps(leg->upstream.upstream)
        && !ngx_stream_quic_pt_route_issued(router, leg, &pkt))
    {
        ngx_stream_quic_pt_backend_unnamed(leg);
    }
}


static void
ngx_stream_quic_pt_backend_unnamed(ngx_stream_quic_pt_leg_t *leg)
{
    u_char                        text[NGX_STREAM_QUIC_PT_BACKEND_TEXT];
    u_char                       *last;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = leg->flow->listener->worker;

    if (!ngx_stream_quic_pt_evidence_unnamed(worker, leg->backend->id)) {
        return;
    }

    last = ngx_stream_quic_pt_backend_text(leg, text, sizeof(text));

    ngx_log_error(NGX_LOG_WARN, worker->log, 0,
                  "%*s issues connection IDs that do not name it: its "
                  "connections end when a client's address changes and at a "
                  "reload; give it the \"quic_lb\" parameters of the upstream, "
                  "or use \"quic_passthrough_cid_zone\"",
                  (size_t) (last - text), text);
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
    u_char                         text[NGX_STREAM_QUIC_PT_BACKEND_TEXT];
    u_char                        *last;
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

    last = ngx_stream_quic_pt_backend_text(leg, text, sizeof(text));

    ngx_log_error(NGX_LOG_ERR, leg->socket.connection->log, err,
                  "%*s does not take datagrams", (size_t) (last - text), text);
}


/* the peer and its name may be gone */

static u_char *
ngx_stream_quic_pt_backend_text(ngx_stream_quic_pt_leg_t *leg, u_char *buf,
    size_t len)
{
    size_t                           n;
    u_char                          *last;
    u_char                           text[NGX_SOCKADDR_STRLEN];
    socklen_t                        socklen;
    struct sockaddr                 *sockaddr;
    ngx_stream_upstream_srv_conf_t  *uscf;

    sockaddr = leg->upstream.peer.sockaddr;
    socklen = leg->upstream.peer.socklen;

    if (leg->backend) {
        sockaddr = &leg->backend->sockaddr.sockaddr;
        socklen = leg->backend->socklen;
    }

    n = sockaddr ? ngx_sock_ntop(sockaddr, socklen, text, sizeof(text), 1) : 0;

    last = buf + len;
    buf = ngx_slprintf(buf, last, "server \"%*s\"", n, text);

    /* that of a learned backend is not known */

    uscf = leg->upstream.upstream;

    if (uscf) {
        buf = ngx_slprintf(buf, last, " in upstream \"%V\"", &uscf->host);
    }

    return buf;
}


/* the context of what balancers, and nginx, log about a peer */

u_char *
ngx_stream_quic_pt_backend_log_error(ngx_log_t *log, u_char *buf, size_t len)
{
    u_char                    *p;
    ngx_log_t                 *session;
    ngx_stream_quic_pt_leg_t  *leg;

    leg = log->data;
    session = leg->flow->session->connection->log;

    if (session->handler) {
        p = session->handler(session, buf, len);
        len -= p - buf;
        buf = p;
    }

    p = ngx_snprintf(buf, len, ", ");

    return ngx_stream_quic_pt_backend_text(leg, p, len - (p - buf));
}


/*
 * Gives the peer back as failed.  A server that is known to fail already may
 * still be tried for what names it; this tells nothing new.  Nor does what the
 * address of one client alone has come across.
 */

void
ngx_stream_quic_pt_backend_peer_failed(ngx_stream_quic_pt_leg_t *leg)
{
    ngx_uint_t  state;

    state = NGX_PEER_FAILED;

    if ((leg->server && !ngx_stream_quic_lb_server_available(leg->server))
        || (leg->flow->transparent
            && !ngx_stream_quic_pt_backend_unanswered(leg)))
    {
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

    if ((state & NGX_PEER_FAILED) && leg->backend) {
        ngx_stream_quic_pt_evidence_failed(leg->flow->listener->worker,
                                           leg->backend->id);
    }

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
    return leg->opened
           && ngx_current_msec - leg->started
              >= ngx_stream_quic_pt_unanswered(leg->flow)
           && ngx_stream_quic_pt_backend_unanswered(leg);
}


static ngx_uint_t
ngx_stream_quic_pt_backend_unanswered(ngx_stream_quic_pt_leg_t *leg)
{
    uint64_t  client;

    if (leg->backend == NULL
        || leg->answered
        || ngx_stream_quic_lb_asked(leg->upstream.upstream))
    {
        return 0;
    }

    client = ngx_stream_quic_lb_client_hash(&leg->flow->client.sockaddr);

    return ngx_stream_quic_pt_evidence_silent(leg->flow->listener->worker,
                                              leg->backend->id, leg->started,
                                              client);
}
