
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Mode A.  A packet's way: a listener is read in batches (_listen.c, _udp.c),
 * each datagram finds its flow by the client's and the local address
 * (_flow.c), the flow finds the backend by the routing table (_route.c), and
 * the datagram leaves on the flow's leg to that backend (_leg.c).  Replies
 * come in on the leg and leave on the listener's socket.
 *
 * All of it belongs to one worker; workers share nothing but counters.
 */


#ifndef _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_
#define _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "quic_lb_table.h"


/* messages of a batch; with UDP_GRO each holds up to 64 datagrams */

#define NGX_STREAM_QUIC_PT_MESSAGES   16
#define NGX_STREAM_QUIC_PT_SEGMENTS   64      /* every Linux sends as many */
#define NGX_STREAM_QUIC_PT_BUFFER     65536   /* no UDP payload is longer */
#define NGX_STREAM_QUIC_PT_PAYLOAD    65507   /* the most of one send */

/* pieces and runs that a batch has room for; with more it is sent in parts */

#define NGX_STREAM_QUIC_PT_BATCH                                              \
    (NGX_STREAM_QUIC_PT_MESSAGES * NGX_STREAM_QUIC_PT_SEGMENTS)

/* batches read from one socket before the others have their turn */

#define NGX_STREAM_QUIC_PT_TURN       4

#define NGX_STREAM_QUIC_PT_HALF_OPEN  10000   /* ms a half-open flow lives */
#define NGX_STREAM_QUIC_PT_REFUSED    5000    /* ms a refusal is kept */
#define NGX_STREAM_QUIC_PT_QUEUE      16      /* datagrams before content */
#define NGX_STREAM_QUIC_PT_LEGS       32      /* legs of a flow */
#define NGX_STREAM_QUIC_PT_STATES     64      /* upstream states of a flow */
#define NGX_STREAM_QUIC_PT_CONNS      16      /* connections of a flow */


/* datagrams, unless said otherwise; $quic_passthrough_NAME */

typedef enum {
    NGX_STREAM_QUIC_PT_RECEIVED = 0,      /* from clients */
    NGX_STREAM_QUIC_PT_SENT,              /* to backends */
    NGX_STREAM_QUIC_PT_REPLIES,           /* to clients */
    NGX_STREAM_QUIC_PT_FLOWS,             /* flows made */
    NGX_STREAM_QUIC_PT_EVICTED,           /* half-open flows evicted */
    NGX_STREAM_QUIC_PT_MALFORMED,         /* dropped: not QUIC */
    NGX_STREAM_QUIC_PT_UNROUTABLE,        /* dropped: nothing known */
    NGX_STREAM_QUIC_PT_REFUSED_FLOW,      /* dropped: access, limit_conn */
    NGX_STREAM_QUIC_PT_OVERLOAD,          /* dropped: a bound is reached */
    NGX_STREAM_QUIC_PT_NO_BACKEND,        /* dropped: no live backend */
    NGX_STREAM_QUIC_PT_SEND_FAILED,       /* dropped: socket full, error */
    NGX_STREAM_QUIC_PT_COUNTERS
} ngx_stream_quic_passthrough_counter_e;


typedef struct ngx_stream_quic_passthrough_worker_s
    ngx_stream_quic_passthrough_worker_t;
typedef struct ngx_stream_quic_passthrough_listener_s
    ngx_stream_quic_passthrough_listener_t;
typedef struct ngx_stream_quic_passthrough_flow_s
    ngx_stream_quic_passthrough_flow_t;
typedef struct ngx_stream_quic_passthrough_leg_s
    ngx_stream_quic_passthrough_leg_t;


typedef struct {
    ngx_shm_zone_t                         *zone;
    ngx_atomic_t                           *counters;
    ngx_stream_quic_passthrough_worker_t   *worker;
    ngx_uint_t                              used;    /* unsigned  used:1; */
} ngx_stream_quic_passthrough_main_conf_t;


typedef struct {
    ngx_stream_upstream_srv_conf_t         *upstream;
    ngx_stream_complex_value_t             *upstream_value;
    ngx_msec_t                              timeout;

    /* in the default server of a listen address: all its servers' */
    ngx_stream_quic_lb_router_t            *router;
} ngx_stream_quic_passthrough_srv_conf_t;


/* a message as it was read: one datagram or, with UDP_GRO, a train */

typedef struct {
    u_char                                 *data;
    size_t                                  len;
    size_t                                  segment; /* octets, last: less */
    ngx_uint_t                              ecn;     /* RFC 3168, 0 to 3 */
    socklen_t                               socklen;
    ngx_sockaddr_t                          sockaddr;
    ngx_sockaddr_t                          local;   /* wildcard listens */
} ngx_stream_quic_passthrough_message_t;


/* adjacent datagrams in memory */

typedef struct ngx_stream_quic_passthrough_piece_s
    ngx_stream_quic_passthrough_piece_t;

struct ngx_stream_quic_passthrough_piece_s {
    u_char                                 *data;
    size_t                                  len;
    ngx_stream_quic_passthrough_piece_t    *next;
};


/* datagrams for one UDP_SEGMENT send: of equal size, the last may be less */

typedef struct ngx_stream_quic_passthrough_run_s
    ngx_stream_quic_passthrough_run_t;

struct ngx_stream_quic_passthrough_run_s {
    ngx_stream_quic_passthrough_piece_t    *pieces;
    ngx_stream_quic_passthrough_piece_t    *last;
    size_t                                  segment;
    size_t                                  size;
    ngx_uint_t                              segments;
    ngx_uint_t                              ecn;
    unsigned                                closed:1;
    ngx_stream_quic_passthrough_run_t      *next;
};


/* a socket's outgoing side; the runs refer to the batch that was read */

typedef struct {
    ngx_socket_t                            fd;
    struct sockaddr                        *sockaddr; /* NULL: connected */
    socklen_t                               socklen;
    struct sockaddr                        *local;    /* NULL: as bound */
    ngx_uint_t                              family;
    ngx_uint_t                             *plain;    /* 1: no UDP_SEGMENT */
    ngx_uint_t                              counter;
    ngx_log_t                              *log;
    ngx_stream_quic_passthrough_run_t      *runs;
    ngx_stream_quic_passthrough_run_t      *last;
} ngx_stream_quic_passthrough_tx_t;


typedef struct {
    ngx_uint_t                              npieces;
    ngx_uint_t                              nruns;
    u_char                                 *buffers;
    ngx_stream_quic_passthrough_message_t   messages[
                                                NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_passthrough_piece_t     pieces[NGX_STREAM_QUIC_PT_BATCH];
    ngx_stream_quic_passthrough_run_t       runs[NGX_STREAM_QUIC_PT_BATCH];
} ngx_stream_quic_passthrough_batch_t;


struct ngx_stream_quic_passthrough_worker_s {
    ngx_cycle_t                            *cycle;
    ngx_log_t                              *log;
    ngx_atomic_t                           *counters;

    /*
     * Flows by client and local address; the key is random, so clients cannot
     * choose what collides.  Entered by a client's first datagram, removed
     * with the session or, if it was refused, some seconds later.  Bound:
     * flow_limit.  Not kept over a reload: the new worker routes by
     * connection ID, the old one keeps its flows until they fall idle.
     */
    quic_lb_table_t                         flows;
    quic_lb_table_node_t                  **flow_buckets;

    /*
     * Backends by address, with the time they last answered.  Entered by the
     * first leg to one, removed with the last.
     */
    quic_lb_table_t                         backends;
    quic_lb_table_node_t                  **backend_buckets;

    quic_lb_hash_key_t                      key;

    ngx_queue_t                             half_open;    /* oldest first */
    ngx_queue_t                             confirmed;
    ngx_queue_t                             refused;      /* oldest first */
    ngx_uint_t                              nhalf_open;
    ngx_uint_t                              half_open_limit;
    ngx_uint_t                              reserve;      /* connections */
    time_t                                  complained;   /* no room */
    time_t                                  no_live;      /* upstreams */

    ngx_queue_t                             listeners;
    ngx_queue_t                             pending;      /* legs to flush */
    ngx_stream_quic_passthrough_flow_t     *recent;       /* of this batch */
    ngx_stream_quic_passthrough_batch_t    *batch;
};


struct ngx_stream_quic_passthrough_listener_s {
    ngx_queue_t                             queue;
    ngx_stream_quic_passthrough_worker_t   *worker;
    ngx_listening_t                        *listening;
    ngx_connection_t                       *connection;   /* on a dup */
    ngx_event_t                             poll;
    ngx_event_t                             options;
    ngx_uint_t                              plain;
    unsigned                                exiting:1;
};


/* a connection's IDs as seen in long headers; hashes, 0: none */

typedef struct {
    uint64_t                                client_cid;
    uint64_t                                server_cid;
    ngx_stream_quic_passthrough_leg_t      *leg;
} ngx_stream_quic_passthrough_conn_t;


typedef struct {
    ngx_queue_t                             queue;
    size_t                                  len;
    ngx_uint_t                              ecn;
    u_char                                  data[1];
} ngx_stream_quic_passthrough_queued_t;


struct ngx_stream_quic_passthrough_flow_s {
    quic_lb_table_node_t                    node;         /* must be first */
    ngx_queue_t                             queue;
    ngx_stream_quic_passthrough_listener_t *listener;

    ngx_stream_session_t                   *session;
    ngx_stream_upstream_srv_conf_t         *upstream;
    ngx_stream_upstream_resolved_t         *resolved;     /* no upstream */

    ngx_queue_t                             legs;
    ngx_uint_t                              nlegs;
    ngx_stream_quic_passthrough_leg_t      *last;

    /* the last decision: good as long as the DCID repeats */
    ngx_stream_quic_lb_route_t              route;
    ngx_stream_quic_passthrough_leg_t      *route_leg;

    ngx_stream_quic_passthrough_conn_t      conns[NGX_STREAM_QUIC_PT_CONNS];
    ngx_uint_t                              nconns;       /* ever made */

    ngx_queue_t                             datagrams;    /* not ready yet */
    ngx_uint_t                              ndatagrams;

    ngx_msec_t                              timeout;
    ngx_msec_t                              started;      /* or refused */

    socklen_t                               socklen;
    ngx_sockaddr_t                          client;
    ngx_sockaddr_t                          local;

    unsigned                                ready:1;      /* has a content */
    unsigned                                established:1; /* not limited */
    unsigned                                limited:1;     /* opens nothing */
    unsigned                                answered:1;
    unsigned                                half_open:1;
    unsigned                                refused:1;    /* no session */
    unsigned                                closing:1;
};


typedef struct {
    quic_lb_table_node_t                    node;         /* must be first */
    ngx_uint_t                              refs;
    ngx_msec_t                              answered;
    time_t                                  complained;
    socklen_t                               socklen;
    ngx_sockaddr_t                          sockaddr;
} ngx_stream_quic_passthrough_backend_t;


struct ngx_stream_quic_passthrough_leg_s {
    ngx_queue_t                             queue;
    ngx_queue_t                             pending;
    ngx_stream_quic_passthrough_flow_t     *flow;
    ngx_pool_t                             *pool;
    ngx_stream_upstream_t                   upstream;
    ngx_stream_quic_passthrough_backend_t  *backend;
    ngx_stream_quic_passthrough_tx_t        tx;
    ngx_uint_t                              plain;
    ngx_uint_t                              state;        /* its index */
    ngx_msec_t                              started;
    ngx_msec_t                              active;       /* last datagram */
    off_t                                   received;

    unsigned                                is_pending:1;
    unsigned                                opened:1;     /* by an Initial */
    unsigned                                answered:1;
    unsigned                                failed:1;
};


#define ngx_stream_quic_passthrough_batch_full(batch)                         \
    ((batch)->npieces == NGX_STREAM_QUIC_PT_BATCH                             \
     || (batch)->nruns == NGX_STREAM_QUIC_PT_BATCH)


#define ngx_stream_quic_passthrough_count(worker, counter, n)                 \
    (void) ngx_atomic_fetch_add(&(worker)->counters[counter], n)


/*
 * _module.c.  admit returns NGX_OK if |flow| may open connections; it may not
 * if "limit_conn" would have refused it as a new one.
 */

ngx_int_t ngx_stream_quic_passthrough_admit(
    ngx_stream_quic_passthrough_flow_t *flow);
ngx_uint_t ngx_stream_quic_passthrough_listening(ngx_listening_t *ls);
void ngx_stream_quic_passthrough_handler(ngx_stream_session_t *s);

/* _listen.c: sockets over the life of processes */

ngx_int_t ngx_stream_quic_passthrough_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_stream_quic_passthrough_init_process(ngx_cycle_t *cycle);
void ngx_stream_quic_passthrough_exit_process(ngx_cycle_t *cycle);

/*
 * _udp.c: batched datagram I/O.  recv returns the number of messages read
 * into worker->batch, 0 for EAGAIN, NGX_ERROR with ngx_socket_errno.
 * append adds a datagram of the batch, which must not be full, to what |tx|
 * sends at the next flush; flush counts what left in |tx->counter| and
 * returns 0 or the error of a connected socket that kept a datagram
 * from leaving.
 */

ngx_int_t ngx_stream_quic_passthrough_recv(
    ngx_stream_quic_passthrough_worker_t *worker, ngx_socket_t fd,
    ngx_listening_t *ls);
void ngx_stream_quic_passthrough_append(
    ngx_stream_quic_passthrough_worker_t *worker,
    ngx_stream_quic_passthrough_tx_t *tx, u_char *data, size_t len,
    ngx_uint_t ecn);
ngx_err_t ngx_stream_quic_passthrough_flush(
    ngx_stream_quic_passthrough_worker_t *worker,
    ngx_stream_quic_passthrough_tx_t *tx);
void ngx_stream_quic_passthrough_socket_options(ngx_socket_t fd,
    ngx_uint_t family, ngx_uint_t on, ngx_log_t *log);

/* _flow.c */

void ngx_stream_quic_passthrough_message(
    ngx_stream_quic_passthrough_listener_t *listener,
    ngx_stream_quic_passthrough_message_t *m);
void ngx_stream_quic_passthrough_flow_ready(
    ngx_stream_quic_passthrough_flow_t *flow);
void ngx_stream_quic_passthrough_flow_close(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_uint_t rc);
void ngx_stream_quic_passthrough_flow_refuse(
    ngx_stream_quic_passthrough_flow_t *flow, ngx_uint_t rc);
ngx_stream_quic_passthrough_flow_t *ngx_stream_quic_passthrough_flow_find(
    ngx_stream_session_t *s);
void ngx_stream_quic_passthrough_flows_done(
    ngx_stream_quic_passthrough_worker_t *worker);

/*
 * _route.c: the routing table.  decide fills |route| for the packet |pkt| of
 * |flow|, which is NULL for an unknown address, and |*leg| where the table
 * names one; it returns NGX_DECLINED for a datagram to be dropped.
 */

ngx_int_t ngx_stream_quic_passthrough_decide(
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_quic_lb_router_t *router, struct sockaddr *client,
    struct sockaddr *local, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route,
    ngx_stream_quic_passthrough_leg_t **leg);
ngx_stream_quic_passthrough_leg_t *ngx_stream_quic_passthrough_repeated(
    ngx_stream_quic_passthrough_flow_t *flow, u_char *data, size_t len);
void ngx_stream_quic_passthrough_learn_client(
    ngx_stream_quic_passthrough_flow_t *flow, quic_lb_packet_t *pkt,
    ngx_stream_quic_passthrough_leg_t *leg);
void ngx_stream_quic_passthrough_learn_server(
    ngx_stream_quic_passthrough_leg_t *leg, u_char *data, size_t len);
void ngx_stream_quic_passthrough_forget(
    ngx_stream_quic_passthrough_leg_t *leg);
ngx_stream_quic_lb_router_t *ngx_stream_quic_passthrough_router(
    ngx_listening_t *ls, struct sockaddr *local);

/*
 * _leg.c.  get returns the flow's leg to the backend that |route| names, made
 * if need be, or NULL if there is no live backend or no room.
 */

ngx_stream_quic_passthrough_leg_t *ngx_stream_quic_passthrough_leg_get(
    ngx_stream_quic_passthrough_flow_t *flow,
    ngx_stream_quic_lb_route_t *route);
void ngx_stream_quic_passthrough_leg_send(
    ngx_stream_quic_passthrough_leg_t *leg, u_char *data, size_t len,
    ngx_uint_t ecn);
void ngx_stream_quic_passthrough_legs_flush(
    ngx_stream_quic_passthrough_worker_t *worker);
void ngx_stream_quic_passthrough_leg_close(
    ngx_stream_quic_passthrough_leg_t *leg);


extern ngx_module_t  ngx_stream_quic_passthrough_module;


#endif /* _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_ */
