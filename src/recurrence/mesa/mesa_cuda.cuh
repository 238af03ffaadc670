/* The Mesa core on CUDA: what its files share is the solve, the one thing that is this core's own. States and read-outs are the decay core's.
 * Equations in README.md. */
#ifndef LNT_MESA_CUDA_CUH
#define LNT_MESA_CUDA_CUH

#include "device/cuda.cuh"

#include <cuda_fp16.h>

extern "C" {
#include "recurrence/recurrence.h"
}

enum { LNT_MESA_C = 64 }; /* tokens of a chunk */

/* Solve (H_t + diag(lambda)) x_t = rhs_t for every token and value head, a chunk of 64 tokens at a time; all device memory. Chunk i of sequence n
 * is slot cu[n] / 64 + n + i, as the decay core numbers segments of 64 tokens: no two meet, some are empty. T: type of the rows, S: of H. */
template <typename T, typename S> struct lnt_mesa_solve {
    int64_t chunks;         /* slots */
    const int4 *table;      /* [chunks] {sequence, first token, rows, chunk of its sequence}; rows <= 0: nothing to do */
    int K, Hv, Hk, Hr;      /* heads of gates and solutions, of k, of rhs; Hk and Hr divide Hv */
    const T *rhs;           /* [T,Hr,K] */
    const T *k;             /* [T,Hk,K] */
    const float *g, *beta;  /* [T,Hv]; g = -inf is an exact reset */
    const float *lambda;    /* [Hv,K] */
    const S *H;             /* [chunks,Hv,K,K] at the chunk's start; symmetric but for its rounding */
    T *x;                   /* [T,Hv,K] */
    float *x_float;         /* [T,Hv,K] the same in float32, NULL: not wanted */
    float *taken;           /* [T,Hv] steps taken, without those that are free; NULL: not wanted */
    float *residual;        /* [T,Hv] |rhs - Op(x)| / |rhs|, NULL: not wanted */
    int most;               /* applications of Op at most, the one for the residual of `from_guess` not counted */
    int free_steps;         /* the first so many are not counted in `taken` */
    float tolerance2;       /* a row stops after the step that leaves |r|^2 <= tolerance2 |rhs|^2; -1: it never does */
    float absolute;         /* added to both denominators: 0, or 1e-5 (LINNET_CG_ABSOLUTE), and then no row stops for want of curvature either */
    linnet_cg_solver solver; /* LINNET_CG_LEVEL: x starts at 0, the first direction is rhs / (lambda + min(diag(H_t))) */
    bool half;              /* LINNET_CG_FLASH: H and the operands of products are rounded to float16 */
    bool half_ends;         /* and so are rhs and x */
    bool from_guess;        /* x starts at rhs / (diag(H_t) + lambda) and r at rhs - Op(x); otherwise at 0 and rhs. Never with the preconditioned ones
                               but where `most` is 0, and then x is that guess */
};

__device__ __forceinline__ float lnt_to_half(float x) { return __half2float(__float2half_rn(x)); }

/* The options of a call. */
template <typename T, typename S> lnt_mesa_solve<T, S> lnt_mesa_options_of(const lnt_recur_args *a)
{
    lnt_mesa_solve<T, S> x = {};
    const bool preconditioned = a->cg_solver <= LINNET_CG_JACOBI, diagonal = a->cg_guess == LINNET_CG_DIAGONAL, some = a->cg_max_steps > 0;
    x.free_steps = diagonal && preconditioned && some;
    x.most = a->cg_max_steps + x.free_steps;
    x.from_guess = diagonal && (!preconditioned || !some);
    x.solver = a->cg_solver == LINNET_CG_LEVEL && !some ? LINNET_CG_JACOBI : a->cg_solver;
    x.half = a->cg_solver == LINNET_CG_FLASH;
    x.absolute = a->cg_solver >= LINNET_CG_ABSOLUTE ? 1e-5f : 0.0f;
    x.tolerance2 = x.absolute > 0 ? -1.0f : (float)(a->cg_tolerance * a->cg_tolerance);
    return x;
}

/* In float32: every shape with K <= 256; S = bf16: K <= 128, not `half`. */
template <typename T, typename S> void lnt_mesa_solve_put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d);

/* The fast solve: bf16, K = 64 or 128, LINNET_CG_LEVEL and PLAIN, sm_90a. */
typedef lnt_mesa_solve<bf16, bf16> lnt_mesa_cg;
void lnt_mesa_cg_sm90(const lnt_mesa_cg &a, cudaStream_t stream);

/* Token by token. */
void lnt_mesa_step_put(const lnt_recur_args *a, lnt_cuda *d);
size_t lnt_mesa_step_bytes(const lnt_recur_args *a);

#endif
