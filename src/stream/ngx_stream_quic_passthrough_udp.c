
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What is received, in batches: recvmmsg() with UDP_GRO, and the plain calls
 * where the kernel has less or a sandbox forbids them; and the options of
 * sockets.
 *
 * Errors are not told apart by what they may mean.  One that is still there
 * when the call is repeated is the call's own: the plain one takes its place;
 * if that fails, too, the socket is left alone for a while.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* room for the address, the ECN mark, the segment size and the overflow */

#define NGX_STREAM_QUIC_PT_CONTROL                                            \
    (CMSG_SPACE(sizeof(ngx_addrinfo_t)) + CMSG_SPACE(sizeof(int))             \
     + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint32_t)))

#define NGX_STREAM_QUIC_PT_ECN        0x03    /* of the TOS octet */

/* times in a row that a call fails before another one takes its place */

#define NGX_STREAM_QUIC_PT_FAILURES   1
#define NGX_STREAM_QUIC_PT_PASSING    16


typedef union {
    struct cmsghdr  cmsg;               /* for its alignment */
    u_char          data[NGX_STREAM_QUIC_PT_CONTROL];
} ngx_stream_quic_pt_control_t;


static ngx_int_t ngx_stream_quic_pt_udp_read(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_socket_t *sock,
    struct mmsghdr *msgs, ngx_uint_t n);
static ngx_int_t ngx_stream_quic_pt_udp_read_plain(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_socket_t *sock,
    struct mmsghdr *msgs, ngx_uint_t n, ngx_err_t err);
static int ngx_stream_quic_pt_udp_recvmsg(ngx_socket_t fd,
    struct mmsghdr *msgs, ngx_uint_t n);
static ngx_uint_t ngx_stream_quic_pt_udp_passing(ngx_err_t err);
static void ngx_stream_quic_pt_udp_read_control(struct msghdr *msg,
    ngx_stream_quic_pt_message_t *m);
static void ngx_stream_quic_pt_udp_option(ngx_socket_t fd, int level, int name,
    int value, const char *text, ngx_log_t *log);


ngx_int_t
ngx_stream_quic_pt_udp_recv(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, ngx_listening_t *ls)
{
    ngx_int_t                      i, n;
    struct iovec                   iov[NGX_STREAM_QUIC_PT_MESSAGES];
    struct msghdr                 *msg;
    struct mmsghdr                 msgs[NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_pt_batch_t    *batch;
    ngx_stream_quic_pt_message_t  *m;
    ngx_stream_quic_pt_control_t   control[NGX_STREAM_QUIC_PT_MESSAGES];

    batch = worker->batch;
    batch->npieces = 0;
    batch->nruns = 0;

    for (i = 0; i < NGX_STREAM_QUIC_PT_MESSAGES; i++) {
        m = &batch->messages[i];

        iov[i].iov_base = m->data;
        iov[i].iov_len = NGX_STREAM_QUIC_PT_BUFFER;

        msg = &msgs[i].msg_hdr;

        msg->msg_name = ls ? &m->sockaddr : NULL;
        msg->msg_namelen = ls ? sizeof(ngx_sockaddr_t) : 0;
        msg->msg_iov = &iov[i];
        msg->msg_iovlen = 1;
        msg->msg_control = &control[i];
        msg->msg_controllen = sizeof(ngx_stream_quic_pt_control_t);
        msg->msg_flags = 0;
    }

    n = ngx_stream_quic_pt_udp_read(worker, sock, msgs,
                                    NGX_STREAM_QUIC_PT_MESSAGES);

    for (i = 0; i < n; i++) {
        m = &batch->messages[i];

        m->len = msgs[i].msg_len;
        m->segment = m->len;
        m->ecn = 0;
        m->overflow = sock->overflow;
        m->socklen = msgs[i].msg_hdr.msg_namelen;

        if (ls) {
            ngx_memcpy(&m->local, ls->sockaddr, ls->socklen);
        }

        ngx_stream_quic_pt_udp_read_control(&msgs[i].msg_hdr, m);

        if (m->overflow != sock->overflow) {
            ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_OVERFLOW,
                                     m->overflow - sock->overflow);
            sock->overflow = m->overflow;
        }
    }

    return n;
}


static ngx_int_t
ngx_stream_quic_pt_udp_read(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, struct mmsghdr *msgs, ngx_uint_t n)
{
    int           rc;
    ngx_err_t     err;
    ngx_uint_t    limit;
    ngx_socket_t  fd;

    fd = sock->connection->fd;

    rc = worker->no_recvmmsg
         ? ngx_stream_quic_pt_udp_recvmsg(fd, msgs, n)
         : recvmmsg(fd, msgs, n, MSG_DONTWAIT, NULL);

    if (rc != -1) {
        sock->failures = 0;
        return rc;
    }

    err = ngx_socket_errno;

    if (err == NGX_EAGAIN) {
        sock->failures = 0;
        return 0;
    }

    limit = ngx_stream_quic_pt_udp_passing(err) ? NGX_STREAM_QUIC_PT_PASSING
                                                : NGX_STREAM_QUIC_PT_FAILURES;

    if (sock->failures < limit) {
        sock->failures++;
        return NGX_ERROR;
    }

    return ngx_stream_quic_pt_udp_read_plain(worker, sock, msgs, n, err);
}


/* recvmmsg(), or what has taken its place, has met |err| over and over */

static ngx_int_t
ngx_stream_quic_pt_udp_read_plain(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, struct mmsghdr *msgs, ngx_uint_t n,
    ngx_err_t err)
{
    int  rc;

    if (!worker->no_recvmmsg) {
        rc = ngx_stream_quic_pt_udp_recvmsg(sock->connection->fd, msgs, n);

        if (rc != -1) {
            worker->no_recvmmsg = 1;
            sock->failures = 0;

            ngx_stream_quic_pt_udp_log(worker, sock, NULL, NGX_LOG_NOTICE, err,
                                       "recvmmsg() failed, reading messages "
                                       "one by one");
            return rc;
        }

        err = ngx_socket_errno;

        if (err == NGX_EAGAIN) {
            return 0;
        }
    }

    if (worker->unreadable != ngx_time()) {
        worker->unreadable = ngx_time();

        ngx_stream_quic_pt_udp_log(worker, sock, NULL, NGX_LOG_ERR, err,
                                   "recvmsg() failed, reading pauses");
    }

    return NGX_ABORT;
}


static int
ngx_stream_quic_pt_udp_recvmsg(ngx_socket_t fd, struct mmsghdr *msgs,
    ngx_uint_t n)
{
    ssize_t     len;
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        len = recvmsg(fd, &msgs[i].msg_hdr, MSG_DONTWAIT);

        if (len == -1) {
            return i ? (int) i : -1;
        }

        msgs[i].msg_len = len;
    }

    return n;
}


/*
 * What ICMP leaves, which comes as often as anybody likes, and what a moment
 * lacks.
 */

static ngx_uint_t
ngx_stream_quic_pt_udp_passing(ngx_err_t err)
{
    switch (err) {

    case NGX_ECONNREFUSED:
    case NGX_EHOSTUNREACH:
    case NGX_ENETUNREACH:
    case NGX_EHOSTDOWN:
    case NGX_ENETDOWN:
    case NGX_EOPNOTSUPP:
    case NGX_EACCES:
    case NGX_ENOMEM:
    case NGX_EINTR:
    case EMSGSIZE:
    case ENOBUFS:
    case ENONET:
    case ENOPROTOOPT:
    case EPROTO:
        return 1;

    default:
        return 0;
    }
}


static void
ngx_stream_quic_pt_udp_read_control(struct msghdr *msg,
    ngx_stream_quic_pt_message_t *m)
{
    int              value;
    struct cmsghdr  *cmsg;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {

        if (cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_TOS) {

            /* Linux hands over a single octet */

            m->ecn = *CMSG_DATA(cmsg) & NGX_STREAM_QUIC_PT_ECN;
            continue;
        }

#if (NGX_HAVE_INET6)
        if (cmsg->cmsg_level == IPPROTO_IPV6
            && cmsg->cmsg_type == IPV6_TCLASS)
        {
            ngx_memcpy(&value, CMSG_DATA(cmsg), sizeof(int));
            m->ecn = value & NGX_STREAM_QUIC_PT_ECN;
            continue;
        }
#endif

        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            ngx_memcpy(&value, CMSG_DATA(cmsg), sizeof(int));

            if (value > 0) {
                m->segment = value;
            }

            continue;
        }

        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SO_RXQ_OVFL) {
            ngx_memcpy(&m->overflow, CMSG_DATA(cmsg), sizeof(uint32_t));
            continue;
        }

        (void) ngx_get_srcaddr_cmsg(cmsg, &m->local.sockaddr);
    }
}


/* |sockaddr| is the other end; NULL: of a socket that has one, or listens */

void
ngx_stream_quic_pt_udp_log(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_socket_t *sock, struct sockaddr *sockaddr,
    ngx_uint_t level, ngx_err_t err, const char *text)
{
    size_t            len;
    u_char            addr[NGX_SOCKADDR_STRLEN];
    socklen_t         socklen;
    ngx_sockaddr_t    sa;
    ngx_listening_t  *ls;

    ls = sock->connection->listening;

    if (sockaddr == NULL && ls) {
        ngx_log_error(level, worker->log, err, "%s, listen: %V", text,
                      &ls->addr_text);
        return;
    }

    socklen = sizeof(ngx_sockaddr_t);

    if (sockaddr == NULL
        && getpeername(sock->connection->fd, &sa.sockaddr, &socklen) == 0)
    {
        sockaddr = &sa.sockaddr;
    }

    len = sockaddr ? ngx_sock_ntop(sockaddr, socklen, addr,
                                   NGX_SOCKADDR_STRLEN, 1)
                   : 0;

    ngx_log_error(level, worker->log, err, "%s, %s: %*s", text,
                  ls ? "client" : "upstream", len, addr);
}


/*
 * The options stay with the socket, which workers of older and newer
 * configurations share.
 */

void
ngx_stream_quic_pt_udp_options(ngx_socket_t fd, ngx_uint_t family,
    ngx_uint_t on, ngx_log_t *log)
{
    ngx_stream_quic_pt_udp_option(fd, SOL_UDP, UDP_GRO, on, "UDP_GRO", log);

    ngx_stream_quic_pt_udp_option(fd, SOL_SOCKET, SO_RXQ_OVFL, on,
                                  "SO_RXQ_OVFL", log);

    /* an IPv6 socket may have an IPv4 side */

    ngx_stream_quic_pt_udp_option(fd, IPPROTO_IP, IP_RECVTOS, on,
                                  "IP_RECVTOS", log);

    /*
     * QUIC packets must not be fragmented, and the endpoints find the path MTU
     * (RFC 9000, 14): don't fragment, whatever this host knows of the path.
     */

    ngx_stream_quic_pt_udp_option(fd, IPPROTO_IP, IP_MTU_DISCOVER,
                                  on ? IP_PMTUDISC_PROBE : IP_PMTUDISC_WANT,
                                  "IP_MTU_DISCOVER", log);

#if (NGX_HAVE_INET6)
    if (family == AF_INET6) {
        ngx_stream_quic_pt_udp_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, on,
                                      "IPV6_RECVTCLASS", log);
        ngx_stream_quic_pt_udp_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER,
                                      on ? IPV6_PMTUDISC_PROBE
                                         : IPV6_PMTUDISC_WANT,
                                      "IPV6_MTU_DISCOVER", log);
    }
#endif
}


static void
ngx_stream_quic_pt_udp_option(ngx_socket_t fd, int level, int name, int value,
    const char *text, ngx_log_t *log)
{
    if (setsockopt(fd, level, name, (const void *) &value, sizeof(int)) == -1)
    {
        ngx_log_error(NGX_LOG_INFO, log, ngx_socket_errno,
                      "setsockopt(%s) failed, ignored", text);
    }
}


/*
 * A kernel without UDP_SEGMENT (Linux before 4.18) does not refuse it when it
 * sends, but makes one datagram of all.
 */

ngx_uint_t
ngx_stream_quic_pt_udp_plain(ngx_socket_t fd, ngx_log_t *log)
{
    int        value;
    socklen_t  len;

    len = sizeof(int);

    if (getsockopt(fd, SOL_UDP, UDP_SEGMENT, (void *) &value, &len) == 0) {
        return 0;
    }

    ngx_log_error(NGX_LOG_NOTICE, log, ngx_socket_errno,
                  "no UDP_SEGMENT, sending datagrams one by one");

    return 1;
}


/* datagrams that the kernel has dropped for want of room, so far */

uint32_t
ngx_stream_quic_pt_udp_overflow(ngx_socket_t fd)
{
#if (NGX_LINUX && defined SO_MEMINFO)
    uint32_t   meminfo[9];
    socklen_t  len;

    len = sizeof(meminfo);

    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, (void *) meminfo, &len) == 0
        && len == sizeof(meminfo))
    {
        return meminfo[8];    /* SK_MEMINFO_DROPS */
    }
#endif

    return 0;
}
