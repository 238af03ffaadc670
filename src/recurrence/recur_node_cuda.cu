/* Gradients of inputs that several nodes read. */
#include "device/cuda.cuh"
extern "C" {
#include "recurrence/recur_node.h"
}

enum { THREADS = 256, EACH = 4 };

template <typename T> __global__ void __launch_bounds__(THREADS) add_kernel(T *sum, const T *part, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * THREADS * EACH;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; i < n; i += step) {
        if (i + EACH <= n) {
            float a[EACH], b[EACH];
            load_pack(a, sum + i);
            load_pack(b, part + i);
#pragma unroll
            for (int j = 0; j < EACH; j++) a[j] += b[j];
            store_pack(sum + i, a);
        } else {
            for (int64_t j = i; j < n; j++) sum[j] = from_float<T>(to_float(sum[j]) + to_float(part[j]));
        }
    }
}

extern "C" void lnt_gradient_add_cuda(lnt_ctx *c, void *sum, const void *part, lnt_dtype type, int64_t n)
{
    if (!n) return;
    const int64_t pieces = lnt_div_up(n, THREADS * EACH), most = (int64_t)lnt_device_of(c)->multiprocessors * 8;
    LNT_BY_TYPE(type, T, add_kernel<T><<<(unsigned)(pieces < most ? pieces : most), THREADS, 0, lnt_stream(c)>>>((T *)sum, (const T *)part, n));
}
