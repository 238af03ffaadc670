/* The delta core token by token (operators.md#delta), for steps of one to a few tokens: the state is read once and written once.
 *
 *   E = v - a S^T k      u = beta E      S' = a S + k u^T      o = s S'^T q = s (a S^T q + (k.q) u)      a = e^g
 *
 * so one pass over S, and one reduction, serve the prediction and the read-out. A gate for each row decays S first, and a is 1. Untied
 * (operators.md#untied), with D = diag(e^gk),
 *
 *   p = S^T a            S' = D S + b p^T + k v^T              o = s ((D S)^T q + (b.q) p + (k.q) v)
 *
 * A CTA holds [K][32] of a state in registers: a thread 4 neighbouring
 * columns of every 16th row, a warp four rows of 128 bytes at a time. Floor: 8 K V bytes a head at the bandwidth of memory. */
#include "recurrence/delta/delta_cuda.cuh"

namespace {

constexpr int THREADS = 128, COLUMNS = 32, GROUPS = 16; /* GROUPS: rows at a time */
enum { HEAD_GATE, ROW_GATES, UNTIED };                  /* which rule */

struct step_args {
    const void *q, *k, *v, *a, *b;
    const float *g, *gk, *beta, *s0;
    float *sT;
    void *o;
    const int64_t *cu;
    int Hq, Hv, K, V, blocks, writes; /* blocks: of V */
    float scale;
    bool wide; /* rows of the state may be read 16 bytes at a time */
    bool early; /* and before kernels ahead have ended */
};

/* The 4 columns from `p` on, of which `left` exist. */
__device__ __forceinline__ void read4(float (&x)[4], const float *p, int left, bool wide)
{
    if (wide && left >= 4) {
        const float4 y = __ldcs((const float4 *)p);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = j < left ? p[j] : 0.f;
}
__device__ __forceinline__ void write4(float *p, const float (&x)[4], int left, bool wide)
{
    if (wide && left >= 4) {
        __stcs((float4 *)p, make_float4(x[0], x[1], x[2], x[3]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < left) p[j] = x[j];
}

/* What a token brings, before it is needed. */
template <int ROWS, int RULE> struct token_rows {
    static constexpr int PER = (ROWS * GROUPS + THREADS - 1) / THREADS;
    float k[PER], q[PER], gk[RULE == HEAD_GATE ? 1 : PER], a[RULE == UNTIED ? PER : 1], b[RULE == UNTIED ? PER : 1], v, g, beta;
};
/* Of the token's write; the first decays the state, and the last is read. */
template <typename T, int ROWS, int RULE>
__device__ __forceinline__ token_rows<ROWS, RULE> fetch(const step_args &p, int64_t token, int write, int h, int first)
{
    token_rows<ROWS, RULE> x;
    const int tid = (int)threadIdx.x;
    const int64_t t = token * p.writes + write, row = t * p.Hv + h;
    const int hq = h / (p.Hv / p.Hq);
    const int64_t k = (t * p.Hq + hq) * p.K, q = (token * p.Hq + hq) * p.K;
    const bool read = write + 1 == p.writes;
#pragma unroll
    for (int i = 0; i < token_rows<ROWS, RULE>::PER; i++) {
        const int j = tid + i * THREADS;
        x.k[i] = j < p.K ? to_float(((const T *)p.k)[k + j]) : 0.f;
        x.q[i] = read && j < p.K ? to_float(((const T *)p.q)[q + j]) : 0.f;
        if constexpr (RULE != HEAD_GATE) x.gk[i] = p.gk && j < p.K ? p.gk[row * p.K + j] : 0.f;
        if constexpr (RULE == UNTIED) {
            x.a[i] = j < p.K ? to_float(((const T *)p.a)[row * p.K + j]) : 0.f;
            x.b[i] = j < p.K ? to_float(((const T *)p.b)[row * p.K + j]) : 0.f;
        }
    }
    x.v = tid < COLUMNS && first + tid < p.V ? to_float(((const T *)p.v)[row * p.V + first + tid]) : 0.f;
    x.g = RULE == HEAD_GATE && p.g && write == 0 ? p.g[token * p.Hv + h] : 0.f;
    x.beta = RULE == UNTIED ? 0.f : p.beta[row];
    return x;
}

/* The same for all threads; less1: e^gk - 1, which keeps a small gate's accuracy over many tokens. */
template <int ROWS, int RULE> struct token_tile {
    static constexpr int ALL = ROWS * GROUPS + THREADS;
    float k[ALL], q[ALL], less1[RULE == HEAD_GATE ? 1 : ALL], a[RULE == UNTIED ? ALL : 1], b[RULE == UNTIED ? ALL : 1], v[COLUMNS];

    __device__ __forceinline__ void put(const token_rows<ROWS, RULE> &x)
    {
        const int tid = (int)threadIdx.x;
#pragma unroll
        for (int i = 0; i < token_rows<ROWS, RULE>::PER; i++) {
            k[tid + i * THREADS] = x.k[i];
            q[tid + i * THREADS] = x.q[i];
            if constexpr (RULE != HEAD_GATE) less1[tid + i * THREADS] = expm1f(x.gk[i]);
            if constexpr (RULE == UNTIED) a[tid + i * THREADS] = x.a[i], b[tid + i * THREADS] = x.b[i];
        }
        if (tid < COLUMNS) v[tid] = x.v;
    }
};

/* Until the initial states may be read, whose rows' columns begin at `first`; they are asked for in L2 before. */
__device__ __forceinline__ void await_states(const step_args &p, int64_t first)
{
    if (p.early) return;
    for (int r = (int)threadIdx.x; p.s0 && r < p.K; r += THREADS) ahead_l2(p.s0 + first + (int64_t)r * p.V);
    await_last();
}

template <typename T, int ROWS, int RULE> __global__ __launch_bounds__(THREADS) void step_kernel(const __grid_constant__ step_args p)
{
    __shared__ token_tile<ROWS, RULE> m;
    __shared__ float4 sums[THREADS / 32][2][COLUMNS / 4];
    __shared__ float dots[THREADS / 32][2];
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, row = tid / 8, column = tid % 8 * 4;
    const int first = (int)(blockIdx.x % p.blocks) * COLUMNS, h = (int)(blockIdx.x / p.blocks % p.Hv), left = p.V - first - column;
    const int64_t n = blockIdx.x / p.blocks / p.Hv, state = (n * p.Hv + h) * p.K * p.V + first + column;
    let_next();
    await_states(p, state - column);
    float S[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int r = row + i * GROUPS;
        S[i][0] = S[i][1] = S[i][2] = S[i][3] = 0.f;
        if (p.s0 && r < p.K) read4(S[i], p.s0 + state + (int64_t)r * p.V, left, p.wide);
    }
    if (p.early) await_last();
    int64_t token = p.cu[n]; /* behind the wait: a call that comes without offsets on the device has them put there by a kernel just ahead */
    const int64_t end = p.cu[n + 1];
    int write = 0;
    token_rows<ROWS, RULE> x;
    if (token < end) x = fetch<T, ROWS, RULE>(p, token, write, h, first);
    while (token < end) {
        m.put(x);
        const float a = expf(x.g), beta = x.beta;
        __syncthreads();
        const bool read = write + 1 == p.writes;
        const int64_t next = read ? token + 1 : token;
        write = read ? 0 : write + 1;
        if (next < end) x = fetch<T, ROWS, RULE>(p, next, write, h, first);
        float sk[4] = {}, sq[4] = {}, kq = 0.f, bq = 0.f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int r = row + i * GROUPS;
            const float kr = m.k[r], qr = m.q[r], ar = RULE == UNTIED ? m.a[r] : kr;
            kq += kr * qr;
            if constexpr (RULE == UNTIED) bq += m.b[r] * qr;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if constexpr (RULE == UNTIED) sk[j] += S[i][j] * ar;
                if constexpr (RULE != HEAD_GATE) S[i][j] = fmaf(m.less1[r], S[i][j], S[i][j]);
                if constexpr (RULE != UNTIED) sk[j] += S[i][j] * ar;
                sq[j] += S[i][j] * qr;
            }
        }
#pragma unroll
        for (int o = 8; o <= 16; o *= 2) {
            kq += __shfl_xor_sync(0xffffffffu, kq, o);
            if constexpr (RULE == UNTIED) bq += __shfl_xor_sync(0xffffffffu, bq, o);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sk[j] += __shfl_xor_sync(0xffffffffu, sk[j], o);
                sq[j] += __shfl_xor_sync(0xffffffffu, sq[j], o);
            }
        }
        if (lane < 8) {
            sums[warp][0][lane] = make_float4(sk[0], sk[1], sk[2], sk[3]);
            sums[warp][1][lane] = make_float4(sq[0], sq[1], sq[2], sq[3]);
            if (lane == 0) dots[warp][0] = kq, dots[warp][1] = bq;
        }
        __syncthreads();
        float u[4], o[4], total[2][4] = {};
        kq = bq = 0.f;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            kq += dots[w][0], bq += dots[w][1];
#pragma unroll
            for (int y = 0; y < 2; y++) {
                const float4 z = sums[w][y][column / 4];
                total[y][0] += z.x, total[y][1] += z.y, total[y][2] += z.z, total[y][3] += z.w;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u[j] = RULE == UNTIED ? m.v[column + j] : beta * (m.v[column + j] - a * total[0][j]);
            if constexpr (RULE == UNTIED) total[1][j] = fmaf(bq, total[0][j], total[1][j]);
            o[j] = p.scale * fmaf(kq, u[j], a * total[1][j]); /* whose sums are one and the same in all kernels */
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float kr = m.k[row + i * GROUPS], br = RULE == UNTIED ? m.b[row + i * GROUPS] : 0.f;
#pragma unroll
            for (int j = 0; j < 4; j++) S[i][j] = fmaf(kr, u[j], RULE == UNTIED ? fmaf(br, total[0][j], S[i][j]) : a * S[i][j]);
        }
        if (row == 0 && read)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (j < left) ((T *)p.o)[(token * p.Hv + h) * p.V + first + column + j] = from_float<T>(o[j]);
        token = next;
        __syncthreads();
    }
    if (!p.sT) return;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int r = row + i * GROUPS;
        if (r < p.K) write4(p.sT + state + (int64_t)r * p.V, S[i], left, p.wide);
    }
}

template <typename T, int RULE> void launch(const step_args &p, int64_t ctas, const lnt_cuda *d)
{
    if (p.K <= 64)
        lnt_launch(d, step_kernel<T, 4, RULE>, (unsigned)ctas, THREADS, p);
    else if (p.K <= 128)
        lnt_launch(d, step_kernel<T, 8, RULE>, (unsigned)ctas, THREADS, p);
    else
        lnt_launch(d, step_kernel<T, 16, RULE>, (unsigned)ctas, THREADS, p);
}

} // namespace

extern "C" void lnt_delta_recurrent_cuda_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const step_args p = { a->q, a->k, a->v, a->a, a->b, (const float *)a->g, (const float *)a->gk, (const float *)a->beta, (const float *)a->s0,
                          (float *)a->sT, a->o, a->cu_seqlens_device, a->Hq, a->Hv, a->K, a->V, (int)lnt_div_up(a->V, COLUMNS), lnt_recur_writes(a),
                          (float)a->scale, a->V % 4 == 0 && ((uintptr_t)a->s0 | (uintptr_t)a->sT) % 16 == 0, a->states_early };
    const int64_t ctas = a->sequences * a->Hv * p.blocks;
    if (!ctas) return;
    LNT_BY_TYPE(a->dtype, T, (a->a ? launch<T, UNTIED> : a->gk ? launch<T, ROW_GATES> : launch<T, HEAD_GATE>)(p, ctas, (const lnt_cuda *)d));
}
