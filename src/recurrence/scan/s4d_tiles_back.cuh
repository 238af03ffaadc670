/* S4D in reverse on tensor cores, bf16. With m_t the conjugate of h_t's gradient, K twice C Bbar, A for Abar, L for CHUNK:
 *
 *   m_t = K do_t + A m_{t+1}     du_t = Re(sum m_t) + D do_t     conj(dA) = sum m_t h_{t-1}     conj(dK) / 2 = sum do_t h_t
 *
 * Of a chunk let S be the state in front of it and E what comes back to it, A m of the token behind; X = sum_i A^i do_i. Then in front of it
 * E <- A^L E + K A X, du_j = sum_{i >= j} k_{i-j} do_i + Re(sum A^{L-1-j} E), and with sums over chunks
 *
 *   G_i = sum do_i S,   H_j = sum u_j E,   R_l = sum over tokens i - l >= 0 of do_i u_{i-l}
 *   conj(dK) / 2 = sum_i A^{i+1} G_i + sum_l A^l R_l
 *   conj(dA)     = L A^{L-1} sum E S + sum_j (L-1-j) A^{L-2-j} H_j + K (sum_i (i+1) A^i G_i + sum_l l A^{l-1} R_l)
 *
 * Two warps have a channel, from the last whole chunk to the first: one goes forward over each tile with S and adds up G and R, one backward with E
 * and makes du and H. G, H and R stay in registers until the end. All matrices are parts of one, A^{L-1-j} of tokens j, in shared memory: read by
 * rows, by columns, and with its rows in reverse. */
#ifndef LNT_S4D_TILES_BACK_CUH
#define LNT_S4D_TILES_BACK_CUH

#include "recurrence/scan/s4d_tiles.cuh"

namespace {

constexpr int BACK_CHANNELS = 8, BACK_THREADS = 64 * BACK_CHANNELS;

struct back_shared {
    chunk_stage<1> stage[2][CHUNKS]; /* u, do */
    channel_tiles<1> u[2], dy[2], du[2];
    bf16 powers[BACK_CHANNELS][CHUNK][NUMBERS]; /* A^{L-1-j} */
    number sums[2][BACK_CHANNELS][CHUNKS][SUMS];
    bf16 states[2][BACK_CHANNELS][CHUNKS][NUMBERS]; /* S, conj(E) */
    float lags[BACK_CHANNELS][CHUNK];               /* k */
    number rates[BACK_CHANNELS][MODES];             /* A */
    number front[BACK_CHANNELS][MODES];
};

/* The left side of a product, 16 columns of the tile's rows as its rows; the right side of one, from 16 columns of them. */
template <int COLUMNS> __device__ __forceinline__ void turned_left(uint32_t (&a)[4], const bf16 (&rows)[CHUNKS][COLUMNS], int k)
{
    const int lane = (int)threadIdx.x % 32;
    ldmatrix_x4_trans(a, shared_address(&rows[lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]));
}
template <int COLUMNS> __device__ __forceinline__ void right(uint32_t (&b)[4], const bf16 (&rows)[CHUNKS][COLUMNS], int k)
{
    const int lane = (int)threadIdx.x % 32;
    ldmatrix_x4_trans(b, shared_address(&rows[lane % 16][16 * k + lane / 16 * 8]));
}

/* sums of A^{L-1-j} x_j over the tokens of each chunk, or, REVERSED, of A^j x_j */
template <bool REVERSED>
__device__ __forceinline__ void power_sums(number (&to)[CHUNKS][SUMS], const uint32_t (&x)[2][4], const bf16 (&powers)[CHUNK][NUMBERS])
{
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const uint32_t row = shared_address(&powers[REVERSED ? CHUNK - 1 - lane : lane][0]);
#pragma unroll
    for (int n = 0; n < MODES / 4; n += 2) {
        uint32_t b[2][4];
        float d[2][4] = {};
        ldmatrix_x4_trans(b[0], row + 16 * n), ldmatrix_x4_trans(b[1], row + 16 * n + 16);
        mma_bf16(d[0], x[0], b[0][0], b[0][1]), mma_bf16(d[1], x[0], b[1][0], b[1][1]);
        mma_bf16(d[0], x[1], b[0][2], b[0][3]), mma_bf16(d[1], x[1], b[1][2], b[1][3]);
#pragma unroll
        for (int i = 0; i < 2; i++) to[r][4 * (n + i) + c] = { d[i][0], d[i][1] }, to[r + 8][4 * (n + i) + c] = { d[i][2], d[i][3] };
    }
}

/* A^e, e up to 7, from bits of e; A^8 besides. */
__device__ __forceinline__ number small_power(number a, int e, number &eighth_power)
{
    const number two = turned(a, a), four = turned(two, two);
    number x = { 1.f, 0.f };
    if (e & 1) x = a;
    if (e & 2) x = turned(two, x);
    if (e & 4) x = turned(four, x);
    eighth_power = turned(four, four);
    return x;
}
/* Over the eight rows of a quarter of lanes. */
__device__ __forceinline__ number over_rows(number x)
{
#pragma unroll
    for (int o = 4; o <= 16; o *= 2) x.re += __shfl_xor_sync(~0u, x.re, o), x.im += __shfl_xor_sync(~0u, x.im, o);
    return x;
}

/* ---- with the states ------------------------------------------------------------------------------------------------------------------------ */

struct forward_sums {
    float G[2][MODES / 4][4];  /* [tokens][numbers] */
    float R[2][CHUNK / 8][4];  /* [i][j], i >= j: of the first 16 i half is not used */

    __device__ __forceinline__ void add(const channel_tile &u, const channel_tile &dy, const bf16 (&states)[CHUNKS][NUMBERS])
    {
        uint32_t a[2][4], b[4];
#pragma unroll
        for (int m = 0; m < 2; m++) turned_left(a[m], dy, m);
#pragma unroll
        for (int q = 0; q < MODES / 8; q++) {
            right(b, states, q);
#pragma unroll
            for (int m = 0; m < 2; m++) mma_bf16(G[m][2 * q], a[m], b[0], b[1]), mma_bf16(G[m][2 * q + 1], a[m], b[2], b[3]);
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
            right(b, u, q);
#pragma unroll
            for (int m = q; m < 2; m++) mma_bf16(R[m][2 * q], a[m], b[0], b[1]), mma_bf16(R[m][2 * q + 1], a[m], b[2], b[3]);
        }
    }
    /* What they say of conj(dK) / 2 and of conj(dA), of the lane's number, and R_0; through `room` and `numbers`. */
    __device__ __forceinline__ void finish(const number (&rates)[MODES], number K, float *room, number *numbers, number &of_A, number &of_K,
                                           float &dskip) const
    {
        const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
        constexpr int WIDE = CHUNK + 1;
#pragma unroll
        for (int n = 0; n < MODES / 4; n++) {
            const number a = rates[4 * n + c];
            number far, power = small_power(a, r, far), sum = {}, weighed = {};
#pragma unroll
            for (int q = 0; q < 4; q++) { /* token r + 8 q */
                const number x = turned(power, { G[q / 2][n][q % 2 * 2], G[q / 2][n][q % 2 * 2 + 1] });
                sum = added(sum, 1.f, x), weighed = added(weighed, (float)(r + 8 * q + 1), x);
                power = turned(far, power);
            }
            sum = over_rows(turned(a, sum)), weighed = over_rows(weighed);
            if (r == 0) numbers[4 * n + c] = sum, numbers[MODES + 4 * n + c] = weighed;
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) room[(16 * m + r + i / 2 * 8) * WIDE + 8 * n + 2 * c + i % 2] = R[m][n][i];
        __syncwarp();
        float lag = 0.f;
#pragma unroll
        for (int j = 0; j < CHUNK; j++) lag += j + lane < CHUNK ? room[(j + lane) * WIDE + j] : 0.f;
        __syncwarp();
        room[lane] = lag;
        __syncwarp();
        const number a = rates[lane];
        number sum = {}, slope = {};
#pragma unroll
        for (int l = CHUNK - 1; l >= 0; l--) {
            slope = turned(a, slope, sum);
            sum = turned(a, sum, { room[l], 0.f });
        }
        of_K = added(numbers[lane], 1.f, sum), of_A = turned(K, added(numbers[MODES + lane], 1.f, slope));
        dskip = room[0];
    }
};

constexpr int AHEAD = 4; /* steps of a chain, whose sums are read so far ahead */

__device__ __forceinline__ void walk_states(bf16 (&to)[CHUNKS][NUMBERS], const number (&sums)[CHUNKS][SUMS], number h, number far)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t *out = (uint32_t *)&to[0][0] + lane;
    number x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x[i] = sums[i][lane];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        out[i * (NUMBERS / 2)] = pack_bf16(h.re, h.im);
        h = turned(far, h, x[i % AHEAD]);
        if (i + AHEAD < CHUNKS) x[i % AHEAD] = sums[i + AHEAD][lane];
    }
}

/* ---- with what comes back ------------------------------------------------------------------------------------------------------------------- */

struct backward_sums {
    float H[2][MODES / 4][4]; /* conjugates, [tokens][numbers] */
    number E, both;           /* both: sum of E S */
    uint32_t within[4][2];    /* tokens to tokens 8 (e - 1) before */

    __device__ __forceinline__ void make(const float (&k)[CHUNK])
    {
        const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
        const auto lag = [&](int l) { return l < 0 ? 0.f : k[l]; };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int l = 8 * (e - 1) + 2 * c - r;
            within[e][0] = pack_bf16(lag(l), lag(l + 1)), within[e][1] = pack_bf16(lag(l + 8), lag(l + 9));
        }
    }
    /* The chain over the `whole` chunks of a tile, and conj(E) of each chunk. */
    __device__ __forceinline__ void walk(bf16 (&to)[CHUNKS][NUMBERS], const number (&sums)[CHUNKS][SUMS], const bf16 (&states)[CHUNKS][NUMBERS],
                                         number far, number KA, int whole)
    {
        const int lane = (int)threadIdx.x % 32;
        uint32_t *out = (uint32_t *)&to[0][0] + lane;
        const uint32_t *in = (const uint32_t *)&states[0][0] + lane;
        const auto step = [&](int i, number sum, uint32_t S) {
            out[i * (NUMBERS / 2)] = pack_bf16(E.re, -E.im);
            if (i >= whole) return;
            both = turned(E, { low_bf16(S), high_bf16(S) }, both);
            E = turned(far, E, turned(KA, sum));
        };
        if (whole < CHUNKS) {
#pragma unroll 1
            for (int i = CHUNKS - 1; i >= 0; i--) step(i, sums[i][lane], in[i * (NUMBERS / 2)]);
            return;
        }
        whole = CHUNKS;
        number x[AHEAD];
        uint32_t S[AHEAD];
#pragma unroll
        for (int i = CHUNKS - 1; i >= CHUNKS - AHEAD; i--) x[i % AHEAD] = sums[i][lane], S[i % AHEAD] = in[i * (NUMBERS / 2)];
#pragma unroll
        for (int i = CHUNKS - 1; i >= 0; i--) {
            step(i, x[i % AHEAD], S[i % AHEAD]);
            if (i >= AHEAD) x[i % AHEAD] = sums[i - AHEAD][lane], S[i % AHEAD] = in[(i - AHEAD) * (NUMBERS / 2)];
        }
    }
    __device__ __forceinline__ void through_tokens(float (&d)[CHUNK / 8][4], const uint32_t (&dy)[2][4]) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++)
                if (2 * k - n >= -1) mma_bf16(d[n], dy[k], within[2 * k - n + 1][0], within[2 * k - n + 1][1]);
    }
    __device__ __forceinline__ void through_states(float (&d)[CHUNK / 8][4], const bf16 (&back)[CHUNKS][NUMBERS],
                                                   const bf16 (&powers)[CHUNK][NUMBERS]) const
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < MODES / 8; k++) {
            uint32_t e[4], b[4];
            left(e, back, k);
#pragma unroll
            for (int q = 0; q < 2; q++) {
                ldmatrix_x4(b, shared_address(&powers[16 * q + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]));
                mma_bf16(d[2 * q], e, b[0], b[1]), mma_bf16(d[2 * q + 1], e, b[2], b[3]);
            }
        }
    }
    __device__ __forceinline__ void add(const channel_tile &u, const bf16 (&back)[CHUNKS][NUMBERS])
    {
        uint32_t a[2][4], b[4];
#pragma unroll
        for (int m = 0; m < 2; m++) turned_left(a[m], u, m);
#pragma unroll
        for (int q = 0; q < MODES / 8; q++) {
            right(b, back, q);
#pragma unroll
            for (int m = 0; m < 2; m++) mma_bf16(H[m][2 * q], a[m], b[0], b[1]), mma_bf16(H[m][2 * q + 1], a[m], b[2], b[3]);
        }
    }
    /* What they say of conj(dA), of the lane's number. */
    __device__ __forceinline__ number finish(const number (&rates)[MODES], number *numbers) const
    {
        const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
#pragma unroll
        for (int n = 0; n < MODES / 4; n++) {
            /* token r + 8 q has a factor of v A^{v-1}, v = 7 - r + 8 (3 - q) */
            number far, power = small_power(rates[4 * n + c], (6 - r) & 7, far), sum = {};
#pragma unroll
            for (int q = 3; q >= 0; q--) {
                const number x = turned(power, { H[q / 2][n][q % 2 * 2], -H[q / 2][n][q % 2 * 2 + 1] });
                sum = added(sum, (float)(31 - r - 8 * q), x);
                if (q < 3 || r < 7) power = turned(far, power);
            }
            sum = over_rows(sum);
            if (r == 0) numbers[4 * n + c] = sum;
        }
        __syncwarp();
        const number a = rates[lane];
        number last = a, square = a; /* A^{L-1} */
#pragma unroll
        for (int n = 2; n < CHUNK; n *= 2) square = turned(square, square), last = turned(last, square);
        return added(numbers[lane], (float)CHUNK, turned(last, both));
    }
};

__device__ __forceinline__ void make_powers(back_shared &w, int c, number a, number K, float skip)
{
    const int lane = (int)threadIdx.x % 32;
    number power = { 1.f, 0.f };
    float lags[CHUNK];
#pragma unroll
    for (int l = 0; l < CHUNK; l++) {
        *(uint32_t *)&w.powers[c][CHUNK - 1 - l][2 * lane] = pack_bf16(power.re, power.im);
        lags[l] = turned(K, power).re;
        power = turned(a, power);
    }
    fold<32, 16, 1>(lags);
    w.lags[c][lane] = lags[0] + (lane == 0 ? skip : 0.f);
    w.rates[c][lane] = a;
}

__global__ __launch_bounds__(BACK_THREADS, 1) void tiles_backward(const __grid_constant__ tiles_args p)
{
    extern __shared__ __align__(1024) unsigned char memory[]; /* as the walk's, in the same file */
    back_shared &w = *(back_shared *)memory;
    await_last();
    let_next();
    const int warp = (int)threadIdx.x / 32, of_cta = warp % BACK_CHANNELS, first = (int)(blockIdx.x % p.strips) * BACK_CHANNELS;
    const bool back = warp >= BACK_CHANNELS; /* with what comes back, and not with the states */
    const standing at(p, of_cta, BACK_CHANNELS);
    const int64_t chunks = (at.end - at.begin) / CHUNK, end = at.begin + chunks * CHUNK;
    const int tiles = (int)((chunks + CHUNKS - 1) / CHUNKS); /* at most the parts of kept, which have addresses */
    /* of every tile a warp that goes with the states brings and takes two chunks of all channels */
    const auto fetch = [&](int k) {
#pragma unroll
        for (int c = of_cta; c < CHUNKS; c += BACK_CHANNELS) {
            const int64_t t = at.begin + (int64_t)k * TILE + c * CHUNK;
            w.stage[0][c].fetch(p.u + first, t, end, p.D, 8);
            w.stage[1][c].fetch((p.dout ? p.dout : p.u) + first, t, p.dout ? end : t, p.D, 8);
        }
        cp_async_commit();
    };
    const auto bring = [&](int k) {
        cp_async_wait<1>(); /* but for what `state` has asked for since */
        __syncwarp();
#pragma unroll
        for (int c = of_cta; c < CHUNKS; c += BACK_CHANNELS) w.stage[0][c].turn_in(w.u[k % 2], c), w.stage[1][c].turn_in(w.dy[k % 2], c);
        __syncwarp();
        k ? fetch(k - 1) : cp_async_commit();
    };
    const auto take = [&](int k) {
        if (!p.du) return;
#pragma unroll
        for (int c = of_cta; c < CHUNKS; c += BACK_CHANNELS)
            turn_out(p.du + first, w.du[k % 2], c, at.begin + (int64_t)k * TILE + c * CHUNK, end, p.D, 8);
    };
    /* the state in front of a tile, 16 bytes each of half the lanes */
    const auto state = [&](int k) {
        if (at.lane < MODES / 2) cp_async_16(shared_address(&w.front[of_cta][2 * at.lane]), at.kept(p, k) + at.lane);
        cp_async_commit();
    };
    if (!back && tiles) fetch(tiles - 1), state(tiles - 1);
    const number a = at.parameter(p, A_RE), K = at.parameter(p, K_RE), far = at.parameter(p, FAR_RE);
    if (back) make_powers(w, of_cta, a, K, p.skip ? p.skip[at.channel] : 0.f);
    if (!back && tiles) bring(tiles - 1);
    __syncthreads();
    const auto pair = [&] { asm volatile("bar.sync %0, 64;" ::"r"(of_cta + 1) : "memory"); };
    uint32_t rows[2][4];
    if (!back) {
        forward_sums s = {};
        for (int k = tiles - 1; k >= 0; k--) {
            const channel_tile &u = w.u[k % 2].of(of_cta);
            __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
            left(rows[0], u, 0), left(rows[1], u, 1);
            power_sums<false>(w.sums[0][of_cta], rows, w.powers[of_cta]);
            cp_async_wait<1>(); /* the state: only a tile has been asked for since */
            __syncwarp();
            walk_states(w.states[0][of_cta], w.sums[0][of_cta], w.front[of_cta][at.lane], far);
            pair();
            if (k) state(k - 1);
            s.add(u, w.dy[k % 2].of(of_cta), w.states[0][of_cta]);
            if (k) bring(k - 1);
            if (k + 1 < tiles) take(k + 1);
        }
        __syncthreads();
        if (tiles) take(0);
        number of_A, of_K;
        float dskip;
        s.finish(w.rates[of_cta], K, (float *)w.sums[0][of_cta], (number *)w.states[0][of_cta], of_A, of_K, dskip);
        __syncthreads();
        of_A = added(of_A, 1.f, w.sums[1][of_cta][0][at.lane]);
        if (at.lane == 0) p.dskips[at.n * p.D + at.channel] += dskip;
        if (!at.real) return;
        *at.sum(p, SUM_A_RE) += of_A.re, *at.sum(p, SUM_A_IM) -= of_A.im;
        *at.sum(p, SUM_K_RE) += of_K.re, *at.sum(p, SUM_K_IM) -= of_K.im;
    } else {
        backward_sums s = {};
        s.make(w.lags[of_cta]);
        s.E = *at.seed(p);
        const number KA = turned(K, a);
        int whole = (int)(chunks - (int64_t)(tiles - 1) * CHUNKS);
        for (int k = tiles - 1; k >= 0; k--, whole = CHUNKS) {
            const channel_tile &dy = w.dy[k % 2].of(of_cta);
            __syncthreads();
            left(rows[0], dy, 0), left(rows[1], dy, 1);
            power_sums<true>(w.sums[1][of_cta], rows, w.powers[of_cta]);
            pair();
            s.walk(w.states[1][of_cta], w.sums[1][of_cta], w.states[0][of_cta], far, KA, whole);
            __syncwarp();
            float d[CHUNK / 8][4] = {};
            s.through_tokens(d, rows);
            s.through_states(d, w.states[1][of_cta], w.powers[of_cta]);
            put_tokens(w.du[k % 2].of(of_cta), d);
            s.add(w.u[k % 2].of(of_cta), w.states[1][of_cta]);
        }
        __syncthreads();
        at.put_state(p, p.ds0, conjugate(s.E));
        w.sums[1][of_cta][0][at.lane] = s.finish(w.rates[of_cta], (number *)w.states[1][of_cta]);
        __syncthreads();
    }
}

} // namespace

#endif
