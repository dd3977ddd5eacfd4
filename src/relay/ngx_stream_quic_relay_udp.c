
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Datagrams from and to the sockets: with UDP_GRO and UDP_SEGMENT many at once.
 */


#include "ngx_stream_quic_relay_module.h"


/* Linux 5.0; libc's headers may be older than the kernel */
#ifndef UDP_GRO
#define UDP_GRO                       104
#endif


static ngx_int_t ngx_stream_quic_relay_udp_sendmsg(ngx_connection_t *c,
    const ngtcp2_path *path, ngx_uint_t connected, u_char *data, size_t len,
    size_t segment);


ssize_t
ngx_stream_quic_relay_udp_recv(ngx_connection_t *c, u_char *data,
    ngx_sockaddr_t *local, ngx_sockaddr_t *remote, socklen_t *socklen)
{
    ssize_t          n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    u_char           control[CMSG_SPACE(sizeof(ngx_addrinfo_t))];

    ngx_memzero(&msg, sizeof(struct msghdr));

    iov.iov_base = data;
    iov.iov_len = NGX_STREAM_QUIC_RELAY_BUFFER;

    msg.msg_name = remote;
    msg.msg_namelen = sizeof(ngx_sockaddr_t);
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);

    n = recvmsg(c->fd, &msg, 0);

    if (n == -1) {

        /* else what ICMP told about another datagram (RFC 9000, 14.2.1) */

        return (ngx_socket_errno == NGX_EAGAIN) ? NGX_AGAIN : NGX_ERROR;
    }

    *socklen = msg.msg_namelen;

    ngx_memcpy(local, c->listening->sockaddr, c->listening->socklen);

    for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
        if (ngx_get_srcaddr_cmsg(cmsg, &local->sockaddr) == NGX_OK) {
            break;
        }
    }

    return n;
}


/*
 * With UDP_GRO datagrams of one size come in one piece: |segment| is the size
 * of all but the last one.
 */

ssize_t
ngx_stream_quic_relay_udp_recv_train(ngx_connection_t *c, u_char *data,
    size_t *segment)
{
    int              size;
    ssize_t          n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    u_char           control[CMSG_SPACE(sizeof(int))];

    ngx_memzero(&msg, sizeof(struct msghdr));

    iov.iov_base = data;
    iov.iov_len = NGX_STREAM_QUIC_RELAY_BUFFER;

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);

    n = recvmsg(c->fd, &msg, 0);

    if (n == -1) {
        *segment = 0;
        return -1;
    }

    *segment = (size_t) n;

    for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {

        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            ngx_memcpy(&size, CMSG_DATA(cmsg), sizeof(int));

            if (size > 0) {
                *segment = (size_t) size;
            }
        }
    }

    return n;
}


/* without it datagrams come one by one: Linux before 5.0, a sandbox */

void
ngx_stream_quic_relay_udp_trains(ngx_connection_t *c)
{
    int  on;

    on = 1;

    if (setsockopt(c->fd, SOL_UDP, UDP_GRO, &on, sizeof(int)) == -1) {
        ngx_log_debug0(NGX_LOG_DEBUG_STREAM, c->log, ngx_socket_errno,
                       "quic relay: setsockopt(UDP_GRO) failed");
    }
}


ngx_int_t
ngx_stream_quic_relay_udp_send(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_path *path, u_char *data, size_t len, size_t segment)
{
    ngx_connection_t      *c, *lc;
    ngx_stream_session_t  *s;

    c = conn->connection;
    s = conn->relay->session;

    if (conn->server) {
        s->connection->sent += len;

        /* a client that has gone to the preferred address */

        if (ngx_cmp_sockaddr(path->local.addr, path->local.addrlen,
                             &conn->local.sockaddr, conn->socklen, 1)
            != NGX_OK)
        {
            lc = ngx_stream_quic_relay_listen_find(conn->relay->worker,
                                                   path->local.addr,
                                                   path->local.addrlen);
            c = lc ? lc : c;
        }

    } else if (s->upstream && s->upstream->state) {
        s->upstream->state->bytes_sent += len;
    }

    return ngx_stream_quic_relay_udp_sendmsg(c, path, !conn->server, data, len,
                                             segment);
}


void
ngx_stream_quic_relay_udp_answer(ngx_connection_t *c, const ngtcp2_path *path,
    u_char *data, size_t len)
{
    (void) ngx_stream_quic_relay_udp_sendmsg(c, path, 0, data, len, len);
}


static ngx_int_t
ngx_stream_quic_relay_udp_sendmsg(ngx_connection_t *c,
    const ngtcp2_path *path, ngx_uint_t connected, u_char *data, size_t len,
    size_t segment)
{
    size_t           size, clen;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    u_char           control[CMSG_SPACE(sizeof(uint16_t))
                             + CMSG_SPACE(sizeof(ngx_addrinfo_t))];

    ngx_memzero(&msg, sizeof(struct msghdr));
    ngx_memzero(control, sizeof(control));

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);

    if (!connected) {
        msg.msg_name = path->remote.addr;
        msg.msg_namelen = path->remote.addrlen;
    }

    clen = 0;
    cmsg = CMSG_FIRSTHDR(&msg);

    if (!connected && c->listening->wildcard) {
        clen += ngx_set_srcaddr_cmsg(cmsg, path->local.addr);
        cmsg = CMSG_NXTHDR(&msg, cmsg);
    }

    size = len;

#if (NGX_HAVE_UDP_SEGMENT)
    if (len > segment) {
        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        *(uint16_t *) (void *) CMSG_DATA(cmsg) = (uint16_t) segment;
        clen += CMSG_SPACE(sizeof(uint16_t));
    }
#else
    size = segment;
#endif

    msg.msg_controllen = clen;

    if (clen == 0) {
        msg.msg_control = NULL;
    }

    while (len) {
        iov.iov_base = data;
        iov.iov_len = ngx_min(size, len);

        if (sendmsg(c->fd, &msg, 0) == -1) {

            if (ngx_socket_errno == NGX_EINTR) {
                continue;
            }

            /* too long for the path, a full socket: it is as if lost */

            ngx_log_debug1(NGX_LOG_DEBUG_STREAM, c->log, ngx_socket_errno,
                           "quic relay: sendmsg() of %uz failed", len);
            return NGX_AGAIN;
        }

        data += iov.iov_len;
        len -= iov.iov_len;
    }

    return NGX_OK;
}
