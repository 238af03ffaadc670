/* A decoding step of a delta layer between its products: short convolutions of q, k, v with SiLU and the L2 norm of q and k, the delta rule, and the
 * RMS norm of each head, one token for each sequence.
 *
 *   q, k = l2(silu(conv(x)))     v = silu(conv(x))     S' and o: delta_step_cuda.cu     y = o r w act(gate)     r = (mean o^2 + eps)^-1/2
 *
 * A block has 32 columns of the state of one value head of one sequence, in registers; it makes q and k of its head for itself (a warp each, 4
 * columns a lane) and its columns of v. The blocks of a cluster have all value heads of one query-key head: each gives its o to those of its value
 * head, so that every one of them has the whole head for the norm, and the first moves the windows of q and k on when all have read them. Nothing is
 * released by the cluster's barriers: what goes over comes with a barrier of its own, and a fence would wait for the state's way to memory.
 *
 * States, windows and weights are read before await_last (device/cuda.cuh says why that is right), and let_next comes when those loads are on their
 * way. All is rounded where the parts store, and sums are added in their order: bf16 has the same bits. Floor: the state read once and written once,
 * 8 K V bytes a head.
 *
 * Slower: blocks of 64 and 128 columns (64 sequences 1% and 3% of a step; one sequence 6%); the code run through once with zeros while the loads are
 * on their way, so that its instructions are there (4%). */
#include "device/wgmma.cuh"
#include "ops/short_conv.cuh"
#include "recurrence/delta/delta_step.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
#include "recurrence/delta/delta_gpu.h"
}

namespace {

constexpr int MOST_V = 256, MOST_CLUSTER = 8, TAPS = 4, MOST_GRID = 1024, BLOCKS = 6;

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
    int Hv, V, group, split; /* group: value heads of a query-key head; split: blocks of a value head */
    float scale, eps;
};

/* ---- clusters --------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* x to where `to` is in block `rank`, whose like of the barrier `b` counts the 16 bytes. */
__device__ __forceinline__ void cluster_give(float *to, uint64_t *b, int rank, const float (&x)[4])
{
    uint32_t there, over;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(over) : "r"(shared_address(b)), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3]), "r"(over)
                 : "memory");
}
__device__ __forceinline__ void cluster_take(uint64_t *b)
{
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(b))
                     : "memory");
    } while (!done);
}

/* ---- four columns of a convolution ------------------------------------------------------------------------------------------------------ */

struct layer_unit {
    float w[TAPS][4], x[TAPS][4]; /* taps and inputs, the token's own last */

    __device__ __forceinline__ void load(const layer_conv &f, int c)
    {
        const float *window = (const float *)(f.window + blockIdx.z * f.stride) + c;
        load_taps(f.w, TAPS, c, w);
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++) get_weights(x[j], window + j * (int64_t)f.cols);
    }
    /* z becomes the sum over what came before; the window as it will be without this token goes to `next` in shared memory. */
    template <int K> __device__ __forceinline__ void begin(float (&z)[4], float *next) const
    {
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++) {
            if (j) store_pack(next + (j - 1) * K, x[j]);
#pragma unroll
            for (int u = 0; u < 4; u++) z[u] = j ? z[u] + w[j][u] * x[j][u] : w[j][u] * x[j][u];
        }
    }
};
template <int K> __device__ __forceinline__ void move_on(const layer_conv &f, int c, const float *next)
{
    float *window = (float *)(f.window + blockIdx.z * f.stride) + c;
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) *(float4 *)(window + j * (int64_t)f.cols) = *(const float4 *)(next + j * K);
}

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

/* K is 16 ROWS. blockIdx: place in the cluster, query-key head, sequence. */
template <typename T, int ROWS> __global__ void __launch_bounds__(THREADS, BLOCKS) layer_step(const __grid_constant__ layer_args p)
{
    constexpr int K = ROWS * GROUPS;
    __shared__ __align__(16) float ks[K], qs[K], vs[COLUMNS], os[MOST_V];
    __shared__ __align__(16) float next[3][TAPS - 1][K]; /* the windows after this token */
    __shared__ step_share share;
    __shared__ uint64_t arrived;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, row = tid / 8, column = tid % 8 * 4;
    const int rank = (int)blockIdx.x, head = rank / p.split, first = (rank - head * p.split) * COLUMNS;
    const int h = (int)blockIdx.y * p.group + head, hv = (int)blockIdx.z * p.Hv + h;
    const bool converts = warp < 3 && 4 * lane < (warp < 2 ? K : COLUMNS); /* a warp for q, k and v */
    const bool finishes = warp == 3 && p.y;                                /* and one for the norm */
    const layer_conv &f = p.conv[warp < 3 ? warp : 0];
    const int c = (warp == 2 ? h * p.V + first : (int)blockIdx.y * K) + 4 * lane, mine = hv * p.V + first + lane;
    float *state = p.S + ((int64_t)hv * K + row) * p.V + first + column;
    float S[ROWS][4], z[4] = {}, *rows = next[warp < 3 ? warp : 0][0] + 4 * lane;
    layer_unit unit = {};
    if (converts) unit.load(f, c);
#pragma unroll
    for (int i = 0; i < ROWS; i++) read4(S[i], state + i * GROUPS * p.V, 4, true);
    const float w = p.w && finishes ? p.w[first + lane] : 1.0f;
    if (tid == 0) {
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        mbarrier_expect(&arrived, (uint32_t)p.V * 4);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait(); /* every block's barrier is there */
    let_next();     /* the next product's weights queue up behind what is needed here */
    if (converts) unit.begin<K>(z, rows);
    await_last();
    float(&x)[4] = unit.x[TAPS - 1];
    if (converts) load_pack(x, (const T *)f.x + (int64_t)blockIdx.z * f.cols + c);
    const float g = p.g ? p.g[hv] : 0.f, beta = p.beta[hv], gate = p.gate && finishes ? to_float(((const T *)p.gate)[mine]) : 0.0f;
    if (warp < 3) {
#pragma unroll
        for (int u = 0; u < 4; u++) z[u] += unit.w[TAPS - 1][u] * x[u];
#pragma unroll
        for (int u = 0; u < 4; u++) z[u] *= sigmoid_of(z[u]);
        if (warp < 2) {
            float s = 0.0f;
#pragma unroll
            for (int u = 0; u < 4; u++) s += z[u] * z[u];
            const float r = rsqrtf(head_sum<ANY_LANES>(s, K / 4) + f.eps);
#pragma unroll
            for (int u = 0; u < 4; u++) z[u] *= r;
        }
        if (converts) {
#pragma unroll
            for (int u = 0; u < 4; u++) z[u] = rounded<T>(z[u]);
            store_pack((warp == 0 ? qs : warp == 1 ? ks : vs) + 4 * lane, z);
            store_pack(rows + (TAPS - 2) * K, x);
            if (warp == 2) move_on<K>(f, c, rows);
        }
    }
    __syncthreads();
    cluster_arrive(); /* the windows of q and k have been read */

    float u[4], o[4];
    const float a = expf(g);
    step_token<ROWS>(S, ks, qs, vs, share, a, beta, p.scale, u, o);
    if (row == 0) {
        if (p.o) store_pack((T *)p.o + (int64_t)hv * p.V + first + column, o);
#pragma unroll
        for (int j = 0; j < 4; j++) o[j] = rounded<T>(o[j]);
#pragma unroll 1
        for (int b = 0; b < p.split && p.y; b++) cluster_give(os + first + column, &arrived, head * p.split + b, o);
    }
    step_write<ROWS>(S, ks, a, u);
#pragma unroll
    for (int i = 0; i < ROWS; i++) write4(state + i * GROUPS * p.V, S[i], 4, true);
    if (finishes) {
        cluster_take(&arrived);
        const float r = head_scale<T>(os, p.V, p.eps);
        float y = os[first + lane] * (p.w ? r * w : r);
        if (p.gate) y *= gate * sigmoid_of(gate);
        ((T *)p.y)[mine] = from_float<T>(y);
    }
    cluster_wait();
    if (rank == 0 && warp < 2 && converts) move_on<K>(f, c, rows);
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
    p->Hv = a->Hv, p->V = a->V, p->group = a->Hv / a->Hq, p->split = a->V / COLUMNS, p->scale = (float)a->scale;
    if (layer->keeps_o) p->o = a->o;
    if (const lnt_call *k = layer->rmsnorm) {
        const lnt_norm_attr *attr = (const lnt_norm_attr *)k->attr;
        p->eps = (float)attr->eps, p->y = k->out[0].data;
        if (k->node->n_param) p->w = k->param[0].master;
        if (k->node->n_in > 1) p->gate = k->in[1].data;
        if (k->out[0].dtype != dtype || (p->gate && (k->in[1].dtype != dtype || attr->act != LNT_SILU))) return false;
    }
    return reaches(p->S) && reaches(p->o);
}

template <typename T> void launch(const lnt_cuda *d, const layer_args &p, const lnt_recur_args *a)
{
    const int cluster = p.group * p.split;
    const dim3 blocks((unsigned)cluster, (unsigned)a->Hq, (unsigned)a->sequences);
    if (a->K == 64)
        lnt_launch_with(d, layer_step<T, 4>, blocks, THREADS, 0, cluster, p);
    else
        lnt_launch_with(d, layer_step<T, 8>, blocks, THREADS, 0, cluster, p);
}

} // namespace

extern "C" bool lnt_delta_layer_fits(int32_t Hq, int32_t Hv, int32_t K, int32_t V)
{
    const int64_t cluster = (int64_t)(Hv / Hq) * (V / COLUMNS);
    return (K == 64 || K == 128) && V % COLUMNS == 0 && V <= MOST_V && cluster > 1 && cluster <= MOST_CLUSTER && Hq <= MOST_GRID;
}

extern "C" bool lnt_delta_layer_sm90(const lnt_delta_layer *layer, const lnt_recur_args *a, const lnt_device *device)
{
    layer_args p;
    if (!lnt_delta_layer_fits(a->Hq, a->Hv, a->K, a->V) || a->sequences > MOST_GRID || !layer_args_of(layer, a, &p)) return false;
    LNT_BY_TYPE(a->dtype, T, launch<T>((const lnt_cuda *)device, p, a));
    return true;
}
