
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Datagrams for connections of other workers.
 *
 * The kernel chooses a worker by the client's address, so after a migration or
 * a rebinding, and on reload, a datagram meets a worker that does not have its
 * connection.  The connection ID tells the slot of the one that has it
 * (_ids.c).  A slot is the name of an abstract socket that the worker has
 * bound: no two processes have the same one, whatever configuration or binary
 * they come from, and it is free again as soon as the worker is gone.  Then
 * the kernel says so, and the datagram is answered by a stateless reset.
 *
 * Names begin with a hash of a secret, and what does not come from a worker's
 * user is ignored.  A socket holds few messages (net.unix.max_dgram_qlen), so
 * the datagrams of a turn go in one, and what a full one does not take waits
 * (_waiting.c).
 */


#include "ngx_stream_quic_relay_module.h"
#include "ngx_stream_quic_relay_handover.h"


/* messages of one turn */
#define NGX_STREAM_QUIC_RELAY_MESSAGES  4

/* the format below: other binaries may have another one */
#define NGX_STREAM_QUIC_RELAY_FORMAT   0x71726c32


typedef union {
    struct sockaddr                  sockaddr;
    struct sockaddr_in               in;
#if (NGX_HAVE_INET6)
    struct sockaddr_in6              in6;
#endif
} ngx_stream_quic_relay_address_t;


/* before each datagram of a message; the next one begins at once */

typedef struct {
    uint32_t                         format;
    uint32_t                         len;         /* of the datagram */
    uint32_t                         socklen;     /* of both addresses */
    uint32_t                         ecn;
    ngx_stream_quic_relay_address_t  local;
    ngx_stream_quic_relay_address_t  remote;
} ngx_stream_quic_relay_handed_t;


static ngx_int_t ngx_stream_quic_relay_handover_bind(
    ngx_stream_quic_relay_worker_t *worker, ngx_socket_t fd);
static socklen_t ngx_stream_quic_relay_handover_name(
    ngx_stream_quic_relay_handover_t *handover, ngx_uint_t slot,
    struct sockaddr_un *sun);
static ngx_int_t ngx_stream_quic_relay_handover_event(
    ngx_stream_quic_relay_worker_t *worker, ngx_socket_t fd);
static void ngx_stream_quic_relay_handover_read(ngx_event_t *rev);
static ssize_t ngx_stream_quic_relay_handover_recv(ngx_connection_t *c,
    u_char *data);
static ngx_uint_t ngx_stream_quic_relay_handover_ours(struct msghdr *msg);
static void ngx_stream_quic_relay_handover_each(
    ngx_stream_quic_relay_worker_t *worker, u_char *data, size_t len);
static ngx_uint_t ngx_stream_quic_relay_handover_valid(
    ngx_stream_quic_relay_handed_t *handed, size_t len);


ngx_int_t
ngx_stream_quic_relay_handover_open(ngx_stream_quic_relay_worker_t *worker,
    ngx_cycle_t *cycle, ngx_stream_quic_relay_shared_t *shared)
{
    int                                value;
    ngx_socket_t                       fd;
    ngx_stream_quic_relay_handover_t  *handover;
    u_char                             name[NGX_STREAM_QUIC_RELAY_SECRET];

    worker->slot = NGX_STREAM_QUIC_RELAY_NO_SLOT;

    handover = ngx_palloc(cycle->pool,
                          sizeof(ngx_stream_quic_relay_handover_t));
    if (handover == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(handover, sizeof(ngx_stream_quic_relay_handover_t));
    worker->handover = handover;
    ngx_stream_quic_relay_waiting_init(worker);

    if (ngx_stream_quic_relay_ids_secret(name, shared->workers, "name")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_hex_dump(handover->hash, name, NGX_STREAM_QUIC_RELAY_NAME);

    fd = socket(AF_UNIX, SOCK_DGRAM|SOCK_CLOEXEC|SOCK_NONBLOCK, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return NGX_ERROR;
    }

    value = 1;

    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &value, sizeof(int)) == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_socket_errno,
                      "setsockopt(SO_PASSCRED) failed");
        goto failed;
    }

    if (ngx_stream_quic_relay_handover_bind(worker, fd) != NGX_OK
        || ngx_stream_quic_relay_handover_event(worker, fd) != NGX_OK)
    {
        goto failed;
    }

    return NGX_OK;

failed:

    if (ngx_close_socket(fd) == -1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_socket_errno,
                      ngx_close_socket_n " failed");
    }

    return NGX_ERROR;
}


/* a worker without a slot serves the clients that the kernel brings it */

static ngx_int_t
ngx_stream_quic_relay_handover_bind(ngx_stream_quic_relay_worker_t *worker,
    ngx_socket_t fd)
{
    socklen_t           len;
    ngx_uint_t          slot;
    struct sockaddr_un  sun;

    for (slot = 0; slot < NGX_STREAM_QUIC_RELAY_SLOTS; slot++) {

        len = ngx_stream_quic_relay_handover_name(worker->handover, slot,
                                                  &sun);

        if (bind(fd, (struct sockaddr *) &sun, len) == 0) {
            worker->slot = slot;
            return NGX_OK;
        }

        if (ngx_socket_errno != NGX_EADDRINUSE) {
            ngx_log_error(NGX_LOG_EMERG, worker->log, ngx_socket_errno,
                          "bind() of a name for \"quic_relay\" failed");
            return NGX_ERROR;
        }
    }

    ngx_log_error(NGX_LOG_ERR, worker->log, 0,
                  "quic relay: there are more than %d workers, older ones "
                  "included: clients that move will lose their connections, "
                  "set \"worker_shutdown_timeout\"",
                  NGX_STREAM_QUIC_RELAY_SLOTS);

    return NGX_OK;
}


static socklen_t
ngx_stream_quic_relay_handover_name(ngx_stream_quic_relay_handover_t *handover,
    ngx_uint_t slot, struct sockaddr_un *sun)
{
    u_char  *p, *start;

    ngx_memzero(sun, sizeof(struct sockaddr_un));
    sun->sun_family = AF_UNIX;

    /* abstract: the first octet is 0 */

    start = (u_char *) sun->sun_path;
    p = ngx_sprintf(start + 1, "quic_relay.%*s.%ui", sizeof(handover->hash),
                    handover->hash, slot);

    return (socklen_t) (offsetof(struct sockaddr_un, sun_path) + (p - start));
}


static ngx_int_t
ngx_stream_quic_relay_handover_event(ngx_stream_quic_relay_worker_t *worker,
    ngx_socket_t fd)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(fd, worker->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->type = SOCK_DGRAM;
    c->log = worker->log;
    c->data = worker;

    /* it lives as long as the process, and is no leak then */

    c->read->accept = 1;
    c->read->log = c->log;
    c->read->handler = ngx_stream_quic_relay_handover_read;
    c->write->log = c->log;

    if (ngx_add_event(c->read, NGX_READ_EVENT, 0) != NGX_OK) {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        return NGX_ERROR;
    }

    worker->handover->connection = c;

    return NGX_OK;
}


void
ngx_stream_quic_relay_handover_close(ngx_stream_quic_relay_worker_t *worker)
{
    ngx_stream_quic_relay_handover_t  *handover;

    handover = worker->handover;

    if (handover->connection) {
        ngx_close_connection(handover->connection);
        handover->connection = NULL;
    }

    ngx_stream_quic_relay_waiting_free(handover);
}


void
ngx_stream_quic_relay_handover_add(ngx_stream_quic_relay_worker_t *worker,
    ngx_uint_t slot, ngx_stream_quic_relay_input_t *in)
{
    u_char                          *p;
    ngtcp2_path                     *path;
    ngx_stream_quic_relay_batch_t   *out;
    ngx_stream_quic_relay_handed_t   handed;

    out = &worker->handover->out;
    path = &in->path;

    if (out->len
        && (out->target != slot
            || NGX_STREAM_QUIC_RELAY_MESSAGE - out->len
               < sizeof(handed) + in->len))
    {
        ngx_stream_quic_relay_handover_flush(worker);
    }

    if (in->len > NGX_STREAM_QUIC_RELAY_MESSAGE - sizeof(handed)
        || path->local.addrlen > sizeof(handed.local)
        || path->remote.addrlen != path->local.addrlen)
    {
        return;
    }

    ngx_memzero(&handed, sizeof(handed));

    handed.format = NGX_STREAM_QUIC_RELAY_FORMAT;
    handed.len = (uint32_t) in->len;
    handed.socklen = path->remote.addrlen;
    handed.ecn = in->pi.ecn;
    ngx_memcpy(&handed.local, path->local.addr, path->local.addrlen);
    ngx_memcpy(&handed.remote, path->remote.addr, path->remote.addrlen);

    p = ngx_cpymem(out->data + out->len, &handed, sizeof(handed));
    p = ngx_cpymem(p, in->data, in->len);

    out->target = slot;
    out->len = p - out->data;
    out->count++;
}


void
ngx_stream_quic_relay_handover_flush(ngx_stream_quic_relay_worker_t *worker)
{
    ngx_stream_quic_relay_batch_t  *out;

    out = &worker->handover->out;

    if (out->len == 0) {
        return;
    }

    /* not before what waits: what is late is soon taken for lost */

    if (ngx_stream_quic_relay_waiting_for(worker->handover, out->target)
        || ngx_stream_quic_relay_handover_send(worker, out) == NGX_AGAIN)
    {
        ngx_stream_quic_relay_waiting_add(worker, out);
    }

    out->len = 0;
    out->count = 0;
}


ngx_int_t
ngx_stream_quic_relay_handover_send(ngx_stream_quic_relay_worker_t *worker,
    ngx_stream_quic_relay_batch_t *batch)
{
    socklen_t           socklen;
    ngx_err_t           err;
    struct sockaddr_un  sun;

    socklen = ngx_stream_quic_relay_handover_name(worker->handover,
                                                  batch->target, &sun);

    if (sendto(worker->handover->connection->fd, batch->data, batch->len, 0,
               (struct sockaddr *) &sun, socklen)
        != -1)
    {
        ngx_stream_quic_relay_count(worker, NGX_STREAM_QUIC_RELAY_HANDED_OVER,
                                    batch->count);
        return NGX_OK;
    }

    err = ngx_socket_errno;

    ngx_log_debug1(NGX_LOG_DEBUG_STREAM, worker->log, err,
                   "quic relay: handover to worker %ui failed",
                   batch->target);

    switch (err) {

    case NGX_EAGAIN:
    case ENOBUFS:
        return NGX_AGAIN;

    case NGX_ECONNREFUSED:

        /* it is gone */

        ngx_stream_quic_relay_handover_each(worker, batch->data, batch->len);
        return NGX_OK;

    default:
        ngx_stream_quic_relay_count(worker,
                                    NGX_STREAM_QUIC_RELAY_HANDOVER_LOST,
                                    batch->count);
        return NGX_OK;
    }
}


static void
ngx_stream_quic_relay_handover_read(ngx_event_t *rev)
{
    ssize_t                          n;
    ngx_uint_t                       turn;
    ngx_connection_t                *c;
    ngx_stream_quic_relay_worker_t  *worker;

    c = rev->data;
    worker = c->data;

    for (turn = 0; turn < NGX_STREAM_QUIC_RELAY_MESSAGES; turn++) {

        n = ngx_stream_quic_relay_handover_recv(c, worker->handover->in);

        if (n == NGX_AGAIN) {
            return;
        }

        if (n > 0) {
            ngx_stream_quic_relay_handover_each(worker, worker->handover->in,
                                                (size_t) n);
        }
    }
}


static ssize_t
ngx_stream_quic_relay_handover_recv(ngx_connection_t *c, u_char *data)
{
    ssize_t        n;
    struct iovec   iov;
    struct msghdr  msg;
    u_char         control[CMSG_SPACE(sizeof(struct ucred))];

    ngx_memzero(&msg, sizeof(struct msghdr));

    iov.iov_base = data;
    iov.iov_len = NGX_STREAM_QUIC_RELAY_MESSAGE;

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);

    /* descriptors that others might send have no room, and are closed */

    n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC);

    if (n == -1) {
        return (ngx_socket_errno == NGX_EAGAIN) ? NGX_AGAIN : NGX_ERROR;
    }

    return ngx_stream_quic_relay_handover_ours(&msg) ? n : NGX_ERROR;
}


static ngx_uint_t
ngx_stream_quic_relay_handover_ours(struct msghdr *msg)
{
    struct ucred     ucred;
    struct cmsghdr  *cmsg;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {

        if (cmsg->cmsg_level == SOL_SOCKET
            && cmsg->cmsg_type == SCM_CREDENTIALS)
        {
            ngx_memcpy(&ucred, CMSG_DATA(cmsg), sizeof(struct ucred));
            return ucred.uid == geteuid();
        }
    }

    return 0;
}


static void
ngx_stream_quic_relay_handover_each(ngx_stream_quic_relay_worker_t *worker,
    u_char *data, size_t len)
{
    u_char                          *pos, *end;
    ngx_stream_quic_relay_input_t    in;
    ngx_stream_quic_relay_handed_t   handed;

    end = data + len;

    for (pos = data; end - pos > (ssize_t) sizeof(handed); pos += handed.len) {

        ngx_memcpy(&handed, pos, sizeof(handed));
        pos += sizeof(handed);

        if (!ngx_stream_quic_relay_handover_valid(&handed, end - pos)) {
            return;
        }

        in.path.local.addr = &handed.local.sockaddr;
        in.path.local.addrlen = handed.socklen;
        in.path.remote.addr = &handed.remote.sockaddr;
        in.path.remote.addrlen = handed.socklen;
        in.path.user_data = NULL;
        in.pi.ecn = handed.ecn & NGTCP2_ECN_MASK;
        in.data = pos;
        in.len = handed.len;

        ngx_stream_quic_relay_input_handed(worker, &in);
    }
}


/* a worker's user may have other processes: what they send must do no harm */

static ngx_uint_t
ngx_stream_quic_relay_handover_valid(ngx_stream_quic_relay_handed_t *handed,
    size_t len)
{
    if (handed->format != NGX_STREAM_QUIC_RELAY_FORMAT
        || handed->len > len
        || handed->local.sockaddr.sa_family
           != handed->remote.sockaddr.sa_family)
    {
        return 0;
    }

    switch (handed->local.sockaddr.sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        return handed->socklen == sizeof(struct sockaddr_in6);
#endif

    case AF_INET:
        return handed->socklen == sizeof(struct sockaddr_in);

    default:
        return 0;
    }
}
