/* Rows of one head between a [T,heads,width] tensor (f32 or bf16) and a dense float32 [n,width] block, and small things chunk kernels do to such
 * blocks. Blocks are always copied: the rows of a head lie heads*width apart, often a power of two, and would fall on the same few sets of the L1
 * cache. Only *_cpu.c files include this. */
#ifndef LNT_CHUNK_ROWS_H
#define LNT_CHUNK_ROWS_H

#include "simd/mm.h"

/* Defined by a file whose rows go by between products of tiles (simd/mm.h). */
#if defined(LNT_ROWS_BETWEEN_TILES)
static inline void rows_awake(int64_t i)
{
    if (i % 16 == 0) lnt_tiles_awake();
}
#else
static inline void rows_awake(int64_t i) { (void)i; }
#endif

/* x == NULL: zeros. */
static inline void rows_in(float *dst, const void *x, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width)
{
    if (!x) {
        memset(dst, 0, (size_t)(n * width) * sizeof *dst);
        return;
    }
    size_t size = t == LINNET_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        const char *row = (const char *)x + (size_t)(((first + i) * heads + h) * width) * size;
        if (t == LINNET_F32)
            memcpy(dst + i * width, row, (size_t)width * 4);
        else
            v_row(row, t, width, dst + i * width);
    }
}

/* Bring rows into the L2 cache ahead of their use: a head's rows lie on different pages, where the hardware's prefetchers do not follow. The products
 * that come next do it on the way (simd/mm.h); tiles know nothing of that. */
static inline void rows_ahead(const void *x, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width)
{
    int64_t bytes = width * (t == LINNET_F32 ? 4 : 2), stride = heads * bytes;
    if (!x || n <= 0 || !bytes) return;
    const char *row = (const char *)x + first * stride + h * bytes;
#if !defined(__AMX_BF16__)
    lnt_ahead *a = &LNT_V(lnt_mm_ahead);
    if (!a->at_once) {
        if (a->n == LNT_FETCHES) lnt_fetch_all(a);
        const char *line = row - (uintptr_t)row % 64;
        int each = (int)((row + bytes - 1 - line) / 64 + 1);
        a->list[a->n++] = (lnt_fetch){ .line = line, .jump = stride - 64 * each, .n = (int)n * each, .left = each, .each = each, .skip = each > 5 };
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++, row += stride) {
        rows_awake(i);
        for (int64_t b = 0; b < bytes; b += 64) lnt_fetch_at(row + b);
        if (((uintptr_t)row | (uintptr_t)bytes) % 64) lnt_fetch_at(row + bytes - 1);
    }
}

/* Bytes of a result, taken as float32, from which on rows go past the caches: they lie a page apart, and a line would be read from memory to be
 * written (decay.md). */
enum { PAST = 8 << 20 };

/* Around a thread's work on a result of so many numbers. */
static inline void rows_past_begin(int64_t numbers) { LNT_V(lnt_mm_ahead).past = numbers * 4 >= PAST; }
static inline void rows_past_end(void)
{
    if (LNT_V(lnt_mm_ahead).past) v_stream_end();
    LNT_V(lnt_mm_ahead).past = false;
}

/* Whether rows of a result go past the caches: whole lines, of bf16 on tiles alone, where the walk has said so. */
static inline bool rows_past(const void *y, lnt_dtype t, int64_t width)
{
#if defined(__AMX_BF16__)
    const bool lines = LNT_V(lnt_mm_ahead).past && width % (t == LINNET_F32 ? 16 : 32) == 0;
#else
    const bool lines = LNT_V(lnt_mm_ahead).past && t == LINNET_F32 && width % 16 == 0;
#endif
    return lines && (uintptr_t)y % 64 == 0;
}

#if defined(__AMX_BF16__)
/* A line of bf16 past the caches. */
static inline void line_past(lnt_bf16 *y, vf low, vf high)
{
    _mm512_stream_si512((void *)y, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
}
#endif

/* The same for rows that are about to be written. */
static inline void rows_ahead_out(const void *y, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width)
{
    if (!rows_past(y, t, width)) rows_ahead(y, t, first, n, heads, h, width);
}

/* As rows_ahead one row, at once, where no product follows: token by token a row is read every so many cycles, and each lies on a page of its own.
 * The row of token `t` when that is before `end`. */
static inline void row_ahead(const void *x, lnt_dtype dtype, int64_t t, int64_t end, int64_t heads, int64_t h, int64_t width)
{
    const int64_t bytes = width * (dtype == LINNET_F32 ? 4 : 2);
    if (!x || t >= end) return;
    const char *row = (const char *)x + (t * heads + h) * bytes;
    for (int64_t b = 0; b < bytes; b += 64) lnt_fetch_at(row + b);
}
/* So many tokens ahead: a token takes one to two thousand cycles, memory some hundreds. */
enum { TOKENS_AHEAD = 2 };

/* y == NULL: not wanted. */
static inline void rows_out(void *y, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width, const float *src)
{
    if (!y) return;
    size_t size = t == LINNET_F32 ? 4 : 2;
#if defined(__AMX_BF16__)
    if (t == LINNET_BF16 && rows_past(y, t, width)) {
        lnt_bf16 *row = (lnt_bf16 *)y + (first * heads + h) * width;
        for (int64_t i = 0; i < n; i++, row += heads * width, src += width) {
            rows_awake(i);
            for (int64_t j = 0; j < width; j += 32) line_past(row + j, v_load(src + j), v_load(src + j + 16));
        }
        return;
    }
#endif
    if (t == LINNET_F32 && rows_past(y, t, width)) {
        float *row = (float *)y + (first * heads + h) * width;
        for (int64_t i = 0; i < n; i++, row += heads * width, src += width) {
            rows_awake(i);
            for (int64_t j = 0; j < width; j += LNT_VL) v_stream(row + j, v_load(src + j));
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        v_put_row((char *)y + (size_t)(((first + i) * heads + h) * width) * size, t, src + i * width, width, 0);
    }
}

/* dst_i = row i of x - b_i dst_i */
static inline void rows_in_less(float *dst, const void *x, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width,
                                const float *b)
{
    for (int64_t r = 0; r < n; r++, dst += width) {
        int64_t at = ((first + r) * heads + h) * width, i = 0;
        rows_awake(r);
        const float *f = (const float *)x + at;
        const lnt_bf16 *p = (const lnt_bf16 *)x + at;
        if (t == LINNET_F32) {
            for (; i + LNT_VL <= width; i += LNT_VL) v_store(dst + i, v_load(f + i) - b[r] * v_load(dst + i));
            for (; i < width; i++) dst[i] = f[i] - b[r] * dst[i];
        } else {
            for (; i + LNT_VL <= width; i += LNT_VL) v_store(dst + i, v_load_bf16(p + i) - b[r] * v_load(dst + i));
            for (; i < width; i++) dst[i] = lnt_bf16_to_f32(p[i]) - b[r] * dst[i];
        }
    }
}

/* row i of y = f b_i x_i + d_i z_i; b and d NULL: ones */
static inline void rows_out_sum(void *y, lnt_dtype t, int64_t first, int64_t n, int64_t heads, int64_t h, int64_t width, float f, const float *b,
                                const float *x, const float *d, const float *z)
{
    const bool past = t == LINNET_BF16 && rows_past(y, t, width);
    for (int64_t r = 0; r < n; r++, x += width, z += width) {
        int64_t at = ((first + r) * heads + h) * width, i = 0;
        rows_awake(r);
        const float s = b ? f * b[r] : f, e = d ? d[r] : 1.0f;
        if (t == LINNET_F32) {
            float *p = (float *)y + at;
            for (; i + LNT_VL <= width; i += LNT_VL) v_store(p + i, s * v_load(x + i) + e * v_load(z + i));
            for (; i < width; i++) p[i] = s * x[i] + e * z[i];
        } else {
            lnt_bf16 *p = (lnt_bf16 *)y + at;
#if defined(__AMX_BF16__)
            for (; past && i < width; i += 32)
                line_past(p + i, s * v_load(x + i) + e * v_load(z + i), s * v_load(x + i + 16) + e * v_load(z + i + 16));
#else
            (void)past;
#endif
            for (; i + LNT_VL <= width; i += LNT_VL) v_store_bf16(p + i, s * v_load(x + i) + e * v_load(z + i));
            for (; i < width; i++) p[i] = lnt_f32_to_bf16(s * x[i] + e * z[i]);
        }
    }
}

/* x *= s */
static inline void row_scale(float *x, float s, int64_t n)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(x + i, v_load(x + i) * s);
    for (; i < n; i++) x[i] *= s;
}

/* Row i of y = f b_i times row i of x; x == y is fine. */
static inline void rows_scaled(int64_t n, int64_t width, float f, const float *b, const float *x, float *y)
{
    for (int64_t r = 0; r < n; r++, x += width, y += width) {
        float s = f * b[r];
        int64_t i = 0;
        rows_awake(r);
        for (; i + LNT_VL <= width; i += LNT_VL) v_store(y + i, v_load(x + i) * s);
        for (; i < width; i++) y[i] = x[i] * s;
    }
}

/* y = f x . factors, elementwise; x == y is fine. */
static inline void row_times(int64_t n, float f, const float *factors, const float *x, float *y)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, f * v_load(x + i) * v_load(factors + i));
    for (; i < n; i++) y[i] = f * x[i] * factors[i];
}

/* y += s x */
static inline void row_add(float *y, float s, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, v_load(y + i) + s * v_load(x + i));
    for (; i < n; i++) y[i] += s * x[i];
}

/* y = r y + s x */
static inline void row_scale_add(float *y, float r, float s, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, r * v_load(y + i) + s * v_load(x + i));
    for (; i < n; i++) y[i] = r * y[i] + s * x[i];
}

/* y = r x + z */
static inline void row_next(int64_t n, float r, const float *x, const float *z, float *y)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, r * v_load(x + i) + v_load(z + i));
    for (; i < n; i++) y[i] = r * x[i] + z[i];
}

/* y [width] += sum_i b_i x_i (b NULL: ones), in the order of the rows; sums of four vectors side by side. */
static inline void rows_add_up(int64_t n, int64_t width, const float *b, const float *x, float *y)
{
    int64_t j = 0;
    for (; j + 4 * LNT_VL <= width; j += 4 * LNT_VL) {
        vf sum[4];
        for (int l = 0; l < 4; l++) sum[l] = v_load(y + j + l * LNT_VL);
        for (int64_t i = 0; i < n; i++) {
            const vf f = v_set(b ? b[i] : 1.0f);
            for (int l = 0; l < 4; l++) sum[l] += f * v_load(x + i * width + j + l * LNT_VL);
        }
        for (int l = 0; l < 4; l++) v_store(y + j + l * LNT_VL, sum[l]);
    }
    if (j == width) return;
    for (int64_t i = 0; i < n; i++) row_add(y + j, b ? b[i] : 1.0f, x + i * width + j, width - j);
}

/* The same of rows of bf16, ld apart. */
static inline void rows_add_up16(int64_t n, int64_t width, const float *b, const lnt_bf16 *x, int64_t ld, float *y)
{
    int64_t j = 0;
    for (; j + 4 * LNT_VL <= width; j += 4 * LNT_VL) {
        vf sum[4];
        for (int l = 0; l < 4; l++) sum[l] = v_load(y + j + l * LNT_VL);
        for (int64_t i = 0; i < n; i++) {
            const vf f = v_set(b[i]);
            rows_awake(i);
            for (int l = 0; l < 4; l++) sum[l] += f * v_load_bf16(x + i * ld + j + l * LNT_VL);
        }
        for (int l = 0; l < 4; l++) v_store(y + j + l * LNT_VL, sum[l]);
    }
    for (; j < width; j++)
        for (int64_t i = 0; i < n; i++) y[j] += b[i] * lnt_bf16_to_f32(x[i * ld + j]);
}

/* y += f x . z */
static inline void row_add_times(int64_t n, float f, const float *x, const float *z, float *y)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, v_load(y + i) + f * v_load(x + i) * v_load(z + i));
    for (; i < n; i++) y[i] += f * x[i] * z[i];
}

/* y *= x */
static inline void row_mul(float *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(y + i, v_load(y + i) * v_load(x + i));
    for (; i < n; i++) y[i] *= x[i];
}

/* Whether all are numbers: 0 times each is 0. */
static inline bool row_finite(const float *x, int64_t n)
{
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) sum += v_load(x + i) * 0.0f;
    float rest = v_sum(sum);
    for (; i < n; i++) rest += x[i] * 0.0f;
    return rest == 0;
}

static inline float row_dot(const float *x, const float *y, int64_t n)
{
    vf a = v_zero(), b = v_zero();
    int64_t i = 0;
    for (; i + 2 * LNT_VL <= n; i += 2 * LNT_VL) {
        a += v_load(x + i) * v_load(y + i);
        b += v_load(x + i + LNT_VL) * v_load(y + i + LNT_VL);
    }
    if (i + LNT_VL <= n) {
        a += v_load(x + i) * v_load(y + i);
        i += LNT_VL;
    }
    if (i < n) b += v_load_n(x + i, n - i) * v_load_n(y + i, n - i);
    return v_sum(a + b);
}

/* The same of a row of bf16 and one of float32. */
static inline float row_dot16(const lnt_bf16 *x, const float *y, int64_t n)
{
    vf a = v_zero(), b = v_zero();
    int64_t i = 0;
    for (; i + 2 * LNT_VL <= n; i += 2 * LNT_VL) {
        a += v_load_bf16(x + i) * v_load(y + i);
        b += v_load_bf16(x + i + LNT_VL) * v_load(y + i + LNT_VL);
    }
    float rest = v_sum(a + b);
    for (; i < n; i++) rest += lnt_bf16_to_f32(x[i]) * y[i];
    return rest;
}

/* <x, y . f> */
static inline float row_dot_times(const float *x, const float *y, const float *f, int64_t n)
{
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) sum += v_load(x + i) * v_load(y + i) * v_load(f + i);
    if (i < n) sum += v_load_n(x + i, n - i) * v_load_n(y + i, n - i) * v_load_n(f + i, n - i);
    return v_sum(sum);
}

/* The same of two rows of bf16. */
static inline float row_dot_times16(const lnt_bf16 *x, const lnt_bf16 *y, const float *f, int64_t n)
{
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) sum += v_load_bf16(x + i) * v_load_bf16(y + i) * v_load(f + i);
    float rest = v_sum(sum);
    for (; i < n; i++) rest += lnt_bf16_to_f32(x[i]) * lnt_bf16_to_f32(y[i]) * f[i];
    return rest;
}

static inline float row_sum(const float *x, int64_t n)
{
    vf a = v_zero();
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) a += v_load(x + i);
    if (i < n) a += v_load_n(x + i, n - i);
    return v_sum(a);
}

/* Of one number at least. */
static inline float row_least(const float *x, int64_t n)
{
    vf m = v_set(x[0]);
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) m = v_min(m, v_load(x + i));
    float y = -v_hmax(-m);
    for (; i < n; i++) y = x[i] < y ? x[i] : y;
    return y;
}

/* x = e^x */
static inline void row_exp(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(x + i, v_exp(v_load(x + i)));
    if (i < n) v_store_n(x + i, v_exp(v_load_n(x + i, n - i)), n - i);
}

/* y_i += A_ii x_i: the diagonal of A [n,ld], rows of `width`. */
static inline void rows_add_diagonal(int64_t n, const float *A, int64_t ld, const float *x, int64_t width, float *y)
{
    for (int64_t i = 0; i < n; i++) row_add(y + i * width, A[i * (ld + 1)], x + i * width, width);
}

#endif
