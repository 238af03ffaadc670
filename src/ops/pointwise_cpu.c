#include "ops/pointwise.h"
#include "ops/rows.h"

enum { PIECE = 16384 }; /* elements */

/* In parallel for the vectors (i, n) of 0 .. count. */
#define PARALLEL_EACH(c, i, n, count)                                                                                              \
    PARALLEL_PIECES(c, piece, pieces(count, PIECE))                                                                                \
        for (int64_t i = piece * PIECE, n; n = at_most(LNT_VL, (count) - i), i < at_most(count, (piece + 1) * PIECE); i += LNT_VL)

static inline int64_t elements(const lnt_call *k) { return k->tokens * k->out[0].cols; }
static inline vf in(const lnt_tensor *x, int64_t i, int64_t n) { return v_get(x->data, x->dtype, i, n); }
/* Input j's gradient, when wanted. */
static inline void gradient(const lnt_call *k, int j, int64_t i, int64_t n, vf d)
{
    if (k->d_in[j].data) v_out(k->d_in[j].data, k->d_in[j].dtype, i, n, d, k->accumulate[j]);
}

/* ---- activation: dx = scale act'(x) dy ---------------------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_activation_forward)(const lnt_call *k)
{
    const lnt_activation_attr *a = k->attr;
    const float scale = (float)a->scale;
    PARALLEL_EACH(k->c, i, n, elements(k)) v_put(k->out[0].data, k->out[0].dtype, i, n, v_act(in(&k->in[0], i, n), a->act) * scale);
    return LINNET_OK;
}

linnet_status LNT_V(lnt_activation_backward)(const lnt_call *k)
{
    const lnt_activation_attr *a = k->attr;
    const float scale = (float)a->scale;
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf y;
        gradient(k, 0, i, n, v_act_slope(in(&k->in[0], i, n), a->act, &y) * in(&k->d_out[0], i, n) * scale);
    }
    return LINNET_OK;
}

/* ---- add ------------------------------------------------------------------------------------------------------------------------ */

linnet_status LNT_V(lnt_add_forward)(const lnt_call *k)
{
    PARALLEL_EACH(k->c, i, n, elements(k)) v_put(k->out[0].data, k->out[0].dtype, i, n, in(&k->in[0], i, n) + in(&k->in[1], i, n));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_add_backward)(const lnt_call *k)
{
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf d = in(&k->d_out[0], i, n);
        gradient(k, 0, i, n, d);
        gradient(k, 1, i, n, d);
    }
    return LINNET_OK;
}

/* ---- swiglu: y = silu(g) u,  dg = dy u silu'(g),  du = dy silu(g) ----------------------------------------------------------------- */

linnet_status LNT_V(lnt_swiglu_forward)(const lnt_call *k)
{
    PARALLEL_EACH(k->c, i, n, elements(k)) v_put(k->out[0].data, k->out[0].dtype, i, n, v_act(in(&k->in[0], i, n), LNT_SILU) * in(&k->in[1], i, n));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_swiglu_backward)(const lnt_call *k)
{
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf d = in(&k->d_out[0], i, n), u = in(&k->in[1], i, n), y, slope = v_act_slope(in(&k->in[0], i, n), LNT_SILU, &y);
        gradient(k, 0, i, n, d * u * slope);
        gradient(k, 1, i, n, d * y);
    }
    return LINNET_OK;
}

/* ---- mul: y = a b,  da = dy b,  db = dy a (summed over the head's columns when b has one column a head) --------------------------- */

static inline float one(const lnt_tensor *x, int64_t i)
{
    return x->dtype == LINNET_F32 ? ((const float *)x->data)[i] : lnt_bf16_to_f32(((const lnt_bf16 *)x->data)[i]);
}

/* Rows of [tokens*heads, d] against b [tokens*heads]. */
static void mul_heads(const lnt_call *k, bool backward)
{
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *da = &k->d_in[0], *db = &k->d_in[1];
    const int64_t rows = k->tokens * a->heads, d = a->cols / a->heads, size = rows_a_piece(d);
    PARALLEL_PIECES(k->c, p, pieces(rows, size))
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) {
            const float br = one(b, r);
            vf s = v_zero();
            V_EACH(j, n, d)
            {
                vf x = in(a, r * d + j, n);
                if (!backward) {
                    v_put(k->out[0].data, k->out[0].dtype, r * d + j, n, x * br);
                    continue;
                }
                vf dy = in(&k->d_out[0], r * d + j, n);
                if (da->data) v_out(da->data, da->dtype, r * d + j, n, dy * br, k->accumulate[0]);
                s += dy * x;
            }
            if (backward && db->data) v_out(db->data, db->dtype, r, 1, v_set(v_sum(s)), k->accumulate[1]);
        }
}

linnet_status LNT_V(lnt_mul_forward)(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, false), LINNET_OK;
    PARALLEL_EACH(k->c, i, n, elements(k)) v_put(k->out[0].data, k->out[0].dtype, i, n, in(&k->in[0], i, n) * in(&k->in[1], i, n));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_mul_backward)(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, true), LINNET_OK;
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf d = in(&k->d_out[0], i, n), a = in(&k->in[0], i, n), b = in(&k->in[1], i, n);
        gradient(k, 0, i, n, d * b);
        gradient(k, 1, i, n, d * a);
    }
    return LINNET_OK;
}
