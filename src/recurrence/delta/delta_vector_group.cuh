/* What the kernels that are parallel over chunks share, before the chains and behind them: two channels of a group of 8 rows a thread, and the levels
 * of the tree of pairs that they fill. */
#ifndef LNT_DELTA_VECTOR_GROUP_CUH
#define LNT_DELTA_VECTOR_GROUP_CUH

#include "recurrence/delta/delta_vector.cuh"

namespace {

/* What the compiler must take as new: places that derive from it are made again for each use; kept from one to the next they would be spilled. */
__device__ __forceinline__ int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

struct delta_place {
    int64_t token, item;
    int rows, h, channel; /* the first of the CTA's */
};

/* Two channels of a group of 8 rows: the factors a = e^g of its rows, and q, k and, untied, a, b. The CTA has K of a head's OF channels. */
template <int K, bool UNTIED, int OF = K> struct delta_group {
    static constexpr int ROWS = UNTIED ? 4 : 2;
    float a[8][2];
    uint32_t x[ROWS][8];
    int group, pair;

    __device__ __forceinline__ delta_group()
    {
        const int thread = anew((int)threadIdx.x);
        group = thread / (K / 2), pair = thread % (K / 2);
    }
    __device__ __forceinline__ uint32_t in_tile(int i) const { return tile_at(8 * group + i, pair / 4) + 4 * (pair & 3); }
    __device__ __forceinline__ int64_t in_memory(const delta_vector &p, const delta_place &w, int i) const
    {
        return ((w.token + 8 * group + i) * p.in.Hv + w.h) * OF + w.channel + 2 * pair;
    }
    __device__ __forceinline__ void load(const delta_vector &p, const delta_place &w)
    {
        const bf16 *from[4] = { p.in.q, p.in.k, p.a, p.b };
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool real = 8 * group + i < w.rows;
            const int64_t at = in_memory(p, w, i);
            const float2 y = real ? *(const float2 *)(p.in.gk + at) : make_float2(0.f, 0.f);
            a[i][0] = fast_exp(y.x), a[i][1] = fast_exp(y.y);
#pragma unroll
            for (int j = 0; j < ROWS; j++) x[j][i] = real ? *(const uint32_t *)(from[j] + at) : 0;
        }
    }
};

/* The product of all rows' factors, of each group. */
template <int K, bool UNTIED, int OF> __device__ __forceinline__ void put_products(float *products, const delta_group<K, UNTIED, OF> &of)
{
    float x = 1.f, y = 1.f;
#pragma unroll
    for (int i = 0; i < 8; i++) x *= of.a[i][0], y *= of.a[i][1];
    *(float2 *)(products + of.group * K + 2 * of.pair) = make_float2(x, y);
}

/* Both sets of levels. */
template <int K, bool UNTIED, int OF>
__device__ __forceinline__ void put_levels(uint32_t levels, const float *products, const delta_group<K, UNTIED, OF> &of)
{
    constexpr int T = K * 128;
    const int g = of.group;
    float2 x16 = *(const float2 *)(products + (g ^ 1) * K + 2 * of.pair), x32 = make_float2(1.f, 1.f);
    const bool reads8 = g & 1, reads16 = g & 2, reads32 = g & 4;
    if (reads8 != reads16) x16 = make_float2(1.f, 1.f); /* at the middle: no group between */
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (reads32 ? n >= 4 && n < g : n > g && n < 4) {
            const float2 y = *(const float2 *)(products + n * K + 2 * of.pair);
            x32.x *= y.x, x32.y *= y.y;
        }
    float up[8][2], down[8][2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float x = 1.f, y = 1.f;
#pragma unroll
        for (int i = 0; i < 8; i++) x *= of.a[i][e], up[i][e] = x;
#pragma unroll
        for (int i = 7; i >= 0; i--) down[i][e] = y, y *= of.a[i][e];
    }
#pragma unroll
    for (int set = 0; set < 2; set++) {
        const int reader = set == 0 ? 0 : UNTIED ? 2 : 1, writer = set == 0 ? 1 : UNTIED ? 3 : 1;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool before = UNTIED && set == 1; /* reads what the row before left */
            const float u0 = before ? i ? up[i - (i > 0)][0] : 1.f : up[i][0], u1 = before ? i ? up[i - (i > 0)][1] : 1.f : up[i][1];
            const float r0 = u0 * low_bf16(of.x[reader][i]), r1 = u1 * high_bf16(of.x[reader][i]);
            const float w0 = down[i][0] * low_bf16(of.x[writer][i]), w1 = down[i][1] * high_bf16(of.x[writer][i]);
            const uint32_t at = levels + set * 3 * T + of.in_tile(i);
            store_pair(at, reads8 ? pack_bf16(r0, r1) : pack_bf16(w0, w1));
            store_pair(at + T, reads16 ? pack_bf16(x16.x * r0, x16.y * r1) : pack_bf16(x16.x * w0, x16.y * w1));
            store_pair(at + 2 * T, reads32 ? pack_bf16(x32.x * r0, x32.y * r1) : pack_bf16(x32.x * w0, x32.y * w1));
        }
    }
}

/* What lies before and behind a thread's group. */
template <int K> struct delta_around {
    float before[2], own[2], behind[2];
    __device__ __forceinline__ delta_around(const float *products, int group, int pair)
    {
        before[0] = before[1] = behind[0] = behind[1] = own[0] = own[1] = 1.f;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 y = *(const float2 *)(products + n * K + 2 * pair);
            if (n < group) before[0] *= y.x, before[1] *= y.y;
            if (n == group) own[0] = y.x, own[1] = y.y;
            if (n > group) behind[0] *= y.x, behind[1] *= y.y;
        }
    }
};

} // namespace

#endif
