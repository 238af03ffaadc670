/* Rows between two others, as RWKV mixes a token with the one before (arXiv 2305.13048, 2404.05892, 2503.14456), n of them side by side:
 *
 *   y_i = a + (b - a) m_i       da = sum_i dy_i (1 - m_i),  db = sum_i dy_i m_i,  dm_i = dy_i (b - a)
 *
 * (dm_i summed over the rows when m has one row for all). Without a, y = b m: columns times parameters; without b, y = a + m, parameters added to
 * them (da = dy, dm = dy).
 *
 * Pairs, in training on a GPU: the sum of columns times one row and something else, b m + z, is made without what is between, whose gradient is the
 * sum's; lerps between rows and those before them without the shifted rows; one from a to a e without the product. */
#include "ops/lerp.h"
#include "ops/builder.h"
#include "ops/row_chain.h"

LNT_DEFINE_OP(lerp)

/* Sums of dm, when it is one row. */
static size_t lerp_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_lerp_attr *x = n->attr;
    const int of = x->sum ? 0 : 1;
    return backward && x->row ? lnt_sum_bytes(s, lnt_in_rows(n, of, s), x->count * lnt_in_cols(n, of)) : 0;
}

static void lerp_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_lerp_attr *x = n->attr;
    if (x->count > 1)
        snprintf(text, size, "%d", x->count);
    else
        snprintf(text, size, "%s", !n->in[0].id ? "from 0" : x->sum ? "sum" : "");
}

static bool lerp_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_lerp_attr *x = n->attr;
    const int of = n->in[0].id ? 0 : 1;
    const int64_t cols = lnt_in_cols(n, of);
    *s = (lnt_row_step){.kind = x->sum ? LNT_ROW_ADD : of ? LNT_ROW_MUL : LNT_ROW_LERP, .count = x->count, .cols = cols,
                        .head = cols / lnt_in_heads(n, of)};
    for (int i = 0; i < 2; i++)
        if (n->in[i].id) s->operand[s->operands++] = (lnt_row_operand){.from = i};
    for (int i = 0; i < x->count; i++)
        s->operand[s->operands++] = n->n_in == 2 + x->count ? (lnt_row_operand){.from = 2 + i} : (lnt_row_operand){.from = 2, .first = i * cols};
    return true;
}

#ifdef LINNET_CUDA
extern lnt_pair_kernel lnt_shifted_lerp_forward_cuda, lnt_shifted_lerp_backward_cuda, lnt_product_lerp_forward_cuda, lnt_product_lerp_backward_cuda;

/* b is made of a, and m has one row for all. */
static bool from_a_fits(const lnt_node *first, const lnt_node *lerp, const lnt_shape *s)
{
    const lnt_lerp_attr *x = lerp->attr;
    return s->training && s->device && s->device->kind == LNT_DEVICE_CUDA && x->row && lnt_same_data(lerp->program, first->in[0], lerp->in[0]);
}
static bool product_fits(const lnt_node *mul, const lnt_node *lerp, const lnt_shape *s)
{
    return from_a_fits(mul, lerp, s) && ((const lnt_lerp_attr *)lerp->attr)->count == 1 && lnt_in_cols(mul, 1) == lnt_in_cols(mul, 0);
}
static const lnt_pair product = {.first = &lnt_mul_op, .input = 1, .inner = true, .fits = product_fits,
                                 .forward = lnt_product_lerp_forward_cuda, .backward = lnt_product_lerp_backward_cuda};
static const lnt_pair shifted = {.first = &lnt_token_shift_op, .next = &product, .input = 1, .inner = true, .fits = from_a_fits,
                                 .forward = lnt_shifted_lerp_forward_cuda, .backward = lnt_shifted_lerp_backward_cuda};
#define PAIRS .pair = &shifted
#else
#define PAIRS .pair = NULL
#endif

static const lnt_op lerp_op = {.name = "lerp", .backward_needs = LNT_NEEDS_ALL_IN, .strided = LNT_NEEDS_ALL_IN, .workspace = lerp_workspace,
                               .forward = lerp_forward, .backward = lerp_backward, .describe = lerp_describe, PAIRS,
                               LNT_ROW_CHAIN(lerp_row)};

#ifdef LINNET_CUDA
extern lnt_pair_kernel lnt_scaled_sum_forward_cuda;

static bool scaled_sum_fits(const lnt_node *scale, const lnt_node *sum, const lnt_shape *s)
{
    const lnt_lerp_attr *x = scale->attr;
    (void)sum;
    return s->training && s->device && s->device->kind == LNT_DEVICE_CUDA && x->row && !x->sum && x->count == 1 && !scale->in[0].id;
}

static linnet_status scaled_sum_backward(const lnt_call *scale, const lnt_call *sum)
{
    lnt_call k = *scale;
    k.d_out[0] = sum->d_out[0];
    if (sum->d_in[1].data) LNT_TRY(sum->node->op->backward(sum));
    return lerp_backward(&k);
}
const lnt_pair lnt_scaled_sum = {
    .first = &lerp_op, .inner = true, .fits = scaled_sum_fits, .forward = lnt_scaled_sum_forward_cuda, .backward = scaled_sum_backward};
#else
static bool scaled_sum_fits(const lnt_node *scale, const lnt_node *sum, const lnt_shape *s) { return (void)scale, (void)sum, (void)s, false; }
const lnt_pair lnt_scaled_sum = {.first = &lerp_op, .fits = scaled_sum_fits};
#endif

/* a: the null buffer for b m; b: for a + m. m: `rows` of them, side by side. */
static lnt_buf lerp(lnt_program *p, lnt_buf a, lnt_buf b, int rows, const lnt_buf *m)
{
    const lnt_buf x = b.id ? b : a, in[3] = {x, a, m[0]};
    lnt_buf all[2 + LNT_LERP_MOST] = {a, b};
    if (!lnt_ready(p, "lerp", 1, &x) || (a.id && !lnt_ready(p, "lerp", 1, &a)) || !lnt_ready(p, "lerp", rows, m)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, x);
    const bool row = lnt_program_value(p, m[0])->rows == 1 && lnt_program_value(p, x)->rows != 1;
    int64_t wide = 0;
    bool alike = true; /* of several, each has the columns of one */
    for (int i = 0; i < rows; i++) {
        const lnt_value *v = lnt_program_value(p, m[i]);
        wide += v->cols, all[2 + i] = m[i], alike = alike && (rows == 1 || v->cols == cols);
        if (row ? v->rows != 1 : !lnt_same_rows(p, m[i], x)) return lnt_program_fail(p, "lerp: the inputs differ in their rows");
        if (row && !v->f32) return lnt_program_fail(p, "lerp: one row for all is not float32");
    }
    const int64_t count = wide / cols;
    if (!alike || count < 1 || wide % cols || (a.id && lnt_cols(p, a) != cols) || count > LNT_LERP_MOST || (count > 1 && !(a.id && b.id)))
        return lnt_program_fail(p, "lerp: the inputs have %lld, %lld and %lld columns", (long long)lnt_cols(p, in[a.id ? 1 : 0]), (long long)cols,
                                (long long)lnt_cols(p, m[0]));
    if (a.id && !lnt_same_rows(p, a, x)) return lnt_program_fail(p, "lerp: the inputs differ in their rows");
    const lnt_lerp_attr attr = {.row = row, .sum = !b.id, .count = (int)count};
    return lnt_add_op(p, &lerp_op, lnt_attr(p, &attr, sizeof attr), 2 + rows, all, 0, NULL,
                      (lnt_out_spec){wide, count > 1 ? 1 : lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_row_param(lnt_program *p, const char *name, int64_t rows, int64_t cols, lnt_init init)
{
    const int64_t dim[2] = {rows, cols};
    if (rows > INT32_MAX) return lnt_program_fail(p, "parameter %s of %lld rows", name, (long long)rows);
    const int param = rows == 1 ? lnt_add_param(p, name, 1, &cols, init, false, false) : lnt_add_param(p, name, 2, dim, init, false, false);
    return lnt_param_value(p, param, 1, (int32_t)rows);
}

lnt_buf lnt_lerp(lnt_program *p, lnt_buf a, lnt_buf b, lnt_buf m) { return lnt_ready(p, "lerp", 1, &a) ? lerp(p, a, b, 1, &m) : LNT_NO_BUF; }

lnt_buf lnt_lerps(lnt_program *p, lnt_buf a, lnt_buf b, int count, const lnt_buf *m)
{
    if (count < 1 || count > LNT_LERP_MOST) return lnt_program_fail(p, "%d lerps, expected 1 to %d", count, LNT_LERP_MOST);
    return lnt_ready(p, "lerp", 1, &a) && lnt_ready(p, "lerp", 1, &b) ? lerp(p, a, b, count, m) : LNT_NO_BUF;
}

lnt_buf lnt_scale_by(lnt_program *p, lnt_buf x, lnt_buf m) { return lerp(p, LNT_NO_BUF, x, 1, &m); }

lnt_buf lnt_lerp_param(lnt_program *p, lnt_buf a, lnt_buf b, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &b) ? lnt_lerp(p, a, b, lnt_row_param(p, name, 1, lnt_cols(p, b), init)) : LNT_NO_BUF;
}

lnt_buf lnt_scale_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &x) ? lnt_scale_by(p, x, lnt_row_param(p, name, 1, lnt_cols(p, x), init)) : LNT_NO_BUF;
}

lnt_buf lnt_scale_rows(lnt_program *p, lnt_buf x, lnt_buf m) { return lnt_ready(p, "lerp", 1, &x) ? lerp(p, LNT_NO_BUF, x, 1, &m) : LNT_NO_BUF; }

lnt_buf lnt_add_rows(lnt_program *p, lnt_buf x, lnt_buf m) { return lnt_ready(p, "lerp", 1, &x) ? lerp(p, x, LNT_NO_BUF, 1, &m) : LNT_NO_BUF; }

lnt_buf lnt_add_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &x) ? lnt_add_rows(p, x, lnt_row_param(p, name, 1, lnt_cols(p, x), init)) : LNT_NO_BUF;
}
