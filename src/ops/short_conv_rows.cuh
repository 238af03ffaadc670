/* What a thread of the convolution holds of its rows and how they come, in both directions (short_conv_blocks.cuh). */
#ifndef LNT_OPS_SHORT_CONV_ROWS_CUH
#define LNT_OPS_SHORT_CONV_ROWS_CUH

#include "ops/short_conv.cuh"

enum { CONV_THREADS = 128 };

struct conv_args {
    lnt_view x, y, dy, dx;
    const float *w;   /* [cols, size] */
    const float *bias;/* [cols] or NULL */
    float *part;      /* backward: [blocks, size, cols], NULL: dw is not wanted */
    float *part_bias; /* the same of the bias, [blocks, cols] */
    const char *state;/* NULL: none; sequence n's [size-1, cols] at state + n stride */
    int64_t stride;
    lnt_cut cut;
    int64_t cols, ld_x, ld_dx; /* ld: from a row to the next, where that is of a slice */
    int64_t step_x, step_y, step_dx; /* the same in bytes, of x; y and dy; dx */
    int size, act, parts, rows; /* parts: blocks side by side; rows of a block */
    int lanes;        /* of a head, with its norm */
    float eps;
    bool add;
};

/* Where a thread is: its first column; its first row, from which rows are counted; and its sequence, rows begin .. end-1, at most FAR away. */
enum { FAR = 1 << 30 };
struct conv_place {
    int64_t c, first, seq;
    int begin, end;
};

__device__ __forceinline__ void enter(const conv_args &a, conv_place &p, int64_t seq)
{
    p.seq = seq;
    p.begin = (int)max(a.cut.cu[seq] - p.first, (int64_t)-FAR), p.end = (int)min(a.cut.cu[seq + 1] - p.first, (int64_t)FAR);
}

/* The input of row `row`, which is one of the SIZE - 1 before p.begin or later; before the sequence's beginning, of its state or zero. */
template <class P> __device__ __forceinline__ void load_before(const conv_args &a, const conv_place &p, int row, float (&x)[P::U])
{
    const int old = row - p.begin + a.size - 1; /* row of the state */
#pragma unroll
    for (int u = 0; u < P::U; u++) x[u] = 0.0f;
    if (row >= p.begin)
        get<P>(x, a.x, (p.first + row) * a.ld_x + p.c);
    else if (a.state && old >= 0)
        get_weights(x, (const float *)(a.state + p.seq * a.stride) + old * a.cols + p.c);
}

/* The inputs of the rows before row r: window[j] is row r - SIZE + 1 + j. */
template <class P, int SIZE>
__device__ __forceinline__ void load_window(const conv_args &a, const conv_place &p, int r, float (&window)[SIZE][P::U])
{
#pragma unroll
    for (int j = 0; j + 1 < SIZE; j++) load_before<P>(a, p, r - SIZE + 1 + j, window[j]);
}

/* window[SIZE-1] = x; the others move up. */
template <int SIZE, int U> __device__ __forceinline__ void shift(float (&window)[SIZE][U])
{
#pragma unroll
    for (int j = 0; j + 1 < SIZE; j++)
#pragma unroll
        for (int u = 0; u < U; u++) window[j][u] = window[j + 1][u];
}

template <int SIZE, int U> __device__ __forceinline__ void clear(float (&x)[SIZE][U])
{
#pragma unroll
    for (int j = 0; j < SIZE; j++)
#pragma unroll
        for (int u = 0; u < U; u++) x[j][u] = 0.0f;
}

/* How a kernel of the way back has its activation: any by its own slope; SiLU as at the head of short_conv_blocks.cuh; in bf16 by tanh. */
enum silu { NO_SILU, SILU, TANH_SILU };

/* What SiLU's taps and bias are multiplied by, and its own products of sums by dz. */
template <silu S> __device__ __forceinline__ float scale_of() { return S == SILU ? -(float)LNT_LOG2E : S == TANH_SILU ? 0.5f : 1.0f; }

template <silu S, int SIZE, int U> __device__ __forceinline__ void load_scaled(const conv_args &a, int64_t c, float (&w)[SIZE][U])
{
    load_taps(a.w, a.size, c, w);
#pragma unroll
    for (int j = 0; j < SIZE; j++)
#pragma unroll
        for (int u = 0; u < U; u++) w[j][u] *= scale_of<S>();
}

/* The bias, of convolutions alone; zero without one. */
template <silu S, int NORM, int U> __device__ __forceinline__ void load_bias(const float *bias, int64_t c, float (&b)[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) b[u] = 0.0f;
    if (NORM != BIASED || !bias) return;
    get_weights(b, bias + c);
#pragma unroll
    for (int u = 0; u < U; u++) b[u] *= scale_of<S>();
}

template <int NORM, int U> __device__ __forceinline__ void add_bias(float (&z)[U], const float (&b)[U])
{
    if constexpr (NORM == BIASED)
#pragma unroll
        for (int u = 0; u < U; u++) z[u] += b[u];
}

template <int SIZE, int U> __device__ __forceinline__ void convolve(const float (&w)[SIZE][U], const float (&window)[SIZE][U], float (&z)[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        z[u] = w[0][u] * window[0][u];
#pragma unroll
        for (int j = 1; j < SIZE; j++) z[u] += w[j][u] * window[j][u];
    }
}

/* x comes: its share of the SIZE results from its own on, in the order in which `convolve` adds. sums[j]: of the result j rows on, what came before;
 * z: the first, complete. REVERSED: taps the other way, by which dz becomes dx. */
template <bool REVERSED = false, int SIZE, int U>
__device__ __forceinline__ void feed(const float (&w)[SIZE][U], const float (&x)[U], float (&sums)[SIZE - 1][U], float (&z)[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        z[u] = sums[0][u] + w[REVERSED ? 0 : SIZE - 1][u] * x[u];
#pragma unroll
        for (int j = 1; j + 1 < SIZE; j++) sums[j - 1][u] = sums[j][u] + w[REVERSED ? j : SIZE - 1 - j][u] * x[u];
        sums[SIZE - 2][u] = w[REVERSED ? SIZE - 1 : 0][u] * x[u];
    }
}

/* The sums that the rows before row r leave. */
template <class P, int SIZE>
__device__ __forceinline__ void feed_before(const conv_args &a, const conv_place &p, int r, const float (&w)[SIZE][P::U],
                                            float (&sums)[SIZE - 1][P::U])
{
    clear(sums);
#pragma unroll(SIZE <= 4 ? SIZE : 1)
    for (int j = 1; j < SIZE; j++) {
        float x[P::U], none[P::U];
        load_before<P>(a, p, r - SIZE + j, x);
        feed(w, x, sums, none);
    }
}

/* SiLU of z = k of that, as at the head of short_conv_blocks.cuh; s: the sigmoid over k. */
template <int U> __device__ __forceinline__ void scaled_silu(float (&z)[U], float (&s)[U])
{
    constexpr float K = -(float)LNT_LOG2E;
#pragma unroll
    for (int u = 0; u < U; u++) {
        s[u] = fast_inverse(fast_exp2(z[u]) * K + K);
        z[u] *= s[u];
    }
}

/* tanh(x) by the special-function unit, within 2^-11 of itself. */
__device__ __forceinline__ float fast_tanh(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* z becomes act(z), slope its derivative; SiLU's over k, and by tanh less 1. one: 1/k, the sigmoid of what is large. */
template <silu S, int U> __device__ __forceinline__ void activate_slopes(float (&z)[U], float (&slope)[U], int act, float one)
{
    if constexpr (S == TANH_SILU) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float t = fast_tanh(z[u]);
            slope[u] = t + z[u] * (1.0f - t * t);
            z[u] += z[u] * t;
        }
    } else if constexpr (S == SILU) {
        scaled_silu(z, slope);
#pragma unroll
        for (int u = 0; u < U; u++) slope[u] += z[u] * (one - slope[u]);
    } else {
        gate_slopes(z, slope, act);
    }
}

/* A slope of those times x. */
template <silu S> __device__ __forceinline__ float times(float slope, float x) { return S == TANH_SILU ? x + slope * x : slope * x; }

/* The thread's unit of the rows r .. r+AHEAD-1, zero from row `end` on. */
template <class P, int AHEAD>
__device__ __forceinline__ void load_rows(lnt_view x, const conv_place &p, int r, int end, int64_t ld, lnt_raw<P> (&out)[AHEAD])
{
    const int64_t at = (p.first + r) * ld + p.c;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) out[i] = r + i < end ? fetch<P>(x, at + i * ld) : no_unit<P>();
}

/* The rows of a tensor from one on, which a thread walks down by a pointer: while no end of a run or sequence is near, that is all there is to work
 * out for a row, and the registers that a row leaves take one to come. */
template <class P> struct row_walk {
    lnt_view v;
    int64_t step; /* bytes from row to row: as the host has made them, for they are added as they are */
    __device__ __forceinline__ row_walk(lnt_view x, int64_t bytes, const conv_place &p, int row) : v(x), step(bytes)
    {
        v.p += (p.first + row) * bytes + p.c * (P::HALF || !v.f32 ? 2 : 4);
    }
    __device__ __forceinline__ lnt_raw<P> load()
    {
        const lnt_raw<P> x = fetch<P>(v, 0);
        v.p += step;
        return x;
    }
    __device__ __forceinline__ void store(const float (&x)[P::U])
    {
        put<P>(v, 0, x);
        v.p += step;
    }
};

/* map(sum, which) of four sums at once. Over all lanes: a half of the warp takes two, a quarter one, and every lane fetches all four: 10 shuffles
 * in place of 20, and one map in place of four. */
template <int LANES, class Map> __device__ __forceinline__ void four_sums(float (&v)[4], int lanes, const Map &map)
{
    if constexpr (LANES == ALL_LANES) {
        const bool upper = threadIdx.x & 16, odd_quarter = threadIdx.x & 8;
        float a = upper ? v[2] : v[0], b = upper ? v[3] : v[1];
        a += __shfl_xor_sync(0xffffffffu, upper ? v[0] : v[2], 16);
        b += __shfl_xor_sync(0xffffffffu, upper ? v[1] : v[3], 16);
        float s = odd_quarter ? b : a;
        s += __shfl_xor_sync(0xffffffffu, odd_quarter ? a : b, 8);
#pragma unroll
        for (int o = 4; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
        s = map(s, odd_quarter);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __shfl_sync(0xffffffffu, s, 8 * i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = map(head_sum<LANES>(v[i], lanes), i & 1);
    }
}

#endif
