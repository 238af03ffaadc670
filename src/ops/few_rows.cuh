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

/* The parts of a call, in tiles of `rows` rows of w; of two that are combined, half of them are of each. */
struct few_parts {
    few_part p[LNT_FEW_PARTS];
    int parts, R, tiles;
    bool swiglu;
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

/* What becomes of sums s of the rows of w from n on; with `swiglu`, of gates s and the sums u. */
template <int U> __device__ __forceinline__ void few_result(const few_part &p, bool swiglu, int n, float (&s)[U], const float (&u)[U])
{
    if (swiglu) few_gate(p, s, u);
    else
#pragma unroll
        for (int i = 0; i < U; i++) s[i] *= p.alpha;
    if (p.bias) {
#pragma unroll
        for (int i = 0; i < U; i++) s[i] = as_bf16(s[i]) + (n + i < p.N ? p.bias[n + i] : 0.0f);
    }
    if (p.act == LNT_IDENTITY) return;
#pragma unroll
    for (int i = 0; i < U; i++) s[i] = as_bf16(s[i]);
    act_all(s, p.act);
#pragma unroll
    for (int i = 0; i < U; i++) s[i] *= p.scale;
}

#endif
