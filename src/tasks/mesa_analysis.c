/* A look at the mesa layers of a model while it reads a text (docs/mesa-analysis.md). */
#include <math.h>

#include "core/file.h"
#include "hub/corpus.h"
#include "tasks/mesa_numbers.h"
#include "tasks/task.h"

typedef struct {
    int64_t length, tokens;
    const char *budgets, *tolerances, *solver, *learnt;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, length, 1, 1 << 24, 1024, "tokens of a window; every window begins with a fresh state"),
    LNT_INT(options, tokens, 0, 1e15, 16384, "how much of the text to read, in whole windows; 0: all"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, budgets, "N,N...", "0,5,10,15,30", "fixed numbers of steps to measure the loss at"),
    LNT_TEXT(options, tolerances, "X,X...", "0.1,0.01,0.001,0.0001", "relative residuals to stop at"),
    LNT_TEXT(options, solver, "NAME", NULL, "level, jacobi or plain (the paper's); not given: the model's, or level where that cannot end early"),
    LNT_TEXT(options, learnt, "N", NULL, "tokens of a window that the model has learnt from: marked on the page, and losses told apart there"),
};
static const char *const paper[] = {"length=2048", "tokens=1024000", NULL};

typedef struct {
    lnt_mesa_ask ask;
    int64_t budgets[LNT_MESA_MOST];
    double tolerances[LNT_MESA_MOST];
} question;

static linnet_status read_question(lnt_ctx *c, const options *o, question *q)
{
    double budgets[LNT_MESA_MOST];
    *q = (question){.ask = {.budgets = q->budgets, .tolerances = q->tolerances, .solver = o->solver}};
    LNT_TRY(lnt_task_numbers(c, "budgets", o->budgets, 0, 65536, LNT_MESA_MOST, budgets, &q->ask.n_budgets));
    for (int i = 0; i < q->ask.n_budgets; i++) {
        q->budgets[i] = (int64_t)budgets[i];
        if (budgets[i] != floor(budgets[i])) return lnt_fail_option(c, "budgets", "is \"%.40s\", expected whole numbers", o->budgets);
    }
    return lnt_task_numbers(c, "tolerances", o->tolerances, 1e-300, 1, LNT_MESA_MOST, q->tolerances, &q->ask.n_tolerances);
}

/* Mean over positions first .. end of a setting's loss less the model's own; NAN: there are none. */
static double difference(const lnt_mesa_numbers *z, const lnt_mesa_setting *s, int64_t first, int64_t end)
{
    double sum = 0;
    for (int64_t t = first; t < end; t++) sum += s->position[t] - z->settings[0].position[t];
    return end > first ? sum / (double)(end - first) : NAN;
}

static void put_rows(lnt_report *p, const lnt_mesa_numbers *z)
{
    const int64_t learnt = z->learnt < z->length ? z->learnt : z->length;
    double condition = 0, cosine = 0;
    for (int64_t i = 0; i < (int64_t)z->layers * z->heads * z->n_bins; i++) {
        const int64_t b = i % z->n_bins;
        condition = fmax(condition, z->high[i] / z->low[i]);
        cosine += z->cosine[i] * (double)(z->bin[b + 1] - z->bin[b]) / (double)(z->length * z->layers * z->heads);
    }
    lnt_row_begin(p, "model");
    lnt_row_int(p, "tokens", z->windows * z->length);
    lnt_row_int(p, "length", z->length);
    lnt_row_int(p, "layers", z->layers);
    lnt_row_int(p, "heads", z->heads);
    lnt_row_real(p, "nats_per_token", z->settings[0].nats);
    lnt_row_real(p, "condition", condition);
    lnt_row_real(p, "cosine", cosine);
    lnt_row_end(p);
    for (int i = 1, t = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        const bool steps = s->kind == LNT_MESA_STEPS;
        lnt_row_begin(p, "setting");
        if (steps) lnt_row_int(p, "budget", (int64_t)s->value);
        else lnt_row_real(p, "tolerance", s->value);
        lnt_row_real(p, "nats_per_token", s->nats);
        lnt_row_real(p, "difference", s->nats - z->settings[0].nats);
        if (z->learnt) {
            lnt_row_real(p, "within", difference(z, s, 0, learnt));
            lnt_row_real(p, "beyond", difference(z, s, learnt, z->length));
        }
        lnt_row_real(p, "steps", steps ? s->value : lnt_mesa_mean_steps(z, 0, t));
        lnt_row_real(p, "paper_steps", steps ? NAN : lnt_mesa_mean_steps(z, z->n_solvers - 1, t));
        lnt_row_end(p);
        t += !steps;
    }
}

static int on_progress(void *user, int64_t done, int64_t total)
{
    return lnt_run_progress(user, total > 0 ? (double)done / (double)total : 1, "analyse") != LINNET_OK;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    linnet_model *m = r->o->model;
    lnt_ctx *c = r->c;
    question q;
    double learnt = 0;
    int one;
    lnt_mesa_numbers z = {0};
    lnt_corpus *text = NULL;
    linnet_status s;
    linnet_model_info info = {.size = sizeof info};
    if (!r->o->out) return lnt_fail_option(c, "out", "is missing: a folder for the results");
    LNT_TRY(read_question(c, o, &q));
    if (o->learnt) LNT_TRY(lnt_task_numbers(c, "learnt", o->learnt, 1, 1 << 24, 1, &learnt, &one));
    LNT_TRY_GOTO(s, lnt_mesa_open(c, m, &q.ask, &z), done);
    LNT_TRY_GOTO(s, lnt_corpus_load(c, &(lnt_texts){.paths = r->o->files, .n_paths = r->o->n_files}, r->o->tokenizer, &text), done);
    const int64_t n = o->tokens > 0 && o->tokens < text->n - 1 ? o->tokens + 1 : text->n;
    LNT_TRY_GOTO(s, lnt_mesa_set_text(c, &z, text->ids, n, o->length), done);
    LNT_TRY_GOTO(s, linnet_model_get_info(m, &info), done);
    const int64_t tokens = z.windows * z.length * z.n_settings;
    LNT_TRY_GOTO(s, lnt_run_cost(r, 0, 0, tokens, 2.0 * (double)info.parameters * (double)tokens, NAN), done);
    z.learnt = (int64_t)learnt;
    z.words = r->report.words;
    z.n_words = r->report.n_words;
    z.deadline = r->deadline;
    const int64_t windows = z.windows;
    LNT_TRY_GOTO(s, lnt_mesa_measure(c, &z, on_progress, r), done);
    LNT_TRY_GOTO(s, lnt_mesa_write(c, &z, r->o->out), done);
    for (int i = 0; lnt_mesa_names[i]; i++) lnt_report_wrote(&r->report, lnt_mesa_names[i]);
    r->late = z.windows < windows;
    r->report.own_page = true;
    put_rows(&r->report, &z);
done:
    lnt_mesa_close(&z);
    lnt_corpus_free(text);
    return s;
}

const lnt_task lnt_task_mesa_analysis = {
    .info = {"mesa-analysis", "look inside the mesa layers of a model while it reads a text",
             "For each head: write strength, memory, regulariser, the condition number of what it solves, the steps that takes, and the cosine "
             "between its output and that without steps; and the loss over position when all solves get a fixed number of steps or stop at a "
             "tolerance. The model's files are not changed. The page is mesa.svg.",
             "von Oswald et al. 2025, MesaNet, arXiv 2506.05233",
             "linnet task mesa-analysis model/ held-out.txt --out inside --length 1024", LINNET_TASK_READS, 1, -1, "TEXT...", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 4,
    .paper = paper,
    .run = run,
};
