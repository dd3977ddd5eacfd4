
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What ngtcp2 tells and asks for.
 */


#include "ngx_stream_quic_relay_module.h"
#include "quic_lb_frame.h"

#include <ngx_stream_ssl_module.h>
#include <openssl/rand.h>


static int ngx_stream_quic_relay_cb_decrypt(uint8_t *dest,
    const ngtcp2_crypto_aead *aead, const ngtcp2_crypto_aead_ctx *aead_ctx,
    const uint8_t *ciphertext, size_t ciphertextlen, const uint8_t *nonce,
    size_t noncelen, const uint8_t *aad, size_t aadlen);
static int ngx_stream_quic_relay_cb_handshaked(ngtcp2_conn *qc, void *data);
static ngx_int_t ngx_stream_quic_relay_verify_client(
    ngx_stream_quic_relay_conn_t *conn);
static int ngx_stream_quic_relay_cb_stream_open(ngtcp2_conn *qc, int64_t id,
    void *data);
static int ngx_stream_quic_relay_cb_stream_data(ngtcp2_conn *qc,
    uint32_t flags, int64_t id, uint64_t offset, const uint8_t *data,
    size_t len, void *user, void *stream);
static int ngx_stream_quic_relay_cb_stream_acked(ngtcp2_conn *qc, int64_t id,
    uint64_t offset, uint64_t len, void *data, void *stream);
static int ngx_stream_quic_relay_cb_stream_close(ngtcp2_conn *qc,
    uint32_t flags, int64_t id, uint64_t code, void *data, void *stream);
static int ngx_stream_quic_relay_cb_stream_reset(ngtcp2_conn *qc, int64_t id,
    uint64_t size, uint64_t code, void *data, void *stream);
static int ngx_stream_quic_relay_cb_stream_credit(ngtcp2_conn *qc, int64_t id,
    uint64_t max, void *data, void *stream);
static int ngx_stream_quic_relay_cb_streams_bidi(ngtcp2_conn *qc, uint64_t max,
    void *data);
static int ngx_stream_quic_relay_cb_streams_uni(ngtcp2_conn *qc, uint64_t max,
    void *data);
static int ngx_stream_quic_relay_cb_datagram(ngtcp2_conn *qc, uint32_t flags,
    const uint8_t *dg, size_t len, void *data);
static void ngx_stream_quic_relay_cb_rand(uint8_t *dest, size_t len,
    const ngtcp2_rand_ctx *ctx);
static int ngx_stream_quic_relay_cb_new_cid(ngtcp2_conn *qc, ngtcp2_cid *cid,
    ngtcp2_stateless_reset_token *token, size_t len, void *data);
static int ngx_stream_quic_relay_cb_remove_cid(ngtcp2_conn *qc,
    const ngtcp2_cid *cid, void *data);


static const ngtcp2_callbacks  ngx_stream_quic_relay_callbacks = {

    /* TLS and keys: those of ngtcp2 */

    .client_initial = ngtcp2_crypto_client_initial_cb,
    .recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
    .recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
    .recv_retry = ngtcp2_crypto_recv_retry_cb,
    .encrypt = ngtcp2_crypto_encrypt_cb,
    .hp_mask = ngtcp2_crypto_hp_mask_cb,
    .update_key = ngtcp2_crypto_update_key_cb,
    .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
    .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
    .get_path_challenge_data2 = ngtcp2_crypto_get_path_challenge_data2_cb,
    .version_negotiation = ngtcp2_crypto_version_negotiation_cb,

    /* ours */

    .decrypt = ngx_stream_quic_relay_cb_decrypt,
    .handshake_completed = ngx_stream_quic_relay_cb_handshaked,
    .stream_open = ngx_stream_quic_relay_cb_stream_open,
    .recv_stream_data = ngx_stream_quic_relay_cb_stream_data,
    .acked_stream_data_offset = ngx_stream_quic_relay_cb_stream_acked,
    .stream_close = ngx_stream_quic_relay_cb_stream_close,
    .stream_reset = ngx_stream_quic_relay_cb_stream_reset,
    .extend_max_stream_data = ngx_stream_quic_relay_cb_stream_credit,
    .extend_max_local_streams_bidi = ngx_stream_quic_relay_cb_streams_bidi,
    .extend_max_local_streams_uni = ngx_stream_quic_relay_cb_streams_uni,
    .recv_datagram = ngx_stream_quic_relay_cb_datagram,
    .rand = ngx_stream_quic_relay_cb_rand,
    .get_new_connection_id2 = ngx_stream_quic_relay_cb_new_cid,
    .remove_connection_id = ngx_stream_quic_relay_cb_remove_cid
};


const ngtcp2_callbacks *
ngx_stream_quic_relay_conn_callbacks(void)
{
    return &ngx_stream_quic_relay_callbacks;
}


void
ngx_stream_quic_relay_stops_begin(ngx_stream_quic_relay_conn_t *conn)
{
    conn->relay->worker->nstops = 0;
}


int
ngx_stream_quic_relay_stops_apply(ngx_stream_quic_relay_conn_t *conn)
{
    ngx_uint_t                       i;
    ngx_stream_quic_relay_worker_t  *worker;

    worker = conn->relay->worker;

    for (i = 0; i < worker->nstops; i++) {

        if (ngx_stream_quic_relay_stream_stop(conn, worker->stops[i].id,
                                              worker->stops[i].code)
            != 0)
        {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }
    }

    return 0;
}


/*
 * ngtcp2 gives no connection here, but it decrypts only what it was just given
 * to read.
 */

static int
ngx_stream_quic_relay_cb_decrypt(uint8_t *dest, const ngtcp2_crypto_aead *aead,
    const ngtcp2_crypto_aead_ctx *aead_ctx, const uint8_t *ciphertext,
    size_t ciphertextlen, const uint8_t *nonce, size_t noncelen,
    const uint8_t *aad, size_t aadlen)
{
    int                                 rc;
    const uint8_t                      *pos, *end;
    quic_lb_frame_t                     frame;
    ngx_stream_quic_relay_worker_t     *worker;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    rc = ngtcp2_crypto_decrypt_cb(dest, aead, aead_ctx, ciphertext,
                                  ciphertextlen, nonce, noncelen, aad, aadlen);

    /* RFC 9000, 12.4: STOP_SENDING is in 1-RTT packets (and in 0-RTT) */

    if (rc != 0 || aadlen == 0 || aad[0] & 0x80) {
        return rc;
    }

    rmcf = ngx_stream_cycle_get_module_main_conf(ngx_cycle,
                                                ngx_stream_quic_relay_module);
    worker = rmcf->worker;

    if (worker->reading == NULL) {
        return rc;
    }

    pos = dest;
    end = dest + ciphertextlen - aead->max_overhead;

    while (pos != NULL && pos < end) {
        pos = quic_lb_frame_read(pos, end, &frame);

        if (pos == NULL || frame.type != QUIC_LB_FRAME_STOP_SENDING) {
            continue;
        }

        if (worker->nstops == NGX_STREAM_QUIC_RELAY_STOPS) {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

        worker->stops[worker->nstops].id = (int64_t) frame.stream_id;
        worker->stops[worker->nstops].code = frame.error_code;
        worker->nstops++;
    }

    return rc;
}


static int
ngx_stream_quic_relay_cb_handshaked(ngtcp2_conn *qc, void *data)
{
    ngx_stream_quic_relay_t       *relay;
    ngx_stream_quic_relay_conn_t  *conn = data;

    relay = conn->relay;

    if (conn->server
        && ngx_stream_quic_relay_verify_client(conn) != NGX_OK)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    conn->handshaked = 1;

    if (conn->server) {
        ngx_stream_quic_relay_half_open_remove(relay);
    }

    if (conn->server
        && relay->conf->retry.mode != NGX_STREAM_QUIC_RELAY_RETRY_OFF
        && ngx_stream_quic_relay_token_new(conn) != NGX_OK)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    if (!conn->server) {
        ngx_stream_quic_relay_upstream_answered(relay);
    }

    if (relay->client.handshaked && relay->upstream.handshaked) {
        relay->relaying = 1;
        ngx_stream_quic_relay_streams_start(relay);
    }

    return 0;
}


/* what the ssl module does after its own handshakes */

static ngx_int_t
ngx_stream_quic_relay_verify_client(ngx_stream_quic_relay_conn_t *conn)
{
    long                        rc;
    X509                       *cert;
    ngx_stream_session_t       *s;
    ngx_stream_ssl_srv_conf_t  *sscf;

    s = conn->relay->session;
    sscf = ngx_stream_get_module_srv_conf(s, ngx_stream_ssl_module);

    if (!sscf->verify) {
        return NGX_OK;
    }

    rc = SSL_get_verify_result(conn->ssl);

    if (rc != X509_V_OK
        && (sscf->verify != 3 || !ngx_ssl_verify_error_optional(rc)))
    {
        ngx_log_error(NGX_LOG_INFO, conn->log, 0,
                      "client SSL certificate verify error: (%l:%s)",
                      rc, X509_verify_cert_error_string(rc));
        ngtcp2_conn_set_tls_alert(conn->qc, SSL_AD_BAD_CERTIFICATE);
        goto failed;
    }

    if (sscf->verify != 1) {
        return NGX_OK;
    }

    cert = SSL_get1_peer_certificate(conn->ssl);

    if (cert == NULL) {
        ngx_log_error(NGX_LOG_INFO, conn->log, 0,
                      "client sent no required SSL certificate");
        ngtcp2_conn_set_tls_alert(conn->qc, SSL_AD_CERTIFICATE_REQUIRED);
        goto failed;
    }

    X509_free(cert);

    return NGX_OK;

failed:

    ngx_ssl_remove_cached_session(s->connection->ssl->session_ctx,
                                  SSL_get0_session(conn->ssl));

    return NGX_ERROR;
}


static int
ngx_stream_quic_relay_cb_stream_open(ngtcp2_conn *qc, int64_t id, void *data)
{
    return ngx_stream_quic_relay_stream_open(data, id);
}


static int
ngx_stream_quic_relay_cb_stream_data(ngtcp2_conn *qc, uint32_t flags,
    int64_t id, uint64_t offset, const uint8_t *data, size_t len, void *user,
    void *stream)
{
    return ngx_stream_quic_relay_stream_recv(user, flags, id, data, len);
}


static int
ngx_stream_quic_relay_cb_stream_acked(ngtcp2_conn *qc, int64_t id,
    uint64_t offset, uint64_t len, void *data, void *stream)
{
    return ngx_stream_quic_relay_stream_acked(data, id, offset, len);
}


static int
ngx_stream_quic_relay_cb_stream_close(ngtcp2_conn *qc, uint32_t flags,
    int64_t id, uint64_t code, void *data, void *stream)
{
    return ngx_stream_quic_relay_stream_close(data, id);
}


static int
ngx_stream_quic_relay_cb_stream_reset(ngtcp2_conn *qc, int64_t id,
    uint64_t size, uint64_t code, void *data, void *stream)
{
    return ngx_stream_quic_relay_stream_reset(data, id, code);
}


static int
ngx_stream_quic_relay_cb_stream_credit(ngtcp2_conn *qc, int64_t id,
    uint64_t max, void *data, void *stream)
{
    return ngx_stream_quic_relay_stream_credit(data, id);
}


static int
ngx_stream_quic_relay_cb_streams_bidi(ngtcp2_conn *qc, uint64_t max,
    void *data)
{
    return ngx_stream_quic_relay_streams_credit(data, 0);
}


static int
ngx_stream_quic_relay_cb_streams_uni(ngtcp2_conn *qc, uint64_t max,
    void *data)
{
    return ngx_stream_quic_relay_streams_credit(data, 1);
}


static int
ngx_stream_quic_relay_cb_datagram(ngtcp2_conn *qc, uint32_t flags,
    const uint8_t *dg, size_t len, void *data)
{
    return ngx_stream_quic_relay_datagram_recv(data, dg, len);
}


/* not for secrets: ngtcp2's is for probing and the like */

static void
ngx_stream_quic_relay_cb_rand(uint8_t *dest, size_t len,
    const ngtcp2_rand_ctx *ctx)
{
    size_t  i;

    if (RAND_bytes(dest, (int) len) == 1) {
        return;
    }

    for (i = 0; i < len; i++) {
        dest[i] = (uint8_t) ngx_random();
    }
}


/* IDs toward the upstream are not looked up: its socket tells the connection */

static int
ngx_stream_quic_relay_cb_new_cid(ngtcp2_conn *qc, ngtcp2_cid *cid,
    ngtcp2_stateless_reset_token *token, size_t len, void *data)
{
    ngx_stream_quic_relay_conn_t    *conn = data;
    ngx_stream_quic_relay_worker_t  *worker;

    worker = conn->relay->worker;

    if (!conn->server) {
        cid->datalen = len;

        if (RAND_bytes(cid->data, (int) len) != 1
            || RAND_bytes(token->data, sizeof(token->data)) != 1)
        {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

        return 0;
    }

    if (ngx_stream_quic_relay_ids_mint(worker, conn->relay->ids, worker->slot,
                                       cid)
        != NGX_OK
        || ngx_stream_quic_relay_ids_token(worker, cid, token->data) != NGX_OK
        || ngx_stream_quic_relay_input_add_cid(conn, cid) != NGX_OK)
    {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }

    return 0;
}


static int
ngx_stream_quic_relay_cb_remove_cid(ngtcp2_conn *qc, const ngtcp2_cid *cid,
    void *data)
{
    ngx_stream_quic_relay_input_remove_cid(data, cid);

    return 0;
}
