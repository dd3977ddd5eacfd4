
/*
 * Load shaped as QUIC, both ends of it:
 *
 *     load --relay-port P --server-port P [--servers N] [--key HEX]
 *          [--size OCTETS] [--cids N] [--no-gro] [--source N]
 *
 * Clients are connected sockets, one for each flow, that send short header
 * packets with QUIC-LB connection IDs: codepoint 0, three octets of server ID,
 * four of nonce; encrypted with --key, in plaintext without.  The servers, on
 * addresses of their own (bench.h), are one wildcard socket.  Both ends are in
 * one process, which so knows what is under way: a sender that saturates sends
 * as long as the receiver has got all but a window, and nothing is lost to
 * full buffers.
 *
 * Commands are read from standard input, each answered by one line:
 *
 *     open N                      N more flows; each server answers, and the
 *                                 client sends again
 *     up PACKETS RATE TRAIN GSO [PID]
 *                                 the flows in turn send trains to the servers
 *     down PACKETS RATE TRAIN GSO [PID]
 *                                 the other way
 *     unknown PACKETS RATE TRAIN GSO
 *                                 as up, from addresses without a flow and
 *                                 with connection IDs of no server
 *
 * PID is the relay's process.  It is stopped while a window is sent and goes on
 * until it has relayed all of it, again and again: a load that shares the
 * machine with a relay may not be fast enough to keep its queue from running
 * empty, and then it is the load's speed that is measured.
 *
 * RATE is in packets per second, 0 for saturation.  TRAIN is the number of
 * packets of one flow in succession, GSO is 1 for one UDP_SEGMENT send.
 */


#define _GNU_SOURCE

#include "load.h"
#include "quic_lb_cid.h"
#include "quic_lb_error.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>


#define SERVER_ID_LEN  3
#define NONCE_LEN      4
#define CID_LEN        (1 + SERVER_ID_LEN + NONCE_LEN)
#define CIDS_MAX       16

/* a packet: first octet, DCID, filler, then what the peer looks at */

#define MARK_AT        32
#define MARK           "QLBB"
#define PACKET_MIN     64
#define PACKET_MAX     1472

#define OPEN           1
#define DATA           2

/*
 * Datagrams under way.  The listening socket of the relay has 8 MiB, with
 * 2304 octets for a datagram of 1200; its others have what is the default,
 * 208 KiB.
 */

#define WINDOW         2048
#define HELD           1024              /* for a relay that is stopped */
#define FLOW_WINDOW    64
#define OPEN_WINDOW    512               /* flows without an answer */

#define RCVBUF_SERVER  (256 << 20)
#define RCVBUF_CLIENT  (4 << 20)

#define UNKNOWN        1000              /* addresses */
#define NO_SERVER      0xffffff          /* has this ID */
#define PER_ADDRESS    10000             /* ports of one source address */
#define EVENTS         256
#define DRAIN_EVERY    8                 /* trains */

#define MS             1000000ull        /* ns */
#define STALLED        (500 * MS)        /* what is not here by then is lost */
#define QUIET          (10 * MS)         /* before a command */
#define PATIENCE       (20000 * MS)


typedef struct {
    int                 fd;
    unsigned            server;
    unsigned            inflight;        /* from the server */
    struct sockaddr_in  peer;            /* of the server: the relay */
    struct in_addr      local;
    uint8_t             opened;          /* by the server */
    uint8_t             answered;
    uint8_t             cids[CIDS_MAX][CID_LEN];
} flow_t;


typedef struct {
    uint64_t            packets;
    uint64_t            rate;
    unsigned            train;
    int                 gso;
    pid_t               relay;           /* to be stopped, 0: none */
    uint64_t            sent;
    uint64_t            received;
    uint64_t            lost;            /* given up */
    uint64_t            progress;        /* time of it */
} job_t;


static void options(int argc, char **argv);
static void read_key(const char *hex);
static void server_start(void);
static void flow_init(flow_t *flow, unsigned server_id);
static void flow_cid(flow_t *flow, unsigned k, unsigned server_id);
static void open_flows(unsigned n);
static unsigned open_all(unsigned first);
static unsigned open_wait(unsigned n);
static void open_send(unsigned index);
static unsigned open_receive(void);
static void open_server(load_message_t *m);
static void mark(uint8_t *data, unsigned kind, unsigned index);
static void packets(uint8_t *data, unsigned n, const uint8_t *cid);
static void run(job_t *job, unsigned (*step)(job_t *, unsigned),
    void (*drain)(job_t *));
static void hold(job_t *job, int signal);
static void wait_due(job_t *job, uint64_t start, void (*drain)(job_t *));
static unsigned under_way(job_t *job);
static unsigned up(job_t *job, unsigned n);
static unsigned down(job_t *job, unsigned n);
static unsigned unknown(job_t *job, unsigned n);
static void drain_up(job_t *job);
static void drain_down(job_t *job);
static void drain_unknown(job_t *job);
static void settle(void);
static void command(char *line);


static int                 ep, server_fd, gro = 1;
static unsigned            relay_port, server_port, nservers = 1, ncids = 1;
static unsigned            source = 1;
static size_t              size = 1200;
static quic_lb_cid_conf_t  conf;
static uint8_t             key[QUIC_LB_KEY_LEN], *key_given;

static flow_t             *flows, strangers[UNKNOWN];
static unsigned            nflows, flow_max, nsockets, turn, misrouted;
static uint32_t            nonce;

static uint8_t             buffer[BENCH_SEGMENTS * PACKET_MAX];
static load_message_t      messages[LOAD_MESSAGES];


int
main(int argc, char **argv)
{
    char           line[128];
    struct rlimit  limit;

    options(argc, argv);

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);

    flow_max = (unsigned) limit.rlim_max - UNKNOWN - 16;
    flows = calloc(flow_max, sizeof(flow_t));
    ep = epoll_create1(0);

    if (flows == NULL || ep == -1
        || quic_lb_cid_init(&conf, 0, SERVER_ID_LEN, NONCE_LEN, key_given, 0)
           != QUIC_LB_OK)
    {
        load_die("start");
    }

    memset(buffer, 0x5a, sizeof(buffer));
    server_start();

    printf("ready\n");
    fflush(stdout);

    while (fgets(line, sizeof(line), stdin)) {
        command(line);
        fflush(stdout);
    }

    quic_lb_cid_cleanup(&conf);

    return 0;
}


static void
options(int argc, char **argv)
{
    int                         c;
    static const struct option  longs[] = {
        { "relay-port", required_argument, NULL, 'r' },
        { "server-port", required_argument, NULL, 'p' },
        { "servers", required_argument, NULL, 's' },
        { "key", required_argument, NULL, 'k' },
        { "size", required_argument, NULL, 'z' },
        { "cids", required_argument, NULL, 'c' },
        { "source", required_argument, NULL, 'a' },
        { "no-gro", no_argument, &gro, 0 },
        { NULL, 0, NULL, 0 }
    };

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'r': relay_port = (unsigned) atoi(optarg); break;
        case 'p': server_port = (unsigned) atoi(optarg); break;
        case 's': nservers = (unsigned) atoi(optarg); break;
        case 'z': size = (size_t) atoi(optarg); break;
        case 'c': ncids = (unsigned) atoi(optarg); break;
        case 'a': source = (unsigned) atoi(optarg); break;
        case 'k': read_key(optarg); break;
        case 0: break;
        default: exit(2);
        }
    }

    if (relay_port == 0 || server_port == 0 || nservers == 0
        || size < PACKET_MIN || size > PACKET_MAX
        || ncids == 0 || ncids > CIDS_MAX)
    {
        fprintf(stderr, "load: wrong options\n");
        exit(2);
    }
}


static void
read_key(const char *hex)
{
    unsigned  i, octet;

    for (i = 0; i < QUIC_LB_KEY_LEN; i++) {

        if (sscanf(hex + 2 * i, "%2x", &octet) != 1) {
            fprintf(stderr, "load: wrong key\n");
            exit(2);
        }

        key[i] = (uint8_t) octet;
    }

    key_given = key;
}


static void
server_start(void)
{
    struct sockaddr_in  sin;

    memset(&sin, 0, sizeof(struct sockaddr_in));
    sin.sin_family = AF_INET;
    sin.sin_port = htons((uint16_t) server_port);

    server_fd = load_socket(&sin, RCVBUF_SERVER, gro);
    load_tell_local(server_fd);
}


/* a client socket; |server_id| as it goes into its connection IDs */

static void
flow_init(flow_t *flow, unsigned server_id)
{
    unsigned             k;
    struct epoll_event   event;
    struct sockaddr_in   sin;

    memset(&sin, 0, sizeof(struct sockaddr_in));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(0x7f000001 + source * 256
                                + nsockets++ / PER_ADDRESS);

    flow->fd = load_socket(&sin, RCVBUF_CLIENT, gro);

    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sin.sin_port = htons((uint16_t) relay_port);

    event.events = EPOLLIN;
    event.data.ptr = flow;

    if (connect(flow->fd, (struct sockaddr *) &sin, sizeof(sin)) == -1
        || epoll_ctl(ep, EPOLL_CTL_ADD, flow->fd, &event) == -1)
    {
        load_die("connect()");
    }

    for (k = 0; k < ncids; k++) {
        flow_cid(flow, k, server_id);
    }
}


static void
flow_cid(flow_t *flow, unsigned k, unsigned server_id)
{
    uint8_t  id[SERVER_ID_LEN], n[NONCE_LEN];

    id[0] = (uint8_t) (server_id >> 16);
    id[1] = (uint8_t) (server_id >> 8);
    id[2] = (uint8_t) server_id;

    nonce++;
    memcpy(n, &nonce, NONCE_LEN);

    if (quic_lb_cid_encode(&conf, flow->cids[k], (uint8_t) nonce, id, n)
        != QUIC_LB_OK)
    {
        load_die("connection ID");
    }
}


/*
 * The first packet of a flow makes it in the relay; the server's answer and
 * one more packet make it an established one.  Those without an answer are
 * sent again.
 */

static void
open_flows(unsigned n)
{
    unsigned  first, missing;
    uint64_t  deadline;

    if (nflows + n > flow_max) {
        printf("failed: the limit of open files\n");
        return;
    }

    first = nflows;

    while (nflows < first + n) {
        flows[nflows].server = nflows % nservers;
        flow_init(&flows[nflows], nflows % nservers + 1);
        nflows++;
    }

    missing = n;
    deadline = load_now() + PATIENCE;

    while (missing > 0) {
        missing -= open_all(first);

        if (load_now() > deadline) {
            printf("failed: %u of %u flows got no answer\n", missing, n);
            return;
        }
    }

    printf("ok flows=%u misrouted=%u\n", nflows, misrouted);
}


/* returns how many flows have got their answer */

static unsigned
open_all(unsigned first)
{
    unsigned  i, sent, answers;

    sent = 0;
    answers = 0;

    for (i = first; i < nflows; i++) {

        if (flows[i].answered) {
            continue;
        }

        open_send(i);
        sent++;

        if (sent >= answers + OPEN_WINDOW) {
            answers += open_wait(1);
        }
    }

    return answers + open_wait(sent > answers ? sent - answers : 0);
}


/* waits, not for ever, for |n| answers or more; returns their number */

static unsigned
open_wait(unsigned n)
{
    unsigned  got, answers;
    uint64_t  progress;

    answers = 0;
    progress = load_now();

    while (answers < n && load_now() < progress + STALLED) {
        got = open_receive();

        if (got) {
            answers += got;
            progress = load_now();
        }
    }

    return answers;
}


static void
open_send(unsigned index)
{
    load_path_t  path;

    memset(&path, 0, sizeof(load_path_t));
    path.fd = flows[index].fd;

    packets(buffer, 1, flows[index].cids[0]);
    mark(buffer, OPEN, index);
    (void) load_send(&path, buffer, size, 1, 0);
    mark(buffer, DATA, 0);
}


/* returns how many more flows have got their answer */

static unsigned
open_receive(void)
{
    int                  i, k;
    flow_t              *flow;
    unsigned             n, j, count;
    load_path_t          path;
    struct epoll_event   events[EVENTS];

    while ((n = load_receive(server_fd, messages)) > 0) {
        for (j = 0; j < n; j++) {
            open_server(&messages[j]);
        }
    }

    count = 0;
    k = epoll_wait(ep, events, EVENTS, 0);

    for (i = 0; i < k; i++) {
        flow = events[i].data.ptr;

        if (load_receive(flow->fd, messages) == 0 || flow->answered) {
            continue;
        }

        flow->answered = 1;
        count++;

        memset(&path, 0, sizeof(load_path_t));
        path.fd = flow->fd;
        packets(buffer, 1, flow->cids[0]);
        (void) load_send(&path, buffer, size, 1, 0);
    }

    return count;
}


static void
open_server(load_message_t *m)
{
    flow_t              *flow;
    uint32_t             index;
    load_path_t          path;
    struct sockaddr_in   sin;

    if (memcmp(m->head + MARK_AT, MARK, 4) != 0
        || m->head[MARK_AT + 4] != OPEN)
    {
        return;
    }

    memcpy(&index, m->head + MARK_AT + 5, sizeof(uint32_t));

    if (index >= nflows) {
        return;
    }

    flow = &flows[index];
    flow->peer = m->from;
    flow->local = m->to;

    sin = bench_server(flow->server, server_port);

    if (!flow->opened && sin.sin_addr.s_addr != m->to.s_addr) {
        misrouted++;
    }

    flow->opened = 1;

    path.fd = server_fd;
    path.to = &flow->peer;
    path.from = flow->local;

    packets(buffer, 1, (const uint8_t *) "\1client!");
    (void) load_send(&path, buffer, size, 1, 0);
}


static void
mark(uint8_t *data, unsigned kind, unsigned index)
{
    memcpy(data + MARK_AT, MARK, 4);
    data[MARK_AT + 4] = (uint8_t) kind;
    memcpy(data + MARK_AT + 5, &index, sizeof(uint32_t));
}


/* short headers with the connection ID |cid| */

static void
packets(uint8_t *data, unsigned n, const uint8_t *cid)
{
    unsigned  i;

    for (i = 0; i < n; i++, data += size) {
        data[0] = 0x41;
        memcpy(data + 1, cid, CID_LEN);
    }
}


static void
run(job_t *job, unsigned (*step)(job_t *, unsigned), void (*drain)(job_t *))
{
    unsigned  n, trains;
    uint64_t  start;

    start = load_now();
    job->progress = start;
    trains = 0;

    while (job->sent < job->packets) {
        n = job->train;

        if (n > job->packets - job->sent) {
            n = (unsigned) (job->packets - job->sent);
        }

        if (job->rate) {
            wait_due(job, start, drain);
        }

        if (job->relay && under_way(job) == 0) {
            hold(job, SIGSTOP);
        }

        n = step(job, n);
        job->sent += n;

        if (job->relay && (n == 0 || job->sent == job->packets)) {
            hold(job, SIGCONT);

            while (under_way(job)) {
                drain(job);
            }

            continue;
        }

        if (n == 0 || ++trains % DRAIN_EVERY == 0) {
            drain(job);
        }
    }

    while (under_way(job)) {
        drain(job);
    }

    printf("ok sent=%llu received=%llu seconds=%.6f\n",
           (unsigned long long) job->sent, (unsigned long long) job->received,
           (double) (load_now() - start) / 1e9);
}


static void
hold(job_t *job, int signal)
{
    if (kill(job->relay, signal) == -1) {
        load_die("kill");
    }

    job->progress = load_now();
}


static void
wait_due(job_t *job, uint64_t start, void (*drain)(job_t *))
{
    uint64_t  due;

    due = start + (uint64_t) ((double) job->sent * 1e9 / (double) job->rate);

    while (load_now() < due) {
        drain(job);
    }
}


/* something may be late after it has been given up */

static unsigned
under_way(job_t *job)
{
    uint64_t  done;

    done = job->received + job->lost;

    return done < job->sent ? (unsigned) (job->sent - done) : 0;
}


/* a step sends |n| datagrams of the next flow; 0: the window is full */

static unsigned
up(job_t *job, unsigned n)
{
    flow_t       *flow;
    load_path_t   path;

    if (under_way(job) + n > (job->relay ? HELD : WINDOW)) {
        return 0;
    }

    flow = &flows[turn++ % nflows];

    memset(&path, 0, sizeof(load_path_t));
    path.fd = flow->fd;

    packets(buffer, n, flow->cids[turn / nflows % ncids]);

    return load_send(&path, buffer, size, n, job->gso);
}


static unsigned
down(job_t *job, unsigned n)
{
    flow_t       *flow;
    unsigned      i;
    load_path_t   path;

    if (under_way(job) + n > (job->relay ? HELD : WINDOW)) {
        return 0;
    }

    for (i = 0; i < nflows; i++) {
        flow = &flows[turn++ % nflows];

        if (flow->inflight + n <= FLOW_WINDOW) {
            break;
        }
    }

    if (i == nflows) {
        return 0;
    }

    path.fd = server_fd;
    path.to = &flow->peer;
    path.from = flow->local;

    packets(buffer, n, (const uint8_t *) "\1client!");

    n = load_send(&path, buffer, size, n, job->gso);
    flow->inflight += n;

    return n;
}


static unsigned
unknown(job_t *job, unsigned n)
{
    flow_t       *flow;
    unsigned      i;
    load_path_t   path;

    if (strangers[0].fd == 0) {
        for (i = 0; i < UNKNOWN; i++) {
            flow_init(&strangers[i], NO_SERVER);
        }
    }

    flow = &strangers[turn++ % UNKNOWN];

    memset(&path, 0, sizeof(load_path_t));
    path.fd = flow->fd;

    packets(buffer, n, flow->cids[0]);

    return load_send(&path, buffer, size, n, job->gso);
}


static void
drain_up(job_t *job)
{
    unsigned  i, n;
    uint64_t  now;

    n = load_receive(server_fd, messages);
    now = load_now();

    for (i = 0; i < n; i++) {
        job->received += messages[i].datagrams;
        job->progress = now;
    }

    if (now - job->progress > STALLED) {
        job->lost = job->sent - job->received;
        job->progress = now;
    }
}


static void
drain_down(job_t *job)
{
    int                  k;
    flow_t              *flow;
    unsigned             i, n;
    uint64_t             now;
    struct epoll_event   events[EVENTS];

    k = epoll_wait(ep, events, EVENTS, 0);
    now = load_now();

    while (k-- > 0) {
        flow = events[k].data.ptr;
        n = load_receive(flow->fd, messages);

        for (i = 0; i < n; i++) {
            job->received += messages[i].datagrams;
            job->progress = now;

            flow->inflight -= messages[i].datagrams < flow->inflight
                              ? messages[i].datagrams : flow->inflight;
        }
    }

    if (now - job->progress > STALLED) {
        job->lost = job->sent - job->received;
        job->progress = now;

        for (i = 0; i < nflows; i++) {
            flows[i].inflight = 0;
        }
    }
}


/* nobody gets them */

static void
drain_unknown(job_t *job)
{
    job->lost = job->sent;
}


/* what is left of the last command does not count for the next one */

static void
settle(void)
{
    job_t     job;
    uint64_t  quiet;

    memset(&job, 0, sizeof(job_t));
    quiet = load_now() + QUIET;

    while (load_now() < quiet) {
        job.progress = load_now();

        drain_up(&job);
        drain_down(&job);

        if (job.received) {
            job.received = 0;
            quiet = load_now() + QUIET;
        }
    }
}


static void
command(char *line)
{
    int                 gso, found, relay;
    char                verb[16];
    job_t               job;
    unsigned            n, train;
    unsigned long long  packets, rate;

    if (sscanf(line, "open %u", &n) == 1) {
        open_flows(n);
        return;
    }

    relay = 0;

    found = sscanf(line, "%15s %llu %llu %u %d %d", verb, &packets, &rate,
                   &train, &gso, &relay);

    if (found < 5 || train == 0 || train > BENCH_SEGMENTS
        || train * size > BENCH_PAYLOAD)
    {
        printf("failed: %s", line);
        return;
    }

    settle();

    memset(&job, 0, sizeof(job_t));
    job.packets = packets;
    job.rate = rate;
    job.train = train;
    job.gso = gso;
    job.relay = relay;

    if (strcmp(verb, "up") == 0) {
        run(&job, up, drain_up);

    } else if (strcmp(verb, "down") == 0) {
        run(&job, down, drain_down);

    } else if (strcmp(verb, "unknown") == 0) {
        run(&job, unknown, drain_unknown);

    } else {
        printf("failed: %s", line);
    }
}
