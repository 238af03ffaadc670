/* linnet's tasks: the experiments of the papers, each by its name.
 *
 *     linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
 *     linnet_task_callbacks k = LINNET_TASK_CALLBACKS_INIT;
 *     o.config = config, o.set = settings, o.n_set = 2, o.out = "recall", k.result = print;
 *     linnet_task_run(context, "mqar", &o, &k);
 *
 * A task makes its data, trains a model of a configuration (or reads with a model that there is), measures, and leaves results: each is handed to
 * the callback as it comes, and at the end the folder `out` holds all of them as JSON lines (results.jsonl), as tables (*.csv) and as a page with
 * plots (page.svg; mesa-analysis calls it mesa.svg). The first JSON line, whose row is "settings", and the page say what the run was: version,
 * command, machine, protocol, every option with its value (seeds among them), every key of the model, and which files it left. What a task is and
 * which options it has, it says itself: linnet_task_at, linnet_task_option_at.
 *
 * Protocols. "paper" takes the settings of the task's paper, "short" smaller ones; an option that is set counts in both. Random draws depend on the
 * options alone, so that a task without a limit of time has the same results for every number of threads. linnet.h has the conventions. Since 0.1. */
#ifndef LINNET_TASK_H
#define LINNET_TASK_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- which there are ----------------------------------------------------------------------------------------------------------- */

enum {
    LINNET_TASK_TRAINS = 0, /* models of linnet_task_options.config */
    LINNET_TASK_READS = 1,  /* with linnet_task_options.model and .tokenizer, which stay as they are */
};

/* Static storage. */
typedef struct {
    const char *name, *summary;
    const char *about;             /* a paragraph or two, each a line */
    const char *paper;
    const char *example;           /* a command line */
    int32_t kind;                  /* LINNET_TASK_... */
    int32_t least_files, most_files; /* of linnet_task_options.files; most -1: any number */
    const char *files;             /* what they are, for usage: "TEXT..."; "": there are none */
    const char *const *size;       /* "key=value" of a small configuration for it, NULL at the end; NULL: it trains none */
    const char *const *paper_size; /* what the paper's model (of several, which `about` names: the smallest) has instead or besides; NULL: `size` is
                                    * linnet's own under both protocols */
    const char *never;             /* what is as in the paper under neither protocol, in sentences; NULL: nothing that is known of */
} linnet_task_info;
/* The i-th task; NULL past the end. */
LINNET_API const linnet_task_info *linnet_task_at(int i);
/* By name; NULL: there is none such. */
LINNET_API const linnet_task_info *linnet_task_find(const char *name);

enum { LINNET_OPTION_INTEGER = 0, LINNET_OPTION_NUMBER = 1, LINNET_OPTION_SWITCH = 2, LINNET_OPTION_WORD = 3, LINNET_OPTION_TEXT = 4 };

typedef struct {
    size_t size;
    const char *key;
    int32_t kind;            /* LINNET_OPTION_... */
    double least, most;      /* of a number, both included */
    const char *words;       /* of a word: which, separated by blanks; of a text: what it is called, "X,X..."; NULL otherwise */
    const char *help;        /* one line */
    char short_value[96];    /* the default under each protocol, as linnet_task_options.set takes it; "": none */
    char paper_value[96];
} linnet_task_option;
/* The i-th option of a task, in the order in which it describes them. LINNET_EINVAL past the end, or when there is no such task. */
LINNET_API linnet_status linnet_task_option_at(const char *task, int i, linnet_task_option *out);

/* ---- running one ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    size_t size;
    const char *protocol;            /* "short" (NULL too) or "paper" */
    const char *const *set;          /* "key=value", n_set of them; the last of a key counts */
    int32_t n_set;
    double max_seconds;              /* trainings get as many steps as fit, and but the first none begins later; readings end early; 0: no limit */
    const char *out;                 /* folder for results, made when it is not there; NULL: they go to the callback alone */
    const linnet_config *config;     /* of tasks that train; its vocabulary is replaced by the task's */
    int32_t dtype;                   /* linnet_dtype of these: F32 or BF16 */
    linnet_model *model;             /* of tasks that read */
    const linnet_tokenizer *tokenizer;
    const char *const *files;        /* what the task reads, n_files of them */
    int32_t n_files;
    const char *command;             /* how somebody asked for it, kept with the results; NULL: not known */
} linnet_task_options;
#define LINNET_TASK_OPTIONS_INIT { sizeof(linnet_task_options), NULL, NULL, 0, 0, NULL, NULL, LINNET_F32, NULL, NULL, NULL, 0, NULL }

/* What a task is about to do. */
typedef struct {
    size_t size;
    int64_t trainings;     /* 0: the task trains nothing */
    int64_t steps;         /* of all trainings together */
    int64_t tokens;        /* trained on, or read */
    double flops;          /* useful ones, about */
    double seconds;        /* on this machine, by a piece of the work; NaN: not known */
    const char *cuts;      /* where options and the model's keys differ from the paper's: "steps 1000 (25000), hidden_size 64 (128)"; "": nowhere */
} linnet_task_cost;

typedef struct {
    size_t size;
    double share;          /* of the work, 0 to 1 */
    const char *words;     /* what is being done: "step 40/1000  loss 1.234  accuracy 56.7%" */
} linnet_task_progress;

/* NULL where one is not wanted. Strings live until the callback returns. */
typedef struct {
    size_t size;
    void *user;
    void (*cost)(void *user, const linnet_task_cost *cost);             /* once, before the work */
    int (*progress)(void *user, const linnet_task_progress *progress);  /* often; non-zero: stop */
    void (*result)(void *user, const char *json, const char *text);     /* one object on one line; the same for people */
} linnet_task_callbacks;
#define LINNET_TASK_CALLBACKS_INIT { sizeof(linnet_task_callbacks), NULL, NULL, NULL, NULL }

/* Run a task. `callbacks` may be NULL. LINNET_EINVAL: there is no such task, an option is none of its own or out of its range, what it needs
 * (configuration, model, files) is missing, or `out` holds results of something else: then nothing was written. Results of the same task give way
 * to the new ones, whole to whole. LINNET_EINTERRUPTED: stopped by `progress`; what was measured until then is in `out`, where no whole results
 * are. Everything that is handed in stays the caller's. */
LINNET_API linnet_status linnet_task_run(linnet_context *c, const char *name, const linnet_task_options *options,
                                         const linnet_task_callbacks *callbacks);

/* ---- runs side by side ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t size;
    const char *const *runs; /* folders that linnet_train or linnet_task_run left, n_runs of them */
    int32_t n_runs;
    const char *out;         /* folder for results.jsonl, CSV files and page.svg, made when it is not there; NULL: rows go to the callback alone */
    int32_t page;            /* 1: page.svg alone, as a run's own folder may have it */
    const char *command;     /* how somebody asked for it, kept with the table; NULL: not known */
} linnet_compare_options;
#define LINNET_COMPARE_OPTIONS_INIT { sizeof(linnet_compare_options), NULL, 0, NULL, 0, NULL }

/* A row for each training (loss of its last twentieth, held-out loss, the number of the text that this is of where a checkpoint tells, tokens,
 * seconds) and for each result of a task, with the run's name, and the curves of all trainings on one page. Of `callbacks` (may be NULL) only
 * `result` is called. LINNET_EINVAL where a folder is no run, or `out` holds results of something else: then nothing was written. */
LINNET_API linnet_status linnet_compare(linnet_context *c, const linnet_compare_options *options, const linnet_task_callbacks *callbacks);

#ifdef __cplusplus
}
#endif
#endif
