
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * HTTP/3 limits: what the files of the module share.
 *
 * Names begin with ngx_http_h3_limits_: nginx exports all its symbols, and
 * those that begin with ngx_http_v3_ are its own.
 */


#ifndef _NGX_HTTP_V3_LIMITS_MODULE_H_INCLUDED_
#define _NGX_HTTP_V3_LIMITS_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* in the order of the names in ngx_http_v3_limits_counters.c */

typedef enum {
    NGX_HTTP_H3_LIMITS_RECYCLED = 0,       /* connections that were drained */
    NGX_HTTP_H3_LIMITS_GOAWAYS,            /* sent */
    NGX_HTTP_H3_LIMITS_DEFERRED,           /* of them: had to wait for credit */
    NGX_HTTP_H3_LIMITS_REJECTED,           /* streams, H3_REQUEST_REJECTED */
    NGX_HTTP_H3_LIMITS_PAUSED,             /* bodies, once for each */
    NGX_HTTP_H3_LIMITS_TOO_LARGE,          /* request bodies, 413 */
    NGX_HTTP_H3_LIMITS_CUT,                /* responses over the ceiling */
    NGX_HTTP_H3_LIMITS_IN_FLIGHT,          /* octets of bodies held now */
    NGX_HTTP_H3_LIMITS_PEAK,               /* the most there ever were */
    NGX_HTTP_H3_LIMITS_COUNTERS
} ngx_http_h3_limits_counter_e;


/* what one process holds; cleared when it is found dead */

typedef struct {
    ngx_atomic_t                      pid;
    ngx_atomic_t                      in_flight;
} ngx_http_h3_limits_share_t;


/* in shared memory, kept over a reload */

typedef struct {
    ngx_atomic_t                      counters[NGX_HTTP_H3_LIMITS_COUNTERS];
    ngx_atomic_t                      nshares;    /* ever in use */
    ngx_http_h3_limits_share_t        shares[NGX_MAX_PROCESSES];
} ngx_http_h3_limits_shared_t;


/* modules of upstreams, NULL if not there, and offsets in their loc_conf */

typedef struct {
    ngx_module_t                     *proxy;
    ngx_module_t                     *proxy_v2;   /* since 1.29.4 */
    ngx_module_t                     *fastcgi;
    ngx_module_t                     *uwsgi;
    ngx_module_t                     *scgi;
    ngx_uint_t                        proxy_http_version;
    ngx_uint_t                        proxy_set_body;
} ngx_http_h3_limits_upstreams_t;


typedef struct {
    ngx_http_h3_limits_shared_t      *shared;
    ngx_http_h3_limits_share_t       *share;      /* of this process */
    ngx_uint_t                        limit_requests; /* in some server */
    ngx_http_h3_limits_upstreams_t    upstreams;
    ngx_uint_t                        unknown_is_data;    /* see _unknown.c */
} ngx_http_h3_limits_main_conf_t;


typedef struct {
    ngx_uint_t                        max_requests;       /* 0: off */
} ngx_http_h3_limits_srv_conf_t;


typedef struct {
    size_t                            body_window;        /* 0: off */
    off_t                             max_body_size;      /* 0: no ceiling */
} ngx_http_h3_limits_loc_conf_t;


typedef struct ngx_http_h3_limits_session_s  ngx_http_h3_limits_session_t;


/* a request stream that was admitted, until its response is acknowledged */

typedef struct {
    ngx_queue_t                       queue;
    ngx_http_h3_limits_session_t     *session;
    ngx_quic_stream_t                *stream;
    uint64_t                          id;         /* |stream| is used again */
    unsigned                          processed:1; /* got to the phases */
} ngx_http_h3_limits_stream_t;


/* an HTTP/3 connection of a server with "http3_max_requests" */

struct ngx_http_h3_limits_session_s {
    ngx_connection_t                 *connection;
    ngx_http_h3_limits_main_conf_t   *main_conf;
    ngx_uint_t                        max_requests;

    ngx_uint_t                        requests;   /* admitted */
    ngx_uint_t                        rejected;
    ngx_uint_t                        rejecting;  /* of them, not closed yet */
    uint64_t                          next_id;    /* the first not admitted */

    ngx_queue_t                       streams;    /* admitted */
    ngx_queue_t                       free;

    ngx_event_t                       timer;      /* only while draining */
    uint64_t                          goaway_end; /* in the control stream */
    uint64_t                          progress;   /* octets sent and acked */
    ngx_msec_t                        since;      /* time of the last of it */

    unsigned                          draining:1;
    unsigned                          goaway_written:1;
    unsigned                          goaway_sent:1;
    unsigned                          goaway_deferred:1;
    unsigned                          lingering:1;
};


/*
 * ngx_http_v3_limits_requests.c: called from postconfiguration, and when the
 * listening sockets are there
 */

ngx_int_t ngx_http_h3_limits_requests_init(ngx_conf_t *cf);
void ngx_http_h3_limits_requests_init_module(ngx_cycle_t *cycle);

/* of the listening sockets */

void ngx_http_h3_limits_handler(ngx_connection_t *c);

/* |c| is a QUIC connection, not a stream; NULL: left to nginx */

ngx_http_h3_limits_session_t *ngx_http_h3_limits_session(ngx_connection_t *c);

/* |c| is a stream; NULL: not a request, or left to nginx */

ngx_http_h3_limits_stream_t *ngx_http_h3_limits_stream(ngx_connection_t *c);

/* whether nothing is left to be sent or acknowledged on the stream */

ngx_uint_t ngx_http_h3_limits_stream_done(ngx_http_h3_limits_stream_t *stream);


/* ngx_http_v3_limits_drain.c */

void ngx_http_h3_limits_drain_init(ngx_http_h3_limits_session_t *s);

/* admit no more requests: GOAWAY; close when those admitted are complete */

void ngx_http_h3_limits_drain(ngx_http_h3_limits_session_t *s);

/* an admitted request has ended */

void ngx_http_h3_limits_drain_request_done(ngx_http_h3_limits_session_t *s);


/* ngx_http_v3_limits_codes.c: called from postconfiguration */

ngx_int_t ngx_http_h3_limits_codes_init(ngx_conf_t *cf);


/* ngx_http_v3_limits_handover.c */

ngx_int_t ngx_http_h3_limits_handover_init_process(ngx_cycle_t *cycle);

/*
 * |c| is a QUIC connection of a worker that is told to quit: datagrams of its
 * client shall come here when the listening socket is another worker's
 */

void ngx_http_h3_limits_handover(ngx_connection_t *c);


/* ngx_http_v3_limits_capability.c */

void ngx_http_h3_limits_capability_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_http_h3_limits_capability_init_process(ngx_cycle_t *cycle);

/* bind(), to a port below 1024 as well */

int ngx_http_h3_limits_capability_bind(ngx_socket_t fd,
    struct sockaddr *sockaddr, socklen_t socklen, ngx_log_t *log);


/* ngx_http_v3_limits_variables.c */

ngx_int_t ngx_http_h3_limits_add_variables(ngx_conf_t *cf);


/* ngx_http_v3_limits_counters.c */

ngx_int_t ngx_http_h3_limits_counters_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_h3_limits_counters_init(ngx_conf_t *cf);
void ngx_http_h3_limits_counters_init_process(ngx_cycle_t *cycle);

/* |n| is not IN_FLIGHT or PEAK */

void ngx_http_h3_limits_count(ngx_http_h3_limits_main_conf_t *hmcf,
    ngx_http_h3_limits_counter_e n);

/* |delta| octets of bodies more, or less, are held in memory */

void ngx_http_h3_limits_in_flight(ngx_http_h3_limits_main_conf_t *hmcf,
    ssize_t delta);


/* ngx_http_v3_limits_body.c: called from postconfiguration */

ngx_int_t ngx_http_h3_limits_body_init(ngx_conf_t *cf);


extern ngx_module_t  ngx_http_v3_limits_module;


#endif /* _NGX_HTTP_V3_LIMITS_MODULE_H_INCLUDED_ */
