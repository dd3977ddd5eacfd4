
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * TLS sessions with upstreams, which tickets resume (RFC 8446, 2.2) without a
 * certificate being sent and verified again.
 *
 * Keyed by the upstream's address and the name that it has proved, in a table
 * of each server block, for each has its own rules of verification: a session
 * is offered only where it would be verified alike.  Entered when a ticket
 * comes, which replaces an earlier one; removed when it has become too old,
 * when a handshake with it fails, or for a newer one if the table is full, the
 * one that was longest not used.  Bound: NGX_STREAM_QUIC_RELAY_TICKETS of each
 * server block and worker.  Cost: a hash for each connection and ticket.
 * Each configuration begins without any, so that a reload with another CA or
 * CRL has all upstreams verified by it.
 */


#include "ngx_stream_quic_relay_module.h"

#include <openssl/rand.h>


#define NGX_STREAM_QUIC_RELAY_TICKETS   256

/*
 * RFC 8446, 4.6.1: seconds after which the certificate is asked for again,
 * for tickets that came by others would go on for ever
 */
#define NGX_STREAM_QUIC_RELAY_REVERIFY  3600

/* octets; no name in SNI is longer */
#define NGX_STREAM_QUIC_RELAY_SNI       255


typedef struct {
    quic_lb_table_node_t             node;        /* must be first */
    ngx_queue_t                      queue;       /* the last used is first */
    ngx_ssl_session_t               *session;
    time_t                           verified;    /* by a certificate */
    size_t                           len;
    u_char                           key[1];      /* of |len| octets */
} ngx_stream_quic_relay_ticket_t;


/* made with the configuration, filled in a worker */

struct ngx_stream_quic_relay_tickets_s {
    quic_lb_table_t                  table;
    quic_lb_hash_key_t               key;
    ngx_queue_t                      queue;
};


typedef struct {
    size_t                           len;
    uint64_t                         hash;
    u_char                           data[sizeof(struct sockaddr_in6)
                                          + NGX_STREAM_QUIC_RELAY_SNI];
} ngx_stream_quic_relay_ticket_key_t;


static void ngx_stream_quic_relay_tickets_save(ngx_connection_t *c);
static ngx_stream_quic_relay_ticket_t *ngx_stream_quic_relay_tickets_add(
    ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_key_t *key, ngx_log_t *log);
static ngx_int_t ngx_stream_quic_relay_tickets_key(
    ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_ticket_key_t *key);
static ngx_stream_quic_relay_ticket_t *ngx_stream_quic_relay_tickets_find(
    ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_key_t *key);
static ngx_uint_t ngx_stream_quic_relay_tickets_old(
    ngx_stream_quic_relay_ticket_t *ticket);
static void ngx_stream_quic_relay_tickets_remove(
    ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_t *ticket);
static void ngx_stream_quic_relay_tickets_cleanup(void *data);


ngx_int_t
ngx_stream_quic_relay_tickets_init(ngx_conf_t *cf,
    ngx_stream_quic_relay_srv_conf_t *conf)
{
    size_t                            n;
    ngx_pool_cleanup_t               *cln;
    quic_lb_table_node_t            **buckets;
    ngx_stream_quic_relay_tickets_t  *tickets;

    n = quic_lb_table_buckets(NGX_STREAM_QUIC_RELAY_TICKETS);

    tickets = ngx_palloc(cf->pool, sizeof(ngx_stream_quic_relay_tickets_t));
    buckets = ngx_palloc(cf->pool, n * sizeof(quic_lb_table_node_t *));
    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (tickets == NULL || buckets == NULL || cln == NULL) {
        return NGX_ERROR;
    }

    quic_lb_table_init(&tickets->table, buckets,
                       NGX_STREAM_QUIC_RELAY_TICKETS);
    ngx_queue_init(&tickets->queue);

    /* clients may choose the names */

    if (RAND_bytes((u_char *) &tickets->key, sizeof(quic_lb_hash_key_t)) != 1) {
        return NGX_ERROR;
    }

    cln->handler = ngx_stream_quic_relay_tickets_cleanup;
    cln->data = tickets;

    conf->tickets = tickets;

    return ngx_ssl_client_session_cache(cf, &conf->ssl, 1);
}


void
ngx_stream_quic_relay_tickets_use(ngx_stream_quic_relay_conn_t *conn)
{
    ngx_stream_quic_relay_t             *relay;
    ngx_stream_quic_relay_ticket_t      *ticket;
    ngx_stream_quic_relay_tickets_t     *tickets;
    ngx_stream_quic_relay_ticket_key_t   key;

    relay = conn->relay;
    tickets = relay->conf->tickets;
    relay->verified = 0;

    if (tickets == NULL
        || ngx_stream_quic_relay_tickets_key(conn, &key) != NGX_OK)
    {
        return;
    }

    conn->connection->ssl->save_session = ngx_stream_quic_relay_tickets_save;

    ticket = ngx_stream_quic_relay_tickets_find(tickets, &key);

    if (ticket == NULL) {
        return;
    }

    if (ngx_stream_quic_relay_tickets_old(ticket)
        || ngx_ssl_set_session(conn->connection, ticket->session) != NGX_OK)
    {
        ngx_stream_quic_relay_tickets_remove(tickets, ticket);
        return;
    }

    relay->verified = ticket->verified;

    ngx_queue_remove(&ticket->queue);
    ngx_queue_insert_head(&tickets->queue, &ticket->queue);
}


/* a ticket has come: the handshake is done, so the upstream is verified */

static void
ngx_stream_quic_relay_tickets_save(ngx_connection_t *c)
{
    time_t                               verified;
    ngx_stream_quic_relay_t             *relay;
    ngx_stream_quic_relay_conn_t        *conn;
    ngx_stream_quic_relay_ticket_t      *ticket;
    ngx_stream_quic_relay_tickets_t     *tickets;
    ngx_stream_quic_relay_ticket_key_t   key;

    conn = c->data;
    relay = conn->relay;
    tickets = relay->conf->tickets;

    if (ngx_stream_quic_relay_tickets_key(conn, &key) != NGX_OK) {
        return;
    }

    verified = SSL_session_reused(conn->ssl) ? relay->verified : ngx_time();

    ticket = ngx_stream_quic_relay_tickets_find(tickets, &key);

    if (ticket == NULL) {
        ticket = ngx_stream_quic_relay_tickets_add(tickets, &key, c->log);
        if (ticket == NULL) {
            return;
        }

    } else {
        ngx_ssl_free_session(ticket->session);
    }

    ticket->session = ngx_ssl_get_session(c);
    ticket->verified = verified;

    ngx_queue_remove(&ticket->queue);
    ngx_queue_insert_head(&tickets->queue, &ticket->queue);
}


static ngx_stream_quic_relay_ticket_t *
ngx_stream_quic_relay_tickets_add(ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_key_t *key, ngx_log_t *log)
{
    ngx_queue_t                     *q;
    ngx_stream_quic_relay_ticket_t  *ticket;

    if (tickets->table.count == tickets->table.limit) {
        q = ngx_queue_last(&tickets->queue);
        ticket = ngx_queue_data(q, ngx_stream_quic_relay_ticket_t, queue);
        ngx_stream_quic_relay_tickets_remove(tickets, ticket);
    }

    ticket = ngx_alloc(offsetof(ngx_stream_quic_relay_ticket_t, key)
                       + key->len, log);
    if (ticket == NULL) {
        return NULL;
    }

    ticket->session = NULL;
    ticket->len = key->len;
    ngx_memcpy(ticket->key, key->data, key->len);

    (void) quic_lb_table_insert(&tickets->table, &ticket->node, key->hash);
    ngx_queue_insert_head(&tickets->queue, &ticket->queue);

    return ticket;
}


void
ngx_stream_quic_relay_tickets_failed(ngx_stream_quic_relay_conn_t *conn)
{
    ngx_stream_quic_relay_ticket_t      *ticket;
    ngx_stream_quic_relay_tickets_t     *tickets;
    ngx_stream_quic_relay_ticket_key_t   key;

    tickets = conn->relay->conf->tickets;

    if (conn->relay->verified == 0
        || ngx_stream_quic_relay_tickets_key(conn, &key) != NGX_OK)
    {
        return;
    }

    ticket = ngx_stream_quic_relay_tickets_find(tickets, &key);

    if (ticket) {
        ngx_stream_quic_relay_tickets_remove(tickets, ticket);
    }
}


static ngx_int_t
ngx_stream_quic_relay_tickets_key(ngx_stream_quic_relay_conn_t *conn,
    ngx_stream_quic_relay_ticket_key_t *key)
{
    u_char                           *p;
    ngx_str_t                        *name;
    ngx_stream_quic_relay_tickets_t  *tickets;

    name = &conn->relay->ssl_name;
    tickets = conn->relay->conf->tickets;

    if (name->len > NGX_STREAM_QUIC_RELAY_SNI
        || conn->socklen > (socklen_t) sizeof(struct sockaddr_in6))
    {
        return NGX_DECLINED;
    }

    /* what an address has of octets tells how many there are */

    p = ngx_cpymem(key->data, &conn->remote, conn->socklen);
    p = ngx_cpymem(p, name->data, name->len);

    key->len = p - key->data;
    key->hash = quic_lb_hash(&tickets->key, key->data, key->len);

    return NGX_OK;
}


static ngx_stream_quic_relay_ticket_t *
ngx_stream_quic_relay_tickets_find(ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_key_t *key)
{
    quic_lb_table_node_t            *node;
    ngx_stream_quic_relay_ticket_t  *ticket;

    for (node = quic_lb_table_first(&tickets->table, key->hash);
         node;
         node = quic_lb_table_next(node))
    {
        ticket = (ngx_stream_quic_relay_ticket_t *) node;

        if (ticket->len == key->len
            && ngx_memcmp(ticket->key, key->data, key->len) == 0)
        {
            return ticket;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_stream_quic_relay_tickets_old(ngx_stream_quic_relay_ticket_t *ticket)
{
    X509  *cert;

    if (ngx_time() - ticket->verified >= NGX_STREAM_QUIC_RELAY_REVERIFY) {
        return 1;
    }

    cert = SSL_SESSION_get0_peer(ticket->session);

    return cert == NULL
           || X509_cmp_current_time(X509_get0_notAfter(cert)) <= 0;
}


static void
ngx_stream_quic_relay_tickets_remove(ngx_stream_quic_relay_tickets_t *tickets,
    ngx_stream_quic_relay_ticket_t *ticket)
{
    quic_lb_table_remove(&tickets->table, &ticket->node);
    ngx_queue_remove(&ticket->queue);

    ngx_ssl_free_session(ticket->session);
    ngx_free(ticket);
}


static void
ngx_stream_quic_relay_tickets_cleanup(void *data)
{
    ngx_stream_quic_relay_tickets_t *tickets = data;

    ngx_queue_t                     *q;
    ngx_stream_quic_relay_ticket_t  *ticket;

    while (!ngx_queue_empty(&tickets->queue)) {
        q = ngx_queue_head(&tickets->queue);
        ticket = ngx_queue_data(q, ngx_stream_quic_relay_ticket_t, queue);
        ngx_stream_quic_relay_tickets_remove(tickets, ticket);
    }
}
