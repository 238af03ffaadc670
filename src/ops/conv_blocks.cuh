/* Depthwise causal convolution. A block has a run of rows and 128 units of columns; each thread walks down the rows of its unit with the taps, the
 * last inputs and the last dz in registers, and has the next rows' loads on their way, so that x, dy and dx are touched once but for the SIZE-1 rows
 * at the ends of a run. Floor: forward read x and write y, backward read x and dy and write dx.
 *
 * A convolution of fewer taps than a kernel is compiled for has taps of zero before its own.
 *
 * Together with the L2 norm of its heads (d = 4 .. 128 columns, a power of two), what is between them stays in registers: with c = act(z) of one
 * row and head, r = (sum c^2 + eps)^-1/2 and y = c r, backward has dc = r dy - c r^3 sum(dy c), then dz = dc act'(z) as before. The sums go over
 * the d/4 lanes of a warp that have the head's columns. The same floor as a convolution alone. */
#ifndef LNT_OPS_CONV_BLOCKS_CUH
#define LNT_OPS_CONV_BLOCKS_CUH

#include "device/persistent.cuh"
#include "ops/short_conv.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
}

enum { CONV_THREADS = 128, CONV_FORWARD_ROWS = 64, CONV_FORWARD_BLOCKS = 1024, CONV_BACKWARD_BLOCKS = 128, CONV_BACKWARD_ROWS = 16 };
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
    int size, act, parts, rows; /* parts: blocks side by side; rows of a block */
    int lanes;        /* of a head, with its norm */
    float eps;
    bool add;
};

/* Where a thread is: its first column, and its sequence. */
struct conv_place {
    int64_t c, seq, begin, end; /* rows begin .. end-1 */
};

__device__ __forceinline__ void enter(const conv_args &a, conv_place &p, int64_t seq)
{
    p.seq = seq, p.begin = a.cut.cu[seq], p.end = a.cut.cu[seq + 1];
}

/* The inputs of the rows before row r: window[j] is row r - SIZE + 1 + j; before the sequence's beginning, of its state or zero. */
template <class P, int SIZE>
__device__ __forceinline__ void load_window(const conv_args &a, const conv_place &p, int64_t r, float (&window)[SIZE][P::U])
{
#pragma unroll
    for (int j = 0; j + 1 < SIZE; j++) {
        const int64_t row = r - SIZE + 1 + j, old = row - p.begin + a.size - 1; /* old: row of the state */
#pragma unroll
        for (int u = 0; u < P::U; u++) window[j][u] = 0.0f;
        if (row >= p.begin)
            get<P>(window[j], a.x, row * a.ld_x + p.c);
        else if (a.state && old >= 0)
            get_weights(window[j], (const float *)(a.state + p.seq * a.stride) + old * a.cols + p.c);
    }
}

/* window[SIZE-1] = x; the others move up. */
template <int SIZE, int U> __device__ __forceinline__ void shift(float (&window)[SIZE][U])
{
#pragma unroll
    for (int j = 0; j + 1 < SIZE; j++)
#pragma unroll
        for (int u = 0; u < U; u++) window[j][u] = window[j + 1][u];
}

/* The bias, of convolutions alone; zero without one. */
template <int NORM, int U> __device__ __forceinline__ void load_bias(const float *bias, int64_t c, float (&b)[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) b[u] = 0.0f;
    if (NORM == NO_NORM && bias) get_weights(b, bias + c);
}
template <int NORM, int U> __device__ __forceinline__ void add_bias(float (&z)[U], const float (&b)[U])
{
    if constexpr (NORM == NO_NORM)
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

template <bool SILU, int U> __device__ __forceinline__ void activate(float (&z)[U], int act)
{
    if constexpr (SILU)
        gate_all(z, LNT_SILU);
    else
        gate_all(z, act);
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------------------ */

/* The unit of columns c of the rows r .. r+AHEAD-1, zero from row `end` on. */
template <class P, int AHEAD>
__device__ __forceinline__ void load_rows(lnt_view x, int64_t r, int64_t end, int64_t ld, int64_t c, lnt_raw<P> (&out)[AHEAD])
{
    const int64_t at = r * ld + c;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) out[i] = r + i < end ? fetch<P>(x, at + i * ld) : no_unit<P>();
}

/* ---- with the norm of heads ---------------------------------------------------------------------------------------------------------------- */

/* Four sums at once. Over all lanes: a half of the warp takes two, a quarter one, and every lane fetches all four: 10 shuffles
 * in place of 20. */
template <int LANES> __device__ __forceinline__ void four_sums(float (&v)[4], int lanes)
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
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __shfl_sync(0xffffffffu, s, 8 * i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = head_sum<LANES>(v[i], lanes);
    }
}

template <class P, int SIZE, bool SILU, int NORM>
__device__ __forceinline__ void forward_row(const conv_args &a, const float (&w)[SIZE][P::U], const float (&b)[P::U], float (&window)[SIZE][P::U],
                                            const lnt_raw<P> &x, int64_t at)
{
    float z[P::U];
    widen<P>(window[SIZE - 1], x, a.x.f32);
    convolve(w, window, z);
    add_bias<NORM>(z, b);
    activate<SILU>(z, a.act);
    if constexpr (NORM) {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < P::U; u++) s += z[u] * z[u];
        const float r = rsqrtf(head_sum<NORM>(s, a.lanes) + a.eps);
#pragma unroll
        for (int u = 0; u < P::U; u++) z[u] *= r;
    }
    put<P>(a.y, at, z);
    shift(window);
}

/* Four rows of one sequence with the norm of their heads, whose sums go side by side. */
template <class P, int NORM>
__device__ __forceinline__ void forward_four(const conv_args &a, const float (&w)[4][P::U], float (&window)[4][P::U], const lnt_raw<P> (&x)[4],
                                             int64_t at)
{
    float z[4][P::U], r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        widen<P>(window[3], x[i], a.x.f32);
        convolve(w, window, z[i]);
        gate_all(z[i], LNT_SILU);
        r[i] = 0.0f;
#pragma unroll
        for (int u = 0; u < P::U; u++) r[i] += z[i][u] * z[i][u];
        shift(window);
    }
    four_sums<NORM>(r, a.lanes);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r[i] = rsqrtf(r[i] + a.eps);
#pragma unroll
        for (int u = 0; u < P::U; u++) z[i][u] *= r[i];
        put<P>(a.y, at + i * a.cols, z[i]);
    }
}

/* STEP: a block's rows are those of one sequence, of few tokens, and its state moves on; otherwise a fixed number of rows. */
template <class P, int SIZE, int AHEAD, bool SILU, bool STEP, int NORM, class Work>
__device__ __forceinline__ void forward_block(const conv_args &a, int64_t block, int thread, const Work &work)
{
    constexpr int U = P::U;
    conv_place p;
    work.begin();
    p.c = (block % a.parts * CONV_THREADS + thread) * U;
    if (p.c >= a.cols) return;
    float w[SIZE][U], b[U], window[SIZE][U];
    load_taps(a.w, a.size, p.c, w);
    load_bias<NORM>(a.bias, p.c, b);
    if constexpr (STEP) enter(a, p, block / a.parts); /* no kernel writes what it reads */
    work.wait();
    int64_t r0, r1;
    if constexpr (STEP) {
        r0 = p.begin, r1 = p.end;
    } else {
        r0 = block / a.parts * a.rows, r1 = min(a.cut.tokens, r0 + a.rows);
        enter(a, p, sequence_at(a.cut, r0));
    }
    load_window<P, SIZE>(a, p, r0, window);
    lnt_raw<P> now[AHEAD], next[AHEAD];
    load_rows<P>(a.x, r0, r1, a.ld_x, p.c, next);
    for (int64_t r = r0; r < r1; r += AHEAD) {
        const int64_t at = r * a.cols + p.c;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) now[i] = next[i];
        load_rows<P>(a.x, r + AHEAD, r1, a.ld_x, p.c, next);
        if (r + AHEAD <= min(r1, p.end)) { /* nothing has to be looked at */
            if constexpr (NORM && AHEAD == 4) {
                forward_four<P, NORM>(a, w, window, now, at);
            } else {
#pragma unroll
                for (int i = 0; i < AHEAD; i++) forward_row<P, SIZE, SILU, NORM>(a, w, b, window, now[i], at + i * a.cols);
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (r + i >= r1) break;
            if (!STEP && r + i == p.end) {
                do enter(a, p, p.seq + 1);
                while (p.end == r + i);
                load_window<P, SIZE>(a, p, r + i, window);
            }
            forward_row<P, SIZE, SILU, NORM>(a, w, b, window, now[i], at + i * a.cols);
        }
    }
    if constexpr (STEP) {
        float *state = (float *)(a.state + p.seq * a.stride) + p.c;
#pragma unroll
        for (int j = 0; j + 1 < SIZE; j++)
            if (j >= SIZE - a.size) put<P>(view_on(state), (j - (SIZE - a.size)) * a.cols, window[j]);
    }
}

/* Steps of several convolutions at once: up to 4 taps, SiLU, with the norm of their heads (lanes above 0) or without. */
struct conv_group {
    conv_args a[LNT_CONV_GROUP];
    unsigned first[LNT_CONV_GROUP]; /* of its blocks */
    int count;
};

/* Block b of them, by a thread of CONV_THREADS. */
template <class Work> __device__ __forceinline__ void conv_steps_block(const conv_group &g, int64_t b, int thread, const Work &work)
{
    int i = 0;
    while (i + 1 < g.count && b >= g.first[i + 1]) i++;
    const conv_args &a = g.a[i];
    const int64_t block = b - g.first[i];
    if (a.lanes)
        forward_block<any4, 4, 1, true, true, ANY_LANES>(a, block, thread, work);
    else
        forward_block<any4, 4, 1, true, true, NO_NORM>(a, block, thread, work);
}

/* As a piece of a recorded step: two blocks side by side. */
struct conv_piece {
    conv_group group;
    int blocks;
};

#endif
