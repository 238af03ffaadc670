/* One kernel each way for the four norms: y = x r w act(g), where w and the gate may be missing. With u = dy w act(g), the gradient of x r:
 *
 *   rms, l2   r = (f sum x^2 + eps)^-1/2     dx = r u - x r^3 f sum(u x)      f = 1/d, 1
 *   sum       r = 1 / (sum x + eps)          dx = r u - r^2 sum(u x)
 *
 *   dw += dy act(g) x r summed over rows,    dg = dy x r w act'(g) */
#include "ops/norms.h"
#include "ops/rows.h"

typedef enum { RMS, L2, SUM } norm_kind;

/* r, from s = sum x^2 (or sum x). */
static inline float inverse_of(norm_kind kind, float s, int64_t d, float eps)
{
    if (kind == SUM) return 1.0f / (s + eps);
    return 1.0f / sqrtf((kind == RMS ? s / (float)d : s) + eps);
}

/* Row i of [tokens*heads, d] of a sum that is done together with its norm. */
static inline void sum_row(const lnt_call *sum, int64_t i, int64_t d)
{
    const lnt_tensor *a = &sum->in[0], *b = &sum->in[1], *y = &sum->out[0];
    const void *ai = part_at(a, 0, i * d), *bi = part_at(b, 0, i * d);
    void *yi = part_at(y, 0, i * d);
    V_EACH(j, n, d) v_put(yi, y->dtype, j, n, v_get(ai, a->dtype, j, n) + v_get(bi, b->dtype, j, n));
}
static inline void sum_row_back(const lnt_call *sum, int64_t i, int64_t d)
{
    const lnt_tensor *dy = &sum->d_out[0];
    for (int q = 0; q < 2; q++) {
        const lnt_tensor *dx = &sum->d_in[q];
        if (!dx->data) continue;
        V_EACH(j, n, d)
            v_out(part_at(dx, 0, i * d), dx->dtype, j, n, v_get(part_at(dy, 0, i * d), dy->dtype, j, n), sum->accumulate[q]);
    }
}

/* sum: NULL, or the call that makes x. */
INLINE void forward(const lnt_call *k, const lnt_call *sum, const norm_kind kind, const bool weighted, const bool gated)
{
    const lnt_norm_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *gate = &k->in[1], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(x->cols);
    const float *w = weighted ? k->param[0].master : NULL, eps = (float)a->eps;
    PARALLEL_PIECES(k->c, p, pieces(k->in[0].rows, size))
        for (int64_t i = p * size * heads; i < at_most(k->in[0].rows, (p + 1) * size) * heads; i++) { /* row i of [tokens*heads, d] */
            const void *xi = part_at(x, 0, i * d), *gi = gated ? part_at(gate, 0, i * d) : NULL;
            void *yi = part_at(y, 0, i * d);
            vf s = v_zero();
            if (sum) sum_row(sum, i, d);
            V_EACH(j, n, d)
            {
                vf v = v_get(xi, x->dtype, j, n);
                s += kind == SUM ? v : v * v;
            }
            const float r = inverse_of(kind, v_sum(s), d, eps);
            V_EACH(j, n, d)
            {
                vf v = v_get(xi, x->dtype, j, n) * r;
                if (weighted) v *= v_get(w, LINNET_F32, j, n) + a->centre;
                if (gated) v *= v_act(v_get(gi, gate->dtype, j, n), a->act);
                v_put(yi, y->dtype, j, n, v);
            }
        }
}

/* Row i of [tokens*heads, d]; dw [d] receives its share when not NULL. */
INLINE void backward_row(const lnt_call *k, int64_t i, int64_t d, float *dw, const norm_kind kind, const bool weighted, const bool gated)
{
    const lnt_norm_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *gate = &k->in[1], *dx = &k->d_in[0], *dg = &k->d_in[1], *dy = &k->d_out[0];
    const float *w = weighted ? k->param[0].master : NULL;
    const void *xi = part_at(x, 0, i * d), *dyi = part_at(dy, 0, i * d), *gi = gated ? part_at(gate, 0, i * d) : NULL;
    vf s = v_zero(), ux = v_zero();
    V_EACH(j, n, d)
    {
        vf v = v_get(xi, x->dtype, j, n), u = v_get(dyi, dy->dtype, j, n);
        if (weighted) u *= v_get(w, LINNET_F32, j, n) + a->centre;
        if (gated) u *= v_act(v_get(gi, gate->dtype, j, n), a->act);
        s += kind == SUM ? v : v * v;
        ux += u * v;
    }
    const float r = inverse_of(kind, v_sum(s), d, (float)a->eps), f = kind == RMS ? 1.0f / (float)d : 1.0f;
    const float back = (kind == SUM ? r * r : r * r * r * f) * v_sum(ux);
    V_EACH(j, n, d)
    {
        vf v = v_get(xi, x->dtype, j, n), g = v_get(dyi, dy->dtype, j, n), u = g;
        vf wj = weighted ? v_get(w, LINNET_F32, j, n) + a->centre : v_set(1.0f);
        if (gated) {
            vf value, slope = v_act_slope(v_get(gi, gate->dtype, j, n), a->act, &value);
            if (dg->data) v_out(part_at(dg, 0, i * d), dg->dtype, j, n, g * v * r * wj * slope, k->accumulate[1]);
            u *= value;
        }
        if (dw) v_out(dw, LINNET_F32, j, n, u * v * r, true);
        if (dx->data) v_out(part_at(dx, 0, i * d), dx->dtype, j, n, u * wj * r - (kind == SUM ? v_set(back) : v * back), k->accumulate[0]);
    }
}

INLINE void backward(const lnt_call *k, const lnt_call *sum, const norm_kind kind, const bool weighted, const bool gated)
{
    const int64_t heads = k->in[0].heads, d = k->in[0].cols / heads, size = lnt_sum_block_rows(k->in[0].rows), blocks = lnt_sum_blocks(k->in[0].rows);
    float *grad = weighted ? k->param[0].grad : NULL;
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *dw = grad ? (float *)k->work + p * d : NULL;
        if (dw) memset(dw, 0, (size_t)d * sizeof *dw);
        for (int64_t i = p * size * heads; i < at_most(k->in[0].rows, (p + 1) * size) * heads; i++) {
            backward_row(k, i, d, dw, kind, weighted, gated);
            if (sum) sum_row_back(sum, i, d);
        }
    }
    if (grad) add_blocks(k->c, grad, k->work, blocks, d);
}

#define NORM(op, ...)                                                                                                              \
    linnet_status LNT_V(lnt_##op##_forward)(const lnt_call *k) { return forward(k, NULL, __VA_ARGS__), LINNET_OK; }                \
    linnet_status LNT_V(lnt_##op##_backward)(const lnt_call *k) { return backward(k, NULL, __VA_ARGS__), LINNET_OK; }

NORM(rmsnorm, RMS, true, false)
NORM(gated_rmsnorm, RMS, true, true)
NORM(l2norm, L2, false, false)
NORM(sumnorm, SUM, false, false)

linnet_status LNT_V(lnt_sum_rmsnorm_forward)(const lnt_call *sum, const lnt_call *norm) { return forward(norm, sum, RMS, true, false), LINNET_OK; }
linnet_status LNT_V(lnt_sum_rmsnorm_backward)(const lnt_call *sum, const lnt_call *norm) { return backward(norm, sum, RMS, true, false), LINNET_OK; }

/* ---- layernorm: with z = (x - m) r and u = dy w,  dx = r (u - mean u - z mean(u z)),  dw += dy z,  db += dy ------------------------------ */

typedef struct {
    float mean, inverse;
} moments;

/* Of the d elements at x, in two passes: the square of a mean far from zero would swallow the variance. */
static moments moments_of(const void *x, lnt_dtype t, int64_t d, float eps)
{
    vf s = v_zero(), square = v_zero();
    V_EACH(j, n, d) s += v_get(x, t, j, n);
    const float mean = v_sum(s) / (float)d;
    V_EACH(j, n, d)
    {
        vf v = v_get(x, t, j, n) - mean;
        for (int64_t l = n; l < LNT_VL; l++) v[l] = 0;
        square += v * v;
    }
    return (moments){mean, 1.0f / sqrtf(v_sum(square) / (float)d + eps)};
}

linnet_status LNT_V(lnt_layernorm_forward)(const lnt_call *k)
{
    const lnt_layernorm_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(x->cols);
    const float *w = a->weight ? k->param[0].master : NULL, *b = a->bias ? k->param[a->weight].master : NULL;
    PARALLEL_PIECES(k->c, p, pieces(x->rows, size))
        for (int64_t i = p * size * heads; i < at_most(x->rows, (p + 1) * size) * heads; i++) { /* row i of [rows*heads, d] */
            const void *xi = part_at(x, 0, i * d);
            const int64_t c = i % heads * d;
            const moments m = moments_of(xi, x->dtype, d, (float)a->eps);
            V_EACH(j, n, d)
            {
                vf v = (v_get(xi, x->dtype, j, n) - m.mean) * m.inverse;
                if (w) v *= v_get(w, LINNET_F32, c + j, n);
                if (b) v += v_get(b, LINNET_F32, c + j, n);
                v_put(part_at(y, 0, i * d), y->dtype, j, n, v);
            }
        }
    return LINNET_OK;
}

/* Row i of [rows*heads, d], whose first column is c; dw, db [cols] receive their shares when not NULL. */
static void layernorm_row_back(const lnt_call *k, int64_t i, int64_t d, int64_t c, const float *w, float *dw, float *db)
{
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const void *xi = part_at(x, 0, i * d), *dyi = part_at(dy, 0, i * d);
    const moments m = moments_of(xi, x->dtype, d, (float)((const lnt_layernorm_attr *)k->attr)->eps);
    vf s = v_zero(), t = v_zero();
    V_EACH(j, n, d)
    {
        vf g = v_get(dyi, dy->dtype, j, n), z = (v_get(xi, x->dtype, j, n) - m.mean) * m.inverse, u = w ? g * v_get(w, LINNET_F32, c + j, n) : g;
        s += u; /* 0 beyond the row's end */
        t += u * z;
        if (dw) v_out(dw + c, LINNET_F32, j, n, g * z, true);
        if (db) v_out(db + c, LINNET_F32, j, n, g, true);
    }
    const float mean = v_sum(s) / (float)d, slope = v_sum(t) / (float)d;
    for (int64_t j = 0, n; dx->data && (n = at_most(LNT_VL, d - j), j < d); j += LNT_VL) {
        vf z = (v_get(xi, x->dtype, j, n) - m.mean) * m.inverse, u = v_get(dyi, dy->dtype, j, n);
        if (w) u *= v_get(w, LINNET_F32, c + j, n);
        v_out(part_at(dx, 0, i * d), dx->dtype, j, n, (u - mean - z * slope) * m.inverse, k->accumulate[0]);
    }
}

linnet_status LNT_V(lnt_layernorm_backward)(const lnt_call *k)
{
    const lnt_layernorm_attr *a = k->attr;
    const int64_t cols = k->in[0].cols, heads = k->in[0].heads, d = cols / heads, rows = k->in[0].rows;
    const int64_t size = lnt_sum_block_rows(rows), blocks = lnt_sum_blocks(rows);
    const float *w = a->weight ? k->param[0].master : NULL;
    float *grad_w = a->weight ? k->param[0].grad : NULL, *grad_b = a->bias ? k->param[a->weight].grad : NULL;
    float *sums_w = k->work, *sums_b = sums_w + blocks * cols; /* [blocks, cols] each */
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *dw = grad_w ? sums_w + p * cols : NULL, *db = grad_b ? sums_b + p * cols : NULL;
        if (dw) memset(dw, 0, (size_t)cols * sizeof *dw);
        if (db) memset(db, 0, (size_t)cols * sizeof *db);
        for (int64_t i = p * size * heads; i < at_most(rows, (p + 1) * size) * heads; i++) layernorm_row_back(k, i, d, i % heads * d, w, dw, db);
    }
    if (grad_w) add_blocks(k->c, grad_w, sums_w, blocks, cols);
    if (grad_b) add_blocks(k->c, grad_b, sums_b, blocks, cols);
    return LINNET_OK;
}
