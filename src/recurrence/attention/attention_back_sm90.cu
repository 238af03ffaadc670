/* Softmax attention on Hopper, backward: bf16, K = V = 64 or 128. Equations: operators.md#attention, with P = 2^{c X - L'}, c = s log2 e,
 * L' = L log2 e:
 *
 *   rows      L' and delta = rowsum(dO.O), padded so that a block of 64 rows is one bulk copy; rows past a sequence's end get L' = inf, so P = 0
 *   products  a CTA has 128 keys of a head, and goes over the blocks of 64 rows that see them:
 *               X^T = K Q^T   dP^T = V dO^T   dX = P.(dP - delta)   dV += P^T dO   dK += dX^T Q   and the block's part of dQ = dX K
 *   round     dQ, summed in float32, to bf16
 *
 * Two warpgroups multiply, 64 keys each. P goes from accumulators straight into the operand of dV; dX goes through shared memory, since dQ takes all
 * 128 keys: each warpgroup makes half its columns, two blocks late, so that the warpgroups need not keep step. Products are put so that one always
 * runs while exponentials, dX, or dQ's way out are at work:
 *
 *   step t puts   dQ of t-2 | X of t | dP of t | dV of t | dK of t
 *   beside        dQ of t-2 out (X runs), P of t (dP runs), dX of t (dV runs)
 *
 * Parts of dQ are added in memory by the copy engine, one tile of keys after the other: a block of rows counts the tiles that it has, and a part
 * waits for its turn. So the same bits come out each time. A tile waits for none but the one before it on the same walk, which began earlier: tiles
 * are taken by a counter.
 *
 *   floor: B1 T8192 H32 K=V=128 causal, 5 products of 275 GFLOP: 1.74 ms at 790 TFLOP/s. A step is 2560 cycles of the tensor cores, and 3400 of
 *   shared memory at 128 bytes: products 2184, dQ's way out 512, copies in 256, L' and delta 256, dX 136. So shared memory is what binds */
#include "recurrence/attention/attention_sm90.cuh"

namespace {

constexpr int GROUPS = 2, OWN = GROUPS * B, THREADS = 128 * (GROUPS + 1), STAGES = 2;
constexpr int WARPS = 4 * GROUPS, ADDERS = 3; /* those that multiply, those that add dQ */

/* Heads at a time: their q, dO and sums of dQ, 8 MB a head at 8192 rows of 128 columns, are read and added to again and again, and stay in L2. */
constexpr int TOGETHER = 4;

struct problem {
    const bf16 *o, *d_o;
    const float *lse;
    bf16 *dq, *dk, *dv;
    float *sums;          /* dQ / s of [Hq, blocks of 64], each as the threads that multiply have it: [GROUPS][D / 16][128][4] */
    float *shift, *delta; /* [Hq, blocks 64]: L' and delta */
    unsigned *added;      /* [Hq, blocks]: how many tiles of keys are in `sums` */
    unsigned *taken;      /* how many tiles have begun */
    const int64_t *cu;
    int64_t sequences, offset, window, blocks, tiles;
    int Hk, Hq, last; /* heads that go the other way about */
    float scale, scale2;
};

/* ---- rows ----------------------------------------------------------------------------------------------------------------------- */

template <int D> __global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ problem a)
{
    constexpr int E = D / 32;
    const block_of b(a.cu, a.sequences, blockIdx.x, B);
    const int h = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const int64_t block = (int64_t)h * a.blocks + blockIdx.x, to = block * B;
    if (threadIdx.x == 0) {
        a.added[block] = 0;
        if (block == 0) *a.taken = 0;
    }
    for (int r = (int)threadIdx.x / 32; r < B; r += 8) {
        float shift = INFINITY, delta = 0.f;
        if (b.at + r < b.length) {
            const int64_t row = (int64_t)(b.first + b.at + r) * a.Hq + h;
            float x[E], y[E];
            load_pack<E>(x, a.o + row * D + lane * E);
            load_pack<E>(y, a.d_o + row * D + lane * E);
#pragma unroll
            for (int i = 0; i < E; i++) delta += x[i] * y[i];
            shift = a.lse[row] * (float)LNT_LOG2E;
        }
        delta = warp_sum(delta);
        if (lane == 0) a.shift[to + r] = shift, a.delta[to + r] = delta;
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------- */

/* [D/64] panels of rows of 64 columns, swizzled; dx is one panel for each of two steps, its rows keys. */
template <int D> struct shared_of {
    bf16 k[D / 64][OWN][64], v[D / 64][OWN][64];
    bf16 q[STAGES][D / 64][B][64], d_o[STAGES][D / 64][B][64];
    bf16 dx[2][OWN][64];
    float4 dq[2][GROUPS][D / 16][128];
    float shift[STAGES][B], delta[STAGES][B];
    uint64_t k_full, v_full, q_full[STAGES], d_full[STAGES], empty[STAGES], dx_full[2], dq_full[ADDERS], dq_empty[2];
    crossing end;
    unsigned tile;
};
template <int D> constexpr size_t shared_bytes = sizeof(shared_of<D>) + 1024;
static_assert(shared_bytes<128> <= 227 << 10, "what a block may have");

template <int D> __device__ __forceinline__ shared_of<D> &shared_start(char *raw, unsigned *taken)
{
    shared_of<D> &s = *(shared_of<D> *)(raw + (1024 - shared_address(raw) % 1024) % 1024);
    if (threadIdx.x == 0) {
        const unsigned tile = atomicAdd(taken, 1u);
        mbarrier_init(&s.k_full, 1), mbarrier_init(&s.v_full, 1);
        crossing_init(s.end);
        for (int i = 0; i < STAGES; i++) mbarrier_init(&s.q_full[i], 1), mbarrier_init(&s.d_full[i], 1), mbarrier_init(&s.empty[i], WARPS * 32);
        for (int i = 0; i < 2; i++) mbarrier_init(&s.dx_full[i], GROUPS), mbarrier_init(&s.dq_empty[i], 1);
        for (int i = 0; i < ADDERS; i++) mbarrier_init(&s.dq_full[i], WARPS);
        mbarrier_init_fence();
        s.tile = tile;
    }
    __syncthreads();
    return s;
}

/* The CTA's own rows of a warpgroup times a block of rows, transposed: d[64,64] = A[64,D] X[64,D]^T. */
template <int D> __device__ __forceinline__ void scores(float (&d)[32], uint32_t own, uint32_t x)
{
#pragma unroll
    for (int t = 0; t < D / 16; t++)
        wgmma<0, 0>(d, wgmma_on(wgmma_k_major(own), t / 4 * OWN * 128 + t % 4 * 32), wgmma_on(wgmma_k_major(x), t / 4 * B * 128 + t % 4 * 32), t > 0);
}
/* d[64,D] += P[64,64] X[64,D]. */
template <int D> __device__ __forceinline__ void collect(float (&d)[D / 2], const uint32_t (&p)[4][4], uint32_t x)
{
#pragma unroll
    for (int t = 0; t < 4; t++) wgmma<1>(d, p[t], wgmma_on(wgmma_mn_major(x, B * 128), t * 2048), true);
}

/* The steps of a tile of keys: heads of its group, and for each the blocks of rows that see some of its keys.
 *
 * Parts of a block's dQ are added in the order in which tiles begin, so each tile should come to a block when the one before has left it. Short
 * tiles, the last, begin first and go up from the diagonal: the one before began no later, and two blocks ahead. But long tiles must not be last of
 * all, so tiles of the last TOGETHER heads go from the first on, and down. */
struct walk {
    int begin, beyond, step; /* rows of the first block, of what would follow the last, and from one to the next */
    int left, h, i0;         /* steps; where it is */
    __device__ walk(const problem &a, const block_of &b, int hk, bool up)
    {
        const int group = a.Hq / a.Hk;
        const int64_t low = b.at - a.offset, until = a.window > 0 ? b.at + OWN - 1 + a.window - a.offset : b.length;
        const int64_t end = until < b.length ? until : b.length;
        const int from = low > 0 ? (int)(low / B * B) : 0, count = end > from ? (int)((end - from + B - 1) / B) : 0;
        begin = up ? from : from + (count - 1) * B;
        step = up ? B : -B;
        beyond = begin + count * step;
        left = count * group;
        h = hk * group, i0 = begin;
    }
    __device__ void next()
    {
        left--;
        i0 += step;
        if (i0 == beyond) i0 = begin, h++;
    }
    /* Tiles whose parts of the block's dQ go before that of the tile at b. */
    __device__ unsigned before(const problem &a, const block_of &b) const
    {
        const int64_t low = a.window > 0 ? i0 + a.offset - a.window + 1 : 0, high = (i0 + B < b.length ? i0 + B : b.length) + a.offset - 1;
        return (unsigned)(step > 0 ? high / OWN - b.at / OWN : b.at / OWN - (low > 0 ? low / OWN : 0));
    }
};

/* The warp that loads. */
template <int D>
__device__ __forceinline__ void load_blocks(const problem &a, shared_of<D> &s, const block_of &b, walk w, int hk, const CUtensorMap *q,
                                            const CUtensorMap *k, const CUtensorMap *v, const CUtensorMap *d_o)
{
    if (w.left == 0) return;
    const int first = b.first, block = first / B + b.n, keys = b.length + (int)a.offset - b.at;
    load_own_rows<D>(&s.k[0][0][0], k, &s.k_full, hk, first + b.at, GROUPS, keys, 0, s.end);
    load_own_rows<D>(&s.v[0][0][0], v, &s.v_full, hk, first + b.at, GROUPS, keys, 0, s.end);
    for (int t = 0; w.left > 0; t++, w.next()) {
        const int stage = t % STAGES;
        const int64_t at = ((int64_t)w.h * a.blocks + block) * B + w.i0;
        mbarrier_wait(&s.empty[stage], (uint32_t)(t / STAGES + 1) & 1);
        load_own_rows<D>(&s.q[stage][0][0][0], q, &s.q_full[stage], w.h, first + w.i0, 1, b.length - w.i0, B * 4, s.end);
        bulk_load(s.shift[stage], a.shift + at, B * 4, &s.q_full[stage]);
        load_own_rows<D>(&s.d_o[stage][0][0][0], d_o, &s.d_full[stage], w.h, first + w.i0, 1, b.length - w.i0, B * 4, s.end);
        bulk_load(s.delta[stage], a.delta + at, B * 4, &s.d_full[stage]);
    }
}

/* One of the ADDERS warps that add dQ's parts: those of every third step, so that one may wait for its turn while others' parts are on their way. */
template <int D> __device__ __forceinline__ void add_blocks(const problem &a, shared_of<D> &s, const block_of &b, walk w, int which)
{
    const int block = b.first / B + b.n;
    for (int t = 0; w.left > 0; t++, w.next()) {
        if (t % ADDERS != which) continue;
        const int64_t at = (int64_t)w.h * a.blocks + block + w.i0 / B;
        const unsigned before = w.before(a, b);
        if (before > 0) {
            for (;;) {
                unsigned now;
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(a.added + at) : "memory");
                if (now == before) break;
                __nanosleep(20);
            }
            fence_async_global();
        }
        mbarrier_wait(&s.dq_full[t % ADDERS], (uint32_t)(t / ADDERS) & 1);
        if (before > 0)
            bulk_add(a.sums + at * B * D, s.dq[t % 2], B * D * 4);
        else
            bulk_store(a.sums + at * B * D, s.dq[t % 2], B * D * 4);
        bulk_commit();
        bulk_wait_read();
        mbarrier_arrive(&s.dq_empty[t % 2]);
        bulk_wait();
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(a.added + at), "r"(before + 1) : "memory");
    }
}

/* dk and dv of 128 keys of a head, and what they give to dq. Long: the warps that copy and the warpgroups that multiply meet at the same barriers,
 * and dk, dv, scores and dq stay in registers from step to step. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    products_kernel(const __grid_constant__ problem a, const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o)
{
    extern __shared__ char raw[];
    shared_of<D> &s = shared_start<D>(raw, a.taken);
    int hk;
    int64_t tile;
    const int first = a.Hk - a.last;
    const bool up = s.tile < a.tiles * first;
    if (up)
        take_work(s.tile, TOGETHER, first, a.tiles, &hk, &tile), tile = a.tiles - 1 - tile;
    else
        take_work(s.tile - a.tiles * first, a.last, a.last, a.tiles, &hk, &tile), hk += first;
    const block_of b(a.cu, a.sequences, tile, OWN);
    const int keys = b.length + (int)a.offset;
    if (b.at >= keys) return;
    const walk w(a, b, hk, up);
    const int warpgroup = of_warp((int)threadIdx.x / 128);

    if (warpgroup == GROUPS) {
        registers_lower<24>();
        const int warp = (int)threadIdx.x % 128 / 32;
        if (threadIdx.x % 32 != 0) return;
        if (warp == 0)
            load_blocks<D>(a, s, b, w, hk, &q, &k, &v, &d_o);
        else
            add_blocks<D>(a, s, b, w, warp - 1);
        return;
    }

    registers_raise<240>();
    const int thread = (int)threadIdx.x % 128, lane = thread % 32, key = thread / 32 * 16 + lane / 4, two = lane % 4 * 2;
    const uint32_t own_k = shared_address(s.k) + warpgroup * B * 128, own_v = shared_address(s.v) + warpgroup * B * 128;
    const uint32_t columns = shared_address(s.k) + (D == 128 ? warpgroup * OWN * 128 : warpgroup * 64); /* of K, half of them */
    const uint32_t row_dx = shared_address(s.dx) + (warpgroup * B + thread / 32 * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    const int j0 = of_warp(b.at) + warpgroup * B, offset = (int)a.offset, window = (int)a.window;
    float dk[D / 2], dv[D / 2], x[32], dp[32], apart[D / 4];
    float(&dq)[D / 4] = D == 128 ? *(float(*)[D / 4]) & dp : apart; /* never there with dp, and 128 columns leave no room for both */
    uint32_t p[4][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) x[i] = dp[i] = 0.f;

    auto multiply_keys = [&](int t) { /* x: scores of step t */
        mbarrier_wait(&s.q_full[t % STAGES], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
        scores<D>(x, own_k, shared_address(s.q[t % STAGES]));
        wgmma_commit();
    };
    auto multiply_values = [&](int t) { /* dp of step t */
        mbarrier_wait(&s.d_full[t % STAGES], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
        scores<D>(dp, own_v, shared_address(s.d_o[t % STAGES]));
        wgmma_commit();
    };
    auto gather = [&](uint32_t at) { /* dq: this warpgroup's columns of dX K, dX at `at` */
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < OWN / 16; i++)
            wgmma<1, 1>(dq, wgmma_on(wgmma_mn_major(at, 0), i * 2048), wgmma_on(wgmma_mn_major(columns, 0), i * 2048), i > 0);
        wgmma_commit();
    };
    auto put = [&](int t) { /* dq of step t into shared memory */
        const int n = t % 2;
        mbarrier_wait(&s.dq_empty[n], (uint32_t)(t / 2 + 1) & 1);
#pragma unroll
        for (int i = 0; i < D / 16; i++) s.dq[n][warpgroup][i][thread] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    };
    auto hand_over = [&](int t) { /* what was put to the warp that adds it */
        fence_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&s.dq_full[t % ADDERS]);
    };
    const int steps = of_warp(w.left), begin = of_warp(w.begin), beyond = of_warp(w.beyond), step = of_warp(w.step);
    int i0 = begin;
    auto weigh = [&](int t) { /* x becomes P, and dv gets its share */
        const int stage = t % STAGES;
        float2 shift[8]; /* loaded while the product runs */
#pragma unroll
        for (int j = 0; j < 8; j++) shift[j] = *(const float2 *)&s.shift[stage][8 * j + two];
        wgmma_wait<1>();
        wgmma_hold(x);
        if (i0 + offset < j0 + B - 1 || (window > 0 && i0 + B - 1 + offset - j0 >= window)) {
            const int ahead = i0 + two + offset - (j0 + key);
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!sees(window, ahead + i / 4 * 8 + i % 2 - i / 2 % 2 * 8)) x[i] = -INFINITY;
        }
        i0 = i0 + step == beyond ? begin : i0 + step;
#pragma unroll
        for (int i = 0; i < 32; i++) x[i] = fast_exp2(x[i] * a.scale2 - (i % 2 ? shift[i / 4].y : shift[i / 4].x));
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma_operand(p[j], x, j);
        if (t > 1) hand_over(t - 2);
        wgmma_fence();
        collect<D>(dv, p, shared_address(s.d_o[stage]));
        wgmma_commit();
    };
    auto differ = [&](int t) { /* x becomes dX, and dk gets its share */
        const int stage = t % STAGES;
        float2 delta[8];
#pragma unroll
        for (int j = 0; j < 8; j++) delta[j] = *(const float2 *)&s.delta[stage][8 * j + two];
        wgmma_wait<1>();
        wgmma_hold(dp);
#pragma unroll
        for (int i = 0; i < 32; i++) x[i] = x[i] * (dp[i] - (i % 2 ? delta[i / 4].y : delta[i / 4].x));
        if (t > 1) mbarrier_wait(&s.empty[(t - 1) % STAGES], (uint32_t)((t - 1) / STAGES) & 1); /* the other warpgroup has read dX of t-2 */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t dx[4];
            wgmma_operand(dx, x, j);
            store_matrices((row_dx + t % 2 * OWN * 128) ^ (j << 5), dx);
        }
        fence_async();
        named_sync(1 + warpgroup, 128);
        if (thread == 0) mbarrier_arrive(&s.dx_full[t % 2]);
        wgmma_fence();
        const uint32_t at = shared_address(s.dx[t % 2]) + warpgroup * B * 128;
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<0, 1>(dk, wgmma_on(wgmma_k_major(at), i * 32), wgmma_on(wgmma_mn_major(shared_address(s.q[stage]), B * 128), i * 2048), true);
        wgmma_commit();
    };
    if (steps > 0) {
        mbarrier_wait(&s.k_full, 0);
        multiply_keys(0);
        mbarrier_wait(&s.v_full, 0);
        multiply_values(0);
        weigh(0);
        differ(0);
        for (int t = 1; t < steps; t++) {
            if (t > 1) mbarrier_wait(&s.dx_full[t % 2], (uint32_t)((t - 2) / 2) & 1);
            gather(t > 1 ? shared_address(s.dx[t % 2]) : own_k); /* of t-2; of nothing in the first step */
            multiply_keys(t);
            wgmma_wait<1>();
            wgmma_hold(dq);
            mbarrier_arrive(&s.empty[(t - 1) % STAGES]); /* each thread: racecheck does not follow __syncwarp and one arrival */
            if (t > 1) put(t - 2);
            multiply_values(t);
            weigh(t);
            differ(t);
        }
        wgmma_wait<0>();
        for (int t = steps > 1 ? steps - 2 : 0; t < steps; t++) {
            mbarrier_wait(&s.dx_full[t % 2], (uint32_t)(t / 2) & 1);
            gather(shared_address(s.dx[t % 2]));
            wgmma_wait<0>();
            wgmma_hold(dq);
            put(t);
            hand_over(t);
        }
    }
    wgmma_hold(dk);
    wgmma_hold(dv);
    const int64_t ld = (int64_t)a.Hk * D, to = ((int64_t)(b.first + j0) * a.Hk + hk) * D;
    char *const rows = (char *)s.v + warpgroup * B * 128;
    named_sync(1 + warpgroup, 128);
    if (a.dk) store_rows<D>(a.dk + to, ld, keys - j0, dk, a.scale, rows, OWN * 128);
    if (a.dv) store_rows<D>(a.dv + to, ld, keys - j0, dv, 1.f, rows, OWN * 128);
}

/* ---- dq ------------------------------------------------------------------------------------------------------------------------- */

template <int D> __global__ void __launch_bounds__(256) round_kernel(const __grid_constant__ problem a)
{
    __shared__ uint4 rows[B][D / 8 + 1];
    const block_of b(a.cu, a.sequences, blockIdx.x, B);
    if (b.at >= b.length) return;
    const int h = (int)blockIdx.y, thread = (int)threadIdx.x, lane = thread % 32, row = thread % 128 / 32 * 16 + lane / 4;
    const float4 *sums = (const float4 *)(a.sums + ((int64_t)h * a.blocks + blockIdx.x) * B * D) + thread / 128 * (D / 16) * 128 + thread % 128;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const float4 x = sums[i * 128];
        const int column = thread / 128 * (D / 4) + 4 * i + lane % 4;
        ((uint32_t *)rows[row])[column] = pack_bf16(x.x * a.scale, x.y * a.scale);
        ((uint32_t *)rows[row + 8])[column] = pack_bf16(x.z * a.scale, x.w * a.scale);
    }
    __syncthreads();
    for (int i = thread; i < B * D / 8; i += 256) {
        const int r = i / (D / 8);
        if (b.at + r < b.length) *((uint4 *)(a.dq + ((int64_t)(b.first + b.at + r) * a.Hq + h) * D) + i % (D / 8)) = rows[r][i % (D / 8)];
    }
}

/* ---- launching ------------------------------------------------------------------------------------------------------------------ */

inline int64_t row_blocks(const lnt_recur_args *r) { return r->Hq * blocks_of(r->tokens, r->sequences, B); }

template <int D> void launch(const lnt_recur_args *r, const CUtensorMap (&m)[4], cudaStream_t stream)
{
    problem a = {.o = (const bf16 *)r->o, .d_o = (const bf16 *)r->do_, .lse = (const float *)r->lse, .dq = (bf16 *)r->dq, .dk = (bf16 *)r->dk,
                 .dv = (bf16 *)r->dv, .sums = nullptr, .shift = nullptr, .delta = nullptr, .added = nullptr, .taken = nullptr,
                 .cu = r->cu_seqlens_device, .sequences = r->sequences, .offset = r->offset,
                 .window = r->window < r->tokens + r->offset ? r->window : 0, /* so that it fits 32 bits */
                 .blocks = blocks_of(r->tokens, r->sequences, B), .tiles = blocks_of(r->tokens + r->offset, r->sequences, OWN), .Hk = r->Hk,
                 .Hq = r->Hq, .last = r->Hk > 2 * TOGETHER ? TOGETHER : (r->Hk + 1) / 2, .scale = (float)r->scale,
                 .scale2 = (float)(r->scale * LNT_LOG2E)};
    const int64_t rows = row_blocks(r) * B;
    a.sums = (float *)r->workspace;
    a.shift = a.sums + rows * D;
    a.delta = a.shift + rows;
    a.added = (unsigned *)(a.delta + rows);
    a.taken = a.added + rows / B;
    const dim3 blocks((unsigned)a.blocks, (unsigned)a.Hq);
    rows_kernel<D><<<blocks, 256, 0, stream>>>(a);
    cudaFuncSetAttribute(products_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes<D>);
    products_kernel<D><<<(unsigned)(a.tiles * a.Hk), THREADS, shared_bytes<D>, stream>>>(a, m[0], m[1], m[2], m[3]);
    if (a.dq) round_kernel<D><<<blocks, 256, 0, stream>>>(a);
}

} // namespace

size_t lnt_attention_sm90_backward_bytes(const lnt_recur_args *a)
{
    return (size_t)(row_blocks(a) * (B * (a->K + 2) + 1) + 1) * sizeof(float);
}

bool lnt_attention_sm90_backward(const lnt_recur_args *a, const lnt_device *d)
{
    const int64_t wide = (int64_t)a->Hq * a->K;
    CUtensorMap m[4];
    if (a->tokens == 0 || !a->do_ || !map_inputs(a, m) || !lnt_matrix_map(&m[3], a->do_, a->tokens, wide, wide, B)) return false;
    if (a->K == 128)
        launch<128>(a, m, (cudaStream_t)d->stream);
    else
        launch<64>(a, m, (cudaStream_t)d->stream);
    return true;
}
