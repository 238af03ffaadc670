#include "eval/scorer.h"

#include <math.h>
#include <string.h>

#include "device/device.h"

linnet_status lnt_scorer_create(lnt_ctx *c, linnet_model *m, int64_t length, int64_t windows, lnt_scorer **out)
{
    return lnt_scorer_create_looking(c, m, length, windows, false, out);
}

linnet_status lnt_scorer_create_looking(lnt_ctx *c, linnet_model *m, int64_t length, int64_t windows, bool looking, lnt_scorer **out)
{
    *out = NULL;
    int64_t tokens;
    if (length < 1 || windows < 1 || !lnt_mul(length, windows, &tokens))
        return lnt_fail(c, LINNET_EINVAL, "a window of %lld tokens, expected at least 1", (long long)length);
    lnt_scorer *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->m = m;
    s->length = s->stride = length;
    s->windows = windows;
    s->unasked = -1;
    s->ids = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    s->targets = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    s->loss = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    linnet_status status;
    if (!s->ids || !s->targets || !s->loss) {
        status = lnt_fail_memory(c, lnt_bytes((size_t)tokens, 4));
        goto fail;
    }
    lnt_plan_options o = {.tokens = tokens, .n_seq = windows, .dtype = m->dtype, .finite = looking, .n_outputs = 1, .outputs = {m->loss}};
    LNT_TRY_GOTO(status, lnt_plan_create(c, m->p, &o, &s->plan), fail);
    *out = s;
    return LINNET_OK;
fail:
    lnt_scorer_destroy(s);
    return status;
}

void lnt_scorer_destroy(lnt_scorer *s)
{
    if (!s) return;
    lnt_plan_destroy(s->plan);
    lnt_free(s->ids);
    lnt_free(s->targets);
    lnt_free(s->loss);
    lnt_free(s);
}

/* Ids and targets of windows first .. first+count, what lies beyond the end filled up with ignored positions. Returns how many lie there
 * ahead of it. */
static int64_t fill(lnt_scorer *s, const int32_t *ids, int64_t n, int64_t first, int64_t count)
{
    int64_t given = 0;
    for (int64_t w = 0; w < count; w++) {
        const int32_t *from = ids + (first + w) * s->stride;
        int64_t left = ids + n - 1 - from;
        given += left < s->length ? left : s->length;
        for (int64_t i = 0; i < s->length; i++) {
            s->ids[w * s->length + i] = from[i < left ? i : 0];
            s->targets[w * s->length + i] = i < left && from[i + 1] != s->unasked ? from[i + 1] : -1;
        }
    }
    return given;
}

linnet_status lnt_scorer_run(lnt_scorer *s, const int32_t *ids, int64_t n, int (*progress)(void *, int64_t, int64_t), void *user, lnt_score *score)
{
    if (n < 2) return LINNET_OK;
    int64_t beyond = n - 1 - s->length; /* predictions after the first window */
    int64_t windows = beyond > 0 ? 1 + (beyond + s->stride - 1) / s->stride : 1;
    int64_t total = (windows - 1) * s->length + (n - 1 - (windows - 1) * s->stride), done = 0;
    for (int64_t first = 0; first < windows; first += s->windows) {
        int64_t count = windows - first < s->windows ? windows - first : s->windows;
        int64_t given = fill(s, ids, n, first, count);
        lnt_batch b = {
            .tokens = count * s->length, .n_seq = count, .n_inputs = 2, .inputs = {{s->m->ids, s->ids}, {s->m->targets, s->targets}}};
        LNT_TRY(lnt_plan_run(s->plan, s->m->w, &b));
        lnt_to_host(s->m->c, s->loss, lnt_plan_output(s->plan, s->m->loss).data, (size_t)given * 4);
        for (int64_t i = 0; i < given; i++) { /* only the very last window is short, so that what was asked for lies together */
            if (score->finite && s->targets[i] >= 0 && !isfinite(s->loss[i])) {
                const int64_t token = (first + i / s->length) * s->stride + i % s->length + 2;
                lnt_fail(s->m->c, LINNET_EINVAL, "the loss of token %lld is %g", (long long)token, s->loss[i]);
                return lnt_hint(s->m->c, "Say --check-finite to see which layer and operator it comes from.");
            }
            if (s->targets[i] < 0) continue;
            score->nats += s->loss[i];
            score->tokens++;
            if (score->position_nats) {
                score->position_nats[i % s->length] += s->loss[i];
                score->position_count[i % s->length]++;
            }
        }
        const int64_t end = (first + count - 1) * s->stride + s->length;
        score->reached = end < n - 1 ? end : n - 1;
        done += given;
        if (progress && progress(user, done, total)) return lnt_fail(s->m->c, LINNET_EINTERRUPTED, "evaluation was stopped");
    }
    return LINNET_OK;
}
