
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The memory of the ports of legs.
 *
 * The memory is a memfd that the master keeps open all its life and that is not
 * closed by exec(): the binary of an upgrade finds it among its descriptors, so
 * both masters have the same memory, and a rollback changes nothing.  Where
 * memfd_create() or /proc is missing it is anonymous memory, which each cycle
 * takes from the one before.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"

#include <openssl/rand.h>
#include <sys/mman.h>


/* Linux: memfd.h, fcntl.h; the C library may lack them */

#ifndef MFD_ALLOW_SEALING
#define MFD_ALLOW_SEALING  2U
#endif

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL    8U
#endif


#define NGX_STREAM_QUIC_PT_PORTS_NAME   "ngx-quic-lb-ports"
#define NGX_STREAM_QUIC_PT_PORTS_LINK                                         \
    "/memfd:" NGX_STREAM_QUIC_PT_PORTS_NAME " (deleted)"

/* changes with the layout */

#define NGX_STREAM_QUIC_PT_PORTS_MAGIC  0x7175696370743031ULL

#define NGX_STREAM_QUIC_PT_PORTS_SEALS                                        \
    (F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_SEAL)


static ngx_stream_quic_pt_ports_t *ngx_stream_quic_pt_ports_old(
    ngx_cycle_t *cycle);
static void ngx_stream_quic_pt_ports_memory(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_ports_t *ports);
static ngx_int_t ngx_stream_quic_pt_ports_inherit(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_ports_t *ports);
static ngx_int_t ngx_stream_quic_pt_ports_adopt(
    ngx_stream_quic_pt_ports_t *ports, int fd);
static ngx_int_t ngx_stream_quic_pt_ports_create(
    ngx_stream_quic_pt_ports_t *ports);
static int ngx_stream_quic_pt_ports_memfd(void);
static ngx_stream_quic_pt_ports_shared_t *ngx_stream_quic_pt_ports_map(int fd);


/* in the master, when the new configuration is certain to be used */

ngx_int_t
ngx_stream_quic_pt_ports_init_module(ngx_cycle_t *cycle)
{
    ngx_stream_quic_pt_ports_t      *ports, *old;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    if (ngx_test_config || ngx_process == NGX_PROCESS_SIGNALLER) {
        return NGX_OK;
    }

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);
    old = ngx_stream_quic_pt_ports_old(cycle);

    if (pmcf == NULL || !pmcf->used) {

        if (old) {
            (void) munmap(old->shared,
                          sizeof(ngx_stream_quic_pt_ports_shared_t));
        }

        return NGX_OK;
    }

    ports = ngx_pcalloc(cycle->pool, sizeof(ngx_stream_quic_pt_ports_t));
    if (ports == NULL) {
        return NGX_ERROR;
    }

    if (old) {
        ports->shared = old->shared;
        ports->fd = old->fd;

    } else {
        ngx_stream_quic_pt_ports_memory(cycle, ports);
    }

    pmcf->ports = ports->shared ? ports : NULL;

    return NGX_OK;
}


static ngx_stream_quic_pt_ports_t *
ngx_stream_quic_pt_ports_old(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i;
    ngx_cycle_t                     *old;
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    old = cycle->old_cycle;

    if (old == NULL || old->conf_ctx == NULL || old->modules == NULL) {
        return NULL;
    }

    /* its arrays have no place for a module that it has not loaded */

    for (i = 0; i < old->modules_n; i++) {
        if (old->modules[i] == &ngx_stream_quic_passthrough_module) {
            pmcf = ngx_stream_cycle_get_module_main_conf(old,
                                          ngx_stream_quic_passthrough_module);

            return pmcf ? pmcf->ports : NULL;
        }
    }

    return NULL;
}


static void
ngx_stream_quic_pt_ports_memory(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_ports_t *ports)
{
    ngx_int_t  rc;

    rc = ngx_stream_quic_pt_ports_inherit(cycle, ports);

    if (rc == NGX_OK
        || (rc == NGX_DECLINED
            && ngx_stream_quic_pt_ports_create(ports) == NGX_OK))
    {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, cycle->log, ngx_errno,
                  "no memory to be kept by a binary upgrade, which will change "
                  "the ports to servers");

    ports->fd = -1;
    ports->shared = ngx_stream_quic_pt_ports_map(-1);

    if (ports->shared == NULL
        || RAND_bytes((u_char *) &ports->shared->secret,
                      sizeof(quic_lb_hash_key_t))
           != 1)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_errno,
                      "no memory for the ports to servers, which will change "
                      "with each reload");
        ports->shared = NULL;
    }
}


/* that of the master that is upgraded, or of an earlier cycle */

static ngx_int_t
ngx_stream_quic_pt_ports_inherit(ngx_cycle_t *cycle,
    ngx_stream_quic_pt_ports_t *ports)
{
    int             fd;
    ssize_t         n;
    ngx_int_t       rc;
    ngx_dir_t       dir;
    ngx_str_t       name;
    struct stat     sb;
    char            path[sizeof("/proc/self/fd/") + NGX_INT_T_LEN];
    char            target[sizeof(NGX_STREAM_QUIC_PT_PORTS_LINK)];

    ngx_str_set(&name, "/proc/self/fd");

    if (ngx_open_dir(&name, &dir) == NGX_ERROR) {
        return NGX_ERROR;
    }

    rc = NGX_DECLINED;

    while (rc != NGX_OK && ngx_read_dir(&dir) == NGX_OK) {

        fd = ngx_atoi(ngx_de_name(&dir), ngx_de_namelen(&dir));

        if (fd == NGX_ERROR) {
            continue;
        }

        (void) ngx_snprintf((u_char *) path, sizeof(path), "/proc/self/fd/%d%Z",
                            fd);

        n = readlink(path, target, sizeof(target));

        if (n == sizeof(NGX_STREAM_QUIC_PT_PORTS_LINK) - 1
            && ngx_strncmp(target, NGX_STREAM_QUIC_PT_PORTS_LINK, n) == 0
            && fstat(fd, &sb) == 0
            && sb.st_uid == geteuid()
            && sb.st_size == sizeof(ngx_stream_quic_pt_ports_shared_t))
        {
            rc = ngx_stream_quic_pt_ports_adopt(ports, fd);
        }
    }

    if (ngx_close_dir(&dir) == NGX_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                      ngx_close_dir_n " \"%V\" failed", &name);
    }

    return rc;
}


static ngx_int_t
ngx_stream_quic_pt_ports_adopt(ngx_stream_quic_pt_ports_t *ports, int fd)
{
    int                                 seals;
    ngx_stream_quic_pt_ports_shared_t  *shared;

    seals = fcntl(fd, F_GET_SEALS);

    if (seals == -1
        || (seals & NGX_STREAM_QUIC_PT_PORTS_SEALS)
           != NGX_STREAM_QUIC_PT_PORTS_SEALS)
    {
        return NGX_DECLINED;
    }

    shared = ngx_stream_quic_pt_ports_map(fd);

    if (shared == NULL) {
        return NGX_DECLINED;
    }

    if (shared->magic != NGX_STREAM_QUIC_PT_PORTS_MAGIC) {
        (void) munmap(shared, sizeof(ngx_stream_quic_pt_ports_shared_t));
        return NGX_DECLINED;
    }

    ports->shared = shared;
    ports->fd = fd;

    return NGX_OK;
}


static ngx_int_t
ngx_stream_quic_pt_ports_create(ngx_stream_quic_pt_ports_t *ports)
{
    int                                 fd;
    ngx_err_t                           err;
    ngx_stream_quic_pt_ports_shared_t  *shared;

    fd = ngx_stream_quic_pt_ports_memfd();

    if (fd == -1) {
        return NGX_ERROR;
    }

    if (ftruncate(fd, sizeof(ngx_stream_quic_pt_ports_shared_t)) == -1
        || fcntl(fd, F_ADD_SEALS, NGX_STREAM_QUIC_PT_PORTS_SEALS) == -1)
    {
        goto failed;
    }

    shared = ngx_stream_quic_pt_ports_map(fd);

    if (shared == NULL) {
        goto failed;
    }

    if (RAND_bytes((u_char *) &shared->secret, sizeof(quic_lb_hash_key_t))
        != 1)
    {
        (void) munmap(shared, sizeof(ngx_stream_quic_pt_ports_shared_t));
        goto failed;
    }

    shared->magic = NGX_STREAM_QUIC_PT_PORTS_MAGIC;

    ports->shared = shared;
    ports->fd = fd;

    return NGX_OK;

failed:

    err = ngx_errno;
    (void) close(fd);
    ngx_set_errno(err);

    return NGX_ERROR;
}


/* kernels that do not know a flag refuse it, newer ones may demand it */

static int
ngx_stream_quic_pt_ports_memfd(void)
{
    int  fd;

    fd = memfd_create(NGX_STREAM_QUIC_PT_PORTS_NAME,
                      MFD_ALLOW_SEALING|MFD_NOEXEC_SEAL);

    if (fd == -1 && ngx_errno == NGX_EINVAL) {
        fd = memfd_create(NGX_STREAM_QUIC_PT_PORTS_NAME, MFD_ALLOW_SEALING);
    }

    return fd;
}


/* |fd| of -1: anonymous memory */

static ngx_stream_quic_pt_ports_shared_t *
ngx_stream_quic_pt_ports_map(int fd)
{
    void  *p;

    p = mmap(NULL, sizeof(ngx_stream_quic_pt_ports_shared_t),
             PROT_READ|PROT_WRITE,
             fd == -1 ? MAP_SHARED|MAP_ANONYMOUS : MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}


/* the master's descriptor, not for programs that a worker may start */

ngx_int_t
ngx_stream_quic_pt_ports_init_process(ngx_cycle_t *cycle)
{
    ngx_stream_quic_pt_main_conf_t  *pmcf;

    if (ngx_process == NGX_PROCESS_SINGLE) {
        return NGX_OK;
    }

    pmcf = ngx_stream_cycle_get_module_main_conf(cycle,
                                          ngx_stream_quic_passthrough_module);

    if (pmcf && pmcf->ports && pmcf->ports->fd != -1) {

        if (close(pmcf->ports->fd) == -1) {
            ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                          "close() of the ports to servers failed");
        }

        pmcf->ports->fd = -1;
    }

    return NGX_OK;
}
