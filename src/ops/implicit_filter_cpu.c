#include <math.h>

#include "ops/implicit_filter.h"
#include "ops/rows.h"

linnet_status LNT_V(lnt_place_features_forward)(const lnt_call *k)
{
    const lnt_tensor *y = &k->out[0];
    const int64_t m = (y->cols - 1) / 2, size = rows_a_piece(16 * y->cols);
    PARALLEL_PIECES(k->c, piece, pieces(y->rows, size))
    for (int64_t i = piece * size; i < at_most(y->rows, (piece + 1) * size); i++) {
        float *to = (float *)y->data + i * y->ld;
        const double w = 2 * 3.14159265358979323846 * (double)i / (double)y->rows;
        to[0] = (float)((double)i / (double)(y->rows > 1 ? y->rows - 1 : 1));
        for (int64_t j = 0; j < m; j++) {
            const double f = 1e-4 + (m > 1 ? (double)j * ((double)(m - 1) - 1e-4) / (double)(m - 1) : 0);
            to[1 + j] = (float)cos(f * w);
            to[1 + m + j] = (float)-sin(f * w);
        }
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_place_features_backward)(const lnt_call *k) { return (void)k, LINNET_OK; } /* nothing was read */

/* y, or += : x times the window. */
static void window(const lnt_call *k, const lnt_tensor *x, const lnt_tensor *y, bool add)
{
    const lnt_decay_window_attr *a = k->attr;
    const int64_t cols = y->cols, size = rows_a_piece(4 * cols);
    const float slow = (float)a->slow, step = (float)(cols > 1 ? (a->fast - a->slow) / (double)(cols - 1) : 0), shift = (float)a->shift;
    PARALLEL_PIECES(k->c, piece, pieces(y->rows, size))
    for (int64_t i = piece * size; i < at_most(y->rows, (piece + 1) * size); i++) {
        const float t = (float)((double)i / (double)(y->rows > 1 ? y->rows - 1 : 1));
        vf place = v_zero();
        for (int l = 0; l < LNT_VL; l++) place[l] = (float)l;
        V_EACH(j, n, cols)
        {
            const vf rate = slow + (place + (float)j) * step;
            v_out((float *)y->data + i * y->ld, LINNET_F32, j, n, v_get((float *)x->data + i * x->ld, LINNET_F32, j, n) * (v_exp(-t * rate) + shift),
                  add);
        }
    }
}

linnet_status LNT_V(lnt_decay_window_forward)(const lnt_call *k) { return window(k, &k->in[0], &k->out[0], false), LINNET_OK; }
linnet_status LNT_V(lnt_decay_window_backward)(const lnt_call *k)
{
    if (k->d_in[0].data) window(k, &k->d_out[0], &k->d_in[0], k->accumulate[0]);
    return LINNET_OK;
}
