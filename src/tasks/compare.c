/* linnet_compare: runs of training and of tasks side by side, from what they left in their folders. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/border.h"
#include "core/file.h"
#include "hub/safetensors.h"
#include "tasks/record.h"
#include "tasks/results.h"
#include "tasks/texts.h"

enum { POINTS = 200 /* of a curve: means over equal parts of the run */, A_PLOT = LNT_LINES_MOST };

typedef struct {
    const char *name;
    int64_t n, n_eval;        /* steps; those with a held-out loss */
    double *step, *loss, *norm, *rate, *eval_step, *eval;
    double tokens, seconds, speed;
    int points;
    double *x, *mean_loss, *mean_norm, *mean_rate;
    const char *held; /* what its held-out losses are of: a text and how much of it; NULL: not known */
    int text;         /* number of that, from 1; 0: not known */
} training;

/* What a task's run is plotted by: its main measure, where its name is a sweep's, "key=value,key=value". */
typedef struct {
    const char *name, *measure, *test; /* test: of several; NULL */
    double y;
} result;

typedef struct {
    lnt_ctx *c;
    lnt_arena *arena;
    lnt_report report;
    result *result;           /* one of each run, at most */
    int n_results;
    training *run;            /* those with a log */
    int n_runs;
} comparison;

/* The last part of a path: "sweep/rate=1e-3/" is rate=1e-3. */
static char *name_of(lnt_arena *arena, const char *folder)
{
    size_t n = strlen(folder), first;
    while (n > 1 && folder[n - 1] == '/') n--;
    for (first = n; first > 0 && folder[first - 1] != '/';) first--;
    return lnt_arena_printf(arena, "%.*s", (int)(n - first), folder + first);
}

static double real_of(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- training logs ---------------------------------------------------------------------------------------------------------- */

/* Means of parts of equal length. */
static void thin_out(training *t)
{
    t->points = t->n < POINTS ? (int)t->n : POINTS;
    for (int p = 0; p < t->points; p++) {
        const int64_t first = t->n * p / t->points, end = t->n * (p + 1) / t->points;
        for (int64_t i = first; i < end; i++) {
            const double share = 1.0 / (double)(end - first);
            t->x[p] += t->step[i] * share;
            t->mean_loss[p] += t->loss[i] * share;
            t->mean_norm[p] += t->norm[i] * share;
            t->mean_rate[p] += t->rate[i] * share;
        }
    }
}

/* What its newest checkpoint says of the text that held-out losses are of. */
static const char *held_text(comparison *k, const char *folder)
{
    static const char *const keys[] = {"run.held_fingerprint", "option.held_out_share", "option.eval_tokens"};
    const char *said = NULL, *path = lnt_arena_printf(k->arena, "%s/train_state.safetensors", folder);
    lnt_safetensors *s;
    if (!path || !lnt_file_exists(path) || lnt_safetensors_open(k->c, path, &s) != LINNET_OK) return NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = lnt_safetensors_metadata(s, keys[i]);
        said = value && (said || !i) ? lnt_arena_printf(k->arena, "%s %s", said ? said : "", value) : NULL;
    }
    lnt_safetensors_close(s);
    return said;
}

/* Texts by numbers, in the order of the runs. */
static int number_texts(comparison *k)
{
    int n = 0;
    for (int i = 0; i < k->n_runs; i++) {
        training *t = &k->run[i];
        for (int j = 0; t->held && j < i && !t->text; j++)
            if (k->run[j].held && !strcmp(k->run[j].held, t->held)) t->text = k->run[j].text;
        if (t->held && !t->text) t->text = ++n;
    }
    return n;
}

static linnet_status read_log(comparison *k, const char *path, const char *folder, const char *name)
{
    lnt_lines l;
    json_t *line;
    int64_t lines = 1;
    training *t = &k->run[k->n_runs];
    LNT_TRY(lnt_lines_open(k->c, path, &l));
    for (const char *p = l.data; (p = strchr(p, '\n')) != NULL; p++) lines++;
    double *all = lnt_arena_alloc(k->arena, lnt_bytes(lnt_bytes((size_t)lines, 6), sizeof *all));
    double *thin = lnt_arena_alloc(k->arena, lnt_bytes(4 * POINTS, sizeof *thin));
    if (!all || !thin) {
        lnt_lines_close(&l);
        return lnt_fail_memory(k->c, lnt_bytes((size_t)lines, 6 * sizeof *all));
    }
    *t = (training){.name = name, .step = all, .loss = all + lines, .norm = all + 2 * lines, .rate = all + 3 * lines, .eval_step = all + 4 * lines,
                    .eval = all + 5 * lines, .held = held_text(k, folder), .x = thin, .mean_loss = thin + POINTS,
                    .mean_norm = thin + 2 * POINTS, .mean_rate = thin + 3 * POINTS};
    linnet_status s;
    while ((s = lnt_lines_next(&l, &line)) == LINNET_OK && line) {
        t->step[t->n] = real_of(line, "step");
        t->loss[t->n] = real_of(line, "loss");
        t->norm[t->n] = real_of(line, "gradient_norm");
        t->rate[t->n++] = real_of(line, "learning_rate");
        t->tokens = real_of(line, "tokens");
        t->seconds = real_of(line, "seconds");
        if (json_object_get(line, "eval_loss")) {
            t->eval_step[t->n_eval] = t->step[t->n - 1];
            t->eval[t->n_eval++] = real_of(line, "eval_loss");
        }
        json_decref(line);
    }
    lnt_lines_close(&l);
    LNT_TRY(s);
    if (!t->n) return LINNET_OK; /* begun, and nothing done yet */
    thin_out(t);
    k->n_runs++;
    return LINNET_OK;
}

static void put_training(lnt_report *p, const training *t)
{
    const int64_t last = t->n < 20 ? 1 : t->n / 20;
    double loss = 0, best = NAN;
    for (int64_t i = t->n - last; i < t->n; i++) loss += t->loss[i] / (double)last;
    for (int64_t i = 0; i < t->n_eval; i++) best = !(best <= t->eval[i]) ? t->eval[i] : best;
    lnt_row_begin(p, "training");
    lnt_row_text(p, "run", t->name);
    lnt_row_int(p, "steps", (int64_t)t->step[t->n - 1]);
    lnt_row_real(p, "tokens", t->tokens);
    lnt_row_real(p, "loss", loss); /* of the last twentieth */
    lnt_row_real(p, "held_out", t->n_eval ? t->eval[t->n_eval - 1] : NAN);
    lnt_row_real(p, "best_held_out", best);
    if (t->n_eval && t->text) lnt_row_int(p, "held_out_text", t->text);
    lnt_row_real(p, "seconds", t->seconds);
    lnt_row_real(p, "tokens_per_second", t->tokens / t->seconds);
    lnt_row_end(p);
}

/* One quantity of all runs, eight in a plot. */
static void plot_all(comparison *k, const char *title, const char *label, int what, bool log_y)
{
    for (int first = 0; first < k->n_runs; first += A_PLOT) {
        lnt_plot_line line[A_PLOT];
        int n = 0;
        for (int i = first; i < k->n_runs && i < first + A_PLOT; i++) {
            const training *t = &k->run[i];
            const double *const y[] = {t->mean_loss, t->eval, t->mean_rate, t->mean_norm};
            const int64_t points = what == 1 ? t->n_eval : t->points;
            if (points) line[n++] = (lnt_plot_line){.name = t->name, .x = what == 1 ? t->eval_step : t->x, .y = y[what], .n = points};
        }
        if (n)
            lnt_report_plot_add(&k->report,
                                &(lnt_plot){.title = title, .x_label = "update", .y_label = label, .log_y = log_y, .n_lines = n, .lines = line});
    }
}

/* ---- results of tasks ------------------------------------------------------------------------------------------------------- */

static const char *const measures[] = {"macro_accuracy", "validity", "scaled_accuracy", "accuracy", "acc", "contains", "found", "score", "bleu",
                                       "word_perplexity", "nats_per_token"};

/* The first row of a run with a measure, of several learning rates the best one's. */
static void keep_result(comparison *k, const json_t *line, const char *name)
{
    result *r = &k->result[k->n_results];
    const json_t *best = json_object_get(line, "best");
    if ((k->n_results && k->result[k->n_results - 1].name == name) || (best && json_integer_value(best) == 0)) return;
    for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
        const double y = real_of(line, measures[i]);
        if (isnan(y)) continue;
        const char *test = json_string_value(json_object_get(line, "test"));
        *r = (result){.name = name, .measure = measures[i], .test = test ? lnt_arena_strdup(k->arena, test) : NULL, .y = y};
        k->n_results++;
        return;
    }
}

static linnet_status read_results(comparison *k, const char *path, const char *name)
{
    lnt_lines l;
    json_t *line;
    linnet_status s;
    LNT_TRY(lnt_lines_open(k->c, path, &l));
    while ((s = lnt_lines_next(&l, &line)) == LINNET_OK && line) {
        const char *key, *table = json_string_value(json_object_get(line, "row"));
        json_t *v;
        if (table && !strcmp(table, LNT_RESULTS_ROW)) { /* what the run was stands in its own folder */
            json_decref(line);
            continue;
        }
        const char *kept = lnt_arena_strdup(k->arena, table ? table : "result");
        if (!kept) s = lnt_fail_memory(k->c, 64);
        lnt_row_begin(&k->report, kept ? kept : "");
        lnt_row_text(&k->report, "run", name);
        json_object_foreach(line, key, v) {
            if (!strcmp(key, "row")) continue;
            if (json_is_string(v)) lnt_row_text(&k->report, key, json_string_value(v));
            else if (json_is_integer(v)) lnt_row_int(&k->report, key, json_integer_value(v));
            else lnt_row_real(&k->report, key, json_is_real(v) ? json_real_value(v) : NAN);
        }
        lnt_row_end(&k->report);
        keep_result(k, line, name);
        json_decref(line);
        if (s != LINNET_OK) break;
    }
    lnt_lines_close(&l);
    return s;
}

/* ---- what a sweep has measured over a key of its grid ------------------------------------------------------------------------- */

/* The value of the i-th key of "key=value,key=value", and where its pair begins and ends; NAN: there is none, or it is no number. */
static double value_at(const char *name, int i, const char **begin, const char **end)
{
    char *stop;
    *begin = name;
    for (; i > 0 && (*begin = strchr(*begin, ',')) != NULL; i--) ++*begin;
    if (!*begin) return NAN;
    *end = *begin + strcspn(*begin, ",");
    const char *sign = memchr(*begin, '=', (size_t)(*end - *begin));
    if (!sign) return NAN;
    const double x = lnt_parse_real(sign + 1, &stop);
    return stop == *end && stop > sign + 1 ? x : NAN;
}

/* The key that takes most numbers, every run having one; -1: none takes two. */
static int widest_key(const comparison *k)
{
    int best = -1, most = 1;
    for (int i = 0;; i++) {
        int distinct = 0;
        bool there = false, all = true;
        for (int a = 0; a < k->n_results; a++) {
            const char *begin, *end;
            const double x = value_at(k->result[a].name, i, &begin, &end);
            bool again = false;
            there = there || begin;
            all = all && !isnan(x);
            for (int b = 0; b < a && !again; b++) again = value_at(k->result[b].name, i, &begin, &end) == x;
            distinct += !again;
        }
        if (!there) return best;
        if (all && distinct > most) most = distinct, best = i;
    }
}

/* The name without its i-th pair. */
static char *rest_of(const comparison *k, const char *name, int i)
{
    const char *begin, *end;
    value_at(name, i, &begin, &end);
    const size_t n = (size_t)(begin - name);
    return lnt_arena_printf(k->arena, "%.*s%s", (int)(n && !*end ? n - 1 : n), name, *end ? end + 1 : "");
}

/* The main measure over that key, a line for each combination of the others. */
static linnet_status plot_grid(comparison *k)
{
    const int n = k->n_results, key = n > 1 ? widest_key(k) : -1;
    const char *begin = NULL, *end;
    if (key < 0) return LINNET_OK;
    double *x = lnt_arena_alloc(k->arena, lnt_bytes((size_t)n, 2 * sizeof *x)), *y = x ? x + n : NULL, low = INFINITY, high = 0;
    const char **rest = lnt_arena_alloc(k->arena, lnt_bytes((size_t)n, sizeof *rest));
    bool *drawn = lnt_arena_alloc(k->arena, (size_t)n);
    if (!x || !rest || !drawn) return lnt_fail_memory(k->c, lnt_bytes((size_t)n, 2 * sizeof *x));
    for (int i = 0; i < n; i++) {
        const double v = value_at(k->result[i].name, key, &begin, &end);
        low = fmin(low, v);
        high = fmax(high, v);
        if (!(rest[i] = rest_of(k, k->result[i].name, key))) return lnt_fail_memory(k->c, strlen(k->result[i].name));
    }
    const char *label = lnt_arena_printf(k->arena, "%.*s", (int)strcspn(begin, "="), begin);
    const result *one = k->result;
    const char *title = lnt_arena_printf(k->arena, one->test ? "%s, %s" : "%s", one->measure, one->test);
    if (!label || !title) return lnt_fail_memory(k->c, 64);
    for (int left = n, at = 0; left > 0;) {
        lnt_plot_line line[A_PLOT];
        int lines = 0;
        for (int i = 0; i < n && lines < A_PLOT; i++) {
            if (drawn[i]) continue;
            const int first = at;
            for (int j = i; j < n; j++) { /* rising, whatever the order of the runs */
                if (drawn[j] || strcmp(rest[i], rest[j]) != 0) continue;
                const double v = value_at(k->result[j].name, key, &begin, &end);
                int to = at++;
                for (; to > first && x[to - 1] > v; to--) x[to] = x[to - 1], y[to] = y[to - 1];
                x[to] = v;
                y[to] = strcmp(k->result[j].measure, one->measure) == 0 ? k->result[j].y : NAN;
                drawn[j] = true;
                left--;
            }
            line[lines++] = (lnt_plot_line){.name = *rest[i] ? rest[i] : NULL, .x = x + first, .y = y + first, .n = at - first};
        }
        lnt_report_plot_add(&k->report, &(lnt_plot){.title = title, .x_label = label, .y_label = one->measure, .log_x = low > 0 && high / low >= 8,
                                                    .n_lines = lines, .lines = line});
    }
    return LINNET_OK;
}

/* ---- the call --------------------------------------------------------------------------------------------------------------- */

static linnet_status read_run(comparison *k, const char *folder)
{
    char path[4096];
    const char *name = name_of(k->arena, folder);
    bool any = false;
    if (!name) return lnt_fail_memory(k->c, strlen(folder));
    for (int i = 0; i < 2; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s", folder, i ? "results.jsonl" : "log.jsonl");
        if (n >= (int)sizeof path) return lnt_fail(k->c, LINNET_EINVAL, "the path of a run is too long");
        if (!lnt_file_exists(path)) continue;
        any = true;
        LNT_TRY(i ? read_results(k, path, name) : read_log(k, path, folder, name));
    }
    if (any) return LINNET_OK;
    lnt_fail(k->c, LINNET_EINVAL, "%s is no run: it has neither log.jsonl nor results.jsonl", folder);
    return lnt_hint(k->c, "Name folders that `linnet train --out` or `linnet task --out` left.");
}

static linnet_status compare(comparison *k, const linnet_compare_options *o)
{
    k->run = lnt_arena_alloc(k->arena, lnt_bytes((size_t)o->n_runs, sizeof *k->run));
    k->result = lnt_arena_alloc(k->arena, lnt_bytes(lnt_bytes_plus((size_t)o->n_runs, 1), sizeof *k->result));
    if (!k->run || !k->result) return lnt_fail_memory(k->c, lnt_bytes((size_t)o->n_runs, sizeof *k->run));
    for (int i = 0; i < o->n_runs; i++) LNT_TRY(read_run(k, o->runs[i]));
    const int texts = number_texts(k);
    for (int i = 0; i < k->n_runs; i++) put_training(&k->report, &k->run[i]);
    plot_all(k, "Training loss", "nats per token", 0, false);
    plot_all(k, "Held-out loss", "nats per token", 1, false);
    plot_all(k, "Learning rate", "", 2, false);
    plot_all(k, "Gradient norm", "", 3, true);
    LNT_TRY(plot_grid(k));
    if (o->out && !o->page) {
        LNT_TRY(lnt_record_runs(&k->report, o));
        lnt_record_words(&k->report);
        if (texts > 1)
            lnt_report_words(&k->report, "Held-out losses are of %d texts, by words, tokens or share (held_out_text): compare those of one.",
                             texts);
    }
    return o->out ? lnt_make_folder(k->c, o->out) : LINNET_OK;
}

linnet_status linnet_compare(linnet_context *c, const linnet_compare_options *options, const linnet_task_callbacks *callbacks)
{
    linnet_compare_options o = LINNET_COMPARE_OPTIONS_INIT;
    linnet_task_callbacks back = LINNET_TASK_CALLBACKS_INIT;
    lnt_arena arena = {0};
    LNT_TRY(lnt_options_take(c, "compare", options, &o));
    if (callbacks) LNT_TRY(lnt_options_take(c, "task_callbacks", callbacks, &back));
    LNT_TRY(lnt_need(c, o.runs, "the list of runs"));
    for (int i = 0; i < o.n_runs; i++) LNT_TRY(lnt_need(c, o.runs[i], "a run"));
    if (o.out && !o.page) LNT_TRY(lnt_results_check(c, o.out, "compare", NULL));
    comparison k = {.c = c, .arena = &arena, .report = {.c = c, .task = "compare", .out = o.out, .k = &back, .only_page = o.page != 0}};
    const linnet_status s = compare(&k, &o);
    if (s != LINNET_OK) k.report.out = NULL;
    const char *one = o.n_runs == 1 && s == LINNET_OK ? name_of(&arena, o.runs[0]) : NULL;
    const linnet_status written = lnt_report_close(&k.report, one ? one : "Runs side by side", s == LINNET_OK);
    lnt_arena_free(&arena);
    return s == LINNET_OK ? written : s;
}
