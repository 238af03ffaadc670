#include "tasks/mqar.h"

#include <math.h>
#include <string.h>

linnet_status lnt_mqar_check(lnt_ctx *c, const lnt_mqar *q)
{
    if (q->vocabulary < 4 || q->vocabulary > 1 << 24)
        return lnt_fail(c, LINNET_EINVAL, "vocabulary is %lld, expected 4 to %d", (long long)q->vocabulary, 1 << 24);
    if (q->length < 4 || q->length % 2 || q->length > 1 << 24)
        return lnt_fail(c, LINNET_EINVAL, "length is %lld, expected an even number of at least 4", (long long)q->length);
    if (q->rounds < 1 || q->rounds > q->length) return lnt_fail(c, LINNET_EINVAL, "rounds is %lld, expected at least 1", (long long)q->rounds);
    int64_t most = q->length / 2 / (q->rounds + 1);
    if (q->pairs < 1 || q->pairs > most)
        return lnt_fail(c, LINNET_EINVAL, "pairs is %lld, but %lld rounds and their queries leave room for 1 to %lld in length %lld",
                        (long long)q->pairs, (long long)q->rounds, (long long)most, (long long)q->length);
    if (q->pairs > q->vocabulary / 2 - 1)
        return lnt_fail(c, LINNET_EINVAL, "%lld pairs need more keys than vocabulary %lld has", (long long)q->pairs, (long long)q->vocabulary);
    return LINNET_OK;
}

/* n distinct numbers of [low, high), by the first n steps of Fisher-Yates over `pool`. */
static void draw_distinct(lnt_rng *r, int64_t low, int64_t high, int64_t n, int32_t *pool, int32_t *out)
{
    int64_t size = high - low;
    for (int64_t i = 0; i < size; i++) pool[i] = (int32_t)(low + i);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i + (int64_t)lnt_rng_below(r, (uint64_t)(size - i));
        out[i] = pool[k];
        pool[k] = pool[i];
    }
}

/* One of the slots left, slot j with weight (j+1)^(a-1), a = 0.01: most queries come soon after the pairs, some late. */
static int64_t draw_slot(lnt_rng *r, double *weight, int64_t slots)
{
    double sum = 0;
    int64_t last = 0;
    for (int64_t j = 0; j < slots; j++) sum += weight[j];
    double u = lnt_rng_uniform(r) * sum;
    for (int64_t j = 0; j < slots; j++) {
        if (weight[j] == 0) continue;
        last = j;
        u -= weight[j];
        if (u < 0) break;
    }
    weight[last] = 0;
    return last;
}

static void shuffle(lnt_rng *r, int64_t n, int32_t *x)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)lnt_rng_below(r, (uint64_t)i + 1);
        int32_t t = x[i];
        x[i] = x[k];
        x[k] = t;
    }
}

void lnt_mqar_example(const lnt_mqar *q, uint64_t seed, uint64_t index, int32_t *ids, int32_t *targets, double *scratch)
{
    int64_t V = q->vocabulary, n = q->pairs, prefix = 2 * n * q->rounds, slots = (q->length - prefix) / 2;
    double *weight = scratch;
    int32_t *pool = (int32_t *)(scratch + slots), *keys = pool + V, *values = keys + n; /* V + 2n <= 2V numbers of 4 bytes */
    lnt_rng r = lnt_rng_make(seed, lnt_stream_of("mqar") + index);
    draw_distinct(&r, 1, V / 2, n, pool, keys);
    for (int64_t i = 0; i < q->length; i++) {
        ids[i] = q->random_non_queries ? (int32_t)lnt_rng_below(&r, (uint64_t)V) : 0;
        targets[i] = -1;
    }
    for (int64_t round = 0; round < q->rounds; round++) {
        if (round) shuffle(&r, n, keys);
        draw_distinct(&r, V / 2, V, n, pool, values);
        for (int64_t i = 0; i < n; i++) {
            ids[2 * (round * n + i)] = keys[i];
            ids[2 * (round * n + i) + 1] = values[i];
        }
    }
    for (int64_t j = 0; j < slots; j++) weight[j] = pow((double)j + 1, 0.01 - 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = prefix + 2 * draw_slot(&r, weight, slots);
        ids[at] = keys[i];
        targets[at] = values[i];
    }
}
