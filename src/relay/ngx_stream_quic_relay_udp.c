
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Datagrams from and to the sockets: with UDP_GRO and UDP_SEGMENT many at once.
 */


#include "ngx_stream_quic_relay_module.h"


/* Linux: udp.h; an older one of the C library may lack them */

#ifndef UDP_SEGMENT
#define UDP_SEGMENT                   103
#endif

#ifndef UDP_GRO
#define UDP_GRO                       104
#endif


/*
 * room for the local address, the ECN mark and the segment size, and for what
 * others may have left on: the overflow
 */
#define NGX_STREAM_QUIC_RELAY_CONTROL                                         \
    (CMSG_SPACE(sizeof(ngx_addrinfo_t)) + CMSG_SPACE(sizeof(int))             \
     + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint32_t)))


typedef union {
    struct cmsghdr                   cmsg;        /* for its alignment */
    u_char                           data[NGX_STREAM_QUIC_RELAY_CONTROL];
} ngx_stream_quic_relay_control_t;


static void ngx_stream_quic_relay_udp_read_control(ngx_connection_t *c,
    struct msghdr *msg, ngx_stream_quic_relay_message_t *m);
static void ngx_stream_quic_relay_udp_option(ngx_socket_t fd, int level,
    int name, int value, ngx_log_t *log);
static void ngx_stream_quic_relay_udp_sendmsg(ngx_connection_t *c,
    const ngtcp2_path *path, ngx_uint_t connected, uint8_t ecn, u_char *data,
    size_t len, size_t segment);
static size_t ngx_stream_quic_relay_udp_set_ecn(struct cmsghdr *cmsg,
    struct sockaddr *remote, uint8_t ecn);


ngx_int_t
ngx_stream_quic_relay_udp_recv(ngx_connection_t *c,
    ngx_stream_quic_relay_message_t *m)
{
    ssize_t                          n;
    struct iovec                     iov;
    struct msghdr                    msg;
    ngx_stream_quic_relay_control_t  control;

    ngx_memzero(&msg, sizeof(struct msghdr));

    iov.iov_base = m->data;
    iov.iov_len = NGX_STREAM_QUIC_RELAY_BUFFER;

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = sizeof(control);

    if (c->listening) {
        msg.msg_name = &m->remote;
        msg.msg_namelen = sizeof(ngx_sockaddr_t);
    }

    n = recvmsg(c->fd, &msg, 0);

    if (n == -1) {
        return (ngx_socket_errno == NGX_EAGAIN) ? NGX_AGAIN : NGX_ERROR;
    }

    /* without the size of the datagrams it cannot be told where they end */

    if (n == 0 || (msg.msg_flags & (MSG_TRUNC|MSG_CTRUNC))) {
        return NGX_DECLINED;
    }

    m->len = (size_t) n;
    m->segment = m->len;
    m->ecn = NGTCP2_ECN_NOT_ECT;

    if (c->listening) {
        m->socklen = msg.msg_namelen;
        ngx_memcpy(&m->local, c->listening->sockaddr, c->listening->socklen);
    }

    ngx_stream_quic_relay_udp_read_control(c, &msg, m);

    ngx_log_debug3(NGX_LOG_DEBUG_STREAM, c->log, 0,
                   "quic relay: recvmsg: fd:%d %uz octets by %uz",
                   c->fd, m->len, m->segment);

    return NGX_OK;
}


static void
ngx_stream_quic_relay_udp_read_control(ngx_connection_t *c,
    struct msghdr *msg, ngx_stream_quic_relay_message_t *m)
{
    int              value;
    struct cmsghdr  *cmsg;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {

        if (cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_TOS) {

            /* Linux hands over a single octet */

            m->ecn = *CMSG_DATA(cmsg) & NGTCP2_ECN_MASK;
            continue;
        }

#if (NGX_HAVE_INET6)
        if (cmsg->cmsg_level == IPPROTO_IPV6
            && cmsg->cmsg_type == IPV6_TCLASS)
        {
            ngx_memcpy(&value, CMSG_DATA(cmsg), sizeof(int));
            m->ecn = (uint8_t) (value & NGTCP2_ECN_MASK);
            continue;
        }
#endif

        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            ngx_memcpy(&value, CMSG_DATA(cmsg), sizeof(int));

            if (value > 0) {
                m->segment = (size_t) value;
            }

            continue;
        }

        if (c->listening) {
            (void) ngx_get_srcaddr_cmsg(cmsg, &m->local.sockaddr);
        }
    }
}


/*
 * Without UDP_GRO (Linux before 5.0, a sandbox) datagrams come one by one, and
 * without marks ngtcp2 sees that ECN does not work.
 */

void
ngx_stream_quic_relay_udp_options(ngx_socket_t fd, int family, int on,
    ngx_log_t *log)
{
    ngx_stream_quic_relay_udp_option(fd, SOL_UDP, UDP_GRO, on, log);

    /* an IPv6 socket may have an IPv4 side */

    ngx_stream_quic_relay_udp_option(fd, IPPROTO_IP, IP_RECVTOS, on, log);

    /*
     * ngtcp2 finds out what the path takes, which it cannot if the kernel cuts
     * what is longer: don't fragment, whatever this host knows of the path
     * (RFC 9000, 14).
     */

    ngx_stream_quic_relay_udp_option(fd, IPPROTO_IP, IP_MTU_DISCOVER,
                                     on ? IP_PMTUDISC_PROBE
                                        : IP_PMTUDISC_WANT, log);

#if (NGX_HAVE_INET6)
    if (family == AF_INET6) {
        ngx_stream_quic_relay_udp_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS,
                                         on, log);
        ngx_stream_quic_relay_udp_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER,
                                         on ? IPV6_PMTUDISC_PROBE
                                            : IPV6_PMTUDISC_WANT, log);
    }
#endif
}


static void
ngx_stream_quic_relay_udp_option(ngx_socket_t fd, int level, int name,
    int value, ngx_log_t *log)
{
    if (setsockopt(fd, level, name, &value, sizeof(int)) == -1) {
        ngx_log_debug2(NGX_LOG_DEBUG_STREAM, log, ngx_socket_errno,
                       "quic relay: setsockopt(%d, %d) failed, ignored",
                       level, name);
    }
}


/*
 * A kernel without UDP_SEGMENT (Linux before 4.18) does not refuse it when it
 * sends, but makes one datagram of all.
 */

ngx_uint_t
ngx_stream_quic_relay_udp_plain(ngx_socket_t fd, ngx_log_t *log)
{
    int        value;
    socklen_t  len;

    len = sizeof(int);

    if (getsockopt(fd, SOL_UDP, UDP_SEGMENT, &value, &len) == 0) {
        return 0;
    }

    ngx_log_error(NGX_LOG_NOTICE, log, ngx_socket_errno,
                  "no UDP_SEGMENT, \"quic_relay\" sends datagrams one by one");

    return 1;
}


void
ngx_stream_quic_relay_udp_send(ngx_stream_quic_relay_conn_t *conn,
    const ngtcp2_path *path, const ngtcp2_pkt_info *pi, u_char *data,
    size_t len, size_t segment)
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

    ngx_stream_quic_relay_udp_sendmsg(c, path, !conn->server, pi->ecn, data,
                                      len, segment);
}


void
ngx_stream_quic_relay_udp_answer(ngx_connection_t *c, const ngtcp2_path *path,
    u_char *data, size_t len)
{
    ngx_stream_quic_relay_udp_sendmsg(c, path, 0, NGTCP2_ECN_NOT_ECT, data,
                                      len, len);
}


static void
ngx_stream_quic_relay_udp_sendmsg(ngx_connection_t *c,
    const ngtcp2_path *path, ngx_uint_t connected, uint8_t ecn, u_char *data,
    size_t len, size_t segment)
{
    size_t                           size, clen;
    uint16_t                         value;
    struct iovec                     iov;
    struct msghdr                    msg;
    struct cmsghdr                  *cmsg;
    ngx_stream_quic_relay_control_t  control;

    ngx_memzero(&msg, sizeof(struct msghdr));
    ngx_memzero(&control, sizeof(control));

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
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

    if (ecn != NGTCP2_ECN_NOT_ECT) {
        clen += ngx_stream_quic_relay_udp_set_ecn(cmsg, path->remote.addr,
                                                  ecn);
        cmsg = CMSG_NXTHDR(&msg, cmsg);
    }

    size = len;
    msg.msg_controllen = clen;

    if (len > segment) {
        value = (uint16_t) segment;

        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        ngx_memcpy(CMSG_DATA(cmsg), &value, sizeof(uint16_t));

        msg.msg_controllen += CMSG_SPACE(sizeof(uint16_t));
    }

    while (len) {
        iov.iov_base = data;
        iov.iov_len = ngx_min(size, len);

        if (sendmsg(c->fd, &msg, 0) == -1) {

            if (ngx_socket_errno == NGX_EINTR) {
                continue;
            }

            if (size > segment && ngx_socket_errno != NGX_EAGAIN) {

                /* an interface or a tunnel without UDP_SEGMENT: one by one */

                size = segment;
                msg.msg_controllen = clen;
                continue;
            }

            /* too long for the path, a full socket: it is as if lost */

            ngx_log_debug1(NGX_LOG_DEBUG_STREAM, c->log, ngx_socket_errno,
                           "quic relay: sendmsg() of %uz failed", len);
            return;
        }

        data += iov.iov_len;
        len -= iov.iov_len;
    }
}


/* returns the room that it takes */

static size_t
ngx_stream_quic_relay_udp_set_ecn(struct cmsghdr *cmsg,
    struct sockaddr *remote, uint8_t ecn)
{
    int                   value;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6  *sin6;
#endif

    value = ecn;

    cmsg->cmsg_level = IPPROTO_IP;
    cmsg->cmsg_type = IP_TOS;

#if (NGX_HAVE_INET6)
    if (remote->sa_family == AF_INET6) {
        sin6 = (struct sockaddr_in6 *) remote;

        if (!IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            cmsg->cmsg_level = IPPROTO_IPV6;
            cmsg->cmsg_type = IPV6_TCLASS;
        }
    }
#endif

    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    ngx_memcpy(CMSG_DATA(cmsg), &value, sizeof(int));

    return CMSG_SPACE(sizeof(int));
}
