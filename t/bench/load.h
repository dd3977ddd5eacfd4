
/*
 * The sockets of the load generator (load_io.c) as load.c uses them.
 */


#ifndef _LOAD_H_INCLUDED_
#define _LOAD_H_INCLUDED_


#include "bench.h"

#include <stddef.h>


#define LOAD_MESSAGES  64        /* of one system call */
#define LOAD_HEAD      64        /* octets that are looked at */


/* a train that was received, or a single datagram */

typedef struct {
    unsigned            datagrams;
    size_t              len;
    uint8_t             head[LOAD_HEAD];
    struct sockaddr_in  from;        /* at the server socket only, both */
    struct in_addr      to;
} load_message_t;


/* where datagrams go, on a socket that is connected if |to| is NULL */

typedef struct {
    int                 fd;
    struct sockaddr_in *to;
    struct in_addr      from;        /* of the server socket */
} load_path_t;


/* ends the process with what failed */

void load_die(const char *what);

/*
 * Returns a nonblocking UDP socket with a receive buffer of |rcvbuf| octets,
 * bound to |local|, of which a zero port means any.
 */

int load_socket(struct sockaddr_in *local, int rcvbuf, int gro);

/* makes |fd| tell the local address of what it receives */

void load_tell_local(int fd);

/*
 * Sends |n| datagrams of |size| octets, adjacent at |data|, by UDP_SEGMENT or
 * one by one.  Returns how many left.
 */

unsigned load_send(load_path_t *path, uint8_t *data, size_t size, unsigned n,
    int gso);

/* up to LOAD_MESSAGES messages; returns their number, 0 if there are none */

unsigned load_receive(int fd, load_message_t *messages);

/* a clock that only goes forward, ns */

uint64_t load_now(void);


#endif /* _LOAD_H_INCLUDED_ */
