/* The selective scan on a GPU (README.md, states.cuh), token by token, with decays of either sign too; longhorn. Tokens of the next tile are on their
 * way from memory meanwhile.
 *
 * Exponentials decide: one a number forward, two in reverse. Forward again on the way back keeps the state at the start of every ROUND tokens; back,
 * a round's states and decays are made again and stay in registers. What a CTA's channels add to dB and dC is one of as many parts as there are CTAs
 * to a sequence; those are added in order, and so are the sequences' of dA and dD. */
#include "device/mma.cuh"
#include "recurrence/scan/states.cuh"

#include <type_traits>

namespace {

constexpr int WIDEST = 128;
constexpr float LOG2E = (float)LNT_LOG2E;
enum rule { EXPONENTIAL, SIGNED, LONGHORN };

struct selective_args {
    const void *u, *B, *C, *dout; /* dout NULL: zeros */
    const float *delta, *A, *skip, *s0, *dsT;
    const float *squares;         /* longhorn: B.B [T] */
    void *o, *du;
    float *ddelta, *sT, *ds0;
    float *kept;                  /* [T / ROUND + N,D,MP] */
    float *dB, *dC, *dsquares, *dA, *dskip; /* parts: [strips,T,M] twice, [strips,T], [N,D,M], [N,D]; NULL: not wanted */
    const int64_t *cu;
    int64_t T;
    int D, M, strips;
    bool roomy; /* back_shared */
};

template <typename S> struct tile {
    float B[S::MP][PITCH], C[S::MP][PITCH], u[S::CH][PITCH], delta[S::CH][PITCH];
};
template <typename S> struct back_tile {
    tile<S> x;
    float dy[S::CH][PITCH], share[S::CH][PITCH]; /* share: longhorn's Delta / beta */
};

/* What a tile is made of; those from the sequence's end on change nothing. KEEP: without C. */
template <typename T, typename S, int RULE, bool BACK, bool KEEP> struct fetched {
    rows<float, S::CH, S::WARPS, 0> delta;
    rows<T, S::CH, S::WARPS, decltype(delta)::next()> u;
    rows<T, S::MP, S::WARPS, decltype(u)::next()> B;
    rows<T, S::MP, S::WARPS, decltype(B)::next()> C;
    rows<T, S::CH, S::WARPS, decltype(C)::next()> dy;
    float squares;

    __device__ __forceinline__ void fetch(const selective_args &p, const place<S> &at, int64_t t)
    {
        delta.fetch(p.delta, t, at.end, p.D, at.first);
        u.fetch(p.u, t, at.end, p.D, at.first);
        B.fetch(p.B, t, at.end, p.M, 0);
        if (!KEEP) C.fetch(p.C, t, at.end, p.M, 0);
        if (BACK) dy.fetch(p.dout, t, at.end, p.D, at.first);
        if (RULE == LONGHORN) squares = t + at.lane < at.end ? p.squares[t + at.lane] : 0.f;
    }
    __device__ __forceinline__ void put(tile<S> &x, float (*share)[PITCH])
    {
        using of = decltype(delta);
        if (RULE == LONGHORN)
#pragma unroll
            for (int k = 0; k < of::EACH; k++)
#pragma unroll
                for (int i = 0; i < of::PER; i++) {
                    const float part = 1.f / fmaf(delta.element(k, i), squares, 1.f);
                    delta.x[k][i] = __float_as_uint(delta.element(k, i) * part);
                    if (BACK && of::part(k) < of::PARTS) share[of::part(k) * of::PER + i][threadIdx.x % 32] = part;
                }
        delta.put(x.delta);
        u.put(x.u);
        B.put(x.B);
        if (!KEEP) C.put(x.C);
    }
};

/* ---- arithmetic -------------------------------------------------------------------------------------------------------------------------- */

/* A token's decay of a number with rate A LOG2E. */
template <int RULE> __device__ __forceinline__ float decay_of(float delta, float rate, float B)
{
    if (RULE == LONGHORN) return fmaf(-delta * B, B, 1.f);
    const float e = fast_exp2(delta * rate);
    return RULE == SIGNED ? fmaf(2.f, e, -1.f) : e;
}

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

template <typename S> struct fore_shared {
    tile<S> x[2];
    float out[2][S::CH][PITCH];
};

/* KEEP: for the way back, states and no outputs. */
template <typename T, typename S, int RULE, bool KEEP>
__global__ __launch_bounds__(S::THREADS, 1) void forward_kernel(const __grid_constant__ selective_args p)
{
    using sums = of_channel<S>;
    using out_rows = rows<T, S::CH, S::WARPS, 0>;
    constexpr int EACH = S::EACH, ROUND = S::ROUND;
    extern __shared__ __align__(16) unsigned char memory[];
    fore_shared<S> &w = *(fore_shared<S> *)memory;
    await_last();
    let_next();
    const place<S> at(p);
    float rate[EACH], h[EACH];
    at.read(p, rate, p.A, 0);
    at.read(p, h, p.s0, at.n);
#pragma unroll
    for (int i = 0; i < EACH; i++) rate[i] *= LOG2E;
    const float skip = at.real && p.skip ? p.skip[at.channel] : 0.f;
    fetched<T, S, RULE, false, KEEP> next;
    if (at.tiles) next.fetch(p, at, at.begin);
    for (int64_t k = 0; k < at.tiles; k++) {
        const int64_t t = at.begin + k * TB;
        const tile<S> &x = w.x[k % 2];
        next.put(w.x[k % 2], NULL);
        if (k + 1 < at.tiles) next.fetch(p, at, t + TB);
        __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
        if (k && !KEEP) out_rows::store(p.o, w.out[(k - 1) % 2], t - TB, TB, p.D, at.first);
        const auto round = [&](int r) { /* whose tokens that do not exist change nothing */
            float o[ROUND];
            if (KEEP && at.real && t + r * ROUND < at.end)
#pragma unroll
                for (int i = 0; i < EACH; i++) at.kept(p, k * S::ROUNDS + r)[at.number(i)] = h[i];
#pragma unroll
            for (int j0 = 0; j0 < ROUND; j0 += 4) {
                float delta[4], input[4];
                four(delta, &x.delta[at.of_cta][r * ROUND + j0]);
                four(input, &x.u[at.of_cta][r * ROUND + j0]);
#pragma unroll
                for (int j = 0; j < 4; j++) input[j] *= delta[j], o[j0 + j] = 0.f;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    float B[4], C[4] = {};
                    four(B, &x.B[at.number(i)][r * ROUND + j0]);
                    if (!KEEP) four(C, &x.C[at.number(i)][r * ROUND + j0]);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        h[i] = fmaf(decay_of<RULE>(delta[j], rate[i], B[j]), h[i], input[j] * B[j]);
                        if (!KEEP) o[j0 + j] = fmaf(h[i], C[j], o[j0 + j]);
                    }
                }
            }
            if (KEEP) return;
            sums::sum(o);
#pragma unroll
            for (int i = 0; i < sums::EACH; i++) {
                const int j = r * ROUND + sums::token(at.m) + i;
                if (sums::mine(at.m)) w.out[k % 2][at.of_cta][j] = fmaf(skip, x.u[at.of_cta][j], o[i]);
            }
        };
        if (t + ROUND >= at.end) {
            round(0);
            continue;
        }
#pragma unroll
        for (int r = 0; r < S::ROUNDS; r++) round(r); /* one behind the other, so that none waits for the sums of the one before */
    }
    if (KEEP) return;
    __syncthreads();
    if (at.tiles) {
        const int64_t k = at.tiles - 1, t = at.begin + k * TB;
        out_rows::store(p.o, w.out[k % 2], t, (int)(at.end - t), p.D, at.first);
    }
    at.write(p, p.sT, h, at.n);
}

/* ---- in reverse -------------------------------------------------------------------------------------------------------------------------- */

/* What a CTA's channels add to dB and dC in a round: of each warp sums over half of its channels (or, where it has one, its own), four tokens of a
 * number together. A warp puts both halves side by side, 16 bytes a lane, and reads one at a time, 8 bytes a lane: places of the second half are
 * changed over by fours, so that neither meets itself in a bank. */
template <typename S> struct round_sums {
    static constexpr int HALVES = S::TURNED ? 2 : 1, LEFT = S::TURNED ? 1 : S::EACH;
    float of[S::WARPS][S::ROUND / 4][2][HALVES][S::MP][4], squares[S::WARPS][S::ROUND];

    static __device__ __forceinline__ int slot(int half, int number) { return number ^ half * 4; }
};
/* In front of tiles and sums in shared memory, of which there are two where a GPU has room: a tile then passes one barrier. */
template <typename S> struct back_shared {
    float du[2][S::CH][PITCH], ddelta[2][S::CH][PITCH];
    float states[2][S::CH * S::MP]; /* in front of a round, and of the next */

    /* sums of two tiles, which are added up while the next tile's come; of two rounds where those are many */
    static constexpr bool BY_TILE = 2 * S::ROUNDS * sizeof(round_sums<S>) <= 140 << 10;
    static constexpr int SUMS = BY_TILE ? 2 * S::ROUNDS : 2;
    static constexpr size_t bytes(bool roomy)
    {
        return sizeof(back_shared) + (roomy ? 2 : 1) * sizeof(back_tile<S>) + (roomy ? SUMS : 1) * sizeof(round_sums<S>);
    }
    __device__ __forceinline__ back_tile<S> *tiles() { return (back_tile<S> *)(this + 1); }
    __device__ __forceinline__ round_sums<S> *sums(bool roomy) { return (round_sums<S> *)(tiles() + (roomy ? 2 : 1)); }
};

/* dB and dC of a round, from the whole CTA: two tokens of a number a thread. */
template <typename S, int RULE>
__device__ __forceinline__ void put_sums(const selective_args &p, const place<S> &at, const round_sums<S> &w, int64_t t)
{
    constexpr int TASKS = S::ROUND * S::MP / S::THREADS;
    const int64_t row = ((int64_t)at.strip * p.T + t) * p.M;
#pragma unroll
    for (int k = 0; k < TASKS; k++) {
        const int i = (int)threadIdx.x + k * S::THREADS, part = i % 2 * 2, m = i / 2 % S::MP;
        const int which = i / (2 * S::MP) % 2, four_of = i / (4 * S::MP);
        float2 sum;
#pragma unroll
        for (int warp = 0; warp < S::WARPS; warp++)
#pragma unroll
            for (int half = 0; half < w.HALVES; half++) {
                const float2 x = *(const float2 *)&w.of[warp][four_of][which][half][w.slot(half, m)][part];
                sum = warp + half ? make_float2(sum.x + x.x, sum.y + x.y) : x;
            }
        const int j = 4 * four_of + part;
        float *to = (which ? p.dC : p.dB) + row + j * p.M + m;
        if (m < p.M && t + j < at.end) to[0] = sum.x;
        if (m < p.M && t + j + 1 < at.end) to[p.M] = sum.y;
    }
    const int j = (int)threadIdx.x;
    if (RULE != LONGHORN || j >= S::ROUND || t + j >= at.end) return;
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < S::WARPS; k++) sum += w.squares[k][j];
    p.dsquares[at.strip * p.T + t + j] = sum;
}

/* What a thread carries over its channel's tokens. */
template <typename S> struct carried {
    float A[S::EACH], rate[S::EACH], lam[S::EACH], dA[S::EACH], skip, dskip;
};

/* Tokens of .. of + ROUND - 1 of the tile; h: the states in front of them. */
template <typename S, int RULE>
__device__ __forceinline__ void back_round(const place<S> &at, const back_tile<S> &w, round_sums<S> &all, carried<S> &s, float (&h)[S::EACH], int of,
                                           float (*du)[PITCH], float (*ddelta)[PITCH])
{
    constexpr int EACH = S::EACH, ROUND = S::ROUND;
    using sums = of_channel<S>;
    const tile<S> &x = w.x;
    float before[ROUND][EACH], e[ROUND][EACH], delta[ROUND], input[ROUND], through_b[ROUND], through_a[ROUND];
#pragma unroll
    for (int j0 = 0; j0 < ROUND; j0 += 4) {
        float d[4], u[4];
        four(d, &x.delta[at.of_cta][of + j0]);
        four(u, &x.u[at.of_cta][of + j0]);
#pragma unroll
        for (int j = 0; j < 4; j++) delta[j0 + j] = d[j], input[j0 + j] = d[j] * u[j];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float B[4];
            four(B, &x.B[at.number(i)][of + j0]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int k = j0 + j;
                before[k][i] = h[i], e[k][i] = decay_of<RULE>(delta[k], s.rate[i], B[j]);
                h[i] = fmaf(e[k][i], h[i], input[k] * B[j]);
            }
        }
    }
#pragma unroll
    for (int j0 = ROUND - 4; j0 >= 0; j0 -= 4) {
        float dy[4], v[2][EACH][4];
        four(dy, &w.dy[at.of_cta][of + j0]);
#pragma unroll
        for (int j = 0; j < 4; j++) through_b[j0 + j] = through_a[j0 + j] = 0.f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float B[4], C[4];
            four(B, &x.B[at.number(i)][of + j0]);
            four(C, &x.C[at.number(i)][of + j0]);
#pragma unroll
            for (int j = 3; j >= 0; j--) {
                const int k = j0 + j;
                const float lam = fmaf(dy[j], C[j], s.lam[i]);
                s.lam[i] = e[k][i] * lam;
                const float slope = (RULE == LONGHORN ? lam : RULE == SIGNED ? s.lam[i] + lam : s.lam[i]) * before[k][i];
                const float after = k + 1 < ROUND ? before[k + 1 < ROUND ? k + 1 : 0][i] : h[i];
                v[1][i][j] = dy[j] * after, v[0][i][j] = lam * input[k];
                through_b[k] = fmaf(lam, B[j], through_b[k]);
                if (RULE == LONGHORN) {
                    v[0][i][j] = fmaf(-2.f * delta[k] * B[j], slope, v[0][i][j]);
                    through_a[k] = fmaf(-B[j] * B[j], slope, through_a[k]);
                } else {
                    s.dA[i] = fmaf(slope, delta[k], s.dA[i]);
                    through_a[k] = fmaf(slope, s.A[i], through_a[k]);
                }
            }
        }
#pragma unroll
        for (int which = 0; which < 2; which++)
#pragma unroll
            for (int i = 0; i < all.LEFT; i++) {
                float(&x)[4] = v[which][i];
                if (S::TURNED)
#pragma unroll
                    for (int j = 0; j < 4; j++) x[j] += __shfl_xor_sync(~0u, v[which][EACH - 1][j], 16);
                const int half = S::TURNED ? at.lane % 2 : 0;
                *(float4 *)all.of[at.warp][j0 / 4][which][half][all.slot(half, at.number(i))] = make_float4(x[0], x[1], x[2], x[3]);
            }
    }
    sums::sum(through_b);
    sums::sum(through_a);
    using some = lnt_pack<float, sums::EACH>;
    const int at_token = of + sums::token(at.m);
    const some d = *(const some *)&x.delta[at.of_cta][at_token], u = *(const some *)&x.u[at.of_cta][at_token];
    const some dy = *(const some *)&w.dy[at.of_cta][at_token];
    some share, to_u, to_delta;
    if (RULE == LONGHORN) share = *(const some *)&w.share[at.of_cta][at_token];
#pragma unroll
    for (int i = 0; i < sums::EACH; i++) {
        const float step = fmaf(u.x[i], through_b[i], through_a[i]);
        to_u.x[i] = fmaf(d.x[i], through_b[i], s.skip * dy.x[i]), to_delta.x[i] = RULE == LONGHORN ? step * share.x[i] * share.x[i] : step;
        if (sums::mine(at.m)) s.dskip = fmaf(dy.x[i], u.x[i], s.dskip);
        if (RULE != LONGHORN) continue;
        float to_squares = -step * d.x[i] * d.x[i];
#pragma unroll
        for (int o = 16; o; o >>= 1)
            if (o >= S::G * S::NEXT || o < S::NEXT) to_squares += __shfl_xor_sync(~0u, to_squares, o);
        if (at.of_cta % S::OF_WARP == 0 && sums::mine(at.m)) all.squares[at.warp][sums::token(at.m) + i] = to_squares;
    }
    if (!sums::mine(at.m)) return;
    *(some *)&du[at.of_cta][at_token] = to_u;
    *(some *)&ddelta[at.of_cta][at_token] = to_delta;
}

template <typename T, typename S, int RULE>
__global__ __launch_bounds__(S::THREADS, 1) void backward_kernel(const __grid_constant__ selective_args p)
{
    constexpr int EACH = S::EACH, ROUND = S::ROUND, ROUNDS = S::ROUNDS;
    using sh = back_shared<S>;
    extern __shared__ __align__(16) unsigned char memory[];
    sh &w = *(sh *)memory;
    await_last();
    let_next();
    const place<S> at(p);
    carried<S> s;
    at.read(p, s.A, p.A, 0);
    at.read(p, s.lam, p.dsT, at.n);
#pragma unroll
    for (int i = 0; i < EACH; i++) s.rate[i] = s.A[i] * LOG2E, s.dA[i] = 0.f;
    s.skip = at.real && p.skip ? p.skip[at.channel] : 0.f, s.dskip = 0.f;
    fetched<T, S, RULE, true, false> next;
    /* the state in front of a round of the warp's channels, 16 bytes a lane: through shared memory, since registers would be waited for early */
    constexpr int OF_WARP = S::OF_WARP * S::MP;
    const int mine = 4 * at.lane, channel = at.first + at.warp * S::OF_WARP + mine / S::MP;
    int64_t ahead = (at.end - at.begin + ROUND - 1) / ROUND; /* the round whose state came last */
    const float *kept = p.kept + ((at.begin / ROUND + at.n + ahead) * p.D + (channel < p.D ? channel : 0)) * S::MP + mine % S::MP;
    const auto fetch_state = [&] {
        if (ahead) {
            ahead--, kept -= (int64_t)p.D * S::MP;
            if (mine < OF_WARP) cp_async_16(shared_address(&w.states[(int)ahead & 1][at.warp * OF_WARP + mine]), kept, channel < p.D);
        }
        cp_async_commit();
    };
    round_sums<S> *const all = w.sums(p.roomy);
    const auto rounds_of = [&](int64_t k) { /* of tile k that have tokens */
        const int64_t left = at.end - at.begin - k * TB;
        return left < TB ? (int)(left + ROUND - 1) / ROUND : ROUNDS;
    };
    const auto store = [&](int64_t k) { /* behind a barrier behind tile k */
        const int64_t t = at.begin + k * TB;
        const int count = (int)(at.end - t < TB ? at.end - t : TB), turn = (int)k & 1;
        if (sh::BY_TILE && p.roomy)
            for (int r = rounds_of(k) - 1; r >= 0; r--) put_sums<S, RULE>(p, at, all[turn * ROUNDS + r], t + r * ROUND);
        rows<T, S::CH, S::WARPS, 0>::store(p.du, w.du[turn], t, count, p.D, at.first);
        rows<float, S::CH, S::WARPS, 0>::store(p.ddelta, w.ddelta[turn], t, count, p.D, at.first);
    };
    fetch_state();
    if (at.tiles) next.fetch(p, at, at.begin + (at.tiles - 1) * TB);
    for (int64_t k = at.tiles - 1; k >= 0; k--) {
        const int turn = (int)k & 1;
        back_tile<S> &x = w.tiles()[p.roomy ? turn : 0];
        next.put(x.x, x.share);
        next.dy.put(x.dy);
        if (k) next.fetch(p, at, at.begin + (k - 1) * TB);
        __syncthreads(); /* what a tile wrote is read, and its place used again, behind the next tile's */
        if (k + 1 < at.tiles) store(k + 1);
        for (int r = rounds_of(k) - 1; r >= 0; r--) {
            round_sums<S> &sums = all[p.roomy ? (turn * ROUNDS + r) % sh::SUMS : 0];
            float h[EACH];
            __syncwarp(); /* the state of the round behind has been read */
            fetch_state();
            cp_async_wait<1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < EACH; i++) h[i] = w.states[r % 2][at.of_cta * S::MP + at.number(i)];
            back_round<S, RULE>(at, x, sums, s, h, r * ROUND, w.du[turn], w.ddelta[turn]);
            if (sh::BY_TILE && p.roomy) continue;
            __syncthreads();
            put_sums<S, RULE>(p, at, sums, at.begin + k * TB + r * ROUND);
            if (!p.roomy) __syncthreads();
        }
    }
    __syncthreads();
    if (at.tiles) store(0);
    at.write(p, p.ds0, s.lam, at.n);
    if (RULE != LONGHORN) at.write(p, p.dA, s.dA, at.n);
    s.dskip = of_channel<S>::of_all(s.dskip);
    if (p.dskip && at.real && at.m == 0) p.dskip[at.n * p.D + at.channel] = s.dskip;
}

/* ---- longhorn's k.k ---------------------------------------------------------------------------------------------------------------------- */

constexpr int SMALL_THREADS = 256;

/* squares [T] = rows of B with themselves, a warp each. */
template <typename T> __global__ __launch_bounds__(SMALL_THREADS) void squares_kernel(const T *B, float *squares, int64_t rows_, int M)
{
    await_last();
    let_next();
    const int64_t t = (int64_t)blockIdx.x * (SMALL_THREADS / 32) + threadIdx.x / 32;
    if (t >= rows_) return;
    float sum = 0.f;
    for (int m = (int)threadIdx.x % 32; m < M; m += 32) {
        const float x = to_float(B[t * M + m]);
        sum = fmaf(x, x, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[t] = sum;
}

/* dB [T,M] = sums of its parts and 2 B times those of the squares' [strips,T]. */
template <typename T>
__global__ __launch_bounds__(SMALL_THREADS) void through_squares_kernel(T *dB, const T *B, const float *parts, const float *dsquares, int strips,
                                                                        int64_t rows_, int M)
{
    await_last();
    let_next();
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x;
    if (i >= rows_ * M) return;
    float sum = 0.f, to_squares = 0.f;
    for (int s = 0; s < strips; s++) sum += parts[s * rows_ * M + i], to_squares += dsquares[s * rows_ + i / M];
    dB[i] = from_float<T>(fmaf(2.f * to_float(B[i]), to_squares, sum));
}

/* ---- sums of parts ----------------------------------------------------------------------------------------------------------------------- */

/* dB, dC [elements] = sums of their parts [strips,elements]: a lane an element, a warp each eighth strip. */
template <typename T>
__global__ __launch_bounds__(SMALL_THREADS) void parts_kernel(T *dB, T *dC, const float *parts_B, const float *parts_C, int strips, int64_t elements)
{
    constexpr int WARPS = SMALL_THREADS / 32;
    __shared__ float sums[WARPS][32];
    await_last();
    let_next();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane;
    const float *from = (blockIdx.y ? parts_C : parts_B) + i;
    T *to = blockIdx.y ? dC : dB;
    float sum = 0.f;
    if (i < elements)
#pragma unroll 8
        for (int s = warp; s < strips; s += WARPS) sum += from[s * elements];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || !to || i >= elements) return;
#pragma unroll
    for (int k = 1; k < WARPS; k++) sum += sums[k][lane];
    to[i] = from_float<T>(sum);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

template <int SIZE> struct shape_for {
    using type = shape<32, SIZE / 32>;
};
template <> struct shape_for<16> {
    using type = shape<8, 2, 8, 16>;
};
template <int SIZE> using shape_of = typename shape_for<SIZE>::type;
/* M up to 16, 32, 64, 128. The way back of 64 has more shared memory than that of 128, and more than the 99 KB of sm_86 and sm_89. */
int size_of(const lnt_selective_args *a)
{
    const bool roomy = a->M > 32 && a->M <= 64 && back_shared<shape_of<64>>::bytes(false) <= (size_t)lnt_block_room();
    return a->M <= 16 ? 16 : a->M <= 32 ? 32 : roomy ? 64 : 128;
}
/* The walk that keeps states has no sums over lanes, which one number in a lane would double: twice the warps wait for the exponentials. */
template <int SIZE> using keeping_shape = std::conditional_t<SIZE == 16, shape<16, 1, 16, 16>, shape_of<SIZE>>;
int64_t strips_of(const lnt_selective_args *a)
{
    const int size = size_of(a);
    return lnt_div_up(a->D, size == 16 ? shape_of<16>::CH : size == 32 ? shape_of<32>::CH : size == 64 ? shape_of<64>::CH : shape_of<128>::CH);
}
bool longhorn(const lnt_selective_args *a) { return a->op->kind == LNT_LONGHORN; }

/* In the workspace. */
size_t carve(const lnt_selective_args *a, bool back, selective_args *p)
{
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t rows_ = strips_of(a) * a->tokens, rounds = a->tokens / (size_of(a) <= 32 ? 16 : 8) + a->sequences;
    float *squares = m.take<float>(longhorn(a) ? a->tokens : 0);
    p->squares = squares;
    if (!back) return m.used;
    p->kept = m.take<float>(rounds * a->D * size_of(a));
    p->dB = m.take<float>(rows_ * a->M), p->dC = m.take<float>(rows_ * a->M);
    p->dsquares = m.take<float>(longhorn(a) ? rows_ : 0);
    p->dA = m.take<float>(a->sequences * a->D * a->M);
    p->dskip = m.take<float>(a->sequences * a->D);
    return m.used;
}

selective_args args_of(const lnt_selective_args *a)
{
    selective_args p = {};
    p.u = a->u, p.B = a->B, p.C = a->C;
    p.delta = (const float *)a->delta, p.A = (const float *)a->A, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.cu = a->cu_seqlens_device, p.T = a->tokens, p.D = a->D, p.M = a->M, p.strips = (int)strips_of(a);
    return p;
}

enum pass { FORWARD, KEEPING, IN_REVERSE };
template <typename T, int SIZE, int RULE> void put(selective_args p, int64_t sequences, pass which, const lnt_cuda *d)
{
    using S = shape_of<SIZE>;
    const unsigned ctas = (unsigned)(sequences * p.strips);
    if (!ctas) return;
    if (which == IN_REVERSE) {
        p.roomy = d->base.block_shared >= back_shared<S>::bytes(true);
        lnt_launch_with(d, backward_kernel<T, S, RULE>, ctas, S::THREADS, back_shared<S>::bytes(p.roomy), 1, p);
    } else if (which == KEEPING) {
        using K = keeping_shape<SIZE>;
        static_assert(K::CH == S::CH && K::MP == S::MP && K::ROUND == S::ROUND, "the way back reads what it keeps");
        lnt_launch_with(d, forward_kernel<T, K, RULE, true>, ctas, K::THREADS, sizeof(fore_shared<K>), 1, p);
    } else
        lnt_launch_with(d, forward_kernel<T, S, RULE, false>, ctas, S::THREADS, sizeof(fore_shared<S>), 1, p);
}
template <typename T, int RULE> void put_size(const lnt_selective_args *a, const selective_args &p, pass which, const lnt_cuda *d)
{
    const int size = size_of(a);
    (size == 16 ? put<T, 16, RULE> : size == 32 ? put<T, 32, RULE> : size == 64 ? put<T, 64, RULE> : put<T, 128, RULE>)(p, a->sequences, which, d);
}
void put_kernel(const lnt_selective_args *a, const selective_args &p, pass which, const lnt_device *d)
{
    LNT_BY_TYPE(a->dtype, T,
                (longhorn(a)   ? put_size<T, LONGHORN>
                 : a->has_sign ? put_size<T, SIGNED>
                               : put_size<T, EXPONENTIAL>)(a, p, which, (const lnt_cuda *)d));
}
void put_squares(const lnt_selective_args *a, const selective_args &p, const lnt_device *d)
{
    const unsigned blocks = (unsigned)lnt_div_up(a->tokens, SMALL_THREADS / 32);
    if (longhorn(a) && blocks)
        LNT_BY_TYPE(a->dtype, T,
                    lnt_launch((const lnt_cuda *)d, squares_kernel<T>, blocks, SMALL_THREADS, (const T *)p.B, (float *)p.squares, p.T, p.M));
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    selective_args p = args_of(a);
    carve(a, false, &p);
    p.o = a->o, p.sT = (float *)a->sT;
    put_squares(a, p, d);
    put_kernel(a, p, FORWARD, d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const int64_t elements = a->tokens * a->M;
    selective_args p = args_of(a);
    carve(a, true, &p);
    put_squares(a, p, device);
    put_kernel(a, p, KEEPING, device);
    p.dout = a->dout, p.dsT = (const float *)a->dsT;
    p.du = a->du, p.ddelta = (float *)a->ddelta, p.ds0 = (float *)a->ds0;
    put_kernel(a, p, IN_REVERSE, device);
    const unsigned blocks = (unsigned)lnt_div_up(elements, 32);
    if (elements && !longhorn(a))
        LNT_BY_TYPE(a->dtype, T,
                    lnt_launch(d, parts_kernel<T>, dim3(blocks, 2), SMALL_THREADS, (T *)a->dB, (T *)a->dC, (const float *)p.dB, (const float *)p.dC,
                               p.strips, elements));
    if (elements && longhorn(a)) {
        if (a->dB)
            LNT_BY_TYPE(a->dtype, T,
                        lnt_launch(d, through_squares_kernel<T>, (unsigned)lnt_div_up(elements, SMALL_THREADS), SMALL_THREADS, (T *)a->dB,
                                   (const T *)p.B, (const float *)p.dB, (const float *)p.dsquares, p.strips, p.T, p.M));
        LNT_BY_TYPE(a->dtype, T,
                    lnt_launch(d, parts_kernel<T>, dim3(blocks), SMALL_THREADS, (T *)a->dC, (T *)NULL, (const float *)p.dC, (const float *)NULL,
                               p.strips, elements));
    }
    if (!longhorn(a)) lnt_vector_sum_heads(a->dA, 0, p.dA, a->sequences, 1, 1, 1, (int64_t)a->D * a->M, d);
    lnt_vector_sum_heads(a->dskip, 0, p.dskip, a->sequences, 1, 1, 1, a->D, d);
}

size_t workspace(const void *args, bool back, int)
{
    lnt_selective_args a = *(const lnt_selective_args *)args;
    selective_args p;
    a.workspace = NULL;
    return carve(&a, back, &p);
}
size_t fore_workspace(const void *args, bool, int) { return workspace(args, false, 1); }

const char *declines(const void *args, bool)
{
    const lnt_selective_args *a = (const lnt_selective_args *)args;
    if (a->M > WIDEST) return "at most 128 numbers of a channel's state are offered";
    return a->sequences >= ((int64_t)1 << 31) / strips_of(a) ? "too many sequences" : NULL;
}

} // namespace

LNT_CUDA_FORMS(lnt_selective, chunk, declines, workspace, forward, backward, fore_workspace, forward)
