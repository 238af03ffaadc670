/* Drawing a token from logits: repetition penalty, greedy or temperature, top-k, top-p, min-p; what the model itself gives a token. */
#ifndef LNT_GENERATE_SAMPLE_H
#define LNT_GENERATE_SAMPLE_H

#include "core/rng.h"
#include "core/status.h"

typedef struct lnt_sampler lnt_sampler;

/* How a row of logits becomes an id where neither a cut nor a penalty is in the way. */
typedef struct {
    double temperature; /* 0: the largest */
    uint64_t bits;      /* of the draw */
} lnt_chance;

/* A number in (0,1) of an id's own, from the draw's 64 bits (the finaliser of splitmix64, Steele, Lea, Flood 2014). */
LNT_HOST_DEVICE static inline double lnt_number_of(uint64_t bits, int32_t id)
{
    uint64_t z = bits + ((uint64_t)id + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t vocabulary, const linnet_generate_options *o, lnt_sampler **out);
void lnt_sampler_destroy(lnt_sampler *s);
/* From now on s draws with the numbers that `other` will draw with next. */
void lnt_sampler_follow(lnt_sampler *s, const lnt_sampler *other);
/* These ids are in the text: the penalty is for them, and for what is drawn. */
void lnt_sampler_saw(lnt_sampler *s, const int32_t *ids, int64_t n);
/* An id; logits [vocabulary] are read only. Ties go to the lower id. -1: nothing can be drawn, as with lnt_largest. */
int32_t lnt_sampler_draw(lnt_sampler *s, const float *logits);
/* What lnt_sampler_draw would draw with next, for whoever draws in its place. */
lnt_chance lnt_sampler_chance(lnt_sampler *s);
/* An id of logits [V] in host memory; -1 as lnt_largest. */
int32_t lnt_draw_by(lnt_chance chance, const float *logits, int64_t V);
/* ln of the probability that logits [V] give an id, and of the n most probable ones (ties: the lower id first). */
double lnt_log_probability(const float *logits, int64_t V, int32_t id);
void lnt_most_probable(const float *logits, int64_t V, int n, int32_t *ids, double *log_probability);
/* The largest, of V in host memory. -1: it is infinite, or there is a NaN. */
int32_t lnt_largest(const float *logits, int64_t V);
/* The error for it, of a token so many behind the prompt. */
linnet_status lnt_fail_logits(lnt_ctx *c, int64_t token);

#endif
