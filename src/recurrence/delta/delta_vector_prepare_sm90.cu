/* What is made of every chunk before the chains of the delta rule under a gate for each channel (delta_vector.cuh): decayed rows, pairs, e^{G_n}; and
 * from the pairs T. Pairs of rows are the tree of decay_vector_tiles.cuh, for two readers and one or two writers at once; inside 8 rows they are
 * summed one by one in float32. A thread has two channels of a group of 8 rows. */
#include "recurrence/delta/delta_vector_group.cuh"

namespace {

/* ---- decayed rows and pairs ------------------------------------------------------------------------------------------------------------------- */

/* Pairs inside 8 rows of a writer: with q, j <= i, at i (i + 1) / 2 + j; with the other reader, j < i, at 36 + i (i - 1) / 2 + j. */
constexpr int PAIRS8 = 64;

template <int K, bool UNTIED> struct prepare_shared {
    static constexpr int T = K * 128, WRITERS = UNTIED ? 2 : 1;
    static constexpr int levels = 0, pairs = 6 * T, products = pairs + 2 * WRITERS * (int)TILE, direct = products + 8 * K * 4,
                         bytes = direct + WRITERS * (K / 64) * 8 * PAIRS8 * 4 + 1024;
};

/* Sums over the warp's 64 channels. */
template <int K, bool UNTIED> __device__ __forceinline__ void put_direct(float *direct, const delta_group<K, UNTIED> &of)
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
        float *to = direct + ((w * (K / 64) + of.pair / 32) * 8 + of.group) * PAIRS8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most[32];
#pragma unroll
            for (int i = 0; i < 32; i++) most[i] = sums[32 * half + i];
            to[32 * half + lane] = sum_each(most);
        }
    }
}

/* Readers and writers of the whole chunk, and e^{G_n}. */
template <int K, bool UNTIED>
__device__ __forceinline__ void put_rows(const delta_vector &p, int64_t item, const float *products, const delta_group<K, UNTIED> &of)
{
    const delta_around<K> near(products, of.group, of.pair);
    const int64_t at = item * (C * K) * 2;
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
    if (of.group == 7) *(float2 *)(p.of.E + item * K + 2 * of.pair) = make_float2(up[0], up[1]);
}

/* Tile `which` of the pairs: of reader which / WRITERS, 0 being q, and writer which % WRITERS, 0 being k. */
template <int K, bool UNTIED> __device__ __forceinline__ void put_pairs(uint32_t base, uint8_t *shared, float scale)
{
    using L = prepare_shared<K, UNTIED>;
    constexpr int TILES = 2 * L::WRITERS, THREADS = 4 * K;
    const int lane = threadIdx.x & 31;
    /* Blocks of 16 rows and 8 columns: eight of level 32, four of 16, four of 8, whose first 8 rows are not wanted. */
    for (int work = (int)threadIdx.x / 32; work < 16 * TILES; work += THREADS / 32) {
        const int job = work % 16, which = work / 16, reader = which / L::WRITERS, writer = which % L::WRITERS;
        const int level = job < 8 ? 2 : job < 12 ? 1 : 0;
        const int row = level == 2 ? 32 + job / 4 * 16 : level == 1 ? 16 + (job - 8) / 2 * 32 : (job - 12) * 16;
        const int column = level == 2 ? job % 4 * 8 : level == 1 ? row - 16 + (job & 1) * 8 : row;
        const uint32_t rows = base + L::levels + (3 * reader + level) * L::T, columns = base + L::levels + (3 * writer + level) * L::T;
        const float factor = reader == 0 ? scale : 1.f;
        float acc[4] = {};
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) {
            uint32_t A[4], B[2];
            load_A(A, rows, row, 2 * kk);
            ldmatrix_x2(B, columns + tile_at(column + (lane & 7), 2 * kk + (lane >> 3 & 1)));
            mma_bf16(acc, A, B[0], B[1]);
        }
        const uint32_t to = base + L::pairs + which * TILE + tile_at(row + lane / 4, column / 8) + 4 * (lane & 3);
        if (level) store_pair(to, pack_bf16(factor * acc[0], factor * acc[1]));
        store_pair(to + 1024, pack_bf16(factor * acc[2], factor * acc[3])); /* 8 rows on: the same place in its row */
    }
    const float *direct = (const float *)(shared + L::direct);
    for (int n = (int)threadIdx.x; n < L::WRITERS * 8 * PAIRS8; n += THREADS) {
        const int writer = n / (8 * PAIRS8), group = n / PAIRS8 % 8, place = n % PAIRS8, strict = place >= 36, m = place - 36 * strict;
        const int d = strict; /* rows of 1, 2, .. pairs, from row d on */
        const int r = d + (m >= 1) + (m >= 3) + (m >= 6) + (m >= 10) + (m >= 15) + (m >= 21) + (m >= 28), c = m - (r - d) * (r - d + 1) / 2;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < K / 64; j++) sum += direct[((writer * (K / 64) + j) * 8 + group) * PAIRS8 + place];
        const uint32_t to = L::pairs + (strict * L::WRITERS + writer) * TILE + tile_at(8 * group + r, group) + 2 * c;
        *(bf16 *)(shared + to) = from_float<bf16>((strict ? 1.f : scale) * sum);
    }
}

template <int K, bool UNTIED> __global__ __launch_bounds__(4 * K, 128 / K) void delta_vector_rows(const __grid_constant__ delta_vector p)
{
    using L = prepare_shared<K, UNTIED>;
    constexpr int THREADS = 4 * K, TILES = 2 * L::WRITERS;
    extern __shared__ __align__(1024) uint8_t raw[];
    await_last();
    let_next();
    uint8_t *shared = raw + (-shared_address(raw) & 1023);
    const uint32_t base = shared_address(shared);
    float *products = (float *)(shared + L::products);
    const int64_t slot = blockIdx.x / p.in.Hv;
    delta_place w;
    w.h = (int)(blockIdx.x % p.in.Hv);
    w.item = slot * p.in.Hv + w.h;
    w.channel = 0;
    if (!chunk_of(p.in, slot, &w.token, &w.rows)) return;

    delta_group<K, UNTIED> of;
    of.load(p, w);
    for (int i = (int)threadIdx.x; i < TILES * (int)TILE / 16; i += THREADS) *(uint4 *)(shared + L::pairs + i * 16) = make_uint4(0, 0, 0, 0);
    put_products(products, of);
    put_direct<K, UNTIED>((float *)(shared + L::direct), of);
    __syncthreads();
    put_levels(base + L::levels, products, of);
    put_rows<K, UNTIED>(p, w.item, products, of);
    __syncthreads();
    put_pairs<K, UNTIED>(base, shared, p.in.scale);
    __syncthreads();
    bf16 *const to[4] = { UNTIED ? p.of.value_P : p.of.P, UNTIED ? p.of.P : p.of.strict, p.of.A_ak, p.of.strict };
#pragma unroll
    for (int n = 0; n < TILES; n++)
        for (int i = (int)threadIdx.x; i < (int)TILE / 16; i += THREADS)
            *(uint4 *)((char *)(to[n] + w.item * (C * C)) + i * 16) = *(const uint4 *)(shared + L::pairs + n * TILE + i * 16);
}

template <int K, bool UNTIED> void put_rows_kernel(const delta_vector &p, const lnt_cuda *d)
{
    lnt_launch_with(d, delta_vector_rows<K, UNTIED>, dim3((unsigned)(p.slots * p.in.Hv)), 4 * K, prepare_shared<K, UNTIED>::bytes, 1, p);
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

/* A column of T, or of M, a thread. */
template <bool UNTIED> __global__ __launch_bounds__(UNTIED ? 2 * C : C) void delta_solve(const __grid_constant__ delta_vector p)
{
    constexpr int THREADS = UNTIED ? 2 * C : C;
    __shared__ __align__(16) float A[C][C];
    __shared__ float beta[C];
    await_last();
    let_next();
    const int Hv = p.in.Hv, h = (int)(blockIdx.x % Hv), tid = (int)threadIdx.x, column = tid % C;
    const bool of_M = UNTIED && tid >= C;
    const int64_t slot = blockIdx.x / Hv, item = slot * Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p.in, slot, &token, &rows)) return;
    if (tid < C) beta[tid] = UNTIED ? -1.f : tid < rows ? strength_of(p.beta[(token + tid) * Hv + h]) : 0.f;
    __syncthreads();
    if (!UNTIED) p.of.strength[item * C + tid] = beta[tid];
    const char *strict = (const char *)(p.of.strict + item * (C * C)), *A_ak = (const char *)(p.of.A_ak + item * (C * C));
    for (int i = tid; i < C * 8; i += THREADS) {
        const int row = i / 8, piece = i % 8;
        const uint4 x = *(const uint4 *)(strict + tile_at(row, piece));
        float *to = &A[row][8 * piece];
        const float b = beta[row];
        to[0] = b * low_bf16(x.x), to[1] = b * high_bf16(x.x), to[2] = b * low_bf16(x.y), to[3] = b * high_bf16(x.y);
        to[4] = b * low_bf16(x.z), to[5] = b * high_bf16(x.z), to[6] = b * low_bf16(x.w), to[7] = b * high_bf16(x.w);
    }
    __syncthreads();
    const int in_row = 2 * (column % 8);
    char *to = (char *)((of_M ? p.of.M : p.of.T) + item * (C * C));
    const float factor = UNTIED ? 1.f : beta[column];
    const auto place = [&](int i) { return tile_at(i, column / 8) + in_row; };
    const auto right = [&](int i) { return of_M ? to_float(*(const bf16 *)(A_ak + place(i))) : i == column ? 1.f : 0.f; };
    const auto put = [&](int i, float x) { *(bf16 *)(to + place(i)) = from_float<bf16>(!of_M && i == column ? 0.f : x * factor); };
    if (column < C / 2) { /* a warp has either half of the columns */
        solve_column<0>(A, right, put);
    } else {
#pragma unroll
        for (int i = 0; i < C / 2; i++) *(bf16 *)(to + place(i)) = from_float<bf16>(0.f);
        solve_column<C / 2>(A, right, put);
    }
}

template <bool UNTIED> void prepare(const delta_vector &p, const lnt_cuda *d)
{
    (p.K == 64 ? put_rows_kernel<64, UNTIED> : put_rows_kernel<128, UNTIED>)(p, d);
    lnt_launch(d, delta_solve<UNTIED>, dim3((unsigned)(p.slots * p.in.Hv)), UNTIED ? 2 * C : C, p);
}

} // namespace

void lnt_delta_vector_prepare(const delta_vector &p, const lnt_cuda *d) { (p.untied ? prepare<true> : prepare<false>)(p, d); }
