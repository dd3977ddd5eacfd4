
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * "quit", then start: old workers keep their sockets for the flows they have,
 * so the kernel would choose them for clients of the new instance, too.  Nobody
 * tells the old ones of it, thus a worker that quits and has no successor looks
 * in the kernel's table for UDP sockets that it does not know.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_stream_quic_lb_successor.h"


/* ms between looks: the table has an entry for each leg, too */

#define NGX_STREAM_QUIC_LB_SUCCESSOR_LOOK  500

/* octets; a line has 128, or 170 */

#define NGX_STREAM_QUIC_LB_SUCCESSOR_LINE  256

/* of a socket that is not connected */

#define NGX_STREAM_QUIC_LB_SUCCESSOR_OPEN  7


static void ngx_stream_quic_lb_successor_read(
    ngx_stream_quic_lb_successor_t *su, ngx_log_t *log);
static void ngx_stream_quic_lb_successor_file(
    ngx_stream_quic_lb_successor_t *su, const char *name, int family,
    ngx_log_t *log);
static ngx_int_t ngx_stream_quic_lb_successor_parse(char *line, int family,
    ngx_sockaddr_t *sa, unsigned long long *inode);
static ngx_uint_t ngx_stream_quic_lb_successor_own(
    ngx_stream_quic_lb_successor_t *su, unsigned long long inode);


ngx_int_t
ngx_stream_quic_lb_successor_init(ngx_stream_quic_lb_successor_t *su,
    ngx_cycle_t *cycle)
{
    ino_t            *inode;
    ngx_uint_t        i;
    struct stat       st;
    ngx_listening_t  *ls;

    if (ngx_array_init(&su->own, cycle->pool, cycle->listening.nelts + 1,
                       sizeof(ino_t))
        != NGX_OK
        || ngx_array_init(&su->others, cycle->pool, 4, sizeof(ngx_sockaddr_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].type != SOCK_DGRAM
            || ls[i].fd == (ngx_socket_t) -1
            || fstat(ls[i].fd, &st) == -1)
        {
            continue;
        }

        inode = ngx_array_push(&su->own);
        if (inode == NULL) {
            return NGX_ERROR;
        }

        *inode = st.st_ino;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_stream_quic_lb_successor_found(ngx_stream_quic_lb_successor_t *su,
    ngx_listening_t *ls, ngx_log_t *log)
{
    ngx_uint_t       i;
    ngx_sockaddr_t  *sa;

    if (!su->read
        || ngx_current_msec - su->read_at >= NGX_STREAM_QUIC_LB_SUCCESSOR_LOOK)
    {
        ngx_stream_quic_lb_successor_read(su, log);
    }

    sa = su->others.elts;

    for (i = 0; i < su->others.nelts; i++) {

        if (ngx_cmp_sockaddr(&sa[i].sockaddr, ls->socklen, ls->sockaddr,
                             ls->socklen, 1)
            == NGX_OK)
        {
            return 1;
        }

        if (sa[i].sockaddr.sa_family == ls->sockaddr->sa_family
            && ngx_inet_wildcard(&sa[i].sockaddr)
            && ngx_inet_get_port(&sa[i].sockaddr)
               == ngx_inet_get_port(ls->sockaddr))
        {
            return 1;
        }
    }

    return 0;
}


static void
ngx_stream_quic_lb_successor_read(ngx_stream_quic_lb_successor_t *su,
    ngx_log_t *log)
{
    su->read = 1;
    su->read_at = ngx_current_msec;
    su->others.nelts = 0;

    ngx_stream_quic_lb_successor_file(su, "/proc/self/net/udp", AF_INET, log);

#if (NGX_HAVE_INET6)
    ngx_stream_quic_lb_successor_file(su, "/proc/self/net/udp6", AF_INET6, log);
#endif
}


static void
ngx_stream_quic_lb_successor_file(ngx_stream_quic_lb_successor_t *su,
    const char *name, int family, ngx_log_t *log)
{
    FILE                *file;
    char                 line[NGX_STREAM_QUIC_LB_SUCCESSOR_LINE];
    ngx_sockaddr_t       sa, *other;
    unsigned long long   inode;

    file = fopen(name, "re");

    if (file == NULL) {

        /* such as IPv6 switched off */

        ngx_log_debug1(NGX_LOG_DEBUG_CORE, log, ngx_errno,
                       "quic lb: fopen(\"%s\") failed", name);
        return;
    }

    while (fgets(line, sizeof(line), file)) {

        if (ngx_stream_quic_lb_successor_parse(line, family, &sa, &inode)
            != NGX_OK
            || ngx_stream_quic_lb_successor_own(su, inode))
        {
            continue;
        }

        other = ngx_array_push(&su->others);
        if (other == NULL) {
            break;
        }

        *other = sa;
    }

    (void) fclose(file);
}


/* an address is words of 32 bits, as the machine reads them from memory */

static ngx_int_t
ngx_stream_quic_lb_successor_parse(char *line, int family, ngx_sockaddr_t *sa,
    unsigned long long *inode)
{
    int        i, n;
    char       text[33], word[9];
    uint32_t   words[4];
    unsigned   port, state;

    if (sscanf(line, "%*s %32[0-9A-F]:%4X %*s %2X %*s %*s %*s %*s %*s %llu",
               text, &port, &state, inode)
        != 4
        || state != NGX_STREAM_QUIC_LB_SUCCESSOR_OPEN)
    {
        return NGX_DECLINED;
    }

    n = (family == AF_INET) ? 1 : 4;
    word[8] = '\0';

    for (i = 0; i < n; i++) {
        ngx_memcpy(word, text + 8 * i, 8);
        words[i] = (uint32_t) strtoul(word, NULL, 16);
    }

    ngx_memzero(sa, sizeof(ngx_sockaddr_t));
    sa->sockaddr.sa_family = family;
    ngx_inet_set_port(&sa->sockaddr, (in_port_t) port);

#if (NGX_HAVE_INET6)
    if (family == AF_INET6) {
        ngx_memcpy(&sa->sockaddr_in6.sin6_addr, words, 16);
        return NGX_OK;
    }
#endif

    sa->sockaddr_in.sin_addr.s_addr = words[0];

    return NGX_OK;
}


static ngx_uint_t
ngx_stream_quic_lb_successor_own(ngx_stream_quic_lb_successor_t *su,
    unsigned long long inode)
{
    ino_t       *own;
    ngx_uint_t   i;

    own = su->own.elts;

    for (i = 0; i < su->own.nelts; i++) {
        if (own[i] == inode) {
            return 1;
        }
    }

    return 0;
}


void
ngx_stream_quic_lb_successor_yield(ngx_socket_t fd, ngx_listening_t *ls,
    ngx_log_t *log)
{
    if (connect(fd, ls->sockaddr, ls->socklen) == -1) {
        ngx_log_error(NGX_LOG_WARN, log, ngx_socket_errno,
                      "connect() to retire the socket of %V failed",
                      &ls->addr_text);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, log, 0,
                  "%V is left to another process that has opened it",
                  &ls->addr_text);
}
