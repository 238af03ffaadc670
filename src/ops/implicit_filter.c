/* What Hyena's filters (arXiv 2302.10866) are made of besides a small network: rows i = 0 .. L-1, one for each lag.
 *
 *   place_features  [t, cos(f_j w), -sin(f_j w)], t = i / (L-1), w = 2 pi i / L, f from 1e-4 to m-1 in m equal steps, columns 1 + 2m
 *   decay_window    y_ic = x_ic (e^{-d_c t} + shift), d from `slow` to `fast` in equal steps over the columns */
#include "ops/implicit_filter.h"
#include "ops/builder.h"

LNT_DEFINE_OP(place_features)
LNT_DEFINE_OP(decay_window)

static const lnt_op place_features_op = {.name = "place_features", .forward = place_features_forward, .backward = place_features_backward};

static void window_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_decay_window_attr *a = n->attr;
    lnt_format(text, size, "rates %g .. %g, shift %g", a->slow, a->fast, a->shift);
}
static const lnt_op decay_window_op = {
    .name = "decay_window", .forward = decay_window_forward, .backward = decay_window_backward, .describe = window_describe};

lnt_buf lnt_place_features(lnt_program *p, int64_t rows, int64_t cols)
{
    if (lnt_program_failed(p)) return LNT_NO_BUF;
    if (cols < 3 || cols % 2 == 0) return lnt_program_fail(p, "place_features: %lld columns, expected an odd number above 1", (long long)cols);
    return lnt_add_source(p, &place_features_op, NULL, rows, (lnt_out_spec){cols, 1, true});
}

lnt_buf lnt_decay_window(lnt_program *p, lnt_buf x, double slow, double fast, double shift)
{
    if (!lnt_ready(p, "decay_window", 1, &x)) return LNT_NO_BUF;
    const lnt_value *v = lnt_program_value(p, x);
    if (!v->rows || !v->f32) return lnt_program_fail(p, "decay_window: expected fixed rows in float32");
    const lnt_decay_window_attr a = {slow, fast, shift};
    return lnt_add_op(p, &decay_window_op, lnt_attr(p, &a, sizeof a), 1, &x, 0, NULL, (lnt_out_spec){v->cols, v->heads, true});
}
