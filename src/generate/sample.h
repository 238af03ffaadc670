/* Drawing a token from logits: greedy, temperature, top-k, top-p. */
#ifndef LNT_GENERATE_SAMPLE_H
#define LNT_GENERATE_SAMPLE_H

#include "core/rng.h"
#include "core/status.h"

typedef struct lnt_sampler lnt_sampler;

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t vocabulary, const linnet_generate_options *o, lnt_sampler **out);
void lnt_sampler_destroy(lnt_sampler *s);
/* An id; logits [vocabulary] are read only. Ties go to the lower id. */
int32_t lnt_sampler_draw(lnt_sampler *s, const float *logits);

/* The largest of the first V logits of each row, to the host. logits: device, [rows, ld]; scratch: device, [rows]. */
linnet_status lnt_greedy(lnt_ctx *c, const float *logits, int64_t rows, int64_t ld, int64_t V, int32_t *scratch, int32_t *ids);
void lnt_greedy_cuda(lnt_ctx *c, const float *logits, int64_t rows, int64_t ld, int64_t V, int32_t *ids);

#endif
