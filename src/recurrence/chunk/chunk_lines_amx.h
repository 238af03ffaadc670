/* Rows 32 columns at a time, a line of bf16, and where lines of gradients go. Only files of the variant that has tiles include this, after
 * chunk_walk.h. */
#ifndef LNT_CHUNK_LINES_AMX_H
#define LNT_CHUNK_LINES_AMX_H

#include "recurrence/chunk/chunk_factors_amx.h"
#include "recurrence/chunk/chunk_walk.h"

#if defined(__AMX_BF16__)
typedef struct {
    __m512 low, high;
} line;
INLINE line line_in(const lnt_bf16 *row) { return (line){ (__m512)v_load_bf16(row), (__m512)v_load_bf16(row + 16) }; }
INLINE line line_of(const float *row) { return (line){ _mm512_loadu_ps(row), _mm512_loadu_ps(row + 16) }; }
INLINE line line_some(const float *row, uint32_t mask) /* zeros where there is no bit */
{
    return (line){ _mm512_maskz_loadu_ps((__mmask16)mask, row), _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), row + 16) };
}
INLINE line line_set(float x) { return (line){ _mm512_set1_ps(x), _mm512_set1_ps(x) }; }
INLINE line line_plus(line x, line y) { return (line){ _mm512_add_ps(x.low, y.low), _mm512_add_ps(x.high, y.high) }; }
INLINE line line_times(line x, line y) { return (line){ _mm512_mul_ps(x.low, y.low), _mm512_mul_ps(x.high, y.high) }; }
INLINE line line_more(line x, line y, line z) { return (line){ _mm512_fmadd_ps(x.low, y.low, z.low), _mm512_fmadd_ps(x.high, y.high, z.high) }; }
INLINE line line_less(line x, line y, line z) { return (line){ _mm512_fnmadd_ps(x.low, y.low, z.low), _mm512_fnmadd_ps(x.high, y.high, z.high) }; }
INLINE line line_inverse(line x) { return (line){ short_inverse(x.low), short_inverse(x.high) }; }
INLINE void line_put(lnt_bf16 *to, line x) { put_wide(to, x.low, x.high); }
INLINE void line_store(float *to, line x)
{
    _mm512_storeu_ps(to, x.low);
    _mm512_storeu_ps(to + 16, x.high);
}

INLINE __m512i line_round(line x) { return (__m512i)_mm512_cvtne2ps_pbh(x.high, x.low); }

/* Lines of two rows in a right form, whose blocks of 16 columns lie `block` apart. */
INLINE void line_pair(uint32_t *to, int64_t block, __m512i even, __m512i odd)
{
    const __m512i low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(to + block, _mm512_permutex2var_epi16(even, _mm512_add_epi16(low, _mm512_set1_epi16(16)), odd));
}

/* Where lines of a gradient [T,heads,width] go: into the tensor, past the caches or not, or to `sum` [n,width], to be added up over heads. */
typedef struct {
    lnt_bf16 *row;
    int64_t stride, width;
    bool past;
    float *sum;
} line_result;
static inline line_result line_to(lnt_rows c, void *out, int64_t heads, int64_t h, int64_t width, int64_t at, float *sum)
{
    lnt_bf16 *row = out ? (lnt_bf16 *)out + (c.first * heads + h) * width + at : NULL;
    return (line_result){ row, heads * width, width, rows_past(out, LINNET_BF16, width), sum ? sum + at : NULL };
}
INLINE void line_result_put(const line_result *to, int64_t i, int64_t j, line x) /* of row i, j columns on */
{
    if (to->sum)
        line_store(to->sum + i * to->width + j, x);
    else if (to->row && to->past)
        line_past(to->row + i * to->stride + j, (vf)x.low, (vf)x.high);
    else if (to->row)
        line_put(to->row + i * to->stride + j, x);
}
#endif

#endif
