/* The untied delta rule on any GPU, in float32, token by token (operators.md#untied); the step of decoding is delta_step_cuda.cu's. A warp has a row
 * of S^T or of S in its registers; rows do not know of each other but through p and its gradient, which rows of S^T make and rows of S are given:
 *
 *   row of S^T   p_t = s_{t-1}.a_t    s_t = s_{t-1} . e^{gk_t} + p_t b_t + v_t k_t     o_t = scale s_t.q_t
 *   in reverse   ds += scale do_t q_t    dv_t = ds.k_t    dp_t = ds.b_t    ds <- ds . e^{gk_t} + dp_t a_t
 *
 *   row of S     s_t = e^{gk_t} s_{t-1} + b_t p_t + k_t v_t                             dq_t = scale s_t.do_t
 *   in reverse   ds += scale q_t do_t    dk_t = ds.v_t    db_t = ds.p_t    da_t = s_{t-1}.dp_t    dgk_t = e^{gk_t} s_{t-1}.ds
 *                ds <- e^{gk_t} ds + a_t dp_t
 *
 * where what has a row's place is a number and the rest a vector along it. Nothing is divided; e^{gk} = 0 resets what it is a factor of. */
#include "recurrence/decay/decay_vector.cuh"
#include "recurrence/recur_cuda.cuh"

extern "C" {
#include "recurrence/recur_args.h"
}

namespace {

constexpr int ROWS = 8, THREADS = 32 * ROWS, B = 8; /* rows of a CTA, a warp each; tokens at a time */
constexpr int PIECE = 64;                           /* tokens between the states that are kept for the way back */
constexpr int SLICE = 256, WIDEST = 1024;           /* columns of V whose rows of S are walked at once; and of any V */
constexpr int SUM_LANES = 32 / B;                   /* of a sum that sum_each leaves */

/* [T,heads,width]: elements of the call's type or float32, of heads of queries and keys or of values; NULL: zeros */
struct rows_of {
    const void *p;
    bool half, shared;
};
struct rows_to {
    void *p; /* [T,Hv,R]; NULL: not wanted */
    bool half;
};

enum { OF_TRANSPOSE, OF_STATE }; /* rows of S^T, of S */
/* Vectors along a row, numbers of a row, what comes out: of S^T, where `value` is v or, in reverse, do; and of S. */
constexpr int ALONG_A = 0, ALONG_B = 1, ALONG_K = 2, ALONG_Q = 3, ALONG_GATE = 4, MINE_VALUE = 0, OUT_O = 0, OUT_P = 1, OUT_DV = 0, OUT_DP = 1;
constexpr int ALONG_V = 0, ALONG_P = 1, ALONG_DO = 2, ALONG_DP = 3, MINE_GATE = 0, MINE_A = 1, MINE_B = 2, MINE_K = 3, MINE_Q = 4;
constexpr int OUT_DQ = 0, OUT_DK = 0, OUT_DB = 1, OUT_DA = 2, OUT_DGK = 3;
constexpr int ALONG_MOST = 5, MINE_MOST = 5, OUT_MOST = 4;

struct walk {
    const int64_t *cu;
    int Hq, Hv, R, E, blocks; /* rows, their length, CTAs a head */
    int width;                /* numbers of a vector along a row as it lies in memory: E, or all of which rows have a slice */
    bool add;                 /* results are added to those of slices before */
    float scale;
    rows_of along[ALONG_MOST], mine[MINE_MOST];
    rows_to out[OUT_MOST];
    int64_t row_step, along_step; /* of a state in memory, whose size is R width */
    const float *start;           /* s0, in reverse dsT */
    float *finish;                /* sT, in reverse ds0 */
    float *kept;                  /* [T / PIECE + N,Hv,R,E]; NULL: not wanted */
};

/* NE: elements of a row in a lane, 32 apart. */
template <int NE, int OF> struct walker {
    static constexpr int ALONG = OF == OF_STATE ? 4 : 5, MINE = OF == OF_STATE ? 5 : 1, OUT = OF == OF_STATE ? 4 : 2;
    struct tiles {
        float along[ALONG][B][NE * 32], mine[MINE][B][ROWS], out[OUT][B][ROWS];
    };
    const walk &k;
    tiles &m;
    const int lane, row, first, h, hq; /* row: of the CTA */
    const int64_t n, begin, end;

    __device__ walker(const walk &k_, tiles &m_)
        : k(k_), m(m_), lane(threadIdx.x % 32), row(threadIdx.x / 32), first((int)(blockIdx.x % k_.blocks) * ROWS),
          h((int)(blockIdx.x / k_.blocks % k_.Hv)), hq(h / (k_.Hv / k_.Hq)), n(blockIdx.x / k_.blocks / k_.Hv), begin(k_.cu[n]), end(k_.cu[n + 1])
    {
    }

    __device__ __forceinline__ float element(const rows_of &s, int64_t t, int j, int count, int width) const
    {
        if (!s.p || t >= end || j >= count) return 0.0f;
        const int64_t at = (s.shared ? t * k.Hq + hq : t * k.Hv + h) * width + j;
        return s.half ? to_float(((const bf16 *)s.p)[at]) : ((const float *)s.p)[at];
    }

    /* Tokens t .. t + B - 1, from memory to registers and on to the tiles; those from `end` on change nothing. Gates are kept as e^g - 1: a small one
     * keeps its accuracy over the tokens that it lets through. */
    float next[ALONG][NE], next_mine[MINE];
    __device__ __forceinline__ void fetch(int64_t t)
    {
#pragma unroll
        for (int s = 0; s < ALONG; s++)
#pragma unroll
            for (int c = 0; c < NE; c++) { /* B NE 32 elements are NE for each thread */
                const int i = c * THREADS + (int)threadIdx.x;
                next[s][c] = element(k.along[s], t + i / (NE * 32), i % (NE * 32), k.E, k.width);
            }
        const int i = (int)threadIdx.x;
#pragma unroll
        for (int s = 0; s < MINE; s++) next_mine[s] = i < B * ROWS ? element(k.mine[s], t + i / ROWS, first + i % ROWS, k.R, k.R) : 0.0f;
    }
    __device__ __forceinline__ void put_tiles()
    {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < ALONG; s++)
#pragma unroll
            for (int c = 0; c < NE; c++) {
                const int i = c * THREADS + (int)threadIdx.x;
                m.along[s][i / (NE * 32)][i % (NE * 32)] = OF == OF_TRANSPOSE && s == ALONG_GATE ? expm1f(next[s][c]) : next[s][c];
            }
        const int i = (int)threadIdx.x;
#pragma unroll
        for (int s = 0; s < MINE; s++)
            if (i < B * ROWS) m.mine[s][i / ROWS][i % ROWS] = OF == OF_STATE && s == MINE_GATE ? expm1f(next_mine[s]) : next_mine[s];
        __syncthreads();
    }
    __device__ __forceinline__ void load(int64_t t)
    {
        fetch(t);
        put_tiles();
    }

    __device__ __forceinline__ void store(int which, int64_t t)
    {
        const rows_to &to = k.out[which];
        const int j = (int)threadIdx.x / ROWS, r = (int)threadIdx.x % ROWS;
        if (!to.p || j >= B || t + j >= end || first + r >= k.R) return;
        const int64_t at = ((t + j) * k.Hv + h) * k.R + first + r;
        if (to.half)
            ((bf16 *)to.p)[at] = from_float<bf16>(m.out[which][j][r]);
        else
            ((float *)to.p)[at] = k.add ? ((float *)to.p)[at] + m.out[which][j][r] : m.out[which][j][r];
    }
    /* The tokens' sums over the row, for store. */
    __device__ __forceinline__ void put_sums(int which, const float (&sums)[B], float factor)
    {
        const float sum = factor * sum_each(sums);
        if (lane % SUM_LANES == 0) m.out[which][lane / SUM_LANES][row] = sum;
    }

    __device__ __forceinline__ const float *along(int which, int j) const { return m.along[which][j] + lane; }
    __device__ __forceinline__ float mine(int which, int j) const { return m.mine[which][j][row]; }
    __device__ __forceinline__ float dot(const float (&S)[NE], const float *y) const
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < NE; i++) sum = fmaf(S[i], y[32 * i], sum);
        return sum;
    }
    __device__ __forceinline__ void add(float (&S)[NE], float x, const float *y) const
    {
#pragma unroll
        for (int i = 0; i < NE; i++) S[i] = fmaf(x, y[32 * i], S[i]);
    }
    /* less1: e^g - 1 */
    __device__ __forceinline__ void decay(float (&S)[NE], const float *less1) const
    {
#pragma unroll
        for (int i = 0; i < NE; i++) S[i] = fmaf(less1[32 * i], S[i], S[i]);
    }

    __device__ __forceinline__ void start(float (&S)[NE]) const
    {
#pragma unroll
        for (int i = 0; i < NE; i++) {
            const int e = lane + 32 * i, r = first + row;
            S[i] = k.start && e < k.E && r < k.R ? k.start[(n * k.Hv + h) * (int64_t)k.R * k.width + r * k.row_step + e * k.along_step] : 0.0f;
        }
    }
    __device__ __forceinline__ void finish(const float (&S)[NE]) const
    {
        if (!k.finish) return;
#pragma unroll
        for (int i = 0; i < NE; i++) {
            const int e = lane + 32 * i, r = first + row;
            if (e < k.E && r < k.R) k.finish[(n * k.Hv + h) * (int64_t)k.R * k.width + r * k.row_step + e * k.along_step] = S[i];
        }
    }

    /* ---- rows of S^T: token after token, each waits for a sum over the row ------------------------------------------------------------------- */

    __device__ void transpose_forwards()
    {
        float S[NE];
        start(S);
        if (begin < end) fetch(begin);
        for (int64_t t = begin; t < end; t += B) {
            put_tiles();
            if (t + B < end) fetch(t + B);
            float reads[B];
#pragma unroll
            for (int j = 0; j < B; j++) {
                const float p = warp_sum(dot(S, along(ALONG_A, j)));
                decay(S, along(ALONG_GATE, j));
                add(S, p, along(ALONG_B, j));
                add(S, mine(MINE_VALUE, j), along(ALONG_K, j));
                if (lane == 0) m.out[OUT_P][j][row] = p;
                reads[j] = dot(S, along(ALONG_Q, j));
            }
            put_sums(OUT_O, reads, k.scale);
            __syncthreads();
            store(OUT_O, t);
            store(OUT_P, t);
        }
        finish(S);
    }
    __device__ void transpose_backwards()
    {
        float dS[NE];
        start(dS);
        for (int64_t t = begin + (end - begin - 1) / B * B; begin < end && t >= begin; t -= B) {
            load(t);
            float dv[B];
#pragma unroll
            for (int j = B - 1; j >= 0; j--) {
                add(dS, k.scale * mine(MINE_VALUE, j), along(ALONG_Q, j));
                dv[j] = dot(dS, along(ALONG_K, j));
                const float dp = warp_sum(dot(dS, along(ALONG_B, j)));
                decay(dS, along(ALONG_GATE, j));
                add(dS, dp, along(ALONG_A, j));
                if (lane == 0) m.out[OUT_DP][j][row] = dp;
            }
            put_sums(OUT_DV, dv, 1.0f);
            __syncthreads();
            store(OUT_DV, t);
            store(OUT_DP, t);
        }
        finish(dS);
    }

    /* ---- rows of S ---------------------------------------------------------------------------------------------------------------------------- */

    __device__ __forceinline__ float *kept(int64_t t) const /* of the piece that begins at t */
    {
        return k.kept + (((begin / PIECE + n + (t - begin) / PIECE) * k.Hv + h) * k.R + first + row) * (int64_t)k.E;
    }
    __device__ __forceinline__ void write(float (&S)[NE], int j) const
    {
        const float less1 = mine(MINE_GATE, j);
#pragma unroll
        for (int i = 0; i < NE; i++) S[i] = fmaf(less1, S[i], S[i]);
        add(S, mine(MINE_B, j), along(ALONG_P, j));
        add(S, mine(MINE_K, j), along(ALONG_V, j));
    }
    __device__ void state_forwards()
    {
        float S[NE];
        start(S);
        if (begin < end) fetch(begin);
        for (int64_t t = begin; t < end; t += B) {
            put_tiles();
            if (t + B < end) fetch(t + B);
            if ((t - begin) % PIECE == 0 && first + row < k.R) {
                float *to = kept(t);
#pragma unroll
                for (int i = 0; i < NE; i++)
                    if (lane + 32 * i < k.E) to[lane + 32 * i] = S[i];
            }
            float reads[B];
#pragma unroll
            for (int j = 0; j < B; j++) {
                write(S, j);
                reads[j] = dot(S, along(ALONG_DO, j));
            }
            put_sums(OUT_DQ, reads, k.scale);
            __syncthreads();
            store(OUT_DQ, t);
        }
        finish(S);
    }

    /* The states before a piece's tokens t0, t0 + B, ..: the first is kept. */
    __device__ __forceinline__ void starts_of(int64_t t0, float (&starts)[PIECE / B][NE])
    {
        const float *from = kept(t0);
#pragma unroll
        for (int i = 0; i < NE; i++) starts[0][i] = lane + 32 * i < k.E && first + row < k.R ? from[lane + 32 * i] : 0.0f;
#pragma unroll 1
        for (int s = 1; s < PIECE / B && t0 + s * B < end; s++) {
            load(t0 + (s - 1) * B);
            float S[NE];
#pragma unroll
            for (int i = 0; i < NE; i++) S[i] = starts[s - 1][i];
#pragma unroll
            for (int j = 0; j < B; j++) write(S, j);
#pragma unroll
            for (int i = 0; i < NE; i++) starts[s][i] = S[i];
        }
    }
    /* The B tokens from t on, whose first begins with `at`. */
    __device__ __forceinline__ void state_back(int64_t t, const float (&at)[NE], float (&dS)[NE])
    {
        float S[B][NE], dk[B], db[B], da[B], dgate[B]; /* S: before each token */
        load(t);
#pragma unroll
        for (int i = 0; i < NE; i++) S[0][i] = at[i];
#pragma unroll
        for (int j = 1; j < B; j++) {
#pragma unroll
            for (int i = 0; i < NE; i++) S[j][i] = S[j - 1][i];
            write(S[j], j - 1);
        }
#pragma unroll
        for (int j = B - 1; j >= 0; j--) {
            add(dS, k.scale * mine(MINE_Q, j), along(ALONG_DO, j));
            dk[j] = dot(dS, along(ALONG_V, j));
            db[j] = dot(dS, along(ALONG_P, j));
            da[j] = dot(S[j], along(ALONG_DP, j));
            dgate[j] = 0;
            const float less1 = mine(MINE_GATE, j);
#pragma unroll
            for (int i = 0; i < NE; i++) {
                dgate[j] = fmaf(S[j][i], dS[i], dgate[j]);
                dS[i] = fmaf(less1, dS[i], dS[i]);
            }
            dgate[j] = fmaf(less1, dgate[j], dgate[j]);
            add(dS, mine(MINE_A, j), along(ALONG_DP, j));
        }
        put_sums(OUT_DK, dk, 1.0f);
        put_sums(OUT_DB, db, 1.0f);
        put_sums(OUT_DA, da, 1.0f);
        put_sums(OUT_DGK, dgate, 1.0f);
        __syncthreads();
        for (int which = OUT_DK; which <= OUT_DGK; which++) store(which, t);
    }
    __device__ void state_backwards()
    {
        float dS[NE];
        start(dS);
        for (int64_t piece = (end - begin + PIECE - 1) / PIECE - 1; piece >= 0; piece--) {
            const int64_t t0 = begin + piece * PIECE;
            float starts[PIECE / B][NE]; /* in local memory: touched once in B tokens */
            starts_of(t0, starts);
#pragma unroll 1
            for (int s = PIECE / B - 1; s >= 0; s--) {
                if (t0 + s * B >= end) continue;
                float S[NE];
#pragma unroll
                for (int i = 0; i < NE; i++) S[i] = starts[s][i];
                state_back(t0 + s * B, S, dS);
            }
        }
        finish(dS);
    }
};

template <int NE, int OF, bool BACK> __global__ __launch_bounds__(THREADS) void untied_kernel(const __grid_constant__ walk k)
{
    __shared__ typename walker<NE, OF>::tiles tiles;
    await_last();
    let_next();
    walker<NE, OF> x(k, tiles);
    if constexpr (OF == OF_TRANSPOSE)
        BACK ? x.transpose_backwards() : x.transpose_forwards();
    else
        BACK ? x.state_backwards() : x.state_forwards();
}

template <int NE> void put_of(const walk &k, int of, bool back, int64_t sequences, const lnt_cuda *d)
{
    static void (*const kernels[2][2])(const walk) = {
        { untied_kernel<NE, OF_TRANSPOSE, false>, untied_kernel<NE, OF_TRANSPOSE, true> },
        { untied_kernel<NE, OF_STATE, false>, untied_kernel<NE, OF_STATE, true> },
    };
    const unsigned grid = (unsigned)(sequences * k.Hv * k.blocks);
    if (grid) lnt_launch(d, kernels[of][back], grid, THREADS, k);
}
void put(const walk &k, int of, bool back, int64_t sequences, const lnt_cuda *d)
{
    (k.E <= 64 ? put_of<2> : k.E <= 128 ? put_of<4> : put_of<8>)(k, of, back, sequences, d);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------------- */

/* p, dp [T,Hv,V]; [T,Hv,K]: dq and dk of each value head where several share them, and all sums over slices of V where there are several. */
struct parts {
    float *kept, *p, *dp, *dq, *dk, *db, *da;
};
size_t carve(const lnt_recur_args *a, void *workspace, parts *w)
{
    vector_arena m = { (char *)workspace, 0 };
    *w = {};
    w->kept = m.take<float>((a->tokens / PIECE + a->sequences) * a->Hv * a->K * (a->V < SLICE ? a->V : SLICE));
    w->p = m.take<float>(a->tokens * a->Hv * a->V), w->dp = m.take<float>(a->tokens * a->Hv * a->V);
    const int64_t rows = a->tokens * a->Hv * a->K;
    if (a->Hq < a->Hv || a->V > SLICE) w->dq = m.take<float>(rows), w->dk = m.take<float>(rows);
    if (a->V > SLICE) w->db = m.take<float>(rows), w->da = m.take<float>(rows);
    return m.used;
}

walk walk_of(const lnt_recur_args *a, int of)
{
    const bool half = a->dtype == LINNET_BF16, state = of == OF_STATE;
    walk k = {};
    k.cu = a->cu_seqlens_device, k.Hq = a->Hq, k.Hv = a->Hv, k.scale = (float)a->scale;
    k.R = state ? a->K : a->V, k.E = k.width = state ? a->V : a->K, k.blocks = (int)lnt_div_up(k.R, ROWS);
    k.row_step = state ? a->V : 1, k.along_step = state ? 1 : a->V;
    rows_of *of_K = state ? k.mine : k.along; /* rows of K numbers */
    of_K[state ? MINE_A : ALONG_A] = { a->a, half, false };
    of_K[state ? MINE_B : ALONG_B] = { a->b, half, false };
    of_K[state ? MINE_K : ALONG_K] = { a->k, half, true };
    of_K[state ? MINE_Q : ALONG_Q] = { a->q, half, true };
    of_K[state ? MINE_GATE : ALONG_GATE] = { a->gk, false, false };
    return k;
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    walk k = walk_of(a, OF_TRANSPOSE);
    k.mine[MINE_VALUE] = { a->v, a->dtype == LINNET_BF16, false };
    k.out[OUT_O] = { a->o, a->dtype == LINNET_BF16 };
    k.start = (const float *)a->s0, k.finish = (float *)a->sT;
    put(k, OF_TRANSPOSE, false, a->sequences, (const lnt_cuda *)d);
}

/* Rows of S, columns c .. of V: there and back. */
void back_over_slice(const lnt_recur_args *a, const parts &w, int c, const lnt_cuda *d)
{
    const bool half = a->dtype == LINNET_BF16;
    walk k = walk_of(a, OF_STATE);
    auto from = [&](const void *p, bool halves) { return rows_of{ p ? (const char *)p + c * (halves ? 2 : 4) : NULL, halves, false }; };
    auto to = [&](void *p, float *sums) { return rows_to{ p && sums ? sums : p, half && !sums }; };
    auto state = [&](const void *p) { return p ? (float *)(uintptr_t)p + c : NULL; };
    k.E = a->V - c < SLICE ? a->V - c : SLICE, k.add = c > 0;
    k.along[ALONG_V] = from(a->v, half), k.along[ALONG_DO] = from(a->do_, half);
    k.along[ALONG_P] = from(w.p, false), k.along[ALONG_DP] = from(w.dp, false);
    k.kept = w.kept;
    k.start = state(a->s0);
    k.out[OUT_DQ] = to(a->dq, w.dq);
    put(k, OF_STATE, false, a->sequences, d);
    k.out[OUT_DK] = to(a->dk, w.dk), k.out[OUT_DB] = to(a->db, w.db), k.out[OUT_DA] = to(a->da, w.da);
    k.out[OUT_DGK] = { a->dgk, false };
    k.start = state(a->dsT), k.finish = state(a->ds0);
    put(k, OF_STATE, true, a->sequences, d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const bool half = a->dtype == LINNET_BF16;
    parts w;
    carve(a, a->workspace, &w);
    walk k = walk_of(a, OF_TRANSPOSE);
    k.mine[MINE_VALUE] = { a->v, half, false };
    k.out[OUT_P] = { w.p, false };
    k.start = (const float *)a->s0;
    put(k, OF_TRANSPOSE, false, a->sequences, d);
    k.mine[MINE_VALUE] = { a->do_, half, false };
    k.out[OUT_DV] = { a->dv, half };
    k.out[OUT_DP] = { w.dp, false };
    k.start = (const float *)a->dsT;
    put(k, OF_TRANSPOSE, true, a->sequences, d);

    for (int c = 0; c < a->V; c += SLICE) back_over_slice(a, w, c, d);
    if (w.dq) {
        lnt_vector_sum_heads(a->dq, half, w.dq, 1, a->tokens, a->Hv, a->Hq, a->K, d);
        lnt_vector_sum_heads(a->dk, half, w.dk, 1, a->tokens, a->Hv, a->Hq, a->K, d);
    }
    if (w.db) {
        lnt_vector_sum_heads(a->db, half, w.db, 1, a->tokens, a->Hv, a->Hv, a->K, d);
        lnt_vector_sum_heads(a->da, half, w.da, 1, a->tokens, a->Hv, a->Hv, a->K, d);
    }
}

size_t workspace(const void *args, bool back, int)
{
    parts w;
    return back ? carve((const lnt_recur_args *)args, NULL, &w) : 0;
}

const char *declines(const void *args, bool)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->K > 256 || a->V > WIDEST) return "K of at most 256 and V of at most 1024 are offered";
    return a->sequences >= ((int64_t)1 << 24) / a->Hv ? "too many sequences" : NULL;
}

} // namespace

extern "C" void lnt_delta_recurrent_cuda_forward(const void *args, const lnt_device *d); /* delta_step_cuda.cu */
LNT_CUDA_FORMS(lnt_dplr, row, declines, workspace, forward, backward, NULL, lnt_delta_recurrent_cuda_forward)
