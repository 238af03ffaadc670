/* What the server answers to which path. */
#ifndef LNT_SERVE_ROUTES_H
#define LNT_SERVE_ROUTES_H

#include "serve/answer.h"

typedef struct lnt_route lnt_route;

/* NULL, with a reply that says why: there is no such path, or it has another method, or the key is missing. Before a body is read.
 * `authorization`: the header, or NULL. */
const lnt_route *lnt_route_find(lnt_service *v, const char *method, const char *path, const char *authorization, lnt_reply *r);
/* Where there is no key: whether a browser asks for a page of another site (`origin` is none of ours), or believes that this machine is another one
 * (`host` is a name, but the server listens to this machine alone); headers, or NULL. The reply then says so. */
bool lnt_route_foreign(const lnt_service *v, const char *address, const char *host, const char *origin, lnt_reply *r);
bool lnt_route_takes_body(const lnt_route *route);

/* The answer, or a request that is under way (true): `a` then has it. */
bool lnt_route_answer(const lnt_route *route, lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a);
/* Hand a request that is under way to the scheduler; false: it did not take it, and the reply says why. */
bool lnt_route_start(lnt_ctx *c, lnt_service *v, lnt_answer *a, lnt_reply *r);

/* Files of the page at /, which are part of the program. NULL: there is none of that path. */
typedef struct {
    const char *path, *type, *bytes;
    size_t n;
} lnt_page_file;
const lnt_page_file *lnt_page_find(const char *path);

#endif
