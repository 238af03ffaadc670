/* The Mesa core token by token: one CTA a value head, for all tokens of the call. Equations: operators.md#mesa. H is symmetric, so H p is a sum over
 * rows for every column.
 *
 * Where K and V are at most W = 64 or 128, H and G are in registers. A warp has 16 columns, a thread 8 of them and W/16 rows. A step has one barrier:
 * the warp's sums for its columns go to shared memory, every thread reads those of its rows, and all that is made of them (p, r, the sums over rows
 * by 4 shuffles, whether to go on) every half of a warp works out for itself, with the same bits. What a step takes is latency, of the sums over rows
 * most of all, one after the other; so that they are one: with w = H p + Lambda p and z = r / m, r' = r - alpha w has
 *   r'.z' = r.z - 2 alpha w.z + alpha^2 w.(w / m)
 * which makes the next direction, and r'.z' itself, which the next alpha takes, is summed beside the next product (Meurant 1987).
 *
 * Wider states are in their memory, each word touched by its own thread alone: a thread has a column and half of the rows; p from shared memory, the
 * parts' sums through it. What belongs to a column (x, r, p) every part computes alike. */
#include "recurrence/mesa/mesa_cuda.cuh"

#include <float.h>

#include "device/block_clock.cuh"
#include "device/mma.cuh"
#include "ops/rows.cuh"
#include "recurrence/decay/decay_cuda.cuh"

extern "C" {
#include "recurrence/mesa/mesa_gpu.h"
}

namespace {

template <typename T> struct step_args {
    const int64_t *cu;
    const T *q, *k, *v;
    const float *g, *beta, *lambda, *h0, *s0;
    lnt_mesa_lambda made; /* lambda in its place, p NULL: not */
    lnt_mesa_conv conv[2];
    lnt_mesa_norm norm;
    float *hT, *sT; /* NULL: not wanted; never NULL where the states do not fit the registers */
    float *x, *taken, *residual;
    T *o;
    int64_t H_stride, G_stride; /* of sequences */
    int Hq, Hv, K, V, steps;
    const int *drawn; /* NULL: steps */
    float tolerance2, absolute;
    int32_t solver;
    bool diagonal, half;
    bool early; /* states may be read before kernels ahead have ended */
};

/* Lambda of column i of all heads. */
template <typename T> __device__ __forceinline__ float lambda_at(const step_args<T> &a, int64_t i)
{
    return a.made.p ? a.made.lower + softplus_of(a.made.p[i]) : a.lambda ? a.lambda[i] : 1.0f;
}

/* ---- states in registers ---------------------------------------------------------------------------------------------------------------- */

/* Numbers first .. first+3 of n. PACKED: as one access. */
template <bool PACKED, typename T> __device__ __forceinline__ void fetch(float *x, const T *p, int first, int n)
{
    float y[4] = {};
    if constexpr (PACKED) {
        if (first < n) load_pack<4>(y, p + first);
    } else {
        for (int j = 0; j < 4; j++)
            if (first + j < n) y[j] = to_float(p[first + j]);
    }
    for (int j = 0; j < 4; j++) x[j] = y[j];
}
__device__ __forceinline__ void leave(float *p, int first, int n, const float *x)
{
    for (int j = 0; j < 4; j++)
        if (first + j < n) p[first + j] = x[j];
}

constexpr int SHARE = 16, COLUMNS = 8; /* threads that share columns; columns of one */

/* Sums over all rows: a thread's own in x, then its neighbours'. */
template <int N> __device__ __forceinline__ void over_rows(float (&x)[N])
{
#pragma unroll
    for (int o = 1; o < SHARE; o *= 2)
#pragma unroll
        for (int n = 0; n < N; n++) x[n] += __shfl_xor_sync(0xffffffffu, x[n], o);
}
template <int ROWS> __device__ __forceinline__ float dot(const float (&x)[ROWS], const float (&y)[ROWS])
{
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++) sum[i % 2] += x[i] * y[i];
    return sum[0] + sum[1];
}

/* A thread's place: rows row(i), columns column(c); the sixteen neighbours that share the columns sum for two of them each, `own`. */
struct step_place {
    int rows0, column0, own;
    __device__ __forceinline__ step_place()
    {
        const int lane = (int)threadIdx.x % 32;
        rows0 = lane % SHARE * 4, column0 = (int)threadIdx.x / 32 * 16 + lane / SHARE * 4;
        own = column(lane / 2 % COLUMNS);
    }
    __device__ __forceinline__ int row(int i) const { return rows0 + i / 4 * (4 * SHARE) + i % 4; }
    __device__ __forceinline__ int column(int c) const { return column0 + c / 4 * 8 + c % 4; } /* a row's 32 bytes are of two threads */
};

/* What threads that share columns have of each, summed, for the column `own`. */
__device__ __forceinline__ float over_columns_share(const float (&sum)[COLUMNS])
{
    float four[4], two[2];
    const bool a = threadIdx.x & 8, b = threadIdx.x & 4, c = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i++) four[i] = (a ? sum[4 + i] : sum[i]) + __shfl_xor_sync(0xffffffffu, a ? sum[i] : sum[4 + i], 8);
#pragma unroll
    for (int i = 0; i < 2; i++) two[i] = (b ? four[2 + i] : four[i]) + __shfl_xor_sync(0xffffffffu, b ? four[i] : four[2 + i], 4);
    const float one = (c ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, c ? two[0] : two[1], 2);
    return one + __shfl_xor_sync(0xffffffffu, one, 1);
}

/* sum_i u_i S_i for the column `own`. */
template <bool HALF, int ROWS> __device__ __forceinline__ float column_sum(const float (&S)[ROWS][COLUMNS], const float (&u)[ROWS])
{
    float sum[COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[c] += HALF ? lnt_to_half(u[i]) * lnt_to_half(S[i][c]) : u[i] * S[i][c];
    return over_columns_share(sum);
}
/* What the threads have of their columns, to all of their rows. `to` is not what the last call had. */
template <int ROWS> __device__ __forceinline__ void publish(float *to, const step_place &at, float x, float (&rows)[ROWS])
{
    if (threadIdx.x % 2 == 0) to[at.own] = x;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ROWS; j += 4) *(float4 *)&rows[j] = *(const float4 *)&to[at.row(j)];
}

/* q and k by their convolutions: a column of either a thread. */
template <typename T, int W> struct step_conv {
    float4 taps;
    float x[3], *window;

    /* What lies there before the kernels ahead have ended. */
    __device__ __forceinline__ void load(const step_args<T> &a, int64_t n, int h)
    {
        const lnt_mesa_conv &f = a.conv[threadIdx.x / W];
        const int c = h * a.K + min((int)threadIdx.x % W, a.K - 1);
        taps = ((const float4 *)f.w)[c];
        window = (float *)((char *)f.window + n * f.stride) + c;
#pragma unroll
        for (int j = 0; j < 3; j++) x[j] = window[(int64_t)j * a.Hq * a.K];
    }
    /* To rows [2][W], q then k; `parts`: a number of each warp. */
    __device__ __forceinline__ void run(const step_args<T> &a, int64_t token, int h, float (*rows)[W], float *parts)
    {
        const int which = (int)threadIdx.x / W, c = (int)threadIdx.x % W, warp = (int)threadIdx.x / 32;
        const int64_t cols = (int64_t)a.Hq * a.K;
        float z = 0.0f, sum = 0.0f;
        if (c < a.K) {
            const float now = to_float(((const T *)a.conv[which].x)[token * cols + h * a.K + c]);
            z = taps.x * x[0] + taps.y * x[1] + taps.z * x[2] + taps.w * now;
            z *= sigmoid_of(z);
            window[0] = x[1], window[cols] = x[2], window[2 * cols] = now;
        }
        const float part = warp_sum(z * z);
        if (threadIdx.x % 32 == 0) parts[warp] = part;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < W / 32; w++) sum += parts[which * (W / 32) + w];
        rows[which][c] = c < a.K ? to_float(from_float<T>(z * rsqrtf(sum + a.conv[which].eps))) : 0.0f;
        __syncthreads();
    }
};

/* The states on their way to the registers and back: H and G lie in shared memory, 16 bytes q of row r at q ^ r / 4 % 8, so that eight threads, who
 * read rows four apart at once, read from all banks. They come and go a row a warp, whole lines, and nobody waits for them but who reads them.
 * Straight to the registers a warp's 16 rows are 16 lines, one after the other (a step of 8 layers 355 us, by this 317). */
template <int W> struct held_states {
    static constexpr int PIECES = W / 4, TURNS = W / 8;
    static constexpr size_t BYTES = 2 * (size_t)W * W * sizeof(float);
    float *held, *H, *G; /* H, G: this thread's next piece in memory */
    int H_step, G_step, left, turns;

    __device__ __forceinline__ float *at(int which, int row, int piece) const
    {
        return held + ((which * W + row) * PIECES + (piece ^ row / 4 % 8)) * 4;
    }
    /* A thread's piece of a turn, of 2 W threads. */
    static __device__ __forceinline__ int row_of(int turn) { return ((int)threadIdx.x + turn * 2 * W) / PIECES; }
    static __device__ __forceinline__ int piece_of() { return (int)threadIdx.x % PIECES; }

    template <typename T> __device__ __forceinline__ void bring(const step_args<T> &a, int64_t H0, int64_t G0) const
    {
        const int piece = piece_of();
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = row_of(turn);
            const bool in_H = a.h0 && row < a.K && 4 * piece < a.K, in_G = a.s0 && row < a.K && 4 * piece < a.V;
            cp_async_16(shared_address(at(0, row, piece)), in_H ? a.h0 + H0 + (int64_t)row * a.K + 4 * piece : (const float *)a.q, in_H);
            cp_async_16(shared_address(at(1, row, piece)), in_G ? a.s0 + G0 + (int64_t)row * a.V + 4 * piece : (const float *)a.q, in_G);
        }
        cp_async_commit();
    }
    /* A row of what a thread has: two pieces of either state, two apart. */
    __device__ __forceinline__ void read(int row, int piece, float (&H)[COLUMNS], float (&G)[COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) {
            *(float4 *)&H[c] = *(const float4 *)at(0, row, piece + c / 2);
            *(float4 *)&G[c] = *(const float4 *)at(1, row, piece + c / 2);
        }
    }
    __device__ __forceinline__ void write(int row, int piece, const float (&H)[COLUMNS], const float (&G)[COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) {
            *(float4 *)at(0, row, piece + c / 2) = make_float4(H[c], H[c + 1], H[c + 2], H[c + 3]);
            *(float4 *)at(1, row, piece + c / 2) = make_float4(G[c], G[c + 1], G[c + 2], G[c + 3]);
        }
    }
    /* Turn after turn what `write` has put there goes to memory, behind a barrier. */
    template <typename T> __device__ __forceinline__ void aim(const step_args<T> &a, int64_t H0, int64_t G0)
    {
        const int row = row_of(0), piece = piece_of();
        left = 0, turns = (a.K - row + 7) / 8;
        H = a.hT && 4 * piece < a.K ? a.hT + H0 + (int64_t)row * a.K + 4 * piece : NULL, H_step = H ? 8 * a.K : 0;
        G = a.sT && 4 * piece < a.V ? a.sT + G0 + (int64_t)row * a.V + 4 * piece : NULL, G_step = G ? 8 * a.V : 0;
    }
    __device__ __forceinline__ bool leaves() const { return left < TURNS; }
    __device__ __forceinline__ void leave()
    {
        const float *from = at(0, row_of(0) + 8 * left, piece_of());
        if (left < turns) {
            if (H) *(float4 *)H = *(const float4 *)from;
            if (G) *(float4 *)G = *(const float4 *)(from + W * W);
        }
        H += H_step, G += G_step, left++;
    }
};

/* The norm of a token's o, of which a thread has that of its own column; `weight` is that column's, its gate in it, rows are what a thread has of
 * every one. */
template <typename T, int ROWS>
__device__ __forceinline__ void put_norm(const step_args<T> &a, const step_place &at, int64_t row, float o, float weight, float mean, float *to,
                                         float (&rows)[ROWS])
{
    const float y = at.own < a.V ? to_float(from_float<T>(o)) : 0.0f;
    float sum[1];
    publish(to, at, y, rows);
    sum[0] = dot(rows, rows);
    over_rows(sum);
    if (threadIdx.x % 2 == 0 && at.own < a.V) ((T *)a.norm.y)[row + at.own] = from_float<T>(y * weight * rsqrtf(fmaf(sum[0], mean, a.norm.eps)));
}

/* Of a sum of W products in float32, its terms up to some times as large as it. */
constexpr float ROUNDING = 1e-5f;

/* All tokens of a value head. PACKED: K and V are multiples of 4, pointers and strides of 16 bytes, and there is shared memory for the states. HALF:
 * a.half, never with PACKED. Long: H, G and the step's numbers are in registers from the first token to the last. */
template <typename T, int W, bool PACKED, bool HALF> __global__ __launch_bounds__(2 * W) void mesa_step(const __grid_constant__ step_args<T> a)
{
    constexpr int ROWS = W / SHARE;
    extern __shared__ __align__(16) float memory[];
    block_clock clock(CLOCK_MESA);
    held_states<W> held = {memory};
    __shared__ __align__(16) float shared[2][W], rows[2][W];
    __shared__ float parts[2 * W / 32];
    const step_place at;
    const int K = a.K, V = a.V, h = (int)(blockIdx.x % a.Hv), hq = (int)((int64_t)h * a.Hq / a.Hv);
    const int64_t n = blockIdx.x / a.Hv, H0 = n * a.H_stride + (int64_t)h * K * K, G0 = n * a.G_stride + (int64_t)h * K * V;
    float H[ROWS][COLUMNS], G[ROWS][COLUMNS];
    if (!a.early) await_last();
    const int64_t begin = a.cu[n], end = a.cu[n + 1];
    if (PACKED) held.bring(a, H0, G0);
#pragma unroll
    for (int i = 0; i < ROWS && !PACKED; i++) {
        const int row = at.row(i);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) {
            fetch<false>(&H[i][c], a.h0 + H0 + (int64_t)row * K, at.column(c), a.h0 && row < K ? K : 0);
            fetch<false>(&G[i][c], a.s0 + G0 + (int64_t)row * V, at.column(c), a.s0 && row < K ? V : 0);
        }
    }
    const float lambda = at.own < K ? lambda_at(a, (int64_t)h * K + at.own) : 1.0f;
    const float weight = a.norm.y && a.norm.w && at.own < V ? a.norm.w[at.own] : 1.0f, mean = 1.0f / (float)V;
    step_conv<T, W> conv;
    if (a.conv[0].x) conv.load(a, n, h);
    let_next(); /* the next product's weights queue up behind the states */
    await_last(), clock.goes_on();
    const lnt_mesa_course course = lnt_mesa_course_now(a);
    int turn = 0;
    if (PACKED) held.aim(a, H0, G0);

    for (int64_t t = begin; t < end; t++) {
        const int64_t token = t * a.Hv + h, row0 = (t * a.Hq + hq) * K;
        const float gate = a.g[token], beta = a.beta[token], less = expm1f(lnt_gate(gate));
        float r[ROWS], p[ROWS], k[COLUMNS], v[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) fetch<PACKED>(&v[c], a.v + token * V, at.column(c), V);
        float mine; /* r of the own column */
        if (a.conv[0].x) {
            conv.run(a, t, h, rows, parts);
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                fetch<true>(&r[i], rows[0], at.row(i), W);
                fetch<true>(&p[i], rows[1], at.row(i), W);
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) fetch<true>(&k[c], rows[1], at.column(c), W);
            mine = rows[0][at.own];
        } else {
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                fetch<PACKED>(&r[i], a.q + row0, at.row(i), K);
                fetch<PACKED>(&p[i], a.k + row0, at.row(i), K); /* the key, until the states have it */
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) fetch<PACKED>(&k[c], a.k + row0, at.column(c), K);
            mine = at.own < K ? to_float(a.q[row0 + at.own]) : 0.0f;
        }
        const float z_o = a.norm.y && a.norm.gate && at.own < V ? to_float(((const T *)a.norm.gate)[token * V + at.own]) : 0.0f;
        const float gated = a.norm.gate ? weight * sigmoid_of(z_o) * (a.norm.silu ? z_o : 1.0f) : weight;
        if (HALF) {
            for (int j = 0; j < COLUMNS; j++) k[j] = lnt_to_half(k[j]);
            for (int i = 0; i < ROWS; i++) r[i] = lnt_to_half(r[i]), p[i] = lnt_to_half(p[i]);
            mine = lnt_to_half(mine);
        }
        const bool last = t + 1 == end;
        if (PACKED && t == begin) {
            cp_async_wait<0>();
            __syncthreads();
        }
        float m[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float kb = beta * p[i];
            if (PACKED && t == begin) held.read(at.row(i), at.column0 / 4, H[i], G[i]);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                H[i][c] = fmaf(kb, k[c], fmaf(less, H[i][c], H[i][c]));
                G[i][c] = fmaf(kb, v[c], fmaf(less, G[i][c], G[i][c]));
            }
            if (PACKED && last) held.write(at.row(i), at.column0 / 4, H[i], G[i]);
        }
        /* the states' diagonal to the columns it belongs to; its least */
        float *buffer = shared[turn ^= 1];
#pragma unroll
        for (int j = 0; j < ROWS; j += 4)
#pragma unroll
            for (int d = 0; d < COLUMNS; d += 4)
                if (at.row(j) == at.column(d))
                    for (int c = 0; c < 4; c++) buffer[at.row(j) + c] = at.row(j) + c < K ? H[j + c][d + c] : FLT_MAX;
        __syncthreads();
        float mine_m = buffer[at.own];
        if (course.solver == LNT_CG_LEVEL) {
            mine_m = FLT_MAX;
            for (int i = 0; i < ROWS; i++) mine_m = lnt_mesa_least(mine_m, buffer[at.row(i)]);
            for (int o = 1; o < SHARE; o *= 2) mine_m = lnt_mesa_least(mine_m, __shfl_xor_sync(0xffffffffu, mine_m, o));
        }
        mine_m = __fdividef(1.0f, mine_m + lambda);
        publish(shared[turn ^= 1], at, mine_m, m);

        float x = 0.0f, w[ROWS], z[ROWS], start[1] = { dot(r, r) };
        if (course.from_guess) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) p[i] = m[i] * r[i];
            x = mine_m * mine;
            const float mine_w = column_sum<HALF>(H, p) + lambda * x;
            publish(shared[turn ^= 1], at, mine_w, w);
            mine -= mine_w;
#pragma unroll
            for (int i = 0; i < ROWS; i++) r[i] -= w[i];
        }
        if (course.solver > LNT_CG_JACOBI) {
            mine_m = 1.0f;
            for (int i = 0; i < ROWS; i++) m[i] = 1.0f;
        }
        float mine_p = mine_m * mine;
#pragma unroll
        for (int i = 0; i < ROWS; i++) p[i] = z[i] = m[i] * r[i];
        over_rows(start);
        const float size = start[0];
        int taken = 0;
        while (taken < course.most) {
            if (PACKED && last && held.leaves()) held.leave(); /* beside a step, which waits for other things */
            float now[2] = { dot(r, z), dot(r, r) };
            over_rows(now);
            const float mine_w = column_sum<HALF>(H, p) + lambda * mine_p;
            if (taken && now[1] <= a.tolerance2 * size) break;
            publish(shared[turn ^= 1], at, mine_w, w);
            float part[ROWS], sums[3];
#pragma unroll
            for (int i = 0; i < ROWS; i++) part[i] = m[i] * w[i];
            sums[0] = dot(p, w), sums[1] = dot(z, w), sums[2] = dot(part, w);
            over_rows(sums);
            const float delta = now[0], curve = sums[0];
            const bool useful = delta > 0 && curve > 0 && curve < INFINITY;
            if (!useful && !(a.absolute > 0 && lnt_mesa_lost(delta, curve) == 0)) {
                const float lost = lnt_mesa_lost(delta, curve); /* 0 but for what is no number */
                x += lost;
                for (int i = 0; i < ROWS; i++) r[i] += lost;
                break;
            }
            const float alpha = __fdividef(delta, curve + a.absolute);
            /* r.z of the step to come, which these sums know to their rounding alone: below that, where a solve has converged, a ratio made of it
             * could all but cancel z, and the next step would be as much too long. Such a step goes along z. */
            const float next = fmaf(alpha, fmaf(alpha, sums[2], -2.0f * sums[1]), delta);
            const float beta_p = next > ROUNDING * delta ? __fdividef(next, delta + a.absolute) : 0.0f;
            x += alpha * mine_p;
            mine -= alpha * mine_w;
            mine_p = mine_m * mine + beta_p * mine_p;
#pragma unroll
            for (int i = 0; i < ROWS; i++) r[i] -= alpha * w[i], z[i] = m[i] * r[i], p[i] = z[i] + beta_p * p[i];
            taken++;
        }
        if (HALF) x = lnt_to_half(x);
        publish(shared[turn ^= 1], at, x, p);
        const float o = column_sum<false>(G, p);
        if (a.norm.y) put_norm(a, at, token * V, o, gated, mean, shared[turn ^= 1], w);
        if (threadIdx.x % 2 == 0) {
            if (at.own < K && a.x) a.x[token * K + at.own] = x;
            if (at.own < V && (!a.norm.y || a.norm.keeps_o)) a.o[token * V + at.own] = from_float<T>(o);
        }
        if (threadIdx.x == 0 && a.taken) a.taken[token] = (float)(taken > course.free_steps ? taken - course.free_steps : 0);
        if (a.residual) {
            float error[1] = { dot(r, r) };
            over_rows(error);
            if (threadIdx.x == 0) a.residual[token] = lnt_mesa_left(error[0], size);
        }
    }
    if (PACKED && begin >= end) cp_async_wait<0>(); /* what a thread brought it leaves */
    while (PACKED && held.leaves()) held.leave();
#pragma unroll
    for (int i = 0; i < ROWS && !PACKED; i++) {
        int row = at.row(i);
        asm volatile("" : "+r"(row)); /* or addresses of all rows are kept through the steps, and spilled */
#pragma unroll
        for (int c = 0; c < COLUMNS && row < K; c += 4) {
            if (a.hT) leave(a.hT + H0 + (int64_t)row * K, at.column(c), K, &H[i][c]);
            if (a.sT) leave(a.sT + G0 + (int64_t)row * V, at.column(c), V, &G[i][c]);
        }
    }
}

/* ---- wider states -------------------------------------------------------------------------------------------------------------------------- */

constexpr int WIDE = 256, PARTS = 2;

struct wide_shared {
    float p[WIDE], k[WIDE], diagonal[WIDE], sums[3][2][WIDE / 32];
    float columns[PARTS][WIDE];
};

/* Sums (N = 1: the smallest if `least`) over the columns, the same bits in all threads. `round` tells apart calls that no barrier parts. */
template <int N> __device__ __forceinline__ void over_columns(wide_shared &s, int round, float (&x)[N], bool least = false)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (least)
            for (int o = 16; o; o >>= 1) x[n] = lnt_mesa_least(x[n], __shfl_xor_sync(0xffffffffu, x[n], o));
        else x[n] = warp_sum(x[n]);
        if (lane == 0 && warp < WIDE / 32) s.sums[round][n][warp] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = s.sums[round][n][0];
        for (int w = 1; w < WIDE / 32; w++) x[n] = least ? lnt_mesa_least(x[n], s.sums[round][n][w]) : x[n] + s.sums[round][n][w];
    }
}

/* sum_i rows_i S[i][column], rows from s.p; begins (rows are there) and ends with barriers inside. */
template <typename F> __device__ __forceinline__ float times(wide_shared &s, int part, int column, int rows, bool half, F S)
{
    constexpr int ROWS = WIDE / PARTS;
    __syncthreads();
    float sum[4] = {};
#pragma unroll 2
    for (int i = 0; i < ROWS; i += 4) {
        if (part * ROWS + i >= rows) break;
        float p[4];
        load_pack<4>(p, &s.p[part * ROWS + i]);
        if (half)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * lnt_to_half(S(i + j));
        else
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * S(i + j);
    }
    s.columns[part][column] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    __syncthreads();
    float all = s.columns[0][column];
#pragma unroll
    for (int i = 1; i < PARTS; i++) all += s.columns[i][column];
    return all;
}

/* All tokens of a value head. Long: a step's numbers are in registers from its beginning to its end. */
template <typename T> __global__ __launch_bounds__(WIDE *PARTS) void mesa_step_wide(const __grid_constant__ step_args<T> a)
{
    constexpr int ROWS = WIDE / PARTS;
    __shared__ __align__(16) wide_shared s;
    const int column = (int)threadIdx.x % WIDE, part = (int)threadIdx.x / WIDE, first = part * ROWS, K = a.K, V = a.V;
    const int h = (int)(blockIdx.x % a.Hv), hq = (int)((int64_t)h * a.Hq / a.Hv);
    const int64_t n = blockIdx.x / a.Hv;
    const int64_t H0 = n * a.H_stride + ((int64_t)h * K + first) * K + column, G0 = n * a.G_stride + ((int64_t)h * K + first) * V + column;
    const bool in_H = column < K, in_G = column < V;
    const int rows = K - first < ROWS ? K - first : ROWS; /* its own; may be negative */
    let_next();
    await_last();
    for (int i = 0; i < rows; i++) {
        if (in_H) a.hT[H0 + (int64_t)i * K] = a.h0 ? a.h0[H0 + (int64_t)i * K] : 0.0f;
        if (in_G) a.sT[G0 + (int64_t)i * V] = a.s0 ? a.s0[G0 + (int64_t)i * V] : 0.0f;
    }
    auto at_H = [&](int i) -> float { return in_H && i < rows ? a.hT[H0 + (int64_t)i * K] : 0.0f; };
    auto at_G = [&](int i) -> float { return in_G && i < rows ? a.sT[G0 + (int64_t)i * V] : 0.0f; };
    const lnt_mesa_course course = lnt_mesa_course_now(a);
    const float lambda = in_H ? lambda_at(a, (int64_t)h * K + column) : 1.0f;

    for (int64_t t = a.cu[n]; t < a.cu[n + 1]; t++) {
        const int64_t token = t * a.Hv + h;
        const float gate = a.g[token], beta = a.beta[token], less = expm1f(lnt_gate(gate));
        float q = in_H ? to_float(a.q[(t * a.Hq + hq) * K + column]) : 0.0f, k = in_H ? to_float(a.k[(t * a.Hq + hq) * K + column]) : 0.0f;
        if (a.half) {
            q = lnt_to_half(q);
            k = lnt_to_half(k);
        }
        const float v = in_G ? to_float(a.v[token * V + column]) : 0.0f;
        __syncthreads(); /* the token before is done with shared memory */
        if (part == 0) s.k[column] = beta * k;
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < ROWS; i++) {
            if (i >= rows) break;
            const float kb = s.k[first + i], y = fmaf(kb, k, fmaf(less, at_H(i), at_H(i))), z = fmaf(kb, v, fmaf(less, at_G(i), at_G(i)));
            if (first + i == column) s.diagonal[column] = y;
            if (in_H) a.hT[H0 + (int64_t)i * K] = y;
            if (in_G) a.sT[G0 + (int64_t)i * V] = z;
        }
        __syncthreads();
        const float diagonal = in_H ? s.diagonal[column] : FLT_MAX;
        float one[1] = { diagonal }, m = diagonal;
        if (course.solver == LNT_CG_LEVEL) {
            over_columns(s, 0, one, true);
            m = one[0];
        }
        m = 1.0f / (m + lambda);

        float x = course.from_guess ? m * q : 0.0f, r = q, start[2] = { q * q, 0.0f };
        if (course.from_guess) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(x) : x;
            r -= times(s, part, column, K, a.half, at_H) + lambda * x;
        }
        if (course.solver > LNT_CG_JACOBI) m = 1.0f;
        float p = m * r;
        start[1] = p * r;
        over_columns(s, 1, start);
        const float size = start[0];
        float delta = start[1];
        int taken = 0;
        while (taken < course.most) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(p) : p;
            const float w = times(s, part, column, K, a.half, at_H) + lambda * p;
            one[0] = p * w;
            over_columns(s, 0, one);
            const bool useful = delta > 0 && one[0] > 0 && one[0] < INFINITY;
            if (!useful && !(a.absolute > 0 && lnt_mesa_lost(delta, one[0]) == 0)) {
                const float lost = lnt_mesa_lost(delta, one[0]); /* 0 but for what is no number */
                x += lost;
                r += lost;
                break;
            }
            const float alpha = delta / (one[0] + a.absolute);
            x += alpha * p;
            r -= alpha * w;
            taken++;
            float next[2] = { r * (m * r), r * r };
            over_columns(s, 1, next);
            if (next[1] <= a.tolerance2 * size) break;
            p = m * r + next[0] / (delta + a.absolute) * p;
            delta = next[0];
        }
        if (a.residual) {
            one[0] = r * r;
            over_columns(s, 2, one);
        }
        if (threadIdx.x == 0 && a.taken) a.taken[token] = (float)(taken > course.free_steps ? taken - course.free_steps : 0);
        if (threadIdx.x == 0 && a.residual) a.residual[token] = lnt_mesa_left(one[0], size);
        if (a.half) x = lnt_to_half(x);
        if (part == 0 && in_H && a.x) a.x[token * K + column] = x;
        if (part == 0) s.p[column] = x;
        const float o = times(s, part, column, K, false, at_G);
        if (part == 0 && in_G) a.o[token * V + column] = from_float<T>(o);
    }
}

bool wide(const lnt_mesa_args *a) { return a->K > LNT_MESA_HELD || a->V > LNT_MESA_HELD; }

template <typename T, int W> void put_held(const step_args<T> &a, bool packed, int64_t heads, lnt_cuda *d)
{
    const size_t bytes = held_states<W>::BYTES;
    packed = packed && !a.half && bytes <= d->base.block_shared;
    const auto kernel = a.half ? mesa_step<T, W, false, true> : packed ? mesa_step<T, W, true, false> : mesa_step<T, W, false, false>;
    lnt_launch_with(d, kernel, (unsigned)heads, 2 * W, packed ? bytes : 0, 1, a);
}

template <typename T>
void put(const lnt_mesa_args *r, const lnt_mesa_lambda &made, const lnt_mesa_around &around, int64_t stride, const lnt_mesa_solve<T, T> &solve,
         lnt_cuda *d)
{
    float *states = (float *)r->workspace;
    const int64_t heads = r->sequences * r->Hv;
    step_args<T> a = {};
    a.cu = r->cu_seqlens_device;
    a.q = (const T *)r->q;
    a.k = (const T *)r->k;
    a.v = (const T *)r->v;
    a.g = (const float *)r->g;
    a.beta = (const float *)r->beta;
    a.lambda = (const float *)r->lambda;
    a.made = made, a.conv[0] = around.conv[0], a.conv[1] = around.conv[1], a.norm = around.norm;
    a.h0 = (const float *)r->h0;
    a.s0 = (const float *)r->s0;
    a.hT = (float *)r->hT;
    a.sT = (float *)r->sT;
    if (wide(r) && !a.hT) a.hT = states;
    if (wide(r) && !a.sT) a.sT = states + heads * r->K * r->K;
    a.x = (float *)r->x;
    a.taken = (float *)r->steps;
    a.residual = (float *)r->residual;
    a.o = (T *)r->o;
    a.H_stride = stride ? stride : (int64_t)r->Hv * r->K * r->K;
    a.G_stride = stride ? stride : (int64_t)r->Hv * r->K * r->V;
    a.Hq = r->Hq;
    a.Hv = r->Hv;
    a.K = r->K;
    a.V = r->V;
    a.steps = solve.steps;
    const uintptr_t places = (uintptr_t)a.q | (uintptr_t)a.k | (uintptr_t)a.v | (uintptr_t)a.h0 | (uintptr_t)a.s0 | (uintptr_t)a.hT | (uintptr_t)a.sT;
    const bool packed = r->K % 4 == 0 && r->V % 4 == 0 && stride % 4 == 0 && places % 16 == 0;
    a.drawn = solve.drawn;
    a.tolerance2 = solve.tolerance2;
    a.absolute = solve.absolute;
    a.solver = solve.solver;
    a.diagonal = solve.diagonal;
    a.half = solve.half;
    a.early = r->states_early;
    if (!heads) return;
    if (wide(r))
        lnt_launch(d, mesa_step_wide<T>, (unsigned)heads, WIDE * PARTS, a);
    else if (r->K > 64 || r->V > 64)
        put_held<T, 128>(a, packed, heads, d);
    else
        put_held<T, 64>(a, packed, heads, d);
}

} // namespace

size_t lnt_mesa_step_bytes(const lnt_mesa_args *a)
{
    return wide(a) ? (size_t)a->sequences * (size_t)a->Hv * (size_t)a->K * (size_t)(a->K + a->V) * sizeof(float) : 0;
}

void lnt_mesa_step_put(const lnt_mesa_args *a, lnt_cuda *d) { LNT_BY_TYPE(a->dtype, T, put<T>(a, {}, {}, 0, lnt_mesa_options_of<T, T>(a), d)); }

extern "C" void lnt_mesa_step_states(const lnt_mesa_args *a, lnt_mesa_lambda made, const lnt_mesa_around *around, int64_t stride, lnt_device *d)
{
    LNT_BY_TYPE(a->dtype, T, put<T>(a, made, *around, stride, lnt_mesa_options_of<T, T>(a), (lnt_cuda *)d));
}
