/* The chain of chunk states on Hopper with 128 keys, the read-out by a warpgroup of its own. Equations as in delta_chain.cuh, of which
 *
 *   Z^T = beta.V^T - (beta e).(S^T K^T)    U^T = Z^T T^T    S'^T = e_n S^T + (l.U^T) K           is the state's, one warpgroup for 64 columns of V,
 *   O = s e.(Q S) + P U                                                                          the reader's, one warpgroup for all of a CTA's
 *
 * The state's warpgroup is what a step takes its time from, in a row of three products: everything else of it stands beside one of them, and S and U
 * go to the reader as bf16 tiles, K-major right operands of its products, which it reads while the chain goes on. One more warpgroup loads, into two
 * rings: K, T, V for the state, Q, P for the reader, who is a chunk behind. O goes out through the place of its Q. */
#ifndef LNT_DELTA_CHAIN_SM90_CUH
#define LNT_DELTA_CHAIN_SM90_CUH

#include "device/wgmma.cuh"
#include "recurrence/delta/delta_chain.cuh"

namespace {

/* What a stage of the reader's ring holds, in bytes from its start; O later stands at q, panels of 64 columns. */
template <int K> struct read_stage {
    static constexpr uint32_t q = 0, p = K / 64 * TILE, e = p + TILE, bytes = e + 1024;
};

/* Shared memory. Tiles that are handed over: S [K/64 panels][64 NV columns of V][64 keys], U [64 NV columns][64 tokens], `hands` of each: with one
 * the chain waits, before it makes the next state, for the reader to have read this one. A segment's start has its transitions in their place. */
template <int K, int NV> struct shared_of {
    using L = stage<K, NV, false>;
    using R = read_stage<K>;
    static constexpr int hands = NV == 1 ? 2 : 1;
    static constexpr uint32_t state = K / 64 * NV * TILE, writes = NV * TILE, hand = state + writes;
    uint32_t stages, reads, handed;                            /* the rings; the tiles */
    uint32_t full, empty, read_full, read_empty;               /* barriers of the rings */
    uint32_t state_full, writes_full, state_read;              /* of the tiles: [hands] each */
    int count, read_count;

    static __host__ __device__ int hand_bytes(bool segments)
    {
        const int out = hands * (int)hand, in = segments ? NV * K * K * 2 : 0;
        return out > in ? out : in;
    }
    static __host__ int bytes(int count, int read_count, bool segments)
    {
        return 2048 + count * (int)L::bytes + read_count * (int)R::bytes + hand_bytes(segments);
    }
};

template <int K, int NV> __device__ __forceinline__ shared_of<K, NV> make_shared(const uint8_t *at, const lnt_delta_chain &p)
{
    using M = shared_of<K, NV>;
    M m;
    m.count = p.stages;
    m.read_count = p.read_stages;
    m.stages = (shared_address(at) + 1023) & ~1023u;
    m.reads = m.stages + m.count * M::L::bytes;
    m.handed = m.reads + m.read_count * M::R::bytes;
    m.full = m.handed + M::hand_bytes(p.segments > 1);
    m.empty = m.full + 8 * m.count;
    m.read_full = m.empty + 8 * m.count;
    m.read_empty = m.read_full + 8 * m.read_count;
    m.state_full = m.read_empty + 8 * m.read_count;
    m.writes_full = m.state_full + 8 * M::hands;
    m.state_read = m.writes_full + 8 * M::hands;
    if (threadIdx.x == 0) {
        for (int s = 0; s < m.count; s++) {
            barrier_init(m.full + 8 * s, GROUP);
            barrier_init(m.empty + 8 * s, NV * GROUP);
        }
        for (int s = 0; s < m.read_count; s++) {
            barrier_init(m.read_full + 8 * s, GROUP);
            barrier_init(m.read_empty + 8 * s, GROUP);
        }
        for (int s = 0; s < M::hands; s++) {
            barrier_init(m.state_full + 8 * s, NV * GROUP);
            barrier_init(m.writes_full + 8 * s, NV * GROUP);
            barrier_init(m.state_read + 8 * s, GROUP);
        }
        async_proxy_fence();
    }
    __syncthreads();
    return m;
}

/* One of so many places after the other: which it is, and the parity of its barriers' phase. */
struct turn {
    int at = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next(int count)
    {
        if (++at == count) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* Where a lane has its row of the four 8x8 matrices of a left operand's 16 columns, in a tile of rows of 128 bytes; 16 columns further: ^ 32. */
__device__ __forceinline__ uint32_t lane_in_left(int warp)
{
    const int lane = threadIdx.x & 31, row = lane & 15;
    return (16 * warp + row) * 128 + (((lane >> 4) ^ (row & 7)) << 4);
}

/* ---- the state's warpgroup ----------------------------------------------------------------------------------------------------------------- */

/* GATED: e, l and e_n are not all 1. */
template <int K, int NV, bool GATED> struct state_chain {
    using M = shared_of<K, NV>;
    using L = typename M::L;
    const lnt_delta_chain &p;
    const chain_work &w;
    const M &m;
    const int lane, warp, group, column;
    const uint32_t mine, lane_left; /* the warp's columns in a tile of V; the lane's place in the tiles that are handed over */
    turn stage_of, hand_of;
    float S[K / 64][32], Z[32], v[32]; /* v: beta V */
    uint32_t left[K / 16][4];          /* the state as left operands, also on its way to the reader */
    uint32_t raw[4][4];
    float2 beta[8], l[8];
    float last; /* e_n */

    __device__ state_chain(const lnt_delta_chain &p_, const chain_work &w_, const M &m_)
        : p(p_), w(w_), m(m_), lane(threadIdx.x & 31), warp(threadIdx.x / 32 % 4), group(threadIdx.x / GROUP), column(w_.column + 64 * group),
          mine(L::v + group * TILE + lane_transposed(warp)), lane_left(group * TILE + lane_in_left(warp))
    {
    }

    __device__ __forceinline__ uint32_t stage_at() const { return m.stages + stage_of.at * L::bytes; }

    /* What stands in front of a wait for products ptxas puts behind it where nothing else waits for it, but not behind a branch: here is one, never
     * taken, for this phase is complete. */
    __device__ __forceinline__ void stay() const { barrier_wait<true>(m.full + 8 * stage_of.at, stage_of.parity); }

    /* beta V of the chunk, laid out as Z: what it is made of, and it. */
    __device__ __forceinline__ void load_values()
    {
        const uint32_t at = stage_at();
#pragma unroll
        for (int j = 0; j < 4; j++) ldmatrix_x4_trans(raw[j], at + mine + j * 2048);
        load_factors(beta, at + L::f + 8 * (lane % 4));
        if constexpr (GATED) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(last) : "r"(at + L::f + 256 + 63 * 4) : "memory");
    }
    __device__ __forceinline__ void make_values()
    {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint32_t *x = raw[n / 2] + n % 2 * 2;
            v[4 * n] = beta[n].x * low_bf16(x[0]);
            v[4 * n + 1] = beta[n].y * high_bf16(x[0]);
            v[4 * n + 2] = beta[n].x * low_bf16(x[1]);
            v[4 * n + 3] = beta[n].y * high_bf16(x[1]);
        }
        pin(v);
    }

    /* Of S K the part of 64 keys of the state, put. */
    __device__ __forceinline__ void state_times_keys(int h)
    {
#pragma unroll
        for (int kk = 4 * h; kk < 4 * h + 4; kk++)
#pragma unroll
            for (int j = 0; j < 4; j++) left[kk][j] = pack_bf16(S[h][8 * (kk % 4) + 2 * j], S[h][8 * (kk % 4) + 2 * j + 1]);
        products_begin<true>();
#pragma unroll
        for (int kk = 4 * h; kk < 4 * h + 4; kk++) times_rows<true, false>(Z, left[kk], stage_at(), L::k + h * TILE, kk % 4, kk > 0);
        products_commit<true>();
    }

    /* From S K, put, to Z = U; the state goes to the reader and is left decayed. Ends when U, and later the next state, may be put where the
     * reader finds them (it has read the state that was `hands` before that one, and in front of it the U before) and, `again`, the next chunk is
     * there. */
    __device__ __forceinline__ void writes_of(bool again)
    {
        const uint32_t at = stage_at(), factors = at + L::f + 8 * (lane % 4), to = m.handed + hand_of.at * M::hand + lane_left;
        uint32_t z[4][4];
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) store_matrices((to + kk / 4 * NV * TILE) ^ (kk % 4 << 5), left[kk]);
        async_proxy_fence();
        barrier_arrive(m.state_full + 8 * hand_of.at);
        float2 be[8];
        load_factors(be, factors + 768);
        if constexpr (GATED) {
#pragma unroll
            for (int h = 0; h < K / 64; h++)
#pragma unroll
                for (int j = 0; j < 32; j++) S[h][j] *= last;
#pragma unroll
            for (int h = 0; h < K / 64; h++) pin(S[h]);
        }
        stay();
        products_wait<true, 0>();
        pin(Z);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                z[n / 2][n % 2 * 2 + j] =
                    pack_bf16(v[4 * n + 2 * j] - be[n].x * Z[4 * n + 2 * j], v[4 * n + 2 * j + 1] - be[n].y * Z[4 * n + 2 * j + 1]);
        products_begin<true>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows<true, true>(Z, z[kk], at, L::t, kk, kk > 0);
        products_commit<true>();
        if constexpr (GATED) load_factors(l, factors + 512);
        turn stage_next = stage_of, hand_next = hand_of;
        stage_next.next(m.count);
        hand_next.next(M::hands);
        uint32_t ready;
        do { /* of neither comes a further phase before this warpgroup goes on */
            ready = barrier_try<true>(m.state_read + 8 * hand_next.at, hand_next.parity ^ 1);
            if (again) ready &= barrier_try<true>(m.full + 8 * stage_next.at, stage_next.parity);
        } while (!ready);
        products_wait<true, 0>();
        pin(Z);
    }

    /* From Z = U to the next state, and AGAIN to S K of the next chunk, put; U goes to the reader. */
    template <bool AGAIN> __device__ __forceinline__ void next_state()
    {
        const uint32_t at = stage_at(), to = m.handed + hand_of.at * M::hand + M::state + lane_left;
        const uint32_t full = m.writes_full + 8 * hand_of.at, empty = m.empty + 8 * stage_of.at;
        uint32_t z[4][4], u[4][4];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u[n / 2][n % 2 * 2 + j] = pack_bf16(Z[4 * n + 2 * j], Z[4 * n + 2 * j + 1]);
                z[n / 2][n % 2 * 2 + j] = GATED ? pack_bf16(l[n].x * Z[4 * n + 2 * j], l[n].y * Z[4 * n + 2 * j + 1]) : u[n / 2][n % 2 * 2 + j];
            }
        products_begin<true>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) {
#pragma unroll
            for (int kk = 0; kk < 4; kk++) times_columns<true>(S[h], z[kk], at, L::k + h * TILE, kk, true);
            products_commit<true>();
        }
        if constexpr (AGAIN) {
            stage_of.next(m.count);
            hand_of.next(M::hands);
            load_values();
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) store_matrices(to ^ (kk << 5), u[kk]);
        async_proxy_fence();
        barrier_arrive(full);
        if constexpr (AGAIN) {
            make_values();
            stay();
            products_wait<true, 1>();
            pin(S[0]);
            state_times_keys(0); /* while the other half of the state is made */
            products_wait<true, 1>();
            pin(S[1]);
            barrier_arrive(empty);
            state_times_keys(1);
        } else {
            products_wait<true, 0>();
            pin(S[0]);
            pin(S[1]);
        }
    }

    __device__ __forceinline__ void run()
    {
        static_assert(K == 128, "two halves of the state");
        const int64_t state = (w.sequence * p.Hv + w.h) * K * p.V + column + 16 * warp;
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) S[h][j] = 0.f;
        if (p.s0) state_read<K>(S, p.s0 + state, p.V);
        if (p.segments > 1) segment_start<true, K, false>(S, p, w, column + 16 * warp, m.handed + group * K * K * 2);
        if (w.chunks > 0) {
            if (NV > 1 && p.segments > 1) named_sync(NV + 2, NV * GROUP); /* the others' transitions stand where these tiles come */
            barrier_wait<true>(m.full, 0);
            load_values();
            make_values();
            state_times_keys(0);
            state_times_keys(1);
            writes_of(w.chunks > 1);
            for (int i = 1; i < w.chunks; i++) { /* turns where no product is under way */
                next_state<true>();
                writes_of(i + 1 < w.chunks);
            }
            next_state<false>();
        }
        if (p.sT && w.segment == p.segments - 1) state_write<K>(S, p.sT + state, p.V);
    }
};

/* ---- the reader's ----------------------------------------------------------------------------------------------------------------------------- */

template <int K, int NV> __device__ __forceinline__ void read_out(const lnt_delta_chain &p, const chain_work &w, const shared_of<K, NV> &m)
{
    using M = shared_of<K, NV>;
    using R = typename M::R;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, row = lane / 8, piece = lane % 8;
    const int64_t stride = (int64_t)p.Hv * p.V;
    bf16 *o = p.o + (w.token + 16 * warp + row) * stride + w.h * p.V + w.column + piece * 8;
    int left = (int)(w.end - w.token) - 16 * warp - row;
    const uint32_t to = R::q + lane_in_left(warp), from = R::q + (16 * warp + row) * 128, factor = R::e + (16 * warp + lane / 4) * 4;
    turn stage_of, hand_of;
    for (int i = 0; i < w.chunks; i++) {
        const uint32_t at = m.reads + stage_of.at * R::bytes, S = m.handed + hand_of.at * M::hand, U = S + M::state;
        float O[32 * NV];
        barrier_wait<true>(m.read_full + 8 * stage_of.at, stage_of.parity);
        barrier_wait<true>(m.state_full + 8 * hand_of.at, hand_of.parity);
        products_begin<true>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
            ::wgmma<0, 0>(O, describe(at, R::q + kk / 4 * TILE + kk % 4 * 32), describe(S, kk / 4 * NV * TILE + kk % 4 * 32), kk > 0);
        products_commit<true>();
        float e[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(e[j]) : "r"(at + factor + 32 * j) : "memory");
            e[j] *= p.scale;
        }
        products_wait<true, 0>();
        pin(O);
        barrier_arrive(m.state_read + 8 * hand_of.at);
#pragma unroll
        for (int j = 0; j < 32 * NV; j++) O[j] *= e[j >> 1 & 1];
        barrier_wait<true>(m.writes_full + 8 * hand_of.at, hand_of.parity);
        products_begin<true>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) ::wgmma<0, 0>(O, describe(at, R::p + kk * 32), describe(U, kk * 32), true);
        products_commit<true>();
        products_wait<true, 0>();
        pin(O);
        named_sync(NV + 1, GROUP); /* all of Q has been read */
#pragma unroll
        for (int j = 0; j < 4 * NV; j++) {
            uint32_t x[4];
            wgmma_operand(x, O, j);
            store_matrices((at + to + j / 4 * TILE) ^ (j % 4 << 5), x);
        }
        __syncwarp();
#pragma unroll
        for (int b = 0; b < NV; b++) {
            uint4 x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = load_shared_16(at + from + b * TILE + j * 512 + ((piece ^ (row + 4 * (j & 1))) << 4));
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (4 * j < left) *(uint4 *)(o + 4 * j * stride + 64 * b) = x[j];
        }
        barrier_arrive(m.read_empty + 8 * stage_of.at);
        o += C * stride;
        left -= C;
        stage_of.next(m.read_count);
        hand_of.next(M::hands);
    }
}

/* ---- the loads' ------------------------------------------------------------------------------------------------------------------------------- */

/* Q, P and e of a chunk, as `loader` loads the rest. */
template <int K> struct read_loader {
    using R = read_stage<K>;
    static constexpr int PER = K / 8, STEP = GROUP / PER;
    const bf16 *q, *p;
    const float *e;
    int64_t row;
    uint32_t q_to, p_to;
    int left, heads, tid;

    __device__ read_loader(const lnt_delta_chain &c, const chain_work &w, int tid_) : tid(tid_)
    {
        const int q_row = tid / PER, q_piece = tid % PER, p_row = tid / 8, p_piece = tid % 8;
        const int64_t item = (int64_t)w.chunk * c.Hv + w.h;
        row = (int64_t)c.Hq * K;
        q = c.q + (w.token + q_row) * row + w.h / (c.Hv / c.Hq) * K + q_piece * 8;
        p = c.P + item * (C * C) + p_row * C + p_piece * 8;
        e = c.F + item * (4 * C) + C + tid % 16 * 4;
        q_to = R::q + (q_piece >> 3) * TILE + q_row * 128 + (((q_piece & 7) ^ (q_row & 7)) << 4);
        p_to = R::p + p_row * 128 + ((p_piece ^ (p_row & 7)) << 4);
        left = (int)(w.end - w.token) - q_row;
        heads = c.Hv;
    }
    __device__ __forceinline__ void load(uint32_t at)
    {
        const int above = tid % 8 - tid / 64;
#pragma unroll
        for (int j = 0; j < C / STEP; j++) {
            const bool in = j * STEP < left;
            cp_async_16(at + q_to + j * STEP * 128, in ? q + j * STEP * row : q, in);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) cp_async_16(at + p_to + j * 2048, p + 16 * j * C, 2 * j >= above); /* zeros right of the diagonal */
        if (tid < 16) cp_async_16(at + R::e + tid * 16, e);
        q += C * row;
        p += heads * (C * C);
        e += heads * (4 * C);
        left -= C;
    }
};

/* Until T, P and F of a chunk are there, where they are made beside the chain. */
__device__ __forceinline__ void wait_for_chunk(const lnt_delta_chain &p, int chunk)
{
    unsigned done;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(p.done + chunk) : "memory");
    } while (done != p.done_all);
}

/* All loads but the last LEFT have come; barriers that are 0 are none. */
template <int LEFT> __device__ __forceinline__ void hand_over_both(uint32_t full, uint32_t read_full)
{
    if (!full && !read_full) return;
    cp_async_wait<LEFT>();
    async_proxy_fence();
    if (full) barrier_arrive(full);
    if (read_full) barrier_arrive(read_full);
}
/* What is put together: a chunk of the state's, and of the reader's the one before it. It is handed over when the next has been put; at once where
 * there are two stages, for the state's warpgroup waits for a chunk with the stage of the one before it in hand. */
template <int K, int NV> __device__ __forceinline__ void load_both(const lnt_delta_chain &p, const chain_work &w, const shared_of<K, NV> &m)
{
    using M = shared_of<K, NV>;
    const int tid = (int)threadIdx.x % GROUP;
    loader<K, NV, false, false> state(p, w, p.v, tid);
    read_loader<K> reader(p, w, tid);
    turn s, r;
    uint32_t full = 0, read_full = 0; /* barriers of what was put last */
    const bool behind_one = m.count > 2;
    for (int i = 0; i <= w.chunks; i++) {
        uint32_t next = 0, read_next = 0;
        if (i < w.chunks) {
            if (p.done) wait_for_chunk(p, w.chunk + i);
            barrier_wait<true>(m.empty + 8 * s.at, s.parity ^ 1);
            state.load(m.stages + s.at * M::L::bytes);
            next = m.full + 8 * s.at;
            s.next(m.count);
        }
        if (i > 0) {
            barrier_wait<true>(m.read_empty + 8 * r.at, r.parity ^ 1);
            reader.load(m.reads + r.at * M::R::bytes);
            read_next = m.read_full + 8 * r.at;
            r.next(m.read_count);
        }
        cp_async_commit();
        if (behind_one) {
            hand_over_both<1>(full, read_full);
            full = next;
            read_full = read_next;
        } else {
            hand_over_both<0>(next, read_next);
        }
    }
    if (behind_one) hand_over_both<0>(full, read_full);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------------------------------------- */

/* Registers of a thread: 65,536 for three warpgroups, or four. */
template <int K, int NV, bool GATED>
__global__ __launch_bounds__(GROUP *(NV + 2), 1) void read_chain_kernel(const __grid_constant__ lnt_delta_chain p)
{
    extern __shared__ uint8_t shared[];
    const shared_of<K, NV> m = make_shared<K, NV>(shared, p);
    if (!p.done) wait_for_prior();
    let_next_begin();
    const chain_work w = work_of<NV, false>(p, blockIdx.x);
    const int group = threadIdx.x / GROUP;
    if (group < NV) {
        registers_raise<NV == 1 ? 240 : 184>();
        state_chain<K, NV, GATED> x(p, w, m);
        x.run();
    } else if (group == NV) {
        registers_lower<NV == 1 ? 128 : 104>();
        read_out<K, NV>(p, w, m);
    } else {
        registers_lower<40>();
        load_both<K, NV>(p, w, m);
        if (p.done) wait_for_prior(); /* it is as good as over: the kernel ends after the one ahead */
    }
}

/* Three stages of each ring where there is room, the state's first; two otherwise. */
template <int K, int NV, bool GATED> void launch_read(lnt_delta_chain p, const lnt_cuda *d)
{
    using M = shared_of<K, NV>;
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    auto bytes = [&] { return M::bytes(p.stages, p.read_stages, p.segments > 1); };
    p.stages = p.read_stages = 2;
    if (p.stages++, bytes() > most) p.stages--;
    if (p.read_stages++, bytes() > most) p.read_stages--;
    lnt_delta_put(read_chain_kernel<K, NV, GATED>, p, chain_ctas<NV, false>(p), GROUP * (NV + 2), bytes(), 1, true, d);
}

template <int K> void launch_read(const lnt_delta_chain &p, const lnt_cuda *d)
{
    if (p.wide)
        p.gated ? launch_read<K, 2, true>(p, d) : launch_read<K, 2, false>(p, d);
    else
        p.gated ? launch_read<K, 1, true>(p, d) : launch_read<K, 1, false>(p, d);
}

} // namespace

#endif
