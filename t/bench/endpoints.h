
/*
 * The socket of an endpoint (endpoints_io.c) as endpoints.c uses it, and time.
 */


#ifndef _ENDPOINTS_H_INCLUDED_
#define _ENDPOINTS_H_INCLUDED_


#include "bench.h"

#include <stddef.h>
#include <sys/types.h>


/* ends the process with what failed */

void endpoints_die(const char *what);

/* ns: monotonic, and what this process has run */

uint64_t endpoints_now(void);
uint64_t endpoints_cpu(void);

/*
 * Returns a nonblocking UDP socket that is bound to |at| if |server|, or else
 * connected to it.  Sets |local| to its own address.
 */

int endpoints_socket(struct sockaddr_in *at, int server,
    struct sockaddr_in *local);

/* true: there is something to read; false: |expiry| has come, in ns */

int endpoints_wait(int fd, uint64_t expiry);

/*
 * Returns the octets of a datagram, or of a train whose datagrams have
 * |segment| octets each, the last one maybe less; -1: there is none.
 */

ssize_t endpoints_read(int fd, uint8_t *data, size_t size,
    struct sockaddr_in *from, size_t *segment);

/*
 * Sends datagrams of |segment| octets, the last one maybe shorter, |to| is
 * NULL on a connected socket.  What fails is as if lost.
 */

void endpoints_send(int fd, struct sockaddr_in *to, uint8_t *data, size_t len,
    size_t segment);


#endif /* _ENDPOINTS_H_INCLUDED_ */
