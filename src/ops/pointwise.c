/* Element by element:  activation y = scale act(x),  add y = a + b,  mul y = a b (b may have one column for each head of a),
 * swiglu y = silu(gate) up. */
#include "ops/pointwise.h"
#include "ops/builder.h"

LNT_DEFINE_OP(activation)
LNT_DEFINE_OP(add)
LNT_DEFINE_OP(mul)
LNT_DEFINE_OP(swiglu)

static void activation_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_activation_attr *a = n->attr;
    snprintf(text, size, "%s, scale %g", lnt_act_name(a->act), a->scale);
}

const lnt_op lnt_activation_op = {.name = "activation", .backward_needs = LNT_NEEDS_IN0, .forward = activation_forward,
                                  .backward = activation_backward, .describe = activation_describe};
const lnt_op lnt_sum_op = {.name = "add", .passes_gradient = true, .forward = add_forward, .backward = add_backward};
static const lnt_op mul_op = {.name = "mul", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .forward = mul_forward, .backward = mul_backward};
const lnt_op lnt_swiglu_op = {
    .name = "swiglu", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .forward = swiglu_forward, .backward = swiglu_backward};

lnt_buf lnt_activation(lnt_program *p, lnt_buf x, lnt_act act, double scale, bool f32_out)
{
    if (!lnt_ready(p, "activation", 1, &x)) return LNT_NO_BUF;
    const lnt_activation_attr a = {act, scale};
    return lnt_add_op(p, &lnt_activation_op, lnt_attr(p, &a, sizeof a), 1, &x, 0, NULL, (lnt_out_spec){lnt_cols(p, x), lnt_heads(p, x), f32_out});
}

static lnt_buf two(lnt_program *p, const lnt_op *op, lnt_buf a, lnt_buf b, bool per_head)
{
    const lnt_buf in[2] = {a, b};
    if (!lnt_ready(p, op->name, 2, in)) return LNT_NO_BUF;
    const int64_t cols = lnt_cols(p, a), other = lnt_cols(p, b);
    if (other != cols && !(per_head && other == lnt_heads(p, a)))
        return lnt_program_fail(p, "%s: the inputs have %lld and %lld columns", op->name, (long long)cols, (long long)other);
    return lnt_add_op(p, op, NULL, 2, in, 0, NULL, (lnt_out_spec){cols, lnt_heads(p, a), lnt_program_value(p, a)->f32});
}

lnt_buf lnt_add_buf(lnt_program *p, lnt_buf a, lnt_buf b) { return two(p, &lnt_sum_op, a, b, false); }
lnt_buf lnt_mul_buf(lnt_program *p, lnt_buf a, lnt_buf b) { return two(p, &mul_op, a, b, true); }
lnt_buf lnt_swiglu(lnt_program *p, lnt_buf gate, lnt_buf up) { return two(p, &lnt_swiglu_op, gate, up, false); }
