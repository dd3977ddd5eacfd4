
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quic_health_check": the directive, what is known of servers, and which
 * worker asks.  See the header.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_balancer.h"


/* defaults */

#define NGX_STREAM_QUIC_LB_HEALTH_INTERVAL  5000
#define NGX_STREAM_QUIC_LB_HEALTH_FAILS     3
#define NGX_STREAM_QUIC_LB_HEALTH_PASSES    2

/* ms; less would be load, not a check */

#define NGX_STREAM_QUIC_LB_HEALTH_LEAST     100


static ngx_int_t ngx_stream_quic_lb_health_parameter(
    ngx_stream_quic_lb_health_t *health, ngx_str_t *value);
static ngx_uint_t ngx_stream_quic_lb_health_prefix(ngx_str_t *value,
    const char *name, ngx_str_t *rest);
static ngx_int_t ngx_stream_quic_lb_health_number(ngx_str_t *value,
    ngx_int_t max);

static ngx_uint_t ngx_stream_quic_lb_health_loaded(ngx_cycle_t *cycle);
static void ngx_stream_quic_lb_health_copy(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peers_t *peers);
static void ngx_stream_quic_lb_health_set_peers(
    ngx_stream_upstream_rr_peers_t *peers, ngx_str_t *name, ngx_uint_t state);
static void ngx_stream_quic_lb_health_timer(ngx_event_t *ev);


char *
ngx_stream_quic_lb_health_check(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_stream_upstream_quic_lb_srv_conf_t *qcf = conf;

    ngx_str_t                    *value;
    ngx_uint_t                    i;
    ngx_stream_quic_lb_health_t  *health;

    if (qcf->health) {
        return "is duplicate";
    }

    health = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_lb_health_t));
    if (health == NULL) {
        return NGX_CONF_ERROR;
    }

    health->upstream = ngx_stream_conf_get_module_srv_conf(cf,
                                                   ngx_stream_upstream_module);
    health->interval = NGX_STREAM_QUIC_LB_HEALTH_INTERVAL;
    health->fails = NGX_STREAM_QUIC_LB_HEALTH_FAILS;
    health->passes = NGX_STREAM_QUIC_LB_HEALTH_PASSES;
    health->file_name = cf->conf_file->file.name.data;
    health->line = cf->conf_file->line;

    ngx_queue_init(&health->targets);

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_stream_quic_lb_health_parameter(health, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\" directive, "
                               "it must be \"interval=time\" of at least "
                               "%dms, \"jitter=time\", \"fails=number\", "
                               "\"passes=number\" or \"port=number\"",
                               &value[i], &cmd->name,
                               NGX_STREAM_QUIC_LB_HEALTH_LEAST);
            return NGX_CONF_ERROR;
        }
    }

    qcf->health = health;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_stream_quic_lb_health_parameter(ngx_stream_quic_lb_health_t *health,
    ngx_str_t *value)
{
    ngx_int_t  n;
    ngx_str_t  rest;

    if (ngx_stream_quic_lb_health_prefix(value, "interval=", &rest)) {
        n = ngx_parse_time(&rest, 0);
        health->interval = n;

        return (n >= NGX_STREAM_QUIC_LB_HEALTH_LEAST) ? NGX_OK : NGX_ERROR;
    }

    if (ngx_stream_quic_lb_health_prefix(value, "jitter=", &rest)) {
        n = ngx_parse_time(&rest, 0);
        health->jitter = n;

        return (n >= 0) ? NGX_OK : NGX_ERROR;
    }

    if (ngx_stream_quic_lb_health_prefix(value, "fails=", &rest)) {
        n = ngx_stream_quic_lb_health_number(&rest, NGX_MAX_INT32_VALUE);
        health->fails = n;

        return (n == NGX_ERROR) ? NGX_ERROR : NGX_OK;
    }

    if (ngx_stream_quic_lb_health_prefix(value, "passes=", &rest)) {
        n = ngx_stream_quic_lb_health_number(&rest, NGX_MAX_INT32_VALUE);
        health->passes = n;

        return (n == NGX_ERROR) ? NGX_ERROR : NGX_OK;
    }

    if (ngx_stream_quic_lb_health_prefix(value, "port=", &rest)) {
        n = ngx_stream_quic_lb_health_number(&rest, 65535);
        health->port = (in_port_t) n;

        return (n == NGX_ERROR) ? NGX_ERROR : NGX_OK;
    }

    return NGX_ERROR;
}


static ngx_uint_t
ngx_stream_quic_lb_health_prefix(ngx_str_t *value, const char *name,
    ngx_str_t *rest)
{
    size_t  len;

    len = ngx_strlen(name);

    if (value->len < len || ngx_strncmp(value->data, name, len) != 0) {
        return 0;
    }

    rest->data = value->data + len;
    rest->len = value->len - len;

    return 1;
}


/* from 1 to |max|, or NGX_ERROR */

static ngx_int_t
ngx_stream_quic_lb_health_number(ngx_str_t *value, ngx_int_t max)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data, value->len);

    return (n < 1 || n > max) ? NGX_ERROR : n;
}


ngx_int_t
ngx_stream_quic_lb_health_init(ngx_conf_t *cf,
    ngx_stream_quic_lb_health_t *health)
{
    char                            *rule;
    ngx_stream_upstream_srv_conf_t  *us;

    us = health->upstream;
    rule = NULL;

    if (!ngx_stream_quic_lb_balances(us)) {
        rule = "needs \"quic_lb\" or \"quic_maglev\", and no other load "
               "balancing method";
    }

#if (NGX_STREAM_UPSTREAM_ZONE)
    if (rule == NULL && us->shm_zone == NULL) {
        rule = "needs \"zone\", by which the workers share what is known";
    }
#endif

    if (rule == NULL) {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"quic_health_check\" %s, in upstream \"%V\" in %s:%ui",
                  rule, &us->host, health->file_name, health->line);

    return NGX_ERROR;
}


ngx_stream_quic_lb_health_t *
ngx_stream_quic_lb_health_find(ngx_stream_upstream_main_conf_t *umcf,
    ngx_str_t *host)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->host.len == host->len
            && ngx_strncasecmp(uscfp[i]->host.data, host->data, host->len)
               == 0
            && uscfp[i]->srv_conf)
        {
            return ngx_stream_quic_lb_health_of(uscfp[i]);
        }
    }

    return NULL;
}


ngx_stream_quic_lb_health_t *
ngx_stream_quic_lb_health_of(ngx_stream_upstream_srv_conf_t *us)
{
    ngx_stream_upstream_quic_lb_srv_conf_t  *qcf;

    /* an implicit upstream has no configuration */

    if (us->srv_conf == NULL) {
        return NULL;
    }

    qcf = ngx_stream_conf_upstream_srv_conf(us,
                                           ngx_stream_upstream_quic_lb_module);

    return qcf->health;
}


/*
 * After the zones have been made, before there are workers that use them.  A
 * server that stays is what it was.
 */

ngx_int_t
ngx_stream_quic_lb_health_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i;
    ngx_cycle_t                      *old;
    ngx_stream_quic_lb_health_t      *health, *former;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf, *oumcf;

    old = cycle->old_cycle;

    if (old == NULL
        || old->conf_ctx == NULL
        || !ngx_stream_quic_lb_health_loaded(old))
    {
        return NGX_OK;
    }

    umcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                 ngx_stream_upstream_module);
    oumcf = ngx_stream_cycle_get_module_main_conf(old,
                                                  ngx_stream_upstream_module);

    if (umcf == NULL || oumcf == NULL) {
        return NGX_OK;
    }

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        health = ngx_stream_quic_lb_health_of(uscfp[i]);
        if (health == NULL) {
            continue;
        }

        former = ngx_stream_quic_lb_health_find(oumcf, &uscfp[i]->host);
        if (former == NULL) {
            continue;
        }

        ngx_stream_quic_lb_health_copy(health, former->upstream->peer.data);
    }

    return NGX_OK;
}


/* a configuration before the module was loaded has no place for it */

static ngx_uint_t
ngx_stream_quic_lb_health_loaded(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; cycle->modules[i]; i++) {
        if (cycle->modules[i] == &ngx_stream_upstream_quic_lb_module) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_stream_quic_lb_health_copy(ngx_stream_quic_lb_health_t *health,
    ngx_stream_upstream_rr_peers_t *peers)
{
    ngx_uint_t                      state;
    ngx_stream_upstream_rr_peer_t  *peer;

    for ( /* void */ ; peers; peers = peers->next) {

        ngx_stream_upstream_rr_peers_rlock(peers);

        for (peer = peers->peer; peer; peer = peer->next) {

            state = peer->down & NGX_STREAM_QUIC_LB_HEALTH;

            if (state) {
                ngx_stream_quic_lb_health_set(health, &peer->name, state);
            }
        }

        ngx_stream_upstream_rr_peers_unlock(peers);
    }
}


void
ngx_stream_quic_lb_health_set(ngx_stream_quic_lb_health_t *health,
    ngx_str_t *name, ngx_uint_t state)
{
    ngx_stream_upstream_rr_peers_t  *peers;

    for (peers = health->upstream->peer.data; peers; peers = peers->next) {
        ngx_stream_quic_lb_health_set_peers(peers, name, state);
    }
}


static void
ngx_stream_quic_lb_health_set_peers(ngx_stream_upstream_rr_peers_t *peers,
    ngx_str_t *name, ngx_uint_t state)
{
    ngx_stream_upstream_rr_peer_t  *peer;

    ngx_stream_upstream_rr_peers_rlock(peers);

    for (peer = peers->peer; peer; peer = peer->next) {

        if (ngx_memn2cmp(peer->name.data, name->data, peer->name.len,
                         name->len)
            != 0)
        {
            continue;
        }

        ngx_stream_upstream_rr_peer_lock(peers, peer);

        peer->down = ngx_stream_quic_lb_health_off(peer) | state;

        if (state == 0) {

            /* it is known to work, whatever connections have met */

            peer->fails = 0;
        }

        ngx_stream_upstream_rr_peer_unlock(peers, peer);
    }

    ngx_stream_upstream_rr_peers_unlock(peers);
}


/* the upstreams take turns among the workers, as names to resolve do */

ngx_int_t
ngx_stream_quic_lb_health_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i, workers;
    ngx_core_conf_t                  *ccf;
    ngx_stream_quic_lb_health_t      *health;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    umcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                 ngx_stream_upstream_module);
    if (umcf == NULL) {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    workers = (ngx_process == NGX_PROCESS_SINGLE) ? 1 : ccf->worker_processes;

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        health = ngx_stream_quic_lb_health_of(uscfp[i]);

        if (health == NULL || i % workers != ngx_worker) {
            continue;
        }

        health->log = cycle->log;

        ngx_stream_quic_lb_target_update(health);

        if (!ngx_stream_quic_lb_conf_resolves(uscfp[i])) {
            continue;
        }

        health->update.handler = ngx_stream_quic_lb_health_timer;
        health->update.data = health;
        health->update.log = cycle->log;
        health->update.cancelable = 1;

        ngx_add_timer(&health->update, health->interval);
    }

    return NGX_OK;
}


static void
ngx_stream_quic_lb_health_timer(ngx_event_t *ev)
{
    ngx_stream_quic_lb_health_t     *health;
    ngx_stream_upstream_rr_peers_t  *peers;

    if (ngx_exiting || ngx_terminate || ngx_quit) {
        return;
    }

    health = ev->data;
    peers = health->upstream->peer.data;

    if (health->config != ngx_stream_upstream_quic_lb_peers_config(peers)
        || (peers->next
            && health->backup_config
               != ngx_stream_upstream_quic_lb_peers_config(peers->next)))
    {
        ngx_stream_quic_lb_target_update(health);
    }

    ngx_add_timer(ev, health->interval);
}


void
ngx_stream_quic_lb_health_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i;
    ngx_queue_t                      *q;
    ngx_stream_quic_lb_target_t      *target;
    ngx_stream_quic_lb_health_t      *health;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                 ngx_stream_upstream_module);
    if (umcf == NULL) {
        return;
    }

    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        health = ngx_stream_quic_lb_health_of(uscfp[i]);

        while (health && !ngx_queue_empty(&health->targets)) {
            q = ngx_queue_head(&health->targets);
            target = ngx_queue_data(q, ngx_stream_quic_lb_target_t, queue);

            ngx_stream_quic_lb_target_delete(target);
        }
    }
}
