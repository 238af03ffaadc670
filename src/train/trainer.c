#include "train/trainer.h"

#include <math.h>

#include "device/device.h"

linnet_status lnt_trainer_create(lnt_ctx *c, linnet_model *m, int64_t batch, int64_t length, lnt_recompute recompute, lnt_dtype moments,
                                 lnt_trainer **out)
{
    *out = NULL;
    int64_t tokens;
    if (batch < 1 || length < 1 || !lnt_mul(batch, length, &tokens) || tokens > INT32_MAX)
        return lnt_fail(c, LINNET_EINVAL, "a batch of %lld sequences of %lld tokens, expected at least 1 of 1 and fewer than 2^31 tokens",
                        (long long)batch, (long long)length);
    lnt_trainer *t = lnt_calloc(sizeof *t);
    if (!t) return lnt_fail_memory(c, sizeof *t);
    *t = (lnt_trainer){.c = c,
                       .m = m,
                       .tokens = tokens,
                       .hyper = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 1}};
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_weights_need_grad(m->w), fail);
    LNT_TRY_GOTO(s, lnt_optimizer_create(c, m->w, moments, &t->optimizer), fail);
    lnt_plan_options o = {
        .tokens = tokens, .n_seq = batch, .dtype = m->dtype, .training = true, .recompute = recompute, .n_outputs = 1, .outputs = {m->loss}};
    s = lnt_plan_create(c, m->p, &o, &t->plan);
    if (s == LINNET_ENOMEM) lnt_hint(c, "A smaller batch or length takes less, and so does recompute.");
    if (s != LINNET_OK) goto fail;
    *out = t;
    return LINNET_OK;
fail:
    lnt_trainer_destroy(t);
    return s;
}

void lnt_trainer_destroy(lnt_trainer *t)
{
    if (!t) return;
    lnt_plan_destroy(t->plan);
    lnt_optimizer_destroy(t->optimizer);
    lnt_free(t->targets);
    lnt_free(t->ids);
    lnt_free(t);
}

linnet_status lnt_trainer_micro(lnt_trainer *t, const int32_t *ids, const int32_t *targets, int64_t tokens, int64_t n_seq, const int64_t *cu,
                                double scale)
{
    lnt_rng draw = lnt_rng_make(t->hyper.seed, lnt_stream_of("solver steps") + (uint64_t)t->step);
    lnt_batch b = {
        .tokens = tokens, .n_seq = n_seq, .cu = cu, .n_inputs = 2, .inputs = {{t->m->ids, ids}, {t->m->targets, targets}}, .loss_scale = scale,
        .draw = lnt_program_draws(t->m->p) ? 1 - lnt_rng_uniform(&draw) : 0};
    LNT_TRY(lnt_plan_run(t->plan, t->m->w, &b));
    lnt_optimizer_add_losses(t->optimizer, lnt_plan_output(t->plan, t->m->loss).data, tokens);
    return LINNET_OK;
}

linnet_status lnt_trainer_update(lnt_trainer *t, double learning_rate, lnt_step_sums *sums)
{
    t->hyper.learning_rate = learning_rate;
    t->hyper.step = t->step + 1;
    LNT_TRY(lnt_optimizer_step(t->optimizer, &t->hyper));
    lnt_optimizer_read(t->optimizer, sums);
    LNT_TRY(lnt_device_check(t->c));
    if (isfinite(sums->nats) && isfinite(sums->norm)) {
        t->step++; /* an update that was refused is none: the order of the text and AdamW's correction go by this number */
        return LINNET_OK;
    }
    const bool loss = !isfinite(sums->nats);
    const double value = loss ? sums->nats : sums->norm;
    lnt_fail(t->c, LINNET_EINVAL, "the %s of step %lld is %s", loss ? "loss" : "gradient's norm", (long long)t->hyper.step,
             isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    return lnt_hint(t->c, "The weights are as they were before the step. A smaller learning rate may help.");
}

double linnet_learning_rate(int64_t step, int64_t steps, int64_t warmup, double peak, double floor)
{
    if (step < warmup) return peak * (double)(step + 1) / (double)warmup;
    if (steps <= warmup) return peak;
    double done = (double)(step - warmup) / (double)(steps - warmup);
    if (done > 1) done = 1;
    return peak * (floor + (1 - floor) * 0.5 * (1 + cos(M_PI * done)));
}
