/* linnet task: mqar, multi-query associative recall (Arora et al., Zoology, 2023); mesa-analysis, a look inside mesa layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "say.h"
#include "term.h"

/* ---- mqar ------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    progress bar;
    double begin;
} view;

static int on_step(void *user, int64_t step, int64_t steps, double loss, double accuracy)
{
    view *v = user;
    char head[64], tail[128], left[SAY_TEXT];
    double gone = term_now() - v->begin;
    snprintf(head, sizeof head, "step %4lld/%lld", (long long)step, (long long)steps);
    snprintf(tail, sizeof tail, "loss %.4f  accuracy %5.1f%%  %s left", loss, 100 * accuracy,
             say_duration(left, step > 0 ? gone * (double)(steps - step) / (double)step : 0));
    progress_show(&v->bar, steps > 0 ? (double)step / (double)steps : 1, head, tail);
    return stop_asked();
}

static void print_result(const linnet_mqar_options *o, const char *mixer, const linnet_mqar_result *r, int json)
{
    char size[SAY_TEXT], time[SAY_TEXT];
    if (!json) {
        printf("mqar  %-16s %s parameters  %lld pairs in %lld tokens  %lld steps, %s  accuracy %.1f%%\n", mixer,
               say_count(size, (double)r->parameters), (long long)o->pairs, (long long)o->length, (long long)r->steps,
               say_duration(time, r->seconds), 100 * r->accuracy);
        return;
    }
    json_line j;
    line_open(&j, stdout);
    line_text(&j, "task", "mqar");
    line_text(&j, "model_type", mixer);
    line_int(&j, "parameters", r->parameters);
    line_int(&j, "vocabulary", o->vocabulary);
    line_int(&j, "length", o->length);
    line_int(&j, "pairs", o->pairs);
    line_int(&j, "rounds", o->rounds);
    line_int(&j, "steps", r->steps);
    line_real(&j, "loss", r->loss);
    line_real(&j, "accuracy", r->accuracy);
    line_real(&j, "seconds", r->seconds);
    line_close(&j);
}

static int task_mqar(const command *self, int argc, char **argv)
{
    static const char *const small[] = { "num_hidden_layers=2", "hidden_size=64", "num_heads=2", NULL };
    linnet_mqar_options o = LINNET_MQAR_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .defaults = small };
    arg_list words = { 0 };
    double minutes = 0;
    int json = 0;
    const arg table[] = {
        { "task", ARG_HEADING },
        { "vocabulary", ARG_I64, &o.vocabulary, "N", "token ids, half of them keys, half values", .range = "mqar.vocabulary" },
        { "length", ARG_I64, &o.length, "N", "tokens of an example", .range = "mqar.length" },
        { "pairs", ARG_I64, &o.pairs, "N", "keys with their values to remember", .range = "mqar.pairs" },
        { "rounds", ARG_I64, &o.rounds, "N", "times the keys are shown, each time with new values; the last ones are asked for",
          .range = "mqar.rounds" },
        { "test-examples", ARG_I64, &o.test_examples, "N", "examples to measure the accuracy on", .range = "mqar.test_examples" },
        MODEL_FLAGS(&shape, "2 layers, width 64, 2 heads"),
        { "training", ARG_HEADING },
        { "steps", ARG_I64, &o.steps, "N", "optimizer steps", .range = "mqar.steps" },
        { "minutes", ARG_REAL, &minutes, "M", "stop after this time", 1e-3, 1e6, "no limit" },
        { "batch", ARG_I64, &o.batch, "N", "examples in a step", .range = "mqar.batch" },
        { "learning-rate", ARG_REAL, &o.learning_rate, "X", "highest learning rate", .range = "mqar.learning_rate" },
        { "weight-decay", ARG_REAL, &o.weight_decay, "X", "decoupled decay of the matrices", .range = "mqar.weight_decay" },
        { "seed", ARG_U64, &o.seed, "N", "of the weights and the examples" },
        { "json", ARG_SWITCH, &json, .help = "print the result as one JSON line" },
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    if (code >= 0) return code;
    o.max_seconds = 60 * minutes;
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_mqar_result r = { .size = sizeof r };
    view v = { .begin = term_now() };
    code = machine_open(&m, &c);
    if (!code) code = model_args_config(c, &shape, &config);
    if (!code) {
        progress_open(&v.bar, stderr);
        stop_watch();
        o.progress = on_step;
        o.user = &v;
        linnet_status s = linnet_task_mqar(c, config, m.dtype, &o, &r);
        progress_close(&v.bar);
        const char *mixer = shape.pattern ? shape.pattern : shape.mixer ? shape.mixer : shape.config ? shape.config : ARG_MIXER;
        if (s == LINNET_OK) print_result(&o, mixer, &r, json);
        else code = s == LINNET_EINTERRUPTED ? EXIT_STOPPED : say_status(c, s);
    }
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

/* ---- mesa-analysis ---------------------------------------------------------------------------------------------------------- */

static int on_progress(void *user, int64_t done, int64_t total)
{
    progress_show(user, total > 0 ? (double)done / (double)total : 1, "analyse", "");
    return stop_asked();
}

enum { MOST_NUMBERS = 6 };

/* "0,5,10" as numbers; returns 0, or the exit code after saying what is wrong. */
static int read_numbers(const char *flag, const char *text, bool whole, double *out, int *n)
{
    const char *at = text;
    for (*n = 0; text; at++) {
        char *end;
        double v = *n < MOST_NUMBERS ? strtod(at, &end) : NAN;
        bool fine = *n < MOST_NUMBERS && end > at && (*end == ',' || !*end) && (whole ? v >= 0 && v <= 65536 && v == floor(v) : v > 0 && v < 1);
        if (!fine)
            return say_error(NULL, NULL, "--%s is \"%s\", expected at most %d %s, separated by commas", flag, text, MOST_NUMBERS,
                             whole ? "whole numbers from 0 to 65536" : "numbers between 0 and 1");
        out[(*n)++] = v;
        at = end;
        if (!*at) break;
    }
    return 0;
}

static void print_analysis(const linnet_mesa_analysis_result *r, const char *out, int json)
{
    if (json) {
        json_line j;
        line_open(&j, stdout);
        line_text(&j, "task", "mesa-analysis");
        line_int(&j, "tokens", r->tokens);
        line_int(&j, "length", r->length);
        line_int(&j, "layers", r->layers);
        line_int(&j, "heads", r->heads);
        line_real(&j, "nats_per_token", r->nats_per_token);
        line_real(&j, "condition", r->condition);
        line_close(&j);
        for (int i = 0; i < r->n_settings; i++) {
            const linnet_mesa_analysis_setting *s = &r->settings[i];
            line_open(&j, stdout);
            if (s->budget >= 0) line_int(&j, "budget", s->budget);
            else line_real(&j, "tolerance", s->tolerance);
            line_real(&j, "nats_per_token", s->nats_per_token);
            line_real(&j, "steps", s->steps);
            line_real(&j, "paper_steps", s->paper_steps);
            line_close(&j);
        }
        return;
    }
    printf("%d mesa layers of %d heads, %lld tokens in windows of %lld; condition number up to %.3g\n", r->layers, r->heads, (long long)r->tokens,
           (long long)r->length, r->condition);
    printf("%-18s %12s %12s %8s %14s\n", "", "nats/token", "difference", "steps", "the paper's");
    printf("%-18s %12.4f\n", "as its file says", r->nats_per_token);
    for (int i = 0; i < r->n_settings; i++) {
        const linnet_mesa_analysis_setting *s = &r->settings[i];
        char name[32];
        if (s->budget >= 0) snprintf(name, sizeof name, "%lld steps", (long long)s->budget);
        else snprintf(name, sizeof name, "tolerance %g", s->tolerance);
        double more = s->nats_per_token - r->nats_per_token;
        printf("%-18s %12.4f %+12.4f", name, s->nats_per_token, fabs(more) < 5e-5 ? 0 : more);
        if (s->budget >= 0) printf(" %8lld\n", (long long)s->budget);
        else printf(" %8.1f %14.1f\n", s->steps, s->paper_steps);
    }
    printf("the plots are in %s/mesa.svg, the numbers in the CSV files beside it\n", out);
}

/* Load the model and look at it. */
static int analyse(const machine_args *m, const char *folder, const char *tokenizer_path, linnet_mesa_analysis_options *o, int json)
{
    linnet_context *c = NULL;
    linnet_model *model = NULL;
    linnet_tokenizer *t = NULL;
    linnet_mesa_analysis_result r = { .size = sizeof r };
    progress bar;
    linnet_status s;
    int code = machine_open(m, &c);
    if (!code && (s = linnet_model_load(c, folder, m->dtype, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = tokenizer_beside(c, tokenizer_path, folder, model, &t);
    if (!code) {
        progress_open(&bar, stderr);
        stop_watch();
        o->progress = on_progress;
        o->user = &bar;
        s = linnet_task_mesa_analysis(c, model, t, o, &r);
        progress_close(&bar);
        if (s == LINNET_OK) print_analysis(&r, o->out, json);
        else code = s == LINNET_EINTERRUPTED ? EXIT_STOPPED : say_status(c, s);
    }
    linnet_tokenizer_destroy(t);
    linnet_model_destroy(model);
    linnet_context_destroy(c);
    return code;
}

static int task_mesa_analysis(const command *self, int argc, char **argv)
{
    linnet_mesa_analysis_options o = LINNET_MESA_ANALYSIS_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    const char *tokenizer_path = NULL, *budgets = NULL, *tolerances = NULL;
    double steps[MOST_NUMBERS], limits[MOST_NUMBERS];
    int64_t whole[MOST_NUMBERS];
    int json = 0;
    const arg table[] = {
        { "analysis", ARG_HEADING },
        { "out", ARG_TEXT, &o.out, "DIR", "folder for mesa.svg and the CSV files (required)" },
        { "length", ARG_I64, &o.length, "N", "tokens of a window; every window begins with a fresh state", .range = "mesa_analysis.length" },
        { "tokens", ARG_I64, &o.max_tokens, "N", "how much of the text to read, in whole windows; 0: all", .range = "mesa_analysis.max_tokens" },
        { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" },
        { "budgets", ARG_TEXT, &budgets, "N,N...", "fixed numbers of steps to measure the loss at", .fallback = "0,5,10,15,30" },
        { "tolerances", ARG_TEXT, &tolerances, "X,X...", "relative residuals to stop at", .fallback = "0.1,0.01,0.001,0.0001" },
        { "solver", ARG_TEXT, &o.solver, "NAME", "level, jacobi or plain (the paper's)",
          .fallback = "the model's, or level where that cannot end early" },
        { "json", ARG_SWITCH, &json, .help = "print the result as JSON lines: the model, then each budget and tolerance" },
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 2, -1);
    if (code >= 0) return code;
    if (!o.out) return say_error(NULL, "Run `linnet task mesa-analysis --help` for usage and flags.", "--out is missing: a folder for the results");
    if ((code = read_numbers("budgets", budgets, true, steps, &o.n_budgets)) != 0) return code;
    if ((code = read_numbers("tolerances", tolerances, false, limits, &o.n_tolerances)) != 0) return code;
    for (int i = 0; i < o.n_budgets; i++) whole[i] = (int64_t)steps[i];
    if (budgets) o.budgets = whole;
    if (tolerances) o.tolerances = limits;
    o.texts = words.item + 1;
    o.n_texts = words.count - 1;
    return analyse(&m, words.item[0], tokenizer_path, &o, json);
}

/* ---- the command ------------------------------------------------------------------------------------------------------------ */

static const command parts[] = {
    { .name = "task mqar", .summary = "train a small model to recall, and report its accuracy", .usage = "[options]",
      .about = "Multi-query associative recall: an example shows keys with their values, then asks for the value of each key.",
      .example = "linnet task mqar --mixer delta_net --pairs 8 --length 64", .run = task_mqar },
    { .name = "task mesa-analysis", .summary = "look inside the mesa layers of a model while it reads a text",
      .usage = "MODEL TEXT... --out DIR [options]",
      .about = "For each head: write strength, memory, regulariser, the condition number of what it solves and the steps that takes; and the loss "
               "over position when all solves get a fixed number of steps or stop at a tolerance. The model's files are not changed.",
      .example = "linnet task mesa-analysis model/ held-out.txt --out inside --length 1024", .run = task_mesa_analysis },
};

static int run(const command *self, int argc, char **argv)
{
    return args_run_part(self, parts, sizeof parts / sizeof *parts, "task", argc, argv);
}

const command cmd_task = {
    .name = "task",
    .summary = "synthetic tasks, and a look inside mesa layers",
    .usage = "mqar | mesa-analysis MODEL TEXT... [options]",
    .about = "Each part has its own flags: `linnet task mqar --help`, and so on.",
    .example = "linnet task mqar --mixer delta_net --pairs 8 --length 64\nlinnet task mesa-analysis model/ held-out.txt --out inside",
    .run = run,
};
