/* The public trainer: what a caller hands in is looked at here, and then goes the way of trainer.c. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/border.h"
#include "core/file.h"
#include "device/device.h"
#include "hub/checkpoint.h"
#include "train/trainer_file.h"

linnet_status linnet_trainer_create(linnet_context *c, linnet_model *m, const linnet_trainer_options *options, linnet_trainer **out)
{
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    LNT_NEED(c, out);
    *out = NULL;
    LNT_TRY(lnt_model_check_own(c, m));
    LNT_TRY(lnt_options_take(c, "trainer", options, &o));
    if (o.windows && !o.next && lnt_windows_length(o.windows) != o.length)
        return lnt_fail(c, LINNET_EINVAL, "windows of %lld tokens for a trainer of length %lld", (long long)lnt_windows_length(o.windows),
                        (long long)o.length);
    linnet_trainer *t;
    LNT_TRY(lnt_trainer_create(c, m, o.batch, o.length, (lnt_recompute)o.recompute, (lnt_dtype)o.moments, &t));
    t->o = o;
    t->hyper = (lnt_adamw){.beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.epsilon, .weight_decay = o.weight_decay, .clip = o.clip, .seed = o.seed};
    t->targets = lnt_alloc(lnt_bytes((size_t)t->tokens, sizeof *t->targets));
    if (o.windows && !o.next) t->ids = lnt_alloc(lnt_bytes((size_t)t->tokens, sizeof *t->ids));
    if (!t->targets || (o.windows && !o.next && !t->ids)) {
        lnt_trainer_destroy(t);
        return lnt_fail_memory(c, lnt_bytes((size_t)t->tokens, sizeof *t->targets));
    }
    *out = t;
    return LINNET_OK;
}

void linnet_trainer_destroy(linnet_trainer *t) { lnt_trainer_destroy(t); }

/* ---- a micro-batch -------------------------------------------------------------------------------------------------------------- */

static linnet_status check_sequences(lnt_ctx *c, const linnet_micro_batch *b)
{
    const int64_t *cu = b->cu_seqlens;
    if (!cu && b->tokens % b->sequences)
        return lnt_fail(c, LINNET_EINVAL, "%lld tokens in %lld equal sequences", (long long)b->tokens, (long long)b->sequences);
    if (!cu) return LINNET_OK;
    for (int64_t n = 0; n < b->sequences; n++)
        if (cu[n + 1] < cu[n])
            return lnt_fail(c, LINNET_EINVAL, "cu_seqlens falls from %lld to %lld at sequence %lld", (long long)cu[n], (long long)cu[n + 1],
                            (long long)n);
    if (cu[0] == 0 && cu[b->sequences] == b->tokens) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "cu_seqlens goes from %lld to %lld, expected 0 to %lld", (long long)cu[0], (long long)cu[b->sequences],
                    (long long)b->tokens);
}

static linnet_status check_targets(lnt_ctx *c, const linnet_model *m, const int32_t *targets, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (targets[i] >= m->config->vocab_size)
            return lnt_fail(c, LINNET_EINVAL, "target %d at position %lld, expected at most %lld", targets[i], (long long)i,
                            (long long)m->config->vocab_size - 1);
    return LINNET_OK;
}

/* The batch's targets with its mask in them: its own, or in t->targets. */
static const int32_t *targets_of(linnet_trainer *t, const linnet_micro_batch *b)
{
    if (b->targets && !b->mask) return b->targets;
    for (int64_t i = 0; i < b->tokens; i++) t->targets[i] = b->targets ? b->targets[i] : i + 1 < b->tokens ? b->ids[i + 1] : -1;
    for (int64_t n = 1; !b->targets && n <= b->sequences; n++) {
        const int64_t end = b->cu_seqlens ? b->cu_seqlens[n] : n * (b->tokens / b->sequences);
        if (end > 0) t->targets[end - 1] = -1;
    }
    for (int64_t i = 0; b->mask && i < b->tokens; i++)
        if (!b->mask[i]) t->targets[i] = -1;
    return t->targets;
}

linnet_status linnet_trainer_micro(linnet_trainer *t, const linnet_micro_batch *batch)
{
    if (!t) return LINNET_EINVAL;
    lnt_ctx *c = t->c;
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    LNT_TRY(lnt_options_take(c, "micro_batch", batch, &b));
    LNT_NEED(c, b.ids);
    if (b.tokens > t->tokens)
        return lnt_fail(c, LINNET_EINVAL, "a micro-batch of %lld tokens, expected 1 to %lld", (long long)b.tokens, (long long)t->tokens);
    LNT_TRY(check_sequences(c, &b));
    LNT_TRY(lnt_check_ids(c, t->m, b.ids, b.tokens));
    const int32_t *targets = targets_of(t, &b);
    LNT_TRY(check_targets(c, t->m, targets, b.tokens));
    const double scale = b.scale != 0 ? b.scale : 1.0 / (double)(t->tokens * t->o.accumulate);
    LNT_TRY(lnt_trainer_micro(t, b.ids, targets, b.tokens, b.sequences, b.cu_seqlens, scale));
    t->seen += b.tokens;
    for (int64_t i = 0; i < b.tokens; i++) t->predictions += targets[i] >= 0;
    return LINNET_OK;
}

/* ---- updates --------------------------------------------------------------------------------------------------------------------- */

linnet_status linnet_trainer_drop(linnet_trainer *t)
{
    if (!t) return LINNET_EINVAL;
    lnt_step_sums sums;
    lnt_weights_zero_grad(t->m->w);
    lnt_optimizer_read(t->optimizer, &sums);
    t->seen = t->predictions = 0;
    return lnt_device_check(t->c);
}

linnet_status linnet_trainer_update(linnet_trainer *t, double learning_rate, linnet_trainer_result *out)
{
    if (!t) return LINNET_EINVAL;
    LNT_TRY(lnt_result_check(t->c, out));
    double least, most;
    linnet_option_range("trainer", "learning_rate", &least, &most);
    if (!(learning_rate >= least && learning_rate <= most))
        return lnt_fail(t->c, LINNET_EINVAL, "learning_rate is %g, expected %g to %g", learning_rate, least, most);
    lnt_step_sums sums;
    linnet_trainer_result r = {.tokens = t->seen, .predictions = t->predictions, .learning_rate = learning_rate};
    t->seen = t->predictions = 0;
    LNT_TRY(lnt_trainer_update(t, learning_rate, &sums));
    r.step = t->step;
    r.nats = sums.nats;
    r.loss = r.predictions > 0 ? sums.nats / (double)r.predictions : 0;
    r.gradient_norm = sums.norm;
    LNT_GIVE(out, r);
    return LINNET_OK;
}

/* The windows of the micro-th batch of a step: all steps had equally many. */
static linnet_status take_windows(linnet_trainer *t, int64_t micro, linnet_micro_batch *b)
{
    const linnet_trainer_options *o = &t->o;
    const int64_t first = (t->step * o->accumulate + micro) * o->batch;
    for (int64_t i = 0; i < o->batch; i++)
        LNT_TRY(linnet_windows_get(o->windows, first + i, t->ids + i * o->length, t->targets + i * o->length));
    b->ids = t->ids, b->targets = t->targets, b->tokens = t->tokens, b->sequences = o->batch;
    return LINNET_OK;
}

static linnet_status gather(linnet_trainer *t)
{
    const linnet_trainer_options *o = &t->o;
    for (int64_t i = 0; i < o->accumulate; i++) {
        linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
        if (!o->next) LNT_TRY(take_windows(t, i, &b));
        else if (o->next(o->user, t->step, i, &b))
            return lnt_fail(t->c, LINNET_EINTERRUPTED, "there was no micro-batch %lld for step %lld", (long long)i, (long long)t->step);
        LNT_TRY(linnet_trainer_micro(t, &b));
    }
    if (o->before_update && o->before_update(o->user, t, t->step))
        return lnt_fail(t->c, LINNET_EINTERRUPTED, "the update of step %lld was not wanted", (long long)t->step);
    return LINNET_OK;
}

linnet_status linnet_trainer_step(linnet_trainer *t, linnet_trainer_result *out)
{
    if (!t) return LINNET_EINVAL;
    LNT_TRY(lnt_result_check(t->c, out));
    if (!t->ids) LNT_TRY(lnt_need(t->c, (const void *)(uintptr_t)t->o.next, "the callback next"));
    linnet_status s = gather(t);
    const double rate = s == LINNET_OK && t->o.schedule ? t->o.schedule(t->o.user, t->step) : t->o.learning_rate;
    if (s == LINNET_OK) s = linnet_trainer_update(t, rate, out);
    if (s != LINNET_OK) (void)linnet_trainer_drop(t); /* its error would hide the first */
    return s;
}

/* ---- gradients ------------------------------------------------------------------------------------------------------------------- */

linnet_status linnet_gradient_read(linnet_trainer *t, const char *name, int64_t first, int64_t n, float *values)
{
    const lnt_param *q;
    if (!t) return LINNET_EINVAL;
    LNT_TRY(lnt_parameter_part(t->c, t->m, name, first, n, values, &q));
    if (t->m->w->grad_empty) return memset(values, 0, (size_t)n * sizeof *values), LINNET_OK;
    lnt_to_host(t->c, values, t->m->w->grad + q->offset + first, (size_t)n * sizeof *values);
    return lnt_device_check(t->c);
}

linnet_status linnet_gradient_write(linnet_trainer *t, const char *name, int64_t first, int64_t n, const float *values)
{
    const lnt_param *q;
    if (!t) return LINNET_EINVAL;
    LNT_TRY(lnt_parameter_part(t->c, t->m, name, first, n, values, &q));
    lnt_weights *w = t->m->w;
    if (w->grad_empty) lnt_weights_zero_grad(w);
    w->grad_empty = false; /* the next micro-batch adds to what stands here */
    lnt_to_device(t->c, w->grad + q->offset + first, values, (size_t)n * sizeof *values);
    return lnt_device_check(t->c);
}

/* ---- files ----------------------------------------------------------------------------------------------------------------------- */

static void file_in(char *path, size_t size, const char *folder, const char *name) { snprintf(path, size, "%s/%s", folder, name); }

static linnet_status refuse_run(lnt_ctx *c, const char *folder)
{
    static const char *const marks[] = {"train_state.safetensors", "train.begun"};
    char path[4096];
    for (int i = 0; i < 2; i++) {
        file_in(path, sizeof path, folder, marks[i]);
        if (!lnt_file_exists(path)) continue;
        lnt_fail(c, LINNET_EINVAL, "\"%s\" holds a run of linnet train", folder);
        return lnt_hint(c, "Save a trainer into another folder.");
    }
    return LINNET_OK;
}

linnet_status linnet_trainer_save(linnet_trainer *t, const char *folder)
{
    enum { MODEL = 0, STATE = 2, FILES };
    lnt_file_writer w[FILES];
    char path[4096], step[32];
    if (!t) return LINNET_EINVAL;
    LNT_NEED(t->c, folder);
    LNT_TRY(refuse_run(t->c, folder));
    LNT_TRY(lnt_make_folder(t->c, folder));
    snprintf(step, sizeof step, "%" PRId64, t->step);
    const char *metadata[] = {"format", "linnet trainer 1", "step", step};
    file_in(path, sizeof path, folder, "trainer.safetensors");
    LNT_TRY(lnt_trainer_stage(t->c, t, path, 2, metadata, &w[STATE]));
    linnet_status s = lnt_model_stage(t->c, t->m, folder, w + MODEL);
    if (s != LINNET_OK) {
        lnt_file_abandon(&w[STATE]);
        return s;
    }
    return lnt_file_commit_all(t->c, w, FILES);
}

static linnet_status read_step(lnt_ctx *c, const lnt_safetensors *s, int64_t *step)
{
    const char *format = lnt_safetensors_metadata(s, "format"), *text = lnt_safetensors_metadata(s, "step");
    if (!format || strcmp(format, "linnet trainer 1") != 0)
        return lnt_fail(c, LINNET_EFORMAT, "%s has the format \"%s\", expected \"linnet trainer 1\"", s->path, format ? format : "");
    char *end = NULL;
    *step = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (*step >= 0 && *step < INT64_MAX && !*end) return LINNET_OK;
    return lnt_fail(c, LINNET_EFORMAT, "%s says step \"%s\", expected a count", s->path, text ? text : "");
}

linnet_status linnet_trainer_load(linnet_trainer *t, const char *folder)
{
    char path[4096];
    lnt_safetensors *s;
    int64_t step = 0;
    if (!t) return LINNET_EINVAL;
    LNT_NEED(t->c, folder);
    file_in(path, sizeof path, folder, "trainer.safetensors");
    LNT_TRY(lnt_safetensors_open(t->c, path, &s));
    linnet_status status = read_step(t->c, s, &step);
    if (status == LINNET_OK) status = lnt_trainer_read(t->c, s, t);
    lnt_safetensors_close(s);
    LNT_TRY(status);
    t->step = step;
    return linnet_trainer_drop(t);
}
