/* linnet task: the experiments of the papers. Flags and help come from what a task says of itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "linnet/task.h"
#include "say.h"
#include "term.h"

typedef struct {
    progress bar;
    const char *never; /* as in the paper; NULL: nothing */
    int json;
} view;

static void on_cost(void *user, const linnet_task_cost *cost)
{
    char tokens[SAY_TEXT], flops[SAY_TEXT], time[SAY_TEXT], steps[SAY_TEXT], work[96] = "";
    view *v = user;
    if (cost->trainings)
        snprintf(work, sizeof work, "%lld training%s of %s updates, ", (long long)cost->trainings, cost->trainings == 1 ? "" : "s",
                 say_count(steps, (double)cost->steps / (double)cost->trainings));
    progress_print(&v->bar, "estimated cost: %s%s tokens, %sFLOP%s%s", work, say_count(tokens, (double)cost->tokens), say_rate(flops, cost->flops),
                   isfinite(cost->seconds) ? ", " : "", isfinite(cost->seconds) ? say_duration(time, cost->seconds) : "");
    if (*cost->cuts) progress_print(&v->bar, "not as in the paper (its values in brackets): %s", cost->cuts);
    if (v->never) progress_print(&v->bar, "never as in the paper: %s", v->never);
}

static int on_progress(void *user, const linnet_task_progress *p)
{
    view *v = user;
    progress_show(&v->bar, p->share, "", p->words);
    return stop_asked();
}

static void on_result(void *user, const char *json, const char *text)
{
    view *v = user;
    progress_close(&v->bar);
    printf("%s\n", v->json ? json : text);
    say_flush(stdout);
}

static const char *dashed(const char *key)
{
    char *name = args_alloc(strlen(key) + 1);
    strcpy(name, key);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    return name;
}

static const char *fallback_of(const linnet_task_option *o)
{
    if (!*o->short_value) return "";
    char *text = args_alloc(2 * sizeof o->short_value + 16);
    if (strcmp(o->short_value, o->paper_value) == 0) strcpy(text, o->short_value);
    else sprintf(text, "%s; paper %s", o->short_value, o->paper_value);
    return text;
}

/* Words for a value: "S3|S4|A5". */
static const char *alternatives(const char *words)
{
    char *text = args_alloc(strlen(words) + 1);
    strcpy(text, words);
    for (char *p = text; *p; p++)
        if (*p == ' ') *p = '|';
    return text;
}

/* A flag for every option of the task: "test_examples" becomes --test-examples, whose value goes to `set` as "test_examples=...". */
enum { MOST_OPTIONS = 48 };
static void add_flags(const char *task, arg_list *set, arg *table, int *n)
{
    static linnet_task_option option[MOST_OPTIONS];
    for (int i = 0; i < MOST_OPTIONS; i++) {
        linnet_task_option *o = &option[i];
        o->size = sizeof *o;
        if (linnet_task_option_at(task, i, o) != LINNET_OK) return;
        arg a = { .name = dashed(o->key), .kind = ARG_KEY, .to = set, .value = "N", .help = o->help, .min = o->least, .max = o->most,
                  .fallback = fallback_of(o), .key = o->key };
        if (o->kind == LINNET_OPTION_NUMBER) a.kind = ARG_KEY_REAL, a.value = "X";
        if (o->kind == LINNET_OPTION_SWITCH) a.kind = ARG_KEY_WORD, a.value = "true|false", a.max = 0;
        if (o->kind == LINNET_OPTION_WORD) a.kind = ARG_KEY_WORD, a.value = alternatives(o->words);
        if (o->kind == LINNET_OPTION_TEXT) a.kind = ARG_KEY_TEXT, a.value = o->words;
        table[(*n)++] = a;
    }
}

/* Load or describe what the task needs, and run it. */
static int run_task(const linnet_task_info *t, const machine_args *m, const model_args *shape, const char *folder, const char *tokenizer_path,
                    linnet_task_options *o, view *v)
{
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_model *model = NULL;
    linnet_tokenizer *tokenizer = NULL;
    linnet_status s;
    int code = machine_open(m, &c);
    if (t->kind == LINNET_TASK_TRAINS) {
        if (!code) code = model_args_config(c, shape, &config);
    } else {
        if (!code && (s = load_model(c, m, folder, &model)) != LINNET_OK) code = say_status(c, s);
        if (!code) code = tokenizer_beside(c, tokenizer_path, folder, model, &tokenizer);
    }
    if (!code) {
        const linnet_task_callbacks k = { sizeof k, v, on_cost, on_progress, on_result };
        o->config = config;
        o->dtype = m->dtype;
        o->model = model;
        o->tokenizer = tokenizer;
        v->never = t->never;
        progress_open(&v->bar, stderr);
        stop_watch();
        s = linnet_task_run(c, t->name, o, &k);
        progress_close(&v->bar);
        if (s == LINNET_OK && o->out && !v->json) printf("a page and the numbers are in %s\n", o->out);
        if (s != LINNET_OK) code = s == LINNET_EINTERRUPTED ? EXIT_STOPPED : say_status(c, s);
    }
    linnet_tokenizer_destroy(tokenizer);
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

static void add_word(char *list, size_t room, const char *sign, const char *word)
{
    const size_t n = strlen(list);
    snprintf(list + n, room - n, "%s%s", sign, word);
}

/* The size of a model of which nothing is said, under a protocol. */
static const char *const *size_under(const linnet_task_info *t, const char *protocol)
{
    if (!t->paper_size || !protocol || strcmp(protocol, "paper") != 0) return t->size;
    arg_list all = { 0 };
    for (int i = 0; t->size[i]; i++) arg_list_add(&all, t->size[i]);
    for (int i = 0; t->paper_size[i]; i++) arg_list_add(&all, t->paper_size[i]);
    arg_list_add(&all, NULL);
    return all.item;
}

static int run_named(const linnet_task_info *t, const char *asked, int argc, char **argv)
{
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .defaults = t->size };
    linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
    static view v;
    arg_list words = { 0 }, set = { 0 };
    const char *tokenizer_path = NULL;
    double minutes = 0;
    const bool trains = t->kind == LINNET_TASK_TRAINS;
    char size[256] = "", usage[256], name[64], about[2048];
    for (int i = 0; trains && t->size[i]; i++) add_word(size, sizeof size, i ? " " : "", t->size[i]);
    for (int i = 0; t->paper_size && t->paper_size[i]; i++) add_word(size, sizeof size, i ? " " : "; paper ", t->paper_size[i]);
    const arg model[] = { MODEL_FLAGS(&shape, size) };
    const arg common[] = {
        { "results", ARG_HEADING },
        { "out", ARG_TEXT, &o.out, "DIR", "folder for results.jsonl, CSV files and a page: settings, tables, plots",
          .fallback = trains ? "none" : "" },
        { "protocol", ARG_TEXT, &o.protocol, "short|paper", "settings smaller than the paper's, or the paper's", .fallback = "short" },
        { "budget", ARG_REAL, &minutes, "MINUTES",
          trains ? "as many updates as there is time for; no training begins later"
                 : "read as much as there is time for; rows say how much", 1e-3, 1e6, "no limit" },
        { "json", ARG_SWITCH, &v.json, .help = "print results as JSON lines" },
        MACHINE_FLAGS(&m),
        KEPT_FLAG(&m),
        { .kind = ARG_END },
    };
    const arg reads = { "tokenizer", ARG_TEXT, &tokenizer_path, "PATH", "tokenizer to use", .fallback = "the model's" };
    arg table[2 + MOST_OPTIONS + sizeof model / sizeof *model + sizeof common / sizeof *common] = { { "task", ARG_HEADING } };
    int n = 1;
    add_flags(t->name, &set, table, &n);
    if (!trains) table[n++] = reads;
    for (size_t i = 0; trains && i < sizeof model / sizeof *model; i++) table[n++] = model[i];
    memcpy(table + n, common, sizeof common);
    snprintf(usage, sizeof usage, "%s %s%s%s[options]", t->name, trains ? "" : "MODEL ", t->files, *t->files ? " " : "");
    snprintf(name, sizeof name, "task %s", t->name);
    snprintf(about, sizeof about, "%s%s%s", t->about, t->never ? "\nNever as in the paper: " : "", t->never ? t->never : "");
    const command self = { .name = name, .summary = t->summary, .usage = usage + strlen(t->name) + 1, .about = about, .example = t->example };
    int code = args_parse(&self, table, argc, argv, &words, t->least_files + !trains, t->most_files < 0 ? -1 : t->most_files + !trains);
    if (code >= 0) return code;
    shape.defaults = size_under(t, o.protocol);
    if (args_only_check) return trains ? model_args_check(&shape) : EXIT_GOOD;
    o.command = asked;
    o.set = set.item;
    o.n_set = set.count;
    o.max_seconds = 60 * minutes;
    o.files = trains ? words.item : words.item + 1;
    o.n_files = words.count - !trains;
    return run_task(t, &m, &shape, trains ? NULL : words.item[0], tokenizer_path, &o, &v);
}

static int list_tasks(int json)
{
    const linnet_task_info *t;
    for (int i = 0; (t = linnet_task_at(i)) != NULL; i++) {
        if (!json) {
            printf("  %-16s %s\n  %-16s %s\n", t->name, t->summary, "", t->paper);
            continue;
        }
        json_line j;
        line_open(&j, stdout);
        line_text(&j, "task", t->name);
        line_text(&j, "summary", t->summary);
        line_text(&j, "paper", t->paper);
        line_text(&j, "kind", t->kind == LINNET_TASK_TRAINS ? "trains" : "reads");
        line_text(&j, "files", t->files);
        line_close(&j);
    }
    if (!json) printf("\n`linnet task NAME --help` shows the options of one.\n");
    return EXIT_GOOD;
}

static int run(const command *self, int argc, char **argv)
{
    const linnet_task_info *t = argc > 1 ? linnet_task_find(argv[1]) : NULL;
    if (t) return run_named(t, args_command(argc, argv), argc - 1, argv + 1);
    int json = 0;
    arg_list words = { 0 };
    const arg table[] = {
        { "tasks", ARG_HEADING },
        { "json", ARG_SWITCH, &json, .help = "list the tasks as JSON lines" },
        { .kind = ARG_END },
    };
    if (argc > 1 && argv[1][0] != '-') {
        char known[1024] = "There are";
        const char *names[64];
        int n = 0;
        for (; n < 64 && linnet_task_at(n); n++) {
            names[n] = linnet_task_at(n)->name;
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s %s", n ? "," : "", names[n]);
        }
        const char *nearest = args_nearest(argv[1], names, n);
        if (nearest) snprintf(known, sizeof known, "Did you mean `linnet task %s`?", nearest);
        else snprintf(known + strlen(known), sizeof known - strlen(known), ".");
        return say_error(NULL, known, "there is no task \"%s\"", argv[1]);
    }
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    return code >= 0 ? code : list_tasks(json);
}

static const char *part(int i)
{
    const linnet_task_info *t = linnet_task_at(i);
    return t ? t->name : NULL;
}

const command cmd_task = {
    .name = "task",
    .summary = "the experiments of the papers: synthetic tasks, and measures of a model",
    .usage = "NAME [FILE...] [options]",
    .about = "Without a name: the tasks that there are. Each has its own flags: `linnet task mqar --help`, and so on.",
    .example = "linnet task\nlinnet task mqar --mixer delta_net --pairs 8 --length 64\nlinnet task mesa-analysis model/ held-out.txt --out inside",
    .run = run,
    .part = part,
};
