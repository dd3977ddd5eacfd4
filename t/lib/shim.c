
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Preloaded into nginx: the system calls of the datapath with the faults of
 * other systems.  The environment variable QUIC_LB_SHIM selects one:
 *
 *     full         each third send finds no room, until that is waited for
 *     nosegment    UDP_SEGMENT is refused, as some interfaces do
 *     oldkernel    there is no UDP_SEGMENT and no UDP_GRO
 *     flaky        each seventh send with UDP_SEGMENT fails, each time else
 *     crowded      nosegment and full
 *     nobatches    there is no recvmmsg() and no sendmmsg()
 *     sandbox      recvmmsg() is not permitted
 *     nogro        UDP_GRO is refused
 *     short        recvmmsg() and sendmmsg() take three messages at most
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>


#define SHORT  3
#define FDS    65536

#define real(name)  ((name##_pt) dlsym(RTLD_NEXT, #name))


typedef int (*recvmmsg_pt)(int, struct mmsghdr *, unsigned int, int,
    struct timespec *);
typedef int (*sendmmsg_pt)(int, struct mmsghdr *, unsigned int, int);
typedef ssize_t (*sendmsg_pt)(int, const struct msghdr *, int);
typedef int (*setsockopt_pt)(int, int, int, const void *, socklen_t);
typedef int (*getsockopt_pt)(int, int, int, void *, socklen_t *);
typedef int (*epoll_ctl_pt)(int, int, int, struct epoll_event *);


static const char  *fault = "";
static char         waits[FDS];           /* for room */


/* nginx clears its environment */

static __attribute__((constructor)) void
select_fault(void)
{
    const char  *value;

    value = getenv("QUIC_LB_SHIM");

    if (value) {
        fault = strdup(value);
    }
}


static int
is(const char *name)
{
    return strcmp(fault, name) == 0;
}


static int
fails(int err)
{
    errno = err;

    return -1;
}


static int
has_segment(const struct msghdr *msg)
{
    struct cmsghdr  *cmsg;

    for (cmsg = CMSG_FIRSTHDR(msg);
         cmsg;
         cmsg = CMSG_NXTHDR((struct msghdr *) msg, cmsg))
    {
        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_SEGMENT) {
            return 1;
        }
    }

    return 0;
}


/* 0, or the error that a send of |msg| meets */

static int
send_error(int fd, const struct msghdr *msg)
{
    static unsigned   calls, segmented;
    static const int  errors[] = { EIO, EMSGSIZE, EINVAL };

    if (has_segment(msg)) {

        if (is("nosegment") || is("crowded")) {
            return EIO;
        }

        /* an old kernel would take them for one datagram: never to be seen */

        if (is("oldkernel")) {
            abort();
        }

        if (is("flaky") && ++segmented % 7 == 0) {
            return errors[segmented % 3];
        }
    }

    if ((is("full") || is("crowded")) && !waits[fd] && ++calls % 3 == 0) {
        return EAGAIN;
    }

    return 0;
}


int
sendmmsg(int fd, struct mmsghdr *msgs, unsigned int n, int flags)
{
    int  err;

    if (is("nobatches")) {
        return fails(ENOSYS);
    }

    err = send_error(fd, &msgs[0].msg_hdr);
    if (err) {
        return fails(err);
    }

    if (is("short") && n > SHORT) {
        n = SHORT;
    }

    return real(sendmmsg)(fd, msgs, n, flags);
}


ssize_t
sendmsg(int fd, const struct msghdr *msg, int flags)
{
    int  err;

    err = send_error(fd, msg);
    if (err) {
        return fails(err);
    }

    return real(sendmsg)(fd, msg, flags);
}


int
recvmmsg(int fd, struct mmsghdr *msgs, unsigned int n, int flags,
    struct timespec *timeout)
{
    if (is("nobatches")) {
        return fails(ENOSYS);
    }

    if (is("sandbox")) {
        return fails(EPERM);
    }

    if (is("short") && n > SHORT) {
        n = SHORT;
    }

    return real(recvmmsg)(fd, msgs, n, flags, timeout);
}


/* the sockets have room, so nobody tells of it but for this */

int
epoll_ctl(int ep, int op, int fd, struct epoll_event *event)
{
    if (fd < FDS) {
        waits[fd] = (op != EPOLL_CTL_DEL && (event->events & EPOLLOUT));
    }

    return real(epoll_ctl)(ep, op, fd, event);
}


int
setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    if (level == SOL_UDP && name == UDP_GRO
        && (is("nogro") || is("oldkernel")))
    {
        return fails(ENOPROTOOPT);
    }

    return real(setsockopt)(fd, level, name, value, len);
}


int
getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    if (level == SOL_UDP && name == UDP_SEGMENT && is("oldkernel")) {
        return fails(ENOPROTOOPT);
    }

    return real(getsockopt)(fd, level, name, value, len);
}
