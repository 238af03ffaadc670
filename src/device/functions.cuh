/* Functions of one number that kernels share: by the special-function unit, and to float32's accuracy. */
#ifndef LNT_FUNCTIONS_CUH
#define LNT_FUNCTIONS_CUH

#include "device/cuda.cuh"

static constexpr double LNT_LOG2E = 1.4426950408889634;

/* ---- by the special-function unit --------------------------------------------------------------------------------------------------------- */

/* 2^x within 2 ulp; what is below float32's normal range, of arguments as of results, is 0. */
__device__ __forceinline__ float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* e^x within 2 ulp plus half an ulp of x for each unit of |x log2 e|. */
__device__ __forceinline__ float fast_exp(float x) { return fast_exp2(x * (float)LNT_LOG2E); }
/* 1 / x and the root of x, each within 1 ulp. */
__device__ __forceinline__ float fast_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_root(float x)
{
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* The lesser and the greater of two; a NaN stays one. */
__device__ __forceinline__ float at_most(float x, float most)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
}
__device__ __forceinline__ float at_least(float x, float least)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
}
__device__ __forceinline__ float sigmoid_of(float x) { return fast_inverse(1.0f + fast_exp2(x * -(float)LNT_LOG2E)); }

/* ---- to float32's accuracy ------------------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ float exact_sigmoid(float x)
{
    const float e = expf(-fabsf(x));
    return (x > 0.f ? 1.f : e) / (1.f + e);
}
/* log(1 + e^x) without overflow. */
__device__ __forceinline__ float softplus_of(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

#endif
