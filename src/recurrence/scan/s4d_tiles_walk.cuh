/* S4D on tensor cores, bf16 (README.md): CHUNK tokens at a time as products of matrices that are the same for all chunks of a channel.
 *
 *   o of a chunk       = Toeplitz(k) u + 2 Re(K Abar^(1 .. CHUNK) h),  k_l = 2 Re(sum K Abar^l),  h: the state in front of the chunk
 *   h behind the chunk = Abar^CHUNK h + sum_j Abar^(CHUNK - 1 - j) u_j
 *
 * In reverse du is the same of do, over the tokens from the last to the first. Its state is what comes back, E = K Abar h, so that ds0 and dsT need
 * no division: sums with K Abar^(CHUNK - j), read out with Abar^(0 .. CHUNK - 1).
 *
 * A warp has a channel, a CTA WARPS neighbours, from a sequence's first token to its last. The matrices are made once and stay in registers, and a
 * tile's rows are CHUNKS chunks. What chunks add comes as numbers times chunks, of which a lane has four chunks that follow each other: it takes them
 * together, three shuffles say what enters them, and the states in front of them, turned by movmatrix, are the left side of the product with the
 * read-out. None of that passes through shared memory. Rows of memory become rows of tokens by ldmatrix, while a tile before them is worked on: of
 * every tile a warp brings one chunk of all channels. Operands are rounded to bf16, sums and the chain are float32. */
#ifndef LNT_S4D_TILES_WALK_CUH
#define LNT_S4D_TILES_WALK_CUH

#include "recurrence/scan/s4d_tiles.cuh"

namespace {

/* ---- the matrices of a channel ----------------------------------------------------------------------------------------------------------- */

/* While they are made. */
struct making {
    powers_making powers; /* in's, then out's: real, less imaginary parts */
    float k[CHUNK];
};

/* Tokens to tokens as left sides of products, a lane's words: 16 tokens to the same, and to the next. Registers have no room for them, or the walk's
 * addresses go to the stack. */
using toeplitz = uint4[2][32];
static_assert(CHUNK == 2 * 16);

/* Left sides of products, of a lane. */
struct matrices {
    uint32_t in[MODES / 8][CHUNK / 16][4];  /* tokens to eight numbers' real and imaginary parts */
    uint32_t out[MODES / 8][CHUNK / 16][4]; /* the same parts to tokens */

    template <bool BACK> __device__ __forceinline__ void make(making &w, toeplitz &within, number a, number K, float skip);
    __device__ __forceinline__ void outputs(outputs_of_tile &d, const tokens_of_tile &u, const toeplitz &within,
                                            const uint32_t (&in_front)[MODES / 8][4]) const
    {
#pragma unroll
        for (int m = 0; m < MODES / 8; m++)
#pragma unroll
            for (int t = 0; t < CHUNK / 16; t++)
#pragma unroll
                for (int n = 0; n < 2; n++) mma_bf16(d[t][n], out[m][t], in_front[m][n], in_front[m][2 + n]);
        uint32_t same[4], next[4];
        const int lane = lane_here();
        *(uint4 *)same = within[0][lane], *(uint4 *)next = within[1][lane];
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int t = 0; t < CHUNK / 16; t++) mma_bf16(d[t][n], same, u[t][2 * n], u[t][2 * n + 1]);
            mma_bf16(d[1][n], next, u[0][2 * n], u[0][2 * n + 1]);
        }
    }
};

template <bool BACK> __device__ __forceinline__ void matrices::make(making &w, toeplitz &within, number a, number K, float skip)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    make_powers(w.powers, a, BACK ? turned(K, a) : number{ 1.f, 0.f });
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MODES / 8; m++)
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) take_powers<false>(in[m][k], w.powers, m, k);
    __syncwarp();
    number q = BACK ? number{ 1.f, 0.f } : turned(K, a), of_lag = K;
    float lags[CHUNK];
#pragma unroll
    for (int g = 0; g < CHUNK / 8; g++) {
        uint32_t re[4], im[4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const number second = turned(a, q);
            re[s] = pack_bf16(q.re, second.re), im[s] = pack_bf16(-q.im, -second.im);
            lags[8 * g + 2 * s] = of_lag.re;
            of_lag = BACK ? turned(a, of_lag) : q;
            lags[8 * g + 2 * s + 1] = of_lag.re;
            of_lag = BACK ? turned(a, of_lag) : second;
            q = turned(a, second);
        }
        *(uint4 *)&w.powers[0][lane * WORDS + 4 * g] = { re[0], re[1], re[2], re[3] };
        *(uint4 *)&w.powers[1][lane * WORDS + 4 * g] = { im[0], im[1], im[2], im[3] };
    }
    fold<32, 16, 1>(lags);
    w.k[lane] = lags[0] + (lane == 0 ? skip : 0.f);
    __syncwarp();
    const auto lag = [&](int l) { return l < 0 ? 0.f : w.k[l]; };
    uint32_t word[CHUNK / 8]; /* of a lane's row, 8 e tokens behind its columns */
#pragma unroll
    for (int e = 0; e < CHUNK / 8; e++) word[e] = pack_bf16(lag(8 * e + r - 2 * c), lag(8 * e + r - 2 * c - 1));
    within[0][lane] = { word[0], word[1], 0, word[0] }, within[1][lane] = { word[2], word[3], word[1], word[2] };
#pragma unroll
    for (int m = 0; m < MODES / 8; m++)
#pragma unroll
        for (int t = 0; t < CHUNK / 16; t++) take_powers<true>(out[m][t], w.powers, m, t);
}

/* ---- the walk ------------------------------------------------------------------------------------------------------------------------------- */

struct walk_shared {
    chunk_stage stage[2][CHUNKS]; /* first: the copy engine's places are aligned to 256 bytes */
    union {
        making matrices[WARPS];
        struct {
            channel_tiles in[SLOTS], out[SLOTS];
        };
    };
    toeplitz within[WARPS];
    alignas(16) number far[WARPS][MODES][2]; /* Abar^CHUNK, its fourth power */
    number eight[WARPS][MODES];              /* its eighth */
    number states[WARPS][MODES];             /* in front of the tile */
    number rates[WARPS][MODES];              /* Abar */
    uint4 places[WARPS][32];                 /* of rows_by_engine */
    uint32_t rows[WARPS][32];
    uint64_t arrived[2][CHUNKS];             /* barriers of the copy engine */
    uint64_t turned_in;                      /* and the warps' */
};

/* How a warp brings its chunk of every tile, of all channels, and takes one away: here by its lanes. BACK: chunks from the sequence's end on. */
template <bool BACK> struct rows_by_lanes {
    struct maps {};
    walk_shared &w;
    const tiles_args &p;
    const int warp, first;
    const int64_t begin, end;

    __device__ __forceinline__ rows_by_lanes(walk_shared &w_, const tiles_args &p_, const maps &, int warp_, int first_, int64_t begin_, int64_t end_)
        : w(w_), p(p_), warp(warp_), first(first_), begin(begin_), end(end_)
    {
    }
    __device__ __forceinline__ int64_t token(int k) const
    {
        const int64_t passed = (int64_t)k * TILE + warp * CHUNK;
        return BACK ? end - passed - CHUNK : begin + passed;
    }
    /* A tile that is not there: zeros. */
    __device__ __forceinline__ void fetch(int k)
    {
        const bf16 *from = BACK ? p.dout : p.u;
        w.stage[k % 2][warp].fetch((from ? from : p.u) + first, token(k), begin, from ? end : begin, p.D, p.D - first);
        cp_async_commit();
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        cp_async_wait<1>();
        __syncwarp();
        w.stage[k % 2][warp].template turn_in<BACK>(w.in[k % SLOTS], warp);
        __syncwarp();
        fetch(k + 2);
    }
    /* The warp's channel of a tile, and what becomes of it. */
    __device__ __forceinline__ void read(tokens_of_tile &u, int k)
    {
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) right_of_tokens(u[i], w.in[k % SLOTS].of(warp), i);
    }
    __device__ __forceinline__ void put(int k, const outputs_of_tile &d) { put_tokens(w.out[k % SLOTS].of(warp), d); }
    __device__ __forceinline__ void take(int k)
    {
        bf16 *to = (BACK ? p.du : p.o) + first;
        const int64_t t = token(k);
        turn_out<BACK>(w.out[k % SLOTS], warp, [&](int i, int c, uint2 x) {
            if (t + i >= begin && t + i < end && 4 * c < p.D - first) *(uint2 *)(to + (t + i) * p.D + 4 * c) = x;
        });
    }
    /* The tile whose slot tile k has. */
    __device__ __forceinline__ void take_behind(int k) { take(k - SLOTS); }
    __device__ __forceinline__ void next(int) {}
    __device__ __forceinline__ void finish() {}
    /* Until all warps have called passed as many times, once ahead of tile 0 and once for each tile. */
    __device__ __forceinline__ void passed() {}
    __device__ __forceinline__ void await_others(int) { __syncthreads(); }
};

/* The states' way over a tile u, whose first `whole` chunks pass them on (all of them if WHOLE), and what stands in front of each chunk, as the left
 * side of a product over numbers. Two times eight numbers at once: one's products and shuffles are the other's time. */
template <bool WHOLE>
__device__ __forceinline__ void chain(uint32_t (&in_front)[MODES / 8][4], const matrices &w, const tokens_of_tile &x, const number (&rates)[MODES][2],
                                      const number (&eighths)[MODES], number (&states)[MODES], int whole)
{
    const int lane = lane_here(), r = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < MODES / 8; m += 2) {
        number s[2][4], far[2], four[2], eight[2], h[2], v[2], at[2], behind[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            sums_of_chunks(s[j], w.in[m + j], x);
            const int number_of = 8 * (m + j) + r;
            const float4 rate = *(const float4 *)&rates[number_of][0];
            far[j] = { rate.x, rate.y }, four[j] = { rate.z, rate.w }, eight[j] = eighths[number_of];
            v[j] = h[j] = c == 0 ? states[number_of] : number{};
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) v[j] = turned(far[j], v[j], s[j][i]);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            behind[j] = in_front_of_lane(v[j], four[j], eight[j]);
            at[j] = c == 0 ? h[j] : behind[j];
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const number next = turned(far[j], at[j], s[j][i]);
                in_front[m + j][i / 2] = movmatrix(pack_bf16(at[j].re, next.re));
                in_front[m + j][2 + i / 2] = movmatrix(pack_bf16(at[j].im, next.im));
                if (!WHOLE && whole % 4 == i) behind[j] = at[j];
                if (!WHOLE && whole % 4 == i + 1) behind[j] = next;
                at[j] = turned(far[j], next, s[j][i + 1]);
            }
        if (!WHOLE) __syncwarp(); /* what stood in front of the tile has been read by another lane */
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (c == (WHOLE ? 0 : whole / 4)) states[8 * (m + j) + r] = behind[j];
    }
}

template <bool BACK, typename ROWS>
__global__ __launch_bounds__(THREADS, 1) void tiles_walk(const __grid_constant__ tiles_args p, const __grid_constant__ typename ROWS::maps maps)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    walk_shared &w = *(walk_shared *)memory;
    const int warp = warp_here(), first = (int)(blockIdx.x % p.strips) * WARPS;
    if (!BACK) await_last();
    const standing at(p);
    const int64_t begin = at.begin, end = at.end;
    const int tiles = (int)((end - begin + TILE - 1) / TILE); /* tensors have addresses */
    const bool wanted = BACK ? p.du : p.o;
    ROWS of(w, p, maps, warp, first, begin, end);
    of.fetch(0), of.fetch(1);
    if (BACK) await_last(); /* only tile_parameters stands ahead, which has waited for all before it: rows may be read */
    let_next();

    matrices m;
    number(&states)[MODES] = w.states[warp];
    {
        const channel_parameters x = BACK ? at.parameters(p) : at.new_parameters(p);
        const number far = x.far, two = turned(far, far), four = turned(two, two);
        w.rates[warp][at.lane] = x.A;
        w.far[warp][at.lane][0] = far, w.far[warp][at.lane][1] = four, w.eight[warp][at.lane] = turned(four, four);
        states[at.lane] = BACK ? conjugate(at.state(p, p.dsT)) : at.state(p, p.s0);
        m.make<BACK>(w.matrices[warp], w.within[warp], x.A, x.K, at.there && p.skip ? p.skip[at.channel] : 0.f);
    }
    __syncthreads();
    of.turn_in(0);
    of.passed();
    of.next(2);
    for (int k = 0; k < tiles; k++) {
        of.await_others(k);
        of.turn_in(k + 1);
        if (k > 1 && wanted) of.take_behind(k + 1);
        of.passed();
        tokens_of_tile u;
        of.read(u, k);
        uint32_t in_front[MODES / 8][4];
        const int whole = k < tiles - 1 ? CHUNKS : (int)(end - begin - (int64_t)k * TILE) / CHUNK;
        if (whole == CHUNKS)
            chain<true>(in_front, m, u, w.far[warp], w.eight[warp], states, whole);
        else
            chain<false>(in_front, m, u, w.far[warp], w.eight[warp], states, whole);
        of.next(k + 3);
        outputs_of_tile d = {};
        m.outputs(d, u, w.within[warp], in_front);
        of.put(k, d);
    }
    __syncthreads();
    if (tiles > 1 && wanted) of.take(tiles - 2);
    if (tiles && wanted) of.take(tiles - 1);
    of.finish();
    float *last = BACK ? p.ds0 : p.sT;
    if (!last) return;
    const number a = w.rates[warp][at.lane], K = BACK ? at.parameters(p).K : number{};
    number h = states[at.lane];
    const int rest = (int)((end - begin) % CHUNK), whole = (int)((end - begin) % TILE) / CHUNK;
    for (int i = 0; i < rest; i++) { /* what is left of the sequence, token by token */
        const float x = to_float(w.in[(tiles - 1) % SLOTS].of(warp)[row_of(whole)][i]);
        h = BACK ? turned(a, added(h, x, K)) : turned(a, h, { x, 0.f });
    }
    at.put_state(p, last, BACK ? conjugate(h) : h);
}

} // namespace

#endif
