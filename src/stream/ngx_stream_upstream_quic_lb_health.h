
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_health_check": servers of an upstream are asked, at intervals, whether
 * they speak QUIC.
 *
 * What is known of a server is kept in the "down" of its peer, in the zone of
 * the upstream, so all workers see it at once: with one of the bits below it
 * gets no new connections.  One worker asks, which one depends on the position
 * of the upstream; if it dies the master makes another of its number, which
 * goes on.  What it has counted up to then is its own and starts anew.  The
 * zone is made anew by each reload; the bits of servers that stay are copied.
 */


#ifndef _NGX_STREAM_UPSTREAM_QUIC_LB_HEALTH_H_INCLUDED_
#define _NGX_STREAM_UPSTREAM_QUIC_LB_HEALTH_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "quic_lb_probe.h"


/* in peer->down, beside nginx's own 1; high, as nginx may come to have more */

#define NGX_STREAM_QUIC_LB_HEALTH_CLOSED   0x10000
#define NGX_STREAM_QUIC_LB_HEALTH_SILENT   0x20000
#define NGX_STREAM_QUIC_LB_HEALTH_GARBAGE  0x40000

#define NGX_STREAM_QUIC_LB_HEALTH                                             \
    (NGX_STREAM_QUIC_LB_HEALTH_CLOSED                                         \
     |NGX_STREAM_QUIC_LB_HEALTH_SILENT                                        \
     |NGX_STREAM_QUIC_LB_HEALTH_GARBAGE)

/* whether |peer| is "down" by configuration */

#define ngx_stream_quic_lb_health_off(peer)                                   \
    ((peer)->down & ~(ngx_uint_t) NGX_STREAM_QUIC_LB_HEALTH)


typedef struct {
    ngx_stream_upstream_srv_conf_t  *upstream;

    ngx_msec_t                       interval;
    ngx_msec_t                       jitter;
    ngx_uint_t                       fails;
    ngx_uint_t                       passes;
    in_port_t                        port;        /* 0: the server's */

    u_char                          *file_name;   /* of the directive */
    ngx_uint_t                       line;

    /* of the worker that asks */

    ngx_log_t                       *log;
    ngx_queue_t                      targets;
    ngx_event_t                      update;      /* "resolve" */
    ngx_uint_t                       config;      /* of the peers */
    ngx_uint_t                       backup_config;
} ngx_stream_quic_lb_health_t;


/* a server that is asked, by name */

typedef struct {
    ngx_queue_t                      queue;
    ngx_stream_quic_lb_health_t     *health;
    ngx_event_t                      timer;       /* for the next question */
    ngx_connection_t                *connection;  /* NULL: no open question */
    quic_lb_probe_t                  probe;

    ngx_uint_t                       state;       /* bit, 0: alive */
    ngx_uint_t                       garbage;     /* unsigned  :1; */
    ngx_uint_t                       stale;       /* unsigned  :1; */
    ngx_uint_t                       fails;       /* in succession */
    ngx_uint_t                       passes;

    socklen_t                        socklen;
    ngx_sockaddr_t                   sockaddr;
    size_t                           len;
    u_char                           name[NGX_SOCKADDR_STRLEN];
} ngx_stream_quic_lb_target_t;


/* ngx_stream_upstream_quic_lb_health.c */

char *ngx_stream_quic_lb_health_check(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* checks what the upstream of |health| needs, with all its lines known */

ngx_int_t ngx_stream_quic_lb_health_init(ngx_conf_t *cf,
    ngx_stream_quic_lb_health_t *health);

ngx_int_t ngx_stream_quic_lb_health_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_stream_quic_lb_health_init_process(ngx_cycle_t *cycle);
void ngx_stream_quic_lb_health_exit_process(ngx_cycle_t *cycle);

/* both return the check of an upstream, or NULL */

ngx_stream_quic_lb_health_t *ngx_stream_quic_lb_health_of(
    ngx_stream_upstream_srv_conf_t *us);

ngx_stream_quic_lb_health_t *ngx_stream_quic_lb_health_find(
    ngx_stream_upstream_main_conf_t *umcf, ngx_str_t *host);

/* tells all workers that the server |name| is in |state| */

void ngx_stream_quic_lb_health_set(ngx_stream_quic_lb_health_t *health,
    ngx_str_t *name, ngx_uint_t state);

/* ngx_stream_upstream_quic_lb_health_variable.c */

ngx_int_t ngx_stream_quic_lb_health_add_variables(ngx_conf_t *cf);

/*
 * Logs names of variables that are no upstream's with a check.  Returns NGX_OK,
 * or NGX_ERROR if there is no such upstream.
 */

ngx_int_t ngx_stream_quic_lb_health_check_variables(ngx_conf_t *cf);

/* ngx_stream_upstream_quic_lb_target.c */

/* makes the targets what the peers of the upstream are */

void ngx_stream_quic_lb_target_update(ngx_stream_quic_lb_health_t *health);
void ngx_stream_quic_lb_target_delete(ngx_stream_quic_lb_target_t *target);


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_HEALTH_H_INCLUDED_ */
