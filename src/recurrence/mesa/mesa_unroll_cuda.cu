/* The gradient of truncated conjugate gradients on a GPU, any K up to 256: the steps of a chunk are taken again and kept, and differentiated last
 * step first. operators.md#mesa ("Through the steps") has the equations of a step, mesa_unroll_cpu.c what a chunk hands on:
 *
 *   S1 = (P K^T).D, S2 = (dW K^T).D, D_tj = e^{b_t - b_j} for j <= t, else 0          over all rows (t, step)
 *   dkb_j = (S2^T P)_j + U_j      dvalue_j = beta_j ((S1^T dW)_j + U_j)      U_j = e^{b_n - b_j} dH k_j      H_t = .. + sum_j D_tj kb_j k_j^T
 *   dH <- e^{b_n} dH + E, E = sum in_t p dw^T and in_t = e^{b_t}
 *   dg_i = <H', dH> at the end + sum over l >= i of dB_l, dB_t = sum_s dw.(Op(p) - Lambda p) - kb_t.dkb_t
 *
 * Chunks do not wait for each other: the first kernel leaves E and what does not need dH, a scan makes dH at the end of every chunk, the second
 * kernel adds U. Only the symmetric part of dH counts; it is taken where dH is read.
 *
 * Long: two kernels and what a chunk's ring holds between them, which nobody else reads. */
#include "recurrence/mesa/mesa_rows_cuda.cuh"

#include <type_traits>

namespace {

/* Of a CTA's ring, floats: P W [blocks,C,KP], S1 S2 [blocks,C,C], numbers [blocks,4,C], diagonal dD [C,KP]. */
int64_t ring_floats(int KP, int blocks) { return blocks * (2ll * C * KP + 2 * C * C + 4 * C) + 2ll * C * KP; }
__device__ __forceinline__ trail trail_at(float *ring, int KP, int64_t blocks)
{
    trail t;
    t.P = ring;
    t.W = t.P + blocks * C * KP;
    t.S1 = t.W + blocks * C * KP;
    t.S2 = t.S1 + blocks * C * C;
    t.numbers = t.S2 + blocks * C * C;
    t.diagonal = t.numbers + blocks * 4 * C;
    t.dD = t.diagonal + C * KP;
    return t;
}

/* Rows of a block as the products read them: BLOCK columns of P and dW, those of S1 and S2. */
template <int BLOCK, int ROWS> struct staged {
    float P[ROWS][BLOCK + 4], dW[ROWS][BLOCK + 4], S1[ROWS][C + 4], S2[ROWS][C + 4];
};
/* The same for tensor cores: every number as two bf16. E has in_t dW in the place of dW. */
template <int KP> struct staged_tiles {
    bf16 P[2][C][KP + 8], dW[2][C][KP + 8], in_dW[2][C][KP + 8], S1[2][C][C + 8], S2[2][C][C + 8];
};
struct nothing {};
template <int KP, int ROWS> struct unroll_shared {
    union {
        tile<KP, ROWS> rows;
        staged<tile<KP, ROWS>::threads / 2, ROWS> stage;
        std::conditional_t<tile<KP, ROWS>::H_here, staged_tiles<KP>, nothing> tiles;
    };
    lnt_gate_sum b[C];
    float in[C], beta[C];
    float columns[C / 16][KP]; /* of dlambda, by groups of rows */
    int blocks[C / 16];        /* of a group of rows */
    uint64_t barriers[ROWS / 16];
};

/* dp of p = M r and d of r.Mr: dM += (dp + d r) r, dr += M (dp + 2 d r). */
__device__ __forceinline__ void into_residual(float r, float m, float dp, float d, float &dr, float &dM)
{
    dM += (dp + d * r) * r;
    dr += m * (dp + 2.0f * d * r);
}

/* Place of the smallest element of every row, the first of equals. */
template <int KP> __device__ __forceinline__ void least_places(const float *diagonal, const place &at, int first, int K, int (&least)[4])
{
    for (int i = 0; i < 4; i++) {
        float value = FLT_MAX;
        int where = 0;
        for (int d = at.lane_column; d < K; d += 8) {
            const float x = diagonal[(first + at.row[i]) * KP + d];
            if (x < value) value = x, where = d;
        }
        for (int o = 1; o < 8; o <<= 1) {
            const float x = __shfl_xor_sync(~0u, value, o);
            const int place = __shfl_xor_sync(~0u, where, o);
            if (x < value || (x == value && place < where)) value = x, where = place;
        }
        least[i] = where;
    }
}

/* What a group of rows has while it goes back. */
struct going_back {
    float dr[4][8], dp[4][8], ddelta[4];
    float db[4], lambda[8]; /* sums over own columns of a row, over own rows of a column */
};

/* A step: everything but Op(dw), which goes to s.P. */
template <int KP, int ROWS, typename T>
__device__ __forceinline__ void step_back(tile<KP, ROWS> &s, const place &at, rows_of &t, going_back &g, const lnt_mesa_unroll<T> &a, int64_t t0,
                                          int len, int h, int first, const trail &past, int block, bool preconditioned)
{
    float p[4][8], one[1][4];
    const float *numbers = past.numbers + block * 4 * C + first;
    get_rows<KP>(p, past.P + (int64_t)block * C * KP, at, first);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        one[0][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) one[0][i] += g.dp[i][j] * p[i][j];
    }
    row_sums(s, at, one, 0); /* dratio */
    get_rows<KP>(t.W, past.W + (int64_t)block * C * KP, at, first);
    float dratio[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + at.row[i];
        const float alpha = numbers[at.row[i]], before = numbers[2 * C + at.row[i]];
        const T *dx = a.y + ((t0 + row) * a.solve.Hv + h) * (int64_t)a.solve.K;
        dratio[i] = one[0][i];
        one[0][i] = 0.0f;
        if (alpha == 0.0f) continue;
        const float d = g.ddelta[i] + dratio[i] / before;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int c = column_of(at, j);
            float *dM = past.dD + row * KP + c, sum = preconditioned ? *dM : 0.0f;
            into_residual(t.R[i][j], t.M[i][j], g.dp[i][j], d, g.dr[i][j], sum);
            if (preconditioned) *dM = sum;
            const float x = row < len && c < a.solve.K ? to_float(dx[c]) : 0.0f;
            one[0][i] += x * p[i][j] - g.dr[i][j] * t.W[i][j];
            t.R[i][j] += alpha * t.W[i][j];
        }
    }
    row_sums(s, at, one, 1); /* dalpha */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + at.row[i];
        const float alpha = numbers[at.row[i]], curve = numbers[C + at.row[i]], before = numbers[2 * C + at.row[i]];
        const float ratio = numbers[3 * C + at.row[i]];
        const T *dx = a.y + ((t0 + row) * a.solve.Hv + h) * (int64_t)a.solve.K;
        const bool moved = alpha != 0.0f;
        const float dalpha = one[0][i], dcurve = moved ? -dalpha * (alpha / curve) : 0.0f;
        if (moved) g.ddelta[i] = dalpha / curve - dratio[i] * (ratio / before);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int c = column_of(at, j);
            const float dw = moved ? dcurve * p[i][j] - alpha * g.dr[i][j] : 0.0f;
            if (moved) {
                const float x = row < len && c < a.solve.K ? to_float(dx[c]) : 0.0f;
                g.dp[i][j] = ratio * g.dp[i][j] + alpha * x + dcurve * t.W[i][j];
                g.db[i] += dw * (t.W[i][j] - s.lambda[c] * p[i][j]);
                g.lambda[j] += dw * p[i][j];
            }
            s.P[at.row[i]][c] = p[i][j] = dw;
        }
    }
    put_rows<KP>(past.W + (int64_t)block * C * KP, at, first, p);
}

/* x_0 = q / diag and r_0 = q - Op(x_0), the trail's first block: dq, in g.dr, and dD take their part. */
template <int KP, int ROWS, typename T>
__device__ __forceinline__ void through_guess(tile<KP, ROWS> &s, const place &at, rows_of &t, going_back &g, const lnt_mesa_unroll<T> &a,
                                              const float *H, int64_t t0, int len, int h, int first, const trail &past)
{
    const int K = a.solve.K;
    float dw[4][8];
    get_rows<KP>(t.W, past.W, at, first);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int c = column_of(at, j);
            const float p = past.P[(first + at.row[i]) * KP + c];
            s.P[at.row[i]][c] = dw[i][j] = -g.dr[i][j];
            g.db[i] += dw[i][j] * (t.W[i][j] - s.lambda[c] * p);
            g.lambda[j] += dw[i][j] * p;
        }
    put_rows<KP>(past.W, at, first, dw);
    group_wait<KP, ROWS>(at);
    apply<KP, ROWS, false, true, T>(s, at, t, H, K, first, past.S2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + at.row[i];
        const T *q = a.solve.rhs + ((t0 + row) * a.solve.Hr + (int64_t)h * a.solve.Hr / a.solve.Hv) * K;
        const T *dx = a.y + ((t0 + row) * a.solve.Hv + h) * (int64_t)K;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int c = column_of(at, j);
            if (row >= len || c >= K) continue;
            const float diagonal = past.diagonal[row * KP + c], m = 1.0f / (diagonal + s.lambda[c]), x = to_float(dx[c]) + t.W[i][j];
            const float d = -x * to_float(q[c]) * m * m;
            g.dr[i][j] += x * m;
            g.lambda[j] += d;
            g.db[i] += d * diagonal;
            past.dD[row * KP + c] += d;
        }
    }
}

/* All steps of the CTA's rows, after take_steps. Leaves dW, S2 and dD in the trail, dq and db in their places, dlambda's columns in shared memory. */
template <int KP, int ROWS, typename T>
__device__ __forceinline__ void walk_back(unroll_shared<KP, ROWS> &u, const place &at, rows_of &t, const lnt_mesa_unroll<T> &a,
                                          const lnt_mesa_course &course, const float *H, int64_t t0, int len, int h, int first, const trail &past,
                                          int blocks)
{
    tile<KP, ROWS> &s = u.rows;
    const int K = a.solve.K;
    const bool preconditioned = course.solver <= LNT_CG_JACOBI;
    going_back g = {};
    group_wait<KP, ROWS>(at); /* take_steps' last sums have been read */
    put_rows<KP>(past.dD, at, first, g.dr); /* zeros; dM until the steps are done */
    for (int block = blocks - 1; block >= (int)course.from_guess; block--) {
        step_back(s, at, t, g, a, t0, len, h, first, past, block, preconditioned);
        group_wait<KP, ROWS>(at); /* P is there */
        apply<KP, ROWS, false, true, T>(s, at, t, H, K, first, past.S2 + (int64_t)block * C * C);
        const float *numbers = past.numbers + block * 4 * C + first;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (numbers[at.row[i]] != 0.0f)
#pragma unroll
                for (int j = 0; j < 8; j++) g.dp[i][j] += t.W[i][j];
    }
    if (preconditioned) {
        float level[1][4] = {};
        const bool one_place = course.solver == LNT_CG_LEVEL;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const int c = (first + at.row[i]) * KP + column_of(at, j);
                float dM = past.dD[c];
                into_residual(t.R[i][j], t.M[i][j], g.dp[i][j], g.ddelta[i], g.dr[i][j], dM);
                const float d = -dM * t.M[i][j] * t.M[i][j];
                g.lambda[j] += d;
                level[0][i] += d;
                past.dD[c] = one_place ? 0.0f : d;
                if (!one_place) g.db[i] += d * past.diagonal[c];
            }
        if (one_place) {
            int least[4];
            least_places<KP>(past.diagonal, at, first, K, least);
            row_sums(s, at, level, 0);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const int c = (first + at.row[i]) * KP + column_of(at, j);
                    if (column_of(at, j) != least[i]) continue;
                    past.dD[c] = level[0][i];
                    g.db[i] += level[0][i] * past.diagonal[c];
                }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float none = 0.0f;
                into_residual(t.R[i][j], t.M[i][j], g.dp[i][j], g.ddelta[i], g.dr[i][j], none);
            }
    }
    if (course.from_guess) through_guess(s, at, t, g, a, H, t0, len, h, first, past);

    float db[1][4];
#pragma unroll
    for (int i = 0; i < 4; i++) db[0][i] = g.db[i];
    row_sums(s, at, db, 1);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + at.row[i] >= len) continue;
        const int64_t token = (t0 + first + at.row[i]) * a.solve.Hv + h;
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (column_of(at, j) < K) a.dq[token * K + column_of(at, j)] = from_float<T>(g.dr[i][j]);
        if (at.column == 0) a.db[token] = db[0][i];
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float sum = g.lambda[j];
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if ((int)threadIdx.x % 32 < 8) u.columns[first / 16 + at.group][column_of(at, j)] = sum;
    }
}

/* The products over all rows of the chunk's blocks. A thread has PC by 8 elements of E, 8 columns of dvalue's 4 rows and PC columns of the rows
 * of dkb: its columns of P and of dW are read once for all three. E goes in squares of 8 columns for every 16 threads. */
template <int KP, int ROWS> struct products {
    static constexpr int threads = tile<KP, ROWS>::threads, across = threads / 16, block = 8 * across, PC = block / 16, JR = C / across;
    float E[PC][8], dkb[JR][PC], dvalue[4][8];
    int tx, ty;

    __device__ __forceinline__ int p_column(int c) const { return c / 4 * 64 + ty * 4 + c % 4; }
    __device__ __forceinline__ int w_column(int c) const { return c / 4 * (across * 4) + tx * 4 + c % 4; }
    __device__ __forceinline__ int dkb_row(int r) const { return r / 4 * (across * 4) + tx * 4 + r % 4; }
    __device__ __forceinline__ int dvalue_row(int r) const { return ty * 4 + r; }

    /* Rows from..from+16 of what is staged. in: e^b of the first staged row on. */
    __device__ __forceinline__ void add(const staged<block, ROWS> &s, const float *in, int from)
    {
#pragma unroll 2
        for (int t = from; t < from + 16; t++) {
            float p[PC], w[8], s1[4], s2[JR];
            load4<PC>(p, &s.P[t][ty * 4], 64);
            load4<8>(w, &s.dW[t][tx * 4], across * 4);
            load4<4>(s1, &s.S1[t][ty * 4], 0);
            load4<JR>(s2, &s.S2[t][tx * 4], across * 4);
#pragma unroll
            for (int c = 0; c < 8; c++)
#pragma unroll
                for (int r = 0; r < 4; r++) dvalue[r][c] += s1[r] * w[c];
#pragma unroll
            for (int r = 0; r < JR; r++)
#pragma unroll
                for (int c = 0; c < PC; c++) dkb[r][c] += s2[r] * p[c];
#pragma unroll
            for (int c = 0; c < 8; c++) w[c] *= in[t];
#pragma unroll
            for (int r = 0; r < PC; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) E[r][c] += p[r] * w[c];
        }
    }
    template <int N> static __device__ __forceinline__ void load4(float (&x)[N], const float *from, int stride)
    {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 y = *(const float4 *)(from + i / 4 * stride);
            x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
        }
    }
};

/* ROWS rows from `first` of `columns` floats, `pitch` apart, into shared memory. */
template <int ROWS, int COLUMNS, int THREADS> __device__ __forceinline__ void stage(float (*to)[COLUMNS + 4], const float *from, int pitch)
{
    for (int i = (int)threadIdx.x; i < ROWS * COLUMNS / 4; i += THREADS) {
        const int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
        *(float4 *)&to[row][column] = *(const float4 *)(from + row * pitch + column);
    }
}

/* Floats in memory, `pitch` apart, into the two planes of [C][COLUMNS]; the second pair of planes gets in_t times them. */
template <int COLUMNS, int THREADS>
__device__ __forceinline__ void split_into(bf16 (&to)[2][C][COLUMNS + 8], const float *from, int pitch, bf16 (*scaled)[C][COLUMNS + 8],
                                           const float *in)
{
    for (int i = (int)threadIdx.x; i < C * COLUMNS / 4; i += THREADS) {
        const int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
        const float4 x = *(const float4 *)(from + row * pitch + column);
        uint2 high, low;
        split(x.x, x.y, high.x, low.x);
        split(x.z, x.w, high.y, low.y);
        *(uint2 *)&to[0][row][column] = high;
        *(uint2 *)&to[1][row][column] = low;
        if (!scaled) continue;
        split(in[row] * x.x, in[row] * x.y, high.x, low.x);
        split(in[row] * x.z, in[row] * x.w, high.y, low.y);
        *(uint2 *)&scaled[0][row][column] = high;
        *(uint2 *)&scaled[1][row][column] = low;
    }
}

/* d [m][n] += sum over 16 rows t of a[t][m] b[t][n], m tiles of 16 and n tiles of 8 from m0 and n0 on; both are two bf16. */
template <int M, int N, int WA, int WB>
__device__ __forceinline__ void add_rows(float (&d)[M][N][4], const bf16 (&a)[2][C][WA], int m0, const bf16 (&b)[2][C][WB], int n0, int t0)
{
    const int lane = (int)threadIdx.x % 32, q = lane / 8, i = lane % 8;
    uint32_t left[M][2][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int p = 0; p < 2; p++) ldmatrix_x4_trans(left[m][p], shared_address(&a[p][t0 + q / 2 * 8 + i][m0 + 16 * m + q % 2 * 8]));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t right[2][4];
#pragma unroll
        for (int p = 0; p < 2; p++) ldmatrix_x4_trans(right[p], shared_address(&b[p][t0 + q % 2 * 8 + i][n0 + 8 * n + q / 2 * 8]));
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                mma_bf16(d[m][n + e], left[m][1], right[0][2 * e], right[0][2 * e + 1]);
                mma_bf16(d[m][n + e], left[m][0], right[1][2 * e], right[1][2 * e + 1]);
                mma_bf16(d[m][n + e], left[m][0], right[0][2 * e], right[0][2 * e + 1]);
            }
    }
}

/* put_products by tensor cores. A warp has 32 rows and half the columns of E, 16 rows and 64 columns of dkb and of dvalue. */
template <int KP, int ROWS, typename T>
__device__ __forceinline__ void put_products_tiles(unroll_shared<KP, ROWS> &u, const lnt_mesa_unroll<T> &a, const lnt_mesa_course &course,
                                                   const trail &past, const int4 &chunk_at, int64_t slot, int h)
{
    constexpr int THREADS = tile<KP, ROWS>::threads;
    auto &s = u.tiles;
    const int K = a.solve.K, len = chunk_at.z, Hv = a.solve.Hv;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int p0 = warp % (KP / 32) * 32, w0 = warp / (KP / 32) * (KP / 2), j0 = warp % 4 * 16, c0 = warp / 4 * 64;
    const int64_t t0 = chunk_at.y;
    const T *k = a.solve.k + (t0 * a.solve.Hk + (int64_t)h * a.solve.Hk / Hv) * K;
    int most = 0;
    for (int i = 0; i < C / 16; i++) most = max(most, u.blocks[i]);
    const bool diagonals = course.solver <= LNT_CG_JACOBI || course.from_guess;
    float E[2][KP / 16][4] = {}, dkb[1][8][4] = {}, dvalue[1][8][4];
    if (diagonals) { /* D^T dD, times k: what diag(H_t) has */
        __syncthreads();
        split_into<KP, THREADS>(s.P, past.dD, KP, NULL, NULL);
        for (int i = (int)threadIdx.x; i < C * C / 2; i += THREADS) {
            const int t = i / (C / 2), j = i % (C / 2) * 2;
            const float x = j <= t ? lnt_gate_between(u.b[t], u.b[j]) : 0.0f, y = j + 1 <= t ? lnt_gate_between(u.b[t], u.b[j + 1]) : 0.0f;
            split(x, y, *(uint32_t *)&s.S2[0][t][j], *(uint32_t *)&s.S2[1][t][j]);
        }
        __syncthreads();
        for (int t = 0; t < len; t += 16) add_rows(dkb, s.S2, j0, s.P, c0, t);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = j0 + r + i / 2 * 8, column = c0 + 8 * n + 2 * c + i % 2;
            dkb[0][n][i] *= row < len && column < K ? to_float(k[(int64_t)row * a.solve.Hk * K + column]) : 0.0f;
            dvalue[0][n][i] = dkb[0][n][i];
        }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < KP / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = p0 + 16 * m + r + i / 2 * 8;
                if (diagonals && row == w0 + 8 * n + 2 * c + i % 2) E[m][n][i] = u.columns[0][row];
            }
    for (int block = 0; block < most; block++) {
        __syncthreads();
        split_into<KP, THREADS>(s.P, past.P + (int64_t)block * C * KP, KP, NULL, NULL);
        split_into<KP, THREADS>(s.dW, past.W + (int64_t)block * C * KP, KP, s.in_dW, u.in);
        split_into<C, THREADS>(s.S1, past.S1 + (int64_t)block * C * C, C, NULL, NULL);
        split_into<C, THREADS>(s.S2, past.S2 + (int64_t)block * C * C, C, NULL, NULL);
        __syncthreads();
        for (int t = 0; t < len; t += 16) {
            if (block >= u.blocks[t / 16]) continue;
            add_rows(E, s.P, p0, s.in_dW, w0, t);
            add_rows(dkb, s.S2, j0, s.P, c0, t);
            add_rows(dvalue, s.S1, j0, s.dW, c0, t);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = j0 + r + i / 2 * 8, column = c0 + 8 * n + 2 * c + i % 2;
            if (row >= len || column >= K) continue;
            const int64_t at = ((t0 + row) * Hv + h) * K + column;
            a.dkb[at] = dkb[0][n][i];
            a.dvalue[at] = u.beta[row] * dvalue[0][n][i];
        }
    float *to = a.E + (slot * Hv + h) * (int64_t)K * K, *E0 = a.E0 && chunk_at.w == 0 ? a.E0 + ((int64_t)chunk_at.x * Hv + h) * K * K : NULL;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < KP / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = p0 + 16 * m + r + i / 2 * 8, column = w0 + 8 * n + 2 * c + i % 2;
                if (row >= K || column >= K) continue;
                to[(int64_t)row * K + column] = E[m][n][i];
                if (E0) E0[(int64_t)row * K + column] = E[m][n][i];
            }
}

/* dkb, dvalue and E of a chunk from its trail. u.columns[0]: what diag(H_t) adds to E's diagonal. */
template <int KP, int ROWS, typename T>
__device__ __forceinline__ void put_products(unroll_shared<KP, ROWS> &u, const lnt_mesa_unroll<T> &a, const lnt_mesa_course &course,
                                             const trail &past, const int4 &chunk_at, int64_t slot, int h)
{
    using product = products<KP, ROWS>;
    constexpr int BLOCK = product::block, THREADS = product::threads, SIDES = KP / BLOCK, GROUPS = ROWS / 16;
    auto &s = u.stage;
    const int K = a.solve.K, len = chunk_at.z;
    const int64_t t0 = chunk_at.y;
    const T *k = a.solve.k + (t0 * a.solve.Hk + (int64_t)h * a.solve.Hk / a.solve.Hv) * K;
    int most = 0;
    for (int i = 0; i < C / 16; i++) most = max(most, u.blocks[i]);
    product x;
    x.tx = (int)threadIdx.x % product::across;
    x.ty = (int)threadIdx.x / product::across;
    const bool diagonals = course.solver <= LNT_CG_JACOBI || course.from_guess;
    for (int side = 0; side < SIDES * SIDES; side++) {
        const int p0 = side / SIDES * BLOCK, w0 = side % SIDES * BLOCK; /* first column of P, of dW */
        if (p0 >= K || w0 >= K) continue;
        x = product{ {}, {}, {}, x.tx, x.ty };
        for (int first = 0; diagonals && first < len; first += ROWS) { /* D^T dD, times k: what diag(H_t) has */
            __syncthreads();
            stage<ROWS, BLOCK, THREADS>(s.P, past.dD + first * KP + p0, KP);
            stage<ROWS, BLOCK, THREADS>(s.dW, past.dD + first * KP + w0, KP);
            for (int i = (int)threadIdx.x; i < ROWS * C; i += THREADS) {
                const int t = first + i / C, j = i % C;
                s.S1[i / C][j] = s.S2[i / C][j] = j <= t ? lnt_gate_between(u.b[t], u.b[j]) : 0.0f;
            }
            __syncthreads();
            for (int i = 0; i < GROUPS; i++)
                if (first + 16 * i < len) x.add(s, u.in + first, 16 * i);
        }
#pragma unroll
        for (int r = 0; r < product::JR; r++)
#pragma unroll
            for (int c = 0; c < product::PC; c++) {
                const int row = x.dkb_row(r), column = p0 + x.p_column(c);
                x.dkb[r][c] *= diagonals && row < len && column < K ? to_float(k[(int64_t)row * a.solve.Hk * K + column]) : 0.0f;
            }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const int row = x.dvalue_row(r), column = w0 + x.w_column(c);
                x.dvalue[r][c] *= diagonals && row < len && column < K ? to_float(k[(int64_t)row * a.solve.Hk * K + column]) : 0.0f;
            }
#pragma unroll
        for (int r = 0; r < product::PC; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const bool own = diagonals && p0 + x.p_column(r) == w0 + x.w_column(c);
                x.E[r][c] = own ? u.columns[0][p0 + x.p_column(r)] : 0.0f;
            }
        for (int block = 0; block < most; block++)
            for (int first = 0; first < len; first += ROWS) {
                __syncthreads();
                stage<ROWS, BLOCK, THREADS>(s.P, past.P + ((int64_t)block * C + first) * KP + p0, KP);
                stage<ROWS, BLOCK, THREADS>(s.dW, past.W + ((int64_t)block * C + first) * KP + w0, KP);
                stage<ROWS, C, THREADS>(s.S1, past.S1 + ((int64_t)block * C + first) * C, C);
                stage<ROWS, C, THREADS>(s.S2, past.S2 + ((int64_t)block * C + first) * C, C);
                __syncthreads();
                for (int i = 0; i < GROUPS; i++)
                    if (block < u.blocks[first / 16 + i]) x.add(s, u.in + first, 16 * i);
            }
#pragma unroll
        for (int r = 0; r < product::JR; r++)
#pragma unroll
            for (int c = 0; c < product::PC; c++) {
                const int row = x.dkb_row(r), column = p0 + x.p_column(c);
                if (w0 == 0 && row < len && column < K) a.dkb[((t0 + row) * a.solve.Hv + h) * K + column] = x.dkb[r][c];
            }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const int row = x.dvalue_row(r), column = w0 + x.w_column(c);
                if (p0 == 0 && row < len && column < K) a.dvalue[((t0 + row) * a.solve.Hv + h) * K + column] = u.beta[row] * x.dvalue[r][c];
            }
        float *E = a.E + (slot * a.solve.Hv + h) * (int64_t)K * K;
        float *E0 = a.E0 && chunk_at.w == 0 ? a.E0 + ((int64_t)chunk_at.x * a.solve.Hv + h) * K * K : NULL;
#pragma unroll
        for (int r = 0; r < product::PC; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const int row = p0 + x.p_column(r), column = w0 + x.w_column(c);
                if (row >= K || column >= K) continue;
                E[(int64_t)row * K + column] = x.E[r][c];
                if (E0) E0[(int64_t)row * K + column] = x.E[r][c];
            }
    }
}

template <int KP, int ROWS, typename T>
__global__ __launch_bounds__(tile<KP, ROWS>::threads) void mesa_unroll(const __grid_constant__ lnt_mesa_unroll<T> a)
{
    extern __shared__ __align__(16) unsigned char memory[];
    unroll_shared<KP, ROWS> &u = *(unroll_shared<KP, ROWS> *)memory;
    constexpr int THREADS = tile<KP, ROWS>::threads, GROUPS = ROWS / 16;
    const int K = a.solve.K, Hv = a.solve.Hv, tid = (int)threadIdx.x;
    const lnt_mesa_course course = lnt_mesa_course_now(a.solve);
    const trail past = trail_at(a.ring + blockIdx.x * a.ring_floats, KP, a.blocks);
    const place at = place_of<KP, ROWS>(u.barriers);
    for (int64_t task = blockIdx.x; task < a.solve.chunks * Hv; task += gridDim.x) {
        const int h = (int)(task % Hv);
        const int64_t slot = task / Hv;
        const int4 chunk_at = a.solve.table[slot];
        const int len = chunk_at.z;
        const float *H = a.solve.H + task * K * K;
        float *part = a.part + task * K;
        if (len <= 0) {
            for (int d = tid; d < K; d += THREADS) part[d] = 0.0f;
            continue;
        }
        for (int first = 0; first < C; first += ROWS) {
            __syncthreads(); /* all are done with shared memory */
            if (first >= len) {
                if (tid < GROUPS) u.blocks[first / 16 + tid] = 0;
                for (int i = tid; i < GROUPS * KP; i += THREADS) u.columns[first / 16 + i / KP][i % KP] = 0.0f;
                continue;
            }
            load<KP, ROWS, false>(u.rows, a.solve, H, chunk_at.y, len, h, first);
            if (tid < C) {
                u.b[tid] = u.rows.b[tid];
                u.in[tid] = lnt_gate_from_start(u.rows.b[tid]);
                u.beta[tid] = u.rows.beta[tid];
            }
            rows_of t;
            outcome out;
            take_steps<KP, ROWS, false, true>(u.rows, at, t, a.solve, course, H, chunk_at.y, len, h, first, past, out);
            report(a.solve, course, at, out, chunk_at.y, len, h, first);
            walk_back(u, at, t, a, course, H, chunk_at.y, len, h, first, past, out.blocks);
            if (tid % (THREADS / GROUPS) == 0) u.blocks[first / 16 + at.group] = out.blocks;
        }
        __syncthreads();
        for (int d = tid; d < K; d += THREADS) {
            part[d] = -(u.columns[0][d] + u.columns[1][d] + u.columns[2][d] + u.columns[3][d]);
            float sum = 0.0f;
            for (int t = 0; t < len; t++) sum += u.in[t] * past.dD[t * KP + d];
            u.columns[0][d] = sum;
        }
        if (tid == 0) a.fade[task] = u.in[len - 1];
        if constexpr (by_tensor_cores<KP, ROWS, false, T>)
            put_products_tiles(u, a, course, past, chunk_at, slot, h);
        else
            put_products(u, a, course, past, chunk_at, slot, h);
    }
}

/* ---- what the state after a chunk has --------------------------------------------------------------------------------------------------- */

/* With dH [slots,Hv,K,K] at the end of every chunk: U, the gates, dh0. A CTA a chunk and head; a thread has 4 rows and 4 columns of 64 of U. */
constexpr int END_THREADS = 256;
template <typename T> __global__ __launch_bounds__(END_THREADS) void mesa_unroll_end(const __grid_constant__ lnt_mesa_unroll<T> a)
{
    __shared__ float k[C][65], dH[64][65], rows[2][C], warps[END_THREADS / 32];
    __shared__ lnt_gate_sum b[C];
    __shared__ float gate[C], beta[C];
    const int K = a.solve.K, Hv = a.solve.Hv, h = (int)(blockIdx.x % Hv), tid = (int)threadIdx.x, tx = tid % 16, ty = tid / 16;
    const int64_t slot = blockIdx.x / Hv, square = (int64_t)K * K;
    const int4 chunk_at = a.solve.table[slot];
    const int len = chunk_at.z < 0 ? 0 : chunk_at.z;
    if (len == 0 && chunk_at.w != 0) return; /* of an empty sequence, dh0 is dhT */
    const int64_t t0 = chunk_at.y, Hk = a.solve.Hk;
    const T *keys = a.solve.k + (t0 * Hk + (int64_t)h * Hk / Hv) * K;
    const float *after = a.E + (slot * Hv + h) * square, *H = a.solve.H + (slot * Hv + h) * square;
    const int64_t head = (int64_t)chunk_at.x * Hv + h;
    float *dh0 = a.dh0 && chunk_at.w == 0 ? a.dh0 + head * square : NULL;
    const float *E0 = a.E0 + head * square; /* read with dh0 alone */
    for (int j = tid; j < C; j += END_THREADS) {
        const float g = j < len ? a.solve.g[(t0 + j) * Hv + h] : 0.0f;
        gate[j] = lnt_gate(g);
        beta[j] = j < len ? a.solve.beta[(t0 + j) * Hv + h] : 0.0f;
    }
    __syncthreads();
    for (int j = tid; j < C; j += END_THREADS) b[j] = lnt_gate_upto(gate, j);
    __syncthreads();
    const float end = len ? lnt_gate_from_start(b[len - 1]) : 1.0f;
    float through_U[4] = {}, through_kb[4] = {}, dot = 0;
    for (int c0 = 0; c0 < K; c0 += 64) {
        float U[4][4] = {};
        for (int d0 = 0; d0 < K; d0 += 64) {
            __syncthreads();
            for (int i = tid; i < 64 * 64; i += END_THREADS) {
                const int row = i / 64, column = i % 64;
                k[row][column] = row < len && d0 + column < K ? to_float(keys[(int64_t)row * Hk * K + d0 + column]) : 0.0f;
                dH[row][column] = d0 + row < K && c0 + column < K ? after[(int64_t)(d0 + row) * K + c0 + column] : 0.0f;
            }
            __syncthreads();
            for (int i = tid; i < 64 * 64; i += END_THREADS) { /* its symmetric part: row and column change roles, H is symmetric */
                const int column = c0 + i / 64, row = d0 + i % 64;
                if (row >= K || column >= K) continue;
                const int64_t at = (int64_t)column * K + row;
                const float x = 0.5f * (dH[i % 64][i / 64] + after[at]);
                dH[i % 64][i / 64] = x;
                dot += H[at] * x;
                if (dh0) dh0[at] = end * x + (len ? 0.5f * (E0[at] + E0[(int64_t)row * K + column]) : 0.0f);
            }
            __syncthreads();
#pragma unroll 8
            for (int d = 0; d < 64; d++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) U[i][j] += k[ty * 4 + i][d] * dH[d][tx + 16 * j];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = ty * 4 + i;
            if (row >= len) continue;
            const float out = lnt_gate_between(b[len - 1], b[row]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int column = c0 + tx + 16 * j;
                if (column >= K) continue;
                const int64_t at = ((t0 + row) * Hv + h) * K + column;
                const float kb = beta[row] * to_float(keys[(int64_t)row * Hk * K + column]), u = out * U[i][j], dkb = a.dkb[at] + u;
                through_U[i] += kb * u;
                through_kb[i] += kb * dkb;
                a.less_dkb[at] = from_float<T>(-dkb);
                a.less_dvalue[at] = from_float<T>(-(a.dvalue[at] + beta[row] * u));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        for (int o = 1; o < 16; o <<= 1) {
            through_U[i] += __shfl_xor_sync(~0u, through_U[i], o);
            through_kb[i] += __shfl_xor_sync(~0u, through_kb[i], o);
        }
        if (tx == 0) rows[0][ty * 4 + i] = through_U[i], rows[1][ty * 4 + i] = through_kb[i];
    }
    dot = warp_sum(dot);
    if (tid % 32 == 0) warps[tid / 32] = dot;
    __syncthreads();
    if (tid) return;
    double last = 0;
    for (int i = 0; i < END_THREADS / 32; i++) last += warps[i];
    last *= end;
    for (int j = 0; j < len; j++) last += rows[0][j];
    for (int i = len - 1; i >= 0; i--) {
        last += a.db[(t0 + i) * Hv + h] - rows[1][i];
        a.less_dg[(t0 + i) * Hv + h] = lnt_gate_shut(gate[i]) ? 0.0f : -(float)last;
    }
}

/* Chunks that are worked on at once: two CTAs a multiprocessor of a large GPU with K <= 64, one with more, and no more than 1 GiB of kept steps. */
template <typename T> void put_rings(const lnt_mesa_unroll<T> &a, int64_t rings, lnt_cuda *d)
{
    with_cta(a.solve.K, d, [&](auto shape) {
        constexpr int KP = shape.columns, ROWS = shape.rows;
        constexpr size_t shared = sizeof(unroll_shared<KP, ROWS>);
        static_assert(shared <= shape.room);
        lnt_cuda_note(d, cudaFuncSetAttribute(mesa_unroll<KP, ROWS, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        mesa_unroll<KP, ROWS, T><<<(unsigned)rings, tile<KP, ROWS>::threads, shared, d->stream>>>(a);
    });
    lnt_cuda_note(d, cudaGetLastError());
}

} // namespace

lnt_mesa_rings lnt_mesa_rings_of(int K, int steps, int64_t tasks)
{
    const int KP = K <= 64 ? 64 : K <= 128 ? 128 : 256, blocks = steps + 2; /* the guess, the step that is not counted */
    const int64_t floats = ring_floats(KP, blocks), most = KP == 64 ? 264 : 132, room = ((int64_t)1 << 28) / floats;
    int64_t n = tasks < most ? tasks : most;
    n = n < room ? n : room;
    return { n > 0 ? n : tasks > 0, floats, blocks };
}

template <typename T> void lnt_mesa_unroll_put(const lnt_mesa_unroll<T> &a, lnt_cuda *d)
{
    const int64_t rings = lnt_mesa_rings_of(a.solve.K, a.solve.steps, a.solve.chunks * a.solve.Hv).n;
    if (rings) put_rings(a, rings, d);
}

template <typename T> void lnt_mesa_unroll_end_put(const lnt_mesa_unroll<T> &a, lnt_cuda *d)
{
    const int64_t grid = a.solve.chunks * a.solve.Hv;
    if (grid) mesa_unroll_end<T><<<(unsigned)grid, END_THREADS, 0, d->stream>>>(a);
    lnt_cuda_note(d, cudaGetLastError());
}

template void lnt_mesa_unroll_put(const lnt_mesa_unroll<float> &, lnt_cuda *);
template void lnt_mesa_unroll_put(const lnt_mesa_unroll<bf16> &, lnt_cuda *);
template void lnt_mesa_unroll_end_put(const lnt_mesa_unroll<float> &, lnt_cuda *);
template void lnt_mesa_unroll_end_put(const lnt_mesa_unroll<bf16> &, lnt_cuda *);
