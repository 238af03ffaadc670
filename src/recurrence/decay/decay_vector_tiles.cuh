/* What the token-parallel kernels of vector decay on tensor cores share, before the chain of chunk states (decay_vector_chunk_cuda.cu) and behind it
 * (decay_vector_back_cuda.cu): bf16, K and V of 64 or 128, or slices of that size, chunks of 64 tokens.
 *
 * Factors are products of a_i = e^{g_i}: none is above 1, none is a quotient, and a = 0 resets. Pairs (i, j) of a chunk form a binary tree: at the
 * level of halves of h = 32, 16, 8 rows, i in the second half and j in the first, the factor is split where the halves meet,
 *
 *   prod_{j < m <= i} a_m = prod_{start of i's half <= m <= i} a_m  prod_{j < m <= end of j's half} a_m
 *
 * so one tile X_h [64,K], rows of second halves holding q, of first halves k, each times its product, gives all pairs of a level as products of
 * tensor cores. Pairs inside 8 rows are summed one by one in float32. A thread has two channels of 16 rows. */
#ifndef LNT_DECAY_VECTOR_TILES_CUH
#define LNT_DECAY_VECTOR_TILES_CUH

#include "recurrence/decay/decay_vector.cuh"
#include "recurrence/delta/delta_parts.cuh"

struct vector_tiles {
    const bf16 *q, *k, *v, *d_o; /* q and d_o NULL: zeros */
    const float *gk, *bonus;
    const int64_t *cu;
    int64_t N;
    int Hv;
    float scale;
    bf16 *reader, *writer, *P; /* [slots,Hv] images: s q e^G, k e^{G_n - G} [64,K], s pairs [64,64] */
    float *E;                  /* [slots,Hv,K] */
    const bf16 *S, *dS;        /* [slots,Hv] images [K,V], of the chain: state before, gradient behind a chunk */
    bf16 *dq, *dk;
    float *dgk, *du; /* du [slots,Hv,K] */
    int key_slices = 1, value_slices = 1; /* of a head: Hv counts those of keys; a block goes through those of values */
};

/* dq, dk, dg and du from what the chains leave; `reads`: dq alone, which needs no dS. */
void lnt_vector_back(const vector_call *a, const vector_tiles &p, bool reads, const lnt_cuda *d);
/* The shared memory of its blocks. */
int lnt_vector_back_bytes(const vector_call *a, bool reads);

namespace {

/* Place of 16-byte piece `piece` of row `row` in a tile [64][W]: panels of 64 columns, swizzled as delta_parts.cuh has them. */
__device__ __forceinline__ uint32_t tile_at(int row, int piece) { return (piece >> 3) * TILE + row * 128 + (((piece & 7) ^ (row & 7)) << 4); }
/* As ldmatrix_x4 takes them: A [16][16] from tile [m][k] or [k][m]; B [16][16 columns] from [n][k] or [k][n]. Units of 8 elements and rows. */
__device__ __forceinline__ void load_A(uint32_t (&x)[4], uint32_t tile, int row, int piece)
{
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(x, tile + tile_at(row + (lane & 15), piece + (lane >> 4)));
}
__device__ __forceinline__ void load_A_turned(uint32_t (&x)[4], uint32_t tile, int row, int piece)
{
    const int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(x, tile + tile_at(row + (lane & 7) + (lane >> 4 << 3), piece + (lane >> 3 & 1)));
}
__device__ __forceinline__ void load_B(uint32_t (&x)[4], uint32_t tile, int row, int piece)
{
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(x, tile + tile_at(row + (lane & 7) + (lane >> 4 << 3), piece + (lane >> 3 & 1)));
}
__device__ __forceinline__ void load_B_turned(uint32_t (&x)[4], uint32_t tile, int row, int piece)
{
    const int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(x, tile + tile_at(row + (lane & 15), piece + (lane >> 4)));
}
__device__ __forceinline__ void store_pair(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ uint32_t load_pair(uint32_t address)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

/* The chunk of a slot; false: there is none. */
__device__ __forceinline__ bool chunk_of(const vector_tiles &p, int64_t slot, int64_t *token, int *rows)
{
    int64_t n = 0, above = p.N;
    while (above - n > 1) {
        const int64_t half = (n + above) / 2;
        (p.cu[half] / C + half <= slot ? n : above) = half;
    }
    const int64_t begin = p.cu[n];
    *token = begin + (slot - begin / C - n) * C;
    const int64_t left = p.cu[n + 1] - *token;
    *rows = (int)(left < C ? left : C);
    return left > 0;
}

/* Two channels of 8 rows: a, q and k, and the products of a inside the group, of readers up to a row and of writers behind it. */
template <int K, bool BEFORE> struct vector_group {
    float a[8][2];
    uint32_t q[8], k[8];

    __device__ __forceinline__ void load(const vector_tiles &p, int64_t token, int row, int left, int h, int pair) /* rows `row` .. of the chunk */
    {
        const int64_t at = (token + row) * p.Hv * K + h * K + 2 * pair, step = (int64_t)p.Hv * K;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool real = row + i < left;
            const float2 y = real ? *(const float2 *)(p.gk + at + i * step) : make_float2(0.f, 0.f);
            q[i] = real && p.q ? *(const uint32_t *)(p.q + at + i * step) : 0;
            k[i] = real ? *(const uint32_t *)(p.k + at + i * step) : 0;
            a[i][0] = y.x;
            a[i][1] = y.y;
        }
    }
    __device__ __forceinline__ void raise()
    {
#pragma unroll
        for (int i = 0; i < 8; i++) a[i][0] = fast_exp(a[i][0]), a[i][1] = fast_exp(a[i][1]);
    }
    __device__ __forceinline__ void inside(float (&up)[8][2], float (&down)[8][2]) const
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = 1.f, y = 1.f;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (BEFORE) up[i][e] = x;
                x *= a[i][e];
                if (!BEFORE) up[i][e] = x;
            }
#pragma unroll
            for (int i = 7; i >= 0; i--) {
                down[i][e] = y;
                y *= a[i][e];
            }
        }
    }
};

/* A thread's two channels of 16 rows, 16 part .., and the products G of its two groups, of the rows of the chunk before, behind, and between these
 * and the chunk's middle. */
template <int K> struct vector_part {
    float G[2][2], before[2], behind[2], middle[2];
    int part, pair;

    __device__ __forceinline__ vector_part() : part(threadIdx.x / (K / 2)), pair(threadIdx.x % (K / 2)) {}
    __device__ __forceinline__ uint32_t in_tile(int row) const { return tile_at(row, pair / 4) + 4 * (pair & 3); }
    __device__ __forceinline__ int row(int group) const { return 16 * part + 8 * group; }

    /* products [2][4][K]: of groups */
    template <bool BEFORE> __device__ __forceinline__ void put_products(float *products, const vector_group<K, BEFORE> (&of)[2]) const
    {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            float x = 1.f, y = 1.f;
#pragma unroll
            for (int i = 0; i < 8; i++) x *= of[g].a[i][0], y *= of[g].a[i][1];
            *(float2 *)(products + (g * 4 + part) * K + 2 * pair) = make_float2(x, y);
        }
    }
    __device__ __forceinline__ void get_products(const float *products)
    {
        float of[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 x = *(const float2 *)(products + j * K + 2 * pair), y = *(const float2 *)(products + (4 + j) * K + 2 * pair);
            of[j][0] = x.x * y.x;
            of[j][1] = x.y * y.y;
            if (j == part) G[0][0] = x.x, G[0][1] = x.y, G[1][0] = y.x, G[1][1] = y.y;
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            before[e] = behind[e] = 1.f;
            middle[e] = part == 3 ? of[2][e] : part == 0 ? of[1][e] : 1.f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j < part) before[e] *= of[j][e];
                if (j > part) behind[e] *= of[j][e];
            }
        }
    }
    /* With TILES X_8, X_16, X_32 to tiles at `levels`; each(row, q . up, k . down, what more a reader of the whole chunk has, what more a writer). */
    template <bool BEFORE, bool TILES, typename F>
    __device__ __forceinline__ void put_levels(uint32_t levels, const vector_group<K, BEFORE> (&of)[2], F each) const
    {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            float up[8][2], down[8][2], x16[2], x32[2], whole_q[2], whole_k[2];
            of[g].inside(up, down);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float q16 = g ? G[0][e] : 1.f, k16 = g ? 1.f : G[1][e];
                x16[e] = part & 1 ? q16 : k16;
                x32[e] = middle[e] * (part & 2 ? q16 : k16);
                whole_q[e] = before[e] * q16;
                whole_k[e] = behind[e] * k16;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float qf[2] = { low_bf16(of[g].q[i]) * up[i][0], high_bf16(of[g].q[i]) * up[i][1] };
                const float kf[2] = { low_bf16(of[g].k[i]) * down[i][0], high_bf16(of[g].k[i]) * down[i][1] };
                const uint32_t at = levels + in_tile(row(g) + i);
                const float s0 = part & 1 ? qf[0] : kf[0], s1 = part & 1 ? qf[1] : kf[1], t0 = part & 2 ? qf[0] : kf[0],
                            t1 = part & 2 ? qf[1] : kf[1];
                if (TILES) {
                    store_pair(at, g ? pack_bf16(qf[0], qf[1]) : pack_bf16(kf[0], kf[1]));
                    store_pair(at + K * 128, pack_bf16(s0 * x16[0], s1 * x16[1]));
                    store_pair(at + 2 * K * 128, pack_bf16(t0 * x32[0], t1 * x32[1]));
                }
                each(row(g) + i, qf, kf, whole_q, whole_k);
            }
        }
    }
};

/* To the gates of a thread's OWN groups of 8 rows, from group `first` on, what passes over them in its two channels: from the state's reads behind
 * and writes before, and pairs of the tree around, from whichever end of the chunk is nearer (there nothing passes, and what is rounded adds up).
 * What a group lets through when its gates leave less than 1/512 is less than what is rounded. product: of a group's gates; sum: of a group's reads
 * (0) and writes (1) of the state, and of the tree's (2, 3). */
template <int OWN, typename P, typename S>
__device__ __forceinline__ void add_over_groups(float (&all)[OWN][2], int first, P product, S sum)
{
    float through[2] = { 0, 0 };
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int group = n < 4 ? n : 11 - n;
        const float2 G = product(group);
        float2 y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = sum(group, i);
        if (n == 4) through[0] = through[1] = 0;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float reads = e ? y[2].y : y[2].x, writes = e ? y[3].y : y[3].x;
            const float over = (e ? G.y : G.x) < 1.f / 512 ? 0.f : through[e] - (n < 4 ? reads : writes);
            through[e] = over + (n < 4 ? writes : reads);
#pragma unroll
            for (int g = 0; g < OWN; g++)
                all[g][e] += group > first + g ? e ? y[0].y : y[0].x : group < first + g ? e ? y[1].y : y[1].x : over;
        }
    }
}

} // namespace

#endif
