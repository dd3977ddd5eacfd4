
/*
 * Clients and servers of all kinds around a balancer, and a resolver, for a
 * stateful fuzz of its datapath.
 *
 *     traffic SEED RATE LB_KEY SECRET DNS_PORT SERVER_PORT... -- LISTEN...
 *
 * LB_KEY is in hexadecimal, SECRET that of "quic_host_key", a LISTEN is
 * ADDRESS/PORT.  The n-th SERVER_PORT is of the server with the ID n, from 1.
 * Clients at many addresses of 127/8 and at ::1 act about RATE times a second,
 * mostly by one datagram.  Servers tell the truth, lie, are silent, or have no
 * socket; the resolver does likewise.  Needs root, for a source port of 0.
 *
 * Each line of the standard input is another RATE, answered by itself.  Ends
 * with the standard input, and prints what it has sent and seen.
 */


#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "packets.h"


#define CLIENTS   64
#define SERVERS   32
#define LISTENS   32
#define KNOWN     4               /* server's IDs that a client remembers */
#define PEERS     16              /* addresses that a server remembers */
#define OLD       64              /* datagrams that may be sent again */
#define TRAIN     64
#define BURST     32              /* actions before sockets are read */
#define BUFFER    65536

#ifndef UDP_SEGMENT
#define UDP_SEGMENT  103
#endif

/* Linux: past the system's limit */
#define ROOM      (1024 * 1024)


typedef union {
    struct sockaddr       sa;
    struct sockaddr_in    sin;
    struct sockaddr_in6   sin6;
} address_t;


typedef struct {
    int                   fd;
    address_t             self;
    address_t             to;
    unsigned              nknown;
    cid_t                 known[KNOWN];
    connection_t          conn;
} client_t;


typedef enum {
    HONEST = 0,                   /* its own ID, or none that names anybody */
    FOREIGN,                      /* that of another server */
    ECHO,                         /* the client's */
    SAME,                         /* one for all */
    ANY,                          /* of any length and version */
    RETRIES,
    NEGOTIATES,
    RESETS,
    TRAINS,
    GARBAGE,
    SILENT,
    CLOSED,
    MODES
} mode_e;


typedef struct {
    int                   fd;
    unsigned              id;
    unsigned              left;   /* datagrams until it changes its mode */
    mode_e                mode;
    address_t             self;
    unsigned              npeers;
    address_t             peers[PEERS];
} server_t;


typedef struct {
    size_t                len;
    uint8_t               data[MTU];
} datagram_t;


static int         raw, dns;
static double      rate;
static unsigned    nservers, nlistens, nold;
static uint64_t    sent, received, answered, replies, asked;
static client_t    clients[CLIENTS];
static server_t    servers[SERVERS];
static address_t   listens[LISTENS];
static datagram_t  old[OLD];

static const char  *names[] = {
    "a.example.com", "b.example.com", "none.example.com", "slow.example.com",
    "address.example.com", "plain.example.com", "x", "not a name", ""
};


static void
die(const char *what)
{
    perror(what);
    exit(2);
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


/* sockets */

static socklen_t
address_len(const address_t *a)
{
    return a->sa.sa_family == AF_INET ? sizeof(a->sin) : sizeof(a->sin6);
}


static int
udp_open(address_t *self)
{
    int        fd, size;
    socklen_t  len;

    fd = socket(self->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (fd == -1) {
        die("socket");
    }

    size = ROOM;
    (void) setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));

    if (bind(fd, &self->sa, address_len(self)) == -1) {
        close(fd);
        return -1;
    }

    len = sizeof(*self);

    if (getsockname(fd, &self->sa, &len) == -1) {
        die("getsockname");
    }

    return fd;
}


static void
loopback(address_t *a, int family, unsigned port)
{
    memset(a, 0, sizeof(*a));
    a->sa.sa_family = (sa_family_t) family;

    if (family == AF_INET) {
        a->sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        a->sin.sin_port = htons((uint16_t) port);

    } else {
        a->sin6.sin6_addr = in6addr_loopback;
        a->sin6.sin6_port = htons((uint16_t) port);
    }
}


/* datagrams that leave in one call: a train if there is a |segment| */

static int
udp_send(int fd, const address_t *to, uint8_t *data, size_t len,
    size_t segment)
{
    int              tos;
    uint16_t         size;
    address_t        peer;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;
    union {
        struct cmsghdr  align;
        char            data[CMSG_SPACE(sizeof(uint16_t))];
    } control;

    if (fd == -1) {
        return 0;
    }

    tos = (int) random_below(4);

    if (to->sa.sa_family == AF_INET) {
        (void) setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));

    } else {
        (void) setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
    }

    peer = *to;
    iov.iov_base = data;
    iov.iov_len = len;

    memset(&msg, 0, sizeof(msg));
    msg.msg_name = &peer;
    msg.msg_namelen = address_len(to);
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (segment && segment < len) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control.data);

        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = IPPROTO_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        size = (uint16_t) segment;
        memcpy(CMSG_DATA(cmsg), &size, sizeof(size));
    }

    /* an ICMP error of an earlier datagram ends the first try */

    if (sendmsg(fd, &msg, 0) == -1 && sendmsg(fd, &msg, 0) == -1) {
        return 0;
    }

    return segment ? (int) ((len + segment - 1) / segment) : 1;
}


/* clients */

static void
client_open(client_t *c, const address_t *self)
{
    int  i;

    if (c->fd != -1) {
        close(c->fd);
        c->fd = -1;
    }

    for (i = 0; i < 100 && c->fd == -1; i++) {

        if (self && i == 0) {
            c->self = *self;

        } else {
            loopback(&c->self, c->to.sa.sa_family, 0);

            if (c->to.sa.sa_family == AF_INET) {
                c->self.sin.sin_addr.s_addr =
                    htonl(0x7f010000 | (1 + random_below(one_in(2) ? 4
                                                                   : 60000)));
            }
        }

        c->fd = udp_open(&c->self);
    }

    if (c->fd == -1) {
        die("bind of a client");
    }
}


static void
client_begin(client_t *c)
{
    connection_begin(&c->conn, names[random_below(sizeof(names)
                                                  / sizeof(names[0]))],
                     one_in(3) ? 1500 + random_below(2500) : 0);
}


static void
client_new(client_t *c)
{
    c->to = listens[random_below(nlistens)];
    c->nknown = 0;
    client_open(c, NULL);
    client_begin(c);
}


static void
remember(const uint8_t *data, size_t len)
{
    datagram_t  *d;

    d = &old[nold++ % OLD];
    d->len = len > MTU ? MTU : len;
    memcpy(d->data, data, d->len);
}


static void
client_send(client_t *c, uint8_t *data, size_t len)
{
    remember(data, len);
    sent += (uint64_t) udp_send(c->fd, &c->to, data, len, 0);
}


static void
any_cid(client_t *c, cid_t *cid)
{
    switch (random_below(7)) {

    case 0:
        cid_of_server(cid, 1 + random_below(nservers + 2));
        return;

    case 1:
        cid_random(cid, random_below(21));
        return;

    case 2:
        *cid = c->conn.dcid;
        return;

    case 3:
        *cid = clients[random_below(CLIENTS)].conn.dcid;
        return;

    case 4:
        c = &clients[random_below(CLIENTS)];
        break;

    default:
        break;
    }

    if (c->nknown) {
        *cid = c->known[random_below(c->nknown)];

    } else {
        cid_of_server(cid, 1 + random_below(nservers));
    }
}


/* RFC 9000, 17.2.2: an Initial with a token, right or wrong */

static void
client_token(client_t *c)
{
    size_t     n;
    uint8_t    text[18], *p;
    cid_t      scid;
    client_t  *other;

    other = &clients[random_below(CLIENTS)];

    switch (random_below(5)) {

    case 0:
        c->conn.token_len = random_below(TOKEN_MAX);
        random_octets(c->conn.token, c->conn.token_len);
        break;

    case 1:
        c->conn.token_len = other->conn.token_len;
        memcpy(c->conn.token, other->conn.token, other->conn.token_len);
        break;

    case 2:
        if (c->conn.token_len) {
            c->conn.token[random_below((uint32_t) c->conn.token_len)] ^= 1;
        }

        break;

    default:
        p = text;

        if (c->self.sa.sa_family == AF_INET) {
            memcpy(p, &c->self.sin.sin_addr, 4);
            memcpy(p + 4, &c->self.sin.sin_port, 2);
            n = 6;

        } else {
            memcpy(p, &c->self.sin6.sin6_addr, 16);
            memcpy(p + 16, &c->self.sin6.sin6_port, 2);
            n = 18;
        }

        cid_random(&scid, random_below(21));
        c->conn.token_len = token_make(c->conn.token, text, n, &c->conn.dcid,
                                       &scid);
        c->conn.dcid = scid;
        c->conn.keys = scid;
    }
}


/* any datagram of less than two MTU; returns its length */

static size_t
any_datagram(client_t *c, uint8_t *out)
{
    size_t    len;
    cid_t     dcid, scid;
    uint32_t  version;

    any_cid(c, &dcid);
    scid = c->conn.scid;

    switch (random_below(12)) {

    case 0:
    case 1:
        return packet_initial(&c->conn, out);

    case 2:
        /* Initial and 0-RTT, or Handshake, in one datagram */

        len = packet_long(out, 1 + random_below(2), c->conn.version, &dcid,
                          &scid, random_below(300));

        return len + packet_initial(&c->conn, out + len);

    case 3:
        return packet_long(out, 2, c->conn.version, &dcid, &scid,
                           random_below(1200));

    case 4:
        return packet_long(out, 1, c->conn.version, &dcid, &scid,
                           random_below(1200));

    case 5:
        version = one_in(2) ? 0x0a0a0a0a | random_below(0xffffffff) : 2;
        cid_random(&dcid, random_below(one_in(4) ? 256 : 21));
        cid_random(&scid, random_below(one_in(4) ? 256 : 21));
        return packet_long(out, random_below(4), version, &dcid, &scid,
                           one_in(2) ? 1200 : random_below(200));

    case 6:
        return one_in(2) ? packet_retry(out, c->conn.version, &dcid, &scid)
                         : packet_negotiation(out, &dcid, &scid);

    case 7:
        len = random_below(100);
        random_octets(out, len);
        return len;

    case 8:
        if (nold == 0) {
            return 0;
        }

        len = random_below(nold < OLD ? nold : OLD);
        memcpy(out, old[len].data, old[len].len);
        len = old[len].len;

        if (len && one_in(2)) {
            out[random_below((uint32_t) (one_in(2) ? len : 1 + len / 20))]
                ^= 1 << random_below(8);
        }

        return one_in(4) ? random_below((uint32_t) len + 1) : len;

    default:
        return packet_short(out, &dcid, random_below(one_in(2) ? 40 : 1200));
    }
}


static void
client_train(client_t *c)
{
    size_t    len, size, at;
    uint8_t   one[2 * MTU];
    unsigned  i, n;

    static uint8_t  all[TRAIN * MTU];

    size = 1 + random_below(one_in(2) ? 100 : 1400);
    n = 2 + random_below(TRAIN - 1);

    if (n * size > 65000) {
        n = (unsigned) (65000 / size);
    }

    at = 0;

    /* a cut packet is malformed, or shorter than it says */

    for (i = 0; i < n; i++) {
        len = any_datagram(c, one);

        if (len < size) {
            random_octets(one + len, size - len);
        }

        memcpy(all + at, one, size);
        at += size;
    }

    at -= random_below((uint32_t) size);
    sent += (uint64_t) udp_send(c->fd, &c->to, all, at, size);
}


/* of equal size, as those of a ClientHello are */

static void
client_hello_train(client_t *c)
{
    size_t    at, len, size;
    uint8_t   all[4 * MTU];
    unsigned  i;

    size = 0;
    at = 0;

    for (i = 0; i < 4 && (i == 0 || c->conn.hello_sent < c->conn.hello_len);
         i++)
    {
        len = packet_initial(&c->conn, all + at);

        if (size && len > size) {
            break;
        }

        at += len;

        if (size == 0) {
            size = len;

        } else if (len < size) {
            break;
        }
    }

    sent += (uint64_t) udp_send(c->fd, &c->to, all, at, size);
}


static void
client_spoof(client_t *c)
{
    size_t    len;
    uint8_t   packet[sizeof(struct iphdr) + sizeof(struct udphdr) + 2 * MTU];
    struct iphdr   ip;
    struct udphdr  udp;

    if (c->to.sa.sa_family != AF_INET) {
        return;
    }

    len = any_datagram(c, packet + sizeof(ip) + sizeof(udp));

    memset(&ip, 0, sizeof(ip));
    ip.version = 4;
    ip.ihl = 5;
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.saddr = htonl(0x7f020000 | random_below(65536));
    ip.daddr = c->to.sin.sin_addr.s_addr;

    memset(&udp, 0, sizeof(udp));
    udp.source = htons((uint16_t) (one_in(4) ? 0 : random_below(65536)));
    udp.dest = c->to.sin.sin_port;
    udp.len = htons((uint16_t) (sizeof(udp) + len));

    memcpy(packet, &ip, sizeof(ip));
    memcpy(packet + sizeof(ip), &udp, sizeof(udp));

    if (sendto(raw, packet, sizeof(ip) + sizeof(udp) + len, 0, &c->to.sa,
               sizeof(c->to.sin))
        != -1)
    {
        sent++;
    }
}


static void
client_act(client_t *c)
{
    size_t   len;
    cid_t    scid;
    uint8_t  data[2 * MTU];

    static uint8_t  large[65507];

    switch (random_below(24)) {

    case 0:
        client_new(c);
        break;

    case 1:
        /* another connection of the address, perhaps with an equal SCID */

        scid = c->conn.scid;
        client_begin(c);

        if (one_in(2)) {
            c->conn.scid = scid;
        }

        break;

    case 2:
        /* a new address of the same connection, or the old one again */

        client_open(c, one_in(2) ? &c->self : NULL);
        break;

    case 3:
        client_token(c);
        break;

    case 4:
        client_train(c);
        return;

    case 5:
        client_hello_train(c);
        return;

    case 6:
    case 7:
        client_spoof(c);
        return;

    case 8:
        if (one_in(8)) {
            random_octets(large, 64);
            sent += (uint64_t) udp_send(c->fd, &c->to, large,
                                        random_below(sizeof(large)), 0);
            return;
        }

        break;

    case 9:
        sent += (uint64_t) udp_send(c->fd, &c->to, data, 0, 0);
        return;

    case 10:
    case 11:
    case 12:
    case 13:
        len = packet_initial(&c->conn, data);
        client_send(c, data, len);
        return;

    default:
        break;
    }

    len = any_datagram(c, data);
    client_send(c, data, len);
}


/* what a client takes from a reply */

static void
client_learn(client_t *c, const uint8_t *data, size_t len)
{
    cid_t             scid;
    quic_lb_packet_t  pkt;

    if (quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK
        || pkt.type == QUIC_LB_PACKET_SHORT
        || pkt.scid_len > QUIC_LB_CID_MAX)
    {
        return;
    }

    scid.len = pkt.scid_len;
    memcpy(scid.data, pkt.scid, pkt.scid_len);

    if (pkt.type == QUIC_LB_PACKET_RETRY
        && pkt.payload_len > QUIC_LB_RETRY_TAG_LEN)
    {
        c->conn.token_len = pkt.payload_len - QUIC_LB_RETRY_TAG_LEN;

        if (c->conn.token_len > TOKEN_MAX) {
            c->conn.token_len = TOKEN_MAX;
        }

        memcpy(c->conn.token, pkt.payload, c->conn.token_len);
        c->conn.dcid = scid;
        c->conn.keys = scid;
        c->conn.hello_sent = 0;
        return;
    }

    if (c->nknown == KNOWN) {
        c->nknown = 0;
    }

    c->known[c->nknown++] = scid;

    if (one_in(2)) {
        c->conn.dcid = scid;
    }
}


static void
client_read(client_t *c)
{
    ssize_t  n;

    static uint8_t  data[BUFFER];

    for ( ;; ) {
        n = recv(c->fd, data, sizeof(data), 0);

        if (n == -1) {

            if (errno == EAGAIN) {
                return;
            }

            continue;
        }

        replies++;
        client_learn(c, data, (size_t) n);
    }
}


/* servers */

static void
server_change(server_t *s)
{
    s->mode = one_in(2) ? HONEST : (mode_e) random_below(MODES);
    s->left = 1 + random_below(400);

    if (s->mode == CLOSED) {

        if (s->fd != -1) {
            close(s->fd);
            s->fd = -1;
        }

        return;
    }

    if (s->fd == -1) {
        s->fd = udp_open(&s->self);
    }
}


static void
server_cid(server_t *s, quic_lb_packet_t *pkt, cid_t *cid)
{
    static cid_t  same = { 8, "one ID." };

    switch (s->mode) {

    case FOREIGN:
        cid_of_server(cid, 1 + random_below(nservers));
        return;

    case ECHO:
        cid->len = pkt->dcid_len;
        memcpy(cid->data, pkt->dcid, pkt->dcid_len);
        return;

    case SAME:
        *cid = same;
        return;

    case ANY:
        cid_random(cid, random_below(21));
        return;

    default:
        break;
    }

    /* IDs of stock nginx have 20 octets, of which a socket's share 8 */

    if (s->id % 2) {
        cid_of_server(cid, s->id);

    } else {
        cid_random(cid, 20);
        memset(cid->data, (int) (0xe0 | s->id), 8);
    }
}


static void
server_train(server_t *s, const address_t *to, const cid_t *dcid)
{
    size_t  n, size;

    static uint8_t  all[BUFFER];

    size = 1 + random_below(one_in(2) ? 60 : 1400);
    n = 1 + random_below((uint32_t) (64 * size));

    if (n > 65000) {
        n = 65000;
    }

    (void) packet_short(all, dcid, size > 40 ? size - 40 : 0);
    answered += (uint64_t) udp_send(s->fd, to, all, n, size);
}


static void
server_answer(server_t *s, const address_t *to, const uint8_t *data,
    size_t len)
{
    size_t            n;
    cid_t             scid, dcid;
    uint32_t          version;
    uint8_t           out[2 * MTU];
    quic_lb_packet_t  pkt;

    if (s->mode == SILENT
        || quic_lb_packet_parse(&pkt, data, len) != QUIC_LB_OK)
    {
        return;
    }

    dcid.len = 0;

    if (pkt.type == QUIC_LB_PACKET_SHORT) {
        cid_random(&dcid, 8);
        n = packet_short(out, &dcid, random_below(100));

        if (s->mode == TRAINS) {
            server_train(s, to, &dcid);
            return;
        }

        answered += (uint64_t) udp_send(s->fd, to, out, n, 0);
        return;
    }

    dcid.len = pkt.scid_len;
    memcpy(dcid.data, pkt.scid, pkt.scid_len);
    server_cid(s, &pkt, &scid);
    version = pkt.version;

    switch (s->mode) {

    case RETRIES:
        n = packet_retry(out, version, &dcid, &scid);
        break;

    case RESETS:
        cid_random(&scid, 8);
        n = packet_short(out, &scid, 40);
        break;

    case GARBAGE:
        n = 1 + random_below(200);
        random_octets(out, n);
        break;

    case TRAINS:
        server_train(s, to, &dcid);
        return;

    default:

        if (s->mode == NEGOTIATES || pkt.type == QUIC_LB_PACKET_UNKNOWN) {

            /* RFC 9000, 17.2.1: both IDs come back */

            scid.len = pkt.dcid_len;
            memcpy(scid.data, pkt.dcid, pkt.dcid_len);
            n = packet_negotiation(out, &dcid, &scid);
            break;
        }

        if (s->mode == ANY) {
            version = random_below(4);
        }

        n = packet_long(out, random_below(3), version, &dcid, &scid,
                        random_below(600));

        if (one_in(2)) {
            n += packet_short(out + n, &dcid, random_below(300));
        }
    }

    answered += (uint64_t) udp_send(s->fd, to, out, n, 0);
}


static void
server_read(server_t *s)
{
    ssize_t    n;
    socklen_t  len;
    address_t  from;

    static uint8_t  data[BUFFER];

    while (s->fd != -1) {
        len = sizeof(from);
        n = recvfrom(s->fd, data, sizeof(data), 0, &from.sa, &len);

        if (n == -1) {

            if (errno == EAGAIN) {
                return;
            }

            continue;
        }

        received++;
        s->peers[s->npeers++ % PEERS] = from;

        server_answer(s, &from, data, (size_t) n);

        /* late, perhaps to somebody who is not there any more */

        if (one_in(16)) {
            from = s->peers[random_below(s->npeers < PEERS ? s->npeers
                                                           : PEERS)];
            server_answer(s, &from, data, (size_t) n);
        }

        if (s->left-- == 0) {
            server_change(s);
        }
    }
}


/* RFC 1035: the right answer to a question, a wrong one, or none */

static void
dns_read(void)
{
    ssize_t    n;
    socklen_t  len;
    address_t  from;
    uint8_t    data[512 + 16];

    static unsigned  mode, left;

    for ( ;; ) {
        len = sizeof(from);
        n = recvfrom(dns, data, 512, 0, &from.sa, &len);

        if (n == -1) {

            if (errno == EAGAIN) {
                return;
            }

            continue;
        }

        asked++;

        if (left-- == 0) {
            mode = random_below(6);
            left = random_below(8);
        }

        if (n < 12) {
            continue;
        }

        data[2] = 0x81;
        data[3] = 0x80;

        switch (mode) {

        case 0:
        case 1:
            continue;

        case 2:
            data[3] |= 3;                   /* there is no such name */
            break;

        case 3:
            random_octets(data + random_below((uint32_t) n), 1);
            break;

        default:
            data[7] = 1;
            memcpy(data + n, "\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x7f\0\0\1", 16);
            n += 16;
        }

        (void) sendto(dns, data, (size_t) n, 0, &from.sa, len);
    }
}


/* set up, and the loop */

static void
parse_listen(const char *text)
{
    char        host[64];
    unsigned    port;
    address_t  *a;

    if (nlistens == LISTENS || sscanf(text, "%63[^/]/%u", host, &port) != 2) {
        fprintf(stderr, "bad address %s\n", text);
        exit(2);
    }

    a = &listens[nlistens++];
    loopback(a, strchr(host, ':') ? AF_INET6 : AF_INET, port);

    if (a->sa.sa_family == AF_INET
        && inet_pton(AF_INET, host, &a->sin.sin_addr) != 1)
    {
        die("inet_pton");
    }
}


static void
start(int argc, char **argv)
{
    int        i;
    uint8_t    key[QUIC_LB_KEY_LEN];
    server_t  *s;
    address_t  self;

    for (i = 0; i < QUIC_LB_KEY_LEN; i++) {
        if (sscanf(argv[3] + 2 * i, "%2hhx", &key[i]) != 1) {
            fprintf(stderr, "bad key\n");
            exit(2);
        }
    }

    random_seed(strtoull(argv[1], NULL, 10));
    packets_init(key, (uint8_t *) argv[4], strlen(argv[4]));

    loopback(&self, AF_INET, (unsigned) atoi(argv[5]));
    dns = udp_open(&self);
    raw = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

    if (dns == -1 || raw == -1) {
        die("sockets");
    }

    for (i = 6; i < argc && strcmp(argv[i], "--") != 0; i++) {

        if (nservers == SERVERS) {
            fprintf(stderr, "too many servers\n");
            exit(2);
        }

        s = &servers[nservers++];
        s->id = nservers;
        s->left = 50;
        loopback(&s->self, AF_INET, (unsigned) atoi(argv[i]));
        s->fd = udp_open(&s->self);

        if (s->fd == -1) {
            die("bind of a server");
        }
    }

    while (++i < argc) {
        parse_listen(argv[i]);
    }

    for (i = 0; i < CLIENTS; i++) {
        clients[i].fd = -1;
        client_new(&clients[i]);
    }
}


/* returns 0 when the standard input has ended */

static int
read_rate(void)
{
    ssize_t  n;
    char     line[64];

    n = read(STDIN_FILENO, line, sizeof(line) - 1);

    if (n <= 0) {
        return 0;
    }

    line[n] = '\0';
    rate = atof(line);

    printf("%s", line);
    fflush(stdout);

    return 1;
}


/* returns 0 when the standard input has ended */

static int
read_all(int timeout)
{
    int            i;
    unsigned       n;
    struct pollfd  fds[2 + SERVERS + CLIENTS];

    n = 0;

    fds[n].fd = STDIN_FILENO;
    fds[n++].events = POLLIN;
    fds[n].fd = dns;
    fds[n++].events = POLLIN;

    for (i = 0; i < (int) nservers; i++) {
        fds[n].fd = servers[i].fd;
        fds[n++].events = POLLIN;
    }

    for (i = 0; i < CLIENTS; i++) {
        fds[n].fd = clients[i].fd;
        fds[n++].events = POLLIN;
    }

    if (poll(fds, n, timeout) <= 0) {
        return 1;
    }

    if (fds[1].revents) {
        dns_read();
    }

    for (i = 0; i < (int) nservers; i++) {
        if (fds[2 + i].revents) {
            server_read(&servers[i]);
        }
    }

    for (i = 0; i < CLIENTS; i++) {
        if (fds[2 + nservers + (unsigned) i].revents) {
            client_read(&clients[i]);
        }
    }

    return fds[0].revents == 0 || read_rate();
}


int
main(int argc, char **argv)
{
    int     i;
    double  due, change, last, t;

    if (argc < 9) {
        fprintf(stderr, "usage: traffic SEED RATE LB_KEY SECRET DNS_PORT"
                        " SERVER_PORT... -- LISTEN...\n");
        return 2;
    }

    rate = atof(argv[2]);
    start(argc, argv);
    printf("ready\n");
    fflush(stdout);

    last = now();
    change = last;
    due = 0;

    for ( ;; ) {

        t = now();

        /* a socket that is closed hears nothing: it is opened by the clock */

        if (t > change) {
            change = t + 0.2;
            i = (int) random_below(nservers);

            if (servers[i].fd == -1 || one_in(8)) {
                server_change(&servers[i]);
            }
        }

        /* what is late by more than a second is left out */

        due += (t - last) * rate;
        due = due > rate ? rate : due;
        last = t;

        for (i = 0; i < BURST && due >= 1; i++) {
            client_act(&clients[random_below(CLIENTS)]);
            due--;
        }

        if (!read_all(i == BURST ? 0 : 2)) {
            break;
        }
    }

    printf("sent %llu replies %llu received %llu answered %llu asked %llu\n",
           (unsigned long long) sent, (unsigned long long) replies,
           (unsigned long long) received, (unsigned long long) answered,
           (unsigned long long) asked);

    return 0;
}
