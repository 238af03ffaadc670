/* Decoding with a key-value cache: one new token for every sequence.
 *
 * A cache is cut into parts of PART rows. A CTA has one part of one sequence and query head: its warps take every eighth row, keep their own running
 * softmax, and are merged in order; a second kernel merges the parts in order. The cache is read once for every query head of its group (the group's
 * CTAs run side by side, so all but the first find it in L2). Floor: bytes of the cache over the copy bandwidth. */
#include "device/cuda.cuh"

extern "C" {
#include "recurrence/attention/attention_gpu.h"
}

namespace {

constexpr int PART = 512, WARPS = 8, WIDTH = 8; /* WIDTH: columns a lane holds at most, 256 / 32 */

int64_t parts_of(int64_t rows) { return lnt_div_up(rows, PART); }

/* The token's rows into its cache. */
template <typename T> __global__ void append_kernel(const __grid_constant__ lnt_attention_step a)
{
    const int64_t n = blockIdx.x, slot = a.position[n] % a.rows, wide_k = (int64_t)a.Hk * a.K, wide_v = (int64_t)a.Hk * a.V;
    T *keys = (T *)(a.cache + n * a.stride), *values = keys + a.rows * wide_k;
    for (int64_t i = threadIdx.x; i < wide_k; i += blockDim.x) keys[slot * wide_k + i] = ((const T *)a.k)[n * wide_k + i];
    for (int64_t i = threadIdx.x; i < wide_v; i += blockDim.x) values[slot * wide_v + i] = ((const T *)a.v)[n * wide_v + i];
}

/* A running softmax: the largest score, the sum of e^{score - most}, and the same of the values. */
struct running {
    float most, sum, x[WIDTH];
};
__device__ __forceinline__ void merge(running &a, float most, float sum, const float *x, int width, int lane)
{
    const float top = fmaxf(a.most, most), f = a.most == -INFINITY ? 0.f : expf(a.most - top), g = most == -INFINITY ? 0.f : expf(most - top);
    a.sum = a.sum * f + sum * g;
    a.most = top;
#pragma unroll
    for (int p = 0; p < WIDTH; p++)
        if (lane + 32 * p < width) a.x[p] = a.x[p] * f + x[lane + 32 * p] * g;
}

/* out [N,Hq,parts,V+2]: the part's values, largest score, sum. */
template <typename T> __global__ void __launch_bounds__(32 * WARPS) part_kernel(const __grid_constant__ lnt_attention_step a, float *out)
{
    __shared__ float merged[WARPS][256 + 2];
    const int64_t n = blockIdx.z, seen = a.position[n] + 1 < a.rows ? a.position[n] + 1 : a.rows, first = (int64_t)blockIdx.x * PART;
    const int h = (int)blockIdx.y, hk = h / (a.Hq / a.Hk), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t last = first + PART < seen ? first + PART : seen;
    float *mine = out + ((n * a.Hq + h) * gridDim.x + blockIdx.x) * (a.V + 2);
    const T *keys = (const T *)(a.cache + n * a.stride), *values = keys + a.rows * a.Hk * a.K;
    float q[WIDTH];
#pragma unroll
    for (int p = 0; p < WIDTH; p++)
        q[p] = lane + 32 * p < a.K ? to_float(((const T *)a.q)[(n * a.Hq + h) * a.K + lane + 32 * p]) * (float)a.scale : 0.f;
    running r = {-INFINITY, 0.f, {}};
    for (int64_t j = first + warp; j < last; j += WARPS) {
        float score = 0.f;
#pragma unroll
        for (int p = 0; p < WIDTH; p++)
            if (lane + 32 * p < a.K) score += q[p] * to_float(keys[(j * a.Hk + hk) * a.K + lane + 32 * p]);
        score = warp_sum(score);
        const float top = fmaxf(r.most, score), f = r.most == -INFINITY ? 0.f : expf(r.most - top), w = expf(score - top);
        r.most = top;
        r.sum = r.sum * f + w;
#pragma unroll
        for (int p = 0; p < WIDTH; p++)
            if (lane + 32 * p < a.V) r.x[p] = r.x[p] * f + w * to_float(values[(j * a.Hk + hk) * a.V + lane + 32 * p]);
    }
#pragma unroll
    for (int p = 0; p < WIDTH; p++)
        if (lane + 32 * p < a.V) merged[warp][lane + 32 * p] = r.x[p];
    if (lane == 0) merged[warp][256] = r.most, merged[warp][257] = r.sum;
    __syncthreads();
    if (warp) return;
    for (int w = 1; w < WARPS; w++) merge(r, merged[w][256], merged[w][257], merged[w], a.V, lane);
#pragma unroll
    for (int p = 0; p < WIDTH; p++)
        if (lane + 32 * p < a.V) mine[lane + 32 * p] = r.x[p];
    if (lane == 0) mine[a.V] = r.most, mine[a.V + 1] = r.sum;
}

/* A warp a head. */
template <typename T> __global__ void merge_kernel(const __grid_constant__ lnt_attention_step a, const float *out, int64_t parts)
{
    const int64_t head = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, stride = a.V + 2;
    const int lane = (int)threadIdx.x % 32;
    if (head >= a.sequences * a.Hq) return;
    running r = {-INFINITY, 0.f, {}};
    for (int64_t p = 0; p < parts; p++) {
        const float *x = out + (head * parts + p) * stride;
        merge(r, x[a.V], x[a.V + 1], x, a.V, lane);
    }
#pragma unroll
    for (int p = 0; p < WIDTH; p++)
        if (lane + 32 * p < a.V) ((T *)a.o)[head * a.V + lane + 32 * p] = from_float<T>(r.x[p] / r.sum);
}

} // namespace

extern "C" size_t lnt_attention_step_bytes(int64_t sequences, int32_t Hq, int32_t V, int64_t rows)
{
    return (size_t)(sequences * Hq * parts_of(rows) * (V + 2)) * sizeof(float);
}

extern "C" void lnt_attention_step_put(const lnt_attention_step *a)
{
    const int64_t parts = parts_of(a->rows);
    cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->sequences == 0) return;
    LNT_BY_TYPE(a->dtype, T, {
        append_kernel<T><<<(unsigned)a->sequences, 256, 0, stream>>>(*a);
        part_kernel<T><<<dim3((unsigned)parts, (unsigned)a->Hq, (unsigned)a->sequences), 32 * WARPS, 0, stream>>>(*a, (float *)a->workspace);
        merge_kernel<T><<<(unsigned)lnt_div_up(a->sequences * a->Hq, 8), 256, 0, stream>>>(*a, (const float *)a->workspace, parts);
    });
}
