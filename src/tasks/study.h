/* Learning from a source of examples: what the synthetic tasks share. A source says what an example is; a study trains a model on it under one or
 * several learning rates, tests it, and reports. */
#ifndef LNT_TASKS_STUDY_H
#define LNT_TASKS_STUDY_H

#include "tasks/task.h"

enum { LNT_SETS = 12, LNT_EXTRAS = 4, LNT_RATES = 8 };

/* One prediction of a test. */
typedef struct {
    int set;
    uint64_t example;
    int64_t position, length; /* in the example, and its length */
    const int32_t *ids;       /* [length] the example */
    int32_t target, best;     /* wanted; the largest logit's */
    const float *logits;      /* [vocabulary] */
} lnt_answer;

typedef struct lnt_source {
    const char *name;         /* of the random streams */
    uint64_t seed;            /* of the examples */
    int64_t vocabulary;
    int n_sets;               /* set 0: to learn from; 1 .. n_sets-1: tests */
    struct {
        const char *name;     /* "256 tokens"; NULL: "test" */
        int64_t longest;      /* tokens of an example at most */
    } set[LNT_SETS];
    int looks;                /* tests that are looked at while training, the first so many; 0: one */
    double chance;            /* accuracy of a guess; 0: nothing is said of it */
    /* Example `index` of a set: ids and targets [longest], a target being what the position is to predict, -1: nothing. Returns its length. */
    int64_t (*example)(const struct lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets);
    bool whole;               /* all targets are asked of what the model makes of the whole example: its readout is "last" */
    void *own;                /* the task's, the arena's */
    /* Measures of the task's own: begin a test, see every prediction, end with values of the `extra` names. NULL: there are none. */
    const char *extra[LNT_EXTRAS];
    void (*begin)(struct lnt_source *s, int set);
    void (*answer)(struct lnt_source *s, const lnt_answer *a);
    void (*end)(struct lnt_source *s, double *extra);
    int score;                /* which measure chooses the best learning rate: 0 accuracy, 1 .. the extras */
} lnt_source;

/* Options of every study. */
typedef struct lnt_study {
    int64_t steps, epochs, batch, examples, test_examples, test_every, seed, data_seed;
    double warmup, floor, weight_decay, beta2, enough;
    const char *learning_rate;
} lnt_study;

#define LNT_STUDY_OFFSET(type, member) offsetof(type, study.member)
#define LNT_STUDY_INT(type, member, least, most_, value, text)                                                                                     \
    {.key = #member, .kind = LNT_OPTION_INT, .offset = LNT_STUDY_OFFSET(type, member), .lo = least, .hi = most_, .fallback = value, .help = text}
#define LNT_STUDY_REAL(type, member, least, most_, value, text)                                                                                    \
    {.key = #member, .kind = LNT_OPTION_REAL, .offset = LNT_STUDY_OFFSET(type, member), .lo = least, .hi = most_, .fallback = value, .help = text}
/* Rows of a table whose structure has `lnt_study study`: all of them, or those of a task whose own options say how many examples there are. */
#define LNT_STUDY_ROWS(type, steps_, batch_, tests_, decay_)                                                                                       \
    LNT_STUDY_UPDATE_ROWS(type, steps_, batch_), LNT_STUDY_EXAMPLE_ROWS(type, tests_), LNT_STUDY_TRAINING_ROWS(type, decay_)
#define LNT_STUDY_UPDATE_ROWS(type, steps_, batch_)                                                                                                \
    LNT_STUDY_INT(type, steps, 1, 1e9, steps_, "updates"),                                                                                         \
    LNT_STUDY_INT(type, epochs, 0, 1e6, 0, "passes over the examples, in place of steps; 0: steps count"),                                         \
    LNT_STUDY_INT(type, batch, 1, 1 << 20, batch_, "examples of an update")
#define LNT_STUDY_EXAMPLE_ROWS(type, tests_)                                                                                                       \
    LNT_STUDY_INT(type, examples, 0, 1 << 28, 0, "examples to learn from, again and again; 0: always fresh ones"),                                 \
    LNT_STUDY_INT(type, test_examples, 1, 1 << 24, tests_, "examples of each test")
#define LNT_STUDY_TRAINING_ROWS(type, decay_)                                                                                                      \
    LNT_STUDY_INT(type, test_every, 0, 1e9, 100, "updates between looks at the first test, of a batch of its examples; 0: none"),                  \
    LNT_STUDY_REAL(type, enough, 0, 2, 0.99, "accuracy there at which training ends; 2: never"),                                                   \
    LNT_STUDY_REAL(type, warmup, 0, 1, 0.05, "share of the updates in which the learning rate rises"),                                             \
    LNT_STUDY_REAL(type, floor, 0, 1, 0, "share of the learning rate at the end of its cosine"),                                                   \
    LNT_STUDY_REAL(type, weight_decay, 0, 1e3, decay_, "decoupled decay of the matrices"),                                                         \
    LNT_STUDY_REAL(type, beta2, 0, 0.999999, 0.999, "of AdamW; beta1 is 0.9"),                                                                     \
    LNT_STUDY_INT(type, seed, 0, 1e15, 1, "of the weights"),                                                                                       \
    LNT_STUDY_INT(type, data_seed, 0, 1e15, 12345, "of the examples")
#define LNT_STUDY_TEXT(type, value_)                                                                                                               \
    {.key = "learning_rate", .offset = LNT_STUDY_OFFSET(type, learning_rate), .value = "X,X...", .fallback = value_,                               \
     .help = "highest learning rate; of several, each is tried and the best counts"}

/* What a test found; arrays belong to it. */
typedef struct {
    int64_t examples, asked, right, exact; /* exact: examples all of whose predictions were right */
    double accuracy;                       /* mean over examples of the share that was right */
    double nats;                           /* a prediction */
    double extra[LNT_EXTRAS];
    int64_t longest, *position_asked, *position_right, *prefix_right; /* [longest]; the last: examples right up to there */
    int64_t *length_examples, *length_asked, *length_right;           /* [longest + 1] by the example's length */
} lnt_test;

/* One model under one learning rate. */
typedef struct {
    double learning_rate, loss, seconds;
    int64_t steps, parameters;
    lnt_test test[LNT_SETS];               /* [1 .. n_sets-1] */
} lnt_trial;

/* Train and test under every learning rate. `setting` names it in results (NULL: the task has one), `part` of `parts` equal pieces of the run's work
 * is this one. Behind the deadline no training begins but the run's first. Rows and plots go to the report; *best is the best trial's, its arrays the
 * run's, and 0 where none was begun. */
linnet_status lnt_study_run(lnt_run *r, const lnt_study *study, lnt_source *source, const char *setting, int part, int parts, lnt_trial *best);
/* The whole of a task that has one source. */
linnet_status lnt_study_task(lnt_run *r, const lnt_study *study);

#endif
