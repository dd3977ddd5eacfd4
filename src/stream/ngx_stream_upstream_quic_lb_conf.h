
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The "quic_lb" block of an upstream: one QUIC-LB configuration.  All memory
 * belongs to the cycle; nothing here is written after configuration time.
 */


#ifndef _NGX_STREAM_UPSTREAM_QUIC_LB_CONF_H_INCLUDED_
#define _NGX_STREAM_UPSTREAM_QUIC_LB_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_router.h"


/*
 * The context of the directives inside "quic_lb".  A bit of NGX_ANY_CONF, so
 * that "include" works in the block, and one that no NGX_STREAM_ context has:
 * the farthest from those that later versions may add.
 */

#define NGX_STREAM_QUIC_LB_CONF  0x80000000


/* codepoints that a block may have */

#define NGX_STREAM_QUIC_LB_CONFIGS  (QUIC_LB_CONFIG_MAX + 1)


#define NGX_STREAM_QUIC_LB_UNMAPPED_FALLBACK  0
#define NGX_STREAM_QUIC_LB_UNMAPPED_MAGLEV    1


/* a "server_id" line */

typedef struct {
    ngx_stream_quic_lb_server_t      *server;     /* of _init_servers() */
    ngx_str_t                         text;       /* both as written */
    ngx_str_t                         address;
    u_char                           *file_name;
    ngx_uint_t                        line;

    /* zeroes follow "server_id_length" octets */
    u_char                            id[QUIC_LB_SERVER_ID_MAX];
} ngx_stream_quic_lb_id_t;


typedef struct {
    ngx_stream_upstream_srv_conf_t   *upstream;

    quic_lb_cid_conf_t                cid;
    ngx_uint_t                        unmapped;

    ngx_array_t                       ids;        /* sorted by ID at the end */

    /* as written, NGX_CONF_UNSET if not */

    ngx_uint_t                        config_id;
    ngx_int_t                         server_id_length;
    ngx_int_t                         nonce_length;
    ngx_flag_t                        length_self_description;
    ngx_str_t                         key_file;

    u_char                           *file_name;  /* of the block */
    ngx_uint_t                        line;
} ngx_stream_quic_lb_conf_t;


/* the distinct servers of an upstream's "server_id" lines, sorted by name */

typedef struct {
    ngx_stream_quic_lb_server_t      *elts;
    ngx_uint_t                        nelts;
} ngx_stream_quic_lb_servers_t;


/* ngx_stream_upstream_quic_lb_conf.c */

/*
 * Reads the block that |cf| is at, with |config_id|, and checks all but the
 * addresses.  Returns NULL with the error logged.
 */

ngx_stream_quic_lb_conf_t *ngx_stream_quic_lb_conf_parse(ngx_conf_t *cf,
    ngx_uint_t config_id);

/* setters of directives inside the block */

char *ngx_stream_quic_lb_conf_length(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_stream_quic_lb_conf_unmapped(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/*
 * Returns the name of a directive in which |one| and |two| differ, or NULL if
 * they decode alike.
 */

const char *ngx_stream_quic_lb_conf_differs(ngx_stream_quic_lb_conf_t *one,
    ngx_stream_quic_lb_conf_t *two);


/* ngx_stream_upstream_quic_lb_servers.c */

/* setter of the "server_id" lines inside the block */

char *ngx_stream_quic_lb_conf_server_id(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/*
 * Reads the server IDs of |conf|, whose lengths are known, and sorts them.
 * Returns NGX_OK, or NGX_ERROR with the error logged.
 */

ngx_int_t ngx_stream_quic_lb_conf_check_ids(ngx_conf_t *cf,
    ngx_stream_quic_lb_conf_t *conf);

/*
 * Returns the line of |id|, which has |conf->cid.server_id_len| octets, or
 * NULL.
 */

ngx_stream_quic_lb_id_t *ngx_stream_quic_lb_conf_find(
    ngx_stream_quic_lb_conf_t *conf, u_char *id);

/*
 * Finds the servers that the "server_id" lines of |configs|, an array of |n|
 * pointers that may be NULL, name in |us|.  To be called when all "server"
 * lines are known.  Returns NGX_OK, or NGX_ERROR with the error logged.
 */

ngx_int_t ngx_stream_quic_lb_conf_init_servers(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_conf_t **configs,
    ngx_uint_t n, ngx_stream_quic_lb_servers_t *servers);

/*
 * Collects the addresses of the "server" lines of |us| into |names|, an array
 * of ngx_str_t in the temporary pool, sorted for _conf_has_name().  Returns
 * NGX_OK or NGX_ERROR.
 */

ngx_int_t ngx_stream_quic_lb_conf_names(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_array_t *names);
ngx_uint_t ngx_stream_quic_lb_conf_has_name(ngx_array_t *names,
    ngx_str_t *name);

/* whether a "server" line of |us| is resolved at run time */

ngx_uint_t ngx_stream_quic_lb_conf_resolves(ngx_stream_upstream_srv_conf_t *us);


/* ngx_stream_upstream_quic_lb_retired.c */

/*
 * Sets |retired|, NGX_STREAM_QUIC_LB_CONFIGS pointers, to copies of what the
 * upstream of the same name has had in the cycle before and |configs| has not:
 * removed or changed configurations, as far as their servers are still in |us|.
 * Returns NGX_OK or NGX_ERROR.
 */

ngx_int_t ngx_stream_quic_lb_conf_retire(ngx_conf_t *cf,
    ngx_stream_upstream_srv_conf_t *us, ngx_stream_quic_lb_conf_t **configs,
    ngx_stream_quic_lb_conf_t **retired);


#endif /* _NGX_STREAM_UPSTREAM_QUIC_LB_CONF_H_INCLUDED_ */
