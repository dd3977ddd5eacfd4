
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * The preferred address (RFC 9000, 9.6): clients that come by a balancer are
 * offered one at which they reach the relay without it.
 */


#include "ngx_stream_quic_relay_module.h"


char *
ngx_stream_quic_relay_preferred_address(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_stream_quic_relay_srv_conf_t *rscf = conf;

    ngx_str_t        *value;
    ngx_addr_t        addr;
    ngx_uint_t        i;
    ngx_sockaddr_t  **sa;

    if (rscf->preferred4 || rscf->preferred6) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_parse_addr_port(cf->pool, &addr, value[i].data, value[i].len)
            != NGX_OK
            || ngx_inet_get_port(addr.sockaddr) == 0
            || ngx_inet_wildcard(addr.sockaddr))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\" directive, it "
                               "must be an address with a port",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        sa = (addr.sockaddr->sa_family == AF_INET) ? &rscf->preferred4
                                                   : &rscf->preferred6;

        if (*sa) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" directive is a second "
                               "address of its family",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        *sa = (ngx_sockaddr_t *) addr.sockaddr;
    }

    return NGX_CONF_OK;
}


ngx_int_t
ngx_stream_quic_relay_preferred_offer(ngx_stream_quic_relay_conn_t *conn,
    ngtcp2_transport_params *params)
{
    ngtcp2_preferred_addr             *preferred;
    ngx_stream_quic_relay_t           *relay;
    ngx_stream_quic_relay_srv_conf_t  *conf;

    relay = conn->relay;
    conf = relay->conf;

    if (conf->preferred4 == NULL && conf->preferred6 == NULL) {
        return NGX_OK;
    }

    preferred = &params->preferred_addr;
    params->preferred_addr_present = 1;

    if (conf->preferred4) {
        preferred->ipv4_present = 1;
        preferred->ipv4 = conf->preferred4->sockaddr_in;
    }

#if (NGX_HAVE_INET6)
    if (conf->preferred6) {
        preferred->ipv6_present = 1;
        preferred->ipv6 = conf->preferred6->sockaddr_in6;
    }
#endif

    if (ngx_stream_quic_relay_ids_mint(relay->worker, relay->ids,
                                       relay->worker->slot, &preferred->cid)
        != NGX_OK
        || ngx_stream_quic_relay_ids_token(relay->worker, &preferred->cid,
                                           preferred->stateless_reset_token)
           != NGX_OK
        || ngx_stream_quic_relay_input_add_cid(conn, &preferred->cid) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}
