#include "generate/sample.h"

#include <math.h>
#include <stdlib.h>

#include "core/memory.h"

typedef struct {
    double p;
    int32_t id;
} candidate;

struct lnt_sampler {
    int64_t V, top_k;
    double temperature, top_p;
    lnt_rng rng;
    candidate *list; /* [V] */
};

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t V, const linnet_generate_options *o, lnt_sampler **out)
{
    lnt_sampler *s = *out = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    *s = (lnt_sampler){
        .V = V, .top_k = o->top_k, .temperature = o->temperature, .top_p = o->top_p, .rng = lnt_rng_make(o->seed, lnt_stream_of("generate"))};
    s->list = lnt_alloc(lnt_bytes((size_t)V, sizeof *s->list));
    if (s->list) return LINNET_OK;
    lnt_sampler_destroy(s);
    *out = NULL;
    return lnt_fail_memory(c, lnt_bytes((size_t)V, sizeof *s->list));
}

void lnt_sampler_destroy(lnt_sampler *s)
{
    if (!s) return;
    lnt_free(s->list);
    lnt_free(s);
}

void lnt_sampler_follow(lnt_sampler *s, const lnt_sampler *other) { s->rng = other->rng; }

static int by_probability(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

int32_t lnt_largest(const float *logits, int64_t V)
{
    int32_t best = 0;
    bool nan = isnan(logits[0]);
    for (int64_t i = 1; i < V; i++) {
        nan |= isnan(logits[i]);
        if (logits[i] > logits[best]) best = (int32_t)i;
    }
    return nan || !isfinite(logits[best]) ? -1 : best;
}

linnet_status lnt_fail_logits(lnt_ctx *c, int64_t token)
{
    lnt_fail(c, LINNET_EINVAL, "the logits of token %lld are not finite numbers: nothing can be drawn from them", (long long)token + 1);
    return lnt_hint(c, "Say --check-finite to see which layer and operator they come from.");
}

int32_t lnt_sampler_draw(lnt_sampler *s, const float *logits)
{
    int32_t best = lnt_largest(logits, s->V);
    if (s->temperature == 0 || best < 0) return best;
    double sum = 0;
    for (int64_t i = 0; i < s->V; i++) {
        s->list[i] = (candidate){exp(((double)logits[i] - logits[best]) / s->temperature), (int32_t)i};
        sum += s->list[i].p;
    }
    int64_t n = s->V;
    if (s->top_k > 0 || s->top_p < 1) {
        qsort(s->list, (size_t)n, sizeof *s->list, by_probability);
        if (s->top_k > 0 && s->top_k < n) n = s->top_k;
        double kept = 0, whole = 0;
        for (int64_t i = 0; i < n; i++) whole += s->list[i].p;
        int64_t m = 0; /* the fewest that hold top_p of what top_k left */
        while (m < n && kept < s->top_p * whole) kept += s->list[m++].p;
        n = m;
        sum = kept;
    }
    double u = lnt_rng_uniform(&s->rng) * sum;
    for (int64_t i = 0; i < n; i++) {
        u -= s->list[i].p;
        if (u < 0) return s->list[i].id;
    }
    return s->list[n - 1].id;
}
