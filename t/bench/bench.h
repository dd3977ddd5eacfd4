
/*
 * What the load generator, the bare relay and the configurations of nginx
 * agree on.
 */


#ifndef _BENCH_H_INCLUDED_
#define _BENCH_H_INCLUDED_


#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <string.h>


#define BENCH_SEGMENTS  64       /* datagrams of one UDP_SEGMENT send */
#define BENCH_PAYLOAD   65507    /* octets of one send */


/* loopback address of server |n|, up to 65000 of them: 127.10.0.1 on */

static inline struct sockaddr_in
bench_server(unsigned n, unsigned port)
{
    struct sockaddr_in  sin;

    memset(&sin, 0, sizeof(struct sockaddr_in));

    sin.sin_family = AF_INET;
    sin.sin_port = htons((uint16_t) port);
    sin.sin_addr.s_addr = htonl(0x7f0a0000 + n / 250 * 256 + n % 250 + 1);

    return sin;
}


#endif /* _BENCH_H_INCLUDED_ */
