/* The Mesa core on CUDA: what its files share is the solve, the one thing that is this core's own. States and read-outs are the decay core's.
 * Equations: operators.md#mesa. */
#ifndef LNT_MESA_CUDA_CUH
#define LNT_MESA_CUDA_CUH

#include "recurrence/chunk/gates.cuh"

#include <cuda_fp16.h>

extern "C" {
#include "recurrence/mesa/mesa_args.h"
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
    bool empty;             /* it is 0 at the start of every sequence */
    T *x;                   /* [T,Hv,K] */
    float *x_float;         /* [T,Hv,K] the same in float32, NULL: not wanted */
    float *taken;           /* [T,Hv] steps taken, without those that are free; NULL: not wanted */
    float *residual;        /* [T,Hv] |rhs - Op(x)| / |rhs|, NULL: not wanted */
    int steps;              /* at most; the one that a preconditioned solver takes for the diagonal guess is not counted */
    const int *drawn;       /* NULL, or this many instead */
    bool diagonal;          /* the guess; otherwise 0 */
    bool without_steps;     /* nothing is done unless the number drawn is 0 */
    float tolerance2;       /* a row stops after the step that leaves |r|^2 <= tolerance2 |rhs|^2; -1: it never does */
    float absolute;         /* added to both denominators: 0, or 1e-5 (LNT_CG_ABSOLUTE), and then no row stops for want of curvature either */
    int32_t solver;
    bool half;              /* LNT_CG_FLASH: H and the operands of products are rounded to float16 */
    bool half_ends;         /* and so are rhs and x */
};

__device__ __forceinline__ float lnt_to_half(float x) { return __half2float(__float2half_rn(x)); }

/* What a step's length takes beside its quotient: 0, and NaN where one of the numbers that decide about a row is NaN or infinite. Every comparison
 * with NaN is false, as that of a row that is done: x would stay where it is and pass for a solution. */
__device__ __forceinline__ float lnt_mesa_lost(float delta, float curve)
{
    /* by name: x - x of a product x would become one instruction, which gives x's rounding error */
    return __fadd_rn(__fsub_rn(delta, delta), __fsub_rn(curve, curve));
}
/* The smaller one, or NaN. */
__device__ __forceinline__ float lnt_mesa_least(float x, float y)
{
    float z;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
/* |residual| / |rhs| from their squares; NaN where they are. */
__device__ __forceinline__ float lnt_mesa_left(float left, float size) { return size == 0.0f ? 0.0f : sqrtf(left / size); }

/* What a number of steps comes to. */
struct lnt_mesa_course {
    int steps;      /* that number */
    int most;       /* applications of Op at most, the one for the residual of `from_guess` not counted */
    int free_steps; /* the first so many are not counted in `taken` */
    bool from_guess; /* x starts at rhs / (diag(H_t) + lambda) and r at rhs - Op(x); otherwise at 0 and rhs. Never with the preconditioned ones
                        but where `most` is 0, and then x is that guess */
    int32_t solver; /* LNT_CG_LEVEL: x starts at 0, the first direction is rhs / (lambda + min(diag(H_t))) */
};
__device__ __forceinline__ lnt_mesa_course lnt_mesa_course_of(int32_t solver, bool diagonal, int steps)
{
    const bool preconditioned = solver <= LNT_CG_JACOBI, some = steps > 0;
    const int free_steps = diagonal && preconditioned && some;
    return { steps, steps + free_steps, free_steps, diagonal && (!preconditioned || !some),
             solver == LNT_CG_LEVEL && !some ? LNT_CG_JACOBI : solver };
}
/* That of a call, on the device: of lnt_mesa_solve, or of whatever else has its names. */
template <typename A> __device__ __forceinline__ lnt_mesa_course lnt_mesa_course_now(const A &a)
{
    return lnt_mesa_course_of(a.solver, a.diagonal, a.drawn ? *a.drawn : a.steps);
}

/* The options of a call. */
template <typename T, typename S> lnt_mesa_solve<T, S> lnt_mesa_options_of(const lnt_mesa_args *a)
{
    lnt_mesa_solve<T, S> x = {};
    x.steps = a->cg_max_steps;
    x.drawn = (const int *)a->cg_steps_device;
    x.diagonal = a->cg_guess == LNT_CG_DIAGONAL;
    x.solver = a->cg_solver;
    x.half = a->cg_solver == LNT_CG_FLASH;
    x.absolute = a->cg_solver >= LNT_CG_ABSOLUTE ? 1e-5f : 0.0f;
    x.tolerance2 = x.absolute > 0 ? -1.0f : (float)(a->cg_tolerance * a->cg_tolerance);
    /* Further steps would be made of rounding errors, those of tensor cores' products for bf16 tensors. */
    if (a->cg_gradient == LNT_CG_UNROLLED) x.tolerance2 = fmaxf(x.tolerance2, sizeof(T) == 2 && a->K <= 128 ? 0x1p-34f : 0x1p-46f);
    return x;
}

/* In float32: every shape with K <= 256; S = bf16: K <= 128, not `half`. */
template <typename T, typename S> void lnt_mesa_solve_put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d);

/* The gradient through the steps of a solve (LNT_CG_UNROLLED), from y, the gradient of x. The chunk's start states H are float32. */
template <typename T> struct lnt_mesa_unroll {
    lnt_mesa_solve<T, float> solve; /* its x is not made */
    const T *y;                 /* [T,Hv,K] */
    T *dq;                      /* [T,Hv,K] */
    float *ring;                /* [rings,ring_floats] */
    int64_t ring_floats;
    int blocks;
    float *part;                /* [chunks,Hv,K] what each chunk takes from dlambda */
    float *fade;                /* [chunks,Hv] e^{sum of the chunk's gates} */
    float *E, *E0;              /* [chunks,Hv,K,K] what a chunk adds to the gradient of the state before it; by the caller's scan with `fade`,
                                   the gradient of the state after it. [N,Hv,K,K] of first chunks, NULL: dh0 is not wanted */
    float *dkb, *dvalue, *db;   /* [T,Hv,K], [T,Hv]: between the kernels */
    T *less_dkb, *less_dvalue;  /* [T,Hv,K] negative, as e's are */
    float *less_dg;             /* [T,Hv] */
    float *dh0;                 /* [N,Hv,K,K], NULL: not wanted */
};
struct lnt_mesa_rings {
    int64_t n, floats;
    int blocks;
};
lnt_mesa_rings lnt_mesa_rings_of(int K, int steps, int64_t tasks);
/* dq, part, fade, E, E0; then the rest, from E as the scan left it. */
template <typename T> void lnt_mesa_unroll_put(const lnt_mesa_unroll<T> &a, lnt_cuda *d);
template <typename T> void lnt_mesa_unroll_end_put(const lnt_mesa_unroll<T> &a, lnt_cuda *d);

/* The fast solve: bf16, K = 64 or 128, LNT_CG_LEVEL and PLAIN, sm_90a. */
typedef lnt_mesa_solve<bf16, bf16> lnt_mesa_cg;
void lnt_mesa_cg_sm90(const lnt_mesa_cg &a, const lnt_cuda *d);

/* Its table, of tokens / 64 + sequences slots. */
void lnt_mesa_table_put(const lnt_mesa_args *a, int4 *table, lnt_cuda *d);

/* Token by token. */
void lnt_mesa_step_put(const lnt_mesa_args *a, lnt_cuda *d);
size_t lnt_mesa_step_bytes(const lnt_mesa_args *a);

#endif
