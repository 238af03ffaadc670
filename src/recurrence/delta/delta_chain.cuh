/* The chain of chunk states, one CTA per (sequence or segment, value head, 64 NV columns of V): what is serial in the delta core, with the read-out
 * fused. Written once; the products are wgmma on Hopper and mma.sync elsewhere, whose fragments are laid out alike.
 *
 * Columns of V are independent of each other. So the state is held transposed, S^T [64 columns of V][K] in the float32 accumulators of one
 * warpgroup, 16 columns of V a warp, and every product of the chain has it, Z^T or U^T on the left, from registers, and a tile of tokens in shared
 * memory on the right: nothing passes from warp to warp, and there is no barrier in the chain but those of the loads.
 *
 *   Z^T = beta.(V^T - e.(S^T K^T))    U^T = Z^T T^T    O^T = s e.(S^T Q^T) + U^T P^T    S'^T = e_n S^T + (l.U^T) K       (columns are tokens)
 *
 * Without gates e, l and e_n are 1. One more warpgroup loads K, V, T, and with READ Q, P, `stages` chunks ahead, and carries O out. */
#ifndef LNT_DELTA_CHAIN_CUH
#define LNT_DELTA_CHAIN_CUH

#include "recurrence/delta/delta_parts.cuh"

namespace {

/* The chain of a CTA's chunks, by one warpgroup for its 64 columns. Products of a chunk, in the order in which they are put: S K, S Q, Z T, U K, U P;
 * the next chunk's S K is put before the last of them is waited for, so that what leaves (O) is carried out in its shadow. */
template <bool HOPPER, int K, int NV, bool READ, bool GATED> struct chain {
    using L = stage<K, NV, READ>;
    const lnt_delta_chain &p;
    const chain_work &w;
    const ring_of &ring;
    const int lane, warp, group, column;
    const uint32_t stash, u_stash; /* the warp's images [K][16] of the state and [64][16] of the writes; with READ a tile of O in their place */
    const uint32_t mine; /* the warp's columns in a tile of tokens, as ldmatrix transposes them to an A of 16 columns of V and 16 tokens */
    int s = 0;
    uint32_t parity = 0, taken = 1; /* taken: of the barrier that says that the tile of O has been read */
    float S[K / 64][32], O[READ ? 32 : 1], Z[32];
    uint32_t left[K / 16][4];

    __device__ chain(const lnt_delta_chain &p_, const chain_work &w_, const ring_of &ring_)
        : p(p_), w(w_), ring(ring_), lane(threadIdx.x & 31), warp(threadIdx.x / 32 % 4), group(threadIdx.x / GROUP), column(w_.column + 64 * group),
          stash(ring.stash + group * p.stash + warp * K * 32), u_stash(ring.stash + group * p.stash + K * 128 + warp * C * 32),
          mine(L::v + group * TILE + lane_transposed(warp))
    {
    }

    /* Of what is kept for each chunk: the warp's image. */
    __device__ __forceinline__ bf16 *image_of(bf16 *images, int i, int rows) const
    {
        return images + (((int64_t)(w.chunk + i) * p.Hv + w.h) * p.V + column + 16 * warp) * rows;
    }

    /* A chunk's stage is free, and O is in the warpgroup's tile, where the loading warpgroup finds it. */
    __device__ __forceinline__ void finish(int slot)
    {
        if constexpr (READ) {
            pin(O);
            barrier_wait<HOPPER>(ring.taken, taken);
            taken ^= 1;
            const uint32_t tile = ring.stash + group * p.stash + lane_transposed(warp);
#pragma unroll
            for (int j = 0; j < 4; j++)
                store_matrices_trans<HOPPER>(tile + j * 2048, pack_bf16(O[8 * j], O[8 * j + 1]), pack_bf16(O[8 * j + 2], O[8 * j + 3]),
                                             pack_bf16(O[8 * j + 4], O[8 * j + 5]), pack_bf16(O[8 * j + 6], O[8 * j + 7]));
        }
        barrier_arrive(ring.empty + 8 * slot);
    }

    /* Off Hopper products are done when they are put, and a ring may have one stage only. */
    static constexpr bool AHEAD = HOPPER && READ;

    /* From the state to Z = U of chunk i. BEHIND: O of the chunk before, of stage `before`, goes out while the first product runs. */
    template <bool BEHIND> __device__ __forceinline__ void writes_of(int i, int before)
    {
        const uint32_t at = ring.stages + s * L::bytes, factors = at + L::f + 8 * (lane % 4);
        state_left<K>(left, S);
        barrier_wait<HOPPER>(ring.full + 8 * s, parity);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(Z, left[kk], at, L::k + kk / 4 * TILE, kk % 4, kk > 0);
        products_commit<HOPPER>();
        if constexpr (BEHIND) {
            products_wait<HOPPER, 1>();
            finish(before);
        }
        if constexpr (READ) {
            products_begin<HOPPER>();
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(O, left[kk], at, L::q + kk / 4 * TILE, kk % 4, kk > 0);
            products_commit<HOPPER>();
        }
        if constexpr (!READ)
            if (p.S) {
                image_wait<HOPPER, 1>();
                image_put<HOPPER, K / 16>(stash, left);
            }
        if constexpr (GATED) {
            float last;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(last) : "r"(at + L::f + 256 + 63 * 4) : "memory");
#pragma unroll
            for (int h = 0; h < K / 64; h++)
#pragma unroll
                for (int j = 0; j < 32; j++) S[h][j] *= last;
        }
        uint32_t z[4][4];
        float v[32]; /* beta v */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            ldmatrix_x4_trans(z[j], at + mine + j * 2048);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float2 beta = load_shared_pair(factors + 32 * (2 * j + m));
                v[8 * j + 4 * m] = beta.x * low_bf16(z[j][2 * m]);
                v[8 * j + 4 * m + 1] = beta.y * high_bf16(z[j][2 * m]);
                v[8 * j + 4 * m + 2] = beta.x * low_bf16(z[j][2 * m + 1]);
                v[8 * j + 4 * m + 3] = beta.y * high_bf16(z[j][2 * m + 1]);
            }
        }
        products_wait<HOPPER, READ>();
        pin(Z);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 be = load_shared_pair(factors + (GATED ? 768 : 0) + 32 * n);
#pragma unroll
            for (int j = 0; j < 2; j++)
                z[n / 2][n % 2 * 2 + j] = pack_bf16(v[4 * n + 2 * j] - be.x * Z[4 * n + 2 * j], v[4 * n + 2 * j + 1] - be.y * Z[4 * n + 2 * j + 1]);
        }
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows<HOPPER, true>(Z, z[kk], at, L::t, kk, kk > 0);
        products_commit<HOPPER>();
        if constexpr (!READ)
            if (p.S) image_out<HOPPER, K * 32>(image_of(p.S, i, K), stash); /* here, so that nobody waits for its fence */
        if constexpr (READ) {
            products_wait<HOPPER, 1>();
            pin(O);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 e = { 1.f, 1.f };
                if constexpr (GATED) e = load_shared_pair(factors + 256 + 32 * n);
#pragma unroll
                for (int j = 0; j < 4; j++) O[4 * n + j] *= p.scale * (j & 1 ? e.y : e.x);
            }
        }
        products_wait<HOPPER, 0>();
        pin(Z);
    }

    /* From Z = U of chunk i to the next state; O is under way. */
    __device__ __forceinline__ void next_state(int i)
    {
        const uint32_t at = ring.stages + s * L::bytes, factors = at + L::f + 8 * (lane % 4);
        uint32_t z[4][4], u[4][4];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 l = { 1.f, 1.f };
            if constexpr (GATED) l = load_shared_pair(factors + 512 + 32 * n);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                z[n / 2][n % 2 * 2 + j] = pack_bf16(l.x * Z[4 * n + 2 * j], l.y * Z[4 * n + 2 * j + 1]);
                u[n / 2][n % 2 * 2 + j] = GATED ? pack_bf16(Z[4 * n + 2 * j], Z[4 * n + 2 * j + 1]) : z[n / 2][n % 2 * 2 + j];
            }
        }
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(S[h], z[kk], at, L::k + h * TILE, kk, true);
        products_commit<HOPPER>();
        if constexpr (READ) {
#pragma unroll
            for (int kk = 0; kk < 4; kk++) times_rows<HOPPER, true>(O, u[kk], at, L::p, kk, true);
            products_commit<HOPPER>();
        }
        if constexpr (!READ)
            if (p.U) {
                image_wait<HOPPER, 1>();
                image_put<HOPPER, 4>(u_stash, u);
                image_out<HOPPER, C * 32>(image_of(p.U, i, C), u_stash);
            }
        products_wait<HOPPER, READ>();
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
    }

    __device__ __forceinline__ void run()
    {
        const bool transition = column >= p.V;
        const int64_t state = (w.sequence * p.Hv + w.h) * K * p.V + column + 16 * warp;
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const int k = 64 * h + 8 * (j / 4) + 2 * (lane % 4) + (j & 1), v = column - p.V + 16 * warp + lane / 4 + (j >> 1 & 1) * 8;
                S[h][j] = transition && k == v ? 1.f : 0.f;
            }
        if (!p.ends) {
            if (p.s0) state_read<K>(S, p.s0 + state, p.V);
            if (p.segments > 1) segment_start<HOPPER, K, false>(S, p, w, column + 16 * warp, stash - warp * K * 32);
        }
        if (w.chunks > 0) {
            writes_of<false>(0, 0);
            for (int i = 0; i + 1 < w.chunks; i++) {
                next_state(i);
                const int slot = s;
                if constexpr (!AHEAD) finish(slot);
                if (++s == p.stages) {
                    s = 0;
                    parity ^= 1;
                }
                writes_of<AHEAD>(i + 1, slot);
            }
            next_state(w.chunks - 1);
            products_wait<HOPPER, 0>();
            finish(s);
        }
        if (!p.ends) {
            if (p.sT && w.segment == p.segments - 1) state_write<K>(S, p.sT + state, p.V);
        } else if (!transition) {
            state_write<K>(S, p.X + (w.item * p.Hv + w.h) * K * p.V + column + 16 * warp, p.V);
        } else {
            state_left<K>(left, S);
            image_put<HOPPER, K / 16>(stash, left);
            image_out<HOPPER, K * 32>(p.M + ((w.item * p.Hv + w.h) * K + column - p.V + 16 * warp) * K, stash);
        }
        image_wait<HOPPER, 0>();
    }
};

/* Registers: the state takes K/2 of a thread, its left fragments K/4, Z and O 32 each, z and u 16 each. Hopper hands registers from the loading
 * warpgroup to the others when there are three. */
template <bool HOPPER, int K, int NV, bool READ, bool GATED>
__global__ __launch_bounds__(GROUP *(NV + 1), chains_at_once<HOPPER, K, NV>) void chain_kernel(const __grid_constant__ lnt_delta_chain p)
{
    extern __shared__ uint8_t shared[];
    const ring_of ring = make_ring<HOPPER, NV>(shared, p.stages, stage<K, NV, READ>::bytes);
    if constexpr (HOPPER) wait_for_prior();
    let_next_begin(); /* in the backward pass, the chain in reverse: what it needs is there */
    const chain_work w = work_of<NV, false>(p, blockIdx.x);
    if (threadIdx.x < NV * GROUP) {
        more_registers<HOPPER, K, NV, READ>();
        chain<HOPPER, K, NV, READ, GATED> x(p, w, ring);
        x.run();
    } else {
        fewer_registers<HOPPER, K, NV, READ>();
        load_all<HOPPER, K, NV, READ, false>(p, w, p.v, ring);
    }
}

template <bool HOPPER, int K, int NV, bool READ, bool GATED> void launch(lnt_delta_chain p, const lnt_cuda *d)
{
    p.stash = stash_bytes(K, READ, p.S || p.ends, p.U, p.segments > 1);
    const int64_t ctas = chain_ctas<NV, false>(p);
    p.stages = stages_in<HOPPER, K, NV, READ>(d, p.stash, ctas);
    const int bytes = ring_bytes(NV, p.stash, p.stages, stage<K, NV, READ>::bytes);
    lnt_delta_put(chain_kernel<HOPPER, K, NV, READ, GATED>, p, ctas, GROUP * (NV + 1), bytes, 1, HOPPER, d);
}

template <bool HOPPER, int K, int NV> void launch_columns(const lnt_delta_chain &p, const lnt_cuda *d)
{
    if (!p.o) return launch<HOPPER, K, NV, false, true>(p, d);
    if constexpr (HOPPER)
        if (!p.gated) return launch<HOPPER, K, NV, true, false>(p, d);
    launch<HOPPER, K, NV, true, true>(p, d);
}
template <bool HOPPER, int K> void launch_chain(const lnt_delta_chain &p, const lnt_cuda *d)
{
    if constexpr (HOPPER)
        if (p.wide) return launch_columns<HOPPER, K, 2>(p, d);
    launch_columns<HOPPER, K, 1>(p, d);
}

} // namespace

#endif
