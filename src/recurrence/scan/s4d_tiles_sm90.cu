/* The kernels of s4d_tiles_walk.cuh and s4d_tiles_sums.cuh with rows of 32 bytes by the copy engine: lanes look up a line of each row, and put 16
 * bytes at a time into shared memory. A chunk goes out by the place of one that has been turned, which is brought anew behind it. */
#include "device/wgmma.cuh"
#include "recurrence/scan/s4d_tiles_sums.cuh"
#include "recurrence/scan/s4d_tiles_walk.cuh"

namespace {

/* Tiles whose chunk of a warp is whole: what stands beyond the others is other sequences' rows, which must not be read. */
__device__ __forceinline__ int whole_tiles(int64_t tokens, int warp) { return (int)((tokens + TILE - (warp + 1) * CHUNK) / TILE); }

/* A warp's arrival at a barrier that all warps come to once a tile, and the wait for the others of tile k. */
__device__ __forceinline__ void arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}
__device__ __forceinline__ void await(uint64_t *barrier, int k)
{
    mbarrier_wait(barrier, (uint32_t)(k & 1));
    __syncwarp();
}

template <bool BACK> struct rows_by_engine : rows_by_lanes<BACK> {
    static constexpr bool HOPPER = true;
    struct maps {
        CUtensorMap in, out;
    };
    using lanes = rows_by_lanes<BACK>;
    using lanes::w, lanes::warp, lanes::first, lanes::begin, lanes::end, lanes::token;
    const maps &map;
    const int whole;

    __device__ __forceinline__ rows_by_engine(walk_shared &w_, const tiles_args &p_, const maps &map_, int warp_, int first_, int64_t begin_,
                                              int64_t end_)
        : lanes(w_, p_, {}, warp_, first_, begin_, end_), map(map_), whole(whole_tiles(end_ - begin_, warp_))
    {
        if (threadIdx.x == 0) mbarrier_init(&w.turned_in, WARPS);
        if (threadIdx.x % 32 == 0) {
            mbarrier_init(&w.arrived[0][warp], 1), mbarrier_init(&w.arrived[1][warp], 1);
            mbarrier_init_fence();
        }
        __syncwarp();
    }
    __device__ __forceinline__ void fetch(int k)
    {
        if (k >= whole) {
            if (begin + (int64_t)k * TILE < end) lanes::fetch(k); /* a tile that is not there is turned, but by nobody read */
            return;
        }
        if (threadIdx.x % 32) return;
        mbarrier_expect(&w.arrived[k % 2][warp], sizeof(chunk_stage));
        tensor_load(&w.stage[k % 2][warp], &map.in, &w.arrived[k % 2][warp], first, (int)token(k));
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        if (k < whole)
            mbarrier_wait(&w.arrived[k % 2][warp], (uint32_t)(k / 2 & 1));
        else
            cp_async_wait<0>();
        __syncwarp();
        w.stage[k % 2][warp].template turn_in<BACK, true>(w.in[k % SLOTS], warp);
        __syncwarp();
    }
    /* Through the place of tile k + 3, which has been turned. */
    __device__ __forceinline__ void take(int k)
    {
        if (k >= whole) return lanes::take(k);
        chunk_stage &stage = w.stage[(k + 1) % 2][warp];
        stage.template turn_out<BACK, true>(w.out[k % SLOTS], warp);
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32) return;
        tensor_store(&map.out, &stage, first, (int)token(k));
        store_commit();
    }
    __device__ __forceinline__ void next(int k)
    {
        if (threadIdx.x % 32 == 0) store_wait_read();
        __syncwarp();
        fetch(k);
    }
    __device__ __forceinline__ void finish()
    {
        if (threadIdx.x % 32 == 0) store_wait_read();
        cp_async_wait<0>();
    }
    __device__ __forceinline__ void passed() { arrive(&w.turned_in); }
    __device__ __forceinline__ void await_others(int k) { await(&w.turned_in, k); }
};

struct pairs_by_engine : pairs_by_lanes {
    struct maps {
        CUtensorMap u, dout;
    };
    const maps &map;
    const int whole;

    __device__ __forceinline__ pairs_by_engine(sums_shared &w_, const tiles_args &p_, const maps &map_, int warp_, int first_, int64_t begin_,
                                               int64_t end_)
        : pairs_by_lanes(w_, p_, {}, warp_, first_, begin_, end_), map(map_), whole(whole_tiles(end_ - begin_, warp_))
    {
        if (threadIdx.x == 0) mbarrier_init(&w.turned_in, WARPS), mbarrier_init(&w.read, WARPS);
        if (threadIdx.x % 32 == 0) {
            mbarrier_init(&w.arrived[warp], 1);
            mbarrier_init_fence();
        }
        __syncwarp();
    }
    __device__ __forceinline__ void fetch(int k)
    {
        if (k >= whole) {
            if (begin + (int64_t)k * TILE < end) pairs_by_lanes::fetch(k);
            return;
        }
        if (threadIdx.x % 32) return;
        mbarrier_expect(&w.arrived[warp], 2 * sizeof(chunk_stage));
        tensor_load(&w.stage[0][warp], &map.u, &w.arrived[warp], first, (int)token(k));
        tensor_load(&w.stage[1][warp], &map.dout, &w.arrived[warp], first, (int)token(k));
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        if (k < whole)
            mbarrier_wait(&w.arrived[warp], (uint32_t)(k & 1));
        else
            cp_async_wait<0>();
        __syncwarp();
        turn<true>();
        __syncwarp();
        fetch(k + 1);
    }
    __device__ __forceinline__ void has_turned_in() { arrive(&w.turned_in); }
    __device__ __forceinline__ void await_tile(int k) { await(&w.turned_in, k); }
    __device__ __forceinline__ void has_read() { arrive(&w.read); }
    __device__ __forceinline__ void await_readers(int k) { await(&w.read, k); }
};

bool chunk_map(CUtensorMap *map, const void *x, int64_t rows, int D)
{
    const uint64_t size[2] = { (uint64_t)D, (uint64_t)rows }, stride[1] = { (uint64_t)D * 2 };
    const uint32_t box[2] = { WARPS, CHUNK };
    return x && rows > 0 && rows <= INT32_MAX && (uintptr_t)x % 16 == 0 &&
           lnt_tensor_map(map, x, 2, size, stride, box, CU_TENSOR_MAP_SWIZZLE_32B);
}

template <bool BACK> bool put_walk(const tiles_args &p, const bf16 *in, const bf16 *out, int64_t rows, unsigned ctas, const lnt_cuda *d)
{
    typename rows_by_engine<BACK>::maps maps = {};
    if (!chunk_map(&maps.in, in, rows, p.D) || (out && !chunk_map(&maps.out, out, rows, p.D))) return false;
    lnt_launch_with(d, tiles_walk<BACK, rows_by_engine<BACK>>, ctas, THREADS, sizeof(walk_shared), 1, p, maps);
    return true;
}

} // namespace

bool lnt_s4d_walk_sm90(const tiles_args &p, int64_t rows, unsigned ctas, bool back, const lnt_cuda *d)
{
    return back ? put_walk<true>(p, p.dout, p.du, rows, ctas, d) : put_walk<false>(p, p.u, p.o, rows, ctas, d);
}
bool lnt_s4d_sums_sm90(const tiles_args &p, int64_t rows, unsigned ctas, const lnt_cuda *d)
{
    pairs_by_engine::maps maps = {};
    if (!chunk_map(&maps.u, p.u, rows, p.D) || !chunk_map(&maps.dout, p.dout, rows, p.D)) return false;
    lnt_launch_with(d, tiles_sums<pairs_by_engine>, ctas, THREADS, sizeof(sums_shared), 1, p, maps);
    return true;
}
