/* Normalisations over each head's columns. With d columns and r one number a row:
 *
 *   rmsnorm        y = x r w          r = (mean x^2 + eps)^-1/2
 *   gated_rmsnorm  y = x r w act(g)
 *   l2norm         y = x r            r = (sum x^2 + eps)^-1/2
 *   sumnorm        y = x r            r = 1 / (sum x + eps)
 *
 * w [d] is shared by the heads. */
#include "ops/norms.h"
#include "ops/builder.h"

LNT_DEFINE_OP(rmsnorm)
LNT_DEFINE_OP(gated_rmsnorm)
LNT_DEFINE_OP(l2norm)
LNT_DEFINE_OP(sumnorm)

/* Sums of dw, one row of [d] for each block of rows. */
static size_t weight_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return backward ? lnt_sum_bytes(s, s->tokens, lnt_in_cols(n, 0) / lnt_in_heads(n, 0)) : 0;
}

static void norm_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_norm_attr *a = n->attr;
    snprintf(text, size, "eps %g%s%s", a->eps, n->n_in > 1 ? ", gate " : "", n->n_in > 1 ? lnt_act_name(a->act) : "");
}

static const lnt_op rmsnorm_op = {.name = "rmsnorm", .backward_needs = LNT_NEEDS_IN0, .workspace = weight_workspace, .forward = rmsnorm_forward,
                                  .backward = rmsnorm_backward, .describe = norm_describe};
static const lnt_op gated_rmsnorm_op = {.name = "gated_rmsnorm", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .workspace = weight_workspace,
                                        .forward = gated_rmsnorm_forward, .backward = gated_rmsnorm_backward, .describe = norm_describe};
static const lnt_op l2norm_op = {.name = "l2norm", .backward_needs = LNT_NEEDS_IN0, .forward = l2norm_forward, .backward = l2norm_backward,
                                 .describe = norm_describe};
static const lnt_op sumnorm_op = {.name = "sumnorm", .backward_needs = LNT_NEEDS_IN0, .forward = sumnorm_forward, .backward = sumnorm_backward,
                                  .describe = norm_describe};

static lnt_buf norm(lnt_program *p, const lnt_op *op, int n_in, const lnt_buf *in, const char *name, double eps, lnt_act act)
{
    if (!lnt_ready(p, op->name, n_in, in)) return LNT_NO_BUF;
    const lnt_norm_attr a = {eps, act};
    const int64_t cols = lnt_cols(p, in[0]);
    const int32_t heads = lnt_heads(p, in[0]);
    if (n_in > 1 && lnt_cols(p, in[1]) != cols)
        return lnt_program_fail(p, "%s %s: the gate has %lld columns, expected %lld", op->name, name, (long long)lnt_cols(p, in[1]), (long long)cols);
    const int param = name ? lnt_named_param(p, name, "weight", cols / heads, 0, (lnt_init){LNT_INIT_CONST, 1, 0}, false, false) : 0;
    return lnt_add_op(p, op, lnt_attr(p, &a, sizeof a), n_in, in, name != NULL, &param, (lnt_out_spec){cols, heads, false});
}

lnt_buf lnt_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps) { return norm(p, &rmsnorm_op, 1, &x, name, eps, LNT_IDENTITY); }
lnt_buf lnt_gated_rmsnorm(lnt_program *p, lnt_buf x, lnt_buf gate, const char *name, double eps, lnt_act act)
{
    return norm(p, &gated_rmsnorm_op, 2, (const lnt_buf[]){x, gate}, name, eps, act);
}
lnt_buf lnt_l2norm(lnt_program *p, lnt_buf x, double eps) { return norm(p, &l2norm_op, 1, &x, NULL, eps, LNT_IDENTITY); }
lnt_buf lnt_sumnorm(lnt_program *p, lnt_buf x, double eps) { return norm(p, &sumnorm_op, 1, &x, NULL, eps, LNT_IDENTITY); }
