/* Normalisations over each head's columns. With d columns and r one number a row:
 *
 *   rmsnorm        y = x r w          r = (mean x^2 + eps)^-1/2
 *   gated_rmsnorm  y = x r w act(g)
 *   l2norm         y = x r            r = (sum x^2 + eps)^-1/2
 *   sumnorm        y = x r            r = 1 / (sum x + eps)
 *   layernorm      y = (x - m) r w + b    m = mean x, r = (mean (x - m)^2 + eps)^-1/2
 *
 * w [d] is shared by the heads; those of layernorm are w, b [heads d].
 *
 * Pairs: a sum and the rmsnorm of it (every block of a model) read and write each number once; the norm's gradient is added to the sum's and
 * handed on on the way. On a GPU a convolution and the l2norm of its heads run without the value between them, which backward makes again from
 * the inputs (on the CPU that value stays in the cache); in training so do act(g) u and the rmsnorm of its rows (Mamba-2). */
#include "ops/norms.h"

#include <math.h>

#include "ops/builder.h"
#include "ops/pointwise.h"
#include "ops/row_chain.h"
#include "ops/short_conv.h"

LNT_DEFINE_OP(rmsnorm)
LNT_DEFINE_OP(gated_rmsnorm)
LNT_DEFINE_OP(l2norm)
LNT_DEFINE_OP(sumnorm)
LNT_DEFINE_OP(layernorm)

/* Sums of dw, one row of [d] for each block of rows. */
static size_t weight_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return backward ? lnt_sum_bytes(s, lnt_in_rows(n, 0, s), lnt_in_cols(n, 0) / lnt_in_heads(n, 0)) : 0;
}

static void norm_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_norm_attr *a = n->attr;
    lnt_format(text, size, "eps %g%s%s", a->eps, n->n_in > 1 ? ", gate " : "", n->n_in > 1 ? lnt_act_name(a->act) : "");
}

/* The weights are the same for every head. */
static bool norm_row(const lnt_node *n, lnt_row_kind kind, lnt_row_step *s)
{
    const lnt_norm_attr *a = n->attr;
    lnt_row_inputs(n, kind, s);
    s->act = (int)a->act, s->number[0] = (float)a->eps, s->number[1] = a->centre;
    s->operands = 3;
    s->operand[2] = (lnt_row_operand){.from = n->n_in > 1 ? 1 : LNT_ROW_NONE};
    s->operand[1] = (lnt_row_operand){.from = n->n_param ? LNT_ROW_PARAM : LNT_ROW_NONE, .spread = LNT_ROW_SHARED};
    return true;
}
static bool rms_row(const lnt_node *n, lnt_row_step *s) { return norm_row(n, LNT_ROW_RMS, s); }
static bool l2_row(const lnt_node *n, lnt_row_step *s) { return norm_row(n, LNT_ROW_L2, s); }
static bool sum_row(const lnt_node *n, lnt_row_step *s) { return norm_row(n, LNT_ROW_SUM, s); }

static linnet_status sum_rmsnorm_forward(const lnt_call *sum, const lnt_call *norm)
{
    return LNT_KERNEL(sum->c, lnt_sum_rmsnorm_forward)(sum, norm);
}

static linnet_status sum_rmsnorm_backward(const lnt_call *sum, const lnt_call *norm)
{
    if (norm->d_out[0].data && norm->d_in[0].data) return LNT_KERNEL(sum->c, lnt_sum_rmsnorm_backward)(sum, norm);
    LNT_TRY(rmsnorm_backward(norm));
    return lnt_sum_op.backward(sum);
}

#ifdef LINNET_CUDA
extern lnt_pair_kernel lnt_conv_l2norm_forward_cuda, lnt_conv_l2norm_backward_cuda, lnt_glu_rmsnorm_forward_cuda, lnt_glu_rmsnorm_backward_cuda;
static linnet_status conv_l2norm_backward(const lnt_call *conv, const lnt_call *norm)
{
    return norm->d_out[0].data ? lnt_conv_l2norm_backward_cuda(conv, norm) : lnt_zero_gradients(conv);
}
static linnet_status glu_rmsnorm_backward(const lnt_call *glu, const lnt_call *norm)
{
    return norm->d_out[0].data ? lnt_glu_rmsnorm_backward_cuda(glu, norm) : lnt_zero_gradients(glu);
}
#define ON_GPU(kernel) kernel
#else
#define ON_GPU(kernel) NULL
#endif

/* Gates that norms are compiled for; decoding has chains (row_chain.h). */
static bool glu_rmsnorm_fits(const lnt_node *glu, const lnt_node *norm, const lnt_shape *s)
{
    return s->training && s->device && s->device->kind == LNT_DEVICE_CUDA && lnt_in_heads(norm, 0) == 1 &&
           ((const lnt_glu_attr *)glu->attr)->act <= LNT_TANH;
}

static const lnt_pair glu_rmsnorm = {.first = &lnt_glu_op, .inner = true, .fits = glu_rmsnorm_fits, .forward = ON_GPU(lnt_glu_rmsnorm_forward_cuda),
                                     .backward = ON_GPU(glu_rmsnorm_backward)};
static const lnt_pair sum_rmsnorm = {
    .first = &lnt_sum_op, .next = &glu_rmsnorm, .forward = sum_rmsnorm_forward, .backward = sum_rmsnorm_backward};

const lnt_op lnt_rmsnorm_op = {.name = "rmsnorm", .backward_needs = LNT_NEEDS_IN0, .workspace = weight_workspace, .forward = rmsnorm_forward,
                               .backward = rmsnorm_backward, .pair = &sum_rmsnorm, .describe = norm_describe, LNT_ROW_CHAIN(rms_row)};
/* Others who do an rmsnorm on the way know weights that are not centred. */
static const lnt_op centred_rmsnorm_op = {.name = "centred_rmsnorm", .backward_needs = LNT_NEEDS_IN0, .workspace = weight_workspace,
                                          .forward = rmsnorm_forward, .backward = rmsnorm_backward, .pair = &sum_rmsnorm,
                                          .describe = norm_describe, LNT_ROW_CHAIN(rms_row)};
const lnt_op lnt_gated_rmsnorm_op = {.name = "gated_rmsnorm", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .workspace = weight_workspace,
                                     .forward = gated_rmsnorm_forward, .backward = gated_rmsnorm_backward, .describe = norm_describe,
                                     LNT_ROW_CHAIN(rms_row)};
/* What the kernel is compiled for: rows of whole warps, heads of whole lanes in one of them. */
static bool conv_l2norm_fits(const lnt_node *conv, const lnt_node *norm, const lnt_shape *s)
{
    const lnt_conv_attr *a = conv->attr;
    const int64_t cols = lnt_in_cols(norm, 0), d = cols / lnt_in_heads(norm, 0);
    return s->device && s->device->kind == LNT_DEVICE_CUDA && a->size <= 4 && a->act == LNT_SILU && !a->bias &&
           cols % 128 == 0 && d % 4 == 0 && 128 % d == 0;
}

static const lnt_pair conv_l2norm = {.first = &lnt_conv_op, .inner = true, .fits = conv_l2norm_fits, .forward = ON_GPU(lnt_conv_l2norm_forward_cuda),
                                     .backward = ON_GPU(conv_l2norm_backward)};

const lnt_op lnt_l2norm_op = {.name = "l2norm", .backward_needs = LNT_NEEDS_IN0, .forward = l2norm_forward, .backward = l2norm_backward,
                              .pair = &conv_l2norm, .describe = norm_describe, LNT_ROW_CHAIN(l2_row)};
static const lnt_op sumnorm_op = {.name = "sumnorm", .backward_needs = LNT_NEEDS_IN0, .forward = sumnorm_forward, .backward = sumnorm_backward,
                                  .describe = norm_describe, LNT_ROW_CHAIN(sum_row)};

/* Sums of dw and of db, and on a GPU m and r of every row, which its second kernel reads again. */
static size_t layernorm_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const bool cuda = s->device && s->device->kind == LNT_DEVICE_CUDA;
    const int64_t rows = lnt_in_rows(n, 0, s);
    return !backward ? 0 : lnt_sum_bytes(s, rows, 2 * lnt_in_cols(n, 0)) + (cuda ? (size_t)(rows * lnt_in_heads(n, 0)) * 2 * sizeof(float) : 0);
}

static void layernorm_describe(const lnt_node *n, char *text, size_t size)
{
    lnt_format(text, size, "eps %g", ((const lnt_layernorm_attr *)n->attr)->eps);
}

static bool layernorm_row(const lnt_node *n, lnt_row_step *s)
{
    const lnt_layernorm_attr *a = n->attr;
    lnt_row_inputs(n, LNT_ROW_LAYER, s);
    s->number[0] = (float)a->eps;
    s->operands = 3;
    s->operand[1] = (lnt_row_operand){.from = a->weight ? LNT_ROW_PARAM : LNT_ROW_NONE};
    s->operand[2] = (lnt_row_operand){.from = a->bias ? LNT_ROW_PARAM + a->weight : LNT_ROW_NONE};
    return true;
}

static const lnt_op layernorm_op = {.name = "layernorm", .backward_needs = LNT_NEEDS_IN0, .workspace = layernorm_workspace,
                                    .forward = layernorm_forward, .backward = layernorm_backward, .describe = layernorm_describe,
                                    LNT_ROW_CHAIN(layernorm_row)};

static lnt_buf norm(lnt_program *p, const lnt_op *op, int n_in, const lnt_buf *in, const char *name, double eps, lnt_act act)
{
    if (!lnt_ready(p, op->name, n_in, in)) return LNT_NO_BUF;
    const bool centred = op == &centred_rmsnorm_op;
    const lnt_norm_attr a = {eps, act, centred ? 1.0f : 0.0f};
    const int64_t cols = lnt_cols(p, in[0]);
    const int32_t heads = lnt_heads(p, in[0]);
    if (n_in > 1 && lnt_cols(p, in[1]) != cols)
        return lnt_program_fail(p, "%s %s: the gate has %lld columns, expected %lld", op->name, name, (long long)lnt_cols(p, in[1]), (long long)cols);
    if (act > LNT_TANH) return lnt_program_fail(p, "%s %s: a gate by %s", op->name, name, lnt_act_name(act)); /* gate_all, rows.cuh */
    const int param = name ? lnt_named_param(p, name, "weight", cols / heads, 0, (lnt_init){LNT_INIT_CONST, centred ? 0 : 1, 0}, false, false) : 0;
    return lnt_add_op(p, op, lnt_attr(p, &a, sizeof a), n_in, in, name != NULL, &param, (lnt_out_spec){cols, heads, false});
}

lnt_buf lnt_centred_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps)
{
    return norm(p, &centred_rmsnorm_op, 1, &x, name, eps, LNT_IDENTITY);
}
lnt_buf lnt_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps) { return norm(p, &lnt_rmsnorm_op, 1, &x, name, eps, LNT_IDENTITY); }

/* x / sqrt(sum x^2 + d eps) is d^-1/2 of it. */
lnt_buf lnt_plain_rmsnorm(lnt_program *p, lnt_buf x, double eps)
{
    if (!lnt_ready(p, "rmsnorm", 1, &x)) return LNT_NO_BUF;
    const double d = (double)(lnt_cols(p, x) / lnt_heads(p, x));
    return lnt_affine(p, lnt_l2norm(p, x, d * eps), LNT_IDENTITY, sqrt(d), 0, false);
}

lnt_buf lnt_gated_rmsnorm(lnt_program *p, lnt_buf x, lnt_buf gate, const char *name, double eps, lnt_act act)
{
    return norm(p, &lnt_gated_rmsnorm_op, 2, (const lnt_buf[]){x, gate}, name, eps, act);
}
lnt_buf lnt_layernorm(lnt_program *p, lnt_buf x, const char *name, double eps, bool weight, bool bias)
{
    if (!lnt_ready(p, "layernorm", 1, &x)) return LNT_NO_BUF;
    const lnt_layernorm_attr a = {eps, weight, bias};
    const int64_t cols = lnt_cols(p, x);
    int param[2], n = 0;
    if (weight) param[n++] = lnt_named_param(p, name, "weight", cols, 0, (lnt_init){LNT_INIT_CONST, 1, 0}, false, false);
    if (bias) param[n++] = lnt_named_param(p, name, "bias", cols, 0, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false);
    return lnt_add_op(p, &layernorm_op, lnt_attr(p, &a, sizeof a), 1, &x, n, param, (lnt_out_spec){cols, lnt_heads(p, x), false});
}
lnt_buf lnt_l2norm(lnt_program *p, lnt_buf x, double eps) { return norm(p, &lnt_l2norm_op, 1, &x, NULL, eps, LNT_IDENTITY); }
lnt_buf lnt_sumnorm(lnt_program *p, lnt_buf x, double eps) { return norm(p, &sumnorm_op, 1, &x, NULL, eps, LNT_IDENTITY); }
