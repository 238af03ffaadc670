/* The arguments of the Mesa core: those that cores with heads have, s0 being G, and its own. */
#ifndef LNT_MESA_ARGS_H
#define LNT_MESA_ARGS_H

#include "recurrence/recur_args.h"

typedef struct {
    union {
        lnt_recur_args heads;
        struct {
            LNT_HEADS_ARGS
        };
    };
    const void *lambda;      /* f [Hv,K], > 0 */
    const void *lambda_t;    /* f [T,Hv,K], in its place with lambda_varies */
    int32_t lambda_varies;
    const void *h0;          /* f [N,Hv,K,K] symmetric, as hT; NULL: zeros (LNT_CG_SHERMAN_MORRISON: the inverse of Lambda) */
    void *hT;
    void *x;                 /* f [T,Hv,K] the solutions: output of forward (NULL: not wanted), input of backward */
    const void *dhT;
    void *dlambda, *dlambda_t, *dh0;
    void *steps, *residual;  /* f [T,Hv] conjugate-gradient steps of the call's solve, and |residual| / |right side| after them; NULL: not wanted */
    /* A token's solve ends when |residual| <= cg_tolerance |right side|, or after cg_max_steps; with 0 all steps are taken. With a tolerance above
     * 0 the reference (LINNET_F64) solves directly, unless steps are differentiated; with 0 it takes the same steps in float64. */
    double cg_tolerance;
    int32_t cg_max_steps;
    int32_t cg_guess, cg_solver, cg_gradient; /* LNT_CG_... */
    /* cuda: on the device, this many steps (0 .. cg_max_steps) instead; it may change between runs of a recorded call. NULL: cg_max_steps */
    const int32_t *cg_steps_device;
} lnt_mesa_args;

/* Tokens of a chunk where there is a window: a divisor of it, short as without one, but not so short that the sums of all its chunks fill the
 * memory. */
static inline int64_t lnt_mesa_window_chunk(int64_t window, int64_t wish)
{
    const int64_t each = window / 64, C = wish ? wish : each < 16 ? 16 : each > 64 ? 64 : each;
    int64_t n = C < window ? C : window;
    while (window % n) n--;
    return n;
}

/* Where Lambda decays, the inverse of what is forgotten grows: so many times at most. */
#define LNT_MESA_GROWTH 1024.0f

/* How mesa's conjugate gradients begin, what they are, and what the backward pass differentiates; in the order of the options' words. */
enum {
    LNT_CG_DIAGONAL, /* x = q / diag(H_t + Lambda) */
    LNT_CG_ZERO,     /* x = 0 */
};
enum {
    LNT_CG_LEVEL,    /* preconditioned by Lambda + min(diag(H_t)) */
    LNT_CG_JACOBI,   /* by diag(H_t + Lambda) */
    LNT_CG_PLAIN,
    LNT_CG_ABSOLUTE, /* plain, 1e-5 added to both denominators, no early stop */
    LNT_CG_FLASH,    /* the same in chunks of 64 with q, k, H and the operands of products rounded to float16, as flash-linear-attention does */
    LNT_CG_SHERMAN_MORRISON, /* no steps: the inverse P of H + Lambda, token by token; h0 and hT are P, and Lambda decays with H */
};
enum {
    LNT_CG_IMPLICIT, /* the solution, by a second solve: exact where the steps have converged */
    LNT_CG_UNROLLED, /* the steps that a call takes, however few; their number is a constant. At most 1024 steps; not LNT_CG_FLASH */
};

static inline bool lnt_mesa_is_recursive(const lnt_mesa_args *a) { return a->cg_solver == LNT_CG_SHERMAN_MORRISON; }

#endif
