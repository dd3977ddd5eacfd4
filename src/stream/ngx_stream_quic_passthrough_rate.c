
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_passthrough_address_rate": new connections a second of one source.
 *
 * The kernel spreads a client's ports over the workers, so what a source has
 * used is in shared memory: an entry of 64 bits, which one atomic operation
 * changes, without a lock that a killed worker could leave.  An entry is the
 * time at which the bucket of the source is full again (GCRA) and a part of the
 * hash of the source.  Its key is random, so that nobody can choose what
 * collides.
 *
 * Entered by the first connection of a source, and never removed: of the four
 * entries that a source may take the one that is full first makes room.  The
 * bound is the size of the table.  Kept over a reload.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>


#define NGX_STREAM_QUIC_PT_RATE_NAME   "quic_passthrough_address_rate"

/* entries that one source may take, and how many times as many there are */

#define NGX_STREAM_QUIC_PT_RATE_WAYS   4
#define NGX_STREAM_QUIC_PT_RATE_SETS   16384

/* entry: 16 bits of the hash, the time in 1/1024 ms */

#define NGX_STREAM_QUIC_PT_RATE_SHIFT  48
#define NGX_STREAM_QUIC_PT_RATE_TIME                                          \
    (((uint64_t) 1 << NGX_STREAM_QUIC_PT_RATE_SHIFT) - 1)

#define NGX_STREAM_QUIC_PT_RATE_MAX    1000000

/* tries against other workers that change the same entry */

#define NGX_STREAM_QUIC_PT_RATE_TRIES  16


struct ngx_stream_quic_pt_rates_s {
    quic_lb_hash_key_t  key;
    volatile uint64_t   entries[NGX_STREAM_QUIC_PT_RATE_SETS]
                               [NGX_STREAM_QUIC_PT_RATE_WAYS];
};


static ngx_int_t ngx_stream_quic_pt_rate_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_stream_quic_pt_rate_take(
    ngx_stream_quic_pt_listener_t *listener, struct sockaddr *sockaddr);
static uint64_t ngx_stream_quic_pt_rate_key(
    ngx_stream_quic_pt_srv_conf_t *pscf, struct sockaddr *sockaddr,
    quic_lb_hash_key_t *key);
static volatile uint64_t *ngx_stream_quic_pt_rate_entry(
    ngx_stream_quic_pt_rates_t *rates, uint64_t hash);


char *
ngx_stream_quic_pt_rate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_quic_pt_srv_conf_t *pscf = conf;

    ngx_int_t   rate, burst;
    ngx_str_t  *value;

    if (pscf->address_rate != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        pscf->address_rate = 0;
        return NGX_CONF_OK;
    }

    rate = NGX_ERROR;

    if (value[1].len > 3
        && ngx_strncmp(value[1].data + value[1].len - 3, "r/s", 3) == 0)
    {
        rate = ngx_atoi(value[1].data, value[1].len - 3);
    }

    if (rate < 1 || rate > NGX_STREAM_QUIC_PT_RATE_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive, it must "
                           "be \"off\" or \"number\"r/s, from 1 to %d",
                           &value[1], &cmd->name, NGX_STREAM_QUIC_PT_RATE_MAX);
        return NGX_CONF_ERROR;
    }

    burst = rate;

    if (cf->args->nelts == 3) {

        burst = NGX_ERROR;

        if (ngx_strncmp(value[2].data, "burst=", 6) == 0) {
            burst = ngx_atoi(value[2].data + 6, value[2].len - 6);
        }

        if (burst < 1 || burst > NGX_STREAM_QUIC_PT_RATE_MAX) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\" directive, "
                               "it must be \"burst=number\", from 1 to %d",
                               &value[2], &cmd->name,
                               NGX_STREAM_QUIC_PT_RATE_MAX);
            return NGX_CONF_ERROR;
        }
    }

    pscf->address_rate = rate;
    pscf->address_burst = burst;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_stream_quic_pt_rate_init(ngx_conf_t *cf)
{
    size_t                           size;
    ngx_str_t                        name;
    ngx_uint_t                       i, used;
    ngx_shm_zone_t                  *zone;
    ngx_stream_core_srv_conf_t     **cscfp;
    ngx_stream_core_main_conf_t     *cmcf;
    ngx_stream_quic_pt_srv_conf_t   *pscf;

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);
    cscfp = cmcf->servers.elts;
    used = 0;

    for (i = 0; i < cmcf->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        used |= (pscf->address_rate != 0);
    }

    if (!used) {
        return NGX_OK;
    }

    ngx_str_set(&name, NGX_STREAM_QUIC_PT_RATE_NAME);

    /* with what the zone itself takes */

    size = sizeof(ngx_stream_quic_pt_rates_t);
    size += size / 8 + 8 * ngx_pagesize;

    zone = ngx_shared_memory_add(cf, &name, ngx_align(size, ngx_pagesize),
                                 &ngx_stream_quic_passthrough_module);
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->init = ngx_stream_quic_pt_rate_init_zone;
    zone->data = ngx_stream_conf_get_module_main_conf(cf,
                                          ngx_stream_quic_passthrough_module);

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_rate_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_stream_quic_pt_main_conf_t *old = data;

    ngx_slab_pool_t                 *shpool;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pmcf = shm_zone->data;

    if (old) {
        pmcf->rates = old->rates;
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        pmcf->rates = shpool->data;
        return NGX_OK;
    }

    pmcf->rates = ngx_slab_calloc(shpool, sizeof(ngx_stream_quic_pt_rates_t));
    if (pmcf->rates == NULL) {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) &pmcf->rates->key, sizeof(quic_lb_hash_key_t))
        != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "RAND_bytes() failed");
        return NGX_ERROR;
    }

    shpool->data = pmcf->rates;

    return NGX_OK;
}


ngx_int_t
ngx_stream_quic_pt_rate_first(ngx_stream_quic_pt_listener_t *listener,
    struct sockaddr *sockaddr)
{
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_quic_pt_srv_conf(listener->listening);

    return pscf->address_rate ? ngx_stream_quic_pt_rate_take(listener, sockaddr)
                              : NGX_OK;
}


/* a ClientHello may have several datagrams, all with one DCID */

ngx_int_t
ngx_stream_quic_pt_rate_admit(ngx_stream_quic_pt_flow_t *flow, u_char *data,
    size_t len)
{
    uint64_t                        hash;
    quic_lb_packet_t                pkt;
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_quic_pt_srv_conf(flow->listener->listening);

    if (pscf->address_rate == 0
        || quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK
        || !ngx_stream_quic_pt_route_begins(&pkt, data, len))
    {
        return NGX_OK;
    }

    hash = quic_lb_hash(&flow->listener->worker->key, pkt.dcid, pkt.dcid_len);

    if (hash == flow->counted) {
        return NGX_OK;
    }

    if (flow->fresh) {

        /* the datagram that made the flow has been counted */

        flow->fresh = 0;

    } else if (ngx_stream_quic_pt_route_known(flow, &pkt)) {
        return NGX_OK;

    } else if (ngx_stream_quic_pt_rate_take(flow->listener,
                                            &flow->client.sockaddr)
               != NGX_OK)
    {
        return NGX_DECLINED;
    }

    flow->counted = hash;

    return NGX_OK;
}


/* NGX_DECLINED: the source has to wait */

static ngx_int_t
ngx_stream_quic_pt_rate_take(ngx_stream_quic_pt_listener_t *listener,
    struct sockaddr *sockaddr)
{
    uint64_t                         hash, now, full, old, interval;
    ngx_uint_t                       i;
    volatile uint64_t               *entry;
    ngx_stream_quic_pt_rates_t      *rates;
    ngx_stream_quic_pt_srv_conf_t   *pscf;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    pscf = ngx_stream_quic_pt_srv_conf(listener->listening);
    pmcf = ngx_stream_cycle_get_module_main_conf(listener->worker->cycle,
                                          ngx_stream_quic_passthrough_module);
    rates = pmcf->rates;

    hash = ngx_stream_quic_pt_rate_key(pscf, sockaddr, &rates->key);
    now = ((uint64_t) ngx_current_msec << 10) & NGX_STREAM_QUIC_PT_RATE_TIME;
    interval = ((uint64_t) 1000 << 10) / pscf->address_rate;

    for (i = 0; i < NGX_STREAM_QUIC_PT_RATE_TRIES; i++) {

        entry = ngx_stream_quic_pt_rate_entry(rates, hash);
        old = *entry;
        full = now;

        if (old >> NGX_STREAM_QUIC_PT_RATE_SHIFT
            == hash >> NGX_STREAM_QUIC_PT_RATE_SHIFT)
        {
            full = old & NGX_STREAM_QUIC_PT_RATE_TIME;
            full = ngx_max(full, now);
        }

        if (full - now > interval * (pscf->address_burst - 1)) {
            return NGX_DECLINED;
        }

        full = (full + interval) & NGX_STREAM_QUIC_PT_RATE_TIME;

        if (__sync_bool_compare_and_swap(entry, old,
                                         (hash & ~NGX_STREAM_QUIC_PT_RATE_TIME)
                                         | full))
        {
            break;
        }
    }

    return NGX_OK;
}


/* servers with other limits count for themselves */

static uint64_t
ngx_stream_quic_pt_rate_key(ngx_stream_quic_pt_srv_conf_t *pscf,
    struct sockaddr *sockaddr, quic_lb_hash_key_t *key)
{
    u_char  *p, data[NGX_STREAM_QUIC_LB_ADDRESS_MAX + 2 * sizeof(ngx_int_t)];

    p = data + ngx_stream_quic_pt_source_key(sockaddr, data);
    p = ngx_cpymem(p, &pscf->address_rate, sizeof(ngx_int_t));
    p = ngx_cpymem(p, &pscf->address_burst, sizeof(ngx_int_t));

    return quic_lb_hash(key, data, p - data);
}


/* that of |hash|, or the one that is full first */

static volatile uint64_t *
ngx_stream_quic_pt_rate_entry(ngx_stream_quic_pt_rates_t *rates, uint64_t hash)
{
    ngx_uint_t          i;
    volatile uint64_t  *set, *entry;

    set = rates->entries[hash % NGX_STREAM_QUIC_PT_RATE_SETS];
    entry = set;

    for (i = 0; i < NGX_STREAM_QUIC_PT_RATE_WAYS; i++) {

        if (set[i] >> NGX_STREAM_QUIC_PT_RATE_SHIFT
            == hash >> NGX_STREAM_QUIC_PT_RATE_SHIFT)
        {
            return &set[i];
        }

        if ((set[i] & NGX_STREAM_QUIC_PT_RATE_TIME)
            < (*entry & NGX_STREAM_QUIC_PT_RATE_TIME))
        {
            entry = &set[i];
        }
    }

    return entry;
}
