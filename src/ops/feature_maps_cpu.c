#include "ops/feature_maps.h"
#include "ops/rows.h"

/* for the heads i of each piece: rows of [tokens*heads, d]. */
#define PARALLEL_HEADS(k, i, heads, size)                                                                                          \
    PARALLEL_PIECES((k)->c, piece, pieces((k)->in[0].rows * (heads), size))                                                            \
        for (int64_t i = piece * (size); i < at_most((k)->in[0].rows * (heads), (piece + 1) * (size)); i++)

/* ---- softmax: dx = p (dp - sum p dp) ------------------------------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_softmax_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(d);
    PARALLEL_HEADS(k, i, heads, size)
    {
        float e[LNT_FEATURE_MAX];
        const void *xi = part_at(x, 0, i * d);
        float m = -INFINITY;
        V_EACH(j, n, d)
        {
            vf v = v_get(xi, x->dtype, j, n);
            for (int64_t l = n; l < LNT_VL; l++) v[l] = v[0];
            const float top = v_hmax(v);
            m = top > m ? top : m;
        }
        vf s = v_zero();
        V_EACH(j, n, d)
        {
            vf v = v_exp(v_get(xi, x->dtype, j, n) - m);
            v_put(e, LINNET_F32, j, n, v);
            for (int64_t l = n; l < LNT_VL; l++) v[l] = 0;
            s += v;
        }
        const float scale = 1.0f / v_sum(s);
        V_EACH(j, n, d) v_put(part_at(y, 0, i * d), y->dtype, j, n, v_get(e, LINNET_F32, j, n) * scale);
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_softmax_backward)(const lnt_call *k)
{
    const lnt_tensor *y = &k->out[0], *dy = &k->d_out[0], *dx = &k->d_in[0];
    const int64_t heads = y->heads, d = y->cols / heads, size = rows_a_piece(d);
    if (!dx->data) return LINNET_OK;
    PARALLEL_HEADS(k, i, heads, size)
    {
        const void *p = part_at(y, 0, i * d), *dp = part_at(dy, 0, i * d);
        vf s = v_zero();
        V_EACH(j, n, d) s += v_get(p, y->dtype, j, n) * v_get(dp, dy->dtype, j, n);
        const float mean = v_sum(s);
        V_EACH(j, n, d)
            v_out(part_at(dx, 0, i * d), dx->dtype, j, n, v_get(p, y->dtype, j, n) * (v_get(dp, dy->dtype, j, n) - mean), k->accumulate[0]);
    }
    return LINNET_OK;
}

/* ---- hedgehog: max |y| is the largest of all 2d inputs. dz = p (dp - sum p dp), dy = dz_+ - dz_- ---------------------------------- */

linnet_status LNT_V(lnt_hedgehog_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(2 * d);
    PARALLEL_HEADS(k, i, heads, size)
    {
        float e[2 * LNT_FEATURE_MAX];
        const void *xi = part_at(x, 0, i * d);
        vf top = v_zero(), s = v_zero();
        V_EACH(j, n, d) top = v_max(v_abs(v_get(xi, x->dtype, j, n)), top);
        const float m = v_hmax(top);
        V_EACH(j, n, d)
        {
            vf v = v_get(xi, x->dtype, j, n), plus = v_exp(v - m), minus = v_exp(-v - m);
            v_put(e, LINNET_F32, j, n, plus);
            v_put(e + d, LINNET_F32, j, n, minus);
            for (int64_t l = n; l < LNT_VL; l++) plus[l] = minus[l] = 0;
            s += plus + minus;
        }
        const float scale = 1.0f / v_sum(s);
        V_EACH(j, n, 2 * d) v_put(part_at(y, 0, 2 * i * d), y->dtype, j, n, v_get(e, LINNET_F32, j, n) * scale);
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_hedgehog_backward)(const lnt_call *k)
{
    const lnt_tensor *y = &k->out[0], *dy = &k->d_out[0], *dx = &k->d_in[0];
    const int64_t heads = y->heads, d = y->cols / heads / 2, size = rows_a_piece(2 * d);
    if (!dx->data) return LINNET_OK;
    PARALLEL_HEADS(k, i, heads, size)
    {
        const void *p = part_at(y, 0, 2 * i * d), *dp = part_at(dy, 0, 2 * i * d);
        vf s = v_zero();
        V_EACH(j, n, 2 * d) s += v_get(p, y->dtype, j, n) * v_get(dp, dy->dtype, j, n);
        const float mean = v_sum(s);
        V_EACH(j, n, d)
        {
            vf plus = v_get(p, y->dtype, j, n) * (v_get(dp, dy->dtype, j, n) - mean);
            vf minus = v_get(p, y->dtype, d + j, n) * (v_get(dp, dy->dtype, d + j, n) - mean);
            v_out(part_at(dx, 0, i * d), dx->dtype, j, n, plus - minus, k->accumulate[0]);
        }
    }
    return LINNET_OK;
}

/* ---- dpfp: p_j[i] = u[i] u[i-j], indices modulo 2d. du[i] = sum_j dp_j[i] u[i-j] + dp_j[i+j] u[i+j], dx = (du_+ - du_-) [x > 0].
 * u lies twice in a row, so that u[i-j] is w[2d + i - j]. -------------------------------- */

static void unfold(const lnt_tensor *x, int64_t i, int64_t d, float *w)
{
    V_EACH(j, n, d)
    {
        vf r = v_act(v_get(part_at(x, 0, i * d), x->dtype, j, n), LNT_RELU);
        v_put(w, LINNET_F32, j, n, r);
        v_put(w + d, LINNET_F32, j, n, -r);
    }
    memcpy(w + 2 * d, w, (size_t)(2 * d) * sizeof *w);
}

linnet_status LNT_V(lnt_dpfp_forward)(const lnt_call *k)
{
    const int nu = ((const lnt_dpfp_attr *)k->attr)->nu;
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(2 * d * nu);
    PARALLEL_HEADS(k, i, heads, size)
    {
        float w[4 * LNT_FEATURE_MAX];
        unfold(x, i, d, w);
        for (int j = 1; j <= nu; j++) {
            const float *rolled = w + 2 * d - j % (2 * d);
            void *p = part_at(y, 0, (i * nu + j - 1) * 2 * d);
            V_EACH(l, n, 2 * d) v_put(p, y->dtype, l, n, v_get(w, LINNET_F32, l, n) * v_get(rolled, LINNET_F32, l, n));
        }
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_dpfp_backward)(const lnt_call *k)
{
    const int nu = ((const lnt_dpfp_attr *)k->attr)->nu;
    const lnt_tensor *x = &k->in[0], *dy = &k->d_out[0], *dx = &k->d_in[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(2 * d * nu);
    if (!dx->data) return LINNET_OK;
    PARALLEL_HEADS(k, i, heads, size)
    {
        float w[4 * LNT_FEATURE_MAX], du[2 * LNT_FEATURE_MAX], dp[4 * LNT_FEATURE_MAX]; /* dp twice in a row too */
        unfold(x, i, d, w);
        memset(du, 0, (size_t)(2 * d) * sizeof *du);
        for (int j = 1; j <= nu; j++) {
            const int64_t by = j % (2 * d);
            const void *in = part_at(dy, 0, (i * nu + j - 1) * 2 * d);
            V_EACH(l, n, 2 * d) v_put(dp, LINNET_F32, l, n, v_get(in, dy->dtype, l, n));
            memcpy(dp + 2 * d, dp, (size_t)(2 * d) * sizeof *dp);
            const float *back = w + 2 * d - by, *ahead = w + by, *dp_ahead = dp + by;
            V_EACH(l, n, 2 * d)
            {
                vf s =
                    v_get(dp, LINNET_F32, l, n) * v_get(back, LINNET_F32, l, n) + v_get(dp_ahead, LINNET_F32, l, n) * v_get(ahead, LINNET_F32, l, n);
                v_out(du, LINNET_F32, l, n, s, true);
            }
        }
        V_EACH(l, n, d)
        {
            vf g = v_get(du, LINNET_F32, l, n) - v_get(du + d, LINNET_F32, l, n);
            g = v_select(v_get(w, LINNET_F32, l, n) > v_zero(), g, v_zero());
            v_out(part_at(dx, 0, i * d), dx->dtype, l, n, g, k->accumulate[0]);
        }
    }
    return LINNET_OK;
}

/* ---- quadratic: a row's products with what follows it in x lie together. dx_i = b dl_i + 2 c x_i ds_i + 2^1/2 c sum_{j != i} x_j dp_ij ------- */

typedef struct {
    int64_t d, cols;
    float one, linear, square, cross;
} quadratic;

static quadratic quadratic_of(const lnt_call *k)
{
    const lnt_quadratic_attr *a = k->attr;
    const int64_t d = k->in[0].cols / k->in[0].heads;
    return (quadratic){d, lnt_quadratic_cols(a, d), (float)a->one, (float)a->linear, (float)a->square, (float)(a->square * 1.4142135623730951)};
}

linnet_status LNT_V(lnt_quadratic_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const quadratic q = quadratic_of(k);
    const int64_t heads = x->heads, d = q.d, size = rows_a_piece(q.cols);
    PARALLEL_HEADS(k, i, heads, size)
    {
        float w[LNT_QUADRATIC_MAX], all[1 + LNT_QUADRATIC_MAX * (LNT_QUADRATIC_MAX + 3) / 2], *to = all;
        V_EACH(j, n, d) v_put(w, LINNET_F32, j, n, v_get(part_at(x, 0, i * d), x->dtype, j, n));
        if (q.one != 0) *to++ = q.one;
        if (q.linear != 0) {
            V_EACH(j, n, d) v_put(to, LINNET_F32, j, n, q.linear * v_get(w, LINNET_F32, j, n));
            to += d;
        }
        V_EACH(j, n, d) v_put(to, LINNET_F32, j, n, q.square * v_get(w, LINNET_F32, j, n) * v_get(w, LINNET_F32, j, n));
        to += d;
        for (int64_t l = 0; l + 1 < d; to += d - 1 - l, l++)
            V_EACH(j, n, d - 1 - l) v_put(to, LINNET_F32, j, n, q.cross * w[l] * v_get(w + l + 1, LINNET_F32, j, n));
        V_EACH(j, n, q.cols) v_put(part_at(y, 0, i * q.cols), y->dtype, j, n, v_get(all, LINNET_F32, j, n));
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_quadratic_backward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *dy = &k->d_out[0], *dx = &k->d_in[0];
    const quadratic q = quadratic_of(k);
    const int64_t heads = x->heads, d = q.d, size = rows_a_piece(q.cols);
    if (!dx->data) return LINNET_OK;
    PARALLEL_HEADS(k, i, heads, size)
    {
        float w[LNT_QUADRATIC_MAX], g[LNT_QUADRATIC_MAX], all[1 + LNT_QUADRATIC_MAX * (LNT_QUADRATIC_MAX + 3) / 2];
        const float *from = all + (q.one != 0);
        V_EACH(j, n, d) v_put(w, LINNET_F32, j, n, v_get(part_at(x, 0, i * d), x->dtype, j, n));
        V_EACH(j, n, q.cols) v_put(all, LINNET_F32, j, n, v_get(part_at(dy, 0, i * q.cols), dy->dtype, j, n));
        V_EACH(j, n, d) v_put(g, LINNET_F32, j, n, q.linear != 0 ? q.linear * v_get(from, LINNET_F32, j, n) : v_zero());
        if (q.linear != 0) from += d;
        V_EACH(j, n, d) v_out(g, LINNET_F32, j, n, 2.0f * q.square * v_get(w, LINNET_F32, j, n) * v_get(from, LINNET_F32, j, n), true);
        from += d;
        for (int64_t l = 0; l + 1 < d; from += d - 1 - l, l++) {
            vf s = v_zero();
            V_EACH(j, n, d - 1 - l)
            {
                const vf up = v_get(from, LINNET_F32, j, n);
                s += up * v_get(w + l + 1, LINNET_F32, j, n); /* 0 past the end */
                v_out(g + l + 1, LINNET_F32, j, n, q.cross * w[l] * up, true);
            }
            g[l] += q.cross * v_sum(s);
        }
        V_EACH(j, n, d) v_out(part_at(dx, 0, i * d), dx->dtype, j, n, v_get(g, LINNET_F32, j, n), k->accumulate[0]);
    }
    return LINNET_OK;
}

/* ---- circular: dx = cos(x) ds - sin(x) dc ------------------------------------------------------------------------------------------------ */

/* sin(x), and cos(x) in *c. x = n pi/2 + r with |r| <= pi/4, pi/2 in three parts whose products with n < 2^13 are exact but for the last; Taylor
 * series of r to r^9 and r^10, whose rests are below float32's rounding; n's last two bits say which is which, and the signs. */
static inline vf v_sin_cos(vf x, vf *c)
{
    const vf whole = x * 0.636619772f + 12582912.0f, n = whole - 12582912.0f; /* 1.5 2^23: rounds, and leaves n in the last bits */
    const vf r = ((x - n * 1.5703125f) - n * 4.83751297e-4f) - n * 7.54978995e-8f, z = r * r;
    const vf s = r + r * z * (-1.66666667e-1f + z * (8.33333333e-3f + z * (-1.98412698e-4f + z * 2.75573192e-6f)));
    const vf e = 1.0f + z * (-0.5f + z * (4.16666667e-2f + z * (-1.38888889e-3f + z * (2.48015873e-5f - z * 2.75573192e-7f))));
    const vi bits = (vi)whole, odd = -(bits & 1), minus = (bits & 2) << 30, turned = ((bits + 1) & 2) << 30;
    *c = (vf)((vi)v_select(odd, s, e) ^ turned);
    return (vf)((vi)v_select(odd, e, s) ^ minus);
}

linnet_status LNT_V(lnt_circular_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t heads = x->heads, d = x->cols / heads, size = rows_a_piece(2 * d);
    PARALLEL_HEADS(k, i, heads, size)
        V_EACH(j, n, d)
        {
            const vf v = v_get(part_at(x, 0, i * d), x->dtype, j, n);
            vf c, s = v_sin_cos(v, &c);
            for (int64_t l = 0; l < n; l++)
                if (fabsf(v[l]) > 8192.0f) s[l] = sinf(v[l]), c[l] = cosf(v[l]);
            v_put(part_at(y, 0, 2 * i * d), y->dtype, j, n, s);
            v_put(part_at(y, 0, (2 * i + 1) * d), y->dtype, j, n, c);
        }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_circular_backward)(const lnt_call *k)
{
    const lnt_tensor *y = &k->out[0], *dy = &k->d_out[0], *dx = &k->d_in[0];
    const int64_t heads = y->heads, d = y->cols / heads / 2, size = rows_a_piece(2 * d);
    if (!dx->data) return LINNET_OK;
    PARALLEL_HEADS(k, i, heads, size)
    {
        const void *s = part_at(y, 0, 2 * i * d), *c = part_at(y, 0, (2 * i + 1) * d);
        const void *ds = part_at(dy, 0, 2 * i * d), *dc = part_at(dy, 0, (2 * i + 1) * d);
        V_EACH(j, n, d)
        {
            const vf g = v_get(c, y->dtype, j, n) * v_get(ds, dy->dtype, j, n) - v_get(s, y->dtype, j, n) * v_get(dc, dy->dtype, j, n);
            v_out(part_at(dx, 0, i * d), dx->dtype, j, n, g, k->accumulate[0]);
        }
    }
    return LINNET_OK;
}
