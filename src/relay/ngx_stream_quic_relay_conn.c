
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * One QUIC connection of ngtcp2: how it is made, reads, writes and ends.  What
 * ngtcp2 tells by its callbacks is in _callbacks.c.
 *
 * ngtcp2 may not be called again from its callbacks, so writing is posted, and
 * a failure is looked at when ngtcp2 has returned.
 */


#include "ngx_stream_quic_relay_module.h"

#include <ngx_stream_ssl_module.h>
#include <openssl/rand.h>


/* credit of a connection, in windows of a stream: what one round trip takes */
#define NGX_STREAM_QUIC_RELAY_WINDOWS  16


static void ngx_stream_quic_relay_conn_init(
    ngx_stream_quic_relay_conn_t *conn);
static void ngx_stream_quic_relay_conn_settings(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_settings *settings,
    ngx_msec_t timeout);
static void ngx_stream_quic_relay_conn_params(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_transport_params *params,
    const ngtcp2_transport_params *far);
static void ngx_stream_quic_relay_conn_path(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_path *path);
static void ngx_stream_quic_relay_conn_received(
    ngx_stream_quic_relay_conn_t *conn, size_t len);
static void ngx_stream_quic_relay_conn_repeat(
    ngx_stream_quic_relay_conn_t *conn, const ngtcp2_path *path);
static void ngx_stream_quic_relay_conn_posted(ngx_event_t *ev);
static void ngx_stream_quic_relay_conn_write(
    ngx_stream_quic_relay_conn_t *conn);
static ngtcp2_ssize ngx_stream_quic_relay_conn_packet(ngtcp2_conn *qc,
    ngtcp2_path *path, ngtcp2_pkt_info *pi, uint8_t *dest, size_t len,
    ngtcp2_tstamp ts, void *data);
static void ngx_stream_quic_relay_conn_timer(
    ngx_stream_quic_relay_conn_t *conn);
static void ngx_stream_quic_relay_conn_expired(ngx_event_t *ev);
static const char *ngx_stream_quic_relay_conn_ender(
    ngx_stream_quic_relay_conn_t *conn, int rc);
static ngx_uint_t ngx_stream_quic_relay_conn_error(
    ngx_stream_quic_relay_conn_t *conn, int rc);
static void ngx_stream_quic_relay_conn_stop(
    ngx_stream_quic_relay_conn_t *conn);
static void ngx_stream_quic_relay_conn_tell(
    ngx_stream_quic_relay_conn_t *conn);


ngtcp2_tstamp
ngx_stream_quic_relay_now(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (ngtcp2_tstamp) ts.tv_sec * NGTCP2_SECONDS
           + (ngtcp2_tstamp) ts.tv_nsec;
}


ngx_int_t
ngx_stream_quic_relay_conn_accept(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token)
{
    ngtcp2_cid                  scid;
    ngtcp2_path                 path;
    ngtcp2_settings             settings;
    ngtcp2_transport_params     params;
    ngx_stream_quic_relay_t    *relay;
    ngx_stream_ssl_srv_conf_t  *sscf;

    relay = conn->relay;
    conn->server = 1;

    ngx_stream_quic_relay_conn_init(conn);

    sscf = ngx_stream_get_module_srv_conf(relay->session,
                                          ngx_stream_ssl_module);

    ngx_stream_quic_relay_conn_settings(conn, &settings,
                                        sscf->handshake_timeout);
    ngx_stream_quic_relay_conn_params(conn, &params, NULL);

    params.original_dcid = hd->dcid;
    params.original_dcid_present = 1;

    if (token->type == NGTCP2_TOKEN_TYPE_RETRY) {
        params.original_dcid = token->odcid;
        params.retry_scid = hd->dcid;
        params.retry_scid_present = 1;
    }

    if (token->type != NGTCP2_TOKEN_TYPE_UNKNOWN) {
        settings.token = hd->token;
        settings.tokenlen = hd->tokenlen;
        settings.token_type = token->type;
    }

    params.stateless_reset_token_present = 1;

    if (ngx_stream_quic_relay_ids_mint(relay->worker, relay->ids,
                                       relay->worker->slot, &scid)
        != NGX_OK
        || ngx_stream_quic_relay_ids_token(relay->worker, &scid,
                                           params.stateless_reset_token)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_stream_quic_relay_conn_path(conn, &path);

    if (ngtcp2_conn_server_new(&conn->qc, &hd->scid, &scid, &path,
                               hd->version,
                               ngx_stream_quic_relay_conn_callbacks(),
                               &settings, &params, NULL, conn)
        != 0)
    {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_relay_input_add_cid(conn, &hd->dcid) != NGX_OK
        || ngx_stream_quic_relay_input_add_cid(conn, &scid) != NGX_OK
        || ngx_stream_quic_relay_tls_accept(conn) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngtcp2_conn_set_tls_native_handle(conn->qc, conn->ossl);

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_relay_conn_connect(ngx_stream_quic_relay_conn_t *conn)
{
    ngtcp2_cid                dcid, scid;
    ngtcp2_path               path;
    ngtcp2_settings           settings;
    ngtcp2_transport_params   params;
    ngx_stream_quic_relay_t  *relay;

    relay = conn->relay;

    ngx_stream_quic_relay_conn_init(conn);

    ngx_stream_quic_relay_conn_settings(conn, &settings,
                                        relay->conf->connect_timeout);
    ngx_stream_quic_relay_conn_params(conn, &params, &relay->params);

    dcid.datalen = NGTCP2_MAX_CIDLEN;
    scid.datalen = NGX_STREAM_QUIC_RELAY_UPSTREAM_CID;

    if (RAND_bytes(dcid.data, (int) dcid.datalen) != 1
        || RAND_bytes(scid.data, (int) scid.datalen) != 1)
    {
        return NGX_ERROR;
    }

    ngx_stream_quic_relay_conn_path(conn, &path);

    if (ngtcp2_conn_client_new(&conn->qc, &dcid, &scid, &path,
                               NGTCP2_PROTO_VER_V1,
                               ngx_stream_quic_relay_conn_callbacks(),
                               &settings, &params, NULL, conn)
        != 0)
    {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_relay_tls_connect(conn) != NGX_OK) {
        return NGX_ERROR;
    }

    ngtcp2_conn_set_tls_native_handle(conn->qc, conn->ossl);
    ngx_stream_quic_relay_conn_schedule(conn);

    return NGX_OK;
}


static void
ngx_stream_quic_relay_conn_init(ngx_stream_quic_relay_conn_t *conn)
{
    ngtcp2_ccerr_default(&conn->error);
    ngx_str_null(&conn->last);
    conn->late = 0;

    conn->timer.data = conn;
    conn->timer.log = conn->log;
    conn->timer.handler = ngx_stream_quic_relay_conn_expired;

    conn->posted.data = conn;
    conn->posted.log = conn->log;
    conn->posted.handler = ngx_stream_quic_relay_conn_posted;
}


static void
ngx_stream_quic_relay_conn_settings(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_settings *settings, ngx_msec_t timeout)
{
    ngtcp2_settings_default(settings);

    settings->initial_ts = ngx_stream_quic_relay_now();
    settings->handshake_timeout = timeout * NGTCP2_MILLISECONDS;
}


/* |far|: what the other end allows, so that this end may use it */

static void
ngx_stream_quic_relay_conn_params(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_transport_params *params, const ngtcp2_transport_params *far)
{
    ngx_stream_quic_relay_srv_conf_t  *conf;

    conf = conn->relay->conf;

    ngtcp2_transport_params_default(params);

    params->initial_max_stream_data_bidi_local = conf->stream_window;
    params->initial_max_stream_data_bidi_remote = conf->stream_window;
    params->initial_max_stream_data_uni = conf->stream_window;
    params->initial_max_data = NGX_STREAM_QUIC_RELAY_WINDOWS
                               * conf->stream_window;
    params->max_idle_timeout = conf->timeout * NGTCP2_MILLISECONDS;
    params->active_connection_id_limit = 8;

    if (far) {
        params->initial_max_streams_bidi =
                      ngx_min(far->initial_max_streams_bidi, conf->max_streams);
        params->initial_max_streams_uni =
                       ngx_min(far->initial_max_streams_uni, conf->max_streams);
        params->max_datagram_frame_size = far->max_datagram_frame_size;
    }
}


static void
ngx_stream_quic_relay_conn_path(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_path *path)
{
    path->local.addr = &conn->local.sockaddr;
    path->local.addrlen = conn->socklen;
    path->remote.addr = &conn->remote.sockaddr;
    path->remote.addrlen = conn->socklen;
    path->user_data = NULL;
}


/* octets of UDP payload, as nginx counts for its own UDP proxy */

static void
ngx_stream_quic_relay_conn_received(ngx_stream_quic_relay_conn_t *conn,
    size_t len)
{
    ngx_stream_session_t  *s;

    s = conn->relay->session;

    if (conn->server) {
        s->received += len;

    } else if (s->upstream && s->upstream->state) {
        s->upstream->state->bytes_received += len;
    }
}


void
ngx_stream_quic_relay_conn_read(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_input_t *in)
{
    int                              rc;
    ngx_stream_quic_relay_worker_t  *worker;

    ngx_stream_quic_relay_conn_received(conn, in->len);

    if (conn->closed || conn->qc == NULL) {
        ngx_stream_quic_relay_conn_repeat(conn, &in->path);
        return;
    }

    worker = conn->relay->worker;

    /* an empty queue takes longer to clear than to look at */

    if (ERR_peek_error()) {
        ERR_clear_error();
    }

    conn->busy = 1;
    worker->reading = conn;
    ngx_stream_quic_relay_stops_begin(conn);

    rc = ngtcp2_conn_read_pkt(conn->qc, &in->path, &in->pi, in->data,
                              in->len, ngx_stream_quic_relay_now());

    worker->reading = NULL;

    if (rc == 0) {
        rc = ngx_stream_quic_relay_stops_apply(conn);
    }

    conn->busy = 0;

    if (rc != 0) {
        ngx_stream_quic_relay_conn_failed(conn, rc);
        return;
    }

    ngx_stream_quic_relay_conn_schedule(conn);
}


/* RFC 9000, 10.2.1: to the first, second, fourth datagram, and so on */

static void
ngx_stream_quic_relay_conn_repeat(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_path *path)
{
    ngtcp2_pkt_info  pi;

    if (conn->last.len == 0) {
        return;
    }

    pi.ecn = NGTCP2_ECN_NOT_ECT;

    conn->late++;

    if ((conn->late & (conn->late - 1)) == 0) {
        ngx_stream_quic_relay_udp_send(conn, path, &pi, conn->last.data,
                                       conn->last.len, conn->last.len);
    }
}


void
ngx_stream_quic_relay_conn_schedule(ngx_stream_quic_relay_conn_t *conn)
{
    if (conn->qc && !conn->closed) {
        ngx_post_event(&conn->posted, &ngx_posted_events);
    }
}


static void
ngx_stream_quic_relay_conn_posted(ngx_event_t *ev)
{
    ngx_stream_quic_relay_conn_write(ev->data);
}


/* as much as the path takes now; what pacing holds back waits for the timer */

static void
ngx_stream_quic_relay_conn_write(ngx_stream_quic_relay_conn_t *conn)
{
    u_char               *out;
    size_t                segment, quantum, sent, size;
    ngtcp2_ssize          n;
    ngtcp2_tstamp         now;
    ngtcp2_pkt_info       pi;
    ngtcp2_path_storage   ps;

    if (conn->closed || conn->qc == NULL) {
        return;
    }

    ERR_clear_error();

    out = conn->relay->worker->out;
    now = ngx_stream_quic_relay_now();
    quantum = ngtcp2_conn_get_send_quantum(conn->qc);

    for (sent = 0; sent < quantum; sent += (size_t) n) {

        size = ngtcp2_conn_get_max_tx_udp_payload_size(conn->qc);
        size = ngx_max(size, ngx_min(quantum - sent,
                                     NGX_STREAM_QUIC_RELAY_TRAIN));

        ngtcp2_path_storage_zero(&ps);

        conn->busy = 1;
        n = ngtcp2_conn_write_aggregate_pkt2(conn->qc, &ps.path, &pi, out,
                                             size, &segment,
                                             ngx_stream_quic_relay_conn_packet,
                                             conn->relay->worker->segments,
                                             now);
        conn->busy = 0;

        if (n < 0) {
            ngx_stream_quic_relay_conn_failed(conn, (int) n);
            return;
        }

        if (n == 0) {
            break;
        }

        ngx_stream_quic_relay_udp_send(conn, &ps.path, &pi, out, (size_t) n,
                                       segment);
    }

    ngtcp2_conn_update_pkt_tx_time(conn->qc, now);
    ngx_stream_quic_relay_conn_timer(conn);
}


static ngtcp2_ssize
ngx_stream_quic_relay_conn_packet(ngtcp2_conn *qc, ngtcp2_path *path,
    ngtcp2_pkt_info *pi, uint8_t *dest, size_t len, ngtcp2_tstamp ts,
    void *data)
{
    ngtcp2_ssize                   n;
    ngx_stream_quic_relay_conn_t  *conn = data;

    if (conn->handshaked) {
        n = ngx_stream_quic_relay_datagrams_write(conn, path, pi, dest, len,
                                                  ts);
        if (n != 0) {
            return n;
        }
    }

    return ngx_stream_quic_relay_streams_write(conn, path, pi, dest, len, ts);
}


/* rounded up: an early one would find nothing to do */

static void
ngx_stream_quic_relay_conn_timer(ngx_stream_quic_relay_conn_t *conn)
{
    ngx_msec_t     timer;
    ngtcp2_tstamp  now, expiry;

    expiry = ngtcp2_conn_get_expiry(conn->qc);

    if (expiry == UINT64_MAX) {
        if (conn->timer.timer_set) {
            ngx_del_timer(&conn->timer);
        }

        return;
    }

    now = ngx_stream_quic_relay_now();
    timer = 1;

    if (expiry > now) {
        timer = (ngx_msec_t) ((expiry - now + NGTCP2_MILLISECONDS - 1)
                              / NGTCP2_MILLISECONDS);
    }

    ngx_add_timer(&conn->timer, timer);
}


static void
ngx_stream_quic_relay_conn_expired(ngx_event_t *ev)
{
    int                            rc;
    ngx_stream_quic_relay_conn_t  *conn = ev->data;

    if (conn->closed) {
        return;
    }

    conn->busy = 1;
    rc = ngtcp2_conn_handle_expiry(conn->qc, ngx_stream_quic_relay_now());
    conn->busy = 0;

    if (rc != 0) {
        ngx_stream_quic_relay_conn_failed(conn, rc);
        return;
    }

    ngx_stream_quic_relay_conn_write(conn);
}


void
ngx_stream_quic_relay_conn_resume(ngx_stream_quic_relay_conn_t *conn)
{
    int                             rc;
    ngtcp2_transport_params         params;
    const ngtcp2_transport_params  *local, *remote;

    /* within the ClientHello callback: it looks at the answer by itself */

    if (conn->busy || conn->closed || conn->qc == NULL) {
        return;
    }

    if (conn->relay->answered) {

        remote = ngtcp2_conn_get_remote_transport_params(conn->peer->qc);

        ngx_stream_quic_relay_conn_params(conn, &params, remote);

        local = ngtcp2_conn_get_local_transport_params(conn->qc);

        params.original_dcid = local->original_dcid;
        params.original_dcid_present = local->original_dcid_present;
        params.retry_scid = local->retry_scid;
        params.retry_scid_present = local->retry_scid_present;
        params.stateless_reset_token_present =
                                         local->stateless_reset_token_present;

        ngx_memcpy(params.stateless_reset_token, local->stateless_reset_token,
                   NGTCP2_STATELESS_RESET_TOKENLEN);

        if (ngx_stream_quic_relay_preferred_offer(conn, &params) != NGX_OK) {
            rc = NGTCP2_ERR_INTERNAL;

        } else {
            rc = ngtcp2_conn_set_local_transport_params(conn->qc, &params);
        }

        if (rc != 0) {
            ngx_stream_quic_relay_conn_failed(conn, rc);
            return;
        }
    }

    ERR_clear_error();

    conn->busy = 1;
    rc = ngtcp2_conn_continue_handshake(conn->qc, ngx_stream_quic_relay_now());
    conn->busy = 0;

    if (rc != 0) {
        ngx_stream_quic_relay_conn_failed(conn, rc);
        return;
    }

    ngx_stream_quic_relay_conn_schedule(conn);
}


void
ngx_stream_quic_relay_conn_close(ngx_stream_quic_relay_conn_t *conn)
{
    u_char               *out;
    ngtcp2_ssize          n;
    ngtcp2_pkt_info       pi;
    ngtcp2_path_storage   ps;

    /* within its callbacks it cannot be: then it is when the relay is freed */

    if (conn->closed || conn->busy || conn->qc == NULL) {
        return;
    }

    out = conn->relay->worker->out;

    ngtcp2_path_storage_zero(&ps);
    pi.ecn = NGTCP2_ECN_NOT_ECT;

    n = ngtcp2_conn_write_connection_close(conn->qc, &ps.path, &pi, out,
                                           NGX_STREAM_QUIC_RELAY_BUFFER,
                                           &conn->error,
                                           ngx_stream_quic_relay_now());
    if (n > 0) {
        ngx_stream_quic_relay_udp_send(conn, &ps.path, &pi, out, (size_t) n,
                                       (size_t) n);

        conn->last.data = ngx_pnalloc(conn->relay->pool, (size_t) n);

        if (conn->last.data) {
            conn->last.len = (size_t) n;
            ngx_memcpy(conn->last.data, out, (size_t) n);
        }
    }

    ngx_stream_quic_relay_conn_stop(conn);
}


ngx_msec_t
ngx_stream_quic_relay_conn_closing(ngx_stream_quic_relay_conn_t *conn)
{
    if (conn->qc == NULL || conn->last.len == 0) {
        return 0;
    }

    /* RFC 9000, 10.2 */

    return (ngx_msec_t) (3 * ngtcp2_conn_get_pto(conn->qc)
                         / NGTCP2_MILLISECONDS) + 1;
}


static void
ngx_stream_quic_relay_conn_stop(ngx_stream_quic_relay_conn_t *conn)
{
    conn->closed = 1;

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    if (conn->posted.posted) {
        ngx_delete_posted_event(&conn->posted);
    }
}


void
ngx_stream_quic_relay_conn_failed(ngx_stream_quic_relay_conn_t *conn, int rc)
{
    ngx_uint_t                speak;
    ngx_stream_quic_relay_t  *relay;

    /* nginx would take it for its own, and raise an alert */

    ERR_clear_error();

    if (conn->closed) {
        return;
    }

    relay = conn->relay;
    speak = ngx_stream_quic_relay_conn_error(conn, rc);

    ngx_log_error(NGX_LOG_INFO, conn->log, 0,
                  "quic relay: connection %s ends: %s, code 0x%xL, \"%*s\"",
                  conn->server ? "of the client" : "to the upstream",
                  ngtcp2_strerror(rc), conn->error.error_code,
                  conn->error.reasonlen, conn->error.reason);

    if (speak) {
        ngx_stream_quic_relay_conn_close(conn);

    } else {
        ngx_stream_quic_relay_conn_stop(conn);
    }

    if (!conn->server && !relay->answered) {
        ngx_stream_quic_relay_upstream_failed(relay);
        return;
    }

    relay->retry = (rc == NGTCP2_ERR_RETRY);

    ngx_stream_quic_relay_session_end(relay,
                                  ngx_stream_quic_relay_conn_ender(conn, rc),
                                  &conn->error);

    if (conn->peer->qc && !conn->peer->closed) {
        ngx_stream_quic_relay_conn_tell(conn);
        ngx_stream_quic_relay_conn_close(conn->peer);
    }

    ngx_stream_quic_relay_session_finish(relay, relay->refused
                                                ? NGX_STREAM_BAD_GATEWAY
                                                : NGX_STREAM_OK);
}


/* what the log tells */

static const char *
ngx_stream_quic_relay_conn_ender(ngx_stream_quic_relay_conn_t *conn, int rc)
{
    switch (rc) {

    case NGTCP2_ERR_DRAINING:
        return conn->server ? "client" : "upstream";

    case NGTCP2_ERR_IDLE_CLOSE:
    case NGTCP2_ERR_HANDSHAKE_TIMEOUT:
        return "timeout";

    default:
        return "relay";
    }
}


/* fills conn->error; false: nothing more may be sent */

static ngx_uint_t
ngx_stream_quic_relay_conn_error(ngx_stream_quic_relay_conn_t *conn, int rc)
{
    uint8_t              alert;
    const ngtcp2_ccerr  *error;

    switch (rc) {

    case NGTCP2_ERR_DRAINING:

        error = ngtcp2_conn_get_ccerr(conn->qc);
        conn->error = *error;

        return 0;

    case NGTCP2_ERR_CLOSING:
    case NGTCP2_ERR_DROP_CONN:
    case NGTCP2_ERR_RETRY:
    case NGTCP2_ERR_IDLE_CLOSE:
    case NGTCP2_ERR_HANDSHAKE_TIMEOUT:

        ngtcp2_ccerr_set_liberr(&conn->error, rc, NULL, 0);

        return rc == NGTCP2_ERR_HANDSHAKE_TIMEOUT;

    default:

        alert = ngtcp2_conn_get_tls_alert(conn->qc);

        if ((rc == NGTCP2_ERR_CRYPTO || rc == NGTCP2_ERR_CALLBACK_FAILURE)
            && alert)
        {
            ngtcp2_ccerr_set_tls_alert(&conn->error, alert, NULL, 0);

        } else {
            ngtcp2_ccerr_set_liberr(&conn->error, rc, NULL, 0);
        }

        return 1;
    }
}


/*
 * A close of the peer goes on with its code.  What this end found wrong is no
 * fault of the other one, which shall not take it for a proper end, either.
 */

static void
ngx_stream_quic_relay_conn_tell(ngx_stream_quic_relay_conn_t *conn)
{
    ngtcp2_ccerr  *error;

    static const uint8_t  lost[] = "the other end of the relay is gone";

    error = &conn->peer->error;

    if (ngtcp2_conn_in_draining_period(conn->qc)) {
        *error = conn->error;
        error->frame_type = 0;
        return;
    }

    ngtcp2_ccerr_set_transport_error(error, NGTCP2_INTERNAL_ERROR, lost,
                                     sizeof(lost) - 1);
}


void
ngx_stream_quic_relay_conn_free(ngx_stream_quic_relay_conn_t *conn)
{
    if (conn->relay == NULL) {
        return;
    }

    ngx_stream_quic_relay_conn_stop(conn);
    ngx_stream_quic_relay_input_remove_cid(conn, NULL);
    ngx_stream_quic_relay_tls_free(conn);

    if (conn->qc) {
        ngtcp2_conn_del(conn->qc);
        conn->qc = NULL;
    }
}
