/* Up to 16 rows of x against large weights, bf16 on the matrix unit. Floor: the weights read once.
 *
 * A block has 16 rows of w, or 8 of each of two that are combined; its warps take turns of STEP along K, and their sums are added in order. The unit
 * multiplies w [16 rows, 16 k] by x^T [16 k, 8 rows]; a sum over k does not care for its order, so that a lane's eight neighbours of k, one 16-byte
 * load, serve as its share of two such tiles. Up to 8 TILES rows of x. Where there is nothing to load, a place that exists is loaded and x counts as
 * zero. A warp's first AHEAD turns of w are on their way before the kernels ahead have ended. */
#include "ops/few_rows.cuh"

extern "C" {
#include "core/threads.h"
bool lnt_few_rows_sm90(const lnt_cuda *d, const lnt_few_rows *f);
bool lnt_few_stream_sm90(const lnt_cuda *d, const lnt_few_rows *f);
}

namespace {

constexpr int STEP = 64, ROWS = 16, FEW_MOST = 16;
/* Where tiles fill most multiprocessors, or a K is so long that its loads do not fit into registers at once, blocks that stay and bring weights into
 * shared memory win (few_stream_sm90.cu): alone not always, but beside the registers of these no block of such a product that follows finds a place,
 * and its weights come only when these have ended (45 of 935 us of a step whose [2048, 2048] was done here). */
constexpr double MANY = 0.75;
constexpr int LONG = 4096;

struct few_args {
    few_parts to;
    bool weights;
};

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

template <int TILES, int WARPS, int AHEAD, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) few_rows_kernel(const __grid_constant__ few_args a)
{
    __shared__ float share[WARPS][8 * TILES][ROWS]; /* [warp][row of x][row of w] */
    __shared__ float roots[8 * TILES];              /* of x's rows, behind a sum */
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4;
    const bool swiglu = a.to.swiglu;
    const int part = few_part_at(a.to, (int)blockIdx.x);
    const few_part &p = a.to.p[part], &q = a.to.p[swiglu ? 1 : part];
    const int n0 = ((int)blockIdx.x - p.first) * (swiglu ? ROWS / 2 : ROWS);
    const bf16 *w0 = p.w + min(n0 + group, p.N - 1) * p.ldw, *w1 = q.w + min(n0 + group + (swiglu ? 0 : 8), q.N - 1) * q.ldw;
    const bf16 *row[TILES];
    bool has[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) has[t] = 8 * t + group < a.to.R, row[t] = p.x + (has[t] ? 8 * t + group : 0) * p.ldx;
    float c[TILES][4] = {};
    turns<AHEAD> w;
    let_next();
    if (!a.weights) await_last();
    if (warp * STEP < p.K) w.load(w0, w1, warp * STEP, WARPS * STEP, p.K, lane);
    await_last();
    few_root root;
    if (a.to.norm.squares) root.load(a.to.norm, min(warp, a.to.R - 1));
    for (int base = warp * STEP; base < p.K; base += WARPS * STEP * AHEAD) {
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
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) share[warp][8 * t + 2 * lane + (e & 1)][group + 8 * (e >> 1)] = c[t][e];
    if (a.to.norm.squares)
        for (int r = warp; r < a.to.R; r += WARPS) {
            if (r != warp) root.load(a.to.norm, r);
            const float one = few_root::of(a.to.norm, root.sum());
            if (threadIdx.x % 32 == 0) roots[r] = one;
        }
    __syncthreads();
    const int n = (int)threadIdx.x % ROWS;
    const bool there = n0 + n < p.N && !(swiglu && n >= ROWS / 2);
    for (int r = (int)threadIdx.x / ROWS; r < a.to.R; r += 32 * WARPS / ROWS) {
        float s[1] = {}, u[1] = {};
#pragma unroll
        for (int v = 0; v < WARPS; v++) {
            s[0] += share[v][r][n];
            if (swiglu) u[0] += share[v][r][n + ROWS / 2];
        }
        if (a.to.sum.x) {
            few_addend<1> other;
            if (there) other.load(a.to.sum, r, n0 + n);
            few_squares(a.to.sum, r, (int)blockIdx.x, there ? other.put(a.to.sum, p, r, n0 + n, s) : 0.0f);
            continue;
        }
        if (a.to.norm.squares) s[0] *= roots[r], u[0] *= roots[r];
        if (!there) continue;
        few_result<1>(p, swiglu, n0 + n, s, u);
        put_sum<any1>({p.y, p.f32}, r * p.ldy + (n0 + n) * p.step, s, p.add);
    }
}

/* K of some thousands: twice the warps, so that few blocks bring enough at once. Narrow ones: a turn for each warp, so small that all blocks of many
 * thousand rows are there at once. */
template <int TILES> void launch(const lnt_cuda *d, const few_args &a, int64_t K)
{
    if (K <= LNT_FEW_NARROW)
        lnt_launch(d, few_rows_kernel<TILES, LNT_FEW_NARROW / STEP, 1, 8>, (unsigned)a.to.tiles, LNT_FEW_NARROW / STEP * 32, a);
    else if (K <= 4096)
        lnt_launch(d, few_rows_kernel<TILES, 8, 4, 2>, (unsigned)a.to.tiles, 256, a);
    else
        lnt_launch(d, few_rows_kernel<TILES, 16, TILES == 1 ? 3 : 2, 1>, (unsigned)a.to.tiles, 512, a);
}

bool reaches(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 8 == 0; }

} // namespace

/* Whether tensors lie as these kernels read them; *rows: of all weights. */
static bool fits(const lnt_few_rows *f, int64_t *rows)
{
    if (f->K < 8 || f->K % 8 || f->K > INT32_MAX / 2 || !reaches(f->x, f->ldx)) return false;
    *rows = 0;
    for (int i = 0; i < f->parts; i++) {
        const lnt_few_part *q = &f->part[i];
        if (q->x && (q->K < 8 || q->K % 8 || (q->K != f->K && (q->K > LNT_FEW_NARROW || f->K > LNT_FEW_NARROW)) || !reaches(q->x, q->ldx)))
            return false;
        if (!reaches(f->part[i].w, f->part[i].ldw) || f->part[i].N < 1 || (f->swiglu && f->part[i].N != f->part[0].N)) return false;
        *rows += f->part[i].N;
    }
    return *rows <= INT32_MAX / 2;
}

/* All parts have the same number of columns. */
static bool even(const lnt_few_rows *f)
{
    for (int i = 0; i < f->parts; i++)
        if (f->part[i].x && f->part[i].K != f->K) return false;
    return true;
}

static bool hopper(const lnt_cuda *d, const lnt_few_rows *f) { return f->weights && d->base.capability / 10 == 9; }

static bool can(const lnt_cuda *d, const lnt_few_rows *f, int64_t *rows)
{
    if (f->R < 1 || f->R > LNT_FEW_ROWS || !fits(f, rows)) return false;
    return f->R <= FEW_MOST || (hopper(d, f) && even(f) && f->K >= STEP);
}

static bool put(const lnt_cuda *d, const lnt_few_rows *f)
{
    int64_t rows;
    if (!can(d, f, &rows)) return false;
    if (f->R > FEW_MOST) return lnt_few_rows_sm90(d, f);
    const bool many = (double)(rows / ROWS) >= MANY * d->base.multiprocessors;
    if (hopper(d, f) && even(f) && f->K > LNT_FEW_NARROW && (many || f->K > LONG) && lnt_few_stream_sm90(d, f)) return true;
    const few_args a = {few_parts_of(f, ROWS), f->weights};
    if (f->R <= 8)
        launch<1>(d, a, f->K);
    else
        launch<2>(d, a, f->K);
    return true;
}

extern "C" bool lnt_few_rows_can(lnt_ctx *c, const lnt_few_rows *f)
{
    int64_t rows;
    return !lnt_rows_are_alone(c) && can(lnt_cuda_of(c), f, &rows);
}

/* Rows begin .. of a call. */
static lnt_few_rows some_of(const lnt_few_rows *f, int begin, int most)
{
    lnt_few_rows some = *f;
    some.R = f->R - begin < most ? f->R - begin : most;
    some.x = (const bf16 *)f->x + begin * f->ldx;
    for (int i = 0; i < f->parts; i++) {
        if (f->part[i].x) some.part[i].x = (const bf16 *)f->part[i].x + begin * f->part[i].ldx;
        if (f->part[i].y) some.part[i].y = (char *)f->part[i].y + begin * f->part[i].ldy * (f->part[i].type == LINNET_F32 ? 4 : 2);
    }
    return some;
}

/* Every row as if alone: what is chosen depends on the weights, and on where x lies, alone. On Hopper the kernel of up to 64 rows takes one as
 * well: a row's sums are in one order however many stand beside it, and the weights of a step of many sequences are read once. */
static bool put_alone(const lnt_cuda *d, const lnt_few_rows *f)
{
    int64_t rows;
    if (!fits(f, &rows) || !even(f)) return false;
    const bool wide = hopper(d, f) && f->K >= 64;
    const int most = wide ? LNT_FEW_ROWS : 8;
    for (int r = 0; r < f->R; r += most) {
        const lnt_few_rows some = some_of(f, r, most);
        if (!(wide ? lnt_few_rows_sm90(d, &some) : put(d, &some))) return false;
    }
    return true;
}

extern "C" bool lnt_few_rows_cuda(lnt_ctx *c, const lnt_few_rows *f)
{
    return lnt_rows_are_alone(c) ? put_alone(lnt_cuda_of(c), f) : put(lnt_cuda_of(c), f);
}
