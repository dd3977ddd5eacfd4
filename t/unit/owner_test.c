
/*
 * Owners of sockets: a PID that another process has got is not theirs.
 */


#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/wait.h>

#include "quic_lb_owner.h"
#include "tap.h"


static pid_t child(int session);
static void end(pid_t pid);


int
main(void)
{
    pid_t            pid, other;
    quic_lb_owner_t  owner = { 0, 0 };

    ok(!quic_lb_owner_alive(&owner, 0), "nobody");

    pid = child(0);
    ok(quic_lb_owner_alive(&owner, pid), "a child at first sight");
    ok(owner.pid == pid && owner.started > 0, "with the time it has started");
    ok(quic_lb_owner_alive(&owner, pid), "and again");

    /* as if another process had had the PID then */

    owner.started--;
    ok(!quic_lb_owner_alive(&owner, pid), "a PID that was reused");
    ok(!quic_lb_owner_alive(&owner, pid), "stays that");

    other = child(0);
    ok(quic_lb_owner_alive(&owner, other), "another owner");
    ok(quic_lb_owner_alive(&owner, pid), "is a new first sight");

    end(pid);
    ok(!quic_lb_owner_alive(&owner, pid), "one that is gone");
    end(other);

    pid = child(1);
    ok(!quic_lb_owner_alive(&owner, pid), "a process of another session");
    end(pid);

    return tap_done();
}


/* ready when it returns */

static pid_t
child(int session)
{
    int    fds[2];
    char   c;
    pid_t  pid;

    if (pipe(fds) == -1) {
        exit(2);
    }

    pid = fork();

    if (pid == 0) {
        if ((session && setsid() == -1) || write(fds[1], "", 1) != 1) {
            _exit(2);
        }

        for ( ;; ) {
            (void) pause();
        }
    }

    if (pid == -1 || read(fds[0], &c, 1) != 1) {
        exit(2);
    }

    (void) close(fds[0]);
    (void) close(fds[1]);

    return pid;
}


static void
end(pid_t pid)
{
    (void) kill(pid, SIGKILL);
    (void) waitpid(pid, NULL, 0);
}
