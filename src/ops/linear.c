/* y = x W^T + b,  dx = dy W,  dW += dy^T x,  db += column sums of dy;  W [out, in]. Per head, x [tokens, heads, in] is read as [tokens*heads, in]:
 * one map serves every head. In groups, x [tokens, groups, in] has a map each, side by side in W [out, groups*in], b [groups, out]. */
#include "ops/linear.h"

#include <math.h>

#include "core/threads.h"
#include "device/device.h"
#include "ops/pointwise.h"

/* Columns that a map makes; of maps that are one call, all of theirs. */
static int64_t out_of(const lnt_call *k, const lnt_tensor *y) { return y->cols / (k->in[0].cols / ((const lnt_linear_attr *)k->attr)->in); }

/* Rows the map is applied to. */
static int64_t rows_of(const lnt_call *k)
{
    const lnt_linear_attr *a = k->attr;
    return k->in[0].rows * (k->in[0].cols / (a->groups * a->in));
}

static size_t linear_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_linear_attr *a = n->attr;
    if (!backward) /* lnt_few_sum.squares */
        return s->has_state && s->tokens <= LNT_FEW_ROWS && s->device && s->device->kind == LNT_DEVICE_CUDA
                   ? (size_t)s->tokens * ((size_t)a->out / LNT_FEW_LEAST_TILE + 1) * sizeof(float) : 0;
    return a->bias ? lnt_sum_bytes(s, lnt_in_rows(n, 0, s) * (lnt_in_cols(n, 0) / a->in / a->groups), a->groups * a->out) : 0;
}

static double linear_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_linear_attr *a = n->attr;
    return (backward ? 4.0 : 2.0) * (double)lnt_in_rows(n, 0, s) * (double)(lnt_in_cols(n, 0) / a->in) * (double)a->in * (double)a->out;
}

/* Elements from a row of x (or of its gradient) to the next: heads are rows of their own. */
static int64_t ld_of(const lnt_call *k, const lnt_tensor *x)
{
    const lnt_linear_attr *a = k->attr;
    return x->cols == a->groups * a->in ? x->ld : a->in;
}

/* The same of its result y, or of that one's gradient, with `out` columns a map of whole rows. */
static int64_t ld_of_result(const lnt_call *k, const lnt_tensor *y, int64_t out)
{
    const lnt_linear_attr *a = k->attr;
    return k->in[0].cols == a->groups * a->in ? y->ld : out;
}

static void *column(const void *p, lnt_dtype t, int64_t at) { return (char *)(uintptr_t)p + at * (int64_t)lnt_dtype_size(t); }

static linnet_status linear_forward(const lnt_call *k)
{
    const lnt_linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t in = a->groups * a->in, each = out_of(k, y), out = a->groups * each;
    if (a->bias && lnt_map_with_bias(k)) return LINNET_OK;
    for (int g = 0; g < a->groups; g++)
        LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_b = true, .weights = true, .M = rows_of(k), .N = each, .K = a->in, .alpha = 1,
                                                .ab = x->dtype, .c = y->dtype, .a = column(x->data, x->dtype, g * a->in), .lda = ld_of(k, x),
                                                .b = column(k->param[0].work, k->param[0].work_dtype, g * a->in), .ldb = in,
                                                .b_scale = k->param[0].scale, .C = column(y->data, y->dtype, g * each),
                                                .ldc = ld_of_result(k, y, out)}));
    if (a->bias) {
        lnt_tensor rows = *y;
        rows.rows = rows_of(k), rows.cols = rows.ld = out;
        LNT_KERNEL(k->c, lnt_bias_add)(k->c, &rows, k->param[1].master);
    }
    return LINNET_OK;
}

static linnet_status linear_backward(const lnt_call *k)
{
    const lnt_linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t rows = rows_of(k), in = a->groups * a->in, each = out_of(k, dy), out = a->groups * each, ld = ld_of_result(k, dy, out);
    if (!dy->data) return lnt_zero_gradients(k);
    for (int g = 0; g < a->groups; g++) {
        const void *d = column(dy->data, dy->dtype, g * each);
        if (dx->data)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.M = rows, .N = a->in, .K = each, .alpha = 1, .beta = k->accumulate[0], .ab = dy->dtype,
                                                    .c = dx->dtype, .a = d, .lda = ld, .b = column(k->param[0].work, dy->dtype, g * a->in),
                                                    .ldb = in, .C = column(dx->data, dx->dtype, g * a->in), .ldc = ld_of(k, dx)}));
        if (k->param[0].grad)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_a = true, .M = each, .N = a->in, .K = rows, .alpha = 1, .beta = !k->param[0].set,
                                                    .ab = dy->dtype, .c = LINNET_F32, .a = d, .lda = ld,
                                                    .b = column(x->data, x->dtype, g * a->in), .ldb = ld_of(k, x),
                                                    .C = k->param[0].grad + g * a->in, .ldc = in}));
    }
    if (a->bias && k->param[1].grad) {
        lnt_tensor d = *dy;
        d.rows = rows, d.cols = d.ld = out;
        LNT_KERNEL(k->c, lnt_column_sums)(k->c, &d, k->param[1].grad, k->work);
    }
    return LINNET_OK;
}

/* Wide maps begin at whole tiles of the product and whole lines of memory; behind them may come narrow ones. A plan's rows of such results are whole
 * lines: with 16 columns of beta behind q, k and v in rows of 12,320 bytes a DeltaNet step took 3% longer (training_speed.md). */
enum { JOINED_COLUMNS = 128, JOINED_NARROW = 8 };
static bool lie_well(int64_t before, int64_t behind)
{
    return (before | behind) % JOINED_NARROW == 0 && (behind < JOINED_COLUMNS || (before | behind) % JOINED_COLUMNS == 0);
}

static bool linear_continues(const lnt_node *a, const lnt_node *b)
{
    const lnt_param *x = lnt_param_at(a->program, a->param[0]), *y = lnt_param_at(b->program, b->param[0]);
    const int64_t out[2] = {((const lnt_linear_attr *)a->attr)->out, ((const lnt_linear_attr *)b->attr)->out};
    return lnt_is_map(a) && lnt_is_map(b) && !lnt_has_bias(a) && !lnt_has_bias(b) && lnt_same_data(a->program, a->in[0], b->in[0]) && !x->plain &&
           !y->plain && x->offset + x->count == y->offset && lie_well(out[0], out[1]);
}

static void linear_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_linear_attr *a = n->attr;
    const int at = a->groups > 1 ? snprintf(text, size, "%d x ", a->groups) : 0;
    snprintf(text + at, size - (size_t)at, "%lld -> %lld%s", (long long)a->in, (long long)a->out, a->bias ? ", bias" : "");
}

const lnt_op lnt_linear_op = {.name = "linear", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .stores_first = true,
                                 .workspace = linear_workspace, .flops = linear_flops, .forward = linear_forward,
                                 .backward = linear_backward, .describe = linear_describe, .continues = linear_continues, LNT_LINEAR_GROUP};

/* One map for every head: heads are rows, which lie one behind the other and are no columns among others. */
static const lnt_op linear_heads_op = {.name = "linear", .backward_needs = LNT_NEEDS_IN0, .stores_first = true, .workspace = linear_workspace,
                                       .flops = linear_flops, .forward = linear_forward, .backward = linear_backward, .describe = linear_describe};

/* The same in float32 under every policy, of fixed rows and parameters that no other product reads. The rows of every call are the same, and so are
 * their bits without being taken one by one. */
static linnet_status linear_f32_forward(const lnt_call *k)
{
    const bool alone = lnt_rows_are_alone(k->c);
    lnt_rows_alone(k->c, false);
    const linnet_status s = linear_forward(k);
    lnt_rows_alone(k->c, alone);
    return s;
}

static const lnt_op linear_f32_op = {.name = "linear_f32", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .workspace = linear_workspace,
                                     .flops = linear_flops, .forward = linear_f32_forward, .backward = linear_backward, .describe = linear_describe};

/* The operands of a product share the policy's type. */
static bool takes_input(lnt_program *p, lnt_buf x, const char *name)
{
    if (lnt_program_value(p, x)->f32) lnt_program_fail(p, "linear %s: its input is float32 under every policy, expected an activation", name);
    return !lnt_program_value(p, x)->f32;
}

static lnt_buf linear(lnt_program *p, lnt_buf x, const char *name, lnt_linear_attr a, int32_t heads, lnt_init init)
{
    if (!takes_input(p, x, name)) return LNT_NO_BUF;
    if (a.out < 1 || a.out > INT64_MAX / heads) return lnt_program_fail(p, "linear %s: %lld outputs", name, (long long)a.out);
    const int param[2] = {lnt_named_param(p, name, "weight", a.out, a.in, init, true, true),
                          a.bias ? lnt_named_param(p, name, "bias", a.out, 0, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false) : 0};
    return lnt_add_op(p, heads > 1 ? &linear_heads_op : &lnt_linear_op, lnt_attr(p, &a, sizeof a), 1, &x, a.bias ? 2 : 1, param,
                      (lnt_out_spec){a.out * heads, heads, false});
}

static lnt_buf whole_row(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    lnt_linear_attr a = {lnt_cols(p, x), out, 1, bias};
    return linear(p, x, name, a, 1, (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, a.in), 0});
}

lnt_buf lnt_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, false); }
lnt_buf lnt_linear_bias(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, true); }

lnt_buf lnt_head_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out_per_head, bool bias, lnt_init init)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    const int32_t heads = lnt_heads(p, x);
    lnt_linear_attr a = {lnt_cols(p, x) / heads, out_per_head, 1, bias};
    return linear(p, x, name, a, heads, init);
}

lnt_buf lnt_group_linear(lnt_program *p, lnt_buf x, const char *name, const char *bias, int64_t out)
{
    if (!lnt_ready(p, "linear", 1, &x) || !takes_input(p, x, name)) return LNT_NO_BUF;
    const int32_t groups = lnt_heads(p, x);
    const int64_t cols = lnt_cols(p, x), dim[2] = {groups, out};
    if (out < 1 || out > INT64_MAX / groups) return lnt_program_fail(p, "linear %s: %lld outputs", name, (long long)out);
    lnt_linear_attr a = {cols / groups, out, groups, bias != NULL};
    const lnt_init init = {LNT_INIT_NORMAL, lnt_init_std(p, a.in), 0};
    const int param[2] = {lnt_named_param(p, name, "weight", out, cols, init, true, true),
                          bias ? lnt_add_param(p, bias, 2, dim, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false) : 0};
    return lnt_add_op(p, &lnt_linear_op, lnt_attr(p, &a, sizeof a), 1, &x, bias ? 2 : 1, param, (lnt_out_spec){out * groups, groups, false});
}

lnt_buf lnt_linear_f32(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    if (!lnt_program_value(p, x)->f32 || !lnt_program_value(p, x)->rows)
        return lnt_program_fail(p, "linear %s: its input is an activation, expected fixed rows that are float32 under every policy", name);
    const lnt_linear_attr a = {lnt_cols(p, x), out, 1, bias};
    const double most = 1 / sqrt((double)a.in);
    const lnt_init init = {LNT_INIT_UNIFORM, -most, most};
    const int param[2] = {lnt_named_param(p, name, "weight", out, a.in, init, true, false),
                          bias ? lnt_named_param(p, name, "bias", out, 0, init, false, false) : 0};
    return lnt_add_op(p, &linear_f32_op, lnt_attr(p, &a, sizeof a), 1, &x, bias ? 2 : 1, param, (lnt_out_spec){out, 1, true});
}
