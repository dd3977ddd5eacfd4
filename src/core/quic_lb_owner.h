
/*
 * The process that owns a socket, by its PID in F_SETOWN.  A PID may be reused
 * by another program, and older kernels do not clear that of a process that is
 * gone.
 */


#ifndef _QUIC_LB_OWNER_H_INCLUDED_
#define _QUIC_LB_OWNER_H_INCLUDED_


#include <stdint.h>

#include <sys/types.h>


/* zeroed at first */

typedef struct {
    pid_t      pid;
    uint64_t   started;      /* clock ticks since boot */
} quic_lb_owner_t;


/*
 * Whether |pid| is the process that it was when it was first seen: one of the
 * session of this process, as a socket is inherited, started at the same time.
 * Remembers in |owner| the process of the last |pid|.
 */

int quic_lb_owner_alive(quic_lb_owner_t *owner, pid_t pid);


#endif /* _QUIC_LB_OWNER_H_INCLUDED_ */
