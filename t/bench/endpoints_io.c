
/*
 * The socket of an endpoint: datagrams in trains, both ways.
 */


#define _GNU_SOURCE

#include "endpoints.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>


#define SECOND       1000000000ULL       /* ns */
#define MICROSECOND  1000ULL

#define RCVBUF       (4 << 20)


void
endpoints_die(const char *what)
{
    fprintf(stderr, "endpoints: ");
    perror(what);
    exit(1);
}


uint64_t
endpoints_now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * SECOND + (uint64_t) ts.tv_nsec;
}


uint64_t
endpoints_cpu(void)
{
    struct rusage  usage;

    getrusage(RUSAGE_SELF, &usage);

    return (uint64_t) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SECOND
           + (uint64_t) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec)
             * MICROSECOND;
}


int
endpoints_socket(struct sockaddr_in *at, int server,
    struct sockaddr_in *local)
{
    int        fd, on, size;
    socklen_t  len;

    on = 1;
    size = RCVBUF;
    len = sizeof(*local);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    if (fd == -1
        || setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof(int)) == -1
        || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(int)) == -1
        || (server ? bind(fd, (struct sockaddr *) at, sizeof(*at))
                   : connect(fd, (struct sockaddr *) at, sizeof(*at))) == -1
        || getsockname(fd, (struct sockaddr *) local, &len) == -1)
    {
        endpoints_die("socket");
    }

    return fd;
}


int
endpoints_wait(int fd, uint64_t expiry)
{
    uint64_t         now;
    struct pollfd    event;
    struct timespec  timeout, *to;

    to = NULL;

    if (expiry != UINT64_MAX) {
        now = endpoints_now();
        now = expiry > now ? expiry - now : 0;
        timeout.tv_sec = (time_t) (now / SECOND);
        timeout.tv_nsec = (long) (now % SECOND);
        to = &timeout;
    }

    event.fd = fd;
    event.events = POLLIN;

    return ppoll(&event, 1, to, NULL) > 0;
}


ssize_t
endpoints_read(int fd, uint8_t *data, size_t size, struct sockaddr_in *from,
    size_t *segment)
{
    int              gro;
    ssize_t          n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    union {
        struct cmsghdr  align;
        char            data[CMSG_SPACE(sizeof(int))];
    } control;

    memset(&msg, 0, sizeof(msg));

    iov.iov_base = data;
    iov.iov_len = size;

    msg.msg_name = from;
    msg.msg_namelen = sizeof(*from);
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = sizeof(control);

    n = recvmsg(fd, &msg, 0);

    if (n == -1) {
        return -1;
    }

    *segment = (size_t) n;
    cmsg = CMSG_FIRSTHDR(&msg);

    if (cmsg && cmsg->cmsg_type == UDP_GRO) {
        memcpy(&gro, CMSG_DATA(cmsg), sizeof(int));
        *segment = (size_t) gro;
    }

    return n;
}


void
endpoints_send(int fd, struct sockaddr_in *to, uint8_t *data, size_t len,
    size_t segment)
{
    uint16_t         size;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    union {
        struct cmsghdr  align;
        char            data[CMSG_SPACE(sizeof(uint16_t))];
    } control;

    memset(&msg, 0, sizeof(msg));

    iov.iov_base = data;
    iov.iov_len = len;

    msg.msg_name = to;
    msg.msg_namelen = to ? sizeof(*to) : 0;
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (len > segment) {
        size = (uint16_t) segment;

        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);

        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        memcpy(CMSG_DATA(cmsg), &size, sizeof(uint16_t));
    }

    (void) sendmsg(fd, &msg, 0);
}
