/* The delta core's backward pass for every GPU and shape: plain float32 arithmetic, states and all that is kept between the kernels in float32.
 *
 * Letters as in operators.md#delta: C rows (n of them real), s read-out scale, b = beta, D decay mask, e_i = e^{G_i}, l_i = e^{G_n - G_i}. Three
 * kernels, none of which shares anything with the forward pass:
 *   sweep    serial over chunks, a CTA for each sequence, value head and 32 columns of V: the state S at each chunk's start and the errors E
 *   adjoint  the same in reverse: dS' at each chunk's end and dR
 *   outputs  a CTA for each chunk and value head, as many columns of V at a time as fit: dq, dk, dv, dg, dbeta
 * and, where value heads share keys, `gather`, which adds their float32 parts of dq and dk in head order. */
#include "recurrence/delta/delta_cuda.cuh"

namespace {

enum { C = 32, COLS = 32, THREADS = 256, PER = C * COLS / THREADS }; /* a thread has PER rows of one column of a 32 x 32 tile */

struct problem {
    const void *q, *k, *v, *d_o;
    const float *g, *beta, *s0, *dsT;
    void *dq, *dk, *dv;
    float *dg, *dbeta, *ds0;
    float *S, *dS;     /* [slots, Hv, K, V] at the chunk's start; at its end */
    float *E, *dR;     /* [tokens, Hv, V] */
    float *dq_parts, *dk_parts; /* [tokens, Hv, K]; NULL where dq, dk are written at once */
    const int64_t *cu;
    int64_t N;
    int Hq, Hv, K, V, columns; /* columns: of V in a tile of the outputs, all of them or a multiple of 4 */
    float scale;
};

/* Chunk i of sequence n has the slot cu[n] / C + n + i: distinct for all chunks, and found without a table. */
__host__ __device__ int64_t first_slot(const int64_t *cu, int64_t n) { return cu[n] / C + n; }
int64_t slots_of(const lnt_recur_args *a) { return a->tokens / C + a->sequences; }

/* Rows of x are float4s, an odd number of them: eight rows read at one column use all banks. */
__host__ __device__ int row_floats(int n) { return ((n + 3) / 4 | 1) * 4; }

struct chunk {
    int64_t first; /* its first token */
    int n;         /* rows */
};

/* x[i][c] (row length ld) = rows first.. of head h in t[tokens, heads, width], columns from..from+cols-1, times factor[i] if there is one; zeros
 * outside. */
template <typename T>
__device__ void rows_in(float *x, int ld, const void *t, chunk c, int heads, int h, int width, int from, int cols, const float *factor = NULL)
{
    const T *p = (const T *)t;
    for (int e = threadIdx.x; e < C * cols; e += THREADS) {
        int i = e / cols, j = e % cols;
        const float y = p && i < c.n && from + j < width ? to_float(p[((c.first + i) * heads + h) * width + from + j]) : 0.0f;
        x[i * ld + j] = factor ? factor[i] * y : y;
    }
}

/* out[r] = sum_c a[row + r][c] b[col][c]: PER rows of a with one of b. width is a multiple of 4. */
__device__ __forceinline__ void dots(float (&out)[PER], const float *a, const float *b, int ld, int width)
{
    for (int c = 0; c < width; c += 4) {
        float y[4];
        load_pack(y, b + c);
#pragma unroll
        for (int r = 0; r < PER; r++) {
            float x[4];
            load_pack(x, a + r * ld + c);
#pragma unroll
            for (int m = 0; m < 4; m++) out[r] += x[m] * y[m];
        }
    }
}

/* What the gates of a chunk give. */
struct gates {
    float D[C][C + 1]; /* e^{G_i - G_j}, 0 above the diagonal */
    float e[C], l[C], beta[C];
};

__device__ void gates_in(gates *w, const problem &p, chunk c, int h)
{
    const int j = threadIdx.x;
    if (j >= C) return;
    const lnt_gate_sum upto = lnt_gate_scan<C>(p.g && j < c.n ? p.g[(c.first + j) * p.Hv + h] : 0.0f);
    for (int i = 0; i < C; i++) {
        const lnt_gate_sum row = { __shfl_sync(~0u, upto.hi, i), __shfl_sync(~0u, upto.lo, i) };
        w->D[i][j] = i < j ? 0.0f : lnt_gate_between(row, upto);
    }
    w->e[j] = lnt_gate_from_start(upto);
    w->l[j] = j < c.n ? w->D[c.n - 1][j] : 0.0f;
    w->beta[j] = j < c.n ? p.beta[(c.first + j) * p.Hv + h] : 0.0f;
}

/* ---- sweep ----------------------------------------------------------------------------------------------------------------------- */

/* Thread's place in a 32 x 32 tile: column `lane`, rows `row`..row+PER-1. */
__device__ __forceinline__ int lane() { return threadIdx.x % COLS; }
__device__ __forceinline__ int row() { return threadIdx.x / COLS * PER; }

/* x[r] += sum_k a[row + r][k] S[k][lane], a with rows of ld floats, S [width, COLS] */
__device__ __forceinline__ void times_state(float (&x)[PER], const float *a, int ld, const float *S, int width)
{
    for (int k = 0; k < width; k += 4) {
        float s[4];
#pragma unroll
        for (int m = 0; m < 4; m++) s[m] = S[(k + m) * COLS + lane()];
#pragma unroll
        for (int r = 0; r < PER; r++) {
            float y[4];
            load_pack(y, a + r * ld + k);
#pragma unroll
            for (int m = 0; m < 4; m++) x[r] += y[m] * s[m];
        }
    }
}

/* S[k][lane] = f S[k][lane] + sum_i a[i][k] y[i][lane] */
__device__ void add_outer(float *S, float f, const float *a, int ld, int width, const float (*y)[COLS + 1])
{
    float yi[C];
#pragma unroll
    for (int i = 0; i < C; i++) yi[i] = y[i][lane()];
    for (int k = row(); k < width; k += THREADS / COLS * PER) {
        float s[PER];
#pragma unroll
        for (int m = 0; m < PER; m++) s[m] = f * S[(k + m) * COLS + lane()];
#pragma unroll
        for (int i = 0; i < C; i++) {
            float x[PER];
            load_pack(x, a + i * ld + k);
#pragma unroll
            for (int m = 0; m < PER; m++) s[m] += x[m] * yi[i];
        }
#pragma unroll
        for (int m = 0; m < PER; m++) S[(k + m) * COLS + lane()] = s[m];
    }
}

/* The panel between shared memory and a state in memory; zeros outside and where there is none. */
__device__ void panel_in(float *S, const float *from, const problem &p, int rows, int v0)
{
    for (int e = threadIdx.x; e < rows * COLS; e += THREADS) {
        int k = e / COLS, j = v0 + e % COLS;
        S[e] = from && k < p.K && j < p.V ? from[(int64_t)k * p.V + j] : 0.0f;
    }
}
__device__ void panel_out(const float *S, float *to, const problem &p, int v0)
{
    for (int e = threadIdx.x; e < p.K * COLS; e += THREADS) {
        int j = v0 + e % COLS;
        if (j < p.V) to[(int64_t)(e / COLS) * p.V + j] = S[e];
    }
}

/* Which sequence, value head and columns a CTA of the serial kernels has. */
struct place {
    int64_t n, start, end, slot;
    int h, v0;
};
__device__ place place_of(const problem &p)
{
    int panels = (p.V + COLS - 1) / COLS;
    int64_t b = blockIdx.x, n = b / panels / p.Hv;
    return { .n = n,
             .start = p.cu[n],
             .end = p.cu[n + 1],
             .slot = first_slot(p.cu, n),
             .h = (int)(b / panels % p.Hv),
             .v0 = (int)(b % panels) * COLS };
}
__device__ chunk chunk_at(const place &at, int64_t i)
{
    int64_t first = at.start + i * C;
    return { .first = first, .n = (int)min((int64_t)C, at.end - first) };
}

struct serial_shared {
    gates g;
    float A[C][C + 1], P[C][C + 1], x[C][COLS + 1], y[C][COLS + 1];
};

/* S~ and E of every chunk (operators.md#delta):  (I + tril(K K^T . D diag(b), -1)) E = V - e.(K S)      S' = e^{G_n} S + K^T (b l . E) */
template <typename T> __global__ void __launch_bounds__(THREADS) sweep(problem p)
{
    extern __shared__ float4 dynamic[];
    __shared__ serial_shared w;
    place at = place_of(p);
    int hq = at.h / (p.Hv / p.Hq), ld = row_floats(p.K), rows = (p.K + 3) / 4 * 4;
    float *S = (float *)dynamic, *k = S + (int64_t)rows * COLS; /* [rows, COLS], [C, ld] */
    int64_t size = (int64_t)p.K * p.V, chunks = (at.end - at.start + C - 1) / C;
    panel_in(S, p.s0 ? p.s0 + (at.n * p.Hv + at.h) * size : NULL, p, rows, at.v0);
    for (int64_t i = 0; i < chunks; i++) {
        chunk c = chunk_at(at, i);
        __syncthreads();
        panel_out(S, p.S + ((at.slot + i) * p.Hv + at.h) * size, p, at.v0);
        rows_in<T>(k, ld, p.k, c, p.Hq, hq, p.K, 0, ld);
        gates_in(&w.g, p, c, at.h);
        rows_in<T>(&w.x[0][0], COLS + 1, p.v, c, p.Hv, at.h, p.V, at.v0, COLS);
        __syncthreads();
        float kk[PER] = {}, ks[PER] = {};
        dots(kk, k + row() * ld, k + lane() * ld, ld, rows);
        times_state(ks, k + row() * ld, ld, S, rows);
        for (int r = 0; r < PER; r++) {
            w.A[row() + r][lane()] = kk[r] * w.g.D[row() + r][lane()] * w.g.beta[lane()];
            w.x[row() + r][lane()] -= w.g.e[row() + r] * ks[r];
        }
        __syncthreads();
        if (threadIdx.x < COLS) { /* a column each; a row is final when those before it have left it */
            float E[C];
#pragma unroll
            for (int m = 0; m < C; m++) E[m] = w.x[m][lane()];
#pragma unroll
            for (int j = 0; j < C; j++)
#pragma unroll
                for (int m = j + 1; m < C; m++) E[m] -= w.A[m][j] * E[j];
#pragma unroll
            for (int m = 0; m < C; m++) {
                w.y[m][lane()] = w.g.beta[m] * w.g.l[m] * E[m];
                if (m < c.n && at.v0 + lane() < p.V) p.E[((c.first + m) * p.Hv + at.h) * p.V + at.v0 + lane()] = E[m];
            }
        }
        __syncthreads();
        add_outer(S, w.g.e[c.n - 1], k, ld, rows, w.y);
    }
}

/* ---- adjoint --------------------------------------------------------------------------------------------------------------------- */

/* (I + A)^T dR = P^T dO + l.(K dS')      dS = e^{G_n} dS' + Q^T (s e.dO) - K^T (e.b.dR)      A = tril(b_i K K^T . D, -1), P = s tril(Q K^T) . D */
template <typename T> __global__ void __launch_bounds__(THREADS) adjoint(problem p)
{
    extern __shared__ float4 dynamic[];
    __shared__ serial_shared w;
    place at = place_of(p);
    int hq = at.h / (p.Hv / p.Hq), ld = row_floats(p.K), rows = (p.K + 3) / 4 * 4;
    float *dS = (float *)dynamic, *k = dS + (int64_t)rows * COLS, *q = k + C * ld;
    int64_t size = (int64_t)p.K * p.V, chunks = (at.end - at.start + C - 1) / C;
    panel_in(dS, p.dsT ? p.dsT + (at.n * p.Hv + at.h) * size : NULL, p, rows, at.v0);
    for (int64_t i = chunks - 1; i >= 0; i--) {
        chunk c = chunk_at(at, i);
        __syncthreads();
        panel_out(dS, p.dS + ((at.slot + i) * p.Hv + at.h) * size, p, at.v0);
        rows_in<T>(k, ld, p.k, c, p.Hq, hq, p.K, 0, ld);
        rows_in<T>(q, ld, p.q, c, p.Hq, hq, p.K, 0, ld);
        gates_in(&w.g, p, c, at.h);
        rows_in<T>(&w.x[0][0], COLS + 1, p.d_o, c, p.Hv, at.h, p.V, at.v0, COLS);
        __syncthreads();
        float kk[PER] = {}, qk[PER] = {}, dU[PER] = {};
        dots(kk, k + row() * ld, k + lane() * ld, ld, rows);
        dots(qk, q + row() * ld, k + lane() * ld, ld, rows);
        times_state(dU, k + row() * ld, ld, dS, rows);
        for (int r = 0; r < PER; r++) {
            int m = row() + r;
            w.A[m][lane()] = w.g.beta[m] * kk[r] * w.g.D[m][lane()];
            w.P[m][lane()] = p.scale * qk[r] * w.g.D[m][lane()];
            dU[r] *= w.g.l[m];
        }
        __syncthreads();
        for (int j = 0; j < C; j++)
            for (int r = 0; r < PER; r++) dU[r] += w.P[j][row() + r] * w.x[j][lane()];
        for (int r = 0; r < PER; r++) w.y[row() + r][lane()] = dU[r];
        __syncthreads();
        if (threadIdx.x < COLS) {
            float dR[C];
#pragma unroll
            for (int m = 0; m < C; m++) dR[m] = w.y[m][lane()];
#pragma unroll
            for (int j = C - 1; j >= 0; j--)
#pragma unroll
                for (int m = 0; m < j; m++) dR[m] -= w.A[j][m] * dR[j];
#pragma unroll
            for (int m = 0; m < C; m++) {
                w.y[m][lane()] = -w.g.e[m] * w.g.beta[m] * dR[m];
                w.x[m][lane()] *= p.scale * w.g.e[m];
                if (m < c.n && at.v0 + lane() < p.V) p.dR[((c.first + m) * p.Hv + at.h) * p.V + at.v0 + lane()] = dR[m];
            }
        }
        __syncthreads();
        add_outer(dS, w.g.e[c.n - 1], k, ld, rows, w.y);
        add_outer(dS, 1.0f, q, ld, rows, w.x);
    }
    __syncthreads();
    if (p.ds0) panel_out(dS, p.ds0 + (at.n * p.Hv + at.h) * size, p, at.v0);
}

/* ---- outputs --------------------------------------------------------------------------------------------------------------------- */

struct outputs_shared {
    gates g;
    float M[C][C + 1], N[C][C + 1]; /* -tril(dZ U^T, -1) . D and s tril(dO U^T, -1) . D */
    float diagonal[C];              /* of N, by itself: no decay reaches it, and dG is free of what would cancel */
    float k[C][COLS + 1], q[C][COLS + 1];
    float dG[C], inner[THREADS / 32];
    int64_t n; /* sequence */
};

template <typename T> __device__ void put_key_row(void *out, float *parts, const problem &p, int64_t t, int h, int hq, int k, float x)
{
    if (k >= p.K) return;
    if (parts) parts[(t * p.Hv + h) * p.K + k] = x;
    else if (out) ((T *)out)[(t * p.Hq + hq) * p.K + k] = from_float<T>(x);
}

/* dg_i = sum_{m >= i} dG_m (operators.md#gate-gradients); 0 at a reset. `last`: <S', dS'>. */
__device__ void put_gate_gradient(const outputs_shared &w, const problem &p, chunk c, int h, float last)
{
    float sum = last;
    for (int i = c.n - 1; i >= 0; i--) {
        int64_t at = (c.first + i) * p.Hv + h;
        sum += w.dG[i];
        p.dg[at] = p.g && lnt_gate_shut(lnt_gate(p.g[at])) ? 0.0f : sum; /* no g: decays of 1 */
    }
}

/* dZ = b.dR, dV = dZ, U = b.E, dbeta = rowsum(dR . E)
 * dQ = s e.(dO S^T) + N K      dKread = -e.(dZ S^T) + M K      dKwrite = l.(U dS'^T) + M^T K + N^T Q      dK = dKread + dKwrite
 * dG_i = q_i.dQ_i + k_i.dKread_i - k_i.dKwrite_i,  <S', dS'> = e^{G_n} <S, dS'> + sum_i k_i . l_i (dS' u_i), 32 columns of K at a time and a tile's
 * of V. Long: one set of tiles in shared memory, read by every sum. */
template <typename T> __global__ void __launch_bounds__(THREADS) outputs(problem p)
{
    extern __shared__ float4 dynamic[];
    __shared__ outputs_shared w;
    if (threadIdx.x == 0) {
        int64_t low = 0, high = p.N - 1; /* the last sequence whose first slot is not after this one */
        while (low < high) {
            int64_t middle = (low + high + 1) / 2;
            if (first_slot(p.cu, middle) <= (int64_t)blockIdx.x) low = middle;
            else high = middle - 1;
        }
        w.n = low;
    }
    __syncthreads();
    int h = blockIdx.y, hq = h / (p.Hv / p.Hq), ld = row_floats(p.columns), width = (p.columns + 3) / 4 * 4;
    int64_t slot = blockIdx.x, start = p.cu[w.n] + (slot - first_slot(p.cu, w.n)) * C, end = p.cu[w.n + 1];
    if (start >= end) return;
    chunk c = { .first = start, .n = (int)min((int64_t)C, end - start) };
    float *dO = (float *)dynamic, *dZ = dO + C * ld, *U = dZ + C * ld, *S = U + C * ld, *dS = S + COLS * ld; /* rows of ld floats */
    const float *S_at = p.S + (slot * p.Hv + h) * p.K * p.V, *dS_at = p.dS + (slot * p.Hv + h) * p.K * p.V;

    gates_in(&w.g, p, c, h);
    float zu[PER] = {}, ou[PER] = {}, rowsum[PER] = {}, dG[PER] = {}, inner = 0.0f;
    for (int v0 = 0; v0 < p.V; v0 += p.columns) {
        __syncthreads();
        rows_in<T>(dO, ld, p.d_o, c, p.Hv, h, p.V, v0, ld);
        rows_in<float>(dZ, ld, p.dR, c, p.Hv, h, p.V, v0, ld);
        rows_in<float>(U, ld, p.E, c, p.Hv, h, p.V, v0, ld);
        __syncthreads();
        for (int r = 0; r < PER; r++) { /* a warp has the rows it scales */
            int i = row() + r;
            float b = w.g.beta[i];
            for (int j = lane(); j < min(p.columns, p.V - v0); j += COLS) {
                float x = dZ[i * ld + j], y = U[i * ld + j];
                rowsum[r] += x * y;
                dZ[i * ld + j] = b * x;
                U[i * ld + j] = b * y;
                if (p.dv && i < c.n) ((T *)p.dv)[((c.first + i) * p.Hv + h) * p.V + v0 + j] = from_float<T>(b * x);
            }
        }
        __syncthreads();
        dots(zu, dZ + row() * ld, U + lane() * ld, ld, width);
        dots(ou, dO + row() * ld, U + lane() * ld, ld, width);
    }
    for (int r = 0; r < PER; r++) {
        const float sum = warp_sum(rowsum[r]);
        if (p.dbeta && lane() == 0 && row() + r < c.n) p.dbeta[(c.first + row() + r) * p.Hv + h] = sum;
    }
    for (int r = 0; r < PER; r++) {
        float D = w.g.D[row() + r][lane()];
        w.M[row() + r][lane()] = row() + r > lane() ? -zu[r] * D : 0.0f;
        w.N[row() + r][lane()] = row() + r > lane() ? p.scale * ou[r] * D : 0.0f;
        if (row() + r == lane()) w.diagonal[lane()] = p.scale * ou[r];
    }
    float decay = w.g.e[c.n - 1];
    for (int k0 = 0; k0 < p.K; k0 += COLS) {
        __syncthreads();
        rows_in<T>(&w.k[0][0], COLS + 1, p.k, c, p.Hq, hq, p.K, k0, COLS);
        rows_in<T>(&w.q[0][0], COLS + 1, p.q, c, p.Hq, hq, p.K, k0, COLS);
        float dq[PER] = {}, read[PER] = {}, write[PER] = {};
        for (int v0 = 0; v0 < p.V; v0 += p.columns) {
            if (v0) __syncthreads();
            if (p.columns < p.V) { /* else they are there still */
                rows_in<T>(dO, ld, p.d_o, c, p.Hv, h, p.V, v0, ld);
                rows_in<float>(dZ, ld, p.dR, c, p.Hv, h, p.V, v0, ld, w.g.beta);
                rows_in<float>(U, ld, p.E, c, p.Hv, h, p.V, v0, ld, w.g.beta);
            }
            for (int e = threadIdx.x; e < COLS * ld; e += THREADS) {
                int k = k0 + e / ld, j = e % ld;
                bool inside = k < p.K && j < p.columns && v0 + j < p.V;
                S[e] = inside ? S_at[(int64_t)k * p.V + v0 + j] : 0.0f;
                dS[e] = inside ? dS_at[(int64_t)k * p.V + v0 + j] : 0.0f;
                inner += decay * S[e] * dS[e];
            }
            __syncthreads();
            dots(dq, dO + row() * ld, S + lane() * ld, ld, width);
            dots(read, dZ + row() * ld, S + lane() * ld, ld, width);
            dots(write, U + row() * ld, dS + lane() * ld, ld, width);
        }
        for (int r = 0; r < PER; r++) {
            int i = row() + r;
            dq[r] *= p.scale * w.g.e[i];
            read[r] *= -w.g.e[i];
            write[r] *= w.g.l[i];
            inner += w.k[i][lane()] * write[r];
        }
        for (int j = 0; j < C; j++) {
            float k = w.k[j][lane()], q = w.q[j][lane()];
            for (int r = 0; r < PER; r++) {
                int i = row() + r;
                dq[r] += w.N[i][j] * k;
                read[r] += w.M[i][j] * k;
                write[r] += w.M[j][i] * k + w.N[j][i] * q;
            }
        }
        for (int r = 0; r < PER; r++) {
            int i = row() + r;
            float k = w.k[i][lane()], q = w.q[i][lane()];
            dG[r] += q * dq[r] + k * (read[r] - write[r]);
            if (i >= c.n) continue;
            put_key_row<T>(p.dq, p.dq_parts, p, c.first + i, h, hq, k0 + lane(), dq[r] + w.diagonal[i] * k);
            put_key_row<T>(p.dk, p.dk_parts, p, c.first + i, h, hq, k0 + lane(), read[r] + write[r] + w.diagonal[i] * q);
        }
    }
    if (!p.dg) return;
    inner = warp_sum(inner);
    if (lane() == 0) w.inner[threadIdx.x / 32] = inner;
    for (int r = 0; r < PER; r++) {
        float sum = warp_sum(dG[r]);
        if (lane() == 0) w.dG[row() + r] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float last = 0.0f;
        for (int i = 0; i < THREADS / 32; i++) last += w.inner[i];
        put_gate_gradient(w, p, c, h, last);
    }
}

/* out[t, hq, k] = sum over the value heads of hq, in order */
template <typename T> __global__ void gather(T *out, const float *parts, int64_t rows, int group, int K)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows * K) return;
    const float *x = parts + i / K * group * K + i % K;
    float sum = 0.0f;
    for (int h = 0; h < group; h++) sum += x[(int64_t)h * K];
    out[i] = from_float<T>(sum);
}

/* ---- host ------------------------------------------------------------------------------------------------------------------------ */

/* Pieces of the workspace one after another, each on a boundary of 256 bytes; base NULL: only the size. */
float *carve(char *base, size_t *used, int64_t floats)
{
    float *at = base ? (float *)(base + *used) : NULL;
    *used += ((size_t)floats * sizeof(float) + 255) / 256 * 256;
    return at;
}

size_t lay_out(const lnt_recur_args *a, char *base, problem *p)
{
    size_t used = 0;
    int64_t states = slots_of(a) * a->Hv * a->K * a->V, rows = a->tokens * a->Hv;
    p->S = carve(base, &used, states);
    p->dS = carve(base, &used, states);
    p->E = carve(base, &used, rows * a->V);
    p->dR = carve(base, &used, rows * a->V);
    if (a->Hv > a->Hq) {
        p->dq_parts = carve(base, &used, rows * a->K);
        p->dk_parts = carve(base, &used, rows * a->K);
    }
    return used;
}

/* Bytes of shared memory beside those that the kernels have by themselves. */
struct shared_bytes {
    int sweep, adjoint, outputs;
};
shared_bytes bytes_of(int K, int columns)
{
    const int rows = (K + 3) / 4 * 4, ld = row_floats(K);
    return { (rows * COLS + C * ld) * 4, (rows * COLS + 2 * C * ld) * 4, (3 * C + 2 * COLS) * row_floats(columns) * 4 };
}
/* Columns of V in a tile: 256 of a GPU's `room` for a block, or half as often; all of them where there are no more. */
int columns_in(int V, size_t room)
{
    int columns = 256;
    while (columns > COLS && bytes_of(0, V < columns ? V : columns).outputs + sizeof(outputs_shared) > room) columns /= 2;
    return V < columns ? V : columns;
}

template <typename T> cudaError_t put(const lnt_recur_args *a, const problem &p, cudaStream_t stream)
{
    int serial = (int)lnt_div_up(a->V, COLS) * a->Hv * (int)a->sequences;
    const auto [sweep_bytes, adjoint_bytes, outputs_bytes] = bytes_of(a->K, p.columns);
    cudaError_t e = cudaFuncSetAttribute(sweep<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, sweep_bytes);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(adjoint<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, adjoint_bytes);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(outputs<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, outputs_bytes);
    if (e != cudaSuccess) return e;
    if (serial) {
        sweep<T><<<serial, THREADS, sweep_bytes, stream>>>(p);
        adjoint<T><<<serial, THREADS, adjoint_bytes, stream>>>(p);
    }
    if (a->tokens) {
        outputs<T><<<dim3((unsigned)slots_of(a), (unsigned)a->Hv), THREADS, outputs_bytes, stream>>>(p);
        int64_t n = a->tokens * a->Hq;
        unsigned blocks = (unsigned)lnt_div_up(n * a->K, THREADS);
        if (p.dq_parts && a->dq) gather<T><<<blocks, THREADS, 0, stream>>>((T *)a->dq, p.dq_parts, n, a->Hv / a->Hq, a->K);
        if (p.dk_parts && a->dk) gather<T><<<blocks, THREADS, 0, stream>>>((T *)a->dk, p.dk_parts, n, a->Hv / a->Hq, a->K);
    }
    return cudaGetLastError();
}

} /* namespace */

size_t lnt_delta_general_block_memory(const lnt_recur_args *a, size_t room)
{
    const shared_bytes b = bytes_of(a->K, columns_in(a->V, room));
    const size_t serial = b.adjoint + sizeof(serial_shared), outputs = b.outputs + sizeof(outputs_shared);
    return serial > outputs ? serial : outputs;
}

extern "C" size_t lnt_delta_chunk_cuda_workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    (void)threads;
    if (!backward) return 0;
    problem p = {};
    return lay_out(a, NULL, &p);
}

extern "C" void lnt_delta_chunk_cuda_backward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    lnt_cuda *device = (lnt_cuda *)d;
    problem p = {};
    p.q = a->q;
    p.k = a->k;
    p.v = a->v;
    p.d_o = a->do_;
    p.g = (const float *)a->g;
    p.beta = (const float *)a->beta;
    p.s0 = (const float *)a->s0;
    p.dsT = (const float *)a->dsT;
    p.dq = a->dq;
    p.dk = a->dk;
    p.dv = a->dv;
    p.dg = (float *)a->dg;
    p.dbeta = (float *)a->dbeta;
    p.ds0 = (float *)a->ds0;
    p.cu = a->cu_seqlens_device;
    p.N = a->sequences;
    p.Hq = a->Hq;
    p.Hv = a->Hv;
    p.K = a->K;
    p.V = a->V;
    p.columns = columns_in(a->V, d->block_shared);
    p.scale = (float)a->scale;
    lay_out(a, (char *)a->workspace, &p);
    cudaError_t e = cudaSuccess;
    LNT_BY_TYPE(a->dtype, T, e = put<T>(a, p, device->stream));
    lnt_cuda_note(device, e);
}
