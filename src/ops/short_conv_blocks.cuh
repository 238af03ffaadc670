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
 * the d/4 lanes of a warp that have the head's columns. The same floor as a convolution alone. */
#ifndef LNT_OPS_SHORT_CONV_BLOCKS_CUH
#define LNT_OPS_SHORT_CONV_BLOCKS_CUH

#include "ops/short_conv_rows.cuh"

/* ---- forward ------------------------------------------------------------------------------------------------------------------------------ */

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

#endif
