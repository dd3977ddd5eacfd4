
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Another instance of nginx at the port of a worker that quits.
 */


#ifndef _NGX_STREAM_QUIC_LB_SUCCESSOR_H_INCLUDED_
#define _NGX_STREAM_QUIC_LB_SUCCESSOR_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    ngx_array_t     own;           /* of ino_t, the listening sockets */
    ngx_array_t     others;        /* of ngx_sockaddr_t */
    ngx_msec_t      read_at;
    ngx_uint_t      read;          /* unsigned  read:1; */
} ngx_stream_quic_lb_successor_t;


/* while all listening sockets of |cycle| are open; NGX_OK or NGX_ERROR */

ngx_int_t ngx_stream_quic_lb_successor_init(
    ngx_stream_quic_lb_successor_t *su, ngx_cycle_t *cycle);

/*
 * Whether a socket that is not of the cycle is bound to the address of |ls|, or
 * to all addresses at its port, and open to all clients.
 */

ngx_uint_t ngx_stream_quic_lb_successor_found(
    ngx_stream_quic_lb_successor_t *su, ngx_listening_t *ls, ngx_log_t *log);

/*
 * Takes |fd| out of the kernel's choice for new clients: connects it to its own
 * address.  Those already chosen are still to be read.
 */

void ngx_stream_quic_lb_successor_yield(ngx_socket_t fd, ngx_listening_t *ls,
    ngx_log_t *log);


#endif /* _NGX_STREAM_QUIC_LB_SUCCESSOR_H_INCLUDED_ */
