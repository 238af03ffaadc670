/* One token of the delta rule for 32 columns of a state in the registers of 128 threads: a thread has 4 neighbouring columns of every 16th row, a
 * warp four rows of 128 bytes at a time. Shared by the step alone (delta_step_cuda.cu) and that of a whole layer (delta_layer_sm90.cu). */
#ifndef LNT_DELTA_STEP_CUH
#define LNT_DELTA_STEP_CUH

#include "device/cuda.cuh"

namespace {

constexpr int THREADS = 128, COLUMNS = 32, GROUPS = 16; /* GROUPS: rows at a time */

/* The 4 columns from `p` on, of which `left` exist. */
__device__ __forceinline__ void read4(float (&x)[4], const float *p, int left, bool wide)
{
    if (wide && left >= 4) {
        const float4 y = __ldcs((const float4 *)p);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = j < left ? p[j] : 0.f;
}
__device__ __forceinline__ void write4(float *p, const float (&x)[4], int left, bool wide)
{
    if (wide && left >= 4) {
        __stcs((float4 *)p, make_float4(x[0], x[1], x[2], x[3]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < left) p[j] = x[j];
}

/* Sums of the warps. */
struct step_share {
    float4 sums[THREADS / 32][2][COLUMNS / 4];
    float dots[THREADS / 32];
};

/* u and o of a thread's 4 columns; ks, qs [16 ROWS] and vs [32] are in shared memory. One __syncthreads. */
template <int ROWS>
__device__ __forceinline__ void step_token(const float (&S)[ROWS][4], const float *ks, const float *qs, const float *vs, step_share &share, float a,
                                           float beta, float scale, float (&u)[4], float (&o)[4])
{
    const int tid = (int)threadIdx.x % THREADS, lane = tid % 32, warp = tid / 32, row = tid / 8, column = tid % 8 * 4;
    float sk[4] = {}, sq[4] = {}, kq = 0.f;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float kr = ks[row + i * GROUPS], qr = qs[row + i * GROUPS];
        kq += kr * qr;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sk[j] += S[i][j] * kr;
            sq[j] += S[i][j] * qr;
        }
    }
#pragma unroll
    for (int w = 8; w <= 16; w *= 2) {
        kq += __shfl_xor_sync(0xffffffffu, kq, w);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sk[j] += __shfl_xor_sync(0xffffffffu, sk[j], w);
            sq[j] += __shfl_xor_sync(0xffffffffu, sq[j], w);
        }
    }
    if (lane < 8) {
        share.sums[warp][0][lane] = make_float4(sk[0], sk[1], sk[2], sk[3]);
        share.sums[warp][1][lane] = make_float4(sq[0], sq[1], sq[2], sq[3]);
        if (lane == 0) share.dots[warp] = kq;
    }
    __syncthreads();
    float total[2][4] = {};
    kq = 0.f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) {
        kq += share.dots[w];
#pragma unroll
        for (int y = 0; y < 2; y++) {
            const float4 z = share.sums[w][y][column / 4];
            total[y][0] += z.x, total[y][1] += z.y, total[y][2] += z.z, total[y][3] += z.w;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[j] = beta * (vs[column + j] - a * total[0][j]);
        o[j] = scale * fmaf(kq, u[j], a * total[1][j]); /* whose sums are one and the same in all kernels */
    }
}

template <int ROWS> __device__ __forceinline__ void step_write(float (&S)[ROWS][4], const float *ks, float a, const float (&u)[4])
{
    const int row = (int)threadIdx.x % THREADS / 8;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float kr = ks[row + i * GROUPS];
#pragma unroll
        for (int j = 0; j < 4; j++) S[i][j] = fmaf(kr, u[j], a * S[i][j]);
    }
}

} // namespace

#endif
