/* What the products of few rows share: where results go. */
#ifndef LNT_OPS_FEW_ROWS_CUH
#define LNT_OPS_FEW_ROWS_CUH

#include "ops/rows.cuh"

extern "C" {
#include "ops/few_rows.h"
}

struct few_part {
    const bf16 *w, *x;
    const float *bias;
    char *y;
    int64_t ldw, ldx, ldy, step;
    int N, K, first; /* first: number of its first tile */
    int act;
    float alpha, scale;
    bool f32, add;
};

/* lnt_few_sum, and what a call behind one takes r from; NULL: none. */
struct few_sum {
    const float *x, *w;
    float *z, *squares;
    bf16 *zw;
    int64_t ldx, ldz, ldzw;
    int tiles;
};
struct few_norm {
    const float *squares;
    int tiles;
    float mean, eps;
};

/* The parts of a call, in tiles of `rows` rows of w; of two that are combined, half of them are of each. */
struct few_parts {
    few_part p[LNT_FEW_PARTS];
    int parts, R, tiles;
    bool swiglu;
    few_sum sum;
    few_norm norm;
};

static inline few_parts few_parts_of(const lnt_few_rows *f, int rows)
{
    few_parts a = {};
    int64_t tiles = 0;
    a.parts = f->parts, a.R = f->R, a.swiglu = f->swiglu;
    for (int i = 0; i < f->parts; i++) {
        const lnt_few_part *q = &f->part[i];
        few_part &p = a.p[i];
        p.w = (const bf16 *)q->w, p.x = (const bf16 *)(q->x ? q->x : f->x), p.bias = q->bias, p.y = (char *)q->y;
        p.ldw = q->ldw, p.ldx = q->x ? q->ldx : f->ldx, p.ldy = q->ldy, p.step = q->step;
        p.N = (int)q->N, p.K = (int)(q->x ? q->K : f->K), p.first = (int)tiles, p.act = q->act;
        p.alpha = q->alpha, p.scale = q->scale, p.f32 = q->type == LINNET_F32, p.add = q->add;
        if (!f->swiglu || i == 0) tiles += lnt_div_up(q->N, f->swiglu ? rows / 2 : rows);
    }
    a.tiles = (int)tiles;
    if (f->sum) {
        f->sum->tiles = a.tiles;
        a.sum = {f->sum->x, f->sum->w, f->sum->z, f->sum->squares, (bf16 *)f->sum->zw, f->sum->ldx, f->sum->ldz, f->sum->ldzw, a.tiles};
    }
    if (f->norm) a.norm = {f->norm->squares, f->norm->tiles, f->mean, f->eps};
    return a;
}

__device__ __forceinline__ int few_part_at(const few_parts &a, int tile)
{
    int i = 0;
    while (!a.swiglu && i + 1 < a.parts && tile >= a.p[i + 1].first) i++;
    return i;
}

__device__ __forceinline__ float as_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

/* d += A B, [16][8] += [16][16] [16][8] (device/mma.cuh). */
__device__ __forceinline__ void few_mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* SwiGLU of gates s and the sums u, both rounded to bf16 first. */
template <int U> __device__ __forceinline__ void few_gate(const few_part &p, float (&s)[U], const float (&u)[U])
{
#pragma unroll
    for (int i = 0; i < U; i++) {
        const float g = as_bf16(p.alpha * s[i]);
        s[i] = g * sigmoid_of(g) * as_bf16(u[i]);
    }
}

/* What becomes of sums s of the rows of w from n on, U of each row of x; with `swiglu`, of gates s and the sums u. */
template <int U, int L> __device__ __forceinline__ void few_result(const few_part &p, bool swiglu, int n, float (&s)[L], const float (&u)[L])
{
    if (swiglu) few_gate(p, s, u);
    else
#pragma unroll
        for (int i = 0; i < L; i++) s[i] *= p.alpha;
    if (p.bias) {
#pragma unroll
        for (int i = 0; i < L; i++) s[i] = as_bf16(s[i]) + (n + i % U < p.N ? p.bias[n + i % U] : 0.0f);
    }
    if (p.act == LNT_IDENTITY) return;
#pragma unroll
    for (int i = 0; i < L; i++) s[i] = as_bf16(s[i]);
    act_all(s, p.act);
#pragma unroll
    for (int i = 0; i < L; i++) s[i] *= p.scale;
}

/* ---- a sum behind a product, and the root of its norm ------------------------------------------------------------------------------ */

/* What z of U neighbours of a row, column n the first, is made of besides their products s. */
template <int U> struct few_addend {
    float x[U], w[U];
    __device__ __forceinline__ void load(const few_sum &a, int r, int n)
    {
        load_pack<U>(x, a.x + r * a.ldx + n);
        load_pack<U>(w, a.w + n);
    }
    /* The sum of z^2. */
    __device__ __forceinline__ float put(const few_sum &a, const few_part &p, int r, int n, const float (&s)[U]) const
    {
        float z[U], zw[U], q = 0.0f;
#pragma unroll
        for (int i = 0; i < U; i++) {
            float y = p.alpha * s[i];
            if (p.bias) y = as_bf16(y) + p.bias[n + i];
            z[i] = x[i] + as_bf16(y), zw[i] = z[i] * w[i], q += z[i] * z[i];
        }
        store_pack(a.z + r * a.ldz + n, z);
        store_pack(a.zw + r * a.ldzw + n, zw);
        return q;
    }
};
/* Of a tile's row, whose 16 threads are neighbours. */
__device__ __forceinline__ void few_squares(const few_sum &a, int r, int tile, float q)
{
#pragma unroll
    for (int o = 8; o; o >>= 1) q += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), q, o);
    if (threadIdx.x % 16 == 0) a.squares[r * a.tiles + tile] = q;
}

/* What is summed for r of a row of x, by `share` warps of which this is number `mine`: loads on their way, and what they bring. */
struct few_root {
    float q[LNT_FEW_TILES / 32];
    __device__ __forceinline__ void load(const few_norm &a, int row, int mine = 0, int share = 1)
    {
#pragma unroll
        for (int i = 0; i < LNT_FEW_TILES / 32; i++) {
            q[i] = 0.0f;
            if (i * share * 32 >= LNT_FEW_TILES) continue; /* where `share` is a constant, these loads are none */
            const int tile = (int)threadIdx.x % 32 + 32 * (i * share + mine);
            if (tile < a.tiles) q[i] = a.squares[row * a.tiles + tile];
        }
    }
    __device__ __forceinline__ float sum() const
    {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < LNT_FEW_TILES / 32; i++) s += q[i];
        return warp_sum(s);
    }
    static __device__ __forceinline__ float of(const few_norm &a, float sum) { return rsqrtf(fmaf(sum, a.mean, a.eps)); }
};

#endif
