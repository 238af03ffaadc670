/* What the row kernels on a GPU share: typed accesses of several elements, functions, sequences, and sums over tokens.
 * Only *_cuda.cu files of ops/ include this, and steps of whole layers.
 *
 * A kernel works in units of U neighbouring elements of a row, and is compiled for
 *
 *   half8   every tensor bf16, rows of a multiple of 8 elements, 16-byte accesses
 *   any4    tensors of either type (looked at when it runs), rows of a multiple of 4: 16 bytes of float32, 8 of bf16
 *   any1    anything
 *
 * and some for half4, where the registers of half8 are too many. */
#ifndef LNT_OPS_ROWS_CUH
#define LNT_OPS_ROWS_CUH

#include "device/functions.cuh"

extern "C" {
#include "ops/kernels.h"
#include "ops/ops.h"
}

/* A tensor inside a kernel; p == NULL: absent. */
struct lnt_view {
    char *p;
    bool f32;
};

static inline lnt_view view_of(const lnt_tensor *t) { return {(char *)t->data, t->dtype == LINNET_F32}; }
__host__ __device__ inline lnt_view view_on(float *p) { return {(char *)p, true}; }

/* ---- units ------------------------------------------------------------------------------------------------------------------------ */

template <int ELEMENTS, bool ALL_HALF> struct lnt_unit {
    static constexpr int U = ELEMENTS;
    static constexpr bool HALF = ALL_HALF;
    static constexpr int WORDS = ALL_HALF ? ELEMENTS / 2 : ELEMENTS;
};
using half8 = lnt_unit<8, true>;
using half4 = lnt_unit<4, true>;
using any4 = lnt_unit<4, false>;
using any1 = lnt_unit<1, false>;

/* Elements a unit of these tensors can have (8, 4 or 1) when they are read in rows of d elements (0: from end to end). */
static inline int unit_of(int64_t d, const lnt_tensor *const *tensors, int n)
{
    bool half = true, aligned = true;
    for (int i = 0; i < n; i++) {
        if (!tensors[i]->data) continue;
        half = half && tensors[i]->dtype == LINNET_BF16;
        aligned = aligned && (uintptr_t)tensors[i]->data % 16 == 0;
    }
    if (!aligned || d % 4) return 1;
    return half && d % 8 == 0 ? 8 : 4;
}

/* The statement with P for the unit. */
#define LNT_BY_UNIT(unit, P, ...)                                                                                                  \
    do {                                                                                                                           \
        if ((unit) == 8) {                                                                                                         \
            using P = half8;                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else if ((unit) == 4) {                                                                                                  \
            using P = any4;                                                                                                        \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            using P = any1;                                                                                                        \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    } while (0)

/* A unit as it was loaded: loads of several units are put before the first is looked at. */
template <class P> struct lnt_raw {
    uint32_t w[P::WORDS];
};

template <int WORDS> struct alignas(WORDS * 4) lnt_words {
    uint32_t w[WORDS];
};

/* Elements i .. i+U-1. */
template <class P> __device__ __forceinline__ lnt_raw<P> fetch(lnt_view v, int64_t i)
{
    lnt_raw<P> r;
    if constexpr (P::HALF) {
        const auto q = *(const lnt_words<P::WORDS> *)(v.p + 2 * i);
#pragma unroll
        for (int j = 0; j < P::WORDS; j++) r.w[j] = q.w[j];
    } else if constexpr (P::U == 4) {
        if (v.f32) {
            const auto q = *(const lnt_words<4> *)(v.p + 4 * i);
#pragma unroll
            for (int j = 0; j < 4; j++) r.w[j] = q.w[j];
        } else {
            const auto q = *(const lnt_words<2> *)(v.p + 2 * i);
            r.w[0] = q.w[0], r.w[1] = q.w[1];
            r.w[2] = r.w[3] = 0;
        }
    } else {
        r.w[0] = v.f32 ? *(const uint32_t *)(v.p + 4 * i) : *(const uint16_t *)(v.p + 2 * i);
    }
    return r;
}

template <class P> __device__ __forceinline__ lnt_raw<P> no_unit()
{
    lnt_raw<P> r;
#pragma unroll
    for (int j = 0; j < P::WORDS; j++) r.w[j] = 0;
    return r;
}

__device__ __forceinline__ float low_half(uint32_t w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_half(uint32_t w) { return __uint_as_float(w & 0xffff0000u); }

template <class P> __device__ __forceinline__ void widen(float (&x)[P::U], const lnt_raw<P> &r, bool f32)
{
    if constexpr (P::HALF) {
#pragma unroll
        for (int j = 0; j < P::WORDS; j++) x[2 * j] = low_half(r.w[j]), x[2 * j + 1] = high_half(r.w[j]);
    } else if constexpr (P::U == 4) {
        x[0] = f32 ? __uint_as_float(r.w[0]) : low_half(r.w[0]);
        x[1] = f32 ? __uint_as_float(r.w[1]) : high_half(r.w[0]);
        x[2] = f32 ? __uint_as_float(r.w[2]) : low_half(r.w[1]);
        x[3] = f32 ? __uint_as_float(r.w[3]) : high_half(r.w[1]);
    } else {
        x[0] = f32 ? __uint_as_float(r.w[0]) : low_half(r.w[0]);
    }
}

template <class P> __device__ __forceinline__ void get(float (&x)[P::U], lnt_view v, int64_t i) { widen<P>(x, fetch<P>(v, i), v.f32); }

__device__ __forceinline__ uint32_t two_halves(float low, float high)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&h;
}

/* A unit as it will be stored, rounded to its type. */
template <class P> __device__ __forceinline__ lnt_raw<P> unit_from(const float (&x)[P::U], bool f32)
{
    lnt_raw<P> r;
    if constexpr (P::HALF) {
#pragma unroll
        for (int j = 0; j < P::WORDS; j++) r.w[j] = two_halves(x[2 * j], x[2 * j + 1]);
    } else if constexpr (P::U == 4) {
        r.w[0] = f32 ? __float_as_uint(x[0]) : two_halves(x[0], x[1]);
        r.w[1] = f32 ? __float_as_uint(x[1]) : two_halves(x[2], x[3]);
        r.w[2] = __float_as_uint(x[2]), r.w[3] = __float_as_uint(x[3]);
    } else {
        r.w[0] = f32 ? __float_as_uint(x[0]) : __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
    }
    return r;
}

template <class P> __device__ __forceinline__ void put_raw(lnt_view v, int64_t i, const lnt_raw<P> &r)
{
    if constexpr (P::HALF) {
        lnt_words<P::WORDS> q;
#pragma unroll
        for (int j = 0; j < P::WORDS; j++) q.w[j] = r.w[j];
        *(lnt_words<P::WORDS> *)(v.p + 2 * i) = q;
    } else if constexpr (P::U == 4) {
        if (v.f32)
            *(uint4 *)(v.p + 4 * i) = make_uint4(r.w[0], r.w[1], r.w[2], r.w[3]);
        else
            *(uint2 *)(v.p + 2 * i) = make_uint2(r.w[0], r.w[1]);
    } else {
        if (v.f32)
            *(uint32_t *)(v.p + 4 * i) = r.w[0];
        else
            *(uint16_t *)(v.p + 2 * i) = (uint16_t)r.w[0];
    }
}

template <class P> __device__ __forceinline__ void put(lnt_view v, int64_t i, const float (&x)[P::U]) { put_raw<P>(v, i, unit_from<P>(x, v.f32)); }

/* Store, or add to what is there. */
template <class P> __device__ __forceinline__ void put_sum(lnt_view v, int64_t i, const float (&x)[P::U], bool add)
{
    if (!add) return put<P>(v, i, x);
    float y[P::U];
    get<P>(y, v, i);
#pragma unroll
    for (int u = 0; u < P::U; u++) y[u] += x[u];
    put<P>(v, i, y);
}

/* U parameters from w on. */
template <int U> __device__ __forceinline__ void get_weights(float (&x)[U], const float *w)
{
    if constexpr (U % 4 == 0) {
#pragma unroll
        for (int q = 0; q < U / 4; q++) {
            const float4 f = ((const float4 *)w)[q];
            x[4 * q] = f.x, x[4 * q + 1] = f.y, x[4 * q + 2] = f.z, x[4 * q + 3] = f.w;
        }
    } else {
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = w[u];
    }
}

/* ---- functions ---------------------------------------------------------------------------------------------------------------------- */

/* The activations up to LNT_TANH: what gates of norms and convolutions are compiled for. Their registers are counted: with all activations a
 * gated norm spilled eleven more. */
template <int U> __device__ __forceinline__ void gate_all(float (&x)[U], int act)
{
#define LNT_EACH(expression)                                                                                                       \
    _Pragma("unroll") for (int u = 0; u < U; u++) x[u] = (expression)
    switch (act) {
    case LNT_SILU: LNT_EACH(x[u] * sigmoid_of(x[u])); break;
    case LNT_SIGMOID: LNT_EACH(sigmoid_of(x[u])); break;
    case LNT_RELU: LNT_EACH(x[u] < 0.0f ? 0.0f : x[u]); break; /* NaN stays */
    case LNT_ELU1: LNT_EACH(x[u] > 0.0f ? x[u] + 1.0f : expf(x[u])); break;
    case LNT_LOG_SIGMOID: LNT_EACH(x[u] != x[u] ? x[u] : -softplus_of(-x[u])); break;
    case LNT_TANH: LNT_EACH(tanhf(x[u])); break;
    default: break;
    }
}

/* x becomes act(x), slope its derivative. */
template <int U> __device__ __forceinline__ void gate_slopes(float (&x)[U], float (&slope)[U], int act)
{
    switch (act) {
    case LNT_SILU:
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float s = sigmoid_of(x[u]);
            x[u] *= s;
            slope[u] = s + x[u] * (1.0f - s);
        }
        return;
    case LNT_SIGMOID:
        gate_all(x, LNT_SIGMOID);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = x[u] * (1.0f - x[u]);
        return;
    case LNT_RELU:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = x[u] > 0.0f ? 1.0f : 0.0f;
        gate_all(x, LNT_RELU);
        return;
    case LNT_ELU1:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = x[u] > 0.0f ? 1.0f : expf(x[u]);
        gate_all(x, LNT_ELU1);
        return;
    case LNT_LOG_SIGMOID:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = sigmoid_of(-x[u]);
        gate_all(x, LNT_LOG_SIGMOID);
        return;
    case LNT_TANH:
        gate_all(x, LNT_TANH);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = 1.0f - x[u] * x[u];
        return;
    default:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = 1.0f;
    }
}

/* Phi(x), the normal distribution, by erfc, which keeps its relative accuracy where Phi is small. */
__device__ __forceinline__ float normal_of(float x) { return 0.5f * erfcf(-0.707106781f * x); }
__device__ __forceinline__ float gelu_gate_of(float x) { return sigmoid_of(1.59576912f * x * (1.0f + 0.044715f * x * x)); }

/* All activations. */
template <int U> __device__ __forceinline__ void act_all(float (&x)[U], int act)
{
    switch (act) {
    case LNT_GELU: LNT_EACH(x[u] * normal_of(x[u])); break;
    case LNT_GELU_TANH: LNT_EACH(x[u] * gelu_gate_of(x[u])); break;
    case LNT_SQUARED_RELU: LNT_EACH(x[u] < 0.0f ? 0.0f : x[u] * x[u]); break;
    case LNT_EXP: LNT_EACH(expf(x[u])); break;
    case LNT_SOFTPLUS: LNT_EACH(x[u] != x[u] ? x[u] : softplus_of(x[u])); break;
    case LNT_ONE_MINUS_EXP: LNT_EACH(-expm1f(x[u])); break;
    case LNT_SQRT: LNT_EACH(sqrtf(x[u])); break;
    case LNT_RECIPROCAL: LNT_EACH(1.0f / x[u]); break;
    default: gate_all(x, act);
    }
#undef LNT_EACH
}

template <int U> __device__ __forceinline__ void slope_all(float (&x)[U], float (&slope)[U], int act)
{
    switch (act) {
    case LNT_GELU:
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float phi = normal_of(x[u]);
            slope[u] = phi + 0.398942280f * x[u] * expf(-0.5f * x[u] * x[u]);
            x[u] *= phi;
        }
        return;
    case LNT_GELU_TANH: /* near: rows.h */
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float s = gelu_gate_of(x[u]), near = x[u] > 20.0f ? 20.0f : x[u] < -20.0f ? -20.0f : x[u];
            slope[u] = s + near * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * near * near);
            x[u] *= s;
        }
        return;
    case LNT_SQUARED_RELU:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = x[u] > 0.0f ? 2.0f * x[u] : 0.0f;
        act_all(x, LNT_SQUARED_RELU);
        return;
    case LNT_EXP:
        act_all(x, LNT_EXP);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = x[u];
        return;
    case LNT_SOFTPLUS:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = sigmoid_of(x[u]);
        act_all(x, LNT_SOFTPLUS);
        return;
    case LNT_ONE_MINUS_EXP:
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = -expf(x[u]);
        act_all(x, LNT_ONE_MINUS_EXP);
        return;
    case LNT_SQRT:
        act_all(x, LNT_SQRT);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = 0.5f / x[u];
        return;
    case LNT_RECIPROCAL:
        act_all(x, LNT_RECIPROCAL);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] = -x[u] * x[u];
        return;
    default: gate_slopes(x, slope, act);
    }
}

/* ---- sequences ---------------------------------------------------------------------------------------------------------------------- */

struct lnt_cut {
    const int64_t *cu; /* device, [n_seq+1] */
    int64_t n_seq, tokens;
};

static inline lnt_cut cut_of(const lnt_call *k) { return {k->cu_device, k->n_seq, k->tokens}; }

/* The sequence of row r < tokens: cu[n] <= r < cu[n+1]. Equal sequences are found with one look. */
__device__ __forceinline__ int64_t sequence_at(const lnt_cut &c, int64_t r)
{
    const int64_t guess = r * c.n_seq / c.tokens;
    if (c.cu[guess] <= r && r < c.cu[guess + 1]) return guess;
    int64_t low = 0, high = c.n_seq;
    while (high - low > 1) {
        const int64_t mid = low + (high - low) / 2;
        if (c.cu[mid] <= r)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- element by element --------------------------------------------------------------------------------------------------------------- */

/* F has constants IN and OUT and a call (in[IN][U], out[OUT][U], index of the first element), of any U. */
template <class F> struct lnt_point_args {
    lnt_view in[F::IN], out[F::OUT];
    bool add[F::OUT];
    int64_t n;
    F f;
};

enum { LNT_POINT_THREADS = 256, LNT_POINT_UNITS = 4 }; /* four units of every input are on their way before the first is used */

template <class P, class F> __device__ __forceinline__ void point_out(const lnt_point_args<F> &a, int64_t i, const float (&in)[F::IN][P::U])
{
    float out[F::OUT][P::U];
    a.f(in, out, i);
#pragma unroll
    for (int j = 0; j < F::OUT; j++)
        if (a.out[j].p) put_sum<P>(a.out[j], i, out[j], a.add[j]);
}

template <class P, class F> __global__ void __launch_bounds__(LNT_POINT_THREADS) point_kernel(const __grid_constant__ lnt_point_args<F> a)
{
    let_next();
    await_last();
    const int64_t first = (int64_t)blockIdx.x * (LNT_POINT_THREADS * LNT_POINT_UNITS) + threadIdx.x, units = a.n / P::U;
    lnt_raw<P> raw[LNT_POINT_UNITS][F::IN];
    float in[F::IN][P::U];
#pragma unroll
    for (int b = 0; b < LNT_POINT_UNITS; b++) {
        const int64_t unit = first + b * LNT_POINT_THREADS;
        if (unit >= units) continue;
#pragma unroll
        for (int j = 0; j < F::IN; j++) raw[b][j] = fetch<P>(a.in[j], unit * P::U);
    }
#pragma unroll
    for (int b = 0; b < LNT_POINT_UNITS; b++) {
        const int64_t unit = first + b * LNT_POINT_THREADS;
        if (unit >= units) continue;
#pragma unroll
        for (int j = 0; j < F::IN; j++) widen<P>(in[j], raw[b][j], a.in[j].f32);
        point_out<P>(a, unit * P::U, in);
    }
    if (P::U > 1 && blockIdx.x == 0 && units * P::U + threadIdx.x < a.n) {
        const int64_t i = units * P::U + threadIdx.x;
        float one[F::IN][1];
#pragma unroll
        for (int j = 0; j < F::IN; j++) get<any1>(one[j], a.in[j], i);
        point_out<any1>(a, i, one);
    }
}

template <class F>
static void point_run(lnt_ctx *c, const F &f, int64_t n, const lnt_tensor *const (&in)[F::IN], const lnt_tensor *const (&out)[F::OUT],
                      const bool *add)
{
    if (n <= 0) return;
    const lnt_tensor *all[F::IN + F::OUT];
    lnt_point_args<F> a;
    a.n = n, a.f = f;
    for (int j = 0; j < F::IN; j++) a.in[j] = view_of(all[j] = in[j]);
    for (int j = 0; j < F::OUT; j++) a.out[j] = view_of(all[F::IN + j] = out[j]), a.add[j] = add && add[j];
    const int unit = unit_of(0, all, F::IN + F::OUT);
    const int64_t units = n / unit < 1 ? 1 : lnt_div_up(n / unit, LNT_POINT_THREADS * LNT_POINT_UNITS);
    LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(c), point_kernel<P, F>, (unsigned)units, LNT_POINT_THREADS, a)));
}

/* ---- row by row: tensors with leading dimensions, and one row for all ------------------------------------------------------------------- */

/* A tensor's rows; ld 0: its one row is all of them. */
struct lnt_strided {
    lnt_view v;
    int64_t ld;
};
static inline lnt_strided strided(const lnt_tensor *t, bool one = false) { return {view_of(t), one ? 0 : t->ld}; }

/* F as of point_kernel, but for the index. */
template <class F> struct lnt_row_args {
    lnt_strided in[F::IN], out[F::OUT];
    bool add[F::OUT];
    int64_t rows, cols;
    F f;
};

enum { LNT_ROW_THREADS = 128, LNT_ROW_ROWS = 4 };

template <class P, class F> __global__ void __launch_bounds__(LNT_ROW_THREADS) row_kernel(const __grid_constant__ lnt_row_args<F> a)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LNT_ROW_THREADS + threadIdx.x) * P::U;
    if (c >= a.cols) return;
    const int64_t first = (int64_t)blockIdx.x * LNT_ROW_ROWS;
    lnt_raw<P> raw[LNT_ROW_ROWS][F::IN]; /* all rows are on their way before the first is used */
#pragma unroll
    for (int i = 0; i < LNT_ROW_ROWS; i++) {
        if (first + i >= a.rows) continue;
#pragma unroll
        for (int j = 0; j < F::IN; j++) raw[i][j] = a.in[j].v.p ? fetch<P>(a.in[j].v, (first + i) * a.in[j].ld + c) : no_unit<P>();
    }
#pragma unroll
    for (int i = 0; i < LNT_ROW_ROWS; i++) {
        const int64_t r = first + i;
        if (r >= a.rows) return;
        float in[F::IN][P::U], out[F::OUT][P::U];
#pragma unroll
        for (int j = 0; j < F::IN; j++) widen<P>(in[j], raw[i][j], a.in[j].v.f32);
        a.f(in, out);
#pragma unroll
        for (int j = 0; j < F::OUT; j++)
            if (a.out[j].v.p) put_sum<P>(a.out[j].v, r * a.out[j].ld + c, out[j], a.add[j]);
    }
}

/* one: bit j says that input j has one row for all. */
template <class F>
static void row_run(lnt_ctx *c, const F &f, int64_t rows, int64_t cols, const lnt_tensor *const (&in)[F::IN], unsigned one,
                    const lnt_tensor *const (&out)[F::OUT], const bool *add)
{
    if (rows <= 0) return;
    const lnt_tensor *all[F::IN + F::OUT];
    lnt_row_args<F> a;
    int64_t sizes = cols; /* a multiple of a unit if all of them are */
    for (int j = 0; j < F::IN; j++) a.in[j] = strided(all[j] = in[j], one >> j & 1), sizes |= in[j]->data ? in[j]->ld : 0;
    for (int j = 0; j < F::OUT; j++) a.out[j] = strided(all[F::IN + j] = out[j]), a.add[j] = add[j], sizes |= out[j]->data ? out[j]->ld : 0;
    a.rows = rows, a.cols = cols, a.f = f;
    const int unit = unit_of(sizes & 7 ? sizes & 7 : 8, all, F::IN + F::OUT);
    const dim3 blocks((unsigned)lnt_div_up(rows, LNT_ROW_ROWS), (unsigned)lnt_div_up(cols, (int64_t)LNT_ROW_THREADS * unit));
    LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(c), row_kernel<P, F>, blocks, LNT_ROW_THREADS, a)));
}

/* ---- sums over tokens ------------------------------------------------------------------------------------------------------------------ */

/* grad[(i mod cols) step + i / cols] += sum over blocks, in a fixed order, of part[blocks, n]. A block of threads has 32 sums; its 16 warps take
 * neighbouring shares of the blocks. */
enum { LNT_SUM_WARPS = 16 };

static __device__ __forceinline__ void add_blocks_of(float *grad, const float *part, int blocks, int64_t n, int64_t cols, int step)
{
    __shared__ float share[LNT_SUM_WARPS][32];
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    const int warp = (int)threadIdx.x / 32, each = (blocks + LNT_SUM_WARPS - 1) / LNT_SUM_WARPS, end = min(blocks, (warp + 1) * each);
    float s = 0.0f;
    if (i < n) {
#pragma unroll 8
        for (int b = warp * each; b < end; b++) s += part[b * n + i];
    }
    share[warp][threadIdx.x % 32] = s;
    __syncthreads();
    if (warp || i >= n) return;
    for (int w = 1; w < LNT_SUM_WARPS; w++) s += share[w][threadIdx.x];
    grad[i % cols * step + i / cols] += s;
}

static __global__ void __launch_bounds__(32 * LNT_SUM_WARPS) add_blocks_kernel(float *grad, const float *part, int blocks, int64_t n, int64_t cols,
                                                                               int step)
{
    add_blocks_of(grad, part, blocks, n, cols, step);
}

static inline void add_blocks(lnt_ctx *c, float *grad, const float *part, int64_t blocks, int64_t n, int64_t cols, int step)
{
    lnt_launch(lnt_cuda_of(c), add_blocks_kernel, (unsigned)lnt_div_up(n, 32), 32 * (int)LNT_SUM_WARPS, grad, part, (int)blocks, n, cols, step);
}

/* Blocks that share `rows`: about `wanted`, and no more than the workspace has room for. */
static inline int64_t lnt_row_blocks(int64_t rows, int64_t wanted)
{
    const int64_t most = lnt_cuda_sum_blocks(rows);
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

/* Sums over the rows of F's OUT numbers (f.row<P>(out, row, first column)) at every column: a warp has 32 units of columns, a block's eight warps
 * rows side by side, and adds its warps' sums in order. part: [OUT][blocks, cols]. */
template <class P, class F> __global__ void __launch_bounds__(256) column_kernel(const __grid_constant__ F f, float *part, int64_t rows, int64_t cols,
                                                                                  int64_t each)
{
    __shared__ float share[F::OUT][8][32 * P::U];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t first = (int64_t)blockIdx.y * 32 * P::U, c = first + lane * P::U, r0 = (int64_t)blockIdx.x * each, r1 = min(rows, r0 + each);
    float s[F::OUT][P::U] = {};
    if (c < cols) {
#pragma unroll 4
        for (int64_t r = r0 + warp; r < r1; r += 8) {
            float x[F::OUT][P::U];
            f.template row<P>(x, r, c);
#pragma unroll
            for (int o = 0; o < F::OUT; o++)
#pragma unroll
                for (int u = 0; u < P::U; u++) s[o][u] += x[o][u];
        }
    }
#pragma unroll
    for (int o = 0; o < F::OUT; o++)
#pragma unroll
        for (int u = 0; u < P::U; u++) share[o][warp][u * 32 + lane] = s[o][u];
    __syncthreads();
    const int i = (int)threadIdx.x % (32 * P::U); /* of the block's columns: unit i % 32, element i / 32 */
    const int64_t at = first + i % 32 * P::U + i / 32;
    if ((int)threadIdx.x >= 32 * P::U || at >= cols) return;
#pragma unroll
    for (int o = 0; o < F::OUT; o++) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += share[o][w][i];
        part[((int64_t)o * gridDim.x + blockIdx.x) * cols + at] = sum;
    }
}

/* grad[o] (NULL: not wanted) += the sums; read: the tensors that F reads, row by row; a unit's columns are of one head; work: lnt_sum_bytes of
 * OUT * cols columns. */
template <class F, int N>
static void column_run(lnt_ctx *c, const F &f, int64_t rows, int64_t cols, int64_t heads, const lnt_tensor *const (&read)[N],
                       float *const (&grad)[F::OUT], float *work)
{
    if (rows <= 0) return;
    int64_t sizes = cols / heads; /* a multiple of a unit if all of them are */
    for (int j = 0; j < N; j++) sizes |= read[j]->ld;
    const int unit = unit_of(sizes & 7 ? sizes & 7 : 8, read, N);
    const int64_t wide = lnt_div_up(cols, 32 * unit), each = lnt_div_up(rows, lnt_row_blocks(rows, 2 * LNT_CUDA_SUM_BLOCKS / wide));
    const int64_t blocks = lnt_div_up(rows, each);
    const dim3 grid((unsigned)blocks, (unsigned)wide);
    LNT_BY_UNIT(unit, P, (column_kernel<P, F><<<grid, 256, 0, lnt_stream(c)>>>(f, work, rows, cols, each)));
    for (int o = 0; o < F::OUT; o++)
        if (grad[o]) add_blocks(c, grad[o], work + o * blocks * cols, blocks, cols, cols, 1);
}

#endif
