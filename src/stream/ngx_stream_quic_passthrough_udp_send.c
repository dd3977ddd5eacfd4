
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * What is sent, in batches: sendmmsg() with UDP_SEGMENT, and the plain calls
 * where the kernel has less.  Nothing is copied: runs refer to the buffers that
 * were read.
 *
 * Whatever error a call meets, the next plainer one is tried: sendmmsg(),
 * sendmsg(), sendmsg() for each datagram.  The one that then works shows what
 * the fault was; a datagram for which none does is dropped and counted.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


/* room for the address, the ECN mark and the segment size */

#define NGX_STREAM_QUIC_PT_CONTROL                                            \
    (CMSG_SPACE(sizeof(ngx_addrinfo_t)) + CMSG_SPACE(sizeof(int))             \
     + CMSG_SPACE(sizeof(uint16_t)))


typedef union {
    struct cmsghdr  cmsg;               /* for its alignment */
    u_char          data[NGX_STREAM_QUIC_PT_CONTROL];
} ngx_stream_quic_pt_control_t;


static ngx_uint_t ngx_stream_quic_pt_udp_extends(ngx_stream_quic_pt_run_t *run,
    size_t len, ngx_uint_t ecn, ngx_uint_t plain);
static int ngx_stream_quic_pt_udp_sendmmsg(
    ngx_stream_quic_pt_worker_t *worker, ngx_socket_t fd,
    struct mmsghdr *msgs, ngx_uint_t n);
static void ngx_stream_quic_pt_udp_fill(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg, struct iovec *iov,
    ngx_stream_quic_pt_control_t *control);
static void ngx_stream_quic_pt_udp_fill_control(ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, struct msghdr *msg);
static ngx_int_t ngx_stream_quic_pt_udp_send_run(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run, ngx_err_t err);
static ngx_int_t ngx_stream_quic_pt_udp_send_plain(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_tx_t *tx,
    ngx_stream_quic_pt_run_t *run);
static void ngx_stream_quic_pt_udp_consume(ngx_stream_quic_pt_run_t *run,
    size_t len);
static ngx_uint_t ngx_stream_quic_pt_udp_no_room(
    ngx_stream_quic_pt_socket_t *sock, ngx_err_t err);
static ngx_uint_t ngx_stream_quic_pt_udp_unreachable(ngx_err_t err);
static void ngx_stream_quic_pt_udp_set_plain(
    ngx_stream_quic_pt_worker_t *worker, ngx_stream_quic_pt_tx_t *tx,
    ngx_err_t err);
static void ngx_stream_quic_pt_udp_dropped(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_err_t err);


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
        || !ngx_stream_quic_pt_udp_extends(run, len, ecn, tx->socket->plain))
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
    ngx_err_t                  told;
    ngx_stream_quic_pt_run_t  *run;

    told = 0;
    run = tx->runs;

    if (run && ngx_queue_empty(&tx->socket->backlog)) {
        run = ngx_stream_quic_pt_udp_send(worker, tx, run, &told);
    }

    /* what finds no room waits, and so does what comes behind it */

    for ( /* void */ ; run; run = run->next) {
        ngx_stream_quic_pt_backlog_add(worker, tx, run);
    }

    tx->runs = NULL;
    tx->last = NULL;

    return told;
}


ngx_stream_quic_pt_run_t *
ngx_stream_quic_pt_udp_send(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run,
    ngx_err_t *told)
{
    int                            n;
    ngx_err_t                      err;
    ngx_uint_t                     i, niov, sent;
    struct iovec                   iov[NGX_STREAM_QUIC_PT_BATCH];
    struct mmsghdr                 msgs[NGX_STREAM_QUIC_PT_MESSAGES];
    ngx_stream_quic_pt_run_t      *next;
    ngx_stream_quic_pt_control_t   control[NGX_STREAM_QUIC_PT_MESSAGES];

    sent = 0;

    while (run) {

        if (run->refused) {

            if (ngx_stream_quic_pt_udp_send_plain(worker, tx, run) != NGX_OK) {
                break;
            }

            run = run->next;
            continue;
        }

        niov = 0;
        next = run;

        /* a run has at most as many pieces as datagrams */

        for (i = 0;
             next && !next->refused && i < NGX_STREAM_QUIC_PT_MESSAGES;
             i++)
        {
            ngx_stream_quic_pt_udp_fill(tx, next, &msgs[i].msg_hdr,
                                        &iov[niov], &control[i]);
            niov += msgs[i].msg_hdr.msg_iovlen;
            next = next->next;
        }

        n = ngx_stream_quic_pt_udp_sendmmsg(worker, tx->socket->connection->fd,
                                            msgs, i);

        if (n > 0) {

            while (n-- > 0) {
                sent += run->segments;
                run = run->next;
            }

            continue;
        }

        err = ngx_socket_errno;

        if (ngx_stream_quic_pt_udp_no_room(tx->socket, err)) {
            break;
        }

        if (tx->sockaddr == NULL && *told == 0) {

            /*
             * A connected socket tells what became of an earlier datagram,
             * and sends nothing: once more.
             */

            *told = err;
            continue;
        }

        if (ngx_stream_quic_pt_udp_send_run(worker, tx, run, err) != NGX_OK) {
            break;
        }

        run = run->next;
    }

    if (sent) {
        ngx_stream_quic_pt_count(worker, tx->counter, sent);
    }

    return run;
}


static int
ngx_stream_quic_pt_udp_sendmmsg(ngx_stream_quic_pt_worker_t *worker,
    ngx_socket_t fd, struct mmsghdr *msgs, ngx_uint_t n)
{
    int         rc;
    ngx_uint_t  i;

    if (!worker->no_sendmmsg) {
        rc = sendmmsg(fd, msgs, n, MSG_DONTWAIT);

        if (rc > 0) {
            worker->sendmmsg_failures = 0;
        }

        return rc;
    }

    for (i = 0; i < n; i++) {
        if (sendmsg(fd, &msgs[i].msg_hdr, MSG_DONTWAIT) == -1) {
            return i ? (int) i : -1;
        }
    }

    return n;
}


/*
 * Sends |run|, which has met |err|, without sendmmsg().  Returns NGX_AGAIN if
 * there is no room for it, or for the rest of it, else NGX_OK.
 */

static ngx_int_t
ngx_stream_quic_pt_udp_send_run(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run, ngx_err_t err)
{
    struct iovec                  iov[NGX_STREAM_QUIC_PT_SEGMENTS];
    struct msghdr                 msg;
    ngx_stream_quic_pt_control_t  control;

    if (!worker->no_sendmmsg) {
        ngx_stream_quic_pt_udp_fill(tx, run, &msg, iov, &control);

        if (sendmsg(tx->socket->connection->fd, &msg, MSG_DONTWAIT) != -1) {
            ngx_stream_quic_pt_count(worker, tx->counter, run->segments);

            /* once may have been an error that has passed */

            if (worker->sendmmsg_failures++) {
                worker->no_sendmmsg = 1;

                ngx_stream_quic_pt_udp_log(worker, tx->socket, tx->sockaddr,
                                           NGX_LOG_NOTICE, err,
                                           "sendmmsg() failed, sending "
                                           "messages one by one");
            }

            return NGX_OK;
        }

        err = ngx_socket_errno;

        if (ngx_stream_quic_pt_udp_no_room(tx->socket, err)) {
            return NGX_AGAIN;
        }
    }

    if (run->segments > 1) {
        run->refused = err;
        return ngx_stream_quic_pt_udp_send_plain(worker, tx, run);
    }

    ngx_stream_quic_pt_udp_dropped(worker, tx, err);

    return NGX_OK;
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
    uint16_t         segment;
    struct cmsghdr  *cmsg;

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

    if (run->segments > 1) {
        segment = run->segment;

        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        ngx_memcpy(CMSG_DATA(cmsg), &segment, sizeof(uint16_t));

        len += CMSG_SPACE(sizeof(uint16_t));
    }

    msg->msg_controllen = len;
}


/*
 * Sends the datagrams of |run| one by one, and takes them out of it.  Returns
 * NGX_AGAIN if there is no room for the rest, else NGX_OK.
 */

static ngx_int_t
ngx_stream_quic_pt_udp_send_plain(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_stream_quic_pt_run_t *run)
{
    ngx_err_t                     err;
    ngx_uint_t                    told;
    struct iovec                  iov;
    struct msghdr                 msg;
    ngx_stream_quic_pt_run_t      single;
    ngx_stream_quic_pt_piece_t    part;
    ngx_stream_quic_pt_control_t  control;

    single = *run;
    single.segments = 1;
    single.pieces = &part;

    told = (tx->sockaddr != NULL);

    while (run->segments) {

        part = *run->pieces;
        part.len = ngx_min(run->segment, part.len);
        part.next = NULL;

        ngx_stream_quic_pt_udp_fill(tx, &single, &msg, &iov, &control);

        if (sendmsg(tx->socket->connection->fd, &msg, MSG_DONTWAIT) != -1) {
            ngx_stream_quic_pt_count(worker, tx->counter, 1);

            if (part.len == run->segment) {
                ngx_stream_quic_pt_udp_set_plain(worker, tx, run->refused);
            }

        } else {
            err = ngx_socket_errno;

            if (ngx_stream_quic_pt_udp_no_room(tx->socket, err)) {
                return NGX_AGAIN;
            }

            if (!told && err != EMSGSIZE) {

                /* it was told of an earlier datagram */

                told = 1;
                continue;
            }

            ngx_stream_quic_pt_udp_dropped(worker, tx, err);
        }

        ngx_stream_quic_pt_udp_consume(run, part.len);
    }

    return NGX_OK;
}


/* the first |len| octets of |run|, a datagram, are done with */

static void
ngx_stream_quic_pt_udp_consume(ngx_stream_quic_pt_run_t *run, size_t len)
{
    ngx_stream_quic_pt_piece_t  *piece;

    piece = run->pieces;

    piece->data += len;
    piece->len -= len;

    if (piece->len == 0) {
        run->pieces = piece->next;
    }

    run->size -= len;
    run->segments--;
}


/* EAGAIN ends with an event; nothing tells when the other two do */

static ngx_uint_t
ngx_stream_quic_pt_udp_no_room(ngx_stream_quic_pt_socket_t *sock,
    ngx_err_t err)
{
    if (err == NGX_EAGAIN) {
        sock->congested = 0;
        return 1;
    }

    if (err == ENOBUFS || err == NGX_ENOMEM) {
        sock->congested = 1;
        return 1;
    }

    return 0;
}


/* errors that have nothing to do with UDP_SEGMENT */

static ngx_uint_t
ngx_stream_quic_pt_udp_unreachable(ngx_err_t err)
{
    return err == NGX_ECONNREFUSED
           || err == NGX_EHOSTUNREACH
           || err == NGX_ENETUNREACH
           || err == NGX_EHOSTDOWN
           || err == NGX_ENETDOWN;
}


/*
 * One by one a datagram of the size has left: it was UDP_SEGMENT that met
 * |err|, which some interfaces, virtual machines and sandboxes refuse.
 */

static void
ngx_stream_quic_pt_udp_set_plain(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_err_t err)
{
    if (tx->socket->plain || ngx_stream_quic_pt_udp_unreachable(err)) {
        return;
    }

    tx->socket->plain = 1;

    if (worker->no_segments) {
        return;
    }

    worker->no_segments = 1;

    ngx_stream_quic_pt_udp_log(worker, tx->socket, tx->sockaddr,
                               NGX_LOG_NOTICE, err,
                               "UDP_SEGMENT failed, sending datagrams one by "
                               "one on such sockets");
}


/* a packet filter, for instance, makes EPERM of what anybody may ask for */

static void
ngx_stream_quic_pt_udp_dropped(ngx_stream_quic_pt_worker_t *worker,
    ngx_stream_quic_pt_tx_t *tx, ngx_err_t err)
{
    if (err == EMSGSIZE) {
        ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_TOO_BIG, 1);
        return;
    }

    ngx_stream_quic_pt_count(worker, NGX_STREAM_QUIC_PT_SEND_FAILED, 1);

    if (worker->unsendable == ngx_time()) {
        return;
    }

    worker->unsendable = ngx_time();

    ngx_stream_quic_pt_udp_log(worker, tx->socket, tx->sockaddr, NGX_LOG_INFO,
                               err, "sendmsg() failed, datagrams are dropped");
}
