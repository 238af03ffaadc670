/* What the mesa layers of a model do on a text, as numbers: gates, regulariser, the spectrum of H_t + Lambda, conjugate-gradient steps, and the loss
 * when the solves get a fixed number of steps or stop at a tolerance. */
#ifndef LNT_TASKS_MESA_NUMBERS_H
#define LNT_TASKS_MESA_NUMBERS_H

#include "eval/scorer.h"
#include "recurrence/recur_node.h"

enum {
    LNT_MESA_MOST = 6,        /* budgets, and tolerances: lines of a plot */
    LNT_MESA_MOST_STEPS = 300 /* where a solve that does not reach its tolerance ends; K steps are exact but for rounding */
};

/* What is asked. */
typedef struct {
    const int64_t *budgets;    /* fixed numbers of steps, at most LNT_MESA_MOST; NULL: 0 5 10 15 30 */
    int n_budgets;
    const double *tolerances;  /* the same; NULL: 1e-1 1e-2 1e-3 1e-4 */
    int n_tolerances;
    const char *solver;        /* level, jacobi or plain; NULL: the model's, where that one can end early, else level */
} lnt_mesa_ask;

typedef enum { LNT_MESA_MODEL, LNT_MESA_STEPS, LNT_MESA_TOLERANCE } lnt_mesa_kind;

/* The model with its solves as a setting says; LNT_MESA_MODEL: as its file says. */
typedef struct {
    lnt_mesa_kind kind;
    double value;     /* steps or tolerance */
    double nats;      /* a token */
    double *position; /* [length] mean loss at each position */
} lnt_mesa_setting;

typedef struct {
    const char *name; /* "level" ... */
    int solver, guess;
} lnt_mesa_solver;

/* Heads are counted through the layers: head x is head x % heads of mesa layer x / heads. Positions fall into bins, two an octave: bin b holds
 * positions bin[b] .. bin[b+1]-1 (from 0). */
typedef struct {
    lnt_arena arena;
    linnet_model *m;
    const int32_t *ids;           /* [windows * length + 1], the caller's */
    int64_t length, windows;      /* whole windows, each from a fresh state */
    int64_t learnt;               /* tokens of a window that the model has learnt from, for the page; 0: not known */
    double deadline;              /* as many windows as there is time for until then; 0: all */
    int layers, heads;
    int64_t K;
    const lnt_node **node;        /* [layers] */
    int n_bins;
    int64_t *bin;                 /* [n_bins + 1] */
    double *lambda;               /* [layers * heads, K] */
    double *beta, *gamma;         /* [layers * heads] means over tokens */
    double *low, *high;           /* [layers * heads, n_bins] ends of the spectrum at a bin's last position, geometric means over windows */
    double *cosine;               /* [layers * heads, n_bins] between G_t' (q / diag(H_t + Lambda)) and the solved output: means */
    int n_solvers;                /* the one asked for, then the paper's where that is another */
    lnt_mesa_solver solvers[2];
    int n_tolerances;
    double tolerances[LNT_MESA_MOST];
    double *steps, *most, *unfinished; /* [n_solvers, n_tolerances, layers * heads, n_bins] mean and most steps, share of solves that did not end */
    int n_settings;
    lnt_mesa_setting settings[1 + 2 * LNT_MESA_MOST];
    const char *const *words; /* lines at the end of the page, n_words of them; the caller's */
    int n_words;
} lnt_mesa_numbers;

/* Where a row of steps, most and unfinished begins. */
static inline int64_t lnt_mesa_row(const lnt_mesa_numbers *z, int solver, int tolerance, int head)
{
    return (((int64_t)solver * z->n_tolerances + tolerance) * z->layers * z->heads + head) * z->n_bins;
}

/* Find the mesa layers of a model and make room; LINNET_EINVAL when there are none, or an option is wrong. */
linnet_status lnt_mesa_open(lnt_ctx *c, linnet_model *m, const lnt_mesa_ask *o, lnt_mesa_numbers *z);
/* Windows of at most `length` of ids[0..n), n >= 2; ids must live as long. */
linnet_status lnt_mesa_set_text(lnt_ctx *c, lnt_mesa_numbers *z, const int32_t *ids, int64_t n, int64_t length);
linnet_status lnt_mesa_measure(lnt_ctx *c, lnt_mesa_numbers *z, int (*progress)(void *user, int64_t done, int64_t total), void *user);
void lnt_mesa_close(lnt_mesa_numbers *z);

double lnt_mesa_mean_steps(const lnt_mesa_numbers *z, int solver, int tolerance);

/* The files that lnt_mesa_write leaves (docs/mesa-analysis.md), NULL at the end. */
extern const char *const lnt_mesa_names[];
/* All of them in a folder, each whole or not at all. */
linnet_status lnt_mesa_write(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder);
/* The page alone. */
linnet_status lnt_mesa_page(lnt_ctx *c, const lnt_mesa_numbers *z, const char *path);

#endif
