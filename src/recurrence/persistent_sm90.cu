/* Pieces of a recorded step as one kernel that stays (device/persistent.cuh).
 *
 * A block a multiprocessor. One thread goes through the pieces ahead of all others: it has them copied to slots of shared memory, and brings the
 * weights of products to a ring as long as there is room, whatever the eight other warps wait for. Those take the block's share of one piece after
 * the other: its tiles of a product, or what were blocks of a kernel. Who has a share of a piece waits until all blocks that have one of the piece
 * before have left it, so that everything before is done; in global memory a counter for each piece goes up, once a block and run.
 *
 * Floor: the bytes of weights and states, as long as what lies between two products takes no longer than the ring has weights for (about 5 us). */
#include "ops/conv_blocks.cuh"
#include "ops/few_stream.cuh"
#include "ops/few_tile.cuh"
#include "ops/norms.cuh"
#include "ops/row_chain.cuh"
#include "recurrence/pieces.cuh"

namespace {

enum { MOST_PIECES = 1024, MOST_MAPS = MOST_PIECES * LNT_PIECE_MAPS, MOST_RUNS = 64, LEAST = 8 };
constexpr int SLOTS = 6, AHEAD = 3, MOST_STAGES = 12; /* AHEAD: pieces that are asked for before their turn */
/* Stages asked for before the first of them is there: as many bytes as two blocks of few_stream_sm90.cu have under way. */
constexpr int UNDER_WAY = 4;
/* A warpgroup for the one thread that goes ahead, whose registers the others get: bodies were compiled for up to 255. */
constexpr int CONSUMERS = few_stream::CONSUMERS, THREADS = CONSUMERS + 128;
static_assert(CONSUMERS == CORE_THREADS, "bodies have as many threads");

struct run_state {
    uint32_t turn, ended; /* runs so far; blocks that have ended, of all runs */
};
struct persistent_args {
    const lnt_piece *pieces;
    uint32_t *left; /* [n] blocks that have left a piece, of all runs */
    run_state *state;
    int n, stages;
};

struct persistent_share {
    uint64_t full[MOST_STAGES], empty[MOST_STAGES];
    uint64_t slot_full[SLOTS], slot_empty[SLOTS];
    core_share cores;
};

/* A piece's work in this kernel. */
struct at_piece {
    const uint32_t *before;
    uint32_t *left, all;  /* all: what `before` counts when the piece before is done */
    mutable bool waits;
    bool last;            /* of the block's shares of the piece */

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void sync() const { named_sync(1, CONSUMERS); }
    __device__ __forceinline__ void wait() const
    {
        if (!waits) return;
        waits = false;
        if (threadIdx.x == 0) {
            uint32_t now;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(before) : "memory");
            while ((int32_t)(now - all) < 0);
        }
        sync();
    }
    __device__ __forceinline__ void leave() const
    {
        if (!last) return;
        sync();
        if (threadIdx.x != 0) return;
        __threadfence();
        atomicAdd(left, 1u);
    }
};

/* The number of this block among those of a piece. */
__device__ __forceinline__ int number_of(const lnt_piece &p)
{
    const int n = (int)blockIdx.x - p.first;
    return n < 0 ? n + (int)gridDim.x : n;
}

/* One thread. */
__device__ __forceinline__ void go_ahead(const persistent_args &a, const lnt_piece *slots, const few_stream::ring &r, persistent_share &s)
{
    few_stream::ring_place at = {};
    for (int i = 0, asked = 0; i < a.n; i++) {
        for (; asked < a.n && asked <= i + AHEAD; asked++) {
            const int slot = asked % SLOTS;
            const uint32_t parity = (uint32_t)(asked / SLOTS - 1) & 1;
            if (asked >= SLOTS && asked > i && !mbarrier_try_wait(&s.slot_empty[slot], parity)) break;
            if (asked >= SLOTS) mbarrier_wait(&s.slot_empty[slot], parity);
            mbarrier_expect(&s.slot_full[slot], LNT_PIECE_BYTES);
            bulk_load((void *)&slots[slot], &a.pieces[asked], LNT_PIECE_BYTES, &s.slot_full[slot]);
        }
        const lnt_piece &p = slots[i % SLOTS];
        mbarrier_wait(&s.slot_full[i % SLOTS], (uint32_t)(i / SLOTS) & 1);
        if (i + 1 < asked && mbarrier_try_wait(&s.slot_full[(i + 1) % SLOTS], (uint32_t)((i + 1) / SLOTS) & 1)) {
            const lnt_piece &next = slots[(i + 1) % SLOTS];
            if (next.maps) tensor_prefetch(next.maps);
        }
        if (p.kind == LNT_PIECE_PRODUCT)
            few_stream::bring<UNDER_WAY>(*(const few_stream::product *)p.args, p.maps, number_of(p), (int)gridDim.x, r, at, [] {});
    }
}

/* ---- pieces but products: functions of their own, so that each has its own registers ------------------------------------------------------- */

__device__ __noinline__ void tiles_piece(const lnt_piece &p, int b, char *work, const at_piece &at)
{
    constexpr int NARROW = LNT_FEW_NARROW / few_tile::STEP;
    const few_tile::product &product = *(const few_tile::product *)p.args;
    if (product.narrow)
        few_tile::tile<1, NARROW, 1>(product.parts, product.weights, b, *(few_tile::share<1, NARROW> *)work, at);
    else
        few_tile::tile<1, 8, 4>(product.parts, product.weights, b, *(few_tile::share<1, 8> *)work, at);
    at.leave();
}
__device__ __noinline__ void conv_piece_of(const lnt_piece &p, int b, const at_piece &at)
{
    const conv_piece &conv = *(const conv_piece *)p.args;
    const int block = 2 * b + (int)threadIdx.x / CONV_THREADS;
    at.wait();
    if (block < conv.blocks) conv_steps_block(conv.group, block, (int)threadIdx.x % CONV_THREADS, lnt_waited());
    at.leave();
}
__device__ __noinline__ void norm_piece_of(const lnt_piece &p, int b, const at_piece &at)
{
    ((const norm_piece *)p.args)->step(b, at);
    at.leave();
}
__device__ __forceinline__ void other_piece(const lnt_piece &p, int b, char *work, const at_piece &at)
{
    if (p.kind == LNT_PIECE_CHAIN) row_chain::piece_step<CONSUMERS>(*(const row_chain::chain_piece *)p.args, b, work, at);
    if (p.kind == LNT_PIECE_TILES) tiles_piece(p, b, work, at);
    if (p.kind == LNT_PIECE_CONV) conv_piece_of(p, b, at);
    if (p.kind == LNT_PIECE_NORM) norm_piece_of(p, b, at);
}

/* MANY: among its pieces are some that take many registers. */
template <bool MANY> __global__ void __launch_bounds__(THREADS, 1) persistent_kernel(const __grid_constant__ persistent_args a)
{
    extern __shared__ char memory[];
    __shared__ persistent_share s;
    char *begin = memory + (1024 - shared_address(memory) % 1024) % 1024;
    const few_stream::ring r = {begin, s.full, s.empty, a.stages};
    const lnt_piece *slots = (const lnt_piece *)(begin + a.stages * few_stream::STAGE);
    char *work = (char *)(slots + SLOTS);
    if (threadIdx.x == 0) {
        few_stream::ring_init(r);
        for (int i = 0; i < SLOTS; i++) mbarrier_init(&s.slot_full[i], 1), mbarrier_init(&s.slot_empty[i], few_stream::WARPS);
        core_init(s.cores);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        registers_lower<40>();
        if (threadIdx.x == CONSUMERS) go_ahead(a, slots, r, s);
        return;
    }
    registers_raise<232>();
    const uint32_t runs = a.state->turn;
    few_stream::ring_place place = {};
    for (int i = 0; i < a.n; i++) {
        mbarrier_wait(&s.slot_full[i % SLOTS], (uint32_t)(i / SLOTS) & 1);
        const lnt_piece &p = slots[i % SLOTS];
        const int number = number_of(p), G = (int)gridDim.x;
        at_piece at = {a.left + i - 1, a.left + i, (runs + 1) * (uint32_t)p.before, p.before > 0, true};
        for (int b = number; b < p.blocks; b += G) {
            at.last = b + G >= p.blocks || p.kind == LNT_PIECE_PRODUCT;
            if (p.kind == LNT_PIECE_PRODUCT) {
                at.wait();
                few_stream::take(*(const few_stream::product *)p.args, number, G, r, place, *(few_stream::share *)work);
                at.leave();
                break;
            }
            if (!core_piece<MANY>(p, b, work, s.cores, at)) other_piece(p, b, work, at);
            at.sync(); /* the next one has the same memory */
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&s.slot_empty[i % SLOTS]);
    }
    if (threadIdx.x == 0 && atomicAdd(&a.state->ended, 1u) + 1 == (runs + 1) * gridDim.x) a.state->turn = runs + 1;
}

} // namespace

/* ---- the host's side -------------------------------------------------------------------------------------------------------------------------- */

/* What is being recorded. */
struct lnt_persistent {
    lnt_piece *piece;        /* [MOST_PIECES] */
    lnt_piece_plain **plain; /* of each */
    CUtensorMap *map;        /* LNT_PIECE_MAPS of each */
    int n, put, runs, first; /* put: those before are done with; first: the block that has the next piece's first share */
    char *memory;            /* the device's: maps, pieces, counters, states of runs */
};

static constexpr size_t AT_PIECES = (size_t)MOST_MAPS * sizeof(CUtensorMap), AT_LEFT = AT_PIECES + (size_t)MOST_PIECES * sizeof(lnt_piece),
                        AT_STATE = AT_LEFT + MOST_PIECES * 4, ALL = AT_STATE + MOST_RUNS * sizeof(run_state);

static void forget(lnt_persistent *p)
{
    lnt_free(p->piece);
    lnt_free(p->plain);
    lnt_free(p->map);
    lnt_free(p);
}

extern "C" void lnt_persistent_begin(lnt_cuda *d)
{
    if (!d->base.persistent_steps || d->base.capability / 10 != 9 || d->persistent) return;
    lnt_persistent *p = (lnt_persistent *)lnt_calloc(sizeof *p);
    if (!p) return;
    p->piece = (lnt_piece *)lnt_calloc(MOST_PIECES * sizeof *p->piece);
    p->plain = (lnt_piece_plain **)lnt_calloc(MOST_PIECES * sizeof *p->plain);
    p->map = (CUtensorMap *)lnt_calloc(MOST_MAPS * sizeof *p->map);
    if (p->piece && p->plain && p->map && cudaMalloc(&p->memory, ALL) == cudaSuccess) {
        d->persistent = p;
        return;
    }
    cudaGetLastError();
    forget(p);
}

extern "C" bool lnt_persistent_offer(const lnt_cuda *d, lnt_piece_kind kind, const void *args, size_t bytes, int blocks, size_t work,
                                     const CUtensorMap *maps, lnt_piece_plain *plain)
{
    lnt_persistent *p = d->persistent;
    if (!p || p->n == MOST_PIECES || p->runs == MOST_RUNS || bytes > LNT_PIECE_ARGS || blocks < 1) return false;
    const int G = d->base.multiprocessors;
    lnt_piece *piece = &p->piece[p->n];
    piece->kind = kind, piece->blocks = blocks, piece->first = p->first, piece->work = (int32_t)work;
    if (maps) {
        memcpy(p->map + p->n * LNT_PIECE_MAPS, maps, LNT_PIECE_MAPS * sizeof *maps);
        piece->maps = (const CUtensorMap *)p->memory + p->n * LNT_PIECE_MAPS;
    }
    memcpy(piece->args, args, bytes);
    p->plain[p->n++] = plain;
    p->first = (p->first + blocks) % G;
    return true;
}

static persistent_args args_of(const lnt_cuda *d, lnt_persistent *p, int begin, int end, size_t *bytes, bool *many)
{
    const int G = d->base.multiprocessors;
    persistent_args a = {};
    a.pieces = (const lnt_piece *)(p->memory + AT_PIECES) + begin, a.left = (uint32_t *)(p->memory + AT_LEFT) + begin;
    a.state = (run_state *)(p->memory + AT_STATE) + p->runs++, a.n = end - begin;
    int work = 0;
    *many = false;
    for (int i = begin; i < end; i++) {
        p->piece[i].before = i == begin ? 0 : p->piece[i - 1].blocks < G ? p->piece[i - 1].blocks : G;
        if (p->piece[i].work > work) work = p->piece[i].work;
        *many |= takes_many(p->piece[i].kind);
    }
    const size_t others = 1024 + sizeof(lnt_piece) * SLOTS + (size_t)work, room = d->base.block_shared - sizeof(persistent_share) - others;
    a.stages = room / few_stream::STAGE < MOST_STAGES ? (int)(room / few_stream::STAGE) : MOST_STAGES;
    *bytes = others + (size_t)a.stages * few_stream::STAGE;
    return a;
}

static void put_run(lnt_cuda *d, lnt_persistent *p, int begin, int end)
{
    size_t bytes;
    bool many;
    const persistent_args a = args_of(d, p, begin, end, &bytes, &many);
    const auto kernel = many ? persistent_kernel<true> : persistent_kernel<false>;
    cudaLaunchAttribute attribute[1];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)d->base.multiprocessors), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes, config.stream = d->stream;
    attribute[0].id = cudaLaunchAttributeCooperative, attribute[0].val.cooperative = 1; /* blocks wait for one another */
    config.attrs = attribute, config.numAttrs = 1;
    lnt_cuda_note(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    lnt_cuda_note(d, cudaLaunchKernelEx(&config, kernel, a));
}

extern "C" void lnt_persistent_put(lnt_cuda *d)
{
    lnt_persistent *p = d->persistent;
    if (!p || p->put == p->n) return;
    const int begin = p->put, end = p->n;
    p->put = end;
    if (end - begin >= LEAST && p->runs < MOST_RUNS) return put_run(d, p, begin, end);
    d->persistent = NULL;
    for (int i = begin; i < end; i++) p->plain[i](d, &p->piece[i], p->map + i * LNT_PIECE_MAPS);
    d->persistent = p;
}

extern "C" void *lnt_persistent_end(lnt_cuda *d)
{
    lnt_persistent *p = d->persistent;
    if (!p) return NULL;
    d->persistent = NULL;
    void *memory = p->memory;
    if (p->runs) {
        lnt_cuda_note(d, cudaMemsetAsync(p->memory + AT_LEFT, 0, ALL - AT_LEFT, d->stream));
        lnt_cuda_note(d, cudaMemcpyAsync(p->memory, p->map, (size_t)p->n * LNT_PIECE_MAPS * sizeof *p->map, cudaMemcpyHostToDevice, d->stream));
        lnt_cuda_note(d, cudaMemcpyAsync(p->memory + AT_PIECES, p->piece, (size_t)p->n * sizeof *p->piece, cudaMemcpyHostToDevice, d->stream));
        lnt_cuda_note(d, cudaStreamSynchronize(d->stream));
    } else {
        lnt_cuda_note(d, cudaFree(memory));
        memory = NULL;
    }
    forget(p);
    return memory;
}
