
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Ports of legs.  To a server the leg's port is part of the client's address,
 * so it must not change while the client stays where it is: not by a reload, a
 * binary upgrade, a killed worker, or the eviction of a flow.
 *
 * The key of a leg is a hash, with a secret, of all that it is for: the
 * client's address, the address that the client sends to, the server's, and the
 * address that the leg is bound to.  In shared memory there are
 *
 *     owners   by port: the key of the last leg that had it
 *     places   buckets by key: the port that a leg of the key had
 *
 * An owner or a place is a single word, written at once and only a hint, so a
 * worker that is killed leaves nothing half done.  A place is free again when
 * its port has another owner: there are never more in use than ports.
 *
 *     claim    bind() to any port, without SO_REUSEPORT: the system takes one
 *              at which there is no other socket; store the key as its owner;
 *              set SO_REUSEPORT; enter a place
 *     join     find the port of the key; set SO_REUSEPORT; bind(); look again,
 *              and close the socket if the port has another owner
 *
 * Only legs of one key ever share a port.  Let s and t be connected sockets of
 * one address and port, t the one that was bound later.  It has not claimed the
 * port, as that fails beside s, so it has joined.  While s is bound nobody can
 * claim the port, hence nobody but s stores its owner; and s does so before it
 * sets SO_REUSEPORT, thus before t is bound.  So from then on until both are
 * closed the owner is the same, and each has stored it as its own or read it.
 *
 * An address may be bound beside another at the same port: they overwrite each
 * other's key, so one of them is not found later, but is not shared either.
 *
 * Of the sockets of one port, address and server Linux chooses the one that was
 * connected last: that of the newest worker.  Where another gets a reply, as
 * with IPv6 and "quic_passthrough_bind" before Linux 6.13, its worker passes it
 * to the same client.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* four addresses, each with its length, and the scope of the client's */

#define NGX_STREAM_QUIC_PT_PORTS_KEY                                          \
    (4 * (1 + NGX_STREAM_QUIC_LB_ADDRESS_MAX) + sizeof(uint32_t))


/* a place has these bits of the key, and the port; the others are the bucket */

#define ngx_stream_quic_pt_ports_tag(word)  ((word) >> 16)


static u_char *ngx_stream_quic_pt_ports_address(u_char *p,
    struct sockaddr *sa);


uint64_t
ngx_stream_quic_pt_ports_key(ngx_stream_quic_pt_ports_t *ports,
    ngx_stream_quic_pt_leg_t *leg)
{
    u_char                     *p, text[NGX_STREAM_QUIC_PT_PORTS_KEY];
    uint32_t                    scope;
    uint64_t                    key;
    ngx_peer_connection_t      *pc;
    ngx_stream_quic_pt_flow_t  *flow;

    flow = leg->flow;
    pc = &leg->upstream.peer;
    scope = 0;

#if (NGX_HAVE_INET6)
    if (flow->client.sockaddr.sa_family == AF_INET6) {
        scope = flow->client.sockaddr_in6.sin6_scope_id;
    }
#endif

    p = ngx_cpymem(text, &scope, sizeof(uint32_t));
    p = ngx_stream_quic_pt_ports_address(p, &flow->client.sockaddr);
    p = ngx_stream_quic_pt_ports_address(p, &flow->local.sockaddr);
    p = ngx_stream_quic_pt_ports_address(p, pc->sockaddr);
    p = ngx_stream_quic_pt_ports_address(p, pc->local ? pc->local->sockaddr
                                                      : NULL);

    key = quic_lb_hash(&ports->shared->secret, text, p - text);

    /* 0 is for ports without an owner, and for places that were never used */

    return ngx_stream_quic_pt_ports_tag(key) ? key : key + 0x10000;
}


static u_char *
ngx_stream_quic_pt_ports_address(u_char *p, struct sockaddr *sa)
{
    u_char  *last;

    last = sa ? ngx_stream_quic_lb_address(p + 1, sa) : p + 1;

    *p = (u_char) (last - p);

    return last;
}


/*
 * Owners are read after bind() and written before SO_REUSEPORT is set: the
 * kernel orders neither for the other process.
 */

uint64_t
ngx_stream_quic_pt_ports_owner(ngx_stream_quic_pt_ports_t *ports,
    in_port_t port)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);

    return __atomic_load_n(&ports->shared->owners[port], __ATOMIC_SEQ_CST);
}


void
ngx_stream_quic_pt_ports_own(ngx_stream_quic_pt_ports_t *ports,
    in_port_t port, uint64_t key)
{
    __atomic_store_n(&ports->shared->owners[port], key, __ATOMIC_SEQ_CST);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}


in_port_t
ngx_stream_quic_pt_ports_find(ngx_stream_quic_pt_ports_t *ports, uint64_t key)
{
    uint64_t    place, *bucket;
    in_port_t   port;
    ngx_uint_t  i;

    bucket = ports->shared->places[key % NGX_STREAM_QUIC_PT_PORTS_BUCKETS];

    for (i = 0; i < NGX_STREAM_QUIC_PT_PORTS_PLACES; i++) {

        place = __atomic_load_n(&bucket[i], __ATOMIC_RELAXED);
        port = (in_port_t) (place & 0xffff);

        if (place
            && ngx_stream_quic_pt_ports_tag(place)
               == ngx_stream_quic_pt_ports_tag(key)
            && ngx_stream_quic_pt_ports_owner(ports, port) == key)
        {
            return port;
        }
    }

    return 0;
}


/* the place of the same key, else one whose port has got another owner */

void
ngx_stream_quic_pt_ports_enter(ngx_stream_quic_pt_ports_t *ports,
    uint64_t key, in_port_t port)
{
    uint64_t    place, owner, *bucket;
    ngx_uint_t  i, found;

    bucket = ports->shared->places[key % NGX_STREAM_QUIC_PT_PORTS_BUCKETS];
    found = port % NGX_STREAM_QUIC_PT_PORTS_PLACES;

    for (i = 0; i < NGX_STREAM_QUIC_PT_PORTS_PLACES; i++) {

        place = __atomic_load_n(&bucket[i], __ATOMIC_RELAXED);

        if (ngx_stream_quic_pt_ports_tag(place)
            == ngx_stream_quic_pt_ports_tag(key))
        {
            found = i;
            break;
        }

        owner = ngx_stream_quic_pt_ports_owner(ports,
                                               (in_port_t) (place & 0xffff));

        if (place == 0
            || ngx_stream_quic_pt_ports_tag(place)
               != ngx_stream_quic_pt_ports_tag(owner))
        {
            found = i;
        }
    }

    place = (key & ~(uint64_t) 0xffff) | port;

    __atomic_store_n(&bucket[found], place, __ATOMIC_RELAXED);
}
