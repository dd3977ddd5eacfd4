
/*
 * The floor that the relay of streams is measured against: two QUIC endpoints
 * of ngtcp2 that do no more than to move octets.
 *
 *     endpoints server ADDRESS PORT CERTIFICATE KEY
 *     endpoints client ADDRESS PORT STREAMS OCTETS [up]
 *
 * The client opens STREAMS streams at once, asks for OCTETS octets on each, or
 * sends them with "up", waits for the ends of all streams, and closes the
 * connection.  The server has one connection at a time, goes on to the next,
 * and is ended by a signal.  At the end of a connection both print what it
 * took:
 *
 *     octets=N seconds=N cpu=N
 *
 * "cpu" are seconds of this process, from getrusage().  Sends are by
 * UDP_SEGMENT, reads with UDP_GRO; the ALPN is "floor".  There is no address
 * validation and no migration, and the client verifies nothing.
 */


#include "endpoints.h"

#include <stdio.h>
#include <stdlib.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>
#include <openssl/rand.h>


#define STREAMS      128         /* of a connection, the most */
#define WINDOW       (1 << 20)   /* octets, of a stream */
#define CREDIT       (16 << 20)  /* octets, of a connection */
#define BUFFER       65536
#define REQUEST      8           /* octets: how many are wanted */
#define TURN         16          /* reads between writes */
#define CID          8
#define IDLE         (20 * NGTCP2_SECONDS)

#define ALPN         "\005floor"


typedef struct {
    int64_t                  id;
    uint64_t                 left;       /* octets to be sent */
    uint64_t                 more;       /* behind these, of |content| */
    const uint8_t           *data;       /* of |left|, NULL: |content| */
    unsigned                 nrequest;
    unsigned                 active:1;   /* the FIN has not been sent */
    unsigned                 blocked:1;  /* by the flow control of the stream */
    uint8_t                  request[REQUEST];
} stream_t;


/* the only connection */

typedef struct {
    ngtcp2_conn             *qc;         /* NULL: there is none */
    SSL                     *ssl;
    ngtcp2_crypto_ossl_ctx  *ossl;
    ngtcp2_crypto_conn_ref   ref;
    unsigned                 nstreams;
    unsigned                 next;       /* stream to be tried */
    unsigned                 finished;   /* streams with a FIN received */
    uint64_t                 octets;
    uint64_t                 cpu;        /* ns, at its begin */
    ngtcp2_tstamp            began;
    stream_t                 streams[STREAMS];
} end_t;


static void open_path(const char *address, const char *port);
static void open_tls(const char *certificate, const char *key);
static int select_alpn(SSL *ssl, const unsigned char **out,
    unsigned char *outlen, const unsigned char *in, unsigned int inlen,
    void *arg);
static void begin(void);
static void attach(SSL *ssl);
static void defaults(ngtcp2_settings *settings,
    ngtcp2_transport_params *params);
static void random_cid(ngtcp2_cid *cid, size_t len);
static void start_client(void);
static void start_server(const uint8_t *data, size_t len);
static void finish(void);
static void receive(void);
static int receive_train(uint8_t *data, size_t len, size_t segment);
static void transmit(void);
static ngtcp2_ssize write_packet(ngtcp2_conn *qc, ngtcp2_path *to,
    ngtcp2_pkt_info *pi, uint8_t *dest, size_t len, ngtcp2_tstamp ts,
    void *data);
static stream_t *next_stream(void);
static stream_t *add_stream(int64_t id);
static stream_t *find_stream(int64_t id);
static int take_request(stream_t *stream, const uint8_t *data, size_t len,
    int fin);
static ngtcp2_conn *get_conn(ngtcp2_crypto_conn_ref *ref);
static void cb_rand(uint8_t *dest, size_t len, const ngtcp2_rand_ctx *ctx);
static int cb_new_cid(ngtcp2_conn *qc, ngtcp2_cid *cid,
    ngtcp2_stateless_reset_token *token, size_t len, void *data);
static int cb_handshaked(ngtcp2_conn *qc, void *data);
static int cb_stream_open(ngtcp2_conn *qc, int64_t id, void *data);
static int cb_stream_data(ngtcp2_conn *qc, uint32_t flags, int64_t id,
    uint64_t offset, const uint8_t *data, size_t len, void *user,
    void *stream);
static int cb_stream_credit(ngtcp2_conn *qc, int64_t id, uint64_t max,
    void *data, void *stream);


static const ngtcp2_callbacks  callbacks = {
    .client_initial = ngtcp2_crypto_client_initial_cb,
    .recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
    .recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
    .recv_retry = ngtcp2_crypto_recv_retry_cb,
    .encrypt = ngtcp2_crypto_encrypt_cb,
    .decrypt = ngtcp2_crypto_decrypt_cb,
    .hp_mask = ngtcp2_crypto_hp_mask_cb,
    .update_key = ngtcp2_crypto_update_key_cb,
    .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
    .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
    .get_path_challenge_data2 = ngtcp2_crypto_get_path_challenge_data2_cb,
    .version_negotiation = ngtcp2_crypto_version_negotiation_cb,

    .handshake_completed = cb_handshaked,
    .stream_open = cb_stream_open,
    .recv_stream_data = cb_stream_data,
    .extend_max_stream_data = cb_stream_credit,
    .rand = cb_rand,
    .get_new_connection_id2 = cb_new_cid
};


static int                  fd, server, up;
static unsigned             wanted_streams;
static uint64_t             wanted;      /* octets of each stream */
static end_t                end;
static SSL_CTX             *tls;
static struct sockaddr_in   local, remote;
static ngtcp2_path          path;
static uint8_t              in[BUFFER], out[BUFFER], content[BUFFER];


int
main(int argc, char **argv)
{
    ngtcp2_tstamp  expiry;

    up = (argc == 7 && strcmp(argv[1], "client") == 0
          && strcmp(argv[6], "up") == 0);

    if (argc != 6 + up
        || (strcmp(argv[1], "server") != 0 && strcmp(argv[1], "client") != 0))
    {
        fprintf(stderr,
                "usage: endpoints server ADDRESS PORT CERTIFICATE KEY\n"
                "       endpoints client ADDRESS PORT STREAMS OCTETS [up]\n");
        exit(2);
    }

    server = (strcmp(argv[1], "server") == 0);

    if (ngtcp2_crypto_ossl_init() != 0
        || RAND_bytes(content, sizeof(content)) != 1)
    {
        endpoints_die("start");
    }

    open_path(argv[2], argv[3]);

    if (server) {
        open_tls(argv[4], argv[5]);

    } else {
        wanted_streams = (unsigned) atoi(argv[4]);
        wanted = strtoull(argv[5], NULL, 10);

        if (wanted_streams < 1 || wanted_streams > STREAMS) {
            endpoints_die("STREAMS");
        }

        open_tls(NULL, NULL);
        start_client();
        transmit();
    }

    for ( ;; ) {

        expiry = end.qc ? ngtcp2_conn_get_expiry(end.qc) : UINT64_MAX;

        if (endpoints_wait(fd, expiry)) {
            receive();
        }

        if (end.qc && ngtcp2_conn_get_expiry(end.qc) <= endpoints_now()
            && ngtcp2_conn_handle_expiry(end.qc, endpoints_now()) != 0)
        {
            finish();
        }

        if (end.qc) {
            transmit();
        }
    }
}


static void
open_path(const char *address, const char *port)
{
    memset(&remote, 0, sizeof(remote));

    remote.sin_family = AF_INET;
    remote.sin_addr.s_addr = inet_addr(address);
    remote.sin_port = htons((uint16_t) atoi(port));

    fd = endpoints_socket(&remote, server, &local);

    /* at a server |remote| will be that of its client */

    path.local.addr = (struct sockaddr *) &local;
    path.local.addrlen = sizeof(local);
    path.remote.addr = (struct sockaddr *) &remote;
    path.remote.addrlen = sizeof(remote);
}


static void
open_tls(const char *certificate, const char *key)
{
    tls = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());

    if (tls == NULL
        || SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) != 1)
    {
        endpoints_die("TLS");
    }

    if (!server) {
        return;
    }

    /* RFC 9001, 8.4 */

    SSL_CTX_clear_options(tls, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_alpn_select_cb(tls, select_alpn, NULL);

    if (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1
        || SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1)
    {
        endpoints_die("certificate");
    }
}


static int
select_alpn(SSL *ssl, const unsigned char **chosen, unsigned char *len,
    const unsigned char *offer, unsigned int size, void *arg)
{
    if (size != sizeof(ALPN) - 1 || memcmp(offer, ALPN, size) != 0) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }

    *chosen = offer + 1;
    *len = offer[0];

    return SSL_TLSEXT_ERR_OK;
}


static void
begin(void)
{
    memset(&end, 0, sizeof(end));

    end.began = endpoints_now();
    end.cpu = endpoints_cpu();
    end.ssl = SSL_new(tls);

    if (end.ssl == NULL) {
        endpoints_die("SSL_new()");
    }
}


static void
attach(SSL *ssl)
{
    if (ngtcp2_crypto_ossl_ctx_new(&end.ossl, ssl) != 0) {
        endpoints_die("ngtcp2_crypto_ossl_ctx_new()");
    }

    end.ref.get_conn = get_conn;
    end.ref.user_data = &end;

    SSL_set_app_data(ssl, &end.ref);
    ngtcp2_conn_set_tls_native_handle(end.qc, end.ossl);
}


static void
defaults(ngtcp2_settings *settings, ngtcp2_transport_params *params)
{
    ngtcp2_settings_default(settings);

    settings->initial_ts = end.began;

    ngtcp2_transport_params_default(params);

    params->initial_max_stream_data_bidi_local = WINDOW;
    params->initial_max_stream_data_bidi_remote = WINDOW;
    params->initial_max_data = CREDIT;
    params->initial_max_streams_bidi = STREAMS;
    params->max_idle_timeout = IDLE;
}


static void
random_cid(ngtcp2_cid *cid, size_t len)
{
    cid->datalen = len;

    if (RAND_bytes(cid->data, (int) len) != 1) {
        endpoints_die("RAND_bytes()");
    }
}


static void
start_client(void)
{
    ngtcp2_cid               dcid, scid;
    ngtcp2_settings          settings;
    ngtcp2_transport_params  params;

    begin();
    defaults(&settings, &params);
    random_cid(&dcid, NGTCP2_MAX_CIDLEN);
    random_cid(&scid, CID);

    SSL_set_connect_state(end.ssl);

    if (ngtcp2_conn_client_new(&end.qc, &dcid, &scid, &path,
                               NGTCP2_PROTO_VER_V1, &callbacks, &settings,
                               &params, NULL, &end)
        != 0
        || ngtcp2_crypto_ossl_configure_client_session(end.ssl) != 0
        || SSL_set_alpn_protos(end.ssl, (const uint8_t *) ALPN,
                               sizeof(ALPN) - 1)
           != 0)
    {
        endpoints_die("client");
    }

    attach(end.ssl);
}


/* |data|: an Initial, if it is to be a connection */

static void
start_server(const uint8_t *data, size_t len)
{
    ngtcp2_cid               scid;
    ngtcp2_pkt_hd            hd;
    ngtcp2_settings          settings;
    ngtcp2_transport_params  params;

    if (ngtcp2_accept(&hd, data, len) != 0) {
        return;
    }

    begin();
    defaults(&settings, &params);
    random_cid(&scid, CID);

    params.original_dcid = hd.dcid;
    params.original_dcid_present = 1;

    SSL_set_accept_state(end.ssl);

    if (ngtcp2_conn_server_new(&end.qc, &hd.scid, &scid, &path, hd.version,
                               &callbacks, &settings, &params, NULL, &end)
        != 0
        || ngtcp2_crypto_ossl_configure_server_session(end.ssl) != 0)
    {
        endpoints_die("server");
    }

    attach(end.ssl);
}


/* the connection is over, by whatever end; of a client the process, too */

static void
finish(void)
{
    int  complete;

    complete = !server && end.finished == wanted_streams
               && end.octets == (up ? 0 : wanted * wanted_streams);

    printf("octets=%llu seconds=%.6f cpu=%.6f\n",
           (unsigned long long) end.octets,
           (double) (endpoints_now() - end.began) / NGTCP2_SECONDS,
           (double) (endpoints_cpu() - end.cpu) / NGTCP2_SECONDS);
    fflush(stdout);

    if (!server) {
        exit(!complete);
    }

    SSL_set_app_data(end.ssl, NULL);
    ngtcp2_conn_del(end.qc);
    ngtcp2_crypto_ossl_ctx_del(end.ossl);
    SSL_free(end.ssl);
    end.qc = NULL;
}


static void
receive(void)
{
    int                 turn;
    size_t              segment;
    ssize_t             n;
    struct sockaddr_in  from;

    for (turn = 0; turn < TURN; turn++) {
        n = endpoints_read(fd, in, sizeof(in), &from, &segment);

        if (n == -1) {
            return;
        }

        if (end.qc == NULL) {
            remote = from;
        }

        /* else it is of a client that is gone */

        if (memcmp(&remote, &from, sizeof(from)) == 0
            && receive_train(in, (size_t) n, segment) != 0)
        {
            finish();
        }
    }
}


/* not 0: the connection is over */

static int
receive_train(uint8_t *data, size_t len, size_t segment)
{
    int     rc;
    size_t  pos, size;

    for (pos = 0; pos < len; pos += size) {
        size = len - pos < segment ? len - pos : segment;

        if (end.qc == NULL) {
            start_server(data + pos, size);
        }

        if (end.qc == NULL) {
            continue;
        }

        rc = ngtcp2_conn_read_pkt(end.qc, &path, NULL, data + pos, size,
                                  endpoints_now());
        if (rc != 0) {
            return rc;
        }
    }

    return 0;
}


/* all that may be sent now; a client that has everything says good-bye */

static void
transmit(void)
{
    size_t               size, quantum, sent, segment;
    ngtcp2_ccerr         error;
    ngtcp2_ssize         n;
    ngtcp2_tstamp        ts;
    ngtcp2_pkt_info      pi;
    ngtcp2_path_storage  to;

    ts = endpoints_now();
    ngtcp2_path_storage_zero(&to);

    if (!server && end.finished == wanted_streams) {
        ngtcp2_ccerr_default(&error);
        n = ngtcp2_conn_write_connection_close(end.qc, &to.path, &pi, out,
                                               sizeof(out), &error, ts);
        if (n > 0) {
            endpoints_send(fd, NULL, out, (size_t) n, (size_t) n);
        }

        finish();
    }

    quantum = ngtcp2_conn_get_send_quantum(end.qc);

    for (sent = 0; sent < quantum; sent += (size_t) n) {
        size = ngtcp2_conn_get_max_tx_udp_payload_size(end.qc);

        if (size < quantum - sent) {
            size = quantum - sent;
        }

        if (size > BENCH_PAYLOAD) {
            size = BENCH_PAYLOAD;
        }

        n = ngtcp2_conn_write_aggregate_pkt2(end.qc, &to.path, &pi, out, size,
                                             &segment, write_packet,
                                             BENCH_SEGMENTS, ts);
        if (n < 0) {
            finish();
            return;
        }

        if (n == 0) {
            break;
        }

        endpoints_send(fd, server ? &remote : NULL, out, (size_t) n, segment);
    }

    ngtcp2_conn_update_pkt_tx_time(end.qc, ts);
}


static ngtcp2_ssize
write_packet(ngtcp2_conn *qc, ngtcp2_path *to, ngtcp2_pkt_info *pi,
    uint8_t *dest, size_t len, ngtcp2_tstamp ts, void *data)
{
    int            full;
    uint32_t       flags;
    stream_t      *stream;
    ngtcp2_vec     vec;
    ngtcp2_ssize   n, written;

    full = 0;

    for ( ;; ) {
        flags = 0;
        stream = full ? NULL : next_stream();

        if (stream) {
            vec.base = (uint8_t *) (stream->data ? stream->data : content);
            vec.len = stream->left < BUFFER ? stream->left : BUFFER;
            flags = NGTCP2_WRITE_STREAM_FLAG_MORE;

            if (vec.len == stream->left && stream->more == 0) {
                flags |= NGTCP2_WRITE_STREAM_FLAG_FIN;
            }
        }

        n = ngtcp2_conn_writev_stream(qc, to, pi, dest, len, &written, flags,
                                      stream ? stream->id : -1, &vec,
                                      stream != NULL, ts);

        if (stream && written >= 0) {
            stream->left -= (uint64_t) written;

            if (stream->left == 0 && stream->more) {
                stream->left = stream->more;
                stream->more = 0;
                stream->data = NULL;
            }

            stream->active = (stream->left != 0);
        }

        if (n == NGTCP2_ERR_STREAM_DATA_BLOCKED) {

            /* RFC 9000, 4.1: by the credit of the connection, or its own */

            full = (ngtcp2_conn_get_max_data_left(qc) == 0);
            stream->blocked = !full;

        } else if (n != NGTCP2_ERR_WRITE_MORE) {
            return n;
        }
    }
}


/* in turn */

static stream_t *
next_stream(void)
{
    unsigned   i;
    stream_t  *stream;

    for (i = 0; i < end.nstreams; i++) {
        stream = &end.streams[end.next++ % end.nstreams];

        if (stream->active && !stream->blocked) {
            return stream;
        }
    }

    return NULL;
}


static stream_t *
add_stream(int64_t id)
{
    stream_t  *stream;

    if (end.nstreams == STREAMS) {
        return NULL;
    }

    stream = &end.streams[end.nstreams++];
    stream->id = id;

    return stream;
}


static stream_t *
find_stream(int64_t id)
{
    unsigned  i;

    for (i = 0; i < end.nstreams; i++) {
        if (end.streams[i].id == id) {
            return &end.streams[i];
        }
    }

    return NULL;
}


static ngtcp2_conn *
get_conn(ngtcp2_crypto_conn_ref *ref)
{
    return end.qc;
}


static void
cb_rand(uint8_t *dest, size_t len, const ngtcp2_rand_ctx *ctx)
{
    (void) RAND_bytes(dest, (int) len);
}


static int
cb_new_cid(ngtcp2_conn *qc, ngtcp2_cid *cid,
    ngtcp2_stateless_reset_token *token, size_t len, void *data)
{
    random_cid(cid, len);
    (void) RAND_bytes(token->data, sizeof(token->data));

    return 0;
}


static int
cb_handshaked(ngtcp2_conn *qc, void *data)
{
    int        i;
    int64_t    id;
    uint64_t   asked;
    unsigned   n;
    stream_t  *stream;

    for (n = 0; !server && n < wanted_streams; n++) {

        if (ngtcp2_conn_open_bidi_stream(qc, &id, NULL) != 0) {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

        stream = add_stream(id);

        asked = up ? 0 : wanted;

        for (i = 0; i < REQUEST; i++) {
            stream->request[i] = (uint8_t) (asked >> (8 * (REQUEST - 1 - i)));
        }

        stream->data = stream->request;
        stream->left = REQUEST;
        stream->more = up ? wanted : 0;
        stream->active = 1;
    }

    return 0;
}


static int
cb_stream_open(ngtcp2_conn *qc, int64_t id, void *data)
{
    return add_stream(id) ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
}


static int
cb_stream_data(ngtcp2_conn *qc, uint32_t flags, int64_t id, uint64_t offset,
    const uint8_t *data, size_t len, void *user, void *unused)
{
    int        fin;
    stream_t  *stream;

    fin = (flags & NGTCP2_STREAM_DATA_FLAG_FIN) != 0;

    if (server) {
        stream = find_stream(id);

        if (stream == NULL || take_request(stream, data, len, fin) != 0) {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }

    } else {
        end.octets += len;
        end.finished += (unsigned) fin;
    }

    ngtcp2_conn_extend_max_offset(qc, len);

    return fin ? 0 : ngtcp2_conn_extend_max_stream_offset(qc, id, len);
}


/* behind the request may be what the client sends: then it wants a FIN only */

static int
take_request(stream_t *stream, const uint8_t *data, size_t len, int fin)
{
    for ( /* void */ ; len && stream->nrequest < REQUEST; len--) {
        stream->left = stream->left << 8 | *data++;
        stream->nrequest++;
    }

    end.octets += len;

    if (!fin) {
        return 0;
    }

    end.octets += stream->left;
    stream->active = 1;

    return stream->nrequest != REQUEST;
}


/* MAX_STREAM_DATA has come */

static int
cb_stream_credit(ngtcp2_conn *qc, int64_t id, uint64_t max, void *data,
    void *unused)
{
    stream_t  *stream;

    stream = find_stream(id);

    if (stream) {
        stream->blocked = 0;
    }

    return 0;
}
