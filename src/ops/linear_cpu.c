/* Biases of linear maps. */
#include "ops/rows.h"

void LNT_V(lnt_bias_add)(lnt_ctx *c, const lnt_tensor *x, const float *bias)
{
    const int64_t size = rows_a_piece(x->cols);
    PARALLEL_PIECES(c, p, pieces(x->rows, size))
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++) {
            void *row = row_at(x, r);
            V_EACH(i, n, x->cols) v_out(row, x->dtype, i, n, v_get(bias, LINNET_F32, i, n), true);
        }
}

void LNT_V(lnt_column_sums)(lnt_ctx *c, const lnt_tensor *dy, float *sums, float *work)
{
    const int64_t size = lnt_sum_block_rows(dy->rows), blocks = lnt_sum_blocks(dy->rows), cols = dy->cols;
    PARALLEL_PIECES(c, p, blocks)
    {
        float *part = work + p * cols;
        memset(part, 0, (size_t)cols * sizeof *part);
        for (int64_t r = p * size; r < at_most(dy->rows, (p + 1) * size); r++) {
            const void *row = row_at(dy, r);
            V_EACH(i, n, cols) v_out(part, LINNET_F32, i, n, v_get(row, dy->dtype, i, n), true);
        }
    }
    add_blocks(c, sums, work, blocks, cols);
}
