/* A product of up to 8 rows of x with large weights (few_stream.cuh), or a part of a recorded step. A block takes half a multiprocessor's shared
 * memory, two go side by side: those of the next such product take the places of the first to end, and fill their stages before the kernels ahead
 * have ended.
 *
 * Slower: rows brought one by one as plain bytes, 1 KB each (63% of the bandwidth: a copy takes the engine some 90 cycles); x made by every block, a
 * sum and its norm, in place of a kernel ahead (4%); tiles of 8 rows (6%); one block of 12 stages in place of two of 6 (2%); x of 6 stages kept (4%);
 * 72 registers a thread, that there is room for three (10%); five stages (1%) or four (7%); weights that do not leave L2 first (1.3%). */
#include "device/persistent.cuh"
#include "ops/few_stream.cuh"

namespace {

using namespace few_stream;

constexpr int STAGES = 6;
/* All stages at once are 25 MB on the whole GPU, and what the small kernels ahead and x need queues up behind them: a step of one sequence took 6%
 * longer. With one, memory has pauses (9%). */
constexpr int UNDER_WAY = 2;
constexpr size_t BYTES = 1024 + STAGES * STAGE;

struct stream_args {
    CUtensorMap w[LNT_FEW_PARTS];
    product to;
};

__global__ void __launch_bounds__(THREADS, 2) few_stream_kernel(const __grid_constant__ stream_args a)
{
    extern __shared__ char memory[];
    __shared__ share s;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const ring r = {memory + (1024 - shared_address(memory) % 1024) % 1024, full, empty, STAGES};
    ring_place at = {};
    if (threadIdx.x == 0) {
        ring_init(r);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x != CONSUMERS) return;
        bool ahead = true;
        const auto wrapped = [&] {
            if (ahead) let_next();
            ahead = false;
        };
        bring<UNDER_WAY>(a.to, a.w, (int)blockIdx.x, (int)gridDim.x, r, at, wrapped);
        wrapped();
        return;
    }
    await_last();
    take(a.to, (int)blockIdx.x, (int)gridDim.x, r, at, s);
}

void launch(const lnt_cuda *d, const stream_args &a)
{
    const int all = d->base.multiprocessors, tiles = a.to.parts.tiles, most = tiles > all ? 2 * all : all;
    lnt_launch_with(d, few_stream_kernel, (unsigned)(tiles < most ? tiles : most), THREADS, BYTES, 1, a);
}

void launch_piece(const lnt_cuda *d, const lnt_piece *piece, const CUtensorMap *maps)
{
    stream_args a = {};
    memcpy(&a.to, piece->args, sizeof a.to);
    memcpy(a.w, maps, sizeof a.w);
    launch(d, a);
}

} // namespace

extern "C" bool lnt_few_stream_sm90(const lnt_cuda *d, const lnt_few_rows *f)
{
    stream_args a = {};
    a.to = {few_parts_of(f, ROWS), (int)f->K};
    if (f->R > 8 || f->K % 64) return false;
    for (int i = 0; i < f->parts; i++)
        if (!panels_map(&a.w[i], &f->part[i], f->K)) return false;
    if (lnt_persistent_offer(d, LNT_PIECE_PRODUCT, &a.to, sizeof a.to, a.to.parts.tiles, sizeof(share), a.w, launch_piece)) return true;
    launch(d, a);
    return true;
}
