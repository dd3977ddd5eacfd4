
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Set-ups that nginx takes but that cannot work, an [emerg], or may not be
 * meant, a [warn].
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"
#include "ngx_stream_quic_preread_module.h"


static ngx_int_t ngx_stream_quic_pt_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf);
static void ngx_stream_quic_pt_check_ignored(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_quic_pt_srv_conf_t *pscf);
static ngx_uint_t ngx_stream_quic_pt_check_flag(ngx_conf_t *cf,
    void **srv_conf, const char *name);
static ngx_int_t ngx_stream_quic_pt_check_zone(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_quic_pt_cids_t *cids);
static ngx_int_t ngx_stream_quic_pt_check_bind(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_quic_pt_srv_conf_t *pscf);
static ngx_str_t *ngx_stream_quic_pt_check_family(
    ngx_stream_upstream_srv_conf_t *us, int family, ngx_uint_t *same);
static ngx_int_t ngx_stream_quic_pt_check_upstreams(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_pt_check_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us);
static ngx_int_t ngx_stream_quic_pt_check_value(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr, ngx_stream_core_srv_conf_t *cscf);
static ngx_uint_t ngx_stream_quic_pt_check_uses(ngx_str_t *value,
    const char *prefix);
static void ngx_stream_quic_pt_check_agree(ngx_conf_t *cf,
    ngx_stream_conf_addr_t *addr, ngx_stream_core_srv_conf_t *cscf);
static void ngx_stream_quic_pt_check_preread(ngx_conf_t *cf);
static ngx_int_t ngx_stream_quic_pt_check_listen(ngx_cycle_t *cycle,
    ngx_listening_t *ls);
static ngx_int_t ngx_stream_quic_pt_check_overlap(ngx_listening_t *ls,
    ngx_listening_t *other);
static ngx_uint_t ngx_stream_quic_pt_check_wildcard(ngx_listening_t *ls);
static void ngx_stream_quic_pt_check_thresholds(ngx_cycle_t *cycle);


ngx_int_t
ngx_stream_quic_pt_check_servers(ngx_conf_t *cf)
{
    ngx_uint_t                     i;
    ngx_stream_core_srv_conf_t   **cscfp;
    ngx_stream_core_main_conf_t   *cmcf;

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);
    cscfp = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {

        if (cscfp[i]->handler == ngx_stream_quic_pt_session_handler
            && ngx_stream_quic_pt_check_server(cf, cscfp[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_stream_quic_pt_check_preread(cf);

    return ngx_stream_quic_pt_check_upstreams(cf);
}


static ngx_int_t
ngx_stream_quic_pt_check_server(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf)
{
    ngx_stream_quic_pt_srv_conf_t  *pscf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    ngx_stream_quic_pt_check_ignored(cf, cscf, pscf);

    if (pscf->cids
        && ngx_stream_quic_pt_check_zone(cf, cscf, pscf->cids) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (pscf->bind && pscf->bind->addr && pscf->upstream) {
        return ngx_stream_quic_pt_check_bind(cf, cscf, pscf);
    }

    return NGX_OK;
}


/*
 * Set for "stream", these may be for other servers; the name that "ssl_preread"
 * does not read is only missed where a target depends on something.
 */

static void
ngx_stream_quic_pt_check_ignored(ngx_conf_t *cf,
    ngx_stream_core_srv_conf_t *cscf, ngx_stream_quic_pt_srv_conf_t *pscf)
{
    void                                **main_conf, **srv_conf;
    ngx_stream_conf_ctx_t                *ctx;
    ngx_stream_quic_preread_srv_conf_t   *prcf;

    ctx = (ngx_stream_conf_ctx_t *) ngx_get_conf(cf->cycle->conf_ctx,
                                                 ngx_stream_module);
    main_conf = ctx->srv_conf;
    srv_conf = cscf->ctx->srv_conf;

    prcf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_preread_module);

    if (ngx_stream_quic_pt_check_flag(cf, srv_conf, "ssl_preread")
        && (!ngx_stream_quic_pt_check_flag(cf, main_conf, "ssl_preread")
            || (pscf->upstream_value && !prcf->enabled)))
    {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"ssl_preread\" reads nothing of QUIC, use "
                      "\"quic_preread\" with \"quic_passthrough\", server in "
                      "%s:%ui", cscf->file_name, cscf->line);
    }

    if (ngx_stream_quic_pt_check_flag(cf, srv_conf, "proxy_protocol")
        && !ngx_stream_quic_pt_check_flag(cf, main_conf, "proxy_protocol"))
    {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"proxy_protocol\" has no effect with "
                      "\"quic_passthrough\", for clients' addresses use "
                      "\"quic_passthrough_bind $remote_addr transparent\", "
                      "server in %s:%ui", cscf->file_name, cscf->line);
    }
}


/* a flag of whichever module has the directive |name|; nginx may lack it */

static ngx_uint_t
ngx_stream_quic_pt_check_flag(ngx_conf_t *cf, void **srv_conf,
    const char *name)
{
    char           *conf;
    ngx_uint_t      i;
    ngx_module_t   *module;
    ngx_command_t  *cmd;

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        if (module->type != NGX_STREAM_MODULE || module->commands == NULL) {
            continue;
        }

        for (cmd = module->commands; cmd->name.len; cmd++) {

            if (cmd->set != ngx_conf_set_flag_slot
                || cmd->conf != NGX_STREAM_SRV_CONF_OFFSET
                || ngx_strcmp(cmd->name.data, name) != 0)
            {
                continue;
            }

            conf = srv_conf[module->ctx_index];

            return conf && *(ngx_flag_t *) (conf + cmd->offset) == 1;
        }
    }

    return 0;
}


/* nginx would name the zone alone */

static ngx_int_t
ngx_stream_quic_pt_check_zone(ngx_conf_t *cf, ngx_stream_core_srv_conf_t *cscf,
    ngx_stream_quic_pt_cids_t *cids)
{
    if (cids->zone->shm.size) {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "zone \"%V\" of \"quic_passthrough_cid_zone\" has no size: "
                  "one of the directives with this name must be "
                  "\"zone=%V:size\", server in %s:%ui",
                  &cids->zone->shm.name, &cids->zone->shm.name,
                  cscf->file_name, cscf->line);

    return NGX_ERROR;
}


static ngx_int_t
ngx_stream_quic_pt_check_bind(ngx_conf_t *cf, ngx_stream_core_srv_conf_t *cscf,
    ngx_stream_quic_pt_srv_conf_t *pscf)
{
    ngx_str_t   *other;
    ngx_addr_t  *addr;
    ngx_uint_t   same, level;

    addr = pscf->bind->addr;

    other = ngx_stream_quic_pt_check_family(pscf->upstream,
                                            addr->sockaddr->sa_family, &same);
    if (other == NULL) {
        return NGX_OK;
    }

    level = same ? NGX_LOG_WARN : NGX_LOG_EMERG;

    ngx_log_error(level, cf->log, 0,
                  "\"quic_passthrough_bind\" address \"%V\" and \"%V\" of "
                  "upstream \"%V\" are not of one address family, %s, "
                  "server in %s:%ui",
                  &addr->name, other, &pscf->upstream->host,
                  same ? "that server gets nothing"
                       : "nor is any other of its servers",
                  cscf->file_name, cscf->line);

    return same ? NGX_OK : NGX_ERROR;
}


/*
 * Returns the name of a server of another family than |family|, or NULL; |same|
 * is set if one may be of |family|.
 */

static ngx_str_t *
ngx_stream_quic_pt_check_family(ngx_stream_upstream_srv_conf_t *us,
    int family, ngx_uint_t *same)
{
    ngx_str_t                       *other;
    ngx_uint_t                       i, j;
    ngx_stream_upstream_server_t    *server;
    ngx_stream_upstream_rr_peer_t   *peer;
    ngx_stream_upstream_rr_peers_t  *peers;

    *same = 0;
    other = NULL;

    if (us->servers == NULL) {

        /* an implicit upstream with a name is of round robin */

        peers = us->peer.data;

        for (peer = peers->peer; peer; peer = peer->next) {

            if (peer->sockaddr->sa_family == family) {
                *same = 1;

            } else {
                other = &peer->name;
            }
        }

        return other;
    }

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

#if (nginx_version >= 1027003 && NGX_STREAM_UPSTREAM_ZONE)
        if (server[i].host.len) {
            *same = 1;
            continue;
        }
#endif

        for (j = 0; j < server[i].naddrs; j++) {

            if (server[i].addrs[j].sockaddr->sa_family == family) {
                *same = 1;

            } else {
                other = &server[i].addrs[j].name;
            }
        }
    }

    return other;
}


static ngx_int_t
ngx_stream_quic_pt_check_upstreams(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_stream_upstream_srv_conf_t  **uscfp;
    ngx_stream_upstream_main_conf_t  *umcf;

    umcf = ngx_stream_conf_get_module_main_conf(cf,
                                                ngx_stream_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf
            && ngx_stream_quic_pt_check_upstream(cf, uscfp[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* each warning once, whatever number of servers uses the upstream */

static ngx_int_t
ngx_stream_quic_pt_check_upstream(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us)
{
    ngx_uint_t                       i, used, unlearned;
    ngx_stream_core_srv_conf_t     **cscfp;
    ngx_stream_core_main_conf_t     *cmcf;
    ngx_stream_quic_pt_srv_conf_t   *pscf;

    used = 0;
    unlearned = 0;

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);
    cscfp = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        if (pscf->upstream == us) {
            used = 1;
            unlearned |= (pscf->cids == NULL);
        }

        if (pscf->upstream_value) {
            unlearned |= (pscf->cids == NULL);
        }
    }

    if (unlearned) {
        ngx_stream_quic_lb_check_server_ids(cf, us);
    }

    if (!used || ngx_stream_quic_lb_balances(us)) {
        return NGX_OK;
    }

    return ngx_stream_quic_lb_check_servers(cf, us);
}


ngx_int_t
ngx_stream_quic_pt_check_addr(ngx_conf_t *cf, ngx_stream_conf_addr_t *addr)
{
    ngx_uint_t                            i;
    ngx_stream_core_srv_conf_t          **cscfp;
    ngx_stream_quic_preread_srv_conf_t   *prcf;

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {

        if (ngx_stream_quic_pt_check_value(cf, addr, cscfp[i]) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_stream_quic_pt_check_agree(cf, addr, cscfp[i]);
    }

    prcf = ngx_stream_get_module_srv_conf(addr->default_server->ctx,
                                          ngx_stream_quic_preread_module);

    for (i = 0; i < addr->servers.nelts; i++) {

        if (prcf->enabled || cscfp[i] == addr->default_server) {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"quic_passthrough\" uses the default server alone for "
                      "listen %V, \"server_name\" needs \"quic_preread on\", "
                      "server in %s:%ui", &addr->opt.addr_text,
                      cscfp[i]->file_name, cscfp[i]->line);
        break;
    }

    return NGX_OK;
}


/* what "quic_passthrough" says by itself; a "map" does not show its source */

static ngx_int_t
ngx_stream_quic_pt_check_value(ngx_conf_t *cf, ngx_stream_conf_addr_t *addr,
    ngx_stream_core_srv_conf_t *cscf)
{
    char                                *variables;
    ngx_str_t                           *value;
    ngx_stream_quic_pt_srv_conf_t       *pscf;
    ngx_stream_quic_preread_srv_conf_t  *prcf;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->upstream_value == NULL) {
        return NGX_OK;
    }

    prcf = ngx_stream_get_module_srv_conf(addr->default_server->ctx,
                                          ngx_stream_quic_preread_module);
    value = &pscf->upstream_value->value;

    if (ngx_stream_quic_pt_check_uses(value, "ssl_preread_")) {
        variables = "$quic_preread_... instead of $ssl_preread_..., and "
                    "\"quic_preread on\"";

    } else if (!prcf->enabled
               && ngx_stream_quic_pt_check_uses(value, "quic_preread_"))
    {
        variables = "\"quic_preread on\" for its $quic_preread_...";

    } else {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"quic_passthrough %V\" needs %s, listen %V, server in "
                  "%s:%ui", value, variables, &addr->opt.addr_text,
                  cscf->file_name, cscf->line);

    return NGX_ERROR;
}


static ngx_uint_t
ngx_stream_quic_pt_check_uses(ngx_str_t *value, const char *prefix)
{
    size_t   len;
    u_char  *p, *name, *last;

    len = ngx_strlen(prefix);
    last = value->data + value->len;

    for (p = value->data; p < last; p++) {

        if (*p != '$') {
            continue;
        }

        name = (p + 1 < last && p[1] == '{') ? p + 2 : p + 1;

        if (name + len <= last
            && ngx_strncasecmp(name, (u_char *) prefix, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* before there is a flow the server is not known */

static void
ngx_stream_quic_pt_check_agree(ngx_conf_t *cf, ngx_stream_conf_addr_t *addr,
    ngx_stream_core_srv_conf_t *cscf)
{
    char                           *name;
    ngx_stream_quic_pt_srv_conf_t  *pscf, *first;

    pscf = ngx_stream_get_module_srv_conf(cscf->ctx,
                                          ngx_stream_quic_passthrough_module);
    first = ngx_stream_get_module_srv_conf(addr->default_server->ctx,
                                          ngx_stream_quic_passthrough_module);

    if (pscf->address_flows != first->address_flows) {
        name = "quic_passthrough_address_flows";

    } else if (pscf->address_rate != first->address_rate
               || pscf->address_burst != first->address_burst)
    {
        name = "quic_passthrough_address_rate";

    } else if (pscf->rcvbuf != first->rcvbuf) {
        name = "quic_passthrough_socket_rcvbuf";

    } else if (pscf->sndbuf != first->sndbuf) {
        name = "quic_passthrough_socket_sndbuf";

    } else {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"%s\" differs from that of the default server of listen "
                  "%V, which is used, server in %s:%ui",
                  name, &addr->opt.addr_text, cscf->file_name, cscf->line);
}


/* the variables may be in a log format that others use */

static void
ngx_stream_quic_pt_check_preread(ngx_conf_t *cf)
{
    ngx_uint_t                             i;
    ngx_stream_variable_t                 *v;
    ngx_stream_core_srv_conf_t           **cscfp;
    ngx_stream_core_main_conf_t           *cmcf;
    ngx_stream_quic_preread_main_conf_t   *prmcf;

    prmcf = ngx_stream_conf_get_module_main_conf(cf,
                                              ngx_stream_quic_preread_module);
    if (prmcf->used) {
        return;
    }

    cmcf = ngx_stream_conf_get_module_main_conf(cf, ngx_stream_core_module);
    cscfp = cmcf->servers.elts;
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (v[i].name.len > sizeof("quic_preread_") - 1
            && ngx_strncmp(v[i].name.data, "quic_preread_",
                           sizeof("quic_preread_") - 1)
               == 0)
        {
            break;
        }
    }

    if (i == cmcf->variables.nelts) {
        return;
    }

    while ((*cscfp)->handler != ngx_stream_quic_pt_session_handler) {
        cscfp++;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "the variable \"%V\" is empty: no server with "
                  "\"quic_passthrough\" has \"quic_preread on\", server in "
                  "%s:%ui", &v[i].name, (*cscfp)->file_name, (*cscfp)->line);
}


/* with all listens and the number of connections known */

ngx_int_t
ngx_stream_quic_pt_check_cycle(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

#if (NGX_HAVE_REUSEPORT)
        if (ls[i].reuseport && ls[i].worker) {
            continue;
        }
#endif

        if (ngx_stream_quic_pt_listening(&ls[i])
            && ngx_stream_quic_pt_check_listen(cycle, &ls[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_stream_quic_pt_check_thresholds(cycle);

    return NGX_OK;
}


/*
 * Sockets of other modules, such as "listen ... quic" of http; the stream
 * module sees to its own.  Linux lets two sockets have one UDP address if both
 * have SO_REUSEADDR, which nginx sets, and gives the datagrams to the last one,
 * or with "reuseport" to all in turn.
 */

static ngx_int_t
ngx_stream_quic_pt_check_listen(ngx_cycle_t *cycle, ngx_listening_t *ls)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_listening_t             *other;
    ngx_stream_core_srv_conf_t  *cscf;

    cscf = ngx_stream_quic_pt_default_server(ls);
    other = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

#if (NGX_HAVE_REUSEPORT)
        if (other[i].reuseport && other[i].worker) {
            continue;
        }
#endif

        rc = ngx_stream_quic_pt_check_overlap(ls, &other[i]);

        if (rc == NGX_OK) {
            continue;
        }

        if (rc == NGX_ERROR) {
            ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                          "\"quic_passthrough\" needs listen %V for itself, "
                          "a server outside of \"stream\" has the same "
                          "\"listen\" for UDP, server in %s:%ui",
                          &ls->addr_text, cscf->file_name, cscf->line);
            return NGX_ERROR;
        }

        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "listen %V of \"quic_passthrough\" and listen %V for UDP "
                      "outside of \"stream\" overlap, the more specific one "
                      "gets the datagrams, server in %s:%ui",
                      &ls->addr_text, &other[i].addr_text, cscf->file_name,
                      cscf->line);
    }

    return NGX_OK;
}


/* NGX_ERROR: the same address, NGX_DECLINED: one of them contains the other */

static ngx_int_t
ngx_stream_quic_pt_check_overlap(ngx_listening_t *ls, ngx_listening_t *other)
{
    if (other->type != SOCK_DGRAM
        || other->handler == ngx_stream_init_connection
        || (other->sockaddr->sa_family != AF_INET
            && other->sockaddr->sa_family != AF_INET6)
        || ngx_inet_get_port(other->sockaddr)
           != ngx_inet_get_port(ls->sockaddr))
    {
        return NGX_OK;
    }

    if (ngx_cmp_sockaddr(ls->sockaddr, ls->socklen, other->sockaddr,
                         other->socklen, 1)
        == NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ls->sockaddr->sa_family == other->sockaddr->sa_family) {
        return (ngx_stream_quic_pt_check_wildcard(ls)
                || ngx_stream_quic_pt_check_wildcard(other))
               ? NGX_DECLINED : NGX_OK;
    }

#if (NGX_HAVE_INET6)

    /* of two families only a dual-stack one has addresses of the other */

    if (ls->sockaddr->sa_family == AF_INET) {
        ls = other;
    }

    if (!ls->ipv6only && ngx_stream_quic_pt_check_wildcard(ls)) {
        return NGX_DECLINED;
    }

#endif

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_pt_check_wildcard(ngx_listening_t *ls)
{
    struct sockaddr_in   *sin;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;

    if (ls->sockaddr->sa_family == AF_INET6) {
        sin6 = (struct sockaddr_in6 *) ls->sockaddr;
        return IN6_IS_ADDR_UNSPECIFIED(&sin6->sin6_addr);
    }
#endif

    sin = (struct sockaddr_in *) ls->sockaddr;

    return sin->sin_addr.s_addr == INADDR_ANY;
}


static void
ngx_stream_quic_pt_check_thresholds(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i, limit;
    ngx_stream_core_srv_conf_t     **cscfp;
    ngx_stream_core_main_conf_t     *cmcf;
    ngx_stream_quic_pt_srv_conf_t   *pscf;

    cmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                                 ngx_stream_core_module);
    if (cmcf == NULL) {
        return;
    }

    limit = ngx_stream_quic_pt_half_open_limit(cycle);
    cscfp = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {
        pscf = ngx_stream_get_module_srv_conf(cscfp[i]->ctx,
                                          ngx_stream_quic_passthrough_module);

        if (cscfp[i]->handler != ngx_stream_quic_pt_session_handler
            || pscf->retry_threshold <= limit)
        {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "\"threshold=%ui\" of \"quic_passthrough_retry\" is more "
                      "than the %ui half-open flows that %ui worker_connections"
                      " allow, %ui is used, server in %s:%ui",
                      pscf->retry_threshold, limit, cycle->connection_n, limit,
                      cscfp[i]->file_name, cscfp[i]->line);
        return;
    }
}
