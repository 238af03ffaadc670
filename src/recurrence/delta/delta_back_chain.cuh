/* The chain of the states' gradients, from the last chunk to the first: one CTA per (sequence or segment, value head, 64 NV columns of V), the mirror
 * of delta_chain.cuh and made of its parts. dS^T [64 columns of V][K] stays in the float32 accumulators of a warpgroup; every product has dS'^T,
 * dO^T, dU^T or dZ^T on the left, from registers, and a tile of tokens in shared memory on the right (columns are tokens):
 *
 *   dU^T = (dS'^T K^T).l + dO^T P    dR^T = dU^T T    dZ^T = beta.dR^T    dS^T = e_n dS'^T + (s e.dO^T) Q - (e.dZ^T) K        (operators.md#delta)
 *
 * dO^T P and dO^T Q do not wait for the chain: of its three products in a row the first has them beside it. */
#ifndef LNT_DELTA_BACK_CHAIN_CUH
#define LNT_DELTA_BACK_CHAIN_CUH

#include "recurrence/delta/delta_back.cuh"
#include "recurrence/delta/delta_chain.cuh"

namespace {

/* The chain of a CTA's chunks, by one warpgroup for its 64 columns. Products of a chunk, in the order in which they are put: dO P, dS' K, dO Q, dU T,
 * dZ K; the next chunk's dO P is put behind the last of them, and runs while the state is rounded. */
template <bool HOPPER, int K, int NV> struct back_chain {
    using L = stage<K, NV, true>;
    const lnt_delta_chain &p;
    const ring_of &ring;
    const int64_t stride;  /* from a row of dv to the next */
    const uint32_t stash;  /* the warp's image [K][16] */
    const uint32_t mine;   /* the warp's columns in the tile of dO, as ldmatrix transposes them to an A of 16 columns of V and 16 tokens */
    const uint32_t out;    /* and as its lanes carry them out */
    bf16 *dv, *image;      /* this lane's, this warp's, of the chunk at hand */
    int left_rows;         /* from the chunk's first token to the sequence's end */
    float dS[K / 64][32], X[32], Y[32];
    uint32_t o[4][4], z[4][4], out_z[4][4];
    float2 by[8]; /* factors of the tokens for whoever is next, read while others compute */

    __device__ back_chain(const lnt_delta_chain &p_, const chain_work &w, const ring_of &ring_, int group, int warp)
        : p(p_), ring(ring_), stride((int64_t)p_.Hv * p_.V), stash(ring_.stash + group * p_.stash + warp * K * 32),
          mine(L::v + group * TILE + lane_transposed(warp)), out(L::v + group * TILE + lane_in_tile(warp))
    {
        const int64_t token = w.token + (int64_t)(w.chunks - 1) * C;
        const int column = w.column + 64 * group;
        dv = p.dv + token * stride + w.h * p.V + column + lane_in_rows(stride, warp);
        image = p.dS + (((int64_t)(w.chunk + w.chunks - 1) * p.Hv + w.h) * p.V + column + 16 * warp) * K;
        left_rows = (int)(w.end - token);
    }

    /* From a chunk's stage to X = dR, while the product with K of the chunk before, if there is one, is under way; `behind`: its stage, out of which
     * its dZ goes in the shadow of that product and of dO P. */
    template <bool BEHIND> __device__ __forceinline__ void read_state(uint32_t at, uint32_t behind, uint32_t behind_empty)
    {
        const uint32_t factors = at + L::f + 8 * (threadIdx.x & 3);
        uint32_t left[K / 16][4];
#pragma unroll
        for (int j = 0; j < 4; j++) ldmatrix_x4_trans(o[j], at + mine + j * 2048);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_columns<HOPPER>(Y, o[kk], at, L::p, kk, kk > 0);
        products_commit<HOPPER>();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 e = load_shared_pair(factors + 256 + 32 * n);
            e.x *= p.scale;
            e.y *= p.scale;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t x = o[n / 2][n % 2 * 2 + j];
                z[n / 2][n % 2 * 2 + j] = pack_bf16(e.x * low_bf16(x), e.y * high_bf16(x));
            }
        }
        if constexpr (BEHIND) {
            values_out(behind);
            products_wait<HOPPER, 1>();
#pragma unroll
            for (int h = 0; h < K / 64; h++) pin(dS[h]);
            barrier_arrive(behind_empty);
        }
        state_left<K>(left, dS);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(X, left[kk], at, L::k + kk / 4 * TILE, kk % 4, kk > 0);
        products_commit<HOPPER>();
        float last;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(last) : "r"(at + L::f + 256 + 63 * 4) : "memory");
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) dS[h][j] *= last;
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(dS[h]);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(dS[h], z[kk], at, L::q + h * TILE, kk, true);
        products_commit<HOPPER>();
        if (p.dS) {
            image_wait<HOPPER, 0>();
            image_put<HOPPER, K / 16>(stash, left);
        }
        load_factors(by, factors + 512);
        products_wait<HOPPER, 1>();
        pin(X);
        pin(Y);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                o[n / 2][n % 2 * 2 + j] =
                    pack_bf16(by[n].x * X[4 * n + 2 * j] + Y[4 * n + 2 * j], by[n].y * X[4 * n + 2 * j + 1] + Y[4 * n + 2 * j + 1]);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_columns<HOPPER>(X, o[kk], at, L::t, kk, kk > 0);
        products_commit<HOPPER>();
        if (p.dS) image_out<HOPPER, K * 32>(image, stash); /* here, so that nobody waits for its fence */
        image -= (int64_t)K * stride;
        load_factors(by, factors + 768);
        products_wait<HOPPER, 0>();
        pin(X);
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(dS[h]);
    }

    /* From X = dR to the next dS, which is under way; dZ is in `out_z`. */
    __device__ __forceinline__ void write_state(uint32_t at)
    {
        const uint32_t factors = at + L::f + 8 * (threadIdx.x & 3);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) z[n / 2][n % 2 * 2 + j] = pack_bf16(-by[n].x * X[4 * n + 2 * j], -by[n].y * X[4 * n + 2 * j + 1]);
        products_begin<HOPPER>();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(dS[h], z[kk], at, L::k + h * TILE, kk, true);
        products_commit<HOPPER>();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 beta = load_shared_pair(factors + 32 * n);
            const float keep_x = beta.x < LNT_DELTA_WEAK ? 1.f : beta.x, keep_y = beta.y < LNT_DELTA_WEAK ? 1.f : beta.y;
#pragma unroll
            for (int j = 0; j < 2; j++) out_z[n / 2][n % 2 * 2 + j] = pack_bf16(keep_x * X[4 * n + 2 * j], keep_y * X[4 * n + 2 * j + 1]);
        }
    }

    /* The warp's columns of the tile of dO, read by now, take what goes out. */
    __device__ __forceinline__ void values_out(uint32_t at)
    {
        if (p.dv) {
#pragma unroll
            for (int j = 0; j < 4; j++) store_matrices_trans<HOPPER>(at + mine + j * 2048, out_z[j][0], out_z[j][1], out_z[j][2], out_z[j][3]);
            rows_out(dv, stride, at + out, left_rows);
        }
        dv -= C * stride;
        left_rows += C;
    }

    __device__ __forceinline__ void run(const chain_work &w, int column)
    {
        const int64_t state = (w.sequence * p.Hv + w.h) * K * p.V + column;
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int j = 0; j < 32; j++) dS[h][j] = 0.f;
        if (p.dsT && w.segment == p.segments - 1) state_read<K>(dS, p.dsT + state, p.V);
        if (!p.ends && p.segments > 1) segment_start<HOPPER, K, true>(dS, p, w, column, ring.stash + threadIdx.x / GROUP * p.stash);
        if (w.chunks > 0) {
            uint32_t parity = 0;
            int s = 0;
            barrier_wait<HOPPER>(ring.full, 0);
            read_state<false>(ring.stages, 0, 0);
            for (int i = 1; i < w.chunks; i++) {
                const int slot = s;
                write_state(ring.stages + slot * L::bytes);
                if (++s == ring.count) {
                    s = 0;
                    parity ^= 1;
                }
                barrier_wait<HOPPER>(ring.full + 8 * s, parity);
                read_state<true>(ring.stages + s * L::bytes, ring.stages + slot * L::bytes, ring.empty + 8 * slot);
            }
            write_state(ring.stages + s * L::bytes);
            values_out(ring.stages + s * L::bytes);
            products_wait<HOPPER, 0>();
#pragma unroll
            for (int h = 0; h < K / 64; h++) pin(dS[h]);
        }
        if (p.ends)
            state_write<K>(dS, p.dX + (w.item * p.Hv + w.h) * K * p.V + column, p.V);
        else if (p.ds0 && w.segment == 0)
            state_write<K>(dS, p.ds0 + state, p.V);
        image_wait<HOPPER, 0>();
    }
};

/* Registers: dS takes K/2 of a thread, its left fragments K/4, X and Y 32 each, o and z 16 each. On Hopper this kernel begins as soon as
 * the states' chain, put just before it, has: neither of the two waits for the other, and few long sequences leave half of the GPU to each. It ends
 * after it, so that what waits for this one has waited for both. The rest of a chain in parts (p.behind) waits for both as others do. */
template <bool HOPPER, int K, int NV>
__global__ __launch_bounds__(GROUP *(NV + 1), chains_at_once<HOPPER, K, NV>) void back_kernel(const __grid_constant__ lnt_delta_chain p)
{
    extern __shared__ uint8_t shared[];
    const chain_work w = work_of<NV, true>(p, blockIdx.x);
    const ring_of ring = make_ring<HOPPER, NV>(shared, p.stages, stage<K, NV, true>::bytes);
    if (HOPPER && p.behind) wait_for_prior();
    let_next_begin();
    if (threadIdx.x < NV * GROUP) {
        more_registers<HOPPER, K, NV, false>();
        const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4;
        back_chain<HOPPER, K, NV> x(p, w, ring, group, warp);
        x.run(w, w.column + 64 * group + 16 * warp);
    } else {
        fewer_registers<HOPPER, K, NV, false>();
        load_all<HOPPER, K, NV, true, true>(p, w, p.d_o, ring);
    }
    if constexpr (HOPPER) wait_for_prior();
}

template <bool HOPPER, int K, int NV> void launch_back(lnt_delta_chain p, const lnt_cuda *d)
{
    p.stash = stash_bytes(K, false, p.dS, false, p.segments > 1);
    const int64_t ctas = chain_ctas<NV, true>(p);
    p.stages = stages_in<HOPPER, K, NV, true>(d, p.stash, ctas);
    const int bytes = ring_bytes(NV, p.stash, p.stages, stage<K, NV, true>::bytes);
    lnt_delta_put(back_kernel<HOPPER, K, NV>, p, ctas, GROUP * (NV + 1), bytes, 1, HOPPER, d);
}

template <bool HOPPER> void launch_back_chain(const lnt_delta_chain &p, const lnt_cuda *d)
{
    if constexpr (HOPPER)
        if (p.wide) return p.K == 64 ? launch_back<HOPPER, 64, 2>(p, d) : launch_back<HOPPER, 128, 2>(p, d);
    return p.K == 64 ? launch_back<HOPPER, 64, 1>(p, d) : launch_back<HOPPER, 128, 1>(p, d);
}

} // namespace

#endif
