/* 17 to 64 rows of x against large weights, bf16, on Hopper. Floor: the weights read once.
 *
 * A tile is 64 rows of w, or 32 of each of two that are combined, against all rows of x, padded to NT; w is the M side of the products, x the N side.
 * Where there are fewer tiles than multiprocessors, `split` blocks, a cluster, have a tile, each a share of K: each sends the others their shares of
 * its sums, and adds up its own, in the order of K. A block's first boxes of w are on their way before the kernels ahead have ended, and what comes
 * behind the products is as short as it can be: there every multiprocessor waits for it (docs/performance/decoding.md).
 *
 * Slower for widths of some thousands: sums by way of global memory (16 us where these take 6); a stage of 128 or 256 columns.
 * No faster: x brought once for two or four tiles of a cluster (multicast; and the arrival at another block's barrier must not be a release of the
 * whole cluster, which is a fence of the GPU: 40% slower).
 * Slower in a step: x as the M side and boxes of w that fill the multiprocessors exactly, with 100 or 220 KB a block (alone it took 11.6 us for
 * [6160, 2048], where this takes 10.5). Slower alone and in a step: blocks that stay, with their share of x, and send sums to each other tile by
 * tile (at most 30 clusters of four with 227 KB find places), and asking L2 for the states of the next layer (each MB takes the time it would have
 * taken later). Slower in a step of 64 sequences: four stages (6%) or six (0.9%; of 32 sequences 3.7%); stages of w and of x apart, 7 to 10 of the
 * first and 3 to 7 of the other (0.1 to 4%); more blocks than 1.5 for each multiprocessor (7%; yet two for each of 101 tiles 1.4% faster), or one
 * (1.5%); tiles of 128 rows (3 to 10%); two warpgroups with 32 rows of x each (2%). */
#include "device/block_clock.cuh"
#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace {

constexpr int TILE = 64, HALF = TILE / 2, W_BYTES = TILE * 128;
constexpr int CONSUMERS = 2 * TILE, THREADS = CONSUMERS + 32;
constexpr int PITCH = TILE + 4;              /* floats of a row of sums: a warp's stores fall into 32 banks */
constexpr int STAGES = 7, MOST_SPLIT = 8;    /* two blocks share a multiprocessor, and have all of its memory for 64 rows */
constexpr int AHEAD = STAGES - 1;            /* boxes of w asked for before x is there: the seventh would stand ahead of the first x */
constexpr int PASS = CONSUMERS / (TILE / 4); /* rows that a block puts at once where a thread has four of one's results */

struct few_params {
    CUtensorMap x[LNT_FEW_PARTS], w[LNT_FEW_PARTS];
    few_parts to;
    int boxes, split; /* boxes of 64 columns: of K */
    int rows;         /* of x: a block's share of its tile's results; its inverse, by 2^16 and a little more */
    int inverse;
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

template <int NT> __device__ __forceinline__ void bring(const few_params &a, int part, int n, share k, char *ring, uint64_t *full, uint64_t *empty)
{
    constexpr int STAGE = W_BYTES + NT * 128;
    const CUtensorMap *top = &a.w[part], *low = a.to.swiglu ? &a.w[1] : top;
    const int second = a.to.swiglu ? n : n + HALF, first = min(k.count, AHEAD);
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
    await_last();
#pragma unroll 1
    for (int i = 0; i < first; i++) tensor_load(ring + i * STAGE + W_BYTES, &a.x[part], &full[i], early.next(), 0);
#pragma unroll 1
    for (int i = first, s = first, parity = 1; i < k.count; i++) { /* a stage that nothing was in is free */
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
template <int NT>
__device__ __forceinline__ void multiply(int boxes, const char *ring, uint64_t *full, uint64_t *empty, float (&d)[NT / 2], block_clock &clock)
{
    constexpr int STAGE = W_BYTES + NT * 128;
#pragma unroll 1
    for (int i = 0, s = 0, parity = 0; i < boxes; i++) {
        const uint32_t stage = shared_address(ring + s * STAGE);
        mbarrier_wait(&full[s], parity);
        if (i == 0) clock.passes(0);
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
    clock.passes(1);
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

/* A block's share of its tile's results: rows first .. of x, `count` of them, whose sums [split][rows][PITCH] lie behind the block's own. */
struct few_share {
    int rank, first, count;
    uint32_t sums, stride, landed; /* landed: the barrier of what the blocks send each other */
    __device__ few_share(const few_params &a, int NT, uint32_t own, uint32_t barrier)
        : rank((int)blockIdx.x % a.split), first(rank * a.rows), count(max(0, min(a.rows, a.to.R - first))),
          sums(a.split > 1 ? own + (uint32_t)(NT * PITCH) * 4 : own), stride((uint32_t)(a.rows * PITCH) * 4), landed(barrier)
    {
    }
};

/* A block's own sums to those who add them up, when all blocks of the cluster are done with their rings: a warp arrives there when all that was
 * loaded has come, and been multiplied. */
template <int NT> __device__ __forceinline__ void hand_over(const few_params &a, const few_share &f, uint32_t own)
{
    const int n = (int)threadIdx.x % 16 * 16, first = (int)threadIdx.x / 16;
    float4 x[NT / PASS];
#pragma unroll
    for (int i = 0; i < NT / PASS; i++) x[i] = read_shared(own + (uint32_t)((first + i * PASS) * PITCH * 4 + n));
#pragma unroll
    for (int i = 0; i < NT / PASS; i++) {
        const int row = first + i * PASS, to = row * a.inverse >> 16;
        if (row < a.to.R) cluster_send(f.sums + (uint32_t)((f.rank * a.rows + row - to * a.rows) * PITCH * 4 + n), f.landed, to, x[i]);
    }
}

/* x: sums of the tile's blocks in the order of K, four neighbours at each of N places. */
template <int N> __device__ __forceinline__ void add_up(uint32_t (&at)[N], uint32_t stride, int split, float4 (&x)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = read_shared(at[j]);
#pragma unroll 1
    for (int i = 1; i < split; i++) {
        float4 y[N];
#pragma unroll
        for (int j = 0; j < N; j++) y[j] = read_shared(at[j] += stride);
#pragma unroll
        for (int j = 0; j < N; j++) x[j].x += y[j].x, x[j].y += y[j].y, x[j].z += y[j].z, x[j].w += y[j].w;
    }
}

/* Results of a row, four neighbours. */
__device__ __forceinline__ void put_four(const few_part &p, int64_t to, const float *s)
{
    if (p.f32)
        *(float4 *)((float *)p.y + to) = make_float4(s[0], s[1], s[2], s[3]);
    else
        *(uint2 *)((bf16 *)p.y + to) = make_uint2(pack_bf16(s[0], s[1]), pack_bf16(s[2], s[3]));
}

/* This block's share of a tile; a thread has four neighbours of every `pass`-th row. What is usual has its sums read all at once: one after the other
 * they took 2 to 4 us. But a step's kernels take turns, and each finds little of itself in the instruction cache: with all cases unrolled (180 KB) a
 * tile alone took 1.5 us less, and a step of 64 sequences 5% longer; what is rare therefore stands out of the way. It is not called with a
 * reference to `p`: reading the kernel's parameters through one, the only tile with an activation ended up to 6 us behind the others. */
struct few_put {
    static constexpr int GATED = CONSUMERS / (HALF / 4), AT_ONCE = 4;
    int pass, n, first, last; /* n: of w */
    bool swiglu, wide, plain, there;
    int64_t to;
    uint32_t from;
    float alpha;
    /* All that needs no sums. */
    __device__ __forceinline__ void begin(const few_params &a, const few_part &p, int n0, const few_share &f)
    {
        swiglu = a.to.swiglu;
        const int width = (swiglu ? HALF : TILE) / 4, column = (int)threadIdx.x % width * 4;
        pass = swiglu ? GATED : PASS, n = n0 + column, first = (int)threadIdx.x / width, last = f.count - 1;
        wide = p.ldy % 4 == 0 && p.step == 1 && (uintptr_t)p.y % 16 == 0 && n + 4 <= p.N && !p.add;
        plain = wide && p.act == LNT_IDENTITY && !p.bias;
        to = n * p.step + f.first * p.ldy, from = f.sums + (uint32_t)column * 4, alpha = p.alpha, there = n < p.N && first <= last;
    }
    __device__ __forceinline__ void put(const few_params &a, const few_part &p, const few_share &f, const float *roots) const
    {
        const auto root = [&](int r) { return roots ? roots[f.first + r] : 1.0f; };
        if (!there) return;
        if (swiglu && plain && a.split == 1) {
            float4 x[64 / GATED][2];
#pragma unroll
            for (int i = 0; i < 2 * 64 / GATED; i++)
                x[i / 2][i % 2] = read_shared(from + (uint32_t)(min(first + i / 2 * GATED, last) * PITCH + i % 2 * HALF) * 4);
#pragma unroll
            for (int i = 0; i < 64 / GATED; i++) {
                const float by = root(min(first + i * GATED, last));
                float s[4] = {by * x[i][0].x, by * x[i][0].y, by * x[i][0].z, by * x[i][0].w};
                const float u[4] = {by * x[i][1].x, by * x[i][1].y, by * x[i][1].z, by * x[i][1].w};
                few_gate(p, s, u);
                if (first + i * GATED <= last) put_four(p, (first + i * GATED) * p.ldy + to, s);
            }
            return;
        }
        if (__builtin_expect(plain && !swiglu, 1)) {
#pragma unroll 1
            for (int r = first; r <= last; r += AT_ONCE * PASS) {
                uint32_t at[AT_ONCE];
                float4 x[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) at[i] = from + (uint32_t)(min(r + i * PASS, last) * PITCH) * 4;
                add_up(at, f.stride, a.split, x);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    const float by = alpha * root(min(r + i * PASS, last));
                    const float s[4] = {by * x[i].x, by * x[i].y, by * x[i].z, by * x[i].w};
                    if (r + i * PASS <= last) put_four(p, (r + i * PASS) * p.ldy + to, s);
                }
            }
            return;
        }
#pragma unroll 1
        for (int r = first; r <= last; r += 2 * pass) {
            const int row[2] = {r, min(r + pass, last)};
            uint32_t at[4];
            float4 x[4];
            float s[8], u[8];
#pragma unroll
            for (int i = 0; i < 4; i++) at[i] = from + (uint32_t)(row[i % 2] * PITCH + (swiglu ? i / 2 * HALF : 0)) * 4;
            add_up(at, f.stride, a.split, x);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float by = root(row[i]);
                s[4 * i] = by * x[i].x, s[4 * i + 1] = by * x[i].y, s[4 * i + 2] = by * x[i].z, s[4 * i + 3] = by * x[i].w;
                u[4 * i] = by * x[i + 2].x, u[4 * i + 1] = by * x[i + 2].y, u[4 * i + 2] = by * x[i + 2].z, u[4 * i + 3] = by * x[i + 2].w;
            }
            few_result<4>(p, swiglu, n, s, u);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (r + i * pass > last) continue;
                if (wide)
                    put_four(p, row[i] * p.ldy + to, s + 4 * i);
                else
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const float one[1] = {s[4 * i + j]};
                        if (n + j < p.N) put_sum<any1>({p.y, p.f32}, row[i] * p.ldy + to + j * p.step, one, p.add);
                    }
            }
        }
    }
};

/* What the norm ahead makes of each row of x, by two of the consumers for a row: loads that are on their way beside the products (in front of them
 * they took 1.5 us), and what they bring. */
struct few_roots {
    static constexpr int AHEAD = 16;
    float q[AHEAD];
    const float *squares;
    int more; /* of this thread: behind those */
    __device__ __forceinline__ void load(const few_params &a)
    {
        const int row = min((int)threadIdx.x / 2, a.to.R - 1), count = (a.to.norm.tiles + 1 - (int)threadIdx.x % 2) / 2;
        squares = a.to.norm.squares + row * a.to.norm.tiles + (int)threadIdx.x % 2, more = count - AHEAD;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) q[i] = i < count ? squares[2 * i] : 0.0f;
    }
    __device__ __forceinline__ void put(const few_params &a, float *roots) const
    {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) s += q[i];
#pragma unroll 4
        for (int i = 0; i < more; i++) s += squares[2 * (AHEAD + i)];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        if ((int)threadIdx.x < 2 * a.to.R && threadIdx.x % 2 == 0) roots[threadIdx.x / 2] = few_root::of(a.to.norm, s);
    }
};

/* This block's share of a tile whose results join the stream (lnt_few_sum): four neighbours of every PASS'th row a thread, two rows at a time. The
 * addends of the first two are on their way before the cluster's barrier. */
struct few_sums {
    few_addend<4> e;
    float4 x[2];
    int n;
    __device__ __forceinline__ void load(const few_params &a, const few_part &p, int r)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) x[i] = *(const float4 *)(a.to.sum.x + min(r + i * PASS, a.to.R - 1) * a.to.sum.ldx + min(n, p.N - 4));
    }
    __device__ __forceinline__ void begin(const few_params &a, const few_part &p, int n0, const few_share &f)
    {
        n = n0 + (int)threadIdx.x % 16 * 4;
        load_pack<4>(e.w, a.to.sum.w + min(n, p.N - 4));
        load(a, p, f.first + (int)threadIdx.x / 16);
    }
    __device__ __forceinline__ void put(const few_params &a, const few_part &p, int tile, const few_share &f)
    {
        const uint32_t from = f.sums + threadIdx.x % 16 * 16;
#pragma unroll 1
        for (int r = (int)threadIdx.x / 16; r < f.count; r += 2 * PASS) {
            if (r != (int)threadIdx.x / 16) load(a, p, f.first + r);
            uint32_t at[2];
            float4 y[2];
#pragma unroll
            for (int i = 0; i < 2; i++) at[i] = from + (uint32_t)(min(r + i * PASS, f.count - 1) * PITCH) * 4;
            add_up(at, f.stride, a.split, y);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = f.first + r + i * PASS;
                const float s[4] = {y[i].x, y[i].y, y[i].z, y[i].w};
                if (r + i * PASS >= f.count) continue;
                *(float4 *)e.x = x[i];
                few_squares(a.to.sum, row, tile, n < p.N ? e.put(a.to.sum, p, row, n, s) : 0.0f);
            }
        }
    }
};

/* SUM: lnt_few_sum. The next kernel may begin when the first of x is here: x waits behind whatever that kernel's blocks ask for (some of it for 5 us
 * behind a delta layer's states). Long products, which no blocks share, let it begin at once, or memory waits at their end. */
template <int NT, bool SUM> __global__ void __launch_bounds__(THREADS) few_tiles_kernel(const __grid_constant__ few_params a)
{
    extern __shared__ __align__(1024) char ring[];
    block_clock clock(CLOCK_PRODUCT_64);
    uint64_t *full = (uint64_t *)(ring + STAGES * (W_BYTES + NT * 128)), *empty = full + STAGES;
    float *roots = !SUM && a.to.norm.squares ? (float *)(empty + STAGES + 1) : NULL;
    const few_share mine(a, NT, shared_address(ring), shared_address(empty + STAGES));
    const int tile = (int)blockIdx.x / a.split, part = SUM ? 0 : few_part_at(a.to, tile);
    const few_part &p = a.to.p[part];
    const int n0 = (tile - p.first) * (a.to.swiglu ? HALF : TILE), begin = a.boxes * mine.rank / a.split;
    share k = {begin, a.boxes * (mine.rank + 1) / a.split - begin, 0};
    k.at = (int)((unsigned)tile * 5u % (unsigned)k.count);
    if (threadIdx.x == CONSUMERS) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS / 32);
        mbarrier_init_fence();
        if (a.split > 1) cluster_barrier(mine.landed), cluster_expect(mine.landed, (uint32_t)(mine.count * a.split * TILE) * 4);
    }
    __syncthreads();
    if (a.split == 1) let_next();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring<NT>(a, part, n0, k, ring, full, empty);
        __syncwarp();
        if (a.split > 1) cluster_arrive(), cluster_wait();
        return;
    }
    float d[NT / 2];
    [[maybe_unused]] few_roots norm;
    [[maybe_unused]] few_sums joined;
    [[maybe_unused]] few_put results;
    await_last(), clock.goes_on();
    if (roots) norm.load(a);
    if (a.split > 1) mbarrier_wait(&full[0], 0), let_next();
    multiply<NT>(k.count, ring, full, empty, d, clock);
    named_sync(1, CONSUMERS); /* the sums lie where the ring was */
    if (a.split > 1) cluster_arrive();
    keep<NT>(a, (float *)ring, d);
    if (roots) norm.put(a, roots);
    if constexpr (SUM)
        joined.begin(a, p, n0, mine);
    else
        results.begin(a, p, n0, mine);
    named_sync(1, CONSUMERS);
    if (a.split > 1) cluster_wait(), hand_over<NT>(a, mine, shared_address(ring)), cluster_await(mine.landed, 0);
    clock.passes(2);
    if constexpr (SUM)
        joined.put(a, p, tile, mine);
    else
        results.put(a, p, mine, roots);
}

/* Blocks for each tile: as many as leave two of five multiprocessors with one, and eight boxes for each. */
int split_of(int tiles, int boxes, int multiprocessors)
{
    int s = 1;
    while (s < MOST_SPLIT && 8 * (s + 1) <= boxes && (s + 1) * tiles <= multiprocessors * 8 / 5) s++;
    return s;
}

template <int NT> void launch(const lnt_cuda *d, const few_params &a)
{
    const size_t bytes = STAGES * (W_BYTES + NT * 128) + (2 * STAGES + 1) * sizeof(uint64_t) + 64 * sizeof(float);
    static_assert(sizeof(float) * (2 * NT + MOST_SPLIT) * PITCH <= STAGES * (W_BYTES + NT * 128), "the sums lie where the ring was");
    lnt_launch_with(d, a.to.sum.x ? few_tiles_kernel<NT, true> : few_tiles_kernel<NT, false>, (unsigned)(a.to.tiles * a.split), THREADS, bytes,
                    a.split, a);
}

} // namespace

extern "C" bool lnt_few_rows_sm90(const lnt_cuda *d, const lnt_few_rows *f)
{
    few_params a = {};
    const int NT = f->R <= 32 ? 32 : 64;
    if (f->K < 64) return false;
    for (int i = 0; i < f->parts; i++)
        if (!lnt_matrix_map(&a.x[i], f->part[i].x ? f->part[i].x : f->x, f->R, f->K, f->part[i].x ? f->part[i].ldx : f->ldx, NT) ||
            !lnt_matrix_map(&a.w[i], f->part[i].w, f->part[i].N, f->K, f->part[i].ldw, HALF))
            return false;
    a.to = few_parts_of(f, TILE);
    a.boxes = (int)lnt_div_up(f->K, 64);
    a.split = split_of(a.to.tiles, a.boxes, d->base.multiprocessors);
    a.rows = (int)lnt_div_up(f->R, a.split), a.inverse = 65536 / a.rows + 1;
    if (NT == 32)
        launch<32>(d, a);
    else
        launch<64>(d, a);
    return true;
}
