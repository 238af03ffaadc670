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
static inline __attribute__((always_inline)) void forward(const lnt_call *k, const lnt_call *sum, const norm_kind kind, const bool weighted,
                                                          const bool gated)
{
    const lnt_norm_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *gate = &k->in[1], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(x->cols);
    const float *w = weighted ? k->param[0].master : NULL, eps = (float)a->eps;
    PARALLEL_PIECES(k->c, p, pieces(k->tokens, size))
        for (int64_t i = p * size * heads; i < at_most(k->tokens, (p + 1) * size) * heads; i++) { /* row i of [tokens*heads, d] */
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
                if (weighted) v *= v_get(w, LINNET_F32, j, n);
                if (gated) v *= v_act(v_get(gi, gate->dtype, j, n), a->act);
                v_put(yi, y->dtype, j, n, v);
            }
        }
}

/* Row i of [tokens*heads, d]; dw [d] receives its share when not NULL. */
static inline __attribute__((always_inline)) void backward_row(const lnt_call *k, int64_t i, int64_t d, float *dw, const norm_kind kind,
                                                               const bool weighted, const bool gated)
{
    const lnt_norm_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *gate = &k->in[1], *dx = &k->d_in[0], *dg = &k->d_in[1], *dy = &k->d_out[0];
    const float *w = weighted ? k->param[0].master : NULL;
    const void *xi = part_at(x, 0, i * d), *dyi = part_at(dy, 0, i * d), *gi = gated ? part_at(gate, 0, i * d) : NULL;
    vf s = v_zero(), ux = v_zero();
    V_EACH(j, n, d)
    {
        vf v = v_get(xi, x->dtype, j, n), u = v_get(dyi, dy->dtype, j, n);
        if (weighted) u *= v_get(w, LINNET_F32, j, n);
        if (gated) u *= v_act(v_get(gi, gate->dtype, j, n), a->act);
        s += kind == SUM ? v : v * v;
        ux += u * v;
    }
    const float r = inverse_of(kind, v_sum(s), d, (float)a->eps), f = kind == RMS ? 1.0f / (float)d : 1.0f;
    const float back = (kind == SUM ? r * r : r * r * r * f) * v_sum(ux);
    V_EACH(j, n, d)
    {
        vf v = v_get(xi, x->dtype, j, n), g = v_get(dyi, dy->dtype, j, n), u = g;
        vf wj = weighted ? v_get(w, LINNET_F32, j, n) : v_set(1.0f);
        if (gated) {
            vf value, slope = v_act_slope(v_get(gi, gate->dtype, j, n), a->act, &value);
            if (dg->data) v_out(part_at(dg, 0, i * d), dg->dtype, j, n, g * v * r * wj * slope, k->accumulate[1]);
            u *= value;
        }
        if (dw) v_out(dw, LINNET_F32, j, n, u * v * r, true);
        if (dx->data) v_out(part_at(dx, 0, i * d), dx->dtype, j, n, u * wj * r - (kind == SUM ? v_set(back) : v * back), k->accumulate[0]);
    }
}

static inline __attribute__((always_inline)) void backward(const lnt_call *k, const lnt_call *sum, const norm_kind kind, const bool weighted,
                                                           const bool gated)
{
    const int64_t heads = k->in[0].heads, d = k->in[0].cols / heads, size = lnt_sum_block_rows(k->tokens), blocks = lnt_sum_blocks(k->tokens);
    float *grad = weighted ? k->param[0].grad : NULL;
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *dw = grad ? (float *)k->work + p * d : NULL;
        if (dw) memset(dw, 0, (size_t)d * sizeof *dw);
        for (int64_t i = p * size * heads; i < at_most(k->tokens, (p + 1) * size) * heads; i++) {
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
