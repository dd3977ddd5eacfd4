
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Datagrams (RFC 9221): two queues, one for each side, made with the first
 * datagram.  Bound: quic_relay_datagram_queue entries each; what comes when a
 * queue is full is dropped, and so is what the path or the peer cannot take.
 */


#include "ngx_stream_quic_relay_module.h"


/* the queue of a connection that sends: the client's is the first */
#define ngx_stream_quic_relay_datagram_side(conn)  ((conn)->server ? 0 : 1)


typedef struct {
    ngx_queue_t                            queue;
    size_t                                 len;
    u_char                                 data[];
} ngx_stream_quic_relay_datagram_t;


typedef struct {
    ngx_queue_t                            queue;
    ngx_uint_t                             count;
} ngx_stream_quic_relay_datagram_side_t;


struct ngx_stream_quic_relay_datagrams_s {
    ngx_stream_quic_relay_datagram_side_t  sides[2];
};


static size_t ngx_stream_quic_relay_datagram_room(
    ngx_stream_quic_relay_conn_t *conn);
static void ngx_stream_quic_relay_datagram_dropped(
    ngx_stream_quic_relay_t *relay);
static void ngx_stream_quic_relay_datagram_remove(
    ngx_stream_quic_relay_datagram_side_t *side,
    ngx_stream_quic_relay_datagram_t *dg);


int
ngx_stream_quic_relay_datagram_recv(ngx_stream_quic_relay_conn_t *conn,
    const uint8_t *data, size_t len)
{
    ngx_stream_quic_relay_t                *relay;
    ngx_stream_quic_relay_datagram_t       *dg;
    ngx_stream_quic_relay_datagram_side_t  *side;

    relay = conn->relay;

    if (relay->datagrams == NULL) {
        relay->datagrams = ngx_pcalloc(relay->pool,
                                  sizeof(ngx_stream_quic_relay_datagrams_t));
        if (relay->datagrams == NULL) {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

        ngx_queue_init(&relay->datagrams->sides[0].queue);
        ngx_queue_init(&relay->datagrams->sides[1].queue);
    }

    side = &relay->datagrams->sides[!ngx_stream_quic_relay_datagram_side(conn)];

    if (side->count >= relay->conf->datagram_queue) {
        ngx_stream_quic_relay_datagram_dropped(relay);
        return 0;
    }

    dg = ngx_alloc(sizeof(ngx_stream_quic_relay_datagram_t) + len, conn->log);
    if (dg == NULL) {
        ngx_stream_quic_relay_datagram_dropped(relay);
        return 0;
    }

    dg->len = len;
    ngx_memcpy(dg->data, data, len);

    ngx_queue_insert_tail(&side->queue, &dg->queue);
    side->count++;

    ngx_stream_quic_relay_conn_schedule(conn->peer);

    return 0;
}


ngtcp2_ssize
ngx_stream_quic_relay_datagrams_write(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_path *path, ngtcp2_pkt_info *pi, uint8_t *dest, size_t len,
    ngtcp2_tstamp ts)
{
    int                                     accepted;
    ngtcp2_vec                              vec;
    ngtcp2_ssize                            rc;
    ngx_stream_quic_relay_datagram_t       *dg;
    ngx_stream_quic_relay_datagram_side_t  *side;

    if (conn->relay->datagrams == NULL) {
        return 0;
    }

    side = &conn->relay->datagrams->sides[
                                    ngx_stream_quic_relay_datagram_side(conn)];

    while (!ngx_queue_empty(&side->queue)) {
        dg = ngx_queue_data(ngx_queue_head(&side->queue),
                            ngx_stream_quic_relay_datagram_t, queue);

        /*
         * ngtcp2 never accepts what does not fit into a packet of the path, and
         * does not tell that from a full congestion window
         */

        if (dg->len > ngx_stream_quic_relay_datagram_room(conn)) {
            ngx_stream_quic_relay_datagram_dropped(conn->relay);
            ngx_stream_quic_relay_datagram_remove(side, dg);
            continue;
        }

        vec.base = dg->data;
        vec.len = dg->len;

        rc = ngtcp2_conn_writev_datagram(conn->qc, path, pi, dest, len,
                                         &accepted,
                                         NGTCP2_WRITE_DATAGRAM_FLAG_NONE, 0,
                                         &vec, 1, ts);

        if (accepted) {
            conn->relay->ndatagrams++;
            ngx_stream_quic_relay_count(conn->relay->worker,
                                        NGX_STREAM_QUIC_RELAY_DATAGRAMS, 1);
            ngx_stream_quic_relay_datagram_remove(side, dg);
            return rc;
        }

        /* the peer takes none, or none of that size */

        if (rc == NGTCP2_ERR_INVALID_STATE
            || rc == NGTCP2_ERR_INVALID_ARGUMENT)
        {
            ngx_stream_quic_relay_datagram_dropped(conn->relay);
            ngx_stream_quic_relay_datagram_remove(side, dg);
            continue;
        }

        return rc;
    }

    return 0;
}


/* octets of the longest datagram that a packet of the path can carry */

static size_t
ngx_stream_quic_relay_datagram_room(ngx_stream_quic_relay_conn_t *conn)
{
    size_t  len, overhead;

    /*
     * First octet, connection ID, packet number of any length, tag (RFC 9001,
     * 5.3); type and length of the frame
     */

    len = ngtcp2_conn_get_path_max_tx_udp_payload_size(conn->qc);
    overhead = 1 + ngtcp2_conn_get_dcid(conn->qc)->datalen + 4 + 16 + 3;

    return len > overhead ? len - overhead : 0;
}


static void
ngx_stream_quic_relay_datagram_dropped(ngx_stream_quic_relay_t *relay)
{
    relay->ndropped++;

    ngx_stream_quic_relay_count(relay->worker,
                                NGX_STREAM_QUIC_RELAY_DATAGRAMS_DROPPED, 1);
}


static void
ngx_stream_quic_relay_datagram_remove(
    ngx_stream_quic_relay_datagram_side_t *side,
    ngx_stream_quic_relay_datagram_t *dg)
{
    ngx_queue_remove(&dg->queue);
    side->count--;
    ngx_free(dg);
}


void
ngx_stream_quic_relay_datagrams_free(ngx_stream_quic_relay_t *relay)
{
    ngx_uint_t                              i;
    ngx_stream_quic_relay_datagram_t       *dg;
    ngx_stream_quic_relay_datagram_side_t  *side;

    for (i = 0; relay->datagrams && i < 2; i++) {
        side = &relay->datagrams->sides[i];

        while (!ngx_queue_empty(&side->queue)) {
            dg = ngx_queue_data(ngx_queue_head(&side->queue),
                                ngx_stream_quic_relay_datagram_t, queue);
            ngx_stream_quic_relay_datagram_dropped(relay);
            ngx_stream_quic_relay_datagram_remove(side, dg);
        }
    }

    relay->datagrams = NULL;
}
