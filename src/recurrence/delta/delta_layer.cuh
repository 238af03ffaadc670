/* A decoding step of a delta layer between its products: short convolutions of q, k, v with SiLU and the L2 norm of q and k, the delta rule, and the
 * RMS norm of each head, one token for each sequence.
 *
 *   q, k = l2(silu(conv(x)))     v = silu(conv(x))     S' and o: delta_step_cuda.cu     y = o r w act(gate)     r = (mean o^2 + eps)^-1/2
 *
 * A block has a query-key head of a sequence and goes through its value heads. A state comes to shared memory as a whole, 32 rows a copy, and is read
 * there twice: for S^T k and S^T q as it comes, and for S', which goes straight to memory; several blocks share a multiprocessor, and one loads while
 * another computes. A warp has every row of two groups in turn, 4 columns a lane.
 *
 * States, windows and weights are read before await_last (device/cuda.cuh says why that is right), and let_next comes when those loads are on their
 * way. All is rounded where the parts store, and sums are added in their order: bf16 has the same bits. Floor: the state read once and written once,
 * 8 K V bytes a head.
 *
 * Slower, for 64 sequences of 16 heads (38.4 us; the simplest kernel rewrites their 64 MiB in place in 34): states in registers, 32 columns a
 * block, six blocks a multiprocessor, a head's four a cluster that exchanges o for the norm (41.5; for one sequence 2.4 where this takes 3.1, yet
 * 2% more of a step); blocks of that kind that stay, and have the next sequence's state copied meanwhile (46 to 60); 512 threads (40.5); 80
 * registers, for three blocks a multiprocessor (39.8); 127 registers, which leave no place for the next product's blocks (8 sequences: 3% of a
 * step); S' by ordinary stores (46.6); loads that leave L2 first (39.7); states asked for behind await_last (1.5% of a step). */
#ifndef LNT_DELTA_LAYER_CUH
#define LNT_DELTA_LAYER_CUH

#include "device/persistent.cuh"
#include "device/wgmma.cuh"
#include "ops/short_conv.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
#include "recurrence/delta/delta_gpu.h"
}

namespace delta_layer {

constexpr int GROUPS = 16; /* rows of a state are summed in so many groups, row r in group r mod 16: the order of delta_step_cuda.cu */
constexpr int WARPS = 8, EACH = GROUPS / WARPS; /* groups of a warp, neighbours */
constexpr int MOST_K = 128, MOST_V = 32 * WARPS, TAPS = 4, CHUNK = 32; /* CHUNK: rows of a state in a copy */
static_assert(EACH == 2, "sums go by pairs of groups");

struct layer_conv {
    const void *x;  /* [sequences, cols] */
    const float *w; /* [cols, TAPS] */
    char *window;   /* [TAPS-1, cols] of sequence n at n stride */
    int64_t stride;
    int cols;
    float eps;      /* of the L2 norm */
};
struct layer_args {
    layer_conv conv[3];   /* q, k, v */
    const float *g, *beta, *w; /* g, w NULL: none */
    float *S;             /* [sequences, Hv, K, V] */
    void *o, *y;          /* NULL: not wanted */
    const void *gate;     /* SiLU's; NULL: none */
    int Hv, V, group;     /* group: value heads of a query-key head */
    float scale, eps;
};

/* ---- four columns of a convolution ------------------------------------------------------------------------------------------------------ */

struct layer_unit {
    float w[TAPS][4], x[TAPS][4]; /* taps and inputs, the token's own last */
    float *window;                /* of these columns */

    __device__ __forceinline__ void load(const layer_conv &f, int n, int c)
    {
        window = (float *)(f.window + n * f.stride) + c;
        load_taps(f.w, TAPS, c, w);
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++) get_weights(x[j], window + j * (int64_t)f.cols);
    }
    /* z becomes silu(conv); the window moves on. */
    template <typename T> __device__ __forceinline__ void run(const layer_conv &f, int n, int c, float (&z)[4])
    {
        load_pack(x[TAPS - 1], (const T *)f.x + (int64_t)n * f.cols + c);
#pragma unroll
        for (int j = 0; j < TAPS; j++)
#pragma unroll
            for (int u = 0; u < 4; u++) z[u] = j ? z[u] + w[j][u] * x[j][u] : w[j][u] * x[j][u];
#pragma unroll
        for (int u = 0; u < 4; u++) z[u] *= sigmoid_of(z[u]);
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++) store_pack(window + j * (int64_t)f.cols, x[j + 1]);
    }
};

/* ---- the norm of a head --------------------------------------------------------------------------------------------------------------------- */

/* r of os [V], in the order of norms_cuda.cu: units of 16 bytes of T, two a lane. All lanes have it. */
template <typename T> __device__ __forceinline__ float head_scale(const float *os, int V, float eps)
{
    constexpr int U = 16 / sizeof(T);
    const int units = V / U;
    int lanes = 1;
    while (2 * lanes < units) lanes *= 2;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int unit = ((int)threadIdx.x & (lanes - 1)) + i * lanes;
        float v[U];
        get_weights(v, os + (unit < units ? unit : 0) * U);
        if (unit < units)
#pragma unroll
            for (int u = 0; u < U; u++) s += v[u] * v[u];
    }
    for (int o = lanes / 2; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    return 1.0f / sqrtf(s * (1.0f / (float)V) + eps);
}

template <typename T> __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }

/* ---- the step ---------------------------------------------------------------------------------------------------------------------------- */

/* What the warps of a block hand each other, behind the state in dynamic shared memory. */
struct layer_share {
    float *S;         /* [K][V] */
    float *sums;      /* [WARPS][2][V], of S^T k and S^T q */
    float *u;         /* [V]; v until u takes its place */
    const float2 *kq; /* [K] */
    float *dots;      /* [WARPS], of k.q */
};

/* This warp's part of S^T k, S^T q and k.q, chunk by chunk as the state comes. */
template <int K> __device__ __forceinline__ void sum_warp(const layer_share &m, int V, uint64_t *full, uint32_t parity)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll 1
    for (int column = 4 * lane; column < V; column += 128) {
        float sk[EACH][4] = {}, sq[EACH][4] = {}, dot[EACH] = {};
#pragma unroll
        for (int r = 0; r < K / GROUPS; r++) {
            if (r * GROUPS % CHUNK == 0) mbarrier_wait(&full[r * GROUPS / CHUNK], parity);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int row = r * GROUPS + warp * EACH + e;
                const float2 kq = m.kq[row];
                float x[4];
                get_weights(x, m.S + row * V + column);
                dot[e] += kq.x * kq.y;
#pragma unroll
                for (int j = 0; j < 4; j++) sk[e][j] += x[j] * kq.x, sq[e][j] += x[j] * kq.y;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) sk[0][j] += sk[1][j], sq[0][j] += sq[1][j];
        store_pack(m.sums + 2 * warp * V + column, sk[0]);
        store_pack(m.sums + (2 * warp + 1) * V + column, sq[0]);
        if (lane == 0) m.dots[warp] = dot[0] + dot[1];
    }
}

/* S' to memory. */
template <int K> __device__ __forceinline__ void write_warp(const layer_share &m, int V, float a, float *state)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll 1
    for (int column = 4 * lane; column < V; column += 128) {
        float u[4], x[4];
        get_weights(u, m.u + column);
#pragma unroll
        for (int r = 0; r < K / GROUPS; r++)
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int row = r * GROUPS + warp * EACH + e;
                const float k = m.kq[row].x;
                get_weights(x, m.S + row * V + column);
#pragma unroll
                for (int j = 0; j < 4; j++) x[j] = fmaf(k, u[j], a * x[j]);
                __stcs((float4 *)(state + row * V + column), make_float4(x[0], x[1], x[2], x[3]));
            }
    }
}

/* What a block has besides the state: [K][V] floats, of which a copy brings CHUNK rows, the sums, u and o. */
struct layer_small {
    float2 kq[MOST_K];
    float dots[WARPS];
    uint64_t full[MOST_K / CHUNK];
};
static inline size_t layer_bytes(int K, int V) { return (size_t)(K + 2 * WARPS + 2) * V * 4; }
__device__ __forceinline__ void layer_init(layer_small &s)
{
    for (int j = 0; j < MOST_K / CHUNK; j++) mbarrier_init(&s.full[j], 1);
}

/* Query-key head `head` of sequence n, by 32 WARPS threads, in `memory`, aligned to 128; turn: states that came there before. */
template <typename T, int K, class Work>
__device__ __forceinline__ void layer_step(const layer_args &p, int head, int n, float *memory, layer_small &small, const Work &work, int turn)
{
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, V = p.V;
    float *sums = memory + K * V, *us = sums + 2 * WARPS * V, *os = us + V;
    float2 *kq = small.kq;
    float *dots = small.dots;
    uint64_t *full = small.full;
    const layer_share m = {memory, sums, us, kq, dots};
    const int part = warp < 2 ? warp : 2, at = 4 * (warp < 2 ? lane : tid - 64); /* warps for q, k and v */
    const layer_conv &f = p.conv[part];
    layer_unit unit;
#pragma unroll 1
    for (int i = 0; i < p.group; i++) {
        const int h = head * p.group + i, hv = n * p.Hv + h, c = (part < 2 ? head * K : h * V) + at;
        const bool converts = part < 2 ? i == 0 && at < K : at < V;
        float *state = p.S + (int64_t)hv * K * V;
        if (tid == 0) {
            for (int j = 0; j < K / CHUNK; j++) {
                mbarrier_expect(&full[j], CHUNK * V * 4);
                bulk_load(m.S + j * CHUNK * V, state + j * CHUNK * V, CHUNK * V * 4, &full[j]);
            }
            for (int j = K / CHUNK; j < MOST_K / CHUNK; j++) mbarrier_arrive(&full[j]); /* all have as many phases */
        }
        if (converts) unit.load(f, n, c);
        if (i == 0) {
            work.begin(); /* the next product's weights queue up behind what is needed here */
            work.wait();
        }
        const float a = p.g ? expf(p.g[hv]) : 1.0f, beta = p.beta[hv];
        const bool finishes = tid < V && p.y;
        const float gate = finishes && p.gate ? to_float(((const T *)p.gate)[hv * V + tid]) : 0.0f, w = finishes && p.w ? p.w[tid] : 1.0f;
        float z[4] = {};
        if (converts) unit.run<T>(f, n, c, z);
        if (part < 2 && i == 0) {
            float s = 0.0f;
#pragma unroll
            for (int u = 0; u < 4; u++) s += z[u] * z[u];
            const float r = rsqrtf(head_sum<ANY_LANES>(s, K / 4) + f.eps);
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (converts) (part ? kq[at + u].x : kq[at + u].y) = rounded<T>(z[u] * r);
        } else if (converts)
#pragma unroll
            for (int u = 0; u < 4; u++) us[at + u] = rounded<T>(z[u]);
        work.sync();

        sum_warp<K>(m, V, full, (uint32_t)(turn + i) & 1);
        work.sync();
        if (tid < V) {
            float total[2] = {}, dot = 0.0f;
#pragma unroll
            for (int j = 0; j < WARPS; j += 2) { /* four groups at a time */
                const float *s = sums + 2 * j * V + tid;
                dot += dots[j] + dots[j + 1];
                total[0] += s[0] + s[2 * V], total[1] += s[V] + s[3 * V];
            }
            const float u = beta * (us[tid] - a * total[0]), o = p.scale * fmaf(dot, u, a * total[1]);
            us[tid] = u, os[tid] = rounded<T>(o);
            if (p.o) ((T *)p.o)[(int64_t)hv * V + tid] = from_float<T>(o);
        }
        work.sync();
        if (p.y && 32 * warp < V) {
            const float r = head_scale<T>(os, V, p.eps);
            if (finishes) {
                float y = os[tid] * (p.w ? r * w : r);
                if (p.gate) y *= gate * sigmoid_of(gate);
                ((T *)p.y)[(int64_t)hv * V + tid] = from_float<T>(y);
            }
        }
        if (i + 1 == p.group) work.leave();
        write_warp<K>(m, V, a, state);
        if (i + 1 < p.group) work.sync(); /* the next state comes to the same place */
    }
}

/* As a piece of a recorded step: block b is the step of head b % heads. */
struct layer_piece {
    layer_args args;
    int heads, K;

    template <class Work> __device__ __forceinline__ void step(float *memory, int b, layer_small &small, const Work &work, int turn) const
    {
        const int n = b / heads, head = b - n * heads;
        if (K == 64)
            layer_step<bf16, 64>(args, head, n, memory, small, work, turn);
        else
            layer_step<bf16, 128>(args, head, n, memory, small, work, turn);
    }
};

} // namespace delta_layer

#endif
