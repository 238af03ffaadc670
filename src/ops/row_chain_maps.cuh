/* Maps of low rank whose results a chain with a rule reads (KDA's decays and gates): a block has its head's rows of their weights, in registers from
 * before the kernels ahead have ended. A kernel between took 2.5 us, of which its bytes, 1 MB, are a tenth.
 *
 *   y_m[n] = act(x_m . w_m[n] + b_m[n]), n the K columns of a head, x_m [K]
 *
 * A warp has 2 K / 8 rows of the two maps, as pieces of 8 numbers that are operands of tensor cores (few_rows_cuda.cu). */
#ifndef LNT_OPS_ROW_CHAIN_MAPS_CUH
#define LNT_OPS_ROW_CHAIN_MAPS_CUH

#include "ops/few_rows.cuh"
#include "ops/row_chain.cuh"

namespace row_chain {

struct chain_maps {
    few_part p[2]; /* for the decay and for the norm's gate */
};

template <int K> struct rule_maps {
    static constexpr int WARPS = LNT_RULE_THREADS / 32, TILES = 2 * K / WARPS / 16, STEPS = K / 32;
    uint4 w[TILES][2][STEPS];

    /* Row of both maps' that a lane's group has: of tile i, the first of two 8 apart. */
    static __device__ __forceinline__ int row(int i) { return ((int)threadIdx.x / 32 * TILES + i) * 16 + (int)threadIdx.x % 32 / 4; }

    __device__ __forceinline__ void load(const chain_maps &a, int first)
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const few_part &p = a.p[row(i) / K];
            const bf16 *from = p.w + (first + row(i) % K) * p.ldw + (int)threadIdx.x % 4 * 8;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int s = 0; s < STEPS; s++) w[i][h][s] = *(const uint4 *)(from + h * 8 * p.ldw + s * 32);
        }
    }
    /* To y [2][K], by all warps; all are there behind a barrier. `token`: row of x. */
    __device__ __forceinline__ void make(const chain_maps &a, int token, int first, float *y) const
    {
        const few_part &p = a.p[row(0) / K]; /* a warp's tiles are of one map */
        const bf16 *from = p.x + token * p.ldx + (int)threadIdx.x % 4 * 8;
        uint4 x[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            x[s] = make_uint4(0, 0, 0, 0);
            if ((int)threadIdx.x % 32 < 4) x[s] = *(const uint4 *)(from + s * 32);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            float d[4] = {};
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 u = w[i][0][s], v = w[i][1][s];
                few_mma(d, u.x, v.x, u.y, v.y, x[s].x, x[s].y);
                few_mma(d, u.z, v.z, u.w, v.w, x[s].z, x[s].w);
            }
            if (threadIdx.x % 4) continue;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float sum[1] = {d[2 * h]};
                const float none[1] = {};
                few_result(p, false, first + row(i) % K + 8 * h, sum, none);
                y[row(i) + 8 * h] = as_half(sum[0]);
            }
        }
    }
};
/* Of a chain without any. */
struct no_maps {};

} // namespace row_chain

#endif
