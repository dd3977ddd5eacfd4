
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What is in the datagrams of a connection: its ClientHello, as far as it has
 * come.  The memory for that is the worker's, and is used for one datagram and
 * one ClientHello at a time.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_preread_module.h"


static ngx_int_t ngx_stream_quic_preread_read_datagram(
    ngx_stream_quic_preread_hello_t *hello, ngx_stream_quic_pt_queued_t *dg,
    quic_lb_crypto_t *crypto, uint64_t *expected, ngx_uint_t *initials);


ngx_int_t
ngx_stream_quic_preread_init_process(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_worker_t *worker)
{
    ngx_stream_quic_preread_t            *preread;
    ngx_stream_quic_preread_main_conf_t  *conf;

    conf = ngx_stream_cycle_get_module_main_conf(cycle,
                                              ngx_stream_quic_preread_module);

    if (!conf->used) {
        return NGX_OK;
    }

    preread = ngx_pcalloc(cycle->pool, sizeof(ngx_stream_quic_preread_t));
    if (preread == NULL) {
        return NGX_ERROR;
    }

    preread->payload = ngx_palloc(cycle->pool, NGX_STREAM_QUIC_PT_BUFFER);
    preread->crypto = ngx_palloc(cycle->pool,
                                 quic_lb_crypto_room(QUIC_LB_CRYPTO_MAX));

    if (preread->payload == NULL || preread->crypto == NULL) {
        return NGX_ERROR;
    }

    if (quic_lb_initial_init(&preread->initial) != QUIC_LB_OK) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0,
                      "\"quic_preread\": no AES or SHA-256 in libcrypto");
        return NGX_ERROR;
    }

    ngx_stream_quic_pt_budget_init(&preread->memory, conf->memory);

    if (ngx_stream_quic_preread_phases_init(cycle, preread) != NGX_OK) {
        return NGX_ERROR;
    }

    worker->preread = preread;

    return NGX_OK;
}


void
ngx_stream_quic_preread_exit_process(ngx_stream_quic_pt_worker_t *worker)
{
    if (worker->preread) {
        quic_lb_initial_cleanup(&worker->preread->initial);
    }
}


ngx_int_t
ngx_stream_quic_preread_read(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found)
{
    int                           rc;
    uint64_t                      expected;
    ngx_uint_t                    initials;
    ngx_queue_t                  *q;
    quic_lb_crypto_t              crypto;
    ngx_stream_quic_preread_t    *preread;
    ngx_stream_quic_pt_queued_t  *dg;

    preread = hello->flow->listener->worker->preread;

    (void) quic_lb_crypto_init(&crypto, preread->crypto, QUIC_LB_CRYPTO_MAX);

    expected = 0;
    initials = 0;

    for (q = ngx_queue_head(&hello->datagrams);
         q != ngx_queue_sentinel(&hello->datagrams);
         q = ngx_queue_next(q))
    {
        dg = ngx_queue_data(q, ngx_stream_quic_pt_queued_t, queue);

        if (ngx_stream_quic_preread_read_datagram(hello, dg, &crypto,
                                                  &expected, &initials)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (!hello->opened) {
        return initials ? NGX_ERROR : NGX_AGAIN;
    }

    if (crypto.len == 0) {
        return NGX_AGAIN;
    }

    rc = quic_lb_hello_parse(found, crypto.data, crypto.len);

    if (rc == QUIC_LB_ERR_SHORT) {

        /* the rest may wait for a datagram that is lost */

        return (found->server_name && found->alpn) ? NGX_OK : NGX_AGAIN;
    }

    return (rc == QUIC_LB_OK) ? NGX_OK : NGX_ERROR;
}


/* a packet that does not open may be anybody's, and is passed over */

static ngx_int_t
ngx_stream_quic_preread_read_datagram(ngx_stream_quic_preread_hello_t *hello,
    ngx_stream_quic_pt_queued_t *dg, quic_lb_crypto_t *crypto,
    uint64_t *expected, ngx_uint_t *initials)
{
    const u_char               *data;
    quic_lb_packet_t            pkt;
    quic_lb_initial_walk_t      walk;
    quic_lb_initial_opened_t    opened;
    ngx_stream_quic_preread_t  *preread;

    preread = hello->flow->listener->worker->preread;

    quic_lb_initial_walk(&walk, dg->data, dg->len);

    while (quic_lb_initial_next(&walk, &pkt, &data) == QUIC_LB_OK) {

        (*initials)++;

        if (++hello->packets > NGX_STREAM_QUIC_PREREAD_PACKETS) {
            return NGX_ERROR;
        }

        if (pkt.version != hello->version
            || quic_lb_initial_open(&preread->initial, &hello->keys, &pkt,
                                    data, *expected, &opened,
                                    preread->payload)
               != QUIC_LB_OK)
        {
            continue;
        }

        hello->opened = 1;

        *expected = ngx_max(*expected, opened.number + 1);

        if (quic_lb_crypto_read(crypto, opened.payload, opened.payload_len)
            != QUIC_LB_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_preread_keep(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found)
{
    u_char         *p;
    size_t          len;
    const uint8_t  *alpn, *last;

    if (found->server_name_len) {
        p = ngx_pnalloc(hello->pool, found->server_name_len);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(p, found->server_name, found->server_name_len);

        hello->server_name.data = p;
        hello->server_name.len = found->server_name_len;
        hello->address = found->address;
    }

    if (found->alpn_len == 0) {
        return NGX_OK;
    }

    /* a comma takes the place of each length but the first */

    p = ngx_pnalloc(hello->pool, found->alpn_len - 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    hello->alpn.data = p;
    hello->alpn.len = found->alpn_len - 1;

    alpn = found->alpn;
    last = alpn + found->alpn_len;

    for ( ;; ) {
        len = *alpn++;

        p = ngx_cpymem(p, alpn, len);
        alpn += len;

        if (alpn == last) {
            return NGX_OK;
        }

        *p++ = ',';
    }
}
