/* What the float64 references share. Only *_reference.c files include this. */
#ifndef LNT_REFERENCE_H
#define LNT_REFERENCE_H

#include <math.h>
#include <omp.h>
#include <string.h>

#include "core/dtype.h"
#include "recurrence/recurrence.h"

/* States are kept at the start of every block of this many tokens and inside one block; the backward pass redoes a block at a time. */
enum { REF_BLOCK = 32 };

/* Type of gates, states, log-sum-exp and their gradients. */
static inline lnt_dtype ref_f(const lnt_recur_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
/* Element i; 0 of an absent tensor. */
static inline double ref_get(const void *p, lnt_dtype t, int64_t i) { return p ? lnt_load_element(p, t, i) : 0.0; }
static inline void ref_put(void *p, lnt_dtype t, int64_t i, double v)
{
    if (p) lnt_store_element(p, t, i, v);
}
static inline void ref_get_row(double *x, const void *p, lnt_dtype t, int64_t row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = ref_get(p, t, row * n + i);
}
static inline void ref_put_row(void *p, lnt_dtype t, int64_t row, int64_t n, const double *x)
{
    for (int64_t i = 0; i < n; i++) ref_put(p, t, row * n + i, x[i]);
}
static inline int64_t ref_longest(const lnt_recur_args *a)
{
    int64_t longest = 0;
    for (int64_t n = 0; n < a->sequences; n++) {
        int64_t len = a->cu_seqlens[n + 1] - a->cu_seqlens[n];
        longest = len > longest ? len : longest;
    }
    return longest;
}

#endif
