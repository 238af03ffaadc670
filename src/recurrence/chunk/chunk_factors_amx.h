/* Factors of gates, rounded with the rows that they scale, for tiles. Only files of the variant that has tiles include this. */
#ifndef LNT_CHUNK_FACTORS_AMX_H
#define LNT_CHUNK_FACTORS_AMX_H

#include "simd/mm.h"

#if defined(__AMX_BF16__)

/* Mild gates: what a chunk's sums reach at most, from either side of 0. 1e-28 to 1e28: 10^10 and more are left for rows on either side. */
#define MILD 64.0f

#define LOG2_E 1.44269504f

/* 2^y of y from -126 to 126: 2^floor(y) 2^r, r from 0 to 1, by a polynomial of degree 5 that is 1 where r is (8e-08 relative error), enough for
 * factors that bf16 rounds, and half the work of v_exp; and e^g. */
INLINE __m512 power_in_range(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF);
    __m512 p = _mm512_set1_ps(0.00186713029f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00901702975f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0557999136f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24016445f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693151312f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, y);
}
INLINE __m512 power(__m512 y) /* of any y <= 0: 0 below the normal numbers */
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), power_in_range(y));
}
INLINE __m512 decay_in_range(__m512 g) { return power_in_range(_mm512_mul_ps(g, _mm512_set1_ps(LOG2_E))); }

/* e^g of any g <= 0: 0 below the normal numbers. */
INLINE __m512 decay(__m512 g)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(g, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ), decay_in_range(g));
}

/* 1/x by a step of Newton's from 14 bits. */
INLINE __m512 inverse(__m512 x)
{
    const __m512 r = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(r, _mm512_fnmadd_ps(x, r, _mm512_set1_ps(2.0f)));
}

/* Both for factors whose products bf16 rounds (2e-3): 2^y and e^g within 9e-5 and 1/x within 6e-5, relative, 1 where y and g are 0 and x is 1. */
INLINE __m512 short_power(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0770675499f), r, _mm512_set1_ps(0.227644438f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695116911f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, y);
}
INLINE __m512 any_short_power(__m512 y) /* of any y <= 0: 0 below the normal numbers */
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), short_power(y));
}
INLINE __m512 short_decay(__m512 g) { return short_power(_mm512_mul_ps(g, _mm512_set1_ps(LOG2_E))); }
INLINE __m512 short_inverse(__m512 x) { return _mm512_rcp14_ps(x); }

INLINE void put_wide(lnt_bf16 *to, __m512 low, __m512 high)
{
    const __m512bh h = _mm512_cvtne2ps_pbh(high, low);
    memcpy(to, &h, sizeof h);
}

#endif

#endif
