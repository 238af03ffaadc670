/* Rows of K numbers spread over a warp, for the column of ones of mLSTM: n, its gradient, keys and queries. */
#ifndef LNT_DECAY_STABLE_CUH
#define LNT_DECAY_STABLE_CUH

#include <float.h>

#include "recurrence/decay/decay_cuda.cuh"

/* Of token t: e^g - 1, which keeps a small gate's accuracy over many tokens, and the write strength. */
struct stable_factors {
    float less, write;
};
__device__ __forceinline__ stable_factors stable_token(const decay_cut &x, int64_t t, int h)
{
    return { expm1f(decay_gate(x, t, h)), x.writes ? expf(x.writes[t * x.Hv + h]) : 1.0f };
}

/* What |s n.q| is raised to, above 0, so that 0 / D is 0 where e^{-m} is too small for a float; and D. */
__device__ __forceinline__ float stable_floor(float m)
{
    const float y = expf(-m);
    return y < FLT_MIN ? FLT_MIN : y;
}
__device__ __forceinline__ float stable_denominator(float den, float m, float eps)
{
    const float floor = stable_floor(m);
    return (fabsf(den) <= floor ? floor : fabsf(den)) + eps;
}

/* A lane has L neighbours of every 32 L numbers, GROUPS times; zeros beyond K, a multiple of L. */
template <int L, int GROUPS> struct stable_row {
    float x[GROUPS][L];

    template <typename T> __device__ __forceinline__ void get(const T *p, int K)
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int d = (g * 32 + (int)threadIdx.x % 32) * L;
#pragma unroll
            for (int j = 0; j < L; j++) x[g][j] = 0.0f;
            if (d < K) load_pack<L>(x[g], p + d);
        }
    }
    template <typename T> __device__ __forceinline__ void put(T *p, int K) const
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int d = (g * 32 + (int)threadIdx.x % 32) * L;
            if (d < K) store_pack<L>(p + d, x[g]);
        }
    }
    __device__ __forceinline__ void fade(float less)
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < L; j++) x[g][j] = fmaf(less, x[g][j], x[g][j]);
    }
    __device__ __forceinline__ void add(float f, const stable_row &y)
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < L; j++) x[g][j] = fmaf(f, y.x[g][j], x[g][j]);
    }
    __device__ __forceinline__ void step(stable_factors f, const stable_row &k)
    {
        fade(f.less);
        add(f.write, k);
    }
    /* A lane's share of it. */
    __device__ __forceinline__ float dot(const stable_row &y) const
    {
        float sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < L; j++) sum = fmaf(x[g][j], y.x[g][j], sum);
        return sum;
    }
};

/* Queries and keys [T,Hq,K]. */
struct stable_rows {
    const void *q, *k;
    int Hq, K;
    /* The first token's row that value head h reads; from a token to the next. */
    template <typename T> __device__ __forceinline__ const T *head(const void *p, const decay_cut &x, int h) const
    {
        return (const T *)p + (int64_t)h * Hq / x.Hv * K;
    }
    __device__ __forceinline__ int64_t pitch() const { return (int64_t)Hq * K; }
};

#endif
