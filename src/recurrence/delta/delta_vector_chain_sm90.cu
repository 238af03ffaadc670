/* The chains of chunk states under a gate for each channel, forwards and in reverse: what is serial (delta_vector.cuh).
 *
 * Columns of V are independent of each other: a warp has 16 of them, a CTA 64, the state transposed, [16 columns][K], in its accumulators, so that a
 * state, values less what is known of them, and writes pass from one product's result to the next one's left side without leaving the registers.
 * Right sides are tiles of tokens in shared memory, which one more warp loads, some chunks ahead; no warp waits for another but for these
 * (delta_parts.cuh). With erase R, write W, value write Y, reader Q of delta_vector.cuh,
 *
 *   tied         X = T (V - R S)        O = Q S + P X               S <- e S + W^T X
 *   in reverse   dX = T^T (P^T dO + W dS)     dV = dX               dS <- e dS + Q^T dO - R^T dX
 *   untied       X = T (R S) + M V      O = Q S + P X + P_v V       S <- e S + W^T X + Y^T V
 *   in reverse   D = P^T dO + W dS    dX = T^T D    dV = P_v^T dO + M^T D + Y dS    dS <- e dS + Q^T dO + R^T dX */
#include "recurrence/delta/delta_vector.cuh"

namespace {

/* ---- the chains --------------------------------------------------------------------------------------------------------------------------- */

enum role { READ, KEEP, REVERSE }; /* forwards with o; forwards for what is kept; the gradients' chain */

/* A stage: tiles of tokens, which wgmma wants at multiples of 1024 bytes, and, elsewhere, floats. What leaves: a warp's images of a state (untied in
 * reverse, where room is short, of 64 channels at a time) and of writes. */
template <int K, bool UNTIED, role ROLE> struct chain_stage {
    enum : uint32_t {
        rows = K * 128, /* of a tile [64][K] */
        erase = 0, write = rows, value_write = 2 * rows, T = (UNTIED ? 3 : 2) * rows, M = T + TILE, value = T + (UNTIED ? 2 : 1) * TILE,
        reader = value + TILE, P = reader + (ROLE == KEEP ? 0 : rows), value_P = P + TILE, tiles = P + (ROLE == KEEP ? 0 : UNTIED ? 2 : 1) * TILE,
        strength = K * 4, floats = strength + (UNTIED ? 0 : C * 4), copied = tiles - TILE + floats
    };
    static constexpr int HALVES = UNTIED && ROLE == REVERSE ? K / 64 : 1;
    static constexpr uint32_t state = ROLE == READ ? 0 : K / HALVES * 128, writes = ROLE == READ ? 0 : C * 128;
    static constexpr int fixed = 1024 + state + writes, each = tiles + floats + 16, room = (232448 - fixed) / each, stages = room < 4 ? room : 4,
                         bytes = fixed + stages * each;
    static_assert(stages >= 2, "a chunk is loaded while the one before is worked on");
};

struct chain_place {
    int64_t n, begin, end, slot;
    int from, until, h, column; /* its chunks of the sequence */
};
template <role ROLE> __device__ __forceinline__ chain_place place_of(const delta_vector &p, int64_t x)
{
    const int blocks = (p.V + 63) / 64;
    chain_place w;
    w.column = (int)(x % blocks) * 64;
    w.h = (int)(x / blocks % p.in.Hv);
    w.n = x / blocks / p.in.Hv;
    w.begin = p.in.cu[w.n], w.end = p.in.cu[w.n + 1];
    w.slot = w.begin / C + w.n;
    const int chunks = (int)((w.end - w.begin + C - 1) / C);
    w.from = ROLE == KEEP ? 0 : min(p.from, chunks);
    w.until = ROLE == KEEP ? chunks : min(p.until, chunks);
    return w;
}

struct chain_ring {
    uint32_t tiles, floats, full, empty, state, writes;
};

/* Every chunk on its way, by one warp: tiles by the copy engine, rows of values, which may end early, by lanes. */
template <int K, bool UNTIED, role ROLE> __device__ void chain_load(const delta_vector &p, const chain_place &w, const chain_ring &ring)
{
    using L = chain_stage<K, UNTIED, ROLE>;
    const int lane = threadIdx.x & 31, row = lane / 8, piece = lane % 8, Hv = p.in.Hv;
    const int64_t stride = (int64_t)Hv * p.V;
    const bf16 *rows = ROLE == REVERSE ? p.in.d_o : p.in.v;
    const bool real = rows && w.column + piece * 8 < p.V;
    int s = 0;
    uint32_t parity = 1;
    for (int j = 0; j < w.until - w.from; j++) {
        const int c = ROLE == REVERSE ? w.until - 1 - j : w.from + j;
        const uint32_t at = ring.tiles + s * L::tiles, floats = ring.floats + s * L::floats, full = ring.full + 8 * s;
        const int64_t item = (w.slot + c) * Hv + w.h, token = w.begin + (int64_t)c * C;
        barrier_wait<true>(ring.empty + 8 * s, parity);
        if (lane == 0) {
            barrier_expect(full, L::copied);
            image_in(at + L::erase, p.of.erase + item * (C * K), L::rows, full);
            image_in(at + L::write, p.of.write + item * (C * K), L::rows, full);
            image_in(at + L::T, p.of.T + item * (C * C), TILE, full);
            image_in(floats, p.of.E + item * K, K * 4, full);
            if constexpr (!UNTIED) image_in(floats + L::strength, p.of.strength + item * C, C * 4, full);
            if constexpr (UNTIED) {
                image_in(at + L::value_write, p.of.value_write + item * (C * K), L::rows, full);
                image_in(at + L::M, p.of.M + item * (C * C), TILE, full);
            }
            if constexpr (ROLE != KEEP) {
                image_in(at + L::reader, p.of.reader + item * (C * K), L::rows, full);
                image_in(at + L::P, p.of.P + item * (C * C), TILE, full);
                if constexpr (UNTIED) image_in(at + L::value_P, p.of.value_P + item * (C * C), TILE, full);
            }
        }
        const int left = real ? (int)min((int64_t)C, w.end - token) : 0;
        const bf16 *from = rows + token * stride + w.h * p.V + w.column + piece * 8;
#pragma unroll 4
        for (int r = row; r < C; r += 4)
            cp_async_16(at + L::value + r * 128 + ((piece ^ (r & 7)) << 4), r < left ? (const void *)(from + r * stride) : p.of.E, r < left);
        barrier_arrive_behind_copies(full);
        if (++s == L::stages) {
            s = 0;
            parity ^= 1;
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
}

/* A product's left side has columns of V, from registers; its result tokens or channels. */
template <int K, bool UNTIED, role ROLE> struct chain_walk {
    using L = chain_stage<K, UNTIED, ROLE>;
    const delta_vector &p;
    const chain_place &w;
    const chain_ring &ring;
    const int lane, warp, column;
    const bool real;      /* the warp has columns of V */
    const uint32_t mine;  /* they in a tile of values, as ldmatrix transposes them */
    int s = 0;
    uint32_t parity = 0;
    float S[K / 64][32];  /* [16 columns of V][K]: S[h][4 n + j] is of column lane / 4 + 8 (j / 2), channel 64 h + 8 n + 2 (lane % 4) + j % 2 */
    float O[ROLE == READ ? 32 : 1], U[ROLE == REVERSE ? 1 : 32];
    uint32_t left[K / 16][4];

    __device__ chain_walk(const delta_vector &p_, const chain_place &w_, const chain_ring &ring_)
        : p(p_), w(w_), ring(ring_), lane(threadIdx.x & 31), warp(threadIdx.x / 32), column(w_.column + 16 * warp), real(column < p_.V),
          mine(L::value + lane_transposed(warp))
    {
    }

    /* ---- the ring ---- */

    __device__ __forceinline__ uint32_t arrived()
    {
        barrier_wait<true>(ring.full + 8 * s, parity);
        return ring.tiles + s * L::tiles;
    }
    __device__ __forceinline__ uint32_t floats() const { return ring.floats + s * L::floats; }
    __device__ __forceinline__ void step_on()
    {
        if (++s == L::stages) {
            s = 0;
            parity ^= 1;
        }
    }

    /* ---- products, put between products_begin and products_commit ---- */

    /* d (+)= a tile^T, a tile [64][16 N] of tokens */
    template <int N> __device__ __forceinline__ void rows_of(float (&d)[32], const uint32_t (&a)[N][4], uint32_t tiles, int place, bool add) const
    {
#pragma unroll
        for (int kk = 0; kk < N; kk++) times_rows<true, false>(d, a[kk], tiles, place + kk / 4 * TILE, kk % 4, add || kk > 0);
    }
    /* the same of a tile [64][64] that is zero right of its diagonal, and d (+)= a tile */
    __device__ __forceinline__ void lower_rows(float (&d)[32], const uint32_t (&a)[4][4], uint32_t tiles, int place) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows<true, true>(d, a[kk], tiles, place, kk, true);
    }
    __device__ __forceinline__ void columns_of(float (&d)[32], const uint32_t (&a)[4][4], uint32_t tiles, int place, bool add) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_columns<true>(d, a[kk], tiles, place, kk, add || kk > 0);
    }
    __device__ __forceinline__ void to_state(const uint32_t (&a)[4][4], uint32_t tiles, int place)
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<true>(S[h], a[kk], tiles, place + h * TILE, kk, true);
    }
    __device__ __forceinline__ void pin_state()
    {
#pragma unroll
        for (int h = 0; h < K / 64; h++) pin(S[h]);
    }

    /* ---- registers ---- */

    __device__ __forceinline__ void left_of(uint32_t (&a)[4][4], const float (&x)[32], float sign = 1.f) const
    {
#pragma unroll
        for (int i = 0; i < 16; i++) a[i / 4][i % 4] = pack_bf16(sign * x[2 * i], sign * x[2 * i + 1]);
    }
    /* x times T's diagonal. */
    __device__ __forceinline__ void diagonal(float (&d)[32], const float (&x)[32]) const
    {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 b = make_float2(1.f, 1.f);
            if (!UNTIED) b = load_shared_pair(floats() + L::strength + (8 * n + 2 * (lane % 4)) * 4);
            d[4 * n] = b.x * x[4 * n], d[4 * n + 1] = b.y * x[4 * n + 1], d[4 * n + 2] = b.x * x[4 * n + 2], d[4 * n + 3] = b.y * x[4 * n + 3];
        }
    }
    __device__ __forceinline__ void decay()
    {
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 e = load_shared_pair(floats() + (64 * h + 8 * n + 2 * (lane % 4)) * 4);
                S[h][4 * n] *= e.x, S[h][4 * n + 1] *= e.y, S[h][4 * n + 2] *= e.x, S[h][4 * n + 3] *= e.y;
            }
    }

    /* ---- what comes and goes ---- */

    __device__ __forceinline__ void load_values(uint32_t (&a)[4][4], uint32_t tiles) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) ldmatrix_x4_trans(a[kk], tiles + mine + kk * 2048);
    }
    /* Rows of chunk c to memory, through the warp's columns of its tile of values. */
    __device__ __forceinline__ void values_out(bf16 *rows, int c, const uint32_t (&a)[4][4], uint32_t tiles) const
    {
        const int64_t token = w.begin + (int64_t)c * C, stride = (int64_t)p.in.Hv * p.V;
#pragma unroll
        for (int kk = 0; kk < 4; kk++) store_matrices_trans<true>(tiles + mine + kk * 2048, a[kk][0], a[kk][1], a[kk][2], a[kk][3]);
        rows_out(rows + token * stride + w.h * p.V + w.column + lane_in_rows(stride, warp), stride, tiles + L::value + lane_in_tile(warp),
                 real ? (int)min((int64_t)C, w.end - token) : 0);
    }
    /* Of the state's left fragments those of channels from 64 half on (all, where there is room) become the warp's image; it leaves. */
    __device__ __forceinline__ void state_put(int half = 0) const
    {
        constexpr int N = K / 16 / L::HALVES;
        image_put<true, N>(ring.state + warp * (L::state / 4), *(const uint32_t(*)[N][4]) & left[half * N]);
    }
    __device__ __forceinline__ void state_out(bf16 *images, int c, int half = 0) const
    {
        image_out<true, L::state / 4>(images + (((w.slot + c) * p.in.Hv + w.h) * p.V + column) * (int64_t)K + half * (L::state / 8),
                                      ring.state + warp * (L::state / 4));
    }
    __device__ __forceinline__ void writes_put(const uint32_t (&x)[4][4]) const
    {
        image_wait<true, 1>();
        image_put<true, 4>(ring.writes + warp * (C * 32), x);
    }
    __device__ __forceinline__ void writes_out(bf16 *images, int c) const
    {
        image_out<true, C * 32>(images + (((w.slot + c) * p.in.Hv + w.h) * p.V + column) * (int64_t)C, ring.writes + warp * (C * 32));
    }

    /* ---- a chunk ---- */

    /* o of chunk c goes out, and its stage is free. */
    __device__ __forceinline__ void finish(int c, int stage)
    {
        uint32_t x[4][4];
        if constexpr (ROLE == READ) {
            pin(O);
            left_of(x, O);
            values_out(p.o, c, x, ring.tiles + stage * L::tiles);
        }
        barrier_arrive(ring.empty + 8 * stage);
    }

    /* From the state to U, what chunk c writes. BEHIND: o of the chunk before, of stage `before`, goes out while the first product runs. */
    template <bool BEHIND> __device__ __forceinline__ void writes_of(int c, int before)
    {
        uint32_t v[4][4], x[4][4];
        float z[32];
        state_left<K>(left, S);
        const uint32_t tiles = arrived();
        load_values(v, tiles);
        products_begin<true>();
        rows_of(z, left, tiles, L::erase, false);
        products_commit<true>();
        if constexpr (BEHIND) {
            products_wait<true, 1>();
            finish(c - 1, before);
        }
        if constexpr (ROLE == READ) {
            products_begin<true>();
            rows_of(O, left, tiles, L::reader, false);
            if constexpr (UNTIED) lower_rows(O, v, tiles, L::value_P);
            products_commit<true>();
        }
        if constexpr (ROLE == KEEP) {
            image_wait<true, 1>();
            state_put();
        }
        products_wait<true, ROLE == READ>();
        pin(z);
        if constexpr (!UNTIED)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                z[2 * i] = low_bf16(v[i / 4][i % 4]) - z[2 * i];
                z[2 * i + 1] = high_bf16(v[i / 4][i % 4]) - z[2 * i + 1];
            }
        left_of(x, z);
        diagonal(U, z);
        pin(U);
        products_begin<true>();
        lower_rows(U, x, tiles, L::T);
        if constexpr (UNTIED) lower_rows(U, v, tiles, L::M);
        products_commit<true>();
        decay(); /* beside the other product ptxas would wait for it */
        if constexpr (ROLE == KEEP) state_out(p.of.S, c); /* here, so that nobody waits for its fence */
        products_wait<true, 0>();
        pin(U);
        if constexpr (ROLE == READ) pin(O);
        pin_state();
    }

    /* From U of chunk c to the next state; O is under way. */
    __device__ __forceinline__ void next_state(int c)
    {
        const uint32_t tiles = ring.tiles + s * L::tiles;
        uint32_t x[4][4], v[4][4];
        left_of(x, U);
        if constexpr (UNTIED) load_values(v, tiles);
        products_begin<true>();
        to_state(x, tiles, L::write);
        if constexpr (UNTIED) to_state(v, tiles, L::value_write);
        products_commit<true>();
        if constexpr (ROLE == READ) {
            lower_rows(O, x, tiles, L::P);
            products_commit<true>();
        }
        if constexpr (ROLE == KEEP) {
            writes_put(x);
            writes_out(p.of.X, c);
        }
        products_wait<true, ROLE == READ>();
        pin_state();
    }

    __device__ __forceinline__ void step_reverse(int c)
    {
        uint32_t d[4][4], x[4][4];
        float y[32], z[32], dv[UNTIED ? 32 : 1];
        state_left<K>(left, S);
        const uint32_t tiles = arrived();
        load_values(d, tiles);
        products_begin<true>();
        rows_of(y, left, tiles, L::write, false);
        columns_of(y, d, tiles, L::P, true);
        products_commit<true>();
        if constexpr (UNTIED) {
            rows_of(dv, left, tiles, L::value_write, false);
            columns_of(dv, d, tiles, L::value_P, true);
            products_commit<true>();
        }
        decay();
        products_begin<true>();
        to_state(d, tiles, L::reader);
        products_commit<true>();
        image_wait<true, 1>();
        state_put();
        state_out(p.of.dS, c);
        products_wait<true, UNTIED ? 2 : 1>();
        pin(y);
        left_of(x, y);
        diagonal(z, y);
        pin(z);
        products_begin<true>();
        columns_of(z, x, tiles, L::T, true);
        if constexpr (UNTIED) columns_of(dv, x, tiles, L::M, true);
        products_commit<true>();
        if constexpr (L::HALVES > 1) {
            image_wait<true, 0>();
            state_put(1);
            state_out(p.of.dS, c, 1);
        }
        products_wait<true, 0>();
        pin(z);
        pin_state();
        if constexpr (UNTIED) {
            pin(dv);
            left_of(d, dv);
        }
        left_of(x, z, UNTIED ? 1.f : -1.f);
        products_begin<true>();
        to_state(x, tiles, L::erase);
        products_commit<true>();
        if constexpr (!UNTIED) left_of(d, z);
        if constexpr (UNTIED)
            writes_put(x);
        else
            writes_put(d);
        writes_out(p.of.dX, c);
        if (p.dv) values_out(p.dv, c, d, tiles);
        products_wait<true, 0>();
        pin_state();
        barrier_arrive(ring.empty + 8 * s);
        step_on();
    }

    __device__ __forceinline__ void run()
    {
        const float *start = ROLE == REVERSE ? p.dsT : p.s0;
        float *end = ROLE == READ ? p.sT : ROLE == REVERSE ? p.ds0 : NULL;
        const int64_t state = (w.n * p.in.Hv + w.h) * K * (int64_t)p.V + column;
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int i = 0; i < 32; i++) S[h][i] = 0.f;
        if (start && real) state_read<K>(S, start + state, p.V);
        if constexpr (ROLE == REVERSE) {
            for (int c = w.until - 1; c >= w.from; c--) step_reverse(c);
        } else if (w.from < w.until) {
            /* o of a chunk goes out behind the next one's first product, where a third stage is loaded meanwhile */
            constexpr bool AHEAD = ROLE == READ && L::stages > 2;
            writes_of<false>(w.from, 0);
            for (int c = w.from; c + 1 < w.until; c++) {
                next_state(c);
                const int stage = s;
                if constexpr (!AHEAD) {
                    products_wait<true, 0>();
                    finish(c, stage);
                }
                step_on();
                writes_of<AHEAD>(c + 1, stage); /* nothing is under way where the loop ends: the compiler would wait for each product */
            }
            next_state(w.until - 1);
            products_wait<true, 0>();
            finish(w.until - 1, s);
        }
        if (end && real) state_write<K>(S, end + state, p.V);
        image_wait<true, 0>();
    }
};

constexpr int CHAIN_THREADS = GROUP + 32;

template <int K, bool UNTIED, role ROLE> __device__ __forceinline__ void chain(const delta_vector &p, int64_t x, const uint8_t *shared)
{
    using L = chain_stage<K, UNTIED, ROLE>;
    const chain_place w = place_of<ROLE>(p, x);
    chain_ring ring;
    ring.tiles = (shared_address(shared) + 1023) & ~1023u;
    ring.state = ring.tiles + L::stages * L::tiles;
    ring.writes = ring.state + L::state;
    ring.floats = ring.writes + L::writes;
    ring.full = ring.floats + L::stages * L::floats;
    ring.empty = ring.full + 8 * L::stages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < L::stages; s++) {
            barrier_init(ring.full + 8 * s, 33); /* the lanes' own copies, and the engine's */
            barrier_init(ring.empty + 8 * s, GROUP);
        }
        async_proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x >= GROUP) {
        chain_load<K, UNTIED, ROLE>(p, w, ring);
    } else {
        chain_walk<K, UNTIED, ROLE> walk(p, w, ring);
        walk.run();
    }
}

template <int K, bool UNTIED> __global__ __launch_bounds__(CHAIN_THREADS, 1) void delta_vector_forward(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    await_last();
    let_next();
    chain<K, UNTIED, READ>(p, blockIdx.x, shared);
}

/* Half of the CTAs walk forwards, half in reverse; neither half waits for the other. Or all in reverse. */
template <int K, bool UNTIED> __global__ __launch_bounds__(CHAIN_THREADS, 1) void delta_vector_both(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    await_last();
    let_next();
    if (p.reverse_alone || blockIdx.x % 2 == 0)
        chain<K, UNTIED, REVERSE>(p, p.reverse_alone ? blockIdx.x : blockIdx.x / 2, shared);
    else
        chain<K, UNTIED, KEEP>(p, blockIdx.x / 2, shared);
}

unsigned ctas_of(const delta_vector &p) { return (unsigned)(p.in.N * p.in.Hv * ((p.V + 63) / 64)); }

template <int K, bool UNTIED> void put_forward(const delta_vector &p, const lnt_cuda *d)
{
    lnt_launch_with(d, delta_vector_forward<K, UNTIED>, dim3(ctas_of(p)), CHAIN_THREADS, chain_stage<K, UNTIED, READ>::bytes, 1, p);
}
template <int K, bool UNTIED> void put_both(const delta_vector &p, const lnt_cuda *d)
{
    constexpr int keep = chain_stage<K, UNTIED, KEEP>::bytes, reverse = chain_stage<K, UNTIED, REVERSE>::bytes;
    const dim3 grid((p.reverse_alone ? 1 : 2) * ctas_of(p));
    lnt_launch_with(d, delta_vector_both<K, UNTIED>, grid, CHAIN_THREADS, keep > reverse ? keep : reverse, 1, p);
}

} // namespace

void lnt_delta_vector_forward(const delta_vector &p, const lnt_cuda *d)
{
    if (p.untied)
        (p.K == 64 ? put_forward<64, true> : put_forward<128, true>)(p, d);
    else
        (p.K == 64 ? put_forward<64, false> : put_forward<128, false>)(p, d);
}
void lnt_delta_vector_chains(const delta_vector &p, const lnt_cuda *d)
{
    if (p.untied)
        (p.K == 64 ? put_both<64, true> : put_both<128, true>)(p, d);
    else
        (p.K == 64 ? put_both<64, false> : put_both<128, false>)(p, d);
}
