/* Feature maps over each head of d columns.
 *
 *   softmax   p = softmax(x)                                                                    d -> d
 *   hedgehog  p = softmax([y, -y])                                  (arXiv 2402.04347)          d -> 2d
 *   dpfp      r = relu(x), u = [r, -r], p_j = u . roll(u, j), j = 1..nu   (arXiv 2102.11174)     d -> 2 d nu */
#include "ops/feature_maps.h"
#include "ops/builder.h"

LNT_DEFINE_OP(softmax)
LNT_DEFINE_OP(hedgehog)
LNT_DEFINE_OP(dpfp)

static const lnt_op softmax_op = {.name = "softmax", .backward_needs = LNT_NEEDS_OUT0, .forward = softmax_forward, .backward = softmax_backward};
static const lnt_op hedgehog_op = {.name = "hedgehog", .backward_needs = LNT_NEEDS_OUT0, .forward = hedgehog_forward, .backward = hedgehog_backward};
static const lnt_op dpfp_op = {.name = "dpfp", .backward_needs = LNT_NEEDS_IN0, .forward = dpfp_forward, .backward = dpfp_backward};

static lnt_buf feature_map(lnt_program *p, const lnt_op *op, const void *attr, lnt_buf x, int64_t factor)
{
    const int64_t cols = lnt_cols(p, x), d = cols / lnt_heads(p, x);
    if (d > LNT_FEATURE_MAX) return lnt_program_fail(p, "%s: a head has %lld columns, expected at most %d", op->name, (long long)d, LNT_FEATURE_MAX);
    return lnt_add_op(p, op, attr, 1, &x, 0, NULL, (lnt_out_spec){cols * factor, lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_softmax(lnt_program *p, lnt_buf x) { return lnt_ready(p, "softmax", 1, &x) ? feature_map(p, &softmax_op, NULL, x, 1) : LNT_NO_BUF; }
lnt_buf lnt_hedgehog(lnt_program *p, lnt_buf y) { return lnt_ready(p, "hedgehog", 1, &y) ? feature_map(p, &hedgehog_op, NULL, y, 2) : LNT_NO_BUF; }

lnt_buf lnt_dpfp(lnt_program *p, lnt_buf x, int nu)
{
    if (!lnt_ready(p, "dpfp", 1, &x)) return LNT_NO_BUF;
    if (nu < 1 || nu > 64) return lnt_program_fail(p, "dpfp: nu is %d, expected 1 .. 64", nu);
    const lnt_dpfp_attr a = {nu};
    return feature_map(p, &dpfp_op, lnt_attr(p, &a, sizeof a), x, 2 * nu);
}
