/* What every CUDA file includes: the house's headers as C, the device's inside, and the few helpers that all kernels share.
 * Only .cu files include this; nothing of CUDA is seen by the C files. */
#ifndef LNT_DEVICE_CUDA_CUH
#define LNT_DEVICE_CUDA_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/dtype.h"
#include "core/memory.h"
#include "core/status.h"
#include "device/device.h"
}

/* ---- the device ---------------------------------------------------------------------------------------------------------------- */

struct lnt_cuda {
    lnt_device base; /* first: an lnt_device * is one of these */
    int index;
    cudaStream_t stream;
    bool owns_stream;
    cublasLtHandle_t lt;
    void *lt_work;       /* scratch of products, LT_WORK bytes */
    void *gemm_picks;    /* ops/gemm_cuda.cu: cuBLASLt's choices by shape; NULL until the first product, lnt_free */
    cudaError_t failed;  /* the first failure since lnt_device_check */
    cudaEvent_t marks[2];
    char name[256];
};
enum { LNT_LT_WORK = 32 << 20 };

static inline lnt_cuda *lnt_cuda_of(const lnt_ctx *c) { return (lnt_cuda *)lnt_device_of(c); }
static inline cudaStream_t lnt_stream(const lnt_ctx *c) { return lnt_cuda_of(c)->stream; }
static inline void lnt_cuda_note(lnt_cuda *d, cudaError_t e)
{
    if (e != cudaSuccess && d->failed == cudaSuccess) d->failed = e;
}

static inline int64_t lnt_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- elements ------------------------------------------------------------------------------------------------------------------- */

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

/* N neighbouring elements as one access of up to 16 bytes: p is aligned to N elements. */
template <typename T, int N> struct alignas(sizeof(T) * N) lnt_pack {
    T x[N];
};
template <int N, typename T> __device__ __forceinline__ void load_pack(float (&out)[N], const T *p)
{
    const lnt_pack<T, N> v = *(const lnt_pack<T, N> *)p;
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = to_float(v.x[i]);
}
template <int N, typename T> __device__ __forceinline__ void store_pack(T *p, const float (&in)[N])
{
    lnt_pack<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_float<T>(in[i]);
    *(lnt_pack<T, N> *)p = v;
}

/* Sum (largest) over the lanes of a warp, the same bits in every lane. */
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

/* Call F<T> for the type of a tensor: LNT_BY_TYPE(t, T, statement that uses T). */
#define LNT_BY_TYPE(type, T, ...)                                                                                                  \
    do {                                                                                                                           \
        if ((type) == LINNET_F32) {                                                                                                \
            using T = float;                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            using T = bf16;                                                                                                        \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    } while (0)

#endif
