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
    struct maps {
        CUtensorMap in, out;
    };
    using lanes = rows_by_lanes<BACK>;
    using lanes::w, lanes::warp, lanes::first, lanes::begin, lanes::end, lanes::token;
    static constexpr uint32_t SLOT = sizeof(channel_tiles), STAGE = sizeof(walk_shared::stage[0]), OUT = SLOTS * SLOT;
    static constexpr uint32_t EIGHT = (8 * channel_tiles::APART + 16) * sizeof(bf16); /* from a channel to the eighth behind it */
    const maps &map;
    const int whole;
    int lane;                              /* as lane_here's */
    uint32_t before, slot = 2 * SLOT, row; /* where the tile turned in last, and the one ahead of it, lie */
    uint4 at;

    __device__ __forceinline__ rows_by_engine(walk_shared &w_, const tiles_args &p_, const maps &map_, int warp_, int first_, int64_t begin_,
                                              int64_t end_)
        : lanes(w_, p_, {}, warp_, first_, begin_, end_), map(map_), whole(whole_tiles(end_ - begin_, warp_))
    {
        if (threadIdx.x == 0) mbarrier_init(&w.turned_in, WARPS);
        if (threadIdx.x % 32 == 0) {
            mbarrier_init(&w.arrived[0][warp], 1), mbarrier_init(&w.arrived[1][warp], 1);
            mbarrier_init_fence();
        }
        lane = lane_here();
        const int of = lane / 8, j = lane % 8;
        chunk_stage &stage = w.stage[0][warp];
        w.places[warp][lane] = { shared_address(&stage.at(placed(lane), 0)), shared_address(&w.in[0].of(j)[row_of(warp)][8 * of]),
                                 shared_address(&w.out[0].of(of % 2 * 8 + j)[row_of(warp)][of / 2 * 8]),
                                 shared_address(&stage.at(placed(of / 2 * 8 + j), of % 2)) };
        w.rows[warp][lane] = shared_address(&w.in[0].of(warp)[of / 2 * 8 + j][of % 2 * 8]);
        __syncwarp();
    }
    static __device__ __forceinline__ int placed(int token) { return BACK ? CHUNK - 1 - token : token; }
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
    /* Lanes' places wait in memory: registers have no room for them, and making them anew took a tenth of the walk's instructions. */
    __device__ __forceinline__ void turn_in(int k)
    {
        before = slot, slot = slot == 2 * SLOT ? 0 : slot + SLOT;
        at = w.places[warp][lane];
        if (k < whole)
            mbarrier_wait(&w.arrived[k % 2][warp], (uint32_t)(k / 2 & 1));
        else
            cp_async_wait<0>();
        __syncwarp();
        uint32_t x[4], y[4]; /* of channel r and the eighth behind it, tokens 8 i + 2 c and the next */
        const uint32_t from = at.x + k % 2 * STAGE;
        ldmatrix_x4_trans(x, from), ldmatrix_x4_trans(y, from ^ 16);
        put_matrices<false>(at.y + slot, x), put_matrices<false>(at.y + slot + EIGHT, y);
        __syncwarp();
    }
    __device__ __forceinline__ void read(tokens_of_tile &u, int)
    {
        row = w.rows[warp][lane] + before;
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) ldmatrix_x4(u[i], row + 32 * i);
    }
    __device__ __forceinline__ void put(int, const outputs_of_tile &d)
    {
#pragma unroll
        for (int m = 0; m < CHUNK / 16; m++) {
            uint32_t x[4];
            packed_outputs(x, d, m);
            put_matrices<true>(row + OUT + 32 * m, x);
        }
    }
    /* Through the place of tile k + 3, which has been turned. */
    __device__ __forceinline__ void take(int k) { take(k, k % SLOTS * SLOT); }
    __device__ __forceinline__ void take_behind(int k) { take(k - 3, slot); }
    __device__ __forceinline__ void take(int k, uint32_t from)
    {
        if (k >= whole) return lanes::take(k);
        const uint32_t stage = (k + 1) % 2 * STAGE, on = 16 * 2 * sizeof(uint4);
        uint32_t x[4], y[4]; /* of tokens 8 (i / 2) + r and 16 more, channels 8 (i % 2) + 2 c and the next */
        ldmatrix_x4_trans(x, at.z + from), ldmatrix_x4_trans(y, at.z + from + 32);
        put_matrices<false>(at.w + stage, x), put_matrices<false>(BACK ? at.w + stage - on : at.w + stage + on, y);
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32) return;
        tensor_store(&map.out, &w.stage[(k + 1) % 2][warp], first, (int)token(k));
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
