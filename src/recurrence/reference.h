/* What the float64 references share: reading and writing of any dtype, and the walk of those with a state. Only they include this. */
#ifndef LNT_REFERENCE_H
#define LNT_REFERENCE_H

#include <math.h>
#include <omp.h>
#include <string.h>

#include "core/dtype.h"
#include "recurrence/recur_args.h"

/* Type of gates, states, log-sum-exp and their gradients. */
static inline lnt_dtype ref_f(const lnt_recur_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
/* Element i; 0 of an absent tensor. The truth is mostly asked for in float64. */
static inline double ref_get(const void *p, lnt_dtype t, int64_t i)
{
    if (!p) return 0.0;
    return t == LINNET_F64 ? ((const double *)p)[i] : lnt_load_element(p, t, i);
}
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

/* ---- cores with a state ------------------------------------------------------------------------------------------------------------------ */

/* One value head of one sequence at work. S is the state, dS the gradient of the state behind the token at hand, both laid out as the core wants;
 * q k v are the token's rows (v with one place more); dq dk [len,K] are those of the query-key head, added to by each of its value heads.
 * A token may have several rows of k and v (lnt_recur_writes): then it is as many steps, and `t` below counts those; only the last is read. */
typedef struct {
    const lnt_recur_args *a;
    int64_t n;   /* sequence */
    int h;       /* value head */
    double *S, *dS, *q, *k, *v, *own, *dq, *dk; /* dS dq dk: NULL in the forward pass */
    double *sums; /* what this head adds to parameters shared by all tokens */
} ref_head;

typedef struct {
    int64_t (*state)(const lnt_recur_args *a);              /* doubles of a state, of the core's own rows, and of its sums */
    int64_t (*own)(const lnt_recur_args *a, bool backward);
    int64_t (*sums)(const lnt_recur_args *a);               /* NULL: none */
    void *(*sum_out)(const lnt_recur_args *a);              /* [Hv,sums], the gradient they are for */
    void (*load)(const ref_head *x, bool gradient, double *S); /* the initial state, or the gradient of the final one */
    void (*store)(const ref_head *x, bool gradient, const double *S);
    void (*step)(const ref_head *x, int64_t t);             /* S goes over token t, which is loaded */
    void (*read)(const ref_head *x, int64_t t);             /* outputs of token t (not its step) from S */
    /* One token backward, loaded: from the states behind and before it, and dS, which becomes the gradient of the latter. */
    void (*back)(const ref_head *x, int64_t t, const double *S, const double *before);
} ref_core;

/* Sequences and heads side by side. The backward pass keeps the states at the start of blocks of tokens and redoes a block at a time. */
size_t lnt_ref_workspace(const ref_core *core, const lnt_recur_args *a, bool backward, int threads);
void lnt_ref_forward(const ref_core *core, const lnt_recur_args *a, int threads);
void lnt_ref_backward(const ref_core *core, const lnt_recur_args *a, int threads);

/* e^g, by token or by head; 1 without a gate. */
static inline double ref_decay_size(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    return exp(a->g ? ref_get(a->g, ref_f(a), t * a->Hv + x->h) : ref_get(a->g_head, ref_f(a), x->h));
}
/* The same with its sign. */
static inline double ref_decay(const ref_head *x, int64_t t)
{
    const lnt_recur_args *a = x->a;
    return ref_decay_size(x, t) * (a->sign ? ref_get(a->sign, ref_f(a), t * a->Hv + x->h) : 1.0);
}
/* Entry i of a tensor of factors, 1 where there is none. */
static inline double ref_sign(const ref_head *x, const void *sign, int64_t i) { return sign ? ref_get(sign, ref_f(x->a), i) : 1.0; }
/* The same for each row of S, times e^gk and its sign: alpha [K]. */
static inline void ref_row_decays(const ref_head *x, int64_t t, double *alpha)
{
    const lnt_recur_args *a = x->a;
    double all = ref_decay(x, t);
    for (int64_t k = 0; k < a->K; k++) {
        const int64_t i = (t * a->Hv + x->h) * a->K + k;
        alpha[k] = all * exp(ref_get(a->gk, ref_f(a), i)) * ref_sign(x, a->sign_k, i);
    }
}
static inline double ref_strength(const ref_head *x, int64_t t) { return ref_get(x->a->beta, ref_f(x->a), t * x->a->Hv + x->h); }
static inline int64_t ref_row(const ref_head *x, int64_t t) { return t * x->a->Hv + x->h; } /* of a tensor [T,Hv,...] */
static inline int64_t ref_index(const ref_head *x) { return x->n * x->a->Hv + x->h; }       /* of a tensor [N,Hv,...] */
/* Row of dq and dk. */
static inline int64_t ref_place(const ref_head *x, int64_t t) { return t - x->a->cu_seqlens[x->n]; }
static inline double ref_dot(int64_t n, const double *x, const double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

#endif
