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
 * step); S' by ordinary stores (46.6), by way of the place of S and the copy engine (1.5% of a step, of one sequence 2.5); loads that leave L2 first
 * (39.7); states asked for behind await_last (1.5% of a step). */
#include "device/block_clock.cuh"
#include "device/wgmma.cuh"
#include "ops/short_conv.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
#include "recurrence/delta/delta_gpu.h"
}

namespace {

constexpr int GROUPS = 16; /* rows of a state are summed in so many groups, row r in group r mod 16: the order of delta_step_cuda.cu */
constexpr int WARPS = 8, EACH = GROUPS / WARPS; /* groups of a warp, neighbours */
constexpr int MOST_V = 32 * WARPS, TAPS = 4, MOST_GRID = 65535, CHUNK = 32; /* CHUNK: rows of a state in a copy */
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
    return rsqrtf(fmaf(s, 1.0f / (float)V, eps));
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

/* blockIdx: query-key head, sequence. */
template <typename T, int K> __global__ void __maxnreg__(104) layer_step(const __grid_constant__ layer_args p)
{
    extern __shared__ __align__(128) float memory[];
    __shared__ __align__(16) float2 kq[K];
    __shared__ float dots[WARPS];
    __shared__ uint64_t full[K / CHUNK];
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, n = (int)blockIdx.y, V = p.V;
    float *sums = memory + K * V, *us = sums + 2 * WARPS * V, *os = us + V;
    const layer_share m = {memory, sums, us, kq, dots};
    const int part = warp < 2 ? warp : 2, at = 4 * (warp < 2 ? lane : tid - 64); /* warps for q, k and v */
    const layer_conv &f = p.conv[part];
    layer_unit unit;
    block_clock clock(CLOCK_DELTA);
    if (tid == 0) {
        for (int j = 0; j < K / CHUNK; j++) mbarrier_init(&full[j], 1);
        mbarrier_init_fence();
    }
    __syncthreads(); /* for racecheck, which would have the copies begin behind it */
#pragma unroll 1
    for (int i = 0; i < p.group; i++) {
        const int h = (int)blockIdx.x * p.group + i, hv = n * p.Hv + h, c = (part < 2 ? (int)blockIdx.x * K : h * V) + at;
        const bool converts = part < 2 ? i == 0 && at < K : at < V;
        float *state = p.S + (int64_t)hv * K * V;
        if (tid == 0)
            for (int j = 0; j < K / CHUNK; j++) {
                mbarrier_expect(&full[j], CHUNK * V * 4);
                bulk_load(m.S + j * CHUNK * V, state + j * CHUNK * V, CHUNK * V * 4, &full[j]);
            }
        if (converts) unit.load(f, n, c);
        if (i == 0) {
            let_next(); /* the next product's weights queue up behind what is needed here */
            await_last(), clock.goes_on();
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
        __syncthreads();

        sum_warp<K>(m, V, full, (uint32_t)i & 1);
        __syncthreads();
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
        __syncthreads();
        if (p.y && 32 * warp < V) {
            const float r = head_scale<T>(os, V, p.eps);
            if (finishes) {
                float y = os[tid] * (p.w ? r * w : r);
                if (p.gate) y *= gate * sigmoid_of(gate);
                ((T *)p.y)[(int64_t)hv * V + tid] = from_float<T>(y);
            }
        }
        write_warp<K>(m, V, a, state);
        if (i + 1 < p.group) __syncthreads(); /* the next state comes to the same place */
    }
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------------------- */

bool reaches(const void *p) { return (uintptr_t)p % 16 == 0; }

/* False: tensors are not as the kernel needs them. */
bool layer_args_of(const lnt_delta_layer *layer, const lnt_recur_args *a, layer_args *p)
{
    const lnt_dtype dtype = (lnt_dtype)a->dtype;
    *p = {};
    for (int j = 0; j < 3; j++) {
        const lnt_call *k = layer->conv[j];
        const lnt_conv_attr *attr = (const lnt_conv_attr *)k->attr;
        p->conv[j] = {k->in[0].data, k->param[0].master, (char *)k->state, k->state_stride, (int)k->in[0].cols, 0};
        if (j < 2) p->conv[j].eps = (float)((const lnt_norm_attr *)layer->l2norm[j]->attr)->eps;
        if (attr->size != TAPS || k->in[0].dtype != dtype || !reaches(k->in[0].data) || !reaches(k->param[0].master)) return false;
        if (!reaches(k->state) || k->state_stride % 16) return false;
    }
    p->g = (const float *)a->g, p->beta = (const float *)a->beta, p->S = (float *)a->sT;
    p->Hv = a->Hv, p->V = a->V, p->group = a->Hv / a->Hq, p->scale = (float)a->scale;
    if (layer->keeps_o) p->o = a->o;
    if (const lnt_call *k = layer->rmsnorm) {
        const lnt_norm_attr *attr = (const lnt_norm_attr *)k->attr;
        p->eps = (float)attr->eps, p->y = k->out[0].data;
        if (k->node->n_param) p->w = k->param[0].master;
        if (k->node->n_in > 1) p->gate = k->in[1].data;
        if (k->out[0].dtype != dtype || (p->gate && (k->in[1].dtype != dtype || attr->act != LNT_SILU))) return false;
    }
    return reaches(p->S);
}

template <typename T, int K> void launch(const lnt_cuda *d, const layer_args &p, const lnt_recur_args *a)
{
    constexpr int ROWS = K + 2 * WARPS + 2; /* of V floats */
    lnt_launch_with(d, layer_step<T, K>, dim3((unsigned)a->Hq, (unsigned)a->sequences), 32 * WARPS, (size_t)ROWS * a->V * 4, 1, p);
}

} // namespace

extern "C" bool lnt_delta_layer_fits(int32_t K, int32_t V)
{
    return (K == 64 || K == 128) && V % 8 == 0 && V <= MOST_V;
}

extern "C" bool lnt_delta_layer_sm90(const lnt_delta_layer *layer, const lnt_recur_args *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    layer_args p;
    if (!lnt_delta_layer_fits(a->K, a->V) || a->sequences > MOST_GRID || !layer_args_of(layer, a, &p)) return false;
    LNT_BY_TYPE(a->dtype, T, a->K == 64 ? launch<T, 64>(d, p, a) : launch<T, 128>(d, p, a));
    return true;
}
