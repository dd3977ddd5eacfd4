
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Preloaded into nginx: the system calls of the datapath with the faults of
 * other systems.  The environment variable QUIC_LB_SHIM selects one:
 *
 *     full         each third sendmmsg() finds no room
 *     nosegment    UDP_SEGMENT is refused, as some interfaces do
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>


typedef int (*sendmmsg_pt)(int, struct mmsghdr *, unsigned int, int);


static const char  *fault = "";


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
has_segment(struct msghdr *msg)
{
    struct cmsghdr  *cmsg;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_SEGMENT) {
            return 1;
        }
    }

    return 0;
}


int
sendmmsg(int fd, struct mmsghdr *msgs, unsigned int n, int flags)
{
    static unsigned  calls;

    if (strcmp(fault, "full") == 0 && ++calls % 3 == 0) {
        errno = EAGAIN;
        return -1;
    }

    if (strcmp(fault, "nosegment") == 0 && has_segment(&msgs[0].msg_hdr)) {
        errno = EIO;
        return -1;
    }

    return ((sendmmsg_pt) dlsym(RTLD_NEXT, "sendmmsg"))(fd, msgs, n, flags);
}
