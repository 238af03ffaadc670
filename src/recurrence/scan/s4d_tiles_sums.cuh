/* S4D's sums for the gradients of its parameters, on tensor cores, bf16. With A for Abar, K twice C Bbar, L for SPAN, h' = dh / dA:
 *
 *   conj(dK) / 2 = sum do_t h_t          conj(dA) = K sum do_t h'_t + conj(dsT) h'_T          h'_t = A h'_{t-1} + h_{t-1}
 *
 * which needs no token's gradient, and one way over the tokens, forward. Of chunk n let S be the state in front of it and
 *
 *   s = sum_j A^(L-1-j) u_j     y = sum_j (L-1-j) A^(L-1-j) u_j     X = sum_i A^i do_i     Z = sum_i (i+1) A^i do_i
 *   R_l = sum over tokens i - l >= 0 of do_i u_{i-l}, over all chunks
 *
 * A product of token i of chunk n and token j of chunk n' < n passes A^(i+1 + L (n-1-n') + L-1-j), whose derivative has the exponent as a factor:
 * (i+1 + L n) + (L-1-j - L (n'+1)), one part of each side. So with S and T, the states that s and y - L (n'+1) s make,
 *
 *   conj(dK) / 2 = A sum X S + sum_l A^l R_l
 *   conj(dA)     = K (sum (Z + L n X) S + X T + sum_l l A^(l-1) R_l) + conj(dsT) h'_T
 *
 * n is counted from a tile's beginning (T + TILE S takes over from one to the next). do's tokens are the other way round in the tile, so that the
 * four products have one matrix. A warp has a channel, as in s4d_tiles_walk.cuh; of what it adds up 32 registers are R and 16 the sums. Chunks are
 * twice the walk's: here the chains decide, and they are half as long. */
#ifndef LNT_S4D_TILES_SUMS_CUH
#define LNT_S4D_TILES_SUMS_CUH

#include "recurrence/scan/s4d_tiles.cuh"

namespace {

constexpr int SPAN = 2 * CHUNK, SPANS = TILE / SPAN; /* a tile's rows */
constexpr int R_PITCH = 9, R_APART = 16 * R_PITCH + 8; /* in the end: the rows of eight that a lag has, of a lane each, lie in 32 banks */
constexpr int SPAN_PITCH = SPAN + 8, SCRATCH_WORDS = 12;

using span_tile = bf16[SPANS][SPAN_PITCH];

/* As channel_tiles. */
struct span_tiles {
    static constexpr int APART = SPANS * SPAN_PITCH + 8;
    bf16 x[WARPS * APART + 2 * 16];

    __device__ __forceinline__ span_tile &of(int channel) { return *(span_tile *)&x[channel * APART + channel / 8 * 16]; }
};

struct sums_shared {
    chunk_stage stage[2][CHUNKS]; /* u, do; first, as the walk's */
    union {
        uint32_t scratch[WARPS][2][MODES * SCRATCH_WORDS]; /* 16 tokens of the matrix, real and imaginary parts in pairs of tokens */
        span_tiles tiles[2]; /* u, do */
    };
    uint4 in[WARPS][MODES / 8][SPAN / 16][32]; /* a lane's words of the matrix; in the end R */
    number far[WARPS][MODES];                  /* Abar^SPAN */
    number states[WARPS][MODES][2];            /* S and T in front of the tile */
    uint2 weights[4];                          /* SPAN - 1 less the first 16 tokens, of lane % 4 */
    uint64_t arrived[CHUNKS];                  /* barriers of the copy engine */
    uint64_t turned_in, read;                  /* and the warps' */
};

/* How a warp brings its half of a row of every tile, of all channels: here by its lanes. */
struct pairs_by_lanes {
    struct maps {};
    sums_shared &w;
    const tiles_args &p;
    const int warp, first;
    const int64_t begin, end;

    __device__ __forceinline__ pairs_by_lanes(sums_shared &w_, const tiles_args &p_, const maps &, int warp_, int first_, int64_t begin_,
                                              int64_t end_)
        : w(w_), p(p_), warp(warp_), first(first_), begin(begin_), end(end_)
    {
    }
    __device__ __forceinline__ int64_t token(int k) const { return begin + (int64_t)k * TILE + warp * CHUNK; }
    __device__ __forceinline__ void fetch(int k)
    {
        w.stage[0][warp].fetch(p.u + first, token(k), begin, end, p.D, p.D - first);
        w.stage[1][warp].fetch((p.dout ? p.dout : p.u) + first, token(k), begin, p.dout ? end : begin, p.D, p.D - first);
        cp_async_commit();
    }
    template <bool HOPPER> __device__ __forceinline__ void turn()
    {
        const int lane = lane_here(), half = warp % 2 * CHUNK;
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            uint32_t x[4], y[4]; /* of channel r, tokens 8 i + 2 c and the next; do's from the last on */
            ldmatrix_x4_trans(x, shared_address(&w.stage[0][warp].at(lane, eight)));
            ldmatrix_x4_trans(y, shared_address(&w.stage[1][warp].at(CHUNK - 1 - lane, eight)));
            put_matrices<HOPPER, false>([&](int i, int j) { return &w.tiles[0].of(8 * eight + j)[warp / 2][half + 8 * i]; }, x);
            put_matrices<HOPPER, false>([&](int i, int j) { return &w.tiles[1].of(8 * eight + j)[warp / 2][CHUNK - half + 8 * i]; }, y);
        }
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        cp_async_wait<0>();
        __syncwarp();
        turn<false>();
        __syncwarp();
        fetch(k + 1);
    }
    /* Warps wait for each other twice a tile: for what all have turned in, and until all have read it. */
    __device__ __forceinline__ void has_turned_in() {}
    __device__ __forceinline__ void await_tile(int) { __syncthreads(); }
    __device__ __forceinline__ void has_read() {}
    __device__ __forceinline__ void await_readers(int) { __syncthreads(); }
};

/* mma_bf16 over eight. */
__device__ __forceinline__ void mma_bf16_by_8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ uint32_t weighed(uint32_t x, uint32_t by)
{
    const __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&by);
    return *(const uint32_t *)&y;
}

/* Of whole numbers, which bf16 has up to 256. A load of them for each 16 tokens would be two wavefronts. */
__device__ __forceinline__ uint32_t less(uint32_t x, int n)
{
    const __nv_bfloat162 y = __hsub2(*(const __nv_bfloat162 *)&x, __float2bfloat162_rn((float)n));
    return *(const uint32_t *)&y;
}

/* Abar^(SPAN-1-j) of tokens j by 16, as a lane has the left side of a product over them. */
__device__ __forceinline__ void make_matrix(sums_shared &w, number a)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    number power = { 1.f, 0.f };
#pragma unroll 1
    for (int k = SPAN / 16 - 1; k >= 0; k--) {
        uint32_t re[8], im[8];
#pragma unroll
        for (int s = 7; s >= 0; s--) {
            const number next = turned(a, power);
            re[s] = pack_bf16(next.re, power.re), im[s] = pack_bf16(next.im, power.im);
            power = turned(a, next);
        }
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            *(uint4 *)&w.scratch[warp][0][lane * SCRATCH_WORDS + i] = { re[i], re[i + 1], re[i + 2], re[i + 3] };
            *(uint4 *)&w.scratch[warp][1][lane * SCRATCH_WORDS + i] = { im[i], im[i + 1], im[i + 2], im[i + 3] };
        }
        __syncwarp();
#pragma unroll
        for (int m = 0; m < MODES / 8; m++) {
            uint32_t x[4];
            ldmatrix_x4(x, shared_address(&w.scratch[warp][lane / 8 % 2][(8 * m + lane % 8) * SCRATCH_WORDS + lane / 16 * 4]));
            w.in[warp][m][k][lane] = { x[0], x[1], x[2], x[3] };
        }
        __syncwarp();
    }
}

struct pair_sums {
    number of_K[MODES / 8], of_A[MODES / 8]; /* sum X S, sum (Z + L n X) S + X T: of number 8 m + r, a lane's chunks */
    float R[SPAN / 8][4];                    /* [q]: of do's place i and u's j with i + j = 8 q + r + 2 c and so on; lag SPAN - 1 - i - j */
    uint32_t u[SPAN / 16][2], dout[SPAN / 16][2]; /* a tile's rows, as right sides whose columns they are */

    /* All of a tile that is read; do's places by u's. */
    __device__ __forceinline__ void read(const span_tile &u_, const span_tile &dout_)
    {
        const int lane = lane_here();
        uint32_t a[SPAN / 8], b[SPAN / 8];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = CHUNK * i + lane / 8 * 8;
            ldmatrix_x4((uint32_t(&)[4])u[2 * i], shared_address(&u_[lane % 8][at]));
            ldmatrix_x4((uint32_t(&)[4])dout[2 * i], shared_address(&dout_[lane % 8][at]));
            ldmatrix_x4_trans((uint32_t(&)[4])a[4 * i], shared_address(&dout_[lane % 8][at]));
            ldmatrix_x4_trans((uint32_t(&)[4])b[4 * i], shared_address(&u_[lane % 8][at]));
        }
#pragma unroll
        for (int m = 0; m < SPAN / 16; m++)
#pragma unroll
            for (int n = 0; n < SPAN / 8 - 2 * m; n++) mma_bf16_by_8(R[2 * m + n], a[2 * m], a[2 * m + 1], b[n]);
    }
    /* Numbers 8 m .. over the tile. LAST: what stands in front of chunk `last` is left as states, with T + L n S, which is A h', in place of T. */
    template <bool LAST> __device__ __forceinline__ void across(int m, sums_shared &w, int last)
    {
        const int warp = (int)threadIdx.x / 32, lane = lane_here(), r = lane / 4, c = lane % 4;
        const float before = (float)(2 * SPAN * c); /* L n of the lane's first chunk */
        const uint2 first = w.weights[c];
        float d[4][4] = {};
#pragma unroll
        for (int k = 0; k < SPAN / 16; k++) {
            uint32_t a[4];
            *(uint4 *)a = w.in[warp][m][k][lane];
            const uint2 by = { less(first.x, 16 * k), less(first.y, 16 * k) };
            mma_bf16(d[0], a, u[k][0], u[k][1]);
            mma_bf16(d[1], a, weighed(u[k][0], by.x), weighed(u[k][1], by.y));
            mma_bf16(d[2], a, dout[k][0], dout[k][1]);
            mma_bf16(d[3], a, weighed(dout[k][0], by.x), weighed(dout[k][1], by.y));
        }
        const auto sum = [&](int of, int i) { return number{ d[of][i], d[of][2 + i] }; };
        const number far = w.far[warp][8 * m + r], both = turned(far, far);
        number(&state)[2] = w.states[warp][8 * m + r];
        number S = c == 0 ? state[0] : number{}, T = c == 0 ? state[1] : number{}, v = S, y = T, t[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            t[i] = added(sum(1, i), -before - (float)(SPAN * (i + 1)), sum(0, i));
            v = turned(far, v, sum(0, i)), y = turned(far, y, t[i]);
        }
        v = in_front_of_lane(v, both, turned(both, both)), y = in_front_of_lane(y, both, turned(both, both));
        if (c) S = v, T = y;
        if (LAST) __syncwarp(); /* what stood in front of the tile has been read by another lane */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float n = before + (float)(SPAN * i);
            if (LAST && last == 2 * c + i) state[0] = S, state[1] = added(T, n, S);
            const number product = turned(sum(2, i), S);
            of_K[m] = added(of_K[m], 1.f, product);
            of_A[m] = turned(sum(2, i), T, turned(sum(3, i), S, added(of_A[m], n + 1, product))); /* sum(3, i) is Z less X */
            S = turned(far, S, sum(0, i)), T = turned(far, T, t[i]);
        }
        if (!LAST && c == 0) state[0] = v, state[1] = added(y, (float)TILE, v);
    }
};

/* Behind du's walk it begins before that has ended: nothing of the walk is read, and what the walk has waited for, the parameters among it, is done
 * before any of its blocks calls let_next. It waits for the walk ahead of its own results. */
template <typename ROWS>
__global__ __launch_bounds__(THREADS, 1) void tiles_sums(const __grid_constant__ tiles_args p, const __grid_constant__ typename ROWS::maps maps)
{
    extern __shared__ __align__(1024) unsigned char memory[]; /* as the walk's, in the same file */
    sums_shared &w = *(sums_shared *)memory;
    const int warp = warp_here(), first = (int)(blockIdx.x % p.strips) * WARPS;
    if (!p.behind_walk) await_last();
    let_next();
    const standing at(p);
    const int64_t tokens = at.end - at.begin;
    const int tiles = (int)((tokens + TILE - 1) / TILE); /* tensors have addresses */
    ROWS of(w, p, maps, warp, first, at.begin, at.end);
    of.fetch(0);
    const channel_parameters of_number = at.parameters(p);
    const number a = of_number.A, K = of_number.K;
    w.far[warp][at.lane] = turned(of_number.far, of_number.far);
    w.states[warp][at.lane][0] = at.state(p, p.s0), w.states[warp][at.lane][1] = {};
    if (threadIdx.x < 4) {
        const float x = (float)(SPAN - 1 - 2 * (int)threadIdx.x);
        w.weights[threadIdx.x] = { pack_bf16(x, x - 1), pack_bf16(x - 8, x - 9) };
    }
    make_matrix(w, a);
    __syncthreads();
    of.turn_in(0);
    of.has_turned_in();
    pair_sums s = {};
    const int last = (int)((tokens - 1) / SPAN) % SPANS; /* the last tile's chunk that has the last token */
    for (int k = 0; k < tiles - 1; k++) {
        of.await_tile(k);
        s.read(w.tiles[0].of(warp), w.tiles[1].of(warp));
        of.has_read();
        s.across<false>(0, w, last), s.across<false>(1, w, last);
        of.await_readers(k);
        of.turn_in(k + 1);
        of.has_turned_in();
        s.across<false>(2, w, last), s.across<false>(3, w, last);
    }
    if (tiles) {
        of.await_tile(tiles - 1);
        s.read(w.tiles[0].of(warp), w.tiles[1].of(warp));
#pragma unroll
        for (int m = 0; m < MODES / 8; m++) s.across<true>(m, w, last);
    }

    float *R = (float *)w.in[warp], *lags = R + SPAN / 8 * R_APART;
    number *numbers = (number *)(lags + SPAN);
    static_assert((SPAN / 8 * R_APART + SPAN + 4 * MODES) * sizeof(float) <= sizeof(w.in[0]));
    const int lane = at.lane, r = lane / 4, c = lane % 4;
    __syncwarp();
#pragma unroll
    for (int q = 0; q < SPAN / 8; q++)
#pragma unroll
        for (int i = 0; i < 4; i++) R[q * R_APART + (r + i / 2 * 8) * R_PITCH + 2 * c + i % 2] = s.R[q][i];
#pragma unroll
    for (int m = 0; m < MODES / 8; m++) {
        number x[2] = { s.of_K[m], s.of_A[m] };
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int o = 1; o <= 2; o *= 2) x[i].re += __shfl_xor_sync(~0u, x[i].re, o), x[i].im += __shfl_xor_sync(~0u, x[i].im, o);
            if (c == 0) numbers[2 * (8 * m + r) + i] = x[i];
        }
    }
    __syncwarp();
    for (int l = lane; l < SPAN; l += 32) {
        float lag = 0.f;
#pragma unroll
        for (int j = 0; j < 8; j++) { /* rows of 8 of R, of do's place i % 16: of two q */
            const int i = SPAN - 1 - l - j, at_i = i / 8 * R_APART + i % 8 * R_PITCH;
            if (i >= 0) lag += R[at_i + j];
            if (i >= 8) lag += R[at_i - R_APART + 8 * R_PITCH + j];
        }
        lags[l] = lag;
    }
    __syncwarp();
    number sum = {}, slope = {}, derivative = {};
#pragma unroll 8
    for (int l = SPAN - 1; l >= 0; l--) {
        slope = turned(a, slope, sum);
        sum = turned(a, sum, { lags[l], 0.f });
    }
    if (p.dsT && tokens) { /* behind the last chunk's front token by token, A h' too; h' itself at the last */
        number h = w.states[warp][lane][0], g = w.states[warp][lane][1];
        const int rest = (int)(tokens - (tokens - 1) / SPAN * SPAN);
        for (int i = 0; i < rest; i++) {
            derivative = added(g, 1.f, h);
            g = turned(a, derivative), h = turned(a, h, { to_float(w.tiles[0].of(warp)[last][i]), 0.f });
        }
    }
    await_last();
    if (lane == 0 && at.there) p.dskips[at.n * p.D + at.channel] = lags[0];
    if (!at.real) return;
    const number of_K = turned(a, numbers[2 * lane], sum);
    const number of_A = turned(conjugate(at.state(p, p.dsT)), derivative, turned(K, added(slope, 1.f, numbers[2 * lane + 1])));
    *at.sum(p, SUM_A_RE) = of_A.re, *at.sum(p, SUM_A_IM) = -of_A.im;
    *at.sum(p, SUM_K_RE) = of_K.re, *at.sum(p, SUM_K_IM) = -of_K.im;
}

} // namespace

#endif
