/* The decay core's step on a GPU: what its kernel (decay_step_cuda.cu) and a kernel of a whole step (recurrence/persistent_sm90.cu) do alike. */
#ifndef LNT_DECAY_STEP_CUH
#define LNT_DECAY_STEP_CUH

#include "device/persistent.cuh"
#include "recurrence/decay/decay_cuda.cuh"

/* A CTA has 32 columns of a value head's state in registers: a warp 4 rows at a time, 8 lanes a row, 4 columns a lane; 8 warps take rows 32 apart.
 * Every byte of the state is read and written once whatever the number of tokens. */
static constexpr int STEP_THREADS = 256, STEP_WIDEST = 512, STEP_ROWS = DECAY_WIDEST / 32, STEP_MOST_ROWS = STEP_WIDEST / 32;

/* A gate for each row of S, and for each column; with a bonus o_t reads S_{t-1} + (bonus . k_t) v_t^T. NULL: none. */
struct step_gates {
    const float *gk, *gv, *bonus; /* [T,Hv,K], [T,Hv,V], [Hv,K] */
};

/* ROWS: of a thread, 32 apart: K / 32 or more. VECTOR: `gates` stand in the place of g and g_head. `strength` [T,Hv] is that of writes; NULL: 1. */
struct decay_step_args {
    decay_cut x;
    const void *q, *k, *v;
    const float *s0;
    float *sT;
    void *o;
    const float *den;
    int Hq, K, V, blocks;
    step_gates gates;
    const float *strength;
    bool early;
};
struct decay_step_share {
    float4 sums[2][STEP_THREADS / 32][8];
};

template <typename T, bool QUADS, int ROWS, bool VECTOR, class Work>
__device__ __forceinline__ void decay_step(const decay_step_args &a, int block, decay_step_share &share, const Work &work)
{
    const decay_cut &x = a.x;
    const T *q = (const T *)a.q, *k = (const T *)a.k, *v = (const T *)a.v;
    const float *s0 = a.s0, *den = a.den, *strength = a.strength;
    const int Hq = a.Hq, K = a.K, V = a.V, blocks = a.blocks;
    const step_gates &gates = a.gates;
    T *o = (T *)a.o;
    float *sT = a.sT;
    float4 (*sums)[STEP_THREADS / 32][8] = share.sums;
    const int64_t head = block / blocks, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, hq = (int)((int64_t)h * Hq / x.Hv);
    const int e = block % blocks * 32 + lane % 8 * 4, row = warp * 4 + lane / 8;
    float S[ROWS][4] = {};
    work.begin();
    if (!a.early) {
        if (s0)
            for (int d = (int)threadIdx.x; d < K; d += STEP_THREADS) ahead_l2(s0 + (head * K + d) * V + block % blocks * 32);
        work.wait();
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
    if (a.early) work.wait();
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
        work.sync();
        const int at = e - lane % 8 * 4 + lane;
        if (warp == 0 && at < V) {
            float all = 0;
            for (int w = 0; w < STEP_THREADS / 32; w++) all += ((const float *)sums[side][w])[lane];
            all *= x.scale;
            o[(t * x.Hv + h) * V + at] = from_float<T>(den ? all / den[t * x.Hv + h] : all);
        }
    }
    work.leave();
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

/* As a piece of a recorded step: heads of up to 128 rows, 4 columns at a time. */
struct decay_piece {
    decay_step_args args;
    bool vector;
    template <class Work> __device__ __forceinline__ void step(int b, decay_step_share &share, const Work &work) const
    {
        if (vector)
            decay_step<bf16, true, 4, true>(args, b, share, work);
        else
            decay_step<bf16, true, 4, false>(args, b, share, work);
    }
};

#endif
