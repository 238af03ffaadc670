/* y = x W^T + b,  dx = dy W,  dW += dy^T x,  db += column sums of dy;  W [out, in]. With `per_head`, x [tokens, heads, in] is read as
 * [tokens*heads, in]: one map serves every head. */
#include "ops/builder.h"

typedef struct {
    int64_t in, out; /* of the map */
    bool bias;
} linear_attr;

/* Rows the map is applied to. */
static int64_t rows_of(const lnt_call *k) { return k->tokens * (k->in[0].cols / ((const linear_attr *)k->attr)->in); }

static size_t linear_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const linear_attr *a = n->attr;
    return backward && a->bias ? lnt_sum_bytes(s, s->tokens * (lnt_in_cols(n, 0) / a->in), a->out) : 0;
}

static double linear_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const linear_attr *a = n->attr;
    return (backward ? 4.0 : 2.0) * (double)s->tokens * (double)(lnt_in_cols(n, 0) / a->in) * (double)a->in * (double)a->out;
}

static linnet_status linear_forward(const lnt_call *k)
{
    const linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_b = true, .M = rows_of(k), .N = a->out, .K = a->in, .alpha = 1, .ab = x->dtype, .c = y->dtype,
                                            .a = x->data, .lda = a->in, .b = k->param[0].work, .ldb = a->in, .C = y->data, .ldc = a->out}));
    if (a->bias) {
        lnt_tensor rows = *y;
        rows.rows = rows_of(k), rows.cols = a->out;
        LNT_KERNEL(k->c, lnt_bias_add)(k->c, &rows, k->param[1].master);
    }
    return LINNET_OK;
}

static linnet_status linear_backward(const lnt_call *k)
{
    const linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t rows = rows_of(k);
    if (!dy->data) return lnt_zero_gradients(k);
    if (dx->data)
        LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.M = rows, .N = a->in, .K = a->out, .alpha = 1, .beta = k->accumulate[0], .ab = dy->dtype,
                                                .c = dx->dtype, .a = dy->data, .lda = a->out, .b = k->param[0].work, .ldb = a->in, .C = dx->data,
                                                .ldc = a->in}));
    if (k->param[0].grad)
        LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_a = true, .M = a->out, .N = a->in, .K = rows, .alpha = 1, .beta = 1, .ab = dy->dtype,
                                                .c = LINNET_F32, .a = dy->data, .lda = a->out, .b = x->data, .ldb = a->in, .C = k->param[0].grad,
                                                .ldc = a->in}));
    if (a->bias && k->param[1].grad) {
        lnt_tensor d = *dy;
        d.rows = rows, d.cols = a->out;
        LNT_KERNEL(k->c, lnt_column_sums)(k->c, &d, k->param[1].grad, k->work);
    }
    return LINNET_OK;
}

static void linear_describe(const lnt_node *n, char *text, size_t size)
{
    const linear_attr *a = n->attr;
    snprintf(text, size, "%lld -> %lld%s", (long long)a->in, (long long)a->out, a->bias ? ", bias" : "");
}

static const lnt_op linear_op = {.name = "linear", .backward_needs = LNT_NEEDS_IN0, .workspace = linear_workspace, .flops = linear_flops,
                                 .forward = linear_forward, .backward = linear_backward, .describe = linear_describe};

static lnt_buf linear(lnt_program *p, lnt_buf x, const char *name, linear_attr a, int32_t heads, lnt_init init)
{
    /* The operands of a product share the policy's type. */
    if (lnt_program_value(p, x)->f32) return lnt_program_fail(p, "linear %s: its input is float32 under every policy, expected an activation", name);
    if (a.out < 1 || a.out > INT64_MAX / heads) return lnt_program_fail(p, "linear %s: %lld outputs", name, (long long)a.out);
    const int param[2] = {lnt_named_param(p, name, "weight", a.out, a.in, init, true, true),
                          a.bias ? lnt_named_param(p, name, "bias", a.out, 0, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false) : 0};
    return lnt_add_op(p, &linear_op, lnt_attr(p, &a, sizeof a), 1, &x, a.bias ? 2 : 1, param, (lnt_out_spec){a.out * heads, heads, false});
}

static lnt_buf whole_row(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    linear_attr a = {lnt_cols(p, x), out, bias};
    return linear(p, x, name, a, 1, (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, a.in), 0});
}

lnt_buf lnt_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, false); }
lnt_buf lnt_linear_bias(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, true); }

lnt_buf lnt_head_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out_per_head, bool bias, lnt_init init)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    int32_t heads = lnt_heads(p, x);
    linear_attr a = {lnt_cols(p, x) / heads, out_per_head, bias};
    return linear(p, x, name, a, heads, init);
}
