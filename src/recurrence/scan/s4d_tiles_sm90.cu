/* The forward walk of s4d_tiles_fore.cuh with rows of 32 bytes by the copy engine: lanes look up a line of each row, 1000 of them a tile beside 2300
 * wavefronts of shared memory. A chunk goes out through the place of the one that has just been turned, which is brought anew behind it. */
#include "device/wgmma.cuh"
#include "recurrence/scan/s4d_tiles_fore.cuh"

namespace {

struct rows_by_engine : rows_by_lanes {
    struct maps {
        CUtensorMap u, o;
    };
    const maps &map;

    __device__ __forceinline__ rows_by_engine(fore_shared &w_, const tiles_args &p_, const maps &map_, int warp_, int first_, int64_t begin_,
                                              int64_t end_)
        : rows_by_lanes(w_, p_, {}, warp_, first_, begin_, end_), map(map_)
    {
        if (threadIdx.x % 32 == 0) {
            mbarrier_init(&w.arrived[0][warp], 1), mbarrier_init(&w.arrived[1][warp], 1);
            mbarrier_init_fence();
        }
        __syncwarp();
    }
    /* Other sequences' rows stand behind the last chunk, and must not be read. */
    __device__ __forceinline__ bool whole(int64_t k) const { return token(k) + CHUNK <= end; }
    __device__ __forceinline__ void fetch(int64_t k)
    {
        if (begin + k * TILE >= end) return; /* is turned, but by nobody read */
        if (!whole(k)) return rows_by_lanes::fetch(k);
        if (threadIdx.x % 32) return;
        mbarrier_expect(&w.arrived[k % 2][warp], sizeof(chunk_stage<2>));
        tensor_load(&w.stage[k % 2][warp], &map.u, &w.arrived[k % 2][warp], first, (int)token(k));
    }
    __device__ __forceinline__ void turn_in(int64_t k)
    {
        if (whole(k))
            mbarrier_wait(&w.arrived[k % 2][warp], (uint32_t)(k / 2 & 1));
        else
            cp_async_wait<0>();
        __syncwarp();
        w.stage[k % 2][warp].turn_in(w.u[k % 2], warp);
        __syncwarp();
    }
    __device__ __forceinline__ void take(int64_t k)
    {
        if (!whole(k)) return rows_by_lanes::take(k);
        chunk_stage<2> &stage = w.stage[k % 2][warp];
        const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4, of = lane / 8, row = lane % 8;
#pragma unroll
        for (int q = 0; q < CHUNK / 16; q++) { /* as turn_out */
            uint32_t x[4];
            ldmatrix_x4_trans(x, shared_address(&w.o[k % 2].of(row / 2 * 4 + of % 2 * 2 + row % 2)[warp][16 * q + of / 2 * 8]));
#pragma unroll
            for (int i = 0; i < 2; i++) ((uint2 *)&stage.at(16 * q + 8 * i + r, c / 2))[c % 2] = { x[2 * i], x[2 * i + 1] };
        }
        fence_async();
        __syncwarp();
        if (lane) return;
        tensor_store(&map.o, &stage, first, (int)token(k));
        store_commit();
    }
    __device__ __forceinline__ void next(int64_t k)
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
};

bool chunk_map(CUtensorMap *map, const void *x, int64_t rows, int D)
{
    const uint64_t size[2] = { (uint64_t)D, (uint64_t)rows }, stride[1] = { (uint64_t)D * 2 };
    const uint32_t box[2] = { WARPS, CHUNK };
    return (uintptr_t)x % 16 == 0 && lnt_tensor_map(map, x, 2, size, stride, box, CU_TENSOR_MAP_SWIZZLE_32B);
}

} // namespace

bool lnt_s4d_walk_sm90(const tiles_args &p, int64_t rows, unsigned ctas, bool keep, const lnt_cuda *d)
{
    rows_by_engine::maps maps = {};
    if (rows <= 0 || rows > INT32_MAX || !chunk_map(&maps.u, p.u, rows, p.D) || (p.o && !chunk_map(&maps.o, p.o, rows, p.D))) return false;
    if (keep)
        lnt_launch_with(d, tiles_forward<true, rows_by_engine>, ctas, THREADS, sizeof(fore_shared), 1, p, maps);
    else
        lnt_launch_with(d, tiles_forward<false, rows_by_engine>, ctas, THREADS, sizeof(fore_shared), 1, p, maps);
    return true;
}
