/* Up to 8 rows of x against large weights, bf16, on Hopper. Floor: the weights read once.
 *
 * A tile is 16 rows of w, or 8 of each of two that are combined, and all of K. A block goes through tiles grid apart; one thread brings them to
 * shared memory, SPAN columns of K a stage, without a pause from tile to tile; eight warps have 64 columns of each stage. Their x is in registers
 * for all tiles, or, when K is longer than KEPT stages, loaded as they go; of one row it is in shared memory. What lane has what is as in
 * few_rows_cuda.cu; warps' sums are added in order. Of one long row two blocks, a cluster, share a tile. A block takes half a multiprocessor's shared
 * memory, two go side by side: those of the next such product take the places of the first to end, and fill their stages before the kernels ahead
 * have ended.
 *
 * What a step waits for behind the kernels ahead is latency: of x, and of this kernel's instructions, some five cycles each, one after the other. So
 * all that needs no x is done before (Mamba-2's step 6% shorter, DeltaNet's 1 to 4%). Of one row x in shared memory leaves 72 registers a thread, and
 * so room beside two blocks for the small kernel that follows (Mamba-2's recurrence: 2% of those 6).
 *
 * Slower: rows brought one by one as plain bytes, 1 KB each (63% of the bandwidth: a copy takes the engine some 90 cycles); x made by every block, a
 * sum and its norm, in place of a kernel ahead (4%); tiles of 8 rows (6%); one block of 12 stages in place of two of 6 (2%), of 7 stages, which
 * leaves half of the multiprocessor to others (17%); x of 6 stages kept (4%); 72 registers with x among them (10%); five stages (1%) or four (7%);
 * weights that do not leave L2 first (1.3%); let_next at once (5%); x four bytes a lane, as ldmatrix has w (of one row 3%, of eight 28%: it is
 * requests that x waits for); a root ahead of the products (1,600 cycles); blocks of one product kept one to a multiprocessor (RWKV-7 3%, Mesa 10%).
 * No faster: constants of the launch read ahead of the wait. A flag that a kernel's blocks count up in place of the end that await_last waits for:
 * 0.5 us a kernel (bench/step_chain.cu). */
#include "device/block_clock.cuh"
#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace {

constexpr int ROWS = 16, HALF = ROWS / 2, WARPS = 8, SPAN = 64 * WARPS, STAGES = 6;
/* Stages a block asks for before the first of them is there. All at once are 25 MB on the whole GPU, and what the small kernels ahead and x need
 * queues up behind them: a step of one sequence took 6% longer. With one, memory has pauses (9%). Where there is one block a multiprocessor, two are
 * too little to hide the latency once x is there: then it asks for a stage as soon as that is free (a step of DeltaNet 2% shorter, of RWKV-7 4%; with
 * four under way from the beginning 1.5% longer than that). */
constexpr int UNDER_WAY = 2;
constexpr int KEPT = 4;     /* stages whose x a lane has in registers: all, or the next */
constexpr int LONGEST = 16; /* stages of a row whose x lies in shared memory */
constexpr int CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
constexpr int PANEL = HALF * 128, BOX = WARPS * PANEL, STAGE = 2 * BOX; /* bytes; a panel is 8 rows of 64 columns, a box has the 8 warps' */
/* Shared memory: the ring, its barriers and what is small, what warps have of the sums of a row of x, by turns, and x of one row. */
constexpr size_t RING = STAGES * STAGE, SMALL = (2 * STAGES + 2) * sizeof(uint64_t) + WARPS * sizeof(float), SHARE = WARPS * ROWS * sizeof(float);
constexpr size_t MOST = 113 << 10; /* two blocks share a multiprocessor's, and of each 1 KB is the system's */

struct stream_args {
    CUtensorMap w[LNT_FEW_PARTS];
    few_parts to;
    int K, half; /* half: of two blocks that share a tile, the first one's columns */
    int x_at;    /* where in shared memory x of one row begins */
    bool alone;  /* one block a multiprocessor */
};

/* A map of w [N, K], K a multiple of 64, read in boxes of HALF rows by SPAN columns, panel behind panel: a tensor [K/64][N][64]. */
bool panels_map(CUtensorMap *map, const lnt_few_part *p, int64_t K)
{
    const uint64_t size[3] = {64, (uint64_t)p->N, (uint64_t)K / 64}, stride[2] = {(uint64_t)p->ldw * 2, 128};
    const uint32_t box[3] = {64, HALF, WARPS};
    return lnt_tensor_map(map, p->w, 3, size, stride, box);
}

/* What becomes of a tile's sums. */
enum stream_end { PLAIN, ADDED, GATED }; /* a result; lnt_few_sum; SwiGLU of two parts */

/* Rows of w from n0 on, of `part` or of both that are combined. */
template <stream_end END> struct tile_rows {
    int part, n0;
    __device__ __forceinline__ tile_rows(const few_parts &a, int tile)
    {
        part = END == PLAIN ? few_part_at(a, tile) : 0;
        n0 = (tile - a.p[part].first) * (END == GATED ? HALF : ROWS);
    }
};

/* A block's first tile, how far on its next is, and its columns of K. SPLIT: two blocks, a cluster, have a tile, half of K each. */
template <bool SPLIT> struct stream_share {
    int tile, pace, begin, end;
    __device__ __forceinline__ stream_share(const stream_args &a)
    {
        tile = (int)blockIdx.x / (SPLIT ? 2 : 1), pace = (int)gridDim.x;
        begin = SPLIT && blockIdx.x % 2 ? a.half : 0, end = SPLIT && !begin ? a.half : a.K;
    }
};

/* One thread. */
template <stream_end END, bool SPLIT> __device__ __forceinline__ void bring(const stream_args &a, char *ring, uint64_t *full, uint64_t *empty)
{
    const stream_share<SPLIT> own(a);
    int stage = 0, turn = 0;
    bool ahead = true;
    const uint64_t once = read_once();
    for (int tile = own.tile; tile < a.to.tiles; tile += own.pace) {
        const tile_rows<END> at(a.to, tile);
        const CUtensorMap *top = &a.w[at.part], *low = END == GATED ? &a.w[1] : top;
        const int second = END == GATED ? at.n0 : at.n0 + HALF;
        for (int k = own.begin; k < own.end; k += SPAN) {
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

/* What a thread has to do with a tile: row threadIdx.x / ROWS of x by row n of w is its result, at `to` of the part's. */
template <stream_end END> struct stream_tile {
    const bf16 *x; /* a lane's first number for the products */
    int64_t to;
    int part, n;
    bool there; /* it has a result */

    /* `begin`: the first of the block's K columns. */
    __device__ __forceinline__ stream_tile(const few_parts &a, int begin, int K, int tile)
    {
        const tile_rows<END> at(a, tile);
        const few_part &p = a.p[at.part];
        const int r = (int)threadIdx.x / ROWS, row = (int)threadIdx.x % ROWS, group = (int)threadIdx.x % 32 / 4;
        x = p.x + (group < a.R ? group : 0) * p.ldx + begin + min((int)threadIdx.x / 32 * 64, K - 64) + (int)threadIdx.x % 4 * 8;
        part = at.part, n = at.n0 + row, to = r * p.ldy + n * p.step;
        there = r < a.R && n < p.N && !(END == GATED && row >= HALF);
    }
    __device__ __forceinline__ void put(const few_parts &a, float sum) const
    {
        const few_part &p = a.p[part];
        float s[1] = {sum};
        const float none[1] = {};
        if (END == PLAIN) few_result<1>(p, false, n, s, none);
        put_sum<any1>({p.y, p.f32}, to, s, p.add);
    }
};

/* A lane's eight numbers of x of a stage's columns, and the eight 32 columns on. */
__device__ __forceinline__ void load_x(uint4 (&x)[2], const bf16 *from)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[h].x), "=r"(x[h].y), "=r"(x[h].z), "=r"(x[h].w)
                     : "l"(from + 32 * h)
                     : "memory");
}
/* A warp's columns of a row, 64 of each stage, to `to`: all are asked for before the first is there. */
__device__ __forceinline__ void bring_x(char *to, const bf16 *from, int chunks, int left)
{
    const int lane = (int)threadIdx.x % 32, at = lane / 8 * SPAN;
    uint4 v[LONGEST / 4];
#pragma unroll
    for (int i = 0; i < LONGEST / 4; i++) {
        const bf16 *p = from + lane % 8 * 8 + (at + 4 * i * SPAN < left ? at + 4 * i * SPAN : 0);
        if (4 * i < chunks)
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w) : "l"(p) : "memory");
    }
#pragma unroll
    for (int i = 0; i < LONGEST / 4; i++)
        if (lane / 8 + 4 * i < chunks) *(uint4 *)(to + (lane + 32 * i) * 16) = v[i];
    __syncwarp();
}
__device__ __forceinline__ uint4 read_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

/* d += a stage's rows by x. A lane's row is such that eight lanes, of two rows, read from all 32 banks. */
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t at, const uint4 (&x)[2])
{
    const uint32_t other = at ^ 64;
    const uint4 u = read_shared(at), v = read_shared(at + BOX), p = read_shared(other), q = read_shared(other + BOX);
    few_mma(d, u.x, v.x, u.y, v.y, x[0].x, x[0].y);
    few_mma(d, u.z, v.z, u.w, v.w, x[0].z, x[0].w);
    few_mma(d, p.x, q.x, p.y, q.y, x[1].x, x[1].y);
    few_mma(d, p.z, q.z, p.w, q.w, x[1].z, x[1].w);
}

/* Of the ring: `full`, behind them those of stages that are empty again; `sent`: the second block's sums are there. */
template <bool SPLIT> __device__ __forceinline__ void make_barriers(uint64_t *full, uint32_t sent)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&full[STAGES + i], WARPS);
        mbarrier_init_fence();
        if (SPLIT) cluster_barrier(sent), cluster_expect(sent, (uint32_t)SHARE);
    }
    __syncthreads();
    if (SPLIT) cluster_arrive();
}

/* A lane's sums of up to R rows of x by rows w_row and w_row + 8 of a tile's, to those that its warp has; `send`: in the first block of two. */
template <bool SPLIT> __device__ __forceinline__ void keep(float (*rows)[ROWS], const float (&d)[4], int R, int w_row, bool send, uint32_t sent)
{
    const int first = 2 * ((int)threadIdx.x % 4);
    if (SPLIT) cluster_wait();
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (first + (e & 1) >= R) continue;
        float *to = &rows[first + (e & 1)][w_row + 8 * (e >> 1)];
        if (SPLIT && send)
            cluster_send(shared_address(to), sent, 0, d[e]);
        else
            *to = d[e];
    }
}

/* r of a row of x, of whose squares `count` warps have a share. */
__device__ __forceinline__ float root_of(const few_norm &a, const float *squares, int count)
{
    float sum = squares[0];
    for (int w = 1; w < count; w++) sum += squares[w];
    return few_root::of(a, sum);
}

/* ONE: of one row, whose x lies in shared memory, each warp's columns by themselves. SPLIT, of one row alone: the second block of two sends its
 * warps' sums to the first, which adds them behind its own. */
template <stream_end END, bool ONE, bool SPLIT>
__global__ void __launch_bounds__(THREADS, ONE ? 3 : 2) few_stream_kernel(const __grid_constant__ stream_args a)
{
    extern __shared__ __align__(1024) char ring[];
    block_clock clock(CLOCK_PRODUCT);
    uint64_t *const full = (uint64_t *)(ring + RING);
    float *const squares = (float *)(full + 2 * STAGES + 2); /* [WARPS]: behind a sum, what each warp has of its row of x */
    const uint32_t sent = shared_address(full + 2 * STAGES);
    make_barriers<SPLIT>(full, sent);
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring<END, SPLIT>(a, ring, full, full + STAGES);
        __syncwarp();
        if (SPLIT) cluster_wait();
        return;
    }
    const stream_share<SPLIT> own(a);
    const bool second = SPLIT && own.begin;
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4, w_row = group / 2 + group % 2 * 4;
    const int K = own.end - own.begin, chunks = (K + SPAN - 1) / SPAN, left = K - warp * 64, R = ONE ? 1 : a.to.R, r = (int)threadIdx.x / ROWS;
    const int share_of = R == 1 ? 8 : R == 2 ? 4 : R <= 4 ? 2 : 1; /* warps that share a row's squares */
    const uint32_t first = shared_address(ring) + (uint32_t)(warp * PANEL + w_row * 128 + (lane ^ w_row) * 16), bars = shared_address(full);
    char *const x_warp = ring + a.x_at + warp * chunks * 128;
    float(*share)[WARPS][ONE ? 1 : 8][ROWS] = (float(*)[WARPS][ONE ? 1 : 8][ROWS])(ring + RING + SMALL); /* SPLIT: [1] the second block's */
    const uint32_t x_lane = shared_address(x_warp) + 16 * (uint32_t)lane;
    const bool norms = !second && a.to.norm.squares;
    float by = 1.0f; /* r of this thread's row of x */
    int stage = 0, parity = 0, turn = 0, tile = own.tile;
    stream_tile<END> t(a.to, own.begin, K, tile);
    const bf16 *row = t.x;
    uint4 x[ONE ? 1 : KEPT][2];
    few_root root;
    few_addend<1> other;
    const auto fetch = [&] { /* beyond K weights are zeros, and x any of its numbers */
        if constexpr (ONE)
            bring_x(x_warp, row - 8 * lane, chunks, left);
        else
#pragma unroll
            for (int c = 0; c < KEPT; c++) load_x(x[c], row + (c * SPAN < left ? c * SPAN : 0));
    };
    mbarrier_wait_at(bars, 0); /* a loop, behind which the compiler does not move what is computed so far, as it does behind await_last alone */
    await_last(), clock.goes_on();
    fetch();
    if (END == ADDED && !second && t.there) other.load(a.to.sum, r, t.n);
    if (norms) root.load(a.to.norm, min(warp / share_of, R - 1), warp % share_of, share_of);
    for (;;) {
        float d[4] = {};
        for (int begin = 0; begin < chunks; begin += KEPT)
#pragma unroll
            for (int c = 0; c < KEPT; c++) {
                if (begin + c >= chunks) break;
                mbarrier_wait_at(bars + 8 * (uint32_t)stage, (uint32_t)parity);
                if constexpr (ONE)
                    for (int h = 0; h < 2; h++) x[0][h] = read_shared(x_lane + (uint32_t)((begin + c) * 128 + 64 * h));
                multiply(d, first + (uint32_t)stage * STAGE, x[ONE ? 0 : c]);
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive_at(bars + 8 * (uint32_t)(STAGES + stage));
                if (++stage == STAGES) stage = 0, parity ^= 1;
                if (!ONE && chunks > KEPT) {
                    const int next = (begin + c + KEPT < chunks ? begin + c + KEPT : c) * SPAN;
                    load_x(x[c], row + (next < left ? next : 0));
                }
            }
        keep<SPLIT>(share[second ? 1 : turn][warp], d, R, w_row, second, sent);
        if (second) return;
        if (norms && tile == own.tile) {
            const float sum = root.sum();
            if (threadIdx.x % 32 == 0) squares[warp] = sum;
        }
        named_sync(1, CONSUMERS);
        if (norms && r < R && tile == own.tile) by = root_of(a.to.norm, squares + r * share_of, share_of);
        if (SPLIT) cluster_await(sent, 0);
        if (r < R && (t.there || END == ADDED)) {
            const int n = (int)threadIdx.x % ROWS;
            float s[1] = {}, g[1] = {};
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                s[0] += share[turn][w][r][n];
                if (END == GATED) g[0] += share[turn][w][r][n + HALF];
            }
#pragma unroll
            for (int w = 0; w < WARPS && SPLIT; w++) s[0] += share[1][w][r][n];
            if (norms) s[0] *= by, g[0] *= by;
            if (END == ADDED) few_squares(a.to.sum, r, tile, t.there ? other.put(a.to.sum, a.to.p[0], r, t.n, s) : 0.0f);
            if (END == GATED) few_gate(a.to.p[0], s, g);
            if (END != ADDED) t.put(a.to, s[0]);
        }
        tile += own.pace, turn ^= 1;
        if (SPLIT || tile >= a.to.tiles) break;
        t = stream_tile<END>(a.to, own.begin, K, tile);
        if (t.x != row) {
            row = t.x;
            fetch();
        }
        if (END == ADDED && t.there) other.load(a.to.sum, r, t.n);
    }
}

template <bool ONE, bool SPLIT = false> void put(const lnt_cuda *d, const stream_args &a, int blocks, size_t bytes)
{
    const auto plain = a.to.sum.x ? few_stream_kernel<ADDED, ONE, SPLIT> : few_stream_kernel<PLAIN, ONE, SPLIT>;
    const auto kernel = a.to.swiglu && !SPLIT ? few_stream_kernel<GATED, ONE, false> : plain;
    lnt_launch_with(d, kernel, (unsigned)blocks, THREADS, bytes, SPLIT ? 2 : 1, a);
    /* as of chains (row_chain_cuda.cu): a graph holds products of many sizes */
    lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)d->base.block_shared));
}

/* Of one row, where no block would have more than two tiles, as few blocks as have two leave places in which the next kernel begins early: a step of
 * DeltaNet 3% shorter, of RWKV-7 1% longer; of eight rows it takes 4% longer. Three each: 0.5%. With places left, x in registers is sooner there (all
 * products that are neither sums nor SwiGLU so: DeltaNet 275 us for 280, RWKV-7 366 for 369; the pairs alone not timed).
 *
 * Fewer tiles than multiprocessors, all of them behind a product with more, find places on some half of them, two side by side: where a row of w is
 * longer than two rings, two blocks share a tile (RWKV-7, K = 8192: 331 us to 312; 317 where they ask for a stage as soon as one is free, as blocks
 * do that are alone; of eight rows 2% longer). Where each half fits a ring they only take places from what follows (K = 5632: DeltaNet and Mesa 1%
 * longer; 4096: Mamba-2 6%; 2048: 3 to 8%). */
void launch(const lnt_cuda *d, stream_args &a)
{
    const int all = d->base.multiprocessors, tiles = a.to.tiles, chunks = (int)lnt_div_up(a.K, SPAN);
    const bool pairs = a.to.R == 1 && tiles > 2 * all && tiles <= 4 * all;
    const bool split = a.to.R == 1 && tiles <= all && chunks > 2 * STAGES && chunks < 2 * LONGEST - 1 && !a.to.swiglu;
    const int blocks = split ? 2 * tiles : pairs ? (tiles + 1) / 2 : tiles < 2 * all ? tiles : 2 * all;
    a.alone = blocks <= all;
    a.half = split ? (chunks + 1) / 2 * SPAN : a.K;
    a.x_at = (int)(RING + SMALL + (split || tiles > blocks ? 2 : 1) * SHARE);
    const size_t one = (size_t)a.x_at + (size_t)lnt_div_up(a.half, SPAN) * SPAN * 2;
    if (split)
        put<true, true>(d, a, blocks, one);
    else if (a.to.R == 1 && !pairs && a.K <= LONGEST * SPAN && one <= MOST)
        put<true>(d, a, blocks, one);
    else
        put<false>(d, a, blocks, RING + SMALL + 2 * 8 * SHARE);
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
