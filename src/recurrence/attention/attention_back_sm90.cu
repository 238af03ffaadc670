/* Softmax attention on Hopper, backward: bf16, K = V = 64 or 128. Equations: operators.md#attention, with P = 2^{c X - L'}, c = s log2 e,
 * L' = L log2 e:
 *
 *   rows pass    L' and delta = rowsum(dO.O), padded so that a block of 64 rows is one bulk copy; rows past a sequence's end get L' = inf, so P = 0
 *   keys pass    a CTA has 128 keys:  X^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dX^T Q,   dX = P.(dP - delta)
 *   query pass   a CTA has 128 rows:  X = Q K^T     dP = dO V^T     dQ += dX K
 *
 * Both passes make P anew: 7 products where one pass with a sum of dQ over CTAs needs 5, but every sum has one owner and one order, and
 * P and dX go from accumulators straight into the operands of the next product, never through shared memory. Two warpgroups multiply, 64 keys
 * (rows) each; a warp of the third keeps the copies STAGES blocks of 64 ahead. Products of block t run while block t+1's exponentials are made.
 *
 *   floor: B1 T8192 H32 K=V=128 causal, 7 products of 275 GFLOP: 2.44 ms at 790 TFLOP/s */
#include "recurrence/attention/attention_sm90.cuh"

namespace {

constexpr int GROUPS = 2, OWN = GROUPS * B, THREADS = 128 * (GROUPS + 1), STAGES = 2;

struct problem {
    const bf16 *o, *d_o;
    const float *lse;
    bf16 *dq, *dk, *dv;
    float *shift, *delta; /* [Hq, blocks 64]: L' and delta */
    const int64_t *cu;
    int64_t sequences, tokens, offset, window, blocks, tiles;
    int Hk, Hq;
    float scale, scale2;
};

/* ---- rows ----------------------------------------------------------------------------------------------------------------------- */

template <int D> __global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ problem a)
{
    constexpr int E = D / 32;
    const block_of b(a.cu, a.sequences, blockIdx.x, B);
    const int h = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const int64_t to = ((int64_t)h * a.blocks + blockIdx.x) * B;
    for (int r = (int)threadIdx.x / 32; r < B; r += 8) {
        float shift = INFINITY, delta = 0.f;
        if (b.at + r < b.length) {
            const int64_t row = (b.first + b.at + r) * a.Hq + h;
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

/* ---- pieces of both passes ------------------------------------------------------------------------------------------------------ */

/* Two operands of the CTA's own rows and STAGES pairs of blocks; [D/64] panels of rows of 64 columns, swizzled. */
template <int D> struct shared_of {
    bf16 own_x[D / 64][OWN][64], own_y[D / 64][OWN][64];
    bf16 x[STAGES][D / 64][B][64], y[STAGES][D / 64][B][64];
    float shift[STAGES][B], delta[STAGES][B];
    uint64_t own, full[STAGES], empty[STAGES];
};
template <int D> constexpr size_t shared_bytes = sizeof(shared_of<D>) + 1024;

template <int D> __device__ __forceinline__ shared_of<D> &shared_start(char *raw)
{
    shared_of<D> &s = *(shared_of<D> *)(raw + (1024 - shared_address(raw) % 1024) % 1024);
    if (threadIdx.x == 0) {
        mbarrier_init(&s.own, 1);
        for (int i = 0; i < STAGES; i++) mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], 128 * GROUPS);
        mbarrier_init_fence();
    }
    __syncthreads();
    return s;
}

/* The CTA's own rows of a warpgroup times a block of rows, transposed: d[64,64] = A[64,D] X[64,D]^T. */
template <int D> __device__ __forceinline__ void scores(float (&d)[32], uint32_t own, uint32_t x)
{
#pragma unroll
    for (int t = 0; t < D / 16; t++)
        wgmma<0, 0>(d, wgmma_k_major(own + t / 4 * OWN * 128 + t % 4 * 32), wgmma_k_major(x + t / 4 * B * 128 + t % 4 * 32), t > 0);
}
/* d[64,D] += P[64,64] X[64,D]. */
template <int D> __device__ __forceinline__ void collect(float (&d)[D / 2], const uint32_t (&p)[4][4], uint32_t x)
{
#pragma unroll
    for (int t = 0; t < 4; t++) wgmma<1>(d, p[t], wgmma_mn_major(x + t * 2048, B * 128), true);
}

/* ---- keys ----------------------------------------------------------------------------------------------------------------------- */

/* Blocks of rows that see some of the tile's keys. */
struct row_blocks {
    int64_t from, count;
    __device__ row_blocks(const problem &a, const block_of &b)
    {
        const int64_t low = b.at - a.offset, until = a.window > 0 ? b.at + OWN - 1 + a.window - a.offset : b.length;
        from = low > 0 ? low / B * B : 0;
        count = (until < b.length ? until : b.length) - from;
        count = count > 0 ? (count + B - 1) / B : 0;
    }
};

/* dk and dv of 128 keys of a head. Long: the warp that loads and the warpgroups that multiply meet at the same barriers, and dk, dv and the
 * scores stay in registers from step to step. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    keys_kernel(const __grid_constant__ problem a, const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o)
{
    extern __shared__ char raw[];
    shared_of<D> &s = shared_start<D>(raw);
    int hk;
    int64_t tile;
    take_work(a.Hk, a.tiles, &hk, &tile);
    const block_of b(a.cu, a.sequences, tile, OWN);
    const int64_t keys = b.length + a.offset;
    if (b.at >= keys) return;
    const row_blocks rows(a, b);
    const int group = a.Hq / a.Hk, warpgroup = (int)threadIdx.x / 128;
    const int64_t steps = rows.count * group;

    if (warpgroup == GROUPS) {
        registers_lower<24>();
        if (threadIdx.x != GROUPS * 128) return;
        mbarrier_expect(&s.own, 2 * OWN * D * 2);
        load_rows<D>(&s.own_x[0][0][0], &k, &s.own, hk, b.first + b.at, GROUPS);
        load_rows<D>(&s.own_y[0][0][0], &v, &s.own, hk, b.first + b.at, GROUPS);
        int64_t t = 0;
        for (int h = hk * group; h < (hk + 1) * group; h++)
            for (int64_t j = 0; j < rows.count; j++, t++) {
                const int stage = (int)(t % STAGES);
                const int64_t i0 = rows.from + j * B, at = ((int64_t)h * a.blocks + b.first / B + b.n) * B + i0;
                mbarrier_wait(&s.empty[stage], (uint32_t)(t / STAGES + 1) & 1);
                mbarrier_expect(&s.full[stage], 2 * B * D * 2 + 2 * B * 4);
                load_rows<D>(&s.x[stage][0][0][0], &q, &s.full[stage], h, b.first + i0, 1);
                load_rows<D>(&s.y[stage][0][0][0], &d_o, &s.full[stage], h, b.first + i0, 1);
                bulk_load(s.shift[stage], a.shift + at, B * 4, &s.full[stage]);
                bulk_load(s.delta[stage], a.delta + at, B * 4, &s.full[stage]);
            }
        return;
    }

    registers_raise<240>();
    const int lane = (int)threadIdx.x % 32, key = (int)threadIdx.x % 128 / 32 * 16 + lane / 4, two = lane % 4 * 2;
    const uint32_t own_k = shared_address(s.own_x) + warpgroup * B * 128, own_v = shared_address(s.own_y) + warpgroup * B * 128;
    const int64_t j0 = b.at + warpgroup * B;
    float dk[D / 2], dv[D / 2], x[32], dp[32];
    uint32_t p[4][4], dx[4][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0.f;
    mbarrier_wait(&s.own, 0);
    int64_t i0 = rows.from, left = rows.count;
    /* Registers hold dK, dV, X and dP of one block, P or dX rounded: no room for the next block's. Four products are put one by one as their operands
     * come up, so that the tensor cores always have the one before. */
    for (int64_t t = 0; t < steps; t++) {
        const int stage = (int)(t % STAGES);
        const uint32_t at_x = shared_address(s.x[stage]), at_y = shared_address(s.y[stage]);
        mbarrier_wait(&s.full[stage], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
        scores<D>(x, own_k, at_x);
        wgmma_commit();
        wgmma_wait<1>(); /* the block before is done */
        if (t > 0) mbarrier_arrive(&s.empty[(t - 1) % STAGES]);
        wgmma_fence();
        scores<D>(dp, own_v, at_y);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(x);
        if (i0 + a.offset < j0 + B - 1 || (a.window > 0 && i0 + B - 1 + a.offset - j0 >= a.window)) {
            const int64_t ahead = i0 + two + a.offset - (j0 + key);
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!sees(a.window, ahead + i / 4 * 8 + i % 2 - i / 2 % 2 * 8)) x[i] = -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 shift = *(const float2 *)&s.shift[stage][8 * j + two];
#pragma unroll
            for (int i = 0; i < 4; i++) x[4 * j + i] = fast_exp2(x[4 * j + i] * a.scale2 - (i % 2 ? shift.y : shift.x));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma_operand(p[j], x, j);
        wgmma_fence();
        collect<D>(dv, p, at_y);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(dp);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 delta = *(const float2 *)&s.delta[stage][8 * j + two];
#pragma unroll
            for (int i = 0; i < 4; i++) dp[4 * j + i] = x[4 * j + i] * (dp[4 * j + i] - (i % 2 ? delta.y : delta.x));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma_operand(dx[j], dp, j);
        wgmma_fence();
        collect<D>(dk, dx, at_x);
        wgmma_commit();
        i0 += B;
        if (--left == 0) i0 = rows.from, left = rows.count;
    }
    wgmma_wait<0>();
    wgmma_hold(dk);
    wgmma_hold(dv);
    const int64_t ld = (int64_t)a.Hk * D, to = ((b.first + j0) * a.Hk + hk) * D;
    if (a.dk) store_rows<D>(a.dk + to, ld, keys - j0, dk, a.scale);
    if (a.dv) store_rows<D>(a.dv + to, ld, keys - j0, dv, 1.f);
}

/* ---- queries -------------------------------------------------------------------------------------------------------------------- */

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    queries_kernel(const __grid_constant__ problem a, const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o)
{
    extern __shared__ char raw[];
    shared_of<D> &s = shared_start<D>(raw);
    int h;
    int64_t tile;
    take_work(a.Hq, a.tiles, &h, &tile);
    const block_of b(a.cu, a.sequences, a.tiles - 1 - tile, OWN); /* late rows see most keys: first */
    if (b.at >= b.length) return;
    const int hk = h / (a.Hq / a.Hk), warpgroup = (int)threadIdx.x / 128;
    const key_blocks seen(b, a.offset, a.window, OWN, B);
    const int64_t from = seen.from, steps = seen.count;

    if (warpgroup == GROUPS) {
        registers_lower<24>();
        if (threadIdx.x != GROUPS * 128) return;
        mbarrier_expect(&s.own, 2 * OWN * D * 2);
        load_rows<D>(&s.own_x[0][0][0], &q, &s.own, h, b.first + b.at, GROUPS);
        load_rows<D>(&s.own_y[0][0][0], &d_o, &s.own, h, b.first + b.at, GROUPS);
        for (int64_t t = 0; t < steps; t++) {
            const int stage = (int)(t % STAGES);
            mbarrier_wait(&s.empty[stage], (uint32_t)(t / STAGES + 1) & 1);
            mbarrier_expect(&s.full[stage], 2 * B * D * 2);
            load_rows<D>(&s.x[stage][0][0][0], &k, &s.full[stage], hk, b.first + from + t * B, 1);
            load_rows<D>(&s.y[stage][0][0][0], &v, &s.full[stage], hk, b.first + from + t * B, 1);
        }
        return;
    }

    registers_raise<240>();
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % 128 / 32 * 16 + lane / 4, two = lane % 4 * 2;
    const uint32_t own_q = shared_address(s.own_x) + warpgroup * B * 128, own_d = shared_address(s.own_y) + warpgroup * B * 128;
    const int64_t i0 = b.at + warpgroup * B;
    float dq[D / 2], x[32], dp[32], shift[2], delta[2];
    uint32_t dx[4][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool real = i0 + row + 8 * i < b.length;
        const int64_t at = ((int64_t)h * a.blocks + b.first / B + b.n) * B + i0 + row + 8 * i;
        shift[i] = real ? a.shift[at] : INFINITY;
        delta[i] = real ? a.delta[at] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) dq[i] = 0.f;
    mbarrier_wait(&s.own, 0);
    auto multiply = [&](int64_t t) { /* x and dp of block t */
        const int stage = (int)(t % STAGES);
        mbarrier_wait(&s.full[stage], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
        scores<D>(x, own_q, shared_address(s.x[stage]));
        scores<D>(dp, own_d, shared_address(s.y[stage]));
        wgmma_commit();
    };
    auto weigh = [&](int64_t t) { /* dp becomes dX */
        const int64_t j0 = from + t * B;
        wgmma_hold(x);
        wgmma_hold(dp);
        if (j0 + B - 1 > i0 + a.offset || (a.window > 0 && i0 + B - 1 + a.offset - j0 >= a.window)) {
            const int64_t ahead = i0 + row + a.offset - (j0 + two);
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!sees(a.window, ahead + i / 2 % 2 * 8 - i / 4 * 8 - i % 2)) x[i] = -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < 32; i++) dp[i] = fast_exp2(x[i] * a.scale2 - shift[i / 2 % 2]) * (dp[i] - delta[i / 2 % 2]);
    };
    auto round_it = [&] {
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma_operand(dx[j], dp, j);
    };
    auto gather = [&](int64_t t) {
        wgmma_fence();
        collect<D>(dq, dx, shared_address(s.x[t % STAGES]));
        wgmma_commit();
    };
    multiply(0);
    wgmma_wait<0>();
    weigh(0);
    round_it();
    for (int64_t t = 1; t < steps; t++) {
        multiply(t);
        gather(t - 1);
        wgmma_wait<1>();
        weigh(t);
        wgmma_wait<0>();
        wgmma_hold(dq);
        mbarrier_arrive(&s.empty[(t - 1) % STAGES]);
        round_it();
    }
    gather(steps - 1);
    wgmma_wait<0>();
    wgmma_hold(dq);
    store_rows<D>(a.dq + ((b.first + i0) * a.Hq + h) * D, (int64_t)a.Hq * D, b.length - i0, dq, a.scale);
}

/* ---- launching ------------------------------------------------------------------------------------------------------------------ */

template <int D> void launch(const lnt_recur_args *r, const CUtensorMap (&m)[4], cudaStream_t stream)
{
    problem a = {.o = (const bf16 *)r->o, .d_o = (const bf16 *)r->do_, .lse = (const float *)r->lse, .dq = (bf16 *)r->dq, .dk = (bf16 *)r->dk,
                 .dv = (bf16 *)r->dv, .shift = nullptr, .delta = nullptr, .cu = r->cu_seqlens_device, .sequences = r->sequences, .tokens = r->tokens,
                 .offset = r->offset, .window = r->window, .blocks = blocks_of(r->tokens, r->sequences, B), .tiles = 0, .Hk = r->Hk, .Hq = r->Hq,
                 .scale = (float)r->scale, .scale2 = (float)(r->scale * LNT_LOG2E)};
    a.shift = (float *)r->workspace;
    a.delta = a.shift + a.Hq * a.blocks * B;
    rows_kernel<D><<<dim3((unsigned)a.blocks, (unsigned)a.Hq), 256, 0, stream>>>(a);
    if (a.dk || a.dv) {
        a.tiles = blocks_of(r->tokens + r->offset, r->sequences, OWN);
        cudaFuncSetAttribute(keys_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes<D>);
        keys_kernel<D><<<(unsigned)(a.tiles * a.Hk), THREADS, shared_bytes<D>, stream>>>(a, m[0], m[1], m[2], m[3]);
    }
    if (a.dq) {
        a.tiles = blocks_of(r->tokens, r->sequences, OWN);
        cudaFuncSetAttribute(queries_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes<D>);
        queries_kernel<D><<<(unsigned)(a.tiles * a.Hq), THREADS, shared_bytes<D>, stream>>>(a, m[0], m[1], m[2], m[3]);
    }
}

} // namespace

size_t lnt_attention_sm90_backward_bytes(const lnt_recur_args *a)
{
    return (size_t)(2 * a->Hq * blocks_of(a->tokens, a->sequences, B) * B) * sizeof(float);
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
