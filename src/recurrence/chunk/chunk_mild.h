/* Mild gates in a chunk, in float32: where no column decays below e^-32 from the chunk's start to its end, every factor splits at the start,
 * F_ij = P_i / P_j with P_i = alpha_1 ... alpha_i, and pairs are products of rows that are scaled once. Of the range of float32 10^24 are left on
 * either side, and a gate's gradient, which is a difference of pairs that it has decayed and pairs that it has not, the digits that it wants. Only
 * headers of *_cpu.c files include this; chunk_mild_amx.h has the same for tiles. */
#ifndef LNT_CHUNK_MILD_H
#define LNT_CHUNK_MILD_H

#include "simd/mm.h"

#define MILD 1.2664165549094176e-14f
enum { MILD_BLOCK = 16, SIDE_BY_SIDE = 4 }; /* rows of a block of pairs; vectors of columns whose chains of products run side by side */

INLINE vf mild_load(bool bf16, bool part, const void *row, int64_t at, int lanes)
{
    if (!bf16) return part ? v_load_n((const float *)row + at, lanes) : v_load((const float *)row + at);
    if (!part) return v_load_bf16((const lnt_bf16 *)row + at);
    vf x = v_zero();
    for (int l = 0; l < lanes; l++) x[l] = lnt_bf16_to_f32(((const lnt_bf16 *)row)[at + l]);
    return x;
}
INLINE void mild_store(bool part, float *y, vf x, int lanes)
{
    if (part)
        v_store_n(y, x, lanes);
    else
        v_store(y, x);
}

/* 1/x of a normal number: with AVX-512, whose division holds 16 numbers up for as many cycles, from 14 bits by a step of Newton's. */
INLINE vf mild_inverse(vf x)
{
#if LNT_VL == 16
    const vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y + y * (v_set(1.0f) - x * y);
#else
    return v_set(1.0f) / x;
#endif
}

/* Whether a chunk's gates are: by the decay over the chunk. */
static inline bool mild_all(const float *end, int width)
{
    bool mild = true;
    for (int j = 0; j < width; j++) mild &= end[j] >= MILD;
    return mild;
}

/* s times the first `end` of a row's `n` numbers, zeros behind. */
INLINE void mild_mask(float *row, int end, int n, float s)
{
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int j = 0; j < n; j += LNT_VL) {
        const int lanes = n - j < LNT_VL ? n - j : LNT_VL;
        v_store_n(row + j, v_select(lane < end - j, s * v_load_n(row + j, lanes), v_zero()), lanes);
    }
}

#endif
