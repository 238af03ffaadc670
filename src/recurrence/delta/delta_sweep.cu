/* The forward sweep of the fast path: the chunk list, what is parallel over chunks (gates, K K^T, Q K^T, T), and then the chain (delta_chain.cuh). */
#include "device/mma.cuh"
#include "recurrence/delta/delta_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

constexpr int C = LNT_DELTA_C, THREADS = 128;

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

/* ---- products of float32 blocks [16][16] in three bf16 products: x = high + low, 16 bits of mantissa ------------------------------------------ */

/* A block in shared memory: the high halves, then the low ones, each [16][16] bf16, 16-byte piece j of row i at place j ^ (i >> 2 & 1). */
constexpr int HALF = 512, BLOCK = 2 * HALF;
__device__ __forceinline__ uint32_t place(int row, int piece) { return row * 32 + ((piece ^ (row >> 2 & 1)) << 4); }

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
__device__ __forceinline__ left16 left_from(const float (&y)[2][4])
{
    left16 a;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const halves s = split(y[i >> 1][2 * (i & 1)], y[i >> 1][2 * (i & 1) + 1]);
        a.high[i] = s.high;
        a.low[i] = s.low;
    }
    return a;
}
/* d += a m, all [16][16]; `at`: the lane's address in m, which is stored by rows or by columns. */
template <bool BY_ROWS> __device__ __forceinline__ void multiply(float (&d)[2][4], const left16 &a, uint32_t at)
{
    uint32_t high[4], low[4];
    if constexpr (BY_ROWS) {
        ldmatrix_x4_trans(high, at);
        ldmatrix_x4_trans(low, at + HALF);
    } else {
        ldmatrix_x4(high, at);
        ldmatrix_x4(low, at + HALF);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) mma_bf16(d[n], a.low, high[2 * n], high[2 * n + 1]);
#pragma unroll
    for (int n = 0; n < 2; n++) mma_bf16(d[n], a.high, low[2 * n], low[2 * n + 1]);
#pragma unroll
    for (int n = 0; n < 2; n++) mma_bf16(d[n], a.high, high[2 * n], high[2 * n + 1]);
}

/* ---- T = (I + A)^{-1}, A [64][64] strictly lower triangular (operators.md#chunks) -------------------------------------------------------------
 *
 * In blocks of 16: those on the diagonal are inverted by substitution, then a warp makes 16 rows, from the diagonal to the left:
 *
 *   T_ij = -(sum_{j < m <= i} T_im A_mj) T_jj
 *
 * T_im is a left operand and stays in registers; A_mj and T_jj are right operands, from shared memory. Of a head there are four diagonal blocks,
 * A's as float32, whose place T's take, by columns, and then -A's six below, (i, j) being number i (i - 1) / 2 + j, by rows. */
constexpr int HEAD_BYTES = 10 * BLOCK + 64; /* two heads in different banks: half a warp reads each */

/* A diagonal block, float32 [16][16]: four columns q of row i stand at place q ^ (i & 2). A column a lane; HEADS > 1: half a warp a head. */
template <int HEADS> __device__ __forceinline__ void invert_diagonal(uint8_t *heads, int warp)
{
    const int lane = threadIdx.x % 32;
    uint8_t *block = heads + (HEADS > 1 ? lane / 16 * HEAD_BYTES : 0) + warp * BLOCK;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = lane % 16 == i ? 1.f : 0.f;
#pragma unroll
    for (int q = 0; q < 4; q++)
#pragma unroll
        for (int i = 4 * q + 1; i < 16; i++) {
            const float4 y = *(const float4 *)(block + i * 64 + (q ^ (i & 2)) * 16);
            const float row[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
            for (int m = 4 * q; m < 4 * q + 4; m++)
                if (m < i) x[i] -= row[m % 4] * x[m];
        }
    __syncwarp();
    if (HEADS > 1 || lane < 16)
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            halves s[4];
#pragma unroll
            for (int m = 0; m < 4; m++) s[m] = split(x[8 * piece + 2 * m], x[8 * piece + 2 * m + 1]);
            uint8_t *to = block + place(lane % 16, piece);
            *(uint4 *)to = make_uint4(s[0].high, s[1].high, s[2].high, s[3].high);
            *(uint4 *)(to + HALF) = make_uint4(s[0].low, s[1].low, s[2].low, s[3].low);
        }
}

/* Rows of a tile on their way out, by one warp: 16 rows of 128 bytes, of which block column i - d of rows 16 i .. stands at pieces 2 d and 2 d + 1,
 * 16-byte piece j of a row at place j ^ (row & 7). A lane's own place of what a product's fragments hold; n: which 8 columns, j: rows 8 j .. */
__device__ __forceinline__ uint32_t staged(uint32_t stage)
{
    const int r = threadIdx.x % 32 / 4;
    return stage + r * 144 + threadIdx.x % 4 * 4;
}
__device__ __forceinline__ void store(uint32_t address, uint32_t x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
__device__ __forceinline__ void stage_put(uint32_t lane_staged, int n, int j, uint32_t x) { store((lane_staged ^ n << 4) + j * 1024, x); }
/* To strip i of LNT_DELTA_PACKED, or to the tile [64][64]; what stands right of the diagonal's 8 columns stays as it is. */
template <bool PACKED> __device__ __forceinline__ void rows_out(bf16 *tile, const uint8_t *stage, int i)
{
    if constexpr (PACKED) {
        const int lane = threadIdx.x % 32, row = lane % 16, odd = lane / 16;
        uint4 *to = (uint4 *)(tile + i * (i + 1) * 128) + lane;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (n < i || (n == i && (!odd || row >= 8)))
                to[32 * n] = *(const uint4 *)(stage + row * 128 + (((2 * (i - n)) ^ odd ^ (row & 7)) << 4));
        __syncwarp();
        return;
    }
    const int row = threadIdx.x % 32 / 8, piece = threadIdx.x % 8, from = 2 * i - (piece & 6) + (piece & 1);
    bf16 *to = tile + (16 * i + row) * C + piece * 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (piece <= 2 * i + j / 2) *(uint4 *)(to + 4 * j * C) = *(const uint4 *)(stage + (row + 4 * j) * 128 + ((from ^ (row + 4 * (j & 1))) << 4));
    __syncwarp();
}

/* Rows 16 i .. 16 i + 15 of a head's T, rounded, to where a lane has its place (staged). */
__device__ __forceinline__ void inverse_rows(uint32_t head, uint32_t lane_staged, int i)
{
    const int lane = threadIdx.x % 32;
    const uint32_t diagonal = head + place((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1), below = head + 4 * BLOCK + place(lane & 15, lane >> 4);
    left16 x[4];
    ldmatrix_x4_trans(x[0].high, diagonal + i * BLOCK);
    ldmatrix_x4_trans(x[0].low, diagonal + i * BLOCK + HALF);
    auto put = [&](int d) {
#pragma unroll
        for (int j = 0; j < 4; j++) stage_put(lane_staged, 2 * d + j / 2, j % 2, x[d].high[j]);
    };
    put(0);
#pragma unroll
    for (int d = 1; d < 4; d++) {
        if (d > i) continue;
        float y[2][4] = {}, z[2][4] = {};
#pragma unroll
        for (int e = 0; e < d; e++) multiply<true>(y, x[e], below + ((i - e) * (i - e - 1) / 2 + i - d) * BLOCK);
        multiply<false>(z, left_from(y), diagonal + (i - d) * BLOCK);
        x[d] = left_from(z);
        put(d);
    }
}

/* ---- what is parallel over chunks ---------------------------------------------------------------------------------------------------------- */

struct pairs_args {
    const bf16 *q, *k;
    const float *g, *beta;
    const int4 *table;
    const int64_t *cu;
    float *G, *F; /* G, R NULL: not kept */
    int *R;
    bf16 *T, *P;
    int Hq, Hv, group; /* group: value heads that share keys */
    float scale;
    int from;    /* the first chunk */
    bool packed; /* T and P */
    bool beside; /* nothing that the kernel ahead makes is read; a further CTA waits for it */
};

/* A head's gates as they are, beta and g, to `gates` [3][64] by one warp: rows lane and lane + 32. */
__device__ __forceinline__ void load_gates(const pairs_args &p, int64_t token, int rows, int h, float *gates)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = threadIdx.x % 32 + 32 * j;
        const int64_t at = (token + i) * p.Hv + h;
        gates[i] = i < rows ? p.beta[at] : 0.f;
        gates[C + i] = i < rows && p.g ? p.g[at] : 0.f;
    }
}
/* By the same lanes: F, and G and R where they are kept, to memory; in `gates` beta, G in units of log 2, R. */
__device__ __forceinline__ void make_gates(const pairs_args &p, int index, float *gates)
{
    const int lane = threadIdx.x % 32;
    float G[2] = {}, end = 0.f;
    int R[2] = {}, resets = 0;
    if (p.g) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float g = gates[C + lane + 32 * j];
            R[j] = lnt_gate_resets(g);
            G[j] = lnt_gate_counted(g, R[j]);
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const float y = __shfl_up_sync(0xffffffffu, G[j], o);
                const int z = __shfl_up_sync(0xffffffffu, R[j], o);
                if (lane >= o) {
                    G[j] += y;
                    R[j] += z;
                }
            }
        }
        G[1] += __shfl_sync(0xffffffffu, G[0], 31);
        R[1] += __shfl_sync(0xffffffffu, R[0], 31);
        end = __shfl_sync(0xffffffffu, G[1], 31);
        resets = __shfl_sync(0xffffffffu, R[1], 31);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = lane + 32 * j;
        const float beta = gates[i], from_start = lnt_gate_from_start(G[j], R[j]);
        if (p.G) {
            p.G[(int64_t)index * C + i] = G[j];
            p.R[(int64_t)index * C + i] = R[j];
        }
        float *F = p.F + (int64_t)index * (4 * C);
        F[i] = beta;
        F[C + i] = from_start;
        F[2 * C + i] = lnt_gate_pair(end, resets, G[j], R[j]);
        F[3 * C + i] = beta * from_start;
        gates[C + i] = G[j] * (float)LNT_LOG2E;
        gates[2 * C + i] = __int_as_float(R[j]);
    }
}

/* Rows of k and q to shared memory, rows of 2 K bytes, 16-byte piece j of every 128 bytes of row i at place j ^ (i & 7). */
template <int K> __device__ __forceinline__ void load_keys(uint32_t tiles, const bf16 *k, const bf16 *q, int64_t step, int rows)
{
    constexpr int PER = K / 8, STEP = THREADS / PER;
    const int row = threadIdx.x / PER, piece = threadIdx.x % PER;
    const uint32_t to = tiles + row * (2 * K) + (((piece & 7) ^ (row & 7)) << 4) + (piece >> 3) * 128;
    const int64_t from = row * step + piece * 8;
    if (rows == C) {
#pragma unroll
        for (int j = 0; j < C / STEP; j++) {
            cp_async_16(to + j * STEP * 2 * K, k + from + j * STEP * step);
            cp_async_16(to + j * STEP * 2 * K + C * K * 2, q + from + j * STEP * step);
        }
    } else
        for (int j = 0; j < C / STEP; j++) {
            const bool real = row + j * STEP < rows;
            cp_async_16(to + j * STEP * 2 * K, real ? k + from + j * STEP * step : k, real);
            cp_async_16(to + j * STEP * 2 * K + C * K * 2, real ? q + from + j * STEP * step : q, real);
        }
    cp_async_commit();
}

/* Of K K^T and Q K^T a warp's 16 rows up to the diagonal, N blocks of 16 columns: [2 d] and [2 d + 1] are d blocks left of it. Others stay as they
 * are. */
template <int K, int N> __device__ __forceinline__ void key_products(float (&kk)[8][4], float (&qk)[8][4], uint32_t tiles, int warp)
{
    const int lane = threadIdx.x % 32;
    auto at = [&](int row, int piece) { return tiles + (16 * warp + row) * (2 * K) + ((piece ^ (row & 7)) << 4); };
#pragma unroll
    for (int n = 0; n < 2 * N; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) kk[n][j] = qk[n][j] = 0.f;
    const uint32_t left_at = at(lane & 15, lane >> 4), right_at = at((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
#pragma unroll
    for (int x = 0; x < K / 16; x++) {
        uint32_t left[4], lq[4], b[4];
        const uint32_t bits = (x & 3) << 5, more = (x >> 2) * 128;
        ldmatrix_x4(left, (left_at ^ bits) + more);
        ldmatrix_x4(lq, (left_at ^ bits) + more + C * K * 2);
#pragma unroll
        for (int d = 0; d < N; d++) {
            ldmatrix_x4(b, (right_at ^ bits) + more - d * (32 * K));
            mma_bf16(kk[2 * d], left, b[0], b[1]);
            mma_bf16(kk[2 * d + 1], left, b[2], b[3]);
            mma_bf16(qk[2 * d], lq, b[0], b[1]);
            mma_bf16(qk[2 * d + 1], lq, b[2], b[3]);
        }
    }
}

/* Of a head, a warp's rows of A and P: A's as what T is made of, P's to where a lane has its place (staged). qk has the scale; `of`: the head's
 * gates [3][64]. */
enum gating { UNGATED, GATED, RESETTING };
template <gating GATES>
__device__ __forceinline__ void weigh(const float (&kk)[8][4], const float (&qk)[8][4], const float *of, uint32_t head, uint32_t lane_staged,
                                      int warp)
{
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    float beta[2], G[2];
    int R[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = 16 * warp + r + 8 * j;
        beta[j] = of[i];
        G[j] = of[C + i];
        R[j] = __float_as_int(of[2 * C + i]);
    }
    const uint32_t diagonal = head + warp * BLOCK + r * 64 + ((r >> 1 & 1) << 5) + c * 8;
    const uint32_t below = head + (4 + warp * (warp + 1) / 2) * BLOCK + place(r, 0) + c * 4;
    of += 16 * warp + 2 * c; /* columns of the diagonal block */
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int d = n / 2, half = n % 2;
        if (d > warp) continue;
        float2 Gm = {};
        int2 Rm = {};
        if (GATES != UNGATED) Gm = *(const float2 *)(of + C + 8 * half - 16 * d);
        if (GATES == RESETTING) Rm = *(const int2 *)(of + 2 * C + 8 * half - 16 * d);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (d == 0 && half > j) continue; /* above the diagonal */
            float a[2], b[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float G_e = e ? Gm.y : Gm.x, strength = d ? -beta[j] : beta[j];
                if (GATES == UNGATED) {
                    a[e] = strength * kk[n][2 * j + e];
                    b[e] = qk[n][2 * j + e];
                } else {
                    float x = fast_exp2(fminf(G[j], G_e) - G_e);
                    if (GATES == RESETTING) x = R[j] == (e ? Rm.y : Rm.x) ? x : 0.f;
                    a[e] = strength * x * kk[n][2 * j + e];
                    b[e] = x * qk[n][2 * j + e];
                }
                if (d == 0 && half == j) { /* the diagonal goes through these 8 columns */
                    if (2 * c + e >= r) a[e] = 0.f;
                    if (2 * c + e > r) b[e] = 0.f;
                }
            }
            if (d == 0) {
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"((diagonal ^ half << 5) + j * 512), "f"(a[0]), "f"(a[1]) : "memory");
            } else {
                const halves s = split(a[0], a[1]);
                const uint32_t to = (below ^ half << 4) - d * BLOCK + j * 256;
                store(to, s.high);
                store(to + HALF, s.low);
            }
            stage_put(lane_staged, n, j, pack_bf16(b[0], b[1]));
        }
    }
}

/* Shared memory: the rows of k and q, later in their place of each head what T is made of and each warp's rows on their way out; then the gates. */
template <int K, int HEADS> struct pairs_layout {
    static constexpr int keys = 2 * C * K * 2, stage = (HEADS * HEAD_BYTES + 127) / 128 * 128, pairs = stage + C * C * 2;
    static constexpr int gates = keys > pairs ? keys : pairs;
    static constexpr int bytes = gates + HEADS * 3 * C * 4;
};

/* A CTA: a chunk, a query-key head, HEADS of its value heads. K K^T and Q K^T stay in registers, 16 rows a warp, until every head has had them. */
template <int K, int HEADS, bool PACKED> __global__ __launch_bounds__(THREADS, 5) void pairs_kernel(const __grid_constant__ pairs_args p)
{
    using L = pairs_layout<K, HEADS>;
    constexpr int SIZE = PACKED ? LNT_DELTA_PACKED : C * C;
    extern __shared__ __align__(1024) uint8_t shared[];
    if (!p.beside) wait_for_prior();
    let_next_begin();
    if (p.beside && blockIdx.x + 1 == gridDim.x) {
        wait_for_prior(); /* one is enough for the kernel to end after the one ahead, and the others' places are wanted */
        return;
    }
    /* which 16 rows a warp has changes from CTA to CTA, or one scheduler of four would have all that have the most below the diagonal; by the
     * shuffle the compiler sees that a warp has one number */
    const int parts = p.Hv / HEADS, warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32 ^ (int)(blockIdx.x * 0x9E3779B9u >> 30), 0);
    const int c = p.from + (int)blockIdx.x / parts;
    const int h0 = (int)(blockIdx.x % parts) * HEADS, hq = h0 / p.group;
    const int4 entry = lnt_delta_entry(p.table, p.cu, c);
    const int index = c * p.Hv + h0; /* 32 bits are enough (lnt_delta_fast_declines), and 64 would be spilled */
    const int64_t at = ((int64_t)entry.y * p.Hq + hq) * K;
    const uint32_t base = shared_address(shared);
    load_keys<K>(base, p.k + at, p.q + at, (int64_t)p.Hq * K, entry.z);
    float *gates = (float *)(shared + L::gates);
    if (warp < HEADS) load_gates(p, entry.y, entry.z, h0 + warp, gates + warp * 3 * C); /* the warps with the fewest products */
    cp_async_wait<0>();
    __syncthreads();
    if (warp < HEADS) make_gates(p, index + warp, gates + warp * 3 * C);
    float kk[8][4], qk[8][4];
    if (warp < 2)
        warp ? key_products<K, 2>(kk, qk, base, warp) : key_products<K, 1>(kk, qk, base, warp);
    else
        warp > 2 ? key_products<K, 4>(kk, qk, base, warp) : key_products<K, 3>(kk, qk, base, warp);
    __syncthreads();
    const uint8_t *stage = shared + L::stage + warp * (16 * C * 2);
    const uint32_t lane_staged = staged(shared_address(stage));
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) qk[n][j] *= p.scale;
#pragma unroll 1
    for (int head = 0; head < HEADS; head++) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) asm volatile("" : "+f"(qk[n][j])); /* nothing is made of it ahead for both heads: it would be spilled */
        const float *of = gates + head * 3 * C;
        const uint32_t to = base + head * HEAD_BYTES;
        if (!p.g)
            weigh<UNGATED>(kk, qk, of, to, lane_staged, warp);
        else if (__float_as_int(of[3 * C - 1]) == 0)
            weigh<GATED>(kk, qk, of, to, lane_staged, warp);
        else
            weigh<RESETTING>(kk, qk, of, to, lane_staged, warp);
        rows_out<PACKED>(p.P + (int64_t)(index + head) * SIZE, stage, warp);
    }
    invert_diagonal<HEADS>(shared, warp);
    __syncthreads();
#pragma unroll 1
    for (int head = 0; head < HEADS; head++) {
        const int i = head % 2 ? 3 - warp : warp; /* of two heads a warp has the rows with the most and those with the least */
        inverse_rows(base + head * HEAD_BYTES, lane_staged, i);
        rows_out<PACKED>(p.T + (int64_t)(index + head) * SIZE, stage, i);
    }
}

template <int K, int HEADS> void put_pairs(const pairs_args &p, int64_t chunks, const lnt_cuda *d)
{
    const int64_t ctas = chunks * (p.Hv / HEADS) + p.beside;
    const auto kernel = p.packed ? pairs_kernel<K, HEADS, true> : pairs_kernel<K, HEADS, false>;
    lnt_delta_put(kernel, p, ctas, THREADS, pairs_layout<K, HEADS>::bytes, 1, d->base.capability / 10 == 9, d);
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
    if (lnt_delta_fast_block_memory(a, backward) > lnt_block_room()) return "the GPU has too little shared memory"; /* 99 KB on sm_86 and sm_89 */
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
    if (a->sequences > 1) {
        w.table = (int4 *)take(NC, sizeof(int4));
        w.first_chunk = (int *)take(a->sequences + 1, sizeof(int));
    }
    w.G = (float *)take(H * C, sizeof(float));
    w.R = (int *)take(H * C, sizeof(int));
    w.F = (float *)take(H * 4 * C, sizeof(float));
    w.packed = !keep && a->sequences > 1;
    w.T = (bf16 *)take(H * (w.packed ? LNT_DELTA_PACKED : C * C), sizeof(bf16));
    w.P = (bf16 *)take(H * (w.packed ? LNT_DELTA_PACKED : C * C), sizeof(bf16));
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
    if (!from && w->table) lnt_launch(d, table_kernel, 1, 1024, a->cu_seqlens_device, a->sequences, w->chunks, w->table, w->first_chunk);
    const bool two = a->Hv / a->Hq % 2 == 0;
    const bool keep = w->U != NULL;
    const pairs_args p = {
        .q = (const bf16 *)a->q, .k = (const bf16 *)a->k, .g = (const float *)a->g, .beta = (const float *)a->beta,
        .table = w->table, .cu = a->cu_seqlens_device, .G = keep ? w->G : NULL, .F = w->F, .R = w->R, .T = w->T, .P = w->P,
        .Hq = a->Hq, .Hv = a->Hv, .group = a->Hv / a->Hq, .scale = (float)a->scale, .from = (int)from, .packed = w->packed, .beside = from > 0,
    };
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
    x.gated = a->g;
    x.packed = w->packed;
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

/* Without segments; perhaps in parts, each of which is prepared in less than the time of the chain before it, on the multiprocessors that this
 * leaves. */
static void forward_whole(const lnt_recur_args *a, const lnt_device *device, const lnt_delta_sweep *w, lnt_delta_chain x, bool hopper)
{
    const int parts[] = { 2, 7, 16 }; /* where they end, sixteenths */
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
