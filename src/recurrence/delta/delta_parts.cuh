/* What both chains of the delta core are made of, the states' forwards (delta_chain.cuh) and their gradients' in reverse (delta_back_chain.cuh):
 * barriers, products, the loads of a chunk, what leaves for memory, and the start of a segment. Written once for wgmma (HOPPER) and mma.sync, whose
 * fragments are laid out alike. */
#ifndef LNT_DELTA_PARTS_CUH
#define LNT_DELTA_PARTS_CUH

#include "device/mma.cuh"
#include "recurrence/delta/delta_cuda.cuh"

namespace {

constexpr int C = LNT_DELTA_C;
constexpr uint32_t TILE = 64 * 64 * 2; /* [64][64] bf16, rows of 128 bytes, 16-byte piece j of row i at place j ^ (i & 7) */
constexpr int GROUP = 128;             /* threads of a warpgroup */

/* What a stage of the ring holds, in bytes from its start. v: the tile of V, in reverse that of dO. READ: Q and P too. */
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

/* An arrival that waits for `bytes` of the copy engine's, and one of this thread's own copies so far: nobody waits here. */
__device__ __forceinline__ void barrier_expect(uint32_t b, uint32_t bytes)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive_behind_copies(uint32_t b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(b) : "memory");
}
/* A tile's image from memory, by the copy engine. */
__device__ __forceinline__ void image_in(uint32_t to, const void *from, uint32_t bytes, uint32_t full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(full)
                 : "memory");
}
/* What this thread wrote plainly is seen by the copy engine, barriers too. */
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

/* B[k][n] = tile[16 kk + k][n]. */
template <bool HOPPER>
__device__ __forceinline__ void times_columns(float (&d)[32], const uint32_t (&a)[4], uint32_t base, uint32_t offset, int kk, bool add)
{
    if constexpr (HOPPER) {
        wgmma<1>(d, a, describe(base, offset + 2048 * kk), add);
    } else {
        const int lane = threadIdx.x & 31, row = 16 * kk + (lane & 15);
        const uint32_t tile = base + offset;
        if (!add)
#pragma unroll
            for (int i = 0; i < 32; i++) d[i] = 0.f;
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
        __syncwarp(); /* lanes write for each other */
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t y = movmatrix(x[m]);
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
__device__ __forceinline__ void store_shared_zeros(uint32_t address)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

/* Of each token that a lane has columns of (2 (lane % 4) and the next, of eight eights), a factor; at: the lane's first. */
__device__ __forceinline__ void load_factors(float2 (&by)[8], uint32_t at)
{
#pragma unroll
    for (int n = 0; n < 8; n++) by[n] = load_shared_pair(at + 32 * n);
}

/* ---- shared memory of a CTA: a ring of stages, their barriers, and what is on its way out or into a segment's start ---------------------------- */

struct ring_of {
    uint32_t stages, full, empty, taken, stash; /* taken: the tiles of O have been read (READ, forwards) */
    int count;
};

template <bool HOPPER, int NV> __device__ __forceinline__ ring_of make_ring(const uint8_t *shared, int count, uint32_t stage_bytes)
{
    ring_of r;
    r.count = count;
    r.stages = (shared_address(shared) + 1023) & ~1023u;
    r.full = r.stages + count * stage_bytes;
    r.empty = r.full + 8 * count;
    r.taken = r.empty + 8 * count;
    r.stash = (r.taken + 8 + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int s = 0; s < count; s++) {
            barrier_init(r.full + 8 * s, GROUP);
            barrier_init(r.empty + 8 * s, NV * GROUP);
        }
        barrier_init(r.taken, GROUP);
        if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    return r;
}
/* Of a warpgroup's stash: a tile of O, or a state's image [K][64], and in the chain that keeps them one of writes [64][64], on their way out, or a
 * transition [K][K] on its way in. */
inline int stash_bytes(int K, bool read, bool states, bool writes, bool segments)
{
    const int out = (read ? (int)TILE : 0) + (states ? K * 128 : 0) + (writes ? C * 128 : 0), in = segments ? K * K * 2 : 0;
    return out > in ? out : in;
}
inline int ring_bytes(int NV, int stash, int stages, int stage_bytes) { return 3 * 1024 + NV * stash + stages * stage_bytes; }
/* CTAs of a chain on a multiprocessor: on Hopper two of 64 keys and 64 columns, each with half of the registers, where there are so many. */
template <bool HOPPER, int K, int NV> constexpr int chains_at_once = HOPPER && K == 64 && NV == 1 ? 2 : 1;
template <bool HOPPER, int K, int NV, bool READ> int stages_in(const lnt_cuda *d, int stash, int64_t ctas)
{
    int most = (int)d->base.block_shared, all = 0, own = 0;
    cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, d->index);
    cudaDeviceGetAttribute(&own, cudaDevAttrReservedSharedMemoryPerBlock, d->index);
    if (chains_at_once<HOPPER, K, NV> == 2 && ctas > d->base.multiprocessors) most = all / 2 - own;
    const int n = (most - ring_bytes(NV, stash, 0, 0)) / (int)stage<K, NV, READ>::bytes;
    return n > 4 ? 4 : n < 1 ? 1 : n;
}
/* Hopper hands registers from the loading warpgroup to the others where these have too few: 65,536 for 3 of 128 threads, or 4 of two CTAs. OUT: the
 * loading warpgroup carries O out, too. */
template <bool HOPPER, int K, int NV, bool OUT> __device__ __forceinline__ void more_registers()
{
    if constexpr (HOPPER && NV == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(OUT ? 224 : 232));
    if constexpr (chains_at_once<HOPPER, K, NV> == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
}
template <bool HOPPER, int K, int NV, bool OUT> __device__ __forceinline__ void fewer_registers()
{
    if constexpr (HOPPER && NV == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OUT ? 56 : 40));
    if constexpr (chains_at_once<HOPPER, K, NV> == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
}

/* ---- what a CTA works on ------------------------------------------------------------------------------------------------------------------- */

/* Chunks of one sequence, or of a segment of it. */
struct chain_work {
    int64_t sequence, item; /* item: the sequence, or its segment (sequence * segments + segment) */
    int64_t token, end;     /* first token of the first chunk; the sequence's end */
    int chunk, chunks, segment; /* first chunk in the list; how many */
    int h, column;          /* value head; first column of V, or of the transition when it is V or more */
};

/* CTAs of a chain, and what each of them does. A segment's own end: not of the last one, whose end leads nowhere, in reverse not of the first one. */
template <int NV, bool REVERSE> __host__ __device__ __forceinline__ int64_t chain_ctas(const lnt_delta_chain &p)
{
    const int64_t blocks = (p.V + (p.ends && !REVERSE ? p.K : 0)) / (64 * NV);
    return p.sequences * (p.ends ? p.segments - 1 : p.segments) * p.Hv * blocks;
}
template <int NV, bool REVERSE> __device__ __forceinline__ chain_work work_of(const lnt_delta_chain &p, int64_t x)
{
    chain_work w;
    const int blocks = (p.V + (p.ends && !REVERSE ? p.K : 0)) / (64 * NV), each = p.ends ? p.segments - 1 : p.segments;
    w.column = (int)(x % blocks) * 64 * NV;
    x /= blocks;
    w.h = (int)(x % p.Hv);
    x /= p.Hv;
    w.sequence = x / each;
    w.segment = (int)(x % each) + (p.ends && REVERSE ? 1 : 0);
    w.item = w.sequence * p.segments + w.segment;
    w.token = p.cu[w.sequence];
    w.end = p.cu[w.sequence + 1];
    const int first = p.first_chunk ? p.first_chunk[w.sequence] : 0, all = (int)((w.end - w.token + C - 1) / C);
    const bool whole = p.segments <= 1;
    const int from = min(whole ? p.from : w.segment * p.segment_chunks, all);
    w.chunk = first + from;
    w.chunks = whole ? min(p.until, all) - from : w.segment == p.segments - 1 ? all - from : min(p.segment_chunks, all - from);
    w.token += (int64_t)from * C;
    return w;
}

/* ---- loads --------------------------------------------------------------------------------------------------------------------------------- */

/* The loads of a chunk, by the threads of a warpgroup: each has the same piece of every so many rows, and goes from chunk to chunk by adding.
 * `values` is what the tile of V gets: v, in reverse dO (NULL: zeros). */
template <int K, int NV, bool READ, bool REVERSE> struct loader {
    using L = stage<K, NV, READ>;
    static constexpr int PER = K / 8, STEP = GROUP / PER, AHEAD = REVERSE ? -C : C; /* pieces of a row of K; rows at a time; to the next chunk */
    static constexpr uint32_t NOWHERE = ~0u;
    const bf16 *k, *q, *v, *t, *p;
    const float *f;
    int64_t key_row, value_row; /* from a row to the next */
    uint32_t key_to, to, f_to;
    uint32_t packed_to[REVERSE ? 1 : 4]; /* forwards, where a thread's pieces of T and P go, 1024 elements apart in memory; or NOWHERE */
    int left, heads, apart;     /* rows from this chunk's first to the sequence's end; value heads; elements from a T to the next of a head */
    int tid;
    bool real;                  /* there are values */

    __device__ loader(const lnt_delta_chain &c, const chain_work &w, const bf16 *values, int tid_) : tid(tid_)
    {
        const int key_at = tid / PER, key_piece = tid % PER, row = tid / 8, piece = tid % 8, first = REVERSE ? w.chunks - 1 : 0;
        key_row = (int64_t)c.Hq * K;
        value_row = (int64_t)c.Hv * c.V;
        const int64_t token = w.token + (int64_t)first * C, item = (int64_t)(w.chunk + first) * c.Hv + w.h;
        const int64_t key = (token + key_at) * key_row + w.h / (c.Hv / c.Hq) * K + key_piece * 8;
        real = values && w.column < c.V;
        k = c.k + key;
        q = c.q + key;
        v = real ? values + (token + row) * value_row + w.h * c.V + w.column + piece * 8 : c.k;
        const int size = c.packed ? LNT_DELTA_PACKED : C * C;
        t = c.T + item * size + tid * 8;
        p = c.P + item * size + tid * 8;
        f = c.F + item * (4 * C) + tid % 64 * 4;
        key_to = (key_piece >> 3) * TILE + key_at * 128 + (((key_piece & 7) ^ (key_at & 7)) << 4);
        to = row * 128 + ((piece ^ (row & 7)) << 4);
        f_to = L::f + tid * 16;
        left = (int)(w.end - token);
        heads = REVERSE ? -c.Hv : c.Hv;
        apart = heads * size;
        if constexpr (!REVERSE)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int i = 0, column = tid / 16 + 8 * j, r = tid % 16;
                while (i < 4 && column > 2 * i + 1) column -= 2 * ++i;
                packed_to[j] = i < 4 && (column <= 2 * i || r >= 8) ? (16 * i + r) * 128 + ((column ^ (r & 7)) << 4) : NOWHERE;
                if (!c.packed) packed_to[j] = tile_place(j);
            }
    }

    /* The same where T and P are not packed. */
    __device__ __forceinline__ uint32_t tile_place(int j) const { return tid % 8 <= tid / 64 + 2 * j ? to + j * 2048 : NOWHERE; }

    /* A stage's T and P right of their diagonals are zeros, which no load changes. */
    __device__ __forceinline__ void clear(uint32_t at) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (tid % 8 > tid / 64 + 2 * j) {
                store_shared_zeros(at + L::t + to + j * 2048);
                if constexpr (READ) store_shared_zeros(at + L::p + to + j * 2048);
            }
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
            const uint32_t place = REVERSE ? tile_place(j) : packed_to[REVERSE ? 0 : j];
            if (place != NOWHERE) {
                cp_async_16(at + L::t + place, t + j * (GROUP * 8));
                if constexpr (READ) cp_async_16(at + L::p + place, p + j * (GROUP * 8));
            }
        }
        if (tid < 64) cp_async_16(at + f_to, f);
        k += AHEAD * key_row;
        q += AHEAD * key_row;
        if (real) v += AHEAD * value_row;
        t += apart;
        p += apart;
        f += heads * (4 * C);
        left -= AHEAD;
    }
};

/* O of a chunk on its way out, by the threads of a warpgroup: each has the same 16 bytes of every 16 rows of the NV tiles. */
template <int NV> struct carrier {
    bf16 *to;
    int64_t step; /* from a row to the next */
    uint32_t from, apart;
    int left;

    __device__ carrier(const lnt_delta_chain &c, const chain_work &w, const ring_of &ring, int tid) : step((int64_t)c.Hv * c.V), apart(c.stash)
    {
        const int row = tid / 8, piece = tid % 8;
        to = c.o + (w.token + row) * step + w.h * c.V + w.column + piece * 8;
        from = ring.stash + row * 128 + ((piece ^ (row & 7)) << 4);
        left = (int)(w.end - w.token) - row;
    }

    __device__ __forceinline__ void carry(uint32_t taken)
    {
#pragma unroll
        for (int i = 0; i < 2 * NV; i++) { /* two pieces at a time: loading warpgroups have few registers */
            const int b = i / 2, j = i % 2 * 2;
            const uint4 x = load_shared_16(from + b * apart + j * 2048), y = load_shared_16(from + b * apart + (j + 1) * 2048);
            if (i == 2 * NV - 1) barrier_arrive(taken);
            if (16 * j < left) *(uint4 *)(to + 16 * j * step + 64 * b) = x;
            if (16 * j + 16 < left) *(uint4 *)(to + (16 * j + 16) * step + 64 * b) = y;
        }
        to += C * step;
        left -= C;
    }
};

/* All loads but the last LEFT have come. */
template <bool HOPPER, int LEFT> __device__ __forceinline__ void hand_over(uint32_t full)
{
    cp_async_wait<LEFT>();
    if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_arrive(full);
}
/* What the loading warpgroup does: the chunks' loads in their order, each when the chunk `ring.count` before it has been left, whose O it carries out
 * then (OUT). */
template <bool HOPPER, int K, int NV, bool READ, bool REVERSE>
__device__ __forceinline__ void load_all(const lnt_delta_chain &p, const chain_work &w, const bf16 *values, const ring_of &ring)
{
    using L = stage<K, NV, READ>;
    constexpr bool OUT = READ && !REVERSE;
    const int tid = (int)threadIdx.x - NV * GROUP;
    loader<K, NV, READ, REVERSE> from(p, w, values, tid);
    carrier<NV> out(p, w, ring, tid);
    int s = 0, behind = 0;
    uint32_t parity = 1;
    auto next = [&] {
        if (++s == ring.count) {
            s = 0;
            parity ^= 1;
        }
    };
    /* Who waits for a chunk may hold the stages of the two before it: when there are no more, the chunk is handed over before the next is loaded. */
    const bool behind_one = ring.count > 2;
    for (int i = 0; i < ring.count; i++) from.clear(ring.stages + i * L::bytes);
    for (int i = 0; i < w.chunks; i++) {
        barrier_wait<HOPPER>(ring.empty + 8 * s, parity);
        from.load(ring.stages + s * L::bytes);
        cp_async_commit();
        if (OUT && i >= ring.count) out.carry(ring.taken);
        if (!behind_one)
            hand_over<HOPPER, 0>(ring.full + 8 * s);
        else if (i > 0)
            hand_over<HOPPER, 1>(ring.full + 8 * behind);
        behind = s;
        next();
    }
    if (behind_one && w.chunks > 0) hand_over<HOPPER, 0>(ring.full + 8 * behind);
    if constexpr (OUT)
        for (int i = w.chunks; i < w.chunks + ring.count; i++) {
            barrier_wait<HOPPER>(ring.empty + 8 * s, parity);
            if (i >= ring.count) out.carry(ring.taken);
            next();
        }
}

/* ---- what leaves ---------------------------------------------------------------------------------------------------------------------------- */

/* A warp's 16 columns of a [64 tokens][64] tile, as ldmatrix and stmatrix transpose them from and to an A of 16 columns and 16 tokens. */
__device__ __forceinline__ uint32_t lane_transposed(int warp)
{
    const int lane = threadIdx.x & 31;
    return ((lane & 7) + (lane >> 4 << 3)) * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
}
/* The same columns: what a lane carries from shared to global memory is 16 bytes of rows lane / 2 + 16 j. */
__device__ __forceinline__ uint32_t lane_in_tile(int warp)
{
    const int lane = threadIdx.x & 31, row = lane / 2, piece = 2 * warp + (lane & 1);
    return row * 128 + ((piece ^ (row & 7)) << 4);
}
__device__ __forceinline__ int64_t lane_in_rows(int64_t stride, int warp)
{
    const int lane = threadIdx.x & 31;
    return lane / 2 * stride + (2 * warp + (lane & 1)) * 8;
}
__device__ __forceinline__ void rows_out(bf16 *to, int64_t stride, uint32_t from, int rows)
{
    const int left = rows - (int)(threadIdx.x & 31) / 2;
    uint4 x[4];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = load_shared_16(from + j * 2048);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (16 * j < left) *(uint4 *)to = x[j];
        to += 16 * stride;
    }
    __syncwarp();
}

/* Images: what passes from kernel to kernel lies in memory as it lay in shared memory, [columns/16][rows][16], rows of 32 bytes, 16-byte piece j of
 * row i at place j ^ (i >> 2 & 1) (eight rows of a piece lie in different banks). A warp's 16 columns are one run of bytes: on Hopper the copy
 * engine takes them away while the chain goes on. */
/* All of the warp's images but the last LEFT have been read: their shared memory is free. */
template <bool HOPPER, int LEFT> __device__ __forceinline__ void image_wait()
{
    if constexpr (HOPPER)
        if ((threadIdx.x & 31) == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
    __syncwarp();
}
template <bool HOPPER, int BYTES> __device__ __forceinline__ void image_out(bf16 *to, uint32_t from)
{
    if constexpr (HOPPER) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if ((threadIdx.x & 31) == 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(from), "n"(BYTES)
                         : "memory");
    } else {
        const int lane = threadIdx.x & 31;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < BYTES / 512; j++) *(uint4 *)(to + j * 256 + lane * 8) = load_shared_16(from + j * 512 + lane * 16);
        __syncwarp();
    }
}
/* x[j]: left fragments of 16 columns and of rows 16 j .. 16 j + 15, transposed on the way to the image [16 N][16]. */
template <bool HOPPER, int N> __device__ __forceinline__ void image_put(uint32_t image, const uint32_t (&x)[N][4])
{
    const int lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 4 << 3), piece = lane >> 3 & 1;
    const uint32_t at = image + row * 32 + ((piece ^ (row >> 2 & 1)) << 4);
#pragma unroll
    for (int j = 0; j < N; j++) store_matrices_trans<HOPPER>(at + j * 512, x[j][0], x[j][1], x[j][2], x[j][3]);
}

/* ---- states ------------------------------------------------------------------------------------------------------------------------------------ */

/* S^T fragments (d[h][4 n + ..] holds rows 64 h + 8 n + .. of S) from and to float32 memory, whose first column is the warp's: rows of S are `row`
 * floats apart, columns `column`. */
template <int K> __device__ __forceinline__ void state_read(float (&S)[K / 64][32], const float *from, int row, int column = 1)
{
    const int lane = threadIdx.x & 31, r = lane / 4, c = 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) S[h][4 * n + j] = from[(int64_t)(64 * h + 8 * n + c + (j & 1)) * row + (r + (j >> 1) * 8) * column];
}
template <int K> __device__ __forceinline__ void state_write(const float (&S)[K / 64][32], float *to, int row, int column = 1)
{
    const int lane = threadIdx.x & 31, r = lane / 4, c = 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) to[(int64_t)(64 * h + 8 * n + c + (j & 1)) * row + (r + (j >> 1) * 8) * column] = S[h][4 * n + j];
}
/* float32 fragments as left fragments. */
template <int K> __device__ __forceinline__ void state_left(uint32_t (&left)[K / 16][4], const float (&S)[K / 64][32])
{
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
        for (int j = 0; j < 4; j++) left[kk][j] = pack_bf16(S[kk / 4][8 * (kk % 4) + 2 * j], S[kk / 4][8 * (kk % 4) + 2 * j + 1]);
}

/* Where a segment begins (operators.md#segments): S <- M S + X over the segments before it; in reverse S <- M^T S + X over those
 * behind it, the last of which began with dsT. M, an image [K,K], is loaded by the warpgroup into `tile`, which nobody else uses. */
template <bool HOPPER, int K, bool REVERSE>
__device__ void segment_start(float (&S)[K / 64][32], const lnt_delta_chain &p, const chain_work &w, int column, uint32_t tile)
{
    const int tid = threadIdx.x % GROUP, group = threadIdx.x / GROUP, row = tid / 8, piece = tid % 8;
    const float *ends = REVERSE ? p.dX : p.X;
    uint32_t left[K / 16][4];
    for (int n = 0; n < (REVERSE ? p.segments - 1 - w.segment : w.segment); n++) {
        const int s = REVERSE ? p.segments - 1 - n : n;
        const int64_t at = (w.sequence * p.segments + s) * p.Hv + w.h;
        const float *X = ends + at * K * p.V + column;
        if (REVERSE && n == 0) {
            state_read<K>(S, X, p.V);
            continue;
        }
        const bf16 *M = p.M + at * K * K;
#pragma unroll
        for (int half = 0; half < K / 64; half++)
#pragma unroll
            for (int j = 0; j < K / 16; j++)
                cp_async_16(tile + half * (K / 64) * TILE + (row + 16 * j) * 128 + ((piece ^ (row & 7)) << 4),
                            M + ((4 * half + piece / 2) * K + row + 16 * j) * 16 + ((piece & 1) ^ (row >> 2 & 1)) * 8);
        cp_async_commit();
        state_left<K>(left, S);
        state_read<K>(S, X, p.V);
        cp_async_wait<0>();
        if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++)
                if constexpr (REVERSE)
                    times_columns<HOPPER>(S[h], left[kk], tile, (h * (K / 64) + kk / 4) * TILE, kk % 4, true);
                else
                    times_rows<HOPPER, false>(S[h], left[kk], tile, (kk / 4 * (K / 64) + h) * TILE, kk % 4, true);
        products_commit<HOPPER>();
        products_wait<HOPPER, 0>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    }
}

} // namespace

#endif
