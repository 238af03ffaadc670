/* Vector decay on CUDA: what its kernels share. */
#ifndef LNT_DECAY_VECTOR_CUH
#define LNT_DECAY_VECTOR_CUH

#include "device/functions.cuh"
#include "recurrence/decay/decay_wide.cuh"

extern "C" {
#include "recurrence/decay/decay_vector.h"
}
typedef lnt_vector_call vector_call;

/* Pieces of the workspace, each aligned to 256 bytes; base NULL: only `used` is of use. */
struct vector_arena {
    char *base;
    size_t used;
    template <typename T> T *take(int64_t n)
    {
        T *p = base ? (T *)(base + used) : NULL;
        used += ((size_t)n * sizeof(T) + 255) / 256 * 256;
        return p;
    }
};

/* out [outer,heads,inner] = sums of parts [lead,outer,Hv,inner] over lead and groups of Hv / heads, in their order. */
void lnt_vector_sum_heads(void *out, int out_bf16, const float *parts, int64_t lead, int64_t outer, int Hv, int heads, int64_t inner,
                          const lnt_cuda *d);

#ifdef __CUDACC__
/* v[i] summed over lanes; the sum of v[i] is left in lanes i (32 / N) and on. */
template <int N, int O = 16> __device__ __forceinline__ float sum_each(const float (&v)[N])
{
    if constexpr (N == 1) {
        float x = v[0];
#pragma unroll
        for (int o = O; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
        return x;
    } else {
        float half[N / 2];
        const bool up = threadIdx.x & O;
#pragma unroll
        for (int i = 0; i < N / 2; i++) half[i] = (up ? v[i + N / 2] : v[i]) + __shfl_xor_sync(~0u, up ? v[i] : v[i + N / 2], O);
        return sum_each<N / 2, O / 2>(half);
    }
}
#endif

#endif
