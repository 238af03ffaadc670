/* Texts written side by side: a session, its slots, and who has them (continuous batching). A round reads one piece of one prompt, by turns, and one
 * token of every text that is being written; what has ended makes room for what waits.
 *
 * One thread runs rounds; any thread may put requests. */
#ifndef LNT_SERVE_SCHEDULER_H
#define LNT_SERVE_SCHEDULER_H

#include "linnet/state.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/state_view.h"

typedef struct lnt_scheduler lnt_scheduler;

typedef struct {
    int64_t slots, waiting, context, chunk, cache_bytes;
    bool ahead; /* linnet_server_options */
} lnt_scheduler_options;

linnet_status lnt_scheduler_create(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const lnt_scheduler_options *o, lnt_metrics *metrics,
                                   lnt_scheduler **out);
/* Requests that are not over fail. */
void lnt_scheduler_destroy(lnt_scheduler *s);

/* Tokens of a prompt and its answer at most. */
int64_t lnt_scheduler_context(const lnt_scheduler *s);
int64_t lnt_scheduler_slots(const lnt_scheduler *s);
/* What there is to see of the model's states; does not change. */
const lnt_views *lnt_scheduler_views(const lnt_scheduler *s);

/* Queue all prompts of a request, which is held until it is over. LINNET_EUNSUPPORTED, with the error on c: there is no room in the queue now, or the
 * scheduler is closed. From any thread. */
linnet_status lnt_scheduler_put(lnt_scheduler *s, lnt_ctx *c, lnt_request *r);
/* From now on nothing is taken, and what waits fails. From any thread. */
void lnt_scheduler_close(lnt_scheduler *s);
/* Wake the thread that waits in lnt_scheduler_wait. */
void lnt_scheduler_nudge(lnt_scheduler *s);

/* One round; false: there was nothing to do. */
bool lnt_scheduler_round(lnt_scheduler *s);
/* Until there is something to do, at most so long. */
void lnt_scheduler_wait(lnt_scheduler *s, double seconds);
/* Everything fails that is not over. */
void lnt_scheduler_abandon(lnt_scheduler *s);

#endif
