/* Multi-query associative recall (Arora et al., Zoology, arXiv 2312.04927): examples. */
#ifndef LNT_TASKS_MQAR_H
#define LNT_TASKS_MQAR_H

#include "core/rng.h"
#include "core/status.h"

typedef struct {
    int64_t vocabulary, length, pairs;
    int64_t rounds; /* times the keys are shown, each time in another order and with fresh values; the last value counts. 1: the benchmark */
    bool random_non_queries; /* fill what is neither pair nor query with random ids (the harder, default setting) */
} lnt_mqar;

/* LINNET_EINVAL when the pairs do not fit: 2 pairs (rounds + 1) <= length, pairs <= vocabulary/2 - 1. */
linnet_status lnt_mqar_check(lnt_ctx *c, const lnt_mqar *q);
/* Example `index` of a stream: ids [length]; targets [length], the value at the position of each query's key, -1 elsewhere. `scratch` has room for
 * length + vocabulary numbers. */
void lnt_mqar_example(const lnt_mqar *q, uint64_t seed, uint64_t index, int32_t *ids, int32_t *targets, double *scratch);

#endif
