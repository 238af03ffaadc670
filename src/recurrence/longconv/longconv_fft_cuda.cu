/* Long convolutions on a GPU by transforms. Both operators are one: a filter a head, over channels z_ij = k_i v_j of each head, which for a filter a
 * channel are heads with K = V = 1 and k = q = 1. With F a transform of N >= tokens + lags - 1 numbers, filters with D added to lag 0:
 *
 *   y = F^-1 (F h . F z), o_j = sum_i q_i y_ij
 *   dy_ij = q_i do_j, dz = F^-1 (conj(F h) . F dy), dq_i = sum_j do_j y_ij, dk_i = sum_j v_j dz_ij, dv_j = sum_i k_i dz_ij,
 *   dh = F^-1 (sum over channels and sequences of conj(F z) . F dy)
 *
 * A row of a transform is a channel of a sequence from the oldest input that a token sees. What fits in SLAB numbers goes at once: some sequences of
 * one N by some heads, or some of a head's i; where a head's i come apart, sums over i wait in float32. Every sum has one order. */
#include "device/fft.cuh"

extern "C" {
#include "recurrence/longconv/longconv.h"
}
#include "recurrence/longconv/longconv_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

typedef lnt_heads_conv_args conv_args;

enum { TILE = 64, WARPS = 8, THREADS = 32 * WARPS, EACH = TILE / WARPS, MOST_SEQUENCES = 1 << 14 };
constexpr int64_t SLAB = 8 << 20, LONGEST = INT64_C(1) << 28;

/* A piece of the work. Rows of transforms: S dc of z, backward as many of dy, nh filters, backward nh ni parts of their gradients (in the filters'
 * place where a head has one part). Row s dc + ((h-h0) ni + i-i0) V + j is a channel. */
struct slab {
    conv_args a;
    int64_t N, past, lags; /* N = 0: no token; rows in front of the first one; lags that a sequence of the piece sees */
    int64_t n0, S, h0, nh, i0, ni;
    int64_t dc, dy, filters, parts, rows;
    float *time, *kept; /* [rows,N]; sums over i, [T + sequences past,H V] */
    float2 *bins;       /* [rows,N/2+1] */
    void *work;
    bool begins;        /* no other piece has written the filters' gradients */
    __host__ __device__ int64_t half() const { return N / 2 + 1; }
};

/* ---- rows ----------------------------------------------------------------------------------------------------------------------------------- */

/* Column `column` of row p of sequence n, a row of `state` where p < 0. */
template <typename T>
__device__ __forceinline__ float value_at(const slab &x, const void *rows, const void *state, int64_t n, int64_t first, int64_t p, int64_t column,
                                          int64_t columns)
{
    if (p >= 0) return rows ? to_float(((const T *)rows)[(first + p) * columns + column]) : 0.0f;
    return state ? to_float(((const T *)state)[((n + 1) * x.a.R + p) * columns + column]) : 0.0f;
}

/* Rows of channels, products of a row of `by` (NULL: 1) and one of `of`. */
struct channels {
    const void *by, *by0, *of, *of0;
};

template <typename T>
__device__ __forceinline__ float channel_at(const slab &x, const channels &y, int64_t n, int64_t first, int64_t len, int64_t p, int64_t c)
{
    if (c >= x.dc || p >= len) return 0.0f;
    const int64_t part = c / x.a.V, h = x.h0 + part / x.ni, i = x.i0 + part % x.ni, j = c % x.a.V;
    const float v = value_at<T>(x, y.of, y.of0, n, first, p, h * x.a.V + j, x.a.H * x.a.V);
    return y.by ? v * value_at<T>(x, y.by, y.by0, n, first, p, h * x.a.K + i, x.a.H * x.a.K) : v;
}

__device__ __forceinline__ float filter_at(const slab &x, int64_t l, int64_t h)
{
    if (h >= x.nh || l >= x.lags) return 0.0f;
    const float w = ((const float *)x.a.h)[l * x.a.H + x.h0 + h];
    return l || !x.a.skip ? w : w + ((const float *)x.a.skip)[x.h0 + h];
}

/* Inputs of transforms, from rows of tokens to rows of channels: a tile of 64 by 64. */
template <typename T> __global__ void __launch_bounds__(THREADS) spread_kernel(const __grid_constant__ slab x, const __grid_constant__ channels z,
                                                                               const __grid_constant__ channels dy)
{
    __shared__ float tile[TILE][TILE + 1];
    let_next();
    await_last();
    const int64_t s = blockIdx.z, at0 = (int64_t)blockIdx.x * TILE, c0 = (int64_t)blockIdx.y * TILE, n = x.n0 + s % x.S;
    const bool filters = s == (int64_t)gridDim.z - 1, back = s >= x.S;
    const int64_t first = filters ? 0 : x.a.cu_seqlens_device[n], len = filters ? 0 : x.a.cu_seqlens_device[n + 1] - first;
    if (c0 >= (filters ? x.nh : x.dc)) return;
    const int column = (int)threadIdx.x % TILE;
    for (int i = (int)threadIdx.x / TILE; i < TILE; i += THREADS / TILE) {
        if (filters)
            tile[column][i] = filter_at(x, at0 + i, c0 + column);
        else
            tile[column][i] = channel_at<T>(x, back ? dy : z, n, first, len, at0 + i - x.past, c0 + column);
    }
    __syncthreads();
    const int64_t row0 = filters ? x.filters : s * x.dc, end = filters ? x.nh : x.dc;
    for (int c = (int)threadIdx.x / TILE; c < TILE && c0 + c < end; c += THREADS / TILE)
        x.time[(row0 + c0 + c) * x.N + at0 + column] = tile[c][column];
}

/* ---- products of bins ------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float2 times(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
__device__ __forceinline__ float2 times_conj(float2 a, float2 b) { return make_float2(a.x * b.x + a.y * b.y, a.x * b.y - a.y * b.x); } /* conj(a) b */
__device__ __forceinline__ float2 filter_bin(const slab &x, int64_t h, int64_t bin)
{
    const float2 f = x.bins[(x.filters + h) * x.half() + bin];
    return make_float2(f.x / (float)x.N, f.y / (float)x.N);
}

/* z *= h, a bin of a channel of all sequences a thread. */
__global__ void __launch_bounds__(THREADS) forward_kernel(const __grid_constant__ slab x)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, c = at / x.half(), bin = at % x.half();
    if (c >= x.dc) return;
    const float2 f = filter_bin(x, c / (x.ni * x.a.V), bin);
#pragma unroll 4
    for (int64_t s = 0; s < x.S; s++) {
        float2 *z = x.bins + (s * x.dc + c) * x.half() + bin;
        *z = times(f, *z);
    }
}

/* dy to dz, z to y where it is wanted, and the filter's gradient of a part: a bin of one a thread. */
__global__ void __launch_bounds__(THREADS) backward_kernel(const __grid_constant__ slab x)
{
    let_next();
    await_last();
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, part = at / x.half(), bin = at % x.half();
    if (part >= x.nh * x.ni) return;
    const float2 f = filter_bin(x, part / x.ni, bin);
    float2 sum = make_float2(0.0f, 0.0f);
    for (int64_t s = 0; s < x.S; s++)
#pragma unroll 4
        for (int64_t j = 0; j < x.a.V; j++) {
            float2 *at_z = x.bins + (s * x.dc + part * x.a.V + j) * x.half() + bin, *at_dy = at_z + x.dy * x.half();
            const float2 z = *at_z, dy = *at_dy, both = times_conj(z, dy);
            sum.x += both.x, sum.y += both.y;
            *at_dy = times_conj(f, dy);
            if (x.a.dq) *at_z = times(f, z);
        }
    x.bins[(x.parts + part) * x.half() + bin] = make_float2(sum.x / (float)x.N, sum.y / (float)x.N);
}

/* ---- from channels to rows of tokens ---------------------------------------------------------------------------------------------------------- */

/* out = sum over the other of i and j of channels times `w` (NULL: 1), and what final states hand back. */
struct contraction {
    const void *w, *w0, *handed;
    void *out, *out0;
    int64_t row; /* the channels' first */
};

/* VALUES: a column is an (h, j), whose sum is over i; otherwise an (h, i), over j. A tile of 64 tokens by 64 columns, 8 to a warp. */
template <typename T, bool VALUES>
__device__ __forceinline__ void contract_tile(const slab &x, const contraction &y, int64_t n, int64_t first, int64_t len, int64_t p0, int64_t c0,
                                              float (*tile)[TILE + 1])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t V = x.a.V, columns = x.nh * (VALUES ? V : x.ni), terms = VALUES ? x.ni : V, step = VALUES ? V : 1;
    const int64_t wide = x.a.H * (VALUES ? x.a.K : V);
    float sum[EACH][2] = {};
    int64_t row[EACH], weight[EACH];
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int64_t c = c0 + warp * EACH + r, mine = c < columns ? c : columns - 1, h = mine / (VALUES ? V : x.ni);
        row[r] = y.row + (n - x.n0) * x.dc + (VALUES ? h * x.ni * V + mine % V : mine * V);
        weight[r] = (x.h0 + h) * (VALUES ? x.a.K : V) + (VALUES ? x.i0 : 0);
    }
    for (int64_t term = 0; term < terms; term++) {
        float w[2] = { 1.0f, 1.0f };
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t p = p0 + lane + 32 * half;
                if (p < -x.past || p >= len || !x.N) continue;
                if (y.w && (!r || weight[r] != weight[r - 1])) w[half] = value_at<T>(x, y.w, y.w0, n, first, p, weight[r] + term, wide);
                sum[r][half] = fmaf(w[half], x.time[(row[r] + term * step) * x.N + p + x.past], sum[r][half]);
            }
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) tile[warp * EACH + r][lane + 32 * half] = sum[r][half];
}

template <typename T, bool VALUES>
__global__ void __launch_bounds__(THREADS) contract_kernel(const __grid_constant__ slab x, const __grid_constant__ contraction y)
{
    __shared__ float tile[TILE][TILE + 1];
    let_next();
    await_last();
    const int64_t n = x.n0 + blockIdx.z, first = x.a.cu_seqlens_device[n], len = x.a.cu_seqlens_device[n + 1] - first, lowest = y.out0 ? x.a.R : 0;
    const int64_t p0 = (int64_t)blockIdx.x * TILE - lowest, c0 = (int64_t)blockIdx.y * TILE;
    if (p0 >= len) return;
    contract_tile<T, VALUES>(x, y, n, first, len, p0, c0, tile);
    __syncthreads();
    const int64_t columns = x.nh * (VALUES ? x.a.V : x.ni), wide = (int64_t)x.a.H * (VALUES ? x.a.V : x.a.K);
    const int64_t c = c0 + threadIdx.x % TILE, column = x.h0 * (VALUES ? x.a.V : x.a.K) + (VALUES ? 0 : x.i0) + c;
    const bool goes_on = VALUES && x.i0 > 0, ends = !VALUES || x.i0 + x.ni == x.a.K;
    if (c >= columns) return;
    for (int i = (int)threadIdx.x / TILE; i < TILE; i += THREADS / TILE) {
        const int64_t p = p0 + i, handed = p - (len - x.a.R);
        if (p >= len) break;
        float value = tile[c - c0][i];
        if ((goes_on || !ends) && p >= -x.past && x.N) {
            float *kept = x.kept + (p >= 0 ? first + p : x.a.tokens + n * x.past + p + x.past) * wide + column;
            if (goes_on) value += *kept;
            if (!ends) *kept = value;
        }
        if (!ends) continue;
        if (y.handed && handed >= 0) value += to_float(((const T *)y.handed)[(n * x.a.R + handed) * wide + column]);
        if (p < 0)
            ((T *)y.out0)[((n + 1) * x.a.R + p) * wide + column] = from_float<T>(value);
        else if (y.out)
            ((T *)y.out)[(first + p) * wide + column] = from_float<T>(value);
    }
}

/* dh, and dD, which is that of lag 0: sums of parts. */
__global__ void __launch_bounds__(THREADS) filter_kernel(const __grid_constant__ slab x)
{
    __shared__ float tile[TILE][TILE + 1];
    let_next();
    await_last();
    const int64_t l0 = (int64_t)blockIdx.x * TILE, c0 = (int64_t)blockIdx.y * TILE, column = threadIdx.x % TILE;
    float *dh = (float *)x.a.dh, *dskip = (float *)x.a.dskip;
    for (int c = (int)threadIdx.x / TILE; c < TILE; c += THREADS / TILE) {
        float sum = 0.0f;
        if (c0 + c < x.nh && l0 + column < x.lags)
            for (int64_t i = 0; i < x.ni; i++) sum += x.time[(x.parts + (c0 + c) * x.ni + i) * x.N + l0 + column];
        tile[c][column] = sum;
    }
    __syncthreads();
    const int64_t h = x.h0 + c0 + column;
    if (c0 + column >= x.nh) return;
    for (int i = (int)threadIdx.x / TILE; i < TILE && l0 + i < x.a.L; i += THREADS / TILE) {
        const int64_t at = (l0 + i) * x.a.H + h;
        if (dh) dh[at] = x.begins ? tile[column][i] : dh[at] + tile[column][i];
        if (dskip && l0 + i == 0) dskip[h] = x.begins ? tile[column][i] : dskip[h] + tile[column][i];
    }
}

/* ---- pieces ----------------------------------------------------------------------------------------------------------------------------------- */

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t past_of(const conv_args &a) { return least(a.R, a.L - 1); }
int64_t length_of(const conv_args &a, int64_t n) { return a.cu_seqlens[n + 1] - a.cu_seqlens[n]; }

/* 0: a sequence without tokens. */
int64_t numbers(const conv_args &a, int64_t len, int64_t past)
{
    const int64_t inputs = len + past, need = most(inputs, len + least(a.L, inputs) - 1);
    int64_t N = TILE;
    while (N < need) N *= 2;
    return len ? N : 0;
}

/* So many sequences of one N, from x.n0 on: how many go at once, and of how many heads or i. Numbers of sequences are powers of two, so that plans of
 * transforms are few. */
void cut(slab *x, int64_t sequences)
{
    const conv_args &a = x->a;
    const int64_t rows = x->N ? most(SLAB / x->N, 1) : 1, V = a.V, head = a.K * V;
    x->S = x->ni = x->nh = 1;
    if (head > rows) {
        x->ni = most(least(rows / V, a.K), 1);
    } else {
        const int64_t at_once = least(most(rows / (a.H * head), 8), least(rows / head, MOST_SEQUENCES));
        x->ni = a.K;
        while (x->S * 2 <= least(sequences, at_once)) x->S *= 2;
        const int64_t heads = least(rows / (x->S * head), a.H), pieces = lnt_div_up(a.H, heads), even = lnt_div_up(a.H, pieces);
        x->nh = least(heads >= TILE ? lnt_div_up(even, TILE) * TILE : even, heads);
    }
}

/* Its rows. */
void count_rows(slab *x, bool back)
{
    x->dc = x->nh * x->ni * x->a.V;
    x->dy = x->S * x->dc;
    x->filters = (back ? 2 : 1) * x->dy;
    x->parts = x->filters + (x->a.K > 1 ? x->nh : 0);
    x->rows = back ? x->parts + x->nh * x->ni : x->filters + x->nh;
}

/* Every run of sequences of one N, as many at once as go: f(slab) with n0, N, S, nh, ni, lags. */
template <typename F> void each_run(slab *x, F f)
{
    const conv_args &a = x->a;
    for (int64_t n = 0, end; n < a.sequences; n = end) {
        int64_t longest = 0;
        x->N = numbers(a, length_of(a, n), x->past);
        for (end = n; end < a.sequences && numbers(a, length_of(a, end), x->past) == x->N; end++) longest = most(longest, length_of(a, end));
        x->lags = least(a.L, longest + x->past);
        for (x->n0 = n; x->n0 < end; x->n0 += x->S) {
            cut(x, end - x->n0);
            f(longest);
        }
    }
}

size_t up(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t kept_bytes(const slab &x)
{
    return x.ni < x.a.K ? up((size_t)(x.a.tokens + x.a.sequences * x.past) * (size_t)(x.a.H * x.a.V) * sizeof(float)) : 0;
}
size_t time_bytes(const slab &x) { return up((size_t)(x.rows * x.N) * sizeof(float)); }
size_t bins_bytes(const slab &x) { return up((size_t)(x.rows * x.half()) * sizeof(float2)); }

/* Whether there are states is not known before the call: the more of both. */
size_t bytes_of(const conv_args &a, bool back)
{
    size_t bytes = 0;
    for (int states = 0; states < 2; states++) {
        slab x = {};
        x.a = a, x.past = states ? past_of(a) : 0;
        each_run(&x, [&](int64_t) {
            count_rows(&x, back);
            const size_t need = kept_bytes(x) + time_bytes(x) + bins_bytes(x) + lnt_fft_work(x.N, x.rows);
            if (x.N && need > bytes) bytes = need;
        });
    }
    return bytes;
}

dim3 tiles(int64_t rows, int64_t columns, int64_t third)
{
    return dim3((unsigned)lnt_div_up(rows, TILE), (unsigned)lnt_div_up(columns, TILE), (unsigned)third);
}

/* The rows' transforms, with the filters' behind them. */
template <typename T> void transform(const slab &x, const lnt_cuda *d, bool back)
{
    const conv_args &a = x.a;
    const channels z = { a.k, a.k0, a.v, a.v0 }, dy = { a.q, NULL, a.dout, NULL };
    lnt_launch(d, spread_kernel<T>, tiles(x.N, most(x.dc, x.nh), (back ? 2 : 1) * x.S + 1), THREADS, x, z, dy);
    lnt_fft_forward(d, x.N, x.filters + x.nh, x.time, x.bins, x.work);
}

unsigned blocks_of(int64_t rows, const slab &x) { return (unsigned)lnt_div_up(rows * x.half(), THREADS); }

template <typename T> void forward_slab(const slab &x, const lnt_cuda *d, int64_t longest)
{
    if (!x.N) return;
    transform<T>(x, d, false);
    lnt_launch(d, forward_kernel, blocks_of(x.dc, x), THREADS, x);
    lnt_fft_inverse(d, x.N, x.dy, x.bins, x.time, x.work);
    const contraction o = { x.a.q, NULL, NULL, x.a.o, NULL, 0 };
    lnt_launch(d, contract_kernel<T, true>, tiles(longest, x.nh * x.a.V, x.S), THREADS, x, o);
}

template <typename T> void backward_slab(const slab &x, const lnt_cuda *d, int64_t longest)
{
    const conv_args &a = x.a;
    if (x.N) {
        transform<T>(x, d, true);
        lnt_launch(d, backward_kernel, blocks_of(x.nh * x.ni, x), THREADS, x);
        const int64_t from = a.dq ? 0 : x.dy;
        lnt_fft_inverse(d, x.N, x.rows - from, x.bins + from * x.half(), x.time + from * x.N, x.work);
        if (a.dh || a.dskip) lnt_launch(d, filter_kernel, tiles(a.dh ? a.L : 1, x.nh, 1), THREADS, x);
    }
    auto put = [&](auto *kernel, const contraction &y, int64_t columns) {
        const int64_t rows = longest + (y.out0 ? a.R : 0);
        if (rows && (y.out || y.out0)) lnt_launch(d, kernel, tiles(rows, columns, x.S), THREADS, x, y);
    };
    put(contract_kernel<T, false>, { a.dout, NULL, NULL, x.N && a.dout ? a.dq : NULL, NULL, 0 }, x.nh * x.ni);
    put(contract_kernel<T, false>, { a.v, a.v0, a.dkT, a.dk, a.dk0, x.dy }, x.nh * x.ni);
    put(contract_kernel<T, true>, { a.k, a.k0, a.dvT, a.dv, a.dv0, x.dy }, x.nh * a.V);
}

void put_zeros(void *to, int64_t bytes, const lnt_cuda *d)
{
    if (to) lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(to, 0, (size_t)bytes, d->stream));
}

template <typename T> void put_slabs(const conv_args &a, const lnt_cuda *d, bool back)
{
    slab x = {};
    x.a = a, x.past = a.v0 || a.k0 || (back && (a.dv0 || a.dk0)) ? past_of(a) : 0, x.begins = true;
    each_run(&x, [&](int64_t longest) {
        const int64_t heads = x.nh, each = x.ni;
        x.kept = (float *)a.workspace;
        x.time = (float *)((char *)a.workspace + kept_bytes(x));
        for (x.h0 = 0; x.h0 < a.H; x.h0 += heads)
            for (x.i0 = 0; x.i0 < a.K; x.i0 += each) {
                x.nh = least(heads, a.H - x.h0), x.ni = least(each, a.K - x.i0);
                count_rows(&x, back);
                x.bins = (float2 *)((char *)x.time + time_bytes(x));
                x.work = (char *)x.bins + bins_bytes(x);
                slab y = x;
                y.begins = x.begins && !x.i0;
                back ? backward_slab<T>(y, d, longest) : forward_slab<T>(y, d, longest);
            }
        if (x.N) x.begins = false;
    });
    if (back && !a.dout) put_zeros(a.dq, a.tokens * a.H * a.K * (int64_t)sizeof(T), d);
    if (!back || !x.begins) return; /* no token at all */
    put_zeros(a.dh, a.L * a.H * (int64_t)sizeof(float), d);
    put_zeros(a.dskip, a.H * (int64_t)sizeof(float), d);
}

void put(const conv_args &a, const lnt_device *d, bool back)
{
    LNT_BY_TYPE(a.dtype, T, put_slabs<T>(a, (const lnt_cuda *)d, back));
    if (!back) lnt_longconv_put_states(a, (const lnt_cuda *)d);
}

const char *declines_of(const conv_args &a)
{
    for (int64_t n = 0; n < a.sequences; n++)
        if (numbers(a, length_of(a, n), past_of(a)) > LONGEST) return "sequences of more than two hundred million inputs";
    return NULL;
}

void heads_forward(const void *args, const lnt_device *d) { put(*(const conv_args *)args, d, false); }
void heads_backward(const void *args, const lnt_device *d) { put(*(const conv_args *)args, d, true); }
size_t heads_workspace(const void *args, bool back, int threads) { return bytes_of(*(const conv_args *)args, back); }
const char *heads_declines(const void *args, bool) { return declines_of(*(const conv_args *)args); }

void forward(const void *args, const lnt_device *d) { put(lnt_longconv_as_heads((const lnt_longconv_args *)args), d, false); }
void backward(const void *args, const lnt_device *d) { put(lnt_longconv_as_heads((const lnt_longconv_args *)args), d, true); }
size_t workspace(const void *args, bool back, int threads) { return bytes_of(lnt_longconv_as_heads((const lnt_longconv_args *)args), back); }
const char *declines(const void *args, bool) { return declines_of(lnt_longconv_as_heads((const lnt_longconv_args *)args)); }

} // namespace

extern "C" {
extern const lnt_recur_impl lnt_longconv_fft_cuda, lnt_heads_conv_fft_cuda;
const lnt_recur_impl lnt_longconv_fft_cuda = {
    .name = "fft-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = declines, .workspace = workspace,
    .forward = NULL, .backward = NULL, .put_forward = forward, .put_backward = backward,
};
const lnt_recur_impl lnt_heads_conv_fft_cuda = {
    .name = "fft-cuda", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = heads_declines, .workspace = heads_workspace,
    .forward = NULL, .backward = NULL, .put_forward = heads_forward, .put_backward = heads_backward,
};
}
