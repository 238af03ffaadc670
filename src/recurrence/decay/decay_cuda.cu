/* The decay core on a GPU: the order of the kernels, the general kernels (float32 arithmetic, any K and V up to 256, any row type) and the small ones
 * that both sets share. Equations, roles and the cut into segments: README.md. */
#include "recurrence/decay/decay_cuda.cuh"

static constexpr int C = 16;        /* chunk of the general kernels */
static constexpr int BLOCK = 32;    /* their columns of the state: a lane each */
static constexpr int THREADS = 128; /* and theirs: warp w has rows 4w .. 4w+3 of a chunk */
static constexpr int WIDEST = 256;

/* ---- the general kernels ------------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ float row_at(const decay_rows &x, const decay_cut &c, int64_t t, int h, int j)
{
    if (j == x.width) return x.extra ? x.extra[t * c.Hv + h] : 1.0f;
    if (!x.p) return 0.0f;
    const int64_t i = (t * x.heads + (int64_t)h * x.heads / c.Hv) * x.width + j;
    return x.bf16 ? to_float(((const bf16 *)x.p)[i]) : ((const float *)x.p)[i];
}

struct general_tile {
    float *S;     /* [D][BLOCK] */
    float *query; /* [C][D+1] */
    float *key;   /* [D][KEY]: transposed; 20 floats a row keep float4 aligned and meet 4 lanes a bank */
    float *value; /* [C][BLOCK] */
    float *P;     /* [C][C+1] */
    float *gate, *read, *write; /* [C], total after them */
    decay_sum *b;               /* [C] */
};
static constexpr int KEY = 20;

static size_t general_floats(int D, bool query)
{
    return (size_t)D * (BLOCK + KEY) + C * BLOCK + (query ? C * (D + 1) : 0) + C * (C + 1) + 6 * C + 4;
}

__device__ __forceinline__ general_tile general_carve(float *base, int D)
{
    general_tile w;
    w.key = base;
    w.S = w.key + D * KEY;
    w.value = w.S + D * BLOCK;
    w.b = (decay_sum *)(w.value + C * BLOCK);
    w.gate = (float *)(w.b + C);
    w.read = w.gate + C;
    w.write = w.read + C;
    w.P = w.write + C + 4;
    w.query = w.P + C * (C + 1);
    return w;
}

/* Factors of the n rows from token t; write[C] is e^{b_n}. Begins and ends with a barrier. */
__device__ static void general_factors(const decay_cut &x, general_tile w, int64_t t, int n, int h, bool reverse)
{
    const int i = (int)threadIdx.x;
    __syncthreads();
    if (i < C) w.gate[i] = i < n ? decay_gate(x, t + i, h) : 0.0f;
    __syncthreads();
    if (i < C) {
        double all = 0, upto = 0;
        for (int j = 0; j < C; j++) {
            all += w.gate[j];
            if (j == i) upto = all;
        }
        w.b[i] = decay_split(upto * DECAY_LOG2E);
        const float in = x.scale * exp2f((float)(upto * DECAY_LOG2E)), out = exp2f((float)((all - upto) * DECAY_LOG2E));
        w.read[i] = reverse ? out : in;
        w.write[i] = reverse ? in : out;
        if (i == 0) w.write[C] = exp2f((float)(all * DECAY_LOG2E));
    }
    __syncthreads();
}

__device__ static void general_load(const decay_cut &x, general_tile w, const decay_rows &key, const decay_rows &value, int D, int first, int end,
                                    int64_t t, int n, int h)
{
    for (int i = (int)threadIdx.x; i < C * D; i += THREADS) {
        const int j = i / D, d = i % D;
        w.key[d * KEY + j] = j < n ? row_at(key, x, t + j, h, d) : 0.0f;
    }
    for (int i = (int)threadIdx.x; i < C * BLOCK; i += THREADS) {
        const int j = i / BLOCK, e = first + i % BLOCK;
        w.value[i] = j < n && e < end ? row_at(value, x, t + j, h, e) : 0.0f;
    }
}

/* S <- e^{b_n} S + sum_j write_j key_j value_j^T */
__device__ static void general_write(general_tile w, int D)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const float total = w.write[C];
    float v[C];
#pragma unroll
    for (int j = 0; j < C; j++) v[j] = w.write[j] * w.value[j * BLOCK + lane];
    for (int d = warp; d < D; d += THREADS / 32) {
        float sum = total * w.S[d * BLOCK + lane];
#pragma unroll
        for (int j = 0; j < C; j++) sum += w.key[d * KEY + j] * v[j];
        w.S[d * BLOCK + lane] = sum;
    }
}

__device__ __forceinline__ void general_piece(const decay_cut &x, int blocks, int64_t *n, int *p, int *h, int *block)
{
    int64_t i = blockIdx.x;
    *block = (int)(i % blocks);
    i /= blocks;
    *h = (int)(i % x.Hv);
    i /= x.Hv;
    *p = (int)(i % x.P);
    *n = i / x.P;
}

__global__ __launch_bounds__(THREADS) void decay_general_states(const __grid_constant__ decay_cut x, const __grid_constant__ decay_states a,
                                                                int blocks)
{
    extern __shared__ __align__(16) float memory[];
    const general_tile w = general_carve(memory, a.K);
    int64_t n;
    int p, h, block;
    decay_place at;
    general_piece(x, blocks, &n, &p, &h, &block);
    if (!decay_find(x, n, p, &at) || (a.reverse ? at.begins : at.ends)) return;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = block * BLOCK;
    for (int i = (int)threadIdx.x; i < a.K * BLOCK; i += THREADS) w.S[i] = 0.0f;
    const int64_t chunks = (at.last - at.first + C - 1) / C;
    double all = 0;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t t = at.first + (a.reverse ? chunks - 1 - c : c) * C;
        const int len = (int)(at.last - t < C ? at.last - t : C);
        general_factors(x, w, t, len, h, a.reverse);
        general_load(x, w, a.key, a.value, a.K, first, a.W, t, len, h);
        for (int j = 0; j < C; j++) all += w.gate[j];
        __syncthreads();
        general_write(w, a.K);
    }
    const int64_t slot = at.slot * x.Hv + h;
    if (threadIdx.x == 0 && block == 0) a.decay[slot] = exp2f((float)(all * DECAY_LOG2E));
    if (first + lane < a.W)
        for (int k = warp; k < a.K; k += THREADS / 32) a.X[(slot * a.K + k) * a.W + first + lane] = w.S[k * BLOCK + lane];
}

/* Where element (d,e) of a pass's state stands: k and w of S [K][W]. */
__device__ __forceinline__ float start_at(const decay_pass &a, const decay_cut &x, const decay_place &at, int h, int d, int e)
{
    const int k = a.transposed ? e : d, w = a.transposed ? d : e;
    if (a.slots) return a.slots[((at.slot * x.Hv + h) * a.K + k) * a.W + w];
    const int64_t i = (at.n * x.Hv + h) * a.K + k;
    if (w < a.V) return a.s ? a.s[i * a.V + w] : 0.0f;
    return a.z ? a.z[i] : 0.0f;
}
__device__ __forceinline__ void end_at(const decay_pass &a, const decay_cut &x, const decay_place &at, int h, int d, int e, float S)
{
    const int k = a.transposed ? e : d, w = a.transposed ? d : e;
    const int64_t i = (at.n * x.Hv + h) * a.K + k;
    if (w < a.V) {
        if (a.s_end) a.s_end[i * a.V + w] = S;
    } else if (a.z_end)
        a.z_end[i] = S;
}

__global__ __launch_bounds__(THREADS) void decay_general_read(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a, int blocks)
{
    extern __shared__ __align__(16) float memory[];
    const general_tile w = general_carve(memory, a.D);
    int64_t n;
    int p, h, block;
    decay_place at;
    general_piece(x, blocks, &n, &p, &h, &block);
    if (!decay_find(x, n, p, &at) || (!a.out && !a.inter && !(a.reverse ? at.begins : at.ends))) return;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = a.begin + block * BLOCK, e = first + lane;
    for (int d = warp; d < a.D; d += THREADS / 32) w.S[d * BLOCK + lane] = e < a.end ? start_at(a, x, at, h, d, e) : 0.0f;
    const int64_t chunks = (at.last - at.first + C - 1) / C;
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t t = at.first + (a.reverse ? chunks - 1 - c : c) * C;
        const int len = (int)(at.last - t < C ? at.last - t : C);
        general_factors(x, w, t, len, h, a.reverse);
        general_load(x, w, a.key, a.value, a.D, first, a.end, t, len, h);
        for (int i = (int)threadIdx.x; i < C * a.D; i += THREADS) {
            const int j = i / a.D, d = i % a.D;
            w.query[j * (a.D + 1) + d] = j < len ? row_at(a.query, x, t + j, h, d) : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < 2; r++) { /* P_ij = s D_ij (query_i . key_j) */
            const int i = (int)threadIdx.x / C + r * 8, j = (int)threadIdx.x % C;
            float sum = 0;
            for (int d = 0; d < a.D; d++) sum += w.query[i * (a.D + 1) + d] * w.key[d * KEY + j];
            const bool seen = a.reverse ? j >= i : j <= i;
            w.P[i * (C + 1) + j] = !seen ? 0.0f : sum * x.scale * (a.reverse ? decay_between(w.b[j], w.b[i]) : decay_between(w.b[i], w.b[j]));
        }
        float acc[4] = { 0 };
        for (int d = 0; d < a.D; d++) {
            const float S = w.S[d * BLOCK + lane];
#pragma unroll
            for (int r = 0; r < 4; r++) acc[r] += w.query[(4 * warp + r) * (a.D + 1) + d] * S;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int i = 4 * warp + r;
            acc[r] *= w.read[i];
            if (a.inter) {
                const float dot = warp_sum(i < len && e < a.end ? acc[r] * row_at(a.dots, x, t + i, h, e) : 0.0f);
                if (lane == 0 && i < len) a.inter[((int64_t)block * x.Hv + h) * x.T + t + i] = dot;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int i = 4 * warp + r;
            for (int j = 0; j < C; j++) acc[r] += w.P[i * (C + 1) + j] * w.value[j * BLOCK + lane];
            if (!a.out || i >= len || e >= a.end) continue;
            const int64_t row = (t + i) * x.Hv + h, o = row * (a.end - a.begin) + e - a.begin;
            const float y = a.den ? acc[r] / a.den[row] : acc[r] + a.add;
            if (a.out_bf16)
                ((bf16 *)a.out)[o] = from_float<bf16>(y);
            else
                ((float *)a.out)[o] = y;
        }
        general_write(w, a.D);
    }
    if (!(a.reverse ? at.begins : at.ends) || e >= a.end) return;
    __syncthreads();
    for (int d = warp; d < a.D; d += THREADS / 32) end_at(a, x, at, h, d, e, w.S[d * BLOCK + lane]);
}

__global__ __launch_bounds__(THREADS) void decay_general_pairs(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pairs a)
{
    extern __shared__ __align__(16) float memory[]; /* q, k [C][K+1], v, do [C][W+1], M [C][C+1], factors */
    general_tile w = general_carve(memory, 0);
    float *q = w.query, *k = q + C * (a.K + 1), *v = k + C * (a.K + 1), *d_o = v + C * (a.W + 1);
    int64_t n;
    int p, h, block;
    decay_place at;
    general_piece(x, 1, &n, &p, &h, &block);
    if (!decay_find(x, n, p, &at)) return;
    for (int64_t t = at.first; t < at.last; t += C) {
        const int len = (int)(at.last - t < C ? at.last - t : C);
        general_factors(x, w, t, len, h, false);
        for (int i = (int)threadIdx.x; i < C * a.K; i += THREADS) {
            const int j = i / a.K, d = i % a.K;
            q[j * (a.K + 1) + d] = j < len ? row_at(a.q, x, t + j, h, d) : 0.0f;
            k[j * (a.K + 1) + d] = j < len ? row_at(a.k, x, t + j, h, d) : 0.0f;
        }
        for (int i = (int)threadIdx.x; i < C * a.W; i += THREADS) {
            const int j = i / a.W, d = i % a.W;
            v[j * (a.W + 1) + d] = j < len ? row_at(a.v, x, t + j, h, d) : 0.0f;
            d_o[j * (a.W + 1) + d] = j < len ? row_at(a.d_o, x, t + j, h, d) : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < 2; r++) {
            const int i = (int)threadIdx.x / C + r * 8, j = (int)threadIdx.x % C;
            float qk = 0, dov = 0;
            for (int d = 0; d < a.K; d++) qk += q[i * (a.K + 1) + d] * k[j * (a.K + 1) + d];
            for (int d = 0; d < a.W; d++) dov += d_o[i * (a.W + 1) + d] * v[j * (a.W + 1) + d];
            w.P[i * (C + 1) + j] = j < i ? x.scale * decay_between(w.b[i], w.b[j]) * qk * dov : 0.0f;
        }
        __syncthreads();
        const int i = (int)threadIdx.x;
        if (i < len) {
            float sum = 0;
            for (int j = i; j < len; j++)
                for (int l = 0; l < i; l++) sum += w.P[j * (C + 1) + l];
            a.intra[(int64_t)h * x.T + t + i] = sum;
        }
    }
}

static void launch(const lnt_cuda *d, const void *kernel, int64_t grid, int threads, size_t shared, void **args)
{
    lnt_cuda *noted = const_cast<lnt_cuda *>(d);
    if (grid <= 0) return;
    if (shared > 48 << 10) lnt_cuda_note(noted, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    lnt_cuda_note(noted, cudaLaunchKernel(kernel, dim3((unsigned)grid), dim3((unsigned)threads), args, shared, d->stream));
}

static int64_t pieces(const decay_cut &x) { return x.N * x.P * x.Hv; }

static void general_states(const decay_cut &x, const decay_states &a, const lnt_cuda *d)
{
    int blocks = (a.W + BLOCK - 1) / BLOCK;
    void *args[] = { (void *)&x, (void *)&a, &blocks };
    launch(d, (const void *)decay_general_states, pieces(x) * blocks, THREADS, general_floats(a.K, false) * 4, args);
}
static void general_read(const decay_cut &x, const decay_pass *passes, int n, const lnt_cuda *d)
{
    for (int i = 0; i < n; i++) {
        int blocks = (passes[i].end - passes[i].begin + BLOCK - 1) / BLOCK;
        void *args[] = { (void *)&x, (void *)&passes[i], &blocks };
        launch(d, (const void *)decay_general_read, pieces(x) * blocks, THREADS, general_floats(passes[i].D, true) * 4, args);
    }
}
static void general_pairs(const decay_cut &x, const decay_pairs &a, const lnt_cuda *d)
{
    void *args[] = { (void *)&x, (void *)&a };
    launch(d, (const void *)decay_general_pairs, pieces(x), THREADS, (general_floats(0, false) + 2 * C * (a.K + a.W + 2)) * 4, args);
}

/* ---- kernels of both sets ----------------------------------------------------------------------------------------------------------- */

/* Slots of a sequence, from end states out of zero to start states: in order of time (against it when `reverse`), start <- decay start + X; nothing
 * follows the last. A thread has L neighbours of [K][W] (4 where W = V); the segments' values are fetched SCAN at a time. */
static constexpr int SCAN = 8, SCAN_THREADS = 128;
template <int L>
__global__ __launch_bounds__(SCAN_THREADS) void decay_scan(const __grid_constant__ decay_cut x, float *X, const float *decay, const float *s,
                                                           const float *z, int K, int V, int W, bool reverse, int blocks)
{
    const int64_t head = blockIdx.x / blocks, n = head / x.Hv, h = head % x.Hv, len = x.cu[n + 1] - x.cu[n];
    const int state = K * W, i = ((int)(blockIdx.x % blocks) * SCAN_THREADS + (int)threadIdx.x) * L;
    if (i >= state) return;
    const int P = len ? (int)((len + x.segment - 1) / x.segment) : 1, k = i / W, w = i % W;
    const int64_t slot = x.cu[n] / x.segment + n;
    float start[L] = {};
    if (w < V) {
        if (s) load_pack<L>(start, s + (head * K + k) * V + w);
    } else if (z)
        start[0] = z[head * K + k];
    for (int p0 = 0; p0 < P; p0 += SCAN) {
        float next[SCAN][L], fade[SCAN];
#pragma unroll
        for (int r = 0; r < SCAN; r++)
            if (p0 + r < P - 1) {
                const int64_t at = (slot + (reverse ? P - 1 - p0 - r : p0 + r)) * x.Hv + h;
                load_pack<L>(next[r], X + at * state + i);
                fade[r] = decay[at];
            }
#pragma unroll
        for (int r = 0; r < SCAN; r++)
            if (p0 + r < P) {
                store_pack<L>(X + ((slot + (reverse ? P - 1 - p0 - r : p0 + r)) * x.Hv + h) * state + i, start);
                if (p0 + r < P - 1)
#pragma unroll
                    for (int j = 0; j < L; j++) start[j] = fade[r] * start[j] + next[r][j];
            }
    }
}

/* dnum = do / den over o, in place; dden = -(do . o) / den. A warp a row of [T*Hv][V]. */
__global__ __launch_bounds__(256) void decay_divide(float *o, float *dden, const float *den, const void *d_o, int type_bf16, int64_t rows, int V)
{
    const int64_t row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= rows) return;
    const float by = 1.0f / den[row];
    float dot = 0;
    for (int e = (int)threadIdx.x % 32; e < V; e += 32) {
        const int64_t i = row * V + e;
        const float y = !d_o ? 0.0f : type_bf16 ? to_float(((const bf16 *)d_o)[i]) : ((const float *)d_o)[i];
        dot += y * o[i];
        o[i] = y * by;
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) dden[row] = -dot * by;
}

/* out [rows,Hq,K] = sum over the value heads that share a query-key head, in their order. */
template <typename T> __global__ __launch_bounds__(256) void decay_sum_heads(T *out, const float *x, int64_t n, int group, int K)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
        const int64_t row = i / K, k = i % K;
        float sum = 0;
        for (int g = 0; g < group; g++) sum += x[(row * group + g) * K + k];
        out[i] = from_float<T>(sum);
    }
}

/* The gates' gradient of a segment. Token i of a chunk with start state S and outer gradient dS' stands between the writers before it and the readers
 * from it on; rule 0.6 with what would cancel left out:
 *   dg_i = e^{b_n} <S,dS'> + sum_{l<i} writes_l + sum_{j>=i} reads_j + intra_i,    reads = q . dq through S, writes = k . dk through dS'
 * and <S,dS> = e^{b_n} <S,dS'> + sum reads, <S',dS'> = e^{b_n} <S,dS'> + sum writes lead from chunk to chunk, from the segment's own <S,dS> on.
 * Rounded operands make each dot a little wrong, and what is wrong stays, where the true <S,dS'> would fade: over 8192 tokens their sum was off by a
 * tenth. So what is missing at the segment's end, where <S,dS> is known again, is spread over the chunks by the number of dots behind each. */
struct decay_gates {
    const float *S, *dS;           /* slots [slots,Hv,K,W]; NULL: one segment a sequence */
    const float *s, *z, *ds, *dz;  /* start of the sequences and its gradient; NULL: zeros */
    const float *reads, *writes;   /* [parts,Hv,T] */
    const float *intra;            /* [Hv,T]; NULL: zeros */
    int parts, chunk, K, V, W;
    bool end_known;                /* the last state has no gradient */
    float *dg;                     /* [T,Hv] or NULL */
    float *sums;                   /* [slots,Hv] or NULL: sum over the segment */
};
static constexpr int GATES_THREADS = 256, GATES_CHUNKS = LNT_DECAY_CHUNKS;

__device__ static float gates_block_sum(float x, float *shared)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < GATES_THREADS / 32; i++) x += shared[i];
    return x;
}
__device__ static float gates_dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    if (x && y)
#pragma unroll 16
        for (int64_t i = threadIdx.x; i < n; i += GATES_THREADS) sum += x[i] * y[i];
    return sum;
}

__global__ __launch_bounds__(GATES_THREADS) void decay_gates_gradient(const __grid_constant__ decay_cut x, const __grid_constant__ decay_gates a)
{
    __shared__ float partial[GATES_THREADS / 32], reads[GATES_CHUNKS], writes[GATES_CHUNKS], base[GATES_CHUNKS];
    __shared__ bool dead[GATES_CHUNKS];
    const int64_t n = blockIdx.x / x.Hv / x.P;
    const int h = (int)(blockIdx.x % x.Hv), p = (int)(blockIdx.x / x.Hv % x.P), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    decay_place at;
    if (!decay_find(x, n, p, &at)) return;
    float sum = 0;
    if (p) {
        const int64_t state = (int64_t)a.K * a.W;
        sum = gates_dot(a.S + (at.slot * x.Hv + h) * state, a.dS + ((at.slot - 1) * x.Hv + h) * state, state);
    } else {
        const int64_t i = (n * x.Hv + h) * a.K;
        if (a.s) sum = gates_dot(a.s + i * a.V, a.ds + i * a.V, (int64_t)a.K * a.V);
        if (a.z) sum += gates_dot(a.z + i, a.dz + i, a.K);
    }
    const float anchor = gates_block_sum(sum, partial);
    sum = 0;
    if (!at.ends) {
        const int64_t state = (int64_t)a.K * a.W;
        sum = gates_dot(a.S + ((at.slot + 1) * x.Hv + h) * state, a.dS + (at.slot * x.Hv + h) * state, state);
    }
    const float end = gates_block_sum(sum, partial);
    const int chunks = (int)((at.last - at.first + a.chunk - 1) / a.chunk);
    /* A lane has rows 2 lane and 2 lane + 1 of a chunk; chunks are even and no longer than 64. */
    for (int c = warp; c < chunks; c += GATES_THREADS / 32) {
        float r = 0, w = 0, g = 0;
        for (int j = 0; j < 2; j++) {
            const int64_t t = at.first + c * a.chunk + 2 * lane + j;
            if (2 * lane >= a.chunk || t >= at.last) continue;
            for (int i = 0; i < a.parts; i++) {
                r += a.reads[((int64_t)i * x.Hv + h) * x.T + t];
                w += a.writes[((int64_t)i * x.Hv + h) * x.T + t];
            }
            g += decay_gate(x, t, h);
        }
        r = warp_sum(r);
        w = warp_sum(w);
        g = warp_sum(g);
        if (lane == 0) {
            reads[c] = r;
            writes[c] = w;
            dead[c] = exp2f(g * (float)DECAY_LOG2E) == 0.0f;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float through = anchor;
        int dots = 0;
        for (int c = 0; c < chunks; c++) {
            base[c] = dead[c] ? 0.0f : through - reads[c];
            through = base[c] + writes[c];
            dots = (dead[c] ? 0 : dots + 1) + 1;
        }
        const float miss = at.ends && !a.end_known ? 0.0f : (through - end) / (float)dots;
        for (int c = chunks - 1; c >= 0 && !dead[c]; c--, dots -= 2) base[c] -= miss * (float)(dots - 1);
    }
    __syncthreads();
    float total = 0;
    for (int c = warp; c < chunks; c += GATES_THREADS / 32) {
        float r[2] = { 0 }, w[2] = { 0 };
        for (int j = 0; j < 2; j++) {
            const int64_t t = at.first + c * a.chunk + 2 * lane + j;
            if (2 * lane >= a.chunk || t >= at.last) continue;
            for (int i = 0; i < a.parts; i++) {
                r[j] += a.reads[((int64_t)i * x.Hv + h) * x.T + t];
                w[j] += a.writes[((int64_t)i * x.Hv + h) * x.T + t];
            }
        }
        float before = w[0] + w[1], after = r[0] + r[1]; /* inclusive sums over lanes, from the left and from the right */
        for (int o = 1; o < 32; o <<= 1) {
            const float l = __shfl_up_sync(~0u, before, o), u = __shfl_down_sync(~0u, after, o);
            if (lane >= o) before += l;
            if (lane + o < 32) after += u;
        }
        const float left = __shfl_up_sync(~0u, before, 1), right = __shfl_down_sync(~0u, after, 1);
        const float writes_before[2] = { lane ? left : 0.0f, (lane ? left : 0.0f) + w[0] };
        const float reads_after[2] = { after, (lane < 31 ? right : 0.0f) + r[1] };
        for (int j = 0; j < 2; j++) {
            const int64_t t = at.first + c * a.chunk + 2 * lane + j;
            if (2 * lane >= a.chunk || t >= at.last) continue;
            const float g = decay_gate(x, t, h);
            const float dg = g == DECAY_FLOOR ? 0.0f : base[c] + writes_before[j] + reads_after[j] + (a.intra ? a.intra[(int64_t)h * x.T + t] : 0.0f);
            if (a.dg) a.dg[t * x.Hv + h] = dg;
            total += dg;
        }
    }
    total = gates_block_sum(total, partial);
    if (a.sums && threadIdx.x == 0) a.sums[at.slot * x.Hv + h] = total;
}

/* dg_head [Hv]: sums of all segments, a warp a head. */
__global__ __launch_bounds__(32) void decay_head_gates(const __grid_constant__ decay_cut x, const float *sums, float *dg_head)
{
    const int h = (int)blockIdx.x;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < x.N * x.P; i += 32) {
        decay_place at;
        if (decay_find(x, i / x.P, (int)(i % x.P), &at)) sum += sums[at.slot * x.Hv + h];
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) dg_head[h] = sum;
}

/* ---- forward and backward ----------------------------------------------------------------------------------------------------------- */

struct decay_work {
    float *S, *dS;               /* slots [slots,Hv,K,W], when a sequence has several segments */
    float *decay;                /* [slots,Hv] */
    float *den, *dnum, *dden;    /* normalize: [T,Hv], [T,Hv,V], [T,Hv] */
    float *reads, *writes, *intra, *sums, *ds, *dz; /* gates: [parts,Hv,T] twice, [Hv,T], [slots,Hv], [N,Hv,K,V], [N,Hv,K] */
    float *dq, *dk;              /* shared heads: [T,Hv,K] */
};

struct decay_arena {
    char *base;
    size_t used;
    float *floats(int64_t n)
    {
        float *p = base ? (float *)(base + used) : NULL;
        used += ((size_t)n * sizeof(float) + 255) / 256 * 256;
        return p;
    }
};

static int segments_of(const lnt_recur_args *a, int64_t segment)
{
    const int64_t longest = lnt_recur_longest(a);
    return longest ? (int)((longest + segment - 1) / segment) : 1;
}

static size_t carve(const lnt_recur_args *a, bool backward, int chunk, void *base, decay_work *w)
{
    const int64_t segment = lnt_decay_segment(a, backward, chunk, 1), slots = a->tokens / segment + a->sequences;
    const int64_t heads = a->Hv, T = a->tokens, W = a->V + (a->normalize != 0), state = (int64_t)a->K * W;
    const bool several = segments_of(a, segment) > 1, gated = lnt_recur_find(a->op)->gate != LNT_GATE_NONE;
    decay_arena m = { (char *)base, 0 };
    *w = {};
    if (several) {
        w->S = m.floats(slots * heads * state);
        w->decay = m.floats(slots * heads);
        if (backward) w->dS = m.floats(slots * heads * state);
    }
    if (a->normalize) w->den = m.floats(T * heads);
    if (!backward) return m.used;
    if (a->normalize) {
        w->dnum = m.floats(T * heads * a->V);
        w->dden = m.floats(T * heads);
    }
    if (gated) {
        const int64_t parts = (a->K + BLOCK - 1) / BLOCK;
        w->reads = m.floats(parts * heads * T);
        w->writes = m.floats(parts * heads * T);
        w->intra = m.floats(heads * T);
        w->sums = m.floats(slots * heads);
        w->ds = m.floats(a->sequences * heads * a->K * a->V);
        w->dz = m.floats(a->sequences * heads * a->K);
    }
    if (a->Hq < a->Hv) {
        w->dq = m.floats(T * heads * a->K);
        w->dk = m.floats(T * heads * a->K);
    }
    return m.used;
}

size_t lnt_decay_cuda_bytes(const lnt_recur_args *a, bool backward, int chunk)
{
    decay_work w;
    return carve(a, backward, chunk, NULL, &w);
}

/* A call as both directions see it. */
struct decay_call {
    const lnt_recur_args *a;
    const lnt_cuda *d;
    const decay_kernels *k;
    decay_cut cut;
    decay_work w;
    decay_rows q, key, v, d_o;
    int W;
    bool bf16;
};

static decay_call describe(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, bool backward)
{
    decay_call x = {};
    x.a = a;
    x.d = (const lnt_cuda *)d;
    x.k = &k;
    const int64_t segment = lnt_decay_segment(a, backward, k.chunk, 1);
    x.cut = { a->cu_seqlens_device, a->sequences, a->tokens, segment, segments_of(a, segment), a->Hv, (const float *)a->g, (const float *)a->g_head,
              (float)a->scale };
    carve(a, backward, k.chunk, a->workspace, &x.w);
    x.bf16 = a->dtype == LINNET_BF16;
    x.q = { a->q, NULL, x.bf16, a->Hq, a->K };
    x.key = { a->k, NULL, x.bf16, a->Hq, a->K };
    x.v = { a->v, NULL, x.bf16, a->Hv, a->V };
    x.d_o = { a->do_, NULL, x.bf16, a->Hv, a->V };
    if (a->normalize) x.d_o = { x.w.dnum, x.w.dden, 0, a->Hv, a->V };
    x.W = a->V + (a->normalize != 0);
    return x;
}

void lnt_decay_scan(const decay_cut &x, float *S, const float *decay, const float *s0, const float *z0, int K, int V, int W, bool reverse,
                    const lnt_cuda *d)
{
    const bool quads = W % 4 == 0 && W == V && (uintptr_t)s0 % 16 == 0;
    int each = SCAN_THREADS * (quads ? 4 : 1), blocks = (K * W + each - 1) / each;
    void *args[] = { (void *)&x, &S, (void *)&decay, (void *)&s0, (void *)&z0, &K, &V, &W, &reverse, &blocks };
    launch(d, quads ? (const void *)decay_scan<4> : (const void *)decay_scan<1>, x.N * x.Hv * blocks, SCAN_THREADS, 0, args);
}

static void put_starts(const decay_call &x, bool reverse)
{
    if (x.cut.P == 1) return;
    const lnt_recur_args *a = x.a;
    float *X = reverse ? x.w.dS : x.w.S;
    const float *s = (const float *)(reverse ? a->dsT : a->s0), *z = (const float *)(reverse ? a->dzT : a->z0);
    x.k->states(x.cut, { reverse ? x.q : x.key, reverse ? x.d_o : x.v, a->K, x.W, reverse, X, x.w.decay }, x.d);
    lnt_decay_scan(x.cut, X, x.w.decay, s, z, a->K, a->V, x.W, reverse, x.d);
}

static decay_pass pass_of(const decay_call &x, decay_rows query, decay_rows key, decay_rows value, bool reverse, bool transposed, int end)
{
    const lnt_recur_args *a = x.a;
    decay_pass p = {};
    p.query = query;
    p.key = key;
    p.value = value;
    p.D = transposed ? x.W : a->K;
    p.E = transposed ? a->K : x.W;
    p.end = end;
    p.reverse = reverse;
    p.transposed = transposed;
    p.slots = x.cut.P == 1 ? NULL : reverse ? x.w.dS : x.w.S;
    p.s = (const float *)(reverse ? a->dsT : a->s0);
    p.z = (const float *)(reverse ? a->dzT : a->z0);
    p.K = a->K;
    p.V = a->V;
    p.W = x.W;
    p.out_bf16 = x.bf16;
    return p;
}

/* o, or float32 o into dnum's place; the denominators before. */
static void put_read(const decay_call &x, void *o, int o_bf16, bool ends)
{
    const lnt_recur_args *a = x.a;
    if (a->normalize) {
        decay_pass den = pass_of(x, x.q, x.key, x.v, false, false, a->V + 1);
        den.begin = a->V;
        den.out = x.w.den;
        den.out_bf16 = 0;
        den.add = (float)a->eps;
        den.z_end = ends ? (float *)a->zT : NULL;
        x.k->read(x.cut, &den, 1, x.d);
    }
    decay_pass p = pass_of(x, x.q, x.key, x.v, false, false, a->V);
    p.out = o;
    p.out_bf16 = o_bf16;
    p.den = x.w.den;
    p.s_end = ends ? (float *)a->sT : NULL;
    x.k->read(x.cut, &p, 1, x.d);
}

void lnt_decay_cuda_forward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k)
{
    const decay_call x = describe(a, d, k, false);
    put_starts(x, false);
    put_read(x, a->o, x.bf16, true);
}

static void put_gates(const decay_call &x, const decay_pass &dk, const decay_shared &with)
{
    const lnt_recur_args *a = x.a;
    const int chunk = x.k->chunk;
    decay_rows less_v = x.v, less_do = x.d_o;
    less_v.p = with.less_v;
    less_do.p = with.less_do;
    if (!with.no_pairs) x.k->pairs(x.cut, { x.q, x.key, x.v, x.d_o, less_v, less_do, a->K, x.W, x.w.intra }, x.d);
    decay_gates g = {};
    g.S = x.w.S;
    g.dS = x.w.dS;
    g.s = (const float *)a->s0;
    g.z = (const float *)a->z0;
    g.ds = dk.s_end;
    g.end_known = !a->dsT && !a->dzT;
    g.dz = dk.z_end;
    g.reads = x.w.reads;
    g.writes = x.w.writes;
    g.intra = with.no_pairs ? NULL : x.w.intra;
    g.parts = x.k->parts ? x.k->parts : (a->K + BLOCK - 1) / BLOCK;
    g.chunk = chunk;
    g.K = a->K;
    g.V = a->V;
    g.W = x.W;
    g.dg = (float *)a->dg;
    g.sums = x.w.sums;
    void *args[] = { (void *)&x.cut, &g };
    launch(x.d, (const void *)decay_gates_gradient, pieces(x.cut), GATES_THREADS, 0, args);
    if (!a->dg_head) return;
    float *dg_head = (float *)a->dg_head;
    void *sum_args[] = { (void *)&x.cut, (void *)&x.w.sums, &dg_head };
    launch(x.d, (const void *)decay_head_gates, a->Hv, 32, 0, sum_args);
}

static void put_sum_heads(const decay_call &x, void *out, const float *parts)
{
    const lnt_recur_args *a = x.a;
    if (!out || !parts) return;
    int64_t n = a->tokens * a->Hq * a->K, grid = lnt_div_up(n, 256);
    int group = a->Hv / a->Hq, K = a->K;
    void *args[] = { &out, (void *)&parts, &n, &group, &K };
    launch(x.d, x.bf16 ? (const void *)decay_sum_heads<bf16> : (const void *)decay_sum_heads<float>, grid < 65536 ? grid : 65536, 256, 0, args);
}

void lnt_decay_cuda_backward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, const decay_shared &with)
{
    const decay_call x = describe(a, d, k, true);
    const bool gates = (a->dg || a->dg_head) && a->sequences, shared = a->Hq < a->Hv;
    if (!with.has_starts) put_starts(x, false);
    if (a->normalize) {
        put_read(x, x.w.dnum, 0, false);
        int64_t rows = a->tokens * a->Hv;
        int V = a->V, type = x.bf16;
        const void *d_o = a->do_;
        void *args[] = { (void *)&x.w.dnum, (void *)&x.w.dden, (void *)&x.w.den, &d_o, &type, &rows, &V };
        launch(x.d, (const void *)decay_divide, lnt_div_up(rows, 8), 256, 0, args);
    }
    put_starts(x, true);
    decay_pass dq = pass_of(x, x.d_o, x.v, x.key, false, true, a->K), dv = pass_of(x, x.key, x.q, x.d_o, true, false, a->V),
               dk = pass_of(x, x.v, x.d_o, x.q, true, true, a->K), passes[3];
    dq.out = a->dq && shared ? x.w.dq : a->dq;
    dk.out = a->dk && shared ? x.w.dk : a->dk;
    if (shared) dq.out_bf16 = dk.out_bf16 = 0;
    dv.out = a->dv;
    dk.s_end = a->ds0 || !gates || !a->s0 ? (float *)a->ds0 : x.w.ds;
    dk.z_end = a->dz0 || !gates || !a->z0 ? (float *)a->dz0 : x.w.dz;
    if (gates) {
        dq.dots = x.q;
        dq.inter = x.w.reads;
        dk.dots = x.key;
        dk.inter = x.w.writes;
    }
    int n = 0;
    if (dk.out || dk.s_end || dk.z_end || gates) passes[n++] = dk;
    if (dv.out) passes[n++] = dv;
    if (dq.out || gates) passes[n++] = dq;
    if (n) x.k->read(x.cut, passes, n, x.d);
    if (shared) {
        put_sum_heads(x, a->dq, x.w.dq);
        put_sum_heads(x, a->dk, x.w.dk);
    }
    if (gates) put_gates(x, dk, with);
    if (a->dg_head && !gates) lnt_cuda_note((lnt_cuda *)x.d, cudaMemsetAsync(a->dg_head, 0, (size_t)a->Hv * sizeof(float), x.d->stream));
}

static const char *too_wide(const lnt_recur_args *a, bool backward)
{
    return a->K > WIDEST || a->V > WIDEST ? "K and V of at most 256 are offered" : NULL;
}

static const decay_kernels general = { C, 0, general_states, general_read, general_pairs };
static size_t general_workspace(const lnt_recur_args *a, bool backward, int threads) { return lnt_decay_cuda_bytes(a, backward, C); }
static void general_forward(const lnt_recur_args *a, const lnt_device *d) { lnt_decay_cuda_forward(a, d, general); }
static void general_backward(const lnt_recur_args *a, const lnt_device *d) { lnt_decay_cuda_backward(a, d, general, {}); }

/* Segments of 64: the scan leaves what is wanted. */
size_t lnt_decay_starts_bytes(const lnt_recur_args *a)
{
    return (size_t)(a->tokens / LNT_DECAY_STARTS + a->sequences) * (size_t)a->Hv * sizeof(float);
}
void lnt_decay_starts(const lnt_recur_args *a, const lnt_device *d, float *S)
{
    const lnt_cuda *on = (const lnt_cuda *)d;
    const decay_cut cut = { a->cu_seqlens_device, a->sequences, a->tokens, LNT_DECAY_STARTS, segments_of(a, LNT_DECAY_STARTS), a->Hv,
                            (const float *)a->g, (const float *)a->g_head, (float)a->scale };
    const int wide = a->dtype == LINNET_BF16;
    const decay_rows key = { a->k, NULL, wide, a->Hq, a->K }, value = { a->v, NULL, wide, a->Hv, a->V };
    float *decay = (float *)a->workspace;
    general_states(cut, { key, value, a->K, a->V, false, S, decay }, on);
    lnt_decay_scan(cut, S, decay, (const float *)a->s0, NULL, a->K, a->V, a->V, false, on);
    if (!a->sT) return;
    decay_pass end = {};
    end.query = end.key = key;
    end.value = value;
    end.D = end.K = a->K;
    end.E = end.V = end.W = end.end = a->V;
    end.slots = S;
    end.s_end = (float *)a->sT;
    general_read(cut, &end, 1, on);
}

extern "C" {
extern const lnt_recur_impl lnt_decay_chunk_cuda, lnt_decay_recurrent_cuda;
const lnt_recur_impl lnt_decay_chunk_cuda = {
    .name = "chunk-cuda",
    .form = LINNET_FORM_CHUNK,
    .device = LNT_DEVICE_CUDA,
    .needs = 80,
    .declines = too_wide,
    .workspace = general_workspace,
    .forward = NULL,
    .backward = NULL,
    .put_forward = general_forward,
    .put_backward = general_backward,
};
}

/* ---- token by token ----------------------------------------------------------------------------------------------------------------- */

/* A CTA has 32 columns of a value head's state in registers: a warp 4 rows at a time, 8 lanes a row, 4 columns a lane; 8 warps take rows 32 apart.
 * Every byte of the state is read and written once whatever the number of tokens. */
static constexpr int STEP_THREADS = 256, STEP_ROWS = WIDEST / 32;

/* ROWS: of a thread, 32 apart: K / 32 or more. */
template <typename T, bool QUADS, int ROWS>
__global__ __launch_bounds__(STEP_THREADS, ROWS <= 4 ? 5 : 3) void decay_step(const __grid_constant__ decay_cut x, const T *q, const T *k, const T *v,
                                                                              const float *s0, float *sT, T *o, const float *den, int Hq, int K,
                                                                              int V, int blocks)
{
    __shared__ float4 sums[2][STEP_THREADS / 32][8];
    const int64_t head = blockIdx.x / blocks, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, hq = (int)((int64_t)h * Hq / x.Hv);
    const int e = (int)(blockIdx.x % blocks) * 32 + lane % 8 * 4, row = warp * 4 + lane / 8;
    float S[ROWS][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int d = row + 32 * r;
        if (d >= K || !s0) continue;
        const float *from = s0 + (head * K + d) * V + e;
        if (QUADS) {
            if (e < V) load_pack<4>(S[r], from);
        } else
            for (int j = 0; j < 4; j++)
                if (e + j < V) S[r][j] = from[j];
    }
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float less = expm1f(decay_gate(x, t, h)); /* e^g - 1: a small gate keeps its accuracy over the many tokens that it lets through */
        const T *qt = q + (t * Hq + hq) * K, *kt = k + (t * Hq + hq) * K, *vt = v + (t * x.Hv + h) * V;
        float y[4], sum[4] = { 0 };
        for (int j = 0; j < 4; j++) y[j] = e + j < V ? to_float(vt[e + j]) : 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int d = row + 32 * r;
            if (d >= K) continue;
            const float kd = to_float(kt[d]), qd = to_float(qt[d]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                S[r][j] = fmaf(kd, y[j], fmaf(less, S[r][j], S[r][j]));
                sum[j] += qd * S[r][j];
            }
        }
        const int side = (int)(t & 1);
        for (int j = 0; j < 4; j++) {
            sum[j] += __shfl_xor_sync(~0u, sum[j], 8);
            sum[j] += __shfl_xor_sync(~0u, sum[j], 16);
        }
        if (lane < 8) sums[side][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        const int column = e - lane % 8 * 4 + lane;
        if (warp == 0 && column < V) {
            float all = 0;
            for (int w = 0; w < STEP_THREADS / 32; w++) all += ((const float *)sums[side][w])[lane];
            all *= x.scale;
            o[(t * x.Hv + h) * V + column] = from_float<T>(den ? all / den[t * x.Hv + h] : all);
        }
    }
    if (!sT) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int d = row + 32 * r;
        if (d >= K) continue;
        float *to = sT + (head * K + d) * V + e;
        if (QUADS) {
            if (e < V) store_pack<4>(to, S[r]);
        } else
            for (int j = 0; j < 4; j++)
                if (e + j < V) to[j] = S[r][j];
    }
}

/* den = s z . q + eps and the end of z, a warp a value head. */
template <typename T>
__global__ __launch_bounds__(32) void decay_step_den(const __grid_constant__ decay_cut x, const T *q, const T *k, const float *z0, float *zT,
                                                     float *den, float eps, int Hq, int K)
{
    const int64_t head = blockIdx.x, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x, hq = (int)((int64_t)h * Hq / x.Hv);
    float z[STEP_ROWS];
    for (int r = 0; r < STEP_ROWS; r++) z[r] = z0 && lane + 32 * r < K ? z0[head * K + lane + 32 * r] : 0.0f;
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float less = expm1f(decay_gate(x, t, h));
        float sum = 0;
        for (int r = 0; r < STEP_ROWS; r++) {
            const int d = lane + 32 * r;
            if (d >= K) continue;
            z[r] = fmaf(less, z[r], z[r]) + to_float(k[(t * Hq + hq) * K + d]);
            sum += z[r] * to_float(q[(t * Hq + hq) * K + d]);
        }
        sum = warp_sum(sum);
        if (lane == 0) den[t * x.Hv + h] = x.scale * sum + eps;
    }
    for (int r = 0; r < STEP_ROWS; r++)
        if (zT && lane + 32 * r < K) zT[head * K + lane + 32 * r] = z[r];
}

static size_t step_workspace(const lnt_recur_args *a, bool backward, int threads)
{
    return a->normalize ? (size_t)a->tokens * (size_t)a->Hv * sizeof(float) : 0;
}

template <typename T> static void step(const lnt_recur_args *a, const lnt_cuda *d)
{
    decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, 1, 1, a->Hv, (const float *)a->g, (const float *)a->g_head, (float)a->scale };
    float *den = a->normalize ? (float *)a->workspace : NULL, *sT = (float *)a->sT, *zT = (float *)a->zT, eps = (float)a->eps;
    const float *s0 = (const float *)a->s0, *z0 = (const float *)a->z0;
    int Hq = a->Hq, K = a->K, V = a->V, blocks = (V + 31) / 32;
    const int64_t heads = a->sequences * a->Hv;
    if (den) {
        void *args[] = { &x, (void *)&a->q, (void *)&a->k, &z0, &zT, &den, &eps, &Hq, &K };
        launch(d, (const void *)decay_step_den<T>, heads, 32, 0, args);
    }
    const bool quads = V % 4 == 0 && ((uintptr_t)s0 | (uintptr_t)sT) % 16 == 0;
    void *args[] = { &x, (void *)&a->q, (void *)&a->k, (void *)&a->v, &s0, &sT, (void *)&a->o, &den, &Hq, &K, &V, &blocks };
    const void *narrow = quads ? (const void *)decay_step<T, true, 4> : (const void *)decay_step<T, false, 4>;
    const void *wide = quads ? (const void *)decay_step<T, true, STEP_ROWS> : (const void *)decay_step<T, false, STEP_ROWS>;
    launch(d, K <= 128 ? narrow : wide, heads * blocks, STEP_THREADS, 0, args);
}
static void step_forward(const lnt_recur_args *a, const lnt_device *d) { LNT_BY_TYPE(a->dtype, T, step<T>(a, (const lnt_cuda *)d)); }

extern "C" {
const lnt_recur_impl lnt_decay_recurrent_cuda = {
    .name = "recurrent-cuda",
    .form = LINNET_FORM_RECURRENT,
    .device = LNT_DEVICE_CUDA,
    .needs = 80,
    .declines = too_wide,
    .workspace = step_workspace,
    .forward = NULL,
    .backward = NULL,
    .put_forward = step_forward,
    .put_backward = NULL,
};
}
