#include "ops/gates.h"
#include "ops/rows.h"

/* g = -e^A softplus(x + b);  dx = -e^A sigmoid(x + b) dg,  db = sum dx,  dA = sum g dg over the rows. */
linnet_status LNT_V(lnt_decay_gate_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const float *A = k->param[0].master, *b = k->param[1].master;
    const int64_t size = rows_a_piece(x->cols);
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, size))
        for (int64_t r = p * size; r < at_most(k->tokens, (p + 1) * size); r++)
            V_EACH(i, n, x->cols)
            {
                vf s = v_softplus(v_get(row_at(x, r), x->dtype, i, n) + v_get(b, LINNET_F32, i, n));
                v_put(row_at(y, r), y->dtype, i, n, -v_exp(v_get(A, LINNET_F32, i, n)) * s);
            }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_decay_gate_backward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const float *A = k->param[0].master, *b = k->param[1].master;
    const int64_t cols = x->cols, size = lnt_sum_block_rows(k->tokens), blocks = lnt_sum_blocks(k->tokens);
    float *sums_A = k->work, *sums_b = sums_A + blocks * cols; /* [blocks, cols] each */
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *dA = sums_A + p * cols, *db = sums_b + p * cols;
        memset(dA, 0, (size_t)cols * sizeof *dA);
        memset(db, 0, (size_t)cols * sizeof *db);
        for (int64_t r = p * size; r < at_most(k->tokens, (p + 1) * size); r++)
            V_EACH(i, n, cols)
            {
                vf z = v_get(row_at(x, r), x->dtype, i, n) + v_get(b, LINNET_F32, i, n);
                vf scaled = -v_exp(v_get(A, LINNET_F32, i, n)) * v_get(row_at(dy, r), dy->dtype, i, n);
                vf d = scaled * v_sigmoid(z);
                if (dx->data) v_out(row_at(dx, r), dx->dtype, i, n, d, k->accumulate[0]);
                v_out(dA, LINNET_F32, i, n, scaled * v_softplus(z), true);
                v_out(db, LINNET_F32, i, n, d, true);
            }
    }
    if (k->param[0].grad) add_blocks(k->c, k->param[0].grad, sums_A, blocks, cols);
    if (k->param[1].grad) add_blocks(k->c, k->param[1].grad, sums_b, blocks, cols);
    return LINNET_OK;
}

/* With e = 1 - cap:  g' = g + log(1 - e beta^2),  dg = dg',  dbeta = -2 e beta / (1 - e beta^2) dg'. A few columns a token: plain log1pf. */
linnet_status LNT_V(lnt_gamma_cap_forward)(const lnt_call *k)
{
    const float e = (float)(1.0 - ((const lnt_gamma_cap_attr *)k->attr)->cap);
    const int64_t count = k->tokens * k->out[0].cols;
    for (int64_t i = 0; i < count; i++) {
        const float beta = v_get(k->in[1].data, k->in[1].dtype, i, 1)[0];
        v_put(k->out[0].data, k->out[0].dtype, i, 1, v_get(k->in[0].data, k->in[0].dtype, i, 1) + log1pf(-e * beta * beta));
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_gamma_cap_backward)(const lnt_call *k)
{
    const float e = (float)(1.0 - ((const lnt_gamma_cap_attr *)k->attr)->cap);
    const lnt_tensor *dg = &k->d_in[0], *dbeta = &k->d_in[1];
    const int64_t count = k->tokens * k->out[0].cols;
    for (int64_t i = 0; i < count; i += LNT_VL) {
        const int64_t n = at_most(LNT_VL, count - i);
        vf d = v_get(k->d_out[0].data, k->d_out[0].dtype, i, n), beta = v_get(k->in[1].data, k->in[1].dtype, i, n);
        if (dg->data) v_out(dg->data, dg->dtype, i, n, d, k->accumulate[0]);
        if (dbeta->data) v_out(dbeta->data, dbeta->dtype, i, n, d * (-2.0f * e) * beta / (1.0f - e * beta * beta), k->accumulate[1]);
    }
    return LINNET_OK;
}
