
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Connections of a flow.  A connection is a pair of IDs, the client's and the
 * server's, as long headers have them; here it is a hash of both.  The client
 * chooses the pair of its first packets, the server issues others.
 *
 * A pair is proven when the client uses one that the server has issued: who
 * sends from a forged address never does.  Pairs that are not proven only push
 * out each other, the oldest first, and have a quarter of the room for
 * themselves; proven ones push out the one that was not used for the longest
 * time.
 *
 * They matter in the handshake, until the client uses the server's IDs, or,
 * with a backend that issues none to route by, while several connections share
 * an address.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


static ngx_stream_quic_pt_conn_t *ngx_stream_quic_pt_conn_place(
    ngx_stream_quic_pt_flow_t *flow);
static ngx_int_t ngx_stream_quic_pt_conn_grow(ngx_stream_quic_pt_flow_t *flow);
static ngx_stream_quic_pt_conn_t *ngx_stream_quic_pt_conn_oldest(
    ngx_stream_quic_pt_flow_t *flow, ngx_uint_t proven);


void
ngx_stream_quic_pt_conn_init(ngx_stream_quic_pt_flow_t *flow)
{
    flow->conns = flow->first_conns;
    flow->conns_size = NGX_STREAM_QUIC_PT_CONNS;
    flow->nconns = 0;
    flow->nproven = 0;
}


uint64_t
ngx_stream_quic_pt_conn_pair(ngx_stream_quic_pt_flow_t *flow,
    const uint8_t *client, size_t client_len, const uint8_t *server,
    size_t server_len)
{
    u_char  *p, pair[2 * (NGX_STREAM_QUIC_PT_CID + 1)];

    /* of other versions they may be longer; the length tells them apart */

    p = pair;

    *p++ = (u_char) client_len;
    p = ngx_cpymem(p, client, ngx_min(client_len, NGX_STREAM_QUIC_PT_CID));

    *p++ = (u_char) server_len;
    p = ngx_cpymem(p, server, ngx_min(server_len, NGX_STREAM_QUIC_PT_CID));

    return quic_lb_hash(&flow->listener->worker->key, pair, p - pair);
}


ngx_stream_quic_pt_conn_t *
ngx_stream_quic_pt_conn_find(ngx_stream_quic_pt_flow_t *flow, uint64_t pair)
{
    ngx_uint_t                  i;
    ngx_stream_quic_pt_conn_t  *conn;

    for (i = 0; i < flow->nconns; i++) {
        conn = &flow->conns[i];

        if (conn->pair == pair && conn->leg) {
            return conn;
        }
    }

    return NULL;
}


ngx_stream_quic_pt_conn_t *
ngx_stream_quic_pt_conn_add(ngx_stream_quic_pt_flow_t *flow, uint64_t pair,
    ngx_stream_quic_pt_leg_t *leg)
{
    ngx_stream_quic_pt_conn_t  *conn;

    conn = ngx_stream_quic_pt_conn_place(flow);

    ngx_memzero(conn, sizeof(ngx_stream_quic_pt_conn_t));

    conn->pair = pair;
    conn->leg = leg;
    conn->number = ++flow->conns_made;

    return conn;
}


static ngx_stream_quic_pt_conn_t *
ngx_stream_quic_pt_conn_place(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_uint_t                  i;
    ngx_stream_quic_pt_conn_t  *conn;

    for (i = 0; i < flow->nconns; i++) {
        if (flow->conns[i].leg == NULL) {
            return &flow->conns[i];
        }
    }

    if (flow->nconns < flow->conns_size
        || ngx_stream_quic_pt_conn_grow(flow) == NGX_OK)
    {
        return &flow->conns[flow->nconns++];
    }

    conn = ngx_stream_quic_pt_conn_oldest(flow, 0);

    if (!conn->issued) {

        /* a server that echoes it is not seen to do so any more */

        flow->forgot = 1;
        flow->forgot_at = ngx_current_msec;
    }

    return conn;
}


/* forged packets do not take what all flows of the worker share */

static ngx_int_t
ngx_stream_quic_pt_conn_grow(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_uint_t                    size;
    ngx_stream_quic_pt_conn_t    *conns;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;
    size = 2 * flow->conns_size;

    if (flow->nproven == 0
        || size > NGX_STREAM_QUIC_PT_CONNS_MAX
        || worker->nconns + size > worker->conns_limit)
    {
        return NGX_DECLINED;
    }

    conns = ngx_alloc(size * sizeof(ngx_stream_quic_pt_conn_t), worker->log);
    if (conns == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(conns, flow->conns,
               flow->nconns * sizeof(ngx_stream_quic_pt_conn_t));

    if (flow->conns != flow->first_conns) {
        worker->nconns -= flow->conns_size;
        ngx_free(flow->conns);
    }

    worker->nconns += size;
    flow->conns = conns;
    flow->conns_size = size;

    return NGX_OK;
}


/* there is always one that is not proven if all places are taken */

static ngx_stream_quic_pt_conn_t *
ngx_stream_quic_pt_conn_oldest(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t proven)
{
    ngx_uint_t                  i;
    ngx_stream_quic_pt_conn_t  *conn, *oldest;

    oldest = NULL;

    for (i = 0; i < flow->nconns; i++) {
        conn = &flow->conns[i];

        if (conn->leg
            && conn->proven == proven
            && (oldest == NULL || conn->number < oldest->number))
        {
            oldest = conn;
        }
    }

    return oldest;
}


void
ngx_stream_quic_pt_conn_prove(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_conn_t *conn)
{
    ngx_uint_t  n;

    conn->number = ++flow->conns_made;

    if (conn->proven) {
        return;
    }

    n = conn - flow->conns;

    if (flow->nproven == flow->conns_size - flow->conns_size / 4
        && ngx_stream_quic_pt_conn_grow(flow) != NGX_OK)
    {
        ngx_stream_quic_pt_conn_oldest(flow, 1)->leg = NULL;
        flow->nproven--;
    }

    flow->conns[n].proven = 1;
    flow->nproven++;
}


void
ngx_stream_quic_pt_conn_forget(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_leg_t *leg, ngx_stream_quic_pt_leg_t *successor)
{
    ngx_uint_t                  i;
    ngx_stream_quic_pt_conn_t  *conn;

    for (i = 0; i < flow->nconns; i++) {
        conn = &flow->conns[i];

        if (conn->leg != leg) {
            continue;
        }

        conn->leg = successor;

        if (successor == NULL) {
            flow->nproven -= conn->proven;
        }
    }
}


void
ngx_stream_quic_pt_conn_free(ngx_stream_quic_pt_flow_t *flow)
{
    if (flow->conns != flow->first_conns) {
        flow->listener->worker->nconns -= flow->conns_size;
        ngx_free(flow->conns);
    }

    ngx_stream_quic_pt_conn_init(flow);
}
