/* What kernels of the convolution share with the step of a whole layer (recurrence/delta/delta_layer_sm90.cu). */
#ifndef LNT_OPS_SHORT_CONV_CUH
#define LNT_OPS_SHORT_CONV_CUH

#include "ops/rows.cuh"

/* Taps [cols, size] of U columns from c on; in front of fewer than SIZE, taps of zero. */
template <int SIZE, int U> __device__ __forceinline__ void load_taps(const float *taps, int size, int64_t c, float (&w)[SIZE][U])
{
    if (SIZE == 4 && size == 4) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float4 f = ((const float4 *)taps)[c + u];
            w[0][u] = f.x, w[1][u] = f.y, w[2][u] = f.z, w[3][u] = f.w;
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int j = 0; j < SIZE; j++) w[j][u] = j < SIZE - size ? 0.0f : taps[(c + u) * size + j - (SIZE - size)];
}

/* How many lanes a head has, in a kernel's type. BIASED: no norm, and there may be a bias. */
enum { BIASED = -1, NO_NORM = 0, ANY_LANES = 1, ALL_LANES = 32 }; /* 32 columns of lanes: heads of 128 */

/* The sum over the lanes of a head, the same bits in all of them. No branches: rows of a run overlap. */
template <int LANES> __device__ __forceinline__ float head_sum(float x, int lanes)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, x, o);
        x += LANES == ALL_LANES || o < lanes ? other : 0.0f;
    }
    return x;
}

#endif
