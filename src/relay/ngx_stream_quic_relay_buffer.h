
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Octets of one direction of a stream: appended as they arrive, referenced by
 * ngtcp2 until they are acknowledged, then freed.  The bound is the stream's
 * flow-control window, which the sender has to obey; beyond it only the unused
 * ends of the first and last chunk are held.
 */


#ifndef _NGX_STREAM_QUIC_RELAY_BUFFER_H_INCLUDED_
#define _NGX_STREAM_QUIC_RELAY_BUFFER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <ngtcp2/ngtcp2.h>


typedef struct ngx_stream_quic_relay_chunk_s  ngx_stream_quic_relay_chunk_t;

typedef struct {
    ngx_stream_quic_relay_chunk_t  *first;
    ngx_stream_quic_relay_chunk_t  *last;

    /* where the octets begin that were not sent yet */
    ngx_stream_quic_relay_chunk_t  *next;
    size_t                          next_pos;

    size_t                          acked;    /* octets, in the first chunk */
    size_t                          size;     /* octets held */
    size_t                          unsent;   /* octets of them */
} ngx_stream_quic_relay_buffer_t;


ngx_int_t ngx_stream_quic_relay_buffer_append(
    ngx_stream_quic_relay_buffer_t *b, const u_char *data, size_t len,
    ngx_log_t *log);

/*
 * What was not sent: at most |n| vectors, and no more than |*len| octets ask
 * for.  Returns their number and sets |*len| to all their octets, which may be
 * more.
 */
ngx_uint_t ngx_stream_quic_relay_buffer_unsent(
    ngx_stream_quic_relay_buffer_t *b, ngtcp2_vec *vec, ngx_uint_t n,
    size_t *len);
void ngx_stream_quic_relay_buffer_sent(ngx_stream_quic_relay_buffer_t *b,
    size_t len);
void ngx_stream_quic_relay_buffer_acked(ngx_stream_quic_relay_buffer_t *b,
    size_t len);
void ngx_stream_quic_relay_buffer_free(ngx_stream_quic_relay_buffer_t *b);


#endif /* _NGX_STREAM_QUIC_RELAY_BUFFER_H_INCLUDED_ */
