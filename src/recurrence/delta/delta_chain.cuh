/* The chain of chunk states, one CTA per (sequence or segment, value head, 64 NV columns of V): what is serial in the delta core, with the read-out
 * fused. Written once; the products are wgmma on Hopper and mma.sync elsewhere, whose fragments are laid out alike.
 *
 * Columns of V are independent of each other. So the state is held transposed, S^T [64 columns of V][K] in the float32 accumulators of one
 * warpgroup, 16 columns of V a warp, and every product of the chain has it, Z^T or U^T on the left, from registers, and a tile of tokens in shared
 * memory on the right: nothing passes from warp to warp, and there is no barrier in the chain but those of the loads.
 *
 *   Z^T = beta.(V^T - e.(S^T K^T))    U^T = Z^T T^T    O^T = s e.(S^T Q^T) + U^T P^T    S'^T = e_n S^T + (l.U^T) K       (columns are tokens)
 *
 * One more warpgroup loads: K, V, T, and with READ Q, P, `stages` chunks ahead. */
#ifndef LNT_DELTA_CHAIN_CUH
#define LNT_DELTA_CHAIN_CUH

#include "device/mma.cuh"
#include "recurrence/delta/delta_cuda.cuh"

namespace {

constexpr int C = LNT_DELTA_C;
constexpr uint32_t TILE = 64 * 64 * 2; /* [64][64] bf16, rows of 128 bytes, 16-byte piece j of row i at place j ^ (i & 7) */
constexpr int GROUP = 128;             /* threads of a warpgroup */

/* What a stage of the ring holds, in bytes from its start. */
template <int K, int NV, bool READ> struct stage {
    static constexpr uint32_t k = 0, t = k + K / 64 * TILE, v = t + TILE, q = v + NV * TILE, p = q + (READ ? K / 64 * TILE : 0);
    static constexpr uint32_t f = p + (READ ? TILE : 0), bytes = f + 1024;
};

/* ---- barriers in shared memory ---------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t b, int count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count)); }
__device__ __forceinline__ void barrier_arrive(uint32_t b)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(b) : "memory");
}
template <bool HOPPER> __device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t parity)
{
    uint32_t done;
    do {
        if constexpr (HOPPER)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(b), "r"(parity)
                         : "memory");
        else
            asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(b), "r"(parity)
                         : "memory");
    } while (!done);
}

/* ---- products: d [64][64] (+)= A [64][16] B, a warp having 16 rows of d and A ----------------------------------------------------------------- */

/* wgmma's description of a tile at `address`, 128-byte swizzle, groups of 8 rows 1024 bytes apart; `offset` bytes into it. */
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t offset)
{
    const uint64_t tile = (uint64_t)(address >> 4 | 1u << 16) | (uint64_t)(1u << 30 | 1024 >> 4) << 32;
    return tile + (offset >> 4);
}

template <int TRANS> __device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
                   "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
                   "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                   "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANS));
}

/* Registers that a product under way reads or writes stay as they are across these. */
template <bool HOPPER> __device__ __forceinline__ void products_begin()
{
    if constexpr (HOPPER) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <bool HOPPER> __device__ __forceinline__ void products_commit()
{
    if constexpr (HOPPER) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <bool HOPPER, int LEFT> __device__ __forceinline__ void products_wait()
{
    if constexpr (HOPPER) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
template <int N> __device__ __forceinline__ void pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* The tile stands `offset` bytes from `base`, both multiples of 1024.
 * B[k][n] = tile[n][16 kk + k]: rows of the tile are columns of d. LOWER: the tile is zero right of its diagonal. */
template <bool HOPPER, bool LOWER>
__device__ __forceinline__ void times_rows(float (&d)[32], const uint32_t (&a)[4], uint32_t base, uint32_t offset, int kk, bool add)
{
    if constexpr (HOPPER) {
        wgmma<0>(d, a, describe(base, offset + 32 * kk), add);
    } else {
        const int lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 4 << 3), piece = 2 * kk + (lane >> 3 & 1);
        const uint32_t tile = base + offset;
        if (!add)
#pragma unroll
            for (int i = 0; i < 32; i++) d[i] = 0.f;
#pragma unroll
        for (int j = LOWER ? kk : 0; j < 4; j++) {
            uint32_t b[4];
            ldmatrix_x4(b, tile + (16 * j + row) * 128 + ((piece ^ (row & 7)) << 4));
            mma_bf16(*(float(*)[4]) & d[8 * j], a, b[0], b[1]);
            mma_bf16(*(float(*)[4]) & d[8 * j + 4], a, b[2], b[3]);
        }
    }
}

/* B[k][n] = tile[16 kk + k][n]; adds. */
template <bool HOPPER> __device__ __forceinline__ void times_columns(float (&d)[32], const uint32_t (&a)[4], uint32_t base, uint32_t offset, int kk)
{
    if constexpr (HOPPER) {
        wgmma<1>(d, a, describe(base, offset + 2048 * kk), 1);
    } else {
        const int lane = threadIdx.x & 31, row = 16 * kk + (lane & 15);
        const uint32_t tile = base + offset;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile + row * 128 + (((2 * j + (lane >> 4)) ^ (row & 7)) << 4));
            mma_bf16(*(float(*)[4]) & d[8 * j], a, b[0], b[1]);
            mma_bf16(*(float(*)[4]) & d[8 * j + 4], a, b[2], b[3]);
        }
    }
}

/* Four 8x8 matrices to shared memory, transposed; addresses as ldmatrix takes them. */
template <bool HOPPER> __device__ __forceinline__ void store_matrices_trans(uint32_t address, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3)
{
    if constexpr (HOPPER) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                     : "memory");
    } else {
        const int lane = threadIdx.x & 31;
        uint32_t x[4] = { x0, x1, x2, x3 };
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t y;
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x[m]));
            const uint32_t row = __shfl_sync(0xffffffffu, address, 8 * m + lane / 4);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + 4 * (lane % 4)), "r"(y) : "memory");
        }
    }
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t address)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------------------------------- */

/* What a CTA works on: chunks of one sequence, or of a segment of it. */
struct chain_work {
    int64_t sequence, item; /* item: the sequence, or its segment (sequence * segments + segment) */
    int64_t token, end;     /* first token of the first chunk; the sequence's end */
    int chunk, chunks, segment; /* first chunk in the list; how many */
    int h, column;          /* value head; first column of V, or of the transition when it is V or more */
};

template <int NV> __device__ __forceinline__ chain_work work_of(const lnt_delta_chain &p)
{
    chain_work w;
    int64_t x = blockIdx.x;
    const int blocks = (p.V + (p.transitions ? p.K : 0)) / (64 * NV);
    w.column = (int)(x % blocks) * 64 * NV;
    x /= blocks;
    w.h = (int)(x % p.Hv);
    w.item = x / p.Hv;
    /* the last segment's transition leads nowhere */
    const int each = p.transitions ? p.segments - 1 : p.segments;
    w.sequence = w.item / each;
    w.segment = (int)(w.item % each);
    w.item = w.sequence * p.segments + w.segment;
    const int first = p.first_chunk[w.sequence], all = p.first_chunk[w.sequence + 1] - first;
    const int length = p.segments > 1 ? p.segment_chunks : all, from = min(w.segment * length, all);
    w.chunk = first + from;
    w.chunks = w.segment == p.segments - 1 ? all - from : min(length, all - from);
    w.token = p.cu[w.sequence] + (int64_t)from * C;
    w.end = p.cu[w.sequence + 1];
    return w;
}

/* The loads of a chunk, by the threads of a warpgroup: each has the same piece of every so many rows, and goes from chunk to chunk by adding. */
template <int K, int NV, bool READ> struct loader {
    using L = stage<K, NV, READ>;
    static constexpr int PER = K / 8, STEP = GROUP / PER; /* pieces of a row of K; rows at a time */
    const bf16 *k, *q, *v, *t, *p;
    const float *f;
    int64_t key_row, value_row; /* from a row to the next */
    uint32_t key_to, to, f_to;
    int left, heads;            /* rows from this chunk's first to the sequence's end; value heads */
    int tid;
    bool real;                  /* these are columns of V */

    __device__ loader(const lnt_delta_chain &c, const chain_work &w, int tid_) : tid(tid_)
    {
        const int key_at = tid / PER, key_piece = tid % PER, row = tid / 8, piece = tid % 8;
        key_row = (int64_t)c.Hq * K;
        value_row = (int64_t)c.Hv * c.V;
        const int64_t key = (w.token + key_at) * key_row + w.h / (c.Hv / c.Hq) * K + key_piece * 8, item = (int64_t)w.chunk * c.Hv + w.h;
        k = c.k + key;
        q = c.q + key;
        v = c.v + (w.token + row) * value_row + w.h * c.V + w.column + piece * 8;
        t = c.T + item * (C * C) + row * C + piece * 8;
        p = c.P + item * (C * C) + row * C + piece * 8;
        f = c.F + item * (4 * C) + tid % 64 * 4;
        key_to = (key_piece >> 3) * TILE + key_at * 128 + (((key_piece & 7) ^ (key_at & 7)) << 4);
        to = row * 128 + ((piece ^ (row & 7)) << 4);
        f_to = L::f + tid * 16;
        left = (int)(w.end - w.token);
        heads = c.Hv;
        real = w.column < c.V;
    }

    __device__ __forceinline__ void load(uint32_t at)
    {
        const int key_left = left - tid / PER, value_left = real ? left - tid / 8 : 0;
#pragma unroll
        for (int j = 0; j < C / STEP; j++) {
            const bool in = j * STEP < key_left;
            cp_async_16(at + L::k + key_to + j * STEP * 128, in ? k + j * STEP * key_row : k, in);
            if constexpr (READ) cp_async_16(at + L::q + key_to + j * STEP * 128, in ? q + j * STEP * key_row : q, in);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const bool in = 16 * j < value_left;
#pragma unroll
            for (int b = 0; b < NV; b++) cp_async_16(at + L::v + to + b * TILE + j * 2048, in ? v + 16 * j * value_row + 64 * b : v, in);
            cp_async_16(at + L::t + to + j * 2048, t + 16 * j * C);
            if constexpr (READ) cp_async_16(at + L::p + to + j * 2048, p + 16 * j * C);
        }
        if (tid < 64) cp_async_16(at + f_to, f);
        k += C * key_row;
        q += C * key_row;
        v += C * value_row;
        t += heads * (C * C);
        p += heads * (C * C);
        f += heads * (4 * C);
        left -= C;
    }
};

template <bool HOPPER, int K, int NV, bool READ>
__device__ __forceinline__ void load_all(const lnt_delta_chain &p, const chain_work &w, uint32_t ring, uint32_t full, uint32_t empty)
{
    using L = stage<K, NV, READ>;
    loader<K, NV, READ> from(p, w, (int)threadIdx.x - NV * GROUP);
    int s = 0, behind = 0;
    uint32_t parity = 1;
    for (int i = 0; i <= w.chunks; i++) {
        if (i < w.chunks) {
            barrier_wait<HOPPER>(empty + 8 * s, parity);
            from.load(ring + s * L::bytes);
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

/* A warp's 16 columns of a [64 tokens][64] tile in shared memory to its rows in global memory, 32 bytes a row. */
__device__ __forceinline__ void rows_out(bf16 *to, int64_t stride, uint32_t tile, int warp, int rows)
{
    const int lane = threadIdx.x & 31, row = lane / 2, piece = 2 * warp + (lane & 1);
    const uint32_t at = tile + row * 128 + ((piece ^ (row & 7)) << 4);
    uint4 x[4];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = load_shared_16(at + j * 2048);
    to += row * stride + piece * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (row + 16 * j < rows) *(uint4 *)to = x[j];
        to += 16 * stride;
    }
    __syncwarp();
}

/* The state at a chunk's start, from left fragments, through `stash` ([K][16] of the warp) to S [K,V]. */
template <bool HOPPER, int K> __device__ __forceinline__ void state_out(bf16 *to, int V, const uint32_t (&left)[K / 16][4], uint32_t stash)
{
    const int lane = threadIdx.x & 31;
    {
        const int row = (lane & 7) + (lane >> 4 << 3), piece = lane >> 3 & 1;
        const uint32_t at = stash + row * 32 + ((piece ^ (row >> 2 & 1)) << 4);
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
            store_matrices_trans<HOPPER>(at + kk * 512, left[kk][0], left[kk][1], left[kk][2], left[kk][3]);
    }
    __syncwarp();
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++) {
        const int row = lane / 2, piece = lane & 1;
        const uint4 x = load_shared_16(stash + kk * 512 + row * 32 + ((piece ^ (row >> 2 & 1)) << 4));
        /* said outright: the compiler has been seen to store four bytes at a time here, at twice the time of the whole chain */
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + (int64_t)(16 * kk + row) * V + piece * 8), "r"(x.x), "r"(x.y),
                     "r"(x.z), "r"(x.w)
                     : "memory");
    }
    __syncwarp();
}

/* S^T fragments (d[h][4 n + ..] holds rows 64 h + 8 n + .. of S) from and to float32 [K][V] memory, whose first column is the warp's. */
template <int K> __device__ __forceinline__ void state_read(float (&S)[K / 64][32], const float *from, int V)
{
    const int lane = threadIdx.x & 31, r = lane / 4, c = 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) S[h][4 * n + j] = from[(int64_t)(64 * h + 8 * n + c + (j & 1)) * V + r + (j >> 1) * 8];
}
template <int K> __device__ __forceinline__ void state_write(const float (&S)[K / 64][32], float *to, int V)
{
    const int lane = threadIdx.x & 31, r = lane / 4, c = 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) to[(int64_t)(64 * h + 8 * n + c + (j & 1)) * V + r + (j >> 1) * 8] = S[h][4 * n + j];
}
/* float32 fragments as left fragments. */
template <int K> __device__ __forceinline__ void state_left(uint32_t (&left)[K / 16][4], const float (&S)[K / 64][32])
{
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
        for (int j = 0; j < 4; j++) left[kk][j] = pack_bf16(S[kk / 4][8 * (kk % 4) + 2 * j], S[kk / 4][8 * (kk % 4) + 2 * j + 1]);
}

/* The state of a segment's start: S <- M S + X over the segments before it (operators.md 13, breaking the chain 3). M [K,K] bf16 is loaded by the
 * warpgroup into `tile`, which nobody else uses. */
template <bool HOPPER, int K>
__device__ void segment_start(float (&S)[K / 64][32], const lnt_delta_chain &p, const chain_work &w, int column, uint32_t tile)
{
    const int tid = threadIdx.x % GROUP, group = threadIdx.x / GROUP, row = tid / 8, piece = tid % 8;
    uint32_t left[K / 16][4];
    for (int s = 0; s < w.segment; s++) {
        const int64_t at = (w.sequence * p.segments + s) * p.Hv + w.h;
        const bf16 *M = p.M + at * K * K;
#pragma unroll
        for (int half = 0; half < K / 64; half++)
#pragma unroll
            for (int j = 0; j < K / 16; j++)
                cp_async_16(tile + half * (K / 64) * TILE + (row + 16 * j) * 128 + ((piece ^ (row & 7)) << 4),
                            M + (row + 16 * j) * K + 64 * half + piece * 8);
        cp_async_commit();
        state_left<K>(left, S);
        state_read<K>(S, p.X + at * K * p.V + column, p.V);
        cp_async_wait<0>();
        if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_rows<HOPPER, false>(S[h], left[kk], tile, (kk / 4 * (K / 64) + h) * TILE, kk % 4, true);
        products_commit<HOPPER>();
        products_wait<HOPPER, 0>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    }
}

/* The chain of a CTA's chunks, by one warpgroup for its 64 columns. Products of a chunk, in the order in which they are put: S K, S Q, Z T, U K, U P;
 * the next chunk's S K is put before the last of them is waited for, so that what leaves (O, through the tile of V) is carried out in its shadow. */
template <bool HOPPER, int K, int NV, bool READ> struct chain {
    using L = stage<K, NV, READ>;
    const lnt_delta_chain &p;
    const chain_work &w;
    const int lane, warp, group, column;
    const uint32_t ring, full, empty, stash;
    const uint32_t mine; /* the warp's columns in a tile of tokens, as ldmatrix transposes them to an A of 16 columns of V and 16 tokens */
    int s = 0;
    uint32_t parity = 0;
    float S[K / 64][32], O[READ ? 32 : 1], Z[32];
    uint32_t left[K / 16][4];

    __device__ chain(const lnt_delta_chain &p_, const chain_work &w_, uint32_t ring_, uint32_t full_, uint32_t empty_, uint32_t stash_)
        : p(p_), w(w_), lane(threadIdx.x & 31), warp(threadIdx.x / 32 % 4), group(threadIdx.x / GROUP), column(w_.column + 64 * group), ring(ring_),
          full(full_), empty(empty_), stash(stash_ + warp * K * 32),
          mine(L::v + group * TILE + ((lane & 7) + (lane >> 4 << 3)) * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4))
    {
    }

    /* O of chunk i goes out, and its stage is free. */
    __device__ __forceinline__ void finish(int i, int slot)
    {
        const uint32_t at = ring + slot * L::bytes;
        if constexpr (READ) {
            pin(O);
#pragma unroll
            for (int j = 0; j < 4; j++)
                store_matrices_trans<HOPPER>(at + mine + j * 2048, pack_bf16(O[8 * j], O[8 * j + 1]), pack_bf16(O[8 * j + 2], O[8 * j + 3]),
                                             pack_bf16(O[8 * j + 4], O[8 * j + 5]), pack_bf16(O[8 * j + 6], O[8 * j + 7]));
            values_out(p.o, i, at);
        }
        barrier_arrive(empty + 8 * slot);
    }

    __device__ __forceinline__ void values_out(bf16 *to, int i, uint32_t at)
    {
        const int64_t token = w.token + (int64_t)i * C;
        rows_out(to + (token * p.Hv + w.h) * p.V + column, (int64_t)p.Hv * p.V, at + L::v + group * TILE, warp, (int)min((int64_t)C, w.end - token));
    }

    /* Off Hopper products are done when they are put, and a ring may have one stage only. */
    static constexpr bool AHEAD = HOPPER && READ;

    /* From the state to Z = U of chunk i. BEHIND: O of the chunk before, of stage `before`, goes out while the first product runs. */
    template <bool BEHIND> __device__ __forceinline__ void writes_of(int i, int before)
    {
        const uint32_t at = ring + s * L::bytes, factors = at + L::f + 8 * (lane % 4);
        state_left<K>(left, S);
        barrier_wait<HOPPER>(full + 8 * s, parity);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(Z, left[kk], at, L::k + kk / 4 * TILE, kk % 4, kk > 0);
        products_commit<HOPPER>();
        if constexpr (BEHIND) {
            products_wait<HOPPER, 1>();
            finish(i - 1, before);
        }
        if constexpr (READ) {
            products_begin<HOPPER>();
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(O, left[kk], at, L::q + kk / 4 * TILE, kk % 4, kk > 0);
            products_commit<HOPPER>();
        }
        if (p.S && column < p.V) state_out<HOPPER, K>(p.S + ((int64_t)(w.chunk + i) * p.Hv + w.h) * K * p.V + column + 16 * warp, p.V, left, stash);
        float last;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(last) : "r"(at + L::f + 256 + 63 * 4) : "memory");
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) S[h][j] *= last;
        uint32_t z[4][4];
        float v[32]; /* beta v */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            ldmatrix_x4_trans(z[j], at + mine + j * 2048);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float2 beta = load_shared_pair(factors + 32 * (2 * j + m));
                v[8 * j + 4 * m] = beta.x * low_bf16(z[j][2 * m]);
                v[8 * j + 4 * m + 1] = beta.y * high_bf16(z[j][2 * m]);
                v[8 * j + 4 * m + 2] = beta.x * low_bf16(z[j][2 * m + 1]);
                v[8 * j + 4 * m + 3] = beta.y * high_bf16(z[j][2 * m + 1]);
            }
        }
        products_wait<HOPPER, READ>();
        pin(Z);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 be = load_shared_pair(factors + 768 + 32 * n);
#pragma unroll
            for (int j = 0; j < 2; j++)
                z[n / 2][n % 2 * 2 + j] = pack_bf16(v[4 * n + 2 * j] - be.x * Z[4 * n + 2 * j], v[4 * n + 2 * j + 1] - be.y * Z[4 * n + 2 * j + 1]);
        }
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows<HOPPER, true>(Z, z[kk], at, L::t, kk, kk > 0);
        products_commit<HOPPER>();
        if constexpr (READ) {
            products_wait<HOPPER, 1>();
            pin(O);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 e = load_shared_pair(factors + 256 + 32 * n);
#pragma unroll
                for (int j = 0; j < 4; j++) O[4 * n + j] *= p.scale * (j & 1 ? e.y : e.x);
            }
        }
        products_wait<HOPPER, 0>();
        pin(Z);
    }

    /* From Z = U of chunk i to the next state; O is under way. */
    __device__ __forceinline__ void next_state(int i)
    {
        const uint32_t at = ring + s * L::bytes, factors = at + L::f + 8 * (lane % 4);
        uint32_t z[4][4], u[4][4];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 l = load_shared_pair(factors + 512 + 32 * n);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                z[n / 2][n % 2 * 2 + j] = pack_bf16(l.x * Z[4 * n + 2 * j], l.y * Z[4 * n + 2 * j + 1]);
                u[n / 2][n % 2 * 2 + j] = pack_bf16(Z[4 * n + 2 * j], Z[4 * n + 2 * j + 1]);
            }
        }
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(S[h], z[kk], at, L::k + h * TILE, kk);
        products_commit<HOPPER>();
        if constexpr (READ) {
#pragma unroll
            for (int kk = 0; kk < 4; kk++) times_rows<HOPPER, true>(O, u[kk], at, L::p, kk, true);
            products_commit<HOPPER>();
        }
        /* the warp's columns of the tile of V, read by now, take what goes out */
        if (p.U && column < p.V) {
#pragma unroll
            for (int j = 0; j < 4; j++) store_matrices_trans<HOPPER>(at + mine + j * 2048, u[j][0], u[j][1], u[j][2], u[j][3]);
            values_out(p.U, i, at);
        }
        products_wait<HOPPER, READ>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
    }

    __device__ __forceinline__ void run()
    {
        const bool transition = column >= p.V;
        const int64_t state = (w.sequence * p.Hv + w.h) * K * p.V + column + 16 * warp;
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const int k = 64 * h + 8 * (j / 4) + 2 * (lane % 4) + (j & 1), v = column - p.V + 16 * warp + lane / 4 + (j >> 1 & 1) * 8;
                S[h][j] = transition && k == v ? 1.f : 0.f;
            }
        if (!p.transitions) {
            if (p.s0) state_read<K>(S, p.s0 + state, p.V);
            if (p.segments > 1) segment_start<HOPPER, K>(S, p, w, column + 16 * warp, stash - warp * K * 32);
        }
        if (w.chunks > 0) {
            writes_of<false>(0, 0);
            for (int i = 0; i + 1 < w.chunks; i++) {
                next_state(i);
                const int slot = s;
                if constexpr (!AHEAD) finish(i, slot);
                if (++s == p.stages) {
                    s = 0;
                    parity ^= 1;
                }
                writes_of<AHEAD>(i + 1, slot);
            }
            next_state(w.chunks - 1);
            products_wait<HOPPER, 0>();
            finish(w.chunks - 1, s);
        }
        if (!p.transitions) {
            if (p.sT && w.segment == p.segments - 1) state_write<K>(S, p.sT + state, p.V);
        } else if (!transition) {
            state_write<K>(S, p.X + (w.item * p.Hv + w.h) * K * p.V + column + 16 * warp, p.V);
        } else {
            state_left<K>(left, S);
            state_out<HOPPER, K>(p.M + (w.item * p.Hv + w.h) * K * K + column - p.V + 16 * warp, K, left, stash);
        }
    }
};

/* Registers: the state takes K/2 of a thread, its left fragments K/4, Z and O 32 each, z and u 16 each. Hopper hands registers from the loading
 * warpgroup to the others when there are three. */
template <bool HOPPER, int K, int NV, bool READ>
__global__ __launch_bounds__(GROUP *(NV + 1), 1) void chain_kernel(const __grid_constant__ lnt_delta_chain p)
{
    using L = stage<K, NV, READ>;
    extern __shared__ uint8_t shared[];
    const uint32_t ring = (shared_address(shared) + 1023) & ~1023u, full = ring + p.stages * L::bytes, empty = full + 8 * p.stages;
    const uint32_t stash = (empty + 8 * p.stages + 1023) & ~1023u;
    const chain_work w = work_of<NV>(p);
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
        chain<HOPPER, K, NV, READ> x(p, w, ring, full, empty, stash + threadIdx.x / GROUP * p.stash);
        x.run();
    } else {
        if constexpr (HOPPER && NV == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        load_all<HOPPER, K, NV, READ>(p, w, ring, full, empty);
    }
}

template <bool HOPPER, int K, int NV, bool READ> void launch(lnt_delta_chain p, const lnt_cuda *d)
{
    using L = stage<K, NV, READ>;
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    /* a state in bf16: [K][64] of each warpgroup on its way out, [K][K] of a transition on its way in */
    p.stash = p.segments > 1 ? K * K * 2 : p.S ? K * 64 * 2 : 0;
    const int fixed = 3 * 1024 + NV * p.stash;
    p.stages = (most - fixed) / (int)L::bytes;
    p.stages = p.stages > 4 ? 4 : p.stages < 1 ? 1 : p.stages;
    const int bytes = fixed + p.stages * (int)L::bytes;
    auto kernel = chain_kernel<HOPPER, K, NV, READ>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t blocks = (p.V + (p.transitions ? p.K : 0)) / (64 * NV);
    const int64_t items = p.sequences * (p.transitions ? p.segments - 1 : p.segments);
    if (items * p.Hv * blocks > 0) kernel<<<(unsigned)(items * p.Hv * blocks), GROUP *(NV + 1), bytes, d->stream>>>(p);
}

template <bool HOPPER, int K> void launch_chain(const lnt_delta_chain &p, const lnt_cuda *d)
{
    const bool wide = HOPPER && p.wide;
    if (p.o) {
        if constexpr (HOPPER)
            if (wide) return launch<HOPPER, K, 2, true>(p, d);
        launch<HOPPER, K, 1, true>(p, d);
    } else {
        if constexpr (HOPPER)
            if (wide) return launch<HOPPER, K, 2, false>(p, d);
        launch<HOPPER, K, 1, false>(p, d);
    }
}

} // namespace

#endif
