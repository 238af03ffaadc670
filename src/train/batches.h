/* The order of the data: every epoch cuts the ids into windows at a random phase and visits them in a random order. Sample i is a pure function of
 * (seed, i), so a position is all a resume needs. */
#ifndef LNT_TRAIN_BATCHES_H
#define LNT_TRAIN_BATCHES_H

#include "core/rng.h"
#include "hub/corpus.h"

typedef struct lnt_batches {
    const int32_t *ids;   /* [n], the caller's */
    int64_t n, length, windows;
    uint64_t seed;
    int64_t epoch;        /* whose order is in `order`, -1: none */
    int64_t phase;
    int64_t *order;       /* [windows] */
} lnt_batches;

/* n >= length+1 is checked. */
linnet_status lnt_batches_create(lnt_ctx *c, const int32_t *ids, int64_t n, int64_t length, uint64_t seed, lnt_batches **out);
void lnt_batches_destroy(lnt_batches *b);
/* Sample i: `length` inputs and the `length` ids that follow them. */
void lnt_batches_get(lnt_batches *b, int64_t i, int32_t *inputs, int32_t *targets);

#endif
