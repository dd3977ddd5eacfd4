
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Streams.  A stream has the same ID on both connections.  QUIC opens IDs in
 * order only, so all lower ones are opened on the far side with it; they wait
 * there for the sender to use them.
 *
 * Streams by ID, in a tree: entered when one side opens it, removed when both
 * connections have closed it.  Bound: each side may have max_streams of each
 * kind open, for that is what it is granted.  Each half holds what has not
 * been acknowledged by its receiver, at most the window, because only an
 * acknowledgment gives the sender new credit.  Credit of the connection is
 * given at receipt: it must never be what a stalled stream takes from others.
 */


#include "ngx_stream_quic_relay_module.h"
#include "ngx_stream_quic_relay_buffer.h"


/* chunks of one packet; one may be a packet's length */
#define NGX_STREAM_QUIC_RELAY_VECS  8

/* RFC 9000, 2.1 */
#define ngx_stream_quic_relay_id_server(id)  ((id) & 1)
#define ngx_stream_quic_relay_id_uni(id)     (((id) & 2) ? 1 : 0)

/* the side of a connection: 0 is the client's */
#define ngx_stream_quic_relay_side(conn)     ((conn)->server ? 0 : 1)


/* what goes to one side */

typedef struct {
    ngx_queue_t                      queue;       /* if queued */
    int64_t                          id;          /* of the stream */
    ngx_stream_quic_relay_buffer_t   buffer;
    uint64_t                         reset_code;
    uint64_t                         stop_code;

    unsigned                         opened:1;    /* on that connection */
    unsigned                         closed:1;    /* by that connection */
    unsigned                         queued:1;    /* to be written */
    unsigned                         blocked:1;   /* until MAX_STREAM_DATA */
    unsigned                         fin:1;       /* behind the buffer */
    unsigned                         done:1;      /* nothing more is sent */
    unsigned                         reset:1;     /* when it is opened */
    unsigned                         stop:1;      /* when it is opened */
} ngx_stream_quic_relay_half_t;


typedef struct {
    ngx_rbtree_node_t                node;        /* must be first */
    int64_t                          id;
    ngx_stream_quic_relay_half_t     halves[2];   /* by the side they go to */
} ngx_stream_quic_relay_stream_t;


/* one side; the arrays are by kind: bidirectional, unidirectional */

typedef struct {
    ngx_queue_t                      writable;    /* halves */
    uint64_t                         opened[2];   /* streams, toward it */
    uint64_t                         wanted[2];   /* the same, when it allows */
    uint64_t                         granted[2];  /* to it, cumulative */
    uint64_t                         closed[2];   /* of those it has opened */
} ngx_stream_quic_relay_side_t;


struct ngx_stream_quic_relay_streams_s {
    ngx_rbtree_t                     tree;
    ngx_rbtree_node_t                sentinel;
    ngx_stream_quic_relay_side_t     sides[2];
    ngx_uint_t                       started;     /* unsigned  started:1; */
};


static ngx_stream_quic_relay_stream_t *ngx_stream_quic_relay_stream_find(
    ngx_stream_quic_relay_streams_t *streams, int64_t id);
static ngx_stream_quic_relay_stream_t *ngx_stream_quic_relay_stream_get(
    ngx_stream_quic_relay_conn_t *conn, int64_t id);
static int ngx_stream_quic_relay_streams_open(
    ngx_stream_quic_relay_conn_t *conn, ngx_uint_t uni);
static void ngx_stream_quic_relay_stream_opened(
    ngx_stream_quic_relay_conn_t *conn, ngx_stream_quic_relay_stream_t *st);
static void ngx_stream_quic_relay_streams_grant(
    ngx_stream_quic_relay_conn_t *conn, ngx_uint_t uni);
static void ngx_stream_quic_relay_half_end(ngx_stream_quic_relay_half_t *half);
static void ngx_stream_quic_relay_half_queue(
    ngx_stream_quic_relay_conn_t *conn, ngx_stream_quic_relay_half_t *half);
static void ngx_stream_quic_relay_half_unqueue(
    ngx_stream_quic_relay_half_t *half);
static void ngx_stream_quic_relay_half_sent(
    ngx_stream_quic_relay_side_t *side, ngx_stream_quic_relay_half_t *half,
    size_t len, ngx_uint_t fin);


ngx_int_t
ngx_stream_quic_relay_streams_init(ngx_stream_quic_relay_t *relay)
{
    ngx_stream_quic_relay_streams_t  *streams;

    streams = ngx_pcalloc(relay->pool, sizeof(ngx_stream_quic_relay_streams_t));
    if (streams == NULL) {
        return NGX_ERROR;
    }

    ngx_rbtree_init(&streams->tree, &streams->sentinel,
                    ngx_rbtree_insert_value);
    ngx_queue_init(&streams->sides[0].writable);
    ngx_queue_init(&streams->sides[1].writable);

    relay->streams = streams;

    return NGX_OK;
}


void
ngx_stream_quic_relay_streams_free(ngx_stream_quic_relay_t *relay)
{
    ngx_rbtree_node_t                *node;
    ngx_stream_quic_relay_stream_t   *st;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = relay->streams;

    if (streams == NULL) {
        return;
    }

    while ((node = streams->tree.root) != streams->tree.sentinel) {
        st = (ngx_stream_quic_relay_stream_t *) node;

        ngx_rbtree_delete(&streams->tree, node);
        ngx_stream_quic_relay_buffer_free(&st->halves[0].buffer);
        ngx_stream_quic_relay_buffer_free(&st->halves[1].buffer);
        ngx_free(st);
    }

    relay->streams = NULL;
}


void
ngx_stream_quic_relay_streams_start(ngx_stream_quic_relay_t *relay)
{
    ngx_uint_t                        i, uni;
    const ngtcp2_transport_params    *params;
    ngx_stream_quic_relay_conn_t     *conn;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = relay->streams;

    for (i = 0; i < 2; i++) {
        conn = i ? &relay->upstream : &relay->client;
        params = ngtcp2_conn_get_local_transport_params(conn->qc);

        streams->sides[i].granted[0] = params->initial_max_streams_bidi;
        streams->sides[i].granted[1] = params->initial_max_streams_uni;
    }

    streams->started = 1;

    for (uni = 0; uni < 2; uni++) {
        (void) ngx_stream_quic_relay_streams_credit(&relay->client, uni);
        (void) ngx_stream_quic_relay_streams_credit(&relay->upstream, uni);
    }
}


int
ngx_stream_quic_relay_stream_open(ngx_stream_quic_relay_conn_t *conn,
    int64_t id)
{
    ngx_stream_quic_relay_stream_t  *st;

    st = ngx_stream_quic_relay_stream_get(conn, id);
    if (st == NULL) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    /* the far side may have used it before: it knows of it by a higher ID */

    if (!st->halves[ngx_stream_quic_relay_side(conn)].opened) {
        ngx_stream_quic_relay_stream_opened(conn, st);
    }

    return 0;
}


static ngx_stream_quic_relay_stream_t *
ngx_stream_quic_relay_stream_find(ngx_stream_quic_relay_streams_t *streams,
    int64_t id)
{
    ngx_rbtree_node_t  *node;

    node = streams->tree.root;

    while (node != streams->tree.sentinel) {

        if ((ngx_rbtree_key_t) id == node->key) {
            return (ngx_stream_quic_relay_stream_t *) node;
        }

        node = (ngx_rbtree_key_t) id < node->key ? node->left : node->right;
    }

    return NULL;
}


/*
 * The stream |id| that the end of |conn| uses; if it is new, it and all lower
 * ones of its kind are entered and opened on the far side as far as that
 * allows.
 */

static ngx_stream_quic_relay_stream_t *
ngx_stream_quic_relay_stream_get(ngx_stream_quic_relay_conn_t *conn,
    int64_t id)
{
    uint64_t                          n;
    ngx_uint_t                        uni, here;
    ngx_stream_quic_relay_side_t     *far;
    ngx_stream_quic_relay_stream_t   *st;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = conn->relay->streams;
    here = ngx_stream_quic_relay_side(conn);
    uni = ngx_stream_quic_relay_id_uni(id);
    far = &streams->sides[!here];

    st = ngx_stream_quic_relay_stream_find(streams, id);

    if (st || (ngx_uint_t) ngx_stream_quic_relay_id_server(id) != here) {
        return st;
    }

    for (n = far->wanted[uni]; n <= (uint64_t) id / 4; n++) {

        st = ngx_calloc(sizeof(ngx_stream_quic_relay_stream_t), conn->log);
        if (st == NULL) {
            return NULL;
        }

        st->id = (int64_t) (n * 4 + (id & 3));
        st->halves[0].id = st->id;
        st->halves[1].id = st->id;
        st->node.key = (ngx_rbtree_key_t) st->id;
        st->halves[here].done = uni ? 1 : 0;

        ngx_rbtree_insert(&streams->tree, &st->node);
        far->wanted[uni]++;
        conn->relay->nstreams++;

        ngx_stream_quic_relay_count(conn->relay->worker,
                                    NGX_STREAM_QUIC_RELAY_STREAMS, 1);
    }

    if (ngx_stream_quic_relay_streams_open(conn->peer, uni) != 0) {
        return NULL;
    }

    return st;
}


/* opens toward the end of |conn| what waits and is allowed, in order */

static int
ngx_stream_quic_relay_streams_open(ngx_stream_quic_relay_conn_t *conn,
    ngx_uint_t uni)
{
    int                               rc;
    int64_t                           id, expected;
    ngx_uint_t                        here;
    ngx_stream_quic_relay_side_t     *side;
    ngx_stream_quic_relay_stream_t   *st;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = conn->relay->streams;
    here = ngx_stream_quic_relay_side(conn);
    side = &streams->sides[here];

    while (side->opened[uni] < side->wanted[uni]) {

        rc = uni ? ngtcp2_conn_open_uni_stream(conn->qc, &id, NULL)
                 : ngtcp2_conn_open_bidi_stream(conn->qc, &id, NULL);

        if (rc == NGTCP2_ERR_STREAM_ID_BLOCKED) {
            return 0;
        }

        /* the initiator is the other side: a server opens toward a client */

        expected = (int64_t) (side->opened[uni] * 4 + (uni ? 2 : 0) + !here);

        if (rc != 0 || id != expected) {
            ngx_log_error(NGX_LOG_ALERT, conn->log, 0,
                          "quic relay: stream %L opened as %L, rc:%d",
                          expected, id, rc);
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

        side->opened[uni]++;

        st = ngx_stream_quic_relay_stream_find(streams, id);

        if (st) {
            ngx_stream_quic_relay_stream_opened(conn, st);
        }
    }

    return 0;
}


/* what happened to the stream meanwhile */

static void
ngx_stream_quic_relay_stream_opened(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_stream_t *st)
{
    ngx_stream_quic_relay_half_t  *half;

    half = &st->halves[ngx_stream_quic_relay_side(conn)];
    half->opened = 1;

    if (half->reset) {
        (void) ngtcp2_conn_shutdown_stream_write(conn->qc, 0, st->id,
                                                 half->reset_code);
    }

    if (half->stop) {
        (void) ngtcp2_conn_shutdown_stream_read(conn->qc, 0, st->id,
                                                half->stop_code);
    }

    if (half->buffer.unsent || half->fin) {
        ngx_stream_quic_relay_half_queue(conn, half);
    }

    ngx_stream_quic_relay_conn_schedule(conn);
}


int
ngx_stream_quic_relay_stream_recv(ngx_stream_quic_relay_conn_t *conn,
    uint32_t flags, int64_t id, const uint8_t *data, size_t len)
{
    ngx_stream_quic_relay_half_t    *half;
    ngx_stream_quic_relay_stream_t  *st;

    ngtcp2_conn_extend_max_offset(conn->qc, len);

    st = ngx_stream_quic_relay_stream_get(conn, id);
    if (st == NULL) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    half = &st->halves[!ngx_stream_quic_relay_side(conn)];

    if (half->done) {
        return 0;
    }

    if (ngx_stream_quic_relay_buffer_append(&half->buffer, data, len,
                                            conn->log)
        != NGX_OK)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    if (flags & NGTCP2_STREAM_DATA_FLAG_FIN) {
        half->fin = 1;
    }

    if (half->opened) {
        ngx_stream_quic_relay_half_queue(conn->peer, half);
    }

    return 0;
}


int
ngx_stream_quic_relay_stream_acked(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t offset, uint64_t len)
{
    ngx_stream_quic_relay_half_t    *half;
    ngx_stream_quic_relay_stream_t  *st;

    st = ngx_stream_quic_relay_stream_find(conn->relay->streams, id);

    if (st == NULL || len == 0) {
        return 0;
    }

    half = &st->halves[ngx_stream_quic_relay_side(conn)];

    /* a half that was reset has freed them, and gives no more credit */

    if (half->reset || half->buffer.size < len) {
        return 0;
    }

    ngx_stream_quic_relay_buffer_acked(&half->buffer, (size_t) len);

    if (ngtcp2_conn_extend_max_stream_offset(conn->peer->qc, id, len) != 0) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    ngx_stream_quic_relay_conn_schedule(conn->peer);

    return 0;
}


int
ngx_stream_quic_relay_stream_reset(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t code)
{
    ngx_stream_quic_relay_half_t    *half;
    ngx_stream_quic_relay_stream_t  *st;

    st = ngx_stream_quic_relay_stream_get(conn, id);
    if (st == NULL) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    half = &st->halves[!ngx_stream_quic_relay_side(conn)];

    /* the far side has stopped it, or has it all (RFC 9000, 3.2) */

    if (half->reset || half->closed) {
        return 0;
    }

    half->reset = 1;
    half->reset_code = code;
    ngx_stream_quic_relay_half_end(half);

    if (half->opened
        && ngtcp2_conn_shutdown_stream_write(conn->peer->qc, 0, id, code) != 0)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    ngx_stream_quic_relay_conn_schedule(conn->peer);

    return 0;
}


int
ngx_stream_quic_relay_stream_stop(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t code)
{
    ngx_stream_quic_relay_half_t    *mine, *far;
    ngx_stream_quic_relay_stream_t  *st;

    st = ngx_stream_quic_relay_stream_find(conn->relay->streams, id);

    /* a late or repeated frame */

    if (st == NULL) {
        return 0;
    }

    mine = &st->halves[ngx_stream_quic_relay_side(conn)];
    far = &st->halves[!ngx_stream_quic_relay_side(conn)];

    if (mine->reset || far->stop) {
        return 0;
    }

    /* ngtcp2 itself has answered with RESET_STREAM (RFC 9000, 3.5) */

    mine->reset = 1;
    mine->reset_code = code;
    ngx_stream_quic_relay_half_end(mine);

    far->stop = 1;
    far->stop_code = code;

    if (far->opened
        && ngtcp2_conn_shutdown_stream_read(conn->peer->qc, 0, id, code) != 0)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    ngx_stream_quic_relay_conn_schedule(conn->peer);

    return 0;
}


int
ngx_stream_quic_relay_stream_close(ngx_stream_quic_relay_conn_t *conn,
    int64_t id)
{
    ngx_uint_t                        opener, uni;
    ngx_stream_quic_relay_half_t     *half;
    ngx_stream_quic_relay_stream_t   *st;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = conn->relay->streams;
    st = ngx_stream_quic_relay_stream_find(streams, id);

    if (st == NULL) {
        return 0;
    }

    half = &st->halves[ngx_stream_quic_relay_side(conn)];
    half->closed = 1;
    ngx_stream_quic_relay_half_end(half);

    if (!st->halves[0].closed || !st->halves[1].closed) {
        return 0;
    }

    opener = ngx_stream_quic_relay_id_server(id);
    uni = ngx_stream_quic_relay_id_uni(id);

    ngx_rbtree_delete(&streams->tree, &st->node);
    ngx_free(st);

    streams->sides[opener].closed[uni]++;

    ngx_stream_quic_relay_streams_grant(opener ? &conn->relay->upstream
                                               : &conn->relay->client,
                                        uni);

    return 0;
}


int
ngx_stream_quic_relay_stream_credit(ngx_stream_quic_relay_conn_t *conn,
    int64_t id)
{
    ngx_stream_quic_relay_half_t    *half;
    ngx_stream_quic_relay_stream_t  *st;

    st = ngx_stream_quic_relay_stream_find(conn->relay->streams, id);

    if (st) {
        half = &st->halves[ngx_stream_quic_relay_side(conn)];

        if (half->blocked) {
            half->blocked = 0;
            ngx_stream_quic_relay_half_queue(conn, half);
        }
    }

    return 0;
}


int
ngx_stream_quic_relay_streams_credit(ngx_stream_quic_relay_conn_t *conn,
    ngx_uint_t uni)
{
    if (ngx_stream_quic_relay_streams_open(conn, uni) != 0) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    ngx_stream_quic_relay_streams_grant(conn->peer, uni);

    return 0;
}


/*
 * Lets the end of |conn| open more streams: as many as the far side has
 * allowed, but no more than max_streams that are not closed.
 */

static void
ngx_stream_quic_relay_streams_grant(ngx_stream_quic_relay_conn_t *conn,
    ngx_uint_t uni)
{
    uint64_t                          limit;
    ngx_uint_t                        here;
    ngx_stream_quic_relay_side_t     *side, *far;
    ngx_stream_quic_relay_streams_t  *streams;

    streams = conn->relay->streams;

    if (!streams->started) {
        return;
    }

    here = ngx_stream_quic_relay_side(conn);
    side = &streams->sides[here];
    far = &streams->sides[!here];

    limit = far->opened[uni]
            + (uni ? ngtcp2_conn_get_streams_uni_left(conn->peer->qc)
                   : ngtcp2_conn_get_streams_bidi_left(conn->peer->qc));

    limit = ngx_min(limit, side->closed[uni] + conn->relay->conf->max_streams);

    if (limit <= side->granted[uni]) {
        return;
    }

    if (uni) {
        ngtcp2_conn_extend_max_streams_uni(conn->qc,
                                           limit - side->granted[uni]);

    } else {
        ngtcp2_conn_extend_max_streams_bidi(conn->qc,
                                            limit - side->granted[uni]);
    }

    side->granted[uni] = limit;
    ngx_stream_quic_relay_conn_schedule(conn);
}


static void
ngx_stream_quic_relay_half_end(ngx_stream_quic_relay_half_t *half)
{
    half->done = 1;
    half->blocked = 0;

    ngx_stream_quic_relay_half_unqueue(half);
    ngx_stream_quic_relay_buffer_free(&half->buffer);
}


/* the connection has to write, even if the half was queued before */

static void
ngx_stream_quic_relay_half_queue(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_half_t *half)
{
    ngx_uint_t                     here;
    ngx_stream_quic_relay_side_t  *side;

    if (!half->queued && !half->blocked && !half->done) {
        here = ngx_stream_quic_relay_side(conn);
        side = &conn->relay->streams->sides[here];

        ngx_queue_insert_tail(&side->writable, &half->queue);
        half->queued = 1;
    }

    ngx_stream_quic_relay_conn_schedule(conn);
}


static void
ngx_stream_quic_relay_half_unqueue(ngx_stream_quic_relay_half_t *half)
{
    if (half->queued) {
        ngx_queue_remove(&half->queue);
        half->queued = 0;
    }
}


ngtcp2_ssize
ngx_stream_quic_relay_streams_write(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_path *path, ngtcp2_pkt_info *pi, uint8_t *dest, size_t len,
    ngtcp2_tstamp ts)
{
    size_t                         size;
    int64_t                        id;
    uint32_t                       flags;
    ngx_uint_t                     n, here, full;
    ngtcp2_vec                     vec[NGX_STREAM_QUIC_RELAY_VECS];
    ngtcp2_ssize                   rc, written;
    ngx_stream_quic_relay_half_t  *half;
    ngx_stream_quic_relay_side_t  *side;

    here = ngx_stream_quic_relay_side(conn);
    side = &conn->relay->streams->sides[here];
    full = 0;

    for ( ;; ) {
        half = NULL;
        id = -1;
        n = 0;
        size = 0;
        flags = NGTCP2_WRITE_STREAM_FLAG_NONE;

        if (!full && !ngx_queue_empty(&side->writable)) {
            half = ngx_queue_data(ngx_queue_head(&side->writable),
                                  ngx_stream_quic_relay_half_t, queue);
            id = half->id;
            flags = NGTCP2_WRITE_STREAM_FLAG_MORE;

            size = len;
            n = ngx_stream_quic_relay_buffer_unsent(&half->buffer, vec,
                                          NGX_STREAM_QUIC_RELAY_VECS, &size);

            if (half->fin && size == half->buffer.unsent) {
                flags |= NGTCP2_WRITE_STREAM_FLAG_FIN;
            }
        }

        rc = ngtcp2_conn_writev_stream(conn->qc, path, pi, dest, len, &written,
                                       flags, id, vec, n, ts);

        if (half && written >= 0) {
            ngx_stream_quic_relay_half_sent(side, half, (size_t) written,
                                            (size_t) written == size
                                && (flags & NGTCP2_WRITE_STREAM_FLAG_FIN));
        }

        switch (rc) {

        case NGTCP2_ERR_WRITE_MORE:
            break;

        case NGTCP2_ERR_STREAM_DATA_BLOCKED:

            /* no callback tells of MAX_DATA: the half has to stay queued */

            if (ngtcp2_conn_get_max_data_left(conn->qc) == 0) {
                full = 1;
                break;
            }

            ngx_stream_quic_relay_half_unqueue(half);
            half->blocked = 1;
            break;

        case NGTCP2_ERR_STREAM_NOT_FOUND:
        case NGTCP2_ERR_STREAM_SHUT_WR:

            ngx_stream_quic_relay_half_end(half);
            break;

        default:
            return rc;
        }
    }
}


/* the half goes behind the others, or waits for more to be sent */

static void
ngx_stream_quic_relay_half_sent(ngx_stream_quic_relay_side_t *side,
    ngx_stream_quic_relay_half_t *half, size_t len, ngx_uint_t fin)
{
    ngx_stream_quic_relay_buffer_sent(&half->buffer, len);
    ngx_stream_quic_relay_half_unqueue(half);

    if (fin) {
        half->done = 1;

    } else if (half->buffer.unsent || half->fin) {
        ngx_queue_insert_tail(&side->writable, &half->queue);
        half->queued = 1;
    }
}
