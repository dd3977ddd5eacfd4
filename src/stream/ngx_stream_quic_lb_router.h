
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Routing by connection ID.  A route is what is known of a datagram's way to
 * its backend; as the session's context of ngx_stream_upstream_quic_lb_module
 * it tells the balancer which peer to take and feeds the $quic_... variables.
 * A router holds the QUIC-LB configurations that a datagram may belong to.
 */


#ifndef _NGX_STREAM_QUIC_LB_ROUTER_H_INCLUDED_
#define _NGX_STREAM_QUIC_LB_ROUTER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "quic_lb_error.h"
#include "quic_lb_packet.h"
#include "quic_lb_cid.h"
#include "quic_lb_hash.h"


/* no configuration has decoded the DCID; no codepoint, as these have 3 bits */

#define NGX_STREAM_QUIC_LB_NO_CONFIG  0xff


/* octets of a key: an IPv6 address, a port and a zone */

#define NGX_STREAM_QUIC_LB_ADDRESS_MAX  (16 + 2 + 4)


/* $quic_routed_by */

typedef enum {
    NGX_STREAM_QUIC_LB_NONE = 0,          /* not routed */
    NGX_STREAM_QUIC_LB_SERVER_ID,         /* a "server_id" line */
    NGX_STREAM_QUIC_LB_MAGLEV_SERVER_ID,  /* "unmapped maglev" */
    NGX_STREAM_QUIC_LB_CID,               /* a learned connection ID */
    NGX_STREAM_QUIC_LB_CONNECTION,        /* 4-tuple and a connection ID */
    NGX_STREAM_QUIC_LB_ADDRESS,           /* 4-tuple alone */
    NGX_STREAM_QUIC_LB_MAGLEV,            /* the fallback */
    NGX_STREAM_QUIC_LB_UPSTREAM           /* another balancer's choice */
} ngx_stream_quic_lb_by_e;


/*
 * A server of "server_id" lines, one for all lines of an upstream with the same
 * address; lives as long as the configuration.
 */

typedef struct {
    ngx_stream_upstream_srv_conf_t   *upstream;
    struct sockaddr                  *sockaddr;
    socklen_t                         socklen;
    ngx_str_t                         name;       /* address:port */
    ngx_uint_t                        index;      /* private */
} ngx_stream_quic_lb_server_t;


/* an address, in less room than ngx_sockaddr_t takes */

typedef struct {
    socklen_t                         socklen;

    union {
        struct sockaddr               sockaddr;
        struct sockaddr_in            sockaddr_in;
#if (NGX_HAVE_INET6)
        struct sockaddr_in6           sockaddr_in6;
#endif
    } u;
} ngx_stream_quic_lb_backend_t;


typedef struct {
    ngx_stream_quic_lb_by_e           by;

    /* SERVER_ID, MAGLEV_SERVER_ID: whose configuration decoded the DCID */
    ngx_stream_upstream_srv_conf_t   *upstream;

    ngx_stream_quic_lb_server_t      *server;     /* SERVER_ID only */

    /* the key of Maglev, for all but SERVER_ID */
    uint64_t                          hash;

    uint32_t                          version;    /* 0: short header */
    u_char                            dcid_len;   /* octets known to be it */
    u_char                            config_id;  /* or .._NO_CONFIG */
    u_char                            server_id_len;
    u_char                            prefix;     /* CID: by its beginning */
    u_char                            unknown;    /* codepoint, but no server */
    u_char                            dcid[QUIC_LB_CID_MAX];
    u_char                            server_id[QUIC_LB_SERVER_ID_MAX];

    ngx_stream_quic_lb_backend_t      backend;    /* CID only */
} ngx_stream_quic_lb_route_t;


/*
 * The QUIC-LB configurations of all upstreams that a listen address can
 * reach.  Zeroed, it is empty.
 */

typedef struct {
    /* ngx_stream_quic_lb_conf_t *, by codepoint */
    ngx_array_t                      *configs[QUIC_LB_CONFIG_MAX + 1];

    /* the same, those of earlier cycles that have been removed or changed */
    ngx_array_t                      *retired[QUIC_LB_CONFIG_MAX + 1];
} ngx_stream_quic_lb_router_t;


/*
 * Adds the configurations of |uscf|, if it has any, to |router|, once.  To be
 * called after the upstreams' init_upstream.  Two upstreams may share a
 * codepoint only with equal parameters and disjoint server IDs.  Returns
 * NGX_OK, or NGX_ERROR with the error logged.
 */

ngx_int_t ngx_stream_quic_lb_router_add(ngx_conf_t *cf,
    ngx_stream_quic_lb_router_t *router,
    ngx_stream_upstream_srv_conf_t *uscf);

/*
 * Routes |pkt| by its DCID.  Always sets version and dcid of |route|; of a
 * short header only as many DCID octets as the configuration of its codepoint
 * has, none without one.  What may begin a connection is not routed to a server
 * that is "down" or failing; what can only belong to an established one and is
 * unroutable is tried with retired configurations.  Returns
 * NGX_OK        by, upstream, config_id, server_id and server (SERVER_ID) or
 *               hash (MAGLEV_SERVER_ID) are set;
 * NGX_DECLINED  unroutable: by is NONE, upstream and server are NULL,
 *               server_id_len is 0, config_id is NGX_STREAM_QUIC_LB_NO_CONFIG;
 *               unknown is set if the codepoint has a configuration.
 */

ngx_int_t ngx_stream_quic_lb_router_route(ngx_stream_quic_lb_router_t *router,
    quic_lb_packet_t *pkt, ngx_stream_quic_lb_route_t *route);

/* makes |route| what it is after NGX_DECLINED */

void ngx_stream_quic_lb_route_clear(ngx_stream_quic_lb_route_t *route);

/*
 * Whether |server| may get new connections: it is neither "down" nor failing
 * ("max_fails").  So may an address that is no peer at the moment (not resolved
 * yet or any more), and any server if there is no memory to find it.
 */

ngx_uint_t ngx_stream_quic_lb_server_available(
    ngx_stream_quic_lb_server_t *server);

/*
 * The key of the fallback: the 4-tuple for codepoint 0b111 and for a DCID that
 * is empty or, in a short header, of unknown length; else the DCID.  Depends on
 * nothing but its arguments.
 */

uint64_t ngx_stream_quic_lb_fallback_hash(quic_lb_packet_t *pkt,
    struct sockaddr *client, struct sockaddr *local);

/* the key of Maglev for what is not a datagram: the address without the port */

uint64_t ngx_stream_quic_lb_client_hash(struct sockaddr *client);

/* the hash behind all of these, the same on every worker and balancer */

uint64_t ngx_stream_quic_lb_hash(const void *data, size_t len);

/*
 * Writes the octets of the IP address and of the port of |sa| to |p|, at most
 * NGX_STREAM_QUIC_LB_ADDRESS_MAX, in network byte order, and returns the end of
 * them.  The IPv4 address that a dual-stack socket shows as IPv6 gives what it
 * gives on an IPv4 socket.  Nothing is written for other families.
 */

u_char *ngx_stream_quic_lb_address(u_char *p, struct sockaddr *sa);

/*
 * The same, followed by the zone of a link-local address: the whole key of an
 * address on this machine.  Zones are numbers of a machine, so nothing that
 * balancers must agree on contains them.  zone writes the zone alone, if any.
 */

u_char *ngx_stream_quic_lb_address_key(u_char *p, struct sockaddr *sa);
u_char *ngx_stream_quic_lb_zone(u_char *p, struct sockaddr *sa);

/*
 * Returns 1 if the addresses are equal, with port and zone, which
 * ngx_cmp_sockaddr() ignores.
 */

ngx_uint_t ngx_stream_quic_lb_same_address(struct sockaddr *one,
    socklen_t len1, struct sockaddr *two, socklen_t len2);

/* adds the $quic_... variables, which show the route of a session */

ngx_int_t ngx_stream_quic_lb_add_variables(ngx_conf_t *cf);

/* makes |v| the |len| octets at |data|, which are not copied */

void ngx_stream_quic_lb_variable_set(ngx_stream_variable_value_t *v,
    u_char *data, size_t len);


#endif /* _NGX_STREAM_QUIC_LB_ROUTER_H_INCLUDED_ */
