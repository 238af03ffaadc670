/* The order of the data. Window i is a pure function of (seed, i), so a position is all a resume needs. */
#include <string.h>

#include "core/border.h"
#include "core/memory.h"
#include "core/rng.h"
#include "train/trainer.h"

struct linnet_windows {
    lnt_ctx *c;
    const int32_t *ids;   /* [n], the caller's */
    int64_t n, length, windows;
    uint64_t seed;
    int64_t epoch;        /* whose order is in `order`, -1: none */
    int64_t phase;
    int64_t *order;       /* [windows] */
};

linnet_status linnet_windows_create(linnet_context *c, const int32_t *ids, int64_t n, int64_t length, uint64_t seed, linnet_windows **out)
{
    LNT_NEED(c, out);
    *out = NULL;
    LNT_NEED(c, ids);
    if (length < 1) return lnt_fail(c, LINNET_EINVAL, "windows of %lld tokens, expected at least 1", (long long)length);
    if (n <= length) {
        lnt_fail(c, LINNET_EINVAL, "the training text has %lld token%s, expected at least %lld (one window and the token after it)", (long long)n,
                 n == 1 ? "" : "s", (long long)length + 1);
        return lnt_hint(c, "Give more text or a smaller --length.");
    }
    const int64_t fit = (n - 1) / length, windows = fit > 1 ? fit - 1 : 1; /* one less than fit: room for the phase */
    const size_t bytes = lnt_bytes((size_t)windows, sizeof(int64_t));
    linnet_windows *w = lnt_calloc(sizeof *w);
    int64_t *order = lnt_alloc(bytes);
    if (!w || !order) {
        lnt_free(w);
        lnt_free(order);
        return lnt_fail_memory(c, bytes);
    }
    *w = (linnet_windows){.c = c, .ids = ids, .n = n, .length = length, .windows = windows, .seed = seed, .epoch = -1, .order = order};
    *out = w;
    return LINNET_OK;
}

void linnet_windows_destroy(linnet_windows *w)
{
    if (!w) return;
    lnt_free(w->order);
    lnt_free(w);
}

int64_t lnt_windows_length(const linnet_windows *w) { return w->length; }

static void set_epoch(linnet_windows *w, int64_t epoch)
{
    lnt_rng r = lnt_rng_make(w->seed, lnt_stream_of("data order") + (uint64_t)epoch);
    int64_t slack = w->n - 1 - w->windows * w->length;
    w->phase = (int64_t)lnt_rng_below(&r, (uint64_t)slack + 1);
    for (int64_t i = 0; i < w->windows; i++) w->order[i] = i;
    for (int64_t i = w->windows - 1; i > 0; i--) { /* Fisher-Yates */
        int64_t k = (int64_t)lnt_rng_below(&r, (uint64_t)i + 1), t = w->order[i];
        w->order[i] = w->order[k];
        w->order[k] = t;
    }
    w->epoch = epoch;
}

linnet_status linnet_windows_get(linnet_windows *w, int64_t i, int32_t *ids, int32_t *targets)
{
    if (!w) return LINNET_EINVAL;
    LNT_NEED(w->c, ids);
    LNT_NEED(w->c, targets);
    if (i < 0) return lnt_fail(w->c, LINNET_EINVAL, "window %lld, expected at least 0", (long long)i);
    if (i / w->windows != w->epoch) set_epoch(w, i / w->windows);
    const int32_t *at = w->ids + w->phase + w->order[i % w->windows] * w->length;
    memcpy(ids, at, (size_t)w->length * 4);
    memcpy(targets, at + 1, (size_t)w->length * 4);
    return LINNET_OK;
}
