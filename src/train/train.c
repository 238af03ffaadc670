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

#include "core/border.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/file.h"
#include "core/options.h"
#include "eval/scorer.h"
#include "hub/checkpoint.h"
#include "hub/corpus.h"
#include "train/log.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/same_run.h"

enum { MEASURE_FROM = 3, MEASURE_TO = 13, EVAL_TOKENS_A_RUN = 8192 };
static const double MOST_STEPS = 1e12; /* of a run by the clock: below what a checkpoint may say */

typedef struct {
    lnt_ctx *c;
    lnt_run_settings s;
    lnt_run_folder folder;
    int64_t kept;                 /* step of the checkpoint in the folder, 0: none */
    linnet_tokenizer *tokenizer;
    lnt_corpus *text, *held_text; /* held_text NULL: held out from the end of text */
    const int32_t *train_ids, *held_ids;
    int64_t n_train, n_held;
    linnet_model *m;
    linnet_trainer *trainer;
    linnet_windows *windows;
    lnt_scorer *scorer;
    lnt_train_log log;
    double start;              /* clock at which this session's training began, less the seconds of earlier ones */
    double measured;           /* clock when step MEASURE_FROM began */
    int32_t *ids, *targets;    /* host, [batch*length] */
    int64_t *cu;               /* host, [batch*length+1], with isolate_documents */
    linnet_train_progress progress;
    char note[400];
    double rate_clock, rate_tokens; /* moving window of tokens/s */
} run;

/* ---- what the trainer asks for ---- */

/* Sequences of a micro-batch when documents are isolated: cut ahead of every separator, which closes a document as what is predicted, and opens the
 * next one as what its first token is predicted from. */
static int64_t cut_documents(run *r)
{
    int64_t n = 0, tokens = r->s.o.batch * r->s.o.length, separator = r->text->separator;
    r->cu[0] = 0;
    for (int64_t i = 1; i < tokens; i++)
        if (r->ids[i] == separator || i % r->s.o.length == 0) r->cu[++n] = i;
    r->cu[++n] = tokens;
    return n;
}

/* Steps of warm-up: enough for AdamW's second moment, and never so many that a short run is spent warming up. */
static int64_t warmup(const run *r)
{
    enum { USUAL = 100, SHARE = 5 };
    if (r->s.o.warmup != LINNET_WARMUP_AUTO) return r->s.o.warmup;
    return r->s.at.steps && r->s.at.steps / SHARE < USUAL ? r->s.at.steps / SHARE : USUAL;
}

static linnet_status check_warmup(run *r)
{
    const linnet_train_options *o = &r->s.o;
    if (o->warmup_from > o->learning_rate)
        return lnt_fail_option(r->c, "warmup_from", "is %g, expected at most the learning rate, %g", o->warmup_from, o->learning_rate);
    if (o->warmup_from > 0 && o->warmup == 0) return lnt_fail_option(r->c, "warmup_from", "is %g, and no step is a warm-up", o->warmup_from);
    return LINNET_OK;
}

static double learning_rate(void *user, int64_t step)
{
    const run *r = user;
    const double from = r->s.o.warmup_from, peak = r->s.o.learning_rate;
    const int64_t steps = warmup(r);
    if (from > 0 && step < steps) return from + (peak - from) * (double)step / (double)steps;
    return linnet_learning_rate(step, r->s.at.steps, steps, peak, r->s.o.min_learning_rate_share);
}

static int next_batch(void *user, int64_t step, int64_t micro, linnet_micro_batch *b)
{
    run *r = user;
    (void)step, (void)micro; /* at.samples counts over both, and over resumes */
    const int64_t L = r->s.o.length;
    for (int64_t i = 0; i < r->s.o.batch; i++)
        if (linnet_windows_get(r->windows, r->s.at.samples++, r->ids + i * L, r->targets + i * L) != LINNET_OK) return 1;
    b->ids = r->ids;
    b->targets = r->targets;
    b->tokens = r->s.o.batch * L;
    b->sequences = r->s.o.batch;
    for (int64_t i = 0; r->s.o.no_separator_loss && i < b->tokens; i++)
        if (r->targets[i] == r->text->separator) r->targets[i] = -1;
    if (r->s.o.isolate_documents && r->text->separator >= 0) {
        b->sequences = cut_documents(r);
        b->cu_seqlens = r->cu;
    }
    return 0;
}

/* ---- opening ---- */

static bool has_tokenizer(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "encoder.json"};
    char path[4096];
    bool has = false;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        has |= lnt_file_exists(path);
    }
    return has;
}

static linnet_status open_tokenizer(run *r)
{
    if (r->s.o.resume) {
        LNT_TRY(linnet_tokenizer_open(r->c, r->s.o.out, &r->tokenizer));
        return lnt_same_tokenizer(r->c, &r->s.o, r->tokenizer);
    }
    if (r->s.o.init && !r->s.o.tokenizer && !r->s.o.train_tokenizer && has_tokenizer(r->s.o.init))
        return linnet_tokenizer_open(r->c, r->s.o.init, &r->tokenizer);
    if (!r->s.o.train_tokenizer) return linnet_tokenizer_open(r->c, r->s.o.tokenizer ? r->s.o.tokenizer : "bytes", &r->tokenizer);
    char *text;
    size_t bytes;
    const size_t limit = (size_t)1 << 28; /* 256 MB decide a vocabulary */
    LNT_TRY(lnt_corpus_text(r->c, &(lnt_texts){.paths = r->s.o.texts, .n_paths = r->s.o.n_texts, .field = r->s.o.field}, limit, &text, &bytes));
    linnet_status s = linnet_tokenizer_train(r->c, text, bytes, r->s.o.train_tokenizer, &r->tokenizer);
    lnt_free(text);
    if (s != LINNET_OK || linnet_tokenizer_vocabulary(r->tokenizer) >= r->s.o.train_tokenizer) return s;
    snprintf(r->note, sizeof r->note, "the tokenizer has %lld ids of the %lld that were asked for: the texts have no more pairs that come twice",
             (long long)linnet_tokenizer_vocabulary(r->tokenizer), (long long)r->s.o.train_tokenizer);
    r->progress.note = r->note;
    return LINNET_OK;
}

/* What is read as text and what the run writes are apart: its own files would be the next text. */
static linnet_status check_apart(run *r)
{
    for (int i = 0; i <= r->s.o.n_texts; i++) {
        const char *text = i == r->s.o.n_texts ? r->s.o.held_out : r->s.o.texts ? r->s.o.texts[i] : NULL; /* what is missing is said later */
        if (!text || !lnt_is_folder(text) || !lnt_lies_in(r->s.o.out, text)) continue;
        lnt_fail(r->c, LINNET_EINVAL, "the run's folder \"%s\" lies in \"%s\", of which every file is read as text", r->s.o.out, text);
        return lnt_hint(r->c, "Name a folder outside it for the run, or the text's files in place of their folder.");
    }
    return LINNET_OK;
}

/* The model that a run begins with, by where it lies. */
static linnet_status check_init(run *r)
{
    char *path = r->s.o.init ? realpath(r->s.o.init, NULL) : NULL;
    const uint64_t init = !r->s.o.init ? LNT_FRESH : lnt_stream_of(path ? path : r->s.o.init) | 2, was = r->s.at.init_fingerprint;
    free(path);
    if (!r->s.o.resume) r->s.at.init_fingerprint = init;
    if (!r->s.o.resume || !r->s.o.init || !was || was == init) return LINNET_OK;
    lnt_fail_option(r->c, "init", "is \"%s\", but the run in \"%s\" was started with %s", r->s.o.init, r->s.o.out,
                    was == LNT_FRESH ? "fresh weights" : "another folder's");
    return lnt_hint(r->c, "Resume without it, or start a new run in another folder.");
}

static linnet_status check_text(run *r, uint64_t held)
{
    const lnt_run_position *at = &r->s.at;
    if (at->fingerprint != r->text->fingerprint) {
        lnt_fail(r->c, LINNET_EINVAL, "the text is not the one this run was started with");
        return lnt_hint(r->c, "Name the same files in the same order, unchanged.");
    }
    if (at->held_fingerprint == held || !at->held_fingerprint) return LINNET_OK;
    if (!r->s.o.held_out) lnt_fail(r->c, LINNET_EINVAL, "no held-out text was named, but the run in \"%s\" was started with one", r->s.o.out);
    else if (at->held_fingerprint == at->fingerprint)
        lnt_fail(r->c, LINNET_EINVAL, "the held-out text is \"%s\", but the run in \"%s\" was started with the last %g of its texts", r->s.o.held_out,
                 r->s.o.out, r->s.o.held_out_share);
    else lnt_fail(r->c, LINNET_EINVAL, "the held-out text \"%s\" is not the one this run was started with", r->s.o.held_out);
    return lnt_hint(r->c, r->s.o.held_out ? "Name what the run was started with, unchanged, or leave it out." : "Name it with --held-out.");
}

/* What was asked for and gives nothing to predict is refused; of a text that is small for the usual share nothing is held out. */
static linnet_status check_held_out(run *r)
{
    const linnet_train_options *o = &r->s.o, usual = LINNET_TRAIN_OPTIONS_INIT;
    const char *plural = r->n_held == 1 ? "" : "s";
    if (r->n_held > 1 || (!o->held_out && (o->held_out_share == 0 || o->held_out_share == usual.held_out_share))) return LINNET_OK;
    if (o->held_out)
        return lnt_fail(r->c, LINNET_EINVAL, "the held-out text \"%s\" gives %lld token%s, expected at least 2", o->held_out,
                        (long long)r->n_held, plural);
    lnt_fail_option(r->c, "held_out_share", "is %g, which gives %lld token%s of %lld, expected at least 2", o->held_out_share,
                    (long long)r->n_held, plural, (long long)r->text->n);
    return lnt_hint(r->c, "0 holds nothing out.");
}

static linnet_status open_text(run *r)
{
    const lnt_texts texts = {.paths = r->s.o.texts, .n_paths = r->s.o.n_texts, .field = r->s.o.field};
    LNT_TRY(lnt_corpus_load(r->c, &texts, r->tokenizer, &r->text));
    r->train_ids = r->text->ids;
    r->n_train = r->text->n;
    if (r->s.o.held_out) {
        LNT_TRY(lnt_corpus_load(r->c, &(lnt_texts){.paths = &r->s.o.held_out, .n_paths = 1, .field = texts.field}, r->tokenizer, &r->held_text));
        LNT_TRY(lnt_corpus_apart(r->c, r->text, r->held_text, r->s.o.held_out));
        r->held_ids = r->held_text->ids;
        r->n_held = r->held_text->n;
    } else {
        r->n_held = (int64_t)((double)r->text->n * r->s.o.held_out_share);
        r->n_train -= r->n_held;
        r->held_ids = r->text->ids + r->n_train;
    }
    LNT_TRY(check_held_out(r));
    const uint64_t held = r->held_text ? ~r->held_text->fingerprint : r->text->fingerprint; /* another even where the text is the same */
    if (r->s.o.resume) LNT_TRY(check_text(r, held));
    r->s.at.fingerprint = r->text->fingerprint;
    r->s.at.held_fingerprint = held;
    return LINNET_OK;
}

/* The weights of another folder. */
static linnet_status begin_with(run *r, int64_t vocabulary)
{
    LNT_TRY(linnet_model_load_kept(r->c, r->s.o.init, r->s.dtype, r->s.o.weights, &r->m));
    if (r->m->config->vocab_size >= vocabulary) return LINNET_OK;
    lnt_fail(r->c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model in \"%s\" has %lld", (long long)vocabulary, r->s.o.init,
             (long long)r->m->config->vocab_size);
    return lnt_hint(r->c, "Name the tokenizer that the model was trained with by --tokenizer.");
}

static linnet_status make_model(run *r, const linnet_config *config)
{
    linnet_config *k = NULL;
    linnet_status s = LINNET_OK;
    int64_t vocabulary = linnet_tokenizer_vocabulary(r->tokenizer);
    if (!r->s.o.resume && r->s.o.init) return begin_with(r, vocabulary);
    if (r->s.o.resume) {
        LNT_TRY(linnet_config_load(r->c, r->s.o.out, &k));
        if (config) s = lnt_same_config(r->c, &r->s.o, config, k);
        if (s == LINNET_OK && k->vocab_size < vocabulary)
            s = lnt_fail(r->c, LINNET_EFORMAT, "config.json has vocab_size %lld, but tokenizer.json has %lld ids", (long long)k->vocab_size,
                         (long long)vocabulary);
        if (s == LINNET_OK) s = lnt_resume_check(r->c, r->s.o.out, k, r->s.dtype);
    } else {
        LNT_TRY(lnt_config_copy(r->c, config, &k));
        k->vocab_size = vocabulary;
        k->bos_token_id = k->eos_token_id = linnet_tokenizer_separator(r->tokenizer);
    }
    if (s == LINNET_OK) s = linnet_model_create_kept(r->c, k, r->s.dtype, r->s.o.weights, r->s.o.seed, &r->m);
    linnet_config_destroy(k);
    return s;
}

static linnet_status open_model(run *r, const linnet_config *config)
{
    LNT_TRY(make_model(r, config));
    LNT_TRY(lnt_model_check_next(r->c, r->m));
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    o.batch = r->s.o.batch;
    o.length = r->s.o.length;
    o.accumulate = r->s.o.accumulate;
    o.recompute = r->s.o.recompute;
    o.beta1 = r->s.o.beta1;
    o.beta2 = r->s.o.beta2;
    o.epsilon = r->s.o.epsilon;
    o.weight_decay = r->s.o.weight_decay;
    o.clip = r->s.o.clip;
    o.seed = r->s.o.seed;
    o.moments = r->s.o.moments;
    o.user = r;
    o.next = next_batch;
    o.schedule = learning_rate;
    LNT_TRY(linnet_trainer_create(r->c, r->m, &o, &r->trainer));
    if (r->s.o.resume) {
        LNT_TRY(lnt_resume_read_weights(r->c, r->s.o.out, r->trainer));
        r->trainer->step = r->s.at.step;
    }
    return LINNET_OK;
}

static linnet_status open_run(run *r, const linnet_config *config)
{
    if (!r->s.o.out) return lnt_fail(r->c, LINNET_EINVAL, "no folder was given for the checkpoint");
    LNT_TRY(lnt_run_folder_open(r->c, r->s.o.out, r->s.o.resume, &r->folder));
    if (r->s.o.resume) LNT_TRY(lnt_resume_read_settings(r->c, &r->s));
    else r->s.at.steps = r->s.o.steps;
    LNT_TRY(lnt_settings_check(r->c, &r->s));
    LNT_TRY(check_apart(r));
    LNT_TRY(check_init(r));
    LNT_TRY(check_warmup(r));
    if (r->s.o.init && r->s.o.train_tokenizer && !r->s.o.resume)
        return lnt_fail(r->c, LINNET_EINVAL, "a model to begin with has its ids already, and a tokenizer is to be trained");
    if (!r->s.at.steps && r->s.o.max_seconds <= 0) return lnt_fail(r->c, LINNET_EINVAL, "a run needs a number of steps or a time");
    r->kept = r->s.at.step;
    LNT_TRY(open_tokenizer(r));
    LNT_TRY(open_text(r));
    LNT_TRY(linnet_windows_create(r->c, r->train_ids, r->n_train, r->s.o.length, r->s.o.seed, &r->windows));
    LNT_TRY(open_model(r, config));
    int64_t windows = r->s.o.length >= EVAL_TOKENS_A_RUN ? 1 : EVAL_TOKENS_A_RUN / r->s.o.length;
    if (r->n_held > 1) LNT_TRY(lnt_scorer_create(r->c, r->m, r->s.o.length, windows, &r->scorer));
    if (r->scorer && r->s.o.no_separator_loss) r->scorer->unasked = (int32_t)r->text->separator;
    size_t bytes = lnt_bytes(lnt_bytes_plus(lnt_bytes((size_t)r->s.o.batch, (size_t)r->s.o.length), 1), 8);
    r->ids = lnt_alloc(bytes);
    r->targets = lnt_alloc(bytes);
    r->cu = lnt_alloc(bytes);
    if (!r->ids || !r->targets || !r->cu) return lnt_fail_memory(r->c, bytes);
    if (!r->s.o.resume) {
        LNT_TRY(lnt_run_folder_begin(&r->folder));
        LNT_TRY(linnet_tokenizer_save(r->c, r->tokenizer, r->s.o.out));
    }
    return lnt_train_log_open(r->c, r->s.o.out, r->s.at.step, &r->log);
}

static void close_run(run *r)
{
    lnt_train_log_close(&r->log);
    lnt_free(r->ids);
    lnt_free(r->targets);
    lnt_free(r->cu);
    lnt_scorer_destroy(r->scorer);
    linnet_windows_destroy(r->windows);
    linnet_trainer_destroy(r->trainer);
    linnet_model_destroy(r->m);
    lnt_corpus_free(r->held_text);
    lnt_corpus_free(r->text);
    linnet_tokenizer_destroy(r->tokenizer);
    lnt_run_folder_close(&r->folder);
}

/* ---- the loop ---- */

static linnet_status one_step(run *r)
{
    linnet_trainer_result did = {.size = sizeof did};
    LNT_TRY(linnet_trainer_step(r->trainer, &did));
    r->progress.learning_rate = did.learning_rate;
    r->progress.gradient_norm = did.gradient_norm;
    r->progress.loss = did.loss;
    r->s.at.step = did.step;
    r->s.at.tokens += did.tokens;
    return LINNET_OK;
}

static double elapsed(const run *r) { return lnt_now() - r->start; }

/* A run by the clock: after a few measured steps, how many fit into the time, evaluations (a third of a step's work a token) and the last save
 * included. */
static void fix_steps(run *r)
{
    int64_t step = r->s.at.step;
    if (r->s.at.steps || r->s.o.max_seconds <= 0) return;
    if (step < MEASURE_TO) {
        if (step == MEASURE_FROM || !r->measured) r->measured = lnt_now();
        return;
    }
    double a_step = (lnt_now() - r->measured) / (MEASURE_TO - MEASURE_FROM);
    int64_t held = r->s.o.eval_tokens && r->s.o.eval_tokens < r->n_held ? r->s.o.eval_tokens : r->n_held;
    double an_eval = a_step / 3 * (double)held / (double)(r->s.o.batch * r->s.o.length * r->s.o.accumulate);
    double share = r->s.o.eval_every ? an_eval / (double)r->s.o.eval_every : 0;
    double left = 0.97 * r->s.o.max_seconds - elapsed(r) - an_eval;
    double more = left > 0 ? left / (a_step + share) : 0;
    r->s.at.steps = step + (int64_t)fmin(more, MOST_STEPS);
    if (r->s.at.steps < step + 1) r->s.at.steps = step + 1;
}

static linnet_status evaluate(run *r)
{
    if (!r->scorer) return LINNET_OK;
    int64_t n = r->s.o.eval_tokens && r->s.o.eval_tokens + 1 < r->n_held ? r->s.o.eval_tokens + 1 : r->n_held;
    lnt_score score = {0};
    LNT_TRY(lnt_scorer_run(r->scorer, r->held_ids, n, NULL, NULL, &score));
    if (!isfinite(score.nats)) {
        lnt_fail(r->c, LINNET_EINVAL, "the loss on the held-out text after step %lld is %s", (long long)r->s.at.step,
                 isnan(score.nats) ? "nan" : "inf");
        return lnt_hint(r->c, "A smaller learning rate may help.");
    }
    int64_t bytes = lnt_corpus_bytes(r->held_text ? r->held_text : r->text, r->held_ids + 1, n - 1);
    if (!score.tokens) return LINNET_OK; /* separators alone, which nothing is asked to predict */
    r->progress.evaluated = 1;
    r->progress.eval_loss = score.nats / (double)score.tokens;
    r->progress.eval_bits_per_byte = bytes ? score.nats / M_LN2 / (double)bytes : NAN;
    return LINNET_OK;
}

/* All files lie on the disk before the first gets its name; train_state.safetensors, which makes it a checkpoint, comes last. */
static linnet_status save(run *r)
{
    enum { MODEL = 0, STATE = 2, FILES };
    lnt_file_writer w[FILES];
    r->s.at.seconds = elapsed(r);
    LNT_TRY(lnt_train_log_sync(r->c, &r->log));
    LNT_TRY(lnt_resume_stage(r->c, r->trainer, &r->s, &w[STATE])); /* first: it looks at the weights */
    linnet_status s = lnt_model_stage(r->c, r->m, r->s.o.out, w + MODEL);
    if (s != LINNET_OK) {
        lnt_file_abandon(&w[STATE]);
        return s;
    }
    LNT_TRY(lnt_file_commit_all(r->c, w, FILES));
    lnt_run_folder_saved(&r->folder);
    r->kept = r->s.at.step;
    r->progress.saved = 1;
    return LINNET_OK;
}

static bool on_beat(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static void measure_rate(run *r)
{
    linnet_train_progress *p = &r->progress;
    double now = lnt_now(), step_tokens = (double)(r->s.o.batch * r->s.o.length * r->s.o.accumulate);
    double rate = step_tokens / (now - r->rate_clock);
    r->rate_tokens = r->rate_tokens > 0 ? 0.9 * r->rate_tokens + 0.1 * rate : rate;
    p->tokens_per_second = r->rate_tokens;
    p->step = r->s.at.step;
    p->steps = r->s.at.steps;
    p->tokens = r->s.at.tokens;
    p->seconds = elapsed(r);
    p->seconds_left = r->s.at.steps ? (double)(r->s.at.steps - r->s.at.step) * step_tokens / r->rate_tokens : r->s.o.max_seconds - p->seconds;
}

/* What a run that is lengthened keeps and what it does not. */
static void say_lengthened(run *r)
{
    const int64_t was = r->s.lengthened, steps = r->s.at.steps;
    const double floor = r->s.o.learning_rate * r->s.o.min_learning_rate_share;
    if (!was) return;
    lnt_format(r->note, sizeof r->note,
               "lengthened from %lld to %lld steps: weights, moments, place in the text and all settings are kept; the learning rate, which had come "
               "to %.3g, goes on as in a run of %lld steps, from %.3g; a limit of its time is ignored",
               (long long)was, (long long)steps, floor, (long long)steps, learning_rate(r, was));
    r->progress.note = r->note;
}

/* The weights of a run at its end, in shards where they are to be. A run that ended between its last save and this is cut when it is resumed. */
static linnet_status cut(run *r)
{
    return r->s.o.shard_bytes > 0 && lnt_run_folder_whole(&r->folder) ? lnt_model_cut(r->c, r->m, r->s.o.out, r->s.o.shard_bytes) : LINNET_OK;
}

static linnet_status loop(run *r)
{
    say_lengthened(r);
    while (!r->s.at.steps || r->s.at.step < r->s.at.steps) {
        r->progress.evaluated = r->progress.saved = 0;
        r->rate_clock = lnt_now();
        fix_steps(r);
        LNT_TRY(one_step(r));
        measure_rate(r);
        bool out_of_time = r->s.o.max_seconds > 0 && elapsed(r) > r->s.o.max_seconds;
        bool last = r->s.at.step == r->s.at.steps || out_of_time;
        if (on_beat(r->s.at.step, r->s.o.eval_every) || last) LNT_TRY(evaluate(r));
        LNT_TRY(lnt_train_log_step(r->c, &r->log, &r->progress));
        if (on_beat(r->s.at.step, r->s.o.save_every) || last) LNT_TRY(save(r));
        bool stop = r->s.o.progress && r->s.o.progress(r->s.o.user, &r->progress);
        r->progress.note = NULL;
        if (last) break;
        if (stop) {
            if (!r->progress.saved) LNT_TRY(save(r));
            return lnt_fail(r->c, LINNET_EINTERRUPTED, "training was stopped after step %lld; it is saved in \"%s\"", (long long)r->s.at.step,
                            r->s.o.out);
        }
    }
    return cut(r);
}

/* To the error that ended a run: what is left of it, in front of what it says may help. Where it is not about numbers, a save may have ended in the
 * middle: the folder knows. */
static linnet_status say_left(run *r, linnet_status s)
{
    char help[sizeof r->c->hint];
    if (s == LINNET_OK || s == LINNET_EINTERRUPTED || s == LINNET_EUNSUPPORTED) return s; /* the last: its own hint says what to do */
    snprintf(help, sizeof help, "%s%s", *linnet_error_hint(r->c) ? " " : "", linnet_error_hint(r->c));
    if (s == LINNET_EINVAL && r->kept) return lnt_hint(r->c, "The checkpoint of step %lld is untouched.%s", (long long)r->kept, help);
    if (s == LINNET_EINVAL) return lnt_hint(r->c, "No checkpoint had been written.%s", help);
    if (lnt_run_folder_resumable(&r->folder)) return lnt_hint(r->c, "There is a checkpoint: go on from it with --resume.");
    return lnt_hint(r->c, "No checkpoint had been written. The same command starts again.");
}

linnet_status linnet_train(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_train_options *options)
{
    run r = {.c = c, .s = {.o = LINNET_TRAIN_OPTIONS_INIT, .dtype = dtype}, .progress.size = sizeof r.progress};
    LNT_TRY(lnt_options_take(c, "train", options, &r.s.o));
    LNT_TRY(lnt_model_dtype_check(c, "dtype", dtype));
    if (r.s.o.n_given) LNT_TRY(lnt_need(c, r.s.o.given, "the list of what was given"));
    const bool begun = r.s.o.resume || r.s.o.init; /* there is a model */
    linnet_status s = !config && !begun ? lnt_fail(c, LINNET_EINVAL, "no model configuration was given") : LINNET_OK;
    if (config && r.s.o.init && !r.s.o.resume) s = lnt_fail(c, LINNET_EINVAL, "a model to begin with, and the configuration of a new one");
    if (s == LINNET_OK) s = open_run(&r, config);
    if (s == LINNET_OK) {
        r.start = lnt_now() - r.s.at.seconds;
        s = say_left(&r, loop(&r));
    }
    close_run(&r);
    return s;
}
