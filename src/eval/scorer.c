#include "eval/scorer.h"

#include <string.h>

#include "device/device.h"

linnet_status lnt_scorer_create(lnt_ctx *c, linnet_model *m, int64_t length, int64_t windows, lnt_scorer **out)
{
    *out = NULL;
    int64_t tokens;
    if (length < 1 || windows < 1 || !lnt_mul(length, windows, &tokens))
        return lnt_fail(c, LINNET_EINVAL, "a window of %lld tokens, expected at least 1", (long long)length);
    lnt_scorer *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->m = m;
    s->length = length;
    s->windows = windows;
    s->ids = lnt_alloc((size_t)tokens * 4);
    s->targets = lnt_alloc((size_t)tokens * 4);
    s->loss = lnt_alloc((size_t)tokens * 4);
    linnet_status status;
    if (!s->ids || !s->targets || !s->loss) {
        status = lnt_fail_memory(c, (size_t)tokens * 4);
        goto fail;
    }
    lnt_plan_options o = {.tokens = tokens, .n_seq = windows, .dtype = m->dtype, .n_outputs = 1, .outputs = {m->loss}};
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

linnet_status lnt_scorer_run(lnt_scorer *s, const int32_t *ids, int64_t n, int (*progress)(void *, int64_t, int64_t), void *user, lnt_score *score)
{
    int64_t per_run = s->length * s->windows;
    for (int64_t at = 0; at + 1 < n; at += per_run) {
        int64_t given = n - 1 - at < per_run ? n - 1 - at : per_run; /* predictions of this run */
        int64_t windows = (given + s->length - 1) / s->length;
        for (int64_t i = 0; i < windows * s->length; i++) { /* the last window is filled up with ignored positions */
            s->ids[i] = ids[at + (i < given ? i : 0)];
            s->targets[i] = i < given ? ids[at + i + 1] : -1;
        }
        lnt_batch b = {.tokens = windows * s->length, .n_seq = windows, .n_inputs = 2, .inputs = {{s->m->ids, s->ids}, {s->m->targets, s->targets}}};
        LNT_TRY(lnt_plan_run(s->plan, s->m->w, &b));
        lnt_to_host(s->m->c, s->loss, lnt_plan_output(s->plan, s->m->loss).data, (size_t)given * 4);
        for (int64_t i = 0; i < given; i++) {
            score->nats += s->loss[i];
            if (score->position_nats) {
                score->position_nats[i % s->length] += s->loss[i];
                score->position_count[i % s->length]++;
            }
        }
        score->tokens += given;
        if (progress && progress(user, at + given, n - 1)) return lnt_fail(s->m->c, LINNET_EINTERRUPTED, "evaluation was stopped");
    }
    return LINNET_OK;
}
