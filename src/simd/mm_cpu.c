/* Register-blocked float32 products of small matrices (mm.h).
 *
 * A tile of R rows by W vectors of C is kept in accumulators while k runs; each step loads W vectors of B and broadcasts R elements of A. The tile
 * shapes keep at least 8 independent multiply-add chains (latency 4, two units) and leave registers for B and one broadcast: 6 x 4 of 32 registers
 * with AVX-512, 6 x 2 of 16; on AArch64, where an element of A is a lane of its own register, 5 x 4 of 32. Column panels are outermost, so that a
 * panel of B (K x 64 floats with AVX-512) stays in L1 while the rows of A pass over it. */
#include "simd/mm.h"

#if LNT_REGISTERS == 32
enum { WIDEST = 4 };
#if defined(__aarch64__)
static const int tallest[WIDEST + 1] = {0, 8, 8, 6, 5}; /* rows of a tile W vectors wide; each row's factor has a register here */
#else
static const int tallest[WIDEST + 1] = {0, 8, 8, 8, 6};
#endif
#else
enum { WIDEST = 2 };
static const int tallest[WIDEST + 1] = {0, 8, 6};
#endif
enum { TALLEST = 8 };

/* How the product meets C: C(i,:) = scale[i] C(i,:) + sign A B, or C = sign A B when scale is NULL; a factor for each row of A B
 * is in the place of sign, for scale_stride 1. */
typedef struct {
    const float *scale;
    int64_t scale_stride;
    float sign;
    const float *factor;
} blend;

INLINE void tile(int R, int W, bool part, int lanes, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c,
                 int64_t ldc, const blend *how, lnt_fetch *to)
{
    lnt_fetch fetch = *to;
    vf acc[TALLEST][WIDEST];
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int w = 0; w < W; w++) acc[i][w] = v_zero();
    for (int k = 0; k < K; k++, a += a_cs, b += ldb) {
        if (fetch.n && !(k & fetch.skip)) lnt_fetch_line(&fetch);
        vf row[WIDEST];
        UNROLL for (int w = 0; w < W; w++) row[w] = part ? v_load_n(b + w * LNT_VL, lanes) : v_load(b + w * LNT_VL);
        UNROLL for (int i = 0; i < R; i++) {
            const float x = a[i * a_rs];
            UNROLL for (int w = 0; w < W; w++) acc[i][w] = v_add_times(acc[i][w], row[w], x);
        }
    }
    *to = fetch;
    vf sign = v_set(how->sign);
    UNROLL for (int i = 0; i < R; i++) {
        float *y = c + i * ldc;
        if (how->scale) {
            const vf s = v_set(how->scale[i * how->scale_stride]), f = how->factor ? v_set(how->factor[i]) : sign;
            UNROLL for (int w = 0; w < W; w++)
                acc[i][w] = s * (part ? v_load_n(y + w * LNT_VL, lanes) : v_load(y + w * LNT_VL)) + f * acc[i][w];
        } else {
            UNROLL for (int w = 0; w < W; w++) acc[i][w] *= sign;
        }
        UNROLL for (int w = 0; w < W; w++) {
            if (part)
                v_store_n(y + w * LNT_VL, acc[i][w], lanes);
            else
                v_store(y + w * LNT_VL, acc[i][w]);
        }
    }
}

enum { IS_whole = 0, IS_part = 1 };
#define TILE_ARGS                                                                                                                  \
    int lanes, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c, int64_t ldc, const blend *how, lnt_fetch *to
typedef void tile_fn(TILE_ARGS);
#define TILE(R, W, P)                                                                                                              \
    static void tile_##R##_##W##_##P(TILE_ARGS) { tile(R, W, IS_##P, lanes, K, a, a_rs, a_cs, b, ldb, c, ldc, how, to); }
#define COLUMN(W, P)                                                                                                               \
    TILE(1, W, P) TILE(2, W, P) TILE(3, W, P) TILE(4, W, P) TILE(5, W, P) TILE(6, W, P) TILE(7, W, P) TILE(8, W, P)
#define NAMES(W, P)                                                                                                                                  \
    {                                                                                                                                                \
        tile_1_##W##_##P, tile_2_##W##_##P, tile_3_##W##_##P, tile_4_##W##_##P, tile_5_##W##_##P, tile_6_##W##_##P, tile_7_##W##_##P,                \
            tile_8_##W##_##P                                                                                                                         \
    }
#define SHORT_COLUMN(W, P) TILE(1, W, P) TILE(2, W, P) TILE(3, W, P) TILE(4, W, P) TILE(5, W, P) TILE(6, W, P)
#define SHORT_NAMES(W, P)                                                                                                          \
    {                                                                                                                              \
        tile_1_##W##_##P, tile_2_##W##_##P, tile_3_##W##_##P, tile_4_##W##_##P, tile_5_##W##_##P, tile_6_##W##_##P                 \
    }
/* tiles[W][R-1]; row 0 is the one for fewer than LNT_VL columns. */
COLUMN(1, part)
COLUMN(1, whole)
#if LNT_REGISTERS == 32
COLUMN(2, whole)
COLUMN(3, whole)
SHORT_COLUMN(4, whole)
static tile_fn *const tiles[WIDEST + 1][TALLEST] = {NAMES(1, part), NAMES(1, whole), NAMES(2, whole), NAMES(3, whole), SHORT_NAMES(4, whole)};
#else
SHORT_COLUMN(2, whole)
static tile_fn *const tiles[WIDEST + 1][TALLEST] = {NAMES(1, part), NAMES(1, whole), SHORT_NAMES(2, whole)};
#endif

_Thread_local lnt_ahead LNT_V(lnt_mm_ahead);

/* Behind one that is done. */
static lnt_fetch *next_fetch(lnt_ahead *a)
{
    if (++a->at == a->n) a->n = a->at = 0;
    return &a->list[a->at];
}

static void product(blend how, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    const float *scale = how.scale, *factor = how.factor;
    lnt_ahead *ahead = &LNT_V(lnt_mm_ahead);
    lnt_fetch *f = &ahead->list[ahead->at];
    for (int j = 0; j < N;) {
        int vectors = (N - j) / LNT_VL;
        int W = vectors > WIDEST ? WIDEST : vectors;
        if (W == WIDEST && vectors == WIDEST + 1)
            W = (WIDEST + 1) / 2 + (WIDEST > 2); /* 5 as 3 + 2, 3 as 1 + 2: no lone vector behind a wide panel */
        int lanes = W ? LNT_VL : N - j;
        int high = tallest[W ? W : 1];
        int blocks = (M + high - 1) / high;
        for (int i = 0, left = blocks; i < M; left--) {
            int R = (M - i + left - 1) / left; /* equal heights: 16 rows as 6 + 5 + 5 */
            how.scale = scale ? scale + i * how.scale_stride : NULL;
            how.factor = factor ? factor + i : NULL;
            tiles[W][R - 1](lanes, K, a + i * a_rs, a_rs, a_cs, b + j, ldb, c + i * ldc + j, ldc, &how, f);
            if (!f->n && ahead->n) f = next_fetch(ahead);
            i += R;
        }
        j += W ? W * LNT_VL : lanes;
    }
}

/* One factor for all rows. */
static blend how_of(lnt_mm_mode mode, const float *scale)
{
    static const float one = 1.0f;
    return (blend){mode == LNT_MM_SET ? NULL : mode == LNT_MM_SCALED ? scale : &one, 0, mode == LNT_MM_SUB ? -1.0f : 1.0f, NULL};
}

void LNT_V(lnt_mm)(lnt_mm_mode mode, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b, int64_t ldb, float *c,
                   int64_t ldc)
{
    product(how_of(mode, NULL), M, N, K, a, a_rs, a_cs, b, ldb, c, ldc);
}

void LNT_V(lnt_mm_scaled)(const float *scale, int64_t scale_stride, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs, const float *b,
                          int64_t ldb, float *c, int64_t ldc)
{
    product((blend){scale, scale_stride, 1.0f, NULL}, M, N, K, a, a_rs, a_cs, b, ldb, c, ldc);
}

void LNT_V(lnt_mm_scaled_both)(const float *scale, const float *factor, int M, int N, int K, const float *a, int64_t a_rs, int64_t a_cs,
                               const float *b, int64_t ldb, float *c, int64_t ldc)
{
    product((blend){scale, 1, 1.0f, factor}, M, N, K, a, a_rs, a_cs, b, ldb, c, ldc);
}

#if LNT_VL == 16
/* 16 x 16, four columns at a time: rows i, i + 4, i + 8 and i + 12 side by side in 128-bit lanes as they are loaded, which leaves 32 shuffles, for
 * which some processors have one unit. */
static void transpose_block(const float *x, int64_t ldx, float *y, int64_t ldy)
{
    UNROLL for (int j = 0; j < 16; j += 4, x += 4, y += 4 * ldy) {
        __m512 r[4], t[4];
        UNROLL for (int i = 0; i < 4; i++) {
            r[i] = _mm512_castps128_ps512(_mm_loadu_ps(x + i * ldx));
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + (i + 4) * ldx), 1);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + (i + 8) * ldx), 2);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + (i + 12) * ldx), 3);
        }
        for (int i = 0; i < 2; i++) {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for (int i = 0; i < 2; i++) {
            _mm512_storeu_ps(y + 2 * i * ldy, (__m512)_mm512_unpacklo_pd((__m512d)t[i], (__m512d)t[i + 2]));
            _mm512_storeu_ps(y + (2 * i + 1) * ldy, (__m512)_mm512_unpackhi_pd((__m512d)t[i], (__m512d)t[i + 2]));
        }
    }
}
#elif defined(__AVX2__)
static void transpose_block(const float *x, int64_t ldx, float *y, int64_t ldy)
{
    __m256 r[8], t[8];
    UNROLL for (int i = 0; i < 4; i++) { /* rows i and i+4 side by side in 128-bit lanes */
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + i * ldx)), _mm_loadu_ps(x + (i + 4) * ldx), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + i * ldx + 4)), _mm_loadu_ps(x + (i + 4) * ldx + 4), 1);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        t[i + 2] = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        t[i + 3] = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        _mm256_storeu_ps(y + i * ldy, (__m256)_mm256_unpacklo_pd((__m256d)t[i], (__m256d)t[i + 2]));
        _mm256_storeu_ps(y + (i + 1) * ldy, (__m256)_mm256_unpackhi_pd((__m256d)t[i], (__m256d)t[i + 2]));
        _mm256_storeu_ps(y + (i + 2) * ldy, (__m256)_mm256_unpacklo_pd((__m256d)t[i + 1], (__m256d)t[i + 3]));
        _mm256_storeu_ps(y + (i + 3) * ldy, (__m256)_mm256_unpackhi_pd((__m256d)t[i + 1], (__m256d)t[i + 3]));
    }
}
#elif defined(LNT_VARIANT_neon)
static void transpose_block(const float *x, int64_t ldx, float *y, int64_t ldy)
{
    const float32x4_t r0 = vld1q_f32(x), r1 = vld1q_f32(x + ldx), r2 = vld1q_f32(x + 2 * ldx), r3 = vld1q_f32(x + 3 * ldx);
    const float32x4_t a = vzip1q_f32(r0, r2), b = vzip2q_f32(r0, r2), c = vzip1q_f32(r1, r3), d = vzip2q_f32(r1, r3); /* of two rows */
    vst1q_f32(y, vzip1q_f32(a, c));
    vst1q_f32(y + ldy, vzip2q_f32(a, c));
    vst1q_f32(y + 2 * ldy, vzip1q_f32(b, d));
    vst1q_f32(y + 3 * ldy, vzip2q_f32(b, d));
}
#else
static void transpose_block(const float *x, int64_t ldx, float *y, int64_t ldy)
{
    for (int i = 0; i < LNT_VL; i++)
        for (int j = 0; j < LNT_VL; j++) y[j * ldy + i] = x[i * ldx + j];
}
#endif

void LNT_V(lnt_transpose)(int M, int N, const float *x, int64_t ldx, float *y, int64_t ldy)
{
    int fullM = M - M % LNT_VL, fullN = N - N % LNT_VL;
    for (int i = 0; i < fullM; i += LNT_VL)
        for (int j = 0; j < fullN; j += LNT_VL) transpose_block(x + i * ldx + j, ldx, y + j * ldy + i, ldy);
    for (int i = 0; i < M; i++)
        for (int j = i < fullM ? fullN : 0; j < N; j++) y[j * ldy + i] = x[i * ldx + j];
}

/* ---- the float32 engine: only a transpose at the right needs a copy -------------------------------------------------------------------- */

static size_t f32_bytes(int rows, int cols, int forms)
{
    return forms & LNT_RIGHT_T ? ((size_t)rows * (size_t)cols * 4 + 63) / 64 * 64 : 0;
}

static void f32_extend(lnt_operand *m, int forms, void *scratch)
{
    if (!(forms & LNT_RIGHT_T) || m->right_t.p) return;
    LNT_V(lnt_transpose)(m->rows, m->cols, m->x, m->ld, scratch, m->rows);
    m->right_t.p = scratch;
    m->right_t.ld = m->rows;
}

static lnt_operand f32_prepare(int forms, int rows, int cols, const float *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.x = x, .ld = ld, .rows = rows, .cols = cols};
    f32_extend(&m, forms, scratch);
    return m;
}

static lnt_operand f32_view(const lnt_operand *m, int first, int rows)
{
    lnt_operand v = *m;
    v.x += first * m->ld;
    v.rows = rows;
    if (v.right_t.p) v.right_t.p = (const float *)v.right_t.p + first;
    return v;
}

static void f32_product(blend how, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    int M = a_t ? a->cols : a->rows, K = a_t ? a->rows : a->cols, N = b_t ? b->rows : b->cols;
    int64_t a_rs = a_t ? 1 : a->ld, a_cs = a_t ? a->ld : 1;
    product(how, M, N, K, a->x, a_rs, a_cs, b_t ? b->right_t.p : b->x, b_t ? b->right_t.ld : b->ld, c, ldc);
}

static void f32_multiply(lnt_mm_mode mode, const float *scale, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    f32_product(how_of(mode, scale), a, a_t, b, b_t, c, ldc);
}

static void f32_update(const float *scale, int64_t scale_stride, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s)
{
    s->right_t.p = NULL;
    f32_product((blend){scale, scale_stride, 1.0f, NULL}, a, a_t, b, b_t, (float *)s->x, s->ld);
}

static size_t f32_kept_bytes(int rows, int cols) { return ((size_t)rows * (size_t)cols * 4 + 63) / 64 * 64; }

static void f32_keep(const lnt_operand *s, int first, int cols, void *kept)
{
    for (int i = 0; i < s->rows; i++) memcpy((float *)kept + (int64_t)i * cols + first, s->x + i * s->ld, (size_t)s->cols * 4);
}

static lnt_operand f32_kept(int forms, int rows, int cols, const void *kept, void *scratch)
{
    return f32_prepare(forms, rows, cols, kept, cols, scratch);
}

static float f32_inner(const lnt_operand *kept, const float *y)
{
    vf sum[2] = {v_zero(), v_zero()};
    int64_t n = (int64_t)kept->rows * kept->cols, i = 0;
    for (; i + 2 * LNT_VL <= n; i += 2 * LNT_VL) {
        sum[0] += v_load(kept->x + i) * v_load(y + i);
        sum[1] += v_load(kept->x + i + LNT_VL) * v_load(y + i + LNT_VL);
    }
    float rest = v_sum(sum[0] + sum[1]);
    for (; i < n; i++) rest += kept->x[i] * y[i];
    return rest;
}

static void f32_inner_rows(const lnt_operand *kept, const float *y, float *sums)
{
    for (int i = 0; i < kept->rows; i++) {
        lnt_operand row = {.x = kept->x + i * kept->ld, .rows = 1, .cols = kept->cols};
        sums[i] = f32_inner(&row, y + (int64_t)i * kept->cols);
    }
}

static void nothing(void) {}

const lnt_mm_engine LNT_V(lnt_mm_f32) = {f32_bytes, f32_prepare, f32_extend, NULL, NULL, NULL, NULL, NULL, f32_view, f32_multiply, NULL, f32_update,
    NULL, NULL, NULL, NULL, f32_kept_bytes, f32_keep, f32_kept, f32_inner, f32_inner_rows, nothing, nothing, .bf16 = false, .row_align = 1,
    .chunk = 32, .panel = 64};
