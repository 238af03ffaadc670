/* The delta rule under a gate for each key channel: the gradients of its rows, gates and strengths, a chunk of a head at a time, from what the
 * chains leave (delta_vector.cuh). Two rows read, q and k or, untied, a; one row writes what is known, k, or two, k and b. With readers' cotangents
 * dO and dX, and writers' values X, or V and X,
 *
 *   N_rw = tril(cotangent_r value_w^T)     dreader_r = e.(cotangent_r S^T) + sum_w readers(N_rw, writer_w)
 *                                          dwriter_w = l.(value_w dS'^T) + sum_r writers(N_rw, reader_r)      (operators.md#delta, #untied)
 *
 * where q has the scale and KDA's erasing k the sign -1; a pair has the factor of what lies between its rows, which a binary tree splits
 * (decay_vector_tiles.cuh). dg as decay_vector_back_cuda.cu has it: a channel's reads of what lies before its group of 8 rows, its writes for what
 * lies behind, pairs inside one by one, and what passes over whole groups. A thread has two channels of a group of 8 rows. */
#include "recurrence/delta/delta_vector_group.cuh"

namespace {

/* First cotangents, values, S, dS'; in their place what the products leave, R of readers and W of writers, and the levels of the tree, two sets: rows
 * of second halves hold q or the other reader, of first halves k or b. Then in the levels' place Y of readers and writers, sums of groups, and
 * gates. */
template <int K, int V, bool UNTIED> struct back_shared {
    static constexpr int T = K * 128, VALUES = UNTIED ? 2 : 1;
    enum { d_o = 0, dX = V * 128, X = 2 * V * 128, v = 3 * V * 128, S = (UNTIED ? 4 : 3) * V * 128, dS = S + 2 * K * V, first = dS + 2 * K * V };
    enum { R = 0, W = 2 * T, levels = (2 + VALUES) * T, Y = levels, sums = levels + 4 * T, gates = levels + 5 * T, second = levels + 6 * T };
    static constexpr int N = (int)first > (int)second ? (int)first : (int)second, direct = N + 2 * VALUES * (int)TILE,
                         products = direct + 2 * VALUES * 2048, pass = products + 8 * K * 4, diagonal = pass + 4 * K * 4,
                         bytes = diagonal + C * 4;
    static_assert(8 * 4 * K * 4 <= T, "sums are a tile");
};

/* ---- products with tiles of V ------------------------------------------------------------------------------------------------------------- */

/* 16 rows and 32 channels (16 rows and columns of N) of a warp. */
struct warp_place {
    int row, column;
    __device__ __forceinline__ warp_place() : row(threadIdx.x / 32 % 4), column(threadIdx.x / 128) {}
};

/* From an image [V/16][ROWS][16] as the chains leave it (delta_parts.cuh): A of 16 rows from `row` on and V 16 kk .., and the same rows as B. */
template <int ROWS> __device__ __forceinline__ void image_A(uint32_t (&a)[4], uint32_t image, int kk, int row)
{
    const int lane = threadIdx.x & 31, r = row + (lane & 15);
    ldmatrix_x4(a, image + kk * (ROWS * 32) + r * 32 + (((lane >> 4) ^ (r >> 2 & 1)) << 4));
}
template <int ROWS> __device__ __forceinline__ void image_B(uint32_t (&b)[4], uint32_t image, int kk, int row)
{
    const int lane = threadIdx.x & 31, r = row + (lane & 7) + (lane >> 4 << 3);
    ldmatrix_x4(b, image + kk * (ROWS * 32) + r * 32 + (((lane >> 3 & 1) ^ (r >> 2 & 1)) << 4));
}
__device__ __forceinline__ void add_pair(float (&x)[4], float (&y)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    mma_bf16(x, a, b[0], b[1]);
    mma_bf16(y, a, b[2], b[3]);
}

/* N of both readers and all writers to memory, diagonal blocks in float32 too, and the diagonal of dZ U^T. */
template <int K, int V, bool UNTIED> __device__ __forceinline__ void pair_gradients(const delta_vector &p, uint32_t base, uint8_t *shared)
{
    using L = back_shared<K, V, UNTIED>;
    constexpr int BLOCKS = 4 / (K / 32), VALUES = L::VALUES;
    const warp_place me;
    const int lane = threadIdx.x & 31;
    float N[2][VALUES][2 * BLOCKS][4] = {};
#pragma unroll 1
    for (uint32_t at = base; at < base + V / 64 * TILE; at += TILE) /* 64 of V, of a tile and of an image; all at once would hold 8 places each */
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            uint32_t A[2][4], B[4];
            load_A(A[0], at + L::d_o, 16 * me.row, 2 * kk);
            image_A<C>(A[1], at + L::dX, kk, 16 * me.row);
#pragma unroll
            for (int n = 0; n < BLOCKS; n++) {
                const int block = me.column * BLOCKS + n;
                if (block > me.row) continue;
                image_B<C>(B, at + L::X, kk, 16 * block);
#pragma unroll
                for (int r = 0; r < 2; r++) add_pair(N[r][VALUES - 1][2 * n], N[r][VALUES - 1][2 * n + 1], A[r], B);
                if constexpr (UNTIED) {
                    load_B(B, at + L::v, 16 * block, 2 * kk);
#pragma unroll
                    for (int r = 0; r < 2; r++) add_pair(N[r][0][2 * n], N[r][0][2 * n + 1], A[r], B);
                }
            }
        }
    float *direct = (float *)(shared + L::direct);
#pragma unroll
    for (int n = 0; n < 2 * BLOCKS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int tile = 2 * me.column * BLOCKS + n, r = lane / 4, c = 2 * (lane & 3), i = 16 * me.row + 8 * half + r, j = 8 * tile + c;
            if (!UNTIED && i / 2 == j / 2) ((float *)(shared + L::diagonal))[i] = i % 2 ? N[1][0][n][2 * half + 1] : N[1][0][n][2 * half];
#pragma unroll
            for (int reader = 0; reader < 2; reader++)
#pragma unroll
                for (int value = 0; value < VALUES; value++) {
                    const int which = reader * VALUES + value;
                    const float factor = reader == 0 ? p.in.scale : UNTIED ? 1.f : -1.f;
                    const float x = j + reader <= i ? factor * N[reader][value][n][2 * half] : 0.f;
                    const float y = j + 1 + reader <= i ? factor * N[reader][value][n][2 * half + 1] : 0.f;
                    store_pair(base + L::N + which * TILE + tile_at(i, tile) + 2 * c, pack_bf16(x, y));
                    if (tile == 2 * me.row + half) *(float2 *)(direct + (which * 8 + tile) * 64 + r * 8 + c) = make_float2(x, y);
                }
        }
}

/* acc [16 rows][32 channels] to a tile [64][K]. */
__device__ __forceinline__ void put_acc(uint32_t tile, const float (&acc)[4][4], const warp_place &me, float factor = 1.f)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t to = tile + tile_at(16 * me.row + lane / 4, 4 * me.column + n) + 4 * (lane & 3);
        store_pair(to, pack_bf16(factor * acc[n][0], factor * acc[n][1]));
        store_pair(to + 1024, pack_bf16(factor * acc[n][2], factor * acc[n][3])); /* 8 rows on: the same place in its row */
    }
}

/* cotangents S^T of readers and values dS'^T of writers, and the sums over V of S . dS', a thread a quarter of a channel's. */
template <int K, int V, bool UNTIED> __device__ __forceinline__ void state_gradients(const delta_vector &p, uint32_t base, uint8_t *shared)
{
    using L = back_shared<K, V, UNTIED>;
    const warp_place me;
    float R[2][4][4] = {}, W[L::VALUES][4][4] = {};
#pragma unroll 1
    for (int half = 0; half < V / 64; half++) {
        const uint32_t at = base + half * TILE, state = base + half * (4 * K * 32);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            uint32_t A[2][4], x[4], v[4], B[4];
            load_A(A[0], at + L::d_o, 16 * me.row, 2 * kk);
            image_A<C>(A[1], at + L::dX, kk, 16 * me.row);
            image_A<C>(x, at + L::X, kk, 16 * me.row);
            if constexpr (UNTIED) load_A(v, at + L::v, 16 * me.row, 2 * kk);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                image_B<K>(B, state + L::S, kk, 32 * me.column + 16 * n);
#pragma unroll
                for (int r = 0; r < 2; r++) add_pair(R[r][2 * n], R[r][2 * n + 1], A[r], B);
                image_B<K>(B, state + L::dS, kk, 32 * me.column + 16 * n);
                add_pair(W[L::VALUES - 1][2 * n], W[L::VALUES - 1][2 * n + 1], x, B);
                if constexpr (UNTIED) add_pair(W[0][2 * n], W[0][2 * n + 1], v, B);
            }
        }
    }
    const int channel = threadIdx.x % K, part = threadIdx.x / K;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < V / 32; i++) { /* a quarter of V */
        const uint32_t at = base + (part * (V / 64) + i / 2) * (K * 32) + channel * 32 + i % 2 * 16;
        const uint4 x = load_shared_16(at + L::S), y = load_shared_16(at + L::dS);
        sum += low_bf16(x.x) * low_bf16(y.x) + high_bf16(x.x) * high_bf16(y.x) + low_bf16(x.y) * low_bf16(y.y) + high_bf16(x.y) * high_bf16(y.y);
        sum += low_bf16(x.z) * low_bf16(y.z) + high_bf16(x.z) * high_bf16(y.z) + low_bf16(x.w) * low_bf16(y.w) + high_bf16(x.w) * high_bf16(y.w);
    }
    ((float *)(shared + L::pass))[part * K + channel] = sum;
    __syncthreads();
    put_acc(base + L::R, R[0], me, p.in.scale);
    put_acc(base + L::R + L::T, R[1], me, UNTIED ? 1.f : -1.f);
#pragma unroll
    for (int i = 0; i < L::VALUES; i++) put_acc(base + L::W + i * L::T, W[i], me);
}

/* ---- the tree of pairs -------------------------------------------------------------------------------------------------------------------- */

/* Y += A of 16 tokens, times rows `row` .. of a tile of tokens. */
__device__ __forceinline__ void add_rows(float (&Y)[4][4], const uint32_t (&A)[4], uint32_t tile, int row, const warp_place &me)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        uint32_t B[4];
        load_B_turned(B, tile, row, 4 * me.column + 2 * n);
        add_pair(Y[2 * n], Y[2 * n + 1], A, B);
    }
}
/* Y of the rows chosen, times the product of a group. */
template <int K>
__device__ __forceinline__ void over_group(float (&Y)[4][4], const float *products, int group, const warp_place &me, bool low, bool high)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 x = *(const float2 *)(products + group * K + 32 * me.column + 8 * n + 2 * (threadIdx.x & 3));
        if (low) Y[n][0] *= x.x, Y[n][1] *= x.y;
        if (high) Y[n][2] *= x.x, Y[n][3] *= x.y;
    }
}

/* Y [16 rows][32 channels]: what the gradient of a reader (a writer) has from the pairs of the tree, but for the factor inside its group of 8. From
 * level to level the place to which the sum is decayed comes closer to the row. COUNT: tiles N of its own, at steps of `step`, and sets of levels. */
template <int K, int COUNT>
__device__ __forceinline__ void tree_of_reader(float (&Y)[4][4], uint32_t N, uint32_t step, uint32_t levels, const float *products,
                                               const warp_place &me)
{
    constexpr uint32_t T = K * 128;
    uint32_t A[4];
    if (me.row >= 2)
#pragma unroll
        for (int s = 0; s < COUNT; s++)
#pragma unroll
            for (int kk = 0; kk < 2; kk++) {
                load_A(A, N + s * step, 16 * me.row, 2 * kk);
                add_rows(Y, A, levels + (3 * s + 2) * T, 16 * kk, me);
            }
    if (me.row == 3) {
        over_group<K>(Y, products, 4, me, true, true);
        over_group<K>(Y, products, 5, me, true, true);
    }
    if (me.row & 1)
#pragma unroll
        for (int s = 0; s < COUNT; s++) {
            load_A(A, N + s * step, 16 * me.row, 2 * me.row - 2);
            add_rows(Y, A, levels + (3 * s + 1) * T, 16 * me.row - 16, me);
        }
    over_group<K>(Y, products, 2 * me.row, me, false, true);
#pragma unroll
    for (int s = 0; s < COUNT; s++) {
        load_A(A, N + s * step, 16 * me.row, 2 * me.row);
        A[0] = A[2] = A[3] = 0; /* rows 8-15, columns 0-7 */
        add_rows(Y, A, levels + 3 * s * T, 16 * me.row, me);
    }
}
template <int K>
__device__ __forceinline__ void tree_of_writer(float (&Y)[4][4], uint32_t N, uint32_t step, uint32_t levels, const float *products,
                                               const warp_place &me)
{
    constexpr uint32_t T = K * 128;
    uint32_t A[4];
    if (me.row < 2)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int kk = 2; kk < 4; kk++) {
                load_A_turned(A, N + r * step, 16 * kk, 2 * me.row);
                add_rows(Y, A, levels + (3 * r + 2) * T, 16 * kk, me);
            }
    if (me.row == 0) {
        over_group<K>(Y, products, 2, me, true, true);
        over_group<K>(Y, products, 3, me, true, true);
    }
    if (!(me.row & 1))
#pragma unroll
        for (int r = 0; r < 2; r++) {
            load_A_turned(A, N + r * step, 16 * me.row + 16, 2 * me.row);
            add_rows(Y, A, levels + (3 * r + 1) * T, 16 * me.row + 16, me);
        }
    over_group<K>(Y, products, 2 * me.row + 1, me, true, false);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        load_A_turned(A, N + r * step, 16 * me.row, 2 * me.row);
        A[0] = A[1] = A[3] = 0; /* rows j of 0-7, columns i of 8-15 */
        add_rows(Y, A, levels + 3 * r * T, 16 * me.row, me);
    }
}

template <int K, int V, bool UNTIED> __device__ __forceinline__ void trees(uint32_t base, const float *products)
{
    using L = back_shared<K, V, UNTIED>;
    const warp_place me;
    float readers[2][4][4] = {}, writers[L::VALUES][4][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++)
        tree_of_reader<K, L::VALUES>(readers[r], base + L::N + r * L::VALUES * TILE, TILE, base + L::levels, products, me);
#pragma unroll
    for (int w = 0; w < L::VALUES; w++) tree_of_writer<K>(writers[w], base + L::N + w * TILE, L::VALUES * TILE, base + L::levels, products, me);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) put_acc(base + L::Y + r * L::T, readers[r], me);
#pragma unroll
    for (int w = 0; w < L::VALUES; w++) put_acc(base + L::Y + (2 + w) * L::T, writers[w], me);
}

/* ---- rows --------------------------------------------------------------------------------------------------------------------------------- */

/* One of a thread's two channels of a group of 8 rows: their factors, and q, k and, untied, a, b of two rows in a register. */
template <bool UNTIED> struct back_column {
    static constexpr int ROWS = UNTIED ? 4 : 2;
    float a[8];
    uint32_t x[ROWS][4];
    __device__ __forceinline__ float row(int which, int i) const { return i % 2 ? high_bf16(x[which][i / 2]) : low_bf16(x[which][i / 2]); }
};

/* The second (e) or the first of a thread's two channels: gradients of the rows, into the places of R and W; of the gates what happens inside the
 * group, e: into that of Y, else into the last tile of levels; sums of its reads and writes of the state, and of the tree, each times its row. */
template <int K, int OF, int V, bool UNTIED>
__device__ __forceinline__ void back_channel(back_column<UNTIED> &of, const delta_group<K, UNTIED, OF> &place, const delta_around<K> &near,
                                             uint32_t base, uint8_t *shared, int e)
{
    using L = back_shared<K, V, UNTIED>;
    constexpr int VALUES = L::VALUES;
    const float *direct = (const float *)(shared + L::direct) + place.group * 64;
    const uint32_t of_two = e ? 0x3244 : 0x1044;
    const auto half = [of_two](uint32_t x) { return __uint_as_float(__byte_perm(x, 0, of_two)); };
    const auto reader = [&](int r, int i) { return of.row(r == 0 ? 0 : UNTIED ? 2 : 1, i); };
    const auto writer = [&](int w, int i) { return of.row(w == 0 ? 1 : 3, i); };
    const auto factor = [&](int i) { return of.a[i]; };
    float dreader[2][8], dwriter[VALUES][8], dg[8], total[4] = {}, x = 1.f, y = 1.f, before = 0, behind = 0;
    const float all_before = e ? near.before[1] : near.before[0], all_behind = e ? near.behind[1] : near.behind[0];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float less = x;
        x *= factor(i);
        const uint32_t at = base + place.in_tile(i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float up = UNTIED && r == 1 ? less : x;
            const float reads = all_before * up * half(load_pair(at + L::R + r * L::T)), tree = up * half(load_pair(at + L::Y + r * L::T));
            dreader[r][i] = reads + tree;
            total[0] += reader(r, i) * reads;
            total[2] += reader(r, i) * tree;
        }
    }
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        const uint32_t at = base + place.in_tile(i);
#pragma unroll
        for (int w = 0; w < VALUES; w++) {
            const float writes = all_behind * y * half(load_pair(at + L::W + w * L::T));
            const float tree = y * half(load_pair(at + L::Y + (2 + w) * L::T));
            dwriter[w][i] = writes + tree;
            total[1] += writer(w, i) * writes;
            total[3] += writer(w, i) * tree;
        }
        y *= factor(i);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) ((float *)(shared + L::sums))[(place.group * 4 + i) * K + 2 * place.pair + e] = total[i];
#pragma unroll
    for (int i = 7; i >= 0; i--) { /* a reader passes the gates up to its row, or to the row before */
        behind += reader(0, i) * dreader[0][i];
        if (!UNTIED) behind += reader(1, i) * dreader[1][i];
        dg[i] = behind;
        if (UNTIED) behind += reader(1, i) * dreader[1][i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        dg[i] += before;
#pragma unroll
        for (int w = 0; w < VALUES; w++) before += writer(w, i) * dwriter[w][i];
    }
#pragma unroll
    for (int w = 0; w < VALUES; w++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float own = direct[w * 512 + 9 * j]; /* a row reads what it wrote itself, through no gate */
            dreader[0][j] += own * writer(w, j);
            dwriter[w][j] += own * reader(0, j);
            float through[8], f = 1.f, sum = 0; /* of the pairs that end at a row's gate */
#pragma unroll
            for (int i = j + 1; i < 8; i++) {
                const float shorter = f;
                f *= factor(i);
                through[i] = 0;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const bool early = UNTIED && r == 1;
                    const float pair = direct[(r * VALUES + w) * 512 + 8 * i + j] * (early ? shorter : f), read = pair * writer(w, j);
                    dreader[r][i] += read;
                    dwriter[w][j] += pair * reader(r, i);
                    if (!early || i > j + 1) through[early ? i - 1 : i] += read * reader(r, i); /* early: it reads what the row before left */
                }
            }
#pragma unroll
            for (int i = 7; i > j; i--) dg[i] += sum += through[i];
        }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint8_t *to = shared + place.in_tile(i);
        *(bf16 *)(to + L::R + 2 * e) = from_float<bf16>(dreader[0][i]);
        *(bf16 *)(to + L::R + L::T + 2 * e) = from_float<bf16>(UNTIED ? dreader[1][i] : dreader[1][i] + dwriter[0][i]);
        if constexpr (UNTIED)
#pragma unroll
            for (int w = 0; w < VALUES; w++) *(bf16 *)(to + L::W + w * L::T + 2 * e) = from_float<bf16>(dwriter[w][i]);
        float *const gate = (float *)(to + (e ? L::Y : L::gates));
        of.a[i] = *gate; /* the second channel's */
        *gate = dg[i];
    }
}

template <int K, int OF, int V, bool UNTIED>
__device__ __forceinline__ void back_rows(const delta_vector &p, const delta_place &w, const float *products, uint32_t base, uint8_t *shared)
{
    using L = back_shared<K, V, UNTIED>;
    constexpr int THREADS = 4 * K;
    const delta_group<K, UNTIED, OF> of;
    back_column<UNTIED> x;
    uint4 *const rest = (uint4 *)(shared + L::N) + threadIdx.x; /* the second channel waits where N was, its factors where gates will be */
    static_assert(back_column<UNTIED>::ROWS * THREADS * 16 <= L::direct - L::N, "room for a channel of each thread");
    {
        delta_group<K, UNTIED, OF> both;
        both.load(p, w);
#pragma unroll
        for (int i = 0; i < 8; i++) x.a[i] = both.a[i][0], *(float *)(shared + L::gates + of.in_tile(i)) = both.a[i][1];
#pragma unroll
        for (int r = 0; r < back_column<UNTIED>::ROWS; r++) {
            uint32_t y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.x[r][i] = __byte_perm(both.x[r][2 * i], both.x[r][2 * i + 1], 0x5410);
                y[i] = __byte_perm(both.x[r][2 * i], both.x[r][2 * i + 1], 0x7632);
            }
            rest[r * THREADS] = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
    const delta_around<K> near(products, of.group, of.pair);
#pragma unroll 1
    for (int e = 0; e < 2; e++) {
        back_channel<K, OF, V, UNTIED>(x, of, near, base, shared, e);
#pragma unroll
        for (int r = 0; r < back_column<UNTIED>::ROWS; r++) {
            const uint4 y = rest[r * THREADS];
            x.x[r][0] = y.x, x.x[r][1] = y.y, x.x[r][2] = y.z, x.x[r][3] = y.w;
        }
    }
    bf16 *const to[4] = { p.in.dq, UNTIED ? p.da : p.in.dk, p.in.dk, p.db };
#pragma unroll
    for (int o = 0; o < (UNTIED ? 4 : 2); o++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (to[o] && 8 * of.group + i < w.rows)
                *(uint32_t *)(to[o] + of.in_memory(p, w, i)) = load_pair(base + of.in_tile(i) + o * L::T); /* R and W, one behind the other */
}

/* What passes over a group, to the gates of all its rows; out they go. */
template <int K, int OF, int V, bool UNTIED>
__device__ __forceinline__ void back_gates(const delta_vector &p, const delta_place &w, const uint8_t *shared)
{
    using L = back_shared<K, V, UNTIED>;
    const float *sums = (const float *)(shared + L::sums), *products = (const float *)(shared + L::products);
    const float *pass = (const float *)(shared + L::pass);
    const delta_group<K, UNTIED, OF> of;
    const delta_around<K> near(products, of.group, of.pair);
    float all[1][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = *(const float2 *)(pass + i * K + 2 * of.pair);
        all[0][0] += y.x, all[0][1] += y.y;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) all[0][e] *= near.before[e] * near.own[e] * near.behind[e];
    add_over_groups(
        all, of.group, [&](int group) { return *(const float2 *)(products + group * K + 2 * of.pair); },
        [&](int group, int i) { return *(const float2 *)(sums + (group * 4 + i) * K + 2 * of.pair); });
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (8 * of.group + i >= w.rows) continue;
        const int64_t at = of.in_memory(p, w, i);
        const float2 gate = *(const float2 *)(p.in.gk + at);
        const float dg0 = *(const float *)(shared + L::gates + of.in_tile(i)) + all[0][0];
        const float dg1 = *(const float *)(shared + L::Y + of.in_tile(i)) + all[0][1];
        *(float2 *)(p.in.dgk + at) = make_float2(fast_exp(gate.x) == 0.f ? 0.f : dg0, fast_exp(gate.y) == 0.f ? 0.f : dg1);
    }
}

template <int K, int OF, int V, bool UNTIED> __device__ __forceinline__ void back_load(const delta_vector &p, const delta_place &w, uint32_t base)
{
    using L = back_shared<K, V, UNTIED>;
    constexpr int THREADS = 4 * K;
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < C * V / 8; i += THREADS) {
        const int row = i / (V / 8), piece = i % (V / 8);
        const int64_t at = ((w.token + row) * p.in.Hv + w.h) * V + piece * 8;
        const bool real = row < w.rows;
        cp_async_16(base + L::d_o + tile_at(row, piece), real && p.in.d_o ? p.in.d_o + at : p.in.v, real && p.in.d_o);
        if constexpr (UNTIED) cp_async_16(base + L::v + tile_at(row, piece), real ? p.in.v + at : p.in.v, real);
        cp_async_16(base + L::dX + i * 16, p.of.dX + w.item * (V * C) + i * 8);
        cp_async_16(base + L::X + i * 16, p.of.X + w.item * (V * C) + i * 8);
    }
    cp_async_commit(); /* all that pairs need */
    for (int i = tid; i < K * V / 8; i += THREADS) {
        const int64_t at = (w.item * V + i / (2 * K) * 16) * OF + w.channel * 16 + i % (2 * K) * 8;
        cp_async_16(base + L::S + i * 16, p.of.S + at);
        cp_async_16(base + L::dS + i * 16, p.of.dS + at);
    }
    cp_async_commit();
    for (int i = tid; i < w.rows * (K / 32); i += THREADS) { /* what is read later begins its way */
        const int64_t at = ((w.token + i / (K / 32)) * p.in.Hv + w.h) * OF + w.channel + i % (K / 32) * 32;
        ahead_l2(p.in.gk + at);
        if (i % 2 == 0) ahead_l2(p.in.q + at), ahead_l2(p.in.k + at);
        if (UNTIED && i % 2 == 0) ahead_l2(p.a + at), ahead_l2(p.b + at);
    }
}

/* A chunk of a head, K of its OF channels: what is left of them is independent but for N, which each CTA makes. */
template <int K, int OF, int V, bool UNTIED>
__global__ __launch_bounds__(4 * K, K == 64 && !UNTIED ? 2 : 1) void delta_vector_back(const __grid_constant__ delta_vector p)
{
    using L = back_shared<K, V, UNTIED>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int64_t head = blockIdx.x / (OF / K), turn = head / p.in.Hv, slot = p.behind ? p.slots - 1 - turn : turn;
    if (slot < p.behind || !p.behind) await_last();
    let_next();
    const uint32_t base = shared_address(shared);
    float *products = (float *)(shared + L::products);
    delta_place w;
    w.h = (int)(head % p.in.Hv);
    w.item = slot * p.in.Hv + w.h;
    w.channel = (int)(blockIdx.x % (OF / K)) * K;
    if (!chunk_of(p.in, slot, &w.token, &w.rows)) return;

    back_load<K, OF, V, UNTIED>(p, w, base);
    cp_async_wait<1>();
    __syncthreads();
    pair_gradients<K, V, UNTIED>(p, base, shared);
    cp_async_wait<0>();
    __syncthreads();
    state_gradients<K, V, UNTIED>(p, base, shared);
    {
        delta_group<K, UNTIED, OF> of;
        of.load(p, w);
        put_products(products, of);
        __syncthreads();
        put_levels(base + L::levels, products, of);
    }
    __syncthreads();
    if (!UNTIED && p.dbeta && w.channel == 0 && (int)threadIdx.x < w.rows) { /* over b^2 */
        const int64_t at = (w.token + threadIdx.x) * p.in.Hv + w.h;
        const float beta = p.beta[at], b = fabsf(beta) < LNT_DELTA_LEAST ? LNT_DELTA_LEAST : beta;
        p.dbeta[at] = ((const float *)(shared + L::diagonal))[threadIdx.x] / b / b;
    }
    trees<K, V, UNTIED>(base, products);
    __syncthreads();
    back_rows<K, OF, V, UNTIED>(p, w, products, base, shared);
    __syncthreads();
    if (p.in.dgk) back_gates<K, OF, V, UNTIED>(p, w, shared);
}

template <int K, int OF, int V, bool UNTIED> void put_back_as(const delta_vector &p, const lnt_cuda *d)
{
    const dim3 grid((unsigned)(p.slots * p.in.Hv * (OF / K)));
    lnt_launch_with(d, delta_vector_back<K, OF, V, UNTIED>, grid, 4 * K, back_shared<K, V, UNTIED>::bytes, 1, p);
}
/* Tied, 64 channels a CTA leave room for two on a multiprocessor. */
template <int K, int V> void put_back(const delta_vector &p, const lnt_cuda *d)
{
    (p.untied ? put_back_as<K, K, V, true> : put_back_as<64, K, V, false>)(p, d);
}

} // namespace

void lnt_delta_vector_back(const delta_vector &p, const lnt_cuda *d)
{
    const auto put = p.K == 64 ? p.V == 64 ? put_back<64, 64> : put_back<64, 128> : p.V == 64 ? put_back<128, 64> : put_back<128, 128>;
    put(p, d);
}
