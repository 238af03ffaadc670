/* The largest logit of each row, or one drawn by temperature, for the next step and for the host. */
#include "device/mma.cuh"
extern "C" {
#include "generate/greedy.h"
}

/* AT_ONCE: loads on their way. On Hopper the largest logits of up to FEW_ROWS rows have PARTS blocks each, of PART_THREADS. */
enum { THREADS = 1024, WARPS = THREADS / 32, AT_ONCE = 16, PARTS = 8, PART_THREADS = THREADS / 4, FEW_ROWS = 16 };

struct largest {
    float x;
    int32_t id;
};

/* Ties go to the lower id. A NaN, whose id is -1, is larger than everything. */
__device__ __forceinline__ largest larger(largest a, largest b)
{
    if (a.id < 0 || b.id < 0) return a.id < 0 ? a : b;
    return b.x > a.x || (b.x == a.x && b.id < a.id) ? b : a;
}

__device__ __forceinline__ largest warp_largest(largest a)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) a = larger(a, {__shfl_xor_sync(0xffffffffu, a.x, o), __shfl_xor_sync(0xffffffffu, a.id, o)});
    return a;
}

struct arrival {
    double time;
    int32_t id;
};

/* Ties go to the lower id. */
__device__ __forceinline__ arrival sooner(arrival a, arrival b) { return b.time < a.time || (b.time == a.time && b.id < a.id) ? b : a; }

__device__ __forceinline__ arrival warp_soonest(arrival a)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) a = sooner(a, {__shfl_xor_sync(0xffffffffu, a.time, o), __shfl_xor_sync(0xffffffffu, a.id, o)});
    return a;
}

/* The race of lnt_draw_by (sample.c), of a row whose largest logit is `best`; in thread 0. */
__device__ int32_t race(const float *row, int32_t V, float best, lnt_chance chance)
{
    __shared__ arrival of_warp[WARPS];
    arrival first = {INFINITY, INT32_MAX};
    for (int32_t i = (int32_t)threadIdx.x; i < V; i += THREADS) {
        const double p = exp(((double)row[i] - (double)best) / chance.temperature), u = lnt_number_of(chance.bits, i);
        if (1 - u >= first.time * p) continue; /* -ln u is no less than 1 - u */
        const double time = -log(u) / p;
        if (time < first.time) first = {time, i};
    }
    first = warp_soonest(first);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = first;
    __syncthreads();
    if (threadIdx.x < 32) first = warp_soonest(of_warp[threadIdx.x]);
    return first.id;
}

/* What the blocks of a row, a cluster, hand each other. */
struct row_share {
    largest of_warp[WARPS], of_part[PARTS], of_row;
    uint64_t arrived; /* of_part of the row's first block is there */
};

struct choice_args {
    const float *logits; /* [rows, ld], of which the first V columns count */
    int64_t ld, most;
    int32_t V, parts;    /* parts: blocks of a row */
    const lnt_chance *chance;
    int32_t *next, *host, *turn; /* lnt_greedy */
};

__global__ void __launch_bounds__(THREADS) largest_kernel(const choice_args a)
{
    extern __shared__ __align__(16) char memory[];
    row_share &share = *(row_share *)memory;
    const int r = (int)blockIdx.x / a.parts, part = (int)blockIdx.x % a.parts, threads = (int)blockDim.x;
    const int32_t begin = (int32_t)((int64_t)a.V * part / a.parts), end = (int32_t)((int64_t)a.V * (part + 1) / a.parts);
    const float *row = a.logits + (int64_t)r * a.ld;
    largest best = {-INFINITY, begin};
    if (a.parts > 1) {
        if (part == 0 && threadIdx.x == 0) {
            cluster_barrier(shared_address(&share.arrived));
            cluster_expect(shared_address(&share.arrived), (uint32_t)((a.parts - 1) * sizeof(largest)));
        }
        __syncwarp();
        cluster_arrive();
    }
    let_next();
    await_last();
    for (int32_t i = begin + (int32_t)threadIdx.x; i < end; i += AT_ONCE * threads) {
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) x[j] = i + j * threads < end ? row[i + j * threads] : -INFINITY;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (best.id >= 0 && !(x[j] <= best.x)) best = {x[j], isnan(x[j]) ? -1 : i + j * threads};
    }
    best = warp_largest(best);
    if (threadIdx.x % 32 == 0) share.of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) best = warp_largest(share.of_warp[min((int)threadIdx.x, threads / 32 - 1)]);
    if (a.parts > 1) {
        cluster_wait();
        if (part) {
            if (threadIdx.x == 0) {
                const uint32_t to = shared_address(&share.of_part[part]), there = shared_address(&share.arrived);
                cluster_send(to, there, 0, best.x), cluster_send(to + 4, there, 0, __int_as_float(best.id));
            }
            return;
        }
        cluster_await(shared_address(&share.arrived), 0);
        for (int i = 1; i < a.parts; i++) best = larger(best, share.of_part[i]);
    }
    if (threadIdx.x == 0) share.of_row = best;
    __syncthreads();
    best = share.of_row;
    const bool none = best.id < 0 || isinf(best.x);
    int32_t id = best.id;
    if (a.chance && !none && a.chance[r].temperature != 0) id = race(row, a.V, best.x, a.chance[r]);
    if (threadIdx.x == 0) {
        const int32_t turn = *a.turn;
        a.next[r] = none ? 0 : id;
        a.host[turn * a.most + r] = none ? -1 : id;
        __threadfence();
        if (atomicAdd(a.turn + 1, 1) == (int32_t)gridDim.x / a.parts - 1) a.turn[0] = (turn + 1) % LNT_GREEDY_TURNS, a.turn[1] = 0;
    }
}

extern "C" void lnt_greedy_cuda(const lnt_greedy *g, const lnt_chance *chance)
{
    const lnt_cuda *d = lnt_cuda_of(g->c);
    const bool few = d->base.capability >= 90 && !chance && g->rows <= FEW_ROWS && g->V >= PARTS * PART_THREADS;
    const choice_args a = {g->logits, g->ld, g->most, (int32_t)g->V, few ? PARTS : 1, chance, g->next, g->ids, g->turn};
    lnt_launch_with(d, largest_kernel, (unsigned)(g->rows * a.parts), few ? PART_THREADS : THREADS, sizeof(row_share), a.parts, a);
}
