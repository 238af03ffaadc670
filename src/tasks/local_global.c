/* Which tasks need what stands far back (von Oswald et al., MesaNet, arXiv 2506.05233): a task is global when its score rises with the window of
 * softmax attention and no model of a window up to 64 is better than the full one; otherwise it is local. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tasks/choice.h"
#include "tasks/nearness.h"
#include "tasks/reader.h"

enum { MOST_MODELS = 8, MOST_FILES = 64 };

typedef struct {
    int measure;
    int64_t examples;
    const char *windows, *formats, *labels;
} options;

#define MEASURES "acc acc_norm acc_per_token"

static const lnt_option keys[] = {
    LNT_WORD(options, measure, MEASURES, 2, "which choice counts as the model's, as of the task choice"),
    LNT_INT(options, examples, 0, 1e9, 500, "questions of each file; 0: all"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, windows, "N=DIR,N=DIR...", NULL, "models with softmax attention over windows of N tokens (required)"),
    LNT_TEXT(options, formats, "NAME,NAME...", "plain", "what the files' lines are, one name for all of them or one each"),
    LNT_TEXT(options, labels, "FILE,FILE...", NULL, "answers beside the files, one each; empty where the lines have them"),
};
static const char *const paper[] = {"examples=0", NULL};

typedef struct {
    int64_t window;
    linnet_model *m; /* ours */
} windowed;

/* Part `i` of "a,b,c" (the last one counts for all further ones when `repeat`), the arena's; NULL: none, or no memory. */
static char *part(lnt_run *r, const char *list, int i, bool repeat)
{
    if (!list) return NULL;
    for (; i > 0; i--) {
        const char *comma = strchr(list, ',');
        if (!comma) return repeat ? lnt_arena_strdup(r->arena, list) : NULL;
        list = comma + 1;
    }
    return lnt_arena_printf(r->arena, "%.*s", (int)strcspn(list, ","), list);
}

/* Whether every layer is softmax attention over `window` tokens, 0: over all; `what` names the model. */
static linnet_status check_window(lnt_run *r, const linnet_model *m, const char *what, int64_t window)
{
    for (int i = 0; i < (int)m->config->num_hidden_layers; i++) {
        const int64_t has = lnt_config_window(m->config, i, "attention");
        char wanted[64] = "without a window", found[64] = "no softmax attention";
        if (has == window) continue;
        if (window) snprintf(wanted, sizeof wanted, "over %lld tokens", (long long)window);
        if (has > 0) snprintf(found, sizeof found, "softmax attention over %lld tokens", (long long)has);
        else if (!has) snprintf(found, sizeof found, "softmax attention without a window");
        return lnt_fail(r->c, LINNET_EINVAL, "layer %d of %s is %s, expected softmax attention %s", i, what, found, wanted);
    }
    return LINNET_OK;
}

static linnet_status open_windows(lnt_run *r, windowed *w, int *n)
{
    const options *o = r->values;
    LNT_TRY(check_window(r, r->o->model, "the model", 0));
    for (*n = 0; *n < MOST_MODELS;) {
        char *text = part(r, o->windows, *n, false), *folder = text ? strchr(text, '=') : NULL;
        double window = 0;
        int one;
        if (!text) break;
        if (!folder) return lnt_fail_option(r->c, "windows", "has \"%.60s\", expected N=DIR", text);
        *folder++ = 0;
        LNT_TRY(lnt_task_numbers(r->c, "windows", text, 1, 1 << 24, 1, &window, &one));
        if (*n && (int64_t)window <= w[*n - 1].window)
            return lnt_fail_option(r->c, "windows", "are not in the order of their size: %.0f", window);
        w[*n].window = (int64_t)window;
        LNT_TRY(linnet_model_load(r->c, folder, r->o->model->dtype, &w[*n].m));
        const linnet_model *m = w[(*n)++].m;
        LNT_TRY(lnt_model_check_next(r->c, m));
        LNT_TRY(check_window(r, m, folder, (int64_t)window));
        if (linnet_tokenizer_vocabulary(r->o->tokenizer) > m->config->vocab_size)
            return lnt_fail(r->c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model in %s knows %lld",
                            (long long)linnet_tokenizer_vocabulary(r->o->tokenizer), folder, (long long)m->config->vocab_size);
    }
    if (*n < 2) return lnt_fail_option(r->c, "windows", "names %d models, expected 2 to %d as N=DIR,N=DIR", *n, MOST_MODELS);
    return LINNET_OK;
}

static linnet_status score(lnt_run *r, linnet_model *m, int file, double *out)
{
    const options *o = r->values;
    const char *format = part(r, o->formats, file, true), *labels = part(r, o->labels, file, false);
    const int which = format ? lnt_word_find(LNT_CHOICE_FORMATS, format) : -1;
    lnt_reader k;
    double share[3];
    if (which < 0) return lnt_fail_option(r->c, "formats", "has \"%.40s\", expected some of %s", format ? format : "", LNT_CHOICE_FORMATS);
    LNT_TRY(lnt_reader_open(r, false, &k));
    k.m = m;
    const linnet_status s = lnt_choice_score(&k, r->o->files[file], labels && *labels ? labels : NULL, which, o->examples, share);
    lnt_reader_close(&k);
    *out = share[o->measure];
    return s;
}

/* A file's score over the window, and dashed in its colour that of the model without one. */
static void plot_file(lnt_run *r, const windowed *w, int n, int file, const char *name, const double *scores)
{
    const options *o = r->values;
    double x[MOST_MODELS], full[MOST_MODELS];
    char word[24];
    const char *colour = lnt_plot_colour(file), *label = lnt_arena_printf(r->arena, "%s, full", name);
    for (int i = 0; i < n; i++) {
        x[i] = (double)w[i].window;
        full[i] = scores[n];
    }
    const lnt_plot_line lines[] = {{.name = name, .x = x, .y = scores, .n = n, .colour = colour},
                                   {.name = label, .x = x, .y = full, .n = n, .colour = colour, .style = LNT_DASHED}};
    lnt_report_plot_join(&r->report, &(lnt_plot){.title = "Score over the window", .x_label = "tokens of the window",
                                                 .y_label = lnt_word_at(MEASURES, o->measure, word, sizeof word), .log_x = true, .y_high = 1,
                                                 .n_lines = 2, .lines = lines});
}

static linnet_status one_file(lnt_run *r, const windowed *w, int n, int file)
{
    double scores[MOST_MODELS + 1];
    int64_t windows[MOST_MODELS];
    const char *path = r->o->files[file], *name = strrchr(path, '/');
    for (int i = 0; i <= n; i++) {
        LNT_TRY(score(r, i < n ? w[i].m : r->o->model, file, &scores[i]));
        LNT_TRY(lnt_run_progress(r, (file + (i + 1.0) / (n + 1)) / r->o->n_files, "%s", name ? name + 1 : path));
    }
    lnt_row_begin(&r->report, "result");
    lnt_row_text(&r->report, "file", name ? name + 1 : path);
    for (int i = 0; i < n; i++) {
        char *key = lnt_arena_printf(r->arena, "window_%lld", (long long)w[i].window);
        windows[i] = w[i].window;
        if (!key) return lnt_fail_memory(r->c, 32);
        lnt_row_real(&r->report, key, scores[i]);
    }
    lnt_row_real(&r->report, "full", scores[n]);
    lnt_row_text(&r->report, "kind", lnt_is_global(windows, scores, n, scores[n]) ? "global" : "local");
    lnt_row_end(&r->report);
    plot_file(r, w, n, file, name ? name + 1 : path, scores);
    return r->report.s;
}

static linnet_status run(lnt_run *r)
{
    windowed w[MOST_MODELS] = {{0}};
    int n = 0;
    linnet_model_info info = {.size = sizeof info};
    linnet_status s = open_windows(r, w, &n);
    const options *o = r->values;
    /* a question with its choices is about that long */
    const double tokens = 200.0 * (double)(o->examples ? o->examples : 2000) * r->o->n_files * (n + 1);
    linnet_model_get_info(r->o->model, &info);
    if (s == LINNET_OK) s = lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
    for (int f = 0; f < r->o->n_files && s == LINNET_OK && !(f && lnt_run_late(r)); f++) s = one_file(r, w, n, f);
    for (int i = 0; i < MOST_MODELS; i++) linnet_model_destroy(w[i].m);
    return s;
}

const lnt_task lnt_task_local_global = {
    .info = {"local-global", "which tasks need what stands far back",
             "FILE is a file of the task choice; MODEL has no window, --windows names models that differ from it by theirs alone. kind is global "
             "when the score rises with the window and no window up to 64 beats the full model, else local.",
             "von Oswald et al. 2025, arXiv 2506.05233",
             "linnet task local-global full/ easy.jsonl --formats arc_easy --windows 4=swa4,16=swa16,64=swa64",
             LINNET_TASK_READS, 1, MOST_FILES, "FILE...", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 3,
    .paper = paper,
    .run = run,
};
