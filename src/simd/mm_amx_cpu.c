/* The bf16 engine on AMX tiles (mm.h). A tile is 16 rows of 64 bytes: 16 x 32 bf16 of A, 16 pairs of rows by 16 columns of B (a pair of rows interleaved
 * in 32-bit units), or 16 x 16 float32 of C. Packed forms are zero-padded to whole tiles:
 *
 *   left    X    [rows16, cols32]     bf16, row major           left_t   X^T  [cols16, rows32]   bf16
 *   right   X    [rows32/2, cols16]   pairs of rows             right_t  X^T  [cols32/2, rows16] pairs of columns of X
 *
 * As arrays of 32-bit units right_t is the transpose of left, and left_t of right. */
#include "simd/mm.h"

#if defined(__AMX_BF16__)

typedef uint32_t pair; /* two bf16 */

static int up(int n, int to) { return (n + to - 1) / to * to; }
static size_t left_bytes(int rows, int cols) { return (size_t)up(rows, 16) * (size_t)up(cols, 32) * 2; }
static size_t right_bytes(int rows, int cols) { return (size_t)up(rows, 32) * (size_t)up(cols, 16) * 2; }

static size_t bytes(int rows, int cols, int forms)
{
    size_t left = left_bytes(rows, cols), right = right_bytes(rows, cols);
    return (forms & (LNT_LEFT | LNT_RIGHT_T) ? left : 0) + (forms & LNT_RIGHT_T ? left : 0) + (forms & (LNT_RIGHT | LNT_LEFT_T) ? right : 0) +
           (forms & LNT_LEFT_T ? right : 0);
}

static inline __m512 lanes(const float *x, int n) { return n >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps((__mmask16)(n > 0 ? (1u << n) - 1u : 0), x); }

static void pack_left(int rows, int cols, const float *x, int64_t ld, lnt_bf16 *y)
{
    int wide = up(cols, 32);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < wide; j += 32) {
            const float *p = x + i * ld + j;
            __m512bh h = cols - j >= 32 ? _mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p))
                                        : _mm512_cvtne2ps_pbh(lanes(p + 16, cols - j - 16), lanes(p, cols - j));
            _mm512_storeu_si512(y + (int64_t)i * wide + j, (__m512i)h);
        }
    memset(y + (int64_t)rows * wide, 0, (size_t)(up(rows, 16) - rows) * (size_t)wide * 2);
}

static void pack_right(int rows, int cols, const float *x, int64_t ld, pair *y)
{
    int wide = up(cols, 16);
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1,
                                                16, 0);
    for (int i = 0; i < rows; i += 2)
        for (int j = 0; j < wide; j += 16) {
            const float *p = x + i * ld + j;
            __m512 even = lanes(p, cols - j), odd = i + 1 < rows ? lanes(p + ld, cols - j) : _mm512_setzero_ps();
            _mm512_storeu_si512(y + (int64_t)(i / 2) * wide + j, _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
        }
    int pairs = (rows + 1) / 2;
    memset(y + (int64_t)pairs * wide, 0, (size_t)(up(rows, 32) / 2 - pairs) * (size_t)wide * 4);
}

static lnt_operand prepare(int forms, int rows, int cols, const float *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.x = x, .ld = ld, .rows = rows, .cols = cols};
    int rows16 = up(rows, 16), rows32 = up(rows, 32), cols16 = up(cols, 16), cols32 = up(cols, 32);
    char *at = scratch;
    if (forms & (LNT_LEFT | LNT_RIGHT_T)) {
        pack_left(rows, cols, x, ld, (lnt_bf16 *)at);
        m.left.p = at;
        m.left.ld = cols32;
        at += left_bytes(rows, cols);
    }
    if (forms & LNT_RIGHT_T) {
        LNT_V(lnt_transpose)(rows16, cols32 / 2, m.left.p, cols32 / 2, (float *)at, rows16);
        m.right_t.p = at;
        m.right_t.ld = rows16;
        at += left_bytes(rows, cols);
    }
    if (forms & (LNT_RIGHT | LNT_LEFT_T)) {
        pack_right(rows, cols, x, ld, (pair *)at);
        m.right.p = at;
        m.right.ld = cols16;
        at += right_bytes(rows, cols);
    }
    if (forms & LNT_LEFT_T) {
        LNT_V(lnt_transpose)(rows32 / 2, cols16, m.right.p, cols16, (float *)at, rows32 / 2);
        m.left_t.p = at;
        m.left_t.ld = rows32;
    }
    return m;
}

static lnt_operand view(const lnt_operand *m, int first, int rows)
{
    lnt_operand v = *m;
    v.x += first * m->ld;
    v.rows = rows;
    if (v.left.p) v.left.p = (const lnt_bf16 *)v.left.p + first * v.left.ld;
    if (v.left_t.p) v.left_t.p = (const lnt_bf16 *)v.left_t.p + first;
    if (v.right.p) v.right.p = (const pair *)v.right.p + first / 2 * v.right.ld;
    if (v.right_t.p) v.right_t.p = (const pair *)v.right_t.p + first;
    return v;
}

/* One 16 x 16 tile t of float32 into the m x n corner of C. */
static void blend(lnt_mm_mode mode, float scale, int m, int n, const float *t, float *c, int64_t ldc)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1u);
    __m512 s = _mm512_set1_ps(scale);
    for (int i = 0; i < m; i++, t += 16, c += ldc) {
        __m512 x = _mm512_load_ps(t);
        if (mode == LNT_MM_SUB)
            x = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, c), x);
        else if (mode != LNT_MM_SET)
            x = _mm512_fmadd_ps(s, _mm512_maskz_loadu_ps(mask, c), x);
        _mm512_mask_storeu_ps(c, mask, x);
    }
}

/* Two by two tiles of C: tiles 0..3 accumulate, 4 and 5 hold A, 6 and 7 hold B. */
static void multiply(lnt_mm_mode mode, const float *scale, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    int M = a_t ? a->cols : a->rows, K = up(a_t ? a->rows : a->cols, 32), N = b_t ? b->rows : b->cols;
    const lnt_bf16 *left = a_t ? a->left_t.p : a->left.p;
    const pair *right = b_t ? b->right_t.p : b->right.p;
    int64_t lda = a_t ? a->left_t.ld : a->left.ld, ldb = b_t ? b->right_t.ld : b->right.ld;
    float factor = mode == LNT_MM_SCALED ? *scale : 1.0f;
    _Alignas(64) float out[256];
    __asm__ volatile("" ::: "memory"); /* tile loads name no memory to the compiler */
    for (int j = 0; j < N; j += 32)
        for (int i = 0; i < M; i += 32) {
            bool low = M - i > 16, wide = N - j > 16;
            const lnt_bf16 *pa = left + i * lda;
            const pair *pb = right + j;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int k = 0; k < K; k += 32, pa += 32, pb += 16 * ldb) {
                _tile_loadd(4, pa, lda * 2);
                _tile_loadd(6, pb, ldb * 4);
                _tile_dpbf16ps(0, 4, 6);
                if (wide) {
                    _tile_loadd(7, pb + 16, ldb * 4);
                    _tile_dpbf16ps(1, 4, 7);
                }
                if (low) {
                    _tile_loadd(5, pa + 16 * lda, lda * 2);
                    _tile_dpbf16ps(2, 5, 6);
                    if (wide) _tile_dpbf16ps(3, 5, 7);
                }
            }
            float *at = c + i * ldc + j;
            int m0 = M - i < 16 ? M - i : 16, n0 = N - j < 16 ? N - j : 16, m1 = M - i - 16 < 16 ? M - i - 16 : 16, n1 = N - j - 16 < 16 ? N - j - 16 : 16;
#define PUT(t, is, m, n, where)                                                                                                    \
    if (!(is)) {                                                                                                                   \
    } else if (mode == LNT_MM_SET && (m) == 16 && (n) == 16) {                                                                            \
        _tile_stored(t, where, ldc * 4);                                                                                           \
    } else {                                                                                                                       \
        _tile_stored(t, out, 64);                                                                                                  \
        blend(mode, factor, m, n, out, where, ldc);                                                                                \
    }
            PUT(0, true, m0, n0, at)
            PUT(1, wide, m0, n1, at + 16)
            PUT(2, low, m1, n0, at + 16 * ldc)
            PUT(3, low && wide, m1, n1, at + 16 * ldc + 16)
#undef PUT
        }
}

/* In memory for good: gcc 12 takes LDTILECFG to read 8 bytes and drops stores to the rest of a local. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} whole_tiles = {.palette = 1, .bytes_per_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void begin(void) { _tile_loadconfig(&whole_tiles); }
static void end(void) { _tile_release(); }

const lnt_mm_engine LNT_V(lnt_mm_bf16_tiles) = {bytes, prepare, view, multiply, begin, end, .bf16 = true, .row_align = 32, .chunk = 64};

#endif
