/* Depthwise causal convolution. A block has a run of rows and 128 units of columns; each thread walks down the rows of its unit with the taps, the
 * last inputs and the last dz in registers, and has the next rows' loads on their way, so that x, dy and dx are touched once but for the SIZE-1 rows
 * at the ends of a run. Floor: forward read x and write y, backward read x and dy and write dx.
 *
 * A convolution of fewer taps than a kernel is compiled for has taps of zero before its own. A row's share of the results behind it is added when the
 * row comes (`feed`): sums move up by being added to, no row does.
 *
 * SiLU's way back saves multiplications by other units: taps and bias are times k = -log2(e), so that e = 2^(k z) takes what is there,
 * and s = 1 / (k + k e) is the sigmoid over k. Then c = (k z) s = silu(z); with 1/k - s, which is the rest of 1 over k, and exactly 0 where e is,
 * s + c (1/k - s) is its slope over k; dz comes out over k, which the taps make good in dx, and one product at the end in dw. In bf16 it
 * has k = 1/2 and t = tanh(z / 2) by one instruction of the special-function unit in place of two: c = z/2 + z/2 t, and twice the slope is
 * 1 + t + z/2 (1 - t^2). t is off by 2^-11 of itself at most, slopes by 6e-5 of their size where z's is 1, by 6e-4 where it is 4; rounding dx to bf16
 * takes 1e-3.
 *
 * Together with the L2 norm of its heads (d = 4 .. 128 columns, a power of two), what is between them stays in registers: with c = act(z) of one
 * row and head, r = (sum c^2 + eps)^-1/2 and y = c r, backward has dc = r dy - c r^3 sum(dy c), then dz = dc act'(z) as before. The sums go over
 * the d/4 lanes of a warp that have the head's columns. The same floor as a convolution alone. Long: both passes, with norms and without, share how
 * rows come and what a thread holds of them. */
#include "ops/short_conv.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
}

enum { CONV_THREADS = 128, CONV_FORWARD_ROWS = 64, CONV_FORWARD_BLOCKS = 1024, CONV_BACKWARD_BLOCKS = 128, CONV_BACKWARD_ROWS = 16 };
/* Blocks of bf16 that an H200 has at once. 4352 columns make 2304 forward and 1152 back, whose last few hundred have the GPU to themselves. */
enum { CONV_FORWARD_TURN = 1056, CONV_BACKWARD_TURN = 528 };

/* Rows of a block, near `rows`, with which the blocks of `parts` columns go in whole turns. */
static int even_rows(int64_t tokens, int64_t parts, int64_t rows, int64_t turn)
{
    const int64_t turns = (lnt_div_up(tokens, rows) * parts + turn / 2) / turn;
    return (int)(turns < 1 || parts > turn ? rows : lnt_div_up(tokens, turns * turn / parts));
}

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

/* How a kernel of the way back has its activation: any by its own slope; SiLU as at the head of this file; in bf16 by tanh. */
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

/* SiLU of z = k of that, as at the head of this file; s: the sigmoid over k. */
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

/* ---- forward ------------------------------------------------------------------------------------------------------------------------------ */

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

/* ---- with the norm of heads ---------------------------------------------------------------------------------------------------------------- */

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

/* A row whose z is complete. */
template <class P, bool SILU, int NORM> __device__ __forceinline__ void forward_row(const conv_args &a, float (&z)[P::U], row_walk<P> &y)
{
    gate_all(z, SILU ? LNT_SILU : a.act);
    if constexpr (NORM > NO_NORM) {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < P::U; u++) s += z[u] * z[u];
        const float r = rsqrtf(head_sum<NORM>(s, a.lanes) + a.eps);
#pragma unroll
        for (int u = 0; u < P::U; u++) z[u] *= r;
    }
    y.store(z);
}

/* Four rows of one sequence with the norm of their heads, whose sums go side by side; refill(): x is free. */
template <class P, int NORM, class Refill>
__device__ __forceinline__ void forward_four(const conv_args &a, const float (&w)[4][P::U], float (&sums)[3][P::U], const lnt_raw<P> (&x)[4],
                                             row_walk<P> &y, const Refill &refill)
{
    float z[4][P::U], r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float wide[P::U];
        widen<P>(wide, x[i], a.x.f32);
        feed(w, wide, sums, z[i]);
        gate_all(z[i], LNT_SILU);
        r[i] = 0.0f;
#pragma unroll
        for (int u = 0; u < P::U; u++) r[i] += z[i][u] * z[i][u];
    }
    refill();
    four_sums<NORM>(r, a.lanes, [&](float s, bool) { return rsqrtf(s + a.eps); });
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int u = 0; u < P::U; u++) z[i][u] *= r[i];
        y.store(z[i]);
    }
}

/* STEP: a block's rows are those of one sequence, of few tokens, and its state moves on; otherwise a fixed number of rows. */
template <class P, int SIZE, int AHEAD, bool SILU, bool STEP, int NORM>
__device__ __forceinline__ void forward_block(const conv_args &a, int64_t block)
{
    constexpr int U = P::U;
    conv_place p;
    let_next();
    p.c = (block % a.parts * CONV_THREADS + threadIdx.x) * U;
    if (p.c >= a.cols) return;
    float w[SIZE][U], b[U], window[STEP ? SIZE : 1][U], sums[SIZE - 1][U]; /* STEP: the window, which is the new state */
    load_taps(a.w, a.size, p.c, w);
    load_bias<NO_SILU, NORM>(a.bias, p.c, b);
    p.first = STEP ? a.cut.cu[block / a.parts] : block / a.parts * a.rows; /* no kernel writes what is read here */
    enter(a, p, STEP ? block / a.parts : sequence_at(a.cut, p.first));
    await_last();
    const int end = STEP ? p.end : (int)min(a.cut.tokens - p.first, (int64_t)a.rows);
    if constexpr (STEP)
        load_window<P, SIZE>(a, p, 0, window);
    else
        feed_before<P>(a, p, 0, w, sums);
    const auto row = [&](const lnt_raw<P> &x, row_walk<P> &y) {
        float z[U], wide[U];
        if constexpr (STEP) {
            widen<P>(window[SIZE - 1], x, a.x.f32);
            convolve(w, window, z);
            shift(window);
        } else {
            widen<P>(wide, x, a.x.f32);
            feed(w, wide, sums, z);
        }
        add_bias<NORM>(z, b);
        forward_row<P, SILU, NORM>(a, z, y);
    };
    lnt_raw<P> now[AHEAD], next[AHEAD];
    load_rows<P>(a.x, p, 0, end, a.ld_x, next);
    for (int r = 0; r < end; r += AHEAD) {
        if constexpr (AHEAD == 4 && !STEP) {
            int pieces = (min(end, p.end) - r) / 4 - 1; /* of four rows, with four more behind them */
            row_walk<P> x(a.x, a.step_x, p, r + 4), y(a.y, a.step_y, p, r);
            if (pieces > 0) r += 4 * pieces;
            for (; pieces > 0; pieces--) {
                if constexpr (NORM > NO_NORM) {
                    forward_four<P, NORM>(a, w, sums, next, y, [&] {
#pragma unroll
                        for (int i = 0; i < 4; i++) next[i] = x.load();
                    });
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        row(next[i], y);
                        next[i] = x.load();
                    }
                }
            }
        }
        row_walk<P> y(a.y, a.step_y, p, r);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) now[i] = next[i];
        load_rows<P>(a.x, p, r + AHEAD, end, a.ld_x, next);
        if (r + AHEAD <= min(end, p.end)) { /* nothing has to be looked at */
            if constexpr (NORM > NO_NORM && AHEAD == 4) {
                forward_four<P, NORM>(a, w, sums, now, y, [] {});
            } else {
#pragma unroll
                for (int i = 0; i < AHEAD; i++) row(now[i], y);
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (r + i >= end) break;
            if constexpr (!STEP) {
                if (r + i == p.end) {
                    do enter(a, p, p.seq + 1);
                    while (p.end == r + i);
                    feed_before<P>(a, p, r + i, w, sums);
                }
            }
            row(now[i], y);
        }
    }
    if constexpr (STEP) {
        float *state = (float *)(a.state + p.seq * a.stride) + p.c;
#pragma unroll
        for (int j = 0; j + 1 < SIZE; j++)
            if (j >= SIZE - a.size) put<P>(view_on(state), (j - (SIZE - a.size)) * a.cols, window[j]);
    }
}

template <class P, int SIZE, int AHEAD, bool SILU, bool STEP, int NORM = BIASED>
__global__ void __launch_bounds__(CONV_THREADS, P::HALF ? 8 : 1) conv_forward(const __grid_constant__ conv_args a)
{
    forward_block<P, SIZE, AHEAD, SILU, STEP, NORM>(a, blockIdx.x);
}

/* Steps of several convolutions at once: up to 4 taps, SiLU, with the norm of their heads (lanes above 0) or without. */
struct conv_group {
    conv_args a[LNT_CONV_GROUP];
    unsigned first[LNT_CONV_GROUP]; /* of its blocks */
    int count;
};

static __global__ void __launch_bounds__(CONV_THREADS) conv_steps(const __grid_constant__ conv_group g)
{
    int i = 0;
    while (i + 1 < g.count && blockIdx.x >= g.first[i + 1]) i++;
    const conv_args &a = g.a[i];
    const int64_t block = blockIdx.x - g.first[i];
    if (a.lanes)
        forward_block<any4, 4, 1, true, true, ANY_LANES>(a, block);
    else
        forward_block<any4, 4, 1, true, true, BIASED>(a, block);
}

/* Each sequence's last inputs shift into its state, a thread each column. */
static __global__ void __launch_bounds__(256) advance_kernel(const __grid_constant__ conv_args a, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const int64_t seq = i / a.cols, c = i % a.cols, begin = a.cut.cu[seq], length = a.cut.cu[seq + 1] - begin;
    float *state = (float *)(a.state + seq * a.stride) + c;
    for (int64_t j = 0; j < a.size - 1 && length; j++) {
        const int64_t from = length - (a.size - 1) + j; /* row of the sequence, < 0: of the old state */
        float x[1];
        if (from < 0)
            x[0] = state[(j + length) * a.cols];
        else
            get<any1>(x, a.x, (begin + from) * a.ld_x + c);
        state[j * a.cols] = x[0];
    }
}

/* The grid of one of `members` alike; blocks side by side and rows of a block go into a. */
template <class P> static unsigned forward_blocks(conv_args &a, bool step, int members = 1)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const int64_t all = a.parts * members, rows = lnt_div_up(a.cut.tokens * all, CONV_FORWARD_BLOCKS);
    a.rows = even_rows(a.cut.tokens, all, rows < CONV_FORWARD_ROWS ? rows : (int64_t)CONV_FORWARD_ROWS, CONV_FORWARD_TURN);
    return (unsigned)(a.parts * (step ? a.cut.n_seq : lnt_div_up(a.cut.tokens, a.rows)));
}

template <class P, int SIZE>
static void forward_run(lnt_ctx *c, conv_args a, bool step)
{
    constexpr int AHEAD = SIZE == 4 ? 4 : 1;
    const bool silu = SIZE == 4 && a.act == LNT_SILU;
    const unsigned blocks = forward_blocks<P>(a, step);
    const lnt_cuda *d = lnt_cuda_of(c);
    if constexpr (!P::HALF) {
        if (step && silu) return lnt_launch(d, conv_forward<P, SIZE, 1, SIZE == 4, true>, blocks, (int)CONV_THREADS, a);
        if (step) return lnt_launch(d, conv_forward<P, SIZE, 1, false, true>, blocks, (int)CONV_THREADS, a);
    }
    if (silu && !a.bias)
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, SIZE == 4, false, SIZE == 4 ? NO_NORM : BIASED>, blocks, (int)CONV_THREADS, a);
    else if (silu)
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, SIZE == 4, false>, blocks, (int)CONV_THREADS, a);
    else
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, false, false>, blocks, (int)CONV_THREADS, a);
}

static conv_args args_of(const lnt_call *k)
{
    const lnt_conv_attr *attr = (const lnt_conv_attr *)k->attr;
    conv_args a = {};
    a.x = view_of(&k->in[0]), a.y = view_of(&k->out[0]), a.dy = view_of(&k->d_out[0]), a.dx = view_of(&k->d_in[0]);
    a.w = k->param[0].master;
    a.bias = attr->bias ? k->param[1].master : NULL;
    a.state = (const char *)k->state, a.stride = k->state_stride;
    a.cut = cut_of(k);
    a.cols = k->in[0].cols, a.ld_x = k->in[0].ld, a.ld_dx = k->d_in[0].data ? k->d_in[0].ld : a.cols;
    a.size = attr->size, a.act = attr->act, a.add = k->accumulate[0];
    a.step_x = a.ld_x * (int64_t)lnt_dtype_size(k->in[0].dtype), a.step_dx = a.ld_dx * (int64_t)lnt_dtype_size(k->d_in[0].dtype);
    a.step_y = a.cols * (int64_t)lnt_dtype_size(k->out[0].dtype);
    return a;
}

/* The unit, given where taps and state lie too. */
static int conv_unit(const conv_args &a, const lnt_tensor *const *tensors, int n)
{
    const bool aligned = ((uintptr_t)a.w | (uintptr_t)a.bias | (uintptr_t)a.state | (uintptr_t)a.stride) % 16 == 0;
    const int64_t sizes = (a.cols | a.ld_x | a.ld_dx) & 7; /* a multiple of a unit if all of them are */
    return aligned && a.size <= 4 ? unit_of(sizes ? sizes : 8, tensors, n) : 1;
}

/* Few tokens a sequence; any of them may still be long. */
static bool is_step(const lnt_call *k) { return k->state && k->tokens <= 4 * k->n_seq; }

/* Each sequence's last inputs into its state, where the kernel before did not. */
static void advance(const lnt_call *k, const conv_args &a)
{
    const int64_t n = k->n_seq * a.cols;
    if (k->state && !is_step(k) && a.size > 1) advance_kernel<<<(unsigned)lnt_div_up(n, 256), 256, 0, lnt_stream(k->c)>>>(a, n);
}

extern "C" linnet_status lnt_short_conv_forward_cuda(const lnt_call *k)
{
    if (k->tokens <= 0) return LINNET_OK;
    const conv_args a = args_of(k);
    const lnt_tensor *const both[2] = {&k->in[0], &k->out[0]};
    const bool step = is_step(k);
    const int unit = conv_unit(a, both, 2);
    if (a.size > 4)
        forward_run<any1, LNT_CONV_MAX>(k->c, a, step);
    else if (unit == 8 && !step)
        forward_run<half4, 4>(k->c, a, false);
    else if (unit >= 4)
        forward_run<any4, 4>(k->c, a, step);
    else
        forward_run<any1, 4>(k->c, a, step);
    advance(k, a);
    return LINNET_OK;
}

/* A pair of a convolution and the L2 norm of its heads, as lnt_conv_norm's `fits` has let through: at most 4 taps, SiLU. */
static linnet_status pair_args(const lnt_call *conv, const lnt_call *norm, conv_args *a, int *unit)
{
    const lnt_tensor *const tensors[4] = {&conv->in[0], &norm->out[0], &norm->d_out[0], &conv->d_in[0]};
    *a = args_of(conv);
    a->y = view_of(&norm->out[0]), a->dy = view_of(&norm->d_out[0]);
    a->step_y = a->cols * (int64_t)lnt_dtype_size(norm->out[0].dtype);
    a->eps = (float)((const lnt_norm_attr *)norm->attr)->eps;
    a->lanes = (int)(norm->in[0].cols / norm->in[0].heads / 4);
    *unit = conv_unit(*a, tensors, 4);
    return *unit >= 4 ? LINNET_OK : lnt_fail(conv->c, LINNET_EINTERNAL, "a convolution with its norm: memory is not aligned");
}

template <class P, bool STEP> static void forward_pair(lnt_ctx *c, conv_args a)
{
    const unsigned blocks = forward_blocks<P>(a, STEP);
    const lnt_cuda *d = lnt_cuda_of(c);
    if (a.lanes == ALL_LANES)
        lnt_launch(d, conv_forward<P, 4, STEP ? 1 : 4, true, STEP, ALL_LANES>, blocks, (int)CONV_THREADS, a);
    else
        lnt_launch(d, conv_forward<P, 4, STEP ? 1 : 4, true, STEP, ANY_LANES>, blocks, (int)CONV_THREADS, a);
}

extern "C" linnet_status lnt_conv_l2norm_forward_cuda(const lnt_call *conv, const lnt_call *norm)
{
    conv_args a;
    int unit;
    if (conv->tokens <= 0) return LINNET_OK;
    LNT_TRY(pair_args(conv, norm, &a, &unit));
    if (is_step(conv))
        forward_pair<any4, true>(conv->c, a);
    else if (unit == 8)
        forward_pair<half4, false>(conv->c, a);
    else
        forward_pair<any4, false>(conv->c, a);
    advance(conv, a);
    return LINNET_OK;
}

/* Whether conv_steps knows the convolution, or the pair, that the first of the calls begins. */
static bool group_member(const lnt_call *k, bool pair, conv_args *a)
{
    int unit;
    const lnt_tensor *const both[2] = {&k->in[0], &k->out[0]};
    if (pair) return pair_args(k, k + 1, a, &unit) == LINNET_OK;
    *a = args_of(k);
    return a->size <= 4 && a->act == LNT_SILU && conv_unit(*a, both, 2) >= 4;
}

extern "C" linnet_status lnt_conv_group_cuda(const lnt_call *calls, int count)
{
    conv_group g = {};
    unsigned blocks = 0;
    bool fits = is_step(calls) && calls->tokens > 0;
    for (int i = 0; i < count && fits; i++) {
        const bool pair = i + 1 < count && calls[i + 1].node->op != calls->node->op;
        conv_args *a = &g.a[g.count];
        fits = group_member(&calls[i], pair, a);
        g.first[g.count++] = blocks;
        blocks += forward_blocks<any4>(*a, true);
        i += pair;
    }
    if (fits) {
        lnt_launch(lnt_cuda_of(calls->c), conv_steps, blocks, (int)CONV_THREADS, g);
        return LINNET_OK;
    }
    if (lnt_conv_side_cuda(calls, count, false)) return LINNET_OK;
    for (int i = 0; i < count; i++) {
        const bool pair = i + 1 < count && calls[i + 1].node->op != calls->node->op;
        LNT_TRY(pair ? lnt_conv_l2norm_forward_cuda(&calls[i], &calls[i + 1]) : lnt_short_conv_forward_cuda(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------------- */

/* What a thread has of a run: taps, the last inputs (row r - SIZE + 1 + j, the newest last), what the last dz leave of the next dx, sums of dw. */
template <int SIZE, int U> struct conv_sums {
    float w[SIZE][U], window[SIZE][U], dx[SIZE - 1][U], dw[SIZE][U];
    float b[U], db[U]; /* where there may be a bias */
    float one;         /* SiLU: 1/k */
};

/* d, the gradient of a normed row, becomes dz; slopes go by the norm's factor. back: that of z. */
template <silu S, int U>
__device__ __forceinline__ void norm_back(float (&d)[U], const float (&z)[U], const float (&slope)[U], float r, float back)
{
#pragma unroll
    for (int u = 0; u < U; u++) d[u] = times<S>(slope[u], r) * (d[u] - z[u] * back);
}

/* A row whose place in dx is `at`: its dz; its share of dw, if it is the run's own; and dx of SIZE - 1 rows before, all of whose dz are
 * there, if that is. */
template <class P, int SIZE, silu S, int NORM>
__device__ __forceinline__ void back_row(const conv_args &a, conv_sums<SIZE, P::U> &s, const lnt_raw<P> &x, const lnt_raw<P> &dy, int64_t at,
                                         bool own, bool complete)
{
    constexpr int U = P::U;
    float z[U], slope[U], d[U], dx[U];
    widen<P>(s.window[SIZE - 1], x, a.x.f32);
    convolve(s.w, s.window, z);
    add_bias<NORM>(z, s.b);
    activate_slopes<S>(z, slope, a.act, s.one);
    widen<P>(d, dy, a.dy.f32);
    if constexpr (NORM > NO_NORM) {
        float cc = 0.0f, dc = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) cc += z[u] * z[u], dc += z[u] * d[u];
        const float r = rsqrtf(head_sum<NORM>(cc, a.lanes) + a.eps);
        norm_back<S>(d, z, slope, r, r * r * head_sum<NORM>(dc, a.lanes));
    } else {
#pragma unroll
        for (int u = 0; u < U; u++) d[u] = times<S>(slope[u], d[u]);
    }
    if (own) {
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < SIZE; j++) s.dw[j][u] += d[u] * s.window[j][u];
            if (NORM == BIASED) s.db[u] += d[u];
        }
    }
    feed<true>(s.w, d, s.dx, dx);
    if (complete && a.dx.p) put_sum<P>(a.dx, at - (SIZE - 1) * a.ld_dx, dx, a.add);
    shift(s.window);
}

/* Two rows of the run's own by SiLU; of the norm of their heads the sums go side by side. dx, of the rows three before, is stored. */
template <class P, silu S, int NORM>
__device__ __forceinline__ void back_two(const conv_args &a, conv_sums<4, P::U> &s, const lnt_raw<P> &x0, const lnt_raw<P> &x1, const lnt_raw<P> &dy0,
                                         const lnt_raw<P> &dy1, row_walk<P> &to)
{
    constexpr int U = P::U;
    float x[5][U], c[2][U], slope[2][U], d[2][U], sum[4] = {}; /* x: rows r-3 .. r+1; sum: of c^2 and of dy c, for each row */
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int u = 0; u < U; u++) x[j][u] = s.window[j][u];
    widen<P>(x[3], x0, a.x.f32), widen<P>(x[4], x1, a.x.f32);
    widen<P>(d[0], dy0, a.dy.f32), widen<P>(d[1], dy1, a.dy.f32);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            c[i][u] = NORM == BIASED ? s.w[0][u] * x[i][u] + s.b[u] : s.w[0][u] * x[i][u];
#pragma unroll
            for (int j = 1; j < 4; j++) c[i][u] += s.w[j][u] * x[i + j][u];
        }
        activate_slopes<S>(c[i], slope[i], LNT_SILU, s.one);
#pragma unroll
        for (int u = 0; u < U; u++) sum[2 * i] += c[i][u] * c[i][u], sum[2 * i + 1] += d[i][u] * c[i][u];
    }
    if constexpr (NORM > NO_NORM) four_sums<NORM>(sum, a.lanes, [&](float s, bool of_dy) { return of_dy ? s : rsqrtf(s + a.eps); });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float dx[U];
        if constexpr (NORM > NO_NORM) {
            norm_back<S>(d[i], c[i], slope[i], sum[2 * i], sum[2 * i] * sum[2 * i] * sum[2 * i + 1]);
        } else {
#pragma unroll
            for (int u = 0; u < U; u++) d[i][u] = times<S>(slope[i][u], d[i][u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int j = 0; j < 4; j++) s.dw[j][u] += d[i][u] * x[i + j][u];
            if (NORM == BIASED) s.db[u] += d[i][u];
        }
        feed<true>(s.w, d[i], s.dx, dx);
        to.store(dx);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int u = 0; u < U; u++) s.window[j][u] = x[j + 2][u];
}

/* Sums of a block, of dz over k, to where they are added. */
template <silu S, int U> __device__ __forceinline__ void put_part(float *part, int64_t i, float (&sums)[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) sums[u] *= scale_of<S>();
    put<lnt_unit<U, false>>(view_on(part), i, sums);
}

template <class P, int SIZE, int AHEAD, silu S, int NORM> __device__ __forceinline__ void backward_block(const conv_args &a, unsigned index)
{
    constexpr int U = P::U;
    const bool stores = a.dx.p && !a.add;
    const int64_t block = index / a.parts;
    conv_place p;
    let_next();
    p.c = ((int64_t)(index % a.parts) * CONV_THREADS + threadIdx.x) * U;
    if (p.c >= a.cols) return;
    conv_sums<SIZE, U> s;
    load_scaled<S>(a, p.c, s.w);
    load_bias<S, NORM>(a.bias, p.c, s.b);
    clear(s.dw);
#pragma unroll
    for (int u = 0; u < U; u++) s.db[u] = 0.0f;
    s.one = fast_inverse(scale_of<S>());
    p.first = block * a.rows;
    enter(a, p, sequence_at(a.cut, p.first)); /* no kernel writes what it reads */
    await_last();
    const int end = (int)min(a.cut.tokens - p.first, (int64_t)a.rows);
    for (int u0 = 0, u1; u0 < end; u0 = u1) { /* the part of each sequence in this block */
        while (p.end <= u0) enter(a, p, p.seq + 1);
        u1 = min(end, p.end);
        const int last = min(p.end, u1 + SIZE - 1), stop = u1 + SIZE - 1;
        load_window<P, SIZE>(a, p, u0, s.window);
        clear(s.dx);
        lnt_raw<P> x[AHEAD], dy[AHEAD], next_x[AHEAD], next_dy[AHEAD];
        load_rows<P>(a.x, p, u0, last, a.ld_x, next_x);
        load_rows<P>(a.dy, p, u0, last, a.cols, next_dy);
        for (int r = u0; r < stop; r += AHEAD) {
            if constexpr (SIZE == 4 && S) {
                int pieces = stores && r > u0 ? (u1 - r) / 4 - 1 : 0; /* of four rows, with four more behind them */
                row_walk<P> of_x(a.x, a.step_x, p, r + 4), of_dy(a.dy, a.step_y, p, r + 4), of_dx(a.dx, a.step_dx, p, r - 3);
                if (pieces > 0) r += 4 * pieces;
                for (; pieces > 0; pieces--) {
#pragma unroll
                    for (int i = 0; i < 4; i += 2) {
                        back_two<P, S, NORM>(a, s, next_x[i], next_x[i + 1], next_dy[i], next_dy[i + 1], of_dx);
#pragma unroll
                        for (int j = i; j < i + 2; j++) next_x[j] = of_x.load(), next_dy[j] = of_dy.load();
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) x[i] = next_x[i], dy[i] = next_dy[i];
            load_rows<P>(a.x, p, r + AHEAD, last, a.ld_x, next_x);
            load_rows<P>(a.dy, p, r + AHEAD, last, a.cols, next_dy);
            if constexpr (SIZE == 4 && S) {
                if (stores && r > u0 && r + 4 <= u1) {
                    row_walk<P> of_dx(a.dx, a.step_dx, p, r - 3);
#pragma unroll
                    for (int i = 0; i < 4; i += 2) back_two<P, S, NORM>(a, s, x[i], x[i + 1], dy[i], dy[i + 1], of_dx);
                    continue;
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (r + i < stop)
                    back_row<P, SIZE, S, NORM>(a, s, x[i], dy[i], (p.first + r + i) * a.ld_dx + p.c, r + i < u1, r + i >= u0 + SIZE - 1);
        }
    }
    if (NORM == BIASED && a.part_bias) put_part<S>(a.part_bias, block * a.cols + p.c, s.db);
    if (!a.part) return;
#pragma unroll
    for (int j = 0; j < SIZE; j++)
        if (j >= SIZE - a.size) put_part<S>(a.part, (block * a.size + j - (SIZE - a.size)) * a.cols + p.c, s.dw[j]);
}

template <class P, int SIZE, int AHEAD, silu S, int NORM>
__global__ void __launch_bounds__(CONV_THREADS, P::HALF ? 4 : 1) conv_backward(const __grid_constant__ conv_args a)
{
    backward_block<P, SIZE, AHEAD, S, NORM>(a, blockIdx.x);
}

template <class P, int SIZE> static constexpr silu SILU_BACK = SIZE != 4 ? NO_SILU : P::HALF ? TANH_SILU : SILU;

template <class P, int SIZE, int AHEAD> static void backward_run(lnt_ctx *c, conv_args a, int64_t blocks)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const unsigned grid = (unsigned)(blocks * a.parts);
    if (SIZE == 4 && a.act == LNT_SILU && !a.bias)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, SILU_BACK<P, SIZE>, SIZE == 4 ? NO_NORM : BIASED>, grid, (int)CONV_THREADS, a);
    else if (SIZE == 4 && a.act == LNT_SILU)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, SILU_BACK<P, SIZE>, BIASED>, grid, (int)CONV_THREADS, a);
    else
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, NO_SILU, BIASED>, grid, (int)CONV_THREADS, a);
}

/* Blocks of rows of one of `members` alike, and where their sums of dw go. */
static int64_t backward_blocks(const lnt_call *k, conv_args &a, int members = 1)
{
    a.rows = (int)lnt_div_up(k->tokens, CONV_BACKWARD_BLOCKS);
    if (a.rows < CONV_BACKWARD_ROWS) a.rows = CONV_BACKWARD_ROWS;
    a.rows = even_rows(k->tokens, lnt_div_up(a.cols, 4 * CONV_THREADS) * members, a.rows, CONV_BACKWARD_TURN);
    const int64_t blocks = lnt_div_up(k->tokens, a.rows);
    a.part = k->param[0].grad ? (float *)k->work : NULL;
    a.part_bias = a.bias && k->param[1].grad ? (float *)k->work + blocks * a.size * a.cols : NULL;
    return blocks;
}

static void add_taps(const lnt_call *k, const conv_args &a, int64_t blocks)
{
    if (a.part) add_blocks(k->c, k->param[0].grad, a.part, blocks, a.size * a.cols, a.cols, a.size);
    if (a.part_bias) add_blocks(k->c, k->param[1].grad, a.part_bias, blocks, a.cols, a.cols, 1);
}

extern "C" linnet_status lnt_short_conv_backward_cuda(const lnt_call *k)
{
    if (k->tokens <= 0) return LINNET_OK;
    conv_args a = args_of(k);
    const lnt_tensor *const tensors[3] = {&k->in[0], &k->d_out[0], &k->d_in[0]};
    const int unit = conv_unit(a, tensors, 3);
    const int64_t blocks = backward_blocks(k, a);
    if (a.size > 4)
        backward_run<any1, LNT_CONV_MAX, 1>(k->c, a, blocks);
    else if (unit == 8)
        backward_run<half4, 4, 4>(k->c, a, blocks);
    else if (unit == 4)
        backward_run<any4, 4, 4>(k->c, a, blocks);
    else
        backward_run<any1, 4, 4>(k->c, a, blocks);
    add_taps(k, a, blocks);
    return LINNET_OK;
}

template <class P> static void backward_pair(lnt_ctx *c, conv_args a, int64_t blocks)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const unsigned grid = (unsigned)(blocks * a.parts);
    if (a.lanes == ALL_LANES)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, 4, 4, SILU_BACK<P, 4>, ALL_LANES>, grid, (int)CONV_THREADS, a);
    else
        lnt_launch(lnt_cuda_of(c), conv_backward<P, 4, 4, SILU_BACK<P, 4>, ANY_LANES>, grid, (int)CONV_THREADS, a);
}

extern "C" linnet_status lnt_conv_l2norm_backward_cuda(const lnt_call *conv, const lnt_call *norm)
{
    conv_args a;
    int unit;
    if (conv->tokens <= 0) return LINNET_OK;
    LNT_TRY(pair_args(conv, norm, &a, &unit));
    const int64_t blocks = backward_blocks(conv, a);
    if (unit == 8)
        backward_pair<half4>(conv->c, a, blocks);
    else
        backward_pair<any4>(conv->c, a, blocks);
    add_taps(conv, a, blocks);
    return LINNET_OK;
}

/* ---- side by side, in training ------------------------------------------------------------------------------------------------------------- */

/* Convolutions alike in bf16, without a bias, some with the norm of their heads, as one kernel each way: those with a norm, which have more to do,
 * have the first blocks, and others begin where those end. a: what all have in common. */
struct conv_member {
    char *x, *y, *dy, *dx;
    const float *w;
    float *part, *grad;
    bool norm;
};
struct conv_side {
    conv_args a;
    conv_member m[LNT_CONV_GROUP];
    unsigned blocks; /* of each */
};

__device__ __forceinline__ conv_args args_of(const conv_side &g, unsigned i)
{
    conv_args a = g.a;
    a.x.p = g.m[i].x, a.y.p = g.m[i].y, a.dy.p = g.m[i].dy, a.dx.p = g.m[i].dx, a.w = g.m[i].w, a.part = g.m[i].part;
    return a;
}

template <int LANES> static __global__ void __launch_bounds__(CONV_THREADS, 8) conv_side_forward(const __grid_constant__ conv_side g)
{
    const unsigned i = blockIdx.x / g.blocks, block = blockIdx.x - i * g.blocks;
    const conv_args a = args_of(g, i);
    if (g.m[i].norm)
        forward_block<half4, 4, 4, true, false, LANES>(a, block);
    else
        forward_block<half4, 4, 4, true, false, NO_NORM>(a, block);
}

template <int LANES> static __global__ void __launch_bounds__(CONV_THREADS, 4) conv_side_backward(const __grid_constant__ conv_side g)
{
    const unsigned i = blockIdx.x / g.blocks, block = blockIdx.x - i * g.blocks;
    const conv_args a = args_of(g, i);
    if (g.m[i].norm)
        backward_block<half4, 4, 4, TANH_SILU, LANES>(a, block);
    else
        backward_block<half4, 4, 4, TANH_SILU, NO_NORM>(a, block);
}

static __global__ void __launch_bounds__(32 * LNT_SUM_WARPS) add_side_kernel(const __grid_constant__ conv_side g, int blocks)
{
    const conv_member &m = g.m[blockIdx.y];
    if (m.part) add_blocks_of(m.grad, m.part, blocks, g.a.size * g.a.cols, g.a.cols, g.a.size);
}

/* The convolution of a call of the group, or of the two of a pair, as a member; false: it is not like those before it. */
static bool join_side(const lnt_call *conv, const lnt_call *norm, bool backward, conv_side *g, int members)
{
    conv_args a;
    int unit;
    const lnt_tensor *const tensors[4] = {&conv->in[0], &conv->out[0], &conv->d_out[0], &conv->d_in[0]};
    if (norm && pair_args(conv, norm, &a, &unit) != LINNET_OK) return false;
    if (!norm) a = args_of(conv), unit = conv_unit(a, tensors, 4);
    if (unit != 8 || a.act != LNT_SILU || a.bias || a.add || a.state || (backward && !(a.dy.p && a.dx.p))) return false;
    if (!members) {
        g->a = a;
    } else {
        conv_args &b = g->a;
        if (a.cols != b.cols || a.ld_x != b.ld_x || a.ld_dx != b.ld_dx || a.size != b.size) return false;
        if (a.lanes && !b.lanes) b.lanes = a.lanes, b.eps = a.eps;
        if (a.lanes && (a.lanes != b.lanes || a.eps != b.eps)) return false;
    }
    g->m[members] = {a.x.p, a.y.p, a.dy.p, a.dx.p, a.w, NULL, conv->param[0].grad, norm != NULL};
    return true;
}

extern "C" bool lnt_conv_side_cuda(const lnt_call *calls, int count, bool backward)
{
    conv_side g = {};
    int members = 0;
    for (int norms = 1; norms >= 0; norms--)
        for (int i = 0; i < count; i++) {
            const lnt_call *first = &calls[i], *second = i + 1 < count ? first + 1 : NULL;
            const bool pair = backward ? first->node->op != &lnt_conv_op : second && second->node->op != &lnt_conv_op;
            if (pair) i++;
            if (pair != norms) continue;
            if (members == LNT_CONV_GROUP) return false;
            if (!join_side(pair && backward ? second : first, !pair ? NULL : backward ? first : second, backward, &g, members++)) return false;
        }
    if (calls->tokens <= 0 || members < 2) return false;
    const lnt_cuda *d = lnt_cuda_of(calls->c);
    if (!backward) {
        g.blocks = forward_blocks<half4>(g.a, false, members);
        lnt_launch(d, g.a.lanes == ALL_LANES ? conv_side_forward<ALL_LANES> : conv_side_forward<ANY_LANES>, g.blocks * members, (int)CONV_THREADS, g);
        return true;
    }
    const int64_t blocks = backward_blocks(calls, g.a, members), n = g.a.size * g.a.cols;
    for (int i = 0; i < members; i++) g.m[i].part = g.m[i].grad ? (float *)calls->work + i * blocks * n : NULL;
    g.a.parts = (int)lnt_div_up(g.a.cols / half4::U, CONV_THREADS);
    g.blocks = (unsigned)blocks * g.a.parts;
    lnt_launch(d, g.a.lanes == ALL_LANES ? conv_side_backward<ALL_LANES> : conv_side_backward<ANY_LANES>, g.blocks * members, (int)CONV_THREADS, g);
    lnt_launch(d, add_side_kernel, dim3((unsigned)lnt_div_up(n, 32), members), 32 * (int)LNT_SUM_WARPS, g, (int)blocks);
    return true;
}
