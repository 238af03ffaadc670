#include "ops/gates.h"
#include "ops/rows.h"

/* With z = x + b, e = e^A of the column's head:
 *
 *   g = -e softplus(z),       dx = -e sigmoid(z) dg,                db = sum dx,  dA = sum g dg
 *   g = lower s, s = sigmoid(e z):  dx = lower s (1 - s) e dg,      db = sum dx,  dA = sum z dx
 *
 * sums over the rows, dA over the columns of its head too. */

/* e of every column, into scale[cols]. */
static void scales(const lnt_call *k, float *scale)
{
    const int64_t d = ((const lnt_decay_gate_attr *)k->attr)->d, heads = k->in[0].cols / d;
    const float *A = k->param[0].master;
    for (int64_t h = 0; h < heads; h += LNT_VL) {
        const int64_t m = at_most(LNT_VL, heads - h);
        vf e = v_exp(v_get(A, LINNET_F32, h, m));
        if (d == 1) v_put(scale, LINNET_F32, h, m, e);
        for (int64_t l = 0; d > 1 && l < m; l++)
            V_EACH(j, n, d) v_put(scale + (h + l) * d, LINNET_F32, j, n, v_set(e[l]));
    }
}

linnet_status LNT_V(lnt_decay_gate_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const float *scale = k->work, *b = k->param[1].master, lower = (float)((const lnt_decay_gate_attr *)k->attr)->lower;
    const int64_t size = rows_a_piece(x->cols);
    scales(k, k->work);
    PARALLEL_PIECES(k->c, p, pieces(x->rows, size))
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++)
            V_EACH(i, n, x->cols)
            {
                vf z = v_get(row_at(x, r), x->dtype, i, n) + v_get(b, LINNET_F32, i, n), e = v_get(scale, LINNET_F32, i, n);
                v_put(row_at(y, r), y->dtype, i, n, lower < 0 ? v_sigmoid(e * z) * lower : -e * v_softplus(z));
            }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_decay_gate_backward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const float *scale = k->work, *b = k->param[1].master, lower = (float)((const lnt_decay_gate_attr *)k->attr)->lower;
    const int64_t cols = x->cols, d = ((const lnt_decay_gate_attr *)k->attr)->d, size = lnt_sum_block_rows(x->rows), blocks = lnt_sum_blocks(x->rows);
    float *sums_A = (float *)k->work + cols, *sums_b = sums_A + blocks * cols; /* [blocks, cols] each */
    scales(k, k->work);
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *dA = sums_A + p * cols, *db = sums_b + p * cols;
        memset(dA, 0, (size_t)cols * sizeof *dA);
        memset(db, 0, (size_t)cols * sizeof *db);
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++)
            V_EACH(i, n, cols)
            {
                vf z = v_get(row_at(x, r), x->dtype, i, n) + v_get(b, LINNET_F32, i, n), e = v_get(scale, LINNET_F32, i, n);
                vf g = v_get(row_at(dy, r), dy->dtype, i, n), slope, to_A;
                if (lower < 0) { /* s (1 - s) = t / (1 + t)^2, t = e^-|e z|: 1 - s would lose its digits */
                    vf t = v_exp(-v_abs(e * z));
                    slope = g * e * t / ((1.0f + t) * (1.0f + t)) * lower, to_A = slope * z;
                } else {
                    slope = -e * g * v_sigmoid(z), to_A = -e * g * v_softplus(z);
                }
                if (dx->data) v_out(row_at(dx, r), dx->dtype, i, n, slope, k->accumulate[0]);
                v_out(dA, LINNET_F32, i, n, to_A, true);
                v_out(db, LINNET_F32, i, n, slope, true);
            }
    }
    if (k->param[1].grad) add_blocks(k->c, k->param[1].grad, sums_b, blocks, cols);
    if (!k->param[0].grad) return LINNET_OK;
    if (d == 1) return add_blocks(k->c, k->param[0].grad, sums_A, blocks, cols), LINNET_OK;
    float *whole = k->work; /* e is not needed any more */
    memset(whole, 0, (size_t)cols * sizeof *whole);
    add_blocks(k->c, whole, sums_A, blocks, cols);
    for (int64_t h = 0; h < cols / d; h++) {
        vf s = v_zero();
        V_EACH(j, n, d) s += v_get(whole + h * d, LINNET_F32, j, n);
        k->param[0].grad[h] += v_sum(s);
    }
    return LINNET_OK;
}

/* ---- bounded decay: with s = sigmoid(x), f = b + (1 - b) s:  g = log f,  dx = (1 - b) s (1 - s) / f dg,  db = sum (1 - s) / f dg.
 * Near f = 1 by log(1 - w), w = (1 - b)(1 - s), which keeps what f loses; f is at least the smallest normal number, a decay of e^-87. --------- */

/* log x of normal numbers: x = 2^n m, sqrt(1/2) <= m < sqrt(2), 2 artanh((m - 1)/(m + 1)) to the ninth power (remainder 1e-9). */
static inline vf v_log(vf x)
{
    vi n = ((vi)x - 0x3f3504f3) >> 23;
    vf m = (vf)((vi)x - (n << 23)), z = (m - 1.0f) / (m + 1.0f), w = z * z, e;
    for (int l = 0; l < LNT_VL; l++) e[l] = (float)n[l];
    vf p = v_set(1.0f / 9);
    p = p * w + 1.0f / 7;
    p = p * w + 1.0f / 5;
    p = p * w + 1.0f / 3;
    p = p * w + 1.0f;
    return 2.0f * z * p + e * 0.693147181f;
}

linnet_status LNT_V(lnt_bounded_decay_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *bound = &k->in[1], *y = &k->out[0];
    const int64_t size = rows_a_piece(x->cols);
    PARALLEL_PIECES(k->c, p, pieces(x->rows, size))
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++)
            V_EACH(i, n, x->cols)
            {
                vf v = v_get(row_at(x, r), x->dtype, i, n), b = v_get(bound->data, LINNET_F32, i, n), rest = 1.0f - b;
                vf f = v_max(b + rest * v_sigmoid(v), v_set(1.17549435e-38f)), w = rest * v_sigmoid(-v);
                vf g = v_select(w < 0.5f, v_log1p_unit(-w), v_log(f));
                v_put(row_at(y, r), y->dtype, i, n, v_select(v == v, v_select(b == b, g, b), v)); /* the largest of NaN and a number hides it */
            }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_bounded_decay_backward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *bound = &k->in[1], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t cols = x->cols, size = lnt_sum_block_rows(x->rows), blocks = lnt_sum_blocks(x->rows);
    float *grad = k->d_in[1].data;
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *sum = (float *)k->work + p * cols;
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++)
            V_EACH(i, n, cols)
            {
                vf v = v_get(row_at(x, r), x->dtype, i, n), b = v_get(bound->data, LINNET_F32, i, n), s = v_sigmoid(v), off = v_sigmoid(-v);
                vf f = v_max(b + (1.0f - b) * s, v_set(1.17549435e-38f)), d = v_get(row_at(dy, r), dy->dtype, i, n) * off / f;
                if (dx->data) v_out(row_at(dx, r), dx->dtype, i, n, d * (1.0f - b) * s, k->accumulate[0]);
                v_out(sum, LINNET_F32, i, n, d, true);
            }
    }
    if (grad && !k->accumulate[1]) memset(grad, 0, (size_t)cols * sizeof *grad);
    if (grad) add_blocks(k->c, grad, k->work, blocks, cols);
    return LINNET_OK;
}

/* ---- decay bounds: with s = softmax over the layers, b_l = s_1 + .. + s_l:  ds_i = db_i + db_{i+1} + .. (i >= 1; ds_0 = 0),
 * dp = s (ds - sum s ds) -------------------------------------------------------------------------------------------------------------------- */

/* e^(p_l - largest) of one layer's columns, and their sum over the layers. */
static inline vf weight_of(const float *p, int64_t l, int64_t cols, int64_t i, int64_t n, vf top)
{
    return v_exp(v_get(p + l * cols, LINNET_F32, i, n) - top);
}
static inline vf sum_of(const float *p, int64_t layers, int64_t cols, int64_t i, int64_t n, vf *top)
{
    vf s = v_zero();
    *top = v_get(p, LINNET_F32, i, n);
    for (int64_t l = 1; l < layers; l++) *top = v_max(v_get(p + l * cols, LINNET_F32, i, n), *top);
    for (int64_t l = 0; l < layers; l++) s += weight_of(p, l, cols, i, n, *top);
    return s;
}

linnet_status LNT_V(lnt_decay_bounds_forward)(const lnt_call *k)
{
    const int64_t layers = k->in[0].heads, cols = k->in[0].cols / layers;
    const float *p = k->in[0].data; /* [layers, cols] */
    PARALLEL_PIECES(k->c, part, pieces(cols, 256))
        for (int64_t i = part * 256, n; n = at_most(LNT_VL, cols - i), i < at_most(cols, (part + 1) * 256); i += LNT_VL) {
            vf top, scale = 1.0f / sum_of(p, layers, cols, i, n, &top), b = v_zero();
            for (int64_t l = 0; l < layers; l++) {
                if (l) b += weight_of(p, l, cols, i, n, top) * scale;
                v_put((float *)k->out[0].data + l * cols, LINNET_F32, i, n, b);
            }
        }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_decay_bounds_backward)(const lnt_call *k)
{
    const int64_t layers = k->in[0].heads, cols = k->in[0].cols / layers;
    const float *p = k->in[0].data, *db = k->d_out[0].data;
    float *dp = k->d_in[0].data;
    if (!dp) return LINNET_OK;
    PARALLEL_PIECES(k->c, part, pieces(cols, 256))
        for (int64_t i = part * 256, n; n = at_most(LNT_VL, cols - i), i < at_most(cols, (part + 1) * 256); i += LNT_VL) {
            vf top, scale = 1.0f / sum_of(p, layers, cols, i, n, &top), ds = v_zero(), mean = v_zero();
            for (int64_t l = layers - 1; l > 0; l--) {
                ds += v_get(db + l * cols, LINNET_F32, i, n);
                mean += weight_of(p, l, cols, i, n, top) * scale * ds;
            }
            ds = v_zero();
            for (int64_t l = layers - 1; l >= 0; l--) {
                ds = l ? ds + v_get(db + l * cols, LINNET_F32, i, n) : v_zero();
                v_out(dp + l * cols, LINNET_F32, i, n, weight_of(p, l, cols, i, n, top) * scale * (ds - mean), k->accumulate[0]);
            }
        }
    return LINNET_OK;
}

/* With e = 1 - cap:  g' = g + log(1 - e beta^2),  dg = dg',  dbeta = -2 e beta / (1 - e beta^2) dg'. A few columns a token: plain log1pf. */
linnet_status LNT_V(lnt_gamma_cap_forward)(const lnt_call *k)
{
    const float e = (float)(1.0 - ((const lnt_gamma_cap_attr *)k->attr)->cap);
    const int64_t count = k->in[0].rows * k->out[0].cols;
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
    const int64_t count = k->in[0].rows * k->out[0].cols;
    for (int64_t i = 0; i < count; i += LNT_VL) {
        const int64_t n = at_most(LNT_VL, count - i);
        vf d = v_get(k->d_out[0].data, k->d_out[0].dtype, i, n), beta = v_get(k->in[1].data, k->in[1].dtype, i, n);
        if (dg->data) v_out(dg->data, dg->dtype, i, n, d, k->accumulate[0]);
        if (dbeta->data) v_out(dbeta->data, dbeta->dtype, i, n, d * (-2.0f * e) * beta / (1.0f - e * beta * beta), k->accumulate[1]);
    }
    return LINNET_OK;
}
