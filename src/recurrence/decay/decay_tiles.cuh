/* What the decay core's kernels on tensor cores share: tiles of 64 rows in shared memory, and the factors of a chunk's gates.
 * Tiles are [64][W] bf16, 16-byte unit u of row r at unit u ^ (r & 7): the eight rows of an 8x8 matrix lie in different banks. */
#ifndef LNT_DECAY_TILES_CUH
#define LNT_DECAY_TILES_CUH

#include "device/mma.cuh"
#include "recurrence/decay/decay_cuda.cuh"

static constexpr int C = 64, THREADS = 128;

/* hi, lo: log2 of the decays, and of the factor, up to a row that reads; writer_hi, writer_lo: up to one that has written, less its factor's. */
struct tile_factors {
    float hi[C], lo[C], writer_hi[C], writer_lo[C], read[C], write[C], total, pad[3];
};

/* A value that the compiler must take as new: what derives from it is made again where it is used, not kept from chunk to chunk in local memory. */
template <typename T> __device__ __forceinline__ T anew(T x)
{
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}

/* Where a lane's row of an ldmatrix_x4 begins, matrices in the order (rows 0-7, rows 8-15) x (unit 0, unit 1), or units first. Tiles begin at
 * multiples of 256 bytes, so unit 2n is at address ^ n << 5, and row 16 m at address + 16 m W 2: one register serves all. */
template <int W> __device__ __forceinline__ uint32_t rows_first(uint32_t tile)
{
    const int lane = (int)threadIdx.x % 32;
    return anew(tile + (uint32_t)((lane & 15) * W * 2 + (((lane >> 4) ^ (lane & 7)) << 4)));
}
template <int W> __device__ __forceinline__ uint32_t units_first(uint32_t tile)
{
    const int lane = (int)threadIdx.x % 32;
    return anew(tile + (uint32_t)(((lane & 7) + ((lane >> 4) << 3)) * W * 2 + ((((lane >> 3) & 1) ^ (lane & 7)) << 4)));
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ __forceinline__ float tile_between(float hi_i, float lo_i, float hi_j, float lo_j) { return fast_exp2((hi_i - hi_j) + (lo_i - lo_j)); }

/* The head of x that value head h reads: `group` heads read the same `inner` ones by turns. */
__device__ __forceinline__ int head_of(const decay_rows &x, const decay_cut &c, int h)
{
    if (x.heads == c.Hv) return h;
    const unsigned inner = (unsigned)x.inner, group = (unsigned)c.Hv * inner / (unsigned)x.heads;
    return (int)((unsigned)h / group * inner + (unsigned)h % inner);
}

/* Rows t .. t+63 of a head to a tile, by N threads; those from `last` on become zeros. */
template <int W, int N = THREADS>
__device__ __forceinline__ void load_tile(uint32_t tile, const decay_rows &x, const decay_cut &c, int64_t t, int64_t last, int h)
{
    constexpr int UNITS = W / 8, ROWS = N / UNITS;
    const int tid = anew((int)threadIdx.x), unit = tid % UNITS, row = tid / UNITS;
    const int pitch = anew(x.heads * W);
    const bf16 *from = (const bf16 *)x.p + (t * x.heads + head_of(x, c, h)) * W + (row * pitch + unit * 8);
    const uint32_t to = tile + (uint32_t)(row * W * 2 + ((unit ^ (row & 7)) << 4)); /* ROWS is a multiple of 8: the same unit in each */
    if (x.p && t + C <= last) {
#pragma unroll
        for (int i = 0; i < C / ROWS; i++) {
            cp_async_16(to + i * ROWS * W * 2, from);
            from += ROWS * pitch;
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < C / ROWS; i++) {
        const bool real = x.p && t + row + i * ROWS < last;
        cp_async_16(to + i * ROWS * W * 2, real ? from : NULL, real);
        from += ROWS * pitch;
    }
}

/* The same rows begin their way to L2, 128 bytes a thread. */
template <int W> __device__ __forceinline__ void ahead_rows(const decay_rows &x, const decay_cut &c, int64_t t, int64_t last, int h)
{
    constexpr int LINES = W / 64;
    const int tid = anew((int)threadIdx.x), row = tid / LINES, pitch = anew(x.heads * W);
    if (row < C && t + row < last) ahead_l2((const bf16 *)x.p + (t * x.heads + head_of(x, c, h)) * W + (row * pitch + tid % LINES * 64));
}

/* A warp makes the factors of a chunk, whose gates of rows 2l and 2l+1 lane l holds; their strengths come to L2 with the gates. */
__device__ __forceinline__ void strengths_ahead(const decay_cut &x, int64_t at, int64_t last, int h)
{
    if (x.strengths && at < last) ahead_l2(x.strengths + decay_token(x, at, h));
    if (x.strengths && at + 1 < last) ahead_l2(x.strengths + decay_token(x, at + 1, h));
}
__device__ __forceinline__ void tile_gates(const decay_cut &x, int64_t t, int64_t last, int h, float (&g)[2])
{
    const int64_t at = t + 2 * ((int)threadIdx.x % 32);
    g[0] = at < last ? decay_gate(x, at, h) : 0.0f;
    g[1] = at + 1 < last ? decay_gate(x, at + 1, h) : 0.0f;
    strengths_ahead(x, at, last, h);
}
__device__ __forceinline__ void put_factors(const decay_cut &x, tile_factors *f, const float (&g)[2], int64_t t, int64_t last, int h, bool reverse)
{
    const int lane = (int)threadIdx.x % 32;
    double b[2], all = ((double)g[0] + g[1]) * LNT_LOG2E, writes[2] = {};
    float reads[2] = {};
    if (x.writes || x.strengths) /* under way while gates are added up */
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (t + 2 * lane + j < last) {
                reads[j] = (float)decay_reads<false>(x, t + 2 * lane + j, h);
                writes[j] = decay_writes(x, t + 2 * lane + j, h);
            }
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const double left = __shfl_up_sync(~0u, all, o);
        if (lane >= o) all += left;
    }
    b[1] = all;
    b[0] = all - g[1] * LNT_LOG2E;
    all = __shfl_sync(~0u, all, 31);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const lnt_gate_sum s = lnt_gate_split(b[j] + reads[j]), w = lnt_gate_split(b[j] - writes[j]);
        const float in = x.scale * exp2f((float)(b[j] + reads[j])), out = exp2f((float)(all - b[j] + writes[j]));
        f->hi[2 * lane + j] = s.hi;
        f->lo[2 * lane + j] = s.lo;
        f->writer_hi[2 * lane + j] = w.hi;
        f->writer_lo[2 * lane + j] = w.lo;
        f->read[2 * lane + j] = reverse ? out : in;
        f->write[2 * lane + j] = reverse ? in : out;
    }
    if (lane == 0) f->total = exp2f((float)all);
}

/* What a walk from state to state needs of a chunk: the factors of what its tokens write, and its decay. They are summed in float32, which loses
 * digits where sums are large, and what is written there is 0. */
struct end_factors {
    float write[C], total, pad[3];
};
/* A warp makes those of a chunk. A lane has tokens 2l and 2l+1, whose gates it asks for ahead and does not look at before. */
struct end_factors_ahead {
    const float *gate, *beside; /* of token 0, NULL: none; what is beside a token's gates, NULL: nothing */
    int gate_step, step;
    float g[2], more[2];

    __device__ __forceinline__ end_factors_ahead(const decay_cut &x, int h, bool reverse)
    {
        const int head = decay_head(x, h);
        step = x.slices == 1 ? x.Hv : x.Hv / x.slices;
        gate_step = x.g ? step : 0;
        gate = x.g ? x.g : x.g_head;
        if (gate) gate += head;
        beside = reverse ? x.reads : x.strengths ? x.strengths : x.writes;
        if (beside) beside += head;
    }
    __device__ __forceinline__ void ask(int64_t t, int64_t last, bool reverse)
    {
        const int64_t at = t + 2 * (anew((int)threadIdx.x) % 32);
        const float *of = gate + at * gate_step;
        g[0] = gate && at < last ? *of : 0.0f;
        g[1] = gate && at + 1 < last ? of[gate_step] : 0.0f;
        if (!beside) return;
        of = beside + at * step;
        more[0] = at < last ? *of : (float)reverse;
        more[1] = at + 1 < last ? of[step] : (float)reverse;
    }
    __device__ __forceinline__ void make(const decay_cut &x, end_factors *f, bool reverse) const
    {
        const int lane = anew((int)threadIdx.x) % 32, way = reverse ? -1 : 1;
        const float g0 = (float)LNT_LOG2E * lnt_gate(g[0]), g1 = (float)LNT_LOG2E * lnt_gate(g[1]);
        float w[2] = {}, sum = g0 + g1; /* over the lanes from this one to the chunk's end, or to its begin */
        if (beside)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float y = reverse ? log2f(more[j]) : x.strengths ? log2f(decay_strength(more[j])) : more[j] * (float)LNT_LOG2E;
                w[j] = y < (float)DECAY_NOTHING ? (float)DECAY_NOTHING : y;
            }
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const float other = __shfl_sync(~0u, sum, lane + way * o);
            if (reverse ? lane >= o : lane + o < 32) sum += other;
        }
        float beyond = __shfl_sync(~0u, sum, lane + way);
        if (lane == (reverse ? 0 : 31)) beyond = 0.0f;
        const float scale = reverse ? x.scale : 1.0f;
        const float write0 = scale * fast_exp2(beyond + (reverse ? g0 : g1) + w[0]), write1 = scale * fast_exp2((reverse ? sum : beyond) + w[1]);
        *(float2 *)(f->write + 2 * lane) = make_float2(write0, write1);
        if (lane == (reverse ? 31 : 0)) f->total = fast_exp2(sum);
    }
};

/* Lanes of a row hand their pairs of four neighbouring tiles of 8 columns round, so that each has 16 bytes: lane c those of tile c. */
__device__ __forceinline__ uint4 hand_round(const uint32_t (&mine)[4])
{
    const int c = (int)threadIdx.x & 3;
    uint32_t all[4] = {};
#pragma unroll
    for (int r = 0; r < 4; r++) { /* in round r lane c gives tile c ^ r and gets, of tile c, the pair of lane c ^ r */
        const uint32_t low = (c ^ r) & 1 ? mine[1] : mine[0], high = (c ^ r) & 1 ? mine[3] : mine[2];
        const uint32_t got = __shfl_xor_sync(~0u, (c ^ r) & 2 ? high : low, r);
#pragma unroll
        for (int i = 0; i < 4; i++) all[i] = (c ^ r) == i ? got : all[i];
    }
    return make_uint4(all[0], all[1], all[2], all[3]);
}

#endif
