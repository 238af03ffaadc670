/* Gradients of what all tokens of a head share, its gate or the bonus: every sequence's in float64, in front of the threads' workspace, and added up
 * in their order. Only *_cpu.c files include this. */
#ifndef LNT_DECAY_SUMS_H
#define LNT_DECAY_SUMS_H

#include <string.h>

#include "recurrence/decay/decay.h"

/* Numbers of a head. */
static inline int64_t shared_sums(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_EARLY ? a->K : 1; }
static inline size_t sums_bytes(const lnt_recur_args *a)
{
    return ((size_t)(a->sequences * a->Hv * shared_sums(a)) * sizeof(double) + 63) / 64 * 64;
}

/* A head's, at 0. */
static inline double *begin_sums(const lnt_recur_args *a, int64_t index)
{
    double *const sums = (double *)a->workspace + index * shared_sums(a);
    memset(sums, 0, (size_t)shared_sums(a) * sizeof *sums);
    return sums;
}

static inline void put_sums(const lnt_recur_args *a)
{
    const double *sums = a->workspace;
    const int64_t all = a->Hv * shared_sums(a);
    float *out = a->op->kind == LNT_DECAY_EARLY ? a->dbonus : a->dg_head;
    for (int64_t i = 0; out && i < all; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += sums[n * all + i];
        out[i] = (float)sum;
    }
}

#endif
