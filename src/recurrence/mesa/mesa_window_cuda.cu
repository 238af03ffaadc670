/* Mesa over the last w tokens on a GPU, any shape up to K = V = 256, in float32: no sum stands for a window, every product goes over its keys
 * themselves, tiles of 64 of them at a time (operators.md#mesa, "Windows").
 *
 *   F_ts = e^{G_t - G_s} for s in (t - w, t]      H_t p = sum F beta k (k.p)      o_t = sum F beta v (k.x_t)      y_t = sum F beta k (v.do_t)
 *
 * A CTA has rows of one head: forwards and for the solve of y those of tokens t, over keys; then those of keys s, over the tokens that see them,
 *
 *   u = sum F ((do.v - e.k) x - (x.k) e)      dk = beta u      dv = beta sum F (x.k) do      dbeta = k.u + sum F (x.k)(e.k)
 *
 * and dg_i is the sum over t >= i of x.y - e.(H x) at t less beta dbeta at t: of all pairs those remain that pass i. */
#include "recurrence/mesa/mesa_cuda.cuh"

#include <float.h>

#include "recurrence/decay/decay_vector.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

constexpr int THREADS = 256, TILE = 64, PITCH = TILE + 4, WIDEST = 256;

/* A thread has four rows and four columns, and of a tile of keys KEYS of its rows. */
template <int KP> struct shape {
    static constexpr int ACROSS = KP / 4, DOWN = THREADS / ACROSS, ROWS = 4 * DOWN, KEYS = TILE / ACROSS, LD = KP + 4;
};
template <int KP> struct shared_tiles {
    float rows[shape<KP>::ROWS][shape<KP>::LD], tile[TILE][shape<KP>::LD], pairs[shape<KP>::ROWS][PITCH];
    float sums[2][shape<KP>::ROWS][2], beta[TILE];
    lnt_gate_sum row_G[shape<KP>::ROWS], G[TILE];
};
typedef float own[4][4]; /* [row][column] */

struct window_call {
    lnt_mesa_solve<float, float> options;
    const int64_t *cu;
    int64_t N, slots, window;
    int K, V, Hq, Hv;
    const void *q, *k, *v, *d_o;           /* q and k [T,Hq,K], v and do [T,Hv,V] */
    const float *g, *beta, *lambda;        /* [T,Hv] twice; [Hv,K], or of each token [T,Hv,K] */
    bool varies;
    lnt_gate_sum *G;                       /* [T,Hv] sums of gates from the sequence's start */
    float *x;                              /* [T,Hv,K]; NULL: not wanted */
    void *o, *dv;
    float *steps, *residual;
    float *e, *dk, *part, *dB, *strength;  /* [T,Hv,K] twice, [slots,Hv,K], [T,Hv] twice */
    float *dlambda_t, *dbeta, *dg;
};

/* ---- sums of gates, and of their gradients ------------------------------------------------------------------------------------------------- */

__global__ __launch_bounds__(32) void window_gates(const __grid_constant__ window_call p)
{
    const int lane = (int)threadIdx.x, h = (int)(blockIdx.x % p.Hv);
    const int64_t n = blockIdx.x / p.Hv, end = p.cu[n + 1];
    double carry = 0;
    for (int64_t t = p.cu[n]; t < end; t += 32) {
        double upto = p.g && t + lane < end ? lnt_gate(p.g[(t + lane) * p.Hv + h]) : 0.f;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const double before = __shfl_up_sync(~0u, upto, o);
            if (lane >= o) upto += before;
        }
        upto += carry;
        if (t + lane < end) p.G[(t + lane) * p.Hv + h] = lnt_gate_split(upto * LNT_LOG2E);
        carry = __shfl_sync(~0u, upto, 31);
    }
}

/* From the end; no pair passes a gate that is shut. */
__global__ __launch_bounds__(32) void window_gate_gradients(const __grid_constant__ window_call p)
{
    const int lane = (int)threadIdx.x, h = (int)(blockIdx.x % p.Hv);
    const int64_t n = blockIdx.x / p.Hv, begin = p.cu[n];
    double carry = 0;
    for (int64_t last = p.cu[n + 1]; last > begin; last -= 32) { /* lane 0: the last token */
        const int64_t at = (last - 1 - lane) * p.Hv + h;
        const bool real = last - 1 - lane >= begin;
        bool shut = real && lnt_gate_shut(lnt_gate(p.g[at]));
        const bool mine = shut;
        double sum = real && !shut ? (double)p.dB[at] - (double)p.beta[at] * p.strength[at] : 0;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const double before = __shfl_up_sync(~0u, sum, o);
            const bool was = __shfl_up_sync(~0u, (int)shut, o) != 0;
            if (lane >= o && !shut) sum += before, shut = was;
        }
        if (!shut) sum += carry;
        if (real) p.dg[at] = mine ? 0.f : (float)sum;
        carry = __shfl_sync(~0u, sum, 31);
    }
}

/* ---- what a CTA does ----------------------------------------------------------------------------------------------------------------------- */

template <int KP, typename T> struct window_rows {
    using S = shape<KP>;
    static constexpr int ROWS = S::ROWS, KEYS = S::KEYS, LD = S::LD, ACROSS = S::ACROSS;
    const window_call &p;
    shared_tiles<KP> &m;
    const int tid, across, row0, column; /* the thread's place among those of its rows; its first row and column */
    int h, hq, count;                    /* rows that are there */
    int64_t n, slot, begin, end, first;  /* the sequence; its tokens; the rows' first */

    __device__ window_rows(const window_call &p_, shared_tiles<KP> &m_)
        : p(p_), m(m_), tid((int)threadIdx.x), across(tid % ACROSS), row0(tid / ACROSS * 4), column(across * 4)
    {
    }
    /* Rows i of sequence n have slot cu[n] / ROWS + n + i. */
    __device__ bool find()
    {
        h = (int)(blockIdx.x % p.Hv), hq = h / (p.Hv / p.Hq);
        slot = blockIdx.x / p.Hv;
        int64_t above = p.N;
        n = 0;
        while (above - n > 1) {
            const int64_t half = (n + above) / 2;
            (p.cu[half] / ROWS + half <= slot ? n : above) = half;
        }
        begin = p.cu[n], end = p.cu[n + 1], first = begin + (slot - begin / ROWS - n) * ROWS;
        count = (int)min((int64_t)ROWS, end - first);
        if (count <= 0) return false;
        for (int r = tid; r < ROWS; r += THREADS) m.row_G[r] = p.G[(first + min(r, count - 1)) * p.Hv + h];
        return true;
    }

    /* Rows t .. of x [T,heads,width] */
    template <typename E> __device__ void rows_in(float (*to)[LD], int rows, const void *x, int64_t t, int64_t last, int heads, int head, int width)
    {
        for (int i = tid; i < rows * KP; i += THREADS) {
            const int r = i / KP, c = i % KP;
            to[r][c] = x && t + r < last && c < width ? to_float(((const E *)x)[((t + r) * heads + head) * width + c]) : 0.f;
        }
    }
    __device__ void tile_of_k(int64_t t) { rows_in<T>(m.tile, TILE, p.k, t, end, p.Hq, hq, p.K); }
    __device__ void tile_of_v(int64_t t) { rows_in<T>(m.tile, TILE, p.v, t, end, p.Hv, h, p.V); }
    __device__ void scalars_in(int64_t t)
    {
        for (int j = tid; j < TILE; j += THREADS) {
            const int64_t at = min(t + j, end - 1) * p.Hv + h;
            m.G[j] = p.G[at];
            m.beta[j] = t + j < end ? p.beta[at] : 0.f;
        }
    }

    /* of[i][j] = row row0 + i . row across + ACROSS j of the tile */
    __device__ __forceinline__ void dots(float (&of)[4][KEYS])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j++) of[i][j] = 0.f;
#pragma unroll 2
        for (int d = 0; d < KP; d += 4) {
            float x[4][4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) load_pack<4>(x[i], &m.rows[row0 + i][d]);
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                load_pack<4>(y, &m.tile[across + ACROSS * j][d]);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++) of[i][j] = fmaf(x[i][c], y[c], of[i][j]);
            }
        }
    }
    /* to += pairs times the tile, or the squares of its elements */
    template <bool SQUARES = false> __device__ __forceinline__ void add(own &to)
    {
#pragma unroll 2
        for (int j = 0; j < TILE; j += 4) {
            float x[4][4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) load_pack<4>(x[i], &m.pairs[row0 + i][j]);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                load_pack<4>(y, &m.tile[j + k][column]);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++) to[i][c] = fmaf(x[i][k], SQUARES ? y[c] * y[c] : y[c], to[i][c]);
            }
        }
    }
    __device__ __forceinline__ void put_pairs(const float (&of)[4][KEYS])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j++) m.pairs[row0 + i][across + ACROSS * j] = of[i][j];
    }
    /* e^{G_t - G_s} of the earlier token s and the later t, 0 where t does not see s. KEYS_LATER: the tile has t. */
    template <bool KEYS_LATER> __device__ __forceinline__ float seen(int i, int j, int64_t tile) const
    {
        const int64_t row = first + row0 + i, key = tile + across + ACROSS * j, t = KEYS_LATER ? key : row, s = KEYS_LATER ? row : key;
        if (s > t || t - s >= p.window || t >= end) return 0.f;
        const lnt_gate_sum a = m.row_G[row0 + i], b = m.G[across + ACROSS * j];
        return KEYS_LATER ? lnt_gate_between(b, a) : lnt_gate_between(a, b);
    }
    __device__ __forceinline__ void rows_put(const own &x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) store_pack(&m.rows[row0 + i][column], x[i]);
    }
    __device__ __forceinline__ int64_t first_key() const { return max(begin, first - p.window + 1); }
    __device__ __forceinline__ float weight(int i, int j, int64_t tile) const { return seen<false>(i, j, tile) * m.beta[across + ACROSS * j]; }

    /* out = sum F beta (row . left) right over the window, both of them k or v */
    template <bool LEFT_K, bool RIGHT_K> __device__ void over_keys(own &out)
    {
        clear(out);
        for (int64_t t = first_key(); t < first + count; t += TILE) {
            __syncthreads();
            LEFT_K ? tile_of_k(t) : tile_of_v(t);
            scalars_in(t);
            __syncthreads();
            float of[4][KEYS];
            dots(of);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < KEYS; j++) {
                    const float w = weight(i, j, t);
                    of[i][j] = w == 0.f ? 0.f : w * of[i][j]; /* what is not seen may be NaN */
                }
            put_pairs(of);
            if (LEFT_K != RIGHT_K) {
                __syncthreads();
                RIGHT_K ? tile_of_k(t) : tile_of_v(t);
            }
            __syncthreads();
            add(out);
        }
        __syncthreads();
    }
    static __device__ __forceinline__ void clear(own &x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) x[i][c] = 0.f;
    }

    /* Sums over whole rows, the same bits in all their threads. */
    template <int N> __device__ __forceinline__ void row_sums(float (&x)[N][4])
    {
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int o = 1; o < (ACROSS < 32 ? ACROSS : 32); o *= 2) x[k][i] += __shfl_xor_sync(~0u, x[k][i], o);
                if (ACROSS > 32 && tid % 32 == 0) m.sums[k][row0 + i][across / 32] = x[k][i];
            }
        if (ACROSS <= 32) return;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[k][i] = m.sums[k][row0 + i][0] + m.sums[k][row0 + i][1];
        __syncthreads();
    }
    __device__ __forceinline__ void row_least(float (&x)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int o = 1; o < (ACROSS < 32 ? ACROSS : 32); o *= 2) x[i] = lnt_mesa_least(x[i], __shfl_xor_sync(~0u, x[i], o));
            if (ACROSS > 32 && tid % 32 == 0) m.sums[0][row0 + i][across / 32] = x[i];
        }
        if (ACROSS <= 32) return;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = lnt_mesa_least(m.sums[0][row0 + i][0], m.sums[0][row0 + i][1]);
        __syncthreads();
    }

    __device__ __forceinline__ bool there(int i, int c, int width) const { return row0 + i < count && column + c < width; }
    __device__ __forceinline__ int64_t at(int i, int c, int width) const { return ((first + row0 + i) * p.Hv + h) * width + column + c; }
    __device__ __forceinline__ void lambda_in(own &lambda) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                lambda[i][c] = !there(i, c, p.K) ? 1.f : p.lambda[p.varies ? at(i, c, p.K) : (int64_t)h * p.K + column + c];
    }
    __device__ __forceinline__ void own_rows(own &x) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) load_pack<4>(x[i], &m.rows[row0 + i][column]);
    }
    /* w = (H + Lambda) of the rows in `rows` */
    __device__ __forceinline__ void apply(own &w, const own &lambda)
    {
        over_keys<true, true>(w);
        own x;
        own_rows(x);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) w[i][c] = fmaf(lambda[i][c], x[i][c], w[i][c]);
    }
    /* The preconditioner. */
    __device__ void diagonals(own &M, const own &lambda, bool level)
    {
        clear(M);
        for (int64_t t = first_key(); t < first + count; t += TILE) {
            __syncthreads();
            tile_of_k(t);
            scalars_in(t);
            __syncthreads();
            float of[4][KEYS];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < KEYS; j++) of[i][j] = weight(i, j, t);
            put_pairs(of);
            __syncthreads();
            add<true>(M);
        }
        __syncthreads();
        float least[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            least[i] = FLT_MAX;
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (column + c < p.K) least[i] = lnt_mesa_least(least[i], M[i][c]);
        }
        row_least(least);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) M[i][c] = 1.f / ((level ? least[i] : M[i][c]) + lambda[i][c]);
    }

    /* X with (H + Lambda) X = R, which the steps use up; as mesa_rows_cuda.cuh takes them. `tell`: for steps and residual. Long: one iteration. */
    __device__ void solve(own &X, own &R, const own &lambda, bool tell)
    {
        const lnt_mesa_solve<float, float> &a = p.options;
        const lnt_mesa_course course = lnt_mesa_course_now(a);
        own M, W;
        diagonals(M, lambda, course.solver == LNT_CG_LEVEL);
        float both[2][4], one[1][4], size[4], delta[4];
        int taken[4] = {};
        bool live[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            both[0][i] = both[1][i] = 0.f;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                X[i][c] = course.from_guess ? R[i][c] * M[i][c] : 0.f;
                both[0][i] = fmaf(R[i][c], R[i][c], both[0][i]);
            }
        }
        row_sums(both);
#pragma unroll
        for (int i = 0; i < 4; i++) size[i] = both[0][i];
        if (course.from_guess) {
            rows_put(X);
            apply(W, lambda);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) R[i][c] -= W[i][c];
        }
        own P;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            one[0][i] = 0.f;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (course.solver > LNT_CG_JACOBI) M[i][c] = 1.f;
                P[i][c] = M[i][c] * R[i][c];
                one[0][i] = fmaf(P[i][c], R[i][c], one[0][i]);
            }
        }
        row_sums(one);
#pragma unroll
        for (int i = 0; i < 4; i++) delta[i] = one[0][i], live[i] = row0 + i < count;
        for (int step = 0; step < course.most; step++) {
            if (!__syncthreads_or(live[0] || live[1] || live[2] || live[3])) break;
            rows_put(P);
            apply(W, lambda);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                one[0][i] = 0.f;
#pragma unroll
                for (int c = 0; c < 4; c++) one[0][i] = fmaf(P[i][c], W[i][c], one[0][i]);
            }
            row_sums(one);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float curve = one[0][i];
                live[i] = live[i] && (a.absolute > 0 || (delta[i] > 0 && curve > 0));
                const float alpha = (live[i] ? delta[i] / (curve + a.absolute) : 0.f) + lnt_mesa_lost(delta[i], curve);
                taken[i] += live[i];
                both[0][i] = both[1][i] = 0.f;
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    X[i][c] = fmaf(alpha, P[i][c], X[i][c]);
                    R[i][c] = fmaf(-alpha, W[i][c], R[i][c]);
                    both[0][i] = fmaf(R[i][c], M[i][c] * R[i][c], both[0][i]);
                    both[1][i] = fmaf(R[i][c], R[i][c], both[1][i]);
                }
            }
            row_sums(both);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (both[1][i] <= a.tolerance2 * size[i]) live[i] = false;
                const float f = live[i] ? both[0][i] / (delta[i] + a.absolute) : 0.f;
                delta[i] = both[0][i];
#pragma unroll
                for (int c = 0; c < 4; c++) P[i][c] = fmaf(f, P[i][c], M[i][c] * R[i][c]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            one[0][i] = 0.f;
#pragma unroll
            for (int c = 0; c < 4; c++) one[0][i] = fmaf(R[i][c], R[i][c], one[0][i]);
        }
        row_sums(one);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!tell || across || row0 + i >= count) continue;
            const int64_t token = (first + row0 + i) * p.Hv + h;
            if (p.steps) p.steps[token] = (float)(taken[i] > course.free_steps ? taken[i] - course.free_steps : 0);
            if (p.residual) p.residual[token] = lnt_mesa_left(one[0][i], size[i]);
        }
    }
    template <typename E> __device__ __forceinline__ void out(void *to, const own &x, int width) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (to && there(i, c, width)) ((E *)to)[at(i, c, width)] = from_float<E>(x[i][c]);
    }

    __device__ void forwards()
    {
        own X, R, lambda;
        lambda_in(lambda);
        rows_in<T>(m.rows, ROWS, p.q, first, end, p.Hq, hq, p.K);
        __syncthreads();
        own_rows(R);
        solve(X, R, lambda, true);
        out<float>(p.x, X, p.K);
        rows_put(X);
        over_keys<true, false>(R);
        out<T>(p.o, R, p.V);
    }

    /* y, e and what belongs to tokens. */
    __device__ void readers()
    {
        own X, E, R, lambda;
        lambda_in(lambda);
        rows_in<T>(m.rows, ROWS, p.d_o, first, end, p.Hv, h, p.V);
        over_keys<false, true>(R);
        float sum[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[0][i] = sum[1][i] = 0.f;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                X[i][c] = there(i, c, p.K) ? p.x[at(i, c, p.K)] : 0.f;
                sum[0][i] = fmaf(X[i][c], R[i][c], sum[0][i]);
            }
        }
        solve(E, R, lambda, true);
        out<float>(p.e, E, p.K);
        rows_put(X);
        over_keys<true, true>(R); /* H x */
        own less;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sum[1][i] = fmaf(E[i][c], R[i][c], sum[1][i]);
                less[i][c] = there(i, c, p.K) ? -X[i][c] * E[i][c] : 0.f;
            }
        row_sums(sum);
        for (int i = 0; i < 4; i++)
            if (across == 0 && row0 + i < count) p.dB[(first + row0 + i) * p.Hv + h] = sum[0][i] - sum[1][i];
        out<float>(p.dlambda_t, less, p.K);
        if (!p.part) return;
        rows_put(less);
        __syncthreads();
        for (int c = tid; c < p.K; c += THREADS) {
            float of = 0.f;
            for (int r = 0; r < count; r++) of += m.rows[r][c];
            p.part[(slot * p.Hv + h) * p.K + c] = of;
        }
    }

    /* What belongs to keys, over the tokens that see them. */
    __device__ void writers()
    {
        own u, dv;
        clear(u);
        clear(dv);
        float both[2][4] = {}; /* (x.k)(e.k); k.u */
        for (int64_t t = first; t < min(end, first + count - 1 + p.window); t += TILE) {
            float xk[4][KEYS], ek[4][KEYS], dov[4][KEYS];
            __syncthreads();
            rows_in<T>(m.rows, ROWS, p.k, first, end, p.Hq, hq, p.K);
            rows_in<float>(m.tile, TILE, p.x, t, end, p.Hv, h, p.K);
            scalars_in(t);
            __syncthreads();
            dots(xk);
            __syncthreads();
            rows_in<float>(m.tile, TILE, p.e, t, end, p.Hv, h, p.K);
            __syncthreads();
            dots(ek);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < KEYS; j++) {
                    const float f = seen<true>(i, j, t);
                    both[0][i] += f == 0.f ? 0.f : f * xk[i][j] * ek[i][j];
                    ek[i][j] = f == 0.f ? 0.f : f * ek[i][j];
                    xk[i][j] = f == 0.f ? 0.f : f * xk[i][j];
                    dov[i][j] = -xk[i][j];
                }
            put_pairs(dov);
            __syncthreads();
            add(u); /* - (x.k) e */
            __syncthreads();
            rows_in<T>(m.rows, ROWS, p.v, first, end, p.Hv, h, p.V);
            rows_in<T>(m.tile, TILE, p.d_o, t, end, p.Hv, h, p.V);
            put_pairs(xk);
            __syncthreads();
            add(dv);
            dots(dov);
            __syncthreads();
            rows_in<float>(m.tile, TILE, p.x, t, end, p.Hv, h, p.K);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < KEYS; j++) {
                    const float f = seen<true>(i, j, t);
                    dov[i][j] = f == 0.f ? 0.f : f * dov[i][j] - ek[i][j];
                }
            put_pairs(dov);
            __syncthreads();
            add(u);
        }
        __syncthreads();
        rows_in<T>(m.rows, ROWS, p.k, first, end, p.Hq, hq, p.K);
        __syncthreads();
        own k;
        own_rows(k);
        /* (x.k)(e.k) is spread over the tile's rows, k.u over columns: both are sums over the threads of a row */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) both[1][i] = fmaf(k[i][c], u[i][c], both[1][i]);
        row_sums(both);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (row0 + i >= count) continue;
            const int64_t token = (first + row0 + i) * p.Hv + h;
            const float strength = both[0][i] + both[1][i], beta = p.beta[token];
            if (across == 0) p.strength[token] = strength;
            if (across == 0 && p.dbeta) p.dbeta[token] = strength;
#pragma unroll
            for (int c = 0; c < 4; c++) u[i][c] *= beta, dv[i][c] *= beta;
        }
        out<float>(p.dk, u, p.K);
        out<T>(p.dv, dv, p.V);
    }
};

enum { FORWARDS, READERS, WRITERS };
template <int KP, typename T, int WHAT> __global__ __launch_bounds__(THREADS, 2) void window_kernel(const __grid_constant__ window_call p)
{
    extern __shared__ __align__(16) uint8_t raw[];
    await_last();
    let_next();
    window_rows<KP, T> rows(p, *(shared_tiles<KP> *)raw);
    if (!rows.find()) {
        if (WHAT == READERS && p.part)
            for (int c = (int)threadIdx.x; c < p.K; c += THREADS) p.part[(rows.slot * p.Hv + rows.h) * p.K + c] = 0.f;
        return;
    }
    __syncthreads();
    if constexpr (WHAT == FORWARDS)
        rows.forwards();
    else if constexpr (WHAT == READERS)
        rows.readers();
    else
        rows.writers();
}

/* ---- calls --------------------------------------------------------------------------------------------------------------------------------- */

int widest(const lnt_mesa_args *a) { return a->K > a->V ? a->K : a->V; }
int64_t slots_of(const lnt_mesa_args *a)
{
    const int rows = widest(a) <= 64 ? shape<64>::ROWS : widest(a) <= 128 ? shape<128>::ROWS : shape<256>::ROWS;
    return a->tokens / rows + a->sequences;
}
size_t carve(const lnt_mesa_args *a, bool back, void *base, window_call *p)
{
    vector_arena m = { (char *)base, 0 };
    const int64_t rows = a->tokens * a->Hv;
    p->G = m.take<lnt_gate_sum>(rows);
    if (!back) return m.used;
    p->e = m.take<float>(rows * a->K), p->dk = m.take<float>(rows * a->K);
    p->dB = m.take<float>(rows), p->strength = m.take<float>(rows);
    if (!a->lambda_varies) p->part = m.take<float>(slots_of(a) * a->Hv * a->K);
    return m.used;
}
window_call call_of(const lnt_mesa_args *a, bool back)
{
    window_call p = {};
    carve(a, back, a->workspace, &p);
    p.options = lnt_mesa_options_of<float, float>(a);
    p.cu = a->cu_seqlens_device, p.N = a->sequences, p.slots = slots_of(a), p.window = a->heads.window;
    p.K = a->K, p.V = a->V, p.Hq = a->Hq, p.Hv = a->Hv;
    p.q = a->q, p.k = a->k, p.v = a->v, p.d_o = a->do_;
    p.g = (const float *)a->g, p.beta = (const float *)a->beta, p.varies = a->lambda_varies;
    p.lambda = (const float *)(p.varies ? a->lambda_t : a->lambda);
    p.x = (float *)a->x, p.o = a->o, p.dv = a->dv;
    p.steps = (float *)a->steps, p.residual = (float *)a->residual;
    p.dlambda_t = p.varies ? (float *)a->dlambda_t : NULL, p.dbeta = (float *)a->dbeta, p.dg = (float *)a->dg;
    return p;
}
template <int KP, typename T, int WHAT> void put(const window_call &p, const lnt_cuda *d)
{
    if (p.slots * p.Hv > 0)
        lnt_launch_with(d, window_kernel<KP, T, WHAT>, dim3((unsigned)(p.slots * p.Hv)), THREADS, sizeof(shared_tiles<KP>), 1, p);
}
template <typename T, int WHAT> void put(const window_call &p, const lnt_cuda *d)
{
    const int wide = p.K > p.V ? p.K : p.V;
    (wide <= 64 ? put<64, T, WHAT> : wide <= 128 ? put<128, T, WHAT> : put<256, T, WHAT>)(p, d);
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const window_call p = call_of(a, false);
    const unsigned heads = (unsigned)(p.N * p.Hv);
    if (heads) window_gates<<<heads, 32, 0, d->stream>>>(p);
    LNT_BY_TYPE(a->dtype, T, put<T, FORWARDS>(p, d));
}
void backward(const void *args, const lnt_device *device)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const window_call p = call_of(a, true);
    const unsigned heads = (unsigned)(p.N * p.Hv);
    const int narrow = a->dtype == LINNET_BF16;
    if (heads) window_gates<<<heads, 32, 0, d->stream>>>(p);
    LNT_BY_TYPE(a->dtype, T, put<T, READERS>(p, d); put<T, WRITERS>(p, d));
    if (heads && p.dg) window_gate_gradients<<<heads, 32, 0, d->stream>>>(p);
    lnt_vector_sum_heads(a->dq, narrow, p.e, 1, a->tokens, a->Hv, a->Hq, a->K, d);
    lnt_vector_sum_heads(a->dk, narrow, p.dk, 1, a->tokens, a->Hv, a->Hq, a->K, d);
    if (!p.varies) lnt_vector_sum_heads(a->dlambda, 0, p.part, p.slots, 1, a->Hv, a->Hv, a->K, d);
}

const char *declines(const void *args, bool)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    if (!a->heads.window) return "it has windows alone";
    if (widest(a) > WIDEST) return "K and V of at most 256 are offered";
    if (slots_of(a) * a->Hv >= (int64_t)1 << 31) return "too many tokens";
    return NULL;
}
size_t workspace(const void *args, bool back, int)
{
    window_call p = {};
    return carve((const lnt_mesa_args *)args, back, NULL, &p);
}

} // namespace

LNT_CUDA_FORM(lnt_mesa_window_cuda, "window-cuda", CHUNK, 80, declines, workspace, forward, backward)
