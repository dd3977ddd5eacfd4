
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Sources: the flows of one client, whatever its ports.  For IPv6 that is a
 * network of 64 bits, in which a client may choose its address.
 *
 * Who changes the port with each packet makes a flow with each.  "limit_conn"
 * is not asked for such flows, as a connection that moves would count twice.
 * So a source with many unproven flows of a class is heavy, and makes room
 * before others of the class do; and "quic_passthrough_address_flows" bounds
 * all of its flows.
 *
 * Entered by the first flow of a source, removed with its last; a flow whose
 * session has been refused is none.  There are no more than connections.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* octets of an IPv6 address that tell one client from another */

#define NGX_STREAM_QUIC_PT_SOURCE_IPV6  8


static ngx_stream_quic_pt_source_t *ngx_stream_quic_pt_source_find(
    ngx_stream_quic_pt_worker_t *worker, u_char *key, size_t len,
    uint64_t hash);
static ngx_stream_quic_pt_source_t *ngx_stream_quic_pt_source_create(
    ngx_stream_quic_pt_worker_t *worker, u_char *key, size_t len,
    uint64_t hash);
static void ngx_stream_quic_pt_source_weigh(ngx_stream_quic_pt_class_t *class,
    ngx_stream_quic_pt_group_t *group);


ngx_uint_t
ngx_stream_quic_pt_source_full(ngx_stream_quic_pt_listener_t *listener,
    struct sockaddr *sockaddr)
{
    size_t                          len;
    u_char                          key[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    ngx_stream_quic_pt_source_t    *source;
    ngx_stream_quic_pt_worker_t    *worker;
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_quic_pt_srv_conf(listener->listening);

    if (pscf->address_flows == 0) {
        return 0;
    }

    worker = listener->worker;
    len = ngx_stream_quic_pt_source_key(sockaddr, key);

    source = ngx_stream_quic_pt_source_find(worker, key, len,
                                     quic_lb_hash(&worker->key, key, len));

    return source && source->nflows >= (ngx_uint_t) pscf->address_flows;
}


ngx_int_t
ngx_stream_quic_pt_source_attach(ngx_stream_quic_pt_flow_t *flow)
{
    size_t                        len;
    u_char                        key[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    uint64_t                      hash;
    ngx_stream_quic_pt_group_t   *group;
    ngx_stream_quic_pt_source_t  *source;
    ngx_stream_quic_pt_worker_t  *worker;

    worker = flow->listener->worker;
    len = ngx_stream_quic_pt_source_key(&flow->client.sockaddr, key);
    hash = quic_lb_hash(&worker->key, key, len);

    source = ngx_stream_quic_pt_source_find(worker, key, len, hash);

    if (source == NULL) {
        source = ngx_stream_quic_pt_source_create(worker, key, len, hash);

        if (source == NULL) {
            return NGX_ERROR;
        }
    }

    source->nflows++;

    flow->source = source;

    if (flow->class < NGX_STREAM_QUIC_PT_UNPROVEN) {
        group = &source->groups[flow->class];
        group->nflows++;

        ngx_queue_insert_tail(&group->flows, &flow->source_queue);
        ngx_stream_quic_pt_source_weigh(&worker->classes[flow->class], group);
    }

    return NGX_OK;
}


static ngx_stream_quic_pt_source_t *
ngx_stream_quic_pt_source_find(ngx_stream_quic_pt_worker_t *worker,
    u_char *key, size_t len, uint64_t hash)
{
    quic_lb_table_node_t         *node;
    ngx_stream_quic_pt_source_t  *source;

    for (node = quic_lb_table_first(&worker->sources, hash);
         node;
         node = quic_lb_table_next(node))
    {
        source = (ngx_stream_quic_pt_source_t *) node;

        if (source->len == len && ngx_memcmp(source->key, key, len) == 0) {
            return source;
        }
    }

    return NULL;
}


static ngx_stream_quic_pt_source_t *
ngx_stream_quic_pt_source_create(ngx_stream_quic_pt_worker_t *worker,
    u_char *key, size_t len, uint64_t hash)
{
    ngx_uint_t                    i;
    ngx_stream_quic_pt_source_t  *source;

    source = ngx_calloc(sizeof(ngx_stream_quic_pt_source_t), worker->log);
    if (source == NULL) {
        return NULL;
    }

    if (quic_lb_table_insert(&worker->sources, &source->node, hash)
        != QUIC_LB_OK)
    {
        ngx_free(source);
        return NULL;
    }

    source->len = len;
    ngx_memcpy(source->key, key, len);

    for (i = 0; i < NGX_STREAM_QUIC_PT_UNPROVEN; i++) {
        ngx_queue_init(&source->groups[i].flows);
    }

    return source;
}


/* returns the length of |key|: of the address and zone without the port */

size_t
ngx_stream_quic_pt_source_key(struct sockaddr *sockaddr, u_char *key)
{
    size_t  len;

    len = ngx_stream_quic_lb_address(key, sockaddr) - key - sizeof(in_port_t);

    len = ngx_min(len, NGX_STREAM_QUIC_PT_SOURCE_IPV6);

    return ngx_stream_quic_lb_zone(key + len, sockaddr) - key;
}


void
ngx_stream_quic_pt_source_settle(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_pt_group_t   *group;
    ngx_stream_quic_pt_worker_t  *worker;

    if (flow->source == NULL || flow->class >= NGX_STREAM_QUIC_PT_UNPROVEN) {
        return;
    }

    worker = flow->listener->worker;

    group = &flow->source->groups[flow->class];
    group->nflows--;

    ngx_queue_remove(&flow->source_queue);
    ngx_stream_quic_pt_source_weigh(&worker->classes[flow->class], group);
}


/* |flow| has been settled before */

void
ngx_stream_quic_pt_source_detach(ngx_stream_quic_pt_flow_t *flow)
{
    ngx_stream_quic_pt_source_t  *source;

    source = flow->source;

    if (source == NULL) {
        return;
    }

    flow->source = NULL;

    if (--source->nflows == 0) {
        quic_lb_table_remove(&flow->listener->worker->sources, &source->node);
        ngx_free(source);
    }
}


static void
ngx_stream_quic_pt_source_weigh(ngx_stream_quic_pt_class_t *class,
    ngx_stream_quic_pt_group_t *group)
{
    ngx_uint_t  heavy;

    heavy = group->nflows > class->share;

    if (heavy == group->heavy) {
        return;
    }

    group->heavy = heavy;

    if (heavy) {
        ngx_queue_insert_tail(&class->heavy, &group->queue);

    } else {
        ngx_queue_remove(&group->queue);
    }
}


ngx_stream_quic_pt_flow_t *
ngx_stream_quic_pt_source_heavy(ngx_stream_quic_pt_class_t *class)
{
    ngx_queue_t                 *q;
    ngx_stream_quic_pt_group_t  *group;

    if (ngx_queue_empty(&class->heavy)) {
        return NULL;
    }

    q = ngx_queue_head(&class->heavy);
    group = ngx_queue_data(q, ngx_stream_quic_pt_group_t, queue);

    q = ngx_queue_head(&group->flows);

    return ngx_queue_data(q, ngx_stream_quic_pt_flow_t, source_queue);
}
