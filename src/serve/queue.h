/* Prompts that wait for a place, in the order in which they came. Any thread may put requests; one takes them. */
#ifndef LNT_SERVE_QUEUE_H
#define LNT_SERVE_QUEUE_H

#include "serve/request.h"

typedef struct lnt_waiting {
    struct lnt_waiting *next;
    lnt_request *r; /* held */
    int prompt;
    double since;
} lnt_waiting;

typedef struct {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    lnt_waiting *first, *last;
    int64_t n, most;
    bool closed, nudged;
} lnt_queue;

void lnt_queue_open(lnt_queue *q, int64_t most);
/* With nothing in it. */
void lnt_queue_free(lnt_queue *q);
/* All prompts of a request, which is held. LINNET_EUNSUPPORTED: there is no room now, or no end to come. */
linnet_status lnt_queue_put(lnt_queue *q, lnt_ctx *c, lnt_request *r);
/* From now on nothing is taken in. */
void lnt_queue_close(lnt_queue *q);
/* The first one, where its choices are `room` at most; the caller's, to be released by lnt_queue_drop. NULL: there is none such. */
lnt_waiting *lnt_queue_take(lnt_queue *q, int64_t room);
void lnt_queue_drop(lnt_waiting *w);
/* Without what is not wanted any more; `all`: without everything, which fails. How many are left. */
int64_t lnt_queue_sweep(lnt_queue *q, lnt_ctx *c, bool all);
/* Until something is there, or a nudge, at most so long. */
void lnt_queue_wait(lnt_queue *q, double seconds);
void lnt_queue_nudge(lnt_queue *q);

#endif
