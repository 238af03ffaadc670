/* From what has been written to JSON: whole answers, and events of a stream (server-sent events). */
#ifndef LNT_SERVE_ANSWER_H
#define LNT_SERVE_ANSWER_H

#include "serve/ask.h"

/* What goes back to a client. */
typedef struct {
    int status;
    const char *type;    /* static */
    const char *still;   /* static bytes, or NULL: `body` */
    char *body;          /* freed with lnt_free */
    size_t n;
    bool page;           /* for a browser to show */
} lnt_reply;

/* {"error": {...}} as OpenAI's clients know it. `parameter` may be NULL. No memory: a body that is static and says so. */
void lnt_reply_error(lnt_reply *r, int status, const char *message, const char *parameter);
/* The error of a context. */
void lnt_reply_failure(lnt_reply *r, const lnt_ctx *c, linnet_status s, const char *parameter);
/* Of JSON flags none. */
void lnt_reply_bytes(lnt_reply *r, const char *type, char *body, size_t n);
void lnt_reply_free(lnt_reply *r);

/* Bytes as text: what is no UTF-8 becomes U+FFFD, byte by byte. `whole` false: what the end of the bytes leaves open waits. *used: bytes that were
 * taken. Freed with lnt_free; NULL: no memory. */
char *lnt_utf8_of(const char *bytes, size_t n, bool whole, size_t *used, size_t *out_bytes);

/* An answer on its way out. */
typedef struct {
    const lnt_service *v;
    lnt_ask ask;
    char id[40];
    int64_t created;
    /* of a stream */
    struct lnt_sent *sent;  /* [texts] */
    char *out;              /* [n_out] bytes that are to go out, from at_out on */
    size_t n_out, at_out, room_out;
    bool last;              /* nothing comes behind them */
} lnt_answer;

/* Takes the request over from `ask`. */
linnet_status lnt_answer_begin(lnt_ctx *c, const lnt_service *v, const lnt_ask *ask, lnt_answer *a);
void lnt_answer_end(lnt_answer *a);
/* With the request over. */
void lnt_answer_whole(lnt_answer *a, lnt_reply *r);
/* With the request's lock held, and nothing left in `out`: the events that are new go there. */
void lnt_answer_events(lnt_answer *a);

#endif
