/* A rule's step of one head of K = V columns among a chain's functions. With D = diag(e^gk), untied (operators.md#untied)
 *
 *   p = S^T a            S' = D S + b p^T + k v^T            o = s ((D S)^T q + (b.q) p + (k.q) v)
 *
 * and the delta rule (operators.md#delta)
 *
 *   u = beta (v - (D S)^T k)            S' = D S + k u^T            o = s ((D S)^T q + (k.q) u)
 *
 * A block has the state in registers from before the kernels ahead have ended, a thread four columns of ROWS rows; one pass over it and
 * one sum over rows serve p and the read-out, as in recurrence/delta/delta_step_cuda.cu. Floor: the state read once and written once. */
#ifndef LNT_OPS_ROW_CHAIN_RULE_CUH
#define LNT_OPS_ROW_CHAIN_RULE_CUH

#include "device/cuda.cuh"

enum { LNT_RULE_THREADS = 256 };

/* Rows of the token, by those of the block's threads that have made them, and what the block's warps have of S^T a and (D S)^T q, of k.q and b.q. */
template <int K> struct rule_share {
    alignas(16) float sums[LNT_RULE_THREADS / 32][2][K]; /* four at a time */
    alignas(16) float q[K], k[K], v[K], a[K], b[K], less1[K]; /* less1: e^gk - 1, which keeps a small gate's accuracy over many tokens */
    float dots[LNT_RULE_THREADS / 32][2], beta;
};

template <int K, bool UNTIED> struct rule_state {
    static constexpr int QUADS = K / 4, AT_ONCE = LNT_RULE_THREADS / QUADS, ROWS = K / AT_ONCE, WARPS = LNT_RULE_THREADS / 32;
    float S[ROWS][4];

    __device__ __forceinline__ int row(int i) const { return (int)threadIdx.x / QUADS * ROWS + i; }
    __device__ __forceinline__ int column() const { return (int)threadIdx.x % QUADS * 4; }

    __device__ __forceinline__ void load(const float *state)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) load_pack<4>(S[i], state + row(i) * K + column());
    }
    /* This warp's sums; S becomes D S. */
    __device__ __forceinline__ void sum(rule_share<K> &m)
    {
        float p[4] = {}, o[4] = {}, dots[2] = {};
#pragma unroll
        for (int first = 0; first < ROWS; first += 4) {
            float k[4], q[4], less1[4], a[4], b[4];
            load_pack<4>(k, &m.k[row(first)]), load_pack<4>(q, &m.q[row(first)]), load_pack<4>(less1, &m.less1[row(first)]);
            if (UNTIED) load_pack<4>(a, &m.a[row(first)]), load_pack<4>(b, &m.b[row(first)]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dots[0] += k[i] * q[i];
                if (UNTIED) dots[1] += b[i] * q[i];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float &s = S[first + i][j];
                    if (UNTIED) p[j] += s * a[i];
                    s = fmaf(less1[i], s, s);
                    if (!UNTIED) p[j] += s * k[i];
                    o[j] += s * q[i];
                }
            }
        }
#pragma unroll
        for (int w = QUADS; w < 32; w *= 2) {
            dots[0] += __shfl_xor_sync(0xffffffffu, dots[0], w), dots[1] += __shfl_xor_sync(0xffffffffu, dots[1], w);
#pragma unroll
            for (int j = 0; j < 4; j++) p[j] += __shfl_xor_sync(0xffffffffu, p[j], w), o[j] += __shfl_xor_sync(0xffffffffu, o[j], w);
        }
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        if (lane >= QUADS) return;
        store_pack(&m.sums[warp][0][column()], p);
        store_pack(&m.sums[warp][1][column()], o);
        if (lane == 0) m.dots[warp][0] = dots[0], m.dots[warp][1] = dots[1];
    }
    /* Of N columns from c on, behind a barrier: 0, S^T a or (D S)^T k; 1, (D S)^T q. */
    template <int N> static __device__ __forceinline__ void total(float (&x)[N], const rule_share<K> &m, int which, int c)
    {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float y[N];
            load_pack<N>(y, &m.sums[w][which][c]);
#pragma unroll
            for (int j = 0; j < N; j++) x[j] = w ? x[j] + y[j] : y[j];
        }
    }
    /* What k writes to N columns from c on, whose first sums are p. */
    template <int N> static __device__ __forceinline__ void written(float (&u)[N], const float (&p)[N], const rule_share<K> &m, int c)
    {
        load_pack<N>(u, &m.v[c]);
#pragma unroll
        for (int j = 0; j < N; j++) u[j] = UNTIED ? u[j] : m.beta * (u[j] - p[j]);
    }
    /* o of N columns from c on. */
    template <int N> static __device__ __forceinline__ void read(float (&o)[N], const rule_share<K> &m, int c, float scale)
    {
        float p[N], u[N], kq = 0.0f, bq = 0.0f;
        total(p, m, 0, c);
        total(o, m, 1, c);
        written(u, p, m, c);
#pragma unroll
        for (int w = 0; w < WARPS; w++) kq += m.dots[w][0], bq += m.dots[w][1];
#pragma unroll
        for (int j = 0; j < N; j++) o[j] = scale * fmaf(kq, u[j], UNTIED ? fmaf(bq, p[j], o[j]) : o[j]);
    }
    /* S' to memory. */
    __device__ __forceinline__ void write(float *state, const rule_share<K> &m)
    {
        float p[4], u[4];
        total(p, m, 0, column());
        written(u, p, m, column());
#pragma unroll
        for (int first = 0; first < ROWS; first += 4) {
            float k[4], b[4];
            load_pack<4>(k, &m.k[row(first)]);
            if (UNTIED) load_pack<4>(b, &m.b[row(first)]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float s[4];
#pragma unroll
                for (int j = 0; j < 4; j++) s[j] = fmaf(k[i], u[j], UNTIED ? fmaf(b[i], p[j], S[first + i][j]) : S[first + i][j]);
                __stcs((float4 *)(state + row(first + i) * K + column()), make_float4(s[0], s[1], s[2], s[3]));
            }
        }
    }
};

#endif
