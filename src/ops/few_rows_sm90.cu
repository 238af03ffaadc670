/* 17 to 64 rows of x against large weights, bf16, on Hopper. Floor: the weights read once.
 *
 * A tile is 64 rows of w, or 32 of each of two that are combined, against all rows of x, padded to NT; w is the M side of the products, x the N side.
 * Where there are fewer tiles than multiprocessors, `split` blocks, a cluster, have a tile, each a share of K: their sums lie in shared memory, and
 * every block adds up, in the order of K, a share of the tile. A block's first boxes of w are on their way before the kernels ahead have ended.
 *
 * Slower for widths of some thousands: tiles of 128 rows; sums by way of global memory (16 us where these take 6); a stage of 128 or 256 columns.
 * No faster: x brought once for two or four tiles of a cluster (multicast; and the arrival at another block's barrier must not be a release of the
 * whole cluster, which is a fence of the GPU: 40% slower); the sums of several rows of a split tile read at once.
 * Slower in a step: x as the M side and boxes of w that fill the multiprocessors exactly, with 100 or 220 KB a block (alone it took 11.6 us for
 * [6160, 2048], where this takes 10.5). Slower alone and in a step: blocks that stay, with their share of x, and send sums to each other tile by
 * tile (at most 30 clusters of four with 227 KB find places), and asking L2 for the states of the next layer (each MB takes the time it would have
 * taken later). Slower in a step of 64 sequences: four stages (6%) or six (0.9%; of 32 sequences 3.7%); stages of w and of x apart, 7 to 10 of the
 * first and 3 to 7 of the other (0.1 to 4%); more blocks than 1.5 for each multiprocessor (7%). */
#include "device/block_clock.cuh"
#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace {

constexpr int TILE = 64, HALF = TILE / 2, W_BYTES = TILE * 128;
constexpr int CONSUMERS = 2 * TILE, THREADS = CONSUMERS + 32;
constexpr int PITCH = TILE + 4; /* floats of a row of sums: a warp's stores fall into 32 banks */
constexpr int STAGES = 7, MOST_SPLIT = 8; /* two blocks share a multiprocessor, and have all of its memory for 64 rows */

constexpr int PASS = CONSUMERS / (TILE / 4), PASSES = 64 / PASS; /* rows that a block puts at once where a thread has four of one's results */

struct few_params {
    CUtensorMap x[LNT_FEW_PARTS], w[LNT_FEW_PARTS];
    few_parts to;
    int boxes, split; /* boxes of 64 columns: of K */
};

/* A block's share of K; it begins in its middle somewhere, so that blocks side by side do not all read the same of x. */
struct share {
    int begin, count, at;
    __device__ int next()
    {
        const int k = (begin + at) * 64;
        if (++at == count) at = 0;
        return k;
    }
};

template <int NT>
__device__ __forceinline__ void bring(const few_params &a, int part, int n, share k, char *ring, uint64_t *full, uint64_t *empty, block_clock &clock)
{
    constexpr int STAGE = W_BYTES + NT * 128;
    const CUtensorMap *top = &a.w[part], *low = a.to.swiglu ? &a.w[1] : top;
    const int second = a.to.swiglu ? n : n + HALF, first = min(k.count, STAGES);
    const uint64_t once = read_once();
    share early = k;
#pragma unroll 1
    for (int i = 0; i < first; i++) {
        const int at = k.next();
        mbarrier_expect(&full[i], STAGE);
        tensor_load(ring + i * STAGE, top, &full[i], at, n, once);
        tensor_load(ring + i * STAGE + W_BYTES / 2, low, &full[i], at, second, once);
    }
    tensor_prefetch(&a.x[part]);
    await_last(), clock.goes_on();
#pragma unroll 1
    for (int i = 0; i < first; i++) tensor_load(ring + i * STAGE + W_BYTES, &a.x[part], &full[i], early.next(), 0);
#pragma unroll 1
    for (int i = first, s = 0, parity = 0; i < k.count; i++) {
        const int at = k.next();
        char *stage = ring + s * STAGE;
        mbarrier_wait(&empty[s], parity);
        mbarrier_expect(&full[s], STAGE);
        tensor_load(stage, top, &full[s], at, n, once);
        tensor_load(stage + W_BYTES / 2, low, &full[s], at, second, once);
        tensor_load(stage + W_BYTES, &a.x[part], &full[s], at, 0);
        if (++s == STAGES) s = 0, parity ^= 1;
    }
}

/* A stage is given back when the products of the next are on their way. */
template <int NT> __device__ __forceinline__ void multiply(int boxes, const char *ring, uint64_t *full, uint64_t *empty, float (&d)[NT / 2])
{
    constexpr int STAGE = W_BYTES + NT * 128;
#pragma unroll 1
    for (int i = 0, s = 0, parity = 0; i < boxes; i++) {
        const uint32_t stage = shared_address(ring + s * STAGE);
        mbarrier_wait(&full[s], parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma<0, 0>(d, wgmma_k_major(stage + 32 * k), wgmma_k_major(stage + W_BYTES + 32 * k), i + k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (i && threadIdx.x % 32 == 0) mbarrier_arrive(&empty[s ? s - 1 : STAGES - 1]);
        if (++s == STAGES) s = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    wgmma_hold(d);
}

/* sums [NT][PITCH]: row of x, row of w. */
template <int NT> __device__ __forceinline__ void keep(const few_params &a, float *sums, const float (&d)[NT / 2])
{
    const int lane = (int)threadIdx.x % 32, n = (int)threadIdx.x / 32 * 16 + lane / 4, r = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < NT / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * j + r + (e & 1) < a.to.R) sums[(8 * j + r + (e & 1)) * PITCH + n + 8 * (e >> 1)] = d[4 * j + e];
}

__device__ __forceinline__ float4 read_shared(uint32_t address)
{
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address));
    return x;
}

__device__ __forceinline__ void add_up(uint32_t address, int split, float (&s)[4])
{
    float4 x[MOST_SPLIT];
    x[0] = cluster_read(address, 0);
#pragma unroll
    for (int i = 1; i < MOST_SPLIT; i++)
        if (i < split) x[i] = cluster_read(address, i);
    s[0] = x[0].x, s[1] = x[0].y, s[2] = x[0].z, s[3] = x[0].w;
#pragma unroll
    for (int i = 1; i < MOST_SPLIT; i++)
        if (i < split) s[0] += x[i].x, s[1] += x[i].y, s[2] += x[i].z, s[3] += x[i].w;
}

/* Results of a row, four neighbours. */
__device__ __forceinline__ void put_four(const few_part &p, int64_t to, const float (&s)[4])
{
    if (p.f32)
        *(float4 *)((float *)p.y + to) = make_float4(s[0], s[1], s[2], s[3]);
    else
        *(uint2 *)((bf16 *)p.y + to) = make_uint2(pack_bf16(s[0], s[1]), pack_bf16(s[2], s[3]));
}

/* Four of a row, n the first, in any case: where they are not all there, not aligned, added, or a bias or an activation follows. Called, so that
 * there is little of it. */
__device__ __noinline__ void put_any(const few_part &p, bool swiglu, bool wide, int64_t to, int n, float4 sums, float4 other)
{
    float s[4] = {sums.x, sums.y, sums.z, sums.w};
    const float u[4] = {other.x, other.y, other.z, other.w};
    few_result(p, swiglu, n, s, u);
    if (wide) return put_four(p, to, s);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float one[1] = {s[j]};
        if (n + j < p.N) put_sum<any1>({p.y, p.f32}, to + j * p.step, one, p.add);
    }
}

/* This block's share of the tile's rows of x; a thread has four neighbours of every `pass`-th. What is usual has its sums read all at once: one after
 * the other they took 2 to 4 us. But a step's kernels take turns, and each finds little of itself in the instruction cache: with all cases inlined
 * (180 KB) a tile alone took 1.5 us less, and a step of 64 sequences 5% longer. */
__device__ __forceinline__ void put_share(const few_params &a, const few_part &p, int n0, int rank, uint32_t sums, const float *roots)
{
    const auto root = [&](int r) { return roots ? roots[r] : 1.0f; };
    const bool swiglu = a.to.swiglu;
    const int width = (swiglu ? HALF : TILE) / 4, pass = CONSUMERS / width, n = (int)threadIdx.x % width * 4, end = a.to.R * (rank + 1) / a.split;
    const bool wide = p.ldy % 4 == 0 && p.step == 1 && (uintptr_t)p.y % 16 == 0 && n0 + n + 4 <= p.N && !p.add;
    const int first = a.to.R * rank / a.split + (int)threadIdx.x / width;
    const int64_t to = (n0 + n) * p.step;
    const uint32_t from = sums + (uint32_t)n * 4;
    if (n0 + n >= p.N || first >= end) return;
    if (a.split == 1 && wide && p.act == LNT_IDENTITY && !p.bias) {
        constexpr int HALVES = 64 / (CONSUMERS / (HALF / 4));
        float4 x[PASSES];
        if (swiglu) {
#pragma unroll
            for (int i = 0; i < PASSES; i++) x[i] = read_shared(from + (uint32_t)(min(first + i / 2 * pass, end - 1) * PITCH + i % 2 * HALF) * 4);
#pragma unroll
            for (int i = 0; i < HALVES; i++) {
                const float by = root(min(first + i * pass, end - 1));
                float s[4] = {by * x[2 * i].x, by * x[2 * i].y, by * x[2 * i].z, by * x[2 * i].w};
                const float u[4] = {by * x[2 * i + 1].x, by * x[2 * i + 1].y, by * x[2 * i + 1].z, by * x[2 * i + 1].w};
                few_gate(p, s, u);
                if (first + i * pass < end) put_four(p, (first + i * pass) * p.ldy + to, s);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++) x[i] = read_shared(from + (uint32_t)(min(first + i * pass, end - 1) * PITCH) * 4);
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const float by = p.alpha * root(min(first + i * pass, end - 1));
            const float s[4] = {by * x[i].x, by * x[i].y, by * x[i].z, by * x[i].w};
            if (first + i * pass < end) put_four(p, (first + i * pass) * p.ldy + to, s);
        }
        return;
    }
#pragma unroll 1
    for (int r = first; r < end; r += pass) {
        float s[4], u[4] = {};
        add_up(from + (uint32_t)(r * PITCH) * 4, a.split, s);
        if (swiglu) add_up(from + (uint32_t)(r * PITCH + HALF) * 4, a.split, u);
#pragma unroll
        for (int j = 0; j < 4 && roots; j++) s[j] *= roots[r], u[j] *= roots[r];
        if (wide && !swiglu && p.act == LNT_IDENTITY && !p.bias) {
#pragma unroll
            for (int j = 0; j < 4; j++) s[j] *= p.alpha;
            put_four(p, r * p.ldy + to, s);
        } else
            put_any(p, swiglu, wide, r * p.ldy + to, n0 + n, make_float4(s[0], s[1], s[2], s[3]), make_float4(u[0], u[1], u[2], u[3]));
    }
}

/* What the norm ahead makes of each row of x, by all consumers; behind their barrier it is there. */
__device__ __forceinline__ void find_roots(const few_params &a, float *roots)
{
    const int row = (int)threadIdx.x / 2, tiles = a.to.norm.tiles;
    const float *squares = a.to.norm.squares + min(row, a.to.R - 1) * tiles;
    float s = 0.0f;
#pragma unroll 16
    for (int i = (int)threadIdx.x % 2; i < tiles; i += 2) s += squares[i];
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    if (row < a.to.R && threadIdx.x % 2 == 0) roots[row] = few_root::of(a.to.norm, s);
}

/* This block's share of a tile whose results join the stream (lnt_few_sum): four neighbours of every PASS'th row a thread, whose addends are on their
 * way before the cluster's barrier. */
struct few_sums {
    few_addend<4> e;
    float4 x[PASSES];
    int n, first, end;
    __device__ __forceinline__ void load(const few_params &a, const few_part &p, int n0, int rank)
    {
        n = n0 + (int)threadIdx.x % 16 * 4, first = a.to.R * rank / a.split + (int)threadIdx.x / 16, end = a.to.R * (rank + 1) / a.split;
        const int at = min(n, p.N - 4);
        load_pack<4>(e.w, a.to.sum.w + at);
#pragma unroll
        for (int i = 0; i < PASSES; i++)
            if (first + i * PASS < end) x[i] = *(const float4 *)(a.to.sum.x + (first + i * PASS) * a.to.sum.ldx + at);
    }
    __device__ __forceinline__ void put(const few_params &a, const few_part &p, int tile, uint32_t sums)
    {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int r = first + i * PASS;
            if (r >= end) continue;
            float s[4];
            add_up(sums + (uint32_t)(r * PITCH + (int)threadIdx.x % 16 * 4) * 4, a.split, s);
            *(float4 *)e.x = x[i];
            few_squares(a.to.sum, r, tile, n < p.N ? e.put(a.to.sum, p, r, n, s) : 0.0f);
        }
    }
};

/* The others may still be reading; nothing that was written is waited for. */
__device__ __forceinline__ void cluster_leave()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

/* SUM: lnt_few_sum. */
template <int NT, bool SUM> __global__ void __launch_bounds__(THREADS) few_tiles_kernel(const __grid_constant__ few_params a)
{
    extern __shared__ __align__(1024) char ring[];
    block_clock clock(CLOCK_PRODUCT_64, CONSUMERS);
    uint64_t *full = (uint64_t *)(ring + STAGES * (W_BYTES + NT * 128)), *empty = full + STAGES;
    float *roots = !SUM && a.to.norm.squares ? (float *)(empty + STAGES) : NULL;
    const int rank = (int)blockIdx.x % a.split, tile = (int)blockIdx.x / a.split, part = few_part_at(a.to, tile);
    const few_part &p = a.to.p[part];
    const int n0 = (tile - p.first) * (a.to.swiglu ? HALF : TILE), begin = a.boxes * rank / a.split;
    [[maybe_unused]] few_sums joined;
    share k = {begin, a.boxes * (rank + 1) / a.split - begin, 0};
    k.at = (int)((unsigned)tile * 5u % (unsigned)k.count);
    if (threadIdx.x == CONSUMERS) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS / 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    let_next();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring<NT>(a, part, n0, k, ring, full, empty, clock);
        __syncwarp();
    } else {
        float d[NT / 2];
        if (roots) await_last(), find_roots(a, roots);
        multiply<NT>(k.count, ring, full, empty, d);
        named_sync(1, CONSUMERS); /* the sums lie where the ring was */
        keep<NT>(a, (float *)ring, d);
    }
    await_last();
    if (SUM && threadIdx.x < CONSUMERS) joined.load(a, p, n0, rank);
    if (a.split > 1)
        cluster_sync();
    else
        __syncthreads();
    if constexpr (SUM) {
        if (threadIdx.x < CONSUMERS) joined.put(a, p, tile, shared_address(ring));
    } else if (threadIdx.x < CONSUMERS)
        put_share(a, p, n0, rank, shared_address(ring), roots);
    __syncwarp();
    if (a.split > 1) cluster_leave();
}

/* Blocks for each tile: as many as leave half of the multiprocessors with one, and eight boxes for each. */
int split_of(int tiles, int boxes, int multiprocessors)
{
    int s = 1;
    while (s < MOST_SPLIT && 8 * (s + 1) <= boxes && (s + 1) * tiles <= multiprocessors * 3 / 2) s++;
    return s;
}

template <int NT> void launch(const lnt_cuda *d, const few_params &a)
{
    const size_t bytes = STAGES * (W_BYTES + NT * 128) + 2 * STAGES * sizeof(uint64_t) + 64 * sizeof(float);
    static_assert(sizeof(float) * NT * PITCH <= STAGES * (W_BYTES + NT * 128), "the sums lie where the ring was");
    lnt_launch_with(d, a.to.sum.x ? few_tiles_kernel<NT, true> : few_tiles_kernel<NT, false>, (unsigned)(a.to.tiles * a.split), THREADS, bytes, a.split, a);
}

} // namespace

extern "C" bool lnt_few_rows_sm90(const lnt_cuda *d, const lnt_few_rows *f)
{
    few_params a = {};
    const int NT = f->R <= 32 ? 32 : 64;
    if (f->K < 64) return false;
    for (int i = 0; i < f->parts; i++)
        if (!lnt_matrix_map(&a.x[i], f->part[i].x ? f->part[i].x : f->x, f->R, f->K, f->part[i].x ? f->part[i].ldx : f->ldx, NT) ||
            !lnt_matrix_map(&a.w[i], f->part[i].w, f->part[i].N, f->K, f->part[i].ldw, HALF)) return false;
    a.to = few_parts_of(f, TILE);
    a.boxes = (int)lnt_div_up(f->K, 64);
    a.split = split_of(a.to.tiles, a.boxes, d->base.multiprocessors);
    if (NT == 32)
        launch<32>(d, a);
    else
        launch<64>(d, a);
    return true;
}
