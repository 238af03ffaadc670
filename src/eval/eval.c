/* linnet_eval: perplexity, bits per byte, loss by position. */
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/options.h"
#include "eval/plot.h"
#include "eval/scorer.h"
#include "hub/corpus.h"

enum { TOKENS_A_RUN = 8192 }; /* enough rows for the products, little enough memory */

/* Mean loss at each position, and the mean over all positions up to it. */
static void position_means(const lnt_score *score, int64_t length, double *x, double *here, double *so_far)
{
    double nats = 0, count = 0;
    for (int64_t i = 0; i < length; i++) {
        nats += score->position_nats[i];
        count += (double)score->position_count[i];
        x[i] = (double)i + 1;
        here[i] = score->position_count[i] ? score->position_nats[i] / (double)score->position_count[i] : NAN;
        so_far[i] = count > 0 ? nats / count : NAN;
    }
}

/* What the caller wants written, opened before anything is read: hours of evaluation end in no file that cannot be made. */
typedef struct {
    lnt_file_writer csv;
    lnt_page plot;
    bool drawn;
} outputs;

static linnet_status open_outputs(lnt_ctx *c, const linnet_eval_options *o, outputs *f)
{
    *f = (outputs){.drawn = false};
    if (o->csv) LNT_TRY(lnt_file_begin(c, o->csv, &f->csv));
    if (!o->plot) return LINNET_OK;
    f->drawn = true;
    lnt_plot_begin(&f->plot, c, o->plot);
    return f->plot.s;
}

static void close_outputs(outputs *f)
{
    lnt_file_abandon(&f->csv);
    if (f->drawn) lnt_file_abandon(&f->plot.w);
}

static linnet_status write_csv(lnt_ctx *c, lnt_file_writer *w, const lnt_score *score, int64_t length, const double *here, const double *so_far)
{
    char line[128];
    linnet_status s = lnt_file_write(c, w, "position,windows,loss,mean_so_far\n", 34);
    for (int64_t i = 0; s == LINNET_OK && i < length && score->position_count[i]; i++) {
        int n = lnt_format(line, sizeof line, "%lld,%lld,%.6f,%.6f\n", (long long)i + 1, (long long)score->position_count[i], here[i], so_far[i]);
        s = lnt_file_write(c, w, line, (size_t)n);
    }
    return s == LINNET_OK ? lnt_file_commit(c, w) : s;
}

static linnet_status report(lnt_ctx *c, const linnet_eval_options *o, const lnt_score *score, int64_t length, outputs *f)
{
    if (!o->csv && !o->plot) return LINNET_OK;
    const size_t bytes = lnt_bytes(lnt_bytes((size_t)length, 3), sizeof(double));
    double *x = lnt_alloc(bytes);
    if (!x) return lnt_fail_memory(c, bytes);
    double *here = x + length, *so_far = here + length;
    position_means(score, length, x, here, so_far);
    linnet_status s = LINNET_OK;
    if (o->csv) s = write_csv(c, &f->csv, score, length, here, so_far);
    if (s == LINNET_OK && o->plot) {
        const lnt_plot_line lines[] = {{.name = "at this position", .x = x, .y = here, .n = length},
                                       {.name = "mean so far", .x = x, .y = so_far, .n = length}};
        const lnt_plot p = {
            .title = "Loss over position", .x_label = "position in the window (tokens)", .y_label = "nats per token", .n_lines = 2, .lines = lines};
        s = lnt_plot_end(&f->plot, &p);
    }
    lnt_free(x);
    return s;
}

static linnet_status eval(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const linnet_eval_options *o, linnet_eval_result *out)
{
    if (o->stride > o->length)
        return lnt_fail_option(c, "stride", "is %lld, expected 1 to the length, %lld", (long long)o->stride, (long long)o->length);
    if (linnet_tokenizer_vocabulary(t) > m->config->vocab_size) {
        lnt_fail(c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model knows %lld", (long long)linnet_tokenizer_vocabulary(t),
                 (long long)m->config->vocab_size);
        return lnt_hint(c, "Use the tokenizer the model was trained with.");
    }
    lnt_corpus *text = NULL;
    lnt_scorer *scorer = NULL;
    lnt_score score = {.finite = true};
    outputs files;
    linnet_status s;
    LNT_TRY_GOTO(s, open_outputs(c, o, &files), done);
    LNT_TRY_GOTO(s, lnt_corpus_load(c, &(lnt_texts){.paths = o->texts, .n_paths = o->n_texts, .field = o->field}, t, &text), done);
    int64_t n = o->max_tokens > 0 && o->max_tokens < text->n - 1 ? o->max_tokens + 1 : text->n;
    if (n < 2) {
        s = lnt_fail(c, LINNET_EINVAL, "the text gives %lld token%s, expected at least 2", (long long)text->n, text->n == 1 ? "" : "s");
        goto done;
    }
    /* Memory and time are of what there is to read: no window is longer than the text, and no more are at once than it has. */
    const int64_t length = o->length < n - 1 ? o->length : n - 1, stride = o->stride ? o->stride : length;
    const int64_t there = 1 + (n - 1 - length + stride - 1) / stride, most = length >= TOKENS_A_RUN ? 1 : TOKENS_A_RUN / length;
    LNT_TRY_GOTO(s, lnt_scorer_create_looking(c, m, length, there < most ? there : most, o->check_finite, &scorer), done);
    scorer->stride = stride;
    score.position_nats = lnt_calloc(lnt_bytes((size_t)length, sizeof(double)));
    score.position_count = lnt_calloc(lnt_bytes((size_t)length, sizeof(int64_t)));
    if (!score.position_nats || !score.position_count) {
        s = lnt_fail_memory(c, lnt_bytes((size_t)length, 8));
        goto done;
    }
    double start = lnt_now();
    s = lnt_scorer_run(scorer, text->ids, n, o->progress, o->user, &score);
    if (s != LINNET_OK && s != LINNET_EINTERRUPTED) goto done;
    double seconds = lnt_now() - start;
    const linnet_status written = score.tokens ? report(c, o, &score, length, &files) : LINNET_OK; /* the numbers are there, even where this fails */
    if (written != LINNET_OK) s = written;
    const int64_t bytes = lnt_corpus_bytes(text, text->ids + 1, score.reached);
    const double nats = score.nats / (double)score.tokens;
    *out = (linnet_eval_result){.tokens = score.tokens,
                                .bytes = bytes,
                                .nats_per_token = nats,
                                .perplexity = exp(nats),
                                .bits_per_byte = bytes ? nats / M_LN2 * (double)score.reached / (double)bytes : NAN,
                                .tokens_per_second = (double)score.tokens / seconds};
done:
    close_outputs(&files);
    lnt_free(score.position_nats);
    lnt_free(score.position_count);
    lnt_scorer_destroy(scorer);
    lnt_corpus_free(text);
    return s;
}

linnet_status linnet_eval(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_eval_options *options, linnet_eval_result *out)
{
    linnet_eval_options o = LINNET_EVAL_OPTIONS_INIT;
    linnet_eval_result r = {.size = sizeof r};
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_TRY(lnt_options_take(c, "eval", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    const linnet_status s = eval(c, m, t, &o, &r);
    if (s == LINNET_OK || r.tokens) LNT_GIVE(out, r);
    return s;
}
