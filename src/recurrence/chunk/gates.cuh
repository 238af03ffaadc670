/* Scalar gates in a chunk on CUDA: every core's kernels take from here what a gate g <= 0 counts, what a reset (g = -inf) and a sum of gates become,
 * and the decay between two tokens (operators.md#gates). G_i is the inclusive sum of the chunk's gates, D_ij = e^{G_i - G_j} for j <= i. No exponent
 * is positive, a NaN stays one, and it reaches no earlier token.
 *
 *   Split    float32 rows, and bf16 ones where all factors are made at once: G in float64, kept as two floats. A gate below -128 counts as that,
 *            whose exponential is 0 in float32, so that a reset needs no other provision.
 *   Counted  bf16 rows on tensor cores, where D is made of float32 sums in registers: a gate below -40 counts as that, so that the sums keep
 *            their digits, a reset as 0, and resets are counted beside: D_ij = [R_i = R_j] e^{G_i - G_j}, R_i the resets up to and with i. */
#ifndef LNT_GATES_CUH
#define LNT_GATES_CUH

#include "device/functions.cuh"

/* ---- split ------------------------------------------------------------------------------------------------------------------------------ */

static constexpr float LNT_GATE_FLOOR = -128.0f;

__device__ __forceinline__ float lnt_gate(float g) { return g < LNT_GATE_FLOOR ? LNT_GATE_FLOOR : g; }
/* Whether lnt_gate(g) lets nothing through: the gate has no gradient then. */
__device__ __forceinline__ bool lnt_gate_shut(float g) { return g == LNT_GATE_FLOOR; }

/* Sums in units of log 2, each as two floats: differences keep float32's relative accuracy at any size of the sums (float32 sums lose 2e-5 at
 * g = -40). */
struct lnt_gate_sum {
    float hi, lo;
};
__device__ __forceinline__ lnt_gate_sum lnt_gate_split(double b)
{
    const float hi = (float)b;
    return { hi, (float)(b - hi) };
}
/* Of gates 0 .. i. */
__device__ __forceinline__ lnt_gate_sum lnt_gate_upto(const float *gate, int i)
{
    double upto = 0;
    for (int j = 0; j <= i; j++) upto += gate[j];
    return lnt_gate_split(upto * LNT_LOG2E);
}
/* Of a warp's gates, one a lane: those of lanes 0 to C-1 up to and with the lane's own. */
template <int C> __device__ __forceinline__ lnt_gate_sum lnt_gate_scan(float g)
{
    double upto = lnt_gate(g);
#pragma unroll
    for (int o = 1; o < C; o *= 2) {
        const double before = __shfl_up_sync(~0u, upto, o);
        if ((int)threadIdx.x % 32 >= o) upto += before;
    }
    return lnt_gate_split(upto * LNT_LOG2E);
}
/* e^{G_i - G_j} */
__device__ __forceinline__ float lnt_gate_between(lnt_gate_sum i, lnt_gate_sum j) { return exp2f((i.hi - j.hi) + (i.lo - j.lo)); }
/* e^{G_i} */
__device__ __forceinline__ float lnt_gate_from_start(lnt_gate_sum i) { return lnt_gate_between(i, { 0.0f, 0.0f }); }

/* ---- counted ---------------------------------------------------------------------------------------------------------------------------- */

static constexpr float LNT_GATE_COUNTED_FLOOR = -40.f;

__device__ __forceinline__ bool lnt_gate_resets(float g) { return g == -INFINITY; }
/* What the gate adds to G. */
__device__ __forceinline__ float lnt_gate_counted(float g, int resets)
{
    return resets ? 0.f : g < LNT_GATE_COUNTED_FLOOR ? LNT_GATE_COUNTED_FLOOR : g;
}
/* D_ij */
__device__ __forceinline__ float lnt_gate_pair(float Gi, int Ri, float Gj, int Rj) { return Ri == Rj ? __expf(Gi - Gj) : 0.f; }
/* [R_i = 0] e^{G_i} */
__device__ __forceinline__ float lnt_gate_from_start(float Gi, int Ri) { return Ri == 0 ? __expf(Gi) : 0.f; }

#endif
