
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * TLS of both connections.  Toward the client it is that of the stock stream
 * ssl module; its handshake waits in the ClientHello callback until that of
 * the upstream is done, for it decides on the protocol (RFC 7301).  The
 * upstream is always verified.
 */


#include "ngx_stream_quic_relay_module.h"

#include <ngx_stream_ssl_module.h>
#include <openssl/x509v3.h>


/* RFC 9001, 8.2 */
#define NGX_STREAM_QUIC_RELAY_PARAMS_EXT  57


static int ngx_stream_quic_relay_tls_hello(ngx_ssl_conn_t *ssl, int *ad,
    void *arg);
static ngx_int_t ngx_stream_quic_relay_tls_read_hello(
    ngx_stream_quic_relay_t *relay, ngx_ssl_conn_t *ssl, int *ad);
static void ngx_stream_quic_relay_tls_server(ngx_stream_quic_relay_t *relay,
    ngx_ssl_conn_t *ssl);
static int ngx_stream_quic_relay_tls_alpn(ngx_ssl_conn_t *ssl,
    const unsigned char **out, unsigned char *outlen, const unsigned char *in,
    unsigned int inlen, void *arg);
static int ngx_stream_quic_relay_tls_verify(int ok, X509_STORE_CTX *store);
static ngx_int_t ngx_stream_quic_relay_tls_name(
    ngx_stream_quic_relay_conn_t *conn, SSL *ssl);
static ngx_int_t ngx_stream_quic_relay_tls_ref(
    ngx_stream_quic_relay_conn_t *conn, SSL *ssl);
static ngtcp2_conn *ngx_stream_quic_relay_tls_conn(
    ngtcp2_crypto_conn_ref *ref);


ngx_int_t
ngx_stream_quic_relay_tls_init_server(ngx_conf_t *cf, SSL_CTX *ctx)
{
    /* RFC 9001, 8.4: the session ID of the ClientHello has to be empty */

    SSL_CTX_clear_options(ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);

    SSL_CTX_set_client_hello_cb(ctx, ngx_stream_quic_relay_tls_hello, NULL);
    SSL_CTX_set_alpn_select_cb(ctx, ngx_stream_quic_relay_tls_alpn, NULL);

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_relay_tls_init_upstream(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf)
{
    SSL_CTX_clear_options(conf->ssl.ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);

    /* nginx's own callback lets a handshake go on, to look at it later */

    SSL_CTX_set_verify(conf->ssl.ctx, SSL_VERIFY_PEER,
                       ngx_stream_quic_relay_tls_verify);

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_relay_tls_accept(ngx_stream_quic_relay_conn_t *conn)
{
    ngx_connection_t           *c;
    ngx_stream_ssl_srv_conf_t  *sscf;

    c = conn->relay->session->connection;
    sscf = ngx_stream_get_module_srv_conf(conn->relay->session,
                                          ngx_stream_ssl_module);

    if (ngx_ssl_create_connection(&sscf->ssl, c, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    /* nothing is to be said on the socket when it is closed */

    c->ssl->no_wait_shutdown = 1;
    c->ssl->no_send_shutdown = 1;

    if (ngtcp2_crypto_ossl_configure_server_session(c->ssl->connection) != 0) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_relay_tls_ref(conn, c->ssl->connection);
}


ngx_int_t
ngx_stream_quic_relay_tls_connect(ngx_stream_quic_relay_conn_t *conn)
{
    SSL                      *ssl;
    ngx_connection_t         *c;
    ngx_stream_quic_relay_t  *relay;

    relay = conn->relay;
    c = conn->connection;

    if (ngx_ssl_create_connection(&relay->conf->ssl, c, NGX_SSL_CLIENT)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ssl = c->ssl->connection;

    if (ngtcp2_crypto_ossl_configure_client_session(ssl) != 0
        || ngx_stream_quic_relay_tls_ref(conn, ssl) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (SSL_set_alpn_protos(ssl, relay->alpn, (unsigned int) relay->alpn_len)
        != 0)
    {
        return NGX_ERROR;
    }

    if (ngx_stream_quic_relay_tls_name(conn, ssl) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_stream_quic_relay_tickets_use(conn);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_tls_name(ngx_stream_quic_relay_conn_t *conn, SSL *ssl)
{
    char               *name;
    ngx_uint_t          level;
    X509_VERIFY_PARAM  *param;

    name = (char *) conn->relay->ssl_name.data;
    param = SSL_get0_param(ssl);

    /* RFC 6066, 3: no literal addresses in SNI */

    if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1) {
        return NGX_OK;
    }

    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);

    if (SSL_set1_host(ssl, name) != 1
        || SSL_set_tlsext_host_name(ssl, name) != 1)
    {
        level = ngx_stream_quic_relay_target_level(conn->relay);

        ngx_ssl_error(level, conn->log, 0,
                      "quic relay: name \"%s\" cannot be used", name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_relay_tls_ref(ngx_stream_quic_relay_conn_t *conn, SSL *ssl)
{
    if (ngtcp2_crypto_ossl_ctx_new(&conn->ossl, ssl) != 0) {
        return NGX_ERROR;
    }

    conn->ssl = ssl;
    conn->ref.get_conn = ngx_stream_quic_relay_tls_conn;
    conn->ref.user_data = conn;

    SSL_set_app_data(ssl, &conn->ref);

    return NGX_OK;
}


static ngtcp2_conn *
ngx_stream_quic_relay_tls_conn(ngtcp2_crypto_conn_ref *ref)
{
    ngx_stream_quic_relay_conn_t  *conn = ref->user_data;

    return conn->qc;
}


/* the SSL object of a client stays for the log, nginx frees it afterward */

void
ngx_stream_quic_relay_tls_free(ngx_stream_quic_relay_conn_t *conn)
{
    if (conn->ssl == NULL) {
        return;
    }

    SSL_set_app_data(conn->ssl, NULL);
    ngtcp2_crypto_ossl_ctx_del(conn->ossl);

    if (!conn->server) {

        /* OpenSSL takes back tickets if it has not seen an end */

        SSL_set_shutdown(conn->ssl, SSL_SENT_SHUTDOWN|SSL_RECEIVED_SHUTDOWN);
        SSL_free(conn->ssl);
        conn->connection->ssl = NULL;
    }

    conn->ossl = NULL;
    conn->ssl = NULL;
}


static int
ngx_stream_quic_relay_tls_hello(ngx_ssl_conn_t *ssl, int *ad, void *arg)
{
    ngx_connection_t         *c;
    ngx_stream_session_t     *s;
    ngx_stream_quic_relay_t  *relay;

    c = ngx_ssl_get_connection(ssl);
    s = c->data;
    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    if (!relay->helloed) {

        if (ngx_stream_quic_relay_tls_read_hello(relay, ssl, ad) != NGX_OK) {
            return SSL_CLIENT_HELLO_ERROR;
        }

        relay->helloed = 1;
        ngx_stream_quic_relay_tls_server(relay, ssl);
        ngx_stream_quic_relay_upstream_connect(relay);
    }

    if (relay->refused) {
        *ad = relay->alert;
        return SSL_CLIENT_HELLO_ERROR;
    }

    if (!relay->answered) {
        return SSL_CLIENT_HELLO_RETRY;
    }

#if (nginx_version >= 1029002)
    return ngx_ssl_client_hello_callback(ssl, ad, arg);
#else
    return SSL_CLIENT_HELLO_SUCCESS;
#endif
}


static ngx_int_t
ngx_stream_quic_relay_tls_read_hello(ngx_stream_quic_relay_t *relay,
    ngx_ssl_conn_t *ssl, int *ad)
{
    size_t         len;
    const u_char  *p;

    /* RFC 9001, 8.1: an endpoint has to offer protocols */

    if (SSL_client_hello_get0_ext(ssl,
                     TLSEXT_TYPE_application_layer_protocol_negotiation, &p,
                     &len)
        != 1)
    {
        *ad = SSL_AD_NO_APPLICATION_PROTOCOL;
        return NGX_ERROR;
    }

    if (len < 2 || len - 2 != (size_t) (p[0] << 8 | p[1])) {
        *ad = SSL_AD_DECODE_ERROR;
        return NGX_ERROR;
    }

    if (len - 2 > NGX_STREAM_QUIC_RELAY_ALPN) {
        ngx_log_error(NGX_LOG_INFO, relay->client.log, 0,
                      "quic relay: client offers %uz octets of protocols",
                      len - 2);
        *ad = SSL_AD_NO_APPLICATION_PROTOCOL;
        return NGX_ERROR;
    }

    relay->alpn_len = len - 2;
    ngx_memcpy(relay->alpn, p + 2, relay->alpn_len);

    /* ngtcp2 itself has them only later */

    if (SSL_client_hello_get0_ext(ssl, NGX_STREAM_QUIC_RELAY_PARAMS_EXT, &p,
                                  &len)
        != 1)
    {
        *ad = SSL_AD_MISSING_EXTENSION;
        return NGX_ERROR;
    }

    if (ngtcp2_transport_params_decode(&relay->params, p, len) != 0) {
        *ad = SSL_AD_DECODE_ERROR;
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * The server by its name: nginx chooses it later, but its upstream is wanted
 * now.  Without a match it is the default one.  $ssl_server_name is set, too:
 * OpenSSL does not know it yet.
 */

static void
ngx_stream_quic_relay_tls_server(ngx_stream_quic_relay_t *relay,
    ngx_ssl_conn_t *ssl)
{
    size_t                              len;
    ngx_str_t                           host;
    const u_char                       *p;
    ngx_stream_variable_value_t        *v;
    ngx_stream_core_srv_conf_t         *cscf;
    ngx_stream_quic_relay_srv_conf_t   *conf;
    ngx_stream_quic_relay_main_conf_t  *rmcf;

    /* RFC 6066, 3: one name of type 0, behind three lengths */

    if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_server_name, &p, &len) != 1
        || len <= 5
        || p[2] != TLSEXT_NAMETYPE_host_name
        || (size_t) (p[3] << 8 | p[4]) != len - 5)
    {
        return;
    }

    host.len = len - 5;
    host.data = (u_char *) p + 5;

    if (ngx_stream_validate_host(&host, relay->pool, 1) != NGX_OK) {
        return;
    }

    rmcf = ngx_stream_get_module_main_conf(relay->session,
                                           ngx_stream_quic_relay_module);

    v = &relay->session->variables[rmcf->server_name];

    v->len = host.len;
    v->data = host.data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    if (ngx_stream_find_virtual_server(relay->session, &host, &cscf)
        != NGX_OK)
    {
        return;
    }

    conf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_relay_module);
    if (conf->core) {
        relay->conf = conf;
    }
}


static int
ngx_stream_quic_relay_tls_alpn(ngx_ssl_conn_t *ssl, const unsigned char **out,
    unsigned char *outlen, const unsigned char *in, unsigned int inlen,
    void *arg)
{
    ngx_connection_t         *c;
    ngx_stream_session_t     *s;
    ngx_stream_quic_relay_t  *relay;

    c = ngx_ssl_get_connection(ssl);
    s = c->data;
    relay = ngx_stream_get_module_ctx(s, ngx_stream_quic_relay_module);

    /* the upstream has chosen from this very list */

    *out = relay->chosen;
    *outlen = (unsigned char) relay->chosen_len;

    return SSL_TLSEXT_ERR_OK;
}


static int
ngx_stream_quic_relay_tls_verify(int ok, X509_STORE_CTX *store)
{
    int                            err;
    SSL                           *ssl;
    ngx_connection_t              *c;
    ngx_stream_quic_relay_conn_t  *conn;

    if (ok) {
        return 1;
    }

    ssl = X509_STORE_CTX_get_ex_data(store,
                                     SSL_get_ex_data_X509_STORE_CTX_idx());
    c = ngx_ssl_get_connection(ssl);
    conn = c->data;
    err = X509_STORE_CTX_get_error(store);

    if (err == X509_V_ERR_HOSTNAME_MISMATCH
        || err == X509_V_ERR_IP_ADDRESS_MISMATCH)
    {
        conn->relay->misnamed = 1;
    }

    ngx_log_error(ngx_stream_quic_relay_target_level(conn->relay), conn->log,
                  0,
                  "quic relay: the upstream's certificate is refused: "
                  "(%d:%s) at depth %d, the name is \"%V\"",
                  err, X509_verify_cert_error_string(err),
                  X509_STORE_CTX_get_error_depth(store),
                  &conn->relay->ssl_name);

    return 0;
}
