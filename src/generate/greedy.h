/* Tokens that the device chooses: behind a step of a plan the largest logit of each row, or one drawn by temperature, becomes the input of the next
 * step where the plan reads it, so that steps can be put one behind the other; the host reads the ids while a later step runs. */
#ifndef LNT_GENERATE_GREEDY_H
#define LNT_GENERATE_GREEDY_H

#include "generate/sample.h"
#include "program/plan.h"

enum { LNT_GREEDY_TURNS = 2 }; /* ids of so many steps wait for the host at most */

typedef struct {
    lnt_ctx *c;
    const float *logits; /* device, [rows, ld] */
    int64_t rows, ld, V; /* rows: of the next step put, at most `most` */
    int64_t most;
    int32_t *next;       /* device, [rows] */
    int32_t *ids;        /* host and device, [LNT_GREEDY_TURNS][most] */
    lnt_chance *chance, *there; /* [most] of the next step put, on the host, and for the device; NULL: rows take the largest */
    int32_t *turn;       /* device, [2]: which of LNT_GREEDY_TURNS the next step put has; rows of it that are done. NULL: the CPU */
    int64_t put, taken;  /* steps; one that failed counts for nothing */
    bool lost;           /* the last one failed: the device may count another turn */
} lnt_greedy;

/* Of rows [rows, ld] of `logits` in the device's memory, whose first V columns count; the largest ones' columns go to `next`. */
linnet_status lnt_greedy_over(lnt_ctx *c, const float *logits, int64_t rows, int64_t ld, int64_t V, int32_t *next, lnt_greedy *g);
/* The same of a plan that makes `logits` and reads `input`. */
linnet_status lnt_greedy_open(lnt_ctx *c, const lnt_plan *plan, lnt_buf logits, lnt_buf input, int64_t V, lnt_greedy *g);
/* Rows may be drawn: the caller writes g->chance before a step is put. */
linnet_status lnt_greedy_by_chance(lnt_greedy *g);
void lnt_greedy_close(lnt_greedy *g);
/* A run of the plan, a token of each sequence, whose choices are put behind it; on a GPU, where all rows take the largest, as part of what is
 * recorded. `g` then stays what and where it is for as long as the plan runs. */
linnet_status lnt_greedy_step(lnt_greedy *g, lnt_plan *plan, lnt_weights *w, const lnt_batch *b);
/* The choices alone: of logits that are on their way. */
linnet_status lnt_greedy_put(lnt_greedy *g);
/* The ids of the oldest step put and not yet taken, [rows], when they are there; valid until LNT_GREEDY_TURNS - 1 further steps are put. -1 where the
 * logits had no largest (a step behind it then has read 0). */
const int32_t *lnt_greedy_take(lnt_greedy *g);

/* chance: device, [rows], or NULL. */
void lnt_greedy_cuda(const lnt_greedy *g, const lnt_chance *chance);

#endif
