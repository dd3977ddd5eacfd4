
/*
 * Sockets of the load generator.  It shares the processor with nothing that is
 * measured, but must be faster than that: payloads are thrown away in the
 * kernel, not copied.
 */


#define _GNU_SOURCE

#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>


#define CONTROL  (CMSG_SPACE(sizeof(struct in_pktinfo))                       \
                  + CMSG_SPACE(sizeof(int)))


typedef union {
    struct cmsghdr  align;
    char            data[CONTROL];
} control_t;


static void describe(struct mmsghdr *mm, load_message_t *m);
static struct cmsghdr *put(struct msghdr *msg, struct cmsghdr *cmsg,
    int level, int type, const void *data, size_t len);


void
load_die(const char *what)
{
    fprintf(stderr, "load: ");
    perror(what);
    exit(1);
}


int
load_socket(struct sockaddr_in *local, int rcvbuf, int gro)
{
    int  fd;

    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    if (fd == -1
        || bind(fd, (struct sockaddr *) local, sizeof(*local)) == -1
        || setsockopt(fd, SOL_UDP, UDP_GRO, &gro, sizeof(int)) == -1)
    {
        load_die("socket");
    }

    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &rcvbuf, sizeof(int)) == -1
        && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(int)) == -1)
    {
        load_die("SO_RCVBUF");
    }

    return fd;
}


void
load_tell_local(int fd)
{
    int  on;

    on = 1;

    if (setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(int)) == -1) {
        load_die("IP_PKTINFO");
    }
}


unsigned
load_send(load_path_t *path, uint8_t *data, size_t size, unsigned n, int gso)
{
    int                sent;
    unsigned           i, count;
    uint16_t           segment;
    struct iovec       iov[BENCH_SEGMENTS];
    struct msghdr     *msg;
    struct cmsghdr    *cmsg;
    struct mmsghdr     msgs[BENCH_SEGMENTS];
    struct in_pktinfo  info;
    control_t          control;

    memset(&info, 0, sizeof(struct in_pktinfo));
    memset(&control, 0, sizeof(control_t));
    info.ipi_spec_dst = path->from;
    segment = (uint16_t) size;
    count = gso ? 1 : n;

    for (i = 0; i < count; i++) {
        iov[i].iov_base = data + i * size;
        iov[i].iov_len = gso ? n * size : size;

        msg = &msgs[i].msg_hdr;
        memset(msg, 0, sizeof(struct msghdr));

        msg->msg_name = path->to;
        msg->msg_namelen = path->to ? sizeof(struct sockaddr_in) : 0;
        msg->msg_iov = &iov[i];
        msg->msg_iovlen = 1;
        msg->msg_control = &control;
        msg->msg_controllen = sizeof(control_t);

        cmsg = CMSG_FIRSTHDR(msg);
        msg->msg_controllen = 0;

        if (path->to) {
            cmsg = put(msg, cmsg, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
        }

        if (gso && n > 1) {
            (void) put(msg, cmsg, SOL_UDP, UDP_SEGMENT, &segment,
                       sizeof(segment));
        }
    }

    sent = sendmmsg(path->fd, msgs, count, 0);

    if (sent == -1) {

        if (errno == EAGAIN || errno == ECONNREFUSED) {
            return 0;
        }

        load_die("send");
    }

    return gso ? n : (unsigned) sent;
}


/* CMSG_NXTHDR() would look at what is not written yet */

static struct cmsghdr *
put(struct msghdr *msg, struct cmsghdr *cmsg, int level, int type,
    const void *data, size_t len)
{
    cmsg->cmsg_level = level;
    cmsg->cmsg_type = type;
    cmsg->cmsg_len = CMSG_LEN(len);
    memcpy(CMSG_DATA(cmsg), data, len);

    msg->msg_controllen += CMSG_SPACE(len);

    return (struct cmsghdr *) (void *) ((char *) cmsg + CMSG_SPACE(len));
}


unsigned
load_receive(int fd, load_message_t *messages)
{
    int             i, n;
    struct iovec    iov[LOAD_MESSAGES];
    struct msghdr  *msg;
    struct mmsghdr  msgs[LOAD_MESSAGES];
    control_t       control[LOAD_MESSAGES];

    for (i = 0; i < LOAD_MESSAGES; i++) {
        iov[i].iov_base = messages[i].head;
        iov[i].iov_len = LOAD_HEAD;

        msg = &msgs[i].msg_hdr;
        msg->msg_name = &messages[i].from;
        msg->msg_namelen = sizeof(struct sockaddr_in);
        msg->msg_iov = &iov[i];
        msg->msg_iovlen = 1;
        msg->msg_control = &control[i];
        msg->msg_controllen = sizeof(control_t);
    }

    n = recvmmsg(fd, msgs, LOAD_MESSAGES, MSG_TRUNC | MSG_DONTWAIT, NULL);

    for (i = 0; i < n; i++) {
        describe(&msgs[i], &messages[i]);
    }

    return n > 0 ? (unsigned) n : 0;
}


static void
describe(struct mmsghdr *mm, load_message_t *m)
{
    int                segment;
    struct cmsghdr    *cmsg;
    struct in_pktinfo  info;

    m->len = mm->msg_len;
    m->datagrams = 1;

    for (cmsg = CMSG_FIRSTHDR(&mm->msg_hdr);
         cmsg;
         cmsg = CMSG_NXTHDR(&mm->msg_hdr, cmsg))
    {
        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            memcpy(&segment, CMSG_DATA(cmsg), sizeof(int));
            m->datagrams = (unsigned) ((m->len + (size_t) segment - 1)
                                       / (size_t) segment);
        }

        if (cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_PKTINFO) {
            memcpy(&info, CMSG_DATA(cmsg), sizeof(info));
            m->to = info.ipi_addr;
        }
    }
}


uint64_t
load_now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + (uint64_t) ts.tv_nsec;
}
