/* 17 to 64 rows of x against large weights, bf16, on Hopper. Floor: the weights read once.
 *
 * A tile is 64 rows of w, or 32 of each of two that are combined, against all rows of x, padded to NT; w is the M side of the products, x the N side.
 * Where there are fewer tiles than multiprocessors, `split` blocks, a cluster, have a tile, each a share of K: their sums lie in shared memory, and
 * every block adds up, in the order of K, a share of the tile. A block's first boxes of w are on their way before the kernels ahead have ended.
 *
 * Slower for widths of some thousands: tiles of 128 rows; as many blocks as two for each multiprocessor; sums by way of global memory (16 us where
 * these take 6); a stage of 128 or 256 columns. No faster: x brought once for two or four tiles of a cluster (multicast; and the arrival at another
 * block's barrier must not be a release of the whole cluster, which is a fence of the GPU: 40% slower). */
#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace {

constexpr int TILE = 64, HALF = TILE / 2, W_BYTES = TILE * 128;
constexpr int CONSUMERS = 2 * TILE, THREADS = CONSUMERS + 32;
constexpr int PITCH = TILE + 4; /* floats of a row of sums: a warp's stores fall into 32 banks */
constexpr int STAGES = 6, MOST_SPLIT = 8; /* two blocks share a multiprocessor */

struct few_params {
    CUtensorMap x, w[LNT_FEW_PARTS];
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
__device__ __forceinline__ void bring(const few_params &a, int part, int n, share k, char *ring, uint64_t *full, uint64_t *empty)
{
    constexpr int STAGE = W_BYTES + NT * 128;
    const CUtensorMap *top = &a.w[part], *low = a.to.swiglu ? &a.w[1] : top;
    const int second = a.to.swiglu ? n : n + HALF, first = min(k.count, STAGES);
    share early = k;
    for (int i = 0; i < first; i++) {
        const int at = k.next();
        mbarrier_expect(&full[i], STAGE);
        tensor_load(ring + i * STAGE, top, &full[i], at, n);
        tensor_load(ring + i * STAGE + W_BYTES / 2, low, &full[i], at, second);
    }
    tensor_prefetch(&a.x);
    await_last();
    for (int i = 0; i < first; i++) tensor_load(ring + i * STAGE + W_BYTES, &a.x, &full[i], early.next(), 0);
    for (int i = first, s = 0, parity = 0; i < k.count; i++) {
        const int at = k.next();
        char *stage = ring + s * STAGE;
        mbarrier_wait(&empty[s], parity);
        mbarrier_expect(&full[s], STAGE);
        tensor_load(stage, top, &full[s], at, n);
        tensor_load(stage + W_BYTES / 2, low, &full[s], at, second);
        tensor_load(stage + W_BYTES, &a.x, &full[s], at, 0);
        if (++s == STAGES) s = 0, parity ^= 1;
    }
}

/* A stage is given back when the products of the next are on their way. */
template <int NT> __device__ __forceinline__ void multiply(int boxes, const char *ring, uint64_t *full, uint64_t *empty, float (&d)[NT / 2])
{
    constexpr int STAGE = W_BYTES + NT * 128;
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

__device__ __forceinline__ void add_up(uint32_t address, int split, float (&s)[4])
{
    float4 x[MOST_SPLIT];
#pragma unroll
    for (int i = 0; i < MOST_SPLIT; i++) x[i] = i < split ? cluster_read(address, i) : make_float4(0, 0, 0, 0);
    s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_SPLIT; i++) s[0] += x[i].x, s[1] += x[i].y, s[2] += x[i].z, s[3] += x[i].w;
}

/* This block's share of the tile's results, four neighbours a thread. */
__device__ __forceinline__ void put_share(const few_params &a, const few_part &p, int n0, int rank, uint32_t sums)
{
    const int width = (a.to.swiglu ? HALF : TILE) / 4, all = a.to.R * width;
    const bool wide = p.ldy % 4 == 0 && p.step == 1 && (uintptr_t)p.y % 16 == 0;
    for (int i = all * rank / a.split + (int)threadIdx.x, end = all * (rank + 1) / a.split; i < end; i += THREADS) {
        const int r = i / width, n = i % width * 4;
        if (n0 + n >= p.N) continue;
        const uint32_t from = sums + (uint32_t)(r * PITCH + n) * 4;
        const int64_t to = r * p.ldy + (n0 + n) * p.step;
        float s[4], u[4] = {};
        add_up(from, a.split, s);
        if (a.to.swiglu) add_up(from + HALF * 4, a.split, u);
        few_result(p, a.to.swiglu, s, u);
        if (wide && n0 + n + 4 <= p.N) {
            put_sum<any4>({p.y, p.f32}, to, s, p.add);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float one[1] = {s[j]};
            if (n0 + n + j < p.N) put_sum<any1>({p.y, p.f32}, to + j * p.step, one, p.add);
        }
    }
}

/* The others may still be reading; nothing that was written is waited for. */
__device__ __forceinline__ void cluster_leave()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

template <int NT> __global__ void __launch_bounds__(THREADS) few_tiles_kernel(const __grid_constant__ few_params a)
{
    extern __shared__ char memory[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *ring = memory + (1024 - shared_address(memory) % 1024) % 1024;
    const int rank = (int)blockIdx.x % a.split, tile = (int)blockIdx.x / a.split, part = few_part_at(a.to, tile);
    const few_part &p = a.to.p[part];
    const int n0 = (tile - p.first) * (a.to.swiglu ? HALF : TILE), begin = a.boxes * rank / a.split;
    share k = {begin, a.boxes * (rank + 1) / a.split - begin, 0};
    k.at = (int)((unsigned)tile * 5u % (unsigned)k.count);
    if (threadIdx.x == CONSUMERS) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], CONSUMERS / 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    let_next();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring<NT>(a, part, n0, k, ring, full, empty);
        __syncwarp();
    } else {
        float d[NT / 2];
        multiply<NT>(k.count, ring, full, empty, d);
        named_sync(1, CONSUMERS); /* the sums lie where the ring was */
        keep<NT>(a, (float *)ring, d);
    }
    await_last();
    if (a.split > 1)
        cluster_sync();
    else
        __syncthreads();
    put_share(a, p, n0, rank, shared_address(ring));
    if (a.split > 1) cluster_leave();
}

/* Blocks for each tile: as many as leave no multiprocessor with two. */
int split_of(int tiles, int boxes, int multiprocessors)
{
    int s = 1;
    while (2 * s <= MOST_SPLIT && 2 * s <= boxes && 2 * s * tiles <= multiprocessors) s *= 2;
    return s;
}

template <int NT> void launch(const lnt_cuda *d, const few_params &a)
{
    const size_t bytes = 1024 + STAGES * (W_BYTES + NT * 128);
    static_assert(sizeof(float) * NT * PITCH <= STAGES * (W_BYTES + NT * 128), "the sums lie where the ring was");
    static const cudaError_t room = cudaFuncSetAttribute(few_tiles_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    lnt_cuda_note((lnt_cuda *)d, room);
    lnt_launch_with(d, few_tiles_kernel<NT>, (unsigned)(a.to.tiles * a.split), THREADS, bytes, a.split, a);
}

} // namespace

extern "C" bool lnt_few_rows_sm90(const lnt_cuda *d, const lnt_few_rows *f)
{
    few_params a = {};
    const int NT = f->R <= 32 ? 32 : 64;
    if (f->K < 64 || !lnt_matrix_map(&a.x, f->x, f->R, f->K, f->ldx, NT)) return false;
    for (int i = 0; i < f->parts; i++)
        if (!lnt_matrix_map(&a.w[i], f->part[i].w, f->part[i].N, f->K, f->part[i].ldw, HALF)) return false;
    a.to = few_parts_of(f, TILE);
    a.boxes = (int)lnt_div_up(f->K, 64);
    a.split = split_of(a.to.tiles, a.boxes, d->base.multiprocessors);
    if (NT == 32)
        launch<32>(d, a);
    else
        launch<64>(d, a);
    return true;
}
