#include "train/batches.h"

#include <string.h>

linnet_status lnt_batches_create(lnt_ctx *c, const int32_t *ids, int64_t n, int64_t length, uint64_t seed, lnt_batches **out)
{
    *out = NULL;
    if (n < length + 1) {
        lnt_fail(c, LINNET_EINVAL, "the training text has %lld tokens, expected at least %lld (one window and the token after it)", (long long)n,
                 (long long)length + 1);
        return lnt_hint(c, "Give more text or a smaller --length.");
    }
    lnt_batches *b = lnt_calloc(sizeof *b);
    if (!b) return lnt_fail_memory(c, sizeof *b);
    int64_t fit = (n - 1) / length;
    *b = (lnt_batches){.ids = ids,
                       .n = n,
                       .length = length,
                       .windows = fit > 1 ? fit - 1 : 1,
                       .seed = seed,
                       .epoch = -1}; /* one less than fit: room for the phase */
    b->order = lnt_alloc(lnt_bytes((size_t)b->windows, sizeof *b->order));
    if (!b->order) {
        lnt_free(b);
        return lnt_fail_memory(c, lnt_bytes((size_t)fit, sizeof *b->order));
    }
    *out = b;
    return LINNET_OK;
}

void lnt_batches_destroy(lnt_batches *b)
{
    if (!b) return;
    lnt_free(b->order);
    lnt_free(b);
}

static void set_epoch(lnt_batches *b, int64_t epoch)
{
    lnt_rng r = lnt_rng_make(b->seed, lnt_stream_of("data order") + (uint64_t)epoch);
    int64_t slack = b->n - 1 - b->windows * b->length;
    b->phase = (int64_t)lnt_rng_below(&r, (uint64_t)slack + 1);
    for (int64_t i = 0; i < b->windows; i++) b->order[i] = i;
    for (int64_t i = b->windows - 1; i > 0; i--) { /* Fisher-Yates */
        int64_t k = (int64_t)lnt_rng_below(&r, (uint64_t)i + 1), t = b->order[i];
        b->order[i] = b->order[k];
        b->order[k] = t;
    }
    b->epoch = epoch;
}

void lnt_batches_get(lnt_batches *b, int64_t i, int32_t *inputs, int32_t *targets)
{
    if (i / b->windows != b->epoch) set_epoch(b, i / b->windows);
    const int32_t *at = b->ids + b->phase + b->order[i % b->windows] * b->length;
    memcpy(inputs, at, (size_t)b->length * 4);
    memcpy(targets, at + 1, (size_t)b->length * 4);
}
