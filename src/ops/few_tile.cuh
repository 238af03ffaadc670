/* A tile of a product of up to 16 rows of x with large weights, bf16 on the matrix unit: what a kernel of one product (few_rows_cuda.cu) and a kernel
 * of a whole step (recurrence/persistent_sm90.cu) do alike.
 *
 * A block has 16 rows of w, or 8 of each of two that are combined; its warps take turns of STEP along K, and their sums are added in order. The unit
 * multiplies w [16 rows, 16 k] by x^T [16 k, 8 rows]; a sum over k does not care for its order, so that a lane's eight neighbours of k, one 16-byte
 * load, serve as its share of two such tiles. Up to 8 TILES rows of x. Where there is nothing to load, a place that exists is loaded and x counts as
 * zero. A warp's first AHEAD turns of w are on their way before the kernels ahead have ended. */
#ifndef LNT_OPS_FEW_TILE_CUH
#define LNT_OPS_FEW_TILE_CUH

#include "ops/few_rows.cuh"

namespace few_tile {

constexpr int STEP = 64, ROWS = 16;

/* 16 bytes that are read once. volatile: loads stay before what follows them, all on their way at once. */
__device__ __forceinline__ uint4 load_once(const bf16 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* AHEAD turns of a warp. */
template <int AHEAD> struct turns {
    uint4 top[AHEAD][2], low[AHEAD][2];
    /* From `base` on, a turn every `stride`. */
    __device__ __forceinline__ void load(const bf16 *w0, const bf16 *w1, int base, int stride, int K, int lane)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = min(base + i * stride + h * (STEP / 2) + 8 * lane, K - 8);
                top[i][h] = load_once(w0 + at);
                low[i][h] = load_once(w1 + at);
            }
    }
};

template <int TILES, int WARPS> struct share {
    float sum[WARPS][8 * TILES][ROWS]; /* [warp][row of x][row of w] */
    float roots[8 * TILES];            /* of x's rows, behind a sum */
};

/* The tile that is left after tiles before it, by WARPS warps; others may come along. */
template <int TILES, int WARPS, int AHEAD, class Work>
__device__ __forceinline__ void tile(const few_parts &to, bool weights, int tile, share<TILES, WARPS> &s, const Work &work)
{
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4;
    const bool swiglu = to.swiglu;
    const int part = few_part_at(to, tile);
    const few_part &p = to.p[part], &q = to.p[swiglu ? 1 : part];
    const int n0 = (tile - p.first) * (swiglu ? ROWS / 2 : ROWS);
    const bf16 *w0 = p.w + min(n0 + group, p.N - 1) * p.ldw, *w1 = q.w + min(n0 + group + (swiglu ? 0 : 8), q.N - 1) * q.ldw;
    const bf16 *row[TILES];
    bool has[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) has[t] = 8 * t + group < to.R, row[t] = p.x + (has[t] ? 8 * t + group : 0) * p.ldx;
    float c[TILES][4] = {};
    turns<AHEAD> w;
    const bool takes = warp < WARPS;
    work.begin();
    if (!weights) work.wait();
    if (takes && warp * STEP < p.K) w.load(w0, w1, warp * STEP, WARPS * STEP, p.K, lane);
    work.wait();
    few_root root;
    if (to.norm.squares) root.load(to.norm, min(warp, to.R - 1));
    for (int base = takes ? warp * STEP : p.K; base < p.K; base += WARPS * STEP * AHEAD) {
        if (base != warp * STEP) w.load(w0, w1, base, WARPS * STEP, p.K, lane);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            uint4 x[2][TILES];
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const int k = base + i * (WARPS * STEP) + h * (STEP / 2) + 8 * lane;
                    const uint4 v = *(const uint4 *)(row[t] + min(k, p.K - 8));
                    const uint32_t keep = 0u - (uint32_t)(k < p.K && has[t]); /* a choice becomes a branch, and the loads wait */
                    x[h][t] = make_uint4(v.x & keep, v.y & keep, v.z & keep, v.w & keep);
                }
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const uint4 u = w.top[i][h], v = w.low[i][h], b = x[h][t];
                    few_mma(c[t], u.x, v.x, u.y, v.y, b.x, b.y);
                    few_mma(c[t], u.z, v.z, u.w, v.w, b.z, b.w);
                }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES && takes; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.sum[warp][8 * t + 2 * lane + (e & 1)][group + 8 * (e >> 1)] = c[t][e];
    if (to.norm.squares)
        for (int r = takes ? warp : to.R; r < to.R; r += WARPS) {
            if (r != warp) root.load(to.norm, r);
            const float one = root.get(to.norm);
            if (threadIdx.x % 32 == 0) s.roots[r] = one;
        }
    work.sync();
    const int n = (int)threadIdx.x % ROWS;
    const bool there = n0 + n < p.N && !(swiglu && n >= ROWS / 2);
    for (int r = takes ? (int)threadIdx.x / ROWS : to.R; r < to.R; r += 32 * WARPS / ROWS) {
        float y[1] = {}, u[1] = {};
#pragma unroll
        for (int v = 0; v < WARPS; v++) {
            y[0] += s.sum[v][r][n];
            if (swiglu) u[0] += s.sum[v][r][n + ROWS / 2];
        }
        if (to.sum.x) {
            few_addend<1> other;
            if (there) other.load(to.sum, r, n0 + n);
            few_squares(to.sum, r, tile, there ? other.put(to.sum, p, r, n0 + n, y) : 0.0f);
            continue;
        }
        if (to.norm.squares) y[0] *= s.roots[r], u[0] *= s.roots[r];
        if (!there) continue;
        few_result(p, swiglu, n0 + n, y, u);
        put_sum<any1>({p.y, p.f32}, r * p.ldy + (n0 + n) * p.step, y, p.add);
    }
}

struct product {
    few_parts parts;
    bool weights, narrow; /* weights: may be read before the kernels ahead have ended */
};

} // namespace few_tile

#endif
