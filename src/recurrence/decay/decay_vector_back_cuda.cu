/* Vector decay on tensor cores: the gradients of q, k and the gates, a chunk of a head at a time, from the states before it and the
 * gradients of the state behind it, which the chains leave. decay_vector_tiles.cuh has the tiles. With dA = s tril(dO V^T), R = dO S^T, W = V dS'^T:
 *
 *   dq_i = s e^{G_i}.R_i + sum_j dA_ij k_j e^{G_i - G_j}     dk_j = e^{G_n - G_j}.W_j + sum_i dA_ij q_i e^{G_i - G_j}     (operators.md#vector-decay)
 *   dg_t = e^{G_n} <S, dS'> + reads of S at and behind t + writes to dS' before t + pairs (i, j) with j < t <= i
 *
 * the last being sums of q.dq and k.dk, channel by channel, of which only those are taken that pass t: nothing cancels but what is said there. With
 * READS dq alone is made, from what lies before a row: it is also what a call with gates of V's columns reads (decay_vector_chunk_cuda.cu). */
#include "recurrence/decay/decay_vector_tiles.cuh"

namespace {

/* First dO, V, S, dS'; in their place R, W, the levels (then Y of q and of k, and sums of groups) and the groups' products; then what stays. */
template <int K, int V, bool READS> struct back_shared {
    static constexpr int T = K * 128, first = 2 * V * 128 + (READS ? 2 : 4) * K * V, second = 5 * T + 8 * K * 4;
    static constexpr int R = 0, W = T, levels = 2 * T, Yq = levels, Yk = levels + T, sums = levels + 2 * T, products = 5 * T;
    static constexpr int dA = ((first > second ? first : second) + 1023) / 1024 * 1024, direct = dA + (int)TILE, pass = direct + 2048;
    static constexpr int bytes = pass + 2 * K * 4 + 1024;
};

/* acc [16 rows][64 channels] of warp (rows 16 wr, channels 64 wc) as bf16 to a tile. */
__device__ __forceinline__ void put_acc(uint32_t tile, const float (&acc)[8][4], int wr, int wc)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const uint32_t to = tile + tile_at(16 * wr + lane / 4, 8 * wc + n) + 4 * (lane & 3);
        store_pair(to, pack_bf16(acc[n][0], acc[n][1]));
        store_pair(to + 1024, pack_bf16(acc[n][2], acc[n][3]));
    }
}
/* acc += A of 16 tokens, times rows `row` .. of a tile of tokens. HALF: of 8. */
template <bool HALF = false>
__device__ __forceinline__ void add_rows(float (&acc)[8][4], const uint32_t (&A)[4], uint32_t tile, int row, int wc)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t B[4];
        load_B_turned(B, tile, row, 8 * wc + 2 * n);
        mma_bf16(acc[2 * n], A, B[0], HALF ? 0 : B[1]);
        mma_bf16(acc[2 * n + 1], A, B[2], HALF ? 0 : B[3]);
    }
}

/* dO, V, S, dS' of V columns of values. */
template <int K, int V, bool READS, bool WIDE>
__device__ __forceinline__ void back_load(const vector_tiles &p, uint32_t base, int slice, int64_t item, int h, int64_t token, int rows)
{
    constexpr int THREADS = 2 * K;
    const int heads = WIDE ? p.Hv / p.key_slices : p.Hv, head = WIDE ? h / p.key_slices : h, slices = WIDE ? p.value_slices : 1;
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < C * V / 8; i += THREADS) {
        const int row = i / (V / 8), piece = i % (V / 8);
        const int64_t at = (((token + row) * heads + head) * slices + slice) * V + piece * 8;
        const bool real = row < rows;
        cp_async_16(base + tile_at(row, piece), real && p.d_o ? p.d_o + at : p.v, real && p.d_o);
        cp_async_16(base + V * 128 + tile_at(row, piece), real ? p.v + at : p.v, real);
    }
    const int64_t image = (item * slices + slice) * (K * V);
    for (int i = tid; i < K * V / 8; i += THREADS) {
        cp_async_16(base + 2 * V * 128 + i * 16, p.S + image + i * 8);
        if (!READS) cp_async_16(base + 2 * V * 128 + K * V * 2 + i * 16, p.dS + image + i * 8);
    }
    cp_async_commit();
}
/* A warp's products with tiles of V columns of values: dA += dO V^T, of which it has NT tiles of 8 columns, R += dO S^T, W += V dS'^T. */
template <int K> constexpr int BACK_NT = 8 / (K / 64);
template <int K, int V, bool READS>
__device__ __forceinline__ void back_products(uint32_t base, float (&dA)[BACK_NT<K>][4], float (&R)[8][4], float (&W)[8][4])
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, wr = warp % 4, wc = warp / 4;
    const uint32_t d_o = base, v = base + V * 128, S = v + V * 128, dS = S + K * V * 2;
    constexpr int NT = BACK_NT<K>;
#pragma unroll
    for (int kk = 0; kk < V / 16; kk++) {
        uint32_t A[4], Av[4], B[4];
        load_A(A, d_o, 16 * wr, 2 * kk);
        if (!READS) load_A(Av, v, 16 * wr, 2 * kk);
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            if (wc * NT / 2 + n > wr) continue;
            load_B(B, v, (wc * NT / 2 + n) * 16, 2 * kk);
            mma_bf16(dA[2 * n], A, B[0], B[1]);
            mma_bf16(dA[2 * n + 1], A, B[2], B[3]);
        }
        const int row = (lane & 7) + (lane >> 4 << 3);
        const uint32_t image = kk * K * 32 + (64 * wc + row) * 32 + (((lane >> 3 & 1) ^ (row >> 2 & 1)) << 4);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            ldmatrix_x4(B, S + image + n * 512);
            mma_bf16(R[2 * n], A, B[0], B[1]);
            mma_bf16(R[2 * n + 1], A, B[2], B[3]);
            if (READS) continue;
            ldmatrix_x4(B, dS + image + n * 512);
            mma_bf16(W[2 * n], Av, B[0], B[1]);
            mma_bf16(W[2 * n + 1], Av, B[2], B[3]);
        }
    }
}
/* s tril(dA) to memory. */
template <int K, int V, bool READS>
__device__ __forceinline__ void put_dA(const vector_tiles &p, uint32_t base, uint8_t *shared, const float (&dA)[BACK_NT<K>][4])
{
    using L = back_shared<K, V, READS>;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, wr = warp % 4, wc = warp / 4;
    constexpr int NT = BACK_NT<K>;
    float *direct = (float *)(shared + L::direct);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int tile = wc * NT + n, r = lane / 4, c = 2 * (lane & 3);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 16 * wr + 8 * half + r, j = 8 * tile + c;
            const float x = j <= i ? p.scale * dA[n][2 * half] : 0.f, y = j + 1 <= i ? p.scale * dA[n][2 * half + 1] : 0.f;
            store_pair(base + L::dA + tile_at(i, tile) + 2 * c, pack_bf16(x, y));
            if (tile == 2 * wr + half) *(float2 *)(direct + tile * 64 + r * 8 + c) = make_float2(x, y);
        }
    }
}

/* Sums over V of S . dS', a thread half of a channel's. */
template <int K, int V> __device__ __forceinline__ float back_pass(uint32_t S, uint32_t dS)
{
    const int k = threadIdx.x % K, half = threadIdx.x / K;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < V / 32; i++)
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            const uint32_t at = (half * (V / 32) + i) * K * 32 + k * 32 + ((piece ^ (k >> 2 & 1)) << 4);
            const uint4 x = load_shared_16(S + at), y = load_shared_16(dS + at);
            sum += low_bf16(x.x) * low_bf16(y.x) + high_bf16(x.x) * high_bf16(y.x) + low_bf16(x.y) * low_bf16(y.y) + high_bf16(x.y) * high_bf16(y.y);
            sum += low_bf16(x.z) * low_bf16(y.z) + high_bf16(x.z) * high_bf16(y.z) + low_bf16(x.w) * low_bf16(y.w) + high_bf16(x.w) * high_bf16(y.w);
        }
    return sum;
}

/* Y [16 rows][64 channels]: what dq (dk) of a row has from the pairs of the tree, but for the factor inside its group of 8. From level to level the
 * place to which the sum is decayed comes closer to the row (away from the root of the tree). */
template <int K, bool READS>
__device__ __forceinline__ void tree_of_q(float (&Y)[8][4], uint32_t dA, uint32_t levels, const float *products, int wr, int wc)
{
    const int c = 64 * wc + 2 * (threadIdx.x & 3);
    uint32_t A[4];
    if (wr >= 2)
#pragma unroll
        for (int kk = 0; kk < 2; kk++) {
            load_A(A, dA, 16 * wr, 2 * kk);
            add_rows(Y, A, levels + 2 * K * 128, 16 * kk, wc);
        }
#pragma unroll
    for (int n = 0; n < 8; n++) { /* over part 2, to part 3 */
        const float2 x = *(const float2 *)(products + 2 * K + c + 8 * n), y = *(const float2 *)(products + 6 * K + c + 8 * n);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (wr == 3) Y[n][j] *= j & 1 ? x.y * y.y : x.x * y.x;
    }
    if (wr & 1) {
        load_A(A, dA, 16 * wr, 2 * wr - 2);
        add_rows(Y, A, levels + K * 128, 16 * wr - 16, wc);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) { /* over the first group, to the second */
        const float2 x = *(const float2 *)(products + wr * K + c + 8 * n);
        Y[n][2] *= x.x;
        Y[n][3] *= x.y;
    }
    load_A(A, dA, 16 * wr, 2 * wr);
    A[0] = A[2] = A[3] = 0; /* rows 8-15, columns 0-7 */
    float first[8][2];      /* of what is read forwards: no NaN of theirs is for rows 0-7 */
#pragma unroll
    for (int n = 0; n < 8 && READS; n++) first[n][0] = Y[n][0], first[n][1] = Y[n][1];
    add_rows<true>(Y, A, levels, 16 * wr, wc);
#pragma unroll
    for (int n = 0; n < 8 && READS; n++) Y[n][0] = first[n][0], Y[n][1] = first[n][1];
}
template <int K> __device__ __forceinline__ void tree_of_k(float (&Y)[8][4], uint32_t dA, uint32_t levels, const float *products, int wr, int wc)
{
    const int c = 64 * wc + 2 * (threadIdx.x & 3);
    uint32_t A[4];
    if (wr < 2)
#pragma unroll
        for (int kk = 2; kk < 4; kk++) {
            load_A_turned(A, dA, 16 * kk, 2 * wr);
            add_rows(Y, A, levels + 2 * K * 128, 16 * kk, wc);
        }
#pragma unroll
    for (int n = 0; n < 8; n++) { /* over part 1, to part 0 */
        const float2 x = *(const float2 *)(products + K + c + 8 * n), y = *(const float2 *)(products + 5 * K + c + 8 * n);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (wr == 0) Y[n][j] *= j & 1 ? x.y * y.y : x.x * y.x;
    }
    if (!(wr & 1)) {
        load_A_turned(A, dA, 16 * wr + 16, 2 * wr);
        add_rows(Y, A, levels + K * 128, 16 * wr + 16, wc);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) { /* over the second group, to the first */
        const float2 x = *(const float2 *)(products + (4 + wr) * K + c + 8 * n);
        Y[n][0] *= x.x;
        Y[n][1] *= x.y;
    }
    load_A_turned(A, dA, 16 * wr, 2 * wr);
    A[0] = A[1] = A[3] = 0; /* rows j of 0-7, columns i of 8-15 */
    add_rows(Y, A, levels, 16 * wr, wc);
}

/* dq, dk of a thread's channels in the 8 rows of a group, and of dg what happens inside it, in the place of R and W; sums [8 groups][4][K]: reads and
 * writes of the state, reads and writes of the tree. READS: dq alone. */
template <int K, int V, bool BEFORE, bool READS>
__device__ __forceinline__ void back_rows(const vector_tiles &p, const vector_part<K> &x, int g, uint32_t base, const float *direct, float *sums,
                                          float (&du)[2], int64_t token, int rows, int h)
{
    using L = back_shared<K, V, READS>;
    vector_group<K, BEFORE> of;
    of.load(p, token, x.row(g), rows, h, x.pair);
    of.raise();
    float up[8][2], down[8][2], dq[8][2], dk[8][2], dg[8][2], total[4][2] = {};
    const float *pairs = direct + (2 * x.part + g) * 64;
    of.inside(up, down);
    float reads_more[2], writes_more[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        reads_more[e] = p.scale * x.before[e] * (g ? x.G[0][e] : 1.f);
        writes_more[e] = x.behind[e] * (g ? 1.f : x.G[1][e]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t at = base + x.in_tile(x.row(g) + i);
        const uint32_t R = load_pair(at + L::R), Yq = load_pair(at + L::Yq);
        const uint32_t W = READS ? 0 : load_pair(at + L::W), Yk = READS ? 0 : load_pair(at + L::Yk);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float q = e ? high_bf16(of.q[i]) : low_bf16(of.q[i]), k = e ? high_bf16(of.k[i]) : low_bf16(of.k[i]);
            const float reads = reads_more[e] * up[i][e] * (e ? high_bf16(R) : low_bf16(R));
            const float writes = writes_more[e] * down[i][e] * (e ? high_bf16(W) : low_bf16(W));
            const float tree_q = up[i][e] * (e ? high_bf16(Yq) : low_bf16(Yq)), tree_k = down[i][e] * (e ? high_bf16(Yk) : low_bf16(Yk));
            dq[i][e] = reads + tree_q;
            dk[i][e] = writes + tree_k;
            total[0][e] += q * reads;
            total[1][e] += k * writes;
            total[2][e] += q * tree_q;
            total[3][e] += k * tree_k;
        }
    }
#pragma unroll
    for (int i = 0; i < 4 && !READS; i++) *(float2 *)(sums + ((2 * x.part + g) * 4 + i) * K + 2 * x.pair) = make_float2(total[i][0], total[i][1]);
    float2 u = make_float2(1.f, 1.f);
    if (BEFORE) u = *(const float2 *)(p.bonus + h * K + 2 * x.pair);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float behind = 0, before = 0, q[8], k[8];
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = e ? high_bf16(of.q[i]) : low_bf16(of.q[i]), k[i] = e ? high_bf16(of.k[i]) : low_bf16(of.k[i]);
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            if (BEFORE) dg[i][e] = behind;
            behind += q[i] * dq[i][e];
            if (!BEFORE) dg[i][e] = behind;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            dg[i][e] += before;
            before += k[i] * dk[i][e];
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float own = pairs[9 * j] * (BEFORE ? e ? u.y : u.x : 1.f);
            float through[8], w = 1.f, sum = 0;
            dq[j][e] += own * k[j];
            dk[j][e] += own * q[j];
            if (BEFORE) du[e] += pairs[9 * j] * q[j] * k[j];
#pragma unroll
            for (int i = j + 1; i < 8; i++) {
                if (!BEFORE) w *= of.a[i][e];
                const float y = pairs[8 * i + j] * w, read = y * k[j];
                dq[i][e] += read;
                dk[j][e] += y * q[i];
                through[i] = read * q[i];
                if (BEFORE) w *= of.a[i][e];
            }
#pragma unroll
            for (int i = 7; i > j; i--) { /* pair (i, j) passes the gates of j+1 .. i, `before`: of j+1 .. i-1 */
                sum += through[i];
                if (!BEFORE)
                    dg[i][e] += sum;
                else if (i - 1 > j)
                    dg[i - 1][e] += sum;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t place = base + x.in_tile(x.row(g) + i);
        if (!READS) store_pair(place + L::R, __float_as_uint(dg[i][0])), store_pair(place + L::W, __float_as_uint(dg[i][1]));
        if (x.row(g) + i >= rows) continue;
        const int64_t at = (token + x.row(g) + i) * p.Hv * K + h * K + 2 * x.pair;
        if (p.dq) *(uint32_t *)(p.dq + at) = pack_bf16(dq[i][0], dq[i][1]);
        if (!READS && p.dk) *(uint32_t *)(p.dk + at) = pack_bf16(dk[i][0], dk[i][1]);
    }
}

/* What passes over groups, to the gates of all their rows; out they go. */
template <int K, int V>
__device__ __forceinline__ void back_gates(const vector_tiles &p, const vector_part<K> &x, uint32_t base, const float *sums, const float *products,
                                           const float *pass, int64_t token, int rows, int h)
{
    using L = back_shared<K, V, false>;
    float all[2][2];
    const float2 s0 = *(const float2 *)(pass + 2 * x.pair), s1 = *(const float2 *)(pass + K + 2 * x.pair);
#pragma unroll
    for (int e = 0; e < 2; e++) all[0][e] = all[1][e] = x.before[e] * x.G[0][e] * x.G[1][e] * x.behind[e] * (e ? s0.y + s1.y : s0.x + s1.x);
    add_over_groups(
        all, 2 * x.part, [&](int group) { return *(const float2 *)(products + ((group & 1) * 4 + group / 2) * K + 2 * x.pair); },
        [&](int group, int i) { return *(const float2 *)(sums + (group * 4 + i) * K + 2 * x.pair); });
#pragma unroll
    for (int g = 0; g < 2; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = x.row(g) + i;
            if (row >= rows) continue;
            const uint32_t place = base + x.in_tile(row);
            const int64_t at = (token + row) * p.Hv * K + h * K + 2 * x.pair;
            const float2 gate = *(const float2 *)(p.gk + at);
            const float dg0 = __uint_as_float(load_pair(place + L::R)) + all[g][0], dg1 = __uint_as_float(load_pair(place + L::W)) + all[g][1];
            *(float2 *)(p.dgk + at) = make_float2(fast_exp(gate.x) == 0.f ? 0.f : dg0, fast_exp(gate.y) == 0.f ? 0.f : dg1);
        }
}

/* WIDE: of heads in slices. */
template <int K, int V, bool BEFORE, bool READS, bool WIDE>
__global__ __launch_bounds__(2 * K, 256 / K) void vector_back(const __grid_constant__ vector_tiles p)
{
    using L = back_shared<K, V, READS>;
    constexpr int THREADS = 2 * K;
    extern __shared__ uint8_t raw[];
    await_last();
    let_next();
    uint8_t *shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    const uint32_t base = shared_address(shared);
    float *products = (float *)(shared + L::products), *pass = (float *)(shared + L::pass), *sums = (float *)(shared + L::sums);
    const int h = (int)(blockIdx.x % p.Hv), tid = (int)threadIdx.x, warp = tid / 32, wr = warp % 4, wc = warp / 4;
    const int64_t slot = blockIdx.x / p.Hv, item = slot * p.Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p, slot, &token, &rows)) return;

    {
        float dA[BACK_NT<K>][4] = {}, R[8][4] = {}, W[8][4] = {};
#pragma unroll 1
        for (int slice = 0; slice < (WIDE ? p.value_slices : 1); slice++) {
            if (slice) __syncthreads();
            back_load<K, V, READS, WIDE>(p, base, slice, item, h, token, rows);
            for (int i = tid; slice == 0 && i < rows * (K / 32); i += THREADS) { /* what is read later begins its way */
                const int64_t at = ((token + i / (K / 32)) * p.Hv + h) * K + i % (K / 32) * 32;
                ahead_l2(p.gk + at);
                if (i % 2 == 0 && p.q) ahead_l2(p.q + at);
                if (i % 2 == 0) ahead_l2(p.k + at);
            }
            cp_async_wait<0>();
            __syncthreads();
            back_products<K, V, READS>(base, dA, R, W);
            if (READS) continue;
            const float more = back_pass<K, V>(base + 2 * V * 128, base + 2 * V * 128 + K * V * 2);
            pass[tid] = slice ? pass[tid] + more : more;
        }
        put_dA<K, V, READS>(p, base, shared, dA);
        __syncthreads();
        put_acc(base + L::R, R, wr, wc);
        if (!READS) put_acc(base + L::W, W, wr, wc);
    }
    vector_part<K> x;
    {
        vector_group<K, BEFORE> of[2];
#pragma unroll
        for (int g = 0; g < 2; g++) of[g].load(p, token, x.row(g), rows, h, x.pair);
        of[0].raise();
        of[1].raise();
        x.put_products(products, of);
        __syncthreads();
        x.get_products(products);
        const auto none = [](int, const float(&)[2], const float(&)[2], const float(&)[2], const float(&)[2]) {};
        x.template put_levels<BEFORE, true>(base + L::levels, of, none);
    }
    __syncthreads();
    {
        float Yq[8][4] = {}, Yk[8][4] = {};
        tree_of_q<K, READS>(Yq, base + L::dA, base + L::levels, products, wr, wc);
        if (!READS) tree_of_k<K>(Yk, base + L::dA, base + L::levels, products, wr, wc);
        __syncthreads();
        put_acc(base + L::Yq, Yq, wr, wc);
        if (!READS) put_acc(base + L::Yk, Yk, wr, wc);
    }
    __syncthreads();
    x.get_products(products);
    float du[2] = { 0, 0 };
#pragma unroll 1
    for (int g = 0; g < 2; g++) back_rows<K, V, BEFORE, READS>(p, x, g, base, (const float *)(shared + L::direct), sums, du, token, rows, h);
    if constexpr (READS) return;
    __syncthreads();
    if (p.dgk) back_gates<K, V>(p, x, base, sums, products, pass, token, rows, h);
    if (BEFORE && p.du) {
        float *of = (float *)(shared + L::Yq); /* [4][K] */
        *(float2 *)(of + x.part * K + 2 * x.pair) = make_float2(du[0], du[1]);
        __syncthreads();
        if (tid < K) p.du[item * K + tid] = (of[tid] + of[K + tid]) + (of[2 * K + tid] + of[3 * K + tid]);
    }
}

template <int K, int V> int bytes_of(bool reads) { return reads ? back_shared<K, V, true>::bytes : back_shared<K, V, false>::bytes; }
template <int K, int V, bool WIDE> void put_back(const vector_call *a, const vector_tiles &p, bool reads, const lnt_cuda *d)
{
    const dim3 grid((unsigned)((a->tokens / C + a->sequences) * a->Hv));
    const auto kernel = reads       ? vector_back<K, V, false, true, WIDE>
                        : a->before ? vector_back<K, V, true, false, WIDE>
                                    : vector_back<K, V, false, false, WIDE>;
    lnt_launch_with(d, kernel, grid, 2 * K, bytes_of<K, V>(reads), 1, p);
}

template <bool WIDE> void put_back(const vector_call *a, const vector_tiles &p, bool reads, const lnt_cuda *d)
{
    const int V = lnt_decay_slice(a->V);
    if (a->K == 64)
        (V == 64 ? put_back<64, 64, WIDE> : put_back<64, 128, WIDE>)(a, p, reads, d);
    else
        (V == 64 ? put_back<128, 64, WIDE> : put_back<128, 128, WIDE>)(a, p, reads, d);
}

} // namespace

void lnt_vector_back(const vector_call *a, const vector_tiles &p, bool reads, const lnt_cuda *d)
{
    (p.key_slices * p.value_slices > 1 ? put_back<true> : put_back<false>)(a, p, reads, d);
}
int lnt_vector_back_bytes(const vector_call *a, bool reads)
{
    const int V = lnt_decay_slice(a->V);
    return (a->K == 64 ? V == 64 ? bytes_of<64, 64> : bytes_of<64, 128> : V == 64 ? bytes_of<128, 64> : bytes_of<128, 128>)(reads);
}
