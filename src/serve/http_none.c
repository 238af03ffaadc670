/* Where linnet is built without libmicrohttpd. */
#include "serve/http.h"

linnet_status lnt_http_open(lnt_ctx *c, lnt_service *v, lnt_http **out)
{
    (void)v;
    *out = NULL;
    lnt_fail(c, LINNET_EUNSUPPORTED, "this build of linnet has no server: libmicrohttpd was not there");
    return lnt_hint(c, "Install libmicrohttpd-dev and build again.");
}

const char *lnt_http_address(const lnt_http *h) { return (void)h, ""; }
void lnt_http_watch(lnt_http *h) { (void)h; }
void lnt_http_quiet(lnt_http *h) { (void)h; }
int64_t lnt_http_busy(lnt_http *h) { return (void)h, 0; }
void lnt_http_close(lnt_http *h) { (void)h; }
