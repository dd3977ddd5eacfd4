
/*
 * Sends datagrams from random source addresses, as a flood of spoofed Initials
 * does.
 *
 *     spoof ADDRESS PORT RATE SECONDS [KIND ...] < DATAGRAMS
 *
 * Each SIZE octets of the standard input are an Initial of a client whose DCID
 * has 8 octets.  RATE of them a second leave from 10.128.0.0/9, chosen at
 * random, every second one with another DCID, which makes it garbage to a
 * server.  Needs root, and a way back that leads nowhere.  Goes on for SECONDS
 * at least, and until there is a SIGTERM, then prints the number of datagrams
 * sent.
 *
 * With a KIND each address sends twice, 50 ms apart, as if it had been
 * answered; the kinds take turns:
 *
 *     initial     one of the DATAGRAMS, with a DCID of its own if it is odd
 *     version     a version that nobody knows
 *     short       a short header that names the server 0x0a of codepoint 0
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
#define PAUSE     0.05            /* s until it comes again */
#define SHORT     60


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


static void
tell(int signo)
{
    (void) signo;
    told = 1;
}


/* xorshift64 */

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


/* the address, and all that is random, follow from |number| */

static size_t
make(packet_t *p, unsigned n, struct sockaddr_in *to, uint64_t number,
    const char *kind)
{
    size_t    size;
    uint32_t  garbage;

    size = SIZE;

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
    memcpy(p->data, pool[random32() % n], SIZE);
    garbage = random32();

    if (strcmp(kind, "version") == 0) {
        memcpy(&p->data[1], "\x1a\x2a\x3a\x4a", 4);
        memcpy(&p->data[DCID], &garbage, sizeof(garbage));

    } else if (strcmp(kind, "short") == 0) {
        memcpy(p->data, "\x40\x08\x0a", 3);
        memcpy(&p->data[3], &garbage, sizeof(garbage));
        size = SHORT;

    } else if (number & 1) {
        memcpy(&p->data[DCID], &garbage, sizeof(garbage));
    }

    p->udp.len = htons((uint16_t) (sizeof(struct udphdr) + size));

    return offsetof(packet_t, data) + size;
}


/* the datagram after |sent| others: a new address and a former one in turn */

static size_t
make_kind(packet_t *p, unsigned n, struct sockaddr_in *to, uint64_t sent,
    double rate, char **kinds, int nkinds)
{
    uint64_t  number, lag;

    number = sent / 2;
    lag = (uint64_t) (rate / 2 * PAUSE);

    if (sent & 1) {
        number = (number >= lag) ? number - lag : 0;
    }

    state = (number + 1) * 0x9e3779b97f4a7c15u;
    (void) random32();

    return make(p, n, to, number / (uint64_t) nkinds,
                kinds[number % (uint64_t) nkinds]);
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

    if (argc < 5) {
        fprintf(stderr, "usage: spoof ADDRESS PORT RATE SECONDS "
                "[KIND ...]\n");
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
            iov[i].iov_len = (argc == 5)
                             ? make(&packets[i], npool, &to,
                                    sent + (uint64_t) i, "initial")
                             : make_kind(&packets[i], npool, &to,
                                         sent + (uint64_t) i, rate, &argv[5],
                                         argc - 5);
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
