#include "generate/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

typedef struct {
    double p;
    int32_t id;
} candidate;

struct lnt_sampler {
    int64_t V, top_k;
    double temperature, top_p, min_p, penalty;
    lnt_rng rng;
    candidate *list;  /* [V] */
    bool *seen;       /* [V]; NULL: without a penalty */
    float *penalised; /* [V], the same */
};

linnet_status lnt_sampler_create(lnt_ctx *c, int64_t V, const linnet_generate_options *o, lnt_sampler **out)
{
    lnt_sampler *s = *out = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    *s = (lnt_sampler){
        .V = V, .top_k = o->top_k, .temperature = o->temperature, .top_p = o->top_p, .min_p = o->min_p, .penalty = o->repetition_penalty,
        .rng = lnt_rng_make(o->seed, lnt_stream_of("generate"))};
    s->list = lnt_alloc(lnt_bytes((size_t)V, sizeof *s->list));
    if (s->penalty != 1) {
        s->seen = lnt_calloc((size_t)V);
        s->penalised = lnt_alloc(lnt_bytes((size_t)V, sizeof *s->penalised));
    }
    if (s->list && (s->penalty == 1 || (s->seen && s->penalised))) return LINNET_OK;
    lnt_sampler_destroy(s);
    *out = NULL;
    return lnt_fail_memory(c, lnt_bytes((size_t)V, sizeof *s->list));
}

void lnt_sampler_destroy(lnt_sampler *s)
{
    if (!s) return;
    lnt_free(s->list);
    lnt_free(s->seen);
    lnt_free(s->penalised);
    lnt_free(s);
}

void lnt_sampler_follow(lnt_sampler *s, const lnt_sampler *other)
{
    s->rng = other->rng;
    if (s->seen) memcpy(s->seen, other->seen, (size_t)s->V * sizeof *s->seen);
}

void lnt_sampler_saw(lnt_sampler *s, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; s->seen && i < n; i++) s->seen[ids[i]] = true;
}

static const float *penalise(lnt_sampler *s, const float *logits)
{
    if (!s->seen) return logits;
    for (int64_t i = 0; i < s->V; i++) {
        const double x = logits[i];
        s->penalised[i] = (float)(!s->seen[i] ? x : x > 0 ? x / s->penalty : x * s->penalty);
    }
    return s->penalised;
}

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

/* An id of n candidates with its share of the probability: the first of a race in which each arrives after an exponential time of rate p. The times
 * follow from numbers that belong to the ids, so that a draft whose probabilities are near the model's draws what the model draws, whatever the order
 * and the sums of either: the chance that they differ is at most 2 d / (1 + d), d being half the sum of the differences. */
static void arrive(uint64_t bits, int32_t id, double p, double *soonest, int32_t *first)
{
    const double u = lnt_number_of(bits, id);
    if ((1 - u) >= *soonest * p) return; /* -ln u is no less than 1 - u */
    const double time = -log(u) / p;
    if (time < *soonest) *soonest = time, *first = id;
}

static double probability(const float *logits, int64_t i, int32_t best, double temperature)
{
    return exp(((double)logits[i] - logits[best]) / temperature);
}

int32_t lnt_draw_by(lnt_chance chance, const float *logits, int64_t V)
{
    const int32_t best = lnt_largest(logits, V);
    double soonest = INFINITY;
    int32_t first = best;
    for (int64_t i = 0; i < V && best >= 0 && chance.temperature != 0; i++)
        arrive(chance.bits, (int32_t)i, probability(logits, i, best, chance.temperature), &soonest, &first);
    return first;
}

/* By temperature, among those that the cuts leave, which are taken one behind the other. */
static int32_t draw(lnt_sampler *s, const float *logits, int32_t best)
{
    for (int64_t i = 0; i < s->V; i++) s->list[i] = (candidate){probability(logits, i, best, s->temperature), (int32_t)i};
    int64_t n = s->V;
    qsort(s->list, (size_t)n, sizeof *s->list, by_probability);
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    double kept = 0, whole = 0, soonest = INFINITY;
    for (int64_t i = 0; i < n; i++) whole += s->list[i].p;
    int64_t m = 0; /* the fewest that hold top_p of what top_k left, and of these those that min_p leaves; the first one's p is 1 */
    while (m < n && kept < s->top_p * whole && s->list[m].p >= s->min_p) kept += s->list[m++].p;
    const uint64_t bits = lnt_rng_u64(&s->rng);
    int32_t first = s->list[0].id;
    for (int64_t i = 0; i < m; i++) arrive(bits, s->list[i].id, s->list[i].p, &soonest, &first);
    return first;
}

lnt_chance lnt_sampler_chance(lnt_sampler *s)
{
    lnt_chance chance = {.temperature = s->temperature};
    if (s->temperature != 0) chance.bits = lnt_rng_u64(&s->rng);
    return chance;
}

int32_t lnt_sampler_draw(lnt_sampler *s, const float *given)
{
    const float *logits = penalise(s, given);
    const bool cut = s->temperature != 0 && (s->top_k > 0 || s->top_p < 1 || s->min_p > 0);
    const int32_t best = cut ? lnt_largest(logits, s->V) : -1;
    const int32_t id = !cut ? lnt_draw_by(lnt_sampler_chance(s), logits, s->V) : best >= 0 ? draw(s, logits, best) : -1;
    if (id >= 0) lnt_sampler_saw(s, &id, 1);
    return id;
}

/* ln of the sum of exp over all of them. */
static double log_sum(const float *logits, int64_t V)
{
    float most = logits[0]; /* no double: GCC 12 for AArch64 breaks down over that loop */
    double sum = 0;
    for (int64_t i = 1; i < V; i++) most = fmaxf(most, logits[i]);
    for (int64_t i = 0; i < V; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

double lnt_log_probability(const float *logits, int64_t V, int32_t id) { return logits[id] - log_sum(logits, V); }

void lnt_most_probable(const float *logits, int64_t V, int n, int32_t *ids, double *log_probability)
{
    const double whole = n > 0 ? log_sum(logits, V) : 0;
    int m = 0; /* ids [m], sorted */
    for (int64_t i = 0; i < V; i++) {
        if (m == n && (n == 0 || !(logits[i] > logits[ids[n - 1]]))) continue;
        int at = m < n ? m++ : n - 1;
        for (; at > 0 && logits[i] > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)i;
    }
    for (int i = 0; i < m; i++) log_probability[i] = logits[ids[i]] - whole;
}
