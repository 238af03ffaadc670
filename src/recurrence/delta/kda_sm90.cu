/* The delta rule under a gate for each key channel (KDA) on tensor cores, forwards: bf16, chunks of 64 tokens (operators.md#delta).
 *
 *   A = tril(diag(beta) pairs(K, K), -1)     T = (I + A)^{-1}     P = s pairs(Q, K)
 *   U = T beta.(V - (k e^G) S)     O = (s q e^G) S + P U     S' = e^{G_n}.S + (k e^{G_n - G})^T U
 *
 * Pairs, readers k e^G and s q e^G, writers k e^{G_n - G} and e^{G_n} are made by the kernel of vector decay, called for q and k and once more with k
 * in q's place; T beta by one that is parallel over chunks too; then a chain over chunks. Columns of V are independent of each other: a CTA of the
 * chain has 32, a warp 16 of them, the state transposed, [16 columns][K], in its accumulators, so that a state, values less what is known of them,
 * and writes pass from one product's result to the next one's left side without leaving the registers. */
#include "recurrence/decay/decay_vector_tiles.cuh"

extern "C" {
#include "recurrence/recur_args.h"
}

namespace {

/* ---- T beta ------------------------------------------------------------------------------------------------------------------------------- */

struct solve_args {
    vector_tiles tiles; /* P: pairs(K, K) */
    const float *beta;  /* [T,Hv] */
    bf16 *T;            /* [slots,Hv] images [64,64] of T diag(beta) */
};

/* A column of T a thread. */
__global__ __launch_bounds__(C) void kda_solve(const __grid_constant__ solve_args p)
{
    __shared__ __align__(16) float A[C][C];
    __shared__ float beta[C];
    await_last();
    let_next();
    const int Hv = p.tiles.Hv, h = (int)(blockIdx.x % Hv), column = (int)threadIdx.x;
    const int64_t slot = blockIdx.x / Hv, item = slot * Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p.tiles, slot, &token, &rows)) return;
    beta[column] = column < rows ? p.beta[(token + column) * Hv + h] : 0.f;
    __syncthreads();
    const char *pairs = (const char *)(p.tiles.P + item * (C * C));
    for (int i = column; i < C * 8; i += C) {
        const int row = i / 8, piece = i % 8;
        const uint4 x = *(const uint4 *)(pairs + tile_at(row, piece));
        float *to = &A[row][8 * piece];
        const float b = beta[row];
        to[0] = b * low_bf16(x.x), to[1] = b * high_bf16(x.x), to[2] = b * low_bf16(x.y), to[3] = b * high_bf16(x.y);
        to[4] = b * low_bf16(x.z), to[5] = b * high_bf16(x.z), to[6] = b * low_bf16(x.w), to[7] = b * high_bf16(x.w);
    }
    __syncthreads();
    float x[C];
    char *to = (char *)(p.T + item * (C * C));
#pragma unroll
    for (int i = 0; i < C; i++) {
        float sum[4] = { i == column ? 1.f : 0.f, 0.f, 0.f, 0.f };
#pragma unroll
        for (int j = 0; j < i; j++) sum[j % 4] = fmaf(-A[i][j], x[j], sum[j % 4]);
        x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
        *(bf16 *)(to + tile_at(i, column / 8) + 2 * (column % 8)) = from_float<bf16>(x[i] * beta[column]);
    }
}

/* ---- the chain ---------------------------------------------------------------------------------------------------------------------------- */

constexpr int COLUMNS = 32, CHAIN_THREADS = 2 * COLUMNS;
constexpr int PITCH = 2 * COLUMNS + 16; /* bytes from a row of values to the next: rows 2c in banks of their own */

struct chain_args {
    const bf16 *known, *reader, *writer; /* [slots,Hv] images [64,K] of k e^G, s q e^G, k e^{G_n - G} */
    const bf16 *T, *P;                   /* [slots,Hv] images [64,64] */
    const float *E;                      /* [slots,Hv,K] */
    const bf16 *v;
    bf16 *o;
    const float *s0;
    float *sT;
    const int64_t *cu;
    int Hv, V;
};

template <int K> struct chain_stage {
    static constexpr uint32_t rows = K * 128; /* of a tile [64][K] */
    static constexpr uint32_t known = 0, reader = rows, writer = 2 * rows, T = 3 * rows, P = T + TILE, E = P + TILE, v = E + K * 4,
                              bytes = v + C * PITCH;
};
template <int K> constexpr int chain_bytes = 2 * (int)chain_stage<K>::bytes + C * PITCH;

struct chain_place {
    int64_t n, begin, end, slot;
    int chunks, h, column;
};

/* Chunk c on its way into a stage. */
template <int K> __device__ __forceinline__ void chain_load(const chain_args &p, const chain_place &w, uint32_t at, int c)
{
    using L = chain_stage<K>;
    const int tid = (int)threadIdx.x;
    const int64_t item = (w.slot + c) * p.Hv + w.h, token = w.begin + (int64_t)c * C, stride = (int64_t)p.Hv * p.V;
    auto whole = [&](uint32_t to, const void *from, int bytes) {
#pragma unroll 4
        for (int i = tid * 16; i < bytes; i += CHAIN_THREADS * 16) cp_async_16(at + to + i, (const char *)from + i);
    };
    whole(L::known, p.known + item * (C * K), L::rows);
    whole(L::reader, p.reader + item * (C * K), L::rows);
    whole(L::writer, p.writer + item * (C * K), L::rows);
    whole(L::T, p.T + item * (C * C), TILE);
    whole(L::P, p.P + item * (C * C), TILE);
    whole(L::E, p.E + item * K, K * 4);
    const bf16 *v = p.v + token * stride + w.h * p.V + w.column;
    for (int i = tid; i < C * 4; i += CHAIN_THREADS) {
        const int row = i / 4, piece = i % 4;
        const bool real = token + row < w.end;
        cp_async_16(at + L::v + row * PITCH + piece * 16, real ? (const void *)(v + row * stride + piece * 8) : p.E, real);
    }
    cp_async_commit();
}

/* Two results side by side are a left side. */
__device__ __forceinline__ void left_of(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4])
{
    a[0] = pack_bf16(x[0], x[1]), a[1] = pack_bf16(x[2], x[3]), a[2] = pack_bf16(y[0], y[1]), a[3] = pack_bf16(y[2], y[3]);
}
/* d[j] += a tile^T, of 16 rows of the tile: d's columns 16 j .. are its rows, kk its columns in sixteens. */
__device__ __forceinline__ void times_rows_of(float (&d)[8][4], const uint32_t (&a)[4], uint32_t tile, int j, int kk)
{
    uint32_t b[4];
    load_B(b, tile, 16 * j, 2 * kk);
    mma_bf16(d[2 * j], a, b[0], b[1]);
    mma_bf16(d[2 * j + 1], a, b[2], b[3]);
}

template <int K> struct chain_walk {
    using L = chain_stage<K>;
    const chain_args &p;
    const chain_place &w;
    const int lane, warp;
    const char *stages; /* as the generic address space has them, and as the shared one */
    const uint32_t at;
    float S[K / 8][4]; /* [16 columns of V][K]: element j of tile n is of column lane / 4 + 8 (j / 2), channel 8 n + 2 (lane % 4) + j % 2 */

    __device__ chain_walk(const chain_args &p_, const chain_place &w_, const char *shared)
        : p(p_), w(w_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), stages(shared), at(shared_address(shared))
    {
    }
    __device__ __forceinline__ int column(int j) const { return 16 * warp + lane / 4 + 8 * (j / 2); } /* of the CTA's */
    __device__ __forceinline__ int64_t in_state(int n, int j) const
    {
        return ((w.n * p.Hv + w.h) * K + 8 * n + 2 * (lane % 4) + j % 2) * (int64_t)p.V + w.column + column(j);
    }

    /* One chunk from a stage; o to `out`, [64] rows of PITCH bytes. */
    __device__ __forceinline__ void step(int stage, char *out)
    {
        const uint32_t tiles = at + stage * L::bytes;
        const char *here = stages + stage * L::bytes;
        uint32_t left[K / 16][4], x[4][4];
        float z[8][4] = {}, u[8][4] = {}, o[8][4] = {};
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) left_of(left[kk], S[2 * kk], S[2 * kk + 1]);
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
            for (int j = 0; j < 4; j++) times_rows_of(z, left[kk], tiles + L::known, j, kk);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int token = 8 * n + 2 * (lane % 4) + j % 2;
                z[n][j] = to_float(*(const bf16 *)(here + L::v + token * PITCH + 2 * column(j))) - z[n][j];
            }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) left_of(x[kk], z[2 * kk], z[2 * kk + 1]);
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int j = kk; j < 4; j++) times_rows_of(u, x[kk], tiles + L::T, j, kk); /* zero right of its diagonal */
#pragma unroll
        for (int kk = 0; kk < 4; kk++) left_of(x[kk], u[2 * kk], u[2 * kk + 1]);
#pragma unroll
        for (int n = 0; n < K / 8; n++) {
            const float2 e = *(const float2 *)(here + L::E + 4 * (8 * n + 2 * (lane % 4)));
            S[n][0] *= e.x, S[n][1] *= e.y, S[n][2] *= e.x, S[n][3] *= e.y;
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int n = 0; n < K / 16; n++) {
                uint32_t b[4];
                load_B_turned(b, tiles + L::writer, 16 * kk, 2 * n);
                mma_bf16(S[2 * n], x[kk], b[0], b[1]);
                mma_bf16(S[2 * n + 1], x[kk], b[2], b[3]);
            }
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++)
#pragma unroll
            for (int j = 0; j < 4; j++) times_rows_of(o, left[kk], tiles + L::reader, j, kk);
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int j = kk; j < 4; j++) times_rows_of(o, x[kk], tiles + L::P, j, kk);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(bf16 *)(out + (8 * n + 2 * (lane % 4) + j % 2) * PITCH + 2 * column(j)) = from_float<bf16>(o[n][j]);
    }

    __device__ __forceinline__ void rows_out(const char *out, int c) const
    {
        const int64_t token = w.begin + (int64_t)c * C, stride = (int64_t)p.Hv * p.V;
        bf16 *to = p.o + token * stride + w.h * p.V + w.column;
        for (int i = (int)threadIdx.x; i < C * 4; i += CHAIN_THREADS) {
            const int row = i / 4, piece = i % 4;
            if (token + row < w.end) *(uint4 *)(to + row * stride + piece * 8) = *(const uint4 *)(out + row * PITCH + piece * 16);
        }
    }

    __device__ __forceinline__ void run(char *out)
    {
#pragma unroll
        for (int n = 0; n < K / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) S[n][j] = p.s0 ? p.s0[in_state(n, j)] : 0.f;
        if (w.chunks) chain_load<K>(p, w, at, 0);
        for (int c = 0; c < w.chunks; c++) {
            if (c + 1 < w.chunks)
                chain_load<K>(p, w, at + (c + 1) % 2 * L::bytes, c + 1);
            else
                cp_async_commit();
            cp_async_wait<1>();
            __syncthreads();
            step(c % 2, out);
            __syncthreads();
            rows_out(out, c); /* before the next step writes there, which a barrier precedes */
        }
        if (p.sT)
#pragma unroll
            for (int n = 0; n < K / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) p.sT[in_state(n, j)] = S[n][j];
    }
};

template <int K> __global__ __launch_bounds__(CHAIN_THREADS) void kda_chain(const __grid_constant__ chain_args p)
{
    extern __shared__ __align__(1024) char shared[];
    await_last();
    let_next();
    const int blocks = p.V / COLUMNS;
    chain_place w;
    w.column = (int)(blockIdx.x % blocks) * COLUMNS;
    w.h = (int)(blockIdx.x / blocks % p.Hv);
    w.n = blockIdx.x / blocks / p.Hv;
    w.begin = p.cu[w.n], w.end = p.cu[w.n + 1];
    w.slot = w.begin / C + w.n;
    w.chunks = (int)((w.end - w.begin + C - 1) / C);
    chain_walk<K> walk(p, w, shared);
    walk.run(shared + 2 * chain_stage<K>::bytes);
}

/* ---- the call ----------------------------------------------------------------------------------------------------------------------------- */

struct kda_work {
    bf16 *known, *reader, *writer, *T, *P, *pairs;
    float *E;
    size_t bytes;
};
int64_t slots_of(const lnt_recur_args *a) { return a->tokens / C + a->sequences; }
kda_work carve(const lnt_recur_args *a, void *at)
{
    vector_arena m = { (char *)at, 0 };
    kda_work w = {};
    const int64_t items = slots_of(a) * a->Hv;
    w.known = m.take<bf16>(items * C * a->K), w.reader = m.take<bf16>(items * C * a->K), w.writer = m.take<bf16>(items * C * a->K);
    w.T = m.take<bf16>(items * C * C), w.P = m.take<bf16>(items * C * C), w.pairs = m.take<bf16>(items * C * C);
    w.E = m.take<float>(items * a->K);
    w.bytes = m.used;
    return w;
}

template <int K> void put_chain(const chain_args &p, int64_t sequences, const lnt_cuda *d)
{
    lnt_launch_with(d, kda_chain<K>, (unsigned)(sequences * p.Hv * (p.V / COLUMNS)), CHAIN_THREADS, chain_bytes<K>, 1, p);
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    const kda_work w = carve(a, a->workspace);
    if (!a->sequences) return;
    vector_call call = {};
    call.bf16 = 1, call.tokens = a->tokens, call.sequences = a->sequences, call.longest = a->longest, call.cu = a->cu_seqlens_device;
    call.Hq = a->Hq, call.Hv = a->Hv, call.K = a->K, call.V = a->V;
    vector_tiles q = {};
    q.q = (const bf16 *)a->q, q.k = (const bf16 *)a->k, q.gk = (const float *)a->gk, q.cu = a->cu_seqlens_device, q.N = a->sequences;
    q.Hv = a->Hv, q.scale = (float)a->scale;
    q.reader = w.reader, q.writer = w.writer, q.P = w.P, q.E = w.E;
    lnt_vector_prepare(&call, q, d);
    vector_tiles k = q;
    k.q = k.k, k.scale = 1.f, k.reader = w.known, k.P = w.pairs;
    lnt_vector_prepare(&call, k, d);
    lnt_launch(d, kda_solve, (unsigned)(slots_of(a) * a->Hv), C, solve_args{ k, (const float *)a->beta, w.T });
    const chain_args c = { w.known, w.reader, w.writer, w.T, w.P, w.E, (const bf16 *)a->v, (bf16 *)a->o, (const float *)a->s0, (float *)a->sT,
                           a->cu_seqlens_device, a->Hv, a->V };
    (a->K == 64 ? put_chain<64> : put_chain<128>)(c, a->sequences, d);
}

size_t workspace(const void *args, bool, int) { return carve((const lnt_recur_args *)args, NULL).bytes; }

const char *declines(const void *args, bool)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if ((a->K != 64 && a->K != 128) || a->V % COLUMNS) return "K of 64 or 128 and V in 32s are offered";
    if (a->Hq != a->Hv) return "as many key heads as value heads are offered";
    if (a->chunk && a->chunk != C) return "its chunk length is 64";
    if (slots_of(a) >= ((int64_t)1 << 31) / a->Hv || a->sequences >= ((int64_t)1 << 31) / a->Hv / (a->V / COLUMNS)) return "too many tokens";
    return NULL;
}

} // namespace

extern "C" {
extern const lnt_recur_impl lnt_kda_chunk_sm90;
const lnt_recur_impl lnt_kda_chunk_sm90 = {
    .name = "chunk-sm90",
    .form = LINNET_FORM_CHUNK,
    .device = LNT_DEVICE_CUDA,
    .needs = 90,
    .declines = declines,
    .workspace = workspace,
    .forward = NULL,
    .backward = NULL,
    .put_forward = forward,
    .put_backward = NULL,
};
}
