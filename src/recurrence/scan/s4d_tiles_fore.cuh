/* S4D on tensor cores, bf16 (README.md): CHUNK tokens at a time as products of matrices that are the same for all chunks of a channel.
 *
 *   o of a chunk       = Toeplitz(k) u + 2 Re(K Abar^(1 .. CHUNK) h),  k_l = 2 Re(sum K Abar^l),  h: the state in front of the chunk
 *   h behind the chunk = Abar^CHUNK h + sum_j Abar^(CHUNK - 1 - j) u_j
 *
 * A warp has a channel, a CTA WARPS neighbours, from a sequence's first token to its last. The matrices are made once and stay in registers, as the
 * right sides of products whose rows are CHUNKS chunks; between those only the chain of h goes one by one, a lane a number. Rows of memory become
 * rows of tokens by ldmatrix, while a tile before them is worked on: of every tile a warp brings one chunk of all channels. Operands are rounded to
 * bf16, sums and the chain are float32. The way back (s4d_tiles_back.cuh) begins with the same walk, which then leaves the states in front of the
 * tiles. */
#ifndef LNT_S4D_TILES_FORE_CUH
#define LNT_S4D_TILES_FORE_CUH

#include "recurrence/scan/s4d_tiles.cuh"

namespace {

constexpr int WARPS = 16, THREADS = 32 * WARPS;
static_assert(WARPS == CHUNKS, "of every tile a warp brings one chunk");

/* ---- the matrices of a channel ----------------------------------------------------------------------------------------------------------- */

constexpr int WORDS = CHUNK / 2 + 4; /* pairs of tokens of a row: eight rows of four lie in 32 banks */

/* While they are made: pairs of neighbours in the order in which they are summed over. */
struct making {
    uint32_t in[2][MODES * WORDS + 16]; /* real, imaginary parts [MODES][tokens] */
    uint32_t out[CHUNK][MODES + 4];     /* [tokens][(re, -im) of a number] */
    float k[CHUNK];
};

/* Right sides of products [.][16] [16][8], of a lane. */
struct matrices {
    uint32_t in[CHUNK / 16][MODES / 4][2]; /* tokens to numbers: real and imaginary part of one are neighbours */
    uint32_t out[MODES / 8][CHUNK / 8][2]; /* numbers to tokens */
    uint32_t within[CHUNK / 8][2];         /* tokens to tokens 8 e later */

    __device__ __forceinline__ void make(making &w, number a, number K, float skip);
};

__device__ __forceinline__ void matrices::make(making &w, number a, number K, float skip)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    number power = { 1.f, 0.f }, q = K;
    float lags[CHUNK];
#pragma unroll
    for (int g = 0; g < CHUNK / 8; g++) {
        uint32_t re[4], im[4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int l = 8 * g + 2 * s;
            const number next = turned(a, power), after = turned(K, next);
            re[3 - s] = pack_bf16(next.re, power.re), im[3 - s] = pack_bf16(next.im, power.im);
            power = turned(a, next);
            lags[l] = q.re, lags[l + 1] = after.re;
            w.out[l][lane] = pack_bf16(after.re, -after.im);
            q = turned(K, power);
            w.out[l + 1][lane] = pack_bf16(q.re, -q.im);
        }
        const int at = lane * WORDS + CHUNK / 2 - 4 - 4 * g;
        *(uint4 *)&w.in[0][at] = { re[0], re[1], re[2], re[3] };
        *(uint4 *)&w.in[1][at] = { im[0], im[1], im[2], im[3] };
    }
    fold<32, 16, 1>(lags);
    w.k[lane] = lags[0] + (lane == 0 ? skip : 0.f);
    __syncwarp();
    const auto lag = [&](int l) { return l < 0 ? 0.f : w.k[l]; };
#pragma unroll
    for (int e = 0; e < CHUNK / 8; e++) {
        const int l = 8 * e + r - 2 * c;
        within[e][0] = pack_bf16(lag(l), lag(l - 1)), within[e][1] = pack_bf16(lag(l - 8), lag(l - 9));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
            for (int n = 0; n < MODES / 4; n++) in[k][n][i] = w.in[r % 2][(4 * n + r / 2) * WORDS + 8 * k + 4 * i + c];
#pragma unroll
        for (int k = 0; k < MODES / 8; k++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) out[k][n][i] = w.out[8 * n + r][8 * k + 4 * i + c];
    }
}

/* The tokens behind a sequence's last whole chunk, from the state h in front of them, one by one; `g` is the derivative of h in A. */
__device__ __forceinline__ void rest_back(const tiles_args &p, const standing &at, number a, number K, number h)
{
    const int count = (int)((at.end - at.begin) % CHUNK);
    const int64_t place = (at.end - count + at.lane) * p.D + at.channel;
    const bool token = at.there && at.lane < count;
    const float u = token ? to_float(p.u[place]) : 0.f, dy = token && p.dout ? to_float(p.dout[place]) : 0.f;
    number E = conjugate(at.state(p, p.dsT)), g = {}, of_A = {}, of_K = {};
    float du = 0.f;
    for (int i = 0; i < count; i++) {
        const float x = __shfl_sync(~0u, u, i), y = __shfl_sync(~0u, dy, i);
        g = turned(a, g, h), h = turned(a, h, { x, 0.f });
        of_A = added(of_A, y, g), of_K = added(of_K, y, h);
    }
    of_A = turned(K, of_A, turned(E, g));
    for (int i = count - 1; i >= 0; i--) {
        E = added(E, __shfl_sync(~0u, dy, i), K);
        const float sum = warp_sum(E.re);
        if (at.lane == i) du = sum;
        E = turned(a, E);
    }
    const float dskip = warp_sum(u * dy);
    if (!at.there) return;
    *at.seed(p) = E;
    if (token && p.du) p.du[place] = from_float<bf16>(fmaf(p.skip ? p.skip[at.channel] : 0.f, dy, du));
    if (at.lane == 0) p.dskips[at.n * p.D + at.channel] = dskip;
    if (!at.real) return;
    *at.sum(p, SUM_A_RE) = of_A.re, *at.sum(p, SUM_A_IM) = -of_A.im;
    *at.sum(p, SUM_K_RE) = of_K.re, *at.sum(p, SUM_K_IM) = -of_K.im;
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

struct fore_shared {
    chunk_stage<2> stage[2][CHUNKS]; /* first: the copy engine's places are aligned to 256 bytes */
    union {
        making matrices[WARPS];
        struct {
            channel_tiles<2> u[2], o[2];
            number sums[WARPS][CHUNKS][SUMS];
            bf16 states[WARPS][CHUNKS][NUMBERS];
        };
    };
    uint64_t arrived[2][CHUNKS]; /* barriers of the copy engine */
};

/* How a warp brings its chunk of every tile, of all channels, and takes one away: here by its lanes. */
struct rows_by_lanes {
    struct maps {};
    fore_shared &w;
    const tiles_args &p;
    const int warp, first;
    const int64_t begin, end;

    __device__ __forceinline__ rows_by_lanes(fore_shared &w_, const tiles_args &p_, const maps &, int warp_, int first_, int64_t begin_, int64_t end_)
        : w(w_), p(p_), warp(warp_), first(first_), begin(begin_), end(end_)
    {
    }
    __device__ __forceinline__ int64_t token(int64_t k) const { return begin + k * TILE + warp * CHUNK; }
    /* A tile that is not there: zeros. */
    __device__ __forceinline__ void fetch(int64_t k)
    {
        w.stage[k % 2][warp].fetch(p.u + first, token(k), end, p.D, p.D - first);
        cp_async_commit();
    }
    __device__ __forceinline__ void turn_in(int64_t k)
    {
        cp_async_wait<1>();
        __syncwarp();
        w.stage[k % 2][warp].turn_in(w.u[k % 2], warp);
        __syncwarp();
        fetch(k + 2);
    }
    __device__ __forceinline__ void take(int64_t k) { turn_out(p.o + first, w.o[k % 2], warp, token(k), end, p.D, p.D - first); }
    __device__ __forceinline__ void next(int64_t) {}
    __device__ __forceinline__ void finish() {}
};

/* What the tokens of each chunk add to the state. */
__device__ __forceinline__ void chunk_sums(number (&to)[CHUNKS][SUMS], const uint32_t (&u)[CHUNK / 16][4], const matrices &w)
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int n = 0; n < MODES / 4; n++) {
        float d[4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) mma_bf16(d, u[k], w.in[k][n][0], w.in[k][n][1]);
        to[r][4 * n + c] = { d[0], d[1] }, to[r + 8][4 * n + c] = { d[2], d[3] };
    }
}
/* States in front of the chunks, the first `whole` of which the chain passes; unless WANTED the last alone. Sums are read some steps ahead. */
template <bool WANTED>
__device__ __forceinline__ void chain(bf16 (&to)[CHUNKS][NUMBERS], const number (&sums)[CHUNKS][SUMS], number &h, number far, int whole)
{
    constexpr int AHEAD = 8;
    const int lane = (int)threadIdx.x % 32;
    uint32_t *out = (uint32_t *)&to[0][0] + lane;
    const auto step = [&](int i, number sum) {
        if (WANTED) out[i * (NUMBERS / 2)] = pack_bf16(h.re, h.im);
        if (i < whole) h = turned(far, h, sum);
    };
    if (whole < CHUNKS) {
#pragma unroll 1
        for (int i = 0; i < CHUNKS; i++) step(i, sums[i][lane]);
        return;
    }
    whole = CHUNKS;
    number x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x[i] = sums[i][lane];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        step(i, x[i % AHEAD]);
        if (i + AHEAD < CHUNKS) x[i % AHEAD] = sums[i + AHEAD][lane];
    }
}
__device__ __forceinline__ void chunk_outputs(channel_tile &to, const uint32_t (&u)[CHUNK / 16][4], const bf16 (&states)[CHUNKS][NUMBERS],
                                              const matrices &w)
{
    float d[CHUNK / 8][4] = {};
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int n = 2 * k; n < CHUNK / 8; n++) mma_bf16(d[n], u[k], w.within[n - 2 * k][0], w.within[n - 2 * k][1]);
#pragma unroll
    for (int k = 0; k < MODES / 8; k++) {
        uint32_t h[4];
        left(h, states, k);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) mma_bf16(d[n], h, w.out[k][n][0], w.out[k][n][1]);
    }
    put_tokens(to, d);
}

/* KEEP: for the way back, states and no outputs, and then what is behind the last whole chunk. */
template <bool KEEP, typename ROWS>
__global__ __launch_bounds__(THREADS, 1) void tiles_forward(const __grid_constant__ tiles_args p, const __grid_constant__ typename ROWS::maps maps)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    fore_shared &w = *(fore_shared *)memory;
    const int warp = (int)threadIdx.x / 32, first = (int)(blockIdx.x % p.strips) * WARPS;
    await_last();
    let_next();
    const standing at(p, warp, WARPS);
    const int64_t begin = at.begin, end = at.end, tiles = (end - begin + TILE - 1) / TILE;
    ROWS of(w, p, maps, warp, first, begin, end);
    of.fetch(0), of.fetch(1);

    const number a = at.parameter(p, A_RE), far = at.parameter(p, FAR_RE), K = at.parameter(p, K_RE);
    number h = at.state(p, p.s0);
    matrices m;
    m.make(w.matrices[warp], a, K, at.there && p.skip ? p.skip[at.channel] : 0.f);
    __syncthreads();
    of.turn_in(0);
    of.next(2);
    for (int64_t k = 0; k < tiles; k++) {
        const int64_t t = begin + k * TILE;
        const channel_tile &u = w.u[k % 2].of(warp);
        __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
        of.turn_in(k + 1);
        if (!KEEP && k && p.o) of.take(k - 1);
        if (KEEP && at.there) *at.kept(p, k) = h;
        uint32_t rows[CHUNK / 16][4];
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++) left(rows[i], u, i);
        chunk_sums(w.sums[warp], rows, m);
        __syncwarp();
        const int whole = end - t < TILE ? (int)(end - t) / CHUNK : CHUNKS;
        chain<!KEEP>(w.states[warp], w.sums[warp], h, far, whole);
        of.next(k + 3);
        __syncwarp();
        if (!KEEP) chunk_outputs(w.o[k % 2].of(warp), rows, w.states[warp], m);
        if (!KEEP && whole < CHUNKS && p.sT) /* what is left of the sequence, token by token */
            for (int i = 0; i < (int)(end - t) % CHUNK; i++) h = turned(a, h, { to_float(u[whole][i]), 0.f });
    }
    if (KEEP) {
        rest_back(p, at, a, K, h);
        of.finish();
        return;
    }
    __syncthreads();
    if (tiles && p.o) of.take(tiles - 1);
    of.finish();
    at.put_state(p, p.sT, h);
}

} // namespace

#endif
