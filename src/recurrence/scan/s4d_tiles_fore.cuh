/* S4D on tensor cores, bf16 (README.md): CHUNK tokens at a time as products of matrices that are the same for all chunks of a channel.
 *
 *   o of a chunk       = Toeplitz(k) u + 2 Re(K Abar^(1 .. CHUNK) h),  k_l = 2 Re(sum K Abar^l),  h: the state in front of the chunk
 *   h behind the chunk = Abar^CHUNK h + sum_j Abar^(CHUNK - 1 - j) u_j
 *
 * A warp has a channel, a CTA WARPS neighbours, from a sequence's first token to its last. The matrices are made once and stay in registers, and a
 * tile's rows are CHUNKS chunks. What chunks add comes as numbers times chunks, of which a lane has four chunks that follow each other: it takes them
 * together, three shuffles say what enters them, and the states in front of them, turned by movmatrix, are the left side of the product with the
 * read-out. None of that passes through shared memory. Rows of memory become rows of tokens by ldmatrix, while a tile before them is worked on: of
 * every tile a warp brings one chunk of all channels. Operands are rounded to bf16, sums and the chain are float32. The way back
 * (s4d_tiles_back.cuh) begins with the same walk, which then leaves the states in front of the tiles. */
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
    bf16 out[CHUNK][NUMBERS];           /* [tokens][re, -im][MODES] */
    float k[CHUNK];
};

/* Right sides of products, a lane's words: tokens to tokens 8 e later. Registers have no room for it, or the walk's addresses go to the stack. */
using toeplitz = uint2[CHUNK / 8][32];

/* Sides of products, of a lane. */
struct matrices {
    uint32_t in[MODES / 8][CHUNK / 16][4]; /* left: eight numbers' real and imaginary parts by tokens */
    uint32_t out[MODES / 8][CHUNK / 8][2]; /* right: the same parts to tokens */

    __device__ __forceinline__ void make(making &w, toeplitz &within, number a, number K, float skip);
    __device__ __forceinline__ void outputs(channel_tile &to, const channel_tile &u, const toeplitz &within,
                                            const uint32_t (&in_front)[MODES / 8][4]) const
    {
        float d[CHUNK / 8][4] = {};
        uint32_t x[CHUNK / 16][4];
#pragma unroll
        for (int m = 0; m < MODES / 8; m++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) mma_bf16(d[n], in_front[m], out[m][n][0], out[m][n][1]);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) left(x[k], u, k);
        const int lane = lane_here();
#pragma unroll
        for (int e = 0; e < CHUNK / 8; e++) {
            const uint2 b = within[e][lane];
#pragma unroll
            for (int k = 0; e + 2 * k < CHUNK / 8; k++) mma_bf16(d[e + 2 * k], x[k], b.x, b.y);
        }
        put_tokens(to, d);
    }
};

__device__ __forceinline__ void matrices::make(making &w, toeplitz &within, number a, number K, float skip)
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
            w.out[l][lane] = from_float<bf16>(after.re), w.out[l][MODES + lane] = from_float<bf16>(-after.im);
            q = turned(K, power);
            w.out[l + 1][lane] = from_float<bf16>(q.re), w.out[l + 1][MODES + lane] = from_float<bf16>(-q.im);
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
        within[e][lane] = { pack_bf16(lag(l), lag(l - 1)), pack_bf16(lag(l - 8), lag(l - 9)) };
    }
#pragma unroll
    for (int m = 0; m < MODES / 8; m++) {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) in[m][k][i] = w.in[i % 2][(8 * m + r) * WORDS + 8 * k + i / 2 * 4 + c];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) out[m][n][i] = *(const uint32_t *)&w.out[8 * n + r][MODES * i + 8 * m + 2 * c];
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

/* The tile's row of a chunk: as columns of a product, 2 c and 2 c + 1 of two tiles are chunks 4 c and the next three. */
__device__ __forceinline__ int row_of(int chunk) { return chunk / 2 % 2 * 8 + chunk / 4 * 2 + chunk % 2; }

/* Tiles at once. While a warp makes tile k, others may be as far as the beginning of tile k + 1, or still with the end of tile k - 1: a warp brings its
 * part of tile k + 1 ahead of that, and takes away its part of tile k - 2. */
constexpr int SLOTS = 3;

struct fore_shared {
    chunk_stage<2> stage[2][CHUNKS]; /* first: the copy engine's places are aligned to 256 bytes */
    union {
        making matrices[WARPS];
        struct {
            channel_tiles<2> u[SLOTS], o[SLOTS];
        };
    };
    toeplitz within[WARPS];
    alignas(16) number far[WARPS][MODES][2]; /* Abar^CHUNK, its fourth power */
    number eight[WARPS][MODES];              /* its eighth */
    number states[WARPS][MODES];             /* in front of the tile */
    uint64_t arrived[2][CHUNKS];             /* barriers of the copy engine */
    uint64_t turned_in;                      /* and the warps' */
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
    __device__ __forceinline__ int64_t token(int k) const { return begin + (int64_t)k * TILE + warp * CHUNK; }
    /* A tile that is not there: zeros. */
    __device__ __forceinline__ void fetch(int k)
    {
        w.stage[k % 2][warp].fetch(p.u + first, token(k), end, p.D, p.D - first);
        cp_async_commit();
    }
    __device__ __forceinline__ void turn_in(int k)
    {
        cp_async_wait<1>();
        __syncwarp();
        w.stage[k % 2][warp].turn_in(w.u[k % SLOTS], row_of(warp));
        __syncwarp();
        fetch(k + 2);
    }
    __device__ __forceinline__ void take(int k) { turn_out(p.o + first, w.o[k % SLOTS], row_of(warp), token(k), end, p.D, p.D - first); }
    __device__ __forceinline__ void next(int) {}
    __device__ __forceinline__ void finish() {}
    /* Until all warps have called passed as many times, once ahead of tile 0 and once for each tile. */
    __device__ __forceinline__ void passed() {}
    __device__ __forceinline__ void await(int) { __syncthreads(); }
};

__device__ __forceinline__ number from_lane(number x, int lane) { return { __shfl_sync(~0u, x.re, lane), __shfl_sync(~0u, x.im, lane) }; }

/* The states' way over a tile u, whose first `whole` chunks pass them on (all of them if WHOLE). WANTED: `in_front` is to have what stands in front of
 * each chunk, as the left side of a product over numbers.
 * Of number 8 m + r a lane makes v of its four chunks, that of c = 0 from the state in front of the tile. With f for what four chunks do to what
 * enters them, in front of the lanes' chunks are h, v_0, v_1 + f v_0 and v_2 + f v_1 + f^2 v_0, and v_3 + f v_2 + f^2 (v_1 + f v_0) behind the last.
 * Two m at once: one's products and shuffles are the other's time. */
template <bool WANTED, bool WHOLE>
__device__ __forceinline__ void chain(uint32_t (&in_front)[MODES / 8][4], const matrices &w, const channel_tile &u, const number (&rates)[MODES][2],
                                      const number (&eighths)[MODES], number (&states)[MODES], int whole)
{
    const int lane = lane_here(), r = lane / 4, c = lane % 4, back = (lane & ~3) | ((lane + 3) & 3);
    uint32_t x[CHUNK / 16][4];
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) ldmatrix_x4(x[k], shared_address(&u[lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]));
#pragma unroll
    for (int m = 0; m < MODES / 8; m += 2) {
        number s[2][4], far[2], four[2], eight[2], h[2], v[2], at[2], behind[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float d[2][4] = {};
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
                for (int n = 0; n < 2; n++) mma_bf16(d[n], w.in[m + j][k], x[k][2 * n], x[k][2 * n + 1]);
#pragma unroll
            for (int i = 0; i < 4; i++) s[j][i] = { d[i / 2][i % 2], d[i / 2][2 + i % 2] };
            const int number_of = 8 * (m + j) + r;
            const float4 rate = *(const float4 *)&rates[number_of][0];
            far[j] = { rate.x, rate.y }, four[j] = { rate.z, rate.w }, eight[j] = eighths[number_of];
            h[j] = c == 0 ? states[number_of] : number{};
        }
#pragma unroll
        for (int j = 0; j < 2; j++) v[j] = h[j];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) v[j] = turned(far[j], v[j], s[j][i]);
#pragma unroll
        for (int j = 0; j < 2; j++) v[j] = from_lane(v[j], back);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const number two = turned(four[j], from_lane(v[j], back), v[j]);
            v[j] = c == 1 ? v[j] : two;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const number three = turned(eight[j], from_lane(v[j], lane ^ 2), v[j]);
            behind[j] = c == 1 || c == 2 ? v[j] : three;
            at[j] = c == 0 ? h[j] : behind[j];
        }
        if (WANTED || !WHOLE)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const number next = turned(far[j], at[j], s[j][i]);
                    if (WANTED) {
                        in_front[m + j][i / 2] = movmatrix(pack_bf16(at[j].re, next.re));
                        in_front[m + j][2 + i / 2] = movmatrix(pack_bf16(at[j].im, next.im));
                    }
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
    const int64_t begin = at.begin, end = at.end;
    const int tiles = (int)((end - begin + TILE - 1) / TILE); /* tensors have addresses */
    ROWS of(w, p, maps, warp, first, begin, end);
    of.fetch(0), of.fetch(1);

    matrices m;
    number(&states)[MODES] = w.states[warp];
    {
        const number far = at.parameter(p, FAR_RE), two = turned(far, far), four = turned(two, two);
        w.far[warp][at.lane][0] = far, w.far[warp][at.lane][1] = four, w.eight[warp][at.lane] = turned(four, four);
        states[at.lane] = at.state(p, p.s0);
        m.make(w.matrices[warp], w.within[warp], at.parameter(p, A_RE), at.parameter(p, K_RE), at.there && p.skip ? p.skip[at.channel] : 0.f);
    }
    __syncthreads();
    of.turn_in(0);
    of.passed();
    of.next(2);
    for (int k = 0; k < tiles; k++) {
        of.await(k);
        of.turn_in(k + 1);
        if (!KEEP && k > 1 && p.o) of.take(k - 2);
        of.passed();
        if (KEEP && at.there) *at.kept(p, k) = states[at.lane];
        const channel_tile &u = w.u[k % SLOTS].of(warp);
        uint32_t in_front[MODES / 8][4];
        const int whole = k < tiles - 1 ? CHUNKS : (int)(end - begin - (int64_t)k * TILE) / CHUNK;
        if (whole == CHUNKS)
            chain<!KEEP, true>(in_front, m, u, w.far[warp], w.eight[warp], states, whole);
        else
            chain<!KEEP, false>(in_front, m, u, w.far[warp], w.eight[warp], states, whole);
        of.next(k + 3);
        if (!KEEP) m.outputs(w.o[k % SLOTS].of(warp), u, w.within[warp], in_front);
    }
    __syncwarp();
    const number a = at.parameter(p, A_RE);
    number h = states[at.lane];
    if (KEEP) {
        rest_back(p, at, a, at.parameter(p, K_RE), h);
        of.finish();
        return;
    }
    __syncthreads();
    if (tiles > 1 && p.o) of.take(tiles - 2);
    if (tiles && p.o) of.take(tiles - 1);
    of.finish();
    const int rest = (int)((end - begin) % CHUNK), whole = (int)((end - begin) % TILE) / CHUNK;
    if (p.sT) /* what is left of the sequence, token by token */
        for (int i = 0; i < rest; i++) h = turned(a, h, { to_float(w.u[(tiles - 1) % SLOTS].of(warp)[row_of(whole)][i]), 0.f });
    at.put_state(p, p.sT, h);
}

} // namespace

#endif
