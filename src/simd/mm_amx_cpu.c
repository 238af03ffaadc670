/* The bf16 engine on AMX tiles (mm.h). A tile is 16 rows of 64 bytes: 16 x 32 bf16 of A, 16 pairs of rows by 16 columns of B (a pair of rows
 * interleaved in 32-bit units), or 16 x 16 float32 of C. Packed forms are zero-padded to whole tiles:
 *
 *   left    X    [rows16, cols32]           bf16, row major        left_t   X^T  [cols16, rows32]            bf16
 *   right   X    [cols16/16, rows32/2, 16]  pairs of rows          right_t  X^T  [rows16/16, cols32/2, 16]   pairs of columns of X
 *
 * The right forms keep 16 columns together, so that a panel of tiles is contiguous (rows 512 bytes apart share a few sets of the L1 cache); `ld` of a
 * right form is the distance of two such blocks. In 32-bit units a block of right_t is the transpose of 16 rows of left, and left_t's of right.
 * Long: one engine, whose forms nobody else knows. */
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

static inline __m512 lanes(const float *x, int n)
{
    return n >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps((__mmask16)(n > 0 ? (1u << n) - 1u : 0), x);
}

/* y[rows,ldy] gets `cols` columns rounded up to 32; rows up to 16 are cleared. */
static void pack_left(int rows, int cols, const float *x, int64_t ld, lnt_bf16 *y, int64_t ldy)
{
    int wide = up(cols, 32);
    for (int i = 0; i < rows; i++) {
        if (i % 16 == 0) lnt_tiles_awake();
        for (int j = 0; j < wide; j += 32) {
            const float *p = x + i * ld + j;
            __m512bh h = cols - j >= 32 ? _mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p))
                                        : _mm512_cvtne2ps_pbh(lanes(p + 16, cols - j - 16), lanes(p, cols - j));
            _mm512_storeu_si512(y + i * ldy + j, (__m512i)h);
        }
    }
    for (int i = rows; i < up(rows, 16); i++) memset(y + i * ldy, 0, (size_t)wide * 2);
}

/* 16 pairs (even[l], odd[l]) rounded to bf16. */
static inline __m512i interleaved(__m512 even, __m512 odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* Rows from `first`, which is even, to `rows`, and zeros up to 32. */
static void pack_right(int first, int rows, int cols, const float *x, int64_t ld, pair *y, int64_t block)
{
    int wide = up(cols, 16), pairs = (rows + 1) / 2, pairs16 = up(rows, 32) / 2;
    for (int j = 0; j < wide; j += 16, y += block) {
        lnt_tiles_awake();
        for (int i = first / 2; i < pairs; i++) {
            const float *p = x + 2 * i * ld + j;
            __m512 even = lanes(p, cols - j), odd = 2 * i + 1 < rows ? lanes(p + ld, cols - j) : _mm512_setzero_ps();
            _mm512_storeu_si512(y + i * 16, interleaved(even, odd));
        }
        memset(y + pairs * 16, 0, (size_t)(pairs16 - pairs) * 64);
    }
}

/* The same two from rows of bf16. */
static void copy_left(int rows, int cols, const lnt_bf16 *x, int64_t ld, lnt_bf16 *y, int64_t ldy)
{
    const int wide = up(cols, 32);
    for (int i = 0; i < rows; i++) {
        if (i % 32 == 0) lnt_tiles_awake();
        for (int j = 0; j < wide; j += 32) {
            const __mmask32 mask = cols - j < 32 ? (1u << (cols - j)) - 1u : 0xffffffffu;
            _mm512_storeu_si512(y + i * ldy + j, _mm512_maskz_loadu_epi16(mask, x + i * ld + j));
        }
    }
    for (int i = rows; i < up(rows, 16); i++) memset(y + i * ldy, 0, (size_t)wide * 2);
}

static void pair_right(int rows, int cols, const lnt_bf16 *x, int64_t ld, pair *y)
{
    const int pairs = (rows + 1) / 2, pairs16 = up(rows, 32) / 2;
    const __m512i low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int j = 0; j < cols; j += 32, y += 2 * pairs16 * 16) {
        const int lanes = cols - j < 32 ? cols - j : 32;
        const __mmask32 mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
        const bool wide = lanes > 16;
        lnt_tiles_awake();
        for (int i = 0; i < pairs; i++) {
            const lnt_bf16 *p = x + 2 * i * ld + j;
            const __m512i even = _mm512_maskz_loadu_epi16(mask, p);
            const __m512i odd = _mm512_maskz_loadu_epi16(2 * i + 1 < rows ? mask : 0, p + ld);
            _mm512_storeu_si512(y + i * 16, _mm512_permutex2var_epi16(even, low, odd));
            if (wide) _mm512_storeu_si512(y + (pairs16 + i) * 16, _mm512_permutex2var_epi16(even, high, odd));
        }
        memset(y + pairs * 16, 0, (size_t)(pairs16 - pairs) * 64);
        if (wide) memset(y + (pairs16 + pairs) * 16, 0, (size_t)(pairs16 - pairs) * 64);
    }
}

/* Pair i of rows, columns from j on, of rows in float32 or bf16 (x16): what a right form has there. */
static inline __m512i pair_of(int rows, int cols, const float *x, const lnt_bf16 *x16, int64_t ld, int i, int j)
{
    const bool odd = 2 * i + 1 < rows;
    if (!x16) {
        const float *p = x + 2 * i * ld + j;
        return interleaved(lanes(p, cols - j), odd ? lanes(p + ld, cols - j) : _mm512_setzero_ps());
    }
    const lnt_bf16 *p = x16 + 2 * i * ld + j;
    const __mmask16 mask = (__mmask16)(cols - j < 16 ? (1u << (cols - j)) - 1u : 0xffffu);
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, p)),
                                            _mm256_maskz_loadu_epi16(odd ? mask : 0, p + ld), 1);
    return _mm512_permutexvar_epi16(order, both);
}

/* 16 rows of 16 units, transposed, in registers. */
INLINE void turn_units(__m512i r[16], pair *to, int64_t ld)
{
    __m512i t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 16
    for (int k = 0; k < 4; k++) { /* lane l of t[i+k] has rows i..i+3 of column 4 l + k */
        const __m512i a = _mm512_shuffle_i32x4(t[k], t[4 + k], 0x88), b = _mm512_shuffle_i32x4(t[k], t[4 + k], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(t[8 + k], t[12 + k], 0x88), d = _mm512_shuffle_i32x4(t[8 + k], t[12 + k], 0xdd);
        _mm512_storeu_si512(to + k * ld, _mm512_shuffle_i32x4(a, c, 0x88));
        _mm512_storeu_si512(to + (4 + k) * ld, _mm512_shuffle_i32x4(b, d, 0x88));
        _mm512_storeu_si512(to + (8 + k) * ld, _mm512_shuffle_i32x4(a, c, 0xdd));
        _mm512_storeu_si512(to + (12 + k) * ld, _mm512_shuffle_i32x4(b, d, 0xdd));
    }
}

/* 32 rows of 8 numbers, transposed: a lane has the same four times 8 rows through all steps. */
static inline void turn_columns(const lnt_bf16 *x, int64_t ld, lnt_bf16 *y, int64_t ldy)
{
    __m512i r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(x + i * ld)));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(x + (i + 8) * ld)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(x + (i + 16) * ld)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(x + (i + 24) * ld)), 3);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) t[i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]), t[4 + i] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) r[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]), r[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) { /* columns 2c and 2c + 1 of rows 0 to 3 and 4 to 7 */
        const int at = c / 2 * 4 + c % 2;
        _mm512_storeu_si512(y + 2 * c * ldy, _mm512_unpacklo_epi64(r[at], r[at + 2]));
        _mm512_storeu_si512(y + (2 * c + 1) * ldy, _mm512_unpackhi_epi64(r[at], r[at + 2]));
    }
}

/* left_t by way of registers alone, where nobody wants the right form. */
static void pack_left_t(int rows, int cols, const float *x, const lnt_bf16 *x16, int64_t ld, pair *y)
{
    if (x16 && ld == cols && rows % 32 == 0 && cols % 8 == 0) { /* a tensor's rows would be on the same few sets of the L1 cache */
        for (int j = 0; j < cols; j += 8)
            for (int i = 0; i < rows; i += 32) {
                if (j % 16 == 0) lnt_tiles_awake();
                turn_columns(x16 + i * ld + j, ld, (lnt_bf16 *)y + j * rows + i, rows);
            }
        return;
    }
    const int units = up(rows, 32) / 2, pairs = (rows + 1) / 2;
    for (int j = 0; j < cols; j += 16)
        for (int i = 0; i < units; i += 16) {
            __m512i r[16];
            lnt_tiles_awake();
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++) r[k] = i + k < pairs ? pair_of(rows, cols, x, x16, ld, i + k, j) : _mm512_setzero_si512();
            turn_units(r, y + j * units + i, units);
        }
}

/* Rows first .. rows-1 of right_t from left. */
static void turn_left(const lnt_operand *m, int first, int rows)
{
    const int units = up(m->cols, 32) / 2;
    for (int i = first; i < rows; i += 16) {
        lnt_tiles_awake();
        LNT_V(lnt_transpose)(16, units, (const float *)m->left.p + i * (m->left.ld / 2), m->left.ld / 2, (float *)m->right_t.p + i * units, 16);
    }
}

/* `from`, ld16: the rows in bf16, or NULL. */
static void make_forms(lnt_operand *m, int forms, const lnt_bf16 *from, int64_t ld16, void *scratch)
{
    int rows = m->rows, cols = m->cols;
    char *at = scratch;
    if (forms & (LNT_LEFT | LNT_RIGHT_T) && !m->left.p) {
        if (from)
            copy_left(rows, cols, from, ld16, (lnt_bf16 *)at, up(cols, 32));
        else
            pack_left(rows, cols, m->x, m->ld, (lnt_bf16 *)at, up(cols, 32));
        m->left.p = at;
        m->left.ld = up(cols, 32);
        at += left_bytes(rows, cols);
    }
    if (forms & LNT_RIGHT_T && !m->right_t.p) {
        m->right_t.p = at;
        m->right_t.ld = up(cols, 32) / 2 * 16;
        turn_left(m, 0, rows);
        at += left_bytes(rows, cols);
    }
    if (forms & LNT_LEFT_T && !(forms & LNT_RIGHT) && !m->right.p && !m->left_t.p) {
        pack_left_t(rows, cols, m->x, from, from ? ld16 : m->ld, (pair *)at);
        m->left_t.p = at;
        m->left_t.ld = up(rows, 32);
    } else if (forms & (LNT_RIGHT | LNT_LEFT_T) && !m->right.p) {
        if (from)
            pair_right(rows, cols, from, ld16, (pair *)at);
        else
            pack_right(0, rows, cols, m->x, m->ld, (pair *)at, up(rows, 32) / 2 * 16);
        m->right.p = at;
        m->right.ld = up(rows, 32) / 2 * 16;
        at += right_bytes(rows, cols);
    }
    if (forms & LNT_LEFT_T && !m->left_t.p) {
        int units = up(rows, 32) / 2;
        for (int j = 0; j < cols; j += 16) {
            lnt_tiles_awake();
            LNT_V(lnt_transpose)(units, 16, (const float *)m->right.p + j / 16 * m->right.ld, 16, (float *)at + j * units, units);
        }
        m->left_t.p = at;
        m->left_t.ld = units * 2;
    }
}

static void extend(lnt_operand *m, int forms, void *scratch) { make_forms(m, forms, m->x ? NULL : m->left.p, m->left.ld, scratch); }

static lnt_operand prepare(int forms, int rows, int cols, const float *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.x = x, .ld = ld, .rows = rows, .cols = cols};
    extend(&m, forms, scratch);
    return m;
}

static lnt_operand prepare16(int forms, int rows, int cols, const lnt_bf16 *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.rows = rows, .cols = cols};
    make_forms(&m, forms, x, ld, scratch);
    return m;
}

static lnt_operand prepare_scaled(int form, float f, const float *scale, int rows, int cols, const float *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.rows = rows, .cols = cols};
    const int wide = up(cols, 32), units = up(rows, 32) / 2;
    if (form == LNT_LEFT) {
        m.left.p = scratch, m.left.ld = wide;
        for (int i = 0; i < up(rows, 16); i++) {
            const __m512 s = _mm512_set1_ps(i < rows ? f * scale[i] : 0);
            if (i % 16 == 0) lnt_tiles_awake();
            for (int j = 0; j < wide; j += 32) {
                const __m512 low = lanes(x + i * ld + j, i < rows ? cols - j : 0), high = lanes(x + i * ld + j + 16, i < rows ? cols - j - 16 : 0);
                _mm512_storeu_si512((lnt_bf16 *)scratch + i * wide + j, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(s, high), _mm512_mul_ps(s, low)));
            }
        }
        return m;
    }
    if (form == LNT_RIGHT)
        m.right.p = scratch, m.right.ld = units * 16;
    else
        m.left_t.p = scratch, m.left_t.ld = 2 * units;
    for (int j = 0; j < cols; j += 16)
        for (int i = 0; i < units; i += 16) {
            __m512i r[16];
            lnt_tiles_awake();
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++) {
                const int row = 2 * (i + k);
                const float *p = x + row * ld + j;
                const bool even = row < rows, odd = row + 1 < rows;
                r[k] = interleaved(even ? _mm512_mul_ps(_mm512_set1_ps(f * scale[row]), lanes(p, cols - j)) : _mm512_setzero_ps(),
                                   odd ? _mm512_mul_ps(_mm512_set1_ps(f * scale[row + 1]), lanes(p + ld, cols - j)) : _mm512_setzero_ps());
                if (form == LNT_RIGHT) _mm512_storeu_si512((pair *)scratch + j * units + (i + k) * 16, r[k]);
            }
            if (form == LNT_LEFT_T) turn_units(r, (pair *)scratch + j * units + i, units);
        }
    return m;
}

/* What is lost when x is rounded. */
static inline __m512 lost(__m512 x)
{
    const __m512i kept = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
    return _mm512_sub_ps(x, (__m512)_mm512_slli_epi32(kept, 16));
}

static lnt_operand prepare_rest(int rows, int cols, const float *x, int64_t ld, void *scratch)
{
    const int units = up(rows, 32) / 2;
    const lnt_operand m = {.rows = rows, .cols = cols, .right = {scratch, units * 16}};
    pair *y = scratch;
    for (int j = 0; j < cols; j += 16) {
        lnt_tiles_awake();
        for (int i = 0; i < 2 * units; i += 2, y += 16) {
            const float *p = x + i * ld + j;
            const __m512 even = i < rows ? lanes(p, cols - j) : _mm512_setzero_ps();
            const __m512 odd = i + 1 < rows ? lanes(p + ld, cols - j) : _mm512_setzero_ps();
            _mm512_storeu_si512(y, interleaved(lost(even), lost(odd)));
        }
    }
    return m;
}

static lnt_operand lay_out(int forms, int most, int cols, const float *x, int64_t ld, void *scratch)
{
    lnt_operand m = {.x = x, .ld = ld, .cols = cols};
    char *at = scratch;
    if (forms & (LNT_LEFT | LNT_RIGHT_T)) m.left.p = at, m.left.ld = up(cols, 32), at += left_bytes(most, cols);
    if (forms & LNT_RIGHT_T) m.right_t.p = at, m.right_t.ld = up(cols, 32) / 2 * 16, at += left_bytes(most, cols);
    if (forms & LNT_RIGHT) m.right.p = at, m.right.ld = up(most, 32) / 2 * 16;
    return m;
}

static void append(lnt_operand *m, int end)
{
    const int first = m->rows;
    if (m->left.p) pack_left(end - first, m->cols, m->x + first * m->ld, m->ld, (lnt_bf16 *)m->left.p + first * m->left.ld, m->left.ld);
    if (m->right_t.p) turn_left(m, first, end);
    if (m->right.p) pack_right(first, end, m->cols, m->x, m->ld, (pair *)m->right.p, m->right.ld);
    m->rows = end;
}

static lnt_operand view(const lnt_operand *m, int first, int rows)
{
    lnt_operand v = *m;
    if (v.x) v.x += first * m->ld;
    v.rows = rows;
    if (v.left.p) v.left.p = (const lnt_bf16 *)v.left.p + first * v.left.ld;
    if (v.left_t.p) v.left_t.p = (const lnt_bf16 *)v.left_t.p + first;
    if (v.right.p) v.right.p = (const pair *)v.right.p + first / 2 * 16;
    if (v.right_t.p) v.right_t.p = (const pair *)v.right_t.p + first / 16 * v.right_t.ld;
    return v;
}

/* One 16 x 16 tile t of float32 into the m x n corner of C; C(i,:) = scale[i stride] C(i,:) + t where a scale is taken. */
static void blend(lnt_mm_mode mode, const float *scale, int64_t stride, int m, int n, const float *t, float *c, int64_t ldc)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1u);
    for (int i = 0; i < m; i++, t += 16, c += ldc) {
        __m512 x = _mm512_load_ps(t);
        if (mode == LNT_MM_SUB)
            x = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, c), x);
        else if (mode == LNT_MM_ADD)
            x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
        else if (mode == LNT_MM_SCALED)
            x = _mm512_fmadd_ps(_mm512_set1_ps(scale[i * stride]), _mm512_maskz_loadu_ps(mask, c), x);
        _mm512_mask_storeu_ps(c, mask, x);
    }
}

/* The same with C(i,:) = scale[i] (C(i,:) + t), with a factor for each column or with both, and C's right form kept in step: 8 pairs of rows at
 * `packed`. */
static void blend_before(const float *scale, const float *columns, int m, int n, const float *t, float *c, int64_t ldc, pair *packed)
{
    const __mmask16 mask = (__mmask16)((1u << n) - 1u);
    const __m512 one = _mm512_set1_ps(1.0f), by = columns ? _mm512_maskz_loadu_ps(mask, columns) : one;
    for (int i = 0; i < m; i += 2, t += 32, c += 2 * ldc) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int r = 0; r < 2 && i + r < m; r++) {
            const __m512 row = scale ? _mm512_set1_ps(scale[i + r]) : one, f = columns ? _mm512_mul_ps(row, by) : row;
            sum[r] = _mm512_mul_ps(f, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c + r * ldc), _mm512_load_ps(t + r * 16)));
            _mm512_mask_storeu_ps(c + r * ldc, mask, sum[r]);
        }
        if (packed) _mm512_storeu_si512(packed + i / 2 * 16, interleaved(sum[0], sum[1]));
    }
}

/* The same with C(i,:) = scale[i stride] C(i,:) + t, with a factor for each column or with both. */
static void blend_state(const float *scale, int64_t stride, const float *columns, int m, int n, const float *t, float *c, int64_t ldc, pair *packed)
{
    const __mmask16 mask = (__mmask16)((1u << n) - 1u);
    const __m512 by = columns ? _mm512_maskz_loadu_ps(mask, columns) : _mm512_setzero_ps();
    __m512 f = by, g = by;
    for (int i = 0; i < m; i += 2, t += 32, c += 2 * ldc) {
        if (scale) f = columns ? _mm512_mul_ps(by, _mm512_set1_ps(scale[i * stride])) : _mm512_set1_ps(scale[i * stride]);
        const __m512 even = _mm512_fmadd_ps(f, _mm512_maskz_loadu_ps(mask, c), _mm512_load_ps(t));
        __m512 odd = _mm512_setzero_ps();
        _mm512_mask_storeu_ps(c, mask, even);
        if (i + 1 < m) {
            if (scale) g = columns ? _mm512_mul_ps(by, _mm512_set1_ps(scale[(i + 1) * stride])) : _mm512_set1_ps(scale[(i + 1) * stride]);
            odd = _mm512_fmadd_ps(g, _mm512_maskz_loadu_ps(mask, c + ldc), _mm512_load_ps(t + 16));
            _mm512_mask_storeu_ps(c + ldc, mask, odd);
        }
        if (packed) _mm512_storeu_si512(packed + i / 2 * 16, interleaved(even, odd));
    }
}

/* The same where C stands for C + base: C(i,:) += t, and of the sum the right form, 8 pairs of rows at `packed`, and the left one; NULL: not
 * wanted. */
static void blend_sum(const float *base, int m, int n, const float *t, float *c, int64_t ldc, pair *packed, lnt_bf16 *left, int64_t ldl)
{
    const __mmask16 mask = (__mmask16)((1u << n) - 1u);
    for (int i = 0; i < m; i += 2, t += 32) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int r = 0; r < 2 && i + r < m; r++, c += ldc) {
            sum[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), _mm512_load_ps(t + r * 16));
            _mm512_mask_storeu_ps(c, mask, sum[r]);
            if (base) sum[r] = _mm512_add_ps(sum[r], _mm512_maskz_loadu_ps(mask, base)), base += ldc;
            if (left) v_store_bf16(left + (i + r) * ldl, (vf)sum[r]);
        }
        if (packed) _mm512_storeu_si512(packed + i / 2 * 16, interleaved(sum[0], sum[1]));
    }
}

/* The same where C becomes f C + g other + t, with the right form of what its own loses. */
static void blend_mixed(float f, float g, const float *other, int m, int n, const float *t, float *c, int64_t ldc, pair *packed, pair *rest,
                        lnt_bf16 *left, int64_t ldl)
{
    const __mmask16 mask = (__mmask16)((1u << n) - 1u);
    const __m512 own = _mm512_set1_ps(f), share = _mm512_set1_ps(g);
    for (int i = 0; i < m; i += 2, t += 32) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int r = 0; r < 2 && i + r < m; r++, c += ldc) {
            sum[r] = _mm512_load_ps(t + r * 16);
            if (other) sum[r] = _mm512_fmadd_ps(share, _mm512_maskz_loadu_ps(mask, other), sum[r]), other += ldc;
            sum[r] = _mm512_fmadd_ps(own, _mm512_maskz_loadu_ps(mask, c), sum[r]);
            _mm512_mask_storeu_ps(c, mask, sum[r]);
            if (left) v_store_bf16(left + (i + r) * ldl, (vf)sum[r]);
        }
        if (packed) _mm512_storeu_si512(packed + i / 2 * 16, interleaved(sum[0], sum[1]));
        if (rest) _mm512_storeu_si512(rest + i / 2 * 16, interleaved(lost(sum[0]), lost(sum[1])));
    }
}

/* What an update leaves beside C: factors of rows, `before` what is written or not, or of columns, or with `sum` what stands beside C, or with
 * `mixed` the parts of both; forms, NULL where they are not wanted. */
typedef struct {
    bool mixed;
    float own, share;
    bool before;
    const float *scale;
    int64_t scale_stride;
    const float *columns;
    bool sum;
    const float *base;
    pair *right, *rest; /* in blocks alike */
    int64_t right_block;
    lnt_bf16 *left;
    int64_t left_ld;
} renewal;

static void renew(const renewal *s, int i, int j, int m, int n, const float *t, float *c, int64_t ldc)
{
    const int64_t at = j / 16 * s->right_block + i / 2 * 16;
    pair *right = s->right ? s->right + at : NULL, *rest = s->rest ? s->rest + at : NULL;
    lnt_bf16 *left = s->left ? s->left + i * s->left_ld + j : NULL;
    const float *base = s->base ? s->base + i * ldc + j : NULL;
    if (s->sum)
        blend_sum(base, m, n, t, c, ldc, right, left, s->left_ld);
    else if (s->mixed)
        blend_mixed(s->own, s->share, base, m, n, t, c, ldc, right, rest, left, s->left_ld);
    else if (s->before)
        blend_before(s->scale ? s->scale + i : NULL, s->columns ? s->columns + j : NULL, m, n, t, c, ldc, right);
    else
        blend_state(s->scale ? s->scale + i * s->scale_stride : NULL, s->scale_stride, s->columns ? s->columns + j : NULL, m, n, t, c, ldc, right);
}

/* One tile of rows by four of columns, a plain or added product: tiles 0..3 accumulate, 4 holds A, 5 to 7 hold B. */
static void tiles_of_rows(lnt_mm_mode mode, int count, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, const float *row, int N,
                          float *c, int64_t ldc)
{
    __asm__ volatile("" ::: "memory");
    for (int j = 0; j < N; j += 64) {
        if (mode == LNT_MM_ADD || row) {
            const float *from = mode == LNT_MM_ADD ? c + j : row + j;
            const int64_t ld = mode == LNT_MM_ADD ? ldc * 4 : 0; /* of a row: 0 bytes apart */
            _tile_loadd(0, from, ld);
            _tile_loadd(1, from + 16, ld);
            _tile_loadd(2, from + 32, ld);
            _tile_loadd(3, from + 48, ld);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int o = 0; o < count; o++) {
            const int K = up(a_t ? a[o].rows : a[o].cols, 32);
            const int64_t lda = a_t ? a[o].left_t.ld : a[o].left.ld, block = b_t ? b[o].right_t.ld : b[o].right.ld;
            const lnt_bf16 *pa = a_t ? a[o].left_t.p : a[o].left.p;
            const pair *pb = (const pair *)(b_t ? b[o].right_t.p : b[o].right.p) + j / 16 * block;
            for (int k = 0; k < K; k += 32, pa += 32, pb += 16 * 16) {
                _tile_loadd(4, pa, lda * 2);
                _tile_loadd(5, pb, 64);
                _tile_dpbf16ps(0, 4, 5);
                _tile_loadd(6, pb + block, 64);
                _tile_dpbf16ps(1, 4, 6);
                _tile_loadd(7, pb + 2 * block, 64);
                _tile_dpbf16ps(2, 4, 7);
                _tile_loadd(5, pb + 3 * block, 64);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        _tile_stored(0, c + j, ldc * 4);
        _tile_stored(1, c + j + 16, ldc * 4);
        _tile_stored(2, c + j + 32, ldc * 4);
        _tile_stored(3, c + j + 48, ldc * 4);
    }
}

/* Two by two tiles of C: tiles 0..3 accumulate, 4 and 5 hold A, 6 and 7 hold B. Whole tiles of a plain or added product go straight to C.
 * With `state` C is one, whose forms are renewed; with `row` a plain product begins with that in each of its rows. Sums of `count` products. */
INLINE void tiles(lnt_mm_mode mode, const float *scale, int count, const lnt_operand *a, bool a_t,
                  const lnt_operand *b, bool b_t, const float *row, float *c, int64_t ldc, const renewal *state)
{
    const int M = a_t ? a->cols : a->rows, N = b_t ? b->rows : b->cols;
    if (M == 16 && N % 64 == 0 && mode <= LNT_MM_ADD) {
        tiles_of_rows(mode, count, a, a_t, b, b_t, row, N, c, ldc);
        return;
    }
    if (mode == LNT_MM_SCALED && !state && *scale == 1.0f) mode = LNT_MM_ADD;
    _Alignas(64) float out[4][256];
    __asm__ volatile("" ::: "memory"); /* tile loads name no memory to the compiler */
    for (int j = 0; j < N; j += 32)
        for (int i = 0; i < M; i += 32) {
            bool low = M - i > 16, wide = N - j > 16, direct = mode <= LNT_MM_ADD && (M - i >= 32 || M - i == 16) && (N - j >= 32 || N - j == 16);
            float *at = c + i * ldc + j;
            if (direct && mode == LNT_MM_ADD) {
                _tile_loadd(0, at, ldc * 4);
                if (wide) _tile_loadd(1, at + 16, ldc * 4);
                if (low) _tile_loadd(2, at + 16 * ldc, ldc * 4);
                if (low && wide) _tile_loadd(3, at + 16 * ldc + 16, ldc * 4);
            } else if (row) { /* rows 0 bytes apart */
                _tile_loadd(0, row + j, 0);
                if (wide) _tile_loadd(1, row + j + 16, 0);
                if (low) _tile_loadd(2, row + j, 0);
                if (low && wide) _tile_loadd(3, row + j + 16, 0);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int o = 0; o < count; o++) {
                const int K = up(a_t ? a[o].rows : a[o].cols, 32);
                const int64_t lda = a_t ? a[o].left_t.ld : a[o].left.ld, block = b_t ? b[o].right_t.ld : b[o].right.ld;
                const lnt_bf16 *pa = (const lnt_bf16 *)(a_t ? a[o].left_t.p : a[o].left.p) + i * lda;
                const pair *pb = (const pair *)(b_t ? b[o].right_t.p : b[o].right.p) + j / 16 * block;
                for (int k = 0; k < K; k += 32, pa += 32, pb += 16 * 16) {
                    _tile_loadd(4, pa, lda * 2);
                    _tile_loadd(6, pb, 64);
                    _tile_dpbf16ps(0, 4, 6);
                    if (wide) {
                        _tile_loadd(7, pb + block, 64);
                        _tile_dpbf16ps(1, 4, 7);
                    }
                    if (low) {
                        _tile_loadd(5, pa + 16 * lda, lda * 2);
                        _tile_dpbf16ps(2, 5, 6);
                        if (wide) _tile_dpbf16ps(3, 5, 7);
                    }
                }
            }
            if (direct) {
                _tile_stored(0, at, ldc * 4);
                if (wide) _tile_stored(1, at + 16, ldc * 4);
                if (low) _tile_stored(2, at + 16 * ldc, ldc * 4);
                if (low && wide) _tile_stored(3, at + 16 * ldc + 16, ldc * 4);
                continue;
            }
            _tile_stored(0, out[0], 64);
            _tile_stored(1, out[1], 64);
            _tile_stored(2, out[2], 64);
            _tile_stored(3, out[3], 64);
            for (int t = 0; t < 4; t++) {
                int m = M - i - t / 2 * 16, n = N - j - t % 2 * 16;
                if (m <= 0 || n <= 0) continue;
                float *corner = at + t / 2 * 16 * ldc + t % 2 * 16;
                if (state)
                    renew(state, i + t / 2 * 16, j + t % 2 * 16, m < 16 ? m : 16, n < 16 ? n : 16, out[t], corner, ldc);
                else
                    blend(mode, scale, 0, m < 16 ? m : 16, n < 16 ? n : 16, out[t], corner, ldc);
            }
        }
}

static void multiply(lnt_mm_mode mode, const float *scale, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    tiles(mode, scale, 1, a, a_t, b, b_t, NULL, c, ldc, NULL);
}

static void multiply_row(const float *row, int count, const lnt_operand *a, const lnt_operand *b, float *c, int64_t ldc)
{
    tiles(LNT_MM_SET, NULL, count, a, false, b, false, row, c, ldc, NULL);
}

static void update(const float *scale, int64_t scale_stride, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s)
{
    s->left.p = s->left_t.p = s->right_t.p = NULL;
    tiles(LNT_MM_SCALED, scale, 1, a, a_t, b, b_t, NULL, (float *)s->x, s->ld,
          &(renewal){.scale = scale, .scale_stride = scale_stride, .right = (pair *)s->right.p, .right_block = s->right.ld});
}

static void update_before(const float *rows, const float *columns, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s)
{
    s->left.p = s->left_t.p = s->right_t.p = NULL;
    tiles(LNT_MM_SCALED, NULL, 1, a, a_t, b, b_t, NULL, (float *)s->x, s->ld,
          &(renewal){.before = true, .scale = rows, .columns = columns, .right = (pair *)s->right.p, .right_block = s->right.ld});
}

static void update_columns(const float *rows, const float *columns, const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, lnt_operand *s)
{
    s->left.p = s->left_t.p = s->right_t.p = NULL;
    tiles(LNT_MM_SCALED, NULL, 1, a, a_t, b, b_t, NULL, (float *)s->x, s->ld,
          &(renewal){.scale = rows, .scale_stride = 1, .columns = columns, .right = (pair *)s->right.p, .right_block = s->right.ld});
}

static void update_sum(const float *base, int count, const lnt_operand *a, const lnt_operand *b, lnt_operand *s)
{
    s->left_t.p = s->right_t.p = NULL;
    tiles(LNT_MM_SCALED, NULL, count, a, true, b, false, NULL, (float *)s->x, s->ld,
          &(renewal){.sum = true, .base = base, .right = (pair *)s->right.p, .right_block = s->right.ld,
                     .left = (lnt_bf16 *)s->left.p, .left_ld = s->left.ld});
}

static void update_mixed(float f, float g, const float *other, int count, const lnt_operand *a, const lnt_operand *b, lnt_operand *s,
                         lnt_operand *rest)
{
    s->left_t.p = s->right_t.p = NULL;
    tiles(LNT_MM_SCALED, NULL, count, a, true, b, false, NULL, (float *)s->x, s->ld,
          &(renewal){.mixed = true, .own = f, .share = g, .base = other, .right = (pair *)s->right.p, .rest = rest ? (pair *)rest->right.p : NULL,
                     .right_block = s->right.ld,
                     .left = (lnt_bf16 *)s->left.p, .left_ld = s->left.ld});
}

/* A kept state is [cols32/32][rows16, 32] bf16: blocks of columns, so that a panel of the state is one stretch of memory. */
static size_t kept_bytes(int rows, int cols) { return left_bytes(rows, cols); }
static void keep(const lnt_operand *s, int first, int cols, void *kept)
{
    (void)cols;
    for (int j = 0; j < s->cols; j += 32) {
        int n = s->cols - j < 32 ? s->cols - j : 32;
        pack_left(s->rows, n, s->x + j, s->ld, (lnt_bf16 *)kept + (int64_t)(first + j) * up(s->rows, 16), 32);
    }
}

/* left.p of the operand is the kept state itself, for inner. */
static lnt_operand kept(int forms, int rows, int cols, const void *state, void *scratch)
{
    lnt_operand m = {.rows = rows, .cols = cols, .left = {state, 32}};
    if (!(forms & LNT_RIGHT_T)) return m;
    m.right_t.p = scratch;
    m.right_t.ld = up(cols, 32) / 2 * 16;
    const float *from = state; /* 32-bit pairs */
    for (int j = 0; j < cols; j += 32)
        for (int i = 0; i < rows; i += 16, from += 256) {
            if (i % 64 == 0) lnt_tiles_awake();
            LNT_V(lnt_transpose)(16, 16, from, 16, (float *)scratch + i / 16 * m.right_t.ld + j / 2 * 16, 16);
        }
    return m;
}

static float inner(const lnt_operand *s, const float *y)
{
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const lnt_bf16 *p = s->left.p;
    for (int j = 0; j < s->cols; j += 32, p += up(s->rows, 16) * 32)
        for (int i = 0; i < s->rows; i++) {
            if (i % 16 == 0) lnt_tiles_awake();
            const float *row = y + (int64_t)i * s->cols + j;
            sum[0] = _mm512_fmadd_ps((__m512)v_load_bf16(p + i * 32), lanes(row, s->cols - j), sum[0]);
            sum[1] = _mm512_fmadd_ps((__m512)v_load_bf16(p + i * 32 + 16), lanes(row + 16, s->cols - j - 16), sum[1]);
        }
    return v_sum((vf)_mm512_add_ps(sum[0], sum[1]));
}

static void inner_rows(const lnt_operand *s, const float *y, float *sums)
{
    memset(sums, 0, (size_t)s->rows * sizeof *sums);
    const lnt_bf16 *p = s->left.p;
    for (int j = 0; j < s->cols; j += 32, p += up(s->rows, 16) * 32)
        for (int i = 0; i < s->rows; i++) {
            if (i % 16 == 0) lnt_tiles_awake();
            const float *row = y + (int64_t)i * s->cols + j;
            __m512 sum = _mm512_mul_ps((__m512)v_load_bf16(p + i * 32), lanes(row, s->cols - j));
            sums[i] += v_sum((vf)_mm512_fmadd_ps((__m512)v_load_bf16(p + i * 32 + 16), lanes(row + 16, s->cols - j - 16), sum));
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

const lnt_mm_engine LNT_V(lnt_mm_bf16_tiles) = {bytes, prepare, extend, prepare16, prepare_scaled, prepare_rest, lay_out, append, view, multiply,
    multiply_row, update, update_columns, update_before, update_sum, update_mixed, kept_bytes, keep, kept, inner, inner_rows, begin, end,
    .bf16 = true, .row_align = 32, .chunk = 32, .panel = 32};

#endif
