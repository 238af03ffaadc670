/* The list of tasks, their options, and linnet_task_run. */
#include "tasks/task.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "device/device.h"
#include "tasks/record.h"
#include "tasks/results.h"

static const lnt_task *const tasks[] = {
#define X(name) &lnt_task_##name,
#include "tasks/tasks.def"
#undef X
};

enum { TASKS = sizeof tasks / sizeof tasks[0] };

const lnt_task *lnt_task_at(int i) { return i >= 0 && i < TASKS ? tasks[i] : NULL; }

const lnt_task *lnt_task_find(const char *name)
{
    for (int i = 0; i < TASKS; i++)
        if (name && !strcmp(tasks[i]->info.name, name)) return tasks[i];
    return NULL;
}


const linnet_task_info *linnet_task_at(int i) { return i >= 0 && i < TASKS ? &tasks[i]->info : NULL; }

const linnet_task_info *linnet_task_find(const char *name)
{
    const lnt_task *t = lnt_task_find(name);
    return t ? &t->info : NULL;
}

lnt_rng lnt_task_rng(const char *name, uint64_t seed, int set, uint64_t index)
{
    return lnt_rng_make(seed, lnt_stream_of(name) + ((uint64_t)set << 48) + index);
}

/* ---- options ---------------------------------------------------------------------------------------------------------------------- */

static const lnt_task_text *find_text(const lnt_task *t, const char *key)
{
    for (int i = 0; i < t->n_texts; i++)
        if (!strcmp(t->texts[i].key, key)) return &t->texts[i];
    return NULL;
}

static const char **text_at(const lnt_task_text *x, const void *values) { return (const char **)((char *)(uintptr_t)values + x->offset); }

static lnt_given given_of(const lnt_option *o, const char *text)
{
    char *end;
    if (o->kind == LNT_OPTION_WORD) return lnt_given_word(text);
    if (o->kind == LNT_OPTION_SWITCH && (!strcmp(text, "true") || !strcmp(text, "false"))) {
        lnt_given g = lnt_given_int(*text == 't');
        g.kind = LNT_GIVEN_BOOL;
        return g;
    }
    const double x = lnt_parse_real(text, &end);
    if (end == text || *end) {
        lnt_given g = lnt_given_word(text);
        g.kind = LNT_GIVEN_OTHER;
        return g;
    }
    return x == floor(x) && fabs(x) < 9e15 ? lnt_given_int((int64_t)x) : lnt_given_real(x);
}

static linnet_status put(lnt_ctx *c, const lnt_task *t, const char *pair, lnt_arena *arena, void *values)
{
    char key[64];
    const char *sign = pair ? strchr(pair, '=') : NULL;
    if (!sign || sign == pair) return lnt_fail(c, LINNET_EINVAL, "a setting is \"%.60s\", expected KEY=VALUE", pair ? pair : "NULL");
    snprintf(key, sizeof key, "%.*s", (int)(sign - pair < 63 ? sign - pair : 63), pair);
    const lnt_option *o = lnt_option_find(&t->options, key);
    if (o) {
        const lnt_given g = given_of(o, sign + 1);
        return lnt_option_put(c, "", o, &g, values);
    }
    const lnt_task_text *x = find_text(t, key);
    if (x) {
        const char *copy = lnt_arena_strdup(arena, sign + 1);
        if (!copy) return lnt_fail_memory(c, strlen(sign));
        *text_at(x, values) = copy;
        return LINNET_OK;
    }
    lnt_fail(c, LINNET_EINVAL, "the task %s has no option \"%s\"", t->info.name, key);
    return lnt_hint(c, "`linnet task %s --help` lists them.", t->info.name);
}

static const char *const *paper_for(const lnt_task *t, const void *values) { return t->paper_for ? t->paper_for(values) : t->paper; }

/* Defaults, then a list of the paper's values (NULL: none of them), then those that are set. */
static linnet_status fill(lnt_ctx *c, const lnt_task *t, const char *const *paper, const char *const *set, int n_set, lnt_arena *arena, void *v)
{
    lnt_options_default(&t->options, v);
    for (int i = 0; i < t->n_texts; i++) *text_at(&t->texts[i], v) = t->texts[i].fallback;
    for (int i = 0; paper && paper[i]; i++) LNT_TRY(put(c, t, paper[i], arena, v));
    for (int i = 0; i < n_set; i++) LNT_TRY(put(c, t, set[i], arena, v));
    return LINNET_OK;
}

linnet_status lnt_task_values(lnt_ctx *c, const lnt_task *t, const char *protocol, const char *const *set, int n_set, lnt_arena *arena,
                              void **values)
{
    void *v = lnt_arena_alloc(arena, t->options.size);
    if (!v) return lnt_fail_memory(c, t->options.size);
    if (protocol && strcmp(protocol, "short") != 0 && strcmp(protocol, "paper") != 0)
        return lnt_fail_option(c, "protocol", "is \"%.40s\", expected short or paper", protocol);
    LNT_TRY(fill(c, t, NULL, set, n_set, arena, v));
    if (protocol && !strcmp(protocol, "paper")) LNT_TRY(fill(c, t, paper_for(t, v), set, n_set, arena, v));
    *values = v;
    return LINNET_OK;
}

static void option_text(const lnt_option *o, const void *base, char *text, size_t size)
{
    const lnt_given g = lnt_option_get(o, base);
    if (g.kind == LNT_GIVEN_NULL) snprintf(text, size, "null");
    else if (o->kind == LNT_OPTION_WORD) snprintf(text, size, "%s", g.word);
    else if (o->kind == LNT_OPTION_SWITCH) snprintf(text, size, g.integer ? "true" : "false");
    else if (o->kind == LNT_OPTION_INT) snprintf(text, size, "%lld", (long long)g.integer);
    else lnt_format(text, size, "%.10g", g.real);
}

/* The i-th option's value as text. */
static void value_text(const lnt_task *t, int i, const void *values, char *text, size_t size)
{
    if (i < t->options.n) {
        option_text(&t->options.row[i], values, text, size);
        return;
    }
    const char *x = *text_at(&t->texts[i - t->options.n], values);
    snprintf(text, size, "%s", x ? x : "");
}

static const char *key_at(const lnt_task *t, int i) { return i < t->options.n ? t->options.row[i].key : t->texts[i - t->options.n].key; }

linnet_status linnet_task_option_at(const char *task, int i, linnet_task_option *out)
{
    const lnt_task *t = lnt_task_find(task);
    linnet_task_option r = {.size = sizeof r};
    lnt_arena arena = {0};
    void *brief, *paper;
    if (!t || i < 0 || i >= t->options.n + t->n_texts || !out) return LINNET_EINVAL;
    linnet_status s = lnt_task_values(NULL, t, "short", NULL, 0, &arena, &brief);
    if (s == LINNET_OK) s = lnt_task_values(NULL, t, "paper", NULL, 0, &arena, &paper);
    if (s == LINNET_OK) {
        r.key = key_at(t, i);
        value_text(t, i, brief, r.short_value, sizeof r.short_value);
        value_text(t, i, paper, r.paper_value, sizeof r.paper_value);
        if (i < t->options.n) {
            const lnt_option *o = &t->options.row[i];
            r.kind = (int32_t)o->kind;
            r.least = o->lo;
            r.most = o->hi;
            r.words = o->words;
            r.help = o->help;
        } else {
            const lnt_task_text *x = &t->texts[i - t->options.n];
            r.kind = LINNET_OPTION_TEXT;
            r.words = x->value;
            r.help = x->help;
        }
        LNT_GIVE(out, r);
    }
    lnt_arena_free(&arena);
    return s;
}

linnet_status lnt_task_numbers(lnt_ctx *c, const char *key, const char *text, double lo, double hi, int most, double *out, int *n)
{
    const char *at = text;
    for (*n = 0; *n < most; at++) {
        char *end;
        const double x = lnt_parse_real(at, &end);
        if (end == at || (*end && *end != ',') || !(x >= lo && x <= hi)) break;
        out[(*n)++] = x;
        at = end;
        if (!*at) return LINNET_OK;
    }
    return lnt_fail_option(c, key, "is \"%.60s\", expected at most %d numbers from %.10g to %.10g, separated by commas", text, most, lo, hi);
}

/* Whether an option chooses what is looked at, where the paper looks at all of it (a word that the paper's values do not name), or names what is read
 * (a text without a default: a file, a model; of a task that reads, a key of the file), or adds to what such a task says (a switch that is off): none
 * is a cut. */
static bool chooses(const lnt_task *t, const char *const *paper, int i)
{
    const size_t n = strlen(key_at(t, i));
    const bool text = i >= t->options.n, reads = t->info.kind == LINNET_TASK_READS;
    const bool adds = reads && !text && t->options.row[i].kind == LNT_OPTION_SWITCH && t->options.row[i].fallback == 0;
    if (!adds && !(reads && text) && (text ? t->texts[i - t->options.n].fallback != NULL : t->options.row[i].kind != LNT_OPTION_WORD)) return false;
    for (int p = 0; paper[p]; p++)
        if (!strncmp(paper[p], key_at(t, i), n) && paper[p][n] == '=') return false;
    return true;
}

static void add_cut(lnt_run *r, const char *key, const char *mine, const char *theirs)
{
    const size_t at = strlen(r->cuts);
    snprintf(r->cuts + at, sizeof r->cuts - at, "%s%s %s (%s)", at ? ", " : "", key, *mine ? mine : "none", *theirs ? theirs : "none");
}

/* Where the options are not the paper's: "steps 1000 (25000), batch 64 (256)". */
static linnet_status find_option_cuts(lnt_run *r)
{
    const lnt_task *t = r->task;
    const char *const *paper = paper_for(t, r->values);
    void *values;
    char mine[96], theirs[96];
    if (!paper) return LINNET_OK;
    LNT_TRY(lnt_run_memory(r, t->options.size, &values));
    LNT_TRY(fill(r->c, t, paper, NULL, 0, r->arena, values));
    for (int i = 0; i < t->options.n + t->n_texts; i++) {
        value_text(t, i, r->values, mine, sizeof mine);
        value_text(t, i, values, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && !chooses(t, paper, i)) add_cut(r, key_at(t, i), mine, theirs);
    }
    return LINNET_OK;
}

/* A key of a model's configuration as text, of the first part that has it; "": none has. */
static void config_text(const lnt_config *k, const char *key, char *text, size_t size)
{
    const struct {
        const char *key;
        const lnt_part *part;
    } kinds[] = {{"block", &k->block}, {"norm", &k->norm}, {"mlp", &k->mlp}};
    const lnt_options *table;
    const lnt_part *part;
    void *base;
    *text = 0;
    for (int i = 0; i < 3; i++)
        if (!strcmp(key, kinds[i].key)) snprintf(text, size, "%s", kinds[i].part->kind->about.name);
    for (int i = 0; !*text && (table = lnt_config_table(k, i, &base, &part)) != NULL; i++) {
        const lnt_option *o = lnt_option_find(table, key);
        if (o) option_text(o, base, text, size);
    }
}

/* Whether another model of the paper has this value. */
static bool has_also(const lnt_run *r, const char *key, const char *value)
{
    const char *const *list = r->task->also ? r->task->also(r->values) : NULL;
    const size_t n = strlen(key);
    for (int i = 0; list && list[i]; i++)
        if (!strncmp(list[i], key, n) && list[i][n] == '=' && !strcmp(list[i] + n + 1, value)) return true;
    return false;
}

/* Where the model's keys are not those of the paper's size: "num_hidden_layers 2 (8)". A layer without a key goes without it there, too. */
static linnet_status find_model_cuts(lnt_run *r)
{
    const linnet_task_info *a = &r->task->info;
    const char *pairs[32], *const *const lists[] = {a->size, a->paper_size};
    char key[64], mine[96], theirs[96];
    lnt_config *paper;
    int n = 0;
    if (!a->paper_size) return LINNET_OK;
    for (int l = 0; l < 2; l++)
        for (int i = 0; lists[l][i] && n < 32; i++) pairs[n++] = lists[l][i];
    LNT_TRY(lnt_config_copy(r->c, r->o->config, &paper));
    linnet_status s = LINNET_OK;
    for (int i = 0; i < n && s != LINNET_ENOMEM; i++) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(pairs[i], "="), pairs[i]);
        s = linnet_config_set(r->c, paper, key, strchr(pairs[i], '=') + 1);
    }
    for (int i = 0; i < n && s != LINNET_ENOMEM; i++) {
        const size_t length = strcspn(pairs[i], "=");
        bool again = false; /* further on, in the paper's own list */
        for (int j = i + 1; j < n; j++) again = again || !strncmp(pairs[i], pairs[j], length + 1);
        snprintf(key, sizeof key, "%.*s", (int)length, pairs[i]);
        config_text(r->o->config, key, mine, sizeof mine);
        config_text(paper, key, theirs, sizeof theirs);
        if (!again && strcmp(mine, theirs) != 0 && !has_also(r, key, mine)) add_cut(r, key, mine, theirs);
    }
    linnet_config_destroy(paper);
    return s == LINNET_ENOMEM ? s : LINNET_OK;
}

static linnet_status find_cuts(lnt_run *r)
{
    LNT_TRY(find_option_cuts(r));
    LNT_TRY(find_model_cuts(r));
    if (r->task->info.never) lnt_report_words(&r->report, "Never as in the paper: %s", r->task->info.never);
    return LINNET_OK;
}

/* ---- a run --------------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_run_progress(lnt_run *r, double share, const char *format, ...)
{
    char words[160];
    if (!r->k->progress) return LINNET_OK;
    va_list ap;
    va_start(ap, format);
    lnt_format_list(words, sizeof words, format, ap);
    va_end(ap);
    const linnet_task_progress p = {.size = sizeof p, .share = share, .words = words};
    return r->k->progress(r->k->user, &p) ? lnt_fail(r->c, LINNET_EINTERRUPTED, "the task was stopped") : LINNET_OK;
}

bool lnt_run_late(lnt_run *r)
{
    r->late = r->late || (r->deadline && lnt_now() > r->deadline);
    return r->late;
}

const char *lnt_run_given(const lnt_run *r, const char *key)
{
    const size_t n = strlen(key);
    for (int i = r->o->n_set; i-- > 0;) /* the last of a key counts */
        if (!strncmp(r->o->set[i], key, n) && r->o->set[i][n] == '=') return r->o->set[i] + n + 1;
    return NULL;
}

linnet_status lnt_run_unread(const lnt_run *r, const char *key, const char *instead)
{
    const char *value = lnt_run_given(r, key);
    return value ? lnt_fail_option(r->c, key, "is %.60s, which this run would not read: %s", value, instead) : LINNET_OK;
}

/* Seconds a token that the model reads, by a piece of the work, read twice; NAN where that does not go. */
static double seconds_a_token(lnt_run *r)
{
    enum { PIECE = 256, FEW = 16 };
    linnet_model *m = r->o->model;
    linnet_model_info info = {.size = sizeof info};
    int32_t ids[PIECE] = {0};
    double begin = 0, end = 0;
    linnet_model_get_info(m, &info);
    const int64_t n = (double)info.parameters > 1e8 ? FEW : PIECE; /* half a second on a processor, about */
    lnt_plan *plan = NULL;
    const lnt_plan_options how = {.tokens = n, .n_seq = 1, .dtype = m->dtype, .n_outputs = 1, .outputs = {m->hidden}};
    const lnt_batch b = {.tokens = n, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids}}};
    linnet_status s = lnt_plan_create(r->c, m->p, &how, &plan);
    for (int turn = 0; turn < 2 && s == LINNET_OK; turn++) {
        begin = lnt_now();
        s = lnt_plan_run(plan, m->w, &b);
        if (s == LINNET_OK) s = lnt_device_check(r->c);
        end = lnt_now();
    }
    lnt_plan_destroy(plan);
    return s == LINNET_OK ? (end - begin) / (double)n : NAN;
}

/* The folder of results, and nobody else's while this runs. */
static linnet_status take_folder(lnt_run *r)
{
    char path[4096];
    const char *out = r->o->out;
    r->made_folder = !lnt_is_folder(out);
    LNT_TRY(lnt_make_folder(r->c, out));
    if (snprintf(path, sizeof path, "%s/task.lock", out) >= (int)sizeof path) return lnt_fail_option(r->c, "out", "is too long for a path");
    return lnt_lock_take(r->c, path, out, &r->lock);
}

linnet_status lnt_run_cost(lnt_run *r, int64_t trainings, int64_t steps, int64_t tokens, double flops, double seconds)
{
    if (r->said_cost) return LINNET_OK;
    r->said_cost = true;
    if (r->o->out) LNT_TRY(take_folder(r));
    if (isnan(seconds) && r->o->model && (r->k->cost || r->deadline)) {
        r->token_seconds = seconds_a_token(r);
        seconds = (double)tokens * r->token_seconds;
    }
    const linnet_task_cost cost = {.size = sizeof cost, .trainings = trainings, .steps = steps, .tokens = tokens, .flops = flops, .seconds = seconds,
                                   .cuts = r->cuts};
    if (r->k->cost) r->k->cost(r->k->user, &cost);
    return LINNET_OK;
}

linnet_status lnt_run_memory(lnt_run *r, size_t bytes, void **out)
{
    *out = lnt_arena_alloc(r->arena, bytes);
    return *out ? LINNET_OK : lnt_fail_memory(r->c, bytes);
}

static linnet_status check(lnt_ctx *c, const lnt_task *t, const linnet_task_options *o)
{
    const linnet_task_info *a = &t->info;
    if (a->kind == LINNET_TASK_TRAINS) {
        LNT_TRY(lnt_need(c, o->config, "the configuration"));
        LNT_TRY(lnt_model_dtype_check(c, "dtype", o->dtype));
    } else {
        LNT_TRY(lnt_model_check_next(c, o->model));
        LNT_TRY(lnt_need(c, o->tokenizer, "the tokenizer"));
        if (linnet_tokenizer_vocabulary(o->tokenizer) > o->model->config->vocab_size) {
            lnt_fail(c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model knows %lld", (long long)linnet_tokenizer_vocabulary(o->tokenizer),
                     (long long)o->model->config->vocab_size);
            return lnt_hint(c, "Use the tokenizer the model was trained with.");
        }
    }
    if (o->n_set) LNT_TRY(lnt_need(c, o->set, "the list of settings"));
    if (o->n_files) LNT_TRY(lnt_need(c, o->files, "the list of files"));
    for (int i = 0; i < o->n_files; i++) LNT_TRY(lnt_need(c, o->files[i], "a file"));
    if (o->n_files >= a->least_files && (a->most_files < 0 || o->n_files <= a->most_files)) return LINNET_OK;
    if (!a->most_files) return lnt_fail(c, LINNET_EINVAL, "%d files, but the task %s reads none", o->n_files, a->name);
    return lnt_fail(c, LINNET_EINVAL, "%d files, expected %s", o->n_files, a->files);
}

linnet_status linnet_task_run(linnet_context *c, const char *name, const linnet_task_options *options, const linnet_task_callbacks *callbacks)
{
    linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
    linnet_task_callbacks k = LINNET_TASK_CALLBACKS_INIT;
    LNT_NEED(c, name);
    const lnt_task *t = lnt_task_find(name);
    if (!t) {
        char known[512] = "";
        for (int i = 0, at = 0; i < TASKS && at < (int)sizeof known; i++)
            at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", tasks[i]->info.name);
        return lnt_fail(c, LINNET_EINVAL, "there is no task \"%.60s\", expected one of %s", name, known);
    }
    LNT_TRY(lnt_options_take(c, "task", options, &o));
    if (callbacks) LNT_TRY(lnt_options_take(c, "task_callbacks", callbacks, &k));
    bool held = false; /* all that an earlier run of the task had to say */
    LNT_TRY(check(c, t, &o));
    if (o.out) LNT_TRY(lnt_results_check(c, o.out, t->info.name, &held));
    lnt_arena arena = {0};
    lnt_run r = {.c = c, .task = t, .o = &o, .k = &k, .arena = &arena, .begin = lnt_now()};
    r.report = (lnt_report){.c = c, .task = t->info.name, .out = o.out, .k = &k};
    if (o.max_seconds > 0) r.deadline = r.begin + o.max_seconds;
    linnet_status s = lnt_task_values(c, t, o.protocol, o.set, o.n_set, &arena, &r.values);
    if (s == LINNET_OK) s = find_cuts(&r);
    if (s == LINNET_OK && o.out) s = lnt_record_run(&r);
    if (s == LINNET_OK && *r.cuts) lnt_report_words(&r.report, "Not as in the paper, whose values stand in brackets: %s.", r.cuts);
    if (s == LINNET_OK && o.out) lnt_record_words(&r.report);
    if (s == LINNET_OK) s = t->run(&r);
    const bool keep = s == LINNET_OK || (s == LINNET_EINTERRUPTED && r.said_cost && !held);
    if (r.late) lnt_report_words(&r.report, "The time allowed was over before the end: rows say how much was read.");
    if (!keep) r.report.out = NULL;
    const linnet_status written = lnt_report_close(&r.report, t->info.name, s == LINNET_OK);
    lnt_lock_drop(&r.lock, true);
    if (r.made_folder) rmdir(o.out); /* goes where nothing was written */
    lnt_arena_free(&arena);
    return s == LINNET_OK ? written : s;
}
