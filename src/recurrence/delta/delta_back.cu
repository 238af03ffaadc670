/* The last kernel of the fast path's backward pass, parallel over chunks, and the pass as a whole. Long: nearly half of it is
 * outputs_kernel; see there. */
#include "recurrence/delta/delta_back.cuh"
#include "recurrence/delta/delta_parts.cuh"

namespace {

constexpr int THREADS = 256;

struct outputs_args {
    const bf16 *q, *k, *v, *d_o, *U, *S, *dS;
    const float *F, *G, *g;
    const int *R;
    const int4 *table;
    const int64_t *cu;
    bf16 *dq, *dk, *dv;         /* dq, dk NULL: not wanted */
    float *dq_parts, *dk_parts; /* [tokens,part_heads,K], where more than a CTA or a pair of them shares keys; else NULL */
    float *dg, *dbeta;
    int Hq, Hv, part_heads;
    float scale;
    bool put_dv; /* dv is the caller's, not scratch */
    int chunks;
    int behind;  /* the first of the chunks that are there when this begins, the last of all; those before it wait for the kernel ahead. 0: all are */
};

/* A tile [rows][W] of bf16 in shared memory: 16-byte piece j of row i stands at place j ^ (i & 7). */
template <int W> __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int piece)
{
    return tile + row * (2 * W) + ((piece ^ (row & 7)) << 4);
}

/* ROWS rows, of which the first `rows` are read. */
template <int W, int ROWS> __device__ __forceinline__ void load_tile(uint32_t tile, const bf16 *from, int64_t stride, int rows, const void *any)
{
    constexpr int PIECES = W / 8, STEP = THREADS / PIECES; /* a multiple of 8: the pieces keep their places */
    const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const uint32_t to = place<W>(tile, row, piece);
    if (!from) rows = 0;
    from += row * stride + piece * 8;
    if (rows == ROWS) {
#pragma unroll
        for (int j = 0; j < ROWS / STEP; j++) cp_async_16(to + j * STEP * 2 * W, from + j * STEP * stride);
        return;
    }
#pragma unroll
    for (int j = 0; j < ROWS / STEP; j++) {
        const bool real = row + j * STEP < rows;
        cp_async_16(to + j * STEP * 2 * W, real ? from + j * STEP * stride : any, real);
    }
}

/* An image as it lies in memory (delta_parts.cuh). */
template <int BYTES> __device__ __forceinline__ void load_image(uint32_t image, const bf16 *from)
{
#pragma unroll
    for (int j = 0; j < BYTES / 16 / THREADS; j++) cp_async_16(image + threadIdx.x * 16 + j * THREADS * 16, from + threadIdx.x * 8 + j * THREADS * 8);
}
__device__ __forceinline__ uint32_t image_place(uint32_t image, int row, int piece) { return image + row * 32 + ((piece ^ (row >> 2 & 1)) << 4); }

/* Fragments of tiles; x: which 16 rows, kk: which 16 columns of the operand. A lane's own address is one of two, with the tile's first byte in it;
 * which 32 bytes of the row comes in by an exclusive or, as the pieces' places do. */
template <int W> __device__ __forceinline__ uint32_t lane_plain(uint32_t tile)
{
    const int lane = threadIdx.x & 31;
    return place<W>(tile, lane & 15, lane >> 4);
}
template <int W> __device__ __forceinline__ uint32_t lane_crossed(uint32_t tile)
{
    const int lane = threadIdx.x & 31;
    return place<W>(tile, (lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
}
template <int W> __device__ __forceinline__ void left_rows(uint32_t (&a)[4], uint32_t plain, int x, int kk) /* A[m][k] = tile[m][k] */
{
    ldmatrix_x4(a, (plain ^ kk << 5) + x * (32 * W));
}
template <int W> __device__ __forceinline__ void left_columns(uint32_t (&a)[4], uint32_t crossed, int x, int kk) /* A[m][k] = tile[k][m] */
{
    ldmatrix_x4_trans(a, (crossed ^ x << 5) + kk * (32 * W));
}
template <int ROWS> __device__ __forceinline__ void image_right(uint32_t (&b)[4], uint32_t crossed, int x, int kk) /* B[k][n] = image[n][k] */
{
    ldmatrix_x4(b, crossed + kk * (ROWS * 32) + x * 512);
}
template <int ROWS> __device__ __forceinline__ void image_left(uint32_t (&a)[4], uint32_t plain, int x, int kk) /* A[m][k] = image[m][k] */
{
    ldmatrix_x4(a, plain + kk * (ROWS * 32) + x * 512);
}
template <int W> __device__ __forceinline__ void right_columns(uint32_t (&b)[4], uint32_t plain, int x, int kk) /* B[k][n] = tile[k][n] */
{
    ldmatrix_x4_trans(b, (plain ^ x << 5) + kk * (32 * W));
}
__device__ __forceinline__ void mma_pair(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    mma_bf16(left, a, b[0], b[1]);
    mma_bf16(right, a, b[2], b[3]);
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/* Sum over the four lanes that share a row. */
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Shared memory, bytes. dO and dZ lie together, and make way for N, M [64][64] and for `stage` [64][K]. `state` holds S, then dS'. */
template <int K, int V> struct layout {
    static constexpr int value = C * V * 2, key = C * K * 2, square = C * C * 2;
    static constexpr int first = 2 * value > 2 * square + key ? 2 * value : 2 * square + key;
    static constexpr int dO = 0, dZ = value, N = 0, M = square, stage = 2 * square, U = first, k = U + value, q = k + key, state = q + key;
    static constexpr int gates = state + K * V * 2, bytes = gates + 4 * C * 4; /* 113 KB at 128: two CTAs fill a multiprocessor of 228 to the byte */
};

/* Per row of the chunk. */
struct gates {
    float e[C], l[C], G[C];
    int R[C];
};

/* Rows written with next to no strength, whose error is not in U: E_i = v_i - e_i S^T k_i - sum_{j<i} D_ij (k_i . k_j) U_j, dbeta_i = dR_i . E_i.
 * On entry dZ's row i is dR_i; becomes beta dR_i, as does dv's in memory. q makes way for sums and comes again. */
template <int K, int V>
__device__ void weak_rows(const outputs_args &p, const gates &w, uint8_t *shared, const float *betas, int64_t token, int rows, int h)
{
    using L = layout<K, V>;
    float *pairs = (float *)(shared + L::q), *sums = pairs + C; /* [64], [warps] */
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    auto element = [&](int tile, int width, int row, int column) -> bf16 * {
        return (bf16 *)(shared + tile + row * width * 2 + (((column / 8) ^ (row & 7)) << 4)) + column % 8;
    };
    auto of_image = [&](int image, int height, int row, int column) -> const bf16 * {
        return (const bf16 *)(shared + image_place(image + column / 16 * height * 32, row, column / 8 % 2)) + column % 8;
    };
    for (int i = 0; i < rows; i++) {
        const float beta = betas[i];
        if (beta >= LNT_DELTA_WEAK) continue;
        for (int j = warp; j < i; j += THREADS / 32) {
            float x = 0.f;
            for (int c = lane; c < K; c += 32) x += to_float(*element(L::k, K, i, c)) * to_float(*element(L::k, K, j, c));
            x = warp_sum(x);
            if (lane == 0) pairs[j] = x * lnt_gate_pair(w.G[i], w.R[i], w.G[j], w.R[j]);
        }
        __syncthreads();
        float x = 0.f;
        if (tid < V) {
            const int64_t at = ((token + i) * p.Hv + h) * V + tid;
            float read = 0.f;
            for (int c = 0; c < K; c++) read += to_float(*of_image(L::state, K, c, tid)) * to_float(*element(L::k, K, i, c));
            float E = to_float(p.v[at]) - w.e[i] * read;
            for (int j = 0; j < i; j++) E -= pairs[j] * to_float(*of_image(L::U, C, j, tid));
            bf16 *dR = element(L::dZ, V, i, tid);
            x = to_float(*dR) * E;
            *dR = from_float<bf16>(beta * to_float(*dR));
            if (p.put_dv) p.dv[at] = *dR;
        }
        x = warp_sum(x);
        if (lane == 0) sums[warp] = x;
        __syncthreads();
        if (tid == 0 && p.dbeta) {
            float sum = 0.f;
            for (int j = 0; j < THREADS / 32; j++) sum += sums[j];
            p.dbeta[(token + i) * p.Hv + h] = sum;
        }
        __syncthreads();
    }
    const int hq = h / (p.Hv / p.Hq);
    load_tile<K, C>(shared_address(shared) + L::q, p.q + (token * p.Hq + hq) * K, (int64_t)p.Hq * K, rows, p.k);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

/* ---- two CTAs of a cluster (Hopper) --------------------------------------------------------------------------------------------------- */

/* The two heads' sums of a warp's [16][KH]: the warp whose half it is not gives them to its like in the other CTA, the other adds. Which of the two
 * comes first does not change a sum. */
template <int KH> __device__ __forceinline__ void give(const float (&x)[KH / 8][4], uint32_t stage, uint32_t barrier, int rank, int rb)
{
    uint32_t there, over;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(stage + rb * (64 * KH) + (threadIdx.x & 31) * 16), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(over) : "r"(barrier), "r"(rank ^ 1));
#pragma unroll
    for (int n = 0; n < KH / 8; n++)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there + n * 512),
                     "f"(x[n][0]), "f"(x[n][1]), "f"(x[n][2]), "f"(x[n][3]), "r"(over)
                     : "memory");
}
template <int KH> __device__ __forceinline__ void take(float (&x)[KH / 8][4], uint32_t stage, uint32_t barrier, int rb)
{
    cluster_await(barrier, 0);
#pragma unroll
    for (int n = 0; n < KH / 8; n++) {
        const uint4 y = load_shared_16(stage + rb * (64 * KH) + (threadIdx.x & 31) * 16 + n * 512);
        x[n][0] += __uint_as_float(y.x);
        x[n][1] += __uint_as_float(y.y);
        x[n][2] += __uint_as_float(y.z);
        x[n][3] += __uint_as_float(y.w);
    }
}

/* A warp's [16][KH] of a result: float32 parts, or bf16 through its own place in `stage`. */
template <int K, int KH>
__device__ __forceinline__ void put_rows(const float (&x)[KH / 8][4], bf16 *out, float *parts, const outputs_args &p, int64_t token, int rows, int h,
                                         int hq, uint32_t stage, int rb, int ch)
{
    const int lane = threadIdx.x & 31, r = lane / 4, c = lane % 4;
    if (parts) {
        const int heads = p.part_heads, part = h / (p.Hv / heads);
#pragma unroll
        for (int n = 0; n < KH / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int i = 16 * rb + r + 8 * j;
                float *to = parts + ((token + i) * heads + part) * K + ch * KH + 8 * n + 2 * c;
                if (i < rows) *(float2 *)to = make_float2(x[n][2 * j], x[n][2 * j + 1]);
            }
        return;
    }
    if (!out) return;
    __syncwarp();
    const uint32_t mine = place<K>(stage, 16 * rb + r, ch * (KH / 8)) + 4 * c;
#pragma unroll
    for (int n = 0; n < KH / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) store_shared((mine ^ n << 4) + j * 16 * K, pack_bf16(x[n][2 * j], x[n][2 * j + 1]));
    __syncwarp();
    constexpr int PIECES = KH / 8, STEP = 32 / PIECES;
    const int row = 16 * rb + lane / PIECES, piece = ch * PIECES + lane % PIECES;
    const int64_t stride = (int64_t)p.Hq * K;
    bf16 *to = out + ((token + row) * p.Hq + hq) * K + piece * 8;
#pragma unroll
    for (int j = 0; j < 16 / STEP; j++)
        if (row + j * STEP < rows) *(uint4 *)(to + j * STEP * stride) = load_shared_16(place<K>(stage, row + j * STEP, piece));
}

/* dg_i = sum_{m >= i} dG_m (operators.md#gate-gradients), 0 at a reset; by one warp, rows lane and lane + 32. */
__device__ __forceinline__ void put_gate_gradient(const outputs_args &p, float low, float high, int64_t token, int rows, int h)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const float x = __shfl_down_sync(0xffffffffu, low, o), y = __shfl_down_sync(0xffffffffu, high, o);
        if (lane + o < 32) {
            low += x;
            high += y;
        }
    }
    low += __shfl_sync(0xffffffffu, high, 0);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = lane + 32 * j;
        const int64_t at = (token + i) * p.Hv + h;
        if (i < rows) p.dg[at] = p.g && lnt_gate_resets(p.g[at]) ? 0.f : j ? high : low; /* no g: decays of 1 */
    }
}

/* Of N's diagonal, row i: float32, in pieces of the tile right of the diagonal that no product reads. No decay reaches it; kept out of dG, where it
 * would only cancel. */
__device__ __forceinline__ uint32_t diagonal_of(uint32_t N, int i) { return place<C>(N, i / 4, 7) + i % 4 * 4; }

/* A CTA: a chunk and a value head; a warp: 16 tokens (rb) and half the columns of K (ch).
 *
 *   N = s tril(dO U^T) . D     M = -tril(dZ U^T, -1) . D     dbeta = diag(dZ U^T) / beta^2
 *   dQ = s e.(dO S^T) + N K    dKread = -e.(dZ S^T) + M K    dKwrite = l.(U dS'^T) + M^T K + N^T Q    dK = dKread + dKwrite
 *   dG_i = q_i.dQ_i + k_i.dKread_i - k_i.dKwrite_i, dG_n += <S', dS'> = e_n <S, dS'> + sum_i k_i . l_i (dS' u_i)  (operators.md#gate-gradients)
 *
 * PAIR: two CTAs of a cluster have two value heads of the same keys. Each finishes the columns of dq and dk that are its rank's half, for which the
 * other hands it its float32 sums through `stage`; what is then written belongs to `parts` heads of sums, one of each pair.
 *
 * bf16 operands, float32 sums. Two CTAs share a multiprocessor: while one waits for memory, the other computes.
 *
 * Long: a row of products that hand fragments on in registers and tiles on in shared memory, each place taken by what comes next, in the order that
 * the barriers fix. To be cut into its stages on a machine that shows that registers and time stay. */
template <int K, int V, bool WITH_PAIRS> __global__ __launch_bounds__(THREADS, 2) void outputs_kernel(const __grid_constant__ outputs_args p)
{
#if __CUDA_ARCH__ >= 900
    constexpr bool PAIR = WITH_PAIRS;
#else
    constexpr bool PAIR = false; /* never launched there with pairs */
#endif
    using L = layout<K, V>;
    constexpr int KH = K / 2;
    extern __shared__ __align__(1024) uint8_t shared[];
    const gates &w = *(const gates *)(shared + L::gates);
    const uint32_t base = shared_address(shared);
    const int tid = threadIdx.x, lane = tid & 31;
    const int warp = __shfl_sync(0xffffffffu, tid / 32 ^ (int)(blockIdx.x * 0x9E3779B9u >> 30), 0); /* as in pairs_kernel */
    const int rb = warp & 3, ch = warp >> 2, r = lane / 4, c = lane % 4;
    const int turn = (int)blockIdx.x / p.Hv, h = (int)blockIdx.x - turn * p.Hv, hq = h / (p.Hv / p.Hq);
    const int chunk = p.behind ? p.chunks - 1 - turn : turn, item = chunk * p.Hv + h;
    if (chunk < p.behind) wait_for_prior();
    const int4 entry = lnt_delta_entry(p.table, p.cu, chunk);
    const int64_t index = item;
    const int64_t token = entry.y, at_v = (token * p.Hv + h) * V, at_k = (token * p.Hq + hq) * K;
    const int rows = entry.z;
    const bool gated = p.g || p.dg; /* what a decay would have brought is asked for where there is none, too */
    const bf16 *S = p.S + index * (K * V), *dS = p.dS + index * (K * V);
    load_tile<V, C>(base + L::dO, p.d_o ? p.d_o + at_v : NULL, (int64_t)p.Hv * V, rows, p.k);
    load_tile<V, C>(base + L::dZ, p.dv + at_v, (int64_t)p.Hv * V, rows, p.k);
    load_image<C * V * 2>(base + L::U, p.U + index * (C * V));
    const float *F = p.F + index * (4 * C);
    const float strength = tid < rows ? F[tid] : 1.f;
    if (tid < 32) cp_async_16(base + L::gates + tid * 16, F + C + tid * 4);
    if (tid >= 32 && tid < 48) cp_async_16(base + L::gates + tid * 16, p.G + index * C + (tid - 32) * 4);
    if (tid >= 48 && tid < 64) cp_async_16(base + L::gates + tid * 16, p.R + index * C + (tid - 48) * 4);
    cp_async_commit();
    load_image<K * V * 2>(base + L::state, S);
    cp_async_commit();
    load_tile<K, C>(base + L::k, p.k + at_k, (int64_t)p.Hq * K, rows, p.k);
    load_tile<K, C>(base + L::q, p.q + at_k, (int64_t)p.Hq * K, rows, p.k);
    cp_async_commit();
    for (int e = tid; e < K * V / 64; e += THREADS) asm volatile("prefetch.global.L2 [%0];" ::"l"(dS + e * 64)); /* nobody waits for it yet */
    /* rows 16 rb + r + 8 j */
    float beta[2];
#pragma unroll
    for (int j = 0; j < 2; j++) beta[j] = F[16 * rb + r + 8 * j];
    const uint32_t plain = lane_plain<V>(base), plain_k = lane_plain<K>(base);
    const uint32_t image_plain = image_place(base, lane & 15, lane >> 4);
    const uint32_t image_crossed = image_place(base, (lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
    const uint32_t handover = place<C>(base + L::N, 0, 6); /* barriers of dq and dk, where no product reads */
    const uint32_t state = image_crossed + L::state + ch * (KH * 32);
    const uint32_t square_plain = lane_plain<C>(base), square_crossed = lane_crossed<C>(base);
    cp_async_wait<2>();
    if (__syncthreads_or(strength < LNT_DELTA_WEAK)) {
        cp_async_wait<0>();
        __syncthreads();
        weak_rows<K, V>(p, w, shared, F, token, rows, h);
    }

    /* N (ch = 0) or M (ch = 1), 16 rows */
    uint32_t pairs[8][2] = {};
    float diagonal[2] = {};
    {
        float x[8][4] = {};
        const uint32_t left = plain + (ch ? L::dZ : L::dO);
#pragma unroll
        for (int kk = 0; kk < V / 16; kk++) {
            uint32_t a[4], b[4];
            left_rows<V>(a, left, rb, kk);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j > rb) continue;
                image_right<C>(b, image_crossed + L::U, j, kk);
                mma_pair(x[2 * j], x[2 * j + 1], a, b);
            }
        }
#pragma unroll
        for (int q = 0; q < 4; q++) /* element (i, i): the lane with c = r / 2 has it */
            if (q == rb) {
                diagonal[0] = r & 1 ? x[2 * q][1] : x[2 * q][0];
                diagonal[1] = r & 1 ? x[2 * q + 1][3] : x[2 * q + 1][2];
            }
        float G[2], f[2];
        int R[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = 16 * rb + r + 8 * j;
            G[j] = w.G[i];
            R[j] = w.R[i];
            f[j] = ch ? -1.f : p.scale;
            if (ch && c == r / 2 && i < rows && p.dbeta && beta[j] >= LNT_DELTA_WEAK)
                p.dbeta[(token + i) * p.Hv + h] = diagonal[j] / (beta[j] * beta[j]);
            diagonal[j] *= p.scale;
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (n > 2 * rb + 1) continue;
            const float2 G_t = *(const float2 *)&w.G[8 * n + 2 * c];
            const int2 R_t = *(const int2 *)&w.R[8 * n + 2 * c];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int below = 16 * rb + r + 8 * j - 8 * n - 2 * c; /* i - t of the first of the two */
                float y = below > 0 ? f[j] * x[n][2 * j] : 0.f, z = below > 1 ? f[j] * x[n][2 * j + 1] : 0.f;
                if (gated) {
                    y *= below > 0 ? lnt_gate_pair(G[j], R[j], G_t.x, R_t.x) : 0.f;
                    z *= below > 1 ? lnt_gate_pair(G[j], R[j], G_t.y, R_t.y) : 0.f;
                }
                pairs[n][j] = pack_bf16(y, z);
            }
        }
    }

    cp_async_wait<1>();
    __syncthreads();
    float dq[KH / 8][4] = {}, read[KH / 8][4] = {};
#pragma unroll
    for (int kk = 0; kk < V / 16; kk++) {
        uint32_t a[4], z[4], b[4];
        left_rows<V>(a, plain + L::dO, rb, kk);
        left_rows<V>(z, plain + L::dZ, rb, kk);
#pragma unroll
        for (int n = 0; n < KH / 16; n++) {
            image_right<K>(b, state, n, kk);
            mma_pair(dq[2 * n], dq[2 * n + 1], a, b);
            mma_pair(read[2 * n], read[2 * n + 1], z, b);
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float e = w.e[16 * rb + r + 8 * j], se = p.scale * e;
#pragma unroll
        for (int n = 0; n < KH / 8; n++) {
            dq[n][2 * j] *= se;
            dq[n][2 * j + 1] *= se;
            read[n][2 * j] *= -e;
            read[n][2 * j + 1] *= -e;
        }
    }
    int rank = 0;
    __syncthreads(); /* dO, dZ and S have been read */
    if constexpr (PAIR) {
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        if (tid == 0) {
            cluster_barrier(handover);
            cluster_barrier(handover + 8);
        }
        cluster_arrive(); /* `stage` is free */
    }
    load_image<K * V * 2>(base + L::state, dS);
    cp_async_commit();
    {
        const uint32_t mine = place<C>(base + (ch ? L::M : L::N), 16 * rb + r, 0) + 4 * c;
#pragma unroll
        for (int n = 0; n < 8; n++)
            if (n <= 2 * rb + 1)
#pragma unroll
                for (int j = 0; j < 2; j++) store_shared((mine ^ n << 4) + j * 16 * C, pairs[n][j]);
        if (ch == 0 && c == r / 2)
#pragma unroll
            for (int j = 0; j < 2; j++) store_shared(diagonal_of(base + L::N, 16 * rb + r + 8 * j), __float_as_uint(diagonal[j]));
    }
    cp_async_wait<1>();
    __syncthreads();
    if (PAIR && tid == 0) {
        cluster_expect(handover, C * KH * 4);
        cluster_expect(handover + 8, C * KH * 4);
    }

#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        if (kk > rb) continue;
        uint32_t a[4], z[4], b[4];
        left_rows<C>(a, square_plain + L::N, rb, kk);
        left_rows<C>(z, square_plain + L::M, rb, kk);
#pragma unroll
        for (int n = 0; n < KH / 16; n++) {
            right_columns<K>(b, (plain_k ^ ch * KH * 2) + L::k, n, kk);
            mma_pair(dq[2 * n], dq[2 * n + 1], a, b);
            mma_pair(read[2 * n], read[2 * n + 1], z, b);
        }
    }
    float dG[2] = {}, inner = 0.f, own[2];
#pragma unroll
    for (int j = 0; j < 2; j++) own[j] = __uint_as_float(load_shared(diagonal_of(base + L::N, 16 * rb + r + 8 * j)));
    const uint32_t mine = place<K>(base, 16 * rb + r, ch * (KH / 8)) + 4 * c;
    auto key = [&](int tile, int n, int j) { return load_shared((mine ^ n << 4) + tile + j * 16 * K); };
#pragma unroll
    for (int n = 0; n < KH / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t k = key(L::k, n, j);
            float &x = dq[n][2 * j], &y = dq[n][2 * j + 1];
            if (gated) {
                const uint32_t q = key(L::q, n, j);
                dG[j] += low_bf16(q) * x + high_bf16(q) * y;
            }
            x += own[j] * low_bf16(k);
            y += own[j] * high_bf16(k);
        }
    if constexpr (PAIR) {
        cluster_wait();
        if (ch == rank)
            take<KH>(dq, base + L::stage, handover, rb);
        else
            give<KH>(dq, base + L::stage, handover, rank, rb);
    }
    if (!PAIR || ch == rank) put_rows<K, KH>(dq, p.dq, p.dq_parts, p, token, rows, h, hq, base + L::stage, rb, ch);
    if constexpr (PAIR) {
        __syncwarp();
        cluster_arrive(); /* free again */
    }

    cp_async_wait<0>();
    __syncthreads();
    float write[KH / 8][4] = {};
#pragma unroll
    for (int kk = 0; kk < V / 16; kk++) {
        uint32_t a[4], b[4];
        image_left<C>(a, image_plain + L::U, rb, kk);
#pragma unroll
        for (int n = 0; n < KH / 16; n++) {
            image_right<K>(b, state, n, kk);
            mma_pair(write[2 * n], write[2 * n + 1], a, b);
        }
    }
    if (gated) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float l = w.l[16 * rb + r + 8 * j];
#pragma unroll
            for (int n = 0; n < KH / 8; n++) {
                const uint32_t k = key(L::k, n, j);
                write[n][2 * j] *= l;
                write[n][2 * j + 1] *= l;
                inner += low_bf16(k) * write[n][2 * j] + high_bf16(k) * write[n][2 * j + 1];
            }
        }
        /* <S, dS'> on the diagonals of products: a lane's eight elements of S are rows r and r + 8 of an A, those of dS' column r of two Bs */
        float first[4] = {}, second[4] = {};
#pragma unroll 4
        for (int j = 0; j < K * V / 8 / THREADS; j++) {
            const uint4 x = *(const uint4 *)(S + (tid + j * THREADS) * 8), y = load_shared_16(base + L::state + (tid + j * THREADS) * 16);
            const uint32_t left[4] = { x.x, x.z, x.y, x.w };
            mma_bf16(first, left, y.x, y.y);
            mma_bf16(second, left, y.z, y.w);
        }
        const float sum = c == r / 2 ? r & 1 ? first[1] + second[3] : first[0] + second[2] : 0.f;
        inner += w.e[C - 1] * sum;
    }
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        if (kk < rb) continue;
        uint32_t a[4], z[4], b[4];
        left_columns<C>(a, square_crossed + L::N, rb, kk);
        left_columns<C>(z, square_crossed + L::M, rb, kk);
#pragma unroll
        for (int n = 0; n < KH / 16; n++) {
            right_columns<K>(b, (plain_k ^ ch * KH * 2) + L::q, n, kk);
            mma_pair(write[2 * n], write[2 * n + 1], a, b);
            right_columns<K>(b, (plain_k ^ ch * KH * 2) + L::k, n, kk);
            mma_pair(write[2 * n], write[2 * n + 1], z, b);
        }
    }
#pragma unroll
    for (int n = 0; n < KH / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t q = key(L::q, n, j);
            float &x = write[n][2 * j], &y = write[n][2 * j + 1];
            if (gated) {
                const uint32_t k = key(L::k, n, j);
                dG[j] += low_bf16(k) * (read[n][2 * j] - x) + high_bf16(k) * (read[n][2 * j + 1] - y);
            }
            x += read[n][2 * j] + own[j] * low_bf16(q);
            y += read[n][2 * j + 1] + own[j] * high_bf16(q);
        }
    if constexpr (PAIR) {
        cluster_wait();
        if (ch == rank)
            take<KH>(write, base + L::stage, handover + 8, rb);
        else
            give<KH>(write, base + L::stage, handover + 8, rank, rb);
    }
    if (!PAIR || ch == rank) put_rows<K, KH>(write, p.dk, p.dk_parts, p, token, rows, h, hq, base + L::stage, rb, ch);
    if (!p.dg) return;

    __syncthreads(); /* nobody reads U any more: its place takes the sums */
    float *row_sums = (float *)(shared + L::U), *inners = row_sums + 2 * C; /* [2][64], [warps] */
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float x = quad_sum(dG[j]);
        if (c == 0) row_sums[ch * C + 16 * rb + r + 8 * j] = x;
    }
    inner = warp_sum(inner);
    if (lane == 0) inners[warp] = inner;
    __syncthreads();
    if (warp == 0) {
        float low = row_sums[lane] + row_sums[C + lane], high = row_sums[lane + 32] + row_sums[C + lane + 32];
        if (lane == 31)
            for (int j = 0; j < THREADS / 32; j++) high += inners[j]; /* rows past the end have none of their own */
        put_gate_gradient(p, low, high, token, rows, h);
    }
}

/* out[t, hq, k] = sum over the value heads of hq, in order; eight columns a thread */
__global__ __launch_bounds__(THREADS) void gather_kernel(bf16 *out, const float *parts, int64_t count, int group, int K)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const float *x = parts + (i * 8 / K * group) * K + i * 8 % K;
    float sum[8] = {};
    for (int h = 0; h < group; h++) {
        float y[8];
        load_pack<8>(y, x + (int64_t)h * K);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += y[j];
    }
    store_pack<8>(out + i * 8, sum);
}

template <bool PAIR> cudaError_t put_outputs(const lnt_recur_args *a, const outputs_args &p, int64_t chunks, const lnt_cuda *d)
{
    auto put = [&](auto kernel, int bytes) { return lnt_delta_put(kernel, p, chunks * p.Hv, THREADS, bytes, PAIR ? 2 : 1, p.behind > 0, d); };
    if (a->K == 64)
        return a->V == 64 ? put(outputs_kernel<64, 64, PAIR>, layout<64, 64>::bytes) : put(outputs_kernel<64, 128, PAIR>, layout<64, 128>::bytes);
    return a->V == 64 ? put(outputs_kernel<128, 64, PAIR>, layout<128, 64>::bytes) : put(outputs_kernel<128, 128, PAIR>, layout<128, 128>::bytes);
}

/* What the pass keeps besides the sweep's. */
struct spills {
    bf16 *dS, *dv;
    float *dq_parts, *dk_parts;
    size_t bytes;
};

spills spills_at(const lnt_recur_args *a, const lnt_delta_sweep *w, void *at)
{
    spills s = {};
    auto take = [&](int64_t count, size_t size) {
        void *p = (char *)at + s.bytes;
        s.bytes += ((size_t)count * size + 255) / 256 * 256;
        return p;
    };
    const int64_t state = (int64_t)a->K * a->V;
    s.dS = (bf16 *)take(w->chunks * a->Hv * state, sizeof(bf16));
    s.dv = (bf16 *)take(a->tokens * a->Hv * a->V, sizeof(bf16)); /* where the caller wants none */
    if (a->Hv > a->Hq) {
        s.dq_parts = (float *)take(a->tokens * a->Hv * a->K, sizeof(float));
        s.dk_parts = (float *)take(a->tokens * a->Hv * a->K, sizeof(float));
    }
    return s;
}

/* Both chains; with segments, what comes out of each of them from zeros first. Where the call goes in parts the chain in reverse is cut: its first
 * part takes about as long as the whole other one; beside the rest, which is put last, the outputs of the chunks behind begin. Returns the first of
 * these, 0 without parts. */
int put_chains(const lnt_recur_args *a, const lnt_cuda *d, const lnt_delta_sweep *w, const spills *s, bf16 *dv, bool hopper)
{
    lnt_delta_chain p = lnt_delta_chain_of(a, w);
    p.d_o = (const bf16 *)a->do_;
    p.dsT = (const float *)a->dsT;
    const auto put = [&] {
        (hopper ? lnt_delta_chain_sm90 : lnt_delta_chain_sm80)(&p, d);
        (hopper ? lnt_delta_back_sm90 : lnt_delta_back_sm80)(&p, d);
    };
    const int64_t heads = a->sequences * a->Hv;
    if (w->segments > 1) {
        p.ends = true;
        p.wide = a->V == 128 && a->K == 128 && heads * (w->segments - 1) * ((2 * a->V + a->K) / 64) > d->base.multiprocessors;
        put();
        p.ends = false;
    }
    p.wide = a->V == 128 && heads * w->segments * (2 * a->V / 64) > d->base.multiprocessors;
    p.U = w->U;
    p.S = w->S;
    p.dv = dv;
    p.dS = s->dS;
    p.ds0 = (float *)a->ds0;
    if (!hopper || w->segments > 1 || !lnt_delta_in_parts(a, d)) {
        put();
        return 0;
    }
    const int cut = (int)(w->chunks / 4);
    lnt_delta_chain_sm90(&p, d);
    p.from = cut;
    p.ds0 = w->start;
    lnt_delta_back_sm90(&p, d);
    p.from = 0, p.until = cut, p.behind = true;
    p.dsT = w->start;
    p.ds0 = (float *)a->ds0;
    lnt_delta_back_sm90(&p, d);
    return cut;
}

} // namespace

size_t lnt_delta_fast_backward_workspace(const lnt_recur_args *a)
{
    const lnt_delta_sweep w = lnt_delta_sweep_at(a, NULL, true);
    return w.bytes + spills_at(a, &w, NULL).bytes;
}

static void backward(const lnt_recur_args *a, const lnt_device *device, bool plain)
{
    lnt_cuda *d = (lnt_cuda *)device;
    const bool hopper = d->base.capability / 10 == 9 && !plain;
    const lnt_delta_sweep w = lnt_delta_sweep_at(a, a->workspace, true);
    const spills s = spills_at(a, &w, (char *)a->workspace + w.bytes);
    lnt_delta_chunks_put(a, device, &w, 0, w.chunks);
    bf16 *dv = a->dv ? (bf16 *)a->dv : s.dv;
    const int behind = put_chains(a, d, &w, &s, dv, hopper);
    const bool pair = hopper && a->Hv / a->Hq % 2 == 0, parts = a->Hv / a->Hq > (pair ? 2 : 1);
    const outputs_args p = {
        .q = (const bf16 *)a->q, .k = (const bf16 *)a->k, .v = (const bf16 *)a->v, .d_o = (const bf16 *)a->do_, .U = w.U, .S = w.S, .dS = s.dS,
        .F = w.F, .G = w.G, .g = (const float *)a->g, .R = w.R, .table = w.table, .cu = a->cu_seqlens_device,
        .dq = (bf16 *)a->dq, .dk = (bf16 *)a->dk, .dv = dv,
        .dq_parts = a->dq && parts ? s.dq_parts : NULL, .dk_parts = a->dk && parts ? s.dk_parts : NULL,
        .dg = (float *)a->dg, .dbeta = (float *)a->dbeta,
        .Hq = a->Hq, .Hv = a->Hv, .part_heads = pair ? a->Hv / 2 : a->Hv, .scale = (float)a->scale, .put_dv = a->dv != NULL,
        .chunks = (int)w.chunks, .behind = behind,
    };
    lnt_cuda_note(d, (pair ? put_outputs<true> : put_outputs<false>)(a, p, w.chunks, d));
    const int64_t count = a->tokens * a->Hq * a->K / 8;
    const unsigned blocks = (unsigned)lnt_div_up(count, THREADS);
    const int each = p.part_heads / a->Hq;
    if (count && p.dq_parts) gather_kernel<<<blocks, THREADS, 0, d->stream>>>(p.dq, p.dq_parts, count, each, a->K);
    if (count && p.dk_parts) gather_kernel<<<blocks, THREADS, 0, d->stream>>>(p.dk, p.dk_parts, count, each, a->K);
}

/* Off Hopper, which has more than enough: the chain in reverse looks one stage ahead. */
int lnt_delta_fast_block_memory(const lnt_recur_args *a, bool backward)
{
    const bool segments = lnt_delta_sweep_at(a, NULL, backward).segments > 1, tall = a->K == 128;
    const int chain_stage = tall ? stage<128, 1, true>::bytes : stage<64, 1, true>::bytes;
    if (!backward) return ring_bytes(1, stash_bytes(a->K, true, false, false, segments), 1, chain_stage);
    const int chain = ring_bytes(1, stash_bytes(a->K, false, true, false, segments), 2, chain_stage);
    const int outputs = tall ? a->V == 128 ? layout<128, 128>::bytes : layout<128, 64>::bytes
                             : a->V == 128 ? layout<64, 128>::bytes : layout<64, 64>::bytes;
    return chain > outputs ? chain : outputs;
}
extern "C" void lnt_delta_sm80_backward(const void *args, const lnt_device *d) { backward((const lnt_recur_args *)args, d, true); }
extern "C" void lnt_delta_sm90_backward(const void *args, const lnt_device *d) { backward((const lnt_recur_args *)args, d, false); }
