/* Conjugate gradients of a chunk in float32, any K up to 256. README.md has the equations; lnt_mesa_solve what is asked.
 *
 * A CTA has ROWS rows of a chunk of one value head. 16 rows belong to the K/64 warps beside each other, which wait for nobody else and leave
 * when their rows are done. A thread has of 4 rows (4 apart) 8 columns (4 and 4, 32 apart): so every access to shared memory below is free of
 * bank conflicts, and 32 multiply-adds stand beside 3 reads. P, keys and H (of K <= 128) are in shared memory, X and R in registers. */
#include "recurrence/mesa/mesa_cuda.cuh"

#include <float.h>

#include "recurrence/decay/decay_cuda.cuh"

namespace {

constexpr int C = LNT_MESA_C;

template <int KP, int ROWS> struct tile {
    static constexpr int across = KP / 64, threads = ROWS / 16 * across * 32, pitch = KP + 4, pairs_pitch = C + 4, keys = 8 / across;
    static constexpr bool H_here = KP <= 128;
    float P[ROWS][pitch]; /* before the first step: diag(H_i) */
    float k[C][pitch];
    float S[ROWS][pairs_pitch];
    float H[H_here ? KP : 1][KP];
    float lambda[KP];
    float sums[2][2][ROWS][across]; /* of rows: for the step length, for what follows */
    decay_sum b[C];
    float gate[C], beta[C];
};

/* What a thread carries. */
struct rows_of {
    float X[4][8], R[4][8], W[4][8], M[4][8];
};

struct place {
    int row[4], column, across, group; /* its rows in the CTA; its first column; its warp's place across; its group of 16 rows */
    int lane_column;                   /* of 8 */
};

template <int KP, int ROWS> __device__ __forceinline__ void group_wait(const place &at)
{
    constexpr int across = tile<KP, ROWS>::across;
    if (across == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(at.group + 1), "n"(across * 32) : "memory");
}

/* Sums over whole rows, the same bits in all their threads. The barrier also tells that all of the group have come so far. */
template <int KP, int ROWS, int N> __device__ __forceinline__ void row_sums(tile<KP, ROWS> &s, const place &at, float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int o = 1; o < 8; o <<= 1) x[n][i] += __shfl_xor_sync(~0u, x[n][i], o);
            if (tile<KP, ROWS>::across > 1 && at.lane_column == 0) s.sums[N - 1][n][at.row[i]][at.across] = x[n][i];
        }
    group_wait<KP, ROWS>(at);
    if constexpr (tile<KP, ROWS>::across > 1)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n][i] = 0.0f;
#pragma unroll
                for (int w = 0; w < tile<KP, ROWS>::across; w++) x[n][i] += s.sums[N - 1][n][at.row[i]][w];
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

/* W = Op(P). Between its two halves the group's pairs go through shared memory. `first`: the CTA's first row in the chunk. */
template <int KP, int ROWS, bool HALF, typename S>
__device__ __forceinline__ void apply(tile<KP, ROWS> &s, const place &at, rows_of &t, const S *H, int K, int first)
{
    constexpr int KEYS = tile<KP, ROWS>::keys;
    const int key0 = at.across * (C / tile<KP, ROWS>::across) + at.lane_column;
    float pairs[4][KEYS] = {}, in[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        in[i] = decay_between(s.b[first + at.row[i]], { 0.0f, 0.0f });
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
        const decay_sum b = s.b[row];
#pragma unroll
        for (int m = 0; m < KEYS; m++) {
            const int j = key0 + 8 * m;
            s.S[at.row[i]][j] = j <= row ? rounded<HALF>(pairs[i][m] * decay_between(b, s.b[j]) * s.beta[j]) : 0.0f;
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
    if constexpr (tile<KP, ROWS>::H_here)
        for (int i = tid; i < KP * KP; i += THREADS) {
            const int r = i / KP, d = i % KP;
            s.H[r][d] = r < K && d < K ? rounded<HALF>(to_float(H[(int64_t)r * K + d])) : 0.0f;
        }
    for (int d = tid; d < KP; d += THREADS) s.lambda[d] = d < K ? a.lambda[(int64_t)h * K + d] : 1.0f;
    for (int j = tid; j < C; j += THREADS) {
        const float g = j < len ? a.g[(t + j) * a.Hv + h] : 0.0f;
        s.gate[j] = g < DECAY_FLOOR ? DECAY_FLOOR : g;
        s.beta[j] = j < len ? a.beta[(t + j) * a.Hv + h] : 0.0f;
    }
    __syncthreads();
    for (int j = tid; j < C; j += THREADS) {
        double upto = 0;
        for (int i = 0; i <= j; i++) upto += s.gate[i];
        s.b[j] = decay_split(upto * DECAY_LOG2E);
    }
    for (int d = tid; d < KP; d += THREADS) {
        float diagonal = d < K ? to_float(H[(int64_t)d * K + d]) : 0.0f;
        for (int j = 0; j < first + ROWS; j++) {
            diagonal = diagonal * expf(s.gate[j]) + s.beta[j] * s.k[j][d] * s.k[j][d];
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
        for (int d = at.lane_column; level && d < KP; d += 8) least[i] = fminf(least[i], s.P[at.row[i]][d]);
        for (int o = 1; o < 8; o <<= 1) least[i] = fminf(least[i], __shfl_xor_sync(~0u, least[i], o));
#pragma unroll
        for (int j = 0; j < 8; j++) t.M[i][j] = 1.0f / ((level ? least[i] : s.P[at.row[i]][column_of(at, j)]) + s.lambda[column_of(at, j)]);
    }
    group_wait<KP, ROWS>(at); /* P is free */
}

template <int KP, int ROWS, bool HALF, typename T, typename S>
__global__ __launch_bounds__(tile<KP, ROWS>::threads) void mesa_solve(const __grid_constant__ lnt_mesa_solve<T, S> a)
{
    extern __shared__ __align__(16) unsigned char memory[];
    tile<KP, ROWS> &s = *(tile<KP, ROWS> *)memory;
    constexpr int parts = C / ROWS;
    const int part = (int)(blockIdx.x % parts), h = (int)(blockIdx.x / parts % a.Hv), K = a.K, first = part * ROWS;
    const int64_t chunk = blockIdx.x / parts / a.Hv;
    const int4 chunk_at = a.table[chunk];
    const int64_t t0 = chunk_at.y;
    const int len = chunk_at.z;
    if (len <= first) return;
    const S *H = a.H + (chunk * a.Hv + h) * (int64_t)K * K;
    load<KP, ROWS, HALF>(s, a, H, t0, len, h, first);

    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    place at;
    at.across = warp % tile<KP, ROWS>::across;
    at.group = warp / tile<KP, ROWS>::across;
    at.lane_column = lane % 8;
    at.column = at.across * 64 + at.lane_column * 4;
    for (int i = 0; i < 4; i++) at.row[i] = at.group * 16 + lane / 8 + 4 * i;

    rows_of t;
    precondition(s, at, t, a.solver == LINNET_CG_LEVEL);
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
            t.X[i][j] = a.from_guess ? t.R[i][j] * t.M[i][j] : 0.0f;
            both[0][i] += t.R[i][j] * t.R[i][j];
            s.P[at.row[i]][d] = t.X[i][j];
        }
    }
    row_sums(s, at, both);
    float size[4], delta[4];
    int taken[4] = {};
    bool live[4];
    if (a.from_guess) {
        apply<KP, ROWS, HALF>(s, at, t, H, K, first);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) t.R[i][j] -= t.W[i][j];
        group_wait<KP, ROWS>(at); /* all have read P */
    }
    float one[1][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        size[i] = both[0][i];
        one[0][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (a.solver > LINNET_CG_JACOBI) t.M[i][j] = 1.0f;
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

    for (int step = 0; step < a.most; step++) {
        if (!__any_sync(~0u, live[0] || live[1] || live[2] || live[3])) break;
        apply<KP, ROWS, HALF>(s, at, t, H, K, first);
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
            const float alpha = live[i] ? delta[i] / (curve + a.absolute) : 0.0f;
            taken[i] += live[i];
            both[0][i] = both[1][i] = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                t.X[i][j] += alpha * s.P[at.row[i]][column_of(at, j)];
                t.R[i][j] -= alpha * t.W[i][j];
                both[0][i] += t.R[i][j] * (t.M[i][j] * t.R[i][j]);
                both[1][i] += t.R[i][j] * t.R[i][j];
            }
        }
        row_sums(s, at, both);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (both[1][i] <= a.tolerance2 * size[i]) live[i] = false;
            const float f = live[i] ? both[0][i] / (delta[i] + a.absolute) : 0.0f;
            delta[i] = both[0][i];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float *p = &s.P[at.row[i]][column_of(at, j)];
                *p = t.M[i][j] * t.R[i][j] + f * *p;
            }
        }
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
    for (int i = 0; i < 4; i++) {
        if (first + at.row[i] >= len) continue;
        const int64_t token = (t0 + first + at.row[i]) * a.Hv + h;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int d = column_of(at, j);
            if (d >= K) continue;
            if (HALF && a.half_ends) t.X[i][j] = lnt_to_half(t.X[i][j]);
            a.x[token * K + d] = from_float<T>(t.X[i][j]);
            if (a.x_float) a.x_float[token * K + d] = t.X[i][j];
        }
        if (at.column) continue;
        if (a.taken) a.taken[token] = (float)(taken[i] > a.free_steps ? taken[i] - a.free_steps : 0);
        if (a.residual) a.residual[token] = size[i] > 0 ? sqrtf(one[0][i] / size[i]) : 0.0f;
    }
}

template <int KP, int ROWS, bool HALF, typename T, typename S> void put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    using shared = tile<KP, ROWS>;
    const int64_t grid = a.chunks * a.Hv * (C / ROWS);
    if (!grid) return;
    lnt_cuda_note(d, cudaFuncSetAttribute(mesa_solve<KP, ROWS, HALF, T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(shared)));
    mesa_solve<KP, ROWS, HALF, T, S><<<(unsigned)grid, shared::threads, sizeof(shared), d->stream>>>(a);
    lnt_cuda_note(d, cudaGetLastError());
}

} // namespace

template <bool HALF, typename T, typename S> static void put_by_width(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    if (a.K <= 64)
        put<64, 64, HALF>(a, d);
    else if (a.K <= 128)
        put<128, 64, HALF>(a, d);
    else if constexpr (sizeof(S) == 4)
        put<256, 32, HALF>(a, d); /* 64 rows would leave no room for the keys in 163 KB */
}

template <typename T, typename S> void lnt_mesa_solve_put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    if constexpr (sizeof(S) == 4)
        if (a.half) {
            put_by_width<true>(a, d);
            return;
        }
    put_by_width<false>(a, d);
}

template void lnt_mesa_solve_put(const lnt_mesa_solve<float, float> &, lnt_cuda *);
template void lnt_mesa_solve_put(const lnt_mesa_solve<bf16, float> &, lnt_cuda *);
template void lnt_mesa_solve_put(const lnt_mesa_solve<bf16, bf16> &, lnt_cuda *);
