
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/* of _handover.c and _waiting.c alone */


#ifndef _NGX_STREAM_QUIC_RELAY_HANDOVER_H_INCLUDED_
#define _NGX_STREAM_QUIC_RELAY_HANDOVER_H_INCLUDED_


#include "ngx_stream_quic_relay_module.h"


/* octets of a message */
#define NGX_STREAM_QUIC_RELAY_MESSAGE  65536

/* octets of the secret's hash in names */
#define NGX_STREAM_QUIC_RELAY_NAME     16


/* datagrams for one worker, to go in one message */

typedef struct {
    ngx_queue_t                      queue;       /* in handover->waiting */
    ngx_msec_t                       start;       /* of waiting */
    ngx_uint_t                       target;      /* slot of the worker */
    ngx_uint_t                       count;       /* of datagrams */
    size_t                           len;         /* 0: none */
    u_char                           data[NGX_STREAM_QUIC_RELAY_MESSAGE];
} ngx_stream_quic_relay_batch_t;


struct ngx_stream_quic_relay_handover_s {
    ngx_connection_t                *connection;
    ngx_stream_quic_relay_batch_t    out;         /* of this turn */

    ngx_queue_t                      waiting;     /* oldest first */
    ngx_uint_t                       nwaiting;
    ngx_event_t                      retry;

    u_char                           hash[2 * NGX_STREAM_QUIC_RELAY_NAME];
    u_char                           in[NGX_STREAM_QUIC_RELAY_MESSAGE];
};


/*
 * NGX_OK: sent, or answered or counted as lost; NGX_AGAIN: the socket of the
 * worker is full.
 */
ngx_int_t ngx_stream_quic_relay_handover_send(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *batch);

void ngx_stream_quic_relay_waiting_init(
    ngx_stream_quic_relay_worker_t *worker);
void ngx_stream_quic_relay_waiting_free(
    ngx_stream_quic_relay_handover_t *handover);

/* whether any batch waits for the worker of the slot */
ngx_uint_t ngx_stream_quic_relay_waiting_for(
    ngx_stream_quic_relay_handover_t *handover, ngx_uint_t slot);

/* a copy waits; if there are too many it is counted as lost */
void ngx_stream_quic_relay_waiting_add(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *out);


#endif /* _NGX_STREAM_QUIC_RELAY_HANDOVER_H_INCLUDED_ */
