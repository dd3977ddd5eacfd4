
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Linked into the nginx of NGINX=asan.  "nginx -t", "nginx -s" and a start
 * that fails leave it to the system to free their configuration; only the
 * master and its workers free all they have.  LeakSanitizer asks here, at
 * exit, whether to stay silent.
 */


/*
 * Of nginx, where 1 and 3 mean a master and a worker process.  Weak, since
 * the programs that configure makes to try a feature are linked with this
 * file, too.
 */

extern __attribute__((weak)) unsigned long  ngx_process;


int __lsan_is_turned_off(void);


int
__lsan_is_turned_off(void)
{
    return &ngx_process == 0 || (ngx_process != 1 && ngx_process != 3);
}
