
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Datagrams, and the connections that they are for.
 */


#include "ngx_stream_quic_relay_module.h"
#include "quic_lb_error.h"

#include <openssl/rand.h>


/*
 * datagrams of one turn: others want to be served, too; and as how many of
 * them a new connection counts, which takes the time of more than that
 */
#define NGX_STREAM_QUIC_RELAY_TURN    64
#define NGX_STREAM_QUIC_RELAY_BEGIN   8

/* RFC 9000, 14.1 and 10.3: octets */
#define NGX_STREAM_QUIC_RELAY_MIN     1200
#define NGX_STREAM_QUIC_RELAY_RESET   42
#define NGX_STREAM_QUIC_RELAY_RESET_MIN                                       \
    (NGTCP2_MIN_STATELESS_RESET_RANDLEN + NGTCP2_STATELESS_RESET_TOKENLEN)


static void ngx_stream_quic_relay_input_datagram(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_stream_quic_relay_input_t *in, ngx_uint_t handed);
static void ngx_stream_quic_relay_input_new(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_stream_quic_relay_input_t *in);
static void ngx_stream_quic_relay_input_refuse(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngtcp2_path *path, ngtcp2_pkt_hd *hd, uint64_t code);
static void ngx_stream_quic_relay_input_answer(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngtcp2_path *path, size_t len);
static void ngx_stream_quic_relay_input_negotiate(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngtcp2_path *path, ngtcp2_version_cid *vc);
static void ngx_stream_quic_relay_input_reset(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngtcp2_path *path, ngtcp2_version_cid *vc, size_t len);
static ngx_uint_t ngx_stream_quic_relay_input_train(
    ngx_stream_quic_relay_conn_t *conn, ngx_stream_quic_relay_message_t *m);
static ngx_stream_quic_relay_cid_t *ngx_stream_quic_relay_input_find(
    ngx_stream_quic_relay_worker_t *worker, const uint8_t *data, size_t len);


void
ngx_stream_quic_relay_input_client(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc)
{
    size_t                           pos;
    ngx_int_t                        rc;
    ngx_stream_quic_relay_input_t    in;
    ngx_stream_quic_relay_message_t  m;

    m.data = worker->buffer;

    in.path.local.addr = &m.local.sockaddr;
    in.path.local.addrlen = lc->listening->socklen;
    in.path.remote.addr = &m.remote.sockaddr;
    in.path.user_data = NULL;

    worker->turn = 0;

    while (worker->turn < NGX_STREAM_QUIC_RELAY_TURN) {

        rc = ngx_stream_quic_relay_udp_recv(lc, &m);

        if (rc == NGX_AGAIN) {
            break;
        }

        if (rc != NGX_OK) {

            /* such as what ICMP told about another one (RFC 9000, 14.2.1) */

            worker->turn++;
            continue;
        }

        in.path.remote.addrlen = m.socklen;
        in.pi.ecn = m.ecn;

        for (pos = 0; pos < m.len; pos += in.len) {
            in.data = m.data + pos;
            in.len = ngx_min(m.segment, m.len - pos);
            worker->turn++;

            ngx_stream_quic_relay_input_datagram(worker, lc, &in, 0);
        }
    }

    ngx_stream_quic_relay_handover_flush(worker);

    /* the event is level-triggered: what is left comes after the others */
}


void
ngx_stream_quic_relay_input_handed(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_input_t *in)
{
    ngx_connection_t  *lc;

    lc = ngx_stream_quic_relay_listen_find(worker, in->path.local.addr,
                                           in->path.local.addrlen);

    ngx_stream_quic_relay_input_datagram(worker, lc, in, 1);
}


/*
 * |handed|: another worker has handed it over, or was to get it and is gone.
 * |lc| is NULL if it came to an address that this worker does not listen on.
 */

static void
ngx_stream_quic_relay_input_datagram(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngx_stream_quic_relay_input_t *in,
    ngx_uint_t handed)
{
    int                           rc;
    ngx_uint_t                    slot;
    ngtcp2_version_cid            vc;
    ngx_stream_quic_relay_cid_t  *cid;

    rc = ngtcp2_pkt_decode_version_cid(&vc, in->data, in->len,
                                       NGX_STREAM_QUIC_RELAY_CID);

    if (rc == NGTCP2_ERR_VERSION_NEGOTIATION) {
        if (lc && in->len >= NGX_STREAM_QUIC_RELAY_MIN) {
            ngx_stream_quic_relay_input_negotiate(worker, lc, &in->path, &vc);
        }

        return;
    }

    if (rc != 0) {
        return;
    }

    cid = ngx_stream_quic_relay_input_find(worker, vc.dcid, vc.dcidlen);

    if (cid) {
        ngx_stream_quic_relay_conn_read(cid->conn, in);
        return;
    }

    slot = ngx_stream_quic_relay_ids_slot(worker, vc.dcid, vc.dcidlen);

    if (!handed
        && slot != NGX_STREAM_QUIC_RELAY_NO_SLOT
        && slot != worker->slot)
    {
        ngx_stream_quic_relay_handover_add(worker, slot, in);
        return;
    }

    if (lc == NULL) {
        return;
    }

    if (vc.version == 0) {

        /* of none that has a slot, it would be no client of ours */

        if (slot != NGX_STREAM_QUIC_RELAY_NO_SLOT) {
            ngx_stream_quic_relay_input_reset(worker, lc, &in->path, &vc,
                                              in->len);
        }

        return;
    }

    ngx_stream_quic_relay_input_new(worker, lc, in);
}


static void
ngx_stream_quic_relay_input_new(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngx_stream_quic_relay_input_t *in)
{
    size_t                             n;
    ngx_int_t                          rc;
    ngtcp2_path                       *path;
    ngtcp2_pkt_hd                      hd;
    ngx_sockaddr_t                     remote;
    ngx_stream_quic_relay_t           *relay;
    ngx_stream_quic_relay_conn_t      *conn;
    ngx_stream_quic_relay_token_t      token;
    ngx_stream_quic_relay_srv_conf_t  *conf;

    /* RFC 9000, 14.1: not in a smaller datagram */

    if (in->len < NGX_STREAM_QUIC_RELAY_MIN
        || ngtcp2_accept(&hd, in->data, in->len) != 0)
    {
        return;
    }

    path = &in->path;

    conf = ngx_stream_quic_relay_listen_conf(lc->listening, path->local.addr);

    rc = ngx_stream_quic_relay_token_check(worker, conf, path, &hd, &token);

    if (rc == NGX_ERROR) {
        ngx_stream_quic_relay_input_refuse(worker, lc, path, &hd,
                                           NGTCP2_INVALID_TOKEN);
        return;
    }

    if (rc == NGX_DECLINED
        && ngx_stream_quic_relay_retry_wanted(worker, &conf->retry,
                                              lc->listening))
    {
        n = ngx_stream_quic_relay_retry_write(worker, conf, path, &hd);
        ngx_stream_quic_relay_input_answer(worker, lc, path, n);
        return;
    }

    ngx_memcpy(&remote, path->remote.addr, path->remote.addrlen);

    relay = ngx_stream_quic_relay_session_create(worker, lc, &remote,
                                                 path->remote.addrlen,
                                                 rc == NGX_OK);
    if (relay == NULL) {
        ngx_stream_quic_relay_input_refuse(worker, lc, path, &hd,
                                           NGTCP2_CONNECTION_REFUSED);
        return;
    }

    worker->turn += NGX_STREAM_QUIC_RELAY_BEGIN;

    conn = &relay->client;
    conn->connection = lc;
    conn->socklen = path->remote.addrlen;
    conn->remote = remote;
    ngx_memcpy(&conn->local, path->local.addr, path->local.addrlen);

    if (ngx_stream_quic_relay_conn_accept(conn, &hd, &token) != NGX_OK) {
        conn->closed = 1;
        ngx_stream_quic_relay_session_finish(relay,
                                             NGX_STREAM_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_stream_quic_relay_conn_read(conn, in);

    /*
     * Where the first packet lacks the beginning of the ClientHello, ngtcp2
     * keeps nothing and demands that the address be validated.
     */

    if (relay->retry) {
        n = ngx_stream_quic_relay_retry_write(worker, conf, path, &hd);
        ngx_stream_quic_relay_input_answer(worker, lc, path, n);
    }
}


/* RFC 9000, 5.2.2: it need not wait for a timeout; nothing is kept */

static void
ngx_stream_quic_relay_input_refuse(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngtcp2_path *path, ngtcp2_pkt_hd *hd, uint64_t code)
{
    ngtcp2_ssize  n;

    n = ngtcp2_crypto_write_connection_close(worker->out,
                                             NGX_STREAM_QUIC_RELAY_BUFFER,
                                             hd->version, &hd->scid, &hd->dcid,
                                             code, NULL, 0);
    if (n > 0) {
        ngx_stream_quic_relay_input_answer(worker, lc, path, (size_t) n);
    }
}


/* what is in worker->out, without a connection */

static void
ngx_stream_quic_relay_input_answer(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngtcp2_path *path, size_t len)
{
    if (len) {
        ngx_stream_quic_relay_udp_answer(lc, path, worker->out, len);
    }
}


static void
ngx_stream_quic_relay_input_negotiate(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngtcp2_path *path, ngtcp2_version_cid *vc)
{
    ngtcp2_ssize    n;
    const uint32_t  versions[] = { NGTCP2_PROTO_VER_V1, NGTCP2_PROTO_VER_V2 };

    n = ngtcp2_pkt_write_version_negotiation(worker->out,
                                             NGX_STREAM_QUIC_RELAY_BUFFER,
                                             (uint8_t) ngx_random(), vc->scid,
                                             vc->scidlen, vc->dcid,
                                             vc->dcidlen, versions, 2);
    if (n > 0) {
        ngx_stream_quic_relay_input_answer(worker, lc, path, (size_t) n);
    }
}


/* RFC 9000, 10.3: shorter than what it answers, so that no loop begins */

static void
ngx_stream_quic_relay_input_reset(ngx_stream_quic_relay_worker_t *worker,
    ngx_connection_t *lc, ngtcp2_path *path, ngtcp2_version_cid *vc,
    size_t len)
{
    ngtcp2_cid                    cid;
    ngtcp2_ssize                  n;
    ngtcp2_stateless_reset_token  token;
    uint8_t                       rand[NGX_STREAM_QUIC_RELAY_RESET];

    if (len <= NGX_STREAM_QUIC_RELAY_RESET_MIN) {
        return;
    }

    len = ngx_min(len - 1, NGX_STREAM_QUIC_RELAY_RESET);

    ngtcp2_cid_init(&cid, vc->dcid, vc->dcidlen);

    if (RAND_bytes(rand, sizeof(rand)) != 1
        || ngx_stream_quic_relay_ids_token(worker, &cid, token.data) != NGX_OK)
    {
        return;
    }

    n = ngtcp2_pkt_write_stateless_reset2(worker->out, len, &token, rand,
                                          sizeof(rand));
    if (n > 0) {
        ngx_stream_quic_relay_count(worker,
                                    NGX_STREAM_QUIC_RELAY_STATELESS_RESETS, 1);

        ngx_stream_quic_relay_input_answer(worker, lc, path, (size_t) n);
    }
}


void
ngx_stream_quic_relay_input_upstream(ngx_event_t *rev)
{
    ngx_int_t                        rc;
    ngx_err_t                        err;
    ngx_uint_t                       turn;
    ngx_connection_t                *c;
    ngx_stream_quic_relay_conn_t    *conn;
    ngx_stream_quic_relay_message_t  m;

    c = rev->data;
    conn = c->data;

    m.data = conn->relay->worker->buffer;

    turn = 0;

    while (turn < NGX_STREAM_QUIC_RELAY_TURN) {

        rc = ngx_stream_quic_relay_udp_recv(c, &m);

        if (rc == NGX_AGAIN) {
            return;
        }

        if (rc == NGX_OK) {
            turn += ngx_stream_quic_relay_input_train(conn, &m);

            if (conn->closed || conn->connection != c) {
                return;
            }

            continue;
        }

        err = ngx_socket_errno;

        /* anybody can forge ICMP: only a hint before there are keys */

        if (rc == NGX_ERROR
            && err == NGX_ECONNREFUSED
            && !conn->relay->answered)
        {
            ngx_log_error(NGX_LOG_ERR, conn->log, err,
                          "quic relay: nobody listens at the upstream");
            ngx_stream_quic_relay_upstream_failed(conn->relay);
            return;
        }

        turn++;
    }
}


/* returns the number of datagrams */

static ngx_uint_t
ngx_stream_quic_relay_input_train(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_message_t *m)
{
    size_t                          pos;
    ngx_uint_t                      n;
    ngx_connection_t               *c;
    ngx_stream_quic_relay_input_t   in;

    c = conn->connection;
    n = 0;

    in.path.local.addr = &conn->local.sockaddr;
    in.path.local.addrlen = conn->socklen;
    in.path.remote.addr = &conn->remote.sockaddr;
    in.path.remote.addrlen = conn->socklen;
    in.path.user_data = NULL;
    in.pi.ecn = m->ecn;

    for (pos = 0; pos < m->len; pos += in.len) {
        in.data = m->data + pos;
        in.len = ngx_min(m->segment, m->len - pos);
        n++;

        ngx_stream_quic_relay_conn_read(conn, &in);

        /* it may be another upstream's by now */

        if (conn->closed || conn->connection != c) {
            break;
        }
    }

    return n;
}


static ngx_stream_quic_relay_cid_t *
ngx_stream_quic_relay_input_find(ngx_stream_quic_relay_worker_t *worker,
    const uint8_t *data, size_t len)
{
    uint64_t                      hash;
    quic_lb_table_node_t         *node;
    ngx_stream_quic_relay_cid_t  *cid;

    hash = quic_lb_hash(&worker->key, data, len);

    for (node = quic_lb_table_first(&worker->cids, hash);
         node;
         node = quic_lb_table_next(node))
    {
        cid = (ngx_stream_quic_relay_cid_t *) node;

        if (cid->cid.datalen == len
            && ngx_memcmp(cid->cid.data, data, len) == 0)
        {
            return cid;
        }
    }

    return NULL;
}


ngx_int_t
ngx_stream_quic_relay_input_add_cid(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_cid *id)
{
    ngx_stream_quic_relay_cid_t     *cid;
    ngx_stream_quic_relay_worker_t  *worker;

    worker = conn->relay->worker;

    if (conn->ncids >= NGX_STREAM_QUIC_RELAY_CIDS
        || ngx_stream_quic_relay_input_find(worker, id->data, id->datalen))
    {
        return NGX_ERROR;
    }

    cid = ngx_calloc(sizeof(ngx_stream_quic_relay_cid_t), conn->log);
    if (cid == NULL) {
        return NGX_ERROR;
    }

    cid->conn = conn;
    cid->cid = *id;

    if (quic_lb_table_insert(&worker->cids, &cid->node,
                             quic_lb_hash(&worker->key, id->data, id->datalen))
        != QUIC_LB_OK)
    {
        ngx_free(cid);
        return NGX_ERROR;
    }

    ngx_queue_insert_tail(&conn->cids, &cid->queue);
    conn->ncids++;

    return NGX_OK;
}


/* NULL: all of them */

void
ngx_stream_quic_relay_input_remove_cid(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_cid *id)
{
    ngx_queue_t                  *q, *next;
    ngx_stream_quic_relay_cid_t  *cid;

    for (q = ngx_queue_head(&conn->cids);
         q != ngx_queue_sentinel(&conn->cids);
         q = next)
    {
        next = ngx_queue_next(q);
        cid = ngx_queue_data(q, ngx_stream_quic_relay_cid_t, queue);

        if (id && !ngtcp2_cid_eq(&cid->cid, id)) {
            continue;
        }

        ngx_queue_remove(q);
        quic_lb_table_remove(&conn->relay->worker->cids, &cid->node);
        ngx_free(cid);
        conn->ncids--;
    }
}
