/* What is made of every chunk before the chains of the delta rule under a gate for each channel (delta_vector.cuh): decayed rows, pairs, e^{G_n}; and
 * from the pairs T. Pairs of rows are the tree of decay_vector_tiles.cuh, for two readers and one or two writers at once; inside 8 rows they are
 * summed one by one in float32. A thread has two channels of a group of 8 rows. */
#include "recurrence/delta/delta_vector_group.cuh"

namespace {

/* ---- decayed rows and pairs ------------------------------------------------------------------------------------------------------------------- */

/* Pairs inside 8 rows of a writer: with q, j <= i, at i (i + 1) / 2 + j; with the other reader, j < i, at 36 + i (i - 1) / 2 + j. */
constexpr int PAIRS8 = 64;

/* 64 channels at a time; from one 64 to the next sums of pairs, a thread's own, wait beside the levels, whose place the tiles of pairs take then. */
constexpr int PART = 64, PART_THREADS = 4 * PART;
template <bool UNTIED> struct prepare_shared {
    static constexpr int T = PART * 128, WRITERS = UNTIED ? 2 : 1, TILES = 2 * WRITERS, JOBS = 16 * TILES * 32 / PART_THREADS;
    static constexpr int levels = 0, pairs = 0, sums = 6 * T, products = sums + JOBS * PART_THREADS * 16, direct = products + 8 * PART * 4,
                         bytes = direct + WRITERS * 8 * PAIRS8 * 4 + 1024;
};

/* Sums over the warp's 64 channels. */
template <bool UNTIED, int OF> __device__ __forceinline__ void put_direct(float *direct, const delta_group<PART, UNTIED, OF> &of, bool add)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int w = 0; w < (UNTIED ? 2 : 1); w++) {
        const uint32_t(&writer)[8] = of.x[w == 0 ? 1 : 3], (&second)[8] = of.x[UNTIED ? 2 : 1];
        float sums[PAIRS8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float w0 = low_bf16(writer[j]), w1 = high_bf16(writer[j]);
            sums[j * (j + 1) / 2 + j] = low_bf16(of.x[0][j]) * w0 + high_bf16(of.x[0][j]) * w1;
#pragma unroll
            for (int i = j + 1; i < 8; i++) {
                const float before = low_bf16(second[i]) * w0 + high_bf16(second[i]) * w1;
                w0 *= of.a[i][0], w1 *= of.a[i][1];
                sums[i * (i + 1) / 2 + j] = low_bf16(of.x[0][i]) * w0 + high_bf16(of.x[0][i]) * w1;
                sums[36 + i * (i - 1) / 2 + j] = UNTIED ? before : low_bf16(second[i]) * w0 + high_bf16(second[i]) * w1;
            }
        }
        float *to = direct + (w * 8 + of.group) * PAIRS8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most[32];
#pragma unroll
            for (int i = 0; i < 32; i++) most[i] = sums[32 * half + i];
            const float sum = sum_each(most);
            to[32 * half + lane] = add ? to[32 * half + lane] + sum : sum;
        }
    }
}

/* Readers and writers of the whole chunk, and e^{G_n}. */
template <int K, bool UNTIED>
__device__ __forceinline__ void put_rows(const delta_vector &p, const delta_place &w, const float *products, const delta_group<PART, UNTIED, K> &of)
{
    const delta_around<PART> near(products, of.group, of.pair);
    const int64_t at = w.item * (C * K) * 2 + w.channel / 64 * TILE;
    char *const reader = (char *)p.of.reader + at, *const erase = (char *)p.of.erase + at, *const write = (char *)p.of.write + at;
    char *const value_write = (char *)p.of.value_write + at;
    float up[2] = { near.before[0], near.before[1] }, down[8][2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float y = near.behind[e];
#pragma unroll
        for (int i = 7; i >= 0; i--) down[i][e] = y, y *= of.a[i][e];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t place = of.in_tile(i), second = of.x[UNTIED ? 2 : 1][i], first = of.x[1][i];
        if (UNTIED) *(uint32_t *)(erase + place) = pack_bf16(up[0] * low_bf16(second), up[1] * high_bf16(second));
        up[0] *= of.a[i][0], up[1] *= of.a[i][1];
        if (!UNTIED) *(uint32_t *)(erase + place) = pack_bf16(up[0] * low_bf16(second), up[1] * high_bf16(second));
        *(uint32_t *)(reader + place) = pack_bf16(p.in.scale * up[0] * low_bf16(of.x[0][i]), p.in.scale * up[1] * high_bf16(of.x[0][i]));
        *(uint32_t *)((UNTIED ? value_write : write) + place) = pack_bf16(down[i][0] * low_bf16(first), down[i][1] * high_bf16(first));
        if constexpr (UNTIED) *(uint32_t *)(write + place) = pack_bf16(down[i][0] * low_bf16(of.x[3][i]), down[i][1] * high_bf16(of.x[3][i]));
    }
    if (of.group == 7) *(float2 *)(p.of.E + w.item * K + w.channel + 2 * of.pair) = make_float2(up[0], up[1]);
}

/* A warp's blocks of pairs, 16 rows and 8 columns: of a tile eight of level 32, four of 16, four of 8, whose first 8 rows are not wanted. Tile n / 2
 * is of reader n / 2 / WRITERS, 0 being q, and writer n / 2 % WRITERS, 0 being k. */
struct pair_block {
    int level, row, column;
    __device__ __forceinline__ pair_block(int n)
    {
        const int job = n % 2 * 8 + (int)threadIdx.x / 32;
        level = n % 2 == 0 ? 2 : job < 12 ? 1 : 0;
        row = level == 2 ? 32 + job / 4 * 16 : level == 1 ? 16 + (job - 8) / 2 * 32 : (job - 12) * 16;
        column = level == 2 ? job % 4 * 8 : level == 1 ? row - 16 + (job & 1) * 8 : row;
    }
};
template <bool UNTIED> __device__ __forceinline__ void add_pairs(uint32_t base, uint8_t *shared, bool first)
{
    using L = prepare_shared<UNTIED>;
    const int lane = threadIdx.x & 31;
    float4 *const sums = (float4 *)(shared + L::sums) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < L::JOBS; n++) {
        const pair_block at(n);
        const int reader = n / 2 / L::WRITERS, writer = n / 2 % L::WRITERS;
        const uint32_t rows = base + L::levels + (3 * reader + at.level) * L::T, columns = base + L::levels + (3 * writer + at.level) * L::T;
        const float4 before = first ? make_float4(0.f, 0.f, 0.f, 0.f) : sums[n * PART_THREADS];
        float acc[4] = { before.x, before.y, before.z, before.w };
#pragma unroll
        for (int kk = 0; kk < PART / 16; kk++) {
            uint32_t A[4], B[2];
            load_A(A, rows, at.row, 2 * kk);
            ldmatrix_x2(B, columns + tile_at(at.column + (lane & 7), 2 * kk + (lane >> 3 & 1)));
            mma_bf16(acc, A, B[0], B[1]);
        }
        sums[n * PART_THREADS] = make_float4(acc[0], acc[1], acc[2], acc[3]);
    }
}
template <bool UNTIED> __device__ __forceinline__ void put_pairs(uint32_t base, uint8_t *shared, float scale)
{
    using L = prepare_shared<UNTIED>;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < L::JOBS; n++) {
        const pair_block at(n);
        const float factor = n / 2 < L::WRITERS ? scale : 1.f;
        const uint32_t to = base + L::pairs + n / 2 * TILE + tile_at(at.row + lane / 4, at.column / 8) + 4 * (lane & 3);
        const float4 sum = ((const float4 *)(shared + L::sums))[n * PART_THREADS + (int)threadIdx.x];
        if (at.level) store_pair(to, pack_bf16(factor * sum.x, factor * sum.y));
        store_pair(to + 1024, pack_bf16(factor * sum.z, factor * sum.w)); /* 8 rows on: the same place in its row */
    }
    const float *direct = (const float *)(shared + L::direct);
    for (int n = (int)threadIdx.x; n < L::WRITERS * 8 * PAIRS8; n += PART_THREADS) {
        const int writer = n / (8 * PAIRS8), group = n / PAIRS8 % 8, place = n % PAIRS8, strict = place >= 36, m = place - 36 * strict;
        const int d = strict; /* rows of 1, 2, .. pairs, from row d on */
        const int r = d + (m >= 1) + (m >= 3) + (m >= 6) + (m >= 10) + (m >= 15) + (m >= 21) + (m >= 28), c = m - (r - d) * (r - d + 1) / 2;
        const uint32_t to = L::pairs + (strict * L::WRITERS + writer) * TILE + tile_at(8 * group + r, group) + 2 * c;
        *(bf16 *)(shared + to) = from_float<bf16>((strict ? 1.f : scale) * direct[n]);
    }
}

/* What the next 64 channels are made of begins its way: 128 bytes of each bf16 row, twice as many of gates. */
template <int K, bool UNTIED> __device__ __forceinline__ void next_part(const delta_vector &p, const delta_place &w)
{
    const int row = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
    if (row >= w.rows) return;
    const int64_t at = ((w.token + row) * p.in.Hv + w.h) * K + w.channel;
    ahead_l2(part == 0 ? (const void *)(p.in.q + at) : part == 1 ? (const void *)(p.in.k + at) : p.in.gk + at + (part - 2) * 32);
    if (UNTIED && part < 2) ahead_l2((part ? p.b : p.a) + at);
}

template <int K, bool UNTIED> __global__ __launch_bounds__(PART_THREADS, 2) void delta_vector_rows(const __grid_constant__ delta_vector p)
{
    using L = prepare_shared<UNTIED>;
    extern __shared__ __align__(1024) uint8_t raw[];
    if (!p.from) await_last();
    let_next();
    if (p.from && blockIdx.x + 1 == gridDim.x) {
        await_last(); /* one is enough for the kernel to end after the one ahead, and the others' places are wanted */
        return;
    }
    uint8_t *shared = raw + (-shared_address(raw) & 1023);
    const uint32_t base = shared_address(shared);
    float *products = (float *)(shared + L::products);
    const int64_t slot = p.from + blockIdx.x / p.in.Hv;
    delta_place w;
    w.h = (int)(blockIdx.x % p.in.Hv);
    w.item = slot * p.in.Hv + w.h;
    if (!chunk_of(p.in, slot, &w.token, &w.rows)) return;

#pragma unroll 1
    for (w.channel = 0; w.channel < K; w.channel += PART) {
        delta_group<PART, UNTIED, K> of;
        w.h = anew(w.h);
        of.load(p, w);
        if (K > PART && w.channel == 0) {
            delta_place next = w;
            next.channel = PART;
            next_part<K, UNTIED>(p, next);
        }
        put_products(products, of);
        put_direct<UNTIED>((float *)(shared + L::direct), of, w.channel > 0);
        __syncthreads();
        put_levels(base + L::levels, products, of);
        put_rows<K, UNTIED>(p, w, products, of);
        __syncthreads();
        add_pairs<UNTIED>(base, shared, w.channel == 0);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < L::TILES * (int)TILE / 16; i += PART_THREADS) *(uint4 *)(shared + L::pairs + i * 16) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    put_pairs<UNTIED>(base, shared, p.in.scale);
    __syncthreads();
    bf16 *const to[4] = { UNTIED ? p.of.value_P : p.of.P, UNTIED ? p.of.P : p.of.strict, p.of.A_ak, p.of.strict };
#pragma unroll
    for (int n = 0; n < L::TILES; n++)
        for (int i = (int)threadIdx.x; i < (int)TILE / 16; i += PART_THREADS)
            *(uint4 *)((char *)(to[n] + w.item * (C * C)) + i * 16) = *(const uint4 *)(shared + L::pairs + n * TILE + i * 16);
}

template <int K, bool UNTIED> void put_rows_kernel(const delta_vector &p, const lnt_cuda *d)
{
    const dim3 grid((unsigned)((p.until - p.from) * p.in.Hv + (p.from > 0)));
    lnt_launch_with(d, delta_vector_rows<K, UNTIED>, grid, PART_THREADS, prepare_shared<UNTIED>::bytes, 1, p);
}

/* ---- T and M ------------------------------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ float strength_of(float beta) { return fabsf(beta) < LNT_DELTA_LEAST ? LNT_DELTA_LEAST : beta; }

/* A column of T, or of M, of which the rows from FIRST on are not zero, from the matrix less 1 (A) and the right side. */
template <int FIRST, typename R, typename P> __device__ __forceinline__ void solve_column(const float (*A)[C], R right, P put)
{
    float x[C];
#pragma unroll
    for (int i = FIRST; i < C; i++) {
        float sum[4] = { right(i), 0.f, 0.f, 0.f };
#pragma unroll
        for (int j = FIRST; j < i; j++) sum[j % 4] = fmaf(-A[i][j], x[j], sum[j % 4]);
        x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
        put(i, x[i]);
    }
}

/* A column of T, or of M, a thread. M's takes the place of A_ak's in shared memory. */
template <bool UNTIED> __global__ __launch_bounds__(UNTIED ? 2 * C : C) void delta_solve(const __grid_constant__ delta_vector p)
{
    constexpr int THREADS = UNTIED ? 2 * C : C, UNITS = (int)TILE / 16;
    __shared__ __align__(16) float A[C][C];
    __shared__ __align__(16) uint8_t tiles[(UNTIED ? 2 : 1) * TILE];
    __shared__ float beta[C];
    await_last();
    let_next();
    const int Hv = p.in.Hv, h = (int)(blockIdx.x % Hv), tid = (int)threadIdx.x;
    const int column = (tid ^ (int)(blockIdx.x & 1) * 32) % C; /* warps with the longer half of the columns change places from CTA to CTA */
    const bool of_M = UNTIED && tid >= C;
    const int64_t slot = p.from + blockIdx.x / Hv, item = slot * Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p.in, slot, &token, &rows)) return;
    const char *strict = (const char *)(p.of.strict + item * (C * C));
    uint4 x[C * 8 / THREADS];
#pragma unroll
    for (int i = 0; i < C * 8 / THREADS; i++) x[i] = *(const uint4 *)(strict + tile_at((i * THREADS + tid) / 8, tid % 8));
    if constexpr (UNTIED) {
#pragma unroll
        for (int i = tid; i < UNITS; i += THREADS) cp_async_16(shared_address(tiles) + TILE + i * 16, p.of.A_ak + item * (C * C) + i * 8);
        cp_async_commit();
    }
    if (tid < C) beta[tid] = UNTIED ? -1.f : tid < rows ? strength_of(p.beta[(token + tid) * Hv + h]) : 0.f;
    __syncthreads();
    if (!UNTIED) p.of.strength[item * C + tid] = beta[tid];
#pragma unroll
    for (int i = 0; i < C * 8 / THREADS; i++) {
        const int row = (i * THREADS + tid) / 8;
        float *to = &A[row][tid % 8 * 8];
        const float b = beta[row];
        *(float4 *)to = make_float4(b * low_bf16(x[i].x), b * high_bf16(x[i].x), b * low_bf16(x[i].y), b * high_bf16(x[i].y));
        *(float4 *)(to + 4) = make_float4(b * low_bf16(x[i].z), b * high_bf16(x[i].z), b * low_bf16(x[i].w), b * high_bf16(x[i].w));
    }
    if constexpr (UNTIED) cp_async_wait<0>();
    __syncthreads();
    uint8_t *to = tiles + (of_M ? TILE : 0);
    const float factor = UNTIED ? 1.f : beta[column];
    const auto place = [&](int i) { return tile_at(i, column / 8) + 2 * (column % 8); };
    const auto right = [&](int i) { return of_M ? to_float(*(const bf16 *)(to + place(i))) : i == column ? 1.f : 0.f; };
    const auto put = [&](int i, float x) { *(bf16 *)(to + place(i)) = from_float<bf16>(!of_M && i == column ? 0.f : x * factor); };
    if (column < C / 2) { /* a warp has either half of the columns */
        solve_column<0>(A, right, put);
    } else {
#pragma unroll
        for (int i = 0; i < C / 2; i++) *(bf16 *)(to + place(i)) = from_float<bf16>(0.f);
        solve_column<C / 2>(A, right, put);
    }
    __syncthreads();
#pragma unroll
    for (int i = tid; i < UNITS; i += THREADS) {
        ((uint4 *)(p.of.T + item * (C * C)))[i] = *(const uint4 *)(tiles + i * 16);
        if constexpr (UNTIED) ((uint4 *)(p.of.M + item * (C * C)))[i] = *(const uint4 *)(tiles + TILE + i * 16);
    }
}

template <bool UNTIED> void prepare(const delta_vector &p, const lnt_cuda *d)
{
    (p.K == 64 ? put_rows_kernel<64, UNTIED> : put_rows_kernel<128, UNTIED>)(p, d);
    lnt_launch(d, delta_solve<UNTIED>, dim3((unsigned)((p.until - p.from) * p.in.Hv)), UNTIED ? 2 * C : C, p);
}

} // namespace

void lnt_delta_vector_prepare(const delta_vector &p, const lnt_cuda *d) { (p.untied ? prepare<true> : prepare<false>)(p, d); }
