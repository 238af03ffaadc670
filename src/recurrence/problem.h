/* A recurrence with random tensors around it: what benchmarks time and tests check. Host memory. */
#ifndef LNT_RECURRENCE_PROBLEM_H
#define LNT_RECURRENCE_PROBLEM_H

#include "recurrence/tensors.h"

enum { LNT_CASE_SEQUENCES = 64 };

/* A shape and the ranges of its inputs. Each core's <core>_cases.c lists those that its implementations are checked on, ending with op == NULL. */
typedef struct {
    const char *op;
    int sequences;
    int64_t length[LNT_CASE_SEQUENCES];
    int32_t Hq, Hv, K, V;
    double gate;   /* g uniform in [gate, 0] */
    double reset;  /* probability of g = -inf */
    double beta;   /* uniform in (0, beta) */
    bool normalize, states; /* states: initial state in, gradients of the final state in */
    int64_t window, offset;
} lnt_recur_case;

extern const lnt_recur_case lnt_decay_cases[], lnt_delta_cases[], lnt_attention_cases[], lnt_mesa_cases[];

/* Error budgets of operators.md 0.7: rms(error) / rms(reference) of outputs, gradients, gradients of gates and write strengths. */
typedef struct {
    double output, gradient, gate;
} lnt_recur_budget;
lnt_recur_budget lnt_recur_budget_of(const lnt_recur_op *op, lnt_dtype dtype);

enum { LNT_PROBLEM_GUARD = 64 };

typedef struct {
    const lnt_recur_op *op;
    linnet_recurrence r;
    int64_t cu[LNT_CASE_SEQUENCES + 1];
    void *data[LNT_RECUR_TENSORS]; /* LNT_PROBLEM_GUARD bytes of 0xa5 stand before and after each; NULL: absent */
    size_t bytes[LNT_RECUR_TENSORS];
    uint8_t shift[LNT_RECUR_TENSORS]; /* bytes by which the copy on a GPU begins behind a boundary of 256; below 64 */
    void *workspace; /* guarded alike, as large as the last run needed */
} lnt_problem;

/* Inputs drawn from `seed`, rounded to `round` (so that a float64 problem holds exactly what a float32 or bf16 one does); outputs full of NaN. Keys
 * have unit norm. Normalised problems have positive q and k, as feature maps give. Mesa's lambda lies in [0.5, 1.5], its H is symmetric and not
 * negative, its tolerance 1e-7 and out of the reach of its cap. */
linnet_status lnt_problem_make(lnt_ctx *c, const lnt_recur_case *k, lnt_dtype dtype, lnt_dtype round, uint64_t seed, lnt_problem *p);
void lnt_problem_free(lnt_problem *p);
/* Fill outputs (or gradients) and workspace with NaN, then run. On a GPU everything, guards included, is brought there and back; float64 (the
 * reference) runs on the CPU whatever the context's device is. */
linnet_status lnt_problem_run(lnt_ctx *c, lnt_problem *p, bool backward);

typedef struct {
    double relative;  /* rms(error) / rms(reference) */
    double most;      /* largest |error| */
    int64_t worst;    /* its index */
} lnt_recur_error;
/* Tensor i of `p` against that of `truth`. A NaN or an infinity that the truth does not have makes an infinite error. */
lnt_recur_error lnt_problem_error(const lnt_problem *p, const lnt_problem *truth, int i);

#endif
