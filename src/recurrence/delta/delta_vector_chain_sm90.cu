/* The chains of chunk states under a gate for each channel, forwards and in reverse: what is serial (delta_vector.cuh).
 *
 * Columns of V are independent of each other: a warp has 16 of them, the state transposed, [16 columns][K], in its accumulators, so that a state,
 * values less what is known of them, and writes pass from one product's result to the next one's left side without leaving the registers. Right sides
 * are tiles of tokens in shared memory, a chunk ahead. Written once for wgmma and mma.sync, whose fragments are laid out alike
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

/* Tiles of tokens first, which wgmma wants at multiples of 1024 bytes. */
template <int K, int COLUMNS, bool UNTIED, role ROLE> struct chain_stage {
    static constexpr int pitch = 2 * COLUMNS + 16; /* bytes from a row of values to the next: eight rows of a piece in different banks */
    static constexpr int rows = K * 128;           /* of a tile [64][K] */
    enum : int {
        erase = 0, write = rows, value_write = 2 * rows, T = (UNTIED ? 3 : 2) * rows, M = T + TILE, reader = T + (UNTIED ? 2 : 1) * TILE,
        P = reader + (ROLE == KEEP ? 0 : rows), value_P = P + TILE, E = P + (ROLE == KEEP ? 0 : UNTIED ? 2 : 1) * TILE, strength = E + K * 4,
        value = strength + (UNTIED ? 0 : C * 4), bytes = (value + C * pitch + 1023) / 1024 * 1024, all = 1024 + 2 * bytes + C * pitch
    };
};

struct chain_place {
    int64_t n, begin, end, slot;
    int chunks, h, column;
};
template <int COLUMNS> __device__ __forceinline__ chain_place place_of(const delta_vector &p, int64_t x)
{
    const int blocks = p.V / COLUMNS;
    chain_place w;
    w.column = (int)(x % blocks) * COLUMNS;
    w.h = (int)(x / blocks % p.in.Hv);
    w.n = x / blocks / p.in.Hv;
    w.begin = p.in.cu[w.n], w.end = p.in.cu[w.n + 1];
    w.slot = w.begin / C + w.n;
    w.chunks = (int)((w.end - w.begin + C - 1) / C);
    return w;
}

/* HOPPER: wgmma, 64 columns of V a CTA; else mma.sync. A product's left side has columns of V, from registers; its result tokens or channels. */
template <bool HOPPER, int K, int COLUMNS, bool UNTIED, role ROLE> struct chain_walk {
    using L = chain_stage<K, COLUMNS, UNTIED, ROLE>;
    static constexpr int THREADS = 2 * COLUMNS;
    const delta_vector &p;
    const chain_place &w;
    const int lane, warp;
    const char *stages; /* as the generic address space has them, and as the shared one */
    const uint32_t at, out; /* out: what leaves, [64] rows of L::pitch bytes */
    float S[K / 64][32];    /* [16 columns of V][K]: S[h][4 n + j] is of column lane / 4 + 8 (j / 2), channel 64 h + 8 n + 2 (lane % 4) + j % 2 */

    __device__ chain_walk(const delta_vector &p_, const chain_place &w_, const char *shared)
        : p(p_), w(w_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), stages(shared), at(shared_address(shared)), out(at + 2 * L::bytes)
    {
    }

    /* Chunk c on its way into a stage. */
    __device__ __forceinline__ void load(int stage, int c) const
    {
        const int tid = (int)threadIdx.x, Hv = p.in.Hv;
        const uint32_t to = at + stage * L::bytes;
        const int64_t item = (w.slot + c) * Hv + w.h, token = w.begin + (int64_t)c * C, stride = (int64_t)Hv * p.V;
        auto whole = [&](uint32_t place, const void *from, int bytes) {
#pragma unroll 4
            for (int i = tid * 16; i < bytes; i += THREADS * 16) cp_async_16(to + place + i, (const char *)from + i);
        };
        whole(L::erase, p.of.erase + item * (C * K), L::rows);
        whole(L::write, p.of.write + item * (C * K), L::rows);
        whole(L::T, p.of.T + item * (C * C), TILE);
        whole(L::E, p.of.E + item * K, K * 4);
        if constexpr (!UNTIED) whole(L::strength, p.of.strength + item * C, C * 4);
        if constexpr (UNTIED) {
            whole(L::value_write, p.of.value_write + item * (C * K), L::rows);
            whole(L::M, p.of.M + item * (C * C), TILE);
        }
        if constexpr (ROLE != KEEP) {
            whole(L::reader, p.of.reader + item * (C * K), L::rows);
            whole(L::P, p.of.P + item * (C * C), TILE);
            if constexpr (UNTIED) whole(L::value_P, p.of.value_P + item * (C * C), TILE);
        }
        const bf16 *rows = ROLE == REVERSE ? p.in.d_o : p.in.v, *from = rows + token * stride + w.h * p.V + w.column;
        constexpr int PIECES = COLUMNS / 8;
        for (int i = tid; i < C * PIECES; i += THREADS) {
            const int row = i / PIECES, piece = i % PIECES;
            const bool real = rows && token + row < w.end;
            cp_async_16(to + L::value + row * L::pitch + piece * 16, real ? (const void *)(from + row * stride + piece * 8) : p.of.E, real);
        }
        cp_async_commit();
    }

    /* ---- products, put between products_begin and products_commit ---- */

    /* d (+)= a tile^T, a tile [64][16 N] of tokens */
    template <int N> __device__ __forceinline__ void rows_of(float (&d)[32], const uint32_t (&a)[N][4], uint32_t tiles, int place, bool add) const
    {
#pragma unroll
        for (int kk = 0; kk < N; kk++) times_rows<HOPPER, false>(d, a[kk], tiles, place + kk / 4 * TILE, kk % 4, add || kk > 0);
    }
    /* the same of a tile [64][64] that is zero right of its diagonal, and d (+)= a tile */
    __device__ __forceinline__ void lower_rows(float (&d)[32], const uint32_t (&a)[4][4], uint32_t tiles, int place) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows<HOPPER, true>(d, a[kk], tiles, place, kk, true);
    }
    __device__ __forceinline__ void columns_of(float (&d)[32], const uint32_t (&a)[4][4], uint32_t tiles, int place, bool add) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_columns<HOPPER>(d, a[kk], tiles, place, kk, add || kk > 0);
    }
    __device__ __forceinline__ void to_state(const uint32_t (&a)[4][4], uint32_t tiles, int place)
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(S[h], a[kk], tiles, place + h * TILE, kk, true);
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
    __device__ __forceinline__ void diagonal(float (&d)[32], const float (&x)[32], int stage) const
    {
        const float *strength = (const float *)(stages + stage * L::bytes + L::strength);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 b = make_float2(1.f, 1.f);
            if (!UNTIED) b = *(const float2 *)(strength + 8 * n + 2 * (lane % 4));
            d[4 * n] = b.x * x[4 * n], d[4 * n + 1] = b.y * x[4 * n + 1], d[4 * n + 2] = b.x * x[4 * n + 2], d[4 * n + 3] = b.y * x[4 * n + 3];
        }
    }
    __device__ __forceinline__ void decay(int stage)
    {
        const float *factors = (const float *)(stages + stage * L::bytes + L::E);
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 e = *(const float2 *)(factors + 64 * h + 8 * n + 2 * (lane % 4));
                S[h][4 * n] *= e.x, S[h][4 * n + 1] *= e.y, S[h][4 * n + 2] *= e.x, S[h][4 * n + 3] *= e.y;
            }
        pin_state();
    }

    /* ---- what comes and goes ---- */

    /* Where a lane's piece of the warp's columns is, transposed on the way, in rows of values. */
    __device__ __forceinline__ uint32_t in_rows() const { return ((lane & 7) + (lane >> 4 << 3)) * L::pitch + (2 * warp + (lane >> 3 & 1)) * 16; }
    __device__ __forceinline__ void load_values(uint32_t (&a)[4][4], uint32_t tiles) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) ldmatrix_x4_trans(a[kk], tiles + L::value + in_rows() + 16 * kk * L::pitch);
    }
    __device__ __forceinline__ void values_to_rows(const uint32_t (&a)[4][4]) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) store_matrices_trans<HOPPER>(out + in_rows() + 16 * kk * L::pitch, a[kk][0], a[kk][1], a[kk][2], a[kk][3]);
    }
    __device__ __forceinline__ void rows_out(bf16 *rows, int c) const
    {
        constexpr int PIECES = COLUMNS / 8;
        const int64_t token = w.begin + (int64_t)c * C, stride = (int64_t)p.in.Hv * p.V;
        bf16 *to = rows + token * stride + w.h * p.V + w.column;
        for (int i = (int)threadIdx.x; i < C * PIECES; i += THREADS) {
            const int row = i / PIECES, piece = i % PIECES;
            if (token + row < w.end)
                *(uint4 *)(to + row * stride + piece * 8) = *(const uint4 *)(stages + 2 * L::bytes + row * L::pitch + piece * 16);
        }
    }
    /* a, of the warp's columns, to rows of an image [V,16 N] of chunk c: four lanes turn four times 4 bytes of four pieces to a piece each. */
    template <int N> __device__ __forceinline__ void keep(bf16 *images, int c, const uint32_t (&a)[N][4]) const
    {
        constexpr int WIDTH = 16 * N;
        const int row = w.column + 16 * warp + lane / 4, mine = lane % 4;
        char *to = (char *)(images + ((w.slot + c) * p.in.Hv + w.h) * ((int64_t)p.V * WIDTH)) + row / 64 * (WIDTH * 128);
#pragma unroll
        for (int kk = 0; kk < N; kk += 2)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t x[4] = { a[kk][half], a[kk][half + 2], a[kk + 1][half], a[kk + 1][half + 2] };
#pragma unroll
                for (int step = 1; step < 4; step *= 2)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (i & step) continue;
                        const bool up = mine & step;
                        const uint32_t other = __shfl_xor_sync(~0u, up ? x[i] : x[i | step], step);
                        x[i] = up ? other : x[i];
                        x[i | step] = up ? x[i | step] : other;
                    }
                *(uint4 *)(to + tile_at(row % 64 + 8 * half, 2 * kk + mine)) = make_uint4(x[0], x[1], x[2], x[3]);
            }
    }

    /* ---- a chunk ---- */

    __device__ __forceinline__ void step_forward(int stage, int c)
    {
        const uint32_t tiles = at + stage * L::bytes;
        uint32_t left[K / 16][4], v[4][4], x[4][4];
        float z[32], u[32], o[ROLE == READ ? 32 : 1];
        state_left<K>(left, S);
        decay(stage); /* here: a product under way makes the compiler wait for it */
        load_values(v, tiles);
        products_begin<HOPPER>();
        rows_of(z, left, tiles, L::erase, false);
        products_commit<HOPPER>();
        if constexpr (ROLE == READ) {
            rows_of(o, left, tiles, L::reader, false);
            if constexpr (UNTIED) lower_rows(o, v, tiles, L::value_P);
            products_commit<HOPPER>();
        }
        if constexpr (ROLE == KEEP) keep(p.of.S, c, left);
        products_wait<HOPPER, ROLE == READ>();
        pin(z);
        if constexpr (!UNTIED)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                z[2 * i] = low_bf16(v[i / 4][i % 4]) - z[2 * i];
                z[2 * i + 1] = high_bf16(v[i / 4][i % 4]) - z[2 * i + 1];
            }
        left_of(x, z);
        diagonal(u, z, stage);
        pin(u);
        products_begin<HOPPER>();
        lower_rows(u, x, tiles, L::T);
        if constexpr (UNTIED) lower_rows(u, v, tiles, L::M);
        products_commit<HOPPER>();
        products_wait<HOPPER, 0>();
        pin(u);
        if constexpr (ROLE == READ) pin(o);
        left_of(x, u);
        products_begin<HOPPER>();
        to_state(x, tiles, L::write);
        if constexpr (UNTIED) to_state(v, tiles, L::value_write);
        if constexpr (ROLE == READ) lower_rows(o, x, tiles, L::P);
        products_commit<HOPPER>();
        if constexpr (ROLE == KEEP) keep(p.of.X, c, x);
        products_wait<HOPPER, 0>();
        pin_state();
        if constexpr (ROLE == READ) {
            pin(o);
            left_of(x, o);
            values_to_rows(x);
        }
    }

    __device__ __forceinline__ void step_reverse(int stage, int c)
    {
        const uint32_t tiles = at + stage * L::bytes;
        uint32_t left[K / 16][4], d[4][4], x[4][4];
        float y[32], z[32], dv[UNTIED ? 32 : 1];
        state_left<K>(left, S);
        decay(stage);
        load_values(d, tiles);
        products_begin<HOPPER>();
        rows_of(y, left, tiles, L::write, false);
        columns_of(y, d, tiles, L::P, true);
        products_commit<HOPPER>();
        if constexpr (UNTIED) {
            rows_of(dv, left, tiles, L::value_write, false);
            columns_of(dv, d, tiles, L::value_P, true);
            products_commit<HOPPER>();
        }
        to_state(d, tiles, L::reader);
        products_commit<HOPPER>();
        keep(p.of.dS, c, left);
        products_wait<HOPPER, UNTIED ? 2 : 1>();
        pin(y);
        left_of(x, y);
        diagonal(z, y, stage);
        pin(z);
        products_begin<HOPPER>();
        columns_of(z, x, tiles, L::T, true);
        if constexpr (UNTIED) columns_of(dv, x, tiles, L::M, true);
        products_commit<HOPPER>();
        products_wait<HOPPER, 0>();
        pin(z);
        pin_state();
        if constexpr (UNTIED) {
            pin(dv);
            left_of(d, dv);
        }
        left_of(x, z, UNTIED ? 1.f : -1.f);
        products_begin<HOPPER>();
        to_state(x, tiles, L::erase);
        products_commit<HOPPER>();
        if constexpr (!UNTIED) left_of(d, z);
        values_to_rows(d);
        if constexpr (UNTIED)
            keep(p.of.dX, c, x);
        else
            keep(p.of.dX, c, d);
        products_wait<HOPPER, 0>();
        pin_state();
    }

    __device__ __forceinline__ void run()
    {
        const float *start = ROLE == REVERSE ? p.dsT : p.s0;
        float *end = ROLE == READ ? p.sT : ROLE == REVERSE ? p.ds0 : NULL;
        bf16 *rows = ROLE == READ ? p.o : ROLE == REVERSE ? p.dv : NULL;
        const int64_t state = (w.n * p.in.Hv + w.h) * K * (int64_t)p.V + w.column + 16 * warp;
        const auto chunk = [&](int c) { return ROLE == REVERSE ? w.chunks - 1 - c : c; };
#pragma unroll
        for (int h = 0; h < K / 64; h++)
#pragma unroll
            for (int i = 0; i < 32; i++) S[h][i] = 0.f;
        if (start) state_read<K>(S, start + state, p.V);
        if (w.chunks) load(0, chunk(0));
        for (int c = 0; c < w.chunks; c++) {
            if (c + 1 < w.chunks)
                load((c + 1) % 2, chunk(c + 1));
            else
                cp_async_commit();
            cp_async_wait<1>();
            if constexpr (HOPPER) asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* products read what copies wrote */
            __syncthreads();
            if constexpr (ROLE == REVERSE)
                step_reverse(c % 2, chunk(c));
            else
                step_forward(c % 2, chunk(c));
            __syncthreads();
            if (ROLE != KEEP && rows) rows_out(rows, chunk(c)); /* before the next step writes there, which a barrier precedes */
        }
        if (end) state_write<K>(S, end + state, p.V);
    }
};

template <bool HOPPER, int K, int COLUMNS, bool UNTIED, role ROLE>
__device__ __forceinline__ void chain(const delta_vector &p, int64_t x, char *shared)
{
    const chain_place w = place_of<COLUMNS>(p, x);
    chain_walk<HOPPER, K, COLUMNS, UNTIED, ROLE> walk(p, w, shared + (-shared_address(shared) & 1023));
    walk.run();
}

template <bool HOPPER, int K, int COLUMNS, bool UNTIED>
__global__ __launch_bounds__(2 * COLUMNS, 1) void delta_vector_forward(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) char shared[];
    await_last();
    let_next();
    chain<HOPPER, K, COLUMNS, UNTIED, READ>(p, blockIdx.x, shared);
}

/* Half of the CTAs walk forwards, half in reverse; neither half waits for the other. */
template <bool HOPPER, int K, int COLUMNS, bool UNTIED>
__global__ __launch_bounds__(2 * COLUMNS, 1) void delta_vector_both(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) char shared[];
    await_last();
    let_next();
    if (blockIdx.x % 2 == 0)
        chain<HOPPER, K, COLUMNS, UNTIED, REVERSE>(p, blockIdx.x / 2, shared);
    else
        chain<HOPPER, K, COLUMNS, UNTIED, KEEP>(p, blockIdx.x / 2, shared);
}

template <bool HOPPER, int K, int COLUMNS, bool UNTIED> void put_forward(const delta_vector &p, const lnt_cuda *d)
{
    const int64_t ctas = p.in.N * p.in.Hv * (p.V / COLUMNS);
    lnt_launch_with(d, delta_vector_forward<HOPPER, K, COLUMNS, UNTIED>, dim3((unsigned)ctas), 2 * COLUMNS,
                    chain_stage<K, COLUMNS, UNTIED, READ>::all, 1, p);
}
template <bool HOPPER, int K, bool UNTIED> void put_both(const delta_vector &p, const lnt_cuda *d)
{
    constexpr int COLUMNS = 64; /* of both chains a CTA each on the GPU at once, for 32 heads of 128 */
    const int64_t ctas = 2 * p.in.N * p.in.Hv * (p.V / COLUMNS);
    lnt_launch_with(d, delta_vector_both<HOPPER, K, COLUMNS, UNTIED>, dim3((unsigned)ctas), 2 * COLUMNS,
                    chain_stage<K, COLUMNS, UNTIED, REVERSE>::all, 1, p);
}

template <bool HOPPER, bool UNTIED> void forward_of(const delta_vector &p, const lnt_cuda *d)
{
    constexpr int COLUMNS = HOPPER || UNTIED ? 64 : 32;
    (p.K == 64 ? put_forward<HOPPER, 64, COLUMNS, UNTIED> : put_forward<HOPPER, 128, COLUMNS, UNTIED>)(p, d);
}
template <bool HOPPER> void chains_of(const delta_vector &p, const lnt_cuda *d)
{
    if (p.untied)
        (p.K == 64 ? put_both<HOPPER, 64, true> : put_both<HOPPER, 128, true>)(p, d);
    else
        (p.K == 64 ? put_both<HOPPER, 64, false> : put_both<HOPPER, 128, false>)(p, d);
}

} // namespace

void lnt_delta_vector_forward(const delta_vector &p, const lnt_cuda *d)
{
    if (p.untied)
        (p.wgmma ? forward_of<true, true> : forward_of<false, true>)(p, d);
    else
        (p.wgmma && p.V % 64 == 0 ? forward_of<true, false> : forward_of<false, false>)(p, d);
}
void lnt_delta_vector_chains(const delta_vector &p, const lnt_cuda *d) { (p.wgmma ? chains_of<true> : chains_of<false>)(p, d); }
