/* Drawing a token from logits: repetition penalty, greedy or temperature, top-k, top-p, min-p; what the model itself gives a token. */
#ifndef LNT_GENERATE_SAMPLE_H
#define LNT_GENERATE_SAMPLE_H

#include "core/rng.h"
#include "core/status.h"

typedef struct lnt_sampler lnt_sampler;

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t vocabulary, const linnet_generate_options *o, lnt_sampler **out);
void lnt_sampler_destroy(lnt_sampler *s);
/* From now on s draws with the numbers that `other` will draw with next. */
void lnt_sampler_follow(lnt_sampler *s, const lnt_sampler *other);
/* These ids are in the text: the penalty is for them, and for what is drawn. */
void lnt_sampler_saw(lnt_sampler *s, const int32_t *ids, int64_t n);
/* An id; logits [vocabulary] are read only. Ties go to the lower id. -1: nothing can be drawn, as with lnt_largest. */
int32_t lnt_sampler_draw(lnt_sampler *s, const float *logits);
/* ln of the probability that logits [V] give an id, and of the n most probable ones (ties: the lower id first). */
double lnt_log_probability(const float *logits, int64_t V, int32_t id);
void lnt_most_probable(const float *logits, int64_t V, int n, int32_t *ids, double *log_probability);
/* The largest, of V in host memory. -1: it is infinite, or there is a NaN. */
int32_t lnt_largest(const float *logits, int64_t V);
/* The error for it, of a token so many behind the prompt. */
linnet_status lnt_fail_logits(lnt_ctx *c, int64_t token);

#endif
