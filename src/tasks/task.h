/* Tasks: the experiments of the papers. One file each, one line in tasks.def.
 *
 * A task's file holds its options as a plain structure, their table (core/options.h; texts beside it), what its paper has where that is more than
 * the defaults, and either a source of examples that a model learns from (tasks/study.h does the rest) or what it measures with a model that there
 * is. Nothing outside the file knows its keys. */
#ifndef LNT_TASKS_TASK_H
#define LNT_TASKS_TASK_H

#include "core/file.h"
#include "core/options.h"
#include "core/rng.h"
#include "linnet/task.h"
#include "model/model.h"
#include "tasks/report.h"

struct lnt_source;
struct lnt_study;

/* An option that is a text: const char * in the task's structure, NULL where it was not given and has no default. */
typedef struct {
    const char *key;
    size_t offset;
    const char *value; /* what it is called in help: "X,X..." */
    const char *fallback;
    const char *help;
} lnt_task_text;
#define LNT_TEXT(type, field, called, value_, text) \
    {.key = #field, .offset = offsetof(type, field), .value = called, .fallback = value_, .help = text}
#define LNT_TASK_TEXTS(rows) rows, (int)(sizeof(rows) / sizeof *(rows))

/* What trainings left out for the deadline's sake. */
typedef struct {
    int64_t trainings, begun;                 /* of the whole run; those that the deadline let begin */
    int64_t cut, updates, updates_wanted;     /* trainings that ended before their last update, their updates, and all that they wanted */
    int64_t examples, examples_wanted;        /* of a test, the fewest; 0: every test has had its own */
} lnt_left_out;

typedef struct lnt_run {
    lnt_ctx *c;
    const struct lnt_task *task;
    const linnet_task_options *o;
    const linnet_task_callbacks *k;
    void *values;       /* the task's options; the arena's, as everything that lives as long as the run */
    lnt_arena *arena;
    double begin, deadline; /* 0: no limit */
    double token_seconds;   /* of a token that the model reads, behind lnt_run_cost; 0 or NAN: not known */
    lnt_file_lock lock;     /* of the folder of results, from lnt_run_cost on */
    bool said_cost, made_folder, late; /* late: a reading left something out for the deadline's sake */
    lnt_left_out left_out;
    char cuts[900];         /* fits a line of the page's words */
    lnt_report report;
} lnt_run;

typedef struct lnt_task {
    linnet_task_info info;
    lnt_options options;
    const lnt_task_text *texts;
    int n_texts;
    const char *const *paper; /* "key=value" of the paper, NULL at the end; NULL: as the defaults */
    const char *const *(*paper_for)(const void *values); /* in its place where the paper has several: those for what `values` choose */
    const char *const *(*also)(const void *values); /* "key=value" of further models that the paper has there; NULL: it has one */
    linnet_status (*run)(lnt_run *r);
    /* Of tasks that learn from a source: the source that options describe; the arena is its memory. For the tests' sake, too. */
    linnet_status (*source)(lnt_ctx *c, const void *values, lnt_arena *arena, struct lnt_source *out);
} lnt_task;

const lnt_task *lnt_task_at(int i); /* in the order of tasks.def; NULL past the end */
const lnt_task *lnt_task_find(const char *name);

#define X(name) extern const lnt_task lnt_task_##name;
#include "tasks/tasks.def"
#undef X

/* A task's options: defaults, the protocol's values (where the paper has several, by what is set), then "key=value" each. *values is the arena's. */
linnet_status lnt_task_values(lnt_ctx *c, const lnt_task *t, const char *protocol, const char *const *set, int n_set, lnt_arena *arena,
                              void **values);

/* "1e-3,3e-3" as at most `most` numbers, each within [lo, hi]; `key` is for the message. */
linnet_status lnt_task_numbers(lnt_ctx *c, const char *key, const char *text, double lo, double hi, int most, double *out, int *n);

/* LINNET_EINTERRUPTED when the caller wants no more. */
linnet_status lnt_run_progress(lnt_run *r, double share, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Whether the deadline has passed: what measures a model leaves the rest out then, behind a first piece of its work, and says how much it did. */
bool lnt_run_late(lnt_run *r);
/* The value of a key that the caller set; NULL: it has its default's, or the protocol's. */
const char *lnt_run_given(const lnt_run *r, const char *key);
/* LINNET_EINVAL where the caller set a key that this run does not read; `instead` says what counts. */
linnet_status lnt_run_unread(const lnt_run *r, const char *key, const char *instead);
/* Before the work, once: tell the cost, and make the folder for the results. Later calls do nothing. */
linnet_status lnt_run_cost(lnt_run *r, int64_t trainings, int64_t steps, int64_t tokens, double flops, double seconds);
/* Memory that lives as long as the run, zeroed; LINNET_ENOMEM when there is none. */
linnet_status lnt_run_memory(lnt_run *r, size_t bytes, void **out);

/* Number `index` of a task's stream `set` (0: what is learnt from, further ones: tests): examples are functions of it. */
lnt_rng lnt_task_rng(const char *name, uint64_t seed, int set, uint64_t index);

#endif
