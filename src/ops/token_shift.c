/* What RWKV mixes its inputs of (arXiv 2305.13048, 2404.05892, 2503.14456):
 *
 *   token_shift  y_t = x_{t-1}           dx_t = dy_{t+1}              inside each sequence; its state is the last row, float32 [cols]
 *   lerp         y = a + (b - a) m       da = dy (1 - m),  db = dy m,  dm = dy (b - a)   (summed over the rows when m has one row for all)
 *
 * Without a, y = b m: columns times parameters; without b, y = a + m, parameters added to them (da = dy, dm = dy). */
#include "ops/token_shift.h"
#include "ops/builder.h"

LNT_DEFINE_OP(token_shift)
LNT_DEFINE_OP(lerp)

static int64_t shift_state(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    (void)capacity, (void)dtype; /* float32 under every policy */
    return lnt_in_cols(n, 0) * (int64_t)sizeof(float);
}

static int shift_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    (void)capacity, (void)dtype, (void)tokens;
    t[0] = (lnt_state_tensor){.name = "input", .dtype = LINNET_F32, .ndim = 1, .dim = {lnt_in_cols(n, 0)}};
    return 1;
}

static const lnt_op token_shift_op = {
    .name = "token_shift", .state_size = shift_state, .state_tensors = shift_tensors, .forward = token_shift_forward,
    .backward = token_shift_backward};

lnt_buf lnt_token_shift(lnt_program *p, lnt_buf x)
{
    if (!lnt_ready(p, "token_shift", 1, &x) || !lnt_row_a_token(p, "token_shift", x)) return LNT_NO_BUF;
    return lnt_add_op(p, &token_shift_op, NULL, 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

/* Sums of dm, when it is one row. */
static size_t lerp_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_lerp_attr *x = n->attr;
    const int of = x->sum ? 0 : 1;
    return backward && x->row ? lnt_sum_bytes(s, lnt_in_rows(n, of, s), lnt_in_cols(n, of)) : 0;
}

static void lerp_describe(const lnt_node *n, char *text, size_t size)
{
    snprintf(text, size, "%s", !n->in[0].id ? "from 0" : !n->in[1].id ? "sum" : "");
}

static const lnt_op lerp_op = {.name = "lerp", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1 | LNT_NEEDS_IN2,
                               .strided = LNT_NEEDS_IN0 | LNT_NEEDS_IN1 | LNT_NEEDS_IN2, .workspace = lerp_workspace, .forward = lerp_forward,
                               .backward = lerp_backward, .describe = lerp_describe};

/* a: the null buffer for b m; b: for a + m. */
static lnt_buf lerp(lnt_program *p, lnt_buf a, lnt_buf b, lnt_buf m)
{
    const lnt_buf x = b.id ? b : a, in[3] = {x, m, a};
    if (!lnt_ready(p, "lerp", a.id ? 3 : 2, in)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, x);
    const bool row = lnt_program_value(p, m)->rows == 1 && lnt_program_value(p, x)->rows != 1;
    if (lnt_cols(p, m) != cols || (a.id && lnt_cols(p, a) != cols))
        return lnt_program_fail(p, "lerp: the inputs have %lld, %lld and %lld columns", (long long)(a.id ? lnt_cols(p, a) : cols), (long long)cols,
                                (long long)lnt_cols(p, m));
    if ((a.id && !lnt_same_rows(p, a, x)) || (!row && !lnt_same_rows(p, m, x))) return lnt_program_fail(p, "lerp: the inputs differ in their rows");
    if (row && !lnt_program_value(p, m)->f32) return lnt_program_fail(p, "lerp: one row for all is not float32");
    const lnt_lerp_attr attr = {.row = row, .sum = !b.id};
    return lnt_add_op(p, &lerp_op, lnt_attr(p, &attr, sizeof attr), 3, (const lnt_buf[]){a, b, m}, 0, NULL,
                      (lnt_out_spec){cols, lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_row_param(lnt_program *p, const char *name, int64_t rows, int64_t cols, lnt_init init)
{
    const int64_t dim[2] = {rows, cols};
    if (rows > INT32_MAX) return lnt_program_fail(p, "parameter %s of %lld rows", name, (long long)rows);
    const int param = rows == 1 ? lnt_add_param(p, name, 1, &cols, init, false, false) : lnt_add_param(p, name, 2, dim, init, false, false);
    return lnt_param_value(p, param, 1, (int32_t)rows);
}

lnt_buf lnt_lerp(lnt_program *p, lnt_buf a, lnt_buf b, lnt_buf m) { return lnt_ready(p, "lerp", 1, &a) ? lerp(p, a, b, m) : LNT_NO_BUF; }

lnt_buf lnt_scale_by(lnt_program *p, lnt_buf x, lnt_buf m) { return lerp(p, LNT_NO_BUF, x, m); }

lnt_buf lnt_lerp_param(lnt_program *p, lnt_buf a, lnt_buf b, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &b) ? lnt_lerp(p, a, b, lnt_row_param(p, name, 1, lnt_cols(p, b), init)) : LNT_NO_BUF;
}

lnt_buf lnt_scale_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &x) ? lnt_scale_by(p, x, lnt_row_param(p, name, 1, lnt_cols(p, x), init)) : LNT_NO_BUF;
}

lnt_buf lnt_scale_rows(lnt_program *p, lnt_buf x, lnt_buf m) { return lnt_ready(p, "lerp", 1, &x) ? lerp(p, LNT_NO_BUF, x, m) : LNT_NO_BUF; }

lnt_buf lnt_add_rows(lnt_program *p, lnt_buf x, lnt_buf m) { return lnt_ready(p, "lerp", 1, &x) ? lerp(p, x, LNT_NO_BUF, m) : LNT_NO_BUF; }

lnt_buf lnt_add_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init)
{
    return lnt_ready(p, "lerp", 1, &x) ? lerp(p, x, LNT_NO_BUF, lnt_row_param(p, name, 1, lnt_cols(p, x), init)) : LNT_NO_BUF;
}
