
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Relay.  A client's datagram is read from the listening socket (_udp.c) and
 * finds its connection by the destination connection ID (_input.c); a new one
 * becomes an nginx stream session (_session.c).  Each session has two QUIC
 * connections of ngtcp2 (_conn.c, _callbacks.c): one ends the client's, the
 * other goes to the upstream (_target.c, _upstream.c).  The client's handshake
 * is held until the upstream has answered (_tls.c).  Streams (_stream.c) and
 * datagrams (_datagram.c) go from one connection to its peer.
 *
 * All of it belongs to one worker.  The connection IDs that clients are given
 * (_ids.c) name a server to QUIC-LB balancers and, behind that, the worker: a
 * datagram that meets another one is handed over (_handover.c).  Who reads a
 * listening socket while workers come and go is in _listen.c.
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

#include "ngx_stream_quic_lb_target.h"
#include "quic_lb_cid.h"
#include "quic_lb_hash.h"
#include "quic_lb_owner.h"
#include "quic_lb_table.h"


/*
 * Octets of the connection IDs that clients are given, always: short headers
 * do not tell (RFC 9000, 5.2).  Those toward upstreams are shorter.
 */
#define NGX_STREAM_QUIC_RELAY_CID       20
#define NGX_STREAM_QUIC_RELAY_UPSTREAM_CID  8

/* workers that can be told apart; no worker */
#define NGX_STREAM_QUIC_RELAY_SLOTS     1024
#define NGX_STREAM_QUIC_RELAY_NO_SLOT   NGX_STREAM_QUIC_RELAY_SLOTS

/* octets of secrets */
#define NGX_STREAM_QUIC_RELAY_SECRET    32

/* octets; no UDP payload is longer */
#define NGX_STREAM_QUIC_RELAY_BUFFER  65536

/* packets and octets of one send: what UDP_SEGMENT takes */
#define NGX_STREAM_QUIC_RELAY_SEGMENTS  64
#define NGX_STREAM_QUIC_RELAY_TRAIN     65507

/* octets of an ALPN offer that is passed on */
#define NGX_STREAM_QUIC_RELAY_ALPN    1024

/* STOP_SENDING frames of one datagram */
#define NGX_STREAM_QUIC_RELAY_STOPS   512

/* connection IDs of one connection, ngtcp2's pool and those of the client */
#define NGX_STREAM_QUIC_RELAY_CIDS    32


typedef struct ngx_stream_quic_relay_s         ngx_stream_quic_relay_t;
typedef struct ngx_stream_quic_relay_conn_s    ngx_stream_quic_relay_conn_t;
typedef struct ngx_stream_quic_relay_worker_s  ngx_stream_quic_relay_worker_t;

/* of _handover.c alone */
typedef struct ngx_stream_quic_relay_handover_s
                                            ngx_stream_quic_relay_handover_t;

/* of _tickets.c alone */
typedef struct ngx_stream_quic_relay_tickets_s
                                            ngx_stream_quic_relay_tickets_t;

/* of _stream.c and _datagram.c alone */
typedef struct ngx_stream_quic_relay_streams_s
                                            ngx_stream_quic_relay_streams_t;
typedef struct ngx_stream_quic_relay_datagrams_s
                                            ngx_stream_quic_relay_datagrams_t;


/*
 * Nonces of one server ID under one key, in shared memory.  They are counted,
 * so that none is used twice (QUIC-LB, "Connection ID Entropy").  Entered for
 * each new key, server ID or length, never removed: an old key may come back.
 * Bound: the zone.
 */

typedef struct {
    ngx_queue_t                      queue;
    u_char                           digest[NGX_STREAM_QUIC_RELAY_SECRET];
    u_char                           start[QUIC_LB_NONCE_MAX];
    ngx_atomic_t                     used;
} ngx_stream_quic_relay_nonces_t;


/* "quic_relay_server_id" */

typedef struct {
    quic_lb_cid_conf_t               lb;
    u_char                           server_id[QUIC_LB_SERVER_ID_MAX];
    u_char                           digest[NGX_STREAM_QUIC_RELAY_SECRET];
    ngx_stream_quic_relay_nonces_t  *nonces;      /* NULL: no key */
    unsigned                         exhausted:1; /* that was logged */
} ngx_stream_quic_relay_ids_t;


/* counters of all workers, in the order of the variables' names */

typedef enum {
    NGX_STREAM_QUIC_RELAY_CONNECTIONS = 0,
    NGX_STREAM_QUIC_RELAY_REFUSED,
    NGX_STREAM_QUIC_RELAY_EVICTED,
    NGX_STREAM_QUIC_RELAY_UPSTREAM_FAILED,
    NGX_STREAM_QUIC_RELAY_STREAMS,
    NGX_STREAM_QUIC_RELAY_DATAGRAMS,
    NGX_STREAM_QUIC_RELAY_DATAGRAMS_DROPPED,
    NGX_STREAM_QUIC_RELAY_HANDED_OVER,
    NGX_STREAM_QUIC_RELAY_HANDOVER_LOST,
    NGX_STREAM_QUIC_RELAY_STATELESS_RESETS,
    NGX_STREAM_QUIC_RELAY_RETRIES,
    NGX_STREAM_QUIC_RELAY_TOTALS
} ngx_stream_quic_relay_total_e;


/* in shared memory, from the first configuration with a relay to the last */

typedef struct {
    ngx_queue_t                      nonces;
    u_char                           tokens[NGX_STREAM_QUIC_RELAY_SECRET];
    u_char                           workers[NGX_STREAM_QUIC_RELAY_SECRET];
    ngx_atomic_t                     totals[NGX_STREAM_QUIC_RELAY_TOTALS];
} ngx_stream_quic_relay_shared_t;


#define ngx_stream_quic_relay_count(worker, total, n)                         \
    (void) ngx_atomic_fetch_add(&(worker)->shared->totals[total], n)


typedef struct {
    ngx_stream_quic_relay_worker_t  *worker;      /* in a worker */
    ngx_stream_quic_relay_shared_t  *shared;
    ngx_array_t                      ids;         /* those with a key */
    u_char                           host_key[NGX_STREAM_QUIC_RELAY_SECRET];
    ngx_int_t                        server_name; /* index of a variable */
    unsigned                         has_host_key:1;
    unsigned                         used:1;
} ngx_stream_quic_relay_main_conf_t;


#define NGX_STREAM_QUIC_RELAY_RETRY_OFF       0
#define NGX_STREAM_QUIC_RELAY_RETRY_ON        1
#define NGX_STREAM_QUIC_RELAY_RETRY_ADAPTIVE  2


/* "quic_relay_retry", and in a worker how it stands at an address */

typedef struct {
    ngx_uint_t                       mode;
    ngx_uint_t                       threshold;   /* 0: the default */
    ngx_msec_t                       handshake;   /* the longest one */

    uint64_t                         answered;    /* hash of a DCID */
    ngx_msec_t                       answered_at;

    /* "adaptive" */

    ngx_event_t                      event;       /* each second while on */
    ngx_stream_quic_relay_worker_t  *worker;      /* NULL: it is not on */
    ngx_listening_t                 *listening;
    time_t                           since;
    ngx_uint_t                       quiet;       /* s */
    ngx_uint_t                       sent;        /* since it is on */
    ngx_uint_t                       accepted;
    ngx_uint_t                       unanswered;  /* a second ago */
} ngx_stream_quic_relay_retry_t;


typedef struct {
    ngx_stream_upstream_srv_conf_t  *upstream;    /* NULL: by the value */
    ngx_stream_complex_value_t      *upstream_value;
    ngx_stream_core_srv_conf_t      *core;        /* NULL: no relay */

    ngx_stream_complex_value_t      *ssl_name;    /* NULL: the upstream's */
    ngx_str_t                        ssl_certificate;     /* the relay's own */
    ngx_str_t                        ssl_certificate_key;
    ngx_str_t                        ssl_trusted_certificate;
    ngx_str_t                        ssl_crl;
    ngx_uint_t                       ssl_verify_depth;
    ngx_ssl_t                        ssl;         /* to the upstream */
    ngx_flag_t                       ssl_session_reuse;
    ngx_stream_quic_relay_tickets_t  *tickets;    /* NULL: none are used */

    size_t                           stream_window;   /* octets */
    ngx_uint_t                       max_streams;     /* of each kind */
    ngx_uint_t                       datagram_queue;  /* datagrams */
    ngx_msec_t                       timeout;         /* idle */
    ngx_msec_t                       connect_timeout; /* and handshake */

    ngx_stream_quic_relay_retry_t    retry;
    ngx_array_t                     *retry_keys;  /* of balancers */
    ngx_sockaddr_t                  *preferred4;  /* "preferred_address" */
    ngx_sockaddr_t                  *preferred6;

    ngx_stream_quic_relay_ids_t     *ids;         /* NULL: not for QUIC-LB */

    unsigned                         named:1;     /* perhaps by clients */
} ngx_stream_quic_relay_srv_conf_t;


/* what a client's token tells */

typedef struct {
    ngtcp2_token_type                type;
    ngtcp2_cid                       odcid;       /* of before a Retry */
} ngx_stream_quic_relay_token_t;


/* STOP_SENDING as received */

typedef struct {
    int64_t                          id;
    uint64_t                         code;
} ngx_stream_quic_relay_stop_t;


struct ngx_stream_quic_relay_worker_s {
    ngx_log_t                       *log;
    ngx_stream_quic_relay_shared_t  *shared;

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

    ngx_stream_quic_relay_handover_t  *handover;
    ngx_uint_t                       slot;        /* this worker's */
    quic_lb_hash_key_t               mask;        /* hides slots in IDs */

    ngx_queue_t                      listeners;

    /* half-open connections, oldest first, by the client's address */

    ngx_queue_t                      unproved;
    ngx_queue_t                      proved;
    ngx_uint_t                       nhalf_open;
    ngx_uint_t                       half_open_limit;

    ngx_uint_t                       reserve;     /* nginx's connections */
    ngx_uint_t                       turn;        /* work of this event */
    ngx_stream_quic_lb_complaints_t  complaints;  /* about targets */
    u_char                           secret[NGX_STREAM_QUIC_RELAY_SECRET];
    u_char                           retry[NGX_STREAM_QUIC_RELAY_SECRET];
    u_char                          *buffer;      /* to read into */
    u_char                          *out;         /* to write into */
    ngx_uint_t                       segments;    /* packets of one send */
};


/*
 * What one read of a socket brings: datagrams of |segment| octets, of which
 * the last one may be shorter.
 */

typedef struct {
    u_char                          *data;        /* worker->buffer */
    size_t                           len;
    size_t                           segment;
    uint8_t                          ecn;         /* mark of all of them */
    socklen_t                        socklen;     /* of the addresses */
    ngx_sockaddr_t                   local;
    ngx_sockaddr_t                   remote;
} ngx_stream_quic_relay_message_t;


/* one datagram */

typedef struct {
    ngtcp2_path                      path;
    ngtcp2_pkt_info                  pi;          /* its ECN mark */
    u_char                          *data;
    size_t                           len;
} ngx_stream_quic_relay_input_t;


/* a listening socket as a worker reads it */

typedef struct {
    ngx_queue_t                      queue;       /* in worker->listeners */
    ngx_stream_quic_relay_worker_t  *worker;
    ngx_listening_t                 *listening;
    ngx_connection_t                *connection;  /* of a dup() */
    quic_lb_owner_t                  owner;       /* last seen */
    ngx_event_t                      poll;        /* for the owner */
    ngx_event_t                      options;     /* of the socket */
    unsigned                         exiting:1;
} ngx_stream_quic_relay_listener_t;


typedef struct {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_queue_t                      queue;       /* in conn->cids */
    ngx_stream_quic_relay_conn_t    *conn;
    ngtcp2_cid                       cid;
} ngx_stream_quic_relay_cid_t;


/* why a session is over */

typedef struct {
    const char                      *by;          /* NULL: it is not */
    uint64_t                         code;
    ngx_uint_t                       application; /* unsigned  :1; its code */
} ngx_stream_quic_relay_end_t;


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
    ngx_queue_t                      queue;       /* of half-open ones */
    ngx_stream_session_t            *session;
    ngx_stream_quic_relay_worker_t  *worker;
    ngx_stream_quic_relay_srv_conf_t  *conf;
    ngx_stream_quic_relay_ids_t     *ids;         /* of the first server */
    ngx_pool_t                      *pool;

    ngx_stream_quic_relay_conn_t     client;
    ngx_stream_quic_relay_conn_t     upstream;

    ngx_stream_quic_relay_streams_t    *streams;
    ngx_stream_quic_relay_datagrams_t  *datagrams;

    ngx_str_t                        ssl_name;    /* ends with a zero */
    time_t                           verified;    /* 0: no ticket is used */

    /* the client's ClientHello */
    ngtcp2_transport_params          params;
    u_char                           alpn[NGX_STREAM_QUIC_RELAY_ALPN];
    size_t                           alpn_len;    /* as on the wire */
    u_char                           chosen[256]; /* by the upstream */
    size_t                           chosen_len;

    /* both ways */
    ngx_uint_t                       nstreams;
    ngx_uint_t                       ndatagrams;  /* passed on */
    ngx_uint_t                       ndropped;    /* datagrams */

    ngx_stream_quic_relay_end_t      end;
    ngx_event_t                      finish;      /* to free it all */
    ngx_int_t                        status;      /* of the session */
    uint8_t                          alert;       /* TLS, to the client */

    unsigned                         helloed:1;   /* ClientHello was seen */
    unsigned                         answered:1;  /* upstream handshake done */
    unsigned                         reused:1;    /* by a ticket */
    unsigned                         refused:1;   /* upstream failed */
    unsigned                         misnamed:1;  /* its name is another */
    unsigned                         relaying:1;  /* both are handshaked */
    unsigned                         retry:1;     /* Retry, no connection */
    unsigned                         half_open:1;
    unsigned                         finishing:1;
    unsigned                         peered:1;    /* balancer is to be told */
};


/* _conn.c */

/* makes the connection toward the client */
ngx_int_t ngx_stream_quic_relay_conn_accept(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token);

/* makes the connection to the upstream; params mirror the client's */
ngx_int_t ngx_stream_quic_relay_conn_connect(
    ngx_stream_quic_relay_conn_t *conn);

/* may end the connection, never frees it */
void ngx_stream_quic_relay_conn_read(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_input_t *in);

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


/* _tickets.c */

ngx_int_t ngx_stream_quic_relay_tickets_init(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf);

/* offers the upstream the session of an earlier connection, if there is one */
void ngx_stream_quic_relay_tickets_use(ngx_stream_quic_relay_conn_t *conn);

/* the handshake has failed: without what it was offered another may not */
void ngx_stream_quic_relay_tickets_failed(ngx_stream_quic_relay_conn_t *conn);


/* _ids.c */

ngx_int_t ngx_stream_quic_relay_ids_add_zone(ngx_conf_t *cf);

/* the secrets of a worker, from those that all have */
ngx_int_t ngx_stream_quic_relay_ids_init_worker(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_main_conf_t *rmcf);

/* |secret| by HMAC, of NGX_STREAM_QUIC_RELAY_SECRET octets as |from| */
ngx_int_t ngx_stream_quic_relay_ids_secret(u_char *secret, const u_char *from,
    const char *label);

/* a new connection ID for clients of the worker at |slot|; |ids| may be NULL */
ngx_int_t ngx_stream_quic_relay_ids_mint(
    ngx_stream_quic_relay_worker_t *worker, ngx_stream_quic_relay_ids_t *ids,
    ngx_uint_t slot, ngtcp2_cid *cid);

/* the slot in a connection ID, NGX_STREAM_QUIC_RELAY_NO_SLOT if none is */
ngx_uint_t ngx_stream_quic_relay_ids_slot(
    ngx_stream_quic_relay_worker_t *worker, const uint8_t *cid, size_t len);
ngx_int_t ngx_stream_quic_relay_ids_token(
    ngx_stream_quic_relay_worker_t *worker, const ngtcp2_cid *cid,
    uint8_t *token);


/* _ids_conf.c */

char *ngx_stream_quic_relay_ids_server_id(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_stream_quic_relay_ids_host_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/* _token.c */

/*
 * The token of an Initial packet.  NGX_OK: it proves the client's address;
 * NGX_DECLINED: there is none, or none that is known; NGX_ERROR: it is of a
 * Retry, and wrong.
 */
ngx_int_t ngx_stream_quic_relay_token_check(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_srv_conf_t *conf, ngtcp2_path *path,
    ngtcp2_pkt_hd *hd, ngx_stream_quic_relay_token_t *token);

/* writes a Retry to worker->out, and returns its octets; 0: none */
size_t ngx_stream_quic_relay_token_retry(
    ngx_stream_quic_relay_worker_t *worker, ngx_stream_quic_relay_ids_t *ids,
    ngtcp2_path *path, ngtcp2_pkt_hd *hd);

/* setter of "quic_relay_retry_key" */
char *ngx_stream_quic_relay_token_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* sends one for a later connection */
ngx_int_t ngx_stream_quic_relay_token_new(ngx_stream_quic_relay_conn_t *conn);


/* _retry.c */

/* setter of "quic_relay_retry" */
char *ngx_stream_quic_relay_retry(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* whether a new client has to prove its address */
ngx_uint_t ngx_stream_quic_relay_retry_wanted(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_retry_t *retry, ngx_listening_t *ls);

/* as token_retry(); 0, too, if the client has just got one */
size_t ngx_stream_quic_relay_retry_write(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_srv_conf_t *conf, ngtcp2_path *path,
    ngtcp2_pkt_hd *hd);


/* _half_open.c */

/* of nginx's |connections| */
void ngx_stream_quic_relay_half_open_init(
    ngx_stream_quic_relay_worker_t *worker, ngx_uint_t connections);

/*
 * Makes room for one more, by ending others; NGX_DECLINED: there is none.
 * |validated|: its client has proved its address.
 */
ngx_int_t ngx_stream_quic_relay_half_open_room(
    ngx_stream_quic_relay_worker_t *worker, ngx_uint_t validated);
void ngx_stream_quic_relay_half_open_add(ngx_stream_quic_relay_t *relay,
    ngx_uint_t validated);

/* it may be none any more */
void ngx_stream_quic_relay_half_open_remove(ngx_stream_quic_relay_t *relay);


/* _handover.c */

/* sets worker->slot; without one nothing is handed over */
ngx_int_t ngx_stream_quic_relay_handover_open(
    ngx_stream_quic_relay_worker_t *worker, ngx_cycle_t *cycle,
    ngx_stream_quic_relay_shared_t *shared);
void ngx_stream_quic_relay_handover_close(
    ngx_stream_quic_relay_worker_t *worker);

/*
 * Gives a datagram to the worker at |slot|, with others of this turn.  If it
 * is gone, they come back by udp_handed().
 */
void ngx_stream_quic_relay_handover_add(
    ngx_stream_quic_relay_worker_t *worker, ngx_uint_t slot,
    ngx_stream_quic_relay_input_t *in);
void ngx_stream_quic_relay_handover_flush(
    ngx_stream_quic_relay_worker_t *worker);


/* _listen.c */

ngx_uint_t ngx_stream_quic_relay_listening(ngx_listening_t *ls);

/* that of the default server of the address |local| */
ngx_stream_quic_relay_srv_conf_t *ngx_stream_quic_relay_listen_conf(
    ngx_listening_t *ls, struct sockaddr *local);
ngx_int_t ngx_stream_quic_relay_listen_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_stream_quic_relay_listen_init_process(ngx_cycle_t *cycle);
void ngx_stream_quic_relay_listen_exit_process(ngx_cycle_t *cycle);

/* the socket that gets what is sent to |local|, or NULL */
ngx_connection_t *ngx_stream_quic_relay_listen_find(
    ngx_stream_quic_relay_worker_t *worker, struct sockaddr *local,
    socklen_t socklen);


/* _preferred.c */

char *ngx_stream_quic_relay_preferred_address(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);

/* offers the client the address, if there is one */
ngx_int_t ngx_stream_quic_relay_preferred_offer(
    ngx_stream_quic_relay_conn_t *conn, ngtcp2_transport_params *params);


/* _input.c */

/* a turn; what is left comes later */
void ngx_stream_quic_relay_input_client(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc);
void ngx_stream_quic_relay_input_upstream(ngx_event_t *rev);

/* a datagram that another worker has read, or that no worker has taken */
void ngx_stream_quic_relay_input_handed(
    ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_input_t *in);
ngx_int_t ngx_stream_quic_relay_input_add_cid(
    ngx_stream_quic_relay_conn_t *conn, const ngtcp2_cid *cid);
void ngx_stream_quic_relay_input_remove_cid(
    ngx_stream_quic_relay_conn_t *conn, const ngtcp2_cid *cid);


/* _udp.c */

/*
 * Has the kernel join datagrams, tell ECN marks and cut nothing that is sent,
 * or |on| is 0, no more: the options stay with a listening socket, which others
 * may read later.
 */
void ngx_stream_quic_relay_udp_options(ngx_socket_t fd, int family, int on,
    ngx_log_t *log);

/*
 * Reads into m->data; on a connected socket without the addresses.  NGX_AGAIN:
 * there is nothing; NGX_DECLINED: it is of no use; NGX_ERROR, with
 * ngx_socket_errno: what ICMP has told, for example.
 */
ngx_int_t ngx_stream_quic_relay_udp_recv(ngx_connection_t *c,
    ngx_stream_quic_relay_message_t *m);

/* whether the kernel cannot send many datagrams at once */
ngx_uint_t ngx_stream_quic_relay_udp_plain(ngx_socket_t fd, ngx_log_t *log);

/* all with one ECN mark; what the socket does not take counts as lost */
void ngx_stream_quic_relay_udp_send(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_path *path, const ngtcp2_pkt_info *pi, u_char *data,
    size_t len, size_t segment);

/* to a client that has no connection */
void ngx_stream_quic_relay_udp_answer(ngx_connection_t *c,
    const ngtcp2_path *path, u_char *data, size_t len);


/* _session.c */

/* NULL: there is no room; |validated|: the client has proved its address */
ngx_stream_quic_relay_t *ngx_stream_quic_relay_session_create(
    ngx_stream_quic_relay_worker_t *worker, ngx_connection_t *lc,
    ngx_sockaddr_t *remote, socklen_t socklen, ngx_uint_t validated);
void ngx_stream_quic_relay_session_handler(ngx_stream_session_t *s);

/*
 * Both connections are closed and freed: soon, outside of ngtcp2, or when
 * there is no need any more to say again that they are closed.
 */
void ngx_stream_quic_relay_session_finish(ngx_stream_quic_relay_t *relay,
    ngx_int_t status);


/* frees all of it at once, outside of ngtcp2; both ends are told */
void ngx_stream_quic_relay_session_evict(ngx_stream_quic_relay_t *relay);

/* the first reason counts; |error| may be NULL: code 0 */
void ngx_stream_quic_relay_session_end(ngx_stream_quic_relay_t *relay,
    const char *by, const ngtcp2_ccerr *error);


/* _target.c */

/*
 * Sets up the balancer, and the name to be verified.  NGX_AGAIN: a name is
 * being resolved, and upstream_start() called when that is done, or has been.
 */
ngx_int_t ngx_stream_quic_relay_target(ngx_stream_quic_relay_t *relay);
void ngx_stream_quic_relay_target_cancel(ngx_stream_quic_relay_t *relay);

/* of a line about the target or its name */
ngx_uint_t ngx_stream_quic_relay_target_level(ngx_stream_quic_relay_t *relay);


/* _upstream.c */

/* the ClientHello is known: chooses an upstream and connects to it */
void ngx_stream_quic_relay_upstream_connect(ngx_stream_quic_relay_t *relay);

/* the target is known, or it cannot be */
void ngx_stream_quic_relay_upstream_start(ngx_stream_quic_relay_t *relay,
    ngx_int_t rc);

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


/* _variables.c */

ngx_int_t ngx_stream_quic_relay_add_variables(ngx_conf_t *cf);


extern ngx_module_t  ngx_stream_quic_relay_module;


#endif /* _NGX_STREAM_QUIC_RELAY_MODULE_H_INCLUDED_ */
