
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * $quic_health_UPSTREAM: the servers of an upstream, and what is known of them.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_target.h"
#include "ngx_stream_upstream_quic_lb_health.h"


static ngx_int_t ngx_stream_quic_lb_health_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data);
static size_t ngx_stream_quic_lb_health_print(
    ngx_stream_upstream_rr_peers_t *peers, u_char *dst, size_t size);
static char *ngx_stream_quic_lb_health_word(
    ngx_stream_upstream_rr_peer_t *peer);
static ngx_int_t ngx_stream_quic_lb_health_check_variable(ngx_conf_t *cf,
    ngx_str_t *variable);


/* the name of the upstream follows */

static ngx_str_t  ngx_stream_quic_lb_health_name = ngx_string("quic_health_");


ngx_int_t
ngx_stream_quic_lb_health_add_variables(ngx_conf_t *cf)
{
    ngx_stream_variable_t  *var;

    var = ngx_stream_add_variable(cf, &ngx_stream_quic_lb_health_name,
                                  NGX_STREAM_VAR_NOCACHEABLE
                                  |NGX_STREAM_VAR_PREFIX);
    if (var == NULL) {
        return NGX_ERROR;
    }

    var->get_handler = ngx_stream_quic_lb_health_variable;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_health_variable(ngx_stream_session_t *s,
    ngx_stream_variable_value_t *v, uintptr_t data)
{
    ngx_str_t *name = (ngx_str_t *) data;

    size_t                            len, prefix;
    u_char                           *p;
    ngx_str_t                         host;
    ngx_stream_quic_lb_health_t      *health;
    ngx_stream_upstream_rr_peers_t   *peers;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_get_module_main_conf(s, ngx_stream_upstream_module);

    prefix = ngx_stream_quic_lb_health_name.len;
    host.len = name->len - prefix;
    host.data = name->data + prefix;

    health = ngx_stream_quic_lb_health_find(umcf, &host);

    if (health == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    peers = health->upstream->peer.data;

    /* peers that "resolve" adds between the two calls are left out */

    len = ngx_stream_quic_lb_health_print(peers, NULL, 0);

    p = ngx_pnalloc(s->connection->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_stream_quic_lb_health_print(peers, p, len);
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = p;

    return NGX_OK;
}


/* returns the length, of as many peers as there is room for; NULL: of all */

static size_t
ngx_stream_quic_lb_health_print(ngx_stream_upstream_rr_peers_t *peers,
    u_char *dst, size_t size)
{
    char                           *word;
    size_t                          len, total;
    ngx_stream_upstream_rr_peer_t  *peer;

    total = 0;

    for ( /* void */ ; peers; peers = peers->next) {

        ngx_stream_upstream_rr_peers_rlock(peers);

        for (peer = peers->peer; peer; peer = peer->next) {

            word = ngx_stream_quic_lb_health_word(peer);

            /* the longest word, as it may change meanwhile */

            len = peer->name.len + sizeof(" garbage\n") - 1;

            if (dst == NULL) {
                total += len;
                continue;
            }

            if (size - total < len) {
                break;
            }

            total = ngx_sprintf(dst + total, "%V %s\n", &peer->name, word)
                    - dst;
        }

        ngx_stream_upstream_rr_peers_unlock(peers);
    }

    return total;
}


static char *
ngx_stream_quic_lb_health_word(ngx_stream_upstream_rr_peer_t *peer)
{
    if (ngx_stream_quic_lb_health_off(peer)) {
        return "down";
    }

    switch (peer->down) {

    case 0:
        return "alive";

    case NGX_STREAM_QUIC_LB_HEALTH_CLOSED:
        return "closed";

    case NGX_STREAM_QUIC_LB_HEALTH_SILENT:
        return "silent";

    default: /* NGX_STREAM_QUIC_LB_HEALTH_GARBAGE */
        return "garbage";
    }
}


ngx_int_t
ngx_stream_quic_lb_health_check_variables(ngx_conf_t *cf)
{
    ngx_str_t                    *prefix;
    ngx_uint_t                    i;
    ngx_stream_variable_t        *v;
    ngx_stream_core_main_conf_t  *cmcf;

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);

    prefix = &ngx_stream_quic_lb_health_name;
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (v[i].name.len >= prefix->len
            && ngx_strncmp(v[i].name.data, prefix->data, prefix->len) == 0
            && ngx_stream_quic_lb_health_check_variable(cf, &v[i].name)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_health_check_variable(ngx_conf_t *cf, ngx_str_t *variable)
{
    ngx_str_t                        host, names;
    ngx_stream_upstream_srv_conf_t  *us;

    host.data = variable->data + ngx_stream_quic_lb_health_name.len;
    host.len = variable->len - ngx_stream_quic_lb_health_name.len;

    us = ngx_stream_quic_lb_target_upstream(cf, &host);

    if (us == NULL) {
        if (ngx_stream_quic_lb_target_names(cf, &names) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown \"%V\" variable, there is no upstream"
                           " \"%V\" (%V)", variable, &host, &names);
        return NGX_ERROR;
    }

    if (ngx_stream_quic_lb_health_of(us) == NULL) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "the variable \"%V\" is empty without"
                      " \"quic_health_check\" in upstream \"%V\" in %s:%ui",
                      variable, &us->host, us->file_name, us->line);
    }

    return NGX_OK;
}
