/* Drawing a token from logits: greedy, temperature, top-k, top-p. */
#ifndef LNT_GENERATE_SAMPLE_H
#define LNT_GENERATE_SAMPLE_H

#include "core/rng.h"
#include "core/status.h"

typedef struct lnt_sampler lnt_sampler;

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t vocabulary, const linnet_generate_options *o, lnt_sampler **out);
void lnt_sampler_destroy(lnt_sampler *s);
/* From now on s draws with the numbers that `other` will draw with next. */
void lnt_sampler_follow(lnt_sampler *s, const lnt_sampler *other);
/* An id; logits [vocabulary] are read only. Ties go to the lower id. -1: nothing can be drawn, as with lnt_largest. */
int32_t lnt_sampler_draw(lnt_sampler *s, const float *logits);
/* The largest, of V in host memory. -1: it is infinite, or there is a NaN. */
int32_t lnt_largest(const float *logits, int64_t V);
/* The error for it, of a token so many behind the prompt. */
linnet_status lnt_fail_logits(lnt_ctx *c, int64_t token);

#endif
