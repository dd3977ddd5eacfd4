
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Half-open connections: those of clients whose handshake is not done.  Whoever
 * sends an Initial makes one, from a forged address, too, so they have a budget
 * of their own, and make room for one another: first those whose client has not
 * proved its address, oldest first.  Established connections never do.
 *
 * Two queues in the worker, by whether a token has proved the address.  Entered
 * when the session is there, removed by the end of the handshake or of the
 * connection.  Bound: worker->half_open_limit for both.
 */


#include "ngx_stream_quic_relay_module.h"


/* nginx's connections that a relay takes: the session's, the upstream's */
#define NGX_STREAM_QUIC_RELAY_CONNECTIONS_EACH  2


static ngx_int_t ngx_stream_quic_relay_half_open_evict(
    ngx_stream_quic_relay_worker_t *worker, ngx_uint_t validated);


void
ngx_stream_quic_relay_half_open_init(ngx_stream_quic_relay_worker_t *worker,
    ngx_uint_t connections)
{
    ngx_queue_init(&worker->unproved);
    ngx_queue_init(&worker->proved);

    /* half of all may be in half-open connections, some are for others */

    worker->half_open_limit = ngx_max(connections / 4, 1);
    worker->reserve = connections / 16;
}


ngx_int_t
ngx_stream_quic_relay_half_open_room(ngx_stream_quic_relay_worker_t *worker,
    ngx_uint_t validated)
{
    /* ngx_get_connection() would log an alert for each datagram */

    while (worker->nhalf_open >= worker->half_open_limit
           || ngx_cycle->free_connection_n
              < worker->reserve + NGX_STREAM_QUIC_RELAY_CONNECTIONS_EACH)
    {
        if (ngx_stream_quic_relay_half_open_evict(worker, validated)
            != NGX_OK)
        {
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_half_open_evict(ngx_stream_quic_relay_worker_t *worker,
    ngx_uint_t validated)
{
    ngx_queue_t              *q;
    ngx_stream_quic_relay_t  *relay;

    if (!ngx_queue_empty(&worker->unproved)) {
        q = ngx_queue_head(&worker->unproved);

    } else if (validated && !ngx_queue_empty(&worker->proved)) {
        q = ngx_queue_head(&worker->proved);

    } else {
        return NGX_DECLINED;
    }

    relay = ngx_queue_data(q, ngx_stream_quic_relay_t, queue);

    ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_EVICTED, 1);
    ngx_stream_quic_relay_session_evict(relay);

    return NGX_OK;
}


void
ngx_stream_quic_relay_half_open_add(ngx_stream_quic_relay_t *relay,
    ngx_uint_t validated)
{
    ngx_stream_quic_relay_worker_t  *worker;

    worker = relay->worker;

    ngx_queue_insert_tail(validated ? &worker->proved : &worker->unproved,
                          &relay->queue);
    worker->nhalf_open++;
    relay->half_open = 1;
}


void
ngx_stream_quic_relay_half_open_remove(ngx_stream_quic_relay_t *relay)
{
    if (!relay->half_open) {
        return;
    }

    ngx_queue_remove(&relay->queue);
    relay->worker->nhalf_open--;
    relay->half_open = 0;
}
