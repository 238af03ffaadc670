/* Feature maps over each head of d columns.
 *
 *   softmax   p = softmax(x)                                                                    d -> d
 *   hedgehog  p = softmax([y, -y])                                  (arXiv 2402.04347)          d -> 2d
 *   dpfp      r = relu(x), u = [r, -r], p_j = u . roll(u, j), j = 1..nu   (arXiv 2102.11174)     d -> 2 d nu
 *   quadratic p = [a, b x, c x_i^2, c 2^1/2 x_i x_j], i < j         (arXiv 2402.18668, 2402.10644) d -> 1 + d + d (d+1) / 2
 *   circular  p = [sin(x), cos(x)]                                  (arXiv 2103.02143)          d -> 2d */
#include "ops/feature_maps.h"
#include "ops/builder.h"

LNT_DEFINE_OP(softmax)
LNT_DEFINE_OP(hedgehog)
LNT_DEFINE_OP(dpfp)
LNT_DEFINE_OP(quadratic)
LNT_DEFINE_OP(circular)

static const lnt_op softmax_op = {.name = "softmax", .backward_needs = LNT_NEEDS_OUT0, .forward = softmax_forward, .backward = softmax_backward};
static const lnt_op hedgehog_op = {.name = "hedgehog", .backward_needs = LNT_NEEDS_OUT0, .forward = hedgehog_forward, .backward = hedgehog_backward};
static const lnt_op dpfp_op = {.name = "dpfp", .backward_needs = LNT_NEEDS_IN0, .forward = dpfp_forward, .backward = dpfp_backward};
static const lnt_op circular_op = {.name = "circular", .backward_needs = LNT_NEEDS_OUT0, .forward = circular_forward, .backward = circular_backward};

static void quadratic_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_quadratic_attr *a = n->attr;
    lnt_format(text, size, "%g + %g x.y + %g (x.y)^2", a->one * a->one, a->linear * a->linear, a->square * a->square);
}
static const lnt_op quadratic_op = {.name = "quadratic", .backward_needs = LNT_NEEDS_IN0, .forward = quadratic_forward,
                                    .backward = quadratic_backward, .describe = quadratic_describe};

static lnt_buf feature_map(lnt_program *p, const lnt_op *op, const void *attr, lnt_buf x, int64_t factor)
{
    const int64_t cols = lnt_cols(p, x), d = cols / lnt_heads(p, x);
    if (d > LNT_FEATURE_MAX) return lnt_program_fail(p, "%s: a head has %lld columns, expected at most %d", op->name, (long long)d, LNT_FEATURE_MAX);
    return lnt_add_op(p, op, attr, 1, &x, 0, NULL, (lnt_out_spec){cols * factor, lnt_heads(p, x), lnt_program_value(p, x)->f32});
}

lnt_buf lnt_softmax(lnt_program *p, lnt_buf x) { return lnt_ready(p, "softmax", 1, &x) ? feature_map(p, &softmax_op, NULL, x, 1) : LNT_NO_BUF; }
lnt_buf lnt_hedgehog(lnt_program *p, lnt_buf y) { return lnt_ready(p, "hedgehog", 1, &y) ? feature_map(p, &hedgehog_op, NULL, y, 2) : LNT_NO_BUF; }

lnt_buf lnt_circular(lnt_program *p, lnt_buf x) { return lnt_ready(p, "circular", 1, &x) ? feature_map(p, &circular_op, NULL, x, 2) : LNT_NO_BUF; }

lnt_buf lnt_quadratic(lnt_program *p, lnt_buf x, double one, double linear, double square)
{
    if (!lnt_ready(p, "quadratic", 1, &x)) return LNT_NO_BUF;
    const lnt_quadratic_attr a = {one, linear, square};
    const int64_t heads = lnt_heads(p, x), d = lnt_cols(p, x) / heads;
    if (d > LNT_QUADRATIC_MAX)
        return lnt_program_fail(p, "quadratic: a head has %lld columns, expected at most %d", (long long)d, LNT_QUADRATIC_MAX);
    return lnt_add_op(p, &quadratic_op, lnt_attr(p, &a, sizeof a), 1, &x, 0, NULL,
                      (lnt_out_spec){heads * lnt_quadratic_cols(&a, d), (int32_t)heads, lnt_program_value(p, x)->f32});
}

lnt_buf lnt_dpfp(lnt_program *p, lnt_buf x, int nu)
{
    if (!lnt_ready(p, "dpfp", 1, &x)) return LNT_NO_BUF;
    if (nu < 1 || nu > 64) return lnt_program_fail(p, "dpfp: nu is %d, expected 1 .. 64", nu);
    const lnt_dpfp_attr a = {nu};
    return feature_map(p, &dpfp_op, lnt_attr(p, &a, sizeof a), x, 2 * nu);
}
