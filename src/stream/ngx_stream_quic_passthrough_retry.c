
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Retry: a client shows that it gets what is sent to its address before there
 * is a flow for it.  Nothing is kept meanwhile: all that is needed comes back
 * in the token (quic_lb_retry.h).
 *
 * An Initial that would make a flow
 *
 *   has a token of ours that is good                  makes it
 *   has one that is expired, or another client's      INVALID_TOKEN, once
 *   has any other token, or none, and Retry is on     Retry
 *   the same, and Retry is not on                     makes it
 *
 * What a token of a server proves nobody but the server can tell; while Retry
 * is on it counts for nothing (RFC 9000, 8.1.3), else it passes untouched.
 *
 * The token of ours is replaced on the way to the server by one that is bound
 * to the address which the server sees, the leg's.  The SCID of a Retry has a
 * codepoint that no QUIC-LB configuration uses: it is routed as the DCID of any
 * new connection, and alike in all Initials and by all workers and balancers.
 *
 * Flows that began with a packet of an established connection have no token,
 * and need one as soon as they begin a connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>


/* who has sent a datagram, and what Initial is in it */

typedef struct {
    ngx_stream_quic_pt_listener_t   *listener;
    ngx_stream_quic_pt_retry_t      *retry;
    ngx_sockaddr_t                  *client;
    socklen_t                        socklen;
    ngx_sockaddr_t                  *local;
    size_t                           len;         /* of the datagram */

    quic_lb_packet_t                 pkt;
    const uint8_t                   *packet;      /* NULL: no Initial */
    ngx_uint_t                       class;       /* of a flow it makes */
    ngx_uint_t                       untold;      /* unsigned  untold:1; */
} ngx_stream_quic_pt_retry_initial_t;


static ngx_int_t ngx_stream_quic_pt_retry_check(
    ngx_stream_quic_pt_retry_initial_t *in, u_char *data, size_t len);
static void ngx_stream_quic_pt_retry_find(
    ngx_stream_quic_pt_retry_initial_t *in, u_char *data, size_t len);
static int ngx_stream_quic_pt_retry_open(ngx_stream_quic_pt_retry_t *retry,
    quic_lb_packet_t *pkt, struct sockaddr *client,
    quic_lb_retry_token_t *token);
static ngx_int_t ngx_stream_quic_pt_retry_untold(
    ngx_stream_quic_pt_retry_initial_t *in);
static void ngx_stream_quic_pt_retry_answer(
    ngx_stream_quic_pt_retry_initial_t *in);
static ngx_uint_t ngx_stream_quic_pt_retry_answered(
    ngx_stream_quic_pt_retry_initial_t *in);
static ngx_int_t ngx_stream_quic_pt_retry_write(
    ngx_stream_quic_pt_retry_initial_t *in, u_char *out);
static void ngx_stream_quic_pt_retry_refuse(
    ngx_stream_quic_pt_retry_initial_t *in);
static ngx_uint_t ngx_stream_quic_pt_retry_send(
    ngx_stream_quic_pt_retry_initial_t *in, u_char *data, size_t len);
static ngx_int_t ngx_stream_quic_pt_retry_server_address(
    ngx_stream_quic_pt_leg_t *leg, ngx_sockaddr_t *sa, socklen_t *socklen);


ngx_int_t
ngx_stream_quic_pt_retry_first(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_retry_t *retry, ngx_stream_quic_pt_message_t *m,
    u_char *data, size_t len, ngx_uint_t *class)
{
    ngx_int_t                           rc;
    ngx_stream_quic_pt_retry_initial_t  in;

    /* the flow will not be made, another worker may answer the next one */

    if (listener->exiting) {
        return NGX_OK;
    }

    in.listener = listener;
    in.retry = retry;
    in.client = &m->sockaddr;
    in.socklen = m->socklen;
    in.local = &m->local;
    in.class = *class;

    rc = ngx_stream_quic_pt_retry_check(&in, data, len);

    *class = in.class;

    return rc;
}


ngx_int_t
ngx_stream_quic_pt_retry_admit(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len)
{
    ngx_stream_quic_pt_retry_initial_t  in;

    in.listener = flow->listener;
    in.retry = flow->retry;
    in.client = &flow->client;
    in.socklen = flow->socklen;
    in.local = &flow->local;
    in.class = flow->class;

    if (ngx_stream_quic_pt_retry_check(&in, data, len) != NGX_OK) {
        return NGX_DECLINED;
    }

    if (in.class == NGX_STREAM_QUIC_PT_CONFIRMED) {
        ngx_stream_quic_pt_flow_confirm(flow);
    }

    if (in.packet && !in.untold) {
        flow->unvalidated = 0;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_retry_check(ngx_stream_quic_pt_retry_initial_t *in,
    u_char *data, size_t len)
{
    int                           rc;
    quic_lb_retry_token_t         token;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = in->listener->worker;
    in->untold = 0;

    ngx_stream_quic_pt_retry_find(in, data, len);

    if (in->packet == NULL) {
        return ngx_stream_quic_pt_retry_untold(in);
    }

    rc = ngx_stream_quic_pt_retry_open(in->retry, &in->pkt,
                                       &in->client->sockaddr, &token);

    if (rc == QUIC_LB_OK) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RETRY_ACCEPTED, 1);
        in->retry->accepted++;
        in->class = NGX_STREAM_QUIC_PT_CONFIRMED;
        return NGX_OK;
    }

    if (rc == QUIC_LB_ERR_RANGE) {
        ngx_stream_quic_pt_retry_refuse(in);
        return NGX_DECLINED;
    }

    if (in->pkt.version == QUIC_LB_VERSION_2 && !in->retry->v2) {
        return ngx_stream_quic_pt_retry_untold(in);
    }

    if (!ngx_stream_quic_pt_retry_wanted(in->retry, worker)) {
        return NGX_OK;
    }

    ngx_stream_quic_pt_retry_answer(in);

    return NGX_DECLINED;
}


static void
ngx_stream_quic_pt_retry_find(ngx_stream_quic_pt_retry_initial_t *in,
    u_char *data, size_t len)
{
    quic_lb_initial_walk_t  walk;

    in->len = len;
    in->packet = NULL;

    quic_lb_initial_walk(&walk, data, len);

    if (quic_lb_initial_next(&walk, &in->pkt, &in->packet) != QUIC_LB_OK) {

        /* it has been parsed before, and is there */

        (void) quic_lb_packet_parse(&in->pkt, data, len);
    }
}


/* the keys that a token may have been made with: usually it is the first */

static int
ngx_stream_quic_pt_retry_open(ngx_stream_quic_pt_retry_t *retry,
    quic_lb_packet_t *pkt, struct sockaddr *client,
    quic_lb_retry_token_t *token)
{
    int                               rc;
    u_char                            text[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    ngx_uint_t                        i;
    quic_lb_retry_address_t           address;
    ngx_stream_quic_pt_retry_key_t  **key;

    if (pkt->token_len != QUIC_LB_RETRY_TOKEN_LEN) {
        return QUIC_LB_ERR_INVALID;
    }

    /*
     * the same on IPv4 and on dual-stack sockets, and on other balancers, but
     * for link-local addresses: without the zone it is no address to prove
     */

    address.data = text;
    address.len = ngx_stream_quic_lb_address_key(text, client) - text;

    rc = QUIC_LB_ERR_INVALID;
    key = retry->keys->elts;

    for (i = 0; i < retry->keys->nelts; i++) {
        rc = quic_lb_retry_open(&retry->ctx, &key[i]->keys, pkt->token,
                                pkt->token_len, &address,
                                (uint32_t) ngx_time(), token);

        if (rc == QUIC_LB_OK || rc == QUIC_LB_ERR_RANGE) {
            break;
        }
    }

    return rc;
}


/*
 * No Initial, no Retry.  0-RTT packets come with their Initial, and after a
 * Retry again (RFC 9000, 17.2.3).  Versions that get none are for a server to
 * negotiate, which a client would not listen to after a Retry (RFC 9000, 6.2);
 * their flows are few, and the first to make room.
 */

static ngx_int_t
ngx_stream_quic_pt_retry_untold(ngx_stream_quic_pt_retry_initial_t *in)
{
    ngx_stream_quic_pt_worker_t  *worker;

    worker = in->listener->worker;
    in->untold = 1;

    if (in->pkt.type == QUIC_LB_PACKET_UNKNOWN
        || in->pkt.type == QUIC_LB_PACKET_HANDSHAKE
        || !ngx_stream_quic_pt_retry_wanted(in->retry, worker))
    {
        return NGX_OK;
    }

    if (in->pkt.version == QUIC_LB_VERSION_2 && !in->retry->v2) {
        in->class = NGX_STREAM_QUIC_PT_FOREIGN;
        return NGX_OK;
    }

    ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RETRY_DROPPED, 1);

    return NGX_DECLINED;
}


static void
ngx_stream_quic_pt_retry_answer(ngx_stream_quic_pt_retry_initial_t *in)
{
    u_char                        out[QUIC_LB_RETRY_PACKET_MAX];
    ngx_int_t                     n;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = in->listener->worker;

    if (in->len < QUIC_LB_RETRY_DATAGRAM_MIN
        || in->pkt.dcid_len < QUIC_LB_RETRY_DCID_MIN
        || ngx_stream_quic_pt_retry_answered(in))
    {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RETRY_DROPPED, 1);
        return;
    }

    n = ngx_stream_quic_pt_retry_write(in, out);

    if (n == NGX_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, worker->log, 0,
                      "the cryptographic library failed to make a Retry");
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RETRY_DROPPED, 1);
        return;
    }

    if (ngx_stream_quic_pt_retry_send(in, out, n)) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_RETRY_SENT, 1);
        in->retry->sent++;
    }
}


/*
 * A ClientHello of two datagrams needs one Retry, clients ignore the second
 * (RFC 9000, 17.2.5.2); nor is it to look like another client to "adaptive".
 * What a client sends again comes later.
 */

static ngx_uint_t
ngx_stream_quic_pt_retry_answered(ngx_stream_quic_pt_retry_initial_t *in)
{
    uint64_t                     hash;
    ngx_stream_quic_pt_retry_t  *retry;

    retry = in->retry;

    hash = quic_lb_hash(&in->listener->worker->key, in->pkt.dcid,
                        in->pkt.dcid_len);

    if (hash == retry->answered
        && ngx_current_msec - retry->answered_at
           < NGX_STREAM_QUIC_PT_RETRY_HELLO)
    {
        return 1;
    }

    retry->answered = hash;
    retry->answered_at = ngx_current_msec;

    return 0;
}


/* returns the length of the Retry, or NGX_ERROR */

static ngx_int_t
ngx_stream_quic_pt_retry_write(ngx_stream_quic_pt_retry_initial_t *in,
    u_char *out)
{
    int                               n;
    u_char                            iv[QUIC_LB_RETRY_IV_LEN];
    u_char                            bytes[QUIC_LB_RETRY_TOKEN_LEN];
    u_char                            text[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    quic_lb_retry_token_t             token;
    quic_lb_retry_address_t           address;
    ngx_stream_quic_pt_retry_t       *retry;
    ngx_stream_quic_pt_retry_key_t  **key;

    retry = in->retry;
    key = retry->keys->elts;

    ngx_memzero(&token, sizeof(quic_lb_retry_token_t));

    token.expires = (uint32_t) ngx_time() + NGX_STREAM_QUIC_PT_RETRY_TIME;
    token.dcid_len = (uint8_t) in->pkt.dcid_len;
    token.scid_len = NGX_STREAM_QUIC_PT_RETRY_SCID;

    ngx_memcpy(token.dcid, in->pkt.dcid, in->pkt.dcid_len);

    if (RAND_bytes(token.scid, token.scid_len) != 1
        || RAND_bytes(iv, sizeof(iv)) != 1)
    {
        return NGX_ERROR;
    }

    if (retry->ncodepoints) {
        token.scid[0] = (retry->codepoints[token.scid[0] % retry->ncodepoints]
                         << 5)
                        | (token.scid[0] & 0x1f);
    }

    address.data = text;
    address.len = ngx_stream_quic_lb_address_key(text, &in->client->sockaddr)
                  - text;

    if (quic_lb_retry_make(&retry->ctx, &key[0]->keys, &token, &address, iv,
                           bytes)
        != QUIC_LB_OK)
    {
        return NGX_ERROR;
    }

    n = quic_lb_retry_packet(&retry->ctx, &in->pkt, token.scid,
                             token.scid_len, bytes, sizeof(bytes), out);

    return n < 0 ? NGX_ERROR : n;
}


/*
 * RFC 9000, 8.1.2: who sends a token that is of no use will not take another
 * Retry, and need not wait in vain.
 */

static void
ngx_stream_quic_pt_retry_refuse(ngx_stream_quic_pt_retry_initial_t *in)
{
    int     n;
    u_char  out[QUIC_LB_RETRY_CLOSE_MAX];

    ngx_stream_quic_pt_count(in->listener->worker,
                             NGX_STREAM_QUIC_PT_RETRY_REFUSED, 1);

    if (in->len < QUIC_LB_RETRY_DATAGRAM_MIN) {
        return;
    }

    n = quic_lb_retry_close(&in->retry->ctx, &in->pkt, in->packet, out,
                            in->retry->scratch);

    if (n > 0) {
        (void) ngx_stream_quic_pt_retry_send(in, out, n);
    }
}


/*
 * At once, or not at all: what has to wait for a socket that is full had better
 * be a reply of a server.
 */

static ngx_uint_t
ngx_stream_quic_pt_retry_send(ngx_stream_quic_pt_retry_initial_t *in,
    u_char *data, size_t len)
{
    ngx_err_t                       told;
    ngx_stream_quic_pt_tx_t         tx;
    ngx_stream_quic_pt_run_t        run;
    ngx_stream_quic_pt_piece_t      piece;
    ngx_stream_quic_pt_listener_t  *listener;

    listener = in->listener;

    ngx_memzero(&tx, sizeof(ngx_stream_quic_pt_tx_t));

    tx.socket = &listener->socket;
    tx.sockaddr = &in->client->sockaddr;
    tx.socklen = in->socklen;
    tx.family = ngx_stream_quic_pt_leg_family(in->client);
    tx.counter = NGX_STREAM_QUIC_PT_REPLIES;

    if (listener->listening->wildcard) {
        tx.local = &in->local->sockaddr;
    }

    piece.data = data;
    piece.len = len;
    piece.next = NULL;

    ngx_memzero(&run, sizeof(ngx_stream_quic_pt_run_t));

    run.pieces = &piece;
    run.last = &piece;
    run.segment = len;
    run.size = len;
    run.segments = 1;

    if (!ngx_queue_empty(&tx.socket->backlog)
        || ngx_stream_quic_pt_udp_send(listener->worker, &tx, &run, &told))
    {
        ngx_stream_quic_pt_count(listener->worker,
                                 NGX_STREAM_QUIC_PT_SEND_FAILED, 1);
        return 0;
    }

    return 1;
}


/* a token that has expired since the flow was made is still replaced */

void
ngx_stream_quic_pt_retry_token(ngx_stream_quic_pt_leg_t *leg, u_char *data,
    size_t len)
{
    int                                 rc;
    u_char                              iv[QUIC_LB_RETRY_IV_LEN];
    u_char                              bytes[QUIC_LB_RETRY_TOKEN_LEN];
    int64_t                             expires;
    socklen_t                           socklen;
    ngx_sockaddr_t                      sa;
    quic_lb_retry_token_t               token;
    quic_lb_retry_address_t             address;
    ngx_stream_quic_pt_flow_t          *flow;
    ngx_stream_quic_pt_retry_t         *retry;
    ngx_stream_quic_pt_retry_key_t    **key;
    ngx_stream_quic_pt_retry_initial_t  in;

    flow = leg->flow;
    retry = flow->retry;

    ngx_stream_quic_pt_retry_find(&in, data, len);

    if (in.packet == NULL) {
        return;
    }

    rc = ngx_stream_quic_pt_retry_open(retry, &in.pkt, &flow->client.sockaddr,
                                       &token);

    if ((rc != QUIC_LB_OK && rc != QUIC_LB_ERR_RANGE)
        || ngx_stream_quic_pt_retry_server_address(leg, &sa, &socklen)
           != NGX_OK)
    {
        return;
    }

    address.data = &sa;
    address.len = socklen;

    expires = ngx_time() + NGX_STREAM_QUIC_PT_RETRY_SERVER_TIME;

    /* servers have the key that tokens are made with */

    key = retry->keys->elts;

    if (RAND_bytes(iv, sizeof(iv)) != 1
        || quic_lb_retry_make_server(&retry->ctx, &key[0]->keys, &token,
                                     &address, expires, iv, bytes,
                                     sizeof(bytes))
           != QUIC_LB_OK
        || quic_lb_retry_replace(&retry->ctx, data, len, &token, in.pkt.token,
                                 bytes, retry->scratch)
           < 0)
    {
        ngx_log_error(NGX_LOG_ALERT, flow->listener->worker->log, 0,
                      "the cryptographic library failed to replace a token");
    }
}


/* the client's address as the server has it in memory */

static ngx_int_t
ngx_stream_quic_pt_retry_server_address(ngx_stream_quic_pt_leg_t *leg,
    ngx_sockaddr_t *sa, socklen_t *socklen)
{
    *socklen = sizeof(ngx_sockaddr_t);

    if (getsockname(leg->socket.connection->fd, &sa->sockaddr, socklen)
        == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, leg->socket.connection->log,
                      ngx_socket_errno, "getsockname() failed");
        return NGX_ERROR;
    }

    switch (sa->sockaddr.sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        sa->sockaddr_in6.sin6_flowinfo = 0;
        break;
#endif

    default: /* AF_INET */
        ngx_memzero(&sa->sockaddr_in.sin_zero,
                    sizeof(sa->sockaddr_in.sin_zero));
        break;
    }

    return NGX_OK;
}
