
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The "server_id" lines: in each "quic_lb" block a table of server IDs.
 *
 * Keys are server IDs, each of "server_id_length" octets, values the servers of
 * the upstream: lines with one address share one.  The lines insert when the
 * configuration is read; nobody inserts later, and nobody removes.  The bound
 * is what is written in the configuration.
 *
 * A table is an array, sorted at the end of the block; a search takes log2(n)
 * comparisons.  A packet is searched for in the tables of all upstreams that
 * share its codepoint, one after another, until one has it.
 *
 * A reload makes new tables.  Workers of the old configuration keep theirs, and
 * with them the servers that the routes of their sessions point to.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_key.h"
#include "ngx_stream_upstream_quic_lb_conf.h"


static int ngx_libc_cdecl ngx_stream_quic_lb_conf_cmp_ids(const void *one,
    const void *two);

static ngx_int_t ngx_stream_quic_lb_conf_resolve(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_array_t *names,
    ngx_stream_quic_lb_id_t *id, ngx_stream_quic_lb_server_t *server);
static ngx_addr_t *ngx_stream_quic_lb_conf_server_name(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_id_t *id);
static ngx_addr_t *ngx_stream_quic_lb_conf_literal(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_id_t *id);
static ngx_int_t ngx_stream_quic_lb_conf_unify(ngx_conf_t *cf,
    ngx_stream_quic_lb_id_t **ids, ngx_uint_t n,
    ngx_stream_quic_lb_servers_t *servers);
static int ngx_libc_cdecl ngx_stream_quic_lb_conf_cmp_names(const void *one,
    const void *two);
static int ngx_libc_cdecl ngx_stream_quic_lb_conf_cmp_servers(const void *one,
    const void *two);


char *
ngx_stream_quic_lb_conf_server_id(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_lb_conf_t *qlcf = conf;

    ngx_str_t                *value;
    ngx_stream_quic_lb_id_t  *id;

    id = ngx_array_push(&qlcf->ids);
    if (id == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(id, sizeof(ngx_stream_quic_lb_id_t));

    /* "server_id_length" may follow: the block's end checks the ID */

    value = cf->args->elts;

    id->text = value[1];
    id->address = value[2];
    id->file_name = cf->conf_file->file.name.data;
    id->line = cf->conf_file->line;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_stream_quic_lb_conf_check_ids(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf)
{
    size_t                    len;
    ngx_uint_t                i;
    ngx_stream_quic_lb_id_t  *id;

    id = conf->ids.elts;
    len = conf->server_id_length;

    for (i = 0; i < conf->ids.nelts; i++) {

        if (id[i].text.len != 2 * len
            || ngx_stream_quic_lb_key_hex(id[i].id, id[i].text.data, len)
               != NGX_OK)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "invalid server ID \"%V\" in \"server_id\" of"
                          " \"quic_lb %ui\", it must be %uz hexadecimal digits"
                          " (\"server_id_length\" is %uz) in %s:%ui",
                          &id[i].text, conf->config_id, 2 * len, len,
                          id[i].file_name, id[i].line);
            return NGX_ERROR;
        }
    }

    ngx_qsort(id, conf->ids.nelts, sizeof(ngx_stream_quic_lb_id_t),
              ngx_stream_quic_lb_conf_cmp_ids);

    for (i = 1; i < conf->ids.nelts; i++) {

        if (ngx_memcmp(id[i - 1].id, id[i].id, len) == 0) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "duplicate server ID \"%V\" in \"server_id\" of"
                          " \"quic_lb %ui\", it must name one server in %s:%ui",
                          &id[i].text, conf->config_id,
                          id[i].file_name, id[i].line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_stream_quic_lb_conf_cmp_ids(const void *one, const void *two)
{
    int                             rc;
    const ngx_stream_quic_lb_id_t  *first = one;
    const ngx_stream_quic_lb_id_t  *second = two;

    /* IDs of one block are equally long, and zeroes follow */

    rc = ngx_memcmp(first->id, second->id, QUIC_LB_SERVER_ID_MAX);

    if (rc) {
        return rc;
    }

    /* of two equal ones the second is the duplicate */

    return (first->line > second->line) - (first->line < second->line);
}


ngx_stream_quic_lb_id_t *
ngx_stream_quic_lb_conf_find(ngx_stream_quic_lb_conf_t *conf, u_char *id)
{
    int                       rc;
    size_t                    len;
    ngx_uint_t                i, j, k;
    ngx_stream_quic_lb_id_t  *ids;

    ids = conf->ids.elts;
    len = conf->cid.server_id_len;

    i = 0;
    j = conf->ids.nelts;

    while (i < j) {
        k = (i + j) / 2;

        rc = ngx_memcmp(id, ids[k].id, len);

        if (rc == 0) {
            return &ids[k];
        }

        if (rc < 0) {
            j = k;

        } else {
            i = k + 1;
        }
    }

    return NULL;
}


ngx_int_t
ngx_stream_quic_lb_conf_init_servers(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_conf_t **configs,
    ngx_uint_t n, ngx_stream_quic_lb_servers_t *servers)
{
    ngx_uint_t                    i, j, k, nids;
    ngx_array_t                   names;
    ngx_stream_quic_lb_id_t      *id, **ids;
    ngx_stream_quic_lb_server_t  *server;

    nids = 0;

    for (i = 0; i < n; i++) {
        if (configs[i]) {
            nids += configs[i]->ids.nelts;
        }
    }

    if (nids == 0) {
        return NGX_OK;
    }

    if (ngx_stream_quic_lb_conf_names(cf, us, &names) != NGX_OK) {
        return NGX_ERROR;
    }

    ids = ngx_palloc(cf->temp_pool, nids * sizeof(ngx_stream_quic_lb_id_t *));
    if (ids == NULL) {
        return NGX_ERROR;
    }

    server = ngx_pcalloc(cf->temp_pool,
                         nids * sizeof(ngx_stream_quic_lb_server_t));
    if (server == NULL) {
        return NGX_ERROR;
    }

    k = 0;

    for (i = 0; i < n; i++) {
        if (configs[i] == NULL) {
            continue;
        }

        id = configs[i]->ids.elts;

        for (j = 0; j < configs[i]->ids.nelts; j++) {

            if (ngx_stream_quic_lb_conf_resolve(cf, us, &names, &id[j],
                                                &server[k])
                != NGX_OK)
            {
                return NGX_ERROR;
            }

            id[j].server = &server[k];
            ids[k++] = &id[j];
        }
    }

    return ngx_stream_quic_lb_conf_unify(cf, ids, nids, servers);
}


ngx_int_t
ngx_stream_quic_lb_conf_names(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_array_t *names)
{
    ngx_str_t                     *name;
    ngx_uint_t                     i, j;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    if (ngx_array_init(names, cf->temp_pool, us->servers->nelts,
                       sizeof(ngx_str_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < us->servers->nelts; i++) {
        for (j = 0; j < server[i].naddrs; j++) {

            /* a name to resolve at run time has no address yet */

            if (server[i].addrs[j].name.len == 0) {
                continue;
            }

            name = ngx_array_push(names);
            if (name == NULL) {
                return NGX_ERROR;
            }

            *name = server[i].addrs[j].name;
        }
    }

    ngx_qsort(names->elts, names->nelts, sizeof(ngx_str_t),
              ngx_stream_quic_lb_conf_cmp_names);

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_lb_conf_has_name(ngx_array_t *names, ngx_str_t *name)
{
    return bsearch(name, names->elts, names->nelts, sizeof(ngx_str_t),
                   ngx_stream_quic_lb_conf_cmp_names)
           != NULL;
}


static ngx_int_t
ngx_stream_quic_lb_conf_resolve(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_array_t *names,
    ngx_stream_quic_lb_id_t *id, ngx_stream_quic_lb_server_t *server)
{
    ngx_addr_t  *addr;

    addr = ngx_stream_quic_lb_conf_server_name(cf, us, id);

    if (addr == NULL) {
        addr = ngx_stream_quic_lb_conf_literal(cf, us, id);
    }

    if (addr == NULL) {
        return NGX_ERROR;
    }

    if (!ngx_stream_quic_lb_conf_has_name(names, &addr->name)
        && !ngx_stream_quic_lb_conf_resolves(us))
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "unknown server \"%V\" in \"server_id %V\", it must be"
                      " the address of a \"server\" of upstream \"%V\""
                      " in %s:%ui",
                      &id->address, &id->text, &us->host,
                      id->file_name, id->line);
        return NGX_ERROR;
    }

    server->upstream = us;
    server->sockaddr = addr->sockaddr;
    server->socklen = addr->socklen;
    server->name = addr->name;

    return NGX_OK;
}


/* the address of the "server" line with the text that |id| has, or NULL */

static ngx_addr_t *
ngx_stream_quic_lb_conf_server_name(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_id_t *id)
{
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {

        if (server[i].name.len != id->address.len
            || ngx_strncasecmp(server[i].name.data, id->address.data,
                               id->address.len)
               != 0)
        {
            continue;
        }

#if (nginx_version >= 1027003 && NGX_STREAM_UPSTREAM_ZONE)
        if (server[i].host.len) {
            return NULL;
        }
#endif

        return (server[i].naddrs == 1) ? server[i].addrs : NULL;
    }

    return NULL;
}


static ngx_addr_t *
ngx_stream_quic_lb_conf_literal(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_id_t *id)
{
    ngx_url_t    u;
    const char  *err;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = id->address;
    u.no_resolve = 1;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {

        if (u.err == NULL) {
            return NULL;
        }

        err = u.err;

    } else if (u.family == AF_UNIX) {
        err = "not an IP address";

    } else if (u.naddrs == 0) {
        err = "not an IP address nor the text of a \"server\" that has one"
              " address";

    } else if (u.no_port) {
        err = "no port";

    } else {
        return &u.addrs[0];
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "invalid address \"%V\" in \"server_id %V\" of upstream"
                  " \"%V\": %s, it must be address:port in %s:%ui",
                  &id->address, &id->text, &us->host, err,
                  id->file_name, id->line);

    return NULL;
}


/*
 * Keeps one of the servers of equal names for all of |ids|, so that "server_id"
 * lines with one server have one pointer.
 */

static ngx_int_t
ngx_stream_quic_lb_conf_unify(ngx_conf_t *cf, ngx_stream_quic_lb_id_t **ids,
    ngx_uint_t n, ngx_stream_quic_lb_servers_t *servers)
{
    ngx_uint_t                    i;
    ngx_stream_quic_lb_server_t  *server;

    ngx_qsort(ids, n, sizeof(ngx_stream_quic_lb_id_t *),
              ngx_stream_quic_lb_conf_cmp_servers);

    servers->elts = ngx_palloc(cf->pool,
                               n * sizeof(ngx_stream_quic_lb_server_t));
    if (servers->elts == NULL) {
        return NGX_ERROR;
    }

    servers->nelts = 0;
    server = NULL;

    for (i = 0; i < n; i++) {

        if (server == NULL
            || ngx_stream_quic_lb_conf_cmp_names(&server->name,
                                                 &ids[i]->server->name))
        {
            server = &servers->elts[servers->nelts];

            *server = *ids[i]->server;
            server->index = servers->nelts++;
        }

        ids[i]->server = server;
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_stream_quic_lb_conf_cmp_names(const void *one, const void *two)
{
    const ngx_str_t *first = one;
    const ngx_str_t *second = two;

    return (int) ngx_memn2cmp(first->data, second->data,
                              first->len, second->len);
}


static int ngx_libc_cdecl
ngx_stream_quic_lb_conf_cmp_servers(const void *one, const void *two)
{
    ngx_stream_quic_lb_id_t *const *first = one;
    ngx_stream_quic_lb_id_t *const *second = two;

    return ngx_stream_quic_lb_conf_cmp_names(&(*first)->server->name,
                                             &(*second)->server->name);
}


ngx_uint_t
ngx_stream_quic_lb_conf_resolves(ngx_stream_upstream_srv_conf_t *us)
{
#if (nginx_version >= 1027003 && NGX_STREAM_UPSTREAM_ZONE)
    ngx_uint_t                     i;
    ngx_stream_upstream_server_t  *server;

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {
        if (server[i].host.len) {
            return 1;
        }
    }
#endif

    return 0;
}
