
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Batched datagram I/O: recvmmsg() with UDP_GRO, sendmmsg() with UDP_SEGMENT,
 * and the plain calls where the system has less.  Nothing is copied: runs to
 * be sent refer to the buffers that were read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* room for the address, the ECN mark and the segment size */

#define NGX_STREAM_QUIC_PT_CONTROL                                            \
    (CMSG_SPACE(sizeof(ngx_addrinfo_t)) + CMSG_SPACE(sizeof(int))             \
     + CMSG_SPACE(sizeof(int)))

#define NGX_STREAM_QUIC_PT_ECN        0x03    /* of the TOS octet */


#if !(NGX_QUIC_LB_HAVE_MMSG)

struct mmsghdr {
    struct msghdr  msg_hdr;
    unsigned int   msg_len;
};

#endif


typedef union {
    struct cmsghdr  cmsg;               /* for its alignment */
    u_char          data[NGX_STREAM_QUIC_PT_CONTROL];
} ngx_stream_quic_pt_control_t;


static int ngx_stream_quic_pt_udp_recvmmsg(ngx_socket_t fd,
    struct mmsghdr *msgs, ngx_uint_t n);
static void ngx_stream_quic_pt_udp_read_control(struct msghdr *msg,
    ngx_stream_quic_pt_message_t *m);
static ngx_uint_t ngx_stream_quic_pt_udp_extends(ngx_stream_quic_pt_run_t *run,
    size_t len, ngx_uint_t ecn, ngx_uint_t plain);
static int ngx_stream_quic_pt_udp_sendmmsg(ngx_socket_t fd,
    struct mmsghdr *msgs, ngx_uint_t n);
static void ngx_stream_quic_pt_udp_fill(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg, struct iovec *iov,
    ngx_stream_quic_pt_control_t *control);
static void ngx_stream_quic_pt_udp_fill_control(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg);
static ngx_uint_t ngx_stream_quic_pt_udp_refused(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, ngx_err_t err);
static void ngx_stream_quic_pt_udp_send_plain(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run);


ngx_int_t
ngx_stream_quic_pt_udp_recv(ngx_stream_quic_pt_worker_t *worker,
    ngx_socket_t fd, ngx_listening_t *ls)
{
    int                                     n;
    ngx_int_t                               i;
    struct iovec                            iov[NGX_STREAM_QUIC_PT_MESSAGES];
    struct msghdr                          *msg;
    struct mmsghdr                          msgs[NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_pt_batch_t    *batch;
    ngx_stream_quic_pt_message_t  *m;
    ngx_stream_quic_pt_control_t   control[
                                                NGX_STREAM_QUIC_PT_MESSAGES];

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

    n = ngx_stream_quic_pt_udp_recvmmsg(fd, msgs, NGX_STREAM_QUIC_PT_MESSAGES);
    if (n == -1) {
        return (ngx_socket_errno == NGX_EAGAIN) ? 0 : NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        m = &batch->messages[i];

        m->len = msgs[i].msg_len;
        m->segment = m->len;
        m->ecn = 0;
        m->socklen = msgs[i].msg_hdr.msg_namelen;

        if (ls) {
            ngx_memcpy(&m->local, ls->sockaddr, ls->socklen);
        }

        ngx_stream_quic_pt_udp_read_control(&msgs[i].msg_hdr, m);
    }

    return n;
}


static int
ngx_stream_quic_pt_udp_recvmmsg(ngx_socket_t fd, struct mmsghdr *msgs,
    ngx_uint_t n)
{
#if (NGX_QUIC_LB_HAVE_MMSG)

    return recvmmsg(fd, msgs, n, MSG_DONTWAIT, NULL);

#else

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

#endif
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

#if (NGX_QUIC_LB_HAVE_UDP_GRO)
        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            ngx_memcpy(&value, CMSG_DATA(cmsg), sizeof(int));

            if (value > 0) {
                m->segment = value;
            }

            continue;
        }
#endif

        (void) ngx_get_srcaddr_cmsg(cmsg, &m->local.sockaddr);
    }
}


void
ngx_stream_quic_pt_udp_append(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, u_char *data, size_t len, ngx_uint_t ecn)
{
    ngx_stream_quic_pt_run_t    *run;
    ngx_stream_quic_pt_batch_t  *batch;
    ngx_stream_quic_pt_piece_t  *piece;

    batch = worker->batch;
    run = tx->last;

    if (run == NULL
        || !ngx_stream_quic_pt_udp_extends(run, len, ecn, *tx->plain))
    {
        run = &batch->runs[batch->nruns++];
        ngx_memzero(run, sizeof(ngx_stream_quic_pt_run_t));

        run->segment = len;
        run->ecn = ecn;

        if (tx->last) {
            tx->last->next = run;

        } else {
            tx->runs = run;
        }

        tx->last = run;
    }

    run->size += len;
    run->segments++;
    run->closed = (len < run->segment);

    if (run->last && run->last->data + run->last->len == data) {
        run->last->len += len;
        return;
    }

    piece = &batch->pieces[batch->npieces++];

    piece->data = data;
    piece->len = len;
    piece->next = NULL;

    if (run->last) {
        run->last->next = piece;

    } else {
        run->pieces = piece;
    }

    run->last = piece;
}


static ngx_uint_t
ngx_stream_quic_pt_udp_extends(ngx_stream_quic_pt_run_t *run, size_t len,
    ngx_uint_t ecn, ngx_uint_t plain)
{
    return !plain
           && !run->closed
           && run->ecn == ecn
           && len <= run->segment
           && run->segments < NGX_STREAM_QUIC_PT_SEGMENTS
           && run->size + len <= NGX_STREAM_QUIC_PT_PAYLOAD;
}


ngx_err_t
ngx_stream_quic_pt_udp_flush(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx)
{
    int                            n;
    ngx_err_t                      err, told;
    ngx_uint_t                     i, niov, sent;
    struct iovec                   iov[NGX_STREAM_QUIC_PT_BATCH];
    struct mmsghdr                 msgs[NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_pt_run_t      *run, *next;
    ngx_stream_quic_pt_control_t   control[NGX_STREAM_QUIC_PT_MESSAGES];

    run = tx->runs;
    told = 0;
    sent = 0;

    while (run) {

        niov = 0;
        next = run;

        /* a run has at most as many pieces as datagrams */

        for (i = 0; next && i < NGX_STREAM_QUIC_PT_MESSAGES; i++) {
            ngx_stream_quic_pt_udp_fill(tx, next, &msgs[i].msg_hdr,
                                        &iov[niov], &control[i]);
            niov += msgs[i].msg_hdr.msg_iovlen;
            next = next->next;
        }

        n = ngx_stream_quic_pt_udp_sendmmsg(tx->fd, msgs, i);

        if (n > 0) {

            while (n-- > 0) {
                sent += run->segments;
                run = run->next;
            }

            continue;
        }

        err = ngx_socket_errno;

        if (err == NGX_EINTR) {
            continue;
        }

        if (ngx_stream_quic_pt_udp_refused(tx, run, err)) {
            ngx_stream_quic_pt_udp_send_plain(worker, tx, run);

        } else if (tx->sockaddr == NULL && err != NGX_EAGAIN && told == 0) {

            /*
             * A connected socket tells what became of an earlier datagram,
             * and sends nothing: once more.
             */

            told = err;
            continue;

        } else {
            ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_SEND_FAILED,
                                     run->segments);
        }

        run = run->next;
    }

    if (sent) {
        ngx_stream_quic_pt_count(worker, tx->counter, sent);
    }

    tx->runs = NULL;
    tx->last = NULL;

    return told;
}


static int
ngx_stream_quic_pt_udp_sendmmsg(ngx_socket_t fd, struct mmsghdr *msgs,
    ngx_uint_t n)
{
#if (NGX_QUIC_LB_HAVE_MMSG)

    return sendmmsg(fd, msgs, n, MSG_DONTWAIT);

#else

    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (sendmsg(fd, &msgs[i].msg_hdr, MSG_DONTWAIT) == -1) {
            return i ? (int) i : -1;
        }
    }

    return n;

#endif
}


static void
ngx_stream_quic_pt_udp_fill(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg, struct iovec *iov,
    ngx_stream_quic_pt_control_t *control)
{
    ngx_stream_quic_pt_piece_t  *piece;

    ngx_memzero(msg, sizeof(struct msghdr));

    msg->msg_name = tx->sockaddr;
    msg->msg_namelen = tx->socklen;
    msg->msg_iov = iov;

    for (piece = run->pieces; piece; piece = piece->next) {
        iov[msg->msg_iovlen].iov_base = piece->data;
        iov[msg->msg_iovlen].iov_len = piece->len;
        msg->msg_iovlen++;
    }

    if (tx->local == NULL && run->ecn == 0 && run->segments == 1) {
        return;
    }

    ngx_memzero(control, sizeof(ngx_stream_quic_pt_control_t));

    msg->msg_control = control;
    msg->msg_controllen = sizeof(ngx_stream_quic_pt_control_t);

    ngx_stream_quic_pt_udp_fill_control(tx, run, msg);
}


static void
ngx_stream_quic_pt_udp_fill_control(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg)
{
    int              ecn;
    size_t           len;
    struct cmsghdr  *cmsg;
#if (NGX_HAVE_UDP_SEGMENT)
    uint16_t         segment;
#endif

    cmsg = CMSG_FIRSTHDR(msg);
    len = 0;

    if (tx->local) {
        len += ngx_set_srcaddr_cmsg(cmsg, tx->local);
        cmsg = CMSG_NXTHDR(msg, cmsg);
    }

    if (run->ecn) {
        ecn = run->ecn;

        cmsg->cmsg_level = IPPROTO_IP;
        cmsg->cmsg_type = IP_TOS;

#if (NGX_HAVE_INET6)
        if (tx->family == AF_INET6) {
            cmsg->cmsg_level = IPPROTO_IPV6;
            cmsg->cmsg_type = IPV6_TCLASS;
        }
#endif

        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        ngx_memcpy(CMSG_DATA(cmsg), &ecn, sizeof(int));

        len += CMSG_SPACE(sizeof(int));
        cmsg = CMSG_NXTHDR(msg, cmsg);
    }

#if (NGX_HAVE_UDP_SEGMENT)
    if (run->segments > 1) {
        segment = run->segment;

        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        ngx_memcpy(CMSG_DATA(cmsg), &segment, sizeof(uint16_t));

        len += CMSG_SPACE(sizeof(uint16_t));
    }
#endif

    msg->msg_controllen = len;
}


/* some interfaces, virtual machines and path MTUs refuse UDP_SEGMENT */

static ngx_uint_t
ngx_stream_quic_pt_udp_refused(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, ngx_err_t err)
{
    if (run->segments == 1
        || (err != EIO && err != NGX_EINVAL && err != EMSGSIZE))
    {
        return 0;
    }

    if (!*tx->plain) {
        *tx->plain = 1;

        ngx_log_error(NGX_LOG_INFO, tx->log, err,
                      "UDP_SEGMENT failed, sending datagrams one by one");
    }

    return 1;
}


static void
ngx_stream_quic_pt_udp_send_plain(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run)
{
    u_char                        *p, *last;
    size_t                         len;
    ngx_uint_t                     counter;
    struct iovec                   iov;
    struct msghdr                  msg;
    ngx_stream_quic_pt_run_t       single;
    ngx_stream_quic_pt_piece_t    *piece, part;
    ngx_stream_quic_pt_control_t   control;

    single = *run;
    single.segments = 1;
    single.pieces = &part;
    part.next = NULL;

    for (piece = run->pieces; piece; piece = piece->next) {

        p = piece->data;
        last = p + piece->len;

        while (p < last) {
            len = ngx_min(run->segment, (size_t) (last - p));

            part.data = p;
            part.len = len;

            ngx_stream_quic_pt_udp_fill(tx, &single, &msg, &iov, &control);

            counter = tx->counter;

            if (sendmsg(tx->fd, &msg, MSG_DONTWAIT) == -1) {
                counter = NGX_STREAM_QUIC_PT_SEND_FAILED;
            }

            ngx_stream_quic_pt_count(worker, counter, 1);

            p += len;
        }
    }
}


/*
 * The options stay with the socket, which workers of older and newer
 * configurations share.
 */

void
ngx_stream_quic_pt_udp_options(ngx_socket_t fd, ngx_uint_t family,
    ngx_uint_t on, ngx_log_t *log)
{
    int  value;

    value = on;

#if (NGX_QUIC_LB_HAVE_UDP_GRO)
    if (setsockopt(fd, SOL_UDP, UDP_GRO, (const void *) &value, sizeof(int))
        == -1)
    {
        ngx_log_error(NGX_LOG_INFO, log, ngx_socket_errno,
                      "setsockopt(UDP_GRO) failed, ignored");
    }
#endif

    if (setsockopt(fd, IPPROTO_IP, IP_RECVTOS, (const void *) &value,
                   sizeof(int))
        == -1)
    {
        /* an IPv6 socket may have no IPv4 side */

        ngx_log_debug0(NGX_LOG_DEBUG_STREAM, log, ngx_socket_errno,
                       "setsockopt(IP_RECVTOS) failed");
    }

#if (NGX_HAVE_INET6)
    if (family == AF_INET6
        && setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS,
                      (const void *) &value, sizeof(int))
           == -1)
    {
        ngx_log_error(NGX_LOG_INFO, log, ngx_socket_errno,
                      "setsockopt(IPV6_RECVTCLASS) failed, ignored");
    }
#endif
}
