/* What the kernels of the scan core share that walk rows of tokens as they lie in memory. Only its *_cpu.c files include this. */
#ifndef LNT_SCAN_ROWS_H
#define LNT_SCAN_ROWS_H

#include "ops/rows.h"

enum {
    SCAN_NARROWEST = 64, /* 256 bytes of a row: no cache line is written by two threads */
    SCAN_WIDEST = 2048,  /* channels of a strip: its carried row is 8 KB */
    SCAN_SMALL = 16384,  /* elements below which threads cost more than they bring */
    SCAN_PARTS = 8,      /* sums over sequences are made in at most so many parts */
    SCAN_PAST = 8 << 20, /* bytes of a result from which on it is written past the caches, which would be gone before anybody reads it */
};

/* Element i of an array that may be absent. */
static inline void *scan_at(const void *p, lnt_dtype t, int64_t i) { return p ? (char *)(uintptr_t)p + i * (t == LINNET_F32 ? 4 : 2) : NULL; }

/* dst = src, or zeros. */
static inline void scan_take(float *dst, const float *src, int64_t width)
{
    if (src)
        memcpy(dst, src, (size_t)width * sizeof *dst);
    else
        memset(dst, 0, (size_t)width * sizeof *dst);
}

/* Fetch the line of element j of another row, once a line: rows lie on pages of their own, where the hardware does not look ahead, nor in reverse.
 * Into the second cache: the first has no room for the rows between this line and its turn, and takes fewer at a time. */
INLINE void scan_ahead(const void *p, lnt_dtype t, int64_t j, int64_t away)
{
    const int64_t size = t == LINNET_F32 ? 4 : 2;
    if (p && j * size % 64 == 0) __builtin_prefetch((const char *)p + (j + away) * size, 0, 2);
}

/* Whether rows of a result [tokens,D] can be written past the caches, and shall be; and writing one there. */
static inline bool scan_goes_past(lnt_dtype t, int64_t tokens, int64_t D, const void *result)
{
    const int64_t row = D * (t == LINNET_F32 ? 4 : 2);
    return tokens * row >= SCAN_PAST && row % 64 == 0 && (uintptr_t)result % 64 == 0;
}
INLINE void scan_put(bool past, void *p, lnt_dtype t, int64_t j, int64_t n, vf x)
{
    if (past && n == LNT_VL) {
        if (t == LINNET_F32)
            v_stream((float *)p + j, x);
        else
            v_stream_bf16((lnt_bf16 *)p + j, x);
    } else
        v_put(p, t, j, n, x);
}

/* Two whole vectors that follow each other: bf16 past the caches in one store, a line where a vector has 16 numbers. */
INLINE void scan_put_two(bool past, void *p, lnt_dtype t, int64_t j, vf x, vf y)
{
    if (past && t == LINNET_BF16) {
        v_stream_bf16_two((lnt_bf16 *)p + j, x, y);
    } else {
        scan_put(past, p, t, j, LNT_VL, x);
        scan_put(past, p, t, j + LNT_VL, LNT_VL, y);
    }
}

/* BODY(j, n) for whole vectors of 0 .. width, and one for the rest. */
#define EACH_VECTOR(width, BODY)                                                                                                   \
    do {                                                                                                                           \
        int64_t j_ = 0;                                                                                                            \
        for (; j_ + LNT_VL <= (width); j_ += LNT_VL) BODY(j_, LNT_VL);                                                             \
        if (j_ < (width)) BODY(j_, (width) % LNT_VL);                                                                              \
    } while (0)

/* Channels of a strip: as many strips to each of `count` sequences as give each thread the same number of them. */
static inline int64_t scan_strip_width(int64_t D, int64_t count, int threads)
{
    int64_t x = count, y = threads;
    while (y) {
        const int64_t rest = x % y;
        x = y, y = rest;
    }
    const int64_t parts = x > 0 ? threads / x : 1, width = ((D + parts - 1) / parts + SCAN_NARROWEST - 1) / SCAN_NARROWEST * SCAN_NARROWEST;
    return at_most(width, SCAN_WIDEST);
}
static inline int64_t scan_room(int64_t D) { return (at_most(D, SCAN_WIDEST) + 15) / 16 * 16; } /* floats of a strip's row */

/* Where part i of `count` begins. */
static inline int64_t scan_part(int64_t count, int64_t i, int64_t parts) { return count * i / parts; }

typedef uint32_t scan_bits __attribute__((vector_size(LNT_VL * 4))); /* of numbers: they wrap, where an exponent is far away */

/* 2^x to 1 ulp for x <= 127, what decays are made of where their rates were multiplied by log2(e) once: x = n + r, |r| <= 1/2, a polynomial of degree
 * 6 whose first coefficient is exactly 1 (2e-9 relative, 3e-10 on average: decays close to 1 are multiplied by the thousand). 10 operations where
 * v_exp has 15. Below -126 it is 0, or what is left below the normal numbers; -inf gives 0, NaN stays NaN. (vreduceps in place of a rounding and a
 * difference: four times slower on Zen 5.) */
static inline vf v_exp2(vf x)
{
#if defined(__AVX512F__)
    const __m512 t = _mm512_max_ps(_mm512_set1_ps(-160.0f), (__m512)x); /* hands on its second operand when that is NaN */
    const vf n = (vf)_mm512_roundscale_ps(t, 8), r = (vf)t - n;
#else
    const vf shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
#endif
    vf p = v_set(1.5453163e-4f);
    p = p * r + 1.33908633e-3f;
    p = p * r + 9.61808302e-3f;
    p = p * r + 5.55035695e-2f;
    p = p * r + 2.40226507e-1f;
    p = p * r + 6.93147182e-1f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const vf y = (vf)((scan_bits)p + ((scan_bits)shifted << 23)); /* only n's bits are left of the shifted number's */
    return v_select(x == x, v_select(x < v_set(-126.0f), v_zero(), y), x);
#endif
}

/* The nearest integer, for |x| < 2^22. */
static inline vf v_nearest(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_roundscale_ps((__m512)x, 8);
#else
    return (x + 12582912.0f) - 12582912.0f;
#endif
}

/* p 2^n for p from 0.7 to 1.42 and an integer n <= 126; below -126 it is 0, or what is left below the normal numbers. */
static inline vf v_by_power(vf p, vf n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return v_select(n < v_set(-126.0f), v_zero(), (vf)((scan_bits)p + ((scan_bits)(n + 12582912.0f) << 23)));
#endif
}

/* cos(x) and sin(x) to 2 ulp of 1 for |x| up to 8192, which a phase a token does not leave; by libm above, and where x is no number. x is taken to
 * within pi/4 by multiples of pi/2, whose first two parts have few bits; Taylor-like polynomials of Cody and Waite's kind for the rest. */
static inline void v_cos_sin(vf x, vf *cosine, vf *sine)
{
    const vf t = x * 0.636619772f + 12582912.0f, n = t - 12582912.0f;
    const vi quarter = (vi)t; /* its last two bits */
    vf r = x - n * 1.5703125f;
    r = r - n * 4.837512969970703125e-4f;
    r = r - n * 7.54978995489188216e-8f;
    const vf z = r * r;
    const vf s = r + r * z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
    const vf c = 1.0f - 0.5f * z + z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
    const vi odd = -(quarter & 1), turned = (quarter & 2) << 30, other = ((quarter + 1) & 2) << 30;
    *sine = (vf)((vi)v_select(odd, c, s) ^ turned);
    *cosine = (vf)((vi)v_select(odd, s, c) ^ other);
    const vi far = ~(v_abs(x) <= v_set(8192.0f)), none = { 0 };
    if (memcmp(&far, &none, sizeof far) == 0) return;
    for (int i = 0; i < LNT_VL; i++)
        if (far[i]) (*cosine)[i] = cosf(x[i]), (*sine)[i] = sinf(x[i]);
}

#endif
