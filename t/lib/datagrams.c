
/*
 * Sends datagrams through a balancer, both ways, and checks each one that
 * arrives: its size, its octets, its ECN mark, and that it is the next of its
 * flow.
 *
 *     datagrams RELAY_PORT SERVER_PORT FLOWS COUNT SEGMENT GRO SEED
 *
 * Clients are connected sockets, one for each flow; the server is one socket.
 * Both ends are in this process, which so knows what is under way and never
 * sends more than finds room: nothing may be lost.  COUNT datagrams are sent
 * in each direction, of random sizes and marks, alone and in trains; these by
 * UDP_SEGMENT if SEGMENT is 1.  GRO is 1 for a receiver with UDP_GRO.
 *
 * A datagram is a short header whose connection ID names server 0a, and then
 * the number of its flow, its own number, its size and its mark, and octets
 * that depend on these.  Prints what it has done, or what is wrong.
 */


#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>


#define FLOWS     64
#define WINDOW    64              /* datagrams under way in a direction */
#define TRAIN     40
#define BUFFER    65536
#define PATIENCE  30000           /* ms without any datagram */

#define CID       "\x08\x0a"      /* and the number of the flow */
#define HEAD      (1 + 9 + 12)
#define SMALL     HEAD
#define LARGE     1472

#define UP        0
#define DOWN      1


/* one direction of a flow */

typedef struct {
    uint32_t            sent;
    uint32_t            received;
} way_t;


typedef struct {
    int                 fd;
    struct sockaddr_in  leg;      /* as the server sees it */
    way_t               ways[2];
} flow_t;


typedef union {
    struct cmsghdr      align;
    char                data[4 * CMSG_SPACE(sizeof(int))];
} control_t;


static int        server;
static flow_t     flows[FLOWS];
static unsigned   nflows;
static uint64_t   under_way[2], sent[2], received[2];
static uint64_t   state;
static const char *names[] = { "up", "down" };


static void
die(const char *what)
{
    perror(what);
    exit(2);
}


/* xorshift64 */

static uint32_t
random_below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;

    return (uint32_t) (state >> 32) % n;
}


static void
write32(uint8_t *p, uint32_t n)
{
    n = htonl(n);
    memcpy(p, &n, sizeof(uint32_t));
}


static uint32_t
read32(const uint8_t *p)
{
    uint32_t  n;

    memcpy(&n, p, sizeof(uint32_t));

    return ntohl(n);
}


static void
make(uint8_t *p, unsigned way, unsigned flow, uint32_t number, size_t size,
    unsigned mark)
{
    size_t    i;
    uint32_t  octet;

    p[0] = 0x40 | (uint8_t) way;
    memcpy(&p[1], CID, 2);
    memset(&p[3], 0, 3);
    write32(&p[6], flow);

    write32(&p[10], flow);
    write32(&p[14], number);
    write32(&p[18], (uint32_t) size << 2 | mark);

    octet = (number * 31 + flow * 7 + way) | 1;

    for (i = HEAD; i < size; i++) {
        octet = octet * 1103515245 + 12345;
        p[i] = (uint8_t) (octet >> 16);
    }
}


static void
check(const uint8_t *p, size_t size, unsigned way, unsigned mark)
{
    char      *wrong;
    way_t     *w;
    uint8_t    expected[BUFFER];
    uint32_t   flow, number, told;

    flow = (size >= HEAD) ? read32(&p[10]) : FLOWS;

    if (flow >= nflows) {
        printf("%s: %zu octets of no flow\n", names[way], size);
        exit(1);
    }

    w = &flows[flow].ways[way];
    number = read32(&p[14]);
    told = read32(&p[18]);

    make(expected, way, flow, number, size, mark);

    wrong = (number != w->received) ? "order"
            : (told >> 2 != size) ? "size"
            : ((told & 3) != mark) ? "mark"
            : (memcmp(p, expected, size) != 0) ? "octets"
            : NULL;

    if (wrong) {
        printf("%s: %s: flow %u: datagram %u for %u, %zu octets for %u, "
               "mark %u for %u\n", names[way], wrong, flow, number,
               w->received, size, told >> 2, mark, told & 3);
        exit(1);
    }

    w->received++;
    received[way]++;
    under_way[way]--;
}


/* reads a message: one datagram or a train; returns 0 if there is none */

static int
receive(int fd, unsigned way)
{
    int                 segment;
    ssize_t             n;
    size_t              i, len;
    unsigned            mark;
    uint8_t             data[BUFFER];
    struct iovec        iov;
    struct msghdr       msg;
    struct cmsghdr     *cmsg;
    struct sockaddr_in  from;
    control_t           control;

    iov.iov_base = data;
    iov.iov_len = BUFFER;

    memset(&msg, 0, sizeof(struct msghdr));
    msg.msg_name = &from;
    msg.msg_namelen = sizeof(struct sockaddr_in);
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = sizeof(control_t);

    n = recvmsg(fd, &msg, MSG_DONTWAIT);

    if (n == -1) {
        if (errno == EAGAIN) {
            return 0;
        }

        die("recvmsg");
    }

    mark = 0;
    segment = 0;

    for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
        if (cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_TOS) {
            mark = *(uint8_t *) CMSG_DATA(cmsg) & 3;
        }

        if (cmsg->cmsg_level == SOL_UDP && cmsg->cmsg_type == UDP_GRO) {
            memcpy(&segment, CMSG_DATA(cmsg), sizeof(int));
        }
    }

    if (segment == 0) {
        segment = (int) n;
    }

    for (i = 0; i < (size_t) n; i += len) {
        len = (size_t) n - i;

        if (len > (size_t) segment) {
            len = (size_t) segment;
        }

        check(&data[i], len, way, mark);

        if (way == UP) {
            flows[read32(&data[i + 10])].leg = from;
        }
    }

    return 1;
}


static void
send_message(unsigned way, flow_t *flow, uint8_t *data, size_t len,
    uint16_t segment, unsigned mark)
{
    int              tos;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    control_t        control;

    iov.iov_base = data;
    iov.iov_len = len;

    memset(&msg, 0, sizeof(struct msghdr));
    memset(&control, 0, sizeof(control_t));

    if (way == DOWN) {
        msg.msg_name = &flow->leg;
        msg.msg_namelen = sizeof(struct sockaddr_in);
    }

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = CMSG_SPACE(sizeof(int));

    tos = (int) mark;
    cmsg = (struct cmsghdr *) &control;
    cmsg->cmsg_level = IPPROTO_IP;
    cmsg->cmsg_type = IP_TOS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &tos, sizeof(int));

    if (segment && segment < len) {
        cmsg = (struct cmsghdr *) ((char *) cmsg + CMSG_SPACE(sizeof(int)));
        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        memcpy(CMSG_DATA(cmsg), &segment, sizeof(uint16_t));
        msg.msg_controllen += CMSG_SPACE(sizeof(uint16_t));
    }

    if (sendmsg(way == UP ? flow->fd : server, &msg, 0) != (ssize_t) len) {
        die("sendmsg");
    }
}


/* a train of one flow: of equal sizes and one mark, the last may be less */

static void
send_train(unsigned way, unsigned index, unsigned n, int segment)
{
    size_t        size, last, len;
    unsigned      i, mark;
    flow_t       *flow;
    uint8_t       data[TRAIN * LARGE];

    flow = &flows[index];
    size = SMALL + random_below(LARGE - SMALL + 1);
    last = random_below(2) ? size : SMALL + random_below(size - SMALL + 1);
    mark = random_below(4);

    for (len = 0, i = 0; i < n; i++) {
        size_t  octets = (i + 1 < n) ? size : last;

        make(&data[len], way, index, flow->ways[way].sent++, octets, mark);

        if (!segment) {
            send_message(way, flow, &data[len], octets, 0, mark);
        }

        len += octets;
    }

    if (segment) {
        send_message(way, flow, data, len, (uint16_t) size, mark);
    }

    sent[way] += n;
    under_way[way] += n;
}


static void
wait_for_datagrams(void)
{
    int            n;
    unsigned       i;
    struct pollfd  fds[FLOWS + 1];

    for (i = 0; i < nflows; i++) {
        fds[i].fd = flows[i].fd;
        fds[i].events = POLLIN;
    }

    fds[nflows].fd = server;
    fds[nflows].events = POLLIN;

    n = poll(fds, nflows + 1, PATIENCE);

    if (n == -1) {
        die("poll");
    }

    if (n == 0) {
        printf("lost: %lu up, %lu down\n", (unsigned long) under_way[UP],
               (unsigned long) under_way[DOWN]);
        exit(1);
    }

    while (fds[nflows].revents && receive(server, UP)) { /* void */ }

    for (i = 0; i < nflows; i++) {
        while (fds[i].revents && receive(flows[i].fd, DOWN)) { /* void */ }
    }
}


static int
open_socket(unsigned local, unsigned remote, int gro)
{
    int                 fd, on, size;
    struct sockaddr_in  sin;

    fd = socket(AF_INET, SOCK_DGRAM, 0);
    on = 1;
    size = 4 * 1024 * 1024;

    memset(&sin, 0, sizeof(struct sockaddr_in));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sin.sin_port = htons((uint16_t) local);

    if (fd == -1
        || bind(fd, (struct sockaddr *) &sin, sizeof(sin)) == -1
        || setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof(int)) == -1
        || setsockopt(fd, SOL_UDP, UDP_GRO, &gro, sizeof(int)) == -1
        || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(int))
           == -1)
    {
        die("socket");
    }

    sin.sin_port = htons((uint16_t) remote);

    if (remote && connect(fd, (struct sockaddr *) &sin, sizeof(sin)) == -1) {
        die("connect");
    }

    return fd;
}


/* the server sends to a flow when it knows the leg */

static void
fill(unsigned way, uint64_t count, int segment)
{
    unsigned  n, index;

    while (under_way[way] < WINDOW && sent[way] < count) {
        index = random_below(nflows);

        if (way == DOWN && flows[index].leg.sin_port == 0) {
            return;
        }

        n = random_below(3) ? 1 + random_below(TRAIN) : 1;

        if (n > WINDOW - under_way[way]) {
            n = (unsigned) (WINDOW - under_way[way]);
        }

        if (n > count - sent[way]) {
            n = (unsigned) (count - sent[way]);
        }

        send_train(way, index, n, segment);
    }
}


int
main(int argc, char **argv)
{
    int       gro, segment;
    uint64_t  count;
    unsigned  i, relay;

    if (argc != 8) {
        fprintf(stderr, "usage: datagrams RELAY_PORT SERVER_PORT FLOWS COUNT "
                "SEGMENT GRO SEED\n");
        return 2;
    }

    relay = (unsigned) atoi(argv[1]);
    nflows = (unsigned) atoi(argv[3]);
    count = strtoull(argv[4], NULL, 10);
    segment = atoi(argv[5]);
    gro = atoi(argv[6]);
    state = strtoull(argv[7], NULL, 10) * 2654435761u + 1;

    if (nflows < 1 || nflows > FLOWS) {
        fprintf(stderr, "datagrams: FLOWS is 1 to %d\n", FLOWS);
        return 2;
    }

    server = open_socket((unsigned) atoi(argv[2]), 0, gro);

    for (i = 0; i < nflows; i++) {
        flows[i].fd = open_socket(0, relay, gro);
    }

    /* each flow is known before any is busy */

    for (i = 0; i < nflows && sent[UP] < count; i++) {
        send_train(UP, i, 1, 0);

        while (under_way[UP]) {
            wait_for_datagrams();
        }
    }

    while (received[UP] < count || received[DOWN] < count) {
        fill(UP, count, segment);
        fill(DOWN, count, segment);
        wait_for_datagrams();
    }

    printf("ok: %lu up, %lu down\n", (unsigned long) received[UP],
           (unsigned long) received[DOWN]);

    return 0;
}
