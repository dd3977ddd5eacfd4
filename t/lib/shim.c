
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
 *     nomemfd      there is no memfd_create()
 *     short        recvmmsg() and sendmmsg() take three messages at most
 *
 *     CALL:ERRNO:FROM[:TIMES]
 *                  CALL fails with the number ERRNO from the FROMth time on, or
 *                  TIMES times; it is recvmmsg, sendmmsg, receive, which is
 *                  also recvmsg(), send, which is also sendmsg(), segment, any
 *                  send with UDP_SEGMENT, or gro, setsockopt(UDP_GRO)
 *
 * QUIC_LB_SHIM_FAILURES names a file that grows by an octet with each failure
 * of the last kind.
 *
 * QUIC_LB_SHIM_HOLD names a file that the next worker to start renames to
 * FILE.held, and then waits until that is gone.
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>


#define SHORT  3
#define FDS    65536

#define real(name)  ((name##_pt) dlsym(RTLD_NEXT, #name))


typedef int (*recvmmsg_pt)(int, struct mmsghdr *, unsigned int, int,
    struct timespec *);
typedef int (*sendmmsg_pt)(int, struct mmsghdr *, unsigned int, int);
typedef ssize_t (*recvmsg_pt)(int, struct msghdr *, int);
typedef ssize_t (*sendmsg_pt)(int, const struct msghdr *, int);
typedef int (*setsockopt_pt)(int, int, int, const void *, socklen_t);
typedef int (*getsockopt_pt)(int, int, int, void *, socklen_t *);
typedef int (*memfd_create_pt)(const char *, unsigned int);
typedef int (*epoll_ctl_pt)(int, int, int, struct epoll_event *);
typedef int (*initgroups_pt)(const char *, gid_t);


static const char  *fault = "";
static char         waits[FDS];           /* for room */

static char         call[16];
static int          call_errno;
static unsigned     calls, call_from, call_times;
static int          failures = -1;

static char         hold[PATH_MAX], held[PATH_MAX + 5];


/* nginx clears its environment */

static __attribute__((constructor)) void
select_fault(void)
{
    const char  *value;

    value = getenv("QUIC_LB_SHIM");

    if (value) {
        fault = strdup(value);
    }

    call_times = UINT_MAX;

    if (sscanf(fault, "%15[a-z]:%d:%u:%u", call, &call_errno, &call_from,
               &call_times)
        < 3)
    {
        call[0] = '\0';
    }

    value = getenv("QUIC_LB_SHIM_FAILURES");

    if (value && failures == -1) {
        failures = open(value, O_WRONLY | O_CREAT | O_APPEND, 0666);
    }

    value = getenv("QUIC_LB_SHIM_HOLD");

    if (value) {
        snprintf(hold, sizeof(hold), "%s", value);
        snprintf(held, sizeof(held), "%s.held", hold);
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


/* nginx itself talks to its workers by sockets of another kind */

static int
is_udp(int fd)
{
    int        protocol;
    socklen_t  len;

    len = sizeof(int);

    return real(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0
           && protocol == IPPROTO_UDP;
}


/* whether a call of this name is to fail now */

static int
call_fails(int fd, const char *name)
{
    if (strcmp(call, name) != 0 || !is_udp(fd) || ++calls < call_from
        || calls - call_from >= call_times)
    {
        return 0;
    }

    if (failures != -1 && write(failures, ".", 1) != 1) {
        abort();
    }

    return 1;
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
    static unsigned   sends, segmented;
    static const int  errors[] = { EIO, EMSGSIZE, EINVAL };

    if (call_fails(fd, "send")) {
        return call_errno;
    }

    if (has_segment(msg)) {

        if (call_fails(fd, "segment")) {
            return call_errno;
        }

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

    if ((is("full") || is("crowded")) && !waits[fd] && ++sends % 3 == 0) {
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

    if (call_fails(fd, "sendmmsg")) {
        return fails(call_errno);
    }

    err = send_error(fd, &msgs[0].msg_hdr);
    if (err) {
        return fails(err);
    }

    /* what is behind the first one meets its own fault */

    if (call[0]) {
        n = 1;
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

    if (call_fails(fd, "recvmmsg") || call_fails(fd, "receive")) {
        return fails(call_errno);
    }

    if (is("short") && n > SHORT) {
        n = SHORT;
    }

    return real(recvmmsg)(fd, msgs, n, flags, timeout);
}


ssize_t
recvmsg(int fd, struct msghdr *msg, int flags)
{
    if (call_fails(fd, "receive")) {
        return fails(call_errno);
    }

    return real(recvmsg)(fd, msg, flags);
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

    if (level == SOL_UDP && name == UDP_GRO && call_fails(fd, "gro")) {
        return fails(call_errno);
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


int
memfd_create(const char *name, unsigned int flags)
{
    if (is("nomemfd")) {
        return fails(ENOSYS);
    }

    return real(memfd_create)(name, flags);
}


/* of a worker that starts: before the modules get to know of it */

int
initgroups(const char *user, gid_t group)
{
    if (hold[0] && rename(hold, held) == 0) {
        while (access(held, F_OK) == 0) {
            usleep(1000);
        }
    }

    return real(initgroups)(user, group);
}
