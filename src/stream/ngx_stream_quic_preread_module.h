
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Preread: the ClientHello of a new connection is read before its server is
 * chosen.  The datagrams of such a connection are held (_hello.c) until the
 * ClientHello in them (_read.c) is complete, or will not be; then the session
 * of its flow runs from the preread phase on (_session.c), with the virtual
 * server and the variables of that ClientHello (_module.c), once for each new
 * connection of the flow.  When memory is short some make room (_trim.c).
 */


#ifndef _NGX_STREAM_QUIC_PREREAD_MODULE_H_INCLUDED_
#define _NGX_STREAM_QUIC_PREREAD_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"
#include "quic_lb_crypto.h"
#include "quic_lb_hello.h"
#include "quic_lb_initial.h"


/* connections of one flow whose ClientHello is awaited */

#define NGX_STREAM_QUIC_PREREAD_HELLOS  16

/*
 * Packets that are opened for one ClientHello, those of earlier datagrams again
 * with each: two in each datagram of a connection that holds as many as it may
 * are 272.  Small ones are cheap to send, and not to open.
 */

#define NGX_STREAM_QUIC_PREREAD_PACKETS  512


typedef struct {
    size_t                           memory;      /* octets */
    ngx_uint_t                       used;        /* unsigned  used:1; */
} ngx_stream_quic_preread_main_conf_t;


typedef struct {
    ngx_flag_t                       enabled;
    ngx_msec_t                       timeout;
} ngx_stream_quic_preread_srv_conf_t;


/* of a worker */

struct ngx_stream_quic_preread_s {
    quic_lb_initial_t                initial;

    ngx_stream_quic_pt_budget_t      memory;      /* of all connections */

    void                           **main_conf;   /* of further runs */

    /* when it was logged that it is short, for want of what */
    time_t                           no_hellos;
    time_t                           no_answers;

    /* room for one packet and one ClientHello, empty between datagrams */
    u_char                          *payload;
    u_char                          *crypto;
};


/*
 * A connection whose ClientHello is awaited or, until the next one of the flow,
 * has been decided on; lives in its own pool, with all that the decision needs.
 * A ClientHello is put together each time that a datagram comes, from those
 * that are held anyway: nothing else has to be kept, or bounded.
 */

typedef struct {
    ngx_queue_t                      queue;       /* in ctx->hellos */
    ngx_pool_t                      *pool;
    ngx_stream_quic_pt_flow_t       *flow;
    ngx_event_t                      deadline;

    ngx_queue_t                      datagrams;
    ngx_uint_t                       ndatagrams;
    ngx_stream_quic_pt_held_t        held;        /* of preread->memory */
    ngx_uint_t                       packets;     /* opened, so far */

    uint32_t                         version;
    u_char                           dcid_len;
    u_char                           dcid[QUIC_LB_CID_MAX];
    quic_lb_initial_keys_t           keys;        /* that follow from it */

    ngx_str_t                        server_name;
    ngx_str_t                        alpn;
    void                           **srv_conf;    /* the virtual server's */

    unsigned                         opened:1;    /* the keys are right */
    unsigned                         address:1;   /* server_name is one */
    unsigned                         decided:1;
} ngx_stream_quic_preread_hello_t;


/* of a flow with "quic_preread" */

struct ngx_stream_quic_preread_ctx_s {
    ngx_stream_quic_preread_srv_conf_t  *conf;    /* of the default server */
    ngx_queue_t                      hellos;
    ngx_uint_t                       nhellos;
    ngx_stream_quic_preread_hello_t *deciding;    /* run for it now */
    ngx_stream_quic_preread_hello_t *current;     /* and the last time */

    /* the session as it came to the phase, to be run from there again */
    ngx_int_t                        phase_handler;
    void                           **srv_conf;
    ngx_stream_variable_value_t     *variables;

    /* before the last run */
    ngx_addr_t                      *bind;
    ngx_uint_t                       transparent;
    ngx_msec_t                       rest;        /* of its timer, 0: none */

    unsigned                         waiting:1;   /* in the phase */
    unsigned                         passed:1;
};


/*
 * What passthrough calls is in its own header.
 *
 * _hello.c: queued holds what has waited for the session of |flow| and begins
 * a connection.  unread decides about |hello| without its ClientHello.
 * release takes |hello| from its flow and gives |datagrams|, to be initialized,
 * all that was held for it; discard drops and counts the datagrams, destroy
 * frees one without any.
 */

void ngx_stream_quic_preread_queued(ngx_stream_quic_pt_flow_t *flow);
void ngx_stream_quic_preread_unread(ngx_stream_quic_preread_hello_t *hello,
    const char *why);
void ngx_stream_quic_preread_release(ngx_stream_quic_preread_hello_t *hello,
    ngx_queue_t *datagrams);
void ngx_stream_quic_preread_discard(ngx_stream_quic_preread_hello_t *hello,
    ngx_stream_quic_pt_counter_e counter);
void ngx_stream_quic_preread_destroy(ngx_stream_quic_preread_hello_t *hello);

/*
 * _read.c: read returns NGX_OK if |found| has what there is to know, NGX_AGAIN
 * if more datagrams may tell more, NGX_ERROR if not.  What |found| points to is
 * good until the next call; keep copies it into |hello|.
 */

ngx_int_t ngx_stream_quic_preread_read(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found);
ngx_int_t ngx_stream_quic_preread_keep(ngx_stream_quic_preread_hello_t *hello,
    quic_lb_hello_t *found);

/*
 * _session.c: save keeps what the session is to be run from.  decided returns
 * a connection that is to have its run, or NULL.  skip drops the one that has
 * its run, of a flow that has others, and counts its datagrams.
 */

ngx_int_t ngx_stream_quic_preread_save(ngx_stream_session_t *s,
    ngx_stream_quic_preread_ctx_t *ctx);
ngx_stream_quic_preread_hello_t *ngx_stream_quic_preread_decided(
    ngx_stream_quic_preread_ctx_t *ctx);
void ngx_stream_quic_preread_skip(ngx_stream_quic_pt_flow_t *flow,
    ngx_stream_quic_pt_counter_e counter);

/* _phases.c: makes |preread->main_conf| */

ngx_int_t ngx_stream_quic_preread_phases_init(ngx_cycle_t *cycle,
    ngx_stream_quic_preread_t *preread);


extern ngx_module_t  ngx_stream_quic_preread_module;


#endif /* _NGX_STREAM_QUIC_PREREAD_MODULE_H_INCLUDED_ */
