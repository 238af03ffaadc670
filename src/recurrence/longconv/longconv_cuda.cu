/* Long convolutions on a GPU, one token by itself, and the final states of either form. A filter a channel: 8 warps take every eighth lag of 32
 * channels. A filter a head: a warp takes every eighth lag of a head, lanes the keys' columns, then threads the values' columns. Sums are added in
 * order. */
#include "recurrence/longconv/longconv_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

typedef lnt_heads_conv_args conv_args;

enum { LANES = 32, WARPS = 8, THREADS = LANES * WARPS, LAGS = 256 };

/* Row p of sequence n, a row of `state` where p < 0. */
template <typename T>
__device__ __forceinline__ const T *row_at(const conv_args &a, const void *rows, const void *state, int64_t n, int64_t first, int64_t p,
                                           int64_t columns)
{
    return p >= 0 ? (const T *)rows + (first + p) * columns : (const T *)state + ((n + 1) * a.R + p) * columns;
}

/* Lags that token t sees, of a state's rows too where they are `there`. */
__device__ __forceinline__ int64_t lags_of(const conv_args &a, int64_t t, bool there)
{
    const int64_t all = t + (there ? a.R : 0) + 1;
    return a.L < all ? a.L : all;
}

template <typename T> __global__ void __launch_bounds__(THREADS) token_kernel(const __grid_constant__ conv_args a)
{
    __shared__ float part[WARPS][LANES];
    let_next();
    await_last();
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    const int64_t D = a.H, n = blockIdx.z, first = a.cu_seqlens_device[n], len = a.cu_seqlens_device[n + 1] - first;
    const int64_t d = (int64_t)blockIdx.x * LANES + lane, t = blockIdx.y;
    if (t >= len) return;
    const int64_t lags = lags_of(a, t, a.v0);
    float sum = 0.0f;
    if (d < D)
#pragma unroll 4
        for (int64_t l = warp; l < lags; l += WARPS)
            sum = fmaf(((const float *)a.h)[l * D + d], to_float(row_at<T>(a, a.v, a.v0, n, first, t - l, D)[d]), sum);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp || d >= D) return;
    sum = a.skip ? ((const float *)a.skip)[d] * to_float(((const T *)a.v)[(first + t) * D + d]) : 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += part[w][lane];
    ((T *)a.o)[(first + t) * D + d] = from_float<T>(sum);
}

/* LAGS at a time: their scores h_l q_t.k_{t-l}, then sums over them of rows of v. A block is a head of a token; threads have columns, 256 apart. */
template <typename T> __global__ void __launch_bounds__(THREADS) heads_token_kernel(const __grid_constant__ conv_args a)
{
    __shared__ float score[LAGS];
    let_next();
    await_last();
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    const int64_t h = blockIdx.x, t = blockIdx.y, n = blockIdx.z, first = a.cu_seqlens_device[n], len = a.cu_seqlens_device[n + 1] - first;
    if (t >= len) return;
    const int64_t keys = (int64_t)a.H * a.K, values = (int64_t)a.H * a.V;
    const int64_t lags = lags_of(a, t, a.k0 && a.v0); /* keys or values that are zeros bring nothing */
    const T *q = (const T *)a.q + (first + t) * keys + h * a.K;
    for (int64_t j0 = 0; j0 < a.V; j0 += THREADS) {
        const int64_t j = j0 + threadIdx.x;
        float sum = 0.0f;
        for (int64_t l0 = 0; l0 < lags; l0 += LAGS) {
            const int count = (int)(lags - l0 < LAGS ? lags - l0 : LAGS);
            __syncthreads();
            for (int l = warp; l < count; l += WARPS) {
                const T *k = row_at<T>(a, a.k, a.k0, n, first, t - l0 - l, keys) + h * a.K;
                float dot = 0.0f;
                for (int64_t i = lane; i < a.K; i += LANES) dot = fmaf(to_float(q[i]), to_float(k[i]), dot);
                dot = warp_sum(dot);
                if (lane) continue;
                float w = ((const float *)a.h)[(l0 + l) * a.H + h];
                if (l0 + l == 0 && a.skip) w += ((const float *)a.skip)[h];
                score[l] = w * dot;
            }
            __syncthreads();
            if (j < a.V)
#pragma unroll 4
                for (int l = 0; l < count; l++)
                    sum = fmaf(score[l], to_float(row_at<T>(a, a.v, a.v0, n, first, t - l0 - l, values)[h * a.V + j]), sum);
        }
        if (j < a.V) ((T *)a.o)[(first + t) * values + h * a.V + j] = from_float<T>(sum);
    }
}

/* Rows and the state that they end in: a thread a column, rows move down one after the other. */
template <typename T>
__global__ void __launch_bounds__(THREADS) state_kernel(const __grid_constant__ conv_args a, const void *rows, const void *before, void *after,
                                                        int64_t columns)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = at / columns, d = at % columns;
    if (n >= a.sequences) return;
    const int64_t first = a.cu_seqlens_device[n], len = a.cu_seqlens_device[n + 1] - first;
    T *to = (T *)after;
    for (int64_t r = 0; r < a.R; r++) {
        const int64_t p = len - a.R + r;
        to[(n * a.R + r) * columns + d] = p >= 0 || before ? row_at<T>(a, rows, before, n, first, p, columns)[d] : from_float<T>(0.0f);
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------------- */

template <typename T> void put_state(const conv_args &a, const lnt_cuda *d, const void *rows, const void *before, void *after, int64_t columns)
{
    const unsigned blocks = (unsigned)lnt_div_up(a.sequences * columns, THREADS);
    if (after && blocks) lnt_launch(d, state_kernel<T>, blocks, THREADS, a, rows, before, after, columns);
}

void step(const void *args, const lnt_device *d)
{
    const conv_args a = lnt_longconv_as_heads((const lnt_longconv_args *)args);
    const dim3 grid((unsigned)lnt_div_up(a.H, LANES), (unsigned)a.longest, (unsigned)a.sequences);
    if (a.tokens) LNT_BY_TYPE(a.dtype, T, lnt_launch((const lnt_cuda *)d, token_kernel<T>, grid, THREADS, a));
    lnt_longconv_put_states(a, (const lnt_cuda *)d);
}
void heads_step(const void *args, const lnt_device *d)
{
    const conv_args &a = *(const conv_args *)args;
    const dim3 grid((unsigned)a.H, (unsigned)a.longest, (unsigned)a.sequences);
    if (a.tokens) LNT_BY_TYPE(a.dtype, T, lnt_launch((const lnt_cuda *)d, heads_token_kernel<T>, grid, THREADS, a));
    lnt_longconv_put_states(a, (const lnt_cuda *)d);
}

/* What a grid's second and third numbers hold. */
const char *declines(const void *args, bool)
{
    const lnt_recur_head *a = (const lnt_recur_head *)args;
    return a->sequences > 65535 || a->longest > 65535 ? "more than 65535 sequences or tokens" : NULL;
}

} // namespace

void lnt_longconv_put_states(const lnt_heads_conv_args &a, const lnt_cuda *d)
{
    LNT_BY_TYPE(a.dtype, T, put_state<T>(a, d, a.k, a.k0, a.kT, (int64_t)a.H * a.K));
    LNT_BY_TYPE(a.dtype, T, put_state<T>(a, d, a.v, a.v0, a.vT, (int64_t)a.H * a.V));
}

extern "C" {
extern const lnt_recur_impl lnt_longconv_recurrent_cuda, lnt_heads_conv_recurrent_cuda;
const lnt_recur_impl lnt_longconv_recurrent_cuda = {
    .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = declines,
    .workspace = NULL, .forward = NULL, .backward = NULL, .put_forward = step, .put_backward = NULL,
};
const lnt_recur_impl lnt_heads_conv_recurrent_cuda = {
    .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = declines,
    .workspace = NULL, .forward = NULL, .backward = NULL, .put_forward = heads_step, .put_backward = NULL,
};
}
