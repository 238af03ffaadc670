/* What the decay core's kernels on Hopper share: tiles as wgmma reads them, a group's rows of the state, factors made ahead, pairs that read.
 * A tile is panels of 64 columns (wgmma.cuh), brought by cp.async, whose zeros stand behind a sequence's end. */
#ifndef LNT_DECAY_SM90_CUH
#define LNT_DECAY_SM90_CUH

#include "device/wgmma.cuh"
#include "recurrence/decay/decay_stable.cuh"
#include "recurrence/decay/decay_tiles.cuh"

static constexpr int PANEL = C * 128; /* bytes: [64 rows][64 columns] */
static constexpr int GROUP = 128;     /* threads of a warpgroup */
static constexpr int FACTORS = 8;     /* chunks whose factors are there: four in use, four being made */

/* Rows of a head, of which N threads bring 64 at a time to panels; those from the end on become zeros. What a thread needs of each is made once: made
 * anew for every chunk it was a sixth of the time. */
template <int W, int N> struct panel_rows {
    static constexpr int UNITS = W / 8, ROWS = N / UNITS; /* ROWS is a multiple of 8: the same place in each row */
    const bf16 *from; /* NULL: zeros */
    int pitch;

    __device__ __forceinline__ panel_rows(const bf16 *p, int pitch_) : from(p), pitch(pitch_)
    {
        if (p) from += (int64_t)((int)threadIdx.x / UNITS) * pitch + (int)threadIdx.x % UNITS * 8;
    }
    __device__ __forceinline__ panel_rows(const decay_rows &x, const decay_cut &c, int64_t t, int h)
        : panel_rows(x.p ? (const bf16 *)x.p + (t * x.heads + head_of(x, c, h)) * W : NULL, x.heads * W)
    {
    }
    /* The 64 from `token` on, counted from t, of which `left` are there. */
    __device__ __forceinline__ void load(uint32_t tile, int64_t token, int64_t left) const
    {
        const int tid = anew((int)threadIdx.x), unit = tid % UNITS, row = tid / UNITS;
        const uint32_t to = tile + (uint32_t)(unit / 8 * PANEL + row * 128 + ((unit % 8 ^ (row & 7)) << 4));
        const bf16 *p = from + token * pitch;
        if (from && left >= C) {
#pragma unroll
            for (int i = 0; i < C / ROWS; i++) {
                cp_async_16(to + i * ROWS * 128, p);
                p += ROWS * pitch;
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < C / ROWS; i++) {
            const bool real = from && row + i * ROWS < left;
            cp_async_16(to + i * ROWS * 128, real ? p : NULL, real);
            p += ROWS * pitch;
        }
    }
};

/* Where a lane's row of an 8x8 matrix begins, in a panel: 16 rows from `row` on (stmatrix and ldmatrix of what accumulators have), or the warp's 16
 * columns of 16 rows, transposed (values on the left of a product of states). Units 2j and on: ^ j << 5. */
__device__ __forceinline__ uint32_t lane_rows(uint32_t panel, int row)
{
    const int lane = (int)threadIdx.x % 32;
    return anew(panel + (uint32_t)((row + (lane & 15)) * 128 + (((lane >> 4) ^ (lane & 7)) << 4)));
}
__device__ __forceinline__ uint32_t lane_columns(uint32_t panel, int warp)
{
    const int lane = (int)threadIdx.x % 32;
    return anew(panel + (uint32_t)(((lane & 7) + ((lane >> 4) << 3)) * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4)));
}

/* P [64][64] = left right^T over D columns. */
template <int D, int L> __device__ __forceinline__ void times_rows(float (&P)[L], uint32_t left, uint32_t right, uint32_t right_panel = PANEL)
{
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++)
        wgmma<0, 0>(P, wgmma_k_major(left + ks / 4 * PANEL + ks % 4 * 32), wgmma_k_major(right + ks / 4 * right_panel + ks % 4 * 32), ks > 0);
}

/* A group's rows of the state, in bf16, to panels of `panel` bytes from `row` on. */
template <int L> __device__ __forceinline__ void leave_state(const float (&S)[L], uint32_t to, uint32_t panel)
{
#pragma unroll
    for (int j = 0; j < L / 8; j++) {
        uint32_t x[4];
        wgmma_operand(x, S, j);
        store_matrices((to ^ (uint32_t)(j % 4 << 5)) + j / 4 * panel, x);
    }
}

/* What a state gains on the left: (write . left)^T, from the lane's place in the group's panel of 64 tokens. */
template <bool GATED, bool SCALED>
__device__ __forceinline__ void take_written(uint32_t (&a)[C / 16][4], uint32_t left, const float *write, float same)
{
    const int c2 = 2 * ((int)threadIdx.x & 3);
#pragma unroll
    for (int ks = 0; ks < C / 16; ks++) {
        ldmatrix_x4_trans(a[ks], left + ks * 2048);
        if (!SCALED) continue;
        const float2 low = GATED ? *(const float2 *)(write + ks * 16 + c2) : make_float2(same, same);
        const float2 high = GATED ? *(const float2 *)(write + ks * 16 + c2 + 8) : make_float2(same, same);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 w = i < 2 ? low : high;
            a[ks][i] = pack_bf16(w.x * low_bf16(a[ks][i]), w.y * high_bf16(a[ks][i]));
        }
    }
}
/* S += that times `right`, a tile of L * 2 columns. */
template <int L> __device__ __forceinline__ void add_written(float (&S)[L], const uint32_t (&a)[C / 16][4], uint32_t right)
{
#pragma unroll
    for (int ks = 0; ks < C / 16; ks++) wgmma<1>(S, a[ks], wgmma_mn_major(right + ks * 2048, PANEL), true);
}
template <int L> __device__ __forceinline__ void fade_state(float (&S)[L], float total)
{
#pragma unroll
    for (int i = 0; i < L; i++) S[i] *= total;
}
/* S <- total S + (write . left)^T right */
template <bool GATED, bool SCALED, int L>
__device__ __forceinline__ void next_state(float (&S)[L], uint32_t left, uint32_t right, const float *write, float total, float same)
{
    uint32_t a[C / 16][4];
    take_written<GATED, SCALED>(a, left, write, same);
    if (GATED) fade_state(S, total);
    wgmma_fence();
    add_written(S, a, right);
    wgmma_commit();
}

/* Visit a warp's share of a group's 64 rows of a state: f(element, row, column). */
template <int L, typename F> __device__ __forceinline__ void each_number(float (&S)[L], F f)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + (lane >> 2);
#pragma unroll
    for (int i = 0; i < L; i++) f(S[i], row + (i >> 1 & 1) * 8, i / 4 * 8 + 2 * (lane & 3) + (i & 1));
}

/* 16 rows of 64 columns from accumulators first .. first+31 to global memory, through the warp's own 2 KB, or in float32 as they are. `to`: row 0 of
 * the warp, of which `len` are there. */
template <int L> __device__ __forceinline__ void put_columns(const float (&O)[L], int first, uint32_t staging, bf16 *to, int pitch, int len)
{
    const int lane = anew((int)threadIdx.x) % 32;
    const uint32_t put = lane_rows(staging, 0);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t x[4];
        wgmma_operand(x, O, first / 8 + j);
        store_matrices(put ^ (uint32_t)(j << 5), x);
    }
    __syncwarp();
    const int row = lane / 8, unit = lane % 8;
    to += row * pitch + unit * 8;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        uint32_t y[4];
        const uint32_t from = staging + (uint32_t)((row + i) * 128 + ((unit ^ ((row + i) & 7)) << 4));
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(from) : "memory");
        if (row + i < len) asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]) : "memory");
        to += 4 * pitch;
    }
    __syncwarp();
}
template <int L> __device__ __forceinline__ void put_columns(const float (&O)[L], int first, float *to, int pitch, int len)
{
    const int lane = anew((int)threadIdx.x) % 32, row = lane >> 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row + half * 8 < len)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float *y = &O[first + 4 * n + 2 * half];
                *(float2 *)(to + (row + half * 8) * pitch + n * 8 + 2 * (lane & 3)) = make_float2(y[0], y[1]);
            }
}

/* Dots of the lane's two rows of O, W columns, with those of a tile; the same in the four lanes of a row. */
template <int W, int L> __device__ __forceinline__ void row_dots(float (&dot)[2], const float (&O)[L], uint32_t tile)
{
    const int tid = anew((int)threadIdx.x), r = tid % 32 >> 2, c = tid & 3;
    const uint32_t from = anew(tile + (uint32_t)((tid / 32 % 4 * 16 + r) * 128 + (r << 4) + 4 * c));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        dot[half] = 0;
#pragma unroll
        for (int n = 0; n < W / 8; n++) {
            uint32_t y;
            const uint32_t at = (from ^ (uint32_t)(n % 8 << 4)) + n / 8 * PANEL + half * 1024;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(y) : "r"(at) : "memory");
            dot[half] += low_bf16(y) * O[4 * n + 2 * half] + high_bf16(y) * O[4 * n + 2 * half + 1];
        }
        dot[half] += __shfl_xor_sync(~0u, dot[half], 1);
        dot[half] += __shfl_xor_sync(~0u, dot[half], 2);
    }
}

/* Factors of four chunks by the first four warps, four chunks ahead of where they are used. Their gates are asked for four chunks before that, and
 * not looked at until then. */
struct factors_ahead {
    float g[2];

    __device__ __forceinline__ void ask(const decay_cut &x, int64_t t, int64_t last, int h)
    {
        const int64_t at = t + 2 * ((int)threadIdx.x % 32);
        const float *of = x.g ? x.g + decay_token(x, at, h) : x.g_head + decay_head(x, h);
        const int64_t step = !x.g ? 0 : x.slices == 1 ? x.Hv : x.Hv / x.slices;
        g[0] = at < last ? *of : 0.0f;
        g[1] = at + 1 < last ? of[step] : 0.0f;
    }
    __device__ __forceinline__ void make(const decay_cut &x, tile_factors *f, int64_t t, int64_t last, int h, bool reverse)
    {
        g[0] = lnt_gate(g[0]), g[1] = lnt_gate(g[1]);
        put_factors(x, f, g, t, last, h, reverse);
    }

    template <typename S>
    __device__ __forceinline__ void begin(const decay_cut &x, tile_factors *f, S start, int chunks, int64_t last, int h, bool reverse)
    {
        const int warp = (int)threadIdx.x / 32;
        if (warp >= 4) return;
        if (warp < chunks) {
            ask(x, start(warp), last, h);
            make(x, &f[warp], start(warp), last, h, reverse);
        }
        if (warp + 4 < chunks) ask(x, start(warp + 4), last, h);
    }
    template <typename S>
    __device__ __forceinline__ void more(const decay_cut &x, tile_factors *f, S start, int c, int chunks, int64_t last, int h, bool reverse)
    {
        const int mine = c + 4 + (int)threadIdx.x / 32;
        if ((c & 3) != 0 || mine >= c + 8 || mine >= chunks) return;
        make(x, &f[mine % FACTORS], start(mine), last, h, reverse);
        if (mine + 4 >= chunks) return;
        ask(x, start(mine + 4), last, h);
        if (!reverse) strengths_ahead(x, start(mine + 4) + 2 * ((int)threadIdx.x % 32), last, h); /* dk and dv have no registers for it */
    }
};

/* n.q of the lane's two rows, of which the warp has 16 of the tile: n, as the sum of two bf16, stands in the first two columns of a B. */
template <int D> __device__ __forceinline__ void row_sums(float (&sum)[2], uint32_t query, const float *n)
{
    const int tid = anew((int)threadIdx.x), r = tid % 32 >> 2, c = tid & 3;
    const uint32_t rows = lane_rows(query, tid / 32 % 4 * 16);
    float acc[4] = {};
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t A[4], b[2];
        column_as_two(b, n + ks * 16, r, c);
        ldmatrix_x4(A, (rows ^ (uint32_t)(ks % 4 << 5)) + ks / 4 * PANEL);
        mma_bf16(acc, A, b[0], b[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) sum[half] = __shfl_sync(~0u, acc[2 * half] + acc[2 * half + 1], tid & 28);
}

/* The pairs of a chunk whose rows read: P becomes s D_ij times what it was below the diagonal and on it, and the left side of the next product.
 * in_row: sums over the columns that the lane has of its two rows. */
template <bool GATED>
__device__ __forceinline__ void weigh_reads(uint32_t (&pairs)[4][4], float (&in_row)[2], const float (&P)[32], const tile_factors &f, float scale)
{
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32 % 4, c2 = 2 * (lane & 3), row = warp * 16 + (lane >> 2);
    const float hi[2] = { GATED ? f.hi[row] : 0, GATED ? f.hi[row + 8] : 0 }, lo[2] = { GATED ? f.lo[row] : 0, GATED ? f.lo[row + 8] : 0 };
    in_row[0] = in_row[1] = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int j = n * 8 + c2;
        if (n > 2 * warp + 1) { /* behind all of the warp's rows */
            pairs[n / 2][n % 2 * 2] = pairs[n / 2][n % 2 * 2 + 1] = 0;
            continue;
        }
        const float2 writer_hi = GATED ? *(const float2 *)(f.writer_hi + j) : make_float2(0, 0);
        const float2 writer_lo = GATED ? *(const float2 *)(f.writer_lo + j) : make_float2(0, 0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                y[e] = scale * P[4 * n + 2 * half + e];
                if (GATED) y[e] *= tile_between(hi[half], lo[half], e ? writer_hi.y : writer_hi.x, e ? writer_lo.y : writer_lo.x);
                if (j + e > row + half * 8) y[e] = 0.0f;
                in_row[half] += y[e];
            }
            pairs[n / 2][n % 2 * 2 + half] = pack_bf16(y[0], y[1]);
        }
    }
}

/* 1 / D_t of the lane's two rows, from the sums of their pairs and n in front of the chunk. */
__device__ __forceinline__ void row_divisors(float (&by)[2], const float (&in_row)[2], const float (&before)[2], const float (&m)[2], float eps)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = in_row[half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        by[half] = 1.0f / stable_denominator(sum + before[half], m[half], eps);
    }
}

/* o of whole heads and slices of 128 columns of values (decay_outputs_sm90.cu). */
void lnt_decay_outputs(const decay_cut &x, const decay_pass &a, const lnt_cuda *d);

#endif
