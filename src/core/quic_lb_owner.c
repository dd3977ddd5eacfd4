
/*
 * The process that owns a socket.
 */


#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "quic_lb_owner.h"


static int quic_lb_owner_started(pid_t pid, uint64_t *started);


int
quic_lb_owner_alive(quic_lb_owner_t *owner, pid_t pid)
{
    pid_t     session;
    uint64_t  started;

    if (pid <= 0 || (kill(pid, 0) == -1 && errno == ESRCH)) {
        return 0;
    }

    /* nginx and the binary of its upgrade share a session */

    session = getsid(pid);

    if (session != -1 && session != getsid(0)) {
        return 0;
    }

    /* "hidepid" of /proc leaves the rest unknown */

    if (quic_lb_owner_started(pid, &started) == -1) {
        return 1;
    }

    if (owner->pid != pid) {
        owner->pid = pid;
        owner->started = started;
    }

    return owner->started == started;
}


/* proc(5): field 22; field 2 may have spaces and parentheses in it */

static int
quic_lb_owner_started(pid_t pid, uint64_t *started)
{
    FILE    *file;
    char    *p, name[32], line[1024];
    size_t   n;

    (void) snprintf(name, sizeof(name), "/proc/%ld/stat", (long) pid);

    file = fopen(name, "re");
    if (file == NULL) {
        return -1;
    }

    n = fread(line, 1, sizeof(line) - 1, file);
    (void) fclose(file);

    line[n] = '\0';
    p = strrchr(line, ')');

    if (p == NULL
        || sscanf(p + 1, " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                         "%*s %*s %*s %*s %*s %*s %*s %" SCNu64, started)
           != 1)
    {
        return -1;
    }

    return 0;
}
