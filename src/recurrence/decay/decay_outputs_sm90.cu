/* The decay core's outputs on Hopper, values of 128 columns: o of the first line of decay_cuda.cuh's table, for mLSTM over D_t. A CTA has a segment
 * of a head, and its four warpgroups parts of their own, which meet at barriers in shared memory alone:
 *
 *   loads      q, k, v of a chunk as soon as a place is free, and the factors of four chunks at a time
 *   the state  S^T [128][D] in accumulators: a copy in bf16 (there are two) for those who read it, then S <- e^{b_n} S + sum_j write_j k_j v_j^T
 *   outputs    two groups by turns, a chunk each: P = q k^T, O = read . (q S) + (D . P) v, and out through the place of q
 *
 * What is serial is the state's way from chunk to chunk; pairs, exponentials and rows on their way out go beside it and beside each other.
 *
 *   floor: B1 T8192 H32 K=V=128: 0.268 GB, 64 us at 4.2 TB/s, 2.0 us a chunk of the 128 CTAs, in which products take 1536 cycles (0.9 us)
 *
 * Long: the four parts share barriers and the layout of shared memory. */
#include "recurrence/decay/decay_sm90.cuh"

namespace {

enum { LOADS, STATE, READS }; /* READS and the group behind it */
constexpr int E = 128, PARTS = 4, STATE_ROWS = E * 128 /* bytes: 64 columns of the state's copy */, OUTPUT_BARRIER = 1;

template <int D, bool DIVIDED> struct output_places {
    static constexpr int key = D / 64 * PANEL, value = 2 * key, n = value + E / 64 * PANEL, stage = n + (DIVIDED ? 1024 : 0);
    static constexpr int stages = D == 64 ? 4 : 3, copy = D / 64 * STATE_ROWS, state = stages * stage, factors = state + 2 * copy;
    static constexpr int barriers = factors + FACTORS * (int)sizeof(tile_factors), bytes = barriers + 8 * (2 * stages + 4) + 1024;
};

/* A CTA's place in memory and time. Barriers: a chunk's rows and factors are there, and done with, by stages; a copy of the state is there, and has
 * been read, by parity of the chunk. At stages all threads arrive: racecheck does not follow __syncwarp and one arrival. Of the copies, which
 * products alone read, it knows nothing: a lane of each warp. */
template <int D, bool DIVIDED> struct output_work {
    using place = output_places<D, DIVIDED>;
    decay_place at;
    int h, chunks, warp, lane;
    uint32_t base;
    tile_factors *factors;
    uint64_t *full, *empty, *ready, *taken;

    __device__ __forceinline__ int64_t start(int c) const { return at.first + (int64_t)c * C; }
    __device__ __forceinline__ uint32_t stage(int c) const { return base + (uint32_t)(c % place::stages * place::stage); }
    __device__ __forceinline__ uint32_t copy(int c) const { return base + (uint32_t)(place::state + (c & 1) * place::copy); }
    __device__ __forceinline__ void arrive(uint64_t *b) const
    {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(b);
    }
    __device__ __forceinline__ void await_rows(int c) const { mbarrier_wait(&full[c % place::stages], (uint32_t)(c / place::stages & 1)); }
    __device__ __forceinline__ void done(int c) const { mbarrier_arrive(&empty[c % place::stages]); }
};

/* A chunk's rows are under way while those before it are used, and its factors are made meanwhile. */
template <int D, bool GATED, bool DIVIDED>
__device__ __forceinline__ void load_rows(const decay_cut &x, const decay_pass &a, const output_work<D, DIVIDED> &w)
{
    using place = output_places<D, DIVIDED>;
    const decay_place &at = w.at;
    const panel_rows<D, GROUP> queries(a.query, x, at.first, w.h), keys(a.key, x, at.first, w.h);
    const panel_rows<E, GROUP> values(a.value, x, at.first, w.h);
    const float *n = DIVIDED ? a.n_starts + ((x.cu[at.n] / C + at.n + (at.first - x.cu[at.n]) / C) * x.Hv + w.h) * D : NULL;
    factors_ahead ahead;
    if (GATED && w.warp < w.chunks) ahead.ask(x, w.start(w.warp), at.last, w.h);
#pragma unroll 1
    for (int c = 0; c < w.chunks; c++) {
        const uint32_t stage = w.stage(c);
        const int64_t token = (int64_t)c * C, left = at.last - w.start(c);
        mbarrier_wait(&w.empty[c % place::stages], (uint32_t)(c / place::stages & 1) ^ 1);
        queries.load(stage, token, left);
        keys.load(stage + place::key, token, left);
        values.load(stage + place::value, token, left);
        if (DIVIDED && threadIdx.x < D / 4) cp_async_16(stage + place::n + threadIdx.x * 16, n + (int64_t)c * x.Hv * D + threadIdx.x * 4);
        cp_async_commit();
        if (GATED && (c & 3) == 0) { /* in the place of those of five chunks ago and earlier, whose rows have been replaced, too */
            const int mine = c + w.warp;
            if (mine < w.chunks) ahead.make(x, &w.factors[mine % FACTORS], w.start(mine), at.last, w.h, false);
            if (mine + 4 < w.chunks) {
                ahead.ask(x, w.start(mine + 4), at.last, w.h);
                if (!DIVIDED) strengths_ahead(x, w.start(mine + 4) + 2 * w.lane, at.last, w.h); /* mLSTM has none */
            }
        }
        cp_async_wait<0>();
        fence_async();
        __syncwarp(); /* without it the compiler spills at D = 128 */
        mbarrier_arrive(&w.full[c % place::stages]);
    }
}

template <int D, bool GATED, bool DIVIDED>
__device__ __forceinline__ void walk_states(const decay_cut &x, const decay_pass &a, const output_work<D, DIVIDED> &w)
{
    using place = output_places<D, DIVIDED>;
    const decay_place &at = w.at;
    float S[2][D / 2]; /* 64 columns of values each */
    const float *from = a.slots ? a.slots + (at.slot * x.Hv + w.h) * (D * E) : a.s ? a.s + (at.n * x.Hv + w.h) * (D * E) : NULL;
#pragma unroll
    for (int half = 0; half < 2; half++) each_number(S[half], [&](float &s, int e, int d) { s = from ? from[d * E + half * 64 + e] : 0.0f; });
#pragma unroll 1
    for (int c = 0; c < w.chunks; c++) {
        mbarrier_wait(&w.taken[c & 1], (uint32_t)(c >> 1 & 1) ^ 1);
#pragma unroll
        for (int half = 0; half < 2; half++) leave_state(S[half], lane_rows(w.copy(c), half * 64 + w.warp * 16), STATE_ROWS);
        fence_async();
        w.arrive(&w.ready[c & 1]);
        w.await_rows(c);
        const uint32_t key = w.stage(c) + place::key, value = w.stage(c) + place::value;
        const tile_factors &f = w.factors[c % FACTORS];
        uint32_t written[2][C / 16][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            take_written<GATED, GATED>(written[half], lane_columns(value + half * PANEL, w.warp), f.write, 1.0f);
            if (GATED) fade_state(S[half], f.total);
        }
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; half++) add_written(S[half], written[half], key);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(S[0]);
        wgmma_hold(S[1]);
        w.done(c);
    }
    if (!a.s_end || !at.ends) return;
    float *to = a.s_end + (at.n * x.Hv + w.h) * (D * E);
#pragma unroll
    for (int half = 0; half < 2; half++) each_number(S[half], [&](float &s, int e, int d) { to[d * E + half * 64 + e] = s; });
}

/* Every other chunk, from `turn` on. */
template <int D, bool GATED, bool DIVIDED>
__device__ __forceinline__ void put_outputs(const decay_cut &x, const decay_pass &a, const output_work<D, DIVIDED> &w, int turn,
                                            const unsigned char *memory)
{
    using place = output_places<D, DIVIDED>;
    const decay_place &at = w.at;
    const int row = w.warp * 16 + (w.lane >> 2);
#pragma unroll 1
    for (int c = turn; c < w.chunks; c += 2) {
        const uint32_t query = w.stage(c), key = query + place::key, value = query + place::value, staging = query + (uint32_t)(w.warp * 2048);
        const tile_factors &f = w.factors[c % FACTORS];
        float P[32], O[E / 2], before[2] = {}, by[2] = {}, m[2] = {};
        if (DIVIDED)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t mine = w.start(c) + row + half * 8;
                if (mine < at.last) m[half] = a.m[mine * x.Hv + w.h];
            }
        w.await_rows(c);
        wgmma_fence();
        times_rows<D>(P, query, key);
        wgmma_commit();
        if (DIVIDED) {
            row_sums<D>(before, query, (const float *)(memory + (query - w.base) + place::n));
            before[0] *= f.read[row], before[1] *= f.read[row + 8];
        }
        mbarrier_wait(&w.ready[c & 1], (uint32_t)(c >> 1 & 1));
        wgmma_fence();
        times_rows<D>(O, query, w.copy(c), STATE_ROWS);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(P);
        uint32_t pairs[4][4];
        float in_row[2];
        weigh_reads<GATED>(pairs, in_row, P, f, x.scale);
        if (DIVIDED) row_divisors(by, in_row, before, m, a.eps);
        wgmma_wait<0>();
        wgmma_hold(O);
        w.arrive(&w.taken[c & 1]);
        const float up = GATED ? f.read[row] : x.scale, down = GATED ? f.read[row + 8] : x.scale;
#pragma unroll
        for (int i = 0; i < E / 2; i++) O[i] *= i & 2 ? down : up;
        wgmma_fence();
#pragma unroll
        for (int ks = 0; ks < C / 16; ks++) wgmma<1>(O, pairs[ks], wgmma_mn_major(value + ks * 2048, PANEL), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(O);
        if (DIVIDED)
#pragma unroll
            for (int i = 0; i < E / 2; i++) O[i] *= by[i >> 1 & 1];
        named_sync(OUTPUT_BARRIER + turn, GROUP); /* all warps have read q */
        const int pitch = x.Hv * E, len = (int)(at.last - w.start(c) < C ? at.last - w.start(c) : C) - w.warp * 16;
        bf16 *to = (bf16 *)a.out + ((w.start(c) + w.warp * 16) * x.Hv + w.h) * E;
        if (a.out) {
            put_columns(O, 0, staging, to, pitch, len);
            put_columns(O, 32, staging + place::key - PANEL, to + 64, pitch, len);
        }
        w.done(c);
    }
}

template <int D, bool GATED, bool DIVIDED>
__global__ __launch_bounds__(PARTS *GROUP, 1) void decay_outputs(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    using place = output_places<D, DIVIDED>;
    output_work<D, DIVIDED> w;
    w.h = (int)(blockIdx.x % x.Hv);
    if (!a.slots || a.late) await_last(); /* else the kernel ahead makes those and nothing else: rows are under way meanwhile */
    if (!decay_find(x, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &w.at)) return await_last();
    w.chunks = (int)((w.at.last - w.at.first + C - 1) / C);
    w.warp = (int)threadIdx.x / 32 % 4, w.lane = (int)threadIdx.x % 32;
    w.base = (shared_address(memory) + 1023) & ~1023u;
    unsigned char *const from = memory + (w.base - shared_address(memory));
    w.factors = (tile_factors *)(from + place::factors);
    w.full = (uint64_t *)(from + place::barriers), w.empty = w.full + place::stages, w.ready = w.empty + place::stages, w.taken = w.ready + 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < place::stages; i++) mbarrier_init(&w.full[i], GROUP), mbarrier_init(&w.empty[i], 2 * GROUP);
        for (int i = 0; i < 2; i++) mbarrier_init(&w.ready[i], 4), mbarrier_init(&w.taken[i], 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    const int part = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);
    if (part == LOADS) {
        registers_lower<48>();
        load_rows<D, GATED>(x, a, w);
    } else if (part == STATE) {
        registers_raise<192>();
        await_last();
        let_next();
        walk_states<D, GATED>(x, a, w);
    } else {
        registers_raise<136>();
        await_last();
        put_outputs<D, GATED>(x, a, w, part - READS, from);
    }
}

template <int D, bool GATED, bool DIVIDED> void put_outputs(const decay_cut &x, const decay_pass &a, const lnt_cuda *d)
{
    if (decay_pieces(x) == 0) return;
    lnt_launch_with(d, decay_outputs<D, GATED, DIVIDED>, dim3((unsigned)decay_pieces(x)), PARTS * GROUP, output_places<D, DIVIDED>::bytes, 1, x, a);
}
template <int D> void put_outputs(const decay_cut &x, const decay_pass &a, const lnt_cuda *d)
{
    if (a.n_starts)
        put_outputs<D, true, true>(x, a, d);
    else
        decay_gated(x) ? put_outputs<D, true, false>(x, a, d) : put_outputs<D, false, false>(x, a, d);
}

} // namespace

void lnt_decay_outputs(const decay_cut &x, const decay_pass &a, const lnt_cuda *d)
{
    a.D == 64 ? put_outputs<64>(x, a, d) : put_outputs<128>(x, a, d);
}
