/* The largest logit of each row, or one drawn by temperature, for the next step and for the host. */
#include "device/cuda.cuh"
extern "C" {
#include "generate/greedy.h"
}

enum { THREADS = 1024, WARPS = THREADS / 32, AT_ONCE = 16 }; /* AT_ONCE: loads on their way */

struct largest {
    float x;
    int32_t id;
};

/* Ties go to the lower id. A NaN, whose id is -1, is larger than everything. */
__device__ __forceinline__ largest larger(largest a, largest b)
{
    if (a.id < 0 || b.id < 0) return a.id < 0 ? a : b;
    return b.x > a.x || (b.x == a.x && b.id < a.id) ? b : a;
}

__device__ __forceinline__ largest warp_largest(largest a)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) a = larger(a, {__shfl_xor_sync(0xffffffffu, a.x, o), __shfl_xor_sync(0xffffffffu, a.id, o)});
    return a;
}

struct arrival {
    double time;
    int32_t id;
};

/* Ties go to the lower id. */
__device__ __forceinline__ arrival sooner(arrival a, arrival b) { return b.time < a.time || (b.time == a.time && b.id < a.id) ? b : a; }

__device__ __forceinline__ arrival warp_soonest(arrival a)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) a = sooner(a, {__shfl_xor_sync(0xffffffffu, a.time, o), __shfl_xor_sync(0xffffffffu, a.id, o)});
    return a;
}

/* The race of lnt_draw_by (sample.c), of a row whose largest logit is `best`; in thread 0. */
__device__ int32_t race(const float *row, int32_t V, float best, lnt_chance chance)
{
    __shared__ arrival of_warp[WARPS];
    arrival first = {INFINITY, INT32_MAX};
    for (int32_t i = (int32_t)threadIdx.x; i < V; i += THREADS) {
        const double p = exp(((double)row[i] - (double)best) / chance.temperature), u = lnt_number_of(chance.bits, i);
        if (1 - u >= first.time * p) continue; /* -ln u is no less than 1 - u */
        const double time = -log(u) / p;
        if (time < first.time) first = {time, i};
    }
    first = warp_soonest(first);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = first;
    __syncthreads();
    if (threadIdx.x < 32) first = warp_soonest(of_warp[threadIdx.x]);
    return first.id;
}

/* One block a row of logits [rows, ld], of which the first V columns count. */
__global__ void __launch_bounds__(THREADS)
    largest_kernel(const float *logits, int64_t ld, int32_t V, const lnt_chance *chance, int32_t *next, int32_t *host)
{
    __shared__ largest of_warp[WARPS], of_row;
    const float *row = logits + (int64_t)blockIdx.x * ld;
    largest best = {-INFINITY, 0};
    let_next();
    await_last();
    for (int32_t i = (int32_t)threadIdx.x; i < V; i += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) x[j] = i + j * THREADS < V ? row[i + j * THREADS] : -INFINITY;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (best.id >= 0 && !(x[j] <= best.x)) best = {x[j], isnan(x[j]) ? -1 : i + j * THREADS};
    }
    best = warp_largest(best);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) best = warp_largest(of_warp[threadIdx.x]);
    if (threadIdx.x == 0) of_row = best;
    __syncthreads();
    best = of_row;
    const bool none = best.id < 0 || isinf(best.x);
    int32_t id = best.id;
    if (chance && !none && chance[blockIdx.x].temperature != 0) id = race(row, V, best.x, chance[blockIdx.x]);
    if (threadIdx.x == 0) {
        next[blockIdx.x] = none ? 0 : id;
        host[blockIdx.x] = none ? -1 : id;
    }
}

extern "C" void lnt_greedy_cuda(lnt_ctx *c, const float *logits, int64_t rows, int64_t ld, int64_t V, const lnt_chance *chance, int32_t *next,
                                int32_t *host)
{
    lnt_launch(lnt_cuda_of(c), largest_kernel, (unsigned)rows, (int)THREADS, logits, ld, (int32_t)V, chance, next, host);
}
