/* The chain of the states' gradients, from the last chunk to the first: one CTA per (sequence or segment, value head, 64 NV columns of V), the mirror
 * of delta_chain.cuh and made of its parts. dS^T [64 columns of V][K] stays in the float32 accumulators of a warpgroup; every product has dS'^T,
 * dO^T, dU^T or dZ^T on the left, from registers, and a tile of tokens in shared memory on the right (columns are tokens):
 *
 *   dU^T = (dS'^T K^T).l + dO^T P    dR^T = dU^T T    dZ^T = beta.dR^T    dS^T = e_n dS'^T + (s e.dO^T) Q - (e.dZ^T) K        (operators.md 4)
 *
 * dO^T P and dO^T Q do not wait for the chain: of its three products in a row the first has them beside it. */
#ifndef LNT_DELTA_BACK_CHAIN_CUH
#define LNT_DELTA_BACK_CHAIN_CUH

#include "recurrence/delta/delta_back.cuh"
#include "recurrence/delta/delta_chain.cuh"

namespace {

/* What a stage of the ring holds, in bytes from its start. */
template <int K, int NV> struct back_stage {
    static constexpr uint32_t k = 0, q = k + K / 64 * TILE, t = q + K / 64 * TILE, p = t + TILE, o = p + TILE, f = o + NV * TILE, bytes = f + 1024;
};

/* What a CTA works on: chunks of one sequence, or of a segment of it. */
struct back_work {
    int64_t sequence, token, end; /* first token of its first chunk; the sequence's end */
    int chunk, chunks, segment;   /* first chunk in the list; how many */
    int h, column;                /* value head; first column of V */
};

template <int NV> __device__ __forceinline__ back_work back_work_of(const lnt_delta_back &p)
{
    back_work w;
    int64_t x = blockIdx.x;
    const int blocks = p.V / (64 * NV);
    w.column = (int)(x % blocks) * 64 * NV;
    x /= blocks;
    w.h = (int)(x % p.Hv);
    x /= p.Hv;
    const int each = p.ends ? p.segments - 1 : p.segments; /* nobody asks for what comes out of a first segment */
    w.sequence = x / each;
    w.segment = (int)(x % each) + (p.ends ? 1 : 0);
    const int first = p.first_chunk[w.sequence], all = p.first_chunk[w.sequence + 1] - first;
    const int length = p.segments > 1 ? p.segment_chunks : all, from = min(w.segment * length, all);
    w.chunk = first + from;
    w.chunks = w.segment == p.segments - 1 ? all - from : min(length, all - from);
    w.token = p.cu[w.sequence] + (int64_t)from * C;
    w.end = p.cu[w.sequence + 1];
    return w;
}

/* The loads of one chunk, by the threads of a warpgroup. */
template <int K, int NV> __device__ __forceinline__ void back_load_chunk(const lnt_delta_back &p, const back_work &w, int i, uint32_t at, int tid)
{
    using L = back_stage<K, NV>;
    const int64_t token = w.token + (int64_t)i * C, index = (int64_t)(w.chunk + i) * p.Hv + w.h;
    const int rows = (int)min((int64_t)C, w.end - token), hq = w.h / (p.Hv / p.Hq);
    constexpr int PER = K / 8, STEP = GROUP / PER; /* pieces of a row of K; rows at a time */
    {
        const int row = tid / PER, piece = tid % PER;
        const uint32_t to = at + (piece >> 3) * TILE + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
        const int64_t from = ((token + row) * p.Hq + hq) * K + piece * 8, step = (int64_t)STEP * p.Hq * K;
#pragma unroll
        for (int j = 0; j < C / STEP; j++) {
            const bool real = row + j * STEP < rows;
            cp_async_16(to + L::k + j * STEP * 128, real ? p.k + from + j * step : p.k, real);
            cp_async_16(to + L::q + j * STEP * 128, real ? p.q + from + j * step : p.q, real);
        }
    }
    const int row = tid / 8, piece = tid % 8;
    const uint32_t to = at + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const bool real = row + 16 * j < rows && p.d_o;
#pragma unroll
        for (int b = 0; b < NV; b++)
            cp_async_16(to + L::o + b * TILE + j * 2048,
                        real ? p.d_o + ((token + row + 16 * j) * p.Hv + w.h) * p.V + w.column + 64 * b + piece * 8 : p.k, real);
        cp_async_16(to + L::t + j * 2048, p.T + index * (C * C) + (row + 16 * j) * C + piece * 8);
        cp_async_16(to + L::p + j * 2048, p.P + index * (C * C) + (row + 16 * j) * C + piece * 8);
    }
    if (tid < 64) cp_async_16(at + L::f + tid * 16, p.F + index * (4 * C) + tid * 4);
}

template <bool HOPPER, int K, int NV>
__device__ __forceinline__ void back_load_all(const lnt_delta_back &p, const back_work &w, uint32_t ring, uint32_t full, uint32_t empty)
{
    using L = back_stage<K, NV>;
    const int tid = (int)threadIdx.x - NV * GROUP;
    int s = 0, behind = 0;
    uint32_t parity = 1;
    for (int i = 0; i <= w.chunks; i++) {
        if (i < w.chunks) {
            barrier_wait<HOPPER>(empty + 8 * s, parity);
            back_load_chunk<K, NV>(p, w, w.chunks - 1 - i, ring + s * L::bytes, tid);
        }
        cp_async_commit();
        if (i > 0) { /* the chunk before has come */
            cp_async_wait<1>();
            if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            barrier_arrive(full + 8 * behind);
        }
        behind = s;
        if (++s == p.stages) {
            s = 0;
            parity ^= 1;
        }
    }
}

/* The gradient at a segment's end: dS <- M^T dS + X over the segments behind it, the last of which began with dsT. M [K,K] bf16 comes into `tile`. */
template <bool HOPPER, int K>
__device__ void segment_end(float (&dS)[K / 64][32], const lnt_delta_back &p, const back_work &w, int column, uint32_t tile)
{
    const int tid = threadIdx.x % GROUP, group = threadIdx.x / GROUP, row = tid / 8, piece = tid % 8;
    uint32_t left[K / 16][4];
    for (int s = p.segments - 1; s > w.segment; s--) {
        const int64_t at = (w.sequence * p.segments + s) * p.Hv + w.h;
        const float *X = p.X + at * K * p.V + column;
        if (s == p.segments - 1) {
            state_read<K>(dS, X, p.V);
            continue;
        }
        const bf16 *M = p.M + at * K * K;
#pragma unroll
        for (int half = 0; half < K / 64; half++)
#pragma unroll
            for (int j = 0; j < K / 16; j++)
                cp_async_16(tile + half * (K / 64) * TILE + (row + 16 * j) * 128 + ((piece ^ (row & 7)) << 4),
                            M + (row + 16 * j) * K + 64 * half + piece * 8);
        cp_async_commit();
        state_left<K>(left, dS);
        state_read<K>(dS, X, p.V);
        cp_async_wait<0>();
        if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(dS[h]);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(dS[h], left[kk], tile, (h * (K / 64) + kk / 4) * TILE, kk % 4);
        products_commit<HOPPER>();
        products_wait<HOPPER, 0>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(dS[h]);
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    }
}

/* One chunk in its stage of the ring. */
template <bool HOPPER, int K, int NV>
__device__ __forceinline__ void back_step(float (&dS)[K / 64][32], const lnt_delta_back &p, const back_work &w, int i, int column, uint32_t at,
                                          uint32_t stash)
{
    using L = back_stage<K, NV>;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    const uint32_t tile = at + L::o + group * TILE, factors = at + L::f + 8 * (lane % 4);
    const int64_t token = w.token + (int64_t)i * C, index = (int64_t)(w.chunk + i) * p.Hv + w.h;
    const int rows = (int)min((int64_t)C, w.end - token);
    uint32_t left[K / 16][4], o[4][4], z[4][4];
    float X[32], Y[32];
    state_left<K>(left, dS);
    /* the tile [tokens][columns of V], transposed on the way: dO as an A of 16 columns of V and 16 tokens */
    const int row = (lane & 7) + (lane >> 4 << 3);
    const uint32_t mine = tile + row * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (row & 7)) << 4);
#pragma unroll
    for (int j = 0; j < 4; j++) ldmatrix_x4_trans(o[j], mine + j * 2048);
#pragma unroll
    for (int j = 0; j < 32; j++) Y[j] = 0.f;
    pin(Y);
    products_begin<HOPPER>();
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(X, left[kk], at, L::k + kk / 4 * TILE, kk % 4, kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) times_columns<HOPPER>(Y, o[kk], at, L::p, kk);
    products_commit<HOPPER>();
    float last;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(last) : "r"(at + L::f + 256 + 63 * 4) : "memory");
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int j = 0; j < 32; j++) dS[h][j] *= last;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 e = load_shared_pair(factors + 256 + 32 * n);
        e.x *= p.scale;
        e.y *= p.scale;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t x = o[n / 2][n % 2 * 2 + j];
            z[n / 2][n % 2 * 2 + j] = pack_bf16(e.x * low_bf16(x), e.y * high_bf16(x));
        }
    }
#pragma unroll
    for (int h = 0; h < K / 64; h++) pin(dS[h]);
    products_begin<HOPPER>();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(dS[h], z[kk], at, L::q + h * TILE, kk);
    products_commit<HOPPER>();
    if (p.dS) state_out<HOPPER, K>(p.dS + index * K * p.V + column + 16 * warp, p.V, left, stash);
    products_wait<HOPPER, 1>();
    pin(X);
    pin(Y);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 l = load_shared_pair(factors + 512 + 32 * n);
#pragma unroll
        for (int j = 0; j < 2; j++)
            o[n / 2][n % 2 * 2 + j] = pack_bf16(l.x * X[4 * n + 2 * j] + Y[4 * n + 2 * j], l.y * X[4 * n + 2 * j + 1] + Y[4 * n + 2 * j + 1]);
    }
#pragma unroll
    for (int j = 0; j < 32; j++) X[j] = 0.f;
    pin(X);
    products_begin<HOPPER>();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) times_columns<HOPPER>(X, o[kk], at, L::t, kk);
    products_commit<HOPPER>();
    products_wait<HOPPER, 0>();
    pin(X);
#pragma unroll
    for (int h = 0; h < K / 64; h++) pin(dS[h]);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 beta = load_shared_pair(factors + 32 * n), e = load_shared_pair(factors + 256 + 32 * n);
        const float keep_x = beta.x < LNT_DELTA_WEAK ? 1.f : beta.x, keep_y = beta.y < LNT_DELTA_WEAK ? 1.f : beta.y;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float x = X[4 * n + 2 * j], y = X[4 * n + 2 * j + 1];
            z[n / 2][n % 2 * 2 + j] = pack_bf16(-e.x * beta.x * x, -e.y * beta.y * y);
            o[n / 2][n % 2 * 2 + j] = pack_bf16(keep_x * x, keep_y * y);
        }
    }
    products_begin<HOPPER>();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(dS[h], z[kk], at, L::k + h * TILE, kk);
    products_commit<HOPPER>();
    if (p.dv) { /* the warp's columns of the tile of dO, read by now, take what goes out */
#pragma unroll
        for (int j = 0; j < 4; j++) store_matrices_trans<HOPPER>(mine + j * 2048, o[j][0], o[j][1], o[j][2], o[j][3]);
        rows_out(p.dv + (token * p.Hv + w.h) * p.V + column, (int64_t)p.Hv * p.V, tile, warp, rows);
    }
    products_wait<HOPPER, 0>();
#pragma unroll
    for (int h = 0; h < K / 64; h++) pin(dS[h]);
}

template <bool HOPPER, int K, int NV>
__device__ __forceinline__ void back_chain(const lnt_delta_back &p, const back_work &w, uint32_t ring, uint32_t full, uint32_t empty, uint32_t stash)
{
    using L = back_stage<K, NV>;
    const int warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP, column = w.column + 64 * group;
    const int64_t state = (w.sequence * p.Hv + w.h) * K * p.V + column + 16 * warp;
    float dS[K / 64][32];
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int j = 0; j < 32; j++) dS[h][j] = 0.f;
    if (p.dsT && w.segment == p.segments - 1) state_read<K>(dS, p.dsT + state, p.V);
    if (!p.ends && p.segments > 1) segment_end<HOPPER, K>(dS, p, w, column + 16 * warp, stash);
    int s = 0;
    uint32_t parity = 0;
    for (int i = w.chunks - 1; i >= 0; i--) {
        barrier_wait<HOPPER>(full + 8 * s, parity);
        back_step<HOPPER, K, NV>(dS, p, w, i, column, ring + s * L::bytes, stash + warp * K * 32);
        barrier_arrive(empty + 8 * s);
        if (++s == p.stages) {
            s = 0;
            parity ^= 1;
        }
    }
    if (p.ends)
        state_write<K>(dS, p.X + ((w.sequence * p.segments + w.segment) * p.Hv + w.h) * K * p.V + column + 16 * warp, p.V);
    else if (p.ds0 && w.segment == 0)
        state_write<K>(dS, p.ds0 + state, p.V);
}

/* Registers: dS takes K/2 of a thread, its left fragments K/4, X and Y 32 each, o and z 16 each. */
template <bool HOPPER, int K, int NV> __global__ __launch_bounds__(GROUP *(NV + 1), 1) void back_kernel(const __grid_constant__ lnt_delta_back p)
{
    using L = back_stage<K, NV>;
    extern __shared__ uint8_t shared[];
    const uint32_t ring = (shared_address(shared) + 1023) & ~1023u, full = ring + p.stages * L::bytes, empty = full + 8 * p.stages;
    const uint32_t stash = (empty + 8 * p.stages + 1023) & ~1023u;
    const back_work w = back_work_of<NV>(p);
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; s++) {
            barrier_init(full + 8 * s, GROUP);
            barrier_init(empty + 8 * s, NV * GROUP);
        }
        if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < NV * GROUP) {
        if constexpr (HOPPER && NV == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        back_chain<HOPPER, K, NV>(p, w, ring, full, empty, stash + threadIdx.x / GROUP * p.stash);
    } else {
        if constexpr (HOPPER && NV == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        back_load_all<HOPPER, K, NV>(p, w, ring, full, empty);
    }
}

template <bool HOPPER, int K, int NV> void launch_back(lnt_delta_back p, const lnt_cuda *d)
{
    using L = back_stage<K, NV>;
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    p.stash = p.segments > 1 ? K * K * 2 : K * 64 * 2; /* as in the forward chain */
    const int fixed = 3 * 1024 + NV * p.stash;
    p.stages = (most - fixed) / (int)L::bytes;
    p.stages = p.stages > 4 ? 4 : p.stages < 1 ? 1 : p.stages;
    const int bytes = fixed + p.stages * (int)L::bytes;
    auto kernel = back_kernel<HOPPER, K, NV>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t blocks = p.sequences * (p.ends ? p.segments - 1 : p.segments) * p.Hv * (p.V / (64 * NV));
    if (blocks > 0) kernel<<<(unsigned)blocks, GROUP *(NV + 1), bytes, d->stream>>>(p);
}

template <bool HOPPER> void launch_back_chain(const lnt_delta_back &p, const lnt_cuda *d)
{
    if constexpr (HOPPER) {
        if (p.wide) return p.K == 64 ? launch_back<HOPPER, 64, 2>(p, d) : launch_back<HOPPER, 128, 2>(p, d);
    }
    return p.K == 64 ? launch_back<HOPPER, 64, 1>(p, d) : launch_back<HOPPER, 128, 1>(p, d);
}

} // namespace

#endif
