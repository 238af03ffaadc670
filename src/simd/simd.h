/* The small vector layer. A *_cpu.c file is compiled once for each CPU variant (see cmake/Variants.cmake); inside it LNT_V(name) is the variant's own
 * name, `vf` is a vector of LNT_VL floats in the variant's width, and the same source text serves all of them.
 *
 * Only *_cpu.c files include this header. */
#ifndef LNT_SIMD_H
#define LNT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/dtype.h"
#include "simd/variant.h"

#if defined(__AVX512F__)
#define LNT_VL 16
#elif defined(__AVX2__)
#define LNT_VL 8
#else
#define LNT_VL 4
#endif
#if defined(__SSE__)
#include <immintrin.h>
#elif defined(LNT_VARIANT_neon)
#include <arm_neon.h>
#endif

/* A function that becomes a part of each caller, since what it gets is constant there; in front of a loop, one that is written out. */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Vector registers: what a block of sums may take. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define LNT_REGISTERS 32
#else
#define LNT_REGISTERS 16
#endif

typedef float vf __attribute__((vector_size(LNT_VL * 4)));
typedef int32_t vi __attribute__((vector_size(LNT_VL * 4)));
typedef float vf_unaligned __attribute__((vector_size(LNT_VL * 4), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(LNT_VL * 4), aligned(4), may_alias));

static inline vf v_load(const float *p) { return *(const vf_unaligned *)p; }
static inline void v_store(float *p, vf x) { *(vf_unaligned *)p = x; }
static inline vf v_set(float x) { return x - (vf){0}; } /* x - 0 folds to a broadcast; 0 + x would be an addition, for the sake of -0 */
static inline vf v_zero(void) { return (vf){0}; }

/* c + a*x for a number x that stays where it is: NEON multiplies by a lane, elsewhere it is broadcast. */
static inline vf v_add_times(vf c, vf a, float x)
{
#if defined(LNT_VARIANT_neon)
    return (vf)vfmaq_n_f32((float32x4_t)c, (float32x4_t)a, x);
#else
    return c + v_set(x) * a;
#endif
}

/* a*b + c, rounded once where the processor can. Compilers make that of a product and a sum too, but as the code around them happens to fall: where
 * two pieces of code are to have the same bits, it is written. */
static inline vf v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(LNT_VARIANT_neon)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__aarch64__)
    for (int i = 0; i < LNT_VL; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

/* The first n (0 <= n <= LNT_VL) lanes; the others read as 0 and are not written. Never touches memory past p+n. */
static inline vf v_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#elif defined(LNT_VARIANT_neon)
    const float32x2_t none = vdup_n_f32(0);
    if (n >= 4) return v_load(p);
    const float32x2_t low = n >= 2 ? vld1_f32(p) : n == 1 ? vld1_lane_f32(p, none, 0) : none;
    return (vf)vcombine_f32(low, n == 3 ? vld1_lane_f32(p + 2, none, 0) : none);
#else
    vf r = {0};
    for (int64_t i = 0; i < n; i++) r[i] = p[i];
    return r;
#endif
}

static inline void v_store_n(float *p, vf x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x);
#elif defined(LNT_VARIANT_neon)
    const float32x4_t y = (float32x4_t)x;
    if (n >= 4)
        vst1q_f32(p, y);
    else if (n >= 2)
        vst1_f32(p, vget_low_f32(y));
    if (n == 3)
        vst1q_lane_f32(p + 2, y, 2);
    else if (n == 1)
        vst1q_lane_f32(p, y, 0);
#else
    for (int64_t i = 0; i < n; i++) p[i] = x[i];
#endif
}

/* Stores to whole vectors' addresses that leave the caches alone; others see them for sure behind v_stream_end. */
static inline void v_stream(float *p, vf x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)x);
#elif defined(__SSE__)
    _mm_stream_ps(p, (__m128)x);
#else
    v_store(p, x);
#endif
}
static inline void v_stream_end(void)
{
#if defined(__SSE__)
    _mm_sfence();
#endif
}

static inline vf v_select(vi mask, vf yes, vf no)
{
#if defined(LNT_VARIANT_neon)
    return (vf)vbslq_f32((uint32x4_t)mask, (float32x4_t)yes, (float32x4_t)no);
#else
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
#endif
}
/* a > b ? a : b and a < b ? a : b: b where either is NaN, which is what the instructions do and compilers do not find in a selection of bits. */
static inline vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return v_select(a > b, a, b);
#endif
}
static inline vf v_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return v_select(a < b, a, b);
#endif
}
static inline vf v_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }

static inline vf v_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(LNT_VARIANT_neon)
    return (vf)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < LNT_VL; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Sum and maximum over lanes, always in the same tree. */
static inline float v_sum(vf x)
{
#if defined(__SSE__)
#if defined(__AVX512F__)
    const __m256 e = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1)));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
#elif defined(__AVX2__)
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
#else
    const __m128 q = (__m128)x;
#endif
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
#elif defined(LNT_VARIANT_neon)
    return vpadds_f32(vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x)));
#else
    float t[LNT_VL];
    memcpy(t, &x, sizeof t);
    for (int w = LNT_VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
#endif
}

/* to[m] = the sum over the lanes of vector m, of `count` that follow each other: sixteen at once in a third of the instructions of one by one. */
static inline void v_sums(float *to, const float *x, int64_t count)
{
    int64_t m = 0;
#if defined(__AVX512F__)
    for (; m + LNT_VL <= count; m += LNT_VL) {
        __m512 q[4];
        for (int i = 0; i < 4; i++) {
            const float *p = x + (m + 4 * i) * LNT_VL;
            const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
            const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
            const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
            q[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
        }
        const __m512 r0 = _mm512_add_ps(_mm512_shuffle_f32x4(q[0], q[1], 0x44), _mm512_shuffle_f32x4(q[0], q[1], 0xee));
        const __m512 r1 = _mm512_add_ps(_mm512_shuffle_f32x4(q[2], q[3], 0x44), _mm512_shuffle_f32x4(q[2], q[3], 0xee));
        v_store(to + m, (vf)_mm512_add_ps(_mm512_shuffle_f32x4(r0, r1, 0x88), _mm512_shuffle_f32x4(r0, r1, 0xdd)));
    }
#endif
    for (; m < count; m++) to[m] = v_sum(v_load(x + m * LNT_VL));
}

static inline float v_hmax(vf x)
{
    float m = x[0];
    for (int i = 1; i < LNT_VL; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* e^x to 1 ulp: x = n ln2 + r, |r| <= ln2/2, Taylor of degree 7 (remainder 5e-9), 2^n in two halves so that it neither overflows
 * nor drops to zero early. -inf gives 0, NaN stays NaN. */
static inline vf v_exp(vf x)
{
#if defined(__AVX512F__)
    /* vscalefps rounds and overflows by itself; min hands on its second operand when that is NaN. Lanes below lo stay 0 throughout. */
    const __mmask16 above = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-103.972084f), _CMP_NLT_UQ);
    __m512 t = _mm512_maskz_min_ps(above, _mm512_set1_ps(89.0f), (__m512)x);
    vf n = (vf)_mm512_roundscale_ps(_mm512_mul_ps(t, _mm512_set1_ps(1.44269504f)), 8);
    vf r = (vf)t - n * 0.693359375f;
#else
    const vf lo = v_set(-103.972084f), hi = v_set(88.7228394f);
    vf t =
        v_select(x < lo, v_zero(), v_select(x > hi, v_set(89.0f), x)); /* false for NaN: t is NaN. 0 for lo: a subnormal product costs 150 cycles */
    vf n = t * 1.44269504f + 12582912.0f;
    vi in = (vi)n - 0x4b400000;
    n -= 12582912.0f;
    vf r = t - n * 0.693359375f;
#endif
    r = r + n * 2.12194440e-4f;
    vf p = v_set(1.98412698e-4f);
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_scalef_ps(above, (__m512)p, (__m512)n);
#else
    vi h = in >> 1;
    vf y = p * (vf)((h + 127) << 23) * (vf)((in - h + 127) << 23);
    y = v_select(x < lo, v_zero(), y);
    return v_select(x == x, y, x);
#endif
}

static inline vf v_sigmoid(vf x) { return v_set(1.0f) / (v_exp(-x) + 1.0f); }

/* LNT_VL bf16 values to and from a vector. */
static inline vf v_load_bf16(const lnt_bf16 *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
#elif defined(LNT_VARIANT_neon)
    return (vf)vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16);
#else
    vi r;
    for (int i = 0; i < LNT_VL; i++) r[i] = (int32_t)((uint32_t)p[i] << 16);
    return (vf)r;
#endif
}

/* LNT_VL integers of 8 bits. */
static inline vf v_load_i8(const int8_t *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    vf r;
    for (int i = 0; i < LNT_VL; i++) r[i] = p[i];
    return r;
#endif
}

#if defined(__AVX512BW__)
/* Rounded to bf16, half a vector. */
static inline __m256i v_round_bf16(vf x)
{
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh((__m512)x);
#else
    const __m512i u = (__m512i)x;
    const __m512i upper = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27, 25, 23, 21, 19, 17,
                                           15, 13, 11, 9, 7, 5, 3, 1);
    /* from memory: numbers in the code a compiler makes again for every store, by a move and a broadcast each */
    const __m512i last = _mm512_set1_epi32(lnt_bf16_rounding[0]), below = _mm512_set1_epi32(lnt_bf16_rounding[1]);
    const __m512i half = _mm512_set1_epi32(lnt_bf16_rounding[2]), quiet = _mm512_set1_epi32(lnt_bf16_rounding[3]);
    const __mmask16 odd = _mm512_test_epi32_mask(u, last), nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    __m512i r = _mm512_add_epi32(u, below);
    r = _mm512_mask_add_epi32(r, odd, u, half);
    r = _mm512_mask_or_epi32(r, nan, u, quiet);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, r));
#endif
}
#elif defined(__AVX2__)
static inline __m128i v_round_bf16(vf x)
{
    const __m256i u = (__m256i)x, upper = _mm256_srli_epi32(u, 16), odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i nan = (__m256i)_mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q);
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    r = _mm256_blendv_epi8(r, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08); /* both halves of the register hold four numbers twice */
    return _mm256_castsi256_si128(r);
}
#endif

static inline void v_store_bf16(lnt_bf16 *p, vf x)
{
#if defined(__AVX512BW__)
    _mm256_storeu_si256((void *)p, v_round_bf16(x));
#elif defined(__AVX2__)
    _mm_storeu_si128((void *)p, v_round_bf16(x));
#elif defined(LNT_VARIANT_neon)
    const uint32x4_t u = (uint32x4_t)x, odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint16x4_t r = vaddhn_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))); /* the upper half of the sum */
    const uint16x4_t nan = vorr_u16(vshrn_n_u32(u, 16), vdup_n_u16(0x40));
    vst1_u16(p, vbsl_u16(vmovn_u32(vceqq_f32((float32x4_t)x, (float32x4_t)x)), r, nan));
#else
    for (int i = 0; i < LNT_VL; i++) p[i] = lnt_f32_to_bf16(x[i]);
#endif
}

/* v_store_bf16 as v_stream stores: a part of a cache line, which the processor puts together with the parts that follow. */
static inline void v_stream_bf16(lnt_bf16 *p, vf x)
{
#if defined(__AVX512BW__)
    _mm256_stream_si256((void *)p, v_round_bf16(x));
#elif defined(__AVX2__)
    _mm_stream_si128((void *)p, v_round_bf16(x));
#else
    v_store_bf16(p, x);
#endif
}

/* Two vectors that follow each other, in one store: with AVX-512 a whole line. */
static inline void v_stream_bf16_two(lnt_bf16 *p, vf x, vf y)
{
#if defined(__AVX512BF16__)
    _mm512_stream_si512((void *)p, (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x));
#elif defined(__AVX512BW__)
    _mm512_stream_si512((void *)p, _mm512_inserti64x4(_mm512_castsi256_si512(v_round_bf16(x)), v_round_bf16(y), 1));
#elif defined(__AVX2__)
    _mm256_stream_si256((void *)p, _mm256_inserti128_si256(_mm256_castsi128_si256(v_round_bf16(x)), v_round_bf16(y), 1));
#else
    v_store_bf16(p, x);
    v_store_bf16(p + LNT_VL, y);
#endif
}

/* The first n lanes, rounded as whole vectors are: the instruction takes subnormal numbers for zero. */
static inline void v_store_bf16_n(lnt_bf16 *p, vf x, int64_t n)
{
    lnt_bf16 h[LNT_VL];
    v_store_bf16(h, x);
    memcpy(p, h, (size_t)n * sizeof *h);
}

/* n elements of a row of type f32 or bf16 as float: the row itself when it is float already, otherwise converted into scratch[n]. */
static inline const float *v_row(const void *row, lnt_dtype t, int64_t n, float *scratch)
{
    if (t == LINNET_F32) return row;
    const lnt_bf16 *p = row;
    int64_t i = 0;
    for (; i + LNT_VL <= n; i += LNT_VL) v_store(scratch + i, v_load_bf16(p + i));
    for (; i < n; i++) scratch[i] = lnt_bf16_to_f32(p[i]);
    return scratch;
}

/* Store n floats as a row of type f32 or bf16; with `add`, add to what the row holds. */
static inline void v_put_row(void *row, lnt_dtype t, const float *x, int64_t n, int add)
{
    int64_t i = 0;
    if (t == LINNET_F32) {
        float *y = row;
        if (add)
            for (; i < n; i++) y[i] += x[i];
        else if (y != x)
            memcpy(y, x, (size_t)n * 4);
        return;
    }
    lnt_bf16 *y = row;
    if (add) {
        for (; i + LNT_VL <= n; i += LNT_VL) v_store_bf16(y + i, v_load_bf16(y + i) + v_load(x + i));
        for (; i < n; i++) y[i] = lnt_f32_to_bf16(lnt_bf16_to_f32(y[i]) + x[i]);
    } else {
        for (; i + LNT_VL <= n; i += LNT_VL) v_store_bf16(y + i, v_load(x + i));
        for (; i < n; i++) y[i] = lnt_f32_to_bf16(x[i]);
    }
}

#endif
