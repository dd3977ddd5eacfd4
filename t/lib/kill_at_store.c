
/*
 * Kills a worker of nginx while it writes to a shared memory zone.
 *
 *     kill_at_store PID SIZE N [lockless]
 *
 * The zone is the one of SIZE octets.  Prints "attached", and lets the worker
 * go on, instruction by instruction.  When it next has the lock of the zone, it
 * is killed after the Nth change of the memory: "killed N" is printed; or when
 * it gives the lock back, if there are only M: "ended M".  With "lockless" the
 * Nth change counts, lock or not.
 */


#define _GNU_SOURCE

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>


/* ngx_slab_pool_t begins with the word of the lock, and the number of waiters
 */

#define HEAD  (2 * sizeof(unsigned long))


static void
die(const char *what)
{
    perror(what);
    exit(2);
}


static off_t
zone(pid_t pid, size_t size)
{
    char           line[512], path[64], mode[8];
    FILE          *maps;
    unsigned long  start, end;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int) pid);

    maps = fopen(path, "r");
    if (maps == NULL) {
        die(path);
    }

    while (fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3
            && strcmp(mode, "rw-s") == 0
            && end - start == size)
        {
            fclose(maps);
            return (off_t) start;
        }
    }

    fprintf(stderr, "no shared memory of %zu octets\n", size);
    exit(2);
}


/* one instruction of the worker, with the signals that it gets */

static void
step(pid_t pid, int *signal)
{
    int  status;

    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, (void *) (long) *signal) == -1
        || waitpid(pid, &status, 0) == -1)
    {
        die("step");
    }

    if (!WIFSTOPPED(status)) {
        fprintf(stderr, "the worker is gone\n");
        exit(2);
    }

    *signal = (WSTOPSIG(status) == SIGTRAP) ? 0 : WSTOPSIG(status);
}


int
main(int argc, char **argv)
{
    int             fd, signal, status;
    char            path[64], *now, *last;
    pid_t           pid;
    off_t           start;
    size_t          size;
    unsigned        wanted, seen, held, lockless;
    unsigned long   lock;

    if (argc != 4 && argc != 5) {
        return 2;
    }

    pid = (pid_t) atoi(argv[1]);
    size = (size_t) atol(argv[2]);
    wanted = (unsigned) atoi(argv[3]);
    lockless = (argc == 5);

    now = malloc(size);
    last = malloc(size);
    start = zone(pid, size);

    snprintf(path, sizeof(path), "/proc/%d/mem", (int) pid);
    fd = open(path, O_RDONLY);

    if (now == NULL || last == NULL || fd == -1) {
        die(path);
    }

    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) == -1
        || waitpid(pid, &status, 0) == -1)
    {
        die("attach");
    }

    printf("attached\n");
    fflush(stdout);

    signal = 0;
    seen = 0;
    held = 0;

    for ( ;; ) {
        step(pid, &signal);

        if (pread(fd, &lock, sizeof(lock), start) != sizeof(lock)) {
            die("lock");
        }

        if (!lockless && lock != (unsigned long) pid) {

            if (seen) {
                break;
            }

            held = 0;
            continue;
        }

        if (pread(fd, now, size, start) != (ssize_t) size) {
            die("zone");
        }

        if (held && memcmp(now + HEAD, last + HEAD, size - HEAD) != 0
            && ++seen == wanted)
        {
            break;
        }

        held = 1;
        memcpy(last, now, size);
    }

    if (kill(pid, SIGKILL) == -1) {
        die("kill");
    }

    printf("%s %u\n", seen == wanted ? "killed" : "ended", seen);

    return 0;
}
