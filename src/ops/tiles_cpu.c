#include "ops/tiles.h"
#include "ops/rows.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)

/* Rows of 16 dwords: y[i][j] = x[j][i], in four rounds of pairwise exchanges. */
INLINE void transpose16(__m512i x[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    /* x[4b+c] holds, in its lane l, rows 4b..4b+3 of column 4l+c. */
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
    }
    for (int c = 0; c < 4; c++) {
        x[c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
        x[8 + c] = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
        x[4 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
        x[12 + c] = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    }
}

static inline __mmask32 first(int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1u; }

/* 16 rows of up to 32 elements: rows r0 .. (below `rows`), elements k .. k1. Lanes and rows outside are masked, without a branch, so that all 16 stay
 * in registers. */
INLINE void load_rows(const lnt_bf16 *p, int64_t ld, int64_t r0, int64_t rows, int64_t k, int64_t k1, __m512i x[16])
{
    const __mmask32 mask = first(k1 - k);
    p += r0 * ld + k;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[i] = _mm512_maskz_loadu_epi16(r0 + i < rows ? mask : 0, p + i * ld);
}

/* 16 pairs of rows k, k+1 of a matrix whose rows are k: 16 columns from c on, the pair side by side. */
INLINE void load_pairs(const lnt_bf16 *p, int64_t ld, int64_t c, int64_t cols, int64_t k, int64_t k1, __m512i x[16])
{
    const __mmask16 mask = (__mmask16)first(cols - c < 16 ? cols - c : 16);
    p += k * ld + c;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m256i a = _mm256_maskz_loadu_epi16(k + 2 * i < k1 ? mask : 0, p + 2 * i * ld);
        __m256i b = _mm256_maskz_loadu_epi16(k + 2 * i + 1 < k1 ? mask : 0, p + (2 * i + 1) * ld);
        x[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
    }
}

INLINE void store_rows(lnt_bf16 *out, const __m512i x[16])
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512((void *)(out + 32 * i), x[i]);
}

static void pack_strip(const lnt_gemm_args *g, int64_t strip, int64_t k0, int64_t k1, lnt_bf16 *out)
{
    __m512i x[16];
    for (int64_t k = k0; k < k1; k += LNT_TILE_K, out += LNT_STRIP_STEP) {
        if (g->trans_a) {
            load_pairs(g->a, g->lda, strip * 16, g->M, k, k1, x);
            transpose16(x);
        } else {
            load_rows(g->a, g->lda, strip * 16, g->M, k, k1, x);
        }
        store_rows(out, x);
    }
}

static void pack_panel(const lnt_gemm_args *g, int64_t panel, int64_t k0, int64_t k1, lnt_bf16 *out)
{
    __m512i x[16];
    for (int64_t k = k0; k < k1; k += LNT_TILE_K)
        for (int64_t half = 0; half < 2; half++, out += LNT_PANEL_STEP / 2) {
            const int64_t n = panel * 32 + half * 16;
            if (g->trans_b) {
                load_rows(g->b, g->ldb, n, g->N, k, k1, x);
                transpose16(x);
            } else {
                load_pairs(g->b, g->ldb, n, g->N, k, k1, x);
            }
            store_rows(out, x);
        }
}

/* c[32,32] (+)= 32 rows of A times a panel of B over `steps` steps. */
static inline void block(const char *a0, const char *a1, int64_t a_stride, int64_t a_step, const lnt_bf16 *b, int64_t steps, float *c, int64_t ldc,
                         bool add)
{
    if (add) {
        _tile_loadd(0, c, (size_t)ldc * 4);
        _tile_loadd(1, c + 16, (size_t)ldc * 4);
        _tile_loadd(2, c + 16 * ldc, (size_t)ldc * 4);
        _tile_loadd(3, c + 16 * ldc + 16, (size_t)ldc * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, a0 + s * a_step, (size_t)a_stride);
        _tile_loadd(6, b + s * LNT_PANEL_STEP, 64);
        _tile_loadd(7, b + s * LNT_PANEL_STEP + LNT_PANEL_STEP / 2, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a1 + s * a_step, (size_t)a_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, (size_t)ldc * 4);
    _tile_stored(1, c + 16, (size_t)ldc * 4);
    _tile_stored(2, c + 16 * ldc, (size_t)ldc * 4);
    _tile_stored(3, c + 16 * ldc + 16, (size_t)ldc * 4);
}

/* Where 32 rows of A lie: in place, or in the packed strips. */
typedef struct {
    const char *row[2];
    int64_t stride, step; /* bytes */
} strips_at;

static strips_at locate(const lnt_tile_job *j, int64_t m, int64_t s0)
{
    const int64_t strip = m / LNT_TILE_ROWS;
    strips_at a;
    /* Strips come in pairs, so that both are packed or neither. */
    if (strip >= j->first_packed) {
        const lnt_bf16 *p = j->strips + ((strip - j->first_packed) * j->steps + s0) * LNT_STRIP_STEP;
        a = (strips_at){{(const char *)p, (const char *)(p + j->steps * LNT_STRIP_STEP)}, 64, LNT_STRIP_STEP * 2};
    } else {
        const lnt_bf16 *p = (const lnt_bf16 *)j->g->a + m * j->g->lda + j->k0 + s0 * LNT_TILE_K;
        a = (strips_at){{(const char *)p, (const char *)(p + LNT_TILE_ROWS * j->g->lda)}, j->g->lda * 2, 64};
    }
    return a;
}

/* The block of C at (m, n), by way of a float32 buffer: bf16, and the edges. */
static void to_c(const lnt_tile_job *j, int64_t m, int64_t n, const float *c, int64_t ldc, bool add)
{
    const lnt_gemm_args *g = j->g;
    const int64_t rows = at_most(LNT_TILE_BLOCK, g->M - m), cols = at_most(LNT_TILE_BLOCK, g->N - n);
    if (g->c == LINNET_BF16 && cols == LNT_TILE_BLOCK && !add) {
        lnt_bf16 *to = (lnt_bf16 *)g->C + m * g->ldc + n;
        for (int64_t i = 0; i < rows; i++) {
            __m512bh h = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(c + i * ldc + 16), _mm512_loadu_ps(c + i * ldc));
            memcpy(to + i * g->ldc, &h, sizeof h);
        }
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        void *to = (char *)g->C + ((m + i) * g->ldc + n) * (g->c == LINNET_F32 ? 4 : 2);
        V_EACH(l, w, cols) v_out(to, g->c, l, w, v_get(c + i * ldc, LINNET_F32, l, w), add);
    }
}

/* K in parts of at most 512: a panel's part (32 KB) stays in the L1 cache while the strips pass from L2. */
enum { PART_STEPS = 16 };

static void multiply(const lnt_tile_job *j)
{
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    const lnt_gemm_args *g = j->g;
    const int64_t parts = pieces(j->steps, PART_STEPS), part = pieces(j->steps, parts),
                  width = pieces(j->n1 - j->n0, LNT_TILE_BLOCK) * LNT_TILE_BLOCK;
    float buffer[LNT_TILE_BLOCK * LNT_TILE_BLOCK] __attribute__((aligned(64)));
    _tile_loadconfig(&config);
    for (int64_t s0 = 0; s0 < j->steps; s0 += part) {
        const int64_t steps = at_most(part, j->steps - s0);
        const bool begins = s0 == 0, ends = s0 + steps == j->steps;
        for (int64_t n = j->n0; n < j->n1; n += LNT_TILE_BLOCK) {
            const lnt_bf16 *b = j->panels + (n / LNT_TILE_BLOCK * j->steps + s0) * LNT_PANEL_STEP;
            for (int64_t m = j->m0; m < j->m1; m += LNT_TILE_BLOCK) {
                const strips_at a = locate(j, m, s0);
                const bool whole = m + LNT_TILE_BLOCK <= g->M && n + LNT_TILE_BLOCK <= g->N;
                if (g->c == LINNET_F32 && whole) {
                    block(a.row[0], a.row[1], a.stride, a.step, b, steps, (float *)g->C + m * g->ldc + n, g->ldc, j->add || !begins);
                } else if (g->c == LINNET_F32 || parts == 1) {
                    block(a.row[0], a.row[1], a.stride, a.step, b, steps, buffer, LNT_TILE_BLOCK, false);
                    to_c(j, m, n, buffer, LNT_TILE_BLOCK, j->add || !begins);
                } else {
                    float *sums = j->sums + (m - j->m0) * width + (n - j->n0);
                    block(a.row[0], a.row[1], a.stride, a.step, b, steps, sums, width, !begins);
                    if (ends) to_c(j, m, n, sums, width, j->add);
                }
            }
        }
    }
    _tile_release();
}

const lnt_tile_kernels *LNT_V(lnt_tiles)(void)
{
    static const lnt_tile_kernels kernels = {pack_strip, pack_panel, multiply};
    return &kernels;
}

#else

const lnt_tile_kernels *LNT_V(lnt_tiles)(void) { return NULL; }

#endif
