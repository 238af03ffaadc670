#include "ops/embedding.h"
#include "ops/rows.h"

linnet_status LNT_V(lnt_embedding_forward)(const lnt_call *k)
{
    const lnt_embedding_attr *a = k->attr;
    const lnt_tensor *y = &k->out[0];
    const int32_t *id = k->in[0].data;
    const int64_t cols = y->cols, size = rows_a_piece(cols);
    const float scale = (float)a->scale;
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, size))
        for (int64_t t = p * size; t < at_most(k->tokens, (p + 1) * size); t++) {
            const float *e = k->param[0].master + id[t] * cols;
            void *row = row_at(y, t);
            V_EACH(i, n, cols) v_put(row, y->dtype, i, n, v_get(e, LINNET_F32, i, n) * scale);
        }
    return LINNET_OK;
}

/* Tokens are sorted by id (stable, by counting), and each row of the gradient has one owner. A piece is one id of one part of the columns. */
linnet_status LNT_V(lnt_embedding_backward)(const lnt_call *k)
{
    enum { PART = 256 };
    const lnt_embedding_attr *a = k->attr;
    const lnt_tensor *dy = &k->d_out[0];
    const int32_t *id = k->in[0].data;
    const int64_t cols = dy->cols, parts = pieces(cols, PART);
    const float scale = (float)a->scale;
    int32_t *start = k->work, *present = start + a->vocab + 1, *order = present + a->vocab + 1; /* [vocab+1], [vocab+1], [tokens] */

    memset(start, 0, (size_t)(a->vocab + 1) * sizeof *start);
    for (int64_t t = 0; t < k->tokens; t++) start[id[t] + 1]++;
    int64_t n_present = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        if (start[v + 1]) present[n_present++] = (int32_t)v;
        start[v + 1] += start[v];
    }
    for (int64_t t = 0; t < k->tokens; t++) order[start[id[t]]++] = (int32_t)t; /* start[v] is now the end of v */

    PARALLEL_PIECES(k->c, p, n_present * parts)
    {
        const int64_t v = present[p / parts], c0 = p % parts * PART, c1 = at_most(cols, c0 + PART);
        float *g = k->param[0].grad + v * cols + c0;
        for (int32_t s = v ? start[v - 1] : 0; s < start[v]; s++) {
            const void *row = part_at(dy, order[s], c0);
            V_EACH(i, n, c1 - c0) v_out(g, LINNET_F32, i, n, v_get(row, dy->dtype, i, n) * scale, true);
        }
    }
    return LINNET_OK;
}
