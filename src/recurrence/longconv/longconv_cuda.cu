/* Long convolutions with a filter a channel on a GPU: Toeplitz products. A block has 32 channels (a warp's lanes, neighbours in memory) of 64
 * rows, 8 rows of a channel to a thread, and goes over tiles of 64 rows of what is convolved, beside the 127 lags between the two, both in
 * shared memory. What sums take in is the same in every run: rows by 64, one tile after the other. */
#include "device/cuda.cuh"

extern "C" {
#include "recurrence/longconv/longconv.h"
}
#include "recurrence/recur_cuda.cuh"

namespace {

enum { LANES = 32, TILE = 64, EACH = 8, THREADS = LANES * TILE / EACH, LAGS = 2 * TILE };


struct conv_args {
    const void *in, *state;            /* what is convolved */
    const float *h, *skip;
    const void *other, *other_state;   /* the filter's gradient: u, and s0 */
    const void *dfinal;
    void *out, *out_state;
    float *dh, *dskip;
    const int64_t *cu;
    int64_t D, L, R, past, sequences;
};

/* Row p of sequence n, a row of `state` where p < 0; 0 where there is none. */
template <typename T>
__device__ __forceinline__ float row_value(const T *rows, const T *state, const conv_args &a, int64_t n, int64_t first, int64_t len, int64_t p,
                                           int64_t d)
{
    if (d >= a.D || p >= len) return 0.0f;
    if (p >= 0) return rows ? to_float(rows[(first + p) * a.D + d]) : 0.0f;
    return state && p >= -a.past ? to_float(state[((n + 1) * a.R + p) * a.D + d]) : 0.0f;
}

/* sum[r] += the 64 rows of `in` times the lags between: lag[i] with i = row - in's + 63 (BACK: the other way). */
template <bool BACK>
__device__ __forceinline__ void products(float (&sum)[EACH], const float (*in)[LANES], const float (*lag)[LANES], int row, int lane)
{
#pragma unroll 4
    for (int j = 0; j < TILE; j++) {
        const float x = in[j][lane];
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            const int i = (BACK ? j - (row + r) : row + r - j) + TILE - 1;
            sum[r] = fmaf(lag[i][lane], x, sum[r]);
        }
    }
}

/* The same where some lags are none: what is there is no number perhaps, and then 0 times it neither. `first` is the lag of i = 0. */
template <bool BACK>
__device__ __forceinline__ void some_products(float (&sum)[EACH], const float (*in)[LANES], const float (*lag)[LANES], int row, int lane,
                                              int64_t first, int64_t L)
{
    for (int j = 0; j < TILE; j++) {
        const float x = in[j][lane];
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            const int i = (BACK ? j - (row + r) : row + r - j) + TILE - 1;
            const int64_t l = first + i;
            if (l >= 0 && l < L) sum[r] = fmaf(lag[i][lane], x, sum[r]);
        }
    }
}

/* o_p = D u_p + sum_l h_l u_{p-l}; BACK: du_p = D do_p + sum_l h_l do_{p+l}, of the state's rows too, and what the final state's gradient says
 * of them. */
template <typename T, bool BACK> __global__ void __launch_bounds__(THREADS) conv_kernel(const __grid_constant__ conv_args a)
{
    __shared__ float in[TILE][LANES], lag[LAGS][LANES];
    let_next();
    await_last();
    const int lane = (int)threadIdx.x % LANES, row = (int)threadIdx.x / LANES * EACH;
    const int64_t n = blockIdx.z, first = a.cu[n], len = a.cu[n + 1] - first, d = (int64_t)blockIdx.x * LANES + lane;
    const int64_t p0 = (int64_t)blockIdx.y * TILE - (BACK && a.out_state ? (a.R + TILE - 1) / TILE * TILE : 0);
    if (p0 >= len) return;
    float sum[EACH] = {};
    const int64_t begin = BACK && p0 < 0 ? 0 : p0, reach = p0 + TILE - 1 + a.L, end = len < reach ? len : reach;
    for (int64_t step = 0;; step += TILE) { /* j0: the tile's first row */
        const int64_t j0 = BACK ? begin + step : begin - step;
        if (BACK ? j0 >= end : (j0 + TILE - 1 < -a.past || p0 - (j0 + TILE - 1) >= a.L)) break;
        const int64_t lag0 = (BACK ? j0 - p0 : p0 - j0) - (TILE - 1);
        __syncthreads();
        for (int i = (int)threadIdx.x / LANES; i < TILE; i += THREADS / LANES)
            in[i][lane] = row_value((const T *)a.in, (const T *)a.state, a, n, first, len, j0 + i, d);
        for (int i = (int)threadIdx.x / LANES; i < LAGS - 1; i += THREADS / LANES) {
            const int64_t l = lag0 + i;
            lag[i][lane] = l >= 0 && l < a.L && d < a.D ? a.h[l * a.D + d] : 0.0f;
        }
        __syncthreads();
        if (lag0 >= 0 && lag0 + LAGS - 2 < a.L)
            products<BACK>(sum, in, lag, row, lane);
        else
            some_products<BACK>(sum, in, lag, row, lane, lag0, a.L);
    }
    if (d >= a.D) return;
    const float skip = a.skip ? a.skip[d] : 0.0f;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int64_t p = p0 + row + r, kept = p - (len - a.R);
        if (p >= len || p < (BACK && a.out_state ? -a.R : 0)) continue;
        float y = sum[r];
        if (p >= 0 && a.in) y = fmaf(skip, to_float(((const T *)a.in)[(first + p) * a.D + d]), y);
        if (BACK && a.dfinal && kept >= 0) y += to_float(((const T *)a.dfinal)[(n * a.R + kept) * a.D + d]);
        if (p < 0)
            ((T *)a.out_state)[((n + 1) * a.R + p) * a.D + d] = from_float<T>(y);
        else if (a.out)
            ((T *)a.out)[(first + p) * a.D + d] = from_float<T>(y);
    }
}

/* dh_l = sum_t do_t u_{t-l} of 64 lags, all sequences one after the other; dD is that of lag 0. */
template <typename T> __global__ void __launch_bounds__(THREADS) filter_kernel(const __grid_constant__ conv_args a)
{
    __shared__ float dout[TILE][LANES], x[LAGS][LANES];
    let_next();
    await_last();
    const int lane = (int)threadIdx.x % LANES, row = (int)threadIdx.x / LANES * EACH;
    const int64_t l0 = (int64_t)blockIdx.y * TILE, d = (int64_t)blockIdx.x * LANES + lane;
    float sum[EACH] = {};
    for (int64_t n = 0; n < a.sequences; n++) {
        const int64_t first = a.cu[n], len = a.cu[n + 1] - first;
        const int64_t from = l0 - a.past > 0 ? (l0 - a.past) / TILE * TILE : 0; /* earlier tokens see nothing so far back */
        for (int64_t t0 = from; t0 < len; t0 += TILE) {
            __syncthreads();
            for (int i = (int)threadIdx.x / LANES; i < TILE; i += THREADS / LANES)
                dout[i][lane] = row_value((const T *)a.in, (const T *)NULL, a, n, first, len, t0 + i, d);
            for (int i = (int)threadIdx.x / LANES; i < LAGS - 1; i += THREADS / LANES)
                x[i][lane] = row_value((const T *)a.other, (const T *)a.other_state, a, n, first, len, t0 - l0 - (TILE - 1) + i, d);
            __syncthreads();
            products<true>(sum, dout, x, row, lane);
        }
    }
    if (d >= a.D) return;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int64_t l = l0 + row + r;
        if (l < a.L && a.dh) a.dh[l * a.D + d] = sum[r];
        if (l == 0 && a.dskip) a.dskip[d] = sum[r];
    }
}

/* The final state, in place or elsewhere: a thread a channel, rows move down one after the other. */
template <typename T> __global__ void __launch_bounds__(THREADS) state_kernel(const __grid_constant__ conv_args a)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = at / a.D, d = at % a.D;
    if (n >= a.sequences) return;
    const int64_t first = a.cu[n], len = a.cu[n + 1] - first;
    const T *rows = (const T *)a.in, *before = (const T *)a.state;
    T *to = (T *)a.out_state;
    for (int64_t r = 0; r < a.R; r++) {
        const int64_t p = len - a.R + r;
        to[(n * a.R + r) * a.D + d] = p >= 0 ? rows[(first + p) * a.D + d] : before ? before[((n + 1) * a.R + p) * a.D + d] : from_float<T>(0.0f);
    }
}

/* A token by itself: 8 warps a block take every eighth lag of 32 channels, and their sums are added in order. */
template <typename T> __global__ void __launch_bounds__(THREADS) token_kernel(const __grid_constant__ conv_args a)
{
    __shared__ float part[THREADS / LANES][LANES];
    let_next();
    await_last();
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    const int64_t n = blockIdx.z, first = a.cu[n], len = a.cu[n + 1] - first, d = (int64_t)blockIdx.x * LANES + lane, t = blockIdx.y;
    if (t >= len) return;
    const int64_t lags = a.L < t + a.past + 1 ? a.L : t + a.past + 1;
    float sum = 0.0f;
    if (d < a.D)
#pragma unroll 4
        for (int64_t l = warp; l < lags; l += THREADS / LANES)
            sum = fmaf(a.h[l * a.D + d], row_value((const T *)a.in, (const T *)a.state, a, n, first, len, t - l, d), sum);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp || d >= a.D) return;
    sum = a.skip ? a.skip[d] * to_float(((const T *)a.in)[(first + t) * a.D + d]) : 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / LANES; w++) sum += part[w][lane];
    ((T *)a.out)[(first + t) * a.D + d] = from_float<T>(sum);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------------- */

conv_args args_of(const lnt_longconv_args *a)
{
    conv_args p = {};
    p.h = (const float *)a->h, p.skip = (const float *)a->skip, p.cu = a->cu_seqlens_device;
    p.D = a->D, p.L = a->L, p.R = a->R, p.sequences = a->sequences;
    p.in = a->u, p.state = a->s0, p.out = a->o, p.out_state = a->sT, p.past = a->s0 ? (a->R < a->L - 1 ? a->R : a->L - 1) : 0;
    return p;
}

dim3 grid_of(const lnt_longconv_args *a, int64_t rows)
{
    return dim3((unsigned)lnt_div_up(a->D, LANES), (unsigned)rows, (unsigned)a->sequences);
}

template <typename T> void put_state(const lnt_longconv_args *a, const conv_args &p, const lnt_cuda *d)
{
    if (a->sT && a->sequences) lnt_launch(d, state_kernel<T>, (unsigned)lnt_div_up(a->sequences * a->D, THREADS), THREADS, p);
}

template <typename T> void forward_of(const lnt_longconv_args *a, const lnt_cuda *d)
{
    const conv_args p = args_of(a);
    if (a->tokens) lnt_launch(d, conv_kernel<T, false>, grid_of(a, lnt_div_up(a->longest, TILE)), THREADS, p);
    put_state<T>(a, p, d);
}

template <typename T> void step_of(const lnt_longconv_args *a, const lnt_cuda *d)
{
    const conv_args p = args_of(a);
    if (a->tokens) lnt_launch(d, token_kernel<T>, grid_of(a, a->longest), THREADS, p);
    put_state<T>(a, p, d);
}

template <typename T> void backward_of(const lnt_longconv_args *a, const lnt_cuda *d)
{
    conv_args p = args_of(a);
    p.other = a->u, p.other_state = a->s0;
    p.in = a->dout, p.state = NULL, p.dh = (float *)a->dh, p.dskip = (float *)a->dskip;
    const int64_t lags = a->dh ? lnt_div_up(a->L, TILE) : 1;
    if (a->dh || a->dskip) lnt_launch(d, filter_kernel<T>, dim3((unsigned)lnt_div_up(a->D, LANES), (unsigned)lags), THREADS, p);
    p.out = a->du, p.out_state = a->ds0, p.dfinal = a->dsT, p.past = 0;
    const int64_t rows = lnt_div_up(a->longest, TILE) + (a->ds0 ? lnt_div_up(a->R, TILE) : 0);
    if (rows && a->sequences && (a->du || a->ds0)) lnt_launch(d, conv_kernel<T, true>, grid_of(a, rows), THREADS, p);
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_longconv_args *a = (const lnt_longconv_args *)args;
    LNT_BY_TYPE(a->dtype, T, forward_of<T>(a, (const lnt_cuda *)d));
}
void step(const void *args, const lnt_device *d)
{
    const lnt_longconv_args *a = (const lnt_longconv_args *)args;
    LNT_BY_TYPE(a->dtype, T, step_of<T>(a, (const lnt_cuda *)d));
}
void backward(const void *args, const lnt_device *d)
{
    const lnt_longconv_args *a = (const lnt_longconv_args *)args;
    LNT_BY_TYPE(a->dtype, T, backward_of<T>(a, (const lnt_cuda *)d));
}

/* What a grid's second and third numbers hold. */
const char *declines(const void *args, bool)
{
    const lnt_longconv_args *a = (const lnt_longconv_args *)args;
    if (a->sequences > 65535) return "more than 65535 sequences";
    return (a->longest + a->R) / TILE > 65000 || a->L / TILE > 65000 ? "sequences or filters of more than four million rows" : NULL;
}

const char *step_declines(const void *args, bool)
{
    const lnt_longconv_args *a = (const lnt_longconv_args *)args;
    return a->sequences > 65535 || a->longest > 65535 ? "more than 65535 sequences or tokens" : NULL;
}

} // namespace

extern "C" {
extern const lnt_recur_impl lnt_longconv_block_cuda, lnt_longconv_recurrent_cuda;
const lnt_recur_impl lnt_longconv_block_cuda = {
    .name = "block-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = declines,
    .workspace = NULL, .forward = NULL, .backward = NULL, .put_forward = forward, .put_backward = backward,
};
const lnt_recur_impl lnt_longconv_recurrent_cuda = {
    .name = "recurrent-cuda", .form = LINNET_FORM_RECURRENT, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = step_declines,
    .workspace = NULL, .forward = NULL, .backward = NULL, .put_forward = step, .put_backward = NULL,
};
}
