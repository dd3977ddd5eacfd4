
/*
 * Copyright (C) ngx-quic-lb contributors
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_upstream_quic_lb_module.h"
#include "ngx_stream_upstream_quic_lb_conf.h"


/* 32 hexadecimal digits and "\r\n" */

#define NGX_STREAM_QUIC_LB_KEY_FILE_MAX  (2 * QUIC_LB_KEY_LEN + 2)


static ngx_int_t ngx_stream_quic_lb_conf_check(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);
static ngx_int_t ngx_stream_quic_lb_conf_init_cid(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);
static void ngx_stream_quic_lb_conf_cleanup(void *data);

static ngx_int_t ngx_stream_quic_lb_conf_read_key(ngx_conf_t *cf,
    ngx_str_t *file, u_char *key);
static ngx_int_t ngx_stream_quic_lb_conf_open_key(ngx_conf_t *cf,
    ngx_str_t *file, u_char *buf, size_t size);
static ngx_int_t ngx_stream_quic_lb_conf_parse_key(u_char *key, u_char *buf,
    size_t len);
static ngx_int_t ngx_stream_quic_lb_conf_hex(u_char *dst, u_char *src,
    size_t len);

static ngx_int_t ngx_stream_quic_lb_conf_check_ids(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);
static int ngx_libc_cdecl ngx_stream_quic_lb_conf_cmp_ids(const void *one,
    const void *two);

static ngx_int_t ngx_stream_quic_lb_conf_names(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_array_t *names);
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


static ngx_conf_enum_t  ngx_stream_quic_lb_conf_unmapped_names[] = {
    { ngx_string("fallback"), NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK },
    { ngx_string("maglev"), NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV },
    { ngx_null_string, 0 }
};


ngx_stream_quic_lb_conf_t *
ngx_stream_quic_lb_conf_parse(ngx_conf_t *cf, ngx_uint_t config_id)
{
    char                       *rv;
    ngx_conf_t                  pcf;
    ngx_stream_conf_ctx_t       ctx;
    ngx_stream_quic_lb_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_stream_quic_lb_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&conf->ids, cf->pool, 4,
                       sizeof(ngx_stream_quic_lb_id_t))
        != NGX_OK)
    {
        return NULL;
    }

    conf->upstream = ngx_stream_conf_get_module_srv_conf(cf,
                                                   ngx_stream_upstream_module);
    conf->config_id = config_id;
    conf->unmapped = NGX_CONF_UNSET_UINT;
    conf->server_id_length = NGX_CONF_UNSET;
    conf->nonce_length = NGX_CONF_UNSET;
    conf->length_self_description = NGX_CONF_UNSET;
    conf->file_name = cf->conf_file->file.name.data;
    conf->line = cf->conf_file->line;

    /*
     * The directives of the block are ordinary commands of the module in a
     * context of their own, where |conf| is the module's configuration.
     */

    ctx = *(ngx_stream_conf_ctx_t *) cf->ctx;

    ctx.srv_conf = ngx_palloc(cf->temp_pool,
                              sizeof(void *) * ngx_stream_max_module);
    if (ctx.srv_conf == NULL) {
        return NULL;
    }

    ngx_memcpy(ctx.srv_conf, ((ngx_stream_conf_ctx_t *) cf->ctx)->srv_conf,
               sizeof(void *) * ngx_stream_max_module);

    ctx.srv_conf[ngx_stream_upstream_quic_lb_module.ctx_index] = conf;

    pcf = *cf;
    cf->ctx = &ctx;
    cf->cmd_type = NGX_STREAM_QUIC_LB_CONF;

    rv = ngx_conf_parse(cf, NULL);

    *cf = pcf;

    if (rv != NGX_CONF_OK) {
        return NULL;
    }

    ngx_conf_init_uint_value(conf->unmapped,
                             NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK);
    ngx_conf_init_value(conf->length_self_description, 0);

    if (ngx_stream_quic_lb_conf_check(cf, conf) != NGX_OK
        || ngx_stream_quic_lb_conf_check_ids(cf, conf) != NGX_OK
        || ngx_stream_quic_lb_conf_init_cid(cf, conf) != NGX_OK)
    {
        return NULL;
    }

    return conf;
}


static ngx_int_t
ngx_stream_quic_lb_conf_check(ngx_conf_t *cf, ngx_stream_quic_lb_conf_t *conf)
{
    ngx_int_t  sum;

    if (conf->server_id_length == NGX_CONF_UNSET) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no \"server_id_length\" in \"quic_lb %ui\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    if (conf->nonce_length == NGX_CONF_UNSET) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no \"nonce_length\" in \"quic_lb %ui\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    sum = conf->server_id_length + conf->nonce_length;

    if (sum > QUIC_LB_PLAINTEXT_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"server_id_length\" %i and \"nonce_length\" %i"
                           " in \"quic_lb %ui\" make %i octets,"
                           " it must be at most %d",
                           conf->server_id_length, conf->nonce_length,
                           conf->config_id, sum, QUIC_LB_PLAINTEXT_MAX);
        return NGX_ERROR;
    }

    if (conf->ids.nelts == 0
        && conf->unmapped == NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_lb %ui\" routes nothing: it must have a"
                           " \"server_id\" or \"unmapped maglev\"",
                           conf->config_id);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_lb_conf_init_cid(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf)
{
    int                  rc;
    u_char              *k, key[QUIC_LB_KEY_LEN];
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_stream_quic_lb_conf_cleanup;
    cln->data = conf;

    k = NULL;

    if (conf->key_file.data) {
        if (ngx_stream_quic_lb_conf_read_key(cf, &conf->key_file, key)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        k = key;
    }

    rc = quic_lb_cid_init(&conf->cid, conf->config_id, conf->server_id_length,
                          conf->nonce_length, k,
                          conf->length_self_description);

    ngx_explicit_memzero(key, QUIC_LB_KEY_LEN);

    if (rc != QUIC_LB_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"quic_lb %ui\" failed to set up its cipher",
                           conf->config_id);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_stream_quic_lb_conf_cleanup(void *data)
{
    ngx_stream_quic_lb_conf_t *conf = data;

    quic_lb_cid_cleanup(&conf->cid);
}


static ngx_int_t
ngx_stream_quic_lb_conf_read_key(ngx_conf_t *cf, ngx_str_t *file, u_char *key)
{
    u_char     buf[NGX_STREAM_QUIC_LB_KEY_FILE_MAX + 1];
    ngx_int_t  n, rc;

    /* relative to nginx.conf, as certificates are */

    if (ngx_conf_full_name(cf->cycle, file, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    n = ngx_stream_quic_lb_conf_open_key(cf, file, buf, sizeof(buf));
    if (n == NGX_ERROR) {
        return NGX_ERROR;
    }

    rc = ngx_stream_quic_lb_conf_parse_key(key, buf, n);

    ngx_explicit_memzero(buf, sizeof(buf));

    if (rc != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid key in \"key_file\" \"%V\", it must be"
                           " %d octets or %d hexadecimal digits",
                           file, QUIC_LB_KEY_LEN, 2 * QUIC_LB_KEY_LEN);
    }

    return rc;
}


/* returns the number of octets read into |buf|, at most |size|, or NGX_ERROR */

static ngx_int_t
ngx_stream_quic_lb_conf_open_key(ngx_conf_t *cf, ngx_str_t *file, u_char *buf,
    size_t size)
{
    ssize_t          n;
    ngx_fd_t         fd;
    ngx_file_info_t  fi;

    fd = ngx_open_file(file->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"key_file\" must be readable, "
                           ngx_open_file_n " \"%V\" failed", file);
        return NGX_ERROR;
    }

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"key_file\" must be readable, "
                           ngx_fd_info_n " \"%V\" failed", file);
        n = NGX_ERROR;
        goto done;
    }

    if (ngx_file_access(&fi) & S_IROTH) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"key_file\" \"%V\" is readable by everyone,"
                           " it should not be", file);
    }

    n = ngx_read_fd(fd, buf, size);

    if (n == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"key_file\" must be readable, "
                           ngx_read_fd_n " \"%V\" failed", file);
        n = NGX_ERROR;
    }

done:

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", file);
    }

    return n;
}


static ngx_int_t
ngx_stream_quic_lb_conf_parse_key(u_char *key, u_char *buf, size_t len)
{
    if (len == QUIC_LB_KEY_LEN) {
        ngx_memcpy(key, buf, QUIC_LB_KEY_LEN);
        return NGX_OK;
    }

    if (len == 2 * QUIC_LB_KEY_LEN + 2
        && buf[len - 2] == CR && buf[len - 1] == LF)
    {
        len -= 2;

    } else if (len == 2 * QUIC_LB_KEY_LEN + 1 && buf[len - 1] == LF) {
        len -= 1;
    }

    if (len != 2 * QUIC_LB_KEY_LEN) {
        return NGX_ERROR;
    }

    return ngx_stream_quic_lb_conf_hex(key, buf, QUIC_LB_KEY_LEN);
}


/* reads |len| octets out of 2 * |len| digits */

static ngx_int_t
ngx_stream_quic_lb_conf_hex(u_char *dst, u_char *src, size_t len)
{
    size_t     i;
    ngx_int_t  n;

    for (i = 0; i < len; i++) {
        n = ngx_hextoi(src + 2 * i, 2);

        if (n == NGX_ERROR) {
            return NGX_ERROR;
        }

        dst[i] = (u_char) n;
    }

    return NGX_OK;
}


static ngx_int_t
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
            || ngx_stream_quic_lb_conf_hex(id[i].id, id[i].text.data, len)
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


char *
ngx_stream_quic_lb_conf_length(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char *p = conf;

    ngx_int_t               *np;
    ngx_str_t               *value;
    ngx_conf_num_bounds_t   *bounds;

    np = (ngx_int_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;
    bounds = cmd->post;

    *np = ngx_atoi(value[1].data, value[1].len);

    if (*np == NGX_ERROR || *np < bounds->low || *np > bounds->high) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive,"
                           " it must be a number from %i to %i",
                           &value[1], &cmd->name, bounds->low, bounds->high);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


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


char *
ngx_stream_quic_lb_conf_unmapped(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_lb_conf_t *qlcf = conf;

    ngx_str_t        *value;
    ngx_conf_enum_t  *e;

    if (qlcf->unmapped != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = ngx_stream_quic_lb_conf_unmapped_names; e->name.len; e++) {

        if (e->name.len == value[1].len
            && ngx_strncmp(e->name.data, value[1].data, e->name.len) == 0)
        {
            qlcf->unmapped = e->value;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive,"
                       " it must be \"fallback\" or \"maglev\"",
                       &value[1], &cmd->name);

    return NGX_CONF_ERROR;
}


ngx_int_t
ngx_stream_quic_lb_conf_init(ngx_conf_t *cf, ngx_stream_upstream_srv_conf_t *us,
    ngx_stream_quic_lb_conf_t **configs, ngx_stream_quic_lb_servers_t *servers)
{
    ngx_uint_t                    i, j, k, n;
    ngx_array_t                   names;
    ngx_stream_quic_lb_id_t      *id, **ids;
    ngx_stream_quic_lb_server_t  *server;

    n = 0;

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {
        if (configs[i]) {
            n += configs[i]->ids.nelts;
        }
    }

    if (n == 0) {
        return NGX_OK;
    }

    if (ngx_stream_quic_lb_conf_names(cf, us, &names) != NGX_OK) {
        return NGX_ERROR;
    }

    ids = ngx_palloc(cf->temp_pool, n * sizeof(ngx_stream_quic_lb_id_t *));
    if (ids == NULL) {
        return NGX_ERROR;
    }

    server = ngx_pcalloc(cf->temp_pool,
                         n * sizeof(ngx_stream_quic_lb_server_t));
    if (server == NULL) {
        return NGX_ERROR;
    }

    k = 0;

    for (i = 0; i <= QUIC_LB_CONFIG_MAX; i++) {
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

    return ngx_stream_quic_lb_conf_unify(cf, ids, n, servers);
}


/* collects the addresses of the "server" lines into |names|, sorted */

static ngx_int_t
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

    if (bsearch(&addr->name, names->elts, names->nelts, sizeof(ngx_str_t),
                ngx_stream_quic_lb_conf_cmp_names)
        == NULL
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
    const char  *err;
    ngx_url_t    u;

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


const char *
ngx_stream_quic_lb_conf_differs(ngx_stream_quic_lb_conf_t *one,
    ngx_stream_quic_lb_conf_t *two)
{
    u_char      id[QUIC_LB_SERVER_ID_MAX], nonce[QUIC_LB_NONCE_MAX],
                cid1[QUIC_LB_CID_MAX], cid2[QUIC_LB_CID_MAX];
    ngx_uint_t  i;

    if (one->server_id_length != two->server_id_length) {
        return "server_id_length";
    }

    if (one->nonce_length != two->nonce_length) {
        return "nonce_length";
    }

    if (one->length_self_description != two->length_self_description) {
        return "length_self_description";
    }

    if (one->unmapped != two->unmapped) {
        return "unmapped";
    }

    /*
     * The keys are gone, but not what they do: four connection IDs of at least
     * 40 encrypted bits each, never to be sent, tell two keys apart.
     */

    ngx_memzero(id, QUIC_LB_SERVER_ID_MAX);
    ngx_memzero(nonce, QUIC_LB_NONCE_MAX);

    for (i = 0; i < 4; i++) {
        nonce[0] = (u_char) i;

        if (quic_lb_cid_encode(&one->cid, cid1, 0, id, nonce) != QUIC_LB_OK
            || quic_lb_cid_encode(&two->cid, cid2, 0, id, nonce) != QUIC_LB_OK
            || ngx_memcmp(cid1, cid2, quic_lb_cid_len(&one->cid)) != 0)
        {
            return "key_file";
        }
    }

    return NULL;
}
