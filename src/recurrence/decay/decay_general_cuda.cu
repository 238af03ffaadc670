/* The decay core on any GPU: kernels in float32 arithmetic, for any row type and as many columns as shared memory holds. Equations and roles are in
 * README.md. */
#include "recurrence/decay/decay_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

static constexpr int C = 16;        /* chunk */
static constexpr int THREADS = 128; /* warp w has rows 4w .. 4w+3 of a chunk */

__device__ __forceinline__ float row_at(const decay_rows &x, const decay_cut &c, int64_t t, int h, int j)
{
    if (j == x.width) return x.extra ? x.extra[t * c.Hv + h] : 1.0f;
    if (!x.p) return 0.0f;
    const int64_t i = (t * x.heads + (int64_t)h * x.heads / c.Hv) * x.width + j;
    return x.bf16 ? to_float(((const bf16 *)x.p)[i]) : ((const float *)x.p)[i];
}

struct general_tile {
    float *S;     /* [D][DECAY_BLOCK] */
    float *query; /* [C][D+1] */
    float *key;   /* [D][KEY]: transposed; 20 floats a row keep float4 aligned and meet 4 lanes a bank */
    float *value; /* [C][DECAY_BLOCK] */
    float *P;     /* [C][C+1] */
    float *gate, *read, *write; /* [C], total after them */
    lnt_gate_sum *reader, *writer; /* [C] logs of decays and factors up to a row that reads, and to one that has written */
};
static constexpr int KEY = 20;

static size_t general_floats(int D, bool query)
{
    return (size_t)D * (DECAY_BLOCK + KEY) + C * DECAY_BLOCK + (query ? C * (D + 1) : 0) + C * (C + 1) + 8 * C + 4;
}

static size_t pairs_floats(int K, int W) { return general_floats(0, false) + 2 * C * (K + W + 2); }

__device__ __forceinline__ general_tile general_carve(float *base, int D)
{
    general_tile w;
    w.key = base;
    w.S = w.key + D * KEY;
    w.value = w.S + D * DECAY_BLOCK;
    w.reader = (lnt_gate_sum *)(w.value + C * DECAY_BLOCK);
    w.writer = w.reader + C;
    w.gate = (float *)(w.writer + C);
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
        const double reads = i < n ? decay_reads<true>(x, t + i, h) : 0.0, writes = i < n ? decay_writes(x, t + i, h) : 0.0;
        w.reader[i] = lnt_gate_split(upto * LNT_LOG2E + reads);
        w.writer[i] = lnt_gate_split(upto * LNT_LOG2E - writes);
        const float in = x.scale * exp2f((float)(upto * LNT_LOG2E + reads)), out = exp2f((float)((all - upto) * LNT_LOG2E + writes));
        w.read[i] = reverse ? out : in;
        w.write[i] = reverse ? in : out;
        if (i == 0) w.write[C] = exp2f((float)(all * LNT_LOG2E));
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
    for (int i = (int)threadIdx.x; i < C * DECAY_BLOCK; i += THREADS) {
        const int j = i / DECAY_BLOCK, e = first + i % DECAY_BLOCK;
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
    for (int j = 0; j < C; j++) v[j] = w.write[j] * w.value[j * DECAY_BLOCK + lane];
    for (int d = warp; d < D; d += THREADS / 32) {
        float sum = total * w.S[d * DECAY_BLOCK + lane];
#pragma unroll
        for (int j = 0; j < C; j++) sum += w.key[d * KEY + j] * v[j];
        w.S[d * DECAY_BLOCK + lane] = sum;
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
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = block * DECAY_BLOCK;
    for (int i = (int)threadIdx.x; i < a.K * DECAY_BLOCK; i += THREADS) w.S[i] = 0.0f;
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
    if (threadIdx.x == 0 && block == 0) a.decay[slot] = exp2f((float)(all * LNT_LOG2E));
    if (first + lane < a.W)
        for (int k = warp; k < a.K; k += THREADS / 32) a.X[(slot * a.K + k) * a.W + first + lane] = w.S[k * DECAY_BLOCK + lane];
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
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = a.begin + block * DECAY_BLOCK, e = first + lane;
    for (int d = warp; d < a.D; d += THREADS / 32) w.S[d * DECAY_BLOCK + lane] = e < a.end ? start_at(a, x, at, h, d, e) : 0.0f;
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
            w.P[i * (C + 1) + j] = !seen ? 0.0f : sum * x.scale *
                                       (a.reverse ? lnt_gate_between(w.reader[j], w.writer[i]) : lnt_gate_between(w.reader[i], w.writer[j]));
        }
        float acc[4] = { 0 };
        for (int d = 0; d < a.D; d++) {
            const float S = w.S[d * DECAY_BLOCK + lane];
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
            for (int j = 0; j < C; j++) acc[r] += w.P[i * (C + 1) + j] * w.value[j * DECAY_BLOCK + lane];
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
    for (int d = warp; d < a.D; d += THREADS / 32) end_at(a, x, at, h, d, e, w.S[d * DECAY_BLOCK + lane]);
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
            w.P[i * (C + 1) + j] = j < i ? x.scale * lnt_gate_between(w.reader[i], w.writer[j]) * qk * dov : 0.0f;
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

static void general_states(const decay_cut &x, const decay_states &a, const lnt_cuda *d)
{
    int blocks = (a.W + DECAY_BLOCK - 1) / DECAY_BLOCK;
    void *args[] = { (void *)&x, (void *)&a, &blocks };
    decay_launch(d, (const void *)decay_general_states, decay_pieces(x) * blocks, THREADS, general_floats(a.K, false) * 4, args);
}
static void general_read(const decay_cut &x, const decay_pass *passes, int n, const lnt_cuda *d)
{
    for (int i = 0; i < n; i++) {
        int blocks = (passes[i].end - passes[i].begin + DECAY_BLOCK - 1) / DECAY_BLOCK;
        void *args[] = { (void *)&x, (void *)&passes[i], &blocks };
        decay_launch(d, (const void *)decay_general_read, decay_pieces(x) * blocks, THREADS, general_floats(passes[i].D, true) * 4, args);
    }
}
static void general_pairs(const decay_cut &x, const decay_pairs &a, const lnt_cuda *d)
{
    void *args[] = { (void *)&x, (void *)&a };
    decay_launch(d, (const void *)decay_general_pairs, decay_pieces(x), THREADS, pairs_floats(a.K, a.W) * 4, args);
}

static const decay_kernels general = { C, 0, false, false, false, general_states, general_read, general_pairs };
/* Forward V is cut into blocks; backward rows of V stand in shared memory as those of K do, in the keys' pass and as pairs. */
static const char *general_declines(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const int D = backward && a->V > a->K ? a->V : a->K;
    const size_t pass = general_floats(D, true), pairs = pairs_floats(a->K, a->V + 1);
    if (a->op->kind == LNT_DECAY_STABLE && a->K > DECAY_WIDEST) return "K of at most 256 is offered";
    if (a->V > DECAY_WIDEST_V) return "V of at most 1024 is offered";
    return 4 * (backward && pairs > pass ? pairs : pass) > (size_t)lnt_block_room() ? "the GPU has too little shared memory" : NULL;
}
static size_t general_workspace(const void *args, bool backward, int threads)
{
    return lnt_decay_cuda_bytes((const lnt_recur_args *)args, backward, general);
}
static void general_forward(const void *args, const lnt_device *d) { lnt_decay_cuda_forward((const lnt_recur_args *)args, d, general); }
static void general_backward(const void *args, const lnt_device *d) { lnt_decay_cuda_backward((const lnt_recur_args *)args, d, general, {}); }

/* Segments of 64: the scan leaves what is wanted. */
size_t lnt_decay_starts_bytes(const lnt_recur_args *a)
{
    return (size_t)(a->tokens / LNT_DECAY_STARTS + a->sequences) * (size_t)a->Hv * sizeof(float);
}
void lnt_decay_starts(const lnt_recur_args *a, const lnt_device *d, float *S)
{
    const lnt_cuda *on = (const lnt_cuda *)d;
    const decay_cut cut = { a->cu_seqlens_device, a->sequences, a->tokens, LNT_DECAY_STARTS, decay_segments(a, LNT_DECAY_STARTS), a->Hv,
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

LNT_CUDA_FORM(lnt_decay_chunk_cuda, "chunk-cuda", CHUNK, 80, general_declines, general_workspace, general_forward, general_backward)
