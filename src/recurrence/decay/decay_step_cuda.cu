/* The decay core on a GPU, token by token. Equations: README.md. */
#include "recurrence/decay/decay_stable.cuh"
#include "recurrence/recur_cuda.cuh"

/* A CTA has 32 columns of a value head's state in registers: a warp 4 rows at a time, 8 lanes a row, 4 columns a lane; 8 warps take rows 32 apart.
 * Every byte of the state is read and written once whatever the number of tokens. */
static constexpr int STEP_THREADS = 256, STEP_WIDEST = 512, STEP_ROWS = DECAY_WIDEST / 32, STEP_MOST_ROWS = STEP_WIDEST / 32;

/* A gate for each row of S, and for each column; with a bonus o_t reads S_{t-1} + (bonus . k_t) v_t^T. NULL: none. */
struct step_gates {
    const float *gk, *gv, *bonus; /* [T,Hv,K], [T,Hv,V], [Hv,K] */
};

/* ROWS: of a thread, 32 apart: K / 32 or more. VECTOR: `gates` stand in the place of g and g_head. `strength` [T,Hv] is that of writes; NULL: 1. */
template <typename T, bool QUADS, int ROWS, bool VECTOR>
__global__ __launch_bounds__(STEP_THREADS, ROWS <= 4 ? 5 : ROWS <= 8 ? 3 : 2) void decay_step(
    const __grid_constant__ decay_cut x, const T *q, const T *k, const T *v, const float *s0, float *sT, T *o, const float *den, int Hq, int K, int V,
    int blocks, const __grid_constant__ step_gates gates, const float *strength, bool early)
{
    __shared__ float4 sums[2][STEP_THREADS / 32][8];
    const int64_t head = blockIdx.x / blocks, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, hq = (int)((int64_t)h * Hq / x.Hv);
    const int e = (int)(blockIdx.x % blocks) * 32 + lane % 8 * 4, row = warp * 4 + lane / 8;
    float S[ROWS][4] = {};
    let_next();
    if (!early) {
        if (s0)
            for (int d = (int)threadIdx.x; d < K; d += STEP_THREADS) ahead_l2(s0 + (head * K + d) * V + blockIdx.x % blocks * 32);
        await_last();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int d = row + 32 * r;
        if (d >= K || !s0) continue;
        const float *from = s0 + (head * K + d) * V + e;
        if (QUADS) {
            if (e < V) load_pack<4>(S[r], from);
        } else
            for (int j = 0; j < 4; j++)
                if (e + j < V) S[r][j] = from[j];
    }
    if (early) await_last();
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        /* e^g - 1: a small gate keeps its accuracy over the many tokens that it lets through */
        const float less = VECTOR ? 0.0f : expm1f(decay_gate(x, t, h)), write = !VECTOR && strength ? strength[t * x.Hv + h] : 1.0f;
        const T *qt = q + (t * Hq + hq) * K, *kt = k + (t * Hq + hq) * K, *vt = v + (t * x.Hv + h) * V;
        float y[4], column[4] = { 0 }, sum[4] = { 0 };
        for (int j = 0; j < 4; j++) {
            y[j] = e + j < V ? to_float(vt[e + j]) : 0.0f;
            if (VECTOR && gates.gv && e + j < V) column[j] = expm1f(gates.gv[(t * x.Hv + h) * V + e + j]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = row + 32 * r;
            if (d >= K) continue;
            const float kd = VECTOR ? to_float(kt[d]) : write * to_float(kt[d]), qd = to_float(qt[d]);
            const float row_less = !VECTOR ? less : gates.gk ? expm1f(gates.gk[(t * x.Hv + h) * K + d]) : 0.0f;
            const float u = VECTOR && gates.bonus ? gates.bonus[h * K + d] : 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool early = VECTOR && gates.bonus;
                if (early) sum[j] += qd * fmaf(u * kd, y[j], S[r][j]);
                S[r][j] = fmaf(row_less, S[r][j], S[r][j]);
                if (VECTOR) S[r][j] = fmaf(column[j], S[r][j], S[r][j]);
                S[r][j] = fmaf(kd, y[j], S[r][j]);
                if (!early) sum[j] += qd * S[r][j];
            }
        }
        const int side = (int)(t & 1);
        for (int j = 0; j < 4; j++) {
            sum[j] += __shfl_xor_sync(~0u, sum[j], 8);
            sum[j] += __shfl_xor_sync(~0u, sum[j], 16);
        }
        if (lane < 8) sums[side][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        const int at = e - lane % 8 * 4 + lane;
        if (warp == 0 && at < V) {
            float all = 0;
            for (int w = 0; w < STEP_THREADS / 32; w++) all += ((const float *)sums[side][w])[lane];
            all *= x.scale;
            o[(t * x.Hv + h) * V + at] = from_float<T>(den ? all / den[t * x.Hv + h] : all);
        }
    }
    if (!sT) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int d = row + 32 * r;
        if (d >= K) continue;
        float *to = sT + (head * K + d) * V + e;
        if (QUADS) {
            if (e < V) store_pack<4>(to, S[r]);
        } else
            for (int j = 0; j < 4; j++)
                if (e + j < V) to[j] = S[r][j];
    }
}

/* den = s z . q + eps and the end of z, a warp a value head. */
template <typename T, int ROWS>
__global__ __launch_bounds__(32) void decay_step_den(const __grid_constant__ decay_cut x, const T *q, const T *k, const float *z0, float *zT,
                                                     float *den, float eps, int Hq, int K)
{
    const int64_t head = blockIdx.x, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x, hq = (int)((int64_t)h * Hq / x.Hv);
    float z[ROWS];
    let_next();
    await_last();
    for (int r = 0; r < ROWS; r++) z[r] = z0 && lane + 32 * r < K ? z0[head * K + lane + 32 * r] : 0.0f;
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float less = expm1f(decay_gate(x, t, h));
        float sum = 0;
        for (int r = 0; r < ROWS; r++) {
            const int d = lane + 32 * r;
            if (d >= K) continue;
            z[r] = fmaf(less, z[r], z[r]) + to_float(k[(t * Hq + hq) * K + d]);
            sum += z[r] * to_float(q[(t * Hq + hq) * K + d]);
        }
        sum = warp_sum(sum);
        if (lane == 0) den[t * x.Hv + h] = x.scale * sum + eps;
    }
    for (int r = 0; r < ROWS; r++)
        if (zT && lane + 32 * r < K) zT[head * K + lane + 32 * r] = z[r];
}

/* mLSTM: m and n, a warp a value head, and what a token's step takes of them: D_t, the gate of the kept states, the strength of its write. */
struct step_stable {
    const float *f, *i, *m0, *n0;
    float *mT, *nT, *den, *g, *write;
    float eps;
};
template <typename T, int ROWS>
__global__ __launch_bounds__(32) void decay_step_stable(const __grid_constant__ decay_cut x, const T *q, const T *k,
                                                        const __grid_constant__ step_stable a,
                                                        int Hq, int K)
{
    const int64_t head = blockIdx.x, n = head / x.Hv;
    const int h = (int)(head % x.Hv), hq = (int)((int64_t)h * Hq / x.Hv);
    let_next();
    await_last();
    float m = a.m0 ? a.m0[head] : 0.0f;
    stable_row<1, ROWS> z = {}, row;
    if (a.n0) z.get(a.n0 + head * K, K);
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float before = m, i = a.i[t * x.Hv + h], through = a.f[t * x.Hv + h] + before;
        m = through > i ? through : i;
        if (m == -INFINITY) m = 0.0f; /* no write to no state */
        const float g = (float)((double)a.f[t * x.Hv + h] + before - m);
        const stable_factors f = { expm1f(lnt_gate(g)), expf(i - m) };
        row.get(k + (t * Hq + hq) * K, K);
        z.step(f, row);
        row.get(q + (t * Hq + hq) * K, K);
        const float den = x.scale * warp_sum(z.dot(row));
        if (threadIdx.x) continue;
        a.den[t * x.Hv + h] = stable_denominator(den, m, a.eps);
        a.g[t * x.Hv + h] = g;
        a.write[t * x.Hv + h] = f.write;
    }
    if (a.nT) z.put(a.nT + head * K, K);
    if (a.mT && threadIdx.x == 0) a.mT[head] = m;
}

static bool is_stable(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_STABLE; }

static size_t step_workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const size_t rows = (size_t)a->tokens * (size_t)a->Hv * sizeof(float);
    if (is_stable(a)) return 3 * rows;
    return a->normalize ? rows : 0;
}

template <typename T, bool VECTOR> static void step(const lnt_recur_args *a, const lnt_cuda *d)
{
    decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, 1, 1, a->Hv, (const float *)a->g, (const float *)a->g_head, (float)a->scale };
    float *den = a->normalize ? (float *)a->workspace : NULL, *sT = (float *)a->sT, *zT = (float *)a->zT, eps = (float)a->eps;
    const float *s0 = (const float *)a->s0, *z0 = (const float *)a->z0;
    int Hq = a->Hq, K = a->K, V = a->V, blocks = (V + 31) / 32;
    const int64_t heads = a->sequences * a->Hv;
    if (heads == 0) return;
    float *write = NULL;
    if (!VECTOR && is_stable(a)) {
        const int64_t rows = a->tokens * a->Hv;
        float *g = (float *)a->workspace + rows;
        den = (float *)a->workspace, write = g + rows;
        const step_stable stable = { (const float *)a->g, (const float *)a->i, (const float *)a->m0, z0, (float *)a->mT, zT, den, g, write, eps };
        const auto kernel = K <= DECAY_WIDEST ? decay_step_stable<T, STEP_ROWS> : decay_step_stable<T, STEP_MOST_ROWS>;
        lnt_launch(d, kernel, (unsigned)heads, 32, x, (const T *)a->q, (const T *)a->k, stable, Hq, K);
        x.g = g;
    } else if (den) {
        const auto kernel = K <= DECAY_WIDEST ? decay_step_den<T, STEP_ROWS> : decay_step_den<T, STEP_MOST_ROWS>;
        lnt_launch(d, kernel, (unsigned)heads, 32, x, (const T *)a->q, (const T *)a->k, z0, zT, den, eps, Hq, K);
    }
    const bool quads = V % 4 == 0 && ((uintptr_t)s0 | (uintptr_t)sT) % 16 == 0;
    auto *narrow = quads ? decay_step<T, true, 4, VECTOR> : decay_step<T, false, 4, VECTOR>;
    auto *wide = quads ? decay_step<T, true, STEP_ROWS, VECTOR> : decay_step<T, false, STEP_ROWS, VECTOR>;
    auto *widest = quads ? decay_step<T, true, STEP_MOST_ROWS, VECTOR> : decay_step<T, false, STEP_MOST_ROWS, VECTOR>;
    lnt_launch(d, K <= 128 ? narrow : K <= DECAY_WIDEST ? wide : widest, (unsigned)(heads * blocks), STEP_THREADS, x, (const T *)a->q,
               (const T *)a->k, (const T *)a->v, s0, sT, (T *)a->o, den, Hq, K, V, blocks,
               step_gates{ (const float *)a->gk, (const float *)a->gv, (const float *)a->bonus }, write, a->states_early);
}
template <bool VECTOR> static void step_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    LNT_BY_TYPE(a->dtype, T, step<T, VECTOR>(a, (const lnt_cuda *)d));
}

static const char *step_too_wide(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    return a->K > STEP_WIDEST || a->V > DECAY_WIDEST_V ? "K of at most 512 and V of at most 1024 are offered" : NULL;
}

LNT_CUDA_FORM(lnt_decay_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, step_too_wide, step_workspace, step_forward<false>, NULL)
LNT_CUDA_FORM(lnt_vector_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, step_too_wide, step_workspace, step_forward<true>, NULL)
