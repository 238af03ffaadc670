/* linnet_bench_train: a training step and a decoding step of a model on random ids, with their floors. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "train/trainer.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Bytes a decoding step at batch 1 cannot avoid: every product's weights and every other parameter once (of the embedding, one row), states read and
 * written. */
static double decode_floor(const linnet_model *m, int64_t capacity)
{
    double bytes = 2 * (double)lnt_state_bytes(m->p, m->dtype, capacity);
    bool tied = m->config->tie_word_embeddings;
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        bool looked_up = !tied && !strcmp(q->name, "model.embeddings.weight");
        bytes += (double)(looked_up ? q->dim[1] : q->count) * (double)(q->product ? lnt_dtype_size(m->dtype) : 4);
    }
    return bytes;
}

static linnet_status bench_decode(lnt_ctx *c, linnet_model *m, const int32_t *ids, int64_t steps, linnet_bench_train_result *out)
{
    lnt_plan *plan = NULL;
    lnt_state *state = NULL;
    linnet_status s;
    double *seconds = lnt_alloc((size_t)steps * sizeof *seconds);
    if (!seconds) return lnt_fail_memory(c, (size_t)steps * sizeof *seconds);
    lnt_plan_options o = {
        .tokens = 1, .n_seq = 1, .dtype = m->dtype, .has_state = true, .state_capacity = steps + 1, .n_outputs = 1, .outputs = {m->logits}};
    LNT_TRY_GOTO(s, lnt_state_create(c, m->p, m->dtype, 1, steps + 1, &state), done);
    LNT_TRY_GOTO(s, lnt_plan_create(c, m->p, &o, &plan), done);
    for (int64_t i = 0; i < steps; i++) {
        lnt_batch b = {.tokens = 1, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids + i}}, .state = state};
        double start = lnt_now();
        LNT_TRY_GOTO(s, lnt_plan_run(plan, m->w, &b), done);
        lnt_device_wait(c);
        seconds[i] = lnt_now() - start;
    }
    out->decode_seconds = median(seconds, steps);
    out->decode_bytes = decode_floor(m, steps + 1);
done:
    lnt_plan_destroy(plan);
    lnt_state_destroy(state);
    lnt_free(seconds);
    return s;
}

linnet_status linnet_bench_train(linnet_context *c, linnet_model *m, const linnet_bench_train_options *o, linnet_bench_train_result *out)
{
    enum { DECODE_STEPS = 64 };
    if (o->repeats < 1) return lnt_fail(c, LINNET_EINVAL, "repeats is %lld, expected at least 1", (long long)o->repeats);
    lnt_trainer *t = NULL;
    linnet_status s;
    int64_t tokens;
    if (!lnt_mul(o->batch, o->length, &tokens))
        return lnt_fail(c, LINNET_EINVAL, "batch %lld times length %lld", (long long)o->batch, (long long)o->length);
    int64_t drawn = tokens > DECODE_STEPS ? tokens : DECODE_STEPS;
    int32_t *ids = lnt_alloc((size_t)(drawn + 1) * 4);
    double *seconds = lnt_alloc((size_t)o->repeats * sizeof *seconds);
    *out = (linnet_bench_train_result){0};
    if (!ids || !seconds) {
        s = lnt_fail_memory(c, (size_t)(drawn + 1) * 4);
        goto done;
    }
    lnt_rng r = lnt_rng_make(1, lnt_stream_of("bench ids"));
    for (int64_t i = 0; i <= drawn; i++) ids[i] = (int32_t)lnt_rng_below(&r, (uint64_t)m->config->vocab_size);
    LNT_TRY_GOTO(s, lnt_trainer_create(c, m, o->batch, o->length, o->recompute != 0, &t), done);
    double first = 0, last = 0, norm;
    for (int64_t i = -1; i < o->repeats; i++) { /* step -1 touches the memory for the first time and is not counted */
        double start = lnt_now(), nats;
        if (i == 0) lnt_plan_profile_reset(t->plan);
        LNT_TRY_GOTO(s, lnt_trainer_micro(t, ids, ids + 1, tokens, o->batch, NULL, 1.0 / (double)tokens, &nats), done);
        LNT_TRY_GOTO(s, lnt_trainer_update(t, 1e-3, &norm), done);
        lnt_device_wait(c);
        if (i >= 0) seconds[i] = lnt_now() - start;
        if (i < 0) first = nats;
        last = nats;
    }
    if (!(last < first)) { /* the same batch again and again: a step that does not lower its loss is wrong, and its time worth nothing */
        s = lnt_fail(c, LINNET_EINTERNAL, "the loss went from %g to %g nats while training on one batch", first, last);
        goto done;
    }
    linnet_model_info info;
    linnet_model_get_info(m, &info);
    out->parameters = info.parameters;
    out->plan_bytes = (int64_t)lnt_plan_bytes(t->plan);
    out->flops = lnt_plan_flops(t->plan);
    out->profile = lnt_plan_profile(t->plan);
    out->step_seconds = median(seconds, o->repeats);
    out->tokens_per_second = (double)tokens / out->step_seconds;
    s = bench_decode(c, m, ids, DECODE_STEPS, out);
done:
    lnt_trainer_destroy(t);
    lnt_free(ids);
    lnt_free(seconds);
    return s;
}
