/* The forward sweep of the fast path: the chunk list, what is parallel over chunks (gates, K K^T, Q K^T, T), and then the chain (delta_chain.cuh). */
#include "device/mma.cuh"
#include "recurrence/delta/delta_cuda.cuh"

namespace {

constexpr int C = LNT_DELTA_C, THREADS = 128;
constexpr int LD = 68; /* floats of a row of A in shared memory: rows 4 banks apart */

/* ---- the chunk list --------------------------------------------------------------------------------------------------------------------- */

/* One CTA: a running sum of the sequences' chunks, then every chunk finds its sequence. */
__global__ __launch_bounds__(1024) void table_kernel(const int64_t *cu, int64_t N, int64_t NC, int4 *table, int *first)
{
    __shared__ int sums[32];
    __shared__ int carry;
    wait_for_prior();
    let_next_begin();
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    if (tid == 0) carry = 0;
    __syncthreads();
    for (int64_t base = 0; base < N; base += 1024) {
        const int64_t n = base + tid;
        const int own = n < N ? (int)((cu[n + 1] - cu[n] + C - 1) / C) : 0;
        int x = own;
        for (int o = 1; o < 32; o <<= 1) {
            const int y = __shfl_up_sync(0xffffffffu, x, o);
            if (lane >= o) x += y;
        }
        if (lane == 31) sums[warp] = x;
        __syncthreads();
        int before = carry;
        for (int w = 0; w < warp; w++) before += sums[w];
        if (n < N) first[n] = before + x - own;
        __syncthreads();
        if (tid == 1023) carry = before + x;
        __syncthreads();
    }
    if (tid == 0) first[N] = carry;
    __syncthreads();
    for (int64_t c = tid; c < NC; c += 1024) {
        int64_t low = 0, high = N; /* the last sequence that begins at or before c and is not empty */
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            if (first[middle] <= c)
                low = middle;
            else
                high = middle;
        }
        const int inside = (int)(c - first[low]);
        const int64_t token = cu[low] + (int64_t)inside * C, left = cu[low + 1] - token;
        table[c] = make_int4((int)low, (int)token, (int)(left < C ? left : C), inside);
    }
}

/* ---- products of float32 blocks in three bf16 products: x = high + low, 16 bits of mantissa ------------------------------------------------ */

struct halves {
    uint32_t high, low;
};
__device__ __forceinline__ halves split(float x, float y)
{
    halves s;
    s.high = pack_bf16(x, y);
    s.low = pack_bf16(x - low_bf16(s.high), y - high_bf16(s.high));
    return s;
}
struct left16 { /* an A of [16][16] */
    uint32_t high[4], low[4];
};
__device__ __forceinline__ void set(left16 &a, int i, float x, float y)
{
    const halves s = split(x, y);
    a.high[i] = s.high;
    a.low[i] = s.low;
}
__device__ __forceinline__ left16 left_of(const float *m) /* m: the block's first element */
{
    const int r = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    left16 a;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x = *(const float2 *)(m + (r + (i & 1) * 8) * LD + c + (i >> 1) * 8);
        set(a, i, x.x, x.y);
    }
    return a;
}
/* d [16][8] += a m, m [16][8] */
__device__ __forceinline__ void multiply(float (&d)[4], const left16 &a, const float *m)
{
    const int r = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    const halves b0 = split(m[c * LD + r], m[(c + 1) * LD + r]), b1 = split(m[(c + 8) * LD + r], m[(c + 9) * LD + r]);
    mma_bf16(d, a.low, b0.high, b1.high);
    mma_bf16(d, a.high, b0.low, b1.low);
    mma_bf16(d, a.high, b0.high, b1.high);
}
__device__ __forceinline__ left16 left_from(const float (&y)[2][4])
{
    left16 a;
#pragma unroll
    for (int i = 0; i < 4; i++) set(a, i, y[i >> 1][2 * (i & 1)], y[i >> 1][2 * (i & 1) + 1]);
    return a;
}
__device__ __forceinline__ void store_negative(float *m, const float (&d)[4])
{
    const int r = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    *(float2 *)(m + r * LD + c) = make_float2(-d[0], -d[1]);
    *(float2 *)(m + (r + 8) * LD + c) = make_float2(-d[2], -d[3]);
}

/* (I + A)^{-1} in A's place, for HEADS matrices A [64][LD], strictly lower triangular; what stands above the diagonal blocks of 16 is neither
 * read nor written. Rows 16 w .. 16 w + 15 of each are the own of who is warp w until the first barrier. Blocks of 16 by substitution, a column a
 * lane, two heads a warp; then twice [T1 0; -T2 A T1, T2] (operators.md#chunks). Ends with a barrier. */
template <int HEADS> __device__ __forceinline__ void invert(float *A, int warp)
{
    const int lane = threadIdx.x % 32;
    {
        float *block = A + (HEADS > 1 ? lane / 16 : 0) * C * LD + warp * 16 * (LD + 1), x[16];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float row[16];
#pragma unroll
            for (int m = 0; m < 16; m += 4) {
                if (m >= i) continue;
                const float4 y = *(const float4 *)(block + i * LD + m);
                row[m] = y.x, row[m + 1] = y.y, row[m + 2] = y.z, row[m + 3] = y.w;
            }
            float sum[4] = { lane % 16 == i ? 1.f : 0.f, 0.f, 0.f, 0.f };
#pragma unroll
            for (int m = 0; m < i; m++) sum[m % 4] -= row[m] * x[m];
            x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
        }
        __syncwarp();
        if (HEADS > 1 || lane < 16)
#pragma unroll
            for (int i = 0; i < 16; i++) block[i * LD + lane % 16] = x[i];
    }
    __syncthreads();
    if (warp < 2 * HEADS) { /* one block of 32 a warp */
        float *block = A + warp / 2 * C * LD + warp % 2 * 32 * (LD + 1), y[2][4] = {}, d[2][4] = {};
        const left16 second = left_of(block + 16 * (LD + 1));
#pragma unroll
        for (int n = 0; n < 2; n++) multiply(y[n], second, block + 16 * LD + 8 * n);
        const left16 product = left_from(y);
#pragma unroll
        for (int n = 0; n < 2; n++) multiply(d[n], product, block + 8 * n);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 2; n++) store_negative(block + 16 * LD + 8 * n, d[n]);
    }
    __syncthreads();
    /* the block [32][32]: a warp makes 16 rows of T2 A and of those times T1 16 columns */
    const int rows = 32 + warp / 2 * 16, column = warp % 2 * 16;
    float d[HEADS][2][4] = {};
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        const float *a = A + head * C * LD;
        float y[2][2][4] = {};
#pragma unroll
        for (int kk = 0; kk < 2; kk++) {
            if (kk > warp / 2) continue;
            const left16 second = left_of(a + rows * LD + 32 + 16 * kk);
#pragma unroll
            for (int n = 0; n < 4; n++) multiply(y[n / 2][n % 2], second, a + (32 + 16 * kk) * LD + 8 * n);
        }
#pragma unroll
        for (int kk = 0; kk < 2; kk++) {
            if (kk < warp % 2) continue;
            const left16 product = left_from(y[kk]);
#pragma unroll
            for (int n = 0; n < 2; n++) multiply(d[head][n], product, a + 16 * kk * LD + column + 8 * n);
        }
    }
    __syncthreads();
#pragma unroll
    for (int head = 0; head < HEADS; head++)
#pragma unroll
        for (int n = 0; n < 2; n++) store_negative(A + head * C * LD + rows * LD + column + 8 * n, d[head][n]);
    __syncthreads();
}

/* ---- what is parallel over chunks ---------------------------------------------------------------------------------------------------------- */

struct pairs_args {
    const bf16 *q, *k;
    const float *g, *beta;
    const int4 *table;
    float *G, *F;
    int *R;
    bf16 *T, *P;
    int Hq, Hv;
    float scale;
    int from;    /* the first chunk */
    bool beside; /* nothing that the kernel ahead makes is read; a further CTA waits for it */
};

/* Gates of a chunk, by one warp: rows lane and lane + 32. G, R and F to memory; beta, G, R to `gates` [3][64]. */
__device__ __forceinline__ void make_gates(const pairs_args &p, int64_t token, int rows, int64_t index, int h, float *gates)
{
    const int lane = threadIdx.x % 32;
    float G[2], beta[2];
    int R[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = lane + 32 * j;
        const bool real = i < rows;
        const float g = real && p.g ? p.g[(token + i) * p.Hv + h] : 0.f;
        beta[j] = real ? p.beta[(token + i) * p.Hv + h] : 0.f;
        R[j] = lnt_gate_resets(g);
        G[j] = lnt_gate_counted(g, R[j]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const float x = __shfl_up_sync(0xffffffffu, G[j], o);
            const int y = __shfl_up_sync(0xffffffffu, R[j], o);
            if (lane >= o) {
                G[j] += x;
                R[j] += y;
            }
        }
        if (j == 0) {
            const float x = __shfl_sync(0xffffffffu, G[0], 31);
            const int y = __shfl_sync(0xffffffffu, R[0], 31);
            G[1] += lane == 0 ? x : 0.f; /* into the scan of the second half */
            R[1] += lane == 0 ? y : 0;
        }
    }
    const float end = __shfl_sync(0xffffffffu, G[1], 31);
    const int resets = __shfl_sync(0xffffffffu, R[1], 31);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = lane + 32 * j;
        p.G[index * C + i] = G[j];
        p.R[index * C + i] = R[j];
        float *F = p.F + index * (4 * C);
        F[i] = beta[j];
        F[C + i] = lnt_gate_from_start(G[j], R[j]);
        F[2 * C + i] = lnt_gate_pair(end, resets, G[j], R[j]);
        F[3 * C + i] = beta[j] * lnt_gate_from_start(G[j], R[j]);
        gates[i] = beta[j];
        gates[C + i] = G[j];
        gates[2 * C + i] = __int_as_float(R[j]);
    }
}

/* Shared memory: the rows of k and q, later A of every head and P of one; then the gates. */
template <int K, int HEADS>
constexpr int pairs_bytes = (2 * C * K * 2 > HEADS * C * LD * 4 + C * C * 2 ? 2 * C * K * 2 : HEADS * C * LD * 4 + C * C * 2) + HEADS * 3 * C * 4;

/* A CTA: a chunk, a query-key head, HEADS of its value heads. K K^T and Q K^T stay in registers, 16 rows a warp; then their memory is A's and P's.
 * Long: both products live in registers until every head has had them. */
template <int K, int HEADS> __global__ __launch_bounds__(THREADS, 5) void pairs_kernel(const __grid_constant__ pairs_args p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    if (!p.beside) wait_for_prior();
    let_next_begin();
    if (p.beside && blockIdx.x + 1 == gridDim.x) {
        wait_for_prior(); /* one is enough for the kernel to end after the one ahead, and the others' places are wanted */
        return;
    }
    float *gates = (float *)(shared + pairs_bytes<K, HEADS>) - HEADS * 3 * C, *A = (float *)shared;
    /* which 16 rows a warp has changes from CTA to CTA, or one scheduler of four would have all that have the most below the diagonal */
    const int tid = (int)threadIdx.x, lane = tid % 32, parts = p.Hv / HEADS;
    const int warp = __shfl_sync(0xffffffffu, tid / 32 ^ (int)(blockIdx.x * 0x9E3779B9u >> 30), 0); /* the compiler sees that a warp has one */
    const int64_t c = p.from + blockIdx.x / parts;
    const int h0 = (int)(blockIdx.x % parts) * HEADS, hq = h0 / (p.Hv / p.Hq);
    const int4 entry = p.table[c];
    const int64_t token = entry.y, index = c * p.Hv + h0;
    const int rows = entry.z;
    const uint32_t tiles = shared_address(shared);
    constexpr int PER = K / 8, STEP = THREADS / PER;
    {
        const int row = tid / PER, piece = tid % PER;
        const uint32_t to = tiles + row * (2 * K) + (((piece & 7) ^ (row & 7)) << 4) + (piece >> 3) * 128;
        const int64_t from = ((token + row) * p.Hq + hq) * K + piece * 8, step = (int64_t)STEP * p.Hq * K;
#pragma unroll
        for (int j = 0; j < C / STEP; j++) {
            const bool real = row + j * STEP < rows;
            cp_async_16(to + j * STEP * 2 * K, real ? p.k + from + j * step : p.k, real);
            cp_async_16(to + j * STEP * 2 * K + C * K * 2, real ? p.q + from + j * step : p.q, real);
        }
    }
    cp_async_commit();
    if (warp < HEADS) make_gates(p, token, rows, index + warp, h0 + warp, gates + warp * 3 * C);
    cp_async_wait<0>();
    __syncthreads();
    float kk[8][4] = {}, qk[8][4] = {};
#pragma unroll
    for (int x = 0; x < K / 16; x++) {
        uint32_t left[4], lq[4], b[4];
        auto at = [&](int row, int piece) { return tiles + row * (2 * K) + (((piece & 7) ^ (row & 7)) << 4) + (piece >> 3) * 128; };
        ldmatrix_x4(left, at(16 * warp + (lane & 15), 2 * x + (lane >> 4)));
        ldmatrix_x4(lq, at(16 * warp + (lane & 15), 2 * x + (lane >> 4)) + C * K * 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j > warp) continue;
            ldmatrix_x4(b, at(16 * j + (lane & 7) + (lane >> 4 << 3), 2 * x + (lane >> 3 & 1)));
            mma_bf16(kk[2 * j], left, b[0], b[1]);
            mma_bf16(kk[2 * j + 1], left, b[2], b[3]);
            mma_bf16(qk[2 * j], lq, b[0], b[1]);
            mma_bf16(qk[2 * j + 1], lq, b[2], b[3]);
        }
    }
    __syncthreads();
    const int r = lane / 4, c2 = 2 * (lane % 4);
    bf16 *stage = (bf16 *)(shared + HEADS * C * LD * 4) + warp * (16 * C); /* the warp's rows of P, 16-byte piece j of row i at place j ^ (i & 7) */
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
        const float *of = gates + head * 3 * C;
        float beta[2], G[2];
        int R[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            beta[j] = of[16 * warp + r + 8 * j];
            G[j] = of[C + 16 * warp + r + 8 * j];
            R[j] = __float_as_int(of[2 * C + 16 * warp + r + 8 * j]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (n > 2 * warp + 1) continue; /* all of it is above the diagonal */
            float a[2][2], b[2][2];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) a[j][e] = beta[j] * kk[n][2 * j + e], b[j][e] = p.scale * qk[n][2 * j + e];
            if (p.g) {
                const float2 Gm = *(const float2 *)(of + C + 8 * n + c2);
                const int2 Rm = *(const int2 *)(of + 2 * C + 8 * n + c2);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float x = lnt_gate_pair(fminf(G[j], Gm.x), R[j], Gm.x, Rm.x), y = lnt_gate_pair(fminf(G[j], Gm.y), R[j], Gm.y, Rm.y);
                    a[j][0] *= x, a[j][1] *= y, b[j][0] *= x, b[j][1] *= y;
                }
            }
            if (n >= 2 * warp)
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int right = 8 * n + c2 + e - (16 * warp + r + 8 * j); /* of the diagonal */
                        if (right >= 0) a[j][e] = 0.f;
                        if (right > 0) b[j][e] = 0.f;
                    }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                *(float2 *)(A + head * C * LD + (16 * warp + r + 8 * j) * LD + 8 * n + c2) = make_float2(a[j][0], a[j][1]);
                *(uint32_t *)(stage + (r + 8 * j) * C + ((n ^ (r & 7)) << 3) + c2) = pack_bf16(b[j][0], b[j][1]);
            }
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = lane / 8 + 4 * j, piece = lane % 8;
            if (piece > 2 * warp + i / 8) continue;
            *(uint4 *)(p.P + (index + head) * (C * C) + (16 * warp + i) * C + piece * 8) = *(const uint4 *)(stage + i * C + ((piece ^ (i & 7)) << 3));
        }
        __syncwarp();
    }
    invert<HEADS>(A, warp);
#pragma unroll
    for (int head = 0; head < HEADS; head++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = tid / 8 + 16 * j, piece = tid % 8;
            if (piece > i / 8) continue;
            const int64_t to = (index + head) * (C * C) + i * C + piece * 8;
            const float4 *from = (const float4 *)(A + head * C * LD + i * LD + 8 * piece);
            const float4 low = from[0], high = from[1];
            float x[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
#pragma unroll
            for (int m = 0; m < 8; m++) x[m] = 8 * piece + m <= i ? x[m] : 0.f;
            store_pack<8>(p.T + to, x);
        }
}

template <int K, int HEADS> void put_pairs(const pairs_args &p, int64_t chunks, const lnt_cuda *d)
{
    const int64_t ctas = chunks * (p.Hv / HEADS) + p.beside;
    lnt_delta_put(pairs_kernel<K, HEADS>, p, ctas, THREADS, pairs_bytes<K, HEADS>, 1, d->base.capability / 10 == 9, d);
}

/* ---- how a sequence is cut into segments ---------------------------------------------------------------------------------------------------- */

/* The cost model, in units of a chunk's step of the chain (0.7 us) on the 132 multiprocessors of an H200. A chain of n chunks costs n. Cut into P
 * segments of n/P: all but the last first make their end state X from zeros and their transition M, whose K columns are further columns of V; then
 * each takes its start through the segments before it, P - 1 products that cost a step and a half each; then runs. CTAs beyond one a multiprocessor
 * become half as many of 128 columns, whose step costs 1.4; beyond that they wait for their turn. The smallest of P = 1, 2, 4, .. is taken; a segment
 * has at least 8 chunks. The backward pass runs two chains at once. */
double rounds(double ctas, bool wide)
{
    const double MULTIPROCESSORS = 132;
    return ctas <= MULTIPROCESSORS ? 1 : wide ? 1.4 * ceil(ctas / 2 / MULTIPROCESSORS) : ceil(ctas / MULTIPROCESSORS);
}
int count_segments(const lnt_recur_args *a, int chains)
{
    const int64_t longest = (a->longest + C - 1) / C;
    const double ctas = (double)a->sequences * a->Hv * (a->V / 64);
    const bool wide = a->V == 128;
    int best = 1;
    double least = 0;
    for (int P = 1; P == 1 || (longest / P >= 8 && P <= 64); P *= 2) {
        const double n = ceil((double)longest / P), more = (double)(a->V + a->K) / a->V;
        double cost = n * rounds(chains * ctas * P, wide);
        if (P > 1) cost += n * rounds(ctas * (P - 1) * (more + chains - 1), wide && a->K == 128) + 1.5 * (P - 1) + 8;
        if (P == 1 || cost < 0.9 * least) { /* a model: not for little */
            best = P;
            least = cost;
        }
    }
    return best;
}

} // namespace

int64_t lnt_delta_chunks(const lnt_recur_args *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->sequences; i++) n += lnt_div_up((a->cu_seqlens[i + 1] - a->cu_seqlens[i]) * lnt_recur_writes(a), C);
    return n;
}

extern "C" const char *lnt_delta_fast_declines(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if ((a->K != 64 && a->K != 128) || (a->V != 64 && a->V != 128)) return "it takes head sizes 64 and 128";
    if (a->chunk && a->chunk != C) return "its chunk length is 64";
    if (a->tokens >= (int64_t)1 << 31 || a->sequences >= (int64_t)1 << 31 || lnt_delta_chunks(a) * a->Hv >= (int64_t)1 << 31)
        return "too many tokens";
    if (lnt_delta_fast_block_memory(a, backward) > lnt_delta_room()) return "the GPU has too little shared memory"; /* 99 KB on sm_86 and sm_89 */
    return NULL;
}

lnt_delta_sweep lnt_delta_sweep_at(const lnt_recur_args *a, void *at, bool keep)
{
    lnt_delta_sweep w = {};
    const int64_t NC = lnt_delta_chunks(a), H = NC * a->Hv;
    size_t bytes = 0;
    auto take = [&](int64_t count, size_t size) {
        void *p = (char *)at + bytes;
        bytes += ((size_t)count * size + 255) / 256 * 256;
        return p;
    };
    w.chunks = NC;
    w.segments = count_segments(a, keep ? 2 : 1);
    w.segment_chunks = (int)lnt_div_up(lnt_div_up(a->longest, C), w.segments);
    w.table = (int4 *)take(NC, sizeof(int4));
    w.first_chunk = (int *)take(a->sequences + 1, sizeof(int));
    w.G = (float *)take(H * C, sizeof(float));
    w.R = (int *)take(H * C, sizeof(int));
    w.F = (float *)take(H * 4 * C, sizeof(float));
    w.T = (bf16 *)take(H * C * C, sizeof(bf16));
    w.P = (bf16 *)take(H * C * C, sizeof(bf16));
    if (keep) {
        w.U = (bf16 *)take(H * C * a->V, sizeof(bf16));
        w.S = (bf16 *)take(H * a->K * a->V, sizeof(bf16));
    }
    if (w.segments > 1) {
        const int64_t items = a->sequences * w.segments * a->Hv;
        w.X = (float *)take(items * a->K * a->V, sizeof(float));
        if (keep) w.dX = (float *)take(items * a->K * a->V, sizeof(float));
        w.M = (bf16 *)take(items * a->K * a->K, sizeof(bf16));
    }
    if (w.segments > 1 ? !keep : a->sequences == 1) w.start = (float *)take(a->sequences * a->Hv * a->K * a->V, sizeof(float));
    w.bytes = bytes;
    return w;
}

void lnt_delta_chunks_put(const lnt_recur_args *a, const lnt_device *device, const lnt_delta_sweep *w, int64_t from, int64_t until)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    if (!from) lnt_launch(d, table_kernel, 1, 1024, a->cu_seqlens_device, a->sequences, w->chunks, w->table, w->first_chunk);
    const bool two = a->Hv / a->Hq % 2 == 0;
    const pairs_args p = { (const bf16 *)a->q, (const bf16 *)a->k, (const float *)a->g, (const float *)a->beta, w->table, w->G, w->F, w->R, w->T,
                           w->P, a->Hq, a->Hv, (float)a->scale, (int)from, from > 0 };
    const auto put = a->K == 64 ? two ? put_pairs<64, 2> : put_pairs<64, 1> : two ? put_pairs<128, 2> : put_pairs<128, 1>;
    put(p, until - from, d);
}

lnt_delta_chain lnt_delta_chain_of(const lnt_recur_args *a, const lnt_delta_sweep *w)
{
    lnt_delta_chain x = {};
    x.q = (const bf16 *)a->q;
    x.k = (const bf16 *)a->k;
    x.v = (const bf16 *)a->v;
    x.T = w->T;
    x.P = w->P;
    x.F = w->F;
    x.s0 = (const float *)a->s0;
    x.cu = a->cu_seqlens_device;
    x.first_chunk = w->first_chunk;
    x.sequences = a->sequences;
    x.Hq = a->Hq;
    x.Hv = a->Hv;
    x.K = a->K;
    x.V = a->V;
    x.scale = (float)a->scale;
    x.segments = w->segments;
    x.segment_chunks = w->segment_chunks;
    x.until = INT32_MAX;
    x.X = w->X;
    x.dX = w->dX;
    x.M = w->M;
    return x;
}

/* ---- the implementation --------------------------------------------------------------------------------------------------------------------- */

extern "C" size_t lnt_delta_fast_workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    (void)threads;
    return backward ? lnt_delta_fast_backward_workspace(a) : lnt_delta_sweep_at(a, NULL, false).bytes;
}

/* Without segments; perhaps in parts, each of which is prepared in about the time of the chain before it, on the multiprocessors that this leaves. */
static void forward_whole(const lnt_recur_args *a, const lnt_device *device, const lnt_delta_sweep *w, lnt_delta_chain x, bool hopper)
{
    const int parts[] = { 4, 9, 16 }; /* where they end, sixteenths */
    const int64_t n = w->chunks;
    if (!hopper || !lnt_delta_in_parts(a, (const lnt_cuda *)device)) {
        lnt_delta_chunks_put(a, device, w, 0, n);
        (hopper ? lnt_delta_chain_sm90 : lnt_delta_chain_sm80)(&x, (const lnt_cuda *)device);
        return;
    }
    for (const int part : parts) {
        x.until = (int)(n * part / 16);
        x.sT = part < 16 ? w->start : (float *)a->sT;
        lnt_delta_chunks_put(a, device, w, x.from, x.until);
        lnt_delta_chain_sm90(&x, (const lnt_cuda *)device);
        x.from = x.until;
        x.s0 = w->start;
    }
}

static void forward(const lnt_recur_args *a, const lnt_device *device, bool plain)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    const bool hopper = d->base.capability / 10 == 9 && !plain;
    const lnt_delta_sweep w = lnt_delta_sweep_at(a, a->workspace, false);
    const int64_t ctas = a->sequences * a->Hv * (a->V / 64);
    lnt_delta_chain x = lnt_delta_chain_of(a, &w);
    x.wide = a->V == 128 && ctas * w.segments > d->base.multiprocessors;
    x.o = (bf16 *)a->o;
    x.sT = (float *)a->sT;
    if (w.segments == 1) return forward_whole(a, device, &w, x, hopper);

    const auto put = hopper ? lnt_delta_chain_sm90 : lnt_delta_chain_sm80;
    const bool over = a->s0 && a->s0 == a->sT; /* a segment that begins late reads what the last one may have written by then */
    const size_t bytes = (size_t)(a->sequences * a->Hv * a->K * a->V) * sizeof(float);
    if (over) lnt_cuda_note((lnt_cuda *)d, cudaMemcpyAsync(w.start, a->s0, bytes, cudaMemcpyDeviceToDevice, d->stream));
    if (over) x.s0 = w.start;
    lnt_delta_chunks_put(a, device, &w, 0, w.chunks);
    lnt_delta_chain ends = x;
    ends.ends = true;
    ends.wide = a->V == 128 && a->K == 128 && ctas / (a->V / 64) * (w.segments - 1) * ((a->V + a->K) / 64) > d->base.multiprocessors;
    ends.o = NULL, ends.sT = NULL;
    put(&ends, d);
    put(&x, d);
}
extern "C" void lnt_delta_sm80_forward(const void *args, const lnt_device *d) { forward((const lnt_recur_args *)args, d, true); }
extern "C" void lnt_delta_sm90_forward(const void *args, const lnt_device *d) { forward((const lnt_recur_args *)args, d, false); }
