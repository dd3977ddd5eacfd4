
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Relay.  A client's datagram is read from the listening socket (_udp.c) and
 * finds its connection by the destination connection ID; a new one becomes an
 * nginx stream session (_session.c).  Each session has two QUIC connections of
 * ngtcp2 (_conn.c, _callbacks.c): one ends the client's, the other goes to the
 * upstream (_upstream.c).  The client's handshake is held until the upstream
 * has answered (_tls.c).  Streams (_stream.c) and datagrams (_datagram.c) go
 * from one connection to its peer.
 *
 * All of it belongs to one worker.
 */


#ifndef _NGX_STREAM_QUIC_RELAY_MODULE_H_INCLUDED_
#define _NGX_STREAM_QUIC_RELAY_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>

#include "quic_lb_hash.h"
#include "quic_lb_table.h"


/* octets of the connection IDs that are issued */
#define NGX_STREAM_QUIC_RELAY_CID     16

/* octets; no UDP payload is longer */
#define NGX_STREAM_QUIC_RELAY_BUFFER  65536

/* packets of one send */
#define NGX_STREAM_QUIC_RELAY_SEGMENTS  32

/* octets of an ALPN offer that is passed on */
#define NGX_STREAM_QUIC_RELAY_ALPN    1024

/* STOP_SENDING frames of one datagram */
#define NGX_STREAM_QUIC_RELAY_STOPS   512

/* connection IDs of one connection, ngtcp2's pool and those of the client */
#define NGX_STREAM_QUIC_RELAY_CIDS    32


typedef struct ngx_stream_quic_relay_s         ngx_stream_quic_relay_t;
typedef struct ngx_stream_quic_relay_conn_s    ngx_stream_quic_relay_conn_t;
typedef struct ngx_stream_quic_relay_worker_s  ngx_stream_quic_relay_worker_t;

/* of _stream.c and _datagram.c alone */
typedef struct ngx_stream_quic_relay_streams_s
                                            ngx_stream_quic_relay_streams_t;
typedef struct ngx_stream_quic_relay_datagrams_s
                                            ngx_stream_quic_relay_datagrams_t;


typedef struct {
    ngx_stream_quic_relay_worker_t  *worker;      /* in a worker */
    ngx_uint_t                       used;        /* unsigned  used:1; */
} ngx_stream_quic_relay_main_conf_t;


typedef struct {
    ngx_stream_upstream_srv_conf_t  *upstream;

    ngx_str_t                        ssl_name;
    ngx_str_t                        ssl_trusted_certificate;
    ngx_str_t                        ssl_crl;
    ngx_uint_t                       ssl_verify_depth;
    ngx_ssl_t                        ssl;         /* to the upstream */

    size_t                           stream_window;   /* octets */
    ngx_uint_t                       max_streams;     /* of each kind */
    ngx_uint_t                       datagram_queue;  /* datagrams */
    ngx_msec_t                       timeout;         /* idle */
    ngx_msec_t                       connect_timeout; /* and handshake */
} ngx_stream_quic_relay_srv_conf_t;


/* STOP_SENDING as received */

typedef struct {
    int64_t                          id;
    uint64_t                         code;
} ngx_stream_quic_relay_stop_t;


struct ngx_stream_quic_relay_worker_s {
    ngx_log_t                       *log;

    /*
     * Connections to clients by connection ID; the key is random.  Entered
     * when an ID is issued (the client's first choice, too), removed when it
     * is retired or the connection is freed.  Bound: the limit given to the
     * table, and NGX_STREAM_QUIC_RELAY_CIDS of each connection.
     */
    quic_lb_table_t                  cids;
    quic_lb_hash_key_t               key;

    ngx_stream_quic_relay_t         *current;     /* being made; NULL: gone */
    ngx_stream_quic_relay_conn_t    *reading;     /* inside ngtcp2's read */
    ngx_uint_t                       nstops;      /* seen by it */
    ngx_stream_quic_relay_stop_t     stops[NGX_STREAM_QUIC_RELAY_STOPS];

    ngx_uint_t                       reserve;     /* nginx's connections */
    u_char                           secret[32];  /* of stateless resets */
    u_char                           retry[32];   /* of Retry tokens */
    u_char                          *buffer;      /* to read into */
    u_char                          *out;         /* to write into */
};


typedef struct {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_queue_t                      queue;       /* in conn->cids */
    ngx_stream_quic_relay_conn_t    *conn;
    ngtcp2_cid                       cid;
} ngx_stream_quic_relay_cid_t;


/* one of the two QUIC connections of a relay */

struct ngx_stream_quic_relay_conn_s {
    ngtcp2_conn                     *qc;
    ngx_stream_quic_relay_t         *relay;
    ngx_stream_quic_relay_conn_t    *peer;        /* the other one */
    ngx_connection_t                *connection;  /* the socket to send on */
    ngx_log_t                       *log;

    SSL                             *ssl;
    ngtcp2_crypto_ossl_ctx          *ossl;
    ngtcp2_crypto_conn_ref           ref;

    ngtcp2_ccerr                     error;       /* how it ends */
    ngx_str_t                        last;        /* CONNECTION_CLOSE */
    ngx_uint_t                       late;        /* datagrams after it */

    ngx_event_t                      timer;       /* ngtcp2's expiry */
    ngx_event_t                      posted;      /* it has to write */
    ngx_queue_t                      cids;
    ngx_uint_t                       ncids;

    socklen_t                        socklen;     /* of the addresses */
    ngx_sockaddr_t                   local;
    ngx_sockaddr_t                   remote;

    unsigned                         server:1;    /* toward the client */
    unsigned                         handshaked:1;
    unsigned                         closed:1;    /* reads and sends no more */
    unsigned                         busy:1;      /* inside of ngtcp2 */
};


struct ngx_stream_quic_relay_s {
    ngx_stream_session_t            *session;
    ngx_stream_quic_relay_worker_t  *worker;
    ngx_stream_quic_relay_srv_conf_t  *conf;
    ngx_pool_t                      *pool;

    ngx_stream_quic_relay_conn_t     client;
    ngx_stream_quic_relay_conn_t     upstream;

    ngx_stream_quic_relay_streams_t    *streams;
    ngx_stream_quic_relay_datagrams_t  *datagrams;

    /* the client's ClientHello */
    ngtcp2_transport_params          params;
    u_char                           alpn[NGX_STREAM_QUIC_RELAY_ALPN];
    size_t                           alpn_len;    /* as on the wire */
    u_char                           chosen[256]; /* by the upstream */
    size_t                           chosen_len;

    ngx_event_t                      finish;      /* to free it all */
    ngx_int_t                        status;      /* of the session */
    uint8_t                          alert;       /* TLS, to the client */

    unsigned                         helloed:1;   /* ClientHello was seen */
    unsigned                         answered:1;  /* upstream handshake done */
    unsigned                         refused:1;   /* upstream failed */
    unsigned                         relaying:1;  /* both are handshaked */
    unsigned                         retry:1;     /* Retry, no connection */
    unsigned                         finishing:1;
    unsigned                         peered:1;    /* balancer is to be told */
};


/* _conn.c */

/* makes the connection toward the client; NGX_DECLINED: a bad token */
ngx_int_t ngx_stream_quic_relay_conn_accept(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_pkt_hd *hd);

/* makes the connection to the upstream; params mirror the client's */
ngx_int_t ngx_stream_quic_relay_conn_connect(
    ngx_stream_quic_relay_conn_t *conn);

/* may end the connection, never frees it */
void ngx_stream_quic_relay_conn_read(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_path *path, u_char *data, size_t len);

/*
 * Has the connection write soon: to be called after anything that gives it
 * something to send (data, credit, a reset, STOP_SENDING), from within its
 * callbacks, too, any number of times.
 */
void ngx_stream_quic_relay_conn_schedule(ngx_stream_quic_relay_conn_t *conn);

/* goes on with a held handshake: the upstream has answered, or will not */
void ngx_stream_quic_relay_conn_resume(ngx_stream_quic_relay_conn_t *conn);

/* sends CONNECTION_CLOSE with conn->error, ends it */
void ngx_stream_quic_relay_conn_close(ngx_stream_quic_relay_conn_t *conn);

/* an ngtcp2 failure |rc|: remembers it in conn->error, ends both connections */
void ngx_stream_quic_relay_conn_failed(ngx_stream_quic_relay_conn_t *conn,
    int rc);
void ngx_stream_quic_relay_conn_free(ngx_stream_quic_relay_conn_t *conn);

/* ms for which a closed connection has to answer, 0 if it has nothing to say */
ngx_msec_t ngx_stream_quic_relay_conn_closing(
    ngx_stream_quic_relay_conn_t *conn);
ngtcp2_tstamp ngx_stream_quic_relay_now(void);


/* _callbacks.c */

const ngtcp2_callbacks *ngx_stream_quic_relay_conn_callbacks(void);

/*
 * ngtcp2 before 1.24 does not tell of STOP_SENDING: it is read in the decrypt
 * callback, and applied when the datagram has turned out to be valid.
 */
void ngx_stream_quic_relay_stops_begin(ngx_stream_quic_relay_conn_t *conn);
int ngx_stream_quic_relay_stops_apply(ngx_stream_quic_relay_conn_t *conn);


/* _tls.c */

ngx_int_t ngx_stream_quic_relay_tls_init_server(ngx_conf_t *cf, SSL_CTX *ctx);
ngx_int_t ngx_stream_quic_relay_tls_init_upstream(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf);
ngx_int_t ngx_stream_quic_relay_tls_accept(ngx_stream_quic_relay_conn_t *conn);
ngx_int_t ngx_stream_quic_relay_tls_connect(
    ngx_stream_quic_relay_conn_t *conn);
void ngx_stream_quic_relay_tls_free(ngx_stream_quic_relay_conn_t *conn);


/* _udp.c */

ngx_int_t ngx_stream_quic_relay_udp_init_process(ngx_cycle_t *cycle);
void ngx_stream_quic_relay_udp_read_upstream(ngx_event_t *rev);

/* NGX_AGAIN: the socket is full, the datagrams count as lost */
ngx_int_t ngx_stream_quic_relay_udp_send(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_path *path, u_char *data, size_t len, size_t segment);
ngx_int_t ngx_stream_quic_relay_udp_add_cid(
    ngx_stream_quic_relay_conn_t *conn, const ngtcp2_cid *cid);
void ngx_stream_quic_relay_udp_remove_cid(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_cid *cid);


/* _session.c */

/* NULL: there is no room */
ngx_stream_quic_relay_t *ngx_stream_quic_relay_session_create(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_sockaddr_t *remote, socklen_t socklen);
void ngx_stream_quic_relay_session_handler(ngx_stream_session_t *s);

/*
 * Both connections are closed and freed: soon, outside of ngtcp2, or when
 * there is no need any more to say again that they are closed.
 */
void ngx_stream_quic_relay_session_finish(ngx_stream_quic_relay_t *relay,
    ngx_int_t status);


/* _upstream.c */

/* the ClientHello is known: chooses an upstream and connects to it */
void ngx_stream_quic_relay_upstream_connect(ngx_stream_quic_relay_t *relay);

/* its handshake is done, or has failed */
void ngx_stream_quic_relay_upstream_answered(ngx_stream_quic_relay_t *relay);
void ngx_stream_quic_relay_upstream_failed(ngx_stream_quic_relay_t *relay);
void ngx_stream_quic_relay_upstream_close(ngx_stream_quic_relay_t *relay);


/*
 * _stream.c.  |conn| is the connection that a callback came from; its peer is
 * the far side.  Those that return int are called by ngtcp2's callbacks:
 * 0, or NGTCP2_ERR_CALLBACK_FAILURE, which ends both connections.
 */

/* in a relay's pool; before any connection exists */
ngx_int_t ngx_stream_quic_relay_streams_init(ngx_stream_quic_relay_t *relay);
void ngx_stream_quic_relay_streams_free(ngx_stream_quic_relay_t *relay);

/* both handshakes are done: streams may be opened on either side */
void ngx_stream_quic_relay_streams_start(ngx_stream_quic_relay_t *relay);

/* the end of |conn| has opened a stream */
int ngx_stream_quic_relay_stream_open(ngx_stream_quic_relay_conn_t *conn,
    int64_t id);

/* data from |conn| for the peer's stream of the same ID; the data is copied */
int ngx_stream_quic_relay_stream_recv(ngx_stream_quic_relay_conn_t *conn,
    uint32_t flags, int64_t id, const uint8_t *data, size_t len);

/* the end of |conn| has it: freed, and the peer's sender gets credit */
int ngx_stream_quic_relay_stream_acked(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t offset, uint64_t len);

/* RESET_STREAM and STOP_SENDING came from the end of |conn| */
int ngx_stream_quic_relay_stream_reset(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t code);
int ngx_stream_quic_relay_stream_stop(ngx_stream_quic_relay_conn_t *conn,
    int64_t id, uint64_t code);

/* ngtcp2 has ended both halves and forgets the stream */
int ngx_stream_quic_relay_stream_close(ngx_stream_quic_relay_conn_t *conn,
    int64_t id);

/* MAX_STREAM_DATA came: the stream may have been blocked */
int ngx_stream_quic_relay_stream_credit(ngx_stream_quic_relay_conn_t *conn,
    int64_t id);

/* MAX_STREAMS came: more streams can be opened toward the end of |conn| */
int ngx_stream_quic_relay_streams_credit(ngx_stream_quic_relay_conn_t *conn,
    ngx_uint_t uni);

/*
 * One packet as ngtcp2_write_pkt wants it, with as much stream data as fits:
 * the octets written, 0 if there is nothing to send or no more may be sent
 * now, or an error of ngtcp2.
 */
ngtcp2_ssize ngx_stream_quic_relay_streams_write(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_path *path, ngtcp2_pkt_info *pi,
    uint8_t *dest, size_t len, ngtcp2_tstamp ts);


/* _datagram.c */

/* a datagram from |conn|, to be sent by the peer */
int ngx_stream_quic_relay_datagram_recv(ngx_stream_quic_relay_conn_t *conn,
    const uint8_t *data, size_t len);

/* a packet with datagrams: as streams_write(); 0: none is waiting */
ngtcp2_ssize ngx_stream_quic_relay_datagrams_write(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_path *path, ngtcp2_pkt_info *pi,
    uint8_t *dest, size_t len, ngtcp2_tstamp ts);
void ngx_stream_quic_relay_datagrams_free(ngx_stream_quic_relay_t *relay);


extern ngx_module_t  ngx_stream_quic_relay_module;


#endif /* _NGX_STREAM_QUIC_RELAY_MODULE_H_INCLUDED_ */
