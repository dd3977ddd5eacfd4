
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Passthrough.  A packet's way: a listener is read in batches (_listen.c,
 * _udp.c), each datagram finds its flow by the client's and the local address
 * (_datagram.c, _flow.c), the flow finds the backend by the routing table
 * (_route.c), and the datagram leaves on the flow's leg to that backend
 * (_leg.c, _leg_io.c, _udp_send.c).  Replies come in on the leg and leave on
 * the listener's socket.
 *
 * All of it belongs to one worker; workers share nothing but the counters, the
 * evidence against backends, the learned connection IDs, and the ports of legs.
 * "pt" stands for passthrough.
 */


#ifndef _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_
#define _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_successor.h"
#include "ngx_stream_quic_lb_target.h"
#include "ngx_stream_upstream_quic_lb_module.h"
#include "quic_lb_learned.h"
#include "quic_lb_owner.h"
#include "quic_lb_retry.h"
#include "quic_lb_table.h"


/*
 * Messages of a batch.  With UDP_GRO each may hold as many datagrams as its
 * sender put into one send: 64, or 128 since Linux 6.9 (UDP_MAX_SEGMENTS).
 */
#define NGX_STREAM_QUIC_PT_MESSAGES   16

/* datagrams of one send: what all versions of Linux take */
#define NGX_STREAM_QUIC_PT_SEGMENTS   64

/* octets; no UDP payload is longer, and with IPv4 headers none of a send */
#define NGX_STREAM_QUIC_PT_BUFFER     65536
#define NGX_STREAM_QUIC_PT_PAYLOAD    65507

/* pieces and runs that a batch has room for; with more it is sent in parts */
#define NGX_STREAM_QUIC_PT_BATCH                                              \
    (NGX_STREAM_QUIC_PT_MESSAGES * NGX_STREAM_QUIC_PT_SEGMENTS)

/*
 * Batches read from one socket before others, and timers, have their turn:
 * at most 64 messages, some 10 ms of work.
 */
#define NGX_STREAM_QUIC_PT_TURN       4

/* ms; a client's handshake has sent five Initials in 10 s (RFC 9002, 6.2) */
#define NGX_STREAM_QUIC_PT_HALF_OPEN  10000

/*
 * Rounds of an answer and more of the client, and ms from one to the next, that
 * make a flow a sustained one.
 */
#define NGX_STREAM_QUIC_PT_ROUNDS     4
#define NGX_STREAM_QUIC_PT_ROUND      500

/* ms that a refused client is not asked about again */
#define NGX_STREAM_QUIC_PT_REFUSED    5000

/* datagrams kept for a flow that waits: a flight of a handshake */
#define NGX_STREAM_QUIC_PT_QUEUE      16

/* octets kept for a flow that waits, and for all of a worker */
#define NGX_STREAM_QUIC_PT_QUEUED     32768
#define NGX_STREAM_QUIC_PT_QUEUED_ALL (8 * 1024 * 1024)

/* lines a second that a worker logs about backends, and about peers */
#define NGX_STREAM_QUIC_PT_COMPLAINTS 8

/* ms until a socket is tried again: that is congested, that cannot be read */
#define NGX_STREAM_QUIC_PT_CONGESTED  10
#define NGX_STREAM_QUIC_PT_PAUSE      200

/* octets of a receive buffer: 3,600 Initials of a burst, as Linux counts */
#define NGX_STREAM_QUIC_PT_RCVBUF     (4 * 1024 * 1024)

/* backends that the workers share evidence about */
#define NGX_STREAM_QUIC_PT_EVIDENCE   1024

/* ms that an answer may go unnoticed by other workers */
#define NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN  100

/* octets kept for a socket that is full: four sends of the largest size */
#define NGX_STREAM_QUIC_PT_BACKLOG    (4 * NGX_STREAM_QUIC_PT_BUFFER)

/*
 * Of one flow, so that a client cannot have more: legs, each a socket;
 * entries in $upstream_addr; pairs of connection IDs, of which a connection has
 * two in its handshake, at first and if some of them are proven.
 */
#define NGX_STREAM_QUIC_PT_LEGS       32
#define NGX_STREAM_QUIC_PT_STATES     64
#define NGX_STREAM_QUIC_PT_CONNS      32
#define NGX_STREAM_QUIC_PT_CONNS_MAX  256

/* RFC 8999, 5.1: octets of the longest connection ID */
#define NGX_STREAM_QUIC_PT_CID        255

/* octets of a connection ID that nobody guesses, as a nonce has at least */
#define NGX_STREAM_QUIC_PT_CID_PROOF  4

/* places for ports: two for each port that there may be */
#define NGX_STREAM_QUIC_PT_PORTS_BUCKETS  16384
#define NGX_STREAM_QUIC_PT_PORTS_PLACES   8


/*
 * Octets.  Short headers do not tell the length of their connection ID, so a
 * shorter one would too often match by chance.
 */

#define NGX_STREAM_QUIC_PT_CID_MIN    4

/* IDs that a client changes to, learned for each leg: some connections' */

#define NGX_STREAM_QUIC_PT_CHANGES    8


/* keys of Retry: the one that tokens are made with, and former ones */

#define NGX_STREAM_QUIC_PT_RETRY_KEYS 4

/* s that a client has to come back with its token, and a server to take it */

#define NGX_STREAM_QUIC_PT_RETRY_TIME         10
#define NGX_STREAM_QUIC_PT_RETRY_SERVER_TIME  600

/* octets of the SCID of a Retry */

#define NGX_STREAM_QUIC_PT_RETRY_SCID 18

/* ms after a Retry in which another datagram of the same hello may come */

#define NGX_STREAM_QUIC_PT_RETRY_HELLO 100

/* s without need until "adaptive" ends */

#define NGX_STREAM_QUIC_PT_RETRY_QUIET 5


/* RFC 8999, 5.1: the bit of the first octet that makes a long header */
#define NGX_STREAM_QUIC_PT_LONG       0x80


/* Linux: udp.h; an older one of the C library may lack them */

#ifndef UDP_SEGMENT
#define UDP_SEGMENT                   103
#endif

#ifndef UDP_GRO
#define UDP_GRO                       104
#endif


/* datagrams, unless said otherwise; $quic_passthrough_NAME */

typedef enum {
    NGX_STREAM_QUIC_PT_RECEIVED = 0,      /* from clients */
    NGX_STREAM_QUIC_PT_SENT,              /* to backends */
    NGX_STREAM_QUIC_PT_REPLIES,           /* to clients */
    NGX_STREAM_QUIC_PT_FLOWS,             /* flows made */
    NGX_STREAM_QUIC_PT_EVICTED,           /* unproven flows evicted */
    NGX_STREAM_QUIC_PT_LEARNED,           /* connection IDs learned */
    NGX_STREAM_QUIC_PT_RETRY_SENT,        /* Initials answered by a Retry */
    NGX_STREAM_QUIC_PT_RETRY_ACCEPTED,    /* flows made by a token */
    NGX_STREAM_QUIC_PT_RETRY_REFUSED,     /* dropped: expired token, ... */
    NGX_STREAM_QUIC_PT_RETRY_DROPPED,     /* dropped: no Retry for it */
    NGX_STREAM_QUIC_PT_MALFORMED,         /* dropped: not QUIC */
    NGX_STREAM_QUIC_PT_UNROUTABLE,        /* dropped: nothing known */
    NGX_STREAM_QUIC_PT_REFUSED_FLOW,      /* dropped: access, limit_conn */
    NGX_STREAM_QUIC_PT_OVERLOAD,          /* dropped: a bound is reached */
    NGX_STREAM_QUIC_PT_NO_BACKEND,        /* dropped: no live backend */
    NGX_STREAM_QUIC_PT_SEND_FAILED,       /* dropped: socket full, error */
    NGX_STREAM_QUIC_PT_TOO_BIG,           /* dropped: over the MTU */
    NGX_STREAM_QUIC_PT_OVERFLOW,          /* dropped by the kernel */
    NGX_STREAM_QUIC_PT_HELLOS,            /* ClientHellos read */
    NGX_STREAM_QUIC_PT_UNREAD,            /* ClientHellos not read */
    NGX_STREAM_QUIC_PT_UNKNOWN_ID,        /* of no known server */
    NGX_STREAM_QUIC_PT_COUNTERS
} ngx_stream_quic_pt_counter_e;


/*
 * What a flow is taken for, in the order in which flows make room for others.
 * Nothing has proven the address of the unproven ones: UNPROVEN is their
 * number.  What proves it is in docs/design.md.
 */

typedef enum {
    NGX_STREAM_QUIC_PT_FOREIGN = 0,       /* began with an unknown version */
    NGX_STREAM_QUIC_PT_PRESUMED,          /* began inside a connection */
    NGX_STREAM_QUIC_PT_OPENING,           /* half-open: began a connection */
    NGX_STREAM_QUIC_PT_SUSTAINED,         /* of both ways, for some time */
    NGX_STREAM_QUIC_PT_CONFIRMED,
    NGX_STREAM_QUIC_PT_GONE,              /* refused: no session any more */
    NGX_STREAM_QUIC_PT_CLASSES
} ngx_stream_quic_pt_class_e;

#define NGX_STREAM_QUIC_PT_UNPROVEN   NGX_STREAM_QUIC_PT_SUSTAINED


typedef struct ngx_stream_quic_pt_worker_s    ngx_stream_quic_pt_worker_t;
typedef struct ngx_stream_quic_pt_listener_s  ngx_stream_quic_pt_listener_t;
typedef struct ngx_stream_quic_pt_flow_s      ngx_stream_quic_pt_flow_t;
typedef struct ngx_stream_quic_pt_source_s    ngx_stream_quic_pt_source_t;
typedef struct ngx_stream_quic_pt_leg_s       ngx_stream_quic_pt_leg_t;
typedef struct ngx_stream_quic_pt_piece_s     ngx_stream_quic_pt_piece_t;
typedef struct ngx_stream_quic_pt_run_s       ngx_stream_quic_pt_run_t;
typedef struct ngx_stream_quic_pt_socket_s    ngx_stream_quic_pt_socket_t;
typedef struct ngx_stream_quic_pt_rates_s     ngx_stream_quic_pt_rates_t;

typedef struct ngx_stream_quic_preread_s      ngx_stream_quic_preread_t;
typedef struct ngx_stream_quic_preread_ctx_s  ngx_stream_quic_preread_ctx_t;


/* ports of legs, see _ports.c; in shared memory, even of two masters */

typedef struct {
    uint64_t                         magic;
    quic_lb_hash_key_t               secret;
    uint64_t                         reserved[5];
    uint64_t                         places[NGX_STREAM_QUIC_PT_PORTS_BUCKETS]
                                           [NGX_STREAM_QUIC_PT_PORTS_PLACES];
    uint64_t                         owners[65536];
} ngx_stream_quic_pt_ports_shared_t;


typedef struct {
    ngx_stream_quic_pt_ports_shared_t  *shared;
    int                              fd;          /* -1: none */
} ngx_stream_quic_pt_ports_t;


/* of a backend, in shared memory: _evidence.c */

typedef struct {
    ngx_atomic_t                     id;          /* 0: free */
    ngx_atomic_t                     answered;    /* ngx_current_msec */
    ngx_atomic_t                     silent;      /* to a client, 0: not */
    ngx_atomic_t                     failed;      /* the ID if it is */
    ngx_atomic_t                     unnamed;     /* when it was logged */
} ngx_stream_quic_pt_evidence_t;


typedef struct {
    ngx_array_t                      routers;     /* one a listen address */
    ngx_atomic_t                    *counters;    /* in shared memory */
    ngx_stream_quic_pt_ports_t      *ports;       /* NULL: no memory */
    ngx_stream_quic_pt_evidence_t   *evidence;    /* with them */
    ngx_stream_quic_pt_rates_t      *rates;       /* too; NULL: off */
    ngx_stream_quic_pt_worker_t     *worker;      /* in a worker */
    ngx_uint_t                       used;        /* unsigned  used:1; */
} ngx_stream_quic_pt_main_conf_t;


/* "quic_passthrough_bind": an address or a value */

typedef struct {
    ngx_addr_t                      *addr;
    ngx_stream_complex_value_t      *value;
    ngx_uint_t                       transparent; /* unsigned  :1; */
} ngx_stream_quic_pt_bind_t;


/* "quic_passthrough_cid_zone": in shared memory */

typedef struct {
    quic_lb_learned_t                ids;
    quic_lb_learned_t                prefixes;
} ngx_stream_quic_pt_cids_sh_t;


typedef struct {
    ngx_shm_zone_t                  *zone;
    ngx_msec_t                       timeout;     /* of idle IDs */
} ngx_stream_quic_pt_cids_t;


/* "quic_passthrough_retry" */

typedef enum {
    NGX_STREAM_QUIC_PT_RETRY_OFF = 0,
    NGX_STREAM_QUIC_PT_RETRY_ON,
    NGX_STREAM_QUIC_PT_RETRY_ADAPTIVE
} ngx_stream_quic_pt_retry_e;


/* "quic_passthrough_retry_key" */

typedef struct {
    ngx_str_t                        file;
    quic_lb_retry_keys_t             keys;
} ngx_stream_quic_pt_retry_key_t;


/*
 * Retry at a listen address.  What changes is a worker's own: this is memory
 * of the configuration, of which each process has a copy.
 */

typedef struct {
    ngx_str_t                        addr_text;   /* of "listen" */
    ngx_uint_t                       mode;        /* ..._retry_e */
    ngx_uint_t                       threshold;   /* flows, 0: by default */
    ngx_uint_t                       v2;          /* servers know version 2 */
    ngx_array_t                     *keys;        /* ..._retry_key_t * */
    ngx_uint_t                       ncodepoints;
    u_char                           codepoints[QUIC_LB_CONFIG_MAX + 1];

    quic_lb_retry_t                  ctx;
    u_char                          *scratch;     /* of a datagram's size */

    uint64_t                         answered;    /* hash of a DCID */
    ngx_msec_t                       answered_at;

    /* "adaptive" */

    ngx_event_t                      event;       /* each second while on */
    ngx_stream_quic_pt_worker_t     *worker;      /* NULL: it is not on */
    time_t                           since;
    ngx_uint_t                       quiet;       /* s */
    ngx_uint_t                       sent;        /* since it is on */
    ngx_uint_t                       accepted;
    ngx_uint_t                       unanswered;  /* a second ago */
} ngx_stream_quic_pt_retry_t;


typedef struct {
    ngx_stream_upstream_srv_conf_t  *upstream;
    ngx_stream_complex_value_t      *upstream_value;
    ngx_stream_quic_pt_cids_t       *cids;        /* NULL: off */
    ngx_msec_t                       timeout;
    size_t                           rcvbuf;      /* octets, 0: system's */
    size_t                           sndbuf;
    ngx_uint_t                       default_rcvbuf;  /* unsigned  :1; */
    ngx_stream_quic_pt_bind_t       *bind;        /* NULL: off */
    ngx_int_t                        address_flows;  /* 0: no limit */
    ngx_int_t                        address_rate;  /* a second, 0: no limit */
    ngx_int_t                        address_burst;
    ngx_uint_t                       retry_mode;
    ngx_uint_t                       retry_threshold;
    ngx_uint_t                       retry_v2;
    ngx_array_t                     *retry_keys;  /* NULL: none */
} ngx_stream_quic_pt_srv_conf_t;


/* the configurations of all servers of a listen address */

typedef struct {
    struct sockaddr                 *sockaddr;
    socklen_t                        socklen;
    ngx_stream_quic_lb_router_t      router;
    ngx_stream_quic_pt_cids_t       *cids;
    ngx_stream_quic_pt_retry_t      *retry;       /* NULL: no keys */
} ngx_stream_quic_pt_router_t;


/* a message as it was read: one datagram or, with UDP_GRO, a train */

typedef struct {
    u_char                          *data;
    size_t                           len;
    size_t                           segment;     /* octets, the last: less */
    ngx_uint_t                       ecn;         /* RFC 3168, 0 to 3 */
    uint32_t                         overflow;    /* of the socket, so far */
    socklen_t                        socklen;
    ngx_sockaddr_t                   sockaddr;
    ngx_sockaddr_t                   local;       /* wildcard listens */
} ngx_stream_quic_pt_message_t;


/* adjacent datagrams in memory */

struct ngx_stream_quic_pt_piece_s {
    u_char                          *data;
    size_t                           len;
    ngx_stream_quic_pt_piece_t      *next;
};


/* datagrams for one UDP_SEGMENT send: of equal size, the last may be less */

struct ngx_stream_quic_pt_run_s {
    ngx_stream_quic_pt_piece_t      *pieces;
    ngx_stream_quic_pt_piece_t      *last;
    size_t                           segment;     /* octets */
    size_t                           size;        /* octets */
    ngx_uint_t                       segments;
    ngx_uint_t                       ecn;
    ngx_uint_t                       closed;      /* its last one is less */
    ngx_err_t                        refused;     /* 0, or: one by one now */
    ngx_stream_quic_pt_run_t        *next;
};


/*
 * Memory for what waits.  Whoever holds some of it is in |held|, so that all of
 * it can be made free again; and in the share of its source.
 */

typedef struct {
    size_t                           size;        /* octets */
    size_t                           limit;
    ngx_queue_t                      held;        /* oldest first */
    ngx_queue_t                      heavy;       /* shares */
} ngx_stream_quic_pt_budget_t;


typedef struct {
    size_t                           size;        /* octets */
    ngx_queue_t                      held;        /* oldest first */
    ngx_queue_t                      queue;       /* in budget->heavy */
    ngx_uint_t                       heavy;       /* unsigned  heavy:1; */
} ngx_stream_quic_pt_share_t;


typedef struct {
    size_t                           size;        /* octets, 0: not queued */
    ngx_stream_quic_pt_budget_t     *budget;
    ngx_stream_quic_pt_share_t      *share;
    ngx_queue_t                      order;       /* in budget->held */
    ngx_queue_t                      queue;       /* in share->held */
} ngx_stream_quic_pt_held_t;


/* a listening or a connected socket, as long as it is open */

struct ngx_stream_quic_pt_socket_s {
    ngx_connection_t                *connection;
    ngx_queue_t                      backlog;     /* runs, oldest first */
    size_t                           size;        /* octets in them */
    uint32_t                         overflow;    /* SO_RXQ_OVFL, last seen */
    ngx_uint_t                       failures;    /* of reading, in a row */

    unsigned                         plain:1;     /* no UDP_SEGMENT */
    unsigned                         congested:1; /* by what nobody tells of */
};


/* what goes to one peer by a socket; the runs refer to the batch */

typedef struct {
    ngx_stream_quic_pt_socket_t     *socket;
    struct sockaddr                 *sockaddr;    /* NULL: connected */
    socklen_t                        socklen;
    struct sockaddr                 *local;       /* NULL: as bound */
    ngx_uint_t                       family;      /* of the peer */
    ngx_stream_quic_pt_counter_e     counter;     /* of what leaves */
    ngx_stream_quic_pt_run_t        *runs;
    ngx_stream_quic_pt_run_t        *last;
} ngx_stream_quic_pt_tx_t;


/* a run that waits in a backlog, with its own copy of all */

typedef struct {
    ngx_queue_t                      queue;
    size_t                           size;        /* octets */
    socklen_t                        socklen;     /* 0: connected */
    ngx_sockaddr_t                   sockaddr;
    ngx_sockaddr_t                   local;       /* sa_family 0: as bound */
    ngx_uint_t                       family;
    ngx_stream_quic_pt_counter_e     counter;
    ngx_stream_quic_pt_run_t         run;
    ngx_stream_quic_pt_piece_t       piece;
    u_char                           data[1];
} ngx_stream_quic_pt_waiting_t;


/* pieces and runs are empty between events */

typedef struct {
    ngx_uint_t                       npieces;
    ngx_uint_t                       nruns;
    ngx_stream_quic_pt_message_t     messages[NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_pt_piece_t       pieces[NGX_STREAM_QUIC_PT_BATCH];
    ngx_stream_quic_pt_run_t         runs[NGX_STREAM_QUIC_PT_BATCH];
} ngx_stream_quic_pt_batch_t;


#define ngx_stream_quic_pt_batch_full(batch)                                  \
    ((batch)->npieces == NGX_STREAM_QUIC_PT_BATCH                             \
     || (batch)->nruns == NGX_STREAM_QUIC_PT_BATCH)

#define ngx_stream_quic_pt_batch_reset(batch)                                 \
    ((batch)->npieces = 0, (batch)->nruns = 0)


/* the flows of a class */

typedef struct {
    ngx_queue_t                      flows;       /* next to go first */
    ngx_queue_t                      heavy;       /* sources */
    ngx_uint_t                       nflows;
    ngx_uint_t                       limit;
    ngx_uint_t                       share;       /* more is a heavy source */
    ngx_uint_t                       pace;        /* _room.c */
    ngx_uint_t                       credit;
    ngx_msec_t                       credited;
} ngx_stream_quic_pt_class_t;


/* what came in an interval, and in the one before it */

typedef struct {
    ngx_msec_t                       since;
    ngx_uint_t                       current;
    ngx_uint_t                       former;
} ngx_stream_quic_pt_window_t;


struct ngx_stream_quic_pt_worker_s {
    ngx_cycle_t                     *cycle;
    ngx_log_t                       *log;
    ngx_atomic_t                    *counters;
    ngx_stream_quic_pt_ports_t      *ports;       /* NULL: no memory */
    ngx_stream_quic_pt_evidence_t   *evidence;

    /*
     * Flows by client and local address; the key is random, so clients cannot
     * choose what collides.  Entered by a client's first datagram, removed
     * with the session or, if it was refused, some seconds later.  Not kept
     * over a reload: the new worker routes by connection ID, the old one
     * keeps its flows until they fall idle.
     */
    quic_lb_table_t                  flows;

    /*
     * Backends by address.  Entered by the first leg to one, removed with the
     * last.
     */
    quic_lb_table_t                  backends;

    quic_lb_hash_key_t               key;

    quic_lb_table_t                  sources;     /* by address: _source.c */

    ngx_stream_quic_pt_class_t       classes[NGX_STREAM_QUIC_PT_CLASSES];
    ngx_stream_quic_pt_window_t      attempts;    /* _room.c */
    ngx_uint_t                       half_open_limit;
    ngx_uint_t                       reserve;     /* connections */
    ngx_uint_t                       nlegs;
    ngx_uint_t                       leg_limit;   /* open files */
    ngx_uint_t                       nconns;      /* pairs of large flows */
    ngx_uint_t                       conns_limit;
    ngx_stream_quic_pt_budget_t      queued;      /* datagrams that wait */
    ngx_stream_quic_preread_t       *preread;     /* NULL: off */

    ngx_uint_t                       no_recvmmsg;
    ngx_uint_t                       no_sendmmsg;
    ngx_uint_t                       sendmmsg_failures;  /* in a row */
    ngx_uint_t                       plain;       /* no UDP_SEGMENT at all */
    ngx_uint_t                       no_segments; /* refused: it is told */

    /* when it was last logged, so that a flood is not a flood of lines */
    time_t                           no_room;
    time_t                           no_memory;
    time_t                           unreadable;
    time_t                           unsendable;
    time_t                           no_live;
    time_t                           unreachable;
    time_t                           unbindable;
    time_t                           complained;
    ngx_uint_t                       ncomplaints; /* in that second */
    time_t                           failed;      /* a peer */
    ngx_uint_t                       nfailures;   /* in that second */
    ngx_stream_quic_lb_complaints_t  untargeted;  /* sessions */
    ngx_log_t                        quiet;       /* emergencies only */

    ngx_queue_t                      listeners;
    ngx_stream_quic_lb_successor_t   successor;
    ngx_queue_t                      pending;     /* legs to flush */
    ngx_stream_quic_pt_flow_t       *recent;      /* in this batch */
    ngx_stream_quic_pt_batch_t      *batch;
};


struct ngx_stream_quic_pt_listener_s {
    ngx_queue_t                      queue;
    ngx_stream_quic_pt_worker_t     *worker;
    ngx_listening_t                 *listening;
    ngx_stream_quic_pt_socket_t      socket;      /* a dup */
    ngx_stream_quic_pt_router_t    **routers;     /* as the addresses */
    quic_lb_owner_t                  owner;       /* last seen */
    ngx_event_t                      poll;        /* for a free socket */
    ngx_event_t                      options;     /* to set them */
    ngx_uint_t                       exiting;     /* unsigned  exiting:1; */
};


/* a pair of a connection's IDs as seen in long headers: _conn.c */

typedef struct {
    uint64_t                         pair;        /* hash of both */
    uint64_t                         number;      /* of its last use, or made */
    ngx_stream_quic_pt_leg_t        *leg;         /* NULL: a free place */
    unsigned                         known:1;     /* of a known version */
    unsigned                         issued:1;    /* by the server, not sent */
    unsigned                         answered:1;  /* the server has used it */
    unsigned                         proven:1;    /* issued, and used */
} ngx_stream_quic_pt_conn_t;


typedef struct {
    ngx_queue_t                      queue;
    size_t                           len;
    ngx_uint_t                       ecn;
    u_char                           data[1];
} ngx_stream_quic_pt_queued_t;


/* octets that one with a datagram of |len| takes */

#define ngx_stream_quic_pt_size(len)                                          \
    (offsetof(ngx_stream_quic_pt_queued_t, data) + (len))


/* times are of ngx_current_msec */

struct ngx_stream_quic_pt_flow_s {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_queue_t                      queue;       /* in its class */
    ngx_stream_quic_pt_listener_t   *listener;

    ngx_stream_quic_pt_source_t     *source;      /* NULL: no session */
    ngx_queue_t                      source_queue;  /* while unproven */

    ngx_stream_session_t            *session;
    ngx_stream_upstream_srv_conf_t  *upstream;
    ngx_stream_upstream_resolved_t  *resolved;    /* no upstream */
    ngx_stream_upstream_resolved_t  *resolving;   /* what it will be */
    ngx_stream_quic_preread_ctx_t   *preread;     /* NULL: off */

    ngx_queue_t                      legs;
    ngx_uint_t                       nlegs;
    ngx_stream_quic_pt_leg_t        *last;        /* used */
    ngx_stream_quic_pt_leg_t        *settled;     /* sent short headers */

    /* the last decision: good as long as the DCID repeats */
    ngx_stream_quic_lb_route_t       route;
    ngx_stream_quic_pt_leg_t        *route_leg;
    ngx_msec_t                       touched;     /* its learned DCID */
    uint64_t                         counted;     /* DCID, for the rate */

    ngx_stream_quic_pt_conn_t       *conns;       /* pairs */
    ngx_stream_quic_pt_conn_t        first_conns[NGX_STREAM_QUIC_PT_CONNS];
    ngx_uint_t                       conns_size;  /* places there are */
    ngx_uint_t                       nconns;      /* in use, or were */
    ngx_uint_t                       nproven;
    uint64_t                         conns_made;
    ngx_msec_t                       forgot_at;   /* one the client chose */

    ngx_queue_t                      datagrams;   /* that wait */
    ngx_uint_t                       ndatagrams;
    size_t                           queued;      /* octets in them */
    ngx_stream_quic_pt_held_t        held;        /* of worker->queued */

    ngx_msec_t                       timeout;
    size_t                           rcvbuf;
    size_t                           sndbuf;
    ngx_addr_t                      *bind;        /* of legs, NULL: none */
    ngx_stream_quic_pt_retry_t      *retry;       /* of the listen address */
    ngx_msec_t                       started;     /* or refused */
    ngx_msec_t                       round;       /* when the last began */
    ngx_uint_t                       rounds;
    ngx_uint_t                       class;       /* ..._class_e */
    ngx_uint_t                       drops;       /* counter of its drops */

    socklen_t                        socklen;
    ngx_sockaddr_t                   client;
    ngx_sockaddr_t                   local;

    unsigned                         ready:1;     /* in its content phase */
    unsigned                         established:1;  /* skipped preaccess */
    unsigned                         limited:1;   /* may open nothing */
    unsigned                         answered:1;  /* by a backend */
    unsigned                         replied:1;   /* in this round */
    unsigned                         refused:1;   /* no session any more */
    unsigned                         closing:1;   /* goes with the session */
    unsigned                         transparent:1;  /* bind is not ours */
    unsigned                         unvalidated:1;  /* no Initial made it */
    unsigned                         fresh:1;     /* nothing has passed */
    unsigned                         looked_up:1; /* a name, just now */
    unsigned                         found:1;     /* it has addresses */
    unsigned                         forgot:1;    /* forgot_at is set */
};


/* the flows of a source in an unproven class */

typedef struct {
    ngx_queue_t                      queue;       /* heavy ones of the class */
    ngx_queue_t                      flows;       /* oldest first */
    ngx_uint_t                       nflows;
    ngx_uint_t                       heavy;       /* unsigned  heavy:1; */
} ngx_stream_quic_pt_group_t;


struct ngx_stream_quic_pt_source_s {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_stream_quic_pt_group_t       groups[NGX_STREAM_QUIC_PT_UNPROVEN];
    ngx_uint_t                       nflows;      /* with a session */
    ngx_stream_quic_pt_share_t       queued;      /* of worker->queued */
    ngx_stream_quic_pt_share_t       hellos;      /* of preread's memory */
    size_t                           len;
    u_char                           key[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
};


typedef struct {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_uint_t                       refs;        /* legs */
    ngx_atomic_uint_t                id;          /* of its evidence */
    ngx_msec_t                       answered;    /* when all were told */
    time_t                           complained;
    socklen_t                        socklen;
    ngx_sockaddr_t                   sockaddr;
} ngx_stream_quic_pt_backend_t;


typedef struct {
    u_char                           len;
    u_char                           data[QUIC_LB_CID_MAX];
} ngx_stream_quic_pt_id_t;


struct ngx_stream_quic_pt_leg_s {
    ngx_queue_t                      queue;       /* in flow->legs */
    ngx_queue_t                      pending;     /* in worker->pending */
    ngx_stream_quic_pt_flow_t       *flow;
    ngx_pool_t                      *pool;        /* of the leg itself, too */
    ngx_log_t                        log;         /* names the peer */
    ngx_stream_upstream_t            upstream;
    ngx_stream_quic_lb_server_t     *server;      /* it was made for, or NULL */
    ngx_stream_quic_pt_backend_t    *backend;
    ngx_stream_quic_pt_socket_t      socket;
    ngx_stream_quic_pt_tx_t          tx;
    ngx_uint_t                       state;       /* index of its entry */
    ngx_msec_t                       started;
    ngx_msec_t                       active;      /* last datagram */
    off_t                            received;    /* octets */

    /* IDs of a backend whose IDs are learned */
    u_char                           id_len;      /* of the last, 0: none */
    u_char                           changed_len; /* 0: none waits */
    u_char                           changed[QUIC_LB_CID_MAX];
    ngx_uint_t                       nids;        /* ever changed to */
    ngx_stream_quic_pt_id_t          ids[NGX_STREAM_QUIC_PT_CHANGES];

    unsigned                         is_pending:1;
    unsigned                         opened:1;    /* by an Initial */
    unsigned                         judged:1;    /* its server's IDs */
    unsigned                         answered:1;
    unsigned                         failed:1;    /* until it answers */
};


/* ms that a flow lives without any answer */

#define ngx_stream_quic_pt_unanswered(flow)                                   \
    ngx_min((flow)->timeout, NGX_STREAM_QUIC_PT_HALF_OPEN)


/* flows of a worker, a quarter of its connections */

#define ngx_stream_quic_pt_half_open_limit(cycle)                             \
    ngx_max((ngx_uint_t) (cycle)->connection_n / 4, 1)


/* an ID that its client changes to may be learned: not in a handshake */

#define ngx_stream_quic_pt_teaches(flow)                                      \
    ((flow)->class != NGX_STREAM_QUIC_PT_OPENING                              \
     && (flow)->class != NGX_STREAM_QUIC_PT_FOREIGN                           \
     && (flow)->answered)


#define ngx_stream_quic_pt_count(worker, counter, n)                          \
    (void) ngx_atomic_fetch_add(&(worker)->counters[counter], n)


/*
 * _check.c: log what nginx takes but cannot work, and return NGX_ERROR, or may
 * not be meant, and return NGX_OK.  addr is for an address of this module.
 */

ngx_int_t ngx_stream_quic_pt_check_servers(ngx_conf_t *cf);
ngx_int_t ngx_stream_quic_pt_check_addr(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr);
ngx_int_t ngx_stream_quic_pt_check_cycle(ngx_cycle_t *cycle);

/* _loop.c: NGX_ERROR, logged, for servers of |addr| that would pass to it */

ngx_int_t ngx_stream_quic_pt_loop_check(ngx_conf_t *cf,
    ngx_stream_conf_port_t *port, ngx_stream_conf_addr_t *addr);

/*
 * _addr.c: init_port checks the servers of a port and makes the routers of its
 * addresses, or returns NGX_ERROR, logged.  Then: whether this module reads the
 * socket of |ls|, a server on it and its configuration, and the routers of its
 * addresses, in their order.
 */

ngx_int_t ngx_stream_quic_pt_addr_init_port(ngx_conf_t *cf,
    ngx_stream_conf_port_t *port);
ngx_uint_t ngx_stream_quic_pt_listening(ngx_listening_t *ls);
ngx_stream_core_srv_conf_t *ngx_stream_quic_pt_default_server(
    ngx_listening_t *ls);
ngx_stream_quic_pt_srv_conf_t *ngx_stream_quic_pt_srv_conf(
    ngx_listening_t *ls);
ngx_stream_quic_pt_router_t **ngx_stream_quic_pt_routers(ngx_cycle_t *cycle,
    ngx_listening_t *ls);

/* _counters.c */

ngx_int_t ngx_stream_quic_pt_counters_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_stream_quic_pt_counters_init(ngx_conf_t *cf);

/*
 * _session.c.  admit returns NGX_OK if |flow| may open connections; it may not
 * if "limit_conn" would have refused it as a new one.  looked_up goes on with
 * the name that a flow has waited for; give_up waits no more, and returns
 * NGX_DECLINED if the flow waits for no name.
 */

ngx_int_t ngx_stream_quic_pt_session_init(ngx_conf_t *cf);
void ngx_stream_quic_pt_session_handler(ngx_stream_session_t *s);
ngx_int_t ngx_stream_quic_pt_session_admit(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_session_looked_up(ngx_stream_quic_pt_flow_t *flow);
ngx_int_t ngx_stream_quic_pt_session_give_up(ngx_stream_quic_pt_flow_t *flow);

/*
 * Preread, see ngx_stream_quic_preread_module.h.  take returns NGX_OK if the
 * datagram is held until its connection is decided on, or is dropped, counted;
 * or NGX_DECLINED if it does not begin a connection.  It may run the session of
 * |flow|, refuse or close it.  pass runs the session of a flow that is held up
 * for nothing, next that of one that has waited for others.  ready and failed
 * tell how that ended; default_server returns the configuration in which the
 * phases before it run.  trim, to be called when no flow is in use, keeps the
 * bound on what is held.
 */

ngx_int_t ngx_stream_quic_preread_init_process(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_worker_t *worker);
void ngx_stream_quic_preread_exit_process(ngx_stream_quic_pt_worker_t *worker);
ngx_int_t ngx_stream_quic_preread_take(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len, ngx_uint_t ecn);
void ngx_stream_quic_preread_pass(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_preread_next(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_preread_ready(ngx_stream_quic_pt_flow_t *flow);
ngx_int_t ngx_stream_quic_preread_failed(ngx_stream_quic_pt_flow_t *flow);
ngx_pool_t *ngx_stream_quic_preread_pool(ngx_stream_quic_pt_flow_t *flow);
void **ngx_stream_quic_preread_default_server(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_preread_trim(ngx_stream_quic_pt_worker_t *worker);
void ngx_stream_quic_preread_end(ngx_stream_quic_pt_flow_t *flow);

/*
 * _budget.c.  add charges |size| octets to |held|, which is zeroed at first,
 * of |budget| and |share|; sub takes |size| of them back.  victim returns who
 * is to make room, NULL if nobody has to.  trim, to be called when no flow is
 * in use, keeps the bound of worker->queued.
 */

void ngx_stream_quic_pt_budget_init(ngx_stream_quic_pt_budget_t *budget,
    size_t limit);
void ngx_stream_quic_pt_budget_add(ngx_stream_quic_pt_budget_t *budget,
    ngx_stream_quic_pt_share_t *share, ngx_stream_quic_pt_held_t *held,
    size_t size);
void ngx_stream_quic_pt_budget_sub(ngx_stream_quic_pt_held_t *held,
    size_t size);
ngx_stream_quic_pt_held_t *ngx_stream_quic_pt_budget_victim(
    ngx_stream_quic_pt_budget_t *budget);
void ngx_stream_quic_pt_budget_trim(ngx_stream_quic_pt_worker_t *worker);

/* _buffers.c: of listening sockets, in the master; of a leg */

ngx_int_t ngx_stream_quic_pt_buffers_init_module(ngx_cycle_t *cycle);
void ngx_stream_quic_pt_buffers_leg(ngx_socket_t fd, int name, size_t size,
    ngx_log_t *log);

/* _worker.c: |fd| is the lowest that was free */

ngx_int_t ngx_stream_quic_pt_worker_init(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_main_conf_t *pmcf);
void ngx_stream_quic_pt_worker_limit_legs(ngx_stream_quic_pt_worker_t *worker,
    ngx_socket_t fd);

/*
 * _owner.c: who reads a listening socket.  take makes this process the owner;
 * claim does, too, if there is no other that lives, and tells whether it may
 * read; give_up is for one that leaves, yield for one that has left and finds
 * another instance at its port.
 */

ngx_int_t ngx_stream_quic_pt_owner_init_module(ngx_cycle_t *cycle);
void ngx_stream_quic_pt_owner_take(ngx_stream_quic_pt_listener_t *listener);
ngx_uint_t ngx_stream_quic_pt_owner_claim(
    ngx_stream_quic_pt_listener_t *listener);
void ngx_stream_quic_pt_owner_give_up(ngx_stream_quic_pt_listener_t *listener);
void ngx_stream_quic_pt_owner_yield(ngx_stream_quic_pt_listener_t *listener);

/* _listen.c: sockets over the life of processes */

ngx_int_t ngx_stream_quic_pt_listen_init_process(ngx_cycle_t *cycle);
void ngx_stream_quic_pt_listen_exit_process(ngx_cycle_t *cycle);

/*
 * Batched datagram I/O.  _udp.c: recv returns the number of messages read into
 * worker->batch, 0 for EAGAIN, NGX_ERROR with ngx_socket_errno for an error
 * that may be gone with the next call, NGX_ABORT if the socket is to be left
 * alone for NGX_STREAM_QUIC_PT_PAUSE.  plain tells, and logs, whether the
 * system lacks UDP_SEGMENT; log is a line about |call| on |sock|.
 */

ngx_int_t ngx_stream_quic_pt_udp_recv(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, ngx_listening_t *ls);
void ngx_stream_quic_pt_udp_log(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, struct sockaddr *sockaddr,
    ngx_uint_t level, ngx_err_t err, const char *text);
void ngx_stream_quic_pt_udp_options(ngx_socket_t fd, ngx_uint_t family,
    ngx_uint_t on, ngx_log_t *log);
ngx_uint_t ngx_stream_quic_pt_udp_plain(ngx_socket_t fd, ngx_log_t *log);
uint32_t ngx_stream_quic_pt_udp_overflow(ngx_socket_t fd);

/*
 * _udp_send.c: append adds a datagram of the batch, which must not be full, to
 * what |tx| sends at the next flush; flush counts what left in |tx->counter|
 * and returns 0, or the error of a connected socket that told of an earlier
 * datagram.  send returns the first run that the socket has no room for.
 */

void ngx_stream_quic_pt_udp_append(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, u_char *data, size_t len, ngx_uint_t ecn);
ngx_err_t ngx_stream_quic_pt_udp_flush(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx);
ngx_stream_quic_pt_run_t *ngx_stream_quic_pt_udp_send(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, ngx_err_t *told);

/*
 * _evidence.c: what all workers have seen of the backend |id|, the ID of its
 * address.  get finds or makes its place, or returns NULL.  answered and failed
 * enter an answer and a failure of its peer; answered returns 1 for the first
 * answer after a failure.  silent enters a |client|, a hash, that has had no
 * answer |since| then; it returns 1 if another client has had none either, and
 * nobody had one.  unnamed returns 1 if it is time to log that the backend's
 * connection IDs do not name it.
 */

ngx_atomic_uint_t ngx_stream_quic_pt_evidence_id(struct sockaddr *sockaddr);
ngx_stream_quic_pt_evidence_t *ngx_stream_quic_pt_evidence_get(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id);
ngx_uint_t ngx_stream_quic_pt_evidence_answered(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id);
ngx_uint_t ngx_stream_quic_pt_evidence_silent(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id,
    ngx_msec_t since, uint64_t client);
void ngx_stream_quic_pt_evidence_failed(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id);
ngx_uint_t ngx_stream_quic_pt_evidence_unnamed(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id);

/*
 * _backend.c: what is known of the other end of a leg.  attach finds or makes
 * the leg's backend; failed gives its peer back if |err| tells that it cannot
 * be reached; silent tells whether a leg that closes has waited in vain; judge
 * warns, once for a leg, if the IDs in its handshake do not name the backend.
 * log_error is the handler of a leg's log.
 */

ngx_int_t ngx_stream_quic_pt_backend_attach(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_backend_detach(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_backend_answered(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_backend_judge(ngx_stream_quic_pt_leg_t *leg,
    u_char *data, size_t len);
void ngx_stream_quic_pt_backend_failed(ngx_stream_quic_pt_leg_t *leg,
    ngx_err_t err);
void ngx_stream_quic_pt_backend_peer_failed(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_backend_free_peer(ngx_stream_quic_pt_leg_t *leg,
    ngx_uint_t state);
ngx_uint_t ngx_stream_quic_pt_backend_silent(ngx_stream_quic_pt_leg_t *leg);
u_char *ngx_stream_quic_pt_backend_log_error(ngx_log_t *log, u_char *buf,
    size_t len);

/*
 * _bind.c: the local address of legs.  flow evaluates it, leg gives it to a
 * leg that has its peer; both return NGX_ERROR, logged, if it is of no use.
 */

char *ngx_stream_quic_passthrough_bind(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_stream_quic_pt_bind_flow(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_bind_t *bind);
ngx_int_t ngx_stream_quic_pt_bind_leg(ngx_stream_quic_pt_leg_t *leg);

/*
 * _retry_conf.c: the setters of its directives; init makes the Retry of a
 * listen address, or returns NGX_ERROR, logged.
 */

char *ngx_stream_quic_passthrough_retry(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_stream_quic_passthrough_retry_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_stream_quic_pt_retry_init(ngx_conf_t *cf,
    ngx_stream_quic_pt_router_t *router, ngx_stream_conf_addr_t *addr);

/*
 * _retry.c.  first decides about a datagram that would make a flow, and what it
 * is to be taken for, admit about one of a flow that no Initial has made:
 * NGX_OK, or NGX_DECLINED for one that is done with, and counted.  token
 * replaces the token of the balancer in the Initials of a datagram, which has a
 * long header and goes to |leg|.
 */

ngx_int_t ngx_stream_quic_pt_retry_first(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_message_t *m, u_char *data, size_t len,
    ngx_uint_t *class);
ngx_int_t ngx_stream_quic_pt_retry_admit(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len);
void ngx_stream_quic_pt_retry_token(ngx_stream_quic_pt_leg_t *leg,
    u_char *data, size_t len);

/* _retry_adaptive.c: whether a new client is to get a Retry now */

ngx_uint_t ngx_stream_quic_pt_retry_wanted(ngx_stream_quic_pt_retry_t *retry,
    ngx_stream_quic_pt_worker_t *worker);

/* _backlog.c: what waits for a full socket */

void ngx_stream_quic_pt_backlog_init(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, ngx_connection_t *c);
void ngx_stream_quic_pt_backlog_add(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run);
void ngx_stream_quic_pt_backlog_send(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock);
void ngx_stream_quic_pt_backlog_drop(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock);

/*
 * _datagram.c: from a message to the legs.  ready sends on what a flow has
 * waited with; dequeue takes the first of it, NULL if there is none; requeue
 * puts back one that dequeue has returned, as the last.  release sends on, and
 * frees, what preread has held; |opened|: a client's choice of DCID.
 */

void ngx_stream_quic_pt_datagram_read(ngx_stream_quic_pt_listener_t *listener,
    ngx_stream_quic_pt_message_t *m);
void ngx_stream_quic_pt_datagram_ready(ngx_stream_quic_pt_flow_t *flow);
ngx_stream_quic_pt_queued_t *ngx_stream_quic_pt_datagram_dequeue(
    ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_datagram_requeue(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_queued_t *dg);
void ngx_stream_quic_pt_datagram_release(ngx_stream_quic_pt_flow_t *flow,
    ngx_queue_t *datagrams, ngx_uint_t opened);

/*
 * _flow.c: the life of a flow.  create starts the session of a client's first
 * packet and returns its flow, which may have been refused, or NULL if there
 * is no room; find returns the flow of a session that is only starting.
 * confirm is for a client that has proven its address, sent for each datagram
 * of one that has not.
 * close ends a flow and its session; refuse only the session, and the flow
 * drops for a while what the client goes on sending, counted by |counter|.
 * evict closes a flow that makes room for others.
 */

ngx_stream_quic_pt_flow_t *ngx_stream_quic_pt_flow_create(
    ngx_stream_quic_pt_listener_t *listener, ngx_stream_quic_pt_message_t *m,
    ngx_stream_quic_lb_route_t *route, ngx_uint_t class,
    ngx_uint_t established, uint64_t hash);
ngx_stream_quic_pt_flow_t *ngx_stream_quic_pt_flow_find(
    ngx_stream_session_t *s);
void ngx_stream_quic_pt_flow_content(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_ready(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_confirm(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_sent(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_close(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc);
void ngx_stream_quic_pt_flow_refuse(ngx_stream_quic_pt_flow_t *flow,
    ngx_uint_t rc, ngx_uint_t counter);
void ngx_stream_quic_pt_flow_evict(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_free(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_flow_done(ngx_stream_quic_pt_worker_t *worker);

/*
 * _room.c: makes room for one more flow of |class|, or for one more leg of
 * |flow|, and returns NGX_OK, or NGX_ERROR if there is none; complain logs
 * that.  unproven returns the half-open flows and recent attempts at others.
 */

void ngx_stream_quic_pt_room_init(ngx_stream_quic_pt_worker_t *worker);
ngx_int_t ngx_stream_quic_pt_room_for_flow(
    ngx_stream_quic_pt_worker_t *worker, ngx_uint_t class);
ngx_uint_t ngx_stream_quic_pt_room_unproven(
    ngx_stream_quic_pt_worker_t *worker);
ngx_int_t ngx_stream_quic_pt_room_for_leg(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_room_complain(ngx_stream_quic_pt_worker_t *worker);

/*
 * _source.c: the flows of one client's address.  full tells whether it may have
 * no more of them.  attach enters a flow that is made, or returns NGX_ERROR;
 * settle is for one that is about to leave an unproven class, detach for one
 * that loses its session.  heavy returns a flow that has to make room before
 * any other of its class, or NULL.
 */

size_t ngx_stream_quic_pt_source_key(struct sockaddr *sockaddr, u_char *key);
ngx_uint_t ngx_stream_quic_pt_source_full(
    ngx_stream_quic_pt_listener_t *listener, struct sockaddr *sockaddr);
ngx_int_t ngx_stream_quic_pt_source_attach(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_source_settle(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_pt_source_detach(ngx_stream_quic_pt_flow_t *flow);
ngx_stream_quic_pt_flow_t *ngx_stream_quic_pt_source_heavy(
    ngx_stream_quic_pt_class_t *class);

/*
 * _rate.c: the setter of its directive; init makes the zone, if need be.  first
 * is for a datagram that would make a flow by beginning a connection, admit for
 * one with a long header on |flow|: NGX_OK, or NGX_DECLINED if its source has
 * begun too many connections.
 */

char *ngx_stream_quic_pt_rate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_int_t ngx_stream_quic_pt_rate_init(ngx_conf_t *cf);
ngx_int_t ngx_stream_quic_pt_rate_first(
    ngx_stream_quic_pt_listener_t *listener, struct sockaddr *sockaddr);
ngx_int_t ngx_stream_quic_pt_rate_admit(ngx_stream_quic_pt_flow_t *flow,
    u_char *data, size_t len);

/*
 * _route.c: the routing table.  decide fills |route| for the packet |pkt| of
 * |flow|, which is NULL for an unknown address, and |*leg| where the table
 * names one, else NULL; it returns NGX_DECLINED for a datagram to be dropped.
 * begins tells whether a packet of the datagram may begin a connection.  inside
 * is decide for a packet with a DCID of the client's choice, which only picks
 * inside the upstream of |flow|; known tells whether the connection of |pkt|
 * has its server.
 */

ngx_int_t ngx_stream_quic_pt_route_decide(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_router_t *router, struct sockaddr *client,
    struct sockaddr *local, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route, ngx_stream_quic_pt_leg_t **leg);
void ngx_stream_quic_pt_route_inside(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_router_t *router, quic_lb_packet_t *pkt,
    ngx_stream_quic_lb_route_t *route);
ngx_uint_t ngx_stream_quic_pt_route_known(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt);
ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_route_repeated(
    ngx_stream_quic_pt_flow_t *flow, u_char *data, size_t len);
void ngx_stream_quic_pt_route_learn_client(ngx_stream_quic_pt_flow_t *flow,
    quic_lb_packet_t *pkt, ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_route_learn_server(ngx_stream_quic_pt_leg_t *leg,
    u_char *data, size_t len);
void ngx_stream_quic_pt_route_settle(ngx_stream_quic_pt_leg_t *leg);
ngx_uint_t ngx_stream_quic_pt_route_issued(
    ngx_stream_quic_pt_router_t *router, ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt);
void ngx_stream_quic_pt_route_forget(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_pt_leg_t *successor);
ngx_uint_t ngx_stream_quic_pt_route_begins(quic_lb_packet_t *pkt,
    u_char *data, size_t len);
ngx_stream_quic_pt_router_t *ngx_stream_quic_pt_route_router(
    ngx_stream_quic_pt_listener_t *listener, struct sockaddr *local);

/*
 * _conn.c: the connections of a flow.  pair returns the hash of two IDs, find
 * the entry with it, or NULL; add makes one, at the cost of another if there is
 * no place; prove is for one that the server has issued and the client uses.
 * forget gives those of |leg| to |successor|, or removes them if it is NULL.
 */

void ngx_stream_quic_pt_conn_init(ngx_stream_quic_pt_flow_t *flow);
uint64_t ngx_stream_quic_pt_conn_pair(ngx_stream_quic_pt_flow_t *flow,
    const uint8_t *client, size_t client_len, const uint8_t *server,
    size_t server_len);
ngx_stream_quic_pt_conn_t *ngx_stream_quic_pt_conn_find(
    ngx_stream_quic_pt_flow_t *flow, uint64_t pair);
ngx_stream_quic_pt_conn_t *ngx_stream_quic_pt_conn_add(
    ngx_stream_quic_pt_flow_t *flow, uint64_t pair,
    ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_conn_prove(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_conn_t *conn);
void ngx_stream_quic_pt_conn_forget(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_leg_t *leg, ngx_stream_quic_pt_leg_t *successor);
void ngx_stream_quic_pt_conn_free(ngx_stream_quic_pt_flow_t *flow);

/*
 * _cid_zone.c: the setter of the directive.  _cid.c: learned connection IDs.
 * route returns NGX_OK with |route| set to the backend that has issued the DCID
 * of |pkt|, or NGX_DECLINED.  learn takes the SCID of |pkt|, which the backend
 * of |leg| has issued.  changed remembers the unknown DCID of |pkt|, which goes
 * to |leg|; answered, to be called for the next answer, learns it.  touch, to
 * be called for what the client sends on a |flow| whose route is by CID, keeps
 * the ID.
 */

char *ngx_stream_quic_pt_cid_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_stream_quic_pt_cid_route(ngx_stream_quic_pt_cids_t *cids,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route);
void ngx_stream_quic_pt_cid_learn(ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt);
void ngx_stream_quic_pt_cid_changed(ngx_stream_quic_pt_leg_t *leg,
    quic_lb_packet_t *pkt);
void ngx_stream_quic_pt_cid_answered(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_cid_touch(ngx_stream_quic_pt_flow_t *flow);

/*
 * _leg.c.  get returns the flow's leg to the backend that |route| names, made
 * if need be, or NULL with the counter of the drop in |counter|, if there is no
 * live backend or no room.
 */

ngx_stream_quic_pt_leg_t *ngx_stream_quic_pt_leg_get(
    ngx_stream_quic_pt_flow_t *flow, ngx_stream_quic_lb_route_t *route,
    ngx_uint_t *counter);
void ngx_stream_quic_pt_leg_close(ngx_stream_quic_pt_leg_t *leg);

/*
 * _connect.c: opens the socket of |leg|, which has its peer and its local
 * address.  Returns NGX_OK, NGX_DECLINED if the peer cannot be reached, or
 * NGX_ERROR; the last two are logged.
 */

ngx_int_t ngx_stream_quic_pt_connect(ngx_stream_quic_pt_leg_t *leg);

/*
 * _ports_init.c: the memory of the ports of legs.  _ports.c: the key of |leg|;
 * the key that has, or had, a port, and setting it; the port of a key, 0 if it
 * has none, and entering it.
 */

ngx_int_t ngx_stream_quic_pt_ports_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_stream_quic_pt_ports_init_process(ngx_cycle_t *cycle);
uint64_t ngx_stream_quic_pt_ports_key(ngx_stream_quic_pt_ports_t *ports,
    ngx_stream_quic_pt_leg_t *leg);
uint64_t ngx_stream_quic_pt_ports_owner(ngx_stream_quic_pt_ports_t *ports,
    in_port_t port);
void ngx_stream_quic_pt_ports_own(ngx_stream_quic_pt_ports_t *ports,
    in_port_t port, uint64_t key);
in_port_t ngx_stream_quic_pt_ports_find(ngx_stream_quic_pt_ports_t *ports,
    uint64_t key);
void ngx_stream_quic_pt_ports_enter(ngx_stream_quic_pt_ports_t *ports,
    uint64_t key, in_port_t port);

/*
 * _peer.c: prepares the peer of a new leg, which u->peer.get is then to choose;
 * NGX_OK or NGX_ERROR.
 */

ngx_int_t ngx_stream_quic_pt_peer_init(ngx_stream_quic_pt_leg_t *leg,
    ngx_stream_quic_lb_route_t *route);

/*
 * _leg_io.c.  What is sent stays where it is until the next flush.  read and
 * write are the handlers of a leg's events.  family is that of the headers that
 * |sa| is sent to with.
 */

void ngx_stream_quic_pt_leg_send(ngx_stream_quic_pt_leg_t *leg, u_char *data,
    size_t len, ngx_uint_t ecn);
void ngx_stream_quic_pt_leg_flush(ngx_stream_quic_pt_leg_t *leg);
void ngx_stream_quic_pt_leg_flush_all(ngx_stream_quic_pt_worker_t *worker);
void ngx_stream_quic_pt_leg_read(ngx_event_t *rev);
void ngx_stream_quic_pt_leg_write(ngx_event_t *wev);
ngx_uint_t ngx_stream_quic_pt_leg_family(ngx_sockaddr_t *sa);


extern ngx_module_t  ngx_stream_quic_passthrough_module;


#endif /* _NGX_STREAM_QUIC_PASSTHROUGH_MODULE_H_INCLUDED_ */
