
/*
 * Copyright (C) ngx-quic-lb contributors
 */


/*
 * Bodies of HTTP/3 requests and responses.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_v3_limits_module.h"


ngx_int_t
ngx_http_h3_limits_body_init(ngx_conf_t *cf)
{
    return NGX_OK;
}
