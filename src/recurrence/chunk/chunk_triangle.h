/* Products with lower triangles [n,n] in blocks of rows, so that what lies above the diagonal is hardly computed. Only *_cpu.c files include this. */
#ifndef LNT_CHUNK_TRIANGLE_H
#define LNT_CHUNK_TRIANGLE_H

#include "recurrence/chunk/chunk_rows.h"

/* An engine and the rows of a block. */
typedef struct {
    const lnt_mm_engine *engine;
    int rows;
} lnt_blocks;

static inline int block_rows(lnt_blocks b, int64_t i, int64_t n) { return (int)(i + b.rows < n ? b.rows : n - i); }
static inline int64_t block_end(lnt_blocks b, int64_t i, int64_t n)
{
    int64_t first = i / b.rows * b.rows;
    return first + block_rows(b, first, n);
}

/* Row i of a triangular block: x_j *= s D_ij for j <= i, 0 from there to `end`. */
static inline void mask_row(float *x, const float *D, float s, int64_t i, int64_t end)
{
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int64_t j = 0; j < end; j += LNT_VL) {
        const int64_t lanes = end - j < LNT_VL ? end - j : LNT_VL;
        v_store_n(x + j, v_select(lane <= (int32_t)(i - j), v_load_n(x + j, lanes) * v_load_n(D + j, lanes) * s, v_zero()), lanes);
    }
}

/* Y = X W^T on and below the diagonal, block of rows by block of rows. What lies above the diagonal blocks is left undefined. */
static inline void triangle(lnt_blocks b, int64_t n, const lnt_operand *X, const lnt_operand *W, float *Y, int64_t ld)
{
    for (int64_t i = 0; i < n; i += b.rows) {
        lnt_operand x = b.engine->view(X, (int)i, block_rows(b, i, n)), y = b.engine->view(W, 0, (int)i + block_rows(b, i, n));
        b.engine->multiply(LNT_MM_SET, NULL, &x, false, &y, true, Y + i * ld, ld);
    }
}

/* y_i = or += sum_{j<=i} A_ij x_j: [n,width]. */
static inline void lower_product(lnt_mm_mode mode, lnt_blocks b, int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width, float *y)
{
    for (int64_t i = 0; i < n; i += b.rows) {
        lnt_operand a = b.engine->view(A, (int)i, block_rows(b, i, n));
        a.cols = (int)i + a.rows;
        b.engine->multiply(mode, NULL, &a, false, x, false, y + i * width, width);
    }
}
static inline void apply_lower(lnt_blocks b, int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width, float *y)
{
    lower_product(LNT_MM_ADD, b, n, A, x, width, y);
}

/* The rows from j on and the columns j .. j+cols-1 of a square operand, to be used transposed at the left. */
static inline lnt_operand corner(const lnt_operand *m, int j, int cols)
{
    lnt_operand v = *m;
    v.x += j * m->ld + j;
    v.rows -= j;
    v.cols = cols;
    if (v.left_t.p) v.left_t.p = (const lnt_bf16 *)v.left_t.p + j * v.left_t.ld + j;
    return v;
}

/* y_j = or += sum_{i>=j} A_ij x_i: [n,width]. */
static inline void lower_product_transposed(lnt_mm_mode mode, lnt_blocks b, int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width,
                                            float *y)
{
    for (int64_t j = 0; j < n; j += b.rows) {
        lnt_operand a = corner(A, (int)j, block_rows(b, j, n)), rest = b.engine->view(x, (int)j, (int)(n - j));
        b.engine->multiply(mode, NULL, &a, true, &rest, false, y + j * width, width);
    }
}
static inline void apply_lower_transposed(lnt_blocks b, int64_t n, const lnt_operand *A, const lnt_operand *x, int64_t width, float *y)
{
    lower_product_transposed(LNT_MM_ADD, b, n, A, x, width, y);
}

#endif
