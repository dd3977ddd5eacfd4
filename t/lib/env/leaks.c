
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Linked into the nginx of NGINX=asan.  "nginx -t", "nginx -s" and a start
 * that fails leave it to the system to free their configuration; only the
 * master and its workers free what they have.  LeakSanitizer asks here, at
 * exit, whether to stay silent, and about what.
 */


/*
 * Of nginx, where 1 and 3 mean a master and a worker process.  Weak, since
 * the programs that configure makes to try a feature are linked with this
 * file, too.
 */

extern __attribute__((weak)) unsigned long  ngx_process;


int __lsan_is_turned_off(void);
const char *__lsan_default_suppressions(void);


int
__lsan_is_turned_off(void)
{
    return &ngx_process == 0 || (ngx_process != 1 && ngx_process != 3);
}


/*
 * A worker's connections and events are told of by its cycle alone, which is
 * freed before the process exits.
 */

const char *
__lsan_default_suppressions(void)
{
    return "leak:ngx_event_process_init\n";
}
