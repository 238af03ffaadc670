/* Up to 8 rows of x against large weights, bf16, on Hopper. Floor: the weights read once.
 *
 * A tile is 16 rows of w, or 8 of each of two that are combined, and all of K. A block goes through tiles grid apart; one thread brings them to
 * shared memory, SPAN columns of K a stage, without a pause from tile to tile; eight warps have 64 columns of each stage and keep their x in
 * registers for its tiles, or, when K is longer than KEPT stages, load it as they go. What lane has what is as in few_rows_cuda.cu; warps' sums are
 * added in order. A block takes half a multiprocessor's shared memory, two go side by side: those of the next such product take the places of the
 * first to end, and fill their stages before the kernels ahead have ended.
 *
 * Slower: rows brought one by one as plain bytes, 1 KB each (63% of the bandwidth: a copy takes the engine some 90 cycles); x made by every block, a
 * sum and its norm, in place of a kernel ahead (4%); tiles of 8 rows (6%); one block of 12 stages in place of two of 6 (2%); x of 6 stages kept (4%);
 * 72 registers a thread, that there is room for three (10%); five stages (1%) or four (7%); weights that do not leave L2 first (1.3%); let_next at
 * once (5%). A flag that a kernel's blocks count up in place of the end that await_last waits for: 0.5 us a kernel (bench/step_chain.cu). */
#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace {

constexpr int ROWS = 16, HALF = ROWS / 2, WARPS = 8, SPAN = 64 * WARPS, STAGES = 6;
/* Stages a block asks for before the first of them is there. All at once are 25 MB on the whole GPU, and what the small kernels ahead and x need
 * queues up behind them: a step of one sequence took 6% longer. With one, memory has pauses (9%). Where there is one block a multiprocessor, two are
 * too little to hide the latency once x is there: then it asks for a stage as soon as that is free (a step of DeltaNet 2% shorter, of RWKV-7 4%; with
 * four under way from the beginning 1.5% longer than that). */
constexpr int UNDER_WAY = 2;
constexpr int KEPT = 4; /* stages whose x a lane has in registers: all, or the next */
constexpr int CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
constexpr int PANEL = HALF * 128, BOX = WARPS * PANEL, STAGE = 2 * BOX; /* bytes; a panel is 8 rows of 64 columns, a box has the 8 warps' */
constexpr size_t BYTES = 1024 + STAGES * STAGE;

struct stream_args {
    CUtensorMap w[LNT_FEW_PARTS];
    few_parts to;
    int K;
    bool alone; /* one block a multiprocessor */
};

/* A map of w [N, K], K a multiple of 64, read in boxes of HALF rows by SPAN columns, panel behind panel: a tensor [K/64][N][64]. */
bool panels_map(CUtensorMap *map, const lnt_few_part *p, int64_t K)
{
    const uint64_t size[3] = {64, (uint64_t)p->N, (uint64_t)K / 64}, stride[2] = {(uint64_t)p->ldw * 2, 128};
    const uint32_t box[3] = {64, HALF, WARPS};
    return lnt_tensor_map(map, p->w, 3, size, stride, box);
}

/* A tile of w. */
struct tile_rows {
    int part, n0;
    __device__ __forceinline__ tile_rows(const few_parts &a, int tile)
    {
        part = few_part_at(a, tile);
        n0 = (tile - a.p[part].first) * (a.swiglu ? HALF : ROWS);
    }
};

/* One thread. */
__device__ __forceinline__ void bring(const stream_args &a, char *ring, uint64_t *full, uint64_t *empty)
{
    int stage = 0, turn = 0;
    bool ahead = true;
    const uint64_t once = read_once();
    for (int tile = (int)blockIdx.x; tile < a.to.tiles; tile += (int)gridDim.x) {
        const tile_rows at(a.to, tile);
        const CUtensorMap *top = &a.w[at.part], *low = a.to.swiglu ? &a.w[1] : top;
        const int second = a.to.swiglu ? at.n0 : at.n0 + HALF;
        for (int k = 0; k < a.K; k += SPAN) {
            char *to = ring + stage * STAGE;
            if (turn) {
                if (ahead) let_next();
                ahead = false;
                mbarrier_wait(&empty[stage], (uint32_t)(turn - 1) & 1);
            }
            const int before = stage >= UNDER_WAY ? stage - UNDER_WAY : stage + STAGES - UNDER_WAY;
            if (turn ? !a.alone : before < stage) mbarrier_wait(&full[before], (uint32_t)(before < stage ? turn : turn - 1) & 1);
            mbarrier_expect(&full[stage], STAGE);
            tensor_load(to, top, &full[stage], 0, at.n0, k / 64, once);
            tensor_load(to + BOX, low, &full[stage], 0, second, k / 64, once);
            if (++stage == STAGES) stage = 0, turn++;
        }
    }
    if (ahead) let_next();
}

__device__ __forceinline__ uint4 read_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

/* A lane's eight numbers of x, and the eight 32 columns on, of the stage whose columns begin at k; `left` columns are there from its first on. */
__device__ __forceinline__ void load_x(uint4 (&x)[2], const bf16 *row, int k, int left)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x[h] = make_uint4(0, 0, 0, 0);
        if (row && k + h * 32 < left) x[h] = *(const uint4 *)(row + k + h * 32);
    }
}

__global__ void __launch_bounds__(THREADS, 2) few_stream_kernel(const __grid_constant__ stream_args a)
{
    extern __shared__ char memory[];
    __shared__ float share[2][WARPS][8][ROWS]; /* [turn][warp][row of x][row of w] */
    __shared__ float roots[8];                 /* of x's rows, behind a sum */
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *ring = memory + (1024 - shared_address(memory) % 1024) % 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], WARPS);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring(a, ring, full, empty);
        return;
    }
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4;
    const int chunks = (a.K + SPAN - 1) / SPAN, mine = warp * 64 + 8 * lane;
    uint4 x[KEPT][2];
    const bf16 *row = NULL;
    few_root root;
    await_last();
    if (a.to.norm.squares) root.load(a.to.norm, min(warp, a.to.R - 1));
    int stage = 0, parity = 0, turn = 0, of = -1; /* of: the part whose x it has */
    for (int tile = (int)blockIdx.x; tile < a.to.tiles; tile += (int)gridDim.x, turn ^= 1) {
        const tile_rows at(a.to, tile);
        const few_part &p = a.to.p[at.part];
        if (of < 0 || a.to.p[of].x != p.x) {
            row = group < a.to.R ? p.x + group * p.ldx + mine : NULL;
#pragma unroll
            for (int c = 0; c < KEPT; c++) load_x(x[c], row, c * SPAN, a.K - mine);
        }
        of = at.part;
        const int r = (int)threadIdx.x / ROWS, n = (int)threadIdx.x % ROWS;
        const bool there = r < a.to.R && at.n0 + n < p.N && !(a.to.swiglu && n >= HALF);
        few_addend<1> other;
        if (a.to.sum.x && there) other.load(a.to.sum, r, at.n0 + n);
        float d[4] = {};
        for (int begin = 0; begin < chunks; begin += KEPT)
#pragma unroll
            for (int c = 0; c < KEPT; c++) {
                if (begin + c >= chunks) break;
                const uint32_t top = shared_address(ring + stage * STAGE + warp * PANEL + group * 128);
                uint4 u[2], v[2];
                mbarrier_wait(&full[stage], (uint32_t)parity);
#pragma unroll
                for (int h = 0; h < 2; h++) { /* odd rows take their halves the other way round: eight lanes, of two rows, fall into 32 banks */
                    const uint32_t at = (uint32_t)((((h ^ group) & 1) * 4 + lane) ^ group) * 16;
                    u[h] = read_shared(top + at), v[h] = read_shared(top + BOX + at);
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint4 b = x[c][h], p = group & 1 ? u[h ^ 1] : u[h], q = group & 1 ? v[h ^ 1] : v[h];
                    few_mma(d, p.x, q.x, p.y, q.y, b.x, b.y);
                    few_mma(d, p.z, q.z, p.w, q.w, b.z, b.w);
                }
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
                if (++stage == STAGES) stage = 0, parity ^= 1;
                if (chunks > KEPT) load_x(x[c], row, (begin + c + KEPT < chunks ? begin + c + KEPT : c) * SPAN, a.K - mine);
            }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (2 * lane + (e & 1) < a.to.R) share[turn][warp][2 * lane + (e & 1)][group + 8 * (e >> 1)] = d[e];
        if (a.to.norm.squares && tile == (int)blockIdx.x) {
            const float one = root.get(a.to.norm);
            if (threadIdx.x % 32 == 0) roots[warp] = one;
        }
        named_sync(1, CONSUMERS);
        if (r >= a.to.R || (!there && !a.to.sum.x)) continue;
        float s[1] = {}, g[1] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            s[0] += share[turn][w][r][n];
            if (a.to.swiglu) g[0] += share[turn][w][r][n + HALF];
        }
        if (a.to.sum.x) {
            few_squares(a.to.sum, r, tile, there ? other.put(a.to.sum, p, r, at.n0 + n, s) : 0.0f);
            continue;
        }
        if (a.to.norm.squares) s[0] *= roots[r], g[0] *= roots[r];
        few_result(p, a.to.swiglu, at.n0 + n, s, g);
        put_sum<any1>({p.y, p.f32}, r * p.ldy + (at.n0 + n) * p.step, s, p.add);
    }
}

/* Of one row, where no block would have more than two tiles, as few blocks as have two leave places in which the next kernel begins early: a step of
 * DeltaNet 3% shorter, of RWKV-7 1% longer; of eight rows it takes 4% longer. Three each: 0.5%. */
void launch(const lnt_cuda *d, stream_args &a)
{
    const int all = d->base.multiprocessors, tiles = a.to.tiles;
    a.alone = tiles <= all;
    const bool pairs = a.to.R == 1 && tiles > 2 * all && tiles <= 4 * all;
    const int blocks = pairs ? (tiles + 1) / 2 : tiles < 2 * all ? tiles : 2 * all;
    lnt_launch_with(d, few_stream_kernel, (unsigned)blocks, THREADS, BYTES, 1, a);
}

} // namespace

extern "C" bool lnt_few_stream_sm90(const lnt_cuda *d, const lnt_few_rows *f)
{
    stream_args a = {};
    a.to = few_parts_of(f, ROWS);
    a.K = (int)f->K;
    if (f->R > 8 || f->K % 64) return false;
    for (int i = 0; i < f->parts; i++)
        if (!panels_map(&a.w[i], &f->part[i], f->K)) return false;
    launch(d, a);
    return true;
}
