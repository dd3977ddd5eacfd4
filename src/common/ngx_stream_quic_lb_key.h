
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Keys of QUIC-LB as they are written in files and configurations.
 */


#ifndef _NGX_STREAM_QUIC_LB_KEY_H_INCLUDED_
#define _NGX_STREAM_QUIC_LB_KEY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "quic_lb_cid.h"


/*
 * Reads the QUIC_LB_KEY_LEN octets of |key| from |file|, whose name it makes
 * absolute.  Returns NGX_OK, or NGX_ERROR with the error logged.
 */

ngx_int_t ngx_stream_quic_lb_key_read(ngx_conf_t *cf, ngx_str_t *file,
    u_char *key);

/*
 * Reads up to |size| octets of a regular |file|, whose name it makes absolute,
 * into |buf|; |what| is for messages.  Returns their number, or NGX_ERROR with
 * the error logged.
 */

ngx_int_t ngx_stream_quic_lb_key_file(ngx_conf_t *cf, const char *what,
    ngx_str_t *file, u_char *buf, size_t size);

/*
 * Reads |len| octets into |dst| from the 2 * |len| hexadecimal digits at |src|.
 * Returns NGX_OK, or NGX_ERROR if one is no such digit.
 */

ngx_int_t ngx_stream_quic_lb_key_hex(u_char *dst, u_char *src, size_t len);


#endif /* _NGX_STREAM_QUIC_LB_KEY_H_INCLUDED_ */
