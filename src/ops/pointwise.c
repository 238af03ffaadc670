/* Element by element:  activation y = scale act(x) + offset,  add y = a + b,  mul y = a b (b may have one column for each head of a),
 * glu y = act(gate) up,  clamp y = x within [low, high];  head_dot y = sum over a head's columns of a b;  columns: the copy of a slice. */
#include "ops/pointwise.h"
#include "ops/builder.h"
#include "ops/lerp.h"
#include "ops/row_chain.h"

LNT_DEFINE_OP(activation)
LNT_DEFINE_OP(add)
LNT_DEFINE_OP(mul)
LNT_DEFINE_OP(glu)
LNT_DEFINE_OP(clamp)
LNT_DEFINE_OP(head_dot)
LNT_DEFINE_OP(columns)

static void activation_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_activation_attr *a = n->attr;
    const int at = lnt_format(text, size, "%s, scale %g", lnt_act_name(a->act), a->scale);
    if (a->offset != 0) lnt_format(text + at, size - (size_t)at, ", offset %g", a->offset);
}

static bool activation_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_activation_attr *a = n->attr;
    lnt_row_inputs(n, LNT_ROW_ACTIVATION, s);
    s->act = (int)a->act, s->number[0] = (float)a->scale, s->number[1] = (float)a->offset;
    return true;
}
static bool add_row(const lnt_node *n, lnt_row_step *s) { return lnt_row_inputs(n, LNT_ROW_ADD, s), true; }
static bool mul_row(const lnt_node *n, lnt_row_step *s)
{
    lnt_row_inputs(n, LNT_ROW_MUL, s);
    if (lnt_in_cols(n, 1) != s->cols) s->operand[1].spread = LNT_ROW_HEAD;
    return true;
}

const lnt_op lnt_activation_op = {.name = "activation", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .forward = activation_forward,
                                  .backward = activation_backward, .describe = activation_describe, LNT_ROW_CHAIN(activation_row)};
const lnt_op lnt_sum_op = {.name = "add", .passes_gradient = true, .forward = add_forward, .backward = add_backward, .pair = &lnt_scaled_sum,
                           LNT_ROW_CHAIN(add_row)};
const lnt_op lnt_mul_op = {.name = "mul", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .strided = LNT_NEEDS_IN0, .forward = mul_forward,
                           .backward = mul_backward, LNT_ROW_CHAIN(mul_row)};

static void glu_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_glu_attr *a = n->attr;
    snprintf(text, size, "%s", lnt_act_name(a->act));
}
static bool glu_row(const lnt_node *n, lnt_row_step *s)
{
    lnt_row_inputs(n, LNT_ROW_GLU, s);
    s->act = (int)((const lnt_glu_attr *)n->attr)->act;
    return true;
}
const lnt_op lnt_glu_op = {.name = "glu", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .strided = LNT_NEEDS_IN0 | LNT_NEEDS_IN1,
                           .forward = glu_forward, .backward = glu_backward, .describe = glu_describe, LNT_ROW_CHAIN(glu_row)};

static void clamp_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_clamp_attr *a = n->attr;
    lnt_format(text, size, "%g .. %g", a->low, a->high);
}
static bool clamp_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_clamp_attr *a = n->attr;
    lnt_row_inputs(n, LNT_ROW_CLAMP, s);
    s->number[0] = (float)a->low, s->number[1] = (float)a->high;
    return true;
}
static const lnt_op clamp_op = {.name = "clamp", .backward_needs = LNT_NEEDS_IN0, .forward = clamp_forward, .backward = clamp_backward,
                                .describe = clamp_describe, LNT_ROW_CHAIN(clamp_row)};

static bool dot_row(const lnt_node *n, lnt_row_step *s) { return lnt_row_inputs(n, LNT_ROW_DOT, s), true; }
static bool columns_row(const lnt_node *n, lnt_row_step *s)
{
    lnt_row_inputs(n, LNT_ROW_ACTIVATION, s);
    s->number[0] = 1;
    return true;
}
static const lnt_op head_dot_op = {
    .name = "head_dot", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .forward = head_dot_forward, .backward = head_dot_backward,
    LNT_ROW_CHAIN(dot_row)};
static const lnt_op columns_op = {.name = "columns", .strided = LNT_NEEDS_IN0, .forward = columns_forward, .backward = columns_backward,
                                  LNT_ROW_CHAIN(columns_row)};

lnt_buf lnt_activation(lnt_program *p, lnt_buf x, lnt_act act, double scale, bool f32_out) { return lnt_affine(p, x, act, scale, 0, f32_out); }
lnt_buf lnt_affine(lnt_program *p, lnt_buf x, lnt_act act, double scale, double offset, bool f32_out)
{
    if (!lnt_ready(p, "activation", 1, &x)) return LNT_NO_BUF;
    const lnt_activation_attr a = {act, scale, offset};
    return lnt_add_op(p, &lnt_activation_op, lnt_attr(p, &a, sizeof a), 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), f32_out});
}

/* Whether a and b go together element by element, or (per_head) b has a column for each head of a. */
static bool fit(lnt_program *p, const char *op, lnt_buf a, lnt_buf b, bool per_head)
{
    const lnt_buf in[2] = {a, b};
    if (!lnt_ready(p, op, 2, in)) return false;
    const int64_t cols = lnt_cols(p, a), other = lnt_cols(p, b);
    if (other != cols && !(per_head && other == lnt_heads(p, a)))
        return lnt_program_fail(p, "%s: the inputs have %lld and %lld columns", op, (long long)cols, (long long)other), false;
    if (!lnt_same_rows(p, a, b)) return lnt_program_fail(p, "%s: one input has other rows than the other", op), false;
    return true;
}

static lnt_buf two(lnt_program *p, const lnt_op *op, const void *attr, lnt_buf a, lnt_buf b, bool per_head)
{
    if (!fit(p, op->name, a, b, per_head)) return LNT_NO_BUF;
    return lnt_add_op(p, op, attr, 2, (const lnt_buf[]){a, b}, 0, NULL,
                      (lnt_out_spec){lnt_cols(p, a), lnt_heads(p, a), lnt_program_value(p, a)->f32});
}

lnt_buf lnt_add_buf(lnt_program *p, lnt_buf a, lnt_buf b) { return two(p, &lnt_sum_op, NULL, a, b, false); }
lnt_buf lnt_mul_buf(lnt_program *p, lnt_buf a, lnt_buf b) { return two(p, &lnt_mul_op, NULL, a, b, true); }
lnt_buf lnt_glu(lnt_program *p, lnt_buf gate, lnt_buf up, lnt_act act)
{
    const lnt_glu_attr a = {act};
    return two(p, &lnt_glu_op, lnt_attr(p, &a, sizeof a), gate, up, false);
}
lnt_buf lnt_swiglu(lnt_program *p, lnt_buf gate, lnt_buf up) { return lnt_glu(p, gate, up, LNT_SILU); }

lnt_buf lnt_clamp(lnt_program *p, lnt_buf x, double low, double high)
{
    const lnt_clamp_attr a = {low, high};
    if (!lnt_ready(p, "clamp", 1, &x)) return LNT_NO_BUF;
    if (!(low <= high)) return lnt_program_fail(p, "clamp: from %g to %g", low, high);
    return lnt_add_op(p, &clamp_op, lnt_attr(p, &a, sizeof a), 1, &x, 0, NULL,
                      (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_head_dot(lnt_program *p, lnt_buf a, lnt_buf b)
{
    if (!fit(p, "head_dot", a, b, false)) return LNT_NO_BUF;
    return lnt_add_op(p, &head_dot_op, NULL, 2, (const lnt_buf[]){a, b}, 0, NULL, (lnt_out_spec){lnt_heads(p, a), 1, true});
}

/* The copy that another operator of this recompute group has already, if there is one. */
lnt_buf lnt_dense(lnt_program *p, lnt_buf x)
{
    if (lnt_program_failed(p) || x.id <= 0 || !lnt_is_slice(p, x)) return x;
    for (int i = lnt_node_count(p) - 1; i >= 0 && lnt_node_at(p, i)->block == lnt_current_block(p); i--) {
        const lnt_node *n = lnt_node_at(p, i);
        if (n->op == &columns_op && lnt_same_data(p, n->in[0], x)) return lnt_with_heads(p, n->out[0], lnt_heads(p, x));
    }
    return lnt_add_op(p, &columns_op, NULL, 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), lnt_program_value(p, x)->f32});
}
