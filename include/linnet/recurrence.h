/* linnet's raw operators: one call, forward or backward, on the caller's buffers.
 *
 * Letters: B batch, T tokens, N sequences, H heads, K key size, V value size. Every sequence lies in one token axis: sequence n is the rows
 * cu_seqlens[n] .. cu_seqlens[n+1]-1 of the token axis (a [B,T,...] tensor is N = B sequences of T rows each, memory unchanged).
 * On a "cuda" context all tensors and the workspace are device memory, calls return before the work is done, and the work is on the context's stream.
 * Equations are in src/recurrence/<core>/README.md. Since 0.1. */
#ifndef LINNET_RECURRENCE_H
#define LINNET_RECURRENCE_H

#include "linnet/linnet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    LINNET_FORM_AUTO = 0,  /* chunk for long sequences, recurrent for short ones */
    LINNET_FORM_RECURRENT, /* token by token */
    LINNET_FORM_CHUNK,
    LINNET_FORM_PARALLEL, /* one chunk as long as the sequence */
} linnet_form;

/* All tensors are row major and dense. `x` = dtype of the structure; `f` = float32 (float64 when dtype is LINNET_F64).
 * On a GPU a tensor begins at a multiple of 16 bytes if the head sizes in its shape, K and V, are whole 16 bytes each.
 * A pointer that the operator does not take must be NULL; an optional one may be NULL, with the meaning given.
 * Outputs may not overlap inputs, except sT == s0, zT == z0 and hT == h0.
 *
 * Heads: the operators with a state take q,k with `Hq` heads and v, g, beta, o, states with `Hv` heads, Hq dividing Hv; value head h reads
 * query-key head h*Hq/Hv. `attention` takes q, o with `Hv` heads and k, v with `Hq` heads, Hq dividing Hv.
 *
 *   op                 recurrence (S_t is [K,V])                                    takes
 *   linear_attn        S_t = S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t               q k v [normalize]
 *   retention          S_t = e^{g_h} S_{t-1} + k_t v_t^T                              + g_head
 *   simple_gla         S_t = e^{g_t} S_{t-1} + k_t v_t^T                              + g
 *   delta_rule         S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}^T k_t)^T             q k v beta
 *   gated_delta_rule   the same on the decayed state e^{g_t} S_{t-1}                  + g
 *   mesa               H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T                       q k v g beta lambda
 *                      G_t = e^{g_t} G_{t-1} + beta_t k_t v_t^T
 *                      o_t = G_t^T x_t,  (H_t + diag(lambda)) x_t = q_t; no scale
 *   attention          o_t = sum_j softmax_j(scale q_t.k_j) v_j, j in the window      q k v, window */

/* How mesa's conjugate gradients begin, and what they are. */
typedef enum {
    LINNET_CG_DIAGONAL = 0, /* x = q / diag(H_t + Lambda) */
    LINNET_CG_ZERO,         /* x = 0 */
} linnet_cg_guess;
typedef enum {
    LINNET_CG_LEVEL = 0,  /* preconditioned by Lambda + min(diag(H_t)) */
    LINNET_CG_JACOBI,     /* by diag(H_t + Lambda) */
    LINNET_CG_PLAIN,
    LINNET_CG_ABSOLUTE,   /* plain, 1e-5 added to both denominators, no early stop */
    LINNET_CG_FLASH,      /* the same in chunks of 64 with q, k, H and the operands of products rounded to float16, as flash-linear-attention does */
} linnet_cg_solver;
/* What mesa's backward pass differentiates. */
typedef enum {
    LINNET_CG_IMPLICIT = 0, /* the solution, by a second solve: exact where the steps have converged */
    LINNET_CG_UNROLLED,     /* the steps that a call takes, however few; their number is a constant. At most 1024 steps; not LINNET_CG_FLASH */
} linnet_cg_gradient;

typedef struct {
    size_t size;
    const char *op;
    linnet_dtype dtype; /* of q k v o and their gradients: LINNET_F32, LINNET_BF16, or LINNET_F64 (runs the reference) */
    linnet_form form;
    const char *impl;   /* force an implementation by name; NULL: the first of the core's list that accepts */
    int32_t chunk;      /* chunk length, 0: the implementation's own */
    int64_t tokens;     /* rows of the token axis, = cu_seqlens[sequences] */
    int64_t sequences;  /* N */
    const int64_t *cu_seqlens; /* host, [N+1], from 0, non-decreasing */
    int32_t Hq, Hv, K, V;
    double scale;       /* read-out factor; NaN: K^-1/2 */
    int32_t normalize;  /* linear_attn, retention, simple_gla: divide o_t by scale z_t.q_t + eps, z_t = decayed sum of k */
    double eps;         /* of normalize; 0: 1e-10 */
    int64_t window;     /* attention: a token sees itself and the window-1 before it; 0: all */
    int64_t offset;     /* attention: k and v have `offset` more rows than q in front of every sequence (a cache); needs N == 1 */

    /* forward inputs */
    const void *q, *k, *v;   /* x [T,H,K] [T,H,K] [T,H,V] */
    const void *g;           /* f [T,Hv] natural-log decay, <= 0; -inf is an exact reset */
    const void *g_head;      /* f [Hv] */
    const void *beta;        /* f [T,Hv] write strength, (0,2) */
    const void *s0, *z0;     /* f [N,Hv,K,V] (mesa: G), f [N,Hv,K] (normalize); NULL: zeros */
    /* forward outputs */
    void *o;                 /* x [T,Hv,V] */
    void *sT, *zT;           /* as s0, z0; NULL: not wanted */
    void *lse;               /* attention: f [T,Hv] log-sum-exp of the scaled scores; NULL: not wanted */
    /* backward inputs: the forward inputs, and */
    const void *do_;         /* x [T,Hv,V]; NULL: zeros */
    const void *dsT, *dzT;   /* f; NULL: zeros */
    /* (attention also reads o and lse from a forward call, mesa reads x) */
    /* backward outputs, written (not added to); NULL: not wanted */
    void *dq, *dk, *dv;      /* x, shaped as q k v; a head shared by several value heads gets the sum over them */
    void *dg, *dg_head, *dbeta; /* f */
    void *ds0, *dz0;         /* f */

    const int64_t *cu_seqlens_device; /* cuda: the same offsets on the device; NULL: brought there by the call */

    void *workspace;         /* at least linnet_recurrence_workspace bytes, aligned to 64 */
    size_t workspace_size;

    /* mesa */
    const void *lambda;      /* f [Hv,K], > 0 */
    const void *h0;          /* f [N,Hv,K,K] symmetric, as hT; NULL: zeros */
    void *hT;
    void *x;                 /* f [T,Hv,K] the solutions: output of forward (NULL: not wanted), input of backward */
    const void *dhT;         /* f [N,Hv,K,K]; NULL: zeros */
    void *dlambda, *dh0;     /* f [Hv,K], f [N,Hv,K,K] */
    void *steps, *residual;  /* f [T,Hv] conjugate-gradient steps of the call's solve, and |residual| / |right side| after them; NULL: not wanted */
    /* A token's solve ends when |residual| <= cg_tolerance |right side|, or after cg_max_steps. NaN: 1e-4; 0: all steps are taken. With a tolerance
     * above 0 the reference (LINNET_F64) solves directly, unless steps are differentiated; with 0 it takes the same steps in float64. */
    double cg_tolerance;
    int32_t cg_max_steps;    /* -1: 30 */
    linnet_cg_guess cg_guess;
    linnet_cg_solver cg_solver;
    linnet_cg_gradient cg_gradient;
    const void *cg_steps_device; /* cuda: int32 on the device, this many steps (0 .. cg_max_steps) instead; it may change between runs of a recorded
                                    call. NULL: cg_max_steps */
} linnet_recurrence;
#define LINNET_RECURRENCE_INIT \
    { .size = sizeof(linnet_recurrence), .scale = __builtin_nan(""), .cg_tolerance = __builtin_nan(""), .cg_max_steps = -1 }

/* Bytes of workspace that a forward (backward = 0) or backward (1) call on this shape needs. Pointers need not be set, except cu_seqlens, and
 * those whose presence matters (s0, normalize's z0 ...) are assumed present. */
LINNET_API linnet_status linnet_recurrence_workspace(linnet_context *c, const linnet_recurrence *r, int backward, size_t *bytes);

/* Run. LINNET_EINVAL with the reason when a shape, a pointer or an option is wrong; nothing is written then. */
LINNET_API linnet_status linnet_recurrence_forward(linnet_context *c, const linnet_recurrence *r);
LINNET_API linnet_status linnet_recurrence_backward(linnet_context *c, const linnet_recurrence *r);

/* Name of the implementation that the last run on this context took, for example "chunk-avx512". */
LINNET_API const char *linnet_recurrence_ran(const linnet_context *c);

#ifdef __cplusplus
}
#endif
#endif
