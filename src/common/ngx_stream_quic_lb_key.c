
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "key_file": a key, as octets or as hexadecimal digits.  Linked into each
 * module that has such a parameter.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_lb_key.h"


/* 32 hexadecimal digits and "\r\n" */

#define NGX_STREAM_QUIC_LB_KEY_FILE_MAX  (2 * QUIC_LB_KEY_LEN + 2)


static ngx_int_t ngx_stream_quic_lb_key_parse(u_char *key, u_char *buf,
    size_t len);


ngx_int_t
ngx_stream_quic_lb_key_read(ngx_conf_t *cf, ngx_str_t *file, u_char *key)
{
    ngx_int_t  n, rc;
    u_char     buf[NGX_STREAM_QUIC_LB_KEY_FILE_MAX + 1];

    n = ngx_stream_quic_lb_key_file(cf, "key_file", file, buf, sizeof(buf));
    if (n == NGX_ERROR) {
        return NGX_ERROR;
    }

    rc = ngx_stream_quic_lb_key_parse(key, buf, n);

    ngx_explicit_memzero(buf, sizeof(buf));

    if (rc != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid key in \"key_file\" \"%V\", it must be"
                           " %d octets or %d hexadecimal digits",
                           file, QUIC_LB_KEY_LEN, 2 * QUIC_LB_KEY_LEN);
    }

    return rc;
}


ngx_int_t
ngx_stream_quic_lb_key_file(ngx_conf_t *cf, const char *what, ngx_str_t *file,
    u_char *buf, size_t size)
{
    ssize_t          n;
    ngx_fd_t         fd;
    ngx_file_info_t  fi;

    /* relative to nginx.conf, as certificates are */

    if (ngx_conf_full_name(cf->cycle, file, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    /* a FIFO without a writer would keep the open waiting */

    fd = ngx_open_file(file->data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                       NGX_FILE_OPEN, 0);
    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%s\" must be readable, "
                           ngx_open_file_n " \"%V\" failed", what, file);
        return NGX_ERROR;
    }

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%s\" must be readable, "
                           ngx_fd_info_n " \"%V\" failed", what, file);
        n = NGX_ERROR;
        goto done;
    }

    if (!ngx_is_file(&fi)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%s\" \"%V\" must be a regular file", what,
                           file);
        n = NGX_ERROR;
        goto done;
    }

    if (ngx_file_access(&fi) & S_IROTH) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"%s\" \"%V\" is readable by everyone,"
                           " it should not be", what, file);
    }

    n = ngx_read_fd(fd, buf, size);

    if (n == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%s\" must be readable, "
                           ngx_read_fd_n " \"%V\" failed", what, file);
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
ngx_stream_quic_lb_key_parse(u_char *key, u_char *buf, size_t len)
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

    return ngx_stream_quic_lb_key_hex(key, buf, QUIC_LB_KEY_LEN);
}


ngx_int_t
ngx_stream_quic_lb_key_hex(u_char *dst, u_char *src, size_t len)
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
