/* The walks of s4d_tiles_fore.cuh and s4d_tiles_back.cuh with rows of 32 and of 16 bytes by the copy engine: lanes look up a line of each row, and
 * put 16 bytes at a time into shared memory: a third of all that goes through the first-level cache on the way back. A chunk goes out by the place
 * of one that has been turned, which is brought anew behind it. */
#include "device/wgmma.cuh"
#include "recurrence/scan/s4d_tiles_back.cuh"
#include "recurrence/scan/s4d_tiles_fore.cuh"

namespace {

struct rows_by_engine : rows_by_lanes {
    struct maps {
        CUtensorMap u, o;
    };
    const maps &map;
    const int whole; /* tiles whose chunk of this warp is whole: other sequences' rows stand behind it, and must not be read */

    __device__ __forceinline__ rows_by_engine(fore_shared &w_, const tiles_args &p_, const maps &map_, int warp_, int first_, int64_t begin_,
                                              int64_t end_)
        : rows_by_lanes(w_, p_, {}, warp_, first_, begin_, end_), map(map_), whole((int)((end_ - begin_ + TILE - (warp_ + 1) * CHUNK) / TILE))
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
            if (begin + (int64_t)k * TILE < end) rows_by_lanes::fetch(k); /* a tile that is not there is turned, but by nobody read */
            return;
        }
        if (threadIdx.x % 32) return;
        mbarrier_expect(&w.arrived[k % 2][warp], sizeof(chunk_stage<2>));
        tensor_load(&w.stage[k % 2][warp], &map.u, &w.arrived[k % 2][warp], first, (int)token(k));
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        if (k < whole)
            mbarrier_wait(&w.arrived[k % 2][warp], (uint32_t)(k / 2 & 1));
        else
            cp_async_wait<0>();
        __syncwarp();
        w.stage[k % 2][warp].turn_in(w.u[k % SLOTS], row_of(warp));
        __syncwarp();
    }
    /* Through the place of tile k + 3, which has been turned. */
    __device__ __forceinline__ void take(int k)
    {
        if (k >= whole) return rows_by_lanes::take(k);
        chunk_stage<2> &stage = w.stage[(k + 1) % 2][warp];
        const int lane = lane_here(), r = lane / 4, c = lane % 4, of = lane / 8, row = lane % 8;
#pragma unroll
        for (int q = 0; q < CHUNK / 16; q++) { /* as turn_out */
            uint32_t x[4];
            ldmatrix_x4_trans(x, shared_address(&w.o[k % SLOTS].of(row / 2 * 4 + of % 2 * 2 + row % 2)[row_of(warp)][16 * q + of / 2 * 8]));
#pragma unroll
            for (int i = 0; i < 2; i++) ((uint2 *)&stage.at(16 * q + 8 * i + r, c / 2))[c % 2] = { x[2 * i], x[2 * i + 1] };
        }
        fence_async();
        __syncwarp();
        if (lane) return;
        tensor_store(&map.o, &stage, first, (int)token(k));
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
    __device__ __forceinline__ void passed()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&w.turned_in);
    }
    __device__ __forceinline__ void await(int k)
    {
        mbarrier_wait(&w.turned_in, (uint32_t)(k & 1));
        __syncwarp();
    }
};

/* As above: two chunks of a warp, 16 bytes a row, and the place of u's for those that go out. */
struct back_rows_by_engine : back_rows_by_lanes {
    struct maps {
        CUtensorMap u, dout, du;
    };
    const maps &map;
    uint32_t phase = 0;

    __device__ __forceinline__ back_rows_by_engine(back_shared &w_, const tiles_args &p_, const maps &map_, int mine_, int first_, int64_t begin_,
                                                   int64_t end_)
        : back_rows_by_lanes(w_, p_, {}, mine_, first_, begin_, end_), map(map_)
    {
        if (threadIdx.x % 32 == 0) {
            mbarrier_init(&w.arrived[mine], 1);
            mbarrier_init_fence();
        }
        __syncwarp();
    }
    __device__ __forceinline__ bool whole(int k) const { return token(k, mine + BACK_CHANNELS) < end; } /* both chunks are there */
    __device__ __forceinline__ void fetch(int k)
    {
        if (!whole(k)) return back_rows_by_lanes::fetch(k);
        if (threadIdx.x % 32 == 0) {
            mbarrier_expect(&w.arrived[mine], 4 * sizeof(chunk_stage<1>));
#pragma unroll
            for (int c = mine; c < CHUNKS; c += BACK_CHANNELS) {
                tensor_load(&w.stage[0][c], &map.u, &w.arrived[mine], first, (int)token(k, c));
                tensor_load(&w.stage[1][c], &map.dout, &w.arrived[mine], first, (int)token(k, c));
            }
        }
        cp_async_commit();
    }
    __device__ __forceinline__ void bring(int k)
    {
        if (whole(k)) {
            mbarrier_wait(&w.arrived[mine], phase);
            phase ^= 1;
        } else
            cp_async_wait<1>();
        __syncwarp();
        turn_in(k);
    }
    __device__ __forceinline__ void place_is_free()
    {
        if (threadIdx.x % 32 == 0) store_wait_read();
        __syncwarp();
    }
    __device__ __forceinline__ void take(int k)
    {
        if (!p.du) return;
        const int lane = (int)threadIdx.x % 32, r = lane / 4, c2 = lane % 4;
        place_is_free();
#pragma unroll
        for (int c = mine; c < CHUNKS; c += BACK_CHANNELS) {
            uint32_t x[4];
            ldmatrix_x4_trans(x, shared_address(&w.du[k % 2].of(lane % 8)[c][8 * (lane / 8)]));
#pragma unroll
            for (int i = 0; i < 4; i++) ((uint32_t *)&w.stage[0][c].at(8 * i + r, 0))[c2] = x[i];
        }
        fence_async();
        __syncwarp();
        if (lane) return;
#pragma unroll
        for (int c = mine; c < CHUNKS; c += BACK_CHANNELS)
            if (token(k, c) < end) tensor_store(&map.du, &w.stage[0][c], first, (int)token(k, c));
        store_commit();
    }
    /* Behind tile k, whose rows have been turned, and what went out through their place. */
    __device__ __forceinline__ void next(int k)
    {
        place_is_free();
        k ? fetch(k - 1) : cp_async_commit();
    }
    __device__ __forceinline__ void finish() { place_is_free(); }
};

bool chunk_map(CUtensorMap *map, const void *x, int64_t rows, int D, int channels)
{
    const uint64_t size[2] = { (uint64_t)D, (uint64_t)rows }, stride[1] = { (uint64_t)D * 2 };
    const uint32_t box[2] = { (uint32_t)channels, CHUNK };
    return rows > 0 && rows <= INT32_MAX && (uintptr_t)x % 16 == 0 &&
           lnt_tensor_map(map, x, 2, size, stride, box, channels == 16 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

} // namespace

bool lnt_s4d_walk_sm90(const tiles_args &p, int64_t rows, unsigned ctas, bool keep, const lnt_cuda *d)
{
    rows_by_engine::maps maps = {};
    if (!chunk_map(&maps.u, p.u, rows, p.D, WARPS) || (p.o && !chunk_map(&maps.o, p.o, rows, p.D, WARPS))) return false;
    if (keep)
        lnt_launch_with(d, tiles_forward<true, rows_by_engine>, ctas, THREADS, sizeof(fore_shared), 1, p, maps);
    else
        lnt_launch_with(d, tiles_forward<false, rows_by_engine>, ctas, THREADS, sizeof(fore_shared), 1, p, maps);
    return true;
}
bool lnt_s4d_back_sm90(const tiles_args &p, int64_t rows, unsigned ctas, const lnt_cuda *d)
{
    back_rows_by_engine::maps maps = {};
    if (!p.dout || !chunk_map(&maps.u, p.u, rows, p.D, BACK_CHANNELS) || !chunk_map(&maps.dout, p.dout, rows, p.D, BACK_CHANNELS)) return false;
    if (p.du && !chunk_map(&maps.du, p.du, rows, p.D, BACK_CHANNELS)) return false;
    lnt_launch_with(d, tiles_backward<back_rows_by_engine>, ctas, BACK_THREADS, sizeof(back_shared), 1, p, maps);
    return true;
}
