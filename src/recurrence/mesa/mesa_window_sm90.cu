/* Mesa over the last w tokens on Hopper, forward: bf16, K = V = 64 or 128, w a multiple of 64, level steps (operators.md#mesa, "Windows"). With
 * chunks of 64 tokens, w = 64 m, row i of chunk c sees the keys behind place i of chunk c - m, the chunks between and its own keys up to itself.
 *
 * Blocks are m chunks of a sequence. Chunk r of block b has between: r + 1 .. m - 1 of block b - 1 and 0 .. r - 1 of its own. So
 *   H_r = e^{before_r} S_{r+1} + P_r      S: sums from the end of the block before, each key decayed to that end; P: from the block's start on
 * and what an expiring key has left is its strength at the end of its block, times e^{before_r}: nothing is subtracted, no exponent above 0.
 *
 * Three kernels: `weights` for the strengths and the decays, `states` for H and G of every chunk, and the solve of mesa_sm90.cuh, which reads o out
 * of its solution while the keys are still there. */
#include "recurrence/mesa/mesa_sm90.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

struct window_call {
    lnt_mesa_cg cg;       /* its H: sums over the chunks between */
    const int64_t *cu;
    int64_t N, m, blocks; /* sequences, chunks of a window, blocks there may be */
    const bf16 *v;        /* [T,Hv,K] */
    bf16 *H, *G, *o;      /* [slots,Hv,K,K] twice; [T,Hv,K] */
    float *near, *far;    /* [slots,Hv,C] beta, decayed to the end of the chunk, of the block */
    float *total, *into;  /* [slots,Hv] the sum of the chunk's gates; e^{the sum of those between the block's start and the chunk} */
};

/* ---- blocks -------------------------------------------------------------------------------------------------------------------------------- */

/* Block i of sequence n has number cu[n] / w + n + i, as slots have theirs. */
struct block_of {
    int64_t i, first, slot; /* its place in the sequence; its first token and slot */
    int chunks, tokens;
};
__device__ __forceinline__ bool find_block(const window_call &p, int64_t number, block_of &b)
{
    const int64_t w = p.m * C;
    int64_t n = 0, above = p.N;
    while (above - n > 1) {
        const int64_t half = (n + above) / 2;
        (p.cu[half] / w + half <= number ? n : above) = half;
    }
    b.i = number - p.cu[n] / w - n;
    b.first = p.cu[n] + b.i * w;
    b.slot = p.cu[n] / C + n + b.i * p.m;
    b.tokens = (int)max((int64_t)0, min(w, p.cu[n + 1] - b.first));
    b.chunks = (b.tokens + C - 1) / C;
    return b.tokens > 0;
}

/* ---- strengths and decays ------------------------------------------------------------------------------------------------------------------ */

constexpr int WEIGHTS_WARPS = 16;

/* A CTA a block and head. Sums of gates are of what lies between and of nothing else, so that a reset, as a gate of -128, is exact. */
__global__ __launch_bounds__(32 * WEIGHTS_WARPS) void weights(const __grid_constant__ window_call p)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, Hv = p.cg.Hv, h = (int)(blockIdx.x % Hv);
    block_of b;
    if (!find_block(p, blockIdx.x / Hv, b)) return;
    for (int c = warp; c < b.chunks; c += WEIGHTS_WARPS) {
        float g[2], beta[2];
        for (int i = 0; i < 2; i++) {
            const int t = c * C + 2 * lane + i;
            const int64_t at = (b.first + t) * Hv + h;
            g[i] = p.cg.g && t < b.tokens ? lnt_gate(p.cg.g[at]) : 0.f;
            beta[i] = t < b.tokens ? p.cg.beta[at] : 0.f;
        }
        float from = g[0] + g[1]; /* the sum from here on */
        for (int o = 1; o < 32; o <<= 1) {
            const float x = __shfl_down_sync(~0u, from, o);
            if (lane + o < 32) from += x;
        }
        float behind = __shfl_down_sync(~0u, from, 1);
        if (lane == 31) behind = 0.f;
        const int64_t at = (b.slot + c) * Hv + h;
        *(float2 *)&p.near[at * C + 2 * lane] = make_float2(beta[0] * expf(behind + g[1]), beta[1] * expf(behind));
        if (lane == 0) p.total[at] = from;
    }
    __syncthreads();
    for (int c = warp; c < b.chunks; c += WEIGHTS_WARPS) {
        float before = 0.f, after = 0.f;
        for (int i = lane; i < b.chunks; i += 32) {
            const float x = p.total[(b.slot + i) * Hv + h];
            if (i < c) before += x;
            if (i > c) after += x;
        }
        before = warp_sum(before), after = expf(warp_sum(after));
        const int64_t at = (b.slot + c) * Hv + h;
        const float2 x = *(const float2 *)&p.near[at * C + 2 * lane];
        *(float2 *)&p.far[at * C + 2 * lane] = make_float2(after * x.x, after * x.y);
        if (lane == 0) p.into[at] = expf(before);
    }
}

/* ---- the sums over the chunks between ------------------------------------------------------------------------------------------------------ */

constexpr int SLICE = 64, STAGES = 3; /* columns of a CTA; chunks on their way */
template <int K> constexpr int STATES_THREADS = K / 64 * GROUP;

template <int K> struct states_stage {
    alignas(1024) bf16 key[K / 64][C][64];
    bf16 value[C][64];
    float by[C];
};

/* Of a lane's four numbers and its neighbours' of four: number i of every lane, in lane i. */
__device__ __forceinline__ void quad_turn(uint32_t (&x)[4])
{
    const int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const uint32_t got = __shfl_xor_sync(~0u, c & bit ? x[i] : x[i | bit], bit);
            if (c & bit)
                x[i] = got;
            else
                x[i | bit] = got;
        }
}

/* A CTA has 64 columns of H or G of a head, all their rows: 64 a warpgroup, as wgmma leaves them. */
template <int K> struct states_walk {
    const window_call &p;
    states_stage<K> *const stages;
    const block_of &b;
    const bf16 *key, *value; /* those of token 0 */
    int64_t key_stride, value_stride;
    bf16 *to; /* of slot 0, at the thread's row and the CTA's columns */
    int h;
    float S[SLICE / 2];

    __device__ __forceinline__ void fetch(int i, int64_t chunk, const float *by)
    {
        states_stage<K> &s = stages[i % STAGES];
        const int64_t token = b.first + chunk * C;
        for (int j = (int)threadIdx.x; j < C * K / 8; j += STATES_THREADS<K>) {
            const int row = j / (K / 8), part = j % (K / 8);
            cp_async_16(shared_address(&s.key[part / 8][0][0] + swizzled(row, part % 8 * 8)), key + (token + row) * key_stride + part * 8);
        }
        for (int j = (int)threadIdx.x; j < C * 8; j += STATES_THREADS<K>)
            cp_async_16(shared_address(&s.value[0][0] + swizzled(j / 8, j % 8 * 8)), value + (token + j / 8) * value_stride + j % 8 * 8);
        if (threadIdx.x < C / 4)
            cp_async_16(shared_address(&s.by[4 * threadIdx.x]), by + ((b.slot + chunk) * p.cg.Hv + h) * C + 4 * threadIdx.x);
    }

    /* S += K^T diag(by) V */
    __device__ __forceinline__ void add(const states_stage<K> &s)
    {
        const int tid = (int)threadIdx.x, lane = tid % 32, c = lane % 4;
        const bf16 *panel = &s.key[tid / GROUP][0][0];
        uint32_t a[C / 16][4];
#pragma unroll
        for (int j = 0; j < C / 16; j++) {
            ldmatrix_x4_trans(a[j], shared_address(panel + swizzled(16 * j + lane / 16 * 8 + lane % 8, tid % GROUP / 32 * 16 + lane / 8 % 2 * 8)));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 by = *(const float2 *)&s.by[16 * j + i / 2 * 8 + 2 * c];
                a[j][i] = pack_bf16(low_bf16(a[j][i]) * by.x, high_bf16(a[j][i]) * by.y);
            }
        }
        const uint64_t columns = wgmma_mn_major(shared_address(s.value), C * 128);
        wgmma_hold(S);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < C / 16; j++) wgmma<1>(S, a[j], columns + (j * 16 * 128 >> 4), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(S);
    }

    /* factor S, and what is `had` there, to the slot. */
    __device__ __forceinline__ void had_there(uint32_t (&had)[SLICE / 4], int64_t slot, bool there)
    {
        const bf16 *x = to + slot * p.cg.Hv * K * K + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < SLICE / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) had[2 * j + i] = there ? *(const uint32_t *)(x + 8 * i * K + 8 * j) : 0;
    }
    __device__ __forceinline__ void put(int64_t slot, float factor, const uint32_t (&had)[SLICE / 4])
    {
        bf16 *x = to + slot * p.cg.Hv * K * K + threadIdx.x % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < SLICE / 8; n += 4) {
                uint32_t y[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t more = had[2 * (n + j) + i];
                    y[j] = pack_bf16(factor * S[4 * (n + j) + 2 * i] + low_bf16(more), factor * S[4 * (n + j) + 2 * i + 1] + high_bf16(more));
                }
                quad_turn(y);
                *(uint4 *)(x + 8 * i * K + 8 * n) = make_uint4(y[0], y[1], y[2], y[3]);
            }
    }

    /* BACK: the block before from its end, which leaves S to every chunk but the last; else the block from its start, which adds P. Chunks are
     * counted from the block's first on. All that are added are whole. */
    template <bool BACK> __device__ __forceinline__ void walk()
    {
        const int n = BACK ? (int)p.m - 1 : b.chunks - 1, Hv = p.cg.Hv;
        const float *by = BACK ? p.far : p.near;
        auto chunk = [&](int s) { return BACK ? -1 - s : s; };
        auto last = [&](int chunk) { return chunk == p.m - 1; };
        uint32_t had[SLICE / 4];
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) S[i] = 0.f;
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < n) fetch(s, chunk(s), by);
            cp_async_commit();
        }
        if (!BACK) {
            had_there(had, b.slot, b.i > 0 && !last(0));
            put(b.slot, 1.f, had);
        }
        for (int s = 0; s < n; s++) {
            /* where S goes after this chunk, and by what it, or what it was before, decays */
            const int next = BACK ? (int)p.m - 2 - s : s + 1;
            const bool wanted = next < b.chunks;
            const float factor = BACK ? (wanted ? p.into[(b.slot + next) * Hv + h] : 0.f) : expf(p.total[(b.slot + s) * Hv + h]);
            had_there(had, b.slot + next, !BACK && b.i > 0 && !last(next));
            cp_async_wait<STAGES - 2>();
            fence_async();
            __syncthreads();
            if (s + STAGES - 1 < n) fetch(s + STAGES - 1, chunk(s + STAGES - 1), by);
            cp_async_commit();
            if (!BACK)
#pragma unroll
                for (int i = 0; i < SLICE / 2; i++) S[i] *= factor;
            add(stages[s % STAGES]);
            if (wanted) put(b.slot + next, BACK ? factor : 1.f, had);
        }
        cp_async_wait<0>();
        __syncthreads();
    }
};

/* A CTA a block, head, H or G, and slice, the slices innermost. */
template <int K> __global__ __launch_bounds__(STATES_THREADS<K>, 2) void states(const __grid_constant__ window_call p)
{
    extern __shared__ __align__(1024) char raw[];
    constexpr int SLICES = K / SLICE;
    const int column = (int)(blockIdx.x % SLICES) * SLICE, Hv = p.cg.Hv, Hk = p.cg.Hk;
    const bool values = blockIdx.x / SLICES % 2;
    const int h = (int)(blockIdx.x / (2 * SLICES) % Hv), tid = (int)threadIdx.x;
    block_of b;
    if (!find_block(p, blockIdx.x / (2 * SLICES) / Hv, b)) return;
    const bf16 *key = p.cg.k + h / (Hv / Hk) * K;
    const int64_t key_stride = (int64_t)Hk * K;
    states_walk<K> w = { p,
                         (states_stage<K> *)raw,
                         b,
                         key,
                         (values ? p.v + h * K : key) + column,
                         key_stride,
                         values ? (int64_t)Hv * K : key_stride,
                         (values ? p.G : p.H) + ((int64_t)h * K + tid / GROUP * 64 + tid % GROUP / 32 * 16 + tid % 32 / 4) * K + column,
                         h,
                         {} };
    if (b.i > 0) w.template walk<true>();
    w.template walk<false>();
}

/* ---- the solve ----------------------------------------------------------------------------------------------------------------------------- */

/* x of the place's rows for the caller and, rounded, as P; their report; then o = e.(X G) + (X K^T.D.beta) V, by way of the tile of G. */
template <int K, bool SLOW, int W>
__device__ __forceinline__ void read_out(const window_call &p, const place &at, shared_of<K, true> &s, rows_of<K, W> &t, int group, int taken)
{
    const lnt_mesa_cg &a = p.cg;
    const int tid = thread(), c = tid % 4;
    report<K>(tid, a, at, s, t, taken);
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        float x[4];
        solution<K>(tid, x, t, s, j);
        for (int i = 0; i < 2; i++) {
            t.p[2 * j + i] = pack_bf16(x[2 * i], x[2 * i + 1]);
            float *to = a.x_float + ((at.first + first_row(tid) + 8 * i) * a.Hv + at.h) * K + 8 * j + 2 * c;
            if (a.x_float && first_row(tid) + 8 * i < at.rows) *(float2 *)to = make_float2(x[2 * i], x[2 * i + 1]);
        }
    }
    group_sync(group); /* H and X are done with */
    fetch_state<K>(tid, s.H[0], p.G + (at.chunk * a.Hv + at.h) * K * K);
    fetch_rows<K>(tid, s.V[0], p.v + (at.first * a.Hv + at.h) * K, a.Hv, at.rows);
    if (W == BORDER) fetch_rows<K>(tid, s.V[1], p.v + ((at.first - p.m * C) * a.Hv + at.h) * K, a.Hv, C);
    cp_async_commit();
    products<K, SLOW, true>(t, s, 0, group);
    wgmma_wait<0>();
    wgmma_hold(t.w);
    const float e[2] = { SLOW ? fetched(&s.row[first_row(tid)]).x : 1.f, SLOW ? fetched(&s.row[first_row(tid) + 8]).x : 1.f };
    group_sync(group);
    bf16 *stage = &s.H[0][0][0][0];
#pragma unroll
    for (int j = 0; j < K / 8; j++)
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(stage + j / 8 * C * 64 + swizzled(first_row(tid) + 8 * i, j % 8 * 8 + 2 * c)) =
                pack_bf16(e[i] * t.w[4 * j + 2 * i], e[i] * t.w[4 * j + 2 * i + 1]);
    group_sync(group);
    leave_rows<K>(tid, a, at, p.o, stage);
}

/* What the group will need of memory, as far as L2: G and values of this chunk. */
template <int K> __device__ __forceinline__ void ahead(const window_call &p, const place &at)
{
    const bf16 *G = p.G + (at.chunk * p.cg.Hv + at.h) * K * K, *v = p.v + (at.first * p.cg.Hv + at.h) * K;
    for (int i = thread(); i < K * K / 64; i += GROUP) ahead_l2(G + 64 * i);
    for (int i = thread(); i < at.rows * K / 64; i += GROUP) ahead_l2(v + (int64_t)(i / (K / 64)) * p.cg.Hv * K + i % (K / 64) * 64);
}

template <int K, bool SLOW, int W>
__device__ __forceinline__ void work(const window_call &p, shared_of<K, true> &s, const place &at, int group)
{
    const lnt_mesa_cg &a = p.cg;
    if constexpr (W == BORDER) {
        fetch_rows<K>(thread(), s.Kc[1], a.k + ((at.first - p.m * C) * a.Hk + at.h / (a.Hv / a.Hk)) * K, a.Hk, C);
        const int64_t head = at.chunk * a.Hv + at.h;
        if (thread() < C) s.old[thread()] = p.far[(head - p.m * a.Hv) * C + thread()] * p.into[head];
    }
    fetch<K>(a, at, s.H[0], s.Kc[0]);
    ahead<K>(p, at);
    const lambda_of<K> lambda(a, at.h);
    rows_of<K, W> t;
    for (int i = 0; i < 2; i++) {
        const int row = first_row(thread()) + 8 * i;
        const bf16 *q = a.rhs + ((at.first + row) * a.Hr + at.h / (a.Hv / a.Hr)) * K + 2 * (thread() % 4);
#pragma unroll
        for (int j = 0; j < K / 8; j++) {
            const uint32_t v = row < at.rows ? *(const uint32_t *)(q + 8 * j) : 0;
            t.r[4 * j + 2 * i] = low_bf16(v), t.r[4 * j + 2 * i + 1] = high_bf16(v);
        }
    }
    cp_async_wait<0>();
    fence_async();
    group_sync(group);
    begin<K>(a, lambda, s, t, 0);
    group_sync(group);
    int taken = 0;
    solve<K, SLOW>(a, s, t, 0, group, taken);
    read_out<K, SLOW>(p, at, s, t, group, taken);
}

/* The chunk of an item, when its gates are slow (SLOW) or are not. */
template <int K, bool SLOW> __device__ __forceinline__ void take(const window_call &p, shared_of<K, true> &s, int item, int group)
{
    const place at = place_of(p.cg, item);
    group_sync(group); /* the last chunk's are done with */
    put_gate(s, gate_of(p.cg, at));
    group_sync(group);
    if (scan_gates(s, group) != SLOW) return;
    if (p.cg.table[at.chunk].w >= p.m)
        work<K, SLOW, BORDER>(p, s, at, group);
    else
        work<K, SLOW, INNER>(p, s, at, group);
}

template <int K> __global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) slow_kernel(const __grid_constant__ window_call p)
{
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), items = (int)p.cg.chunks * p.cg.Hv;
    shared_of<K, true> &s = ((shared_of<K, true> *)raw)[group];
    for (int turn = 0, item; (item = dealt(group, GROUPS<K>, turn)) < items; turn++)
        if (has_rows(p.cg, item)) take<K, true>(p, s, item, group);
}

template <int K> __global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) fast_kernel(const __grid_constant__ window_call p)
{
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), step = (int)gridDim.x * GROUPS<K>;
    shared_of<K, true> &s = ((shared_of<K, true> *)raw)[group];
    for (int64_t first = (int)blockIdx.x * GROUPS<K> + group; first < p.cg.chunks * p.cg.Hv; first += 16 * step)
        for (uint32_t found = with_fast_gates(p.cg, first, step, group, s.since); found; found &= found - 1)
            take<K, false>(p, s, (int)first + (__ffs((int)found) - 1) * step, group);
}

/* ---- calls --------------------------------------------------------------------------------------------------------------------------------- */

int64_t slots_of(const lnt_mesa_args *a) { return a->tokens / C + a->sequences; }
int64_t blocks_of(const lnt_mesa_args *a) { return a->tokens / a->heads.window + a->sequences; }

size_t carve(const lnt_mesa_args *a, void *base, window_call *p)
{
    size_t used = 0;
    auto take = [&](int64_t n, size_t size) {
        void *x = base ? (char *)base + used : NULL;
        used += ((size_t)n * size + 255) / 256 * 256;
        return x;
    };
    const int64_t heads = slots_of(a) * a->Hv;
    p->cg.table = (const int4 *)take(slots_of(a), sizeof(int4));
    p->near = (float *)take(heads * C, 4), p->far = (float *)take(heads * C, 4);
    p->total = (float *)take(heads, 4), p->into = (float *)take(heads, 4);
    p->H = (bf16 *)take(heads * a->K * a->K, 2), p->G = (bf16 *)take(heads * a->K * a->K, 2);
    return used;
}

template <int K> void put(const window_call &p, lnt_cuda *d)
{
    const int64_t heads = p.blocks * p.cg.Hv, wanted = lnt_div_up(p.cg.chunks * p.cg.Hv, GROUPS<K>);
    const int shared = (int)sizeof(states_stage<K>) * STAGES, room = (int)sizeof(shared_of<K, true>) * GROUPS<K>;
    const unsigned ctas = (unsigned)(wanted < d->base.multiprocessors ? wanted : d->base.multiprocessors);
    lnt_cuda_note(d, cudaFuncSetAttribute(states<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    lnt_cuda_note(d, cudaFuncSetAttribute(slow_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    lnt_cuda_note(d, cudaFuncSetAttribute(fast_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    weights<<<(unsigned)heads, 32 * WEIGHTS_WARPS, 0, d->stream>>>(p);
    states<K><<<(unsigned)(heads * 2 * (K / SLICE)), STATES_THREADS<K>, (size_t)shared, d->stream>>>(p);
    slow_kernel<K><<<ctas, GROUP * GROUPS<K>, (size_t)room, d->stream>>>(p);
    if (p.cg.g) fast_kernel<K><<<ctas, GROUP * GROUPS<K>, (size_t)room, d->stream>>>(p);
    lnt_cuda_note(d, cudaGetLastError());
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    lnt_cuda *d = (lnt_cuda *)device;
    if (!a->sequences) return;
    window_call p = {};
    p.cg = lnt_mesa_options_of<bf16, bf16>(a);
    carve(a, a->workspace, &p);
    p.cu = a->cu_seqlens_device, p.N = a->sequences, p.m = a->heads.window / C, p.blocks = blocks_of(a);
    p.v = (const bf16 *)a->v, p.o = (bf16 *)a->o;
    p.cg.chunks = slots_of(a);
    p.cg.K = a->K, p.cg.Hv = a->Hv, p.cg.Hk = p.cg.Hr = a->Hq;
    p.cg.rhs = (const bf16 *)a->q, p.cg.k = (const bf16 *)a->k;
    p.cg.g = (const float *)a->g, p.cg.beta = (const float *)a->beta, p.cg.lambda = (const float *)a->lambda;
    p.cg.H = p.H;
    p.cg.x_float = (float *)a->x;
    p.cg.taken = (float *)a->steps, p.cg.residual = (float *)a->residual;
    lnt_mesa_table_put(a, (int4 *)p.cg.table, d);
    a->K == 128 ? put<128>(p, d) : put<64>(p, d);
}

const char *declines(const void *args, bool)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    if (!a->heads.window) return "it has windows alone";
    if (a->heads.window % C) return "windows of whole chunks, 64 tokens, are offered";
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if ((a->K != 64 && a->K != 128) || a->V != a->K) return "K = V of 64 or 128 is offered";
    if (a->lambda_varies) return "it has one Lambda for all tokens";
    if (a->cg_solver != LNT_CG_LEVEL || a->cg_max_steps == 0 || a->cg_steps_device) return "level steps are offered, in a number known before";
    if (slots_of(a) * a->Hv * 2 * (a->K / SLICE) >= INT32_MAX) return "too many tokens";
    return NULL;
}
size_t workspace(const void *args, bool, int)
{
    window_call p = {};
    return carve((const lnt_mesa_args *)args, NULL, &p);
}

} // namespace

LNT_CUDA_FORM(lnt_mesa_window_sm90, "window-sm90", CHUNK, 90, declines, workspace, forward, NULL)
