/* A recurrence with random tensors around it: what benchmarks time and tests check. Host memory. */
#ifndef LNT_RECURRENCE_PROBLEM_H
#define LNT_RECURRENCE_PROBLEM_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

/* The value of a letter, 0: it is left out. */
int64_t lnt_case_size(const lnt_recur_case *k, const char *letter);
/* Change one, or add it. */
void lnt_case_set(lnt_recur_case *k, const char *letter, int64_t value);

/* What tensor row i is held to. */
double lnt_recur_allowed(const lnt_recur_op *op, lnt_dtype dtype, int i);

enum { LNT_PROBLEM_GUARD = 64 };

typedef struct {
    const lnt_recur_op *op;
    union {
        lnt_recur_call call;
        lnt_recur_head r;
    };
    int64_t cu[LNT_CASE_SEQUENCES + 1];
    void *data[LNT_RECUR_TENSORS]; /* by row; LNT_PROBLEM_GUARD bytes of 0xa5 stand before and after each; NULL: absent */
    size_t bytes[LNT_RECUR_TENSORS];
    uint8_t shift[LNT_RECUR_TENSORS]; /* bytes by which the copy on a GPU begins behind a boundary of 256; below 64 */
    void *workspace; /* guarded alike, as large as the last run needed */
} lnt_problem;

/* Inputs drawn from `seed` as their values are described, rounded to `round` (so that a float64 problem holds exactly what a float32 or bf16 one
 * does); outputs full of NaN. */
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
