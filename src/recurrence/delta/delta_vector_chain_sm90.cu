/* T of every chunk, and the chains of chunk states under a gate for each channel, forwards and in reverse: what is serial (delta_vector.cuh).
 *
 * Columns of V are independent of each other: a warp has 16 of them, the state transposed, [16 columns][K], in its accumulators, so that a state,
 * values less what is known of them, and writes pass from one product's result to the next one's left side without leaving the registers. Right sides
 * are tiles of tokens in shared memory, a chunk ahead. With erase R, write W, value write Y, reader Q of delta_vector.cuh,
 *
 *   tied         X = T (V - R S)        O = Q S + P X               S <- e S + W^T X
 *   in reverse   dX = T^T (P^T dO + W dS)     dV = dX               dS <- e dS + Q^T dO - R^T dX
 *   untied       X = T (R S) + M V      O = Q S + P X + P_v V       S <- e S + W^T X + Y^T V
 *   in reverse   D = P^T dO + W dS    dX = T^T D    dV = P_v^T dO + M^T D + Y dS    dS <- e dS + Q^T dO + R^T dX */
#include "recurrence/delta/delta_vector.cuh"

namespace {

/* ---- T and M ------------------------------------------------------------------------------------------------------------------------------ */

struct solve_args {
    delta_vector v;
    const bf16 *strict, *A_ak;
};

__device__ __forceinline__ float strength_of(float beta) { return fabsf(beta) < LNT_DELTA_LEAST ? LNT_DELTA_LEAST : beta; }

/* A column of T, or of M, a thread. */
template <bool UNTIED> __global__ __launch_bounds__(UNTIED ? 2 * C : C) void delta_solve(const __grid_constant__ solve_args p)
{
    constexpr int THREADS = UNTIED ? 2 * C : C;
    __shared__ __align__(16) float A[C][C];
    __shared__ float beta[C];
    await_last();
    let_next();
    const int Hv = p.v.in.Hv, h = (int)(blockIdx.x % Hv), tid = (int)threadIdx.x, column = tid % C;
    const bool of_M = UNTIED && tid >= C;
    const int64_t slot = blockIdx.x / Hv, item = slot * Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p.v.in, slot, &token, &rows)) return;
    if (tid < C) beta[tid] = UNTIED ? -1.f : tid < rows ? strength_of(p.v.beta[(token + tid) * Hv + h]) : 0.f;
    __syncthreads();
    if (!UNTIED) p.v.of.strength[item * C + tid] = beta[tid];
    const char *strict = (const char *)(p.strict + item * (C * C)), *A_ak = (const char *)(p.A_ak + item * (C * C));
    for (int i = tid; i < C * 8; i += THREADS) {
        const int row = i / 8, piece = i % 8;
        const uint4 x = *(const uint4 *)(strict + tile_at(row, piece));
        float *to = &A[row][8 * piece];
        const float b = beta[row];
        to[0] = b * low_bf16(x.x), to[1] = b * high_bf16(x.x), to[2] = b * low_bf16(x.y), to[3] = b * high_bf16(x.y);
        to[4] = b * low_bf16(x.z), to[5] = b * high_bf16(x.z), to[6] = b * low_bf16(x.w), to[7] = b * high_bf16(x.w);
    }
    __syncthreads();
    float x[C];
    const int in_row = 2 * (column % 8);
    char *to = (char *)((of_M ? p.v.of.M : p.v.of.T) + item * (C * C));
    const float factor = UNTIED ? 1.f : beta[column];
#pragma unroll
    for (int i = 0; i < C; i++) {
        const uint32_t place = tile_at(i, column / 8) + in_row;
        float sum[4] = { of_M ? to_float(*(const bf16 *)(A_ak + place)) : i == column ? 1.f : 0.f, 0.f, 0.f, 0.f };
#pragma unroll
        for (int j = 0; j < i; j++) sum[j % 4] = fmaf(-A[i][j], x[j], sum[j % 4]);
        x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
        *(bf16 *)(to + place) = from_float<bf16>(!of_M && i == column ? 0.f : x[i] * factor);
    }
}

/* ---- the chains --------------------------------------------------------------------------------------------------------------------------- */

enum role { READ, KEEP, REVERSE }; /* forwards with o; forwards for what is kept; the gradients' chain */

template <int K, int COLUMNS, bool UNTIED, role ROLE> struct chain_stage {
    static constexpr int pitch = 2 * COLUMNS + 16; /* bytes from a row of values to the next: rows 2c in banks of their own */
    static constexpr int rows = K * 128;           /* of a tile [64][K] */
    enum : int {
        erase = 0, write = rows, value_write = 2 * rows, T = (UNTIED ? 3 : 2) * rows, M = T + TILE, E = T + (UNTIED ? 2 : 1) * TILE,
        strength = E + K * 4, value = strength + (UNTIED ? 0 : C * 4), reader = value + C * pitch, P = reader + rows, value_P = P + TILE,
        bytes = ROLE == KEEP ? (int)reader : value_P + (UNTIED ? (int)TILE : 0), all = 2 * bytes + C * pitch
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

/* Two results side by side are a left side. */
__device__ __forceinline__ void left_of(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4], float sign = 1.f)
{
    a[0] = pack_bf16(sign * x[0], sign * x[1]), a[1] = pack_bf16(sign * x[2], sign * x[3]);
    a[2] = pack_bf16(sign * y[0], sign * y[1]), a[3] = pack_bf16(sign * y[2], sign * y[3]);
}

template <int K, int COLUMNS, bool UNTIED, role ROLE> struct chain_walk {
    using L = chain_stage<K, COLUMNS, UNTIED, ROLE>;
    static constexpr int THREADS = 2 * COLUMNS;
    const delta_vector &p;
    const chain_place &w;
    const int lane, warp;
    const char *stages; /* as the generic address space has them, and as the shared one */
    const uint32_t at;
    float S[K / 8][4]; /* [16 columns of V][K]: element j of tile n is of column lane / 4 + 8 (j / 2), channel 8 n + 2 (lane % 4) + j % 2 */

    __device__ chain_walk(const delta_vector &p_, const chain_place &w_, const char *shared)
        : p(p_), w(w_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), stages(shared), at(shared_address(shared))
    {
    }
    __device__ __forceinline__ int column(int j) const { return 16 * warp + lane / 4 + 8 * (j / 2); } /* of the CTA's */
    __device__ __forceinline__ int64_t in_state(int n, int j) const
    {
        return ((w.n * p.in.Hv + w.h) * K + 8 * n + 2 * (lane % 4) + j % 2) * (int64_t)p.V + w.column + column(j);
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

    /* ---- products: columns of V on the left; d has tokens for columns ---- */

    /* d += a tile^T, kk the tile's columns in sixteens, its rows 16 j .. from j = `first` on. */
    __device__ __forceinline__ void times_rows(float (&d)[8][4], const uint32_t (&a)[4], uint32_t tile, int kk, int first) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < first) continue;
            uint32_t b[4];
            load_B(b, tile, 16 * j, 2 * kk);
            mma_bf16(d[2 * j], a, b[0], b[1]);
            mma_bf16(d[2 * j + 1], a, b[2], b[3]);
        }
    }
    /* d += a tile, kk the tile's rows in sixteens, its columns up to those: it is zero right of its diagonal. */
    __device__ __forceinline__ void times_columns(float (&d)[8][4], const uint32_t (&a)[4], uint32_t tile, int kk) const
    {
#pragma unroll
        for (int j = 0; j <= kk; j++) {
            uint32_t b[4];
            load_B_turned(b, tile, 16 * kk, 2 * j);
            mma_bf16(d[2 * j], a, b[0], b[1]);
            mma_bf16(d[2 * j + 1], a, b[2], b[3]);
        }
    }
    template <int N> __device__ __forceinline__ void all_rows(float (&d)[8][4], const uint32_t (&a)[N][4], uint32_t tile) const
    {
#pragma unroll
        for (int kk = 0; kk < N; kk++) times_rows(d, a[kk], tile, kk, 0);
    }
    __device__ __forceinline__ void lower_rows(float (&d)[8][4], const uint32_t (&a)[4][4], uint32_t tile) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_rows(d, a[kk], tile, kk, kk);
    }
    __device__ __forceinline__ void lower_columns(float (&d)[8][4], const uint32_t (&a)[4][4], uint32_t tile) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) times_columns(d, a[kk], tile, kk);
    }
    __device__ __forceinline__ void to_state(const uint32_t (&a)[4][4], uint32_t tile)
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int n = 0; n < K / 16; n++) {
                uint32_t b[4];
                load_B_turned(b, tile, 16 * kk, 2 * n);
                mma_bf16(S[2 * n], a[kk], b[0], b[1]);
                mma_bf16(S[2 * n + 1], a[kk], b[2], b[3]);
            }
    }
    __device__ __forceinline__ void left_of_tokens(uint32_t (&a)[4][4], const float (&x)[8][4], float sign = 1.f) const
    {
#pragma unroll
        for (int kk = 0; kk < 4; kk++) left_of(a[kk], x[2 * kk], x[2 * kk + 1], sign);
    }

    /* x times T's diagonal. */
    __device__ __forceinline__ void diagonal(float (&d)[8][4], const float (&x)[8][4], int stage) const
    {
        const float *strength = (const float *)(stages + stage * L::bytes + L::strength);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 b = make_float2(1.f, 1.f);
            if (!UNTIED) b = *(const float2 *)(strength + 8 * n + 2 * (lane % 4));
            d[n][0] = b.x * x[n][0], d[n][1] = b.y * x[n][1], d[n][2] = b.x * x[n][2], d[n][3] = b.y * x[n][3];
        }
    }

    /* ---- what comes and goes ---- */

    /* The warp's columns of the values of a stage, transposed. */
    __device__ __forceinline__ void load_values(uint32_t (&a)[4][4], uint32_t tiles) const
    {
        const uint32_t from = tiles + L::value + ((lane & 7) + (lane >> 4 << 3)) * L::pitch + (2 * warp + (lane >> 3 & 1)) * 16;
#pragma unroll
        for (int kk = 0; kk < 4; kk++) ldmatrix_x4_trans(a[kk], from + 16 * kk * L::pitch);
    }
    /* a, of the warp's columns, to rows of an image [V,width] of chunk c. */
    template <int N> __device__ __forceinline__ void keep(bf16 *images, int c, const uint32_t (&a)[N][4]) const
    {
        constexpr int WIDTH = 16 * N;
        const int row = w.column + 16 * warp + lane / 4;
        char *to = (char *)(images + ((w.slot + c) * p.in.Hv + w.h) * ((int64_t)p.V * WIDTH)) + row / 64 * (WIDTH * 128) + 4 * (lane % 4);
#pragma unroll
        for (int kk = 0; kk < N; kk++)
#pragma unroll
            for (int j = 0; j < 4; j++) *(uint32_t *)(to + tile_at(row % 64 + 8 * (j % 2), 2 * kk + j / 2)) = a[kk][j];
    }
    __device__ __forceinline__ void decay(int stage)
    {
        const float *factors = (const float *)(stages + stage * L::bytes + L::E);
#pragma unroll
        for (int n = 0; n < K / 8; n++) {
            const float2 e = *(const float2 *)(factors + 8 * n + 2 * (lane % 4));
            S[n][0] *= e.x, S[n][1] *= e.y, S[n][2] *= e.x, S[n][3] *= e.y;
        }
    }
    __device__ __forceinline__ void values_to(char *out, const float (&o)[8][4]) const
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(bf16 *)(out + (8 * n + 2 * (lane % 4) + j % 2) * L::pitch + 2 * column(j)) = from_float<bf16>(o[n][j]);
    }
    __device__ __forceinline__ void rows_out(bf16 *rows, const char *out, int c) const
    {
        constexpr int PIECES = COLUMNS / 8;
        const int64_t token = w.begin + (int64_t)c * C, stride = (int64_t)p.in.Hv * p.V;
        bf16 *to = rows + token * stride + w.h * p.V + w.column;
        for (int i = (int)threadIdx.x; i < C * PIECES; i += THREADS) {
            const int row = i / PIECES, piece = i % PIECES;
            if (token + row < w.end) *(uint4 *)(to + row * stride + piece * 8) = *(const uint4 *)(out + row * L::pitch + piece * 16);
        }
    }

    /* ---- a chunk ---- */

    __device__ __forceinline__ void step_forward(int stage, int c, char *out)
    {
        const uint32_t tiles = at + stage * L::bytes;
        uint32_t left[K / 16][4], v[4][4], x[4][4];
        float z[8][4] = {}, u[8][4];
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) left_of(left[kk], S[2 * kk], S[2 * kk + 1]);
        load_values(v, tiles);
        all_rows(z, left, tiles + L::erase);
        if constexpr (!UNTIED)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t two = v[n / 2][n % 2 * 2 + j / 2];
                    z[n][j] = (j % 2 ? high_bf16(two) : low_bf16(two)) - z[n][j];
                }
        left_of_tokens(x, z);
        diagonal(u, z, stage);
        lower_rows(u, x, tiles + L::T);
        if constexpr (UNTIED) lower_rows(u, v, tiles + L::M);
        left_of_tokens(x, u);
        if constexpr (ROLE == KEEP) {
            keep(p.of.S, c, left);
            keep(p.of.X, c, x);
        }
        decay(stage);
        to_state(x, tiles + L::write);
        if constexpr (UNTIED) to_state(v, tiles + L::value_write);
        if constexpr (ROLE == READ) {
            float o[8][4] = {};
            all_rows(o, left, tiles + L::reader);
            lower_rows(o, x, tiles + L::P);
            if constexpr (UNTIED) lower_rows(o, v, tiles + L::value_P);
            values_to(out, o);
        }
    }

    __device__ __forceinline__ void step_reverse(int stage, int c, char *out)
    {
        const uint32_t tiles = at + stage * L::bytes;
        uint32_t left[K / 16][4], d[4][4], x[4][4];
        float y[8][4] = {}, z[8][4];
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) left_of(left[kk], S[2 * kk], S[2 * kk + 1]);
        load_values(d, tiles);
        all_rows(y, left, tiles + L::write);
        lower_columns(y, d, tiles + L::P);
        left_of_tokens(x, y);
        diagonal(z, y, stage);
        lower_columns(z, x, tiles + L::T);
        if constexpr (UNTIED) {
            float dv[8][4] = {};
            all_rows(dv, left, tiles + L::value_write);
            lower_columns(dv, d, tiles + L::value_P);
            lower_columns(dv, x, tiles + L::M);
            values_to(out, dv);
        } else {
            values_to(out, z);
        }
        keep(p.of.dS, c, left);
        left_of_tokens(x, z);
        keep(p.of.dX, c, x);
        if constexpr (!UNTIED) left_of_tokens(x, z, -1.f);
        decay(stage);
        to_state(d, tiles + L::reader);
        to_state(x, tiles + L::erase);
    }

    __device__ __forceinline__ void run(char *out)
    {
        const float *start = ROLE == REVERSE ? p.dsT : p.s0;
        float *end = ROLE == READ ? p.sT : ROLE == REVERSE ? p.ds0 : NULL;
        bf16 *rows = ROLE == READ ? p.o : ROLE == REVERSE ? p.dv : NULL;
        const auto chunk = [&](int c) { return ROLE == REVERSE ? w.chunks - 1 - c : c; };
#pragma unroll
        for (int n = 0; n < K / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) S[n][j] = start ? start[in_state(n, j)] : 0.f;
        if (w.chunks) load(0, chunk(0));
        for (int c = 0; c < w.chunks; c++) {
            if (c + 1 < w.chunks)
                load((c + 1) % 2, chunk(c + 1));
            else
                cp_async_commit();
            cp_async_wait<1>();
            __syncthreads();
            if constexpr (ROLE == REVERSE)
                step_reverse(c % 2, chunk(c), out);
            else
                step_forward(c % 2, chunk(c), out);
            __syncthreads();
            if (ROLE != KEEP && rows) rows_out(rows, out, chunk(c)); /* before the next step writes there, which a barrier precedes */
        }
        if (end)
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) end[in_state(n, j)] = S[n][j];
    }
};

template <int K, int COLUMNS, bool UNTIED, role ROLE> __device__ __forceinline__ void chain(const delta_vector &p, int64_t x, char *shared)
{
    const chain_place w = place_of<COLUMNS>(p, x);
    chain_walk<K, COLUMNS, UNTIED, ROLE> walk(p, w, shared);
    walk.run(shared + 2 * chain_stage<K, COLUMNS, UNTIED, ROLE>::bytes);
}

template <int K, int COLUMNS, bool UNTIED> __global__ __launch_bounds__(2 * COLUMNS) void delta_vector_forward(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) char shared[];
    await_last();
    let_next();
    chain<K, COLUMNS, UNTIED, READ>(p, blockIdx.x, shared);
}

/* Half of the CTAs walk forwards, half in reverse; neither half waits for the other. */
template <int K, int COLUMNS, bool UNTIED> __global__ __launch_bounds__(2 * COLUMNS) void delta_vector_both(const __grid_constant__ delta_vector p)
{
    extern __shared__ __align__(1024) char shared[];
    await_last();
    let_next();
    if (blockIdx.x % 2 == 0)
        chain<K, COLUMNS, UNTIED, REVERSE>(p, blockIdx.x / 2, shared);
    else
        chain<K, COLUMNS, UNTIED, KEEP>(p, blockIdx.x / 2, shared);
}

template <int K, int COLUMNS, bool UNTIED> void put_forward(const delta_vector &p, const lnt_cuda *d)
{
    const int64_t ctas = p.in.N * p.in.Hv * (p.V / COLUMNS);
    lnt_launch_with(d, delta_vector_forward<K, COLUMNS, UNTIED>, dim3((unsigned)ctas), 2 * COLUMNS, chain_stage<K, COLUMNS, UNTIED, READ>::all, 1, p);
}
template <int K, bool UNTIED> void put_both(const delta_vector &p, const lnt_cuda *d)
{
    constexpr int COLUMNS = 64; /* of both chains a CTA each on the GPU at once, for 32 heads of 128 */
    const int64_t ctas = 2 * p.in.N * p.in.Hv * (p.V / COLUMNS);
    lnt_launch_with(d, delta_vector_both<K, COLUMNS, UNTIED>, dim3((unsigned)ctas), 2 * COLUMNS, chain_stage<K, COLUMNS, UNTIED, REVERSE>::all, 1, p);
}

} // namespace

void lnt_delta_vector_solve(const delta_vector &p, const bf16 *strict, const bf16 *A_ak, const lnt_cuda *d)
{
    const solve_args s = { p, strict, A_ak ? A_ak : strict };
    lnt_launch(d, p.untied ? delta_solve<true> : delta_solve<false>, dim3((unsigned)(p.slots * p.in.Hv)), p.untied ? 2 * C : C, s);
}
void lnt_delta_vector_forward(const delta_vector &p, const lnt_cuda *d)
{
    if (p.untied)
        (p.K == 64 ? put_forward<64, 64, true> : put_forward<128, 64, true>)(p, d);
    else
        (p.K == 64 ? put_forward<64, 32, false> : put_forward<128, 32, false>)(p, d);
}
void lnt_delta_vector_chains(const delta_vector &p, const lnt_cuda *d)
{
    const auto put = p.untied ? p.K == 64 ? put_both<64, true> : put_both<128, true> : p.K == 64 ? put_both<64, false> : put_both<128, false>;
    put(p, d);
}
