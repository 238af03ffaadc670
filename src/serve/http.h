/* The edge to HTTP. */
#ifndef LNT_SERVE_HTTP_H
#define LNT_SERVE_HTTP_H

#include "serve/service.h"

typedef struct lnt_http lnt_http;

/* Listen where the options say, and begin to hear. */
linnet_status lnt_http_open(lnt_ctx *c, lnt_service *v, lnt_http **out);
const char *lnt_http_address(const lnt_http *h);
/* Requests whose clients have gone are dropped. */
void lnt_http_watch(lnt_http *h);
/* No new connections from now on. */
void lnt_http_quiet(lnt_http *h);
/* Connections that have a request. */
int64_t lnt_http_busy(lnt_http *h);
void lnt_http_close(lnt_http *h);

#endif
