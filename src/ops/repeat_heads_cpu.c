#include "ops/rows.h"

linnet_status LNT_V(lnt_repeat_heads_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t d = x->cols / x->heads, group = y->heads / x->heads, size = rows_a_piece(y->cols);
    PARALLEL_PIECES(k->c, piece, pieces(k->in[0].rows, size))
    for (int64_t r = piece * size; r < at_most(k->in[0].rows, (piece + 1) * size); r++)
        for (int64_t h = 0; h < y->heads; h++)
            memcpy(part_at(y, r, h * d), part_at(x, r, h / group * d), (size_t)d * (x->dtype == LINNET_F32 ? 4 : 2));
    return LINNET_OK;
}

/* dx of a head is the sum over its copies, in their order. */
linnet_status LNT_V(lnt_repeat_heads_backward)(const lnt_call *k)
{
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0];
    if (!dx->data) return LINNET_OK;
    const int64_t d = dx->cols / dx->heads, group = dy->heads / dx->heads, size = rows_a_piece(dy->cols);
    PARALLEL_PIECES(k->c, piece, pieces(k->in[0].rows, size))
    for (int64_t r = piece * size; r < at_most(k->in[0].rows, (piece + 1) * size); r++)
        for (int64_t h = 0; h < dx->heads; h++)
            V_EACH(i, n, d)
            {
                vf s = v_zero();
                for (int64_t g = 0; g < group; g++) s += v_get(part_at(dy, r, (h * group + g) * d), dy->dtype, i, n);
                v_out(part_at(dx, r, h * d), dx->dtype, i, n, s, k->accumulate[0]);
            }
    return LINNET_OK;
}
