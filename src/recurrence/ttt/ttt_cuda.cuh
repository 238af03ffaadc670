/* What the ttt core's CUDA kernels share. A CTA has a head of a sequence and goes through its mini-batches one after the other, as a thread does on
 * a CPU; what it works on lies in shared memory as far as there is room, the rest in its part of the workspace. Matrices are dense float32 with rows
 * a few numbers apart (ttt_ld); products are made by the whole CTA. Every function that ends with a barrier says so. */
#ifndef LNT_TTT_CUDA_CUH
#define LNT_TTT_CUDA_CUH

#include "device/mma.cuh"

extern "C" {
#include "recurrence/ttt/ttt.h"
}

static constexpr int TTT_THREADS = 256, TTT_WARPS = TTT_THREADS / 32;

/* Columns from one row to the next: 4 more than a multiple of 8, so that neither rows nor columns of a fragment meet in a bank. */
__host__ __device__ static inline int ttt_ld(int64_t columns)
{
    const int64_t quads = (columns + 3) / 4 * 4;
    return (int)(quads % 8 ? quads : quads + 4);
}

/* Float32 in shared memory while there is room, then in global memory. With null pointers it only measures. */
struct ttt_arena {
    float *shared;
    int64_t room;
    float *global;
    int64_t shared_used, used;
    __host__ __device__ float *take(int64_t count)
    {
        count = (count + 3) / 4 * 4;
        if (count <= room) {
            float *p = shared ? shared + shared_used : NULL;
            room -= count;
            shared_used += count;
            return p;
        }
        float *p = global ? global + used : NULL;
        used += count;
        return p;
    }
};

/* Shared memory of a CTA is one of these, in floats; and what is left for it when a few small arrays of the kernels are taken off. */
static constexpr int TTT_LEVELS = 3;
static inline int64_t ttt_shared_floats(int level)
{
    static const int kilobytes[TTT_LEVELS] = { 99, 163, 227 };
    return (kilobytes[level] * 1024 - 5 * 1024) / 4;
}
static inline int ttt_level(const lnt_device *d)
{
    return d->block_shared >= 227 << 10 ? 2 : d->block_shared >= 163 << 10 ? 1 : 0;
}

/* ---- products ---------------------------------------------------------------------------------------------------------------------------- */

struct ttt_matrix {
    float *p;
    int ld;
    __device__ __forceinline__ float *row(int64_t i) const { return p + i * ld; }
    __device__ __forceinline__ ttt_matrix from(int64_t i) const { return { row(i), ld }; }
};

/* Element (i, k) at p[i rows + k columns]. */
struct ttt_operand {
    const float *p;
    int rows, columns;
};
__device__ __forceinline__ ttt_operand as_is(ttt_matrix x) { return { x.p, x.ld, 1 }; }
__device__ __forceinline__ ttt_operand turned(ttt_matrix x) { return { x.p, 1, x.ld }; }

enum ttt_mode { TTT_SET, TTT_ADD, TTT_SUB };

/* Two floats as a pair of bf16 and what that leaves of them as another. */
struct ttt_split {
    uint32_t high, low;
};
__device__ __forceinline__ ttt_split split_pair(float x, float y)
{
    const uint32_t high = pack_bf16(x, y);
    return { high, pack_bf16(x - low_bf16(high), y - high_bf16(high)) };
}

/* Elements (i, k) and (i, k + 1), zeros beyond M and K; times scale where it is given. */
__device__ __forceinline__ ttt_split fetch_pair(ttt_operand x, int i, int k, int M, int K, const float *scale)
{
    float2 y = make_float2(0.0f, 0.0f);
    if (i < M && k + 1 < K) {
        const float *p = x.p + i * x.rows + k * x.columns;
        if (x.columns == 1)
            y = *(const float2 *)p;
        else
            y = make_float2(p[0], p[x.columns]);
        if (scale) y.x *= scale[k], y.y *= scale[k + 1];
    } else if (i < M && k < K)
        y.x = x.p[i * x.rows + k * x.columns] * (scale ? scale[k] : 1.0f);
    return split_pair(y.x, y.y);
}

/* The same of an operand whose rows and columns are all there; by columns or, transposed, by rows one behind the other. */
template <bool ALONG> __device__ __forceinline__ ttt_split take_pair(const float *p, int ld)
{
    if (ALONG) {
        const float2 y = *(const float2 *)p;
        return split_pair(y.x, y.y);
    }
    return split_pair(p[0], p[ld]);
}

/* A tile of 16 rows and 16 columns, with k from begin to end, all multiples of 16. AA, BA: k runs along memory in A, in B. EXACT: A's numbers are
 * those of bf16. */
template <bool AA, bool BA, bool EXACT>
__device__ __forceinline__ void whole_tile(float (&acc)[2][4], int i0, int n0, int begin, int end, ttt_operand A, ttt_operand B, const float *scale)
{
    const int lane = (int)threadIdx.x % 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const int lda = AA ? A.rows : A.columns, ldb = BA ? B.columns : B.rows, stepa = AA ? 16 : 16 * lda, stepb = BA ? 16 : 16 * ldb;
    const float *a = A.p + (AA ? (i0 + r) * lda + c2 + begin : (begin + c2) * lda + i0 + r);
    const float *b = B.p + (BA ? (n0 + r) * ldb + c2 + begin : (begin + c2) * ldb + n0 + r);
    const int a_down = AA ? 8 * lda : 8, a_right = AA ? 8 : 8 * lda, b_down = BA ? 8 : 8 * ldb, b_right = BA ? 8 * ldb : 8;
#pragma unroll 2
    for (int k = begin; k < end; k += 16, a += stepa, b += stepb) {
        uint32_t high[4], low[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const float *p = a + (q & 1) * a_down + (q >> 1) * a_right;
            ttt_split y;
            if (EXACT)
                y = { pack_bf16(p[0], AA ? p[1] : p[lda]), 0 };
            else if (scale) {
                const float *f = scale + k + c2 + (q >> 1) * 8;
                y = split_pair(p[0] * f[0], (AA ? p[1] : p[lda]) * f[1]);
            } else
                y = take_pair<AA>(p, lda);
            high[q] = y.high;
            low[q] = y.low;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const ttt_split b0 = take_pair<BA>(b + j * b_right, ldb), b1 = take_pair<BA>(b + j * b_right + b_down, ldb);
            if (!EXACT) mma_bf16(acc[j], low, b0.high, b1.high);
            mma_bf16(acc[j], high, b0.low, b1.low);
            mma_bf16(acc[j], high, b0.high, b1.high);
        }
    }
}

/* f(i, n, sums) for pairs of neighbours (i, n) and (i, n + 1) of x^T (scale_s.u), x [16,I], u [16,O], I and O multiples of 16; sums[s][0..1]. A warp
 * has columns of its own, whose factors it makes once. EXACT: x has numbers of bf16. */
template <bool EXACT, int N, typename F>
__device__ __forceinline__ void outer_tiles(int I, int O, ttt_matrix x, ttt_matrix u, const float *const (&scale)[N], F f)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const int blocks = O / 16, groups = blocks < TTT_WARPS ? TTT_WARPS / blocks : 1;
    if (warp >= blocks * groups) return;
    for (int block = warp % blocks; block < blocks; block += TTT_WARPS) {
        ttt_split b[N][2][2];
#pragma unroll
        for (int s = 0; s < N; s++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int k = c2 + (j & 1) * 8, n = block * 16 + (j >> 1) * 8 + r;
                b[s][j >> 1][j & 1] = split_pair(scale[s][k] * u.row(k)[n], scale[s][k + 1] * u.row(k + 1)[n]);
            }
        for (int i0 = warp / blocks % groups * 16; i0 < I; i0 += groups * 16) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float *p = x.row(c2 + (q >> 1) * 8) + i0 + r + (q & 1) * 8;
                const ttt_split y = EXACT ? ttt_split{ pack_bf16(p[0], p[x.ld]), 0 } : split_pair(p[0], p[x.ld]);
                high[q] = y.high;
                low[q] = y.low;
            }
            float acc[N][2][4] = {};
#pragma unroll
            for (int s = 0; s < N; s++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (!EXACT) mma_bf16(acc[s][j], low, b[s][j][0].high, b[s][j][1].high);
                    mma_bf16(acc[s][j], high, b[s][j][0].low, b[s][j][1].low);
                    mma_bf16(acc[s][j], high, b[s][j][0].high, b[s][j][1].high);
                }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int q = 0; q < 4; q += 2) {
                    float sums[N][2];
#pragma unroll
                    for (int s = 0; s < N; s++) sums[s][0] = acc[s][j][q], sums[s][1] = acc[s][j][q + 1];
                    f(i0 + r + q / 2 * 8, block * 16 + j * 8 + c2, sums);
                }
        }
    }
}

/* A tile of 16 rows and 8 NT columns on tensor cores, whose operands are bf16 in two parts: what a product loses is 2^-16 of a term. */
template <int NT>
__device__ __forceinline__ void tile_of_halves(float (&acc)[NT][4], int i0, int n0, int M, int N, int K, ttt_operand A, ttt_operand B,
                                               const float *scale)
{
    const int lane = (int)threadIdx.x % 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const ttt_operand columns = { B.p, B.columns, B.rows };
    for (int k = c2; k < K + c2; k += 16) {
        uint32_t high[4], low[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const ttt_split y = fetch_pair(A, i0 + r + (q & 1) * 8, k + (q >> 1) * 8, M, K, scale);
            high[q] = y.high;
            low[q] = y.low;
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const ttt_split b0 = fetch_pair(columns, n0 + j * 8 + r, k, N, K, NULL), b1 = fetch_pair(columns, n0 + j * 8 + r, k + 8, N, K, NULL);
            mma_bf16(acc[j], low, b0.high, b1.high);
            mma_bf16(acc[j], high, b0.low, b1.low);
            mma_bf16(acc[j], high, b0.high, b1.high);
        }
    }
}

__device__ __forceinline__ void put_element(ttt_mode mode, float *c, float x) { *c = mode == TTT_SET ? x : mode == TTT_ADD ? *c + x : *c - x; }

/* Of a product of one tile: one array for all kinds of products (a template's own would be one each, which the levels above leave no room for). */
static __device__ __forceinline__ float (*product_parts())[16][16]
{
    __shared__ float part[4][16][16];
    return part;
}

/* C (=, +=, -=) A B, [M,N] from [M,K] and [K,N], A's columns times scale [K] and bias [N] added where they are given. By bf16 in two parts where the
 * call is of that type, else in float32. EXACT: A's numbers are those of bf16, and there is no scale. Ends with a barrier. */
template <bool HALF, bool EXACT = false>
__device__ __noinline__ void product(ttt_mode mode, int M, int N, int K, ttt_operand A, ttt_operand B, ttt_matrix C, const float *scale = NULL,
                                     const float *bias = NULL)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (HALF) {
        constexpr int NT = 2;
        const int wide = (N + 8 * NT - 1) / (8 * NT), tiles = (M + 15) / 16 * wide, r = lane >> 2, c2 = 2 * (lane & 3);
        const bool whole = ((M | N | K) & 15) == 0, aa = A.columns == 1, ba = B.rows == 1;
        if (whole && tiles == 1 && K % 64 == 0 && aa && ba) { /* one tile: a quarter of k a warp, added in order */
            float (*part)[16][16] = product_parts();
            if (warp < 4) {
                float acc[NT][4] = {};
                whole_tile<true, true, EXACT>(acc, 0, 0, warp * (K / 4), (warp + 1) * (K / 4), A, B, scale);
#pragma unroll
                for (int j = 0; j < NT; j++)
#pragma unroll
                    for (int q = 0; q < 4; q++) part[warp][r + (q >> 1) * 8][j * 8 + c2 + (q & 1)] = acc[j][q];
            }
            __syncthreads();
            const int i = (int)threadIdx.x / 16, n = (int)threadIdx.x % 16;
            put_element(mode, C.row(i) + n, (part[0][i][n] + part[1][i][n]) + (part[2][i][n] + part[3][i][n]) + (bias ? bias[n] : 0.0f));
            __syncthreads();
            return;
        }
        for (int tile = warp; tile < tiles; tile += TTT_WARPS) {
            const int i0 = tile / wide * 16, n0 = tile % wide * 8 * NT;
            float acc[NT][4] = {};
            if (whole && aa && ba)
                whole_tile<true, true, EXACT>(acc, i0, n0, 0, K, A, B, scale);
            else if (whole && aa)
                whole_tile<true, false, EXACT>(acc, i0, n0, 0, K, A, B, scale);
            else if (!EXACT && whole && !ba)
                whole_tile<false, false, false>(acc, i0, n0, 0, K, A, B, scale);
            else
                tile_of_halves<NT>(acc, i0, n0, M, N, K, A, B, scale);
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int i = i0 + r + (q >> 1) * 8, n = n0 + j * 8 + c2 + (q & 1);
                    if (i < M && n < N) put_element(mode, C.row(i) + n, bias ? acc[j][q] + bias[n] : acc[j][q]);
                }
        }
    } else {
        const int wide = (N + 31) / 32, tiles = (M + 7) / 8 * wide;
        for (int tile = warp; tile < tiles; tile += TTT_WARPS) {
            const int i0 = tile / wide * 8, n = tile % wide * 32 + lane;
            const float *b = B.p + (int64_t)min(n, N - 1) * B.columns, *a[8];
            float acc[8] = {};
#pragma unroll
            for (int q = 0; q < 8; q++) a[q] = A.p + (int64_t)min(i0 + q, M - 1) * A.rows;
#pragma unroll 4
            for (int k = 0; k < K; k++) {
                const float y = b[(int64_t)k * B.rows] * (scale ? scale[k] : 1.0f);
#pragma unroll
                for (int q = 0; q < 8; q++) acc[q] = fmaf(a[q][(int64_t)k * A.columns], y, acc[q]);
            }
#pragma unroll
            for (int q = 0; q < 8; q++)
                if (i0 + q < M && n < N) put_element(mode, C.row(i0 + q) + n, bias ? acc[q] + bias[n] : acc[q]);
        }
    }
    __syncthreads();
}

/* ---- rows: a warp has one ----------------------------------------------------------------------------------------------------------------- */

#define TTT_EACH_ROW(i, begin, end) for (int i = (begin) + (int)threadIdx.x / 32; i < (end); i += TTT_WARPS)
#define TTT_EACH_COLUMN(c, count) for (int c = (int)threadIdx.x % 32; c < (count); c += 32)
/* The CTA's warps over the rows of a matrix, lanes over columns. */
#define TTT_EACH(i, c, rows, columns) TTT_EACH_ROW (i, 0, rows) TTT_EACH_COLUMN(c, columns)

/* hat = (z - mean) / sigma, in place or not; returns 1 / sigma = (var + 1e-6)^-1/2. */
__device__ __forceinline__ float normalise_row(int D, const float *z, float *hat)
{
    float sum = 0, square = 0;
    TTT_EACH_COLUMN(c, D) sum += z[c];
    const float mean = warp_sum(sum) / (float)D;
    TTT_EACH_COLUMN(c, D)
    {
        const float d = z[c] - mean;
        square += d * d;
    }
    const float inverse = 1.0f / sqrtf(warp_sum(square) / (float)D + 1e-6f);
    TTT_EACH_COLUMN(c, D) hat[c] = (z[c] - mean) * inverse;
    return inverse;
}

/* out = (d - mean(d) - hat mean(d hat)) / sigma; out may be d. */
__device__ __forceinline__ void project_row(int D, const float *d, const float *hat, float inverse, float *out)
{
    float sum = 0, along = 0;
    TTT_EACH_COLUMN(c, D) sum += d[c], along += d[c] * hat[c];
    const float mean = warp_sum(sum) / (float)D, part = warp_sum(along) / (float)D;
    TTT_EACH_COLUMN(c, D) out[c] = (d[c] - mean - part * hat[c]) * inverse;
}

__device__ __forceinline__ float dot_rows(int D, const float *x, const float *y)
{
    float sum = 0;
    TTT_EACH_COLUMN(c, D) sum += x[c] * y[c];
    return warp_sum(sum);
}

/* A head's norm, and its sums of gradients of that. */
struct ttt_norm {
    int D;
    bool plain;
    const float *w, *b;
    float *dw, *db;
};

/* u = dl/dz; hat, which may be z, and 1 / sigma for the way back. */
__device__ __forceinline__ void loss_row(const ttt_norm &x, const float *z, const float *k, const float *v, float *hat,
                                         float *inverse, float *u)
{
    if (x.plain) {
        TTT_EACH_COLUMN(c, x.D) u[c] = z[c] - v[c];
        return;
    }
    const float by = normalise_row(x.D, z, hat);
    if (threadIdx.x % 32 == 0) *inverse = by;
    TTT_EACH_COLUMN(c, x.D) u[c] = x.w[c] * (x.w[c] * hat[c] + x.b[c] - (v[c] - k[c]));
    project_row(x.D, u, hat, by, u);
}

/* The same for rows begin .. end-1, two of a warp side by side in registers where they have at most 128 columns. inverse, u: of row 0. */
__device__ __forceinline__ void loss_rows(const ttt_norm &x, int begin, int end, ttt_matrix z, ttt_matrix k, ttt_matrix v, ttt_matrix hat,
                                          float *inverse, ttt_matrix u)
{
    constexpr int EACH = 4;
    const int lane = (int)threadIdx.x % 32, D = x.D;
    if (x.plain || D > 32 * EACH) {
        TTT_EACH_ROW(i, begin, end) loss_row(x, z.row(i), k.row(i), v.row(i), hat.row(i), inverse + i, u.row(i));
        return;
    }
    for (int i = begin + (int)threadIdx.x / 32; i < end; i += 2 * TTT_WARPS) {
        float y[2][EACH], g[2][EACH], sum[2] = {}, square[2] = {}, along[2] = {}, by[2];
        const int row[2] = { i, i + TTT_WARPS < end ? i + TTT_WARPS : i };
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                y[r][j] = lane + 32 * j < D ? z.row(row[r])[lane + 32 * j] : 0.0f;
                sum[r] += y[r][j];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float mean = warp_sum(sum[r]) / (float)D;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                y[r][j] = lane + 32 * j < D ? y[r][j] - mean : 0.0f;
                square[r] += y[r][j] * y[r][j];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            by[r] = 1.0f / sqrtf(warp_sum(square[r]) / (float)D + 1e-6f);
            sum[r] = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int c = lane + 32 * j;
                y[r][j] *= by[r];
                g[r][j] = c < D ? x.w[c] * (x.w[c] * y[r][j] + x.b[c] - (v.row(row[r])[c] - k.row(row[r])[c])) : 0.0f;
                sum[r] += g[r][j];
                along[r] += g[r][j] * y[r][j];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float mean = warp_sum(sum[r]) / (float)D, part = warp_sum(along[r]) / (float)D;
            if (r && row[1] == row[0]) break;
            if (lane == 0) inverse[row[r]] = by[r];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int c = lane + 32 * j;
                if (c >= D) continue;
                hat.row(row[r])[c] = y[r][j];
                u.row(row[r])[c] = (g[r][j] - mean - part * y[r][j]) * by[r];
            }
        }
    }
}

/* From du to dz, in its place, dv, in v's, and dk, which is added to. e and g, what a row adds to the gradients of the norm, take the places of hat
 * (dw) and u (db): norm_sums reads them. */
__device__ __forceinline__ void loss_row_back(const ttt_norm &x, float *hat, float inverse, const float *k, float *v, float *u, float *du, float *dk)
{
    const int D = x.D;
    if (x.plain) {
        TTT_EACH_COLUMN(c, D) v[c] = -du[c];
        return;
    }
    float along_g = 0, along_du = 0, across = 0, sum = 0;
    TTT_EACH_COLUMN(c, D)
    {
        const float g = x.w[c] * (x.w[c] * hat[c] + x.b[c] - (v[c] - k[c]));
        along_g += hat[c] * g;
        along_du += hat[c] * du[c];
        across += u[c] * du[c];
        sum += du[c];
    }
    const float mean = warp_sum(sum) / (float)D, part = warp_sum(along_du) / (float)D, du_part = part * inverse;
    const float g_part = warp_sum(along_g) / (float)D * inverse, sigma_part = -warp_sum(across) * inverse / (float)D;
    float dhat_sum = 0, dhat_along = 0;
    TTT_EACH_COLUMN(c, D) /* dz^ of a column, twice */
    {
        const float dg = (du[c] - mean - part * hat[c]) * inverse, e = x.w[c] * hat[c] + x.b[c] - (v[c] - k[c]);
        const float dhat = x.w[c] * x.w[c] * dg - g_part * du[c] - du_part * x.w[c] * e;
        dhat_sum += dhat;
        dhat_along += dhat * hat[c];
    }
    const float dhat_mean = warp_sum(dhat_sum) / (float)D, dhat_part = warp_sum(dhat_along) / (float)D;
    TTT_EACH_COLUMN(c, D)
    {
        const float h = hat[c], dg = (du[c] - mean - part * h) * inverse, e = x.w[c] * h + x.b[c] - (v[c] - k[c]), de = x.w[c] * dg;
        const float dhat = x.w[c] * de - g_part * du[c] - du_part * x.w[c] * e;
        hat[c] = e * dg + h * de;
        u[c] = de;
        dk[c] += de;
        v[c] = -de;
        du[c] = (dhat - dhat_mean - dhat_part * h) * inverse + sigma_part * h;
    }
}

/* dw, db += the columns' sums over rows; a thread has columns of its own. Ends with a barrier. */
__device__ __forceinline__ void norm_sums(const ttt_norm &x, int begin, int end, ttt_matrix dw, ttt_matrix db)
{
    for (int c = (int)threadIdx.x; c < x.D && !x.plain; c += TTT_THREADS) {
        float w = 0, b = 0;
        for (int i = begin; i < end; i++) w += dw.row(i)[c], b += db.row(i)[c];
        x.dw[c] += w;
        x.db[c] += b;
    }
    __syncthreads();
}

/* ---- elements ------------------------------------------------------------------------------------------------------------------------------- */

/* Rows of a head of several x [T,H,D] to matrices: all loads of a few rows are under way before the first is put. Aligned: by four. */
template <typename T, int N>
__device__ __forceinline__ void rows_in(const ttt_matrix (&to)[N], const void *const (&from)[N], int64_t t, int rows, int H, int h, int D)
{
    bool quads = D % 4 == 0;
#pragma unroll
    for (int n = 0; n < N; n++) quads = quads && from[n] && (uintptr_t)from[n] % (4 * sizeof(T)) == 0;
    if (!quads) {
#pragma unroll
        for (int n = 0; n < N; n++)
            TTT_EACH(i, c, rows, D) to[n].row(i)[c] = from[n] ? to_float(((const T *)from[n])[((t + i) * H + h) * D + c]) : 0.0f;
        return;
    }
    for (int i = (int)threadIdx.x / 32; i < rows; i += 2 * TTT_WARPS)
        for (int c = (int)threadIdx.x % 32 * 4; c < D; c += 128) {
            float x[2][N][4];
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (i + r * TTT_WARPS < rows) load_pack<4>(x[r][n], (const T *)from[n] + ((t + i + r * TTT_WARPS) * H + h) * D + c);
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (i + r * TTT_WARPS < rows) store_pack<4>(to[n].row(i + r * TTT_WARPS) + c, x[r][n]);
        }
}
/* Those of the next rows on their way into L2. */
template <typename T> __device__ __forceinline__ void rows_ahead(const void *p, int64_t t, int64_t rows, int H, int h, int D)
{
    const int each = (int)((D * sizeof(T) + 127) / 128);
    for (int i = (int)threadIdx.x; p && i < rows * each; i += TTT_THREADS)
        ahead_l2((const char *)p + ((t + i / each) * H + h) * D * sizeof(T) + i % each * 128);
}

/* A matrix to rows of a head of x [T,H,D]. */
template <typename T> __device__ __forceinline__ void rows_out(void *to, ttt_matrix from, int64_t t, int rows, int H, int h, int D)
{
    if (!to) return;
    TTT_EACH(i, c, rows, D) ((T *)to)[((t + i) * H + h) * D + c] = from_float<T>(from.row(i)[c]);
}

/* Dense [rows,columns] of a state. The first `some` rows of `from`, zeros behind them; absent: zeros. */
__device__ __forceinline__ void to_state(float *to, const float *from, int ld, int some, int rows, int columns)
{
    if (!to) return;
    TTT_EACH(i, c, rows, columns) to[(int64_t)i * columns + c] = from && i < some ? from[(int64_t)i * ld + c] : 0.0f;
}
__device__ __forceinline__ void from_state(ttt_matrix to, const float *from, int rows, int columns)
{
    TTT_EACH(i, c, rows, columns) to.row(i)[c] = from ? from[(int64_t)i * columns + c] : 0.0f;
}
/* x + y, either of which may be absent; x - y. */
__device__ __forceinline__ void sum_from(ttt_matrix to, const float *x, const float *y, int rows, int columns)
{
    TTT_EACH(i, c, rows, columns)
    {
        const int64_t at = (int64_t)i * columns + c;
        to.row(i)[c] = (x ? x[at] : 0.0f) + (y ? y[at] : 0.0f);
    }
}
__device__ __forceinline__ void difference_to(float *to, ttt_matrix x, const float *y, int rows, int columns)
{
    if (!to) return;
    TTT_EACH(i, c, rows, columns)
    {
        const int64_t at = (int64_t)i * columns + c;
        to[at] = x.row(i)[c] - (y ? y[at] : 0.0f);
    }
}
/* A whole matrix put by, and taken back. */
__device__ __forceinline__ void put_by(float *to, ttt_matrix x, int rows, int columns) { difference_to(to, x, NULL, rows, columns); }

/* sum [columns] += sign times the rows, each times scale where it is given. */
__device__ __forceinline__ void add_rows(float *sum, float sign, int rows, int columns, ttt_matrix x, const float *scale)
{
    for (int c = (int)threadIdx.x; c < columns; c += TTT_THREADS) {
        float s = 0;
        for (int i = 0; i < rows; i++) s += x.row(i)[c] * (scale ? scale[i] : 1.0f);
        sum[c] += sign * s;
    }
}

__device__ __forceinline__ float *state_of(const lnt_ttt_args &a, const void *p, int64_t n, int h, int64_t count)
{
    return p ? (float *)(uintptr_t)p + (n * a.H + h) * count : NULL;
}
__device__ __forceinline__ const float *weights_of(const void *p, int h, int64_t count) { return p ? (const float *)p + h * count : NULL; }

/* Rows of an open mini-batch that a state has. */
__device__ __forceinline__ int open_rows(const lnt_ttt_args &a, int64_t n, int h)
{
    const float rows = a.n0 ? ((const float *)a.n0)[n * a.H + h] : 0.0f, most = (float)(a.mini_batch - 1);
    return rows > 0 ? (int)((rows < most ? rows : most) + 0.5f) : 0;
}
/* Mini-batch c of a sequence of len tokens (lnt_ttt_batch_at). */
struct ttt_batch {
    int64_t first;
    int open, rows;
};
__device__ __forceinline__ int64_t batches_of(const lnt_ttt_args &a, int open, int64_t len) { return (open + len + a.mini_batch - 1) / a.mini_batch; }
__device__ __forceinline__ ttt_batch batch_at(const lnt_ttt_args &a, int open, int64_t len, int64_t c)
{
    const int64_t begin = c * a.mini_batch, left = open + len - begin;
    return { c ? begin - open : 0, c ? 0 : open, (int)(left < a.mini_batch ? left : a.mini_batch) };
}

/* From mini-batch c of a head's on, how many before `end` are whole, with none of their rows in a state. */
template <class HEAD> __device__ __forceinline__ int64_t ttt_whole(const HEAD &x, int open, int64_t c, int64_t end)
{
    const int64_t all = (open + x.len) / x.s.m < end ? (open + x.len) / x.s.m : end;
    return c || !open ? all - c : 0;
}

/* Mini-batches c .. end-1 of a group, the states in front of them put by. */
template <class HEAD> __device__ __forceinline__ void ttt_sweep(HEAD &x, int open, int64_t from, int64_t end)
{
    for (int64_t c = from; c < end; c++) {
        const ttt_batch y = batch_at(x.a, open, x.len, c);
        x.put_state(x.w.inside + (c - from) * x.s.record);
        if (y.rows < x.s.m) return;
        x.go_over(y);
    }
}

/* A head's sequence ahead of the way back, runs of whole mini-batches by segments. The start of a ragged one behind a run is put by. */
template <class HEAD> __device__ __forceinline__ void ttt_segments_ahead(HEAD &x)
{
    const int open = x.load();
    const int64_t batches = batches_of(x.a, open, x.len);
    for (int64_t c = 0; c < batches; c++) {
        const ttt_batch y = batch_at(x.a, open, x.len, c);
        const int64_t some = ttt_whole(x, open, c, batches);
        if (some > 0) {
            x.template chain_ahead<true>(x.first + y.first, some);
            c += some - 1;
        } else if (y.rows < x.s.m)
            x.put_state(x.segments->start_of(x.n, x.h));
        else
            x.go_over(y);
    }
    __syncthreads();
}

/* ---- pieces of work ---------------------------------------------------------------------------------------------------------------------------- */

/* CTAs that are started at most: they take one piece after the other, and have a part of the workspace each. */
static constexpr int64_t TTT_CTAS = 528;
static inline int64_t ttt_ctas(int64_t pieces) { return pieces < TTT_CTAS ? pieces : TTT_CTAS; }

/* Backward, a head of so many parts of the sequences is a piece, whose sums over its sequences stand in the workspace, and are added in order. */
static inline int ttt_parts(const lnt_ttt_args *a, int64_t floats)
{
    const int64_t fit = (1ll << 27) / (floats * a->H > 0 ? floats * a->H : 1), most = a->sequences < 64 ? a->sequences : 64;
    return (int)(fit < 1 ? 1 : fit < most ? fit : most < 1 ? 1 : most);
}

/* Mini-batches whose starts backward keeps at once, at most 1 GB of them; where they are more, a group at a time, made again from the group's
 * start. */
static inline int64_t ttt_group(int64_t batches, int64_t floats, int64_t ctas)
{
    const int64_t few = (1ll << 28) / (floats * ctas > 0 ? floats * ctas : 1);
    int64_t root = 1;
    while (root * root < batches) root++;
    return batches <= few ? batches + 1 : root;
}

/* to [H,count] = the sums over parts of `from` [parts,H,all] from `at` on. */
static __global__ void ttt_add_parts(float *to, const float *from, int parts, int H, int64_t all, int64_t at, int64_t count)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= H * count) return;
    float sum = 0;
    for (int p = 0; p < parts; p++) sum += from[(p * (int64_t)H + i / count) * all + at + i % count];
    to[i] = sum;
}
static inline void put_parts(const lnt_cuda *d, void *to, const float *from, int parts, int H, int64_t all, int64_t at, int64_t count)
{
    const int64_t n = H * count;
    if (to && n) ttt_add_parts<<<(unsigned)lnt_div_up(n, 256), 256, 0, d->stream>>>((float *)to, from, parts, H, all, at, count);
}

/* Backward goes by mini-batches in both forms. */
#define TTT_CUDA(NAME, FORM, FORWARD)                                                                                              \
    {                                                                                                                              \
        .name = NAME, .form = FORM, .device = LNT_DEVICE_CUDA, .needs = 80, .declines = NULL, .workspace = workspace, .forward = NULL, \
        .backward = NULL, .put_forward = FORWARD, .put_backward = backward,                                                        \
    }

#endif
