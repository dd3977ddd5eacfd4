
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include "ngx_stream_quic_relay_buffer.h"


/* octets: a short stream takes little, a long one few chunks */
#define NGX_STREAM_QUIC_RELAY_CHUNK_MIN  1024
#define NGX_STREAM_QUIC_RELAY_CHUNK_MAX  16384


struct ngx_stream_quic_relay_chunk_s {
    ngx_stream_quic_relay_chunk_t  *next;
    size_t                          size;
    size_t                          used;
    u_char                          data[];
};


static ngx_stream_quic_relay_chunk_t *ngx_stream_quic_relay_chunk_add(
    ngx_stream_quic_relay_buffer_t *b, ngx_log_t *log);


ngx_int_t
ngx_stream_quic_relay_buffer_append(ngx_stream_quic_relay_buffer_t *b,
    const u_char *data, size_t len, ngx_log_t *log)
{
    size_t                          n;
    ngx_stream_quic_relay_chunk_t  *chunk;

    while (len) {
        chunk = b->last;

        if (chunk == NULL || chunk->used == chunk->size) {
            chunk = ngx_stream_quic_relay_chunk_add(b, log);
            if (chunk == NULL) {
                return NGX_ERROR;
            }
        }

        n = ngx_min(len, chunk->size - chunk->used);
        ngx_memcpy(chunk->data + chunk->used, data, n);

        chunk->used += n;
        b->size += n;
        b->unsent += n;
        data += n;
        len -= n;
    }

    return NGX_OK;
}


static ngx_stream_quic_relay_chunk_t *
ngx_stream_quic_relay_chunk_add(ngx_stream_quic_relay_buffer_t *b,
    ngx_log_t *log)
{
    size_t                          size;
    ngx_stream_quic_relay_chunk_t  *chunk;

    size = ngx_max(b->size, NGX_STREAM_QUIC_RELAY_CHUNK_MIN);
    size = ngx_min(size, NGX_STREAM_QUIC_RELAY_CHUNK_MAX);

    chunk = ngx_alloc(sizeof(ngx_stream_quic_relay_chunk_t) + size, log);
    if (chunk == NULL) {
        return NULL;
    }

    chunk->next = NULL;
    chunk->size = size;
    chunk->used = 0;

    if (b->last) {
        b->last->next = chunk;

    } else {
        b->first = chunk;
        b->acked = 0;
    }

    b->last = chunk;

    if (b->next == NULL) {
        b->next = chunk;
        b->next_pos = 0;
    }

    return chunk;
}


ngx_uint_t
ngx_stream_quic_relay_buffer_unsent(ngx_stream_quic_relay_buffer_t *b,
    ngtcp2_vec *vec, ngx_uint_t n, size_t *len)
{
    size_t                          pos, max;
    ngx_uint_t                      i;
    ngx_stream_quic_relay_chunk_t  *chunk;

    i = 0;
    max = *len;
    *len = 0;
    pos = b->next_pos;

    for (chunk = b->next; chunk && i < n && *len < max; chunk = chunk->next) {

        if (pos < chunk->used) {
            vec[i].base = chunk->data + pos;
            vec[i].len = chunk->used - pos;
            *len += vec[i].len;
            i++;
        }

        pos = 0;
    }

    return i;
}


/* a chunk that is sent but has room stays the next one */

void
ngx_stream_quic_relay_buffer_sent(ngx_stream_quic_relay_buffer_t *b,
    size_t len)
{
    size_t  n;

    b->unsent -= len;

    while (b->next) {
        n = ngx_min(len, b->next->used - b->next_pos);
        b->next_pos += n;
        len -= n;

        if (b->next_pos < b->next->size) {
            return;
        }

        b->next = b->next->next;
        b->next_pos = 0;
    }
}


void
ngx_stream_quic_relay_buffer_acked(ngx_stream_quic_relay_buffer_t *b,
    size_t len)
{
    size_t                          n;
    ngx_stream_quic_relay_chunk_t  *chunk;

    b->size -= len;

    while ((chunk = b->first) != NULL) {
        n = ngx_min(len, chunk->used - b->acked);
        b->acked += n;
        len -= n;

        /* the last one goes when all is acknowledged: a stream may be idle */

        if (b->acked < chunk->used || (chunk->next && chunk == b->next)) {
            return;
        }

        if (chunk == b->next) {
            b->next = NULL;
        }

        b->first = chunk->next;
        b->acked = 0;

        if (b->first == NULL) {
            b->last = NULL;
        }

        ngx_free(chunk);
    }
}


void
ngx_stream_quic_relay_buffer_free(ngx_stream_quic_relay_buffer_t *b)
{
    ngx_stream_quic_relay_chunk_t  *chunk;

    while ((chunk = b->first) != NULL) {
        b->first = chunk->next;
        ngx_free(chunk);
    }

    ngx_memzero(b, sizeof(ngx_stream_quic_relay_buffer_t));
}
