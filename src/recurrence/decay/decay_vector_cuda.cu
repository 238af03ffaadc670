/* Vector decay on any GPU, in float32, token by token; the step of decoding too. A row of the state needs no other row: with row r of S, or of S^T,
 *
 *   S_t = a_t (S_{t-1} . b_t) + w_t c_t           out_t = s S_t.p_t                                (forwards)
 *   dS_t = carry + s x_t p_t                      dw_t = dS_t.c_t    dga_t = a_t (S_{t-1} . b_t).dS_t    carry = a_t dS_t . b_t       (backwards)
 *
 *                w    x    c    p    a      b      out   dw   dga
 *   row of S     k    q    v    do   e^gk   e^gv   dq    dk   dgk
 *   row of S^T   v    do   k    q    e^gv   e^gk   o     dv   dgv
 *
 * where w, x, a are numbers of the row and c, p, b vectors along it. A warp has a row in its registers. Nothing is divided, every sum is of what it
 * names: dga is exact where gates are strong, and a = 0 resets.
 *
 * `before` (RWKV-6): out_t = s (S_{t-1}.p_t + u w_t (c_t.p_t)), the sum over c p weighted by u in rows of S^T; x_t p_t joins after the decay.
 *
 * The delta rule (KDA; operators.md#delta): a row of S^T writes what it misses of v, in reverse it takes back what a write got; both are kept,
 *
 *   r_t = v_t - (S_{t-1} . b_t).k_t         S_t = S_{t-1} . b_t + beta_t r_t k_t
 *   d_t = dS_t.k_t       dv_t = beta_t d_t       carry = (dS_t - dv_t k_t) . b_t
 *
 * and rows of S are then those above with c = beta r, z = beta d:
 *
 *   dk_t = dS_t.c_t - (a_t S_{t-1}).z_t     dS~_t = dS_t - k_t z_t     dgk_t = a_t S_{t-1}.dS~_t     carry = a_t dS~_t     dbeta_t = r_t.d_t */
#include "recurrence/decay/decay_vector.cuh"

#include <type_traits>
#include <utility>

extern "C" {
#include "recurrence/decay/decay.h"
#include "recurrence/recur_cuda.cuh"
}


static constexpr int ROWS = 8, THREADS = 32 * ROWS; /* rows of a CTA, a warp each: 8 floats are a sector of memory */
static constexpr int PIECE = 64;                    /* tokens between the states that are kept for the way back */

enum { AFTER, BEFORE, ROWS_GIVEN, SOLVE }; /* the read-out after or before the write; the delta rule in rows of S, of S^T */

struct walk_stream {
    const void *p; /* [T,heads,width]; NULL: zeros */
    int heads;
};
struct walk {
    const int64_t *cu;
    int64_t T;
    int Hv, R, E, blocks; /* rows, their length, CTAs a head */
    float scale;
    walk_stream w, x, c, p, ga, gb; /* ga gb: float32 gates */
    walk_stream z, beta;            /* delta rule: float32 */
    float *own;                     /* its r and d, [T,Hv,R] */
    float *dbeta;                   /* [T,Hv] */
    const float *row_u, *along_u;   /* [Hv,R] or [Hv,E]; one of them with `before` */
    int64_t row_step, along_step;   /* of a state in memory, whose size is R E */
    const float *s0, *dsT;
    float *sT, *ds0;
    float *kept; /* [T / PIECE + N,Hv,R,E]; NULL: no way back that needs S */
    void *out, *dw;
    float *dga, *du; /* [T,Hv,R], [N,Hv,R] */
    bool parts;      /* out and dw are float32 whatever the call's type is */
};

/* Elements of one head: token t's are `step` apart. */
template <typename T> struct walk_head {
    const T *p;
    int64_t step;

    __device__ __forceinline__ walk_head(const walk_stream &s, int h, int Hv, int width) : p((const T *)s.p), step((int64_t)s.heads * width)
    {
        if (p) p += (int64_t)h * s.heads / Hv * width;
    }
    __device__ __forceinline__ float at(int64_t t, int j, bool real) const { return p && real ? to_float(p[t * step + j]) : 0.0f; }
};

/* NE: elements of a row in a lane, 32 apart. B: tokens at a time. */
template <typename T, int NE, int B, int MODE> struct walker {
    static constexpr bool EARLY = MODE == BEFORE, GIVEN = MODE == ROWS_GIVEN, DELTA = GIVEN || MODE == SOLVE;
    using along = typename std::conditional<GIVEN, float, T>::type; /* of c */
    struct tiles {
        float c[B][NE * 32], p[B][NE * 32], b[B][NE * 32], z[GIVEN ? B : 1][NE * 32], w[B][ROWS], x[B][ROWS], a[B][ROWS], beta[B], out[3][B][ROWS];
    };
    const walk &k;
    tiles &m;
    const walk_head<T> w, x, p;
    const walk_head<along> c;
    const walk_head<float> ga, gb, z, beta;
    const int lane, row, first, h; /* row: of the CTA */
    const int64_t n, begin, end;
    float u, along_u[NE];

    static __device__ __forceinline__ int head_of(const walk &k) { return (int)(blockIdx.x / k.blocks % k.Hv); }
    __device__ walker(const walk &k_, tiles &m_)
        : k(k_), m(m_), w(k_.w, head_of(k_), k_.Hv, k_.R), x(k_.x, head_of(k_), k_.Hv, k_.R), p(k_.p, head_of(k_), k_.Hv, k_.E),
          c(k_.c, head_of(k_), k_.Hv, k_.E), ga(k_.ga, head_of(k_), k_.Hv, k_.R), gb(k_.gb, head_of(k_), k_.Hv, k_.E),
          z(k_.z, head_of(k_), k_.Hv, k_.E), beta(k_.beta, head_of(k_), k_.Hv, 1), lane(threadIdx.x % 32), row(threadIdx.x / 32),
          first((int)(blockIdx.x % k_.blocks) * ROWS), h(head_of(k_)), n(blockIdx.x / k_.blocks / k_.Hv), begin(k_.cu[n]), end(k_.cu[n + 1])
    {
        u = EARLY && k.row_u && first + row < k.R ? k.row_u[(int64_t)h * k.R + first + row] : 1.0f;
#pragma unroll
        for (int i = 0; i < NE; i++) along_u[i] = EARLY && k.along_u && lane + 32 * i < k.E ? k.along_u[(int64_t)h * k.E + lane + 32 * i] : 1.0f;
    }

    /* Tokens t .. t+B-1, from memory to registers and on to the tiles; those from `end` on change nothing. Gates are kept as e^g - 1: a small one
     * keeps its accuracy over the tokens that it lets through. */
    static constexpr int EACH_TILE = B * NE * 32 / THREADS, EACH_ROW = (B * ROWS + THREADS - 1) / THREADS;
    float next[GIVEN ? 4 : 3][EACH_TILE], next_row[4][EACH_ROW];
    __device__ __forceinline__ void fetch(int64_t t)
    {
#pragma unroll
        for (int n = 0; n < EACH_TILE; n++) {
            const int i = n * THREADS + (int)threadIdx.x, j = i / (NE * 32), e = i % (NE * 32);
            const bool real = t + j < end && e < k.E;
            next[0][n] = c.at(t + j, e, real);
            next[1][n] = p.at(t + j, e, real);
            next[2][n] = gb.at(t + j, e, real);
            if (GIVEN) next[GIVEN ? 3 : 0][n] = z.at(t + j, e, real);
        }
#pragma unroll
        for (int n = 0; n < EACH_ROW; n++) {
            const int i = n * THREADS + (int)threadIdx.x, j = i / ROWS, r = first + i % ROWS;
            const bool real = i < B * ROWS && t + j < end && r < k.R;
            next_row[0][n] = w.at(t + j, r, real);
            next_row[1][n] = x.at(t + j, r, real);
            next_row[2][n] = ga.at(t + j, r, real);
            if (DELTA) next_row[3][n] = beta.at(t + i, 0, i < B && t + i < end);
        }
    }
    __device__ __forceinline__ void put_tiles()
    {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < EACH_TILE; n++) {
            const int i = n * THREADS + (int)threadIdx.x, j = i / (NE * 32), e = i % (NE * 32);
            m.c[j][e] = next[0][n];
            m.p[j][e] = next[1][n];
            if (gb.p) m.b[j][e] = expm1f(next[2][n]);
            if (GIVEN) m.z[GIVEN ? j : 0][e] = next[GIVEN ? 3 : 0][n];
        }
#pragma unroll
        for (int n = 0; n < EACH_ROW; n++) {
            const int i = n * THREADS + (int)threadIdx.x, j = i / ROWS;
            if (i >= B * ROWS) continue;
            m.w[j][i % ROWS] = next_row[0][n];
            m.x[j][i % ROWS] = next_row[1][n];
            m.a[j][i % ROWS] = expm1f(next_row[2][n]);
            if (DELTA && i < B) m.beta[i] = next_row[3][n];
        }
        __syncthreads();
    }
    __device__ __forceinline__ void load(int64_t t)
    {
        fetch(t);
        put_tiles();
    }
    template <typename O> __device__ __forceinline__ void store(O *to, int which, int64_t t)
    {
        for (int i = (int)threadIdx.x; i < B * ROWS; i += THREADS) {
            const int j = i / ROWS, r = first + i % ROWS;
            if (t + j < end && r < k.R) to[((t + j) * k.Hv + h) * k.R + r] = from_float<O>(m.out[which][j][i % ROWS]);
        }
    }
    __device__ __forceinline__ void put(void *to, int which, int64_t t)
    {
        if (!to) return;
        k.parts ? store((float *)to, which, t) : store((T *)to, which, t);
    }

    __device__ __forceinline__ void decay(float (&S)[NE], int j)
    {
        const float a = m.a[j][row];
#pragma unroll
        for (int i = 0; i < NE; i++) {
            S[i] = fmaf(a, S[i], S[i]);
            if (gb.p) S[i] = fmaf(m.b[j][lane + 32 * i], S[i], S[i]);
        }
    }
    __device__ __forceinline__ float writer(int j) const { return GIVEN ? m.beta[j] * m.w[j][row] : m.w[j][row]; }
    __device__ __forceinline__ void write(float (&S)[NE], int j)
    {
        const float w = writer(j);
#pragma unroll
        for (int i = 0; i < NE; i++) S[i] = fmaf(w, m.c[j][lane + 32 * i], S[i]);
    }
    __device__ __forceinline__ float dot(const float (&S)[NE], const float (&y)[NE * 32])
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < NE; i++) sum = fmaf(S[i], y[lane + 32 * i], sum);
        return sum;
    }
    /* c_t . y_t of the tokens at hand, weighted in rows of S^T, where sum_each leaves them */
    __device__ __forceinline__ float with_c(const float (*y)[NE * 32])
    {
        float sums[B];
#pragma unroll
        for (int j = 0; j < B; j++) {
            sums[j] = 0;
#pragma unroll
            for (int i = 0; i < NE; i++) sums[j] += m.c[j][lane + 32 * i] * along_u[i] * y[j][lane + 32 * i];
        }
        return sum_each(sums);
    }
    static constexpr int EACH = 32 / B; /* lanes of a sum */

    __device__ __forceinline__ void start(float (&S)[NE], const float *from)
    {
#pragma unroll
        for (int i = 0; i < NE; i++) {
            const int e = lane + 32 * i, r = first + row;
            S[i] = from && e < k.E && r < k.R ? from[(n * k.Hv + h) * (int64_t)k.R * k.E + r * k.row_step + e * k.along_step] : 0.0f;
        }
    }
    __device__ __forceinline__ void finish(const float (&S)[NE], float *to)
    {
        if (!to) return;
#pragma unroll
        for (int i = 0; i < NE; i++) {
            const int e = lane + 32 * i, r = first + row;
            if (e < k.E && r < k.R) to[(n * k.Hv + h) * (int64_t)k.R * k.E + r * k.row_step + e * k.along_step] = S[i];
        }
    }
    __device__ __forceinline__ float *kept(int64_t t) const /* of the piece that begins at t */
    {
        return k.kept + (((begin / PIECE + n + (t - begin) / PIECE) * k.Hv + h) * k.R + first + row) * (int64_t)k.E;
    }

    __device__ void forwards()
    {
        float S[NE];
        start(S, k.s0);
        if (begin < end) fetch(begin);
        for (int64_t t = begin; t < end; t += B) {
            put_tiles();
            if (t + B < end) fetch(t + B);
            if (k.kept && (t - begin) % PIECE == 0 && first + row < k.R) {
                float *to = kept(t);
#pragma unroll
                for (int i = 0; i < NE; i++)
                    if (lane + 32 * i < k.E) to[lane + 32 * i] = S[i];
            }
            float reads[B];
#pragma unroll
            for (int j = 0; j < B; j++) {
                if (EARLY) reads[j] = dot(S, m.p[j]);
                decay(S, j);
                write(S, j);
                if (!EARLY) reads[j] = dot(S, m.p[j]);
            }
            if (!k.out) continue;
            float sum = sum_each(reads);
            if (EARLY) sum += u * with_c(m.p) * m.w[lane / EACH][row];
            if (lane % EACH == 0) m.out[0][lane / EACH][row] = k.scale * sum;
            __syncthreads();
            put(k.out, 0, t);
        }
        finish(S, k.sT);
    }

    __device__ void backwards()
    {
        float dS[NE], du = 0;
        start(dS, k.dsT);
        const int64_t pieces = (end - begin + PIECE - 1) / PIECE;
        for (int64_t piece = pieces - 1; piece >= 0; piece--) {
            const int64_t t0 = begin + piece * PIECE;
            float starts[PIECE / B][NE]; /* in local memory: touched once in B tokens */
            if (k.kept) {
                const float *from = kept(t0);
#pragma unroll
                for (int i = 0; i < NE; i++) starts[0][i] = lane + 32 * i < k.E && first + row < k.R ? from[lane + 32 * i] : 0.0f;
#pragma unroll 1
                for (int s = 1; s < PIECE / B; s++) {
                    if (t0 + s * B >= end) break;
                    load(t0 + (s - 1) * B);
                    float S[NE];
#pragma unroll
                    for (int i = 0; i < NE; i++) S[i] = starts[s - 1][i];
#pragma unroll
                    for (int j = 0; j < B; j++) {
                        decay(S, j);
                        write(S, j);
                    }
#pragma unroll
                    for (int i = 0; i < NE; i++) starts[s][i] = S[i];
                }
            }
#pragma unroll 1
            for (int s = PIECE / B - 1; s >= 0; s--) {
                const int64_t t = t0 + s * B;
                if (t >= end) continue;
                load(t);
                float S[B][NE], dga[B], dw[B];
                if (k.kept)
#pragma unroll
                    for (int j = 0; j < B; j++) { /* S_{t-1} . b_t */
#pragma unroll
                        for (int i = 0; i < NE; i++) {
                            const float x =
                                j ? fmaf(writer(j - 1), m.c[j - 1][lane + 32 * i], fmaf(m.a[j - 1][row], S[j - 1][i], S[j - 1][i])) : starts[s][i];
                            S[j][i] = gb.p ? fmaf(m.b[j][lane + 32 * i], x, x) : x;
                        }
                    }
#pragma unroll
                for (int j = B - 1; j >= 0; j--) {
                    const float x = k.scale * m.x[j][row];
                    if (!EARLY)
#pragma unroll
                        for (int i = 0; i < NE; i++) dS[i] = fmaf(x, m.p[j][lane + 32 * i], dS[i]);
                    dw[j] = dot(dS, m.c[j]);
                    dga[j] = 0;
                    if (GIVEN) {
                        const float w = writer(j), now = 1.0f + m.a[j][row];
#pragma unroll
                        for (int i = 0; i < NE; i++) {
                            const float z = m.z[GIVEN ? j : 0][lane + 32 * i];
                            dw[j] -= now * S[j][i] * z;
                            dS[i] = fmaf(-w, z, dS[i]);
                        }
                        dw[j] *= m.beta[j];
                    }
                    if (k.dga) {
#pragma unroll
                        for (int i = 0; i < NE; i++) dga[j] = fmaf(S[j][i], dS[i], dga[j]);
                    }
                    decay(dS, j);
                    if (EARLY)
#pragma unroll
                        for (int i = 0; i < NE; i++) dS[i] = fmaf(x, m.p[j][lane + 32 * i], dS[i]);
                }
                const int j = lane / EACH;
                float of_w = sum_each(dw);
                if (EARLY) {
                    const float x = k.scale * with_c(m.p) * m.x[j][row];
                    of_w += u * x;
                    du += x * m.w[j][row];
                }
                if (GIVEN && k.dbeta && first + row == 0) {
                    const float sum = with_c(m.z);
                    if (lane % EACH == 0 && t + j < end) k.dbeta[(t + j) * k.Hv + h] = sum;
                }
                if (lane % EACH == 0) m.out[1][j][row] = of_w;
                if (k.dga) {
                    const float sum = sum_each(dga);
                    if (lane % EACH == 0) m.out[2][j][row] = sum + m.a[j][row] * sum;
                }
                __syncthreads();
                put(k.dw, 1, t);
                if (k.dga) store(k.dga, 2, t);
            }
        }
        finish(dS, k.ds0);
        if (EARLY && k.du) {
            du = warp_sum(lane % EACH ? 0.0f : du);
            if (lane == 0 && first + row < k.R) k.du[(n * k.Hv + h) * k.R + first + row] = du;
        }
    }

    /* The delta rule in rows of S^T: token after token, each waits for a sum over the row. */
    __device__ void solve_forwards()
    {
        float S[NE];
        start(S, k.s0);
        if (begin < end) fetch(begin);
        for (int64_t t = begin; t < end; t += B) {
            put_tiles();
            if (t + B < end) fetch(t + B);
            float reads[B];
#pragma unroll
            for (int j = 0; j < B; j++) {
                decay(S, j);
                const float r = m.w[j][row] - warp_sum(dot(S, m.c[j])), u = m.beta[j] * r;
#pragma unroll
                for (int i = 0; i < NE; i++) S[i] = fmaf(u, m.c[j][lane + 32 * i], S[i]);
                if (lane == 0) m.out[1][j][row] = r;
                reads[j] = dot(S, m.p[j]);
            }
            const float sum = sum_each(reads);
            if (lane % EACH == 0) m.out[0][lane / EACH][row] = k.scale * sum;
            __syncthreads();
            put(k.out, 0, t);
            if (k.own) store(k.own, 1, t);
        }
        finish(S, k.sT);
    }
    __device__ void solve_backwards()
    {
        float dS[NE];
        start(dS, k.dsT);
        for (int64_t t = begin + (end - begin - 1) / B * B; begin < end && t >= begin; t -= B) {
            load(t);
#pragma unroll
            for (int j = B - 1; j >= 0; j--) {
                const float x = k.scale * m.x[j][row];
#pragma unroll
                for (int i = 0; i < NE; i++) dS[i] = fmaf(x, m.p[j][lane + 32 * i], dS[i]);
                const float d = warp_sum(dot(dS, m.c[j])), dz = m.beta[j] * d;
#pragma unroll
                for (int i = 0; i < NE; i++) dS[i] = fmaf(-dz, m.c[j][lane + 32 * i], dS[i]);
                decay(dS, j);
                if (lane == 0) m.out[0][j][row] = d, m.out[1][j][row] = dz;
            }
            __syncthreads();
            if (k.own) store(k.own, 0, t);
            put(k.dw, 1, t);
        }
    }
};

template <typename T, int NE, int B, int MODE>
__global__ __launch_bounds__(THREADS, NE <= 4 && MODE == AFTER ? 3 : 1) void vector_forwards(const __grid_constant__ walk k)
{
    __shared__ typename walker<T, NE, B, MODE>::tiles tiles;
    await_last();
    let_next();
    walker<T, NE, B, MODE> x(k, tiles);
    if constexpr (MODE == SOLVE)
        x.solve_forwards();
    else
        x.forwards();
}
/* What is kept for it is each lane's own. */
template <typename T, int NE, int B, int MODE>
__global__ __launch_bounds__(THREADS, NE <= 4 && MODE == AFTER ? 2 : 1) void vector_backwards(const __grid_constant__ walk k)
{
    __shared__ typename walker<T, NE, B, MODE>::tiles tiles;
    await_last();
    let_next();
    walker<T, NE, B, MODE> x(k, tiles);
    if constexpr (MODE == SOLVE)
        x.solve_backwards();
    else
        x.backwards();
}

template <typename T, int NE> static void put_walk_of(const walk &k, int mode, int64_t sequences, bool backwards, const lnt_cuda *d)
{
    constexpr int B = 8;
    const unsigned grid = (unsigned)(sequences * k.Hv * k.blocks);
    static void (*const kernels[2][4])(const walk) = {
        { vector_forwards<T, NE, B, AFTER>, vector_forwards<T, NE, B, BEFORE>, vector_forwards<T, NE, B, ROWS_GIVEN>,
          vector_forwards<T, NE, B, SOLVE> },
        { vector_backwards<T, NE, B, AFTER>, vector_backwards<T, NE, B, BEFORE>, vector_backwards<T, NE, B, ROWS_GIVEN>,
          vector_backwards<T, NE, B, SOLVE> },
    };
    if (grid) lnt_launch(d, kernels[backwards][mode], grid, THREADS, k);
}
static void put_walk(const walk &k, const vector_call *a, int mode, bool backwards, const lnt_cuda *d)
{
    LNT_BY_TYPE(a->bf16 ? LINNET_BF16 : LINNET_F32, T,
                (k.E <= 64    ? put_walk_of<T, 2>
                 : k.E <= 128 ? put_walk_of<T, 4>
                              : put_walk_of<T, 8>)(k, mode, a->sequences, backwards, d));
}

static walk rows_of_S(const vector_call *a)
{
    walk k = {};
    k.cu = a->cu, k.T = a->tokens, k.Hv = a->Hv, k.scale = a->scale;
    k.R = a->K, k.E = a->V, k.blocks = (a->K + ROWS - 1) / ROWS;
    k.w = { a->k, a->Hq }, k.x = { a->q, a->Hq }, k.c = { a->v, a->Hv }, k.p = { a->d_o, a->Hv };
    k.ga = { a->gk, a->Hv }, k.gb = { a->gv, a->Hv };
    k.row_u = a->bonus;
    k.beta = { a->beta, a->Hv };
    k.row_step = a->V, k.along_step = 1;
    k.s0 = a->s0, k.dsT = a->dsT;
    return k;
}
static walk rows_of_its_transpose(const vector_call *a)
{
    walk k = rows_of_S(a);
    k.R = a->V, k.E = a->K, k.blocks = (a->V + ROWS - 1) / ROWS;
    std::swap(k.w, k.c);
    std::swap(k.x, k.p);
    std::swap(k.ga, k.gb);
    k.row_u = NULL, k.along_u = a->bonus;
    k.row_step = 1, k.along_step = a->V;
    return k;
}

/* ---- sums over heads -------------------------------------------------------------------------------------------------------------------- */

template <typename T>
__global__ __launch_bounds__(256) void vector_heads(T *out, const float *parts, int64_t lead, int64_t outer, int Hv, int heads, int64_t inner)
{
    await_last();
    let_next();
    const int64_t n = outer * heads * inner;
    const int group = Hv / heads;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const float *from = parts + (i / inner) * group * inner + i % inner;
        float sum = 0;
        for (int64_t l = 0; l < lead; l++)
            for (int g = 0; g < group; g++) sum += from[(l * outer * Hv + g) * inner];
        out[i] = from_float<T>(sum);
    }
}
void lnt_vector_sum_heads(void *out, int out_bf16, const float *parts, int64_t lead, int64_t outer, int Hv, int heads, int64_t inner,
                          const lnt_cuda *d)
{
    const int64_t blocks = lnt_div_up(outer * heads * inner, 256);
    if (!out || !blocks) return;
    const unsigned grid = (unsigned)(blocks < 65536 ? blocks : 65536);
    if (out_bf16)
        lnt_launch(d, vector_heads<bf16>, grid, 256, (bf16 *)out, parts, lead, outer, Hv, heads, inner);
    else
        lnt_launch(d, vector_heads<float>, grid, 256, (float *)out, parts, lead, outer, Hv, heads, inner);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------ */

/* Parts of value heads whose sums are the gradients of what they share; NULL where each head has its own. r and d: the delta rule's, [T,Hv,V]. */
struct vector_parts {
    float *kept, *dq, *dk, *du, *r, *d;
};
static size_t carve(const vector_call *a, vector_parts *w)
{
    vector_arena m = { (char *)a->workspace, 0 };
    *w = {};
    const int64_t rows = a->tokens * a->Hv * a->K, slots = a->tokens / PIECE + a->sequences;
    w->kept = m.take<float>(slots * a->Hv * a->K * a->V);
    if (a->Hq < a->Hv) w->dq = m.take<float>(rows), w->dk = m.take<float>(rows);
    if (a->before) w->du = m.take<float>(a->sequences * a->Hv * a->K);
    if (a->delta) w->r = m.take<float>(a->tokens * a->Hv * a->V), w->d = m.take<float>(a->tokens * a->Hv * a->V);
    return m.used;
}
size_t lnt_vector_general_bytes(const vector_call *a, bool backward)
{
    vector_parts w;
    return backward ? carve(a, &w) : 0;
}

static int mode_of(const vector_call *a, bool of_transpose) { return a->delta ? of_transpose ? SOLVE : ROWS_GIVEN : a->before ? BEFORE : AFTER; }

void lnt_vector_general_forward(const vector_call *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    walk k = rows_of_its_transpose(a);
    k.out = a->o, k.sT = a->sT;
    put_walk(k, a, mode_of(a, true), false, d);
}

void lnt_vector_general_backward(const vector_call *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    vector_parts w;
    carve(a, &w);
    walk k = rows_of_its_transpose(a);
    k.dw = a->dv;
    if (a->delta) {
        k.own = w.r;
        put_walk(k, a, SOLVE, false, d);
        k.own = w.d;
        put_walk(k, a, SOLVE, true, d);
    } else {
        k.dga = a->dgv;
        k.kept = k.dga ? w.kept : NULL;
        if (k.dga) put_walk(k, a, mode_of(a, true), false, d);
        if (k.dw || k.dga) put_walk(k, a, mode_of(a, true), true, d);
    }
    k = rows_of_S(a);
    if (a->delta) k.c = { w.r, a->Hv }, k.z = { w.d, a->Hv }, k.dbeta = a->dbeta;
    k.parts = w.dq;
    k.out = !a->dq ? NULL : w.dq ? w.dq : a->dq;
    k.dw = !a->dk ? NULL : w.dk ? w.dk : a->dk;
    k.dga = a->dgk;
    k.kept = k.dga || a->delta ? w.kept : NULL;
    k.ds0 = a->ds0;
    k.du = a->dbonus ? w.du : NULL;
    put_walk(k, a, mode_of(a, false), false, d);
    put_walk(k, a, mode_of(a, false), true, d);
    if (w.dq) {
        lnt_vector_sum_heads(a->dq, a->bf16, w.dq, 1, a->tokens, a->Hv, a->Hq, a->K, d);
        lnt_vector_sum_heads(a->dk, a->bf16, w.dk, 1, a->tokens, a->Hv, a->Hq, a->K, d);
    }
    if (a->dbonus) lnt_vector_sum_heads(a->dbonus, 0, w.du, a->sequences, 1, a->Hv, a->Hv, a->K, d);
}

/* ---- the implementations ----------------------------------------------------------------------------------------------------------------- */

static vector_call call_of(const void *args, bool delta)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    vector_call x = {};
    x.bf16 = a->dtype == LINNET_BF16;
    x.tokens = a->tokens, x.sequences = a->sequences, x.longest = a->longest, x.cu = a->cu_seqlens_device;
    x.Hq = a->Hq, x.Hv = a->Hv, x.K = a->K, x.V = a->V, x.scale = (float)a->scale;
    x.before = !delta && a->op->kind == LNT_DECAY_EARLY;
    x.rows = delta || a->op->kind != LNT_DECAY_COLUMNS;
    x.columns = !delta && (a->op->kind == LNT_DECAY_BOTH || a->op->kind == LNT_DECAY_COLUMNS);
    x.delta = delta;
    x.q = a->q, x.k = a->k, x.v = a->v, x.d_o = a->do_;
    x.gk = (const float *)a->gk, x.gv = (const float *)a->gv, x.bonus = (const float *)a->bonus, x.beta = (const float *)a->beta;
    x.s0 = (const float *)a->s0, x.dsT = (const float *)a->dsT;
    x.o = a->o, x.dq = a->dq, x.dk = a->dk, x.dv = a->dv;
    x.dgk = (float *)a->dgk, x.dgv = (float *)a->dgv, x.dbonus = (float *)a->dbonus, x.dbeta = (float *)a->dbeta;
    x.sT = (float *)a->sT, x.ds0 = (float *)a->ds0;
    x.workspace = a->workspace;
    return x;
}
static vector_call sized(const void *args, bool delta) /* for the size of the workspace */
{
    vector_call x = call_of(args, delta);
    x.workspace = NULL;
    return x;
}

static const char *too_wide(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    return a->K > 256 || a->V > 256 ? "K and V of at most 256 are offered" : NULL;
}
template <bool DELTA> static size_t general_bytes(const void *args, bool backward, int threads)
{
    const vector_call x = sized(args, DELTA);
    return lnt_vector_general_bytes(&x, backward);
}
template <bool DELTA> static void general_forward(const void *args, const lnt_device *d)
{
    const vector_call x = call_of(args, DELTA);
    lnt_vector_general_forward(&x, d);
}
template <bool DELTA> static void general_backward(const void *args, const lnt_device *d)
{
    const vector_call x = call_of(args, DELTA);
    lnt_vector_general_backward(&x, d);
}

static const char *tiles_declines(const void *args, bool backward)
{
    const vector_call x = sized(args, false);
    return lnt_vector_tiles_declines(&x, backward);
}
static size_t tiles_bytes(const void *args, bool backward, int threads)
{
    const vector_call x = sized(args, false);
    return lnt_vector_tiles_bytes(&x, backward);
}
template <bool HOPPER> static void tiles_forward(const void *args, const lnt_device *d)
{
    const vector_call x = call_of(args, false);
    lnt_vector_tiles_forward(&x, HOPPER, d);
}
template <bool HOPPER> static void tiles_backward(const void *args, const lnt_device *d)
{
    const vector_call x = call_of(args, false);
    lnt_vector_tiles_backward(&x, HOPPER, d);
}

LNT_CUDA_FORM(lnt_vector_chunk_sm90, "chunk-sm90", CHUNK, 90, tiles_declines, tiles_bytes, tiles_forward<true>, tiles_backward<true>)
LNT_CUDA_FORM(lnt_vector_chunk_sm80, "chunk-sm80", CHUNK, 80, tiles_declines, tiles_bytes, tiles_forward<false>, tiles_backward<false>)
LNT_CUDA_FORM(lnt_vector_row_cuda, "row-cuda", CHUNK, 80, too_wide, general_bytes<false>, general_forward<false>, general_backward<false>)
LNT_CUDA_FORM(lnt_kda_row_cuda, "row-cuda", CHUNK, 80, too_wide, general_bytes<true>, general_forward<true>, general_backward<true>)
