/* Conjugate gradients of rows of a chunk in float32, any K up to 256: what the general solve (mesa_solve_cuda.cu) and the gradient through its steps
 * (mesa_unroll_cuda.cu) share. Equations: operators.md#mesa; lnt_mesa_solve what is asked.
 *
 * A CTA has ROWS rows of a chunk of one value head. 16 rows belong to the K/64 warps beside each other, which wait for nobody else and leave
 * when their rows are done. A thread has of 4 rows (4 apart) 8 columns (4 and 4, 32 apart): so every access to shared memory below is free of
 * bank conflicts, and 32 multiply-adds stand beside 3 reads. P, keys and H (of K <= 128, with 64 rows) are in shared memory, X and R in registers. */
#ifndef LNT_MESA_ROWS_CUDA_CUH
#define LNT_MESA_ROWS_CUDA_CUH

#include "recurrence/mesa/mesa_cuda.cuh"

#include <float.h>

#include "device/mma.cuh"
#include "recurrence/decay/decay_cuda.cuh"

namespace {

constexpr int C = LNT_MESA_C;
constexpr size_t NARROW = 99 << 10, ROOMY = 163 << 10; /* shared memory of a block: every GPU's, an A100's */

template <int KP, int ROWS> struct tile {
    static constexpr int across = KP / 64, threads = ROWS / 16 * across * 32, pitch = KP + 4, pairs_pitch = C + 4, keys = 8 / across;
    static constexpr bool H_here = KP <= 128 && ROWS == 64; /* else it is read where it is, in the L2 cache */
    float P[ROWS][pitch]; /* before the first step: diag(H_i) */
    float k[C][pitch];
    float S[ROWS][pairs_pitch];
    float H[H_here ? KP : 1][KP];
    float lambda[KP];
    float sums[2][2][ROWS][across]; /* of rows: for the step length, for what follows */
    lnt_gate_sum b[C];
    float gate[C], beta[C];
};

/* f(the CTA that K and the GPU ask for): with 163 KB 64 rows and H, or 32 rows of K = 256; with 99 KB half of them, without H. */
template <int KP, int ROWS, size_t ROOM> struct cta {
    static constexpr int columns = KP, rows = ROWS;
    static constexpr size_t room = ROOM;
};
template <typename F> void with_cta(int K, const lnt_cuda *d, F f)
{
    const bool roomy = d->base.block_shared >= ROOMY;
    if (K <= 64)
        f(cta<64, 64, NARROW>{});
    else if (K <= 128)
        roomy ? f(cta<128, 64, ROOMY>{}) : f(cta<128, 32, NARROW>{});
    else
        roomy ? f(cta<256, 32, ROOMY>{}) : f(cta<256, 16, NARROW>{});
}
/* What a thread carries. */
struct rows_of {
    float X[4][8], R[4][8], W[4][8], M[4][8];
};

struct place {
    int row[4], column, across, group; /* its rows in the CTA; its first column; its warp's place across; its group of 16 rows */
    int lane_column;                   /* of 8 */
    uint32_t met;                      /* where its group's barrier is in shared memory */
};

/* All threads of the group have come so far. An mbarrier, which racecheck follows: of named barriers it counts how many a warp has passed, and
 * reports races across __syncthreads once groups have passed different numbers of them. */
template <int KP, int ROWS> __device__ __forceinline__ void group_wait(const place &at)
{
    if constexpr (tile<KP, ROWS>::across > 1)
        asm volatile("{\n"
                     ".reg .pred done;\n"
                     ".reg .b64 phase;\n"
                     "mbarrier.arrive.shared.b64 phase, [%0];\n"
                     "again:\n"
                     "mbarrier.test_wait.shared.b64 done, [%0], phase;\n"
                     "@!done bra again;\n"
                     "}" ::"r"(at.met) : "memory");
    __syncwarp();
}

/* Sums over whole rows, the same bits in all their threads. The barrier also tells that all of the group have come so far. `slot`: another one than
 * that of the call before, unless a barrier stands between. */
template <int KP, int ROWS, int N> __device__ __forceinline__ void row_sums(tile<KP, ROWS> &s, const place &at, float (&x)[N][4], int slot = N - 1)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int o = 1; o < 8; o <<= 1) x[n][i] += __shfl_xor_sync(~0u, x[n][i], o);
            if (tile<KP, ROWS>::across > 1 && at.lane_column == 0) s.sums[slot][n][at.row[i]][at.across] = x[n][i];
        }
    group_wait<KP, ROWS>(at);
    if constexpr (tile<KP, ROWS>::across > 1)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n][i] = 0.0f;
#pragma unroll
                for (int w = 0; w < tile<KP, ROWS>::across; w++) x[n][i] += s.sums[slot][n][at.row[i]][w];
            }
}

__device__ __forceinline__ int column_of(const place &at, int j) { return at.column + j / 4 * 32 + j % 4; }

template <bool HALF> __device__ __forceinline__ float rounded(float x) { return HALF ? lnt_to_half(x) : x; }

/* Four neighbours of row `row` of H in global memory, from column `c`. */
template <bool HALF, typename S> __device__ __forceinline__ void global_H(float (&out)[4], const S *H, int row, int c, int K)
{
    if (K % 4 == 0 && row < K && c < K)
        load_pack<4>(out, H + (int64_t)row * K + c);
    else
#pragma unroll
        for (int j = 0; j < 4; j++) out[j] = row < K && c + j < K ? to_float(H[(int64_t)row * K + c + j]) : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) out[j] = rounded<HALF>(out[j]);
}

/* bf16 tensors take Op by tensor cores where H is in shared memory. Keys are exact there; P, H and the pairs are the sum of two bf16, of whose
 * products all but the smallest count: that loses 2^-17, where one bf16 would lose 2^-9, which steps that have not converged multiply. */
template <int KP, int ROWS, bool HALF, typename T>
constexpr bool by_tensor_cores = sizeof(T) == 2 && tile<KP, ROWS>::H_here && !HALF;

/* Two floats as two bf16 each. */
__device__ __forceinline__ void split(float x, float y, uint32_t &high, uint32_t &low)
{
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_bf16(high), y - high_bf16(high));
}
/* The A fragment of 16 rows from `from` on, lane's own place, `pitch` floats apart: columns 2c 2c+1 and those 8 further. */
__device__ __forceinline__ void split_rows(const float *from, int pitch, uint32_t (&high)[4], uint32_t (&low)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x = *(const float2 *)(from + i % 2 * 8 * pitch + i / 2 * 8);
        split(x.x, x.y, high[i], low[i]);
    }
}
/* Of H as two planes [KP,KP] of bf16, high and low: where row `row` has columns column..column+7. Their places change with the row, so that 8 are
 * read without bank conflicts. */
template <int KP> __device__ __forceinline__ int plane_at(int row, int column) { return row * KP + ((column / 8) ^ (row % 8)) * 8; }

/* By mma.sync. A warp has its group's 16 rows and 64 columns. The sums go from its layout to the thread's rows through the place of the pairs. */
template <int KP, int ROWS, bool KEEP>
__device__ __forceinline__ void apply_tiles(tile<KP, ROWS> &s, const place &at, rows_of &t, int first, float *pairs_out)
{
    constexpr int across = tile<KP, ROWS>::across, KEYS = C / across, pitch = tile<KP, ROWS>::pitch;
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4, row0 = at.group * 16, column0 = at.across * 64, key0 = at.across * KEYS;
    const uint32_t planes = shared_address(s.H);
    float w[8][4] = {}, pairs[KEYS / 8][4] = {};
#pragma unroll 1
    for (int d = 0; d < KP; d += 16) {
        uint32_t high[4], low[4];
        split_rows(&s.P[row0 + r][d + 2 * c], pitch, high, low);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            const int at_H = plane_at<KP>(column0 + 8 * n + lane / 16 * 8 + lane % 8, d + lane / 8 % 2 * 8);
            uint32_t H[4], rest[4];
            ldmatrix_x4(H, planes + 2 * at_H);
            ldmatrix_x4(rest, planes + 2 * (KP * KP + at_H));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_bf16(w[n + m], low, H[2 * m], H[2 * m + 1]);
                mma_bf16(w[n + m], high, rest[2 * m], rest[2 * m + 1]);
                mma_bf16(w[n + m], high, H[2 * m], H[2 * m + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const float *key = &s.k[key0 + 8 * n + r][d + 2 * c];
            const float2 x = *(const float2 *)key, y = *(const float2 *)(key + 8);
            const uint32_t k0 = pack_bf16(x.x, x.y), k1 = pack_bf16(y.x, y.y);
            mma_bf16(pairs[n], low, k0, k1);
            mma_bf16(pairs[n], high, k0, k1);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int local = row0 + r + 8 * i, row = first + local;
        const lnt_gate_sum b = s.b[row];
        const float in = lnt_gate_from_start(b);
#pragma unroll
        for (int n = 0; n < 8; n++) w[n][2 * i] *= in, w[n][2 * i + 1] *= in;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const int j = key0 + 8 * n + 2 * c;
            const float x = j <= row ? pairs[n][2 * i] * lnt_gate_between(b, s.b[j]) : 0.0f;
            const float y = j + 1 <= row ? pairs[n][2 * i + 1] * lnt_gate_between(b, s.b[j + 1]) : 0.0f;
            *(float2 *)&s.S[local][j] = make_float2(x * s.beta[j], y * s.beta[j + 1]);
            if constexpr (KEEP) *(float2 *)(pairs_out + row * C + j) = make_float2(x, y);
        }
    }
    group_wait<KP, ROWS>(at);
    const int keys = first + row0 + 16; /* of the group's last row */
#pragma unroll 1
    for (int j = 0; j < keys; j += 16) {
        uint32_t high[4], low[4];
        split_rows(&s.S[row0 + r][j + 2 * c], tile<KP, ROWS>::pairs_pitch, high, low);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *key = &s.k[j + 2 * c][column0 + 8 * n + r];
            const uint32_t k0 = pack_bf16(key[0], key[pitch]), k1 = pack_bf16(key[8 * pitch], key[9 * pitch]);
            mma_bf16(w[n], low, k0, k1);
            mma_bf16(w[n], high, k0, k1);
        }
    }
    group_wait<KP, ROWS>(at); /* all have read the pairs */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float(*stage)[tile<KP, ROWS>::pairs_pitch] = &s.S[row0 + 8 * at.across];
#pragma unroll
        for (int n = 0; n < 8; n++) *(float2 *)&stage[r][8 * n + 2 * c] = make_float2(w[n][2 * half], w[n][2 * half + 1]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float4 x = *(const float4 *)&stage[lane / 8 + 4 * i][at.lane_column * 4 + 8 * j];
                t.W[2 * half + i][j] = x.x, t.W[2 * half + i][j + 1] = x.y, t.W[2 * half + i][j + 2] = x.z, t.W[2 * half + i][j + 3] = x.w;
            }
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) t.W[i][j] += s.P[at.row[i]][column_of(at, j)] * s.lambda[column_of(at, j)];
}

/* W = Op(P). Between its two halves the group's pairs go through shared memory. `first`: the CTA's first row in the chunk. KEEP: (P K^T).D goes to
 * `pairs_out`, [C,C]. */
template <int KP, int ROWS, bool HALF, bool KEEP, typename T, typename S>
__device__ __forceinline__ void apply(tile<KP, ROWS> &s, const place &at, rows_of &t, const S *H, int K, int first, float *pairs_out)
{
    if constexpr (by_tensor_cores<KP, ROWS, HALF, T>) {
        apply_tiles<KP, ROWS, KEEP>(s, at, t, first, pairs_out);
        return;
    }
    constexpr int KEYS = tile<KP, ROWS>::keys;
    const int key0 = at.across * (C / tile<KP, ROWS>::across) + at.lane_column;
    float pairs[4][KEYS] = {}, in[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        in[i] = lnt_gate_from_start(s.b[first + at.row[i]]);
#pragma unroll
        for (int j = 0; j < 8; j++) t.W[i][j] = 0.0f;
    }
#pragma unroll 1
    for (int d = 0; d < K; d += 4) {
        float p[4][4], p_in[4][4]; /* of half: with e^b before it is rounded, not after the product */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_pack<4>(p[i], &s.P[at.row[i]][d]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p_in[i][e] = HALF ? lnt_to_half(p[i][e] * in[i]) : p[i][e];
                p[i][e] = rounded<HALF>(p[i][e]);
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float left[4], right[4];
            if constexpr (tile<KP, ROWS>::H_here) {
                load_pack<4>(left, &s.H[d + e][at.column]);
                load_pack<4>(right, &s.H[d + e][at.column + 32]);
            } else {
                global_H<HALF>(left, H, d + e, at.column, K);
                global_H<HALF>(right, H, d + e, at.column + 32, K);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    t.W[i][j] += p_in[i][e] * left[j];
                    t.W[i][j + 4] += p_in[i][e] * right[j];
                }
        }
#pragma unroll
        for (int m = 0; m < KEYS; m++) {
            float key[4];
            load_pack<4>(key, &s.k[key0 + 8 * m][d]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) pairs[i][m] += p[i][e] * key[e];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + at.row[i];
        const lnt_gate_sum b = s.b[row];
#pragma unroll
        for (int m = 0; m < KEYS; m++) {
            const int j = key0 + 8 * m;
            const float pair = j <= row ? pairs[i][m] * lnt_gate_between(b, s.b[j]) : 0.0f;
            s.S[at.row[i]][j] = rounded<HALF>(pair * s.beta[j]);
            if constexpr (KEEP) pairs_out[row * C + j] = pair;
        }
#pragma unroll
        for (int j = 0; !HALF && j < 8; j++) t.W[i][j] *= in[i];
    }
    group_wait<KP, ROWS>(at);
    const int keys = first + 16 * at.group + 16; /* of the group's last row */
#pragma unroll 1
    for (int j = 0; j < keys; j += 4) {
        float y[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) load_pack<4>(y[i], &s.S[at.row[i]][j]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float left[4], right[4];
            load_pack<4>(left, &s.k[j + e][at.column]);
            load_pack<4>(right, &s.k[j + e][at.column + 32]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    t.W[i][c] += y[i][e] * left[c];
                    t.W[i][c + 4] += y[i][e] * right[c];
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) t.W[i][j] += s.P[at.row[i]][column_of(at, j)] * s.lambda[column_of(at, j)];
}

/* The chunk's keys, gates and H, and diag(H_i) where P will be. */
template <int KP, int ROWS, bool HALF, typename T, typename S>
__device__ __forceinline__ void load(tile<KP, ROWS> &s, const lnt_mesa_solve<T, S> &a, const S *H, int64_t t, int len, int h, int first)
{
    constexpr int THREADS = tile<KP, ROWS>::threads;
    const int tid = (int)threadIdx.x, K = a.K;
    const T *k = a.k + (t * a.Hk + (int64_t)h * a.Hk / a.Hv) * K;
    for (int i = tid; i < C * KP; i += THREADS) {
        const int j = i / KP, d = i % KP;
        s.k[j][d] = j < len && d < K ? to_float(k[(int64_t)j * a.Hk * K + d]) : 0.0f;
    }
    if constexpr (by_tensor_cores<KP, ROWS, HALF, T>)
        for (int i = 2 * tid; i < KP * KP; i += 2 * THREADS) {
            const int r = i / KP, d = i % KP, place = plane_at<KP>(r, d) + d % 8;
            const float x = r < K && d < K ? to_float(H[(int64_t)r * K + d]) : 0.0f;
            const float y = r < K && d + 1 < K ? to_float(H[(int64_t)r * K + d + 1]) : 0.0f;
            uint32_t *planes = (uint32_t *)&s.H[0][0];
            split(x, y, planes[place / 2], planes[(KP * KP + place) / 2]);
        }
    else if constexpr (tile<KP, ROWS>::H_here)
        for (int i = tid; i < KP * KP; i += THREADS) {
            const int r = i / KP, d = i % KP;
            s.H[r][d] = r < K && d < K ? rounded<HALF>(to_float(H[(int64_t)r * K + d])) : 0.0f;
        }
    for (int d = tid; d < KP; d += THREADS) s.lambda[d] = d < K ? a.lambda[(int64_t)h * K + d] : 1.0f;
    for (int j = tid; j < C; j += THREADS) {
        const float g = j < len ? a.g[(t + j) * a.Hv + h] : 0.0f;
        s.gate[j] = lnt_gate(g);
        s.beta[j] = j < len ? a.beta[(t + j) * a.Hv + h] : 0.0f;
    }
    __syncthreads();
    for (int j = tid; j < C; j += THREADS) s.b[j] = lnt_gate_upto(s.gate, j);
    for (int d = tid; d < KP; d += THREADS) {
        float diagonal = d < K ? to_float(H[(int64_t)d * K + d]) : 0.0f;
        for (int j = 0; j < first + ROWS; j++) {
            diagonal = fmaf(s.beta[j] * s.k[j][d], s.k[j][d], diagonal * expf(s.gate[j]));
            if (j >= first) s.P[j - first][d] = d < K ? diagonal : FLT_MAX;
        }
    }
    __syncthreads();
}

/* M, from the diagonals in P. */
template <int KP, int ROWS> __device__ __forceinline__ void precondition(tile<KP, ROWS> &s, const place &at, rows_of &t, bool level)
{
    float least[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        least[i] = FLT_MAX;
        for (int d = at.lane_column; level && d < KP; d += 8) least[i] = lnt_mesa_least(least[i], s.P[at.row[i]][d]);
        for (int o = 1; o < 8; o <<= 1) least[i] = lnt_mesa_least(least[i], __shfl_xor_sync(~0u, least[i], o));
#pragma unroll
        for (int j = 0; j < 8; j++) t.M[i][j] = 1.0f / ((level ? least[i] : s.P[at.row[i]][column_of(at, j)]) + s.lambda[column_of(at, j)]);
    }
    group_wait<KP, ROWS>(at); /* P is free */
}

/* The steps of a chunk's rows, kept to be differentiated: a block has the rows of one step (the first, of the guess, where its residual is taken),
 * at their places in the chunk. A group of 16 rows has as many blocks as it took steps. */
struct trail {
    float *P, *W;        /* [blocks,C,KP] directions and Op of them; W becomes the gradient of itself */
    float *S1, *S2;      /* [blocks,C,C] (P K^T).D, (dW K^T).D */
    float *numbers;      /* [blocks,4,C] alpha, the denominators of alpha and of ratio, ratio; alpha = 0: the row did nothing */
    float *diagonal, *dD; /* [C,KP] diag(H_i), its gradient */
};

template <int KP> __device__ __forceinline__ void put_rows(float *to, const place &at, int first, const float (&x)[4][8])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j += 4)
            *(float4 *)(to + (first + at.row[i]) * KP + column_of(at, j)) = make_float4(x[i][j], x[i][j + 1], x[i][j + 2], x[i][j + 3]);
}
template <int KP> __device__ __forceinline__ void get_rows(float (&x)[4][8], const float *from, const place &at, int first)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const float4 y = *(const float4 *)(from + (first + at.row[i]) * KP + column_of(at, j));
            x[i][j] = y.x, x[i][j + 1] = y.y, x[i][j + 2] = y.z, x[i][j + 3] = y.w;
        }
}
template <int KP, int ROWS> __device__ __forceinline__ void own_P(float (&x)[4][8], const tile<KP, ROWS> &s, const place &at)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) x[i][j] = s.P[at.row[i]][column_of(at, j)];
}
template <int KP, int ROWS> __device__ __forceinline__ void keep_block(const trail &past, const tile<KP, ROWS> &s, const place &at, const rows_of &t,
                                                                       int first, int block)
{
    float p[4][8];
    own_P(p, s, at);
    put_rows<KP>(past.P + (int64_t)block * C * KP, at, first, p);
    put_rows<KP>(past.W + (int64_t)block * C * KP, at, first, t.W);
}

/* Of a thread's rows: |rhs|^2, |r|^2, steps taken; blocks kept by the group. */
struct outcome {
    float size[4], left[4];
    int taken[4], blocks;
};

/* `barriers`: of the groups of 16 rows, in shared memory; __syncthreads before the first wait. */
template <int KP, int ROWS> __device__ __forceinline__ place place_of(uint64_t (&barriers)[ROWS / 16])
{
    constexpr int across = tile<KP, ROWS>::across;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    place at;
    at.met = shared_address(&barriers[warp / across]);
    if ((int)threadIdx.x % (32 * across) == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at.met), "n"(32 * across) : "memory");
    at.across = warp % across;
    at.group = warp / across;
    at.lane_column = lane % 8;
    at.column = at.across * 64 + at.lane_column * 4;
    for (int i = 0; i < 4; i++) at.row[i] = at.group * 16 + lane / 8 + 4 * i;
    return at;
}

/* All steps of the CTA's rows, once `load` has come back: X, R and M stay in `t`. t0: its first token. Sums of two products say which is fused:
 * the compiler would choose differently for CTAs of different shapes, and rows would have other bits there. Long: the guess and the steps share the
 * rows' numbers, which are in registers. */
template <int KP, int ROWS, bool HALF, bool KEEP, typename T, typename S>
__device__ __forceinline__ void take_steps(tile<KP, ROWS> &s, const place &at, rows_of &t, const lnt_mesa_solve<T, S> &a,
                                           const lnt_mesa_course &course, const S *H, int64_t t0, int len, int h, int first, const trail &past,
                                           outcome &out)
{
    const int K = a.K;
    if constexpr (KEEP) {
        float diagonal[4][8];
        own_P(diagonal, s, at);
        put_rows<KP>(past.diagonal, at, first, diagonal);
    }
    precondition(s, at, t, course.solver == LNT_CG_LEVEL);
    float both[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + at.row[i];
        const T *b = a.rhs + ((t0 + row) * a.Hr + (int64_t)h * a.Hr / a.Hv) * K;
        both[0][i] = both[1][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int d = column_of(at, j);
            t.R[i][j] = row < len && d < K ? to_float(b[d]) : 0.0f;
            if (HALF && a.half_ends) t.R[i][j] = lnt_to_half(t.R[i][j]);
            t.X[i][j] = course.from_guess ? t.R[i][j] * t.M[i][j] : 0.0f;
            both[0][i] += t.R[i][j] * t.R[i][j];
            s.P[at.row[i]][d] = t.X[i][j];
        }
    }
    row_sums(s, at, both);
    float delta[4];
    bool live[4];
    out.blocks = 0;
    if (course.from_guess) {
        apply<KP, ROWS, HALF, KEEP, T>(s, at, t, H, K, first, past.S1);
        if constexpr (KEEP) keep_block(past, s, at, t, first, 0);
        out.blocks = 1;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) t.R[i][j] -= t.W[i][j];
        group_wait<KP, ROWS>(at); /* all have read P */
    }
    float one[1][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.size[i] = both[0][i];
        out.taken[i] = 0;
        one[0][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (course.solver > LNT_CG_JACOBI) t.M[i][j] = 1.0f;
            const float p = t.M[i][j] * t.R[i][j];
            one[0][i] += p * t.R[i][j];
            s.P[at.row[i]][column_of(at, j)] = p;
        }
    }
    row_sums(s, at, one);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        delta[i] = one[0][i];
        live[i] = first + at.row[i] < len;
    }

    for (int step = 0; step < course.most; step++) {
        if (!__any_sync(~0u, live[0] || live[1] || live[2] || live[3])) break;
        apply<KP, ROWS, HALF, KEEP, T>(s, at, t, H, K, first, past.S1 + (int64_t)out.blocks * C * C);
        if constexpr (KEEP) keep_block(past, s, at, t, first, out.blocks);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            one[0][i] = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) one[0][i] += s.P[at.row[i]][column_of(at, j)] * t.W[i][j];
        }
        row_sums(s, at, one);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float curve = one[0][i];
            live[i] = live[i] && (a.absolute > 0 || (delta[i] > 0 && curve > 0));
            const float alpha = (live[i] ? delta[i] / (curve + a.absolute) : 0.0f) + lnt_mesa_lost(delta[i], curve);
            out.taken[i] += live[i];
            if (KEEP && at.column == 0) {
                past.numbers[(out.blocks * 4 + 0) * C + first + at.row[i]] = alpha;
                past.numbers[(out.blocks * 4 + 1) * C + first + at.row[i]] = curve + a.absolute;
            }
            both[0][i] = both[1][i] = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                t.X[i][j] += alpha * s.P[at.row[i]][column_of(at, j)];
                t.R[i][j] = fmaf(-alpha, t.W[i][j], t.R[i][j]);
                both[0][i] += t.R[i][j] * (t.M[i][j] * t.R[i][j]);
                both[1][i] += t.R[i][j] * t.R[i][j];
            }
        }
        row_sums(s, at, both);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (both[1][i] <= a.tolerance2 * out.size[i]) live[i] = false;
            const float ratio = both[0][i] / (delta[i] + a.absolute), f = live[i] ? ratio : 0.0f;
            if (KEEP && at.column == 0) {
                past.numbers[(out.blocks * 4 + 2) * C + first + at.row[i]] = delta[i] + a.absolute;
                past.numbers[(out.blocks * 4 + 3) * C + first + at.row[i]] = ratio;
            }
            delta[i] = both[0][i];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float *p = &s.P[at.row[i]][column_of(at, j)];
                *p = fmaf(f, *p, t.M[i][j] * t.R[i][j]);
            }
        }
        out.blocks++;
        group_wait<KP, ROWS>(at); /* P is there */
    }

    group_wait<KP, ROWS>(at); /* without a step, the others may still read the last sums */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        one[0][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) one[0][i] += t.R[i][j] * t.R[i][j];
    }
    row_sums(s, at, one);
#pragma unroll
    for (int i = 0; i < 4; i++) out.left[i] = one[0][i];
}

template <typename T, typename S>
__device__ __forceinline__ void report(const lnt_mesa_solve<T, S> &a, const lnt_mesa_course &course, const place &at, const outcome &out, int64_t t0,
                                       int len, int h, int first)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + at.row[i] >= len || at.column) continue;
        const int64_t token = (t0 + first + at.row[i]) * a.Hv + h;
        if (a.taken) a.taken[token] = (float)(out.taken[i] > course.free_steps ? out.taken[i] - course.free_steps : 0);
        if (a.residual) a.residual[token] = lnt_mesa_left(out.left[i], out.size[i]);
    }
}

} // namespace

#endif
