/* The solver of the Mesa core on the CPU: what a chunk's solve works with (mesa_solve_cpu.c), and its steps differentiated (mesa_unroll_cpu.c). */
#ifndef LNT_MESA_SOLVER_H
#define LNT_MESA_SOLVER_H

#include "recurrence/mesa/mesa_args.h"
#include "recurrence/chunk/chunk.h"
#include "simd/simd.h"

/* The steps of a chunk's rows, kept to be differentiated: rows of all steps one after the other, `rows` of them, in solver.P and W from P0 and W0 on.
 * [rows]: place in the chunk, alpha, the denominators of alpha and ratio, ratio, all 0 where a row did nothing. live[blocks]: rows of each step, the
 * guess before them if it has a residual. [rows,C]: S2. [C,wide]: diag(H_i), gradients of p, r, M and diag(H_i), T. [C,C]: D. [C]: ddelta dB. */
typedef struct {
    float *alpha, *curve, *before, *ratio, *S2, *diagonal, *dP, *dR, *dM, *dD, *T, *D, *ddelta, *dB;
    int *row, *live;
    int blocks, rows;
} lnt_mesa_trail;

/* Scratch of the solver. Rows of K numbers that only it sees are `wide` apart, K rounded up to vectors, and the rest is 0: its loops have no ends.
 * H [K,K], kt [K,M], kk [M,K], mask S [C,M]; half_H [K,K] and half_P: what LNT_CG_FLASH rounds, NULL for the others; X R jacobi: rows of the chunk; P
 * W: rows that are still at work, in order, row[] their places.
 *
 * With a window, `old` keys of the chunk where the window begins stand before the chunk's own, and row i sees those behind place i of them; H is what
 * lies between. Then M is 2C, and otherwise C. */
typedef struct {
    float *H, *half_H, *half_P, *kt, *kk, *lambda, *mask, *in, *out, *X, *R, *jacobi, *P, *W, *S, *scale, *delta, *goal, *size;
    int *row;
    int C, M;
    int old;             /* keys before the chunk's own */
    const float *old_by; /* [old] what each is written with: its strength, decayed to the chunk's start */
    bool alone;          /* a row at a time, and of masked products only what is not masked: nothing reaches it from what it does not see */
    int64_t wide, lambda_step; /* lambda: rows so far apart; 0: one row for all tokens */
    bool keep; /* the steps: P and W then go on from step to step */
    float *P0, *W0;
    lnt_mesa_trail past;
} lnt_mesa_solver;

/* Numbers as float16 has them, for LNT_CG_FLASH. */
static inline void lnt_mesa_to_half(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = lnt_f16_to_f32(lnt_f32_to_f16(x[i]));
}

/* (H_i + Lambda) x_i = b_i for the n rows from token t, s->H being the state before them (in the token form: after the one row). k [old + n,K]. */
void LNT_V(lnt_mesa_solve_chunk)(lnt_mesa_solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *g, const float *beta,
                                 const float *k, const float *b, float *x);
/* The same without its first part, lnt_mesa_prepare. */
void LNT_V(lnt_mesa_solve_prepared)(lnt_mesa_solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *k, const float *b,
                                    float *x);
/* What a solve begins with: the keys that row i sees among all that stand there, [first, end). */
static inline int lnt_mesa_first_key(const lnt_mesa_solver *s, int i) { return s->old ? i + 1 : 0; }
static inline int lnt_mesa_keys_end(const lnt_mesa_solver *s, int i) { return s->old + i + 1; }
static inline const float *lnt_mesa_lambda(const lnt_mesa_solver *s, int i) { return s->lambda + i * s->lambda_step; }
/* Of a thread, for chunks of C rows and masks of M columns; `keep`: with room for the steps. The Lambda of a head, where all its tokens have one. */
void LNT_V(lnt_mesa_carve_solver)(lnt_carve *c, const lnt_mesa_args *a, int C, int M, bool keep, lnt_mesa_solver *s);
void LNT_V(lnt_mesa_load_lambda)(const lnt_mesa_args *a, int h, const lnt_mesa_solver *s);
/* Decays, masks, transposed keys and preconditioners of a chunk, from its gates, strengths and keys. */
void LNT_V(lnt_mesa_prepare)(lnt_mesa_solver *s, const lnt_mesa_args *a, int h, int64_t t, int n, bool token, const float *g, const float *beta,
                             const float *k);
/* W = Op(P) - P.Lambda on the rows at work. */
void LNT_V(lnt_mesa_apply)(const lnt_mesa_solver *s, const float *k, int K, int live, bool token);

/* A chunk's rows, [n,K] or [n]: keys, written keys, gates, right sides, gradients of the solutions; then what comes out. dkb and dvalue: of the two
 * factors of H's writes, kb^T k. */
typedef struct {
    int n;
    const float *k, *kb, *g, *beta, *q, *dx;
    float *dq, *dkb, *dvalue, *dg;
} lnt_mesa_rows;

/* LNT_CG_SHERMAN_MORRISON, mesa_recursive_cpu.c: keys, gates and strengths of the rows, Lambda and P [K,K] of their head h, and u [K]. */
typedef struct {
    const float *k, *g, *beta, *lambda;
    float *P, *u;
    int h;
} lnt_mesa_recursive;
/* P goes over `len` tokens, from token t on; x_i = P_i b_i (b NULL: only that). */
void LNT_V(lnt_mesa_recursion)(const lnt_mesa_args *a, const lnt_mesa_recursive *r, int64_t t, int64_t len, const float *b, float *x);
/* out = A^{-1}, A symmetric and positive; room [K + 1,K]. out = - A D A, the gradient of A from that of its inverse; room [K,K]. */
void LNT_V(lnt_mesa_invert)(int K, const float *A, double *room, float *out);
void LNT_V(lnt_mesa_between)(int K, const float *A, const float *D, float *room, float *out);

/* A backward pass' workspace begins with dlambda of every head [N,Hv,K]; what these are of the sequences together is dlambda. */
static inline size_t lnt_mesa_partial_bytes(const lnt_mesa_args *a)
{
    return ((size_t)a->sequences * (size_t)a->Hv * (size_t)a->K * sizeof(double) + 63) / 64 * 64;
}
static inline void lnt_mesa_sum_lambda(const lnt_mesa_args *a)
{
    const double *partial = a->workspace;
    float *dlambda = a->dlambda;
    for (int64_t i = 0; dlambda && i < (int64_t)a->Hv * a->K; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += partial[n * a->Hv * a->K + i];
        dlambda[i] = (float)sum;
    }
}

/* H [K,K] = its symmetric part. */
void LNT_V(lnt_mesa_symmetric)(int K, float *H);
/* After a solve that kept its steps: gradients of the rows; dH [K,K], symmetric, goes from the chunk's end to its start; dlambda [K] is added to
 * ([n,K] where every token has a Lambda).
 * What the solver knows of the chunk is used up. */
void LNT_V(lnt_mesa_differentiate)(lnt_mesa_solver *s, const lnt_mesa_args *a, const lnt_mesa_rows *r, float *dH, double *dlambda);

#endif
