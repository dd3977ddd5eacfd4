
/*
 * The limit that the modules are measured against: a relay that does no more
 * than it must.
 *
 *     relay LISTEN-PORT SERVER-PORT SERVERS
 *     relay --to ADDRESS LISTEN-PORT SERVER-PORT
 *
 * Each client address gets a connected socket to one server, in turn.  Reads
 * are by recvmmsg() with UDP_GRO, and whatever a batch has for one destination
 * is joined into runs that UDP_SEGMENT can send: trains as they came, and
 * single datagrams.  There is no routing but a table of client addresses, no
 * timeout, no end of a flow, no ECN, no fallback.
 */


#define _GNU_SOURCE

#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>


#define MESSAGES   32            /* of one recvmmsg() */

/* not a power of two: buffers must not share the sets of the caches */

#define BUFFER     (65536 + 1472)

#define TABLE      (1 << 18)     /* slots, most of them empty */
#define EVENTS     256
#define TURN       4             /* batches of one socket at a time */
#define RCVBUF     (4 << 20)


typedef struct run_s  run_t;

typedef struct {
    struct sockaddr_in  client;
    run_t              *run;     /* in this batch, that may still grow */
    int                 fd;      /* to the server */
} flow_t;


struct run_s {
    flow_t             *flow;
    size_t              segment;
    size_t              size;
    unsigned            segments;
    unsigned            niov;
    struct iovec        iov[BENCH_SEGMENTS];
};


typedef union {
    struct cmsghdr      align;
    char                data[CMSG_SPACE(sizeof(int))];
} control_t;


static void start(int argc, char **argv);
static void die(const char *what);
static int udp_socket(void);
static void watch(int fd, flow_t *flow);
static void prepare_in(struct mmsghdr *mm, int i, int named);
static int receive(int fd, struct mmsghdr *batch);
static size_t segment_size(struct msghdr *msg, size_t len);
static flow_t *find(struct sockaddr_in *client);
static flow_t *create(flow_t **slot, struct sockaddr_in *client);
static void add(flow_t *flow, int i);
static int joins(run_t *run, size_t len, size_t segment);
static void send_runs(int to_server);
static unsigned prepare(unsigned first, int to_server);
static void from_clients(void);
static void from_server(flow_t *flow);


static int                 ep, listener, used = MESSAGES;
static unsigned            nservers, server_port, nflows, nruns;
static struct sockaddr_in  fixed;        /* the only server, if set */

static flow_t             *table[TABLE];
static char               *buffers;
static run_t               runs[MESSAGES];
static struct mmsghdr      from_client[MESSAGES], from_leg[MESSAGES];
static struct mmsghdr     *in, out[MESSAGES];
static struct iovec        in_iov[MESSAGES];
static control_t           in_control[MESSAGES], out_control[MESSAGES];
static struct sockaddr_in  names[MESSAGES];


int
main(int argc, char **argv)
{
    int                 i, n;
    struct epoll_event  events[EVENTS];

    start(argc, argv);

    for ( ;; ) {
        n = epoll_wait(ep, events, EVENTS, -1);

        if (n == -1 && errno != EINTR) {
            die("epoll_wait()");
        }

        for (i = 0; i < n; i++) {

            if (events[i].data.ptr == NULL) {
                from_clients();

            } else {
                from_server(events[i].data.ptr);
            }
        }
    }
}


static void
start(int argc, char **argv)
{
    int                 size;
    struct rlimit       limit;
    struct sockaddr_in  sin;

    if (argc == 5 && strcmp(argv[1], "--to") == 0) {
        fixed.sin_family = AF_INET;
        fixed.sin_addr.s_addr = inet_addr(argv[2]);
        fixed.sin_port = htons((uint16_t) atoi(argv[4]));
        argv += 2;

    } else if (argc == 4) {
        nservers = (unsigned) atoi(argv[3]);

    } else {
        fprintf(stderr, "usage: relay LISTEN-PORT SERVER-PORT SERVERS\n");
        exit(2);
    }

    server_port = (unsigned) atoi(argv[2]);

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);

    buffers = malloc((size_t) MESSAGES * BUFFER);
    ep = epoll_create1(0);
    listener = udp_socket();

    size = RCVBUF;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof(int));

    memset(&sin, 0, sizeof(struct sockaddr_in));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = fixed.sin_family ? 0 : htonl(INADDR_LOOPBACK);
    sin.sin_port = htons((uint16_t) atoi(argv[1]));

    if (buffers == NULL
        || bind(listener, (struct sockaddr *) &sin, sizeof(sin)) == -1)
    {
        die("start");
    }

    watch(listener, NULL);
}


static void
die(const char *what)
{
    perror(what);
    exit(1);
}


static int
udp_socket(void)
{
    int  fd, on;

    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    on = 1;

    if (fd == -1 || setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof(int)) == -1) {
        die("socket");
    }

    return fd;
}


static void
watch(int fd, flow_t *flow)
{
    struct epoll_event  event;

    event.events = EPOLLIN;
    event.data.ptr = flow;

    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == -1) {
        die("epoll_ctl()");
    }
}


static void
from_clients(void)
{
    int      i, n, turn;
    flow_t  *flow;

    for (turn = 0; turn < TURN; turn++) {
        n = receive(listener, from_client);
        flow = NULL;

        for (i = 0; i < n; i++) {

            if (flow == NULL
                || flow->client.sin_port != names[i].sin_port
                || flow->client.sin_addr.s_addr != names[i].sin_addr.s_addr)
            {
                flow = find(&names[i]);
            }

            add(flow, i);
        }

        send_runs(1);

        if (n < MESSAGES) {
            return;
        }
    }
}


static void
from_server(flow_t *flow)
{
    int  i, n, turn;

    for (turn = 0; turn < TURN; turn++) {
        n = receive(flow->fd, from_leg);

        for (i = 0; i < n; i++) {
            add(flow, i);
        }

        send_runs(0);

        if (n < MESSAGES) {
            return;
        }
    }
}


static void
prepare_in(struct mmsghdr *mm, int i, int named)
{
    struct msghdr  *msg;

    in_iov[i].iov_base = buffers + (size_t) i * BUFFER;
    in_iov[i].iov_len = 65536;

    msg = &mm[i].msg_hdr;
    msg->msg_name = named ? &names[i] : NULL;
    msg->msg_namelen = named ? sizeof(struct sockaddr_in) : 0;
    msg->msg_iov = &in_iov[i];
    msg->msg_iovlen = 1;
    msg->msg_control = &in_control[i];
    msg->msg_controllen = sizeof(control_t);
}


/* only what the last batch has used has to be prepared again */

static int
receive(int fd, struct mmsghdr *batch)
{
    int  i;

    for (i = 0; i < used; i++) {
        prepare_in(from_client, i, 1);
        prepare_in(from_leg, i, 0);
    }

    in = batch;
    used = recvmmsg(fd, in, MESSAGES, MSG_DONTWAIT, NULL);

    return used;
}


static size_t
segment_size(struct msghdr *msg, size_t len)
{
    int              size;
    struct cmsghdr  *cmsg;

    cmsg = CMSG_FIRSTHDR(msg);

    if (cmsg == NULL || cmsg->cmsg_type != UDP_GRO) {
        return len;
    }

    memcpy(&size, CMSG_DATA(cmsg), sizeof(int));

    return (size_t) size;
}


static flow_t *
find(struct sockaddr_in *client)
{
    uint64_t   key;
    flow_t   **slot;

    key = (uint64_t) client->sin_addr.s_addr << 16 | client->sin_port;
    slot = &table[(key * 0x9e3779b97f4a7c15) >> 46];

    while (*slot) {

        if ((*slot)->client.sin_port == client->sin_port
            && (*slot)->client.sin_addr.s_addr == client->sin_addr.s_addr)
        {
            return *slot;
        }

        if (++slot == table + TABLE) {
            slot = table;
        }
    }

    return create(slot, client);
}


static flow_t *
create(flow_t **slot, struct sockaddr_in *client)
{
    flow_t              *flow;
    struct sockaddr_in   to;

    flow = calloc(1, sizeof(flow_t));
    if (flow == NULL || nflows == TABLE / 2) {
        die("flow");
    }

    to = fixed.sin_family ? fixed
                          : bench_server(nflows % nservers, server_port);
    flow->client = *client;
    flow->fd = udp_socket();

    if (connect(flow->fd, (struct sockaddr *) &to, sizeof(to)) == -1) {
        die("connect()");
    }

    watch(flow->fd, flow);
    nflows++;
    *slot = flow;

    return flow;
}


/* message |i| of the batch */

static void
add(flow_t *flow, int i)
{
    size_t   len, segment;
    run_t   *run;

    len = in[i].msg_len;

    if (len == 0) {
        return;
    }

    segment = segment_size(&in[i].msg_hdr, len);
    run = flow->run;

    if (run == NULL || !joins(run, len, segment)) {
        run = &runs[nruns++];
        run->flow = flow;
        run->segment = segment;
        run->size = 0;
        run->segments = 0;
        run->niov = 0;
        flow->run = run;
    }

    run->iov[run->niov].iov_base = in_iov[i].iov_base;
    run->iov[run->niov].iov_len = len;
    run->niov++;
    run->size += len;
    run->segments += (unsigned) ((len + segment - 1) / segment);
}


/* only the last datagram of a send may be shorter than the others */

static int
joins(run_t *run, size_t len, size_t segment)
{
    return run->size % run->segment == 0
           && (segment == run->segment
               || (len == segment && len < run->segment))
           && run->segments + (len + segment - 1) / segment <= BENCH_SEGMENTS
           && run->size + len <= BENCH_PAYLOAD;
}


static void
send_runs(int to_server)
{
    int       n, sent;
    unsigned  first, count;

    for (first = 0; first < nruns; first += count) {
        count = prepare(first, to_server);

        for (sent = 0; sent < (int) count; sent += n) {
            n = sendmmsg(to_server ? runs[first].flow->fd : listener,
                         out + sent, count - (unsigned) sent, MSG_DONTWAIT);

            if (n == -1) {
                n = 1;           /* dropped, as a router does */
            }
        }
    }

    nruns = 0;
}


/* runs from |first| on that leave on one socket */

static unsigned
prepare(unsigned first, int to_server)
{
    run_t           *run;
    uint16_t         segment;
    unsigned         n;
    struct msghdr   *msg;
    struct cmsghdr  *cmsg;

    for (n = 0; first + n < nruns; n++) {
        run = &runs[first + n];

        if (run->flow != runs[first].flow) {
            break;
        }

        run->flow->run = NULL;

        msg = &out[n].msg_hdr;
        msg->msg_name = to_server ? NULL : &run->flow->client;
        msg->msg_namelen = to_server ? 0 : sizeof(struct sockaddr_in);
        msg->msg_iov = run->iov;
        msg->msg_iovlen = run->niov;
        msg->msg_control = NULL;
        msg->msg_controllen = 0;

        if (run->segments == 1) {
            continue;
        }

        segment = (uint16_t) run->segment;

        msg->msg_control = &out_control[n];
        msg->msg_controllen = CMSG_SPACE(sizeof(uint16_t));

        cmsg = CMSG_FIRSTHDR(msg);
        cmsg->cmsg_level = SOL_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        memcpy(CMSG_DATA(cmsg), &segment, sizeof(uint16_t));
    }

    return n;
}
