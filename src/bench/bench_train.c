/* linnet_bench_train: a training step and a decoding step of a model on random ids, with their floors. */
#include <math.h>

#include "bench/measure.h"
#include "core/clock.h"
#include "device/device.h"
#include "train/trainer.h"

/* ---- a step -------------------------------------------------------------------------------------------------------------------------- */

static linnet_status random_ids(lnt_ctx *c, int64_t n, int64_t vocabulary, int32_t **out)
{
    lnt_rng r = lnt_rng_make(1, lnt_stream_of("bench ids"));
    *out = lnt_alloc(lnt_bytes((size_t)n, 4));
    if (!*out) return lnt_fail_memory(c, lnt_bytes((size_t)n, 4));
    for (int64_t i = 0; i < n; i++) (*out)[i] = (int32_t)lnt_rng_below(&r, (uint64_t)vocabulary);
    return LINNET_OK;
}

/* Forward, backward and update on sequences of ids; the mean loss, and the seconds of the whole and of the update. */
static linnet_status one_step(lnt_trainer *t, const int32_t *ids, int64_t batch, double *loss, double *seconds, double *update_seconds)
{
    lnt_step_sums sums;
    double start = lnt_now();
    LNT_TRY(lnt_trainer_micro(t, ids, ids + 1, t->tokens, batch, NULL, 1.0 / (double)t->tokens));
    if (update_seconds) lnt_device_wait(t->c);
    double middle = lnt_now();
    LNT_TRY(lnt_trainer_update(t, 1e-3, &sums));
    if (update_seconds) *update_seconds = lnt_now() - middle;
    *seconds = lnt_now() - start;
    *loss = sums.nats / (double)t->tokens;
    return LINNET_OK;
}

/* ---- the check of a GPU against the CPU -------------------------------------------------------------------------------------------------- */

enum { CHECK_STEPS = 3, CHECK_BATCH = 2, CHECK_LENGTH = 160 };

/* The configuration's kind of model, small: heads keep 128 columns, so that the kernels are those of large models. */
static linnet_status small_config(lnt_ctx *c, const linnet_config *k, linnet_config **out)
{
    LNT_TRY(lnt_config_copy(c, k, out));
    linnet_config *s = *out;
    lnt_config_size(s, 256, 2, 128);
    lnt_config_put_int(s, "intermediate_size", 512);
    if (s->vocab_size > 512) s->vocab_size = 512;
    if (s->n_mixers == 1 && !s->named_layers && s->num_hidden_layers > 2) s->num_hidden_layers = 2;
    return LINNET_OK;
}

static linnet_status small_losses(lnt_ctx *c, const linnet_config *k, linnet_dtype dtype, const linnet_bench_train_options *o,
                                  double loss[CHECK_STEPS])
{
    linnet_model *m = NULL;
    lnt_trainer *t = NULL;
    int32_t *ids = NULL;
    linnet_status s;
    double seconds;
    LNT_TRY(linnet_model_create(c, k, dtype, 1, &m));
    LNT_TRY_GOTO(s, lnt_trainer_create(c, m, CHECK_BATCH, CHECK_LENGTH, (lnt_recompute)o->recompute, (lnt_dtype)o->moments, &t), done);
    LNT_TRY_GOTO(s, random_ids(c, CHECK_BATCH * CHECK_LENGTH + 1, k->vocab_size, &ids), done);
    for (int i = 0; i < CHECK_STEPS; i++) LNT_TRY_GOTO(s, one_step(t, ids, CHECK_BATCH, &loss[i], &seconds, NULL), done);
done:
    lnt_trainer_destroy(t);
    linnet_model_destroy(m);
    lnt_free(ids);
    return s;
}

/* The same small model trained on the device (its third step replayed from a graph) and on the CPU: the time of wrong numbers is worth nothing. */
static linnet_status check_device(lnt_ctx *c, const linnet_model *m, const linnet_bench_train_options *options)
{
    const double tolerance = m->dtype == LINNET_F32 ? 1e-4 : 5e-3;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *cpu = NULL;
    linnet_config *k = NULL;
    double here[CHECK_STEPS], there[CHECK_STEPS];
    linnet_status s = linnet_context_create(&o, &cpu);
    if (s != LINNET_OK) s = lnt_fail(c, s, "no CPU to compare with: %s", cpu ? linnet_error_message(cpu) : "out of memory");
    if (s == LINNET_OK) s = small_config(c, m->config, &k);
    if (s == LINNET_OK) s = small_losses(c, k, m->dtype, options, here);
    if (s == LINNET_OK && (s = small_losses(cpu, k, m->dtype, options, there)) != LINNET_OK) lnt_fail(c, s, "%s", linnet_error_message(cpu));
    for (int i = 0; s == LINNET_OK && i < CHECK_STEPS; i++)
        if (!(fabs(here[i] - there[i]) <= tolerance * fabs(there[i])))
            s = lnt_fail(c, LINNET_EINTERNAL, "a small model's loss at step %d is %.7g on this device and %.7g on the CPU", i + 1, here[i], there[i]);
    linnet_config_destroy(k);
    linnet_context_destroy(cpu);
    return s;
}

/* ---- the benchmark ------------------------------------------------------------------------------------------------------------------------ */

static linnet_status measure(lnt_ctx *c, linnet_model *m, const linnet_bench_train_options *o, linnet_bench_train_result *out)
{
    enum { DECODE_STEPS = 64, PROFILE_STEPS = 2, GRAPH_STEPS = 2 };
    lnt_trainer *t = NULL;
    linnet_status s;
    int64_t tokens;
    if (!lnt_mul(o->batch, o->length, &tokens))
        return lnt_fail(c, LINNET_EINVAL, "batch %lld times length %lld", (long long)o->batch, (long long)o->length);
    int32_t *ids = NULL;
    double *seconds = lnt_alloc(lnt_bytes((size_t)o->repeats, sizeof *seconds));
    if (!seconds) return lnt_fail_memory(c, lnt_bytes((size_t)o->repeats, sizeof *seconds));
    const bool cuda = lnt_on_cuda(c);
    if (cuda) LNT_TRY_GOTO(s, check_device(c, m, o), done);
    LNT_TRY_GOTO(s, random_ids(c, tokens + 1, m->config->vocab_size, &ids), done);
    LNT_TRY_GOTO(s, lnt_trainer_create(c, m, o->batch, o->length, (lnt_recompute)o->recompute, (lnt_dtype)o->moments, &t), done);
    double first = 0, last = 0, ignored;
    /* Not counted: a step that touches the memory for the first time; on a GPU, one more that is recorded. */
    for (int64_t i = cuda ? -GRAPH_STEPS : -1; i < o->repeats; i++) {
        if (i == 0 && !cuda) lnt_plan_profile_reset(t->plan);
        double loss;
        LNT_TRY_GOTO(s, one_step(t, ids, o->batch, &loss, i < 0 ? &ignored : &seconds[i], cuda ? NULL : &out->update_seconds), done);
        if (t->step == 1) first = loss;
        last = loss;
    }
    if (!(last < first)) { /* the same batch again and again: a step that does not lower its loss is wrong, and its time worth nothing */
        s = lnt_fail(c, LINNET_EINTERNAL, "the loss went from %g to %g nats a token while training on one batch", first, last);
        goto done;
    }
    if (cuda) { /* waiting behind every operator costs time of its own: steps apart from those that are timed */
        lnt_plan_profile_reset(t->plan);
        for (int i = 0; i < PROFILE_STEPS; i++) LNT_TRY_GOTO(s, one_step(t, ids, o->batch, &last, &ignored, &out->update_seconds), done);
    }
    linnet_model_info info = {.size = sizeof info};
    linnet_model_get_info(m, &info);
    out->parameters = info.parameters;
    out->plan_bytes = (int64_t)lnt_plan_bytes(t->plan);
    out->device_bytes = (int64_t)lnt_device_of(c)->peak;
    out->flops = lnt_plan_flops(t->plan);
    out->profile = lnt_plan_profile(t->plan);
    out->step_seconds = lnt_median(seconds, o->repeats);
    out->tokens_per_second = (double)tokens / out->step_seconds;
    lnt_trainer_destroy(t); /* its memory is not decoding's */
    t = NULL;
    linnet_bench_decode_options decode_options = LINNET_BENCH_DECODE_OPTIONS_INIT;
    decode_options.steps = DECODE_STEPS;
    linnet_bench_decode_result decode = {.size = sizeof decode};
    LNT_TRY_GOTO(s, linnet_bench_decode(c, m, &decode_options, &decode), done);
    out->decode_seconds = decode.step_seconds;
    out->decode_bytes = decode.bytes;
done:
    lnt_trainer_destroy(t);
    lnt_free(ids);
    lnt_free(seconds);
    return s;
}

linnet_status linnet_bench_train(linnet_context *c, linnet_model *m, const linnet_bench_train_options *options, linnet_bench_train_result *out)
{
    linnet_bench_train_options o = LINNET_BENCH_TRAIN_OPTIONS_INIT;
    linnet_bench_train_result r = {.size = sizeof r};
    LNT_TRY(lnt_model_check_own(c, m));
    LNT_TRY(lnt_options_take(c, "bench_train", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    linnet_status s = measure(c, m, &o, &r);
    if (s == LINNET_OK && out->size >= offsetof(linnet_bench_train_result, update_seconds)) LNT_GIVE(out, r);
    else lnt_free(r.profile); /* nobody else would */
    return s;
}
