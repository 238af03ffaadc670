/* linnet_train: a run from text to a checkpoint folder.
 *
 *   open:   tokenizer, text, split, model, trainer; or all of it again from the folder when resuming
 *   loop:   micro-batches, update, log line, progress; evaluate and save on their beats
 *   close:  a last evaluation and save
 *
 * What a step does depends on its number alone (data order, learning rate), so a resumed run repeats the bits of an undisturbed one. A run by the
 * clock (max_seconds without steps) measures its first steps and then fixes its number of steps for good. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "eval/scorer.h"
#include "hub/corpus.h"
#include "train/batches.h"
#include "train/log.h"
#include "train/resume.h"

enum { MEASURE_FROM = 3, MEASURE_TO = 13, EVAL_TOKENS_A_RUN = 8192 };

typedef struct {
    lnt_ctx *c;
    linnet_train_options o;
    lnt_dtype dtype;
    linnet_tokenizer *tokenizer;
    lnt_corpus *text, *held_text; /* held_text NULL: held out from the end of text */
    const int32_t *train_ids, *held_ids;
    int64_t n_train, n_held;
    linnet_model *m;
    lnt_trainer *trainer;
    lnt_batches *batches;
    lnt_scorer *scorer;
    lnt_train_log log;
    lnt_run_position at;
    double start;              /* clock at which this session's training began, less the seconds of earlier ones */
    double measured;           /* clock when step MEASURE_FROM began */
    int32_t *ids, *targets;    /* host, [batch*length] */
    int64_t *cu;               /* host, [batch*length+1], with isolate_documents */
    linnet_train_progress progress;
    double rate_clock, rate_tokens; /* moving window of tokens/s */
} run;

/* ---- opening ---- */

static linnet_status check_options(lnt_ctx *c, const linnet_train_options *o)
{
    const struct {
        const char *name;
        double value, least, most;
    } ranges[] = {
        {"batch", (double)o->batch, 1, 1e6},
        {"length", (double)o->length, 1, 1e7},
        {"accumulate", (double)o->accumulate, 1, 1e6},
        {"steps", (double)o->steps, 0, 1e15},
        {"warmup", (double)o->warmup, 0, 1e15},
        {"learning_rate", o->learning_rate, 0, 1e3},
        {"min_learning_rate_share", o->min_learning_rate_share, 0, 1},
        {"beta1", o->beta1, 0, 0.999999},
        {"beta2", o->beta2, 0, 0.99999999},
        {"epsilon", o->epsilon, 1e-30, 1},
        {"weight_decay", o->weight_decay, 0, 1e3},
        {"clip", o->clip, 0, 1e30},
        {"held_out_share", o->held_out_share, 0, 0.9},
        {"max_seconds", o->max_seconds, 0, 1e12},
        {"eval_every", (double)o->eval_every, 0, 1e15},
        {"eval_tokens", (double)o->eval_tokens, 0, 1e15},
        {"save_every", (double)o->save_every, 0, 1e15},
        {"recompute", (double)o->recompute, LNT_RECOMPUTE_NONE, LNT_RECOMPUTE_CHEAP},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most))
            return lnt_fail(c, LINNET_EINVAL, "%s is %g, expected %g to %g", ranges[i].name, ranges[i].value, ranges[i].least, ranges[i].most);
    if (o->weights != LINNET_F32 && o->weights != LINNET_BF16)
        return lnt_fail(c, LINNET_EINVAL, "weights are %s, expected float32 or bf16", lnt_dtype_name(o->weights));
    if (!o->steps && o->max_seconds <= 0) return lnt_fail(c, LINNET_EINVAL, "a run needs a number of steps or a time");
    if (!o->out) return lnt_fail(c, LINNET_EINVAL, "no folder was given for the checkpoint");
    return LINNET_OK;
}

static linnet_status open_tokenizer(run *r)
{
    if (r->o.resume) return linnet_tokenizer_open(r->c, r->o.out, &r->tokenizer);
    if (!r->o.train_tokenizer) return linnet_tokenizer_open(r->c, r->o.tokenizer ? r->o.tokenizer : "bytes", &r->tokenizer);
    char *text;
    size_t bytes;
    const size_t limit = (size_t)1 << 28; /* 256 MB decide a vocabulary */
    LNT_TRY(lnt_corpus_text(r->c, r->o.texts, r->o.n_texts, limit, &text, &bytes));
    linnet_status s = linnet_tokenizer_train(r->c, text, bytes, r->o.train_tokenizer, &r->tokenizer);
    lnt_free(text);
    return s;
}

static linnet_status open_text(run *r)
{
    LNT_TRY(lnt_corpus_load(r->c, r->o.texts, r->o.n_texts, r->tokenizer, &r->text));
    r->train_ids = r->text->ids;
    r->n_train = r->text->n;
    if (r->o.held_out) {
        LNT_TRY(lnt_corpus_load(r->c, &r->o.held_out, 1, r->tokenizer, &r->held_text));
        r->held_ids = r->held_text->ids;
        r->n_held = r->held_text->n;
    } else {
        r->n_held = (int64_t)((double)r->text->n * r->o.held_out_share);
        r->n_train -= r->n_held;
        r->held_ids = r->text->ids + r->n_train;
    }
    if (r->o.resume && r->at.fingerprint != r->text->fingerprint) {
        lnt_fail(r->c, LINNET_EINVAL, "the text is not the one this run was started with");
        return lnt_hint(r->c, "Name the same files in the same order, unchanged.");
    }
    r->at.fingerprint = r->text->fingerprint;
    return LINNET_OK;
}

static linnet_status open_model(run *r, const linnet_config *config)
{
    linnet_config *k = NULL;
    linnet_status s = LINNET_OK;
    int64_t vocabulary = linnet_tokenizer_vocabulary(r->tokenizer);
    if (r->o.resume) {
        LNT_TRY(linnet_config_load(r->c, r->o.out, &k));
        if (k->vocab_size < vocabulary)
            s = lnt_fail(r->c, LINNET_EFORMAT, "config.json has vocab_size %lld, but tokenizer.json has %lld ids", (long long)k->vocab_size,
                         (long long)vocabulary);
    } else {
        LNT_TRY(lnt_config_copy(r->c, config, &k));
        k->vocab_size = vocabulary;
        k->bos_token_id = k->eos_token_id = linnet_tokenizer_separator(r->tokenizer);
    }
    if (s == LINNET_OK) s = linnet_model_create_kept(r->c, k, r->dtype, r->o.weights, r->o.seed, &r->m);
    linnet_config_destroy(k);
    LNT_TRY(s);
    LNT_TRY(lnt_trainer_create(r->c, r->m, r->o.batch, r->o.length, (lnt_recompute)r->o.recompute, &r->trainer));
    r->trainer->hyper.clip = r->o.clip;
    r->trainer->hyper.seed = r->o.seed;
    r->trainer->hyper.beta1 = r->o.beta1;
    r->trainer->hyper.beta2 = r->o.beta2;
    r->trainer->hyper.epsilon = r->o.epsilon;
    r->trainer->hyper.weight_decay = r->o.weight_decay;
    if (r->o.resume) {
        LNT_TRY(lnt_resume_read_weights(r->c, r->o.out, r->trainer));
        r->trainer->step = r->at.step;
    }
    return LINNET_OK;
}

static linnet_status open_run(run *r, const linnet_config *config)
{
    char state[4096];
    snprintf(state, sizeof state, "%s/train_state.safetensors", r->o.out ? r->o.out : "");
    if (r->o.out && !r->o.resume && lnt_file_exists(state)) {
        lnt_fail(r->c, LINNET_EINVAL, "\"%s\" already holds a run", r->o.out);
        return lnt_hint(r->c, "Continue it with --resume, or choose another folder.");
    }
    if (r->o.resume && r->o.out) LNT_TRY(lnt_resume_read_options(r->c, r->o.out, &r->o, &r->at));
    LNT_TRY(check_options(r->c, &r->o));
    LNT_TRY(open_tokenizer(r));
    LNT_TRY(open_text(r));
    LNT_TRY(lnt_batches_create(r->c, r->train_ids, r->n_train, r->o.length, r->o.seed, &r->batches));
    LNT_TRY(open_model(r, config));
    int64_t windows = r->o.length >= EVAL_TOKENS_A_RUN ? 1 : EVAL_TOKENS_A_RUN / r->o.length;
    if (r->n_held > 1) LNT_TRY(lnt_scorer_create(r->c, r->m, r->o.length, windows, &r->scorer));
    size_t bytes = (size_t)(r->o.batch * r->o.length + 1) * 8;
    r->ids = lnt_alloc(bytes);
    r->targets = lnt_alloc(bytes);
    r->cu = lnt_alloc(bytes);
    if (!r->ids || !r->targets || !r->cu) return lnt_fail_memory(r->c, bytes);
    LNT_TRY(lnt_make_folder(r->c, r->o.out));
    if (!r->o.resume) {
        r->at.steps = r->o.steps;
        LNT_TRY(linnet_tokenizer_save(r->c, r->tokenizer, r->o.out));
    }
    return lnt_train_log_open(r->c, r->o.out, r->at.step, &r->log);
}

static void close_run(run *r)
{
    lnt_train_log_close(&r->log);
    lnt_free(r->ids);
    lnt_free(r->targets);
    lnt_free(r->cu);
    lnt_scorer_destroy(r->scorer);
    lnt_batches_destroy(r->batches);
    lnt_trainer_destroy(r->trainer);
    linnet_model_destroy(r->m);
    lnt_corpus_free(r->held_text);
    lnt_corpus_free(r->text);
    linnet_tokenizer_destroy(r->tokenizer);
}

/* ---- the loop ---- */

/* Sequences of a micro-batch when documents are isolated: cut after every separator; nothing predicts across a cut. */
static int64_t cut_documents(run *r)
{
    int64_t n = 0, tokens = r->o.batch * r->o.length, separator = r->text->separator;
    r->cu[0] = 0;
    for (int64_t i = 0; i < tokens; i++) {
        bool closes = r->ids[i] == separator;
        if (closes) r->targets[i] = -1;
        if (closes || (i + 1) % r->o.length == 0) r->cu[++n] = i + 1;
    }
    return n;
}

static linnet_status one_step(run *r)
{
    int64_t per_micro = r->o.batch * r->o.length;
    double predictions = 0, scale = 1.0 / (double)(per_micro * r->o.accumulate);
    for (int64_t a = 0; a < r->o.accumulate; a++) {
        for (int64_t b = 0; b < r->o.batch; b++) lnt_batches_get(r->batches, r->at.samples++, r->ids + b * r->o.length, r->targets + b * r->o.length);
        int64_t n_seq = r->o.batch;
        const int64_t *cu = NULL;
        if (r->o.isolate_documents && r->text->separator >= 0) {
            n_seq = cut_documents(r);
            cu = r->cu;
        }
        LNT_TRY(lnt_trainer_micro(r->trainer, r->ids, r->targets, per_micro, n_seq, cu, scale));
        for (int64_t i = 0; i < per_micro; i++) predictions += r->targets[i] >= 0;
    }
    linnet_train_progress *p = &r->progress;
    p->learning_rate = lnt_learning_rate(r->at.step, r->at.steps, r->o.warmup, r->o.learning_rate, r->o.min_learning_rate_share);
    lnt_step_sums sums;
    LNT_TRY(lnt_trainer_update(r->trainer, p->learning_rate, &sums));
    p->gradient_norm = sums.norm;
    p->loss = predictions > 0 ? sums.nats / predictions : 0;
    if (!isfinite(p->loss)) {
        lnt_fail(r->c, LINNET_EINVAL, "the loss of step %lld is %g", (long long)r->at.step + 1, p->loss);
        return lnt_hint(r->c, "Try a smaller --learning-rate. The last checkpoint is untouched.");
    }
    r->at.step++;
    r->at.tokens += per_micro * r->o.accumulate;
    return LINNET_OK;
}

static double elapsed(const run *r) { return lnt_now() - r->start; }

/* A run by the clock: after a few measured steps, how many fit into the time, evaluations (a third of a step's work a token) and the last save
 * included. */
static void fix_steps(run *r)
{
    int64_t step = r->at.step;
    if (r->at.steps || r->o.max_seconds <= 0) return;
    if (step < MEASURE_TO) {
        if (step == MEASURE_FROM || !r->measured) r->measured = lnt_now();
        return;
    }
    double a_step = (lnt_now() - r->measured) / (MEASURE_TO - MEASURE_FROM);
    int64_t held = r->o.eval_tokens && r->o.eval_tokens < r->n_held ? r->o.eval_tokens : r->n_held;
    double an_eval = a_step / 3 * (double)held / (double)(r->o.batch * r->o.length * r->o.accumulate);
    double share = r->o.eval_every ? an_eval / (double)r->o.eval_every : 0;
    double left = 0.97 * r->o.max_seconds - elapsed(r) - an_eval;
    r->at.steps = step + (int64_t)(left > 0 ? left / (a_step + share) : 0);
    if (r->at.steps < step + 1) r->at.steps = step + 1;
}

static linnet_status evaluate(run *r)
{
    if (!r->scorer) return LINNET_OK;
    int64_t n = r->o.eval_tokens && r->o.eval_tokens + 1 < r->n_held ? r->o.eval_tokens + 1 : r->n_held;
    lnt_score score = {0};
    LNT_TRY(lnt_scorer_run(r->scorer, r->held_ids, n, NULL, NULL, &score));
    int64_t bytes = lnt_corpus_bytes(r->held_text ? r->held_text : r->text, r->held_ids + 1, n - 1);
    r->progress.evaluated = 1;
    r->progress.eval_loss = score.nats / (double)score.tokens;
    r->progress.eval_bits_per_byte = bytes ? score.nats / M_LN2 / (double)bytes : NAN;
    return LINNET_OK;
}

static linnet_status save(run *r)
{
    r->at.seconds = elapsed(r);
    LNT_TRY(linnet_model_save(r->c, r->m, r->o.out));
    LNT_TRY(lnt_resume_save(r->c, r->o.out, r->trainer, &r->o, &r->at));
    r->progress.saved = 1;
    return LINNET_OK;
}

static bool on_beat(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static void measure_rate(run *r)
{
    linnet_train_progress *p = &r->progress;
    double now = lnt_now(), step_tokens = (double)(r->o.batch * r->o.length * r->o.accumulate);
    double rate = step_tokens / (now - r->rate_clock);
    r->rate_tokens = r->rate_tokens > 0 ? 0.9 * r->rate_tokens + 0.1 * rate : rate;
    p->tokens_per_second = r->rate_tokens;
    p->step = r->at.step;
    p->steps = r->at.steps;
    p->tokens = r->at.tokens;
    p->seconds = elapsed(r);
    p->seconds_left = r->at.steps ? (double)(r->at.steps - r->at.step) * step_tokens / r->rate_tokens : r->o.max_seconds - p->seconds;
}

static linnet_status loop(run *r)
{
    while (!r->at.steps || r->at.step < r->at.steps) {
        r->progress.evaluated = r->progress.saved = 0;
        r->rate_clock = lnt_now();
        fix_steps(r);
        LNT_TRY(one_step(r));
        measure_rate(r);
        bool out_of_time = r->o.max_seconds > 0 && elapsed(r) > r->o.max_seconds;
        bool last = r->at.step == r->at.steps || out_of_time;
        if (on_beat(r->at.step, r->o.eval_every) || last) LNT_TRY(evaluate(r));
        LNT_TRY(lnt_train_log_step(r->c, &r->log, &r->progress));
        if (on_beat(r->at.step, r->o.save_every) || last) LNT_TRY(save(r));
        bool stop = r->o.progress && r->o.progress(r->o.user, &r->progress);
        if (last) return LINNET_OK;
        if (stop) {
            if (!r->progress.saved) LNT_TRY(save(r));
            return lnt_fail(r->c, LINNET_EINTERRUPTED, "training was stopped after step %lld; it is saved in \"%s\"", (long long)r->at.step,
                            r->o.out);
        }
    }
    return LINNET_OK;
}

linnet_status linnet_train(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_train_options *o)
{
    run r = {.c = c, .o = *o, .dtype = dtype};
    linnet_status s = !config && !o->resume ? lnt_fail(c, LINNET_EINVAL, "no model configuration was given") : open_run(&r, config);
    if (s == LINNET_OK) {
        r.start = lnt_now() - r.at.seconds;
        s = loop(&r);
    }
    close_run(&r);
    return s;
}
