
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Bodies of HTTP/3 requests: what the files of the body half share.
 *
 * A body that goes to an upstream is in one of three states.  While it is
 * looked ahead, nginx buffers it as it always does, but in memory and no more
 * than the window; a body that ends meanwhile goes on as a whole, with its
 * length, and may be sent again to the next server.  Any other is passed: it
 * is read by what the upstream takes.  The rest, that is bodies nobody passes
 * on, are nginx's own, and only checked.
 */


#ifndef _NGX_HTTP_V3_LIMITS_BODY_H_INCLUDED_
#define _NGX_HTTP_V3_LIMITS_BODY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


/* the states of ngx_http_v3_parse_data(): what it reads next */

#define NGX_HTTP_H3_LIMITS_PARSE_START   0
#define NGX_HTTP_H3_LIMITS_PARSE_TYPE    1
#define NGX_HTTP_H3_LIMITS_PARSE_LENGTH  2
#define NGX_HTTP_H3_LIMITS_PARSE_SKIP    3

/* a frame that the parser skips; reserved for that (RFC 9114, 7.2.8) */

#define NGX_HTTP_H3_LIMITS_FRAME_SKIPPED  0x21


/* of one request, and of one subrequest with a response of an upstream */

typedef struct {
    ngx_http_request_t              *request;
    ngx_http_h3_limits_main_conf_t  *hmcf;

    /* the request body */

    off_t                            declared;   /* Content-Length, or -1 */
    size_t                           window;     /* 0: nginx's own */
    ngx_http_event_handler_pt        reader;     /* nginx's, of the body */
    void                           **loc_conf;   /* to be restored */
    ngx_event_t                      switch_event;
    ngx_event_t                      gather;
    ngx_http_event_handler_pt        pass;       /* nginx's, what has come */
    ngx_msec_t                       passed;     /* the last time */
    off_t                            request_held;
    ngx_http_v3_parse_data_t         after;      /* what follows trailers */
    size_t                           unknown;    /* to skip of a frame */
    u_char                          *unknown_pos;
    u_char                           octet;      /* see holding */

    /* the upstream */

    ngx_http_upstream_conf_t        *conf;       /* a copy */
    ngx_int_t                      (*create_request)(ngx_http_request_t *r);
    ngx_output_chain_filter_pt       output_filter;
    void                            *output_ctx;
    ngx_http_upstream_handler_pt     send_handler;

    /* the response body */

    off_t                            sent;       /* by the upstream */
    off_t                            response_held;
    ngx_event_pipe_input_filter_pt   pipe_filter;
    ngx_int_t                      (*input_init)(void *data);
    ngx_int_t                      (*input_filter)(void *data, ssize_t bytes);
    void                            *input_ctx;

    unsigned                         begun:1;
    unsigned                         look_ahead:1;
    unsigned                         patient:1;  /* no pause ends look_ahead */
    unsigned                         needs_length:1;
    unsigned                         discard:1;  /* not for the upstream */
    unsigned                         holding:1;  /* octet: the last one */
    unsigned                         trailers:1; /* the end comes after them */
    unsigned                         ended:1;
    unsigned                         refused:1;
    unsigned                         request_paused:1;
    unsigned                         response:1;
    unsigned                         response_paused:1;
} ngx_http_h3_limits_body_t;


/* ngx_http_v3_limits_body.c */

/* of |r|, or NULL; it survives internal redirects */

ngx_http_h3_limits_body_t *ngx_http_h3_limits_body_get(ngx_http_request_t *r);

/* the same, made if there is none; NULL if there is no memory */

ngx_http_h3_limits_body_t *ngx_http_h3_limits_body_make(ngx_http_request_t *r);

/* sets |*held|, a part of the gauge, to |now| */

void ngx_http_h3_limits_body_held(ngx_http_h3_limits_body_t *b, off_t *held,
    off_t now);

/* the octets of |cl| that are in memory */

off_t ngx_http_h3_limits_body_size(ngx_chain_t *cl);


/* ngx_http_v3_limits_request_body.c: called from body_init() */

ngx_int_t ngx_http_h3_limits_request_body_init(ngx_conf_t *cf);


/* ngx_http_v3_limits_body_end.c */

/*
 * What |*in| has of the end of a body.  NGX_OK: it goes on, ended where
 * b->ended is set; else a status.  The buf that ends it is taken out, or
 * put in, so that it passes only when the stream has ended as it must.
 */

ngx_int_t ngx_http_h3_limits_body_end(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in);

/*
 * Gives |*in| links of its own, as those of nginx must stay, without empty
 * bufs; the one that ends the body stays where |end| is set.  NGX_ERROR.
 */

ngx_int_t ngx_http_h3_limits_body_copy(ngx_http_request_t *r,
    ngx_chain_t **in, ngx_uint_t end);

/* keeps the last octet of a declared length back until the end; NGX_ERROR */

ngx_int_t ngx_http_h3_limits_body_hold(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in);


/* ngx_http_v3_limits_unknown.c */

/* finds out whether nginx mistakes them */

void ngx_http_h3_limits_unknown_init(ngx_conf_t *cf);

/* takes out of |*in| what is no data; first of all; NGX_ERROR */

ngx_int_t ngx_http_h3_limits_unknown(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t **in);

/* forgets the length of a frame that is over */

void ngx_http_h3_limits_unknown_mend(ngx_http_h3_limits_body_t *b,
    ngx_http_v3_parse_data_t *st);


/* ngx_http_v3_limits_look_ahead.c */

/* begins, or is not wanted */

void ngx_http_h3_limits_look_ahead(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);

/* |in| is next: may end it; NGX_OK or a status */

ngx_int_t ngx_http_h3_limits_look_ahead_next(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b, ngx_chain_t *in);

/* ends it, without anything that follows */

void ngx_http_h3_limits_look_ahead_cancel(ngx_http_h3_limits_body_t *b);


/* ngx_http_v3_limits_gather.c */

/* from now on what comes of a passed body may wait for more */

void ngx_http_h3_limits_gather(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);

/* nothing waits any more */

void ngx_http_h3_limits_gather_cancel(ngx_http_h3_limits_body_t *b);


/* ngx_http_v3_limits_upstream.c */

/* finds the modules of upstreams, into the main configuration */

void ngx_http_h3_limits_upstream_init(ngx_conf_t *cf);

/* whether a body of unknown length cannot be passed */

ngx_uint_t ngx_http_h3_limits_upstream_needs_length(ngx_http_request_t *r);

/* whether most of its programs ignore a body of unknown length */

ngx_uint_t ngx_http_h3_limits_upstream_wants_length(ngx_http_request_t *r);

/* whether what is sent is the client's body at all */

ngx_uint_t ngx_http_h3_limits_upstream_has_own_body(ngx_http_request_t *r);

/* prepares r->upstream, not yet initialized, for a passed body */

ngx_int_t ngx_http_h3_limits_upstream_pass(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);

/* the upstream answers before the body is over */

void ngx_http_h3_limits_upstream_answers(ngx_http_request_t *r,
    ngx_http_h3_limits_body_t *b);

/* a copy of its configuration, for this request, that may be changed */

ngx_http_upstream_conf_t *ngx_http_h3_limits_upstream_conf(
    ngx_http_request_t *r, ngx_http_h3_limits_body_t *b);


/* ngx_http_v3_limits_response_body.c: called from body_init() */

ngx_int_t ngx_http_h3_limits_response_body_init(ngx_conf_t *cf);


#endif /* _NGX_HTTP_V3_LIMITS_BODY_H_INCLUDED_ */
