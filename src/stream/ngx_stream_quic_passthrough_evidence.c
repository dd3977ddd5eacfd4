
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The evidence against backends, in shared memory: a failure is a verdict for
 * all workers, so what it is founded on is what all of them have seen.
 *
 *   key       hash of the address, which only the configuration chooses
 *   inserted  by the first leg to a backend
 *   removed   by another backend, if its set is full: the one that has not
 *             answered for the longest
 *   bound     1024 backends, in sets of 8
 *   reload    kept
 *
 * A word is written by one store, and what belongs to a backend can be told
 * from what its predecessor has left: so no lock is needed, and a worker that
 * is killed leaves nothing half done.  A set that is lost is never taken for
 * silence.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_stream.h>

#include "ngx_stream_quic_passthrough_module.h"


#define NGX_STREAM_QUIC_PT_EVIDENCE_SET    8

#define NGX_STREAM_QUIC_PT_EVIDENCE_SETS                                      \
    (NGX_STREAM_QUIC_PT_EVIDENCE / NGX_STREAM_QUIC_PT_EVIDENCE_SET)

/* s until it is logged again that a backend's IDs do not name it */

#define NGX_STREAM_QUIC_PT_EVIDENCE_UNNAMED  60

/* bits of half a word */

#define NGX_STREAM_QUIC_PT_EVIDENCE_HALF   (4 * sizeof(ngx_atomic_uint_t))


static ngx_stream_quic_pt_evidence_t *ngx_stream_quic_pt_evidence_set(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id);
static ngx_stream_quic_pt_evidence_t *ngx_stream_quic_pt_evidence_find(
    ngx_stream_quic_pt_worker_t *worker, ngx_atomic_uint_t id);


/* neither half of an ID is 0, as free words are */

ngx_atomic_uint_t
ngx_stream_quic_pt_evidence_id(struct sockaddr *sockaddr)
{
    u_char             *p, key[NGX_STREAM_QUIC_LB_ADDRESS_MAX];
    ngx_atomic_uint_t   id;

    p = ngx_stream_quic_lb_address(key, sockaddr);
    id = (ngx_atomic_uint_t) ngx_stream_quic_lb_hash(key, p - key);

    return id | 1 | (ngx_atomic_uint_t) 1 << NGX_STREAM_QUIC_PT_EVIDENCE_HALF;
}


static ngx_stream_quic_pt_evidence_t *
ngx_stream_quic_pt_evidence_set(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_uint_t  n;

    n = (id >> 1) % NGX_STREAM_QUIC_PT_EVIDENCE_SETS;

    return &worker->evidence[n * NGX_STREAM_QUIC_PT_EVIDENCE_SET];
}


static ngx_stream_quic_pt_evidence_t *
ngx_stream_quic_pt_evidence_find(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_uint_t                      i;
    ngx_stream_quic_pt_evidence_t  *set;

    set = ngx_stream_quic_pt_evidence_set(worker, id);

    for (i = 0; i < NGX_STREAM_QUIC_PT_EVIDENCE_SET; i++) {
        if (set[i].id == id) {
            return &set[i];
        }
    }

    return NULL;
}


ngx_stream_quic_pt_evidence_t *
ngx_stream_quic_pt_evidence_get(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_uint_t                      i;
    ngx_atomic_uint_t               old;
    ngx_stream_quic_pt_evidence_t  *e, *set;

    e = ngx_stream_quic_pt_evidence_find(worker, id);
    if (e) {
        return e;
    }

    set = ngx_stream_quic_pt_evidence_set(worker, id);
    e = &set[0];

    for (i = 0; i < NGX_STREAM_QUIC_PT_EVIDENCE_SET; i++) {

        if (set[i].id == 0) {
            e = &set[i];
            break;
        }

        if ((ngx_msec_int_t) (set[i].answered - e->answered) < 0) {
            e = &set[i];
        }
    }

    old = e->id;

    if (!ngx_atomic_cmp_set(&e->id, old, id)) {
        return ngx_stream_quic_pt_evidence_find(worker, id);
    }

    /* no answer to whoever begins to wait now, maybe one to who waits longer */

    e->answered = ngx_current_msec - NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN - 1;

    return e;
}


ngx_uint_t
ngx_stream_quic_pt_evidence_answered(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_stream_quic_pt_evidence_t  *e;

    e = ngx_stream_quic_pt_evidence_get(worker, id);
    if (e == NULL) {
        return 0;
    }

    /* one worker's store is enough for all of them */

    if ((ngx_msec_int_t) (ngx_current_msec - e->answered)
        > NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN / 2)
    {
        e->answered = ngx_current_msec;
    }

    if (e->silent) {
        e->silent = 0;
    }

    return e->failed == id && ngx_atomic_cmp_set(&e->failed, id, 0);
}


ngx_uint_t
ngx_stream_quic_pt_evidence_silent(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id, ngx_msec_t since, uint64_t client)
{
    ngx_atomic_uint_t               seen, mine;
    ngx_stream_quic_pt_evidence_t  *e;

    e = ngx_stream_quic_pt_evidence_find(worker, id);

    if (e == NULL
        || (ngx_msec_int_t) (e->answered + NGX_STREAM_QUIC_PT_EVIDENCE_GRAIN
                             - since)
           >= 0)
    {
        return 0;
    }

    /* half of a word tells the backend, the other one the client */

    mine = (id >> NGX_STREAM_QUIC_PT_EVIDENCE_HALF
               << NGX_STREAM_QUIC_PT_EVIDENCE_HALF)
           | ((ngx_atomic_uint_t) client
              & (((ngx_atomic_uint_t) 1 << NGX_STREAM_QUIC_PT_EVIDENCE_HALF)
                 - 1));

    seen = e->silent;

    if (seen == mine) {
        return 0;
    }

    if (seen >> NGX_STREAM_QUIC_PT_EVIDENCE_HALF
        == id >> NGX_STREAM_QUIC_PT_EVIDENCE_HALF)
    {
        return 1;
    }

    e->silent = mine;

    return 0;
}


void
ngx_stream_quic_pt_evidence_failed(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_stream_quic_pt_evidence_t  *e;

    e = ngx_stream_quic_pt_evidence_find(worker, id);

    if (e && e->failed != id) {
        e->failed = id;
    }
}


/* half of the word tells the backend, the other one the second */

ngx_uint_t
ngx_stream_quic_pt_evidence_unnamed(ngx_stream_quic_pt_worker_t *worker,
    ngx_atomic_uint_t id)
{
    ngx_atomic_uint_t               seen, mask, mine;
    ngx_stream_quic_pt_evidence_t  *e;

    e = ngx_stream_quic_pt_evidence_get(worker, id);
    if (e == NULL) {
        return 0;
    }

    mask = ((ngx_atomic_uint_t) 1 << NGX_STREAM_QUIC_PT_EVIDENCE_HALF) - 1;
    mine = (id & ~mask) | ((ngx_atomic_uint_t) ngx_time() & mask);

    seen = e->unnamed;

    if ((seen & ~mask) == (id & ~mask)
        && ((mine - seen) & mask) < NGX_STREAM_QUIC_PT_EVIDENCE_UNNAMED)
    {
        return 0;
    }

    return ngx_atomic_cmp_set(&e->unnamed, seen, mine);
}
