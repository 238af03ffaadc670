/* linnet_task_mesa_analysis: look at the mesa layers of a model while it reads a text. */
#include <math.h>

#include "core/file.h"
#include "hub/corpus.h"
#include "tasks/mesa_numbers.h"

static void fill_result(const lnt_mesa_numbers *z, linnet_mesa_analysis_result *out)
{
    *out = (linnet_mesa_analysis_result){.tokens = z->windows * z->length, .length = z->length, .layers = z->layers, .heads = z->heads,
                                         .nats_per_token = z->settings[0].nats, .n_settings = z->n_settings - 1};
    for (int64_t i = 0; i < (int64_t)z->layers * z->heads * z->n_bins; i++) out->condition = fmax(out->condition, z->high[i] / z->low[i]);
    for (int i = 1, t = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        linnet_mesa_analysis_setting *r = &out->settings[i - 1];
        *r = (linnet_mesa_analysis_setting){.budget = -1, .tolerance = s->value, .nats_per_token = s->nats, .steps = s->value, .paper_steps = NAN};
        if (s->kind == LNT_MESA_STEPS) {
            r->budget = (int64_t)s->value;
            r->tolerance = NAN;
            continue;
        }
        r->steps = lnt_mesa_mean_steps(z, 0, t);
        r->paper_steps = lnt_mesa_mean_steps(z, z->n_solvers - 1, t);
        t++;
    }
}

static linnet_status analyse(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const linnet_mesa_analysis_options *o,
                             linnet_mesa_analysis_result *out)
{
    lnt_mesa_numbers z = {0};
    lnt_corpus *text = NULL;
    linnet_status s;
    if (!o->out) return lnt_fail(c, LINNET_EINVAL, "out is missing: a folder for the results");
    if (linnet_tokenizer_vocabulary(t) > m->config->vocab_size)
        return lnt_fail(c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model knows %lld", (long long)linnet_tokenizer_vocabulary(t),
                        (long long)m->config->vocab_size);
    LNT_TRY_GOTO(s, lnt_mesa_open(c, m, o, &z), done);
    LNT_TRY_GOTO(s, lnt_corpus_load(c, o->texts, o->n_texts, t, &text), done);
    const int64_t n = o->max_tokens > 0 && o->max_tokens < text->n - 1 ? o->max_tokens + 1 : text->n;
    LNT_TRY_GOTO(s, lnt_mesa_set_text(c, &z, text->ids, n, o->length), done);
    LNT_TRY_GOTO(s, lnt_make_folder(c, o->out), done);
    LNT_TRY_GOTO(s, lnt_mesa_measure(c, &z, o->progress, o->user), done);
    LNT_TRY_GOTO(s, lnt_mesa_write(c, &z, o->out), done);
    fill_result(&z, out);
done:
    lnt_mesa_close(&z);
    lnt_corpus_free(text);
    return s;
}

linnet_status linnet_task_mesa_analysis(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_mesa_analysis_options *options,
                                        linnet_mesa_analysis_result *out)
{
    linnet_mesa_analysis_options o = LINNET_MESA_ANALYSIS_OPTIONS_INIT;
    linnet_mesa_analysis_result r = {.size = sizeof r};
    LNT_TRY(lnt_model_check(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_TRY(lnt_options_take(c, "mesa_analysis", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    LNT_TRY(analyse(c, m, t, &o, &r));
    LNT_GIVE(out, r);
    return LINNET_OK;
}
