#include "ops/pointwise.h"
#include "ops/rows.h"

enum { PIECE = 16384 }; /* elements */

/* In parallel for the vectors (i, n) of 0 .. count. */
#define PARALLEL_EACH(c, i, n, count)                                                                                              \
    PARALLEL_PIECES(c, piece, pieces(count, PIECE))                                                                                \
        for (int64_t i = piece * PIECE, n; n = at_most(LNT_VL, (count) - i), i < at_most(count, (piece + 1) * PIECE); i += LNT_VL)

static inline int64_t elements(const lnt_call *k) { return k->out[0].rows * k->out[0].cols; }
static inline vf in(const lnt_tensor *x, int64_t i, int64_t n) { return v_get(x->data, x->dtype, i, n); }
/* Input j's gradient, when wanted. */
static inline void gradient(const lnt_call *k, int j, int64_t i, int64_t n, vf d)
{
    if (k->d_in[j].data) v_out(k->d_in[j].data, k->d_in[j].dtype, i, n, d, k->accumulate[j]);
}

/* Where the first input, and its gradient, may be slices: in parallel for the vectors of each row, columns c .. c+n-1 of row r. */
#define PARALLEL_ROWS(k, r, c, n)                                                                                                  \
    const int64_t cols_ = (k)->out[0].cols, size_ = rows_a_piece(cols_);                                                           \
    PARALLEL_PIECES((k)->c, piece, pieces((k)->out[0].rows, size_))                                                                \
        for (int64_t r = piece * size_; r < at_most((k)->out[0].rows, (piece + 1) * size_); r++) V_EACH(c, n, cols_)

static inline vf in_row(const lnt_tensor *x, int64_t r, int64_t c, int64_t n) { return v_get(row_at(x, r), x->dtype, c, n); }
static inline void row_gradient(const lnt_call *k, int j, int64_t r, int64_t c, int64_t n, vf d)
{
    if (k->d_in[j].data) v_out(row_at(&k->d_in[j], r), k->d_in[j].dtype, c, n, d, k->accumulate[j]);
}

/* ---- activation: dx = scale act'(x) dy ---------------------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_activation_forward)(const lnt_call *k)
{
    const lnt_activation_attr *a = k->attr;
    const float scale = (float)a->scale, offset = (float)a->offset; /* -0 + 0 would lose its sign */
    if (k->in[0].ld != k->in[0].cols) {
        PARALLEL_ROWS(k, r, c, n)
        {
            vf y = v_act(in_row(&k->in[0], r, c, n), a->act) * scale;
            v_put(row_at(&k->out[0], r), k->out[0].dtype, c, n, offset != 0 ? y + offset : y);
        }
        return LINNET_OK;
    }
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf y = v_act(in(&k->in[0], i, n), a->act) * scale;
        v_put(k->out[0].data, k->out[0].dtype, i, n, offset != 0 ? y + offset : y);
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_activation_backward)(const lnt_call *k)
{
    const lnt_activation_attr *a = k->attr;
    const float scale = (float)a->scale;
    if (k->in[0].ld != k->in[0].cols || k->d_in[0].ld != k->d_in[0].cols) {
        PARALLEL_ROWS(k, r, c, n)
        {
            vf y;
            row_gradient(k, 0, r, c, n, v_act_slope(in_row(&k->in[0], r, c, n), a->act, &y) * in_row(&k->d_out[0], r, c, n) * scale);
        }
        return LINNET_OK;
    }
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

/* ---- glu: y = act(g) u,  dg = dy u act'(g),  du = dy act(g). SiLU, the usual one, is compiled by itself ------------------------------- */

INLINE void glu_forward(const lnt_call *k, const lnt_act act)
{
    PARALLEL_ROWS(k, r, c, n)
        v_put(row_at(&k->out[0], r), k->out[0].dtype, c, n, v_act(in_row(&k->in[0], r, c, n), act) * in_row(&k->in[1], r, c, n));
}

INLINE void glu_backward(const lnt_call *k, const lnt_act act)
{
    PARALLEL_ROWS(k, r, c, n)
    {
        vf d = in_row(&k->d_out[0], r, c, n), u = in_row(&k->in[1], r, c, n), y, slope = v_act_slope(in_row(&k->in[0], r, c, n), act, &y);
        row_gradient(k, 0, r, c, n, d * u * slope);
        row_gradient(k, 1, r, c, n, d * y);
    }
}

linnet_status LNT_V(lnt_glu_forward)(const lnt_call *k)
{
    const lnt_act act = ((const lnt_glu_attr *)k->attr)->act;
    if (act == LNT_SILU)
        glu_forward(k, LNT_SILU);
    else
        glu_forward(k, act);
    return LINNET_OK;
}

linnet_status LNT_V(lnt_glu_backward)(const lnt_call *k)
{
    const lnt_act act = ((const lnt_glu_attr *)k->attr)->act;
    if (act == LNT_SILU)
        glu_backward(k, LNT_SILU);
    else
        glu_backward(k, act);
    return LINNET_OK;
}

/* ---- clamp: NaN stays; dx = dy inside, the ends included ----------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_clamp_forward)(const lnt_call *k)
{
    const lnt_clamp_attr *a = k->attr;
    const vf low = v_set((float)a->low), high = v_set((float)a->high);
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf x = in(&k->in[0], i, n);
        x = v_select(x < low, low, x);
        v_put(k->out[0].data, k->out[0].dtype, i, n, v_select(x > high, high, x));
    }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_clamp_backward)(const lnt_call *k)
{
    const lnt_clamp_attr *a = k->attr;
    const vf low = v_set((float)a->low), high = v_set((float)a->high);
    PARALLEL_EACH(k->c, i, n, elements(k))
    {
        vf x = in(&k->in[0], i, n);
        gradient(k, 0, i, n, v_select((x < low) | (x > high), v_zero(), in(&k->d_out[0], i, n)));
    }
    return LINNET_OK;
}

/* ---- head_dot: y = sum over a head's columns of a b,  da = dy b,  db = dy a ------------------------------------------------------------ */

linnet_status LNT_V(lnt_head_dot_forward)(const lnt_call *k)
{
    const lnt_tensor *a = &k->in[0], *b = &k->in[1];
    const int64_t rows = a->rows * a->heads, d = a->cols / a->heads, size = rows_a_piece(d);
    PARALLEL_PIECES(k->c, p, pieces(rows, size))
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) {
            vf s = v_zero();
            V_EACH(j, n, d) s += in(a, r * d + j, n) * in(b, r * d + j, n);
            v_put(k->out[0].data, k->out[0].dtype, r, 1, v_set(v_sum(s)));
        }
    return LINNET_OK;
}

linnet_status LNT_V(lnt_head_dot_backward)(const lnt_call *k)
{
    const lnt_tensor *a = &k->in[0], *b = &k->in[1];
    const int64_t rows = a->rows * a->heads, d = a->cols / a->heads, size = rows_a_piece(d);
    PARALLEL_PIECES(k->c, p, pieces(rows, size))
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) {
            const float dy = in(&k->d_out[0], r, 1)[0];
            V_EACH(j, n, d)
            {
                vf x = in(a, r * d + j, n), y = in(b, r * d + j, n);
                gradient(k, 0, r * d + j, n, y * dy);
                gradient(k, 1, r * d + j, n, x * dy);
            }
        }
    return LINNET_OK;
}

/* ---- columns: the copy of a slice ---------------------------------------------------------------------------------------------------- */

linnet_status LNT_V(lnt_columns_forward)(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t size = rows_a_piece(x->cols);
    PARALLEL_PIECES(k->c, p, pieces(x->rows, size))
        for (int64_t r = p * size; r < at_most(x->rows, (p + 1) * size); r++)
            memcpy(row_at(y, r), row_at(x, r), (size_t)x->cols * (x->dtype == LINNET_F32 ? 4 : 2));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_columns_backward)(const lnt_call *k)
{
    const lnt_tensor *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t size = rows_a_piece(dx->cols);
    PARALLEL_PIECES(k->c, p, pieces(dx->data ? dx->rows : 0, size))
        for (int64_t r = p * size; r < at_most(dx->rows, (p + 1) * size); r++)
            V_EACH(i, n, dx->cols) v_out(row_at(dx, r), dx->dtype, i, n, v_get(row_at(dy, r), dy->dtype, i, n), k->accumulate[0]);
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
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *db = &k->d_in[1];
    const int64_t rows = k->in[0].rows * a->heads, d = a->cols / a->heads, size = rows_a_piece(d);
    PARALLEL_PIECES(k->c, p, pieces(rows, size))
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) {
            const int64_t row = r / a->heads, from = r % a->heads * d;
            const float br = one(b, r);
            vf s = v_zero();
            V_EACH(j, n, d)
            {
                vf x = in_row(a, row, from + j, n);
                if (!backward) {
                    v_put(k->out[0].data, k->out[0].dtype, r * d + j, n, x * br);
                    continue;
                }
                vf dy = in(&k->d_out[0], r * d + j, n);
                row_gradient(k, 0, row, from + j, n, dy * br);
                s += dy * x;
            }
            if (backward && db->data) v_out(db->data, db->dtype, r, 1, v_set(v_sum(s)), k->accumulate[1]);
        }
}

linnet_status LNT_V(lnt_mul_forward)(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, false), LINNET_OK;
    PARALLEL_ROWS(k, r, c, n) v_put(row_at(&k->out[0], r), k->out[0].dtype, c, n, in_row(&k->in[0], r, c, n) * in_row(&k->in[1], r, c, n));
    return LINNET_OK;
}

linnet_status LNT_V(lnt_mul_backward)(const lnt_call *k)
{
    if (k->in[1].cols != k->in[0].cols) return mul_heads(k, true), LINNET_OK;
    PARALLEL_ROWS(k, r, c, n)
    {
        vf d = in_row(&k->d_out[0], r, c, n), a = in_row(&k->in[0], r, c, n), b = in_row(&k->in[1], r, c, n);
        row_gradient(k, 0, r, c, n, d * b);
        row_gradient(k, 1, r, c, n, d * a);
    }
    return LINNET_OK;
}
